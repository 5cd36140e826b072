// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"weft/internal/proto/condtest"
)

// Requests and answers are written out as RFC 1928 has them.

func proxied(t *testing.T, s *Service) net.Conn {
	t.Helper()
	c := must(net.Dial("tcp", s.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// ask greets, sends a request and returns the reply's code and address.
func ask(t *testing.T, c net.Conn, request []byte) (byte, netip.AddrPort) {
	t.Helper()
	if _, err := c.Write(append([]byte{5, 2, 2, 0}, request...)); err != nil {
		t.Fatal(err)
	}
	var head [5]byte // method, then version, reply and reserved
	if _, err := io.ReadFull(c, head[:]); err != nil || !bytes.Equal(head[:3], []byte{5, 0, 5}) || head[4] != 0 {
		t.Fatalf("% x, %v", head, err)
	}
	at, name, err := readAddress(c)
	if err != nil || name != "" {
		t.Fatal(name, err)
	}
	return head[3], at
}

func TestSOCKSConnect(t *testing.T) {
	a, b := pair(t, 2044)
	echo(t, must(b.ListenTCP(netip.MustParseAddrPort("10.20.0.2:258")))(t))
	echo(t, must(b.ListenTCP(netip.MustParseAddrPort("[2001:db8:20::2]:258")))(t))
	plain := must(a.SOCKS(SOCKS{Listen: loopback, Limits: Limits{Dial: 5 * time.Second}}))(t)
	resolving := must(a.SOCKS(SOCKS{Listen: loopback, Resolve: func(_ context.Context, name string) ([]netip.Addr,
		error) {
		switch name {
		case "b.example":
			return []netip.Addr{addr("192.0.2.1"), addr("10.20.0.2")}, nil // the first has no route
		case "empty.example":
			return nil, nil
		}
		return nil, errors.New("no such name")
	}}))(t)
	v6 := addr("2001:db8:20::2").As16()
	name := func(s string) []byte { return append(append([]byte{5, 1, 0, 3, byte(len(s))}, s...), 1, 2) }
	for _, c := range []struct {
		what    string
		s       *Service
		request []byte
		reply   byte
	}{
		{"IPv4", plain, []byte{5, 1, 0, 1, 10, 20, 0, 2, 1, 2}, 0},
		{"IPv6", plain, append(append([]byte{5, 1, 0, 4}, v6[:]...), 1, 2), 0},
		{"IPv4 in text", plain, name("10.20.0.2"), 0},
		{"IPv6 in text", plain, name("2001:db8:20::2"), 0},
		{"name, not asked to resolve", plain, name("b.example"), 8},
		{"name", resolving, name("b.example"), 0},
		{"unknown name", resolving, name("c.example"), 4},
		{"name without addresses", resolving, name("empty.example"), 4},
		{"closed port", plain, []byte{5, 1, 0, 1, 10, 20, 0, 2, 0, 9}, 5},
		{"no route", plain, []byte{5, 1, 0, 1, 192, 0, 2, 1, 0, 9}, 4},
		{"BIND", plain, []byte{5, 2, 0, 1, 10, 20, 0, 2, 1, 2}, 7},
		{"address type", plain, []byte{5, 1, 0, 2}, 8},
		{"empty name", plain, []byte{5, 1, 0, 3, 0}, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			conn := proxied(t, c.s)
			code, at := ask(t, conn, c.request)
			if c.reply == 4 && code == 3 {
				code = 4 // the code for no route at all, in both cases
			}
			if code != c.reply {
				t.Fatalf("reply %d, want %d", code, c.reply)
			}
			if code == 0 {
				if at.Port() == 0 || at.Addr() != addr("10.20.0.1") && at.Addr() != addr("2001:db8:20::1") {
					t.Errorf("bound to %s", at)
				}
				roundTrip(t, conn, 100000)
			} else if rest, err := io.ReadAll(conn); len(rest) != 0 {
				t.Errorf("after the reply: % x, %v", rest, err)
			}
			conn.Close()
			settled(t, c.s)
		})
	}
}

func TestSOCKSTimeout(t *testing.T) {
	d := open(t, config(1, 2044))
	cable(t, d, nil, 2044, nil)
	s := must(d.SOCKS(SOCKS{Listen: loopback, Limits: Limits{Dial: 20 * time.Millisecond}}))(t)
	if code, _ := ask(t, proxied(t, s), []byte{5, 1, 0, 1, 10, 20, 0, 9, 1, 2}); code != 6 {
		t.Errorf("reply %d, want 6", code)
	}
}

// A violation of the protocol ends the connection, is counted, and affects no other.
func TestSOCKSRefusesOthers(t *testing.T) {
	d := open(t, config(1, 2044))
	s := must(d.SOCKS(SOCKS{Listen: loopback}))(t)
	whole := []byte{5, 1, 0, 5, 1, 0, 1, 10, 20, 0, 2, 1, 2}
	var bad [][]byte
	for n := range len(whole) {
		bad = append(bad, whole[:n])
	}
	bad = append(bad, []byte{4, 1, 0}, []byte("GET / HTTP/1.1\r\n\r\n"), []byte{5, 1, 2}, []byte{5, 0},
		[]byte{5, 1, 0, 4, 1, 0, 1})
	for i, b := range bad {
		c := proxied(t, s)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		got, _ := io.ReadAll(c)
		if len(got) > 2 {
			t.Errorf("% x: answered % x", b, got)
		}
		if bytes.Equal(b, []byte{5, 1, 2}) && !bytes.Equal(got, []byte{5, 0xff}) {
			t.Errorf("no method in common: % x", got)
		}
		c.Close()
		condtest.Until(t, "count", func() bool { return s.Counters.Refused.Load() == uint64(i+1) })
	}
	settled(t, s)
}

func TestSOCKSAssociate(t *testing.T) {
	a, b := pair(t, 2044)
	echoUDP(t, must(b.ListenUDP(netip.MustParseAddrPort("10.20.0.2:258")))(t))
	echoUDP(t, must(b.ListenUDP(netip.MustParseAddrPort("[2001:db8:20::2]:258")))(t))
	s := must(a.SOCKS(SOCKS{Listen: loopback}))(t)
	control := proxied(t, s)
	code, relay := ask(t, control, []byte{5, 3, 0, 1, 0, 0, 0, 0, 0, 0})
	if code != 0 || relay.Addr() != loopback.Addr() || relay.Port() == 0 {
		t.Fatalf("reply %d, %s", code, relay)
	}
	c := must(net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(relay)))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	v6 := addr("2001:db8:20::2").As16()
	buf := make([]byte, 1<<16)
	for _, head := range [][]byte{{0, 0, 0, 1, 10, 20, 0, 2, 1, 2}, append(append([]byte{0, 0, 0, 4}, v6[:]...), 1,
		2)} {
		for _, size := range []int{0, 1, 5000} {
			p := append(bytes.Clone(head), pattern(size)...)
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
			// The answer comes from where the question went.
			if n, err := c.Read(buf); err != nil || !bytes.Equal(buf[:n], p) {
				t.Errorf("% x and %d octets: %v", buf[:min(n, 22)], n, err)
			}
		}
	}
	// Fragments, names, other senders and whatever is too short are dropped.
	dropped := s.Counters.Dropped.Load()
	other := must(net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(relay)))(t)
	defer other.Close()
	good := []byte{0, 0, 0, 1, 10, 20, 0, 2, 1, 2, 'x'}
	for i, p := range [][]byte{{0, 0, 1, 1, 10, 20, 0, 2, 1, 2, 'x'}, {0, 0, 0, 3, 1, 'b', 1, 2, 'x'}, good[:9],
		good[:3], {0, 0, 0, 1, 10, 20, 0, 2, 0, 0, 'x'}} {
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
		condtest.Until(t, "drop", func() bool { return s.Counters.Dropped.Load() == dropped+uint64(i+1) })
	}
	if _, err := other.Write(good); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "drop of another sender's", func() bool { return s.Counters.Dropped.Load() == dropped+6 })
	// The end of the connection is that of the association.
	control.Close()
	settled(t, s)
	condtest.Until(t, "refusal of datagrams", func() bool {
		_, _ = c.Write(good)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := c.Read(buf)
		var slow net.Error
		return err != nil && !(errors.As(err, &slow) && slow.Timeout())
	})
}

func TestSOCKSAssociateIdle(t *testing.T) {
	d := open(t, config(1, 2044))
	s := must(d.SOCKS(SOCKS{Listen: loopback, Limits: Limits{Idle: 20 * time.Millisecond}}))(t)
	control := proxied(t, s)
	if code, _ := ask(t, control, []byte{5, 3, 0, 1, 0, 0, 0, 0, 0, 0}); code != 0 {
		t.Fatalf("reply %d", code)
	}
	if rest, err := io.ReadAll(control); len(rest) != 0 || err != nil {
		t.Errorf("% x, %v", rest, err)
	}
	settled(t, s)
	if n := s.Counters.Idle.Load(); n != 1 {
		t.Errorf("%d ended for being idle", n)
	}
}

func FuzzSOCKSAddress(f *testing.F) {
	f.Add([]byte{1, 10, 20, 0, 2, 1, 2})
	f.Add(append([]byte{4, 15: 1}, 0, 1, 2))
	f.Add(append([]byte{3, 9}, "10.20.0.2\x01\x02"...))
	f.Add(append([]byte{3, 9}, "b.example\x01\x02"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		to, name, err := readAddress(r)
		if err != nil {
			return
		}
		if name == "" && !to.Addr().IsValid() || name != "" && (to.Addr().IsValid() || len(name) > 255) {
			t.Errorf("% x: %s and name %q", b, to, name)
		}
		if name != "" || to.Addr().Zone() != "" {
			return
		}
		again, _, err := readAddress(bytes.NewReader(appendAddress(nil, to)))
		if err != nil || again != to {
			t.Errorf("%s became %s: %v", to, again, err)
		}
	})
}

func FuzzSOCKSDatagram(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 10, 20, 0, 2, 1, 2, 'x'})
	f.Add(append([]byte{0, 0, 0, 4, 18: 0}, 0, 1, 2, 'x'))
	f.Add([]byte{0, 0, 0, 3, 1, 'b', 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		to, data, ok := parseDatagram(b)
		if !ok {
			return
		}
		if !to.Addr().IsValid() || to.Port() == 0 || len(data) > len(b)-10 {
			t.Errorf("% x: %s with %d octets", b, to, len(data))
		}
	})
}

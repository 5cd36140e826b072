// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weft/internal/proto/condtest"
	"weft/internal/service/ipoib"
)

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>12 ^ i*7)
	}
	return b
}

// sum is the Internet checksum's sum of parts, each of even length but for
// the last.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			s += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)%2 == 1 {
			s += uint32(p[len(p)-1]) << 8
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// checkTCP reports what is wrong with a TCP packet, without regard to how it
// was made.
func checkTCP(t *testing.T, p []byte) {
	t.Helper()
	be := binary.BigEndian
	var pseudo, tcp []byte
	switch p[0] >> 4 {
	case 4:
		if sum(p[:20]) != 0xffff || int(be.Uint16(p[2:])) != len(p) {
			t.Errorf("IPv4 header % x of %d octets", p[:20], len(p))
		}
		pseudo, tcp = slices.Concat(p[12:20], []byte{0, 6}, be.AppendUint16(nil, uint16(len(p)-20))), p[20:]
	case 6:
		if int(be.Uint16(p[4:])) != len(p)-40 {
			t.Errorf("IPv6 header % x of %d octets", p[:40], len(p))
		}
		pseudo, tcp = slices.Concat(p[8:40], []byte{0, 0}, be.AppendUint16(nil, uint16(len(p)-40)),
			[]byte{0, 0, 0, 6}), p[40:]
	}
	if sum(pseudo, tcp) != 0xffff {
		t.Errorf("TCP checksum of % x", tcp[:20])
	}
}

func isTCP(p []byte) bool { return p[0]>>4 == 4 && p[9] == 6 || p[0]>>4 == 6 && p[6] == 6 }

// exchange sends data by TCP both ways at once.
func exchange(t *testing.T, from, to connector, at netip.AddrPort, size int) {
	t.Helper()
	l, err := to.ListenTCP(at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	data := pattern(size)
	both := func(c net.Conn) {
		defer c.Close()
		sent := make(chan error, 1)
		go func() {
			_, err := c.Write(data)
			sent <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
		}()
		got, err := io.ReadAll(c)
		if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d octets of %d arrived, or others: %v", len(got), len(data), err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		both(c)
	}()
	c, err := from.DialTCP(within(t), at)
	if err != nil {
		t.Fatal(err)
	}
	both(c)
	<-done
}

func TestTCP(t *testing.T) {
	for _, c := range []struct {
		name string
		mtu  int
		at   string
	}{
		{"IPv4", 2044, "10.20.0.2:80"},
		{"IPv6", 2044, "[2001:db8:20::2]:80"},
		{"link-local", 4092, "[fe80::2]:80"},
		{"IPv4 of 252", 252, "10.20.0.2:80"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t, config(1, c.mtu)), open(t, config(2, c.mtu))
			var full atomic.Int64
			check := func(p []byte, _ netip.Addr) bool {
				if isTCP(p) {
					checkTCP(t, p)
				}
				if len(p) > c.mtu*4/5 {
					full.Add(1)
				}
				return true
			}
			cable(t, a, b, c.mtu, check)
			cable(t, b, a, c.mtu, check)
			size := c.mtu << 8
			exchange(t, a, b, netip.MustParseAddrPort(c.at), size)
			if least := int64(size / c.mtu); full.Load() < least {
				t.Errorf("%d full packets, want %d: segments are too short", full.Load(), least)
			}
		})
	}
}

// Loss costs time, not data.
func TestTCPWithLoss(t *testing.T) {
	a, b := open(t, config(1, 2044)), open(t, config(2, 2044))
	n := 0
	cable(t, a, b, 2044, func([]byte, netip.Addr) bool { n++; return n%97 != 0 })
	cable(t, b, a, 2044, nil)
	exchange(t, a, b, netip.MustParseAddrPort("10.20.0.2:80"), 1<<18)
}

// A connection follows an MTU that shrinks.
func TestMTUShrinksUnderConnection(t *testing.T) {
	a, b := open(t, config(1, 4092)), open(t, config(2, 4092))
	var largest atomic.Int64
	cable(t, a, b, 4092, func(p []byte, _ netip.Addr) bool {
		if isTCP(p) {
			checkTCP(t, p)
		}
		largest.Store(max(largest.Load(), int64(len(p))))
		return true
	})
	cable(t, b, a, 4092, nil)
	l, err := b.ListenTCP(netip.MustParseAddrPort("10.20.0.2:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan []byte)
	go func() {
		defer close(got)
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		for range 2 {
			buf := make([]byte, 100000)
			if _, err := io.ReadFull(c, buf); err != nil {
				t.Error(err)
			}
			got <- buf
		}
	}()
	c, err := a.DialTCP(within(t), netip.MustParseAddrPort("10.20.0.2:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := pattern(100000)
	for i, mtu := range []int64{4092, 2044} {
		if i > 0 {
			if err := a.SetMTU(int(mtu)); err != nil {
				t.Fatal(err)
			}
			largest.Store(0)
		}
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
		if b := <-got; !bytes.Equal(b, data) {
			t.Error("data arrived changed")
		}
		if n := largest.Load(); n > mtu || n < mtu-100 {
			t.Errorf("MTU %d: packets of at most %d octets", mtu, n)
		}
	}
	if err := a.SetMTU(1); err == nil {
		t.Error("MTU 1 accepted")
	}
}

func TestUDP(t *testing.T) {
	a, b := pair(t, 2044)
	for _, at := range []string{"10.20.0.2:53", "[2001:db8:20::2]:53"} {
		to := netip.MustParseAddrPort(at)
		l, err := b.ListenUDP(to)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := a.DialUDP(to)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, 1<<16)
		for _, size := range []int{1, 2016, 9000, 60000} { // beyond the MTU: fragments
			data := pattern(size)
			if _, err := c.Write(data); err != nil {
				t.Fatal(err)
			}
			n, from, err := l.ReadFrom(buf)
			if err != nil || !bytes.Equal(buf[:n], data) {
				t.Fatalf("%d of %d octets: %v", n, size, err)
			}
			if _, err := l.WriteTo(data[:1], from); err != nil {
				t.Fatal(err)
			}
			if n, err = c.Read(buf); err != nil || n != 1 {
				t.Fatalf("answer of %d octets: %v", n, err)
			}
		}
	}
}

func TestPing(t *testing.T) {
	a, _ := pair(t, 2044)
	for _, to := range []string{"10.20.0.2", "2001:db8:20::2", "fe80::2", "10.20.0.1"} {
		for _, size := range []int{0, 56, 5000} {
			if rtt, err := a.Ping(within(t), addr(to), size); err != nil || rtt <= 0 {
				t.Errorf("%s with %d octets: %s, %v", to, size, rtt, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.Ping(ctx, addr("10.20.0.99"), 56); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody there: %v", err)
	}
	if _, err := a.Ping(within(t), addr("192.0.2.1"), 56); !errors.Is(err, syscall.EHOSTUNREACH) &&
		!errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("no route: %v", err)
	}
}

func TestErrorsHaveNumbers(t *testing.T) {
	a, _ := pair(t, 2044)
	if _, err := a.DialTCP(within(t), netip.MustParseAddrPort("10.20.0.2:9")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("closed port: %v", err)
	}
	if _, err := a.DialTCP(within(t), netip.MustParseAddrPort("192.0.2.1:9")); !errors.Is(err,
		syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("no route: %v", err)
	}
	l, err := a.ListenTCP(netip.MustParseAddrPort("10.20.0.1:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := a.ListenTCP(netip.MustParseAddrPort("10.20.0.1:80")); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("port in use: %v", err)
	}
	if _, err := a.ListenTCP(netip.MustParseAddrPort("10.20.0.77:80")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("not our address: %v", err)
	}
	if _, err := a.ListenUDP(netip.MustParseAddrPort("10.20.0.77:80")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("not our address: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.DialTCP(ctx, netip.MustParseAddrPort("10.20.0.2:80")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// The next hop is the gateway of the route, or the destination; groups that
// the stack is a member of are reported.
func TestNextHopsAndGroups(t *testing.T) {
	cfg := config(1, 2044)
	cfg.Routes = []Route{{prefix("0.0.0.0/0"), addr("10.20.0.254")}, {prefix("192.0.2.0/24"), addr("10.20.0.253")},
		{prefix("2001:db8:99::/48"), addr("fe80::fe")}}
	d := open(t, cfg)
	var l log
	cable(t, d, nil, 2044, l.see)
	for dst, hop := range map[string]string{"10.20.0.7": "10.20.0.7", "192.0.2.1": "10.20.0.253",
		"198.51.100.1": "10.20.0.254",
		"10.20.0.255":  "10.20.0.255", "239.1.2.3": "239.1.2.3", "2001:db8:20::7": "2001:db8:20::7", "2001:db8:99::1": "fe80::fe", "ff02::77": "ff02::77"} {
		c, err := d.ListenUDP(netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(dst), 9))); err != nil {
			t.Errorf("to %s: %v", dst, err)
			continue
		}
		a := addr(dst)
		l.find(t, "packet to "+dst+" by "+hop, func(p []byte, h netip.Addr) bool {
			if h != addr(hop) {
				return false
			}
			if a.Is4() {
				return p[0]>>4 == 4 && p[9] == 17 && netip.AddrFrom4([4]byte(p[16:20])) == a
			}
			return p[0]>>4 == 6 && p[6] == 17 && netip.AddrFrom16([16]byte(p[24:40])) == a
		})
	}
	if err := errors.Join(d.JoinGroup(addr("239.1.2.3")), d.JoinGroup(addr("ff02::77"))); err != nil {
		t.Fatal(err)
	}
	l.find(t, "IGMPv3 report", func(p []byte, h netip.Addr) bool {
		return p[0]>>4 == 4 && p[9] == 2 && h == addr("224.0.0.22") && bytes.Contains(p[20:], []byte{239, 1, 2, 3})
	})
	group := addr("ff02::77").As16()
	l.find(t, "MLDv2 report", func(p []byte, h netip.Addr) bool {
		return p[0]>>4 == 6 && p[6] == 0 && h == addr("ff02::16") && bytes.Contains(p[48:], group[:])
	})
	// What was reported is reported again when the carrier comes, for all before
	// may have been lost.
	if err := d.SetCarrier(false); err != nil {
		t.Error(err)
	}
	l.Lock()
	l.packets, l.hops = nil, nil
	l.Unlock()
	if err := d.SetCarrier(true); err != nil {
		t.Error(err)
	}
	l.find(t, "IGMPv3 report with the carrier", func(p []byte, h netip.Addr) bool {
		return p[0]>>4 == 4 && p[9] == 2 && bytes.Contains(p[20:], []byte{4, 0, 0, 0, 239, 1, 2, 3})
	})
	l.find(t, "MLDv2 report with the carrier", func(p []byte, h netip.Addr) bool {
		return p[0]>>4 == 6 && p[6] == 0 && bytes.Contains(p[48:], append([]byte{4, 0, 0, 0}, group[:]...))
	})
	if err := errors.Join(d.LeaveGroup(addr("239.1.2.3")), d.LeaveGroup(addr("ff02::77"))); err != nil {
		t.Error(err)
	}
	if d.LeaveGroup(addr("239.1.2.3")) == nil || d.JoinGroup(addr("10.20.0.1")) == nil {
		t.Error("left a group twice, or joined one that is none")
	}
}

func TestMulticastArrives(t *testing.T) {
	a, b := pair(t, 2044)
	for _, group := range []string{"239.1.2.3", "ff02::77"} {
		if err := b.JoinGroup(addr(group)); err != nil {
			t.Fatal(err)
		}
		l, err := b.ListenUDP(netip.AddrPortFrom(netip.Addr{}, 5000))
		if err != nil {
			t.Fatal(err)
		}
		c, err := a.ListenUDP(netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WriteTo([]byte(group), net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr(group),
			5000))); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		_ = l.SetReadDeadline(time.Now().Add(patience))
		if n, _, err := l.ReadFrom(buf); err != nil || string(buf[:n]) != group {
			t.Errorf("%q, %v", buf[:n], err)
		}
		c.Close()
		l.Close()
	}
}

func TestWithoutIPv6(t *testing.T) {
	a, b := pair(t, 1020)
	if got := a.addrs(); len(got) != 1 {
		t.Errorf("addresses %v", got)
	}
	exchange(t, a, b, netip.MustParseAddrPort("10.20.0.2:80"), 1<<16)
	if _, err := a.DialTCP(within(t), netip.MustParseAddrPort("[2001:db8:20::2]:80")); err == nil {
		t.Error("IPv6 works")
	}
}

// waiting is how many packets wait for ReadBatch.
func waiting(d *Device) int { d.ep.mu.Lock(); defer d.ep.mu.Unlock(); return d.ep.n }

// A sender waits while the reader does not read, and goes on when it does, or
// when the carrier goes.
func TestBackPressure(t *testing.T) {
	d := open(t, config(1, 2044))
	c, err := d.DialUDP(netip.MustParseAddrPort("10.20.0.2:9"))
	if err != nil {
		t.Fatal(err)
	}
	const total = 3 * maxOut
	var sent atomic.Int64
	done := make(chan error, 1)
	go func() {
		for range total {
			if _, err := c.Write(make([]byte, 100)); err != nil {
				done <- err
				return
			}
			sent.Add(1)
		}
		done <- nil
	}()
	condtest.Until(t, "a full queue", func() bool { return waiting(d) == maxOut })
	if n := sent.Load(); n > maxOut {
		t.Errorf("%d packets sent while %d fit", n, maxOut)
	}
	bufs, sizes, hops := buffers(headroom + 2044)
	got := 0
	for got < maxOut+BatchSize {
		n, err := d.ReadBatch(bufs, sizes, hops, headroom)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	condtest.Until(t, "a full queue again", func() bool { return waiting(d) == maxOut })
	if err := d.SetCarrier(false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := d.Counters.NoCarrier.Load(); n == 0 || int(n)+got < total {
		t.Errorf("%d packets lost without carrier, %d read, of %d", n, got, total)
	}
	c.Close()
}

func TestHostileInput(t *testing.T) {
	a, b := open(t, config(1, 2044)), open(t, config(2, 2044))
	// Each prefix of each packet, and each with octets changed, before the
	// packet itself.
	var turn int
	write := func(p []byte) {
		if err := b.WriteBatch([][]byte{p}, headroom); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
	cable(t, a, b, 2044, func(p []byte, _ netip.Addr) bool {
		turn++
		bad := append(make([]byte, headroom), p...)
		for _, n := range []int{0, 1, 19, 20, 21, 39, 40, 41, len(p) - 1} {
			if n < len(p) {
				write(bad[:headroom+n])
			}
		}
		for i := turn % 7; i < min(len(p), 60); i += 7 {
			bad[headroom+i] ^= 0xa5
			write(bad)
			bad[headroom+i] ^= 0xa5
		}
		return true
	})
	cable(t, b, a, 2044, nil)
	for _, at := range []string{"10.20.0.2:80", "[2001:db8:20::2]:80"} {
		exchange(t, a, b, netip.MustParseAddrPort(at), 1<<14)
	}
	if b.Counters.NotIP.Load() == 0 {
		t.Error("no packet counted that is not IP")
	}
}

// What the stack does not get to is dropped, not kept.
func TestInputIsBounded(t *testing.T) {
	d := open(t, config(1, 2044))
	// The stack waits for the reader, which does not come: it answers each. Packets of the stack itself may fill the
	// queue before the last Write, which then waits.
	c, err := d.DialUDP(netip.MustParseAddrPort("10.20.0.2:9"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	written := make(chan error, 1)
	go func() {
		for range maxOut {
			if _, err := c.Write([]byte("x")); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	condtest.Until(t, "a full queue", func() bool { return waiting(d) == maxOut })
	echo := make([]byte, headroom+28)
	p := echo[headroom:]
	copy(p, []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 20, 0, 9, 10, 20, 0, 1, 8, 0, 0, 0, 0, 0, 0, 1})
	binary.BigEndian.PutUint16(p[10:], ^sum(p[:20]))
	binary.BigEndian.PutUint16(p[22:], ^sum(p[20:]))
	batch := slices.Repeat([][]byte{echo}, BatchSize)
	for range 3 * maxIn / BatchSize {
		if err := d.WriteBatch(batch, headroom); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.Counters.InFull.Load(); n < maxIn/2 {
		t.Errorf("%d packets dropped", n)
	}
	// The stack was not hurt: with a reader it answers.
	other := open(t, config(2, 2044))
	cable(t, d, other, 2044, nil)
	cable(t, other, d, 2044, nil)
	if err := <-written; err != nil {
		t.Error(err)
	}
	var rtt time.Duration
	condtest.Until(t, "an answer", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		rtt, err = other.Ping(ctx, addr("10.20.0.1"), 8)
		return err == nil && rtt > 0
	})
}

func TestNotify(t *testing.T) {
	events := make(chan ipoib.BackendEvent, 8)
	cfg := config(1, 2044)
	cfg.Notify = func(e ipoib.BackendEvent) { events <- e }
	d := open(t, cfg)
	e := <-events
	if !e.Up || e.MTU != 2044 || !slices.Equal(e.Addrs, []netip.Prefix{prefix("fe80::1/64"), prefix("10.20.0.1/24"),
		prefix("2001:db8:20::1/64")}) ||
		!slices.Equal(e.OnLink, []netip.Prefix{prefix("fe80::/64"), prefix("10.20.0.0/24"),
			prefix("2001:db8:20::/64")}) {
		t.Errorf("%+v", e)
	}
	if err := d.SetMTU(1500); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.MTU != 1500 {
		t.Errorf("%+v", e)
	}
}

func TestConfigIsValidated(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"MTU 67":      func(c *Config) { c.MTU = 67 },
		"link-local":  func(c *Config) { c.LinkLocal = addr("2001:db8::1") },
		"224.0.0.1/4": func(c *Config) { c.Addrs = []netip.Prefix{prefix("224.0.0.1/4")} },
		"host bits":   func(c *Config) { c.Routes = []Route{{prefix("10.1.0.1/16"), addr("10.20.0.2")}} },
		"family":      func(c *Config) { c.Routes = []Route{{prefix("10.1.0.0/16"), addr("fe80::1")}} },
	} {
		cfg := config(1, 2044)
		change(&cfg)
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	cfg := config(1, 2044)
	cfg.Addrs = append(cfg.Addrs, cfg.Addrs[0])
	if _, err := Open(cfg); err == nil {
		t.Error("an address twice was accepted")
	}
}

// Close ends whatever is going on, from wherever (S-14).
func TestCloseUnderLoad(t *testing.T) {
	a, b := pair(t, 2044)
	l, err := b.ListenTCP(netip.AddrPortFrom(netip.Addr{}, 80))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var moved, connected atomic.Int64
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				buf := make([]byte, 1<<16)
				for {
					n, err := c.Read(buf)
					moved.Add(int64(n))
					if err != nil {
						c.Close()
						return
					}
				}
			})
		}
	})
	for range 4 {
		wg.Go(func() {
			c, err := a.DialTCP(within(t), netip.MustParseAddrPort("10.20.0.2:80"))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			connected.Add(1)
			for {
				if _, err := c.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		})
	}
	condtest.Until(t, "load", func() bool { return moved.Load() > 1<<20 && connected.Load() == 4 })
	wg.Go(func() { b.Close() })
	a.Close()
	l.Close()
	wg.Wait()
	if err := a.WriteBatch([][]byte{make([]byte, 100)}, headroom); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write: %v", err)
	}
	if _, err := a.Forward(Forward{Network: "tcp", Listen: netip.MustParseAddrPort("127.0.0.1:0"),
		To: netip.MustParseAddrPort("10.20.0.2:80")}); !errors.Is(err, os.ErrClosed) && !errors.Is(err,
		context.Canceled) {
		t.Errorf("forward: %v", err)
	}
}

// An ICMP error for a neighbour that does not exist ends the attempt at once, as the resolver below
// reports it.
func TestUnreachableNeighbor(t *testing.T) {
	d := open(t, config(1, 2044))
	be := binary.BigEndian
	cable(t, d, nil, 2044, func(p []byte, _ netip.Addr) bool {
		if !isTCP(p) {
			return true
		}
		var e []byte
		if p[0]>>4 == 4 { // RFC 792: host unreachable, with the header and 8 octets
			e = make([]byte, headroom+20+8+28)
			q := e[headroom:]
			copy(q, []byte{0x45, 0, 0, 56, 0, 0, 0, 0, 64, 1})
			copy(q[12:], p[16:20]) // from the neighbor: with our own address it would be dropped
			copy(q[16:], p[12:16])
			be.PutUint16(q[10:], ^sum(q[:20]))
			q[20], q[21] = 3, 1
			copy(q[28:], p[:28])
			be.PutUint16(q[22:], ^sum(q[20:]))
		} else { // RFC 4443: address unreachable
			e = make([]byte, headroom+40+8+len(p))
			q := e[headroom:]
			copy(q, p[:40])
			be.PutUint16(q[4:], uint16(8+len(p)))
			q[6] = 58
			copy(q[8:24], p[24:40])
			copy(q[24:40], p[8:24])
			q[40], q[41] = 1, 3
			copy(q[48:], p)
			be.PutUint16(q[42:], ^sum(q[8:40], be.AppendUint32(nil, uint32(8+len(p))), []byte{0, 0, 0, 58}, q[40:]))
		}
		if err := d.WriteBatch([][]byte{e}, headroom); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
		return true
	})
	for _, to := range []string{"10.20.0.99:80", "[2001:db8:20::99]:80"} {
		if _, err := d.DialTCP(within(t), netip.MustParseAddrPort(to)); !errors.Is(err, syscall.EHOSTUNREACH) &&
			!errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("%s: %v", to, err)
		}
	}
}

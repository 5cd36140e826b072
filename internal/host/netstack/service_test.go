// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/proto/condtest"
)

// echo answers connections to l with what they send.
func echo(t *testing.T, l net.Listener) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
				_ = c.(interface{ CloseWrite() error }).CloseWrite()
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

// echoUDP answers datagrams.
func echoUDP(t *testing.T, l net.PacketConn) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<16)
		for {
			n, from, err := l.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = l.WriteTo(buf[:n], from)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func hostListener(t *testing.T) net.Listener {
	t.Helper()
	return must(net.Listen("tcp", "127.0.0.1:0"))(t)
}

func portOf(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort()
	case *net.UDPAddr:
		return a.AddrPort()
	}
	return netip.AddrPort{}
}

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// roundTrip sends data by c, ends it, and expects it back with an end.
func roundTrip(t *testing.T, c net.Conn, size int) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	data := pattern(size)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d octets of %d came back: %v", len(got), size, err)
	}
}

func settled(t *testing.T, s *Service) {
	t.Helper()
	condtest.Until(t, "end of connections of "+s.Name(), func() bool { return s.Counters.Active.Load() == 0 })
}

func TestForwardTCP(t *testing.T) {
	a, b := pair(t, 2044)
	// A service on the host of b, its port on the fabric, and a port on the host
	// of a that leads there.
	l := hostListener(t)
	echo(t, l)
	at := netip.MustParseAddrPort("10.20.0.2:7")
	inward := must(b.Forward(Forward{Network: "tcp", Listen: at, To: portOf(l.Addr()), Inward: true}))(t)
	out := must(a.Forward(Forward{Network: "tcp", Listen: loopback, To: at}))(t)
	for range 3 {
		c := must(net.Dial("tcp", out.Addr().String()))(t)
		roundTrip(t, c, 300000)
		c.Close()
	}
	settled(t, out)
	settled(t, inward)
	for _, s := range []*Service{out, inward} {
		if n := &s.Counters; n.Accepted.Load() != 3 || n.Out.Load() != 900000 || n.In.Load() != 900000 ||
			n.Failed.Load() != 0 {
			t.Errorf("%s: %d accepted, %d out, %d in, %d failed", s.Name(), n.Accepted.Load(), n.Out.Load(),
				n.In.Load(), n.Failed.Load())
		}
	}
	// No listener behind it: the connection ends, and that is counted.
	l.Close()
	c := must(net.Dial("tcp", out.Addr().String()))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if got, _ := io.ReadAll(c); len(got) != 0 {
		t.Errorf("%q came from nobody", got)
	}
	condtest.Until(t, "failure", func() bool { return inward.Counters.Failed.Load() == 1 })
}

func TestForwardUDP(t *testing.T) {
	a, b := pair(t, 2044)
	l := must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	echoUDP(t, l)
	at := netip.MustParseAddrPort("[2001:db8:20::2]:7")
	must(b.Forward(Forward{Network: "udp", Listen: at, To: portOf(l.LocalAddr()), Inward: true}))(t)
	out := must(a.Forward(Forward{Network: "udp", Listen: loopback, To: at, Limits: Limits{Conns: 2}}))(t)
	buf := make([]byte, 1<<16)
	var conns []net.Conn
	for i := range 2 { // each sender gets its own answers
		c := must(net.Dial("udp", out.Addr().String()))(t)
		defer c.Close()
		conns = append(conns, c)
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprintf(c, "from %d", i); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range conns {
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != fmt.Sprintf("from %d", i) {
			t.Errorf("%q, %v", buf[:n], err)
		}
	}
	if _, err := conns[0].Write(pattern(20000)); err != nil {
		t.Fatal(err)
	}
	if n, err := conns[0].Read(buf); err != nil || !bytes.Equal(buf[:n], pattern(20000)) {
		t.Errorf("%d octets, %v", n, err)
	}
	// A third finds no place.
	c := must(net.Dial("udp", out.Addr().String()))(t)
	defer c.Close()
	if _, err := c.Write([]byte("third")); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "refusal", func() bool { return out.Counters.Refused.Load() == 1 })
	if n := out.Counters.Active.Load(); n != 2 {
		t.Errorf("%d senders", n)
	}
}

func TestLimitOfConnections(t *testing.T) {
	a, b := pair(t, 2044)
	echo(t, must(b.ListenTCP(netip.MustParseAddrPort("10.20.0.2:7")))(t))
	s := must(a.Forward(Forward{Network: "tcp", Listen: loopback, To: netip.MustParseAddrPort("10.20.0.2:7"),
		Limits: Limits{Conns: 1}}))(t)
	first := must(net.Dial("tcp", s.Addr().String()))(t)
	defer first.Close()
	condtest.Until(t, "first connection", func() bool { return s.Counters.Active.Load() == 1 })
	second := must(net.Dial("tcp", s.Addr().String()))(t)
	defer second.Close()
	_ = second.SetDeadline(time.Now().Add(patience))
	if got, _ := io.ReadAll(second); len(got) != 0 || s.Counters.Refused.Load() != 1 {
		t.Errorf("%q, %d refused", got, s.Counters.Refused.Load())
	}
	roundTrip(t, first, 1000)
	first.Close()
	settled(t, s)
	third := must(net.Dial("tcp", s.Addr().String()))(t)
	defer third.Close()
	roundTrip(t, third, 1000)
}

func TestIdleConnectionsEnd(t *testing.T) {
	a, b := pair(t, 2044)
	to := netip.MustParseAddrPort("10.20.0.2:7")
	echo(t, must(b.ListenTCP(to))(t))
	echoUDP(t, must(b.ListenUDP(to))(t))
	for _, network := range []string{"tcp", "udp"} {
		s := must(a.Forward(Forward{Network: network, Listen: loopback, To: to,
			Limits: Limits{Idle: 50 * time.Millisecond}}))(t)
		c := must(net.Dial(network, s.Addr().String()))(t)
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		condtest.Until(t, "end of idle "+network, func() bool {
			return s.Counters.Idle.Load() == 1 &&
				s.Counters.Active.Load() == 0
		})
	}
}

// Services end with their device, and by themselves, whatever they carry.
// ownLoopback returns an address of this host that no other program uses, with port 0.
func ownLoopback() netip.AddrPort {
	pid := os.Getpid()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 83, byte(pid >> 8), byte(pid) | 1}), 0)
}

// listens reports whether a TCP socket of this host listens on exactly this IPv4 address and port. A connection
// would not tell: a port that was given up may be another listener's, on all addresses, at once.
func listens(t *testing.T, addr net.Addr) bool {
	t.Helper()
	at := addr.(*net.TCPAddr).AddrPort()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	a := at.Addr().As4()
	want := fmt.Sprintf(" %02X%02X%02X%02X:%04X 00000000:0000 0A ", a[3], a[2], a[1], a[0], at.Port())
	return strings.Contains(string(table), want)
}

func TestServicesEnd(t *testing.T) {
	a, b := pair(t, 2044)
	own := ownLoopback()
	at := netip.MustParseAddrPort("10.20.0.2:7")
	echo(t, must(b.ListenTCP(at))(t))
	var services []*Service
	for range 2 {
		s := must(a.Forward(Forward{Network: "tcp", Listen: own, To: at}))(t)
		services = append(services, s)
		c := must(net.Dial("tcp", s.Addr().String()))(t)
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	services = append(services, must(a.SOCKS(SOCKS{Listen: own}))(t))
	must(net.Dial("tcp", services[2].Addr().String()))(t).Close()
	for i, s := range services {
		if !listens(t, s.Addr()) {
			t.Errorf("service %d does not listen on %v", i, s.Addr())
		}
	}
	services[0].Close()
	services[0].Close()
	if services[0].Counters.Active.Load() != 0 {
		t.Error("a connection outlives its service")
	}
	if listens(t, services[0].Addr()) {
		t.Error("a service that ended listens")
	}
	a.Close()
	for _, s := range services[1:] {
		if s.Counters.Active.Load() != 0 {
			t.Error("a connection outlives its device")
		}
		if listens(t, s.Addr()) {
			t.Error("a service outlives its device")
		}
	}
}

func TestForwardIsValidated(t *testing.T) {
	d := open(t, config(1, 2044))
	to := netip.MustParseAddrPort("10.20.0.2:7")
	taken := hostListener(t)
	defer taken.Close()
	for what, f := range map[string]Forward{
		"network":        {Network: "sctp", Listen: loopback, To: to},
		"listen at":      {Network: "tcp", To: to},
		"connected to":   {Network: "tcp", Listen: loopback, To: netip.MustParseAddrPort("10.20.0.2:0")},
		"negative":       {Network: "tcp", Listen: loopback, To: to, Limits: Limits{Conns: -1}},
		"address alread": {Network: "tcp", Listen: portOf(taken.Addr()), To: to},
		"listen at 10.":  {Network: "udp", Listen: netip.MustParseAddrPort("10.20.0.77:9"), To: to, Inward: true},
	} {
		if _, err := d.Forward(f); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := d.SOCKS(SOCKS{}); err == nil {
		t.Error("a proxy that listens nowhere")
	}
	if _, err := d.SOCKS(SOCKS{Listen: loopback, Limits: Limits{Idle: -1}}); err == nil {
		t.Error("a proxy with negative limits")
	}
	if _, err := d.SOCKS(SOCKS{Listen: portOf(taken.Addr())}); err == nil {
		t.Error("a proxy at a port that is in use")
	}
}

// A dial without a reply ends by its limit.
func TestDialLimit(t *testing.T) {
	d := open(t, config(1, 2044))
	cable(t, d, nil, 2044, nil)
	s := must(d.Forward(Forward{Network: "tcp", Listen: loopback, To: netip.MustParseAddrPort("10.20.0.9:7"),
		Limits: Limits{Dial: 20 * time.Millisecond}}))(t)
	c := must(net.Dial("tcp", s.Addr().String()))(t)
	defer c.Close()
	condtest.Until(t, "failure", func() bool { return s.Counters.Failed.Load() == 1 && s.Counters.Active.Load() == 0 })
}

// failing is a listener that fails for a moment.
type failing struct {
	net.Listener
	left atomic.Int32
}

type momentary struct{ error }

func (momentary) Temporary() bool { return true }

func (f *failing) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, momentary{errors.New("too many open files")}
	}
	return f.Listener.Accept()
}

func TestAcceptGoesOn(t *testing.T) {
	d := open(t, config(1, 2044))
	l := &failing{Listener: hostListener(t)}
	l.left.Store(2)
	served := make(chan struct{})
	s := must(d.start("test", Limits{}.orDefaults(idleTCP), l.Addr(), l, func(s *Service) {
		s.accept(l, func(net.Conn) { close(served) })
	}))(t)
	c := must(net.Dial("tcp", s.Addr().String()))(t)
	defer c.Close()
	select {
	case <-served:
	case <-time.After(patience):
		t.Fatal("not accepted")
	}
	if err := context.Cause(s.ctx); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestFrontCloses ends a listener while connections arrive: close returns when nothing is left of serve.
func TestFrontCloses(t *testing.T) {
	for range 50 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f := newFront(l, nil, nil, &ListenerCounters{})
		var work sync.WaitGroup
		work.Go(func() { f.serve() })
		for range 8 {
			work.Go(func() {
				for {
					c, err := net.Dial("tcp", l.Addr().String())
					if err != nil {
						return // it is closed
					}
					c.Close()
				}
			})
		}
		f.close()
		if n := len(f.slots); n != 0 {
			t.Fatalf("%d handshakes go on", n)
		}
		work.Wait()
	}
}

// TestFrontClosesSilent: the end of a listener does not wait for a connection that is silent.
func TestFrontClosesSilent(t *testing.T) {
	n, from, _, end := serveFront(t, nil)
	from("127.0.0.2")
	for n.Connections.Load() == 0 {
		runtime.Gosched()
	}
	ended := make(chan struct{})
	go func() {
		end()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(handshakeTimeout / 2):
		t.Error("the end waits for the silent connection")
		<-ended
	}
}

// serveFront serves a front until end is called. from connects to it from an address and is silent, serves reports
// whether a client there is served soon.
func serveFront(t *testing.T, member func(netip.Addr) bool) (
	n *ListenerCounters, from func(ip string) net.Conn, serves func(ip string) bool, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n = &ListenerCounters{}
	f := newFront(l, nil, member, n)
	var work sync.WaitGroup
	work.Go(func() { f.serve() })
	from = func(ip string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	serves = func(ip string) bool {
		t.Helper()
		served := make(chan struct{})
		work.Go(func() {
			if c, err := f.rpc.Accept(); err == nil {
				c.Close()
			}
			close(served)
		})
		if _, err := from(ip).Write([]byte(preface)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-served:
			return true
		case <-time.After(handshakeTimeout / 2):
			return false
		}
	}
	return n, from, serves, func() {
		f.close()
		work.Wait()
	}
}

// TestFrontSource: one source that opens connections and is silent is bounded, and others are served meanwhile.
func TestFrontSource(t *testing.T) {
	n, from, serves, end := serveFront(t, nil)
	defer end()
	const flood = maxHandshakes + 10
	for range flood {
		from("127.0.0.2")
	}
	if !serves("127.0.0.3") {
		t.Error("another source waits for the silent one")
	}
	if c, r := n.Connections.Load(), n.RefusedConns.Load(); c != flood+1 || r != flood-maxSource {
		t.Errorf("%d connections, %d of them refused, want %d and %d", c, r, flood+1, flood-maxSource)
	}
}

// TestFrontStrangers: many sources that are no member's address and are silent keep no member waiting.
func TestFrontStrangers(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.99")
	n, from, serves, end := serveFront(t, func(a netip.Addr) bool { return a == own })
	defer end()
	for i := range 8 {
		for range maxSource {
			from(fmt.Sprintf("127.0.0.%d", 10+i))
		}
	}
	if !serves(own.String()) {
		t.Error("a member waits for silent strangers")
	}
	if r := n.RefusedConns.Load(); r != 8*maxSource-maxStrangers {
		t.Errorf("%d connections refused, want %d", r, 8*maxSource-maxStrangers)
	}
}

func TestSourceOf(t *testing.T) {
	for a, want := range map[string]string{"10.0.0.1:7": "10.0.0.1/32", "[fd00::1:2:3:4]:7": "fd00::/64",
		"[::ffff:10.0.0.1]:7": "10.0.0.1/32", "[fe80::1%eth0]:7": "fe80::/64"} {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a))
		if got := sourceOf(addr).String(); got != want {
			t.Errorf("%s is of %s, want %s", a, got, want)
		}
	}
}

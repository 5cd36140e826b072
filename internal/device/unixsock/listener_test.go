// SPDX-License-Identifier: Apache-2.0

package unixsock

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

// listen makes a socket in a directory of the test.
func listen(t *testing.T, g *Guard, network string, o Options) (*Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "weft")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "x.sock")
	l, err := g.Listen(network, path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, path
}

// dial connects to a socket; the connection ends with the test.
func dial(t *testing.T, network, path string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// closed reports whether the other end of a connection closed it, within a time.
func closed(c *net.UnixConn, within time.Duration) bool {
	c.SetReadDeadline(time.Now().Add(within))
	n, err := c.Read(make([]byte, 1))
	return n == 0 && !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestListen(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		l, path := listen(t, nil, network, Options{Mode: 0o640})
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("%v %v", st, err)
		}
		c := dial(t, network, path)
		s, err := l.AcceptConn()
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []syscall.Conn{s, c} {
			if p, err := PeerOf(end); err != nil || p != (Peer{os.Getpid(), os.Geteuid()}) || p != s.Peer() {
				t.Errorf("%+v %v", p, err)
			}
		}
		s.Close()
		s.Close()
		l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the socket outlived its listener: %v", err)
		}
	}
}

// TestBounds: root and the node's own user have all connections but those of others, one other user has half of them at
// most, and the others have three quarters together.
func TestBounds(t *testing.T) {
	type refused struct {
		uid int
		why Refusal
	}
	g := NewGuard(Config{Connections: 16, Own: func(uid int) bool { return uid == 0 }})
	enter := func(uid, times int) (n int, r refused) {
		for range times {
			why, ok := g.enter(uid)
			if !ok {
				return n, refused{uid, why}
			}
			n++
		}
		return n, refused{}
	}
	for _, x := range []struct {
		uid, times, want int
		why              Refusal
	}{{1000, 20, 8, TooManyOfUser}, {1001, 20, 4, TooMany}, {0, 20, 4, TooMany}} {
		if n, r := enter(x.uid, x.times); n != x.want || r != (refused{x.uid, x.why}) {
			t.Errorf("uid %d: %d, %+v", x.uid, n, r)
		}
	}
	for range 8 {
		g.leave(1000)
	}
	if n, _ := enter(0, 20); n != 8 {
		t.Errorf("root got %d of 8 that are free", n)
	}
	for range 12 {
		g.leave(0)
	}
	for range 4 {
		g.leave(1001)
	}
	if g.total != 0 || g.others != 0 || len(g.users) != 0 {
		t.Errorf("%d, %d, %v", g.total, g.others, g.users)
	}
}

// TestNotServed: a connection of a user that the node does not serve is closed at once. A connection to a socket that
// explains the refusal is closed after a moment, and few of them are open. Neither takes anything from users that the node serves.
func TestNotServed(t *testing.T) {
	var refused []Refusal
	g := NewGuard(Config{Served: func(int) bool { return false }, Connections: 4,
		OnRefuse: func(_ string, _ Peer, why Refusal) { refused = append(refused, why) }})
	l, path := listen(t, g, "unix", Options{Mode: 0o600})
	var conns []*net.UnixConn
	for range 3 {
		conns = append(conns, dial(t, "unix", path))
	}
	serve := func(l *Listener) (accepted chan *Conn) {
		accepted = make(chan *Conn, 100)
		go func() {
			defer close(accepted)
			for {
				c, err := l.AcceptConn()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		return accepted
	}
	accepted := serve(l)
	for _, c := range conns {
		if !closed(c, condtest.Patience) {
			t.Error("a connection is open")
		}
	}
	l.Close()
	if _, ok := <-accepted; ok || !slices.Equal(refused, []Refusal{NotServed, NotServed, NotServed}) ||
		g.Counters().RefusedUID.Load() != 3 {
		t.Errorf("%v %v", ok, refused)
	}

	l, path = listen(t, g, "unix", Options{Mode: 0o600, Explain: true})
	accepted = serve(l)
	conns = nil
	for range maxStrangersOfUser + 3 {
		conns = append(conns, dial(t, "unix", path))
	}
	for range maxStrangersOfUser {
		if c := <-accepted; c.Peer().UID != os.Geteuid() {
			t.Error(c.Peer())
		}
	}
	for _, c := range conns {
		if !closed(c, condtest.Patience) { // the first ones after strangerTime
			t.Error("a connection is open")
		}
	}
	condtest.Until(t, "strangers have nothing", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.listed == 0 && len(g.strangers) == 0 && g.total == 0
	})
	l.Close()
	if c, ok := <-accepted; ok {
		t.Error(c)
	}

	// A socket with a rule of its own.
	l, path = listen(t, g, "unix", Options{Mode: 0o600, Served: func(uid int) bool { return uid == os.Geteuid() }})
	dial(t, "unix", path)
	if c, err := l.AcceptConn(); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// TestAcceptErrors: an accept that fails is tried again, is counted, and is shown until one succeeds or the socket is
// closed.
func TestAcceptErrors(t *testing.T) {
	g := NewGuard(Config{})
	l, path := listen(t, g, "unix", Options{Mode: 0o600})
	shown := make(chan []Failure, 100)
	errs := []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ECONNABORTED, unix.EPERM}
	want := slices.Clone(errs)
	real := l.accept
	l.accept = func() (*net.UnixConn, error) {
		if len(errs) == 0 {
			shown <- g.Failures()
			return real()
		}
		err := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", errs[0])}
		errs = errs[1:]
		return nil, err
	}
	dial(t, "unix", path)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if f := <-shown; len(f) != 1 || f[0].Socket != "x.sock" || f[0].Err != want[len(want)-1] || f[0].Since.IsZero() {
		t.Errorf("%+v", f)
	}
	if f := g.Failures(); len(f) != 0 || g.Counters().AcceptErrors.Load() != uint64(len(want)) {
		t.Errorf("%+v, %d counted", f, g.Counters().AcceptErrors.Load())
	}

	// A socket that is closed meanwhile does not wait, and is not shown.
	failing := make(chan struct{}, 100)
	l.accept = func() (*net.UnixConn, error) {
		select {
		case <-l.closed:
			return nil, net.ErrClosed
		default:
		}
		select {
		case failing <- struct{}{}:
		default:
		}
		return nil, unix.EMFILE
	}
	over := make(chan error)
	go func() {
		_, err := l.AcceptConn()
		over <- err
	}()
	<-failing
	<-failing
	if len(g.Failures()) != 1 {
		t.Error("the socket is not shown")
	}
	l.Close()
	if err := <-over; !errors.Is(err, net.ErrClosed) || len(g.Failures()) != 0 {
		t.Errorf("%v, %+v", err, g.Failures())
	}
}

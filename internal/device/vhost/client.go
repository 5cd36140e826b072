// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"errors"
	"net"
	"time"

	"weft/internal/device/unixsock"
)

// Delays before a client connects again. A starting machine finds its device quickly; a front-end that
// ends every session at once costs one attempt in slowest.
const (
	redial  = 100 * time.Millisecond
	slowest = time.Second
	// lived is how long a session lasts that was none of those.
	lived = time.Second
)

// errNoTry is what Waiting returns before the first try.
var errNoTry = errors.New("not tried yet")

// Dial makes a Server that is the client of the socket at path, where front-ends are
// the server: QEMU's "-chardev socket,server=on". It has one session at a time, and connects
// again, until Close, whenever that one ends: when the machine starts again, it finds its device.
func Dial(path string, c Config) *Server {
	aio() // as in Listen
	ctx, cancel := context.WithCancel(context.Background())
	s := newServer(c)
	s.cancel = cancel
	e := errNoTry
	s.waiting.Store(&e)
	s.wg.Go(func() { s.dial(ctx, path) })
	return s
}

// dial connects and serves, until ctx ends.
func (s *Server) dial(ctx context.Context, path string) {
	pause := redial
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", path)
		if err != nil {
			s.waiting.Store(&err)
			timer.Reset(redial)
			continue
		}
		start := time.Now()
		if v := s.adopt(conn.(*net.UnixConn)); v != nil {
			s.waiting.Store(nil)
			s.serve(v)
		}
		err = errors.New("the session ended")
		s.waiting.Store(&err)
		if time.Since(start) >= lived {
			pause = redial
		} else {
			pause = min(2*pause, slowest)
		}
		timer.Reset(pause)
	}
}

// adopt makes a session of a connection that is to be served at once; nil where there may be
// none.
func (s *Server) adopt(u *net.UnixConn) *Session {
	conn, err := unixsock.NewConn(u)
	v := s.session(conn)
	if err != nil || v.identify() != nil {
		conn.Close()
		return nil
	}
	if over := s.ledger.open(v.peer.Uid); over != nil {
		conn.Close()
		var q Quota
		errors.As(over, &q)
		v.refuse(q)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		s.ledger.sessions.give(v.peer.Uid, 1)
		return nil
	}
	s.sessions[v] = struct{}{}
	return v
}

// Waiting returns why a Server made by Dial has no session; nil while it has one.
func (s *Server) Waiting() error {
	if e := s.waiting.Load(); e != nil {
		return *e
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/unixsock"
	"weft/internal/proto/abi"
)

// Config configures a Server. New makes the device of a session; it must keep no reference to the
// session if it fails. OnEnd, if set, is called at the end of every session, after the device was
// closed, on the session's goroutine.
type Config struct {
	New     func(s *Session) (Device, error)
	OnEnd   func(s *Session, reason error)
	NodeUID uint32 // part of the reply to WEFT_HELLO
	SpinUs  uint32
	Limits  Limits
	// Share, if set, is a server: its accounts and Limits also apply to this one.
	Share *Server
	// Guard has the bounds of connections to the socket of Listen; nil: none. Served, if set, reports whether the
	// socket is for a user; else the Guard does.
	Guard  *unixsock.Guard
	Served func(uid int) bool
	// OnRefuse, if set, is called when a front-end exceeds a Quota, on its goroutine.
	OnRefuse func(s *Session, q Quota)
}

// Server accepts front-ends on one socket (Listen), or connects to one (Dial).
type Server struct {
	config Config
	ln     *unixsock.Listener // nil: a client, ended by cancel
	cancel context.CancelFunc
	// waiting is why a client has no session.
	waiting atomic.Pointer[error]
	wg      sync.WaitGroup
	ends    [numReasons]atomic.Uint64
	ledger  *ledger

	mu        sync.Mutex
	sessions  map[*Session]struct{}
	declining int // front-ends that are about to receive a refusal
	closed    bool
}

// Listen makes the socket, replacing a file that a dead node left, and serves
// it until Close. Permissions of the socket are mode.
func Listen(path string, mode os.FileMode, c Config) (*Server, error) {
	ln, err := c.Guard.Listen("unix", path, unixsock.Options{Mode: mode, Served: c.Served})
	if err != nil {
		return nil, err
	}
	aio() // now: the descriptor it takes is the process's, not a session's
	s := newServer(c)
	s.ln = ln
	s.wg.Go(s.accept)
	return s, nil
}

func newServer(c Config) *Server {
	s := &Server{config: c, sessions: map[*Session]struct{}{}, ledger: &ledger{limits: c.Limits}}
	if c.Share != nil {
		s.ledger = c.Share.ledger
	}
	return s
}

func (s *Server) accept() {
	for {
		conn, err := s.ln.AcceptConn()
		if err != nil {
			return // closed
		}
		s.start(conn)
	}
}

// session makes a session of a connection.
func (s *Server) session(conn *unixsock.Conn) *Session {
	v := &Session{conn: conn, server: s, rings: map[int]*ring{}}
	v.table = newMemTable(func(unmap func()) {
		if v.dev.Lifetime == nil {
			unmap()
			return
		}
		v.dev.Lifetime.Retire(unmap)
	})
	return v
}

func (s *Server) start(conn *unixsock.Conn) {
	v := s.session(conn)
	if err := v.identify(); err != nil {
		conn.Close() // already closed by the peer
		return
	}
	over := s.ledger.open(v.peer.Uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || over != nil && s.declining == maxDeclining:
		conn.Close()
	case over != nil:
		s.declining++
		s.sessions[v] = struct{}{}
		s.wg.Go(func() { s.decline(v, over) })
		return
	default:
		s.sessions[v] = struct{}{}
		s.wg.Go(func() { s.serve(v) })
		return
	}
	var q Quota
	if errors.As(over, &q) {
		s.ledger.refused[q].Add(1)
	} else {
		s.ledger.sessions.give(v.peer.Uid, 1)
	}
}

// A refused front-end gets the refusal in the reply to its first message. The wait for that message is
// short, and the number of such waits is bounded.
const (
	maxDeclining = 16
	declineTime  = time.Second
)

// decline replies to a program that there is no room for its session. Other front-ends have no reply
// with this meaning.
func (s *Server) decline(v *Session, over error) {
	v.conn.SetDeadline(time.Now().Add(declineTime))
	r := &reader{conn: v.conn, s: v}
	if m, err := r.next(); err == nil {
		m.close()
		if m.Request == abi.ReqHello {
			v.replyU64(m, errno(over))
		}
	}
	v.conn.Close()
	s.mu.Lock()
	delete(s.sessions, v)
	s.declining--
	s.mu.Unlock()
	var q Quota
	errors.As(over, &q)
	v.refuse(q)
}

// serve runs one session from its first byte to its last descriptor.
func (s *Server) serve(v *Session) {
	reason := v.open()
	if reason == nil {
		reason = v.run()
	}
	v.close(reason)
	s.ledger.sessions.give(v.peer.Uid, 1)
	r := Gone
	errors.As(reason, &r)
	s.ends[r].Add(1)
	s.mu.Lock()
	delete(s.sessions, v)
	s.mu.Unlock()
	if s.config.OnEnd != nil {
		s.config.OnEnd(v, reason)
	}
}

// identify reads the credentials of the peer.
func (v *Session) identify() error {
	raw, err := v.conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
			unix.SO_PEERCRED)
	}); err != nil {
		cerr = err
	}
	if cerr == nil {
		v.peer = *cred
	}
	return cerr
}

// open makes the device.
func (v *Session) open() error {
	dev, err := v.server.config.New(v)
	if err != nil {
		return &end{Reason: NoDevice, cause: err}
	}
	v.dev = dev
	return nil
}

// Sessions returns how many sessions there are.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions) - s.declining
}

// Refusals returns how often front-ends met each quota, by its name.
func (s *Server) Refusals() map[string]uint64 {
	m := make(map[string]uint64, numQuotas)
	for q := range numQuotas {
		m[q.Name()] = s.ledger.refused[q].Load()
	}
	return m
}

// Ends returns how many sessions ended for each reason, by the reason's name.
func (s *Server) Ends() map[string]uint64 {
	m := make(map[string]uint64, numReasons)
	for r := range numReasons {
		m[r.Name()] = s.ends[r].Load()
	}
	return m
}

// Close refuses new front-ends, ends all sessions and waits for them.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for v := range s.sessions {
		v.Fail(Shutdown, nil)
	}
	s.mu.Unlock()
	var err error
	if s.ln != nil {
		err = s.ln.Close()
	} else {
		s.cancel()
	}
	s.wg.Wait()
	return err
}

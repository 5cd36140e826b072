// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what a Server needs. New makes the device of a session; it must
// keep no reference to it where it fails. OnEnd, if set, hears of the end of
// every session, after the device was closed, on the session's goroutine.
type Config struct {
	New         func(s *Session) (Device, error)
	OnEnd       func(s *Session, reason error)
	NodeUID     uint32 // told to programs in the answer to WEFT_HELLO
	SpinUs      uint32
	MaxSessions int // zero means 1024
}

// Server accepts front-ends on one socket.
type Server struct {
	config Config
	ln     *net.UnixListener
	wg     sync.WaitGroup
	ends   [numReasons]atomic.Uint64
	full   atomic.Uint64

	mu       sync.Mutex
	sessions map[*Session]struct{}
	closed   bool
}

// Listen makes the socket, replacing a file that a dead node left, and serves
// it until Close. Permissions of the socket are mode.
func Listen(path string, mode os.FileMode, c Config) (*Server, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on the door: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		ln.Close()
		return nil, fmt.Errorf("set permissions of the door: %w", err)
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = 1024
	}
	s := &Server{config: c, ln: ln, sessions: map[*Session]struct{}{}}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *Server) accept() {
	for {
		conn, err := s.ln.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// A front-end that went away, or no descriptors left: both pass,
			// the latter not at once.
			time.Sleep(5 * time.Millisecond)
			continue
		}
		s.start(conn)
	}
}

func (s *Server) start(conn *net.UnixConn) {
	v := &Session{conn: conn, server: s, rings: map[int]*ring{}}
	v.table = newMemTable(func(unmap func()) {
		if v.dev == nil {
			unmap()
			return
		}
		v.dev.Retire(unmap)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.sessions) >= s.config.MaxSessions {
		s.full.Add(1)
		conn.Close()
		return
	}
	s.sessions[v] = struct{}{}
	s.wg.Go(func() { s.serve(v) })
}

// serve runs one session from its first byte to the last descriptor.
func (s *Server) serve(v *Session) {
	reason := v.open()
	if reason == nil {
		reason = v.run()
	}
	v.close(reason)
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

// open learns who connected and makes the device.
func (v *Session) open() error {
	raw, err := v.conn.SyscallConn()
	if err != nil {
		return &end{Reason: NoDevice, cause: err}
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		cerr = err
	}
	if cerr != nil {
		return &end{Reason: NoDevice, cause: cerr}
	}
	v.peer = *cred
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
	return len(s.sessions)
}

// Ends returns how many sessions ended for each reason, by the reason's name,
// and under "full" how many were never begun.
func (s *Server) Ends() map[string]uint64 {
	m := map[string]uint64{"full": s.full.Load()}
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
	err := s.ln.Close()
	s.wg.Wait()
	return err
}

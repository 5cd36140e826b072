// SPDX-License-Identifier: Apache-2.0

package unixsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the settings of one Listener.
type Options struct {
	Mode fs.FileMode // permissions of the socket
	// Served replaces Config.Served.
	Served func(uid int) bool
	// Explain keeps a few connections of users that the node does not serve open for a moment, if the protocol of the
	// socket can answer with the reason.
	Explain bool
}

// Listener listens at a Unix socket. One goroutine calls Accept or AcceptConn.
type Listener struct {
	u      *net.UnixListener
	g      *Guard
	o      Options
	name   string                        // names the socket in messages
	accept func() (*net.UnixConn, error) // u.AcceptUnix, except in tests
	failed bool                          // the last accept failed; only the goroutine that accepts uses it
	closed chan struct{}
	once   sync.Once
}

// unguarded is the Guard of Listeners without one.
var unguarded = NewGuard(Config{})

// Listen makes the socket of a network ("unix" or "unixpacket") at a path. It replaces the socket file of a node that
// has ended. Closing the Listener removes the socket. g may be nil.
func (g *Guard) Listen(network, path string, o Options) (*Listener, error) {
	if g == nil {
		g = unguarded
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	u, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen on the socket: %w", err)
	}
	if err := os.Chmod(path, o.Mode); err != nil {
		u.Close()
		return nil, fmt.Errorf("set permissions of the socket: %w", err)
	}
	return &Listener{u: u, g: g, o: o, name: filepath.Base(path), accept: u.AcceptUnix,
		closed: make(chan struct{})}, nil
}

// Pauses after an accept that failed: they double from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// AcceptConn returns the next connection of a user that may have it. It returns an error only if the Listener is
// closed. AcceptConn counts other errors, such as a lack of descriptors, and repeats the accept.
func (l *Listener) AcceptConn() (*Conn, error) {
	for pause := firstPause; ; {
		u, err := l.accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			l.g.note(l, nil)
			return nil, err
		case err != nil:
			l.failed = true
			l.g.note(l, err)
			t := time.NewTimer(pause)
			select {
			case <-l.closed:
			case <-t.C:
			}
			t.Stop()
			pause = min(2*pause, lastPause)
			continue
		}
		pause = firstPause
		if l.failed {
			l.failed = false
			l.g.note(l, nil)
		}
		if c := l.admit(u); c != nil {
			return c, nil
		}
		u.Close()
	}
}

// Accept implements net.Listener: it calls AcceptConn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptConn()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.u.Close()
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.u.Addr() }

// admit returns a connection of a user that may have it, nil if the connection is to be closed.
func (l *Listener) admit(u *net.UnixConn) *Conn {
	p, err := PeerOf(u)
	if err != nil {
		return nil // the other end has closed the connection
	}
	served := l.o.Served
	if served == nil {
		served = l.g.cfg.Served
	}
	c := &Conn{UnixConn: u, peer: p}
	if served == nil || served(p.UID) {
		why, ok := l.g.enter(p.UID)
		if !ok {
			l.g.refuse(l.name, p, why)
			return nil
		}
		c.release = func() { l.g.leave(p.UID) }
		return c
	}
	l.g.refuse(l.name, p, NotServed)
	if !l.o.Explain || !l.g.enterStranger(p.UID) {
		return nil
	}
	c.release = func() { l.g.leaveStranger(p.UID) }
	time.AfterFunc(strangerTime, func() { c.Close() })
	return c
}

// Conn is a connection of a user that may have it.
type Conn struct {
	*net.UnixConn
	peer     Peer
	release  func()
	released atomic.Bool
}

// NewConn wraps a connection that this process made. No Guard counts it. The Conn is valid even if the error is not
// nil: then its Peer is zero.
func NewConn(u *net.UnixConn) (*Conn, error) {
	p, err := PeerOf(u)
	return &Conn{UnixConn: u, peer: p, release: func() {}}, err
}

// Peer returns the process at the other end.
func (c *Conn) Peer() Peer { return c.peer }

// Close closes the connection. It may be called more than once.
func (c *Conn) Close() error {
	err := c.UnixConn.Close()
	if !c.released.Swap(true) {
		c.release()
	}
	return err
}

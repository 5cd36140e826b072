// SPDX-License-Identifier: Apache-2.0

// Package unixsock holds the listening Unix sockets of a node: which users may connect, how many connections each of
// them and all may have, and what happens if a connection cannot be accepted.
//
// What comes in: paths, users, bounds; what goes out: connections of users that the node serves, as the kernel names
// them. Every Unix socket at which a node listens is a Listener of this package: device sockets, those of virtual
// machines, user MADs, rdma_cm and the control interface. All Listeners of a node share a Guard. A Listener must never
// end because an accept failed. A connection of a user that the node does not serve must never keep a descriptor of the
// node. The only exceptions are a few connections to the control socket: they stay open for a second, to get the
// reason.
package unixsock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a Unix socket, as the kernel recorded it.
type Peer struct{ PID, UID int }

// PeerOf returns the peer of a connection at the time it connected.
func PeerOf(c syscall.Conn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, err
	}
	if serr != nil {
		return Peer{}, fmt.Errorf("read the peer's credentials: %w", serr)
	}
	return Peer{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// Refusal is why a connection was closed at once.
type Refusal int

// Refusals.
const (
	NotServed     Refusal = iota // the node does not serve the user
	TooMany                      // all users together have as many connections as they may
	TooManyOfUser                // this user has as many connections as one user may
	numRefusals
)

// Bounds of the connections of users that the node does not serve, to sockets with Options.Explain. They end after
// strangerTime whatever they do.
const (
	maxStrangers       = 32
	maxStrangersOfUser = 4
	strangerTime       = time.Second
)

// Config configures a Guard.
type Config struct {
	// Served reports whether the node serves a user; nil: it serves every user. Options.Served replaces it.
	Served func(uid int) bool
	// Own reports whether a user is root or the node's own; nil: every user is. The bounds of other users do not apply
	// to these, and a quarter of all connections is reserved for them.
	Own func(uid int) bool
	// Connections bounds the connections of all users; 0: no bound. Another user has half of it at most, and all other
	// users together have three quarters.
	Connections int
	// OnRefuse, if set, is called for each connection that is closed at once, on the goroutine of the socket.
	OnRefuse func(socket string, p Peer, why Refusal)
}

// Counters count what happens at the sockets of a node.
type Counters struct {
	RefusedUID   atomic.Uint64 `counter:"socket_refused_uid"`
	RefusedAll   atomic.Uint64 `counter:"socket_refused_connections"`
	RefusedUser  atomic.Uint64 `counter:"socket_refused_user_connections"`
	AcceptErrors atomic.Uint64 `counter:"socket_accept_errors"`
}

// Guard has the bounds that all Listeners of a node share. A nil Guard has none, and serves every user.
type Guard struct {
	cfg      Config
	counters Counters

	mu        sync.Mutex  // guards what follows; nothing else is locked with mu held
	users     map[int]int // connections by user, of users that the node serves
	total     int         // the sum of users
	others    int         // the part of total of users that are not Own
	strangers map[int]int // connections by user, of users that the node does not serve
	listed    int         // the sum of strangers
	failing   map[*Listener]Failure
}

// Failure is a Listener that cannot accept connections now.
type Failure struct {
	Socket string // its name
	Since  time.Time
	Err    error // of the last accept
}

// NewGuard returns a Guard without Listeners.
func NewGuard(c Config) *Guard {
	return &Guard{cfg: c, users: map[int]int{}, strangers: map[int]int{}, failing: map[*Listener]Failure{}}
}

// Counters returns the counters.
func (g *Guard) Counters() *Counters { return &g.counters }

// Failures lists the Listeners that cannot accept connections now, by their names.
func (g *Guard) Failures() (list []Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.failing {
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Failure) int { return cmp.Compare(a.Socket, b.Socket) })
	return list
}

// own reports whether a user is root or the node's own.
func (g *Guard) own(uid int) bool { return g.cfg.Own == nil || g.cfg.Own(uid) }

// enter counts a connection of a user that the node serves, or returns why it is one too many.
func (g *Guard) enter(uid int) (why Refusal, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	own, most := g.own(uid), g.cfg.Connections
	switch {
	case most == 0:
	case g.total >= most, !own && g.others >= most-most/4:
		return TooMany, false
	case !own && g.users[uid] >= most/2:
		return TooManyOfUser, false
	}
	g.total++
	g.users[uid]++
	if !own {
		g.others++
	}
	return 0, true
}

// leave undoes enter.
func (g *Guard) leave(uid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total--
	uncount(g.users, uid)
	if !g.own(uid) {
		g.others--
	}
}

// enterStranger counts a connection of a user that the node does not serve, and reports whether there is room for it.
func (g *Guard) enterStranger(uid int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listed >= maxStrangers || g.strangers[uid] >= maxStrangersOfUser {
		return false
	}
	g.listed++
	g.strangers[uid]++
	return true
}

// leaveStranger undoes enterStranger.
func (g *Guard) leaveStranger(uid int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listed--
	uncount(g.strangers, uid)
}

// uncount counts one connection of a user less.
func uncount(m map[int]int, uid int) {
	if m[uid]--; m[uid] == 0 {
		delete(m, uid)
	}
}

// refuse counts and reports a refusal.
func (g *Guard) refuse(socket string, p Peer, why Refusal) {
	[numRefusals]*atomic.Uint64{&g.counters.RefusedUID, &g.counters.RefusedAll, &g.counters.RefusedUser}[why].Add(1)
	if f := g.cfg.OnRefuse; f != nil {
		f(socket, p, why)
	}
}

// note records the result of an accept: err is nil if a connection was accepted.
func (g *Guard) note(l *Listener, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		delete(g.failing, l)
		return
	}
	f, ok := g.failing[l]
	if !ok {
		f = Failure{Socket: l.name, Since: time.Now()}
	}
	var errno syscall.Errno
	if f.Err = err; errors.As(err, &errno) {
		f.Err = errno // the socket has its name already
	}
	g.failing[l] = f
	g.counters.AcceptErrors.Add(1)
}

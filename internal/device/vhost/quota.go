// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Quota names a bound that a front-end met; each is a counter, and an errno for
// the front-end.
type Quota uint8

// Quotas.
const (
	SessionsOfAll        Quota = iota // no session is left
	SessionsOfUser                    // the user has as many as one may have
	DescriptorsOfAll                  // the node can keep no more descriptors
	DescriptorsOfUser                 // the sessions of the user hold as many as one may
	DescriptorsOfSession              // the session does
	numQuotas
)

var quotas = [numQuotas]struct {
	name  string
	errno unix.Errno
}{{"sessions", unix.ENOSPC}, {"user_sessions", unix.EUSERS}, {"descriptors", unix.ENFILE},
	{"user_descriptors", unix.EMFILE}, {"session_descriptors", unix.EMFILE}}

// Name is the name of the counter.
func (q Quota) Name() string { return quotas[q].name }

func (q Quota) Error() string { return "quota: " + quotas[q].name }

// Unwrap returns the errno of the front-end's reply.
func (q Quota) Unwrap() error { return quotas[q].errno }

// Limits bound what front-ends may hold of the node. Zero is no limit.
type Limits struct {
	Sessions, UserSessions                           int
	Descriptors, UserDescriptors, SessionDescriptors int
	// Free reports whether the sessions of a user are exempt from the limits per user; nil: none is.
	Free func(uid uint32) bool
}

// account keeps what is held, by user too.
type account struct {
	mu    sync.Mutex
	total int
	users map[uint32]int
}

// reserve adds n to a user's account, unless the total would exceed all, or the user's share would
// exceed user if that is positive; the results report which.
func (a *account) reserve(uid uint32, n, all, user int) (overAll, overUser bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all > 0 && a.total+n > all {
		return true, false
	}
	if user > 0 && a.users[uid]+n > user {
		return false, true
	}
	if a.users == nil {
		a.users = make(map[uint32]int)
	}
	a.total += n
	a.users[uid] += n
	return false, false
}

func (a *account) give(uid uint32, n int) {
	if n == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total -= n
	if a.users[uid] -= n; a.users[uid] == 0 {
		delete(a.users, uid)
	}
}

// ledger is the accounts of a server, or of several, and what they refused.
type ledger struct {
	limits      Limits
	sessions    account
	descriptors account
	refused     [numQuotas]atomic.Uint64
}

func (l *ledger) user(uid uint32, limit int) int {
	if l.limits.Free != nil && l.limits.Free(uid) {
		return 0
	}
	return limit
}

// open notes one more session; the error is a Quota.
func (l *ledger) open(uid uint32) error {
	all, user := l.sessions.reserve(uid, 1, l.limits.Sessions, l.user(uid, l.limits.UserSessions))
	switch {
	case all:
		return SessionsOfAll
	case user:
		return SessionsOfUser
	}
	return nil
}

// hold notes n more descriptors of the session; the error is a Quota.
func (s *Session) hold(n int) error {
	if n == 0 {
		return nil
	}
	l := s.server.ledger
	if m := l.limits.SessionDescriptors; m > 0 && s.held+n > m {
		return DescriptorsOfSession
	}
	all, user := l.descriptors.reserve(s.peer.Uid, n, l.limits.Descriptors,
		l.user(s.peer.Uid, l.limits.UserDescriptors))
	switch {
	case all:
		return DescriptorsOfAll
	case user:
		return DescriptorsOfUser
	}
	s.held += n
	return nil
}

// release gives n of the held descriptors back, which are closed.
func (s *Session) release(n int) {
	s.held -= n
	s.server.ledger.descriptors.give(s.peer.Uid, n)
}

func (s *Session) closeKick(k *Kick) {
	if k != nil {
		k.close()
		s.release(1)
	}
}

func (s *Session) closeCall(c *Call) {
	if c != nil {
		c.close()
		s.release(1)
	}
}

// refuse counts and reports a refusal.
func (s *Session) refuse(q Quota) {
	s.server.ledger.refused[q].Add(1)
	if f := s.server.config.OnRefuse; f != nil {
		f(s, q)
	}
}

// room is what the mappings of all sessions together may take of this
// process: half its addresses (47 bits on amd64), and half the mappings that
// Linux allows a process by default (65530). The Go runtime cannot live
// without the rest.
var room = budget{bytes: 1 << 46, regions: 1 << 15}

// budget is what is left to map.
type budget struct {
	mu      sync.Mutex
	bytes   uint64
	regions int
}

func (b *budget) take(bytes uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.regions == 0 || bytes > b.bytes {
		return false
	}
	b.regions--
	b.bytes -= bytes
	return true
}

func (b *budget) give(bytes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.regions++
	b.bytes += bytes
}

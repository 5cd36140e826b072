// SPDX-License-Identifier: Apache-2.0

// Package hca is the channel adapter: sessions with their protection domains,
// memory regions, completion queues, queue pairs, shared receive queues and
// address handles, and the engine that drives queue pairs.
//
// What comes in: verbs of clients (from rdmadev), bursts of packets (from links and from queue pairs of the same node)
// and the time; what goes out: bursts, completions and events. Package node owns the goroutine of every Lane and calls
// it. The package must never do I/O, read a clock or start a goroutine.
//
// Ownership: a Session and everything in it belongs to one Lane. Only the
// tables of Functions and Adapters are shared, as immutable snapshots.
package hca

import (
	"errors"
	"sync/atomic"

	"weft/internal/proto/ib"
)

// Limits are quotas. Each refusal on their account is ENOSPC or, for the size
// of one object, EINVAL.
type Limits struct {
	Sessions              int
	PD, MR, MW, CQ, QP    uint32 // per session
	SRQ, AH               uint32 // per session
	QPWR, CQE, SRQWR, SGE uint32 // per object
	Inline                uint32
	RdAtomic              uint8
	Window, MinWindow     uint32 // transport's, bytes
	// Memory bounds the bytes of the node that one session's work queues,
	// page lists and waiting completions take; beyond it is ENOMEM.
	Memory int64
}

// DefaultLimits fit a program with thousands of queue pairs.
var DefaultLimits = Limits{
	Sessions: maxSessions, PD: 4096, MR: 65536, MW: 65536, CQ: 16384, QP: 16384, SRQ: 4096, AH: 65536,
	QPWR: 32768, CQE: 4194303, SRQWR: 32768, SGE: 32, Inline: 1024, RdAtomic: 128,
	Window: 1 << 20, MinWindow: 8 << 10, Memory: 1 << 30,
}

const (
	slotBits    = 14 // of a queue pair number on the wire: the session's slot
	slotMask    = 1<<slotBits - 1
	maxSessions = 1 << (24 - slotBits)
)

// Adapter is one function of the node: the identity of its port, its quotas and
// the numbers under which its sessions are found.
type Adapter struct {
	Name     string
	NodeGUID ib.GUID
	// GuestGSI means that QP 1 belongs to the owner session (AttachOwner) and not to the node's agents: its queue pair
	// of type GSI receives what is sent to QP 1. It is set before lanes see the function.
	GuestGSI bool
	limits   atomic.Pointer[Limits]
	shares   atomic.Pointer[Shares]
	num      uint16
	all      *Functions
	port     atomic.Pointer[Port]
	sessions atomic.Pointer[[maxSessions]*Session]
	next     int // where the search for a free session number starts
	// ownerSlot is where the owner session's search for a free slot of a queue pair starts: behind those of the last
	// owner, for whose queue pairs packets may be under way.
	ownerSlot atomic.Uint32
}

// NewAdapter returns a function with the given port and quotas. It can be used
// once it has its number (Functions.Add).
func NewAdapter(p *Port, l Limits) *Adapter {
	a := &Adapter{}
	a.limits.Store(&l)
	a.shares.Store(&EqualShares)
	a.port.Store(p)
	a.sessions.Store(new([maxSessions]*Session))
	return a
}

// Limits returns the quotas, which must not be changed in place.
func (a *Adapter) Limits() *Limits { return a.limits.Load() }

// SetLimits changes the quotas. What exists beyond them stays, and sessions that
// exist keep the number of handles they started with.
func (a *Adapter) SetLimits(l Limits) { a.limits.Store(&l) }

// Number returns the number of the function within its node.
func (a *Adapter) Number() uint16 { return a.num }

// Port returns the current port description.
func (a *Adapter) Port() *Port { return a.port.Load() }

// SetPort publishes a new port description: lanes follow with their next turn. The caller notifies sessions by
// Session.PortChanged, each on its lane; Port.Changes returns the events. Calls must not overlap.
func (a *Adapter) SetPort(p *Port) {
	a.port.Store(p)
	if a.all != nil {
		a.all.generation.Add(1)
	}
}

// ErrNoSession is returned when every session number is taken.
var ErrNoSession = errors.New("no session number free")

// ErrOwned is returned when another session owns the function (AttachOwner).
var ErrOwned = errors.New("another session owns the function")

// ownerNumber is the number of the session that owns a function: the numbers of its queue pairs on the wire are the
// handles that CREATE_QP returns.
const ownerNumber = 0

// Attach gives s a number from 1 on, from which its queue pair numbers follow. Calls of
// Attach, AttachOwner and Detach must not overlap: the node serialises them. Numbers are
// used in turn, so that one is not reused soon.
func (a *Adapter) Attach(s *Session) error {
	if a.Sessions() >= a.Limits().Sessions {
		return ErrNoSession
	}
	old := a.sessions.Load()
	for i := range maxSessions {
		if n := (a.next + i) % maxSessions; n != ownerNumber && old[n] == nil {
			a.assignNumber(s, n)
			return nil
		}
	}
	for n, o := range old {
		if n != ownerNumber && o != nil && o.orphaned.Load() {
			a.assignNumber(s, n)
			return nil
		}
	}
	return ErrNoSession
}

// AttachOwner gives s the number with which the handles of its queue pairs are their numbers on the wire, as a driver
// of the RFC requires. A function has one such session at a time: ErrOwned.
func (a *Adapter) AttachOwner(s *Session) error {
	if a.Sessions() >= a.Limits().Sessions {
		return ErrNoSession
	}
	if o := a.sessions.Load()[ownerNumber]; o != nil && !o.orphaned.Load() {
		return ErrOwned
	}
	s.qps.begin(a.ownerSlot.Load())
	a.assignNumber(s, ownerNumber)
	return nil
}

func (a *Adapter) assignNumber(s *Session, n int) {
	t := *a.sessions.Load()
	s.num = uint16(n)
	t[n] = s
	if n != ownerNumber {
		a.next = n + 1
	}
	a.sessions.Store(&t)
}

// Sessions returns how many sessions are attached, without orphaned ones.
func (a *Adapter) Sessions() (n int) {
	for _, s := range a.sessions.Load() {
		if s != nil && !s.orphaned.Load() {
			n++
		}
	}
	return n
}

// Detach ends the number of s: packets for it are dropped.
func (a *Adapter) Detach(s *Session) {
	t := *a.sessions.Load()
	if t[s.num] == s {
		t[s.num] = nil
		a.sessions.Store(&t)
	}
}

// Session returns the session that owns the queue pair number, or nil.
func (a *Adapter) Session(qpn ib.QPN) *Session {
	return a.sessions.Load()[(qpn&ib.QPNMask)>>slotBits]
}

// SPDX-License-Identifier: Apache-2.0

// Package rdmacm is the connection manager for programs: it replaces the kernel's device rdma_cm for
// librdmacm (docs/notes/rdmacm.md).
//
// What comes in: commands that programs write to their channels, events of package cm, results of
// resolving addresses and paths, and time. What goes out: replies, calls of the Manager of package cm
// and of the Network, and notices, through the Sink of each channel. The communication goroutine of a
// node calls it. It reads no clock, never blocks, sends no datagram itself, and holds no more for a
// program than the bounds below, for any behaviour of programs and peers.
//
// It behaves as the kernel's device, ABI version 4; docs/notes/rdmacm.md lists the differences.
package rdmacm

import (
	"math/rand/v2"
	"net/netip"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// ABIVersion is the version of the commands.
const ABIVersion = 4

// Bounds of what programs can make the Hub hold.
const (
	MaxIDs     = 65536 // identifiers of all programs: numbers that librdmacm can look up
	MaxUserIDs = 16384 // of the programs of a user other than root and the node's own
	maxGroups  = 64    // multicast groups of an identifier
	maxEvents  = 16    // events of an identifier that wait to be read, requests of peers apart
	maxBacklog = 1024  // requests of peers that wait to be read
)

// Errno is an error number of the ABI (Linux).
type Errno = syscall.Errno

// Errors that programs see.
const (
	OK            Errno = 0
	ENOENT              = syscall.ENOENT
	EIO                 = syscall.EIO
	EAGAIN              = syscall.EAGAIN
	ENOMEM              = syscall.ENOMEM
	EACCES              = syscall.EACCES
	ENODEV              = syscall.ENODEV
	EINVAL              = syscall.EINVAL
	ENOSPC              = syscall.ENOSPC
	ENOSYS              = syscall.ENOSYS
	EAFNOSUPPORT        = syscall.EAFNOSUPPORT
	EADDRINUSE          = syscall.EADDRINUSE
	EADDRNOTAVAIL       = syscall.EADDRNOTAVAIL
	ENETUNREACH         = syscall.ENETUNREACH
	EHOSTUNREACH        = syscall.EHOSTUNREACH
	ETIMEDOUT           = syscall.ETIMEDOUT
	EISCONN             = syscall.EISCONN
)

// Group is a multicast group as programs join it.
type Group struct {
	Function uint16
	MGID     ib.GID
	QKey     ib.QKey
	SendOnly bool
	// OfLink means, on an InfiniBand port, that the group's parameters are those of the IP link's
	// groups.
	OfLink bool
	Addr   *cm.Address // of the member
	TClass uint8
}

// Device is a device of the node, with its one port.
type Device struct {
	GUID  ib.GUID
	PKeys []ib.PKey // of the port, by index; the Hub only reads them
	LID   ib.LID    // of an InfiniBand port, with 2^LMC - 1 others behind it
	LMC   uint8
}

// Network is the node's ports and the ways from them.
type Network struct {
	Addresses Addresses
	Groups    Groups
	// Device returns the device that a function is; false where there is none.
	Device func(function uint16) (Device, bool)
}

// Addresses are the IP addresses of the node's ports, and what they lead to. Calls that take done never wait; done is
// called once, maybe before they return, on the same goroutine.
type Addresses interface {
	// Bound returns the port that has an address; the first one if several have it.
	Bound(a netip.Addr) (cm.Address, error)
	// Has reports whether an IP link of a function's InfiniBand port has an address.
	Has(function uint16, a netip.Addr) bool
	// ResolveAddr finds the way to an address; src is the zero Addr where any of
	// this side will do. The zone of a link-local dst, of a group too, is the number of an interface of the
	// program's; what done gets has none.
	ResolveAddr(now mono.Time, src, dst netip.Addr, done func(mono.Time, cm.Address, error))
	// ResolvePath finds the path to where an Address leads.
	ResolvePath(now mono.Time, a *cm.Address, tclass uint8, done func(mono.Time, cm.Path, error))
}

// Groups are multicast groups and the membership of the node's ports in them.
type Groups interface {
	// Broadcast returns the MGID of the broadcast group of the IP link that an address of
	// an InfiniBand port belongs to.
	Broadcast(a *cm.Address) (ib.GID, bool)
	// Join makes the port a member of a group. It never waits; done is called as for Addresses, with the path to the
	// group, with its LID as DLID, and the group's Q_Key. cancel removes part of the membership, or all of it, and
	// may be called once at any time.
	Join(now mono.Time, g *Group, done func(now mono.Time, p cm.Path, qkey ib.QKey,
		err error)) (cancel func(now mono.Time))
}

// Sink is the connection to the holder of a channel.
type Sink interface {
	// Notice reports that the channel has events. It must not block. The next Notice follows only
	// after a command that acknowledges this one.
	Notice()
}

// Stats count what was done, and what was refused by name.
type Stats struct {
	Commands, Events uint64
	// Commands that mean nothing: too short, unknown, for an identifier that is not
	// there or another's, with addresses of another family (of which librdmacm tries one
	// in each program).
	DropMalformed, DropUnknown, DropForeign, DropFamily uint64
	// What there was no room for: identifiers, groups, ports, requests of peers, events.
	DropIDs, DropGroups, DropPorts, DropBacklog, DropEvents uint64
	// Paths of programs that do not begin at the port.
	DropPath uint64
	// Requests of peers, for a listener's address, with addresses that are not the ends'.
	DropAddress uint64
	// Events of connections that no program has taken yet.
	DropUntaken uint64
}

// Hub has the channels of all programs. It has one owner goroutine.
type Hub struct {
	Stats  Stats
	net    Network
	cm     *cm.Manager
	rnd    *rand.Rand
	now    mono.Time // of the call in work
	files  map[*File]struct{}
	ids    map[uint32]*id
	free   []uint32 // numbers that were in use
	users  map[int]int
	groups map[uint32]*member
	group  uint32 // number given last
	spaces map[cm.PortSpace]*space
}

// New returns a Hub without channels. rnd chooses ports.
func New(net Network, m *cm.Manager, rnd *rand.Rand) *Hub {
	return &Hub{net: net, cm: m, rnd: rnd, files: map[*File]struct{}{}, ids: map[uint32]*id{}, users: map[int]int{},
		groups: map[uint32]*member{},
		spaces: map[cm.PortSpace]*space{}}
}

// Owner is the owner of a channel.
type Owner struct {
	PID, UID int
	Comm     string
	// Own: the user is root or the node's own; Low: the user may bind ports below 1024.
	Own, Low bool
}

// File is an open channel: identifiers, and the events that wait to be read.
type File struct {
	hub     *Hub
	sink    Sink
	owner   Owner
	ids     map[*id]struct{}
	events  []*event
	noticed bool // a notice is out
	closed  bool
}

// Open opens a channel.
func (h *Hub) Open(o Owner, sink Sink) *File {
	f := &File{hub: h, sink: sink, owner: o, ids: map[*id]struct{}{}}
	h.files[f] = struct{}{}
	return f
}

// Noticed acknowledges the channel's notice. Resume follows after the command that acknowledges it.
func (f *File) Noticed() { f.noticed = false }

// Resume gives a notice where one is due.
func (f *File) Resume() { f.notify() }

// notify sends a notice if there are events and no notice is pending.
func (f *File) notify() {
	if len(f.events) > 0 && !f.noticed && !f.closed {
		f.noticed = true
		f.sink.Notice()
	}
}

// Stale reports whether a notice is out although there are no events.
func (f *File) Stale() bool { return f.noticed && len(f.events) == 0 }

// lookup returns the identifier of this number, if it is the channel's.
func (f *File) lookup(n uint32) (*id, Errno) {
	i := f.hub.ids[n]
	switch {
	case i == nil:
		f.hub.Stats.DropForeign++
		return nil, ENOENT
	case i.file != f:
		f.hub.Stats.DropForeign++
		return nil, EINVAL
	}
	return i, OK
}

// with calls do with an identifier, unless there is an error before.
func (f *File) with(n uint32, err Errno, do func(i *id) Errno) Errno {
	if err != OK {
		f.hub.Stats.DropFamily++
		return err
	}
	i, err := f.lookup(n)
	if err != OK {
		return err
	}
	if i.removed {
		return ENODEV
	}
	return do(i)
}

// errno returns what an error of package cm, or of the Network, is to programs.
func errno(err error) Errno {
	switch e := err.(type) {
	case nil:
		return OK
	case Errno:
		return e
	}
	switch err {
	case cm.ErrFull:
		return ENOMEM
	case cm.ErrInUse:
		return EADDRINUSE
	case cm.ErrNoPort, cm.ErrNoAddress:
		return ENODEV
	case cm.ErrNoRoute:
		return ENETUNREACH
	case cm.ErrNoPath:
		return EHOSTUNREACH
	case cm.ErrDenied:
		return EACCES
	case cm.ErrTimeout:
		return ETIMEDOUT
	}
	return EINVAL
}

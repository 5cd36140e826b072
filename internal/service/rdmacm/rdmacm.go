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

	"weft/internal/proto/abi"
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

// Close ends all that the channel has, as if its identifiers were destroyed.
func (f *File) Close(now mono.Time) {
	if f.closed {
		return
	}
	f.hub.now = now
	for i := range f.ids {
		i.destroy()
	}
	f.closed = true
	f.events = nil
	delete(f.hub.files, f)
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

// Command executes a command that a program wrote: body is what follows its header, option what a
// SET_OPTION points at, from the channel that a MIGRATE_ID names; room is how much of an
// answer there is room for. It appends the answer to b.
func (f *File) Command(now mono.Time, command uint32, body, option []byte, from *File, room int, b []byte) ([]byte,
	Errno) {
	h := f.hub
	h.now = now
	h.Stats.Commands++
	if command >= uint32(len(layouts)) {
		h.Stats.DropUnknown++
		return b, EINVAL
	}
	l := &layouts[command]
	switch {
	case f.closed:
		return b, EIO
	case l.full == 0:
		h.Stats.DropUnknown++
		return b, ENOSYS
	case len(body) < l.least:
		h.Stats.DropMalformed++
		return b, EINVAL
	case room < l.answer:
		h.Stats.DropMalformed++
		return b, ENOSPC
	}
	var full [MaxBody]byte
	copy(full[:l.full], body)
	r := &fields{b: full[:l.full]}
	switch command {
	case abi.CMCreateID:
		return f.createID(r, b)
	case abi.CMDestroyID:
		return f.destroyID(r, b)
	case abi.CMBindIP:
		r.skip(8)
		e, err := r.sockaddr()
		return b, f.with(r.u32(), err, func(i *id) Errno { return i.bind(e) })
	case abi.CMBind:
		n, size := r.u32(), r.u16()
		reserved := r.u16()
		e, err := r.storage(size)
		if reserved != 0 || size == 0 {
			err = EINVAL
		}
		return b, f.with(n, err, func(i *id) Errno { return i.bind(e) })
	case abi.CMResolveIP:
		src, err := r.sockaddr()
		dst, err2 := r.sockaddr()
		if err == OK {
			err = err2
		}
		return b, f.with(r.u32(), err, func(i *id) Errno { return i.resolveAddr(src, dst) })
	case abi.CMResolveAddr:
		n := r.u32()
		r.skip(4)
		srcLen, dstLen := r.u16(), r.u16()
		reserved := r.u32()
		src, err := r.storage(srcLen)
		dst, err2 := r.storage(dstLen)
		if err == OK {
			err = err2
		}
		if reserved != 0 || dstLen == 0 {
			err = EINVAL
		}
		return b, f.with(n, err, func(i *id) Errno { return i.resolveAddr(src, dst) })
	case abi.CMResolveRoute:
		return b, f.with(r.u32(), OK, (*id).resolveRoute)
	case abi.CMQueryRoute:
		r.skip(8)
		err := f.with(r.u32(), OK, func(i *id) Errno { b = i.queryRoute(b); return OK })
		return b, err
	case abi.CMQuery:
		r.skip(8)
		n, option := r.u32(), r.u32()
		err := f.with(n, OK, func(i *id) (err Errno) { b, err = i.query(option, room, b); return err })
		return b, err
	case abi.CMConnect:
		c := r.conn()
		n := r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.connect(&c) })
	case abi.CMListen:
		n, backlog := r.u32(), r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.listen(int32(backlog)) })
	case abi.CMAccept:
		uid := r.u64()
		c := r.conn()
		return b, f.with(r.u32(), OK, func(i *id) Errno { return i.accept(uid, &c) })
	case abi.CMReject:
		n, length, reason := r.u32(), r.u8(), r.u8()
		r.skip(2)
		data := r.take(maxPrivate)[:length]
		return b, f.with(n, OK, func(i *id) Errno { return i.reject(reason, data) })
	case abi.CMDisconnect:
		return b, f.with(r.u32(), OK, (*id).disconnect)
	case abi.CMInitQPAttr:
		r.skip(8)
		n, state := r.u32(), r.u32()
		err := f.with(n, OK, func(i *id) (err Errno) { b, err = i.qpAttr(state, b); return err })
		return b, err
	case abi.CMGetEvent:
		return f.event(room, b)
	case abi.CMSetOption:
		r.skip(8)
		n, level, name := r.u32(), r.u32(), r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.setOption(level, name, option) })
	case abi.CMNotify:
		n, event := r.u32(), r.u32()
		return b, f.with(n, OK, func(i *id) Errno { return i.notify(event) })
	case abi.CMJoinIPMcast:
		r.skip(8)
		uid := r.u64()
		e, err := r.sockaddr()
		err = f.with(r.u32(), err, func(i *id) (err Errno) { b, err = i.join(uid, e, 0, b); return err })
		return b, err
	case abi.CMJoinMcast:
		r.skip(8)
		uid, n, size, flags := r.u64(), r.u32(), r.u16(), r.u16()
		e, err := r.storage(size)
		err = f.with(n, err, func(i *id) (err Errno) { b, err = i.join(uid, e, flags, b); return err })
		return b, err
	case abi.CMLeaveMcast:
		r.skip(8)
		return f.leave(r.u32(), b)
	case abi.CMMigrateID:
		r.skip(8)
		return f.migrate(r.u32(), from, b)
	}
	h.Stats.DropUnknown++
	return b, ENOSYS
}

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
	case cm.ErrTimeout:
		return ETIMEDOUT
	}
	return EINVAL
}

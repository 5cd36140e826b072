// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"net/netip"
	"strconv"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// state is how far an identifier has come.
type state uint8

const (
	stateIdle         state = iota
	stateAddrBound          // its address is known
	stateAddrQuery          // resolveAddr is under way
	stateAddrResolved       // the peer's is too, and the ways between them
	stateRouteQuery
	stateRouteResolved
	stateConnect // from connect, or a peer's request, to the end of the connection
	stateDisconnect
	stateListen
)

// stateNames are those of the rdma tool.
var stateNames = [...]string{"IDLE", "ADDR_BOUND", "ADDR_QUERY", "ADDR_RESOLVED", "ROUTE_QUERY", "ROUTE_RESOLVED",
	"CONNECT", "DISCONNECT", "LISTEN"}

// id is an identifier: the end of a connection, or of what may become one.
type id struct {
	hub      *Hub
	file     *File  // nil for a request that was not read
	n        uint32 // its number, where it has one
	uid      uint64 // its name with the program; 0 until the program has one for it
	reported uint32 // events that were read
	waiting  int    // events that wait to be read, requests of peers apart

	ps     cm.PortSpace
	qpType ib.QPType
	state  state
	// Where it is bound, and its peer.
	src, dst endpoint
	claimed  bool
	addr     *cm.Address // nil: bound to no port
	path     *cm.Path    // nil: not resolved
	pending  uint64      // names the resolving under way; what another brings is too late

	// Options.
	tos, ackTimeout   uint8
	ackTimeoutSet     bool
	reuse, afOnly     bool
	afOnlySet         bool
	dead, removed     bool // destroyed; its port is no more
	backlog, requests int  // of a listener: room for requests, and those that wait to be read

	listener *cm.Listener
	conn     *cm.Conn
	lookup   *cm.Lookup
	inquiry  *cm.Inquiry
	qpn      ib.QPN
	qkey     ib.QKey
	serves   bool // reads and atomics of the peer
	passive  bool
	groups   map[*member]struct{}
}

// datagram reports whether it is of a datagram service.
func (i *id) datagram() bool { return i.qpType == ib.UD }

// number gives an identifier to a channel.
func (h *Hub) number(i *id, f *File) Errno {
	if len(h.ids) >= MaxIDs || !f.owner.Own && h.users[f.owner.UID] >= MaxUserIDs {
		h.Stats.DropIDs++
		return ENOMEM
	}
	if k := len(h.free); k > 0 {
		i.n, h.free = h.free[k-1], h.free[:k-1]
	} else {
		i.n = uint32(len(h.ids)) // numbers without gaps are all in use
	}
	i.file = f
	h.ids[i.n] = i
	f.ids[i] = struct{}{}
	h.charge(f.owner, 1)
	return OK
}

// charge counts identifiers by user.
func (h *Hub) charge(o Owner, n int) {
	if h.users[o.UID] += n; h.users[o.UID] == 0 {
		delete(h.users, o.UID)
	}
}

func (f *File) createID(r *fields, b []byte) ([]byte, Errno) {
	uid := r.u64()
	r.skip(8)
	i := &id{hub: f.hub, uid: uid, ps: cm.PortSpace(r.u16())}
	switch i.ps {
	case cm.SpaceTCP:
		i.qpType = ib.RC
	case cm.SpaceUDP, cm.SpaceIPoIB:
		i.qpType = ib.UD
	case cm.SpaceIB:
		// Extended connected queue pairs are not to be had here; identifiers are, for librdmacm
		// makes some to see what there is.
		i.qpType = ib.QPType(r.u8())
	default:
		f.hub.Stats.DropMalformed++
		return b, EINVAL
	}
	if err := f.hub.number(i, f); err != OK {
		return b, err
	}
	return le.AppendUint32(b, i.n), OK
}

func (f *File) destroyID(r *fields, b []byte) ([]byte, Errno) {
	r.skip(8)
	i, err := f.lookup(r.u32())
	if err != OK {
		return b, err
	}
	i.destroy()
	return le.AppendUint32(b, i.reported), OK
}

// destroy ends an identifier that has a number.
func (i *id) destroy() {
	f, h := i.file, i.hub
	if len(f.events) > 0 {
		f.purge(func(e *event) bool { return e.id == i })
	}
	i.abandon()
	delete(h.ids, i.n)
	delete(f.ids, i)
	h.free = append(h.free, i.n)
	h.charge(f.owner, -1)
}

// abandon ends all that an identifier has.
func (i *id) abandon() {
	h := i.hub
	i.dead = true
	i.halt()
	for m := range i.groups {
		m.end()
	}
	h.release(i)
}

// halt ends what is under way.
func (i *id) halt() {
	h := i.hub
	i.pending++
	for m := range i.groups {
		m.stop()
	}
	if i.listener != nil {
		i.listener.Close(h.now)
		i.listener = nil
	}
	if i.conn != nil {
		i.conn.Close(h.now)
		i.conn = nil
	}
	if i.lookup != nil {
		i.lookup.Close(h.now)
		i.lookup = nil
	}
	if i.inquiry != nil {
		i.inquiry.Reject(h.now, cm.LookupRejected, nil, nil)
		i.inquiry = nil
	}
}

// Remove reports that the port of a function was removed.
func (h *Hub) Remove(now mono.Time, function uint16) {
	h.now = now
	for _, i := range h.ids {
		if i.addr == nil || i.addr.Function != function || i.removed {
			continue
		}
		i.halt()
		if i.uid != 0 {
			i.queue(&event{kind: evDeviceRemoval})
		}
		i.removed = true
	}
	for f := range h.files {
		f.purge(func(e *event) bool {
			return e.child != nil && e.child.addr != nil &&
				e.child.addr.Function == function
		})
	}
}

// bind gives an identifier its address: one of a port, or the unspecified one.
func (i *id) bind(e endpoint) Errno {
	if i.state != stateIdle || i.passive {
		return EINVAL
	}
	if !e.addr.IsValid() {
		return EAFNOSUPPORT
	}
	if i.qpType != ib.RC && i.qpType != ib.UC && i.qpType != ib.UD {
		return EINVAL
	}
	var addr *cm.Address
	if !e.any() {
		a, err := i.hub.net.Addresses.Bound(e.addr)
		if err != nil {
			return errno(err)
		}
		// A loopback address is of no device until it is known that the peer is on
		// this host: programs that look for a device would offer it to other hosts.
		if !e.addr.IsLoopback() {
			addr = &a
		}
	}
	was := i.src
	i.src = e
	if err := i.hub.claim(i); err != OK {
		i.src = was
		return err
	}
	i.addr, i.state = addr, stateAddrBound
	return OK
}

// resolveAddr finds the way to the peer.
func (i *id) resolveAddr(src, dst endpoint) Errno {
	switch {
	case !dst.addr.IsValid():
		return EAFNOSUPPORT
	case src.addr.IsValid() && src.addr.Is4() != dst.addr.Is4():
		return EINVAL
	}
	if i.state == stateIdle {
		if !src.addr.IsValid() {
			src.addr = netip.IPv6Unspecified()
			if dst.addr.Is4() {
				src.addr = netip.IPv4Unspecified()
			}
		}
		if err := i.bind(src); err != OK {
			return err
		}
	}
	if i.state != stateAddrBound || i.src.addr.Is4() != dst.addr.Is4() {
		return EINVAL
	}
	i.dst, i.state = dst, stateAddrQuery
	i.pending++
	from, name := i.src.addr, i.pending
	if i.src.any() {
		from = netip.Addr{}
	}
	// To the unspecified address means to oneself, as it does for sockets.
	to := dst.addr
	if dst.any() {
		if to = i.src.addr; i.src.any() {
			to = netip.IPv6Loopback()
			if dst.addr.Is4() {
				to = netip.AddrFrom4([4]byte{127, 0, 0, 1})
			}
		}
		i.dst.addr = to
	}
	if dst.scope != 0 && (to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast()) {
		to = to.WithZone(strconv.FormatUint(uint64(dst.scope), 10))
	}
	i.hub.net.Addresses.ResolveAddr(i.hub.now, from, to, func(now mono.Time, a cm.Address, err error) {
		if i.dead || i.pending != name {
			return
		}
		i.hub.now = now
		if err != nil {
			i.state = stateAddrBound
			i.queue(&event{kind: evAddrError, status: status(errno(err))})
			return
		}
		i.addr, i.state = &a, stateAddrResolved
		if i.src.any() {
			i.src.addr, i.src.scope = a.Src, dst.scope
		}
		i.queue(&event{kind: evAddrResolved})
	})
	return OK
}

// resolveRoute finds the path to the peer.
func (i *id) resolveRoute() Errno {
	if i.state != stateAddrResolved {
		return EINVAL
	}
	i.state = stateRouteQuery
	i.pending++
	name := i.pending
	i.hub.net.Addresses.ResolvePath(i.hub.now, i.addr, i.tos, func(now mono.Time, p cm.Path, err error) {
		if i.dead || i.pending != name {
			return
		}
		i.hub.now = now
		if err != nil {
			i.state = stateAddrResolved
			i.queue(&event{kind: evRouteError, status: status(errno(err))})
			return
		}
		i.path, i.state = &p, stateRouteResolved
		i.queue(&event{kind: evRouteResolved})
	})
	return OK
}

// Levels and names of options.
const (
	levelID, levelIB = 0, 1

	optionTOS, optionReuse, optionAFOnly, optionAckTimeout = 0, 1, 2, 3

	optionPath = 1
)

func (i *id) setOption(level, name uint32, v []byte) Errno {
	switch {
	case level == levelID && (name == optionTOS || name == optionAckTimeout):
		if len(v) != 1 {
			return EINVAL
		}
	case level == levelID && (name == optionReuse || name == optionAFOnly):
		if len(v) != 4 {
			return EINVAL
		}
	case level == levelIB && name == optionPath:
		return i.setPath(v)
	default:
		return ENOSYS
	}
	switch name {
	case optionTOS:
		i.tos = v[0]
	case optionAckTimeout:
		if v[0] > 31 || i.qpType != ib.RC {
			return EINVAL
		}
		i.ackTimeout, i.ackTimeoutSet = v[0], true
	case optionReuse:
		on := le.Uint32(v) != 0
		if on && i.state != stateIdle && !i.reuse {
			return EINVAL
		}
		i.reuse = on
	case optionAFOnly:
		if i.state != stateIdle && i.state != stateAddrBound {
			return EINVAL
		}
		i.afOnly, i.afOnlySet = le.Uint32(v) != 0, true
	}
	return OK
}

// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
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

// QKeyUDP is the Q_Key of datagram services, unless it is that of an IP link.
const QKeyUDP ib.QKey = 0x01234567

// ownQKey is the Q_Key that the identifier's queue pair is to have.
func (i *id) ownQKey() ib.QKey {
	if i.qkey != 0 {
		return i.qkey
	}
	return QKeyUDP
}

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

// member is an identifier's membership of a multicast group.
type member struct {
	id       *id
	n        uint32 // its number
	uid      uint64
	reported uint32 // events that were read
	cancel   func(mono.Time)
	over     bool // no further events of the group
}

// stop leaves the group. The membership stays known, for its events and for the program to end.
func (m *member) stop() {
	m.over = true
	if m.cancel != nil {
		m.cancel(m.id.hub.now)
		m.cancel = nil
	}
}

// end ends a membership.
func (m *member) end() {
	m.stop()
	delete(m.id.hub.groups, m.n)
	delete(m.id.groups, m)
}

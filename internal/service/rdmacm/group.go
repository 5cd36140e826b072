// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"encoding/binary"
	"net/netip"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// Flags of a join: with queue pairs that receive, or that only send.
const (
	joinFull = iota
	joinSendOnly
)

var unspecified4 = netip.IPv4Unspecified()

// join makes an identifier a member of the group of an address.
func (i *id) join(uid uint64, e endpoint, flags uint16, b []byte) ([]byte, Errno) {
	h := i.hub
	switch {
	case !e.addr.IsValid():
		return b, EAFNOSUPPORT
	case flags > joinSendOnly, !i.datagram(), i.addr == nil:
		return b, EINVAL
	case i.state != stateAddrBound && i.state != stateAddrResolved:
		return b, EINVAL
	case len(i.groups) >= maxGroups:
		h.Stats.DropGroups++
		return b, ENOMEM
	}
	g := &Group{Function: i.addr.Function, QKey: i.ownQKey(), SendOnly: flags == joinSendOnly, Addr: i.addr,
		TClass: i.tos, OfLink: i.ps == cm.SpaceIPoIB}
	if i.addr.Link == ib.LinkEthernet {
		g.MGID, g.OfLink = ib.GIDFromAddr(e.addr), false
	} else {
		broadcast, ok := h.net.Groups.Broadcast(i.addr)
		if !ok {
			return b, ENODEV
		}
		g.MGID = linkGroup(e.addr, broadcast, i.ps == cm.SpaceUDP)
	}
	if !g.MGID.IsMulticast() {
		return b, EINVAL
	}
	for h.group++; h.groups[h.group] != nil; h.group++ {
	}
	m := &member{id: i, n: h.group, uid: uid}
	h.groups[m.n] = m
	if i.groups == nil {
		i.groups = map[*member]struct{}{}
	}
	i.groups[m] = struct{}{}
	b = le.AppendUint32(b, m.n)
	cancel := h.net.Groups.Join(h.now, g, func(now mono.Time, p cm.Path, qkey ib.QKey, err error) {
		if m.over {
			return
		}
		h.now = now
		if err != nil {
			i.queue(&event{kind: evMulticastError, group: m, status: status(errno(err)), ud: &udParam{}})
			return
		}
		if g.OfLink {
			i.qkey = qkey
		}
		i.queue(&event{kind: evMulticastJoin, group: m, ud: &udParam{qpn: ib.QPNMulticast, qkey: qkey, path: &p}})
	})
	m.cancel = cancel
	return b, OK
}

// linkGroup returns the MGID of an address's group on an IP link (RFC 4391 section 4): with
// the scope and partition of the link's broadcast group, and, for the UDP port space, a
// signature of its own instead of IP's. An address that is an MGID which a subnet administration
// has assigned stands for itself.
func linkGroup(a netip.Addr, broadcast ib.GID, signature bool) (g ib.GID) {
	v := a.As16()
	const ipv4Signature, ipv6Signature, cmSignature = 0x401b, 0x601b, 0x4001
	if a.Is6() && v[0] == 0xff && v[1]&0xf0 == 0x10 && v[2] == 0xa0 && v[3] == 0x1b {
		return ib.GID(v)
	}
	copy(g[:8], broadcast[:8])
	s := uint16(ipv4Signature)
	if a.Is6() {
		s = ipv6Signature
		copy(g[6:], v[6:])
	} else {
		copy(g[12:], v[12:])
		g[12] &= 0x0f
	}
	if signature {
		s = s&0xff00 | cmSignature&0xff
	}
	binary.BigEndian.PutUint16(g[2:], s)
	return g
}

// leave ends a membership for the program that has it.
func (f *File) leave(n uint32, b []byte) ([]byte, Errno) {
	m := f.hub.groups[n]
	switch {
	case m == nil:
		f.hub.Stats.DropForeign++
		return b, ENOENT
	case m.id.file != f:
		f.hub.Stats.DropForeign++
		return b, EINVAL
	}
	f.purge(func(e *event) bool { return e.group == m })
	m.end()
	return le.AppendUint32(b, m.reported), OK
}

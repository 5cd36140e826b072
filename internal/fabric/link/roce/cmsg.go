// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
)

// Socket addresses and control messages are written as the kernel lays them
// out: fields in host order, but ports and addresses in network order.
var (
	ne = binary.NativeEndian
	be = binary.BigEndian
)

const (
	// Room for packet info, type of service, hop limit and segment size; and
	// when receiving also the overflow counter.
	ctrlLen = 40 + 24 + 24 + 24 + 24
)

// putDest writes the destination address of path to name, and the control messages that set source
// address, traffic class and hop limit to ctrl. It returns both lengths. Hop limit 0, which an IPv4
// socket does not accept, selects the system's default.
func putDest(name, ctrl []byte, path *ib.Path, v4 bool, port uint16, ifindex uint32) (nameLen, ctrlLen int) {
	clear(name)
	be.PutUint16(name[2:], port)
	if v4 {
		ne.PutUint16(name, unix.AF_INET)
		copy(name[4:8], path.DGID[12:])
		body, off := udpsock.PutCmsg(ctrl, 0, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		clear(body)
		ne.PutUint32(body, ifindex)
		copy(body[4:8], path.SGID[12:])
		body, off = udpsock.PutCmsg(ctrl, off, unix.IPPROTO_IP, unix.IP_TOS, 4)
		ne.PutUint32(body, uint32(path.TClass))
		if path.HopLimit != 0 {
			body, off = udpsock.PutCmsg(ctrl, off, unix.IPPROTO_IP, unix.IP_TTL, 4)
			ne.PutUint32(body, uint32(path.HopLimit))
		}
		return unix.SizeofSockaddrInet4, off
	}
	ne.PutUint16(name, unix.AF_INET6)
	copy(name[8:24], path.DGID[:])
	ne.PutUint32(name[24:], ifindex)
	body, off := udpsock.PutCmsg(ctrl, 0, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	copy(body, path.SGID[:])
	ne.PutUint32(body[16:], ifindex)
	body, off = udpsock.PutCmsg(ctrl, off, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4)
	ne.PutUint32(body, uint32(path.TClass))
	if path.HopLimit != 0 {
		body, off = udpsock.PutCmsg(ctrl, off, unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT, 4)
		ne.PutUint32(body, uint32(path.HopLimit))
	}
	return unix.SizeofSockaddrInet6, off
}

// arrival is the content of a received message's address and control messages.
type arrival struct {
	path    ib.Path
	segment int    // size of each datagram in a coalesced message, or 0
	ipv4    bool   //
	here    bool   // addressed to this host, or to a group, not broadcast
	known   bool   // all that is needed was there
	lost    uint32 // datagrams the socket has dropped so far
	hasLost bool
}

// parse fills a from a socket address and control messages. Both are the
// kernel's, yet every length is checked.
func (a *arrival) parse(name, ctrl []byte) {
	*a = arrival{}
	if len(name) < unix.SizeofSockaddrInet4 {
		return
	}
	a.path.SrcPort = be.Uint16(name[2:])
	switch ne.Uint16(name) {
	case unix.AF_INET:
		a.ipv4 = true
		a.path.SGID = mapped(name[4:8])
	case unix.AF_INET6:
		if len(name) < unix.SizeofSockaddrInet6 {
			return
		}
		a.path.SGID = ib.GID(name[8:24])
	default:
		return
	}
	for {
		level, typ, body, rest, ok := udpsock.NextCmsg(ctrl)
		if !ok {
			return
		}
		a.cmsg(level, typ, body)
		ctrl = rest
	}
}

func (a *arrival) cmsg(level, typ uint32, body []byte) {
	switch {
	case level == unix.IPPROTO_IP && typ == unix.IP_PKTINFO && len(body) >= unix.SizeofInet4Pktinfo:
		// The header's destination, and the local address: they differ for a
		// broadcast and for a group.
		a.path.DGID = mapped(body[8:12])
		a.here = [4]byte(body[4:8]) == [4]byte(body[8:12]) || body[8]>>4 == 0xe
		a.known = true
	case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_PKTINFO && len(body) >= unix.SizeofInet6Pktinfo:
		a.path.DGID = ib.GID(body[:16])
		a.here, a.known = true, true
	case level == unix.IPPROTO_IP && typ == unix.IP_TOS && len(body) >= 1:
		a.path.TClass = body[0] // the one control message of a single byte
	case level == unix.IPPROTO_IPV6 && typ == unix.IPV6_TCLASS && len(body) >= 4:
		a.path.TClass = uint8(ne.Uint32(body))
	case level == unix.IPPROTO_IP && typ == unix.IP_TTL && len(body) >= 4,
		level == unix.IPPROTO_IPV6 && typ == unix.IPV6_HOPLIMIT && len(body) >= 4:
		a.path.HopLimit = uint8(ne.Uint32(body))
	case level == unix.IPPROTO_UDP && typ == unix.UDP_GRO && len(body) >= 4:
		a.segment = int(int32(ne.Uint32(body)))
	case level == unix.SOL_SOCKET && typ == unix.SO_RXQ_OVFL && len(body) >= 4:
		a.lost, a.hasLost = ne.Uint32(body), true
	}
}

func mapped(a []byte) ib.GID {
	return ib.GID{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/mono"
)

// inMessage is the memory that one message of recvmmsg fills.
type inMessage struct {
	iov  unix.Iovec
	name [udpsock.NameLen]byte
	ctrl [64]byte // segment size and overflow counter
	data [recvBytes]byte
}

// progress records how far a socket has been read. After a pause of the node the socket holds
// datagrams that the peers sent during it.
type progress struct {
	until mono.Time // datagrams that arrived by then have been handled
	// If the socket is never empty: datagrams that arrived before begun have been handled once as many
	// bytes were read since then as the socket can hold.
	begun mono.Time // 0: it was empty
	bytes uint64
	most  uint64
}

// perMessage is what any message takes of a socket's buffer beside its octets,
// at least.
const perMessage = 256

// empty notes that nothing was left at a time.
func (p *progress) empty(now mono.Time) { p.until, p.begun = now, 0 }

// handled notes that all that was read has been handled.
func (p *progress) handled(now mono.Time) {
	if p.begun != 0 && p.bytes >= p.most {
		p.until, p.begun = p.begun, 0
	}
	if p.begun == 0 {
		p.begun, p.bytes = now, 0
	}
}

// read is trunk.Config.Read.
func (l *Link) read(peer int) mono.Time {
	if t := l.peers[peer].to.Load(); t != nil {
		return l.progress[t.family].until
	}
	return l.progress[0].until
}

func (l *Link) initRecv() {
	l.inMsg = new([recvMessages]inMessage)
	for i := range l.in {
		h, m := &l.in[i].Hdr, &l.inMsg[i]
		m.iov.Base = &m.data[0]
		m.iov.SetLen(len(m.data))
		h.Iov = &m.iov
		h.SetIovlen(1)
		h.Name, h.Control = &m.name[0], &m.ctrl[0]
	}
}

// Recv delivers packets that arrived, at most MaxRecv, with the index of the source peer. They stay
// valid until the next Recv. deliver may use a Sender, but not the Link. more reports that there may
// be more to receive now; otherwise the caller waits for input.
func (l *Link) Recv(now mono.Time, deliver func(peer int, packet []byte)) (more bool) {
	l.core.Recycle()
	if l.cur == l.got && !l.fill(now) {
		return false
	}
	room := MaxRecv
	for ; l.cur < l.got; l.cur++ {
		if l.size == 0 && !l.begin() {
			continue
		}
		m := l.inMsg[l.cur].data[:l.n]
		// A datagram without octets is one too.
		for first := l.off == 0; l.off < len(m) || first && l.off == len(m); first = false {
			if room < trunk.MaxPackets {
				l.control(now)
				return true
			}
			end := min(l.off+l.size, len(m))
			room -= l.core.Handle(now, l.from, m[l.off:end:end], deliver)
			l.off = end
		}
		l.size = 0
	}
	l.control(now)
	return true
}

// fill fills the receive buffers from the socket that is next in turn, or from the other one if it is
// empty.
func (l *Link) fill(now mono.Time) bool {
	for range l.fd {
		l.family = l.turn
		l.turn ^= 1
		if l.fd[l.family] < 0 {
			continue
		}
		for i := range l.in {
			h := &l.in[i].Hdr
			h.Namelen = udpsock.NameLen
			h.SetControllen(len(l.inMsg[i].ctrl))
		}
		p := &l.progress[l.family]
		p.handled(now)
		n, e := udpsock.Recv(l.fd[l.family], l.in[:])
		if n > 0 {
			for i := range l.in[:n] {
				p.bytes += uint64(l.in[i].N) + perMessage
			}
			l.c.RcvdCalls++
			l.cur, l.got, l.size = 0, n, 0
			return true
		}
		switch e {
		case unix.EAGAIN:
			p.empty(now)
		case unix.EINTR:
		default:
			l.c.RcvErrors++
		}
	}
	return false
}

// begin looks at the address and the control messages of the current message
// and reports whether its datagrams are to be handled.
func (l *Link) begin() bool {
	h, m := &l.in[l.cur], &l.inMsg[l.cur]
	l.c.RcvdMessages++
	l.n, l.off = min(int(h.N), len(m.data)), 0
	l.size = max(l.n, 1)
	for ctrl := m.ctrl[:min(int(h.Hdr.Controllen), len(m.ctrl))]; ; {
		level, typ, body, rest, ok := udpsock.NextCmsg(ctrl)
		if !ok {
			break
		}
		ctrl = rest
		switch {
		case level == unix.IPPROTO_UDP && typ == unix.UDP_GRO && len(body) >= 4:
			if s := int(int32(ne.Uint32(body))); s > 0 && s < l.n {
				l.size = s
				l.c.RcvdGRO++
			}
		case level == unix.SOL_SOCKET && typ == unix.SO_RXQ_OVFL && len(body) >= 4:
			lost := ne.Uint32(body)
			l.c.RcvBufOverflow += uint64(lost - l.lost[l.family])
			l.lost[l.family] = lost
		}
	}
	datagrams := uint64(max(1, (l.n+l.size-1)/l.size))
	l.from = from(m.name[:min(h.Hdr.Namelen, udpsock.NameLen)])
	switch {
	case h.Hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		l.c.DropTruncated += datagrams
	case !l.core.Admits(l.from):
		l.c.DropUnknown += datagrams
		l.stranger = l.from
	default:
		return true
	}
	l.size = 0
	return false
}

// from reads a socket address; the result for an address that is no UDP address matches no peer.
func from(name []byte) netip.AddrPort {
	if len(name) < unix.SizeofSockaddrInet4 {
		return netip.AddrPort{}
	}
	port := be.Uint16(name[2:])
	switch ne.Uint16(name) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(name[4:8])), port)
	case unix.AF_INET6:
		if len(name) >= unix.SizeofSockaddrInet6 {
			return netip.AddrPortFrom(scoped(netip.AddrFrom16([16]byte(name[8:24])), ne.Uint32(name[24:])), port)
		}
	}
	return netip.AddrPort{}
}

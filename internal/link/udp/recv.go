// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"golang.org/x/sys/unix"

	"weft/internal/link/udpsock"
	"weft/internal/mono"
)

// inMessage is the memory that one message of recvmmsg fills.
type inMessage struct {
	iov  unix.Iovec
	name [udpsock.NameLen]byte
	ctrl [64]byte // segment size and overflow counter
	data [recvBytes]byte
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

// Recv reads one batch of datagrams and delivers the packets in them with the
// index of the peer they came from, each valid until deliver returns. deliver may use
// a Sender, not the Link. more says that there may be more to receive at
// once; without it the caller waits for input.
func (l *Link) Recv(now mono.Time, deliver func(peer int, packet []byte)) (more bool) {
	for range l.fd {
		f := l.turn
		l.turn ^= 1
		if l.fd[f] < 0 {
			continue
		}
		for i := range l.in {
			h := &l.in[i].Hdr
			h.Namelen = udpsock.NameLen
			h.SetControllen(len(l.inMsg[i].ctrl))
		}
		n, e := udpsock.Recv(l.fd[f], l.in[:])
		if n == 0 {
			if e != unix.EAGAIN && e != unix.EINTR {
				l.c.RcvErrors++
			}
			continue
		}
		l.c.RcvdCalls++
		for i := range n {
			l.message(now, f, i, deliver)
		}
		l.control(now)
		return true
	}
	return false
}

// message cuts a message into the datagrams it was joined from.
func (l *Link) message(now mono.Time, f, i int, deliver func(int, []byte)) {
	h, m := &l.in[i], &l.inMsg[i]
	l.c.RcvdMessages++
	n := min(int(h.N), len(m.data))
	size := n
	for ctrl := m.ctrl[:min(int(h.Hdr.Controllen), len(m.ctrl))]; ; {
		level, typ, body, rest, ok := udpsock.NextCmsg(ctrl)
		if !ok {
			break
		}
		ctrl = rest
		switch {
		case level == unix.IPPROTO_UDP && typ == unix.UDP_GRO && len(body) >= 4:
			if s := int(int32(ne.Uint32(body))); s > 0 && s < n {
				size = s
				l.c.RcvdGRO++
			}
		case level == unix.SOL_SOCKET && typ == unix.SO_RXQ_OVFL && len(body) >= 4:
			lost := ne.Uint32(body)
			l.c.RcvBufOverflow += uint64(lost - l.lost[f])
			l.lost[f] = lost
		}
	}
	if h.Hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		l.c.DropTruncated++
		return
	}
	peer, known := l.byAddr[from(m.name[:min(h.Hdr.Namelen, udpsock.NameLen)])]
	if !known {
		l.c.DropUnknown += uint64(max(1, (n+size-1)/max(size, 1)))
		return
	}
	for off := 0; ; off += size {
		end := min(off+size, n)
		l.core.Handle(now, peer, m.data[off:end:end], deliver)
		if end == n {
			return
		}
	}
}

// from reads a socket address; one that is no UDP address is that of nobody.
func from(name []byte) (s source) {
	if len(name) < unix.SizeofSockaddrInet4 {
		return s
	}
	s.port = be.Uint16(name[2:])
	switch ne.Uint16(name) {
	case unix.AF_INET:
		s.addr[10], s.addr[11] = 0xff, 0xff
		copy(s.addr[12:], name[4:8])
	case unix.AF_INET6:
		if len(name) < unix.SizeofSockaddrInet6 {
			return source{}
		}
		copy(s.addr[:], name[8:24])
		s.scope = ne.Uint32(name[24:])
	}
	return s
}

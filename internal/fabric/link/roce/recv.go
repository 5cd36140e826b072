// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// inMessage is the memory that one message of recvmmsg fills, and the path
// that its packets share.
type inMessage struct {
	iov  unix.Iovec
	path ib.Path
	name [udpsock.NameLen]byte
	ctrl [ctrlLen + 24]byte
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
	l.joiner = pkt.NewJoiner(recvRuns)
}

// Recv returns received bursts. Consecutive packets of one message form one burst, which ends at a
// packet with AckReq. Bursts, their paths and payload belong to the Link and stay valid until the next
// Recv. more reports that there may be more to receive now; otherwise the caller waits for input. The
// MTU of a burst of one packet is the length of its payload.
func (l *Link) Recv() (runs []pkt.Burst, more bool) {
	l.joiner.Reset()
	// Bounded, so that a flood of refused packets does not hold the lane.
	for range 8 {
		if l.cur == l.got {
			if runs = l.joiner.Bursts(); len(runs) != 0 {
				return runs, true // the buffers are in use
			}
			if !l.read() {
				return nil, false
			}
		}
		for l.cur < l.got {
			if !l.cut() {
				return l.joiner.Bursts(), true
			}
		}
	}
	return l.joiner.Bursts(), true
}

// read fills the receive buffers from the socket that is next in turn, or from the other one if it is
// empty.
func (l *Link) read() bool {
	l.cur, l.got = 0, 0
	for range l.recv {
		r := &l.recv[l.turn]
		l.turn ^= 1
		if r.fd < 0 {
			continue
		}
		for i := range l.in {
			h := &l.in[i].Hdr
			h.Namelen = udpsock.NameLen
			h.SetControllen(len(l.inMsg[i].ctrl))
		}
		n, e := udpsock.Recv(r.fd, l.in[:])
		if n > 0 {
			l.got = n
			l.c.RcvdCalls++
			l.from = r
			l.begin()
			return true
		}
		if e != unix.EAGAIN && e != unix.EINTR {
			l.c.RcvErrors++
		}
	}
	return false
}

// begin advances from l.cur to the next message that can be cut.
func (l *Link) begin() {
	for ; l.cur < l.got; l.cur++ {
		h, m := &l.in[l.cur], &l.inMsg[l.cur]
		l.c.RcvdMessages++
		l.at.parse(m.name[:min(h.Hdr.Namelen, udpsock.NameLen)], m.ctrl[:min(int(h.Hdr.Controllen), len(m.ctrl))])
		if l.at.hasLost {
			l.c.RcvBufOverflow += uint64(l.at.lost - l.from.lost)
			l.from.lost = l.at.lost
		}
		if !l.arrived(int(h.N), int(h.Hdr.Flags)) {
			continue
		}
		m.path = l.at.path
		return
	}
}

// arrived prepares the cutting of a message of n bytes that l.at describes, or counts why not. The packets of a message
// have one source: it is checked once, before a packet is read.
func (l *Link) arrived(n, flags int) bool {
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || !l.at.known:
		l.c.DropTruncated++
		return false
	case !l.allows(&l.at.path.SGID):
		l.stranger = l.at.path.SGID
		l.c.DropSourceNotAllowed += segments(n, l.at.segment)
		return false
	case !l.at.here:
		l.c.DropNotLocal++
		return false
	}
	if l.at.segment <= 0 || l.at.segment >= n {
		l.at.segment = n
	} else {
		l.c.RcvdGRO++
	}
	l.off, l.hint = 0, 0
	l.inSeed = wire.NewSeed(l.at.path.SGID, l.at.path.DGID, l.at.path.SrcPort, l.port)
	return true
}

// segments is the number of packets in a message of n bytes; 0 is the size of a segment where there is only one.
func segments(n, size int) uint64 {
	if size <= 0 {
		return 1
	}
	return uint64(max(1, (n+size-1)/size))
}

// cut adds the packets of the current message to the bursts and advances to the next message. It
// returns false if there is no room for more bursts.
func (l *Link) cut() bool {
	m := &l.inMsg[l.cur]
	n := int(l.in[l.cur].N)
	if !l.packets(m.data[:n], &m.path) {
		return false
	}
	l.cur++
	l.begin()
	return true
}

// packets cuts data from l.off on. A datagram without bytes is one packet too.
func (l *Link) packets(data []byte, path *ib.Path) bool {
	for first := true; l.off < len(data) || first && len(data) == 0; first = false {
		if l.joiner.Full() {
			return false
		}
		end := min(l.off+l.at.segment, len(data))
		l.packet(data[l.off:end:end], path)
		l.off = end
	}
	return true
}

// packet checks one packet and appends it to the newest burst, or as a new burst.
func (l *Link) packet(p []byte, path *ib.Path) {
	r := l.joiner.Slot()
	payload, why := r.Headers.Parse(p)
	if why == wire.OK {
		if !l.genuine(p) {
			why = wire.BadICRC
		}
	} else {
		l.hint++
	}
	if why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	l.c.RcvdPackets++
	l.c.RcvdBytes += uint64(len(p))
	r.Count, r.MTU, r.Path, r.IPv4, r.Fault = 1, uint32(len(payload)), path, l.at.ipv4, false
	r.Data = mem.BytesPayload(payload)
	if l.joiner.Add() {
		l.c.RcvdBursts++
	}
}

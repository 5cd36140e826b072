// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// sendBuffer is the requested socket send buffer: about 60 trains.
const sendBuffer = 4 << 20

// flow is what must be equal for packets to share a message.
type flow struct {
	sgid, dgid ib.GID
	tclass     uint8
	hopLimit   uint8
	index      uint8
}

// message is one message of sendmmsg: a packet, or a train of packets of equal size (the last may be
// shorter) that the kernel cuts.
type message struct {
	flow     flow
	seed     wire.Seed
	off, end int  // in Link.buf
	size     int  // of each packet but the last
	segs     int  // packets
	short    bool // the last is shorter: the train is complete
	zeroID   bool // every ICRC was computed for identification 0
	single   bool // packets are sent one by one …
	next     int  // … from this one
	ctrlLen  int  // without segment size
	name     [udpsock.NameLen]byte
	ctrl     [ctrlLen]byte
}

// sender is a transmit socket with its queue of messages: msg[head:n].
type sender struct {
	fd      int
	port    uint16
	head, n int
	hdr     [sendMessages]udpsock.Message
	iov     [sendMessages]unix.Iovec
	msg     [sendMessages]message
}

// piece is one packet in the transmit buffer.
type piece struct {
	off, size int
	id        uint16 // the IPv4 identification it will bear
}

func newSender(v4 bool, port uint16) (*sender, error) {
	fd, err := udpsock.Open(v4, port, common(v4))
	if err != nil {
		return nil, err
	}
	if err := udpsock.DropAll(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	udpsock.SetSendBuffer(fd, sendBuffer)
	return initSender(fd, port), nil
}

func initSender(fd int, port uint16) *sender {
	s := &sender{fd: fd, port: port}
	for i := range s.hdr {
		h, m := &s.hdr[i].Hdr, &s.msg[i]
		h.Name, h.Control = &m.name[0], &m.ctrl[0]
		h.Iov = &s.iov[i]
		h.SetIovlen(1)
	}
	return s
}

// Send enqueues the packets of a burst; Flush sends them, and so does Send when enough are enqueued.
// The payload is copied before Send returns, by one Gather; SourceFault means that it could not be
// read and that nothing of the burst is sent. Every other obstacle is counted as a drop of its own.
// The path's SGID must be one of the host's addresses. All bursts of one queue pair must have the same
// SrcPort, which selects the socket and so keeps their order. The MTU of the burst is not compared
// with the path's: the kernel refuses an oversized packet, and it is counted.
//
// A Link that is not Blocked has room for a burst; otherwise the burst may be dropped. The time is not
// used.
func (l *Link) Send(_ mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	if l.undo.armed {
		l.rollback()
	}
	s, v4 := l.route(r.Path)
	var lost *uint64
	switch {
	case s == nil:
		lost = &l.c.DropPath
	case !l.allows(&r.Path.DGID):
		lost = &l.c.DropDestinationNotAllowed
	case !valid(r):
		lost = &l.c.DropBurst
	case !l.room(s, r):
		lost = &l.c.DropBlocked
	case !l.lay(s, v4, r, b):
		l.c.DropSourceFault += uint64(r.Count)
		return mem.SourceFault
	default:
		l.seal(r.Count)
		l.c.SentBursts++
		// Invariant: unless the link is blocked, there is room for another burst of any flow when Send
		// returns.
		if !l.blocked && (l.tail >= flushBytes || s.n > sendMessages-runMessages) {
			l.flush()
		}
		return mem.OK
	}
	*lost += uint64(max(1, r.Count))
	return mem.OK
}

// SendCorrupt is Send of a burst of one packet, with one bit inverted after the ICRC was computed, so
// that the peer must refuse it. bit counts from the start of the BTH and wraps at the packet's end; if
// the ICRC does not cover that bit, the next one is inverted. Package fault uses it.
func (l *Link) SendCorrupt(now mono.Time, r *pkt.Burst, b *mem.Batch, bit uint32) mem.Result {
	if r.Count != 1 {
		l.c.DropBurst += uint64(r.Count)
		return mem.OK
	}
	l.flush() // so that Send does not send the packet at once
	before := l.c.SentBursts
	if res := l.Send(now, r, b); res != mem.OK || l.c.SentBursts == before {
		return res
	}
	at := l.pieces[0]
	p := l.buf[at.off : at.off+at.size]
	for {
		bit %= uint32(len(p)) * 8
		p[bit/8] ^= 1 << (bit % 8)
		if _, ok := l.seed.VerifyAnyID(at.id, p); !ok {
			return mem.OK
		}
		p[bit/8] ^= 1 << (bit % 8)
		bit++
	}
}

// route returns the socket for a path, or nil.
func (l *Link) route(p *ib.Path) (s *sender, v4 bool) {
	v4 = p.DGID.IsIPv4()
	if v4 != p.SGID.IsIPv4() || p.SGID.IsZero() || p.DGID.IsZero() {
		return nil, v4
	}
	f := 1
	if v4 {
		f = 0
	}
	if len(l.send[f]) == 0 {
		return nil, v4
	}
	return l.send[f][int(p.SrcPort)%len(l.send[f])], v4
}

func valid(r *pkt.Burst) bool {
	n := r.Data.Len
	if r.Count == 1 {
		return r.Opcode.Info().Valid && n <= 4096
	}
	i := r.Opcode.Info()
	return i.Valid && (i.Send || i.Write || i.ReadResp) && r.Count != 0 && r.Count <= MaxCount && n <= MaxRun &&
		r.MTU <= 4096 && r.MTU&3 == 0 && n > int(r.MTU*(r.Count-1)) && n <= int(r.MTU*r.Count)
}

func (l *Link) room(s *sender, r *pkt.Burst) bool {
	return len(l.buf)-l.tail >= r.Data.Len+int(r.Count)*perPacket && sendMessages-s.n >= runMessages
}

// undo is the state before a burst was laid out.
type undo struct {
	armed     bool
	tail, n   int
	s, open   *sender
	seed      wire.Seed // of the open message's flow
	end, segs int       // of the open message
	short     bool
}

// rollback removes a burst with an incomplete layout.
func (l *Link) rollback() {
	u := &l.undo
	u.armed = false
	l.tail, l.open, l.seed, u.s.n = u.tail, u.open, u.seed, u.n
	if u.open == u.s {
		m := &u.s.msg[u.n-1]
		m.end, m.segs, m.short = u.end, u.segs, u.short
	}
}

// lay writes headers and payload of a burst's packets into the transmit buffer, with room for the
// ICRCs. If the payload cannot be read, it restores the state and returns false. If reading raises a
// memory fault that the lane survives, the next call finds undo armed and restores the state.
func (l *Link) lay(s *sender, v4 bool, r *pkt.Burst, b *mem.Batch) bool {
	l.undo = undo{armed: true, tail: l.tail, n: s.n, s: s, open: l.open, seed: l.seed}
	if l.open == s {
		m := &s.msg[s.n-1]
		l.undo.end, l.undo.segs, l.undo.short = m.end, m.segs, m.short
	}
	left := r.Data.Len
	for k := range r.Count {
		size := left
		if r.Count > 1 {
			size = min(left, int(r.MTU))
		}
		left -= size
		h := r.Headers.Packet(k, r.Count, size)
		p := l.buf[l.tail:]
		hdr := h.Put(p)
		l.dst[k] = p[hdr : hdr+size]
		end := hdr + size + int(h.PadCnt)
		clear(p[hdr+size : end])
		end += wire.ICRCLen
		l.pieces[k] = piece{l.tail, end, l.place(s, r.Path, v4, end)}
		l.tail += end
	}
	if r.Data.Len != 0 && b.Gather(l.dst[:r.Count], &r.Data, 0) != mem.OK {
		l.rollback()
		return false
	}
	l.undo.armed = false
	return true
}

// place adds a packet of size bytes at l.tail to the open message, or to a new
// one, and returns its IPv4 identification.
func (l *Link) place(s *sender, p *ib.Path, v4 bool, size int) uint16 {
	fl := flow{p.SGID, p.DGID, p.TClass, p.HopLimit, p.SGIDIndex}
	var m *message
	if l.open == s {
		m = &s.msg[s.n-1]
		if m.flow == fl && !m.short && size <= m.size && m.segs < maxTrain && m.end-m.off+size <= maxTrainBytes {
			m.short = size < m.size
			m.end += size
			m.segs++
			if m.zeroID {
				return 0
			}
			return uint16(m.segs - 1)
		}
	}
	if m != nil && m.flow == fl {
		// The flow continues: its seed is l.seed.
	} else {
		l.seed = wire.NewSeed(p.SGID, p.DGID, s.port, l.peer)
	}
	m = &s.msg[s.n]
	var ifindex uint32
	if linkLocal(p.DGID) || linkLocal(p.SGID) || p.DGID.IsMulticast() {
		ifindex = l.ifindex(p.SGIDIndex, p.SGID)
	}
	n, c := putDest(m.name[:], m.ctrl[:], p, v4, l.peer, ifindex)
	s.hdr[s.n].Hdr.Namelen = uint32(n)
	m.ctrlLen = c
	m.flow, m.seed = fl, l.seed
	m.off, m.end, m.size, m.segs = l.tail, l.tail+size, size, 1
	m.short, m.zeroID, m.single, m.next = false, l.noGSO, false, 0
	s.n++
	l.open = s
	return 0
}

// linkLocal reports whether g is an IPv6 address of one link, which the interface must name.
func linkLocal(g ib.GID) bool {
	a := g.Addr()
	return a.Is6() && a.IsLinkLocalUnicast()
}

// seal writes the ICRCs of the packets that lay has just written.
func (l *Link) seal(n uint32) {
	for _, p := range l.pieces[:n] {
		b := l.buf[p.off : p.off+p.size]
		body := b[:len(b)-wire.ICRCLen]
		wire.PutICRC(b[len(body):], l.seed.Sum(p.id, body))
	}
}

// Blocked reports whether the network did not take everything at the last
// Flush: the caller should produce nothing for this link until a descriptor
// of FDs is writable and Flush has been called again.
func (l *Link) Blocked() bool { return l.blocked }

// Flush sends everything that is enqueued, as far as the sockets accept it.
func (l *Link) Flush(mono.Time) { l.flush() }

func (l *Link) flush() {
	if l.undo.armed {
		l.rollback()
	}
	l.open, l.blocked = nil, false
	for f := range l.send {
		for _, s := range l.send[f] {
			if s.n != 0 && !l.drain(s) {
				l.blocked = true
			}
		}
	}
	if !l.blocked {
		l.tail = 0
	}
}

// drain sends the queue of s and reports whether it is empty now.
func (l *Link) drain(s *sender) bool {
	for s.head < s.n {
		end := l.prepare(s)
		if end == s.head {
			if !l.sendSingles(s, s.head) {
				l.c.SendBlocked++
				return false
			}
			s.head++
			continue
		}
		n, e := udpsock.Send(s.fd, s.hdr[s.head:end])
		switch e {
		case 0:
			l.c.SentCalls++
			for range n {
				l.sent(&s.msg[s.head])
				s.head++
			}
		case unix.EINTR:
		case unix.EAGAIN:
			l.c.SendBlocked++
			return false
		default:
			if !l.refused(&s.msg[s.head], e) {
				s.head++
			}
		}
	}
	s.head, s.n = 0, 0
	return true
}

// prepare fills the system call's headers of the messages that can go in one
// call and returns the end of them; s.head if the next must go in singles.
func (l *Link) prepare(s *sender) (end int) {
	for end = s.head; end < s.n; end++ {
		m := &s.msg[end]
		if m.single = m.single || l.noGSO && m.segs > 1; m.single {
			return end
		}
		c := m.ctrlLen
		if m.segs > 1 {
			c = udpsock.PutSegment(m.ctrl[:], c, m.size)
		}
		s.hdr[end].Hdr.SetControllen(c)
		s.iov[end].Base = &l.buf[m.off]
		s.iov[end].SetLen(m.end - m.off)
	}
	return end
}

func (l *Link) sent(m *message) {
	l.c.SentMessages++
	l.c.SentPackets += uint64(m.segs)
	l.c.SentBytes += uint64(m.end - m.off)
	if m.segs > 1 {
		l.c.SentGSO++
	}
}

// refused deals with an error of a message and reports whether it is to be
// tried again, in singles.
func (l *Link) refused(m *message, e unix.Errno) (again bool) {
	if m.segs > 1 && (e == unix.EIO || e == unix.EINVAL) {
		// EIO: the interface cannot compute checksums, which older kernels need for trains. EINVAL:
		// packets larger than the MTU, for a train on older kernels; or an address that was removed:
		// the error of a single packet distinguishes them.
		l.noGSO = l.noGSO || e == unix.EIO
		m.single = true
		return true
	}
	l.lost(m, e, m.segs)
	return false
}

func (l *Link) lost(m *message, e unix.Errno, n int) {
	l.c.SendErrors.Count(e, uint64(n))
	if e == unix.EMSGSIZE {
		l.tooBig.to, l.tooBig.n = m.flow.dgid, m.size
	}
}

// sendSingles sends the packets of message i one by one and reports whether all were sent. A single
// packet has identification 0.
func (l *Link) sendSingles(s *sender, i int) bool {
	m := &s.msg[i]
	l.zeroIDs(m)
	for m.next < m.segs {
		off := m.off + m.next*m.size
		p := l.buf[off:min(off+m.size, m.end)]
		s.iov[i].Base = &p[0]
		s.iov[i].SetLen(len(p))
		s.hdr[i].Hdr.SetControllen(m.ctrlLen)
		for {
			_, e := udpsock.Send(s.fd, s.hdr[i:i+1])
			if e == unix.EINTR {
				continue
			}
			if e == unix.EAGAIN {
				return false
			}
			if e != 0 {
				l.lost(m, e, 1)
				break
			}
			l.c.SentCalls++
			l.c.SentMessages++
			l.c.SentPackets++
			l.c.SentBytes += uint64(len(p))
			break
		}
		m.next++
	}
	return true
}

// zeroIDs makes every ICRC of a message that of a packet sent by itself. It
// changes them by the difference, so that a packet that was corrupted on
// purpose stays so.
func (l *Link) zeroIDs(m *message) {
	if m.zeroID {
		return
	}
	m.zeroID = true
	for k := 1; k < m.segs; k++ {
		off := m.off + k*m.size
		p := l.buf[off:min(off+m.size, m.end)]
		body := p[:len(p)-wire.ICRCLen]
		wire.PutICRC(p[len(body):], wire.ICRC(p)^m.seed.Sum(uint16(k), body)^m.seed.Sum(0, body))
	}
}

// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// defaultHopLimit is that of a path which states none.
const defaultHopLimit = 64

// Send enqueues frames of a burst's packets, to be read. The payload is copied before Send returns, by
// one Gather; SourceFault means that it could not be read and that nothing of the burst is sent. Every
// other obstacle is counted as a drop of its own. The path's SGID must be one of the port's addresses.
// The MTU of the burst is not compared with the segment's: the reader of the frames does that.
func (l *Link) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	return l.sendWith(now, r, b, intact)
}

// intact is the bit to be inverted where none is.
const intact = -1

func (l *Link) sendWith(now mono.Time, r *pkt.Burst, b *mem.Batch, bit int64) mem.Result {
	p := r.Path
	var lost *uint64
	var to target
	switch {
	case p.DGID.IsIPv4() != p.SGID.IsIPv4() || p.DGID.IsZero() || !l.own(p.SGID):
		lost = &l.c.DropPath
	case !valid(r):
		lost = &l.c.DropBurst
	case !l.room(now, r):
		lost = &l.c.DropBlocked
	default:
		to, lost = l.find(now, p)
	}
	if lost != nil {
		*lost += uint64(max(1, r.Count))
		return mem.OK
	}
	if l.cfg.Deliver != nil && bit == intact && to.wait == nil && !to.own && to.mac[0]&1 == 0 {
		if res, done := l.deliver(now, r, b, to.mac); done {
			return res
		}
	}
	return l.send(now, r, b, to, bit)
}

// deliver passes a burst on without frames, if that is possible. Frames that wait are sent before.
func (l *Link) deliver(now mono.Time, r *pkt.Burst, b *mem.Batch, mac [6]byte) (res mem.Result, done bool) {
	if l.Flush(now); l.Pending() {
		return mem.OK, false
	}
	f := &l.flight
	f.Header, f.MAC = l.header(l.head1[:], r.Path, mac, 0, l.id), mac
	size := func(k uint32, n int) int {
		h := r.Headers.Packet(k, r.Count, n)
		return len(f.Header) + int(h.Opcode.Info().HdrLen) + n + int(h.PadCnt) + wire.ICRCLen
	}
	if r.Count == 1 {
		f.First = size(0, r.Data.Len)
	} else {
		f.First, f.Last = size(0, int(r.MTU)), size(r.Count-1, r.Data.Len-int(r.MTU*(r.Count-1)))
		f.Middle = f.Last
		if r.Count > 2 {
			f.Middle = size(1, int(r.MTU))
		}
	}
	if res, done = l.cfg.Deliver(now, f, r, b); done && res == mem.OK {
		l.id += uint16(r.Count)
		l.c.SentBursts++
		l.c.SentPackets += uint64(r.Count)
		l.c.SentDirect += uint64(r.Count)
	} else if res != mem.OK {
		l.c.DropSourceFault += uint64(r.Count)
	}
	return res, done
}

// target is where frames go.
type target struct {
	mac  [6]byte
	own  bool       // back to this port
	wait *neighbour // or the frames are held until its MAC is resolved
}

// send lays out the frames of a burst and enqueues them. It changes nothing before the layout is
// complete: reading memory may raise a fault that the lane survives.
func (l *Link) send(now mono.Time, r *pkt.Burst, b *mem.Batch, to target, bit int64) mem.Result {
	if l.head == len(l.frames) {
		l.frames, l.head, l.tail = l.frames[:0], 0, 0
	}
	first := len(l.frames)
	train := maxTrain
	if to.own {
		train = 1
	}
	frames, tail, id := l.lay(r, train)
	if r.Data.Len != 0 && b.Gather(l.dst[:r.Count], &r.Data, 0) != mem.OK {
		l.c.DropSourceFault += uint64(r.Count)
		return mem.SourceFault
	}
	seed := wire.NewSeed(r.Path.SGID, r.Path.DGID, r.Path.SrcPort, wire.UDPPort)
	for _, p := range l.pieces[:r.Count] {
		body := l.buf[p.off : p.off+p.size-wire.ICRCLen]
		wire.PutICRC(l.buf[p.off+len(body):], seed.Sum(p.id, body))
	}
	if bit != intact {
		l.corrupt(&seed, &l.pieces[0], uint32(bit))
	}
	for i := range frames[first:] {
		l.finish(&frames[first+i], r.Path, to.mac)
	}
	l.c.SentBursts++
	l.id = id
	switch {
	case to.own:
		for _, f := range frames[first:] {
			l.Receive(l.buf[f.off:f.end], &f.o)
		}
	case to.wait != nil:
		for i := range frames[first:] {
			l.hold(to.wait, &frames[first+i])
		}
	default:
		l.frames, l.tail = frames, tail
		if l.tail >= pushBytes {
			l.cfg.Push(now)
		}
	}
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
	return l.sendWith(now, r, b, int64(bit))
}

// corrupt inverts the first bit of a packet, from bit on, that the ICRC covers.
func (l *Link) corrupt(seed *wire.Seed, at *piece, bit uint32) {
	p := l.buf[at.off : at.off+at.size]
	for {
		bit %= uint32(len(p)) * 8
		p[bit/8] ^= 1 << (bit % 8)
		if !seed.Verify(at.id, p) {
			return
		}
		p[bit/8] ^= 1 << (bit % 8)
		bit++
	}
}

func valid(r *pkt.Burst) bool {
	n, i := r.Data.Len, r.Opcode.Info()
	if r.Count == 1 {
		return i.Valid && n <= 4096
	}
	return i.Valid && (i.Send || i.Write || i.ReadResp) && r.Count != 0 && r.Count <= MaxCount && n <= MaxRun &&
		r.MTU <= 4096 && r.MTU&3 == 0 && n > int(r.MTU*(r.Count-1)) && n <= int(r.MTU*r.Count)
}

// room frees space for a burst if there is none; false if that is not possible.
func (l *Link) room(now mono.Time, r *pkt.Burst) bool {
	if l.buf == nil {
		l.buf, l.frames = make([]byte, sendBytes), make([]frame, 0, sendFrames)
	}
	need := r.Data.Len + int(r.Count)*(perPacket+maxHeader)
	fits := func() bool {
		return l.head == len(l.frames) || len(l.buf)-l.tail >= need && cap(l.frames)-len(l.frames) >= min(runFrames,
			int(r.Count))
	}
	if fits() {
		return true
	}
	l.cfg.Push(now)
	return fits()
}

// lay writes transport headers of a burst's packets behind tail, finds the places of payload and
// ICRCs, and puts packets that may travel as one frame side by side. It returns the frames, including
// the earlier ones, the new tail and the next identification.
func (l *Link) lay(r *pkt.Burst, train int) (frames []frame, tail int, id uint16) {
	frames, tail, id = l.frames, l.tail, l.id
	head := ether.HeaderLen + wire.MaxIPUDPLen
	if r.Path.DGID.IsIPv4() {
		head = ether.HeaderLen + 28
	}
	var open *frame
	size, short := 0, false // of the open frame's packets; the last one is shorter
	left := r.Data.Len
	for k := range r.Count {
		n := left
		if r.Count > 1 {
			n = min(left, int(r.MTU))
		}
		left -= n
		h := r.Headers.Packet(k, r.Count, n)
		whole := int(h.Opcode.Info().HdrLen) + n + int(h.PadCnt) + wire.ICRCLen
		if open == nil || short || whole > size || open.packets == train || tail+whole-open.off > maxTrainBytes {
			frames = append(frames, frame{off: tail, id: id})
			open = &frames[len(frames)-1]
			tail += head
			size, short = whole, false
		}
		short = whole < size
		p := l.buf[tail : tail+whole]
		at := h.Put(p)
		l.dst[k] = p[at : at+n]
		clear(p[at+n : whole-wire.ICRCLen])
		l.pieces[k] = piece{tail, whole, id}
		id++
		tail += whole
		open.packets++
		open.end = tail
		open.o = offload(head, size, open.packets)
	}
	return frames, tail, id
}

// offload returns the remaining work on a frame of n packets of equal size: the UDP checksum, and the
// cut.
func offload(head, size, n int) ether.Offload {
	const udp = 8
	o := ether.Offload{Flags: ether.NeedsCsum, CsumStart: uint16(head - udp), CsumOffset: 6}
	if n > 1 {
		o.GSO, o.GSOSize, o.HdrLen = ether.GSOUDP, uint16(size), uint16(head)
	}
	return o
}

// finish writes the headers of a frame in front of its packets.
func (l *Link) finish(f *frame, p *ib.Path, to [6]byte) {
	b := l.buf[f.off:f.end]
	h := headerOf(p)
	l.header(b, p, to, len(b)-ether.HeaderLen-h.Len(), f.id)
}

// headerOf returns the IP and UDP headers of packets on a path.
func headerOf(p *ib.Path) wire.IPUDP {
	h := wire.IPUDP{Src: p.SGID, Dst: p.DGID, IPv4: p.DGID.IsIPv4(), TClass: p.TClass, HopLimit: p.HopLimit, DF: true,
		FlowLabel: p.FlowLabel,
		SrcPort:   p.SrcPort, DstPort: wire.UDPPort}
	if h.HopLimit == 0 {
		h.HopLimit = defaultHopLimit
	}
	return h
}

// header writes the headers of a frame with n octets of UDP payload to the start of b, and returns them.
func (l *Link) header(b []byte, p *ib.Path, to [6]byte, n int, id uint16) []byte {
	copy(b, to[:])
	copy(b[6:], l.mac[:])
	h := headerOf(p)
	be.PutUint16(b[12:], ether.TypeIPv6)
	if h.IPv4 {
		be.PutUint16(b[12:], ether.TypeIPv4)
		h.ID = id
	}
	h.Checksum = pseudo(h.IPv4, &p.SGID, &p.DGID, n+8)
	h.Put(b[ether.HeaderLen:], n)
	return b[:ether.HeaderLen+h.Len()]
}

// pseudo is the sum of the pseudo header of n octets of UDP (RFC 768, RFC 8200 §8.1).
func pseudo(v4 bool, src, dst *ib.GID, n int) uint16 {
	s := uint32(17 + n)
	from := 0
	if v4 {
		from = 12
	}
	for i := from; i < 16; i += 2 {
		s += uint32(be.Uint16(src[i:])) + uint32(be.Uint16(dst[i:]))
	}
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}

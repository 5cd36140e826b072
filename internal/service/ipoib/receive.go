// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/neigh"
	"weft/internal/service/ipoib/stats"
)

// pollBatch is how many completions are fetched at a time.
const pollBatch = 64

// receiver receives datagrams and messages: it owns the receive slots and the batch of packets for the IP stack.
type receiver struct {
	queue  RecvQueue
	device PacketReceiver
	attr   *attributes
	stats  *stats.Recorder
	engine *neigh.Engine
	shadow *shadow
	gen    *uint32 // the sender's, of posted work

	mem     []byte
	slots   []bool   // whether one is posted
	wrs     []RecvWR // to post
	posted  int
	packets [][]byte // to be delivered, of receive slots that are not posted; room for pollBatch
	one     [1][]byte
}

// setMemory makes n receive slots in mem.
func (r *receiver) setMemory(mem []byte, n int) {
	r.mem = mem
	r.slots = make([]bool, n)
	r.wrs = make([]RecvWR, 0, n)
}

// postAll posts the receive slots that are not posted.
func (r *receiver) postAll() {
	for i := range r.slots {
		r.repost(uint32(i))
	}
	r.flush()
}

// repost adds a receive slot to the batch of work requests, unless it is posted.
func (r *receiver) repost(i uint32) {
	if r.slots[i] {
		return
	}
	r.slots[i] = true
	r.posted++
	r.wrs = append(r.wrs, RecvWR{ID: uint64(*r.gen)<<idGenShift | idRecv | uint64(i), Off: i * recvSlotLen,
		Len: uint32(r.bufferLen())})
}

// bufferLen is the length of a receive buffer in octets: a GRH and the group's MTU.
func (r *receiver) bufferLen() int {
	if m := r.attr.broadcast.MTU; m.Valid() {
		return grhLen + m.Bytes()
	}
	return recvSlotLen
}

// flush posts the batch of work requests.
func (r *receiver) flush() {
	if len(r.wrs) == 0 {
		return
	}
	if invariants {
		for _, wr := range r.wrs {
			spoil(r.mem[wr.Off:][:recvSlotLen])
		}
	}
	for _, wr := range r.wrs[r.queue.PostRecv(r.wrs):] {
		r.slots[wr.ID&idSlot] = false
		r.posted--
	}
	r.wrs = r.wrs[:0]
}

// reclaim takes all receive slots back without waiting for their completions.
func (r *receiver) reclaim() {
	clear(r.slots)
	r.posted = 0
}

// completed handles the completion of a receive. Its slot is posted again by the flush that follows the delivery; while
// the link ends it is not.
func (r *receiver) completed(now mono.Time, wc *WC, ending bool) {
	i := uint32(wc.ID & idSlot)
	if int(i) >= len(r.slots) || !r.slots[i] {
		return
	}
	r.slots[i] = false
	r.posted--
	if ending {
		return
	}
	switch wc.Status {
	case ib.Success:
		r.datagram(now, wc, r.mem[i*recvSlotLen:][:recvSlotLen], r.queue.Arrived(i*recvSlotLen))
	case ib.WRFlushErr: // the queue pair is being reset
		return
	default:
		r.stats.Net.RxFIFOErrors++
		r.stats.RxError(stats.DropRxStatus)
	}
	r.repost(i)
}

// The GIDs of the GRH with which a receive slot begins, if there is one.
func sgid(b []byte) ib.GID { return ib.GID(b[8:24]) }
func dgid(b []byte) ib.GID { return ib.GID(b[24:40]) }

// kindOf returns how the datagram in b was addressed.
func (r *receiver) kindOf(wc *WC, b []byte) neigh.Kind {
	switch {
	case !wc.GRH || b[24] != 0xff:
		return neigh.Host
	case dgid(b) == r.attr.broadcastGID:
		return neigh.Broadcast
	}
	return neigh.Multicast
}

// isEcho reports whether a datagram is one of the link's own, which the fabric returned from the group that it went to.
func (r *receiver) isEcho(wc *WC, b []byte) bool {
	p := &r.attr.port
	return wc.SrcQPN == r.attr.qpn && p.LID.Owns(p.LMC, wc.SLID) && (!wc.GRH || sgid(b).GUID() == p.GID.GUID())
}

// datagram validates the datagram in slot b, of which ByteLen octets count, and delivers it to the IP stack or to the
// engine. Where elsewhere is not nil the datagram lies there, and b has the GRH only.
func (r *receiver) datagram(now mono.Time, wc *WC, b, elsewhere []byte) {
	if wc.ByteLen < Headroom || int(wc.ByteLen) > len(b) || elsewhere != nil &&
		len(elsewhere) != int(wc.ByteLen)-grhLen {
		r.stats.Net.RxLengthErrors++
		r.stats.RxError(stats.DropShort)
		return
	}
	if !r.attr.carrier {
		r.stats.RxDrop(stats.DropLinkDown)
		return
	}
	b = b[:wc.ByteLen]
	kind := r.kindOf(wc, b)
	if r.isEcho(wc, b) {
		r.stats.Drop(stats.DropOwnEcho)
		return
	}
	datagram := b[grhLen:]
	if elsewhere != nil {
		datagram = elsewhere
	}
	t, p, ok := r.parse(datagram)
	if !ok {
		return
	}
	var src wire.HWAddr // unknown without a GRH
	if wc.GRH {
		src = wire.MakeHWAddr(0, wc.SrcQPN, sgid(b))
	}
	n := &r.stats.Net
	n.RxPackets++
	n.RxBytes += uint64(wc.ByteLen) - grhLen
	if kind == neigh.Multicast {
		n.Multicast++
	}
	switch t {
	case wire.EtherARP:
		r.stats.Driver.ARPRx++
	case wire.EtherIPv6:
		if !isND(p) {
			r.add(p)
			return
		}
		r.stats.Driver.NDRx++
	case wire.EtherIPv4:
		r.add(p)
		return
	}
	copy(b[grhLen:], datagram) // the engine needs it in one piece
	r.shadow.requester = wc.SLID
	if wc.GRH {
		r.shadow.checkSource(now, src, wc.SLID)
	}
	wire.PutHardHeader(b, &wire.HWAddr{}, &src, t)
	f := r.engine.Input(now, kind, b)
	r.shadow.requester = 0
	if f != nil {
		r.add(f[Headroom:])
	}
}

// message validates a message of a connection, which lies in b behind room for a GRH, and delivers it likewise. Only
// IPv4 and IPv6 go by connections.
func (r *receiver) message(now mono.Time, from *connected.Peer, b []byte) {
	if !r.attr.carrier {
		r.stats.RxDrop(stats.DropLinkDown)
		return
	}
	t, p, ok := r.parse(b[grhLen:])
	if !ok {
		return
	}
	n := &r.stats.Net
	if t != wire.EtherIPv4 && t != wire.EtherIPv6 {
		n.RxNoHandler++
		r.stats.RxDrop(stats.DropUnknownEtherType)
		return
	}
	n.RxPackets++
	n.RxBytes += uint64(len(b) - grhLen)
	r.stats.Driver.ConnRx++
	if t == wire.EtherIPv4 || !isND(p) {
		r.add(p)
		return
	}
	// Some peers send Neighbor Discovery by the connection that they have with the neighbour.
	r.stats.Driver.NDRx++
	r.shadow.requester = from.LID
	wire.PutHardHeader(b, &wire.HWAddr{}, &from.HW, t)
	f := r.engine.Input(now, neigh.Host, b)
	r.shadow.requester = 0
	if f != nil {
		r.add(f[Headroom:])
	}
}

// parse splits a frame into EtherType and packet; it counts a malformed one.
func (r *receiver) parse(b []byte) (t wire.EtherType, p []byte, ok bool) {
	t, p, why := wire.ParseFrame(b)
	switch why {
	case wire.FrameOK:
		return t, p, true
	case wire.FrameEtherType:
		r.stats.Net.RxNoHandler++
		r.stats.RxDrop(stats.DropUnknownEtherType)
	case wire.FrameVersion:
		r.stats.Net.RxFrameErrors++
		r.stats.RxError(stats.DropVersion)
	default:
		r.stats.Net.RxLengthErrors++
		r.stats.RxError(stats.DropShort)
	}
	return t, nil, false
}

// isND reports whether an IPv6 packet is of Neighbor Discovery.
func isND(p []byte) bool {
	off, ok := wire.ICMPv6(p)
	return ok && wire.IsND(p[off])
}

// add adds a packet to the batch for the IP stack.
func (r *receiver) add(p []byte) {
	r.packets = append(r.packets, p[:len(p):len(p)])
}

// deliver delivers the batch to the IP stack.
func (r *receiver) deliver() {
	if len(r.packets) == 0 {
		return
	}
	if r.attr.registered {
		r.countMissed(r.device.Deliver(r.packets))
	} else {
		r.countMissed(len(r.packets))
	}
	r.packets = r.packets[:0]
}

// deliverOne delivers one packet to the IP stack at once.
func (r *receiver) deliverOne(f []byte) {
	if !r.attr.registered {
		return
	}
	r.one[0] = f[Headroom:]
	r.countMissed(r.device.Deliver(r.one[:]))
	r.one[0] = nil
}

// countMissed counts packets for which the IP stack had no room.
func (r *receiver) countMissed(n int) {
	r.stats.Net.RxMissedErrors += uint64(n)
	for range n {
		r.stats.RxDrop(stats.DropStackFull)
	}
}

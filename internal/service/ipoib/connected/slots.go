// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// Identifiers of work requests: the sequence number of a send slot's use, a mark, the slot. The lower
// half of the mark distinguishes work of connections from datagrams in the completion queue that both
// share.
const (
	// IDConn marks work requests of connections, IDRecv those of receives.
	IDConn = 1 << 30
	IDRecv = 1 << 31

	idSlot     = IDConn - 1
	idSeqShift = 32
	seqMask    = 1<<31 - 1
)

// batchLen is how many messages are posted at a time, at most.
const batchLen = 64

// sendSlot is a send slot, free or posted.
type sendSlot struct {
	c      *conn  // nil: free
	seq    uint32 // distinguishes its uses
	len    uint32
	mapped bool
	trial  bool // its peer had acknowledged nothing lately
	ref    uint64
}

// slots are the send and receive slots of all connections, and the work requests to be posted.
type slots struct {
	ports     Ports
	stats     *stats.Recorder
	copybreak int // longer frames are mapped, where possible, instead of copied; octets

	tx, rx    []byte
	sends     []sendSlot
	free      []uint32 // send slots, as a stack
	trials    int      // posted send slots of peers that had acknowledged nothing lately
	recvs     []bool   // whether a receive slot is posted
	posted    int      // receive slots
	recvBatch []RecvSlot
	batch     []Message // all of batchConn
	batchConn *conn
}

// open makes slots in memory, and posts the receive slots.
func (s *slots) open(tx, rx []byte) {
	s.tx, s.rx = tx, rx
	s.sends = make([]sendSlot, TxSlots)
	s.free = make([]uint32, 0, TxSlots)
	for i := TxSlots - 1; i >= 0; i-- {
		s.free = append(s.free, uint32(i))
	}
	s.batch = make([]Message, 0, TxSlots)
	s.recvs = make([]bool, RxSlots)
	s.recvBatch = make([]RecvSlot, 0, RxSlots)
	for i := range s.recvs {
		s.repost(uint32(i))
	}
	s.postReceives()
}

// close forgets all slots: their memory is gone.
func (s *slots) close() { *s = slots{ports: s.ports, stats: s.stats, copybreak: s.copybreak} }

// repost adds a receive slot to the batch that postReceives posts.
func (s *slots) repost(i uint32) {
	s.recvs[i] = true
	s.posted++
	s.recvBatch = append(s.recvBatch, RecvSlot{ID: IDRecv | IDConn | uint64(i), Off: i*SlotLen + grhLen, Len: RecvMTU})
}

// postReceives posts the receive slots of delivered messages.
func (s *slots) postReceives() {
	if len(s.recvBatch) == 0 {
		return
	}
	for _, wr := range s.recvBatch[s.ports.Shared.PostConnRecv(s.recvBatch):] {
		s.recvs[wr.ID&idSlot] = false
		s.posted--
	}
	s.recvBatch = s.recvBatch[:0]
}

// send adds a frame to the batch of its connection. trial: the peer has acknowledged nothing lately. Precondition: a
// send slot is free.
func (s *slots) send(c *conn, frame []byte, trial bool) {
	if s.batchConn != c || len(s.batch) == batchLen {
		s.flush()
		s.batchConn = c
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	slot := &s.sends[i]
	*slot = sendSlot{c: c, seq: slot.seq, len: uint32(len(frame) - headroom + wire.EncapLen), trial: trial}
	m := Message{ID: uint64(slot.seq)<<idSeqShift | IDConn | uint64(i), Len: slot.len}
	s.load(slot, &m, frame, i)
	if trial {
		s.trials++
	}
	c.inFlight++
	s.batch = append(s.batch, m)
}

// load has a message send a frame: from where that lies, if it is long and can be mapped, else from its slot.
func (s *slots) load(slot *sendSlot, m *Message, frame []byte, i uint32) {
	payload := frame[headroom-wire.EncapLen:]
	if len(payload) > s.copybreak {
		if slot.ref, slot.mapped = s.ports.Frames.Map(frame); slot.mapped {
			m.Mapped, m.Ref, m.Off = true, slot.ref, headroom-wire.EncapLen
			s.stats.Driver.TxMapped++
			return
		}
	}
	m.Off = i * SlotLen
	copy(s.tx[m.Off:][:SlotLen], payload)
	s.stats.Driver.TxCopied++
}

// flush posts the batch of messages.
func (s *slots) flush() {
	if len(s.batch) == 0 {
		return
	}
	for _, m := range s.batch[s.ports.QPs.PostConn(s.batchConn.id, s.batch):] {
		s.stats.Net.TxFIFOErrors++
		s.stats.TxError(stats.DropNoSlot)
		s.release(uint32(m.ID & idSlot))
	}
	s.batch, s.batchConn = s.batch[:0], nil
}

// release returns a send slot to the pool.
func (s *slots) release(i uint32) {
	slot := &s.sends[i]
	if slot.mapped {
		s.ports.Frames.Unmap(slot.ref)
	}
	if slot.trial {
		s.trials--
	}
	slot.c.inFlight--
	*slot = sendSlot{seq: (slot.seq + 1) & seqMask}
	s.free = append(s.free, i)
}

// reclaim releases the send slots of a connection without waiting for their completions.
func (s *slots) reclaim(c *conn) {
	for i := range s.sends {
		if s.sends[i].c == c {
			s.stats.Net.TxAbortedErrors++
			s.stats.TxError(stats.DropTxFlushed)
			s.release(uint32(i))
		}
	}
}

// sent returns the posted message of a completion; nil where there is none.
func (s *slots) sent(id uint64) *sendSlot {
	i := uint32(id & idSlot)
	if int(i) >= len(s.sends) || s.sends[i].c == nil || s.sends[i].seq != uint32(id>>idSeqShift) {
		return nil
	}
	return &s.sends[i]
}

// received returns the receive slot of a completion, which is not posted any more; false where there is none.
func (s *slots) received(id uint64) (i uint32, ok bool) {
	i = uint32(id & idSlot)
	if int(i) >= len(s.recvs) || !s.recvs[i] {
		return i, false
	}
	s.recvs[i] = false
	s.posted--
	return i, true
}

// message returns the message in a receive slot, behind room for a GRH.
func (s *slots) message(i, octets uint32) []byte { return s.rx[i*SlotLen:][:grhLen+int(octets)] }

// post sends a frame by a connection. Precondition: mayPost.
func (s *Conns) post(now mono.Time, c *conn, frame []byte) {
	if c.inFlight == 0 {
		c.progress = now
	}
	c.used = now
	s.slots.send(c, frame, !c.acknowledges(now))
	if s.watchAt == 0 {
		s.watchAt = now.Add(watchEvery)
	}
}

// Flush posts the messages that Send has put together.
func (s *Conns) Flush() { s.slots.flush() }

// PostReceives posts the receive slots of delivered messages.
func (s *Conns) PostReceives() { s.slots.postReceives() }

// Sent handles the completion of a message. A completion that fits no posted message is ignored.
func (s *Conns) Sent(now mono.Time, id uint64, status ib.Status) {
	slot := s.slots.sent(id)
	if slot == nil {
		return
	}
	c := slot.c
	c.progress = now
	switch status {
	case ib.Success:
		c.proven = now
		s.stats.Net.TxPackets++
		s.stats.Net.TxBytes += uint64(slot.len)
		s.stats.Driver.ConnTx++
		s.touch(now, c)
	case ib.WRFlushErr:
		s.stats.Net.TxAbortedErrors++
		s.stats.TxError(stats.DropTxFlushed)
	default:
		s.stats.TxError(stats.DropTxStatus)
	}
	s.slots.release(uint32(id & idSlot))
	if status != ib.Success {
		s.broken(now, c, status.String())
	}
}

// Received handles the completion of a receive on queue pair qpn. It returns the message, behind room for a GRH, and
// from where it came, both valid until PostReceives; nil where there is no message to deliver. ending: the link ends,
// and the slot is not posted again.
func (s *Conns) Received(now mono.Time, id uint64, qpn ib.QPN, status ib.Status, octets uint32, ending bool,
) (b []byte, from *Peer) {
	i, ok := s.slots.received(id)
	if !ok || ending {
		return nil, nil
	}
	c := s.byQPN[qpn]
	switch {
	case c == nil || c.state == closing:
	case status != ib.Success:
		if status != ib.WRFlushErr {
			s.stats.Net.RxFIFOErrors++
			s.stats.RxError(stats.DropRxStatus)
		}
		s.broken(now, c, status.String())
	default:
		c.used = now
		if c.state == accepting {
			s.ports.Handshake.EstablishConn(c.id)
			s.opens(now, c)
		}
		if octets > RecvMTU {
			s.stats.Net.RxLengthErrors++
			s.stats.RxError(stats.DropShort)
			break
		}
		b, from = s.slots.message(i, octets), &c.Peer
	}
	s.slots.repost(i)
	return b, from
}

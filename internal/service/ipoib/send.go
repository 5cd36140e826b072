// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
	"weft/internal/service/ipoib/stats"
)

// maxBacklog bounds the frames that wait for a send slot.
const maxBacklog = 4096

// slotLen is the length of a send slot, in octets: encapsulation header and packet of the largest MTU. A receive slot
// has room for a GRH, too.
const (
	slotLen     = 4096
	grhLen      = 40
	recvSlotLen = grhLen + slotLen
)

// Identifiers of work requests: generation, kind, slot. Package connected has identifiers with IDConn.
const (
	idRecv     = connected.IDRecv
	idSlot     = connected.IDConn - 1
	idGenShift = 32
)

// dest is the destination of a datagram.
type dest struct {
	ah    *address
	qpn   ib.QPN
	entry *entry // its use is noted; nil for groups
}

// sendSlot is a send slot, free or posted.
type sendSlot struct {
	to     dest
	len    uint32
	mapped bool
	ref    uint64
	posted bool
}

// waitingFrame is a frame that waits for a send slot.
type waitingFrame struct {
	frame []byte
	to    dest
}

// sender sends datagrams: it owns the send slots, the batch of work requests that is put together, and the frames for
// which there is no slot.
type sender struct {
	p       *Params
	queue   SendQueue
	frames  connected.Mapper
	attr    *attributes
	vectors *vectorSet
	budget  *frameBudget
	stats   *stats.Recorder

	mem      []byte
	slots    []sendSlot
	free     []uint32 // slots, as a stack
	wrs      []SendWR // to post
	gen      uint32   // of posted work: a reset of the queue pair begins another
	backlog  []waitingFrame
	head     int // of the backlog
	inFlight int // posted work requests
	refused  bool
	broken   bool      // the queue pair is being reset, or could not be: frames wait
	progress mono.Time // when a send completed last, or the first was posted
	busy     bool      // sends were posted at the last flush
}

// setMemory makes n send slots in mem.
func (s *sender) setMemory(mem []byte, n int) {
	s.mem = mem
	s.slots = make([]sendSlot, n)
	s.free = make([]uint32, 0, n)
	for i := n - 1; i >= 0; i-- {
		s.free = append(s.free, uint32(i))
	}
	s.wrs = make([]SendWR, 0, n)
}

// full reports whether packets of the IP stack must wait: the send queue is full, or frames wait for slots.
func (s *sender) full() bool { return len(s.free) <= 1 || s.head < len(s.backlog) }

// ready reports whether packets are accepted again after full: half of the slots are free.
func (s *sender) ready() bool {
	return !s.broken && s.head == len(s.backlog) && 2*len(s.free) >= len(s.slots)
}

// send posts a datagram, or keeps a copy until there is a slot.
func (s *sender) send(frame []byte, to dest) {
	if s.broken || s.head < len(s.backlog) || len(s.free) == 0 {
		if len(s.backlog)-s.head >= maxBacklog || !s.budget.Reserve(len(frame)) {
			s.stats.Net.TxFIFOErrors++
			s.stats.TxError(stats.DropNoSlot)
			return
		}
		to.ah.refs++
		s.backlog = append(s.backlog, waitingFrame{append([]byte(nil), frame...), to})
		return
	}
	s.post(frame, to)
}

// post adds a datagram to the batch of work requests. Precondition: a slot is free.
func (s *sender) post(frame []byte, to dest) {
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	slot := &s.slots[i]
	to.ah.refs++
	*slot = sendSlot{to: to, len: uint32(len(frame) - Headroom + wire.EncapLen), posted: true}
	wr := SendWR{ID: uint64(s.gen)<<idGenShift | uint64(i), AH: to.ah.h, QPN: to.qpn, QKey: s.attr.broadcast.QKey,
		Len: slot.len}
	s.load(slot, &wr, frame, i)
	s.wrs = append(s.wrs, wr)
	if s.inFlight++; len(s.wrs) == cap(s.wrs) {
		s.flush()
	}
}

// load has a work request send a frame: from where that lies, if it is long and can be mapped, else from its slot.
func (s *sender) load(slot *sendSlot, wr *SendWR, frame []byte, i uint32) {
	payload := frame[Headroom-wire.EncapLen:]
	if len(payload) > s.p.TxCopybreak {
		if slot.ref, slot.mapped = s.frames.Map(frame); slot.mapped {
			wr.Mapped, wr.Ref, wr.Off = true, slot.ref, Headroom-wire.EncapLen
			s.stats.Driver.TxMapped++
			return
		}
	}
	wr.Off = i * slotLen
	copy(s.mem[wr.Off:][:slotLen], payload)
	s.stats.Driver.TxCopied++
}

// flush posts the batch of work requests.
func (s *sender) flush() {
	if len(s.wrs) == 0 {
		return
	}
	for _, wr := range s.wrs[s.queue.PostSend(s.wrs):] {
		s.stats.Net.TxFIFOErrors++
		s.stats.TxError(stats.DropNoSlot)
		s.freeSlot(uint32(wr.ID & idSlot))
	}
	s.wrs = s.wrs[:0]
}

// freeSlot returns a slot to the pool.
func (s *sender) freeSlot(i uint32) {
	slot := &s.slots[i]
	if slot.mapped {
		s.frames.Unmap(slot.ref)
	}
	s.vectors.release(slot.to.ah)
	*slot = sendSlot{}
	if invariants && len(s.mem) > 0 {
		spoil(s.mem[i*slotLen:][:slotLen])
	}
	s.free = append(s.free, i)
	s.inFlight--
}

// completed handles the completion of a send. It returns the shadow entry to which a datagram was sent with success,
// and whether the send failed. A completion that fits no posted work request is ignored.
func (s *sender) completed(now mono.Time, wc *WC) (to *entry, failed bool) {
	i := uint32(wc.ID & idSlot)
	if int(i) >= len(s.slots) || !s.slots[i].posted {
		return nil, false
	}
	slot := &s.slots[i]
	s.progress = now
	switch wc.Status {
	case ib.Success:
		s.stats.Net.TxPackets++
		s.stats.Net.TxBytes += uint64(slot.len)
		to = slot.to.entry
	case ib.WRFlushErr:
		s.stats.Net.TxAbortedErrors++
		s.stats.TxError(stats.DropTxFlushed)
	default:
		s.stats.TxError(stats.DropTxStatus)
		failed = true
	}
	s.freeSlot(i)
	return to, failed
}

// drain sends frames that wait for slots, in their order.
func (s *sender) drain() {
	if s.broken {
		return
	}
	for s.head < len(s.backlog) && len(s.free) > 0 {
		f := &s.backlog[s.head]
		s.post(f.frame, f.to)
		s.pop()
	}
	if s.head == len(s.backlog) {
		s.backlog, s.head = s.backlog[:0], 0
	}
}

// pop removes the first frame of the backlog.
func (s *sender) pop() {
	f := &s.backlog[s.head]
	s.budget.Release(len(f.frame))
	s.vectors.release(f.to.ah)
	*f = waitingFrame{}
	s.head++
}

// dropBacklog drops the frames that wait for slots.
func (s *sender) dropBacklog() {
	for s.head < len(s.backlog) {
		s.stats.TxDrop(stats.DropLinkDown)
		s.pop()
	}
	s.backlog, s.head = s.backlog[:0], 0
}

// reclaim frees the slots of posted sends without waiting for their completions, and begins another generation.
func (s *sender) reclaim() {
	s.wrs = s.wrs[:0]
	for i := range s.slots {
		if s.slots[i].posted {
			s.stats.Net.TxAbortedErrors++
			s.stats.TxError(stats.DropTxFlushed)
			s.freeSlot(uint32(i))
		}
	}
	s.gen++
}

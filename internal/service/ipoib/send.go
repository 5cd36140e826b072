// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Bounds of frames that wait in a link, beside those of each queue.
const (
	maxPendingBytes = 16 << 20 // in all queues
	maxBacklog      = 4096     // frames for which there is no send slot
)

// slotLen is the length of a send slot: encapsulation header and packet of the
// largest MTU. A receive slot has room for a GRH, too.
const (
	slotLen     = 4096
	grhLen      = 40
	recvSlotLen = grhLen + slotLen
)

// IDs of work requests: generation, kind, slot.
const (
	idRecv     = 1 << 31
	idSlot     = idConn - 1
	idGenShift = 32
)

// address is an address vector that entries, groups, posted work requests
// and frames that wait for a slot hold on to. It is destroyed when none does.
type address struct {
	h    Handle
	refs int
}

// newAddress makes an address vector with one holder.
func (l *Link) newAddress(a *AH) (*address, error) {
	h, err := l.al.CreateAH(a)
	if err != nil {
		return nil, err
	}
	l.addresses++
	return &address{h: h, refs: 1}, nil
}

// staticRate is the rate that a path holds the port to: none where it is not
// below the port's own.
func (l *Link) staticRate(r ib.Rate) ib.Rate {
	if r.Tenths() >= l.port.Rate.Tenths() {
		return 0
	}
	return r
}

// release takes one holder off; nil has none.
func (l *Link) release(a *address) {
	if a == nil {
		return
	}
	if a.refs--; a.refs == 0 {
		l.addresses--
		l.al.DestroyAH(a.h)
	}
}

// dest is where a frame goes.
type dest struct {
	ah    *address
	qpn   ib.QPN
	entry *entry // whose use is noted; nil for groups
}

// sendSlot is a send slot, free or posted.
type sendSlot struct {
	to     dest
	len    uint32
	mapped bool
	ref    uint64
	posted bool
}

// held is a frame that waits for a send slot.
type held struct {
	frame []byte
	to    dest
}

type sender struct {
	txMem     []byte
	slots     []sendSlot
	free      []uint32 // slots, as a stack
	wrs       []SendWR // to post
	gen       uint32   // of posted work
	backlog   []held   // from head on
	head      int
	stopped   bool // SendBatch refused some
	pending   int  // octets of frames that wait, of all queues
	addresses int  // address vectors that exist
	watchdog  timer
	progress  mono.Time // when a send completed last, or the first was posted
	inFlightN int
	busy      bool // sends were posted at the last flush
	broken    bool // the queue pair is being made to work again, or could not be
	closed    bool
}

// inFlight is how many work requests are posted, sends and receives, and how many connections there are.
func (l *Link) inFlight() int { return l.inFlightN + l.posted + len(l.conns) }

func (l *Link) qkey() ib.QKey { return l.broadcast.rec.QKey }

// register is the step of creating that makes buffers.
func (l *Link) register() error {
	tx, rx, err := l.al.Register(l.p.SQDepth, slotLen, l.p.RQDepth, recvSlotLen)
	if err != nil {
		return err
	}
	l.txMem, l.rxMem = tx, rx
	l.slots = make([]sendSlot, l.p.SQDepth)
	l.free = make([]uint32, 0, l.p.SQDepth)
	for i := l.p.SQDepth - 1; i >= 0; i-- {
		l.free = append(l.free, uint32(i))
	}
	l.wrs = make([]SendWR, 0, l.p.SQDepth)
	l.recvs = make([]recvSlot, l.p.RQDepth)
	l.rrs = make([]RecvWR, 0, l.p.RQDepth)
	if err := l.openConns(); err != nil {
		l.deregister()
		return err
	}
	return nil
}

func (l *Link) deregister() {
	l.closeConns()
	l.al.Deregister()
	l.txMem, l.rxMem = nil, nil
}

// SendBatch sends packets of the IP stack: packet i is frames[i][Headroom:],
// hops[i] its next hop. It returns how many it took, which is all but when the
// send queue is full: Device.Wake tells when to go on with the rest. The
// frames are the caller's again, but for what AL.Map took.
func (l *Link) SendBatch(now mono.Time, frames [][]byte, hops []netip.Addr) int {
	l.at = now
	n := 0
	for n < len(frames) {
		if l.carrier && (len(l.free) <= 1 || l.head < len(l.backlog) || l.holds(now)) {
			l.stopped = true
			break
		}
		l.packet(now, frames[n], hops[n])
		n++
	}
	l.flush(now)
	return n
}

// packet takes one packet of the IP stack.
func (l *Link) packet(now mono.Time, frame []byte, hop netip.Addr) {
	switch {
	case len(frame) <= Headroom:
		l.txError(DropShort)
	case !l.carrier:
		l.c.Net.TxCarrierErrors++
		l.txError(DropLinkDown)
	default:
		l.eng.Output(now, frame, hop)
	}
}

// txError counts a frame that is not sent because something is wrong.
func (l *Link) txError(d Drop) {
	l.c.Net.TxErrors++
	l.txDrop(d)
}

// txDrop counts a frame that is not sent.
func (l *Link) txDrop(d Drop) {
	l.c.Net.TxDropped++
	l.refuse(d)
}

// refuse counts why a frame was dropped, and tells, as far as that is wanted, once in a
// while.
func (l *Link) refuse(d Drop) {
	l.c.Drops[d]++
	if l.p.Debug&DebugData != 0 && l.seldom(l.at, d.String()) {
		l.event(l.at, EventLog, netip.Addr{}, d.String())
	}
}

// transmit sends a frame, or holds it until there is a slot.
func (l *Link) transmit(frame []byte, to dest) {
	if l.broken || l.head < len(l.backlog) || len(l.free) == 0 {
		if len(l.backlog)-l.head >= maxBacklog || !l.charge(len(frame)) {
			l.c.Net.TxFIFOErrors++
			l.txError(DropNoSlot)
			return
		}
		to.ah.refs++
		l.backlog = append(l.backlog, held{append([]byte(nil), frame...), to})
		return
	}
	l.post(frame, to)
}

// charge counts octets of a frame that waits; false where there are too many.
func (l *Link) charge(n int) bool {
	if l.pending+n > maxPendingBytes {
		return false
	}
	l.pending += n
	return true
}

// post puts a frame into the batch of work requests. There is a free slot.
func (l *Link) post(frame []byte, to dest) {
	i := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	s := &l.slots[i]
	to.ah.refs++
	*s = sendSlot{to: to, len: uint32(len(frame) - Headroom + wire.EncapLen), posted: true}
	wr := SendWR{ID: uint64(l.gen)<<idGenShift | uint64(i), AH: to.ah.h, QPN: to.qpn, QKey: l.qkey(), Len: s.len}
	s.ref, s.mapped = l.load(&wr, frame, l.txMem, i, slotLen)
	l.wrs = append(l.wrs, wr)
	if l.inFlightN++; len(l.wrs) == cap(l.wrs) {
		l.postBatch()
	}
}

// load has wr send a frame from where it lies, which is to be unmapped then, or as a copy in slot i of slots of a size.
func (l *Link) load(wr *SendWR, frame, slots []byte, i, size uint32) (ref uint64, mapped bool) {
	payload := frame[Headroom-wire.EncapLen:]
	if len(payload) > l.p.TxCopybreak {
		if ref, mapped = l.al.Map(frame); mapped {
			wr.Mapped, wr.Ref, wr.Off = true, ref, Headroom-wire.EncapLen
			l.c.Driver.TxMapped++
			return ref, true
		}
	}
	wr.Off = i * size
	copy(slots[wr.Off:][:size], payload)
	l.c.Driver.TxCopied++
	return 0, false
}

// postBatch posts what post has put together.
func (l *Link) postBatch() {
	if len(l.wrs) == 0 {
		return
	}
	for _, wr := range l.wrs[l.al.PostSend(l.wrs):] {
		l.c.Net.TxFIFOErrors++
		l.txError(DropNoSlot)
		l.freeSlot(uint32(wr.ID & idSlot))
	}
	l.wrs = l.wrs[:0]
}

// flush ends whatever began outside: posts what is to be sent, minds the
// watchdog, and calls those who wait for paths.
func (l *Link) flush(now mono.Time) {
	l.postBatch()
	l.postMessages()
	if l.inFlightN == 0 {
		l.busy = false
		return
	}
	if !l.busy {
		l.busy, l.progress = true, now
	}
	if l.watchdog.i == 0 && l.state != Destroyed {
		l.timers.set(&l.watchdog, now.Add(l.p.TxTimeout))
	}
}

// freeSlot returns a slot to the pool.
func (l *Link) freeSlot(i uint32) {
	s := &l.slots[i]
	if s.mapped {
		l.al.Unmap(s.ref)
	}
	l.release(s.to.ah)
	*s = sendSlot{}
	if invariants && len(l.txMem) > 0 {
		spoil(l.txMem[i*slotLen:][:slotLen])
	}
	l.free = append(l.free, i)
	l.inFlightN--
}

// sent handles the completion of a send.
func (l *Link) sent(now mono.Time, wc *WC) (failed bool) {
	i := uint32(wc.ID & idSlot)
	if int(i) >= len(l.slots) || !l.slots[i].posted {
		return false
	}
	s := &l.slots[i]
	l.progress = now
	switch wc.Status {
	case ib.Success:
		l.c.Net.TxPackets++
		l.c.Net.TxBytes += uint64(s.len)
		if s.to.entry != nil {
			l.touch(s.to.entry, now)
		}
	case ib.WRFlushErr:
		l.c.Net.TxAbortedErrors++
		l.txError(DropTxFlushed)
	default:
		l.txError(DropTxStatus)
		failed = true
	}
	l.freeSlot(i)
	return failed
}

// drainBacklog sends frames that waited for slots, in their order, and tells
// when SendBatch takes packets again.
func (l *Link) drainBacklog() {
	if l.broken {
		return
	}
	for l.head < len(l.backlog) && len(l.free) > 0 {
		h := &l.backlog[l.head]
		l.post(h.frame, h.to)
		l.unhold(h)
	}
	if l.head == len(l.backlog) {
		l.backlog, l.head = l.backlog[:0], 0
		if l.stopped && 2*len(l.free) >= len(l.slots) && !l.holds(l.at) {
			l.stopped = false
			l.dev.Wake()
		}
	}
}

func (l *Link) unhold(h *held) {
	l.pending -= len(h.frame)
	l.release(h.to.ah)
	*h = held{}
	l.head++
}

// dropBacklog drops frames that wait for slots.
func (l *Link) dropBacklog() {
	for l.head < len(l.backlog) {
		l.txDrop(DropLinkDown)
		l.unhold(&l.backlog[l.head])
	}
	l.backlog, l.head = l.backlog[:0], 0
}

// watch fires when sends may be overdue: where none has completed for the
// time that parameter timeout gives it tells so, and makes the queue pair anew.
func (l *Link) watch(now mono.Time) {
	if l.broken {
		l.recover(now)
		return
	}
	if l.inFlightN == 0 {
		return
	}
	if due := l.progress.Add(l.p.TxTimeout); !due.Due(now) {
		l.timers.set(&l.watchdog, due)
		return
	}
	l.c.Driver.TxTimeouts++
	l.event(now, EventTxTimeout, netip.Addr{}, "sends do not complete; the queue pair is reset")
	l.recover(now)
}

// recover takes the queue pair through ERR and RESET back to work. What was
// posted is lost; what has no slot yet is sent.
func (l *Link) recover(now mono.Time) {
	l.broken = true
	l.al.StopQP()
	for range 2 + (len(l.slots)+len(l.recvs))/pollBatch {
		if n := l.al.Poll(l.wcs[:]); n == 0 {
			break
		} else {
			l.complete(now, l.wcs[:n])
		}
	}
	err := l.initUD()
	if l.broken = err != nil; l.broken {
		l.log(now, "queue pair", "reset of the queue pair: %v", err)
		l.timers.set(&l.watchdog, now.Add(max(l.p.TxTimeout, retryAfter)))
		l.follow(now)
		return
	}
	l.reclaim() // now that the queue pair has forgotten it
	if l.registered {
		l.postAll()
	}
	l.drainBacklog()
	l.progress = now
	l.follow(now)
}

// reclaim takes all slots back that are posted, whose completions are not
// waited for.
func (l *Link) reclaim() {
	l.wrs = l.wrs[:0]
	for i := range l.slots {
		if l.slots[i].posted {
			l.c.Net.TxAbortedErrors++
			l.txError(DropTxFlushed)
			l.freeSlot(uint32(i))
		}
	}
	for i := range l.recvs {
		l.recvs[i].posted = false
	}
	l.posted = 0
	l.gen++
}

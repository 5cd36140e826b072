// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
)

// idConn marks the identifiers of messages of connections, and of the shared receive queue.
const idConn = 1 << 30

// connSlot is a send slot of connections, free or posted.
type connSlot struct {
	c      *conn
	seq    uint32 // tells its uses apart
	len    uint32
	mapped bool
	trial  bool // its peer had acknowledged nothing lately
	ref    uint64
}

// connIO is how messages go by connections.
type connIO struct {
	connTx, connRx []byte
	connSlots      []connSlot
	connFree       []uint32 // as a stack
	connTrials     int      // slots of peers that had acknowledged nothing lately
	connRecvs      []recvSlot
	connPosted     int
	connRRs        []RecvWR
	connWRs        []SendWR // to post, all of connBatch
	connBatch      *conn
	private        [wire.CMPrivateLen]byte
}

func (l *Link) initConnIO(tx, rx []byte) {
	l.connTx, l.connRx = tx, rx
	l.connSlots = make([]connSlot, connTxSlots)
	l.connFree = make([]uint32, 0, connTxSlots)
	for i := connTxSlots - 1; i >= 0; i-- {
		l.connFree = append(l.connFree, uint32(i))
	}
	l.connWRs = make([]SendWR, 0, connTxSlots)
	l.connRecvs = make([]recvSlot, connRxSlots)
	l.connRRs = make([]RecvWR, 0, connRxSlots)
	for i := range l.connRecvs {
		l.repostConn(uint32(i))
	}
	l.postConnRecvs()
}

func (l *Link) dropConnIO() {
	l.connTx, l.connRx, l.connSlots, l.connFree, l.connRecvs = nil, nil, nil, nil, nil
	l.connPosted, l.connTrials = 0, 0
}

func (l *Link) repostConn(i uint32) {
	l.connRecvs[i].posted = true
	l.connPosted++
	l.connRRs = append(l.connRRs, RecvWR{ID: idRecv | idConn | uint64(i), Off: i*connSlotLen + grhLen, Len: connRecvMTU})
}

func (l *Link) postConnRecvs() {
	if len(l.connRRs) == 0 {
		return
	}
	for _, wr := range l.connRRs[l.al.PostConnRecv(l.connRRs):] {
		l.connRecvs[wr.ID&idSlot].posted = false
		l.connPosted--
	}
	l.connRRs = l.connRRs[:0]
}

// postMessage puts a frame into the batch of its connection. There is a free slot.
func (l *Link) postMessage(now mono.Time, c *conn, frame []byte) {
	if l.connBatch != c || len(l.connWRs) == pollBatch {
		l.postMessages()
		l.connBatch = c
	}
	i := l.connFree[len(l.connFree)-1]
	l.connFree = l.connFree[:len(l.connFree)-1]
	s := &l.connSlots[i]
	*s = connSlot{c: c, seq: s.seq, len: uint32(len(frame) - Headroom + wire.EncapLen)}
	wr := SendWR{ID: uint64(s.seq)<<idGenShift | idConn | uint64(i), Len: s.len}
	s.ref, s.mapped = l.load(&wr, frame, l.connTx, i, connSlotLen)
	if s.trial = !c.acknowledges(now); s.trial {
		l.connTrials++
	}
	if c.inFlight == 0 {
		c.progress = now
	}
	c.inFlight++
	c.used = now
	if l.connWatch.i == 0 {
		l.timers.set(&l.connWatch, now.Add(connWatchEvery))
	}
	l.connWRs = append(l.connWRs, wr)
}

// postMessages posts what postMessage has put together.
func (l *Link) postMessages() {
	if len(l.connWRs) == 0 {
		return
	}
	for _, wr := range l.connWRs[l.al.PostConn(l.connBatch.id, l.connWRs):] {
		l.c.Net.TxFIFOErrors++
		l.txError(DropNoSlot)
		l.freeMessage(uint32(wr.ID & idSlot))
	}
	l.connWRs, l.connBatch = l.connWRs[:0], nil
}

// freeMessage returns a slot to the pool.
func (l *Link) freeMessage(i uint32) {
	s := &l.connSlots[i]
	if s.mapped {
		l.al.Unmap(s.ref)
	}
	if s.trial {
		l.connTrials--
	}
	s.c.inFlight--
	*s = connSlot{seq: (s.seq + 1) & (1<<31 - 1)}
	l.connFree = append(l.connFree, i)
}

// reclaimMessages takes the slots of a connection back whose completions are not waited for.
func (l *Link) reclaimMessages(c *conn) {
	for i := range l.connSlots {
		if l.connSlots[i].c == c {
			l.c.Net.TxAbortedErrors++
			l.txError(DropTxFlushed)
			l.freeMessage(uint32(i))
		}
	}
}

// messageDone handles the completion of a message that was sent.
func (l *Link) messageDone(now mono.Time, wc *WC) {
	i := uint32(wc.ID & idSlot)
	if int(i) >= len(l.connSlots) {
		return
	}
	s := &l.connSlots[i]
	if s.c == nil || s.seq != uint32(wc.ID>>idGenShift) {
		return
	}
	c := s.c
	c.progress = now
	switch wc.Status {
	case ib.Success:
		c.proven = now
		l.c.Net.TxPackets++
		l.c.Net.TxBytes += uint64(s.len)
		l.c.Driver.ConnTx++
		if now.Sub(c.touched) >= time.Duration(touchEvery) {
			c.touched = now
			if e := l.entries[c.hw]; e != nil {
				l.touch(e, now)
			}
		}
	case ib.WRFlushErr:
		l.c.Net.TxAbortedErrors++
		l.txError(DropTxFlushed)
	default:
		l.txError(DropTxStatus)
	}
	l.freeMessage(i)
	if wc.Status != ib.Success {
		l.lost(now, c, wc.Status.String())
	}
}

// message handles the completion of a receive of the shared queue.
func (l *Link) message(now mono.Time, wc *WC) {
	i := uint32(wc.ID & idSlot)
	if int(i) >= len(l.connRecvs) || !l.connRecvs[i].posted {
		return
	}
	l.connRecvs[i].posted = false
	l.connPosted--
	if l.state == Destroyed {
		return
	}
	c := l.byQPN[wc.QPN]
	switch {
	case c == nil || c.state == connClosing:
	case wc.Status == ib.Success:
		l.took(now, c, wc, l.connRx[i*connSlotLen:][:connSlotLen])
	default:
		if wc.Status != ib.WRFlushErr {
			l.c.Net.RxErrors++
			l.c.Net.RxFIFOErrors++
			l.refuse(DropRxStatus)
		}
		l.lost(now, c, wc.Status.String())
	}
	l.repostConn(i)
}

// took judges a message, which lies in b behind as much room as a GRH takes, and takes it where it belongs.
func (l *Link) took(now mono.Time, c *conn, wc *WC, b []byte) {
	c.used = now
	if c.state == connAnswering {
		l.al.HeardConn(c.id)
		l.nowOpen(now, c)
	}
	n := &l.c.Net
	if wc.ByteLen > connRecvMTU {
		n.RxErrors++
		n.RxLengthErrors++
		l.refuse(DropShort)
		return
	}
	if !l.carrier {
		n.RxDropped++
		l.refuse(DropLinkDown)
		return
	}
	b = b[:grhLen+int(wc.ByteLen)]
	t, p, ok := l.parse(b[grhLen:])
	if !ok {
		return
	}
	if t != wire.EtherIPv4 && t != wire.EtherIPv6 { // nothing else goes by a connection
		n.RxDropped++
		n.RxNoHandler++
		l.refuse(DropUnknownEtherType)
		return
	}
	n.RxPackets++
	n.RxBytes += uint64(wc.ByteLen)
	l.c.Driver.ConnRx++
	if t == wire.EtherIPv4 || !resolves(p) {
		l.up(p)
		return
	}
	// Some peers ask a neighbour whom they are connected with that way.
	l.c.Driver.NDRx++
	l.from = c.lid
	wire.PutHardHeader(b, &wire.HWAddr{}, &c.hw, t)
	f := l.eng.Input(now, neigh.Host, b)
	l.from = 0
	if f != nil {
		l.up(f[Headroom:])
	}
}

// drainConns sends what waits for slots.
func (l *Link) drainConns(now mono.Time) {
	if l.connWaits == 0 {
		return
	}
	for _, c := range l.conns {
		if c.state == connOpen && len(c.queue) > 0 {
			l.drainConn(now, c)
		}
	}
}

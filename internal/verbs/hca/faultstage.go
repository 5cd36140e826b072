// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// FaultStage is the stage that injects faults into what queue pairs of the node send to each other. It sends what is
// left to Lane.Within, and may delay copies of packets.
type FaultStage interface {
	Link
	// Deadline is when Flush must be called on behalf of delayed packets.
	Deadline() mono.Time
	// Release sends all packets that are delayed now, in the order of their times.
	Release(now mono.Time)
}

// Within is the way of a lane to queue pairs and groups of its node. Bursts go straight to their queue pair, unless
// there is a stage. Its methods are called on the lane.
type Within struct {
	l     *Lane
	stage FaultStage // nil: no fault is injected
	from  *QP        // the sender of the burst at hand
}

// SetStage puts a stage in the way of what queue pairs of the lane send to others of the node, groups included; nil
// takes it out again. RC queue pairs recover from loss while there is one, and until what they sent by then is
// acknowledged. Both changes keep the order of bursts: those before and after pass the same queues, and packets that
// the stage delays leave first.
func (w *Within) SetStage(now mono.Time, s FaultStage) {
	was := w.stage
	if was != nil && s == nil {
		w.l.refresh()
		was.Release(now)
	}
	if w.stage = s; (was == nil) == (s == nil) {
		return
	}
	for _, x := range w.l.sessions {
		for _, q := range x.qps.m {
			if q.t != nil {
				q.t.SetLossy(now, s != nil)
				q.schedule()
			}
		}
	}
}

// Lossy reports whether packets can get lost: there is a stage.
func (w *Within) Lossy() bool { return w.stage != nil }

// Send delivers a burst. With the batch of the lane it is a burst of the current sender. With another batch it is a
// delayed packet: its payload and path belong to the stage, so that both are copied at once.
func (w *Within) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	if b != w.l.batch {
		w.deliver(now, r, nil)
		w.l.batch.Flush()
		return mem.OK
	}
	if w.deliver(now, r, w.from); r.Fault {
		return mem.SourceFault
	}
	return mem.OK
}

// SendCorrupt counts a corrupted packet, and drops it: its ICRC does not match.
func (w *Within) SendCorrupt(mono.Time, *pkt.Burst, *mem.Batch, uint32) mem.Result {
	w.l.Stats.DropCorrupt++
	return mem.OK
}

// Blocked reports that it takes bursts: what finds no room in the queue to another lane is dropped and counted.
func (w *Within) Blocked() bool { return false }

// Flush does nothing: the lane flushes its batch when it commits.
func (w *Within) Flush(mono.Time) {}

// transmit sends a burst of q, through the stage where there is one. It sets r.Fault where the payload could not be
// read.
func (w *Within) transmit(now mono.Time, q *QP, r *pkt.Burst) {
	if w.stage == nil {
		w.deliver(now, r, q)
		return
	}
	w.from = q
	if w.stage.Send(now, r, w.l.batch) == mem.SourceFault {
		r.Fault = true
	}
	w.from = nil
}

// deliver delivers a burst to a queue pair or a group of the node. from is the queue pair that has the payload in
// its memory, nil where the payload is bytes.
func (w *Within) deliver(now mono.Time, r *pkt.Burst, from *QP) {
	l := w.l
	if r.DestQPN == ib.QPNMulticast && groupPath(r.Path) {
		if l.ownsEngine() {
			l.receiveMulticast(r)
		} else {
			l.forward(l.groups.lanes[0], r, nil)
		}
		return
	}
	if a := l.all.At(r.Path.Function); a != nil {
		l.dispatch(now, a, r, from)
	} else {
		l.Stats.DropNoFunction++
	}
}

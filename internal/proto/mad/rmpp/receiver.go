// SPDX-License-Identifier: Apache-2.0

package rmpp

import (
	"slices"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Receiver receives one message. See NewReceiver.
type Receiver struct {
	cfg    Config
	head   [mad.Len]byte // headers of the first segment received
	headN  int
	data   []byte
	next   uint32 // the lowest segment that is missing
	edge   uint32 // the highest segment in the window
	came   uint64 // bit i: segment next+1+i has arrived
	last   uint32 // number of segments, 0 while unknown
	lastN  uint32 // PayloadLength of the last
	total  uint32 // PayloadLength of the first, 0 if unknown
	repWin uint32

	ack      bool // an acknowledgement of next-1 is due
	end      mad.RMPPType
	deadline mono.Time
	state    State
	status   Status
	closed   bool
}

// NewReceiver prepares to receive the message of which first is a segment: a MAD with an active RMPP header of type
// data. The caller passes first to Handle too.
func NewReceiver(cfg Config, now mono.Time, first []byte) (*Receiver, error) {
	if len(first) < mad.Len {
		return nil, mad.ErrShort
	}
	n := HeaderLen(mad.Class(first[1]))
	if n == 0 {
		return nil, ErrClass
	}
	r := &Receiver{cfg: cfg.WithDefaults(), headN: n, next: 1, edge: 1, repWin: 1}
	copy(r.head[:n], first)
	r.deadline = now.Add(r.cfg.Stall)
	return r, nil
}

// State returns the progress of the transfer, and the reason of its failure.
func (r *Receiver) State() (State, Status) { return r.state, r.status }

// Closed reports whether r has ended: it failed and the peer is notified, or it is complete and has lingered.
func (r *Receiver) Closed() bool { return r.closed }

// Message returns the headers of the first segment and the data of a Complete transfer. The caller owns them: a second
// call returns nothing.
func (r *Receiver) Message() (head, data []byte) {
	if r.state != Complete || r.data == nil {
		return nil, nil
	}
	head, data = r.head[:r.headN], r.data
	r.data = nil
	return append([]byte(nil), head...), data
}

// ResponseWindow returns the window from the peer for the answer to its message.
func (r *Receiver) ResponseWindow() uint32 { return r.repWin }

// Deadline returns when Next must be called next if nothing arrives.
func (r *Receiver) Deadline() mono.Time {
	if r.closed {
		return 0
	}
	return r.deadline
}

// Next writes the next MAD to send to b. It reports false if there is none now.
func (r *Receiver) Next(now mono.Time, b *[mad.Len]byte) bool {
	if !r.closed && r.deadline.Due(now) {
		if r.state == Active {
			r.fail(mad.RMPPAbort, AbortTooLong)
		} else {
			r.closed, r.ack, r.data = true, false, nil
		}
	}
	switch {
	case r.end != 0:
		control(b, r.head[:r.headN], true, r.end, r.status, 0, 0)
		r.end, r.closed = 0, true
		return true
	case r.ack:
		r.ack = false
		control(b, r.head[:r.headN], true, mad.RMPPAck, StatusOK, r.next-1, max(r.edge, r.next-1))
		return true
	}
	return false
}

// Handle handles a MAD of this transfer from the peer: a segment, a window for the answer, or the end.
func (r *Receiver) Handle(now mono.Time, b []byte) {
	var h mad.RMPP
	if r.closed || r.state == Failed || len(b) < mad.Len || h.Parse(b[rmppAt:]) != nil {
		return
	}
	if h.Version != mad.RMPPVersion {
		r.refuse(AbortVersion)
		return
	}
	switch h.Type {
	case mad.RMPPData:
		r.segment(now, &h, b)
	case mad.RMPPAck:
		// Of segment 0: the window for the answer. Another acknowledgement belongs to no message of this side.
		if r.state == Complete && h.Data1 == 0 && h.Status == 0 {
			r.repWin = max(r.repWin, h.Data2)
		}
	case mad.RMPPStop, mad.RMPPAbort:
		if r.state == Active {
			r.fail(0, Status(h.Status))
			r.closed = true
		}
	default:
		r.refuse(AbortType)
	}
}

func (r *Receiver) segment(now mono.Time, h *mad.RMPP, b []byte) {
	seg := h.Data1
	class := uint32(r.headN - classAt)
	isLast := h.Flags&mad.RMPPLast != 0
	switch {
	case r.state == Complete:
		r.ack = true
		return
	case h.Status != 0:
		r.refuse(AbortStatus)
		return
	case (h.Flags&mad.RMPPFirst != 0) != (seg == 1):
		r.refuse(AbortFirst)
		return
	case seg < r.next:
		r.ack = true // the acknowledgement was dropped
		return
	case seg > r.edge:
		return // beyond the window: invalid
	case seg > r.next && r.came>>(seg-r.next-1)&1 != 0:
		return
	}
	lastN := h.Data2
	if seg == 1 {
		r.total = h.Data2
	}
	if isLast {
		if lastN < class || lastN > segment || r.last != 0 {
			r.refuse(AbortLast)
			return
		}
		r.last, r.lastN = seg, lastN
	}
	// The highest segment received must be the last, in any order of arrival.
	if r.last != 0 && (seg > r.last || isLast && r.came>>(r.last-r.next) != 0) {
		r.refuse(AbortLast)
		return
	}
	per := mad.Len - r.headN
	if int(seg)*per > r.cfg.MaxBytes+per || uint64(r.total) > uint64(r.cfg.MaxBytes)+uint64(r.cfg.MaxBytes/per+
		1)*uint64(class) {
		r.fail(mad.RMPPStop, StopNoResources)
		return
	}
	if want := int(seg) * per; len(r.data) < want {
		// A gap is written before the message is complete.
		r.data = slices.Grow(r.data, want-len(r.data))[:want]
	}
	copy(r.data[int(seg-1)*per:], b[r.headN:mad.Len])
	r.deadline = now.Add(r.cfg.Stall)
	if seg > r.next {
		r.came |= 1 << (seg - r.next - 1)
		return
	}
	for here := true; here; r.came >>= 1 {
		r.next++
		here = r.came&1 != 0
	}
	switch {
	case r.last != 0 && r.next > r.last:
		r.finish(now, class, per)
	case r.next > r.edge:
		r.edge += uint32(r.cfg.Window)
		r.ack = true
	}
}

// finish completes the message if its lengths agree.
func (r *Receiver) finish(now mono.Time, class uint32, per int) {
	if r.total != 0 && r.total != (r.last-1)*segment+r.lastN {
		r.refuse(AbortLast)
		return
	}
	r.data = r.data[:int(r.last-1)*per+int(r.lastN-class)]
	if len(r.data) > r.cfg.MaxBytes {
		r.fail(mad.RMPPStop, StopNoResources)
		return
	}
	r.state, r.ack = Complete, true
	r.deadline = now.Add(r.cfg.Linger)
}

// refuse aborts the transfer. A MAD after its completion is only ignored.
func (r *Receiver) refuse(why Status) {
	if r.state == Active {
		r.fail(mad.RMPPAbort, why)
	}
}

// fail ends the transfer, and notifies the peer with a segment of kind tell, if any.
func (r *Receiver) fail(tell mad.RMPPType, why Status) {
	if why == StatusOK {
		why = AbortOther // without a reason from the peer
	}
	r.state, r.status, r.end, r.ack, r.data = Failed, why, tell, false, nil
}

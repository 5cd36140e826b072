// SPDX-License-Identifier: Apache-2.0

package rmpp

import (
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Sender sends one message. The zero Sender is not usable: see NewSender.
type Sender struct {
	cfg    Config
	head   [mad.Len]byte
	headN  int // length of the headers
	data   []byte
	last   uint32 // number of segments
	next   uint32 // to send
	sent   uint32 // largest number sent
	acked  uint32 // largest number acknowledged
	window uint32 // largest number that may be sent

	retries     int
	deadline    mono.Time // to repeat, or the end of lingering
	doubleSided bool
	turn        bool // an acknowledgement of segment 0 is due
	abort       bool // an ABORT of status is due

	state  State
	status Status
}

// NewSender prepares the transfer of data after the headers at the start of head, HeaderLen of them; it does not use
// their RMPP header. The Sender owns data until its state is no longer Active. window is the initial window from the
// peer: Receiver.ResponseWindow if the message answers one, else 1. doubleSided means that a message answers this one:
// the Sender grants the peer a window for it.
func NewSender(cfg Config, head, data []byte, window uint32, doubleSided bool) (*Sender, error) {
	if len(head) < mad.HeaderLen {
		return nil, mad.ErrShort
	}
	n := HeaderLen(mad.Class(head[1]))
	switch {
	case n == 0:
		return nil, ErrClass
	case len(head) < n:
		return nil, mad.ErrShort
	}
	s := &Sender{cfg: cfg.WithDefaults(), headN: n, data: data, next: 1, window: max(1, window),
		doubleSided: doubleSided}
	if len(data) > s.cfg.MaxBytes {
		return nil, ErrSize
	}
	per := mad.Len - n
	s.last = max(1, uint32((len(data)+per-1)/per))
	copy(s.head[:], head[:n])
	s.retries = s.cfg.Retries
	return s, nil
}

// State returns the progress of the transfer, and the reason of its end. A Sender that is not Active may have a MAD for
// Next.
func (s *Sender) State() (State, Status) { return s.state, s.status }

// Closed reports whether s has ended: it neither sends nor expects anything.
func (s *Sender) Closed() bool {
	return s.state != Active && !s.abort && !s.turn && s.deadline.IsZero()
}

// Deadline returns when Next must be called next if nothing arrives.
func (s *Sender) Deadline() mono.Time { return s.deadline }

// Next writes the next MAD to send to b. It reports false if there is none now.
func (s *Sender) Next(now mono.Time, b *[mad.Len]byte) bool {
	if s.deadline.Due(now) {
		s.expire(now)
	}
	switch {
	case s.abort:
		s.abort = false
		control(b, s.head[:s.headN], false, mad.RMPPAbort, s.status, 0, 0)
		return true
	case s.turn:
		s.turn = false
		control(b, s.head[:s.headN], false, mad.RMPPAck, StatusOK, 0, 1)
		return true
	case s.state != Active || s.next > s.last || s.next > s.window:
		return false
	}
	s.put(b, s.next)
	s.sent = max(s.sent, s.next)
	s.next++
	s.deadline = now.Add(s.cfg.Resend)
	return true
}

// expire handles the deadline: it repeats unacknowledged segments, aborts, or ends the lingering.
func (s *Sender) expire(now mono.Time) {
	switch {
	case s.state != Active:
		s.deadline, s.turn = 0, false
	case s.retries == 0:
		s.fail(AbortRetries, true)
	default:
		s.retries--
		s.next = s.acked + 1
		// Counts even if the window is closed and nothing can be repeated.
		s.deadline = now.Add(s.cfg.Resend)
	}
}

// put writes segment n.
func (s *Sender) put(b *[mad.Len]byte, n uint32) {
	per := mad.Len - s.headN
	part := s.data[min(len(s.data), int(n-1)*per):min(len(s.data), int(n)*per)]
	r := mad.RMPP{Version: mad.RMPPVersion, Type: mad.RMPPData, RRespTime: mad.RMPPRespTimeNone,
		Flags: mad.RMPPActive, Data1: n}
	if n == s.last {
		r.Flags |= mad.RMPPLast
		r.Data2 = uint32(s.headN - classAt + len(part))
	}
	if n == 1 {
		r.Flags |= mad.RMPPFirst
		r.Data2 = s.last*uint32(s.headN-classAt) + uint32(len(s.data))
	}
	clear(b[copy(b[:], s.head[:s.headN]):])
	r.Append(b[rmppAt:rmppAt])
	copy(b[s.headN:], part)
}

// Handle handles a MAD of this transfer from the peer: an acknowledgement, or the end.
func (s *Sender) Handle(now mono.Time, b []byte) {
	var r mad.RMPP
	if len(b) < mad.Len || r.Parse(b[rmppAt:]) != nil {
		return
	}
	if s.state != Active {
		// A repetition of the last acknowledgement means that the window for the answer was dropped.
		s.turn = s.turn || s.state == Complete && s.doubleSided && r.Type == mad.RMPPAck && r.Data1 == s.last
		return
	}
	if r.Version != mad.RMPPVersion {
		s.fail(AbortVersion, true)
		return
	}
	switch r.Type {
	case mad.RMPPAck:
		s.ack(now, &r)
	case mad.RMPPStop, mad.RMPPAbort:
		s.fail(Status(r.Status), false)
	default:
		s.fail(AbortType, true)
	}
}

func (s *Sender) ack(now mono.Time, r *mad.RMPP) {
	seg, window := r.Data1, r.Data2
	switch {
	case r.Status != 0:
		s.fail(AbortStatus, true)
	case window < seg:
		s.fail(AbortWindow, true)
	case seg > s.sent:
		s.fail(AbortSegment, true)
	case seg < s.acked || window < s.window && seg == s.acked:
		// An old acknowledgement: a newer one has overtaken it.
	default:
		if seg > s.acked {
			s.acked, s.retries = seg, s.cfg.Retries
			s.next = max(s.next, seg+1)
			s.deadline = now.Add(s.cfg.Resend)
		}
		s.window = max(s.window, window)
		if s.acked == s.last {
			s.state, s.data, s.deadline = Complete, nil, 0
			if s.doubleSided {
				s.turn, s.deadline = true, now.Add(s.cfg.Linger)
			}
		}
	}
}

// fail ends the transfer. tell means that the peer must be notified.
func (s *Sender) fail(why Status, tell bool) {
	if why == StatusOK {
		why = AbortOther // without a reason from the peer
	}
	s.state, s.status, s.data, s.abort, s.deadline = Failed, why, nil, tell, 0
}

// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"errors"
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mad/rmpp"
	"weft/internal/proto/mono"
)

// transaction is a MAD that a program sends, until its answer or its last timeout.
type transaction struct {
	agent  *agent
	header Header // as the program wrote it
	key    pendingKey
	d      mad.Datagram
	data   []byte // follows the headers in d, of an RMPP message
	rmpp   bool
	double bool // the answer has segments too
	waits  bool // for an answer
	left   uint32
	timer  mono.Timer[*transaction]
}

// pendingKey identifies a request of a registration.
type pendingKey struct {
	class mad.Class
	tid   uint64
}

func (t *transaction) timeout() time.Duration {
	return time.Duration(t.header.TimeoutMS) * time.Millisecond
}

// begin sends a MAD for the first time. A request with a timeout waits for its
// answer.
func (a *agent) begin(t *transaction, m *mad.Header) Errno {
	if !isResponse(m) && t.header.TimeoutMS != 0 {
		t.key = pendingKey{m.MgmtClass, m.TransactionID}
		if a.pending[t.key] != nil {
			return EINVAL
		}
		if len(a.pending) >= maxPending {
			return ENOMEM
		}
		t.waits, t.left = true, t.header.Retries
	}
	if err := a.transmit(t); err != OK {
		return err
	}
	if t.waits {
		a.pending[t.key] = t
	}
	return OK
}

// transmit sends a MAD and starts the timer of a request. The timer of an RMPP message is started by sent.
func (a *agent) transmit(t *transaction) Errno {
	h := a.file.hub
	if t.rmpp {
		err := a.rmpp.Send(&t.d, t.data, t.double, func(s rmpp.State, why rmpp.Status) { a.sent(t, s) })
		switch {
		case errors.Is(err, rmpp.ErrFull):
			return ENOMEM
		case err != nil:
			return EINVAL
		}
		return OK
	}
	if !h.send(a.file.function, &t.d) {
		return ENOMEM
	}
	if t.waits {
		h.timers.Set(&t.timer, h.now.Add(t.timeout()))
	}
	return OK
}

// sent handles the end of the transfer of an RMPP message.
func (a *agent) sent(t *transaction, s rmpp.State) {
	switch h := a.file.hub; {
	case a.pending == nil: // the registration is removed
	case t.waits && a.pending[t.key] != t: // the answer has arrived before
	case s == rmpp.Complete && t.waits:
		h.timers.Set(&t.timer, h.now.Add(t.timeout()))
	case s != rmpp.Complete:
		a.timedOut(t)
	}
}

// timedOut returns an unanswered MAD to the program.
func (a *agent) timedOut(t *transaction) {
	h := a.file.hub
	h.timers.Stop(&t.timer)
	if t.waits {
		delete(a.pending, t.key)
	}
	h.Stats.TimedOut++
	a.file.returnMAD(&t.header, ETIMEDOUT, t.d.Data[:])
}

// expire repeats requests, or returns them without repetitions left. A message in segments is not repeated.
func (h *Hub) expire() {
	for t, due := h.timers.PopDue(h.now); due; t, due = h.timers.PopDue(h.now) {
		if t.left == 0 {
			t.agent.timedOut(t)
			continue
		}
		t.left--
		if t.rmpp {
			// Its receiver has acknowledged it, and would take a repetition for one of its last segment.
			h.timers.Set(&t.timer, h.now.Add(t.timeout()))
			continue
		}
		h.Stats.Retried++
		if t.agent.transmit(t) != OK {
			t.agent.timedOut(t)
		}
	}
}

// extend extends the timeout of a request while its answer arrives in segments.
func (a *agent) extend(m *mad.Header, d *mad.Datagram) {
	var r mad.RMPP
	r.Parse(d.Data[mad.HeaderLen:])
	t := a.pending[pendingKey{m.MgmtClass, m.TransactionID}]
	if t == nil || !t.timer.IsSet() || !m.MgmtClass.HasRMPP() || r.Flags&mad.RMPPActive == 0 || r.Type != mad.RMPPData {
		return
	}
	h := a.file.hub
	h.timers.Set(&t.timer, max(t.timer.At(), h.now.Add(max(t.timeout(), segmentPatience))))
}

// segmentPatience is the time that a request waits for the next segment of its answer. It is longer than the time
// after which senders repeat a segment (2 s).
const segmentPatience = 5 * time.Second

// answered removes the request of a response. It reports false if there is none, or none any more.
func (a *agent) answered(m *mad.Header, d *mad.Datagram) bool {
	k := pendingKey{m.MgmtClass, m.TransactionID}
	if t := a.pending[k]; t != nil {
		a.file.hub.timers.Stop(&t.timer)
		delete(a.pending, k)
		return true
	}
	// A program that does RMPP itself receives many segments for one request.
	var r mad.RMPP
	r.Parse(d.Data[mad.HeaderLen:])
	return a.rmpp == nil && m.MgmtClass.HasRMPP() && r.Flags&mad.RMPPActive != 0
}

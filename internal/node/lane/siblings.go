// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"runtime"

	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// siblings is one lane's side of the pipes to and from every other lane of its node. in[i] comes from lane i, out[i]
// leads to it.
type siblings struct {
	self  *Lane
	lanes []*Lane
	in    []*pipe
	out   []*pipe
}

var _ hca.Others = (*siblings)(nil)

// Forward implements hca.Others.
func (s *siblings) Forward(to *hca.Lane, r *pkt.Burst, from *hca.QP) bool {
	if !s.out[to.ID].put(r, from) {
		return false
	}
	s.lanes[to.ID].Wake()
	return true
}

// Room implements hca.Others.
func (s *siblings) Room(to *hca.Lane) bool { return s.out[to.ID].room(LocalBurst) }

// Quiesce implements hca.Others. While it waits this lane copies nothing itself, so two lanes that wait for each other
// both continue.
func (s *siblings) Quiesce() {
	s.self.parked.Store(true)
	defer s.self.parked.Store(false)
	for _, o := range s.lanes {
		if o == s.self {
			continue
		}
		for turn := o.turns.Load(); o.turns.Load() == turn && !o.parked.Load() && !o.asleep.Load(); {
			runtime.Gosched()
		}
	}
}

// recvBytes is the most that one read of the sockets returns.
const recvBytes = 1 << 20

// congested reports that some lane has not yet received what this one forwarded: input then stays in the sockets.
func (s *siblings) congested() bool {
	for _, p := range s.out {
		if p != nil && !p.room(recvBytes) {
			return true
		}
	}
	return false
}

// receive handles the bursts of other lanes; they stay valid until release.
func (s *siblings) receive(now mono.Time) (busy bool) {
	for i, p := range s.in {
		if p == nil {
			continue
		}
		if p.each(func(t *transfer) {
			s.self.HCA.Receive(now, &t.run)
			if t.run.Fault && t.from != nil {
				s.sourceFault(s.lanes[i], t.from, t.run)
			}
		}) {
			busy = true
		}
	}
	return busy
}

// sourceFault notifies the lane of from that its memory could not be read. r is a copy: the transfer is about to be
// reused.
func (s *siblings) sourceFault(owner *Lane, from *hca.QP, r pkt.Burst) {
	owner.Post(func() { from.SourceFault(owner.clock(), &r) })
}

// release returns to the pipes what receive handled.
func (s *siblings) release() {
	for _, p := range s.in {
		if p != nil {
			p.release()
		}
	}
}

// empty reports that nothing waits in the pipes to this lane.
func (s *siblings) empty() bool {
	for _, p := range s.in {
		if p != nil && p.head.Load() != p.tail.Load() {
			return false
		}
	}
	return true
}

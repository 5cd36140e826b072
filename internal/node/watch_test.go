// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"weft/internal/device/vhost"
	"weft/internal/verbs/hca"
)

// TestLaneSigns: a lane that runs what it is given is well, one that sleeps is
// not woken, one that does neither is stuck until it does.
func TestLaneSigns(t *testing.T) {
	l := &lane{}
	now, asked := time.Unix(1000, 0), time.Time{}
	pass := func(d time.Duration) { now = now.Add(d); asked = l.check(now, asked) }
	l.asleep.Store(true)
	for range 10 {
		pass(stuckAfter)
	}
	if l.stuck.Load() || len(l.inbox) != 0 {
		t.Fatal("a sleeping lane is woken, or counts as stuck")
	}
	l.asleep.Store(false)
	pass(watchPeriod)
	pass(stuckAfter - 1)
	if l.stuck.Load() || len(l.inbox) != 1 {
		t.Fatalf("stuck %v, asked %d times", l.stuck.Load(), len(l.inbox))
	}
	pass(1)
	if !l.stuck.Load() {
		t.Fatal("a lane that does not answer counts as well")
	}
	l.drain()
	pass(watchPeriod)
	if l.stuck.Load() {
		t.Error("a lane that answers counts as stuck")
	}
}

// TestNewSessionsAvoidStuckLanes: also where another has more sessions.
func TestNewSessionsAvoidStuckLanes(t *testing.T) {
	n := &Node{sessions: map[*vhost.Session]*door{}}
	for i := range 2 {
		n.lanes = append(n.lanes, &lane{hca: hca.NewLane(hca.NewFunctions(), i, nil, nil)})
	}
	for range 3 {
		n.sessions[&vhost.Session{}] = &door{lane: n.lanes[1]}
	}
	if n.quietest() != n.lanes[0] {
		t.Error("not the lane without sessions")
	}
	n.lanes[0].stuck.Store(true)
	if n.quietest() != n.lanes[1] {
		t.Error("a stuck lane gets more sessions")
	}
}

// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// The tests of this file are named for one transition each of a group: from, to and event. groupIP is the IP group that
// they follow, and no other.
var groupIP = netip.MustParseAddr("239.1.2.3")

// groupState returns the state of the group, or "removed".
func (n *node) groupState() string {
	if g := n.l.groups.table[n.l.groups.mgidOf(groupIP)]; g != nil {
		return g.state.String()
	}
	return "removed"
}

// expectGroup fails the test unless the group is in a state.
func (n *node) expectGroup(when, want string) {
	n.s.t.Helper()
	if got := n.groupState(); got != want {
		n.s.t.Fatalf("%s: the group is %s, want %s", when, got, want)
	}
}

// joining returns a link with a request to join the group under way, for a second.
func joining(t *testing.T, params ...string) (*subnet, *node) {
	s, a := alone(t, params...)
	s.delay = time.Second
	if err := a.l.JoinGroup(s.now, groupIP); err != nil {
		t.Fatal(err)
	}
	a.expectGroup("after JoinGroup", "joining")
	return s, a
}

// member returns a link that has joined the group.
func member(t *testing.T, params ...string) (*subnet, *node) {
	s, a := alone(t, params...)
	if err := a.l.JoinGroup(s.now, groupIP); err != nil {
		t.Fatal(err)
	}
	s.run(time.Second)
	a.expectGroup("after the answer", "member")
	return s, a
}

// absent returns a link that has sent to the group, which does not exist.
func absent(t *testing.T) (*subnet, *node) {
	s, a := alone(t)
	a.groupText(groupIP.String(), "x")
	a.expectGroup("after a frame", "absent")
	return s, a
}

func TestGroupIdleToJoiningOnPortActive(t *testing.T) {
	s, a := member(t)
	a.event(func(p *Port) { p.State = ib.PortDown })
	a.expectGroup("port down", "idle")
	s.delay = time.Second
	a.event(func(p *Port) { p.State = ib.PortActive })
	a.expectGroup("broadcast is joined first", "idle")
	s.run(1100 * time.Millisecond)
	a.expectGroup("broadcast is joined", "joining")
}

func TestGroupIdleToQueuedOnTooManyJoins(t *testing.T) {
	s, a := alone(t)
	s.delay = time.Second
	for i := range maxJoins {
		a.l.JoinGroup(s.now, netip.AddrFrom4([4]byte{239, 9, 0, byte(i)}))
	}
	a.l.JoinGroup(s.now, groupIP)
	a.expectGroup("all places taken", "queued")
}

func TestGroupQueuedToJoiningOnTurn(t *testing.T) {
	s, a := alone(t)
	s.delay = time.Second
	for i := range maxJoins {
		a.l.JoinGroup(s.now, netip.AddrFrom4([4]byte{239, 9, 0, byte(i)}))
	}
	a.l.JoinGroup(s.now, groupIP)
	s.run(1500 * time.Millisecond)
	a.expectGroup("after the others", "joining")
	s.run(time.Second)
	a.expectGroup("after the answer", "member")
}

func TestGroupQueuedToRemovedOnLeave(t *testing.T) {
	s, a := alone(t)
	s.delay = time.Second
	for i := range maxJoins {
		a.l.JoinGroup(s.now, netip.AddrFrom4([4]byte{239, 9, 0, byte(i)}))
	}
	a.l.JoinGroup(s.now, groupIP)
	a.l.LeaveGroup(s.now, groupIP)
	a.expectGroup("not needed any more", "removed")
}

func TestGroupJoiningToMemberOnResponse(t *testing.T) {
	s, a := joining(t)
	s.run(time.Second)
	a.expectGroup("after the answer", "member")
	mgid := a.l.groups.mgidOf(groupIP)
	if g := a.l.groups.table[mgid]; g.granted != mad.JoinFull || g.ah == nil || a.attached[mgid] != g.rec.MLID {
		t.Errorf("granted %d, address vector %v, attached at %#x", g.granted, g.ah, a.attached[mgid])
	}
}

func TestGroupJoiningToBackoffOnRefusal(t *testing.T) {
	s, a := joining(t)
	s.replies, s.delay, s.refuse = nil, 0, mad.StatusSANoResources
	s.run(1500 * time.Millisecond)
	a.expectGroup("refused", "backoff")
	if g := a.l.groups.table[a.l.groups.mgidOf(groupIP)]; !g.timer.IsSet() || g.reason != "no resources" {
		t.Errorf("timer %v, reason %q", g.timer.IsSet(), g.reason)
	}
}

func TestGroupJoiningToBackoffOnSilence(t *testing.T) {
	s, a := joining(t, "mcast_retry_cnt=1")
	s.replies, s.silent = nil, true
	s.run(1900 * time.Millisecond)
	a.expectGroup("asked twice", "joining")
	s.run(200 * time.Millisecond)
	a.expectGroup("no answer", "backoff")
}

func TestGroupJoiningToIdleOnPortDown(t *testing.T) {
	_, a := joining(t)
	a.event(func(p *Port) { p.State = ib.PortDown })
	a.expectGroup("port down", "idle")
}

func TestGroupJoiningToAbsentOnNotFound(t *testing.T) {
	_, a := absent(t)
	if n := a.counter("drop_mcast_not_joined"); n != 1 {
		t.Errorf("%d frames dropped", n)
	}
}

func TestGroupBackoffToJoiningOnTimer(t *testing.T) {
	s, a := joining(t, "mcast_retry_cnt=0")
	s.replies, s.silent = nil, true
	s.run(1100 * time.Millisecond)
	a.expectGroup("no answer", "backoff")
	s.run(1300 * time.Millisecond)
	a.expectGroup("a second later", "joining")
}

func TestGroupBackoffToJoiningOnCreation(t *testing.T) {
	s, a := joining(t, "mcast_retry_cnt=0")
	s.replies, s.silent = nil, true
	s.run(1100 * time.Millisecond)
	a.expectGroup("no answer", "backoff")
	a.l.Notice(s.now, mad.TrapGroupCreated, a.l.groups.mgidOf(groupIP))
	a.expectGroup("trap 66", "joining")
}

func TestGroupBackoffToLeavingOnLeave(t *testing.T) {
	s, a := joining(t, "mcast_retry_cnt=0")
	s.replies, s.silent = nil, true
	s.run(1100 * time.Millisecond)
	a.expectGroup("no answer", "backoff")
	a.l.LeaveGroup(s.now, groupIP)
	a.expectGroup("the join may have been granted", "leaving")
}

func TestGroupAbsentToRemovedOnTimer(t *testing.T) {
	s, a := absent(t)
	s.run(absentFor)
	a.expectGroup("after a while", "removed")
}

func TestGroupAbsentToJoiningOnTimer(t *testing.T) {
	s, a := absent(t)
	a.l.JoinGroup(s.now, groupIP)
	a.expectGroup("the end of absence is waited for", "absent")
	s.delay = time.Second
	s.run(absentFor)
	a.expectGroup("after a while", "joining")
}

func TestGroupAbsentToJoiningOnCreation(t *testing.T) {
	s, a := absent(t)
	a.l.JoinGroup(s.now, groupIP)
	s.delay = time.Second
	a.l.Notice(s.now, mad.TrapGroupCreated, a.l.groups.mgidOf(groupIP))
	a.expectGroup("trap 66", "joining")
}

func TestGroupMemberToLeavingOnLeave(t *testing.T) {
	s, a := member(t)
	s.delay = 100 * time.Millisecond
	a.l.LeaveGroup(s.now, groupIP)
	a.expectGroup("after LeaveGroup", "leaving")
	mgid := a.l.groups.mgidOf(groupIP)
	if g := a.l.groups.table[mgid]; g.granted != 0 || g.ah != nil || a.attached[mgid] != 0 {
		t.Errorf("granted %d, address vector %v, attached at %#x", g.granted, g.ah, a.attached[mgid])
	}
}

func TestGroupMemberToLeavingOnClose(t *testing.T) {
	s, a := member(t)
	s.delay = 100 * time.Millisecond
	a.l.Close(s.now)
	a.expectGroup("device down", "leaving")
}

func TestGroupMemberToJoiningOnDeletion(t *testing.T) {
	s, a := member(t)
	s.delay = time.Second
	a.l.Notice(s.now, mad.TrapGroupDeleted, a.l.groups.mgidOf(groupIP))
	a.expectGroup("trap 67", "joining")
}

func TestGroupMemberToIdleOnReregister(t *testing.T) {
	s, a := member(t)
	s.delay = time.Second
	a.event(nil, ib.EventReregister)
	a.expectGroup("broadcast is joined first", "idle")
	if a.attached[a.l.groups.mgidOf(groupIP)] == 0 {
		t.Error("the queue pair is detached")
	}
	s.run(2500 * time.Millisecond)
	a.expectGroup("after both answers", "member")
}

func TestGroupLeavingToRemovedOnResponse(t *testing.T) {
	s, a := member(t)
	a.l.LeaveGroup(s.now, groupIP)
	s.run(time.Second)
	a.expectGroup("after the answer", "removed")
}

func TestGroupLeavingToJoiningOnResponse(t *testing.T) {
	s, a := member(t)
	s.delay = 100 * time.Millisecond
	a.l.LeaveGroup(s.now, groupIP)
	a.l.JoinGroup(s.now, groupIP)
	a.expectGroup("the answer is waited for", "leaving")
	s.run(150 * time.Millisecond)
	a.expectGroup("after the answer", "joining")
}

func TestGroupLeavingToBackoffOnSilence(t *testing.T) {
	s, a := member(t)
	s.silent = true
	a.l.LeaveGroup(s.now, groupIP)
	s.run(leaveWait + leaveWait)
	a.expectGroup("no answer", "backoff")
	s.silent = false
	s.run(2 * time.Second)
	a.expectGroup("the next one is answered", "removed")
}

// TestGroupTransitions: each state is left by an event, each event ends in a state, and no event leads nowhere.
func TestGroupTransitions(t *testing.T) {
	var left [numGroupStates]bool
	var known [numGroupEvents]bool
	for from, row := range groupTransitions {
		for ev, to := range row {
			if to == 0 {
				continue
			}
			known[ev] = true
			if to != stay {
				left[from] = true
			}
			if to > settled {
				t.Errorf("%v: event %d leads to %d", groupState(from), ev, to)
			}
			g := &group{state: groupState(from), granted: mad.JoinFull}
			g.transition(groupEvent(ev))
			switch {
			case to == stay && g.state != groupState(from), to == settled && g.state != groupMember, to < stay &&
				g.state != to:
				t.Errorf("%v: event %d led to %v", groupState(from), ev, g.state)
			}
		}
	}
	for s, ok := range left {
		if !ok {
			t.Errorf("%v is never left", groupState(s))
		}
	}
	for ev, ok := range known {
		if !ok {
			t.Errorf("event %d does not occur", ev)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ipoib

import "strconv"

// groupState is how far the membership in a multicast group has come: what was requested of the subnet administration
// and not answered. What a membership that was granted permits is in group.granted, in every state.
type groupState uint8

const (
	// groupIdle: not a member, and nothing is requested: no membership is needed, or the port or the broadcast group is
	// not ready, of which each comes back to all groups. A need for it makes the group queued or joining.
	groupIdle groupState = iota
	// groupQueued: a join waits for others to end, since maxJoins are under way. Its turn makes it joining; when no
	// membership is needed any more it is leaving, or is removed.
	groupQueued
	// groupJoining: a request to join is under way. A record makes it a member; a refusal or silence, backoff,
	// absent, or idle for another attempt at once.
	groupJoining
	// groupMember: a membership is granted, and nothing is requested. Frames are sent, and received where it is
	// full. Need of another membership makes it queued or joining; the end of the need, leaving; an event of the
	// subnet, idle.
	groupMember
	// groupLeaving: a request to leave is under way. An answer makes it a member of what is left, or idle; silence,
	// backoff, since the membership may still be in effect.
	groupLeaving
	// groupBackoff: the last request failed. The next one follows when its timer fires, or an event of the
	// subnet, or the end of the need, cuts it short.
	groupBackoff
	// groupAbsent: the group does not exist, and the link only sends to it. Its frames go to the routers, or are
	// dropped, until its timer fires, or the group is created.
	groupAbsent

	numGroupStates = iota
)

var groupStateNames = [numGroupStates]string{"idle", "queued", "joining", "member", "leaving", "backoff", "absent"}

// String returns the state's name.
func (s groupState) String() string { return groupStateNames[s] }

// groupEvent changes the state of a group.
type groupEvent uint8

const (
	groupJoinQueued  groupEvent = iota // a join has to wait for its turn
	groupTurn                          // the turn of a queued join has come
	groupJoinSent                      // a request to join was sent
	groupGranted                       // the answer to a join is a record, and the queue pair follows it
	groupJoinFailed                    // a join was refused, not answered, or not possible here
	groupJoinRetried                   // the same, and the next attempt follows at once
	groupNotFound                      // the group to send to does not exist
	groupLeaveSent                     // a request to leave was sent
	groupLeft                          // it was answered
	groupLeaveLost                     // it was not answered
	groupTimer                         // the timer fired, or was cut short
	groupDeleted                       // the group was deleted: its membership is void
	groupReset                         // the subnet may have forgotten all memberships, or the port lost them

	numGroupEvents = iota
)

// Results of transitions beside states: stay leaves the state as it is; settled is groupMember or groupIdle, by whether
// a membership is granted.
const (
	stay    groupState = numGroupStates + iota
	settled groupState = numGroupStates + iota
)

// groupTransitions has the next state by state and event. A pair without one, which is 0, does not occur; groupIdle is
// reached by settled only.
var groupTransitions = [numGroupStates][numGroupEvents]groupState{
	groupIdle: {groupJoinQueued: groupQueued, groupJoinSent: groupJoining, groupLeaveSent: groupLeaving,
		groupTimer: stay,
		groupReset: stay},
	groupQueued: {groupTurn: settled, groupJoinSent: groupJoining, groupLeaveSent: groupLeaving, groupTimer: stay,
		groupDeleted: stay, groupReset: stay},
	groupJoining: {groupGranted: groupMember, groupJoinFailed: groupBackoff, groupJoinRetried: settled,
		groupNotFound: groupAbsent, groupTimer: stay, groupDeleted: settled, groupReset: settled},
	groupMember: {groupJoinQueued: groupQueued, groupJoinSent: groupJoining, groupJoinFailed: groupBackoff,
		groupLeaveSent: groupLeaving, groupTimer: stay, groupDeleted: settled, groupReset: settled},
	groupLeaving: {groupLeft: settled, groupLeaveLost: groupBackoff, groupTimer: stay, groupDeleted: settled,
		groupReset: settled},
	groupBackoff: {groupTimer: settled, groupDeleted: stay, groupReset: settled},
	groupAbsent:  {groupTimer: settled, groupDeleted: stay, groupReset: settled},
}

// transition changes the state of a group by an event.
func (g *group) transition(ev groupEvent) {
	switch next := groupTransitions[g.state][ev]; next {
	case 0:
		if invariants {
			panic("a bug: group event " + strconv.Itoa(int(ev)) + " in state " + g.state.String())
		}
	case stay:
	case settled:
		g.state = groupIdle
		if g.granted != 0 {
			g.state = groupMember
		}
	default:
		g.state = next
	}
}

// busy reports whether a group waits for an answer or its timer.
func (g *group) busy() bool { return g.state >= groupJoining && g.state != groupMember }

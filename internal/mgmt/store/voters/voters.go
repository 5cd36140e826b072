// SPDX-License-Identifier: Apache-2.0

// Package voters decides which members of a fabric keep the store: which of them vote in its consensus group, and
// which hold a copy.
//
// What comes in: the members of the fabric, the replicas of the group with their health, settings, the time. What goes
// out: at most one change of the group. The leader of the group calls Decide again after each change and about once a
// second; package store/etcd executes the change. A node that finds the files of a replica at its start calls Resume
// before it uses them. Both are pure functions: no clock, goroutine, log or socket.
//
// The group is that of Raft, with changes of one replica at a time (Ongaro, Consensus: Bridging Theory and Practice,
// section 4.1). Terms: a replica votes or learns. A learner has a copy of the log and does not count for the majority.
// A member without a replica is a client. The quorum is the majority of the voters.
package voters

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/mono"
)

// Settings are the rules of a fabric. Zero values are defaults.
type Settings struct {
	Voters       int           // of three members and more; 3
	ManyVoters   int           // from Many members on; 5
	Many         int           // 7
	ReplaceAfter time.Duration // absence of a voter until another replaces it; 5 min
	JoinTimeout  time.Duration // for a learner to start, and five times that to catch up; 1 min
}

func (s Settings) filled() Settings {
	s.Voters, s.ManyVoters, s.Many = cmp.Or(s.Voters, 3), cmp.Or(s.ManyVoters, 5), cmp.Or(s.Many, 7)
	s.ReplaceAfter, s.JoinTimeout = cmp.Or(s.ReplaceAfter, 5*time.Minute), cmp.Or(s.JoinTimeout, time.Minute)
	return s
}

// Validate returns what is wrong with the settings.
func (s Settings) Validate() error {
	s = s.filled()
	switch {
	case s.Voters < 1 || s.Voters%2 == 0 || s.ManyVoters%2 == 0:
		return fmt.Errorf("the number of voters is odd, not %d and %d", s.Voters, s.ManyVoters)
	case s.ManyVoters < s.Voters || s.ManyVoters > MaxVoters:
		return fmt.Errorf("the number of voters of a large fabric is %d to %d, not %d", s.Voters, MaxVoters,
			s.ManyVoters)
	case s.Many < s.ManyVoters:
		return fmt.Errorf("%d voters need as many members, not %d", s.ManyVoters, s.Many)
	case s.ReplaceAfter < MinReplaceAfter:
		return fmt.Errorf("a voter is replaced after %v of absence or more, not %v", MinReplaceAfter, s.ReplaceAfter)
	}
	return nil
}

// Bounds of settings.
const (
	MaxVoters       = 7
	MinReplaceAfter = 10 * time.Second
)

// MaxLearners is the largest number of learners that Decide produces: two that become voters together.
const MaxLearners = 2

// Member is a member of the fabric.
type Member struct {
	Name    string // unique
	Joined  uint64 // order of the joins: the revision of the member's record
	Seen    mono.Time
	Present bool // it is connected to the store; Seen is when this was last so
	Able    bool // it may have a replica: it has a disk, and others reach its address
	Leaving bool // it is to leave the fabric as soon as it is not needed
}

// Replica is a replica of the group, as its leader sees it.
type Replica struct {
	ID      uint64
	Name    string // of its member; a replica without a member belongs to one that was removed
	Learner bool
	Alive   bool      // it exchanges messages with the leader now; true of the leader
	Synced  bool      // of a learner: its log is nearly that of the leader
	Leader  bool      // it is the leader, which executes the change
	Since   mono.Time // when the leader saw it first in this role
}

// Kind is a kind of change.
type Kind uint8

// Changes.
const (
	None       Kind = iota
	AddLearner      // of a member that is a client
	Promote         // a learner to a voter
	Remove          // the replica of a member that leaves the fabric, or left it
	MakeClient      // remove the replica of a member that stays in the fabric
	Transfer        // make a voter the leader: it then removes the present one
)

func (k Kind) String() string {
	return [...]string{"none", "add learner", "promote", "remove", "make client", "transfer to"}[k]
}

// Change is one change of the group.
type Change struct {
	Kind Kind
	Name string // of the member; of a replica without member its last known name
	ID   uint64 // of the replica; 0 of AddLearner
	Why  string // also of None
}

// Target returns how many of n members vote, and how many others have a copy without a vote.
func (s Settings) Target(n int) (voters, copies int) {
	s = s.filled()
	switch {
	case n < 2:
		return 1, 0
	case n == 2:
		// Of two voters each death stops changes. With one voter only its own death does.
		return 1, 1
	case n >= s.Many:
		return s.ManyVoters, 0
	}
	return min(s.Voters, (n-1)/2*2+1), 0
}

// Decide returns the change to execute now, at most one. The caller is the leader of the group and calls again when the
// change is complete.
//
// The leader never removes itself: a follower could miss that the removal is committed, and wait for the vote of a
// replica that is gone.
//
// A change that could cost the group its quorum is never returned: after the change the voters that are alive are a
// majority of all voters. A voter is removed for its absence only when a learner that can replace it has caught up.
func Decide(now mono.Time, s Settings, members []Member, replicas []Replica) Change {
	d := newDecision(now, s.filled(), members, replicas)
	if !d.hasQuorum(0, 0) {
		return Change{Why: fmt.Sprintf("%d of %d voters are alive: no change without a majority", d.alive,
			len(d.voters))}
	}
	for _, rule := range []func(*decision) Change{
		(*decision).expel, (*decision).dropLearner, (*decision).shrink, (*decision).replace, (*decision).grow,
		(*decision).trim} {
		if c := rule(d); c.Kind != None || c.Why != "" {
			return c
		}
	}
	return Change{Why: "the group is as it shall be"}
}

// decision is the input, sorted.
type decision struct {
	now     mono.Time
	s       Settings
	members map[string]*Member
	// Oldest members first. Those that leave are not candidates and do not count for the target.
	voters, learners []Replica
	candidates       []*Member
	alive            int // voters
	want, copies     int
}

func newDecision(now mono.Time, s Settings, members []Member, replicas []Replica) *decision {
	d := &decision{now: now, s: s, members: map[string]*Member{}}
	staying := 0
	for i := range members {
		d.members[members[i].Name] = &members[i]
		if !members[i].Leaving {
			staying++
		}
	}
	d.want, d.copies = s.Target(staying)
	has := map[string]bool{}
	for _, r := range replicas {
		has[r.Name] = true
		if r.Learner {
			d.learners = append(d.learners, r)
			continue
		}
		d.voters = append(d.voters, r)
		if r.Alive {
			d.alive++
		}
	}
	for i := range members {
		if m := &members[i]; !has[m.Name] && m.Present && m.Able && !m.Leaving {
			d.candidates = append(d.candidates, m)
		}
	}
	older := func(a, b Replica) int { return cmp.Or(cmp.Compare(d.joined(a), d.joined(b)), cmp.Compare(a.ID, b.ID)) }
	slices.SortFunc(d.voters, older)
	slices.SortFunc(d.learners, older)
	slices.SortFunc(d.candidates, func(a, b *Member) int {
		return cmp.Or(cmp.Compare(a.Joined, b.Joined), cmp.Compare(a.Name, b.Name))
	})
	return d
}

func (d *decision) joined(r Replica) uint64 {
	if m := d.members[r.Name]; m != nil {
		return m.Joined
	}
	return ^uint64(0)
}

// hasQuorum reports whether the group has a majority when its voters and those of them that are alive change in number.
func (d *decision) hasQuorum(voters, alive int) bool {
	n := len(d.voters) + voters
	return n > 0 && d.alive+alive > n/2
}

// mayRemove reports whether the group has a majority without a voter.
func (d *decision) mayRemove(r Replica) bool {
	gone := 0
	if r.Alive {
		gone = -1
	}
	return d.hasQuorum(-1, gone)
}

// stays reports whether the member of a replica remains in the fabric.
func (d *decision) stays(r Replica) bool {
	m := d.members[r.Name]
	return m != nil && !m.Leaving
}

// away reports whether the member of a replica has been absent for long.
func (d *decision) away(r Replica) bool {
	m := d.members[r.Name]
	return m != nil && !r.Alive && !m.Present && d.now.Sub(m.Seen) >= d.s.ReplaceAfter
}

// removal is the change that takes a replica away. The leader first hands its part to another voter.
func (d *decision) removal(r Replica, format string, args ...any) Change {
	if r.Leader {
		for _, o := range d.voters {
			if !o.Leader && o.Alive {
				return Change{Kind: Transfer, Name: o.Name, ID: o.ID, Why: fmt.Sprintf("%s leads, and goes: ", r.Name) +
					fmt.Sprintf(format, args...)}
			}
		}
		return Change{Why: r.Name + " leads, and no other voter can"}
	}
	k := Remove
	if d.stays(r) {
		k = MakeClient
	}
	return Change{Kind: k, Name: r.Name, ID: r.ID, Why: fmt.Sprintf(format, args...)}
}

// expel removes the replicas of members that were removed from the fabric, at once.
func (d *decision) expel() Change {
	for _, r := range slices.Concat(d.learners, d.voters) {
		if d.members[r.Name] != nil {
			continue
		}
		if r.Learner || d.mayRemove(r) {
			return d.removal(r, "its member was removed from the fabric")
		}
	}
	return Change{}
}

// dropLearner removes learners that leave, or do not catch up. They count for nothing: this never costs the quorum.
func (d *decision) dropLearner() Change {
	for _, r := range d.learners {
		switch {
		case !d.stays(r):
			return d.removal(r, "its member leaves the fabric")
		case d.away(r):
			return d.removal(r, "it is away")
		case !r.Synced && !r.Alive && d.now.Sub(r.Since) >= d.s.JoinTimeout:
			return d.removal(r, "it did not start within %v", d.s.JoinTimeout)
		case !r.Synced && d.now.Sub(r.Since) >= 5*d.s.JoinTimeout: // its files were lost
			return d.removal(r, "it did not catch up within %v", 5*d.s.JoinTimeout)
		}
	}
	return Change{}
}

// shrink removes voters that are more than the fabric has use for: absent ones first, then those that leave, then the
// youngest. The leader is the last: its removal costs an election.
func (d *decision) shrink() Change {
	if len(d.voters) <= d.want {
		return Change{}
	}
	rank := func(r Replica) int {
		switch {
		case !r.Alive:
			return 0
		case !d.stays(r):
			return 1
		case !r.Leader:
			return 2
		}
		return 3
	}
	order := slices.Clone(d.voters)
	slices.Reverse(order) // the youngest first
	slices.SortStableFunc(order, func(a, b Replica) int { return cmp.Compare(rank(a), rank(b)) })
	for _, r := range order {
		if d.mayRemove(r) && d.serves(r) {
			return d.removal(r, "%d voters are enough", d.want)
		}
	}
	return Change{}
}

// serves reports whether a voter that is alive and stays remains without r.
func (d *decision) serves(r Replica) bool {
	return slices.ContainsFunc(d.voters, func(o Replica) bool { return o.ID != r.ID && o.Alive && d.stays(o) })
}

// replace replaces voters that leave or are away: a learner catches up first, then the voter is removed, then the
// learner is promoted (grow).
func (d *decision) replace() Change {
	// Where a voter is missing, the learner that is ready becomes it.
	if len(d.voters) < d.want && len(d.voters)%2 == 0 && d.ready() != nil {
		return Change{}
	}
	for _, r := range d.voters {
		leaves := !d.stays(r)
		if !leaves && !d.away(r) || !d.mayRemove(r) && len(d.voters) > 1 {
			continue
		}
		why := "it is away"
		if leaves {
			why = "its member leaves the fabric"
		}
		if l := d.ready(); l != nil {
			if len(d.voters) == 1 { // the leader itself leaves: another votes first
				return Change{Kind: Promote, Name: l.Name, ID: l.ID, Why: r.Name + " leaves the fabric"}
			}
			return d.removal(r, "%s, and %s replaces it", why, l.Name)
		}
		if len(d.learners) > 0 {
			return Change{Why: d.learners[0].Name + " catches up to replace " + r.Name}
		}
		if len(d.candidates) > 0 {
			return Change{Kind: AddLearner, Name: d.candidates[0].Name, Why: "it shall replace " + r.Name}
		}
		if leaves && len(d.voters) > 1 && d.serves(r) {
			return d.removal(r, "%s, and no member can replace it", why)
		}
	}
	return Change{}
}

// ready returns the oldest learner that can vote at once, nil if there is none.
func (d *decision) ready() *Replica {
	for i := range d.learners {
		if r := &d.learners[i]; r.Alive && r.Synced && d.stays(*r) {
			return r
		}
	}
	return nil
}

func (d *decision) countReady() (n int) {
	for _, r := range d.learners {
		if r.Alive && r.Synced && d.stays(r) {
			n++
		}
	}
	return n
}

// grow adds voters up to the target, from one odd number to the next: an even number survives no more deaths than the
// odd one below it, so that two learners catch up before the first of them votes.
func (d *decision) grow() Change {
	missing := d.want - len(d.voters)
	if missing > 0 {
		step := min(1+len(d.voters)%2, missing)
		if d.countReady() >= step && d.hasQuorum(1, 1) {
			l := d.ready()
			return Change{Kind: Promote, Name: l.Name, ID: l.ID, Why: fmt.Sprintf("the fabric shall have %d voters",
				d.want)}
		}
		// One after the other: a learner that joins needs the list of replicas as it is.
		if d.countReady() == len(d.learners) && len(d.learners) < step && len(d.candidates) > 0 &&
			len(d.learners)+len(d.candidates) >= step {
			return Change{Kind: AddLearner, Name: d.candidates[0].Name,
				Why: fmt.Sprintf("the fabric shall have %d voters", d.want)}
		}
	}
	// A single voter is not to have the only copy.
	if (d.copies > 0 || missing > 0 && len(d.voters) == 1) && len(d.learners) == 0 && len(d.candidates) > 0 {
		return Change{Kind: AddLearner, Name: d.candidates[0].Name, Why: "it shall have the second copy"}
	}
	return Change{}
}

// trim removes learners without a task.
func (d *decision) trim() Change {
	if len(d.voters) < d.want || len(d.learners) <= d.copies {
		return Change{}
	}
	if slices.ContainsFunc(d.voters, func(r Replica) bool { return !d.stays(r) || d.away(r) }) {
		return Change{}
	}
	return d.removal(d.learners[len(d.learners)-1], "%d voters are enough", d.want)
}

// SPDX-License-Identifier: Apache-2.0

package voters_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/internal/mgmt/store/voters"
	"weft/internal/proto/condtest"
	"weft/internal/proto/mono"
)

// entry is an entry of the log: a configuration, as Raft keeps it. config maps a replica to whether it votes.
type entry struct {
	term   int
	config map[uint64]bool
}

// files are what a host has of a replica.
type files struct {
	id    uint64
	group voters.Identity
	term  int // the highest that it voted in
	log   []entry
	known int // how much of log it knows to be committed
}

// removed reports whether a replica was removed, for all that f knows.
func (f *files) removed(id uint64) bool {
	was := false
	for _, e := range f.log[:f.known] {
		if _, in := e.config[id]; in {
			was = true
			continue
		}
		if was {
			return true
		}
	}
	return false
}

// config is the configuration in force: etcd's takes effect when it is known to be committed.
func (f *files) config() map[uint64]bool {
	if f.known == 0 {
		return nil
	}
	return f.log[f.known-1].config
}

func (f *files) lastTerm() int {
	if len(f.log) == 0 {
		return 0
	}
	return f.log[len(f.log)-1].term
}

// upToDate reports whether f votes for c (Raft, section 5.4.1).
func (f *files) upToDate(c *files) bool {
	return c.lastTerm() > f.lastTerm() || c.lastTerm() == f.lastTerm() && len(c.log) >= len(f.log)
}

// host is a host with its node.
type host struct {
	name    string
	joined  uint64
	up      bool
	member  bool
	leaving bool
	side    int // of the partition of the network
	files   *files
	clock   time.Duration // how far its clock is off
	seen    map[string]mono.Time
	since   map[uint64]mono.Time
	leading int // in this term, as of the last step; 0: it does not lead
}

// world is a fabric: Raft is reduced to elections, whole logs that are copied, and commits by a majority.
type world struct {
	*testing.T
	rnd    *rand.Rand
	now    mono.Time
	s      voters.Settings
	hosts  []*host
	nextID uint64
	names  map[uint64]string // of replicas
	// committed is the longest log that a majority has had: each leader has it.
	committed []entry
	trace     []string
	changes   map[voters.Kind]int
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%v ", time.Duration(w.now).Round(time.Second))+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.Helper()
	for _, l := range w.trace[max(0, len(w.trace)-60):] {
		w.Log(l)
	}
	w.Fatalf(format, args...)
}

// on are the hosts of one side with files.
func (w *world) on(side int) (list []*host) {
	for _, h := range w.hosts {
		if h.up && h.side == side && h.files != nil {
			list = append(list, h)
		}
	}
	return list
}

// majority reports whether hosts for which ok holds are a majority of the voters of a configuration.
func majority(config map[uint64]bool, hosts []*host, ok func(*host) bool) bool {
	voting, n := 0, 0
	for id, votes := range config {
		if !votes {
			continue
		}
		voting++
		if slices.ContainsFunc(hosts, func(h *host) bool { return h.files.id == id && ok(h) }) {
			n++
		}
	}
	return voting > 0 && n > voting/2
}

// electable are the hosts of a side that can be elected.
func (w *world) electable(side int) (list []*host) {
	on := w.on(side)
	for _, h := range on {
		if h.files.config()[h.files.id] && majority(h.files.config(), on,
			func(v *host) bool { return v.files.group == h.files.group && v.files.upToDate(h.files) }) {
			list = append(list, h)
		}
	}
	return list
}

// lead returns the leader of a side, nil if there is none, and has it elected if it is new.
func (w *world) lead(side int) *host {
	can := w.electable(side)
	for _, h := range w.hosts {
		if h.leading != 0 && !slices.Contains(can, h) && (h.side == side || !h.up) {
			h.leading = 0
		}
	}
	if len(can) == 0 {
		return nil
	}
	on := w.on(side)
	for _, h := range can {
		if h.leading != 0 && !slices.ContainsFunc(on, func(v *host) bool { return v.files.term > h.leading }) {
			return h
		}
	}
	h := can[w.rnd.IntN(len(can))]
	w.elect(h)
	return h
}

// elect makes a host that can be elected the leader.
func (w *world) elect(h *host) {
	on, term := w.on(h.side), 0
	for _, v := range on {
		term = max(term, v.files.term)
		v.leading = 0
	}
	term++
	// What was committed is in the log of each that can be elected.
	if !slices.EqualFunc(w.committed, h.files.log[:min(len(h.files.log), len(w.committed))],
		func(a, b entry) bool { return a.term == b.term && maps.Equal(a.config, b.config) }) {
		w.fail("%s is elected without what was committed", h.name)
	}
	h.leading, h.seen, h.since = term, map[string]mono.Time{}, map[uint64]mono.Time{}
	for _, v := range on {
		v.files.term = term
	}
	w.note("%s leads term %d of %v", h.name, term, h.files.config())
	w.append(h, maps.Clone(h.files.log[len(h.files.log)-1].config))
}

// append adds an entry to the log of a leader and copies it; it reports whether the entry is committed.
func (w *world) append(h *host, config map[uint64]bool) bool {
	h.files.log = append(slices.Clip(h.files.log), entry{h.leading, config})
	return w.replicate(h)
}

func (w *world) replicate(h *host) bool {
	on := w.on(h.side)
	has := func(v *host) bool {
		return v == h || len(v.files.log) == len(h.files.log) && v.files.lastTerm() == h.leading
	}
	for _, v := range on {
		if _, in := h.files.config()[v.files.id]; in && v.files.group == h.files.group && v != h && w.rnd.IntN(8) != 0 {
			// An append carries what the leader knows to be committed.
			v.files.log, v.files.term, v.files.known = h.files.log, h.leading, max(v.files.known, h.files.known)
		}
	}
	if !majority(h.files.config(), on, has) {
		return false
	}
	w.committed = h.files.log
	for _, v := range on {
		if v == h || has(v) && w.rnd.IntN(4) != 0 {
			v.files.known = len(v.files.log)
		}
	}
	return true
}

// answers is what the hosts of a side report to h.
func (w *world) answers(h *host) (list []voters.Answer) {
	for _, o := range w.on(h.side) {
		if o != h {
			list = append(list, voters.Answer{From: o.name, Group: o.files.group, Removed: o.files.removed(h.files.id)})
		}
	}
	return list
}

// step is one second of a side: stale files are set aside, the leader makes at most one change.
func (w *world) step(side int) {
	h := w.lead(side)
	for _, o := range w.on(side) {
		if v, why := voters.Resume(o.files.group, w.answers(o)); v == voters.SetAside {
			w.note("%s sets replica %d aside: %s", o.name, o.files.id, why)
			o.files, o.leading = nil, 0
			if o == h {
				return
			}
		}
	}
	if h == nil || !w.replicate(h) {
		return
	}
	now := w.now.Add(h.clock)
	config := h.files.config()
	var members []voters.Member
	present := map[string]bool{}
	for _, o := range w.hosts {
		if !o.member {
			continue
		}
		// A host with files of a replica that was removed is no client yet.
		here := o.up && o.side == side
		if o.files != nil {
			_, in := config[o.files.id]
			here = here && in
		}
		if _, known := h.seen[o.name]; here || !known {
			h.seen[o.name] = now
		}
		present[o.name] = here
		members = append(members, voters.Member{Name: o.name, Joined: o.joined, Seen: h.seen[o.name], Present: here,
			Able: true, Leaving: o.leaving})
	}
	var replicas []voters.Replica
	for id, votes := range config {
		if h.since[id] == 0 {
			h.since[id] = now
		}
		r := voters.Replica{ID: id, Name: w.names[id], Learner: !votes, Leader: id == h.files.id, Since: h.since[id]}
		for _, o := range w.on(side) {
			if o.files.id == id {
				r.Alive, r.Synced = true, len(o.files.log) == len(h.files.log)
			}
		}
		replicas = append(replicas, r)
	}
	c := voters.Decide(now, w.s, members, replicas)
	if c.Kind == voters.None {
		return
	}
	w.changes[c.Kind]++
	w.note("%s: %v %s %d: %s", h.name, c.Kind, c.Name, c.ID, c.Why)
	next := maps.Clone(config)
	var start *host
	switch c.Kind {
	case voters.AddLearner:
		i := slices.IndexFunc(w.hosts, func(o *host) bool { return o.name == c.Name })
		o := w.hosts[i]
		if o.files != nil || !present[c.Name] {
			w.fail("%s becomes a learner and has files, or is away", c.Name)
		}
		w.nextID++
		w.names[w.nextID] = c.Name
		next[w.nextID] = false
		start = o
	case voters.Promote:
		next[c.ID] = true
	case voters.Transfer:
		for _, o := range w.electable(side) {
			if o.files.id == c.ID {
				h.leading = 0
				w.elect(o)
			}
		}
		return
	default:
		delete(next, c.ID)
	}
	w.invariants(side, config, next)
	// A host starts a replica when its addition is committed; some never do.
	if w.append(h, next) && start != nil && w.rnd.IntN(5) != 0 {
		start.files = &files{id: w.nextID, group: h.files.group}
	}
}

// invariants checks a change that the leader of a side is about to make.
func (w *world) invariants(side int, before, after map[uint64]bool) {
	if !majority(after, w.on(side), func(*host) bool { return true }) {
		w.fail("the change from %v to %v costs the majority", before, after)
	}
	changed := 0
	for id, votes := range after {
		if was, in := before[id]; !in || was != votes {
			changed++
		}
	}
	for id := range before {
		if _, in := after[id]; !in {
			changed++
		}
	}
	if changed != 1 {
		w.fail("the change from %v to %v is %d changes", before, after, changed)
	}
}

const sides = 2

// check: at most one side has a group that can change anything.
func (w *world) check() {
	var can []string
	for side := range sides {
		if list := w.electable(side); len(list) > 0 {
			can = append(can, fmt.Sprintf("%s with %v", list[0].name, list[0].files.config()))
		}
	}
	if len(can) > 1 {
		w.fail("two groups: %q", can)
	}
}

// disturb makes one random event.
func (w *world) disturb() {
	h := w.hosts[w.rnd.IntN(len(w.hosts))]
	switch n := w.rnd.IntN(100); {
	case n < 30:
		if h.up = !h.up; !h.up {
			h.leading = 0
		}
		w.note("%s up: %v", h.name, h.up)
	case n < 45:
		h.side = w.rnd.IntN(sides)
		w.note("%s on side %d", h.name, h.side)
	case n < 55:
		for _, o := range w.hosts {
			o.side = 0
		}
		w.note("the network is whole")
	case n < 63:
		if !h.member && h.up && h.files == nil {
			h.member, h.leaving, h.joined = true, false, uint64(len(w.trace))
			w.note("%s joins", h.name)
		}
	case n < 68:
		if h.member && w.members() > 1 {
			h.leaving = true
			w.note("%s is to leave", h.name)
		}
	case n < 71:
		if h.member && w.members() > 1 {
			h.member = false
			w.note("%s is removed from the fabric", h.name)
		}
	case n < 76:
		h.clock += time.Duration(w.rnd.IntN(3600)) * time.Second // as after a suspended machine
		w.note("the clock of %s is ahead by %v", h.name, h.clock)
	default:
		w.now = w.now.Add(time.Duration(w.rnd.IntN(400)) * time.Second)
	}
}

func (w *world) members() (n int) {
	for _, h := range w.hosts {
		if h.member && !h.leaving {
			n++
		}
	}
	return n
}

// settle heals everything, and checks that the group becomes what it shall be.
func (w *world) settle() {
	for _, h := range w.hosts {
		h.up, h.side = true, 0
	}
	w.note("all is well")
	for range 400 {
		w.now = w.now.Add(10 * time.Second)
		w.step(0)
		w.check()
		for _, h := range w.hosts { // one that leaves goes when it has no replica
			if h.leaving && h.files == nil {
				h.member, h.leaving = false, false
			}
		}
	}
	h := w.lead(0)
	if h == nil {
		w.fail("no leader although all is well")
	}
	voting, learning := 0, 0
	for id, votes := range h.files.config() {
		if votes {
			voting++
		} else {
			learning++
		}
		i := slices.IndexFunc(w.hosts, func(o *host) bool { return o.files != nil && o.files.id == id })
		if i < 0 || !w.hosts[i].member {
			w.fail("replica %d of %s is nobody's", id, w.names[id])
		}
	}
	if v, l := w.s.Target(w.members()); voting != v || learning != l {
		w.fail("%d members have %d voters and %d learners, want %d and %d", w.members(), voting, learning, v, l)
	}
	for _, o := range w.hosts {
		if o.files != nil {
			if _, in := h.files.config()[o.files.id]; !in {
				w.fail("%s has files of a replica that is not in the group", o.name)
			}
		}
	}
}

// TestSimulation has hosts die, return, join, leave, be cut off, and their clocks jump.
func TestSimulation(t *testing.T) {
	runs := 150
	if condtest.Soak() {
		runs = 20000
	}
	changes := map[voters.Kind]int{}
	for seed := range uint64(runs) {
		w := &world{T: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: mono.Time(time.Hour), nextID: 1,
			names: map[uint64]string{1: "a"}, changes: changes}
		for i := range 3 + int(seed%8) {
			w.hosts = append(w.hosts, &host{name: string(rune('a' + i)), up: true})
		}
		first := w.hosts[0]
		first.member = true
		first.files = &files{id: 1, group: voters.Identity{Cluster: 1, Generation: 1}, term: 1,
			known: 1, log: []entry{{1, map[uint64]bool{1: true}}}}
		for i := range 400 {
			if w.rnd.IntN(3) == 0 {
				w.disturb()
			}
			w.now = w.now.Add(time.Second)
			for side := range sides {
				w.step(side)
			}
			w.check()
			if i%200 == 199 {
				w.settle()
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	for k := voters.AddLearner; k <= voters.Transfer; k++ {
		if changes[k] < runs/2 {
			t.Errorf("%d changes are %v: the simulation does not reach it", changes[k], k)
		}
	}
	t.Logf("changes: %v", changes)
}

// SPDX-License-Identifier: Apache-2.0

package voters_test

import (
	"strings"
	"testing"
	"time"

	"weft/internal/mgmt/store/voters"
	"weft/internal/proto/mono"
)

// at is the time of all table tests.
const at = mono.Time(time.Hour)

// members reads "a b- c! d?": a is present, b has been away for ten minutes, c is to leave, d is present and not able
// to have a replica. They joined in this order.
func members(s string) (list []voters.Member) {
	for i, f := range strings.Fields(s) {
		m := voters.Member{Name: f[:1], Joined: uint64(i + 1), Seen: at, Present: true, Able: true}
		for _, c := range f[1:] {
			switch c {
			case '-':
				m.Present, m.Seen = false, at.Add(-10*time.Minute)
			case '~':
				m.Present, m.Seen = false, at.Add(-time.Minute)
			case '!':
				m.Leaving = true
			case '?':
				m.Able = false
			}
		}
		list = append(list, m)
	}
	return list
}

// replicas reads "A b c* d-": capitals are learners, * is the leader, - is not alive, + a learner that has caught up.
func replicas(s string) (list []voters.Replica) {
	for i, f := range strings.Fields(s) {
		r := voters.Replica{ID: uint64(100 + i), Name: strings.ToLower(f[:1]), Learner: f[0] < 'a', Alive: true, Since: at}
		for _, c := range f[1:] {
			switch c {
			case '-':
				r.Alive, r.Since = false, at.Add(-10*time.Minute)
			case '+':
				r.Synced = true
			case '*':
				r.Leader = true
			}
		}
		list = append(list, r)
	}
	return list
}

func TestDecide(t *testing.T) {
	for _, tt := range []struct{ about, members, replicas, want string }{
		{"a single host", "a", "a*", "none"},
		{"the second gets a copy", "a b", "a*", "add learner b"},
		{"and no vote", "a b", "a* B+", "none"},
		{"an older member that cannot", "a b? c", "a*", "add learner c"},
		{"the third: two learn before the first of them votes", "a b c", "a* B+", "add learner c"},
		{"one has not caught up", "a b c", "a* B+ C", "none"},
		{"both have", "a b c", "a* B+ C+", "promote b"},
		{"one after the other", "a b c", "a* b C+", "promote c"},
		{"three are enough for six", "a b c d e f", "a* b c", "none"},
		{"five of seven", "a b c d e f g", "a* b c", "add learner d"},
		{"five of seven, two learn", "a b c d e f g", "a* b c D+", "add learner e"},
		{"five of seven, promoted", "a b c d e f g", "a* b c D+ E+", "promote d"},
		{"seven shrink to six", "a b c d e f", "a* b c d e", "make client e"},
		{"the absent one first", "a b c~ d e f", "a* b c- d e", "make client c"},
		{"the youngest that does not lead", "a b c d e f", "a b c d e*", "make client d"},
		{"a short absence", "a b c~ d", "a* b c-", "none"},
		{"a long one", "a b c- d", "a* b c-", "add learner d"},
		{"a long one of a host that still sends heartbeats", "a b c d", "a* b c-", "none"},
		{"its replacement learns", "a b c- d", "a* b c- D", "none"},
		{"its replacement is ready", "a b c- d", "a* b c- D+", "make client c"},
		{"and votes", "a b c- d", "a* b D+", "promote d"},
		{"the absent one returned while its replacement learned", "a b c d", "a* b c D+", "make client d"},
		{"nobody can replace it", "a b c-", "a* b c-", "none"},
		{"no majority", "a b- c- d", "a* b- c-", "none"},
		{"two of five are away: one after the other", "a b c d- e- f g", "a* b c d- e-", "add learner f"},
		{"one leaves", "a b c! d", "a* b c", "add learner d"},
		{"one leaves, replaced", "a b c! d", "a* b c D+", "remove c"},
		{"one leaves, none can replace it", "a b c! d-", "a* b c", "remove c"},
		{"one of three leaves", "a b c!", "a* b c", "remove c"},
		{"the other two", "a b", "a* b", "make client b"},
		{"one of two, one dead", "a b-", "a* b-", "none"},
		{"the leader leaves", "a! b c d", "a* b c D+", "transfer to b"},
		{"the leader leaves, another leads", "a! b c d", "a b* c D+", "remove a"},
		{"the only voter leaves", "a! b", "a* B+", "promote b"},
		{"and hands over", "a! b", "a* b", "transfer to b"},
		{"and is removed", "a! b", "a b*", "remove a"},
		{"removed from the fabric", "a b", "a* b c", "remove c"},
		{"removed, but the majority needs it", "a b-", "a* b- c", "make client b"},
		{"removed, needed, and replaced first", "a b- d", "a* b- c", "add learner d"},
		{"a learner removed from the fabric", "a b", "a* C+ B+", "remove c"},
		{"a learner that does not start", "a b c d~", "a* b c D-", "make client d"},
		{"a learner without a task", "a b c d", "a* b c D+", "make client d"},
		{"a copy where a third cannot vote", "a b c?", "a*", "add learner b"},
		{"and it stays one", "a b c?", "a* B+", "none"},
	} {
		c := voters.Decide(at, voters.Settings{}, members(tt.members), replicas(tt.replicas))
		got := strings.TrimSpace(c.Kind.String() + " " + c.Name)
		if c.Kind == voters.None {
			got = "none"
		}
		if got != tt.want || c.Why == "" {
			t.Errorf("%s: members %q, replicas %q: %s (%s), want %s", tt.about, tt.members, tt.replicas, got, c.Why, tt.want)
		}
	}
}

func TestSettings(t *testing.T) {
	for _, s := range []voters.Settings{{}, {Voters: 1}, {Voters: 5, Many: 5}, {ReplaceAfter: time.Hour}} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
	for _, s := range []voters.Settings{{Voters: 2}, {ManyVoters: 4}, {Voters: 5, ManyVoters: 3}, {ManyVoters: 9},
		{Many: 4}, {ReplaceAfter: time.Second}, {Voters: -1}} {
		if s.Validate() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
	for n, want := range []int{1, 1, 1, 3, 3, 3, 3, 5, 5} {
		if got, copies := (voters.Settings{}).Target(n); got != want || (copies == 1) != (n == 2) {
			t.Errorf("%d members have %d voters and %d copies, want %d", n, got, copies, want)
		}
	}
}

func TestResume(t *testing.T) {
	own := voters.Identity{Cluster: 7, Generation: 2}
	answer := func(cluster, generation uint64, removed bool) voters.Answer {
		return voters.Answer{From: "b", Group: voters.Identity{Cluster: cluster, Generation: generation}, Removed: removed}
	}
	for _, tt := range []struct {
		about   string
		answers []voters.Answer
		want    voters.Verdict
	}{
		{"nobody answers", nil, voters.Start},
		{"still there", []voters.Answer{answer(7, 2, false)}, voters.Start},
		{"removed", []voters.Answer{answer(7, 2, true)}, voters.SetAside},
		{"one that lags does not have that", []voters.Answer{answer(7, 2, true), answer(7, 2, false)}, voters.SetAside},
		{"a store restored meanwhile", []voters.Answer{answer(8, 3, false)}, voters.SetAside},
		{"one from before the restore", []voters.Answer{answer(6, 1, true)}, voters.Start},
		{"restored twice", []voters.Answer{answer(8, 2, false), answer(7, 2, true)}, voters.Conflict},
		{"restored twice, and once more", []voters.Answer{answer(8, 2, false), answer(9, 3, false)}, voters.SetAside},
	} {
		if got, why := voters.Resume(own, tt.answers); got != tt.want || (why == "") != (got == voters.Start) {
			t.Errorf("%s: %v (%s), want %v", tt.about, got, why, tt.want)
		}
		// The files are never given up for what the node does not know.
		if got, why := voters.Resume(voters.Identity{}, tt.answers); got != voters.Start || why != "" {
			t.Errorf("%s, of a group that is not known: %v (%s)", tt.about, got, why)
		}
	}
	// Where the number of the group alone is known, its members' reports count.
	for removed, want := range map[bool]voters.Verdict{true: voters.SetAside, false: voters.Start} {
		others := []voters.Answer{answer(8, 3, true), answer(7, 2, removed)}
		if got, why := voters.Resume(voters.Identity{Cluster: 7}, others); got != want {
			t.Errorf("removed is %v, of a group by its number: %v (%s), want %v", removed, got, why, want)
		}
	}
}

// TestChoose: a client uses the store of the highest generation, and none of two.
func TestChoose(t *testing.T) {
	id := func(cluster, generation uint64) voters.Identity { return voters.Identity{cluster, generation} }
	for name, x := range map[string]struct {
		own  voters.Identity
		has  []voters.Identity
		want voters.Verdict
	}{
		"no answer":                  {id(1, 1), nil, voters.Start},
		"nothing is known":           {voters.Identity{}, []voters.Identity{id(1, 1), id(1, 1)}, voters.Start},
		"one without a group":        {id(1, 1), []voters.Identity{{}, id(9, 0), id(1, 1)}, voters.Start},
		"its own":                    {id(1, 2), []voters.Identity{id(1, 2), id(7, 1)}, voters.Start},
		"a later one":                {id(1, 1), []voters.Identity{id(1, 1), id(2, 2), id(2, 2)}, voters.Start},
		"another":                    {id(1, 1), []voters.Identity{id(2, 1)}, voters.Conflict},
		"two at the start":           {voters.Identity{}, []voters.Identity{id(1, 1), id(2, 1)}, voters.Conflict},
		"two before a later one":     {id(1, 1), []voters.Identity{id(2, 1), id(3, 2)}, voters.Start},
		"two later ones":             {id(1, 1), []voters.Identity{id(2, 2), id(1, 1), id(3, 2)}, voters.Conflict},
		"another that is earlier":    {id(1, 3), []voters.Identity{id(2, 2), id(3, 2)}, voters.Start},
		"one later, then one before": {id(1, 1), []voters.Identity{id(3, 2), id(2, 1)}, voters.Start},
	} {
		var list []voters.Answer
		for _, g := range x.has {
			list = append(list, voters.Answer{From: "b", Group: g})
		}
		if got, why := voters.Choose(x.own, list); got != x.want || (why != "") != (got == voters.Conflict) {
			t.Errorf("%s: %v, %q", name, got, why)
		}
	}
}

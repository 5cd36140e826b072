// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"fmt"
	"testing"
	"time"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

// ring is nodes in a ring of trunks, as `weft up --peer` makes them: each a
// switch with an adapter, the first with a manager at its switch.
type ring struct {
	*subnet.Fabric
	sw, ca []*subnet.Node
	trunks []*subnet.Trunk // from node i to the next
	m      *sm.Manager
}

// newRing returns a ring that is up. The ends of trunks send their first hellos at different times, step apart.
func newRing(t *testing.T, nodes int, step time.Duration) *ring {
	t.Helper()
	r := &ring{Fabric: subnet.New(1, 50*time.Microsecond)}
	for i := range nodes {
		sw, ca := r.Switch(fmt.Sprintf("sw%d", i), 36), r.CA(fmt.Sprintf("host%d", i))
		r.Link(ca, 1, sw, 1)
		r.sw, r.ca = append(r.sw, sw), append(r.ca, ca)
	}
	for i := range nodes {
		a, b := time.Duration(2*i)*step, time.Duration(2*i+1)*step
		r.trunks = append(r.trunks, r.Trunk(r.sw[i], 36, r.sw[(i+1)%nodes], 35,
			[2]time.Duration{a % (100 * time.Millisecond), b % (100 * time.Millisecond)}))
	}
	r.m = r.Attach(r.sw[0], sm.Config{}, sm.Intent{}, sm.Observations{})
	if !r.Until(30*time.Second, r.whole) {
		t.Fatalf("not up: %+v", r.m.Status())
	}
	r.Run(5 * time.Second)
	return r
}

// leads reports whether every adapter reaches every other, and every switch the
// manager.
func (r *ring) leads() bool {
	for i, a := range r.ca {
		for _, b := range r.ca {
			if b.Agent.LID() == 0 || !r.Leads(a, b.Agent.LID()) {
				return false
			}
		}
		if !r.Leads(r.sw[i], r.sw[0].Agent.LID()) {
			return false
		}
	}
	return true
}

func (r *ring) whole() bool { return r.Active() && r.leads() }

func (r *ring) heavySweeps() (n int) {
	for _, w := range r.m.Status().Sweeps {
		if w.Kind == "heavy" {
			n++
		}
	}
	return n
}

// TestReroute: within a second after a trunk ends, the tables of all switches
// lead around it: 300 ms until its ends notice, each for itself, a trap, and
// a sweep.
func TestReroute(t *testing.T) {
	var worst time.Duration
	for _, nodes := range []int{3, 5} {
		for _, step := range []time.Duration{7 * time.Millisecond, 37 * time.Millisecond} {
			for way, deaf := range map[string][2]bool{"both": {true, true}, "forth": {false, true},
				"back": {true, false}} {
				for cut := range nodes {
					r := newRing(t, nodes, step)
					for k := range 2 {
						r.Run(time.Duration(k) * 53 * time.Millisecond)
						at := r.Now
						r.trunks[cut].Deaf = deaf
						if !r.Until(10*time.Second, r.leads) {
							t.Fatalf("%d nodes, trunk %d, %s: no way around it: %+v", nodes, cut, way, r.m.Status())
						}
						took := r.Now.Sub(at)
						if worst = max(worst, took); took > time.Second {
							t.Errorf("%d nodes, hellos %v apart, trunk %d, %s: rerouted after %v\n%+v", nodes, step,
								cut, way, took, r.m.Status().Sweeps)
						}
						r.Run(3 * time.Second)
						r.trunks[cut].Cut(false)
						if !r.Until(10*time.Second, r.whole) {
							t.Fatalf("%d nodes, trunk %d: not whole again: %+v", nodes, cut, r.m.Status())
						}
						r.Run(3 * time.Second)
					}
				}
			}
		}
	}
	t.Logf("rerouted after %v at most", worst)
}

// TestRerouteMeanwhile: the bound holds where a light sweep waits for a switch
// behind the trunk, and where the far end of the trunk detects the failure so late that discovery waits for the node
// behind it.
func TestRerouteMeanwhile(t *testing.T) {
	light := func(r *ring) {
		// The next request for the switch behind the trunk is of a light sweep.
		seen := false
		r.Trace = func(from *subnet.Node, port uint8, d *mad.Datagram) { seen = seen || from == r.sw[0] && port == 36 }
		if !r.Until(20*time.Second, func() bool { return seen }) {
			t.Fatal("no light sweep")
		}
		r.Trace = nil
		r.trunks[0].Cut(true)
	}
	late := func(r *ring) {
		r.trunks[0].Deaf = [2]bool{true, false}
		r.Run(180 * time.Millisecond)
		r.trunks[0].Cut(true)
	}
	for name, cut := range map[string]func(r *ring){"light sweep": light, "far end": late} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, 3, 7*time.Millisecond)
			at := r.Now
			if name == "light sweep" {
				r.Run(time.Second)
			}
			cut(r)
			if name == "light sweep" {
				at = r.Now
			}
			if !r.Until(10*time.Second, r.leads) {
				t.Fatalf("no way around: %+v", r.m.Status())
			}
			took := r.Now.Sub(at)
			if t.Logf("rerouted after %v", took); took > time.Second {
				t.Errorf("%+v", r.m.Status())
			}
			r.Run(3 * time.Second)
			if n := len(r.m.Status().Problems); n > 0 || !r.leads() {
				t.Errorf("%+v", r.m.Status())
			}
		})
	}
}

// TestStarvedNode has a node not run for a while, again and again: its trunks
// go down and come up each time. It keeps its LIDs, sweeps stay few, and
// everything is as before soon afterwards.
func TestStarvedNode(t *testing.T) {
	for _, c := range []struct {
		name   string
		node   int
		pause  time.Duration
		flaps  bool
		rounds int
	}{
		{"short", 1, 190 * time.Millisecond, false, 20},
		{"another", 1, 400 * time.Millisecond, true, 10},
		{"the manager's", 0, 400 * time.Millisecond, true, 10},
		{"long", 1, time.Second, true, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRing(t, 3, 7*time.Millisecond)
			lids := func() (list []ib.LID) {
				for i := range r.sw {
					list = append(list, r.sw[i].Agent.LID(), r.ca[i].Agent.LID())
				}
				return list
			}
			was, before, from := fmt.Sprint(lids()), r.heavySweeps(), r.Now
			for i := range c.rounds {
				r.Stop(r.sw[c.node])
				r.Run(c.pause)
				r.Resume(r.sw[c.node])
				at := r.Now
				if !r.Until(10*time.Second, r.whole) {
					t.Fatalf("round %d: not whole again: %+v", i, r.m.Status())
				}
				// A switch sends the next trap after 1.07 s if its first one was dropped or it sent one just before.
				if took := r.Now.Sub(at); took > 1200*time.Millisecond {
					t.Errorf("round %d: whole again after %v", i, took)
				}
				r.Run(100 * time.Millisecond)
			}
			if got := fmt.Sprint(lids()); got != was {
				t.Errorf("LIDs %s were %s", got, was)
			}
			downs := r.trunks[0].Downs()
			if (downs > 0) != c.flaps {
				t.Errorf("the trunk went down %d times", downs)
			}
			n := r.heavySweeps() - before
			if most := 3 * c.rounds; n > most || !c.flaps && n > 0 {
				t.Errorf("%d heavy sweeps in %v", n, r.Now.Sub(from))
			}
			r.Run(time.Minute)
			// each switch has a trap pending
			if len(r.m.Status().Problems) > 0 || !r.whole() || r.heavySweeps()-before > n+2 {
				t.Errorf("a minute later, %d heavy sweeps: %+v", r.heavySweeps()-before-n, r.m.Status())
			}
		})
	}
}

// TestAwayAndBack: the manager has removed the groups of a node that was not in the subnet. Its port, which was ACTIVE
// all the time, gets ClientReregister; others do not.
func TestAwayAndBack(t *testing.T) {
	r := newRing(t, 3, 0)
	var told [3]int
	for i := range told {
		r.ca[i].Changes = func(_ uint8, what agent.Change) {
			if what&agent.ClientReregister != 0 {
				told[i]++
			}
		}
	}
	r.trunks[0].Cut(true)
	r.trunks[1].Cut(true)
	r.Run(5 * time.Second)
	if len(r.m.Topo().Nodes) != 4 || told != [3]int{} {
		t.Fatalf("%d nodes, told to register %v", len(r.m.Topo().Nodes), told)
	}
	r.trunks[0].Cut(false)
	r.trunks[1].Cut(false)
	if !r.Until(10*time.Second, r.whole) {
		t.Fatalf("not whole again: %+v", r.m.Status())
	}
	r.Run(30 * time.Second)
	if told != [3]int{0, 1, 0} {
		t.Errorf("told to register %v", told)
	}
}

// TestRerouteDuringSweep: the bound of TestReroute holds where a node is cut off in any moment of a heavy sweep, also
// after it
// has answered some requests of the sweep: that does not wait for the others when a trap has shown why.
func TestRerouteDuringSweep(t *testing.T) {
	var worst time.Duration
	for step := range 30 {
		r := newRing(t, 5, 7*time.Millisecond)
		others := func() bool {
			for i, a := range r.ca {
				for j, b := range r.ca {
					if i != 1 && j != 1 && !r.Leads(a, b.Agent.LID()) {
						return false
					}
				}
			}
			return true
		}
		r.m.Sweep(r.Now)
		r.Poke(r.sw[0])
		r.Run(20*time.Millisecond + time.Duration(step)*200*time.Microsecond)
		at := r.Now
		r.trunks[0].Cut(true)
		r.trunks[1].Cut(true)
		if !r.Until(10*time.Second, others) {
			t.Fatalf("step %d: no way around: %+v", step, r.m.Status())
		}
		took := r.Now.Sub(at)
		if worst = max(worst, took); took > time.Second {
			t.Errorf("step %d: rerouted after %v\n%+v", step, took, r.m.Status().Sweeps)
		}
		r.trunks[0].Cut(false)
		r.trunks[1].Cut(false)
		if !r.Until(10*time.Second, r.whole) {
			t.Fatalf("step %d: not whole again: %+v", step, r.m.Status())
		}
		r.Run(5 * time.Second)
		if n := len(r.m.Status().Problems); n > 0 || !r.leads() {
			t.Errorf("step %d: %+v", step, r.m.Status())
		}
	}
	t.Logf("rerouted after %v at most", worst)
}

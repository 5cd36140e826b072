// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"weft/internal/proto/ib"
)

// end is a port of a node of a test fabric.
type end struct {
	node int
	port uint8
}

// fabric is cabling: the model of where a path of ports leads.
type fabric struct {
	isSwitch []bool
	ports    []uint8
	link     map[end]end
}

// randomFabric cables n nodes of one to four ports at random; some ports stay
// free, some cables lead back to the same node.
func randomFabric(rng *rand.Rand, n int) *fabric {
	f := &fabric{link: map[end]end{}}
	var free []end
	for i := range n {
		f.isSwitch = append(f.isSwitch, rng.IntN(3) > 0)
		f.ports = append(f.ports, uint8(1+rng.IntN(4)))
		for p := range f.ports[i] {
			free = append(free, end{i, p + 1})
		}
	}
	rng.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
	free = free[:len(free)-rng.IntN(3)%len(free)]
	for ; len(free) > 1; free = free[2:] {
		f.link[free[0]], f.link[free[1]] = free[1], free[0]
	}
	return f
}

// walk follows a path of ports from a node by the cabling alone: where it ends,
// and by which port it entered each node; false if it cannot be followed.
func (f *fabric) walk(from end, path []uint8) (to int, ingress []uint8, ok bool) {
	to = from.node
	for i, out := range path {
		switch {
		case out == 0 || out > f.ports[to],
			!f.isSwitch[to] && i > 0,
			!f.isSwitch[to] && out != from.port:
			return 0, nil, false
		}
		peer, cabled := f.link[end{to, out}]
		if !cabled {
			return 0, nil, false
		}
		to = peer.node
		ingress = append(ingress, peer.port)
	}
	return to, ingress, true
}

// carry carries an SMP, as h leaves it at node, through the fabric, encoded and parsed on every cable, until it is
// delivered or dropped.
func (f *fabric) carry(s *SMP, node int, h Hop) (at int, outcome Hop, err error) {
	var wire []byte
	for range 2 * (MaxHops + 2) {
		if h.Action != Forward {
			return node, h, nil
		}
		if h.Port == 0 || h.Port > f.ports[node] {
			return 0, Hop{}, fmt.Errorf("leaves node %d by port %d of %d", node, h.Port, f.ports[node])
		}
		peer, cabled := f.link[end{node, h.Port}]
		if !cabled {
			return node, Hop{}, nil
		}
		wire = s.Append(wire[:0])
		if err := s.Parse(wire); err != nil {
			return 0, Hop{}, err
		}
		node = peer.node
		h = s.Receive(f.isSwitch[node], peer.port, f.ports[node])
	}
	return 0, Hop{}, fmt.Errorf("still under way: %+v", s)
}

func request(path []uint8) SMP {
	s := SMP{Header: Header{BaseVersion: 1, MgmtClass: ClassSubnDR, ClassVersion: 1, Method: MethodGet},
		HopCount: uint8(len(path)),
		DrSLID:   ib.LIDPermissive, DrDLID: ib.LIDPermissive}
	copy(s.InitialPath[1:], path)
	return s
}

// roundTrip sends a request along path and its response back, and compares both
// with the cabling.
func roundTrip(t *testing.T, f *fabric, from end, path []uint8) (delivered bool) {
	t.Helper()
	want, ingress, ok := f.walk(from, path)
	s := request(path)
	at, h, err := f.carry(&s, from.node, s.Send(f.isSwitch[from.node], from.port, f.ports[from.node]))
	if err != nil {
		t.Fatal(err)
	}
	if (h.Action == Deliver) != ok || ok && (at != want || !slices.Equal(s.ReturnPath[1:1+len(path)], ingress) ||
		s.HopPointer != s.HopCount+1) {
		t.Fatalf("%v, path %v of %v: %v at node %d, return path %v, pointer %d\nwant %v at node %d by %v",
			f, path, from, h.Action, at, s.ReturnPath[1:1+len(path)], s.HopPointer, ok, want, ingress)
	}
	if !ok {
		return false
	}
	sent := s
	s.Reply(StatusOK)
	var port uint8 // that the request arrived by
	if len(ingress) > 0 {
		port = ingress[len(ingress)-1]
	}
	at, h, err = f.carry(&s, at, s.Send(f.isSwitch[at], port, f.ports[at]))
	if err != nil {
		t.Fatal(err)
	}
	if h.Action != Deliver || at != from.node || s.HopPointer != 0 || !s.D || s.ReturnPath != sent.ReturnPath ||
		s.InitialPath != sent.InitialPath {
		t.Fatalf("%v, path %v of %v: the answer is %v at node %d, %+v", f, path, from, h.Action, at, s)
	}
	return true
}

// TestDirectedRoutes sends SMPs along every path of up to four hops through random
// fabrics, from every node, and back. Ports that do not exist or have no cable, and
// adapters on the way, lose the SMP; nothing else does.
func TestDirectedRoutes(t *testing.T) {
	delivered, lost := 0, 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := randomFabric(rng, 1+rng.IntN(7))
		for node := range f.ports {
			from := end{node, 1 + uint8(rng.IntN(int(f.ports[node])))}
			var explore func(path []uint8)
			explore = func(path []uint8) {
				if roundTrip(t, f, from, path) {
					delivered++
				} else if lost++; len(path) > 2 {
					return // two more hops suffice to see that it was dropped
				}
				if len(path) < 4 {
					for p := range uint8(6) {
						explore(append(slices.Clone(path), p))
					}
				}
			}
			explore(nil)
		}
	}
	if delivered < 5000 || lost < 5000 {
		t.Errorf("%d delivered, %d lost", delivered, lost)
	}
}

// TestLongestRoute goes to and fro on one cable for the 63 hops that a path has.
func TestLongestRoute(t *testing.T) {
	f := &fabric{isSwitch: []bool{true, true}, ports: []uint8{2, 2}, link: map[end]end{{0, 1}: {1, 2}, {1, 2}: {0, 1}}}
	var path []uint8
	for i := range MaxHops {
		path = append(path, uint8(1+i%2))
	}
	if !roundTrip(t, f, end{0, 0}, path) {
		t.Error("not delivered")
	}
	s := request(path)
	s.HopCount = MaxHops + 1
	if h := s.Send(true, 0, 2); h.Action != Discard {
		t.Errorf("64 hops: %v", h.Action)
	}
	s.HopPointer = 3
	if h := s.Receive(true, 1, 2); h.Action != Discard {
		t.Errorf("64 hops: %v", h.Action)
	}
}

// TestRouteRows goes through the rows of the tables of IBA volume 1, 14.2.2.2 to
// 14.2.2.5 that a walk along a good path does not reach.
func TestRouteRows(t *testing.T) {
	const perm, lid = ib.LIDPermissive, ib.LID(7)
	for _, c := range []struct {
		name     string
		send     bool
		isSwitch bool
		d        bool
		hp, hc   uint8
		slid     ib.LID
		dlid     ib.LID
		want     Hop
		pointer  uint8
	}{
		{"outbound, not begun", false, true, false, 0, 2, perm, perm, Hop{}, 0},
		{"outbound, not begun, at an adapter by LID", false, false, false, 0, 2, lid, perm, Hop{}, 0},
		{"outbound, begins at a switch reached by LID", false, true, false, 0, 2, lid, perm, Hop{Forward, 1}, 1},
		{"outbound, on the way at an adapter", false, false, false, 1, 2, perm, perm, Hop{}, 1},
		{"outbound, at its end", false, false, false, 2, 2, perm, perm, Hop{Action: Deliver}, 3},
		{"outbound, at its end, on by LID", false, true, false, 2, 2, perm, lid, Hop{Action: RouteLID}, 3},
		{"outbound, at its end at an adapter, on by LID", false, false, false, 2, 2, perm, lid, Hop{}, 2},
		{"outbound, arrived by LID", false, false, false, 3, 2, perm, lid, Hop{Action: Deliver}, 3},
		{"outbound, beyond its end", false, true, false, 4, 2, perm, perm, Hop{}, 4},
		{"outbound, far beyond its end", false, true, false, 255, 2, perm, perm, Hop{}, 255},
		{"outbound, no hops", false, false, false, 0, 0, perm, perm, Hop{Action: Deliver}, 1},
		{"outbound, no hops, arrived by LID at a switch", false, true, false, 0, 0, lid, lid, Hop{Action: RouteLID}, 1},
		{"returning, not begun, by the right port", false, true, true, 3, 2, perm, perm, Hop{Forward, 5}, 2},
		{"returning, not begun, at an adapter", false, false, true, 3, 2, perm, perm, Hop{}, 3},
		{"returning, begins at a switch reached by LID", false, true, true, 3, 2, perm, lid, Hop{Forward, 5}, 2},
		{"returning, on the way at an adapter", false, false, true, 2, 2, perm, perm, Hop{}, 2},
		{"returning, on the way", false, true, true, 2, 2, perm, perm, Hop{Forward, 4}, 1},
		{"returning, at its end", false, false, true, 1, 2, perm, perm, Hop{Action: Deliver}, 0},
		{"returning, at its end, on by LID", false, true, true, 1, 2, lid, perm, Hop{Action: RouteLID}, 0},
		{"returning, at its end at an adapter, on by LID", false, false, true, 1, 2, lid, perm, Hop{}, 1},
		{"returning, arrived by LID", false, false, true, 0, 2, lid, perm, Hop{Action: Deliver}, 0},
		{"returning, beyond its begin", false, true, true, 4, 2, perm, perm, Hop{}, 4},
		{"request", true, false, false, 0, 2, perm, perm, Hop{Forward, 1}, 1},
		{"request of a manager at a switch", true, true, false, 0, 2, perm, perm, Hop{Forward, 1}, 1},
		{"request to oneself", true, false, false, 0, 0, perm, perm, Hop{Action: Deliver}, 1},
		{"request that begins by LID", true, false, false, 0, 2, lid, perm, Hop{Action: RouteLID}, 0},
		{"request with a used pointer", true, true, false, 1, 2, perm, perm, Hop{}, 1},
		{"request at its end", true, true, false, 3, 2, perm, perm, Hop{Action: Deliver}, 3},
		{"response", true, false, true, 3, 2, perm, perm, Hop{}, 3}, // its return port is 5, not the adapter's
		{"response of a switch", true, true, true, 3, 2, perm, perm, Hop{Forward, 5}, 2},
		{"response to oneself", true, false, true, 1, 0, perm, perm, Hop{Action: Deliver}, 0},
		{"response that begins by LID", true, false, true, 3, 2, perm, lid, Hop{Action: RouteLID}, 3},
		{"response at its end", true, false, true, 0, 2, perm, perm, Hop{Action: Deliver}, 0},
		{"response with a used pointer", true, true, true, 2, 2, perm, perm, Hop{}, 2},
	} {
		s := request([]uint8{1, 2})
		s.D, s.HopPointer, s.HopCount, s.DrSLID, s.DrDLID = c.d, c.hp, c.hc, c.slid, c.dlid
		s.ReturnPath[1], s.ReturnPath[2] = 4, 5
		got := Hop{}
		if c.send {
			got = s.Send(c.isSwitch, 1, 8)
		} else {
			got = s.Receive(c.isSwitch, 5, 8)
		}
		if got != c.want || s.HopPointer != c.pointer {
			t.Errorf("%s: %v by %d, pointer %d; want %v by %d, %d", c.name, got.Action, got.Port, s.HopPointer,
				c.want.Action, c.want.Port, c.pointer)
		}
	}
	// A response that has not begun must not enter by another port than it shall
	// leave by.
	s := request([]uint8{1, 2})
	s.D, s.HopPointer, s.ReturnPath[2] = true, 3, 4
	if h := s.Receive(true, 5, 8); h.Action != Discard {
		t.Errorf("%v", h.Action)
	}
}

// TestMixedRoute follows an SMP that goes by LID to a switch, along two directed
// hops and by LID to its end; and its answer.
func TestMixedRoute(t *testing.T) {
	const requester, responder = ib.LID(5), ib.LID(9)
	s := request([]uint8{2, 3})
	s.DrSLID, s.DrDLID = requester, responder
	step := func(h Hop, want Hop, pointer uint8) {
		t.Helper()
		if h != want || s.HopPointer != pointer {
			t.Fatalf("%v by %d, pointer %d; want %v by %d, %d", h.Action, h.Port, s.HopPointer, want.Action,
				want.Port, pointer)
		}
	}
	step(s.Send(false, 1, 1), Hop{Action: RouteLID}, 0)
	step(s.Receive(true, 7, 8), Hop{Forward, 2}, 1)
	step(s.Receive(true, 4, 8), Hop{Forward, 3}, 2)
	step(s.Receive(true, 6, 8), Hop{Action: RouteLID}, 3)
	step(s.Receive(false, 1, 1), Hop{Action: Deliver}, 3)
	if s.ReturnPath[1] != 4 || s.ReturnPath[2] != 6 {
		t.Errorf("return path %v", s.ReturnPath[:3])
	}
	s.Reply(StatusOK)
	step(s.Send(false, 1, 1), Hop{Action: RouteLID}, 3)
	step(s.Receive(true, 8, 8), Hop{Forward, 6}, 2)
	step(s.Receive(true, 3, 8), Hop{Forward, 4}, 1)
	step(s.Receive(true, 2, 8), Hop{Action: RouteLID}, 0)
	step(s.Receive(false, 1, 1), Hop{Action: Deliver}, 0)
}

// FuzzRoute sends arbitrary SMPs into a fabric: each ends, and only ports that
// exist are left by.
func FuzzRoute(f *testing.F) {
	for _, m := range sampleMADs(f) {
		f.Add(m, uint64(1), uint8(1))
	}
	long := request([]uint8{1, 2, 1, 2, 3})
	f.Add(long.Append(nil), uint64(7), uint8(2))
	f.Fuzz(func(t *testing.T, in []byte, seed uint64, ingress uint8) {
		var s SMP
		if s.Parse(in) != nil {
			if len(in) >= Len {
				t.Fatal("refused")
			}
			return
		}
		rng := rand.New(rand.NewPCG(seed, 1))
		fab := randomFabric(rng, 4)
		before := s
		h := s.Receive(fab.isSwitch[0], ingress, fab.ports[0])
		if h.Action == Discard && s != before && s.ReturnPath == before.ReturnPath {
			t.Fatalf("discarded and changed: %+v", s)
		}
		if h.Action == Forward && (h.Port == 0 || h.Port > fab.ports[0] || !fab.isSwitch[0]) {
			t.Fatalf("leaves by port %d", h.Port)
		}
		if _, _, err := fab.carry(&s, 0, h); err != nil {
			t.Fatal(err)
		}
	})
}

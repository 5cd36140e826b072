// SPDX-License-Identifier: Apache-2.0

package transport

import "testing"

// fill has a peer with the given behaviour answer a retransmission of the packet at una, with everything below end
// sent: a peer that keeps packets acknowledges all of it, another one only the packet.
func fill(g *gaps, keeps bool) (again bool) {
	g.begin(true, 110)
	g.found(100, 110)
	g.test()
	switch {
	case !g.selective:
		return false
	case keeps:
		return g.filled(10, 110)
	}
	return g.filled(1, 101)
}

func newGaps() *gaps {
	g := &gaps{}
	g.reset()
	return g
}

func TestGapsFirstRetransmissionTestsPeer(t *testing.T) {
	g := newGaps()
	g.begin(true, 110)
	if g.selective {
		t.Fatal("selective towards an unknown peer")
	}
	g.test()
	if !g.selective || !g.waiting() {
		t.Fatal("the first NAK does not test the peer")
	}
	if again := g.filled(10, 110); again || !g.peerKeepsOOO || g.selective {
		t.Errorf("an acknowledgement of more than the gap: again %v, %+v", again, g)
	}
	g.begin(true, 120)
	if !g.selective || g.waiting() {
		t.Error("retransmission to a peer that keeps packets is not selective, or waits")
	}
}

func TestGapsPeerThatDiscardsIsTestedLessAndLess(t *testing.T) {
	g := newGaps()
	var tests []int
	for nak := range 80 {
		g.begin(true, 110)
		g.test()
		if g.selective {
			tests = append(tests, nak)
			if g.filled(1, 101) {
				t.Error("a peer that discards gets single packets")
			}
		}
	}
	want := []int{0, 1, 3, 7, 15, 31, 63}
	if len(tests) != len(want) {
		t.Fatalf("tests after NAKs %v, want %v", tests, want)
	}
	for i := range want {
		if tests[i] != want[i] {
			t.Fatalf("tests after NAKs %v, want %v", tests, want)
		}
	}
}

func TestGapsTwoPacketsInARowDoNotChangeThePeer(t *testing.T) {
	g := newGaps()
	fill(g, true)
	if again := fill(g, false); !again || !g.peerKeepsOOO || !g.peerOOOUnconfirmed {
		t.Fatalf("one gap that filled nothing but itself: again %v, %+v", again, g)
	}
	if fill(g, true); g.peerOOOUnconfirmed {
		t.Error("a gap that filled more leaves it unconfirmed")
	}
	fill(g, false)
	if again := fill(g, false); !again || g.peerKeepsOOO {
		t.Errorf("two gaps in a row that filled nothing but themselves: again %v, %+v", again, g)
	}
}

func TestGapsFilledWithoutRetransmission(t *testing.T) {
	g := newGaps()
	if g.filled(5, 105) || g.peerKeepsOOO {
		t.Error("an ordinary acknowledgement changes what is inferred about the peer")
	}
	g.selective, g.selectiveEnd = true, 110
	if g.filled(0, 100) || !g.selective {
		t.Error("an acknowledgement of nothing ends the retransmission")
	}
}

func TestGapsManyExpectedGapsSendEverything(t *testing.T) {
	g := newGaps()
	fill(g, true)
	g.distance = 10
	g.begin(true, 1000)
	g.last = 100
	g.found(100, 140)
	if !g.selective {
		t.Error("four expected gaps are not filled one by one")
	}
	g.begin(true, 1000)
	g.found(100, 141)
	if g.selective {
		t.Error("more than four expected gaps are filled one by one")
	}
}

func TestGapsDistanceIsSmoothedAndBounded(t *testing.T) {
	g := newGaps()
	g.last = 100
	g.found(108, 200)
	if want := int32(distanceMax + (8-distanceMax)/8); g.distance != want || g.last != 108 {
		t.Errorf("distance %d, want %d", g.distance, want)
	}
	before := g.distance
	g.found(108, 200) // the same gap again
	if g.distance != before {
		t.Error("the same gap counts twice")
	}
	g.found(108+1<<20, 200+1<<20)
	if g.distance > distanceMax {
		t.Errorf("distance %d", g.distance)
	}
}

func TestGapsNotAllowed(t *testing.T) {
	g := newGaps()
	fill(g, true)
	g.begin(false, 110) // a READ
	if g.selective || g.waiting() {
		t.Error("a READ is sent again selectively")
	}
}

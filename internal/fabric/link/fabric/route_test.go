// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"math/rand/v2"
	"testing"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// TestRoute: the result of Route for a path and key is what Send does with a burst of
// them, by every kind of switch, and Refused counts as Send does.
func TestRoute(t *testing.T) {
	a := line(t, 1)[0]
	w := *a.wiring.Load()
	w.Port[2], w.Port[3] = Plug{Function, 2}, Plug{Function, 3}
	a.wiring.Store(&w)
	r := rand.New(rand.NewPCG(1, 2))
	states := []ib.PortState{ib.PortActive, ib.PortActive, ib.PortActive, ib.PortActive, ib.PortArmed, ib.PortInit,
		ib.PortDown}
	keys := []ib.PKey{0xffff, 0x7fff, 0x8001, 0x0001, 0x0000, 0x8000}
	body := make([]byte, 64)
	seen := map[vswitch.Refusal]int{}
	for range 4000 {
		b := a.builder
		for p := uint8(1); p <= 3; p++ {
			b.SetPort(p, vswitch.Port{State: states[r.IntN(len(states))], EnforceIn: r.IntN(3) == 0,
				EnforceOut: r.IntN(3) == 0,
				PKeys:      []ib.PKey{keys[r.IntN(len(keys))], keys[r.IntN(len(keys))]}})
			b.SetEntry(ib.LID(p), []uint8{p, p, p, p, vswitch.NoPort, 4}[r.IntN(6)])
		}
		a.table.Store(b.Snapshot())
		x := run(ib.LID(r.IntN(5)), ib.ServiceRC|ib.SendOnly, 1, 256, 4, false, body)
		if r.IntN(5) == 0 {
			x = run(0xc001, ib.ServiceUD|ib.SendOnly, 1, 256, 4, true, body)
		}
		x.Path.SLID, x.PKey = ib.LID(1+r.IntN(3)), keys[r.IntN(len(keys))]
		before := a.Counters()
		why := a.Route(a.Table(), x.Path, x.PKey)
		if a.Counters() != before {
			t.Fatal("to judge counts")
		}
		a.Send(1, x, mem.NewBatch(4096))
		sent := a.Counters()
		want := before.DropRoute
		if why != vswitch.OK {
			want[why]++
		}
		if sent.DropRoute != want {
			t.Fatalf("judged %v, counted %v before and %v after", why, before.DropRoute, sent.DropRoute)
		}
		if why != vswitch.OK {
			a.Refused(why, 3)
			if want[why] += 3; a.Counters().DropRoute != want {
				t.Fatalf("refused %v: %v", why, a.Counters().DropRoute)
			}
		}
		seen[why]++
		a.Recv(1)
	}
	for _, why := range []vswitch.Refusal{vswitch.OK, vswitch.PKeyIn, vswitch.PKeyOut, vswitch.EgressState,
		vswitch.IngressState, vswitch.BadPort, vswitch.BadLID, vswitch.Unreachable} {
		if seen[why] == 0 {
			t.Errorf("%v never came up: %v", why, seen)
		}
	}
}

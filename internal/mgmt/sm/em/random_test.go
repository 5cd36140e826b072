// SPDX-License-Identifier: Apache-2.0

package em

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// TestRandomLives drives managers through random events, with losses, and compares the result with the configuration:
// every member in the subnet forwards in its VESW and sends each MAC of another member to the LID of that member, and
// nothing else is configured.
func TestRandomLives(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		const n = 5
		w := newWorld(t, seed, n)
		rng := rand.New(rand.NewPCG(seed, 99))
		w.loss = float64(seed%3) * 0.1
		next := ib.LID(100)
		w.start(nil)
		edit := func(f func(i *Intent)) {
			i := w.intent
			i.VESWs = nil
			for _, v := range w.intent.VESWs {
				v.Members = slices.Clone(v.Members)
				i.VESWs = append(i.VESWs, v)
			}
			f(&i)
			w.want(i)
		}
		for step := range 25 {
			a := w.agents[portGUID(rng.IntN(n))]
			name := string(rune('a' + rng.IntN(3)))
			what := ""
			switch rng.IntN(11) {
			case 0:
				what = "create " + name
				edit(func(i *Intent) { _ = i.Create(VESW{Name: name, Flood: rng.IntN(2) == 0}) })
			case 1:
				if rng.IntN(3) == 0 {
					what = "delete " + name
					edit(func(i *Intent) { _ = i.Delete(name) })
				}
			case 2, 3, 4:
				what = fmt.Sprintf("add %v to %s", a.guid, name)
				edit(func(i *Intent) { _, _ = i.Add(name, a.guid, -1, rng.IntN(4) == 0) })
			case 5:
				what = fmt.Sprintf("remove %v from %s", a.guid, name)
				edit(func(i *Intent) { _ = i.Remove(name, a.guid, -1) })
			case 6:
				a.there = !a.there
				what = fmt.Sprintf("port %v is there: %v", a.guid, a.there)
				w.sweep()
			case 7:
				next++
				a.lid = next
				what = fmt.Sprintf("port %v gets LID %d", a.guid, next)
				w.sweep()
			case 8, 9:
				for k, v := range a.vport {
					v.uc = nil
					for range rng.IntN(4) {
						v.uc = append(v.uc, MAC{byte(2 * rng.IntN(2)), 1, 1, 1, 1, byte(rng.IntN(6))})
					}
					v.info.Port.UcMACsGen++
					w.trap(a, k, mad.VEMAUnicastMACs)
				}
				what = fmt.Sprintf("port %v gets MACs", a.guid)
			case 10:
				var o []Observed
				if rng.IntN(2) == 0 {
					o = w.m.Observations()
				}
				what = fmt.Sprintf("failover, %d known", len(o))
				next++
				w.succeed(next, o)
			}
			w.sets = nil
			if rng.IntN(3) == 0 {
				w.run(time.Duration(rng.IntN(2000))*time.Millisecond, nil)
				checkBounces(w, fmt.Sprintf("seed %d step %d: %s", seed, step, what))
				continue
			}
			loss := w.loss
			w.run(3*time.Second, nil)
			w.loss = 0
			w.run(65*time.Second, nil)
			w.quiet()
			w.loss = loss
			what = fmt.Sprintf("seed %d step %d: %s", seed, step, what)
			checkBounces(w, what)
			compare(w, what)
			if t.Failed() {
				return
			}
		}
	}
}

func checkBounces(w *world, what string) {
	for _, o := range w.bounces() {
		for _, v := range w.intent.VESWs {
			if o.had.VESW.VESWID == v.ID && slices.ContainsFunc(v.Members,
				func(m Member) bool { return m.Port == o.port && m.Index == o.vport }) {
				w.t.Errorf("%s: bounced %v", what, o)
			}
		}
	}
}

func compare(w *world, what string) {
	w.t.Helper()
	wanted := map[vportID]bool{}
	for _, v := range w.intent.VESWs {
		owners := map[MAC][]uint32{}
		for _, m := range v.Members {
			a := w.agents[m.Port]
			wanted[vportID{m.Port, m.Index}] = true
			if p := a.vport[m.Index]; a.there && p != nil {
				for _, mac := range p.uc {
					owners[mac] = append(owners[mac], uint32(a.lid))
				}
			}
		}
		for _, m := range v.Members {
			a := w.agents[m.Port]
			if !a.there {
				continue
			}
			p := a.vport[m.Index]
			if p == nil || p.info.VESW.VESWID != v.ID || p.info.Port.ConfigState != mad.VESWForwarding {
				w.t.Errorf("%s: port %v vport %d does not forward in %s: %+v", what, m.Port, m.Index, v.Name, p)
				continue
			}
			if p.info.Port.EncapSLID != uint32(a.lid) || p.info.Port.BaseMAC != mad.VESWMAC(0, v.ID, uint32(a.lid)) ||
				p.info.Port.PortNum != m.Num {
				w.t.Errorf("%s: port %v: %+v", what, m.Port, p.info.Port)
			}
			g, ok := w.groups[mgidOf(0, v.ID, v.Key())]
			if !ok || mlid24(g.MLID) != p.info.VESW.McastDLID || !slices.Contains(g.Members, m.Port) {
				w.t.Errorf("%s: port %v: group %#x, %+v", what, m.Port, p.info.VESW.McastDLID, g)
			}
			seen := map[MAC]bool{}
			for _, e := range p.table {
				if e.MAC == (MAC{}) {
					continue
				}
				if seen[e.MAC] || !slices.Contains(owners[e.MAC], e.DLID()) || e.DLID() == uint32(a.lid) {
					w.t.Errorf("%s: port %v of %s has %v for %d of %v", what, m.Port, v.Name, MAC(e.MAC), e.DLID(),
						owners[e.MAC])
				}
				seen[e.MAC] = true
			}
			for mac, by := range owners {
				if !seen[mac] && !slices.Contains(by, uint32(a.lid)) {
					w.t.Errorf("%s: port %v of %s does not know %v of %v", what, m.Port, v.Name, mac, by)
				}
			}
		}
	}
	for _, a := range w.agents {
		for index, p := range a.vport {
			if a.there && !wanted[vportID{a.guid, index}] {
				w.t.Errorf("%s: port %v still has vport %d: %+v", what, a.guid, index, p.info)
			}
		}
	}
	for _, g := range w.groups {
		if !slices.ContainsFunc(w.intent.VESWs, func(v VESW) bool { return mgidOf(0, v.ID, v.Key()) == g.MGID }) {
			w.t.Errorf("%s: group %v is left", what, g.MGID)
		}
	}
}

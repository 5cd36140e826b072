// SPDX-License-Identifier: Apache-2.0

package em

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// TestBringUp: every port is set up before the first forwards, and none before the switches carry the group to it.
func TestBringUp(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.uncarried[portGUID(2)] = true
	w.want(Intent{FabricID: 0x301, VESWs: []VESW{members("lan", 2, 0, 1, 2)}})
	w.start(nil)
	w.until(5*time.Second, "two ports forward", func() bool { return w.forwards(2, 0, 1) })
	w.run(5*time.Second, nil)
	if w.forwards(2, 2) {
		t.Fatal("a port forwards to which no group is carried")
	}
	first := slices.IndexFunc(w.sets, func(o order) bool { return o.config == mad.VESWForwarding })
	set := map[ib.GUID]bool{}
	for _, o := range w.sets[:first] {
		if o.attr == mad.AttrVESWMACEntries {
			set[o.port] = true
		}
	}
	if len(set) != 3 {
		t.Errorf("the first port forwards when %d of 3 are set up", len(set))
	}
	delete(w.uncarried, portGUID(2))
	w.sweep()
	w.until(time.Second, "the third forwards", func() bool { return w.forwards(2, 2) })
	if b := w.bounces(); len(b) != 0 {
		t.Error("bounced", b)
	}
	got := w.at(1, 0).info
	want := mad.DefaultVESWPortInfo()
	want.VESW.FabricID, want.VESW.VESWID, want.VESW.PKey, want.VESW.McastDLID, want.VESW.EthMTU = 0x301, 2, 0xc002, 0xf00000, 1500
	want.Port = mad.VESWPort{PortNum: 2, LinkStatus: mad.VESWLinkUp, BaseMAC: [6]byte{0x06, 0x2c, 0, 12, 0, 0},
		ConfigState: mad.VESWForwarding, OperState: mad.VESWForwarding,
		MaxMACEntries: 2048, MaxSMACEntries: 256, MACDigest: got.Port.MACDigest, EncapSLID: 12}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got.Port.MACDigest == 0 {
		t.Error("no digest")
	}
	w.sets = nil
	w.run(time.Minute, nil)
	if len(w.sets) != 0 {
		t.Error("set without need", w.sets)
	}
	s := w.m.Status()
	if len(s.VESWs) != 1 || len(s.VESWs[0].Problems) != 0 || s.VESWs[0].Members[0].State != StateForwarding ||
		s.Capable != 3 {
		t.Errorf("%+v", s)
	}
}

// TestLoss: with any loss of MADs all settings are applied, and no port is interrupted.
func TestLoss(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(t, seed, 4)
		w.loss = 0.2
		w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2, 3), members("b", 2)}})
		w.start(nil)
		w.until(3*time.Minute, fmt.Sprintf("all forward; seed %d", seed),
			func() bool { return w.forwards(1, 0, 1, 2, 3) })
		for p := range 3 {
			w.setMACs(p, 0, MAC{0, 1, 2, 3, 4, byte(p)})
		}
		w.until(3*time.Minute, fmt.Sprintf("MACs are known; seed %d", seed), func() bool {
			for p := range 4 {
				for q := range 3 {
					if p != q && w.at(p, 0).lookup(MAC{0, 1, 2, 3, 4, byte(q)}) != uint32(11+q) {
						return false
					}
				}
			}
			return true
		})
		if b := w.bounces(); len(b) != 0 {
			t.Errorf("seed %d: bounced %v", seed, b)
		}
	}
}

// story is what a manager goes through in its life: a VESW comes up, MACs come, a member joins.
func story(w *world) {
	w.want(Intent{FabricID: 1, VESWs: []VESW{members("a", 1, 0, 1, 2)}})
	w.start(nil)
	w.run(5*time.Second, func() bool { return w.forwards(1, 0, 1, 2) })
	if w.stopped {
		return
	}
	w.setMACs(0, 0, MAC{0, 1}, MAC{0, 2})
	w.setMACs(1, 0, MAC{0, 3})
	w.run(2*time.Second, nil)
	if w.stopped {
		return
	}
	i := w.intent
	i.VESWs = []VESW{members("a", 1, 0, 1, 2, 3)}
	w.want(i)
	w.run(5*time.Second, func() bool { return w.forwards(1, 3) })
	w.run(time.Second, nil)
}

// TestFailoverAnywhere ends a manager after each of its requests. The next one, with or without what the first had
// kept, brings the story to its end, bounces no port, and sets nothing where all was done.
func TestFailoverAnywhere(t *testing.T) {
	full := newWorld(t, 1, 4)
	story(full)
	if !full.forwards(1, 0, 1, 2, 3) {
		t.Fatal("the story has no end")
	}
	for stop := 1; stop <= full.requests+1; stop++ {
		for _, memory := range []bool{true, false} {
			w := newWorld(t, 1, 4)
			w.stopAfter = stop
			story(w)
			done := stop > full.requests
			if w.stopped == done {
				t.Fatalf("stopped %v after %d", w.stopped, w.requests)
			}
			var o []Observed
			if memory {
				o = w.m.Observations()
			}
			w.stopped, w.stopAfter = false, 0
			w.intent.VESWs = []VESW{members("a", 1, 0, 1, 2, 3)}
			if w.at(0, 0) != nil && len(w.at(0, 0).uc) == 0 {
				w.setMACs(0, 0, MAC{0, 1}, MAC{0, 2})
			}
			w.sets = nil
			w.now = w.now.Add(time.Second)
			w.succeed(3, o)
			w.quiet()
			what := fmt.Sprintf("stopped after %d of %d, memory %v", stop, full.requests, memory)
			if !w.forwards(1, 0, 1, 2, 3) {
				t.Fatalf("%s: not all forward: %+v", what, w.m.Status())
			}
			if b := w.bounces(); len(b) != 0 {
				t.Errorf("%s: bounced %v", what, b)
			}
			if s := w.veswSets(); done && len(s) != 0 { // without memory, too: all is read
				t.Errorf("%s: set without need: %v", what, s)
			}
			for p := range 4 {
				v := w.at(p, 0)
				for _, q := range []int{0, 1} {
					for _, mac := range w.at(q, 0).uc {
						if want := uint32(11 + q); p != q && v.lookup(mac) != want {
							t.Errorf("%s: port %d sends %v to %d, not %d", what, p, mac, v.lookup(mac), want)
						}
					}
				}
			}
		}
	}
}

// TestMACs: a MAC of a member gets one slot in the tables of all others, and goes where its owner goes.
func TestMACs(t *testing.T) {
	w := newWorld(t, 2, 3)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2)}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1, 2) })
	var list []MAC
	for i := range 400 { // in two parts of a list
		list = append(list, MAC{2, 0, 0, 9, byte(i >> 8), byte(i)})
	}
	w.setMACs(0, 0, list...)
	w.until(2*time.Second, "400 entries", func() bool {
		return w.at(1, 0).entries() == 400 &&
			w.at(2, 0).entries() == 400
	})
	if n := w.at(0, 0).entries(); n != 0 {
		t.Errorf("the owner has %d entries of its own", n)
	}
	slotOf := func(p int, m MAC) int {
		return slices.IndexFunc(w.at(p, 0).table[:], func(e mad.VESWMACEntry) bool { return e.MAC == m })
	}
	at := slotOf(1, list[300])
	if at < 0 || at != slotOf(2, list[300]) {
		t.Fatal("slots differ", at, slotOf(2, list[300]))
	}
	w.run(time.Minute, nil)
	w.sets = nil
	w.setMACs(0, 0, append(slices.Clone(list[:7]), list[8:]...)...) // one goes
	w.until(2*time.Second, "399 entries", func() bool {
		return w.at(1, 0).entries() == 399 &&
			w.at(2, 0).entries() == 399
	})
	w.run(time.Second, nil)
	if s := w.veswSets(); len(s) != 2 || s[0].num != 1 || s[1].num != 1 {
		t.Errorf("more than the slot was set: %v", s)
	}
	if slotOf(1, list[300]) != at {
		t.Error("a slot moved")
	}
	// A member leaves without a message.
	w.agents[portGUID(0)].there = false
	w.sweep()
	w.until(2*time.Second, "none left", func() bool { return w.at(1, 0).entries() == 0 && w.at(2, 0).entries() == 0 })
	if len(w.m.Status().VESWs[0].Problems) != 1 {
		t.Errorf("%+v", w.m.Status().VESWs[0])
	}
	w.agents[portGUID(0)].there = true
	w.sweep()
	w.until(2*time.Second, "399 again", func() bool {
		return w.at(1, 0).entries() == 399 &&
			w.at(2, 0).entries() == 399
	})
	if b := w.bounces(); len(b) != 0 {
		t.Error("bounced", b)
	}
}

// TestDuplicates: the first member with a MAC keeps it, also under the next manager; no member gets the base MAC of
// another; and a MAC that a member drops goes to another.
func TestDuplicates(t *testing.T) {
	w := newWorld(t, 3, 3)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2)}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1, 2) })
	mac, own := MAC{0, 0xaa}, MAC{2, 0, 0, 0xbb}
	w.setMACs(1, 0, mac)
	w.until(2*time.Second, "known", func() bool { return w.at(2, 0).lookup(mac) == 12 })
	w.setMACs(0, 0, mac, own, MAC(mad.VESWMAC(0, 1, 13)), MAC(mad.VESWMAC(0, 1, 11)), MAC{1, 2, 3}, MAC{})
	w.until(2*time.Second, "own known", func() bool { return w.at(2, 0).lookup(own) == 11 })
	check := func() {
		t.Helper()
		if l := w.at(2, 0).lookup(mac); l != 12 {
			t.Errorf("port 2 sends it to %d", l)
		}
		for _, p := range []int{1, 2} {
			if n := w.at(p, 0).entries(); n != 2 && p == 2 || n != 1 && p == 1 {
				t.Errorf("port %d has %d entries", p, n)
			}
		}
		if s := w.m.Status().VESWs[0]; len(s.Problems) != 2 || s.MACs != 2 {
			t.Errorf("%+v", s.Problems)
		}
	}
	check()
	if w.m.Counters.BadMACs != 2 {
		t.Error(w.m.Counters.BadMACs, "bad MACs")
	}
	w.succeed(4, w.m.Observations())
	w.run(time.Minute, nil)
	check()
	if s := w.veswSets(); slices.ContainsFunc(s, func(o order) bool { return o.at > w.now.Add(-time.Minute) }) {
		t.Error("set without need")
	}
	w.setMACs(1, 0)
	w.until(2*time.Second, "the other has it", func() bool { return w.at(2, 0).lookup(mac) == 11 })
}

// TestNoUserMACs: where members may have no MAC of their own, tables stay empty.
func TestNoUserMACs(t *testing.T) {
	w := newWorld(t, 3, 2)
	v := members("a", 1, 0, 1)
	v.NoUserMACs = true
	w.want(Intent{VESWs: []VESW{v}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1) })
	w.setMACs(0, 0, MAC{0, 1})
	w.run(time.Minute, nil)
	if n := w.at(1, 0).entries(); n != 0 || w.m.Counters.ListsRead == 0 {
		t.Error(n, "entries,", w.m.Counters.ListsRead, "lists")
	}
}

// TestD19_ChangedLID: a member with another LID gets another base MAC, others send its MACs there, and no member is
// interrupted.
func TestD19_ChangedLID(t *testing.T) {
	w := newWorld(t, 4, 3)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2)}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1, 2) })
	w.setMACs(0, 0, MAC{0, 7})
	w.until(2*time.Second, "known", func() bool { return w.at(1, 0).lookup(MAC{0, 7}) == 11 })
	w.agents[portGUID(0)].lid = 77
	w.sweep()
	w.until(2*time.Second, "moved", func() bool {
		return w.at(1, 0).lookup(MAC{0, 7}) == 77 &&
			w.at(2, 0).lookup(MAC{0, 7}) == 77
	})
	w.until(2*time.Second, "base MAC", func() bool {
		p := w.at(0, 0).info.Port
		return p.EncapSLID == 77 && p.BaseMAC == mad.VESWMAC(0, 1, 77)
	})
	if b := w.bounces(); len(b) != 0 {
		t.Error("bounced", b)
	}
}

// TestGateways: frames to unknown MACs go to the gateways with a link that is up, as the trap and the poll report.
func TestGateways(t *testing.T) {
	w := newWorld(t, 5, 4)
	v := members("a", 1, 0, 1, 2, 3)
	v.Members[1].Gateway, v.Members[3].Gateway = true, true
	v.Flood = true
	w.want(Intent{VESWs: []VESW{v}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1, 2, 3) })
	mask := func(p int) uint16 { return w.at(p, 0).info.VESW.DefaultPortMask }
	w.until(2*time.Second, "both", func() bool { return mask(0) == 3 && mask(2) == 3 })
	u := w.at(0, 0).info.VESW
	if u.UcastDLIDs[0] != 12 || u.UcastDLIDs[1] != 14 || !u.Flood() || mask(1) != 0 || mask(3) != 0 {
		t.Errorf("%v, flood %v, gateways %d %d", u.UcastDLIDs, u.Flood(), mask(1), mask(3))
	}
	down := func(p int, d bool) {
		w.at(p, 0).down = d
		w.trap(w.agents[portGUID(p)], 0, mad.VEMALinkStatus)
	}
	down(1, true)
	w.until(time.Second, "one", func() bool { return mask(0) == 2 && mask(2) == 2 })
	down(3, true)
	w.until(time.Second, "none is up: all", func() bool { return mask(0) == 3 })
	down(1, false)
	w.until(time.Second, "the other", func() bool { return mask(0) == 1 && mask(2) == 1 })
	w.at(3, 0).down = false // without a trap
	w.until(15*time.Second, "by poll", func() bool { return mask(0) == 3 && mask(2) == 3 })
	w.agents[portGUID(1)].there = false
	w.sweep()
	w.until(time.Second, "gone", func() bool { return mask(0) == 2 && mask(2) == 2 })
	w.agents[portGUID(3)].mute = true
	w.until(time.Minute, "silent, but the last",
		func() bool { return w.m.Status().VESWs[0].Members[3].Agent == "silent" })
	if mask(0) != 2 {
		t.Error("nobody is left", mask(0))
	}
	if b := w.bounces(); len(b) != 0 {
		t.Error("bounced", b)
	}
}

// TestD10_Delete: all ports of a VESW that is no more stop before the first is reset, its vports and group go, and
// others do not notice.
func TestD10_Delete(t *testing.T) {
	for _, after := range []bool{false, true} { // by the same manager, or the next one
		w := newWorld(t, 6, 4)
		w.agents[portGUID(3)].plain = true
		b := members("b", 2, 0, 1)
		b.Members[0].Index, b.Members[1].Index = 1, 1
		w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2, 3), b}})
		w.start(nil)
		w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1, 2, 3) && w.forwards(2, 0, 1) })
		w.sets = nil
		w.agents[portGUID(2)].delay(w)
		w.want(Intent{VESWs: []VESW{b}})
		if after {
			w.succeed(3, nil)
		}
		w.until(10*time.Second, "gone", func() bool {
			return w.at(0, 0) == nil && w.at(1, 0) == nil && w.at(2, 0) == nil && w.at(3, 0).info.VESW.VESWID == 0
		})
		w.until(time.Second, "the group is gone", func() bool { return len(w.groups) == 1 })
		firstDelete := slices.IndexFunc(w.sets, func(o order) bool { return o.attr == mad.AttrVESWDelete })
		lastStop := 0
		for i, o := range w.sets {
			if o.attr == mad.AttrVESWPortInfo && o.config == mad.VESWDropAll {
				lastStop = i
			}
		}
		if firstDelete < lastStop || lastStop == 0 {
			t.Errorf("after %v: %v", after, w.sets)
		}
		for _, o := range w.bounces() {
			if o.had.VESW.VESWID != 1 {
				t.Error("bounced", o)
			}
		}
		w.run(time.Minute, nil)
		if !w.forwards(2, 0, 1) || w.m.Counters.Removed < 2 {
			t.Errorf("after %v: the other is gone, or %d removed", after, w.m.Counters.Removed)
		}
	}
}

// delay makes an agent answer every request the second time it comes.
func (a *agent) delay(w *world) {
	seen := false
	a.twist = func(q, r *mad.VEMA) *mad.VEMA {
		if seen = !seen; seen {
			return nil
		}
		return r
	}
}

// TestLeavesOneVESW: a port that leaves is reset while the others go on.
func TestLeavesOneVESW(t *testing.T) {
	w := newWorld(t, 7, 3)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1, 2)}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1, 2) })
	w.setMACs(2, 0, MAC{0, 5})
	w.until(time.Second, "known", func() bool { return w.at(0, 0).lookup(MAC{0, 5}) == 13 })
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1)}})
	w.until(time.Second, "gone", func() bool {
		return w.at(2, 0) == nil && w.at(0, 0).entries() == 0 &&
			w.at(1, 0).entries() == 0
	})
	if !w.forwards(1, 0, 1) {
		t.Error("others stopped")
	}
	for _, g := range w.groups {
		if d := cmp.Diff([]ib.GUID{portGUID(0), portGUID(1)}, g.Members); d != "" {
			t.Error(d)
		}
	}
}

// TestLeftOver: what another manager left is taken over where it is as it shall be, and cleaned elsewhere, wherever it
// is.
func TestLeftOver(t *testing.T) {
	w := newWorld(t, 8, 2)
	foreign := func(id uint16) *fakeVPort {
		v := &fakeVPort{info: freshInfo()}
		v.info.VESW.VESWID, v.info.Port.ConfigState, v.info.Port.MACDigest = id, mad.VESWForwarding, 99
		v.table[9] = mad.VESWMACEntry{MAC: MAC{0, 9}, DLIDSD: mad.MakeDLIDSD(5)}
		return v
	}
	a := w.agents[portGUID(0)]
	a.vport[0], a.vport[1], a.vport[200] = foreign(5), foreign(1), foreign(6)
	w.agents[portGUID(1)].vport[0] = foreign(1) // wrong in nearly every attribute
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1)}})
	w.start(nil)
	w.until(10*time.Second, "up", func() bool { return a.vport[1] == nil && w.forwards(1, 0, 1) })
	if a.vport[1] != nil || a.vport[0].info.VESW.VESWID != 1 {
		t.Errorf("left: %+v", a.vport)
	}
	w.until(5*time.Minute, "the far one", func() bool { return a.vport[200] == nil })
	w.quiet()
	if n := w.at(0, 0).entries() + w.at(1, 0).entries(); n != 0 {
		t.Error(n, "entries are left", w.at(0, 0).entries(), w.sets)
	}
	for _, o := range w.bounces() {
		if o.port == portGUID(1) {
			t.Error("bounced", o)
		}
	}
}

// TestReload: a restarted agent gets all settings again, at once if its port reports it, else with the poll.
func TestReload(t *testing.T) {
	for _, told := range []bool{true, false} {
		w := newWorld(t, 9, 2)
		w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1)}})
		w.start(nil)
		w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1) })
		w.setMACs(0, 0, MAC{0, 1})
		w.setMACs(1, 0, MAC{0, 2})
		w.until(5*time.Second, "known", func() bool { return w.at(1, 0).entries() == 1 && w.at(0, 0).entries() == 1 })
		w.run(25*time.Second, nil)
		a := w.agents[portGUID(1)]
		a.cpi, a.vport = mad.VEMAClassPortInfo{}, map[uint8]*fakeVPort{}
		limit := 15 * time.Second
		if told {
			w.m.Recheck(w.now, a.lid)
			limit = time.Second
		}
		w.until(limit, "up again", func() bool { return w.forwards(1, 1) && w.at(1, 0).entries() == 1 })
		if a.cpi.Trap.LID != uint32(w.self) {
			t.Error("no trap LID")
		}
		w.until(limit, "its MAC is gone", func() bool { return w.at(0, 0).entries() == 0 })
	}
}

// TestNoAgent: a member without its agent is removed from the tables of MACs; it is probed again when its port reports
// changed capabilities.
func TestNoAgent(t *testing.T) {
	w := newWorld(t, 10, 3)
	w.want(Intent{VESWs: []VESW{members("a", 1, 0, 1)}})
	w.start(nil)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1) })
	w.setMACs(1, 0, MAC{0, 2})
	w.until(5*time.Second, "known", func() bool { return w.at(0, 0).entries() == 1 })
	a := w.agents[portGUID(1)]
	a.none = true
	w.m.Recheck(w.now, a.lid)
	w.until(time.Second, "its MACs are gone", func() bool { return w.at(0, 0).entries() == 0 })
	if s := w.m.Status().VESWs[0]; len(s.Problems) != 1 || s.Members[1].Agent != "none" ||
		s.Members[0].State != StateForwarding {
		t.Errorf("%+v", s)
	}
	a.none = false
	w.m.Recheck(w.now, a.lid)
	w.until(time.Second, "back", func() bool { return w.at(0, 0).entries() == 1 })
}

// TestPlans: the settings of ports follow the intent and what their links and partitions permit.
func TestPlans(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.agents[portGUID(0)].pkeys = []ib.PKey{0xffff, 0x8005}
	w.agents[portGUID(1)].pkeys = []ib.PKey{0xffff, 5}
	v := members("a", 9, 0, 1, 2)
	v.PKey, v.MTU, v.SL, v.PCP, v.MaxMACs = 5, 9000, 2, &[8]uint8{5: 13}, 3
	w.want(Intent{VESWs: []VESW{v}})
	w.start(nil)
	w.until(10*time.Second, "up", func() bool { return w.forwards(9, 0, 1) })
	w.quiet()
	x, y := w.at(0, 0).info, w.at(1, 0).info
	if x.VESW.PKey != 0x8005 || y.VESW.PKey != 5 {
		t.Errorf("P_Keys %#x %#x", x.VESW.PKey, y.VESW.PKey)
	}
	if x.VESW.EthMTU != 9000 || x.Port.NonVLANSCUc != 2 || x.Port.NonVLANSCMc != 2 ||
		x.Port.PCPToSCUc != [8]uint8{5: 13} || x.Port.PCPToSCMc != [8]uint8{5: 13} {
		t.Errorf("%+v", x)
	}
	if w.at(2, 0) != nil {
		t.Error("a port is set that is no member of the partition")
	}
	s := w.m.Status().VESWs[0]
	want := []Problem{{portGUID(2), "the port is no member of partition 0x8005",
		"weft pkey add 0x8005 0000:0000:0000:1002"}}
	if d := cmp.Diff(want, s.Problems); d != "" || s.Members[2].State != StateWaiting {
		t.Error(d, s.Members[2].State)
	}
	// Four MACs are one too many.
	w.setMACs(0, 0, MAC{0, 1}, MAC{0, 2}, MAC{0, 3}, MAC{0, 4})
	w.until(time.Second, "three", func() bool { return w.at(1, 0).entries() == 3 })
	if n := w.m.Counters.Overflows; n != 1 {
		t.Error(n, "overflows")
	}
	if p := w.m.Status().VESWs[0].Problems; len(p) != 2 {
		t.Error(p)
	}
	// Another partition is another group, and no bounce.
	w.agents[portGUID(2)].pkeys = []ib.PKey{0xffff, 0x8005}
	v.PKey = 0x7fff
	w.want(Intent{VESWs: []VESW{v}})
	w.until(5*time.Second, "three", func() bool {
		return w.forwards(9, 0, 1, 2) &&
			w.at(0, 0).info.VESW.PKey == 0xffff
	})
	w.quiet()
	if b := w.bounces(); len(b) != 0 || len(w.groups) != 1 {
		t.Error(b, w.groups)
	}
	// A table has room for so many.
	v.MaxMACs = 2048
	w.want(Intent{VESWs: []VESW{v}})
	var list []MAC
	for k := range 1500 {
		list = append(list, MAC{0, 1, 0, 0, byte(k >> 8), byte(k)})
	}
	w.setMACs(0, 0, slices.Clone(list)...)
	for k := range list {
		list[k][1] = 2
	}
	w.setMACs(1, 0, slices.Clone(list)...)
	w.until(10*time.Second, "2048", func() bool { return w.at(2, 0).entries() == mad.VESWMaxMACs })
	if s := w.m.Status().VESWs[0]; len(s.Problems) != maxRefused || s.MACs != mad.VESWMaxMACs {
		t.Error(len(s.Problems), s.MACs)
	}
}

// TestLinkMTU: if a link has no room for the configured MTU, the VESW uses the largest one that fits, and reports the
// problem.
func TestLinkMTU(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.want(Intent{VESWs: []VESW{{Name: "a", ID: 1, MTU: 3000, Members: members("a", 1, 0, 1).Members}}})
	w.m.Activate(w.now, nil)
	n := w.net()
	n.Nodes[1].Ports[1].Info.NeighborMTU = ib.MTU2048
	w.m.SetSubnet(w.now, n)
	w.until(5*time.Second, "up", func() bool { return w.forwards(1, 0, 1) })
	if m := w.at(1, 0).info.VESW.EthMTU; m != 2030 {
		t.Error(m)
	}
	if p := w.m.Status().VESWs[0].Problems; len(p) != 1 || p[0].Fix != "weft vesw set a --mtu 2030" {
		t.Error(p)
	}
}

// TestManyPorts: a VESW of hundreds of ports comes up in about the time that its MADs take.
func TestManyPorts(t *testing.T) {
	w := newWorld(t, 1, 300)
	var all []int
	for i := range 300 {
		all = append(all, i)
	}
	w.want(Intent{VESWs: []VESW{members("a", 1, all...)}})
	w.start(nil)
	w.run(3*time.Second, nil)
	if !w.forwards(1, all...) {
		t.Fatal("not up")
	}
	w.setMACs(5, 0, MAC{0, 1})
	w.run(time.Second, nil)
	for i := range 300 {
		if i != 5 && w.at(i, 0).lookup(MAC{0, 1}) != 16 {
			t.Fatal("not known to", i)
		}
	}
	if w.requests > 4800 {
		t.Error(w.requests, "requests")
	}
}

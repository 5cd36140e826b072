// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

func masterOf(ns ...*subnet.Node) (m *subnet.Node) {
	for _, n := range ns {
		if n.Manager != nil && n.Manager.State() == mad.SMMaster {
			if m != nil {
				return nil
			}
			m = n
		}
	}
	return m
}

// elected runs until want alone is master, the others stand by, and it has swept.
func elected(t *testing.T, s *small, within time.Duration, want *subnet.Node, others ...*subnet.Node) {
	t.Helper()
	if !s.Until(within, func() bool {
		if want.Manager.State() != mad.SMMaster || want.Manager.Topo() == nil || !s.Active() {
			return false
		}
		for _, o := range others {
			if o.Manager != nil && o.Manager.State() != mad.SMStandby {
				return false
			}
		}
		for _, n := range s.Nodes() {
			if n.Agent.Port(n.End()).MasterSMLID != want.Agent.LID() {
				return false
			}
		}
		return true
	}) {
		for _, n := range append(others, want) {
			if n.Manager != nil {
				t.Logf("%s: %+v", n.Name, n.Manager.Status())
			}
		}
		t.Fatalf("%s is not master after %v", want.Name, within)
	}
}

func TestElection(t *testing.T) {
	for name, c := range map[string]struct {
		priority [3]uint8
		want     int // index of the master
	}{
		"priority":      {[3]uint8{1, 3, 2}, 1},
		"GUID":          {[3]uint8{5, 5, 5}, 0},
		"the last one":  {[3]uint8{0, 0, 1}, 2},
		"the other way": {[3]uint8{9, 0, 1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSmall(1)
			at := []*subnet.Node{s.c1, s.c2, s.c3}
			for i, n := range at {
				s.Attach(n, sm.Config{Priority: c.priority[i]}, sm.Intent{}, sm.Observations{})
			}
			want := at[c.want]
			others := append(append([]*subnet.Node{}, at[:c.want]...), at[c.want+1:]...)
			elected(t, s, 10*time.Second, want, others...)
			s.Run(time.Minute)
			if masterOf(at...) != want {
				t.Error("it did not stay")
			}
			for _, o := range others {
				if st := o.Manager.Status(); st.State != "standby" || st.Master != want.PortGUID() {
					t.Errorf("%+v", st)
				}
			}
			// The master is gone: the next one takes over and keeps LIDs, which
			// ports still have.
			before := lids(s.Fabric)
			s.Detach(want)
			next := others[0]
			if o := others[1]; o.Manager.Status().Priority > next.Manager.Status().Priority {
				next = o
			}
			last := others[0]
			if last == next {
				last = others[1]
			}
			elected(t, s, 30*time.Second, next, last)
			if diff := cmp.Diff(before, lids(s.Fabric)); diff != "" {
				t.Error(diff)
			}
			// It comes back. A manager that finds a master stands by; a master
			// hands over to a higher priority, but not to its equal.
			s.Attach(want, sm.Config{Priority: c.priority[c.want]}, sm.Intent{}, sm.Observations{})
			if next.Manager.Status().Priority == c.priority[c.want] {
				s.Run(time.Minute)
				elected(t, s, 0, next, want, last)
			} else {
				elected(t, s, 30*time.Second, want, others...)
			}
			if diff := cmp.Diff(before, lids(s.Fabric)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHandover checks the steps of one by what both managers note.
func TestHandover(t *testing.T) {
	s := newSmall(1)
	a := s.Attach(s.c1, sm.Config{Priority: 1}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, a, time.Second)
	s.Run(2 * time.Second)
	at := s.Now
	b := s.Attach(s.c3, sm.Config{Priority: 2}, sm.Intent{}, sm.Observations{})
	elected(t, s, time.Second, s.c3, s.c1)
	// A trap reports the new capability of the port: no light sweep is needed.
	if took := s.Now.Sub(at); took > 100*time.Millisecond {
		t.Errorf("handed over after %v", took)
	}
	text := func(m *sm.Manager) (lines []string) {
		for _, n := range m.Status().Notes {
			lines = append(lines, n.Text)
		}
		return lines
	}
	g1, g3 := s.c1.PortGUID().String(), s.c3.PortGUID().String()
	if diff := cmp.Diff([]string{"master, was discovering: no other precedes it", "hands over to the manager " + g3,
		"standby, was master: the manager " + g3 + " took over"}, text(a)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"standby, was discovering: the manager " + g1 + " precedes it",
		"master, was standby: the manager " + g1 + " handed over"}, text(b)); diff != "" {
		t.Error(diff)
	}
}

// TestHandoverToLateStandby lets the master see a manager of higher priority while that still discovers the subnet: it
// becomes standby after the sweep, and no notice reports it.
func TestHandoverToLateStandby(t *testing.T) {
	s := newSmall(1)
	a := s.Attach(s.c1, sm.Config{Priority: 1}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, a, time.Second)
	s.Run(2 * time.Second)
	s.Kill(s.c2) // is silent: to discover it takes 8 timeouts
	b := s.Attach(s.c3, sm.Config{Priority: 2, Timeout: time.Second}, sm.Intent{}, sm.Observations{})
	var seen []string
	if !s.Until(20*time.Second, func() bool {
		st := a.Status()
		if len(st.Others) > 0 && !slices.Contains(seen, st.Others[0].State) {
			seen = append(seen, st.Others[0].State)
		}
		return b.State() == mad.SMStandby
	}) || !slices.Equal(seen, []string{"discovering"}) {
		t.Fatalf("the master has seen %q, the other is %v", seen, b.State())
	}
	if !s.Until(20*time.Second, func() bool { return b.State() == mad.SMMaster && a.State() == mad.SMStandby }) {
		t.Errorf("no handover:\n%+v\n%+v", a.Status(), b.Status())
	}
}

// TestHandoverToUnannouncedManager starts a manager at a port after the master has read its capabilities, and before it
// has given it a LID: a port without a LID sends no trap.
func TestHandoverToUnannouncedManager(t *testing.T) {
	s := newSmall(1)
	a := s.Attach(s.c1, sm.Config{Priority: 1}, sm.Intent{}, sm.Observations{})
	sw, p := s.Cut(s.c3, s.c3.End())
	s.Run(2 * time.Second)
	discovered := false
	s.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
		var q mad.SMP
		q.Parse(d.Data[:])
		discovered = discovered || from == s.c3 && q.Method == mad.MethodGetResp && q.AttributeID == mad.AttrPKeyTable
	}
	s.Link(sw, p, s.c3, s.c3.End())
	if !s.Until(10*time.Second, func() bool { return discovered }) || s.c3.Agent.LID() != 0 {
		t.Fatalf("discovered: %v, LID %d", discovered, s.c3.Agent.LID())
	}
	b := s.Attach(s.c3, sm.Config{Priority: 2}, sm.Intent{}, sm.Observations{})
	if !s.Until(20*time.Second, func() bool { return b.State() == mad.SMMaster && a.State() == mad.SMStandby }) {
		t.Errorf("no handover:\n%+v\n%+v", a.Status(), b.Status())
	}
}

// TestTwoSubnetsJoin plugs a cable between two subnets with a master each, and
// the same LIDs in both.
func TestTwoSubnetsJoin(t *testing.T) {
	s := newSmall(1)
	s.Cut(s.s1, 8)
	a := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	b := s.Attach(s.c3, sm.Config{Priority: 3}, sm.Intent{}, sm.Observations{})
	s.Run(time.Second)
	if a.State() != mad.SMMaster || b.State() != mad.SMMaster || s.c1.Agent.LID() != s.c3.Agent.LID() {
		t.Fatalf("%v %v", a.State(), b.State())
	}
	s.Run(2 * time.Second)
	s.Link(s.s1, 8, s.s2, 7)
	elected(t, s, 30*time.Second, s.c3, s.c1)
	s.Run(time.Second)
	walkAll(t, b.Topo(), s.ends())
}

// TestSecondMasterKeepsLIDs has a manager number a subnet of its own, stand by
// when that becomes part of a larger one, and take over: what it knew of LIDs is
// wrong by then.
func TestSecondMasterKeepsLIDs(t *testing.T) {
	s := newSmall(1)
	s.Cut(s.s1, 8)
	a := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	s.Attach(s.c3, sm.Config{Priority: 3}, sm.Intent{}, sm.Observations{})
	s.Run(time.Second)
	alone := s.c1.Agent.LID()
	s.Link(s.s1, 8, s.s2, 7)
	elected(t, s, 30*time.Second, s.c3, s.c1)
	s.Run(time.Second)
	before := lids(s.Fabric)
	if s.c1.Agent.LID() == alone {
		t.Fatal("both subnets had other LIDs: this tests nothing")
	}
	s.Detach(s.c3)
	elected(t, s, 30*time.Second, s.c1)
	if diff := cmp.Diff(before, lids(s.Fabric)); diff != "" {
		t.Error(diff)
	}
	s.Run(time.Second)
	walkAll(t, a.Topo(), s.ends())
}

// TestMasterIsLost cuts the master off: the other half gets a manager, and when
// they come together again one of both is left.
func TestMasterIsLost(t *testing.T) {
	s := newSmall(1)
	s.Attach(s.c1, sm.Config{Priority: 2}, sm.Intent{}, sm.Observations{})
	s.Attach(s.c3, sm.Config{Priority: 1}, sm.Intent{}, sm.Observations{})
	elected(t, s, 10*time.Second, s.c1, s.c3)
	s.Run(2 * time.Second)
	s.Cut(s.s1, 8)
	if !s.Until(30*time.Second, func() bool {
		return s.c3.Manager.State() == mad.SMMaster && s.s2.Agent.Port(0).MasterSMLID == s.c3.Agent.LID() && s.Active()
	}) {
		t.Fatalf("%+v", s.c3.Manager.Status())
	}
	s.Run(2 * time.Second)
	s.Link(s.s1, 8, s.s2, 7)
	elected(t, s, 30*time.Second, s.c1, s.c3)
	s.Run(time.Second)
	walkAll(t, s.c1.Manager.Topo(), s.ends())
}

// TestGate lets an election outside of the subnet decide.
func TestGate(t *testing.T) {
	s := newSmall(1)
	a := s.Attach(s.c1, sm.Config{Gated: true}, sm.Intent{}, sm.Observations{})
	b := s.Attach(s.c3, sm.Config{Gated: true, Priority: 9}, sm.Intent{}, sm.Observations{})
	sent := uint64(0)
	s.Trace = func(*subnet.Node, uint8, *mad.Datagram) { sent++ }
	s.Run(time.Minute)
	if a.State() != mad.SMNotActive || b.State() != mad.SMNotActive || sent != 0 || a.Deadline() != 0 {
		t.Fatalf("%v %v, %d packets", a.State(), b.State(), sent)
	}
	a.SetIntent(s.Now, sm.Intent{LMC: 1}) // is kept for later
	if a.Deadline() != 0 {
		t.Errorf("deadline %v", a.Deadline())
	}
	a.Permit(s.Now, 7)
	s.Poke(s.c1)
	settle(t, s.Fabric, a, time.Second)
	o, _ := a.Observations()
	if o.Token != 7 || a.Status().Token != 7 || s.c2.Agent.Port(1).LMC != 1 {
		t.Errorf("token %d", o.Token)
	}
	s.Run(time.Minute)
	if b.State() != mad.SMNotActive || a.State() != mad.SMMaster {
		t.Errorf("%v %v", a.State(), b.State())
	}
	// In the middle of a sweep the permission goes: nothing more is sent.
	a.Sweep(s.Now)
	s.Poke(s.c1)
	if !s.Until(time.Second, func() bool { return a.Status().Sweeping != "" && a.Status().Counters["answered"] > 0 }) {
		t.Fatal("no sweep")
	}
	a.Revoke(s.Now)
	was := a.Status().Counters["sent"]
	s.Run(time.Minute)
	if a.Status().Counters["sent"] != was || a.State() != mad.SMNotActive || a.Deadline() != 0 {
		t.Errorf("%+v", a.Status())
	}
	b.Permit(s.Now, 8)
	s.Poke(s.c3)
	settle(t, s.Fabric, b, time.Second)
	if b.Status().Token != 8 || s.c1.Agent.Port(1).MasterSMLID != s.c3.Agent.LID() {
		t.Error("the second did not take over")
	}
}

// control sends a Set of SMInfo from c2 to the manager at c1.
func control(t *testing.T, s *small, mod uint32, key uint64, guid ib.GUID) (answer *mad.SMP) {
	t.Helper()
	p := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSubnDR, ClassVersion: 1,
		Method: mad.MethodSet, AttributeID: mad.AttrSMInfo,
		AttributeModifier: mod, TransactionID: 99}, DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive, HopCount: 2}
	p.InitialPath[1], p.InitialPath[2] = 1, 1
	i := mad.SMInfo{GUID: guid, SMKey: key, Priority: 15, State: mad.SMMaster}
	i.Append(p.Data[:0])
	d := mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive}
	p.Append(d.Data[:0])
	s.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
		var p mad.SMP
		p.Parse(d.Data[:])
		if from == s.c1 && p.TransactionID == 99 {
			answer = &p
		}
	}
	s.c2.Send(&d)
	s.Run(time.Millisecond)
	s.Trace = nil
	return answer
}

// TestControl gives a manager orders that fit its state, and such that do not.
func TestControl(t *testing.T) {
	const key = 77
	s := newSmall(1)
	s.Attach(s.c3, sm.Config{Priority: 5, SMKey: key}, sm.Intent{}, sm.Observations{})
	m := s.Attach(s.c1, sm.Config{Priority: 1, SMKey: key}, sm.Intent{}, sm.Observations{})
	elected(t, s, 10*time.Second, s.c3, s.c1)
	other := s.c3.PortGUID()
	do := func(mod uint32, key uint64, ok bool, want mad.SMState) {
		t.Helper()
		a := control(t, s, mod, key, other)
		if a == nil {
			t.Fatal("no answer")
		}
		var i mad.SMInfo
		i.Parse(a.Data[:])
		if (a.Status == 0) != ok || m.State() != want || i.State != want || i.GUID != s.c1.PortGUID() ||
			i.Priority != 1 {
			t.Errorf("%d: %v, %v, %+v; want %v", mod, a.Status, m.State(), i, want)
		}
	}
	const st = mad.SMStandby
	do(mad.SMHandover, key+1, false, st) // the wrong key
	do(mad.SMAcknowledge, key, false, st)
	do(mad.SMStandbyReq, key, false, st)
	do(0, key, false, st)
	do(9, key, false, st)
	do(mad.SMDisable, key, true, mad.SMNotActive)
	do(mad.SMHandover, key, false, mad.SMNotActive)
	do(mad.SMDisable, key, false, mad.SMNotActive)
	do(mad.SMStandbyReq, key, true, st)
	// It discovers, which ends soon: the other precedes it.
	if a := control(t, s, mad.SMDiscover, key, other); a == nil || a.Status != 0 || m.State() != st {
		t.Errorf("%+v", m.Status())
	}
	n := m.Status().Notes
	if !strings.Contains(n[len(n)-2].Text, "the master requests a discovery") || !strings.Contains(n[len(n)-1].Text,
		"precedes it") {
		t.Errorf("%+v", n)
	}
}

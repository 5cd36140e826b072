// SPDX-License-Identifier: Apache-2.0

package sm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/test/simfab/subnet"
)

// differences are those of a manager at port self, one line each, with the names of nodes.
func differences(f *subnet.Fabric, m *sm.Manager, in []sm.Partition, self *subnet.Node) (list []string) {
	names := map[ib.GUID]string{}
	for _, n := range f.Nodes() {
		names[n.PortGUID()] = n.Name
	}
	as := [...]string{"no", "limited", "full"}
	for _, d := range sm.KeyDifferences(in, m.Topo(), self.PortGUID()) {
		list = append(list, fmt.Sprintf("%s 0x%04x want %s has %s: %s", names[d.Port], uint16(d.PKey), as[d.Want], as[d.Has],
			d.Why))
	}
	return list
}

// TestKeysAreThoseOfAnswers has ports that do not do what the manager sends: what the manager reports is what they
// answered, not what was sent.
func TestKeysAreThoseOfAnswers(t *testing.T) {
	red := sm.Partition{Name: "red", PKey: 1}
	for name, c := range map[string]struct {
		alter func(s *small, p *mad.SMP) (drop bool) // of an answer of host3's port about its P_Key table
		want  []string
	}{
		"sound": {func(*small, *mad.SMP) bool { return false }, nil},
		"a refused Set": {func(_ *small, p *mad.SMP) bool {
			p.Status = mad.StatusInvalidValue
			return false
		}, []string{"host3 0x7fff want limited has no: Set of its P_KeyTable: ",
			"host3 0x0001 want full has no: Set of its P_KeyTable: "}},
		"a port that keeps its table": {func(_ *small, p *mad.SMP) bool {
			var k mad.PKeyTable
			k[0], k[1] = 0xffff, 0x8009
			k.Append(p.Data[:0])
			return false
		}, []string{"host3 0x7fff want limited has full: ", "host3 0x0001 want full has no: ",
			"host3 0x0009 want no has full: "}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSmall(1)
			s.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
				var p mad.SMP
				p.Parse(d.Data[:])
				if from == s.c3 && p.D && p.AttributeID == mad.AttrPKeyTable && p.Status == 0 {
					c.alter(s, &p)
					p.Append(d.Data[:0])
				}
			}
			red.Members = []sm.Member{{PortGUID: s.c2.PortGUID(), As: sm.Limited}, {PortGUID: s.c3.PortGUID(), As: sm.Full}}
			in := sm.Intent{Partitions: []sm.Partition{red}}
			m := s.Attach(s.c1, sm.Config{}, in, sm.Observations{})
			if !s.Until(10*time.Second, m.Applied) {
				t.Fatal("no sweep applied the intent")
			}
			got := differences(s.Fabric, m, in.Partitions, s.c1)
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("got %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

// TestDifferences: an intent that no sweep has applied yet, a full table, a port that is not in the subnet, and a
// membership of every port.
func TestDifferences(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	if got := differences(s.Fabric, m, nil, s.c1); got != nil || !m.Applied() {
		t.Errorf("%q, applied %v", got, m.Applied())
	}
	in := sm.Intent{Partitions: []sm.Partition{{Name: "all", PKey: 2, All: sm.Full,
		Members: []sm.Member{{PortGUID: 0x77, As: sm.Full}}}}}
	if err := m.SetIntent(s.Now, in); err != nil {
		t.Fatal(err)
	}
	if m.Applied() {
		t.Error("applied before a sweep")
	}
	s.Poke(s.c1)
	if !s.Until(time.Second, m.Applied) {
		t.Fatal("no sweep")
	}
	if diff := cmp.Diff([]string{" 0x0002 want full has no: " + sm.Absent},
		differences(s.Fabric, m, in.Partitions, s.c1)); diff != "" {
		t.Error(diff)
	}
	in.Partitions = nil
	for k := range 32 { // 31 fit beside the default one
		in.Partitions = append(in.Partitions, sm.Partition{Name: string(rune('a' + k)), PKey: ib.PKey(k + 1),
			Members: []sm.Member{{PortGUID: s.c2.PortGUID(), As: sm.Full}}})
	}
	if err := m.SetIntent(s.Now, in); err != nil {
		t.Fatal(err)
	}
	s.Poke(s.c1)
	if !s.Until(time.Second, m.Applied) {
		t.Fatal("no sweep")
	}
	if diff := cmp.Diff([]string{"host2 0x0020 want full has no: its P_Key table has 32 entries, 33 are needed"},
		differences(s.Fabric, m, in.Partitions, s.c1)); diff != "" {
		t.Error(diff)
	}
}

// TestForeignKeysAreFound: a P_Key table that another wrote is repaired after the next light sweep, with a reason.
func TestForeignKeysAreFound(t *testing.T) {
	s := newSmall(1)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, time.Second)
	var k mad.PKeyTable
	k[0] = 0x7fff
	if send(s, s.c3, mad.MethodSet, mad.AttrPKeyTable, 0, 0, k.Append(nil), 1, 7, 2) == nil || keys(s.c2)[0] != 0x7fff {
		t.Fatalf("the port has %v", keys(s.c2))
	}
	settle(t, s.Fabric, m, 30*time.Second)
	if keys(s.c2)[0] != 0xffff {
		t.Errorf("the port has %v", keys(s.c2))
	}
	why := ""
	for _, r := range m.Status().Sweeps {
		if r.Kind == "heavy" {
			why = r.Why
		}
	}
	if why != `another changed the P_Key table of "host2" port 1` {
		t.Errorf("the last heavy sweep: %s", why)
	}
}

// TestLostLinks: a link between switches that goes down is remembered until it is back, or the new shape is accepted.
// One of a switch that is gone is not.
func TestLostLinks(t *testing.T) {
	s := newSmall(1)
	s.Link(s.s1, 7, s.s2, 6)
	m := s.Attach(s.c1, sm.Config{}, sm.Intent{}, sm.Observations{})
	settle(t, s.Fabric, m, 20*time.Second)
	cut := func() {
		t.Helper()
		s.Cut(s.s1, 7)
		settle(t, s.Fabric, m, 20*time.Second)
		l := m.LostLinks()
		if len(l) != 1 || l[0].PortA+l[0].PortB != 13 || l[0].Since == 0 {
			t.Fatalf("%+v", l)
		}
	}
	if l := m.LostLinks(); len(l) != 0 {
		t.Errorf("%+v", l)
	}
	cut()
	s.Link(s.s1, 7, s.s2, 6)
	settle(t, s.Fabric, m, 20*time.Second)
	if l := m.LostLinks(); len(l) != 0 {
		t.Errorf("the link is back: %+v", l)
	}
	cut()
	m.Sweep(s.Now)
	s.Poke(s.c1)
	settle(t, s.Fabric, m, 20*time.Second)
	if l := m.LostLinks(); len(l) != 0 {
		t.Errorf("the shape was accepted: %+v", l)
	}
	s.Link(s.s1, 7, s.s2, 6)
	settle(t, s.Fabric, m, 20*time.Second)
	s.Cut(s.s1, 7)
	s.Cut(s.s1, 8)
	settle(t, s.Fabric, m, 20*time.Second)
	if l := m.LostLinks(); len(l) != 0 {
		t.Errorf("the switch is gone: %+v", l)
	}
}

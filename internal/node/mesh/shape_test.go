// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
)

// plugs are trunks that are up at once, but for those to a deaf member.
type plugs struct {
	peers map[int]ib.GUID
	deaf  map[ib.GUID]bool
	next  int
}

func (p *plugs) Add(_ string, node ib.GUID, _ netip.AddrPort, _ bool) (int, error) {
	p.next++
	p.peers[p.next] = node
	return p.next, nil
}

func (p *plugs) Confine(int, bool) error { return nil }

func (p *plugs) Move(int, netip.AddrPort) error { return nil }

func (p *plugs) Remove(trunk int) error {
	delete(p.peers, trunk)
	return nil
}

func (p *plugs) Up(trunk int) (bool, error) { return !p.deaf[p.peers[trunk]], nil }

// to counts the trunks to a member.
func (p *plugs) to(g ib.GUID) (n int) {
	for _, o := range p.peers {
		if o == g {
			n++
		}
	}
	return n
}

func fabricOf(n int) *member.Roster {
	r := &member.Roster{}
	for i := range n {
		r.Members = append(r.Members, member.Record{GUID: ib.GUID(0x0200_0000_0000_0000 + uint64(i+1)<<16),
			Name: fmt.Sprintf("m%d", i), Joined: time.Unix(int64(i), 0), State: member.Active, Roles: member.HostRoles,
			Addresses: []string{fmt.Sprintf("10.0.0.%d:4792", i+1)}})
	}
	return r
}

// settle is the roster after all but some have reported that their trunks are up.
func settle(r *member.Roster, but ...ib.GUID) *member.Roster {
	s := *r
	s.Members = append([]member.Record(nil), r.Members...)
	p := s.Shape()
	for i := range s.Members {
		m := &s.Members[i]
		m.Place, m.Switch.Settled = p.Place(m.GUID), p.Mark(m.GUID)
		for _, g := range but {
			if g == m.GUID {
				m.Switch.Settled = 0
			}
		}
	}
	return &s
}

// TestMeshToSpines has a leaf go from 16 members to 17: its trunks to other leaves go when all have theirs to spines.
func TestMeshToSpines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugs{peers: map[int]ib.GUID{}, deaf: map[ib.GUID]bool{}}
		r := fabricOf(17)
		self, late := r.Members[5].GUID, r.Members[16].GUID
		ports := 32
		m := New(Config{Self: self, Trunks: p, Ports: func() int { return ports }, Log: slog.New(slog.DiscardHandler),
			Now: time.Now})
		m.Start()
		defer m.Close()
		run := func(r *member.Roster) {
			m.Follow(r)
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		before := *r
		before.Members = r.Members[:16]
		run(&before)
		if len(p.peers) != 15 || m.Settled() != before.Shape().Mark(self) {
			t.Fatalf("%d trunks of 16 members, settled: %x", len(p.peers), m.Settled())
		}
		leaf, stranger := r.Members[6].GUID, ib.GUID(0x0200_0000_0000_0999)
		if !m.Planned(self, leaf) {
			t.Error("in a mesh two members are to have no trunk")
		}
		run(settle(r, late))
		plan := r.Shape()
		if m.Planned(self, leaf) || !m.Planned(self, plan.Peers(self)[0]) || !m.Planned(self, stranger) {
			t.Errorf("trunks to another leaf, to a spine and to a node that is no member are to be: %v, %v, %v",
				m.Planned(self, leaf), m.Planned(self, plan.Peers(self)[0]), m.Planned(self, stranger))
		}
		if len(p.peers) != 15 || m.Settled() != plan.Mark(self) {
			t.Errorf("%d trunks while one has no trunk yet, settled: %x", len(p.peers), m.Settled())
		}
		states := map[string]int{}
		for _, x := range m.Plan().Trunks {
			states[x.State]++
		}
		if states[api.TrunkSurplus] != 13 || states[api.TrunkMissing] != 0 || states[api.TrunkUp] != len(plan.Trunks) {
			t.Errorf("states of trunks: %v", states)
		}
		run(settle(r))
		if len(p.peers) != 2 {
			t.Errorf("%d trunks of a leaf, want 2", len(p.peers))
		}
		for _, g := range plan.Peers(self) {
			if p.to(g) != 1 {
				t.Errorf("%d trunks to spine %v", p.to(g), g)
			}
		}

		// A trunk that goes down is no longer reported as up, and one without a port is named.
		p.deaf[plan.Peers(self)[0]] = true
		run(settle(r))
		if m.Settled() != 0 {
			t.Error("a trunk is down, and all are reported as up")
		}
		gone := *settle(r)
		for i, x := range gone.Members {
			if x.GUID == plan.Peers(self)[0] { // another takes the seat of the spine
				gone.Members = append(append([]member.Record(nil), gone.Members[:i]...), gone.Members[i+1:]...)
				break
			}
		}
		gone.Members = append(gone.Members, fabricOf(18).Members[17])
		ports = 1
		run(&gone)
		d := m.Degraded()
		if len(p.peers) != 1 || len(d) != 1 || d[0].What != "trunk_blocked" ||
			!strings.Contains(d[0].Why, "no port of the switch is free for trunks to m") {
			t.Errorf("%d trunks with one port: %+v", len(p.peers), d)
		}
	})
}

// TestLimitsAreReported has a member without a port for trunks.
func TestLimitsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugs{peers: map[int]ib.GUID{}}
		r := fabricOf(3)
		r.Members[2].Switch.Ports = 2
		m := New(Config{Self: r.Members[0].GUID, Trunks: p, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		m.Start()
		defer m.Close()
		m.Follow(r)
		time.Sleep(time.Second)
		synctest.Wait()
		d := m.Degraded()
		if len(p.peers) != 1 || len(d) != 1 || d[0].What != "trunk_no_port" || !strings.HasPrefix(d[0].Why, "m2: ") {
			t.Errorf("%d trunks, %+v", len(p.peers), d)
		}
		if plan := m.Plan(); plan.Form != "mesh" || len(plan.Limits) != 1 || plan.Limits[0].Members[0] != "m2" {
			t.Errorf("%+v", plan)
		}
	})
}

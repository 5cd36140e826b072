// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"weft/internal/fabric/vswitch"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/test/simfab/subnet"
)

// heir is the manager at one adapter of a simulated subnet, and what it sent.
type heir struct {
	*Manager
	sent map[string]int // its requests that change something by attribute, the others under "reads"
}

// succeed makes an adapter the master, with what the store has, and lets it work until nothing is left to do.
func succeed(tb testing.TB, f *subnet.Fabric, at *subnet.Node, in inherited, token uint64) heir {
	tb.Helper()
	core := f.Attach(at, sm.Config{Gated: true}, sm.Intent{}, sm.Observations{})
	h := heir{&Manager{cfg: Config{Log: slog.New(slog.DiscardHandler), Now: func() mono.Time { return f.Now }},
		sm: core, keep: make(chan keeping, 1), elected: true}, map[string]int{}}
	h.sa = sa.New(sa.Config{}, owner{h.Manager})
	h.vesw = vesw{em: em.New(em.Config{}, ethernet{h.Manager})}
	f.Trace = func(from *subnet.Node, _ uint8, d *mad.Datagram) {
		var s mad.SMP
		if from != at || s.Parse(d.Data[:]) != nil || !s.MgmtClass.IsSubn() {
			return
		}
		switch s.Method {
		case mad.MethodSet:
			h.sent[fmt.Sprintf("%#x", uint16(s.AttributeID))]++
		case mad.MethodGet:
			h.sent["reads"]++
		}
	}
	h.resume(in)
	core.Permit(f.Now, token)
	f.Poke(at)
	work := func() {
		h.settle(f.Now)
		var d mad.Datagram
		for h.sa.Next(f.Now, &d) {
			at.Send(&d)
		}
		f.Poke(at)
	}
	for range 3000 {
		f.Run(time.Millisecond)
		work()
	}
	f.Trace = nil
	if s := core.Status(); core.Topo() == nil || !f.Active() || s.Sweeping != "" || len(s.Problems) > 0 {
		tb.Fatalf("%s did not bring the subnet up: %+v", at.Name, s)
	}
	return h
}

// stored is what the store has of a master after another one, by way of its octets.
func (h heir) stored(tb testing.TB, now mono.Time, in inherited) inherited {
	tb.Helper()
	in.clients, in.o = sa.State{}, sm.Observations{}
	o, _ := h.sm.Observations()
	clients := h.sa.State(now)
	for _, x := range []struct{ from, to any }{{&o, &in.o}, {&clients, &in.clients}} {
		b, err := json.Marshal(x.from)
		if err == nil {
			err = json.Unmarshal(b, x.to)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	return in
}

// tables are what isolates and carries: P_Keys, states and LIDs of ports, and the forwarding of switches.
func tables(f *subnet.Fabric) map[string]string {
	all := map[string]string{}
	for _, n := range f.Nodes() {
		for p := range n.Agent.Config().NumPorts + 1 {
			if i := n.Agent.Port(p); i != nil {
				all[fmt.Sprintf("%s port %d", n.Name, p)] = fmt.Sprint(i.LID, i.LMC, i.PortState, i.GIDPrefix, i.MKey,
					n.Agent.PKeys(p))
			}
		}
		if w := n.Agent.Forwarding(); w != nil {
			for l := ib.LID(1); l < 0x500; l++ {
				group := 0xc000 + l
				if e, m := w.Entry(l), w.Members(group); e != 0xff || m != (vswitch.PortSet{}) {
					all[fmt.Sprintf("%s LID %#x", n.Name, uint16(l))] = fmt.Sprint(e, m)
				}
			}
		}
	}
	return all
}

// TestSuccession: a new master sweeps a subnet of 200 ports, with 1,000 groups and three partitions, of which it has
// what its predecessor kept. It changes no table, and what it sends is bounded by the number of ports.
func TestSuccession(t *testing.T) {
	const leaves, hosts, spines, groups, members = 8, 25, 4, 1000, 8
	f := subnet.New(1, time.Microsecond)
	cas := subnet.FatTree(f, leaves, hosts, spines, 1)
	in := inherited{intentRev: 1}
	red, blue := sm.Partition{Name: "red", PKey: 0x8001}, sm.Partition{Name: "blue", PKey: 0x8002}
	for i, c := range cas {
		as := []sm.Membership{sm.Full, sm.Limited}[min(i%5, 1)]
		p := []*sm.Partition{&red, &blue}[i%2]
		p.Members = append(p.Members, sm.Member{PortGUID: c.PortGUID(), As: as})
	}
	in.intent = Intent{Version: IntentVersion, Subnet: sm.Intent{Partitions: []sm.Partition{red, blue,
		{Name: "limited", PKey: 0x8003, All: sm.Limited}}}}
	for i := range groups {
		g := sa.Group{MGID: ib.GID{0xff, 0x15, 0x40, 0x1b, 14: byte(i >> 8), 15: byte(i)}, MLID: ib.LID(0xc100 + i),
			QKey: 5, PKey: red.PKey, MTU: ib.MTU2048, Rate: ib.Rate100}
		for k := range members {
			g.Members = append(g.Members, sa.Member{PortGUID: cas[(2*(i+k*k*7))%len(cas)].PortGUID(),
				JoinState: mad.JoinFull})
		}
		in.clients.Groups = append(in.clients.Groups, g)
	}
	first := succeed(t, f, cas[0], in, 1)
	if n := len(first.sa.Groups()); n < groups {
		t.Fatalf("the first master has %d groups", n)
	}
	in = first.stored(t, f.Now, in)
	before := tables(f)
	f.Detach(cas[0])
	second := succeed(t, f, cas[len(cas)-1], in, 2)
	after, ports := tables(f), len(f.Nodes())
	// The port of the master is a full member of the default partition, and no other is.
	for what, swap := range map[string][2]string{cas[0].Name + " port 1": {"65535", "32767"},
		cas[len(cas)-1].Name + " port 1": {"32767", "65535"}} {
		before[what] = strings.Replace(before[what], "["+swap[0], "["+swap[1], 1)
	}
	for what, was := range before {
		if after[what] != was {
			t.Errorf("%s was %s and is %s", what, was, after[what])
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d entries of tables were %d", len(after), len(before))
	}
	if now := second.stored(t, f.Now, in).clients; !reflect.DeepEqual(now, in.clients) {
		t.Error("the records of clients changed")
	}
	for _, g := range second.sa.Groups() {
		for _, x := range g.Members {
			if !second.sm.Carries(g.MLID, x.PortGUID) {
				t.Fatalf("group %v is not carried to %v", g.MGID, x.PortGUID)
			}
		}
	}
	// Each port gets the LID of its master once. Tables of switches are written as a whole, as at first: to read them
	// costs as much. The own port of the master is written without a cable.
	sets := func(h heir, a mad.AttributeID) int { return h.sent[fmt.Sprintf("%#x", uint16(a))] }
	for attr, most := range map[mad.AttributeID]int{mad.AttrPortInfo: ports, mad.AttrPKeyTable: 1, mad.AttrSwitchInfo: 0,
		mad.AttrGUIDInfo: 0, mad.AttrSLtoVL: 0, mad.AttrVLArb: 0, mad.AttrLFT: sets(first, mad.AttrLFT),
		mad.AttrMFT: sets(first, mad.AttrMFT)} {
		if n := sets(second, attr); n > most {
			t.Errorf("%d Sets of attribute %#x, want at most %d", n, uint16(attr), most)
		}
	}
	if n := second.sent["reads"]; n < ports || n > 20*ports {
		t.Errorf("%d reads of %d nodes", n, ports)
	}
	t.Logf("%d nodes, %d groups: the first master sent %v, the second %v", ports, groups, first.sent, second.sent)
}

// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"strings"
	"testing"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// The nodes of three: three hosts, each with a switch and an adapter, and a trunk between each two switches.
const (
	swA, hostA, swB, hostB, swC, hostC = 0, 1, 2, 3, 4, 5

	nodes = 6
)

func guid(node int) ib.GUID { return ib.GUID(0x0200_0000_0000_0000 + uint64(node+1)<<16) }

func at(node int, port uint8) topo.Ref { return topo.Ref{Node: int32(node), Port: port} }

// three is a sound subnet. Ports 36 and 35 of each switch are those of its trunks, port 1 that of its host. LIDs are
// node+1.
func three() *Fabric {
	t := &topo.Subnet{Self: at(swA, 0)}
	link := mad.PortInfo{PortState: ib.PortActive, PortPhysicalState: ib.PhysLinkUp, MTUCap: ib.MTU4096,
		NeighborMTU: ib.MTU4096, LinkWidthActive: ib.Width4x, LinkSpeedActive: ib.SpeedQDR}
	for i := range nodes {
		n := topo.Node{Description: []string{"a weft switch", "a weft_ib0", "b weft switch", "b weft_ib0", "c weft switch",
			"c weft_ib0"}[i], Info: mad.NodeInfo{NodeGUID: guid(i), NodeType: mad.NodeCA, NumPorts: 1}}
		end, ports := 1, 2
		if i%2 == 0 {
			n.Switch = &topo.Switch{}
			n.Info.NodeType, n.Info.NumPorts = mad.NodeSwitch, 36
			end, ports = 0, 37
		}
		for range ports {
			n.Ports = append(n.Ports, topo.Port{Peer: topo.None})
		}
		p := &n.Ports[end]
		p.GUID, p.Info = guid(i)+ib.GUID(end), link
		p.Info.LID = ib.LID(i + 1)
		p.PKeys = []ib.PKey{0xffff, 0, 0, 0}
		p.Held = topo.Held{PKeys: []ib.PKey{0xffff, 0, 0, 0}, LID: p.Info.LID}
		t.Nodes = append(t.Nodes, n)
	}
	f := &Fabric{Topo: t, Manager: guid(swA), Applied: true, Trunks: map[topo.Ref]Trunk{},
		Counters: map[topo.Ref]Counters{}}
	join := func(x, y topo.Ref) {
		for _, e := range [][2]topo.Ref{{x, y}, {y, x}} {
			p := t.Port(e[0])
			lid := p.Info.LID
			p.Info, p.Peer = link, e[1]
			p.Info.LID = lid
			if t.Nodes[x.Node].IsSwitch() && t.Nodes[y.Node].IsSwitch() {
				f.Trunks[e[0]] = Trunk{Peer: "10.0.0." + string(rune('1'+e[1].Node/2)) + ":4792", Up: true, Limit: 8972, Here: 8972,
					There: 8972, Received: 1e6}
			}
		}
	}
	join(at(swA, 1), at(hostA, 1))
	join(at(swB, 1), at(hostB, 1))
	join(at(swC, 1), at(hostC, 1))
	join(at(swA, 36), at(swB, 36))
	join(at(swA, 35), at(swC, 36))
	join(at(swB, 35), at(swC, 35))
	//              LID:           0    1   2   3   4   5   6
	t.Nodes[swA].Switch.LFT = []uint8{255, 0, 1, 36, 36, 35, 35}
	t.Nodes[swB].Switch.LFT = []uint8{255, 36, 36, 0, 1, 35, 35}
	t.Nodes[swC].Switch.LFT = []uint8{255, 36, 36, 35, 35, 0, 1}
	t.Index()
	return f
}

// unlink takes the link at a port away, as a sweep finds it.
func (f *Fabric) unlink(x topo.Ref) {
	p := f.Topo.Port(x)
	y := p.Peer
	q := f.Topo.Port(y)
	p.Peer, q.Peer = topo.None, topo.None
	p.Info.PortState, q.Info.PortState = ib.PortDown, ib.PortDown
}

// red is a partition of the hosts a and b, which their ports have.
func (f *Fabric) red(as ...sm.Membership) {
	p := sm.Partition{Name: "red", PKey: 1}
	for i, node := range []int{hostA, hostB} {
		p.Members = append(p.Members, sm.Member{PortGUID: guid(node) + 1, As: as[i]})
	}
	f.Partitions = append(f.Partitions, p)
	for r := range f.Topo.EndPorts() {
		x := f.Topo.Port(r)
		x.PKeys = append(sm.IntendedKeys(f.Partitions, x.GUID, f.Manager), 0)
		x.Held.PKeys = append([]ib.PKey(nil), x.PKeys...)
	}
}

// TestPair breaks a sound subnet in one way each, and checks the pair of hosts a and b.
func TestPair(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(f *Fabric)
		level  Level
		step   string // of the worst finding
		what   string // a part of it
		fix    string // likewise
	}{
		"sound": {func(*Fabric) {}, OK, "", "", ""},
		"port not in the subnet": {func(f *Fabric) {
			f.unlink(at(swB, 1))
			f.Topo.Nodes[hostB].Ports[1].GUID = 0
			f.Topo.Index()
		}, Fail, "port", "0200:0000:0004:0001 is not in the subnet", "weft status"},
		"port in INIT": {func(f *Fabric) { f.Topo.Port(at(hostB, 1)).Info.PortState = ib.PortInit }, Fail, "port",
			"b weft_ib0: the port is INIT, not ACTIVE", "weft sm"},
		"another LID": {func(f *Fabric) {
			f.Topo.Port(at(hostB, 1)).Held = topo.Held{LID: 9, PKeys: []ib.PKey{0xffff},
				Why: "Set of its PortInfo: no answer"}
		}, Fail, "port",
			"LID 4 is intended, the port has 9: Set of its PortInfo: no answer", "weft sm"},
		"one partition, both limited": {func(f *Fabric) { f.red(sm.Limited, sm.Limited) }, Fail, "partition",
			"both are limited members of 0xffff (default) and 0x8001 (red)", "weft pkey add 0x8002 "},
		"no partition": {func(f *Fabric) {
			f.red(sm.Full, sm.NotMember)
		}, Fail, "partition", "both are limited members of 0xffff (default)", "weft pkey add"},
		"limited with full": {func(f *Fabric) { f.red(sm.Full, sm.Limited) }, OK, "", "", ""},
		"intended and not present": {func(f *Fabric) {
			f.red(sm.Full, sm.Full)
			f.Topo.Port(at(hostB, 1)).Held = topo.Held{PKeys: []ib.PKey{0x7fff, 0}, LID: 4,
				Why: "the port is guarded by the M_Key of another manager"}
		}, Fail, "partition",
			"b weft_ib0 does not have 0x8001 (red), of which it shall be a full member: the port is guarded",
			"weft sm"},
		"limited in place of full": {func(f *Fabric) {
			f.red(sm.Full, sm.Full)
			f.Topo.Port(at(hostB, 1)).Held.PKeys[1] = 0x0001
		}, Fail, "partition", "b weft_ib0 is a limited member of 0x8001 (red), and shall be a full one", "weft sm"},
		"not yet applied": {func(f *Fabric) {
			f.red(sm.Full, sm.Full)
			f.Topo.Port(at(hostB, 1)).Held.PKeys = []ib.PKey{0xffff, 0}
			f.Topo.Port(at(hostA, 1)).Held.PKeys = []ib.PKey{0xffff, 0}
			f.Applied = false
		}, Warn, "partition", "no sweep has applied the newest change yet", "wait"},
		"an extra partition": {func(f *Fabric) { f.Topo.Port(at(hostB, 1)).Held.PKeys[1] = 0x8009 }, Warn, "partition",
			"b weft_ib0 has 0x8009 as a full member, against the configuration", "weft sm"},
		"trunk on the way down": {func(f *Fabric) { f.unlink(at(swA, 36)) }, Fail, "path",
			"from a weft_ib0 to b weft_ib0: the link of a weft switch port 36 is down", "weft trunk"},
		"trunk down, a way around": {func(f *Fabric) {
			f.unlink(at(swA, 36))
			for _, end := range []topo.Ref{at(swA, 36), at(swB, 36)} {
				x := f.Trunks[end]
				x.Up = false
				f.Trunks[end] = x
			}
			f.Topo.Nodes[swA].Switch.LFT[4], f.Topo.Nodes[swB].Switch.LFT[2] = 35, 35
		}, Warn, "trunk", "a weft switch to 10.0.0.2:4792: down", "weft trunk there"},
		"a lost link elsewhere": {func(f *Fabric) {
			f.unlink(at(swB, 35))
			clear(f.Trunks)
			f.Lost = []sm.LostLink{{A: guid(swB), PortA: 35, B: guid(swC), PortB: 35}}
		}, Warn, "trunk", "the link between b weft switch port 35 and c weft switch port 35 is lost", "weft fabric sweep"},
		"link in INIT": {func(f *Fabric) { f.Topo.Port(at(swB, 36)).Info.PortState = ib.PortInit }, Fail, "path",
			"the link from a weft switch port 36 to b weft switch port 36 is INIT, not ACTIVE", "weft fabric sweep"},
		"no entry": {func(f *Fabric) { f.Topo.Nodes[swA].Switch.LFT[4] = 255 }, Fail, "path",
			"the forwarding table of a weft switch has no port for LID 4", "weft fabric sweep"},
		"a short table": {func(f *Fabric) { f.Topo.Nodes[swB].Switch.LFT = f.Topo.Nodes[swB].Switch.LFT[:3] }, Fail, "path",
			"the forwarding table of b weft switch has no port for LID 4", "weft fabric sweep"},
		"a port that is not there": {func(f *Fabric) { f.Topo.Nodes[swA].Switch.LFT[4] = 99 }, Fail, "path",
			"a weft switch sends it to port 99, which it does not have", "weft fabric sweep"},
		"another adapter": {func(f *Fabric) { f.Topo.Nodes[swA].Switch.LFT[4] = 1 }, Fail, "path",
			"it arrives at a weft_ib0 instead", "weft fabric sweep"},
		"a circle": {func(f *Fabric) { f.Topo.Nodes[swB].Switch.LFT[4] = 36 }, Fail, "path", "lead in a circle",
			"weft fabric sweep"},
		"no way back": {func(f *Fabric) { f.Topo.Nodes[swB].Switch.LFT[2] = 255 }, Fail, "path",
			"back: from b weft_ib0 to a weft_ib0: the forwarding table of b weft switch has no port for LID 2",
			"weft fabric sweep"},
		"tables not accepted": {func(f *Fabric) { f.Topo.Nodes[swB].Switch.Unwritten = true }, Warn, "path",
			"b weft switch did not accept all of its tables", "weft sm"},
		"ends of different MTU": {func(f *Fabric) { f.Topo.Port(at(swB, 36)).Info.NeighborMTU = ib.MTU2048 }, Fail, "mtu",
			"a weft switch port 36 has MTU 4096, b weft switch port 36 at the other end has 2048", "weft fabric sweep"},
		"a narrow link": {func(f *Fabric) {
			f.Topo.Port(at(swA, 36)).Info.NeighborMTU, f.Topo.Port(at(swB, 36)).Info.NeighborMTU = ib.MTU1024, ib.MTU1024
		}, Warn, "mtu", "1024 on the way, though both ports can have 4096: a weft switch port 36 to b weft switch port 36: 1024",
			"-m 1024"},
		"hosts of different MTU": {func(f *Fabric) {
			f.Trunks[at(swA, 36)] = Trunk{Peer: "10.0.0.2:4792", Up: true, Limit: 1472, Here: 8972, There: 1472}
			delete(f.Trunks, at(swB, 36))
		}, Warn, "trunk", "the MTU differs: datagrams of 8972 octets here, 1472 there", "mtu 9000"},
		"limits that were not agreed on": {func(f *Fabric) {
			x := f.Trunks[at(swB, 36)]
			x.Limit, x.Here, x.There = 1472, 0, 0
			f.Trunks[at(swB, 36)] = x
		}, Fail, "mtu", "a weft switch sends datagrams of up to 8972 octets, b weft switch of up to 1472", "mtu 9000"},
		"loss": {func(f *Fabric) {
			x := f.Trunks[at(swA, 36)]
			x.Lost = 5e4
			f.Trunks[at(swA, 36)] = x
		}, Warn, "trunk", "50000 of 1050000 datagrams were lost", "weft fault list"},
		"counters": {func(f *Fabric) {
			f.Counters[at(swA, 36)] = Counters{Packets: 1000, Discards: 30, Downs: 1}
			f.Counters[at(swB, 36)] = Counters{}
		}, Warn, "counters", "a weft switch port 36: 30 packets not sent, 1 failures of the link, of 1000 packets",
			"perfquery"},
		"few losses": {func(f *Fabric) { f.Counters[at(swA, 36)] = Counters{Packets: 10, Discards: 3, Downs: 1} }, OK, "",
			"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := three()
			c.damage(f)
			r := f.Pair(guid(hostA)+1, guid(hostB)+1)
			w := r.Worst()
			if w.Level != c.level || w.Step != c.step || !strings.Contains(w.What, c.what) || !strings.Contains(w.Fix, c.fix) {
				t.Errorf("the worst is %+v; all:\n%+v", w, r.Findings)
			}
			if r.Works() != (c.level != Fail) {
				t.Errorf("works: %v", r.Works())
			}
			for _, x := range r.Findings {
				if (x.Level == OK) != (x.Fix == "") || x.What == "" {
					t.Errorf("a finding without a fix, or with one too many: %+v", x)
				}
			}
		})
	}
}

// TestPairOfAllNodes: the hops and the MTU of sound ways, of a port to itself and of switches.
func TestPairOfAllNodes(t *testing.T) {
	f := three()
	for _, c := range []struct {
		from, to ib.GUID
		hops     int
	}{{guid(hostA) + 1, guid(hostB) + 1, 3}, {guid(hostA) + 1, guid(hostA) + 1, 0}, {guid(hostA) + 1, guid(swA), 1},
		{guid(swA), guid(hostA) + 1, 1}, {guid(swA), guid(swB), 1}, {guid(hostC) + 1, guid(swB), 2}} {
		r := f.Pair(c.from, c.to)
		if !r.Works() || r.Worst().Level != OK || len(r.Hops) != c.hops || r.MTU != ib.MTU4096 {
			t.Errorf("%v to %v: %d hops, MTU %v: %+v", c.from, c.to, len(r.Hops), r.MTU, r.Findings)
		}
	}
}

// TestWhole: a sound subnet has one OK for each step; a broken one names what is wrong, and every other step is sound.
func TestWhole(t *testing.T) {
	count := func(f *Fabric) (bad []Finding, ok int) {
		for _, x := range f.Whole() {
			if x.Level == OK {
				ok++
				continue
			}
			if x.Fix == "" {
				t.Errorf("no fix: %+v", x)
			}
			bad = append(bad, x)
		}
		return bad, ok
	}
	if bad, ok := count(three()); len(bad) != 0 || ok != 5 {
		t.Fatalf("%d, %+v", ok, bad)
	}
	for name, c := range map[string]struct {
		damage func(f *Fabric)
		want   []string
	}{
		"a member is away": {func(f *Fabric) {
			f.red(sm.Full, sm.Full)
			f.Partitions[0].Members = append(f.Partitions[0].Members, sm.Member{PortGUID: 0x77, As: sm.Full})
		}, []string{"fail partition 0000:0000:0000:0077 does not have 0x8001 (red), of which it shall be a full member: " +
			sm.Absent}},
		"an extra key, not applied": {func(f *Fabric) {
			f.Topo.Port(at(hostC, 1)).Held.PKeys[1], f.Applied = 0x8003, false
		}, []string{"warn partition c weft_ib0 has 0x8003 as a full member, against the configuration: no sweep"}},
		"a cut trunk": {func(f *Fabric) {
			f.unlink(at(swB, 35))
			delete(f.Trunks, at(swB, 35))
			delete(f.Trunks, at(swC, 35))
			f.Lost = []sm.LostLink{{A: guid(swB), PortA: 35, B: guid(swC), PortB: 35}}
			f.Topo.Nodes[swB].Switch.LFT[5], f.Topo.Nodes[swB].Switch.LFT[6] = 36, 36
			f.Topo.Nodes[swC].Switch.LFT[3], f.Topo.Nodes[swC].Switch.LFT[4] = 36, 36
		}, []string{"fail trunk the link between b weft switch port 35 and c weft switch port 35 is lost"}},
		"a table with a hole": {func(f *Fabric) { f.Topo.Nodes[swC].Switch.LFT[2] = 255 },
			[]string{"fail path from c weft switch to a weft_ib0: the forwarding table of c weft switch has no port for LID 2"}},
		"a port and its link in ARMED": {func(f *Fabric) { f.Topo.Port(at(hostC, 1)).Info.PortState = ib.PortArmed },
			[]string{"fail port c weft_ib0: the port is ARMED",
				"fail link the link between c weft switch port 1 and c weft_ib0 is ARMED"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := three()
			c.damage(f)
			bad, _ := count(f)
			if len(bad) != len(c.want) {
				t.Fatalf("%+v", bad)
			}
			for i, x := range bad {
				if got := x.Level.String() + " " + x.Step + " " + x.What; !strings.HasPrefix(got, c.want[i]) {
					t.Errorf("got %q, want %q", got, c.want[i])
				}
			}
		})
	}
}

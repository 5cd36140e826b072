// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"testing"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// confine makes the left neighbour of a node of a line confined, with one P_Key.
func (e *end) confine(key ib.PKey) {
	w := e.wiring.Load().Clone()
	w.Confined.Add(7)
	w.Nodes = []ib.GUID{0x0200_0000_0005_0000}
	e.wiring.Store(w)
	e.builder.SetPort(7, vswitch.Port{State: ib.PortActive, EnforceIn: true, PKeys: []ib.PKey{key}})
	e.table.Store(e.builder.Snapshot())
}

// bring has a node handle a packet of its left neighbour.
func (e *end) bring(p []byte) {
	e.cable.queue = append(e.cable.queue, arrival{0, p})
	e.Recv(1)
}

// datagram is a packet from a LID to a queue pair.
func datagram(slid, dlid ib.LID, key ib.PKey, qpn ib.QPN, fill func(*mad.Datagram)) []byte {
	d := mad.Datagram{SLID: slid, DLID: dlid, PKey: key, SrcQPN: qpn, DstQPN: qpn, QKey: 1}
	if fill != nil {
		fill(&d)
	}
	b := make([]byte, MADLen(&d))
	PutMAD(b, &d, 0)
	return b
}

// TestConfinedData: a confined node sends data packets, in both formats, from its own LIDs and with its own P_Keys. The
// switch neither delivers nor forwards others, and counts them.
func TestConfinedData(t *testing.T) {
	const own, limited = ib.PKey(0x8005), ib.PKey(5)
	for _, c := range []struct {
		name       string
		slid, dlid ib.LID
		key        ib.PKey
		want       Foreign
	}{
		{"own", 1, 2, own, Foreign{}},
		{"own, forwarded", 1, 3, own, Foreign{}},
		{"as a limited member", 1, 3, limited, Foreign{}},
		{"to a group", 1, 0xc001, own, Foreign{}},
		{"LID of a node behind the switch", 3, 2, own, Foreign{Sources: 1}},
		{"that LID, to a group", 3, 0xc001, own, Foreign{Sources: 1}},
		{"LID of nobody", 77, 3, own, Foreign{Sources: 1}},
		{"multicast LID as the source", 0xc001, 3, own, Foreign{Sources: 1}},
		{"permissive source", 0xffff, 3, own, Foreign{Sources: 1}},
		{"source 0", 0, 3, own, Foreign{Sources: 1}},
		{"another partition", 1, 2, 0x8006, Foreign{PKeys: 1}},
		{"another partition, forwarded", 1, 3, 0x8006, Foreign{PKeys: 1}},
		{"another partition, to a group", 1, 0xc001, 0x8006, Foreign{PKeys: 1}},
	} {
		for _, native := range []bool{true, false} {
			nodes := line(t, 3)
			n := nodes[1]
			n.confine(own)
			got := takers(nodes)
			p := datagram(c.slid, c.dlid, c.key, 0x1234, nil)
			if !native {
				p = packet16(vswitch.LIDTo24(c.slid), vswitch.LIDTo24(c.dlid), c.key, 100, nil)
				p = append([]byte{kind16}, p...)
				if !c.slid.IsUnicast() {
					continue // source16 refuses it for every peer
				}
			}
			n.cable.queue = append(n.cable.queue, arrival{0, p})
			runs, _ := n.Recv(1)
			passed := len(runs) + len(got[1]) + len(nodes[2].cable.queue)
			f := n.PeerCounters(0).Foreign
			if (passed > 0) != (c.want == Foreign{}) {
				t.Errorf("%s, 9B %v: %d packets passed", c.name, native, passed)
			}
			if c.want != (Foreign{}) {
				c.want.Newest, c.want.Since = 1, 1
			}
			if f != c.want {
				t.Errorf("%s, 9B %v: counted %+v, want %+v", c.name, native, f, c.want)
			}
			if k := n.Counters(); k.DropForeignSource != f.Sources || k.DropRoute[vswitch.PKeyIn] != f.PKeys {
				t.Errorf("%s, 9B %v: %+v", c.name, native, k)
			}
		}
	}
}

// TestConfinedSMP: of subnet management packets a confined node may send requests that read, traps, and answers along
// the route of their request.
func TestConfinedSMP(t *testing.T) {
	smp := func(class mad.Class, method mad.Method, f func(*mad.SMP)) func(*mad.Datagram) {
		return func(d *mad.Datagram) {
			s := mad.SMP{Header: mad.Header{BaseVersion: 1, MgmtClass: class, ClassVersion: 1, Method: method},
				DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive}
			if f != nil {
				f(&s)
			}
			s.Append(d.Data[:0])
		}
	}
	route := func(d bool, pointer uint8, path ...uint8) func(*mad.SMP) {
		return func(s *mad.SMP) {
			s.D, s.HopPointer, s.HopCount = d, pointer, uint8(len(path))
			copy(s.InitialPath[1:], path)
		}
	}
	info := func(node ib.GUID, path ...uint8) func(*mad.SMP) {
		return func(s *mad.SMP) {
			route(true, uint8(len(path)), path...)(s)
			s.AttributeID = mad.AttrNodeInfo
			i := mad.NodeInfo{NodeType: mad.NodeSwitch, NodeGUID: node, PortGUID: node + 1, SystemImageGUID: node &^ 0xffff}
			i.Append(s.Data[:0])
		}
	}
	const perm, lid, dr = ib.LIDPermissive, mad.ClassSubnLID, mad.ClassSubnDR
	for _, c := range []struct {
		name       string
		slid, dlid ib.LID
		fill       func(*mad.Datagram)
		passes     bool
	}{
		{"Get, directed", perm, perm, smp(dr, mad.MethodGet, route(false, 1, 7)), true},
		{"Get, directed, onward", perm, perm, smp(dr, mad.MethodGet, route(false, 1, 7, 8)), true},
		{"Get by LID", 1, 3, smp(lid, mad.MethodGet, nil), true},
		{"trap", 1, 2, smp(lid, mad.MethodTrap, nil), true},
		{"trap without a LID", perm, 2, smp(lid, mad.MethodTrap, nil), true},
		{"answer on its way back", perm, perm, smp(dr, mad.MethodGetResp, route(true, 1, 7)), true},
		{"answer on its way back to others", perm, perm, smp(dr, mad.MethodGetResp, route(true, 2, 3, 7)), true},
		{"answer by LID", 1, 2, smp(lid, mad.MethodGetResp, nil), true},
		{"NodeInfo of its switch", perm, perm, smp(dr, mad.MethodGetResp, info(0x0200_0000_0005_0000, 7)), true},
		{"NodeInfo of an adapter in place of its switch", perm, perm, smp(dr, mad.MethodGetResp, func(s *mad.SMP) {
			info(0x0200_0000_0005_0000, 7)(s)
			s.Data[2] = byte(mad.NodeCA)
		}), false},
		// The manager compares this one with the switch.
		{"NodeInfo behind its switch", perm, perm, smp(dr, mad.MethodGetResp, func(s *mad.SMP) {
			info(0x0200_0000_0006_0000, 7, 9)(s)
			s.HopPointer = 1
		}), true},
		{"NodeInfo of another", perm, perm, smp(dr, mad.MethodGetResp, info(0x0200_0000_0006_0000, 7)), false},
		{"NodeInfo with a port of another", perm, perm, smp(dr, mad.MethodGetResp, func(s *mad.SMP) {
			info(0x0200_0000_0005_0000, 7)(s)
			i := mad.NodeInfo{NodeType: mad.NodeSwitch, NodeGUID: 0x0200_0000_0005_0000, PortGUID: 0x0200_0000_0006_0003,
				SystemImageGUID: 0x0200_0000_0005_0000}
			i.Append(s.Data[:0])
		}), false},
		{"Set, directed", perm, perm, smp(dr, mad.MethodSet, route(false, 1, 7)), false},
		{"Set, directed, onward", perm, perm, smp(dr, mad.MethodSet, route(false, 1, 7, 8)), false},
		{"Set, directed, from afar", perm, perm, smp(dr, mad.MethodSet, route(false, 2, 9, 7)), false},
		{"Set by LID", 1, 2, smp(lid, mad.MethodSet, nil), false},
		{"Set by LID, forwarded", 1, 3, smp(lid, mad.MethodSet, nil), false},
		{"Set by LID, in another's name", 3, 2, smp(lid, mad.MethodSet, nil), false},
		{"Set by the permissive LID", perm, perm, smp(lid, mad.MethodSet, nil), false},
		{"TrapRepress", 1, 2, smp(lid, mad.MethodTrapRepress, nil), false},
		{"answer for another node", perm, perm, smp(dr, mad.MethodGetResp, route(true, 1, 8)), false},
		{"answer of two hops for another", perm, perm, smp(dr, mad.MethodGetResp, route(true, 1, 8, 7)), false},
		{"answer that is at its end", perm, perm, smp(dr, mad.MethodGetResp, func(s *mad.SMP) {
			route(true, 0, 8)(s)
			s.InitialPath[0] = 7
		}), false},
		{"answer that enters the route by LID", 1, 2, smp(dr, mad.MethodGetResp, route(true, 1, 7)), false},
		{"that, without a LID", perm, 3, smp(dr, mad.MethodGetResp, route(true, 1, 7, 9)), false},
		{"answer beyond its route", perm, perm, smp(dr, mad.MethodGetResp, route(true, 2, 7)), false},
		{"answer of too many hops", perm, perm, smp(dr, mad.MethodGetResp, func(s *mad.SMP) {
			route(true, 63, 7)(s)
			s.HopCount, s.InitialPath[63] = 200, 7
		}), false},
		{"answer without a LID", perm, 2, smp(lid, mad.MethodGetResp, nil), false},
		{"answer in another's name", 3, 2, smp(lid, mad.MethodGetResp, nil), false},
		{"Set as an answer", perm, perm, smp(dr, mad.MethodSet, route(true, 1, 7)), false},
		{"another class", perm, perm, smp(mad.ClassPerf, mad.MethodSet, nil), false},
	} {
		for _, confined := range []bool{true, false} {
			nodes := line(t, 3)
			n := nodes[1]
			if confined {
				n.confine(0xffff)
			}
			n.bring(datagram(c.slid, c.dlid, 0xffff, ib.QPNSMI, c.fill))
			passed := len(n.mads)+len(nodes[2].cable.queue) > 0
			f := n.PeerCounters(0).Foreign
			if passed != (c.passes || !confined) || f.SMPs+f.Sources > 0 == passed {
				t.Errorf("%s, confined %v: passed %v, counted %+v", c.name, confined, passed, f)
			}
		}
	}
	// What is no datagram does not pass to others either.
	nodes := line(t, 3)
	nodes[1].confine(0xffff)
	p := datagram(1, 3, 0xffff, ib.QPNSMI, smp(lid, mad.MethodGet, nil))
	p[wire.LRHLen] = byte(ib.ServiceUD | ib.SendOnlyImm)
	seal(p)
	if nodes[1].bring(p); len(nodes[2].cable.queue) > 0 || nodes[1].PeerCounters(0).Foreign.SMPs != 1 {
		t.Errorf("%+v", nodes[1].PeerCounters(0))
	}
}

// BenchmarkConfined is the time per packet that a switch forwards from one trunk to another.
func BenchmarkConfined(b *testing.B) {
	for name, confined := range map[string]bool{"confined": true, "free": false} {
		b.Run(name, func(b *testing.B) {
			nodes := line(b, 3)
			n := nodes[1]
			if confined {
				n.confine(0xffff)
			}
			p := datagram(1, 3, 0xffff, 0x1234, nil)
			n.cable.to[1] = hop{&cable{}, 0}
			sink := n.cable.to[1].c
			for b.Loop() {
				n.fromTrunk(0, p)
				sink.queue = sink.queue[:0]
			}
		})
	}
}

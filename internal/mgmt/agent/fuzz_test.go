// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// FuzzHandle gives a switch and an adapter MADs of any bytes, with links going
// up and down between them, and checks what must always hold.
func FuzzHandle(f *testing.F) {
	seed := func(m mad.Method, attr mad.AttributeID, mod uint32, data attribute, path ...uint8) {
		d := request(m, attr, mod, data, path...)
		f.Add(byte(1), byte(0), d.Data[:])
		f.Add(byte(0), byte(0x40), d.Data[:])
	}
	for _, attr := range []mad.AttributeID{mad.AttrNodeInfo, mad.AttrNodeDescription, mad.AttrSwitchInfo,
		mad.AttrGUIDInfo, mad.AttrPortInfo,
		mad.AttrPKeyTable, mad.AttrSLtoVL, mad.AttrVLArb, mad.AttrLFT, mad.AttrMFT, mad.AttrSMInfo} {
		for _, mod := range []uint32{0, 1, 0x10001, 0x80000001} {
			seed(mad.MethodGet, attr, mod, nil)
			seed(mad.MethodSet, attr, mod, &mad.LFT{1, 2, 3, 4, 5, 6, 7, 8, 0xfe, 0x80, 32: 0x03, 33: 0x52, 36: 0x40,
				43: 0x18})
		}
	}
	seed(mad.MethodGet, mad.AttrNodeInfo, 0, nil, 1, 2)
	pma := mad.Perf{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassPerf, ClassVersion: 1,
		Method: mad.MethodSet, AttributeID: mad.AttrPortCounters}}
	(&mad.PortCounters{PortSelect: 1, CounterSelect: 0xffff}).Append(pma.Data[:0])
	f.Add(byte(1), byte(0x80), pma.Append(nil))

	f.Fuzz(func(t *testing.T, port, how byte, data []byte) {
		now := start
		for _, typ := range []mad.NodeType{mad.NodeSwitch, mad.NodeCA} {
			a := New(Config{Type: typ, NumPorts: 20, NodeGUID: 0x11, Caps: fastCaps(), EnforceCap: 8}, nil, nil)
			a.LinkUp(now, 1, edr)
			a.LinkUp(now, 2, edr)
			managed(a)
			if how&1 != 0 {
				a.LinkDown(now, 1)
			}
			a.end().info.MKeyProtectBits = how >> 1 & 3
			if how&8 != 0 {
				a.end().info.MKey = 99
			}
			d := mad.Datagram{Port: port, SLID: ib.LIDPermissive, DLID: ib.LIDPermissive}
			if how&0x40 != 0 {
				d.SLID, d.DLID = 3, 9
			}
			d.DstQPN = ib.QPN(how >> 7)
			copy(d.Data[:], data)
			before := d
			check(t, a, &before, &d, a.Handle(now, &d))
			d = before
			check(t, a, &before, &d, a.Originate(now, &d))
			for range 2 {
				now = max(now, a.Deadline())
				var out mad.Datagram
				for i := 0; a.Next(now, &out) != Done; i++ {
					if i > numTraps {
						t.Fatal("traps without end")
					}
				}
			}
		}
	})
}

func check(t *testing.T, a *Agent, in, out *mad.Datagram, v Verdict) {
	t.Helper()
	if v == Send && (out.Port == 0 || int(out.Port) >= len(a.ports) ||
		a.ports[out.Port].info.PortPhysicalState != ib.PhysLinkUp) {
		t.Fatalf("sent by port %d", out.Port)
	}
	if v != Done && (mad.Method(in.Data[3]) == mad.MethodGet || mad.Method(in.Data[3]) == mad.MethodSet) &&
		out.Data[3]&0x80 != 0 {
		// An answer keeps what identifies the question.
		for _, i := range []int{0, 1, 2, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23} {
			if in.Data[i] != out.Data[i] {
				t.Fatalf("octet %d of the answer is %#x, was %#x", i, out.Data[i], in.Data[i])
			}
		}
	}
	for n := range a.ports {
		i := &a.ports[n].info
		if n == 0 && !a.isSwitch() {
			continue
		}
		if i.PortState < ib.PortDown || i.PortState > ib.PortActive || i.NeighborMTU > i.MTUCap ||
			i.OperationalVLs > i.VLCap ||
			i.LinkWidthEnabled&^i.LinkWidthSupported != 0 || i.LinkSpeedEnabled&^i.LinkSpeedSupported != 0 ||
			(i.PortState > ib.PortDown) != (i.PortPhysicalState == ib.PhysLinkUp) || i.ClientReregister {
			t.Fatalf("port %d: %+v", n, i)
		}
		if a.forward != nil && a.forward.Port(uint8(n)).State != i.PortState {
			t.Fatalf("port %d: forwarding has %v, the port %v", n, a.forward.Port(uint8(n)).State, i.PortState)
		}
	}
	e := &a.end().info
	if e.LID >= ib.LIDMulticastFirst || e.LID&(1<<e.LMC-1) != 0 || a.GUIDs()[0] != a.cfg.PortGUID ||
		e.CapabilityMask != a.cfg.Caps.Mask {
		t.Fatalf("%+v", e)
	}
}

// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"encoding/binary"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// FuzzPorts does what managers, users and the fabric do to a function's ports in any order, and holds
// what must be true after each step.
func FuzzPorts(f *testing.F) {
	f.Add([]byte{0, 1, 1, 5, 0, 0, 1, 1, 6, 1, 2, 3, 0, 9, 4, 0, 3, 3, 0, 0, 4, 1, 1, 5, 0, 0})
	f.Add([]byte{0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 2, 0, 7, 7, 0, 0, 8, 7, 3, 0, 1, 3, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		next := func() (v byte) {
			if len(b) > 0 {
				v, b = b[0], b[1:]
			}
			return v
		}
		h := bare(5)
		now := mono.Time(1)
		for steps := 0; len(b) > 0 && steps < 200; steps++ {
			op, vport := next(), next()%4
			now += mono.Time(next()) << 22
			v := next()
			before := [4]mad.VESWPortInfo{h.Info(0), h.Info(1), h.Info(2), h.Info(3)}
			var err error
			p := h.Port(vport)
			switch op % 9 {
			case 0, 1:
				i := info(5)
				i.VESW.VESWID = uint16(v%3) * 0x101
				i.Port.ConfigState = mad.VESWState(v >> 3 & 3)
				i.VESW.McastDLID = uint32(binary.LittleEndian.Uint16([]byte{v, next()})) + 0xefff80
				i.VESW.EthMTU = uint16(v) * 40
				i.VESW.PKey = ib.PKey(next()) << 8
				i.Port.BaseMAC[0] = next() & 3
				err = h.SetInfo(now, vport, i)
			case 2:
				err = h.Delete(now, vport)
			case 3:
				err = h.Remove(now, vport)
			case 4:
				e := []mad.VESWMACEntry{{MAC: [6]byte{v & 1, v}, DLIDSD: uint32(v&0xf0) << 24 >> uint(next()&8)}, {}}
				err = h.SetMACEntries(vport, int(next())*9, e, uint32(v))
			case 5:
				h.SetLink(now, v&1 != 0)
			case 6:
				if p != nil {
					p.SetAdmin(now, v&1 != 0)
				}
			case 7:
				if p != nil {
					p.SetFilters(now, [][6]byte{{2, v & 7}}, [][6]byte{{1, v >> 3}})
					p.SetMAC(now, [6]byte{v})
				}
			case 8:
				if p != nil {
					p.SetMTU(now, int(v)*40)
				}
			}
			if err != nil && before != [4]mad.VESWPortInfo{h.Info(0), h.Info(1), h.Info(2), h.Info(3)} {
				t.Fatalf("step %d: %v, and something changed", steps, err)
			}
			h.check(t)
			if d := h.Deadline(); d.Due(now) {
				if _, ok := h.NextTrap(now); !ok {
					t.Fatal("a trap is due and does not come")
				}
			} else if tr, ok := h.NextTrap(now); ok {
				t.Fatalf("trap %+v comes at %d, due at %d", tr, now, d)
			}
		}
	})
}

// check verifies the invariants of a function's ports between calls.
func (h *host) check(t *testing.T) {
	t.Helper()
	m := h.a.seen.Load()
	bound := map[uint16]bool{}
	n := 0
	h.Each(func(v uint8, p *Port) {
		n++
		q, pl, d := &p.info.Port, p.plan.Load(), p.Device()
		id := p.info.VESW.VESWID
		oper := q.ConfigState == mad.VESWForwarding && p.admin && h.active && id != 0
		if (q.OperState == mad.VESWForwarding) != oper || (q.LinkStatus == mad.VESWLinkUp) != oper ||
			pl.oper != oper || (d.Reason == "") != oper {
			t.Fatalf("port %d: oper %v, and %+v, plan %v", v, oper, d, pl.oper)
		}
		if bound[id] && id != 0 {
			t.Fatalf("two ports in VESW %#x", id)
		}
		bound[id] = true
		if (m.index[id] == v+1) != (id != 0) {
			t.Fatalf("port %d is in VESW %#x, whose packets go to %d", v, id, int(m.index[id])-1)
		}
		if in := &m.inlet[v]; id != 0 && (in.up != oper || in.pkey != p.info.VESW.PKey || in.maxFrame != d.MTU+18 ||
			in.attached(p.info.VESW.McastDLID) != (p.info.VESW.McastDLID != 0)) {
			t.Fatalf("port %d: %+v behind %+v", v, in, p.info)
		}
		if d.MTU > int(p.info.VESW.EthMTU) || d.MTU < MinEthMTU || d.MaxMTU != int(p.info.VESW.EthMTU) {
			t.Fatalf("port %d: MTU %d of %d", v, d.MTU, d.MaxMTU)
		}
	})
	if n != h.n || n != h.a.used {
		t.Fatalf("%d ports, %d counted, %d netdevs", n, h.n, h.a.used)
	}
	for id, v := range m.index {
		if v != 0 && (h.Port(v-1) == nil || h.Port(v-1).info.VESW.VESWID != uint16(id)) {
			t.Fatalf("VESW %#x leads to port %d", id, v-1)
		}
	}
}

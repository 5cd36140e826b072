// SPDX-License-Identifier: Apache-2.0

package vswitch

import (
	"testing"

	"weft/internal/proto/ib"
)

// model is a slow and simple switch: one map entry per fact, one loop over all ports per packet.
type model struct {
	n      int
	ports  map[int]Port
	lft    map[ib.LID]int
	member map[ib.LID]map[int]bool
	g      Globals
}

func (m *model) in(p int, key ib.PKey) Refusal {
	c, ok := m.ports[p]
	switch {
	case !ok:
		return BadPort
	case c.State != ib.PortActive && c.State != ib.PortArmed:
		return IngressState
	case c.EnforceIn:
		for _, k := range c.PKeys {
			same := k&0x7fff == key&0x7fff && key&0x7fff != 0
			if same && (k&0x8000 != 0 || key&0x8000 == 0) {
				return OK
			}
		}
		return PKeyIn
	}
	return OK
}

func (m *model) out(p int, key ib.PKey) Refusal {
	c := m.ports[p]
	if c.State != ib.PortActive {
		return EgressState
	}
	if c.EnforceOut {
		for _, k := range c.PKeys {
			if k&0x7fff == key&0x7fff && key&0x7fff != 0 && (k|key)&0x8000 != 0 {
				return OK
			}
		}
		return PKeyOut
	}
	return OK
}

func (m *model) route(in int, dlid ib.LID, key ib.PKey) (map[int]bool, Refusal) {
	if why := m.in(in, key); why != OK {
		return nil, why
	}
	if dlid == 0 || dlid == 0xffff {
		return nil, BadLID
	}
	if dlid < 0xc000 {
		p, ok := m.lft[dlid]
		switch {
		case dlid > m.g.LinearTop:
			return nil, AboveTop
		case !ok || p > m.n:
			return nil, Unreachable
		case p == in:
			return nil, Loopback
		}
		if why := m.out(p, key); why != OK {
			return nil, why
		}
		return map[int]bool{p: true}, OK
	}
	members := m.member[dlid]
	if m.g.MulticastTop != 0 && dlid > m.g.MulticastTop {
		p := int(m.g.PrimaryPort)
		if p == in {
			p = int(m.g.NotPrimaryPort)
		}
		if p > m.n {
			return nil, Unreachable
		}
		members = map[int]bool{p: true}
	}
	got, others, sending := map[int]bool{}, 0, 0
	for p := range m.n + 1 {
		if !members[p] || p == in {
			continue
		}
		others++
		switch m.out(p, key) {
		case OK:
			got[p] = true
			sending++
		case PKeyOut:
			sending++
		}
	}
	switch {
	case others == 0:
		return nil, NoMembers
	case sending == 0:
		return nil, EgressState
	case len(got) == 0:
		return nil, PKeyOut
	}
	return got, OK
}

// FuzzTable plays edits and packets from bytes on a Builder and on the model,
// takes snapshots on the way, and compares every answer; snapshots must go on
// answering as when they were taken.
func FuzzTable(f *testing.F) {
	f.Add([]byte{9, 0, 1, 4, 0, 2, 4, 1, 5, 2, 6, 1, 5, 7})
	f.Add([]byte{200, 0, 1, 4, 7, 0, 2, 4, 3, 2, 0, 0x12, 1, 3, 3, 1, 6, 1, 0, 4, 0xff, 9, 6, 2, 200, 1})
	f.Add([]byte{20, 0, 0x11, 3, 1, 5, 0x11, 2, 7, 0xff, 0x80, 5, 6, 0x11, 3, 9, 3, 0, 0x33, 4, 4, 6, 6, 6, 6, 1, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() byte {
			if len(data) == 0 {
				return 0
			}
			c := data[0]
			data = data[1:]
			return c
		}
		n := next()
		b := NewBuilder(n)
		m := &model{n: min(int(n), MaxPorts), ports: map[int]Port{}, lft: map[ib.LID]int{},
			member: map[ib.LID]map[int]bool{},
			g:      Globals{PrimaryPort: NoPort, NotPrimaryPort: NoPort}}
		for p := range m.n + 1 {
			m.ports[p] = Port{State: ib.PortDown}
		}
		m.ports[0] = Port{State: ib.PortActive}
		uni := func() ib.LID { return ib.LID(next()) | ib.LID(next()%3)<<14 }
		multi := func() ib.LID { return 0xc000 + ib.LID(next()%64) + ib.LID(next()%2)*0x3fc0 }
		keyOf := func(c byte) ib.PKey { return ib.PKey(c&3) | ib.PKey(c>>7)<<15 }
		type sealed struct {
			t    *Table
			in   uint8
			dlid ib.LID
			key  ib.PKey
			out  PortSet
			why  Refusal
		}
		var kept []sealed
		for len(data) > 0 {
			switch op := next(); op % 8 {
			case 0:
				p, c := next(), next()
				port := Port{State: ib.PortState(c&3) + 1, EnforceIn: c&4 != 0, EnforceOut: c&8 != 0}
				for range c >> 6 {
					port.PKeys = append(port.PKeys, keyOf(next()))
				}
				b.SetPort(p, port)
				if int(p) <= m.n {
					m.ports[int(p)] = port
				}
			case 1:
				lid, p := uni(), next()
				if b.SetEntry(lid, p) != (lid < 0xc000) {
					t.Fatalf("SetEntry(%#x)", lid)
				}
				m.lft[lid] = int(p)
			case 2:
				var blk [BlockLIDs]uint8
				i, base := int(next()%4), next()
				for k := range blk {
					blk[k] = base + byte(k)*op
					m.lft[ib.LID(i*BlockLIDs+k)] = int(blk[k])
				}
				b.SetLFT(i, &blk)
			case 3:
				mlid, pos := multi(), next()%Positions
				i, k := int(mlid-0xc000)/BlockMLIDs, int(mlid-0xc000)%BlockMLIDs
				masks := b.MFT(i, pos)
				masks[k] = uint16(next())<<8 | uint16(next())
				b.SetMFT(i, pos, &masks)
				if m.member[mlid] == nil {
					m.member[mlid] = map[int]bool{}
				}
				for bit := range 16 {
					m.member[mlid][int(pos)*16+bit] = masks[k]>>bit&1 != 0
				}
			case 4:
				m.g = Globals{LinearTop: uni(), PrimaryPort: next(), NotPrimaryPort: next()}
				switch next() % 3 {
				case 1:
					m.g.MulticastTop = 0xbfff
				case 2:
					m.g.MulticastTop = multi()
				}
				b.SetGlobals(m.g)
			case 5:
				p, s := next(), ib.PortState(next()%4)+1
				b.SetState(p, s)
				if c, ok := m.ports[int(p)]; ok {
					c.State = s
					m.ports[int(p)] = c
				}
			default:
				in, key, dlid := next(), keyOf(next()), uni()
				if op&0x10 != 0 {
					dlid = multi()
				}
				want, wantWhy := m.route(int(in), dlid, key)
				got, why := b.Route(in, dlid, key)
				if why != wantWhy || got.Len() != len(want) {
					t.Fatalf("from %d to %#x with %#x: %v %v, want %v %v", in, dlid, key, got, why, want, wantWhy)
				}
				for p := range want {
					if !got.Has(uint8(p)) {
						t.Fatalf("from %d to %#x with %#x: %v, want %v", in, dlid, key, got, want)
					}
				}
				if op&0x20 != 0 && len(kept) < 4 {
					kept = append(kept, sealed{b.Snapshot(), in, dlid, key, got, why})
				}
			}
		}
		for _, k := range kept {
			if out, why := k.t.Route(k.in, k.dlid, k.key); out != k.out || why != k.why {
				t.Fatalf("a snapshot changed its mind: %v %v, was %v %v", out, why, k.out, k.why)
			}
		}
	})
}

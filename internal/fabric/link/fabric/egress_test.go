// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// second gives a node of a line another function: number 2 at port 2, with a LID, and in the
// group of the line.
func (e *end) second(lid ib.LID) {
	w := *e.wiring.Load()
	w.Port[2] = Plug{Function, 2}
	e.wiring.Store(&w)
	e.builder.SetPort(2, vswitch.Port{State: ib.PortActive})
	e.builder.SetEntry(lid, 2)
	mft := [vswitch.BlockMLIDs]uint16{1: 1<<1 | 1<<2}
	for _, p := range w.Trunk {
		if w.Port[p].Kind == Peer {
			mft[1] |= 1 << p
		}
	}
	e.builder.SetMFT(0, 0, &mft)
	e.table.Store(e.builder.Snapshot())
}

// in builds a packet in place, as a port does, and returns the functions that get it without one.
func (e *end) in(function uint16, p []byte) (here []uint16) {
	var h wire.Header16
	wire.Parse16(p, &h)
	h.Length = 0
	out, ok := e.Open16(function, &h)
	if !ok {
		return nil
	}
	for f, ok := out.Next(); ok; f, ok = out.Next() {
		here = append(here, f)
	}
	if out.Packets() {
		if b := e.Reserve16(&out, len(p)); b != nil {
			copy(b, p)
			e.Commit16(1, &out, len(p))
		}
	}
	return here
}

// TestBuiltInPlace: packets that are built where they leave from are those that Send16 sends.
func TestBuiltInPlace(t *testing.T) {
	for _, n := range []int{60, 1514, 9014, wire.MaxPayload16 - wire.Ethernet16Len} {
		for _, dlid := range []uint32{2, 3, 0xf00001} {
			p := packet16(2, dlid, 0xffff, n, nil)
			if dlid == 2 {
				p = packet16(2, 1, 0xffff, n, nil)
			}
			var arrived [2][][]byte
			for way := range 2 {
				nodes := line(t, 3)
				got := takers(nodes)
				if way == 0 {
					nodes[1].Send16(1, p)
				} else if here := nodes[1].in(1, p); here != nil {
					t.Errorf("functions %v", here)
				}
				settle(t, nodes)
				for i := range nodes {
					for _, x := range got[i] {
						arrived[way] = append(arrived[way], append([]byte{byte(i)}, x.p...))
					}
				}
				c := nodes[1].Counters()
				want := 1
				if dlid == 0xf00001 {
					want = 2
				}
				if len(arrived[way]) != want || int(c.SentPackets) != want {
					t.Errorf("to %#x: %d packets sent, %d arrived", dlid, c.SentPackets, len(arrived[way]))
				}
			}
			if !slices.EqualFunc(arrived[0], arrived[1], bytes.Equal) {
				t.Errorf("%d octets to %#x: other packets", n, dlid)
			}
		}
	}
}

// TestWithinTheNode: Next returns functions of the same node, which get no packet, unless WireLocal is
// set; the sender never gets its own.
func TestWithinTheNode(t *testing.T) {
	for _, packets := range []bool{false, true} {
		for _, x := range []struct {
			dlid uint32
			here []uint16
			away int // nodes that get it
		}{{10, []uint16{2}, 0}, {2, nil, 1}, {0xf00001, []uint16{2}, 1}} {
			nodes := line(t, 2)
			nodes[0].cfg.WireLocal = packets
			nodes[0].second(10)
			got := takers(nodes)
			p := packet16(1, x.dlid, 0xffff, 100, nil)
			here := nodes[0].in(1, p)
			if !packets && !slices.Equal(here, x.here) || packets && here != nil {
				t.Errorf("to %#x: functions %v", x.dlid, here)
			}
			settle(t, nodes)
			looped := 0
			if packets {
				looped = len(x.here)
			}
			if len(got[0]) != looped || len(got[1]) != x.away {
				t.Errorf("to %#x: %d packets here, %d away", x.dlid, len(got[0]), len(got[1]))
			}
			for _, g := range slices.Concat(got...) {
				if !bytes.Equal(g.p, p) {
					t.Errorf("to %#x: another packet", x.dlid)
				}
			}
			if len(got[0]) > 0 && got[0][0].function != 2 {
				t.Errorf("function %d got it", got[0][0].function)
			}
		}
	}
}

// TestEgressRefusals: the switch applies the same rules, with the same counters, to traffic that never
// becomes a packet.
func TestEgressRefusals(t *testing.T) {
	for _, x := range []struct {
		name     string
		function uint16
		p        []byte
		do       func(e *end)
		counter  string
	}{
		{"another function's LID", 2, packet16(1, 2, 0xffff, 60, nil), nil, "drop_unconnected"},
		{"another node's LID", 1, packet16(2, 1, 0xffff, 60, nil), nil, "drop_unconnected"},
		{"a LID without an entry", 1, packet16(77, 2, 0xffff, 60, nil), nil, "drop_unconnected"},
		{"from a group", 1, packet16(0xf00001, 2, 0xffff, 60, nil), nil, "drop_route_bad_lid"},
		{"from LID 0", 1, packet16(0, 2, 0xffff, 60, nil), nil, "drop_route_bad_lid"},
		{"to itself", 1, packet16(1, 1, 0xffff, 60, nil), nil, "drop_route_loopback"},
		{"to nobody", 1, packet16(1, 50, 0xffff, 60, nil), nil, "drop_route_unreachable"},
		{"to a group on SC 15", 1, packet16(1, 0xf00001, 0xffff, 60, func(h *wire.Header16) { h.SC = managementSC }),
			nil, "drop_16b_sc"},
		{"partition of the sender", 1, packet16(1, 10, 0x8002, 60, nil), func(e *end) {
			e.builder.SetPort(1, vswitch.Port{State: ib.PortActive, EnforceIn: true, PKeys: []ib.PKey{0x8001}})
		}, "drop_route_pkey_in"},
		{"partition of the other function", 1, packet16(1, 10, 0x8002, 60, nil), func(e *end) {
			e.builder.SetPort(2, vswitch.Port{State: ib.PortActive, EnforceOut: true, PKeys: []ib.PKey{0x8001}})
		}, "drop_route_pkey_out"},
		{"the switch's own LID", 1, packet16(1, 20, 0xffff, 60, nil), func(e *end) { e.builder.SetEntry(20, 0) },
			"drop_16b_no_port"},
		{"no room", 1, packet16(1, 2, 0xffff, 60, nil), func(e *end) { e.cable.full = true }, "drop_no_room"},
	} {
		nodes := line(t, 2)
		e := nodes[0]
		e.second(10)
		if x.do != nil {
			x.do(e)
			e.table.Store(e.builder.Snapshot())
		}
		here := e.in(x.function, x.p)
		drops := map[string]uint64{}
		count := e.Counters()
		count.Each(func(name string, v uint64) {
			if v != 0 {
				drops[name] = v
			}
		})
		if here != nil || fmt.Sprint(drops) != fmt.Sprint(map[string]uint64{x.counter: 1}) {
			t.Errorf("%s: functions %v, %v", x.name, here, drops)
		}
	}
	// Two functions of a group get one packet each.
	n := line(t, 1)
	n[0].second(10)
	w := *n[0].wiring.Load()
	w.Port[3] = Plug{Function, 3}
	n[0].wiring.Store(&w)
	n[0].builder.SetPort(3, vswitch.Port{State: ib.PortActive})
	n[0].builder.SetMFT(0, 0, &[vswitch.BlockMLIDs]uint16{1: 1<<1 | 1<<2 | 1<<3})
	n[0].table.Store(n[0].builder.Snapshot())
	if here := n[0].in(1, packet16(1, 0xf00001, 0xffff, 60, nil)); !slices.Equal(here, []uint16{2, 3}) {
		t.Errorf("functions %v", here)
	}
	n[0].cfg.WireLocal = true
	got := takers(n)
	if here := n[0].in(1, packet16(1, 0xf00001, 0xffff, 60, nil)); here != nil {
		t.Errorf("functions %v get what is in packets", here)
	}
	settle(t, n)
	if len(got[0]) != 2 || got[0][0].function != 2 || got[0][1].function != 3 {
		t.Errorf("%d packets", len(got[0]))
	}
	// Only a group's functions in the partition get it.
	e := line(t, 1)[0]
	e.second(10)
	if here := e.in(1, packet16(1, 0xf00001, 0x8002, 60, nil)); !slices.Equal(here, []uint16{2}) {
		t.Errorf("functions %v", here)
	}
	e.builder.SetPort(2, vswitch.Port{State: ib.PortActive, EnforceOut: true, PKeys: []ib.PKey{0x8001}})
	e.table.Store(e.builder.Snapshot())
	if here := e.in(1, packet16(1, 0xf00001, 0x8002, 60, nil)); here != nil {
		t.Errorf("functions %v in another partition", here)
	}
}

// TestTakenUntilNextRecv: packets that a Taker got stay as they are until the next Recv, whatever is
// sent meanwhile.
func TestTakenUntilNextRecv(t *testing.T) {
	nodes := line(t, 2)
	e := nodes[0]
	e.cfg.WireLocal = true
	e.second(10)
	var got, want [][]byte
	e.SetTaker(func(_ mono.Time, _ uint16, _ *wire.Header16, p []byte) bool { got = append(got, p); return true })
	for round := range 3 {
		got, want = nil, nil
		for i := range 20 {
			p := packet16(1, 10, 0xffff, 60+i+round, nil)
			want = append(want, p)
			e.in(1, p)
			q := packet16(2, 1, 0xffff, 90+i, nil)
			want = append(want, q)
			nodes[1].in(1, q)
		}
		e.Recv(1)
		for range 50 {
			e.in(1, packet16(1, 10, 0xffff, 400, nil))
		}
		if len(got) != len(want) {
			t.Fatalf("%d packets of %d", len(got), len(want))
		}
		for _, p := range want {
			if !slices.ContainsFunc(got, func(q []byte) bool { return bytes.Equal(p, q) }) {
				t.Fatal("a packet changed before the next Recv")
			}
		}
		for e.Pending() {
			e.Recv(1)
		}
	}
}

// still is a trunk that takes everything and sends nothing.
type still struct{ b []byte }

func (s *still) Reserve(_, n int) []byte { return s.b[:n] }
func (s *still) Commit(mono.Time, int)   {}
func (s *still) Flush(mono.Time)         {}
func (s *still) Blocked() bool           { return false }
func (s *still) Deadline() mono.Time     { return 0 }

func TestEgressNoAllocation(t *testing.T) {
	e := line(t, 2)[0]
	e.second(10)
	e.cfg.Trunk = &still{make([]byte, 1<<15)}
	p := packet16(1, 2, 0xffff, 1514, nil)
	h := wire.Header16{SLID: 1, L4: wire.L4Ethernet, PKey: 0xffff}
	told := 0
	if n := testing.AllocsPerRun(50, func() {
		for _, h.DLID = range []uint32{2, 10, 0xf00001} {
			out, ok := e.Open16(1, &h)
			if !ok {
				t.Fatal("refused")
			}
			for _, ok := out.Next(); ok; _, ok = out.Next() {
				told++
			}
			if out.Packets() {
				copy(e.Reserve16(&out, len(p)), p)
				e.Commit16(1, &out, len(p))
			}
		}
	}); n != 0 || told == 0 {
		t.Errorf("%v allocations, %d functions", n, told)
	}
}

// BenchmarkEgress is the switch's word and room in a trunk for one packet, without what is in it.
func BenchmarkEgress(b *testing.B) {
	e := line(b, 2)[0]
	e.cfg.Trunk = &still{make([]byte, 1<<15)}
	h := wire.Header16{SLID: 1, DLID: 2, L4: wire.L4Ethernet, PKey: 0xffff}
	b.ReportAllocs()
	for b.Loop() {
		out, _ := e.Open16(1, &h)
		e.Reserve16(&out, 1544)
		e.Commit16(1, &out, 1544)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// packet16 builds a 16B packet with a frame of n octets.
func packet16(slid, dlid uint32, key ib.PKey, n int, change func(*wire.Header16)) []byte {
	p := bytes.Repeat([]byte{0xa5}, wire.Len16(wire.Ethernet16Len+n))
	h := wire.Header16{SLID: slid, DLID: dlid, Length: uint16(len(p) / 8), L4: wire.L4Ethernet, PKey: key, SC: 3,
		RC: 5, Entropy: 0x1234}
	if change != nil {
		change(&h)
	}
	h.Put(p)
	wire.PutEthernet16(p[wire.Header16Len:], 0x123)
	for i := range n {
		p[wire.Header16Len+wire.Ethernet16Len+i] = byte(i * 7)
	}
	wire.Seal16(p, wire.Ethernet16Len+n)
	return p
}

// taken is what a Taker got.
type taken struct {
	function uint16
	h        wire.Header16
	p        []byte
}

// takers makes every node of a line take 16B packets.
func takers(nodes []*end) [][]taken {
	got := make([][]taken, len(nodes))
	for i, e := range nodes {
		e.SetTaker(func(_ mono.Time, function uint16, h *wire.Header16, p []byte) bool {
			got[i] = append(got[i], taken{function, *h, bytes.Clone(p)})
			return true
		})
	}
	return got
}

// settle lets all packets arrive.
func settle(t *testing.T, nodes []*end) {
	t.Helper()
	for busy, rounds := true, 0; busy; rounds++ {
		if rounds == 200 {
			t.Fatal("packets without end")
		}
		busy = false
		for _, e := range nodes {
			if len(e.cable.queue) > 0 || e.Pending() {
				busy = true
				if runs, _ := e.Recv(1); len(runs) != 0 {
					t.Error("taken for a 9B packet")
				}
			}
		}
	}
}

// TestSend16: packets of every length are forwarded by their 24-bit DLID over one and two trunks, to
// one function or to all of a group except the sender's; the same bytes arrive, except for the age
// that the node between increments.
func TestSend16(t *testing.T) {
	nodes := line(t, 3)
	got := takers(nodes)
	w := *nodes[0].wiring.Load() // a second function at node 0, of the same group
	w.Port[2] = Plug{Function, 2}
	nodes[0].wiring.Store(&w)
	b := nodes[0].builder
	b.SetPort(2, vswitch.Port{State: ib.PortActive})
	b.SetEntry(20, 2)
	masks := [vswitch.BlockMLIDs]uint16{1: 1<<1 | 1<<2 | 1<<8}
	b.SetMFT(0, 0, &masks)
	nodes[0].table.Store(b.Snapshot())
	for _, n := range []int{0, 60, 61, 62, 63, 64, 65, 66, 67, 1514, wire.MaxPayload16 - wire.Ethernet16Len} {
		for _, c := range []struct {
			dlid uint32
			at   map[int]uint16 // function by node
		}{
			{2, map[int]uint16{1: 1}}, {3, map[int]uint16{2: 1}}, {20, map[int]uint16{0: 2}}, {0xf00001,
				map[int]uint16{0: 2, 1: 1, 2: 1}},
		} {
			p := packet16(1, c.dlid, 0xffff, n, nil)
			nodes[0].Send16(1, p)
			if q := nodes[1].cable.queue; len(q) > 1 {
				t.Errorf("to %#x: %d copies over one trunk", c.dlid, len(q))
			}
			settle(t, nodes)
			for i := range nodes {
				want := bytes.Clone(p)
				wire.SetAge16(want, uint8(max(0, i-1)))
				function, for1 := c.at[i]
				if !for1 {
					if len(got[i]) != 0 {
						t.Errorf("%d octets to %#x: node %d got it", n, c.dlid, i)
					}
				} else if x := got[i]; len(x) != 1 || x[0].function != function || !bytes.Equal(x[0].p, want) ||
					x[0].h.DLID != c.dlid || x[0].h.SLID != 1 {
					t.Errorf("%d octets to %#x: node %d got %d, %+v", n, c.dlid, i, len(x), nodes[i].Counters())
				}
				got[i] = nil
			}
		}
	}
	c, d := nodes[1].PeerCounters(0), nodes[1].PeerCounters(1)
	if c.RcvPkts != 33 || c.MulticastRcv != 11 || d.XmitPkts != 22 || d.MulticastXmit != 11 ||
		nodes[1].Counters().Accepted16 != 22 ||
		nodes[0].PeerCounters(1).XmitData != c.RcvData || d.XmitData != nodes[2].PeerCounters(0).RcvData {
		t.Errorf("the node in the middle counted %+v and %+v", c, d)
	}
}

// TestVectors16: packets as a driver of Omni-Path makes them cross a trunk
// unchanged where the fabric has their LIDs.
func TestVectors16(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "test", "vectors", "opa16b.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Cases []struct {
			In struct {
				SLID, DLID uint32
				PKey       uint16
			}
			Out struct{ Packet string }
		}
	}
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	nodes := line(t, 2)
	got := takers(nodes)
	crossed := 0
	for _, c := range f.Cases {
		var p []byte
		if _, err := fmt.Sscanf(c.Out.Packet, "%x", &p); err != nil {
			t.Fatal(err)
		}
		var h wire.Header16
		payload, why := wire.Parse16(p, &h)
		if why != wire.OK {
			t.Fatal(why)
		}
		wire.Seal16(p, len(payload))
		slid, ok := source16(&h)
		dlid, ok2 := vswitch.LIDOf24(h.DLID)
		ok = ok && ok2 && slid != dlid && dlid != 0
		if ok {
			// Both ends learn the way: the sender's LID here, the other's there.
			for i, e := range nodes {
				e.builder.SetGlobals(vswitch.Globals{LinearTop: 0xbfff})
				e.builder.SetEntry(slid, []uint8{1, 7}[i])
				if dlid.IsUnicast() {
					e.builder.SetEntry(dlid, []uint8{8, 1}[i])
				} else {
					var m [vswitch.BlockMLIDs]uint16
					m[int(dlid-ib.LIDMulticastFirst)%vswitch.BlockMLIDs] = 1<<1 | []uint16{1 << 8, 1 << 7}[i]
					e.builder.SetMFT(int(dlid-ib.LIDMulticastFirst)/vswitch.BlockMLIDs, 0, &m)
				}
				e.table.Store(e.builder.Snapshot())
			}
		}
		before := nodes[0].Counters()
		nodes[0].Send16(1, p)
		settle(t, nodes)
		switch {
		case ok && (len(got[1]) != 1 || !bytes.Equal(got[1][0].p, p)):
			t.Errorf("%#x to %#x: %d arrived; %+v", h.SLID, h.DLID, len(got[1]), nodes[1].Counters())
		case ok:
			crossed++
		case len(got[1]) != 0 || nodes[0].Counters() == before:
			t.Errorf("%#x to %#x: delivered, or not counted", h.SLID, h.DLID)
		}
		got[1] = nil
	}
	if crossed < 10 || crossed == len(f.Cases) {
		t.Errorf("%d of %d packets have LIDs of this fabric", crossed, len(f.Cases))
	}
}

// TestDrops16: what is refused is counted by its name, and nothing else happens.
func TestDrops16(t *testing.T) {
	frame := func(p []byte) []byte { return append([]byte{kind16}, p...) }
	for _, c := range []struct {
		name    string
		do      func(nodes []*end)
		at      int
		counter string
	}{
		{"no port for them", func(n []*end) { n[1].SetTaker(nil); n[0].Send16(1, packet16(1, 2, 0xffff, 60, nil)) },
			1, "drop_16b_no_port"},
		{"a function without one", func(n []*end) {
			n[1].SetTaker(func(mono.Time, uint16, *wire.Header16, []byte) bool { return false })
			n[0].Send16(1, packet16(1, 2, 0xffff, 60, nil))
		}, 1, "drop_16b_no_port"},
		{"to the switch itself", func(n []*end) {
			n[1].builder.SetEntry(30, 0)
			n[1].table.Store(n[1].builder.Snapshot())
			n[1].cable.queue = []arrival{{0, frame(packet16(1, 30, 0xffff, 60, nil))}}
		}, 1, "drop_16b_no_port"},
		{"old", func(n []*end) {
			n[0].Send16(1, packet16(1, 3, 0xffff, 60, func(h *wire.Header16) { h.Age = maxAge16 }))
		}, 1, "drop_16b_age"},
		{"to a group on the service channel of management", func(n []*end) {
			n[0].Send16(1, packet16(1, 0xf00001, 0xffff, 60, func(h *wire.Header16) { h.SC = managementSC }))
		}, 0, "drop_16b_sc"},
		{"partition key at the entry", func(n []*end) {
			n[0].builder.SetPort(1, vswitch.Port{State: ib.PortActive, EnforceIn: true, PKeys: []ib.PKey{0x8001}})
			n[0].table.Store(n[0].builder.Snapshot())
			n[0].Send16(1, packet16(1, 2, 0x8002, 60, nil))
		}, 0, "drop_route_pkey_in"},
		{"partition key at the exit", func(n []*end) {
			n[1].builder.SetPort(1, vswitch.Port{State: ib.PortActive, EnforceOut: true, PKeys: []ib.PKey{0x8001}})
			n[1].table.Store(n[1].builder.Snapshot())
			n[0].Send16(1, packet16(1, 2, 0x8002, 60, nil))
		}, 1, "drop_route_pkey_out"},
		{"nobody's LID", func(n []*end) { n[0].Send16(1, packet16(1, 0xc001, 0xffff, 60, nil)) }, 0,
			"drop_route_bad_lid"},
		{"permissive LID", func(n []*end) { n[0].Send16(1, packet16(1, 0xffffff, 0xffff, 60, nil)) }, 0,
			"drop_route_bad_lid"},
		{"from a group", func(n []*end) { n[0].Send16(1, packet16(0xf00001, 2, 0xffff, 60, nil)) }, 0,
			"drop_route_bad_lid"},
		{"from nobody", func(n []*end) { n[1].cable.queue = []arrival{{0, frame(packet16(0, 2, 0xffff, 60, nil))}} },
			1, "drop_route_bad_lid"},
		{"from another node's function", func(n []*end) { n[0].Send16(1, packet16(2, 3, 0xffff, 60, nil)) }, 0,
			"drop_unconnected"},
		{"from a LID without an entry", func(n []*end) { n[0].Send16(1, packet16(77, 3, 0xffff, 60, nil)) }, 0,
			"drop_unconnected"},
		{"from itself", func(n []*end) { n[1].cable.queue = []arrival{{0, frame(packet16(2, 3, 0xffff, 60, nil))}} },
			1, "drop_own_source"},
		{"to itself", func(n []*end) { n[0].Send16(1, packet16(1, 1, 0xffff, 60, nil)) }, 0, "drop_route_loopback"},
		{"CRC", func(n []*end) {
			p := packet16(1, 2, 0xffff, 60, nil)
			p[30] ^= 1
			n[1].cable.queue = []arrival{{0, frame(p)}}
		}, 1, "drop_bad_icrc"},
		{"only the kind", func(n []*end) { n[1].cable.queue = []arrival{{0, frame(nil)}} }, 1, "drop_short"},
		{"nothing", func(n []*end) { n[1].cable.queue = []arrival{{0, nil}} }, 1, "drop_short"},
		{"another kind", func(n []*end) {
			n[1].cable.queue = []arrival{{0, append([]byte{2}, packet16(1, 2, 0xffff, 60, nil)...)}}
		}, 1, "drop_link_version"},
		{"no 16B packet", func(n []*end) { n[0].Send16(1, make([]byte, 88)) }, 0, "drop_link_version"},
		{"no room", func(n []*end) { n[0].cable.full = true; n[0].Send16(1, packet16(1, 2, 0xffff, 60, nil)) }, 0,
			"drop_no_room"},
	} {
		nodes := line(t, 3)
		got := takers(nodes)
		c.do(nodes)
		settle(t, nodes)
		for i, e := range nodes {
			drops := map[string]uint64{}
			count := e.Counters()
			count.Each(func(name string, v uint64) {
				if len(name) > 5 && name[:5] == "drop_" && v != 0 {
					drops[name] = v
				}
			})
			want := map[string]uint64{}
			if i == c.at {
				want[c.counter] = 1
			}
			if fmt.Sprint(drops) != fmt.Sprint(want) || len(got[i]) != 0 || count.Accepted16 != 0 {
				t.Errorf("%s: node %d dropped %v, want %v; took %d", c.name, i, drops, want, len(got[i]))
			}
		}
	}
}

// TestLoopOfTrunks: in a ring of trunks, a packet to a group ends by its age.
func TestLoopOfTrunks(t *testing.T) {
	nodes := line(t, 3)
	takers(nodes)
	first, last := nodes[0], nodes[2]
	for _, x := range []struct {
		e    *end
		port uint8
		to   hop
		peer int
	}{{first, 7, hop{last.cable, 1}, 0}, {last, 8, hop{first.cable, 0}, 1}} {
		w := *x.e.wiring.Load()
		w.Port[x.port] = Plug{Peer, uint16(x.peer)}
		x.e.wiring.Store(&w)
		x.e.cable.to[x.peer] = x.to
	}
	for _, e := range nodes {
		for _, p := range []uint8{7, 8} {
			e.builder.SetPort(p, vswitch.Port{State: ib.PortActive})
		}
		e.builder.SetMFT(0, 0, &[vswitch.BlockMLIDs]uint16{1: 1<<7 | 1<<8})
		e.builder.SetEntry(1, 7) // or node 0 would drop the packet as its own
		e.table.Store(e.builder.Snapshot())
	}
	first.cable.queue = []arrival{{0, append([]byte{kind16}, packet16(1, 0xf00001, 0xffff, 60, nil)...)}}
	settle(t, nodes)
	var aged, forwarded uint64
	for _, e := range nodes {
		aged += e.Counters().Drop16Age
		forwarded += e.Counters().Forwarded
	}
	if aged != 1 || forwarded != maxAge16 {
		t.Errorf("%d forwarded, %d dropped for their age", forwarded, aged)
	}
}

// TestMixed16: both kinds share a trunk and neither is taken for the other, even
// where a bit is wrong on the way.
func TestMixed16(t *testing.T) {
	nodes := line(t, 2)
	got := takers(nodes)
	nodes[0].Send16(1, packet16(1, 2, 0xffff, 64, nil))
	nodes[0].Send(1, run(2, ib.ServiceRC|ib.SendOnly, 1, 256, 9, true, make([]byte, 16)), mem.NewBatch(4096))
	frames := slices.Clone(nodes[1].cable.queue)
	if runs, _ := nodes[1].Recv(1); len(runs) != 1 || len(got[1]) != 1 {
		t.Fatalf("%d runs and %d packets", len(runs), len(got[1]))
	}
	got[1] = nil
	p := frames[0].packet
	free := 0
	for i := range len(p) * 8 {
		q := bytes.Clone(p)
		q[i/8] ^= 1 << (i % 8)
		nodes[1].cable.queue = []arrival{{0, q}}
		before := nodes[1].Counters().DropRefusal
		if runs, _ := nodes[1].Recv(1); len(runs) != 0 || len(nodes[1].mads) != 0 {
			t.Fatalf("bit %d of octet %d changed, and it was taken for a 9B packet", i%8, i/8)
		}
		if len(got[1]) == 1 {
			free++ // what a switch may change, and the marks of flits
			got[1] = nil
		} else if before == nodes[1].Counters().DropRefusal {
			t.Errorf("bit %d of octet %d changed: not counted", i%8, i/8)
		}
	}
	// BECN, FECN, SC, age, LT; of the tail byte the two marks and, as the CRC
	// does not cover it, the count of padding.
	if free > 16+8 {
		t.Errorf("%d bits do not count", free)
	}
}

func TestNoAllocation16(t *testing.T) {
	nodes := line(t, 1)
	n := 0
	nodes[0].SetTaker(func(_ mono.Time, _ uint16, h *wire.Header16, _ []byte) bool { n += int(h.Length); return true })
	b := nodes[0].builder
	w := *nodes[0].wiring.Load()
	w.Port[2] = Plug{Function, 2}
	nodes[0].wiring.Store(&w)
	b.SetPort(2, vswitch.Port{State: ib.PortActive})
	b.SetEntry(2, 2)
	nodes[0].table.Store(b.Snapshot())
	p := packet16(1, 2, 0xffff, 1514, nil)
	for range 3 { // both queues grow once
		nodes[0].Send16(1, p)
		nodes[0].Recv(1)
	}
	if a := testing.AllocsPerRun(50, func() { nodes[0].Send16(1, p); nodes[0].Recv(1) }); a != 0 || n == 0 {
		t.Errorf("%v allocations, %d words taken", a, n)
	}
	frame := append([]byte{kind16}, packet16(9, 2, 0xffff, 1514, nil)...)
	if a := testing.AllocsPerRun(50, func() { nodes[0].fromTrunk16(&w, 0, 7, frame[1:]) }); a != 0 {
		t.Errorf("%v allocations for what comes by a trunk", a)
	}
}

func FuzzRecv16(f *testing.F) {
	nodes := line(f, 3)
	took := 0
	nodes[1].SetTaker(func(mono.Time, uint16, *wire.Header16, []byte) bool { took++; return true })
	for _, dlid := range []uint32{2, 3, 0xf00001, 0xffffff} {
		f.Add(packet16(1, dlid, 0xffff, 60, nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var h wire.Header16
		p = bytes.Clone(p)
		if payload, why := wire.Parse16(p, &h); why == wire.OK {
			wire.Seal16(p, len(payload)) // or nothing would get past the CRC
		}
		e := nodes[1]
		took, nodes[2].cable.queue, nodes[0].cable.queue = 0, nil, nil
		before := e.Counters()
		e.cable.queue = []arrival{{0, append([]byte{kind16}, p...)}}
		runs, _ := e.Recv(1)
		if len(runs) != 0 || len(e.mads) != 0 || took > 1 || len(nodes[0].cable.queue) != 0 ||
			len(nodes[2].cable.queue) > 1 {
			t.Error("taken for another packet, delivered twice, or sent back")
		}
		if took+len(nodes[2].cable.queue) == 0 && e.Counters() == before {
			t.Error("neither delivered nor counted")
		}
	})
}

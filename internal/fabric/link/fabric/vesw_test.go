// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/vnic"
)

// station is a function of a node with ports in virtual Ethernet switches, and what their
// segments got.
type station struct {
	e        *end
	function uint16
	lid      uint32
	ports    *vnic.Ports
	netdevs  *vnic.Netdevs
	rx       *vnic.Receiver
	tx       map[uint8]*vnic.Sender
	got      map[uint8][][]byte
	peers    map[uint16]*station // functions of the node
}

type slots struct{ *vnic.Netdevs }

func (s slots) AllocNetdev(vport uint8) (vnic.Netdev, error) { return s.Alloc(vport) }
func (s slots) FreeNetdev(vport uint8)                       { s.Free(vport) }

func newStation(e *end, function uint16, lid uint32) *station {
	s := &station{e: e, function: function, lid: lid, netdevs: vnic.NewNetdevs(0), tx: map[uint8]*vnic.Sender{},
		got: map[uint8][][]byte{}}
	s.netdevs.SetLIDs(lid, 0)
	s.ports = vnic.New(vnic.Config{Function: slots{s.netdevs}, OPAPort: 1})
	s.ports.SetLink(1, true)
	s.rx = s.netdevs.Receiver()
	return s
}

// join puts port vport into a virtual Ethernet switch.
func (s *station) join(t testing.TB, vport uint8, vesw uint16, key ib.PKey, mtu int) {
	t.Helper()
	i := mad.DefaultVESWPortInfo()
	i.VESW.VESWID, i.VESW.PKey, i.VESW.McastDLID, i.VESW.EthMTU = vesw, key, 0xf00001, uint16(mtu)
	i.Port.EncapSLID, i.Port.ConfigState, i.Port.BaseMAC = s.lid, mad.VESWForwarding, mad.VESWMAC(0, vesw, s.lid)
	if err := s.ports.SetInfo(1, vport, &i); err != nil {
		t.Fatal(err)
	}
	p := s.ports.Port(vport)
	p.SetAdmin(1, true)
	if err := p.SetMTU(1, mtu); err != nil {
		t.Fatal(err)
	}
	s.tx[vport] = p.Sender()
}

// send sends a frame of a segment as docs/notes/vesw.md 3 specifies. It returns the number of packets
// built.
func (s *station) send(t testing.TB, vport uint8, frame []byte, off ether.Offload) (packets int) {
	t.Helper()
	tx := s.tx[vport]
	in := ether.Classify(frame)
	if why := off.Check(frame, &in); why != ether.OK {
		t.Fatal(why)
	}
	cut := vnic.CutAt(len(frame), &off, &in, tx.MTU())
	var d vnic.Decision
	if !tx.Decide(frame, &in, cut, &d) {
		return 0
	}
	e, ok := s.e.Open16(s.function, &d.Header)
	if !ok {
		tx.Refused(cut.Frames)
		return 0
	}
	for f, ok := e.Next(); ok; f, ok = e.Next() {
		to := s.peers[f]
		var got vnic.Inbound
		if to.rx.Local(&d, frame, cut, &got) {
			to.got[got.VPort] = append(to.got[got.VPort], bytes.Clone(got.Frame))
		}
	}
	if e.Packets() {
		var cutter ether.Splitter
		n, why := cutter.Start(frame, off, &in, tx.MTU())
		if why != ether.OK {
			t.Fatal(why)
		}
		for range n {
			size := cutter.Len()
			p := s.e.Reserve16(&e, vnic.PacketLen(size))
			if p == nil {
				t.Fatal("no room")
			}
			cutter.Next(p[vnic.HeaderLen : vnic.HeaderLen+size])
			d.Seal(p, size)
			s.e.Commit16(1, &e, len(p))
			packets++
		}
	}
	tx.Sent(&d, cut)
	return packets
}

// stations makes a station of function 1 of each node of a line, and of a second function of the
// first.
func stations(t *testing.T, nodes []*end) (all []*station) {
	nodes[0].second(10)
	for _, e := range nodes[1:] {
		e.builder.SetEntry(10, 7)
		e.table.Store(e.builder.Snapshot())
	}
	for i, e := range nodes {
		here := map[uint16]*station{1: newStation(e, 1, uint32(i+1))}
		if i == 0 {
			here[2] = newStation(e, 2, 10)
		}
		for f := uint16(1); int(f) <= len(here); f++ {
			here[f].peers = here
			all = append(all, here[f])
		}
		e.SetTaker(func(now mono.Time, function uint16, h *wire.Header16, p []byte) bool {
			s := here[function]
			var in vnic.Inbound
			if s != nil && s.rx.Receive(h, p, &in) {
				s.got[in.VPort] = append(s.got[in.VPort], bytes.Clone(in.Frame))
			}
			return s != nil
		})
	}
	return all
}

// ethFrame makes a frame with octets that identify the sender.
func ethFrame(dst [6]byte, from uint8, n int) []byte {
	f := bytes.Repeat([]byte{from}, n)
	copy(f, dst[:])
	copy(f[6:], []byte{2, 0, 0, 0, 0, from, 0x88, 0xb5})
	return f
}

var everybody = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// TestTwoVESWs: stations on three nodes, in two overlapping virtual Ethernet switches, receive exactly
// the frames of their switch, by unicast, groups and jumbo frames, within a node and across nodes.
func TestTwoVESWs(t *testing.T) {
	for _, wireLocal := range []bool{false, true} {
		nodes := line(t, 3)
		all := stations(t, nodes)
		nodes[0].cfg.WireLocal = wireLocal
		const red, blue = 0x101, 0x201 // equal in the low octet
		in := map[uint8][]int{0: {0, 1, 2}, 1: {1, 2, 3}}
		for _, i := range in[0] {
			all[i].join(t, 0, red, 0x8001, 9000)
		}
		for _, i := range in[1] {
			all[i].join(t, 1, blue, 0x8002, 1500)
		}
		vesw := map[uint8]uint16{0: red, 1: blue}
		expect := func(what string, frame []byte, vport uint8, to []int) {
			t.Helper()
			settle(t, nodes)
			for i, s := range all {
				for v := range uint8(2) {
					want := 0
					if v == vport && slices.Contains(to, i) {
						want = 1
					}
					if got := s.got[v]; len(got) != want || want == 1 && !bytes.Equal(got[0], frame) {
						t.Errorf("%s, wire %v: station %d, port %d has %d frames, want %d", what, wireLocal, i, v,
							len(got), want)
					}
				}
				clear(s.got)
			}
		}
		for v, members := range in {
			for _, i := range members {
				others := slices.DeleteFunc(slices.Clone(members), func(j int) bool { return j == i })
				f := ethFrame(everybody, uint8(i), 200)
				all[i].send(t, v, f, ether.Offload{})
				expect(fmt.Sprintf("broadcast of %d in %#x", i, vesw[v]), f, v, others)
				for j, s := range all {
					f = ethFrame(mad.VESWMAC(0, vesw[v], s.lid), uint8(i), 300)
					all[i].send(t, v, f, ether.Offload{})
					var to []int
					if slices.Contains(others, j) {
						to = []int{j}
					}
					expect(fmt.Sprintf("unicast of %d to %d in %#x", i, j, vesw[v]), f, v, to)
				}
			}
		}
		jumbo := ethFrame(mad.VESWMAC(0, red, 2), 0, 9014)
		all[0].send(t, 0, jumbo, ether.Offload{})
		expect("a jumbo frame", jumbo, 0, []int{2})
	}
}

// TestHostileNode: no forged packet reaches a station in a switch of another partition.
func TestHostileNode(t *testing.T) {
	nodes := line(t, 2)
	all := stations(t, nodes)
	victim := all[2]
	victim.join(t, 0, 0x101, 0x8001, 1500)
	enforce := vswitch.Port{State: ib.PortActive, EnforceIn: true, EnforceOut: true, PKeys: []ib.PKey{0x8002}}
	forged := 0
	for _, honest := range []bool{true, false} { // the switch of the hostile node, with enforcement or without
		if enforce.EnforceIn = honest; !honest {
			enforce.PKeys = append(enforce.PKeys, 0x8001)
		}
		nodes[0].builder.SetPort(1, enforce)
		nodes[0].builder.SetPort(2, enforce)
		nodes[0].table.Store(nodes[0].builder.Snapshot())
		for _, slid := range []uint32{1, 2, 3, 10, 0, 0xf00001} {
			for _, dlid := range []uint32{2, 0xf00001, 1, 10} {
				for _, vesw := range []uint16{0x101, 0x001, 0x201, 0x1101} {
					for _, key := range []ib.PKey{0x8002, 0x0002, 0xffff, 0x8000, 0x8001} {
						if key == 0x8001 && !honest {
							continue // it is in the partition: nothing is forged
						}
						p := packet16(slid, dlid, key, 60, nil)
						wire.PutEthernet16(p[wire.Header16Len:], vesw&0xfff)
						p[19] |= byte(vesw>>12) << 4
						wire.Seal16(p, wire.Ethernet16Len+60)
						nodes[0].Send16(1, p)
						nodes[1].cable.queue = append(nodes[1].cable.queue,
							arrival{0, append([]byte{kind16}, packetWith(p, key == 0x8001)...)})
						forged++
					}
				}
			}
		}
		settle(t, nodes)
	}
	if len(victim.got[0]) != 0 {
		t.Fatalf("%d of %d forged frames arrived", len(victim.got[0]), forged)
	}
	c, u := victim.rx.Counters(0), victim.rx.Unknown()
	if c.RxBadPKey == 0 || u.BadVESW == 0 || c.Rx.Packets != 0 {
		t.Errorf("%+v %+v", c, u)
	}
	p := packet16(1, 2, 0x8001, 60, nil)
	wire.PutEthernet16(p[wire.Header16Len:], 0x101)
	wire.Seal16(p, wire.Ethernet16Len+60)
	nodes[1].cable.queue = []arrival{{0, append([]byte{kind16}, p...)}}
	settle(t, nodes)
	if len(victim.got[0]) != 1 {
		t.Error("nothing arrives at all: the test proves nothing")
	}
}

// packetWith returns p, or one that no switch of a partition lets pass, as a node without a switch would send
// it: with a key that is not the victim's.
func packetWith(p []byte, spoil bool) []byte {
	p = bytes.Clone(p)
	if spoil {
		p[10] ^= 0x40
		var h wire.Header16
		payload, _ := wire.Parse16(p, &h)
		wire.Seal16(p, len(payload))
	}
	return p
}

// tcpSegment makes a TCP segment over IPv4 of so much payload, to be cut into so much each.
func tcpSegment(dst [6]byte, payload, size int) ([]byte, ether.Offload) {
	f := ethFrame(dst, 1, 14)[:12]
	n := 40 + payload
	f = append(f, 0x08, 0, 0x45, 0, byte(n>>8), byte(n&0xff), 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	f = append(f, make([]byte, 20+payload)...)
	f[46] = 0x50
	return f, ether.Offload{Flags: ether.NeedsCsum, GSO: ether.GSOTCPv4, GSOSize: uint16(size), CsumStart: 34,
		CsumOffset: 16}
}

// TestSegments: a segment goes whole within a node and as frames of the MTU between nodes, and counts as these
// at both ends.
func TestSegments(t *testing.T) {
	nodes := line(t, 2)
	all := stations(t, nodes)
	for _, s := range all {
		s.join(t, 3, 7, 0x8001, 1500)
	}
	const payload = 40000
	f, off := tcpSegment(mad.VESWMAC(0, 7, 10), payload, 1448)
	if built := all[0].send(t, 3, f, off); built != 0 || len(all[1].got[3]) != 1 || !bytes.Equal(all[1].got[3][0], f) {
		t.Errorf("within the node: %d packets, %d frames", built, len(all[1].got[3]))
	}
	copy(f, everybody[:])
	built := all[0].send(t, 3, f, off)
	settle(t, nodes)
	frames := (payload + 1447) / 1448
	if built != frames || len(all[2].got[3]) != frames || len(all[1].got[3]) != 2 {
		t.Errorf("%d packets, %d frames at the other node, want %d; %d within this one", built, len(all[2].got[3]),
			frames, len(all[1].got[3]))
	}
	for i, g := range all[2].got[3] {
		if want := min(1502, 54+payload-i*1448); len(g) != want {
			t.Errorf("frame %d has %d octets, want %d", i, len(g), want)
		}
	}
	tx, near, far := all[0].tx[3].Counters().Tx, all[1].rx.Counters(3).Rx, all[2].rx.Counters(3).Rx
	if tx != near || int(tx.Packets) != 2*frames || far.Packets*2 != tx.Packets || far.Bytes*2 != tx.Bytes ||
		far.McastBcast != far.Packets {
		t.Errorf("sent %+v\nhere %+v\nthere %+v", tx, near, far)
	}
}

// BenchmarkVESW is what the network costs a frame between reading it at one segment and having it for the other:
// a TCP segment of 64 KiB cut into packets, and these taken in again, each with its CRC.
func BenchmarkVESW(b *testing.B) {
	for _, mtu := range []int{1500, 9000} {
		nodes := line(b, 2)
		s, r := newStation(nodes[0], 1, 1), newStation(nodes[1], 1, 2)
		s.join(b, 0, 7, 0x8001, mtu)
		r.join(b, 0, 7, 0x8001, mtu)
		f, off := tcpSegment(mad.VESWMAC(0, 7, 2), 65000, mtu-52)
		b.Run(fmt.Sprintf("send_%d", mtu), func(b *testing.B) {
			nodes[0].cfg.Trunk = &still{make([]byte, 1<<15)}
			b.ReportAllocs()
			b.SetBytes(int64(len(f)))
			for b.Loop() {
				s.send(b, 0, f, off)
			}
		})
		b.Run(fmt.Sprintf("receive_%d", mtu), func(b *testing.B) {
			nodes[0].cfg.Trunk = nodes[0].cable
			nodes[1].cable.queue = nil
			s.send(b, 0, f, off)
			octets := 0
			nodes[1].SetTaker(func(_ mono.Time, _ uint16, h *wire.Header16, p []byte) bool {
				var in vnic.Inbound
				if r.rx.Receive(h, p, &in) {
					octets += len(in.Frame)
				}
				return true
			})
			queue := nodes[1].cable.queue
			b.ReportAllocs()
			b.SetBytes(int64(len(f)))
			for b.Loop() {
				for _, a := range queue {
					nodes[1].fromTrunk(a.from, a.packet)
				}
			}
			if octets < len(f) {
				b.Error("nothing arrives")
			}
		})
	}
}

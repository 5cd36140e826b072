// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"bytes"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/vswitch"
	"weft/internal/node/lane"
	"weft/internal/proto/ether"
	"weft/internal/proto/ether/ethertest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

// plug is a segment: a test sends and reads its frames. One goroutine uses it.
type plug struct {
	out    [][]byte // to be sent
	outOff []ether.Offload
	in     [][]byte // frames that were written
	takes  ether.Features
	room   int // frames that it still accepts, if full
	full   bool
}

func (p *plug) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	n := copy(frames, p.out)
	copy(off, p.outOff[:n])
	p.out, p.outOff = p.out[n:], p.outOff[n:]
	return n, nil
}

func (p *plug) WriteBatch(frames [][]byte, _ []ether.Offload) (dropped int) {
	for i := range frames {
		if p.full {
			if p.room == 0 {
				return len(frames) - i
			}
			p.room--
		}
		p.in = append(p.in, bytes.Clone(frames[i]))
	}
	return 0
}

func (p *plug) Takes() ether.Features { return p.takes }
func (p *plug) FD() int               { return -1 }
func (p *plug) Arm() bool             { return len(p.out) > 0 }
func (p *plug) Close() error          { return nil }
func (p *plug) Configure(vnic.Device) {}

const allOffloads = ether.FeatureCsum | ether.FeatureTSO4 | ether.FeatureTSO6 | ether.FeatureECN |
	ether.FeatureUSO4 | ether.FeatureUSO6

// stuffed is a segment that always has the same frame.
type stuffed struct {
	plug
	frame []byte
	off   ether.Offload
	n     int
}

func (s *stuffed) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	if s.n == 0 {
		return 0, os.ErrClosed
	}
	s.n--
	frames[0], off[0] = s.frame, s.off
	return 1, nil
}
func (s *stuffed) WriteBatch(frames [][]byte, _ []ether.Offload) int { s.room += len(frames); return 0 }
func (s *stuffed) WriteFrames(frames []ether.Frame) int              { s.room += len(frames); return 0 }

// pieces is a plug that takes frames in parts.
type pieces struct{ plug }

func (p *pieces) WriteFrames(frames []ether.Frame) (dropped int) {
	for i := range frames {
		if n := p.WriteBatch([][]byte{frames[i].Append(nil)}, []ether.Offload{frames[i].Off}); n > 0 {
			return len(frames) - i
		}
	}
	return 0
}

// faulty is a segment with memory that faults when frames are written.
type faulty struct{ plug }

func (f *faulty) WriteBatch([][]byte, []ether.Offload) int { panic("fault") }

// portSlots are the port numbers of a function without interfaces.
type portSlots struct{ *vnic.Netdevs }

func (n portSlots) AllocNetdev(vport uint8) (vnic.Netdev, error) { return n.Alloc(vport) }
func (n portSlots) FreeNetdev(vport uint8)                       { n.Free(vport) }

// testVESW is the switch of the ports of twoPorts.
const testVESW = 5

// macOf is the MAC of the port of a function with its number as LID.
func macOf(function uint16) [6]byte { return mad.VESWMAC(0, testVESW, uint32(function)) }

// twoPorts is the lane's part of two ports of a VESW, one of each of two functions of a node, without the lane. The
// ports have an MTU of 1500.
func twoPorts(t *testing.T, wireLocal bool, segs [2]vnic.Segment) (v *dataPath, link *fabric.Link) {
	t.Helper()
	b := vswitch.NewBuilder(2)
	w := &fabric.Wiring{}
	for i := range segs {
		w.Port[i+1] = fabric.Plug{Kind: fabric.Function, Number: uint16(i + 1)}
		b.SetPort(uint8(i+1), vswitch.Port{State: ib.PortActive})
	}
	g := b.Globals
	g.LinearTop = 2
	b.SetGlobals(g)
	for i := range segs {
		b.SetEntry(ib.LID(i+1), uint8(i+1))
	}
	var table atomic.Pointer[vswitch.Table]
	var wiring atomic.Pointer[fabric.Wiring]
	table.Store(b.Snapshot())
	wiring.Store(w)
	link = fabric.New(fabric.Config{Table: &table, Wiring: &wiring, WireLocal: wireLocal})
	v = newDataPath(&lane.Lane{}, link)
	for i := range segs {
		function := uint16(i + 1)
		devs := portSlots{vnic.NewNetdevs(0)}
		devs.SetLIDs(uint32(function), 0)
		ports := vnic.New(vnic.Config{Function: devs, OPAPort: opaPort})
		ports.SetLink(1, true)
		c := mad.DefaultVESWPortInfo()
		c.VESW.VESWID, c.VESW.PKey, c.VESW.EthMTU = testVESW, ib.DefaultPKey, 1500
		c.Port.EncapSLID, c.Port.BaseMAC, c.Port.ConfigState = uint32(function), macOf(function), mad.VESWForwarding
		if err := ports.SetInfo(1, 0, &c); err != nil {
			t.Fatal(err)
		}
		port := ports.Port(0)
		port.SetAdmin(1, true)
		if err := port.SetMTU(1, 1500); err != nil {
			t.Fatal(err)
		}
		in := &inlets{number: function, recv: devs.Receiver()}
		v.addFunction(in)
		if err := v.attach(&lanePort{to: in, function: function, sender: port.Sender()}, segs[i], nil); err != nil {
			t.Fatal(err)
		}
	}
	return v, link
}

// turns returns a function that runs the pollers as a turn of a lane does, and returns the counters of both ports.
func turns(v *dataPath, link *fabric.Link) func() [2]vnic.Counters {
	now := mono.Time(1)
	return func() (c [2]vnic.Counters) {
		now++
		v.Begin(now)
		link.Flush(now)
		link.Recv(now)
		v.Finish(now)
		for i, p := range v.ports {
			c[i] = p.counters()
		}
		return c
	}
}

// TestVESWLosses: frames that find no room at a segment count as lost, and as nothing else, joined or not; a fault
// leaves nothing of one port for another.
func TestVESWLosses(t *testing.T) {
	// Two of a flow with something behind the IP packet, which is not joined with it, and another.
	segment, off := ethertest.TCPSegment(macOf(2), macOf(1), 200, 100)
	info := ether.Classify(segment)
	var s ether.Splitter
	count, why := s.Start(segment, off, &info, 0)
	if count != 2 || why != ether.OK {
		t.Fatal(count, why)
	}
	var frames [][]byte
	for range count {
		b := make([]byte, s.Len(), 400)
		s.Next(b)
		frames = append(frames, b[:400])
	}
	other := bytes.Clone(frames[0][:200])
	other[12], other[13] = 0x88, 0xb5
	frames = append(frames, other)
	for _, takes := range []ether.Features{0, allOffloads} {
		for _, inParts := range []bool{false, true} {
			for room := range 3 {
				from, to := &plug{takes: allOffloads}, &plug{takes: takes, full: true, room: room}
				segs := [2]vnic.Segment{from, to}
				if inParts {
					p := &pieces{}
					p.takes, p.full, p.room = takes, true, room
					to, segs[1] = &p.plug, p
				}
				turn := turns(twoPorts(t, true, segs))
				from.out, from.outOff = slices.Clone(frames), make([]ether.Offload, len(frames))
				c := turn()[1]
				var want vnic.Traffic
				for _, f := range to.in {
					n, each := 1, len(f)
					if info := ether.Classify(f); info.IsIP() && takes != 0 {
						n, each = 2, 400
					}
					for range n {
						want.Packets, want.Bytes, want.Unicast, want.Untagged = want.Packets+1, want.Bytes+uint64(
							each+4,
						), want.Unicast+1, want.Untagged+1
						if each == 400 {
							want.Sizes[3]++
						} else {
							want.Sizes[2]++
						}
					}
				}
				if len(to.in) != room || c.Rx != want || c.RxFIFOErrors != 3-want.Packets {
					t.Errorf(
						"offloads %x, in parts %v, room for %d: %d are there, counted %+v, want %+v",
						takes,
						inParts,
						room,
						len(to.in),
						c,
						want,
					)
				}
			}
		}
	}

	from, to := &plug{takes: allOffloads}, &faulty{}
	v, link := twoPorts(t, false, [2]vnic.Segment{from, to})
	turn := turns(v, link)
	from.out, from.outOff = [][]byte{segment}, []ether.Offload{off}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("there was no fault")
			}
		}()
		turn()
	}()
	back, off := ethertest.TCPSegment(macOf(1), macOf(2), 300, 100)
	from.takes = 0
	to.out, to.outOff = [][]byte{back}, []ether.Offload{off}
	turn()
	if len(from.in) != 3 || !bytes.Equal(ethertest.Payloads(t, from.in), back[54:]) || v.used != 0 {
		t.Errorf("%d frames arrived", len(from.in))
	}
}

// TestVESWAllocatesNothing: neither sending in packets, nor receiving, nor what stays in the node.
func TestVESWAllocatesNothing(t *testing.T) {
	for _, wire := range []bool{false, true} {
		var segs [2]*stuffed
		for i := range segs {
			segs[i] = &stuffed{plug: plug{takes: allOffloads}}
		}
		v, link := twoPorts(t, wire, [2]vnic.Segment{segs[0], segs[1]})
		segs[0].frame, segs[0].off = ethertest.TCPSegment(macOf(2), macOf(1), 60000, 1448)
		now := mono.Time(1)
		turn := func() {
			now++
			segs[0].n = 1
			v.pull(now, v.ports[0])
			link.Flush(now)
			link.Recv(now)
			v.Finish(now)
		}
		turn()
		segs[1].room = 0
		if n := testing.AllocsPerRun(200, turn); n != 0 {
			t.Errorf("wire %v: %v allocations for a segment of 42 frames", wire, n)
		}
		if segs[1].room != 201 {
			t.Errorf("wire %v: %d frames arrived", wire, segs[1].room)
		}
	}
}

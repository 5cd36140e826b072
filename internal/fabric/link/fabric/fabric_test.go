// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// cable is a node's end of its trunks: Trunk and Source.
type cable struct {
	to    map[int]hop // by peer number here
	buf   []byte
	dst   hop
	queue []arrival
	full  bool
}

// hop is the other end of a trunk, and this node's peer number there.
type hop struct {
	c  *cable
	as int
}

type arrival struct {
	from   int
	packet []byte
}

func (c *cable) Reserve(peer, n int) []byte {
	if c.full {
		return nil
	}
	c.dst = c.to[peer]
	c.buf = bytes.Repeat([]byte{0xa5}, n)
	return c.buf
}

func (c *cable) Commit(_ mono.Time, n int) {
	c.dst.c.queue = append(c.dst.c.queue, arrival{c.dst.as, c.buf[:n]})
}
func (c *cable) Flush(mono.Time)     {}
func (c *cable) Blocked() bool       { return c.full }
func (c *cable) Deadline() mono.Time { return 0 }
func (c *cable) Tick(mono.Time)      {}

func (c *cable) Recv(_ mono.Time, f func(int, []byte)) bool {
	q := c.queue
	c.queue = nil
	for _, a := range q {
		f(a.from, a.packet)
	}
	return false
}

// end is a node: a switch with function 1 at port 1, and trunks.
type end struct {
	*Link
	cable   *cable
	builder *vswitch.Builder
	table   atomic.Pointer[vswitch.Table]
	wiring  atomic.Pointer[Wiring]
	mads    []mad.Datagram
}

// line returns n nodes in a row. Node i has LID i+1 at function 1 (port 1);
// port 7 leads to the left neighbour (peer 0), port 8 to the right (peer 1).
func line(t testing.TB, n int) []*end {
	t.Helper()
	nodes := make([]*end, n)
	for i := range nodes {
		nodes[i] = &end{cable: &cable{to: map[int]hop{}}}
	}
	for i, e := range nodes {
		b := vswitch.NewBuilder(8)
		w := &Wiring{Trunk: []uint8{7, 8}}
		w.Port[1] = Plug{Function, 1}
		active := []uint8{1}
		if i > 0 {
			w.Port[7] = Plug{Peer, 0}
			e.cable.to[0] = hop{nodes[i-1].cable, 1}
			active = append(active, 7)
		}
		if i < n-1 {
			w.Port[8] = Plug{Peer, 1}
			e.cable.to[1] = hop{nodes[i+1].cable, 0}
			active = append(active, 8)
		}
		for _, p := range active {
			b.SetPort(p, vswitch.Port{State: ib.PortActive})
		}
		g := b.Globals
		g.LinearTop = 100
		b.SetGlobals(g)
		for j := range nodes {
			port := uint8(1)
			if j < i {
				port = 7
			} else if j > i {
				port = 8
			}
			b.SetEntry(ib.LID(j+1), port)
		}
		var mft [vswitch.BlockMLIDs]uint16
		for _, p := range active {
			mft[1] |= 1 << p
		}
		b.SetMFT(0, 0, &mft)
		e.builder = b
		e.table.Store(b.Snapshot())
		e.wiring.Store(w)
		e.Link = New(Config{Table: &e.table, Wiring: &e.wiring, Trunk: e.cable, Source: e.cable,
			Manage: func(d *mad.Datagram) { e.mads = append(e.mads, *d) }})
	}
	return nodes
}

func run(dlid ib.LID, op ib.Opcode, count, mtu, n int, global bool, b []byte) *pkt.Burst {
	r := &pkt.Burst{Count: uint32(count), MTU: uint32(mtu), Path: &ib.Path{SLID: 1, DLID: dlid, SL: 3},
		Data: mem.BytesPayload(b[:n])}
	r.Headers = wire.Headers{Opcode: op, PKey: 0xffff, DestQPN: 0x4002, PSN: 0xfffffe, AckReq: true}
	if global {
		p := r.Path
		p.Global, p.HopLimit, p.TClass, p.FlowLabel = true, 5, 7, 0xabcde
		p.SGID, p.DGID = ib.GID{0xfe, 0x80, 15: 1}, ib.GID{0xfe, 0x80, 15: 2}
	}
	return r
}

// TestRuns sends runs of every size around a packet from the first to the last
// node of a line, past a switch in between: what arrives is what was sent.
func TestRuns(t *testing.T) {
	payload := make([]byte, MaxRun)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range payload {
		payload[i] = byte(r.Uint32())
	}
	for _, global := range []bool{false, true} {
		for _, x := range []struct {
			op       ib.Opcode
			mtu, len int
		}{
			{ib.ServiceRC | ib.SendOnly, 4096, 0}, {ib.ServiceRC | ib.SendOnly, 4096, 1}, {ib.ServiceRC | ib.SendOnly,
				256, 255}, {ib.ServiceRC | ib.SendOnly, 256, 256},
			{ib.ServiceRC | ib.SendOnly, 256, 257}, {ib.ServiceRC | ib.WriteOnlyImm, 1024,
				3000}, {ib.ServiceRC | ib.SendMiddle, 4096, 8192},
			{ib.ServiceUC | ib.WriteOnly, 4096, 65536}, {ib.ReadRespOnly, 2048, 65535}, {ib.ServiceRC | ib.WriteOnly,
				4096, MaxRun}, {ib.ServiceUC | ib.SendOnly, 256, MaxRun - 1025},
			{ib.ServiceUD | ib.SendOnly, 4096, 4096}, {ib.Acknowledge, 4096, 0},
		} {
			t.Run(fmt.Sprintf("%v_%d_%d_%v", x.op, x.mtu, x.len, global), func(t *testing.T) {
				nodes := line(t, 2)
				count := max(1, (x.len+x.mtu-1)/x.mtu)
				sent := run(2, x.op, count, x.mtu, x.len, global, payload)
				if res := nodes[0].Send(1, sent, mem.NewBatch(4096)); res != mem.OK {
					t.Fatal(res)
				}
				for _, a := range nodes[1].cable.queue {
					p := a.packet
					var l wire.LRH
					var g wire.GRH
					if _, why := wire.ParseIB(p, &l, &g); why != wire.OK || wire.VerifyIB(p) != wire.OK {
						t.Fatalf("packet % x: %v, %v", p, why, wire.VerifyIB(p))
					}
				}
				runs, _ := nodes[1].Recv(1)
				if len(runs) != 1 {
					t.Fatalf("%d runs, counters %+v", len(runs), nodes[1].Counters())
				}
				got := runs[0]
				b := make([]byte, got.Data.Len)
				mem.NewBatch(4096).Gather([][]byte{b}, &got.Data, 0)
				if !bytes.Equal(b, payload[:x.len]) {
					t.Error("other bytes")
				}
				want := *sent.Path
				want.Function = 1
				if diff := cmp.Diff(want, *got.Path); diff != "" {
					t.Error(diff)
				}
				h := got.Headers
				h.PadCnt = 0
				if diff := cmp.Diff(sent.Headers, h); diff != "" || got.Count != uint32(count) {
					t.Errorf("%d packets, %s", got.Count, diff)
				}
			})
		}
	}
}

// TestEveryBitCounts: a packet with any one bit inverted is refused, and the reason counted.
func TestEveryBitCounts(t *testing.T) {
	nodes := line(t, 2)
	nodes[0].Send(1, run(2, ib.ServiceRC|ib.SendOnly, 1, 256, 9, true, make([]byte, 16)), mem.NewBatch(4096))
	p := nodes[1].cable.queue[0].packet
	for i := range len(p) * 8 {
		q := bytes.Clone(p)
		q[i/8] ^= 1 << (i % 8)
		nodes[1].cable.queue = []arrival{{0, q}}
		if runs, _ := nodes[1].Recv(1); len(runs) != 0 || len(nodes[1].mads) != 0 {
			t.Fatalf("bit %d of octet %d changed, and it was delivered", i%8, i/8)
		}
	}
	var dropped uint64
	for _, n := range nodes[1].Counters().DropRefusal {
		dropped += n
	}
	if dropped != uint64(len(p)*8) {
		t.Errorf("%d of %d refusals have a name", dropped, len(p)*8)
	}
}

// TestForwarding: a node in the middle passes packets on unchanged, unicast by
// its table and multicast by its port set, and keeps what is its own.
func TestForwarding(t *testing.T) {
	nodes := line(t, 3)
	batch := mem.NewBatch(4096)
	body := []byte("to whom it may concern")
	nodes[0].Send(1, run(3, ib.ServiceRC|ib.SendOnly, 1, 256, len(body), false, body), batch)
	sent := nodes[1].cable.queue[0].packet
	if runs, _ := nodes[1].Recv(1); len(runs) != 0 {
		t.Error("delivered on the way")
	}
	if len(nodes[2].cable.queue) != 1 || !bytes.Equal(nodes[2].cable.queue[0].packet, sent) ||
		len(nodes[0].cable.queue) != 0 {
		t.Fatal("not passed on as it was")
	}
	if runs, _ := nodes[2].Recv(1); len(runs) != 1 || runs[0].Path.Function != 1 {
		t.Error("did not arrive")
	}
	m := run(0xc001, ib.ServiceUD|ib.SendOnly, 1, 256, len(body), true, body)
	m.DestQPN = ib.QPNMulticast
	m.Path.DGID = ib.GID{0xff, 0x12, 15: 1}
	nodes[0].Send(1, m, batch)
	for i := 1; i < 3; i++ {
		runs, _ := nodes[i].Recv(1)
		if len(runs) != 1 || runs[0].Path.Function != Multicast || runs[0].Path.DLID != 0xc001 ||
			!bytes.Equal(runs[0].Data.Bytes, body) {
			t.Errorf("node %d: %d runs", i, len(runs))
		}
	}
	if len(nodes[0].cable.queue) != 0 {
		t.Error("a multicast packet came back")
	}
	words := uint64(len(sent)-wire.VCRCLen) / 4
	c := nodes[1].PeerCounters(0)
	if d := nodes[1].PeerCounters(1); c.RcvPkts != 2 || c.MulticastRcv != 1 || d.XmitPkts != 2 ||
		d.MulticastXmit != 1 || c.RcvData != d.XmitData || c.RcvData <= words {
		t.Errorf("the node in the middle counted %+v and %+v", c, d)
	}
}

// TestDrops: what the table, the wiring or a full trunk refuses is counted by
// its name.
func TestDrops(t *testing.T) {
	nodes := line(t, 2)
	a := nodes[0]
	batch := mem.NewBatch(4096)
	body := make([]byte, 64)
	send := func(dlid ib.LID) { a.Send(1, run(dlid, ib.ServiceRC|ib.SendOnly, 1, 256, 4, false, body), batch) }
	send(50)
	send(200)
	a.builder.SetState(8, ib.PortArmed)
	a.table.Store(a.builder.Snapshot())
	send(2)
	a.builder.SetState(8, ib.PortActive)
	a.table.Store(a.builder.Snapshot())
	a.cable.full = true
	send(2)
	c := a.Counters()
	if c.DropRoute[vswitch.Unreachable] != 1 || c.DropRoute[vswitch.AboveTop] != 1 ||
		c.DropRoute[vswitch.EgressState] != 1 || c.DropNoRoom != 1 || !a.Blocked() {
		t.Errorf("%+v", c)
	}
	bad := run(2, ib.ServiceRC|ib.SendOnly, 3, 256, 4, false, body)
	a.Send(1, bad, batch)
	if a.Counters().DropBurst != 3 {
		t.Errorf("a burst that states 3 packets: %+v", a.Counters())
	}
}

// TestOwnSource: packets from trunks with a LID of this node as source are dropped.
func TestOwnSource(t *testing.T) {
	nodes := line(t, 2)
	r := run(2, ib.ServiceRC|ib.SendOnly, 1, 256, 4, false, make([]byte, 4))
	nodes[0].Send(1, r, mem.NewBatch(4096))
	p := nodes[1].cable.queue[0].packet
	for _, slid := range []byte{2, 1} {
		p[7] = slid
		seal(p)
		nodes[1].cable.queue = []arrival{{0, p}}
		runs, _ := nodes[1].Recv(1)
		if got := len(runs); (got == 1) != (slid == 1) || nodes[1].Counters().DropOwnSource != 1 {
			t.Errorf("source LID %d: %d runs, %+v", slid, got, nodes[1].Counters())
		}
	}
}

// TestLoop: what is for this node's own function comes back through packets.
func TestLoop(t *testing.T) {
	a := line(t, 1)[0]
	body := bytes.Repeat([]byte("loop"), 1000)
	a.Send(1, run(1, ib.ServiceRC|ib.SendOnly, 4, 1024, 4000, false, body), mem.NewBatch(4096))
	runs, _ := a.Recv(1)
	if len(runs) != 1 || runs[0].Count != 4 || runs[0].Data.Len != 4000 || runs[0].Path.Function != 1 {
		t.Fatalf("%d runs %+v", len(runs), a.Counters())
	}
	if runs, _ = a.Recv(1); len(runs) != 0 {
		t.Error("delivered twice")
	}
	// More packets than one Recv delivers: none is lost, and order stays.
	small := run(1, ib.ServiceRC|ib.SendOnly, 1, 256, 4, false, body)
	for i := range 3000 {
		small.PSN = ib.PSN(i)
		a.Send(1, small, mem.NewBatch(4096))
	}
	next := ib.PSN(0)
	for range 3 {
		if !a.Pending() {
			t.Error("what waits is not told of")
		}
		runs, _ = a.Recv(1)
		for i := range runs {
			if runs[i].PSN != next {
				t.Fatalf("packet %d, want %d", runs[i].PSN, next)
			}
			next++
		}
	}
	if next != 3000 || a.Pending() {
		t.Errorf("%d of 3000 packets arrived", next)
	}
	for !a.Blocked() {
		a.Send(1, run(1, ib.ServiceRC|ib.SendOnly, 4, 1024, 4000, false, body), mem.NewBatch(4096))
	}
	if c := a.Counters(); c.DropNoRoom != 0 {
		t.Errorf("lost before it said it was full: %+v", c)
	}
}

// TestDatagrams: MADs travel as packets and come out as they went in; those
// with a wrong virtual lane, length or ICRC do not.
func TestDatagrams(t *testing.T) {
	for _, x := range []struct {
		name string
		d    mad.Datagram
		vl   uint8
	}{
		{"directed route", mad.Datagram{SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, PKey: 0xffff}, 15},
		{"subnet management", mad.Datagram{SLID: 1, DLID: 2, PKey: 0xffff}, 15},
		{"general services", mad.Datagram{SLID: 1, DLID: 2, SL: 4, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey,
			PKey: 0x8001}, 0},
		{"with a GRH", mad.Datagram{SLID: 1, DLID: 2, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey, PKey: 0xffff,
			Global: true, HopLimit: 9,
			TClass: 3, FlowLabel: 4, SGID: ib.GID{1}, DGID: ib.GID{2}}, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			nodes := line(t, 2)
			for i := range x.d.Data {
				x.d.Data[i] = byte(i + 1)
			}
			nodes[0].SendMAD(1, 8, &x.d)
			p := nodes[1].cable.queue[0].packet
			if p[0]>>4 != x.vl || wire.VerifyIB(p) != wire.OK {
				t.Errorf("virtual lane %d, %v", p[0]>>4, wire.VerifyIB(p))
			}
			if runs, _ := nodes[1].Recv(1); len(runs) != 0 {
				t.Error("delivered to a program")
			}
			if len(nodes[1].mads) != 1 {
				t.Fatalf("%d datagrams", len(nodes[1].mads))
			}
			x.d.Port = 7
			if diff := cmp.Diff(x.d, nodes[1].mads[0]); diff != "" {
				t.Error(diff)
			}
			q := bytes.Clone(p)
			q[0] ^= 0xf0 // the other virtual lane; ICRC does not cover it
			seal(q)
			nodes[1].cable.queue = []arrival{{0, q}}
			nodes[1].Recv(1)
			if len(nodes[1].mads) != 1 {
				t.Error("taken on the wrong virtual lane")
			}
		})
	}
}

// TestLongDatagrams: MADs of Omni-Path have the lengths that they have, and only for queue pair 1.
func TestLongDatagrams(t *testing.T) {
	for _, c := range []struct {
		n   int
		qpn ib.QPN
		ok  bool
	}{{mad.OPALen, 1, true}, {mad.VEMATrapLen, 1, true}, {mad.Len, 1, true}, {mad.HeaderLen, 1, true}, {mad.OPALen +
		4, 1, false}, {mad.OPALen + 1, 1, false},
		{mad.HeaderLen - 4, 1, false}, {26, 1, false}, {4, 1, false}, {mad.OPALen, 0, false}, {mad.HeaderLen, 0,
			false}} {
		nodes := line(t, 2)
		long := bytes.Repeat([]byte{0xa5}, c.n)
		long[0] = mad.OPABaseVersion
		d := mad.Datagram{SLID: 1, DLID: 2, SrcQPN: c.qpn, DstQPN: c.qpn, PKey: 0xffff, Long: long}
		for len(d.Long)%4 != 0 { // a packet of MADs has no padding, so that there is a length which is not theirs
			d.Long = append(d.Long, 0)
		}
		nodes[0].SendMAD(1, 8, &d)
		p := nodes[1].cable.queue[0].packet
		if pad := len(d.Long) - c.n; pad != 0 {
			p[wire.LRHLen+1] |= byte(pad) << 4
			seal(p)
		}
		if why := wire.VerifyIB(p); why != wire.OK {
			t.Fatalf("%d octets: %v", c.n, why)
		}
		nodes[1].Recv(1)
		if got := len(nodes[1].mads); got != 0 != c.ok || got > 1 {
			t.Errorf("%d octets to queue pair %d: %d datagrams", c.n, c.qpn, got)
		} else if !c.ok {
			if k := nodes[1].Counters().DropRefusal[wire.NotTransport]; k != 1 {
				t.Errorf("%d octets to queue pair %d: not counted", c.n, c.qpn)
			}
			continue
		} else if g := nodes[1].mads[0]; !bytes.Equal(g.Long, long) ||
			!bytes.Equal(g.Data[:min(c.n, mad.Len)], long[:min(c.n, mad.Len)]) {
			t.Errorf("%d octets: % x", c.n, g.Long)
		}
		kept := bytes.Clone(long)
		clear(p) // what was received is not the packet
		if !bytes.Equal(nodes[1].mads[0].Long, kept) {
			t.Errorf("%d octets alias the packet", c.n)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	a := line(t, 1)[0]
	batch := mem.NewBatch(4096)
	r := run(1, ib.ServiceRC|ib.SendOnly, 16, 4096, 65536, true, make([]byte, 65536))
	a.Send(1, r, batch)
	a.Recv(1)
	a.Send(1, r, batch)
	a.Recv(1)
	if n := testing.AllocsPerRun(50, func() { a.Send(1, r, batch); a.Recv(1) }); n != 0 {
		t.Errorf("%v allocations per run", n)
	}
}

func FuzzRecv(f *testing.F) {
	nodes := line(f, 2)
	nodes[0].Send(1, run(2, ib.ServiceRC|ib.SendOnly, 1, 256, 9, true, make([]byte, 16)), mem.NewBatch(4096))
	nodes[0].SendMAD(1, 8, &mad.Datagram{SLID: 1, DLID: 2})
	for _, n := range []int{mad.OPALen, mad.VEMATrapLen, mad.HeaderLen, 20} {
		long := make([]byte, n)
		long[0] = mad.OPABaseVersion
		nodes[0].SendMAD(1, 8, &mad.Datagram{SLID: 1, DLID: 2, SrcQPN: 1, DstQPN: 1, Long: long})
	}
	for _, a := range nodes[1].cable.queue {
		f.Add(a.packet)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		e := nodes[1]
		e.mads = nil
		need := wire.LRHLen + wire.BTHLen + wire.ICRCLen + wire.VCRCLen
		if len(p) >= need && p[1]&3 == wire.LNHGlobal {
			need += wire.GRHLen
		}
		if len(p) >= need {
			p = bytes.Clone(p)
			seal(p) // or nothing would get past the CRCs
		}
		before := e.Counters()
		e.cable.queue = []arrival{{0, p}}
		runs, _ := e.Recv(1)
		after := e.Counters()
		if n := len(runs) + len(e.mads); n == 0 && after == before {
			t.Error("neither delivered nor counted")
		} else if n > 1 {
			t.Error("delivered more than once")
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"io"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pcapng"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/hca"
)

var _ hca.Tap = (*Tap)(nil)

var start = time.Unix(1_700_000_000, 0)

// clock ticks with each look.
func clock() func() time.Time {
	at := start
	return func() time.Time {
		at = at.Add(time.Microsecond)
		return at
	}
}

func config(functions ...Function) Config {
	return Config{Lanes: 1, RingBytes: 1 << 20, Functions: functions, Port: wire.UDPPort, Clock: clock()}
}

// file is what a capture has in it by now.
func file(t *testing.T, c *Capture) *pcapgo.NgReader {
	t.Helper()
	var f bytes.Buffer
	w, err := pcapng.NewWriter(&f, "weft", c.Interfaces()...)
	if err == nil {
		err = w.Blocks(c.Take())
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func run(op ib.Opcode, p *ib.Path, n, mtu int) *pkt.Burst {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	r := &pkt.Burst{Headers: wire.Headers{Opcode: op, PKey: 0xffff, DestQPN: 0x8002, PSN: 0xfffffe, AckReq: true,
		VA: 0x1122334455667788, RKey: 5, DMALen: uint32(n), Imm: 9, QKey: 7, SrcQPN: 0x4002},
		Count: uint32(max(1, (n+mtu-1)/mtu)), MTU: uint32(mtu), Path: p, Data: mem.BytesPayload(data)}
	return r
}

func gid(s string) ib.GID { return ib.GIDFromAddr(netip.MustParseAddr(s)) }

// TestFrames: each frame parses as what it was made of, with the right CRCs.
func TestFrames(t *testing.T) {
	v4 := &ib.Path{SGID: gid("10.0.0.1"), DGID: gid("10.0.0.2"), TClass: 0x20, SrcPort: 0xc123}
	v6 := &ib.Path{SGID: gid("fd00::1"), DGID: gid("fd00::2"), HopLimit: 3, FlowLabel: 0x12345, SrcPort: 0xc123}
	lid := &ib.Path{SLID: 2, DLID: 3, SL: 4}
	smp := &ib.Path{SLID: 0xffff, DLID: 0xffff}
	global := &ib.Path{SLID: 2, DLID: 0xc001, SL: 1, Global: true, SGID: gid("fe80::1"), DGID: gid("ff12::1"),
		TClass: 7, HopLimit: 1}
	for _, p := range []*ib.Path{v4, v6, lid, smp, global} {
		for _, n := range []int{0, 1, 1024, 1027, 5000} {
			op := ib.WriteOnlyImm
			if n == 0 {
				op = ib.SendOnly
			}
			c := New(config(Function{"dev", p.Native()}))
			tap := NewTap(0, []*Capture{c})
			r := run(op, p, n, 1024)
			vl := uint8(0)
			if p == smp {
				r.DestQPN, vl = ib.QPNSMI, 15
			}
			tap.Sent(0, 0x4002, r)
			f := file(t, c)
			var data []byte
			for k := range r.Count {
				frame, info, err := f.ReadPacketData()
				if err != nil || info.Length != len(frame) || !info.Timestamp.Equal(start.Add(time.Microsecond)) {
					t.Fatalf("%d bytes, packet %d: %v, %+v", n, k, err, info)
				}
				var tr []byte
				var why wire.Refusal
				if p.Native() {
					var l wire.LRH
					var g wire.GRH
					if tr, why = wire.ParseIB(frame[16:], &l, &g); why == wire.OK {
						why = wire.VerifyIB(frame[16:])
					}
					if l.DLID != p.DLID || l.SLID != p.SLID || l.SL != p.SL || l.VL != vl || p.Global &&
						(g.DGID != p.DGID || g.SGID != p.SGID || g.TClass != p.TClass) {
						t.Errorf("%+v, %+v, want %+v", l, g, p)
					}
				} else {
					var ip wire.IPUDP
					if tr, why = ip.Parse(frame[14:]); why == wire.OK &&
						wire.SumIP(frame[14:len(frame)-wire.ICRCLen]) != wire.ICRC(tr) {
						why = wire.BadICRC
					}
					if ip.Src != p.SGID || ip.Dst != p.DGID || ip.SrcPort != p.SrcPort || ip.TClass != p.TClass ||
						ip.HopLimit == 0 || frame[0] != 2 || frame[6] != 2 {
						t.Errorf("%+v, want %+v", ip, p)
					}
				}
				var h wire.Headers
				var body []byte
				if why == wire.OK {
					body, why = h.Parse(tr)
				}
				if why != wire.OK || h.PSN != r.PSN.Add(k) || h.DestQPN != r.DestQPN ||
					h.Opcode != op.Split(k, r.Count) {
					t.Errorf("%d bytes, packet %d: %v: %+v", n, k, why, h)
				}
				data = append(data, body...)
			}
			if _, _, err := f.ReadPacketData(); err != io.EOF || !bytes.Equal(data, r.Data.Bytes) {
				t.Errorf("%d bytes: %d in the file, then %v", n, len(data), err)
			}
		}
	}
}

func TestGroupAddresses(t *testing.T) {
	for addr, want := range map[string]string{"224.129.2.3": "\x01\x00\x5e\x01\x02\x03",
		"ff0e::1:203": "\x33\x33\x00\x01\x02\x03", "10.1.2.3": "\x02\x00\x0a\x01\x02\x03"} {
		b := []byte{0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5}
		if mac(b, gid(addr)); string(b) != want {
			t.Errorf("%s: %x", addr, b)
		}
	}
}

// TestFilters: by device, by queue pair at either end, and of IP links.
func TestFilters(t *testing.T) {
	away := &ib.Path{SLID: 2, DLID: 3}
	within := &ib.Path{SLID: 2, DLID: 3, Local: true, Function: 1}
	dev := []Function{{"ib0", true}, {"ib1", true}}
	one := []Function{{"", true}, {"ib1", true}}
	for _, x := range []struct {
		name                         string
		cfg                          Config
		sent, within, received, late int // packets seen
	}{
		{"all", Config{Functions: dev, Later: true}, 1, 1, 1, 1},
		{"one device, either end", Config{Functions: one}, 0, 1, 0, 0},
		{"sender", Config{Functions: dev, QPs: []ib.QPN{0x4002}}, 1, 1, 0, 0},
		{"receiver", Config{Functions: dev, Later: true, QPs: []ib.QPN{7, 0x8002}}, 0, 1, 1, 1},
		{"none selected", Config{Functions: dev, QPs: []ib.QPN{9}}, 0, 0, 0, 0},
		{"IP link", Config{Functions: dev, IPoIB: []Link{{1, 0x8002}}}, 0, 1, 0, 0},
		{"no IP link", Config{Functions: dev, IPoIB: []Link{}}, 0, 0, 0, 0},
	} {
		x.cfg.Lanes, x.cfg.RingBytes, x.cfg.Clock = 1, 1<<16, clock()
		c := New(x.cfg)
		tap := NewTap(0, []*Capture{c})
		count := func(want int, f func()) {
			t.Helper()
			f()
			n := 0
			for b := c.Take(); len(b) > 0; n++ {
				_, b, _ = pcapng.Next(b)
			}
			if n != want {
				t.Errorf("%s: %d packets, want %d", x.name, n, want)
			}
		}
		op := ib.ServiceUD | ib.SendOnly
		count(x.sent, func() { tap.Sent(0, 0x4002, run(op, away, 10, 1024)) })
		count(x.within, func() { tap.Sent(0, 0x4002, run(op, within, 10, 1024)) })
		count(x.received, func() { tap.Received(0, run(op, away, 10, 1024)) })
		count(x.late, func() { tap.Received(5, run(op, away, 10, 1024)) })
		if got, want := tap.Selects(0, 0x4002), x.sent > 0; got != want {
			t.Errorf("%s: selects the sender %v", x.name, got)
		}
	}
	// What was not shown counts by the same filters.
	m := New(Config{Lanes: 2, RingBytes: 1 << 16, Functions: one, Later: true, QPs: []ib.QPN{1}, Clock: clock()})
	for _, x := range []struct {
		f      uint16
		qpn    ib.QPN
		native bool
	}{{1, 1, true}, {1, 0, true}, {0, 1, true}, {5, 1, true}, {5, 1, false}, {6, 1, false}} {
		m.Missed(x.f, x.qpn, x.native)
	}
	if n := []Counts{m.Counts(0), m.Counts(1), m.Counts(2)}; !slices.Equal(n, []Counts{{1, 1}, {1, 1}, {2, 2}}) {
		t.Errorf("missed: %+v", n)
	}
	// An IP link has datagrams, and nothing else is one.
	c := New(Config{Lanes: 1, RingBytes: 1 << 16, Functions: dev, IPoIB: []Link{{0, 0x4002}}, Clock: clock()})
	tap := NewTap(0, []*Capture{c})
	tap.Sent(0, 0x4002, run(ib.SendOnly, away, 10, 1024))
	r := run(ib.ServiceUD|ib.SendOnly, &ib.Path{SLID: 2, DLID: 3, Global: true, SGID: gid("fe80::1"),
		DGID: gid("ff12::1")}, 10, 1024)
	tap.Sent(0, 0x4002, r)
	frame, _, err := file(t, c).ReadPacketData()
	if err != nil || len(frame) != 50 || !bytes.Equal(frame[40:], r.Data.Bytes) || frame[6] != 0x40 ||
		c.Counts(0).Seen != 1 {
		t.Errorf("%v: %x, %+v", err, frame, c.Counts(0))
	}
}

// TestLater: frames of devices that were added later are on an interface of their link.
func TestLater(t *testing.T) {
	cfg := config(Function{"ib0", true})
	cfg.Later = true
	c := New(cfg)
	tap := NewTap(0, []*Capture{c})
	away := &ib.Path{SGID: gid("10.0.0.1"), DGID: gid("10.0.0.2")}
	within := &ib.Path{SGID: gid("10.0.0.1"), DGID: gid("10.0.0.2"), Local: true, Function: 6}
	tap.Sent(5, 1, run(ib.SendOnly, away, 100, 1024))
	tap.Sent(5, 1, run(ib.SendOnly, within, 100, 1024))
	tap.Received(6, run(ib.SendOnly, away, 100, 1024))
	tap.Received(7, run(ib.SendOnly, &ib.Path{SLID: 2, DLID: 3}, 100, 1024))
	tap.Received(0, run(ib.SendOnly, &ib.Path{SLID: 2, DLID: 3}, 100, 1024))
	f := file(t, c)
	for i, want := range []pcapng.LinkType{pcapng.LinkEthernet, pcapng.LinkEthernet, pcapng.LinkEthernet,
		pcapng.LinkERF, pcapng.LinkERF} {
		_, info, err := f.ReadPacketData()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Interfaces()[info.InterfaceIndex]; got.Type != want {
			t.Errorf("packet %d is on %+v", i, got)
		}
	}
}

// TestCut: a frame's beginning, and how long it was.
func TestCut(t *testing.T) {
	for _, native := range []bool{false, true} {
		p := &ib.Path{SGID: gid("10.0.0.1"), DGID: gid("10.0.0.2")}
		whole, extra := 14+28+12+100+4, 0
		if native {
			p = &ib.Path{SLID: 2, DLID: 3}
			whole, extra = 8+12+100+4+2, 16
		}
		cfg := config(Function{"dev", native})
		cfg.SnapLen = 64
		c := New(cfg)
		NewTap(0, []*Capture{c}).Sent(0, 1, run(ib.SendOnly, p, 100, 1024))
		frame, info, err := file(t, c).ReadPacketData()
		if err != nil || len(frame) != 64+extra || info.Length != whole+extra {
			t.Errorf("native %v: %v: %d bytes of %d, want %d of %d", native, err, len(frame), info.Length, 64+extra,
				whole+extra)
		}
	}
}

// TestFull: what finds no room is counted, and nothing waits for room.
func TestFull(t *testing.T) {
	cfg := config(Function{"dev", true})
	cfg.RingBytes = 4096
	c := New(cfg)
	tap := NewTap(0, []*Capture{c})
	r := run(ib.SendOnly, &ib.Path{SLID: 2, DLID: 3}, 1000, 1024)
	for range 10 {
		tap.Sent(0, 1, r)
	}
	if n := c.Counts(0); n.Seen != 10 || n.Dropped != 7 {
		t.Errorf("%+v", n)
	}
	select {
	case <-c.Wake():
	default:
		t.Error("the writer is not woken")
	}
	n := 0
	for b := c.Take(); len(b) > 0; n++ {
		_, b, _ = pcapng.Next(b)
	}
	tap.Sent(0, 1, r)
	if k := c.Counts(0); n != 3 || k.Dropped != 7 || len(c.Take()) == 0 {
		t.Errorf("%d packets, then %+v", n, k)
	}
}

// TestLanes: two lanes fill their rings while a reader empties them; all
// packets are there, whole, and those at hand are in the order of their times.
func TestLanes(t *testing.T) {
	const each = 20000
	c := New(Config{Lanes: 2, RingBytes: 1 << 16, Functions: []Function{{"ib0", true}}, Clock: time.Now})
	var lanes sync.WaitGroup
	done := make(chan struct{})
	for lane := range 2 {
		lanes.Go(func() {
			tap := NewTap(lane, []*Capture{c})
			r := run(ib.SendOnly, &ib.Path{SLID: ib.LID(lane + 1), DLID: 3}, 20+lane, 1024)
			for i := range uint32(each) {
				r.PSN = ib.PSN(i)
				tap.Sent(0, 1, r)
			}
		})
	}
	go func() { lanes.Wait(); close(done) }()
	var next [2]ib.PSN
	got, end := 0, false
	for !end {
		select {
		case <-done:
			end = true
		case <-c.Wake():
		}
		var last time.Time
		for b := c.Take(); len(b) > 0; got++ {
			block, rest, at := pcapng.Next(b)
			b = rest
			if at.Before(last) {
				t.Error("out of order")
			}
			last = at
			var l wire.LRH
			var g wire.GRH
			var h wire.Headers
			p := block[28+16 : 28+16+int(block[21])<<8+int(block[20])-16]
			tr, why := wire.ParseIB(p, &l, &g)
			if why == wire.OK {
				_, why = h.Parse(tr)
			}
			if why != wire.OK || wire.VerifyIB(p) != wire.OK || h.PSN < next[l.SLID-1] {
				t.Fatalf("%v: %x", why, p)
			}
			next[l.SLID-1] = h.PSN + 1
		}
	}
	if n := c.Counts(0); n.Seen != 2*each || uint64(got)+n.Dropped != n.Seen || got == 0 {
		t.Errorf("%d in the file: %+v", got, n)
	}
}

func TestNoAllocation(t *testing.T) {
	c := New(config(Function{"roce", false}, Function{"ib", true}))
	d := New(config(Function{"roce", false}, Function{"ib", true}))
	tap := NewTap(0, []*Capture{c, d})
	a := run(ib.WriteOnly, &ib.Path{SGID: gid("10.0.0.1"), DGID: gid("10.0.0.2")}, 4000, 1024)
	b := run(ib.WriteOnly, &ib.Path{SLID: 2, DLID: 3}, 4000, 1024)
	if n := testing.AllocsPerRun(50, func() {
		tap.Sent(0, 1, a)
		tap.Received(1, b)
	}); n != 0 {
		t.Errorf("%v allocations per run", n)
	}
}

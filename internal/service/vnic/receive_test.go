// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// reseal makes a packet with a changed header or frame valid again.
func reseal(p []byte, n int) []byte {
	wire.Seal16(p, wire.Ethernet16Len+n)
	return p
}

// TestReceiveChecks: a packet reaches the port only if all of docs/notes/vesw.md 7 is so; what else
// comes is counted under one name, and within a node as between nodes.
func TestReceiveChecks(t *testing.T) {
	for _, x := range []struct {
		name   string
		head   func(h *wire.Header16)
		vesw   uint16 // 0: the port's
		rx     func(i *mad.VESWPortInfo)
		admin  bool // set down
		link   bool // not active
		want   string
		unseen bool // Local cannot meet it
	}{
		{name: "for the port"},
		{name: "from a limited member", head: func(h *wire.Header16) { h.PKey = testPKey &^ 0x8000 }},
		{name: "to the group", head: func(h *wire.Header16) { h.DLID = testGroup }},
		{name: "not Ethernet", head: func(h *wire.Header16) { h.L4 = wire.L4IBLocal }, want: "rx_bad_l4", unseen: true},
		{name: "of another kind of Ethernet", head: func(h *wire.Header16) { h.L4 = 0x79 }, want: "rx_bad_l4",
			unseen: true},
		{name: "another VESW", vesw: testVESW + 1, want: "rx_bad_veswid"},
		{name: "VESW with the same low octet", vesw: testVESW & 0xff, want: "rx_bad_veswid"},
		{name: "VESW with the same low octet, higher", vesw: testVESW + 0x100, want: "rx_bad_veswid"},
		{name: "from LID 0", head: func(h *wire.Header16) { h.SLID = 0 }, want: "rx_bad_slid"},
		{name: "from a group", head: func(h *wire.Header16) { h.SLID = testGroup }, want: "rx_bad_slid"},
		{name: "from the permissive LID", head: func(h *wire.Header16) { h.SLID = 0xffffff }, want: "rx_bad_slid"},
		{name: "reflected", head: func(h *wire.Header16) { h.SLID, h.DLID = 2, testGroup }, want: "rx_bad_slid"},
		{name: "to LID 0", head: func(h *wire.Header16) { h.DLID = 0 }, want: "rx_bad_dlid"},
		{name: "to another port", head: func(h *wire.Header16) { h.DLID = 3 }, want: "rx_bad_dlid"},
		{name: "to the port's LID and 2^16", head: func(h *wire.Header16) { h.DLID = 1<<16 | 2 }, want: "rx_bad_dlid"},
		{name: "to another group", head: func(h *wire.Header16) { h.DLID = testGroup + 1 }, want: "rx_bad_dlid"},
		{name: "to the permissive LID", head: func(h *wire.Header16) { h.DLID = 0xffffff }, want: "rx_bad_dlid"},
		{name: "to the group on SC 15", head: func(h *wire.Header16) { h.DLID, h.SC = testGroup, 15 },
			want: "rx_bad_sc"},
		{name: "to the port on SC 15", head: func(h *wire.Header16) { h.SC = 15 }},
		{name: "another partition", head: func(h *wire.Header16) { h.PKey = 0x8003 }, want: "rx_bad_pkey"},
		{name: "no partition", head: func(h *wire.Header16) { h.PKey = 0x8000 }, want: "rx_bad_pkey"},
		{name: "the default partition", head: func(h *wire.Header16) { h.PKey = ib.DefaultPKey }, want: "rx_bad_pkey"},
		{name: "two limited members", head: func(h *wire.Header16) { h.PKey = testPKey &^ 0x8000 },
			rx: func(i *mad.VESWPortInfo) { i.VESW.PKey = testPKey &^ 0x8000 }, want: "rx_bad_pkey"},
		{name: "to a limited member", rx: func(i *mad.VESWPortInfo) { i.VESW.PKey = testPKey &^ 0x8000 }},
		{name: "held by the manager", rx: func(i *mad.VESWPortInfo) { i.Port.ConfigState = mad.VESWDropAll },
			want: "rx_drop_state"},
		{name: "set down", admin: true, want: "rx_drop_state"},
		{name: "link down", link: true, want: "rx_drop_state"},
		{name: "in no VESW", rx: func(i *mad.VESWPortInfo) { i.VESW.VESWID, i.Port.ConfigState = 0, mad.VESWDropAll },
			want: "rx_bad_veswid"},
		{name: "too long", rx: func(i *mad.VESWPortInfo) { i.VESW.EthMTU = 68 }, want: "rx_oversize"},
	} {
		h := newHost(t, 2, x.rx)
		if x.admin {
			h.Port(0).SetAdmin(1, false)
		}
		if x.link {
			h.SetLink(1, false)
		}
		d := Decision{VESW: testVESW, Header: wire.Header16{SLID: 1, DLID: 2, L4: wire.L4Ethernet, PKey: testPKey}}
		if x.vesw != 0 {
			d.VESW = x.vesw
		}
		if x.head != nil {
			x.head(&d.Header)
		}
		d.ready()
		f := frame([6]byte{2, 9}, [6]byte{2, 8}, 90)
		check := func(way string, in Inbound, ok bool) {
			t.Helper()
			c, u := h.rx.Counters(0), h.rx.Unknown()
			h.rx.Forget(0)
			h.rx.unknown = Unknown{}
			if c.RxErrors() != 0 != (x.want != "" && u == Unknown{}) {
				t.Errorf("%s, %s: %d errors of the port", x.name, way, c.RxErrors())
			}
			if ok != (x.want == "") || ok && (!bytes.Equal(in.Frame, f) || in.VPort != 0 || c.Rx.Packets != 1) {
				t.Errorf("%s, %s: taken %v, % x", x.name, way, ok, in.Frame)
			}
			if x.want == "" {
				return
			}
			got := some(c.Each)
			for name, v := range some(u.Each) {
				got[name] = v
			}
			for _, sum := range []string{"rx_errors", "rx_dropped", "rx_length_errors"} {
				delete(got, sum)
			}
			if diff := cmp.Diff(map[string]uint64{x.want: 1}, got); diff != "" {
				t.Errorf("%s, %s: %s", x.name, way, diff)
			}
		}
		in, ok := h.take(t, seal(&d, f))
		check("by packet", in, ok)
		if !x.unseen {
			in = Inbound{}
			ok = h.rx.Local(&d, f, Cut{1, len(f), len(f)}, &in)
			check("within the node", in, ok)
		}
	}
}

// TestFrameSizes: what a port takes is from MinFrame to the MTU with header and one tag.
func TestFrameSizes(t *testing.T) {
	for _, mtu := range []int{68, 1500, 9000, MaxEthMTU} {
		h := newHost(t, 2, func(i *mad.VESWPortInfo) { i.VESW.EthMTU = uint16(mtu) })
		d := Decision{VESW: testVESW, Header: wire.Header16{SLID: 1, DLID: 2, L4: wire.L4Ethernet, PKey: testPKey}}
		d.ready()
		for _, x := range []struct {
			n    int
			want bool
		}{{60, true}, {mtu + 14, true}, {mtu + 18, true}, {mtu + 19, false}, {MaxFrame, false}} {
			if _, ok := h.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, x.n))); ok != x.want {
				t.Errorf("MTU %d: a frame of %d was taken: %v", mtu, x.n, ok)
			}
			var in Inbound
			cut := Cut{3, x.n, 61}
			if ok := h.rx.Local(&d, frame([6]byte{2}, [6]byte{2, 1}, x.n), cut, &in); ok != x.want {
				t.Errorf("MTU %d: frames of %d were taken within the node: %v", mtu, x.n, ok)
			}
		}
		// A receiver's own MTU counts, not the VESW's.
		if err := h.Port(0).SetMTU(1, 68); err != nil {
			t.Fatal(err)
		}
		if _, ok := h.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 68+19))); ok {
			t.Error("longer than the interface's own MTU")
		}
		c := h.rx.Counters(0)
		if c.RxOversize != 2*(1+3)+1 || c.RxErrors() != c.RxOversize {
			t.Errorf("MTU %d: %v", mtu, some(c.Each))
		}
	}
}

// TestShortPackets: no packet that the link lets through is too short for the receiver, and none below MinFrame
// is delivered.
func TestShortPackets(t *testing.T) {
	h := newHost(t, 2, nil)
	for body := range wire.Ethernet16Len + MinFrame + 1 {
		p := bytes.Repeat([]byte{0xa5}, wire.Len16(body))
		head := wire.Header16{SLID: 1, DLID: 2, Length: uint16(len(p) / 8), L4: wire.L4Ethernet, PKey: testPKey}
		head.Put(p)
		if body >= wire.Ethernet16Len {
			wire.PutEthernet16(p[wire.Header16Len:], testVESW)
		}
		wire.Seal16(p, body)
		in, ok := h.take(t, p)
		if want := body == wire.Ethernet16Len+MinFrame; ok != want || ok && len(in.Frame) != MinFrame {
			t.Errorf("%d octets behind the header: taken %v", body, ok)
		}
	}
	c, u := h.rx.Counters(0), h.rx.Unknown()
	if u.Malformed != 4 || c.RxRunt != 60 || c.Rx.Packets != 1 {
		t.Errorf("%v %v", some(u.Each), some(c.Each))
	}
}

// TestCongestion: a packet that met congestion is answered with a notification, which is a
// packet without a frame and no runt (docs/notes/vesw.md 10).
func TestCongestion(t *testing.T) {
	a, b := newHost(t, 1, func(i *mad.VESWPortInfo) { i.Port.NonVLANSCUc = 21 }), newHost(t, 2, nil)
	f := frame(mad.VESWMAC(testFabric, testVESW, 2), [6]byte{2}, 60)
	p, _ := a.packet(t, f)
	p[7] |= 0x10 // FECN, which the CRC leaves out
	in, ok := b.take(t, p)
	if !ok || !bytes.Equal(in.Frame, f) || len(in.Notify) != 32 {
		t.Fatalf("taken %v, notification % x", ok, in.Notify)
	}
	h := parse(t, in.Notify)
	want := wire.Header16{SLID: 2, DLID: 1, Length: 4, BECN: true, SC: 21, L4: wire.L4Ethernet, PKey: testPKey}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	if vesw, empty, why := wire.ParseEthernet16(in.Notify[wire.Header16Len:HeaderLen:HeaderLen]); why != wire.OK ||
		vesw != testVESW || len(empty) != 0 {
		t.Errorf("VESW %#x, %d octets, %v", vesw, len(empty), why)
	}
	if _, ok := a.take(t, in.Notify); ok {
		t.Error("a notification is no frame")
	}
	// A frame with BECN is a frame; one to a group is not answered.
	p[3] |= 0x80
	if in, ok = b.take(t, p); !ok || in.Notify == nil {
		t.Error("a frame with both marks")
	}
	g, _ := a.packet(t, frame([6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, [6]byte{2}, 60))
	g[7] |= 0x10
	if in, ok = b.take(t, g); !ok || in.Notify != nil {
		t.Errorf("a frame to a group was answered: % x", in.Notify)
	}
	ca, cb := a.rx.Counters(0), b.rx.Counters(0)
	if diff := cmp.Diff(map[string]uint64{"rx_becn": 1}, some(ca.Each)); diff != "" {
		t.Error(diff)
	}
	if cb.RxFECN != 3 || cb.RxBECN != 1 || cb.NotifySent != 2 || cb.Rx.Packets != 3 || cb.RxErrors() != 0 {
		t.Errorf("%v", some(cb.Each))
	}
	// Without the mark it is but a short packet.
	n := bytes.Clone(in.Frame[:0])
	n = append(n, make([]byte, 32)...)
	h.BECN, h.SLID, h.DLID = false, 1, 2
	h.Put(n)
	wire.PutEthernet16(n[wire.Header16Len:], testVESW)
	if _, ok := b.take(t, reseal(n, 0)); ok || b.rx.Counters(0).RxRunt != 1 {
		t.Error("a packet without a frame and without BECN is a runt")
	}
}

// TestReservedBits are ignored, and counted.
func TestReservedBits(t *testing.T) {
	a, b := newHost(t, 1, nil), newHost(t, 2, nil)
	f := frame(mad.VESWMAC(testFabric, testVESW, 2), [6]byte{2}, 60)
	for i, bit := range []struct{ at, mask byte }{{16, 1}, {17, 0x80}, {19, 0x10}, {19, 0x80}} {
		p, _ := a.packet(t, f)
		p[bit.at] |= bit.mask
		if in, ok := b.take(t, reseal(p, len(f))); !ok || !bytes.Equal(in.Frame, f) ||
			b.rx.Counters(0).RxReserved != uint64(i+1) {
			t.Errorf("octet %d, bit %#x: %v %v", bit.at, bit.mask, ok, b.rx.Counters(0).RxReserved)
		}
	}
}

// TestLMC: a port has all LIDs that differ in the low LMC bits, and sends nothing to itself by any.
func TestLMC(t *testing.T) {
	h := newHost(t, 8, nil)
	h.a.SetLIDs(8, 2)
	for lid := uint32(1); lid < 20; lid++ {
		d := Decision{VESW: testVESW, Header: wire.Header16{SLID: 100, DLID: lid, L4: wire.L4Ethernet, PKey: testPKey}}
		d.ready()
		own := lid >= 8 && lid < 12
		if _, ok := h.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 60))); ok != own {
			t.Errorf("to LID %d: %v", lid, ok)
		}
		d.Header.SLID, d.Header.DLID = lid, 9
		d.ready()
		if _, ok := h.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 60))); ok == own {
			t.Errorf("from LID %d: %v", lid, ok)
		}
	}
}

// TestNoAllocation: a frame costs none, out and in.
func TestNoAllocation(t *testing.T) {
	a, b := newHost(t, 1, nil), newHost(t, 2, nil)
	entries := make([]mad.VESWMACEntry, mad.VESWMaxMACs)
	for i := range entries {
		entries[i] = mad.VESWMACEntry{MAC: [6]byte{0, 1, 2, 3, byte(i >> 8), byte(i)}, DLIDSD: mad.MakeDLIDSD(2)}
	}
	if err := a.SetMACEntries(0, 0, entries, 1); err != nil {
		t.Fatal(err)
	}
	f := frame([6]byte{0, 1, 2, 3, 7, 7}, [6]byte{2}, 1514)
	p := make([]byte, PacketLen(len(f)))
	c := Cut{1, len(f), len(f)}
	var d Decision
	var in Inbound
	if n := testing.AllocsPerRun(100, func() {
		info := ether.Classify(f)
		if !a.tx.Decide(f, &info, c, &d) {
			t.Fatal("not sent")
		}
		copy(p[HeaderLen:], f)
		d.Seal(p, len(f))
		a.tx.Sent(&d, c)
		var h wire.Header16
		wire.Parse16(p, &h)
		h.FECN = true
		if !b.rx.Receive(&h, p, &in) || !b.rx.Local(&d, f, c, &in) {
			t.Fatal("not received")
		}
		b.rx.Lost(in.VPort, in.Frame, c)
	}); n != 0 {
		t.Errorf("%v allocations per frame", n)
	}
}

func BenchmarkSend(b *testing.B) {
	a := newHost(b, 1, nil)
	for _, n := range []int{60, 1514, 9014} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a.Port(0).set(func() *mad.VESWPortInfo { i := info(1); i.VESW.EthMTU = 9000; return i }())
			f := frame(mad.VESWMAC(testFabric, testVESW, 2), [6]byte{2}, n)
			p := make([]byte, PacketLen(n))
			c := Cut{1, n, n}
			var d Decision
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				in := ether.Classify(f)
				a.tx.Decide(f, &in, c, &d)
				copy(p[HeaderLen:], f)
				d.Seal(p, n)
				a.tx.Sent(&d, c)
			}
		})
	}
}

// BenchmarkReceive is without the CRC, which the link checks.
func BenchmarkReceive(b *testing.B) {
	a, h := newHost(b, 1, nil), newHost(b, 2, nil)
	p, _ := a.packet(b, frame(mad.VESWMAC(testFabric, testVESW, 2), [6]byte{2}, 1514))
	var head wire.Header16
	var in Inbound
	b.ReportAllocs()
	for b.Loop() {
		wire.Parse16(p, &head)
		h.rx.Receive(&head, p, &in)
	}
}

func BenchmarkLocal(b *testing.B) {
	a, h := newHost(b, 1, nil), newHost(b, 2, nil)
	f := frame(mad.VESWMAC(testFabric, testVESW, 2), [6]byte{2}, 1514)
	c := Cut{45, 1514, 1000}
	var d Decision
	var in Inbound
	b.ReportAllocs()
	for b.Loop() {
		info := ether.Classify(f)
		a.tx.Decide(f, &info, c, &d)
		h.rx.Local(&d, f, c, &in)
		a.tx.Sent(&d, c)
	}
}

// FuzzReceive: whatever the link accepts, the receiver delivers at most what is in the packet, to a
// port that is in its VESW, or counts it once.
func FuzzReceive(f *testing.F) {
	a := newHost(f, 1, nil)
	h := newHost(f, 2, nil)
	other := info(2)
	other.VESW.VESWID = testVESW ^ 0x100
	if err := h.SetInfo(1, 5, other); err != nil {
		f.Fatal(err)
	}
	h.Port(5).SetAdmin(1, true)
	for _, n := range []int{14, 60, 61, 90, 1514} {
		for _, dst := range [][6]byte{mad.VESWMAC(testFabric, testVESW, 2), {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
			p, _ := a.packet(f, frame(dst, [6]byte{2}, n))
			f.Add(p)
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var head wire.Header16
		p = bytes.Clone(p)
		if len(p) >= 24 { // or few would have the right length
			p = p[:len(p)&^7]
			p[7] = p[7]&^0x60 | 0x40
			p[2], p[3] = p[2]&0x0f|byte(len(p)/8)<<4, p[3]&0x80|byte(len(p)/8>>4)&0x7f
			p[len(p)-1] &= 0xc7
		}
		if _, why := wire.Parse16(p, &head); why != wire.OK {
			return
		}
		count := func() (n uint64) {
			u := h.rx.Unknown()
			n = u.BadL4 + u.Malformed + u.BadVESW
			for _, v := range []uint8{0, 5} {
				c := h.rx.Counters(v)
				n += c.Rx.Packets + c.RxErrors()
				if head.BECN {
					n += c.RxBECN
				}
			}
			return n
		}
		before := count()
		var in Inbound
		ok := h.rx.Receive(&head, p, &in)
		if got := count() - before; got != 1 && !(head.BECN && got == 2) {
			t.Errorf("counted %d times", got)
		}
		if !ok {
			return
		}
		vesw := (uint16(p[18]) | uint16(p[19])<<8) & 0xfff
		if id := h.Info(in.VPort).VESW.VESWID; id != vesw {
			t.Errorf("VESW %#x to a port of %#x", vesw, id)
		}
		if len(in.Frame) < MinFrame || len(in.Frame) > 1518 || &in.Frame[0] != &p[HeaderLen] ||
			HeaderLen+len(in.Frame)+TailLen > len(p) {
			t.Errorf("a frame of %d from a packet of %d", len(in.Frame), len(p))
		}
		if in.Notify != nil {
			parse(t, in.Notify)
		}
	})
}

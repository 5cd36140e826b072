// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// The numbers are those of docs/notes/vesw.md 9.

// TestD01_WholeVESW: VESWs that are equal in their low octet live side by side in one
// function, and each port gets what is its own.
func TestD01_WholeVESW(t *testing.T) {
	h := newHost(t, 2, nil)
	ids := map[uint8]uint16{0: testVESW, 1: 0x001, 2: 0x101, 3: 0xf01}
	for v, id := range ids {
		i := info(2)
		i.VESW.VESWID = id
		if err := h.SetInfo(1, v, i); err != nil {
			t.Fatal(err)
		}
		h.Port(v).SetAdmin(1, true)
	}
	at := map[uint16]uint8{}
	for v, id := range ids {
		at[id] = v
	}
	for id := range uint16(0x1000) {
		d := Decision{VESW: id, Header: wire.Header16{SLID: 1, DLID: 2, L4: wire.L4Ethernet, PKey: testPKey}}
		d.ready()
		v, known := at[id]
		if in, ok := h.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 60))); ok != known || ok && in.VPort != v {
			t.Errorf("VESW %#x: port %d, %v", id, in.VPort, ok)
		}
	}
	if got := h.rx.Unknown().BadVESW; got != 0x1000-uint64(len(ids)) {
		t.Errorf("%d packets of unknown VESWs", got)
	}
}

// TestD02_Padding: what is between frame and CRC, and what makes a short frame long enough, is zero.
func TestD02_Padding(t *testing.T) {
	h := newHost(t, 1, nil)
	for n := 14; n < 100; n++ {
		f := bytes.Repeat([]byte{0xff}, n)
		copy(f, []byte{2, 0, 0, 2})
		p, head := h.packet(t, f) // in memory full of 0xa5
		if got := p[HeaderLen+n : len(p)-TailLen]; len(bytes.Trim(got, "\x00")) != 0 {
			t.Errorf("frame of %d: % x follows", n, got)
		}
		if payload, _ := wire.Parse16(p, &head); len(payload) != wire.Ethernet16Len+max(n, 60) ||
			payload[0]|payload[1] != 0 || p[14]|p[15] != 0 {
			t.Errorf("frame of %d: %d octets, header % x", n, len(payload), p[:HeaderLen])
		}
	}
}

// tagged is a frame with a VLAN tag.
func tagged(dst [6]byte, tpid uint16, tci uint16) []byte {
	f := frame(dst, [6]byte{2}, 12+2)[:12]
	f = append(f, byte(tpid>>8), byte(tpid), byte(tci>>8), byte(tci), 0x88, 0xb5)
	return append(f, make([]byte, 50)...)
}

// qosHost has another service channel for everything.
func qosHost(t testing.TB) *host {
	return newHost(t, 1, func(i *mad.VESWPortInfo) {
		for n := range uint8(8) {
			i.Port.PCPToSCUc[n], i.Port.PCPToSCMc[n] = n+1, 24+n
			i.Port.PCPToVLUc[n], i.Port.PCPToVLMc[n] = 7-n, 15-n
		}
		i.Port.NonVLANSCUc, i.Port.NonVLANSCMc = 10, 12
		i.Port.NonVLANVLUc, i.Port.NonVLANVLMc = 3, 4
	})
}

// TestD03_Priority: the service channel is that of the frame's priority.
func TestD03_Priority(t *testing.T) {
	h := qosHost(t)
	uc, mc := mad.VESWMAC(testFabric, testVESW, 2), [6]byte{1, 0, 0x5e}
	sc := func(f []byte) uint8 { _, head := h.packet(t, f); return head.SC }
	for _, tpid := range []uint16{ether.TypeVLAN, ether.TypeQinQ} {
		for pcp := range uint8(8) {
			tci := uint16(pcp)<<13 | 0x1fff // with drop indication and a VLAN
			if got := sc(tagged(uc, tpid, tci)); got != pcp+1 {
				t.Errorf("tag %#x, priority %d: SC %d", tpid, pcp, got)
			}
			if got := sc(tagged(mc, tpid, tci)); got != 24+pcp {
				t.Errorf("tag %#x, priority %d, to a group: SC %d", tpid, pcp, got)
			}
		}
	}
	if got := sc(frame(uc, [6]byte{2}, 60)); got != 10 {
		t.Errorf("no tag: SC %d", got)
	}
	if got := sc(frame(mc, [6]byte{2}, 60)); got != 12 {
		t.Errorf("no tag, to a group: SC %d", got)
	}
}

// TestD04_Lanes: the manager's virtual lanes change nothing, since the switch maps service channels to lanes; they
// are kept, and out of range refused.
func TestD04_Lanes(t *testing.T) {
	h := qosHost(t)
	f := tagged(mad.VESWMAC(testFabric, testVESW, 2), ether.TypeVLAN, 5<<13)
	p, _ := h.packet(t, f)
	i := h.Info(0)
	i.Port.PCPToVLUc, i.Port.NonVLANVLUc = [8]uint8{15, 15, 15, 15, 15, 15, 15, 15}, 15
	if err := h.SetInfo(1, 0, &i); err != nil {
		t.Fatal(err)
	}
	if q, _ := h.packet(t, f); !bytes.Equal(p, q) {
		t.Error("a lane is in the packet")
	}
	if got := h.Info(0).Port; got.PCPToVLUc != i.Port.PCPToVLUc || got.NonVLANVLUc != 15 {
		t.Error("lanes are not kept")
	}
}

// TestD05_Validation: what would spill into other fields of a header, or means nothing, is
// refused, and changes nothing.
func TestD05_Validation(t *testing.T) {
	h := newHost(t, 1, nil)
	before := h.Info(0)
	for name, f := range map[string]func(i *mad.VESWPortInfo){
		"fabric":             func(i *mad.VESWPortInfo) { i.VESW.FabricID = 1024 },
		"VESW":               func(i *mad.VESWPortInfo) { i.VESW.VESWID = 4096 },
		"MTU too small":      func(i *mad.VESWPortInfo) { i.VESW.EthMTU = 67 },
		"MTU too large":      func(i *mad.VESWPortInfo) { i.VESW.EthMTU = MaxEthMTU + 1 },
		"MTU 0":              func(i *mad.VESWPortInfo) { i.VESW.EthMTU = 0 },
		"group of 32 bits":   func(i *mad.VESWPortInfo) { i.VESW.McastDLID = 0xf0000001 },
		"unicast group":      func(i *mad.VESWPortInfo) { i.VESW.McastDLID = 5 },
		"permissive group":   func(i *mad.VESWPortInfo) { i.VESW.McastDLID = 0xffffff },
		"source a group":     func(i *mad.VESWPortInfo) { i.Port.EncapSLID = testGroup },
		"source too large":   func(i *mad.VESWPortInfo) { i.Port.EncapSLID = 1 << 24 },
		"source 0":           func(i *mad.VESWPortInfo) { i.Port.EncapSLID = 0 },
		"P_Key 0":            func(i *mad.VESWPortInfo) { i.VESW.PKey = 0 },
		"P_Key 0x8000":       func(i *mad.VESWPortInfo) { i.VESW.PKey = 0x8000 },
		"gateway a group":    func(i *mad.VESWPortInfo) { i.VESW.UcastDLIDs[15] = testGroup },
		"gateway too large":  func(i *mad.VESWPortInfo) { i.VESW.UcastDLIDs[0] = 1 << 24 },
		"base MAC a group's": func(i *mad.VESWPortInfo) { i.Port.BaseMAC = [6]byte{3} },
		"SC":                 func(i *mad.VESWPortInfo) { i.Port.PCPToSCUc[7] = 32 },
		"SC of groups":       func(i *mad.VESWPortInfo) { i.Port.PCPToSCMc[0] = 32 },
		"SC without tag":     func(i *mad.VESWPortInfo) { i.Port.NonVLANSCUc = 255 },
		"SC of untagged":     func(i *mad.VESWPortInfo) { i.Port.NonVLANSCMc = 32 },
		"VL":                 func(i *mad.VESWPortInfo) { i.Port.PCPToVLUc[3] = 16 },
		"VL of groups":       func(i *mad.VESWPortInfo) { i.Port.PCPToVLMc[3] = 16 },
		"VL without tag":     func(i *mad.VESWPortInfo) { i.Port.NonVLANVLUc = 16 },
		"VL of untagged":     func(i *mad.VESWPortInfo) { i.Port.NonVLANVLMc = 16 },
	} {
		i := *info(1)
		i.VESW.RC = 7
		f(&i)
		if err := h.SetInfo(1, 0, &i); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err := h.SetInfo(1, 1, &i); !errors.Is(err, ErrInvalid) || h.Port(1) != nil {
			t.Errorf("%s, a new port: %v", name, err)
		}
	}
	if diff := cmp.Diff(before, h.Info(0)); diff != "" {
		t.Error(diff)
	}
	if err := h.SetMACEntries(0, 0, []mad.VESWMACEntry{{MAC: [6]byte{0, 1}, DLIDSD: 0xffffff00}}, 3); !errors.Is(err,
		ErrInvalid) || h.Info(0).Port.MACDigest != 0 {
		t.Errorf("an entry to the permissive LID: %v", err)
	}
	if l := h.a.did(); len(l) != 0 {
		t.Errorf("the adapter was told: %q", l)
	}
	// A frame that is too long for the length field is not sent.
	s := newHost(t, 1, func(i *mad.VESWPortInfo) { i.VESW.EthMTU = MaxEthMTU })
	f := frame(mad.VESWMAC(testFabric, testVESW, 2), [6]byte{2}, MaxFrame+1)
	in := ether.Classify(f)
	var d Decision
	for _, n := range []int{MaxEthMTU + 19, MaxFrame, MaxFrame + 1} {
		if s.tx.Decide(f[:n], &in, Cut{1, n, n}, &d) {
			t.Errorf("a frame of %d is sent", n)
		}
	}
	if s.tx.Decide(f[:13], &in, Cut{1, 13, 13}, &d) {
		t.Error("no whole Ethernet header, and sent")
	}
	if c := s.tx.Counters(); c.TxOversize != 3 || c.TxRunt != 1 || c.TxLogic() != 4 || c.Tx.Packets != 0 {
		t.Errorf("%v", some(c.Each))
	}
}

// TestD06_Checks: sizes, P_Key, LIDs and the frame's length are checked (TestReceiveChecks has all of
// them), and no crafted packet makes a length negative.
func TestD06_Checks(t *testing.T) {
	h := newHost(t, 2, nil)
	for size := 24; size <= 96; size += 8 {
		for tail := range 256 {
			for _, becn := range []bool{false, true} {
				p := bytes.Repeat([]byte{0}, size)
				head := wire.Header16{SLID: 1, DLID: 2, Length: uint16(size / 8), BECN: becn, L4: wire.L4Ethernet,
					PKey: testPKey}
				head.Put(p)
				if size > HeaderLen {
					wire.PutEthernet16(p[wire.Header16Len:], testVESW)
				}
				p[size-1] = byte(tail)
				if _, why := wire.Parse16(p, &head); why != wire.OK {
					continue
				}
				var in Inbound
				if ok := h.rx.Receive(&head, p, &in); ok && (len(in.Frame) < MinFrame ||
					len(in.Frame) > size-HeaderLen-TailLen) {
					t.Fatalf("packet of %d with tail %#x: a frame of %d", size, tail, len(in.Frame))
				}
			}
		}
	}
	c := h.rx.Counters(0)
	if c.RxRunt == 0 || h.rx.Unknown().Malformed == 0 || c.Rx.Packets == 0 {
		t.Errorf("%v", some(c.Each))
	}
}

// TestD08_Duplicates: of two entries with one MAC the lowest slot counts, in whatever order they
// came; and masks mean nothing.
func TestD08_Duplicates(t *testing.T) {
	mac := [6]byte{0, 1, 2, 3, 4, 5}
	e := func(lid uint32) []mad.VESWMACEntry {
		return []mad.VESWMACEntry{{MAC: mac, Mask: [6]byte{0xff}, DLIDSD: mad.MakeDLIDSD(lid)}}
	}
	for _, order := range [][]int{{3, 900}, {900, 3}} {
		h := newHost(t, 1, nil)
		for _, slot := range order {
			if err := h.SetMACEntries(0, slot, e(uint32(slot)), 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.SetMACEntries(0, 2000, []mad.VESWMACEntry{{MAC: [6]byte{0, 9, 9, 9, 9, 5},
			DLIDSD: mad.MakeDLIDSD(7)}}, 2); err != nil {
			t.Fatal(err)
		}
		if got := h.dlid(mac); got != 3 {
			t.Errorf("slots in the order %v: LID %d", order, got)
		}
		h.SetMACEntries(0, 3, make([]mad.VESWMACEntry, 1), 3)
		if got := h.dlid(mac); got != 900 {
			t.Errorf("the first is gone: LID %d", got)
		}
		if got := h.dlid([6]byte{0, 1, 2, 3, 4, 4}); got != 0 {
			t.Errorf("a masked MAC leads to %d", got)
		}
	}
}

// TestD09_MACs: the interface gets each MAC that the manager sets, keeps one that its owner set, and
// always has one.
func TestD09_MACs(t *testing.T) {
	h := newHost(t, 1, nil)
	p := h.Port(0)
	base := h.Info(0).Port.BaseMAC
	if p.Device().MAC != base {
		t.Errorf("MAC %x", p.Device().MAC)
	}
	h.Delete(1, 0)
	if got := p.Device().MAC; got != base {
		t.Errorf("MAC %x after Delete", got)
	}
	h.SetInfo(1, 0, info(1))
	own := [6]byte{0, 0x11, 0x22, 0x33, 0x44, 0x55}
	p.SetMAC(1, own)
	h.SetInfo(1, 0, info(1))
	if got := p.Device().MAC; got != own {
		t.Errorf("MAC %x after a Set of the same base MAC", got)
	}
	h.Delete(1, 0)
	if got := p.Device().MAC; got != own {
		t.Errorf("MAC %x after Delete", got)
	}
	i := info(3)
	h.SetInfo(1, 0, i)
	if got := h.a.slots[0].Device().MAC; got != i.Port.BaseMAC {
		t.Errorf("MAC %x, and the manager gave %x", got, i.Port.BaseMAC)
	}
	i.Port.BaseMAC = [6]byte{}
	h.SetInfo(1, 0, i)
	if got := p.Device().MAC; got == ([6]byte{}) {
		t.Error("MAC 0")
	}
}

// TestD10_Remove: a port can go, with its netdev, and its number be another's.
func TestD10_Remove(t *testing.T) {
	h := newHost(t, 2, nil)
	d := Decision{VESW: testVESW, Header: wire.Header16{SLID: 1, DLID: 2, L4: wire.L4Ethernet, PKey: testPKey}}
	d.ready()
	p := seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 60))
	if _, ok := h.take(t, p); !ok {
		t.Fatal("not taken")
	}
	if err := h.Remove(1, 0); err != nil {
		t.Fatal(err)
	}
	if _, ok := h.take(t, p); ok || h.Port(0) != nil || h.rx.Unknown().BadVESW != 1 {
		t.Error("a removed port takes frames")
	}
	if h.dlid(mad.VESWMAC(testFabric, testVESW, 2)) != 0 {
		t.Error("a removed port sends frames")
	}
	if diff := cmp.Diff(mad.DefaultVESWPortInfo(), h.Info(0)); diff != "" {
		t.Error(diff)
	}
	if err := h.SetInfo(1, 0, info(2)); err != nil {
		t.Fatal(err)
	}
	if h.Info(0).Port.McMACsGen != 0 || h.Port(0).Device().Carrier {
		t.Error("a new port has something of the old one")
	}
}

// TestD11_Link: carrier, oper state and link status follow the port of the fabric, and a trap reports
// it.
func TestD11_Link(t *testing.T) {
	h := newHost(t, 1, nil)
	now := mono.Time(1).Add(2 * trapWindow)
	for i, active := range []bool{false, true} {
		h.SetLink(now, active)
		h.SetLink(now, active)
		q, d := h.Info(0).Port, h.Port(0).Device()
		if d.Carrier != active || (q.OperState == mad.VESWForwarding) != active ||
			(q.LinkStatus == mad.VESWLinkUp) != active {
			t.Errorf("active %v: %+v, oper %d", active, d, q.OperState)
		}
		if diff := cmp.Diff([]mad.VEMAOpcode{mad.VEMALinkStatus}, h.drain(now)); diff != "" {
			t.Errorf("change %d: %s", i, diff)
		}
	}
	// A port that was down for another reason has nothing to report.
	h.Port(0).SetAdmin(now, false)
	h.drain(now)
	h.SetLink(now, false)
	if got := h.drain(now); got != nil {
		t.Errorf("%v", got)
	}
}

// TestD12_Traps: nothing is lost for good (TestTrapWindow), and generations move only with contents.
func TestD12_Traps(t *testing.T) {
	h := newHost(t, 1, nil)
	p := h.Port(0)
	now := mono.Time(1).Add(2 * trapWindow)
	uc, mc := [][6]byte{{2, 1}, {2, 2}}, [][6]byte{{1, 1}, {1, 2}}
	expect := func(what string, uGen, mGen uint16, ops ...mad.VEMAOpcode) {
		t.Helper()
		q := h.Info(0).Port
		if q.UcMACsGen != uGen || q.McMACsGen != mGen {
			t.Errorf("%s: generations %d, %d", what, q.UcMACsGen, q.McMACsGen)
		}
		if diff := cmp.Diff(ops, h.drain(now)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		now = now.Add(trapWindow)
	}
	p.SetFilters(now, nil, nil)
	expect("empty lists", 0, 0)
	p.SetFilters(now, uc, mc)
	expect("both lists", 1, 1, mad.VEMAUnicastMACs, mad.VEMAMcastMACs)
	p.SetFilters(now, [][6]byte{{2, 2}, {2, 1}, {2, 2}}, [][6]byte{{1, 2}, {1, 1}})
	expect("in another order", 1, 1)
	p.SetFilters(now, uc, mc[:1])
	expect("one group less", 1, 2, mad.VEMAMcastMACs)
	p.SetFilters(now, uc[:1], mc[:1])
	expect("one MAC less", 2, 2, mad.VEMAUnicastMACs)
	p.SetMAC(now, [6]byte{0, 1})
	expect("another MAC", 3, 2, mad.VEMAUnicastMACs)
	p.SetMAC(now, [6]byte{0, 1})
	expect("the same MAC", 3, 2)
	i := info(1)
	i.VESW.EthMTU, i.Port.ConfigState = 2000, mad.VESWDropAll
	h.SetInfo(now, 0, i)
	expect("the manager's doing", 3, 2)
	i.Port.BaseMAC = [6]byte{2, 9}
	h.SetInfo(now, 0, i)
	expect("the manager's MAC in place of the user's", 4, 2)    // another list, and no trap
	if _, total, _, _ := h.UnicastMACs(0, 0, nil); total != 1 { // the filter
		t.Errorf("%d MACs besides the manager's", total)
	}
	h.Delete(now, 0)
	expect("deleted", 4, 2)
}

// TestD13_Statistics: what was sent and delivered is counted, and what was not is not; the sums are
// right, and each error has one name.
func TestD13_Statistics(t *testing.T) {
	a, b := newHost(t, 1, nil), newHost(t, 2, nil)
	to := mad.VESWMAC(testFabric, testVESW, 2)
	all := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	var octets uint64
	sizes := []int{14, 60, 61, 123, 124, 251, 252, 507, 508, 1019, 1020, 1514, 1515, 1518}
	for i, n := range sizes {
		f := frame(to, [6]byte{2}, n)
		if i%3 == 0 {
			f = frame(all, [6]byte{2}, n)
		}
		if i%2 == 0 && n >= 16 {
			f[12], f[13] = 0x81, 0
		}
		p, _ := a.packet(t, f)
		b.take(t, p)
		octets += uint64(max(n, 60) + 4)
	}
	a.dlid([6]byte{0, 1, 2, 3, 4, 5})
	a.Port(0).SetAdmin(1, false)
	a.dlid(to)
	a.tx.NoRoom(3)
	a.tx.Refused(2)
	want := map[string]uint64{"packets": 14, "bytes": octets, "unicast": 9, "mcastbcast": 5, "untagged": 8, "vlan": 6,
		"64_size": 2, "65_127": 2, "128_255": 2, "256_511": 2, "512_1023": 2, "1024_1518": 2, "1519_max": 2}
	for _, x := range []struct {
		prefix string
		c      Counters
		more   map[string]uint64
	}{
		{"tx_", a.tx.Counters(), map[string]uint64{"tx_errors": 7, "tx_dropped": 7, "tx_dlid_zero": 1,
			"tx_drop_state": 1, "tx_fifo_errors": 3, "tx_carrier_errors": 2}},
		{"rx_", b.rx.Counters(0), nil},
	} {
		all := map[string]uint64{}
		for name, v := range want {
			all[x.prefix+name] = v
		}
		for name, v := range x.more {
			all[name] = v
		}
		if diff := cmp.Diff(all, some(x.c.Each)); diff != "" {
			t.Error(diff)
		}
		var twice Counters
		twice.Add(&x.c)
		twice.Add(&x.c)
		for name, v := range all {
			all[name] = 2 * v
		}
		if diff := cmp.Diff(all, some(twice.Each)); diff != "" {
			t.Errorf("twice: %s", diff)
		}
	}

	// The names and order of the driver's statistics.
	var names []string
	(&Counters{}).Each(func(name string, _ uint64) { names = append(names, name) })
	driver := []string{"rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped",
		"tx_dropped", "tx_unicast", "tx_mcastbcast",
		"tx_untagged", "tx_vlan", "tx_64_size", "tx_65_127", "tx_128_255", "tx_256_511", "tx_512_1023", "tx_1024_1518", "tx_1519_max", "rx_unicast",
		"rx_mcastbcast", "rx_untagged", "rx_vlan", "rx_64_size", "rx_65_127", "rx_128_255", "rx_256_511", "rx_512_1023", "rx_1024_1518", "rx_1519_max",
		"rx_fifo_errors", "rx_length_errors", "tx_fifo_errors", "tx_carrier_errors", "tx_dlid_zero", "tx_drop_state", "rx_drop_state", "rx_oversize", "rx_runt"}
	if diff := cmp.Diff(driver, names[:len(driver)]); diff != "" {
		t.Error(diff)
	}

	// A segment counts as the frames that it is on the wire.
	f := frame(to, [6]byte{2}, 1514)
	info1 := ether.Classify(f)
	var d Decision
	a.Port(0).SetAdmin(1, true)
	a.tx, b.rx = a.Port(0).Sender(), b.a.Receiver()
	cut := Cut{45, 1514, 70}
	if !a.tx.Decide(f, &info1, cut, &d) {
		t.Fatal("not sent")
	}
	a.tx.Sent(&d, cut)
	var in Inbound
	b.rx.Local(&d, f, cut, &in)
	for _, c := range []Traffic{a.tx.Counters().Tx, b.rx.Counters(0).Rx} {
		if c.Packets != 45 || c.Bytes != 44*1518+74 || c.Sizes[5] != 44 || c.Sizes[1] != 1 || c.Unicast != 45 ||
			c.Untagged != 45 {
			t.Errorf("%+v", c)
		}
	}
	b.rx.Lost(0, f, cut)
	if c := b.rx.Counters(0); c.Rx != (Traffic{}) || c.RxFIFOErrors != 45 || c.RxErrors() != 45 {
		t.Errorf("%v", some(c.Each))
	}

	// What the manager reads has the port's number within the VESW, and the same sums.
	ca, cb, u := a.tx.Counters(), b.rx.Counters(0), Unknown{BadVESW: 6}
	ca.Add(&cb)
	i := a.Info(0)
	s, e := ca.Summary(3, &i), ca.Errors(3, &i, &u)
	if s.VPort != 3 || s.VESWID != testVESW || s.PortNum != 1 || s.Values[mad.VESWTxPackets] != 45 ||
		s.Values[mad.VESWTx1024To1518] != 44 || s.Values[mad.VESWTx65To127] != 1 || s.Values[mad.VESWRxErrors] != 45 {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff(mad.VESWErrors{VPort: 3, VESWID: testVESW, PortNum: 1, RxErrors: 45, RxLogic: 45,
		RxBadVESWID: 6}, e); diff != "" {
		t.Error(diff)
	}
}

// TestD18_HostileNode: whatever a node claims, the frames of a VESW in another partition do not reach a port,
// nor do those of a partition that is its own under another VESW.
func TestD18_HostileNode(t *testing.T) {
	victim := newHost(t, 2, nil)
	for _, key := range []ib.PKey{0x8003, 0x0003, 0xffff, 0x7fff, 0, 0x8000, 0x0002} {
		for _, vesw := range []uint16{testVESW, testVESW ^ 1, 0, 0xfff} {
			for _, dlid := range []uint32{2, testGroup} {
				d := Decision{VESW: vesw, Header: wire.Header16{SLID: 1, DLID: dlid, L4: wire.L4Ethernet, PKey: key}}
				d.ready()
				_, ok := victim.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 60)))
				if want := key == 0x0002 && vesw == testVESW; ok != want { // a limited member of this very partition
					t.Errorf("P_Key %#x, VESW %#x: %v", key, vesw, ok)
				}
			}
		}
	}
}

// TestPartitionChanges: a port that changes its partition receives packets of the new one and no
// longer of the old.
func TestPartitionChanges(t *testing.T) {
	h := newHost(t, 2, nil)
	i := h.Info(0)
	i.VESW.PKey = 0x8123
	if err := h.SetInfo(1, 0, &i); err != nil {
		t.Fatal(err)
	}
	for _, key := range []ib.PKey{testPKey, 0x8123} {
		d := Decision{VESW: testVESW, Header: wire.Header16{SLID: 1, DLID: 2, L4: wire.L4Ethernet, PKey: key}}
		d.ready()
		if _, ok := h.take(t, seal(&d, frame([6]byte{2}, [6]byte{2, 1}, 60))); ok != (key == 0x8123) {
			t.Errorf("P_Key %#x: %v", key, ok)
		}
	}
	if _, head := h.packet(t, frame(mad.VESWMAC(testFabric, testVESW, 9), [6]byte{2}, 60)); head.PKey != 0x8123 {
		t.Errorf("sends with %#x", head.PKey)
	}
}

// TestD19_Flood: with the property, frames without a table entry are flooded; by default they are
// dropped and counted.
func TestD19_Flood(t *testing.T) {
	unknown, foreign := [6]byte{0, 1, 2, 3, 4, 5}, [6]byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}
	ours, known := mad.VESWMAC(testFabric, testVESW, 9), [6]byte{0, 7}
	for _, x := range []struct {
		flood, gateway                bool
		unknown, foreign, ours, group uint32
	}{
		{false, false, 0, 0x563412, 9, testGroup},
		{false, true, 77, 0x563412, 9, testGroup},
		{true, false, testGroup, testGroup, 9, testGroup},
		{true, true, 77, testGroup, 9, testGroup},
	} {
		h := newHost(t, 1, func(i *mad.VESWPortInfo) {
			i.VESW.SetFlood(x.flood)
			if x.gateway {
				i.VESW.UcastDLIDs[4], i.VESW.DefaultPortMask = 77, 1<<4
			}
		})
		h.SetMACEntries(0, 0, []mad.VESWMACEntry{{MAC: known, DLIDSD: mad.MakeDLIDSD(8)}}, 1)
		got := []uint32{h.dlid(unknown), h.dlid(foreign), h.dlid(ours), h.dlid([6]byte{1}), h.dlid(known)}
		if diff := cmp.Diff([]uint32{x.unknown, x.foreign, x.ours, x.group, 8}, got); diff != "" {
			t.Errorf("flood %v, gateway %v: %s", x.flood, x.gateway, diff)
		}
	}
	// A flooded frame is a unicast frame, in a packet to a group.
	h := qosHost(t)
	i := h.Info(0)
	i.VESW.SetFlood(true)
	h.SetInfo(1, 0, &i)
	_, head := h.packet(t, frame(unknown, [6]byte{2}, 60))
	if head.DLID != testGroup || head.SC != 12 || h.tx.Counters().Tx.Unicast != 1 {
		t.Errorf("%+v", head)
	}
}

// TestD21_BehindABridge: MACs behind a bridge are reachable if they are reported as filters, if the
// manager distributes them, and if the VESW floods.
func TestD21_BehindABridge(t *testing.T) {
	behind := [6]byte{0x52, 0x54, 0, 1, 2, 3}
	bridge := newHost(t, 2, nil)
	bridge.Port(0).SetFilters(1, [][6]byte{behind}, nil)
	dst := make([][6]byte, 4)
	n, total, _, err := bridge.UnicastMACs(0, 0, dst)
	if err != nil || n != 1 || total != 1 || dst[0] != behind {
		t.Fatalf("%d of %d: %x, %v", n, total, dst, err)
	}
	other := newHost(t, 1, nil)
	if other.dlid(behind) == 2 {
		t.Error("known before it was told")
	}
	other.SetMACEntries(0, 0, []mad.VESWMACEntry{{MAC: dst[0], DLIDSD: mad.MakeDLIDSD(2)}}, 1)
	if got := other.dlid(behind); got != 2 {
		t.Errorf("goes to %d", got)
	}
	p, _ := other.packet(t, frame(behind, [6]byte{2}, 60))
	if in, ok := bridge.take(t, p); !ok || [6]byte(in.Frame) != behind {
		t.Error("the port takes only its own MAC")
	}
}

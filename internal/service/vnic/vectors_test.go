// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

type packetCase struct {
	Name string
	In   struct {
		SLID, DLID uint32
		VESW       uint16 `json:"vesw_id"`
		PKey       uint16
		SC, RC     uint8
		Entropy    uint16
		Frame      hexBytes `json:"eth_frame"`
	}
	Out struct {
		EthLen    int `json:"eth_len_on_wire"`
		Pad       int
		LenQW     int `json:"len_qw"`
		PacketLen int `json:"packet_len"`
		Header    hexBytes
		Packet    hexBytes
		Last8     hexBytes `json:"last8_swcrc1"`
	}
}

// TestPacketVectors makes the packets of the vectors, and takes their frames out of them again.
func TestPacketVectors(t *testing.T) {
	var v struct{ Cases []packetCase }
	vectors(t, &v)
	if len(v.Cases) != 117 {
		t.Fatalf("%d cases", len(v.Cases))
	}
	refused := 0
	for _, x := range v.Cases {
		in, out := &x.In, &x.Out
		d := Decision{VESW: in.VESW, Header: wire.Header16{SLID: in.SLID, DLID: in.DLID, SC: in.SC, RC: in.RC,
			L4:   wire.L4Ethernet,
			PKey: ib.PKey(in.PKey), Entropy: in.Entropy}}
		d.ready()
		p := seal(&d, in.Frame)
		want := append(bytes.Clone(out.Packet[:len(out.Packet)-8]), out.Last8...)
		if !bytes.Equal(p, want) || len(p) != out.PacketLen || PacketLen(len(in.Frame)) != out.PacketLen ||
			!bytes.Equal(p[:HeaderLen], out.Header) {
			t.Errorf("%s: packet\n% x, want\n% x", x.Name, p, want)
			continue
		}
		h := parse(t, p)
		if int(h.Length) != out.LenQW {
			t.Errorf("%s: length %d, want %d", x.Name, h.Length, out.LenQW)
		}

		n := NewNetdevs(1)
		s, err := n.Alloc(7)
		if err != nil {
			t.Fatal(err)
		}
		if isGroup(in.DLID) {
			n.SetLIDs(in.SLID^1, 0)
			if s.SetGroups([]uint32{in.DLID}) != 0 {
				t.Fatal(x.Name, "the group was refused")
			}
		} else {
			n.SetLIDs(in.DLID, 0)
		}
		if err == nil {
			err = s.SetVESW(in.VESW)
		}
		if err != nil {
			t.Fatal(x.Name, err)
		}
		s.Configure(Device{MTU: MaxFrame - frameOverhead, PKey: ib.PKey(in.PKey) | 0x8000})
		s.Up()
		r := n.Receiver()
		var got Inbound
		ok := r.Receive(&h, p, &got)
		c := r.Counters(7)
		if in.PKey&0x7fff == 0 || isGroup(in.DLID) && in.SC == managementSC {
			if ok || c.RxBadPKey+c.RxBadSC != 1 {
				t.Errorf("%s: a packet without a partition, or to a group on SC 15: %v %v", x.Name, ok, some(c.Each))
			}
			refused++
			continue
		}
		sent := append(bytes.Clone(in.Frame), make([]byte, max(0, MinFrame-len(in.Frame)))...)
		if !ok || got.VPort != 7 || !bytes.Equal(got.Frame, sent) || len(got.Frame) != out.EthLen || got.Notify != nil {
			t.Errorf("%s: taken %v, %d octets of %d: %v", x.Name, ok, len(got.Frame), out.EthLen, some(c.Each))
		}
		if c.Rx.Packets != 1 || c.Rx.Bytes != uint64(out.EthLen+fcsLen) {
			t.Errorf("%s: %v", x.Name, some(c.Each))
		}
	}
	if refused != 2 {
		t.Errorf("%d packets that no receiver may take", refused)
	}
}

type decisions struct {
	MAC struct {
		Cases []struct {
			Fabric uint16 `json:"fabric_id"`
			VESW   uint16 `json:"vesw_id"`
			LID    uint32
			MAC    hexBytes
		}
	} `json:"mac_encoding"`
	Entropy struct {
		Cases []struct {
			Hash    uint32
			Entropy uint8
			Flow    uint8 `json:"flow_index"`
		}
	}
	RC struct {
		RC    uint32 `json:"vesw_rc"`
		Cases []struct {
			EtherType uint16
			Proto, RC uint8
		}
	} `json:"rc_select"`
	DLID struct {
		Table []struct {
			Index int
			MAC   hexBytes
			SD    uint32 `json:"dlid_sd"`
		} `json:"mac_table"`
		Mcast uint32                   `json:"u_mcast_dlid"`
		Ucast [mad.VESWGateways]uint32 `json:"u_ucast_dlid"`
		Mask  uint16                   `json:"def_port_mask"`
		Cases []struct {
			Dst     hexBytes
			Entropy uint8
			Mask    *uint16 `json:"def_port_mask"`
			DLID    uint32
		}
	} `json:"dlid_select"`
}

// TestDecisionVectors makes the decisions of the vectors.
func TestDecisionVectors(t *testing.T) {
	var v struct{ Decisions decisions }
	vectors(t, &v)
	all := &v.Decisions
	if len(all.MAC.Cases) != 5 || len(all.Entropy.Cases) != 8 || len(all.RC.Cases) != 7 ||
		len(all.DLID.Cases) != 12 || len(all.DLID.Table) != 4 {
		t.Fatalf("not the vectors that were there: %+v", all)
	}
	for _, x := range all.MAC.Cases {
		h := newHost(t, 0xe00000, func(i *mad.VESWPortInfo) { i.VESW.FabricID, i.VESW.VESWID = x.Fabric, x.VESW })
		if got := mad.VESWMAC(x.Fabric, x.VESW, x.LID); got != x.MAC.mac() {
			t.Errorf("MAC %x, want %x", got, x.MAC)
		}
		if got := h.dlid(x.MAC.mac()); got != x.LID {
			t.Errorf("MAC %x leads to %#x, want %#x", x.MAC, got, x.LID)
		}
	}
	for _, x := range all.Entropy.Cases {
		e := entropyOf(x.Hash)
		if e != x.Entropy || flowSlot(e) != x.Flow {
			t.Errorf("hash %#x: entropy %d in slot %d, want %d in %d", x.Hash, e, flowSlot(e), x.Entropy, x.Flow)
		}
	}
	h := newHost(t, 5, func(i *mad.VESWPortInfo) { i.VESW.RC = all.RC.RC })
	for _, x := range all.RC.Cases {
		for tags := range 2 {
			f := ipFrame(x.EtherType, x.Proto, tags)
			_, head := h.packet(t, f)
			if head.RC != x.RC {
				t.Errorf("EtherType %#x protocol %d, %d tags: RC %d, want %d", x.EtherType, x.Proto, tags, head.RC,
					x.RC)
			}
		}
	}
	entries := make([]mad.VESWMACEntry, 16)
	for _, e := range all.DLID.Table {
		entries[e.Index] = mad.VESWMACEntry{MAC: e.MAC.mac(), DLIDSD: e.SD}
	}
	for _, x := range all.DLID.Cases {
		i := info(5)
		i.VESW.McastDLID, i.VESW.UcastDLIDs, i.VESW.DefaultPortMask = all.DLID.Mcast, all.DLID.Ucast, all.DLID.Mask
		if x.Mask != nil {
			i.VESW.DefaultPortMask = *x.Mask
		}
		// Which hash a frame has is not the vectors' affair: the entropy is given.
		pl := makePlan(i, newMACTable(entries), true)
		mac := x.Dst.mac()
		if got := pl.dlid(macKey(mac), x.Entropy); got != x.DLID {
			t.Errorf("%x, entropy %d: LID %#x, want %#x", mac, x.Entropy, got, x.DLID)
		}
	}
	// The same table, as a manager writes it, and a whole frame.
	h = newHost(t, 5, func(i *mad.VESWPortInfo) { i.VESW.McastDLID = all.DLID.Mcast })
	if err := h.SetMACEntries(0, 0, entries, 1); err != nil {
		t.Fatal(err)
	}
	for _, x := range all.DLID.Cases {
		want := x.DLID
		if x.Dst[0]&3 == 0 && h.Port(0).macs.dlid(macKey(x.Dst.mac())) == 0 {
			want = 0 // there are no default ports
		}
		if got := h.dlid(x.Dst.mac()); got != want {
			t.Errorf("%x: LID %#x, want %#x", x.Dst, got, want)
		}
	}
	if c := h.tx.Counters(); c.TxDLIDZero == 0 || c.TxDLIDZero != c.TxErrors() {
		t.Errorf("%v", some(c.Each))
	}
}

// ipFrame makes a frame of an IP packet, or of the given EtherType.
func ipFrame(etherType uint16, proto uint8, tags int) []byte {
	f := frame([6]byte{2, 0, 0, 9}, [6]byte{2}, 14)[:12]
	for range tags {
		f = append(f, 0x81, 0, 0x60, 1)
	}
	f = append(f, byte(etherType>>8), byte(etherType))
	body := make([]byte, 60)
	switch etherType {
	case ether.TypeIPv4:
		body[0], body[3], body[9], body[32] = 0x45, 60, proto, 0x50
	case ether.TypeIPv6:
		body[0], body[5], body[6], body[52] = 0x60, 20, proto, 0x50
	}
	return append(f, body...)
}

// TestLengths: padding and length of every frame there can be (docs/notes/vesw.md 3).
func TestLengths(t *testing.T) {
	var d Decision
	d.ready()
	for n := 14; n <= MaxFrame; n++ {
		sent := max(n, MinFrame)
		pad := 7 - sent%8
		if got, want := PacketLen(n), HeaderLen+sent+pad+TailLen; got != want || got%8 != 0 || got/8 != sent/8+4 {
			t.Fatalf("frame of %d: packet of %d, want %d", n, got, want)
		}
	}
	if got := PacketLen(MaxFrame); got != wire.MaxPacket16 {
		t.Errorf("the longest packet is %d", got)
	}
	if notifyLen != wire.Len16(wire.Ethernet16Len) {
		t.Error("a notification is a packet without a frame")
	}
}

// segment makes a TCP segment, or a UDP one, of so much payload.
func segment(kind uint8, payload, gso, tags int) (f []byte, o ether.Offload) {
	udp, v6 := kind == ether.GSOUDP, kind == ether.GSOTCPv6
	f = frame([6]byte{2, 0, 0, 9}, [6]byte{2}, 14)[:12]
	for range tags {
		f = append(f, 0x81, 0, 0x60, 1)
	}
	head, proto := 20, byte(6)
	if udp {
		head, proto = 8, 17
	}
	n := head + payload
	if v6 {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, byte(n>>8), byte(n), proto, 64)
		f = append(f, make([]byte, 32)...)
	} else {
		f = append(f, 0x08, 0, 0x45, 0, byte((n+20)>>8), byte(n+20), 0, 0, 0, 0, 64, proto)
		f = append(f, make([]byte, 10)...)
	}
	o = ether.Offload{Flags: ether.NeedsCsum, GSO: kind, GSOSize: uint16(gso), CsumStart: uint16(len(f)),
		CsumOffset: 16}
	t := make([]byte, n)
	if t[12] = 0x50; udp {
		t[12] = 0
		t[4], t[5] = byte(n>>8), byte(n)
		o.CsumOffset = 6
	}
	return append(f, t...), o
}

// TestCut: a Cut is what a Splitter does.
func TestCut(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 3000 {
		kind := []uint8{ether.GSOTCPv4, ether.GSOTCPv6, ether.GSOUDP}[r.IntN(3)]
		mtu := []int{0, 600, 1500, 9000}[r.IntN(4)]
		f, o := segment(kind, 1+r.IntN(60000), 200+r.IntN(9000), r.IntN(3))
		in := ether.Classify(f)
		if why := o.Check(f, &in); why != ether.OK {
			t.Fatalf("kind %d, %d octets: %v", kind, len(f), why)
		}
		var s ether.Splitter
		n, why := s.Start(f, o, &in, mtu)
		if why != ether.OK {
			continue
		}
		got := Cut{Frames: n, Len: s.Len()}
		for range n {
			got.Last = s.Len()
			s.Next(make([]byte, s.Len()))
		}
		want := CutOf(len(f), &o)
		if mtu > 0 {
			want = CutAt(len(f), &o, &in, mtu)
		}
		if got != want {
			t.Fatalf("kind %d, %d octets of %d, MTU %d: %+v, and the Splitter makes %+v", kind, len(f), o.GSOSize,
				mtu, want, got)
		}
	}
	if got := CutOf(77, &ether.Offload{}); got != (Cut{1, 77, 77}) {
		t.Errorf("%+v", got)
	}
	if got := CutAt(77, &ether.Offload{}, &ether.Info{}, 68); got != (Cut{1, 77, 77}) {
		t.Errorf("%+v", got)
	}
}

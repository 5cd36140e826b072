// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// ipoibVector is one entry of ipoib.json; each kind has its own fields.
type ipoibVector struct {
	ID, Kind      string
	Input, Output json.RawMessage
}

func ipoibVectors(t testing.TB, kinds ...string) []ipoibVector {
	t.Helper()
	var f struct{ Vectors []ipoibVector }
	loadJSON(t, "ipoib.json", &f)
	var out []ipoibVector
	for _, v := range f.Vectors {
		if slices.Contains(kinds, v.Kind) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		t.Fatalf("ipoib.json: no vector of kind %v", kinds)
	}
	return out
}

// decode reads input and output of v.
func (v *ipoibVector) decode(t testing.TB, in, out any) {
	t.Helper()
	for _, x := range []struct {
		raw  json.RawMessage
		into any
	}{{v.Input, in}, {v.Output, out}} {
		if err := json.Unmarshal(x.raw, x.into); err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
	}
}

// fullGID is a GID in eight uncompressed groups.
type fullGID ib.GID

func (g *fullGID) UnmarshalText(b []byte) error {
	a, err := netip.ParseAddr(string(b))
	*g = fullGID(a.As16())
	return err
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func sameBytes(t *testing.T, what string, want, got []byte) {
	t.Helper()
	if !bytes.Equal(want, got) {
		t.Errorf("%s:\nwant %x\n got %x", what, want, got)
	}
}

// H-12: ibX_Y_Z with hexadecimal adapter, port and partition.
func TestH12_InterfaceNames(t *testing.T) {
	for _, v := range ipoibVectors(t, "ifname") {
		var in struct {
			CA, Port int
			PKey     num
		}
		var out struct {
			Name   string
			Length int
		}
		v.decode(t, &in, &out)
		diff(t, v.ID, out.Name, IPoIBName(in.CA, in.Port, ib.PKey(in.PKey)))
		diff(t, v.ID, out.Length, len(out.Name))
		ca, port, pkey, err := ParseIPoIBName(out.Name)
		if err != nil || ca != in.CA || port != in.Port || pkey != ib.PKey(in.PKey)|0x8000 {
			t.Errorf("%s: parsed as %d, %d, %#x, %v", v.ID, ca, port, pkey, err)
		}
		if len(out.Name) > 15 {
			t.Errorf("%s: %q is too long for a Linux interface", v.ID, out.Name)
		}
	}
	if _, _, pkey, err := ParseIPoIBName("ib0_1_8014"); err != nil || pkey != 0x8014 {
		t.Errorf("the alias with the membership bit gives %#x, %v", pkey, err)
	}
	for _, bad := range []string{"", "ib", "ib0", "ib0_1", "ib0_1_", "ib0_1_0", "ib0_1_8000", "ib0_1_14_2",
		"eth0_1_14", "ib0_1_G",
		"ib0_100_14", "ib0_1_10014", "ib00_1_14", "ib0_1_0014", "ib0_1_+4", "ib-1_1_14", "IB0_1_14", "ib0_1_1A"} {
		if ca, port, pkey, err := ParseIPoIBName(bad); err == nil {
			t.Errorf("%q parsed as %d, %d, %#x", bad, ca, port, pkey)
		}
	}
}

func FuzzParseIPoIBName(f *testing.F) {
	for _, s := range []string{"ib0_1_14", "iba_1_1", "ib1f_ff_abc", "ib0_1_8014", "ib__"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ca, port, pkey, err := ParseIPoIBName(s)
		if err != nil {
			return
		}
		if ca2, port2, pkey2, err := ParseIPoIBName(IPoIBName(ca, port, pkey)); err != nil || ca2 != ca ||
			port2 != port || pkey2 != pkey {
			t.Errorf("%q does not come back: %d %d %#x %v", s, ca2, port2, pkey2, err)
		}
	})
}

// H-07: flags, queue pair number, GID; equal with and without flags.
func TestH07_HardwareAddress(t *testing.T) {
	for _, v := range ipoibVectors(t, "hwaddr") {
		var in struct {
			Flags, QPN num
			GID        fullGID
		}
		var out struct {
			Hex        hexBytes
			Text       string
			Compressed string   `json:"gid_compressed"`
			RC         bool     `json:"supports_rc"`
			UC         bool     `json:"supports_uc"`
			Key        hexBytes `json:"lookup_key_hex"`
		}
		v.decode(t, &in, &out)
		h := MakeHWAddr(uint8(in.Flags), ib.QPN(in.QPN), ib.GID(in.GID))
		sameBytes(t, v.ID, out.Hex, h[:])
		diff(t, v.ID, out.Text, h.String())
		back, err := ParseHWAddr(strings.ToUpper(out.Text))
		if err != nil || back != h {
			t.Errorf("%s: %q parsed as %v, %v", v.ID, out.Text, back, err)
		}
		key := h.Key()
		sameBytes(t, v.ID, out.Key, key[:])
		diff(t, v.ID, out.RC, h.Flags()&HWFlagRC != 0)
		diff(t, v.ID, out.UC, h.Flags()&HWFlagUC != 0)
		diff(t, v.ID, ib.QPN(in.QPN), h.QPN())
		diff(t, v.ID, ib.GID(in.GID), h.GID())
		diff(t, v.ID, out.Compressed, netip.AddrFrom16(h.GID()).String())
		if !h.Same(key) || !h.Unicast() || h.IsGroup() {
			t.Errorf("%s: the same interface without flags, and a unicast address, want", v.ID)
		}
	}
	other := MakeHWAddr(0, 0x49, ib.GID{0xfe, 0x80, 15: 1})
	if other.Same(MakeHWAddr(0, 0x48, ib.GID{0xfe, 0x80, 15: 1})) {
		t.Error("two queue pairs of a port are one interface")
	}
	// What must never be learned.
	for _, h := range []HWAddr{{}, PseudoBroadcast, GroupHWAddr(BroadcastGID(0x8014, 2)), MakeHWAddr(0, 5, ib.GID{}),
		MakeHWAddr(0, ib.QPNMulticast, ib.GID{0xfe, 0x80, 15: 1}), MakeHWAddr(0, 5, ib.GID{0xff, 0x12})} {
		if h.Unicast() {
			t.Errorf("%v counts as one interface's", h)
		}
	}
	for _, bad := range []string{"", "00", strings.Repeat("00:", 19), strings.Repeat("00:", 19) + "0",
		strings.Repeat("00:", 19) + "000",
		strings.Repeat("00:", 20) + "00", strings.Repeat("0g:", 19) + "00"} {
		if h, err := ParseHWAddr(bad); err == nil {
			t.Errorf("%q parsed as %v", bad, h)
		}
	}
}

func FuzzParseHWAddr(f *testing.F) {
	f.Add(PseudoBroadcast.String())
	f.Add("00:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:1b:2d")
	f.Fuzz(func(t *testing.T, s string) {
		if h, err := ParseHWAddr(s); err == nil && h.String() != strings.ToLower(s) {
			t.Errorf("%q became %v", s, h)
		}
	})
}

func TestLinkLocalVectors(t *testing.T) {
	for _, v := range ipoibVectors(t, "link_local") {
		var in struct {
			GUID hexBytes `json:"port_guid"`
		}
		var out struct{ IPv6 netip.Addr }
		v.decode(t, &in, &out)
		guid := ib.GUID(be.Uint64(in.GUID))
		diff(t, v.ID, out.IPv6, LinkLocal(guid))
		a, id := out.IPv6.As16(), IID(guid)
		sameBytes(t, v.ID, a[8:], id[:])
	}
}

func TestGroupVectors(t *testing.T) {
	n := 0
	for _, v := range ipoibVectors(t, "broadcast_gid", "mcast_v4", "mcast_v6", "bcast_v4") {
		n++
		var in struct {
			PKey, Scope num
			Broadcast   num `json:"broadcast_scope"`
			Group       netip.Addr
		}
		var out struct {
			Hex    hexBytes `json:"mgid_hex"`
			MGID   fullGID
			HWAddr HWAddr
			Pseudo *HWAddr `json:"pseudo_broadcast"`
			QPN    num     `json:"dest_qpn"`
		}
		v.decode(t, &in, &out)
		var got ib.GID
		if in.Group.IsValid() {
			got = GroupGID(in.Group, ib.PKey(in.PKey), uint8(in.Broadcast))
		} else {
			got = BroadcastGID(ib.PKey(in.PKey), uint8(in.Scope|in.Broadcast))
		}
		diff(t, v.ID, ib.GID(out.MGID), got)
		if out.Hex != nil {
			sameBytes(t, v.ID, out.Hex, got[:])
		}
		diff(t, v.ID, out.HWAddr, GroupHWAddr(got))
		if h := GroupHWAddr(got); !h.IsGroup() || h.Unicast() || h.QPN() != ib.QPNMulticast {
			t.Errorf("%s: %v is not a group's", v.ID, h)
		}
		if out.Pseudo != nil {
			diff(t, v.ID, *out.Pseudo, PseudoBroadcast)
		}
		if out.QPN != 0 {
			diff(t, v.ID, ib.QPN(out.QPN), ib.QPNMulticast)
		}
	}
	if n != 22 {
		t.Errorf("%d vectors", n)
	}
	diff(t, "solicited node", netip.MustParseAddr("ff02::1:ff0a:1b2d"),
		SolicitedNode(netip.MustParseAddr("fe80::202:c903:a:1b2d")))
}

// H-16: the IP MTU is the group's less four.
func TestMTUVectors(t *testing.T) {
	for _, v := range ipoibVectors(t, "mtu") {
		var in struct {
			MTU uint8 `json:"mtu_enum"`
		}
		var out struct {
			IB   int  `json:"ib_mtu"`
			IP   int  `json:"ip_mtu"`
			RX   int  `json:"rx_buffer"`
			IPv6 bool `json:"ipv6_allowed"`
		}
		v.decode(t, &in, &out)
		m := ib.MTU(in.MTU)
		diff(t, v.ID, out.IB, m.Bytes())
		diff(t, v.ID, out.IP, IPMTU(m))
		diff(t, v.ID, out.RX, m.Bytes()+GRHLen)
		diff(t, v.ID, out.IPv6, IPMTU(m) >= IPv6MinMTU)
	}
}

// H-15: 44 bytes, destination first.
func TestH15_HardHeader(t *testing.T) {
	for _, v := range ipoibVectors(t, "hard_header") {
		var in struct {
			Dest, Src   HWAddr
			EtherType   num
			PKey, Scope num
		}
		var out struct {
			Header hexBytes `json:"header_hex"`
			Length int
			Mapped HWAddr `json:"mapped_dest"`
		}
		v.decode(t, &in, &out)
		b := dirty(HardHeaderLen + 1)
		PutHardHeader(b, &in.Dest, &in.Src, EtherType(in.EtherType))
		sameBytes(t, v.ID, out.Header, b[:HardHeaderLen])
		if b[HardHeaderLen] != 0xa5 || out.Length != HardHeaderLen {
			t.Errorf("%s: wrote behind the header, or its length is not %d", v.ID, out.Length)
		}
		h := HardHeader(out.Header)
		diff(t, v.ID, in.Dest, h.Dst())
		diff(t, v.ID, in.Src, h.Src())
		diff(t, v.ID, EtherType(in.EtherType), h.Type())
		to := in.Dest
		if to == PseudoBroadcast {
			to = GroupHWAddr(BroadcastGID(ib.PKey(in.PKey), uint8(in.Scope)))
		}
		h.SetDst(&to)
		diff(t, v.ID, out.Mapped, h.Dst())
		diff(t, v.ID, in.Src, h.Src())
	}
}

// verdict is what a resolver's receiver does with a frame before any state matters.
func verdict(b []byte) FrameRefusal {
	t, l3, why := ParseFrame(b)
	if why != FrameOK {
		return why
	}
	switch t {
	case EtherARP:
		var a ARP
		return a.Parse(l3)
	case EtherIPv6:
		if off, ok := ICMPv6(l3); ok && IsND(l3[off]) {
			var n ND
			return n.Parse(l3, off)
		}
	}
	return FrameOK
}

// H-03: the encapsulation header contains the protocol.
func TestH03_VerdictVectors(t *testing.T) {
	for _, v := range ipoibVectors(t, "rx_verdict") {
		var in, out struct {
			Frame           hexBytes `json:"ud_payload_hex"`
			Verdict, Reason string
		}
		v.decode(t, &in, &out)
		got := verdict(in.Frame)
		diff(t, v.ID, out.Reason, got.String())
		diff(t, v.ID, out.Verdict == "accept", got == FrameOK)
	}
}

func TestFrameRefusalNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range FrameRefusal(NumFrameRefusals) {
		if s := r.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("refusal %d is called %q", r, s)
		} else {
			seen[s] = true
		}
	}
	diff(t, "out of range", "unknown", FrameRefusal(NumFrameRefusals).String())
}

func TestH03_ParseFrame(t *testing.T) {
	for s, want := range map[string]FrameRefusal{
		"08000000":     FrameShort,
		"0800000045":   FrameOK,
		"86dd0000":     FrameShort,
		"86dd000045":   FrameVersion,
		"86ddffff60":   FrameOK,
		"08060000":     FrameOK,
		"80350000":     FrameOK,
		"88ca0000":     FrameEtherType,
		"8100000045":   FrameEtherType,
		"":             FrameShort,
		"000000000000": FrameEtherType,
	} {
		b, _ := hex.DecodeString(s)
		if _, _, got := ParseFrame(b); got != want {
			t.Errorf("%q: want %v, got %v", s, want, got)
		}
	}
}

func TestARPVectors(t *testing.T) {
	for _, v := range ipoibVectors(t, "arp_frame") {
		var in struct {
			Op       uint16
			SenderHW HWAddr     `json:"sender_hw"`
			SenderIP netip.Addr `json:"sender_ip"`
			TargetHW HWAddr     `json:"target_hw"`
			TargetIP netip.Addr `json:"target_ip"`
		}
		var out struct {
			Frame  hexBytes `json:"ud_payload_hex"`
			Length int
		}
		v.decode(t, &in, &out)
		want := ARP{Op: in.Op, SenderHW: in.SenderHW, TargetHW: in.TargetHW, SenderIP: in.SenderIP,
			TargetIP: in.TargetIP}
		b := dirty(EncapLen + ARPLen + 1)
		PutEncap(b, EtherARP)
		diff(t, v.ID, ARPLen, want.Put(b[EncapLen:]))
		sameBytes(t, v.ID, out.Frame, b[:len(b)-1])
		if b[len(b)-1] != 0xa5 || out.Length != len(b)-1 {
			t.Errorf("%s: length", v.ID)
		}
		typ, l3, why := ParseFrame(out.Frame)
		var got ARP
		if why != FrameOK || typ != EtherARP || got.Parse(l3) != FrameOK {
			t.Fatalf("%s: refused", v.ID)
		}
		diff(t, v.ID, want, got)
		if got.Parse(append(bytes.Clone(l3), 0, 0)) != FrameOK {
			t.Errorf("%s: refused with bytes behind it", v.ID)
		}
		for i := range out.Frame {
			if why := verdict(out.Frame[:i]); why != FrameShort {
				t.Errorf("%s: %d bytes: %v", v.ID, i, why)
			}
		}
		for at, want := range map[int]FrameRefusal{1: ARPHardwareType, 2: ARPProtocolType, 4: ARPHardwareLen,
			5: ARPProtocolLen} {
			bad := bytes.Clone(l3)
			bad[at] ^= 0x40
			if why := got.Parse(bad); why != want {
				t.Errorf("%s: byte %d wrong: %v", v.ID, at, why)
			}
		}
	}
}

func FuzzARP(f *testing.F) {
	for _, v := range ipoibVectors(f, "arp_frame") {
		var out struct {
			Frame hexBytes `json:"ud_payload_hex"`
		}
		v.decode(f, &struct{}{}, &out)
		f.Add([]byte(out.Frame[EncapLen:]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var a ARP
		if a.Parse(b) != FrameOK {
			return
		}
		again := dirty(ARPLen)
		a.Put(again)
		if !bytes.Equal(again, b[:ARPLen]) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

// PI-1 and H-64: only the family is in host order, which the vector states for
// a little-endian host.
func TestH64_PathInfo(t *testing.T) {
	for _, v := range ipoibVectors(t, "ipoib_path_info") {
		var in struct {
			Family  int
			Address netip.Addr
		}
		var out struct {
			Hex    hexBytes
			Length int
		}
		v.decode(t, &in, &out)
		want := PathInfo{Addr: in.Address, DLID: 0x11, SLID: 5, PKey: 0x8014, SL: 3, MTU: ib.MTU2048, Rate: 7,
			PacketLifetime: 18}
		want.DGID = ib.GIDFromAddr(netip.MustParseAddr("fe80::f452:1403:7b:cba1"))
		want.SGID = ib.GIDFromAddr(netip.MustParseAddr("fe80::2:c903:a:1b2d"))
		b := dirty(PathInfoLen + 1)
		want.Put(b)
		image := native(out.Hex)
		sameBytes(t, v.ID, image, b[:PathInfoLen])
		if b[PathInfoLen] != 0xa5 || out.Length != PathInfoLen {
			t.Errorf("%s: length", v.ID)
		}
		var got PathInfo
		if !got.Parse(image) {
			t.Fatalf("%s: refused", v.ID)
		}
		diff(t, v.ID, want, got)
		diff(t, v.ID, 2048, got.MTUBytes())
		for i := range image {
			if got.Parse(image[:i]) {
				t.Errorf("%s: %d bytes accepted", v.ID, i)
			}
		}
		if got.Parse(append(image, 0)) {
			t.Errorf("%s: 73 bytes accepted", v.ID)
		}
	}
	six := PathInfo{Addr: netip.MustParseAddr("2001:db8::1"), HopLimit: 1, TClass: 2, FlowLabel: 0xfffff}
	b, back := dirty(PathInfoLen), PathInfo{}
	six.Put(b)
	if !back.Parse(b) || back != six || back.MTUBytes() != 0 {
		t.Errorf("%+v came back as %+v", six, back)
	}
	(&PathInfo{}).Put(b)
	if back.Parse(b) {
		t.Error("an image without address accepted")
	}
}

// native turns an image of a little-endian host into one of this host.
func native(b []byte) []byte {
	b = bytes.Clone(b)
	var p PathInfo
	one := make([]byte, PathInfoLen)
	p.Addr = netip.IPv4Unspecified()
	p.Put(one)
	if one[1] == familyIPv4 {
		b[0], b[1] = b[1], b[0]
	}
	return b
}

func FuzzPathInfo(f *testing.F) {
	for _, v := range ipoibVectors(f, "ipoib_path_info") {
		var out struct{ Hex hexBytes }
		v.decode(f, &struct{}{}, &out)
		f.Add([]byte(out.Hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, q PathInfo
		if !p.Parse(b) {
			return
		}
		again := dirty(PathInfoLen)
		p.Put(again)
		if !q.Parse(again) || p != q {
			t.Errorf("%+v became %+v", p, q)
		}
	})
}

// TestIPoIBFrames builds whole packets of the fabric around IPoIB frames.
func TestIPoIBFrames(t *testing.T) {
	arp := map[string]hexBytes{}
	for _, v := range ipoibVectors(t, "arp_frame") {
		var out struct {
			Frame hexBytes `json:"ud_payload_hex"`
		}
		v.decode(t, &struct{}{}, &out)
		arp[v.ID] = out.Frame
	}
	for _, v := range ipoibVectors(t, "ib_frame") {
		var in struct {
			SLID, DLID, SL, VL, PKey num
			DestQPN                  num `json:"dest_qpn"`
			SrcQPN                   num `json:"src_qpn"`
			QKey, PSN                num
			GRH                      *struct {
				SGID, DGID fullGID
				TClass     uint8
				FlowLabel  uint32 `json:"flow_label"`
				HopLimit   uint8  `json:"hop_limit"`
			}
			Payload string
			Bytes   hexBytes `json:"ud_payload_hex"`
		}
		var out struct{ Hex hexBytes }
		v.decode(t, &in, &out)
		payload := in.Bytes
		if in.Payload != "" {
			payload = arp[in.Payload]
		}
		pad := Pad(len(payload))
		h := Headers{Opcode: ib.ServiceUD | ib.SendOnly, PadCnt: uint8(pad), PKey: ib.PKey(in.PKey),
			DestQPN: ib.QPN(in.DestQPN), PSN: ib.PSN(in.PSN),
			QKey: ib.QKey(in.QKey), SrcQPN: ib.QPN(in.SrcQPN)}
		lrh := LRH{VL: uint8(in.VL), SL: uint8(in.SL), LNH: LNHLocal, DLID: ib.LID(in.DLID), SLID: ib.LID(in.SLID)}
		b := dirty(len(out.Hex))
		n := LRHLen
		if in.GRH != nil {
			lrh.LNH = LNHGlobal
			n += GRHLen
		}
		n += h.Put(b[n:])
		n += copy(b[n:], payload)
		clear(b[n : n+pad])
		n += pad
		lrh.PktLen = uint16((n + ICRCLen) / 4)
		lrh.Put(b)
		if in.GRH != nil {
			(&GRH{IPVer: 6, TClass: in.GRH.TClass, FlowLabel: in.GRH.FlowLabel,
				PayLen: uint16(n - LRHLen - GRHLen + ICRCLen), NxtHdr: NxtHdrIBA,
				HopLimit: in.GRH.HopLimit, SGID: ib.GID(in.GRH.SGID), DGID: ib.GID(in.GRH.DGID)}).Put(b[LRHLen:])
		}
		sameBytes(t, v.ID, out.Hex, b[:n])

		var l LRH
		var g GRH
		var back Headers
		tr, why := ParseIB(append(bytes.Clone(out.Hex), make([]byte, ICRCLen+VCRCLen)...), &l, &g)
		if why != OK {
			t.Fatalf("%s: %v", v.ID, why)
		}
		got, why := back.Parse(tr)
		if why != OK {
			t.Fatalf("%s: %v", v.ID, why)
		}
		diff(t, v.ID, lrh, l)
		diff(t, v.ID, h, back)
		sameBytes(t, v.ID, payload, got)
	}
}

func TestConnectedModeVectors(t *testing.T) {
	for _, v := range ipoibVectors(t, "cm_private_data") {
		var in struct {
			QPN num    `json:"ud_qpn"`
			MTU uint32 `json:"receive_mtu"`
		}
		var out struct {
			Hex hexBytes
			IP  uint32 `json:"ip_mtu"`
		}
		v.decode(t, &in, &out)
		b := dirty(CMPrivateLen + 1)
		PutCMPrivate(b, ib.QPN(in.QPN), in.MTU)
		sameBytes(t, v.ID, append(out.Hex, 0xa5), b)
		qpn, mtu, ok := ParseCMPrivate(out.Hex)
		if !ok || qpn != ib.QPN(in.QPN) || mtu != in.MTU || mtu-EncapLen != out.IP {
			t.Errorf("%s: %#x, %d, %v", v.ID, qpn, mtu, ok)
		}
		for i := range out.Hex {
			if _, _, ok := ParseCMPrivate(out.Hex[:i]); ok {
				t.Errorf("%s: %d bytes accepted", v.ID, i)
			}
		}
	}
	if _, _, ok := ParseCMPrivate([]byte{0, 0, 0, 1, 0, 0, 0, 4}); ok {
		t.Error("a receive MTU of 4 leaves no room for a packet")
	}
	for _, v := range ipoibVectors(t, "cm_service_id") {
		var in struct {
			QPN num `json:"ud_qpn"`
		}
		var out struct {
			RFC   num `json:"rfc4755"`
			Linux num `json:"ofed_linux"`
		}
		v.decode(t, &in, &out)
		rfc, linux := CMServiceIDs(ib.QPN(in.QPN))
		diff(t, v.ID, [2]uint64{uint64(out.RFC), uint64(out.Linux)}, [2]uint64{rfc, linux})
	}
}

// Every kind of vector is read by this package or by another.
func TestIPoIBVectorKinds(t *testing.T) {
	var f struct{ Vectors []ipoibVector }
	loadJSON(t, "ipoib.json", &f)
	here := []string{"ifname", "hwaddr", "link_local", "broadcast_gid", "mcast_v4", "bcast_v4", "mcast_v6",
		"arp_frame", "rx_verdict", "nd_frame",
		"hard_header", "ib_frame", "snoop", "cm_private_data", "cm_service_id", "ipoib_path_info", "mtu"}
	ofTheLink := []string{"ud_receive", "sa_mad", "sa_path_response", "shadow_trace", "event_trace", "getpath_trace"}
	if len(f.Vectors) != 87 {
		t.Errorf("%d vectors", len(f.Vectors))
	}
	for _, v := range f.Vectors {
		if !slices.Contains(here, v.Kind) && !slices.Contains(ofTheLink, v.Kind) {
			t.Errorf("%s: nobody tests vectors of kind %s", v.ID, v.Kind)
		}
	}
}

// H-09: addresses are stored whole, without a token in their place.
func TestH09_WholeAddresses(t *testing.T) {
	var h HWAddr
	var whole [20]byte = h
	if len(whole) != HWAddrLen || HardHeaderLen != 2*20+4 {
		t.Error("20 bytes, and 44 of a hard header")
	}
	for i := range h {
		h[i] = byte(i + 1)
	}
	b := make([]byte, HardHeaderLen)
	PutHardHeader(b, &h, &h, EtherARP)
	if hh := HardHeader(b); hh.Dst() != h || hh.Src() != h {
		t.Error("an address is cut in the hard header")
	}
	a, back := ARP{SenderHW: h, TargetHW: h, SenderIP: netip.IPv4Unspecified(),
		TargetIP: netip.IPv4Unspecified()}, ARP{}
	p := make([]byte, ARPLen)
	a.Put(p)
	if back.Parse(p) != FrameOK || back.SenderHW != h || back.TargetHW != h {
		t.Error("an address is cut in ARP")
	}
	if text := h.String(); len(text) != 59 {
		t.Errorf("%q", text)
	}
}

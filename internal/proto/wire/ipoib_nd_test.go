// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft/internal/proto/ib"
)

type ndVector struct {
	id       string
	want     ND
	frame    []byte // from the encapsulation header on
	stripped []byte // of a router's advertisement
}

func ndVectors(t testing.TB) []ndVector {
	var out []ndVector
	for _, v := range ipoibVectors(t, "nd_frame") {
		var in struct {
			Src, Dst     netip.Addr
			Target       *netip.Addr
			SLLAO, TLLAO *HWAddr
			R, S, O      uint8
			MTU          uint32
		}
		var o struct {
			Frame    hexBytes `json:"ud_payload_hex"`
			Length   int
			Stripped hexBytes `json:"stripped_ipv6_hex"`
		}
		v.decode(t, &in, &o)
		if len(o.Frame) != o.Length {
			t.Fatalf("%s: %d bytes, want %d", v.ID, len(o.Frame), o.Length)
		}
		n := ND{Type: o.Frame[EncapLen+ipv6Len], Src: in.Src, Dst: in.Dst, Router: in.R == 1, Solicited: in.S == 1,
			Override: in.O == 1, MTU: in.MTU}
		if in.Target != nil {
			n.Target = *in.Target
		}
		for _, hw := range []*HWAddr{in.SLLAO, in.TLLAO} {
			if hw != nil {
				n.Link, n.HasLink = *hw, true
			}
		}
		out = append(out, ndVector{v.ID, n, o.Frame, o.Stripped})
	}
	if len(out) != 6 {
		t.Fatalf("%d vectors", len(out))
	}
	return out
}

func TestNDVectors(t *testing.T) {
	for _, v := range ndVectors(t) {
		t.Run(v.id, func(t *testing.T) {
			typ, p, why := ParseFrame(v.frame)
			off, ok := ICMPv6(p)
			if why != FrameOK || typ != EtherIPv6 || !ok || off != ipv6Len || !IsND(p[off]) {
				t.Fatalf("not recognised: %v %#x %d %v", why, typ, off, ok)
			}
			var got ND
			if why := got.Parse(p, off); why != FrameOK {
				t.Fatal(why)
			}
			diff(t, "parsed", v.want, got)
			if v.want.Type != NDRouterAdvert {
				b := dirty(EncapLen + MaxNDLen + 1)
				PutEncap(b, EtherIPv6)
				n := v.want.Put(b[EncapLen:])
				sameBytes(t, "built", v.frame, b[:EncapLen+n])
				if b[EncapLen+n] != 0xa5 {
					t.Error("wrote behind the message")
				}
			}
			// Every truncation: as a short buffer, and as a message that is short.
			for i := range p {
				cut := p[:i]
				if off, ok := ICMPv6(cut); ok {
					if why := got.Parse(cut, off); why != FrameShort {
						t.Errorf("%d bytes: %v", i, why)
					}
				}
				if i < ipv6Len+4 {
					continue
				}
				short := bytes.Clone(p)
				be.PutUint16(short[4:], uint16(i-ipv6Len))
				sealICMPv6(short[:i], ipv6Len)
				if why := got.Parse(short, ipv6Len); why == FrameOK && got.HasLink && i < len(p) && v.stripped == nil {
					t.Errorf("accepted with a link-layer address at %d of %d bytes", i, len(p))
				}
			}
			// Bytes behind what IPv6 states are not looked at.
			if why := got.Parse(append(bytes.Clone(p), dirty(9)...), off); why != FrameOK {
				t.Errorf("with bytes behind: %v", why)
			}
			// A wrong bit anywhere but in the ignored fields is refused.
			for i := 8; i < len(p); i++ {
				bad := bytes.Clone(p)
				bad[i] ^= 0x10
				if why := got.Parse(bad, off); why == FrameOK {
					t.Errorf("byte %d wrong and accepted", i)
				}
			}
		})
	}
}

// resealed returns p changed by f, with a right checksum.
func resealed(p []byte, f func(p []byte)) []byte {
	p = bytes.Clone(p)
	f(p)
	sealICMPv6(p, ipv6Len)
	return p
}

func TestNDRefusals(t *testing.T) {
	a, b := netip.MustParseAddr("fe80::202:c903:a:1b2d"), netip.MustParseAddr("fe80::f652:1403:7b:cba1")
	group := netip.MustParseAddr("ff02::1")
	global := netip.MustParseAddr("2001:db8::1")
	hw := MakeHWAddr(0, 0x48, ib.GID{0xfe, 0x80, 15: 1})
	zero := netip.IPv6Unspecified()
	for _, c := range []struct {
		name string
		n    ND
		want FrameRefusal
	}{
		{"solicitation", ND{Type: NDNeighborSolicit, Src: a, Dst: b, Target: b}, FrameOK},
		{"solicitation for a group", ND{Type: NDNeighborSolicit, Src: a, Dst: b, Target: group}, NDTarget},
		{"solicitation for nobody", ND{Type: NDNeighborSolicit, Src: a, Dst: b, Target: zero}, NDTarget},
		{"solicitation from a group", ND{Type: NDNeighborSolicit, Src: group, Dst: b, Target: b}, NDSource},
		{"detection", ND{Type: NDNeighborSolicit, Src: zero, Dst: SolicitedNode(b), Target: b}, FrameOK},
		{"detection with an address", ND{Type: NDNeighborSolicit, Src: zero, Dst: SolicitedNode(b), Target: b,
			Link: hw, HasLink: true}, NDSource},
		{"detection to another group", ND{Type: NDNeighborSolicit, Src: zero, Dst: group, Target: b}, NDTarget},
		{"advertisement", ND{Type: NDNeighborAdvert, Src: b, Dst: group, Target: b}, FrameOK},
		{"advertisement of a group", ND{Type: NDNeighborAdvert, Src: b, Dst: a, Target: group}, NDTarget},
		{"solicited by a group", ND{Type: NDNeighborAdvert, Src: b, Dst: group, Target: b, Solicited: true}, NDTarget},
		{"advertisement by nobody", ND{Type: NDNeighborAdvert, Src: zero, Dst: a, Target: b}, NDSource},
		{"group's hardware address", ND{Type: NDNeighborAdvert, Src: b, Dst: a, Target: b,
			Link: GroupHWAddr(BroadcastGID(1, 2)), HasLink: true}, NDLinkAddr},
		{"no hardware address", ND{Type: NDNeighborAdvert, Src: b, Dst: a, Target: b, HasLink: true}, NDLinkAddr},
		{"router solicitation from nobody", ND{Type: NDRouterSolicit, Src: zero, Dst: group}, FrameOK},
		{"the same with an address", ND{Type: NDRouterSolicit, Src: zero, Dst: group, Link: hw, HasLink: true},
			NDSource},
		{"redirect", ND{Type: NDRedirect, Src: a, Dst: b, Target: a, Dest: global, Link: hw, HasLink: true}, FrameOK},
		{"redirect to an on-link host", ND{Type: NDRedirect, Src: a, Dst: b, Target: global, Dest: global}, FrameOK},
		{"redirect to a far router", ND{Type: NDRedirect, Src: a, Dst: b, Target: global, Dest: b}, NDTarget},
		{"redirect of a group", ND{Type: NDRedirect, Src: a, Dst: b, Target: a, Dest: group}, NDTarget},
		{"redirect from afar", ND{Type: NDRedirect, Src: global, Dst: b, Target: a, Dest: global}, NDSource},
	} {
		p := dirty(MaxNDLen)
		p = p[:c.n.Put(p)]
		var got ND
		if why := got.Parse(p, ipv6Len); why != c.want {
			t.Errorf("%s: want %v, got %v", c.name, c.want, why)
		} else if why == FrameOK {
			diff(t, c.name, c.n, got)
		}
	}

	var ra []byte
	for _, v := range ndVectors(t) {
		if v.want.Type == NDRouterAdvert {
			ra = v.frame[EncapLen:]
		}
	}
	var n ND
	if why := n.Parse(resealed(ra, func(p []byte) { p[8] = 0x20 }), ipv6Len); why != NDSource {
		t.Errorf("advertisement of a router from a global address: %v", why)
	}
	if why := n.Parse(resealed(ra, func(p []byte) { p[ipv6Len+1] = 1 }), ipv6Len); why != NDCode {
		t.Errorf("code 1: %v", why)
	}
	// An Ethernet-sized option is as good as none in a router's message.
	odd := resealed(ra, func(p []byte) { p[ipv6Len+16] = 9 })
	if why := n.Parse(odd, ipv6Len); why != FrameOK || n.HasLink || n.MTU != 2044 {
		t.Errorf("without a Source option: %v %+v", why, n)
	}
}

func TestPutSourceLink(t *testing.T) {
	for _, v := range ndVectors(t) {
		p := v.frame[EncapLen:]
		switch v.want.Type {
		case NDRouterAdvert:
			got := dirty(len(p))
			sameBytes(t, "stripped", v.stripped, got[:PutSourceLink(got, p, ipv6Len, nil)])
			b := bytes.Clone(p)
			sameBytes(t, "stripped in place", v.stripped, b[:PutSourceLink(b, b, ipv6Len, nil)])
			got = dirty(len(v.stripped) + SourceLinkRoom)
			sameBytes(t, "added", p, got[:PutSourceLink(got, v.stripped, ipv6Len, &v.want.Link)])
		case NDRouterSolicit:
			bare := bytes.Clone(p)
			bare = bare[:PutSourceLink(bare, bare, ipv6Len, nil)]
			if len(bare) != ipv6Len+8 {
				t.Fatalf("%d bytes without option", len(bare))
			}
			got := dirty(len(p))
			sameBytes(t, "added", p, got[:PutSourceLink(got, bare, ipv6Len, &v.want.Link)])
			// In the place of what the stack made of it.
			other := v.want
			other.Link = MakeHWAddr(0, 7, ib.GID{0xfe, 0x80})
			wrong := dirty(MaxNDLen)
			wrong = wrong[:other.Put(wrong)]
			got = dirty(len(p))
			sameBytes(t, "replaced", p, got[:PutSourceLink(got, wrong, ipv6Len, &v.want.Link)])
		}
	}
}

// behind puts extension headers of the given kinds, all their options padding,
// in front of the payload of p.
func behind(p []byte, kinds ...byte) []byte {
	out := bytes.Clone(p[:ipv6Len])
	next := p[6]
	for i, k := range kinds {
		if i == 0 {
			out[6] = k
		}
		follows := next
		if i+1 < len(kinds) {
			follows = kinds[i+1]
		}
		out = append(out, follows, 0, 1, 4, 0, 0, 0, 0)
	}
	out = append(out, p[ipv6Len:]...)
	be.PutUint16(out[4:], uint16(len(out)-ipv6Len))
	return out
}

func TestICMPv6ExtensionHeaders(t *testing.T) {
	p := ndVectors(t)[0].frame[EncapLen:]
	for n := range maxExtHeaders + 2 {
		kinds := bytes.Repeat([]byte{protoDestOpts}, n)
		if n > 0 {
			kinds[0] = protoHopByHop
		}
		q := behind(p, kinds...)
		off, ok := ICMPv6(q)
		if want := n < maxExtHeaders; ok != want || ok && off != ipv6Len+8*n {
			t.Errorf("%d headers: %d, %v", n, off, ok)
		}
		var nd ND
		if ok {
			if why := nd.Parse(q, off); why != FrameOK {
				t.Errorf("%d headers: %v", n, why)
			}
			for i := range q {
				if off, ok := ICMPv6(q[:i]); ok && nd.Parse(q[:i], off) == FrameOK {
					t.Errorf("%d headers, %d bytes: accepted", n, i)
				}
			}
		}
	}
	if _, ok := ICMPv6(behind(p, 44)); ok {
		t.Error("a fragment is no neighbor discovery (RFC 6980)")
	}
}

func FuzzND(f *testing.F) {
	for _, v := range ndVectors(f) {
		f.Add([]byte(v.frame[EncapLen:]))
		f.Add(behind(v.frame[EncapLen:], protoHopByHop, protoDestOpts))
	}
	hw := MakeHWAddr(0x80, 0x48, ib.GID{0xfe, 0x80, 15: 1})
	f.Fuzz(func(t *testing.T, p []byte) {
		off, ok := ICMPv6(p)
		if !ok || !IsND(p[off]) {
			return
		}
		// The checksum keeps a fuzzer out: let it through half of the time.
		if total := ipv6Len + int(be.Uint16(p[4:])); total <= len(p) && len(p)&1 == 0 {
			p = bytes.Clone(p)
			sealICMPv6(p[:total], off)
		}
		var n, again ND
		if n.Parse(p, off) != FrameOK {
			return
		}
		if n.Type == NDRouterSolicit || n.Type == NDRouterAdvert {
			b := dirty(len(p) + SourceLinkRoom)
			b = b[:PutSourceLink(b, p, off, &hw)]
			if why := again.Parse(b, off); why != FrameOK && n.Src.IsValid() && !n.Src.IsUnspecified() ||
				why == FrameOK && again.Link != hw {
				t.Errorf("with an option: %v, %+v", why, again)
			}
			b = b[:PutSourceLink(b, b, off, nil)]
			if why := again.Parse(b, off); why != FrameOK || again.HasLink {
				t.Errorf("stripped: %v, %+v", why, again)
			}
		}
		if n.Type != NDRouterAdvert {
			b := dirty(MaxNDLen)
			b = b[:n.Put(b)]
			if why := again.Parse(b, ipv6Len); why != FrameOK || again != n {
				t.Errorf("%+v became %+v, %v", n, again, why)
			}
		}
	})
}

// H-33: what an IP stack reports is what the multicast list learns.
func TestH33_ReportVectors(t *testing.T) {
	type group struct {
		Group netip.Addr
		MGID  fullGID
	}
	for _, v := range ipoibVectors(t, "snoop") {
		var in struct {
			Packet hexBytes `json:"ip_packet_hex"`
			PKey   num
			Scope  uint8 `json:"broadcast_scope"`
		}
		var out struct{ Join, Leave []group }
		v.decode(t, &in, &out)
		var want []GroupReport
		for _, g := range out.Join {
			want = append(want, GroupReport{g.Group, true})
			diff(t, v.ID, ib.GID(g.MGID), GroupGID(g.Group, ib.PKey(in.PKey), in.Scope))
		}
		for _, g := range out.Leave {
			want = append(want, GroupReport{g.Group, false})
			diff(t, v.ID, ib.GID(g.MGID), GroupGID(g.Group, ib.PKey(in.PKey), in.Scope))
		}
		got, ok := AppendReports(nil, in.Packet)
		if !ok {
			t.Errorf("%s: malformed", v.ID)
		}
		diff(t, v.ID, want, got)
		for i := range in.Packet {
			if got, _ := AppendReports(nil, in.Packet[:i]); len(got) > 0 {
				t.Errorf("%s: %d bytes report %v", v.ID, i, got)
			}
		}
		bad := bytes.Clone(in.Packet)
		bad[len(bad)-1] ^= 1
		if got, ok := AppendReports(nil, bad); ok || len(got) > 0 {
			t.Errorf("%s: wrong checksum: %v, %v", v.ID, got, ok)
		}
	}
}

// record is one record of IGMPv3 or MLDv2 with n sources.
func record(typ byte, group netip.Addr, n int) []byte {
	b := append([]byte{typ, 0, 0, byte(n)}, group.AsSlice()...)
	return append(b, make([]byte, n*group.BitLen()/8)...)
}

func igmp(typ byte, n int, records ...[]byte) []byte {
	p := make([]byte, ipv4Len)
	p[0], p[9] = 0x45, protoIGMP
	p = append(p, typ, 0, 0, 0, 0, 0, 0, byte(n))
	p = append(p, slices.Concat(records...)...)
	be.PutUint16(p[2:], uint16(len(p)))
	be.PutUint16(p[ipv4Len+2:], fold(sum(0, p[ipv4Len:])))
	return p
}

func mld(typ byte, n int, records ...[]byte) []byte {
	p := make([]byte, ipv6Len)
	p[0], p[6] = 0x60, protoICMPv6
	p = append(p, typ, 0, 0, 0, 0, 0, 0, byte(n))
	p = append(p, slices.Concat(records...)...)
	be.PutUint16(p[4:], uint16(len(p)-ipv6Len))
	sealICMPv6(p, ipv6Len)
	return behind(p, protoHopByHop)
}

func TestReportRecords(t *testing.T) {
	g4, g6 := netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("ff15::1234")
	join, leave := true, false
	for _, c := range []struct {
		typ     byte
		sources int
		want    *bool
	}{{1, 0, nil}, {1, 2, &join}, {2, 0, &join}, {2, 3, &join}, {3, 0, &leave}, {3, 1, &join}, {4, 0, &join}, {4, 1,
		&join},
		{5, 0, nil}, {5, 1, &join}, {6, 0, nil}, {6, 2, nil}, {0, 1, nil}, {7, 1, nil}} {
		t.Run(fmt.Sprintf("type %d with %d sources", c.typ, c.sources), func(t *testing.T) {
			for _, p := range [][]byte{igmp(igmpReportV3, 1, record(c.typ, g4, c.sources)),
				mld(mldReportV2, 1, record(c.typ, g6, c.sources))} {
				got, ok := AppendReports(nil, p)
				if !ok {
					t.Fatal("malformed")
				}
				if c.want == nil {
					if len(got) > 0 {
						t.Errorf("reports %v", got)
					}
				} else if len(got) != 1 || got[0].Join != *c.want || got[0].Group != g4 && got[0].Group != g6 {
					t.Errorf("reports %v", got)
				}
			}
		})
	}
	for name, p := range map[string][]byte{
		"more records than bytes": igmp(igmpReportV3, 2, record(2, g4, 0)),
		"more sources than bytes": igmp(igmpReportV3, 1, record(2, g4, 1)[:10]),
		"unicast group":           igmp(igmpReportV3, 1, record(2, netip.MustParseAddr("10.0.0.1"), 0)),
		"second group is no group": igmp(igmpReportV3, 2, record(2, g4, 0), record(2, netip.MustParseAddr("10.0.0.1"),
			0)),
		"MLD, more records":    mld(mldReportV2, 255, record(2, g6, 0)),
		"MLD, mapped group":    mld(mldReportV2, 1, record(2, netip.MustParseAddr("::ffff:239.1.2.3"), 0)),
		"MLD, short version 1": mld(mldReportV1, 0, make([]byte, 15)),
	} {
		if got, ok := AppendReports(nil, p); ok || len(got) > 0 {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	for name, p := range map[string][]byte{
		"a query":          igmp(0x11, 0),
		"MLD's query":      mld(130, 0, make([]byte, 16)),
		"an echo":          mld(128, 0),
		"nothing":          nil,
		"UDP":              {0: 0x45, 9: protoUDP, 19: 0},
		"a fragmented one": func() []byte { p := igmp(igmpReportV3, 1, record(2, g4, 0)); p[6] = 0x20; return p }(),
	} {
		if got, ok := AppendReports(nil, p); !ok || len(got) > 0 {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	p := igmp(igmpReportV3, 2, record(2, g4, 0), record(3, g4, 0))
	buf := make([]GroupReport, 0, 8)
	if n := testing.AllocsPerRun(100, func() { buf, _ = AppendReports(buf[:0], p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	diff(t, "in order", []GroupReport{{g4, true}, {g4, false}}, buf)
}

// Golden bytes: the layouts of RFC 3376, 4.1 and RFC 3810, 5.1, written by
// hand; Linux 6.18 answered both with reports of its groups.
func TestPutGroupQuery(t *testing.T) {
	for typ, want := range map[EtherType]string{
		EtherIPv4: "46c00024000000000102441300000000" + "e0000001" + "94040000" + "1101ec8100000000" + "027d0000",
		EtherIPv6: "6000000000240001" + "fe800000000000000000000000000001" + "ff020000000000000000000000000001" +
			"3a00050200000100" + "82007d4200640000" + strings.Repeat("00", 16) + "027d0000",
	} {
		b := dirty(GroupQueryLen + 1)
		n := PutGroupQuery(b, typ)
		golden, err := hex.DecodeString(want)
		if err != nil {
			t.Fatal(err)
		}
		sameBytes(t, "query", golden, b[:n])
		if b[n] != 0xa5 {
			t.Error("wrote behind the query")
		}
		if r, ok := AppendReports(nil, b[:n]); !ok || len(r) > 0 {
			t.Errorf("%v, %v", r, ok)
		}
	}
}

func FuzzReports(f *testing.F) {
	for _, v := range ipoibVectors(f, "snoop") {
		var in struct {
			Packet hexBytes `json:"ip_packet_hex"`
		}
		v.decode(f, &in, &struct{}{})
		f.Add([]byte(in.Packet))
	}
	f.Add(mld(mldReportV2, 2, record(2, netip.MustParseAddr("ff15::1"), 3), record(3, netip.MustParseAddr("ff15::2"),
		0)))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p)&1 == 0 && MayReport(p) { // let half of them past the checksum
			p = bytes.Clone(p)
			if hl := int(p[0]&0xf) * 4; p[0]>>4 == 4 && hl >= ipv4Len && int(be.Uint16(p[2:])) >= hl+8 &&
				int(be.Uint16(p[2:])) <= len(p) {
				m := p[hl:be.Uint16(p[2:])]
				m[2], m[3] = 0, 0
				be.PutUint16(m[2:], fold(sum(0, m)))
			} else if off, ok := ICMPv6(p); p[0]>>4 == 6 && ok && ipv6Len+int(be.Uint16(p[4:])) <= len(p) {
				sealICMPv6(p[:ipv6Len+int(be.Uint16(p[4:]))], off)
			}
		}
		r, ok := AppendReports([]GroupReport{{}}, p)
		if !ok && len(r) != 1 || len(r) == 0 || len(r) > 1+len(p)/8 {
			t.Errorf("%d reports of %d bytes, ok %v", len(r), len(p), ok)
		}
		for _, x := range r[1:] {
			if !x.Group.IsMulticast() {
				t.Errorf("reports %v", x.Group)
			}
			GroupGID(x.Group, 0xffff, 2)
		}
	})
}

func TestPutICMPError(t *testing.T) {
	router4, router6 := netip.MustParseAddr("10.20.0.254"), netip.MustParseAddr("fe80::1")
	four := func(f func(p []byte)) []byte {
		p := make([]byte, 700)
		copy(p, []byte{0x45, 0, 2, 188, 0, 1, 0x40, 0, 64, protoUDP, 0, 0, 10, 20, 0, 1, 10, 20, 0, 2, 1, 2, 3, 4})
		f(p)
		return p
	}
	six := func(f func(p []byte)) []byte {
		p := make([]byte, 2000)
		putIPv6(p, netip.MustParseAddr("fe80::a"), netip.MustParseAddr("fe80::b"), 64, 1960)
		p[6] = protoUDP
		f(p)
		return p
	}
	none := func([]byte) {}
	for _, c := range []struct {
		name string
		p    []byte
		from netip.Addr
		mtu  int
		want []byte // type, code, four bytes behind the checksum; nil: no error
	}{
		{"host", four(none), router4, 0, []byte{3, 1, 0, 0, 0, 0}},
		{"too big", four(none), router4, 2044, []byte{3, 4, 0, 0, 7, 0xfc}},
		{"address", six(none), router6, 0, []byte{1, 3, 0, 0, 0, 0}},
		{"too big for IPv6", six(none), router6, 2044, []byte{2, 0, 0, 0, 7, 0xfc}},
		{"too big for a group", six(func(p []byte) { p[24], p[25] = 0xff, 2 }), router6, 2044,
			[]byte{2, 0, 0, 0, 7, 0xfc}},
		{"group not there", six(func(p []byte) { p[24] = 0xff }), router6, 0, nil},
		{"IPv4 group", four(func(p []byte) { p[16] = 239 }), router4, 2044, nil},
		{"broadcast", four(func(p []byte) { copy(p[16:], []byte{255, 255, 255, 255}) }), router4, 2044, nil},
		{"from nobody", four(func(p []byte) { clear(p[12:16]) }), router4, 0, nil},
		{"IPv6 from nobody", six(func(p []byte) { clear(p[8:24]) }), router6, 0, nil},
		{"later fragment", four(func(p []byte) { p[7] = 1 }), router4, 0, nil},
		{"first fragment", four(func(p []byte) { p[6] = 0x20 }), router4, 0, []byte{3, 1, 0, 0, 0, 0}},
		{"error about an error", four(func(p []byte) { p[9], p[20] = protoICMPv4, 3 }), router4, 0, nil},
		{"echo", four(func(p []byte) { p[9], p[20] = protoICMPv4, 8 }), router4, 0, []byte{3, 1, 0, 0, 0, 0}},
		{"IPv6 error", six(func(p []byte) { p[6], p[40] = protoICMPv6, 1 }), router6, 0, nil},
		{"redirect", six(func(p []byte) { p[6], p[40] = protoICMPv6, NDRedirect }), router6, 0, nil},
		{"IPv6 echo", six(func(p []byte) { p[6], p[40] = protoICMPv6, 128 }), router6, 0, []byte{1, 3, 0, 0, 0, 0}},
		{"later IPv6 fragment", six(func(p []byte) { p[6], p[43] = 44, 8 }), router6, 0, nil},
		{"header length", four(func(p []byte) { p[0] = 0x44 }), router4, 0, nil},
		{"families", four(none), router6, 0, nil},
		{"short", []byte{0x45, 0}, router4, 0, nil},
		{"empty", nil, router4, 0, nil},
	} {
		b := dirty(ICMPErrorLen)
		n := PutICMPError(b, c.p, c.from, c.mtu)
		if (n != 0) != (c.want != nil) {
			t.Errorf("%s: %d bytes", c.name, n)
			continue
		}
		if n == 0 {
			continue
		}
		b = b[:n]
		var m []byte
		if c.from.Is4() {
			m = b[ipv4Len:]
			if sum16(b) != 0xffff || fold(sum(0, m)) != 0 || int(be.Uint16(b[2:])) != n || n > icmpv4ErrorLen {
				t.Errorf("%s: checksums or length of %x", c.name, b)
			}
			sameBytes(t, c.name, c.p[12:16], b[16:20])
			sameBytes(t, c.name, c.from.AsSlice(), b[12:16])
		} else {
			m = b[ipv6Len:]
			if checksumICMPv6(b, ipv6Len) != 0 || int(be.Uint16(b[4:]))+ipv6Len != n || n > IPv6MinMTU {
				t.Errorf("%s: checksum or length of %x", c.name, b)
			}
			sameBytes(t, c.name, c.p[8:24], b[24:40])
			sameBytes(t, c.name, c.from.AsSlice(), b[8:24])
		}
		sameBytes(t, c.name, c.want, append(append([]byte{}, m[:2]...), m[4:8]...))
		sameBytes(t, c.name, c.p[:len(m)-8], m[8:])
	}
	// No error is answered with an error.
	b, e := make([]byte, ICMPErrorLen), make([]byte, ICMPErrorLen)
	for _, p := range [][]byte{four(none), six(none)} {
		from := router4
		if p[0]>>4 == 6 {
			from = router6
		}
		n := PutICMPError(b, p, from, 0)
		if n == 0 || PutICMPError(e, b[:n], netip.MustParseAddr("10.20.0.7"), 0)+PutICMPError(e, b[:n],
			netip.MustParseAddr("fe80::7"), 0) != 0 {
			t.Error("an error answered")
		}
	}
}

func FuzzICMPError(f *testing.F) {
	for _, v := range ndVectors(f) {
		f.Add([]byte(v.frame[EncapLen:]), 0)
	}
	f.Add([]byte{0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, protoUDP, 0, 0, 10, 20, 0, 1, 10, 20, 0, 2, 1, 2, 3, 4, 5, 6, 7,
		8}, 1500)
	f.Fuzz(func(t *testing.T, p []byte, mtu int) {
		b := make([]byte, ICMPErrorLen)
		for _, from := range []netip.Addr{netip.MustParseAddr("10.20.0.254"), netip.MustParseAddr("fe80::1")} {
			n := PutICMPError(b, p, from, mtu)
			if n < 0 || n > ICMPErrorLen || n > 0 && (b[0]>>4 != p[0]>>4 || from.Is4() != (p[0]>>4 == 4)) {
				t.Errorf("%d bytes: %x", n, b[:max(n, 0)])
			}
		}
	})
}

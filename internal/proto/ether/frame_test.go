// SPDX-License-Identifier: Apache-2.0

package ether

import (
	"bytes"
	"encoding/hex"
	"math/bits"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unhex decodes hexadecimal with spaces.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Frames written out by hand, after IEEE 802.3, 802.1Q, RFC 791, 8200, 768 and 9293.
const (
	macs  = "02aabbccdd01 02aabbccdd02 "
	tcpv4 = macs + "0800 4500002c 12344000 40060000 0a000001 0a000002 1f90 0050 00000001 00000002 " +
		"5010 0100 0000 0000 61626364"
	udpv4  = macs + "0800 45000020 00010000 40110000 0a000001 0a000002 1111 2222 000c 0000 61626364"
	tagged = macs + "8100 a064 0800 45000020 00010000 40110000 0a000001 0a000002 1111 2222 000c 0000 61626364"
	qinq   = macs + "88a8 6005 8100 e006 86dd 60000000 000c 1140 20010db8000000000000000000000001 " +
		"20010db8000000000000000000000002 1111 2222 000c 0000 61626364"
	tcpv6 = macs + "86dd 60000000 0018 0640 20010db8000000000000000000000001 " +
		"20010db8000000000000000000000002 1f90 0050 00000001 00000002 5018 0100 0000 0000 61626364"
	hopv6 = macs + "86dd 60000000 0020 0040 20010db8000000000000000000000001 " +
		"20010db8000000000000000000000002 0600050200000100 1f90 0050 00000001 00000002 5018 0100 0000 0000 61626364"
	fragv4 = macs + "0800 45000020 00012000 40110000 0a000001 0a000002 1111 2222 000c 0000 61626364"
	lastv4 = macs + "0800 45000018 00010002 40110000 0a000001 0a000002 65666768"
	fragv6 = macs + "86dd 60000000 0010 2c40 20010db8000000000000000000000001 " +
		"20010db8000000000000000000000002 1100000100000001 6162636465666768"
	optsv4  = macs + "0800 46000024 00010000 40110000 0a000001 0a000002 01010100 1111 2222 000c 0000 61626364"
	icmp    = macs + "0800 4500001c 00010000 40010000 0a000001 0a000002 08000000 00010001"
	routev6 = macs + "86dd 60000000 0020 2b40 20010db8000000000000000000000001 " +
		"20010db8000000000000000000000002 0600050200000100 1f90 0050 00000001 00000002 5018 0100 0000 0000 61626364"
	arp = "ffffffffffff 02aabbccdd02 0806 0001 0800 06 04 0001 02aabbccdd02 0a000002 000000000000 0a000001"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		name, frame string
		want        Info
	}{
		{"tcp4", tcpv4, Info{Kind: IPv4TCP, Proto: 6, EtherType: 0x800, L3: 14, L4: 34, Payload: 54, End: 58}},
		{"padded", tcpv4 + "a5a5", Info{Kind: IPv4TCP, Proto: 6, EtherType: 0x800, L3: 14, L4: 34, Payload: 54,
			End: 58}},
		{"udp4", udpv4, Info{Kind: IPv4UDP, Proto: 17, EtherType: 0x800, L3: 14, L4: 34, Payload: 42, End: 46}},
		{"tagged", tagged, Info{Kind: IPv4UDP, Tags: 1, TCI: 0xa064, Proto: 17, EtherType: 0x800, L3: 18, L4: 38,
			Payload: 46, End: 50}},
		{"qinq", qinq, Info{Kind: IPv6UDP, Tags: 2, TCI: 0x6005, Proto: 17, EtherType: 0x86dd, L3: 22, L4: 62,
			Payload: 70, End: 74}},
		{"tcp6", tcpv6, Info{Kind: IPv6TCP, Proto: 6, EtherType: 0x86dd, L3: 14, L4: 54, Payload: 74, End: 78}},
		{"options6", hopv6, Info{Kind: IPv6, Proto: 6, EtherType: 0x86dd, L3: 14, L4: 62, Payload: 82, End: 86}},
		{"first fragment", fragv4, Info{Kind: IPv4UDP, Proto: 17, Frag: true, EtherType: 0x800, L3: 14, End: 46}},
		{"last fragment", lastv4, Info{Kind: IPv4UDP, Proto: 17, Frag: true, EtherType: 0x800, L3: 14, End: 38}},
		{"fragment6", fragv6, Info{Kind: IPv6, Proto: 17, Frag: true, EtherType: 0x86dd, L3: 14, End: 70}},
		{"options4", optsv4, Info{Kind: IPv4UDP, Proto: 17, EtherType: 0x800, L3: 14, L4: 38, Payload: 46, End: 50}},
		{"icmp", icmp, Info{Kind: IPv4, Proto: 1, EtherType: 0x800, L3: 14, End: 42}},
		{"routed6", routev6, Info{Kind: IPv6, Proto: 43, EtherType: 0x86dd, L3: 14, End: 86}},
		{"arp", arp, Info{EtherType: 0x806, L3: 14, End: 42}},
		{"five tags", macs + "81000001 81000002 81000003 81000004 81000005 0800 45000014",
			Info{Tags: 4, TCI: 1, EtherType: 0x8100, L3: 30, End: 38}},
		{"version", strings.Replace(udpv4, "45000020", "55000020", 1), Info{EtherType: 0x800, L3: 14, End: 46}},
		{"header length", strings.Replace(udpv4, "45000020", "44000020", 1), Info{EtherType: 0x800, L3: 14, End: 46}},
		{"total length", strings.Replace(udpv4, "45000020", "45000021", 1), Info{EtherType: 0x800, L3: 14, End: 46}},
		{"tcp offset", strings.Replace(tcpv4, "5010 0100", "4010 0100", 1), Info{Kind: IPv4TCP, Proto: 6,
			EtherType: 0x800, L3: 14, End: 58}},
		{"tcp options cut off", strings.Replace(tcpv4, "5010 0100", "7010 0100", 1), Info{Kind: IPv4TCP, Proto: 6,
			EtherType: 0x800, L3: 14, End: 58}},
	} {
		frame := unhex(t, c.frame)
		got := Classify(frame)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", c.name, d)
		}
		if got.Tags == 0 {
			bare := ClassifyIP(frame[14:])
			want := c.want
			want.L3, want.End = 0, want.End-14
			if want.L4 != 0 {
				want.L4, want.Payload = want.L4-14, want.Payload-14
			}
			if want.Kind == Other {
				want.EtherType = bare.EtherType
			}
			if d := cmp.Diff(want, bare); d != "" {
				t.Errorf("%s, bare: -want +got\n%s", c.name, d)
			}
		}
		sane(t, frame)
		// Every truncation.
		for n := range frame {
			sane(t, frame[:n])
		}
	}
	if in := Classify(unhex(t, tagged)); in.PCP() != 5 {
		t.Errorf("priority %d", in.PCP())
	}
}

// sane fails the test if a result of Classify lies outside the frame.
func sane(t testing.TB, frame []byte) {
	t.Helper()
	for i, in := range []Info{Classify(frame), ClassifyIP(frame)} {
		ok := int(in.L3) <= len(frame) && int(in.End) <= len(frame) && int(in.End) >= int(in.L3) && in.Tags <= MaxTags
		if in.L4 != 0 {
			ok = ok && in.IsIP() && in.L4 > in.L3 && in.Payload > in.L4 && uint32(in.Payload) <= in.End &&
				in.Payload <= MaxHeaders
		}
		if !ok {
			t.Errorf("%x: %+v", frame, in)
		}
		a := in.Hash(frame, 1)
		if a != in.Hash(frame, 1) {
			t.Errorf("%x: the hash changes", frame)
		}
		if i == 0 && len(frame) >= HeaderLen && a == in.Hash(frame, 2) {
			t.Errorf("%x: the hash does not know the seed", frame)
		}
	}
}

func TestHash(t *testing.T) {
	of := func(s string) uint32 {
		b := unhex(t, s)
		in := Classify(b)
		return in.Hash(b, 7)
	}
	change := func(s, old, new string) string {
		if !strings.Contains(s, old) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(s, old, new, 1)
	}
	// What belongs to a flow has its hash.
	for _, c := range [][2]string{
		{udpv4, change(udpv4, "61626364", "65666768")},
		{udpv4, tagged},
		{tcpv4, change(tcpv4, "00000001 00000002 5010", "00000005 00000002 5018")},
		{fragv4, lastv4},
		{arp, arp + "a5"},
	} {
		if of(c[0]) != of(c[1]) {
			t.Errorf("%s and %s differ", c[0], c[1])
		}
	}
	// What does not has another.
	for _, c := range [][3]string{
		{udpv4, "0a000001", "0a000003"}, {udpv4, "0a000002", "0a000003"}, {udpv4, "1111", "1112"}, {udpv4, "2222",
			"2223"},
		{tcpv6, "0001 20010db8", "0003 20010db8"}, {tcpv6, "0002 1f90", "0003 1f90"}, {tcpv6, "1f90", "1f91"}, {tcpv6,
			"0050", "0051"},
		{fragv4, "0a000001", "0a000003"}, {icmp, "0a000001", "0a000003"}, {arp, "02aabbccdd02 0806",
			"02aabbccdd03 0806"}, {arp, "0806", "0807"},
	} {
		if of(c[0]) == of(change(c[0], c[1], c[2])) {
			t.Errorf("%s: %s instead of %s makes no difference", c[0], c[2], c[1])
		}
	}
	// Every bit depends on the ports: 4096 flows share 256 values of each octet evenly.
	b := unhex(t, udpv4)
	var octets [4][256]int
	for port := range 4096 {
		be.PutUint16(b[34:], uint16(port))
		in := Classify(b)
		for h, i := in.Hash(b, 7), 0; i < 4; i++ {
			octets[i][h>>(8*i)&0xff]++
		}
	}
	for i := range octets {
		for v, n := range octets[i] {
			if n > 48 { // of 16; nine standard deviations
				t.Errorf("octet %d is %#x in %d of 4096 flows", i, v, n)
			}
		}
	}
}

func TestChecksum(t *testing.T) {
	// The example of RFC 1071 §3.
	if got := Checksum(unhex(t, "0001 f203 f4f5 f6f7")); got != 0x220d {
		t.Errorf("%#x", got)
	}
	// By words, for every length and place.
	buf := make([]byte, 700)
	for i := range buf {
		buf[i] = byte(i*7) | 0x80
	}
	for at := range 9 {
		for n := 0; at+n <= len(buf); n++ {
			b := buf[at : at+n]
			var s uint32
			for i, v := range b {
				s += uint32(v) << (8 * (1 - i&1))
			}
			for s > 0xffff {
				s = s>>16 + s&0xffff
			}
			if got := Checksum(b); got != ^uint16(s) {
				t.Fatalf("%d octets at %d: %#04x, want %#04x", n, at, got, ^uint16(s))
			}
		}
	}
	// Ones make the most carries; zeros are the one sum that is zero.
	for _, n := range []int{2, 64, 320, 1448, 1500, 4096, 65536, 1 << 20} {
		b := bytes.Repeat([]byte{0xff}, n)
		if got := fold(sum(b, ^uint64(0))); got != 0xffff {
			t.Errorf("%d octets of ones: %#x", n, got)
		}
		b[n-1] = 0xfe
		if got := Checksum(b); got != 1 {
			t.Errorf("%d octets of ones but one: %#x", n, got)
		}
		clear(b)
		if got := fold(sum(b, 0)); got != 0 {
			t.Errorf("%d octets of zeros: %#x", n, got)
		}
	}
	if got := fold(add(^uint64(0), ^uint64(0))); got != 0xffff {
		t.Errorf("sum of all ones: %#x", got)
	}
	if word(0x1234) != uint64(bits.ReverseBytes16(0x1234)) {
		t.Error("word")
	}
}

func TestOffloadBytes(t *testing.T) {
	want := Offload{Flags: 1, GSO: GSOTCPv4 | GSOECN, HdrLen: 0x0102, GSOSize: 0x0304, CsumStart: 0x0506,
		CsumOffset: 0x0708}
	b := unhex(t, "0181 0201 0403 0605 0807")
	var o Offload
	o.Parse(b)
	if o != want {
		t.Errorf("parsed %+v", o)
	}
	got := []byte(strings.Repeat("\xa5", 12))
	o.Put(got)
	if d := cmp.Diff(append(b, 0xa5, 0xa5), got); d != "" {
		t.Error(d)
	}
}

func TestCheck(t *testing.T) {
	seg4 := Offload{Flags: NeedsCsum, GSO: GSOTCPv4, HdrLen: 9999, GSOSize: 2, CsumStart: 34, CsumOffset: 16}
	for _, c := range []struct {
		name, frame string
		off         Offload
		why         Refusal
		want        Offload
	}{
		{"nothing", tcpv4, Offload{}, OK, Offload{}},
		{"good is not believed", tcpv4, Offload{Flags: DataValid | 4, HdrLen: 1, GSOSize: 2, CsumStart: 3,
			CsumOffset: 4}, OK, Offload{}},
		{"checksum", udpv4, Offload{Flags: NeedsCsum, HdrLen: 5, GSOSize: 6, CsumStart: 34, CsumOffset: 6}, OK,
			Offload{Flags: NeedsCsum, CsumStart: 34, CsumOffset: 6}},
		{"checksum of anything", arp, Offload{Flags: NeedsCsum, CsumStart: 14, CsumOffset: 26}, OK,
			Offload{Flags: NeedsCsum, CsumStart: 14, CsumOffset: 26}},
		{"checksum behind the end", arp, Offload{Flags: NeedsCsum, CsumStart: 14, CsumOffset: 27}, CsumPlace,
			Offload{}},
		{"checksum far behind the end", arp, Offload{Flags: NeedsCsum, CsumStart: 65535, CsumOffset: 65535},
			CsumPlace, Offload{}},
		{"checksum in addresses", udpv4, Offload{Flags: NeedsCsum, CsumStart: 0, CsumOffset: 4}, CsumPlace, Offload{}},
		{"checksum in tags", tagged, Offload{Flags: NeedsCsum, CsumStart: 14, CsumOffset: 6}, CsumPlace, Offload{}},
		{"tcp4", tcpv4, seg4, OK, Offload{Flags: NeedsCsum, GSO: GSOTCPv4, HdrLen: 54, GSOSize: 2, CsumStart: 34,
			CsumOffset: 16}},
		{"tcp6", tcpv6, Offload{Flags: NeedsCsum, GSO: GSOTCPv6 | GSOECN, GSOSize: 2, CsumStart: 54, CsumOffset: 16},
			OK,
			Offload{Flags: NeedsCsum, GSO: GSOTCPv6 | GSOECN, HdrLen: 74, GSOSize: 2, CsumStart: 54, CsumOffset: 16}},
		{"udp4", tagged, Offload{Flags: NeedsCsum, GSO: GSOUDP, GSOSize: 3, CsumStart: 38, CsumOffset: 6}, OK,
			Offload{Flags: NeedsCsum, GSO: GSOUDP, HdrLen: 46, GSOSize: 3, CsumStart: 38, CsumOffset: 6}},
		{"udp6", qinq, Offload{Flags: NeedsCsum, GSO: GSOUDP, GSOSize: 3, CsumStart: 62, CsumOffset: 6}, OK,
			Offload{Flags: NeedsCsum, GSO: GSOUDP, HdrLen: 70, GSOSize: 3, CsumStart: 62, CsumOffset: 6}},
		{"padded", tcpv4 + "00", seg4, SegmentForm, Offload{}},
		{"no payload", strings.TrimSuffix(strings.Replace(tcpv4, "4500002c", "45000028", 1), "61626364"), seg4,
			SegmentForm, Offload{}},
		{"other family", tcpv6, seg4, SegmentForm, Offload{}},
		{"other protocol", strings.Replace(tcpv4, "40060000", "40110000", 1), seg4, SegmentForm, Offload{}},
		{"not ip", arp, Offload{Flags: NeedsCsum, GSO: GSOTCPv4, GSOSize: 2, CsumStart: 14, CsumOffset: 16},
			SegmentForm, Offload{}},
		{"fragment", fragv4, Offload{Flags: NeedsCsum, GSO: GSOUDP, GSOSize: 2, CsumStart: 34, CsumOffset: 6},
			SegmentForm, Offload{}},
		{"other start", tcpv4, Offload{Flags: NeedsCsum, GSO: GSOTCPv4, GSOSize: 2, CsumStart: 33, CsumOffset: 16},
			SegmentForm, Offload{}},
		{"other place", tcpv4, Offload{Flags: NeedsCsum, GSO: GSOTCPv4, GSOSize: 2, CsumStart: 34, CsumOffset: 6},
			SegmentForm, Offload{}},
		{"udp length", strings.Replace(udpv4, "000c", "000b", 1), Offload{Flags: NeedsCsum, GSO: GSOUDP, GSOSize: 2,
			CsumStart: 34, CsumOffset: 6}, SegmentForm, Offload{}},
		{"no size", tcpv4, Offload{Flags: NeedsCsum, GSO: GSOTCPv4, CsumStart: 34, CsumOffset: 16}, SegmentSize,
			Offload{}},
		{"no checksum", tcpv4, Offload{GSO: GSOTCPv4, GSOSize: 2, CsumStart: 34, CsumOffset: 16}, SegmentKind,
			Offload{}},
		{"fragmentation", udpv4, Offload{Flags: NeedsCsum, GSO: GSOUFO, GSOSize: 2, CsumStart: 34, CsumOffset: 6},
			SegmentKind, Offload{}},
		{"ecn of datagrams", udpv4, Offload{Flags: NeedsCsum, GSO: GSOUDP | GSOECN, GSOSize: 2, CsumStart: 34,
			CsumOffset: 6}, SegmentKind, Offload{}},
		{"short", "02aabbccdd01 02aabbccdd02 08", Offload{}, Short, Offload{}},
		{"long", arp + strings.Repeat("00", MaxFrame-41), Offload{}, Long, Offload{}},
		{"longest", arp + strings.Repeat("00", MaxFrame-42), Offload{}, OK, Offload{}},
	} {
		frame := unhex(t, c.frame)
		in := Classify(frame)
		o := c.off
		why := o.Check(frame, &in)
		if why != c.why || why == OK && o != c.want {
			t.Errorf("%s: %v %+v, want %v %+v", c.name, why, o, c.why, c.want)
		}
	}
	// The most frames that a segment may become.
	for n, want := range map[int]Refusal{MaxSegments: OK, MaxSegments + 1: SegmentSize} {
		frame := append(unhex(t, tcpv4)[:54], make([]byte, n)...)
		be.PutUint16(frame[16:], uint16(40+n))
		in := Classify(frame)
		o := seg4
		o.GSOSize = 1
		if why := o.Check(frame, &in); why != want {
			t.Errorf("%d frames: %v", n, why)
		}
	}
	if s := Refusal(200).String(); s != "unknown" {
		t.Error(s)
	}
	for r := range Refusal(NumRefusals) {
		if r.String() == "" {
			t.Errorf("refusal %d has no name", r)
		}
	}
}

func TestComplete(t *testing.T) {
	// UDP from 10.0.0.1:0x1111 to 10.0.0.2:0x2222, "abcd", word by word.
	frame := unhex(t, udpv4)
	pseudo := uint32(0x0a00) + 0x0001 + 0x0a00 + 0x0002 + 17 + 12
	be.PutUint16(frame[40:], uint16(pseudo))
	all := pseudo + 0x1111 + 0x2222 + 12 + 0x6162 + 0x6364
	for all > 0xffff {
		all = all>>16 + all&0xffff
	}
	o := Offload{Flags: NeedsCsum, CsumStart: 34, CsumOffset: 6}
	if left := o.Complete(frame); left != (Offload{}) || be.Uint16(frame[40:]) != ^uint16(all) {
		t.Errorf("left %+v, %#x, want %#x", left, frame[40:42], ^uint16(all))
	}
	// One that comes to 0 is sent as all ones in UDP (RFC 768), and as it is elsewhere.
	for off, want := range map[uint16]uint16{6: 0xffff, 16: 0} {
		b := make([]byte, 64)
		b[30], b[31] = 0xff, 0xff
		o := Offload{Flags: NeedsCsum, CsumStart: 20, CsumOffset: off}
		o.Complete(b)
		if got := be.Uint16(b[20+off:]); got != want {
			t.Errorf("checksum at %d: %#x", off, got)
		}
	}
	// A segment's is left, and so is nothing.
	seg := Offload{Flags: NeedsCsum, GSO: GSOTCPv4, GSOSize: 2, HdrLen: 54, CsumStart: 34, CsumOffset: 16}
	before := unhex(t, tcpv4)
	after := unhex(t, tcpv4)
	if left := seg.Complete(after); left != seg {
		t.Errorf("%+v", left)
	}
	none := Offload{Flags: DataValid}
	if left := none.Complete(after); left != none {
		t.Errorf("%+v", left)
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Error(d)
	}
}

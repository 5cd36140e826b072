// SPDX-License-Identifier: Apache-2.0

package ether

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The segment with its pseudo header's sum, and the frames it becomes: packed and summed by
// Python's struct module.
var (
	segment4 = macs + "0800 4502003f ffff4000 40060000 0a000001 0a000002 1f900050 fffffffe 00000002 " +
		"80990100 1434 0000 0101080a 0000000a 0000000b 6162636465666768696a6b"
	frames4 = []string{
		macs + "0800 45020038 ffff4000 400626bc 0a000001 0a000002 1f900050 fffffffe 00000002 80900100 7c7a 0000 0101080a 0000000a 0000000b 61626364",
		macs + "0800 45020038 00004000 400626bc 0a000001 0a000002 1f900050 00000002 00000002 80100100 74ef 0000 0101080a 0000000a 0000000b 65666768",
		macs + "0800 45020037 00014000 400626bc 0a000001 0a000002 1f900050 00000006 00000002 80190100 6d47 0000 0101080a 0000000a 0000000b 696a6b",
	}
	segment6 = macs + "8100 6005 86dd 6abcdef1 0013 1140 20010db8000000000000000000000001 " +
		"20010db8000000000000000000000002 11112222 0013 5b99 6162636465666768696a6b"
	frames6 = []string{
		macs + "8100 6005 86dd 6abcdef1 000d 1140 20010db8000000000000000000000001 20010db8000000000000000000000002 11112222 000d 4765 6162636465",
		macs + "8100 6005 86dd 6abcdef1 000d 1140 20010db8000000000000000000000001 20010db8000000000000000000000002 11112222 000d 385b 666768696a",
		macs + "8100 6005 86dd 6abcdef1 0009 1140 20010db8000000000000000000000001 20010db8000000000000000000000002 11112222 0009 0634 6b",
	}
	off4 = Offload{Flags: NeedsCsum, GSO: GSOTCPv4 | GSOECN, HdrLen: 66, GSOSize: 4, CsumStart: 34, CsumOffset: 16}
	off6 = Offload{Flags: NeedsCsum, GSO: GSOUDP, HdrLen: 66, GSOSize: 5, CsumStart: 58, CsumOffset: 6}
)

// split cuts a frame, each into a dirty buffer with a guard behind it.
func split(t testing.TB, frame []byte, off Offload, in *Info, mtu int) (out [][]byte, why Refusal) {
	t.Helper()
	before := bytes.Clone(frame)
	s := new(Splitter)
	n, why := s.Start(frame, off, in, mtu)
	if why != OK {
		if n != 0 || s.Left() != 0 {
			t.Errorf("refused, with %d frames", n)
		}
		return nil, why
	}
	for i := range n {
		if s.Left() != n-i {
			t.Fatalf("%d left of %d after %d", s.Left(), n, i)
		}
		buf := bytes.Repeat([]byte{0xa5}, s.Len()+8)
		l := s.Len()
		s.Next(buf)
		if !bytes.Equal(buf[l:], bytes.Repeat([]byte{0xa5}, 8)) {
			t.Fatalf("frame %d reaches beyond its %d octets", i, l)
		}
		out = append(out, buf[:l:l])
	}
	if s.Left() != 0 || !bytes.Equal(frame, before) {
		t.Fatal("frames left, or the segment changed")
	}
	return out, OK
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name, frame string
		off         Offload
		mtu         int
		why         Refusal
		want        []string
	}{
		{"tcp4", segment4, off4, 0, OK, frames4},
		{"tcp4 of the MTU", segment4, off4, 56, OK, frames4},
		{"udp6 behind a tag", segment6, off6, 53, OK, frames6},
		{"datagrams do not get smaller", segment6, off6, 52, Long, nil},
		{"no room for payload", segment4, off4, 55, Long, nil},
		{"plain", arp, Offload{}, 28, OK, []string{arp}},
		{"plain and long", udpv4, Offload{}, 31, Long, nil},
		{"padding is no matter", udpv4 + "0000", Offload{}, 32, OK, []string{udpv4 + "0000"}},
		{"checksum", strings.Replace(udpv4, "000c 0000", "000c 1420", 1), Offload{Flags: NeedsCsum, CsumStart: 34,
			CsumOffset: 6}, 0, OK,
			[]string{strings.Replace(udpv4, "000c 0000", "000c f3d9", 1)}},
	} {
		frame := unhex(t, c.frame)
		in := Classify(frame)
		off := c.off
		if why := off.Check(frame, &in); why != OK {
			t.Errorf("%s: %v", c.name, why)
		}
		got, why := split(t, frame, off, &in, c.mtu)
		if why != c.why {
			t.Errorf("%s: %v", c.name, why)
		}
		var hexes, want []string
		for i := range got {
			hexes = append(hexes, hex.EncodeToString(got[i]))
		}
		for _, w := range c.want {
			want = append(want, strings.ReplaceAll(w, " ", ""))
		}
		if d := cmp.Diff(want, hexes); d != "" {
			t.Errorf("%s: -want +got\n%s", c.name, d)
		}
	}
}

// A TCP segment with a size above the MTU is cut smaller.
func TestSplitToMTU(t *testing.T) {
	frame := tcpFrame(tcpSpec{payload: 40000, flags: tcpACK | tcpPSH})
	in := Classify(frame)
	off := Offload{Flags: NeedsCsum, GSO: GSOTCPv4, GSOSize: 8960, CsumStart: in.L4, CsumOffset: 16}
	if why := off.Check(frame, &in); why != OK {
		t.Fatal(why)
	}
	got, why := split(t, frame, off, &in, 1500)
	if why != OK || len(got) != (40000+1459)/1460 {
		t.Fatalf("%d frames, %v", len(got), why)
	}
	var payload []byte
	for _, f := range got {
		in := Classify(f)
		if len(f) > 1514 || !sumsGood(f, &in) {
			t.Errorf("frame of %d octets, or a bad checksum", len(f))
		}
		payload = append(payload, f[in.Payload:]...)
	}
	if !bytes.Equal(payload, frame[in.Payload:]) {
		t.Error("other payload")
	}
	// The number of frames is bounded.
	if _, why := split(t, frame, off, &in, 40+40000/MaxSegments); why != Long {
		t.Error(why)
	}
}

// tcpSpec is what a generated frame has; zero fields are plain.
type tcpSpec struct {
	tags       int
	v6, udp    bool
	flow       byte
	id         uint16
	df         bool
	seq        uint32
	flags      byte
	options    int // words
	payload    int
	salt       byte
	badSum     bool
	ttl        byte
	ack        uint16
	link       byte // of the last octet of the source
	noUDPSum   bool
	pad        int
	ipv4Broken bool
}

// tcpFrame makes a frame with valid checksums, by the naive sum.
func tcpFrame(s tcpSpec) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, s.link}
	for i := range s.tags {
		b = append(b, 0x81, 0, 0x20, byte(i+1))
	}
	t := make([]byte, 8, 20)
	be.PutUint16(t, 1000+uint16(s.flow))
	be.PutUint16(t[2:], 80)
	if !s.udp {
		be.PutUint32(t[4:], s.seq)
		t = append(t, 0, 0, be.AppendUint16(nil, s.ack)[0], byte(s.ack), byte(5+s.options)<<4, s.flags, 1, 2, 0, 0, 0,
			0)
		for range s.options {
			t = append(t, 1, 1, 1, 1)
		}
	} else {
		be.PutUint16(t[4:], uint16(8+s.payload))
	}
	r := rand.New(rand.NewPCG(uint64(s.seq), uint64(s.salt)))
	for range s.payload {
		t = append(t, byte(r.Uint32()))
	}
	proto := byte(protoTCP)
	at := 16
	if s.udp {
		proto, at = protoUDP, 6
	}
	var ip, ps []byte
	if s.v6 {
		b = append(b, 0x86, 0xdd)
		ip = append([]byte{0x60, 0, 0, 1, byte(len(t) >> 8), byte(len(t)), proto, 64 - s.ttl}, make([]byte, 32)...)
		ip[8], ip[23], ip[24], ip[39] = 0x20, 1, 0x20, 2
		ps = append(slices.Clone(ip[8:40]), 0, proto, byte(len(t)>>8), byte(len(t)))
	} else {
		b = append(b, 8, 0)
		n := 20 + len(t)
		ip = []byte{0x45, 0, byte(n >> 8), byte(n), byte(s.id >> 8), byte(s.id), 0, 0, 64 - s.ttl, proto, 0, 0, 10, 0,
			0, 1, 10, 0, 0, 2}
		if s.df {
			ip[6] = 0x40
		}
		be.PutUint16(ip[10:], ^naive(ip))
		if s.ipv4Broken {
			ip[10] ^= 1
		}
		ps = append(slices.Clone(ip[12:20]), 0, proto, byte(len(t)>>8), byte(len(t)))
	}
	c := ^naive(append(ps, t...))
	if c == 0 && s.udp {
		c = 0xffff
	}
	if s.badSum {
		c ^= 0x0100
	}
	if s.noUDPSum {
		c = 0
	}
	be.PutUint16(t[at:], c)
	return append(append(append(b, ip...), t...), make([]byte, s.pad)...)
}

func naive(b []byte) uint16 {
	var s uint32
	for i, v := range b {
		s += uint32(v) << (8 * (1 - i&1))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// segmentOf makes a segment of it: the sum of the pseudo header in place of the checksum, and its Offload.
func segmentOf(s tcpSpec, size int) ([]byte, Offload) {
	frame := tcpFrame(s)
	in := Classify(frame)
	off := Offload{Flags: NeedsCsum, GSO: GSOTCPv4, HdrLen: in.Payload, GSOSize: uint16(size), CsumStart: in.L4,
		CsumOffset: 16}
	switch {
	case s.udp:
		off.GSO, off.CsumOffset = GSOUDP, 6
	case s.v6:
		off.GSO = GSOTCPv6
	}
	if !s.udp && s.flags&tcpCWR != 0 {
		off.GSO |= GSOECN
	}
	be.PutUint16(frame[in.L4+off.CsumOffset:], 0)
	ps := []byte{0, in.Proto, 0, 0}
	be.PutUint16(ps[2:], uint16(len(frame)-int(in.L4)))
	if s.v6 {
		ps = append(ps, frame[in.L3+8:in.L3+40]...)
	} else {
		ps = append(ps, frame[in.L3+12:in.L3+20]...)
	}
	be.PutUint16(frame[in.L4+off.CsumOffset:], naive(ps))
	return frame, off
}

func TestSplitThenJoin(t *testing.T) {
	j := NewJoiner(maxJoinedTCP, false, 3)
	bare := NewJoiner(maxJoinedTCP, true, 3)
	rapid.Check(t, func(rt *rapid.T) {
		s := tcpSpec{
			tags: rapid.IntRange(0, 2).Draw(rt, "tags"), v6: rapid.Bool().Draw(rt, "v6"), udp: rapid.Bool().Draw(rt,
				"udp"),
			id: rapid.Uint16().Draw(rt, "id"), df: rapid.Bool().Draw(rt, "df"), seq: rapid.Uint32().Draw(rt, "seq"),
			flags: tcpACK | rapid.SampledFrom([]byte{0, tcpPSH, tcpFIN, tcpCWR,
				tcpPSH | tcpFIN | tcpCWR | 0x40}).Draw(rt, "flags"),
		}
		size := rapid.IntRange(1, 1500).Draw(rt, "size")
		most := maxJoinedTCP
		if s.udp {
			most = maxJoinedUDP
		} else {
			s.options = rapid.IntRange(0, 10).Draw(rt, "options")
		}
		s.payload = min(rapid.IntRange(size+1, size*most).Draw(rt, "payload"), 65000)
		frame, off := segmentOf(s, size)
		in := Classify(frame)
		checked := off
		if why := checked.Check(frame, &in); why != OK || checked != off {
			rt.Fatalf("%v %+v, %+v", why, checked, off)
		}
		cut, why := split(t, frame, off, &in, 0)
		if why != OK {
			rt.Fatal(why)
		}
		if want := (s.payload + size - 1) / size; len(cut) != want {
			rt.Fatalf("%d frames, want %d", len(cut), want)
		}
		for i, f := range cut {
			in := Classify(f)
			want := s
			want.payload = min(size, s.payload-i*size)
			want.id += uint16(i)
			want.seq += uint32(i * size)
			if i > 0 {
				want.flags &^= tcpCWR
			}
			if i < len(cut)-1 {
				want.flags &^= tcpPSH | tcpFIN
			}
			ref := tcpFrame(want)
			// Its headers; the payload is the segment's, and so is the checksum.
			off := int(in.Payload)
			copy(ref[off:], frame[int(in.Payload)+i*size:])
			sumAt := int(checked.CsumStart + checked.CsumOffset)
			copy(ref[sumAt:sumAt+2], f[sumAt:])
			if !bytes.Equal(ref, f) || !sumsGood(f, &in) {
				rt.Fatalf("frame %d:\n got %x\nwant %x", i, f, ref)
			}
		}
		all := FeatureCsum | FeatureTSO4 | FeatureTSO6 | FeatureECN | FeatureUSO4 | FeatureUSO6
		got := j.Join(cut, all)
		if len(got) != 1 || got[0].Off != off || got[0].Len != len(frame) || !bytes.Equal(got[0].Append(nil), frame) {
			rt.Fatalf("joined to %d, %+v want %+v", len(got), got[0].Off, off)
		}
		if s.tags > 0 {
			return
		}
		for i := range cut {
			cut[i] = cut[i][14:]
		}
		off.HdrLen, off.CsumStart = off.HdrLen-14, off.CsumStart-14
		got = bare.Join(cut, all)
		if len(got) != 1 || got[0].Off != off || !bytes.Equal(got[0].Append(nil), frame[14:]) {
			rt.Fatalf("bare: joined to %d, %+v want %+v", len(got), got[0].Off, off)
		}
	})
}

func FuzzSplit(f *testing.F) {
	seeds(f, func(b []byte) { f.Add(b, byte(1), byte(1), uint16(2), uint16(34), uint16(16), uint16(1500)) })
	f.Add(unhex(f, segment4), byte(1), byte(0x81), uint16(4), uint16(34), uint16(16), uint16(0))
	f.Add(unhex(f, segment6), byte(1), byte(5), uint16(5), uint16(58), uint16(6), uint16(53))
	f.Fuzz(func(t *testing.T, frame []byte, flags, gso byte, size, start, offset, mtu uint16) {
		for _, in := range []Info{Classify(frame), ClassifyIP(frame)} {
			off := Offload{Flags: flags, GSO: gso, HdrLen: 77, GSOSize: size, CsumStart: start, CsumOffset: offset}
			if off.Check(frame, &in) != OK {
				continue
			}
			again := off
			if why := again.Check(frame, &in); why != OK || again != off {
				t.Fatalf("checked twice: %v, %+v then %+v", why, off, again)
			}
			got, why := split(t, frame, off, &in, int(mtu))
			if why != OK {
				continue
			}
			var payload []byte
			for _, g := range got {
				out := Classify(g)
				if in.L3 == 0 {
					out = ClassifyIP(g)
				}
				if mtu > 0 && int(out.End)-int(out.L3) > int(mtu) || out.Kind != in.Kind && off.Flags == 0 {
					t.Fatalf("frame %x of %+v: %+v", g, in, out)
				}
				if off.Kind() != GSONone && !sumsGood(g, &out) {
					t.Fatalf("bad checksum: %x", g)
				}
				payload = append(payload, g[in.Payload:]...)
			}
			if off.Kind() != GSONone && !bytes.Equal(payload, frame[in.Payload:]) {
				t.Fatal("other payload")
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

func (v *vector) ipudp() IPUDP {
	u := v.Fields.UDP
	h := IPUDP{SrcPort: u.SPort, DstPort: u.DPort, Checksum: u.Checksum}
	if x := v.Fields.IP; x != nil {
		h.IPv4, h.TClass, h.HopLimit, h.DF, h.ID = true, x.TOS, x.TTL, x.DF == 1, x.ID
		h.Src, h.Dst = ib.GIDFromAddr(x.Src), ib.GIDFromAddr(x.Dst)
		return h
	}
	x := v.Fields.IP6
	h.TClass, h.HopLimit, h.FlowLabel = x.TC, x.Hop, x.Flow
	h.Src, h.Dst = ib.GIDFromAddr(x.Src), ib.GIDFromAddr(x.Dst)
	return h
}

func TestIPUDPVectors(t *testing.T) {
	n := 0
	for _, v := range icrcVectors(t) {
		if !v.Valid || !strings.HasPrefix(v.Kind, "rocev2") {
			continue
		}
		n++
		t.Run(v.ID, func(t *testing.T) {
			want := v.ipudp()
			var got IPUDP
			frame := append(bytes.Clone(v.Frame), 0xa5, 0xa5, 0xa5) // Ethernet padding must not matter
			p, why := got.Parse(frame)
			if why != OK {
				t.Fatal(why)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("headers (-want +got):\n%s", d)
			}
			if !bytes.Equal(p, v.transport()) {
				t.Errorf("payload %x, want %x", p, v.transport())
			}
			b := dirty(MaxIPUDPLen + 1)
			l := got.Put(b, len(p))
			if l != got.Len() || !bytes.Equal(b[:l], v.Frame[:l]) {
				t.Errorf("re-encoded\n%x, want\n%x", b[:l], v.Frame[:l])
			}
			if b[l] != 0xa5 {
				t.Error("Put wrote behind its headers")
			}
			for i := range v.Frame {
				var h IPUDP
				if p, why := h.Parse(v.Frame[:i:i]); why != Short && why != IPLength || p != nil {
					t.Errorf("%d of %d bytes: %v", i, len(v.Frame), why)
				}
			}
		})
	}
	if n < 30 {
		t.Errorf("only %d vectors", n)
	}
}

func TestIPUDPRefusals(t *testing.T) {
	good := map[bool][]byte{}
	for _, v := range icrcVectors(t) {
		switch v.ID {
		case "v4-inv-base":
			good[true] = v.Frame
		case "v6-inv-base":
			good[false] = v.Frame
		}
	}
	// at overwrites bytes of the good frame; an IPv4 header checksum is made
	// right again, unless it is what the case is about.
	type at map[int]byte
	for _, tc := range []struct {
		name string
		ipv4 bool
		at   at
		want Refusal
	}{
		{"IPv4", true, nil, OK},
		{"IPv6", false, nil, OK},
		{"version 5", true, at{0: 0x55}, IPVersion},
		{"IPv4 with options", true, at{0: 0x46}, IPVersion},
		{"IPv4 header of 16 bytes", true, at{0: 0x44}, IPVersion},
		{"IPv4 total length beyond the frame", true, at{3: 61}, IPLength},
		{"IPv4 total length below its headers", true, at{3: 27}, IPLength},
		{"IPv4 total length without UDP's", true, at{3: 56}, IPLength},
		{"IPv4 header checksum", true, at{10: 0, 11: 0}, IPChecksum},
		{"IPv4 more fragments", true, at{6: 0x20}, IPFragment},
		{"IPv4 last fragment", true, at{7: 1}, IPFragment},
		{"IPv4 TCP", true, at{9: 6}, NotRoCE},
		{"IPv4 other port", true, at{23: 1}, NotRoCE},
		{"IPv4 UDP length short", true, at{25: 36}, IPLength},
		{"IPv4 UDP length below its header", true, at{25: 7}, IPLength},
		{"IPv4 UDP length long", true, at{24: 1}, IPLength},
		{"IPv6 payload length beyond the frame", false, at{5: 29}, IPLength},
		{"IPv6 payload length below UDP", false, at{5: 7}, IPLength},
		{"IPv6 fragment header", false, at{6: 44}, IPFragment},
		{"IPv6 hop-by-hop options", false, at{6: 0}, NotRoCE},
		{"IPv6 other port", false, at{43: 1}, NotRoCE},
		{"IPv6 UDP length short", false, at{45: 24}, IPLength},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := bytes.Clone(good[tc.ipv4])
			for i, b := range tc.at {
				f[i] = b
			}
			if tc.ipv4 && tc.want != IPChecksum {
				f[10], f[11] = 0, 0
				be.PutUint16(f[10:], ^sum16(f))
			}
			var h IPUDP
			if p, why := h.Parse(f); why != tc.want || (p == nil) != (why != OK) {
				t.Errorf("got %v, want %v", why, tc.want)
			}
		})
	}
}

func TestPutGRHArea(t *testing.T) {
	var f struct {
		Areas []struct {
			Frame   string
			Area    hexBytes `json:"grh40_hex"`
			ByteLen int      `json:"byte_len"`
		} `json:"ud_receive_grh"`
	}
	loadJSON(t, "headers.json", &f)
	if len(f.Areas) != 5 {
		t.Fatalf("%d cases, want 5", len(f.Areas))
	}
	for _, c := range f.Areas {
		for _, v := range icrcVectors(t) {
			if v.ID != c.Frame {
				continue
			}
			b := dirty(GRHLen + 1)
			var p []byte
			if v.Kind == "ib-grh" {
				var l LRH
				var g GRH
				p, _ = ParseIB(v.Frame, &l, &g)
				g.Put(b)
			} else {
				var ip IPUDP
				p, _ = ip.Parse(v.Frame)
				PutGRHArea(b, &ib.Path{SGID: ip.Src, DGID: ip.Dst, TClass: ip.TClass, HopLimit: ip.HopLimit,
					FlowLabel: ip.FlowLabel}, ip.IPv4, len(p))
			}
			if d := cmp.Diff([]byte(c.Area), b[:GRHLen]); d != "" || b[GRHLen] != 0xa5 {
				t.Errorf("%s (-want +got):\n%s", c.Frame, d)
			}
			var h Headers
			if payload, why := h.Parse(p); why != OK || GRHLen+len(payload) != c.ByteLen {
				t.Errorf("%s: %v, %d bytes received, want %d", c.Frame, why, GRHLen+len(payload), c.ByteLen)
			}
		}
	}
}

func TestSrcPort(t *testing.T) {
	var f struct {
		Ports []struct {
			FlowLabel uint32 `json:"flow_label"`
			Local     ib.QPN `json:"local_qpn"`
			Remote    ib.QPN `json:"remote_qpn"`
			SPort     uint16
		} `json:"udp_source_port"`
	}
	loadJSON(t, "headers.json", &f)
	if len(f.Ports) != 10 {
		t.Fatalf("%d cases, want 10", len(f.Ports))
	}
	for _, c := range f.Ports {
		for _, q := range [][2]ib.QPN{{c.Local, c.Remote}, {c.Remote, c.Local}} {
			if got := SrcPort(c.FlowLabel, q[0], q[1]); got != c.SPort {
				t.Errorf("SrcPort(%#x, %v) = %d, want %d", c.FlowLabel, q, got, c.SPort)
			}
		}
	}
}

func TestParseIBRefusals(t *testing.T) {
	frames := map[string][]byte{}
	for _, v := range icrcVectors(t) {
		if !strings.HasPrefix(v.Kind, "ib-") {
			continue
		}
		frames[v.ID] = v.Frame
		for i := range v.Frame {
			var l LRH
			var g GRH
			if p, why := ParseIB(v.Frame[:i:i], &l, &g); why != Short && why != LinkLength || p != nil {
				t.Errorf("%s: %d of %d bytes: %v", v.ID, i, len(v.Frame), why)
			}
		}
	}
	local, global := frames["ib-local-ack"], frames["ib-grh-rc-write"]
	for _, tc := range []struct {
		name  string
		frame []byte
		off   int
		b     byte
		want  Refusal
	}{
		{"link version", local, 0, 0x01, LinkVersion},
		{"raw", local, 1, 0x20, NotTransport},
		{"raw IPv6", local, 1, 0x21, NotTransport},
		{"GRH that does not fit", local, 1, 0x23, Short},
		{"packet length too long", local, 5, 8, LinkLength},
		{"packet length too short", local, 5, 6, LinkLength},
		{"packet length, high bits", local, 4, 1, LinkLength},
		{"GRH version", global, 8, 0x40, LinkVersion},
		{"GRH payload length", global, 13, 60, LinkLength},
		{"GRH next header", global, 14, 17, NotTransport},
	} {
		f := bytes.Clone(tc.frame)
		f[tc.off] = tc.b
		var l LRH
		var g GRH
		if p, why := ParseIB(f, &l, &g); why != tc.want || p != nil {
			t.Errorf("%s: got %v, want %v", tc.name, why, tc.want)
		}
	}
}

func FuzzIPUDP(f *testing.F) {
	for _, v := range icrcVectors(f) {
		if strings.HasPrefix(v.Kind, "rocev2") {
			f.Add([]byte(v.Frame))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		var h IPUDP
		p, why := h.Parse(frame)
		if why != OK {
			if why >= NumRefusals || p != nil {
				t.Fatalf("refusal %d, payload %d bytes", why, len(p))
			}
			return
		}
		if h.Len()+len(p) > len(frame) {
			t.Fatalf("%d header bytes and %d payload from %d", h.Len(), len(p), len(frame))
		}
		want := bytes.Clone(frame[:h.Len()])
		if h.IPv4 && want[6]&0x80 != 0 { // the reserved flag is ignored and sent zero
			want[6] &= 0x7f
			want[10], want[11] = 0, 0
			be.PutUint16(want[10:], ^sum16(want))
		}
		if h.IPv4 && want[10] == 0xff && want[11] == 0xff {
			// Both zeros of ones' complement verify; Put writes the other.
			want[10], want[11] = 0, 0
		}
		b := dirty(MaxIPUDPLen)
		if n := h.Put(b, len(p)); !bytes.Equal(b[:n], want) {
			t.Fatalf("parsed   %x\nencoded  %x", want, b[:n])
		}
		if len(p) < BTHLen+ICRCLen {
			return
		}
		// All ways to the ICRC agree wherever a Seed applies.
		if pkt := p[:len(p)-ICRCLen]; !h.IPv4 || h.DF && frame[6] == 0x40 {
			s := NewSeed(h.Src, h.Dst, h.SrcPort, h.DstPort)
			end := h.Len() + len(pkt)
			sum := s.Sum(h.ID, pkt)
			if s.IPv4() == h.IPv4 && (sum != SumIP(frame[:end]) || sum != maskedSum(frame[:end])) {
				t.Fatalf("Sum %08x, SumIP %08x, masked copy %08x", sum, SumIP(frame[:end]), maskedSum(frame[:end]))
			}
		}
	})
}

func FuzzParseIB(f *testing.F) {
	for _, v := range icrcVectors(f) {
		if strings.HasPrefix(v.Kind, "ib-") {
			f.Add([]byte(v.Frame))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var l LRH
		var g GRH
		tr, why := ParseIB(p, &l, &g)
		if why != OK {
			if why >= NumRefusals || tr != nil {
				t.Fatalf("refusal %d, %d bytes", why, len(tr))
			}
			return
		}
		b := dirty(LRHLen + GRHLen)
		n := LRHLen
		l.Put(b)
		if l.LNH == LNHGlobal {
			g.Put(b[n:])
			n += GRHLen
		}
		want := bytes.Clone(p[:n])
		want[1] &^= 0x0c
		want[4] &= 0x07
		if !bytes.Equal(b[:n], want) || n+len(tr)+VCRCLen != len(p) {
			t.Fatalf("parsed   %x\nencoded  %x", want, b[:n])
		}
		VerifyIB(p) // must stay within what ParseIB accepted
	})
}

func ExampleHeaders_Parse() {
	p := []byte{0x04, 0x10, 0xff, 0xff, 0, 0, 0, 17, 0x80, 0, 0, 1, 'a', 'b', 'c', 0, 0, 0, 0, 0}
	var h Headers
	payload, why := h.Parse(p)
	fmt.Printf("%v %v to %d, psn %d: %s\n", why, h.Opcode, h.DestQPN, h.PSN, payload)
	// Output: ok RC SEND Only to 17, psn 1: abc
}

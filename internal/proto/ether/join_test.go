// SPDX-License-Identifier: Apache-2.0

package ether

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const everything = FeatureCsum | FeatureTSO4 | FeatureTSO6 | FeatureECN | FeatureUSO4 | FeatureUSO6

func TestJoinGolden(t *testing.T) {
	for _, c := range []struct {
		frames []string
		want   string
		off    Offload
		none   Features // what makes it impossible if it is missing
	}{{frames4, segment4, off4, FeatureECN}, {frames6, segment6, off6, FeatureUSO6}} {
		var frames [][]byte
		for _, f := range c.frames {
			frames = append(frames, unhex(t, f))
		}
		want := unhex(t, c.want)
		in := Classify(want)
		if in.Kind == IPv4TCP {
			le.PutUint16(want[in.L3+10:], ^fold(sum(want[in.L3:in.L4], 0)))
		}
		got := NewJoiner(8, false, 1).Join(frames, everything)
		if len(got) != 1 || got[0].Off != c.off {
			t.Fatalf("%d frames, %+v", len(got), got[0].Off)
		}
		if d := cmp.Diff(hex.EncodeToString(want), hex.EncodeToString(got[0].Append(nil))); d != "" {
			t.Error(d)
		}
		for i, f := range c.frames {
			if !bytes.Equal(frames[i], unhex(t, f)) {
				t.Errorf("frame %d changed", i)
			}
		}
		for _, can := range []Features{0, FeatureCsum, everything &^ c.none, everything &^ FeatureCsum} {
			if got := NewJoiner(8, false, 1).Join(frames, can); len(got) != 3 {
				// Without ECN the first stays alone, and the others may be joined.
				if can != everything&^FeatureECN || len(got) != 2 {
					t.Errorf("features %b: %d frames", can, len(got))
				}
			}
		}
	}
}

// What makes the second of three frames no continuation of the first, or the third none of the second.
func TestJoinConservative(t *testing.T) {
	base := tcpSpec{df: true, flags: tcpACK, payload: 100, options: 3, seq: 0xffffff80}
	at := func(s tcpSpec, i int) tcpSpec {
		s.seq += uint32(100 * i)
		s.id += uint16(i)
		return s
	}
	for _, c := range []struct {
		name   string
		base   tcpSpec
		change func(*tcpSpec) // of the second of three
		want   string         // which frames are together
	}{
		{"nothing", base, func(s *tcpSpec) {}, "[012]"},
		{"tagged", tcpSpec{tags: 2, flags: tcpACK, payload: 100}, func(s *tcpSpec) {}, "[012]"},
		{"v6", tcpSpec{v6: true, flags: tcpACK, payload: 100}, func(s *tcpSpec) {}, "[012]"},
		{"udp", tcpSpec{udp: true, payload: 100}, func(s *tcpSpec) {}, "[012]"},
		{"udp6", tcpSpec{udp: true, v6: true, payload: 100}, func(s *tcpSpec) {}, "[012]"},
		{"gap", base, func(s *tcpSpec) { s.seq++ }, "[0][1][2]"},
		{"push", base, func(s *tcpSpec) { s.flags |= tcpPSH }, "[01][2]"},
		{"end", base, func(s *tcpSpec) { s.flags |= tcpFIN }, "[01][2]"},
		{"cwr", base, func(s *tcpSpec) { s.flags |= tcpCWR }, "[0][12]"},
		{"ece", base, func(s *tcpSpec) { s.flags |= 0x40 }, "[0][1][2]"},
		{"urgent", base, func(s *tcpSpec) { s.flags |= tcpURG }, "[0][1][2]"},
		{"syn", base, func(s *tcpSpec) { s.flags |= tcpSYN }, "[0][1][2]"},
		{"reset", base, func(s *tcpSpec) { s.flags |= tcpRST }, "[0][1][2]"},
		{"no ack", base, func(s *tcpSpec) { s.flags = 0 }, "[0][1][2]"},
		{"other ack", base, func(s *tcpSpec) { s.ack++ }, "[0][1][2]"},
		{"other options", base, func(s *tcpSpec) { s.options-- }, "[0][1][2]"},
		{"shorter", base, func(s *tcpSpec) { s.payload-- }, "[01][2]"},
		{"longer", base, func(s *tcpSpec) { s.payload++ }, "[0][1][2]"},
		{"empty", base, func(s *tcpSpec) { s.payload = 0 }, "[0][1][2]"},
		{"padded", tcpSpec{flags: tcpACK, payload: 100}, func(s *tcpSpec) { s.payload, s.pad = 2, 4 }, "[01][2]"},
		{"hop limit", base, func(s *tcpSpec) { s.ttl = 1 }, "[0][1][2]"},
		{"may be fragmented", base, func(s *tcpSpec) { s.df = false }, "[0][1][2]"},
		{"identification", base, func(s *tcpSpec) { s.id += 7 }, "[0][1][2]"},
		{"bad checksum", base, func(s *tcpSpec) { s.badSum = true }, "[0][1][2]"},
		{"bad header checksum", base, func(s *tcpSpec) { s.ipv4Broken = true }, "[0][1][2]"},
		{"other sender", base, func(s *tcpSpec) { s.link = 9 }, "[0][1][2]"},
		{"other tags", base, func(s *tcpSpec) { s.tags = 1 }, "[0][1][2]"},
		{"udp without checksum", tcpSpec{udp: true, payload: 100}, func(s *tcpSpec) { s.noUDPSum = true }, "[0][1][2]"},
		{"udp longer", tcpSpec{udp: true, payload: 100}, func(s *tcpSpec) { s.payload = 101 }, "[0][12]"},
		// Another flow between is no obstacle, and comes behind what began before it.
		{"other flow", base, func(s *tcpSpec) { s.flow = 1 }, "[0][1][2]"},
	} {
		var frames [][]byte
		for i := range 3 {
			s := at(c.base, i)
			if i == 1 {
				c.change(&s)
			}
			frames = append(frames, tcpFrame(s))
		}
		if got := together(frames, NewJoiner(3, false, 1).Join(frames, everything)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	// A bad first one is found out by the second, which may begin anew.
	bad := at(base, 0)
	bad.badSum = true
	frames := [][]byte{tcpFrame(bad), tcpFrame(at(base, 1)), tcpFrame(at(base, 2))}
	if got := together(frames, NewJoiner(3, false, 1).Join(frames, everything)); got != "[0][12]" {
		t.Errorf("bad first one: %s", got)
	}
	// Two flows by turns.
	other := base
	other.flow = 1
	frames = [][]byte{tcpFrame(at(base, 0)), tcpFrame(at(other, 0)), tcpFrame(at(base, 1)), tcpFrame(at(other, 1))}
	if got := together(frames, NewJoiner(4, false, 1).Join(frames, everything)); got != "[02][13]" {
		t.Errorf("two flows: %s", got)
	}
	// Identifications that stay the same, where nothing may be fragmented.
	same := func(df bool) (frames [][]byte) {
		for i := range 3 {
			s := at(base, i)
			s.id, s.df = 0, df
			frames = append(frames, tcpFrame(s))
		}
		return frames
	}
	for df, want := range map[bool]string{true: "[012]", false: "[0][1][2]"} {
		frames := same(df)
		if got := together(frames, NewJoiner(3, false, 1).Join(frames, everything)); got != want {
			t.Errorf("identifications of 0, DF %v: %s", df, got)
		}
	}
	// A fragment may be of any flow: nothing is joined across it.
	frag := tcpFrame(tcpSpec{udp: true, payload: 10})
	frag[20] |= 0x20
	for _, between := range [][]byte{frag, unhex(t, routev6)} {
		frames = [][]byte{tcpFrame(at(base, 0)), between, tcpFrame(at(base, 1))}
		if got := together(frames, NewJoiner(3, false, 1).Join(frames, everything)); got != "[0][1][2]" {
			t.Errorf("across %x: %s", between, got)
		}
	}
	for _, between := range []string{arp, icmp} {
		frames = [][]byte{tcpFrame(at(base, 0)), unhex(t, between), tcpFrame(at(base, 1))}
		if got := together(frames, NewJoiner(3, false, 1).Join(frames, everything)); got != "[02][1]" {
			t.Errorf("across %s: %s", between, got)
		}
	}
}

// together lists which of frames are in which of got, by the addresses of their payloads.
func together(frames [][]byte, got []Frame) string {
	of := func(p []byte) int {
		for i, f := range frames {
			if len(p) > 0 && &f[:cap(f)][cap(f)-1] == &p[:cap(p)][cap(p)-1] {
				return i
			}
		}
		return -1
	}
	var out string
	for _, g := range got {
		out += "["
		for i, p := range g.Parts {
			if len(g.Parts) > 1 && i == 0 {
				continue // headers
			}
			out += fmt.Sprint(of(p))
		}
		out += "]"
	}
	return out
}

// No segment is longer than the IP length field permits, nor has more frames than receivers accept.
func TestJoinBounds(t *testing.T) {
	for _, c := range []struct {
		base  tcpSpec
		n     int
		first int
	}{
		{tcpSpec{flags: tcpACK, payload: 1448}, 60, (MaxIP - 40) / 1448},
		{tcpSpec{v6: true, flags: tcpACK, payload: 1428}, 60, (MaxIP - 60) / 1428},
		{tcpSpec{flags: tcpACK, payload: 10}, 300, maxJoinedTCP},
		{tcpSpec{udp: true, payload: 10}, 300, maxJoinedUDP},
	} {
		var frames [][]byte
		for i := range c.n {
			s := c.base
			s.id, s.seq = uint16(i), uint32(i*s.payload)
			frames = append(frames, tcpFrame(s))
		}
		got := NewJoiner(c.n, false, 1).Join(frames, everything)
		if len(got) != (c.n+c.first-1)/c.first || len(got[0].Parts) != 1+c.first {
			t.Errorf("%+v: %d segments, the first of %d", c.base, len(got), len(got[0].Parts)-1)
		}
	}
}

// What is joined and cut again is what came, flow by flow in its order.
func TestJoinThenSplit(t *testing.T) {
	j := NewJoiner(64, false, 5)
	rapid.Check(t, func(rt *rapid.T) {
		const flows = 3
		var next [flows]tcpSpec
		for f := range next {
			next[f] = tcpSpec{flow: byte(f), v6: rapid.Bool().Draw(rt, "v6"), udp: rapid.Bool().Draw(rt, "udp"),
				tags: rapid.IntRange(0, 1).Draw(rt, "tags"),
				df:   rapid.Bool().Draw(rt, "df"), seq: rapid.Uint32().Draw(rt, "seq"), payload: rapid.IntRange(1,
					300).Draw(rt, "payload")}
		}
		var in [][]byte
		for range rapid.IntRange(1, 64).Draw(rt, "frames") {
			f := rapid.IntRange(0, flows-1).Draw(rt, "flow")
			s := next[f]
			s.flags = tcpACK
			switch rapid.IntRange(0, 12).Draw(rt, "what") {
			case 0:
				s.flags |= tcpPSH
			case 1:
				s.flags |= tcpCWR
			case 2:
				s.flags |= tcpFIN
			case 3:
				s.badSum = true
			case 4:
				s.payload = rapid.IntRange(0, 300).Draw(rt, "other payload")
			case 5:
				s.seq += 5
			case 6:
				s.id += 3
			case 7:
				s.noUDPSum = s.udp
			case 8:
				s.ack++
			}
			s.salt = byte(len(in))
			in = append(in, tcpFrame(s))
			next[f].seq += uint32(s.payload)
			next[f].id++
		}
		can := Features(rapid.Uint8Range(0, uint8(everything)).Draw(rt, "features"))
		var want, got [flows][]string
		keep := func(to *[flows][]string, b []byte) {
			info := Classify(b)
			f := be.Uint16(b[info.L4:]) - 1000
			to[f] = append(to[f], hex.EncodeToString(b))
		}
		for _, b := range in {
			keep(&want, b)
		}
		for i, fr := range j.Join(in, can) {
			whole := fr.Append(nil)
			if len(whole) != fr.Len {
				rt.Fatalf("%d octets, not %d", len(whole), fr.Len)
			}
			info := Classify(whole)
			off := fr.Off
			if why := off.Check(whole, &info); why != OK || off != fr.Off {
				rt.Fatalf("%v: %+v, %+v", why, off, fr.Off)
			}
			if need := map[uint8]Features{GSOTCPv4: FeatureTSO4, GSOTCPv6: FeatureTSO6}[off.Kind()]; need&^can != 0 {
				rt.Fatalf("features %b: %+v", can, off)
			}
			cut, why := split(t, whole, off, &info, 0)
			if why != OK {
				rt.Fatal(why)
			}
			for _, c := range cut {
				keep(&got, c)
			}
			n := 0
			j.Each(i, func(k int) {
				if n == len(cut) || !bytes.Equal(in[k], cut[n]) {
					rt.Fatalf("frame %d is said to be in what it is not in", k)
				}
				n++
			})
			if n != len(cut) {
				rt.Fatalf("%d frames are said to be in one of %d", n, len(cut))
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			rt.Fatalf("-came +left\n%s", d)
		}
	})
}

func FuzzJoin(f *testing.F) {
	cat := func(frames []string) (b []byte) {
		for _, s := range frames {
			p := unhex(f, s)
			b = append(append(b, byte(len(p)>>8), byte(len(p))), p...)
		}
		return b
	}
	f.Add(cat(frames4), byte(everything))
	f.Add(cat(frames6), byte(everything))
	f.Add(cat([]string{arp, tcpv4, udpv4, tagged, qinq, tcpv6, hopv6, fragv4}), byte(everything))
	f.Fuzz(func(t *testing.T, b []byte, can byte) {
		var frames [][]byte
		for len(b) >= 2 && len(frames) < 32 {
			n := min(int(be.Uint16(b)), len(b)-2)
			frames = append(frames, b[2:2+n:2+n])
			b = b[2+n:]
		}
		if len(frames) == 0 {
			return
		}
		j := NewJoiner(len(frames), false, 1)
		out := j.Join(frames, Features(can))
		// Each frame is there once: whole, or its payload.
		n, seen := 0, make([]bool, len(frames))
		for i, o := range out {
			j.Each(i, func(k int) {
				if seen[k] {
					t.Fatalf("frame %d is there twice", k)
				}
				seen[k] = true
			})
			whole := o.Append(nil)
			if len(whole) != o.Len {
				t.Fatal("length")
			}
			if len(o.Parts) == 1 {
				n++
				continue
			}
			n += len(o.Parts) - 1
			in := Classify(whole)
			off := o.Off
			if why := off.Check(whole, &in); why != OK || off != o.Off {
				t.Fatalf("%v: %+v, %+v", why, off, o.Off)
			}
			if cut, why := split(t, whole, off, &in, 0); why != OK || len(cut) != len(o.Parts)-1 {
				t.Fatalf("cut into %d, not %d: %v", len(cut), len(o.Parts)-1, why)
			}
		}
		if n != len(frames) || slices.Contains(seen, false) {
			t.Fatalf("%d of %d frames, %v", n, len(frames), seen)
		}
	})
}

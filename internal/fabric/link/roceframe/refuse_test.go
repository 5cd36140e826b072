// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// packetFrom returns one packet as it leaves a node, for 10.9.0.2 or fd09::2 at macB.
func packetFrom(t testing.TB, src, dst string, n int) []byte {
	t.Helper()
	a := newPort(macA, gid(src))
	a.resolve(1, gid(dst), macB)
	run := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff, DestQPN: 5}, Count: 1,
		Path: &ib.Path{SGID: gid(src), DGID: gid(dst), SrcPort: 0xc000}, Data: mem.BytesPayload(random(n))}
	a.Send(1, &run, mem.NewBatch(4096))
	frames, off := a.read()
	return cut(t, frames[0], off[0])[0]
}

// ipSum makes the checksum of an IPv4 header right again.
func ipSum(f []byte) []byte {
	h := f[14 : 14+int(f[14]&15)*4]
	h[10], h[11] = 0, 0
	be.PutUint16(h[10:], ether.Checksum(h))
	return f
}

// TestRefusals: whatever is wrong with a packet is counted by its name, and nothing comes of it; nor does the IP
// stack get it.
func TestRefusals(t *testing.T) {
	v4, v6 := packetFrom(t, "10.9.0.1", "10.9.0.2", 100), packetFrom(t, "fd09::1", "fd09::2", 100)
	noSum := func(f []byte, udp int) []byte { f[udp+6], f[udp+7] = 0, 0; return f }
	insert := func(f []byte, at int, b ...byte) []byte { return slices.Insert(f, at, b...) }
	for _, x := range []struct {
		name   string
		of     []byte
		change func(f []byte) []byte
		want   string // empty: accepted; "-": for another receiver
	}{
		{"IPv4", v4, func(f []byte) []byte { return f }, ""},
		{"IPv6", v6, func(f []byte) []byte { return f }, ""},
		{"padding of the network", v4, func(f []byte) []byte { return append(f, 1, 2, 3) }, ""},
		{"no UDP checksum", v4, func(f []byte) []byte { return noSum(f, 34) }, ""},
		{"no UDP checksum, IPv6", v6, func(f []byte) []byte { return noSum(f, 54) }, ""},
		{"UDP checksum", v4, func(f []byte) []byte { f[41] ^= 1; return f }, "drop_udp_checksum"},
		{"UDP checksum, IPv6", v6, func(f []byte) []byte { f[61] ^= 1; return f }, "drop_udp_checksum"},
		{"a bit of payload", v4, func(f []byte) []byte { f[70] ^= 4; return noSum(f, 34) }, "drop_bad_icrc"},
		{"a bit of payload, IPv6", v6, func(f []byte) []byte { f[90] ^= 4; return noSum(f, 54) }, "drop_bad_icrc"},
		{"another identification", v4, func(f []byte) []byte { f[19]++; return ipSum(f) }, "drop_bad_icrc"},
		{"without DF", v4, func(f []byte) []byte { f[20] = 0; return ipSum(f) }, "drop_bad_icrc"},
		{"other TTL and TOS", v4, func(f []byte) []byte { f[22], f[15] = 1, 0xb8; return ipSum(f) }, ""},
		{"IPv4 checksum", v4, func(f []byte) []byte { f[24]++; return f }, "drop_ip_checksum"},
		{"options", v4, func(f []byte) []byte {
			f = insert(f, 34, 1, 1, 1, 0)
			f[14] = 0x46
			be.PutUint16(f[16:], be.Uint16(f[16:])+4)
			return ipSum(f)
		}, "drop_ip_version"},
		{"hop-by-hop options", v6, func(f []byte) []byte {
			f = insert(f, 54, 17, 0, 1, 4, 0, 0, 0, 0)
			f[20] = 0
			be.PutUint16(f[18:], be.Uint16(f[18:])+8)
			return f
		}, "drop_not_roce"},
		{"first fragment", v4, func(f []byte) []byte { f[20] |= 0x20; return ipSum(f) }, "drop_ip_fragment"},
		{"first fragment, IPv6", v6, func(f []byte) []byte {
			f = insert(f, 54, 17, 0, 0, 1, 0, 0, 0, 9)
			f[20] = 44
			be.PutUint16(f[18:], be.Uint16(f[18:])+8)
			return f
		}, "drop_ip_fragment"},
		{"later fragment", v4, func(f []byte) []byte { f[21] = 9; return ipSum(f) }, "-"},
		{"VLAN tag", v4, func(f []byte) []byte { return insert(f, 12, 0x81, 0, 0, 5) }, "drop_vlan"},
		{"UDP length", v4, func(f []byte) []byte { f[39]--; return f }, "drop_ip_length"},
		{"another port", v4, func(f []byte) []byte { f[37]++; return f }, "-"},
		{"TCP", v4, func(f []byte) []byte { f[23] = 6; return ipSum(f) }, "-"},
		{"ARP", v4, func(f []byte) []byte { f[13] = 6; return f }, "-"},
		{"another MAC", v4, func(f []byte) []byte { f[5]++; return f }, "-"},
		{"broadcast by Ethernet", v4, func(f []byte) []byte { copy(f, "\xff\xff\xff\xff\xff\xff"); return f },
			"drop_not_local"},
		{"for another", packetFrom(t, "10.9.0.1", "10.9.0.3", 8), func(f []byte) []byte { return f }, "drop_not_local"},
		{"from a group", packetFrom(t, "239.0.0.1", "10.9.0.2", 8), func(f []byte) []byte { return f },
			"drop_bad_source"},
		{"from nobody", v6, func(f []byte) []byte { clear(f[22:38]); return noSum(f, 54) }, "drop_bad_source"},
		{"from this host", packetFrom(t, "127.0.0.1", "10.9.0.2", 8), func(f []byte) []byte { return f },
			"drop_bad_source"},
		{"unknown opcode", v4, func(f []byte) []byte { f[42] = 0xff; return noSum(f, 34) }, "drop_bad_opcode"},
		{"transport version", v4, func(f []byte) []byte { f[43] |= 1; return noSum(f, 34) }, "drop_transport_version"},
	} {
		b := newPort(macB, gid("10.9.0.2"), gid("fd09::2"))
		f := x.change(bytes.Clone(x.of))
		before := bytes.Clone(f)
		taken := b.Receive(f, &ether.Offload{})
		if taken == (x.want == "-") {
			t.Errorf("%s: taken %v", x.name, taken)
		}
		want := map[string]uint64{}
		if x.want != "" && x.want != "-" {
			want[x.want] = 1
		}
		if d := cmp.Diff(want, b.dropped()); d != "" {
			t.Errorf("%s: %s", x.name, d)
		}
		if n := len(b.Recv()); n > 0 != (x.want == "") || n != b.arrived {
			t.Errorf("%s: %d runs, %d times told", x.name, n, b.arrived)
		}
		if !bytes.Equal(f, before) {
			t.Errorf("%s: the frame was changed", x.name)
		}
	}
	// Nothing of a packet cut short is accepted.
	for _, f := range [][]byte{v4, v6} {
		b := newPort(macB, gid("10.9.0.2"), gid("fd09::2"))
		for n := range f {
			b.Receive(f[:n:n], &ether.Offload{})
		}
		if b.Recv() != nil || b.arrived != 0 {
			t.Error("a packet that was cut short is accepted")
		}
	}
	// A whole frame from within the node has no checksum yet: there is none to check.
	b := newPort(macB, gid("10.9.0.2"))
	f := bytes.Clone(v4)
	f[41] ^= 1
	if !b.Receive(f, &ether.Offload{Flags: ether.NeedsCsum, CsumStart: 34, CsumOffset: 6}) || len(b.Recv()) != 1 {
		t.Errorf("%v", b.dropped())
	}
}

// FuzzTake: whatever a frame holds, nothing crashes, one that is taken was counted once, and what is accepted
// has the right ICRC.
func FuzzTake(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(framed(v.Frame, macB, macA), false)
	}
	f.Add([]byte{}, true)
	dst4, dst6 := gid("192.0.2.2"), gid("2001:db8::2")
	b := newPort(macB, dst4, dst6)
	f.Fuzz(func(t *testing.T, frame []byte, partial bool) {
		before := b.Counters()
		o := ether.Offload{}
		if partial {
			o.Flags = ether.NeedsCsum
		}
		taken := b.Receive(frame, &o)
		var was, is uint64
		before.Each(count(&was))
		after := b.Counters()
		after.Each(count(&is))
		if (is-was == 1) != taken || is-was > 1 {
			t.Fatalf("taken %v, counted %d", taken, is-was)
		}
		runs := b.Recv()
		if uint64(len(runs)) != after.RcvdPackets-before.RcvdPackets {
			t.Fatalf("%d runs", len(runs))
		}
		for i := range runs {
			r := &runs[i]
			if r.Path.DGID != dst4 && r.Path.DGID != dst6 || r.Data.Len > len(frame) || int(r.MTU) != r.Data.Len {
				t.Errorf("%+v", r)
			}
		}
	})
}

// count adds up packets that were accepted or refused.
func count(to *uint64) func(string, uint64) {
	return func(name string, v uint64) {
		if name == "rcvd_packets" || name == "rcvbuf_overflow" || len(name) > 5 && name[:5] == "drop_" {
			*to += v
		}
	}
}

// TestNeighbours is the life of what is known of neighbours.
func TestNeighbours(t *testing.T) {
	ga, gb := gid("10.9.0.1"), gid("10.9.0.2")
	a := newPort(macA, ga)
	batch := mem.NewBatch(4096)
	send := func(now mono.Time, to ib.GID) {
		run := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 2, MTU: 1024,
			Path: &ib.Path{SGID: ga, DGID: to, SrcPort: 0xc000}, Data: mem.BytesPayload(random(2000))}
		if a.Send(now, &run, batch) != mem.OK {
			t.Fatal("a fault")
		}
	}
	state := func(now mono.Time, want ...Neighbour) {
		t.Helper()
		if d := cmp.Diff(want, a.Neighbours(now), cmp.Comparer(func(x, y Neighbour) bool { return x == y })); d != "" {
			t.Error(d)
		}
	}
	wait := func(n int) (frames [][]byte) {
		t.Helper()
		if frames, _ = a.read(); len(frames) != n {
			t.Fatalf("%d frames, want %d; %v", len(frames), n, a.dropped())
		}
		return frames
	}
	now := mono.Time(1)
	a.full = true // no resolution possible: dropped; the next burst requests it again
	send(now, gb)
	if len(a.asked) != 0 || a.dropped()["drop_unresolved"] != 2 {
		t.Errorf("%v", a.dropped())
	}
	a.full = false
	send(now, gb)
	send(now, gb) // requested once
	wait(0)
	state(now, Neighbour{IP: gb.Addr(), State: Resolving, Frames: 2})
	if len(a.asked) != 1 || a.asked[0] != gb.Addr() {
		t.Errorf("asked %v", a.asked)
	}
	a.Resolved(now, gb.Addr(), macB, true)
	a.Resolved(now, gb.Addr(), macA, true) // not requested
	for _, f := range wait(2) {
		if [6]byte(f) != macB {
			t.Errorf("%x", f)
		}
	}
	send(now.Add(fresh/2), gb)
	wait(1)
	state(now.Add(fresh/2), Neighbour{IP: gb.Addr(), MAC: macB, State: Reachable, Since: fresh / 2})
	// Requested again after a while; a changed MAC is used.
	now = now.Add(fresh)
	send(now, gb)
	wait(1)
	if len(a.asked) != 2 {
		t.Errorf("asked %v", a.asked)
	}
	a.Resolved(now, gb.Addr(), macA, true)
	send(now, gb)
	if f := wait(1); [6]byte(f[0]) != macA {
		t.Errorf("%x", f)
	}
	// It does not answer any more.
	now = now.Add(fresh)
	send(now, gb)
	a.Resolved(now, gb.Addr(), [6]byte{}, false)
	a.c = Counters{}
	wait(1)
	send(now.Add(fresh/2), gb)
	state(now, Neighbour{IP: gb.Addr(), State: Unreachable})
	if len(a.asked) != 3 || a.dropped()["drop_unreachable"] != 2 {
		t.Errorf("asked %v, %v", a.asked, a.dropped())
	}
	now = now.Add(fresh)
	send(now, gb)
	if len(a.asked) != 4 {
		t.Errorf("asked %v", a.asked)
	}
	// The MAC of a group is no answer.
	a.Resolved(now, gb.Addr(), [6]byte{1, 0, 0x5e}, true)
	state(now, Neighbour{IP: gb.Addr(), State: Unreachable})

	// What waits is bounded, for one and for all.
	a.c = Counters{}
	far := gid("10.9.0.3")
	for range maxHeld/2000 + 10 {
		send(now, far)
	}
	if a.held > maxHeld+(4<<10) || a.dropped()["drop_unresolved"] == 0 {
		t.Errorf("%d octets held, %v", a.held, a.dropped())
	}
	for i := range 8 {
		for range maxHeld/2000 + 10 {
			send(now, gid("10.9.1."+string(rune('1'+i))))
		}
	}
	if a.held > maxHeldAll+(4<<10) {
		t.Errorf("%d octets held", a.held)
	}
	// The table is bounded too; the least recently used neighbour is replaced.
	for i := range maxNeighbours {
		send(now.Add(time.Duration(i+1)), ib.GID{10: 0xff, 11: 0xff, 12: 10, 13: 8, 14: byte(i >> 8), 15: byte(i)})
	}
	if l := a.Neighbours(now); len(l) != maxNeighbours ||
		slices.ContainsFunc(l, func(n Neighbour) bool { return n.IP == far.Addr() }) {
		t.Errorf("%d neighbours", len(l))
	}
	a.Reset()
	if a.held != 0 || len(a.Neighbours(now)) != 0 || a.dropped()["drop_reset"] == 0 {
		t.Errorf("%d octets held, %v", a.held, a.dropped())
	}
	wait(0)
}

// TestNeighbourLeastUsed: in a full table the one used least of late gives way.
func TestNeighbourLeastUsed(t *testing.T) {
	a := newPort(macA, gid("10.9.0.1"))
	at := func(i int) ib.GID { return ib.GID{10: 0xff, 11: 0xff, 12: 10, 13: 8, 14: byte(i >> 8), 15: byte(i)} }
	for range 2 {
		var model []int // in the order of their use
		for step, x := 0, uint32(1); step < 5*maxNeighbours; step++ {
			x = x*1664525 + 1013904223
			i := int(x >> 16 % (3 * maxNeighbours / 2))
			a.find(1, &ib.Path{DGID: at(i)}) // all at the same time
			if k := slices.Index(model, i); k >= 0 {
				model = slices.Delete(model, k, k+1)
			} else if len(model) == maxNeighbours {
				model = model[1:]
			}
			model = append(model, i)
		}
		list := a.Neighbours(1)
		slices.Sort(model)
		if len(list) != maxNeighbours || !slices.EqualFunc(list, model,
			func(n Neighbour, i int) bool { return n.IP == at(i).Addr() }) {
			t.Errorf("%d neighbours are not those used of late", len(list))
		}
		a.Reset()
	}
}

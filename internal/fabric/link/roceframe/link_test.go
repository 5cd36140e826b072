// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// TestGolden builds the bytes of each packet in the vectors from its fields, and parses the fields
// from the bytes: both with the ICRC of the vectors. The UDP checksum is optional there, and always
// computed here.
func TestGolden(t *testing.T) {
	sent := 0
	for _, v := range vectors(t) {
		var h wire.IPUDP
		body, why := h.Parse(v.Frame)
		if why != wire.OK {
			t.Fatalf("%s: %v", v.ID, why)
		}
		b := newPort(macB, h.Dst)
		b.member[h.Dst] = h.Dst.IsMulticast()
		to := macB
		if h.Dst.IsMulticast() {
			to = groupMAC(h.Dst)
		}
		in := framed(v.Frame, to, macA)
		if strings.HasSuffix(v.ID, "-inv-variant") {
			copy(in[ether.HeaderLen+h.Len()-2:], "\x00\x00") // the UDP checksum, which is made up there
		}
		if !b.Receive(in, &ether.Offload{}) {
			t.Errorf("%s: not taken", v.ID)
		}
		runs := b.Recv()
		var want wire.Headers
		payload, why := want.Parse(body)
		if !v.Valid || why != wire.OK {
			if len(runs) != 0 || len(b.dropped()) != 1 {
				t.Errorf("%s: %d runs, %v", v.ID, len(runs), b.dropped())
			}
			continue
		}
		if len(runs) != 1 {
			t.Errorf("%s: refused: %v", v.ID, b.dropped())
			continue
		}
		r := &runs[0]
		path := ib.Path{SGID: h.Src, DGID: h.Dst, TClass: h.TClass, HopLimit: h.HopLimit, FlowLabel: h.FlowLabel,
			SrcPort: h.SrcPort, Function: 7}
		if d := cmp.Diff(path, *r.Path); d != "" {
			t.Errorf("%s: path: %s", v.ID, d)
		}
		if d := cmp.Diff(want, r.Headers); d != "" || r.IPv4 != h.IPv4 || r.Count != 1 ||
			!bytes.Equal(data(t, r), payload) {
			t.Errorf("%s: %+v\n%s", v.ID, r, d)
		}
		if h.IPv4 && !h.DF || h.Src == h.Dst {
			continue // DF is always set here; a port sends no frames to itself
		}
		// And out again.
		a := newPort(macA, h.Src)
		a.resolve(1, h.Dst, macB)
		a.id = h.ID
		run := pkt.Burst{Headers: r.Headers, Count: 1, MTU: 4096, Path: &path, Data: mem.BytesPayload(payload)}
		if res := a.Send(1, &run, mem.NewBatch(4096)); res != mem.OK || len(a.dropped()) != 0 {
			t.Fatalf("%s: %v, %v", v.ID, res, a.dropped())
		}
		frames, off := a.read()
		if len(frames) != 1 {
			t.Fatalf("%s: %d frames", v.ID, len(frames))
		}
		got := cut(t, frames[0], off[0])[0]
		wantFrame := framed(v.Frame, to, macA)
		udp := ether.HeaderLen + h.Len() - 8
		if !sound(got[ether.HeaderLen:udp], got[udp:], h.IPv4) {
			t.Errorf("%s: the UDP checksum is wrong", v.ID)
		}
		copy(got[udp+6:udp+8], wantFrame[udp+6:])
		if bth := udp + 8; got[bth+4]&0x3f == 0 && wantFrame[bth+4]&0x3f != 0 || wantFrame[bth+8]&0x7f != 0 {
			continue // reserved bits, which are sent zero
		}
		if d := cmp.Diff(wantFrame, got); d != "" {
			t.Errorf("%s: %s", v.ID, d)
		}
		sent++
	}
	if sent < 25 {
		t.Errorf("%d packets were sent", sent)
	}
}

// sound checks a UDP checksum by the text of RFC 768, an octet at a time.
func sound(ip, udp []byte, v4 bool) bool {
	addrs := ip[8:40]
	if v4 {
		addrs = ip[12:20]
	}
	all := append(append([]byte{}, addrs...), 0, 17, byte(len(udp)>>8), byte(len(udp)))
	all = append(all, udp...)
	if len(all)%2 != 0 {
		all = append(all, 0)
	}
	sum := 0
	for i := 0; i < len(all); i += 2 {
		sum += int(all[i])<<8 | int(all[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff && udp[6]|udp[7] != 0
}

var flows = []struct{ name, a, b string }{{"IPv4", "10.9.0.1", "10.9.0.2"}, {"IPv6", "fd09::1", "fd09::2"},
	{"link-local", "fe80::a", "fe80::b"}}

func random(n int) []byte {
	b := make([]byte, n)
	g := rand.NewChaCha8([32]byte{1})
	g.Read(b)
	return b
}

func packets(n, mtu int) uint32 { return uint32(max(1, (n+mtu-1)/mtu)) }

// TestTrains sends runs of all shapes: each becomes few frames, which are cut into packets that each have the right
// ICRC, for an identification of their own, and are the same run at the other end.
func TestTrains(t *testing.T) {
	for _, f := range flows {
		ga, gb := gid(f.a), gid(f.b)
		a, b := newPort(macA, ga), newPort(macB, gb)
		a.resolve(1, gb, macB)
		a.id = 0xfff0 // wraps
		batch := mem.NewBatch(4096)
		for _, x := range []struct {
			op     ib.Opcode
			n, mtu int
			frames int
		}{
			{ib.SendOnly, 0, 1024, 1}, {ib.SendOnly, 1, 1024, 1}, {ib.SendOnly, 1023, 1024, 1}, {ib.SendOnly, 1024,
				1024, 1},
			{ib.SendOnly, 1025, 1024, 1}, {ib.WriteOnly, 1025, 1024, 1}, {ib.WriteOnly, 4096, 1024, 2},
			{ib.ReadRespOnly, 5000, 1024, 2}, {ib.WriteMiddle, 64 << 10, 1024, 2}, {ib.WriteOnly, MaxRun, 4096,
				4}, {ib.SendOnly, MaxRun - 3, 256, 8},
			{ib.ServiceUC | ib.SendOnly, 9000, 2048, 1}, {ib.ServiceUD | ib.SendOnly, 4096, 4096, 1},
		} {
			payload := random(x.n)
			run := pkt.Burst{Headers: wire.Headers{Opcode: x.op, PKey: 0xffff, DestQPN: 0x4711, PSN: 0xfffffe,
				AckReq: true, VA: 5, RKey: 6, DMALen: uint32(x.n), Syndrome: 3, MSN: 9},
				Count: packets(x.n, x.mtu), MTU: uint32(x.mtu), Path: &ib.Path{SGID: ga, DGID: gb, TClass: 0x68,
					HopLimit: 9, SrcPort: 0xc123, Function: 7}, Data: mem.BytesPayload(payload)}
			if run.Count == 1 {
				run.MTU = uint32(x.n)
			}
			if res := a.Send(1, &run, batch); res != mem.OK {
				t.Fatal(res)
			}
			frames, off := a.read()
			if len(frames) != x.frames {
				t.Errorf("%s: %v of %d in %d: %d frames, want %d", f.name, x.op, x.n, x.mtu, len(frames), x.frames)
			}
			ids := map[uint16]bool{}
			var got []byte
			var count uint32
			for i := range frames {
				for _, p := range cut(t, frames[i], off[i]) {
					if len(p) > x.mtu+ether.HeaderLen+80 {
						t.Errorf("a packet of %d octets", len(p))
					}
					ids[be.Uint16(p[18:])] = true
					if !b.Receive(p, &ether.Offload{}) {
						t.Fatal("a packet was not taken")
					}
				}
			}
			runs := b.Recv()
			for i := range runs {
				count += runs[i].Count
				got = append(got, data(t, &runs[i])...)
			}
			if count != run.Count || !bytes.Equal(got, payload) || len(b.dropped()) != 0 {
				t.Fatalf("%s: %v of %d in %d: %d of %d packets, %d octets, %v", f.name, x.op, x.n, x.mtu, count,
					run.Count, len(got), b.dropped())
			}
			if len(runs) != 1 || runs[0].Opcode != run.Opcode || runs[0].PSN != run.PSN {
				t.Errorf("%s: %v of %d in %d became %d runs: %+v", f.name, x.op, x.n, x.mtu, len(runs), runs[0])
			}
			if gb.IsIPv4() && len(ids) != int(run.Count) {
				t.Errorf("%d packets have %d identifications", run.Count, len(ids))
			}
		}
		if d := a.dropped(); len(d) != 0 {
			t.Error(d)
		}
	}
}

// TestNoAllocation: nothing is allocated for a packet, in either direction.
func TestNoAllocation(t *testing.T) {
	for _, f := range flows {
		ga, gb := gid(f.a), gid(f.b)
		a, b := newPort(macA, ga), newPort(macB, gb)
		a.resolve(1, gb, macB)
		batch := mem.NewBatch(4096)
		run := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 16, MTU: 1024,
			Path: &ib.Path{SGID: ga, DGID: gb, SrcPort: 0xc123}, Data: mem.BytesPayload(random(16 << 10))}
		frames, off := make([][]byte, 8), make([]ether.Offload, 8)
		a.Send(1, &run, batch)
		f0, o0 := a.read()
		var all [][]byte
		for i := range f0 {
			all = append(all, cut(t, f0[i], o0[i])...)
		}
		none := ether.Offload{}
		if n := testing.AllocsPerRun(100, func() {
			a.Send(1, &run, batch)
			for a.Read(frames, off) > 0 {
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations for a run that is sent", f.name, n)
		}
		if n := testing.AllocsPerRun(100, func() {
			for _, p := range all {
				b.Receive(p, &none)
			}
			b.Recv()
		}); n != 0 {
			t.Errorf("%s: %v allocations for packets that come", f.name, n)
		}
	}
}

// TestGroups sends to groups by their MACs without a resolution, and receives packets for groups with
// a member at the port.
func TestGroups(t *testing.T) {
	for _, x := range []struct {
		from, group string
		mac         [6]byte
	}{{"10.9.0.1", "239.129.2.3", [6]byte{1, 0, 0x5e, 1, 2, 3}}, {"fd09::1", "ff0e::1:2:3", [6]byte{0x33, 0x33, 0, 2,
		0, 3}}} {
		g := gid(x.group)
		a, b := newPort(macA, gid(x.from)), newPort(macB, gid("10.9.0.2"))
		run := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff,
			DestQPN: ib.QPNMulticast}, Count: 1, Path: &ib.Path{SGID: gid(x.from), DGID: g, SrcPort: 0xc000},
			Data: mem.BytesPayload(random(100))}
		a.Send(1, &run, mem.NewBatch(4096))
		frames, off := a.read()
		if len(frames) != 1 || len(a.asked) != 0 || [6]byte(frames[0]) != x.mac || [6]byte(frames[0][6:]) != macA {
			t.Fatalf("%x, asked %v, %v", frames, a.asked, a.dropped())
		}
		p := cut(t, frames[0], off[0])[0]
		if !b.Receive(p, &ether.Offload{}) || b.dropped()["drop_not_local"] != 1 || len(b.Recv()) != 0 {
			t.Errorf("nobody is in the group: %v", b.dropped())
		}
		b.member[g] = true
		if !b.Receive(p, &ether.Offload{}) || b.arrived != 1 || len(b.Recv()) != 1 {
			t.Errorf("somebody is: %v", b.dropped())
		}
	}
}

// TestStatedMAC: frames on a path with a MAC go there, to a station and to a group, without a resolution. Frames to the
// port itself do not leave.
func TestStatedMAC(t *testing.T) {
	mac := [6]byte{2, 7, 7, 7, 7, 7}
	for _, x := range [][2]string{{"10.9.0.1", "10.9.0.2"}, {"fd09::1", "fd09::2"}, {"10.9.0.1", "239.129.2.3"},
		{"fd09::1", "ff0e::1:2:3"}} {
		a := newPort(macA, gid(x[0]))
		a.resolve(1, gid("10.9.0.2"), macB) // what the port knows does not count
		a.asked = nil
		run := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff}, Count: 1,
			Path: &ib.Path{SGID: gid(x[0]), DGID: gid(x[1]), DMAC: mac, SrcPort: 0xc000},
			Data: mem.BytesPayload(random(100))}
		batch := mem.NewBatch(4096)
		a.Send(1, &run, batch)
		frames, _ := a.read()
		if len(frames) != 1 || len(a.asked) != 0 || [6]byte(frames[0]) != mac || [6]byte(frames[0][6:]) != macA {
			t.Fatalf("to %s: %x, asked %v, %v", x[1], frames, a.asked, a.dropped())
		}
		if n := testing.AllocsPerRun(100, func() {
			a.Send(1, &run, batch)
			a.head = len(a.frames)
		}); n != 0 {
			t.Errorf("%v allocations for a run that is sent", n)
		}
		run.Path.DGID = run.Path.SGID
		a.Send(1, &run, batch)
		if frames, _ := a.read(); len(frames) != 0 || len(a.Recv()) != 1 {
			t.Errorf("%d frames to the port itself left", len(frames))
		}
	}
}

// TestOwnAddress: what is sent to the port itself comes back, checked as everything else.
func TestOwnAddress(t *testing.T) {
	g := gid("10.9.0.1")
	a := newPort(macA, g)
	payload := random(5000)
	run := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 5, MTU: 1024,
		Path: &ib.Path{SGID: g, DGID: g, SrcPort: 0xc000}, Data: mem.BytesPayload(payload)}
	a.Send(1, &run, mem.NewBatch(4096))
	if frames, _ := a.read(); len(frames) != 0 {
		t.Errorf("%d frames left", len(frames))
	}
	if runs := a.Recv(); len(runs) != 1 || !bytes.Equal(data(t, &runs[0]), payload) || len(a.dropped()) != 0 {
		t.Errorf("%d runs, %v", len(runs), a.dropped())
	}
}

// TestSendRefusals: what cannot be sent is counted by its name, and leaves nothing behind.
func TestSendRefusals(t *testing.T) {
	ga, gb := gid("10.9.0.1"), gid("10.9.0.2")
	good := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 4, MTU: 1024,
		Path: &ib.Path{SGID: ga, DGID: gb, SrcPort: 0xc000}, Data: mem.BytesPayload(random(4000))}
	for _, x := range []struct {
		why    string
		change func(r *pkt.Burst)
		n      uint64
	}{
		{"drop_path", func(r *pkt.Burst) { r.Path = &ib.Path{SGID: gb, DGID: ga} }, 4},
		{"drop_path", func(r *pkt.Burst) { r.Path = &ib.Path{SGID: ga, DGID: gid("fd09::2")} }, 4},
		{"drop_path", func(r *pkt.Burst) { r.Path = &ib.Path{SGID: ga} }, 4},
		{"drop_burst", func(r *pkt.Burst) { r.Count = 3 }, 3},
		{"drop_burst", func(r *pkt.Burst) { r.Count = 0 }, 1},
		{"drop_burst", func(r *pkt.Burst) { r.MTU = 8192 }, 4},
		{"drop_burst", func(r *pkt.Burst) {
			r.Count, r.MTU = MaxCount+1, 256
			r.Data = mem.BytesPayload(random(MaxCount*256 + 1))
		}, MaxCount + 1},
		{"drop_burst", func(r *pkt.Burst) { r.Opcode = 0xff }, 4},
		{"drop_source_fault", func(r *pkt.Burst) {
			r.Data = mem.Payload{Segs: []mem.Seg{{Len: 10, Bytes: make([]byte, 10)}}, Len: 4000}
		}, 4},
	} {
		a := newPort(macA, ga)
		a.resolve(1, gb, macB)
		r := good
		x.change(&r)
		a.Send(1, &r, mem.NewBatch(4096))
		if d := cmp.Diff(map[string]uint64{x.why: x.n}, a.dropped()); d != "" {
			t.Errorf("%s: %s", x.why, d)
		}
		if frames, _ := a.read(); len(frames) != 0 || a.id != 0 {
			t.Errorf("%s: %d frames, identification %d", x.why, len(frames), a.id)
		}
	}
}

// TestFull: bursts beyond the room flush the link, and are dropped if that frees nothing.
func TestFull(t *testing.T) {
	ga, gb := gid("10.9.0.1"), gid("10.9.0.2")
	a := newPort(macA, ga)
	a.resolve(1, gb, macB)
	run := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 32, MTU: 4096,
		Path: &ib.Path{SGID: ga, DGID: gb, SrcPort: 0xc000}, Data: mem.BytesPayload(random(MaxRun))}
	batch := mem.NewBatch(4096)
	for range 20 {
		a.Send(1, &run, batch)
	}
	if a.pushed == 0 || a.dropped()["drop_blocked"] == 0 {
		t.Errorf("pushed %d times, %v", a.pushed, a.dropped())
	}
	a.read()
	a.c = Counters{}
	read := 0
	a.drain = func() { f, _ := a.read(); read += len(f) }
	for range 20 {
		a.Send(1, &run, batch)
	}
	if d := a.dropped(); len(d) != 0 || read < 20 {
		t.Errorf("%v, %d frames read", d, read)
	}
	// Those that come find no room either after a while.
	b := newPort(macB, gb)
	a.drain()
	a.Send(1, &pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 1, Path: run.Path,
		Data: mem.BytesPayload(random(4096))}, batch)
	frames, off := a.read()
	p := cut(t, frames[0], off[0])[0]
	for range recvPackets + 5 {
		b.Receive(p, &ether.Offload{})
	}
	if b.dropped()["rcvbuf_overflow"] == 0 || len(b.Recv()) == 0 {
		t.Errorf("%v", b.dropped())
	}
	if b.Receive(p, &ether.Offload{}); len(b.Recv()) != 1 {
		t.Error("no room though all was received")
	}
}

// TestSendCorrupt: the peer refuses a corrupted packet, for every bit.
func TestSendCorrupt(t *testing.T) {
	for _, f := range flows {
		ga, gb := gid(f.a), gid(f.b)
		a, b := newPort(macA, ga), newPort(macB, gb)
		a.resolve(1, gb, macB)
		run := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 1, Path: &ib.Path{SGID: ga,
			DGID: gb, SrcPort: 0xc000}, Data: mem.BytesPayload(random(9))}
		for bit := range uint32(8 * 32) {
			a.SendCorrupt(1, &run, mem.NewBatch(4096), bit)
			frames, off := a.read()
			if len(frames) != 1 || !b.Receive(cut(t, frames[0], off[0])[0], &ether.Offload{}) || len(b.Recv()) != 0 {
				t.Fatalf("%s: bit %d: %d frames, %v", f.name, bit, len(frames), b.dropped())
			}
		}
		if b.dropped()["drop_bad_icrc"] == 0 || b.dropped()["drop_udp_checksum"] != 0 {
			t.Errorf("%s: %v", f.name, b.dropped())
		}
	}
}

// TestSendCorruptElsewhere: nor is what waits for its neighbour, or comes back to the port itself, left as it was.
func TestSendCorruptElsewhere(t *testing.T) {
	for _, f := range flows {
		ga, gb := gid(f.a), gid(f.b)
		a, b := newPort(macA, ga), newPort(macB, gb)
		batch := mem.NewBatch(4096)
		run := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 1, Path: &ib.Path{SGID: ga,
			DGID: gb, SrcPort: 0xc000}, Data: mem.BytesPayload(random(9))}
		a.SendCorrupt(1, &run, batch, 100)
		a.Send(1, &run, batch)
		a.Resolved(1, gb.Addr(), macB, true)
		frames, off := a.read()
		for i := range frames {
			b.Receive(cut(t, frames[i], off[i])[0], &ether.Offload{})
		}
		if n := len(b.Recv()); len(frames) != 2 || n != 1 || b.dropped()["drop_bad_icrc"] != 1 {
			t.Errorf("%s: %d frames waited, %d runs, %v", f.name, len(frames), n, b.dropped())
		}
		own := run
		own.Path = &ib.Path{SGID: ga, DGID: ga, SrcPort: 0xc000}
		a.SendCorrupt(1, &own, batch, 100)
		a.Send(1, &own, batch)
		if n := len(a.Recv()); n != 1 || a.dropped()["drop_bad_icrc"] != 1 {
			t.Errorf("%s: %d runs of the port's own, %v", f.name, n, a.dropped())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/proto/ib"
)

// maskedSum is the slow and obvious ICRC: the specification's masked copy of
// the packet through hash/crc32. frame is IP … pad.
func maskedSum(frame []byte) uint32 {
	m := append(bytes.Repeat([]byte{0xff}, 8), frame...)
	p := m[8:]
	n := 20
	if p[0]>>4 == 4 {
		p[1], p[8], p[10], p[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		n = 40
		p[0], p[1], p[2], p[3], p[7] = p[0]|0x0f, 0xff, 0xff, 0xff, 0xff
	}
	p[n+6], p[n+7], p[n+8+4] = 0xff, 0xff, 0xff
	return crc32.ChecksumIEEE(m)
}

func TestICRCVectors(t *testing.T) {
	sums := map[string]uint32{}
	vs := icrcVectors(t)
	for _, v := range vs {
		t.Run(v.ID, func(t *testing.T) {
			stored := ICRC(v.ICRC)
			if v.CRCInput != nil && crc32.ChecksumIEEE(v.CRCInput) != stored {
				t.Fatal("the vector contradicts itself")
			}
			if v.Kind == "rocev2-ipv4" || v.Kind == "rocev2-ipv6" {
				rocev2Vector(t, &v, stored)
			} else {
				nativeVector(t, &v, stored)
			}
		})
		sums[v.ID] = ICRC(v.transport())
	}
	for _, v := range vs {
		if v.SameAs != "" && sums[v.ID] != sums[v.SameAs] {
			t.Errorf("%s: ICRC differs from %s", v.ID, v.SameAs)
		}
		if v.DiffersFrom != "" && sums[v.ID] == sums[v.DiffersFrom] {
			t.Errorf("%s: ICRC is that of %s", v.ID, v.DiffersFrom)
		}
	}
}

func rocev2Vector(t *testing.T, v *vector, stored uint32) {
	var ip IPUDP
	p, why := ip.Parse(v.Frame)
	if why != OK {
		t.Fatal(why)
	}
	s := NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort)
	pkt := p[:len(p)-ICRCLen]
	if got := SumIP(v.Frame[:len(v.Frame)-ICRCLen]); (got == ICRC(p)) != v.Valid {
		t.Errorf("SumIP = %08x, packet bears %08x, want valid %v", got, ICRC(p), v.Valid)
	}
	if !ip.DF && ip.IPv4 { // a Seed is for DF packets only, and must refuse this one
		if s.Verify(ip.ID, p) {
			t.Error("packet without DF accepted")
		}
		return
	}
	if got := s.Sum(ip.ID, pkt); v.Valid && got != stored {
		t.Errorf("Sum = %08x, want %08x", got, stored)
	}
	if s.Verify(ip.ID, p) != v.Valid {
		t.Errorf("Verify = %v", !v.Valid)
	}
	for _, hint := range []uint16{0, ip.ID, ip.ID + 1, 0xffff} {
		if id, ok := s.VerifyAnyID(hint, p); ok != v.Valid || ok && id != ip.ID && ip.IPv4 {
			t.Errorf("VerifyAnyID(%d) = %d, %v; want %d, %v", hint, id, ok, ip.ID, v.Valid)
		}
	}
	// Piece by piece, as a sender does that gathers the payload.
	crc := s.Begin(ip.ID, pkt[:BTHLen], len(pkt))
	for i := BTHLen; i < len(pkt); i += 5 {
		crc = crc32.Update(crc, crc32.IEEETable, pkt[i:min(i+5, len(pkt))])
	}
	if b := dirty(4); v.Valid {
		if PutICRC(b, crc); !bytes.Equal(b, v.ICRC) {
			t.Errorf("in pieces: %x, want %x", b, v.ICRC)
		}
	}
}

func nativeVector(t *testing.T, v *vector, stored uint32) {
	var l LRH
	var g GRH
	p, why := ParseIB(v.Frame, &l, &g)
	if why != OK {
		t.Fatal(why)
	}
	if !bytes.Equal(p, v.transport()) {
		t.Errorf("transport part %x", p)
	}
	got := VerifyIB(v.Frame)
	switch {
	case v.Valid && got != OK:
		t.Error(got)
	case v.ID == "neg-ib-vcrc" && got != BadVCRC, v.ID == "neg-ib-icrc" && got != BadICRC:
		t.Errorf("got %v", got)
	}
	if sum := SumIB(v.Frame[:len(v.Frame)-VCRCLen-ICRCLen]); sum != stored {
		t.Errorf("SumIB = %08x, want %08x", sum, stored)
	}
	if !v.Valid {
		return
	}
	f := &v.Fields
	want := LRH{VL: f.LRH.VL, LVer: f.LRH.LVer, SL: f.LRH.SL, LNH: f.LRH.LNH, DLID: ib.LID(f.LRH.DLID),
		SLID: ib.LID(f.LRH.SLID), PktLen: f.LRH.PktLen}
	if l != want {
		t.Errorf("LRH %+v, want %+v", l, want)
	}
	b := dirty(LRHLen + GRHLen)
	l.Put(b)
	n := LRHLen
	if x := f.GRH; x != nil {
		want := GRH{IPVer: x.IPVer, TClass: x.TClass, FlowLabel: x.Flow, PayLen: x.PayLen, NxtHdr: x.NxtHdr,
			HopLimit: x.Hop,
			SGID:     ib.GIDFromAddr(x.SGID), DGID: ib.GIDFromAddr(x.DGID)}
		if g != want {
			t.Errorf("GRH %+v, want %+v", g, want)
		}
		g.Put(b[n:])
		n += GRHLen
	}
	if !bytes.Equal(b[:n], v.Frame[:n]) {
		t.Errorf("re-encoded %x, want %x", b[:n], v.Frame[:n])
	}
}

// TestSeedAgainstMaskedCopy compares every path of the ICRC with the masked
// copy for random packets of every length, both address families.
func TestSeedAgainstMaskedCopy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := BTHLen; n < 1200; n++ {
		ip := IPUDP{IPv4: n&1 == 0, DF: true, TClass: uint8(rng.Uint32()), HopLimit: uint8(rng.Uint32()),
			ID:      uint16(rng.Uint32()),
			SrcPort: uint16(rng.Uint32()), DstPort: UDPPort, FlowLabel: rng.Uint32(), Checksum: uint16(rng.Uint32())}
		for i := range ip.Src {
			ip.Src[i], ip.Dst[i] = byte(rng.Uint32()), byte(rng.Uint32())
		}
		if ip.IPv4 {
			ip.Src, ip.Dst = mapped([4]byte(ip.Src[:])), mapped([4]byte(ip.Dst[:]))
		}
		frame := dirty(ip.Len() + n + ICRCLen)
		hdr := ip.Put(frame, n+ICRCLen)
		for i := hdr; i < len(frame); i++ {
			frame[i] = byte(rng.Uint32())
		}
		want := maskedSum(frame[:hdr+n])
		s := NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort)
		if got := s.Sum(ip.ID, frame[hdr:hdr+n]); got != want {
			t.Fatalf("%d bytes: Sum %08x, want %08x", n, got, want)
		}
		if got := SumIP(frame[:hdr+n]); got != want {
			t.Fatalf("%d bytes: SumIP %08x, want %08x", n, got, want)
		}
	}
}

// TestVerifyAnyID proves that every identification is found at any length and
// that the share of corrupted packets let through is about one in 65,536.
func TestVerifyAnyID(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	s := NewSeed(mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2}), 0xc001, UDPPort)
	for _, n := range []int{12, 16, 20, 232, 1040, 4124, 9000, 65512, 65523} {
		p := make([]byte, n+ICRCLen)
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		step := 1
		if n > 64 {
			step = 257
		}
		for id := 0; id < 1<<16; id += step {
			PutICRC(p[n:], s.Sum(uint16(id), p[:n]))
			for _, hint := range []uint16{0, uint16(id), uint16(rng.Uint32())} {
				if got, ok := s.VerifyAnyID(hint, p); !ok || got != uint16(id) {
					t.Fatalf("%d bytes, id %d, hint %d: got %d, %v", n, id, hint, got, ok)
				}
			}
		}
	}
	p := make([]byte, 64)
	const tries = 1 << 20
	passed := 0
	for range tries {
		PutICRC(p[60:], rng.Uint32())
		if _, ok := s.VerifyAnyID(0, p); ok {
			passed++
		}
	}
	if passed < 4 || passed > 40 { // expected 16
		t.Errorf("%d of %d random CRCs accepted", passed, tries)
	}
	PutICRC(p[60:], s.Sum(7, p[:60]))
	for bit := range 60 * 8 {
		if bit/8 == 4 {
			continue // the masked byte
		}
		p[bit/8] ^= 1 << (bit % 8)
		if id, ok := s.VerifyAnyID(7, p); ok {
			t.Errorf("flipped bit %d accepted as id %d", bit, id)
		}
		p[bit/8] ^= 1 << (bit % 8)
	}
	for n := range BTHLen + ICRCLen {
		if _, ok := s.VerifyAnyID(0, p[:n]); ok || s.Verify(0, p[:n]) {
			t.Errorf("%d bytes accepted", n)
		}
	}
	// A difference that is no identification's, by a single bit above it.
	v6 := NewSeed(ib.GID{0: 0x20}, ib.GID{0: 0x20, 15: 1}, 0xc001, UDPPort)
	for bit := range 32 {
		diff := feed(1<<bit, make([]byte, 2+22+60))
		PutICRC(p[60:], s.Sum(7, p[:60])^diff)
		if _, ok := s.VerifyAnyID(7, p); ok != (bit < 16) {
			t.Errorf("difference of bit %d: accepted %v", bit, ok)
		}
		PutICRC(p[60:], v6.Sum(0, p[:60])^diff)
		if _, ok := v6.VerifyAnyID(0, p); ok {
			t.Errorf("difference of bit %d accepted over IPv6", bit)
		}
	}
	// One byte more than a UDP datagram holds, with a valid CRC.
	long := make([]byte, 65528)
	PutICRC(long[65524:], s.Sum(0, long[:65524]))
	if _, ok := s.VerifyAnyID(0, long); ok || s.Verify(0, long) {
		t.Error("more than a UDP datagram accepted")
	}
}

// masked lists the bits of an RoCEv2 frame, starting with its IP header, that
// the ICRC does not cover: IBA annex A17, table of fields replaced by ones.
func masked(frame []byte) map[int]bool {
	m := map[int]bool{}
	mask := func(from, to int) { // bytes
		for i := from * 8; i < to*8; i++ {
			m[i] = true
		}
	}
	n := 20
	if frame[0]>>4 == 4 {
		mask(1, 2)   // TOS
		mask(8, 9)   // TTL
		mask(10, 12) // header checksum
	} else {
		n = 40
		for i := range 4 {
			m[i] = true // the low half of byte 0: traffic class
		}
		mask(1, 4) // traffic class, flow label
		mask(7, 8) // hop limit
	}
	mask(n+6, n+8)   // UDP checksum
	mask(n+12, n+13) // FECN, BECN and reserved bits of the BTH
	return m
}

// TestEveryBitInverted inverts each bit of every valid vector: a receiver with the IP header refuses
// all except the masked ones; a receiver without the identification accepts only those of the
// identification in addition.
func TestEveryBitInverted(t *testing.T) {
	for _, v := range icrcVectors(t) {
		if !v.Valid {
			continue
		}
		native := v.Kind != "rocev2-ipv4" && v.Kind != "rocev2-ipv6"
		var ip IPUDP
		var seed Seed
		if !native {
			ip.Parse(v.Frame)
			seed = NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort)
		}
		for bit := range len(v.Frame) * 8 {
			p := bytes.Clone(v.Frame)
			p[bit/8] ^= 1 << (bit % 8)
			if native {
				if VerifyIB(p) == OK {
					t.Errorf("%s: bit %d inverted passed", v.ID, bit)
				}
				continue
			}
			m := masked(v.Frame)
			end := len(p) - ICRCLen
			if p[0]>>4 == v.Frame[0]>>4 {
				if ok := SumIP(p[:end]) == ICRC(p); ok != m[bit] {
					t.Errorf("%s: bit %d inverted: passed %v", v.ID, bit, ok)
				}
			}
			var q IPUDP
			tr, why := q.Parse(p)
			if why != OK || q.IPv4 && !q.DF { // a socket does not deliver it, or a seed cannot verify it
				continue
			}
			s := NewSeed(q.Src, q.Dst, q.SrcPort, q.DstPort)
			if got := s.Verify(q.ID, tr); got != m[bit] {
				t.Errorf("%s: bit %d inverted: Verify = %v", v.ID, bit, got)
			}
			for _, hint := range []uint16{0, ip.ID} {
				if _, ok := s.VerifyAnyID(hint, tr); ok != (m[bit] || ip.IPv4 && bit/16 == 2) {
					t.Errorf("%s: bit %d inverted: VerifyAnyID = %v", v.ID, bit, ok)
				}
			}
			if q.Src == ip.Src && q.Dst == ip.Dst && q.SrcPort == ip.SrcPort && q.DstPort == ip.DstPort && s != seed {
				t.Errorf("%s: bit %d: another seed", v.ID, bit)
			}
		}
	}
}

// FuzzVerifyAnyID compares the solution with its definition, the slow way: an
// identification is found exactly where one of all makes the ICRC right.
func FuzzVerifyAnyID(f *testing.F) {
	s := NewSeed(mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2}), 0xc001, UDPPort)
	p := make([]byte, 64)
	PutICRC(p[60:], s.Sum(7, p[:60]))
	f.Add(p, uint16(0), uint16(7))
	f.Add(p[:16], uint16(1), uint16(0xffff))
	f.Add([]byte{}, uint16(0), uint16(0))
	f.Fuzz(func(t *testing.T, p []byte, hint, id uint16) {
		got, ok := s.VerifyAnyID(hint, p)
		if ok && !s.Verify(got, p) {
			t.Errorf("%x: the ICRC is not right with identification %d", p, got)
		}
		if s.Verify(id, p) && (!ok || got != id) {
			t.Errorf("%x: right with %d, got %d, %v", p, id, got, ok)
		}
		if len(p) < BTHLen+ICRCLen || len(p) > 0xffff-udpLen {
			return
		}
		q := bytes.Clone(p)
		n := len(q) - ICRCLen
		PutICRC(q[n:], s.Sum(id, q[:n]))
		if got, ok := s.VerifyAnyID(hint, q); !ok || got != id {
			t.Errorf("%x: got %d, %v, want %d", q, got, ok, id)
		}
	})
}

// TestCapture runs a capture of two Linux soft-RoCE hosts through the whole
// receive path of this package.
func TestCapture(t *testing.T) {
	f, err := os.Open(vectorFile("linux-rxe-roundtrip.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	seeds := map[string]Seed{}
	counts := map[ib.Opcode]int{}
	total, others := 0, 0
	for {
		frame, _, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(frame) < 14 || frame[12] != 8 || frame[13] != 0 {
			others++
			continue
		}
		var ip IPUDP
		p, why := ip.Parse(frame[14:])
		if why == NotRoCE {
			others++
			continue
		}
		if why != OK {
			t.Fatalf("packet %d: %v", total, why)
		}
		total++
		var h Headers
		payload, why := h.Parse(p)
		if why != OK {
			t.Fatalf("packet %d: %v", total, why)
		}
		counts[h.Opcode]++
		flow := fmt.Sprint(ip.Src, ip.Dst, ip.SrcPort)
		s, ok := seeds[flow]
		if !ok {
			s = NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort)
			seeds[flow] = s
		}
		if !s.Verify(ip.ID, p) {
			t.Errorf("packet %d (%v): ICRC wrong", total, h.Opcode)
		}
		if id, ok := s.VerifyAnyID(0, p); !ok || id != ip.ID {
			t.Errorf("packet %d (%v): VerifyAnyID = %d, %v, want %d", total, h.Opcode, id, ok, ip.ID)
		}
		if s.Verify(ip.ID^1, p) {
			t.Errorf("packet %d: accepted with another identification", total)
		}
		// Built again from the decoded values it must be the same bytes.
		b := dirty(len(frame) - 14)
		n := ip.Put(b, len(p))
		m := n + h.Put(b[n:])
		m += copy(b[m:], payload)
		m += copy(b[m:], make([]byte, h.PadCnt))
		PutICRC(b[m:], s.Sum(ip.ID, b[n:m]))
		if !bytes.Equal(b, frame[14:]) {
			t.Errorf("packet %d (%v):\ngot  %x\nwant %x", total, h.Opcode, b, frame[14:])
		}
	}
	if total != 277 || others == 0 {
		t.Errorf("%d RoCEv2 packets and %d others; want 277 and some", total, others)
	}
	for _, op := range []ib.Opcode{ib.SendOnly, ib.ReadRequest, ib.FetchAdd, ib.Acknowledge, ib.AtomicAck,
		ib.ServiceUD | ib.SendOnly} {
		if counts[op] == 0 {
			t.Errorf("no %v in the capture: %v", op, counts)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	v4 := NewSeed(mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2}), 0xc001, UDPPort)
	v6 := NewSeed(ib.GIDFromAddr(netip.MustParseAddr("2001:db8::1")),
		ib.GIDFromAddr(netip.MustParseAddr("2001:db8::2")), 0xc001, UDPPort)
	ip := IPUDP{IPv4: true, DF: true, Src: mapped([4]byte{192, 0, 2, 1}), Dst: mapped([4]byte{192, 0, 2, 2}),
		DstPort: UDPPort}
	frame := make([]byte, 28+28+1024+4)
	h := Headers{Opcode: ib.WriteFirst, PKey: 0xffff}
	area := make([]byte, GRHLen)
	path := &ib.Path{SGID: ip.Src, DGID: ip.Dst}
	vs := icrcVectors(t)
	var native []byte
	for _, v := range vs {
		if v.Kind == "ib-grh" {
			native = v.Frame
		}
	}
	var sink uint32
	if n := testing.AllocsPerRun(100, func() {
		n := ip.Put(frame, len(frame)-28)
		run := h.Packet(1, 2, 1024)
		run.Put(frame[n:])
		h.Put(frame[n:])
		pkt := frame[n : len(frame)-ICRCLen]
		PutICRC(frame[len(frame)-ICRCLen:], v4.Sum(0x1234, pkt))
		p, _ := ip.Parse(frame)
		_, _ = h.Parse(p)
		_, ok := v4.VerifyAnyID(0, p)
		if !ok || !v4.Verify(0x1234, p) {
			panic("not verified")
		}
		sink += v6.Sum(0, pkt) + SumIP(frame[:len(frame)-ICRCLen])
		s := NewSeed(ip.Src, ip.Dst, 1, 2)
		sink += s.Sum(0, pkt)
		PutGRHArea(area, path, true, 100)
		var l LRH
		var g GRH
		_, _ = ParseIB(native, &l, &g)
		VerifyIB(native)
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func BenchmarkSum(b *testing.B) {
	v4 := NewSeed(mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2}), 0xc001, UDPPort)
	for _, n := range []int{16, 64 + 12, 1024 + 12, 4096 + 12} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := make([]byte, n)
			b.ReportAllocs()
			b.SetBytes(int64(n))
			var sink uint32
			for b.Loop() {
				sink += v4.Sum(1, p)
			}
		})
	}
}

func BenchmarkVerifyAnyID(b *testing.B) {
	v4 := NewSeed(mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2}), 0xc001, UDPPort)
	for _, hint := range []uint16{0, 0x1234} {
		for _, n := range []int{16, 1024 + 12, 4096 + 12} {
			b.Run(fmt.Sprintf("hint=%v/%d", hint != 0, n), func(b *testing.B) {
				p := make([]byte, n+ICRCLen)
				PutICRC(p[n:], v4.Sum(0x1234, p[:n]))
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					if _, ok := v4.VerifyAnyID(hint, p); !ok {
						b.Fatal("rejected")
					}
				}
			})
		}
	}
}

func BenchmarkNewSeed(b *testing.B) {
	src, dst := mapped([4]byte{192, 0, 2, 1}), mapped([4]byte{192, 0, 2, 2})
	b.ReportAllocs()
	for b.Loop() {
		NewSeed(src, dst, 0xc001, UDPPort)
	}
}

// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"testing"

	"weft/internal/proto/ib"
)

// opaCase is a whole packet of opa16b.json.
type opaCase struct {
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
		FrameLen       int `json:"eth_len_on_wire"`
		Pad            int
		Length         uint16   `json:"len_qw"`
		PacketLen      int      `json:"packet_len"`
		Header, Packet hexBytes // of the host: CRC zero, no mark at the end
		CRC            hexBytes `json:"swcrc1"`
		Last           hexBytes `json:"last8_swcrc1"` // on the wire
	}
}

func opaCases(t testing.TB) []opaCase {
	var f struct{ Cases []opaCase }
	loadJSON(t, "opa16b.json", &f)
	if len(f.Cases) != 117 {
		t.Fatalf("opa16b.json: %d packets", len(f.Cases))
	}
	return f.Cases
}

// wire returns the packet as it travels.
func (c *opaCase) wire() []byte {
	return append(bytes.Clone(c.Out.Packet[:len(c.Out.Packet)-8]), c.Out.Last...)
}

func (c *opaCase) header() Header16 {
	return Header16{SLID: c.In.SLID, DLID: c.In.DLID, Length: c.Out.Length, SC: c.In.SC, RC: c.In.RC, L4: L4Ethernet,
		PKey: ib.PKey(c.In.PKey), Entropy: c.In.Entropy}
}

// build writes a packet into dirty memory, which ends exactly behind it.
func (c *opaCase) build() []byte {
	n := Ethernet16Len + c.Out.FrameLen
	p := dirty(Len16(n))
	h := c.header()
	h.Length = uint16(len(p) / 8)
	h.Put(p)
	PutEthernet16(p[Header16Len:], c.In.VESW)
	frame := p[Header16Len+Ethernet16Len:][:c.Out.FrameLen]
	clear(frame[copy(frame, c.In.Frame):])
	Seal16(p, n)
	return p
}

// TestPackets16 holds every packet of the vectors against the codec, both ways.
func TestPackets16(t *testing.T) {
	for _, c := range opaCases(t) {
		want := c.wire()
		if got := c.build(); !bytes.Equal(got, want) || len(got) != c.Out.PacketLen {
			t.Errorf("%s:\nbuilt % x\nwant  % x", c.Name, got, want)
		}
		if !bytes.Equal(want[:Header16Len+Ethernet16Len], c.Out.Header) {
			t.Errorf("%s: the vector contradicts itself", c.Name)
		}
		// The host's image has no mark in the tail byte; the length is what counts.
		for _, p := range [][]byte{want, c.Out.Packet} {
			var h Header16
			payload, why := Parse16(p, &h)
			if why != OK || h != c.header() {
				t.Errorf("%s: %v, %+v, want %+v", c.Name, why, h, c.header())
				continue
			}
			vesw, frame, why := ParseEthernet16(payload)
			if why != OK || vesw != c.In.VESW || len(frame) != c.Out.FrameLen || !bytes.HasPrefix(frame, c.In.Frame) {
				t.Errorf("%s: %v, virtual switch %#x, frame % x", c.Name, why, vesw, frame)
			}
			if pad := len(p) - tail16Len - Header16Len - len(payload); pad != c.Out.Pad {
				t.Errorf("%s: %d bytes of padding, want %d", c.Name, pad, c.Out.Pad)
			}
		}
		if why := Verify16(want); why != OK {
			t.Errorf("%s: %v", c.Name, why)
		}
		var h Header16
		for n := range want {
			if _, why := Parse16(want[:n], &h); why != Short && why != LinkLength || (why == Short) != (n < min16Len) {
				t.Fatalf("%s: %d of %d bytes: %v", c.Name, n, len(want), why)
			}
		}
	}
}

// TestFields16 gives each field of the header all ones alone: nothing else
// changes, and no other bit is written.
func TestFields16(t *testing.T) {
	const idle7 = 0xc0 // LT and the link type
	for _, c := range []struct {
		name string
		h    Header16
		at   map[int]byte // of the 16 bytes, except idle7
	}{
		{"none", Header16{}, nil},
		{"SLID", Header16{SLID: 0xffffff}, map[int]byte{0: 0xff, 1: 0xff, 2: 0x0f, 9: 0x0f}},
		{"length", Header16{Length: 0x7ff}, map[int]byte{2: 0xf0, 3: 0x7f}},
		{"BECN", Header16{BECN: true}, map[int]byte{3: 0x80}},
		{"DLID", Header16{DLID: 0xffffff}, map[int]byte{4: 0xff, 5: 0xff, 6: 0x0f, 9: 0xf0}},
		{"SC", Header16{SC: 0x1f}, map[int]byte{6: 0xf0, 7: 0x01}},
		{"RC", Header16{RC: 7}, map[int]byte{7: 0x0e}},
		{"FECN", Header16{FECN: true}, map[int]byte{7: 0x10}},
		{"L4", Header16{L4: 0xff}, map[int]byte{8: 0xff}},
		{"P_Key", Header16{PKey: 0xff01}, map[int]byte{10: 0x01, 11: 0xff}},
		{"entropy", Header16{Entropy: 0xff02}, map[int]byte{12: 0x02, 13: 0xff}},
		{"age", Header16{Age: 0xff}, map[int]byte{14: 0xff}},
	} {
		var want [Header16Len]byte
		for i, v := range c.at {
			want[i] = v
		}
		want[7] |= idle7
		b := dirty(Header16Len + 1)
		if c.h.Put(b); !bytes.Equal(b[:Header16Len], want[:]) || b[Header16Len] != 0xa5 {
			t.Errorf("%s: % x, want % x", c.name, b, want)
		}
		var got Header16
		want[7] &^= 0x80 // LT does not matter, nor does a reserved byte
		want[15] = 0xff
		if got.parse(want[:]); got != c.h {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	wide := Header16{SLID: 0xff000000, DLID: 0xff000000, Length: 0xf800, SC: 0xe0, RC: 0xf8}
	b := dirty(Header16Len)
	if wide.Put(b); !bytes.Equal(b, []byte{7: idle7, 15: 0}) {
		t.Errorf("fields run into each other: % x", b)
	}
}

// TestCRC16 changes every bit of a packet: the CRC covers all but what a switch
// may change, the tail byte and itself.
func TestCRC16(t *testing.T) {
	p := opaCases(t)[0].build()
	free := 0
	for i := range (len(p) - 1) * 8 {
		p[i/8] ^= 1 << (i % 8)
		masked := i < Header16Len*8 && mask16[i/8]>>(i%8)&1 != 0
		if masked {
			free++
		}
		if (Verify16(p) == OK) != masked {
			t.Errorf("bit %d of byte %d: %v", i%8, i/8, Verify16(p))
		}
		p[i/8] ^= 1 << (i % 8)
	}
	if free != 1+5+1+1+8 { // BECN, SC, FECN, LT, age
		t.Errorf("%d bits are free", free)
	}
	if SetAge16(p, 9); Verify16(p) != OK {
		t.Error("a hop changed the CRC")
	}
	var h Header16
	if _, why := Parse16(p, &h); why != OK || h.Age != 9 {
		t.Errorf("%v, age %d", why, h.Age)
	}
}

func TestRefusals16(t *testing.T) {
	fresh := func() []byte { return opaCases(t)[0].build() }
	for _, c := range []struct {
		name string
		edit func(p []byte) []byte
		want Refusal
	}{
		{"8B", func(p []byte) []byte { p[7] &^= 0x60; return p }, LinkVersion},
		{"10B", func(p []byte) []byte { p[7] ^= 0x60; return p }, LinkVersion},
		{"9B", func(p []byte) []byte { p[7] |= 0x60; return p }, LinkVersion},
		{"one word less", func(p []byte) []byte { return p[:len(p)-8] }, LinkLength},
		{"one word more", func(p []byte) []byte { return append(p, make([]byte, 8)...) }, LinkLength},
		{"length 0", func(p []byte) []byte { p[2] &= 0x0f; p[3] = 0; return p }, LinkLength},
		{"eight bytes of padding", func(p []byte) []byte { p[len(p)-1] = 8; return p }, BadPad},
		{"reserved bits of the tail", func(p []byte) []byte { p[len(p)-1] |= 0x20; return p }, BadPad},
		{"padding in the header", func(p []byte) []byte { p[2], p[3], p[23] = p[2]&0x0f|3<<4, 0, 4; return p[:24] },
			BadPad},
	} {
		var h Header16
		if payload, why := Parse16(c.edit(fresh()), &h); why != c.want || payload != nil {
			t.Errorf("%s: %v, want %v", c.name, why, c.want)
		}
	}
	// A notification of congestion is a header and nothing behind it.
	p := dirty(Len16(Ethernet16Len))
	h := Header16{SLID: 1, DLID: 2, Length: uint16(len(p) / 8), BECN: true, L4: L4Ethernet, PKey: 0xffff}
	h.Put(p)
	PutEthernet16(p[Header16Len:], 0xf123)
	Seal16(p, Ethernet16Len)
	var got Header16
	payload, why := Parse16(p, &got)
	vesw, frame, why4 := ParseEthernet16(payload)
	if len(p) != 32 || why != OK || why4 != OK || got != h || vesw != 0x123 || frame == nil || len(frame) != 0 {
		t.Errorf("%d bytes, %v, %v, %+v, virtual switch %#x, frame % x", len(p), why, why4, got, vesw, frame)
	}
	for n := range Ethernet16Len {
		if _, frame, why := ParseEthernet16(payload[:n]); why != Short || frame != nil {
			t.Errorf("%d bytes: %v", n, why)
		}
	}
}

func TestLen16(t *testing.T) {
	if MaxPacket16 != 16376 || Len16(MaxPayload16) != MaxPacket16 || Len16(0) != min16Len {
		t.Errorf("%d, %d, %d", MaxPacket16, Len16(MaxPayload16), Len16(0))
	}
	p := opaCases(t)[0].build()
	h := Header16{Length: uint16(len(p) / 8)}
	if n := testing.AllocsPerRun(100, func() {
		h.Put(p)
		Seal16(p, Ethernet16Len+60)
		if _, why := Parse16(p, &h); why != OK || Verify16(p) != OK {
			t.Fatal(why)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParse16(f *testing.F) {
	for _, c := range opaCases(f)[:20] {
		f.Add(c.wire())
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var h Header16
		payload, why := Parse16(p, &h)
		if why != OK {
			if why >= NumRefusals || payload != nil {
				t.Fatalf("refusal %d, payload of %d bytes", why, len(payload))
			}
			return
		}
		if len(payload) > 0 && &payload[0] != &p[Header16Len] {
			t.Fatal("the payload does not alias the packet behind its header")
		}
		// Encoded again it is the same, except padding, CRC and reserved bits.
		q := dirty(len(p))
		h.Put(q)
		copy(q[Header16Len:], payload)
		if Len16(len(payload)) != len(p) {
			t.Fatalf("%d bytes of payload in %d", len(payload), len(p))
		}
		Seal16(q, len(payload))
		var again Header16
		got, why := Parse16(q, &again)
		if why != OK || Verify16(q) != OK || again != h || !bytes.Equal(got, payload) {
			t.Fatalf("%v, %+v, want %+v", why, again, h)
		}
	})
}

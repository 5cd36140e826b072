// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"encoding/binary"
	"testing"

	"weft/internal/fabric/trunk/seal"
)

// FuzzHandle passes to a Core with a trunk that is up a sequence of datagrams, each behind its 16-bit
// length. They are sealed first, or hardly any would pass the tag; the fourth octet says which are not. Each
// delivered packet must be part of a datagram or reassembled from fragments, and each datagram must be
// counted.
func FuzzHandle(f *testing.F) {
	a, _ := pairMode(f, 1472, seal.None)
	a.send(0, random(30), random(1000), random(4178), random(3000))
	var seed []byte
	for _, d := range append(a.datagrams(), unhex(f, golden[2].b), unhex(f, golden[2].b+"01010000 00000009 00000500")) {
		seed = binary.BigEndian.AppendUint16(seed, uint16(len(d)))
		seed = append(seed, d...)
	}
	f.Add(seed)
	f.Add(append([]byte{0, 10}, seed...))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := pair(t, 1472)
		key := a.core.peers[0].tx.send
		var scratch seal.Scratch
		before, strays := b.core.Status(0), b.core.Strays()
		datagrams, octets, packets := uint64(0), 0, uint64(0)
		now := 2 * ms
		for len(in) >= 2 {
			n := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
			d := bytes.Clone(in[2 : 2+n])
			in = in[2+n:]
			plain := bytes.Clone(d)
			var h Header
			if head, why := h.Parse(d); why == OK && d[3]&1 == 0 {
				d = key.Seal(&scratch, seal.Encrypt, append(d, make([]byte, seal.TagLen)...)[:n], head, h.counter())
			}
			datagrams++
			octets += len(d)
			b.core.Handle(now, addr(0xa0), d, func(peer int, p []byte) {
				packets++
				if peer != 0 || len(p) == 0 || len(p) > MaxPacket {
					t.Fatalf("peer %d, %d octets", peer, len(p))
				}
				if Kind(plain[1]&15) == Data && !bytes.Contains(plain, p) {
					t.Fatal("a packet that is not in its datagram")
				}
				octets -= len(p)
			})
			now += ms
			b.core.Tick(now)
			for range b.control(now) {
			}
		}
		s := b.core.Status(0)
		sum := s.Datagrams - before.Datagrams
		for r := range NumRefusals {
			sum += s.Drop[r] - before.Drop[r] + b.core.Strays().Drop[r] - strays.Drop[r]
		}
		if sum != datagrams || s.Packets != packets || octets < 0 {
			t.Fatalf("%d datagrams, %d accounted for; %d packets, %d counted; %d octets more than came", datagrams,
				sum, packets, s.Packets, -octets)
		}
		if p := &b.core.peers[0].parts; p.used > MaxPartial || p.used < 0 {
			t.Fatalf("%d in reassembly", p.used)
		}
	})
}

// FuzzBatch commits packets of lengths that the input names, over an underlay
// that it names, and takes some back. What arrives must be what was committed.
func FuzzBatch(f *testing.F) {
	f.Add(uint16(1472), []byte{0x10, 0x52, 0x10, 0x52, 0x00, 0x1e, 0x80, 0x40, 0x27, 0x00})
	f.Add(uint16(548), bytes.Repeat([]byte{0x3f, 0xff}, 20))
	f.Add(uint16(65000), bytes.Repeat([]byte{0x10, 0x52}, 40))
	pattern := random(MaxPacket + 300)
	f.Fuzz(func(t *testing.T, limit uint16, in []byte) {
		a, b := pairMode(t, min(max(int(limit), MinDatagram), MaxDatagram), seal.Mode(limit)%seal.NumModes)
		a.newBatch()
		var want [][]byte
		drain := func() {
			for _, d := range a.datagrams() {
				b.handle(2*ms, d)
			}
		}
		for len(in) >= 2 && len(want) < 300 {
			v := binary.BigEndian.Uint16(in)
			n := int(v&0x3fff) + 1
			in = in[2:]
			p := a.batch.Reserve(0, n)
			if p == nil {
				drain()
				p = a.batch.Reserve(0, n)
			}
			if len(p) != n {
				t.Fatalf("room for %d octets: %d", n, len(p))
			}
			switch v >> 14 {
			case 1: // not committed
				continue
			case 2: // shorter than reserved
				n = n/2 + 1
			}
			copy(p, pattern[len(want):])
			want = append(want, bytes.Clone(p[:n]))
			a.batch.Commit(ms, n)
			if v>>14 == 3 {
				drain()
			}
		}
		drain()
		if len(b.got) != len(want) {
			t.Fatalf("%d packets of %d: %+v", len(b.got), len(want), b.core.Status(0))
		}
		for i := range want {
			if !bytes.Equal(b.got[i], want[i]) {
				t.Fatalf("packet %d differs", i)
			}
		}
	})
}

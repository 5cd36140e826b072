// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"bytes"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/wire"
)

// TestSlotSpace places datagrams into receive slots as a queue pair does. Those that last are taken from where
// they are, or are in their slots after settle; what does not last, is short, or is not a slot's whole datagram
// is copied at once.
func TestSlotSpace(t *testing.T) {
	const first, length, slots = 128, 600, 4
	b := bytes.Repeat([]byte{0xa5}, first+length*slots)
	s := newSlotSpace(b, first, length, slots)
	r := &mem.Region{Space: s, Len: uint64(len(b)), Access: ib.LocalWrite}
	batch := mem.NewBatch(4096)
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(i)
	}
	put := func(addr, n int, lasting bool) mem.Result {
		src := mem.Payload{Bytes: data, Len: len(data), Lasting: lasting}
		res := batch.Put(nil, r, uint64(addr), &src, 0, n)
		batch.Flush()
		return res
	}
	at := func(slot int) int { return first + slot*length + wire.GRHLen }
	const room = length - wire.GRHLen
	for _, c := range []struct {
		what    string
		addr, n int
		lasting bool
		kept    bool
	}{
		{"a datagram", at(1), 500, true, true},
		{"one that fills the last slot", at(3), room, true, true},
		{"one that does not last", at(1), 500, false, false},
		{"a short one", at(1), keepFrom - 1, true, false},
		{"what is not behind the GRH", at(1) + 1, 500, true, false},
		{"before the slots", 0, 256, true, false},
	} {
		slot := max(c.addr-first, 0) / length
		for i := range b {
			b[i] = 0xa5
		}
		if res := put(c.addr, c.n, c.lasting); res != mem.OK {
			t.Errorf("%s: result %d", c.what, res)
		}
		p := s.pop(uint32(slot * length))
		if (p != nil) != c.kept || c.kept && &p[0] != &data[0] || c.kept && len(p) != c.n {
			t.Errorf("%s: kept %v, want %v", c.what, p != nil, c.kept)
		}
		if got := bytes.Equal(b[c.addr:c.addr+c.n], data[:c.n]); got == c.kept {
			t.Errorf("%s: copied %v", c.what, got)
		}
		s.commit()
		if c.kept && bytes.ContainsFunc(b, func(r rune) bool { return r != 0xfffd }) {
			t.Errorf("%s: what was taken is copied too", c.what)
		}
	}
	for i := range b {
		b[i] = 0xa5
	}
	put(at(0), 300, true)
	put(at(2), 400, true)
	s.commit()
	want := bytes.Repeat([]byte{0xa5}, len(b))
	copy(want[at(0):], data[:300])
	copy(want[at(2):], data[:400])
	if !bytes.Equal(b, want) || s.pop(0) != nil || s.pop(2*length) != nil || s.pop(slots*length) != nil {
		t.Error("what was not taken is not in its slots")
	}
	if r.Revoke(); put(at(0), 500, true) == mem.OK || s.pop(0) != nil {
		t.Error("a region that is no more takes datagrams")
	}
	if n := testing.AllocsPerRun(100, func() {
		s.Keep(uint64(at(1)), data[:500])
		s.pop(length)
		s.commit()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

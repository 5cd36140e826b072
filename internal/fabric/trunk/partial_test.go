// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/internal/fabric/trunk/seal"
)

// TestAnyOrder reassembles packets from fragments that arrive in any order, several packets at a time.
func TestAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []int{MinDatagram, 1472} {
		a, b := pair(t, limit)
		for round := range 50 {
			b.got = nil
			want := map[string]bool{}
			for i := range 8 {
				p := random(limit + r.IntN(MaxPacket-limit))
				p[0], p[1] = byte(round), byte(i) // no two are equal
				want[string(p)] = true
				a.send(0, p)
			}
			d := a.datagrams()
			r.Shuffle(len(d), func(i, j int) { d[i], d[j] = d[j], d[i] })
			for _, x := range d {
				b.handle(2*ms, x)
			}
			for _, p := range b.got {
				if !want[string(p)] {
					t.Fatalf("round %d: a packet that was not sent, or twice", round)
				}
				delete(want, string(p))
			}
			if len(want) > 0 {
				t.Fatalf("round %d: %d packets missing: %+v", round, len(want), b.core.Status(0))
			}
		}
	}
}

// fragment is a datagram of a to its peer.
func fragment(a *end, stream uint8, number uint64, p piece, data []byte) []byte {
	d := make([]byte, FragmentLen, FragmentLen+len(data)+seal.TagLen)
	key := a.core.peers[0].tx.send
	h := Header{Kind: Fragment, Stream: stream, Index: key.Index(), Number: number}
	h.Put(d)
	p.put(d[HeaderLen:])
	return key.Seal(new(seal.Scratch), seal.Encrypt, append(d, data...), FragmentLen, h.counter())
}

// TestHostileFragments begins far more packets than may be in reassembly, of
// every length, on every stream: memory and packets stay bounded, the oldest
// give way, and what is whole still arrives.
func TestHostileFragments(t *testing.T) {
	a, b := pair(t, 1472)
	const n = 10000
	for i := range uint64(n) {
		b.handle(2*ms, fragment(a, uint8(i%MaxStreams), 100+i/MaxStreams*40, piece{0, 32, MaxPacket}, make([]byte,
			512)))
	}
	parts := &b.core.peers[0].parts
	if parts.used != MaxPartial || parts.expired != n-MaxPartial {
		t.Errorf("%d in reassembly, %d given up, want %d and %d", parts.used, parts.expired, MaxPartial, n-MaxPartial)
	}
	memory := func() (n int) {
		for _, s := range parts.slot[:parts.used] {
			n += len(s.data)
		}
		for _, f := range append(b.core.pool.free[:], b.core.pool.done) {
			for _, d := range f {
				n += len(d)
			}
		}
		return n
	}
	most := memory()
	if most > (MaxPartial+1)*MaxPacket {
		t.Errorf("%d octets in use", most)
	}
	// The newest is among those that stayed.
	last := uint64(n - 1)
	for i := 1; i < 32; i++ {
		b.handle(2*ms, fragment(a, uint8(last%MaxStreams), 100+last/MaxStreams*40+uint64(i), piece{i, 32, MaxPacket},
			make([]byte, 512)))
	}
	if len(b.got) != 1 || parts.used != MaxPartial-1 {
		t.Errorf("%d packets, %d in reassembly", len(b.got), parts.used)
	}
	// All others are given up in time, by Tick alone.
	b.core.Tick(1 * ms.Add(PartialAge))
	b.core.Tick(150 * ms)
	b.core.Tick(250 * ms)
	if now := memory(); now != most {
		t.Errorf("%d octets in use after %d: memory is lost or was taken twice", now, most)
	}
	if parts.used != 0 || b.core.Status(0).Expired != n-1 {
		t.Errorf("%d in reassembly, %d given up", parts.used, b.core.Status(0).Expired)
	}
}

// TestFragmentsThatDiffer: a fragment must agree with the first of its packet;
// one that does not changes nothing.
func TestFragmentsThatDiffer(t *testing.T) {
	a, b := pair(t, 1472)
	want := []byte{1, 2, 3, 4, 5, 6}
	b.handle(2*ms, fragment(a, 3, 10, piece{0, 3, 6}, want[:2]))
	for i, bad := range [][]byte{
		fragment(a, 3, 11, piece{1, 3, 5}, []byte{9, 9}),
		fragment(a, 3, 12, piece{2, 4, 8}, []byte{9, 9}),
	} {
		b.handle(2*ms, bad)
		if got := b.core.Status(0).Drop[BadFragment]; got != uint64(i+1) {
			t.Errorf("fragment %d: %d refused", i, got)
		}
	}
	// The same numbers on another stream are another packet.
	b.handle(2*ms, fragment(a, 4, 11, piece{1, 3, 6}, []byte{8, 8}))
	if len(b.got) != 0 {
		t.Fatal("a packet came of fragments that differ")
	}
	b.handle(2*ms, fragment(a, 3, 20, piece{0, 3, 6}, want[:2]))
	b.handle(2*ms, fragment(a, 3, 22, piece{2, 3, 6}, want[4:]))
	b.handle(2*ms, fragment(a, 3, 21, piece{1, 3, 6}, want[2:4]))
	if len(b.got) != 1 || !bytes.Equal(b.got[0], want) {
		t.Errorf("got % x", b.got)
	}
}

// TestAge: a packet waits so long for its fragments and no longer.
func TestAge(t *testing.T) {
	for _, late := range []bool{false, true} {
		a, b := pair(t, 1472)
		a.send(0, random(2000))
		d := a.datagrams()
		b.handle(1*ms, d[0])
		at := ms.Add(PartialAge)
		if late {
			b.core.Tick(at.Add(time.Millisecond))
		}
		b.handle(at.Add(time.Millisecond), d[1])
		if (len(b.got) == 0) != late || (b.core.Status(0).Expired == 1) != late {
			t.Errorf("late=%v: %d packets, %+v", late, len(b.got), b.core.Status(0))
		}
	}
}

// TestDownClears: what is in reassembly when the trunk goes down is given up.
func TestDownClears(t *testing.T) {
	a, b := pair(t, 1472)
	a.send(0, random(2000))
	d := a.datagrams()
	b.handle(2*ms, d[0])
	b.core.Tick(500 * ms)
	if s := b.core.Status(0); s.Up || s.Expired != 1 || b.core.peers[0].parts.used != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPacketsStay: packets stay as they are until Recycle, however many come.
func TestPacketsStay(t *testing.T) {
	a, b := pair(t, 1472)
	var got, want [][]byte
	for i := range 200 {
		p := random(1500 + i)
		want = append(want, p)
		a.send(0, p)
	}
	for _, d := range a.datagrams() {
		b.core.Handle(2*ms, addr(0), d, func(_ int, p []byte) { got = append(got, p) })
	}
	if !slices.EqualFunc(got, want, bytes.Equal) {
		t.Errorf("%d packets of %d, or they changed", len(got), len(want))
	}
	b.core.Recycle()
	if n := len(b.core.pool.free[class(1500)]) + len(b.core.pool.free[class(2049)]); n != 200 {
		t.Errorf("%d buffers are free, want 200", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"
	"testing"
	"time"

	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
)

// frameOf is from a station, to a group or to another.
func frameOf(src byte, group bool) []byte {
	f := make([]byte, 60)
	f[0] = 2
	if group {
		f[0] = 0xff
	}
	f[6], f[11] = 2, src
	return f
}

func TestSides(t *testing.T) {
	type step struct {
		after  time.Duration
		from   side
		src    byte
		group  bool
		ok     bool
		looped bool
	}
	const s = time.Second
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"each on its side", []step{{0, inside, 1, true, true, false}, {0, outside, 2, true, true, false},
			{s, inside, 1, false, true, false}, {s, outside, 2, false, true, false}}},
		{"what comes back goes no further", []step{{0, inside, 1, false, true, false}, {s, outside, 1, false, false,
			true}, {s, inside, 1, false, true, false}}},
		{"a station moves", []step{{0, inside, 1, true, true, false}, {hold - 1, outside, 1, false, false, true},
			{1, outside, 1, false, true, false}, {0, inside, 1, false, false, true}}},
	} {
		var sd sides
		now := mono.Time(1)
		for i, st := range c.steps {
			now = now.Add(st.after)
			if ok, looped := sd.pass(now, st.from, frameOf(st.src, st.group)); ok != st.ok || looped != st.looped {
				t.Errorf("%s, %d: %v %v", c.name, i, ok, looped)
			}
		}
	}
	var sd sides
	bad := frameOf(1, false)
	bad[6] = 3
	if ok, _ := sd.pass(1, inside, bad); ok {
		t.Error("a group sends")
	}
	copy(bad[6:], make([]byte, 6))
	if ok, _ := sd.pass(1, inside, bad); ok {
		t.Error("nobody sends")
	}
	if w := sd.where(1, frameOf(9, false)[6:]); w != nowhere {
		t.Error("an unknown station is somewhere")
	}
}

// Two bridges between the same two networks: a frame to a group that first arrives by the wrong way
// does not loop for ever.
func TestSidesEndStorms(t *testing.T) {
	var a, b sides
	now := mono.Time(1)
	f := frameOf(1, true)
	// The station is outside. b forwards its frame to the inside, and a receives that before the
	// original.
	type hop struct {
		at   *sides
		from side
	}
	todo := []hop{{&b, outside}, {&a, inside}, {&a, outside}}
	n := 0
	for ; len(todo) > 0; n++ {
		h := todo[0]
		todo = todo[1:]
		now = now.Add(time.Millisecond)
		other := map[*sides]*sides{&a: &b, &b: &a}[h.at]
		if ok, _ := h.at.pass(now, h.from, f); ok && !h.at.again(now, h.from, 77) {
			// The other bridge receives a forwarded frame on that side.
			todo = append(todo, hop{other, map[side]side{inside: outside, outside: inside}[h.from]})
		}
		if n > 20 {
			t.Fatal("it goes round")
		}
	}
	// Sent again, it passes; so does another, and the same the other way.
	if a.again(now.Add(echo), inside, 77) || a.again(now, inside, 78) || a.again(now, outside, 79) ||
		a.again(now, inside, 79) {
		t.Error("kept from passing")
	}
	if !a.again(now.Add(echo), inside, 77) {
		t.Error("passes again")
	}
}

func TestSidesTell(t *testing.T) {
	var sd sides
	now := mono.Time(1)
	if l, changed := sd.list(now); len(l) != 0 || !changed {
		t.Error("the first list")
	}
	local, global := frameOf(1, true), frameOf(2, true)
	global[6] = 0
	sd.pass(now, outside, local)
	sd.pass(now, outside, global)
	sd.pass(now, inside, frameOf(3, true))
	if l, changed := sd.list(now); !changed || len(l) != 1 || l[0] != [6]byte(local[6:12]) {
		t.Errorf("%x %v", l, changed)
	}
	sd.pass(now, outside, local)
	if _, changed := sd.list(now); changed {
		t.Error("nothing has changed")
	}
	// It moves inside, and comes back; then it is silent.
	now = now.Add(hold)
	sd.pass(now, inside, local)
	if l, changed := sd.list(now); !changed || len(l) != 0 {
		t.Errorf("%x", l)
	}
	now = now.Add(hold)
	sd.pass(now, outside, local)
	if l, _ := sd.list(now); len(l) != 1 {
		t.Errorf("%x", l)
	}
	now = now.Add(age)
	if l, changed := sd.list(now); !changed || len(l) != 0 || sd.where(now, local[6:]) != nowhere {
		t.Errorf("%x", l)
	}
	// The host's address stays, for any received frames, and any number of them.
	sd.fix([6]byte{2, 0, 0, 0, 0, 7})
	mine := frameOf(7, true)
	if ok, looped := sd.pass(now, inside, mine); ok || !looped {
		t.Error("the host is inside")
	}
	for i := range 20 * maxMACs {
		f := frameOf(0, false)
		binary.BigEndian.PutUint32(f[8:], uint32(i)+0x01000000)
		if ok, _ := sd.pass(now, outside, f); !ok {
			t.Fatal("a new station does not pass")
		}
	}
	if sd.where(now, mine[6:]) != outside {
		t.Error("the host is forgotten")
	}
	if l, changed := sd.list(now); !changed || len(l) != maxListed {
		t.Errorf("%d stations told of", len(l))
	}
	sd.fix([6]byte{2, 0, 0, 0, 0, 8})
	if sd.where(now, mine[6:]) != nowhere {
		t.Error("the host's former address stays")
	}
}

func TestTag(t *testing.T) {
	b := make([]byte, 4+16)
	for i := range b[4:] {
		b[4+i] = byte(i)
	}
	off := ether.Offload{Flags: ether.NeedsCsum, HdrLen: 54, CsumStart: 34, CsumOffset: 16}
	insert(b, 0xa064, ether.TypeQinQ, &off)
	want := []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x88, 0xa8, 0xa0, 0x64, 12, 13, 14, 15}
	if string(b) != string(want) || off != (ether.Offload{Flags: ether.NeedsCsum, HdrLen: 58, CsumStart: 38,
		CsumOffset: 16}) {
		t.Errorf("%x, %+v", b, off)
	}
	off = ether.Offload{}
	insert(b, 1, 2, &off)
	if off != (ether.Offload{}) {
		t.Errorf("%+v", off)
	}
	for n := range 40 {
		if _, _, ok := tag(make([]byte, n)); ok {
			t.Errorf("a tag in %d octets of nothing", n)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package sm

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// consistent checks that no two ports share a LID and that all are aligned.
func consistent(t *testing.T, l *lidTable) {
	t.Helper()
	n := 0
	seen := map[ib.LID]bool{}
	for g, r := range l.by {
		if r.PortGUID != g || r.LID == 0 || int(r.LID)%(1<<r.LMC) != 0 {
			t.Fatalf("%v: %+v", g, r)
		}
		for k := range 1 << r.LMC {
			lid := r.LID + ib.LID(k)
			if seen[lid] || l.owner[lid] != g || !lid.IsUnicast() {
				t.Fatalf("LID %d", lid)
			}
			seen[lid] = true
			n++
		}
	}
	if n != len(l.owner) {
		t.Fatalf("%d LIDs are used, %d marked", n, len(l.owner))
	}
}

func TestLIDs(t *testing.T) {
	var l lidTable
	l.restore(Observations{LIDs: []LIDRecord{{1, 10, 0}, {2, 10, 0}, {3, 0, 0}, {4, 0xbfff, 0}, {5, 0xbfff, 1},
		{6, 9, 1}, {7, 12, 2}, {8, 14, 0}, {0, 20, 0},
		{9, 30, 8}, {10, 0xc000, 0}}})
	consistent(t, &l)
	want := []LIDRecord{{1, 10, 0}, {7, 12, 2}, {4, 0xbfff, 0}}
	if diff := cmp.Diff(want, l.records()); diff != "" {
		t.Fatal(diff)
	}
	changed, lost := l.assign([]lidWant{{guid: 1}, {guid: 20, current: 10}, {guid: 21, current: 5}, {guid: 22},
		{guid: 23, lmc: 3}, {guid: 7, lmc: 1}})
	if !changed || lost != nil {
		t.Errorf("%v %v", changed, lost)
	}
	consistent(t, &l)
	// 1 keeps 10; 21 keeps what it reports; 20 cannot; 7 has another LMC now.
	want = []LIDRecord{{20, 1, 0}, {22, 2, 0}, {21, 5, 0}, {1, 10, 0}, {23, 16, 3}, {4, 0xbfff, 0}}
	got := slices.DeleteFunc(l.records(), func(r LIDRecord) bool { return r.PortGUID == 7 })
	if diff := cmp.Diff(want, got); diff != "" || l.of(7).LMC != 1 {
		t.Error(diff, l.of(7))
	}
	if changed, _ := l.assign([]lidWant{{guid: 1}, {guid: 20}}); changed {
		t.Error("nothing was to be changed")
	}
}

// TestLIDsRunOut fills all LIDs: ports that are away give theirs up, and then
// there are none left.
func TestLIDsRunOut(t *testing.T) {
	var l lidTable
	var o Observations
	for i := range 100 {
		o.LIDs = append(o.LIDs, LIDRecord{ib.GUID(1000000 + i), ib.LID(i + 1), 0})
	}
	l.restore(o)
	var want []lidWant
	for i := range int(ib.LIDMulticastFirst) + 4 {
		want = append(want, lidWant{guid: ib.GUID(i + 1)})
	}
	changed, lost := l.assign(want)
	consistent(t, &l)
	if !changed || len(lost) != 5 || lost[4] != want[len(want)-1].guid || len(l.by) != int(ib.LIDMulticastFirst)-1 {
		t.Errorf("%v, %d lost, %d given", changed, len(lost), len(l.by))
	}
}

func TestLIDsRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l lidTable
	l.restore(Observations{})
	for range 300 {
		var want []lidWant
		for g := range 60 {
			if rng.IntN(3) > 0 {
				want = append(want, lidWant{ib.GUID(g + 1), uint8(rng.IntN(4)), ib.LID(rng.IntN(200))})
			}
		}
		before := map[ib.GUID]LIDRecord{}
		for g, r := range l.by {
			before[g] = r
		}
		if _, lost := l.assign(want); lost != nil {
			t.Fatal(lost)
		}
		consistent(t, &l)
		for _, w := range want {
			r := l.of(w.guid)
			if r.LMC != w.lmc {
				t.Fatalf("%+v: %+v", w, r)
			}
			if old, had := before[w.guid]; had && old.LMC == w.lmc && old != r {
				t.Fatalf("%+v was moved to %+v", old, r)
			}
		}
	}
}

// TestPlace checks where keys go in a table that has some.
func TestPlace(t *testing.T) {
	for _, c := range []struct{ table, keys, want []ib.PKey }{
		{[]ib.PKey{0xffff, 0, 0, 0}, []ib.PKey{0xffff, 0x8001, 2}, []ib.PKey{0xffff, 0x8001, 2, 0}},
		{[]ib.PKey{0xffff, 5, 2, 0}, []ib.PKey{0x7fff, 0x8001, 2}, []ib.PKey{0x7fff, 0x8001, 2, 0}},
		{[]ib.PKey{0x7fff, 1, 0x8002, 3}, []ib.PKey{0x7fff, 0x8003, 2, 9}, []ib.PKey{0x7fff, 9, 2, 0x8003}},
		{[]ib.PKey{7, 7, 7, 0xffff}, []ib.PKey{0xffff, 7}, []ib.PKey{0xffff, 7, 0, 0}},
		{[]ib.PKey{1}, []ib.PKey{0xffff}, []ib.PKey{0xffff}},
	} {
		if got, ok := place(c.table, c.keys); !ok || !slices.Equal(got, c.want) {
			t.Errorf("%x into %x: %x, want %x", c.keys, c.table, got, c.want)
		}
	}
	if _, ok := place(make([]ib.PKey, 1), []ib.PKey{1, 2}); ok {
		t.Error("two keys fit one entry")
	}
}

// TestAdopt checks what a new master believes of the ports it finds.
func TestAdopt(t *testing.T) {
	known := []LIDRecord{{1, 1, 0}, {2, 2, 0}, {3, 3, 0}, {9, 8, 2}}
	for name, c := range map[string]struct {
		want    []lidWant
		lids    []LIDRecord
		changed bool
	}{
		"as known":     {[]lidWant{{1, 0, 1}, {2, 0, 2}}, known, false},
		"started anew": {[]lidWant{{1, 0, 0}, {2, 0, 0}}, known, false},
		"of another master": {[]lidWant{{1, 0, 3}, {2, 0, 4}, {3, 0, 5}}, []LIDRecord{{1, 3, 0}, {2, 4, 0},
			{3, 5, 0}, {9, 8, 2}}, true},
		"exchanged": {[]lidWant{{1, 0, 2}, {2, 0, 1}}, []LIDRecord{{2, 1, 0}, {1, 2, 0}, {3, 3, 0},
			{9, 8, 2}}, true},
		"of one that is away": {[]lidWant{{4, 0, 3}}, []LIDRecord{{1, 1, 0}, {2, 2, 0}, {4, 3, 0}, {9, 8, 2}}, true},
		"of one that has it":  {[]lidWant{{1, 0, 2}, {2, 0, 2}}, known, false},
		"two of one": {[]lidWant{{4, 0, 6}, {5, 0, 6}}, []LIDRecord{{1, 1, 0}, {2, 2, 0}, {3, 3, 0},
			{4, 6, 0}, {9, 8, 2}}, true},
		"several over one":     {[]lidWant{{4, 1, 2}}, []LIDRecord{{1, 1, 0}, {4, 2, 1}, {9, 8, 2}}, true},
		"within several":       {[]lidWant{{4, 0, 9}}, []LIDRecord{{1, 1, 0}, {2, 2, 0}, {3, 3, 0}, {4, 9, 0}}, true},
		"another LMC":          {[]lidWant{{9, 1, 8}}, []LIDRecord{{1, 1, 0}, {2, 2, 0}, {3, 3, 0}, {9, 8, 1}}, true},
		"not aligned, too far": {[]lidWant{{1, 1, 3}, {2, 0, 0xc000}, {3, 1, 0xbfff}}, known, false},
	} {
		var l lidTable
		l.restore(Observations{LIDs: known})
		if changed := l.adopt(c.want); changed != c.changed {
			t.Errorf("%s: changed %v", name, changed)
		}
		consistent(t, &l)
		if diff := cmp.Diff(c.lids, l.records()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		l.assign(c.want)
		consistent(t, &l)
	}
}

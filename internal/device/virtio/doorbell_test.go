// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
)

// TestDoorbell covers one word per summary bit (up to 4096 rings) and blocks.
func TestDoorbell(t *testing.T) {
	for _, n := range []uint32{64, 195, 4096, 4097, 8192, 49155, 65536} {
		m := virtiotest.NewMemory(t, 1<<16)
		p := virtiotest.NewDoorbell(m, n)
		d, err := virtio.NewDoorbell(m, p.GPA, p.NBits)
		if err != nil {
			t.Fatal(err)
		}
		want := []uint32{0, 1, 63, n / 2, n - 2, n - 1}
		slices.Sort(want)
		want = slices.Compact(want)
		for _, i := range want {
			p.Ring(i)
			p.Ring(i)
		}
		if !d.Sleep() || !p.Sleeping() || !p.Ring(want[0]) {
			t.Errorf("%d rings: sleep did not see the news, or suppresses kicks", n)
		}
		d.Wake()
		if p.Ring(want[0]) {
			t.Errorf("%d rings: kick asked for while awake", n)
		}
		got := d.Rings(nil)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d rings (-want +got):\n%s", n, diff)
		}
		if d.Sleep() || len(d.Rings(nil)) != 0 {
			t.Errorf("%d rings: not cleared", n)
		}
		buf := make([]uint32, 0, 8)
		if a := testing.AllocsPerRun(100, func() {
			p.Ring(7)
			if buf = d.Rings(buf[:0]); len(buf) != 1 {
				t.Fatal(buf)
			}
		}); a != 0 {
			t.Errorf("%v allocations", a)
		}
	}
}

func TestDoorbellRefusals(t *testing.T) {
	m := virtiotest.NewMemory(t, 1<<16)
	for _, tc := range []struct {
		gpa   uint64
		nbits uint32
		want  virtio.Fault
	}{
		{m.Base, 0, virtio.FaultSize}, {m.Base, 65, virtio.FaultSize}, {m.Base, 1 << 17, virtio.FaultSize},
		{m.Base + 8, 64, virtio.FaultAlign}, {m.Base + 1<<16 - 128, 64, virtio.FaultRingMemory}, {0, 64,
			virtio.FaultRingMemory},
	} {
		if _, err := virtio.NewDoorbell(m, tc.gpa, tc.nbits); err != tc.want {
			t.Errorf("%#x, %d bits: %v, want %v", tc.gpa, tc.nbits, err, tc.want)
		}
	}
	if _, err := virtio.NewWord(m, m.Base+2); err != virtio.FaultAlign {
		t.Errorf("word: %v", err)
	}
	if _, err := virtio.NewWord(m, m.Base+1<<16); err != virtio.FaultAddress {
		t.Errorf("word: %v", err)
	}
	w, err := virtio.NewWord(m, m.Base+4)
	if err != nil {
		t.Fatal(err)
	}
	m.At(m.Base+4, 1)[0] = 2
	if w.Load() != 2 || w.Swap(0) != 2 || w.Load() != 0 {
		t.Error("word does not exchange")
	}
}

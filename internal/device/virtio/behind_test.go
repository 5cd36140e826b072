// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"testing"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
)

// split is memory of two regions that touch at the address cut.
type split struct {
	*virtiotest.Memory
	cut uint64
}

func (s split) Prefix(gpa, n uint64) []byte {
	if gpa < s.cut {
		n = min(n, s.cut-gpa)
	}
	return s.Memory.Prefix(gpa, n)
}

// TestReadBehind: what lies behind the readable part of an element is found if it is in the region of the
// last readable byte.
func TestReadBehind(t *testing.T) {
	for _, packed := range []bool{false, true} {
		m := split{Memory: virtiotest.NewMemory(t, 1<<16)}
		v := virtiotest.NewVring(m.Memory, 16, packed, false)
		at := m.Alloc(32, 1)
		copy(m.At(at, 32), "first second behind it all")
		m.cut = at + 26
		q, _, err := virtio.Open(m, v.Config)
		if err != nil {
			t.Fatal(err)
		}
		answer := bufs(virtiotest.Buf{GPA: at + 30, Len: 1})
		end := m.Base + uint64(len(m.Bytes))
		for _, c := range []struct {
			read   []virtiotest.Buf
			n      int
			behind string
			ok     bool
		}{
			{bufs(virtiotest.Buf{GPA: at, Len: 6}, virtiotest.Buf{GPA: at + 6, Len: 6}), 7, " behind", true},
			{bufs(virtiotest.Buf{GPA: at + 6, Len: 6}, virtiotest.Buf{GPA: at, Len: 5}), 7, " second", true},
			{bufs(virtiotest.Buf{GPA: at, Len: 12}, virtiotest.Buf{GPA: at, Len: 0}), 14, " behind it all", true},
			{bufs(virtiotest.Buf{GPA: at, Len: 12}), 0, "", true},
			{bufs(virtiotest.Buf{GPA: at, Len: 12}), 15, "", false},    // one octet is in the next region
			{bufs(virtiotest.Buf{GPA: at, Len: 26}), 1, "", false},     // all of it is
			{bufs(virtiotest.Buf{GPA: at, Len: 28}), 1, "\x00", true},  // the element reaches into that region
			{bufs(virtiotest.Buf{GPA: end - 4, Len: 4}), 1, "", false}, // the memory ends
			{bufs(virtiotest.Buf{GPA: end - 4, Len: 3}), 2, "", false}, // within it
			{bufs(virtiotest.Buf{GPA: end - 4, Len: 3}), 1, "\x00", true},
			{nil, 1, "", false}, // nothing is readable
		} {
			v.Elements.Add(c.read, answer)
			v.Elements.Offer()
			var chain virtio.Chain
			if ok, err := q.Pop(&chain); !ok || err != nil {
				t.Fatal(ok, err)
			}
			got := make([]byte, c.n)
			if ok := chain.ReadBehind(got); ok != c.ok || ok && string(got) != c.behind {
				t.Errorf("packed %v: %v + %d: %v, %q", packed, c.read, c.n, ok, got)
			}
			q.PushUsed(chain.Head, 0)
			q.Publish()
			v.Elements.Reap()
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package virtio_test

import (
	"testing"

	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
)

// TestDescriptorsAreBounded: empty descriptors cost as much time as others,
// so they count.
func TestDescriptorsAreBounded(t *testing.T) {
	for _, c := range []struct {
		name  string
		descs int
		table bool // indirect
		pop   bool
		want  error
	}{
		{"most of an element", 64, false, false, nil},
		{"one more", 65, false, false, virtio.FaultLength},
		{"most in a table", 63, true, false, nil},
		{"one more in a table", 64, true, false, virtio.FaultLength},
		{"most of a chain", 4096, false, true, nil},
		{"one more of a chain", 4097, false, true, virtio.FaultLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := virtiotest.NewMemory(t, 1<<20)
			r := virtiotest.NewRing(m, 8192, false)
			q, err := virtio.New(m, r.Config())
			if err != nil {
				t.Fatal(err)
			}
			list := append(make([]virtiotest.Buf, c.descs-1), put(m, "x")) // empty except the last
			if c.table {
				r.AddIndirect(list, nil)
			} else {
				r.Add(list, nil)
			}
			r.Publish()
			var got []byte
			if c.pop {
				var chain virtio.Chain
				if _, err = q.Pop(&chain); err == nil {
					got = chain.Read[0]
				}
			} else {
				var e virtio.Elem
				e, _, err = q.Next(false)
				got = e.Data
			}
			if err != c.want || err == nil && string(got) != "x" {
				t.Errorf("got %q, %v, want %v", got, err, c.want)
			}
		})
	}
}

// TestElementIsBounded: what has to be gathered is small.
func TestElementIsBounded(t *testing.T) {
	for n, want := range map[int]error{4 << 10: nil, 4<<10 + 1: virtio.FaultLength} {
		m, r, q := setup(t, 8, false)
		gpa := m.Alloc(n, 1)
		r.Add(nil, bufs(virtiotest.Buf{GPA: gpa, Len: 1}, virtiotest.Buf{GPA: gpa + 1, Len: n - 1}))
		r.Publish()
		if e, ok, err := q.Next(true); err != want || ok != (want == nil) || ok && len(e.Data) != n {
			t.Errorf("%d bytes: got %d, %v, want %v", n, len(e.Data), err, want)
		}
	}
}

// TestSharedScratch: queues that share their scratch gather in one place, so
// that a session with many rings costs no more than one with few.
func TestSharedScratch(t *testing.T) {
	m := virtiotest.NewMemory(t, 1<<20)
	var s virtio.Scratch
	var at [2]*byte
	for i := range at {
		r := virtiotest.NewRing(m, 8, false)
		c := r.Config()
		c.Scratch = &s
		q, err := virtio.New(m, c)
		if err != nil {
			t.Fatal(err)
		}
		r.Add(bufs(put(m, "ab"), put(m, "cd")), nil)
		r.Publish()
		e, ok, err := q.Next(false)
		if !ok || err != nil || string(e.Data) != "abcd" || !e.Gathered {
			t.Fatalf("ring %d: %q %v %v", i, e.Data, ok, err)
		}
		at[i] = &e.Data[0]
	}
	if at[0] != at[1] {
		t.Error("each queue has its own scratch")
	}
}

// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"bytes"
	"encoding/binary"
	"math"
	"sync"
	"testing"
)

func TestSliceView(t *testing.T) {
	b := []byte("0123456789abcdef")
	s := NewSlice(0x1000, b)
	for _, tc := range []struct {
		addr, n uint64
		want    string
		ok      bool
	}{
		{0x1000, 16, "0123456789abcdef", true},
		{0x1004, 3, "456", true},
		{0x1010, 0, "", true},
		{0x1010, 1, "", false},
		{0x1011, 0, "", false},
		{0xfff, 1, "", false},
		{0x1000, 17, "", false},
		{0x1001, math.MaxUint64, "", false},
		{math.MaxUint64, 1, "", false},
		{0, 0, "", false},
	} {
		got := s.View(tc.addr, tc.n)
		if (got != nil) != tc.ok || string(got) != tc.want {
			t.Errorf("View(%#x, %#x) = %q, %v; want %q, %v", tc.addr, tc.n, got, got != nil, tc.want, tc.ok)
		}
		if got != nil && cap(got) != len(got) {
			t.Errorf("View(%#x, %#x): capacity %d reaches beyond the range", tc.addr, tc.n, cap(got))
		}
	}
}

func TestSliceCopies(t *testing.T) {
	b := bytes.Repeat([]byte{0xa5}, 16)
	s := NewSlice(64, b)
	n, err := s.WriteV([]Write{{66, []byte("ab")}, {68, nil}, {79, []byte("cd")}, {70, []byte("ef")}})
	if n != 2 || err != ErrFault {
		t.Errorf("WriteV = %d, %v; want 2, ErrFault", n, err)
	}
	if want := "\xa5\xa5ab\xa5"; string(b[:5]) != want || b[6] != 0xa5 || b[15] != 0xa5 {
		t.Errorf("after a failed batch: %q", b)
	}
	x, y := make([]byte, 1), make([]byte, 2)
	if err := s.ReadV(66, [][]byte{x, nil, y}); err != nil || string(x) != "a" || string(y) != "b\xa5" {
		t.Errorf("ReadV = %q, %q, %v", x, y, err)
	}
	if err := s.ReadV(79, [][]byte{y}); err != ErrFault {
		t.Errorf("ReadV beyond the end = %v", err)
	}
}

func TestSliceAtomics(t *testing.T) {
	b := make([]byte, 24)
	s := NewSlice(0x100, b)
	for _, addr := range []uint64{0xf8, 0x104, 0x118} {
		if _, err := s.FetchAdd(addr, 1); err != ErrFault {
			t.Errorf("FetchAdd(%#x) = %v, want ErrFault", addr, err)
		}
		if _, err := s.CompareSwap(addr, 0, 1); err != ErrFault {
			t.Errorf("CompareSwap(%#x) = %v, want ErrFault", addr, err)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if _, err := s.FetchAdd(0x108, 3); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := binary.NativeEndian.Uint64(b[8:]); got != 6000 {
		t.Errorf("sum of concurrent adds = %d, want 6000", got)
	}
	if old, err := s.CompareSwap(0x108, 1, 9); old != 6000 || err != nil {
		t.Errorf("CompareSwap that differs = %d, %v", old, err)
	}
	if old, err := s.CompareSwap(0x108, 6000, 9); old != 6000 || err != nil {
		t.Errorf("CompareSwap that matches = %d, %v", old, err)
	}
	if got := binary.NativeEndian.Uint64(b[8:]); got != 9 {
		t.Errorf("after compare-and-swap: %d, want 9", got)
	}
	if !bytes.Equal(b[:8], make([]byte, 8)) || !bytes.Equal(b[16:], make([]byte, 8)) {
		t.Errorf("neighbours changed: %x", b)
	}
}

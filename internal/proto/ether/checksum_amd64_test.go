// SPDX-License-Identifier: Apache-2.0

package ether

import (
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

// TestChecksumWithoutVectors is TestChecksum as other processors compute it.
func TestChecksumWithoutVectors(t *testing.T) {
	defer func(was bool) { vectors = was }(vectors)
	vectors = false
	TestChecksum(t)
}

// TestVectorsAlone sums what sum leaves to its loop, too, between pages that
// cannot be read: one octet beside the slice would end the test.
func TestVectorsAlone(t *testing.T) {
	if !vectors {
		condtest.Foregoes(t, "this processor, or its system, has no AVX2")
	}
	page := unix.Getpagesize()
	m, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	for _, guard := range [][]byte{m[:page], m[2*page:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	mid := m[page : 2*page]
	for i := range mid {
		mid[i] = byte(i*i*7+i>>3) | 0x81
	}
	for n := 0; n <= page; n += 32 {
		for _, p := range [][]byte{mid[:n], mid[page-n:]} {
			var want uint64
			for i := 0; i < n; i += 2 {
				want += uint64(le.Uint16(p[i:]))
			}
			if got := fold(sumYMM(p)); got != fold(want) {
				t.Fatalf("%d octets: %#04x, want %#04x", n, got, fold(want))
			}
		}
	}
}

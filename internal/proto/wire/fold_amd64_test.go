// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math/big"
	"math/bits"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/condtest"
)

var kernels = []struct {
	kernel
	name  string
	least int
	fold  func(*folding, uint32, []byte) uint32
}{
	{tables, "tables", 0, nil},
	{xmm, "PCLMULQDQ", 16, foldXMM},
	{ymm, "VPCLMULQDQ", 32, foldYMM},
	{zmm, "VPCLMULQDQ with AVX-512", 64, foldZMM},
}

// eachKernel runs f as on a processor that has the kernel and those below it
// only. What this processor lacks cannot be had by any installation.
func eachKernel(t *testing.T, f func(t *testing.T)) {
	was := widest
	defer func() { widest = was }()
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			if k.kernel > was {
				condtest.Foregoes(t, "this processor, or its system, has no %s", k.name)
			}
			widest = k.kernel
			f(t)
		})
	}
}

// TestEachKernel runs all that tests the CRCs as other processors compute them.
func TestEachKernel(t *testing.T) {
	eachKernel(t, func(t *testing.T) {
		t.Run("feeds", TestFeeds)
		t.Run("VCRC", TestVCRCOfEveryLength)
		t.Run("sums", TestSumsAgainstMaskedCopy)
		t.Run("seeds", TestSeedAgainstMaskedCopy)
		t.Run("vectors", TestICRCVectors)
		t.Run("packets16", TestPackets16)
		t.Run("CRC16", TestCRC16)
		t.Run("allocations", TestNoAllocation)
		t.Run("allocations16", TestLen16)
	})
}

// TestKernelsAlone calls each kernel for all it takes: where a wider one is at
// hand, long packets do not come to it otherwise.
func TestKernelsAlone(t *testing.T) {
	buf := noise(64 + 10240)
	for _, k := range kernels[1:] {
		t.Run(k.name, func(t *testing.T) {
			if k.kernel > widest {
				condtest.Foregoes(t, "this processor, or its system, has no %s", k.name)
			}
			for at := range 64 {
				slow32, slow16 := slowCRC(poly, 1, buf[at:][:k.least]), slowCRC(vcrcPoly, 1, buf[at:][:k.least])
				for n := k.least; n < 700; n++ {
					p := buf[at:][:n]
					if a, b := k.fold(icrcFolding, 1, p), k.fold(vcrcFolding, 1, p); a != slow32 || b != slow16 {
						t.Fatalf("%d bytes at %d: %08x, %04x, want %08x, %04x", n, at, a, b, slow32, slow16)
					}
					slow32, slow16 = slowCRC(poly, slow32, buf[at+n:][:1]), slowCRC(vcrcPoly, slow16, buf[at+n:][:1])
				}
			}
			p := buf[:10240]
			if a, b := k.fold(icrcFolding, 1, p), k.fold(vcrcFolding, 1, p); a != slowCRC(poly, 1, p) ||
				b != slowCRC(vcrcPoly, 1, p) {
				t.Errorf("%d bytes: %08x, %04x", len(p), a, b)
			}
		})
	}
}

// TestKernelsStayInside has packets begin and end at pages that cannot be read:
// one byte beside them would end the test.
func TestKernelsStayInside(t *testing.T) {
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
	copy(mid, noise(page))
	eachKernel(t, func(t *testing.T) {
		for n := range page + 1 {
			for _, p := range [][]byte{mid[:n], mid[page-n:]} {
				if got, want := VCRC(p), bits.ReverseBytes16(^feedVCRC(0xffff, p)); got != want {
					t.Fatalf("%d bytes: %04x, want %04x", n, got, want)
				}
				feedLong(0, p)
			}
		}
	})
}

// TestFolding compares the constants with their definition, in polynomials that
// are not reflected.
func TestFolding(t *testing.T) {
	for _, c := range []struct {
		of   *folding
		poly uint64 // of 32 bits: that of the VCRC times x^16
	}{
		{icrcFolding, 0x104c11db7},
		{vcrcFolding, 0x1100b << 16},
	} {
		power := func(n int) uint64 {
			r := uint64(1)
			for range n {
				if r <<= 1; r>>32 != 0 {
					r ^= c.poly
				}
			}
			return r
		}
		pair := func(n int) [2]uint64 {
			return [2]uint64{bits.Reverse64(power(8*n + 63)), bits.Reverse64(power(8*n - 1))}
		}
		for n := 1; n < 64; n++ {
			if c.of.by[n] != pair(n) {
				t.Errorf("%#x: by %d bytes: %x, want %x", c.poly, n, c.of.by[n], pair(n))
			}
		}
		f := c.of
		got := fmt.Sprintf("%x", [][2]uint64{f.by[0], f.by32, f.by64, f.by96, f.by128, f.by192, f.by256, f.lanes[0],
			f.lanes[1], f.lanes[2], f.lanes[3]})
		want := fmt.Sprintf("%x", [][2]uint64{{bits.Reverse64(power(63))}, pair(32), pair(64), pair(96), pair(128),
			pair(192), pair(256),
			pair(48), pair(32), pair(16), {}})
		if got != want {
			t.Errorf("%#x: pairs\n%s, want\n%s", c.poly, got, want)
		}
		if bits.Reverse64(f.poly)>>31 != c.poly || uint64(bits.Reverse32(uint32(f.end[0]))) != power(95) ||
			f.end[0]>>32 != 0 {
			t.Errorf("%#x: polynomial %x, x^95 %x", c.poly, f.poly, f.end[0])
		}
		// The quotient lacks one coefficient, that of x^0, so its product with
		// the polynomial is x^96 but for what is below x^33.
		product, q := new(big.Int), bits.Reverse64(f.end[1])
		for i := range 64 {
			if q>>i&1 != 0 {
				product.Xor(product, new(big.Int).Lsh(new(big.Int).SetUint64(c.poly), uint(i+1)))
			}
		}
		if product.Rsh(product, 33).Cmp(new(big.Int).Lsh(big.NewInt(1), 96-33)) != 0 {
			t.Errorf("%#x: quotient %x", c.poly, f.end[1])
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package wire

import "golang.org/x/sys/cpu"

// Both CRCs where the processor multiplies polynomials (carry-less): bytes with n
// others behind them count the same, modulo the polynomial of the CRC, as their product
// with x^8n added to the last of those others. So a packet is folded: a block as wide as a
// register is multiplied by a power of x and added to one behind it, four blocks
// side by side, until sixteen bytes are left, and these are divided by multiplying with
// the inverse of the polynomial. What is too short for one block, or too much for whole
// ones, is the first block, cut off.
//
// All is reflected here, as both CRCs are on the wire: the first bit of a packet is
// the lowest of a register and the highest power of x. A product of two reflected
// numbers of 64 bits is one power short of its place, hence the odd exponents.

// A kernel is one width of this: foldXMM, foldYMM and foldZMM take the register
// through p, of 16, 32 and 64 bytes or more.
type kernel uint8

const (
	tables kernel = iota // none
	xmm
	ymm
	zmm
)

//go:noescape
func foldXMM(k *folding, reg uint32, p []byte) uint32

//go:noescape
func foldYMM(k *folding, reg uint32, p []byte) uint32

//go:noescape
func foldZMM(k *folding, reg uint32, p []byte) uint32

// hasVPCLMULQDQ reports the instruction VPCLMULQDQ (CPUID leaf 7, ECX bit 10), which package cpu
// reports only together with AVX-512. Leaf 7 must exist.
func hasVPCLMULQDQ() bool

// widest is the widest kernel of this processor and system; it may use those
// below it too.
var widest = func() kernel {
	switch c := &cpu.X86; {
	case c.HasAVX512VPCLMULQDQ && c.HasAVX512VL && c.HasAVX512BW && c.HasAVX2 && c.HasPCLMULQDQ:
		return zmm
	case c.HasAVX2 && c.HasPCLMULQDQ && hasVPCLMULQDQ():
		return ymm
	case c.HasPCLMULQDQ:
		return xmm
	}
	return tables
}()

// foldICRC is feedLong by a kernel, if one takes so few bytes.
func foldICRC(reg uint32, p []byte) (uint32, bool) { return icrcFolding.feed(reg, p) }

// foldVCRC is feedVCRC, likewise.
func foldVCRC(reg uint16, p []byte) (uint16, bool) {
	r, ok := vcrcFolding.feed(uint32(reg), p)
	return uint16(r), ok
}

// feed returns the register behind p if a kernel takes so few bytes.
func (k *folding) feed(reg uint32, p []byte) (uint32, bool) {
	switch {
	case len(p) >= 64 && widest >= zmm:
		return foldZMM(k, reg, p), true
	case len(p) >= 32 && widest >= ymm:
		return foldYMM(k, reg, p), true
	case len(p) >= 16 && widest >= xmm:
		return foldXMM(k, reg, p), true
	}
	return reg, false
}

var icrcFolding, vcrcFolding = newFolding(poly), newFolding(vcrcPoly)

// folding are the constants of one CRC. Each pair multiplies the two halves of
// sixteen bytes: {x^(8n+63), x^(8n-1)} modulo the polynomial moves them over n bytes.
type folding struct {
	by256, by192, by128, by96, by64, by32 [2]uint64

	lanes [4][2]uint64  // by 48, 32 and 16 bytes; the last sixteen stay, and have none
	end   [2]uint64     // x^95 modulo the polynomial; x^96 divided by it
	poly  uint64        // all its 33 coefficients
	by    [64][2]uint64 // by n bytes; 0 only for what is in the first half
}

// newFolding returns the constants of the CRC with a register that processes a zero bit by r = r>>1 ^
// poly&-(r&1). A CRC of 16 bits is, times x^16, one of 32 bits with a zero upper half.
func newFolding(poly uint32) *folding {
	f := new(folding)
	pair := func(n int) [2]uint64 { return [2]uint64{power(poly, 8*n+63) << 32, power(poly, 8*n-1) << 32} }
	f.by256, f.by192, f.by128, f.by96, f.by64, f.by32 = pair(256), pair(192), pair(128), pair(96), pair(64), pair(32)
	f.lanes = [4][2]uint64{pair(48), pair(32), pair(16)}
	f.by[0][0] = power(poly, 63) << 32
	for n := 1; n < len(f.by); n++ {
		f.by[n] = pair(n)
	}
	f.poly = uint64(poly)<<1 | 1
	f.end[0] = power(poly, 95)
	// Long division, the coefficient of x^(64-i) in bit i; that of x^0 adds nothing
	// to the upper half of the product, which alone is used.
	rest := uint64(1)
	for i := range 64 {
		q := rest & 1
		f.end[1] |= q << i
		rest = (rest ^ f.poly&-q) >> 1
	}
	return f
}

// power returns x^n modulo the polynomial, the coefficient of x^i in bit 31-i.
func power(poly uint32, n int) uint64 {
	r := uint32(1) << 31
	for range n {
		r = r>>1 ^ poly&-(r&1)
	}
	return uint64(r)
}

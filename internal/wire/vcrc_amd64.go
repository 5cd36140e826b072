// SPDX-License-Identifier: Apache-2.0

package wire

// The variant CRC where the processor multiplies without carries: sixteen bytes
// of the packet, as a polynomial, count the same modulo that of the CRC when they
// are multiplied by x^128 and added to the sixteen behind them. So the packet is folded into
// its last block, four blocks side by side, and the tables do the rest.

// foldVCRC folds p, of 64 bytes or more and a multiple of 16, into one block that leaves
// the same register behind, starting from 0, as p does from reg.
//
//go:noescape
func foldVCRC(x *[16]byte, p []byte, k *[4]uint64, reg uint64)

func hasCLMUL() bool

var clmul = hasCLMUL()

// vcrcFold are x^575, x^511, x^191 and x^127 modulo the polynomial, reflected: the
// product of two reflected numbers of 64 bits is one x short.
var vcrcFold = [4]uint64{power(575), power(511), power(191), power(127)}

// power returns x^n modulo x^16+x^12+x^3+x+1, the coefficient of x^i in bit 63-i.
func power(n int) (v uint64) {
	r := uint32(1)
	for range n {
		if r <<= 1; r&0x10000 != 0 {
			r ^= 0x1100b
		}
	}
	for i := range 16 {
		v |= uint64(r>>i&1) << (63 - i)
	}
	return v
}

// vcrcBlocks takes the register through the blocks of p that it can take
// together, and returns what is left of p.
func vcrcBlocks(reg uint16, p []byte) (uint16, []byte) {
	if len(p) < 64 || !clmul {
		return reg, p
	}
	n := len(p) &^ 15
	var x [16]byte
	foldVCRC(&x, p[:n], &vcrcFold, uint64(reg))
	return vcrcStep(0, &x), p[n:]
}

// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func sumYMM(p []byte) uint64
TEXT ·sumYMM(SB), NOSPLIT, $0-32
	MOVQ p_base+0(FP), SI
	MOVQ p_len+8(FP), CX

	// Y0 and Y1 are sums of lower halves of 64-bit words, Y4 and Y5 of upper ones:
	// 2^32 is 1 modulo 2^16-1, so what they stand for is the same.
	VPXOR   Y8, Y8, Y8
	VPXOR   Y0, Y0, Y0
	VPXOR   Y1, Y1, Y1
	VPXOR   Y4, Y4, Y4
	VPXOR   Y5, Y5, Y5
	SUBQ    $128, CX
	JB      rest

four:
	VMOVDQU  (SI), Y9
	VMOVDQU  32(SI), Y10
	VMOVDQU  64(SI), Y11
	VMOVDQU  96(SI), Y12
	VPBLENDD $0xaa, Y8, Y9, Y2
	VPBLENDD $0xaa, Y8, Y10, Y3
	VPBLENDD $0xaa, Y8, Y11, Y6
	VPBLENDD $0xaa, Y8, Y12, Y7
	VPSRLQ   $32, Y9, Y9
	VPSRLQ   $32, Y10, Y10
	VPSRLQ   $32, Y11, Y11
	VPSRLQ   $32, Y12, Y12
	VPADDQ   Y2, Y0, Y0
	VPADDQ   Y3, Y1, Y1
	VPADDQ   Y6, Y0, Y0
	VPADDQ   Y7, Y1, Y1
	VPADDQ   Y9, Y4, Y4
	VPADDQ   Y10, Y5, Y5
	VPADDQ   Y11, Y4, Y4
	VPADDQ   Y12, Y5, Y5
	ADDQ     $128, SI
	SUBQ     $128, CX
	JAE      four

rest:
	ADDQ     $128, CX

one:
	SUBQ     $32, CX
	JB       join
	VMOVDQU  (SI), Y9
	VPBLENDD $0xaa, Y8, Y9, Y2
	VPSRLQ   $32, Y9, Y9
	VPADDQ   Y2, Y0, Y0
	VPADDQ   Y9, Y4, Y4
	ADDQ     $32, SI
	JMP      one

join:
	VPADDQ       Y1, Y0, Y0
	VPADDQ       Y5, Y4, Y4
	VPADDQ       Y4, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDQ       X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	VZEROUPPER
	MOVQ         AX, ret+24(FP)
	RET

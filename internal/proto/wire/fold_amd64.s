// SPDX-License-Identifier: Apache-2.0

#include "go_asm.h"
#include "textflag.h"

// FOLD multiplies the blocks of acc by the pair in k, leaving two summands.
#define FOLD(k, acc, other) \
	VPCLMULQDQ $0x11, k, acc, other \
	VPCLMULQDQ $0x00, k, acc, acc

// DIVIDE takes X0, the last sixteen bytes, with the constants at DX to the register in AX.
#define DIVIDE \
	VMOVDQU    folding_end(DX), X8  \
	VMOVQ      folding_poly(DX), X9 \
	VPCLMULQDQ $0x00, X8, X0, X4    \
	VPSRLDQ    $8, X0, X0           \
	VPXOR      X4, X0, X0           \
	VPCLMULQDQ $0x10, X8, X0, X4    \
	VPCLMULQDQ $0x00, X9, X4, X4    \
	VPXOR      X4, X0, X0           \
	VPEXTRD    $2, X0, AX

// FOLD128 is FOLD of sixteen bytes before AVX, adding the summands.
#define FOLD128(k, acc, other) \
	MOVO      acc, other      \
	PCLMULQDQ $0x00, k, acc   \
	PCLMULQDQ $0x11, k, other \
	PXOR      other, acc

// func hasVPCLMULQDQ() bool
TEXT ·hasVPCLMULQDQ(SB), NOSPLIT, $0-1
	MOVL $7, AX
	XORL CX, CX
	CPUID
	SHRL $10, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET

// func foldXMM(k *folding, reg uint32, p []byte) uint32
TEXT ·foldXMM(SB), NOSPLIT, $0-44
	MOVQ k+0(FP), DX
	MOVL reg+8(FP), AX
	MOVQ p_base+16(FP), SI
	MOVQ p_len+24(FP), DI

	// The bytes that are too many for whole blocks are the first block, cut off and
	// moved over no more bytes than it has. The register is added in its place, also
	// where it is longer than they are, or they are none.
	MOVQ  DI, CX
	ANDQ  $15, CX
	LEAQ  firstBytes<>+32(SB), R8
	SUBQ  CX, R8
	MOVOU (SI), X0
	MOVOU (R8), X4
	PAND  X4, X0
	MOVQ  AX, X8
	PXOR  X8, X0
	ADDQ  CX, SI
	SUBQ  CX, DI
	SHLQ  $4, CX
	MOVOU folding_by(DX)(CX*1), X8
	FOLD128(X8, X0, X4)
	MOVOU (SI), X4
	PXOR  X4, X0
	ADDQ  $16, SI
	SUBQ  $16, DI
	MOVOU folding_lanes+32(DX), X9 // by 16
	CMPQ  DI, $48
	JB    one

	MOVOU (SI), X1
	MOVOU 16(SI), X2
	MOVOU 32(SI), X3
	MOVOU folding_by64(DX), X8
	ADDQ  $48, SI
	SUBQ  $48, DI
	CMPQ  DI, $64
	JB    join

four:
	FOLD128(X8, X0, X4)
	FOLD128(X8, X1, X5)
	FOLD128(X8, X2, X6)
	FOLD128(X8, X3, X7)
	MOVOU (SI), X4
	MOVOU 16(SI), X5
	MOVOU 32(SI), X6
	MOVOU 48(SI), X7
	PXOR  X4, X0
	PXOR  X5, X1
	PXOR  X6, X2
	PXOR  X7, X3
	ADDQ  $64, SI
	SUBQ  $64, DI
	CMPQ  DI, $64
	JAE   four

join:
	MOVOU folding_lanes+0(DX), X10
	MOVOU folding_lanes+16(DX), X11
	FOLD128(X10, X0, X4)
	FOLD128(X11, X1, X5)
	FOLD128(X9, X2, X6)
	PXOR  X1, X0
	PXOR  X3, X2
	PXOR  X2, X0

one:
	CMPQ  DI, $16
	JB    divide
	FOLD128(X9, X0, X4)
	MOVOU (SI), X4
	PXOR  X4, X0
	ADDQ  $16, SI
	SUBQ  $16, DI
	JMP   one

divide:
	MOVOU     folding_end(DX), X8
	MOVQ      folding_poly(DX), X9
	MOVO      X0, X4
	PCLMULQDQ $0x00, X8, X4
	PSRLDQ    $8, X0
	PXOR      X4, X0
	MOVO      X0, X4
	PCLMULQDQ $0x10, X8, X4
	PCLMULQDQ $0x00, X9, X4
	PXOR      X4, X0
	PSRLDQ    $8, X0
	MOVQ      X0, AX
	MOVL      AX, ret+40(FP)
	RET

// func foldYMM(k *folding, reg uint32, p []byte) uint32
TEXT ·foldYMM(SB), NOSPLIT, $0-44
	MOVQ k+0(FP), DX
	MOVL reg+8(FP), AX
	MOVQ p_base+16(FP), SI
	MOVQ p_len+24(FP), DI

	// As in foldXMM.
	MOVQ           DI, CX
	ANDQ           $31, CX
	LEAQ           firstBytes<>+32(SB), R8
	SUBQ           CX, R8
	VMOVDQU        (SI), Y0
	VPAND          (R8), Y0, Y0
	VMOVD          AX, X8
	VPXOR          Y8, Y0, Y0
	ADDQ           CX, SI
	SUBQ           CX, DI
	SHLQ           $4, CX
	VBROADCASTI128 folding_by(DX)(CX*1), Y8
	FOLD(Y8, Y0, Y4)
	VPXOR          Y4, Y0, Y0
	VPXOR          (SI), Y0, Y0
	ADDQ           $32, SI
	SUBQ           $32, DI
	VBROADCASTI128 folding_by32(DX), Y9
	CMPQ           DI, $96
	JB             one

	VMOVDQU        (SI), Y1
	VMOVDQU        32(SI), Y2
	VMOVDQU        64(SI), Y3
	VBROADCASTI128 folding_by128(DX), Y8
	ADDQ           $96, SI
	SUBQ           $96, DI
	CMPQ           DI, $128
	JB             join

four:
	FOLD(Y8, Y0, Y4)
	FOLD(Y8, Y1, Y5)
	FOLD(Y8, Y2, Y6)
	FOLD(Y8, Y3, Y7)
	VPXOR (SI), Y4, Y4
	VPXOR 32(SI), Y5, Y5
	VPXOR 64(SI), Y6, Y6
	VPXOR 96(SI), Y7, Y7
	VPXOR Y4, Y0, Y0
	VPXOR Y5, Y1, Y1
	VPXOR Y6, Y2, Y2
	VPXOR Y7, Y3, Y3
	ADDQ  $128, SI
	SUBQ  $128, DI
	CMPQ  DI, $128
	JAE   four

join:
	VBROADCASTI128 folding_by96(DX), Y10
	VBROADCASTI128 folding_by64(DX), Y11
	FOLD(Y10, Y0, Y4)
	FOLD(Y11, Y1, Y5)
	FOLD(Y9, Y2, Y6)
	VPXOR          Y4, Y3, Y3
	VPXOR          Y5, Y1, Y1
	VPXOR          Y6, Y2, Y2
	VPXOR          Y3, Y0, Y0
	VPXOR          Y2, Y1, Y1
	VPXOR          Y1, Y0, Y0

one:
	CMPQ  DI, $32
	JB    lanes
	FOLD(Y9, Y0, Y4)
	VPXOR (SI), Y4, Y4
	VPXOR Y4, Y0, Y0
	ADDQ  $32, SI
	SUBQ  $32, DI
	JMP   one

lanes:
	VEXTRACTI128 $1, Y0, X6
	VMOVDQU      folding_lanes+32(DX), X8
	FOLD(X8, X0, X4)
	VPXOR        X6, X4, X4
	VPXOR        X4, X0, X0
	DIVIDE
	VZEROUPPER
	MOVL         AX, ret+40(FP)
	RET

// func foldZMM(k *folding, reg uint32, p []byte) uint32
TEXT ·foldZMM(SB), NOSPLIT, $0-44
	MOVQ k+0(FP), DX
	MOVL reg+8(FP), AX
	MOVQ p_base+16(FP), SI
	MOVQ p_len+24(FP), DI

	// As in foldXMM, the mask being a register.
	MOVQ            DI, CX
	ANDQ            $63, CX
	MOVQ            $-1, R8
	SHLQ            CX, R8
	NOTQ            R8
	KMOVQ           R8, K1
	VMOVDQU8.Z      (SI), K1, Z0
	VMOVD           AX, X8
	VPXORQ          Z8, Z0, Z0
	ADDQ            CX, SI
	SUBQ            CX, DI
	SHLQ            $4, CX
	VBROADCASTI32X4 folding_by(DX)(CX*1), Z8
	FOLD(Z8, Z0, Z4)
	VPTERNLOGD      $0x96, (SI), Z4, Z0
	ADDQ            $64, SI
	SUBQ            $64, DI
	VBROADCASTI32X4 folding_by64(DX), Z9
	CMPQ            DI, $192
	JB              one

	VMOVDQU64       (SI), Z1
	VMOVDQU64       64(SI), Z2
	VMOVDQU64       128(SI), Z3
	VBROADCASTI32X4 folding_by256(DX), Z8
	ADDQ            $192, SI
	SUBQ            $192, DI
	CMPQ            DI, $256
	JB              join

four:
	FOLD(Z8, Z0, Z4)
	FOLD(Z8, Z1, Z5)
	FOLD(Z8, Z2, Z6)
	FOLD(Z8, Z3, Z7)
	VPTERNLOGD $0x96, (SI), Z4, Z0
	VPTERNLOGD $0x96, 64(SI), Z5, Z1
	VPTERNLOGD $0x96, 128(SI), Z6, Z2
	VPTERNLOGD $0x96, 192(SI), Z7, Z3
	ADDQ       $256, SI
	SUBQ       $256, DI
	CMPQ       DI, $256
	JAE        four

join:
	VBROADCASTI32X4 folding_by192(DX), Z10
	VBROADCASTI32X4 folding_by128(DX), Z11
	FOLD(Z10, Z0, Z4)
	FOLD(Z11, Z1, Z5)
	FOLD(Z9, Z2, Z6)
	VPTERNLOGD      $0x96, Z4, Z3, Z0
	VPTERNLOGD      $0x96, Z5, Z2, Z1
	VPTERNLOGD      $0x96, Z6, Z1, Z0

one:
	CMPQ       DI, $64
	JB         lanes
	FOLD(Z9, Z0, Z4)
	VPTERNLOGD $0x96, (SI), Z4, Z0
	ADDQ       $64, SI
	SUBQ       $64, DI
	JMP        one

lanes:
	VMOVDQU64     folding_lanes(DX), Z8
	VEXTRACTI32X4 $3, Z0, X6
	FOLD(Z8, Z0, Z4)
	VPXORQ        Z4, Z0, Z0
	VEXTRACTI64X4 $1, Z0, Y4
	VPXOR         Y4, Y0, Y0
	VEXTRACTI128  $1, Y0, X4
	VPXOR         X6, X0, X0
	VPXOR         X4, X0, X0
	DIVIDE
	VZEROUPPER
	MOVL          AX, ret+40(FP)
	RET

// Ones in front, zeros behind: read n bytes before the middle, a mask of the first n.
DATA firstBytes<>+0(SB)/8, $-1
DATA firstBytes<>+8(SB)/8, $-1
DATA firstBytes<>+16(SB)/8, $-1
DATA firstBytes<>+24(SB)/8, $-1
GLOBL firstBytes<>(SB), RODATA|NOPTR, $64

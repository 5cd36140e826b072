// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func hasCLMUL() bool
TEXT ·hasCLMUL(SB), NOSPLIT, $0-1
	MOVL $1, AX
	XORL CX, CX
	CPUID
	SHRL $1, CX
	ANDL $1, CX
	MOVB CX, ret+0(FP)
	RET

// func foldVCRC(x *[16]byte, p []byte, k *[4]uint64, reg uint64)
TEXT ·foldVCRC(SB), NOSPLIT, $0-48
	MOVQ  x+0(FP), AX
	MOVQ  p_base+8(FP), SI
	MOVQ  p_len+16(FP), CX
	MOVQ  k+32(FP), DX
	MOVQ  reg+40(FP), X8
	MOVOU (DX), X9    // to fold over 64 bytes
	MOVOU 16(DX), X10 // over 16
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	PXOR  X8, X0
	ADDQ  $64, SI
	SUBQ  $64, CX

four:
	CMPQ      CX, $64
	JLT       join
	MOVO      X0, X4
	MOVO      X1, X5
	MOVO      X2, X6
	MOVO      X3, X7
	PCLMULQDQ $0x00, X9, X0
	PCLMULQDQ $0x00, X9, X1
	PCLMULQDQ $0x00, X9, X2
	PCLMULQDQ $0x00, X9, X3
	PCLMULQDQ $0x11, X9, X4
	PCLMULQDQ $0x11, X9, X5
	PCLMULQDQ $0x11, X9, X6
	PCLMULQDQ $0x11, X9, X7
	PXOR      X4, X0
	PXOR      X5, X1
	PXOR      X6, X2
	PXOR      X7, X3
	MOVOU     (SI), X4
	MOVOU     16(SI), X5
	MOVOU     32(SI), X6
	MOVOU     48(SI), X7
	PXOR      X4, X0
	PXOR      X5, X1
	PXOR      X6, X2
	PXOR      X7, X3
	ADDQ      $64, SI
	SUBQ      $64, CX
	JMP       four

join:
	MOVO      X0, X4
	PCLMULQDQ $0x00, X10, X0
	PCLMULQDQ $0x11, X10, X4
	PXOR      X4, X0
	PXOR      X1, X0
	MOVO      X0, X4
	PCLMULQDQ $0x00, X10, X0
	PCLMULQDQ $0x11, X10, X4
	PXOR      X4, X0
	PXOR      X2, X0
	MOVO      X0, X4
	PCLMULQDQ $0x00, X10, X0
	PCLMULQDQ $0x11, X10, X4
	PXOR      X4, X0
	PXOR      X3, X0

one:
	CMPQ      CX, $16
	JLT       done
	MOVO      X0, X4
	PCLMULQDQ $0x00, X10, X0
	PCLMULQDQ $0x11, X10, X4
	PXOR      X4, X0
	MOVOU     (SI), X5
	PXOR      X5, X0
	ADDQ      $16, SI
	SUBQ      $16, CX
	JMP       one

done:
	MOVOU X0, (AX)
	RET

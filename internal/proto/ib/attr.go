// SPDX-License-Identifier: Apache-2.0

package ib

import "time"

// AttrMask names queue pair attributes in a modify request, with verbs
// numbers (the virtio RoCE ABI numbers them differently).
type AttrMask uint32

// Queue pair attributes.
const (
	AttrState            AttrMask = 1 << 0
	AttrCurState         AttrMask = 1 << 1
	AttrEnSQDAsyncNotify AttrMask = 1 << 2
	AttrAccessFlags      AttrMask = 1 << 3
	AttrPKeyIndex        AttrMask = 1 << 4
	AttrPort             AttrMask = 1 << 5
	AttrQKey             AttrMask = 1 << 6
	AttrAV               AttrMask = 1 << 7
	AttrPathMTU          AttrMask = 1 << 8
	AttrTimeout          AttrMask = 1 << 9
	AttrRetryCnt         AttrMask = 1 << 10
	AttrRNRRetry         AttrMask = 1 << 11
	AttrRQPSN            AttrMask = 1 << 12
	AttrMaxQPRdAtomic    AttrMask = 1 << 13
	AttrAltPath          AttrMask = 1 << 14
	AttrMinRNRTimer      AttrMask = 1 << 15
	AttrSQPSN            AttrMask = 1 << 16
	AttrMaxDestRdAtomic  AttrMask = 1 << 17
	AttrPathMigState     AttrMask = 1 << 18
	AttrCap              AttrMask = 1 << 19
	AttrDestQPN          AttrMask = 1 << 20
	AttrRateLimit        AttrMask = 1 << 25
)

// Syndrome is the first byte of an AETH.
type Syndrome uint8

// Syndromes. An ACK carries a credit code in its low bits, an RNR NAK a timer
// code.
const (
	SynACK         Syndrome = 0x00
	SynACKNoCredit Syndrome = 0x1f // credit field invalid: the requester enforces none
	SynRNR         Syndrome = 0x20
	SynNAKSeq      Syndrome = 0x60
	SynNAKInvReq   Syndrome = 0x61
	SynNAKRemAcc   Syndrome = 0x62
	SynNAKRemOp    Syndrome = 0x63
	SynNAKInvRD    Syndrome = 0x64
)

// IsACK reports whether s is a positive acknowledgement.
func (s Syndrome) IsACK() bool { return s < 0x20 }

// IsRNR reports whether s is a receiver-not-ready NAK.
func (s Syndrome) IsRNR() bool { return s >= 0x20 && s < 0x40 }

// Value returns the credit or timer code.
func (s Syndrome) Value() uint8 { return uint8(s & 0x1f) }

// rnrMicros is the RNR timer of each code in units of 10 µs (IBA volume 1,
// table 45).
var rnrTenMicros = [32]uint32{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// RNRTimer returns the wait of an RNR NAK timer code; code 0 is the longest.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTenMicros[code&31]) * 10 * time.Microsecond
}

// AckTimeout returns the local ACK timeout of a 5-bit code: 4.096 µs × 2^code,
// and zero, meaning no timeout, for code 0.
func AckTimeout(code uint8) time.Duration {
	if code &= 31; code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << code
}

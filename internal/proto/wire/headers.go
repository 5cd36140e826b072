// SPDX-License-Identifier: Apache-2.0

// Package wire turns packets into values and values into packets.
//
// What comes in: the bytes of one packet, or a Headers value; what goes out: the other of the two, and
// CRCs. Links call it, and the adapter for the area in front of a received datagram.
//
// A RoCEv2 receiver calls IPUDP.Parse if the IP header is visible, the flow's Seed.Verify or
// VerifyAnyID, then Headers.Parse; a native one ParseIB, VerifyIB, Headers.Parse; one of 16B packets
// Parse16 and Verify16. A sender calls Put in the same order and PutICRC (Seal16) last. Each Parse
// checks every length once and returns a small value, or a Refusal to count; later code does not read
// header bytes again. The package must never allocate, hold state or depend on queue pairs.
package wire

import "weft/internal/proto/ib"

// Headers are the decoded transport headers of one packet. Fields of
// extension headers are valid where Opcode.Info().Ext has them and zero
// elsewhere. Layouts: IBA volume 1, chapter 9.
type Headers struct {
	Opcode  ib.Opcode
	SE      bool // solicited event
	MigReq  bool
	FECN    bool
	BECN    bool
	AckReq  bool
	PadCnt  uint8 // 0 … 3 bytes of padding behind the payload
	PKey    ib.PKey
	DestQPN ib.QPN
	PSN     ib.PSN

	// DETH
	QKey   ib.QKey
	SrcQPN ib.QPN
	// RETH and AtomicETH
	VA     uint64
	RKey   ib.Key
	DMALen uint32 // length of the whole message, 0 … 2^31
	// AtomicETH
	SwapAdd uint64
	Compare uint64
	// AETH
	Syndrome ib.Syndrome
	MSN      uint32 // 24 bits
	// AtomicAckETH
	Orig uint64
	// ImmDt: the four bytes as they travel, read as a big-endian number.
	Imm uint32
	// IETH
	InvKey ib.Key
}

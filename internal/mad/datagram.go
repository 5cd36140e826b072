// SPDX-License-Identifier: Apache-2.0

// Package mad is management datagrams as structs, with their bytes.
//
// What comes in and goes out: bytes of MADs and values. Agents, managers and
// the user-MAD door call it. It keeps no state, sends nothing and waits for
// nothing (protocols are in its sub-packages and in package sm). Layouts are
// those of IBA volume 1, chapters 13 to 16.
package mad

import "weft/internal/ib"

// Len is the length of a MAD of base version 1.
const Len = 256

// Datagram is a MAD with its addressing, as QP0 and QP1 send and receive it.
type Datagram struct {
	// Port is the number of the port it came by or shall leave by, in terms of
	// the node that handles it: of a switch 0 … NumPorts, of a channel adapter
	// 1 …; 0 for an adapter means its only port.
	Port           uint8
	SLID, DLID     ib.LID
	PathBits       uint8
	SL             uint8
	SrcQPN, DstQPN ib.QPN
	QKey           ib.QKey
	PKey           ib.PKey
	// Global tells that SGID, DGID, HopLimit, TClass and FlowLabel are set: a
	// GRH comes or goes along.
	Global     bool
	HopLimit   uint8
	TClass     uint8
	FlowLabel  uint32
	SGID, DGID ib.GID
	Data       [Len]byte
}

// Reply returns a datagram that goes back where d came from, with the same
// bytes: the caller makes them the answer.
func (d *Datagram) Reply() Datagram {
	r := *d
	r.SLID, r.DLID = d.DLID, d.SLID
	r.SrcQPN, r.DstQPN = d.DstQPN, d.SrcQPN
	r.SGID, r.DGID = d.DGID, d.SGID
	if d.Global {
		r.HopLimit = 0xff
	}
	return r
}

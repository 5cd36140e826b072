// SPDX-License-Identifier: Apache-2.0

// Package mad is management datagrams as structs, with their bytes.
//
// What comes in and goes out: bytes of MADs and values. Agents, managers and
// the user-MAD door call it. It keeps no state, sends nothing and waits for
// nothing (protocols are in its sub-packages and in package sm). Layouts are
// those of IBA volume 1, chapters 13 to 16.
//
// The class by which an Ethernet Manager configures virtual Ethernet ports
// (ClassVEMA) is Omni-Path's. Its MADs, of OPALen bytes, are VEMA (NewVEMA
// makes a request) with an attribute in Data: VEMAClassPortInfo, VESWPortInfo,
// VESWMACEntries, VESWMACList, VESWSummary, VESWErrors; and VEMATrap. An
// attribute is put there with a.Append(m.Data[:0]).
//
// The structures, their codecs and the component masks are generated from the tables of gen, one line a field
// with its offset: layout_gen.go and component_gen.go.
package mad

//go:generate go run ./gen -dir .

import (
	"slices"

	"weft/internal/proto/ib"
)

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
	// Long is the whole MAD where that has base version OPABaseVersion: HeaderLen to OPALen
	// octets, of which Data then has the beginning. It does not change: who makes something
	// else of a datagram gives it another (SetMAD).
	Long []byte
}

// MAD returns the datagram's MAD. It must not be written to where it is Long.
func (d *Datagram) MAD() []byte {
	if d.Long != nil {
		return d.Long
	}
	return d.Data[:]
}

// SetMAD makes a copy of b the datagram's MAD, by its base version Data alone or Long too;
// false where b has not the length that goes with it, or is no multiple of 4, and then nothing
// changes.
func (d *Datagram) SetMAD(b []byte) bool {
	if !MADLength(b) {
		return false
	}
	d.Long = nil
	if b[0] == OPABaseVersion {
		d.Long = slices.Clone(b)
	}
	clear(d.Data[copy(d.Data[:], b):])
	return true
}

// MADLength reports whether b can be a MAD by its length: Len octets, or of base version
// OPABaseVersion HeaderLen to OPALen, a multiple of 4.
func MADLength(b []byte) bool {
	if len(b) < HeaderLen {
		return false
	}
	if b[0] == OPABaseVersion {
		return len(b) <= OPALen && len(b)%4 == 0
	}
	return len(b) == Len
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

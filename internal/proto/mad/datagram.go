// SPDX-License-Identifier: Apache-2.0

// Package mad is management datagrams as structs, with their bytes.
//
// What comes in and goes out: bytes of MADs and values. Agents, managers and the user-MAD socket call it. It keeps no
// state, sends nothing and waits for nothing (protocols are in its sub-packages and in package sm). Layouts are those
// of IBA volume 1, chapters 13 to 16.
//
// The class by which an Ethernet Manager configures virtual Ethernet ports (ClassVEMA) belongs to Omni-Path. Its MADs,
// of OPALen bytes, are VEMA (NewVEMA returns a request) with an attribute in Data: VEMAClassPortInfo, VESWPortInfo,
// VESWMACEntries, VESWMACList, VESWSummary, VESWErrors; and VEMATrap. a.Append(m.Data[:0]) writes an attribute there.
//
// The structures, their codecs and the component masks are generated from the tables of gen, one line a field with its
// offset: layout_gen.go and component_gen.go.
package mad

//go:generate go run ./gen -dir .

import (
	"slices"

	"weft/internal/proto/ib"
)

// Len is the length of a MAD of base version 1.
const Len = 256

// Datagram is a MAD with its addressing, as queue pairs 0 and 1 send and receive it.
type Datagram struct {
	// Port is the port of arrival or of departure, as the node numbers it: of a switch 0 … NumPorts, of a channel
	// adapter 1 …; 0 of an adapter means its only port.
	Port           uint8
	SLID, DLID     ib.LID
	PathBits       uint8
	SL             uint8
	SrcQPN, DstQPN ib.QPN
	QKey           ib.QKey
	PKey           ib.PKey
	// Global means that SGID, DGID, HopLimit, TClass and FlowLabel are set: the datagram has a GRH.
	Global     bool
	HopLimit   uint8
	TClass     uint8
	FlowLabel  uint32
	SGID, DGID ib.GID
	Data       [Len]byte
	// Long is the whole MAD if that has base version OPABaseVersion: HeaderLen to OPALen octets, of which Data has the
	// beginning. It is immutable: SetMAD replaces it.
	Long []byte
}

// MAD returns the MAD of the datagram. The caller must not write to it if it is Long.
func (d *Datagram) MAD() []byte {
	if d.Long != nil {
		return d.Long
	}
	return d.Data[:]
}

// SetMAD copies the MAD b into the datagram: into Data alone, or by its base version into Long too. It reports false,
// and changes nothing, if the length of b is wrong for its base version, or no multiple of 4.
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

// MADLength reports whether b has a valid length: Len octets, or of base version OPABaseVersion HeaderLen to OPALen, a
// multiple of 4.
func MADLength(b []byte) bool {
	if len(b) < HeaderLen {
		return false
	}
	if b[0] == OPABaseVersion {
		return len(b) <= OPALen && len(b)%4 == 0
	}
	return len(b) == Len
}

// Reply returns a datagram to the sender of d, with the same bytes: the caller turns them into the answer.
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

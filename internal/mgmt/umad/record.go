// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"encoding/binary"

	"weft/internal/proto/ib"
)

// Lengths of the header of a record, with and without the P_Key index (File.EnablePKeys).
const (
	HeaderLen      = 64
	shortHeaderLen = 56
)

// Fields of the header are in the byte order of the host, which is little-endian; fields of packets are big-endian.
var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// Header precedes the MAD in every record.
type Header struct {
	Agent     uint32
	Status    Errno
	TimeoutMS uint32 // of a request: wait for its answer; 0: it has none
	Retries   uint32
	Length    uint32 // of the record that is read; ignored of one that is written
	QPN       ib.QPN
	QKey      ib.QKey
	LID       ib.LID
	SL        uint8
	PathBits  uint8
	// With GRH the fields GIDIndex, HopLimit, TClass, GID and FlowLabel are set.
	GRH       bool
	GIDIndex  uint8 // of the own port
	HopLimit  uint8
	TClass    uint8
	GID       ib.GID // the peer's
	FlowLabel uint32
	PKeyIndex uint16
}

// Append appends the first n bytes of the header to b: HeaderLen, or
// shortHeaderLen.
func (h *Header) Append(b []byte, n int) []byte {
	var p [HeaderLen]byte
	le.PutUint32(p[0:], h.Agent)
	le.PutUint32(p[4:], uint32(h.Status))
	le.PutUint32(p[8:], h.TimeoutMS)
	le.PutUint32(p[12:], h.Retries)
	le.PutUint32(p[16:], h.Length)
	be.PutUint32(p[20:], uint32(h.QPN))
	be.PutUint32(p[24:], uint32(h.QKey))
	be.PutUint16(p[28:], uint16(h.LID))
	p[30], p[31] = h.SL, h.PathBits
	if h.GRH {
		p[32] = 1
	}
	p[33], p[34], p[35] = h.GIDIndex, h.HopLimit, h.TClass
	copy(p[36:], h.GID[:])
	be.PutUint32(p[52:], h.FlowLabel)
	le.PutUint16(p[56:], h.PKeyIndex)
	return append(b, p[:n]...)
}

// Parse reads a header of n bytes from the start of b and validates it. It returns EINVAL if a value is invalid or b
// is too short, and ignores reserved bytes.
func (h *Header) Parse(b []byte, n int) Errno {
	if len(b) < n {
		return EINVAL
	}
	*h = Header{
		Agent:     le.Uint32(b[0:]),
		Status:    Errno(le.Uint32(b[4:])),
		TimeoutMS: le.Uint32(b[8:]),
		Retries:   le.Uint32(b[12:]),
		Length:    le.Uint32(b[16:]),
		QPN:       ib.QPN(be.Uint32(b[20:])),
		QKey:      ib.QKey(be.Uint32(b[24:])),
		LID:       ib.LID(be.Uint16(b[28:])),
		SL:        b[30],
		PathBits:  b[31],
		GRH:       b[32] != 0,
		GIDIndex:  b[33],
		HopLimit:  b[34],
		TClass:    b[35],
		GID:       ib.GID(b[36:52]),
		FlowLabel: be.Uint32(b[52:]),
	}
	if n == HeaderLen {
		h.PKeyIndex = le.Uint16(b[56:])
	}
	if h.QPN > maxQPN || h.SL > maxSL || h.GRH && h.FlowLabel > maxFlowLabel {
		return EINVAL
	}
	return OK
}

const (
	maxQPN       = 1<<24 - 1
	maxSL        = 15
	maxFlowLabel = 1<<20 - 1
)

// SPDX-License-Identifier: Apache-2.0

package mad

// RMPPType is the kind of a segment of the reliable multi-packet protocol.
type RMPPType uint8

// Kinds of segments.
const (
	RMPPData RMPPType = 1 + iota
	RMPPAck
	RMPPStop
	RMPPAbort
)

// Flags of a segment. Without RMPPActive the MAD is a single one, and the rest of its
// RMPP header means nothing.
const (
	RMPPActive = 1
	RMPPFirst  = 2
	RMPPLast   = 4
)

// RMPPRespTimeNone is the RRespTime of a segment that states none.
const RMPPRespTimeNone = 0x1f

// RMPPVersion is the version of RMPP.
const RMPPVersion = 1

// RMPPLen is the length of an RMPP header, which follows the common header.
const RMPPLen = 12

// RMPP is the header of the reliable multi-packet protocol (IBA volume 1, 13.6.2).
type RMPP struct {
	Version   uint8
	Type      RMPPType
	RRespTime uint8 // 5 bits
	Flags     uint8 // 3 bits
	Status    uint8
	Data1     uint32 // segment number
	Data2     uint32 // of data the payload length, of an acknowledgement the last segment of the new window
}

// Append appends the header's RMPPLen bytes to b.
func (r *RMPP) Append(b []byte) []byte {
	b, p := extend(b, RMPPLen)
	r.put(p)
	return b
}

func (r *RMPP) put(p []byte) {
	p[0], p[1], p[2], p[3] = r.Version, uint8(r.Type), r.RRespTime<<3|r.Flags&7, r.Status
	be.PutUint32(p[4:], r.Data1)
	be.PutUint32(p[8:], r.Data2)
}

// Parse reads an RMPP header from the start of b.
func (r *RMPP) Parse(b []byte) error {
	if len(b) < RMPPLen {
		return ErrShort
	}
	*r = RMPP{Version: b[0], Type: RMPPType(b[1]), RRespTime: b[2] >> 3, Flags: b[2] & 7, Status: b[3],
		Data1: be.Uint32(b[4:]), Data2: be.Uint32(b[8:])}
	return nil
}

// Lengths of a MAD of subnet administration.
const (
	SAHeaderLen = 56
	SADataLen   = Len - SAHeaderLen
)

// SAHeader is the header of a MAD of subnet administration (IBA volume 1, 15.2.1.1).
type SAHeader struct {
	Header
	RMPP            RMPP
	SMKey           uint64
	AttributeOffset uint16 // from record to record, in units of 8 bytes
	ComponentMask   ComponentMask
}

// Append appends the header's SAHeaderLen bytes to b.
func (h *SAHeader) Append(b []byte) []byte {
	b, p := extend(b, SAHeaderLen)
	h.put(p)
	return b
}

func (h *SAHeader) put(p []byte) {
	h.Header.put(p)
	h.RMPP.put(p[24:])
	be.PutUint64(p[36:], h.SMKey)
	be.PutUint16(p[44:], h.AttributeOffset)
	be.PutUint64(p[48:], uint64(h.ComponentMask))
}

// Parse reads the header from the start of b.
func (h *SAHeader) Parse(b []byte) error {
	if len(b) < SAHeaderLen {
		return ErrShort
	}
	h.SMKey = be.Uint64(b[36:])
	h.AttributeOffset = be.Uint16(b[44:])
	h.ComponentMask = ComponentMask(be.Uint64(b[48:]))
	if err := h.Header.Parse(b); err != nil {
		return err
	}
	return h.RMPP.Parse(b[24:])
}

// SA is a MAD of subnet administration.
type SA struct {
	SAHeader
	Data [SADataLen]byte
}

// Append appends the MAD's Len bytes to b.
func (s *SA) Append(b []byte) []byte {
	b, p := extend(b, Len)
	s.SAHeader.put(p)
	copy(p[SAHeaderLen:], s.Data[:])
	return b
}

// Parse reads a MAD from the start of b.
func (s *SA) Parse(b []byte) error {
	if len(b) < Len {
		return ErrShort
	}
	s.Data = [SADataLen]byte(b[SAHeaderLen:])
	return s.SAHeader.Parse(b)
}

// Reply turns a request into its response: method and status are set, the
// SM_Key does not go back, and the RMPP header is that of a single MAD. The caller
// sets AttributeOffset and Data.
func (s *SA) Reply(status Status) {
	s.Method = s.Method.Response()
	s.Status = status
	s.SMKey = 0
	s.RMPP = RMPP{}
}

// Match reports whether record, as a record's Append makes it, has the
// components that the request selects.
func (s *SA) Match(record []byte) bool {
	return Match(s.AttributeID, s.AttributeModifier, s.ComponentMask, s.Data[:], record)
}

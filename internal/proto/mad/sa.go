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

// Flags of a segment. Without RMPPActive the MAD is a single one, and the rest of its RMPP header has no meaning.
const (
	RMPPActive = 1
	RMPPFirst  = 2
	RMPPLast   = 4
)

// RMPPRespTimeNone is the RRespTime of a segment that states none.
const RMPPRespTimeNone = 0x1f

// RMPPVersion is the version of RMPP.
const RMPPVersion = 1

// SADataLen is the length of a MAD of subnet administration after its headers.
const SADataLen = Len - SAHeaderLen

// Reply turns a request into its response: it sets method and status, removes the SM_Key, and sets the RMPP header of a
// single MAD. The caller sets AttributeOffset and Data.
func (s *SA) Reply(status Status) {
	s.Method = s.Method.Response()
	s.Status = status
	s.SMKey = 0
	s.RMPP = RMPP{}
}

// Match reports whether record, as its Append writes it, matches the components that the request selects.
func (s *SA) Match(record []byte) bool {
	return Match(s.AttributeID, s.AttributeModifier, s.ComponentMask, s.Data[:], record)
}

// SPDX-License-Identifier: Apache-2.0

package ether

// Flags of an Offload.
const (
	NeedsCsum = 1 // a checksum is to be completed: its field holds the sum of the pseudo header
	DataValid = 2 // the transport checksum was found good
)

// Kinds of segments: Offload.GSO without its ECN bit.
const (
	GSONone  = 0
	GSOTCPv4 = 1
	GSOUFO   = 3 // fragmentation; never accepted
	GSOTCPv6 = 4
	GSOUDP   = 5 // datagrams of one size, the last may be shorter
	// GSOECN is the bit for a TCP segment of which only the first frame has CWR.
	GSOECN = 0x80
)

// OffloadLen is the length of the fields of an Offload in a virtio_net_hdr,
// which may go on (num_buffers, hash).
const OffloadLen = 10

// Features are the offloads that a receiver of frames takes.
type Features uint8

// Features. Each of the segments needs FeatureCsum.
const (
	FeatureCsum Features = 1 << iota // checksums that are not complete
	FeatureTSO4
	FeatureTSO6
	FeatureECN
	FeatureUSO4
	FeatureUSO6
)

// Offload is what is still to be done with a frame: the fields of a
// virtio_net_hdr (VIRTIO 1.3, 5.1.6) in their order. The zero value is none.
type Offload struct {
	Flags, GSO                             uint8
	HdrLen, GSOSize, CsumStart, CsumOffset uint16
}

// Parse decodes the first OffloadLen octets of b, little-endian as since VIRTIO 1.0.
func (o *Offload) Parse(b []byte) {
	b = b[:OffloadLen]
	*o = Offload{Flags: b[0], GSO: b[1], HdrLen: le.Uint16(b[2:]), GSOSize: le.Uint16(b[4:]),
		CsumStart: le.Uint16(b[6:]), CsumOffset: le.Uint16(b[8:])}
}

// Put writes o to the first OffloadLen octets of b.
func (o *Offload) Put(b []byte) {
	b = b[:OffloadLen]
	b[0], b[1] = o.Flags, o.GSO
	le.PutUint16(b[2:], o.HdrLen)
	le.PutUint16(b[4:], o.GSOSize)
	le.PutUint16(b[6:], o.CsumStart)
	le.PutUint16(b[8:], o.CsumOffset)
}

// Kind is o.GSO without its ECN bit.
func (o *Offload) Kind() uint8 { return o.GSO &^ GSOECN }

// Refusal is the reason for which a frame and its Offload are not accepted. It is an index for the
// caller's counters.
type Refusal uint8

// Refusals. OK is none.
const (
	OK          Refusal = iota
	Short               // no whole Ethernet header
	Long                // longer than MaxFrame, or than the MTU and not to be cut
	CsumPlace           // the checksum is not within the frame, behind its link header
	SegmentKind         // unknown kind of segment, or one without a checksum to complete
	SegmentSize         // no size of segments, or too many of them
	SegmentForm         // the headers are not those of such a segment
	NumRefusals = iota
)

var refusalNames = [NumRefusals]string{"ok", "frame_short", "frame_long", "csum_place", "segment_kind",
	"segment_size", "segment_form"}

// String returns the counter name of r.
func (r Refusal) String() string {
	if int(r) < len(refusalNames) {
		return refusalNames[r]
	}
	return "unknown"
}

// MaxSegments is how many frames a segment may be cut into: 64 KiB in the smallest that TCP uses.
const MaxSegments = 1400

// Check validates the sender's Offload of a frame, and normalizes it: unused fields become zero,
// HdrLen the length of the headers. After OK, o is valid for any receiver, Complete and Splitter.
//
// Preconditions: in is what Classify or ClassifyIP found in frame, and frame is private memory.
func (o *Offload) Check(frame []byte, in *Info) Refusal {
	if in.L3 == 0 && len(frame) == 0 || in.L3 != 0 && len(frame) < HeaderLen {
		return Short
	}
	if len(frame) > MaxFrame {
		return Long
	}
	o.Flags &= NeedsCsum
	if o.Flags == 0 {
		if o.GSO&^GSOECN != GSONone {
			return SegmentKind
		}
		*o = Offload{}
		return OK
	}
	if o.CsumStart < in.L3 || int(o.CsumStart)+int(o.CsumOffset)+2 > len(frame) {
		return CsumPlace
	}
	want := uint16(16)
	var proto uint8 = protoTCP
	var v6 bool
	switch o.GSO {
	case GSONone, GSONone | GSOECN:
		o.GSO, o.HdrLen, o.GSOSize = GSONone, 0, 0
		return OK
	case GSOTCPv4, GSOTCPv4 | GSOECN:
	case GSOTCPv6, GSOTCPv6 | GSOECN:
		v6 = true
	case GSOUDP:
		want, proto, v6 = 6, protoUDP, in.Kind >= IPv6
	default:
		return SegmentKind
	}
	payload := len(frame) - int(in.Payload)
	switch {
	case in.L4 == 0 || in.Proto != proto || (in.Kind >= IPv6) != v6 || o.CsumStart != in.L4 || o.CsumOffset != want ||
		int(in.End) != len(frame) || payload == 0 || proto == protoUDP && int(be.Uint16(frame[in.L4+4:])) != payload+8:
		return SegmentForm
	case o.GSOSize == 0 || payload > MaxSegments*int(o.GSOSize):
		return SegmentSize
	}
	o.HdrLen = in.Payload
	return OK
}

// Complete computes the checksum that o requests, in frame, and returns the remaining offload: none,
// unless o is of a segment.
//
// Preconditions: Check accepted o and frame.
func (o *Offload) Complete(frame []byte) Offload {
	if o.Flags&NeedsCsum == 0 || o.Kind() != GSONone {
		return *o
	}
	o.finish(frame, sum(frame[o.CsumStart:], 0))
	return Offload{}
}

// finish stores the checksum of a frame with the sum s from CsumStart on.
func (o *Offload) finish(frame []byte, s uint64) {
	c := ^fold(s)
	if c == 0 && o.CsumOffset == 6 {
		c = 0xffff // of UDP: RFC 768 has 0 for none
	}
	le.PutUint16(frame[int(o.CsumStart)+int(o.CsumOffset):], c)
}

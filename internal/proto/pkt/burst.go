// SPDX-License-Identifier: Apache-2.0

// Package pkt holds what travels between queue pairs and links.
//
// The unit is the Burst: one or more consecutive packets of one message, as one
// value. A requester hands a whole 64 KiB WRITE to the link in one call; the
// link cuts it into packets only where it touches a wire, with one GSO system
// call, and joins received packets again. Within a node nothing is ever cut.
// Packet sequence numbers count exactly as if each packet had travelled alone
// (docs/adr/0002-bursts.md).
package pkt

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/wire"
)

// Burst is Count packets with consecutive PSNs that belong to one message. Headers.PSN is that of the first packet.
// Headers.Opcode is the opcode of one packet with the whole payload: Only for a burst with a whole message, else First,
// Middle or Last; Opcode.Split returns the opcode of each packet. Extension headers of the message's start (RETH, the
// AETH of a READ response) belong to the first packet, ImmDt, SE and AckReq to the last; the AETH of a READ response
// also to the last.
//
// Every packet but the last carries exactly the path MTU; PadCnt is the
// link's to compute and is not valid in a Burst.
//
// A Burst and what it refers to are valid until the receiving call returns and
// its mem.Batch was flushed.
type Burst struct {
	wire.Headers
	Count uint32   // packets, at least 1
	MTU   uint32   // payload bytes of every packet but the last
	Path  *ib.Path // outbound: where to; inbound: how it came (SGID is the peer)
	IPv4  bool     // inbound from a wire: came in an IPv4 packet
	Data  mem.Payload
	// Whole is, of a datagram of which many copies are made, what PutArea makes
	// and the payload, side by side; nil elsewhere.
	Whole []byte
	// Fault is set by the receiver's Handle if the payload could not be read from the sender's memory:
	// the caller must notify the sender's queue pair.
	Fault bool
}

// PutArea writes the 40 bytes that precede the payload of a datagram in a
// receive buffer: the GRH, or what RoCE has in its place (IBA volume 1, 11.4.1.2
// and annex A17). A native datagram that came without a GRH has none.
func (r *Burst) PutArea(b []byte) {
	behind := int(r.Opcode.Info().HdrLen) + (r.Data.Len+3)&^3 + wire.ICRCLen
	p := r.Path
	if !p.Native() {
		wire.PutGRHArea(b, p, r.IPv4 || p.DGID.IsIPv4(), behind)
		return
	}
	g := wire.GRH{IPVer: 6, TClass: p.TClass, FlowLabel: p.FlowLabel, PayLen: uint16(behind), NxtHdr: wire.NxtHdrIBA,
		HopLimit: p.HopLimit, SGID: p.SGID, DGID: p.DGID}
	g.Put(b)
}

// LastPSN returns the sequence number of the last packet.
func (r *Burst) LastPSN() ib.PSN { return r.PSN.Add(r.Count - 1) }

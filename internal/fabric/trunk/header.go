// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"encoding/binary"
	"time"

	"weft/internal/proto/ib"
)

var be = binary.BigEndian

// Sizes and bounds; docs/notes/trunk.md has the reasons.
const (
	// DefaultPort is the UDP port of trunks.
	DefaultPort = 4792
	// HeaderLen is the length of the header of every datagram, FragmentLen with
	// what a fragment adds.
	HeaderLen   = 24
	FragmentLen = HeaderLen + 4
	lengthLen   = 2 // before each packet of a data datagram

	// MaxPacket bounds a native packet: the largest length of a 16B header,
	// rounded up.
	MaxPacket = 16384
	// MaxPackets bounds the packets of a data datagram, so that a carrier can
	// bound what it delivers at once.
	MaxPackets = 64
	// MaxFragments bounds the fragments of a packet.
	MaxFragments = 32
	// MaxStreams bounds the streams of a node, which are its lanes.
	MaxStreams = 64
	// MaxPeers bounds the peers of a node.
	MaxPeers = 256
	// MinDatagram and MaxDatagram bound the size of the largest datagram to a
	// peer: path MTU 576 without IPv4 and UDP headers, and below the largest
	// UDP datagram.
	MinDatagram = 548
	MaxDatagram = 65000
	// MaxPartial bounds the packets of a peer in reassembly.
	MaxPartial = 128
)

// Default times of a Config.
const (
	HelloEvery = 100 * time.Millisecond
	DownAfter  = 300 * time.Millisecond
	// PartialAge bounds how long a packet waits for its last fragment.
	PartialAge = 100 * time.Millisecond
)

const (
	magic   = 0x57
	version = 1
)

// Kind is what a datagram carries.
type Kind uint8

// Kinds of datagrams.
const (
	Data Kind = iota
	Fragment
	Hello
	HelloReply
	numKinds
)

// Epoch identifies one start of a node. 0 is none.
type Epoch uint32

// Refusal is why a datagram was dropped.
type Refusal uint8

// Refusals. OK is none.
const (
	OK          Refusal = iota
	Short               // shorter than its header
	BadMagic            // magic or version
	BadKind             //
	BadStream           // above MaxStreams
	BadIdentity         // node or epoch is 0
	BadBody             // packet boundaries or fragment fields break the rules
	WrongNode           // not the peer's node GUID
	WrongEpoch          // from or to is not the epoch of this trunk
	PeerDown            // data before the trunk is up
	Duplicate           //
	TooOld              // below the sequence window
	BadFragment         // differs from the others of its packet
	NumRefusals
)

var refusals = [NumRefusals]string{"ok", "short", "bad_magic", "bad_kind", "bad_stream", "bad_identity", "bad_body",
	"wrong_node",
	"wrong_epoch", "peer_down", "duplicate", "too_old", "bad_fragment"}

// String returns the counter name of r.
func (r Refusal) String() string {
	if r < NumRefusals {
		return refusals[r]
	}
	return "unknown"
}

// Refusals counts datagrams by Refusal.
type Refusals [NumRefusals]uint64

// CounterName implements counters.Namer.
func (Refusals) CounterName(i int) string {
	if Refusal(i) == OK {
		return ""
	}
	return "drop_" + Refusal(i).String()
}

// Header begins every datagram.
type Header struct {
	Kind     Kind
	Stream   uint8
	From, To Epoch
	Seq      uint32
	Node     ib.GUID
}

// Put writes h to the first HeaderLen octets of b, reserved bits zero.
func (h *Header) Put(b []byte) {
	b = b[:HeaderLen]
	b[0] = magic
	b[1] = version<<4 | byte(h.Kind)
	b[2], b[3] = h.Stream, 0
	be.PutUint32(b[4:], uint32(h.From))
	be.PutUint32(b[8:], uint32(h.To))
	be.PutUint32(b[12:], h.Seq)
	be.PutUint64(b[16:], uint64(h.Node))
}

// Parse decodes and validates the header of the datagram b, without regard to
// the state of the trunk. The body is the rest of b.
func (h *Header) Parse(b []byte) (body []byte, why Refusal) {
	if len(b) < HeaderLen {
		return nil, Short
	}
	*h = Header{Kind: Kind(b[1] & 0x0f), Stream: b[2], From: Epoch(be.Uint32(b[4:])), To: Epoch(be.Uint32(b[8:])),
		Seq: be.Uint32(b[12:]), Node: ib.GUID(be.Uint64(b[16:]))}
	switch {
	case b[0] != magic || b[1]>>4 != version:
		return nil, BadMagic
	case h.Kind >= numKinds:
		return nil, BadKind
	case h.Stream >= MaxStreams:
		return nil, BadStream
	case h.From == 0 || h.Node == 0:
		return nil, BadIdentity
	}
	return b[HeaderLen:], OK
}

// piece is the place of a fragment in its packet.
type piece struct {
	index, count, length int
}

// size returns the length of each fragment's part of the packet.
func (p piece) size() int { return (p.length + p.count - 1) / p.count }

// put writes the fields to the first four octets of b.
func (p piece) put(b []byte) {
	b = b[:FragmentLen-HeaderLen]
	b[0], b[1] = byte(p.index), byte(p.count)
	be.PutUint16(b[2:], uint16(p.length))
}

// parsePiece decodes the body of a fragment; data is padded behind the
// packet's end.
func parsePiece(body []byte) (p piece, data []byte, ok bool) {
	const n = FragmentLen - HeaderLen
	if len(body) < n {
		return p, nil, false
	}
	p = piece{int(body[0]), int(body[1]), int(be.Uint16(body[2:]))}
	if p.count < 2 || p.count > MaxFragments || p.index >= p.count || p.length > MaxPacket ||
		p.length <= p.size()*(p.count-1) || len(body)-n != p.size() {
		return p, nil, false
	}
	return p, body[n:], true
}

// boundaries reports whether the body of a data datagram consists of whole
// packets.
func boundaries(body []byte) bool {
	if len(body) == 0 {
		return false
	}
	for count := 0; len(body) > 0; count++ {
		if count == MaxPackets || len(body) < lengthLen {
			return false
		}
		n := int(be.Uint16(body))
		if n == 0 || n > MaxPacket || n > len(body)-lengthLen {
			return false
		}
		body = body[lengthLen+n:]
	}
	return true
}

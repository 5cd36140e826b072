// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"encoding/binary"
	"time"

	"weft/internal/fabric/trunk/seal"
)

var be = binary.BigEndian

// Sizes and bounds; docs/notes/trunk.md has the reasons.
const (
	// DefaultPort is the UDP port of trunks.
	DefaultPort = 4792
	// HeaderLen is the length of the header of every datagram, FragmentLen with
	// what a fragment adds.
	HeaderLen   = seal.HeaderLen
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

// Of a datagram's counter the high eight bits are the stream, the others its number there.
const (
	numberBits = 56
	numberMask = 1<<numberBits - 1
	// controlStream is the stream of control datagrams, beside those of lanes.
	controlStream = MaxStreams
	numStreams    = MaxStreams + 1
)

// Kind is what a datagram carries.
type Kind uint8

// Kinds of datagrams; those above are of package handshake.
const (
	Data Kind = iota
	Fragment
	Control
	numKinds
)

// Refusal is why a datagram was dropped.
type Refusal uint8

// Refusals. OK is none. Those before BadBody are of no session and count for the link; the others count for the peer.
const (
	OK             Refusal = iota
	Short                  // shorter than its header
	BadMagic               // magic or version
	BadKind                //
	BadStream              // none of the kind
	UnknownSession         // no session has the index
	OldSession             // a session with the index was replaced or ended
	BadBody                // packet boundaries or fragment fields break the rules; the first one of a session
	Forged                 // not genuine: the tag is wrong
	PeerDown               // data before the trunk is up
	Duplicate              // received before: a copy, or a replay
	TooOld                 // below the sequence window
	BadFragment            // differs from the others of its packet
	NumRefusals
)

var refusals = [NumRefusals]string{"ok", "short", "bad_magic", "bad_kind", "bad_stream", "unknown_session",
	"old_session", "bad_body", "forged", "peer_down", "duplicate", "too_old", "bad_fragment"}

// String returns the counter name of r.
func (r Refusal) String() string {
	if r < NumRefusals {
		return refusals[r]
	}
	return "unknown"
}

// Refusals counts datagrams of a session by Refusal.
type Refusals [NumRefusals]uint64

// CounterName implements counters.Namer.
func (Refusals) CounterName(i int) string {
	if Refusal(i) < BadBody {
		return ""
	}
	return "drop_" + Refusal(i).String()
}

// Stray counts datagrams of no session by Refusal.
type Stray [NumRefusals]uint64

// CounterName implements counters.Namer.
func (Stray) CounterName(i int) string {
	if Refusal(i) == OK || Refusal(i) >= BadBody {
		return ""
	}
	return "drop_" + Refusal(i).String()
}

// Header begins every datagram of a session.
type Header struct {
	Kind   Kind
	Stream uint8
	Index  uint32 // of the session, as its receiver chose it
	Number uint64 // in the stream, 56 bits
}

// Put writes h to the first HeaderLen octets of b, reserved bits zero.
func (h *Header) Put(b []byte) {
	b = b[:HeaderLen]
	b[0] = seal.Magic
	b[1] = seal.Version<<4 | byte(h.Kind)
	b[2], b[3] = 0, 0
	be.PutUint32(b[seal.IndexOff:], h.Index)
	be.PutUint64(b[seal.CounterOff:], h.counter())
}

func (h *Header) counter() uint64 { return uint64(h.Stream)<<numberBits | h.Number&numberMask }

// Parse decodes and validates the header of the datagram b, without regard to the state of the trunk. n is its
// length, which is that of a fragment's header or HeaderLen.
func (h *Header) Parse(b []byte) (n int, why Refusal) {
	if len(b) < HeaderLen {
		return 0, Short
	}
	counter := be.Uint64(b[seal.CounterOff:])
	*h = Header{Kind: Kind(b[1] & 0x0f), Stream: uint8(counter >> numberBits), Index: be.Uint32(b[seal.IndexOff:]),
		Number: counter & numberMask}
	n = HeaderLen
	switch {
	case b[0] != seal.Magic || b[1]>>4 != seal.Version:
		return 0, BadMagic
	case h.Kind >= numKinds:
		return 0, BadKind
	case h.Kind == Control != (h.Stream == controlStream) || h.Stream >= numStreams:
		return 0, BadStream
	case h.Kind == Fragment:
		n = FragmentLen
	}
	if len(b) < n {
		return 0, Short
	}
	return n, OK
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

// parsePiece decodes the fields that a fragment adds to the header, and validates the length of its data, which is
// padded behind the packet's end.
func parsePiece(fields []byte, data int) (p piece, ok bool) {
	p = piece{int(fields[0]), int(fields[1]), int(be.Uint16(fields[2:]))}
	return p, !(p.count < 2 || p.count > MaxFragments || p.index >= p.count || p.length > MaxPacket ||
		p.length <= p.size()*(p.count-1) || data != p.size())
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

// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"weft/internal/fabric/trunk/seal"
)

// Kind is the low four bits of the second octet of a datagram; package trunk has the kinds below.
type Kind uint8

// Kinds of handshake datagrams.
const (
	Initial  Kind = 3 + iota // a part of the ClientHello or ServerHello, or the request for a cookie
	Retry                    // a cookie
	Sealed                   // a part of the other messages, or an alert
	numKinds = iota
)

// Sizes in octets. MaxDatagram fits into an IPv4 packet of 576 octets, the smallest path of a trunk, without its
// headers.
const (
	MaxDatagram = 548
	chunkLen    = 480 // of handshake messages in one datagram
	maxChunks   = 32
	partLen     = 8
	cookieLen   = 20
	claimLen    = 8 + cookieLen // of the end that begins: its claim to be the one, and the cookie
	retryLen    = seal.HeaderLen + cookieLen
)

// Bits of the third octet of an Initial.
const fromInitiator = 1

// What a part is.
const (
	partData = iota
	partAlert
)

// part is a part of the handshake messages of one level, and what arrived of the peer's.
type part struct {
	got   uint32 // bit i: chunk i of the peer's messages has arrived
	total uint16 // length of the messages of this level; 0: none in this datagram
	chunk uint8
	what  uint8
}

// put appends p and its data.
func (p part) put(b, data []byte) []byte {
	b = be.AppendUint32(b, p.got)
	b = be.AppendUint16(b, p.total)
	return append(append(b, p.chunk, p.what), data...)
}

// parsePart decodes and validates a part.
func parsePart(b []byte) (p part, data []byte, ok bool) {
	if len(b) < partLen {
		return p, nil, false
	}
	p = part{got: be.Uint32(b), total: be.Uint16(b[4:]), chunk: b[6], what: b[7]}
	data = b[partLen:]
	switch {
	case p.what == partAlert:
		return p, data, len(data) == 1
	case p.what != partData:
		return p, nil, false
	case p.total == 0:
		return p, data, len(data) == 0 && p.chunk == 0
	}
	lo, hi := chunk(int(p.chunk), int(p.total))
	return p, data, int(p.total) <= chunkLen*maxChunks && lo < hi && hi-lo == len(data)
}

// chunk returns where chunk i of n octets begins and ends.
func chunk(i, n int) (lo, hi int) { return min(i*chunkLen, n), min((i+1)*chunkLen, n) }

// all returns the set of the chunks of n octets.
func all(n int) uint32 { return uint32(1<<((n+chunkLen-1)/chunkLen) - 1) }

// initial is the header of an Initial.
type initial struct {
	initiator bool
	to, from  uint32 // session indices at the receiver, 0 unknown; at the sender
	// Of the initiator: of two handshakes in opposite directions the smaller claim goes on.
	claim  uint64
	cookie [cookieLen]byte
}

func (h *initial) put(b []byte) []byte {
	flags := byte(0)
	if h.initiator {
		flags = fromInitiator
	}
	b = append(b, seal.Magic, seal.Version<<4|byte(Initial), flags, 0)
	b = be.AppendUint32(b, h.to)
	b = be.AppendUint32(b, h.from)
	b = be.AppendUint32(b, 0)
	if h.initiator {
		b = be.AppendUint64(b, h.claim)
		b = append(b, h.cookie[:]...)
	}
	return b
}

// parseInitial decodes a datagram of at least a header; body is its part.
func parseInitial(d []byte) (h initial, body []byte, ok bool) {
	h = initial{initiator: d[2]&fromInitiator != 0, to: be.Uint32(d[4:]), from: be.Uint32(d[8:])}
	body = d[seal.HeaderLen:]
	if h.from == 0 || !h.initiator && h.to == 0 {
		return h, nil, false
	}
	if h.initiator {
		if len(body) < claimLen {
			return h, nil, false
		}
		h.claim = be.Uint64(body)
		copy(h.cookie[:], body[8:])
		body = body[claimLen:]
	}
	return h, body, true
}

// flight is the messages of one level in one direction.
type flight struct {
	data  []byte
	total int    // length of the whole; 0: not known yet
	have  uint32 // chunks that arrived: here, or at the peer
	fed   bool   // handed to TLS
}

// add takes in a chunk and reports whether it is new. p is valid.
func (f *flight) add(p part, data []byte) bool {
	if f.total == 0 {
		f.total = int(p.total)
		f.data = make([]byte, f.total)
	}
	if int(p.total) != f.total || f.have>>p.chunk&1 != 0 {
		return false
	}
	lo, _ := chunk(int(p.chunk), f.total)
	copy(f.data[lo:], data)
	f.have |= 1 << p.chunk
	return true
}

// waits reports whether the messages are whole and TLS lacks them.
func (f *flight) waits() bool { return !f.fed && f.whole() }

func (f *flight) whole() bool { return f.total != 0 && f.have == all(f.total) }

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// endpoint is what both halves of a queue pair share: configuration, attributes, counters and the adapter around it.
type endpoint struct {
	cfg     Config
	regions Regions
	queues  Queues
	life    lifecycle
	svc     ib.Opcode // service bits of the opcodes it sends and accepts
	attr    Attr      // attr.State is the current state
	mtu     uint32    // bytes: path MTU of RC and UC, port MTU of datagrams
	// uncommitted: a burst was handled since the last Commit. Nothing may leave, since an answer must not overtake the
	// data it answers for.
	uncommitted bool
	comp        Completion // the argument of callbacks; a field, so that it never escapes
	ctr         Counters
}

// lifecycle is what a half of a queue pair needs where a change concerns both halves. QP implements it.
type lifecycle interface {
	// enterErr moves the queue pair to ERR. What is staged is delivered by the next deliver. Answers that are
	// owed are dropped unless sendNAK is set: then the responder refused something, and its NAK and what
	// precedes it still leave.
	enterErr(sendNAK bool)
	// fail is enterErr for a failure that the queue pair found itself.
	fail(sendNAK bool)
	// deliver makes staged completions visible and, in the error states, flushes.
	// Preconditions: everything placed was flushed.
	deliver()
}

// datagram reports whether the service is UD or one of its special cases.
func (e *endpoint) datagram() bool { return e.svc == ib.ServiceUD }

// pkey returns the partition key of the queue pair, 0 where the port has none at its index.
func (e *endpoint) pkey() ib.PKey {
	if int(e.attr.PKeyIndex) < len(e.cfg.PKeys) {
		return e.cfg.PKeys[e.attr.PKeyIndex]
	}
	return 0
}

// acceptedPKey is the partition check of datagrams: QP1 accepts any key of the port, QP0 every key (IBA volume 1,
// 10.9.3 and 10.9.4). It returns the index of the key that matched, -1 where none did.
func (e *endpoint) acceptedPKey(k ib.PKey) int {
	switch e.cfg.Type {
	case ib.SMI:
		return 0
	case ib.GSI:
		return slices.IndexFunc(e.cfg.PKeys, k.Match)
	}
	if !e.pkey().Match(k) {
		return -1
	}
	return int(e.attr.PKeyIndex)
}

// fromPeer reports whether an inbound path is the way from the peer. An inbound path is stated as its sender sees it:
// its source is the peer.
func (e *endpoint) fromPeer(p *ib.Path) bool {
	own := e.attr.Path
	if own.DLID != 0 || p.DLID != 0 {
		// Local identifiers must match, and a GRH be there and match where the address vector has one (IBA volume 1,
		// 9.6.1.5 and 9.6.1.2).
		if p.SLID != own.DLID || p.DLID != own.SLID {
			return false
		}
		if !own.Global {
			return true
		}
		if !p.Global {
			return false
		}
	}
	return p.SGID == own.DGID && p.DGID == own.SGID
}

// header fills what every burst of a connected queue pair has.
func (e *endpoint) header(r *pkt.Burst, op ib.Opcode, psn ib.PSN, count uint32) {
	r.Headers = wire.Headers{Opcode: e.svc | op, MigReq: true, PKey: e.pkey(), DestQPN: e.attr.DestQPN, PSN: psn}
	r.Count, r.MTU, r.Path = count, e.mtu, e.attr.Path
	r.IPv4, r.Fault = false, false
}

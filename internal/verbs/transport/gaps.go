// SPDX-License-Identifier: Apache-2.0

package transport

import "weft/internal/proto/ib"

// gaps is what a requester has inferred about lost packets beyond the oldest one, and about what its peer does
// with packets that arrive behind a gap: selective retransmission (docs/adr/0013-out-of-order-buffer.md and
// 0014-selective-retransmission.md). Nothing in the protocol states whether the peer keeps them, so the
// requester infers it from acknowledgements.
type gaps struct {
	// selective: of what was sent below selectiveEnd only the packet at una is sent again. While it is set and
	// peerKeepsOOO is not, nothing else leaves until that packet is acknowledged: the acknowledgement is the test.
	selective    bool
	selectiveEnd ib.PSN // the end of what had been sent when the retransmission began; counts while selective is set
	// duplicate: the packet at una leaves twice. It is cleared when the first copy has left.
	duplicate bool

	peerKeepsOOO bool // the peer has an out-of-order buffer, as far as is known
	// peerOOOUnconfirmed: the last gap filled acknowledged nothing but itself. Two packets lost in a row look like
	// that, so one such case does not clear peerKeepsOOO. It counts while peerKeepsOOO is set.
	peerOOOUnconfirmed bool
	// testIn is after how many sequence error NAKs the peer is tested again, and testInterval what testIn becomes if
	// that test fails. Both count while peerKeepsOOO is clear, and are 0 … testIntervalMax.
	testIn, testInterval uint8

	last     ib.PSN // the PSN of the last gap
	distance int32  // packets from gap to gap, smoothed, 0 … distanceMax
}

const (
	// distanceMax is what the distance of two gaps counts as at most, in packets.
	distanceMax = 1 << 10
	// testIntervalMax bounds testIn. The first tests follow sooner: two packets lost in a row look like a peer that
	// discards.
	testIntervalMax = 32
	// selectiveGaps is how many gaps may be expected in what is under way for them to be filled one per round trip.
	// Where there are more, sending everything again takes less time.
	selectiveGaps = 4
)

// reset prepares for a fresh path. What is known about the peer stays.
func (g *gaps) reset() { g.distance = distanceMax }

// begin starts a retransmission from una. allowed: the packet there may be sent alone; end is the end of what
// was sent.
func (g *gaps) begin(allowed bool, end ib.PSN) {
	g.selective, g.selectiveEnd = g.peerKeepsOOO && allowed, end
}

// found takes the gap at una into account, with packets up to end under way: the retransmission is not selective
// where too many gaps are to be expected among them.
func (g *gaps) found(una, end ib.PSN) {
	if n := dist(una, g.last); n != 0 {
		g.last = una
		g.distance += (int32(min(n, distanceMax)) - g.distance) / 8
	}
	g.selective = g.selective && dist(end, una) <= uint32(g.distance)*selectiveGaps
}

// test makes a retransmission a test of whether the peer keeps what arrives behind a gap: only the packet at una
// leaves until filled gets its acknowledgement. A peer that is known to keep it is tested by every gap.
func (g *gaps) test() {
	switch {
	case g.peerKeepsOOO:
	case g.testIn == 0:
		g.selective = true
	default:
		g.testIn--
	}
}

// filled takes an acknowledgement of the n packets below una, where the first of them may have been sent again to fill
// a gap. The peer answered it after everything that had been sent before. So where more than the gap is acknowledged,
// the peer keeps what follows one; where less than everything below selectiveEnd is, the packet at una is lost too.
// filled reports whether that is to be sent again at once, without waiting for a NAK.
func (g *gaps) filled(n uint32, una ib.PSN) (again bool) {
	if !g.selective || n == 0 {
		return false
	}
	g.selective = false
	again = g.selectiveEnd.Diff(una) > 0
	switch {
	case n > 1:
		g.peerKeepsOOO, g.peerOOOUnconfirmed, g.testIn, g.testInterval = true, false, 0, 0
	case !again:
	case g.peerKeepsOOO && !g.peerOOOUnconfirmed:
		g.peerOOOUnconfirmed = true
	default:
		again = g.peerKeepsOOO // else what follows leaves in any case
		g.peerKeepsOOO, g.testIn, g.testInterval = false, g.testInterval, min(2*g.testInterval+1, testIntervalMax)
	}
	return again
}

// waiting reports whether nothing may follow the packet at una until its acknowledgement arrives.
func (g *gaps) waiting() bool { return g.selective && !g.peerKeepsOOO }

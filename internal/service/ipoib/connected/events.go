// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"bytes"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// HandleEvent handles an event of a connection. An event of a number that is not in use, or that does not fit the state
// of its connection, is ignored.
func (s *Conns) HandleEvent(now mono.Time, e *Event) {
	if e.Kind == Requested {
		s.handleREQ(now, e)
	} else if c := s.byID[e.ID]; c != nil && c.state != closing {
		s.handle(now, c, e)
	}
}

// Reject rejects a request without looking at it: the link ends.
func (s *Conns) Reject(id uint32) { s.ports.Handshake.RejectConn(id, false, nil) }

// handle handles an event of a connection that is not closing.
func (s *Conns) handle(now mono.Time, c *conn, e *Event) {
	switch e.Kind {
	case Accepted:
		if c.state == requesting {
			s.handleREP(now, c, e.Private)
		}
	case Ready:
		if c.state == accepting {
			s.opens(now, c)
		}
	case NoService, Rejected, Unreachable:
		if c.state == open {
			s.broken(now, c, "the peer rejected it")
			return
		}
		s.notMade(now, c, e.Kind)
	case Disconnected:
		s.broken(now, c, "the peer disconnected")
	}
}

// notMade ends a connection after its handshake failed.
func (s *Conns) notMade(now mono.Time, c *conn, why EventKind) {
	queue := s.end(now, c)
	a := s.shadow.Attempts(c.HW)
	switch {
	case a == nil:
	case why == NoService && !a.oldService:
		a.oldService = true // the next frame sends a REQ to the other service ID
	case why == Rejected:
		s.stats.Driver.ConnRejected++
		a.rejected(now)
	default:
		a.oldService = false
		s.stats.Driver.ConnFailed++
		a.unreachable(now)
	}
	s.resend(now, c.HW, queue)
}

// handleREQ decides on a request of a peer.
func (s *Conns) handleREQ(now mono.Time, e *Event) {
	qpn, recvMTU, ok := wire.ParseCMPrivate(e.Private)
	hw := wire.MakeHWAddr(0, qpn, e.GID)
	own := s.local.HW
	_, old := wire.CMServiceIDs(own.QPN())
	reject := func(full bool) { s.ports.Handshake.RejectConn(e.ID, full, s.privateData()) }
	switch {
	case !s.carrier || !s.opened:
		reject(false)
		return
	case !ok || !hw.Unicast() || hw.Same(own) || !e.LID.IsUnicast():
		s.stats.Driver.ConnBadData++
		reject(false)
		return
	}
	oneWay := e.Service == old
	var before *conn
	if p := s.peers[hw]; p != nil && oneWay {
		before = p.in
	} else if p != nil {
		before = p.out
	}
	if !s.validSource(now, hw, e.LID, before) {
		s.stats.Driver.ConnBadData++
		reject(false)
		return
	}
	if before != nil && before.state == requesting {
		// Both sides sent a REQ: the one of the larger address stands (RFC 4755, 3.3).
		s.stats.Driver.ConnCrossed++
		if key := own.Key(); bytes.Compare(key[:], hw[:]) > 0 {
			reject(false)
			return
		}
	}
	var queue [][]byte
	switch {
	case before != nil && !s.tooManyClosing(e.LID):
		queue = s.end(now, before) // a peer that sends another REQ has lost this connection
	case before != nil || !s.makeRoom(now, e.LID):
		reject(true)
		return
	}
	q, err := s.ports.Handshake.AcceptConn(e.ID, s.privateData())
	if err != nil {
		s.report.Logf(now, "connection", "connection of %v: %v", hw, err)
		s.stats.Driver.ConnFailed++
		reject(true)
		if a := s.shadow.Attempts(hw); a != nil {
			a.rejected(now)
		}
		s.resend(now, hw, queue)
		return
	}
	s.report.Debugf(now, "connection %#x of %v: accepted", e.ID, hw)
	c := s.add(&conn{Peer: Peer{HW: hw, LID: e.LID}, id: e.ID, qpn: q, state: accepting, oneWay: oneWay,
		mtu: packetMTU(recvMTU), used: now})
	if !oneWay {
		s.inheritQueue(c, queue)
	}
}

// packetMTU is the longest packet that goes to a peer with a receive MTU.
func packetMTU(recvMTU uint32) int { return int(min(recvMTU, RecvMTU)) - wire.EncapLen }

// inheritQueue gives a connection the frames that waited for the one before.
func (s *Conns) inheritQueue(c *conn, queue [][]byte) {
	if c.queue = queue; len(queue) == 0 {
		return
	}
	s.waiting++
	for _, f := range queue {
		c.queued += len(f)
	}
	s.budget.Reserve(c.queued) // in bounds: end has just released as much
}

// validSource reports whether a REQ in the name of a neighbour came from that neighbour's port: by the valid path to
// it, else by the connection with it. Where it did not, the path is queried, and the next REQ is validated by the
// answer.
func (s *Conns) validSource(now mono.Time, hw wire.HWAddr, lid ib.LID, before *conn) bool {
	known := lid
	if at, ok := s.shadow.PathLID(hw.GID()); ok {
		known = at
	} else if before != nil {
		known = before.LID
	}
	// A port may have several LIDs, as this side's has.
	if lid>>s.local.LMC == known>>s.local.LMC {
		return true
	}
	s.shadow.VerifyPath(now, hw, lid)
	return false
}

// handleREP goes on with a connection that the peer accepted.
func (s *Conns) handleREP(now mono.Time, c *conn, private []byte) {
	qpn, recvMTU, ok := wire.ParseCMPrivate(private)
	if !ok || qpn != c.HW.QPN() {
		s.stats.Driver.ConnBadData++
		s.fail(now, c)
		return
	}
	c.mtu = packetMTU(recvMTU)
	if err := s.ports.Handshake.ReadyConn(c.id); err != nil {
		s.report.Logf(now, "connection", "connection to %v: %v", c.HW, err)
		s.stats.Driver.ConnFailed++
		s.fail(now, c)
		return
	}
	s.opens(now, c)
}

// fail ends a connection that cannot be made.
func (s *Conns) fail(now mono.Time, c *conn) {
	queue := s.end(now, c)
	if a := s.shadow.Attempts(c.HW); a != nil {
		a.unreachable(now)
	}
	s.resend(now, c.HW, queue)
}

// opens makes a connection open, and sends what waited for it.
func (s *Conns) opens(now mono.Time, c *conn) {
	c.state, c.used, c.waitsFrom = open, now, now
	if a := s.shadow.Attempts(c.HW); a != nil {
		a.rejections = 0
	}
	s.stats.Driver.ConnOpened++
	s.report.Debugf(now, "connection %#x with %v: open, MTU %d", c.id, c.HW, c.mtu)
	s.drain(now, c)
}

// touch notes at the shadow entry that a connection is in use.
func (s *Conns) touch(now mono.Time, c *conn) {
	if now.Sub(c.touched) >= touchEvery {
		c.touched = now
		s.shadow.Touch(now, c.HW)
	}
}

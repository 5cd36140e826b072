// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"slices"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// Send sends a frame of IPv4 or IPv6, no Neighbor Discovery, to a neighbour with the RC flag: hw is its address
// without flags, a its attempts, path the path to it, without a destination LID where it must be queried first. The
// frame is the caller's again on return.
//
// Result 0: the frame was sent, waits, or was dropped and counted. Another result is the longest packet that can go to
// the neighbour now: the frame is to go as a datagram, or to be refused where it is longer than that.
func (s *Conns) Send(now mono.Time, hw wire.HWAddr, a *Attempts, path *mad.PathRecord, frame []byte) (mtu int) {
	n := len(frame) - headroom
	c := s.outgoing(now, hw, a, path)
	switch {
	case c == nil:
		if n > s.dgramMTU && a.holdUntil > now && a.rejections < maxRejections {
			// The next attempt is soon, and the IP stack remembers a reported MTU for long.
			s.stats.TxDrop(stats.DropNoPath)
			return 0
		}
		return s.dgramMTU
	case n > c.mtu:
		return max(s.dgramMTU, c.mtu)
	case c.state == open && len(c.queue) == 0 && s.mayPost(now, c):
		s.post(now, c, frame)
		return 0
	case c.state == open || n > s.dgramMTU || len(c.queue) > 0 && now.Sub(c.used) < orderWait:
		s.enqueue(now, c, frame)
		return 0
	}
	return s.dgramMTU
}

// outgoing returns the connection by which to send to a neighbour; it requests one where there is none. nil: there is
// none for now.
func (s *Conns) outgoing(now mono.Time, hw wire.HWAddr, a *Attempts, path *mad.PathRecord) *conn {
	if p := s.peers[hw]; p != nil && p.out != nil {
		return p.out
	}
	if a.holdUntil > now || path.DLID == 0 {
		return nil
	}
	return s.connect(now, hw, a, path)
}

// connect requests a connection with a neighbour; nil where that is not possible now.
func (s *Conns) connect(now mono.Time, hw wire.HWAddr, a *Attempts, path *mad.PathRecord) *conn {
	if !s.makeRoom(now, 0) {
		a.rejected(now)
		return nil
	}
	rfc, old := wire.CMServiceIDs(hw.QPN())
	r := Request{ID: s.nextID(), ServiceID: rfc, GID: hw.GID(), Path: *path, Private: s.privateData()}
	if a.oldService {
		r.ServiceID = old
	}
	qpn, err := s.ports.Handshake.Connect(&r)
	if err != nil {
		s.report.Logf(now, "connection", "connection to %v: %v", hw, err)
		s.stats.Driver.ConnFailed++
		a.rejected(now)
		return nil
	}
	s.report.Debugf(now, "connection %d to %v: requested", r.ID, hw)
	return s.add(&conn{Peer: Peer{HW: hw, LID: path.DLID}, id: r.ID, qpn: qpn, state: requesting, mtu: MTU, used: now})
}

// mayPost reports whether a connection may have one message more in flight. A connection never has all free slots, so
// its window shrinks as slots run short. A peer that acknowledges nothing may hold its slots for long, and such peers
// may be many: together they get half of the slots, and another quarter for the first message of each.
func (s *Conns) mayPost(now mono.Time, c *conn) bool {
	free := len(s.slots.free)
	switch {
	case c.acknowledges(now):
		return c.inFlight < min(Window, free)
	case c.inFlight == 0:
		return free > 0 && s.slots.trials < TxSlots*3/4
	}
	return c.inFlight < min(trialWindow, free) && s.slots.trials < TxSlots/2
}

// acknowledges reports whether the peer has acknowledged a message lately.
func (c *conn) acknowledges(now mono.Time) bool {
	return c.proven != 0 && now.Sub(c.proven) < ackWindow
}

// Backpressured reports whether the link must not accept further packets until the queue of a connection has drained.
// That lasts for Patience at most: then the connection is slow, and loses frames, while others do not.
func (s *Conns) Backpressured(now mono.Time) bool {
	c := s.blocker
	return c != nil && c.state == open && len(c.queue) > 0 && now.Sub(c.waitsFrom) < Patience
}

// enqueue keeps a copy of a frame until its connection can take it.
func (s *Conns) enqueue(now mono.Time, c *conn, frame []byte) {
	if len(c.queue) >= QueueFrames || c.queued+len(frame) > QueueBytes || !s.budget.Reserve(len(frame)) {
		s.stats.Net.TxWindowErrors++
		s.stats.TxDrop(stats.DropQueueFull)
		return
	}
	if len(c.queue) == 0 {
		s.waiting++
		c.waitsFrom = now
	}
	c.queue = append(c.queue, slices.Clone(frame))
	c.queued += len(frame)
	if s.blocker != c && (len(c.queue) >= QueueFrames/2 || c.queued >= QueueBytes/2) && !s.Backpressured(now) {
		if s.blocker = c; s.Backpressured(now) {
			s.watchBy(c.waitsFrom.Add(Patience))
		}
	}
}

// queueEmptied notes that nothing waits for a connection any more.
func (s *Conns) queueEmptied(c *conn) {
	if s.waiting--; s.blocker == c {
		s.blocker = nil
	}
}

// Drain sends frames that wait for slots, as far as there are free ones.
func (s *Conns) Drain(now mono.Time) {
	if s.waiting == 0 {
		return
	}
	for _, c := range s.byID {
		if c.state == open && len(c.queue) > 0 {
			s.drain(now, c)
		}
	}
}

// drain sends what waits for an open connection. A frame that is too long for the peer goes as a datagram, or is
// refused.
func (s *Conns) drain(now mono.Time, c *conn) {
	if len(c.queue) == 0 {
		return
	}
	for len(c.queue) > 0 && s.mayPost(now, c) && c.state == open {
		f := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.queued -= len(f)
		s.budget.Release(len(f))
		switch n := len(f) - headroom; {
		case n <= c.mtu:
			s.post(now, c, f)
		case n <= s.dgramMTU && s.link.SendDatagram(c.HW, f):
		default:
			s.link.RejectTooBig(now, f, max(c.mtu, s.dgramMTU))
		}
	}
	if len(c.queue) == 0 {
		c.queue = nil
		s.queueEmptied(c)
	}
}

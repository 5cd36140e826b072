// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
)

// fakeCM is the communication managers of a subnet: messages that arrive after a while, or never.
type fakeCM struct {
	cm      []cmEvent
	cmDelay time.Duration
	cmLost  func(from, to *node, what string) bool
	// cmAsked has the requests: service IDs and private data.
	cmAsked []connected.Request
}

type cmEvent struct {
	at mono.Time
	f  func()
}

// fakeConns are the connections of a node.
type fakeConns struct {
	conns       map[uint32]*fakeConn
	lastConn    uint32
	lastConnQPN ib.QPN
	ctxOpen     bool
	noRFC       bool // only the service ID of old is listened at
	ctx, crx    []byte
	srq         []connected.RecvSlot
	badReply    []byte // private data of answers in place of the link's
	connFail    error
}

// fakeConn is one side of a connection.
type fakeConn struct {
	n         *node
	id        uint32
	qpn       ib.QPN
	peer      *fakeConn
	up        bool // in RTS
	stopped   bool
	answered  bool // a request that was accepted or rejected
	ready     bool // accepted, and the RTU has arrived
	destroyed bool
	dead      bool // the node behind it was killed
	broken    bool // no message passes
	deaf      bool // the peer acknowledges none
	kept      []uint64
	last      uint64 // identifier of the message that was posted last
}

// cmTimeout is when a request without an answer is given up.
const cmTimeout = 20 * time.Second

func (s *subnet) after(d time.Duration, f func()) {
	s.cm = append(s.cm, cmEvent{s.now.Add(d), f})
}

// tell has the communication manager of a connection's node hear of something.
func (c *fakeConn) tell(from *node, what string, e connected.Event) {
	s := c.n.s
	if what != "timeout" && what != "" && s.cmLost != nil && s.cmLost(from, c.n, what) {
		return
	}
	e.Private = bytes.Clone(e.Private)
	s.after(s.cmDelay, func() {
		if e.ID = c.id; !c.stopped && !c.dead && !c.destroyed {
			c.n.l.ConnEvent(s.now, e)
		}
	})
}

func (n *node) OpenConns(qpn ib.QPN, tx, rx, slotLen int) (t, r []byte, err error) {
	if err := n.make("conns"); err != nil {
		return nil, nil, err
	}
	n.conns = map[uint32]*fakeConn{}
	n.ctxOpen, n.srq = true, nil
	n.ctx, n.crx = make([]byte, tx*slotLen), make([]byte, rx*slotLen)
	return n.ctx, n.crx, nil
}

func (n *node) CloseConns() {
	if len(n.conns) > 0 {
		n.s.t.Errorf("%s: %d connections are left", n.name, len(n.conns))
	}
	n.unmake("conns")
	n.ctxOpen = false
}

func (n *node) newConn(id uint32) *fakeConn {
	c := &fakeConn{n: n, id: id}
	if n.conns[id] != nil {
		n.s.t.Errorf("%s: connection %#x twice", n.name, id)
	}
	n.conns[id] = c
	return c
}

func (n *node) connQPN() ib.QPN { n.lastConnQPN++; return 0x1000 + n.lastConnQPN }

func (n *node) Connect(r *connected.Request) (ib.QPN, error) {
	if n.connFail != nil {
		return 0, n.connFail
	}
	s := n.s
	c := n.newConn(r.ID)
	c.qpn = n.connQPN()
	q := *r
	q.Private = bytes.Clone(r.Private)
	s.cmAsked = append(s.cmAsked, q)
	s.after(cmTimeout, func() {
		if !c.up {
			c.tell(n, "timeout", connected.Event{Kind: connected.Unreachable})
		}
	})
	for _, to := range s.nodes {
		if to.port.GID != r.GID || to == n || to.port.State != ib.PortActive || s.cmLost != nil &&
			s.cmLost(n, to, "REQ") {
			continue
		}
		s.after(s.cmDelay, func() {
			rfc, old := wire.CMServiceIDs(to.qpn)
			if to.closed > 0 {
				return
			}
			if !to.ctxOpen || q.ServiceID != old && (q.ServiceID != rfc || to.noRFC) {
				c.tell(to, "REJ", connected.Event{Kind: connected.NoService})
				return
			}
			if c.stopped {
				return
			}
			to.lastConn++
			p := to.newConn(connected.FirstPassive + to.lastConn)
			c.peer, p.peer = p, c
			to.l.ConnEvent(s.now, connected.Event{ID: p.id, Kind: connected.Requested, Service: q.ServiceID,
				GID: n.port.GID,
				LID: n.port.LID, Private: q.Private})
			if !p.answered {
				s.t.Errorf("%s: a request has no answer", to.name)
			}
		})
		break
	}
	return c.qpn, nil
}

func (n *node) ReadyConn(id uint32) error {
	c := n.conns[id]
	c.up = true
	if n.s.cmLost == nil || !n.s.cmLost(n, c.peer.n, "RTU") {
		c.peer.ready = true
		c.peer.tell(n, "", connected.Event{Kind: connected.Ready})
	}
	return n.connFail
}

func (n *node) AcceptConn(id uint32, private []byte) (ib.QPN, error) {
	if n.connFail != nil {
		return 0, n.connFail
	}
	c := n.conns[id]
	c.qpn, c.up, c.answered = n.connQPN(), true, true
	if n.badReply != nil {
		private = n.badReply
	}
	c.peer.tell(n, "REP", connected.Event{Kind: connected.Accepted, Private: private})
	n.s.after(cmTimeout, func() {
		if !c.ready {
			c.tell(n, "timeout", connected.Event{Kind: connected.Unreachable})
		}
	})
	return c.qpn, nil
}

func (n *node) RejectConn(id uint32, full bool, private []byte) {
	c := n.conns[id]
	c.answered = true
	delete(n.conns, id)
	c.peer.tell(n, "REJ", connected.Event{Kind: connected.Rejected})
}

func (n *node) EstablishConn(id uint32) {
	c := n.conns[id]
	if c.ready = true; !c.up {
		n.s.t.Errorf("%s: heard by a connection that is not up", n.name)
	}
}

func (n *node) StopConn(id uint32) {
	c := n.conns[id]
	if c.stopped {
		n.s.t.Errorf("%s: connection %#x is stopped twice", n.name, id)
	}
	c.stopped = true
	for _, id := range c.kept {
		n.s.queue = append(n.s.queue, func() { c.carry(id, nil) })
	}
	if c.peer != nil {
		c.peer.tell(n, "DREQ", connected.Event{Kind: connected.Disconnected})
	}
}

func (n *node) DestroyConn(id uint32) {
	c := n.conns[id]
	if c == nil || !c.stopped {
		n.s.t.Fatalf("%s: connection %#x is destroyed out of turn", n.name, id)
	}
	c.destroyed = true
	delete(n.conns, id)
}

func (n *node) PostConnRecv(wrs []connected.RecvSlot) int {
	n.srq = append(n.srq, wrs...)
	return len(wrs)
}

func (n *node) PostConn(id uint32, wrs []connected.Message) int {
	c := n.conns[id]
	for i := range wrs {
		wr := wrs[i]
		var data []byte
		if wr.Mapped {
			data = n.maps[wr.Ref][wr.Off:][:wr.Len]
		} else {
			data = n.ctx[wr.Off:][:wr.Len]
		}
		data = bytes.Clone(data)
		c.last = wr.ID
		n.s.queue = append(n.s.queue, func() { c.carry(wr.ID, data) })
	}
	return len(wrs)
}

// carry takes a message to the peer, or fails.
func (c *fakeConn) carry(id uint64, data []byte) {
	n := c.n
	if c.destroyed || c.dead {
		return
	}
	if c.deaf && !c.stopped {
		c.kept = append(c.kept, id)
		return
	}
	done := WC{ID: id, QPN: c.qpn}
	p := c.peer
	switch {
	case c.stopped:
		done.Status = ib.WRFlushErr
	case p == nil || c.broken || p.broken || p.dead || p.stopped || p.destroyed || !p.up ||
		n.port.State != ib.PortActive || p.n.port.State != ib.PortActive:
		done.Status = ib.RetryExcErr
	default:
		if len(p.n.srq) == 0 {
			n.s.t.Errorf("%s: nothing is posted", p.n.name)
			return
		}
		wr := p.n.srq[0]
		p.n.srq = slices.Delete(p.n.srq, 0, 1)
		if int(wr.Len) < len(data) {
			n.s.t.Errorf("%s: a message of %d octets", n.name, len(data))
		}
		copy(p.n.crx[wr.Off:][:wr.Len], data)
		p.n.cq = append(p.n.cq, WC{ID: wr.ID, QPN: p.qpn, Recv: true, ByteLen: uint32(len(data))})
	}
	n.cq = append(n.cq, done)
}

// kill has the node vanish without a word: what comes to it is lost. Another may begin in its place.
func (n *node) kill() {
	for _, c := range n.conns {
		c.dead = true
	}
	n.port.State = ib.PortDown
	n.s.nodes = slices.DeleteFunc(n.s.nodes, func(o *node) bool { return o == n })
}

// checkConns proves the invariants of connections, and returns how many octets wait for them.
func (n *node) checkConns() (waits int) {
	c := n.l.conns
	if c == nil {
		return 0
	}
	if err := c.Check(); err != nil {
		n.s.t.Fatalf("%s: %v", n.name, err)
	}
	for _, i := range c.List() {
		if n.conns[i.ID] == nil {
			n.s.t.Fatalf("%s: connection %#x does not exist in the access layer", n.name, i.ID)
		}
	}
	return c.Usage().Octets
}

// listConns lists the connections of a link.
func (n *node) listConns() []connected.Info {
	if n.l.conns == nil {
		return nil
	}
	return n.l.conns.List()
}

// connInfo returns a connection of a link by its number.
func (n *node) connInfo(id uint32) (i connected.Info, ok bool) {
	for _, i := range n.listConns() {
		if i.ID == id {
			return i, true
		}
	}
	return i, false
}

// passiveConns returns how many connections the port of an LID requested: all, and those that are not closing.
func (n *node) passiveConns(lid ib.LID) (all, live int) {
	for _, i := range n.listConns() {
		if i.ID >= connected.FirstPassive && i.Peer.LID == lid {
			if all++; i.State != "closing" {
				live++
			}
		}
	}
	return all, live
}

// freeConnSlots returns the number of free send slots of connections.
func (n *node) freeConnSlots() int { return n.l.conns.Usage().FreeSlots }

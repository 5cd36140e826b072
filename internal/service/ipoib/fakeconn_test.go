// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// fakeCM is the communication managers of a subnet: messages that arrive after a while, or never.
type fakeCM struct {
	cm      []cmEvent
	cmDelay time.Duration
	cmLost  func(from, to *node, what string) bool
	// cmAsked has what was asked for: service IDs and private data.
	cmAsked []ConnRequest
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
	srq         []RecvWR
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
	ready     bool // an accepted one of which the peer said that it is ready
	destroyed bool
	dead      bool // the node behind it was killed
	broken    bool // no message passes
	deaf      bool // the peer acknowledges none
	kept      []uint64
}

// cmTimeout is when a request without an answer is given up.
const cmTimeout = 20 * time.Second

func (s *subnet) after(d time.Duration, f func()) {
	s.cm = append(s.cm, cmEvent{s.now.Add(d), f})
}

// tell has the communication manager of a connection's node hear of something.
func (c *fakeConn) tell(from *node, what string, e ConnEvent) {
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

func (n *node) Connect(r *ConnRequest) (ib.QPN, error) {
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
			c.tell(n, "timeout", ConnEvent{Kind: ConnUnreachable})
		}
	})
	for _, to := range s.nodes {
		if to.port.GID != r.GID || to == n || to.port.State != ib.PortActive || s.cmLost != nil && s.cmLost(n, to, "REQ") {
			continue
		}
		s.after(s.cmDelay, func() {
			rfc, old := wire.CMServiceIDs(to.qpn)
			if to.closed > 0 {
				return
			}
			if !to.ctxOpen || q.ServiceID != old && (q.ServiceID != rfc || to.noRFC) {
				c.tell(to, "REJ", ConnEvent{Kind: ConnNoService})
				return
			}
			if c.stopped {
				return
			}
			to.lastConn++
			p := to.newConn(PassiveConn + to.lastConn)
			c.peer, p.peer = p, c
			to.l.ConnEvent(s.now, ConnEvent{ID: p.id, Kind: ConnAsked, Service: q.ServiceID, GID: n.port.GID, LID: n.port.LID, Private: q.Private})
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
		c.peer.tell(n, "", ConnEvent{Kind: ConnReady})
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
	c.peer.tell(n, "REP", ConnEvent{Kind: ConnAccepted, Private: private})
	n.s.after(cmTimeout, func() {
		if !c.ready {
			c.tell(n, "timeout", ConnEvent{Kind: ConnUnreachable})
		}
	})
	return c.qpn, nil
}

func (n *node) RejectConn(id uint32, full bool, private []byte) {
	c := n.conns[id]
	c.answered = true
	delete(n.conns, id)
	c.peer.tell(n, "REJ", ConnEvent{Kind: ConnRefused})
}

func (n *node) HeardConn(id uint32) {
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
		c.peer.tell(n, "DREQ", ConnEvent{Kind: ConnOver})
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

func (n *node) PostConnRecv(wrs []RecvWR) int {
	n.srq = append(n.srq, wrs...)
	return len(wrs)
}

func (n *node) PostConn(id uint32, wrs []SendWR) int {
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
	case p == nil || c.broken || p.broken || p.dead || p.stopped || p.destroyed || !p.up || n.port.State != ib.PortActive || p.n.port.State != ib.PortActive:
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

// checkConns proves what is always so of connections, and returns how many octets wait for them.
func (n *node) checkConns() (waits int) {
	l := n.l
	live, inFlight, waiting := 0, 0, 0
	ports := map[ib.LID]portConns{}
	for id, c := range l.conns {
		if c.id != id || l.byQPN[c.qpn] != c || n.conns[id] == nil {
			n.s.t.Fatalf("%s: connection %#x is not what it is known as", n.name, id)
		}
		if inFlight += c.inFlight; c.state != connClosing {
			live++
			if p := l.peers[c.hw]; p == nil || p.out != c && p.in != c {
				n.s.t.Fatalf("%s: connection %#x is nobody's", n.name, id)
			}
		}
		if c.inFlight > connWindow {
			n.s.t.Fatalf("%s: %d messages of a connection are in flight", n.name, c.inFlight)
		}
		if len(c.queue) > 0 {
			waiting++
		}
		if id >= PassiveConn {
			p := ports[c.lid]
			if p.all++; c.state != connClosing {
				p.live++
			}
			ports[c.lid] = p
		}
		for _, f := range c.queue {
			waits += len(f)
		}
		if len(c.queue) > connFrames {
			n.s.t.Fatalf("%s: %d frames wait for a connection", n.name, len(c.queue))
		}
	}
	if live != l.live || live > l.p.MaxConns || len(l.conns) != len(l.byQPN) {
		n.s.t.Fatalf("%s: %d connections, %d counted, %d by number", n.name, live, l.live, len(l.byQPN))
	}
	if waiting != l.connWaits || !maps.Equal(ports, l.connPorts) {
		n.s.t.Fatalf("%s: %d connections have queues, %d counted; of ports %v, counted %v", n.name, waiting, l.connWaits, ports, l.connPorts)
	}
	if len(l.connSlots)-len(l.connFree) != inFlight {
		n.s.t.Fatalf("%s: %d of %d slots are free, %d messages posted", n.name, len(l.connFree), len(l.connSlots), inFlight)
	}
	if l.connsOpen && l.connPosted != connRxSlots {
		n.s.t.Fatalf("%s: %d receive slots of connections are posted", n.name, l.connPosted)
	}
	return waits
}

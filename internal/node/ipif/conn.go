// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"bytes"
	"syscall"
	"time"

	"weft/internal/node/conn"
	"weft/internal/node/session"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/cm"
	"weft/internal/service/ipoib"
	"weft/internal/service/ipoib/connected"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// Attributes of connections of IP links (docs/notes/ipoib.md, section 12).
const (
	connReads    = 4  // that the peer may have under way; there are none
	connRetries  = 7  // of packets: the network may lose some
	connRNR      = 7  // for ever: receives are posted as long as the peer is there
	connRNRTimer = 12 // of RNR NAKs: 0.64 ms
	connTimeout  = 14 // of acknowledgements: 67 ms
	connAnswer   = 18 // of the peer's manager: 1.07 s
	connBacklog  = 128
	connSessions = 16 // queue pairs of a session beside those of connections
)

// connections is the connections of a link in connected mode. It belongs to the lane.
type connections struct {
	iface *iface
	srq   *session.QP
	mr    *session.MR // nil: there is none
	recvs uint64      // where receive slots begin in it
	sends uint32      // send slots
	made  map[uint32]*connection
	cm    *listener // nil: connected mode is closed
	fatal []ib.QPN  // queue pairs that went to ERR by themselves
}

// connection is one of them. It belongs to the lane.
type connection struct {
	qp   *session.QP // nil: of a request that is not answered
	attr [3]connAttr // to INIT, RTR and RTS; once the peer's part is known
}

// connAttr is the attributes of a queue pair for a state.
type connAttr struct {
	a    cm.QPAttr
	mask ib.AttrMask
}

// listener is the part of a link's connections that belongs to the goroutine of the connection manager.
type listener struct {
	s         *conn.Service
	l         *iface
	listeners []*cm.Listener
	conns     map[uint32]*cm.Conn
	last      uint32
	failing   bool // it was notified that listening fails
	closed    bool
}

// onLane has the lane call f with the engine and its access layer, while that has connections.
func (d *listener) onLane(f func(now mono.Time, engine *ipoib.Link, a *access)) {
	l := d.l
	l.lane.Post(func() {
		if l.engine != nil && l.access.cm == d {
			f(l.lane.Now(), l.engine, l.access)
		}
	})
}

// OpenConns implements connected.SharedQueue.
func (a *access) OpenConns(qpn ib.QPN, tx, rx, slotLen int) (txMem, rxMem []byte, err error) {
	srq, err := a.CreateSRQ(a.pd, uint32(rx))
	if err != nil {
		return nil, nil, err
	}
	m, err := a.RegisterMR(a.pd, (tx+rx)*slotLen, func(b []byte) mem.Space { return mem.NewSlice(0, b) })
	if err != nil {
		a.must(a.Session().DestroySRQ(srq.Slot()))
		return nil, nil, err
	}
	a.srq, a.connections.mr, a.recvs, a.sends = srq, m, uint64(tx*slotLen), uint32(tx)
	a.made = map[uint32]*connection{}
	d := &listener{s: a.h.cfg.Connections, l: a.iface, conns: map[uint32]*cm.Conn{}}
	a.cm = d
	rfc, old := wire.CMServiceIDs(qpn)
	d.s.Post(func(mono.Time) { d.listen(rfc, old) })
	return m.Bytes[: tx*slotLen : tx*slotLen], m.Bytes[tx*slotLen:], nil
}

// CloseConns implements connected.SharedQueue.
func (a *access) CloseConns() {
	d := a.cm
	a.cm = nil
	d.s.Post(d.close)
	a.must(a.connections.mr.Deregister())
	a.must(a.Session().DestroySRQ(a.srq.Slot()))
	a.srq, a.connections.mr, a.made, a.fatal = nil, nil, nil, nil
}

// listen listens for requests to the link's interface. Where that fails, since there are too many listeners, it tries
// again.
func (d *listener) listen(services ...uint64) {
	if d.closed {
		return
	}
	for i, id := range services {
		f, k := d.l.adapter.Number(), d.l.cfg.PKey
		l, err := d.s.Manager().Listen(&cm.ListenParams{ServiceID: cm.ServiceID(id), Backlog: connBacklog,
			Match: func(r *cm.Request) bool { return r.Function == f && r.Path.PKey.Match(k) }}, d.requested)
		if err != nil {
			if !d.failing {
				d.failing = true
				d.l.h.event(d.l.cfg.Name, ipoib.EventLog.String(), "no neighbour can connect: "+err.Error()+
					"; it tries again")
			}
			time.AfterFunc(sessionRetry, func() { d.s.Post(func(mono.Time) { d.listen(services[i:]...) }) })
			return
		}
		d.listeners = append(d.listeners, l)
	}
	if d.failing {
		d.failing = false
		d.l.h.event(d.l.cfg.Name, ipoib.EventLog.String(), "neighbours can connect")
	}
}

// close ends the listeners and connections of the link.
func (d *listener) close(now mono.Time) {
	d.closed = true
	for _, l := range d.listeners {
		l.Close(now)
	}
	for _, c := range d.conns {
		c.Close(now)
	}
	d.listeners, d.conns = nil, nil
}

// requested passes a peer's request to the engine.
func (d *listener) requested(now mono.Time, e *cm.Event) {
	if e.Kind != cm.ConnectRequest {
		if e.Kind == cm.LookupRequest {
			e.Inquiry.Reject(now, cm.LookupNoService, nil, nil)
		}
		return
	}
	r := e.Request
	if r.QPType != ib.RC {
		e.Conn.Reject(now, cm.ReasonInvalidTransport, nil, nil)
		return
	}
	d.last = (d.last + 1) % connected.FirstPassive
	id := connected.FirstPassive + d.last
	if d.closed || d.conns[id] != nil {
		e.Conn.Close(now)
		return
	}
	attr, err := connAttrs(e.Conn)
	if err != nil {
		e.Conn.Close(now)
		return
	}
	d.conns[id] = e.Conn
	e.Conn.SetHandler(func(now mono.Time, e *cm.Event) { d.event(id, e) })
	v := connected.Event{ID: id, Kind: connected.Requested, Service: uint64(r.ServiceID), GID: r.Path.DGID,
		LID: r.Path.DLID, Private: bytes.Clone(r.PrivateData)}
	d.onLane(func(now mono.Time, engine *ipoib.Link, a *access) {
		a.made[id] = &connection{attr: attr}
		engine.ConnEvent(now, v)
	})
}

// event passes an event of a connection to the engine.
func (d *listener) event(id uint32, e *cm.Event) {
	v := connected.Event{ID: id, Private: bytes.Clone(e.PrivateData)}
	var attr [3]connAttr
	switch e.Kind {
	case cm.Response:
		var err error
		if attr, err = connAttrs(e.Conn); err != nil {
			return // it has ended, which another event reports
		}
		v.Kind = connected.Accepted
	case cm.Established:
		v.Kind = connected.Ready
	case cm.Rejected:
		if v.Kind = connected.Rejected; e.Reason == cm.ReasonInvalidServiceID {
			v.Kind = connected.NoService
		}
	case cm.Unreachable:
		v.Kind = connected.Unreachable
	case cm.Disconnected:
		v.Kind = connected.Disconnected
	default:
		return
	}
	d.onLane(func(now mono.Time, engine *ipoib.Link, a *access) {
		if c := a.made[id]; c != nil {
			if v.Kind == connected.Accepted {
				c.attr = attr
			}
			engine.ConnEvent(now, v)
		}
	})
}

// connAttrs returns the attributes for a connection's queue pair, by state.
func connAttrs(c *cm.Conn) (attr [3]connAttr, err error) {
	for i, s := range []ib.QPState{ib.Init, ib.RTR, ib.RTS} {
		if attr[i].a, attr[i].mask, err = c.QPAttr(s); err != nil {
			return attr, err
		}
	}
	return attr, nil
}

// with has the goroutine of the connection manager call f with a connection, if that is still there.
func (d *listener) with(id uint32, f func(now mono.Time, c *cm.Conn)) {
	d.s.Post(func(now mono.Time) {
		if c := d.conns[id]; c != nil {
			f(now, c)
		}
	})
}

// Connect implements connected.Handshake.
func (a *access) Connect(r *connected.Request) (ib.QPN, error) {
	q, err := a.CreateRC(a.pd, a.cq, a.srq, a.sends)
	if err != nil {
		return 0, err
	}
	a.made[r.ID] = &connection{qp: q}
	d, id, f := a.cm, r.ID, a.adapter.Number()
	rec := r.Path
	p := cm.ConnectParams{ServiceID: cm.ServiceID(r.ServiceID), QPType: ib.RC, QPN: q.Num(), SRQ: true,
		ResponderResources: connReads, FlowControl: true, RetryCount: connRetries, RNRRetry: connRNR,
		PrivateData: bytes.Clone(r.Private), ResponseTimeout: connAnswer}
	d.s.Post(func(now mono.Time) {
		if d.closed {
			return
		}
		var c *cm.Conn
		err := cm.ErrNoPort
		if port, ok := d.s.Port(f); ok {
			k := -1
			for i, key := range port.PKeys {
				if k < 0 && key.Match(rec.PKey) {
					k = i
				}
			}
			if err = cm.ErrNoPath; k >= 0 {
				p.Path = cm.Path{Function: f, Link: port.Link, SGID: rec.SGID, DGID: rec.DGID, SLID: rec.SLID,
					DLID:   rec.DLID,
					Global: rec.HopLimit > 1, PKey: port.PKeys[k], PKeyIndex: uint16(k), FlowLabel: rec.FlowLabel, TClass: rec.TClass,
					HopLimit: rec.HopLimit, SL: rec.SL, MTU: min(rec.MTU, port.MTU), Rate: rec.Rate, LifeTime: rec.Life}
				c, err = d.s.Manager().Connect(now, &p, func(_ mono.Time, e *cm.Event) { d.event(id, e) })
			}
		}
		if err != nil {
			d.onLane(func(now mono.Time, engine *ipoib.Link, _ *access) {
				engine.ConnEvent(now, connected.Event{ID: id, Kind: connected.Unreachable})
			})
			return
		}
		d.conns[id] = c
	})
	return q.Num(), nil
}

// setUp takes the queue pair of a connection to RTS.
func (a *access) setUp(c *connection) error {
	if c == nil || c.qp == nil || c.attr[2].mask == 0 {
		return syscall.ENOTCONN
	}
	now, port := a.h.cfg.Now(), a.adapter.Port()
	// The table may have changed since the manager looked the index up.
	if i := int(c.attr[0].a.PKeyIndex); i >= len(port.PKeys) || (port.PKeys[i]^a.iface.cfg.PKey)&0x7fff != 0 {
		return syscall.EINVAL
	}
	for i := range c.attr {
		v := &c.attr[i]
		t := transport.Attr{State: v.a.State, PKeyIndex: v.a.PKeyIndex, Port: 1, PathMTU: v.a.PathMTU,
			DestQPN: v.a.DestQPN,
			RQPSN:   v.a.RQPSN, SQPSN: v.a.SQPSN, MaxDestRdAtomic: v.a.MaxDestRdAtomic, MinRNRTimer: connRNRTimer,
			Timeout: connTimeout, RetryCnt: connRetries, RNRRetry: connRNR}
		p := &v.a.Path
		av := hca.AHAttr{DGID: p.DGID, FlowLabel: p.FlowLabel, SGIDIndex: p.SGIDIndex, HopLimit: p.HopLimit,
			TrafficClass: p.TClass, SL: p.SL, Global: p.Global, DLID: p.DLID, SrcPathBits: uint8(p.SLID) & (1<<port.LMC - 1)}
		if own := ib.RateOf(port.Width, port.Speed, port.SpeedExt); p.Rate.Tenths() < own.Tenths() {
			av.StaticRate = p.Rate
		}
		if err := c.qp.Modify(now, &t, &av, v.mask); err != nil {
			return err
		}
	}
	return nil
}

// ReadyConn implements connected.Handshake.
func (a *access) ReadyConn(id uint32) error {
	if err := a.setUp(a.made[id]); err != nil {
		return err
	}
	a.cm.with(id, func(now mono.Time, c *cm.Conn) { c.Establish(now, nil) })
	return nil
}

// AcceptConn implements connected.Handshake.
func (a *access) AcceptConn(id uint32, private []byte) (ib.QPN, error) {
	c := a.made[id]
	q, err := a.CreateRC(a.pd, a.cq, a.srq, a.sends)
	if err != nil {
		return 0, err
	}
	c.qp = q
	if err := a.setUp(c); err != nil {
		c.qp = nil
		a.must(q.Destroy(a.h.cfg.Now()))
		return 0, err
	}
	p := cm.AcceptParams{QPN: q.Num(), SRQ: true, ResponderResources: connReads, FlowControl: true, RNRRetry: connRNR,
		PrivateData: bytes.Clone(private)}
	// Where the connection has ended, Accept fails, and an event reports the end.
	a.cm.with(id, func(now mono.Time, c *cm.Conn) { c.Accept(now, &p) })
	return q.Num(), nil
}

// RejectConn implements connected.Handshake.
func (a *access) RejectConn(id uint32, full bool, private []byte) {
	delete(a.made, id)
	if a.cm == nil {
		return
	}
	why := cm.ReasonConsumer
	if full {
		why = cm.ReasonNoResources
	}
	d, data := a.cm, bytes.Clone(private)
	d.with(id, func(now mono.Time, c *cm.Conn) {
		c.Reject(now, why, nil, data)
		c.Close(now)
		delete(d.conns, id)
	})
}

// EstablishConn implements connected.Handshake.
func (a *access) EstablishConn(id uint32) {
	a.cm.with(id, func(now mono.Time, c *cm.Conn) { c.Notify(now) })
}

// StopConn implements connected.QueuePairs.
func (a *access) StopConn(id uint32) {
	if c := a.made[id]; c.qp.Transport().State() != ib.Reset {
		a.must(c.qp.Change(a.h.cfg.Now(), transport.Attr{State: ib.Err}, ib.AttrState))
	}
	d := a.cm
	d.with(id, func(now mono.Time, c *cm.Conn) {
		c.Close(now)
		delete(d.conns, id)
	})
}

// DestroyConn implements connected.QueuePairs.
func (a *access) DestroyConn(id uint32) {
	a.must(a.made[id].qp.Destroy(a.h.cfg.Now()))
	delete(a.made, id)
}

// PostConn implements connected.QueuePairs.
func (a *access) PostConn(id uint32, wrs []connected.Message) (n int) {
	q := a.made[id].qp
	for n < len(wrs) {
		p := q.SendSlot()
		if p == nil {
			break
		}
		w := &wrs[n]
		addr, key := uint64(w.Off), a.connections.mr.LKey
		if w.Mapped {
			addr, key = addr+a.fed+w.Ref, a.mr.LKey
		}
		*p = session.SendRequest{ID: w.ID, Addr: addr, LKey: key, Len: w.Len, Signaled: true}
		n++
	}
	if n > 0 {
		q.SendPosted()
	}
	return n
}

// PostConnRecv implements connected.SharedQueue.
func (a *access) PostConnRecv(slots []connected.RecvSlot) (n int) {
	for n < len(slots) {
		p := a.srq.RecvSlot()
		if p == nil {
			break
		}
		s := &slots[n]
		*p = session.RecvRequest{ID: s.ID | recvID, Addr: a.recvs + uint64(s.Off), LKey: a.connections.mr.LKey,
			Len: s.Len}
		n++
	}
	if n > 0 {
		a.srq.RecvPosted(a.h.cfg.Now())
	}
	return n
}

// failed records queue pairs that went to ERR by themselves. It is the event sink of the session.
func (a *access) failed(e ib.Event, object uint32) {
	switch {
	case e == ib.EventCQErr:
		a.broken = true
	case e != ib.EventQPFatal && e != ib.EventQPReqErr && e != ib.EventQPAccessErr:
	case a.qp != nil && ib.QPN(object) == a.qp.Num():
		a.broken = true
	case a.made != nil:
		a.fatal = append(a.fatal, ib.QPN(object))
	}
}

// reportFailed reports to the engine the connections with failed queue pairs, and returns whether there were any.
func (a *access) reportFailed(now mono.Time, engine *ipoib.Link) bool {
	if len(a.fatal) == 0 {
		return false
	}
	list := a.fatal
	a.fatal = nil
	for _, n := range list {
		for id, c := range a.made {
			if c.qp != nil && c.qp.Num() == n {
				engine.ConnEvent(now, connected.Event{ID: id, Kind: connected.Disconnected})
				break
			}
		}
	}
	return true
}

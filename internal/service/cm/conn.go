// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"container/list"
	"encoding/binary"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// state is that of a connection (IBA volume 1, 12.9.5). An MRA moves a timer, and is
// no state of its own.
type state uint8

const (
	reqSent state = iota // active: waits for a REP
	reqRcvd              // passive: waits for the user
	repSent              // passive: waits for a RTU
	repRcvd              // active: waits for the user
	established
	dreqSent
	timewait
	dead
)

// Conn is a connection, from the first request to the end of its TIMEWAIT.
type Conn struct {
	m        *Manager
	h        Handler
	gone     bool // the user has let go of it
	state    state
	active   bool
	function uint16
	listener *Listener // the listener with it in its backlog
	t        timer
	place    *list.Element // in TIMEWAIT

	id       uint32 // this side's identifier; the peer's is in remote
	remote   remoteID
	known    bool // remote is, and is in byRemote
	peerQPN  ib.QPN
	tid      uint64
	to       mad.Datagram // where messages go, and the last one that may be sent again
	tries    uint8        // how often that may be
	patience uint8        // code of how long to wait for an answer

	path       Path
	qpType     ib.QPType
	qpn        ib.QPN
	psn        ib.PSN  // StartingPSN of this side's message: what the peer is to begin sending with
	peerPSN    ib.PSN  // of the peer's: what this side begins with
	guid       ib.GUID // of this side's adapter
	serve, ask uint8   // reads of the peer served, and own ones under way
	ackTimeout uint8
	retryCount uint8
	rnrRetry   uint8
	// How often the peer repeats after RNR NAKs: what this side's message asks for. Until Accept it is taken to be what
	// the peer asks for itself, since the queue pair's attributes are read before.
	peerRNRRetry uint8
	alternate    bool // the peer offers another path too
	told         bool // the user has received the end
}

func (c *Conn) timer() *timer { return &c.t }

// SetHandler sets the handler of all further events; nil drops them.
func (c *Conn) SetHandler(h Handler) { c.h = h }

// Function returns the function of the connection's port.
func (c *Conn) Function() uint16 { return c.function }

// Path returns the path that the connection takes.
func (c *Conn) Path() Path { return c.path }

// event enqueues an event for the user.
func (c *Conn) event(e Event) {
	e.Conn = c
	c.m.events = append(c.m.events, event{c.h, &c.gone, e})
}

// newConn returns a connection with an identifier; nil where there are too
// many.
func (m *Manager) newConn(function uint16) *Conn {
	if len(m.conns) >= m.max.Conns {
		e := m.waiting.Front()
		if e == nil {
			return nil
		}
		c := e.Value.(*Conn)
		m.Stats.EarlyTimewait++
		m.stop(c)
		c.expire(m, 0)
	}
	c := &Conn{m: m, function: function, id: newID(m, m.conns), psn: ib.PSN(m.rand.Uint32() & ib.PSNMask)}
	m.conns[c.id] = c
	return c
}

// Connect requests a connection with the peer; h gets the events. Path must be usable for packets of a
// queue pair of the function.
func (m *Manager) Connect(now mono.Time, p *ConnectParams, h Handler) (*Conn, error) {
	port, ok := m.ports.Port(p.Path.Function)
	switch {
	case !ok:
		return nil, ErrNoPort
	case p.QPType != ib.RC && p.QPType != ib.UC, len(p.PrivateData) > MaxRequestData, p.ResponseTimeout > 31,
		p.MaxRetries > 15, p.AckDelay > 31,
		!p.Path.MTU.Valid(), p.Path.DGID.IsZero(), p.Path.LifeTime > 63:
		return nil, ErrInvalid
	}
	c := m.newConn(p.Path.Function)
	if c == nil {
		return nil, ErrFull
	}
	c.h, c.active, c.path, c.guid = h, true, p.Path, port.CAGUID
	c.qpType, c.qpn, c.tid = p.QPType, p.QPN, m.newTID()
	c.serve, c.ask = p.ResponderResources, p.InitiatorDepth
	c.retryCount, c.rnrRetry, c.peerRNRRetry = p.RetryCount&7, p.RNRRetry&7, p.RNRRetry&7
	c.patience, c.tries = defaults(p.ResponseTimeout, p.MaxRetries)
	c.ackTimeout = ackTimeout(p.AckDelay, p.Path.LifeTime)
	c.to = datagram(&p.Path)
	r := mad.CMREQ{LocalCommID: c.id, ServiceID: uint64(p.ServiceID), CAGUID: port.CAGUID, QPN: uint32(p.QPN),
		ResponderResources: p.ResponderResources,
		InitiatorDepth:     p.InitiatorDepth, RemoteResponseTimeout: c.patience, FlowControl: p.FlowControl, StartingPSN: uint32(c.psn),
		LocalResponseTimeout: c.patience, RetryCount: c.retryCount, PKey: uint16(p.Path.PKey), PathMTU: p.Path.MTU, RNRRetry: c.rnrRetry,
		MaxCMRetries: c.tries, SRQ: p.SRQ, Primary: requestPath(&p.Path, c.ackTimeout)}
	if p.QPType == ib.UC {
		r.Transport = mad.CMTransportUC
	}
	copy(r.PrivateData[:], p.PrivateData)
	c.send(mad.AttrCMREQ, &r)
	c.state = reqSent
	c.again(now)
	return c, nil
}

// requestPath is a path as a REQ states it.
func requestPath(p *Path, ackTimeout uint8) mad.CMPath {
	return mad.CMPath{LocalLID: p.SLID, RemoteLID: p.DLID, LocalGID: p.SGID, RemoteGID: p.DGID,
		FlowLabel: p.FlowLabel, Rate: p.Rate, TClass: p.TClass,
		HopLimit: p.HopLimit, SL: p.SL, SubnetLocal: p.Link == ib.LinkInfiniBand && !p.Global, AckTimeout: ackTimeout}
}

// datagram is one that goes by a path, without its data.
func datagram(p *Path) mad.Datagram {
	return mad.Datagram{Port: 1, SLID: p.SLID, DLID: p.DLID, SL: p.SL, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI,
		QKey: ib.GSIQKey, PKey: p.PKey, Global: p.Global,
		HopLimit: p.HopLimit, TClass: p.TClass, FlowLabel: p.FlowLabel, SGID: p.SGID, DGID: p.DGID}
}

func defaults(timeout, retries uint8) (uint8, uint8) {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	if retries == 0 {
		retries = DefaultRetries
	}
	return timeout, retries
}

// message is a message of communication management.
type message interface{ Append(b []byte) []byte }

// put makes a datagram's MAD a message.
func put(d *mad.Datagram, a mad.AttributeID, tid uint64, v message) {
	r := mad.NewCM(a, tid)
	v.Append(r.Data[:0])
	r.Append(d.Data[:0])
}

// send sets a message as the connection's last one, and sends it.
func (c *Conn) send(a mad.AttributeID, v message) {
	put(&c.to, a, c.tid, v)
	c.m.send(c.function, &c.to)
}

// mention sends a message that will not be sent again.
func (c *Conn) mention(a mad.AttributeID, v message) {
	d := c.to
	put(&d, a, c.tid, v)
	c.m.send(c.function, &d)
}

func (c *Conn) ids() mad.CMIDs { return mad.CMIDs{LocalCommID: c.id, RemoteCommID: c.remote.id} }

// again sets the timer after which the last message is sent again, or given up.
func (c *Conn) again(now mono.Time) {
	c.m.start(c, now.Add(wait(c.patience, maxTimeoutCode)+2*wait(c.path.LifeTime, maxTimeoutCode)))
}

// expire implements timed.
func (c *Conn) expire(m *Manager, now mono.Time) {
	if c.state == timewait {
		c.event(Event{Kind: TimewaitExit})
		c.end()
		return
	}
	if c.tries > 0 {
		c.tries--
		if c.state == dreqSent && c.tries == DefaultRetries-disconnectPatience {
			c.notifyOver()
		}
		m.Stats.Resent++
		m.send(c.function, &c.to)
		c.again(now)
		return
	}
	switch c.state {
	case reqSent:
		// The peer may have answered all the same, and wait.
		c.refuse(mad.CMOther, ReasonTimeout, guidInfo(c.guid), nil)
		c.unreachable()
	case repSent:
		c.refuse(mad.CMOther, ReasonTimeout, guidInfo(c.guid), nil)
		c.unreachable()
	case dreqSent:
		c.over(now)
	}
}

func (c *Conn) unreachable() {
	c.m.Stats.Unreachable++
	c.event(Event{Kind: Unreachable})
	c.end()
}

// end forgets the connection.
func (c *Conn) end() {
	m := c.m
	m.stop(c)
	c.unlist()
	c.leaveQP()
	delete(m.conns, c.id)
	if c.known {
		delete(m.byRemote, c.remote)
	}
	if c.place != nil {
		m.waiting.Remove(c.place)
		c.place = nil
	}
	c.state = dead
}

// leaveQP lets the peer's queue pair be another connection's.
func (c *Conn) leaveQP() {
	if k := (remoteQP{c.remote.guid, c.remote.gid, c.peerQPN}); c.m.byQP[k] == c {
		delete(c.m.byQP, k)
	}
}

// unlist removes the connection from its listener's backlog.
func (c *Conn) unlist() {
	if c.listener != nil {
		c.listener.waiting--
		c.m.asked--
		c.listener = nil
	}
}

// over changes the state to TIMEWAIT and notifies the user.
func (c *Conn) over(now mono.Time) {
	c.notifyOver()
	c.linger(now)
}

// notifyOver notifies the user of the end, once.
func (c *Conn) notifyOver() {
	if !c.told {
		c.told = true
		c.m.Stats.Disconnected++
		c.event(Event{Kind: Disconnected})
	}
}

// linger goes to TIMEWAIT.
func (c *Conn) linger(now mono.Time) {
	c.state = timewait
	c.leaveQP()
	c.place = c.m.waiting.PushBack(c)
	c.m.start(c, now.Add(wait(c.ackTimeout, maxTimeoutCode)))
}

// refuse sends a REJ.
func (c *Conn) refuse(what uint8, r Reason, info, data []byte) {
	j := mad.CMREJ{CMIDs: c.ids(), Message: what, InfoLen: uint8(len(info)), Reason: uint16(r)}
	copy(j.Info[:], info)
	copy(j.PrivateData[:], data)
	c.mention(mad.AttrCMREJ, &j)
}

// Accept accepts a ConnectRequest.
func (c *Conn) Accept(now mono.Time, p *AcceptParams) error {
	if c.state != reqRcvd {
		return ErrState
	}
	if len(p.PrivateData) > MaxReplyData || p.AckDelay > 31 {
		return ErrInvalid
	}
	c.unlist()
	c.qpn = p.QPN
	c.serve, c.ask = min(p.ResponderResources, c.serve), min(p.InitiatorDepth, c.ask)
	c.peerRNRRetry = p.RNRRetry & 7
	r := mad.CMREP{CMIDs: c.ids(), QPN: uint32(p.QPN), StartingPSN: uint32(c.psn), ResponderResources: c.serve,
		InitiatorDepth: c.ask,
		AckDelay:       p.AckDelay, FlowControl: p.FlowControl, RNRRetry: c.peerRNRRetry, SRQ: p.SRQ, CAGUID: c.guid}
	if c.alternate {
		r.Failover = mad.CMFailoverUnsupported
	}
	copy(r.PrivateData[:], p.PrivateData)
	c.send(mad.AttrCMREP, &r)
	c.state = repSent
	c.again(now)
	return nil
}

// Establish confirms, after a Response, that this side is ready.
func (c *Conn) Establish(now mono.Time, data []byte) error {
	if c.state != repRcvd {
		return ErrState
	}
	if len(data) > MaxEstablishData {
		return ErrInvalid
	}
	r := mad.CMRTU{CMIDs: c.ids()}
	copy(r.PrivateData[:], data)
	c.send(mad.AttrCMRTU, &r)
	c.state = established
	c.m.Stats.Established++
	return nil
}

// Reject rejects a ConnectRequest or a Response, with a reason, additional information and the user's
// private data. The Conn has ended then.
func (c *Conn) Reject(now mono.Time, r Reason, info, data []byte) error {
	if len(info) > MaxRejectInformation || len(data) > MaxRejectData {
		return ErrInvalid
	}
	switch c.state {
	case reqRcvd:
		c.refuse(mad.CMOfREQ, r, info, data)
	case repRcvd:
		c.refuse(mad.CMOfREP, r, info, data)
	default:
		return ErrState
	}
	c.end()
	return nil
}

// Established reports whether both sides are ready.
func (c *Conn) Established() bool { return c.state == established }

// Notify reports, on the passive side, that a packet of the peer arrived before its RTU: the peer is
// ready.
func (c *Conn) Notify(now mono.Time) error {
	switch c.state {
	case repSent:
		c.ready(nil)
	case established:
	default:
		return ErrState
	}
	return nil
}

// ready makes the passive side's connection established.
func (c *Conn) ready(data []byte) {
	c.m.stop(c)
	c.state = established
	c.m.Stats.Established++
	c.event(Event{Kind: Established, PrivateData: data})
}

// Disconnect ends an established connection: Disconnected follows once the peer has replied or does
// not reply. It has no effect on a connection that is ending.
func (c *Conn) Disconnect(now mono.Time, data []byte) error {
	if len(data) > MaxDisconnectData {
		return ErrInvalid
	}
	switch c.state {
	case established:
		c.leave(now, data)
	case repSent:
		// A DREQ is valid only after the RTU; but the peer may use the connection already.
		c.refuse(mad.CMOther, ReasonConsumer, nil, nil)
		c.over(now)
	case dreqSent, timewait, dead:
	default:
		return ErrState
	}
	return nil
}

// leave sends a DREQ.
func (c *Conn) leave(now mono.Time, data []byte) {
	r := mad.CMDREQ{CMIDs: c.ids(), RemoteQPN: uint32(c.peerQPN)}
	copy(r.PrivateData[:], data)
	c.tid = c.m.newTID()
	c.send(mad.AttrCMDREQ, &r)
	c.state, c.tries = dreqSent, DefaultRetries
	c.again(now)
}

// disconnectPatience is the number of DREQs without a reply after which the user is notified that the
// connection is over. More DREQs follow, since the peer must be notified too.
const disconnectPatience = 4

// Close releases the connection in any state: the peer is notified as far as its state requires, and
// the handler gets no further events.
func (c *Conn) Close(now mono.Time) {
	if c.gone {
		return
	}
	c.gone, c.h = true, nil
	switch c.state {
	case reqSent:
		c.refuse(mad.CMOther, ReasonTimeout, guidInfo(c.guid), nil)
		c.end()
	case reqRcvd:
		c.refuse(mad.CMOfREQ, ReasonConsumer, nil, nil)
		c.end()
	case repRcvd:
		c.refuse(mad.CMOfREP, ReasonConsumer, nil, nil)
		c.end()
	case repSent:
		c.refuse(mad.CMOther, ReasonConsumer, nil, nil)
		c.linger(now)
	case established:
		c.leave(now, nil)
	}
}

// Load returns the number of connections in any state, and of those neither established nor over.
func (m *Manager) Load() (conns, half int) {
	for _, c := range m.conns {
		if c.state <= repRcvd {
			half++
		}
	}
	return len(m.conns), half
}

// guidInfo is the additional information of a REJ after a timeout: the sender.
func guidInfo(g ib.GUID) []byte { return binary.BigEndian.AppendUint64(nil, uint64(g)) }

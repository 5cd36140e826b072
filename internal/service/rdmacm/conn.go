// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"net/netip"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// Private data that a program may add to what the IP service puts before it.
const (
	maxRequestData = cm.MaxRequestData - cm.IPHeaderLen
	maxLookupData  = cm.MaxLookupData - cm.IPHeaderLen
)

// QKeyUDP is the Q_Key of datagram services, unless it is that of an IP link.
const QKeyUDP ib.QKey = 0x01234567

// ownQKey is the Q_Key that the identifier's queue pair is to have.
func (i *id) ownQKey() ib.QKey {
	if i.qkey != 0 {
		return i.qkey
	}
	return QKeyUDP
}

// service is what a port of the identifier's port space is to peers.
func (i *id) service(port uint16) cm.ServiceID { return cm.IPService(i.ps, port) }

// listen makes requests for the identifier's port its program's.
func (i *id) listen(backlog int32) Errno {
	h := i.hub
	if i.state == stateIdle {
		if err := i.bind(endpoint{addr: unspecified4}); err != OK {
			return err
		}
	}
	if i.state != stateAddrBound {
		return EINVAL
	}
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	i.state = stateListen
	if err := h.spaces[i.ps].conflict(i); err != OK {
		i.state = stateAddrBound
		return err
	}
	l, err := h.cm.Listen(&cm.ListenParams{ServiceID: i.service(i.src.port), Match: i.takes, Backlog: maxBacklog}, i.listened)
	if err != nil {
		i.state = stateAddrBound
		return errno(err)
	}
	i.listener, i.backlog = l, int(backlog)
	return OK
}

// takes reports whether a listener's address is the one that a request is for, and the request may be
// believed. Of the listeners on a port one at most has the address (space.conflict): a request is judged
// once, however many there are.
func (i *id) takes(r *cm.Request) bool {
	return r.IsIP && i.hears(r) && i.hub.plausible(r)
}

// hears reports whether a request is for the listener's address, as far as the request is right.
func (i *id) hears(r *cm.Request) bool {
	if !i.src.any() {
		return r.IP.Dst == i.src.addr && (i.addr == nil || i.addr.Function == r.Function)
	}
	// The unspecified address of IPv6 is that of IPv4 too, unless the program said
	// otherwise.
	return r.IP.Dst.Is4() == i.src.addr.Is4() || i.src.addr.Is6() && !i.afOnly
}

// plausible reports whether the addresses that a request states can be those of its two ends, for a
// program takes them for that. On an Ethernet port they are what its packets go by; on another the
// port must have the one that is said to be this side's, whichever others have it too: ports of different
// partitions or subnets may.
func (h *Hub) plausible(r *cm.Request) (ok bool) {
	src, dst := r.IP.Src, r.IP.Dst
	switch {
	case src.IsUnspecified() || src.IsMulticast() || src == broadcast4:
	case r.Path.Link == ib.LinkEthernet:
		ok = ib.GIDFromAddr(src) == r.Path.DGID && ib.GIDFromAddr(dst) == r.Path.SGID
	default:
		ok = h.net.Has(r.Function, dst)
	}
	if !ok {
		h.Stats.DropAddress++
	}
	return ok
}

var broadcast4 = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// listened takes the events of a listener.
func (i *id) listened(now mono.Time, e *cm.Event) {
	h := i.hub
	h.now = now
	refuse := func() {
		if e.Conn != nil {
			e.Conn.Reject(now, cm.ReasonNoResources, nil, nil)
			e.Conn.Close(now)
		}
		if e.Inquiry != nil {
			e.Inquiry.Reject(now, cm.LookupRejected, nil, nil)
		}
	}
	if e.Request == nil || (e.Kind == cm.LookupRequest) != i.datagram() || i.dead || i.removed {
		refuse()
		return
	}
	if i.backlog == 0 {
		h.Stats.DropBacklog++
		refuse()
		return
	}
	r := e.Request
	c := &id{hub: h, ps: i.ps, qpType: i.qpType, state: stateConnect, passive: true, conn: e.Conn, inquiry: e.Inquiry, tos: i.tos,
		ackTimeout: i.ackTimeout, ackTimeoutSet: i.ackTimeoutSet, afOnly: i.afOnly,
		src: endpoint{addr: r.IP.Dst, port: i.src.port, scope: i.src.scope}, dst: endpoint{addr: r.IP.Src, port: r.IP.SrcPort, scope: i.src.scope}}
	p := r.Path
	c.path = &p
	c.addr = &cm.Address{Function: r.Function, Link: p.Link, Src: r.IP.Dst, Dst: r.IP.Src, SGID: p.SGID, DGID: p.DGID, SGIDIndex: p.SGIDIndex, PKey: p.PKey}
	data := r.PrivateData[min(len(r.PrivateData), cm.IPHeaderLen):]
	ev := &event{kind: evConnectRequest, child: c}
	if i.datagram() {
		ev.ud = &udParam{private: data}
	} else {
		c.serves = r.InitiatorDepth > 0
		// What the peer serves is what this side may have under way.
		ev.conn = connParam{qpn: r.QPN, private: data, srq: r.SRQ, responderResources: r.InitiatorDepth, initiatorDepth: r.ResponderResources,
			flowControl: r.FlowControl, retryCount: r.RetryCount, rnrRetry: r.RNRRetry}
		e.Conn.SetHandler(c.connected)
	}
	i.backlog--
	i.requests++
	i.queue(ev)
}

// connect asks the peer for a connection, or for its queue pair.
func (i *id) connect(c *connParam) Errno {
	h := i.hub
	if !c.valid || i.state != stateRouteResolved {
		return EINVAL
	}
	hdr := cm.IPHeader{SrcPort: i.src.port, Src: i.src.addr, Dst: i.dst.addr}
	if i.datagram() {
		if len(c.private) > maxLookupData {
			return EINVAL
		}
		l, err := h.cm.Lookup(h.now, &cm.LookupParams{ServiceID: i.service(i.dst.port), Path: *i.path, PrivateData: append(hdr.Append(nil), c.private...)}, i.found)
		if err != nil {
			return errno(err)
		}
		i.lookup, i.state = l, stateConnect
		return OK
	}
	if len(c.private) > maxRequestData {
		return EINVAL
	}
	p := &cm.ConnectParams{ServiceID: i.service(i.dst.port), Path: *i.path, QPType: i.qpType, QPN: c.qpn, SRQ: c.srq, ResponderResources: c.responderResources,
		InitiatorDepth: c.initiatorDepth, FlowControl: c.flowControl, RetryCount: min(c.retryCount, 7), RNRRetry: min(c.rnrRetry, 7),
		PrivateData: append(hdr.Append(nil), c.private...)}
	conn, err := h.cm.Connect(h.now, p, i.connected)
	if err != nil {
		return errno(err)
	}
	i.conn, i.state, i.qpn, i.serves = conn, stateConnect, c.qpn, c.responderResources > 0
	return OK
}

// connected takes the events of a connection.
func (i *id) connected(now mono.Time, e *cm.Event) {
	h := i.hub
	h.now = now
	if i.dead || i.removed {
		return
	}
	ev := &event{conn: connParam{private: e.PrivateData}}
	switch e.Kind {
	case cm.Response:
		ev.kind = evConnectResponse
		if r := e.Reply; r != nil {
			ev.conn.qpn, ev.conn.srq, ev.conn.flowControl, ev.conn.rnrRetry = r.QPN, r.SRQ, r.FlowControl, r.RNRRetry
			ev.conn.responderResources, ev.conn.initiatorDepth = r.InitiatorDepth, r.ResponderResources
		}
	case cm.Established:
		ev.kind = evEstablished
	case cm.Rejected:
		ev.kind, ev.status = evRejected, int32(e.Reason)
		i.over()
	case cm.Unreachable:
		ev.kind, ev.status = evUnreachable, status(ETIMEDOUT)
		i.over()
	case cm.Disconnected:
		ev.kind = evDisconnected
		i.state = stateDisconnect
	case cm.TimewaitExit:
		ev.kind = evTimewaitExit
		i.over()
	default:
		return
	}
	if i.uid == 0 {
		h.Stats.DropUntaken++ // nobody could know whose it is
		return
	}
	i.queue(ev)
}

// over lets go of a connection at its end.
func (i *id) over() {
	i.state = stateDisconnect
	if i.conn != nil {
		i.conn.Close(i.hub.now)
		i.conn = nil
	}
}

// found takes the answer to a question for the peer's queue pair.
func (i *id) found(now mono.Time, e *cm.Event) {
	h := i.hub
	h.now = now
	if i.dead || i.removed {
		return
	}
	if i.lookup != nil {
		i.lookup.Close(now)
		i.lookup = nil
	}
	ev := &event{kind: evEstablished, ud: &udParam{private: e.PrivateData}}
	switch {
	case e.Kind == cm.LookupUnreachable:
		ev.kind, ev.status = evUnreachable, status(ETIMEDOUT)
	case e.Status != cm.LookupOK:
		ev.kind, ev.status = evUnreachable, int32(e.Status)
	default:
		ev.ud.qpn, ev.ud.qkey, ev.ud.path = e.QPN, e.QKey, i.path
		i.qkey = e.QKey
	}
	if ev.kind != evEstablished {
		i.state = stateRouteResolved
	}
	i.queue(ev)
}

// accept accepts a peer's request, or, where the peer has accepted this side's, tells
// it that the queue pair is ready.
func (i *id) accept(uid uint64, c *connParam) Errno {
	h := i.hub
	if i.state != stateConnect {
		return EINVAL
	}
	if !c.valid {
		if i.conn == nil || i.passive {
			return EINVAL
		}
		return errno(i.conn.Establish(h.now, nil))
	}
	switch {
	case i.inquiry != nil:
		if len(c.private) > cm.MaxLookupAnswerData {
			return EINVAL
		}
		if err := i.inquiry.Accept(h.now, c.qpn, i.ownQKey(), c.private); err != nil {
			return errno(err)
		}
		i.inquiry = nil
	case i.conn != nil && i.passive:
		p := &cm.AcceptParams{QPN: c.qpn, SRQ: c.srq, ResponderResources: c.responderResources, InitiatorDepth: c.initiatorDepth,
			FlowControl: c.flowControl, RNRRetry: min(c.rnrRetry, 7), PrivateData: c.private}
		if len(c.private) > cm.MaxReplyData {
			return EINVAL
		}
		if err := i.conn.Accept(h.now, p); err != nil {
			return errno(err)
		}
	default:
		return EINVAL
	}
	i.uid, i.qpn = uid, c.qpn
	return OK
}

// reasonVendor refuses what a vendor's option asks for.
const reasonVendor = 35

// reject refuses a peer's request, or its reply.
func (i *id) reject(reason uint8, data []byte) Errno {
	h := i.hub
	switch {
	case reason == 0:
		reason = uint8(cm.ReasonConsumer)
	case reason != uint8(cm.ReasonConsumer) && reason != reasonVendor:
		return EINVAL
	}
	switch {
	case i.inquiry != nil:
		if len(data) > cm.MaxLookupAnswerData {
			return EINVAL
		}
		err := i.inquiry.Reject(h.now, cm.LookupRejected, nil, data)
		i.inquiry = nil
		return errno(err)
	case i.conn != nil:
		if len(data) > cm.MaxRejectData {
			return EINVAL
		}
		return errno(i.conn.Reject(h.now, cm.Reason(reason), nil, data))
	}
	return EINVAL
}

// disconnect ends the connection.
func (i *id) disconnect() Errno {
	if i.conn == nil {
		if i.state == stateDisconnect && !i.datagram() {
			return OK // it is over already
		}
		return EINVAL
	}
	return errno(i.conn.Disconnect(i.hub.now, nil))
}

// eventCommEst is the asynchronous event of a queue pair that got a packet before the
// peer said that it was ready, as verbs number it (IBV_EVENT_COMM_EST).
const eventCommEst = 4

// notify takes what a program says of its queue pair: that it got the peer's first packet is
// as good as the RTU that may be lost. Nothing else means anything here.
func (i *id) notify(event uint32) Errno {
	switch {
	case i.conn == nil || event != eventCommEst:
		return EINVAL
	case i.conn.Established():
		return EISCONN
	}
	return errno(i.conn.Notify(i.hub.now))
}

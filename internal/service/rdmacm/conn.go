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
	l, err := h.cm.Listen(&cm.ListenParams{ServiceID: i.service(i.src.port), Match: i.accepts, Backlog: maxBacklog},
		i.listened)
	if err != nil {
		i.state = stateAddrBound
		return errno(err)
	}
	i.listener, i.backlog = l, int(backlog)
	return OK
}

// accepts reports whether a request is for the address of the listener and its addresses are
// plausible. At most one of the listeners on a port has the address (space.conflict), so that a
// request is validated once for any number of listeners.
func (i *id) accepts(r *cm.Request) bool {
	return r.IsIP && i.matches(r) && i.hub.plausible(r)
}

// matches reports whether the destination of a request is the listener's address.
func (i *id) matches(r *cm.Request) bool {
	if !i.src.any() {
		return r.IP.Dst == i.src.addr && (i.addr == nil || i.addr.Function == r.Function)
	}
	// The unspecified address of IPv6 includes IPv4, unless the program set the option against it.
	return r.IP.Dst.Is4() == i.src.addr.Is4() || i.src.addr.Is6() && !i.afOnly
}

// plausible reports whether the addresses in a request can be those of its two ends, since programs
// use them as such. On an Ethernet port they are the addresses of its packets; on another the port
// must have the stated destination address. Other ports may have it too: those of different partitions
// or subnets.
func (h *Hub) plausible(r *cm.Request) (ok bool) {
	src, dst := r.IP.Src, r.IP.Dst
	switch {
	case src.IsUnspecified() || src.IsMulticast() || src == broadcast4:
	case r.Path.Link == ib.LinkEthernet:
		ok = ib.GIDFromAddr(src) == r.Path.DGID && ib.GIDFromAddr(dst) == r.Path.SGID
	default:
		ok = h.net.Addresses.Has(r.Function, dst)
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
		// The peer sends the request again. By then the program may have read other requests.
		if e.Conn != nil {
			e.Conn.Drop()
		}
		if e.Inquiry != nil {
			e.Inquiry.Drop()
		}
		return
	}
	r := e.Request
	c := &id{hub: h, ps: i.ps, qpType: i.qpType, state: stateConnect, passive: true, conn: e.Conn, inquiry: e.Inquiry,
		tos:        i.tos,
		ackTimeout: i.ackTimeout, ackTimeoutSet: i.ackTimeoutSet, afOnly: i.afOnly,
		src: endpoint{addr: r.IP.Dst, port: i.src.port, scope: i.src.scope}, dst: endpoint{addr: r.IP.Src,
			port: r.IP.SrcPort, scope: i.src.scope}}
	p := r.Path
	c.path = &p
	c.addr = &cm.Address{Function: r.Function, Link: p.Link, Src: r.IP.Dst, Dst: r.IP.Src, SGID: p.SGID, DGID: p.DGID,
		SGIDIndex: p.SGIDIndex, PKey: p.PKey}
	data := r.PrivateData[min(len(r.PrivateData), cm.IPHeaderLen):]
	ev := &event{kind: evConnectRequest, child: c}
	if i.datagram() {
		ev.ud = &udParam{private: data}
	} else {
		c.serves = r.InitiatorDepth > 0
		// What the peer serves is what this side may have under way.
		ev.conn = connParam{qpn: r.QPN, private: data, srq: r.SRQ, responderResources: r.InitiatorDepth,
			initiatorDepth: r.ResponderResources,
			flowControl:    r.FlowControl, retryCount: r.RetryCount, rnrRetry: r.RNRRetry}
		e.Conn.SetHandler(c.connected)
	}
	i.backlog--
	i.requests++
	i.queue(ev)
}

// connect requests a connection from the peer, or looks up its queue pair.
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
		l, err := h.cm.Lookup(h.now, &cm.LookupParams{ServiceID: i.service(i.dst.port), Path: *i.path,
			PrivateData: append(hdr.Append(nil), c.private...)}, i.found)
		if err != nil {
			return errno(err)
		}
		i.lookup, i.state = l, stateConnect
		return OK
	}
	if len(c.private) > maxRequestData {
		return EINVAL
	}
	p := &cm.ConnectParams{ServiceID: i.service(i.dst.port), Path: *i.path, QPType: i.qpType, QPN: c.qpn, SRQ: c.srq,
		ResponderResources: c.responderResources,
		InitiatorDepth:     c.initiatorDepth, FlowControl: c.flowControl, RetryCount: min(c.retryCount,
			7), RNRRetry: min(c.rnrRetry, 7),
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
		h.Stats.DropUntaken++ // its owner cannot be determined
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

// accept accepts a peer's request or, if the peer has accepted this side's, confirms that the queue
// pair is ready.
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
		p := &cm.AcceptParams{QPN: c.qpn, SRQ: c.srq, ResponderResources: c.responderResources,
			InitiatorDepth: c.initiatorDepth,
			FlowControl:    c.flowControl, RNRRetry: min(c.rnrRetry, 7), PrivateData: c.private}
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

// reasonVendor rejects a vendor's option.
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

// eventCommEst is the asynchronous event of a queue pair that received a packet before the RTU, by its
// number in verbs (IBV_EVENT_COMM_EST).
const eventCommEst = 4

// notify handles a program's event of its queue pair: the peer's first packet replaces a RTU that may
// be lost. Other events have no meaning here.
func (i *id) notify(event uint32) Errno {
	switch {
	case i.conn == nil || event != eventCommEst:
		return EINVAL
	case i.conn.Established():
		return EISCONN
	}
	return errno(i.conn.Notify(i.hub.now))
}

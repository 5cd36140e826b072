// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"encoding/binary"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Handle handles a datagram that arrived at queue pair 1 of a function's port. The caller has checked
// its keys; on an Ethernet port SGID and DGID are its addresses, and Global is set.
func (m *Manager) Handle(now mono.Time, function uint16, d *mad.Datagram) {
	m.handle(now, function, d)
	m.deliver(now)
}

func (m *Manager) handle(now mono.Time, function uint16, d *mad.Datagram) {
	m.Stats.Received++
	var r mad.CM
	if d.Long != nil {
		m.Stats.DropShort++
		return
	}
	r.Parse(d.Data[:])
	if r.BaseVersion != mad.BaseVersion || r.MgmtClass != mad.ClassCM || r.ClassVersion != mad.ClassVersionCM {
		m.Stats.DropClass++
		return
	}
	port, ok := m.ports.Port(function)
	if !ok {
		m.Stats.DropPort++
		return
	}
	in := &arrival{m: m, now: now, function: function, d: d, tid: r.TransactionID, data: r.Data[:], port: &port}
	switch {
	case r.Method == mad.MethodGet || r.Method == mad.MethodSet:
		in.answerClass(&r)
	case r.Method != mad.MethodSend || !m.Stats.count(r.AttributeID):
		m.Stats.DropShort++
	default:
		in.message(r.AttributeID)
	}
}

func (in *arrival) message(a mad.AttributeID) {
	switch a {
	case mad.AttrCMREQ:
		in.req()
	case mad.AttrCMMRA:
		in.mra()
	case mad.AttrCMREJ:
		in.rej()
	case mad.AttrCMREP:
		in.rep()
	case mad.AttrCMRTU:
		in.rtu()
	case mad.AttrCMDREQ:
		in.dreq()
	case mad.AttrCMDREP:
		in.drep()
	case mad.AttrCMSIDRReq:
		in.inquiry()
	case mad.AttrCMSIDRRep:
		in.answer()
	case mad.AttrCMLAP:
		in.lap()
	case mad.AttrCMAPR:
		in.m.Stats.DropState++ // alternate paths are not requested
	}
}

// answerClass answers a question for what the class can do (IBA volume 1, 13.4.8.1).
func (in *arrival) answerClass(r *mad.CM) {
	out := *r
	out.Method, out.Status = r.Method.Response(), mad.StatusBadMethodAttr
	if r.Method == mad.MethodGet && r.AttributeID == mad.AttrClassPortInfo {
		i := mad.ClassPortInfo{BaseVersion: mad.BaseVersion, ClassVersion: mad.ClassVersionCM,
			RespTimeValue: DefaultTimeout}
		out.Status, out.Data = mad.StatusOK, [mad.CMDataLen]byte{}
		i.Append(out.Data[mad.CMDataLen-192 : mad.CMDataLen-192])
	}
	d := in.reply()
	out.Append(d.Data[:0])
	in.m.send(in.function, &d)
}

// find returns the connection that a message names by this side's identifier, where it comes from
// the peer.
func (in *arrival) find(ids mad.CMIDs) *Conn {
	c := in.m.conns[ids.RemoteCommID]
	switch {
	case c == nil || c.known && c.remote.id != ids.LocalCommID:
		return nil
	case !in.from(c):
		in.m.Stats.DropForeign++
		return nil
	}
	return c
}

// known is find where the message must name the peer too.
func (in *arrival) known(ids mad.CMIDs) *Conn {
	if c := in.find(ids); c != nil && c.known {
		return c
	}
	return nil
}

// from reports whether a message came from a connection's peer, as far as the message can prove it.
func (in *arrival) from(c *Conn) bool {
	return c.function == in.function && (in.port.Link != ib.LinkEthernet || in.d.SGID == c.to.DGID)
}

// gid is the address that a message came from, as far as it is known to be no other's.
func (in *arrival) gid() (g ib.GID) {
	if in.port.Link == ib.LinkEthernet {
		g = in.d.SGID
	}
	return g
}

// req handles a REQ.
func (in *arrival) req() {
	var r mad.CMREQ
	r.Parse(in.data)
	if !in.validateSource(&r) {
		return
	}
	m, guid, gid := in.m, r.CAGUID, in.gid()
	if c := m.byRemote[remoteID{guid, gid, r.LocalCommID}]; c != nil {
		in.reqAgain(c, &r)
		return
	}
	if old := m.byQP[remoteQP{guid, gid, ib.QPN(r.QPN)}]; old != nil {
		in.stale(old)
		m.Stats.RejectStale++
		in.rejectREQ(&r, ReasonStale, nil)
		return
	}
	q, why, info := in.request(&r)
	if why != 0 {
		in.rejectREQ(&r, why, info)
		return
	}
	l := m.listener(q)
	if l == nil {
		m.Stats.RejectService++
		in.rejectREQ(&r, ReasonInvalidServiceID, nil)
		return
	}
	if l.waiting >= l.backlog {
		m.Stats.DropBacklog++
		return
	}
	if !l.fair(m.asked, m.max.Conns) {
		m.Stats.DropShare++
		return
	}
	c := m.newConn(in.function)
	if c == nil {
		m.Stats.RejectFull++
		in.rejectREQ(&r, ReasonNoResources, nil)
		return
	}
	c.h, c.listener = l.h, l
	l.waiting++
	m.asked++
	c.state, c.path, c.qpType, c.guid = reqRcvd, q.Path, q.QPType, in.port.CAGUID
	c.tid, c.to = in.tid, in.reply()
	c.remote, c.known = remoteID{guid, gid, r.LocalCommID}, true
	c.peerQPN, c.peerPSN = q.QPN, ib.PSN(r.StartingPSN)
	m.byRemote[c.remote] = c
	m.byQP[remoteQP{guid, gid, q.QPN}] = c
	c.serve, c.ask = q.InitiatorDepth, q.ResponderResources
	c.patience, c.tries = r.LocalResponseTimeout, r.MaxCMRetries
	c.ackTimeout, c.retryCount = r.Primary.AckTimeout, r.RetryCount
	c.rnrRetry, c.peerRNRRetry = r.RNRRetry, r.RNRRetry
	c.alternate = r.Alternate.RemoteLID != 0 || !r.Alternate.RemoteGID.IsZero()
	m.Stats.Requests++
	c.event(Event{Kind: ConnectRequest, Request: q})
}

// validateSource reports whether the REQ states the address that it came from, and on an InfiniBand
// port the LID and the partition (IBA volume 1, 12.7): the connection goes to the stated address, and
// the user identifies the peer by it.
func (in *arrival) validateSource(r *mad.CMREQ) bool {
	p, d, s := &r.Primary, in.d, &in.m.Stats
	if in.port.Link == ib.LinkEthernet {
		if p.LocalGID != d.SGID {
			s.DropREQGID++
		}
		return p.LocalGID == d.SGID
	}
	if !p.SubnetLocal && d.Global && p.LocalLID == ib.LIDPermissive {
		// The ends of a path across routers do not have each other's LIDs: those of the last hop are
		// used.
		p.LocalLID, p.RemoteLID = d.SLID, d.DLID
	}
	switch {
	case !d.SLID.IsUnicast() || !d.SLID.Owns(in.port.LMC, p.LocalLID):
		s.DropREQLID++
	case d.Global && p.LocalGID != d.SGID:
		s.DropREQGID++
	case (d.PKey^ib.PKey(r.PKey))&0x7fff != 0:
		s.DropREQPKey++
	default:
		return true
	}
	return false
}

// reqAgain handles a REQ that came before.
func (in *arrival) reqAgain(c *Conn, r *mad.CMREQ) {
	m := in.m
	m.Stats.Duplicates++
	switch {
	case !in.from(c):
		m.Stats.DropForeign++
	case c.active || c.peerQPN != ib.QPN(r.QPN):
		// The peer has given an identifier twice.
		in.rejectREQ(r, ReasonDuplicateCommID, nil)
	case c.state == reqRcvd:
		// The user takes its time.
		c.mention(mad.AttrCMMRA, &mad.CMMRA{CMIDs: c.ids(), Message: mad.CMOfREQ, ServiceTimeout: maxServiceCode})
	case c.state == repSent:
		m.Stats.Repeated++
		m.send(c.function, &c.to)
	case c.state == timewait || c.state == dreqSent:
		m.Stats.RejectStale++
		in.rejectREQ(r, ReasonStale, nil)
	}
}

// request returns the request of a REQ; or the reason to reject it, with additional information for
// the peer.
func (in *arrival) request(r *mad.CMREQ) (q *Request, why Reason, info []byte) {
	p, port := &r.Primary, in.port
	q = &Request{ServiceID: ServiceID(r.ServiceID), Function: in.function,
		PrivateData: slices.Clone(r.PrivateData[:]), QPN: ib.QPN(r.QPN), SRQ: r.SRQ,
		FlowControl: r.FlowControl, ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth, RetryCount: r.RetryCount,
		RNRRetry: r.RNRRetry, CAGUID: r.CAGUID}
	switch r.Transport {
	case mad.CMTransportRC:
		q.QPType = ib.RC
	case mad.CMTransportUC:
		q.QPType = ib.UC
	default:
		in.m.Stats.RejectTransport++
		return nil, ReasonInvalidTransport, nil
	}
	keys := []ib.PKey{ib.PKey(r.PKey)}
	if port.Link != ib.LinkEthernet {
		keys = append(keys, in.d.PKey) // a limited member may state the full key
	}
	gid, pkey := slices.Index(port.GIDs, p.RemoteGID), pkeyIndex(port.PKeys, keys...)
	if p.RemoteGID.IsZero() || gid < 0 || gid > 0xff || pkey < 0 {
		in.m.Stats.RejectGID++
		good := in.d.DGID
		if !in.d.Global && len(port.GIDs) > 0 {
			good = port.GIDs[0]
		}
		return nil, ReasonInvalidGID, good[:]
	}
	if most := port.pathMTU(gid); !r.PathMTU.Valid() || r.PathMTU > most {
		in.m.Stats.RejectMTU++
		return nil, ReasonInvalidMTU, []byte{uint8(most)}
	}
	q.Path = Path{Function: in.function, Link: port.Link, SGID: p.RemoteGID, DGID: p.LocalGID, SGIDIndex: uint8(gid),
		SLID: p.RemoteLID, DLID: p.LocalLID,
		Global: port.Link == ib.LinkEthernet ||
			!p.SubnetLocal, PKey: port.PKeys[pkey], PKeyIndex: uint16(pkey), FlowLabel: p.FlowLabel, TClass: p.TClass,
		HopLimit: p.HopLimit, SL: p.SL, MTU: r.PathMTU, Rate: p.Rate, LifeTime: max(p.AckTimeout, 1) - 1}
	q.header()
	return q, 0, nil
}

// rejectREQ refuses a REQ of which no connection becomes.
func (in *arrival) rejectREQ(r *mad.CMREQ, why Reason, info []byte) {
	j := mad.CMREJ{CMIDs: mad.CMIDs{RemoteCommID: r.LocalCommID}, Message: mad.CMOfREQ, InfoLen: uint8(len(info)),
		Reason: uint16(why)}
	copy(j.Info[:], info)
	in.respond(mad.AttrCMREJ, &j)
}

// stale ends a connection that its peer no longer has: the peer's queue pair belongs to another
// connection (IBA volume 1, 12.9.8.3.1). The message states the peer, and only the port it came from
// is proved: a message from another port than the peer's ends nothing.
func (in *arrival) stale(c *Conn) {
	if in.port.Link != ib.LinkEthernet && !in.d.SLID.Owns(in.port.LMC, c.to.DLID) {
		in.m.Stats.DropForeign++
		return
	}
	switch c.state {
	case established:
		c.leave(in.now, nil)
	case reqRcvd, repSent, repRcvd:
		in.m.Stats.Rejected++
		c.event(Event{Kind: Rejected, Reason: ReasonStale})
		c.end()
	}
}

// rep handles a REP.
func (in *arrival) rep() {
	var r mad.CMREP
	r.Parse(in.data)
	m, c := in.m, in.find(r.CMIDs)
	if c == nil || !c.active || c.state == timewait {
		// The REJ ends the wait for a RTU early.
		m.Stats.DropUnknown++
		m.Stats.RejectCommID++
		in.respond(mad.AttrCMREJ, &mad.CMREJ{CMIDs: mad.CMIDs{LocalCommID: r.RemoteCommID,
			RemoteCommID: r.LocalCommID}, Message: mad.CMOfREP,
			Reason: uint16(ReasonInvalidCommID)})
		return
	}
	switch c.state {
	case reqSent:
		in.accepted(c, &r)
	case repRcvd:
		m.Stats.Duplicates++
		c.mention(mad.AttrCMMRA, &mad.CMMRA{CMIDs: c.ids(), Message: mad.CMOfREP, ServiceTimeout: maxServiceCode})
	case established:
		m.Stats.Duplicates++
		m.Stats.Repeated++
		m.send(c.function, &c.to) // the RTU
	default:
		m.Stats.DropState++
	}
}

// accepted handles the first REP.
func (in *arrival) accepted(c *Conn, r *mad.CMREP) {
	m := in.m
	k, qp := remoteID{r.CAGUID, in.gid(), r.LocalCommID}, remoteQP{r.CAGUID, in.gid(), ib.QPN(r.QPN)}
	old := m.byQP[qp]
	if m.byRemote[k] != nil || old != nil {
		m.Stats.RejectStale++
		c.remote.id = r.LocalCommID
		c.refuse(mad.CMOfREP, ReasonStale, nil, nil)
		if old != nil {
			in.stale(old)
		}
		m.Stats.Rejected++
		c.event(Event{Kind: Rejected, Reason: ReasonStale})
		c.end()
		return
	}
	m.stop(c)
	c.remote, c.known, c.peerQPN, c.peerPSN = k, true, qp.qpn, ib.PSN(r.StartingPSN)
	m.byRemote[k], m.byQP[qp] = c, c
	c.serve, c.ask = min(c.serve, r.InitiatorDepth), min(c.ask, r.ResponderResources)
	c.rnrRetry, c.ackTimeout = r.RNRRetry, ackTimeout(r.AckDelay, c.path.LifeTime)
	c.tid, c.state = in.tid, repRcvd
	c.event(Event{Kind: Response, PrivateData: slices.Clone(r.PrivateData[:]), Reply: &Reply{QPN: qp.qpn, SRQ: r.SRQ,
		FlowControl:        r.FlowControl,
		ResponderResources: r.ResponderResources, InitiatorDepth: r.InitiatorDepth, RNRRetry: r.RNRRetry, AckDelay: r.AckDelay, CAGUID: r.CAGUID}})
}

// rtu handles a RTU.
func (in *arrival) rtu() {
	var r mad.CMRTU
	r.Parse(in.data)
	switch c := in.known(r.CMIDs); {
	case c == nil:
		in.m.Stats.DropUnknown++
	case c.state == repSent:
		c.ready(slices.Clone(r.PrivateData[:]))
	case c.state == established && !c.active:
		in.m.Stats.Duplicates++
	default:
		in.m.Stats.DropState++
	}
}

// mra handles a MRA: the peer's user takes its time.
func (in *arrival) mra() {
	var r mad.CMMRA
	r.Parse(in.data)
	c := in.find(r.CMIDs)
	switch {
	case c == nil:
		in.m.Stats.DropUnknown++
	case c.state == reqSent && r.Message == mad.CMOfREQ, c.state == repSent && r.Message == mad.CMOfREP:
		in.m.start(c, in.now.Add(wait(r.ServiceTimeout, maxServiceCode)+wait(c.path.LifeTime, maxTimeoutCode)))
	default:
		in.m.Stats.DropState++
	}
}

// rejected returns the connection of a REJ. The sender of a REJ after a timeout may not have this
// side's identifier, and states its own (IBA volume 1, 12.6.7.2, code 4).
func (in *arrival) rejected(r *mad.CMREJ) *Conn {
	if r.RemoteCommID == 0 && Reason(r.Reason) == ReasonTimeout && r.InfoLen >= 8 {
		c := in.m.byRemote[remoteID{ib.GUID(binary.BigEndian.Uint64(r.Info[:])), in.gid(), r.LocalCommID}]
		if c != nil && !in.from(c) {
			in.m.Stats.DropForeign++
			return nil
		}
		return c
	}
	c := in.m.conns[r.RemoteCommID]
	switch {
	case c == nil:
	case !in.from(c):
		in.m.Stats.DropForeign++
	case !c.known || c.remote.id == r.LocalCommID:
		return c
	}
	return nil
}

// rej handles a REJ.
func (in *arrival) rej() {
	var r mad.CMREJ
	r.Parse(in.data)
	m, c := in.m, in.rejected(&r)
	if c == nil {
		m.Stats.DropUnknown++
		return
	}
	switch c.state {
	case reqSent, reqRcvd, repSent, repRcvd:
		m.Stats.Rejected++
		c.event(Event{Kind: Rejected, Reason: Reason(r.Reason),
			Info:        slices.Clone(r.Info[:min(int(r.InfoLen), len(r.Info))]),
			PrivateData: slices.Clone(r.PrivateData[:])})
		c.end()
	case established, dreqSent:
		m.Stats.Rejected++
		c.over(in.now)
	default:
		m.Stats.DropState++
	}
}

// dreq handles a DREQ.
func (in *arrival) dreq() {
	var r mad.CMDREQ
	r.Parse(in.data)
	c := in.m.conns[r.RemoteCommID]
	if c == nil || c.known && c.remote.id != r.LocalCommID {
		// It is over, and this side has forgotten it already.
		in.m.Stats.DropUnknown++
		in.respond(mad.AttrCMDREP, &mad.CMDREP{CMIDs: mad.CMIDs{LocalCommID: r.RemoteCommID,
			RemoteCommID: r.LocalCommID}})
		return
	}
	if !c.known || !in.from(c) || ib.QPN(r.RemoteQPN) != c.qpn {
		in.m.Stats.DropForeign++
		return
	}
	switch c.state {
	case established, repSent, repRcvd, dreqSent:
		c.over(in.now)
	case timewait:
		in.m.Stats.Duplicates++
	default:
		in.m.Stats.DropState++
		return
	}
	c.tid = in.tid
	c.mention(mad.AttrCMDREP, &mad.CMDREP{CMIDs: c.ids()})
}

// drep handles a DREP.
func (in *arrival) drep() {
	var r mad.CMDREP
	r.Parse(in.data)
	switch c := in.known(r.CMIDs); {
	case c == nil:
		in.m.Stats.DropUnknown++
	case c.state == dreqSent:
		c.over(in.now)
	default:
		in.m.Stats.DropState++
	}
}

// lap handles a LAP: there are no alternate paths.
func (in *arrival) lap() {
	var r mad.CMLAP
	r.Parse(in.data)
	c := in.known(r.CMIDs)
	if c == nil || c.state != established {
		in.m.Stats.DropUnknown++
		return
	}
	in.respond(mad.AttrCMAPR, &mad.CMAPR{CMIDs: c.ids(), Status: mad.CMAPUnsupported})
}

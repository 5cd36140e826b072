// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// service is a ServiceRecord with the end of its lease.
type service struct {
	mad.ServiceRecord
	forever bool
	end     mono.Time
}

// register creates or renews a service (IBA volume 1, 15.2.5.14).
func (a *SA) register(now mono.Time, d *mad.Datagram) {
	const need = mad.CompServiceID | mad.CompServiceGID | mad.CompServicePKey
	var r mad.ServiceRecord
	r.Parse(a.req.Data[:]) // long enough
	if a.req.ComponentMask&need != need {
		a.refuse(d, mad.StatusSAInsufficient)
		return
	}
	at := a.byGID(r.ServiceGID)
	switch {
	case at.IsNone():
		a.refuse(d, mad.StatusSAInvalidGID)
		return
	case at != a.requester && !a.trusted(), r.PKey != 0 && !inPartition(a.net.Port(at), r.PKey):
		a.refuse(d, mad.StatusSARequest)
		return
	}
	if a.req.ComponentMask&mad.CompServiceLease == 0 {
		r.Lease = mad.LeaseForever
	}
	s := a.service(&r)
	switch {
	case s != nil && s.Key != r.Key:
		a.refuse(d, mad.StatusSARequest)
		return
	case s == nil && len(a.services) >= a.cfg.Limits.Services:
		a.refuse(d, mad.StatusSANoResources)
		return
	case s == nil:
		s = &service{}
		a.services = append(a.services, s)
	}
	s.ServiceRecord = r
	s.forever = r.Lease == mad.LeaseForever
	s.end = now.Add(time.Duration(r.Lease) * time.Second)
	a.owner.Kept()
	a.reply(d, mad.StatusOK, r.Append(nil))
}

// service returns the service that r names by ID, GID and partition.
func (a *SA) service(r *mad.ServiceRecord) *service {
	for _, s := range a.services {
		if s.ServiceID == r.ServiceID && s.ServiceGID == r.ServiceGID && s.PKey == r.PKey {
			return s
		}
	}
	return nil
}

func (a *SA) unregister(d *mad.Datagram) {
	var r mad.ServiceRecord
	r.Parse(a.req.Data[:])
	s := a.service(&r)
	switch {
	case s == nil:
		a.refuse(d, mad.StatusSANoRecords)
		return
	case a.byGID(s.ServiceGID) != a.requester && !a.trusted(), s.Key != r.Key:
		a.refuse(d, mad.StatusSARequest)
		return
	}
	a.services = slices.DeleteFunc(a.services, func(o *service) bool { return o == s })
	a.owner.Kept()
	a.reply(d, mad.StatusOK, s.Append(nil))
}

// servicesTo adds the ServiceRecords that the partitions of the requester allow, without their keys.
func (a *SA) servicesTo(t *table) {
	for _, s := range a.services {
		if s.PKey != 0 && !a.trusted() && !inPartition(a.net.Port(a.requester), s.PKey) {
			continue
		}
		r := s.ServiceRecord
		if !a.trusted() {
			r.Key = [16]byte{}
		}
		t.add(r.Append(nil))
	}
}

// expire removes services after the end of their lease.
func (a *SA) expire(now mono.Time) {
	n := len(a.services)
	a.services = slices.DeleteFunc(a.services, func(s *service) bool { return !s.forever && s.end.Due(now) })
	if len(a.services) != n {
		a.owner.Kept()
	}
}

// subscription is an InformInfo with the address of its subscriber.
type subscription struct {
	GID  ib.GID
	LID  ib.LID
	PKey ib.PKey
	mad.InformInfo
}

// subscribe begins or ends a subscription (IBA volume 1, 13.4.8.3).
func (a *SA) subscribe(d *mad.Datagram) {
	var f mad.InformInfo
	f.Parse(a.req.Data[:])
	if f.Subscribe > 1 || f.IsGeneric > 1 || f.GID.IsZero() && f.LIDBegin == 0 {
		a.refuse(d, mad.StatusSARequest)
		return
	}
	if f.QPN == 0 || f.Subscribe == 1 {
		f.QPN = d.SrcQPN
	}
	s := &subscription{GID: a.net.GID(a.requester), LID: d.SLID, PKey: d.PKey, InformInfo: f}
	s.Subscribe = 1
	i := slices.IndexFunc(a.subs, func(o *subscription) bool {
		return o.GID == s.GID && o.InformInfo == s.InformInfo
	})
	switch {
	case f.Subscribe == 1 && i >= 0:
		a.subs[i] = s
	case f.Subscribe == 1 && len(a.subs) >= a.cfg.Limits.Subscriptions:
		a.refuse(d, mad.StatusSANoResources)
		return
	case f.Subscribe == 1:
		a.subs = append(a.subs, s)
	case i < 0:
		a.refuse(d, mad.StatusSARequest)
		return
	default:
		a.subs = slices.Delete(a.subs, i, i+1)
	}
	a.owner.Kept()
	a.reply(d, mad.StatusOK, f.Append(nil))
}

func (a *SA) subscriptionsTo(t *table) {
	for i, s := range a.subs {
		if !a.trusted() && a.byGID(s.GID) != a.requester {
			continue
		}
		r := mad.InformInfoRecord{SubscriberGID: s.GID, Enum: uint16(i), InformInfo: s.InformInfo}
		t.add(r.Append(nil))
	}
}

// report is a notice on its way to a subscriber.
type report struct {
	tid   uint64
	to    *subscription
	rec   []byte
	due   mono.Time
	tries int
}

// Notify reports a notice to each port that subscribed to it: traps that the manager received, and its own.
// issuer is the GID of the port that issued it.
func (a *SA) Notify(now mono.Time, n mad.Notice, issuer ib.GID) {
	if !a.ready {
		return
	}
	r := mad.NoticeRecord{Notice: n, IssuerGID: issuer}
	for _, s := range a.subs {
		if !s.Covers(&n, issuer) || !a.mayReport(s, &n) {
			continue
		}
		if len(a.reports) >= a.cfg.Limits.Reports {
			a.Counters.ReportsLost++
			continue
		}
		a.tid++
		a.reports = append(a.reports, &report{tid: a.tid, to: s, rec: r.Append(nil), due: now})
	}
}

// mayReport reports whether a notice may be reported to a subscriber: its subject is a port with which it shares a
// partition, or a group of one of its partitions.
func (a *SA) mayReport(s *subscription, n *mad.Notice) bool {
	to := a.byGID(s.GID)
	if to.IsNone() {
		return false
	}
	switch n.TrapNumber {
	case mad.TrapGIDInService:
		_, ok := a.shares(to, a.byGID(n.GID()), 0)
		return ok || to == a.byGID(n.GID())
	case mad.TrapGroupCreated, mad.TrapGroupDeleted:
		g := a.groups[n.GID()]
		return g == nil || inPartition(a.net.Port(to), g.PKey)
	}
	return true
}

// nextReport writes the next report that is due to d.
func (a *SA) nextReport(now mono.Time, d *mad.Datagram) bool {
	for i := 0; i < len(a.reports); i++ {
		r := a.reports[i]
		if !r.due.Due(now) {
			continue
		}
		if r.tries > a.cfg.ReportRetries {
			a.Counters.ReportsLost++
			a.reports = slices.Delete(a.reports, i, i+1)
			i--
			continue
		}
		r.tries++
		r.due = now.Add(a.cfg.ReportTimeout)
		a.Counters.Reports++
		*d = mad.Datagram{SLID: a.selfLID(), DLID: r.to.LID, SrcQPN: ib.QPNGSI, DstQPN: r.to.QPN, QKey: ib.GSIQKey,
			PKey: r.to.PKey}
		m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSA,
			ClassVersion: mad.ClassVersionSA,
			Method:       mad.MethodReport, TransactionID: r.tid, AttributeID: mad.AttrNotice}}}
		copy(m.Data[:], r.rec)
		m.Append(d.Data[:0])
		return true
	}
	return false
}

// reported handles the answer to a report.
func (a *SA) reported(tid uint64) {
	a.reports = slices.DeleteFunc(a.reports, func(r *report) bool { return r.tid == tid })
}

// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"reflect"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/join"
	"weft/internal/mgmt/member/registry"
	"weft/internal/proto/problem"
)

// worker does what is due: the renewal of the certificate, the report, and what voters do for all. It belongs to one
// goroutine.
type worker struct {
	m      *Membership
	spread float64   // of the renewal, so that members do not renew together
	failed time.Time // the last renewal that failed
	// failedStale reports whether the failed renewal was tried because the roster had another certificate of this node.
	failedStale bool
	reported    member.Report
	at          time.Time // of reported
	seen        member.Sightings
	clocks      member.Clocks
	looked      time.Time // the last upkeep
	changed     time.Time // that a change was first seen which is later than the last upkeep; zero: none was
	reached     time.Time // that the store last took a report, or it was first missed
	probed      time.Time
	compared    time.Time // that clocks were compared last
	led         bool      // this node was the first of the voters from its last look on: no report has waited for it
}

// Rounds begin some at once, and then once in roundEvery: any member wakes all voters by its reports.
const (
	roundBurst = 4
	roundEvery = time.Second
)

// paced calls round each workEvery, and after each value of poke, until ctx ends. The values that come before a round
// begins are one.
func paced(ctx context.Context, poke <-chan struct{}, round func()) {
	tick := time.NewTicker(workEvery)
	defer tick.Stop()
	var pace member.Bucket
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-poke:
		}
		if wait := pace.Wait(time.Now(), roundBurst, roundEvery); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		pace.Take(time.Now(), roundBurst, roundEvery)
		select {
		case <-poke:
		default:
		}
		round()
	}
}

// round does all of it once.
func (w *worker) round(ctx context.Context) {
	w.renew(ctx)
	w.m.answerHosts()
	r, err := w.m.open()
	if err == nil {
		err = w.report(ctx, r)
	}
	w.probe(err)
	if err != nil {
		return // follow reports it
	}
	if now := w.m.cfg.Now(); w.m.voter() && w.due(now) {
		w.m.due.Store(false)
		w.looked, w.changed = now, time.Time{}
		w.upkeep(ctx, r)
	}
}

// due reports whether a voter is to look at all members now.
func (w *worker) due(now time.Time) bool {
	first := w.first()
	w.led = w.led && first
	if w.changed.IsZero() && w.m.due.Load() {
		w.changed = now
	}
	switch {
	case now.Sub(w.looked) >= upkeepEvery:
		return true
	case w.changed.IsZero():
		return false
	}
	return first || now.Sub(w.changed) >= w.later()
}

// first is Config.First.
func (w *worker) first() bool { return w.m.cfg.First == nil || w.m.cfg.First() }

// later is how long after a change this node looks at all members where it is not the first.
func (w *worker) later() time.Duration {
	return upkeepLater + time.Duration(w.spread*float64(upkeepLater))
}

// Times of probe.
const (
	probeAfter = 5 * time.Second
	probeEvery = 15 * time.Second
)

// probe finds out whether this node is still a member when it has been without the store for a while: a removed one
// gets no answer from the store, and no roster with its removal. missing is why the store cannot be used; nil: it can.
func (w *worker) probe(missing error) {
	m := w.m
	now := m.cfg.Now()
	if missing == nil || w.reached.IsZero() {
		w.reached = now
		return
	}
	if now.Sub(w.reached) < probeAfter || now.Sub(w.probed) < probeEvery {
		return
	}
	w.probed = now
	ctx, stop := context.WithTimeout(m.ctx, workTime) // that of the round has waited for the store
	defer stop()
	a, p := w.fetchElsewhere(ctx, m.roster.Load())
	switch {
	case p != nil && !join.Lost(p):
		m.fault("member_out", out(m.Name(), p.Why))
	case a != nil && w.keep(a) == nil:
		m.fault("member_out", nil)
	}
}

// out is the notice of a node that is no member any more.
func out(name, why string) *problem.Error {
	return problem.New("this node is no member any more", why, "weft down; "+rejoin(name))
}

// upkeep does what a voter does for all members.
func (w *worker) upkeep(ctx context.Context, r *registry.Registry) {
	for again := true; again && ctx.Err() == nil; {
		var err error
		if again, err = r.Advance(ctx); err != nil {
			w.m.due.Store(true)
			if ctx.Err() == nil {
				w.m.fault("member_upkeep", problem.Of("cannot go on with changes of members", err))
			}
			return
		}
	}
	all, problems, err := r.Members(ctx)
	if err != nil {
		return
	}
	var p *problem.Error
	if len(problems) > 0 {
		p = problems[0]
	}
	w.m.fault("member_upkeep", p)
	w.compareClocks(all)
	p = nil
	for i := range all {
		if x := &all[i]; x.Report != nil {
			p = cmp.Or(p, w.saw(x.Key, x.Name, x.Report, x.Report.Clock))
		}
	}
	w.seen.Keep(w.m.roster.Load())
	w.m.fault("identity_copied", p)
}

// compareClocks names a member with a wrong clock, or more of them in turn.
func (w *worker) compareClocks(all []registry.Member) {
	var p *problem.Error
	roster := w.m.roster.Load()
	late := 2 * workEvery
	if !w.led { // as it was before this look
		late += w.later()
	}
	w.led = w.first()
	now := w.m.cfg.Now()
	if gap := now.Sub(w.compared); gap > upkeepEvery+workTime { // the store was away, and a report may be as old
		late += gap
	}
	w.compared = now
	for i := range all {
		if x := &all[i]; x.Report != nil && x.GUID != w.m.cfg.GUID {
			p = cmp.Or(p, w.clocks.Read(x.Report, x.Name, now, late, time.Duration(roster.Skew)))
		}
	}
	w.m.fault("member_clock", p)
}

// saw notes the incarnation of a member's report, which it wrote at a time of its clock. Two nodes with one identity
// write by turns, since each repeats its report when it finds another's in its place.
func (w *worker) saw(k member.Key, name string, p *member.Report, at time.Time) *problem.Error {
	address := "an unknown address"
	if len(p.Addresses) > 0 {
		address = p.Addresses[0]
	}
	x := member.Sighting{Incarnation: p.Incarnation, Address: address, Written: at}
	return w.seen.Saw(k, name, x, w.m.cfg.Now())
}

// sawOther notes that another incarnation wrote a report in the place of this node's. The first voter looks at it with
// all others; another voter names it at once, and leaves it to its next look to take back what it named.
func (w *worker) sawOther(stored, own *member.Report) {
	m := w.m
	m.mu.Lock()
	id, name := m.id, m.kept.Name
	m.mu.Unlock()
	w.saw(id.Key(), name, stored, stored.Clock)
	if m.voter() && w.first() {
		return
	}
	if p := w.saw(id.Key(), name, own, m.cfg.Now()); p != nil || !m.voter() {
		m.fault("identity_copied", p)
	}
}

// stale reports whether the certificate is to be renewed at once: its member's record has another certificate, name or
// roles, or another CA signs. A renewal makes the certificate in use that of the record, which counts alone once its CA
// is frozen.
func stale(c *x509.Certificate, r *member.Roster) bool {
	x, err := member.ClaimsOf(c)
	if err != nil {
		return true
	}
	for i := range r.Members {
		m := &r.Members[i]
		same := m.Name == x.Name && m.Roles == x.Roles && bytes.Equal(m.Certificate, c.Raw)
		if m.GUID == x.GUID && m.Key == member.KeyOf(c) && !same {
			return true
		}
	}
	return r.SignedBy(c) != signing(r)
}

func signing(r *member.Roster) uint32 {
	for _, ca := range r.CAs {
		if ca.State == member.CASigning {
			return ca.Epoch
		}
	}
	return 0
}

// renew renews the certificate when it is due: by this node's key of the CA, else by a voter.
func (w *worker) renew(ctx context.Context) {
	m := w.m
	now, cert, roster := m.cfg.Now(), m.cert.Load(), m.roster.Load()
	replace := stale(cert.Leaf, roster)
	if w.failedStale && !replace { // the roster has the certificate in use by now
		w.failed, w.failedStale = time.Time{}, false
		m.fault("certificate_renewal", nil)
	}
	at := member.LifeOf(cert.Leaf).RenewAt(w.spread, w.failed, replace)
	if now.Before(at) {
		return
	}
	a, err := w.fetch(ctx, roster)
	if err == nil {
		err = w.keep(a)
	}
	if err != nil {
		w.failed, w.failedStale = now, replace
		p := problem.Of("cannot renew the certificate", err)
		ends := member.LifeOf(cert.Leaf).End.UTC().Format("2006-01-02 15:04 UTC")
		p = problem.New("the certificate of this node ends "+ends,
			problem.Text(p.What, p.Why, ""), p.Fix)
		m.fault("certificate_renewal", p)
		return
	}
	w.failed, w.failedStale = time.Time{}, false
	m.fault("certificate_renewal", nil)
	m.cfg.Log.Info("certificate renewed", "ends", member.LifeOf(m.cert.Load().Leaf).End)
}

// fetch gets a new certificate.
func (w *worker) fetch(ctx context.Context, roster *member.Roster) (*registry.Answer, error) {
	m := w.m
	r, err := m.open()
	if err == nil {
		a, e := r.Renew(ctx, m.cert.Load().Leaf)
		if e == nil {
			return a, nil
		}
		err = e
	}
	if m.voter() && !errors.Is(err, registry.ErrNoKey) {
		return nil, err
	}
	switch a, p := w.fetchElsewhere(ctx, roster); {
	case p != nil:
		return nil, p
	case a != nil:
		return a, nil
	}
	return nil, err
}

// fetchElsewhere gets a new certificate from another voter: the answer of the first that answers, or why the last one
// does not. Both are nil where the roster has no other voter.
func (w *worker) fetchElsewhere(ctx context.Context, roster *member.Roster) (a *registry.Answer, p *problem.Error) {
	m := w.m
	m.mu.Lock()
	id := m.id
	m.mu.Unlock()
	c := join.Client{Now: m.cfg.Now}
	for _, address := range voters(roster, m.cfg.GUID) {
		if a, p = c.Renew(ctx, address, *m.cert.Load(), roster, id); p == nil || !join.Lost(p) {
			return a, p
		}
	}
	return nil, p
}

// keep makes a new certificate the node's, on disk first, and then the roster that came with it.
func (w *worker) keep(a *registry.Answer) error {
	m := w.m
	c, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return err
	}
	x, err := member.ClaimsOf(c)
	if err != nil {
		return err
	}
	if err := m.renewed(x, a); err != nil {
		return err
	}
	m.acceptNewer(&a.Roster)
	return nil
}

// renewed makes a certificate with its claims the node's.
func (m *Membership) renewed(x member.Claims, a *registry.Answer) error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	kept := *m.kept
	m.mu.Unlock()
	if x.GUID != kept.GUID || x.Fabric != kept.Fabric {
		return errors.New("the certificate is another's")
	}
	kept.Name, kept.Certificate, kept.CAs = x.Name, a.Certificate, a.Roster.CAs
	if err := m.dir.Save(&kept); err != nil {
		return err
	}
	return m.carry(&kept, a.Roster.CAs)
}

// report writes what this node reports about itself, where it has changed. It returns why the store cannot be used.
func (w *worker) report(ctx context.Context, r *registry.Registry) error {
	m := w.m
	users, err := m.cfg.Users()
	if err != nil {
		return nil // the node ends, or a lane is stuck: status reports that
	}
	roster := m.roster.Load()
	p := member.Report{GUID: m.cfg.GUID, Incarnation: m.incarnation, Program: m.cfg.Program,
		Addresses: m.addresses(), Users: users,
		Signed: roster.SignedBy(m.cert.Load().Leaf)}
	p.Store = m.storeAddress()
	if m.cfg.Switch != nil {
		p.Switch = m.cfg.Switch()
	}
	if n := len(users); n > member.MaxUsers {
		p.Users, p.More = users[:member.MaxUsers], n-member.MaxUsers
	}
	for _, ca := range roster.CAs {
		p.CAs = append(p.CAs, ca.Epoch)
	}
	now := m.cfg.Now()
	w.reported.Clock = time.Time{}
	stored, err := r.Reported(ctx)
	foreign := err == nil && stored.Incarnation != 0 && stored.Incarnation != m.incarnation
	if foreign {
		w.sawOther(&stored, &p)
	}
	own := err == nil && stored.Incarnation == m.incarnation // else there is none, a restore ended it, or it is foreign
	if own && reflect.DeepEqual(p, w.reported) && now.Sub(w.at) < reportEvery {
		m.fault("member_report", nil)
		return nil
	}
	p.Clock = now
	recorded, err := r.Recorded(ctx)
	if err == nil {
		if !bytes.Equal(recorded, m.cert.Load().Leaf.Raw) {
			p.Signed = 0
		}
		err = r.Report(ctx, p)
	}
	if err != nil {
		w.at = time.Time{} // written again, also where it comes to equal the last one: until then it is a fault
		m.fault("member_report", problem.Of("cannot report to the fabric", err))
		return err
	}
	m.fault("member_report", nil)
	w.reported, w.at = p, now
	return nil
}

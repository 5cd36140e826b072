// SPDX-License-Identifier: Apache-2.0

// Package mesh keeps the trunks of a member as the fabric has members: it adds those that are missing, removes those to
// hosts that are no members, and finds the address at which each other member is reached.
//
// What comes in: the roster, each time it changed, and the state of each trunk; what goes out: calls of Trunks. The
// node starts it after the lanes and closes it before. It decides nothing about identity: the handshake of a trunk
// does, by the certificate of the member with the GUID that the trunk is for.
package mesh

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Times of the work below.
const (
	lookEvery = time.Second
	// patience is how long a trunk that is down stays at one address of a peer with several.
	patience = 3 * time.Second
)

// Trunks are the trunks of the node. Its methods may wait for a lane.
type Trunks interface {
	// Add opens a trunk to the member with a GUID, at an address, or where it is not valid, from wherever that member
	// begins. A confined member may send only packets of its own ports, and none that changes the subnet. Add returns
	// the trunk's number.
	Add(name string, node ib.GUID, at netip.AddrPort, confined bool) (int, error)
	// Confine sets whether the member at the other end is confined.
	Confine(trunk int, confined bool) error
	// Move sets the address at which the other end is reached.
	Move(trunk int, at netip.AddrPort) error
	Remove(trunk int) error
	// Up reports whether a trunk is up.
	Up(trunk int) (bool, error)
}

// Plan returns the members of a roster that a node has trunks to.
type Plan func(r *member.Roster, self ib.GUID) []ib.GUID

// Config is what a mesh needs from its node.
type Config struct {
	Self   ib.GUID
	Trunks Trunks
	Plan   Plan // nil: Roster.Shape, with Ports
	// Ports is the number of ports that trunks may use; nil: any number.
	Ports func() int
	Log   *slog.Logger
	Now   func() time.Time // for intervals only
	// Resolve returns the addresses of a host name; nil: the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// Mesh keeps the trunks of a member. Its methods may be called on any goroutine but lanes and the management goroutine.
type Mesh struct {
	cfg    Config
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup
	latest chan *member.Roster // of length 1: the newest
	names  *resolver

	mu     sync.Mutex // guards what follows; it is held for no call
	status []api.Degraded
	shaped shaped

	// Of the goroutine of run.
	roster *member.Roster
	ends   map[ib.GUID]*end
}

// end is the trunk to a member.
type end struct {
	name  string
	key   member.Key
	trunk int
	// dials: this node sends to addresses of the other; else it waits for the other to begin.
	dials bool
	list  []netip.AddrPort // where the other may be reached; without an order of merit
	at    int              // the one in use
	since time.Time        // that it is in use, or that the trunk was last seen up
	why   error            // why there is no trunk; nil: there is one
	up    bool             // as it was last seen
	began mono.Time        // of up
	// confined is set if the other's roles do not permit it to forward packets of third members.
	confined bool
}

// New returns a mesh without trunks.
func New(c Config) *Mesh {
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	m := &Mesh{cfg: c, latest: make(chan *member.Roster, 1), ends: map[ib.GUID]*end{},
		names: newResolver(c.Resolve, c.Now)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// Start keeps the trunks until Close.
func (m *Mesh) Start() { m.work.Go(m.run) }

// Close ends the work. The trunks stay.
func (m *Mesh) Close() {
	m.stop()
	m.work.Wait()
	m.names.work.Wait()
}

// Follow hands over a roster, which takes the place of the one before.
func (m *Mesh) Follow(r *member.Roster) {
	for {
		select {
		case m.latest <- r:
			return
		default:
		}
		select {
		case <-m.latest:
		default:
		}
	}
}

// Degraded lists the members to which the node should have a trunk and has none. A trunk that is down is not listed: it
// is reported with the trunks.
func (m *Mesh) Degraded() []api.Degraded {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.status)
}

func (m *Mesh) run() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case m.roster = <-m.latest:
		case <-m.names.done:
		case <-tick.C:
		}
		if m.roster != nil {
			m.step()
		}
	}
}

// step makes the trunks those of the plan, and has those that are down try other addresses. It waits for no name: a
// member chooses its own, and the trunk of another that is removed ends at once.
func (m *Mesh) step() {
	self := m.own()
	var plan []ib.GUID
	switch {
	case self == nil: // a host that was removed has no trunk any more
	case m.cfg.Plan != nil:
		plan = m.cfg.Plan(m.roster, m.cfg.Self)
	default:
		plan = m.shape()
	}
	want := map[ib.GUID]*member.Record{}
	for _, g := range plan {
		if x := m.roster.ByGUID(g); x != nil && g != m.cfg.Self {
			want[g] = x
		}
	}
	for g, e := range m.ends {
		if x := want[g]; x == nil || x.Key != e.key || e.turned(self, x) {
			m.remove(g, e)
		}
	}
	for i := range m.roster.Members {
		x := want[m.roster.Members[i].GUID]
		if x == nil {
			continue
		}
		if e := m.ends[x.GUID]; e == nil || e.why != nil {
			m.add(self, x)
		} else {
			m.confine(x, e)
			m.tend(x, e)
		}
	}
	m.names.keep(want)
	m.report()
}

// own is the record of this node, nil where it is no member.
func (m *Mesh) own() *member.Record {
	return m.roster.ByGUID(m.cfg.Self)
}

// dials reports whether a begins the trunk between two members. A leaf may be behind a translation of addresses, so
// that only it can begin.
func dials(a, b *member.Record) bool {
	if x, y := a.Roles.Has(member.Leaf), b.Roles.Has(member.Leaf); x != y {
		return x
	}
	return a.GUID < b.GUID
}

// turned reports whether the other end is to begin by now, or this one: the role of one has changed. A trunk that is up
// stays as it is until it goes down.
func (e *end) turned(self, x *member.Record) bool { return !e.up && e.dials != dials(self, x) }

func (m *Mesh) add(self, x *member.Record) {
	e := &end{name: x.Name, key: x.Key, dials: dials(self, x), since: m.cfg.Now(), confined: !x.Roles.Transits()}
	e.list, e.why = []netip.AddrPort{{}}, nil // from wherever the other begins
	if e.dials {
		var ready bool
		if e.list, ready, e.why = m.names.addresses(m.ctx, x); !ready && len(e.list) == 0 {
			return // the step after the answer adds it
		}
	}
	for i, at := range e.list { // some may be of a family without a socket
		e.at = i
		if e.trunk, e.why = m.cfg.Trunks.Add(x.Name, x.GUID, at, e.confined); e.why == nil {
			break
		}
	}
	if old := m.ends[x.GUID]; e.why != nil && (old == nil || old.why.Error() != e.why.Error()) {
		m.cfg.Log.Warn("no trunk", "member", x.Name, "err", e.why)
	} else if e.why == nil {
		m.cfg.Log.Info("trunk added", "member", x.Name, "begins", e.dials)
	}
	e.began = m.mono()
	m.ends[x.GUID] = e
}

// confine applies the roles that the other end has by now.
func (m *Mesh) confine(x *member.Record, e *end) {
	confined := !x.Roles.Transits()
	if confined == e.confined {
		return
	}
	if err := m.cfg.Trunks.Confine(e.trunk, confined); err != nil {
		m.cfg.Log.Error("the roles of a member are not applied to its trunk", "member", x.Name, "err", err)
		return // next time
	}
	e.confined = confined
	m.cfg.Log.Info("trunk", "member", x.Name, "confined", confined)
}

// tend has a trunk that is down try the next address, after patience at one.
func (m *Mesh) tend(x *member.Record, e *end) {
	now := m.cfg.Now()
	up, err := m.cfg.Trunks.Up(e.trunk)
	if err == nil {
		e.see(up, m.mono())
	}
	if err != nil || up || !e.dials {
		e.since = now
		return
	}
	if now.Sub(e.since) < patience {
		return
	}
	list, ready, err := m.names.addresses(m.ctx, x)
	if !ready {
		return // the step after the answer goes on
	}
	e.since = now
	if err != nil {
		return // the address in use stays
	}
	old := e.list[e.at]
	e.list = list
	e.at = slices.Index(list, old) // -1: it is no address any more
	for range list {
		if e.at = (e.at + 1) % len(list); list[e.at] == old || m.cfg.Trunks.Move(e.trunk, list[e.at]) == nil {
			return
		}
	}
}

func (m *Mesh) remove(g ib.GUID, e *end) {
	if e.why == nil {
		if err := m.cfg.Trunks.Remove(e.trunk); err != nil {
			m.cfg.Log.Error("a trunk could not be removed", "member", e.name, "err", err)
			return // next time
		}
		m.cfg.Log.Info("trunk removed", "member", e.name)
	}
	delete(m.ends, g)
}

func (m *Mesh) report() {
	var list []api.Degraded
	for _, e := range m.ends {
		if e.why != nil {
			list = append(list, api.Degraded{What: "no_trunk", Why: "no trunk to " + e.name + ": " + e.why.Error(),
				Fix: "weft member list; weft trunk"})
		}
	}
	list = append(list, m.limits()...)
	slices.SortFunc(list, func(a, b api.Degraded) int {
		if a.Why < b.Why {
			return -1
		}
		return 1
	})
	m.mu.Lock()
	m.status = list
	m.mu.Unlock()
}

// All is the plan of a full mesh: each member has a trunk to each other one, but leaves not to leaves.
func All(r *member.Roster, self ib.GUID) (list []ib.GUID) {
	own := r.ByGUID(self)
	leaf := own != nil && own.Roles.Has(member.Leaf)
	for i := range r.Members {
		if x := &r.Members[i]; x.GUID != self && !(leaf && x.Roles.Has(member.Leaf)) {
			list = append(list, x.GUID)
		}
	}
	return list
}

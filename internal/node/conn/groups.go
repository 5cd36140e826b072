// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"time"

	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/cm"
	"weft/internal/service/rdmacm"
)

// groupTable holds the multicast groups of InfiniBand ports that programs have joined through the
// connection manager. The subnet administration has one member per port, so it gets the first join and
// the last leave of a group. It belongs to the communication goroutine.
type groupTable struct {
	s      *Service
	users  map[uint16]*subnet.User // by function
	groups map[groupKey]*group
	asks   map[uint32]*request
	last   uint32
}

type groupKey struct {
	function uint16
	mgid     ib.GID
	sendOnly bool
}

// group is a group that count identifiers are in, or wait to be.
type group struct {
	key     groupKey
	want    rdmacm.Group // parameters of the first join
	count   int
	joined  bool
	err     error
	rec     mad.MCMemberRecord
	ask     *request // under way
	waiting []*waiter
}

// waiter waits for the outcome of a join.
type waiter struct {
	g    *rdmacm.Group
	done func(mono.Time, cm.Path, ib.QKey, error) // nil: no more
}

// request is a request to subnet administration that may have to be sent again.
type request struct {
	id    uint32
	key   groupKey
	m     mad.SA
	tries int
	done  func(now mono.Time, rec *mad.MCMemberRecord, err error)
}

const (
	requestWait  = time.Second
	requestTries = 8
	// maxRequests bounds the requests under way.
	maxRequests = 4096
)

func newGroupTable(s *Service) *groupTable {
	return &groupTable{s: s, users: map[uint16]*subnet.User{}, groups: map[groupKey]*group{},
		asks: map[uint32]*request{}}
}

var _ rdmacm.Groups = (*groupTable)(nil)

// Broadcast implements rdmacm.Groups.
func (c *groupTable) Broadcast(a *cm.Address) (ib.GID, bool) {
	return c.s.rooms.Links.BroadcastGID(a.Device)
}

// Join implements rdmacm.Groups.
func (c *groupTable) Join(now mono.Time, g *rdmacm.Group, done func(mono.Time, cm.Path, ib.QKey,
	error)) (cancel func(mono.Time)) {
	if g.Addr.Link == ib.LinkInfiniBand {
		return c.join(now, g, done)
	}
	// The host joins when a queue pair is attached, and leaves with the last.
	a := g.Addr
	done(now, cm.Path{Function: a.Function, Link: a.Link, SGID: a.SGID, DGID: g.MGID, SGIDIndex: a.SGIDIndex,
		Global: true, PKey: a.PKey, HopLimit: groupHops,
		TClass: g.TClass}, g.QKey, nil)
	return func(mono.Time) {}
}

// groupHops is the hop limit of packets to a group, unless the group has one.
const groupHops = 64

// join is Join for InfiniBand ports.
func (c *groupTable) join(now mono.Time, want *rdmacm.Group, done func(mono.Time, cm.Path, ib.QKey,
	error)) (cancel func(mono.Time)) {
	key := groupKey{want.Function, want.MGID, want.SendOnly}
	g := c.groups[key]
	if g == nil {
		g = &group{key: key, want: *want}
		c.groups[key] = g
	}
	g.count++
	w := &waiter{g: want, done: done}
	switch {
	case g.joined:
		g.tell(now, w)
	case g.ask != nil:
		g.waiting = append(g.waiting, w)
	default:
		c.drop(func(a *request) bool { return a.key == key }) // to leave: sent again it would end what begins here
		g.waiting = append(g.waiting, w)
		c.begin(g)
	}
	return func(now mono.Time) {
		w.done = nil
		if g.count--; g.count > 0 {
			return
		}
		delete(c.groups, key)
		c.forget(g.ask)
		// It may be a member even where the answer was lost.
		rec := mad.MCMemberRecord{MGID: key.mgid, PortGID: want.Addr.SGID, JoinState: joinState(key.sendOnly)}
		c.send(&request{key: key, done: func(mono.Time, *mad.MCMemberRecord, error) {}}, mad.MethodDelete,
			mad.CompMCMGID|mad.CompMCPortGID|mad.CompMCJoinState, &rec)
	}
}

func joinState(sendOnly bool) uint8 {
	if sendOnly {
		return mad.JoinSendOnlyFull
	}
	return mad.JoinFull
}

// begin queries the parameters of the IP link's groups, and then joins.
func (c *groupTable) begin(g *group) {
	a := g.want.Addr
	broadcast, ok := c.Broadcast(a)
	if !ok {
		broadcast = wire.BroadcastGID(a.PKey, 2)
	}
	g.ask = &request{key: g.key, done: func(now mono.Time, rec *mad.MCMemberRecord, err error) {
		g.ask = nil
		if err != nil {
			g.end(now, err)
			return
		}
		c.enter(g, rec)
	}}
	c.send(g.ask, mad.MethodGet, mad.CompMCMGID, &mad.MCMemberRecord{MGID: broadcast})
}

// enter joins a group; like is the broadcast group.
func (c *groupTable) enter(g *group, like *mad.MCMemberRecord) {
	rec := mad.MCMemberRecord{MGID: g.key.mgid, PortGID: g.want.Addr.SGID, PKey: like.PKey, QKey: g.want.QKey,
		SL: like.SL, FlowLabel: like.FlowLabel,
		TClass: like.TClass, JoinState: joinState(g.key.sendOnly)}
	mask := mad.CompMCMGID | mad.CompMCPortGID | mad.CompMCJoinState | mad.CompMCPKey | mad.CompMCQKey | mad.CompMCSL | mad.CompMCFlowLabel | mad.CompMCTClass
	if g.want.OfLink {
		rec.QKey = like.QKey
		rec.MTUSelector, rec.MTU, rec.RateSelector, rec.Rate, rec.HopLimit = mad.SelectExactly, like.MTU, mad.SelectExactly, like.Rate, like.HopLimit
		mask |= mad.CompMCMTUSelector | mad.CompMCMTU | mad.CompMCRateSelector | mad.CompMCRate | mad.CompMCHopLimit
	}
	g.ask = &request{key: g.key, done: func(now mono.Time, rec *mad.MCMemberRecord, err error) {
		g.ask = nil
		if g.joined = err == nil; g.joined {
			g.rec = *rec
		}
		g.end(now, err)
	}}
	c.send(g.ask, mad.MethodSet, mask, &rec)
}

// end passes the result to all pending joins.
func (g *group) end(now mono.Time, err error) {
	list := g.waiting
	g.waiting, g.err = nil, err
	for _, w := range list {
		g.tell(now, w)
	}
}

func (g *group) tell(now mono.Time, w *waiter) {
	done := w.done
	if done == nil {
		return
	}
	w.done = nil
	if g.err != nil {
		done(now, cm.Path{}, 0, g.err)
		return
	}
	a, r := w.g.Addr, &g.rec
	done(now, cm.Path{Function: a.Function, Link: a.Link, SGID: a.SGID, DGID: r.MGID, SGIDIndex: a.SGIDIndex,
		DLID: r.MLID, Global: true, PKey: r.PKey,
		FlowLabel: r.FlowLabel, TClass: r.TClass, HopLimit: r.HopLimit, SL: r.SL, MTU: r.MTU, Rate: r.Rate, LifeTime: r.Life}, r.QKey, nil)
}

// rejoin makes a function's port a member again where a subnet administration may have forgotten
// that it is one.
func (c *groupTable) rejoin(function uint16) {
	for _, g := range c.groups {
		if g.key.function != function || !g.joined || g.ask != nil {
			continue
		}
		like := g.rec
		c.enter(g, &like)
	}
}

// send sends a request to the subnet administration, and repeats it until there is a reply or its
// retries are used up.
func (c *groupTable) send(a *request, method mad.Method, mask mad.ComponentMask, rec *mad.MCMemberRecord) {
	if len(c.asks) >= maxRequests {
		c.s.Post(func(now mono.Time) { a.done(now, nil, cm.ErrFull) })
		return
	}
	a.m = mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{Method: method, AttributeID: mad.AttrMCMemberRecord},
		ComponentMask: mask}}
	rec.Append(a.m.Data[:0])
	for c.last++; c.asks[c.last] != nil; c.last++ {
	}
	a.id = c.last
	c.asks[a.id] = a
	c.try(a)
}

// try sends a request once more.
func (c *groupTable) try(a *request) {
	f := a.key.function
	u := c.users[f]
	if u == nil {
		u = c.s.rooms.Subnet.OpenUser(f, func(_ mono.Time, id uint32, m *mad.SA) {
			answer := *m
			c.s.Post(func(now mono.Time) { c.answered(now, id, &answer) })
		}, nil)
		c.users[f] = u
	}
	a.tries++
	u.Request(a.id, &a.m)
	time.AfterFunc(requestWait, func() {
		c.s.Post(func(now mono.Time) {
			switch {
			case c.asks[a.id] != a:
			case a.tries < requestTries:
				c.try(a)
			default:
				delete(c.asks, a.id)
				a.done(now, nil, cm.ErrTimeout)
			}
		})
	})
}

// forget ends a request without a result.
func (c *groupTable) forget(a *request) {
	if a != nil && c.asks[a.id] == a {
		delete(c.asks, a.id)
	}
}

// drop ends the matching requests without a result.
func (c *groupTable) drop(match func(a *request) bool) {
	for _, a := range c.asks {
		if match(a) {
			c.forget(a)
		}
	}
}

// answered takes the answer to a request.
func (c *groupTable) answered(now mono.Time, id uint32, m *mad.SA) {
	a := c.asks[id]
	if a == nil {
		return
	}
	if m.Status&mad.StatusBusy != 0 {
		return // it is repeated
	}
	delete(c.asks, id)
	var rec mad.MCMemberRecord
	if m.Status != mad.StatusOK || rec.Parse(m.Data[:]) != nil {
		a.done(now, nil, errNoMember)
		return
	}
	a.done(now, &rec, nil)
}

// remove forgets a port that is no more.
func (c *groupTable) remove(function uint16) {
	if u := c.users[function]; u != nil {
		u.Close()
		delete(c.users, function)
	}
	c.drop(func(a *request) bool { return a.key.function == function })
	for k, g := range c.groups {
		if k.function == function {
			g.ask = nil
		}
	}
}

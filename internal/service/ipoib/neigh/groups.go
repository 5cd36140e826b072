// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"net/netip"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Groups that an interface is always in, beside the solicited-node groups of
// its addresses and the broadcast group, which is the link's own.
var (
	allHosts = netip.AddrFrom4([4]byte{224, 0, 0, 1})
	allNodes = netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 1})
)

// group is an IP group and who wants it.
type group struct {
	permanent int  // all nodes; own addresses with this solicited-node group
	byHand    int  // JoinGroup
	reported  bool // the IP stack's last report
}

func (g *group) wanted() bool { return g.permanent > 0 || g.byHand > 0 || g.reported }

// shared is an InfiniBand group: IP groups that differ in bits which do not
// survive the mapping have one together.
type shared struct {
	members int
	joined  netip.Addr // what Out.Join was told
}

type groups struct {
	byIP  map[netip.Addr]*group
	byGID map[ib.GID]*shared // P_Key and scope of no meaning
}

func (s *groups) init() {
	s.byIP, s.byGID = map[netip.Addr]*group{}, map[ib.GID]*shared{}
}

// change applies f to the group ip and tells the link if that makes the first
// who wants it, or if nobody is left.
func (s *groups) change(e *Engine, now mono.Time, ip netip.Addr, f func(g *group)) bool {
	g := s.byIP[ip]
	if g == nil {
		g = &group{}
	}
	before := g.wanted()
	f(g)
	gid := wire.GroupGID(ip, 0, 0)
	switch {
	case !before && g.wanted():
		if g.permanent == 0 && len(s.byIP) >= e.cfg.MaxGroups {
			e.c.GroupsRefused++
			return false
		}
		s.byIP[ip] = g
		if m := s.byGID[gid]; m != nil {
			m.members++
			return true
		}
		s.byGID[gid] = &shared{1, ip}
		e.out.Join(now, ip)
	case before && !g.wanted():
		delete(s.byIP, ip)
		m := s.byGID[gid]
		if m.members--; m.members == 0 {
			delete(s.byGID, gid)
			e.out.Leave(now, m.joined)
		}
	}
	return true
}

func (s *groups) permanent(e *Engine, now mono.Time, ip netip.Addr, by int) {
	s.change(e, now, ip, func(g *group) { g.permanent += by })
}

// report applies a report of the IP stack's. Repeated ones are harmless and
// cost no more than looking the group up.
func (s *groups) report(e *Engine, now mono.Time, r wire.GroupReport) {
	if g := s.byIP[r.Group]; g == nil && !r.Join || g != nil && g.reported == r.Join {
		return
	}
	s.change(e, now, r.Group, func(g *group) { g.reported = r.Join })
}

// askStack has the IP stack report its groups, of which it said nothing that
// arrived while the link was down. The questions go to the stack alone.
func (e *Engine) askStack(now mono.Time) {
	e.queries--
	for _, typ := range [...]wire.EtherType{wire.EtherIPv4, wire.EtherIPv6} {
		if typ == wire.EtherIPv6 && e.link.MTU < wire.IPv6MinMTU {
			continue
		}
		wire.PutHardHeader(e.scratch[:], &e.link.HW, &wire.HWAddr{}, typ)
		e.out.Deliver(now, e.scratch[:headroom+wire.PutGroupQuery(e.scratch[headroom:], typ)])
	}
	var again mono.Time
	if e.queries > 0 {
		again = now.Add(queryTime)
	}
	e.timers.Set(&e.query, again)
}

// JoinGroup receives a group by hand, once more for each call, beside what the
// IP stack wants. It reports false, and does nothing, where group is none or
// there are too many.
func (e *Engine) JoinGroup(now mono.Time, group netip.Addr) bool {
	if group = plain(group); !group.IsMulticast() {
		return false
	}
	return e.groups.change(e, now, group, byHand(1))
}

// LeaveGroup takes one JoinGroup back. It reports false where there was none.
func (e *Engine) LeaveGroup(now mono.Time, group netip.Addr) bool {
	group = plain(group)
	if g := e.groups.byIP[group]; g == nil || g.byHand == 0 {
		return false
	}
	return e.groups.change(e, now, group, byHand(-1))
}

func byHand(n int) func(g *group) { return func(g *group) { g.byHand += n } }

// plain returns a without zone, and as IPv4 where it is that in disguise.
func plain(a netip.Addr) netip.Addr {
	if a.Zone() != "" {
		a = a.WithZone("")
	}
	if a.Is4In6() {
		a = a.Unmap()
	}
	return a
}

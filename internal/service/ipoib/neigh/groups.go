// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"net/netip"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Groups that an interface always receives, beside the solicited-node groups of its addresses and the broadcast group,
// which the link joins itself.
var (
	allHosts = netip.AddrFrom4([4]byte{224, 0, 0, 1})
	allNodes = netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 1})
)

// group is an IP group and why it is received.
type group struct {
	permanent int  // 1: all nodes; else the own addresses of this solicited-node group
	manual    int  // calls of JoinGroup
	reported  bool // by the IP stack, in its last report
}

func (g *group) wanted() bool { return g.permanent > 0 || g.manual > 0 || g.reported }

// shared is an InfiniBand group. IP groups that differ only in bits which are lost in the mapping share one.
type shared struct {
	members int
	joined  netip.Addr // the address in Membership.Join
}

type groups struct {
	byIP  map[netip.Addr]*group
	byGID map[ib.GID]*shared // of P_Key 0 and scope 0
}

func (s *groups) init() {
	s.byIP, s.byGID = map[netip.Addr]*group{}, map[ib.GID]*shared{}
}

// change applies f to the group ip, and joins or leaves it where that becomes necessary. It reports false where there
// are too many groups.
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
		e.out.Membership.Join(now, ip)
	case before && !g.wanted():
		delete(s.byIP, ip)
		m := s.byGID[gid]
		if m.members--; m.members == 0 {
			delete(s.byGID, gid)
			e.out.Membership.Leave(now, m.joined)
		}
	}
	return true
}

func (s *groups) permanent(e *Engine, now mono.Time, ip netip.Addr, by int) {
	s.change(e, now, ip, func(g *group) { g.permanent += by })
}

// report applies a membership report of the IP stack. A repeated one has no effect.
func (s *groups) report(e *Engine, now mono.Time, r wire.GroupReport) {
	if g := s.byIP[r.Group]; g == nil && !r.Join || g != nil && g.reported == r.Join {
		return
	}
	s.change(e, now, r.Group, func(g *group) { g.reported = r.Join })
}

// queryStack queries the groups of the IP stack (IGMP and MLD), since its reports were lost while the link was down.
// The queries go to the IP stack only.
func (e *Engine) queryStack(now mono.Time) {
	e.queries--
	for _, typ := range [...]wire.EtherType{wire.EtherIPv4, wire.EtherIPv6} {
		if typ == wire.EtherIPv6 && e.link.MTU < wire.IPv6MinMTU {
			continue
		}
		wire.PutHardHeader(e.scratch[:], &e.link.HW, &wire.HWAddr{}, typ)
		e.out.Frames.Deliver(now, e.scratch[:headroom+wire.PutGroupQuery(e.scratch[headroom:], typ)])
	}
	var again mono.Time
	if e.queries > 0 {
		again = now.Add(queryTime)
	}
	e.timers.Set(&e.query, again)
}

// JoinGroup adds a manual member to a group, beside the memberships of the IP stack. It reports false, and changes
// nothing, where the address is not a group's or there are too many groups.
func (e *Engine) JoinGroup(now mono.Time, group netip.Addr) bool {
	if group = plain(group); !group.IsMulticast() {
		return false
	}
	return e.groups.change(e, now, group, manual(1))
}

// LeaveGroup undoes one JoinGroup. It reports false where there was none.
func (e *Engine) LeaveGroup(now mono.Time, group netip.Addr) bool {
	group = plain(group)
	if g := e.groups.byIP[group]; g == nil || g.manual == 0 {
		return false
	}
	return e.groups.change(e, now, group, manual(-1))
}

func manual(n int) func(g *group) { return func(g *group) { g.manual += n } }

// plain returns a without zone, and an IPv4-mapped IPv6 address as IPv4.
func plain(a netip.Addr) netip.Addr {
	if a.Zone() != "" {
		a = a.WithZone("")
	}
	if a.Is4In6() {
		a = a.Unmap()
	}
	return a
}

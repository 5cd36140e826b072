// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"net/netip"
	"slices"
	"time"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// Neighbour describes an entry.
type Neighbour struct {
	IP      netip.Addr
	HW      wire.HWAddr
	State   State
	Router  bool
	Queued  int // frames that wait
	Probes  int
	Expires time.Duration // until the state ends; 0: no timer ends it
}

// Neighbours returns all entries, by address.
func (e *Engine) Neighbours(now mono.Time) []Neighbour {
	l := make([]Neighbour, 0, len(e.table.byIP))
	for n := range e.table.all() {
		x := Neighbour{IP: n.ip, HW: n.hw, State: n.state, Router: n.router, Queued: n.queue.n, Probes: int(n.probes)}
		if n.timer.IsSet() {
			x.Expires = max(n.timer.At().Sub(now), 0)
		}
		l = append(l, x)
	}
	slices.SortFunc(l, func(a, b Neighbour) int { return a.IP.Compare(b.IP) })
	return l
}

// Address describes an address of the interface.
type Address struct {
	Prefix netip.Prefix
	State  AddrState
}

// Addresses returns the addresses of the interface, by address.
func (e *Engine) Addresses() []Address {
	l := make([]Address, 0, len(e.addrs))
	for _, a := range e.addrs {
		l = append(l, Address{a.prefix, a.state})
	}
	slices.SortFunc(l, func(a, b Address) int { return a.Prefix.Addr().Compare(b.Prefix.Addr()) })
	return l
}

// Group describes a group that is received, and why.
type Group struct {
	IP                  netip.Addr
	Permanent, Reported bool
	ByHand              int
}

// Groups returns the groups to receive, by address.
func (e *Engine) Groups() []Group {
	l := make([]Group, 0, len(e.groups.byIP))
	for ip, g := range e.groups.byIP {
		l = append(l, Group{ip, g.permanent > 0, g.reported, g.manual})
	}
	slices.SortFunc(l, func(a, b Group) int { return a.IP.Compare(b.IP) })
	return l
}

// Flush removes all neighbours but permanent ones. Frames that wait are dropped, and Unresolved ends each Resolve.
func (e *Engine) Flush(now mono.Time) {
	for n := range e.table.all() {
		if n.state != Permanent {
			e.remove(now, n, false)
		}
	}
}

// Delete removes a neighbour and reports whether there was one.
func (e *Engine) Delete(now mono.Time, ip netip.Addr) bool {
	n := e.table.byIP[plain(ip)]
	if n != nil {
		e.remove(now, n, false)
	}
	return n != nil
}

// AddStatic sets a permanent neighbour: it is not solicited, and no frame changes it. It reports false where ip or hw
// is not the address of one node, ip is our own, or half of the table is permanent.
func (e *Engine) AddStatic(now mono.Time, ip netip.Addr, hw wire.HWAddr) bool {
	ip = plain(ip)
	if !oneHost(ip) || e.addrs[ip] != nil || !hw.Unicast() {
		return false
	}
	n := e.table.byIP[ip]
	if n == nil || n.state != Permanent {
		permanent := 0
		for m := range e.table.all() {
			if m.state == Permanent {
				permanent++
			}
		}
		if permanent >= e.table.max/2 {
			return false
		}
	}
	if n == nil {
		n = e.create(now, ip)
	}
	e.store(now, n, hw, false)
	e.setState(now, n, Permanent)
	return true
}

// Probe sends a solicitation for a neighbour at once, known or not. It reports false where ip is not the address of one
// other node, or the link is down.
func (e *Engine) Probe(now mono.Time, ip netip.Addr) bool {
	ip = plain(ip)
	if !e.up || !oneHost(ip) || e.addrs[ip] != nil {
		return false
	}
	n := e.table.byIP[ip]
	switch {
	case n == nil:
		n = e.create(now, ip)
	case n.state == Permanent:
		return false
	case n.state != Incomplete:
		n.state = Probe
	}
	n.probes = 0
	e.solicit(now, n)
	return true
}

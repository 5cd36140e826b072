// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"maps"
	"net/netip"
	"slices"

	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// AddrState is the state of an address of the interface.
type AddrState uint8

// States of own addresses. Only for valid ones the engine answers.
const (
	Tentative AddrState = iota
	Valid
	Duplicate
)

var addrStateNames = [...]string{"tentative", "valid", "duplicate"}

func (s AddrState) String() string {
	if int(s) < len(addrStateNames) {
		return addrStateNames[s]
	}
	return "unknown"
}

// address is an address of the interface. Its timer ends duplicate address detection, then paces announcements.
type address struct {
	prefix    netip.Prefix
	state     AddrState
	announces int       // that are left
	conflict  mono.Time // when one was reported last
	timer     timer
}

func (a *address) ip() netip.Addr { return a.prefix.Addr() }

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// SetAddrs sets all addresses of the interface, each with the prefix that is on the link. A new one is checked for
// duplicates (IPv6) and announced; from then on the engine answers for it.
func (e *Engine) SetAddrs(now mono.Time, prefixes []netip.Prefix) {
	keep := make(map[netip.Addr]bool, len(prefixes))
	clear(e.broadcast)
	e.broadcast[limitedBroadcast] = struct{}{}
	for _, p := range prefixes {
		ip := plain(p.Addr())
		if !oneHost(ip) || !p.IsValid() || ip.BitLen() != p.Addr().BitLen() {
			continue
		}
		p = netip.PrefixFrom(ip, p.Bits())
		a := e.addrs[ip]
		if a == nil {
			if len(keep) >= e.cfg.MaxAddrs {
				e.c.AddrsRefused++
				continue
			}
			a = &address{}
			a.timer.Value.addr = a
			e.addrs[ip] = a
		}
		fresh := !a.prefix.IsValid()
		a.prefix, keep[ip] = p, true
		if b, ok := directedBroadcast(p); ok {
			e.broadcast[b] = struct{}{}
		}
		if !fresh {
			continue
		}
		if n := e.table.find(ip); n != nil {
			e.remove(now, n, false)
		}
		if ip.Is6() {
			e.groups.permanent(e, now, wire.SolicitedNode(ip), 1)
		}
		if e.up {
			e.start(now, a)
		}
	}
	for ip, a := range e.addrs {
		if keep[ip] {
			continue
		}
		e.timers.Set(&a.timer, 0)
		delete(e.addrs, ip)
		if ip.Is6() {
			e.groups.permanent(e, now, wire.SolicitedNode(ip), -1)
		}
	}
	for b := range e.broadcast {
		if n := e.table.find(b); n != nil {
			e.remove(now, n, false)
		}
	}
}

// directedBroadcast returns the broadcast address of an IPv4 prefix; false where it has none (RFC 3021: of 31 bits).
func directedBroadcast(p netip.Prefix) (netip.Addr, bool) {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}, false
	}
	b := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b), true
}

// oneHost reports whether ip can be the address of one host on the link.
func oneHost(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback() && ip != limitedBroadcast
}

// start begins the use of an address on a link that is up.
func (e *Engine) start(now mono.Time, a *address) {
	if a.ip().Is4() {
		a.state = Valid
		e.announce(now, a)
		return
	}
	a.state = Tentative
	nd := wire.ND{Type: wire.NDNeighborSolicit, Src: netip.IPv6Unspecified(), Dst: wire.SolicitedNode(a.ip()),
		Target: a.ip()}
	e.sendND(now, &nd, e.groupHW(nd.Dst))
	e.timers.Set(&a.timer, now.Add(detectTime))
}

// announce announces an address, now and twice more.
func (e *Engine) announce(now mono.Time, a *address) {
	if a.state == Valid {
		a.announces = announceCount
		e.addrExpire(now, a)
	}
}

// addrExpire handles the timer of an address.
func (e *Engine) addrExpire(now mono.Time, a *address) {
	if a.state == Tentative {
		a.state = Valid
		a.announces = announceCount
		e.solicitDelayed(now)
	}
	if a.announces == 0 || a.state != Valid {
		return
	}
	e.sendAnnouncement(now, a)
	if a.announces--; a.announces > 0 {
		e.timers.Set(&a.timer, now.Add(announceTime))
	} else {
		e.timers.Set(&a.timer, 0)
	}
}

func (e *Engine) sendAnnouncement(now mono.Time, a *address) {
	ip := a.ip()
	if ip.Is4() {
		e.sendARP(now, &wire.ARP{Op: wire.ARPRequest, SenderHW: e.link.HW, SenderIP: ip, TargetIP: ip},
			wire.PseudoBroadcast)
		return
	}
	nd := wire.ND{Type: wire.NDNeighborAdvert, Src: ip, Dst: allNodes, Target: ip, Override: true, Link: e.link.HW,
		HasLink: true}
	e.sendND(now, &nd, e.groupHW(allNodes))
}

// handleConflict handles that another node at hw uses our address a. A tentative IPv6 address becomes a duplicate; a
// valid IPv4 address is defended (RFC 5227, 2.4), as often as conflicts are reported.
func (e *Engine) handleConflict(now mono.Time, a *address, hw wire.HWAddr) {
	e.c.Conflicts++
	if a.state == Tentative {
		a.state = Duplicate
		e.timers.Set(&a.timer, 0)
	} else if !a.conflict.IsZero() && now.Sub(a.conflict) < defendTime {
		return
	}
	a.conflict = now
	if a.state == Valid && a.ip().Is4() {
		e.sendAnnouncement(now, a)
	}
	e.out.Resolution.Conflict(now, a.ip(), hw)
}

// sorted returns the own addresses in order.
func (e *Engine) sorted() []*address {
	return slices.SortedFunc(maps.Values(e.addrs), func(a, b *address) int { return a.ip().Compare(b.ip()) })
}

// validAddr returns the own address ip; nil where it is none, or not valid.
func (e *Engine) validAddr(ip netip.Addr) *address {
	if a := e.addrs[ip]; a != nil && a.state == Valid {
		return a
	}
	return nil
}

// source returns the source address of a request for target: the own address with the longest common prefix, or, for
// IPv6, the link-local one. ok is false where there is none.
func (e *Engine) source(target netip.Addr) (src netip.Addr, ok bool) {
	best := -1
	for ip, a := range e.addrs {
		if ip.BitLen() != target.BitLen() || a.state != Valid {
			continue
		}
		score := 0
		switch {
		case a.prefix.Contains(target):
			score = 2 + a.prefix.Bits()
		case ip.Is6() && ip.IsLinkLocalUnicast():
			score = 1
		}
		if score > best || score == best && ip.Less(src) {
			best, src = score, ip
		}
	}
	return src, best >= 0
}

// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
	"weft/internal/service/ipoib"
	"weft/internal/verbs/hca"
)

// Path attributes of an Ethernet port, where no subnet administration sets any (docs/notes/cm.md).
const (
	roceLifeTime = 18 // 1.07 s one way
	roceHopLimit = 64
)

// Bound finds the port of the node that has an IP address. An address of an IP link is that of the link, though the
// host has it too.
func (s *Service) Bound(a netip.Addr) (cm.Address, error) {
	a = a.Unmap().WithZone("")
	if l, ok := s.rooms.Links.Lookup(func(l *Address) bool { return l.Prefix.Addr() == a }); ok {
		p := l.Adapter.Port()
		if len(p.GIDs) > 0 {
			return cm.Address{Function: l.Adapter.Number(), Link: ib.LinkInfiniBand, Device: l.Link, Src: a,
				SGID: p.GIDs[0].GID, PKey: l.PKey}, nil
		}
	}
	if !a.IsValid() || a.IsUnspecified() {
		return cm.Address{}, cm.ErrNoAddress
	}
	ports := []*hca.Adapter{s.cfg.Host}
	for a := range s.rooms.Ethernet {
		ports = append(ports, a)
	}
	for _, o := range ports {
		p := o.Port()
		if i := p.Lookup(ib.GIDFromAddr(a)); i >= 0 && i <= 0xff && !p.GIDs[i].LocalOnly {
			return cm.Address{Function: o.Number(), Link: p.Link, Src: a, SGID: p.GIDs[i].GID, SGIDIndex: uint8(i),
				PKey: p.PKeys[0]}, nil
		}
	}
	return cm.Address{}, cm.ErrNoAddress
}

// Has reports whether an IP link of the function has an address, which links of others may have too: Bound returns the
// first of them only.
func (s *Service) Has(function uint16, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	has := func(l *Address) bool { return l.Prefix.Addr() == a && l.Adapter.Number() == function }
	_, ok := s.rooms.Links.Lookup(has)
	return ok
}

// source finds from which address packets go to dst.
func (s *Service) source(src, dst netip.Addr) (cm.Address, error) {
	if src.IsValid() && !src.IsUnspecified() {
		return s.Bound(src)
	}
	if a, err := s.Bound(dst); err == nil {
		return a, nil // to itself
	}
	// Of stacks in the node the kernel has no routes.
	onLink := func(l *Address) bool { return l.Prefix.Contains(dst.WithZone("")) }
	if l, ok := s.rooms.Links.Lookup(onLink); ok && !dst.IsMulticast() {
		return s.Bound(l.Prefix.Addr())
	}
	for _, addrs := range s.rooms.Ethernet {
		for _, p := range addrs {
			if p.Contains(dst.WithZone("")) {
				return s.Bound(p.Addr())
			}
		}
	}
	// looks up a route, sends nothing
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 9)))
	if err != nil {
		return cm.Address{}, cm.ErrNoRoute
	}
	defer c.Close()
	return s.Bound(c.LocalAddr().(*net.UDPAddr).AddrPort().Addr())
}

// ResolveAddr finds the port by which packets go from src, where that is valid, to dst, and the GID of the peer; of a
// group there is none. The zone of a link-local dst is an interface of the host. done is called once on the goroutine,
// as ResolveAddr is, maybe before it returns; the error is one of cm.ErrNoAddress, ErrNoRoute, ErrNoPath, ErrDenied and
// ErrTimeout.
func (s *Service) ResolveAddr(now mono.Time, src, dst netip.Addr, done func(mono.Time, cm.Address, error)) {
	dst = dst.Unmap()
	if dst.IsUnspecified() {
		// The host's own address of the requested family.
		if dst.Is4() {
			dst = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		} else {
			dst = netip.IPv6Loopback()
		}
	}
	a, err := s.source(src, dst)
	if err == nil && a.Src.Is4() != dst.Is4() {
		err = cm.ErrNoRoute
	}
	if err != nil {
		done(now, cm.Address{}, err)
		return
	}
	dst = dst.WithZone("") // it has served to find the source
	a.Dst = dst
	switch {
	case a.Link == ib.LinkEthernet:
		if _, err := s.Bound(dst); err != nil && (a.Src.IsLoopback() || dst.IsLoopback()) {
			done(now, cm.Address{}, cm.ErrNoRoute)
			return
		}
		a.DGID = ib.GIDFromAddr(dst)
		if o := s.cfg.Functions.At(a.Function); o != nil && !o.Port().Allows(a.DGID) {
			done(now, cm.Address{}, cm.ErrDenied)
			return
		}
		done(now, a, nil)
	case dst.IsMulticast():
		done(now, a, nil)
	default:
		s.ipoibPath(now, &a, func(now mono.Time, p *ipoib.PathInfo, err error) {
			if err == nil {
				a.DGID, a.SGID = p.DGID, p.SGID
			}
			done(now, a, err)
		})
	}
}

// ResolvePath finds the path to the peer of an address that ResolveAddr found. done is
// called as there.
func (s *Service) ResolvePath(now mono.Time, a *cm.Address, tclass uint8, done func(mono.Time, cm.Path, error)) {
	addr := *a
	if a.Link == ib.LinkEthernet {
		o := s.cfg.Functions.At(a.Function)
		if o == nil {
			done(now, cm.Path{}, cm.ErrNoAddress)
			return
		}
		p := o.Port()
		i := p.Lookup(a.SGID)
		if i < 0 || i > 0xff || p.Link != a.Link {
			done(now, cm.Path{}, cm.ErrNoAddress)
			return
		}
		done(now, cm.Path{Function: a.Function, Link: a.Link, SGID: a.SGID, DGID: a.DGID, SGIDIndex: uint8(i),
			SLID: ib.LIDPermissive, DLID: ib.LIDPermissive,
			Global: true, PKey: p.PKeys[0], FlowLabel: 1 +
				rand.Uint32N(0xfffff), TClass: tclass, HopLimit: roceHopLimit, MTU: p.PathMTU(a.SGID), LifeTime: roceLifeTime}, nil)
		return
	}
	s.ipoibPath(now, a, func(now mono.Time, p *ipoib.PathInfo, err error) {
		if err != nil {
			done(now, cm.Path{}, err)
			return
		}
		port, ok := s.Port(addr.Function)
		i, k := slices.Index(port.GIDs, p.SGID), slices.IndexFunc(port.PKeys,
			func(k ib.PKey) bool { return k.Match(p.PKey) })
		if !ok || i < 0 || i > 0xff || k < 0 {
			done(now, cm.Path{}, cm.ErrNoPath)
			return
		}
		done(now, cm.Path{Function: addr.Function, Link: addr.Link, SGID: p.SGID, DGID: p.DGID, SGIDIndex: uint8(i),
			SLID: p.SLID, DLID: p.DLID,
			Global: p.HopLimit > 1, PKey: port.PKeys[k], PKeyIndex: uint16(k), FlowLabel: p.FlowLabel, TClass: p.TClass, HopLimit: p.HopLimit, SL: p.SL,
			MTU: min(p.MTU, port.MTU), Rate: p.Rate, LifeTime: p.PacketLifetime}, nil)
	})
}

// ipoibPath resolves the path from the IP link of an address to its peer.
func (s *Service) ipoibPath(now mono.Time, a *cm.Address, done func(mono.Time, *ipoib.PathInfo, error)) {
	if !s.rooms.Links.ResolvePath(a.Device, a.Dst, func(p *ipoib.PathInfo, err error) {
		s.Post(func(now mono.Time) { done(now, p, pathError(err)) })
	}) {
		done(now, nil, cm.ErrNoAddress)
	}
}

// pathError is the error of a resolution for an outcome of an IP link.
func pathError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ipoib.ErrNoNode):
		return cm.ErrTimeout
	case errors.Is(err, ipoib.ErrInvalid):
		return cm.ErrNoRoute
	}
	return cm.ErrNoPath
}

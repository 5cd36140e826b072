// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"
	"syscall"

	"weft/internal/proto/mono"
)

// maxWaiters bounds the calls of GetPathAsync that wait for an outcome.
const maxWaiters = 4096

// ErrBusy is the error of GetPathAsync while too many calls wait.
const ErrBusy = syscall.ENOBUFS

// TryGetPath returns the path to the node that has an IP address, or ErrAgain where it is not known; then it is being
// resolved.
func (l *Link) TryGetPath(now mono.Time, a netip.Addr) (p PathInfo, err error) {
	err = l.GetPathAsync(now, a, &p, nil, nil)
	return p, err
}

// GetPathAsync writes the path to the node that has an IP address to out and returns nil, or returns ErrAgain; then cb,
// unless nil, is called once when the outcome is known, later and not from within any call of the Link that the caller
// makes for this. It gets ctx, and out, which is written before on success and else untouched. Other errors are final.
func (l *Link) GetPathAsync(now mono.Time, a netip.Addr, out *PathInfo, cb PathFunc, ctx any) error {
	l.stats.Driver.GetPathCalls++
	err := l.getPath(now, a.Unmap().WithZone(""), out, cb, ctx)
	if err == ErrNoNode {
		l.stats.Driver.GetPathENXIO++
	}
	l.qp.flush(now)
	return err
}

func (l *Link) getPath(now mono.Time, a netip.Addr, out *PathInfo, cb PathFunc, ctx any) error {
	switch {
	case !l.attr.carrier:
		return ErrLinkDown
	case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), l.addrs.isBroadcast(a):
		return ErrInvalid
	case l.addrs.isOwn(a):
		*out = l.waiters.info(a, &path{gid: l.attr.port.GID, rec: l.attr.localPath()})
		return nil
	case !l.addrs.isOnLink(a):
		return ErrNoNode
	case l.waiters.n >= maxWaiters:
		return ErrBusy
	}
	if hw, ok := l.engine.Resolve(now, a); ok {
		e := l.shadow.learn(now, a, hw)
		if e == nil {
			return ErrNoNode
		}
		if e.usable() {
			*out = l.waiters.info(a, e.path)
			return nil
		}
		e.transition(entryPathStale)
		l.shadow.queryPath(now, e.path)
	}
	if cb != nil {
		l.waiters.add(a, out, cb, ctx)
	}
	return ErrAgain
}

// addresses are the IP addresses of the device, and the prefixes reached without a gateway.
type addresses struct{ own, onLink []netip.Prefix }

// isOwn reports whether a is an address of the device.
func (s *addresses) isOwn(a netip.Addr) bool {
	return slices.ContainsFunc(s.own, func(p netip.Prefix) bool { return p.Addr() == a })
}

// isBroadcast reports whether a is a broadcast address of the device.
func (s *addresses) isBroadcast(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	if a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true
	}
	for _, p := range s.own {
		if p.Addr().Is4() && p.Bits() < 31 && p.Contains(a) && a == lastOf(p) {
			return true
		}
	}
	return false
}

// lastOf returns the last address of an IPv4 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// isOnLink reports whether a is reached without a gateway.
func (s *addresses) isOnLink(a netip.Addr) bool {
	on := func(p netip.Prefix) bool { return p.Contains(a) }
	return a.Is6() && a.IsLinkLocalUnicast() || slices.ContainsFunc(s.own, on) || slices.ContainsFunc(s.onLink, on)
}

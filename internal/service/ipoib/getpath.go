// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"slices"
	"syscall"

	"weft/internal/proto/mono"
)

// maxWaiters bounds those who wait for paths.
const maxWaiters = 4096

// ErrBusy is the outcome of asking for a path when too many wait.
const ErrBusy = syscall.ENOBUFS

// PathFunc is told how a resolution ended: nil, ErrNoNode or ErrLinkDown.
type PathFunc func(status error, out *PathInfo, ctx any)

// waiter waits for the path to an IP address.
type waiter struct {
	out *PathInfo
	cb  PathFunc
	ctx any
}

// call is a callback that is due.
type call struct {
	w      waiter
	status error
}

type waiting struct {
	waiters map[netip.Addr][]waiter
	waitN   int
	calls   []call
}

func (w *waiting) init() { w.waiters = map[netip.Addr][]waiter{} }

// TryGetPath returns the path to the node that has an IP address, or ErrAgain
// where it is not known; then it is being resolved.
func (l *Link) TryGetPath(now mono.Time, a netip.Addr) (p PathInfo, err error) {
	err = l.GetPathAsync(now, a, &p, nil, nil)
	return p, err
}

// GetPathAsync writes the path to the node that has an IP address to out and
// returns nil, or returns ErrAgain; then cb, if it is not nil, is called once when the
// outcome is known, later and not from within any call to the Link that the caller
// makes for this. It gets ctx, and out, which is written before on success and
// else untouched. Other errors are final.
func (l *Link) GetPathAsync(now mono.Time, a netip.Addr, out *PathInfo, cb PathFunc, ctx any) error {
	l.c.Driver.GetPathCalls++
	err := l.getPath(now, a.Unmap().WithZone(""), out, cb, ctx)
	if err == ErrNoNode {
		l.c.Driver.GetPathENXIO++
	}
	l.flush(now)
	return err
}

func (l *Link) getPath(now mono.Time, a netip.Addr, out *PathInfo, cb PathFunc, ctx any) error {
	switch {
	case !l.carrier:
		return ErrLinkDown
	case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), l.isBroadcast(a):
		return ErrInvalid
	case slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return p.Addr() == a }):
		*out = l.pathInfo(a, &path{gid: l.port.GID, rec: l.localPath()})
		return nil
	case !l.isOnLink(a):
		return ErrNoNode
	case l.waitN >= maxWaiters:
		return ErrBusy
	}
	if hw, ok := l.eng.Resolve(now, a); ok {
		e := l.learned(now, a, hw)
		if e == nil {
			return ErrNoNode
		}
		if e.resolved && !l.stale(e) {
			*out = l.pathInfo(a, e.path)
			return nil
		}
		e.resolved = false
		l.askPath(now, e.path)
	}
	if cb != nil {
		l.waiters[a] = append(l.waiters[a], waiter{out, cb, ctx})
		l.waitN++
	}
	return ErrAgain
}

// isBroadcast reports whether a is a broadcast address of the device.
func (l *Link) isBroadcast(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	if a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true
	}
	for _, p := range l.addrs {
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
func (l *Link) isOnLink(a netip.Addr) bool {
	on := func(p netip.Prefix) bool { return p.Contains(a) }
	return a.Is6() && a.IsLinkLocalUnicast() || slices.ContainsFunc(l.addrs, on) || slices.ContainsFunc(l.onLink, on)
}

// pathInfo describes a path.
func (l *Link) pathInfo(a netip.Addr, p *path) PathInfo {
	r := &p.rec
	return PathInfo{Addr: a, DGID: p.gid, SGID: l.port.GID, DLID: r.DLID, SLID: r.SLID, FlowLabel: r.FlowLabel, PKey: r.PKey, SL: r.SL,
		MTU: r.MTU, Rate: r.Rate, PacketLifetime: r.Life, HopLimit: r.HopLimit, TClass: r.TClass}
}

// found ends the waiting for an IP address whose entry is resolved.
func (l *Link) found(ip netip.Addr, e *entry) {
	for _, w := range l.take(ip) {
		*w.out = l.pathInfo(ip, e.path)
		l.calls = append(l.calls, call{w, nil})
	}
}

// notFound ends the waiting for an IP address that has no path; without carrier
// nobody can tell.
func (l *Link) notFound(ip netip.Addr, err error) {
	if !l.carrier {
		err = ErrLinkDown
	}
	for _, w := range l.take(ip) {
		if err == ErrNoNode {
			l.c.Driver.GetPathENXIO++
		}
		l.calls = append(l.calls, call{w, err})
	}
}

func (l *Link) take(ip netip.Addr) []waiter {
	if l.waitN == 0 {
		return nil
	}
	w := l.waiters[ip]
	delete(l.waiters, ip)
	l.waitN -= len(w)
	return w
}

// failWaiters tells all who wait that the link is going away.
func (l *Link) failWaiters() {
	for ip := range l.waiters {
		l.notFound(ip, ErrLinkDown)
	}
}

// runCalls calls back those whose outcome is known. They may ask again.
func (l *Link) runCalls() {
	for len(l.calls) > 0 {
		calls := l.calls
		l.calls = nil
		for _, c := range calls {
			c.w.cb(c.status, c.w.out, c.w.ctx)
		}
	}
}

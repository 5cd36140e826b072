// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"

	"weft/internal/service/ipoib/stats"
)

// PathFunc is called with the outcome of a resolution: nil, ErrNoNode or ErrLinkDown.
type PathFunc func(status error, out *PathInfo, ctx any)

// pathWaiter waits for the path to an IP address.
type pathWaiter struct {
	out *PathInfo
	cb  PathFunc
	ctx any
}

// call is a callback that is due.
type call struct {
	w      pathWaiter
	status error
}

// pathWaiters are the calls of GetPathAsync that wait, and the callbacks that are due.
type pathWaiters struct {
	attr  *attributes
	stats *stats.Recorder

	byIP  map[netip.Addr][]pathWaiter
	n     int
	calls []call
}

// add has cb called when the path to an IP address is known.
func (w *pathWaiters) add(ip netip.Addr, out *PathInfo, cb PathFunc, ctx any) {
	w.byIP[ip] = append(w.byIP[ip], pathWaiter{out, cb, ctx})
	w.n++
}

// info describes the path to an IP address.
func (w *pathWaiters) info(ip netip.Addr, p *path) PathInfo {
	r := &p.rec
	return PathInfo{Addr: ip, DGID: p.gid, SGID: w.attr.port.GID, DLID: r.DLID, SLID: r.SLID, FlowLabel: r.FlowLabel,
		PKey: r.PKey, SL: r.SL, MTU: r.MTU, Rate: r.Rate, PacketLifetime: r.Life, HopLimit: r.HopLimit, TClass: r.TClass}
}

// found ends the wait for an IP address with a path.
func (w *pathWaiters) found(ip netip.Addr, p *path) {
	for _, x := range w.remove(ip) {
		*x.out = w.info(ip, p)
		w.calls = append(w.calls, call{x, nil})
	}
}

// failed ends the wait for an IP address without a path. Without a carrier the outcome is ErrLinkDown.
func (w *pathWaiters) failed(ip netip.Addr, err error) {
	if !w.attr.carrier {
		err = ErrLinkDown
	}
	for _, x := range w.remove(ip) {
		if err == ErrNoNode {
			w.stats.Driver.GetPathENXIO++
		}
		w.calls = append(w.calls, call{x, err})
	}
}

// remove removes and returns those that wait for an IP address.
func (w *pathWaiters) remove(ip netip.Addr) []pathWaiter {
	if w.n == 0 {
		return nil
	}
	list := w.byIP[ip]
	delete(w.byIP, ip)
	w.n -= len(list)
	return list
}

// failAll ends all waits, since the link ends.
func (w *pathWaiters) failAll() {
	for ip := range w.byIP {
		w.failed(ip, ErrLinkDown)
	}
}

// run runs the callbacks that are due. They may call GetPathAsync.
func (w *pathWaiters) run() {
	for len(w.calls) > 0 {
		calls := w.calls
		w.calls = nil
		for _, c := range calls {
			c.w.cb(c.status, c.w.out, c.w.ctx)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"slices"

	"weft/internal/proto/mono"
)

// IsSM is an open issmN: while it is open the port has the capability IsSM. At most one per port is open.
type IsSM struct {
	hub      *Hub
	function uint16
	granted  func(Errno)
}

// OpenIsSM opens the issm of the port of a function. It calls granted once, now or when the one that is open is
// closed: with OK, or the reason of a refusal. Without wait that is EAGAIN if another is open.
func (h *Hub) OpenIsSM(now mono.Time, function uint16, wait bool, granted func(Errno)) *IsSM {
	i := &IsSM{hub: h, function: function, granted: granted}
	if _, ok := h.view.Port(function); !ok {
		granted(ENODEV)
		return i
	}
	if !h.view.Manages() {
		granted(h.notManager(now))
		return i
	}
	p := h.port(function)
	switch {
	case p.isSM == nil:
		p.isSM = i
		h.view.SetIsSM(now, function, true)
		granted(OK)
	case wait && len(p.queue) < maxWaiters:
		p.queue = append(p.queue, i)
	default:
		granted(EAGAIN)
	}
	return i
}

// Close closes i, or ends its wait: granted is not called any more. The first open that waits succeeds.
func (i *IsSM) Close(now mono.Time) {
	p := i.hub.ports[i.function]
	if p == nil {
		return
	}
	if at := slices.Index(p.queue, i); at >= 0 {
		p.queue = slices.Delete(p.queue, at, at+1)
		return
	}
	if p.isSM != i {
		return
	}
	p.isSM = nil
	if len(p.queue) > 0 {
		p.isSM, p.queue = p.queue[0], p.queue[1:]
		p.isSM.granted(OK)
		return
	}
	i.hub.view.SetIsSM(now, i.function, false)
}

// notManager counts an attempt to manage the subnet at a node that may not, and returns its error.
func (h *Hub) notManager(now mono.Time) Errno {
	h.Stats.NotManager++
	h.NotManagerAt = now
	return EPERM
}

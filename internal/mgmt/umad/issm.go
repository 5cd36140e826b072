// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"slices"

	"weft/internal/proto/mono"
)

// IsSM is an open issmN: while it is, the port says of itself that a subnet
// manager is behind it. One at a time can be open.
type IsSM struct {
	hub      *Hub
	function uint16
	granted  func(Errno)
}

// OpenIsSM opens the issm of a function's port. granted is called once, now or
// when whoever has it closes it: with OK, or the reason why it will not be.
// Without wait that is EAGAIN where another has it.
func (h *Hub) OpenIsSM(now mono.Time, function uint16, wait bool, granted func(Errno)) *IsSM {
	i := &IsSM{hub: h, function: function, granted: granted}
	if _, ok := h.view.Port(function); !ok {
		granted(ENODEV)
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

// Close closes i, or ends the wait for it: granted is not called any more. The
// next who waits gets it.
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

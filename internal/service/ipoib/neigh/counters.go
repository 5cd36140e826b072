// SPDX-License-Identifier: Apache-2.0

package neigh

import "weft/internal/proto/wire"

// Counters of an engine since it was made.
type Counters struct {
	ARPTx, ARPRx, NDTx, NDRx uint64 // rx: all that came, whether accepted or not
	// Refused are frames of the link by what was wrong with them.
	Refused [wire.NumFrameRefusals]uint64
	// Ignored are well-formed messages that must not be believed: of a made-up
	// sender, of unknown operation, an advertisement nobody asked for, one
	// without an address from an unknown neighbour, an address that changed a
	// moment ago, a solicitation for another's address.
	IgnoredSender, IgnoredOp, IgnoredAdvert, IgnoredLocked, IgnoredTarget, IgnoredRedirect uint64
	Conflicts                                                                              uint64

	HeaderHits uint64 // packets sent with a neighbour's prepared header
	Queued     uint64 // packets that had to wait

	// Packets of the IP stack that were dropped.
	DropDown       uint64 // no carrier
	DropTooBig     uint64 // longer than the MTU
	DropVersion    uint64 // neither IPv4 nor IPv6, or shorter than its header
	DropNoRoute    uint64 // to nobody: unset, loopback or own address
	DropQueueFull  uint64 // too many wait for the neighbour, or for all
	DropUnresolved uint64 // nobody answered
	DropStackND    uint64 // Neighbor Discovery of the stack's own
	DropStackRS    uint64 // a router solicitation that is malformed

	Errors, ErrorsLimited uint64 // ICMP errors to the IP stack, and those that were too many
	NoSource              uint64 // solicitations that no own address could send
	Evicted               uint64 // neighbours that went because the table was full
	Failed                uint64 // neighbours that did not answer
	AddrsRefused          uint64 // own addresses beyond the bound
	GroupsRefused         uint64 // groups beyond the bound
	BadReports            uint64 // malformed reports of membership
}

// Counter is one by its name.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns a copy of the counters.
func (e *Engine) Counters() Counters { return e.c }

// List returns all counters by their names, in a fixed order.
func (c *Counters) List() []Counter {
	l := []Counter{
		{"arp_tx", c.ARPTx}, {"arp_rx", c.ARPRx}, {"nd_tx", c.NDTx}, {"nd_rx", c.NDRx},
		{"neigh_ignored_sender", c.IgnoredSender}, {"neigh_ignored_op", c.IgnoredOp}, {"neigh_ignored_advert", c.IgnoredAdvert},
		{"neigh_ignored_locked", c.IgnoredLocked}, {"neigh_ignored_target", c.IgnoredTarget}, {"neigh_ignored_redirect", c.IgnoredRedirect},
		{"neigh_conflicts", c.Conflicts}, {"header_cache_hits", c.HeaderHits}, {"neigh_queued", c.Queued},
		{"neigh_drop_down", c.DropDown}, {"neigh_drop_too_big", c.DropTooBig}, {"neigh_drop_version", c.DropVersion},
		{"neigh_drop_no_route", c.DropNoRoute}, {"neigh_drop_queue_full", c.DropQueueFull}, {"neigh_drop_unresolved", c.DropUnresolved},
		{"neigh_drop_stack_nd", c.DropStackND}, {"neigh_drop_stack_rs", c.DropStackRS},
		{"icmp_errors", c.Errors}, {"icmp_errors_limited", c.ErrorsLimited}, {"neigh_no_source", c.NoSource},
		{"neigh_evicted", c.Evicted}, {"neigh_failed", c.Failed}, {"addrs_refused", c.AddrsRefused},
		{"groups_refused", c.GroupsRefused}, {"bad_reports", c.BadReports},
	}
	for i, v := range c.Refused {
		if r := wire.FrameRefusal(i); r != wire.FrameOK {
			l = append(l, Counter{"rx_" + r.String(), v})
		}
	}
	return l
}

// SPDX-License-Identifier: Apache-2.0

package neigh

import "weft/internal/proto/wire"

// Counters are the counters of an engine since it was made. The counters of ARP and Neighbor Discovery include received
// messages that were not accepted. A link has counters of its own for them and for header hits.
type Counters struct {
	ARPTx uint64 `counter:"-"`
	ARPRx uint64 `counter:"-"`
	NDTx  uint64 `counter:"-"`
	NDRx  uint64 `counter:"-"`

	// Well-formed messages that are ignored.
	IgnoredSender   uint64 `counter:"neigh_ignored_sender"`   // the sender's address is not a node's
	IgnoredOp       uint64 `counter:"neigh_ignored_op"`       // unknown ARP operation
	IgnoredAdvert   uint64 `counter:"neigh_ignored_advert"`   // unsolicited, or of an unknown neighbour
	IgnoredLocked   uint64 `counter:"neigh_ignored_locked"`   // the address of the neighbour changed within lockTime
	IgnoredTarget   uint64 `counter:"neigh_ignored_target"`   // a request for an address of another node
	IgnoredRedirect uint64 `counter:"neigh_ignored_redirect"` // redirects
	Conflicts       uint64 `counter:"neigh_conflicts"`        // another node uses an address of ours

	HeaderHits uint64 `counter:"-"`            // packets sent with a neighbour's prepared header
	Queued     uint64 `counter:"neigh_queued"` // packets that waited for an address

	// Dropped packets of the IP stack.
	DropDown       uint64 `counter:"neigh_drop_down"`       // no carrier
	DropTooBig     uint64 `counter:"neigh_drop_too_big"`    // longer than the MTU
	DropVersion    uint64 `counter:"neigh_drop_version"`    // neither IPv4 nor IPv6, or shorter than its header
	DropNoRoute    uint64 `counter:"neigh_drop_no_route"`   // destination unset, loopback or an own address
	DropQueueFull  uint64 `counter:"neigh_drop_queue_full"` // the queue of the neighbour, or of all, is full
	DropUnresolved uint64 `counter:"neigh_drop_unresolved"` // no answer
	DropStackND    uint64 `counter:"neigh_drop_stack_nd"`   // Neighbor Discovery of the IP stack
	DropStackRS    uint64 `counter:"neigh_drop_stack_rs"`   // a malformed router solicitation

	Errors        uint64 `counter:"icmp_errors"`         // ICMP errors to the IP stack
	ErrorsLimited uint64 `counter:"icmp_errors_limited"` // ICMP errors beyond the rate limit
	NoSource      uint64 `counter:"neigh_no_source"`     // solicitations without a source address to send from
	Evicted       uint64 `counter:"neigh_evicted"`       // neighbours removed because the table was full
	Failed        uint64 `counter:"neigh_failed"`        // neighbours that did not answer
	AddrsRefused  uint64 // own addresses beyond the bound
	GroupsRefused uint64 // groups beyond the bound
	BadReports    uint64 // malformed membership reports

	// Refused are received frames by what is wrong with them.
	Refused Refusals
}

// Refusals counts refused frames by reason.
type Refusals [wire.NumFrameRefusals]uint64

// CounterName implements counters.Namer.
func (Refusals) CounterName(i int) string {
	if r := wire.FrameRefusal(i); r != wire.FrameOK {
		return "rx_" + r.String()
	}
	return ""
}

// Counters returns a copy of the counters.
func (e *Engine) Counters() Counters { return e.c }

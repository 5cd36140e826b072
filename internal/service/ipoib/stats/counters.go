// SPDX-License-Identifier: Apache-2.0

// Package stats is the counters of an IP link: those of a Linux network device, the reasons for which frames are
// dropped, and those of the driver (docs/notes/ipoib.md). The parts of a link raise them through a Recorder; the
// control interface lists them. It counts only: it has no clock, no lock and no output. The lane of the link owns it.
package stats

import (
	"weft/internal/proto/counters"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
)

// Counters are the counters of a link since it was made. Names are those of a Linux network device where that has them.
// Octets are those of UD payloads: encapsulation header and packet.
type Counters struct {
	Net    NetCounters `counter:","`
	Drops  Drops
	Driver DriverCounters `counter:","`
	Neigh  neigh.Counters `counter:","` // of the engine; its drops are in Net and Drops, too
}

// NetCounters are the counters of a network device (struct rtnl_link_stats64). A packet is sent when its work request
// has completed.
type NetCounters struct {
	RxPackets, TxPackets uint64
	RxBytes, TxBytes     uint64
	RxErrors, TxErrors   uint64
	RxDropped, TxDropped uint64
	Multicast            uint64 // received multicast packets, without broadcasts
	RxLengthErrors       uint64 // too short or too long
	RxFrameErrors        uint64 // the header contradicts the frame
	RxFIFOErrors         uint64 // receives that completed in error
	RxMissedErrors       uint64 // the IP stack had no room
	TxAbortedErrors      uint64 // sends that completed as flushed
	TxCarrierErrors      uint64 // no carrier
	TxFIFOErrors         uint64 // no send slot
	TxWindowErrors       uint64 // the queue of a destination was full
	RxNoHandler          uint64 `counter:"rx_nohandler"` // unknown EtherType
}

// Drop is the reason for which a frame was dropped.
type Drop uint8

// Reasons of drops. Status reasons are of work requests that completed in error.
const (
	DropNoPath Drop = iota
	DropQueueFull
	DropMcastNotJoined
	DropUnknownEtherType
	DropOwnEcho
	DropARPInvalid
	DropNDInvalid
	DropTooBig
	DropLinkDown
	DropNoRoute
	DropShort
	DropVersion
	DropRxStatus
	DropTxStatus
	DropTxFlushed
	DropNoSlot
	DropStackFull
	NumDrops = iota
)

var dropNames = [NumDrops]string{"drop_no_path", "drop_queue_full", "drop_mcast_not_joined", "drop_unknown_ethertype",
	"drop_own_echo", "drop_arp_invalid", "drop_nd_invalid", "drop_too_big", "drop_link_down", "drop_no_route",
	"drop_short_frame", "drop_version_mismatch", "drop_rx_status", "drop_tx_status", "drop_tx_flushed", "drop_no_slot",
	"drop_stack_full"}

// String returns the counter's name.
func (d Drop) String() string {
	if int(d) < len(dropNames) {
		return dropNames[d]
	}
	return "drop_unknown"
}

// DriverCounters are what a link counts beyond a network device.
type DriverCounters struct {
	PathQueries, PathFailures   uint64
	ShadowEntries               uint64 // at present
	ShadowCreated, ShadowPurged uint64
	ShadowRefreshed             uint64
	// Limits per port: entries that a port's frames would have made beyond its share, and path queries that were queued
	// behind its other ones.
	ShadowRefusedShare, PathWaitsShare uint64
	McastJoins, McastJoinFailures      uint64
	McastLeaves                        uint64
	McastSendOnly                      uint64 `counter:"mcast_sendonly"`
	ARPTx, ARPRx, NDTx, NDRx           uint64
	TxTimeouts, TxCopied, TxMapped     uint64
	CQEvents, Rejoins                  uint64
	CarrierChanges                     uint64
	GetPathCalls                       uint64 `counter:"getpath_calls"`
	GetPathENXIO                       uint64 `counter:"getpath_enxio"`
	LoggedErrors                       uint64
	HeaderCacheHits                    uint64

	// Connected mode.
	Conns        uint64 // at present
	ConnOpened   uint64
	ConnFailed   uint64 // no answer, or no resources here
	ConnRejected uint64 // the peer rejected the request
	ConnLost     uint64 // broke while open
	ConnIdle     uint64 // ended after conn_idle without use
	ConnEvicted  uint64 // ended to make room for another
	ConnNoRoom   uint64 // requests of either side that max_conns or a share of it did not admit
	ConnCrossed  uint64 // both sides sent a request at the same time
	ConnBadData  uint64 // invalid private data, or a request that did not come from the neighbour's port
	ConnTx       uint64 `counter:"conn_tx_packets"` // packets sent by connections
	ConnRx       uint64 `counter:"conn_rx_packets"` // packets received by connections
}

// AddEngine adds the counters of the engine: what it dropped counts as dropped by the link.
func (c *Counters) AddEngine(e neigh.Counters) {
	c.Neigh = e
	add := func(n uint64, to ...*uint64) {
		for _, p := range to {
			*p += n
		}
	}
	n, d := &c.Net, &c.Drops
	add(e.DropDown, &n.TxDropped, &n.TxErrors, &n.TxCarrierErrors, &d[DropLinkDown])
	add(e.DropTooBig, &n.TxDropped, &n.TxErrors, &d[DropTooBig])
	add(e.DropVersion, &n.TxDropped, &n.TxErrors, &d[DropVersion])
	add(e.DropNoRoute, &n.TxDropped, &d[DropNoRoute])
	add(e.DropQueueFull, &n.TxDropped, &n.TxWindowErrors, &d[DropQueueFull])
	add(e.DropUnresolved, &n.TxDropped, &d[DropNoPath])
	add(e.DropStackRS, &n.TxDropped, &n.TxErrors, &d[DropNDInvalid])
	for i, v := range e.Refused {
		switch r := wire.FrameRefusal(i); {
		case r == wire.FrameOK:
		case r == wire.FrameShort:
			add(v, &n.RxErrors, &n.RxLengthErrors, &d[DropShort])
		case r >= wire.NDHopLimit:
			add(v, &n.RxErrors, &n.RxFrameErrors, &d[DropNDInvalid])
		case r >= wire.ARPHardwareType:
			add(v, &n.RxErrors, &n.RxFrameErrors, &d[DropARPInvalid])
		}
	}
}

// Drops counts dropped frames by reason.
type Drops [NumDrops]uint64

// CounterName implements counters.Namer.
func (Drops) CounterName(i int) string { return dropNames[i] }

// Counter is a counter with its name.
type Counter struct {
	Name  string
	Value uint64
}

// List returns all counters with their names, in a fixed order.
func (c *Counters) List() (list []Counter) {
	counters.Each("", c, func(name string, v uint64) { list = append(list, Counter{name, v}) })
	return list
}

// Recorder raises the counters of one link. It belongs to the link's lane.
type Recorder struct {
	Counters
	// OnDrop, unless nil, is called for each dropped frame.
	OnDrop func(Drop)
}

// Drop counts a dropped frame by its reason only.
func (r *Recorder) Drop(d Drop) {
	r.Drops[d]++
	if r.OnDrop != nil {
		r.OnDrop(d)
	}
}

// TxDrop counts a frame that is not sent.
func (r *Recorder) TxDrop(d Drop) {
	r.Net.TxDropped++
	r.Drop(d)
}

// TxError counts a frame that is not sent because of an error.
func (r *Recorder) TxError(d Drop) {
	r.Net.TxErrors++
	r.TxDrop(d)
}

// RxDrop counts a received frame that is dropped although nothing is wrong with it.
func (r *Recorder) RxDrop(d Drop) {
	r.Net.RxDropped++
	r.Drop(d)
}

// RxError counts a received frame that is dropped because of an error.
func (r *Recorder) RxError(d Drop) {
	r.Net.RxErrors++
	r.Drop(d)
}

// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"slices"

	"weft/internal/service/ipoib/neigh"
)

// Counters of a Link since it was made. Names are those of a Linux network
// device where it has them. Octets are those of UD payloads: encapsulation header and packet.
type Counters struct {
	Net    NetCounters
	Drops  [NumDrops]uint64
	Driver DriverCounters
	Neigh  neigh.Counters // of the engine; what is dropped there is in Net and Drops, too
}

// NetCounters are those of a network device.
type NetCounters struct {
	RxPackets, TxPackets uint64 // sent: completed
	RxBytes, TxBytes     uint64
	RxErrors, TxErrors   uint64
	RxDropped, TxDropped uint64
	Multicast            uint64 // received, without broadcasts
	Collisions           uint64
	RxLengthErrors       uint64 // too short or too long
	RxOverErrors         uint64
	RxCRCErrors          uint64
	RxFrameErrors        uint64 // not what its header says
	RxFIFOErrors         uint64 // completed in error
	RxMissedErrors       uint64 // the IP stack took no more
	TxAbortedErrors      uint64 // flushed
	TxCarrierErrors      uint64 // no carrier
	TxFIFOErrors         uint64 // no send slot
	TxHeartbeatErrors    uint64
	TxWindowErrors       uint64 // too many frames wait for an address
	RxCompressed         uint64
	TxCompressed         uint64
	RxNoHandler          uint64 // unknown EtherType
}

// Drop is why a frame was dropped.
type Drop uint8

// Reasons of drops.
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
	DropRxStatus // completed in error
	DropTxStatus
	DropTxFlushed
	DropNoSlot
	DropStackFull
	NumDrops = iota
)

var dropNames = [NumDrops]string{"drop_no_path", "drop_queue_full", "drop_mcast_not_joined", "drop_unknown_ethertype", "drop_own_echo",
	"drop_arp_invalid", "drop_nd_invalid", "drop_too_big", "drop_link_down", "drop_no_route", "drop_short_frame",
	"drop_version_mismatch", "drop_rx_status", "drop_tx_status", "drop_tx_flushed", "drop_no_slot", "drop_stack_full"}

// String returns the counter's name.
func (d Drop) String() string {
	if int(d) < len(dropNames) {
		return dropNames[d]
	}
	return "drop_unknown"
}

// DriverCounters are what a Link counts beyond a network device.
type DriverCounters struct {
	PathQueries, PathFailures   uint64
	ShadowEntries               uint64 // now
	ShadowCreated, ShadowPurged uint64
	ShadowRefreshed             uint64
	// What a port had the link do beyond its share: entries not made, paths that waited.
	ShadowRefusedShare, PathWaitsShare uint64
	McastJoins, McastJoinFailures      uint64
	McastLeaves, McastSendOnly         uint64
	ARPTx, ARPRx, NDTx, NDRx           uint64
	TxTimeouts, TxCopied, TxMapped     uint64
	CQEvents, Rejoins                  uint64
	CarrierChanges                     uint64
	GetPathCalls, GetPathENXIO         uint64
	LoggedErrors                       uint64
	HeaderCacheHits                    uint64
	// Of connected mode: now, made, failed for want of an answer or otherwise, refused by the peer, broken, ended because nobody used
	// them, or for others, not made or taken for want of room, asked for by both sides, refused for what the peer said of itself.
	Conns, ConnOpened, ConnFailed, ConnRejected, ConnLost uint64
	ConnIdle, ConnEvicted, ConnNoRoom                     uint64
	ConnCrossed, ConnBadData                              uint64
	ConnTx, ConnRx                                        uint64 // packets
}

// Counter is one by its name.
type Counter struct {
	Name  string
	Value uint64
}

// List returns all counters by their names, in a fixed order.
func (c *Counters) List() []Counter {
	n, d := &c.Net, &c.Driver
	l := []Counter{
		{"rx_packets", n.RxPackets}, {"tx_packets", n.TxPackets}, {"rx_bytes", n.RxBytes}, {"tx_bytes", n.TxBytes},
		{"rx_errors", n.RxErrors}, {"tx_errors", n.TxErrors}, {"rx_dropped", n.RxDropped}, {"tx_dropped", n.TxDropped},
		{"multicast", n.Multicast}, {"collisions", n.Collisions}, {"rx_length_errors", n.RxLengthErrors},
		{"rx_over_errors", n.RxOverErrors}, {"rx_crc_errors", n.RxCRCErrors}, {"rx_frame_errors", n.RxFrameErrors},
		{"rx_fifo_errors", n.RxFIFOErrors}, {"rx_missed_errors", n.RxMissedErrors}, {"tx_aborted_errors", n.TxAbortedErrors},
		{"tx_carrier_errors", n.TxCarrierErrors}, {"tx_fifo_errors", n.TxFIFOErrors}, {"tx_heartbeat_errors", n.TxHeartbeatErrors},
		{"tx_window_errors", n.TxWindowErrors}, {"rx_compressed", n.RxCompressed}, {"tx_compressed", n.TxCompressed},
		{"rx_nohandler", n.RxNoHandler},
	}
	for i, v := range c.Drops {
		l = append(l, Counter{Drop(i).String(), v})
	}
	l = append(l,
		Counter{"path_queries", d.PathQueries}, Counter{"path_failures", d.PathFailures}, Counter{"shadow_entries", d.ShadowEntries},
		Counter{"shadow_created", d.ShadowCreated}, Counter{"shadow_purged", d.ShadowPurged}, Counter{"shadow_refreshed", d.ShadowRefreshed},
		Counter{"shadow_refused_share", d.ShadowRefusedShare}, Counter{"path_waits_share", d.PathWaitsShare},
		Counter{"mcast_joins", d.McastJoins}, Counter{"mcast_join_failures", d.McastJoinFailures}, Counter{"mcast_leaves", d.McastLeaves},
		Counter{"mcast_sendonly", d.McastSendOnly}, Counter{"arp_tx", d.ARPTx}, Counter{"arp_rx", d.ARPRx}, Counter{"nd_tx", d.NDTx},
		Counter{"nd_rx", d.NDRx}, Counter{"tx_timeouts", d.TxTimeouts}, Counter{"tx_copied", d.TxCopied}, Counter{"tx_mapped", d.TxMapped},
		Counter{"cq_events", d.CQEvents}, Counter{"rejoins", d.Rejoins}, Counter{"carrier_changes", d.CarrierChanges},
		Counter{"getpath_calls", d.GetPathCalls}, Counter{"getpath_enxio", d.GetPathENXIO}, Counter{"logged_errors", d.LoggedErrors},
		Counter{"header_cache_hits", d.HeaderCacheHits},
		Counter{"conns", d.Conns}, Counter{"conn_opened", d.ConnOpened}, Counter{"conn_failed", d.ConnFailed}, Counter{"conn_rejected", d.ConnRejected},
		Counter{"conn_lost", d.ConnLost}, Counter{"conn_idle", d.ConnIdle}, Counter{"conn_evicted", d.ConnEvicted}, Counter{"conn_no_room", d.ConnNoRoom},
		Counter{"conn_crossed", d.ConnCrossed}, Counter{"conn_bad_data", d.ConnBadData}, Counter{"conn_tx_packets", d.ConnTx},
		Counter{"conn_rx_packets", d.ConnRx})
	for _, n := range c.Neigh.List() {
		if !slices.ContainsFunc(l, func(x Counter) bool { return x.Name == n.Name }) {
			l = append(l, Counter(n))
		}
	}
	return l
}

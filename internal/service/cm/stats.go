// SPDX-License-Identifier: Apache-2.0

package cm

import "weft/internal/proto/mad"

// Stats count what a Manager did; every refusal has a name.
type Stats struct {
	Sent, Received uint64
	Message        [11]uint64 // received, by attribute from mad.AttrCMREQ on
	Resent         uint64     // after a timeout
	Repeated       uint64     // answered again what had come before
	Duplicates     uint64     // messages that had come before
	Requests       uint64     // delivered to users
	Established    uint64
	Rejected       uint64 // by peers
	Unreachable    uint64
	Disconnected   uint64
	Lookups        uint64 // delivered to users

	DropClass, DropShort uint64 // no message of this class, or of no known kind
	DropPort             uint64 // arrived at a port that there is not
	DropState            uint64 // means nothing in the state the connection is in
	DropUnknown          uint64 // of no connection
	DropForeign          uint64 // of a connection, but not from its peer
	DropBacklog          uint64 // too many requests wait for the listener's user
	DropShare            uint64 // what waits for users has no room for another of this listener's
	DropREQGID           uint64 // a REQ that states another GID than it came from,
	DropREQLID           uint64 // on InfiniBand ports another LID,
	DropREQPKey          uint64 // or another partition
	DropFull             uint64 // too many connections or inquiries
	LostOut              uint64 // too much waits to be sent
	EarlyTimewait        uint64 // ends of TIMEWAIT before their time, to make room

	RejectService, RejectTransport, RejectGID, RejectMTU, RejectStale, RejectFull, RejectCommID uint64
}

var messageNames = [...]string{"req", "mra", "rej", "rep", "rtu", "dreq", "drep", "sidr_req", "sidr_rep", "lap", "apr"}

// count counts a message by its kind; false where there is none such.
func (s *Stats) count(a mad.AttributeID) bool {
	if a < mad.AttrCMREQ || a > mad.AttrCMAPR {
		return false
	}
	s.Message[a-mad.AttrCMREQ]++
	return true
}

// Each calls f with the snake-case name and the value of every counter, in a
// fixed order.
func (s *Stats) Each(f func(name string, v uint64)) {
	f("sent", s.Sent)
	f("received", s.Received)
	for i, n := range messageNames {
		f("received_"+n, s.Message[i])
	}
	for _, e := range [...]struct {
		name string
		v    uint64
	}{
		{"resent", s.Resent}, {"repeated", s.Repeated}, {"duplicates", s.Duplicates}, {"requests", s.Requests},
		{"established", s.Established}, {"rejected", s.Rejected}, {"unreachable", s.Unreachable}, {"disconnected",
			s.Disconnected},
		{"lookups", s.Lookups},
		{"drop_class", s.DropClass}, {"drop_short", s.DropShort}, {"drop_port", s.DropPort}, {"drop_state",
			s.DropState},
		{"drop_unknown", s.DropUnknown}, {"drop_foreign", s.DropForeign}, {"drop_backlog",
			s.DropBacklog}, {"drop_share", s.DropShare},
		{"drop_req_lid", s.DropREQLID}, {"drop_req_gid", s.DropREQGID}, {"drop_req_pkey", s.DropREQPKey},
		{"drop_full", s.DropFull},
		{"lost_out", s.LostOut}, {"early_timewait", s.EarlyTimewait},
		{"reject_service", s.RejectService}, {"reject_transport", s.RejectTransport}, {"reject_gid",
			s.RejectGID}, {"reject_mtu", s.RejectMTU},
		{"reject_stale", s.RejectStale}, {"reject_full", s.RejectFull}, {"reject_comm_id", s.RejectCommID},
	} {
		f(e.name, e.v)
	}
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"golang.org/x/sys/unix"

	"weft/internal/proto/wire"
)

// Counters count what a Link did since Open. Bytes are those of UDP payload:
// BTH through ICRC. Every refusal has its own counter, in packets.
type Counters struct {
	SentPackets, SentBytes uint64
	SentCalls              uint64 // sendmmsg calls that sent something
	SentMessages           uint64 // datagrams or trains of datagrams handed to the kernel
	SentGSO                uint64 // of these, trains that the kernel cut
	SentRuns               uint64
	SendBlocked            uint64 // the socket was full; nothing was lost
	RcvdPackets, RcvdBytes uint64 // accepted packets
	RcvdCalls              uint64 // recvmmsg calls that received something
	RcvdMessages           uint64
	RcvdGRO                uint64 // of these, trains that the kernel joined
	RcvdRuns               uint64
	// Accepted packets whose identification could not be foreseen: RcvdIDSeen
	// bore the one that makes their ICRC right, and of RcvdIDSolved it is not
	// known, so that 16 bits of the ICRC were checked.
	RcvdIDSeen, RcvdIDSolved uint64

	// Refused on the way in, by wire.Refusal, BadICRC included.
	DropRefusal [wire.NumRefusals]uint64
	// DropNotLocal are broadcasts: no address of this host and no group.
	DropNotLocal uint64
	// DropTruncated did not fit its buffer or came without its addresses.
	DropTruncated uint64
	// RcvBufOverflow are datagrams the kernel dropped because the receive
	// buffer was full, RcvErrors failed receive calls.
	RcvBufOverflow, RcvErrors uint64

	// Lost on the way out; the reliable service recovers or reports.
	DropPath        uint64 // the path has no usable pair of addresses or no socket
	DropBlocked     uint64 // sent in spite of Blocked
	DropRun         uint64 // the run breaks the contract of pkt.Burst or a limit of this package
	DropSourceFault uint64 // the payload could not be read
	DropTooBig      uint64 // EMSGSIZE: larger than the path's MTU
	DropNoRoute     uint64 // ENETUNREACH, EHOSTUNREACH, ENETDOWN, ENODEV
	DropDenied      uint64 // EPERM, EACCES: a firewall, or broadcast
	DropBadSource   uint64 // EINVAL, EADDRNOTAVAIL: the source address is not this host's any more
	DropNoMemory    uint64 // ENOBUFS, ENOMEM
	DropSendError   uint64 // any other error
}

// lost counts n packets that a send call refused.
func (c *Counters) lost(e unix.Errno, n uint64) {
	switch e {
	case unix.EMSGSIZE:
		c.DropTooBig += n
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV:
		c.DropNoRoute += n
	case unix.EPERM, unix.EACCES:
		c.DropDenied += n
	case unix.EINVAL, unix.EADDRNOTAVAIL:
		c.DropBadSource += n
	case unix.ENOBUFS, unix.ENOMEM:
		c.DropNoMemory += n
	default:
		c.DropSendError += n
	}
}

// Each calls f with the snake-case name and the value of every counter, in a
// fixed order.
func (c *Counters) Each(f func(name string, v uint64)) {
	for _, e := range [...]struct {
		name string
		v    uint64
	}{
		{"sent_packets", c.SentPackets}, {"sent_bytes", c.SentBytes}, {"sent_calls", c.SentCalls},
		{"sent_messages", c.SentMessages}, {"sent_gso", c.SentGSO}, {"sent_runs", c.SentRuns},
		{"send_blocked", c.SendBlocked},
		{"rcvd_packets", c.RcvdPackets}, {"rcvd_bytes", c.RcvdBytes}, {"rcvd_calls", c.RcvdCalls},
		{"rcvd_messages", c.RcvdMessages}, {"rcvd_gro", c.RcvdGRO}, {"rcvd_runs", c.RcvdRuns},
		{"rcvd_id_seen", c.RcvdIDSeen}, {"rcvd_id_solved", c.RcvdIDSolved},
		{"drop_not_local", c.DropNotLocal}, {"drop_truncated", c.DropTruncated},
		{"rcvbuf_overflow", c.RcvBufOverflow}, {"rcv_errors", c.RcvErrors},
		{"drop_path", c.DropPath}, {"drop_blocked", c.DropBlocked}, {"drop_run", c.DropRun},
		{"drop_source_fault", c.DropSourceFault}, {"drop_too_big", c.DropTooBig},
		{"drop_no_route", c.DropNoRoute}, {"drop_denied", c.DropDenied}, {"drop_bad_source", c.DropBadSource},
		{"drop_no_memory", c.DropNoMemory}, {"drop_send_error", c.DropSendError},
	} {
		f(e.name, e.v)
	}
	for i := wire.OK + 1; i < wire.NumRefusals; i++ {
		f("drop_"+i.String(), c.DropRefusal[i])
	}
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"golang.org/x/sys/unix"

	"weft/internal/fabric/trunk"
)

// Counters count what a Link received that belongs to no peer, and its hellos.
// trunk.Counters has the rest.
type Counters struct {
	RcvdCalls    uint64 // recvmmsg calls that received something
	RcvdMessages uint64
	RcvdGRO      uint64 // of these, trains that the kernel joined
	RcvErrors    uint64 // failed receive calls
	// RcvBufOverflow are datagrams the kernel dropped because the receive
	// buffer was full.
	RcvBufOverflow uint64
	DropUnknown    uint64 // datagrams from an address that is no peer's
	DropTruncated  uint64 // datagrams that did not fit their buffer
	SentHellos     uint64 // and replies
	LostHellos     uint64 // the socket did not take them
}

// Each calls f with the snake-case name and the value of every counter, in a
// fixed order.
func (c *Counters) Each(f func(name string, v uint64)) {
	each(f, []counter{
		{"rcvd_calls", c.RcvdCalls}, {"rcvd_messages", c.RcvdMessages}, {"rcvd_gro", c.RcvdGRO}, {"rcv_errors", c.RcvErrors},
		{"rcvbuf_overflow", c.RcvBufOverflow}, {"drop_unknown_peer", c.DropUnknown}, {"drop_truncated", c.DropTruncated},
		{"sent_hellos", c.SentHellos}, {"lost_hellos", c.LostHellos},
	})
}

type counter struct {
	name string
	v    uint64
}

func each(f func(string, uint64), list []counter) {
	for _, c := range list {
		f(c.name, c.v)
	}
}

// SendCounters count what a Sender sent to one peer.
type SendCounters struct {
	Packets, Datagrams uint64
	Bytes              uint64 // of UDP payload
	Messages           uint64 // datagrams or trains of datagrams handed to the kernel
	GSO                uint64 // of these, trains that the kernel cut
	Blocked            uint64 // the socket was full; nothing was lost
	// Lost are packets that Reserve had no room for, by trunk.Lost.
	Lost [trunk.NumLost]uint64
	// Datagrams that the kernel refused; the reliable service recovers.
	DropTooBig   uint64 // EMSGSIZE: larger than the path's MTU, which has just shrunk
	DropNoRoute  uint64 // ENETUNREACH, EHOSTUNREACH, ENETDOWN, ENODEV
	DropDenied   uint64 // EPERM, EACCES: a firewall
	DropSource   uint64 // EINVAL, EADDRNOTAVAIL: the source address is not this host's
	DropNoMemory uint64 // ENOBUFS, ENOMEM
	DropError    uint64 // any other error
}

// Add adds o to c.
func (c *SendCounters) Add(o *SendCounters) {
	for _, f := range []struct{ to, from *uint64 }{
		{&c.Packets, &o.Packets}, {&c.Datagrams, &o.Datagrams}, {&c.Bytes, &o.Bytes}, {&c.Messages, &o.Messages}, {&c.GSO, &o.GSO},
		{&c.Blocked, &o.Blocked}, {&c.DropTooBig, &o.DropTooBig}, {&c.DropNoRoute, &o.DropNoRoute}, {&c.DropDenied, &o.DropDenied},
		{&c.DropSource, &o.DropSource}, {&c.DropNoMemory, &o.DropNoMemory}, {&c.DropError, &o.DropError},
	} {
		*f.to += *f.from
	}
	for i, v := range o.Lost {
		c.Lost[i] += v
	}
}

// lost counts n datagrams that a send call refused.
func (c *SendCounters) lost(e unix.Errno, n uint64) {
	switch e {
	case unix.EMSGSIZE:
		c.DropTooBig += n
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV:
		c.DropNoRoute += n
	case unix.EPERM, unix.EACCES:
		c.DropDenied += n
	case unix.EINVAL, unix.EADDRNOTAVAIL:
		c.DropSource += n
	case unix.ENOBUFS, unix.ENOMEM:
		c.DropNoMemory += n
	default:
		c.DropError += n
	}
}

// Each calls f with the snake-case name and the value of every counter, in a
// fixed order.
func (c *SendCounters) Each(f func(name string, v uint64)) {
	each(f, []counter{
		{"sent_packets", c.Packets}, {"sent_datagrams", c.Datagrams}, {"sent_bytes", c.Bytes}, {"sent_messages", c.Messages},
		{"sent_gso", c.GSO}, {"send_blocked", c.Blocked},
	})
	for l := trunk.NotLost + 1; l < trunk.NumLost; l++ {
		f("drop_"+l.String(), c.Lost[l])
	}
	each(f, []counter{
		{"drop_too_big", c.DropTooBig}, {"drop_no_route", c.DropNoRoute}, {"drop_denied", c.DropDenied}, {"drop_bad_source", c.DropSource},
		{"drop_no_memory", c.DropNoMemory}, {"drop_send_error", c.DropError},
	})
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/counters"
)

// Counters count what a Link received that belongs to no peer, and its hellos.
// trunk.Counters has the rest.
type Counters struct {
	RcvdCalls    uint64 // recvmmsg calls that received something
	RcvdMessages uint64 // datagrams or trains of datagrams from the kernel
	RcvdGRO      uint64 // of these, trains that the kernel joined
	RcvErrors    uint64 // failed receive calls
	// datagrams that the kernel dropped because the receive buffer was full
	RcvBufOverflow uint64 `counter:"rcvbuf_overflow"`
	DropUnknown    uint64 `counter:"drop_unknown_peer"` // datagrams from an address that is no peer's
	DropTruncated  uint64 // datagrams that did not fit their buffer
	SentHellos     uint64 // and replies
	DropHellos     uint64 // hellos and replies that the socket refused
	DropAnswers    uint64 // cookies that their socket refused: it is full
	trunk.Strays          // datagrams of no session, and handshakes
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *Counters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

// SendCounters count what a Sender sent to one peer.
type SendCounters struct {
	Packets   uint64      `counter:"sent_packets"`
	Datagrams uint64      `counter:"sent_datagrams"`
	Bytes     uint64      `counter:"sent_bytes"`    // of UDP payload
	Messages  uint64      `counter:"sent_messages"` // datagrams or trains of datagrams handed to the kernel
	GSO       uint64      `counter:"sent_gso"`      // of these, trains that the kernel cut
	Blocked   uint64      `counter:"send_blocked"`  // the socket was full; nothing was dropped
	Drops     trunk.Drops // packets that Reserve refused
	// Datagrams that the kernel refused; the reliable service recovers. After
	// DropTooBig the size of datagrams follows the path's new MTU.
	udpsock.SendErrors
}

// Add adds o to c.
func (c *SendCounters) Add(o *SendCounters) {
	c.Packets += o.Packets
	c.Datagrams += o.Datagrams
	c.Bytes += o.Bytes
	c.Messages += o.Messages
	c.GSO += o.GSO
	c.Blocked += o.Blocked
	for i, v := range o.Drops {
		c.Drops[i] += v
	}
	c.SendErrors.Add(&o.SendErrors)
}

// Each calls f with the name and the value of every counter, in a fixed order.
func (c *SendCounters) Each(f func(name string, v uint64)) { counters.Each("", c, f) }

// SPDX-License-Identifier: Apache-2.0

// Package roce is the door to RoCEv2 peers: it carries runs of packets over
// the host's own IP addresses through ordinary UDP sockets, port 4791.
//
// What comes in: runs to send (Send, Flush) with payload by reference, and
// datagrams from the network; what goes out: datagrams, many per system call,
// and received runs (Recv), cut at the transport's rules and no others. One
// lane of package node owns a Link and calls it; a Link has no goroutine and no
// lock, and must never be called concurrently, but for Join and Leave.
// It must never know a queue pair, block, allocate per packet, or drop without
// counting under a name.
//
// # Why plain sockets can be a RoCEv2 peer
//
// The invariant CRC covers the IPv4 identification and the DF bit, which a UDP
// socket does not expose. On Linux an unconnected UDP socket that forbids
// fragmentation (IP_MTU_DISCOVER = IP_PMTUDISC_DO) sends DF and identification
// 0, and the segments of one UDP_SEGMENT call bear 0, 1, 2, … in order. So the
// sender knows them all; TestCapture proves it on a wire. The receiver does not
// see the peer's identification. It foresees that of a peer which sends as above.
// For others it finds the one with which the CRC is right
// (wire.Seed.VerifyAnyID): that there is one rejects all but one in 65,536 of the
// corrupted packets, and where a raw socket is allowed (CAP_NET_RAW) it tells
// whether the packet bore it, which rejects the rest. Of packets that the kernel
// coalesced only the first one's is seen; the others must follow it or equal it,
// or else count as solved (Counters.RcvdIDSolved). Over IPv6 nothing is hidden.
//
// The raw socket costs nothing for packets of peers that send as above, and some
// 1 µs for one of another that comes alone, a fifth of what it costs otherwise.
package roce

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
// see the peer's identification and accepts any with which the CRC is right
// (wire.Seed.VerifyAnyID), which still rejects all but one in 65,536 of the
// corrupted packets; over IPv6 nothing is hidden.
package roce

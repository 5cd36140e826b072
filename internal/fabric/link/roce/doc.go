// SPDX-License-Identifier: Apache-2.0

// Package roce is the link to RoCEv2 peers: it carries bursts of packets over the host's own IP
// addresses through ordinary UDP sockets, port 4791.
//
// What comes in: bursts to send (Send, Flush) with payload by reference, and datagrams from the
// network; what goes out: datagrams, many per system call, and received bursts (Recv), cut by the
// transport's rules only. One lane of package node owns a Link and calls it. A Link has no goroutine
// and no lock; its calls must not overlap, except Join and Leave. It must never depend on a queue
// pair, block, allocate per packet, or drop a packet without a counter for the reason.
//
// # How plain sockets can be a RoCEv2 peer
//
// The invariant CRC covers the IPv4 identification and the DF bit, which a UDP socket does not expose.
// On Linux an unconnected UDP socket that forbids fragmentation (IP_MTU_DISCOVER = IP_PMTUDISC_DO)
// sends DF and identification 0; the segments of one UDP_SEGMENT call have 0, 1, 2, … in order. So the
// sender can compute the ICRC; TestCapture proves it on a wire. The receiver's socket does not return
// the peer's identification. The receiver predicts it for a peer that sends as above. For other peers
// it computes the identification with which the CRC is right (wire.Seed.VerifyAnyID): its existence
// rejects all but one in 65,536 of the corrupted packets. With a raw socket (CAP_NET_RAW) the receiver
// also compares it with the identification in the packet, which rejects the rest. Of packets that the
// kernel coalesced, the raw socket shows the first one's identification only; the others must be
// consecutive or equal, or else count as solved (Counters.RcvdIDSolved). Over IPv6 all covered fields
// are visible.
//
// The raw socket costs nothing for packets of peers that send as above. It costs about 1 µs for each
// single packet of another peer, a fifth of that packet's total cost.
package roce

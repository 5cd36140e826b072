// SPDX-License-Identifier: Apache-2.0

// Package roceframe carries RoCEv2 in Ethernet frames: it is the link of a function with a port in a
// virtual Ethernet switch.
//
// What comes in: bursts to send (Send) with payload by reference, and frames of the segment (Receive);
// what goes out: whole frames with their headers, which the sender of the port's frames reads (Read),
// and received bursts (Recv). It has no socket and no clock. One lane of package node owns a Link and
// calls it. A Link has no goroutine and no lock; its calls must not overlap. It must never depend on a
// queue pair, block, allocate per packet, or drop a packet without a counter for the reason.
//
// The caller resolves neighbours (ARP, Neighbor Discovery): the Link requests it (Config.Resolve) and
// gets the result (Resolved). Until then it holds a bounded number of frames.
//
// All fields of a frame are visible in both directions, unlike with sockets (package roce): the
// package chooses the IPv4 identification of what it sends, and checks all that the ICRC covers in
// what it receives, the identification included. A train of packets is one frame with an
// ether.Offload; it is cut into packets where it leaves the node. The cut increments the
// identification, and the ICRCs are computed for that.
package roceframe

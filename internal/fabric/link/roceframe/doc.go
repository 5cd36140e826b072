// SPDX-License-Identifier: Apache-2.0

// Package roceframe carries RoCEv2 in Ethernet frames: it is the link of a function whose
// port is in a virtual Ethernet switch.
//
// What comes in: runs to send (Send) with payload by reference, and frames of the segment
// (Take); what goes out: whole frames, headers and all, to be read (Read) by whoever sends the frames of a
// port, and received runs (Recv). It has no socket and no clock. One lane of package node owns a Link and calls it; a
// Link has no goroutine and no lock, and must never be called concurrently. It must never know a queue pair, wait, allocate
// per packet, or drop without counting under a name.
//
// Addresses of neighbours are somebody else's to find (ARP, Neighbor Discovery): the Link asks (Config.Ask) and is told
// (Answer). What is sent meanwhile is held, up to a bound.
//
// Everything of a frame is at hand in both directions, other than with sockets (package roce): what is sent bears an IPv4
// identification of this package's choice, and of what is received all that the ICRC covers is checked, the identification too.
// A train of packets is one frame with an ether.Offload, which is cut into packets where it leaves the node; cutting counts
// identifications up, and the ICRCs are computed for that.
package roceframe

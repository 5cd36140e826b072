// SPDX-License-Identifier: Apache-2.0

// Package neigh resolves the next hops of IP packets on an IPoIB link: ARP (RFC 826) and Neighbor Discovery (RFC 4861,
// RFC 4862) with the hardware addresses of RFC 4391. It also follows the multicast groups that the IP stack receives
// (docs/notes/ipoib.md, section 4). The IP stack above takes no part in either: its interface has no link layer.
//
// What comes in: packets of the IP stack with their next hops, frames of the link, the addresses of the interface, and
// time. What goes out, through Out: frames with hard headers, packets for the IP stack, groups to join and to leave,
// and hardware addresses as they become known. Package ipoib calls it, on the lane that owns the link. It never blocks,
// reads a clock, or allocates per packet.
package neigh

// SPDX-License-Identifier: Apache-2.0

// Package neigh finds out where IP packets go on an IPoIB link: address
// resolution by ARP (RFC 826) and Neighbor Discovery (RFC 4861, RFC 4862) with
// the addresses of RFC 4391, and the groups that the IP stack wants to
// receive (docs/notes/ipoib.md, 4). An IP stack above has no part in either: to
// it the link has no addresses.
//
// What comes in: packets of the IP stack with their next hops, frames of the
// link, the addresses of the interface, and time. What goes out, through Out:
// frames with hard headers, packets for the IP stack, groups to join and to
// leave, and what was learned. Package ipoib calls it, on the lane that owns
// the link. It must never block, read a clock, call itself through Out, or
// allocate per packet.
package neigh

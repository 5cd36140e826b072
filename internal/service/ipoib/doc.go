// SPDX-License-Identifier: Apache-2.0

// Package ipoib is IP over InfiniBand (RFC 4391, RFC 4392): a Link is one IP
// interface, that of a channel adapter, a port and a partition; a Driver makes links
// appear and vanish with adapters, ports and P_Keys (docs/notes/ipoib.md).
//
// What comes in: packets of an IP stack with their next hops, completions,
// answers of the subnet administration, events of ports, and time. What goes out:
// work requests and queries through the AL, packets and news through the
// Device. The lane that owns a link calls it; package node joins both interfaces to an
// ordinary session of the adapter and to a back end of package hostnet. It
// must never block, start a goroutine, read a clock, or allocate per packet.
package ipoib

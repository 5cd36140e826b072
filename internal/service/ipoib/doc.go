// SPDX-License-Identifier: Apache-2.0

// Package ipoib is IP over InfiniBand (RFC 4391, RFC 4392): a Link is one IP interface, of a channel adapter, a port
// and a partition; a Driver adds and removes links as adapters, ports and P_Keys come and go (docs/notes/ipoib.md).
//
// What comes in: packets of an IP stack with their next hops, completions, answers of the subnet administration, events
// of ports, and time. What goes out: work requests and SA requests through Access, packets and events through Device.
// The lane that owns a link calls it; the node implements Access with an ordinary session of the adapter, and Device
// with a back end of the host. It never blocks, starts a goroutine, reads a clock, or allocates per packet.
//
// The parts of a Link: attributes (what all parts read), transactions (with the SA), shadow (shadow table, paths and
// quotas), groups, sender, receiver, queuePair (both with the completion queue), forwarder (how a frame travels),
// pathWaiters (get-path), reporter (events and log). Package neigh resolves next hops, package connected is connected
// mode, package stats has the counters.
package ipoib

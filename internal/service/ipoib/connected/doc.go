// SPDX-License-Identifier: Apache-2.0

// Package connected is the connected mode of an IP link (RFC 4755): one reliable connection with each neighbour that
// takes one, for IP packets of up to 65520 octets (docs/notes/ipoib.md, section 12).
//
// What comes in: frames for a neighbour (Conns.Send), events of connections (Conns.HandleEvent), completions
// (Conns.Sent, Conns.Received) and time (Conns.Tick). What goes out: requests to the communication manager (Handshake),
// work requests (QueuePairs, SharedQueue), frames that go another way (Link) and questions about neighbours
// (Neighbours). The Link of package ipoib calls it, on its lane. It never blocks, starts a goroutine or reads a clock,
// and allocates nothing per packet that finds its connection open.
package connected

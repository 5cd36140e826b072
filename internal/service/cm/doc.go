// SPDX-License-Identifier: Apache-2.0

// Package cm is the communication manager of a node: the exchange that connects queue pairs of
// different nodes, and the lookup of a datagram service's queue pair (IBA volume 1, chapter 12;
// docs/notes/cm.md).
//
// What comes in: datagrams that arrived at queue pair 1 of a port, calls of users (Listen, Connect,
// Lookup and the methods of Conn and Inquiry), and time. What goes out: datagrams to send (Next), and
// events, through the Handler of the listener, connection or lookup. The communication goroutine of a
// node calls it. It reads no clock, never blocks, does not modify queue pairs (users modify theirs,
// with the attributes of Conn.QPAttr), and holds no more than its Limits, for any behaviour of users
// and peers.
package cm

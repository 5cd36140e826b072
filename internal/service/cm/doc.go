// SPDX-License-Identifier: Apache-2.0

// Package cm is the communication manager of a node: how queue pairs of
// different nodes become connected, and how a service is asked for the queue pair
// that it is to be had by (IBA volume 1, chapter 12; docs/notes/cm.md).
//
// What comes in: datagrams that arrived at queue pair 1 of a port, what users
// want (Listen, Connect, Lookup and the methods of Conn and Inquiry), and time.
// What goes out: datagrams to send (Next), and events, through the Handler of
// whatever they concern. The communication goroutine of a node calls it. It reads no
// clock, waits for nobody, touches no queue pair (users move theirs, by what
// Conn.QPAttr says), and holds no more than its Limits, whatever users and peers do.
package cm

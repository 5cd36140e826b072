// SPDX-License-Identifier: Apache-2.0

// Package udp carries trunks between nodes over UDP: package trunk with sockets (docs/notes/trunk.md).
//
// What comes in: packets that lanes build in a Sender's buffer, datagrams from configured peers; what
// goes out: datagrams, trains of equal ones by one GSO call, and whole received packets. One lane of
// package node owns the Link: it receives, keeps the trunks up, and gets the events. Each lane that
// sends owns a Sender. Neither has a goroutine or a lock; the calls of one must not overlap. The
// package must never read a packet's content, block, allocate per packet, or drop a packet without a
// counter for the reason.
package udp

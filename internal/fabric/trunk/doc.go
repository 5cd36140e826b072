// SPDX-License-Identifier: Apache-2.0

// Package trunk is the protocol between the vswitches of two nodes, without a socket: it packs whole
// native packets into datagrams and back, and tracks which peers are present (docs/notes/trunk.md).
//
// What comes in: packets to send, built in place in a Batch; datagrams with the index of the source
// peer, and the time, into a Core. What goes out: datagrams as pieces of the Batch's buffer, equal
// ones as trains; whole received packets; hellos; events. Called by the carriers link/udp and
// link/inmem. It never reads a packet's content, delivers none twice or in part, and must never
// allocate per packet, read a clock or touch a socket.
//
// A Core belongs to one goroutine and so does a Batch, not necessarily the same: the state of a peer
// that a Batch depends on is a Remote, a value that the carrier passes between the two.
package trunk

// SPDX-License-Identifier: Apache-2.0

// Package udp carries trunks between nodes over UDP: package trunk with
// sockets (docs/notes/trunk.md).
//
// What comes in: packets that lanes build in a Sender's buffer, datagrams from
// the peers it was told of; what goes out: datagrams, trains of equal ones by
// one GSO call, and whole received packets. One lane of package node owns the
// Link: it receives, keeps the trunks up, and hears of events. Each lane that
// sends owns a Sender. Neither has a goroutine or a lock, and calls of one must
// not overlap. It must never look into a packet, block, allocate per
// packet, or drop without counting under a name.
package udp

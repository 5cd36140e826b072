// SPDX-License-Identifier: Apache-2.0

// Package handshake sets up the sessions of trunks: TLS 1.3 between members, in small datagrams (docs/notes/trunk.md,
// Handshake).
//
// What comes in: datagrams with their source address, requests to begin, the time; what goes out: datagrams with their
// destination, and sessions: two traffic secrets, the verified identity of the peer, and what both ends state of
// themselves. The Core of package trunk is the caller. Nothing that a session does not prove is believed; no state is
// made for an address that has not proved, by a cookie, that it receives. The number of handshakes at once, and of
// those that begin in a second, is bounded. The package must never touch an established session.
//
// The protocol is that of crypto/tls (RFC 8446) by its interface for QUIC (RFC 9001, section 4), which hands out
// handshake messages and secrets. crypto/tls has a goroutine of its own per handshake, which runs only within the calls
// of this package. An Endpoint belongs to one goroutine.
package handshake

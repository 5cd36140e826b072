// SPDX-License-Identifier: Apache-2.0

// Package member decides which hosts are the fabric: its certificate authority (CA), the certificates of members, join
// tokens, the records of members, and what the removal of a member replaces.
//
// What comes in: records of the store, certificates, requests to join, the time; what goes out: records to write,
// certificates, refusals with their reason, plans. Callers: member/registry, which keeps the records in the store;
// member/join, which speaks the join protocol; trunks and the store, which call Roster.Admit with a certificate. It
// never does I/O, reads a clock or starts a goroutine. Keys, signatures and seals take their randomness from the
// system inside crypto/ecdsa, crypto/ecdh and crypto/hpke, which accept no other source.
//
// # Keys
//
// A member has two key pairs, made on its host and never sent: an ECDSA key (P-256) in its certificate, and an X25519
// key to which secrets are sealed (RFC 9180). The certificate binds both to name, GUID and roles.
//
// # Trust
//
// Roster is what a member holds to decide on its own: the CAs with their states, the records of members, the keys of
// removed ones. A certificate counts if a CA of the roster signed it, it is valid now, its key is not removed, and its
// record has that key.
package member

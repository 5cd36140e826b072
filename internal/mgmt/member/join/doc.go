// SPDX-License-Identifier: Apache-2.0

// Package join is the join protocol: by it a host becomes a member of a fabric, and a member renews its certificate.
//
// What comes in: HTTPS requests from hosts on the network, of which all but those of members are hostile until their
// token is checked; what goes out: answers of a Backend. Callers: the node, which has the listener, and weft join. It
// never decides: package member does.
//
// # Protocol
//
// TLS 1.3 on a TCP port of a member (the number of the trunks' UDP port). The member sends its certificate and that of
// its CA. The joiner compares the CA's public key with the pin in its token (RFC 7469), checks that the CA signed the
// certificate, and nothing else of it: its clock may be wrong still.
//
//	joiner                                member
//	POST /weft/1/open  {token id}    ->   looks up the token's hash
//	                                 <-   {proof}: HMAC of this connection's exported keying material by that hash
//	checks the proof
//	POST /weft/1/join  {Request}     ->   member.Check, then one transaction of the store
//	                                 <-   {certificate, roster}
//
// The proof comes before the secret: a removed member has a certificate still, but no hash of a token that was made
// since, and cannot relay the proof of another connection. A member without the CA's key answers open with the
// addresses of voters.
//
//	member                                voter
//	POST /weft/1/renew {}            ->   Roster.Admit of the client's certificate
//	                                 <-   {certificate, roster}
//
// A refusal is an HTTP status of 400 or above with {"what", "why", "fix"}. Bodies are JSON of at most MaxBody octets,
// in answers MaxAnswer.
package join

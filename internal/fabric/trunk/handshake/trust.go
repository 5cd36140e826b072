// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	"weft/internal/proto/ib"
)

// Identity is what a certificate proves.
type Identity struct {
	// Node is the node GUID; 0 where certificates prove membership only, and the member states its GUID.
	Node ib.GUID
	Name string // of the member, the same way
}

// Trust is what a node trusts, and what others trust it by. Its methods are called within Work.Run, which may be on
// another goroutine at each call, one after the other. They must not block.
type Trust interface {
	// Certificate returns the certificate of this node with its key, which may be another at each call.
	Certificate() (*tls.Certificate, error)
	// Verify returns the identity that a chain, leaf first and not empty, proves at a time, or why it proves none. The
	// key of the leaf has signed the handshake.
	Verify(now time.Time, chain []*x509.Certificate) (Identity, error)
}

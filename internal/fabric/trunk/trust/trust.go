// SPDX-License-Identifier: Apache-2.0

// Package trust is the trust of nodes without a fabric's certificates: those that share a key, and those that accept
// every node.
//
// What comes in: a key or none, node GUID and name; what goes out: a certificate, and the verification of others, as
// package handshake requires. It does no I/O. The key never leaves it; certificates show no more of it than a public
// key that is derived from it.
package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"weft/internal/fabric/trunk/handshake"
)

// KeyLen is the length of a key in octets; in a file it is written in hexadecimal.
const KeyLen = 32

// ParseKey reads a key from the content of a key file: 64 hexadecimal digits, and space around them.
func ParseKey(file []byte) ([]byte, error) {
	key, err := hex.DecodeString(strings.TrimSpace(string(file)))
	if err != nil || len(key) != KeyLen {
		return nil, errors.New("no key of 64 hexadecimal digits is in it")
	}
	seen := [256]bool{}
	different := 0
	for _, c := range key {
		if !seen[c] {
			seen[c] = true
			different++
		}
	}
	if different < 8 {
		return nil, errors.New("the key in it is not random")
	}
	return key, nil
}

// Validity of certificates on both sides of their making: clocks of labs differ. The key is what expires when it is
// replaced.
const validity = 10 * 365 * 24 * time.Hour

// Key is the trust of the nodes that share a key. It implements handshake.Trust, and is immutable.
type Key struct {
	own   tls.Certificate
	roots *x509.CertPool
}

var (
	_ handshake.Trust = (*Key)(nil)
	_ handshake.Trust = (*Anyone)(nil)
)

// FromKey derives an authority from a key: its private key is the P-256 scalar that HKDF (RFC 5869) makes of the key,
// so
// that those with the key, and only those, can sign a certificate. The node's own certificate has a fresh key. now is
// the wall clock.
func FromKey(key []byte, name string, now time.Time) (*Key, error) {
	if len(key) != KeyLen {
		return nil, fmt.Errorf("a key of %d octets, not %d", len(key), KeyLen)
	}
	// A scalar is 1 to the order less one; the order of P-256 is so near to 2^256 that one try suffices but for one key
	// in 2^32.
	var ca *ecdsa.PrivateKey
	for i := range 8 {
		raw, err := hkdf.Key(sha256.New, key, nil, fmt.Sprintf("weft trunk key file: authority %d", i), 32)
		if err != nil {
			return nil, err
		}
		ca, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), raw)
		clear(raw)
		if err == nil {
			break
		}
	}
	if ca == nil {
		return nil, errors.New("no authority follows from the key")
	}
	root := template("weft trunk key", now)
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, root, root, &ca.PublicKey, ca)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	k := &Key{roots: x509.NewCertPool()}
	k.roots.AddCert(parsed)
	k.own, err = leaf(name, now, parsed, ca)
	return k, err
}

// template is a certificate of a name.
func template(name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-validity), NotAfter: now.Add(validity), SubjectKeyId: []byte(name)}
}

// leaf makes a certificate with a fresh key; a nil parent signs nothing: the certificate signs itself.
func leaf(name string, now time.Time, parent *x509.Certificate, by *ecdsa.PrivateKey) (c tls.Certificate, err error) {
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	t := template("weft node "+name, now)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	if parent == nil {
		parent, by = t, own
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &own.PublicKey, by)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}, err
}

// String and GoString show nothing of the key.
func (k *Key) String() string   { return "trust of a shared key" }
func (k *Key) GoString() string { return k.String() }

// Certificate implements handshake.Trust.
func (k *Key) Certificate() (*tls.Certificate, error) { return &k.own, nil }

// Verify implements handshake.Trust. The key proves membership, and no name: every node with the key may take each
// GUID.
func (k *Key) Verify(now time.Time, chain []*x509.Certificate) (handshake.Identity, error) {
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: k.roots, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return handshake.Identity{}, fmt.Errorf("the peer has another trunk key: %w", err)
	}
	return handshake.Identity{}, nil
}

// Anyone is the trust of a node that accepts every node. It implements handshake.Trust, and is immutable.
type Anyone struct{ own tls.Certificate }

// NewAnyone returns the trust of a node with a name. now is the wall clock.
func NewAnyone(name string, now time.Time) (*Anyone, error) {
	c, err := leaf(name, now, nil, nil)
	return &Anyone{c}, err
}

// Certificate implements handshake.Trust.
func (a *Anyone) Certificate() (*tls.Certificate, error) { return &a.own, nil }

// Verify implements handshake.Trust.
func (a *Anyone) Verify(time.Time, []*x509.Certificate) (handshake.Identity, error) {
	return handshake.Identity{}, nil
}

// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// authority makes certificates for 127.0.0.1 and for clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	c := a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(t *testing.T, c *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) node(t *testing.T) tls.Certificate {
	return a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "node"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
}

// TestOnlyKnownNodes accepts only clients with a certificate of the right authority.
func TestOnlyKnownNodes(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	s := start(t, etcd.ServerConfig{Dir: quick(t), Listen: "https://127.0.0.1:0", TLS: &tls.Config{
		Certificates: []tls.Certificate{ca.node(t)}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}})
	if !strings.HasPrefix(s.URL(), "https://127.0.0.1:") {
		t.Errorf("listens at %s", s.URL())
	}
	known := connect(t, etcd.ClientConfig{Endpoints: []string{s.URL()}, Timeout: patience,
		TLS: &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.node(t)}}})
	put(t, known, "k", "v")
	if got := get(t, client(t, s), "k"); got != "v" {
		t.Errorf("value is %q", got)
	}
	// A refused client may see only the end of the connection.
	tests := []struct {
		name, says string
		c          etcd.ClientConfig
	}{
		{"no certificate", "", etcd.ClientConfig{Endpoints: []string{s.URL()}, TLS: &tls.Config{RootCAs: ca.pool}}},
		{"another's certificate", "", etcd.ClientConfig{Endpoints: []string{s.URL()},
			TLS: &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{other.node(t)}}}},
		{"another's server", "x509: ", etcd.ClientConfig{Endpoints: []string{s.URL()},
			TLS: &tls.Config{RootCAs: other.pool, Certificates: []tls.Certificate{ca.node(t)}}}},
		{"the system's roots", "x509: ", etcd.ClientConfig{Endpoints: []string{s.URL()}}},
		{"no TLS", "", etcd.ClientConfig{Endpoints: []string{strings.Replace(s.URL(), "https", "http", 1)}}},
	}
	errs := make([]error, len(tests))
	var all sync.WaitGroup
	for i, tt := range tests {
		tt.c.Timeout = 5 * time.Second // for each to be refused on a busy machine
		c := connect(t, tt.c)
		all.Go(func() { _, errs[i] = store.Put(t.Context(), c, "k", []byte("stranger")) })
	}
	all.Wait()
	for i, tt := range tests {
		t.Logf("%s: %v", tt.name, errs[i])
		want(t, errs[i], store.ErrUnavailable, tt.says)
	}
	if got := get(t, known, "k"); got != "v" {
		t.Errorf("a stranger wrote %q", got)
	}
}

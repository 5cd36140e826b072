// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// rollover is the trust of a fabric in which the CA is replaced: the certificates of members follow, and those of the
// old CA are refused that a member has no more.
type rollover struct {
	*testing.T
	mu      sync.Mutex
	cas     []*authority // that are accepted
	members map[string]*rolled
}

type rolled struct {
	cert  tls.Certificate
	files etcd.PeerFiles
}

func (r *rollover) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, a := range r.cas {
		pool.AddCert(a.cert)
	}
	return pool
}

// write writes a PEM file in one piece.
func (r *rollover) write(path, kind string, ders ...[]byte) {
	r.Helper()
	var text []byte
	for _, d := range ders {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: d})...)
	}
	if err := errors.Join(os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path)); err != nil {
		r.Fatal(err)
	}
}

// renew gives a member a certificate of a CA.
func (r *rollover) renew(name string, a *authority) {
	r.Helper()
	cert := a.member(r.T, name, true)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		r.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	m.cert = cert
	r.write(m.files.Key, "PRIVATE KEY", key)
	r.write(m.files.Cert, "CERTIFICATE", cert.Certificate[0])
}

// trust makes the CAs those of all members, and writes the last one to their files.
func (r *rollover) trust(cas ...*authority) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cas = cas
	for _, m := range r.members {
		r.write(m.files.CA, "CERTIFICATE", cas[len(cas)-1].cert.Raw)
	}
}

func (r *rollover) security(name string) *etcd.Security {
	dir := r.TempDir()
	m := &rolled{files: etcd.PeerFiles{Cert: dir + "/cert.pem", Key: dir + "/key.pem", CA: dir + "/ca.pem"}}
	r.mu.Lock()
	r.members[name] = m
	ca := r.cas[0]
	r.write(m.files.CA, "CERTIFICATE", ca.cert.Raw)
	r.mu.Unlock()
	r.renew(name, ca)
	own := func() (*tls.Certificate, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		c := m.cert
		return &c, nil
	}
	verify := func(s tls.ConnectionState) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: r.pool(), DNSName: etcd.PeerName})
		return err
	}
	return &etcd.Security{
		Server: &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				r.mu.Lock()
				defer r.mu.Unlock()
				return &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert,
					ClientCAs: r.pool(), NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
					GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() }}, nil
			}},
		Client: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: verify,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() }},
		Files: m.files,
		Admit: func(c *x509.Certificate) (etcd.Caller, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			name := c.Subject.CommonName
			x := r.members[name]
			if x == nil || !slices.Equal(x.cert.Certificate[0], c.Raw) {
				return etcd.Caller{}, fmt.Errorf("%s has another certificate", name)
			}
			return etcd.Caller{Name: name, Voter: true}, nil
		}}
}

// TestCAReplaced replaces the CA of a running group: no replica ends for good because another refuses its certificate,
// connections with the certificate from before are replaced, and the group goes on with the new CA alone, also with a
// member that joins then.
func TestCAReplaced(t *testing.T) {
	f := newFabric(t)
	old, next := newAuthority(t), newAuthority(t)
	r := &rollover{T: t, cas: []*authority{old}, members: map[string]*rolled{}}
	f.security = r.security
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	f.open("d", "a")
	f.put("d", "k", "1")

	r.trust(old, next)
	for _, name := range []string{"a", "b", "c", "d"} {
		r.renew(name, next)
	}
	r.trust(next)
	for i, name := range []string{"a", "b", "c", "d"} {
		f.put(name, "k", fmt.Sprint("new ", i))
	}
	f.until("the replicas verify each other by the new CA alone", func() bool {
		n := 0
		for _, m := range f.members { // on a slow machine d replaces one that starts again
			if m.Part().Role != etcd.RoleClient {
				if !m.Trusts(next.cert.Raw) {
					return false
				}
				n++
			}
		}
		return n == 3
	})
	f.expect("d", "k", "new 3")
	f.kill("a")
	f.put("d", "k", "2")
	f.expect("b", "k", "2")
	f.roles("b:voter c:voter d:voter") // d replaces a
	f.expect("d", "k", "2")
}

// TestForbiddenByAnother: a replica that ended because another one reported its removal in error is there again, with
// all that it has. Only its own copy, or the answer of a member about it, is proof.
func TestForbiddenByAnother(t *testing.T) {
	f := newFabric(t)
	m := f.open("a")
	f.put("a", "k", "kept")
	m.StopEtcd()
	f.expect("a", "k", "kept")
	f.put("a", "k", "changed")
	if p := m.Part(); p.Role != etcd.RoleVoter || p.Why != "" {
		t.Errorf("%+v", p)
	}
	if _, err := store.Put(t.Context(), m, "k", nil); err != nil {
		t.Error(err)
	}
}

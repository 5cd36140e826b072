// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// member makes the certificate of a member; those that may vote have the common name of voters in it.
func (a *authority) member(t *testing.T, name string, votes bool) tls.Certificate {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".weft.internal"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if votes {
		c.DNSNames = append(c.DNSNames, etcd.PeerName)
	}
	return a.issue(t, c)
}

// ownOctets is how much a member may write to one key.
const ownOctets = 64 << 10

// admit lets the members m1, m2, … read all but M_Keys and write their own records, all others do everything.
func admit(c *x509.Certificate) (etcd.Caller, error) {
	name := c.Subject.CommonName
	switch {
	case name == "removed":
		return etcd.Caller{}, errors.New("removed was removed from the fabric")
	case name[0] != 'm':
		return etcd.Caller{Name: name, Voter: true}, nil
	}
	mine := func(key string) bool {
		return key == "node/"+name || key == "store/member/"+name || key == "store/present/"+name
	}
	limit := func(key string) int {
		if mine(key) {
			return ownOctets
		}
		return 0
	}
	return etcd.Caller{Name: name, Own: limit, Access: func(key, end string, write bool) error {
		own := mine(key)
		secret := key <= "subnet/m_key" && (end > "subnet/m_key" || key == "subnet/m_key")
		if write && (!own || end != "") || !write && secret {
			return fmt.Errorf("%s may not", name)
		}
		return nil
	}}, nil
}

func (a *authority) client(t *testing.T, name string, votes bool) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.member(t, name, votes)}, RootCAs: a.pool,
		ServerName: etcd.PeerName, MinVersion: tls.VersionTLS13}
}

func (a *authority) security(t *testing.T, name string) *etcd.Security {
	dir := t.TempDir()
	cert := a.member(t, name, true)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return &etcd.Security{Admit: admit,
		Server: &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: a.pool,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13},
		Client: &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: a.pool, ServerName: etcd.PeerName,
			MinVersion: tls.VersionTLS13},
		Files: etcd.PeerFiles{Cert: file("cert.pem", "CERTIFICATE", cert.Certificate[0]),
			Key: file("key.pem", "PRIVATE KEY", key), CA: file("ca.pem", "CERTIFICATE", a.cert.Raw)}}
}

// TestMembersWithCertificates makes a group over TLS, and has a member, a removed one and strangers try what they may
// not.
func TestMembersWithCertificates(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	f := newFabric(t)
	f.security = func(name string) *etcd.Security { return ca.security(t, name) }
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	f.put("b", "subnet/m_key", "secret")
	f.put("b", "subnet/intent", "all")
	f.put("b", "node/m2", "of another")
	f.expect("c", "subnet/intent", "all")
	address := f.configs["a"].Advertise

	term, err := store.Campaign(t.Context(), f.members["b"], "subnet-manager", store.Leader{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	leader, err := f.members["b"].Get(t.Context(), term.Fence().Key)
	if err != nil {
		t.Fatal(err)
	}

	m1 := connect(t, etcd.ClientConfig{Endpoints: []string{"https://" + address}, Timeout: patience,
		TLS: etcd.Named(ca.client(t, "m1", false))})
	if _, err := store.Put(t.Context(), m1, "node/m1", []byte("own")); err != nil {
		t.Error(err)
	}
	if e, err := m1.Get(t.Context(), "subnet/intent"); err != nil || string(e.Value) != "all" {
		t.Errorf("a member reads the intent: %q, %v", e.Value, err)
	}
	// A watch that is refused is in the status, until it ends.
	if err := m1.Status(t.Context()).Down; err != nil {
		t.Errorf("before: %v", err)
	}
	watching, end := context.WithCancel(t.Context())
	if _, err := m1.Watch(watching, "subnet"); err != nil {
		t.Error(err)
	}
	f.until("the refused watch", func() bool {
		err := m1.Status(t.Context()).Down
		return err != nil && strings.Contains(err.Error(), "m1 may not") && errors.Is(err, store.ErrUnavailable)
	})
	end()
	f.until("its end", func() bool { return m1.Status(t.Context()).Down == nil })
	l, err := m1.Lease(t.Context(), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m1.Txn(t.Context(), store.Txn{Do: []store.Op{{Key: "store/present/m1", Lease: l.ID()}}}); err != nil {
		t.Error(err)
	}

	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop(),
		TLS: etcd.Named(ca.client(t, "m1", false))})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	lease := clientv3.LeaseID(leader.Lease)
	for name, try := range map[string]func() error{
		"read the M_Key": func() error { _, err := raw.Get(ctx, "weft/subnet/m_key"); return err },
		"read all":       func() error { _, err := raw.Get(ctx, "weft/", clientv3.WithPrefix()); return err },
		"read around": func() error {
			_, err := raw.Get(ctx, "weft/subnet/a", clientv3.WithRange("weft/subnet/z"))
			return err
		},
		"read without end":     func() error { _, err := raw.Get(ctx, "weft/t", clientv3.WithFromKey()); return err },
		"read another fabric":  func() error { _, err := raw.Get(ctx, "other/k"); return err },
		"write the intent":     func() error { _, err := raw.Put(ctx, "weft/subnet/intent", "none"); return err },
		"write the generation": func() error { _, err := raw.Put(ctx, "weft/store/generation", "99"); return err },
		"write for another":    func() error { _, err := raw.Put(ctx, "weft/node/m2", "x"); return err },
		"delete all":           func() error { _, err := raw.Delete(ctx, "weft/", clientv3.WithPrefix()); return err },
		"write in a transaction": func() error {
			_, err := raw.Txn(ctx).Then(clientv3.OpPut("weft/node/m1", "x"), clientv3.OpPut("weft/node/m2", "x")).Commit()
			return err
		},
		"write in a nested one": func() error {
			put := []clientv3.Op{clientv3.OpPut("weft/node/m2", "x")}
			_, err := raw.Txn(ctx).Else(clientv3.OpTxn(nil, put, nil)).Commit()
			return err
		},
		"compare the M_Key": func() error {
			_, err := raw.Txn(ctx).If(clientv3.Compare(clientv3.Value("weft/subnet/m_key"), ">", "a")).Commit()
			return err
		},
		"watch the M_Key":           func() error { r := <-raw.Watch(ctx, "weft/subnet/m_key"); return r.Err() },
		"end the master's term":     func() error { _, err := raw.Revoke(ctx, lease); return err },
		"prolong the master's term": func() error { _, err := raw.KeepAliveOnce(ctx, lease); return err },
		"use the master's lease": func() error {
			_, err := raw.Put(ctx, "weft/node/m1", "x", clientv3.WithLease(lease))
			return err
		},
		"list a lease's keys": func() error {
			_, err := raw.TimeToLive(ctx, lease, clientv3.WithAttachedKeys())
			return err
		},
		"list the leases": func() error { _, err := raw.Leases(ctx); return err },
		"add a replica":   func() error { _, err := raw.MemberAdd(ctx, []string{"http://127.0.0.1:9"}); return err },
		"remove one": func() error {
			_, err := raw.MemberRemove(ctx, f.members["a"].Part().Replicas[0].ID)
			return err
		},
		"take all": func() error {
			r, err := raw.Snapshot(ctx)
			if err == nil {
				_, err = r.Read(make([]byte, 1))
			}
			return err
		},
		"compact":     func() error { _, err := raw.Compact(ctx, 1); return err },
		"defragment":  func() error { _, err := raw.Defragment(ctx, address); return err },
		"move leader": func() error { _, err := raw.MoveLeader(ctx, 1); return err },
		"alarm":       func() error { _, err := raw.AlarmList(ctx); return err },
		"enable auth": func() error { _, err := raw.AuthEnable(ctx); return err },
		"add a user":  func() error { _, err := raw.UserAdd(ctx, "root", "x"); return err },
	} {
		if err := try(); err == nil || ctx.Err() != nil {
			t.Errorf("a member can: %s (%v)", name, err)
		}
	}
	f.expect("c", "subnet/intent", "all")
	f.expect("c", "node/m2", "of another")
	f.expect("c", "node/m1", "own")
	select {
	case <-term.Lost():
		t.Error("a member ended the master's term")
	default:
	}
	if err := term.Resign(t.Context()); err != nil {
		t.Error(err)
	}

	// Another authority's server, or one without the name, is not the store.
	for _, bad := range []*tls.Config{{RootCAs: stranger.pool, ServerName: etcd.PeerName},
		{RootCAs: ca.pool, ServerName: "other.weft.internal"}} {
		bad.Certificates = ca.client(t, "m1", false).Certificates
		s := connect(t, etcd.ClientConfig{Endpoints: []string{"https://" + address}, TLS: etcd.Named(bad)})
		_, err = s.Get(t.Context(), "subnet/intent")
		want(t, err, store.ErrUnavailable, "x509")
	}

	// The messages of replicas, and reports.
	get := func(c *tls.Config, path string) (int, error) {
		h := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}, Timeout: patience}
		r, err := h.Get("https://" + address + path)
		if err != nil {
			return 0, err
		}
		defer r.Body.Close()
		return r.StatusCode, nil
	}
	for _, tt := range []struct {
		who  *tls.Config
		path string
		want int // 0: no connection
	}{
		{ca.client(t, "m1", false), "/weft/store", http.StatusOK},
		{ca.client(t, "m1", false), "/raft", http.StatusUnauthorized},
		{ca.client(t, "m1", false), "/members", http.StatusUnauthorized},
		{ca.client(t, "x", true), "/raft", http.StatusUnauthorized}, // it might vote, and has no replica
		{ca.client(t, "b", true), "/version", http.StatusOK},
		{ca.client(t, "removed", true), "/weft/store", http.StatusUnauthorized},
		{stranger.client(t, "b", true), "/weft/store", 0},
		{&tls.Config{RootCAs: ca.pool, ServerName: etcd.PeerName}, "/weft/store", 0},
	} {
		tt.who.RootCAs = ca.pool
		got, err := get(tt.who, tt.path)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%s: %d, %v, want %d", tt.path, got, err, tt.want)
		}
	}
	gone := connect(t, etcd.ClientConfig{Endpoints: []string{"https://" + address}, Timeout: patience,
		TLS: etcd.Named(ca.client(t, "removed", false))})
	_, err = gone.Get(t.Context(), "subnet/intent")
	if err == nil || !strings.Contains(err.Error(), "removed") {
		t.Errorf("a removed member reads: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// raw connects etcd's own client, with the certificate of a member, to one that has a replica.
func (f *fabric) raw(ca *authority, by, name string, o ...grpc.DialOption) *clientv3.Client {
	f.Helper()
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{f.configs[name].Advertise}, Logger: zap.NewNop(),
		TLS: etcd.Named(ca.client(f.T, by, false)), DialOptions: o})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = raw.Close() })
	if _, err := raw.Get(f.Context(), "weft/subnet/intent"); err != nil {
		f.Fatal(err)
	}
	return raw
}

// TestLeaseByDeadline has a member revoke the lease of the manager with deadlines at which the voter cannot find out in
// time which keys the lease has.
func TestLeaseByDeadline(t *testing.T) {
	ca := newAuthority(t)
	f := newFabric(t)
	f.security = func(name string) *etcd.Security { return ca.security(t, name) }
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	term, err := store.Campaign(t.Context(), f.members["b"], "subnet-manager", store.Leader{Name: "b"})
	if err != nil {
		t.Fatal(err)
	}
	key := term.Fence().Key
	if err := term.Resign(t.Context()); err != nil {
		t.Fatal(err)
	}
	// As of a manager, but it lasts where its renewals are late.
	lease, err := f.members["b"].Lease(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.members["b"].Txn(t.Context(), store.Txn{Do: []store.Op{{Key: key, Value: []byte("b"),
		Lease: lease.ID()}}}); err != nil {
		t.Fatal(err)
	}
	raws := []*clientv3.Client{f.raw(ca, "m1", "a"), f.raw(ca, "m1", "b"), f.raw(ca, "m1", "c")}
	for n := range 3 {
		for d := 300 * time.Microsecond; d < 12*time.Millisecond; d += 300 * time.Microsecond {
			for _, raw := range raws {
				ctx, stop := context.WithTimeout(t.Context(), d)
				_, err := raw.Revoke(ctx, clientv3.LeaseID(lease.ID()))
				stop()
				if err == nil {
					t.Fatalf("round %d: revoked within %v", n, d)
				}
			}
		}
		if err := lease.Renew(t.Context()); errors.Is(err, store.ErrFenced) {
			t.Fatalf("round %d: a member without a role ended the lease of the manager", n)
		}
	}
	f.expect("b", key, "b")

	// A lease of its own serves it.
	l, err := raws[1].Grant(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raws[2].KeepAliveOnce(t.Context(), l.ID); err != nil {
		t.Error(err)
	}
	if _, err := raws[0].Revoke(t.Context(), l.ID); err != nil {
		t.Error(err)
	}
	if _, err := raws[0].Revoke(t.Context(), l.ID); err == nil {
		t.Error("a lease is revoked twice")
	}
}

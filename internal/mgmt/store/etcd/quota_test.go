// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// TestQuota has members without a role use more of the store than is theirs: they are refused, and others are not.
func TestQuota(t *testing.T) {
	ca := newAuthority(t)
	f := newFabric(t)
	f.security = func(name string) *etcd.Security { return ca.security(t, name) }
	f.open("a")
	f.roles("a:voter")
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	m1 := connect(t, etcd.ClientConfig{Endpoints: []string{"https://" + f.configs["a"].Advertise}, Timeout: patience,
		TLS: etcd.Named(ca.client(t, "m1", false))})
	_, err := store.Put(ctx, m1, "node/m1", bytes.Repeat([]byte("x"), ownOctets+1))
	want(t, err, store.ErrUnavailable, "refuse", fmt.Sprint(ownOctets))
	_, err = m1.Txn(ctx, store.Txn{Do: []store.Op{store.PutOp("store/present/m1", nil),
		store.PutOp("node/m1", bytes.Repeat([]byte("x"), ownOctets+1))}})
	want(t, err, store.ErrUnavailable, "refuse", fmt.Sprint(ownOctets))

	// The same key again and again: its history is what grows.
	put(t, m1, "node/m1", "x")
	full, n := bytes.Repeat([]byte("x"), ownOctets), 0
	for err = nil; err == nil && n < 1000; n++ {
		_, err = store.Put(ctx, m1, "node/m1", full)
	}
	want(t, err, store.ErrUnavailable, "too often")
	if n < 60 || n > 200 {
		t.Errorf("%d values of %d octets", n, ownOctets)
	}
	f.put("a", "subnet/intent", "all")
	if e, err := m1.Get(ctx, "subnet/intent"); err != nil || string(e.Value) != "all" {
		t.Errorf("a member that wrote too much reads %q, %v", e.Value, err)
	}

	t.Run("leases", func(t *testing.T) {
		raw := f.raw(ca, "m2", "a")
		seen := map[clientv3.LeaseID]bool{}
		var last clientv3.LeaseID
		for range 64 {
			l, err := raw.Grant(ctx, 600)
			if err != nil {
				t.Fatal(err)
			}
			if near := l.ID - last; near > -1<<20 && near < 1<<20 {
				t.Errorf("the lease %x follows %x", l.ID, last)
			}
			seen[l.ID], last = true, l.ID
		}
		if _, err := raw.Grant(ctx, 600); err == nil || len(seen) != 64 {
			t.Errorf("%d leases and one more: %v", len(seen), err)
		}
		if _, err := raw.Revoke(ctx, last); err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Grant(ctx, 600); err != nil {
			t.Error(err)
		}
		if _, err := f.raw(ca, "m3", "a").Grant(ctx, int64(2*store.MaxTTL/time.Second)); err == nil {
			t.Error("a lease for longer than any")
		}
	})
	t.Run("streams", func(t *testing.T) {
		raw := f.raw(ca, "m4", "a")
		open := func(n int) error {
			stream := metadata.AppendToOutgoingContext(ctx, "n", fmt.Sprint(n)) // one of its own
			r := <-raw.Watch(stream, "weft/subnet/intent", clientv3.WithCreatedNotify())
			return r.Err()
		}
		for n := range 12 {
			if err := open(n); err != nil {
				t.Fatal(n, err)
			}
		}
		if err := open(12); err == nil {
			t.Error("12 streams and one more")
		}
	})
	t.Run("watches", func(t *testing.T) {
		raw := f.raw(ca, "m5", "a")
		watch := func() (context.CancelFunc, clientv3.WatchChan, error) {
			one, end := context.WithCancel(ctx)
			w := raw.Watch(one, "weft/subnet/intent", clientv3.WithCreatedNotify())
			r, ok := <-w
			if !ok {
				return end, w, context.Canceled
			}
			return end, w, r.Err()
		}
		for n := range 600 { // watches that have ended leave room
			end, w, err := watch()
			if err != nil {
				t.Fatal(n, err)
			}
			end()
			for range w {
			}
		}
		n := 0
		var err error
		for ; n < 600 && err == nil; n++ {
			_, _, err = watch()
		}
		if err == nil {
			t.Errorf("%d watches", n)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"net"
	"testing"
	"time"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
)

// TestUserAndPassword uses an etcd that authenticates users by their passwords.
func TestUserAndPassword(t *testing.T) {
	s := start(t, etcd.ServerConfig{Dir: quick(t)}.WithUsers())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	// A client is there before the etcd that it uses.
	early := connect(t, etcd.ClientConfig{Endpoints: []string{url}, User: "weft", Password: "secret", Timeout: patience})
	stop, err := s.ServeUsers(t.Context(), l, "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	put(t, early, "k", "v")
	if got := get(t, early, "k"); got != "v" {
		t.Errorf("value is %q", got)
	}
	w, err := early.Watch(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	<-w
	lease, err := early.Lease(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early.Txn(t.Context(), store.Txn{Do: []store.Op{{Key: "k/x", Lease: lease.ID()}}}); err != nil {
		t.Fatal(err)
	}
	if c := <-w; len(c.Events) != 1 {
		t.Errorf("watched %+v", c)
	}
	if st := early.Status(t.Context()); st.Down != nil {
		t.Errorf("status: %v", st.Down)
	}
	for _, bad := range []struct{ user, password, says string }{{"weft", "wrong", "--store-user-file"},
		{"stranger", "secret", "--store-user-file"}, {"", "", "refuses"}} {
		c := connect(t, etcd.ClientConfig{Endpoints: []string{url}, User: bad.user, Password: bad.password,
			Timeout: patience})
		_, err := c.Get(t.Context(), "k")
		want(t, err, store.ErrUnavailable, bad.says)
	}
}

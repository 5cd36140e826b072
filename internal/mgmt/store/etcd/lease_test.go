// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"testing"
	"time"

	"weft/internal/mgmt/store/etcd"
)

// TestRenewalThatHangs: a renewal without an answer, as of a leader of the group that was stopped, does not keep the
// next ones from the lease.
func TestRenewalThatHangs(t *testing.T) {
	t.Parallel()
	s := start(t, etcd.ServerConfig{Dir: quick(t), Listen: "http://127.0.0.1:0"})
	for name, c := range map[string]*etcd.Client{"in this process": client(t, s),
		"over the network": connect(t, etcd.ClientConfig{Endpoints: []string{s.URL()}})} {
		hung, renewed := c.Hang()
		l, err := c.Lease(t.Context(), 8*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []<-chan struct{}{hung, renewed} {
			select {
			case <-want:
			case <-l.Lost():
				t.Errorf("%s: the lease is lost", name)
			}
		}
		if err := l.Revoke(t.Context()); err != nil {
			t.Error(err)
		}
		<-l.Lost()
	}
}

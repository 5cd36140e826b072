// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"weft/internal/mgmt/store/etcd"
)

// TestMoved: addresses of members change while they run, and the group reaches leader, follower and client there.
func TestMoved(t *testing.T) {
	f := newFabric(t)
	var moved atomic.Bool
	open := func(name string, seeds ...string) {
		f.prepare(name, seeds...)
		c := f.configs[name]
		_, port, _ := strings.Cut(c.Advertise, ":")
		c.Moved = func() etcd.Place {
			if moved.Load() {
				return etcd.Place{Advertise: "localhost:" + port, Own: "b"}
			}
			return etcd.Place{Own: "a"}
		}
		f.configs[name] = c
		f.open(name)
	}
	open("a")
	f.roles("a:voter")
	open("b", "a")
	open("c", "a")
	f.roles("a:voter b:voter c:voter")
	open("d", "a")
	f.roles("d:client")
	at := func(p etcd.MemberStatus) (urls []string) {
		for _, r := range p.Replicas {
			urls = append(urls, r.URL)
		}
		return urls
	}
	moved.Store(true)
	for name := range f.members {
		f.until(name+" has the new addresses", func() bool {
			urls := at(f.members[name].Part())
			return len(urls) == 3 && !slices.ContainsFunc(urls, func(u string) bool {
				return !strings.Contains(u, "localhost")
			})
		})
	}
	f.until("the client's record has its new address", func() bool {
		e, err := f.members["a"].Get(t.Context(), "store/member/d")
		return err == nil && strings.Contains(string(e.Value), `"localhost:`)
	})
	f.put("d", "k", "1")
	f.expect("b", "k", "1")
}

// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"strings"
	"testing"

	"weft/internal/mgmt/store/etcd"
)

// TestNoMajority: only a node that finds no voter with a leader gives the advice to restore the store.
func TestNoMajority(t *testing.T) {
	f := &Fabric{Label: func(name string) string { return "host-" + name }}
	a := etcd.Replica{Name: "a", URL: "https://10.0.0.1:4793"}
	b := etcd.Replica{Name: "b", URL: "https://10.0.0.2:4793"}
	p := &etcd.MemberStatus{Replicas: []etcd.Replica{a, b}}
	const restore = "weft store restore"
	if d := noMajority(p, etcd.Others{Silent: []etcd.Replica{a, b}}, f); d.What != "store_no_majority" ||
		!strings.Contains(d.Fix, restore) {
		t.Errorf("%+v", d)
	}
	d := noMajority(p, etcd.Others{Leading: []etcd.Replica{b}, Silent: []etcd.Replica{a}}, f)
	if d.What != "store_path" || strings.Contains(d.Fix, restore) ||
		!strings.Contains(d.Why, "host-a does not answer") ||
		!strings.HasPrefix(d.Fix, "ping 10.0.0.1; open TCP port 4793 between") {
		t.Errorf("%+v", d)
	}
	d = noMajority(p, etcd.Others{Leading: []etcd.Replica{b, a}}, f)
	if d.What != "store_path" || d.Fix != "weft store status, there" {
		t.Errorf("%+v", d)
	}
}

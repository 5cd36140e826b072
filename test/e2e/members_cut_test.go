// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"weft/test/lab"
)

// TestMembersCut: one of three voters does not reach the leader of the store, and reaches the other voter. It names the
// path to mend, and does not call for a restore, which would be a second store.
func TestMembersCut(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	r.found()
	r.voters("host1", 3)
	leader, _ := r.leads("host1", "host2", "host3")
	cut := "host3"
	if leader == cut {
		cut = "host2"
	}
	r.must(cut, "ip route add blackhole 10.0.0."+leader[len("host"):]+"/32")
	out := r.eventually(cut, "weft status", "... store_path: the store works at ...; "+leader+
		" does not answer here. fix: ping 10.0.0."+leader[len("host"):]+"; open TCP port 4793 ...")
	if strings.Contains(out, "weft store restore") {
		t.Error(out)
	}
	r.must(cut, "ip route del blackhole 10.0.0."+leader[len("host"):]+"/32")
	for _, h := range []string{"host1", "host2", "host3"} {
		r.healthy(h, 2)
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"weft/test/lab"
)

// TestMembersRestored: of four members one is backed up from, all secrets are replaced, and the backup is restored by
// force. Then a member is removed and joins again, and the store is restored once more, from before the removal. After
// each step two members have traffic, a change is acknowledged, and nothing is degraded on any member.
func TestMembersRestored(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(4)
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token --uses 3", "weft join 10.0.0.1 --token ...", "made: fabric ...")
	for _, h := range []string{"host2", "host3", "host4"} {
		r.must(h, "weft join 10.0.0.1 --token ...", h+" is a member of fabric ...", "weft: ready: ...")
	}
	r.must("host1", "weft pkey add 0xffff ALL")
	all := []string{"host1", "host2", "host3", "host4"}
	changes := 0
	works := func(step string, left ...string) {
		t.Helper()
		for _, h := range left {
			r.watch(h, len(left)-1)
		}
		changes++
		change := fmt.Sprintf("k%d 0x80%02x ...", changes, changes)
		// The subnet manager is elected again after a restore.
		r.eventually(left[1], fmt.Sprintf("weft pkey add 0x80%02x --name k%d weft_ib0", changes, changes), change)
		for _, h := range left {
			r.eventually(h, "weft pkey list", change)
		}
		port := fmt.Sprint(18600 + changes)
		r.must(left[0], "weft run -- ibv_rc_pingpong -d weft_ib0 -p "+port+" >/dev/null &")
		r.must(left[1], "weft run -- ibv_rc_pingpong -d weft_ib0 -p "+port+" 10.0.0.1", "1000 iters in ...")
		t.Logf("works: %s", step)
	}
	works("four members", all...)
	r.must("host1", "weft store backup /run/backup", "/run/backup: ...")
	works("the backup", all...)

	r.must("host1", "weft member rotate")
	works("the secrets are replaced", all...) // also the end of ca_rotation
	ends := r.ends("host1")
	restore := func() {
		t.Helper()
		r.must("host1", "weft store restore --force /run/backup", "this node has the store, generation ...")
		r.voters("host1", 3)
	}
	restore()
	works("the restore", all...)
	if got := r.ends("host1"); got != ends {
		t.Errorf("certificates ended\n%s\nand end\n%s", ends, got)
	}

	r.must("host1", "weft member remove --force host4", "removed host4; replaced: sessions, tokens, M_Key, CA")
	works("the removal", all[:3]...)
	r.must("host1", "weft token", "weft join 10.0.0.1 --token ...")
	r.must("host4", "weft down && weft leave")
	r.must("host4", "weft join 10.0.0.1 --token ...", "host4 is a member of fabric ...")
	works("it has joined again", all...)

	r.must("host1", "weft member rotate")
	works("the secrets are replaced again", all...)
	restore()
	works("the restore from before the removal", all...)
	r.must("host2", "weft member remove --force host3", "removed host3; replaced: sessions, tokens, M_Key, CA")
	works("another removal", "host1", "host2", "host4")
}

// ends are the ends of the certificates of members, by their names, as a node has them.
func (r *reader) ends(host string) string {
	r.t.Helper()
	return r.value(host, "weft member list -o json | grep certificate_ends")
}

// watch waits until a node has so many trunks, and no CA is being replaced. What is degraded until then must not be
// one of the states that call for the removal of a member, which would be false here.
func (r *reader) watch(host string, trunks int) {
	r.t.Helper()
	r.eventually(host, `weft status | tee $WEFT_DIR.status
grep -e identity_copied -e member_clock -e member_out $WEFT_DIR.status >>$WEFT_DIR.false
echo rotations: $(grep -c ca_rotation $WEFT_DIR.status)`,
		fmt.Sprintf("trunks %d of %d up", trunks, trunks), "health nothing is degraded ...", "rotations: 0")
	r.must(host, "cat $WEFT_DIR.false; ! [ -s $WEFT_DIR.false ]")
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"weft/test/lab"
)

// TestMembersDisk: the disk of a voter is full, twice. Its node and the programs on it go on. Its copy of the store
// ends and is named, and changes go on by the others, also from that host. When there is room the copy comes back, with
// what was changed meanwhile, and votes.
func TestMembersDisk(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	r.must("host3", "mkdir -p $WEFT_DIR && mount -t tmpfs -o size=64m,mode=700 tmpfs $WEFT_DIR")
	r.found()
	r.voters("host1", 3)
	r.must("host1", "weft pkey add 0xffff ALL") // else the first partition ends the programs
	r.programGoesOn("ib_write_bw -d weft_ib0 -F -s 65536 --run_infinitely", "host1", "host3", "10.0.0.1")
	for round := range 2 {
		r.must("host3", "dd if=/dev/zero of=$WEFT_DIR/fill bs=64k 2>/dev/null; [ -s $WEFT_DIR/fill ]")
		r.eventually("host3", "weft status", "... store_disk: the copy of the store on this host has ended: "+
			"the disk of ... has ... MiB free, and 19 MiB are needed. fix: df ...")
		r.goesOn("host3")
		for i := range 10 {
			on := []string{"host1", "host3"}[i%2]
			r.eventually(on, fmt.Sprintf("weft pkey add 0x80%d%d --name k%d-%d weft_ib0@host2", round+1, i, round, i),
				fmt.Sprintf("k%d-%d 0x80%d%d ...", round, i, round+1, i))
		}
		r.goesOn("host3")
		r.eventually("host3", "weft store status", "this node client, generation 1 ...")
		r.must("host3", "rm $WEFT_DIR/fill")
		r.healthy("host3", 2)
		r.voters("host3", 3)
		r.eventually("host3", "weft store status", "this node voter, generation 1 ...")
		r.must("host3", "weft pkey list", fmt.Sprintf("k%d-9 0x80%d9 ...", round, round+1))
		r.goesOn("host3")
	}
	r.kill("host2") // host3 is one of the majority
	r.eventually("host1", "weft pkey add 0x8030 --name after weft_ib0", "after 0x8030 ...")
	r.goesOn("host3")
}

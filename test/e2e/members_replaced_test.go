// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"weft/test/lab"
)

// leads returns which host has the leader of the store, and which one the subnet manager that is master.
func (r *reader) leads(among ...string) (leader, master string) {
	r.t.Helper()
	leader = r.value(among[0], `weft store status | awk '$(NF-1) == "leader" {print $(NF-2)}'`)
	for _, h := range among {
		if out, _ := r.run(command{host: h, text: "weft sm -o json"}); strings.Contains(out, `"state": "master"`) {
			master = h
		}
	}
	return leader, master
}

// TestMembersReplaced: a fabric is made while programs run; hosts that may not join change nothing; a voter that stays
// away is replaced and returns as a client; the member that manages the subnet and leads the store is removed.
func TestMembersReplaced(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(5)
	for _, h := range []string{"host1", "host2", "host3", "host4", "host5"} {
		r.must(h, "export WEFT_STORE_REPLACE_AFTER=10s")
	}

	// A program uses the node from before the fabric was made.
	r.must("host1", "weft up --detach && weft wait", "weft: ready: ...")
	r.goOn("host1", "host1", "127.0.0.1")
	r.must("host1", "weft token --uses 3", "weft join 10.0.0.1 --token ...", "made: fabric ...")
	r.goesOn("host1")
	for _, h := range []string{"host2", "host3", "host4"} {
		r.must(h, "weft join 10.0.0.1 --token ...", h+" is a member of fabric ...", "weft: ready: ...")
	}
	used := r.token
	r.voters("host1", 3)
	for _, h := range []string{"host1", "host2", "host3", "host4"} {
		r.healthy(h, 3)
	}
	r.goesOn("host1")
	r.must("host1", "weft pkey add 0xffff ALL") // else the first partition ends the program
	r.must("host1", "weft pkey add 0x8001 --name red weft_ib0@host2 weft_ib0@host4", "red 0x8001 ...")

	// host3 votes, and does not lead: host1 has led since it was alone.
	r.eventually("host1", "weft store status", "... host3 voter ...")
	r.kill("host3")
	t.Run("refused", func(t *testing.T) { r.join(used) })

	r.eventually("host1", "weft store status", "... host4 voter ...")
	if out := r.must("host1", "weft store status"); strings.Contains(out, "host3") {
		t.Errorf("host3 has a copy still:\n%s", out)
	}
	r.must("host3", "weft up --detach", "weft: ready: ...")
	r.eventually("host3", "weft store status", "this node client, generation 1 ...", "... host4 voter ...")
	r.healthy("host3", 3)
	r.must("host3", "weft pkey list", "red 0x8001 ...")
	r.goesOn("host1")

	leader, master := r.leads("host1", "host2", "host3", "host4")
	if leader != "host1" || master != "host1" {
		t.Fatalf("%s leads the store, %s manages the subnet, not host1", leader, master)
	}
	r.must("host4", "weft member remove --force host1", "removed host1; replaced: sessions, tokens, M_Key, CA")
	r.eventually("host2", `echo leader: $(weft store status | awk '$(NF-1) == "leader" {print $(NF-2)}')`,
		"leader: host...")
	r.eventually("host2", `echo master: $(weft sm | awk '$1 == "master" && $2 != "host1" {print $2}')`, "master: host...")
	r.eventually("host2", "weft pkey add 0x8002 --name blue weft_ib0", "blue 0x8002 ...")
	r.eventually("host1", "weft status", "... member_out: ...")
	r.eventually("host1", "echo up: $(weft trunk | grep -c ':4792 .* up ')", "up: 0")
	for _, h := range []string{"host2", "host3", "host4"} {
		r.healthy(h, 2)
	}
	r.voters("host2", 3)
	r.must("host2", "echo active: $(weft member | grep -c ' active ')", "active: 3")
	r.eventually("host3", "weft pkey list", "red 0x8001 ...", "blue 0x8002 ...")
	r.must("host3", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
	r.must("host2", "weft run -- ibv_rc_pingpong -d weft_ib0 10.0.0.3", "1000 iters in ...")

	// A copy of a whole member that runs is named, and takes nothing away.
	r.must("host5", "cp -a /run/weft-host4 /run/weft-copy && weft up --detach --dir /run/weft-copy", "weft: ready: ...")
	r.eventually("host5", "weft status --dir /run/weft-copy", "... the replica of this node runs at 10.0.0.4:4793 too: "+
		"the node's directory was copied. fix: ... weft leave ...")
	r.eventually("host2", "weft pkey add 0x8003 --name green weft_ib0", "green 0x8003 ...")
	r.must("host5", "weft down --dir /run/weft-copy")
	r.eventually("host4", "weft pkey list", "green 0x8003 ...")
	r.healthy("host4", 2)
}

// join has host5 try to join the fabric of host1 in ways that are refused, each in one line, and changes nothing:
// neither at host5 nor at the members. used is a token without a use left.
func (r *reader) join(used string) {
	r.t.Helper()
	r.must("host5", "weft up --detach", "weft: ready: ...")
	r.must("host5", "weft token", "weft join 10.0.0.5 --token ...")
	foreign := r.token
	r.must("host5", "weft down && weft leave", "this host is in no fabric")
	r.must("host1", "weft token --for 1s", "weft join 10.0.0.1 --token ...")
	old := r.token
	r.must("host1", "weft token", "weft join 10.0.0.1 --token ...")
	good := r.token
	r.eventually("host1", "echo old: $(weft token list | grep -c "+strings.SplitN(old, ".", 2)[0]+")", "old: 0")

	own := func() string { return r.value("host5", "find $WEFT_DIR -type f ! -name lock | sort | xargs sha256sum") }
	all := func() string { return r.value("host1", "weft member list --wide; weft token list") }
	ownBefore, allBefore := own(), all()
	for _, x := range []struct{ what, flags, why, fix string }{
		{"used", "--token " + used, "has been used 3 times", "weft token"},
		{"old", "--token " + old, "it has no token", "weft token"},
		{"foreign", "--token " + foreign, "is of another fabric than the token", "weft token"},
		{"cut", "--token " + good[:len(good)-3], "token", "weft token"},
		{"garbage", "--token \"$(head -c 60 /dev/urandom | base64 -w0)\"", "token", "weft token"},
		{"name", "--token " + good + " --name host2", "the fabric has a member host2", "weft join --name"},
		{"no name", "--token " + good + " --name Host.5", "characters other than", "--name"},
		{"address", "--token " + good + " --address 10.0.0.2", "is the address of the member host2", "--address"},
		{"role", "--token " + good + " --role king", "king", "--role"},
	} {
		r.refused("host5", "weft join 10.0.0.1 "+x.flags, x.why, x.fix)
		if now := own(); now != ownBefore {
			r.t.Errorf("%s: the directory was\n%s\nand is\n%s", x.what, ownBefore, now)
		}
	}
	// The identity of a member in another directory, and a disk without room.
	r.must("host5", "mkdir -p /run/copy && cp /run/weft-host2/identity /run/copy")
	r.refused("host5", "weft join --dir /run/copy 10.0.0.1 --token "+good, "the member host2 has the identity",
		"remove the file identity")
	r.must("host5", "mkdir -p /run/small && mount -t tmpfs -o size=64k tmpfs /run/small")
	r.refused("host5", "weft join --dir /run/small 10.0.0.1 --token "+good, "no space left on device", "free space")
	r.must("host5", "echo left: $(ls /run/small | grep -vc lock) && umount /run/small", "left: 0")
	if now := all(); now != allBefore {
		r.t.Errorf("the members and tokens were\n%s\nand are\n%s", allBefore, now)
	}

	// What was refused does not keep the host out.
	r.must("host1", "weft token delete "+strings.SplitN(good, ".", 2)[0], "deleted 1 token")
}

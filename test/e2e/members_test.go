// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// asUser makes the shell of host N run weft as a user of its own, without a capability and without a right to lock
// memory, and with a directory of that user.
const asUser = `mkdir -p /run/user-N && chown 100N:100N /run/user-N && export WEFT_DIR=/run/user-N/node HOME=/run/user-N
weft() { prlimit --memlock=0:0 setpriv --reuid=100N --regid=100N --clear-groups --inh-caps=-all --bounding-set=-all \
  --no-new-privs -- "$(type -P weft)" "$@"; }`

// must runs a command that prints these lines, among others, and returns what it printed.
func (r *reader) must(host, text string, lines ...string) string {
	r.t.Helper()
	begun := time.Now()
	c := command{host: host, text: text, expected: lines}
	out, err := r.run(c)
	if err != nil {
		r.t.Fatalf("%s$ %s: %v\n%s", host, text, err, out)
	}
	r.t.Logf("%.1f s: %s$ %s", time.Since(begun).Seconds(), host, text)
	return out
}

// eventually repeats a command until it prints these lines.
func (r *reader) eventually(host, text string, lines ...string) string {
	r.t.Helper()
	begun := time.Now()
	c := command{host: host, text: text, expected: lines}
	for {
		out, err := r.run(c)
		if err == nil {
			r.t.Logf("after %.1f s: %s$ %s", time.Since(begun).Seconds(), host, text)
			return out
		}
		if time.Since(begun) > docsLimit {
			r.t.Fatalf("%s$ %s: %v\n%s", host, text, err, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// found makes a fabric of host1 to host3, and has two of them talk by LID. It logs how long the commands took.
func (r *reader) found() {
	r.t.Helper()
	begun := time.Now()
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token --uses 2", "weft join 10.0.0.1 --token ...", "made: fabric ...")
	for _, h := range []string{"host2", "host3"} {
		r.must(h, "weft join 10.0.0.1 --token ...", h+" is a member of fabric ...", "weft: ready: ...")
	}
	r.eventually("host2", "weft status", "device weft_ib0: InfiniBand port ACTIVE ...", "trunks 2 of 2 up")
	r.must("host1", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
	r.must("host2", "weft run -- ibv_rc_pingpong -d weft_ib0 10.0.0.1", "1000 iters in ...")
	r.t.Logf("from nothing to a pingpong by LID on three hosts: %.1f s", time.Since(begun).Seconds())
}

// TestMembersUnprivileged makes a fabric of the nodes of three users without a privilege.
func TestMembersUnprivileged(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	for i := range 3 {
		r.must(fmt.Sprint("host", i+1), strings.ReplaceAll(asUser, "N", fmt.Sprint(i+1)))
	}
	r.found()
	r.voters("host1", 3)
}

// TestMembers makes a fabric of three hosts. A host that is no member gets nothing of it. A removed member loses
// everything at once, also after it started again, and can join anew; the others go on.
func TestMembers(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(4)
	r.found()
	// Three copies before one of them ends.
	r.voters("host1", 3)
	r.must("host1", "weft fabric nodes", "... host1 weft_ib0")
	r.must("host1", "weft pkey add 0x8001 --name red weft_ib0 weft_ib0@host2 --yes", "red 0x8001 ...",
		"... host2 weft_ib0")
	r.must("host1", "weft pkey add 0xffff ALL")

	t.Log("administration from members that are not the master")
	r.must("host3", "weft vesw create lab")
	for _, h := range []string{"host2", "host3"} {
		r.must(h, "weft dev add eth1 --segment vesw:lab")
		r.must(h, "weft vesw show lab")
		r.must(h, "weft check weft_ib0 weft_ib0@host1")
		r.must(h, "weft doctor | grep 'one master'", "... one master, ...")
		r.must(h, "weft dev delete eth1 --yes")
		r.must(h, "weft history | grep -c @"+h+".*'vesw port'", "2")
	}
	r.must("host2", "weft vesw delete lab")

	t.Log("strangers")
	for _, flags := range []string{"--trunk-security none", "--trunk-key-file /run/key"} {
		r.must("host4", "(umask 077; od -An -tx1 -N32 /dev/urandom | tr -d ' \\n' >/run/key)")
		r.must("host4", "weft up --detach --peer 10.0.0.1 --peer 10.0.0.2 "+flags, "weft: ready: ...")
		r.eventually("host4", "weft trunk", "10.0.0.1:4792 ... down ...", "10.0.0.2:4792 ... down ...")
		r.must("host4", "sleep 3; weft trunk | grep -c ' up ' || true", "0")
		r.must("host1", "weft trunk | grep -c ' up '", "2")
		r.must("host1", "weft status", "trunks 2 of 2 up", "health nothing is degraded ...")
		r.must("host4", "weft down")
	}
	r.must("host4", "weft up --detach --store https://10.0.0.1:4793", "weft: ready: ...")
	r.must("host4", "weft store status", "... does not answer ...")
	r.must("host4", "weft down")

	t.Log("a removed member")
	out, err := r.run(command{host: "host1", text: "weft member remove host3"})
	if err == nil || !strings.Contains(out, "weft member remove --force host3") {
		t.Errorf("a member that was not drained is removed: %v %s", err, out)
	}
	r.must("host1", "weft member remove --force host3", "removed host3; replaced: sessions, tokens, M_Key, CA")
	for _, h := range []string{"host1", "host2"} {
		r.eventually(h, "weft trunk | grep -c ' up '", "1")
		r.must(h, "weft status", "trunks 1 of 1 up")
	}
	r.eventually("host3", "weft trunk | grep -c ' up  *0' || true", "0")
	// The store goes on without it, also while its certificates are replaced.
	r.eventually("host2", "weft pkey add 0x8002 --name blue weft_ib0", "blue 0x8002 ...")
	r.eventually("host1", "weft status", "health nothing is degraded ...")
	r.eventually("host2", "weft status", "health nothing is degraded ...")
	r.must("host3", "weft down && weft up --detach", "weft: ready: ...")
	r.eventually("host3", "weft status", "... member_out: ... fix: weft down; ... weft leave; weft join, with a new token")
	r.must("host1", "weft trunk | grep -c ' up '", "1")
	r.must("host1", "weft token", "weft join 10.0.0.1 --token ...")
	r.must("host3", "weft down && weft leave")
	r.must("host3", "weft join 10.0.0.1 --token ...", "host3 is a member of fabric ...")
	r.eventually("host3", "weft status", "trunks 2 of 2 up", "health nothing is degraded ...")
	r.must("host3", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
	r.must("host2", "weft run -- ibv_rc_pingpong -d weft_ib0 10.0.0.3", "1000 iters in ...")
	r.must("host1", "weft pkey list", "red 0x8001 ...", "blue 0x8002 ...")
}

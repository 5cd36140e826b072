// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/test/lab"
)

// names has the hosts of the machine resolve these names: lines of hosts(5). Shells that run already see it.
func (r *reader) names(lines ...string) {
	r.t.Helper()
	r.must("", "printf '%s\\n' '127.0.0.1 localhost' '"+strings.Join(lines, "' '")+"' >/run/hosts")
}

// TestMembersByName makes a fabric of hosts with addresses of both families, which join and are reached by a name, by
// an IPv6 address and by an IPv4 address. Then each host in turn moves to other addresses while all run: the first,
// which leads, another one, and one that is known by its name. Trunks and store follow, and programs work.
func TestMembersByName(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.must("", "touch /run/hosts && mount --bind /run/hosts /etc/hosts")
	r.names("10.0.0.1 first.example", "fd00:10::3 third.example")
	r.hosts(3)
	for _, n := range []string{"1", "2", "3"} {
		r.must("host"+n, "ip addr add fd00:10::"+n+"/64 dev eth0 nodad")
	}
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token --uses 2", "weft join 10.0.0.1 --token ...")
	r.must("host2", "weft join fd00:10::1 --token ...", "host2 is a member of fabric ...")
	r.must("host3", "weft join first.example --address third.example --token ...", "host3 is a member of fabric ...")
	working := func(why string, address [3]string) {
		t.Helper()
		t.Log(why)
		for _, h := range []string{"host1", "host2", "host3"} {
			r.eventually(h, "weft status", "device weft_ib0: InfiniBand port ACTIVE ...", "trunks 2 of 2 up",
				"health nothing is degraded ...")
		}
		// By TCP the programs meet at addresses that all have.
		r.must("host1", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
		r.must("host2", "weft run -- ibv_rc_pingpong -d weft_ib0 "+address[0], "1000 iters in ...")
		r.must("host3", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
		r.must("host1", "weft run -- ibv_rc_pingpong -d weft_ib0 "+address[2], "1000 iters in ...")
	}
	// moved waits until the other hosts have a trunk to a host that moved, at one of its addresses: for some seconds
	// after the move they take the trunk to its last address for one that is up.
	moved := func(n int, addresses string) {
		t.Helper()
		for i := 1; i <= 3; i++ {
			if i != n {
				r.eventually(fmt.Sprint("host", i),
					fmt.Sprintf(`weft trunk | grep -c '^\[\?\(%s\)\]\?:.* up .* host%d '`, addresses, n), "1")
			}
		}
	}
	at := [3]string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	working("joined", at)
	r.must("host1", "weft member list", "... third.example:4792 ...")
	r.must("host3", "weft token", "weft join third.example --token ...")
	r.eventually("host1", "weft store status | grep -c 'voter .*https\\|leader .*https'", "3")

	t.Log("host2 moves")
	r.must("host2", "ip addr flush dev eth0 && ip addr add 10.0.0.22/24 dev eth0 && "+
		"ip addr add fd00:10::22/64 dev eth0 nodad")
	at[1] = "10.0.0.22"
	moved(2, `10.0.0.22\|fd00:10::22`)
	working("host2 has moved", at)
	r.eventually("host2", "weft token", "weft join 10.0.0.22 --token ...")

	t.Log("the name of host3 moves, to the other family")
	r.must("host3", "ip addr flush dev eth0 && ip addr add 10.0.0.33/24 dev eth0")
	r.names("10.0.0.1 first.example", "10.0.0.33 third.example")
	at[2] = "10.0.0.33"
	moved(3, "10.0.0.33\\|third.example")
	working("host3 has moved", at)
	r.eventually("host3", "weft token", "weft join third.example --token ...")

	t.Log("host1 moves, which founded the fabric")
	r.must("host1", "ip addr flush dev eth0 && ip addr add 10.0.0.11/24 dev eth0 && "+
		"ip addr add fd00:10::11/64 dev eth0 nodad")
	at[0] = "10.0.0.11"
	moved(1, `10.0.0.11\|fd00:10::11`)
	working("host1 has moved", at)
	r.eventually("host1", "weft token", "weft join 10.0.0.11 --token ...")
	// A request that ended without an answer may have made a token as well.
	r.eventually("host3", "[ \"$(weft token list | grep -c voter)\" -ge 4 ] && echo all are there", "all are there")
}

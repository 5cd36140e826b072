// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weft/test/lab"
)

// natEnv has this binary be the router of TestLeafBehindNAT: "DEVICE INNER OUTER".
const natEnv = "WEFT_E2E_NAT"

func serveNAT(what string) int {
	f := strings.Fields(what)
	n := lab.NewNAT(netip.MustParsePrefix(f[1]), netip.MustParseAddr(f[2]))
	fmt.Fprintln(os.Stderr, lab.ServeNAT(f[0], n, os.Stdout))
	return 1
}

// behindNAT adds a host named leaf, 192.168.7.2, and a router between it and the network of the others, where both have
// the address 10.0.0.9: the kernel routes what passes to a program that translates.
func (r *reader) behindNAT() {
	r.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	r.must("", `ip netns add nat && ip netns add leaf
ip link add portnat mtu 9000 type veth peer name eth0 mtu 9000 netns nat && ip link set portnat master lan up
ip -n nat link add inside mtu 1500 type veth peer name eth0 mtu 1500 netns leaf
ip -n leaf link set lo up && ip -n leaf addr add 192.168.7.2/24 dev eth0 && ip -n leaf link set eth0 up
ip -n leaf route add default via 192.168.7.1`)
	r.must("nat", `ip link set lo up && ip addr add 10.0.0.8/24 dev eth0 && ip link set eth0 up
ip addr add 192.168.7.1/24 dev inside && ip link set inside up
ip tuntap add tun0 mode tun && ip link set tun0 mtu 9000 up
for f in all default eth0 inside tun0; do echo 0 >/proc/sys/net/ipv4/conf/$f/rp_filter; done
echo 1 >/proc/sys/net/ipv4/ip_forward && echo 1 >/proc/sys/net/ipv4/conf/eth0/proxy_arp
ip route add 10.0.0.9 dev tun0 && ip route add default dev tun0 table 7 && ip rule add iif inside lookup 7`)
	r.must("nat", natEnv+`="tun0 192.168.7.0/24 10.0.0.9" `+exe+` >/run/nat.log 2>&1 & echo $! >/run/nat.pid`)
	r.eventually("nat", "cat /run/nat.log", "nat ready")
	r.must("leaf", "hostname branch; export WEFT_DIR=/run/weft-branch")
}

var natPort = regexp.MustCompile(`10\.0\.0\.9:(\d+)`)

// leafPort is the outer port at which a host has its trunk to the leaf.
func (r *reader) leafPort(host string) int {
	r.t.Helper()
	out := r.must(host, "weft trunk")
	m := natPort.FindStringSubmatch(out)
	if m == nil {
		r.t.Fatalf("%s has no trunk to the router's address:\n%s", host, out)
	}
	port, _ := strconv.Atoi(m[1])
	return port
}

// TestLeafBehindNAT: a host behind a router that translates its addresses, and passes nothing inwards but answers, is a
// leaf: it joins, its trunks come up, and programs work. They go on when the router forgets its flows, and come back
// when the leaf starts again.
func TestLeafBehindNAT(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(2)
	r.behindNAT()
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token", "weft join 10.0.0.1 --token ...")
	r.must("host2", "weft join 10.0.0.1 --token ...", "host2 is a member of fabric ...")
	r.must("host1", "weft token --role leaf", "weft join 10.0.0.1 --token ...")
	r.must("leaf", "weft join 10.0.0.1 --token ...", "branch is a member of fabric ...")
	working := func(why string) {
		t.Helper()
		t.Log(why)
		r.eventually("leaf", "weft status", "device weft_ib0: InfiniBand port ACTIVE ...", "trunks 2 of 2 up")
		for _, h := range []string{"host1", "host2"} {
			r.eventually(h, "weft status", "trunks 2 of 2 up")
		}
		for h, at := range map[string]string{"host1": "10.0.0.1", "host2": "10.0.0.2"} {
			r.must(h, "weft run -- ibv_rc_pingpong -d weft_ib0 &")
			r.must("leaf", "weft run -- ibv_rc_pingpong -d weft_ib0 "+at, "1000 iters in ...")
		}
	}
	working("joined")
	before := r.leafPort("host1")
	if before == 4792 || before == r.leafPort("host2") {
		t.Errorf("the trunks to the leaf are at port %d: the router translates nothing", before)
	}

	t.Log("nothing unsolicited passes inwards")
	r.must("host1", fmt.Sprintf("echo stray >/dev/udp/10.0.0.9/4792; echo stray >/dev/udp/10.0.0.9/%d", before))
	r.must("nat", "kill -USR1 $(cat /run/nat.pid)")
	out := r.eventually("nat", "cat /run/nat.log", "forgotten, ... unsolicited")
	if strings.Contains(out, "forgotten, 0 unsolicited") {
		t.Error("the router counts no stray datagram")
	}
	// The next hello of the leaf comes from another port.
	r.eventually("host1", fmt.Sprintf("weft trunk | grep 10.0.0.9 | grep -v ':%d ' | grep -c ' up '", before), "1")
	working("the router has forgotten")

	r.must("leaf", "weft down && weft up --detach", "weft: ready: ...")
	working("the leaf has started again")
	r.must("host1", "weft member list", "branch ... leaf ...")
}

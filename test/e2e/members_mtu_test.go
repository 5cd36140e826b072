// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
)

// mtus are those of host1, host2, …: of each two another pair.
var mtus = []int{1280, 1500, 4096, 9000}

// trunkHeaders are the IP and UDP headers of a datagram, in octets.
const trunkHeaders = 28

// settled waits until the trunk between each two hosts has the smaller of their MTUs at both ends, and each end names
// those that differ, once and with nothing else.
func (r *reader) settled(mtu []int) {
	r.t.Helper()
	for i, own := range mtu {
		host := fmt.Sprint("host", i+1)
		filter := "weft trunk -o json | grep -E '\"(peer|limit|up)\":' | tr -d ' \\n'"
		var want []string
		for j, other := range mtu {
			if j != i {
				want = append(want, fmt.Sprintf(`"peer":"10.0.0.%d:4792","up":true,"limit":%d`, j+1,
					min(own, other)-trunkHeaders))
			}
		}
		r.eventually(host, filter+" | sed 's/\"peer\"/\\n&/g' | sort", want...)
		var st api.Status
		r.query(host, "weft status -o json", &st)
		named := map[string]api.Degraded{}
		for _, d := range st.Degraded {
			peer := regexp.MustCompile(`10\.0\.0\.\d`).FindString(d.Why)
			if _, twice := named[peer]; d.What != "trunk_mtu" || twice {
				r.t.Errorf("%s: %+v", host, d)
			}
			named[peer] = d
		}
		for j, other := range mtu {
			d, warned := named[fmt.Sprint("10.0.0.", j+1)]
			where := map[bool]string{true: "here", false: "there"}[own < other]
			why := fmt.Sprintf("%d here and of %d there", own, other)
			fix := fmt.Sprintf("ip link set DEV mtu %d, %s", max(own, other), where)
			if warned != (own != other) || warned && (!strings.Contains(d.Why, why) || d.Fix != fix) {
				r.t.Errorf("%s to host%d: %+v", host, j+1, d)
			}
		}
	}
}

// follow does what the status of a host says about its own MTU, with the largest last.
func (r *reader) follow(host string) {
	r.t.Helper()
	out := r.must(host, "weft status")
	largest := 0
	for _, m := range regexp.MustCompile(`fix: ip link set DEV mtu (\d+), here`).FindAllStringSubmatch(out, -1) {
		n, _ := strconv.Atoi(m[1])
		largest = max(largest, n)
	}
	if largest > 0 {
		r.must(host, fmt.Sprintf("ip link set eth0 mtu %d", largest))
	}
}

// TestMembersMTU: four hosts with four MTUs, and with a bridge for containers each, are one fabric. Each trunk has the
// smaller MTU of its ends, programs and IP links work, each difference is one warning, and its fix works.
func TestMembersMTU(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(len(mtus), "link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up")
	for i, mtu := range mtus {
		r.must(fmt.Sprint("host", i+1), fmt.Sprintf("ip link set eth0 mtu %d", mtu))
	}
	r.must("host1", "weft up --detach", "weft: ready: ...")
	r.must("host1", "weft token --uses 3", "weft join 10.0.0.1 --token ...")
	for i, mtu := range mtus[1:] {
		h := fmt.Sprint("host", i+2)
		out := r.must(h, "weft join 10.0.0.1 --token ...", h+" is a member of fabric ...", "weft: ready: ...")
		if want := fmt.Sprintf("warning: the MTU is %d here and %d at 10.0.0.1: the trunk uses %d. "+
			"fix: ip link set DEVICE mtu %d, on both", mtu, mtus[0], mtus[0],
			mtu); strings.Count(out, "the MTU is") != 1 || !strings.Contains(out, want) {
			t.Errorf("%s: no %q in:\n%s", h, want, out)
		}
	}
	r.voters("host1", 3)
	r.must("host1", "echo reached: $(weft store status | grep -c 'https://10.0.0.[1-4]:4793$')", "reached: 3")
	r.settled(mtus)

	for i := range mtus {
		for j := range i {
			server, client := fmt.Sprint("host", i+1), fmt.Sprint("host", j+1)
			program := fmt.Sprint("weft run -- ibv_rc_pingpong -d weft_ib0 -m 4096 -s 20000 -n 50 -c -p ", 18600+10*i+j)
			r.must(server, program+" &")
			r.must(client, fmt.Sprint(program, " 10.0.0.", i+1), "50 iters in ...")
		}
	}
	for i := range mtus {
		r.must(fmt.Sprint("host", i+1), fmt.Sprintf("weft ipoib add weft_ib0 --addr 10.1.0.%d/24", i+1))
	}
	r.eventually("host1", "ping -c 1 -W 1 -M do -s 2000 10.1.0.4", "1 packets transmitted, 1 received, ...")
	r.eventually("host4", "ping -c 1 -W 1 -M do -s 2000 10.1.0.2", "1 packets transmitted, 1 received, ...")

	same := make([]int, len(mtus))
	for i := range mtus {
		r.follow(fmt.Sprint("host", i+1))
		same[i] = mtus[len(mtus)-1]
	}
	r.settled(same)
	for i := range mtus {
		r.healthy(fmt.Sprint("host", i+1), 3)
	}
	r.must("host4", "ping -c 1 -W 1 -M do -s 2000 10.1.0.1", "1 packets transmitted, 1 received, ...")
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestIPoIBOpenSM: Debian's OpenSM is the administration of IP links, as Linux nodes have it: its broadcast
// group, its Q_Key, its MTU. In a soak it is killed under iperf3 and started again without what it knew, has links join
// anew (S-04), and has a partition without a broadcast group: the link reports it, and makes it where it may.
func TestIPoIBOpenSM(t *testing.T) {
	t.Parallel()
	needs(t, "opensm", "saquery")
	s := startSubnet(t, false, "--sm", "external", "--store", "memory")
	s.trunksUp()
	o := s.startOpenSM(1, t.TempDir(), "first")
	s.learn(t)
	s.links(0, 2)
	s.reaches(0, v4(2))
	s.reaches(2, v6(0))
	link := func(i int) (l api.IPLink) {
		t.Helper()
		var list []api.IPLink
		if err := s.nodes[i].Query(&list, "ipoib"); err != nil || len(list) == 0 {
			t.Fatalf("%v %+v", err, list)
		}
		return list[0]
	}
	if l := link(0); l.MTU != ipPayload || l.QKey != 0xb1b {
		t.Errorf("MTU %d, Q_Key %#x", l.MTU, l.QKey)
	}
	for _, args := range [][]string{{v4(2), "-n", "16M"}, {v6(2), "-n", "8M", "-R"}} {
		if r := s.iperf(t, 2, 0, args[0], args[1:]...); r.End.SumReceived.Bytes == 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, group := range []string{"239.1.2.3:7000", "[ff02::4242]:7000"} {
		s.group(t, group, 2)
	}
	const mgid = "ff12:401b:ffff::f01:204"
	has := func(want bool) func() bool {
		return func() bool {
			out, err := lab.Run(s.nodes[1].Program("saquery", "-g"), diagLimit)
			return err == nil && slices.Contains(each(records(out), "MGID"), mgid) == want
		}
	}
	s.joins(0, "239.1.2.4")
	s.until("opensm has the group", has(true))
	s.weft(0, "ipoib", "mcast", "leave", ipLink, "239.1.2.4")
	s.until("opensm has dropped the group", has(false))
	if !lab.Soak {
		return
	}

	x := s.stream(t, 0, 2)
	o.Kill()
	x.more("iperf3 is at work without a manager", 2)
	o = s.startOpenSM(1, t.TempDir(), "second")
	x.more("iperf3 is at work under the next", 2)
	s.joins(0, "239.1.2.5") // by which time broadcast has been joined anew
	s.weft(0, "ipoib", "path", "flush", ipLink)
	s.reaches(0, v6(2))
	s.group(t, "239.1.2.6:7000", 2)
	s.unbroken(t, 0, 2)
	x.end(t)
	o.Kill()

	// A partition that is not for IP has no broadcast group.
	dir := t.TempDir()
	parts := filepath.Join(dir, "partitions")
	if err := os.WriteFile(parts, []byte("Default=0x7fff, ipoib : ALL=full;\nplain=0x0021 : ALL=full;\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	s.startOpenSM(1, dir, "third", "-P", parts)
	const plain = "ib0_1_21"
	for _, i := range []int{0, 2} {
		s.until(fmt.Sprintf("node %d has the partition", i), func() bool {
			return slices.ContainsFunc(s.device(i, native).PKeys, func(k api.PKey) bool { return k.PKey == "0x8021" })
		})
	}
	s.weft(0, "ipoib", "add", native, "--pkey", "0x8021", "--addr", "10.33.0.1/24")
	s.until("the link shows what it lacks", func() bool {
		out, err := s.nodes[0].Weft("ipoib")
		return err == nil && strings.Contains(out, "broadcast group: absent, and none is made without create=1")
	})
	s.weft(2, "ipoib", "add", native, "--pkey", "0x8021", "--addr", "10.33.0.3/24", "--set", "create=1")
	s.carrier(2, plain)
	s.carrier(0, plain)
	s.reaches(0, "10.33.0.3")
}

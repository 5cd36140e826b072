// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"weft/internal/api"
	"weft/test/lab"
)

// TestMulticast checks every copy of multicast packets between sessions of one
// lane, of several, and of two nodes over IPv4 and IPv6. Afterwards no payload
// is held and no group is joined.
func TestMulticast(t *testing.T) {
	for _, x := range []struct {
		name    string
		oneNode bool
		v6      bool
		flags   []string // of the nodes
		run     []string // of weft run
	}{
		{"one lane", true, false, []string{"--lanes", "1"}, nil},
		{"three lanes", true, false, []string{"--lanes", "3"}, nil},
		{"one node, full packet path", true, false, []string{"--wire-local"}, nil},
		{"arena", true, true, nil, []string{"--arena"}},
		{"two nodes", false, false, nil, nil},
		{"two nodes, IPv6", false, true, []string{"--lanes", "2"}, nil},
		{"small store", false, false, []string{"--mcast-payloads", "64", "--mcast-threshold", "0"}, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := open(t, 9000, x.oneNode, 0, x.flags...)
			b.V6 = x.v6
			verbcheck(t, b, verbcheckLimit, x.run, "-t", "mcast.*")
			for _, n := range []*lab.Node{b.Server, b.Client} {
				counters, err := n.Counters()
				if err != nil {
					t.Fatal(err)
				}
				c := map[string]uint64{}
				for _, v := range counters {
					if v.Scope == api.ScopeMcast {
						c[v.Name] = v.Value
					}
				}
				if c["injected"] == 0 || c["payloads"] != 0 || c["popped"] != c["received"] || c["high_payloads"] == 0 {
					t.Errorf("counters %v", c)
				}
				if out, err := n.Weft("mcast", "list"); err != nil || !strings.Contains(out, "in no multicast group") {
					t.Errorf("%v\n%s", err, out)
				}
				out, err := lab.Run(lab.Cmd{NetNS: n.NetNS.Name, Args: []string{"ip", "maddr"}}, verbcheckLimit)
				if err != nil || strings.Contains(out, " 239.86.") || strings.Contains(out, "ff05::7663") {
					t.Errorf("a group is still joined (%v):\n%s", err, out)
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestLossyTrunk: while a fault on a node takes two percent of what it sends by a trunk, the node at the other end
// names the trunk, and the rate, in weft status, weft doctor and weft trunk; the node with the fault, which receives
// all, does not. It ends after the fault.
func TestLossyTrunk(t *testing.T) {
	t.Parallel()
	needs(t, "ib_write_lat")
	b := openTestbed(t, 1500, false, 0, "--store", "memory", "--peer", peer)
	b.Device = "weft_ib0"
	for _, n := range []*lab.Node{b.Server, b.Client} {
		if out, err := n.Weft("wait", "--for=active", "--timeout", "1m"); err != nil {
			t.Fatal(err, out)
		}
	}
	lossy := func(n *lab.Node) (d api.Degraded) {
		t.Helper()
		s, err := n.Status()
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(s.Degraded, func(d api.Degraded) bool { return d.What == "trunk_lossy" }); i >= 0 {
			d = s.Degraded[i]
		}
		return d
	}
	// traffic runs ib_write_lat until done, or limit is over, and returns how long that took. Its ends wait for each
	// other before they end, so that each packet is repeated until it arrives.
	traffic := func(limit time.Duration, done func() bool) (time.Duration, bool) {
		t.Helper()
		for began := time.Now(); ; {
			if p, err := b.runPairOnce(time.Minute, nil, "ib_write_lat", "-n", "500"); err != nil {
				t.Fatalf("%v%s", err, p.Outputs())
			}
			if took := time.Since(began); done() {
				return took, true
			} else if took > limit {
				return took, false
			}
		}
	}
	if traffic(0, func() bool { return true }); lossy(b.Server).What+lossy(b.Client).What != "" {
		t.Errorf("before the fault: %+v, %+v", lossy(b.Server), lossy(b.Client))
	}
	out, err := b.Server.Weft("fault", "add", "--link", "trunk", "--drop", "2")
	if err != nil {
		t.Fatal(err, out)
	}
	took, ok := traffic(15*time.Second, func() bool { return lossy(b.Client).What != "" })
	if !ok {
		out, err := b.Client.Weft("trunk")
		t.Fatalf("after %v the trunk is not named: %v\n%s", took, err, out)
	}
	// The rate is that of the fault once the window is full.
	var list []api.Trunk
	traffic(10*time.Second, func() bool { return false })
	if err := b.Client.Query(&list, "trunk"); err != nil || len(list) != 1 || !list[0].Lossy ||
		list[0].LossPercent < 1 || list[0].LossPercent > 3.5 {
		t.Errorf("%v: %+v", err, list)
	}
	d := lossy(b.Client)
	t.Logf("after %v: %s. fix: %s", took, d.Why, d.Fix)
	if d := lossy(b.Server); d.What != "" {
		t.Errorf("the node with the fault: %+v", d)
	}
	for _, c := range []string{"status", "doctor"} {
		if out, _ := b.Client.Weft(c); !strings.Contains(out, "of the datagrams that") {
			t.Errorf("weft %s:\n%s", c, out)
		}
	}
	if out, err := b.Client.Weft("trunk", "--wide"); err != nil || !strings.Contains(out, "% now)") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := b.Server.Weft("fault", "list"); err != nil || !strings.Contains(out, "trunk") {
		t.Errorf("the fix names no fault: %v\n%s", err, out)
	}
	if out, err := b.Server.Weft("fault", "delete", "all"); err != nil {
		t.Fatal(err, out)
	}
	took, ok = traffic(30*time.Second, func() bool { return lossy(b.Client).What == "" })
	if !ok {
		t.Errorf("%v after the end of the fault: %+v", took, lossy(b.Client))
	}
	t.Log(fmt.Sprint("gone ", took, " after the end of the fault"))
}

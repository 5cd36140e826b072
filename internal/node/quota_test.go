// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/verbs/hca"
)

// TestShortageIsTold: a refusal is a counter, a line in the log, and a state
// with a fix.
func TestShortageIsTold(t *testing.T) {
	old := hca.DefaultLimits
	t.Cleanup(func() { hca.DefaultLimits = old })
	hca.DefaultLimits.Sessions = 2
	r := run(t, nil)
	r.client(t, vhosttest.Options{})
	r.client(t, vhosttest.Options{})
	f, err := vhosttest.Dial(r.door())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Conn.CloseWrite()
	eventually(t, "the refusal is counted", func() bool { return r.counter(api.ScopeNode, "refused_sessions") == 1 })
	eventually(t, "the refusal is logged", func() bool { return r.logs.count("refused", "every session of the node is in use", "fix=") == 1 })
	for _, d := range r.status().Degraded {
		if d.What == "quota_sessions" && strings.Contains(d.Why, "every session") && d.Fix != "" {
			return
		}
	}
	t.Errorf("status does not tell: %+v", r.status().Degraded)
}

func TestEveryQuotaHasAFix(t *testing.T) {
	n := &Node{noRoom: map[vhost.Quota]refusal{}}
	now := time.Now()
	all := []vhost.Quota{vhost.SessionsOfAll, vhost.SessionsOfUser, vhost.DescriptorsOfAll, vhost.DescriptorsOfUser, vhost.DescriptorsOfSession}
	for _, q := range all {
		n.noRoom[q] = refusal{at: now}
	}
	list := n.shortages(now)
	for _, d := range list {
		if d.Why == "" || d.Fix == "" {
			t.Errorf("%+v", d)
		}
	}
	if len(list) != len(all) || len(n.shortages(now.Add(refusalShown))) != 0 {
		t.Errorf("%d of %d shown", len(list), len(all))
	}
}

func TestDescriptorShare(t *testing.T) {
	for files, want := range map[uint64]int{1 << 20: 1<<20 - 256 - 1024, 20000: 18720, 4096: 2816, 1024: 512, 1 << 63: 1<<30 - 256 - 1024} {
		if got := descriptorShare(files, 1024); got != want {
			t.Errorf("%d files: %d, want %d", files, got, want)
		}
	}
}

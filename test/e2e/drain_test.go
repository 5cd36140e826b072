// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// drainedLimit bounds a command that a drained host refuses.
const drainedLimit = time.Second

// refuses runs a command on a drained host, which refuses it at once with the reason and the fix.
func (r *reader) refuses(host, text string) {
	r.t.Helper()
	begun := time.Now()
	out, err := r.run(command{host: host, text: text})
	took := time.Since(begun)
	r.t.Logf("%.2f s: %s$ %s: %s", took.Seconds(), host, text, strings.TrimSpace(out))
	if err == nil || took > drainedLimit || !strings.Contains(out, "this host is drained: it accepts no new ") ||
		!strings.Contains(out, ". fix: weft member undrain "+host) {
		r.t.Errorf("%s$ %s: %v after %v: %s", host, text, err, took, out)
	}
}

// TestDrainedHost: a drained host refuses programs, IP links, guests, devices and virtual ports at once. What it had
// keeps the drain waiting until it is ended by force, and is there again after the drain; a node that starts on the
// drained host has nothing.
func TestDrainedHost(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	r.hosts(3)
	r.found()
	r.must("host3", "weft ipoib add weft_ib0 --pkey 0x7fff --addr 10.9.0.3/24")
	r.must("host1", "weft ipoib add weft_ib0 --pkey 0x7fff --addr 10.9.0.1/24")
	r.eventually("host1", "ping -c 1 -W 1 10.9.0.3", "1 packets transmitted, 1 received, ...")
	r.must("host3", "weft vm add web")

	uses := []string{
		"weft run -- ibv_devices",
		"weft ipoib add weft_ib0 --pkey 0x8001",
		"weft vm add late",
		"weft dev add late_ib0",
		"weft vesw attach weft_ib0 --vesw 9 --name late0",
	}
	// Only what waits for the end of the drain uses the host: the link, and no guest.
	r.eventually("host1", "weft member drain host3", "host3 is draining: waiting for 1 user", "IP link ib0_1_7fff ...")
	r.eventually("host3", "weft status", "... member_drain: ... fix: weft member undrain host3")
	for _, text := range uses {
		r.refuses("host3", text)
	}
	r.must("host1", "ping -c 1 -W 1 10.9.0.3", "1 packets transmitted, 1 received, ...")
	r.must("host1", "weft member drain --force host3", "ended on host3: 1 user", "IP link ib0_1_7fff",
		"host3 is drained: nothing uses it")
	r.must("host3", "ip link show ib0_1_7fff || echo none", "none")
	r.refuses("host3", uses[0])
	r.must("host1", "weft vesw create lab")
	r.must("host1", "weft vesw port add lab weft_ib0@host3 2>&1 | grep -v ^$ || true",
		"... host3 is drained: it accepts no new virtual port. fix: weft member undrain host3")

	t.Log("the node starts again")
	r.must("host3", "weft down && weft up --detach", "weft: ready: ...")
	for _, text := range uses {
		r.refuses("host3", text)
	}
	r.must("host3", "ip link show ib0_1_7fff || echo none", "none")
	r.must("host1", "weft member drain host3", "host3 is drained: nothing uses it")

	t.Log("after the drain")
	r.must("host1", "weft member undrain host3", "host3 is active")
	r.eventually("host3", "weft status", "health nothing is degraded ...")
	r.eventually("host1", "ping -c 1 -W 1 10.9.0.3", "1 packets transmitted, 1 received, ...")
	for _, text := range uses {
		r.must("host3", text)
	}
	r.must("host1", "weft vesw port add lab weft_ib0@host3")
	r.must("host3", "weft run -- ibv_rc_pingpong -d weft_ib0 &")
	r.must("host2", "weft run -- ibv_rc_pingpong -d weft_ib0 10.0.0.3", "1000 iters in ...")
	r.must("host2", "weft sm", "manager standby, ...")
}

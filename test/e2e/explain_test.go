// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// TestExplain: a program that fails shows which verbs call failed, what was wrong and the fix, and the fix works.
func TestExplain(t *testing.T) {
	b := openTestbed(t, 9000, true, 0)
	gid, err := b.Server.GID(b.Server.NetNS.V4)
	if err != nil {
		t.Fatal(err)
	}
	pingpong := func(flags string, args ...string) (out string, err error) {
		port := lab.Port()
		argv := append(append(strings.Fields(flags), "--", "ibv_rc_pingpong", "-d", "weft0", "-p",
			strconv.Itoa(port)), args...)
		p, err := lab.StartPair(port, b.Server.Program(argv...), b.Client.Program(append(argv, b.Server.NetNS.V4)...))
		defer p.Kill()
		if err != nil {
			t.Fatalf("%v%s", err, p.Outputs())
		}
		client, server := p.Wait(time.Minute)
		return p.Server.Output() + p.Client.Output(), errors.Join(client, server)
	}
	const why = "weft: ibv_modify_qp to RTR of weft0 failed (Invalid argument): the address has no GID, " +
		"which a RoCE port needs to reach its peer. fix: name a GID: -g INDEX"
	for _, flags := range []string{"", "--explain"} {
		if out, err := pingpong(flags); err == nil || strings.Count(out, why) != 1 {
			t.Errorf("weft run %s: %v\n%s", flags, err, out)
		}
	}
	// The server's call fails; the client, which ends as the server does, made none that fails.
	const missing = "there is no GID 99. fix: name a GID that exists: weft dev lists them"
	for _, flags := range []string{"", "--explain"} {
		out, err := pingpong(flags, "-g", "99")
		if err == nil || strings.Count(out, "weft: ibv_modify_qp to RTR of weft0 failed (Invalid argument): "+
			"there is no GID 99, which the program named. fix: name a GID that exists: weft dev lists them") != 1 ||
			strings.Count(out, "weft: ibv_query_gid of weft0 failed (No data available): "+missing) != 1 {
			t.Errorf("weft run %s -- ibv_rc_pingpong -g 99: %v\n%s", flags, err, out)
		}
	}
	if out, err := pingpong("", "-g", strconv.Itoa(gid)); err != nil || strings.Contains(out, "weft: ") {
		t.Errorf("with a GID: %v\n%s", err, out)
	}
	for _, c := range []struct {
		name, want string
		status     bool // of success
		args       []string
	}{
		{"too deep a queue", "max_recv_wr 100000 is above the limit of the device", false,
			[]string{"ibv_rc_pingpong", "-d", "weft0", "-r", "100000"}},
		{"a script that goes on", "", true, []string{"sh", "-c",
			"ibv_rc_pingpong -d weft0 -r 100000 2>/dev/null; exit 0"}},
	} {
		out, err := lab.Run(b.Server.Program(c.args...), time.Minute)
		if (err == nil) != c.status || !strings.Contains(out, c.want) || c.want == "" &&
			strings.Contains(out, "weft: ") {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
	}
}

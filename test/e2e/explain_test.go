// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestUnroutableGID: with a GID from which no packet reaches the peer, a program fails as it connects and learns which
// GID works; weft status and weft doctor state it as well. Within the node that GID works. A link-local address reaches
// other addresses of its link.
func TestUnroutableGID(t *testing.T) {
	b := openTestbed(t, 1500, false, 0)
	index := func(n *lab.Node, address string) string {
		t.Helper()
		gid, err := n.GID(address)
		if err != nil {
			t.Fatal(err)
		}
		return strconv.Itoa(gid)
	}
	pingpong := func(program string, client *lab.Node, server, to string) (out string, err error) {
		port := lab.Port()
		argv := []string{"--explain", "--", program, "-d", "weft0", "-n", "50", "-p", strconv.Itoa(port), "-g"}
		p, err := lab.StartPair(port, b.Server.Program(append(argv, server)...),
			client.Program(append(argv, to, b.Server.NetNS.V4)...))
		defer p.Kill()
		if err != nil {
			t.Fatalf("%v%s", err, p.Outputs())
		}
		c, s := p.Wait(time.Minute)
		return p.Server.Output() + p.Client.Output(), errors.Join(c, s)
	}
	if out, err := pingpong("ibv_rc_pingpong", b.Client, "0", index(b.Client, b.Client.NetNS.V6)); err != nil {
		t.Errorf("between a link-local address and another of the link: %v\n%s", err, out)
	}
	for _, n := range []*lab.Node{b.Server, b.Client} {
		sysctl := lab.Cmd{NetNS: n.NetNS.Name, Args: []string{"sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"}}
		if out, err := lab.Run(sysctl, time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := lab.Until("GID 0 is no address", time.Minute, func() (bool, error) {
			s, err := n.Status()
			return slices.ContainsFunc(s.Notices, func(d api.Degraded) bool {
				return d.What == "gid_no_address" && strings.HasPrefix(d.Fix, "name GID "+index(n, n.NetNS.V4)+", ")
			}), err
		}, n.Proc); err != nil {
			t.Fatal(err)
		}
		if out, _ := n.Weft("doctor"); !strings.Contains(out, "gid_no_address") {
			t.Errorf("weft doctor:\n%s", out)
		}
	}
	v4 := index(b.Server, b.Server.NetNS.V4)
	for program, call := range map[string]string{"ibv_rc_pingpong": "ibv_modify_qp to RTR",
		"ibv_uc_pingpong": "ibv_modify_qp to RTR", "ibv_ud_pingpong": "ibv_create_ah"} {
		out, err := pingpong(program, b.Client, "0", "0")
		if err == nil || !strings.Contains(out, "weft: "+call+" of weft0 failed (Invalid argument): no packet can go from "+
			"GID 0, fe80::") || strings.Count(out, ". fix: name GID "+v4+" on both hosts: ") != 2 ||
			!strings.Contains(out, "weft: GID 0 of weft0, fe80::") { // the peer of the one that failed
			t.Errorf("%s: %v\n%s", program, err, out)
		}
		if out, err := pingpong(program, b.Client, v4, index(b.Client, b.Client.NetNS.V4)); err != nil {
			t.Errorf("%s with the GID of the fix: %v\n%s", program, err, out)
		}
		if out, err := pingpong(program, b.Server, "0", "0"); err != nil {
			t.Errorf("%s within the node: %v\n%s", program, err, out)
		}
	}
}

// TestExplain: a program that fails shows which verbs call failed, what was wrong and the fix, and the fix works.
func TestExplain(t *testing.T) {
	t.Parallel()
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

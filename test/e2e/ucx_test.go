// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/test/lab"
)

// ucx is one run of ucx_perftest.
type ucx struct {
	tls   string // of UCP; empty: UCT, which args name a transport of
	args  string
	basic bool // part of the short list
}

func (u ucx) name() string {
	if u.tls == "" {
		return "uct " + u.args
	}
	return u.tls + " " + u.args
}

var ucxRungs = func() (list []ucx) {
	uct := func(basic bool, format string, a ...any) {
		list = append(list, ucx{"", fmt.Sprintf(format, a...), basic})
	}
	for _, test := range []string{"am_lat", "am_bw", "put_lat", "put_bw"} {
		for _, layout := range []string{"short", "bcopy", "zcopy"} {
			uct(test == "put_lat" && layout == "short" || test == "am_bw" && layout == "zcopy",
				"-x rc_verbs -t %s -D %s -n 500 -s 8", test, layout)
		}
	}
	uct(false, "-x rc_verbs -t put_bw -D zcopy -n 500 -s 65536")
	uct(false, "-x rc_verbs -t get -D bcopy -n 500 -s 8")
	uct(true, "-x rc_verbs -t get -D zcopy -n 500 -s 128") // zero-copy reads must be longer than 64 bytes
	for _, test := range []string{"add_lat", "fadd", "cswap"} {
		uct(test == "cswap", "-x rc_verbs -t %s -D short -n 500 -s 8", test)
	}
	for _, test := range []string{"am_lat", "am_bw"} {
		for _, layout := range []string{"short", "bcopy", "zcopy"} {
			uct(test == "am_bw" && layout == "bcopy", "-x ud_verbs -t %s -D %s -n 500 -s 8", test, layout)
		}
	}
	for _, tls := range []string{"rc_v", "ud_v"} {
		for _, test := range []string{"tag_lat", "tag_bw", "ucp_am_bw", "ucp_put_lat", "ucp_get", "stream_bw"} {
			short := tls == "rc_v" && (test == "ucp_get" || test == "stream_bw") || test == "tag_bw"
			list = append(list, ucx{tls, "-t " + test + " -n 300 -s 65536", short})
		}
		list = append(list, ucx{tls, "-t tag_lat -n 300 -s 65536 -E sleep", tls == "rc_v"},
			ucx{tls, "-t tag_lat -n 300 -s 8 -E sleep", false},
			ucx{tls, "-t ucp_fadd -n 300 -s 8", false}, ucx{tls, "-t tag_bw -n 100 -s 1048576", false})
	}
	return list
}()

// start starts u as server and as client, on a device of both nodes.
func (u ucx) start(b *testbed, device string) (lab.Pair, error) {
	port := lab.Port()
	cmd := func(n *lab.Node, more ...string) lab.Cmd {
		args := append([]string{"ucx_perftest", "-f", "-p", strconv.Itoa(port)}, strings.Fields(u.args)...)
		if u.tls == "" {
			args = append(args, "-d", device+":1")
		}
		c := n.Program(append(args, more...)...)
		if u.tls != "" {
			c.Env = []string{"UCX_TLS=" + u.tls, "UCX_NET_DEVICES=" + device + ":1"}
		}
		return c
	}
	return lab.StartPair(port, cmd(b.Server), cmd(b.Client, b.Server.NetNS.V4))
}

// The last line of ucx_perftest's: iterations, three times, and rates twice.
var ucxResult = regexp.MustCompile(`(?m)^\s*\d+(\s+[0-9.]+){7}\s*$`)

func (u ucx) run(t *testing.T, b *testbed, device string) {
	t.Helper()
	before := b.runs(t)
	p, err := u.start(b, device)
	defer p.Kill()
	if err != nil {
		t.Fatalf("%v%s", err, p.Outputs())
	}
	if client, server := p.Wait(90 * time.Second); client != nil || server != nil {
		t.Fatalf("client: %v, server: %v%s", client, server, p.Outputs())
	}
	out := p.Client.Output() + p.Server.Output()
	if !ucxResult.MatchString(out) || strings.Contains(out, "ERROR") {
		t.Fatalf("no result, or not only that:%s", p.Outputs())
	}
	if moved := b.runs(t) - before; moved < 100 {
		t.Errorf("only %d runs of packets passed the node", moved)
	}
}

// runs counts the runs of packets that the client's node has handled.
func (b *testbed) runs(t *testing.T) (n uint64) {
	t.Helper()
	list, err := b.Client.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Scope == "lane" && (c.Name == "local_bursts" || c.Name == "wire_bursts" || c.Name == "rcvd_bursts") {
			n += c.Value
		}
	}
	return n
}

// ucxAll runs the list, or only the most telling rows where a testbed is one of several.
func ucxAll(t *testing.T, b *testbed, device string, pick func(ucx) bool) {
	for _, u := range ucxRungs {
		if lab.Soak || pick(u) {
			t.Run(u.name(), func(t *testing.T) { u.run(t, b, device) })
		}
	}
}

func TestUCXOneNode(t *testing.T) {
	t.Parallel()
	b := openTestbed(t, 9000, true, lab.Nobody)
	t.Run("ucx_info -d", func(t *testing.T) {
		out, err := lab.Run(b.Server.Program("ucx_info", "-d"), 30*time.Second)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, device := range []string{"weft0", "weft_ib0"} {
			for _, transport := range []string{"rc_verbs", "ud_verbs"} {
				if !regexp.MustCompile(`Transport: ` + transport + `\n#\s+Device: ` + device +
					`:1\n`).MatchString(out) {
					t.Errorf("no %s of %s in:\n%s", transport, device, out)
				}
			}
		}
	})
	ucxAll(t, b, "weft0", func(u ucx) bool { return u.basic })
}

func TestUCXTwoNodes(t *testing.T) {
	t.Parallel()
	ucxAll(t, openTestbed(t, 9000, false, 0), "weft0", func(u ucx) bool {
		return u.basic &&
			strings.Contains(u.args, "65536")
	})
	if lab.Soak {
		t.Run("MTU 1500", func(t *testing.T) { ucxAll(t, openTestbed(t, 1500, false, 0), "weft0", nil) })
	}
}

// By LID, through switches and a trunk.
func TestUCXFabric(t *testing.T) {
	t.Parallel()
	m := &managed{testbed: openTestbed(t, 9000, false, 0, fabricFlags...)}
	m.awaitActive(t)
	ucxAll(t, m.testbed, "weft_ib0", func(u ucx) bool { return u.basic && strings.Contains(u.args, "tag_bw") })
}

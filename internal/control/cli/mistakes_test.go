// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
)

// mistake is a command line that a first user may type.
type mistake struct {
	line string
	code int
	want string // in the message, before its fix
	fix  string // the command that the message names; empty: it names none
	// then is the code with which that command ends, when the user types it. A negative number: it is not typed, as it
	// is no command, needs another host, or would not end.
	then int
	// before is typed first, and has to succeed.
	before string
	// node is the mode of the fake node.
	node string
}

const notTyped = -1

var mistakes = []mistake{
	// Words of other tools, and slips.
	{line: "connect", code: 2, want: `unknown command "connect"`, fix: "weft join HOST", then: notTyped},
	{line: "stop", code: 2, want: `unknown command "stop"`, fix: "weft down", then: 0},
	{line: "top", code: 2, want: `unknown command "top"`, fix: "weft stat", then: 0},
	{line: "rum", code: 2, want: `unknown command "rum"`, fix: "weft run", then: 2},
	{line: "stauts", code: 2, want: `unknown command "stauts"`, fix: "weft status", then: 0},
	{line: "peer", code: 2, want: `unknown command "peer"`, fix: "weft trunk", then: 0},
	{line: "start", code: 2, want: `unknown command "start"`, fix: "weft up", then: notTyped},
	{line: "ps", code: 2, want: `unknown command "ps"`, fix: "weft res", then: 0},
	{line: "devices", code: 2, want: `unknown command "devices"`, fix: "weft dev", then: 0},
	{line: "Status", code: 2, want: `unknown command "Status"`, fix: "weft status", then: 0},
	{line: "partitions", code: 2, want: `unknown command "partitions"`, fix: "weft pkey", then: 0},
	{line: "xyzzy", code: 2, want: `unknown command "xyzzy"`, fix: "weft --help", then: 0},
	{line: "vesw add lab", code: 2, want: `unknown command "add"`, fix: "weft vesw create", then: 2},
	{line: "fabric node", code: 2, want: `unknown command "node"`, fix: "weft fabric nodes", then: 0},
	{line: "pkey show", code: 2, want: `unknown command "show"`, fix: "weft pkey list", then: 0},
	{line: "dev dele vf", code: 2, want: `takes no argument`, fix: "weft dev", then: 0},
	{line: "help nosuch", code: 2, want: `unknown command "nosuch"`, fix: "weft --help", then: 0},
	{line: "help stauts", code: 2, want: `unknown command "stauts"`, fix: "weft status", then: 0},
	{line: "pkey lst", code: 2, want: `unknown command "lst"`, fix: "weft pkey list", then: 0},
	{line: "mcast grups", code: 2, want: `unknown command "grups"`, fix: "weft mcast groups", then: 0},
	{line: "logs", code: 2, want: `unknown command "logs"`,
		fix: "read node.log in the directory that weft status shows", then: notTyped},
	// Flags.
	{line: "status --json", code: 2, want: "unknown flag: --json", fix: "weft status -o json", then: 0},
	{line: "status --josn", code: 2, want: "unknown flag: --josn", fix: "weft status --help", then: 0},
	{line: "status -o yaml", code: 2, want: `-o must be table or json, not "yaml"`, fix: "weft status -o json",
		then: 0},
	{line: "stat --scop link", code: 2, want: "unknown flag: --scop", fix: "weft stat --scope", then: 2},
	{line: "stat --scope cable", code: 2, want: `not "cable"`, fix: "weft stat --scope link", then: 0},
	{line: "wait --for=ever", code: 2, want: `"ever" is none of`, fix: "weft wait --for=active", then: 0},
	{line: "up --lane 3", code: 2, want: "unknown flag: --lane", fix: "weft up --lanes", then: 2},
	{line: "up --lanes 99", code: 2, want: "lanes must be", fix: "weft up --help", then: 0},
	{line: "up --lanes many", code: 2, want: `--lanes must be a number, not "many"`, fix: "weft up --help", then: 0},
	{line: "wait --timeout long", code: 2, want: `--timeout must be a duration such as 10s, not "long"`,
		fix: "weft wait --help", then: 0},
	{line: "fault add --drop much", code: 2, want: `--drop: "much" is not a percentage`, fix: "weft fault add --help",
		then: 0},
	{line: "up --trunk-port 4791", code: 2, want: "trunk-port and roce-port must differ, and are both 4791",
		fix: "weft up --help", then: 0},
	{line: "up --roce-allow 10.0.0.0/33", code: 2,
		want: `roce-allow must be prefixes such as 10.0.0.0/24 or fd00::/8, not "10.0.0.0/33": prefix length out of range`,
		fix:  "weft up --help", then: 0},
	{line: "up --roce-allow 10.0.0.1/8", code: 2,
		want: `without host bits: 10.0.0.0/8 or 10.0.0.1/32, not "10.0.0.1/8"`, fix: "weft up --help", then: 0},
	{line: "up --config /nonexistent", code: 2, want: "no such file",
		fix: "make the file, or weft up without --config", then: notTyped},
	{line: "up --peer 127.0.0.1", code: 2, want: "peer 127.0.0.1 is an address of this host",
		fix:  "weft up --peer ADDRESS, with that of another host",
		then: notTyped},
	{line: "up 10.0.0.2", code: 2, want: `takes no argument such as "10.0.0.2"`, fix: "weft up --peer 10.0.0.2",
		then: notTyped},
	{line: "up --peer host2", code: 2, want: `peer must be an IP address, or address:port, not "host2"`,
		fix: "weft up --help", then: 0},
	{line: "status --dir " + strings.Repeat("a", 120), code: 2, want: "is too long", fix: "weft --dir /tmp/weft",
		then: 0},
	{line: "up --dir /" + strings.Repeat("a", 100), code: 2, want: "is too long", fix: "weft up --dir /tmp/weft",
		then: notTyped},
	// No node, or another's.
	{line: "status --dir none", code: 3, want: "no node runs in", fix: "weft up --dir DIR/none", then: notTyped},
	{line: "down --dir none", code: 3, want: "there is nothing to end: no node runs in"},
	{line: "up", code: 4, want: "already runs a node in",
		fix: "weft down --dir DIR/n, or give this one another --dir", then: notTyped},
	{line: "down --timeout 0", code: 3, want: "is still ending", fix: "wait for it: weft down --timeout 1m0s",
		then: notTyped, node: "lingers"},
	// Arguments.
	{line: "run", code: 2, want: "weft run needs a command", fix: "weft run -- ibv_devinfo", then: notTyped},
	{line: "run -- no-such-program", code: 127, want: "there is no such command", fix: "install it, or give its path",
		then: notTyped},
	{line: "res qps", code: 2, want: `not "qps"`, fix: "weft res qp", then: 0},
	{line: "dev show weft9", code: 1, want: "there is no device weft9", fix: "weft dev", then: 0},
	{line: "dev add VF", code: 2, want: "all lower case", fix: "weft dev add --help", then: 0},
	{line: "dev delete", code: 2, want: "an argument is missing: weft dev delete NAME…",
		fix: "weft dev delete --help", then: 0},
	{line: "dev set weft0 --weight 0", code: 2, want: "the weight must be 1 to 1000, not 0",
		fix: "weft dev set --help", then: 0},
	{line: "pkey add 8001 weft_ib0", code: 2, want: "the P_Key 8001 may be decimal or hexadecimal",
		fix: "weft pkey add 0x8001 weft_ib0", then: 0},
	{line: "pkey add red", code: 2, want: `unlike "red"`, fix: "weft pkey add --help", then: 0},
	{line: "pkey add 0x8000", code: 2, want: "and not 0x8000", fix: "weft pkey add --help", then: 0},
	{line: "pkey delete 8001", code: 2, want: "may be decimal or hexadecimal", fix: "weft pkey delete 0x8001",
		then: 0, before: "pkey add 0x8001"},
	{line: "vesw create x --pkey 8005", code: 2, want: "may be decimal or hexadecimal",
		fix: "weft vesw create x --pkey 0x8005", then: 0},
	{line: "ipoib add weft_ib0 --pkey 14", code: 2, want: "may be decimal or hexadecimal",
		fix: "weft ipoib add weft_ib0 --pkey 0x14", then: 0},
	{line: "ipoib add weft_ib0 --addr 10.1.0.1", code: 2, want: "has a prefix length", fix: "weft ipoib add --help",
		then: 0},
	{line: "ipoib add weft0", code: 1, want: "there is no InfiniBand device weft0", fix: "weft dev", then: 0},
	{line: "ipoib path ten", code: 2, want: `"ten" is not an IP address`, fix: "weft ipoib path --help", then: 0},
	{line: "fault add", code: 2, want: "it does nothing", fix: "weft fault add --help", then: 0},
	{line: "fault delete one", code: 2, want: `"one" is not a fault's number`, fix: "weft fault list", then: 0},
	{line: "fault delete 7", code: 1, want: "there is no fault 7", fix: "weft fault list", then: 0},
	{line: "vesw show lan", code: 1, want: `there is no virtual Ethernet switch "lan"`, fix: "weft vesw list", then: 0},
	{line: "vesw port add lab weft_ib0:x", code: 2, want: "is not the number of a vport",
		fix: "weft vesw port add --help", then: 0},
	{line: "vm add db --memory lots", code: 2, want: `not "lots"`, fix: "weft vm add db --memory 2G", then: 0},
	{line: "vm show nobody", code: 1, want: "there is no virtual machine nobody", fix: "weft vm", then: 0},
	{line: "mcast show ff12:401b:ffff::77", code: 1, want: "this node is not in ff12:401b:ffff::77",
		fix: "weft mcast groups ff12:401b:ffff::77", then: 1},
	{line: "mcast groups all", code: 2, want: `"all" is not an MGID`, fix: "weft mcast groups", then: 0},
	{line: "capture --dev weft0/2", code: 2, want: "only port 1", fix: "weft dev", then: 0},
	{line: "sm set", code: 2, want: "nothing is to be changed", fix: "weft sm set --help", then: 0},
	{line: "fabric routes weft_ib0", code: 2, want: "1 is the wrong number of arguments", fix: "weft fabric routes --help", then: 0},
}

// asUser runs weft with a command line, and returns its code and what it printed for errors. What starts a node or
// takes a path relative to dir runs as a process, this test's binary; the others run here: to start that binary takes
// longer than most commands.
func asUser(t *testing.T, dir, line string, env ...string) (int, string) {
	t.Helper()
	if len(env) == 0 && !strings.HasPrefix(line, "up") && !strings.Contains(line, "--dir ") {
		code, _, text := here(t, dir, line, 0)
		return code, text
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, strings.Fields(line)...)
	cmd.Args[0], cmd.Dir = "weft", dir
	cmd.Env = append(withoutEnv(os.Environ(), "WEFT_DIR"), "BE_WEFT=1", "WEFT_DIR="+filepath.Join(dir, "n"),
		"TEST_DEFAULT_DIR=/tmp/weft", "GORACE=atexit_sleep_ms=0")
	cmd.Env = append(cmd.Env, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Run()
	return cmd.ProcessState.ExitCode(), stderr.String()
}

// here runs weft in this process, on a terminal of some columns (0: none), and returns its code and what it printed.
func here(t *testing.T, dir, line string, columns int) (code int, out, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	environment := map[string]string{"WEFT_DIR": filepath.Join(dir, "n")}
	code = Run(ctx, strings.Fields(line), Env{Out: &stdout, Err: &stderr, OutTerminal: Terminal{Width: columns},
		Getenv:     func(name string) string { return environment[name] },
		DefaultDir: "/tmp/weft", Node: fakeNode, Join: fakeJoin, Leave: fakeLeave})
	return code, stdout.String(), stderr.String()
}

// TestMistakes types each mistake at a node, compares the exit code and the message, and types the command that the
// message names.
func TestMistakes(t *testing.T) {
	if len(mistakes) < 40 {
		t.Errorf("%d mistakes, want 40", len(mistakes))
	}
	form := regexp.MustCompile(`^weft: (.*?)(?:\. fix: (.*))?\n$`)
	for _, m := range mistakes {
		t.Run(strings.ReplaceAll(m.line, "/", "_"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if code, text := asUser(t, dir, "up --detach", "FAKE_NODE="+m.node); code != 0 {
				t.Fatalf("weft up: %d %s", code, text)
			}
			defer stop(context.Background(), filepath.Join(dir, "n"), 10*time.Second)
			if m.before != "" {
				if code, text := asUser(t, dir, m.before); code != 0 {
					t.Fatalf("weft %s: %d %s", m.before, code, text)
				}
			}
			code, text := asUser(t, dir, m.line)
			parts := form.FindStringSubmatch(text)
			if parts == nil {
				t.Fatalf("code %d, and not one line with a fix: %q", code, text)
			}
			fix := strings.ReplaceAll(parts[2], dir, "DIR")
			if code != m.code || !strings.Contains(parts[1], m.want) || fix != m.fix {
				t.Errorf("want code %d, %q, fix %q; got %d, %q, fix %q", m.code, m.want, m.fix, code, parts[1], fix)
			}
			if m.fix == "" || m.then == notTyped {
				return
			}
			typed, ok := strings.CutPrefix(m.fix, "weft ")
			if !ok && m.fix != "weft" {
				t.Fatalf("%q is not a command", m.fix)
			}
			if code, text := asUser(t, dir, typed); code != m.then {
				t.Errorf("the fix, weft %s, ends with %d, want %d: %s", typed, code, m.then, text)
			}
		})
	}
}

// TestDetachReports checks that weft up --detach has the reason of a node that cannot write its log.
func TestDetachReports(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if err := rundir.Ensure(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// A fifo without a reader is a log that cannot be written: opening it fails at once.
	if err := os.Symlink("/dev/full", filepath.Join(dir, rundir.LogFile)); err != nil {
		t.Fatal(err)
	}
	code, text := asUser(t, filepath.Dir(dir), "up --detach")
	if code != 1 || !strings.Contains(text, "cannot start a node in the background: ") {
		t.Errorf("%d %q", code, text)
	}
	os.Remove(filepath.Join(dir, rundir.LogFile))
	t.Setenv("FAKE_NODE", "fail")
	code, text = asUser(t, filepath.Dir(dir), "up --detach")
	if want := "weft: cannot run the node: no network interface has an address\n"; code != 1 || text != want {
		t.Errorf("%d %q, want %q", code, text, want)
	}
}

// TestCutTable: a table that a terminal of 80 columns cuts names what it cut, and a trunk has its limit there.
func TestCutTable(t *testing.T) {
	var out bytes.Buffer
	row := api.Trunk{Peer: "[fd00:1111:2222:3333:4444:5555:6666:7777]:4792", Node: "0200:5e00:53ff:0003", Limit: 8952, Lost: 1}
	writeTable(&screen{Writer: &out, width: 80}, "", trunkColumns, []api.Trunk{row})
	for _, want := range []string{"LIMIT", "8952", "… --wide shows DOWNS, RECEIVED, SENT, PORT, REORDERED, NAME, PEER whole"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// TestIgnored: weft run names the settings of its environment that a running node does not have.
func TestIgnored(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"WEFT_WIRE_LOCAL": "1", "WEFT_LANES": "2"},
			"weft: ignored, as a node already runs in /n: WEFT_LANES, WEFT_WIRE_LOCAL. fix: weft down; then the same again\n"},
		{map[string]string{"WEFT_WIRE_LOCAL": "false", "WEFT_ROCE_PORT": "4793", "WEFT_DEVICE": "x", "WEFT_DIR": "/m"}, ""},
	} {
		var out bytes.Buffer
		a := &app{env: Env{Err: &out, Getenv: func(name string) string { return c.env[name] }}}
		a.reportIgnored(api.Status{Dir: "/n", RoCEPort: 4793})
		if out.String() != c.want {
			t.Errorf("%v: %q, want %q", c.env, &out, c.want)
		}
	}
}

// TestFits80 prints each table as a terminal of 80 columns has it.
func TestFits80(t *testing.T) {
	dir := t.TempDir()
	if code, text := asUser(t, dir, "up --detach"); code != 0 {
		t.Fatal(text)
	}
	defer stop(context.Background(), filepath.Join(dir, "n"), 10*time.Second)
	for _, line := range []string{"status", "dev", "dev list", "res", "res pd", "res mr", "res mw", "res cq",
		"res qp", "res srq", "res ah", "res cm_id",
		"stat", "mcast list", "mcast groups", "mcast show 239.1.2.3", "fault list", "fabric nodes", "fabric links", "fabric topo", "fabric routes",
		"sm", "trunk", "pkey list", "store list", "store status", "ipoib", "ipoib neigh", "ipoib shadow", "ipoib mcast", "ipoib path list",
		"ipoib stats", "ipoib params", "ipoib show ib0_1_7fff", "vm", "vesw list", "vesw show lab", "vesw interfaces", "vesw stats"} {
		code, out, text := here(t, dir, line, 80)
		if code != 0 || out == "" {
			t.Errorf("weft %s: %d %s", line, code, text)
		}
		for _, l := range strings.Split(out, "\n") {
			if n := len([]rune(l)); n > 80 && !strings.Contains(l, dir) {
				t.Errorf("weft %s: %d columns: %s", line, n, l)
			}
		}
		if testing.Verbose() {
			t.Logf("weft %s\n%s", line, out)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/metric"
	"weft/test/lab"
)

// TestDocs runs the commands of README.md and docs/tutorial.md as a reader would type them, and
// compares what they print with what the page shows.
//
// A fenced block of the language "console" holds commands, each after a prompt: "$ " for this
// machine, "host1$ " for the network namespace host1, "guest1$ " for a virtual machine; "> " continues a
// command. The lines after a command are what it
// prints, in this order: each must occur in a line of the output, white space aside, and "..."
// stands for anything. After --token, "..." is the token that was printed last. A command that ends in "&" goes
// on while the next ones run. One that begins with
// "sleep" is repeated until it prints what the page shows, for a minute at most.
//
// Each page runs in mount, network and process namespaces of its own, with an empty /run, so that it
// meets no other node and leaves nothing behind.
func TestDocs(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	for _, page := range []string{"README.md", "docs/tutorial.md"} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(lab.Root(), page))
			if err != nil {
				t.Fatal(err)
			}
			commands, err := commandsOf(string(text))
			if err != nil {
				t.Fatalf("%s: %v", page, err)
			}
			if len(commands) < 5 {
				t.Fatalf("%s has %d commands: its console blocks are gone", page, len(commands))
			}
			r := newReader(t)
			if page == "README.md" {
				r.hosts(3) // which it supposes
			}
			for _, c := range commands {
				begun := time.Now()
				out, err := r.run(c)
				for err != nil && strings.HasPrefix(c.text, "sleep ") && time.Since(begun) < docsLimit {
					out, err = r.run(c)
				}
				t.Logf("%s:%d: %.1f s: %s", page, c.line, time.Since(begun).Seconds(), c.text)
				if err != nil {
					t.Fatalf("%s:%d: %s: %v\nit printed:\n%s", page, c.line, c.text, err, out)
				}
			}
		})
	}
}

// TestCounters compares the descriptions of counters, from which docs/counters.md is generated, with what a node
// lists that has each kind of device and link: each counter has a description, and each description a counter.
func TestCounters(t *testing.T) {
	lab.NeedNetNS(t)
	t.Parallel()
	r := newReader(t)
	var out string
	for _, text := range []string{
		"ip netns add peer && ip link add eth0 type veth peer name eth0 netns peer",
		"ip addr add 10.0.0.1/24 dev eth0 && ip link set eth0 up",
		"ip -n peer addr add 10.0.0.2/24 dev eth0 && ip -n peer link set eth0 up && ip -n peer link set lo up",
		"weft up --detach --peer 10.0.0.2 --trunk-security none",
		"ip netns exec peer weft up --detach --dir /run/peer --peer 10.0.0.1 --sm off --trunk-security none",
		"weft wait --for=active && weft vesw create lab && weft vesw port add lab weft_ib0",
		"weft vm add web --vesw lab --rdma",
		"weft dev add lab0 --segment vesw:lab --addr 10.3.0.1/24 && weft ipoib add weft_ib0",
		"weft run -- ibv_rc_pingpong -d weft0 -g 1 &",
		"weft run -- rping -s &",
		"sleep 1; weft stat --all -o json >counters.json; weft res qp && grep -q conn_opened counters.json && " +
			"grep -q rx_bad_veswid counters.json",
		// A member of a fabric, which a node with --peer is not.
		"ip netns add host && ip -n host link add eth0 type veth peer name eth1 && ip -n host addr add 10.0.1.1/24 dev eth0",
		"ip -n host link set eth0 up && ip -n host link set eth1 up && ip -n host link set lo up",
		"ip netns exec host weft up --detach --dir /run/host && weft token --dir /run/host",
		"weft stat --all --dir /run/host -o json >host.json && cat counters.json host.json",
	} {
		var err error
		if out, err = r.run(command{text: text}); err != nil {
			t.Fatalf("%s: %v\n%s", text, err, out)
		}
	}
	var list, member []api.Counter
	both := json.NewDecoder(strings.NewReader(out[strings.Index(out, "["):]))
	if err := errors.Join(both.Decode(&list), both.Decode(&member)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list = append(list, member...)
	type key struct{ scope, part, name string }
	listed := map[key]bool{}
	for _, c := range list {
		if _, ok := metric.Lookup(c.Scope, c.Instance, c.Name); !ok {
			t.Errorf("internal/control/metric does not describe %s of the scope %s", c.Name, c.Scope)
		}
		listed[key{c.Scope, c.Instance, c.Name}], listed[key{c.Scope, "", c.Name}] = true, true
	}
	for _, g := range metric.Groups() {
		for _, m := range g.Metrics {
			if !listed[key{g.Scope, g.Part, m.Name}] {
				t.Errorf("internal/control/metric describes %s %q %s, which weft stat --all does not list",
					g.Scope, g.Part, m.Name)
			}
		}
	}
}

// docsLimit is how long a command of a page may take.
const docsLimit = 60 * time.Second

// untilListening follows a background command of which the page shows no output: it waits until a
// server accepts connections, as a person at
// the keyboard would without noticing, or has ended, or has not listened for 10 s. Listeners of the node do not count:
// its store may come up meanwhile.
const untilListening = `
for wait in $(seq 100); do
  [ $(` + listeners + `) = $listening ] && [ -n "$(jobs -r)" ] || break
  sleep 0.1
done; true`

const listeners = `ss -Hltnp | grep -v '"weft"' | wc -l`

// command is a command of a page, or of a test.
type command struct {
	line     int
	host     string // network namespace, or "" for the machine itself
	text     string
	expected []string
}

// tokenLine is the line of weft token for the next host.
var tokenLine = regexp.MustCompile(`^weft join \S+ --token (\S+)$`)

// commandsOf returns the commands of a page, but for those in guests, which TestGuestsRDMA runs.
func commandsOf(page string) (list []command, err error) {
	commands, err := lab.PageCommands(page)
	for _, c := range commands {
		if !c.OfGuest() {
			list = append(list, command{c.Line, c.Host, c.Text, c.Expected})
		}
	}
	return list, err
}

// compare returns an error if a line that the page shows is not in out, or not in that order.
func (c command) compare(out string) error { return lab.PageCommand{Expected: c.expected}.Compare(out) }

// reader is a person at a machine of their own: one shell per prompt.
type reader struct {
	t      *testing.T
	inside string // process id of the shell of the machine itself, as this process sees it
	shells map[string]*shell
	token  string // that was printed last
}

type shell struct {
	in    io.WriteCloser
	lines chan string
	said  int // commands so far, for the marks that end their output
}

func newReader(t *testing.T) *reader {
	r := &reader{t: t, shells: map[string]*shell{}}
	machine := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc",
		"--propagation", "private", "bash")
	r.shells[""] = r.start(machine)
	setUp := command{text: "mount -t tmpfs tmpfs /run && ip link set lo up && cd $(mktemp -d -p /run)"}
	if out, err := r.run(setUp); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pid := machine.Process.Pid
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil || len(strings.Fields(string(children))) != 1 {
		t.Fatalf("the shell of the machine: %q, %v", children, err)
	}
	r.inside = strings.TrimSpace(string(children))
	t.Cleanup(func() {
		if t.Failed() {
			r.logNodes()
		}
	})
	return r
}

// hosts makes network namespaces host1, host2, … at one bridge, with the addresses 10.0.0.1, 10.0.0.2, …, and a shell
// on each with a host name and a directory of its own. The commands in first are for each before it has an interface.
func (r *reader) hosts(n int, first ...string) {
	r.t.Helper()
	script := []string{"ip link add lan mtu 9000 type bridge && ip link set lan up"}
	for i := range n {
		script = append(script, fmt.Sprint("ip netns add host", i+1))
		for _, text := range first {
			script = append(script, fmt.Sprint("ip -n host", i+1, " ", text))
		}
		script = append(script, strings.ReplaceAll("ip link add portN mtu 9000 type veth peer name eth0 mtu 9000 "+
			"netns hostN && ip link set portN master lan up && ip -n hostN addr add 10.0.0.N/24 dev eth0 && ip -n hostN link set eth0 up && ip -n hostN link set lo up",
			"N", fmt.Sprint(i+1)))
	}
	list := []command{{text: strings.Join(script, "\n")}}
	for i := range n {
		h := fmt.Sprint("host", i+1)
		list = append(list, command{host: h, text: "hostname " + h + "; export WEFT_DIR=/run/weft-" + h})
	}
	for _, c := range list {
		if out, err := r.run(c); err != nil {
			r.t.Fatalf("%s: %v: %s", c.text, err, out)
		}
	}
}

// logNodes logs what each node of the machine reports and has printed. It uses a shell of its own: the others may wait
// for a command.
func (r *reader) logNodes() {
	r.shells["nodes"] = r.start(exec.Command("nsenter", "--target", r.inside, "--mount", "--net", "--pid", "bash"))
	out, err := r.run(command{host: "nodes", text: `for node in /run/*/node.log; do
  cd $(dirname $node)
  for question in status sm trunk "fabric topo"; do echo "$PWD: weft $question"; timeout 5 weft $question --dir .; done
  echo "$node:"
  tail -n 200 $node
done; true`})
	r.t.Logf("the nodes (%v):\n%s", err, out)
}

// start runs a shell and ends it, with all that runs in its namespaces, at the end of the test.
func (r *reader) start(cmd *exec.Cmd) *shell {
	r.t.Helper()
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(lab.Bin("weft"))+":"+os.Getenv("PATH"), "HOME=/run",
		"LC_ALL=C.UTF-8")
	for _, name := range []string{"WEFT_DIR", "XDG_RUNTIME_DIR"} {
		cmd.Env = append(cmd.Env, name+"=")
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, write, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	write.Close()
	s := &shell{in: in, lines: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(s.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			select {
			case s.lines <- scan.Text():
			case <-done:
				return
			}
		}
	}()
	r.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		close(done)
		out.Close()
	})
	return s
}

// run types the command at its prompt and returns what it prints until it has ended, and an error if it
// fails or prints something else than the page shows.
func (r *reader) run(c command) (string, error) {
	s := r.shells[c.host]
	if s == nil {
		s = r.start(exec.Command("nsenter", "--target", r.inside, "--mount", "--net", "--pid", "ip", "netns", "exec",
			c.host, "unshare", "--uts", "bash"))
		r.shells[c.host] = s
	}
	script := "{ " + strings.ReplaceAll(c.text, "--token ...", "--token "+r.token) + "\n} </dev/null"
	background := strings.HasSuffix(c.text, "&")
	if background && len(c.expected) == 0 {
		script = "listening=$(" + listeners + ")\n" + script + untilListening
	}
	s.said++
	mark := fmt.Sprintf("command %d ended with ", s.said)
	if _, err := fmt.Fprintf(s.in, "%s\nstatus=$?; echo; echo %q$status\n", script, mark); err != nil {
		return "", err
	}
	var out strings.Builder
	limit := time.After(docsLimit)
	for ended := false; ; {
		select {
		case line, ok := <-s.lines:
			if !ok {
				return out.String(), fmt.Errorf("the shell has ended")
			}
			if code, found := strings.CutPrefix(line, mark); !found {
				fmt.Fprintln(&out, line)
				if m := tokenLine.FindStringSubmatch(line); m != nil {
					r.token = m[1]
				}
			} else if ended = true; code != "0" {
				return out.String(), fmt.Errorf("exit code %s", code)
			}
			if !ended {
				continue
			}
			err := c.compare(out.String())
			if err == nil || !background { // what runs in the background may print a little later
				return out.String(), err
			}
		case <-limit:
			return out.String(), fmt.Errorf("not ended after %v", docsLimit)
		}
	}
}

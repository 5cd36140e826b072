// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/interop/guest"
	"weft/test/lab"
)

// fleet is two nodes with a virtual Ethernet switch, a TAP device of it on each, and a guest
// on each.
type fleet struct {
	t      *testing.T
	spaces [2]*lab.NetNS
	nodes  [2]*lab.Node
	flags  [2][]string
	guests [2]*guest.Guest
	vms    [2]api.VM
}

const (
	veswLimit = 30 * time.Second
	veswTap   = "opa1v0"
)

func hostAddr(i int) string   { return fmt.Sprintf("10.78.0.%d", i+1) }
func guestAddr(i int) string  { return fmt.Sprintf("10.78.0.%d", i+11) }
func guestAddr6(i int) string { return fmt.Sprintf("fd78::%d", i+11) }

// newNodes starts the nodes, which have no switch yet.
func newNodes(t *testing.T) *fleet {
	t.Helper()
	lab.NeedNetNS(t)
	f := &fleet{t: t}
	var err error
	f.spaces[0], f.spaces[1], err = lab.Joined(9000)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	for i := range f.nodes {
		f.flags[i] = []string{"--peer", f.spaces[1-i].V4, "--roce-interfaces", "*"}
		if i == 1 {
			f.flags[i] = append(f.flags[i], "--sm", "off", "--store", "embedded")
		}
		if f.nodes[i], err = lab.StartNode(f.spaces[i], 0, f.flags[i]...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range f.nodes {
		f.weft(i, "wait", "--for=active", "--timeout", "20s")
	}
	return f
}

// newFleet starts the nodes and boots the guests: the first is a client of its node with split rings, the
// second a server with packed ones, two queue pairs and two processors.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	image, err := guest.Build(t.Context(), guest.Debian12)
	if err != nil {
		t.Fatal(err)
	}
	f := newNodes(t)
	f.weft(0, "vesw", "create", "lab")
	for i := range f.nodes {
		f.weft(0, "vesw", "port", "add", "lab", f.port(i, "weft_ib0"))
	}
	qemu := filepath.Join(filepath.Dir(f.nodes[1].Dir), "qemu.sock")
	f.query(0, &f.vms[0], "vm", "add", "g0", "--vesw", "lab")
	f.query(1, &f.vms[1], "vm", "add", "g1", "--connect", qemu, "--packed", "--queues", "2")
	f.weft(0, "vesw", "port", "add", "lab", f.vms[1].PortGUID)
	f.boot([2]guest.Config{{Image: image}, {Image: image, CPUs: 2}})
	return f
}

// withCard completes the configuration of a guest by its card and its addresses.
func (f *fleet) withCard(i int, c guest.Config, nodes []lab.Peer) guest.Config {
	c.Card, c.Reboot, c.NetNS, c.Peers = guest.Card(&f.vms[i], "512M"), true, f.spaces[i].Name, nodes
	c.IP, c.IP6 = guestAddr(i)+"/24", guestAddr6(i)+"/64"
	return c
}

// boot gives the nodes their TAP devices, and boots the guests with their cards and addresses.
func (f *fleet) boot(configs [2]guest.Config) {
	f.t.Helper()
	nodes := f.peers()
	for i := range f.nodes {
		f.tap(i)
	}
	var wg sync.WaitGroup
	for i, c := range configs {
		wg.Go(func() {
			g, err := guest.Start(context.Background(), f.withCard(i, c, nodes))
			if err != nil {
				f.t.Error(err)
				return
			}
			f.guests[i] = g
		})
	}
	wg.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
}

func (f *fleet) close() {
	for _, g := range f.guests {
		if g != nil {
			g.Close()
		}
	}
	for i, n := range f.nodes {
		if n == nil {
			continue
		}
		if f.t.Failed() {
			for _, c := range [][]string{{"vesw", "list"}, {"vesw", "interfaces"}, {"vesw", "stats"}, {"vm"},
				{"status"}, {"trunk"}, {"stat", "--scope", "vm"}} {
				out, err := n.Weft(c...)
				f.t.Logf("node %d, weft %v (%v):\n%s", i, c, err, out)
			}
		}
		if err := n.Close(); err != nil {
			f.t.Errorf("node %d: %v", i, err)
		}
		if f.t.Failed() {
			f.t.Logf("node %d printed:\n%s", i, lab.Tail(n.Proc.Output(), 60))
		}
	}
	for _, s := range f.spaces {
		if err := s.Close(); err != nil {
			f.t.Error(err)
		}
	}
}

// peers are the nodes and guests of the fleet: a wait ends with the first that ends.
func (f *fleet) peers() (list []lab.Peer) {
	for _, n := range f.nodes {
		if n != nil {
			list = append(list, n.Proc)
		}
	}
	for _, g := range f.guests {
		if g != nil {
			list = append(list, g)
		}
	}
	return list
}

// wait waits for a condition, as long as all nodes and guests live, and these programs.
func (f *fleet) wait(what string, ok func() bool, programs ...*lab.Proc) {
	f.t.Helper()
	peers := f.peers()
	for _, p := range programs {
		peers = append(peers, p)
	}
	wait(f.t, what, ok, peers...)
}

func (f *fleet) weft(i int, args ...string) string {
	f.t.Helper()
	out, err := f.nodes[i].Weft(args...)
	if err != nil {
		f.t.Fatalf("node %d, weft %v: %v", i, args, err)
	}
	return out
}

func (f *fleet) query(i int, v any, args ...string) {
	f.t.Helper()
	if err := f.nodes[i].Query(v, args...); err != nil {
		f.t.Fatalf("node %d, weft %v: %v", i, args, err)
	}
}

// port returns the GUID of a device's port.
func (f *fleet) port(i int, device string) string {
	f.t.Helper()
	var list []api.Function
	f.query(i, &list, "dev", "list")
	for _, d := range list {
		if d.Name == device {
			n, err := strconv.ParseUint(strings.ReplaceAll(d.NodeGUID, ":", ""), 16, 64)
			if err != nil {
				f.t.Fatal(err)
			}
			return fmt.Sprintf("0x%016x", n+1)
		}
	}
	f.t.Fatalf("node %d has no device %s: %+v", i, device, list)
	return ""
}

// tap waits for the node's TAP device and gives it an address.
func (f *fleet) tap(i int) {
	f.t.Helper()
	f.wait(fmt.Sprintf("node %d has its interface", i), func() bool {
		_, err := f.in(i, "ip", "link", "show", veswTap)
		return err == nil
	})
	f.mustIn(i, "ip", "addr", "add", hostAddr(i)+"/24", "dev", veswTap)
}

// in runs a program of the host in the namespace of a node.
func (f *fleet) in(i int, args ...string) (string, error) {
	return lab.Run(lab.Cmd{NetNS: f.spaces[i].Name, Args: args, Peers: f.peers()}, time.Minute)
}

func (f *fleet) mustIn(i int, args ...string) string {
	f.t.Helper()
	out, err := f.in(i, args...)
	if err != nil {
		f.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// run runs a script in a guest.
func (f *fleet) run(i int, script string) string {
	f.t.Helper()
	out, err := f.runFor(i, script, 2*time.Minute)
	if err != nil {
		f.t.Fatalf("guest %d: %s: %v\n%s", i, script, err, out)
	}
	return out
}

// runFor runs a script in a guest, at most for limit, as long as the nodes, the other guest and these programs live.
func (f *fleet) runFor(i int, script string, limit time.Duration, programs ...*lab.Proc) (string, error) {
	peers := f.peers()
	for _, p := range programs {
		peers = append(peers, p)
	}
	return f.guests[i].Run(script, limit, peers...)
}

// reaches waits until a guest reaches an address.
func (f *fleet) reaches(i int, addr string) {
	f.t.Helper()
	f.once(i, "ping -c 1 -W 1 "+addr+" >/dev/null")
}

// once repeats a command in a guest until it succeeds.
func (f *fleet) once(i int, command string) {
	f.t.Helper()
	f.run(i, "rm -f /tmp/done\n"+until("{ [ -e /tmp/done ] || { "+command+" && touch /tmp/done; }; }", veswLimit))
}

// vm returns what a node tells of its machine.
func (f *fleet) vm(i int) (v api.VM) {
	f.t.Helper()
	f.query(i, &v, "vm", "show", f.vms[i].Name)
	return v
}

// row runs a subtest, to which failures of the fleet's methods belong meanwhile.
func (f *fleet) row(name string, test func(t *testing.T)) {
	t := f.t
	defer func() { f.t = t }()
	t.Run(name, func(t *testing.T) {
		f.t = t
		test(t)
	})
}

// TestGuestsOnVESW: two stock machines on two nodes, and the nodes' hosts, are on one Ethernet.
func TestGuestsOnVESW(t *testing.T) {
	f := newFleet(t)
	for i := range f.guests {
		for _, a := range []string{hostAddr(0), hostAddr(1), guestAddr(1 - i), guestAddr6(1 - i)} {
			f.reaches(i, a)
		}
	}
	row := f.row
	row("ping", func(t *testing.T) {
		for _, size := range []int{0, 1472, 1473, 20000} {
			// A trunk goes down when a node gets no processor for long, and something is lost then.
			f.once(0, fmt.Sprintf("ping -c 4 -i 0.05 -W 5 -s %d %s | grep -q ' 0%% packet loss'", size, guestAddr(1)))
			f.wait(fmt.Sprintf("host and guest talk, %d octets", size), func() bool {
				out, err := f.in(0, "ping", "-c", "4", "-i", "0.05", "-s", strconv.Itoa(size), guestAddr(1))
				return err == nil && strings.Contains(out, " 0% packet loss")
			})
		}
	})
	row("queue pairs", func(t *testing.T) {
		if out := f.run(1, "/usr/sbin/ethtool -l eth0; /usr/sbin/ethtool -k eth0"); !regexp.MustCompile(`(?s)Current.*Combined:\s+2`).MatchString(out) ||
			!strings.Contains(out, "tcp-segmentation-offload: on") {
			t.Errorf("%s", out)
		}
	})
	// Between two clients the server closes its socket, and may refuse one: those are repeated.
	amount := []string{"-n", "8M"}
	if lab.Soak {
		amount = []string{"-t", "10"}
	}
	f.run(1, "iperf3 -s -D; "+until("netstat -ltn | grep -q ':5201 '", veswLimit))
	row("iperf3 between guests", func(t *testing.T) {
		for _, way := range []string{"", "-R", "-P 4"} {
			f.once(0, "iperf3 -c "+guestAddr(1)+" "+strings.Join(amount, " ")+" "+way+" >/tmp/load 2>&1")
			t.Log(lastLine(f.run(0, "cat /tmp/load")))
		}
	})
	row("iperf3 between host and guest", func(t *testing.T) {
		for i := range f.nodes { // of the other node, and of the guest's own
			for _, way := range []string{"-P1", "-R"} {
				f.wait("host and guest talk", func() bool {
					out, err := f.in(i, append([]string{"iperf3", "-c", guestAddr(1), way}, amount...)...)
					t.Log(lastLine(out))
					return err == nil
				})
			}
		}
	})
	row("reconnects", func(t *testing.T) {
		p, err := lab.Start(lab.Cmd{NetNS: f.spaces[0].Name, Args: []string{"ping", "-n", "-i", "0.02", guestAddr(1)},
			Peers: f.peers()})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		// The machine as the socket's server, and as the client, which waits a second each time.
		times := [2]int{1, 5}
		if lab.Soak {
			times = [2]int{20, 20}
		}
		for i := range f.vms {
			for range times[i] {
				f.reconnects(i, f.vms[i])
				if i == 1 {
					seen := strings.Count(p.Output(), " bytes from ")
					f.wait("frames go both ways in the new session", func() bool {
						return strings.Count(p.Output(), " bytes from ") > seen
					}, p)
				}
			}
			f.reaches(i, guestAddr(1-i))
		}
		for i := range f.vms {
			var list []api.Counter
			f.query(i, &list, "stat", "--scope", api.ScopeVM, "--all")
			for _, c := range list {
				if c.Name == "broken_rings" && c.Value != 0 {
					t.Errorf("%+v", c)
				}
			}
		}
		f.once(0, "iperf3 -c "+guestAddr(1)+" -n 1M >/tmp/load 2>&1")
	})
	row("reboot", func(t *testing.T) {
		if err := f.guests[0].Reboot(2*time.Minute, f.nodes[0].Proc); err != nil {
			t.Fatal(err)
		}
		f.reaches(0, guestAddr(1))
		f.reaches(1, guestAddr6(0))
	})
	row("node started anew under load", func(t *testing.T) { f.restart(t) })
	row("soft-RoCE between guests", func(*testing.T) {
		f.pingpong(func() (string, error) {
			return f.runFor(0, "timeout 60 ibv_rc_pingpong -d rxe0 -c -g "+f.rxeGID(0)+" -n 100 "+guestAddr(1),
				2*time.Minute)
		})
	})
	row("verbs of a node's program with soft-RoCE", func(t *testing.T) {
		f.pingpong(func() (string, error) {
			gid, err := f.nodes[0].GID(hostAddr(0)) // RoCEv2 by the TAP device
			if err != nil {
				t.Fatal(err)
			}
			return lab.RunBeside(f.guests[1], f.nodes[0].Program("ibv_rc_pingpong", "-d", "weft0", "-c", "-g",
				strconv.Itoa(gid), "-n", "100", guestAddr(1)), 2*time.Minute)
		})
	})
	row("a device in the switch with soft-RoCE", func(t *testing.T) { f.station(t) })
	row("guest lost", func(t *testing.T) {
		f.guests[0].Close()
		f.guests[0] = nil
		f.wait("the node reports it", func() bool {
			return !f.vm(0).Guest && strings.Contains(f.weft(0, "status"), "vm_without_guest: g0")
		})
		f.reaches(1, hostAddr(0))
	})
}

// restart ends the node with a guest as the server of its card, and starts it again, while the guest
// and the other node's host talk.
func (f *fleet) restart(t *testing.T) {
	// Each line has the time; a gap between answers is the pause.
	p, err := lab.Start(lab.Cmd{NetNS: f.spaces[0].Name, Args: []string{"ping", "-D", "-n", "-i", "0.02",
		guestAddr(1)}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if _, err := p.Expect("icmp_seq=20 ", veswLimit); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
	f.run(0, "(iperf3 -c "+guestAddr(1)+" -b 20M -t 5 >/tmp/load 2>&1; echo $? >/tmp/loaded) >/dev/null 2>&1 &")
	n := f.nodes[1]
	n.Proc.Kill()
	if err := n.Again(f.flags[1]...); err != nil {
		t.Fatal(err)
	}
	seen := strings.Count(p.Output(), " bytes from ")
	f.wait("the guest answers again", func() bool { return strings.Count(p.Output(), " bytes from ") > seen+20 }, p)
	var pause, last float64
	for line := range strings.Lines(p.Output()) {
		stamp, rest, ok := strings.Cut(strings.TrimPrefix(line, "["), "]")
		if at, err := strconv.ParseFloat(stamp, 64); ok && err == nil && strings.Contains(rest, " bytes from ") {
			if last != 0 {
				pause = max(pause, at-last)
			}
			last = at
		}
	}
	t.Logf("pause of %.2f s", pause)
	if limit := 1.0; lab.Soak && pause > limit {
		t.Errorf("a pause of %.2f s, %.0f s are allowed", pause, limit)
	}
	if v := f.vm(1); !v.Guest || !v.Running || v.MAC != f.vms[1].MAC || v.PortGUID != f.vms[1].PortGUID {
		t.Errorf("%+v, it was %+v", v, f.vms[1])
	}
	f.tap(1)
	f.reaches(0, guestAddr(1))
	t.Log(lastLine(f.run(0, until("[ -s /tmp/loaded ]", 2*veswLimit)+"; cat /tmp/load; exit $(cat /tmp/loaded)")))
}

// rxeGID returns the index of the GID of a guest's IPv4 address.
func (f *fleet) rxeGID(i int) string { return f.rxeGIDOf(i, "::ffff:"+guestAddr(i)) }

// rxeGIDOf returns the index of the GID of one of a guest's addresses, as its tools print it.
func (f *fleet) rxeGIDOf(i int, addr string) string {
	f.t.Helper()
	out := f.run(i, "ibv_devinfo -v | grep GID")
	for line := range strings.Lines(out) {
		if strings.Contains(line, addr+",") {
			_, rest, _ := strings.Cut(line, "[")
			index, _, _ := strings.Cut(rest, "]")
			return strings.TrimSpace(index)
		}
	}
	f.t.Fatalf("guest %d has no GID of %s:\n%s", i, addr, out)
	return ""
}

// pingpong runs ibv_rc_pingpong with guest 1's soft-RoCE as server and something else as client, and again where
// one of them gave up: half a second is their patience, and a busy machine's is more.
func (f *fleet) pingpong(client func() (string, error)) { f.pingpongWith(1, f.rxeGID(1), client) }

// pingpongWith is pingpong with any of the guests as server.
func (f *fleet) pingpongWith(i int, gid string, client func() (string, error)) {
	f.t.Helper()
	for try := range 3 {
		f.serve(i, "ibv_rc_pingpong -d rxe0 -c -g "+gid+" -n 100")
		out, err := client()
		theirs, serr := f.served(i, "ibv_rc_pingpong")
		r := result{weft: out, rxe: theirs}
		if err == nil && serr == nil && pingpong(out, theirs) == "" {
			return
		}
		if !r.gaveUp() || try == 2 {
			f.t.Fatalf("client: %v, server: %v\n-- client --\n%s\n-- server --\n%s", err, serr, out, theirs)
		}
	}
}

// pingpongPort is where a pingpong's server listens by default.
const pingpongPort = 18515

// serve starts the server of a pingpong in a guest.
func (f *fleet) serve(i int, command string) {
	f.t.Helper()
	f.serveUntil(i, command, listensOn(pingpongPort))
}

// serveUntil starts a server in a guest, and returns when the condition holds that the server is ready.
func (f *fleet) serveUntil(i int, command, ready string) {
	f.t.Helper()
	f.run(i, "rm -f /tmp/status; : >/tmp/out; ("+command+" >/tmp/out 2>&1; echo $? >/tmp/status) >/dev/null 2>&1 &\n"+
		until("{ [ -s /tmp/status ] || "+ready+"; }", veswLimit))
}

// served waits for the end of the server, which is a process of a program, and returns what it printed; of a server
// that does not end, the state of its queue pair and the counters of soft-RoCE.
func (f *fleet) served(i int, program string) (string, error) {
	return f.runFor(i, until("[ -s /tmp/status ]", veswLimit)+" || { rdma -d resource show qp; "+
		"grep -v '^0$' /sys/class/infiniband/rxe0/ports/1/hw_counters/*; killall -9 "+program+"; }\n"+
		until("[ -s /tmp/status ]", veswLimit)+"; cat /tmp/out; exit $(cat /tmp/status)", 2*time.Minute)
}

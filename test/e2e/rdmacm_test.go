// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// cmRung is a program that connects by address, through librdmacm.
type cmRung struct {
	server, client string // ADDR is the server's address, DEV its device
	on             way    // the short lists that it is part of
	endless        bool   // the server goes on until it is told to end
	says           string // the client's output has this
}

// way is by which ports programs connect, as a set.
type way uint8

const (
	wayLocal way = 1 << iota // within a node
	wayRoCE                  // between nodes, over RoCEv2
	wayRoCE6                 // by IPv6
	wayIP                    // over the InfiniBand link, by addresses of an IP link
	wayIP6
	wayIP1 // within a node
)

var cmRungs = []cmRung{
	{server: "rping -s -C 10 -V -a ADDR", client: "rping -c -C 10 -V -v -a ADDR", on: wayLocal | wayRoCE6 | wayIP6,
		says: "ping data: rdma-ping-9:"},
	{server: "rping -s -C 10 -V -S 4096 -a ADDR", client: "rping -c -C 10 -V -S 4096 -a ADDR", on: wayRoCE + wayIP},
	{server: "ucmatose -c 4 -C 20", client: "ucmatose -s ADDR -c 4 -C 20", on: wayLocal, says: "return status 0"},
	{server: "ucmatose -m -c 4 -C 20", client: "ucmatose -m -s ADDR -c 4 -C 20", on: wayLocal | wayRoCE,
		says: "return status 0"},
	{server: "rdma_server", client: "rdma_client -s ADDR", on: wayLocal, says: "rdma_client: end 0"},
	{server: "rdma_xserver", client: "rdma_xclient -s ADDR", on: wayLocal, says: "end 0"},
	{server: "udaddy", client: "udaddy -s ADDR", on: wayLocal | wayIP, says: "return status 0"},
	{server: "cmtime -c 20", client: "cmtime -s ADDR -c 20", on: wayLocal, endless: true, says: "disconnect"},
	{server: "rstream -S 65536 -I 10 -C 20", client: "rstream -S 65536 -I 10 -C 20 -s ADDR", on: wayIP, says: "64k"},
	{server: "rstream", client: "rstream -s ADDR"},
	{server: "riostream -S 4096 -I 10 -C 100", client: "riostream -S 4096 -I 10 -C 100 -s ADDR", on: wayLocal,
		says: "4k"},
	{server: "ib_send_bw -d DEV -R -n 500 -F", client: "ib_send_bw -d DEV -R -n 500 -F ADDR", on: wayRoCE},
	{server: "ib_write_bw -d DEV -R -n 500 -F", client: "ib_write_bw -d DEV -R -n 500 -F ADDR"},
	{server: "ib_read_lat -d DEV -R -n 500 -F", client: "ib_read_lat -d DEV -R -n 500 -F ADDR"},
	{server: "ib_atomic_bw -d DEV -R -n 500 -F", client: "ib_atomic_bw -d DEV -R -n 500 -F ADDR", on: wayIP},
	{server: "ib_send_bw -d DEV -c UD -R -n 500 -F", client: "ib_send_bw -d DEV -c UD -R -n 500 -F ADDR", on: wayLocal},
}

// cmLimit bounds what takes a second on an idle machine.
const cmLimit = 60 * time.Second

// cmWay is by which nodes, address and device programs connect.
type cmWay struct {
	way            way
	name           string
	server, client *lab.Node
	addr, device   string
	from           string // the client's address
}

func (w *cmWay) args(s string) []string {
	return strings.Fields(strings.NewReplacer("ADDR", w.addr, "DEV", w.device).Replace(s))
}

// ids lists the identifiers of a process.
func cmIDs(t *testing.T, n *lab.Node, pid int) (list []api.CMID) {
	t.Helper()
	var all []api.CMID
	if err := n.Query(&all, "res", "cm_id"); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(i api.CMID) bool { return i.PID != pid })
}

// waitFor waits for a condition while a process runs.
func waitFor(t *testing.T, p *lab.Proc, what string, ok func() bool) {
	t.Helper()
	if err := lab.Until(what, cmLimit, func() (bool, error) { return ok(), nil }, p); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
}

// listen starts a server and returns when it listens for connections.
func (w *cmWay) listen(t *testing.T, args []string) *lab.Proc {
	t.Helper()
	p, err := lab.Start(w.server.Program(args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	waitFor(t, p, "it listens", func() bool {
		return slices.ContainsFunc(cmIDs(t, w.server, p.PID()), func(i api.CMID) bool { return i.State == "LISTEN" })
	})
	return p
}

// run runs a program as server and as client. perftest's client may be faster than its server, which
// listens for one identifier after another, and is refused then, as by any peer: that is tried
// again. So are programs that wait for datagrams, where a trunk went down meanwhile.
func (w *cmWay) run(t *testing.T, r cmRung) {
	t.Helper()
	w.tries(t, func() (why string, again bool) {
		since := downs(w.server, w.client)
		why = w.once(t, r)
		refused := strings.HasPrefix(r.server, "ib_") && strings.Contains(why, "RDMA CM event error")
		datagrams := r.server == "udaddy" || strings.Contains(r.server, "-c UD")
		return why, refused || datagrams && since() > 0
	})
}

// tries does something that may fail three times for what is not its doing.
func (w *cmWay) tries(t *testing.T, do func() (why string, again bool)) {
	t.Helper()
	for tries := 0; ; tries++ {
		why, again := do()
		if why == "" {
			return
		}
		if tries == 3 || !again {
			t.Fatal(why)
		}
		t.Logf("once more: %s", why)
	}
}

func (w *cmWay) once(t *testing.T, r cmRung) (why string) {
	t.Helper()
	limit := cmLimit
	if r.server == "rstream" {
		limit *= 5 // 100,000 round trips of the smallest size
	}
	server := w.listen(t, w.args(r.server))
	defer server.Kill()
	client := w.args(r.client)
	out, err := lab.RunBeside(server, w.client.Program(client...), limit)
	if err == nil && !r.endless {
		err = server.Wait(cmLimit)
	}
	if err != nil {
		return fmt.Sprintf("%v\n-- server\n%s\n-- client\n%s", err, lab.Tail(server.Output(), 20), lab.Tail(out, 20))
	}
	if !strings.Contains(out, r.says) {
		return fmt.Sprintf("the client did not say %q:\n%s", r.says, out)
	}
	if strings.HasPrefix(client[0], "ib_") && checkOutput(client[0], out) != "" {
		t.Logf("no result: %s", out) // on a busy machine it may fail to measure the clock
	}
	return ""
}

// clean expects that nothing of programs is left.
func (w *cmWay) clean(t *testing.T) {
	t.Helper()
	for _, n := range []*lab.Node{w.server, w.client} {
		var r api.Resources
		if err := lab.Until("nothing is left of programs", cmLimit, func() (bool, error) {
			r = api.Resources{}
			err := n.Query(&r, "res")
			return len(r.CMIDs) == 0 && !slices.ContainsFunc(r.QPs, func(q api.QP) bool { return q.Comm != "ipoib" }), err
		}, n.Proc); err != nil {
			t.Fatalf("%v: in %s: %+v %+v", err, n.Dir, r.CMIDs, r.QPs)
		}
	}
}

// copy sends a file by rcopy, which must arrive as it was.
func (w *cmWay) copy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := make([]byte, 3_000_001)
	rand.NewChaCha8([32]byte{1}).Read(data)
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	server := w.listen(t, []string{"rcopy"})
	defer server.Kill()
	if out, err := lab.RunBeside(server, w.client.Program("rcopy", from, w.addr+":"+to), cmLimit); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, server.Output())
	}
	waitFor(t, server, "the copy is there", func() bool {
		got, err := os.ReadFile(to)
		return err == nil && bytes.Equal(got, data)
	})
}

// group has mckey send to a multicast group and receive from it.
func (w *cmWay) group(t *testing.T, group string) {
	w.tries(t, func() (why string, again bool) {
		since := downs(w.server, w.client)
		why = w.groupOnce(t, group)
		return why, since() > 0
	})
}

func (w *cmWay) groupOnce(t *testing.T, group string) (why string) {
	t.Helper()
	server, err := lab.Start(w.server.Program("mckey", "-m", group, "-b", w.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	attached := func() bool {
		var list []api.Group
		if err := w.server.Query(&list, "mcast", "list"); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(g api.Group) bool {
			return slices.ContainsFunc(g.QPs, func(q api.GroupQP) bool { return q.PID == server.PID() })
		})
	}
	waitFor(t, server, "it is in the group", attached)
	out, err := lab.RunBeside(server, w.client.Program("mckey", "-s", "-m", group, "-b", w.from), cmLimit)
	if err == nil {
		err = server.Wait(cmLimit)
	}
	if err != nil {
		return fmt.Sprintf("%v\n-- receiver\n%s\n-- sender\n%s", err, server.Output(), out)
	}
	return ""
}

// kill ends one side of rping at once, and expects the other to end by itself.
func (w *cmWay) kill(t *testing.T, which string) {
	server := w.listen(t, w.args("rping -s -C 1000000 -V -a ADDR"))
	defer server.Kill()
	client, err := lab.Start(w.client.Program(w.args("rping -c -C 1000000 -V -a ADDR")...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Kill()
	connected := func(n *lab.Node, p *lab.Proc) func() bool {
		return func() bool {
			return slices.ContainsFunc(cmIDs(t, n, p.PID()), func(i api.CMID) bool {
				return i.State == "CONNECT" &&
					i.LQPN != 0
			})
		}
	}
	waitFor(t, server, "the server is connected", connected(w.server, server))
	waitFor(t, client, "the client is connected", connected(w.client, client))
	victim, other := server, client
	if which == "client" {
		victim, other = client, server
	}
	victim.Kill()
	if err := other.Wait(cmLimit); errors.Is(err, lab.ErrTimeout) {
		t.Errorf("the other does not end: %v\n%s", err, other.Output())
	}
	// Whichever reaches it first: the news, or what its requests came to.
	if out := other.Output(); !strings.Contains(out, "DISCONNECT EVENT") && !strings.Contains(out, "failed") {
		t.Errorf("the other was not told:\n%s", out)
	}
	w.clean(t)
}

// TestCM runs the programs that connect by address: within a node, between nodes over RoCEv2, and over
// the InfiniBand link by addresses of an IP link.
func TestCM(t *testing.T) {
	t.Parallel()
	needs(t, "rping", "mckey", "rstream")
	s := openSubnet(t, false)
	s.links(0, 1)
	s.reaches(1, v4(0))
	a, b := s.nodes[0], s.nodes[1]
	ways := []cmWay{
		{wayLocal, "one node", a, a, "127.0.0.1", "weft0", "127.0.0.1"},
		{wayRoCE, "two nodes", a, b, a.NetNS.V4, "weft0", b.NetNS.V4},
		{wayRoCE6, "two nodes, IPv6", a, b, a.NetNS.V6, "weft0", b.NetNS.V6},
		{wayIP, "IP link", a, b, v4(0), native, v4(1)},
		{wayIP6, "IP link, IPv6", a, b, v6(0), native, v6(1)},
		{wayIP1, "IP link, one node", a, a, v4(0), native, v4(0)},
	}
	for i, w := range ways {
		if !lab.Soak && w.way == wayIP1 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			six := strings.Contains(w.addr, ":")
			for _, r := range cmRungs {
				// Some programs know addresses of IPv4 only, unless they are told otherwise.
				if six && !strings.HasPrefix(r.server, "rping") || !lab.Soak && r.on&w.way == 0 {
					continue
				}
				t.Run(r.client, func(t *testing.T) { w.run(t, r) })
			}
			if !six && (lab.Soak || w.way == wayIP) {
				t.Run("rcopy", w.copy)
			}
			if w.way != wayLocal && (lab.Soak || !six) { // 127.0.0.1 has no groups
				group := fmt.Sprintf("239.4.5.%d", i)
				if six {
					group = fmt.Sprintf("ff0e::45:%d", i)
				}
				t.Run("mckey", func(t *testing.T) { w.group(t, group) })
			}
			for k, which := range []string{"server", "client"} {
				if lab.Soak || w.way == []way{wayRoCE, wayIP}[k] {
					t.Run("kill the "+which, func(t *testing.T) { w.kill(t, which) })
				}
			}
			w.clean(t)
		})
	}
}

// TestCMAgain runs programs that connect by address one after the other, many at a
// time: none may wait for ever.
func TestCMAgain(t *testing.T) {
	t.Parallel()
	needs(t, "rping")
	b := openTestbed(t, 9000, false, 0)
	times := 5
	if lab.Soak {
		times = 50
	}
	w := cmWay{0, "", b.Server, b.Client, b.Server.NetNS.V4, "weft0", b.Client.NetNS.V4}
	for i := range times {
		w.run(t, cmRungs[0])
		if !lab.Soak {
			continue
		}
		for _, r := range cmRungs {
			if r.server != "rstream" {
				w.run(t, r)
			}
		}
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
	}
	w.clean(t)
}

// TestCMOtherUser: programs of a user of --allow-uid may connect, from ports that are not
// root's.
func TestCMOtherUser(t *testing.T) {
	t.Parallel()
	needs(t, "rping")
	b := openTestbed(t, 9000, true, 0, "--allow-uid", "65534")
	other := *b.Server
	other.UID = 65534
	w := cmWay{0, "", &other, &other, b.Server.NetNS.V4, "weft0", b.Server.NetNS.V4}
	w.run(t, cmRungs[0])
	out, err := lab.Run(other.Program("rping", "-s", "-p", "100", "-a", b.Server.NetNS.V4), cmLimit)
	if err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("%v\n%s", err, out)
	}
	w.clean(t)
}

// TestStaticLibrdmacm: a program that has librdmacm in itself speaks to the kernel's device of the connection manager,
// which is the node's.
func TestStaticLibrdmacm(t *testing.T) {
	t.Parallel()
	program := lab.Bin("staticcm")
	// What librdmacm shares with libibverbs is in the static library of that alone; all else comes from the shared one.
	if err := lab.BuildC(program, "test/e2e/staticcm/*.c", "-Wl,-Bstatic", "-lrdmacm", "-Wl,-Bdynamic", "-libverbs",
		"-Wl,-Bstatic", "-libverbs", "-Wl,-Bdynamic", "-lnl-3", "-lnl-route-3"); err != nil {
		t.Fatal(err)
	}
	b := openTestbed(t, 9000, true, lab.Nobody)
	for name, flags := range map[string][]string{"preload": nil, "replace": {"--replace"}} {
		t.Run(name, func(t *testing.T) {
			out, err := lab.Run(b.Server.Program(append(flags, "--", program, b.Server.NetNS.V4)...), 30*time.Second)
			if err != nil || !strings.Contains(out, "staticcm: ok") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
)

const (
	ipLink    = "ib0_1_7fff"         // the link of the default partition
	groupEnv  = "WEFT_E2E_GROUP"     // has this binary be a program of a multicast group
	ipPayload = 2044                 // MTU of links
	groupHi   = "hello, all members" // what the members of a group send
)

// serveGroup is a program that joins an IPv4 or IPv6 group on an interface and
// prints what it receives from the group, or sends something to it.
func serveGroup(what string) int {
	var verb, ifname, group string
	fmt.Sscan(what, &verb, &ifname, &group)
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(group))
	if verb == "send" {
		if addr.Zone == "" && addr.IP.To4() == nil {
			addr.Zone = ifname
		}
		c, err := net.DialUDP("udp", nil, addr)
		if err == nil {
			_, err = c.Write([]byte(groupHi))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	c, err := net.ListenMulticastUDP("udp", i, addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("group joined")
	b := make([]byte, 1500)
	n, from, err := c.ReadFromUDP(b)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Printf("%s says %s\n", from, b[:n])
	return 0
}

func v4(i int) string { return fmt.Sprintf("10.91.0.%d", i+1) }
func v6(i int) string { return fmt.Sprintf("fd91::%d", i+1) }

// in runs a program in the namespace of a node.
func (s *subnet) in(i int, args ...string) (string, error) {
	return lab.Run(lab.Cmd{NetNS: s.Spaces[i].Name, Args: args, Peers: s.living()}, fabricLimit)
}

func (s *subnet) mustIn(i int, args ...string) string {
	s.t.Helper()
	out, err := s.in(i, args...)
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// links requests a link in the default partition on some nodes, and waits for
// their carriers.
func (s *subnet) links(nodes ...int) {
	s.t.Helper()
	for _, i := range nodes {
		s.weft(i, "ipoib", "add", native, "--addr", v4(i)+"/24", "--addr", v6(i)+"/64")
	}
	for _, i := range nodes {
		s.carrier(i, ipLink)
	}
}

// ipLinks returns the names of a node's links that have a carrier.
func (s *subnet) ipLinks(i int) (up []string) {
	s.t.Helper()
	var list []api.IPLink
	if err := s.nodes[i].Query(&list, "ipoib"); err != nil {
		s.t.Fatal(err)
	}
	for _, l := range list {
		if l.Carrier {
			up = append(up, l.Name)
		}
	}
	return up
}

func (s *subnet) carrier(i int, link string) {
	s.t.Helper()
	s.until(fmt.Sprintf("%s of node %d has a carrier", link, i), func() bool {
		return slices.Contains(s.ipLinks(i),
			link)
	})
}

// reaches waits until an address answers: at the first packets of a link
// duplicates are still being looked for.
func (s *subnet) reaches(i int, addr string) {
	s.t.Helper()
	s.until(fmt.Sprintf("node %d reaches %s", i, addr), func() bool {
		_, err := s.in(i, "ping", "-c", "1", "-W", "1", addr)
		return err == nil
	})
}

// iperf runs iperf3 between two nodes and returns the client's JSON.
func (s *subnet) iperf(t *testing.T, server, client int, addr string, args ...string) (r iperfResult) {
	t.Helper()
	p, err := lab.Start(lab.Cmd{NetNS: s.Spaces[server].Name, Args: []string{"iperf3", "-s", "-1", "--forceflush"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if _, err := p.Expect("Server listening", fabricLimit); err != nil {
		t.Fatal(err)
	}
	out, err := lab.RunBeside(p, lab.Cmd{NetNS: s.Spaces[client].Name, Peers: s.living(),
		Args: append([]string{"iperf3", "-J", "-c", addr}, args...)}, fabricLimit)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Error != "" {
		t.Fatalf("%v %s\n%s", err, r.Error, out)
	}
	return r
}

type iperfResult struct {
	Error string `json:"error"`
	End   struct {
		SumSent     struct{ Bytes int64 } `json:"sum_sent"`
		SumReceived struct{ Bytes int64 } `json:"sum_received"`
		Sum         struct {
			Packets     int `json:"packets"`
			LostPackets int `json:"lost_packets"`
		} `json:"sum"`
	} `json:"end"`
}

// TestIPoIB: ordinary IP programs talk between three nodes; S-03, S-07, S-11 and S-12 among what
// they do.
func TestIPoIB(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	s.links(0, 1, 2)
	for _, p := range pairsOfThree {
		s.reaches(p[0], v4(p[1]))
		s.reaches(p[0], v6(p[1]))
	}
	t.Run("ping", func(t *testing.T) {
		for _, p := range pairsOfThree {
			for _, addr := range []string{v4(p[0]), v6(p[0])} {
				if out, err := s.in(p[1], "ping", "-c", "5", "-i", "0.05", addr); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
		}
	})
	t.Run("iperf3", func(t *testing.T) {
		for _, args := range [][]string{{v4(1), "-n", "32M"}, {v4(1), "-n", "32M", "-R"}, {v6(1), "-n", "16M", "-P",
			"4"}, {v4(1), "-u", "-b", "20M", "-n", "2M"}} {
			r := s.iperf(t, 1, 0, args[0], args[1:]...)
			if args[1] == "-u" {
				if r.End.Sum.Packets == 0 || r.End.Sum.LostPackets*2 > r.End.Sum.Packets {
					t.Errorf("%v: %+v", args, r)
				}
				// the last octets of several streams arrive after the count
			} else if r.End.SumSent.Bytes < 16<<20 || r.End.SumReceived.Bytes == 0 {
				t.Errorf("%v: %+v", args, r)
			}
		}
	})
	t.Run("multicast", func(t *testing.T) {
		for _, group := range []string{"239.1.2.3:7000", "[ff02::4242]:7000"} {
			s.group(t, group, 1, 2)
		}
	})
	t.Run("gateway", func(t *testing.T) {
		s.mustIn(1, "ip", "addr", "add", "10.92.0.1/24", "dev", "lo")
		s.mustIn(0, "ip", "route", "add", "10.92.0.0/24", "via", v4(1), "dev", ipLink)
		s.reaches(0, "10.92.0.1")
		var n []api.IPNeighbour
		if err := s.nodes[0].Query(&n, "ipoib", "neigh"); err != nil ||
			slices.ContainsFunc(n, func(n api.IPNeighbour) bool { return n.Addr == "10.92.0.1" }) {
			t.Errorf("an address behind a gateway was asked for: %v %+v", err, n)
		}
	})
	t.Run("MTU", func(t *testing.T) {
		const head = 28 // IPv4 and ICMP
		if out, err := s.in(0, "ping", "-c", "1", "-M", "do", "-s", fmt.Sprint(ipPayload-head), v4(2)); err != nil {
			t.Errorf("a packet of the MTU: %v\n%s", err, out)
		}
		if out, err := s.in(0, "ping", "-c", "1", "-M", "do", "-s", fmt.Sprint(ipPayload-head+1),
			v4(2)); err == nil || !strings.Contains(out, fmt.Sprintf("mtu=%d", ipPayload)) {
			t.Errorf("a longer one: %v\n%s", err, out)
		}
		if out, err := s.in(0, "ping", "-c", "1", "-s", "9000", v4(2)); err != nil {
			t.Errorf("in fragments: %v\n%s", err, out)
		}
		// H-35: only the group sets it.
		s.mustIn(0, "ip", "link", "set", ipLink, "mtu", "1500")
		s.until("the MTU is the group's again", func() bool {
			out, err := s.in(0, "ip", "link", "show", ipLink)
			return err == nil && strings.Contains(out, fmt.Sprintf("mtu %d ", ipPayload))
		})
	})
	t.Run("path", func(t *testing.T) {
		var p api.IPPathInfo
		if err := s.nodes[0].Query(&p, "ipoib", "path", v4(1)); err != nil || p.DLID != s.device(1, native).LID ||
			p.MTU != 4096 || len(p.Image) != 72 {
			t.Errorf("%v %+v", err, p)
		}
		if out, err := s.nodes[0].Weft("ipoib", "path", "10.91.0.77"); err == nil ||
			!strings.Contains(out, "no node has the address. fix: weft ipoib neigh") {
			t.Errorf("nobody's address: %v %s", err, out)
		}
	})
	t.Run("DHCP", s.dhcp)
	t.Run("down and up", func(t *testing.T) {
		s.mustIn(2, "ip", "link", "set", ipLink, "down")
		s.until("the link has no carrier", func() bool { return len(s.ipLinks(2)) == 0 })
		s.mustIn(2, "ip", "link", "set", ipLink, "up")
		s.carrier(2, ipLink)
		s.reaches(0, v4(2))
	})
	t.Run("removed by somebody", func(t *testing.T) {
		before := s.qpn(2)
		s.mustIn(2, "ip", "link", "del", ipLink)
		s.until("the link is made anew", func() bool {
			var list []api.IPLink
			return s.nodes[2].Query(&list, "ipoib") == nil && len(list) == 1 && list[0].Carrier && list[0].QPN != before
		})
		s.reaches(0, v4(2))
	})
	t.Run("1000 groups", s.manyGroups)
	t.Run("peer with another queue pair", func(t *testing.T) {
		before := s.qpn(1)
		s.weft(1, "ipoib", "del", ipLink)
		s.links(1)
		if after := s.qpn(1); after == before {
			t.Fatalf("queue pair %d as before", after)
		}
		s.reaches(0, v4(1))
		s.reaches(2, v6(1))
	})
	t.Run("unload", func(t *testing.T) {
		m := s.master(0, 1, 2)
		for i := range s.nodes {
			s.weft(i, "ipoib", "del", ipLink)
			if out, err := s.in(i, "ip", "link", "show", ipLink); err == nil {
				t.Errorf("node %d: the interface is still there: %s", i, out)
			}
			if n, err := s.nodes[i].Objects(); err != nil || n != 0 {
				t.Errorf("node %d: %d objects are left, %v", i, n, err)
			}
		}
		// A link waits for the answers to its leaves as long as it may: where the
		// administration is slower it does them later.
		s.until("no group has members", func() bool {
			var g []api.SubnetGroup
			return s.nodes[m].Query(&g, "mcast", "groups") == nil &&
				!slices.ContainsFunc(g, func(g api.SubnetGroup) bool { return len(g.Members) > 0 })
		})
	})
}

func (s *subnet) qpn(i int) uint32 {
	s.t.Helper()
	var list []api.IPLink
	if err := s.nodes[i].Query(&list, "ipoib"); err != nil || len(list) != 1 {
		s.t.Fatalf("%v %+v", err, list)
	}
	return list[0].QPN
}

// group has some nodes listen to a group and node 0 speak.
func (s *subnet) group(t *testing.T, group string, nodes ...int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := func(i int, verb string) lab.Cmd {
		return lab.Cmd{NetNS: s.Spaces[i].Name, Env: []string{groupEnv + "=" + verb + " " + ipLink + " " + group},
			Args: []string{exe}}
	}
	addr := netip.MustParseAddrPort(group).Addr()
	if addr.Is4() {
		s.mustIn(0, "ip", "route", "replace", "239.0.0.0/8", "dev", ipLink)
	}
	var listeners []*lab.Proc
	for _, i := range nodes {
		p, err := lab.Start(program(i, "listen"))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		if _, err := p.Expect("group joined", fabricLimit); err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, p)
		s.until(fmt.Sprintf("node %d is in %v", i, addr), func() bool {
			var g []api.IPGroup
			return s.nodes[i].Query(&g, "ipoib", "mcast") == nil &&
				slices.ContainsFunc(g, func(g api.IPGroup) bool {
					return slices.Contains(g.Addrs, addr.String()) &&
						g.State == "joined"
				})
		})
	}
	// A datagram may be lost while switches learn of the group.
	received := func() bool {
		for _, p := range listeners {
			if !strings.Contains(p.Output(), "says "+groupHi) {
				return false
			}
		}
		return true
	}
	s.until("all receive what is sent to "+group, func() bool {
		if out, err := lab.Run(program(0, "send"), fabricLimit); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return received()
	})
}

// dhcp: a client gets a lease over the fabric, by its client identifier
// (RFC 4390): a hardware address it has none. The interface has no header that a
// client could build, which is why those that want one refuse it.
func (s *subnet) dhcp(t *testing.T) {
	server, err := lab.Start(lab.Cmd{NetNS: s.Spaces[0].Name, Args: []string{"dnsmasq", "--no-daemon",
		"--conf-file=/dev/null", "--no-ping", "--port=0", "--interface=" + ipLink,
		"--bind-interfaces", "--dhcp-broadcast", "--dhcp-range=10.91.0.100,10.91.0.110,1h", "--dhcp-leasefile=" +
			filepath.Join(t.TempDir(), "leases"), "--user=root"}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	if _, err := server.Expect("bound exclusively", fabricLimit); err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	out, err := s.in(1, "busybox", "udhcpc", "-i", ipLink, "-n", "-q", "-t", "8", "-T", "2", "-s", "/bin/true", "-C",
		"-x", "0x3d:ff0000000100030001020304050607")
	if err != nil || !strings.Contains(out, "lease of 10.91.0.1") {
		t.Errorf("%v\n%s\n%s", err, out, server.Output())
	}
}

// manyGroups joins and leaves 1000 groups: the table of the administration is what
// it was before.
func (s *subnet) manyGroups(t *testing.T) {
	const count = 1000
	m := s.master(0, 1, 2)
	groups := func() (n int) {
		t.Helper()
		var g []api.SubnetGroup
		if err := s.nodes[m].Query(&g, "mcast", "groups"); err != nil {
			t.Fatal(err)
		}
		return len(g)
	}
	base := groups()
	c := api.NewClient(filepath.Join(s.nodes[0].Dir, "control.sock"), nil)
	defer c.Close()
	do := func(op string) {
		t.Helper()
		for i := range count {
			a := netip.AddrFrom4([4]byte{239, 7, byte(i >> 8), byte(i)})
			if err := api.Do(context.Background(), c, api.ChangeIPLink, api.Named[api.IPAction]{Name: ipLink,
				Value: api.IPAction{Op: op, Addr: a.String()}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	do(api.IPJoin)
	s.until("all groups are joined", func() bool { return groups() == base+count })
	do(api.IPLeave)
	s.until("all are left", func() bool { return groups() == base })
	s.reaches(0, v4(1))
}

// TestIPoIBPartitions: links follow the partitions of their ports (S-05), and nothing
// passes from one to the other, nor between limited members (S-09).
func TestIPoIBPartitions(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	var g [3]string
	for i := range g {
		g[i] = guid(s.device(i, native))
	}
	const red, blue = "ib0_1_14", "ib0_1_15"
	s.weft(m, "pkey", "add", "0x8014", "--name", "red", g[0], g[1], "--yes")
	s.weft(m, "pkey", "add", "0x8015", "--name", "blue", g[0], g[1], g[2])
	for i, links := range [][]string{{red, blue}, {red, blue}, {blue}} {
		for _, l := range links {
			s.weft(i, "ipoib", "add", native, "--pkey", "0x80"+l[6:], "--addr", fmt.Sprintf("10.%s.0.%d/24", l[6:],
				i+1))
			s.carrier(i, l)
		}
	}
	s.reaches(0, "10.14.0.2")
	s.reaches(0, "10.15.0.2")
	s.reaches(2, "10.15.0.1")
	t.Run("apart", func(t *testing.T) {
		// Node 2 announces, wrongly, red's addresses at its blue link.
		s.mustIn(2, "ip", "route", "add", "10.14.0.0/24", "dev", blue, "src", "10.15.0.3")
		if out, err := s.in(2, "ping", "-c", "3", "-i", "0.2", "-W", "1", "10.14.0.1"); err == nil {
			t.Errorf("blue reaches red:\n%s", out)
		}
		if out, err := s.nodes[2].Weft("ipoib", "path", "10.14.0.1", "--link", blue); err == nil {
			t.Errorf("blue knows red: %s", out)
		}
	})
	t.Run("limited members", func(t *testing.T) { s.limited(t, m, g) })
	t.Run("taken away and given back", func(t *testing.T) {
		s.weft(m, "pkey", "del", "0x8014", g[1], "--yes")
		s.until("the link goes", func() bool { return slices.Equal(s.ipLinks(1), []string{blue}) })
		s.until("its interface goes", func() bool {
			_, err := s.in(1, "ip", "link", "show", red)
			return err != nil
		})
		s.reaches(0, "10.15.0.2")
		s.weft(m, "pkey", "add", "0x8014", g[1])
		s.carrier(1, red)
		s.reaches(0, "10.14.0.2")
	})
}

// limited has two of three nodes be limited members of a partition: either of them
// reaches the full member, and is found by its broadcast, but not the other.
func (s *subnet) limited(t *testing.T, m int, g [3]string) {
	const green = "ib0_1_16"
	at := func(i int) string { return fmt.Sprintf("10.16.0.%d", i+1) }
	s.weft(m, "pkey", "add", "0x8016", "--name", "green", g[0], g[1]+"=limited", g[2]+"=limited")
	for i := range s.nodes {
		s.weft(i, "ipoib", "add", native, "--pkey", "0x8016", "--addr", at(i)+"/24")
		s.carrier(i, green)
	}
	s.reaches(1, at(0))
	s.reaches(0, at(2)) // asked for by broadcast
	for _, p := range [][2]int{{1, 2}, {2, 1}} {
		if out, err := s.in(p[0], "ping", "-c", "2", "-i", "0.2", "-W", "1", at(p[1])); err == nil {
			t.Errorf("a limited member reaches another:\n%s", out)
		}
		if out, err := s.nodes[p[0]].Weft("ipoib", "path", at(p[1]), "--link", green); err == nil ||
			!strings.Contains(out, "no node has the address") {
			t.Errorf("a limited member has a path to another: %v %s", err, out)
		}
	}
	// Nor where it knows where the other is.
	var links []api.IPLink
	if err := s.nodes[2].Query(&links, "ipoib"); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(links, func(l api.IPLink) bool { return l.Name == green })
	s.weft(1, "ipoib", "neigh", "add", green, at(2), links[i].Address)
	if out, err := s.in(1, "ping", "-c", "2", "-i", "0.2", "-W", "1", at(2)); err == nil {
		t.Errorf("a limited member reaches another that it knows:\n%s", out)
	}
	s.reaches(2, at(0))
	for i := range s.nodes {
		s.weft(i, "ipoib", "del", green)
	}
	s.weft(m, "pkey", "del", "0x8016", "--yes")
}

// TestIPoIBNetstack: a user without any privilege moves a file between two
// nodes of his own, by IPv4 and IPv6 (S-12).
func TestIPoIBNetstack(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"datagram", "connected"} {
		if mode == "datagram" || lab.Soak {
			t.Run(mode, func(t *testing.T) { netstacks(t, mode) })
		}
	}
}

func netstacks(t *testing.T, mode string) {
	lab.NeedNetNS(t)
	tri, err := lab.MakeTriangle(9000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tri.Close(); err != nil {
			t.Error(err)
		}
	}()
	var nodes [2]*lab.Node
	for i := range nodes {
		if nodes[i], err = lab.StartNode(tri.Spaces[i], lab.Nobody, "--store", "memory", "--peer",
			tri.TrunkAddr(1-i, i)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := nodes[i].Close(); err != nil {
				t.Errorf("node %d: %v\n%s", i, err, lab.Tail(nodes[i].Proc.Output(), 40))
			}
		}()
	}
	for _, n := range nodes {
		if out, err := n.Weft("wait", "--for=active", "--timeout", "20s"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	user := func(i int, args ...string) lab.Cmd {
		return lab.Cmd{NetNS: tri.Spaces[i].Name, UID: lab.Nobody, Args: args}
	}
	start := func(what string, c lab.Cmd) *lab.Proc {
		t.Helper()
		p, err := lab.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		if what == "" {
			return p
		}
		if out, err := p.Expect(what, fabricLimit); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return p
	}
	stack := func(i int, args ...string) *lab.Proc {
		t.Helper()
		p := start("ready", user(i, append([]string{lab.Bin("weft"), "ipoib", "netstack", "--dir", nodes[i].Dir,
			native, "--mode", mode, "--addr", v4(i) + "/24", "--addr", v6(i) + "/64"}, args...)...))
		return p
	}
	// What is served is a file of the user's, by a server that only this host reaches.
	dir := t.TempDir()
	os.Chmod(filepath.Dir(dir), 0o755)
	file := bytes.Repeat([]byte("all octets of the file arrive\n"), 100_000)
	if err := os.WriteFile(filepath.Join(dir, "file"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "copy")
	os.Chmod(dir, 0o777)
	web := start("", user(0, "busybox", "httpd", "-f", "-p", "127.0.0.1:8000", "-h", dir))
	if err := web.Listening(8000, fabricLimit); err != nil {
		t.Fatal(err)
	}
	a := stack(0, "-R", "tcp:"+v4(0)+":80=127.0.0.1:8000", "-R", "tcp:["+v6(0)+"]:80=127.0.0.1:8000")
	b := stack(1, "-L", "tcp:127.0.0.1:8080="+v4(0)+":80", "-L", "tcp:127.0.0.1:8081=["+v6(0)+"]:80", "--socks",
		"127.0.0.1:1080")
	for _, port := range []string{"8080", "8081"} { // the neighbour found by ARP, and by Neighbor Discovery
		out, last := "", error(nil)
		if err := lab.Until("the file arrives", fabricLimit, func() (bool, error) { // the first packets may be lost
			out, last = lab.Run(user(1, "busybox", "wget", "-q", "-O", to, "http://127.0.0.1:"+port+"/file"),
				fabricLimit)
			return last == nil, nil
		}, web, a, b, nodes[0].Proc, nodes[1].Proc); err != nil {
			t.Fatalf("%v: %v\n%s%s%s", err, last, out, a.Output(), b.Output())
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, file) {
			t.Errorf("%d octets arrived as %d others: %v", len(file), len(got), err)
		}
		if err := os.Remove(to); err != nil {
			t.Error(err)
		}
	}
	for i, p := range []*lab.Proc{a, b} {
		p.Signal(syscall.SIGINT)
		if err := p.Wait(fabricLimit); err != nil {
			t.Errorf("weft ipoib netstack: %v\n%s", err, p.Output())
		}
		var list []api.IPLink
		if err := nodes[i].Query(&list, "ipoib"); err != nil || len(list) != 0 {
			t.Errorf("links are left: %v %+v", err, list)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/store/etcd"
	"weft/test/lab"
)

const (
	native = "weft_ib0" // the device of a node's InfiniBand port
	// fabricLimit bounds what takes well below a second on an idle machine.
	fabricLimit = 30 * time.Second
	storeEnv    = "WEFT_E2E_STORE" // has this binary serve a store: directory and URL
)

// serveStore is a store outside of every node: this binary started again.
func serveStore(where string) int {
	dir, url, _ := strings.Cut(where, " ")
	s, err := etcd.Start(context.Background(), etcd.ServerConfig{Dir: dir, Listen: url})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("store ready")
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
	s.Close()
	return 0
}

// subnet is three nodes, each two joined by a trunk.
type subnet struct {
	*lab.Triangle
	t     *testing.T
	nodes [3]*lab.Node
	flags [3][]string
	store *lab.Proc   // nil: each node keeps its own
	other []*lab.Proc // further programs that the subnet's waits need, such as OpenSM
}

// living are the processes of the subnet that have not ended: what a wait depends on.
func (s *subnet) living() (list []lab.Peer) {
	all := slices.Concat([]*lab.Proc{s.store}, s.other)
	for _, n := range s.nodes {
		if n != nil {
			all = append(all, n.Proc)
		}
	}
	for _, p := range all {
		if p != nil && lab.Ended(p) == nil {
			list = append(list, p)
		}
	}
	return list
}

// openSubnet starts three nodes with these flags too and returns when every port is active. With a
// store of their own outside, it survives any of them.
func openSubnet(t *testing.T, sharedStore bool, more ...string) *subnet {
	t.Helper()
	s := startSubnet(t, sharedStore, more...)
	s.active(0, 1, 2)
	return s
}

// startSubnet starts three nodes with these flags too, which are not a subnet
// yet.
func startSubnet(t *testing.T, sharedStore bool, more ...string) *subnet {
	t.Helper()
	return startNodes(t, sharedStore, func(int) []string { return more })
}

// startNodes starts three nodes, each with flags of its own.
func startNodes(t *testing.T, sharedStore bool, flags func(node int) []string) *subnet {
	t.Helper()
	lab.NeedNetNS(t)
	tri, err := lab.MakeTriangle(9000)
	if err != nil {
		t.Fatal(err)
	}
	s := &subnet{Triangle: tri, t: t}
	t.Cleanup(s.close)
	var more []string
	if sharedStore {
		url := "http://" + s.Hub.V4 + ":2379"
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		s.store, err = lab.Start(lab.Cmd{NetNS: s.Hub.Name, Env: []string{storeEnv + "=" + t.TempDir() + " " + url},
			Args: []string{exe}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.Expect("store ready", fabricLimit); err != nil {
			t.Fatalf("%v\n%s", err, s.store.Output())
		}
		more = []string{"--store", url}
	}
	for i := range s.nodes {
		s.flags[i] = slices.Concat(s.Peers(i), flags(i), more)
		if s.nodes[i], err = lab.StartNode(s.Spaces[i], 0, s.flags[i]...); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *subnet) close() {
	for i, n := range s.nodes {
		if n == nil {
			continue
		}
		if s.t.Failed() {
			for _, c := range [][]string{{"sm"}, {"fabric", "topo"}, {"trunk"}, {"status"}, {"stat"}} {
				out, err := n.Weft(c...)
				s.t.Logf("node %d, weft %v (%v):\n%s", i, c, err, out)
			}
		}
		if err := n.Close(); err != nil {
			s.t.Errorf("node %d: %v", i, err)
		}
		if s.t.Failed() {
			s.t.Logf("node %d printed:\n%s", i, lab.Tail(n.Proc.Output(), 60))
		}
	}
	if s.store != nil {
		s.store.Signal(syscall.SIGTERM)
		if err := s.store.Wait(fabricLimit); err != nil {
			s.t.Errorf("store: %v\n%s", err, s.store.Output())
		}
	}
	if err := s.Triangle.Close(); err != nil {
		s.t.Error(err)
	}
}

// active waits for every port of some nodes, and for a subnet without problems
// that the master knows whole.
func (s *subnet) active(nodes ...int) {
	s.t.Helper()
	for _, i := range nodes {
		if out, err := s.nodes[i].Weft("wait", "--for=active", "--timeout", "20s"); err != nil {
			s.t.Fatalf("node %d: %v %s", i, err, out)
		}
	}
	var list []*lab.Node
	for _, i := range nodes {
		list = append(list, s.nodes[i])
	}
	s.until("one master knows every node and link as active", func() bool { return settled(list...) })
}

// settled reports whether one manager has the subnet of some nodes, each two
// joined by a trunk: the others wait, and it knows every link as active and
// every device with the LID it has.
func settled(nodes ...*lab.Node) bool {
	var v *api.Subnet
	for _, n := range nodes {
		var m api.Manager
		switch {
		case n.Query(&m, "sm") != nil:
			return false
		case m.State == "standby", m.State == "not active", m.State == "external": // the second where a store elects
		case m.State != "master" || v != nil:
			return false
		default:
			v = new(api.Subnet)
			if n.Query(v, "fabric", "topo") != nil {
				return false
			}
		}
	}
	links := len(nodes) + len(nodes)*(len(nodes)-1)/2 // ports of devices, and trunks
	if v == nil || len(v.Nodes) != 2*len(nodes) || len(v.Links) != links ||
		slices.ContainsFunc(v.Links, func(l api.FabricLink) bool { return l.State != "ACTIVE" }) {
		return false
	}
	lids := map[string]uint16{}
	for _, n := range v.Nodes {
		for _, p := range n.Ports {
			lids[p.GUID] = p.LID
		}
	}
	for _, n := range nodes {
		p, err := portOf(n, native)
		if err != nil || p.LID == 0 || lids[guid(p)] != p.LID {
			return false
		}
	}
	return true
}

// within is a bound as it is promised, and in a soak asserted. Elsewhere others
// may use the machine, and it may take three times as long.
func within(d time.Duration) time.Duration {
	if !lab.Soak {
		d *= 3
	}
	return d
}

// until waits for a condition, as long as these programs live and the subnet's processes that live now.
func (s *subnet) until(what string, ok func() bool, programs ...*lab.Proc) {
	s.t.Helper()
	peers := s.living()
	for _, p := range programs {
		peers = append(peers, p)
	}
	if err := lab.Until(what, fabricLimit, func() (bool, error) { return ok(), nil }, peers...); err != nil {
		s.t.Fatal(err)
	}
}

// master returns which of some nodes manages the subnet, -1 if none does.
func (s *subnet) master(nodes ...int) int {
	for _, i := range nodes {
		var m api.Manager
		if s.nodes[i].Query(&m, "sm") == nil && m.State == "master" {
			return i
		}
	}
	return -1
}

// device returns the port of the node's InfiniBand device.
func (s *subnet) device(i int, name string) api.Port {
	s.t.Helper()
	p, err := portOf(s.nodes[i], name)
	if err != nil {
		s.t.Fatalf("node %d: %v", i, err)
	}
	return p
}

// portOf returns the port of a device of a node.
func portOf(n *lab.Node, device string) (p api.Port, err error) {
	var list []api.Device
	if err := n.Query(&list, "dev"); err != nil {
		return p, err
	}
	for _, d := range list {
		if d.Name == device {
			return d.Ports[0], nil
		}
	}
	return p, fmt.Errorf("there is no %s", device)
}

// guid returns the GUID of a port: the lower half of its first GID.
func guid(p api.Port) string { return p.GIDs[0].GID[20:] }

// between is a testbed of two nodes for programs on an InfiniBand device.
func (s *subnet) between(server, client int, device string) *testbed {
	return &testbed{Testbed: lab.Testbed{Server: s.nodes[server], Client: s.nodes[client], Device: device}, mtu: 4096}
}

var pairsOfThree = [][2]int{{0, 1}, {0, 2}, {1, 2}}

// TestFabric: three nodes, each with a store and a manager of its own, agree on
// a master; programs of each two talk by LID.
func TestFabric(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	masters := 0
	for i := range s.nodes {
		var m api.Manager
		if err := s.nodes[i].Query(&m, "sm"); err != nil {
			t.Fatal(err)
		}
		if m.State == "master" {
			masters++
		}
	}
	if masters != 1 {
		t.Errorf("%d managers are master", masters)
	}
	t.Run("weft fabric topo -o", func(t *testing.T) {
		n := s.nodes[s.master(0, 1, 2)]
		for format, want := range map[string]string{"ibnetdiscover": "(?m)^Switch\\s+36 ", "dot": "(?m)^(di)?graph "} {
			if out, err := n.Weft("fabric", "topo", "-o", format); err != nil ||
				!regexp.MustCompile(want).MatchString(out) {
				t.Errorf("%s: %v\n%s", format, err, out)
			}
		}
	})
	t.Run("ibv_devinfo", func(t *testing.T) {
		p := s.device(0, native)
		var devs []api.Device
		if err := s.nodes[0].Query(&devs, "dev", "show", native); err != nil || len(devs) != 1 ||
			devs[0].SysImageGUID == devs[0].NodeGUID {
			t.Fatalf("%v, %+v", err, devs)
		}
		out, err := lab.Run(s.nodes[0].Program("ibv_devinfo", "-v", "-d", native), 20*time.Second)
		for _, w := range []string{`node_guid:\s*` + devs[0].NodeGUID, `sys_image_guid:\s*` + devs[0].SysImageGUID,
			`link_layer:\s*InfiniBand`, `state:\s*PORT_ACTIVE`, fmt.Sprintf(`port_lid:\s*%d\n`,
				p.LID), fmt.Sprintf(`sm_lid:\s*%d\n`, p.SMLID)} {
			if err != nil || p.LID == 0 || !regexp.MustCompile(w).MatchString(out) {
				t.Errorf("no %q (%v):\n%s", w, err, out)
			}
		}
	})
	t.Run("other nodes say who is master", func(t *testing.T) {
		m := s.master(0, 1, 2)
		out, err := s.nodes[(m+1)%3].Weft("fabric", "nodes")
		peer := s.TrunkAddr(m, (m+1)%3)
		if err == nil || !strings.Contains(out, "the master is ") || !strings.Contains(out, peer) ||
			!strings.Contains(out, "fix: weft fabric ") {
			t.Errorf("%v, want %s in:\n%s", err, peer, out)
		}
	})
	t.Run("diagnostics", func(t *testing.T) {
		needs(t, "ibstat", "saquery", "ibtracert")
		s.learn(t).diagnose(t)
	})
	for _, p := range pairsOfThree {
		t.Run(fmt.Sprintf("%d-%d", p[0], p[1]), func(t *testing.T) {
			b := s.between(p[0], p[1], native)
			switch {
			case lab.Soak:
				runInvocations(t, b, all)
			case p == pairsOfThree[0]:
				runInvocations(t, b, basic)
			default:
				for _, r := range [][]string{{"ibv_rc_pingpong", "-c"}, {"ibv_ud_pingpong", "-c", "-s", "1000"},
					{"ib_read_bw", "-n", "1000", "-F"}} {
					out := b.pair(t, 90*time.Second, r[0], r[1:]...)
					if why := checkOutput(r[0], out); why != "" {
						t.Errorf("%s: %s\n%s", r[0], why, out)
					}
				}
			}
		})
	}
	t.Run("verbcheck by LID", func(t *testing.T) {
		const group = "ff12:401b:ffff::7665:7201" // verbcheck's
		m := s.master(0, 1, 2)
		s.weft(m, "mcast", "join", group, guid(s.device(0, native)), guid(s.device(1, native)),
			guid(s.device(2, native)), "--mtu", "4096")
		mlid := 0
		s.until("copies for the group find their way", func() bool {
			var g []api.SubnetGroup
			var r []api.SwitchRoutes
			if s.nodes[m].Query(&g, "mcast", "groups", group) != nil || len(g[0].Members) != 3 ||
				s.nodes[m].Query(&r, "fabric", "routes") != nil {
				return false
			}
			mlid = int(g[0].MLID)
			routed := 0
			for _, x := range r {
				if slices.ContainsFunc(x.Multicast, func(v api.MulticastRoute) bool {
					return int(v.MLID) == mlid &&
						len(v.Ports) > 0
				}) {
					routed++
				}
			}
			return routed >= 3
		})
		for _, p := range pairsOfThree {
			if p == pairsOfThree[0] || lab.Soak {
				verbcheck(t, s.between(p[0], p[1], native), verbcheckLimit, nil,
					big("--lid", "-m", fmt.Sprint(mlid))...)
			}
		}
	})
}

// pkeys waits until a node's port has these keys.
func (s *subnet) pkeys(i int, want ...string) {
	s.t.Helper()
	s.until(fmt.Sprintf("node %d has the keys %v", i, want), func() bool {
		var got []string
		for _, k := range s.device(i, native).PKeys {
			got = append(got, k.PKey)
		}
		return slices.Equal(got, want)
	})
}

func (s *subnet) weft(i int, args ...string) {
	s.t.Helper()
	if out, err := s.nodes[i].Weft(args...); err != nil {
		s.t.Fatalf("weft %v: %v\n%s", args, err, out)
	}
}

// apart expects the programs of two nodes to fail without a common partition.
func (s *subnet) apart(t *testing.T, server, client int, program string, args ...string) {
	t.Helper()
	p, err := s.between(server, client, native).Start(nil, program, args...)
	defer p.Kill()
	if err != nil {
		t.Fatalf("%v%s", err, p.Outputs())
	}
	if err := p.Client.WaitBeside(p.Server, 60*time.Second); err == nil || errors.Is(err, lab.ErrTimeout) {
		t.Errorf("the client ended with %v%s", err, p.Outputs())
	}
}

// TestPartitions: ports talk within a partition, limited members to full ones
// only, and not at all without one.
func TestPartitions(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, true)
	m := s.master(0, 1, 2)
	var g [3]string
	for i := range g {
		g[i] = guid(s.device(i, native))
	}
	index := []string{"--pkey_index=1", "-F", "-n", "200"} // perftest's; the pingpongs have the default partition's
	meet := func(t *testing.T, server, client int, program string, args ...string) {
		t.Helper()
		s.between(server, client, native).pair(t, 60*time.Second, program, args...)
	}
	meet(t, 0, 2, "ibv_rc_pingpong", "-c")

	// The command works on any node: the configuration is in the store.
	s.weft(m, "pkey", "add", "0x8001", "--name", "red", g[0], g[1], "--yes")
	s.pkeys(0, "0x7fff", "0x8001")
	s.pkeys(1, "0x7fff", "0x8001")
	s.pkeys(2, "0x7fff")
	t.Run("members talk", func(t *testing.T) {
		meet(t, 0, 1, "ib_send_bw", index...)
		meet(t, 1, 0, "ib_write_bw", index...)
	})
	t.Run("limited members of the default partition do not", func(t *testing.T) {
		s.apart(t, 0, 1, "ibv_rc_pingpong", "-n", "10")
		s.apart(t, 0, 2, "ibv_rc_pingpong", "-n", "10")
	})

	s.weft((m+1)%3, "pkey", "add", "0x8001", g[1]+"=limited", g[2]+"=limited")
	s.pkeys(1, "0x7fff", "0x0001")
	s.pkeys(2, "0x7fff", "0x0001")
	t.Run("limited with full", func(t *testing.T) {
		meet(t, 0, 1, "ib_send_bw", index...)
		meet(t, 2, 0, "ib_send_bw", index...)
	})
	t.Run("limited with limited", func(t *testing.T) { s.apart(t, 1, 2, "ib_send_bw", index...) })

	s.weft((m+2)%3, "pkey", "del", "0x8001", "--yes")
	for i := range s.nodes {
		s.pkeys(i, "0xffff")
	}
	t.Run("without partitions", func(t *testing.T) { meet(t, 1, 2, "ibv_rc_pingpong", "-c") })
}

// traffic runs checked RC programs between two nodes, one pair after the other,
// until stop is called, which returns how many pairs ended well.
func (s *subnet) traffic(t *testing.T, server, client int) (rounds *atomic.Int32, stop func()) {
	rounds = new(atomic.Int32)
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			out, err := s.between(server, client, native).runPairRetrying(t, 60*time.Second, nil, "ibv_rc_pingpong",
				"-c", "-e", "-n", "2000")
			if why := checkOutput("ibv_", out); err != nil || why != "" {
				t.Errorf("other programs: %v %s", err, why)
				return
			}
			rounds.Add(1)
		}
	})
	return rounds, sync.OnceFunc(func() {
		close(end)
		wg.Wait()
	})
}

// TestMasterKilled: while the store lives, another manager takes over within
// five seconds, and programs of other nodes do not notice.
func TestMasterKilled(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, true)
	m := s.master(0, 1, 2)
	a, b := (m+1)%3, (m+2)%3
	before := [2]api.Port{s.device(a, native), s.device(b, native)}

	// One queue pair lives through all of it; others come and go.
	long, err := s.between(a, b, native).Start(nil, "ibv_rc_pingpong", "-c", "-n", "100000000")
	defer long.Kill()
	if err != nil {
		t.Fatalf("%v%s", err, long.Outputs())
	}
	rounds, stop := s.traffic(t, a, b)
	defer stop()
	s.until("the programs are at work", func() bool { return rounds.Load() > 0 })

	killed := time.Now()
	s.nodes[m].Proc.Kill()
	var next int
	s.until("another manager is master", func() bool { next = s.master(a, b); return next >= 0 })
	took := time.Since(killed)
	s.until("it has swept the subnet", func() bool {
		var v api.Subnet
		return s.nodes[next].Query(&v, "fabric", "topo") == nil && len(v.Nodes) == 4
	})
	t.Logf("node %d was master; node %d is after %v, and knows the subnet after %v", m, next, took, time.Since(killed))
	if took > within(5*time.Second) {
		t.Errorf("the take-over took %v", took)
	}
	had := rounds.Load()
	s.until("programs are at work under the new master", func() bool { return rounds.Load() > had+1 })
	stop()
	select {
	case <-long.Client.Done():
		t.Errorf("the programs that ran all the time ended%s", long.Outputs())
	default:
	}
	for i, n := range []int{a, b} {
		if p := s.device(n, native); p.LID != before[i].LID || p.State != "ACTIVE" {
			t.Errorf("node %d: LID %d became %d, port %s", n, before[i].LID, p.LID, p.State)
		}
	}

	// It comes back as one of the others, with the LIDs it had.
	long.Kill()
	if err := s.nodes[m].Again(s.flags[m]...); err != nil {
		t.Fatal(err)
	}
	s.active(0, 1, 2)
	s.between(m, a, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
}

// TestTrunkCut: traffic finds the way over the third node when a trunk's cable
// is pulled, or when a fault lets nothing pass in one direction of it.
func TestTrunkCut(t *testing.T) {
	t.Parallel()
	t.Run("cable", func(t *testing.T) {
		trunkCut(t, func(s *subnet, a, b int) (mend func()) {
			if err := s.Cut(a, b, true); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := s.Cut(a, b, false); err != nil {
					t.Fatal(err)
				}
			}
		})
	})
	t.Run("fault", func(t *testing.T) {
		trunkCut(t, func(s *subnet, a, b int) (mend func()) {
			s.weft(b, "fault", "add", "--link", "trunk", "--drop", "100", "--peer", s.TrunkAddr(a, b))
			return func() {
				var f []api.Fault
				if err := s.nodes[b].Query(&f, "fault", "list"); err != nil || len(f) != 1 || f[0].Dropped == 0 ||
					f[0].Dropped != f[0].Packets {
					t.Errorf("%v: %+v", err, f)
				}
				s.weft(b, "fault", "del", fmt.Sprint(f[0].ID))
			}
		})
	})
}

func trunkCut(t *testing.T, cut func(s *subnet, a, b int) (mend func())) {
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	a, b := m, (m+1)%3
	from, to := guid(s.device(a, native)), guid(s.device(b, native))
	hops := func() int {
		var p api.Path
		if s.nodes[m].Query(&p, "fabric", "routes", from, to) != nil {
			return 0
		}
		return len(p.Hops)
	}
	if h := hops(); h != 3 {
		t.Fatalf("%d hops between nodes with a trunk", h)
	}
	// The queue pairs wait long enough for a new way (8 times 1.07 s).
	p, err := s.between(a, b, native).Start(nil, "ib_write_bw", "-F", "-D", "4", "-u", "18", "-s", "4096")
	defer p.Kill()
	if err != nil {
		t.Fatalf("%v%s", err, p.Outputs())
	}
	if err := s.between(a, b, native).Working(p); err != nil {
		t.Fatalf("%v%s", err, p.Outputs())
	}
	was := time.Now()
	mend := cut(s, a, b)
	s.until("the way leads over the third node", func() bool { return hops() == 4 })
	took := time.Since(was)
	t.Logf("rerouted after %v", took)
	if took > within(time.Second) {
		t.Errorf("rerouting took %v", took)
	}
	if client, server := p.Wait(60 * time.Second); client != nil || server != nil {
		t.Errorf("programs at work when the trunk was cut: %v, %v%s", client, server, p.Outputs())
	}
	s.between(b, a, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
	for _, n := range []int{a, b} {
		var st api.Status
		if err := s.nodes[n].Query(&st, "status"); err != nil || !slices.ContainsFunc(st.Degraded,
			func(d api.Degraded) bool { return d.What == "trunk_down" }) {
			t.Errorf("the status of node %d does not tell of the trunk (%v): %+v", n, err, st.Degraded)
		}
	}
	mend()
	s.until("the direct way is back", func() bool { return hops() == 3 })
	s.between(a, b, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
}

// TestStarvedNode has a node not run for longer than its peers wait for it, again
// and again: its trunks go down and up each time. Queue pairs live, LIDs stay, and
// sweeps are few.
func TestStarvedNode(t *testing.T) {
	t.Parallel()
	times, seconds := 6, "8" // the programs are at work for longer than that
	if lab.Soak {
		times, seconds = 20, "24"
	}
	for name, k := range map[string]int{"the master": 0, "another": 1} {
		t.Run(name, func(t *testing.T) {
			s := openSubnet(t, false)
			m := s.master(0, 1, 2)
			x, y := (m+k)%3, (m+2)%3
			state := func() (lids [3]uint16, sweeps int, downs uint64) {
				t.Helper()
				for i := range lids {
					lids[i] = s.device(i, native).LID
				}
				var v api.Manager
				var trunks []api.Trunk
				if err := errors.Join(s.nodes[m].Query(&v, "sm"), s.nodes[y].Query(&trunks, "trunk")); err != nil {
					t.Fatal(err)
				}
				for _, w := range v.Sweeps {
					if w.Kind == "heavy" {
						sweeps++
					}
				}
				for _, w := range trunks {
					downs += w.Downs
				}
				return lids, sweeps, downs
			}
			lids, _, before := state()
			p, err := s.between(x, y, native).Start(nil, "ib_write_bw", "-F", "-D", seconds, "-u", "18", "-s", "4096")
			defer p.Kill()
			if err != nil {
				t.Fatalf("%v%s", err, p.Outputs())
			}
			if err := s.between(x, y, native).Working(p); err != nil {
				t.Fatalf("%v%s", err, p.Outputs())
			}
			from := time.Now()
			for range times {
				s.nodes[x].Proc.Signal(syscall.SIGSTOP)
				time.Sleep(400 * time.Millisecond)
				s.nodes[x].Proc.Signal(syscall.SIGCONT)
				time.Sleep(400 * time.Millisecond)
			}
			took := time.Since(from)
			s.active(0, 1, 2)
			after, sweeps, downs := state()
			t.Logf("%d downs, %d heavy sweeps in %v", downs-before, sweeps, took)
			if after != lids {
				t.Errorf("LIDs %v were %v", after, lids)
			}
			if downs == before {
				t.Error("no trunk went down")
			}
			if most := 20 + 10*int(took/time.Second); sweeps > most {
				t.Errorf("%d heavy sweeps in %v", sweeps, took)
			}
			if s.master(0, 1, 2) != m {
				t.Errorf("the master is node %d, was %d", s.master(0, 1, 2), m)
			}
			if client, server := p.Wait(60 * time.Second); client != nil || server != nil {
				t.Errorf("programs at work all the time: %v, %v%s", client, server, p.Outputs())
			}
			s.between(y, x, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
		})
	}
}

// TestTrunkFaults: what trunks lose, duplicate, reorder and corrupt the
// reliable service makes good.
func TestTrunkFaults(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	for i := range s.nodes {
		s.weft(i, "fault", "add", "--link", "trunk", "--drop", "1", "--duplicate", "1", "--reorder", "1", "--corrupt",
			"1", "--seed", fmt.Sprint(i+1))
	}
	for _, p := range pairsOfThree {
		b := s.between(p[0], p[1], native)
		b.pair(t, 90*time.Second, "ibv_rc_pingpong", "-c", "-n", "2000")
	}
	var f []api.Fault
	if err := s.nodes[0].Query(&f, "fault", "list"); err != nil || len(f) != 1 || f[0].Dropped == 0 ||
		f[0].Duplicated == 0 || f[0].Reordered == 0 || f[0].Corrupted == 0 {
		t.Errorf("%v: the fault did nothing: %+v", err, f)
	}
}

// TestNodesStartAgain: nodes keep their LIDs, also when all of them end.
func TestNodesStartAgain(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, true)
	var lids [3]uint16
	for i := range lids {
		lids[i] = s.device(i, native).LID
	}
	end := func(i int) {
		t.Helper()
		s.weft(i, "down")
		if err := s.nodes[i].Proc.Wait(fabricLimit); err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
	begin := func(i int) {
		t.Helper()
		if err := s.nodes[i].Again(s.flags[i]...); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		s.active(0, 1, 2)
		for i, want := range lids {
			if got := s.device(i, native).LID; got != want {
				t.Errorf("node %d had LID %d and has %d", i, want, got)
			}
		}
	}
	m := s.master(0, 1, 2)
	end((m + 1) % 3)
	begin((m + 1) % 3)
	check()
	for i := range lids {
		end(i)
	}
	for i := range lids {
		begin(2 - i) // another order than the first time
	}
	check()
	s.between(0, 1, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
}

// TestVirtualFunction: a device that is added becomes part of the subnet, and
// leaves it when it is deleted.
func TestVirtualFunction(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	n := (m + 1) % 3
	for _, i := range []int{n, m} {
		s.weft(i, "dev", "add", "vf1")
	}
	s.until("the function is active", func() bool {
		return s.device(n, "vf1").State == "ACTIVE" &&
			s.device(m, "vf1").State == "ACTIVE"
	})
	p := s.device(n, "vf1")
	if p.LID == 0 || p.LID == s.device(n, native).LID {
		t.Errorf("LID %d", p.LID)
	}
	s.between(n, m, "vf1").pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
	s.weft(n, "dev", "del", "vf1")
	s.until("the function is gone from the subnet", func() bool {
		var v api.Subnet
		return s.nodes[m].Query(&v, "fabric", "nodes") == nil && len(v.Nodes) == 7
	})
	out, err := lab.Run(s.nodes[n].Program("ibv_devices"), 20*time.Second)
	if err != nil || strings.Contains(out, "vf1") || !strings.Contains(out, native) {
		t.Errorf("%v\n%s", err, out)
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// stations are two nodes of a user without rights, with devices in virtual Ethernet switches and without any network
// interface for them.
type stations struct {
	*testbed
	t *testing.T
}

const (
	blueDevice = "blue0"
	// Indices of a device's GIDs: the link-local address, and then those it was given.
	localGID, v4GID, v6GID = 0, 1, 2
)

// openStations has blue0 on both nodes in one switch. mtu is that of its frames.
func openStations(t *testing.T, mtu int, flags ...string) *stations {
	t.Helper()
	flags = append(slices.Clone(flags), "--peer", peer, "--store", "memory", onSecond, "--sm", "off")
	s := &stations{testbed: openTestbed(t, 9000, false, lab.Nobody, flags...), t: t}
	s.mtu, s.Device, s.GID = portMTU(mtu), blueDevice, v4GID
	for _, n := range []*lab.Node{s.Server, s.Client} {
		if out, err := n.Weft("wait", "--for=active", "--timeout", "30s"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	s.weft(s.Server, "vesw", "create", "blue", "--mtu", fmt.Sprint(mtu))
	s.add(s.Server, "blue", blueDevice, "10.9.0.1/24,fd09::1/64")
	s.add(s.Client, "blue", blueDevice, "10.9.0.2/24,fd09::2/64")
	return s
}

func (s *stations) weft(n *lab.Node, args ...string) string {
	s.t.Helper()
	out, err := n.Weft(args...)
	if err != nil {
		s.t.Fatalf("weft %v: %v", args, err)
	}
	return out
}

// add adds a device, at the first node by the name of the switch, at the second, which has no manager, as it is told
// there, and waits until it is active.
func (s *stations) add(n *lab.Node, vesw, device, addrs string) (d api.Function) {
	s.t.Helper()
	segment := "vesw:" + vesw
	if n != s.Server {
		segment = "vesw"
	}
	if err := n.Query(&d, "dev", "add", device, "--segment", segment, "--addr", addrs); err != nil {
		s.t.Fatal(err)
	}
	if n != s.Server {
		s.weft(s.Server, "vesw", "port", "add", vesw, d.PortGUID)
	}
	s.until(device+" is active", func() bool { return s.port(n, device).State == "ACTIVE" })
	return d
}

// until waits for a condition, as long as both nodes live.
func (s *stations) until(what string, ok func() bool) {
	s.t.Helper()
	eventually(s.t, what, ok, s.Server.Proc, s.Client.Proc)
}

// port is the port of a device.
func (s *stations) port(n *lab.Node, device string) api.Port {
	s.t.Helper()
	var list []api.Device
	if err := n.Query(&list, "dev"); err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(d api.Device) bool { return d.Name == device })
	if i < 0 {
		s.t.Fatalf("there is no %s: %+v", device, list)
	}
	return list[i].Ports[0]
}

// counter is that of a device's link.
func (s *stations) counter(n *lab.Node, device, name string) (v uint64) {
	s.t.Helper()
	list, err := n.Counters()
	if err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(c api.Counter) bool {
		return c.Scope == api.ScopeLink && c.Instance == device &&
			c.Name == name
	})
	if i < 0 {
		s.t.Fatalf("%s has no counter %s", device, name)
	}
	return list[i].Value
}

// TestVESWDevices: programs of two nodes use devices in a virtual Ethernet switch, by all kinds of addresses, and
// no others.
func TestVESWDevices(t *testing.T) {
	t.Parallel()
	s := openStations(t, 1500)
	if p := s.port(s.Server, blueDevice); p.LinkLayer != "Ethernet" || p.ActiveMTU != 1024 ||
		p.Segment != "vesw:blue" || p.LID != 0 || len(p.GIDs) != 3 ||
		!strings.HasPrefix(p.GIDs[0].Address, "fe80::") || p.GIDs[1].Address != "10.9.0.1" ||
		p.GIDs[2].Address != "fd09::1" || !p.Ethernet.Carrier {
		t.Errorf("%+v", p)
	}
	for i, name := range []string{"link-local", "IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			s.GID = i
			defer func() { s.GID = v4GID }()
			for _, r := range []invocation{{"ibv_rc_pingpong", "-c", true}, {"ibv_uc_pingpong", "-c", true},
				{"ibv_ud_pingpong", "-c -s 1000", true}} {
				if i != v4GID && !lab.Soak && r.program != "ibv_rc_pingpong" {
					continue
				}
				args := strings.Fields(r.args)
				if i == localGID {
					args = append(args, "-g", "0") // the testbed takes index 0 for none
				}
				if out := s.pair(t, time.Minute, r.program, args...); checkOutput(r.program, out) != "" {
					t.Errorf("%s\n%s", r.name(), out)
				}
			}
		})
	}
	t.Run("perftest", func(t *testing.T) {
		for _, r := range []invocation{{"ib_write_bw", "-n 1000", true}, {"ib_send_lat", "-n 500", true},
			{"ib_read_bw", "-n 1000", false}, {"ib_atomic_lat", "-n 500", false}} {
			if !r.basic && !lab.Soak {
				continue
			}
			if out := s.pair(t, time.Minute, r.program, append(strings.Fields(r.args),
				"-F")...); checkOutput(r.program, out) != "" {
				t.Errorf("%s\n%s", r.name(), out)
			}
		}
	})
	t.Run("verbcheck", func(t *testing.T) {
		args := []string{"-t", "rc.send*", "-t", "rc.write*", "-t", "rc.read*", "-t", "rc.atomic*", "-t", "uc.*",
			"-t", "ud.*", "-t", "mcast.*"}
		if lab.Soak {
			args = nil
		}
		verbcheck(t, s.testbed, verbcheckLimit, nil, args...)
	})
	t.Run("one node", func(t *testing.T) {
		s.add(s.Server, "blue", "blue1", "10.9.0.3/24,fd09::3/64")
		one := testbed{Testbed: lab.Testbed{Server: s.Server, Client: s.Server, Device: blueDevice,
			ClientDevice: "blue1", GID: v6GID}, mtu: s.mtu}
		for _, r := range []invocation{{"ibv_rc_pingpong", "-c", true}, {"ib_write_bw", "-n 1000 -F", true}} {
			if out := one.pair(t, time.Minute, r.program, strings.Fields(r.args)...); checkOutput(r.program,
				out) != "" {
				t.Errorf("%s\n%s", r.name(), out)
			}
		}
	})
	t.Run("told", func(t *testing.T) {
		p := s.port(s.Client, blueDevice)
		i := slices.IndexFunc(p.Ethernet.Neighbours, func(v api.Neighbour) bool { return v.Address == "10.9.0.1" })
		if i < 0 || p.Ethernet.Neighbours[i].State != "reachable" || p.Ethernet.Neighbours[i].MAC != s.port(s.Server,
			blueDevice).Ethernet.MAC {
			t.Errorf("%+v", p.Ethernet)
		}
		if out := s.weft(s.Client, "dev", "show", blueDevice); !strings.Contains(out,
			"blue0 in vesw: VESW 1, MAC ") || !strings.Contains(out, "reachable") {
			t.Error(out)
		}
		if out := s.weft(s.Server, "status"); !strings.Contains(out,
			"blue0: Ethernet vesw:blue port ACTIVE, mtu 1024, 3 gids") {
			t.Error(out)
		}
		// No privilege was needed, nor was any interface made.
		if out, err := lab.Run(lab.Cmd{NetNS: s.Server.NetNS.Name, Args: []string{"ip", "-o", "link"}},
			time.Minute); err != nil || strings.Count(out, "\n") != 2 {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("apart", s.apart)
	t.Run("gone and back", s.disabled)
}

// apart: the same addresses in another switch are others'.
func (s *stations) apart(t *testing.T) {
	s.t = t
	s.weft(s.Server, "vesw", "create", "red")
	s.add(s.Client, "red", "red0", "10.9.0.9/24")
	before := s.counter(s.Server, blueDevice, "rcvd_packets")
	server, err := lab.Start(s.Server.Program("ibv_rc_pingpong", "-d", blueDevice, "-g", "1", "-p", "19701"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	if err := server.Listening(19701, 20*time.Second); err != nil {
		t.Fatalf("%v\n%s", err, server.Output())
	}
	out, err := lab.RunBeside(server, s.Client.Program("ibv_rc_pingpong", "-d", "red0", "-g", "1", "-p", "19701",
		s.Server.NetNS.V4), time.Minute)
	if err == nil || !strings.Contains(out, lab.GaveUp) {
		t.Errorf("%v\n%s", err, out)
	}
	s.until("nobody answers", func() bool {
		return strings.Contains(s.weft(s.Client, "status"),
			"neighbour_unreachable: red0: no station in VESW 2 answers for 10.9.0.1")
	})
	if n := s.counter(s.Server, blueDevice, "rcvd_packets"); n != before {
		t.Errorf("%d packets came", n-before)
	}
	if n := s.counter(s.Client, "red0", "drop_unreachable"); n == 0 {
		t.Error("nothing was dropped")
	}
	// The same address may be in both, and each has its own neighbours.
	s.add(s.Server, "red", "red1", "10.9.0.1/24")
	both := testbed{Testbed: lab.Testbed{Server: s.Server, Client: s.Client, Device: "red1", ClientDevice: "red0",
		GID: v4GID}, mtu: s.mtu}
	if out := both.pair(t, time.Minute, "ibv_rc_pingpong", "-c"); checkOutput("ibv_rc_pingpong", out) != "" {
		t.Error(out)
	}
	s.weft(s.Server, "dev", "del", "red1", "--yes")
	if out, err := s.Server.Weft("dev", "show", "red1"); err == nil {
		t.Errorf("it is there still:\n%s", out)
	}
	if out := s.weft(s.Server, "vesw", "show", "red"); strings.Count(out, "forwarding") != 1 {
		t.Errorf("its port is there still:\n%s", out)
	}
}

// disabled: a port that is taken down is down for programs, and comes back with its addresses.
func (s *stations) disabled(t *testing.T) {
	s.t = t
	s.weft(s.Server, "dev", "set", blueDevice, "--enabled=false")
	s.until("the port is down", func() bool { return s.port(s.Server, blueDevice).State == "DOWN" })
	s.weft(s.Server, "dev", "set", blueDevice, "--enabled")
	s.until("the port is up", func() bool { return s.port(s.Server, blueDevice).State == "ACTIVE" })
	if out := s.pair(t, time.Minute, "ibv_rc_pingpong", "-c"); checkOutput("ibv_rc_pingpong", out) != "" {
		t.Error(out)
	}
	// What the manager takes out of the switch has no carrier.
	s.weft(s.Server, "vesw", "port", "del", "blue", blueDevice, "--yes")
	s.until("the port is down", func() bool {
		p := s.port(s.Server, blueDevice)
		return p.State == "DOWN" && !p.Ethernet.Carrier && p.Ethernet.CarrierReason != ""
	})
	s.weft(s.Server, "vesw", "port", "add", "blue", blueDevice)
	s.until("the port is up", func() bool { return s.port(s.Server, blueDevice).State == "ACTIVE" })
	if out := s.pair(t, time.Minute, "ibv_rc_pingpong", "-c"); checkOutput("ibv_rc_pingpong", out) != "" {
		t.Error(out)
	}
}

// TestVESWDevicesJumbo: the MTU of a switch is the port's, and every packet takes the full path on one node, too.
func TestVESWDevicesJumbo(t *testing.T) {
	t.Parallel()
	s := openStations(t, 4200, "--wire-local", "--lanes", "2")
	if p := s.port(s.Server, blueDevice); p.ActiveMTU != 4096 {
		t.Errorf("%+v", p)
	}
	out := s.pair(t, time.Minute, "ibv_rc_pingpong", "-c", "-s", "1000003", "-n", "20", "-r", "8", "-m", "4096")
	if checkOutput("ibv_rc_pingpong", out) != "" {
		t.Error(out)
	}
	one := testbed{Testbed: lab.Testbed{Server: s.Server, Client: s.Server, Device: blueDevice, GID: v4GID}, mtu: s.mtu}
	verbcheck(t, &one, verbcheckLimit, nil, "-t", "rc.send*", "-t", "rc.write*", "-t", "ud.*", "-t", "mcast.*")
	if n := s.counter(s.Server, blueDevice, "sent_packets"); n != 0 {
		t.Logf("%d packets by frames", n)
	}
}

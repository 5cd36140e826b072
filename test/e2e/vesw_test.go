// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/test/lab"
)

// framesEnv has this binary be a program of raw Ethernet frames: it sends some, or prints those that it receives.
const framesEnv = "WEFT_E2E_FRAMES"

// testType is the EtherType of frames that programs here send (IEEE 802, local experimental).
const testType = 0x88b5

// serveFrames is that program: "listen IF", or "send IF MAC TEXT COUNT SIZE TAG", where SIZE is
// that of what follows the header and TAG a VLAN tag's control information, -1 for none.
func serveFrames(what string) int {
	f := strings.Fields(what)
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	i, err := net.InterfaceByName(f[1])
	if err != nil {
		return fail(err)
	}
	be := binary.BigEndian
	var proto [2]byte
	be.PutUint16(proto[:], testType)
	if f[0] == "listen" {
		be.PutUint16(proto[:], unix.ETH_P_ALL) // others get no tags of VLANs that the kernel does not know
	}
	sock, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(binary.NativeEndian.Uint16(proto[:])))
	if err == nil {
		err = unix.Bind(sock, &unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: binary.NativeEndian.Uint16(proto[:])})
	}
	if err != nil {
		return fail(err)
	}
	if f[0] == "listen" {
		// The kernel takes tags out, and passes them beside the frame.
		if err := unix.SetsockoptInt(sock, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
			return fail(err)
		}
		fmt.Println("listening")
		b, oob := make([]byte, 16<<10), make([]byte, 256)
		for {
			n, m, _, _, err := unix.Recvmsg(sock, b, oob, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			} else if err != nil {
				return fail(err)
			}
			if n < 14 || be.Uint16(b[12:]) != testType {
				continue
			}
			text, _, _ := bytes.Cut(b[14:n], []byte{0})
			fmt.Printf("received %s in %d tag %d\n", text, n, tagBeside(oob[:m]))
		}
	}
	var count, size, tag int
	to, err := net.ParseMAC(f[2])
	if err == nil {
		_, err = fmt.Sscan(strings.Join(f[4:], " "), &count, &size, &tag)
	}
	if err != nil {
		return fail(err)
	}
	frame := append(bytes.Clone(to), i.HardwareAddr...)
	if tag >= 0 {
		frame = be.AppendUint16(be.AppendUint16(frame, 0x8100), uint16(tag))
	}
	frame = be.AppendUint16(frame, testType)
	text := make([]byte, size)
	copy(text, f[3])
	frame = append(frame, text...)
	for range count {
		if _, err := unix.Write(sock, frame); err != nil {
			return fail(err)
		}
	}
	return 0
}

// tagBeside returns the tag's control information in a packet socket's control messages, -1 where there
// is none.
func tagBeside(oob []byte) int {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	for _, m := range list {
		// struct tpacket_auxdata: status at 0, vlan_tci at 16.
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20 &&
			binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			return int(binary.NativeEndian.Uint16(m.Data[16:]))
		}
	}
	return -1
}

// frames is a command that has this binary be such a program at a node.
func (s *subnet) frames(i int, what ...any) lab.Cmd {
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	return lab.Cmd{NetNS: s.Spaces[i].Name, Env: []string{framesEnv + "=" + strings.TrimSpace(fmt.Sprintln(what...))},
		Args: []string{exe}, Peers: s.living()}
}

// startListener starts to listen for frames at an interface of a node.
func (s *subnet) startListener(t *testing.T, i int, ifname string) *lab.Proc {
	t.Helper()
	p, err := lab.Start(s.frames(i, "listen", ifname))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if out, err := p.Expect("listening", fabricLimit); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return p
}

// sendFrames sends frames from an interface of a node.
func (s *subnet) sendFrames(t *testing.T, i int, ifname, to, text string, count, size, tag int) {
	t.Helper()
	if out, err := lab.Run(s.frames(i, "send", ifname, to, text, count, size, tag), fabricLimit); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

const broadcast = "ff:ff:ff:ff:ff:ff"

// vesw makes a virtual Ethernet switch of ports of nodes' first InfiniBand devices, and waits until all
// of them forward. It returns its identifier.
func (s *subnet) vesw(by int, name string, create []string, nodes ...int) (id int) {
	s.t.Helper()
	s.weft(by, append([]string{"vesw", "create", name}, create...)...)
	args := []string{"vesw", "port", "add", name}
	for _, i := range nodes {
		args = append(args, guid(s.device(i, native)))
	}
	s.weft(by, args...)
	var list []api.VESW
	if err := s.nodes[by].Query(&list, "vesw", "list"); err != nil {
		s.t.Fatal(err)
	}
	at := slices.IndexFunc(list, func(v api.VESW) bool { return v.Name == name })
	if at < 0 {
		s.t.Fatalf("no %s in %+v", name, list)
	}
	for _, i := range nodes {
		s.forwards(i, list[at].ID)
	}
	return list[at].ID
}

// ports are the ports of a node.
func (s *subnet) ports(i int) (list []api.VESWInterface) {
	s.t.Helper()
	if err := s.nodes[i].Query(&list, "vesw", "interfaces"); err != nil {
		s.t.Fatal(err)
	}
	return list
}

// portIn returns the port of a node in a VESW, with no VESW where there is none.
func (s *subnet) portIn(i, id int) (v api.VESWInterface) {
	s.t.Helper()
	for _, p := range s.ports(i) {
		if p.VESW == id {
			v = p
		}
	}
	return v
}

func (s *subnet) forwards(i, id int) {
	s.t.Helper()
	s.until(fmt.Sprintf("node %d forwards in VESW %d", i, id),
		func() bool { return s.portIn(i, id).State == api.StateForwarding })
}

// addressed gives an interface of a node addresses, and an MTU unless that is 0.
func (s *subnet) addressed(i int, ifname string, mtu int, addrs ...string) {
	s.t.Helper()
	for _, a := range addrs {
		s.mustIn(i, "ip", "addr", "add", a, "dev", ifname, "nodad")
	}
	if mtu != 0 {
		s.mustIn(i, "ip", "link", "set", ifname, "mtu", fmt.Sprint(mtu))
	}
}

// veswStats are the counters of an interface of a node.
func (s *subnet) veswStats(i int, ifname string) map[string]uint64 {
	s.t.Helper()
	var list []api.Counter
	if err := s.nodes[i].Query(&list, "vesw", "stats", ifname); err != nil {
		s.t.Fatal(err)
	}
	m := map[string]uint64{}
	for _, c := range list {
		m[c.Name] = c.Value
	}
	return m
}

// bounces counts how often an interface of a node gained and lost its carrier.
func (s *subnet) bounces(i int, ifname string) string {
	s.t.Helper()
	return strings.TrimSpace(s.mustIn(i, "cat", "/sys/class/net/"+ifname+"/carrier_changes"))
}

// first is the interface of the first port of a node's first InfiniBand device.
const first = "opa1v0"

// TestVESW: hosts of three nodes are on two virtual Ethernet switches, two of them on both.
func TestVESW(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, true, "--trunk-security", "none") // packets are forged
	m := s.master(0, 1, 2)
	red := s.vesw(m, "red", []string{"--mtu", "9000"}, 0, 1, 2)
	blue := s.vesw(m, "blue", nil, 0, 1)
	const second = "opa1v1"
	for i := range s.nodes {
		s.addressed(i, first, 0, v4(i)+"/24", v6(i)+"/64")
	}
	for i := range 2 {
		s.addressed(i, second, 0, fmt.Sprintf("10.96.0.%d/24", i+1))
	}
	for _, p := range pairsOfThree {
		s.reaches(p[0], v4(p[1]))
		s.reaches(p[1], v6(p[0]))
	}
	s.reaches(0, "10.96.0.2")
	t.Run("ping", func(t *testing.T) {
		for _, p := range pairsOfThree {
			for _, addr := range []string{v4(p[0]), v6(p[0])} {
				if out, err := s.in(p[1], "ping", "-c", "5", "-i", "0.05", addr); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			}
		}
	})
	t.Run("apart", func(t *testing.T) { s.apartVESWs(t, red, blue) })
	t.Run("forged", func(t *testing.T) { s.forgedIDs(t, red, blue) })
	t.Run("VLAN and counters", s.taggedFrames)
	t.Run("multicast", func(t *testing.T) {
		for _, group := range []string{"239.1.2.3:7000", "[ff02::4242]:7000"} {
			s.veswGroup(t, group, 1, 2)
		}
	})
	t.Run("iperf3", func(t *testing.T) {
		for _, args := range [][]string{{v4(1), "-n", "64M"}, {v4(2), "-n", "32M", "-R"}, {v6(1), "-n", "16M", "-P",
			"4"}, {v4(1), "-u", "-b", "20M", "-n", "2M"}} {
			server := 1
			if args[0] == v4(2) {
				server = 2
			}
			r := s.iperf(t, server, 0, args[0], args[1:]...)
			if args[1] == "-u" {
				if r.End.Sum.Packets == 0 || r.End.Sum.LostPackets*2 > r.End.Sum.Packets {
					t.Errorf("%v: %+v", args, r)
				}
			} else if r.End.SumSent.Bytes < 16<<20 || r.End.SumReceived.Bytes == 0 {
				t.Errorf("%v: %+v", args, r)
			}
		}
	})
	t.Run("jumbo", func(t *testing.T) {
		const head = 28 // IPv4 and ICMP
		for i := range s.nodes {
			s.addressed(i, first, 9000)
			s.until("the port is as its interface", func() bool { return s.portIn(i, red).MTU == 9000 })
		}
		for _, p := range pairsOfThree {
			if out, err := s.in(p[0], "ping", "-c", "1", "-M", "do", "-s", fmt.Sprint(9000-head),
				v4(p[1])); err != nil {
				t.Errorf("a frame of the MTU: %v\n%s", err, out)
			}
		}
		if r := s.iperf(t, 2, 1, v4(2), "-n", "64M"); r.End.SumSent.Bytes < 64<<20 {
			t.Errorf("%+v", r)
		}
		if n := s.veswStats(1, first)["tx_1519_max"]; n == 0 {
			t.Error("no frame was long")
		}
		// No more than the switch carries.
		s.in(1, "ip", "link", "set", first, "mtu", "9100")
		s.until("the MTU is what the switch carries", func() bool {
			return strings.Contains(s.mustIn(1, "ip", "link", "show", first), "mtu 9000 ")
		})
	})
	t.Run("removed by somebody", func(t *testing.T) {
		s.mustIn(2, "ip", "link", "del", first)
		s.until("the interface is made anew", func() bool {
			_, err := s.in(2, "ip", "link", "show",
				first)
			return err == nil
		})
		s.forwards(2, red)
		s.addressed(2, first, 0, v4(2)+"/24")
		s.reaches(0, v4(2))
	})
	t.Run("named", func(t *testing.T) {
		s.weft(1, "vesw", "attach", native, "--vesw", fmt.Sprint(blue), "--name", "lab0")
		s.addressed(1, "lab0", 0, "10.96.0.2/24")
		s.reaches(0, "10.96.0.2")
		s.weft(1, "vesw", "detach", "lab0")
		s.until("the port has its own name again", func() bool { return s.portIn(1, blue).Name == second })
	})
	t.Run("gateway", s.veswGateway)
	t.Run("delete", func(t *testing.T) {
		s.weft(m, "vesw", "delete", "blue", "--yes")
		for i := range 2 {
			s.until("the port goes with its interface", func() bool {
				_, err := s.in(i, "ip", "link", "show", second)
				return err != nil && s.portIn(i, blue).VESW == 0
			})
		}
		s.reaches(0, v4(1))
	})
}

// veswGateway has a host that is not on the fabric reached by a gateway, and reach others.
func (s *subnet) veswGateway(t *testing.T) {
	m := s.master(0, 1, 2)
	s.mustIn(2, "ip", "link", "add", "out0", "type", "veth", "peer", "name", "host0", "netns", s.Hub.Name)
	defer s.in(2, "ip", "link", "del", "out0")
	outside := func(args ...string) (string, error) {
		return lab.Run(lab.Cmd{NetNS: s.Hub.Name, Args: args, Peers: s.living()}, fabricLimit)
	}
	for _, args := range [][]string{{"ip", "addr", "add", "10.98.0.9/24", "dev", "host0"},
		{"ip", "link", "set", "host0", "up"}} {
		if out, err := outside(args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	s.mustIn(2, "ip", "link", "set", "out0", "up")
	id := s.vesw(m, "campus", nil, 0)
	s.weft(2, "vesw", "attach", native, "--vesw", fmt.Sprint(id), "--gateway", "out0")
	s.weft(m, "vesw", "port", "add", "--gateway", "campus", guid(s.device(2, native)))
	s.forwards(2, id)
	name := s.portIn(0, id).Name
	s.addressed(0, name, 0, "10.98.0.1/24")
	s.reaches(0, "10.98.0.9")
	if out, err := outside("ping", "-c", "3", "-i", "0.05", "10.98.0.1"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if v := s.portIn(2, id); v.Backend != api.BackendGateway || v.Name != "out0" {
		t.Errorf("%+v", v)
	}
	s.weft(m, "vesw", "delete", "campus", "--yes")
	s.until("the gateway goes", func() bool { return s.portIn(2, id).VESW == 0 })
	s.mustIn(2, "ip", "link", "show", "out0") // which was there before
}

// apartVESWs has frames to all pass both switches, each of which is received on its own alone.
func (s *subnet) apartVESWs(t *testing.T, red, blue int) {
	listeners := map[string][]*lab.Proc{
		first:    {s.startListener(t, 1, first), s.startListener(t, 2, first)},
		"opa1v1": {s.startListener(t, 1, "opa1v1")},
	}
	const first, second = "opa1v0", "opa1v1"
	mac := s.portIn(2, red).MAC
	s.until("both are received", func() bool {
		// Of the other switch first, to all and to a port that is not there.
		s.sendFrames(t, 0, second, broadcast, "blue", 1, 100, -1)
		s.sendFrames(t, 0, second, mac, "stray", 1, 100, -1)
		s.sendFrames(t, 0, first, broadcast, "red", 1, 100, -1)
		for name, want := range map[string]string{first: "received red in", second: "received blue in"} {
			for _, p := range listeners[name] {
				if !strings.Contains(p.Output(), want) {
					return false
				}
			}
		}
		return true
	})
	for name, other := range map[string]string{first: "blue", second: "red"} {
		for _, p := range listeners[name] {
			if out := p.Output(); strings.Contains(out, other) || strings.Contains(out, "stray") {
				t.Errorf("received on %s:\n%s", name, out)
			}
		}
	}
}

// taggedFrames has tagged frames pass, and be counted one by one.
func (s *subnet) taggedFrames(t *testing.T) {
	p := s.startListener(t, 1, first)
	to := s.ports(1)[0].MAC
	const count, size, tag = 20, 1000, 5<<13 | 7
	round, wrong := 0, ""
	try := func() bool {
		was := [2]map[string]uint64{s.veswStats(0, first), s.veswStats(1, first)}
		round++
		s.sendFrames(t, 0, first, to, fmt.Sprintf("tagged%d", round), count, size, tag)
		received := fmt.Sprintf("received tagged%d in %d tag %d\n", round, 14+size, tag)
		if err := lab.Until("all are received", fabricLimit/10, func() (bool, error) {
			return strings.Count(p.Output(), received) >= count, nil
		}, append(s.living(), p)...); err != nil {
			wrong = fmt.Sprintf("%v: %s", err, p.Output())
			return false
		}
		is := [2]map[string]uint64{s.veswStats(0, first), s.veswStats(1, first)}
		wrong = ""
		for i, dir := range []string{"tx", "rx"} {
			for _, name := range []string{dir + "_vlan", dir + "_512_1023"} {
				if n := is[i][name] - was[i][name]; n != count {
					wrong += fmt.Sprintf("node %d counted %d %s\n", i, n, name)
				}
			}
			if n := is[i][dir+"_bytes"] - was[i][dir+"_bytes"]; n < count*(18+size+4) {
				wrong += fmt.Sprintf("node %d counted %d octets\n", i, n)
			}
			for name, v := range is[i] {
				if (strings.Contains(name, "errors") || strings.HasPrefix(name, "rx_bad")) && v != was[i][name] {
					wrong += fmt.Sprintf("node %d: %s rose by %d\n", i, name, v-was[i][name])
				}
			}
		}
		return wrong == ""
	}
	// A trunk loses frames when a node gets no processor for long: then once more.
	if err := lab.Until("tagged frames pass", fabricLimit, func() (bool, error) { return try(), nil },
		append(s.living(), p)...); err != nil {
		t.Fatalf("%v: %s", err, wrong)
	}
}

// veswGroup has some nodes listen to a group and node 0 speak.
func (s *subnet) veswGroup(t *testing.T, group string, nodes ...int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := func(i int, verb string) lab.Cmd {
		return lab.Cmd{NetNS: s.Spaces[i].Name, Env: []string{groupEnv + "=" + verb + " " + first + " " + group},
			Args: []string{exe}}
	}
	if strings.HasPrefix(group, "239") {
		s.mustIn(0, "ip", "route", "replace", "239.0.0.0/8", "dev", first)
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
	}
	s.until("all have received", func() bool {
		if out, err := lab.Run(program(0, "send"), fabricLimit); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return !slices.ContainsFunc(listeners, func(p *lab.Proc) bool {
			return !strings.Contains(p.Output(),
				"says "+groupHi)
		})
	})
}

// TestVESWMasterKilled: ports go on while another Ethernet Manager takes over, none bounces, and the new one
// makes new switches. What the lost node had is forgotten.
func TestVESWMasterKilled(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, true)
	m := s.master(0, 1, 2)
	a, b := (m+1)%3, (m+2)%3
	red := s.vesw(m, "red", nil, 0, 1, 2)
	s.weft(m, "vesw", "attach", native, "--vesw", fmt.Sprint(red), "--name", "lab0")
	s.addressed(m, "lab0", 0, v4(m)+"/24")
	for _, i := range []int{a, b} {
		s.addressed(i, first, 0, v4(i)+"/24")
	}
	// A MAC of its own, which others have to be told of.
	const own = "52:54:00:91:91:91"
	s.mustIn(m, "ip", "link", "set", "lab0", "address", own)
	for _, i := range []int{a, b} {
		s.until("the MAC is known", func() bool { return s.portIn(i, red).Known == 1 })
		s.reaches(i, v4(m))
	}
	s.reaches(a, v4(b))
	was := [2]string{s.bounces(a, first), s.bounces(b, first)}
	x := s.stream(t, a, b)
	s.nodes[m].Proc.Kill()
	killed := time.Now()
	s.until("another manager is master", func() bool { return s.master(a, b) >= 0 })
	n := s.master(a, b)
	t.Logf("master after %v", time.Since(killed))
	s.vesw(n, "green", nil, a, b)
	if took := time.Since(killed); lab.Soak && took > 5*time.Second {
		t.Errorf("a new switch forwards %v after the master was lost, 5 s are allowed", took)
	} else {
		t.Logf("a new switch forwards %v after the master was lost", took)
	}
	x.more("iperf3 is at work under the new master", 3)
	for _, i := range []int{a, b} {
		s.until("the lost node's MAC is forgotten", func() bool { return s.portIn(i, red).Known == 0 })
	}
	s.until("the lost port is absent", func() bool {
		var v api.VESW
		return s.nodes[n].Query(&v, "vesw", "show", "red") == nil && slices.ContainsFunc(v.Ports,
			func(p api.VESWPort) bool { return p.State == "absent" })
	})
	s.addressed(a, "opa1v1", 0, "10.97.0.1/24")
	s.addressed(b, "opa1v1", 0, "10.97.0.2/24")
	s.reaches(a, "10.97.0.2")
	x.more("iperf3 is at work to the end", 1)
	if is := [2]string{s.bounces(a, first), s.bounces(b, first)}; is != was {
		t.Errorf("carriers changed: %v, %v", was, is)
	}
	x.end(t)
	// The lost node comes back, and so does its port.
	if err := s.nodes[m].Again(s.flags[m]...); err != nil {
		t.Fatal(err)
	}
	s.active(0, 1, 2)
	s.forwards(m, red)
	s.addressed(m, "lab0", 0, v4(m)+"/24")            // it is named as it was
	s.mustIn(a, "ip", "neigh", "flush", "dev", first) // its MAC is another now
	s.reaches(a, v4(m))
}

// TestVESWNetstack: a user without rights on the host's network is on a virtual Ethernet switch by an IP stack in
// the node, and its status has the fix.
func TestVESWNetstack(t *testing.T) {
	t.Parallel()
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
	var flags [2][]string
	for i := range nodes {
		flags[i] = []string{"--store", "memory", "--peer", tri.TrunkAddr(1-i, i)}
		if i > 0 {
			flags[i] = append(flags[i], "--sm", "off")
		}
		if nodes[i], err = lab.StartNode(tri.Spaces[i], lab.Nobody, flags[i]...); err != nil {
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
	weft := func(i int, args ...string) {
		t.Helper()
		if out, err := nodes[i].Weft(args...); err != nil {
			t.Fatalf("weft %v: %v\n%s", args, err, out)
		}
	}
	weft(0, "vesw", "create", "lab", "--id", "5")
	for _, n := range nodes {
		p, err := portOf(n, native)
		if err != nil {
			t.Fatal(err)
		}
		weft(0, "vesw", "port", "add", "lab", guid(p))
	}
	// Neither may make an interface.
	for i, n := range nodes {
		if err := lab.Until("the status names the fix", fabricLimit, func() (bool, error) {
			st, err := n.Status()
			return slices.ContainsFunc(st.Degraded, func(d api.Degraded) bool {
				return d.What == "vesw_no_interface" && strings.Contains(d.Fix, "weft vesw netstack weft_ib0 --vesw 5")
			}), err
		}, n.Proc); err != nil {
			out, _ := n.Weft("status")
			t.Fatalf("node %d: %v:\n%s", i, err, out)
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
		if what != "" {
			if out, err := p.Expect(what, fabricLimit); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		return p
	}
	stack := func(i int, args ...string) *lab.Proc {
		t.Helper()
		return start("ready", user(i, append([]string{lab.Bin("weft"), "vesw", "netstack", "--dir", nodes[i].Dir,
			native, "--vesw", "5", "--addr", v4(i) + "/24"}, args...)...))
	}
	dir := t.TempDir()
	os.Chmod(filepath.Dir(dir), 0o755)
	os.Chmod(dir, 0o777)
	file := bytes.Repeat([]byte("all octets of the file arrive\n"), 100_000)
	if err := os.WriteFile(filepath.Join(dir, "file"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "copy")
	web := start("", user(0, "busybox", "httpd", "-f", "-p", "127.0.0.1:8000", "-h", dir))
	if err := web.Listening(8000, fabricLimit); err != nil {
		t.Fatal(err)
	}
	a := stack(0, "-R", "tcp:"+v4(0)+":80=127.0.0.1:8000")
	b := stack(1, "-L", "tcp:127.0.0.1:8080="+v4(0)+":80", "--socks", "127.0.0.1:1080")
	moves := func(how string, args ...string) {
		t.Helper()
		out, last := "", error(nil)
		if err := lab.Until(how, fabricLimit, func() (bool, error) {
			out, last = lab.Run(user(1, args...), fabricLimit)
			return last == nil, nil
		}, web, a, b, nodes[0].Proc, nodes[1].Proc); err != nil {
			t.Fatalf("%v: %v\n%s%s%s", err, last, out, a.Output(), b.Output())
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, file) {
			t.Errorf("%s: %d octets arrived, %v", how, len(got), err)
		}
		if err := os.Remove(to); err != nil {
			t.Error(err)
		}
	}
	wget := []string{"timeout", "10", "busybox", "wget", "-q", "-O", to, "http://127.0.0.1:8080/file"}
	moves("by a forwarded port", wget...)
	moves("by the proxy", "curl", "-s", "-S", "-m", "10", "-x", "socks5h://127.0.0.1:1080", "-o", to,
		"http://"+v4(0)+"/file")
	// The node starts anew, and the command goes on.
	nodes[1].Proc.Kill()
	if _, err := b.Expect("waiting for the node", fabricLimit); err != nil {
		t.Fatalf("%v\n%s", err, b.Output())
	}
	if err := nodes[1].Again(flags[1]...); err != nil {
		t.Fatal(err)
	}
	moves("by a forwarded port of a node started anew", wget...)
	b.Signal(syscall.SIGINT)
	if err := b.Wait(fabricLimit); err != nil {
		t.Errorf("%v\n%s", err, b.Output())
	}
	if out, err := lab.Run(user(1, "busybox", "wget", "-q", "-O", "-", "http://127.0.0.1:8080/file"),
		fabricLimit); err == nil {
		t.Errorf("the forward outlives the command: %s", out)
	}
}

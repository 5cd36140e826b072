// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/interop/guest"
	"weft/test/lab"
)

// rdmaFleet is a fleet of which each guest has a card with a RoCE half, and the driver for it.
type rdmaFleet struct {
	*fleet
	config guest.Config // of each guest, without its card
}

// newRDMAFleet builds the driver for a kernel and boots the guests, which have not loaded the driver yet.
func newRDMAFleet(t *testing.T, kernel guest.Kernel) *rdmaFleet {
	t.Helper()
	f := newRDMANodes(t, kernel)
	f.fleet.boot([2]guest.Config{f.config, f.config})
	return f
}

// newRDMANodes is newRDMAFleet without the guests. The flags are those of the switch.
func newRDMANodes(t *testing.T, kernel guest.Kernel, flags ...string) *rdmaFleet {
	t.Helper()
	began := time.Now()
	image, err := guest.BuildRDMA(t.Context(), kernel, guest.Sources())
	if err != nil {
		t.Fatal(err)
	}
	built := time.Now()
	emulator, err := guest.NewQEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("image with the driver: %.1f s; QEMU: %.1f s", built.Sub(began).Seconds(), time.Since(built).Seconds())
	qemu, err := exec.CommandContext(t.Context(), emulator[0], append(emulator[1:], "--version")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	core, err := exec.CommandContext(t.Context(), "dpkg-query", "-W", "libibverbs1").Output()
	if err != nil {
		t.Fatal(err)
	}
	version, _, _ := strings.Cut(string(qemu), "\n")
	t.Logf("%s; kernel %s (%s); %s", version, image.Release, image.Package, strings.TrimSpace(string(core)))
	f := &rdmaFleet{newNodes(t), guest.Config{Image: image, Emulator: emulator, Drivers: []string{}, Pluggable: true}}
	f.weft(0, append([]string{"vesw", "create", "lab"}, flags...)...)
	for i := range f.nodes {
		f.weft(0, "vesw", "port", "add", "lab", f.port(i, "weft_ib0"))
	}
	f.query(0, &f.vms[0], "vm", "add", "g0", "--vesw", "lab", "--rdma")
	f.query(1, &f.vms[1], "vm", "add", "g1", "--rdma")
	f.weft(0, "vesw", "port", "add", "lab", f.vms[1].PortGUID)
	return f
}

// load has a guest load the driver, which takes the card over from virtio_net.
func (f *rdmaFleet) load(i int) {
	f.t.Helper()
	f.run(i, "load virtio_roce && network")
	f.ready(i)
}

// unload has a guest unload the driver, which gives the card back to virtio_net.
func (f *rdmaFleet) unload(i int) {
	f.t.Helper()
	f.run(i, "rmmod virtio_roce && network")
	f.reaches(i, hostAddr(i))
}

// ready waits until a guest has the device with the GIDs of its addresses.
func (f *rdmaFleet) ready(i int) {
	f.t.Helper()
	f.run(i, until(fmt.Sprintf("{ ibv_devinfo -v >/tmp/info 2>&1; grep -q PORT_ACTIVE /tmp/info && "+
		"grep -q '::ffff:%s,' /tmp/info && grep -q '%s,' /tmp/info; }", guestAddr(i), guestAddr6(i)), veswLimit))
	f.reaches(i, hostAddr(i))
}

// rdmaEnd is an end of a connection: a device of a guest, or of programs of node 0.
type rdmaEnd struct {
	guest             int // -1: a program of node 0
	device, gid, addr string
}

const ofNode = -1

// end is a guest's end at one of its addresses.
func (f *rdmaFleet) end(i int, device, addr string) rdmaEnd {
	f.t.Helper()
	gid := addr
	if !strings.Contains(addr, ":") {
		gid = "::ffff:" + addr
	}
	return rdmaEnd{i, device, f.rxeGIDOf(i, gid), guestAddr(i)}
}

// card is the end of a guest's card at its IPv4 address.
func (f *rdmaFleet) card(i int) rdmaEnd { return f.end(i, "vroce0", guestAddr(i)) }

// command is a program with what it needs to know of its own end.
func (e rdmaEnd) command(p program) string {
	command := fmt.Sprintf("%s -d %s %s %s %s", p.name, e.device, gidFlag(p.name), e.gid, p.args)
	if strings.HasPrefix(p.name, "ib_") {
		command += " -F -u 18" // patience of eight seconds
	}
	return command
}

// pair runs a program at two ends, and again if a packet was lost for good: the patience of the programs is half a
// second, and a trunk goes down if a node gets no processor for long.
func (f *rdmaFleet) pair(p program, server, client rdmaEnd) {
	f.t.Helper()
	for try := 1; ; try++ {
		ours, theirs, err := f.pairOnce(p, server, client)
		why := ""
		if err == nil && p.check != nil {
			why = p.check(ours, theirs)
		}
		if err == nil && why == "" {
			return
		}
		lost := result{weft: ours, rxe: theirs}.gaveUp() || unreliable.MatchString(p.name) && why == ""
		if !lost || try == 3 {
			f.t.Fatalf("%v %s\n-- client --\n%s\n-- server --\n%s", err, why, ours, theirs)
		}
		f.t.Logf("packets were lost: %v", err)
	}
}

// unreliable matches programs that do not repeat lost messages.
var unreliable = regexp.MustCompile("ibv_u[cd]_")

func (f *rdmaFleet) pairOnce(p program, server, client rdmaEnd) (ours, theirs string, err error) {
	f.t.Helper()
	const limit = 25
	command := fmt.Sprintf("timeout %d %s", limit, client.command(p))
	addr := guestAddr(server.guest)
	if server.guest == ofNode {
		addr = hostAddr(0)
	}
	if server.guest != ofNode {
		f.serve(server.guest, server.command(p))
		if client.guest == ofNode {
			ours, err = lab.RunBeside(f.guests[server.guest], f.nodes[0].Program(strings.Fields(command+" "+addr)...),
				2*time.Minute)
		} else {
			ours, err = f.runFor(client.guest, command+" "+addr, 2*time.Minute)
		}
		theirs, serr := f.servedSoon(server.guest, p.name, err)
		return ours, theirs, errors.Join(err, serr)
	}
	port := lab.Port()
	more := " -p " + strconv.Itoa(port)
	s, err := lab.Start(f.nodes[0].Program(strings.Fields(server.command(p) + more)...))
	if err != nil {
		return "", "", err
	}
	defer s.Kill()
	if err := s.Listening(port, veswLimit); err != nil {
		return "", s.Output(), err
	}
	if ours, err = f.runFor(client.guest, command+more+" "+addr, 2*time.Minute, s); err != nil {
		s.Kill() // it may wait for ever
	}
	serr := s.WaitBeside(f.guests[client.guest], veswLimit)
	return ours, s.Output(), errors.Join(err, serr)
}

// servedSoon is served; a server whose client had an error may wait for ever, and ends at once.
func (f *rdmaFleet) servedSoon(i int, program string, clientErr error) (string, error) {
	if clientErr != nil {
		f.run(i, "usleep 500000; killall -9 "+program+" || true")
	}
	return f.served(i, program)
}

// both runs a program with each of two ends as the server.
func (f *rdmaFleet) both(p program, a, b rdmaEnd) {
	f.t.Helper()
	f.pair(p, a, b)
	f.pair(p, b, a)
}

// pingpongs are those of rdma-core, which check the contents of each message.
var pingpongs = []program{
	{name: "ibv_rc_pingpong", args: "-c -n 100", check: pingpong},
	{name: "ibv_uc_pingpong", args: "-c -n 100", check: pingpong},
	{name: "ibv_ud_pingpong", args: "-c -n 100 -s 1000", check: pingpong},
	{name: "ibv_srq_pingpong", args: "-c -n 100", check: pingpong},
}

// TestGuestsRDMA: programs of two stock guests on two nodes, whose cards have a RoCE half, talk by libibverbs of the
// distribution, the provider and the module of this repository.
func TestGuestsRDMA(t *testing.T) {
	f := newRDMAFleet(t, guest.Debian12)
	f.rdmaRows()
}

// rdmaRows are the rows for each kernel.
func (f *rdmaFleet) rdmaRows() {
	f.row("the driver takes the cards over", func(t *testing.T) {
		for i := range f.guests {
			f.reaches(i, hostAddr(i))
			if out := f.run(i, "ls /sys/class/infiniband"); out != "" {
				t.Errorf("guest %d has an RDMA device without the driver: %s", i, out)
			}
		}
		for i := range f.guests {
			f.load(i)
		}
		for i := range f.guests {
			driver := f.run(i, "readlink /sys/class/net/eth0/device/driver; cd /sys/bus/virtio/drivers/virtio_roce; "+
				"echo virtio*")
			if !regexp.MustCompile(`/virtio_net\s+virtio\d`).MatchString(driver) {
				t.Errorf("guest %d: eth0 is not virtio_net's, or the card not virtio_roce's:\n%s", i, driver)
			}
			f.reaches(i, guestAddr(1-i))
			f.reaches(i, guestAddr6(1-i))
		}
	})
	f.row("ibv_devices and ibv_devinfo", f.devices)
	for _, p := range pingpongs {
		f.row(p.name, func(*testing.T) { f.both(p, f.card(0), f.card(1)) })
	}
	f.row("ibv_rc_pingpong over IPv6", func(*testing.T) {
		f.both(pingpongs[0], f.end(0, "vroce0", guestAddr6(0)), f.end(1, "vroce0", guestAddr6(1)))
	})
	for _, p := range pingpongs {
		p.args += " -e"
		f.row(p.name+" with events", func(*testing.T) { f.pair(p, f.card(0), f.card(1)) })
	}
	f.row("rping", f.rping)
	for _, p := range []program{
		{name: "ib_write_bw", args: "-s 65536 -n 500"},
		{name: "ib_send_bw", args: "-s 4096 -n 500"},
		{name: "ib_read_bw", args: "-s 4096 -n 500"},
		{name: "ib_atomic_lat", args: "-n 100"},
	} {
		f.row(p.name, func(*testing.T) { f.both(p, f.card(0), f.card(1)) })
	}
	f.row("the tutorial", f.tutorial)
	f.row("a program of a node", f.withNode)
	f.row("soft-RoCE of a guest", f.withSoftRoCE)
	f.row("the driver unloaded and loaded", func(t *testing.T) {
		for i := range f.guests {
			f.nothingLeft(t, i)
			f.unload(i)
			if r := f.vm(i).RoCE; r == nil || len(r.GIDs)+len(r.QPs)+r.PDs+r.MRs+r.MWs+r.CQs+r.SRQs+r.AHs != 0 {
				t.Errorf("guest %d has unloaded the driver, and the node has %+v", i, r)
			}
			f.load(i)
		}
		f.pair(pingpongs[0], f.card(0), f.card(1))
	})
	f.row("a card unbound under traffic", f.unbind)
	f.row("a guest killed under traffic", f.killed)
	f.row("a node started anew", f.nodeAnew)
	f.row("no complaint of a kernel or a node", func(t *testing.T) {
		for i := range f.guests {
			if out := f.run(i, "dmesg | grep -e WARNING -e BUG: -e 'Call Trace' || true"); out != "" {
				t.Errorf("guest %d: %s%s", i, out, f.guests[i].Console())
			}
			if r := f.vm(i).RoCE; r == nil || len(r.Refused)+len(r.Broken) != 0 || r.NeedsReset != "" {
				t.Errorf("guest %d: %+v", i, r)
			}
		}
	})
}

// devices compares what the programs of the guest and the node report of a card.
func (f *rdmaFleet) devices(t *testing.T) {
	for i := range f.guests {
		if out := f.run(i, "ibv_devices"); !strings.Contains(out, "vroce0") {
			t.Errorf("guest %d: %s", i, out)
		}
		v := f.vm(i)
		if v.RoCE == nil || !v.RoCE.Negotiated {
			t.Fatalf("guest %d: %+v", i, v)
		}
		out := f.run(i, "ibv_devinfo -v -d vroce0")
		field := func(name string) string {
			m := regexp.MustCompile(`(?m)^\s*` + name + `:\s+(\S+)`).FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("guest %d: no %s in\n%s", i, name, out)
			}
			return m[1]
		}
		mac, err := api.ParseMAC(v.MAC)
		if err != nil {
			t.Fatal(err)
		}
		guid := fmt.Sprintf("%02x%02x:%02xff:fe%02x:%02x%02x", mac[0]^2, mac[1], mac[2], mac[3], mac[4], mac[5])
		for name, want := range map[string]string{"transport": "InfiniBand", "state": "PORT_ACTIVE",
			"link_layer": "Ethernet", "max_cq": fmt.Sprint(v.CQs), "phys_port_cnt": "1"} {
			if got := field(name); got != want {
				t.Errorf("guest %d: %s is %s, not %s", i, name, got, want)
			}
		}
		if got := field("node_guid"); got != guid && !strings.Contains(got, "ff:fe") {
			t.Errorf("guest %d: the GUID %s is not of the address %s", i, got, v.MAC)
		}
		if n, err := strconv.Atoi(field("max_qp")); err != nil || n < v.QPs {
			t.Errorf("guest %d: max_qp is %d, the card has %d", i, n, v.QPs)
		}
		gids := 0
		for _, g := range v.RoCE.GIDs {
			addr := strings.TrimPrefix(g.Address, "::ffff:")
			if !strings.Contains(out, addr+", RoCE v2") {
				t.Errorf("guest %d has no GID of %s", i, addr)
			}
			gids++
		}
		if listed := strings.Count(out, ", RoCE v2"); listed != gids || gids < 3 {
			t.Errorf("guest %d lists %d GIDs, the node %d:\n%s", i, listed, gids, out)
		}
	}
}

// rping connects by the connection manager, and compares what comes back.
func (f *rdmaFleet) rping(*testing.T) {
	for i := range f.guests {
		for _, addr := range []string{guestAddr(i), guestAddr6(i)} {
			f.serveUntil(i, "rping -s -C 20 -V -a "+addr, "rdma resource show cm_id | grep -q LISTEN")
			ours, err := f.runFor(1-i, "timeout 40 rping -c -C 20 -V -a "+addr, time.Minute)
			theirs, serr := f.servedSoon(i, "rping", err)
			// rping's server does not count the disconnection by the client as success in all versions.
			if err != nil || serr != nil && !strings.Contains(theirs, "server DISCONNECT EVENT") {
				f.t.Errorf("%s: client: %v, server: %v\n-- client --\n%s\n-- server --\n%s", addr, err, serr, ours,
					theirs)
			}
		}
	}
}

// withNode has programs of node 0 talk with the guest of the node and with that of the other: by RoCEv2 over the TAP
// device of the switch, and by a device in the switch.
func (f *rdmaFleet) withNode(*testing.T) {
	gid, err := f.nodes[0].GID(hostAddr(0))
	if err != nil {
		f.t.Fatal(err)
	}
	f.nodeDevice(stationAddr + "/24")
	for i := range f.guests {
		f.reaches(i, stationAddr)
		for _, e := range []rdmaEnd{{ofNode, "weft0", strconv.Itoa(gid), hostAddr(0)},
			{ofNode, "lab0", "1", stationAddr}} {
			f.row(fmt.Sprintf("%s with guest %d", e.device, i), func(*testing.T) {
				f.both(pingpongs[0], f.card(i), e)
				f.pair(program{name: "ib_write_bw", args: "-s 65536 -n 200"}, f.card(i), e)
			})
		}
	}
}

// withSoftRoCE has guest 1 use soft-RoCE in the place of the driver.
func (f *rdmaFleet) withSoftRoCE(*testing.T) {
	f.unload(1)
	f.run(1, "load rdma_rxe && rdma link add rxe0 type rxe netdev eth0")
	f.reaches(1, guestAddr(0))
	for _, p := range pingpongs[:3] {
		f.both(p, f.card(0), f.end(1, "rxe0", guestAddr(1)))
	}
	f.pair(program{name: "ib_write_bw", args: "-s 65536 -n 100"}, f.end(1, "rxe0", guestAddr(1)), f.card(0))
	f.run(1, "rdma link del rxe0 && rmmod rdma_rxe")
	f.load(1)
}

// nothingLeft checks that the node has objects of a guest's driver only, none of programs.
func (f *rdmaFleet) nothingLeft(t *testing.T, i int) {
	t.Helper()
	f.wait(fmt.Sprintf("guest %d has no queue pair of a program", i), func() bool {
		r := f.vm(i).RoCE
		return r != nil && !strings.Contains(fmt.Sprint(r.QPs), "RC") && r.SRQs+r.MWs == 0
	})
}

// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/interop/guest"
	"weft/test/lab"
)

// newCardFleet boots the guests: the first has a card with a RoCE half and two processors, by the QEMU that has such
// cards; the second has a card without.
func newCardFleet(t *testing.T, kernel guest.Kernel) *fleet {
	t.Helper()
	image, err := guest.Build(t.Context(), kernel)
	if err != nil {
		t.Fatal(err)
	}
	emulator, err := guest.NewQEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := newNodes(t)
	f.weft(0, "vesw", "create", "lab")
	for i := range f.nodes {
		f.weft(0, "vesw", "port", "add", "lab", f.port(i, "weft_ib0"))
	}
	f.query(0, &f.vms[0], "vm", "add", "g0", "--vesw", "lab", "--rdma", "--queues", "2")
	f.query(1, &f.vms[1], "vm", "add", "g1")
	f.weft(0, "vesw", "port", "add", "lab", f.vms[1].PortGUID)
	f.boot([2]guest.Config{{Image: image, CPUs: 2, Emulator: emulator}, {Image: image}})
	return f
}

// TestGuestRDMACard: a stock guest, which knows nothing of RoCE in a network card, uses a card with a RoCE half as
// every network card.
func TestGuestRDMACard(t *testing.T) {
	f := newCardFleet(t, guest.Debian12)
	f.row("the network", func(*testing.T) { f.network() })
	f.row("RoCE half", func(t *testing.T) {
		f.roceHalf(t, false)
		if out := f.weft(0, "status"); strings.Contains(out, "vm_") {
			t.Errorf("%s", out)
		}
	})
	f.row("queue pairs", func(t *testing.T) { f.queuePairs(t, "packets", 100, "rx0", "tx0", "rx1", "tx1") })
	f.row("MTU", func(t *testing.T) {
		want := strconv.Itoa(f.vm(0).MTU)
		if got := strings.TrimSpace(f.run(0, "cat /sys/class/net/eth0/mtu")); got != want {
			t.Errorf("eth0 has an MTU of %s, the card %s", got, want)
		}
		f.run(0, fmt.Sprintf("! /sbin/ip link set eth0 mtu %d || exit 1; /sbin/ip link set eth0 mtu 1300", f.vm(0).MTU+1))
		f.once(0, "ping -c 2 -W 5 -s 5000 "+guestAddr(1)+" | grep -q ' 0% packet loss'")
		f.run(0, "/sbin/ip link set eth0 mtu "+want)
	})
	f.row("filters", f.filters)
	f.row("link down and up", func(t *testing.T) {
		for _, up := range []bool{false, true} {
			f.weft(0, "dev", "set", "g0", fmt.Sprintf("--enabled=%v", up))
			carrier := map[bool]string{false: "0", true: "1"}[up]
			f.run(0, until("[ $(cat /sys/class/net/eth0/carrier) = "+carrier+" ]", veswLimit))
		}
		f.network()
	})
	f.row("pause", func(t *testing.T) {
		p, err := lab.Start(lab.Cmd{NetNS: f.spaces[0].Name, Args: []string{"ping", "-n", "-i", "0.05", guestAddr(0)},
			Peers: f.peers()})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Kill()
		answers := func() int { return strings.Count(p.Output(), " bytes from ") }
		for range 3 {
			for _, c := range []string{"stop", "cont"} {
				if _, err := f.guests[0].Command(`{"execute": "` + c + `"}`); err != nil {
					t.Fatal(err)
				}
			}
			seen := answers()
			f.wait("the guest answers again", func() bool { return answers() > seen+3 }, p)
		}
		f.reaches(0, guestAddr(1))
		f.roceHalf(t, false)
	})
	f.row("reboot", func(t *testing.T) {
		if err := f.guests[0].Reboot(2*time.Minute, f.nodes[0].Proc); err != nil {
			t.Fatal(err)
		}
		f.network()
		f.roceHalf(t, false)
		if v := f.vm(0); v.Sessions != 1 || !v.Running {
			t.Errorf("%+v", v)
		}
	})
	f.row("a driver of the RFC with soft-RoCE", f.fronts)
	f.row("soft-RoCE over the card", func(*testing.T) {
		f.pingpong(func() (string, error) {
			return f.runFor(0, "timeout 60 ibv_rc_pingpong -d rxe0 -c -g "+f.rxeGID(0)+" -n 100 "+guestAddr(1),
				2*time.Minute)
		})
	})
	f.answered(t)
}

// TestGuestRDMACardOfDebian13 is the network with a kernel that has another meaning for the bit of RoCE, and accepts
// the bit.
func TestGuestRDMACardOfDebian13(t *testing.T) {
	lab.OnlySoak(t)
	f := newCardFleet(t, guest.Debian13)
	f.network()
	// The driver counts packets elsewhere; the card needs no notification of buffers to receive.
	f.row("queue pairs", func(t *testing.T) { f.queuePairs(t, "kicks", 1, "tx0", "tx1") })
	f.roceHalf(t, true)
	f.answered(t)
}

// network checks that the guest of the card reaches everybody, over IPv4 and IPv6, by frames of several sizes.
func (f *fleet) network() {
	f.t.Helper()
	for _, a := range []string{hostAddr(0), hostAddr(1), guestAddr(1), guestAddr6(1)} {
		f.reaches(0, a)
	}
	f.reaches(1, guestAddr(0))
	for _, size := range []int{0, 1472, 1473, 20000} {
		f.once(0, fmt.Sprintf("ping -c 4 -i 0.05 -W 5 -s %d %s | grep -q ' 0%% packet loss'", size, guestAddr(1)))
	}
}

// roceHalf checks that the card shows its RoCE half, without objects. The kernel of the guest and the node agree about
// whether the bit of RoCE is negotiated.
func (f *fleet) roceHalf(t *testing.T, negotiated bool) {
	t.Helper()
	v := f.vm(0)
	r := v.RoCE
	if !v.RDMA || r == nil || r.Negotiated != negotiated || r.NeedsReset != "" || r.Resets != 0 ||
		len(r.GIDs)+len(r.QPs)+len(r.Refused)+r.PDs+r.MRs+r.CQs+r.AHs != 0 {
		t.Errorf("%+v, the RoCE half %+v", v, r)
	}
	const bit = 55
	features := strings.TrimSpace(f.run(0, "cat /sys/class/net/eth0/device/features"))
	if len(features) <= bit || (features[bit] == '1') != negotiated {
		t.Errorf("the features of the guest: %s", features)
	}
}

// queueCounters returns a counter of each queue of the guest's eth0, by the name of the queue. The names of the counters
// are those of the driver in Linux 6.1, or those in later versions.
func (f *fleet) queueCounters(unit string) map[string]int {
	f.t.Helper()
	list := map[string]int{}
	for _, m := range regexp.MustCompile(`([rt]x)(?:_queue_)?(\d)_`+unit+`: (\d+)`).FindAllStringSubmatch(
		f.run(0, "/usr/sbin/ethtool -S eth0"), -1) {
		n, err := strconv.Atoi(m[3])
		if err != nil {
			f.t.Fatal(err)
		}
		list[m[1]+m[2]] = n
	}
	return list
}

// queuePairs has the guest choose how many queue pairs it uses, and sends TCP: all those and no others carry packets.
// The counter of these queues counts at least so much.
func (f *fleet) queuePairs(t *testing.T, counter string, least int, queues ...string) {
	f.run(1, "iperf3 -s -D; "+until("netstat -ltn | grep -q ':5201 '", veswLimit))
	for _, pairs := range []int{1, 2} {
		f.run(0, fmt.Sprintf("/usr/sbin/ethtool -L eth0 combined %d; /usr/sbin/ethtool -l eth0 | "+
			"tail -n +6 | grep -q 'Combined:.*%[1]d'", pairs))
		before, idle := f.queueCounters(counter), queues
		for round := 0; round < 5 && len(idle) > 0; round++ { // which flow has which queue is the driver's choice
			for _, way := range []string{"-P 4", "-R -P 4"} {
				f.once(0, "iperf3 -c "+guestAddr(1)+" -n 8M "+way+" >/tmp/load 2>&1")
				t.Logf("%d queue pairs: %s", pairs, lastLine(f.run(0, "cat /tmp/load")))
			}
			after := f.queueCounters(counter)
			idle = slices.DeleteFunc(slices.Clone(queues), func(queue string) bool {
				carried, used := after[queue]-before[queue], queue[2] == '0' || pairs == 2
				if !used && carried != 0 {
					t.Errorf("%d queue pairs: %s carried %d %s", pairs, queue, carried, counter)
				}
				return !used || carried >= least
			})
		}
		if len(idle) > 0 {
			t.Errorf("%d queue pairs: %v carried less than %d %s", pairs, idle, least, counter)
		}
	}
}

// filters has the driver of the guest send every command by which a card filters frames.
func (f *fleet) filters(t *testing.T) {
	count := func() uint64 {
		list, err := f.nodes[0].Counters()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.Scope == api.ScopeVM && c.Instance == "g0" && c.Name == "commands" {
				return c.Value
			}
		}
		t.Fatal("no counter of commands")
		return 0
	}
	mac := strings.TrimSpace(f.run(0, "cat /sys/class/net/eth0/address"))
	for _, c := range []string{
		"/sbin/ip link add link eth0 name eth0.7 type vlan id 7",
		"/sbin/ip link del eth0.7",
		"/sbin/ip maddr add 33:33:00:00:12:34 dev eth0",
		"/sbin/ip maddr del 33:33:00:00:12:34 dev eth0",
		"/sbin/ip link set eth0 promisc on",
		"/sbin/ip link set eth0 promisc off",
		"/sbin/ip link set eth0 allmulticast on",
		"/sbin/ip link set eth0 allmulticast off",
		"/sbin/ip link set eth0 address 52:54:00:12:34:56",
		"/sbin/ip link set eth0 address " + mac,
		"/usr/sbin/ethtool -K eth0 rx-gro-hw off",
		"/usr/sbin/ethtool -K eth0 rx-gro-hw on",
	} {
		before := count()
		f.run(0, c)
		f.wait("the card gets a command for "+c, func() bool { return count() > before })
		f.reaches(0, guestAddr(1))
	}
}

// answered checks that neither the node nor the guest's driver has seen a command of the control queue fail, or a ring.
func (f *fleet) answered(t *testing.T) {
	t.Helper()
	list, err := f.nodes[0].Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.Scope == api.ScopeVM && (c.Name == "command_errors" || c.Name == "broken_rings") && c.Value != 0 {
			t.Errorf("%+v", c)
		}
	}
	if out := f.run(0, "dmesg | grep -i -e virtio -e eth0"); strings.Contains(out, "ailed") {
		t.Errorf("%s", out)
	}
}

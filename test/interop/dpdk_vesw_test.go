// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestDPDKOnVESW: the hosts of two nodes, each on a virtual Ethernet switch of its own, talk by way of DPDK: its two
// ports are cards of the nodes, one in either switch. It is the only way, and nothing is lost on it but what DPDK
// drops.
func TestDPDKOnVESW(t *testing.T) {
	f := newNodes(t)
	for i, name := range []string{"left", "right"} {
		f.weft(0, "vesw", "create", name)
		f.weft(0, "vesw", "port", "add", name, f.port(i, "weft_ib0"))
	}
	for i := range f.nodes {
		f.tap(i)
	}
	p, err := lab.Start(lab.Cmd{NetNS: f.spaces[1].Name, Args: []string{"iperf3", "-s"}, Peers: f.peers()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if err := p.Listening(5201, veswLimit); err != nil {
		t.Fatal(err)
	}
	type row struct {
		name, options string
		pairs         int
	}
	client := []row{{"split", "", 1}, {"packed, two queue pairs", ",packed_vq=1", 2}}
	server := []row{{"split, two queue pairs, as the socket's server", ",server=1", 2}}
	if lab.Soak {
		client = append(client, row{"packed", ",packed_vq=1", 1}, row{"split, two queue pairs", "", 2})
		server = append(server, row{"packed, as the socket's server", ",packed_vq=1,server=1", 1})
	}
	for dial, rows := range map[bool][]row{false: client, true: server} {
		// Each card is at the other node than the host in its switch.
		var cards [2]api.VM
		for i, vesw := range []string{"left", "right"} {
			args := []string{"vm", "add", "card", "--queues", "2"}
			if dial {
				args = append(args, "--connect", filepath.Join(filepath.Dir(f.nodes[0].Dir), vesw))
			}
			f.query(1-i, &cards[i], args...)
			f.weft(0, "vesw", "port", "add", vesw, cards[i].PortGUID)
		}
		for _, r := range rows {
			t.Run(r.name, func(t *testing.T) {
				f.t = t
				defer func() { f.t = t }()
				f.byDPDK(t, p, r.pairs, r.options, cards, dial)
			})
			f.t = t
		}
		for i, vesw := range []string{"left", "right"} {
			f.weft(0, "vesw", "port", "del", vesw, cards[i].PortGUID, "--yes")
			f.weft(1-i, "vm", "del", "card")
		}
	}
}

// byDPDK has the hosts talk by way of DPDK between two cards, the first at node 1 and the second at node 0. The server
// of iperf3 is in the namespace of node 1.
func (f *fleet) byDPDK(t *testing.T, server *lab.Proc, pairs int, options string, cards [2]api.VM, reconnect bool) {
	for i := range f.nodes {
		f.mustIn(i, "ip", "neigh", "flush", "dev", veswTap) // so that a request to all shows where the target is now
	}
	was := f.passed(cards)
	dpdk, end := testpmd(t, pairs, options, at(cards[0]), at(cards[1]))
	reach := func() {
		t.Helper()
		f.wait("the hosts talk", func() bool {
			_, err := f.in(0, "ping", "-c", "1", "-W", "1", hostAddr(1))
			return err == nil
		}, dpdk)
	}
	reach()
	starting := f.noQueue(cards, was) // a frame that comes while DPDK sets its rings up finds none
	for _, way := range []string{"-P4", "-R"} {
		f.wait("a stream passes", func() bool {
			out, err := f.in(0, "iperf3", "-c", hostAddr(1), "-P", "4", "-n", "4M", way)
			t.Log(lastLine(out))
			return err == nil
		}, dpdk, server)
	}
	if reconnect {
		before := f.passed(cards)
		for i := range cards {
			f.reconnects(1-i, cards[i])
		}
		reach()
		for i, n := range f.noQueue(cards, before) {
			starting[i] += n
		}
	}
	is := f.settled(cards, dpdk)
	dropped := testpmdDrops(t, end())
	for i, at := range []string{"left", "right"} {
		in, out := is[i]["rx_frames"]-was[i]["rx_frames"], is[1-i]["tx_frames"]-was[1-i]["tx_frames"]
		t.Logf("%s: %d frames to DPDK, %d of them by it to the other side, %d dropped by it; %d found no buffer of it", at, in, out, dropped[1-i],
			is[i]["rx_no_buffer"]-was[i]["rx_no_buffer"])
		// What DPDK holds when a session ends is lost with it.
		if in == 0 || !reconnect && in != out+dropped[1-i] {
			t.Errorf("%s: %d frames to DPDK, %d from it to the other side, and it dropped %d", at, in, out,
				dropped[1-i])
		}
		if n := is[i]["rx_no_queue"] - was[i]["rx_no_queue"] - starting[i]; n != 0 {
			t.Errorf("%s: %d frames found no queue while DPDK forwarded", at, n)
		}
		for _, name := range []string{"broken_rings", "tx_short", "tx_long", "rx_offload", "rx_too_long"} {
			if n := is[i][name] - was[i][name]; n != 0 {
				t.Errorf("%s: %d %s", at, n, name)
			}
		}
	}
}

// at is where the front-end of a card finds it.
func at(v api.VM) string {
	if v.Connect != "" {
		return v.Connect
	}
	return v.Socket
}

// passed are the counters of cards, the first at node 1 and the second at node 0.
func (f *fleet) passed(cards [2]api.VM) (m [2]map[string]uint64) {
	f.t.Helper()
	for i, v := range cards {
		var list []api.Counter
		f.query(1-i, &list, "stat", "--scope", api.ScopeVM, "--all")
		m[i] = map[string]uint64{}
		for _, c := range list {
			if c.Instance == v.Name {
				m[i][c.Name] = c.Value
			}
		}
	}
	return m
}

// noQueue is how many frames to cards found no queue since their counters were as in was.
func (f *fleet) noQueue(cards [2]api.VM, was [2]map[string]uint64) (n [2]uint64) {
	f.t.Helper()
	for i, m := range f.passed(cards) {
		n[i] = m["rx_no_queue"] - was[i]["rx_no_queue"]
	}
	return n
}

// settlingPings are more than the turns in which testpmd empties a ring: of 256 elements it takes up to 32 in a turn, a
// few less where they would end within a line of the cache.
const settlingPings = 12

// settled waits until DPDK holds no frame, and returns the counters of cards then. A process that gets no processor for
// long holds frames while all counters stand still; answers show that it works. Each ping takes it another turn through
// all rings. Where both cards count the pings, in both directions, and nothing else, it holds nothing from before the
// first, and nothing came after it.
func (f *fleet) settled(cards [2]api.VM, dpdk *lab.Proc) (m [2]map[string]uint64) {
	f.t.Helper()
	f.wait("nothing but pings passes", func() bool {
		was := f.passed(cards)
		for range settlingPings {
			if _, err := f.in(0, "ping", "-c", "1", "-W", "5", hostAddr(1)); err != nil {
				return false
			}
		}
		m = f.passed(cards)
		for i := range m {
			for _, name := range []string{"rx_frames", "tx_frames"} {
				if m[i][name]-was[i][name] != settlingPings {
					return false
				}
			}
		}
		return true
	}, dpdk)
	return m
}

// testpmdDrops are the frames that each port of testpmd did not send, as it prints at its end.
func testpmdDrops(t *testing.T, printed string) (n [2]uint64) {
	t.Helper()
	for i := range n {
		_, part, ok := strings.Cut(printed, fmt.Sprintf("Forward statistics for port %d", i))
		m := regexp.MustCompile(`TX-dropped: (\d+)`).FindStringSubmatch(part)
		if !ok || m == nil {
			t.Fatalf("dpdk-testpmd prints nothing of port %d", i)
		}
		n[i], _ = strconv.ParseUint(m[1], 10, 64)
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// stream is iperf3 at work between two nodes, until the test ends.
type stream struct {
	*subnet
	server, client *lab.Proc
}

func (s *subnet) stream(t *testing.T, from, to int) *stream {
	t.Helper()
	x := &stream{subnet: s}
	start := func(node int, args ...string) *lab.Proc {
		t.Helper()
		p, err := lab.Start(lab.Cmd{NetNS: s.Spaces[node].Name, Args: append([]string{"iperf3", "--forceflush"},
			args...)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	x.server = start(to, "-s", "-1")
	if _, err := x.server.Expect("Server listening", fabricLimit); err != nil {
		t.Fatal(err)
	}
	x.client = start(from, "-c", v4(to), "-t", "600", "-b", "50M", "-i", "0.5")
	x.more("iperf3 is at work", 2)
	return x
}

// reports counts the intervals in which something arrived.
func (x *stream) reports() (n int) {
	for line := range strings.Lines(x.server.Output()) {
		if strings.Contains(line, "bits/sec") && !strings.Contains(line, "0.00 bits/sec") {
			n++
		}
	}
	return n
}

// more waits until something has arrived in so many intervals more.
func (x *stream) more(what string, n int) {
	x.t.Helper()
	had := x.reports()
	x.until(what, func() bool { return x.reports() >= had+n }, x.server, x.client)
}

// end expects that the stream never stopped, and ends it.
func (x *stream) end(t *testing.T) {
	t.Helper()
	select {
	case <-x.client.Done():
		t.Errorf("iperf3 ended: %s", x.client.Output())
	default:
		x.client.Signal(syscall.SIGINT)
	}
}

// unbroken expects that links of nodes never lost their carriers.
func (s *subnet) unbroken(t *testing.T, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		var e []api.IPEvent
		if err := s.nodes[i].Query(&e, "ipoib", "events"); err != nil ||
			slices.ContainsFunc(e, func(e api.IPEvent) bool { return e.Kind == "down" }) {
			t.Errorf("node %d lost its carrier: %v %+v", i, err, e)
		}
	}
}

// joins has a node join a group, which takes an administration that answers.
func (s *subnet) joins(i int, group string) {
	s.t.Helper()
	s.weft(i, "ipoib", "mcast", "join", ipLink, group)
	s.until(fmt.Sprintf("node %d is in %s", i, group), func() bool {
		var g []api.IPGroup
		return s.nodes[i].Query(&g, "ipoib", "mcast") == nil &&
			slices.ContainsFunc(g, func(g api.IPGroup) bool {
				return slices.Contains(g.Addrs, group) &&
					g.State == "joined"
			})
	})
}

// TestIPoIBMasterKilled: traffic goes on while another manager takes over.
func TestIPoIBMasterKilled(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, true)
	m := s.master(0, 1, 2)
	a, b := (m+1)%3, (m+2)%3
	s.links(a, b)
	s.reaches(a, v4(b))
	x := s.stream(t, a, b)
	s.nodes[m].Proc.Kill()
	s.until("another manager is master", func() bool { return s.master(a, b) >= 0 })
	x.more("iperf3 is at work under the new master", 3)
	s.unbroken(t, a, b)
	// New groups and new neighbours come by the new master.
	s.joins(a, "239.9.9.9")
	s.weft(a, "ipoib", "path", "flush", ipLink)
	s.reaches(a, v6(b))
	x.end(t)
	if err := s.nodes[m].Again(s.flags[m]...); err != nil {
		t.Fatal(err)
	}
	s.active(0, 1, 2)
}

// TestIPoIBMasterRestarted: the only manager, or one of three, ends in whatever way and
// is started again in its directory. Traffic between other nodes goes on meanwhile and
// afterwards, and every link is whole again: the manager's node's comes back by
// itself, and the groups are what they were (S-04). At the end a link goes under load,
// soon and with all it had (S-14).
func TestIPoIBMasterRestarted(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]string{"the only one": "external", "one of three": "auto"} {
		t.Run(name, func(t *testing.T) {
			s := startNodes(t, false, func(i int) []string {
				manager := "auto"
				if i != 0 {
					manager = others
				}
				return []string{"--sm", manager, "--ipoib", "--ipoib-addr", ipLink + "=" + v4(i) + "/24",
					"--ipoib-addr", ipLink + "=" + v6(i) + "/64"}
			})
			s.active(0, 1, 2)
			m := s.master(0, 1, 2)
			a, b := (m+1)%3, (m+2)%3
			whole := func() {
				t.Helper()
				for i := range s.nodes {
					s.carrier(i, ipLink)
				}
				for _, p := range pairsOfThree {
					s.reaches(p[0], v4(p[1]))
					s.reaches(p[1], v6(p[0]))
				}
				s.until("all are in the broadcast group", func() bool {
					var g []api.SubnetGroup
					i := s.master(0, 1, 2)
					return i >= 0 && s.nodes[i].Query(&g, "mcast", "groups") == nil &&
						slices.ContainsFunc(g, func(g api.SubnetGroup) bool {
							return strings.HasSuffix(g.MGID,
								":ffff:ffff") && len(g.Members) == 3
						})
				})
			}
			whole()
			x := s.stream(t, a, b)
			for _, kill := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
				n := s.nodes[m]
				n.Proc.Signal(kill)
				<-n.Proc.Done()
				x.more("iperf3 is at work without the manager", 2)
				if err := n.Again(s.flags[m]...); err != nil {
					t.Fatal(err)
				}
				s.active(0, 1, 2)
				x.more("iperf3 is at work under the manager that came back", 3)
				whole()
				s.joins(a, fmt.Sprintf("239.9.9.%d", kill))
				s.weft(a, "ipoib", "path", "flush", ipLink)
				s.reaches(a, v6(b))
			}
			s.unbroken(t, a, b)
			x.more("iperf3 is at work to the end", 1)
			from := time.Now()
			s.weft(b, "ipoib", "del", "all")
			if took := time.Since(from); took > within(6*time.Second) {
				t.Errorf("a link under load took %v to end", took)
			}
			if k, err := s.nodes[b].Objects(); err != nil || k != 0 {
				t.Errorf("%d objects are left, %v", k, err)
			}
			x.end(t)
		})
	}
}

// TestIPoIBFirstPacket: the first question for an address is answered, although it goes to a
// group that the link joins for it: no member is told that it may send before switches have the group.
// Each address has a group of its own; a question that is lost is repeated after a second.
func TestIPoIBFirstPacket(t *testing.T) {
	t.Parallel()
	const addrs = 16
	at := func(i int) string { return fmt.Sprintf("fd92::%d", i+1) }
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	a, b := (m+1)%3, (m+2)%3
	s.weft(m, "ipoib", "add", native, "--addr", "fd92::fe/64")
	s.weft(a, "ipoib", "add", native, "--addr", "fd92::ff/64")
	args := []string{"ipoib", "add", native}
	for i := range addrs {
		args = append(args, "--addr", at(i)+"/64")
	}
	s.weft(b, args...)
	s.until("every address has its group", func() bool {
		var g []api.IPGroup
		if s.nodes[b].Query(&g, "ipoib", "mcast") != nil {
			return false
		}
		n := 0
		for _, g := range g {
			if g.State == "joined" && slices.ContainsFunc(g.Addrs, func(a string) bool {
				return strings.HasPrefix(a,
					"ff02::1:ff")
			}) {
				n++
			}
		}
		return n > addrs // the link-local one's too
	})
	// Duplicates of all are looked for at once: when the first and the last are found to be
	// free, all are soon. The request comes from the node of the administration, or from another.
	for what, i := range map[string]int{"the manager's node": m, "another": a} {
		t.Run(what, func(t *testing.T) {
			s.reaches(i, at(0))
			s.reaches(i, at(addrs-1))
			downs, late := s.downs(), []string{}
			for k := 1; k < addrs-1; k++ {
				out, err := s.in(i, "ping", "-c", "1", "-W", "10", at(k))
				_, ms, _ := strings.Cut(out, "time=")
				var rtt float64
				if _, e := fmt.Sscan(ms, &rtt); err != nil || e != nil {
					t.Errorf("%v\n%s", err, out)
				} else if rtt >= 800 { // less than a second: ping begins later than the question
					late = append(late, fmt.Sprintf("%s after %v ms", at(k), rtt))
				}
			}
			if len(late) <= 1 { // it may be the machine's fault
				return
			}
			if s.downs() != downs {
				t.Logf("trunks went down meanwhile; late were %v", late)
			} else {
				t.Errorf("second questions were needed: %v", late)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/proto/pcapng"
	"weft/test/lab"
)

const connPayload = 65520 // MTU of links in connected mode

// modeOf returns how packets of a node go to an address.
func (s *subnet) modeOf(i int, addr string) string {
	var list []api.IPNeighbour
	if s.nodes[i].Query(&list, "ipoib", "neigh") != nil {
		return ""
	}
	for _, n := range list {
		if n.Addr == addr {
			return n.Mode
		}
	}
	return ""
}

// connects waits until packets that are longer than any datagram go from a node to an address, as they are and not in
// fragments: what another connection made impossible for a moment is tried again.
func (s *subnet) connects(i int, addr string) {
	s.t.Helper()
	s.until(fmt.Sprintf("node %d is connected with %s", i, addr), func() bool {
		_, err := s.in(i, "ping", "-c", "1", "-W", "1", "-M", "do", "-s", "60000", addr)
		return err == nil && s.modeOf(i, addr) == "connected"
	})
}

// TestIPoIBConnected: two nodes with links in connected mode exchange packets of 65520 octets; with a third, by a
// link in datagram mode, and with groups, datagrams. The messages of the communication managers are as
// RFC 4755 requires, by the judgement of Wireshark.
func TestIPoIBConnected(t *testing.T) {
	t.Parallel()
	needs(t, "tshark", "dumpcap")
	s := openSubnet(t, false, "--trunk-security", "none") // its cables are captured
	c, err := s.Capture(0, 1, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill()
	for i, mode := range []string{"connected", "connected", "datagram"} {
		s.weft(i, "ipoib", "add", native, "--mode", mode, "--addr", v4(i)+"/24", "--addr", v6(i)+"/64")
	}
	for i := range s.nodes {
		s.carrier(i, ipLink)
	}
	s.connects(0, v4(1))
	s.connects(1, v6(0))
	s.requests(t, func(f func(at time.Time, p []byte)) error { return c.Packets(f) })
	for _, p := range pairsOfThree {
		s.reaches(p[0], v4(p[1]))
		s.reaches(p[1], v6(p[0]))
	}
	t.Run("MTU", func(t *testing.T) {
		for head, addr := range map[int]string{28: v4(1), 48: v6(1)} {
			if out, err := s.in(0, "ping", "-c", "3", "-i", "0.05", "-M", "do", "-s", fmt.Sprint(connPayload-head),
				addr); err != nil {
				t.Errorf("a packet of the MTU: %v\n%s", err, out)
			}
		}
		if out, err := s.in(0, "ping", "-c", "1", "-M", "do", "-s", fmt.Sprint(connPayload-28+1),
			v4(1)); err == nil || !strings.Contains(out, fmt.Sprintf("mtu=%d", connPayload)) {
			t.Errorf("a longer one: %v\n%s", err, out)
		}
	})
	t.Run("iperf3", func(t *testing.T) {
		for _, args := range [][]string{{v4(1), "-n", "64M"}, {v6(1), "-n", "32M", "-R"}, {v4(1), "-u", "-b", "20M",
			"-n", "2M"}} {
			r := s.iperf(t, 1, 0, args[0], args[1:]...)
			if args[1] == "-u" {
				if r.End.Sum.Packets == 0 || r.End.Sum.LostPackets*2 > r.End.Sum.Packets {
					t.Errorf("%v: %+v", args, r)
				}
			} else if r.End.SumSent.Bytes < 32<<20 || r.End.SumReceived.Bytes == 0 {
				t.Errorf("%v: %+v", args, r)
			}
		}
	})
	t.Run("a neighbour with datagrams", func(t *testing.T) {
		s.until("packets go to it as datagrams", func() bool {
			_, err := s.in(0, "ping", "-c", "1", "-W", "1", v4(2))
			return err == nil && s.modeOf(0, v4(2)) == "datagram"
		})
		// The first gives their greatest length; by then the neighbour is known.
		s.until("the IP stack knows how long packets may be", func() bool {
			out, _ := s.in(0, "ping", "-c", "1", "-W", "1", "-M", "do", "-s", "9000", v4(2))
			return strings.Contains(out, fmt.Sprintf("mtu = %d", ipPayload)) ||
				strings.Contains(out, fmt.Sprintf("mtu=%d", ipPayload))
		})
		if out, err := s.in(0, "ping", "-c", "2", "-i", "0.05", "-s", "9000", v4(2)); err != nil {
			t.Errorf("in fragments: %v\n%s", err, out)
		}
		for _, p := range [][2]int{{0, 2}, {2, 1}} {
			if r := s.iperf(t, p[1], p[0], v4(p[1]), "-n", "8M"); r.End.SumReceived.Bytes == 0 {
				t.Errorf("%v: %+v", p, r)
			}
		}
	})
	t.Run("multicast", func(t *testing.T) {
		for _, group := range []string{"239.1.2.3:7000", "[ff02::4242]:7000"} {
			s.group(t, group, 1, 2)
		}
	})
	t.Run("another mode", func(t *testing.T) {
		lab.OnlySoak(t)
		for _, mode := range []string{"datagram", "connected"} {
			before := s.qpn(1)
			s.weft(1, "ipoib", "set", ipLink, "--mode", mode)
			s.until("the link is made anew", func() bool {
				var list []api.IPLink
				return s.nodes[1].Query(&list, "ipoib") == nil && len(list) == 1 && list[0].Carrier &&
					list[0].QPN != before && list[0].Mode == mode
			})
			s.reaches(0, v4(1))
			if mode == "datagram" {
				s.until("packets go as datagrams", func() bool { return s.modeOf(0, v4(1)) == mode })
			}
		}
		s.connects(1, v4(0))
	})
	t.Run("a peer that was killed", func(t *testing.T) {
		v, other := 1, 0
		if s.master(0, 1, 2) == v {
			v, other = other, v // the manager's end is TestIPoIBConnectedKilled's
		}
		s.nodes[v].Proc.Kill()
		if err := s.nodes[v].Again(s.flags[v]...); err != nil {
			t.Fatal(err)
		}
		s.active(0, 1, 2)
		s.carrier(v, ipLink) // the link is kept over the restart
		s.connects(other, v4(v))
		s.connects(v, v6(other))
	})
	for i := range s.nodes {
		s.weft(i, "ipoib", "del", ipLink)
		if n, err := s.nodes[i].Objects(); err != nil || n != 0 {
			t.Errorf("node %d: %d objects are left, %v", i, n, err)
		}
	}
}

// requests expects requests for connections among the packets of a cable, as RFC 4755 has them, and answers.
func (s *subnet) requests(t *testing.T, packets func(func(at time.Time, p []byte)) error) {
	t.Helper()
	var file bytes.Buffer
	w, err := pcapng.NewWriter(&file, "weft", pcapng.Interface{Name: "trunk", Type: pcapng.LinkERF})
	if err != nil {
		t.Fatal(err)
	}
	var record []byte
	if err := packets(func(at time.Time, p []byte) {
		record = pcapng.AppendNative(record[:0], at, p)
		if err := w.Write(0, at, record); err != nil {
			t.Fatal(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	x := dissect(t, file.Bytes())
	asked := x.fields2("infiniband.cm.req", "infiniband.cm.req.serviceid", "infiniband.cm.req.transpsvctype",
		"infiniband.cm.req.srq", "infiniband.cm.req.private")
	if len(asked) == 0 {
		t.Error("nobody asked for a connection")
	}
	numbers := []uint32{s.qpn(0), s.qpn(1)}
	for _, line := range asked {
		ok := false
		for i := range numbers {
			ok = ok || regexp.MustCompile(fmt.Sprintf(`^(0x)?0100000000%06x\s+0x0+\s+(0x0*1|1|True)\s+00%06x0000fff40{168}$`,
				numbers[i], numbers[1-i])).MatchString(line)
		}
		if !ok {
			t.Errorf("a request, between %#x: %q", numbers, line)
		}
	}
	said := x.fields2("infiniband.cm.rep", "infiniband.cm.rep.private")
	if !slices.ContainsFunc(said, func(l string) bool {
		return strings.HasPrefix(l, fmt.Sprintf("00%06x0000fff4", numbers[0])) ||
			strings.HasPrefix(l, fmt.Sprintf("00%06x0000fff4", numbers[1]))
	}) {
		t.Errorf("no answer has the expected data: %q", said)
	}
}

// TestIPoIBConnectedKilled: connections go on while the manager is not there, and are made anew with a peer that
// was killed, in whatever way; with WEFT_SOAK, again and again.
func TestIPoIBConnectedKilled(t *testing.T) {
	t.Parallel()
	lab.OnlySoak(t)
	s := startNodes(t, false, func(i int) []string {
		manager := "auto"
		if i != 0 {
			manager = "external"
		}
		return []string{"--sm", manager, "--ipoib", "--ipoib-set", "mode=connected", "--ipoib-addr",
			ipLink + "=" + v4(i) + "/24",
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
			s.connects(p[0], v4(p[1]))
			s.connects(p[1], v6(p[0]))
		}
	}
	whole()
	again := func(i int, how syscall.Signal) {
		t.Helper()
		n := s.nodes[i]
		n.Proc.Signal(how)
		<-n.Proc.Done()
		if err := n.Again(s.flags[i]...); err != nil {
			t.Fatal(err)
		}
		s.active(0, 1, 2)
	}
	for range 3 {
		for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			x := s.stream(t, a, b)
			again(m, how)
			x.more("iperf3 is at work under the manager that came back", 3)
			x.end(t)
			whole()
			x = s.stream(t, a, b)
			again(b, how) // with its interface go the sockets: the stream is over
			x.client.Signal(syscall.SIGINT)
			whole()
			if r := s.iperf(t, b, a, v4(b), "-n", "64M"); r.End.SumReceived.Bytes == 0 {
				t.Errorf("%+v", r)
			}
		}
	}
}

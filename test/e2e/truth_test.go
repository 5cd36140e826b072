// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"weft/internal/control/api"
)

// examine runs weft doctor at a node, and returns its failures and whether its exit code reports one.
func (s *subnet) examine(i int) (failures []api.Finding, red bool) {
	var list []api.Finding
	err := s.nodes[i].Query(&list, "doctor")
	if err == nil {
		return nil, false
	}
	out, _ := s.nodes[i].Weft("doctor")
	for _, line := range strings.Split(out, "\n") {
		if text, ok := strings.CutPrefix(line, api.LevelFail+" "); ok {
			check, what, _ := strings.Cut(strings.TrimSpace(text), ": ")
			failures = append(failures, api.Finding{Level: api.LevelFail, Check: check, What: what})
		}
	}
	return failures, true
}

// green waits until weft doctor has no failure at any node.
func (s *subnet) green() {
	s.t.Helper()
	for i := range s.nodes {
		var last []api.Finding
		s.until("weft doctor is green at node "+strconv.Itoa(i), func() bool {
			var red bool
			last, red = s.examine(i)
			return !red
		})
		if len(last) != 0 {
			s.t.Errorf("node %d: %+v", i, last)
		}
	}
}

// red waits until weft doctor fails at a node for a reason.
func (s *subnet) red(i int, what string) {
	s.t.Helper()
	s.until("weft doctor at node "+strconv.Itoa(i)+" fails for: "+what, func() bool {
		failures, red := s.examine(i)
		return red && slices.ContainsFunc(failures, func(f api.Finding) bool { return strings.Contains(f.What, what) })
	})
}

// check waits until weft check at the master has a finding of a level with a text, and returns what it printed.
func (s *subnet) check(m, from, to int, level, what string) (out string) {
	s.t.Helper()
	a, b := guid(s.device(from, native)), guid(s.device(to, native))
	s.until("weft check finds: "+what, func() bool {
		out, _ = s.nodes[m].Weft("check", a, b)
		for _, line := range strings.Split(out, "\n") {
			if strings.HasPrefix(line, level+" ") && strings.Contains(line, what) {
				return true
			}
		}
		return false
	})
	return out
}

// TestTruth: what ports have is told apart from what is intended, and each fault is found by weft check, weft doctor
// and the health of weft status.
func TestTruth(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	a, b := (m+1)%3, (m+2)%3
	for i := range s.nodes {
		s.weft(i, "wait", "--for=nodes=3,trunks,active,manager", "--timeout", "20s")
	}
	s.green()
	s.check(m, m, a, "ok", "works, with MTU 4096")

	t.Run("wait names what is missing", func(t *testing.T) {
		out, err := s.nodes[m].Weft("wait", "--for=nodes=4", "--timeout", "1s")
		if err == nil || !strings.Contains(out, "the manager counts 3 nodes, not 4. fix: weft trunk") {
			t.Errorf("%v\n%s", err, out)
		}
	})

	t.Run("cut trunk", func(t *testing.T) {
		s.cut(m, a, true)
		out := s.check(m, m, a, "warn", ": down")
		if !strings.Contains(out, "works, though") {
			t.Errorf("there is a way around:\n%s", out)
		}
		s.red(m, "nothing is received")
		s.red(a, "nothing is received")
		st, err := s.nodes[a].Status()
		if err != nil || !slices.ContainsFunc(st.Degraded, func(d api.Degraded) bool { return d.What == "trunk_down" }) {
			t.Errorf("%v, %+v", err, st.Degraded)
		}
		s.cut(m, a, false)
		s.active(0, 1, 2)
		// One between two others: the master remembers the link.
		s.cut(a, b, true)
		s.check(m, a, b, "warn", "is lost")
		s.red(m, "is lost")
		s.cut(a, b, false)
		s.active(0, 1, 2)
		s.green()
	})

	t.Run("wrong MTU", func(t *testing.T) {
		s.mtu(m, a, "1500")
		s.check(m, m, a, "warn", "the MTU differs")
		s.red(m, "path MTU")
		s.red(a, "path MTU")
		s.mtu(m, a, "9000")
		s.green()
	})

	t.Run("missing P_Key", func(t *testing.T) {
		// The ports of the other nodes get an M_Key that the next master does not have: it reads and cannot write.
		s.weft(m, "sm", "set", "--m-key", "0x77", "--m-key-lease", "60s")
		s.until("the ports are guarded", func() bool {
			var x api.Manager
			return s.nodes[m].Query(&x, "sm") == nil && x.MKey != "" && x.Sweeping == ""
		})
		s.weft(m, "sm", "sweep")
		s.active(0, 1, 2)
		s.nodes[m].Proc.Signal(syscall.SIGKILL)
		s.nodes[m].Proc.Wait(fabricLimit)
		s.nodes[m] = nil
		next := -1
		s.until("another manager is master", func() bool { next = s.master(a, b); return next >= 0 })
		other := a + b - next
		// The change is stored, and the command ends with an error that names a port that does not take it.
		out, err := s.nodes[next].Weft("pkey", "add", "0x8001", "--name", "red", guid(s.device(a, native)),
			guid(s.device(b, native)), "--yes")
		if err == nil || !strings.Contains(out, "stored, and not in force everywhere") ||
			!strings.Contains(out, "guarded by the M_Key of another manager") {
			t.Fatalf("%v\n%s", err, out)
		}
		s.until("pkey list flags what is not there", func() bool {
			var list []api.Partition
			return s.nodes[next].Query(&list, "pkey", "list") == nil && slices.ContainsFunc(list, func(p api.Partition) bool {
				return p.Name == "red" && slices.ContainsFunc(p.Members, func(x api.Member) bool {
					return x.Port == guid(s.device(other, native)) && x.Membership == api.MemberFull && x.Has == "no" &&
						x.Flag == api.FlagMissing && x.Why != ""
				})
			})
		})
		s.check(next, a, b, "fail", "does not have 0x8001 (red)")
		s.red(next, "does not have 0x8001 (red)")
		s.until("the health is red", func() bool {
			st, err := s.nodes[next].Status()
			return err == nil && slices.ContainsFunc(st.Degraded,
				func(d api.Degraded) bool { return d.What == "partition_differs" })
		})
	})
}

// cut cuts the cable between two nodes, or mends it.
func (s *subnet) cut(i, j int, cut bool) {
	s.t.Helper()
	if err := s.Cut(i, j, cut); err != nil {
		s.t.Fatal(err)
	}
}

// mtu sets the MTU of one end of the cable between two nodes.
func (s *subnet) mtu(i, j int, mtu string) {
	s.t.Helper()
	out, err := exec.Command("ip", "-n", s.Spaces[i].Name, "link", "set", "trunk"+strconv.Itoa(j), "mtu",
		mtu).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

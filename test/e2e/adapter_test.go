// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/test/lab"
)

// TestAdapterDisabled: the physical function takes every port of its node down
// and up again. The subnet loses and finds the functions, with the LIDs they
// had, and RC programs at work go on.
func TestAdapterDisabled(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	n, o := (m+1)%3, (m+2)%3
	s.weft(n, "dev", "add", "vf1")
	s.until("the function is active", func() bool { return s.device(n, "vf1").State == "ACTIVE" })
	before := [2]api.Port{s.device(n, native), s.device(n, "vf1")}
	nodes := func() int {
		var v api.Subnet
		if s.nodes[m].Query(&v, "fabric", "nodes") != nil {
			return 0
		}
		return len(v.Nodes)
	}
	s.until("the subnet has seven nodes", func() bool { return nodes() == 7 })

	events, err := lab.Start(s.nodes[n].Program("ibv_asyncwatch", "-d", native))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Kill()
	if _, err := events.Expect("async event FD", fabricLimit); err != nil {
		t.Fatal(err)
	}
	// The queue pairs wait long enough for the port (8 times 2.1 s).
	p, err := s.between(o, n, native).Start(nil, "ib_write_bw", "-F", "-D", "8", "-u", "17", "-s", "4096")
	defer p.Kill()
	if err != nil {
		t.Fatalf("%v%s", err, p.Outputs())
	}
	if err := s.between(o, n, native).Working(p); err != nil {
		t.Fatalf("%v%s", err, p.Outputs())
	}
	if out, err := s.nodes[n].Weft("dev", "set", "vf1", "--adapter=disabled"); err == nil ||
		!strings.Contains(out, "fix: weft dev set weft_ib0 --adapter=disabled") {
		t.Errorf("through a virtual function: %v\n%s", err, out)
	}
	s.weft(n, "dev", "set", native, "--adapter=disabled")
	s.until("programs get an event of the port", func() bool {
		return strings.Contains(events.Output(),
			"IBV_EVENT_PORT_ERR")
	}, events)
	s.until("the subnet has lost the functions", func() bool { return nodes() == 5 })
	if out, err := lab.Run(s.nodes[n].Program("ibv_devinfo", "-v"), 20*time.Second); err != nil ||
		strings.Count(out, "PORT_DOWN") != 3 || strings.Count(out, "DISABLED") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := s.nodes[n].Weft("wait", "--for=active", "--timeout", "5s")
	if err != nil || !strings.Contains(out, "did not wait for vf1, weft0, weft_ib0: disabled on purpose") {
		t.Errorf("%v\n%s", err, out)
	}
	st, err := s.nodes[n].Status()
	if err != nil || st.AdapterEnabled || !slices.ContainsFunc(st.Degraded, func(d api.Degraded) bool {
		return d.What == "adapter_disabled" && d.Fix == "weft dev set weft_ib0 --adapter=enabled"
	}) {
		t.Errorf("%v, %+v", err, st)
	}
	dropped := func() (sum uint64) {
		counters, err := s.nodes[n].Counters()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range counters {
			if c.Name == "drop_port" {
				sum += c.Value
			}
		}
		return sum
	}
	s.until("packets are dropped and counted", func() bool { return dropped() > 0 })

	s.weft(n, "dev", "set", native, "--adapter=enabled")
	s.until("the subnet has the functions again", func() bool { return nodes() == 7 })
	s.until("every port is active", func() bool {
		return s.device(n, native).State == "ACTIVE" &&
			s.device(n, "vf1").State == "ACTIVE"
	})
	for i, name := range []string{native, "vf1"} {
		if p := s.device(n, name); p.LID != before[i].LID || p.GIDs[0] != before[i].GIDs[0] {
			t.Errorf("%s had LID %d, %s and has %d, %s", name, before[i].LID, before[i].GIDs[0].GID, p.LID,
				p.GIDs[0].GID)
		}
	}
	s.until("programs get an event of the port again", func() bool {
		return strings.Contains(events.Output(),
			"IBV_EVENT_PORT_ACTIVE")
	}, events)
	if client, server := p.Wait(60 * time.Second); client != nil || server != nil {
		t.Errorf("programs at work meanwhile: %v, %v%s", client, server, p.Outputs())
	}
	s.between(n, o, native).pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
}

// TestFunctionsSurvive: devices that were added are there when their node starts
// again, with what was asked of them, and carry traffic.
func TestFunctionsSurvive(t *testing.T) {
	t.Parallel()
	s := openSubnet(t, false)
	m := s.master(0, 1, 2)
	n := (m + 1) % 3
	for _, i := range []int{m, n} {
		s.weft(i, "dev", "add", "gone")
		s.weft(i, "dev", "add", "vf1", "--weight", "300", "--qp", "64")
		s.weft(i, "dev", "add", "vf2", "--enabled=false")
		s.weft(i, "dev", "del", "gone")
	}
	find := func(name string) (f api.Function, ok bool) {
		var list []api.Function
		if err := s.nodes[n].Query(&list, "dev", "list"); err != nil {
			t.Fatal(err)
		}
		for _, f := range list {
			if f.Name == name {
				return f, true
			}
		}
		return f, false
	}
	active := func() {
		t.Helper()
		s.until("the functions are active", func() bool {
			return s.device(m, "vf1").State == "ACTIVE" &&
				s.device(n, "vf1").State == "ACTIVE"
		})
	}
	active()
	before, _ := find("vf1")
	if !before.Kept {
		t.Errorf("%+v", before)
	}
	s.between(m, n, "vf1").pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")

	s.weft(n, "down")
	if err := s.nodes[n].Proc.Wait(fabricLimit); err != nil {
		t.Error(err)
	}
	if err := s.nodes[n].Again(s.flags[n]...); err != nil {
		t.Fatal(err)
	}
	active()
	after, ok := find("vf1")
	if !ok || after.Number != before.Number || after.NodeGUID != before.NodeGUID || after.LID != before.LID ||
		after.Weight != 300 || after.Quotas.QPs != 64 || !after.Kept {
		t.Errorf("it was %+v\nand is %+v", before, after)
	}
	if f, ok := find("vf2"); !ok || f.Enabled || f.PortState != "DOWN" {
		t.Errorf("%+v", f)
	}
	if f, ok := find("gone"); ok {
		t.Errorf("a device that was deleted is there: %+v", f)
	}
	s.between(m, n, "vf1").pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")
	s.between(n, m, "vf1").pair(t, 60*time.Second, "ibv_rc_pingpong", "-c")

	// Without a store on disk it is said that they do not.
	b := openTestbed(t, 1500, true, 0, "--store", "memory")
	if out, err := b.Server.Weft("dev", "add", "vf1"); err != nil ||
		!strings.Contains(out, "does not survive the node's end: the store is the node's memory (--store memory)") {
		t.Errorf("%v\n%s", err, out)
	}
}

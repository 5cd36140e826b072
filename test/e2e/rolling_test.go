// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/manager"
	"weft/test/lab"
)

// streamSlots are the connections of a program of test/e2e/stream: with the next and the last member, and with those
// across.
const streamSlots = 4

// streamMember is struct member of stream.c.
type streamMember struct {
	Away, LID, Generation, Fatal                        uint64
	QP, Connected, Sent, Got, Wrong, Broken, Unexpected [streamSlots]uint64
}

// rolling is a fabric of many members, each with a program that has connections with programs of others.
type rolling struct {
	*lab.Members
	t        *testing.T
	counts   *os.File // of streamMembers, which all programs map
	programs []*lab.Proc
	guids    []string // of the ports
}

func openRolling(t *testing.T, count int, flags ...string) *rolling {
	t.Helper()
	lab.NeedNetNS(t)
	s := &rolling{t: t}
	bin := filepath.Join(t.TempDir(), "stream")
	if err := lab.BuildC(bin, "test/e2e/stream/*.c", "-libverbs"); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.counts, err = os.Create(filepath.Join(filepath.Dir(bin), "counts")); err != nil {
		t.Fatal(err)
	}
	if err := s.counts.Truncate(int64(count * binary.Size(streamMember{}))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.Members, err = lab.NewMembers(count, 1500, flags...)
	t.Cleanup(s.close)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d hosts have joined in a row after %v, each %v at most and the last %v", count,
		time.Since(began).Round(time.Millisecond), slices.Max(s.Took).Round(time.Millisecond),
		s.Took[count-1].Round(time.Millisecond))
	for i := range s.Nodes {
		s.wait(i)
	}
	s.planned()
	t.Logf("each has its trunks, and every port is active, after %v", time.Since(began).Round(time.Millisecond))
	s.idle()
	s.configure()
	for i, n := range s.Nodes {
		c := n.Program(bin, native, s.counts.Name(), strconv.Itoa(i), strconv.Itoa(count), "100")
		c.Peers = nil // it outlives its node
		p, err := lab.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		s.programs = append(s.programs, p)
	}
	s.flow("at first")
	return s
}

func (s *rolling) close() {
	if s.t.Failed() {
		for i, n := range s.Nodes {
			for _, c := range [][]string{{"status"}, {"sm"}, {"trunk"}, {"store", "status"}, {"fabric", "plan"}} {
				if i < 6 || c[0] == "status" {
					out, err := n.Weft(c...)
					s.t.Logf("node %d, weft %v (%v):\n%s", i, c, err, out)
				}
			}
			s.t.Logf("node %d printed:\n%s", i, lab.Tail(n.Proc.Output(), 60))
		}
	}
	for i, p := range s.programs {
		if s.t.Failed() {
			s.t.Logf("the program of node %d printed:\n%s", i, lab.Tail(p.Output(), 20))
		}
		p.Kill()
	}
	if s.Members != nil {
		if err := s.Members.Close(); err != nil {
			s.t.Error(err)
		}
	}
	s.counts.Close()
}

// weft runs a command at a node.
func (s *rolling) weft(i int, args ...string) string {
	s.t.Helper()
	out, err := s.Nodes[i].Weft(args...)
	if err != nil {
		s.t.Fatalf("node %d: weft %v: %v", i, args, err)
	}
	return out
}

// wait waits for a node as an operator does before the next one is restarted.
func (s *rolling) wait(i int) {
	s.t.Helper()
	s.weft(i, "wait", "--timeout", fabricLimit.String(), "--for", fmt.Sprintf("nodes=%d,trunks,active,manager",
		len(s.Nodes)))
}

func (s *rolling) until(what string, ok func() bool) {
	s.t.Helper()
	peers := make([]lab.Peer, len(s.programs))
	for i, p := range s.programs {
		peers[i] = p
	}
	if err := lab.Until(what, 2*fabricLimit, func() (bool, error) { return ok(), nil }, peers...); err != nil {
		s.t.Fatal(err)
	}
}

// planned waits until members report that the trunks of the plan are up, and logs the plan.
func (s *rolling) planned() {
	s.t.Helper()
	var p api.TrunkPlan
	s.until("the trunks of the plan are up", func() bool {
		return s.Nodes[0].Query(&p, "fabric", "plan") == nil && len(p.Members) == len(s.Nodes) &&
			!slices.ContainsFunc(p.Trunks, func(t api.PlannedTrunk) bool { return t.State != api.TrunkUp })
	})
	levels := map[string]int{}
	for _, m := range p.Members {
		levels[cmp.Or(m.Level, "member")]++
	}
	s.t.Logf("the plan is %s: %v, %d trunks", p.Form, levels, len(p.Trunks))
}

// idle measures what the nodes take while nothing happens.
func (s *rolling) idle() {
	s.t.Helper()
	span := time.Second
	if lab.Soak {
		span = 10 * time.Second
	}
	measure := func() []lab.Usage {
		list := make([]lab.Usage, len(s.Nodes))
		for i, n := range s.Nodes {
			var err error
			if list[i], err = lab.UsageOf(n.Proc.PID()); err != nil {
				s.t.Fatal(err)
			}
		}
		return list
	}
	before := measure()
	began := time.Now()
	time.Sleep(span) // the time that is measured
	took := time.Since(began)
	after := measure()
	of := func(what, unit string, value func(i int) float64) {
		var all []float64
		for i := range s.Nodes {
			all = append(all, value(i))
		}
		sum := 0.0
		for _, v := range all {
			sum += v
		}
		most := slices.Index(all, slices.Max(all))
		slices.Sort(all)
		s.t.Logf("    %-22s median %6.1f, most %6.1f (node %d), all %8.1f %s", what, all[len(all)/2], all[len(all)-1], most,
			sum, unit)
	}
	s.t.Logf("%d idle members in %v, each:", len(s.Nodes), took.Round(time.Millisecond))
	of("processor", "% of one", func(i int) float64 { return 100 * float64(after[i].CPU-before[i].CPU) / float64(took) })
	of("resident memory", "MiB", func(i int) float64 { return float64(after[i].RSS) / (1 << 20) })
	of("with shared pages once", "MiB", func(i int) float64 { return float64(after[i].PSS) / (1 << 20) })
	of("threads", "", func(i int) float64 { return float64(after[i].Threads) })
}

// configure gives the fabric something to lose.
func (s *rolling) configure() {
	s.t.Helper()
	for _, n := range s.Nodes {
		p, err := portOf(n, native)
		if err != nil {
			s.t.Fatal(err)
		}
		s.guids = append(s.guids, guid(p))
	}
	last := len(s.Nodes) - 1
	s.weft(last, "pkey", "add", "0xffff", "ALL", "--yes")
	s.weft(0, append([]string{"pkey", "add", "0x8001", "--name", "red", "--yes"}, s.guids[:last]...)...)
	s.weft(last/2, "vesw", "create", "lab")
	s.weft(0, "vesw", "port", "add", "lab", s.guids[0])
	s.weft(0, "vesw", "port", "add", "lab", s.guids[last])
	s.weft(last, "mcast", "join", isolationGroup, s.guids[0], s.guids[last], "--pkey", "0xffff", "--qkey", "2843")
}

// intent is the intent as a node reads it from the store, octet by octet.
func (s *rolling) intent(i int) (all string) {
	s.t.Helper()
	c := api.NewClient(filepath.Join(s.Nodes[i].Dir, rundir.ControlSock), nil)
	list, err := api.Call(s.t.Context(), c, api.ListStoreEntries, "subnet")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range list {
		if e.Key == manager.KeyIntent || e.Key == manager.KeyVESWs {
			all += fmt.Sprintf("%s at %d: %s\n", e.Key, e.Revision, e.Value)
		}
	}
	return all
}

// read returns what the programs have written.
func (s *rolling) read() []streamMember {
	s.t.Helper()
	list := make([]streamMember, len(s.Nodes))
	b := make([]byte, binary.Size(list))
	if _, err := s.counts.ReadAt(b, 0); err != nil {
		s.t.Fatal(err)
	}
	if _, err := binary.Decode(b, binary.LittleEndian, list); err != nil {
		s.t.Fatal(err)
	}
	return list
}

// away tells the programs that the node of one of them is about to end, or is there again.
func (s *rolling) away(i int, away bool) {
	s.t.Helper()
	b := make([]byte, 8)
	if away {
		b[0] = 1
	}
	if _, err := s.counts.WriteAt(b, int64(i*binary.Size(streamMember{}))); err != nil {
		s.t.Fatal(err)
	}
}

// flow waits until messages arrive by every connection.
func (s *rolling) flow(what string) {
	s.t.Helper()
	was, missing := s.read(), ""
	s.until(what+": messages arrive by each connection", func() bool {
		for i, m := range s.read() {
			for k := range m.Got {
				if m.Got[k] == was[i].Got[k] {
					missing = fmt.Sprintf("%d at node %d", k, i)
					return false
				}
			}
		}
		missing = ""
		return true
	})
	if missing != "" {
		s.t.Errorf("%s: no message by connection %s", what, missing)
	}
	s.errors(what)
}

// errors fails the test where a connection between members that were there had an error.
func (s *rolling) errors(what string) {
	s.t.Helper()
	for i, m := range s.read() {
		if m.Unexpected != [streamSlots]uint64{} || m.Wrong != [streamSlots]uint64{} {
			s.t.Errorf("%s: connections of node %d had errors %v, messages with wrong contents %v", what, i, m.Unexpected,
				m.Wrong)
		}
	}
}

// restart ends the node of a member and starts it again, and returns how long it was without, and until all is as
// before.
func (s *rolling) restart(i int, flags ...string) (without, all time.Duration) {
	s.t.Helper()
	was := s.read()[i]
	s.away(i, true)
	began := time.Now()
	s.weft(i, "down")
	if err := s.Nodes[i].Proc.Wait(fabricLimit); err != nil {
		s.t.Fatalf("node %d: %v", i, err)
	}
	if err := s.Nodes[i].Again(flags...); err != nil {
		s.t.Fatalf("node %d: %v", i, err)
	}
	without = time.Since(began)
	s.wait(i)
	s.until("the program opens its device again", func() bool {
		now := s.read()[i]
		return now.Generation == was.Generation+1 && now.LID == was.LID && now.Fatal == was.Fatal+1
	})
	s.away(i, false)
	all = time.Since(began)
	s.flow(fmt.Sprint("after the restart of node ", i))
	return without, all
}

// TestRollingRestart: many hosts join in a row, and their nodes are restarted one after the other. Programs of nodes
// that are not restarted have no error, those of a restarted node get the event that their device failed and open it
// again, and in the end all is as it was. It prints what an idle member takes.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	count := 3
	if lab.Soak {
		count = 40
	}
	if v := os.Getenv("WEFT_ROLLING_MEMBERS"); v != "" {
		var err error
		if count, err = strconv.Atoi(v); err != nil || count < 3 {
			t.Fatalf("WEFT_ROLLING_MEMBERS=%s is not a number of members from 3 on", v)
		}
	}
	s := openRolling(t, count)
	intent := s.intent(0)
	if strings.Count(intent, "\n") != 2 {
		t.Fatalf("the store has no intent:\n%s", intent)
	}
	began := time.Now()
	var without, all []time.Duration
	for i := range s.Nodes {
		a, b := s.restart(i)
		without, all = append(without, a), append(all, b)
		t.Logf("node %d: a node again after %v, all as before after %v, messages by each connection after %v", i,
			a.Round(time.Millisecond), b.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		if t.Failed() {
			return
		}
	}
	took := time.Since(began)
	slices.Sort(without)
	slices.Sort(all)
	t.Logf("%d restarts in %v; a node again after %v (median; %v at most), all as before after %v (%v)", count,
		took.Round(time.Millisecond), without[count/2].Round(time.Millisecond),
		without[count-1].Round(time.Millisecond), all[count/2].Round(time.Millisecond),
		all[count-1].Round(time.Millisecond))
	s.planned()
	for i := range s.Nodes {
		s.until("nothing is degraded at node "+strconv.Itoa(i), func() bool {
			st, err := s.Nodes[i].Status()
			return err == nil && len(st.Degraded) == 0
		})
		if now := s.intent(i); now != intent {
			t.Errorf("node %d: what is configured was\n%s\nand is\n%s", i, intent, now)
		}
	}
	for i := range min(count, 8) {
		j := (i + int(math.Ceil(float64(count)/2))) % count
		if out := s.weft(i, "check", s.guids[i], s.guids[j]); !strings.Contains(out, "works") {
			t.Errorf("weft check from node %d to node %d:\n%s", i, j, out)
		}
	}
	var sent uint64
	for i, m := range s.read() {
		if m.Generation != 2 || m.Fatal != 1 {
			t.Errorf("the program of node %d opened its device %d times, and had %d events that it failed", i,
				m.Generation, m.Fatal)
		}
		for _, n := range m.Sent {
			sent += n
		}
	}
	t.Logf("%d messages were sent and acknowledged", sent)
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/rundir"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/store"
	"weft/test/lab"
)

// Shape of the counts of test/e2e/crossing.
const (
	probeNodes, probeKeys = 4, 5
	members               = 3
)

// probeNode is struct node of crossing.c.
type probeNode struct {
	Beat, LID, MLID uint64
	PKey, QPN, Sent [probeKeys]uint64
	Got, GotGroup   [probeNodes][probeKeys][probeKeys]uint64
	SentFrames      uint64
	GotFrames       [probeNodes]uint64
}

// offsetMLID is where MLID of the first node is in the file.
const offsetMLID = 2 * 8

const isolationGroup = "ff15:401b:8001::7"

// The partitions, in the words of weft pkey add: member i by membership.
var isolationParts = map[uint64][members]string{
	0x8001: {"full", "limited", "limited"}, // red
	0x8002: {"", "full", "full"},           // blue
}

// isolationSwitches are the virtual Ethernet switches of the members.
var isolationSwitches = [members]string{"lab", "lab", "dark"}

// probeKind is a way to cross.
type probeKind int

const (
	byLID probeKind = iota
	byGroup
	byFrame
	probeKinds
)

var probeNames = [probeKinds]string{"datagrams", "multicasts", "frames"}

// passed counts what arrived and may, by kind, from one node to another.
type passed [probeKinds][members][members]uint64

// isolation is a fabric of three members with two partitions, two virtual Ethernet switches and a group, and a program
// at each that tries to cross all the time.
type isolation struct {
	*lab.Members
	t      *testing.T
	rng    *rand.Rand
	counts *os.File // of probeNodes, which all programs map
	bin    string
	probes [members]*lab.Proc
	client [members]*api.Client
	keys   [members][probeKeys]uint64 // the P_Key tables as they are configured
	intent string

	crossed atomic.Pointer[string] // the first probe that crossed
	stop    chan struct{}
	watch   sync.WaitGroup
	mu      sync.Mutex
	valid   passed // seconds in which probes were sent from one to another, and allowed ones arrived
	blind   passed // in which none of the allowed ones arrived
}

func openIsolation(t *testing.T, flags ...string) *isolation {
	lab.NeedNetNS(t)
	s := &isolation{t: t, stop: make(chan struct{})}
	s.bin = filepath.Join(t.TempDir(), "crossing")
	if err := lab.BuildC(s.bin, "test/e2e/crossing/*.c", "-libverbs"); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.counts, err = os.Create(filepath.Join(filepath.Dir(s.bin), "counts")); err != nil {
		t.Fatal(err)
	}
	if err := s.counts.Truncate(int64(binary.Size([probeNodes]probeNode{}))); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s.Members, err = lab.NewMembers(members, 1500, flags...)
	t.Cleanup(s.close)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range s.Nodes {
		s.client[i] = api.NewClient(filepath.Join(n.Dir, rundir.ControlSock), nil)
	}
	s.configure()
	t.Logf("a fabric of %d members with its configuration after %v", members, time.Since(began).Round(time.Millisecond))
	for i := range s.probes {
		s.probe(i)
	}
	s.watch.Go(s.judge)
	return s
}

func (s *isolation) close() {
	close(s.stop)
	s.watch.Wait()
	if s.t.Failed() {
		for i, n := range s.Nodes {
			if n.Proc == nil {
				continue
			}
			if lab.Ended(n.Proc) == nil {
				n.Proc.Signal(syscall.SIGCONT)
				for _, c := range [][]string{{"status"}, {"sm"}, {"trunk"}, {"store", "status"}, {"pkey", "list"}} {
					out, err := n.Weft(c...)
					s.t.Logf("node %d, weft %v (%v):\n%s", i, c, err, out)
				}
			}
			s.t.Logf("node %d printed:\n%s", i, lab.Tail(n.Proc.Output(), 60))
		}
	}
	for _, p := range s.probes {
		if p != nil {
			p.Kill()
		}
	}
	if s.Members != nil {
		if err := s.Members.Close(); err != nil {
			s.t.Error(err)
		}
	}
	s.counts.Close()
}

func (s *isolation) until(what string, limit time.Duration, ok func() bool) {
	s.t.Helper()
	if err := lab.Until(what, limit, func() (bool, error) { return ok(), s.verdict() }); err != nil {
		s.t.Fatal(err)
	}
}

// verdict is the first probe that crossed.
func (s *isolation) verdict() error {
	if w := s.crossed.Load(); w != nil {
		return fmt.Errorf("isolation is broken: %s", *w)
	}
	return nil
}

// configure makes partitions, switch and group, and waits until the ports have them.
func (s *isolation) configure() {
	s.t.Helper()
	weft := func(args ...string) {
		s.t.Helper()
		s.until(fmt.Sprint("weft ", args), fabricLimit, func() bool {
			m, _ := s.master()
			if m < 0 {
				return false
			}
			out, err := s.Nodes[m].Weft(args...)
			if err != nil {
				s.t.Logf("weft %v: %v %s", args, err, out)
			}
			return err == nil
		})
	}
	var guids [members]string
	for i, n := range s.Nodes {
		s.until("the port has a LID", fabricLimit, func() bool {
			p, err := portOf(n, native)
			if err == nil && p.LID != 0 {
				guids[i] = guid(p)
			}
			return guids[i] != ""
		})
	}
	for _, key := range []uint64{0x8001, 0x8002} {
		args := []string{"pkey", "add", "--yes", fmt.Sprintf("%#x", key)}
		for i, as := range isolationParts[key] {
			if as != "" {
				args = append(args, guids[i]+"="+as)
			}
		}
		weft(args...)
	}
	for i, name := range isolationSwitches {
		if !slices.Contains(isolationSwitches[:i], name) {
			weft("vesw", "create", name)
		}
		weft("vesw", "port", "add", name, guids[i])
	}
	weft("mcast", "join", isolationGroup, guids[0], guids[1], guids[2], "--pkey", "0x8001", "--qkey", "2843")
	for i, n := range s.Nodes {
		want := 2 // the default partition, and that of the virtual Ethernet switch
		for _, part := range isolationParts {
			if part[i] != "" {
				want++
			}
		}
		s.until("the port has its P_Keys", fabricLimit, func() bool {
			p, err := portOf(n, native)
			if err != nil || len(p.PKeys) != want {
				return false
			}
			for k, v := range p.PKeys {
				s.keys[i][k], _ = strconv.ParseUint(v.PKey, 0, 16)
			}
			return true
		})
	}
	s.until("the group has an MLID", fabricLimit, func() bool {
		m, _ := s.master()
		if m < 0 {
			return false
		}
		groups, err := api.Call(s.t.Context(), s.client[m], api.ListSubnetGroups, api.None{})
		for _, g := range groups {
			if err == nil && strings.HasPrefix(g.MGID, "ff15:401b:8001") && len(g.Members) == members {
				b := binary.LittleEndian.AppendUint64(nil, uint64(g.MLID))
				if _, err := s.counts.WriteAt(b, offsetMLID); err != nil {
					s.t.Fatal(err)
				}
				return true
			}
		}
		return false
	})
	s.until("each member votes in the store", fabricLimit, func() bool {
		m, _ := s.master()
		if m < 0 {
			return false
		}
		info := s.manager(m)
		return info != nil && len(info.Store.Replicas) == members &&
			!slices.ContainsFunc(info.Store.Replicas, func(r api.StoreReplica) bool { return r.Role == "learner" })
	})
	s.intent = s.intended()
}

// intended is the intent as it is in the store, octet by octet, with its revisions: of partitions and groups, and of
// virtual Ethernet switches.
func (s *isolation) intended() (all string) {
	s.t.Helper()
	s.until("the store lists the intent", fabricLimit, func() bool {
		list, err := api.Call(s.t.Context(), s.client[0], api.ListStoreEntries, "subnet")
		all = ""
		for _, e := range list {
			if e.Key == manager.KeyIntent || e.Key == manager.KeyVESWs {
				all += fmt.Sprintf("%s at %d: %s\n", e.Key, e.Revision, e.Value)
			}
		}
		return err == nil && strings.Count(all, "\n") == 2
	})
	return all
}

// probe starts the program of a node.
func (s *isolation) probe(i int) {
	s.t.Helper()
	c := s.Nodes[i].Program(s.bin, native, s.counts.Name(), strconv.Itoa(i), isolationGroup, first)
	c.Peers = nil
	p, err := lab.Start(c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.probes[i] = p
}

// manager is the manager of a node, nil where the node does not answer soon.
func (s *isolation) manager(i int) *api.Manager {
	ctx, end := context.WithTimeout(context.Background(), time.Second)
	defer end()
	m, err := api.Call(ctx, s.client[i], api.GetManager, api.None{})
	if err != nil {
		return nil
	}
	return &m
}

// master returns the node that manages the subnet, -1 where none does, leaving some out, and its term.
func (s *isolation) master(without ...int) (node int, term uint64) {
	node = -1
	for i := range s.Nodes {
		if slices.Contains(without, i) || lab.Ended(s.Nodes[i].Proc) != nil {
			continue
		}
		if m := s.manager(i); m != nil && m.State == "master" && m.Elected && m.Term > term {
			node, term = i, m.Term
		}
	}
	return node, term
}

// leads reports whether a node's replica leads the store.
func (s *isolation) leads(i int) bool {
	m := s.manager(i)
	return m != nil && slices.ContainsFunc(m.Store.Replicas, func(r api.StoreReplica) bool {
		return r.Role == "leader" && strings.Contains(r.URL, s.Nodes[i].NetNS.V4+":")
	})
}

// mayTalk is the rule of partitions: one number, and not two limited members. Where a table has no key there is none.
func mayTalk(a, b uint64) bool {
	return a&0x7fff == b&0x7fff && a&0x7fff != 0 && (a|b)&0x8000 != 0
}

// count reads the counts. The first datagram or frame that may not arrive is kept as the one that crossed.
func (s *isolation) count() (now passed) {
	nodes := s.read()
	crossed := func(what string, from, to int, how ...any) {
		w := fmt.Sprintf("%s from node %d to node %d: %v", what, from, to, how)
		s.crossed.CompareAndSwap(nil, &w)
	}
	for to := range members {
		for from := range members {
			if from == to {
				continue
			}
			for k, a := range s.keys[from] {
				for j, b := range s.keys[to] {
					n, group := nodes[to].Got[from][k][j], nodes[to].GotGroup[from][k][j]
					if mayTalk(a, b) {
						now[byLID][from][to] += n
						now[byGroup][from][to] += group
					} else if n+group > 0 {
						crossed("datagrams", from, to, "from P_Key", a, "to", b, "of them multicasts", group)
					}
				}
			}
			n := nodes[to].GotFrames[from]
			if now[byFrame][from][to] = n; n > 0 && !s.allowed(byFrame, from, to) {
				crossed("frames", from, to, isolationSwitches[from], isolationSwitches[to])
			}
		}
	}
	return now
}

// allowed reports whether something of a kind may pass from one node to another.
func (s *isolation) allowed(kind probeKind, from, to int) bool {
	switch {
	case from == to:
		return false
	case kind == byFrame:
		return isolationSwitches[from] == isolationSwitches[to]
	}
	return slices.ContainsFunc(s.keys[from][:], func(a uint64) bool {
		return slices.ContainsFunc(s.keys[to][:], func(b uint64) bool { return mayTalk(a, b) })
	})
}

// read returns what the programs have written.
func (s *isolation) read() (nodes [probeNodes]probeNode) {
	b := make([]byte, binary.Size(nodes))
	_, err := s.counts.ReadAt(b, 0)
	if err == nil {
		_, err = binary.Decode(b, binary.LittleEndian, &nodes)
	}
	if err != nil {
		w := err.Error()
		s.crossed.CompareAndSwap(nil, &w)
	}
	return nodes
}

// judge reads the counts until the end: nothing that is not allowed may ever be counted. For each second it notes, for
// each two nodes, whether what is allowed arrived beside the probes: only then the probes of that second count.
func (s *isolation) judge() {
	var last passed
	var sent [members]uint64
	second := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case <-time.After(20 * time.Millisecond):
		}
		now := s.count()
		if time.Since(second) < time.Second {
			continue
		}
		second = time.Now()
		nodes := s.read()
		s.mu.Lock()
		for from := range members {
			total := uint64(0)
			for _, n := range nodes[from].Sent {
				total += n
			}
			for to := range members {
				for kind := range probeKinds {
					switch {
					case !s.allowed(kind, from, to) || total == sent[from]:
					case now[kind][from][to] > last[kind][from][to]:
						s.valid[kind][from][to]++
					default:
						s.blind[kind][from][to]++
					}
				}
			}
			sent[from] = total
		}
		last = now
		s.mu.Unlock()
	}
}

// controls waits until what is allowed arrives between each two of the nodes, both ways and by each way.
func (s *isolation) controls(what string, limit time.Duration, nodes ...int) {
	s.t.Helper()
	began, was, missing := time.Now(), s.count(), ""
	if err := lab.Until(what+": what is allowed arrives", limit, func() (bool, error) {
		now := s.count()
		for kind := range probeKinds {
			for _, a := range nodes {
				for _, b := range nodes {
					if s.allowed(kind, a, b) && now[kind][a][b] == was[kind][a][b] {
						missing = fmt.Sprintf("%s from node %d to %d", probeNames[kind], a, b)
						return false, s.verdict()
					}
				}
			}
		}
		return true, s.verdict()
	}); err != nil {
		s.t.Fatalf("%v: no %s", err, missing)
	}
	s.t.Logf("    %s: what is allowed arrives within %v, last %s", what, time.Since(began).Round(time.Millisecond),
		missing)
}

// others are the members but one.
func others(victim int) (list []int) {
	for i := range members {
		if i != victim {
			list = append(list, i)
		}
	}
	return list
}

// cut cuts a node off: what it sends, what it receives, or both.
func (s *isolation) cut(victim int, out, in, cut bool) {
	s.t.Helper()
	for _, i := range others(victim) {
		if out {
			if err := s.Cut(victim, i, cut); err != nil {
				s.t.Fatal(err)
			}
		}
		if in {
			if err := s.Cut(i, victim, cut); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

var isolationEvents = []string{"kill", "stop", "cut off", "mute", "deaf", "trunk"}

// event disturbs one member, waits until the others talk, and for another master where the member was master, and lets
// it return. It returns the time of the takeover, 0 where there was none.
func (s *isolation) event(kind string, victim int, wasMaster bool, term uint64) (took time.Duration) {
	s.t.Helper()
	n, rest := s.Nodes[victim], others(victim)
	began := time.Now()
	var back func()
	switch kind {
	case "kill":
		n.Proc.Kill()
		s.probes[victim].Kill()
		back = func() {
			if err := n.Again(); err != nil {
				s.t.Fatal(err)
			}
			s.probe(victim)
		}
	case "stop":
		n.Proc.Signal(syscall.SIGSTOP)
		back = func() { n.Proc.Signal(syscall.SIGCONT) }
	case "trunk": // one, and every connection between two members
		other := rest[s.rng.IntN(len(rest))]
		both := func(cut bool) {
			if err := s.Cut(victim, other, cut); err != nil {
				s.t.Fatal(err)
			}
			if err := s.Cut(other, victim, cut); err != nil {
				s.t.Fatal(err)
			}
		}
		both(true)
		time.Sleep(time.Duration(500+s.rng.IntN(2000)) * time.Millisecond)
		both(false)
		return 0
	default:
		out, in := kind != "deaf", kind != "mute"
		s.cut(victim, out, in, true)
		back = func() { s.cut(victim, out, in, false) }
	}
	if wasMaster {
		heir := -1
		s.until("another is master after "+kind, fabricLimit, func() bool {
			var next uint64
			heir, next = s.master(victim)
			return heir >= 0 && next > term
		})
		took = s.takeover(heir, began)
		if kind == "stop" { // beyond its lease
			time.Sleep(time.Until(began.Add(store.ElectionTTL + time.Second)))
		}
	} else {
		time.Sleep(time.Duration(s.rng.IntN(1000)) * time.Millisecond)
	}
	s.controls(fmt.Sprintf("%s of node %d, which is away", kind, victim), fabricLimit, rest...)
	back()
	return took
}

// takeover is the time until a new master has swept the subnet, by its own record.
func (s *isolation) takeover(heir int, began time.Time) (took time.Duration) {
	s.t.Helper()
	s.until("the new master has swept", fabricLimit, func() bool {
		m := s.manager(heir)
		if m == nil {
			return false
		}
		for _, x := range m.Sweeps {
			if x.Kind == "heavy" && x.StartedAt.After(began) {
				took = x.StartedAt.Add(x.TookNS).Sub(began)
				s.t.Logf("    node %d is elected after %v, and has swept after %v; %d of %d requests had no answer", heir,
					x.StartedAt.Sub(began).Round(time.Millisecond), took.Round(time.Millisecond), x.Unanswered, x.Sent)
				return true
			}
		}
		return false
	})
	return took
}

// notices opens the default partition and expects the probes to cross: else the test could not fail.
func (s *isolation) notices() {
	if s.t.Failed() {
		return
	}
	m, _ := s.master()
	if m < 0 {
		s.t.Error("there is no master")
		return
	}
	if out, err := s.Nodes[m].Weft("pkey", "add", "--yes", "0xffff", "ALL"); err != nil {
		s.t.Errorf("weft pkey add 0xffff ALL: %v\n%s", err, out)
	}
	if err := lab.Until("probes cross in an open partition", fabricLimit, func() (bool, error) {
		return s.verdict() != nil, nil
	}); err != nil {
		s.t.Error(err)
	} else {
		s.t.Logf("once the partition is open: %v", s.verdict())
	}
}

// TestIsolation: programs of three members try to cross partitions all the time, while members are killed, stopped, cut
// off one way or both and return. No datagram ever crosses, what is allowed goes on, and what is configured is equal,
// byte by byte, in the end. The test runs beside no other of this package: its programs send probes all the time, and
// an event counts only if the members return soon.
func TestIsolation(t *testing.T) {
	// Each kind of event befalls a master once, and two befall any member.
	events, seed := len(isolationEvents)+2, uint64(1)
	if lab.Soak {
		events, seed = 500, uint64(time.Now().UnixNano())
	}
	if v := os.Getenv("WEFT_ISOLATION_EVENTS"); v != "" {
		events, _ = strconv.Atoi(v)
	}
	s := openIsolation(t)
	s.rng = rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	s.controls("at first", fabricLimit, 0, 1, 2)
	began := time.Now()
	took := map[string][]time.Duration{}
	for e := range events {
		var master int
		var term uint64
		s.until("there is a master", fabricLimit, func() bool { master, term = s.master(); return master >= 0 })
		kind, victim := isolationEvents[e%len(isolationEvents)], s.rng.IntN(members)
		if e < len(isolationEvents) || s.rng.IntN(2) == 0 { // each kind befalls a master
			victim = master
		}
		leads := s.leads(victim)
		d := s.event(kind, victim, victim == master, term)
		s.controls(fmt.Sprintf("after %s of node %d", kind, victim), fabricLimit, 0, 1, 2)
		t.Logf("event %d, until %v: %s of node %d (master %d, the victim leads the store: %v), takeover %v", e,
			time.Since(began).Round(time.Millisecond), kind, victim, master, leads, d.Round(time.Millisecond))
		how := kind
		if how != "kill" && how != "stop" {
			how = "cut"
		}
		if leads {
			how += " of master and leader of the store together"
		}
		if d != 0 {
			took[how] = append(took[how], d)
		}
	}
	t.Logf("%d events in %v", events, time.Since(began).Round(time.Second))
	s.takeovers(took)
	s.until("one is master, and each port has its P_Keys", fabricLimit, func() bool {
		if m, _ := s.master(); m < 0 {
			return false
		}
		for i, n := range s.read() {
			if i < members && n.PKey != s.keys[i] {
				return false
			}
		}
		return true
	})
	if now := s.intended(); now != s.intent {
		t.Errorf("what is configured was\n%s\nand is\n%s", s.intent, now)
	}
	if err := s.verdict(); err != nil {
		t.Error(err)
	}
	defer s.notices()
	s.mu.Lock()
	defer s.mu.Unlock()
	for kind := range probeKinds {
		t.Logf("%s from each node to each: seconds in which allowed ones arrived beside the probes: %v, and did not: %v",
			probeNames[kind], s.valid[kind], s.blind[kind])
		for a := range members {
			for b := range members {
				if s.allowed(kind, a, b) && s.valid[kind][a][b] < uint64(events/2) {
					t.Errorf("only %d seconds of %s from node %d to %d count", s.valid[kind][a][b], probeNames[kind], a, b)
				}
			}
		}
	}
}

// takeovers reports how long takeovers took. On a machine with nothing else to do they keep their bounds.
func (s *isolation) takeovers(took map[string][]time.Duration) {
	s.t.Helper()
	var alone, together []time.Duration
	for how, list := range took {
		slices.Sort(list)
		s.t.Logf("takeover after %s: %d, median %v, worst %v", how, len(list), list[len(list)/2].Round(time.Millisecond),
			list[len(list)-1].Round(time.Millisecond))
		if strings.Contains(how, "together") {
			together = append(together, list...)
		} else {
			alone = append(alone, list...)
		}
	}
	for _, x := range []struct {
		what string
		list []time.Duration
		most time.Duration
	}{{"the master alone", alone, 2 * time.Second}, {"master and leader of the store", together, 5 * time.Second}} {
		if slices.Sort(x.list); len(x.list) == 0 {
			continue
		}
		median := x.list[len(x.list)/2]
		s.t.Logf("takeover from %s: median %v of %d", x.what, median.Round(time.Millisecond), len(x.list))
		if lab.Soak && median > x.most {
			s.t.Errorf("takeover from %s: median %v, want at most %v", x.what, median, x.most)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// nowhere is a link that leads to no other node.
type nowhere struct{}

func (nowhere) Send(mono.Time, *pkt.Burst, *mem.Batch) mem.Result { return mem.OK }
func (nowhere) Blocked() bool                                     { return false }
func (nowhere) Flush(mono.Time)                                   {}
func (nowhere) Recv() ([]pkt.Burst, bool)                         { return nil, false }
func (nowhere) Deadline() mono.Time                               { return 0 }

// newTestLane returns a lane without sockets that does not run yet.
func newTestLane(t *testing.T) *Lane {
	t.Helper()
	base := time.Now()
	clock := func() mono.Time { return mono.Time(time.Since(base)) + 1e9 }
	l, err := newLane(hca.NewLane(hca.NewFunctions(hca.NewAdapter(&hca.Port{}, hca.DefaultLimits)), 0, nowhere{},
		nil), nowhere{}, [2]sockets{}, clock, 0,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestDoThatEndsTheLane: a function that ran is reported as run, also where the lane ends with it.
func TestDoThatEndsTheLane(t *testing.T) {
	for name, call := range map[string]func(*Lane, func()) error{"Do": (*Lane).Do, "Query": (*Lane).Query} {
		for range 200 {
			l := newTestLane(t)
			ran := false
			go l.run()
			err := call(l, func() { ran, l.stop = true, true })
			<-l.Done()
			if err != nil || !ran {
				t.Fatalf("%s: ran %v, error %v", name, ran, err)
			}
			if err := call(l, func() { t.Error("ran after the end") }); err != loop.ErrStopped {
				t.Fatalf("%s after the end: %v", name, err)
			}
		}
	}
}

// TestQuiesceWaits: for a lane in the midst of a turn, and for none that
// sleeps or itself waits.
func TestQuiesceWaits(t *testing.T) {
	self, other := &Lane{}, &Lane{}
	nb := &siblings{self: self, lanes: []*Lane{self, other}}
	for _, c := range []struct {
		name string
		busy bool
		free func()
	}{
		{"a turn ends", true, func() { other.turns.Add(1) }},
		{"falls asleep", true, func() { other.asleep.Store(true) }},
		{"waits itself", true, func() { other.asleep.Store(false); other.parked.Store(true) }},
		{"is waiting", false, nil},
	} {
		if c.busy {
			other.asleep.Store(false)
			other.parked.Store(false)
		}
		var done atomic.Bool
		end := make(chan struct{})
		go func() {
			nb.Quiesce()
			done.Store(true)
			close(end)
		}()
		if c.busy {
			for !self.parked.Load() {
				runtime.Gosched()
			}
			for range 1000 {
				runtime.Gosched()
			}
			if done.Load() {
				t.Errorf("%s: did not wait", c.name)
			}
			c.free()
		}
		<-end
		if self.parked.Load() {
			t.Errorf("%s: parked for ever", c.name)
		}
	}
	// Two that wait for each other both go on.
	other.parked.Store(false)
	second := &siblings{self: other, lanes: nb.lanes}
	both := make(chan struct{})
	go func() { second.Quiesce(); other.turns.Add(1); both <- struct{}{} }()
	go func() { nb.Quiesce(); self.turns.Add(1); both <- struct{}{} }()
	<-both
	<-both
}

// TestAwakeAfterFault: a fault may unwind a lane on its way to sleep. It copies
// afterwards, and Quiesce must not take it for one that sleeps.
func TestAwakeAfterFault(t *testing.T) {
	l := &Lane{stop: true}
	l.asleep.Store(true)
	l.guarded()
	if l.Asleep() {
		t.Error("a lane that works counts as asleep")
	}
}

// TestCheck: a lane that runs posted functions is not stuck, a sleeping lane is not woken, and a lane that does neither
// is stuck until it does.
func TestCheck(t *testing.T) {
	posted := 0
	l := &Lane{queue: loop.NewQueue(func() { posted++ })}
	now, asked := time.Unix(1000, 0), time.Time{}
	pass := func(d time.Duration) { now = now.Add(d); asked = l.Check(now, asked) }
	l.asleep.Store(true)
	for range 10 {
		pass(StuckAfter)
	}
	if l.stuck.Load() || posted != 0 {
		t.Fatal("a sleeping lane is woken, or counts as stuck")
	}
	l.asleep.Store(false)
	pass(WatchPeriod)
	pass(StuckAfter - 1)
	if l.stuck.Load() || posted != 1 {
		t.Fatalf("stuck %v, asked %d times", l.stuck.Load(), posted)
	}
	pass(1)
	if !l.stuck.Load() {
		t.Fatal("a lane that does not answer counts as well")
	}
	l.queue.Drain()
	pass(WatchPeriod)
	if l.stuck.Load() {
		t.Error("a lane that answers counts as stuck")
	}
}

// TestQuietestAvoidsStuckLanes: also where another lane has more load.
func TestQuietestAvoidsStuckLanes(t *testing.T) {
	g := &Group{lanes: []*Lane{{}, {}}}
	if g.Quietest([]int{0, 3}) != g.lanes[0] {
		t.Error("not the lane without load")
	}
	g.lanes[0].stuck.Store(true)
	if g.Quietest([]int{0, 3}) != g.lanes[1] {
		t.Error("a stuck lane gets more load")
	}
}

// packets is a link that brings the same runs once.
type packets struct {
	socketLink
	runs []pkt.Burst
}

func (p *packets) Recv() ([]pkt.Burst, bool) {
	r := p.runs
	p.runs = nil
	return r, false
}

func (p *packets) Flush(mono.Time)     {}
func (p *packets) Blocked() bool       { return false }
func (p *packets) Deadline() mono.Time { return 0 }

// TestFaultCostsOneRun: where the memory behind one run faults, the datagrams
// that came with it still reach those they are for.
func TestFaultCostsOneRun(t *testing.T) {
	path := &ib.Path{SGID: ib.GID{15: 1}, DGID: ib.GID{15: 2}}
	runs := make([]pkt.Burst, 5)
	for i := range runs {
		runs[i] = pkt.Burst{Count: 1, Path: path}
		runs[i].DestQPN = 77 << 14
	}
	runs[1].Path = nil // faults where it is looked at
	link := &packets{runs: runs}
	a := hca.NewAdapter(&hca.Port{}, hca.DefaultLimits)
	l := &Lane{queue: loop.NewQueue(func() {}), HCA: hca.NewLane(hca.NewFunctions(a), 0, link, nil), link: link,
		readable: [2]bool{true}}
	turn := func(now mono.Time) (faulted bool) {
		defer func() { faulted = recover() != nil }()
		l.Turn(now)
		return
	}
	if !turn(1e9) {
		t.Fatal("no fault")
	}
	if turn(1e9 + 1) { // at once: it must not wait for the next look at the sockets
		t.Error("the run that faulted was handled again")
	}
	if got := l.HCA.Stats.DropNoQP; got != uint64(len(runs)-1) {
		t.Errorf("%d of %d other runs were handled", got, len(runs)-1)
	}
	if turn(2e9); l.HCA.Stats.RcvdBursts != uint64(len(runs)) {
		t.Errorf("%d runs handled in all, want %d", l.HCA.Stats.RcvdBursts, len(runs))
	}
}

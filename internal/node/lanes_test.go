// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/host/hostnet"
	"weft/internal/host/rundir"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// TestQuiesceWaits: for a lane in the midst of a turn, and for none that
// sleeps or itself waits.
func TestQuiesceWaits(t *testing.T) {
	self, other := &lane{}, &lane{}
	nb := &neighbours{self: self, lanes: []*lane{self, other}}
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
	second := &neighbours{self: other, lanes: nb.lanes}
	both := make(chan struct{})
	go func() { second.Quiesce(); other.turns.Add(1); both <- struct{}{} }()
	go func() { nb.Quiesce(); self.turns.Add(1); both <- struct{}{} }()
	<-both
	<-both
}

// TestAwakeAfterFault: a fault may unwind a lane on its way to sleep. It copies
// afterwards, and Quiesce must not take it for one that sleeps.
func TestAwakeAfterFault(t *testing.T) {
	l := &lane{stop: true}
	l.asleep.Store(true)
	l.guarded()
	if l.asleep.Load() {
		t.Error("a lane that works counts as asleep")
	}
}

// TestNothingIsWrittenAfterDeregistration: when DEREG_MR is answered, no lane
// writes to the memory any more, whatever is on its way.
func TestNothingIsWrittenAfterDeregistration(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		r := run(t, func(cfg *config.Config) { cfg.Lanes = lanes })
		a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
		refused := 0
		for i := 0; i < 60 && refused < 10; i++ {
			pair(t, ib.RC, a, b)
			m, err := a.RegMR(a.pd, a.at, uint64(len(a.buf)), ib.LocalWrite|ib.RemoteWrite)
			if err != nil {
				t.Fatal(err)
			}
			const posted = 50
			for j := range posted {
				s := abi.Send{WRID: uint64(j), Opcode: uint8(ib.WRWrite)}
				if j == posted-1 {
					s.Flags = ib.Signaled
				}
				s.SetRDMA(a.at, m.RKey)
				if err := b.qp.PostSend(s, []ib.SGE{{Addr: b.at, Len: 60000, LKey: b.mr.LKey}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := a.DeregMR(m.MRN); err != nil {
				t.Fatal(err)
			}
			for j := range a.buf {
				a.buf[j] = 0x5a
			}
			for {
				list, err := b.cq.Wait(1)
				if err != nil {
					t.Fatal(err)
				}
				if list[0].Status != 0 {
					refused++
				}
				if list[0].WRID == posted-1 {
					break
				}
			}
			if k := slices.IndexFunc(a.buf, func(c byte) bool { return c != 0x5a }); k >= 0 {
				t.Fatalf("%d lanes, %d: byte %d was written after the answer", lanes, i, k)
			}
			for _, c := range []*client{a, b} {
				if err := c.qp.Destroy(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if refused == 0 {
			t.Errorf("%d lanes: every write was there before its region went: the test shows nothing", lanes)
		}
	}
}

// TestAddressesChanged: clients hear of it, new entries can be used, old ones
// stay where they are, and the files for programs follow.
func TestAddressesChanged(t *testing.T) {
	dir, err := os.MkdirTemp("", "weft")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := config.Default()
	cfg.Fabric = false // tests of the subnet say so
	cfg.Dir, cfg.RoCEPort, cfg.Lanes = dir, freePort(t), 2
	rd, err := rundir.Acquire(dir, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	ctx, stop := context.WithCancelCause(context.Background())
	n := &Node{cfg: cfg, log: slog.New(slog.DiscardHandler), dir: rd, base: time.Now().Add(-time.Second), stop: stop,
		sessions: make(map[*vhost.Session]*door)}
	n.keeper = newKeeper(n)
	if err := n.open(); err != nil {
		t.Fatal(err)
	}
	n.keeper.start(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		err := n.serve(ctx, func() { close(ready) })
		n.close()
		ended <- err
	}()
	<-ready
	defer func() {
		stop(errEnd)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	r := &running{t: t, cfg: cfg, cli: api.NewClient(filepath.Join(dir, rundir.ControlSock), nil)}
	defer r.cli.Close()

	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	events, err := a.CreateEVQ(t)
	if err != nil {
		t.Fatal(err)
	}
	pair(t, ib.RC, a, b)
	n.mu.Lock()
	t2 := *n.table
	n.mu.Unlock()
	fresh := ib.GID{10: 0xff, 11: 0xff, 12: 203, 14: 113, 15: 9}
	t2.Entries = append(slices.Clone(t2.Entries), hostnet.Entry{GID: fresh, Interface: "lo", IfIndex: 1})
	at := uint32(len(t2.Entries) - 1)
	if g, err := a.GID(at); err != nil || g.Valid != 0 {
		t.Fatalf("%+v, %v", g, err)
	}
	n.addressesChanged(&t2)
	if e, err := events.Next(); err != nil || e.Type != uint32(ib.EventGIDChange) || e.Object != 1 {
		t.Errorf("%+v, %v", e, err)
	}
	if g, err := a.GID(at); err != nil || g.Valid != 1 || g.GID != fresh || g.IfIndex != 1 {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err := a.GID(uint32(a.slot)); err != nil || g.GID != a.gid {
		t.Errorf("an old entry moved: %+v, %v", g, err)
	}
	if s := r.status(); s.Devices[0].GIDs < 2 {
		t.Errorf("%+v", s.Devices)
	}
	gids, err := filepath.Glob(filepath.Join(dir, rundir.TreeDir, "sys/class/infiniband", cfg.Device, "ports/1/gids/*"))
	if err != nil || !slices.ContainsFunc(gids, func(f string) bool {
		text, err := os.ReadFile(f)
		return err == nil && string(text) == fresh.String()+"\n"
	}) {
		t.Errorf("no file tells of %v: %v, %v", fresh, len(gids), err)
	}
	mustWrite(t, a, b, 1, 1000) // what is connected stays so
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
	l := &lane{hca: hca.NewLane(hca.NewFunctions(a), 0, link, nil), link: link, heard: [2]bool{true}}
	turn := func(now mono.Time) (faulted bool) {
		defer func() { faulted = recover() != nil }()
		l.work(now)
		return
	}
	if !turn(1e9) {
		t.Fatal("no fault")
	}
	if turn(1e9 + 1) { // at once: it must not wait for the next look at the sockets
		t.Error("the run that faulted was handled again")
	}
	if got := l.hca.Stats.DropNoQP; got != uint64(len(runs)-1) {
		t.Errorf("%d of %d other runs were handled", got, len(runs)-1)
	}
	if turn(2e9); l.hca.Stats.RcvdRuns != uint64(len(runs)) {
		t.Errorf("%d runs handled in all, want %d", l.hca.Stats.RcvdRuns, len(runs))
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// TestTraffic moves bytes between two clients over every way there is within
// a node.
func TestTraffic(t *testing.T) {
	for _, c := range []struct {
		name  string
		wire  bool
		lanes int
		o     vhosttest.Options
		count string // the lanes' counter that shows the way taken
	}{
		{"one lane", false, 1, vhosttest.Options{}, "local_bursts"},
		{"two lanes", false, 2, vhosttest.Options{}, "foreign_bursts"},
		{"over the wire", true, 1, vhosttest.Options{}, "wire_bursts"},
		{"over the wire, two lanes", true, 2, vhosttest.Options{}, "wire_bursts"},
		{"plain", false, 1, vhosttest.Options{Plain: true}, "local_bursts"},
		{"plain, two lanes", false, 2, vhosttest.Options{Plain: true}, "foreign_bursts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, func(cfg *config.Config) { cfg.WireLocal, cfg.Lanes = c.wire, c.lanes })
			a, b := r.client(t, c.o), r.client(t, vhosttest.Options{})
			for _, typ := range []ib.QPType{ib.RC, ib.UC} {
				pair(t, typ, a, b)
				for i, n := range []int{1, 1024, 1025, 40000, 64 << 10} {
					if typ == ib.UC {
						if err := post(a, b, byte(i+50), n); err != nil {
							t.Fatal(err)
						}
						// A completion means that the message was sent, not that it arrived.
						eventually(t, "the bytes arrive", func() bool { return bytes.Equal(a.buf[:n], b.buf[:n]) })
						continue
					}
					mustWrite(t, a, b, byte(i), n)
					mustWrite(t, b, a, byte(i+100), n)
				}
			}
			if r.counter(api.ScopeLane, c.count) == 0 {
				t.Errorf("no %s", c.count)
			}
			if c.wire && r.counter(api.ScopeLane, "local_bursts") != 0 {
				t.Error("short cuts although the wire was asked for")
			}
		})
	}
}

// descriptors counts this process's.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestNothingLeaks connects, works and leaves fifty times, half of them without
// a word of farewell to anything.
func TestNothingLeaks(t *testing.T) {
	r := run(t, func(cfg *config.Config) { cfg.Lanes = 2 })
	once := func(i int) {
		t.Run("", func(t *testing.T) {
			o := vhosttest.Options{Plain: i%3 == 2, ProcMem: i%3 == 1}
			a, b := r.client(t, o), r.client(t, vhosttest.Options{ProcMem: o.ProcMem})
			pair(t, ib.RC, a, b)
			mustWrite(t, a, b, byte(i), 1000)
			if i%2 == 0 {
				for _, c := range []*client{a, b} {
					if err := c.qp.Destroy(); err != nil {
						t.Fatal(err)
					}
					if err := c.cq.Destroy(); err != nil {
						t.Fatal(err)
					}
					if err := c.DeregMR(c.mr.MRN); err != nil {
						t.Fatal(err)
					}
					if err := c.DestroyPD(c.pd); err != nil {
						t.Fatal(err)
					}
				}
				for _, s := range r.status().Sessions {
					if s.Objects != 0 {
						t.Errorf("session %d keeps %d objects", s.Session, s.Objects)
					}
				}
			}
		})
		r.quiet()
	}
	for i := range 3 {
		once(i) // whatever is made once
	}
	fds, goroutines := descriptors(t), runtime.NumGoroutine()
	for i := range 50 {
		once(i)
	}
	eventually(t, fmt.Sprintf("descriptors go back to %d", fds), func() bool { return descriptors(t) <= fds })
	eventually(t, fmt.Sprintf("goroutines go back to %d", goroutines),
		func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := r.logs.count("session ended"); n != 0 {
		t.Errorf("%d sessions ended for a reason", n)
	}
	res, err := api.Get(context.Background(), r.cli, api.GetResources)
	if err != nil || len(res.PDs)+len(res.QPs)+len(res.CQs)+len(res.MRs) != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// bystander is a pair that moves data while others misbehave.
type bystander struct {
	t    *testing.T
	stop chan struct{}
	once sync.Once
	done chan struct{}
	n    int
	err  error
}

func (r *running) bystander(t *testing.T) *bystander {
	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	y := &bystander{t: t, stop: make(chan struct{}), done: make(chan struct{})}
	mustWrite(t, a, b, 1, 100)
	go func() {
		defer close(y.done)
		for y.err == nil {
			select {
			case <-y.stop:
				return
			default:
				y.n++
				y.err = write(a, b, byte(y.n), 5000)
			}
		}
	}()
	t.Cleanup(y.end) // before its memory goes
	return y
}

func (y *bystander) end() {
	y.once.Do(func() { close(y.stop) })
	<-y.done
}

// check ends the pair's traffic; it must have gone on all the time.
func (y *bystander) check() {
	y.t.Helper()
	y.end()
	if y.err != nil {
		y.t.Errorf("a session that did nothing wrong: %v", y.err)
	}
	if y.n == 0 {
		y.t.Error("the other session did not move anything")
	}
}

// TestMisbehaviour: each mistake ends the session that made it, under its name,
// with one line in the log, while others go on.
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) { testMisbehaviour(t, lanes) })
	}
}

func testMisbehaviour(t *testing.T, lanes int) {
	r := run(t, func(cfg *config.Config) { cfg.Lanes = lanes })
	y := r.bystander(t)
	for _, c := range []struct {
		name, reason string
		plain        bool
		do           func(t *testing.T, c *client)
	}{
		{"header", "bad_header", false, func(t *testing.T, c *client) { c.Send(abi.ReqGetFeatures, 0x17, nil) }},
		{"length", "bad_size", false, func(t *testing.T, c *client) {
			c.Send(abi.ReqSetFeatures, abi.VUVersion,
				make([]byte, 7))
		}},
		{"descriptors", "bad_descriptors", false, func(t *testing.T, c *client) {
			c.Send(abi.ReqAddMemReg,
				abi.VUVersion, make([]byte, abi.VUMemRegSize))
		}},
		{"unknown", "bad_request", false, func(t *testing.T, c *client) { c.Send(999, abi.VUVersion, nil) }},
		{"ring", "bad_ring", false, func(t *testing.T, c *client) {
			c.Send(abi.ReqSetRing, abi.VUVersion, abi.SetRing{Index: 1 << 30}.Append(nil))
		}},
		{"cut off", "truncated", false, func(t *testing.T, c *client) {
			c.Conn.Write([]byte{1, 0, 0, 0, 1})
			c.Conn.CloseWrite()
		}},
		{"element outside", "broken_ring", false, func(t *testing.T, c *client) { c.qp.PostHostile(8, 100) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := r.client(t, vhosttest.Options{Plain: c.plain}), r.client(t, vhosttest.Options{})
			pair(t, ib.RC, a, b)
			mustWrite(t, a, b, 7, 500)
			before, lines := r.counter(api.ScopeNode, "session_end_"+c.reason), r.logs.count("session ended")
			c.do(t, a)
			eventually(t, "the session ends as "+c.reason, func() bool {
				return r.counter(api.ScopeNode, "session_end_"+c.reason) == before+1
			})
			eventually(t, "one line in the log", func() bool { return r.logs.count("session ended") == lines+1 })
			if _, err := a.Recv(abi.ReqGetStatus); err == nil {
				t.Error("the connection is still there")
			}
			b.qp.To(ib.Err) // its peer is gone; it lives
		})
	}
	y.check()
	if n := r.counter(api.ScopeLane, "faults"); n != 0 {
		t.Errorf("%d faults", n)
	}
}

// announce gives the node one more region, of a file that can shrink.
func (c *client) announce(t *testing.T, size int) (fd int, gpa uint64) {
	t.Helper()
	fd, err := unix.MemfdCreate("shrinks", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		t.Fatal(err)
	}
	gpa = 0x10_0000_0000
	if err := c.Do(abi.ReqAddMemReg, abi.VUMemReg{GPA: gpa, Size: uint64(size), UserAddr: gpa}.Append(nil),
		fd); err != nil {
		t.Fatal(err)
	}
	return fd, gpa
}

// TestMemoryTakenAway: a client that truncates its memory faults the lane that
// reads or writes it, and only its own session ends.
func TestMemoryTakenAway(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		for _, reads := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d lanes, reads %v", lanes, reads), func(t *testing.T) {
				r := run(t, func(cfg *config.Config) { cfg.Lanes = lanes })
				y := r.bystander(t)
				a, b := r.client(t, vhosttest.Options{Plain: true}), r.client(t, vhosttest.Options{})
				pair(t, ib.RC, a, b)
				fd, gpa := a.announce(t, 1<<20)
				m, err := a.RegMR(a.pd, gpa, 1<<20, ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				if err := unix.Ftruncate(fd, 0); err != nil {
					t.Fatal(err)
				}
				before := r.counter(api.ScopeNode, "session_end_broken_ring")
				s := abi.Send{WRID: 1, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
				if reads { // the node reads what is gone
					s.SetRDMA(b.at, b.mr.RKey)
					err = a.qp.PostSend(s, []ib.SGE{{Addr: gpa, Len: 60000, LKey: m.LKey}}, nil)
				} else { // it writes, for the peer
					s.SetRDMA(gpa, m.RKey)
					err = b.qp.PostSend(s, []ib.SGE{{Addr: b.at, Len: 60000, LKey: b.mr.LKey}}, nil)
				}
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "the session ends", func() bool {
					return r.counter(api.ScopeNode,
						"session_end_broken_ring") == before+1
				})
				if n := r.counter(api.ScopeLane, "faults"); n == 0 {
					t.Error("no fault counted")
				}
				eventually(t, "the log has it", func() bool {
					return r.logs.count("session ended",
						"memory taken away") == 1
				})
				y.check()
				if !reads { // the peer learns what became of its request
					if list, err := b.cq.Wait(1); err != nil || list[0].Status == 0 {
						t.Errorf("%+v %v", list, err)
					}
				}
				// The peer lives: it can be used again.
				if err := b.qp.To(ib.Reset); err != nil {
					t.Error(err)
				}
				c := r.client(t, vhosttest.Options{})
				pair(t, ib.RC, b, c)
				mustWrite(t, b, c, 9, 700)
			})
		}
	}
}

// TestSealed: a program must not announce memory that can shrink.
func TestSealed(t *testing.T) {
	r := run(t, nil)
	a := r.client(t, vhosttest.Options{})
	fd, err := unix.MemfdCreate("shrinks", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	if err := a.Do(abi.ReqAddMemReg, abi.VUMemReg{GPA: 4096, Size: 4096, UserAddr: 4096}.Append(nil), fd); err == nil {
		t.Error("memory without a seal was accepted")
	}
	eventually(t, "the session ends", func() bool { return r.counter(api.ScopeNode, "session_end_bad_memory") == 1 })
}

// TestVanish: a client that closes in mid traffic takes nothing with it; its
// peer's requests end in errors.
func TestVanish(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			r := run(t, func(cfg *config.Config) { cfg.Lanes = lanes })
			y := r.bystander(t)
			for i := range 10 {
				a, b := r.client(t, vhosttest.Options{Plain: i%2 == 0}), r.client(t, vhosttest.Options{})
				pair(t, ib.RC, a, b)
				mustWrite(t, a, b, 1, 1000)
				for range 20 {
					s := abi.Send{WRID: 1, Opcode: uint8(ib.WRWrite)}
					s.SetRDMA(b.at, b.mr.RKey)
					if err := a.qp.PostSend(s, []ib.SGE{{Addr: a.at, Len: 60000, LKey: a.mr.LKey}}, nil); err != nil {
						t.Fatal(err)
					}
					s.SetRDMA(a.at, a.mr.RKey)
					if err := b.qp.PostSend(s, []ib.SGE{{Addr: b.at, Len: 60000, LKey: b.mr.LKey}}, nil); err != nil {
						t.Fatal(err)
					}
				}
				before := r.counter(api.ScopeNode, "session_end_gone")
				a.Close()
				eventually(t, "the session ends", func() bool {
					return r.counter(api.ScopeNode,
						"session_end_gone") > before
				})
				if err := b.qp.Destroy(); err != nil {
					t.Fatal(err)
				}
				b.Close()
			}
			y.check()
			if n := r.counter(api.ScopeLane, "faults"); n != 0 {
				t.Errorf("%d faults", n)
			}
		})
	}
}

// TestOnePlainFrontEnd: a function serves one plain front-end at a time, which knows its queue pairs by their numbers on
// the wire; another one is refused, and finds the place free when the first has gone.
func TestOnePlainFrontEnd(t *testing.T) {
	r := run(t, nil)
	t.Run("", func(t *testing.T) {
		a := r.client(t, vhosttest.Options{Plain: true})
		q, err := a.CreateQP(t, vhosttest.QPOptions{Type: ib.RC, PD: a.pd, Send: a.cq, Recv: a.cq})
		if err != nil {
			t.Fatal(err)
		}
		res, err := api.Get(context.Background(), r.cli, api.GetResources)
		if err != nil || len(res.QPs) != 1 || uint32(res.QPs[0].LQPN) != q.Num {
			t.Fatalf("CREATE_QP returned %d, the node has %+v, %v", q.Num, res.QPs, err)
		}
		lines := r.logs.count("at a time: another session")
		if _, err := vhosttest.Connect(t, r.socket(), vhosttest.Options{Plain: true}); err == nil {
			t.Error("a second plain front-end was accepted")
		}
		eventually(t, "the refusal is in the log", func() bool { return r.logs.count("at a time: another session") > lines })
		a.qp = q
		a.qp.To(ib.Err) // it is still served
	})
	eventually(t, "the first has gone", func() bool { return len(r.status().Sessions) == 0 })
	r.client(t, vhosttest.Options{Plain: true})
}

// TestPlainFrontEndReturns: a front-end that connects while the last one is on its way out is served. It cannot know when
// the node has noticed the end of a connection.
func TestPlainFrontEndReturns(t *testing.T) {
	r := run(t, nil)
	b := r.client(t, vhosttest.Options{})
	a := r.client(t, vhosttest.Options{Plain: true})
	pair(t, ib.RC, a, b) // its end notifies a peer
	time.AfterFunc(200*time.Millisecond, func() { a.Conn.Close() })
	r.client(t, vhosttest.Options{Plain: true})
}

// TestReset: a reset destroys a plain driver's objects and nothing else.
func TestReset(t *testing.T) {
	r := run(t, nil)
	a, b := r.client(t, vhosttest.Options{Plain: true}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	mustWrite(t, a, b, 1, 100)
	if err := a.Do(abi.ReqSetStatus, vhosttest.U64(0)); err != nil {
		t.Fatal(err)
	}
	if s := r.status().Sessions; len(s) != 2 || s[0].Objects != 0 || s[1].Objects != 4 {
		t.Errorf("%+v", s)
	}
}

func TestIdleExit(t *testing.T) {
	r := run(t, func(cfg *config.Config) { cfg.IdleExit = 300 * time.Millisecond })
	var left time.Time
	t.Run("", func(t *testing.T) {
		r.client(t, vhosttest.Options{})
		select {
		case err := <-r.done:
			t.Fatalf("the node ended although somebody uses it: %v", err)
		case <-time.After(600 * time.Millisecond): // twice its patience
		}
		left = time.Now()
	})
	select {
	case err := <-r.done:
		r.done <- err
	case <-time.After(limit):
		t.Fatal("the node stays although nobody uses it")
	}
	if d := time.Since(left); d < r.cfg.IdleExit {
		t.Errorf("the node ended %v after its last session", d)
	}
	if _, err := os.Stat(r.socket()); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestShutdown(t *testing.T) {
	r := run(t, nil)
	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	if err := api.Do(context.Background(), r.cli, api.Shutdown, api.None{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.done:
		r.done <- err
	case <-time.After(limit):
		t.Fatal("the node does not end")
	}
	if _, err := a.GetU64(abi.ReqGetStatus); err == nil {
		t.Error("the session lives on")
	}
}

// TestState: the status shows the real state.
func TestState(t *testing.T) {
	r := run(t, func(cfg *config.Config) { cfg.Lanes, cfg.WireLocal = 2, true })
	a, b := r.client(t, vhosttest.Options{ProcMem: true}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	mustWrite(t, a, b, 1, 100)
	s := r.status()
	if !s.Ready || s.PID != os.Getpid() || s.Dir != r.cfg.Dir || !s.WireLocal || len(s.Lanes) != 2 ||
		len(s.Devices) != 1 || s.Devices[0].PortState != "ACTIVE" || s.Devices[0].GIDs == 0 {
		t.Errorf("%+v", s)
	}
	if len(s.Sessions) != 2 || s.Sessions[0].PID != os.Getpid() || s.Sessions[0].Memory != "process" ||
		s.Sessions[1].Memory != "none" ||
		s.Sessions[0].Objects != 4 || s.Sessions[0].Lane == s.Sessions[1].Lane {
		t.Errorf("%+v", s.Sessions)
	}
	for _, l := range s.Lanes {
		if l.Sessions != 1 {
			t.Errorf("%+v", s.Lanes)
		}
	}
	res, err := api.Get(context.Background(), r.cli, api.GetResources)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.PDs) != 2 || len(res.MRs) != 2 || len(res.CQs) != 2 || len(res.QPs) != 2 {
		t.Fatalf("%+v", res)
	}
	for i, q := range res.QPs {
		me, peer := a, b
		if q.LQPN != uint32(a.qp.Wire) {
			me, peer = b, a
		}
		if q.LQPN != uint32(me.qp.Wire) || q.RQPN != uint32(peer.qp.Wire) || q.State != "RTS" || q.Type != "RC" ||
			q.PathMTU != 1024 || q.SameNode {
			t.Errorf("queue pair %d: %+v", i, q)
		}
	}
	if m := res.MRs[0]; m.Memory != "mapped" || m.Length != 64<<10 ||
		!slices.Equal(m.Access, []string{"local_write", "remote_write", "remote_read"}) {
		t.Errorf("%+v", m)
	}
	if c := res.CQs[0]; c.Users != 2 || c.CQE != 64 || c.Overrun {
		t.Errorf("%+v", c)
	}
	list, err := api.Get(context.Background(), r.cli, api.ListCounters)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range list {
		k := c.Scope + "/" + c.Instance + "/" + c.Name
		if seen[k] {
			t.Errorf("counter %s twice", k)
		}
		seen[k] = true
	}
	for _, want := range []string{"node//sessions", "node//session_end_broken_ring", "lane/1/drop_no_qp",
		"lane/0/faults", "session/1/commands",
		fmt.Sprintf("qp/%d/rnr_nak_sent", a.qp.Wire)} {
		if !seen[want] {
			t.Errorf("no counter %s", want)
		}
	}
	if r.counter(api.ScopeQP, "sent_packets") == 0 {
		t.Error("packets were not counted")
	}
}

// TestStateUnderTraffic queries the state while clients come and go: responses are complete, and the
// race detector finds no unsynchronized read.
func TestStateUnderTraffic(t *testing.T) {
	r := run(t, func(cfg *config.Config) { cfg.Lanes = 2 })
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			_, e1 := api.Get(context.Background(), r.cli, api.GetStatus)
			_, e2 := api.Get(context.Background(), r.cli, api.GetResources)
			_, e3 := api.Get(context.Background(), r.cli, api.ListCounters)
			if e1 != nil || e2 != nil || e3 != nil {
				done <- fmt.Errorf("%v, %v, %v", e1, e2, e3)
				return
			}
		}
	}()
	for i := range 20 {
		t.Run("", func(t *testing.T) {
			o := vhosttest.Options{Plain: i%3 == 2, ProcMem: i%3 == 1}
			a, b := r.client(t, o), r.client(t, vhosttest.Options{ProcMem: o.ProcMem})
			pair(t, ib.RC, a, b)
			mustWrite(t, a, b, byte(i), 3000)
			if o.Plain {
				if err := a.Do(abi.ReqSetStatus, vhosttest.U64(0)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestUsePutsOffTheEnd: an announced program restarts the idle time of the node.
func TestUsePutsOffTheEnd(t *testing.T) {
	r := run(t, func(cfg *config.Config) { cfg.IdleExit = 2 * time.Second }) // more than any turn of the loop takes
	var last time.Time
	for start := time.Now(); time.Since(start) < r.cfg.IdleExit*3/2; {
		last = time.Now()
		if err := api.Do(context.Background(), r.cli, api.AnnounceProgram, api.None{}); err != nil {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		select {
		case err := <-r.done:
			t.Fatalf("the node ended although somebody was to come: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	select {
	case err := <-r.done:
		r.done <- err
	case <-time.After(limit):
		t.Fatal("the node stays although nobody came")
	}
	if d := time.Since(last); d < r.cfg.IdleExit {
		t.Errorf("the node ended %v after somebody was to come", d)
	}
}

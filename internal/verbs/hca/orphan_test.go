// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/verbs/transport"
)

// runOrphans lets a lane run for the time that orphaned queue pairs take, and returns the sessions
// that were over.
func runOrphans(l *Lane) (gone []*Session) {
	l.SetOrphanEnded(func(s *Session) {
		s.a.Detach(s)
		gone = append(gone, s)
	})
	now := mono.Time(2)
	for range 200 {
		l.Run(now)
		if d := l.Deadline(); d != 0 {
			now = max(now, d)
		}
		now = now.Add(time.Microsecond)
	}
	return gone
}

// TestOrphan: the program of one end is gone. The other's queue pair fails, whether
// it had requests on their way or only waited, and nothing is left.
func TestOrphan(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	a.postRecv(7, 0, 64)
	b.post(transport.SendWR{ID: 1, Op: ib.WRSend, Flags: ib.Signaled, SGE: b.sge(0, 8)})
	drive(t, l)
	a.expect(ib.Success)
	b.expect(ib.Success)
	a.postRecv(8, 0, 64)
	if !b.s.Orphan(2) {
		t.Fatal("no peer was found")
	}
	if b.s.Orphan(2) || b.s.Objects() != 0 || len(b.s.Inspect().QPs) != 0 || l.all.At(0).Sessions() != 1 ||
		len(l.Sessions()) != 1 {
		t.Errorf("a session that parts has %d objects, %d sessions", b.s.Objects(), l.all.At(0).Sessions())
	}
	if gone := runOrphans(l); len(gone) != 1 || gone[0] != b.s {
		t.Errorf("over: %v", gone)
	}
	a.expect(ib.WRFlushErr)
	b.expect()
	if len(a.events) != 1 || a.events[0] != ib.EventQPReqErr || len(b.events) != 0 ||
		a.q.Transport().State() != ib.Err {
		t.Errorf("events %v and %v, %v", a.events, b.events, a.q.Transport().State())
	}
	if len(l.orphans) != 0 || len(l.timers) != 0 || l.all.At(0).Session(b.q.Num()) != nil || l.Stats.OrphanedQPs != 1 {
		t.Errorf("left: %d sessions, %d timers", len(l.orphans), len(l.timers))
	}
}

// TestOrphanWithRequests: the peer had posted a request; its completion has the reason.
func TestOrphanWithRequests(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	if !b.s.Orphan(2) {
		t.Fatal("no peer was found")
	}
	a.postRecv(8, 0, 64)
	a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: a.sge(0, 8)})
	drive(t, l)
	a.expect(ib.RemOpErr, ib.WRFlushErr)
	if gone := runOrphans(l); len(gone) != 1 {
		t.Errorf("over: %v", gone)
	}
}

// TestOrphanWithoutPeer: where there is no peer the session is closed at once, and queue
// pairs that its program destroyed send nothing.
func TestOrphanWithoutPeer(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	b.must(b.s.DestroyQP(2, b.q.Slot()))
	c := newClient(t, l, 4096).qp(QPConfig{Type: ib.UD})
	d := newClient(t, l, 4096).qp(QPConfig{Type: ib.RC})
	for _, s := range []*Session{b.s, c.s, d.s} {
		if s.Orphan(2) {
			t.Error("a session without a peer parts")
		}
		l.all.At(0).Detach(s)
	}
	runOrphans(l)
	if a.expect(); len(a.events) != 0 || a.q.Transport().State() != ib.RTS {
		t.Errorf("events %v, %v", a.events, a.q.Transport().State())
	}
}

// TestOrphansOfEachOther: both programs die at once, and a function is removed while sessions are orphaned.
func TestOrphansOfEachOther(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	if !a.s.Orphan(2) || !b.s.Orphan(2) {
		t.Fatal("no peer was found")
	}
	if gone := runOrphans(l); len(gone) != 2 {
		t.Errorf("%d sessions are over, want 2", len(gone))
	}
	a.expect()
	b.expect()

	l, a, b = pair(t, 1<<16)
	a.s.Orphan(2)
	b.s.Close()
	f := l.all.At(0)
	f.Detach(b.s)
	b.must(l.all.Remove(f))
	if gone := runOrphans(l); len(gone) != 1 || len(l.orphans)+len(l.ready)+len(l.timers) != 0 {
		t.Errorf("%d sessions are over, left %d, %d ready, %d timers", len(gone), len(l.orphans), len(l.ready),
			len(l.timers))
	}
}

// TestOrphanReleasesNumber: a new session finds a number though orphaned sessions hold some.
func TestOrphanReleasesNumber(t *testing.T) {
	l, a, _ := pair(t, 1<<16)
	f := l.all.At(0)
	a.s.Orphan(2)
	for f.Sessions() < maxSessions-1 {
		s := l.NewSession(f, a, 1, 3, false)
		a.must(f.Attach(s))
	}
	if err := f.Attach(l.NewSession(f, a, 1, 3, false)); err != ErrNoSession {
		t.Errorf("one more than there are numbers: %v", err)
	}
	if f.Session(a.q.Num()) == a.s {
		t.Error("an orphaned session keeps its number")
	}
	if gone := runOrphans(l); len(gone) != 1 || f.Sessions() != maxSessions-1 {
		t.Errorf("%d over, %d sessions", len(gone), f.Sessions())
	}
}

// TestOrphanRecovers: a memory fault in the middle of it takes nothing from it.
func TestOrphanRecovers(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	a.postRecv(8, 0, 64)
	b.s.Orphan(2)
	l.Recover()
	if gone := runOrphans(l); len(gone) != 1 {
		t.Errorf("%d sessions are over", len(gone))
	}
	a.expect(ib.WRFlushErr)
}

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"syscall"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/verbs/transport"
)

// TestOwner: the handles of queue pairs of the session that owns a function are their numbers on the wire. Other
// sessions keep numbers from 1 on, and there is one owner at a time.
func TestOwner(t *testing.T) {
	l := newNode(t)
	a := l.all.At(0)
	program := newClient(t, l, 1<<16)
	if program.s.Number() == 0 {
		t.Error("a program got the number of the owner")
	}
	owner := newClientAttached(t, l, a, 1<<16, a.AttachOwner)
	if owner.s.Number() != 0 {
		t.Errorf("the owner has number %d", owner.s.Number())
	}
	second := l.NewSession(a, owner, 64, 64, false)
	if err := a.AttachOwner(second); !errors.Is(err, ErrOwned) {
		t.Errorf("a second owner: %v", err)
	}
	a.Detach(second) // never attached: the owner stays
	for want := uint32(2); want < 64; want++ {
		q, err := owner.s.CreateQP(&QPConfig{Type: ib.RC, PD: owner.pd, SendCQ: owner.cq, RecvCQ: owner.cq,
			Cap: transport.Cap{MaxSendWR: 1, MaxRecvWR: 1}})
		owner.must(err)
		if q.Slot() != want || q.Num() != ib.QPN(want) || a.Session(q.Num()) != owner.s {
			t.Fatalf("handle %d is %d on the wire", q.Slot(), q.Num())
		}
	}
	owner.s.Close()
	a.Detach(owner.s)
	owner.must(a.AttachOwner(second))
	for range 2 * maxSessions { // the numbers of programs wrap, and leave out that of the owner
		s := l.NewSession(a, owner, 1, 3, false)
		owner.must(a.Attach(s))
		if s.Number() == 0 || a.sessions.Load()[0] != second {
			t.Fatalf("number %d", s.Number())
		}
		a.Detach(s)
		s.Close()
	}
}

// TestOwnerAfterOrphan: the next owner does not wait for the end of the queue pairs of one that died.
func TestOwnerAfterOrphan(t *testing.T) {
	l := newNode(t)
	f := l.all.At(0)
	a := newClientAttached(t, l, f, 1<<16, f.AttachOwner).qp(QPConfig{Type: ib.RC})
	b := newClient(t, l, 1<<16).qp(QPConfig{Type: ib.RC})
	a.connect(b)
	b.connect(a)
	if !a.s.Orphan(2) {
		t.Fatal("no peer was found")
	}
	next := l.NewSession(f, a.client, 64, 64, false)
	if err := f.AttachOwner(next); err != nil {
		t.Fatal(err)
	}
	runOrphans(l)
	if f.Session(a.q.Num()) != next {
		t.Error("the end of the orphaned session took the number from its successor")
	}
}

// TestOwnerAfterPeer: the queue pairs of the next owner have other numbers than those of the last one. What the peers of
// the last one still send does not reach them.
func TestOwnerAfterPeer(t *testing.T) {
	for _, orphaned := range []bool{false, true} {
		l := newNode(t)
		f := l.all.At(0)
		a := newClientAttached(t, l, f, 1<<16, f.AttachOwner).qp(QPConfig{Type: ib.RC})
		b := newClient(t, l, 1<<16).qp(QPConfig{Type: ib.RC})
		a.connect(b)
		b.connect(a)
		if !b.s.Orphan(2) || orphaned && !a.s.Orphan(2) {
			t.Fatal("no peer was found")
		}
		if !orphaned {
			a.s.Close()
			f.Detach(a.s)
		}
		next := newClientAttached(t, l, f, 1<<16, f.AttachOwner).qp(QPConfig{Type: ib.RC})
		c := newClient(t, l, 1<<16).qp(QPConfig{Type: ib.RC})
		next.connect(c)
		c.connect(next)
		runOrphans(l)
		if next.q.Num() == a.q.Num() || next.q.Transport().State() != ib.RTS || c.q.Transport().State() != ib.RTS {
			t.Errorf("orphaned %v: queue pair %d after %d is in %v, its peer in %v", orphaned, next.q.Num(), a.q.Num(),
				next.q.Transport().State(), c.q.Transport().State())
		}
	}
}

// TestStatedMAC: the MAC of an address vector is part of the path. One of a group is only for a GID of a group.
func TestStatedMAC(t *testing.T) {
	l := newNode(t)
	c := newClient(t, l, 1<<16)
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	station, group := ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 9}, ib.GID{10: 0xff, 11: 0xff, 12: 239, 15: 9}
	for _, x := range []struct {
		to   ib.GID
		mac  [6]byte
		want error
	}{{station, mac, nil}, {station, [6]byte{}, nil}, {station, [6]byte{1, 0, 0x5e, 0, 0, 9}, syscall.EINVAL},
		{group, mac, nil}, {group, [6]byte{1, 0, 0x5e, 0, 0, 9}, nil}} {
		av := &AHAttr{DGID: x.to, SGIDIndex: 1, Global: true, DMAC: x.mac}
		h, err := c.s.CreateAH(c.pd, av)
		if err != x.want {
			t.Errorf("to %v by way of %x: %v, want %v", x.to, x.mac, err, x.want)
		}
		if err == nil && c.s.ahs.m[h].path.DMAC != x.mac {
			t.Errorf("the path has %x, want %x", c.s.ahs.m[h].path.DMAC, x.mac)
		}
	}
}

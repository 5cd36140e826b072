// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/ib"
)

func mgid(n byte) ib.GID { return ib.GID{0: 0xff, 1: 0x12, 15: n} }

// TestGroups attaches and detaches, and looks at what replication will see.
func TestGroups(t *testing.T) {
	s, a, b := datagrams(t)
	all := s.l.all
	rc := s.client[0].qp(QPConfig{Type: ib.RC})
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"connected", rc.q.AttachMulticast(mgid(1), 0xc001), syscall.EINVAL},
		{"unicast GID", a.q.AttachMulticast(ib.MakeGID(ib.DefaultGIDPrefix, 1), 0xc001), syscall.EINVAL},
		{"unicast LID", a.q.AttachMulticast(mgid(1), 0xbfff), syscall.EINVAL},
		{"permissive LID", a.q.AttachMulticast(mgid(1), 0xffff), syscall.EINVAL},
		{"not attached", a.q.DetachMulticast(mgid(1), 0xc001), syscall.EINVAL},
		{"first", a.q.AttachMulticast(mgid(1), 0xc001), nil},
		{"again", a.q.AttachMulticast(mgid(1), 0xc001), nil},
		{"another group", a.q.AttachMulticast(mgid(2), 0xc001), nil},
		{"another function", b.q.AttachMulticast(mgid(1), 0xc001), nil},
		{"on Ethernet", newClient(t, s.l, 4096).qp(QPConfig{Type: ib.UD}).q.AttachMulticast(mgid(1), 0xc001), syscall.EOPNOTSUPP},
	} {
		if !errors.Is(c.err, c.want) && c.err != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}
	at := func(e *endpoint, fn uint16) Attachment { return Attachment{Function: fn, QPN: e.q.Num(), MLID: 0xc001} }
	first := all.Groups()
	want := Groups{ByMLID: map[ib.LID][]uint16{0xc001: {1, 2}}, ByMGID: map[GroupKey][]Attachment{
		{1, mgid(1)}: {at(a, 1)}, {1, mgid(2)}: {at(a, 1)}, {2, mgid(1)}: {at(b, 2)}}}
	if d := cmp.Diff(want.ByMLID, first.ByMLID) + cmp.Diff(want.ByMGID, first.ByMGID); d != "" {
		t.Error(d)
	}
	if err := a.s.DestroyQP(a.q.Slot()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroying a member: %v", err)
	}
	a.must(a.q.DetachMulticast(mgid(1), 0xc001))
	if got := all.Groups(); len(got.ByMLID[0xc001]) != 2 || len(got.ByMGID) != 2 {
		t.Errorf("%+v", got)
	}
	b.s.Close()
	if got := all.Groups(); len(got.ByMLID[0xc001]) != 1 || len(got.ByMGID) != 1 || got.total != 1 {
		t.Errorf("a session that ended stays in its groups: %+v", got)
	}
	a.must(a.q.DetachMulticast(mgid(2), 0xc001))
	a.must(a.s.DestroyQP(a.q.Slot()))
	if got := all.Groups(); len(got.ByMLID)+len(got.ByMGID)+got.total != 0 {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff(want.ByMLID, first.ByMLID) + cmp.Diff(want.ByMGID, first.ByMGID); d != "" {
		t.Errorf("a snapshot changed: %s", d)
	}
}

// TestGroupsAreBounded attaches to as many groups as there may be.
func TestGroupsAreBounded(t *testing.T) {
	_, a, _ := datagrams(t)
	a.s.lane.all.edit(func(n *Groups) bool { n.total = MaxAttachments - 1; return true })
	a.must(a.q.AttachMulticast(mgid(1), 0xc001))
	if err := a.q.AttachMulticast(mgid(2), 0xc001); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one too many: %v", err)
	}
}

// TestGroupsOfManyLanes edits the table from several lanes at once.
func TestGroupsOfManyLanes(t *testing.T) {
	s := newSubnet(t)
	var wg sync.WaitGroup
	for id := range 4 {
		l := NewLane(s.l.all, id, noLink{t}, nil)
		e := newClientOf(t, l, s.fn[id%2], 4096).qp(QPConfig{Type: ib.UD})
		wg.Go(func() {
			for range 50 {
				for n := range byte(4) {
					if err := e.q.AttachMulticast(mgid(n), 0xc000+ib.LID(n)); err != nil {
						t.Error(err)
					}
				}
				for n := range byte(3) {
					if err := e.q.DetachMulticast(mgid(n), 0xc000+ib.LID(n)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if g := s.l.all.Groups(); g.total != 4 || len(g.ByMGID) != 2 || len(g.ByMLID) != 1 || len(g.ByMLID[0xc003]) != 2 {
		t.Errorf("%+v", g)
	}
}

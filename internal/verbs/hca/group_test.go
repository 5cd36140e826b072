// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/verbs/hca/replicate"
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
	} {
		if !errors.Is(c.err, c.want) && c.err != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.err, c.want)
		}
	}
	at := func(e *endpoint, fn uint16) replicate.Dest {
		return replicate.Dest{Function: fn, QPN: e.q.Num(), MLID: 0xc001}
	}
	all.SetMulticastForwarding(map[ib.LID][]uint16{0xc001: {1, 2}})
	first := all.Groups()
	want := replicate.Groups{Functions: map[ib.LID][]uint16{0xc001: {1, 2}},
		Attached: map[replicate.GroupKey][]replicate.Dest{
			{Function: 1, MGID: mgid(1)}: {at(a, 1)}, {Function: 1, MGID: mgid(2)}: {at(a, 1)}, {Function: 2,
				MGID: mgid(1)}: {at(b, 2)}}}
	if d := cmp.Diff(want, first.Groups); d != "" {
		t.Error(d)
	}
	if err := a.s.DestroyQP(2, a.q.Slot()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroying a member: %v", err)
	}
	a.must(a.q.DetachMulticast(mgid(1), 0xc001))
	if got := all.Groups(); got.total != 2 || len(got.Attached) != 2 {
		t.Errorf("%+v", got)
	}
	b.s.Close()
	if got := all.Groups(); len(got.Attached) != 1 || got.total != 1 {
		t.Errorf("a session that ended stays in its groups: %+v", got)
	}
	a.must(a.q.DetachMulticast(mgid(2), 0xc001))
	a.must(a.s.DestroyQP(2, a.q.Slot()))
	if got := all.Groups(); len(got.Attached)+got.total != 0 {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff(want, first.Groups); d != "" {
		t.Errorf("a snapshot changed: %s", d)
	}
}

// ipGroups is the host's part in groups: how often each was joined.
type ipGroups struct {
	joined map[ib.GID]int
	refuse error
}

func (g *ipGroups) Join(_ uint16, group ib.GID) error {
	if g.refuse == nil {
		g.joined[group]++
	}
	return g.refuse
}
func (g *ipGroups) Leave(_ uint16, group ib.GID) { g.joined[group]-- }

// TestEthernetGroups: the host joins for each queue pair and leaves again, a
// group has no LID, and what the host refuses is no membership.
func TestEthernetGroups(t *testing.T) {
	l := newNode(t)
	ip := &ipGroups{joined: map[ib.GID]int{}}
	l.all.SetIPGroups(ip)
	v4, v6 := ib.GID{10: 0xff, 11: 0xff, 12: 239, 15: 7}, ib.GID{0: 0xff, 1: 0x0e, 15: 9}
	a, b := newClient(t, l, 4096).qp(QPConfig{Type: ib.UD}), newClient(t, l, 4096).qp(QPConfig{Type: ib.UD})
	if err := a.q.AttachMulticast(testGIDs[1].GID, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a unicast address: %v", err)
	}
	a.must(a.q.AttachMulticast(v4, 0))
	a.must(a.q.AttachMulticast(v4, 0xc000)) // the same group
	a.must(b.q.AttachMulticast(v4, 0xc001))
	a.must(b.q.AttachMulticast(v6, 0))
	if ip.joined[v4] != 2 || ip.joined[v6] != 1 || len(l.all.Groups().Attached[replicate.GroupKey{MGID: v4}]) != 2 {
		t.Errorf("joined %v, groups %+v", ip.joined, l.all.Groups())
	}
	ip.refuse = syscall.ENOBUFS
	if err := a.q.AttachMulticast(v6, 0); !errors.Is(err, syscall.ENOBUFS) ||
		len(l.all.Groups().Attached[replicate.GroupKey{MGID: v6}]) != 1 {
		t.Errorf("refused by the host: %v, groups %+v", err, l.all.Groups())
	}
	ip.refuse = nil
	l.all.edit(func(n *Groups) bool { n.total += MaxAttachments; return true })
	if err := a.q.AttachMulticast(v6, 0); !errors.Is(err, syscall.ENOMEM) || ip.joined[v6] != 1 {
		t.Errorf("too many: %v, joined %v", err, ip.joined)
	}
	l.all.edit(func(n *Groups) bool { n.total -= MaxAttachments; return true })
	a.must(a.q.DetachMulticast(v4, 0xc009))
	b.s.Close()
	if ip.joined[v4]+ip.joined[v6] != 0 || len(l.all.Groups().Attached)+l.all.Groups().total != 0 {
		t.Errorf("left behind: joined %v, groups %+v", ip.joined, l.all.Groups())
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
	if g := s.l.all.Groups(); g.total != 4 || len(g.Attached) != 2 {
		t.Errorf("%+v", g)
	}
}

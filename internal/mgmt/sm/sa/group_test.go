// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// TestGroupLife follows a group from a join that comes too early to the last
// member's leaving.
func TestGroupLife(t *testing.T) {
	f := start(t, 3, full)
	set := func(n int, mask mad.ComponentMask, m mad.MCMemberRecord) (mad.MCMemberRecord, mad.Status) {
		t.Helper()
		r := f.ask(ib.LID(10+n), mad.MethodSet, mad.AttrMCMemberRecord, mask, m.Append(nil))
		var got mad.MCMemberRecord
		if len(r.records) > 0 {
			got.Parse(r.records[0])
		}
		return got, r.Status
	}
	leave := func(n int, state uint8) mad.Status {
		m := member(n, state)
		return f.ask(ib.LID(10+n), mad.MethodDelete, mad.AttrMCMemberRecord, compJoin, m.Append(nil)).Status
	}
	join := func(n int, state uint8) mad.Status { _, s := set(n, compJoin, member(n, state)); return s }
	check := func(what string, got, want mad.Status) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	check("joining before there is a group", join(1, mad.JoinFull), mad.StatusSAInsufficient)
	check("a non-member's join before there is a group", join(1, mad.JoinNon), mad.StatusSARequest)
	check("joining without a port", func() mad.Status {
		_, s := set(1, mad.CompMCMGID|mad.CompMCJoinState,
			member(1, 1))
		return s
	}(), mad.StatusSAInsufficient)
	check("for another port", func() mad.Status { _, s := set(1, createMask, member(2, 1)); return s }(),
		mad.StatusSARequest)
	m := member(1, 1)
	m.PortGID = ib.MakeGID(1, guid(1))
	check("with another subnet's prefix", func() mad.Status { _, s := set(1, createMask, m); return s }(),
		mad.StatusSAInvalidGID)
	m = member(1, 1)
	m.MTU = ib.MTU4096 + 1
	check("with an MTU that the port does not have", func() mad.Status { _, s := set(1, createMask, m); return s }(),
		mad.StatusSARequest)
	m = member(1, 1)
	m.MGID[0] = 0xfe
	check("an MGID that is none", func() mad.Status { _, s := set(1, createMask, m); return s }(), mad.StatusSARequest)
	m = member(1, 1)
	m.PKey = 0x8123
	check("in a partition that the port is not in", func() mad.Status { _, s := set(1, createMask, m); return s }(),
		mad.StatusSARequest)
	if f.groups != 0 || len(f.a.Groups()) != 0 {
		t.Fatalf("refused requests left %d groups", len(f.a.Groups()))
	}

	got, status := set(1, createMask, member(1, mad.JoinFull))
	want := member(1, mad.JoinFull)
	want.MLID, want.LifeSelector, want.Life, want.Scope = 0xc000, mad.SelectExactly, 18, 2
	if diff := cmp.Diff(want, got); diff != "" || status != mad.StatusOK || f.groups != 1 {
		t.Fatalf("create: %v, %d changes\n%s", status, f.groups, diff)
	}
	check("join", join(2, mad.JoinFull), mad.StatusOK)
	check("join again", join(2, mad.JoinFull), mad.StatusOK)
	if f.groups != 2 {
		t.Errorf("a join that changes nothing made the trees be looked at: %d", f.groups)
	}
	check("join send-only", join(3, mad.JoinSendOnlyNon), mad.StatusOK)
	for name, edit := range map[string]func(*mad.MCMemberRecord){"Q_Key": func(m *mad.MCMemberRecord) { m.QKey++ },
		"P_Key":  func(m *mad.MCMemberRecord) { m.PKey = 0x8001 },
		"TClass": func(m *mad.MCMemberRecord) { m.TClass++ }, "SL": func(m *mad.MCMemberRecord) { m.SL++ },
		"FlowLabel": func(m *mad.MCMemberRecord) { m.FlowLabel++ },
		"MTU":       func(m *mad.MCMemberRecord) { m.MTU = ib.MTU4096 }, "Rate": func(m *mad.MCMemberRecord) { m.Rate = ib.Rate20 }} {
		m := member(3, 1)
		edit(&m)
		_, s := set(3, createMask, m)
		check("with another "+name, s, mad.StatusSARequest)
	}

	query := f.ask(12, mad.MethodGetTable, mad.AttrMCMemberRecord, mad.CompMCMGID,
		(&mad.MCMemberRecord{MGID: broadcast}).Append(nil))
	if len(query.records) != 1 {
		t.Fatalf("%d records", len(query.records))
	}
	got.Parse(query.records[0])
	if !got.PortGID.IsZero() || got.JoinState != mad.JoinFull|mad.JoinSendOnlyNon {
		t.Errorf("a stranger is told %+v", got)
	}
	trust := func(m *mad.SA) { m.SMKey = smKey }
	if r := f.ask(12, mad.MethodGetTable, mad.AttrMCMemberRecord, 0, nil, trust); len(r.records) != 3 {
		t.Errorf("with the SM_Key %d members", len(r.records))
	}

	check("leave what one is not", leave(3, mad.JoinFull), mad.StatusSARequest)
	check("leave by another", f.ask(11, mad.MethodDelete, mad.AttrMCMemberRecord, compJoin,
		func() []byte { m := member(2, 1); return m.Append(nil) }()).Status, mad.StatusSARequest)
	check("leave", leave(1, mad.JoinFull), mad.StatusOK)
	if len(f.a.Groups()) != 1 {
		t.Error("the group went with its founder")
	}
	check("leave last", leave(2, mad.JoinFull), mad.StatusOK)
	if len(f.a.Groups()) != 0 {
		t.Error("a group lives on without full members")
	}
	check("and again", leave(2, mad.JoinFull), mad.StatusSARequest)
}

// TestMLIDs: they are unique, used again, and there are no more than switches
// have entries.
func TestMLIDs(t *testing.T) {
	f := start(t, 1, full)
	mk := func(i byte) mad.Status {
		m := member(1, 1)
		m.MGID[15] = i
		return f.ask(11, mad.MethodSet, mad.AttrMCMemberRecord, createMask, m.Append(nil)).Status
	}
	for i := range byte(4) {
		if s := mk(i); s != mad.StatusOK {
			t.Fatal(s)
		}
	}
	if s := mk(9); s != mad.StatusSANoResources {
		t.Errorf("a fifth group: %v", s)
	}
	m := member(1, 1)
	m.MGID[15] = 2
	f.ask(11, mad.MethodDelete, mad.AttrMCMemberRecord, compJoin, m.Append(nil))
	mk(9)
	var mlids []ib.LID
	for _, g := range f.a.Groups() {
		mlids = append(mlids, g.MLID)
	}
	if !slices.Equal(mlids, []ib.LID{0xc000, 0xc001, 0xc002, 0xc003}) || f.a.Groups()[2].MGID[15] != 9 {
		t.Errorf("MLIDs %#x", mlids)
	}
	m = member(1, 1)
	m.MGID = ib.GID{}
	f.ask(11, mad.MethodDelete, mad.AttrMCMemberRecord, compJoin,
		func() []byte { m := member(1, 1); m.MGID[15] = 1; return m.Append(nil) }())
	r := f.ask(11, mad.MethodSet, mad.AttrMCMemberRecord, createMask, m.Append(nil))
	if r.Status != mad.StatusOK {
		t.Fatalf("an MGID to be made up: %v", r.Status)
	}
	m.Parse(r.records[0])
	if m.MGID[0] != 0xff || m.MGID[2] != 0xa0 || m.MGID[3] != 0x1b {
		t.Errorf("made up %v", m.MGID)
	}
}

// TestConfiguredMembers: ports that the configuration names are in a group as
// soon as they are in the subnet and the group's partition, until they are
// taken out.
func TestConfiguredMembers(t *testing.T) {
	f := start(t, 3, full)
	mgid := ib.GID{0xff, 0x12, 0x40, 0x1b, 15: 9}
	want := Group{MGID: mgid, PKey: 0xffff, MTU: ib.MTU2048, Rate: ib.Rate10,
		Members: []Member{{PortGUID: guid(1), JoinState: mad.JoinFull}, {PortGUID: guid(77), JoinState: mad.JoinFull}}}
	members := func() (list []ib.GUID) {
		for _, g := range f.a.Groups() {
			if g.MGID == mgid {
				for _, m := range g.Members {
					list = append(list, m.PortGUID)
				}
			}
		}
		return list
	}
	changes := f.groups
	if !f.a.Ensure(f.now, want) || !slices.Equal(members(), []ib.GUID{guid(1)}) || f.groups != changes+1 {
		t.Fatalf("members %v, %d changes", members(), f.groups-changes)
	}
	if changes = f.groups; !f.a.Ensure(f.now, want) || f.groups != changes {
		t.Error("the same once more is a change")
	}
	want.Members = append(want.Members, Member{PortGUID: guid(2), JoinState: mad.JoinFull})
	if f.a.Ensure(f.now, want); !slices.Equal(members(), []ib.GUID{guid(1), guid(2)}) {
		t.Errorf("members %v", members())
	}
	f.a.Remove(f.now, mgid, guid(1))
	f.a.Remove(f.now, mgid, guid(77))
	if !slices.Equal(members(), []ib.GUID{guid(2)}) {
		t.Errorf("members %v after one was removed", members())
	}
	other := want
	other.MGID[15], other.PKey = 10, 0x8005
	if f.a.Ensure(f.now, other); f.a.groups[other.MGID] == nil || len(f.a.groups[other.MGID].Members) != 0 {
		t.Error("a port is in a group of a partition that is not its own")
	}
}

// TestClosedGroups: only configured members join a closed group; other members are removed; and the group has all of
// them in the end.
func TestClosedGroups(t *testing.T) {
	f := start(t, 3, full)
	m := member(1, mad.JoinFull)
	ask := func(n int) mad.Status {
		m := member(n, mad.JoinFull)
		return f.ask(ib.LID(10+n), mad.MethodSet, mad.AttrMCMemberRecord, createMask, m.Append(nil)).Status
	}
	if s := ask(3); s != mad.StatusOK { // another client was faster
		t.Fatal(s)
	}
	want := Group{MGID: m.MGID, QKey: m.QKey, PKey: 0xffff, MTU: m.MTU, Rate: m.Rate, Closed: true,
		Members: []Member{{PortGUID: guid(1), JoinState: mad.JoinFull}}}
	if !f.a.Ensure(f.now, want) {
		t.Fatal("no room")
	}
	g := f.a.Group(m.MGID)
	if len(g.Members) != 1 || g.Members[0].PortGUID != guid(1) || !g.Closed || !g.Permanent {
		t.Errorf("%+v", g)
	}
	if s := ask(2); s != mad.StatusSADenied {
		t.Error(s)
	}
	if s := ask(1); s != mad.StatusOK {
		t.Error("a member:", s)
	}
	if s := f.a.State(f.now); len(s.Groups) != 1 || !s.Groups[0].Closed {
		t.Errorf("%+v", s)
	}
	changes := f.groups
	f.a.End(f.now, ib.GID{1})
	if f.groups != changes {
		t.Error("the end of no group is a change")
	}
	if f.a.End(f.now, m.MGID); f.a.Group(m.MGID) != nil || f.a.mlids[g.MLID] != nil || f.groups != changes+1 {
		t.Error("it is there still")
	}
	if s := ask(2); s != mad.StatusOK {
		t.Error("a new one:", s)
	}
}

// TestJoinsWaitForTables: a join is answered when switches have the group, or after a time that
// clients do not notice.
func TestJoinsWaitForTables(t *testing.T) {
	group := func(n byte) ib.GID { return ib.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 15: n} }
	join := func(f *fixture, lid ib.LID, n byte, more ...func(*mad.SA)) answer {
		t.Helper()
		m := mad.MCMemberRecord{MGID: group(n), PortGID: gid(int(lid) - 10), JoinState: mad.JoinFull, QKey: 5,
			PKey: 0xffff}
		return f.ask(lid, mad.MethodSet, mad.AttrMCMemberRecord, compCreate, m.Append(nil), more...)
	}
	answered := func(what string, r answer, want bool) {
		t.Helper()
		if got := r.Method == mad.MethodGetResp && r.Status == mad.StatusOK; got != want {
			t.Errorf("%s: answered %v, want %v (%v)", what, got, want, r.Status)
		}
	}
	t.Run("written", func(t *testing.T) {
		f := start(t, 3, full)
		f.tables = 1
		answered("a new group", join(f, 11, 1), false)
		if d := f.a.Deadline(); d != f.now.Add(tableWait) {
			t.Errorf("due at %v", d)
		}
		f.tables = 2
		answered("its second member", join(f, 12, 1), false)
		answered("another group", join(f, 13, 2), false)
		f.a.Written(0)
		f.a.Written(1)
		answered("the first tables are written", f.collect(11), true)
		f.a.Written(2)
		f.a.Written(2)
		var d mad.Datagram
		lids := map[ib.LID]int{}
		for f.a.Next(f.now, &d) {
			lids[d.DLID]++
		}
		if len(lids) != 2 || lids[12] != 1 || lids[13] != 1 {
			t.Errorf("answered %v", lids)
		}
		answered("joined again", join(f, 11, 1), true)
		if c := f.a.Counters; c.JoinsEarly != 0 || f.a.Deadline() != 0 || len(f.a.changes) != 0 {
			t.Errorf("%+v, due at %v, changes %v", c, f.a.Deadline(), f.a.changes)
		}
	})
	t.Run("never written", func(t *testing.T) {
		f := start(t, 3, full)
		f.tables = 1
		answered("asked", join(f, 11, 1), false)
		f.now = f.now.Add(tableWait - time.Millisecond)
		answered("before its time", f.collect(11), false)
		again := func(m *mad.SA) { m.TransactionID = f.tid - 1 }
		f.now = f.now.Add(time.Millisecond / 2)
		answered("asked again", join(f, 11, 1, again), false)
		f.now = f.now.Add(time.Millisecond / 2)
		answered("after its time", f.collect(11), true)
		answered("once", f.collect(11), false)
		if f.a.Counters.JoinsEarly != 1 {
			t.Errorf("%+v", f.a.Counters)
		}
	})
	t.Run("refused at once", func(t *testing.T) {
		f := start(t, 3, full)
		f.tables = 1
		join(f, 11, 1)
		m := mad.MCMemberRecord{MGID: group(1), PortGID: gid(2), JoinState: mad.JoinFull, QKey: 6, PKey: 0xffff}
		if r := f.ask(12, mad.MethodSet, mad.AttrMCMemberRecord, compCreate,
			m.Append(nil)); r.Status != mad.StatusSARequest {
			t.Errorf("another Q_Key: %v", r.Status)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		f := start(t, 3, full)
		f.a.cfg.Limits.Joins = 2
		f.tables = 1
		answered("the first", join(f, 11, 1), false)
		answered("the second", join(f, 12, 1), false)
		answered("one too many", join(f, 13, 1), true)
		if f.a.Counters.JoinsEarly != 1 {
			t.Errorf("%+v", f.a.Counters)
		}
	})
	t.Run("another master", func(t *testing.T) {
		f := start(t, 3, full)
		f.tables = 1
		join(f, 11, 1)
		f.a.SetReady(false)
		f.a.Written(1)
		f.now = f.now.Add(time.Second)
		answered("by who is master no more", f.collect(11), false)
	})
}

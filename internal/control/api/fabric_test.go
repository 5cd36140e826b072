// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeFabric records its requests.
type fakeFabric struct {
	calls []string
	fail  error
}

func (f *fakeFabric) note(words ...string) error {
	f.calls = append(f.calls, words...)
	return f.fail
}

func (f *fakeFabric) Subnet(context.Context) (Subnet, error) {
	return Subnet{Prefix: "0xfe80000000000000", Nodes: []FabricNode{{GUID: "a"}}}, f.note("subnet")
}
func (f *fakeFabric) SubnetText(_ context.Context, format string) (Text, error) {
	return Text{format}, f.note("text", format)
}
func (f *fakeFabric) Routes(context.Context) ([]SwitchRoutes, error) {
	return []SwitchRoutes{{Unicast: []Route{{LID: 3, Port: 2}}}}, f.note("routes")
}
func (f *fakeFabric) Path(_ context.Context, from, to string) (Path, error) {
	return Path{MTU: 4096}, f.note("path", from, to)
}
func (f *fakeFabric) Sweep(context.Context) error { return f.note("sweep") }
func (f *fakeFabric) Manager(context.Context) (Manager, error) {
	return Manager{State: "master"}, f.note("manager")
}
func (f *fakeFabric) SetManager(_ context.Context, c ManagerChange) error {
	if c.MKey == nil || c.Roots == nil || c.Routing != nil {
		return f.note("set")
	}
	return f.note(append([]string{"set", *c.MKey}, *c.Roots...)...)
}
func (f *fakeFabric) Trunks(context.Context) ([]Trunk, error) { return nil, f.note("trunks") }
func (f *fakeFabric) Partitions(context.Context) ([]Partition, error) {
	return []Partition{{Name: "red"}}, f.note("partitions")
}
func (f *fakeFabric) AddPartition(_ context.Context, p Partition) (Partition, error) {
	return p, f.note("add", p.PKey)
}
func (f *fakeFabric) DelPartition(_ context.Context, pkey string, members []string) error {
	return f.note(append([]string{"del", pkey}, members...)...)
}
func (f *fakeFabric) SubnetGroups(context.Context) ([]SubnetGroup, error) {
	return nil, f.note("groups")
}
func (f *fakeFabric) JoinGroup(_ context.Context, j GroupJoin) error {
	return f.note("join", j.MGID)
}
func (f *fakeFabric) LeaveGroup(_ context.Context, j GroupJoin) error {
	return f.note("leave", j.MGID)
}
func (f *fakeFabric) Store(context.Context) (Store, error) {
	return Store{Kind: "memory"}, f.note("store")
}
func (f *fakeFabric) StoreEntries(_ context.Context, tree string) ([]StoreEntry, error) {
	return nil, f.note("entries", tree)
}

func (f *fakeFabric) BackupStore(context.Context) (StoreBackup, error) {
	return StoreBackup{}, f.note("backup")
}
func (f *fakeFabric) RestoreStore(_ context.Context, r StoreRestore) (Store, error) {
	return Store{}, f.note("restore", fmt.Sprint(len(r.Content), r.Force))
}
func (f *fakeFabric) DefragStore(context.Context) (StoreDefrag, error) {
	return StoreDefrag{}, f.note("defrag")
}

// TestFabricRoundTrip: every call reaches the node with its arguments, and its
// error comes back.
func TestFabricRoundTrip(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, FullAccess, nil)), t.Context()
	calls := []struct {
		what string
		do   func() error
		want []string
	}{
		{"cannot show the fabric", func() error { _, err := Get(ctx, c, GetSubnet); return err }, []string{"subnet"}},
		{"cannot show the fabric", func() error { _, err := Call(ctx, c, GetSubnetText, "dot"); return err },
			[]string{"text", "dot"}},
		{"cannot show the fabric", func() error { _, err := Get(ctx, c, ListRoutes); return err }, []string{"routes"}},
		{"cannot show the fabric", func() error {
			_, err := Call(ctx, c, FindPath, PathQuery{From: "a b",
				To: "c@d&e"})
			return err
		}, []string{"path", "a b", "c@d&e"}},
		{"cannot sweep the subnet", func() error { return Do(ctx, c, StartSweep, None{}) }, []string{"sweep"}},
		{"cannot show the subnet manager", func() error { _, err := Get(ctx, c, GetManager); return err },
			[]string{"manager"}},
		{"cannot change the subnet manager", func() error {
			key := "random"
			return Do(ctx, c, ChangeManager, ManagerChange{MKey: &key, Roots: &[]string{"a", "b"}})
		}, []string{"set", "random", "a", "b"}},
		{"cannot list trunks", func() error { _, err := Get(ctx, c, ListTrunks); return err }, []string{"trunks"}},
		{"cannot list partitions", func() error { _, err := Get(ctx, c, ListPartitions); return err },
			[]string{"partitions"}},
		{"cannot add to the partition", func() error {
			_, err := Call(ctx, c, AddPartition,
				Partition{PKey: "0x8001"})
			return err
		}, []string{"add", "0x8001"}},
		{"cannot delete from the partition", func() error {
			return Do(ctx, c, DeletePartition, PartitionMembers{PKey: "0x1", Members: []string{"x@y", "ALL"}})
		}, []string{"del", "0x1", "x@y", "ALL"}},
		{"cannot delete from the partition", func() error {
			return Do(ctx, c, DeletePartition,
				PartitionMembers{PKey: "../x"})
		}, []string{"del", "../x"}},
		{"cannot list multicast groups", func() error { _, err := Get(ctx, c, ListSubnetGroups); return err },
			[]string{"groups"}},
		{"cannot join the multicast group", func() error { return Do(ctx, c, JoinGroup, GroupJoin{MGID: "ff12::1"}) },
			[]string{"join", "ff12::1"}},
		{"cannot leave the multicast group", func() error {
			return Do(ctx, c, LeaveGroup,
				GroupJoin{MGID: "ff12::1"})
		}, []string{"leave", "ff12::1"}},
		{"cannot show the store", func() error { _, err := Get(ctx, c, GetStore); return err }, []string{"store"}},
		{"cannot show the store", func() error { _, err := Call(ctx, c, ListStoreEntries, "a/b"); return err },
			[]string{"entries", "a/b"}},
		{"cannot back up the store", func() error { _, err := Get(ctx, c, BackupStore); return err }, []string{"backup"}},
		{"cannot restore the store", func() error {
			_, err := Call(ctx, c, RestoreStore, StoreRestore{Content: make([]byte, 4*maxRequest), Force: true})
			return err
		}, []string{"restore", "262144 true"}},
		{"cannot defragment the store", func() error { _, err := Get(ctx, c, DefragStore); return err }, []string{"defrag"}},
	}
	for _, x := range calls {
		b.calls, b.fail = nil, nil
		if err := x.do(); err != nil || !slices.Equal(b.calls, x.want) {
			t.Errorf("%v: %v, the node was asked %q", x.want, err, b.calls)
		}
		b.fail = &Error{Code: CodeNotMaster, Why: "another is", Fix: "weft sm"}
		checkError(t, x.do(), CodeNotMaster, x.what+": another is. fix: weft sm")
		b.fail = &Error{Code: CodeNotMaster, Why: x.what + ": another is", Fix: "weft sm"}
		checkError(t, x.do(), CodeNotMaster, x.what+": another is. fix: weft sm")
	}
}

func TestNoSuchFormat(t *testing.T) {
	c := client(t, serve(t, &fake{}, FullAccess, nil))
	_, err := Call(t.Context(), c, GetSubnetText, "xml")
	checkError(t, err, CodeInvalid, `cannot show the fabric: there is no format "xml". fix: weft fabric topo -o ibnetdiscover`)
}

func TestFabricAccess(t *testing.T) {
	b := &fake{}
	c, ctx := client(t, serve(t, b, ReadAccess, nil)), t.Context()
	for _, err := range []error{Do(ctx, c, StartSweep, None{}), Do(ctx, c, ChangeManager, ManagerChange{}),
		Do(ctx, c, DeletePartition, PartitionMembers{PKey: "1"}), Do(ctx, c, JoinGroup, GroupJoin{}), Do(ctx, c,
			LeaveGroup, GroupJoin{})} {
		if e, ok := err.(*Error); !ok || e.Code != CodeRefused {
			t.Errorf("a reader may change things: %v", err)
		}
	}
	if _, err := Call(ctx, c, AddPartition, Partition{}); err == nil || len(b.calls) > 0 {
		t.Errorf("%v %v", err, b.calls)
	}
	s, err := Get(ctx, c, GetSubnet)
	if diff := cmp.Diff(withLists(Subnet{Prefix: "0xfe80000000000000", Nodes: []FabricNode{{GUID: "a"}}}),
		s); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

// TestManagerChange judges what may be changed, and does not repeat keys.
func TestManagerChange(t *testing.T) {
	text := func(s string) *string { return &s }
	number := func(n int) *int { return &n }
	for _, x := range []struct {
		c    ManagerChange
		want string // empty: it is right
	}{
		{ManagerChange{Routing: text("")}, ""},
		{ManagerChange{Roots: &[]string{}}, ""},
		{ManagerChange{MKey: text("0x1122334455667788"), MKeyProtect: number(3), MKeyLeaseS: number(15)}, ""},
		{ManagerChange{MKey: text("none")}, ""},
		{ManagerChange{MKey: text("random"), MKeyLeaseS: number(65535)}, ""},
		{ManagerChange{}, "nothing is to be changed"},
		{ManagerChange{MKey: text("0")}, "an M_Key is a number of 1 to 2^64-1 such as 0x1122334455667788, or none or random"},
		{ManagerChange{MKey: text("s3cret")},
			"an M_Key is a number of 1 to 2^64-1 such as 0x1122334455667788, or none or random"},
		{ManagerChange{MKeyProtect: number(0)}, "the M_Key's protection must be 1 (others read) to 3, not 0"},
		{ManagerChange{MKeyProtect: number(4)}, "the M_Key's protection must be 1 (others read) to 3, not 4"},
		{ManagerChange{MKeyLeaseS: number(14)}, "the M_Key's lease must be 15 to 65535 seconds, not 14"},
		{ManagerChange{MKeyLeaseS: number(65536)}, "the M_Key's lease must be 15 to 65535 seconds, not 65536"},
	} {
		got := ""
		if err := x.c.Validate(); err != nil {
			got = err.Error()
		}
		if got != x.want {
			t.Errorf("want %q, got %q", x.want, got)
		}
	}
	if k, err := ParseMKey(" 0x10\n"); k != 16 || err != nil {
		t.Error(k, err)
	}
}

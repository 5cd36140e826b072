// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
)

// fakeFabric is a subnet of two nodes. FAKE_NODE "standby" answers as a node
// does that is not the master.
type fakeFabric struct {
	mode       string
	partitions []api.Partition
	groups     []api.SubnetGroup
}

func (f *fakeFabric) master() error {
	if f.mode != "standby" {
		return nil
	}
	return &api.Error{Code: api.CodeNotMaster, Why: "the master is h 02aa:0000:0001:0000 at 10.0.0.2:4792",
		Fix: "weft fabric topo --dir /run/weft on that node"}
}

func (f *fakeFabric) Subnet(context.Context) (api.Subnet, error) {
	end := func(guid string, port int, lid uint16, d string) api.FabricEnd {
		return api.FabricEnd{GUID: guid, Port: port, LID: lid, Description: d}
	}
	link := func(a, b api.FabricEnd) api.FabricLink {
		return api.FabricLink{A: a, B: b, State: "ACTIVE", MTU: 4096, Gbps: 100}
	}
	sw := api.FabricNode{GUID: "02aa:0000:0001:0000", Type: "switch", Description: "h weft switch",
		Ports: []api.FabricPort{
			{Number: 0, GUID: "02aa:0000:0001:0000", State: "ACTIVE", LID: 1, PKeys: []string{"0xffff"}}, {Number: 1,
				State: "ACTIVE", Gbps: 100}}}
	ca := api.FabricNode{GUID: "02aa:0000:0001:0002", Type: "ca", Description: "h weft_ib0\x1b[0m",
		Ports: []api.FabricPort{
			{Number: 1, GUID: "02aa:0000:0001:0003", State: "ACTIVE", LID: 2, PKeys: []string{"0x7fff", "0x8001"}}}}
	return api.Subnet{Prefix: "0xfe80000000000000", Nodes: []api.FabricNode{sw, ca},
			Links: []api.FabricLink{link(end(sw.GUID, 1, 1, sw.Description), end(ca.GUID, 1, 2, ca.Description))}},
		f.master()
}

func (f *fakeFabric) SubnetText(_ context.Context, format string) (api.Text, error) {
	return api.Text{Text: "as " + format + "\n"}, f.master()
}

func (f *fakeFabric) Routes(context.Context) ([]api.SwitchRoutes, error) {
	return []api.SwitchRoutes{{Switch: api.FabricEnd{GUID: "02aa:0000:0001:0000", LID: 1, Description: "h weft switch"},
		Unicast: []api.Route{{LID: 2, Port: 1, Hops: 1,
			To: api.FabricEnd{Description: "h weft_ib0"}}},
		Multicast: []api.MulticastRoute{{MLID: 0xc000, Ports: []int{1, 36}}}}}, f.master()
}

func (f *fakeFabric) Path(_ context.Context, from, to string) (api.Path, error) {
	return api.Path{From: api.FabricEnd{LID: 2}, To: api.FabricEnd{LID: 4}, MTU: 4096, Gbps: 100,
		Hops: []api.FabricEnd{{Description: from, Port: 1}}}, f.master()
}

// CheckPair walks a way that works, and from "broken" one that does not.
func (f *fakeFabric) CheckPair(_ context.Context, q api.PathQuery) (api.PairCheck, error) {
	end := func(port int, d string) api.FabricEnd { return api.FabricEnd{Port: port, Description: d} }
	c := api.PairCheck{Works: true, Verdict: "works, with MTU 4096", MTU: 4096, Hops: []api.CheckHop{{Out: end(1,
		"h weft_ib0"), In: end(1, "h weft switch"), State: "ACTIVE", MTU: 4096, Gbps: 100}},
		Findings: []api.Finding{{Level: api.LevelOK, Check: "port", What: "h weft_ib0: LID 2, ACTIVE"}}}
	if q.From == "broken" {
		c.Works, c.Verdict, c.Fix = false, "breaks at partition: they have no partition in common", "weft pkey add 0x8001 A B"
		c.Findings = append(c.Findings, api.Finding{Level: api.LevelFail, Check: "partition",
			What: "they have no partition in common", Fix: c.Fix})
	}
	return c, f.master()
}

func (f *fakeFabric) CheckFabric(context.Context) ([]api.Finding, error) {
	return []api.Finding{{Level: api.LevelOK, Check: "manager", What: "one master, this node"},
		{Level: api.LevelWarn, Check: "trunk", What: "h weft switch to 10.0.0.2:4792: 5 of 7 datagrams were lost",
			Fix: "weft fault list"}}, f.master()
}

func (f *fakeFabric) Sweep(context.Context) error { return f.master() }

func (f *fakeFabric) Manager(ctx context.Context) (api.Manager, error) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.Local)
	m := api.Manager{State: "master", PortGUID: "02aa:0000:0001:0000", LID: 1, Elected: true, Term: 7,
		Engine: "ftree,updn", Routed: "updn",
		Roots: []string{"02aa:0000:0001:0000"}, MKey: "store", MKeyProtect: 1, MKeyLeaseS: 60,
		Master:   api.Master{Name: "h 02aa:0000:0001:0000", GUID: "02aa:0000:0001:0000", Dir: "/run/weft"},
		Problems: []api.Problem{{Where: "h weft_ib0 port 1", What: "no answer"}}, Notes: []api.Note{{At: at,
			Text: "master, was discovering"}},
		Sweeps: []api.Sweep{{Kind: "heavy", Why: "start", StartedAt: at, TookNS: 1234567, Nodes: 2, Switches: 1,
			Links: 1, Sent: 88}}}
	m.Store, _ = f.Store(ctx)
	switch f.mode {
	case "off", "external":
		m = api.Manager{State: f.mode}
	case "standby":
		m.State, m.Elected, m.Master.Peer, m.Store.Down = "standby", false, "10.0.0.2:4792", "no route"
		m.MKey = ""
	}
	return m, nil
}

func (f *fakeFabric) SetManager(_ context.Context, c api.ManagerChange) error {
	var words []string
	text := func(name string, s *string) {
		if s != nil {
			words = append(words, name+" "+*s)
		}
	}
	number := func(name string, n *int) {
		if n != nil {
			words = append(words, fmt.Sprint(name, " ", *n))
		}
	}
	text("routing", c.Routing)
	if c.Roots != nil {
		words = append(words, fmt.Sprintf("roots %q", *c.Roots))
	}
	text("m_key", c.MKey)
	number("protect", c.MKeyProtect)
	number("lease", c.MKeyLeaseS)
	return &api.Error{Code: api.CodeInvalid, Why: strings.Join(words, "; "), Fix: "none"}
}

func (f *fakeFabric) Trunks(context.Context) ([]api.Trunk, error) {
	if f.mode == "empty" {
		return nil, nil
	}
	return []api.Trunk{{Peer: "10.0.0.2:4792", Port: 36, Up: true, Node: "02aa:0000:0002:0000", Name: "host2",
		Security: "encrypt", RTTNS: 123456,
		Limit: 8972, Sent: 5, Received: 6, Lost: 1},
		{Peer: "10.0.0.3:4792", Port: 35, Downs: 1}}, nil
}

func (f *fakeFabric) Partitions(context.Context) ([]api.Partition, error) { return f.partitions, nil }

func (f *fakeFabric) AddPartition(_ context.Context, p api.Partition) (api.Partition, error) {
	f.partitions = append(f.partitions, p)
	return p, f.master()
}

func (f *fakeFabric) DelPartition(_ context.Context, pkey string, members []string) error {
	i := slices.IndexFunc(f.partitions, func(p api.Partition) bool { return p.PKey == pkey })
	if i < 0 {
		return &api.Error{Code: api.CodeNotFound, Why: "there is no partition " + pkey, Fix: "weft pkey list"}
	}
	if len(members) == 0 {
		f.partitions = slices.Delete(f.partitions, i, i+1)
	}
	return nil
}

func (f *fakeFabric) SubnetGroups(context.Context) ([]api.SubnetGroup, error) { return f.groups, nil }

func (f *fakeFabric) JoinGroup(_ context.Context, j api.GroupJoin) error {
	g := api.SubnetGroup{MGID: j.MGID, MLID: 0xc001, PKey: j.PKey, QKey: j.QKey, MTU: j.MTU, Permanent: true}
	for _, m := range j.Members {
		g.Members = append(g.Members, api.GroupMember{PortGUID: m, Join: []string{"full"}})
	}
	f.groups = append(f.groups, g)
	return nil
}

func (f *fakeFabric) LeaveGroup(context.Context, api.GroupJoin) error {
	f.groups = nil
	return nil
}

func (f *fakeFabric) Store(context.Context) (api.Store, error) {
	return api.Store{Kind: "embedded", Version: "3.7.3", Leader: "weft", Dir: "/run/weft/store",
		Endpoints: []string{"http://10.0.0.1:2379"}, Members: 1,
		Revision: 9, SizeBytes: 20480, UsedBytes: 10240, MaxBytes: 256 << 20, Role: "voter", Generation: 2,
		Replicas: []api.StoreReplica{{Member: "a", URL: "https://10.0.0.1:4793", Role: "leader"},
			{Member: "b", URL: "https://10.0.0.2:4793", Role: "learner"}}}, nil
}

func (f *fakeFabric) BackupStore(context.Context) (api.StoreBackup, error) {
	return api.StoreBackup{Content: []byte("a backup"), Entries: 3, Revision: 9}, nil
}

func (f *fakeFabric) RestoreStore(_ context.Context, r api.StoreRestore) (api.Store, error) {
	if len(r.Content) == 0 && !r.Force {
		return api.Store{}, &api.Error{Code: api.CodeInvalid, Why: "the store has its majority", Fix: "nothing"}
	}
	if len(r.Content) != 0 && string(r.Content) != "a backup" {
		return api.Store{}, &api.Error{Code: api.CodeInvalid, Why: "that is no backup", Fix: "another file"}
	}
	return api.Store{Generation: 3}, nil
}

func (f *fakeFabric) DefragStore(context.Context) (api.StoreDefrag, error) {
	return api.StoreDefrag{Before: 1 << 20, After: 1 << 10}, nil
}

func (f *fakeFabric) StoreEntries(_ context.Context, tree string) ([]api.StoreEntry, error) {
	if tree == "none" {
		return nil, nil
	}
	return []api.StoreEntry{{Key: "election/subnet-manager/leader", Revision: 2, Size: 5, Leased: true,
		Value: "hello"}, {Key: "subnet/intent", Revision: 9, Size: 2, Value: "{}"}}, nil
}

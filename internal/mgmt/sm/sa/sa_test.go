// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mad/rmpp"
	"weft/internal/proto/mono"
)

const (
	prefix = ib.DefaultGIDPrefix
	smKey  = 0x5eed
)

// guid is the port GUID of adapter n, gid its GID.
func guid(n int) ib.GUID { return ib.GUID(0x0200000000000001 + uint64(n)<<8) }
func gid(n int) ib.GID   { return ib.MakeGID(prefix, guid(n)) }

// net is a switch with n adapters: adapter i has LID 10+i at port i of the switch; the LID of the switch is 1.
func net(n int, keys func(i int) []ib.PKey) *topo.Subnet {
	link := mad.PortInfo{PortState: ib.PortActive, LinkWidthActive: ib.Width4x, LinkSpeedActive: ib.SpeedQDR,
		LinkSpeedExtActive: ib.SpeedEDR,
		NeighborMTU:        ib.MTU4096, MTUCap: ib.MTU4096, GIDPrefix: prefix}
	s := &topo.Subnet{Prefix: prefix, Self: topo.Ref{Node: 0, Port: 0}}
	sw := topo.Node{Info: mad.NodeInfo{NodeType: mad.NodeSwitch, NodeGUID: 0x100, NumPorts: uint8(n)},
		Description: "switch",
		Switch: &topo.Switch{Info: mad.SwitchInfo{MulticastFDBCap: 4}, LFT: slices.Repeat([]uint8{0xff}, 64),
			MFT: map[ib.LID]topo.PortMask{}}}
	zero := link
	zero.LID, zero.LinkWidthActive = 1, 0
	sw.Ports = append(sw.Ports, topo.Port{GUID: 0x100, Info: zero, PKeys: []ib.PKey{0xffff}, Peer: topo.None})
	sw.Switch.LFT[1] = 0
	for i := 1; i <= n; i++ {
		ext := link
		ext.GIDPrefix = 0
		sw.Ports = append(sw.Ports, topo.Port{Info: ext, Peer: topo.Ref{Node: int32(i), Port: 1}})
		sw.Switch.LFT[10+i] = uint8(i)
	}
	s.Nodes = append(s.Nodes, sw)
	for i := 1; i <= n; i++ {
		p := link
		p.LID = ib.LID(10 + i)
		s.Nodes = append(s.Nodes, topo.Node{Info: mad.NodeInfo{NodeType: mad.NodeCA, NodeGUID: guid(i) - 1,
			PortGUID: guid(i), NumPorts: 1}, Description: fmt.Sprintf("host-%d", i),
			Ports: []topo.Port{{}, {GUID: guid(i), Info: p, PKeys: keys(i), Peer: topo.Ref{Node: 0, Port: uint8(i)}}}})
	}
	s.Index()
	return s
}

func full(int) []ib.PKey { return []ib.PKey{0xffff} }

// fixture is an SA with clients.
type fixture struct {
	t       testing.TB
	a       *SA
	now     mono.Time
	groups  int
	tables  uint64 // what groups that change wait for
	kept    int
	tid     uint64
	clients map[ib.LID]*rmpp.Endpoint
	reports []mad.Datagram
}

func (f *fixture) GroupsChanged() uint64 {
	f.groups++
	return f.tables
}
func (f *fixture) Kept() { f.kept++ }
func (f *fixture) Managers() []mad.SMInfoRecord {
	return []mad.SMInfoRecord{{LID: 1, SMInfo: mad.SMInfo{GUID: 0x100, Priority: 5, State: mad.SMMaster, SMKey: smKey}}}
}

func start(t testing.TB, n int, keys func(int) []ib.PKey) *fixture {
	f := &fixture{t: t, now: mono.Time(time.Second), clients: map[ib.LID]*rmpp.Endpoint{}}
	f.a = New(Config{SMKey: smKey}, f)
	f.a.SetReady(true)
	f.a.SetSubnet(f.now, net(n, keys))
	return f
}

// answer is what came back: the header, and the records of a table.
type answer struct {
	mad.SAHeader
	records [][]byte
}

// ask sends a request from a LID and returns its answer.
func (f *fixture) ask(lid ib.LID, method mad.Method, attr mad.AttributeID, mask mad.ComponentMask, record []byte,
	edit ...func(*mad.SA)) (r answer) {
	f.t.Helper()
	f.tid++
	m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA,
		ClassVersion: mad.ClassVersionSA, Method: method,
		TransactionID: f.tid, AttributeID: attr}, ComponentMask: mask}}
	copy(m.Data[:], record)
	for _, e := range edit {
		e(&m)
	}
	d := mad.Datagram{SLID: lid, DLID: 1, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey, PKey: 0xffff}
	m.Append(d.Data[:0])
	f.a.Handle(f.now, &d)
	return f.collect(lid)
}

// collect lets SA and client talk until an answer for lid is whole.
func (f *fixture) collect(lid ib.LID) (r answer) {
	f.t.Helper()
	e := f.clients[lid]
	if e == nil {
		e = rmpp.NewEndpoint(rmpp.Config{})
		f.clients[lid] = e
	}
	var d mad.Datagram
	found := false
	for range 100000 {
		if f.a.Next(f.now, &d) {
			if mad.Method(d.Data[3]) == mad.MethodReport {
				f.reports = append(f.reports, d)
				continue
			}
			if d.DLID != lid {
				f.t.Fatalf("answer for LID %d, want %d", d.DLID, lid)
			}
			m, part := e.Handle(f.now, &d)
			if part && m == nil {
				continue
			}
			data := d.Data[mad.SAHeaderLen:]
			if m != nil {
				d, data = m.Datagram, m.Data
			}
			r.Parse(d.Data[:])
			if n := int(r.AttributeOffset) * 8; n > 0 && r.Method == mad.MethodGetTable.Response() {
				for ; len(data) >= n; data = data[n:] {
					r.records = append(r.records, data[:n])
				}
			} else if n > 0 {
				r.records = [][]byte{slices.Clone(data[:n])}
			}
			found = true
			continue
		}
		if e.Next(f.now, &d) {
			f.a.Handle(f.now, &d)
			continue
		}
		if found {
			return r
		}
		return answer{}
	}
	f.t.Fatal("no end")
	return r
}

// TestPaths checks the contents of a PathRecord, its visibility, and the selection of MTU and rate.
func TestPaths(t *testing.T) {
	f := start(t, 3, full)
	want := mad.PathRecord{DGID: gid(2), SGID: gid(1), DLID: 12, SLID: 11, Reversible: true, NumbPath: 1,
		PKey: 0xffff, MTUSelector: mad.SelectExactly,
		MTU: ib.MTU4096, RateSelector: mad.SelectExactly, Rate: ib.Rate100, LifeSelector: mad.SelectExactly, Life: 18}
	const ends = mad.CompPathSGID | mad.CompPathDGID
	for _, x := range []struct {
		name   string
		mask   mad.ComponentMask
		q      mad.PathRecord
		status mad.Status
		edit   func(*mad.PathRecord)
	}{
		{name: "as the kernel queries", mask: ends | mad.CompPathServiceID | mad.CompPathReversible | mad.CompPathNumbPath | mad.CompPathPKey,
			q: mad.PathRecord{SGID: gid(1), DGID: gid(2), Reversible: true, NumbPath: 1, PKey: 0xffff}},
		{name: "by LIDs", mask: mad.CompPathSLID | mad.CompPathDLID, q: mad.PathRecord{SLID: 11, DLID: 12}},
		{name: "an MTU of exactly 2048", mask: ends | mad.CompPathMTU | mad.CompPathMTUSelector,
			q:    mad.PathRecord{SGID: gid(1), DGID: gid(2), MTUSelector: mad.SelectExactly, MTU: ib.MTU2048},
			edit: func(p *mad.PathRecord) { p.MTU = ib.MTU2048 }},
		{name: "an MTU below 1024", mask: ends | mad.CompPathMTU | mad.CompPathMTUSelector,
			q:    mad.PathRecord{SGID: gid(1), DGID: gid(2), MTUSelector: mad.SelectLess, MTU: ib.MTU1024},
			edit: func(p *mad.PathRecord) { p.MTU = ib.MTU512 }},
		{name: "an MTU above 4096", mask: ends | mad.CompPathMTU | mad.CompPathMTUSelector,
			q: mad.PathRecord{SGID: gid(1), DGID: gid(2), MTUSelector: mad.SelectGreater,
				MTU: ib.MTU4096}, status: mad.StatusSANoRecords},
		{name: "a rate below 100", mask: ends | mad.CompPathRate | mad.CompPathRateSelector,
			q:    mad.PathRecord{SGID: gid(1), DGID: gid(2), RateSelector: mad.SelectLess, Rate: ib.Rate100},
			edit: func(p *mad.PathRecord) { p.Rate = ib.Rate80 }},
		{name: "the best", mask: ends | mad.CompPathRate | mad.CompPathRateSelector, q: mad.PathRecord{SGID: gid(1),
			DGID: gid(2), RateSelector: mad.SelectBest}},
		{name: "nobody's GID", mask: ends, q: mad.PathRecord{SGID: gid(1), DGID: gid(9)},
			status: mad.StatusSAInvalidGID},
		{name: "another subnet's GID", mask: ends, q: mad.PathRecord{SGID: gid(1), DGID: ib.MakeGID(7, guid(2))},
			status: mad.StatusSAInvalidGID},
		{name: "nobody's LID", mask: mad.CompPathDLID, q: mad.PathRecord{DLID: 40}, status: mad.StatusSANoRecords},
		{name: "GID and LID of different ports", mask: ends | mad.CompPathDLID, q: mad.PathRecord{SGID: gid(1),
			DGID: gid(2), DLID: 13}, status: mad.StatusSANoRecords},
		{name: "a partition they are not in", mask: ends | mad.CompPathPKey, q: mad.PathRecord{SGID: gid(1),
			DGID: gid(2), PKey: 0x8005}, status: mad.StatusSANoRecords},
		{name: "a service level there is not", mask: ends | mad.CompPathSL, q: mad.PathRecord{SGID: gid(1),
			DGID: gid(2), SL: 3}, status: mad.StatusSANoRecords},
		{name: "more than one", mask: mad.CompPathSGID, q: mad.PathRecord{SGID: gid(1)}, status: mad.StatusSATooMany},
	} {
		t.Run(x.name, func(t *testing.T) {
			r := f.ask(11, mad.MethodGet, mad.AttrPathRecord, x.mask, x.q.Append(nil))
			if r.Method != mad.MethodGet.Response() || r.Status != x.status || r.TransactionID != f.tid ||
				r.ComponentMask != x.mask {
				t.Fatalf("%+v", r.SAHeader)
			}
			if x.status != mad.StatusOK {
				if r.AttributeOffset != 0 {
					t.Error("a refusal with a record")
				}
				return
			}
			w := want
			if x.edit != nil {
				x.edit(&w)
			}
			var p mad.PathRecord
			p.Parse(r.records[0])
			if diff := cmp.Diff(w, p); diff != "" || r.AttributeOffset != 8 {
				t.Error(diff)
			}
		})
	}
	if r := f.ask(11, mad.MethodGetTable, mad.AttrPathRecord, mad.CompPathSGID,
		(&mad.PathRecord{SGID: gid(1)}).Append(nil)); len(r.records) != 4 {
		t.Errorf("%d paths from one port to all four, itself included", len(r.records))
	}
	if r := f.ask(11, mad.MethodGetTable, mad.AttrPathRecord, 0, nil); len(r.records) != 16 {
		t.Errorf("%d paths, want 16", len(r.records))
	}
	f.a.cfg.Limits.Records = 15
	if r := f.ask(11, mad.MethodGetTable, mad.AttrPathRecord, 0, nil); r.Status != mad.StatusSANoResources ||
		len(r.records) != 0 {
		t.Errorf("more paths than an answer holds: %v, %d records", r.Status, len(r.records))
	}
}

// TestPartitions: a port without a common partition is not visible.
func TestPartitions(t *testing.T) {
	f := start(t, 4, func(i int) []ib.PKey { // 1 and 2 in 0x8001, 3 limited in it, 4 elsewhere
		return [][]ib.PKey{{0x8001}, {0x8001}, {0x0001}, {0x8002}}[i-1]
	})
	path := func(from ib.LID, s, d int) mad.Status {
		r := f.ask(from, mad.MethodGet, mad.AttrPathRecord, mad.CompPathSGID|mad.CompPathDGID,
			(&mad.PathRecord{SGID: gid(s), DGID: gid(d)}).Append(nil))
		return r.Status
	}
	for _, x := range []struct {
		from   ib.LID
		s, d   int
		status mad.Status
	}{{11, 1, 2, 0}, {11, 1, 3, 0}, {13, 3, 1, 0}, {11, 1, 4, mad.StatusSANoRecords}, {14, 1, 2,
		mad.StatusSANoRecords}, {13, 3, 3, mad.StatusSANoRecords}} {
		if got := path(x.from, x.s, x.d); got != x.status {
			t.Errorf("LID %d queries %d to %d: %v, want %v", x.from, x.s, x.d, got, x.status)
		}
	}
	if r := f.ask(14, mad.MethodGetTable, mad.AttrNodeRecord, 0, nil); len(r.records) != 2 { // the switch and itself
		t.Errorf("LID 14 sees %d nodes", len(r.records))
	}
	trust := func(m *mad.SA) { m.SMKey = smKey }
	if r := f.ask(14, mad.MethodGetTable, mad.AttrNodeRecord, 0, nil, trust); len(r.records) != 5 || r.SMKey != 0 {
		t.Errorf("with the SM_Key %d nodes, and the key came back as %#x", len(r.records), r.SMKey)
	}
	if r := f.ask(14, mad.MethodGetTable, mad.AttrPKeyTableRecord, 0, nil); r.Status != mad.StatusSARequest {
		t.Errorf("P_Key tables for a stranger: %v", r.Status)
	}
	if r := f.ask(14, mad.MethodGetTable, mad.AttrPKeyTableRecord, 0, nil, trust); len(r.records) != 5 {
		t.Errorf("%d P_Key tables", len(r.records))
	}
	if r := f.ask(14, mad.MethodGet, mad.AttrNodeRecord, 0, nil, func(m *mad.SA) { m.SMKey = 1 }); r.Method != 0 {
		t.Error("answered a wrong SM_Key")
	}
}

var broadcast = ib.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}

// member is a request of adapter n to create or join the broadcast group.
func member(n int, state uint8) mad.MCMemberRecord {
	return mad.MCMemberRecord{MGID: broadcast, PortGID: gid(n), QKey: 0xb1b, PKey: 0xffff,
		MTUSelector: mad.SelectExactly, MTU: ib.MTU2048,
		RateSelector: mad.SelectExactly, Rate: ib.Rate10, JoinState: state}
}

const createMask = compCreate | mad.CompMCMTU | mad.CompMCMTUSelector | mad.CompMCRate | mad.CompMCRateSelector

// TestSubscription: subscribers receive reports of groups and ports, until they answer, or until the last repetition.
func TestSubscription(t *testing.T) {
	f := start(t, 3, full)
	in := mad.InformInfo{LIDBegin: 0xffff, IsGeneric: 1, Subscribe: 1, Type: mad.InformAllTypes,
		TrapNumber: mad.InformAllTraps, Producer: mad.InformAllProducers}
	if r := f.ask(13, mad.MethodSet, mad.AttrInformInfo, 0, in.Append(nil)); r.Status != mad.StatusOK ||
		r.Method != mad.MethodGet.Response() {
		t.Fatal(r.Status)
	}
	m := member(1, 1)
	f.ask(11, mad.MethodSet, mad.AttrMCMemberRecord, createMask, m.Append(nil))
	f.a.SetSubnet(f.now, net(2, full))
	f.collect(11)
	var traps []mad.TrapNumber
	for i := range f.reports {
		d := &f.reports[i]
		var s mad.SA
		var n mad.NoticeRecord
		s.Parse(d.Data[:])
		n.Parse(s.Data[:])
		traps = append(traps, n.TrapNumber)
		if d.DLID != 13 || d.DstQPN != 1 || s.Method != mad.MethodReport || n.IssuerGID != f.a.selfGID() {
			t.Errorf("report %+v to LID %d", n, d.DLID)
		}
	}
	if !slices.Equal(traps, []mad.TrapNumber{mad.TrapGroupCreated}) {
		// Port 3 itself has left: no subscriber remains.
		t.Errorf("reports %v", traps)
	}
	f.a.SetSubnet(f.now, net(3, full))
	f.ask(12, mad.MethodSet, mad.AttrInformInfo, 0, in.Append(nil))
	f.reports = nil
	f.a.SetSubnet(f.now, net(2, full))
	for range 6 {
		f.collect(11)
		f.now = f.now.Add(time.Second)
	}
	if len(f.reports) != 4 || len(f.a.reports) != 0 || f.a.Counters.ReportsLost == 0 {
		t.Errorf("an unanswered report was sent %d times, %d wait", len(f.reports), len(f.a.reports))
	}
	f.a.SetSubnet(f.now, net(3, full))
	f.reports = nil
	f.collect(11)
	d := f.reports[0].Reply()
	d.Data[3] |= 0x80
	f.a.Handle(f.now, &d)
	if len(f.a.reports) != 0 {
		t.Error("an answered report waits")
	}
	in.Subscribe = 0
	if r := f.ask(12, mad.MethodSet, mad.AttrInformInfo, 0, in.Append(nil)); r.Status != mad.StatusOK {
		t.Error(r.Status)
	}
	if r := f.ask(12, mad.MethodSet, mad.AttrInformInfo, 0, in.Append(nil)); r.Status != mad.StatusSARequest {
		t.Errorf("unsubscribed twice: %v", r.Status)
	}
}

// TestServices: services are created, found, changed by requesters with the key, and end with their lease.
func TestServices(t *testing.T) {
	f := start(t, 2, full)
	const need = mad.CompServiceID | mad.CompServiceGID | mad.CompServicePKey | mad.CompServiceLease
	s := mad.ServiceRecord{ServiceID: 7, ServiceGID: gid(1), PKey: 0xffff, Lease: 10, Key: [16]byte{1}}
	copy(s.Name[:], "store")
	set := func(from ib.LID, s mad.ServiceRecord) mad.Status {
		return f.ask(from, mad.MethodSet, mad.AttrServiceRecord, need, s.Append(nil)).Status
	}
	find := func() int {
		return len(f.ask(12, mad.MethodGetTable, mad.AttrServiceRecord, mad.CompServiceName, s.Append(nil)).records)
	}
	if st := set(12, s); st != mad.StatusSARequest {
		t.Errorf("registered for another: %v", st)
	}
	if st := set(11, s); st != mad.StatusOK || find() != 1 {
		t.Errorf("%v, %d found", st, find())
	}
	other := s
	other.Key[0] = 2
	if st := set(11, other); st != mad.StatusSARequest {
		t.Errorf("changed without its key: %v", st)
	}
	f.now = f.now.Add(9 * time.Second)
	set(11, s) // renewed
	f.now = f.now.Add(9 * time.Second)
	f.collect(12)
	if find() != 1 {
		t.Error("gone before its lease")
	}
	f.now = f.now.Add(2 * time.Second)
	f.collect(12)
	if find() != 0 {
		t.Error("outlives its lease")
	}
}

// TestRecords counts the records of every kind, and looks for one by a field.
func TestRecords(t *testing.T) {
	f := start(t, 3, full)
	f.a.net.Nodes[0].Switch.MFT[0xc001] = topo.PortMask{0xe}
	for _, x := range []struct {
		attr mad.AttributeID
		n    int
	}{{mad.AttrNodeRecord, 4}, {mad.AttrPortInfoRecord, 7}, {mad.AttrSwitchInfoRecord, 1}, {mad.AttrLFTRecord,
		1}, {mad.AttrMFTRecord, 1}, {mad.AttrLinkRecord, 6},
		{mad.AttrGUIDInfoRecord, 4}, {mad.AttrSMInfoRecord, 1}, {mad.AttrSLtoVLRecord, 0}, {mad.AttrVLArbRecord,
			0}, {mad.AttrServiceRecord, 0}} {
		r := f.ask(11, mad.MethodGetTable, x.attr, 0, nil)
		if r.Status != mad.StatusOK || len(r.records) != x.n {
			t.Errorf("attribute %#x: %v, %d records, want %d", x.attr, r.Status, len(r.records), x.n)
		}
	}
	var n mad.NodeRecord
	n.NodeInfo.PortGUID = guid(2)
	r := f.ask(11, mad.MethodGet, mad.AttrNodeRecord, mad.CompNodePortGUID, n.Append(nil))
	n.Parse(r.records[0])
	if n.LID != 12 || n.NodeDescription.String() != "host-2" {
		t.Errorf("found %+v", n)
	}
	if r := f.ask(11, mad.MethodGet, mad.AttrClassPortInfo, 0, nil); r.Status != mad.StatusOK ||
		r.AttributeOffset != 0 {
		t.Errorf("ClassPortInfo: %+v", r.SAHeader)
	}
	if r := f.ask(11, mad.MethodGetTable, 0x7777, 0, nil); r.Status != mad.StatusBadMethodAttr {
		t.Errorf("an unknown attribute: %v", r.Status)
	}
	if r := f.ask(11, mad.MethodGetTraceTable, mad.AttrPathRecord, 0, nil); r.Status != mad.StatusBadMethod {
		t.Errorf("an unknown method: %v", r.Status)
	}
}

// TestNotReady: no request is answered before the subnet is up, and none from ports outside of it.
func TestNotReady(t *testing.T) {
	f := start(t, 1, full)
	if r := f.ask(50, mad.MethodGetTable, mad.AttrNodeRecord, 0, nil); r.Method != 0 {
		t.Error("answered a LID that nobody has")
	}
	f.a.SetReady(false)
	if r := f.ask(11, mad.MethodGetTable, mad.AttrNodeRecord, 0, nil); r.Method != 0 || f.a.Counters.DropNotReady != 1 {
		t.Error("answered before the subnet is up")
	}
}

// TestState: another SA goes on where this one ended.
func TestState(t *testing.T) {
	f := start(t, 3, full)
	m := member(1, 1)
	f.ask(11, mad.MethodSet, mad.AttrMCMemberRecord, createMask, m.Append(nil))
	s := mad.ServiceRecord{ServiceID: 7, ServiceGID: gid(1), PKey: 0xffff, Lease: 10}
	f.ask(11, mad.MethodSet, mad.AttrServiceRecord,
		mad.CompServiceID|mad.CompServiceGID|mad.CompServicePKey|mad.CompServiceLease, s.Append(nil))
	f.ask(12, mad.MethodSet, mad.AttrInformInfo, 0, (&mad.InformInfo{LIDBegin: 0xffff, IsGeneric: 1,
		Subscribe: 1}).Append(nil))
	kept := f.a.State(f.now)
	b, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	var back State
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	g := start(t, 3, full)
	g.a.Restore(g.now, back)
	if diff := cmp.Diff(kept, g.a.State(g.now)); diff != "" || len(kept.Groups) != 1 || len(kept.Services) != 1 ||
		len(kept.Subscriptions) != 1 {
		t.Errorf("%s", diff)
	}
	g.a.SetSubnet(g.now, net(1, full))
	if k := g.a.State(g.now); len(k.Groups) != 1 || len(k.Subscriptions) != 0 {
		t.Errorf("of ports that are gone there remain %+v", k)
	}
}

// TestJoinVector takes a recorded join of the broadcast group.
func TestJoinVector(t *testing.T) {
	var file struct {
		Join struct {
			MAD string `json:"mad_hex"`
		} `json:"sa_join_example"`
	}
	b, err := os.ReadFile("../../../../test/vectors/headers.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(file.Join.MAD)
	if err != nil || len(raw) != mad.Len {
		t.Fatal(err, len(raw))
	}
	var m mad.SA
	m.Parse(raw)
	var rec mad.MCMemberRecord
	rec.Parse(m.Data[:])
	f := start(t, 1, full)
	f.a.net.Nodes[1].Ports[1].GUID = rec.PortGID.GUID()
	f.a.net.Index()
	d := mad.Datagram{SLID: 11, DLID: 1, SrcQPN: 1, DstQPN: 1}
	copy(d.Data[:], raw)
	f.a.Handle(f.now, &d)
	if r := f.collect(11); r.Status != mad.StatusSAInsufficient {
		t.Errorf("before the group exists: %v", r.Status)
	}
	if !f.a.Ensure(f.now, Group{MGID: rec.MGID, QKey: 0xb1b, PKey: 0xffff, MTU: ib.MTU2048, Rate: ib.Rate10}) {
		t.Fatal("no room")
	}
	f.a.Handle(f.now, &d)
	r := f.collect(11)
	if r.Status != mad.StatusOK || r.AttributeOffset != 7 {
		t.Fatalf("%+v", r.SAHeader)
	}
	rec.Parse(r.records[0])
	if rec.MLID != 0xc000 || rec.QKey != 0xb1b || rec.JoinState != 1 {
		t.Errorf("%+v", rec)
	}
}

// FuzzHandle: whatever comes, the SA answers or drops, and its tables stay
// within their bounds.
func FuzzHandle(f *testing.F) {
	for _, m := range []mad.Method{mad.MethodGet, mad.MethodGetTable, mad.MethodSet, mad.MethodDelete,
		mad.MethodGetMulti, mad.MethodReport} {
		for attr := range 0x40 {
			d := mad.Datagram{}
			s := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA,
				ClassVersion: 2, Method: m, AttributeID: mad.AttributeID(attr)}, ComponentMask: createMask}}
			rec := member(1, 1)
			copy(s.Data[:], rec.Append(nil))
			s.Append(d.Data[:0])
			f.Add(d.Data[:], uint8(1))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, from uint8) {
		x := start(t, 3, full)
		x.a.cfg.Limits = Limits{Groups: 2, Members: 2, Services: 2, Subscriptions: 2, Reports: 2, Records: 100}
		for range 4 {
			d := mad.Datagram{SLID: 10 + ib.LID(from%5), SrcQPN: 1, DstQPN: 1}
			copy(d.Data[:], b)
			x.a.Handle(x.now, &d)
			for range 1000 {
				if !x.a.Next(x.now, &d) {
					break
				}
			}
		}
		if len(x.a.groups) > 2 || len(x.a.services) > 2 || len(x.a.subs) > 2 || len(x.a.reports) > 2 {
			t.Error("a bound was exceeded")
		}
	})
}

// TestClientsDoNotStarve: a client that requests tables and acknowledges none, from any number of queue pairs, gets no
// more than its share; another client is served.
func TestClientsDoNotStarve(t *testing.T) {
	f := start(t, 20, full)
	ask := func(lid ib.LID, qpn ib.QPN, method mad.Method, flags uint8) {
		f.tid++
		m := mad.SA{SAHeader: mad.SAHeader{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA,
			ClassVersion: mad.ClassVersionSA, Method: method,
			TransactionID: f.tid, AttributeID: mad.AttrNodeRecord}}}
		if flags != 0 { // the first segment of a request that does not end
			m.RMPP = mad.RMPP{Version: mad.RMPPVersion, Type: mad.RMPPData, Flags: flags, Data1: 1, Data2: 100 * 220}
			m.AttributeID = mad.AttrMultiPathRecord
		}
		d := mad.Datagram{SLID: lid, DLID: 1, SrcQPN: qpn, DstQPN: 1, QKey: ib.GSIQKey, PKey: 0xffff}
		m.Append(d.Data[:0])
		f.a.Handle(f.now, &d)
	}
	sent := func() (segments, refused int) {
		for d := (mad.Datagram{}); f.a.Next(f.now, &d); {
			var m mad.SA
			m.Parse(d.Data[:])
			switch {
			case d.DLID != 11:
				t.Errorf("an answer to LID %d", d.DLID)
			case m.Status == mad.StatusSANoResources:
				refused++
			case m.RMPP.Flags&mad.RMPPActive != 0 && m.RMPP.Type == mad.RMPPData:
				segments++
			}
		}
		return
	}
	for i := range 300 {
		ask(11, ib.QPN(1+i%7), mad.MethodGetTable, 0)
	}
	if segments, refused := sent(); segments != 32 || refused != 268 {
		t.Errorf("%d tables under way, %d refused", segments, refused)
	}
	for i := range 300 {
		ask(11, ib.QPN(1+i%7), mad.MethodGetMulti, mad.RMPPActive|mad.RMPPFirst)
	}
	sent()
	if c := f.a.Counters; c.DropTransfers != 268+268 {
		t.Errorf("%+v", c)
	}
	if r := f.ask(12, mad.MethodGetTable, mad.AttrNodeRecord, 0, nil); r.Status != 0 || len(r.records) != 21 {
		t.Errorf("another client: %v, %d records", r.Status, len(r.records))
	}
	// Those that were not acknowledged end, and there is room again.
	for range 200 {
		f.now = f.now.Add(time.Second)
		sent()
	}
	ask(11, 1, mad.MethodGetTable, 0)
	if segments, refused := sent(); segments != 1 || refused != 0 {
		t.Errorf("later: %d segments, %d refused", segments, refused)
	}
}

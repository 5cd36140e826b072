// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// ports are the vports of a port, as far as the Ethernet Manager needs them: what it sets is kept.
type ports struct {
	trap  uint32
	info  map[uint8]*mad.VESWPortInfo
	macs  [][6]byte
	table map[int]mad.VESWMACEntry
	sets  int // of vports
	asked int // whether it is there
	bad   []string
}

// serve answers a MAD that reached the port.
func (p *ports) serve(q *mad.VEMA) *mad.VEMA {
	r := *q
	r.Method = mad.MethodGetResp
	index := mad.VEMAVPort(q.AttributeModifier)
	i := p.info[index]
	isSet := q.Method == mad.MethodSet
	if isSet && q.AttributeID != mad.AttrClassPortInfo {
		p.sets++
	}
	switch q.AttributeID {
	case mad.AttrClassPortInfo:
		var c mad.VEMAClassPortInfo
		if c.Parse(q.Data[:]); isSet {
			p.trap = c.Trap.LID
		} else {
			p.asked++
		}
		c = mad.VEMAClassPortInfo{BaseVersion: mad.OPABaseVersion, ClassVersion: mad.VEMAClassVersion,
			CapabilityMask: 0xff01, RespTimeValue: 18}
		c.Trap.LID = p.trap
		r.Data = [mad.VEMADataLen]byte{}
		c.Append(r.Data[:0])
	case mad.AttrVESWPortInfo, mad.AttrVESWDelete:
		if isSet && i != nil && i.Port.ConfigState == mad.VESWForwarding &&
			mad.VESWState(q.Data[mad.VESWLen+14]) != mad.VESWForwarding {
			p.bad = append(p.bad, "bounced")
		}
		if isSet && i == nil {
			d := mad.DefaultVESWPortInfo()
			i = &d
			p.info[index] = i
		}
		answer := mad.DefaultVESWPortInfo()
		if i != nil {
			gen, digest := i.Port.UcMACsGen, i.Port.MACDigest
			switch {
			case isSet && q.AttributeID == mad.AttrVESWDelete:
				*i = mad.DefaultVESWPortInfo()
			case isSet:
				i.Parse(q.Data[:])
				i.Port.UcMACsGen, i.Port.MACDigest, i.Port.MaxMACEntries, i.Port.MaxSMACEntries = gen, digest, mad.VESWMaxMACs, mad.VESWMaxSMACs
			}
			i.Port.OperState, i.Port.LinkStatus = i.Port.ConfigState, mad.VESWLinkDown
			if i.Port.ConfigState == mad.VESWForwarding {
				i.Port.LinkStatus = mad.VESWLinkUp
			}
			answer = *i
		}
		r.Data = [mad.VEMADataLen]byte{}
		answer.Append(r.Data[:0])
	case mad.AttrVESWRemove:
		delete(p.info, index)
	case mad.AttrVESWMACEntries:
		var e mad.VESWMACEntries
		if e.Parse(q.Data[:]); i == nil {
			r.Status = mad.StatusInvalidValue
			break
		}
		for k := range int(e.Num) {
			if isSet {
				p.table[int(e.Offset)+k] = e.Entries[k]
			}
			e.Entries[k] = p.table[int(e.Offset)+k]
		}
		if isSet {
			i.Port.MACDigest = e.Digest
		}
		e.Digest = i.Port.MACDigest
		e.Append(r.Data[:0])
	case mad.AttrVESWUnicastMACs, mad.AttrVESWMcastMACs:
		l := mad.VESWMACList{}
		if q.AttributeID == mad.AttrVESWUnicastMACs && i != nil {
			l.Gen, l.Num, l.Total = i.Port.UcMACsGen, uint16(len(p.macs)), uint16(len(p.macs))
			copy(l.MACs[:], p.macs)
		}
		l.Append(r.Data[:0])
	}
	return &r
}

// answer is the port's queue pair 1: it answers as an agent does, or as a node without one.
func (p *ports) answer(d *mad.Datagram) (r mad.Datagram, ok bool) {
	if d.DstQPN != ib.QPNGSI || d.Long == nil {
		return r, false
	}
	r = d.Reply()
	var q mad.VEMA
	if p == nil {
		q.Header.Parse(d.Long)
		q.Method, q.Status = mad.MethodGetResp, mad.StatusBadMethodAttr
		return r, r.SetMAD(q.Header.Append(nil))
	}
	if q.Parse(d.Long) != nil {
		return r, false
	}
	return r, r.SetMAD(p.serve(&q).Append(nil))
}

// ethernet gives the node's adapters agents: the first two have one. It adds two more adapters at ports 2 and 3.
func ethernetNode(t *testing.T, name string, s store.Store, lan []*ports) *node {
	n := begin(t, name, s)
	n.more = map[uint8]*agent.Agent{}
	n.ethernet = map[uint8]*ports{1: lan[0], 2: lan[1], 3: nil}
	up := agent.Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}
	for p := uint8(2); p <= 3; p++ {
		ca := agent.New(agent.Config{Type: mad.NodeCA, NumPorts: 1, NodeGUID: base + 2*ib.GUID(p),
			PortGUID: base + 2*ib.GUID(p) + 1, Caps: agent.DefaultCaps}, nil, nil)
		n.more[p] = ca
		n.sw.LinkUp(n.now(), p, up)
		ca.LinkUp(n.now(), 1, up)
	}
	return n
}

func newPorts() *ports {
	return &ports{info: map[uint8]*mad.VESWPortInfo{}, table: map[int]mad.VESWMACEntry{}}
}

// TestVESW: a new VESW comes up with its own partition and group, which other ports cannot join; the
// next manager takes it over without interruption; after its deletion nothing of it is left.
func TestVESW(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	ctx := context.Background()
	lan := []*ports{newPorts(), newPorts()}
	first := mem.Open()
	a := ethernetNode(t, "a", first, lan)
	a.until("the ports come up", a.active)
	err := EditVESWs(ctx, mem, func(i *em.Intent) error {
		if err := i.Create(em.VESW{Name: "lan"}); err != nil {
			return err
		}
		for _, p := range []ib.GUID{base + 3, base + 5} {
			if _, err := i.Add("lan", p, -1, false); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	forwards := func() bool {
		for _, p := range lan {
			if i := p.info[0]; i == nil || i.VESW.VESWID != 1 || i.Port.ConfigState != mad.VESWForwarding {
				return false
			}
		}
		return true
	}
	a.until("both forward", forwards)
	i := lan[1].info[0]
	if i.VESW.PKey != 0xc001 || i.VESW.FabricID != DefaultFabricID || i.Port.EncapSLID != uint32(a.more[2].LID()) ||
		lan[0].trap != uint32(a.sw.Port(0).LID) {
		t.Errorf("%+v", i)
	}
	if k := a.ca.PKeys(1); k[0] != 0xffff || k[1] != 0xc001 {
		t.Errorf("P_Keys %v: a VESW of its own takes nobody out of the default partition", k)
	}
	group := func(n *node) *sa.Group {
		for _, g := range n.m.Status().Groups {
			if em.IsGroup(g.MGID) {
				return g
			}
		}
		return nil
	}
	g := group(a)
	if g == nil || len(g.Members) != 2 || uint32(g.MLID)-0xc000+0xf00000 != i.VESW.McastDLID {
		t.Errorf("%+v", g)
	}
	lan[0].macs = [][6]byte{{0, 1, 2, 3, 4, 5}}
	lan[0].info[0].Port.UcMACsGen++
	var d mad.Datagram
	d.SLID, d.SrcQPN, d.DstQPN = a.ca.LID(), ib.QPNGSI, ib.QPNGSI
	trap := mad.NewVEMATrap(1, mad.VEMANotice{GenericType: mad.VEMAGenericType, OUI: mad.VEMAOUI,
		Opcode: mad.VEMAUnicastMACs})
	if !d.SetMAD(trap.Append(nil)) {
		t.Fatal("no trap")
	}
	a.m.Handle(a.now(), &d)
	a.until("the MAC is known", func() bool { return lan[1].table[0].MAC == lan[0].macs[0] })
	a.until("what is observed is kept", func() bool {
		e, err := mem.Get(ctx, veswKey(1))
		var o em.Observed
		return err == nil && json.Unmarshal(e.Value, &o) == nil && len(o.MACs) == 1 && o.MLID == g.MLID
	})
	s, ok := a.m.Ethernet()
	if !ok || s.Capable != 2 || len(s.VESWs) != 1 || len(s.VESWs[0].Problems) != 0 {
		t.Errorf("%v %+v", ok, s)
	}

	sets := lan[0].sets + lan[1].sets
	second := mem.Open()
	defer second.Close()
	b := ethernetNode(t, "b", second, lan)
	b.sw, b.ca, b.more = a.sw, a.ca, a.more
	first.Kill()
	b.until("the second manages", func() bool {
		s, ok := b.m.Ethernet()
		return ok && s.Capable == 2 && s.VESWs[0].Members[1].State == em.StateForwarding &&
			len(s.VESWs[0].Members[0].MACs) == 1
	})
	if _, ok := a.m.Ethernet(); ok {
		a.until("the first notices", func() bool { _, ok := a.m.Ethernet(); return !ok })
	}
	a.m.Close()
	if n := lan[0].sets + lan[1].sets; n != sets {
		t.Errorf("%d Sets without need", n-sets)
	}
	if x := group(b); x == nil || x.MLID != g.MLID {
		t.Errorf("another group: %+v", x)
	}
	if err := EditVESWs(ctx, mem, func(i *em.Intent) error { return i.Delete("lan") }); err != nil {
		t.Fatal(err)
	}
	b.until("the vports are gone", func() bool { return len(lan[0].info)+len(lan[1].info) == 0 })
	b.until("its partition, group and record are gone", func() bool {
		_, err := mem.Get(ctx, veswKey(1))
		return group(b) == nil && b.ca.PKeys(1)[1] == 0 && errors.Is(err, store.ErrNotFound)
	})
	for _, p := range lan {
		if len(p.bad) != 1 { // stopped, in the end
			t.Error(p.bad)
		}
	}
	b.m.Close()
}

// TestRestartedNode: a restarted node gets its ports back at once, not with the next poll, and other
// nodes are not affected.
func TestRestartedNode(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	lan := []*ports{newPorts(), newPorts()}
	n := ethernetNode(t, "a", mem, lan)
	defer n.m.Close()
	n.until("the ports come up", n.active)
	err := EditVESWs(context.Background(), mem, func(i *em.Intent) error {
		return i.Create(em.VESW{Name: "lan", Members: []em.Member{{Port: base + 3, Num: 1}, {Port: base + 5, Num: 2}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	forwards := func() bool {
		a, b := lan[0].info[0], lan[1].info[0]
		return a != nil && b != nil && a.Port.ConfigState == mad.VESWForwarding &&
			b.Port.ConfigState == mad.VESWForwarding
	}
	n.until("both forward", forwards)
	for range 50 { // what is left to do is done
		n.pump()
		time.Sleep(time.Millisecond)
	}
	asked, sets := lan[0].asked, lan[1].sets
	*lan[0] = *newPorts()
	n.sw.LinkDown(n.now(), 1)
	n.ca = agent.New(n.ca.Config(), nil, nil)
	up := agent.Link{Width: ib.Width4x, Speed: ib.SpeedQDR, SpeedExt: ib.SpeedEDR}
	n.sw.LinkUp(n.now(), 1, up)
	n.ca.LinkUp(n.now(), 1, up)
	n.m.Sweep(n.now()) // for the trap of the switch
	n.until("both forward again", forwards)
	if lan[0].asked == 0 || asked == 0 {
		t.Error("it was not asked whether it is there")
	}
	if lan[1].sets != sets || len(lan[1].bad) != 0 {
		t.Errorf("the other port: %d Sets, %v", lan[1].sets-sets, lan[1].bad)
	}
}

// TestUnreadableVESWs: a manager that is elected and cannot read the intended switches changes no port, since their
// partitions would be taken from them.
func TestUnreadableVESWs(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	ctx := context.Background()
	left := newPorts()
	i := mad.DefaultVESWPortInfo()
	i.VESW.VESWID, i.Port.ConfigState = 7, mad.VESWForwarding
	left.info[0] = &i
	if _, err := store.Put(ctx, mem, KeyVESWs, []byte(`{"version":9}`)); err != nil {
		t.Fatal(err)
	}
	n := ethernetNode(t, "a", mem, []*ports{left, newPorts()})
	defer n.m.Close()
	n.until("it cannot read the VESWs", func() bool { return n.m.Unreadable() != nil })
	for range 50 {
		n.pump()
		time.Sleep(time.Millisecond)
	}
	if _, ok := n.m.Ethernet(); ok || left.sets+left.asked != 0 || n.m.Status().Permitted || n.ca.LID() != 0 {
		t.Errorf("%d Sets, asked %d times, %+v", left.sets, left.asked, n.m.Status())
	}
	if _, err := store.Delete(ctx, mem, KeyVESWs); err != nil {
		t.Fatal(err)
	}
	n.until("the ports come up", n.active)
	n.until("the port that no intent has is gone", func() bool { return left.info[0] == nil })
}

// TestPartitionsOfVESWs: a configured partition gets the members of the VESW with its P_Key, and a
// VESW removes no port from the default partition.
func TestPartitionsOfVESWs(t *testing.T) {
	i := Intent{Subnet: sm.Intent{Partitions: []sm.Partition{{Name: "x", PKey: 0x4002,
		Members: []sm.Member{{PortGUID: 7, As: sm.Limited}}}}}}
	v := em.Intent{VESWs: []em.VESW{{Name: "a", ID: 1, Members: []em.Member{{Port: 5, Num: 1}}},
		{Name: "b", ID: 2, Members: []em.Member{{Port: 7, Num: 1}}},
		{Name: "c", ID: 3, PKey: 0x7fff, Members: []em.Member{{Port: 9, Num: 1}}}}}
	list := Partitions(&i, &v)
	if len(list) != 2 || list[0].Apart || list[0].Members[0].As != sm.Full || !list[1].Apart ||
		list[1].PKey != 0xc001 || list[1].Name != "vesw-a" {
		t.Errorf("%+v", list)
	}
	if i.Subnet.Partitions[0].Members[0].As != sm.Limited {
		t.Error("the intent was changed")
	}
	w := sm.Intent{Partitions: list}
	if err := w.Validate(); err != nil {
		t.Error(err)
	}
}

func TestVESWsOfTheStore(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	ctx := context.Background()
	if i, err := LoadVESWs(ctx, mem); err != nil || i.FabricID != DefaultFabricID {
		t.Error(i, err)
	}
	no := errors.New("no")
	if err := EditVESWs(ctx, mem, func(*em.Intent) error { return no }); !errors.Is(err, no) {
		t.Error(err)
	}
	var wrong *InvalidError
	if err := EditVESWs(ctx, mem, func(i *em.Intent) error { i.FabricID = 5000; return nil }); !errors.As(err, &wrong) {
		t.Error(err)
	}
	if err := EditVESWs(ctx, mem, func(i *em.Intent) error { return i.Create(em.VESW{Name: "a"}) }); err != nil {
		t.Fatal(err)
	}
	if i, err := LoadVESWs(ctx, mem); err != nil || len(i.VESWs) != 1 || i.VESWs[0].ID != 1 {
		t.Error(i, err)
	}
	for _, bad := range []string{`{`, `{"version":9}`, `{"version":1,"Surprise":1}`} {
		if _, err := store.Put(ctx, mem, KeyVESWs, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadVESWs(ctx, mem); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// TestStrayEthernet: what is no answer to the manager, or from no queue pair 1, is dropped.
func TestStrayEthernet(t *testing.T) {
	mem := store.NewMemory()
	defer mem.Close()
	n := begin(t, "a", mem)
	defer n.m.Close()
	for _, b := range [][]byte{make([]byte, mad.HeaderLen), make([]byte, 40), make([]byte, mad.OPALen),
		make([]byte, mad.VEMATrapLen)} {
		for _, m := range []mad.Method{mad.MethodTrap, mad.MethodGetResp} {
			b[0], b[1], b[2], b[3] = mad.OPABaseVersion, byte(mad.ClassVEMA), mad.VEMAClassVersion, byte(m)
			d := mad.Datagram{SrcQPN: ib.QPNGSI, SLID: 9}
			if !d.SetMAD(b) {
				t.Fatal(len(b))
			}
			n.m.Handle(mono.Time(1), &d)
			d.SrcQPN = 77
			n.m.Handle(mono.Time(1), &d)
		}
	}
	if s, ok := n.m.Ethernet(); ok || s.Counters.Answered+s.Counters.Traps != 0 {
		t.Error(s, ok)
	}
}

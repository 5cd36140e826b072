// SPDX-License-Identifier: Apache-2.0

package em

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// world is a subnet of a switch with the manager and adapters with fake agents, under a virtual clock.
type world struct {
	t      *testing.T
	m      *Manager
	now    mono.Time
	rng    *rand.Rand
	loss   float64 // of MADs, each way
	delay  time.Duration
	self   ib.LID
	agents map[ib.GUID]*agent
	groups map[ib.GID]Group
	// uncarried ports are those to which the switches do not carry groups.
	uncarried map[ib.GUID]bool
	kept      int
	flying    []flight
	sets      []order // that reached a port
	requests  int
	stopAfter int // requests; 0: never
	stopped   bool
	intent    Intent
}

type flight struct {
	at   mono.Time
	from ib.LID
	mad  *mad.VEMA
	trap *mad.VEMANotice
}

// order is a Set that reached a port.
type order struct {
	at     mono.Time
	port   ib.GUID
	vport  uint8
	attr   mad.AttributeID
	config mad.VESWState
	id     uint16
	had    mad.VESWPortInfo // what the vport was before
	num    int              // of slots
	offset int
}

func (o order) String() string {
	return fmt.Sprintf("%v port %x vport %d attr %#x config %d id %d", time.Duration(o.at), uint64(o.port), o.vport,
		o.attr, o.config, o.id)
}

// agent is a port with its vports.
type agent struct {
	guid  ib.GUID
	lid   ib.LID
	pkeys []ib.PKey
	there bool // in the subnet
	mute  bool // it answers nothing
	none  bool // there is no agent
	cpi   mad.VEMAClassPortInfo
	vport map[uint8]*fakeVPort
	plain bool // a driver without VESWRemove
	// twist changes an answer, or makes it nil.
	twist func(q, a *mad.VEMA) *mad.VEMA
}

type fakeVPort struct {
	info   mad.VESWPortInfo
	table  [mad.VESWMaxMACs]mad.VESWMACEntry
	uc, mc []MAC
	down   bool // administratively
}

const (
	selfGUID ib.GUID = 0x100
	tick             = mono.Time(time.Second)
)

func portGUID(i int) ib.GUID { return ib.GUID(0x1000 + i) }

// newWorld makes a subnet of n ports with LIDs 11 and up.
func newWorld(t *testing.T, seed uint64, n int) *world {
	w := &world{t: t, now: tick, rng: rand.New(rand.NewPCG(seed, 7)), delay: time.Millisecond, self: 2,
		agents: map[ib.GUID]*agent{},
		groups: map[ib.GID]Group{}, uncarried: map[ib.GUID]bool{}}
	for i := range n {
		w.agents[portGUID(i)] = &agent{guid: portGUID(i), lid: ib.LID(11 + i), there: true, pkeys: []ib.PKey{0xffff,
			0}, vport: map[uint8]*fakeVPort{}}
	}
	w.m = New(Config{TIDs: 1}, w)
	return w
}

// net is the subnet as a model.
func (w *world) net() *topo.Subnet {
	s := &topo.Subnet{Prefix: ib.DefaultGIDPrefix,
		Nodes: []topo.Node{{Switch: &topo.Switch{}, Ports: []topo.Port{{GUID: selfGUID,
			Info: mad.PortInfo{LID: w.self, PortState: ib.PortActive}}}}}}
	for _, g := range slices.Sorted(maps.Keys(w.agents)) {
		a := w.agents[g]
		if !a.there {
			continue
		}
		keys := append(slices.Clone(a.pkeys), w.ownKeys(g)...)
		s.Nodes = append(s.Nodes, topo.Node{Description: fmt.Sprintf("h%x weft_ib0", uint64(g)),
			Info: mad.NodeInfo{NodeGUID: g - 1},
			Ports: []topo.Port{{}, {GUID: g, PKeys: keys, Info: mad.PortInfo{LID: a.lid, PortState: ib.PortActive,
				NeighborMTU: ib.MTU4096}}}})
	}
	s.Index()
	return s
}

// ownKeys are the P_Keys that the subnet's manager gives a port for its VESWs.
func (w *world) ownKeys(g ib.GUID) (keys []ib.PKey) {
	for i := range w.intent.VESWs {
		v := &w.intent.VESWs[i]
		if v.OwnPartition() && slices.ContainsFunc(v.Members, func(m Member) bool { return m.Port == g }) {
			keys = append(keys, v.Key())
		}
	}
	return keys
}

// want sets the intent and sweeps, as the manager does.
func (w *world) want(i Intent) {
	w.t.Helper()
	w.intent = i
	if err := w.m.SetIntent(w.now, i); err != nil {
		w.t.Fatal(err)
	}
	w.sweep()
}

func (w *world) sweep() { w.m.SetSubnet(w.now, w.net()) }

// start activates the manager.
func (w *world) start(o []Observed) {
	w.m.Activate(w.now, o)
	w.sweep()
}

// succeed lets another manager take over at another LID, with what the first one kept, or nothing.
func (w *world) succeed(lid ib.LID, o []Observed) {
	w.m = New(Config{TIDs: 2 + uint32(w.requests)}, w)
	w.self = lid
	w.flying = nil
	if err := w.m.SetIntent(w.now, w.intent); err != nil {
		w.t.Fatal(err)
	}
	w.start(o)
}

// Join implements Fabric.
func (w *world) Join(_ mono.Time, g Group) ib.LID {
	if old, ok := w.groups[g.MGID]; ok {
		g.MLID = old.MLID
	} else {
		taken := func(l ib.LID) bool {
			for _, o := range w.groups {
				if o.MLID == l {
					return true
				}
			}
			return false
		}
		if g.MLID == 0 || taken(g.MLID) {
			for g.MLID = ib.LIDMulticastFirst; taken(g.MLID); {
				g.MLID++
			}
		}
	}
	w.groups[g.MGID] = g
	return g.MLID
}

// Leave implements Fabric.
func (w *world) Leave(_ mono.Time, g ib.GID) { delete(w.groups, g) }

// Groups implements Fabric.
func (w *world) Groups() []ib.GID { return slices.Collect(maps.Keys(w.groups)) }

// Carries implements Fabric.
func (w *world) Carries(l ib.LID, p ib.GUID) bool {
	if w.uncarried[p] {
		return false
	}
	for _, g := range w.groups {
		if g.MLID == l {
			return slices.Contains(g.Members, p)
		}
	}
	return false
}

// Keep implements Fabric.
func (w *world) Keep() { w.kept++ }

// run lets the clock go on until ok, or until nothing happens before the deadline.
func (w *world) run(d time.Duration, ok func() bool) bool {
	end := w.now.Add(d)
	for {
		var r Request
		for !w.stopped && w.m.Next(w.now, &r) {
			w.requests++
			w.carry(&r)
			if w.requests == w.stopAfter {
				w.stopped = true
			}
		}
		if w.stopped || ok != nil && ok() {
			return true
		}
		next := w.m.Deadline()
		for _, f := range w.flying {
			next = mono.Min(next, f.at)
		}
		if next == 0 || next > end {
			w.now = end
			return ok == nil
		}
		w.now = max(w.now, next)
		flying := w.flying
		w.flying = nil
		for _, f := range flying {
			switch {
			case f.at > w.now:
				w.flying = append(w.flying, f)
			case f.trap != nil:
				w.m.Trap(w.now, f.from, f.trap)
			default:
				w.m.Handle(w.now, f.from, f.mad)
			}
		}
	}
}

// until runs until ok, or fails.
func (w *world) until(d time.Duration, what string, ok func() bool) {
	w.t.Helper()
	if w.run(d, ok) {
		return
	}
	s := w.m.Status()
	for i := range s.VESWs {
		for k := range s.VESWs[i].Members {
			m := &s.VESWs[i].Members[k]
			m.MACs, m.Multicast = m.MACs[:min(4, len(m.MACs))], nil
		}
	}
	w.t.Fatalf("not within %v: %s; %+v", d, what, s)
}

func (w *world) byLID(l ib.LID) *agent {
	for _, a := range w.agents {
		if a.lid == l && a.there {
			return a
		}
	}
	return nil
}

func (w *world) lost() bool { return w.rng.Float64() < w.loss }

// carry takes a request to its port, and the answer on its way back.
func (w *world) carry(r *Request) {
	a := w.byLID(r.LID)
	if a == nil || a.mute || w.lost() {
		return
	}
	var q mad.VEMA
	if err := q.Parse(r.MAD.Append(nil)); err != nil { // as on the wire
		w.t.Fatal(err)
	}
	ans := w.serve(a, &q)
	if a.twist != nil {
		if ans = a.twist(&q, ans); ans == nil {
			return
		}
	}
	if w.lost() {
		return
	}
	d := w.delay/2 + time.Duration(w.rng.Int64N(int64(w.delay)))
	w.flying = append(w.flying, flight{at: w.now.Add(d), from: a.lid, mad: ans})
}

// trap sends a trap of a vport.
func (w *world) trap(a *agent, index uint8, op mad.VEMAOpcode) {
	if a.cpi.Trap.LID != uint32(w.self) || w.lost() {
		return
	}
	n := mad.VEMANotice{GenericType: mad.VEMAGenericType, OUI: mad.VEMAOUI, VPort: index, Opcode: op}
	w.flying = append(w.flying, flight{at: w.now.Add(w.delay), from: a.lid, trap: &n})
}

func freshInfo() mad.VESWPortInfo {
	i := mad.DefaultVESWPortInfo()
	i.Port.LinkStatus = mad.VESWLinkDown
	return i
}

// derive computes the read-only fields of an agent.
func (v *fakeVPort) derive() {
	p := &v.info.Port
	p.OperState, p.LinkStatus = mad.VESWDropAll, mad.VESWLinkDown
	if p.ConfigState == mad.VESWForwarding && !v.down {
		p.OperState, p.LinkStatus = mad.VESWForwarding, mad.VESWLinkUp
	}
}

// serve is the agent.
func (w *world) serve(a *agent, q *mad.VEMA) *mad.VEMA {
	r := *q
	r.Method = q.Method.Response()
	fail := func(s mad.Status) *mad.VEMA {
		r.Status = s
		r.Data = [mad.VEMADataLen]byte{}
		return &r
	}
	if a.none {
		return fail(mad.StatusBadMethodAttr)
	}
	isSet := q.Method == mad.MethodSet
	index := mad.VEMAVPort(q.AttributeModifier)
	v := a.vport[index]
	o := order{at: w.now, port: a.guid, vport: index, attr: q.AttributeID}
	if v != nil {
		o.had = v.info
	}
	if isSet && q.AttributeID != mad.AttrClassPortInfo && a.cpi.Trap.LID != uint32(w.self) {
		w.t.Errorf("a Set of %#x before the trap LID", q.AttributeID)
	}
	tellInfo := func() *mad.VEMA {
		i := mad.DefaultVESWPortInfo()
		if v != nil {
			v.derive()
			i = v.info
		}
		r.Data = [mad.VEMADataLen]byte{}
		i.Append(r.Data[:0])
		return &r
	}
	switch q.AttributeID {
	case mad.AttrClassPortInfo:
		if isSet {
			a.cpi.Parse(q.Data[:])
			w.sets = append(w.sets, o)
		}
		a.cpi.BaseVersion, a.cpi.ClassVersion, a.cpi.CapabilityMask, a.cpi.RespTimeValue = 0x80, mad.VEMAClassVersion, 0xff01, 18
		a.cpi.Append(r.Data[:0])
	case mad.AttrVESWPortInfo:
		if !isSet {
			return tellInfo()
		}
		var i mad.VESWPortInfo
		i.Parse(q.Data[:])
		for k, x := range a.vport {
			if k != index && i.VESW.VESWID != 0 && x.info.VESW.VESWID == i.VESW.VESWID {
				return fail(mad.StatusInvalidValue)
			}
		}
		if v == nil {
			v = &fakeVPort{info: freshInfo()}
			a.vport[index] = v
		}
		o.config, o.id = i.Port.ConfigState, i.VESW.VESWID
		w.sets = append(w.sets, o)
		had := v.info.Port
		v.info = i
		p := &v.info.Port
		p.MACDigest, p.UcMACsGen, p.McMACsGen, p.MaxMACEntries, p.MaxSMACEntries = had.MACDigest, had.UcMACsGen, had.McMACsGen, mad.VESWMaxMACs, mad.VESWMaxSMACs
		return tellInfo()
	case mad.AttrVESWDelete:
		if v == nil || !isSet {
			return fail(mad.StatusInvalidValue)
		}
		w.sets = append(w.sets, o)
		uc, mc := v.info.Port.UcMACsGen, v.info.Port.McMACsGen
		v.info, v.table = freshInfo(), [mad.VESWMaxMACs]mad.VESWMACEntry{}
		v.info.Port.UcMACsGen, v.info.Port.McMACsGen = uc, mc
		return tellInfo()
	case mad.AttrVESWRemove:
		if a.plain {
			return fail(mad.StatusBadMethodAttr)
		}
		if v == nil {
			return fail(mad.StatusInvalidValue)
		}
		w.sets = append(w.sets, o)
		delete(a.vport, index)
		r.Data = [mad.VEMADataLen]byte{}
	case mad.AttrVESWMACEntries:
		var e mad.VESWMACEntries
		e.Parse(q.Data[:])
		if v == nil || !e.Valid() {
			return fail(mad.StatusInvalidValue)
		}
		if isSet {
			o.num, o.offset = int(e.Num), int(e.Offset)
			w.sets = append(w.sets, o)
			copy(v.table[e.Offset:], e.Entries[:e.Num])
			v.info.Port.MACDigest = e.Digest
		}
		e = mad.VESWMACEntries{Offset: e.Offset, Num: e.Num, Digest: v.info.Port.MACDigest}
		copy(e.Entries[:e.Num], v.table[e.Offset:])
		e.Append(r.Data[:0])
	case mad.AttrVESWUnicastMACs, mad.AttrVESWMcastMACs:
		if v == nil {
			return fail(mad.StatusInvalidValue)
		}
		list, gen := v.uc, v.info.Port.UcMACsGen
		if q.AttributeID == mad.AttrVESWMcastMACs {
			list, gen = v.mc, v.info.Port.McMACsGen
		}
		var l mad.VESWMACList
		l.Parse(q.Data[:])
		l.Total, l.Gen, l.Num = uint16(len(list)), gen, 0
		for i := int(l.Start); i < len(list) && int(l.Num) < len(l.MACs); i++ {
			l.MACs[l.Num] = list[i]
			l.Num++
		}
		r.Data = [mad.VEMADataLen]byte{}
		l.Append(r.Data[:0])
	default:
		return fail(mad.StatusBadMethodAttr)
	}
	return &r
}

// setMACs replaces the list of unicast MACs of a vport, and sends a trap.
func (w *world) setMACs(port int, index uint8, macs ...MAC) {
	a := w.agents[portGUID(port)]
	v := a.vport[index]
	v.uc = macs
	v.info.Port.UcMACsGen++
	w.trap(a, index, mad.VEMAUnicastMACs)
}

func (w *world) at(port int, index uint8) *fakeVPort { return w.agents[portGUID(port)].vport[index] }

// forwards reports whether every port of a VESW, but those that are left out, forwards with it.
func (w *world) forwards(id uint16, ports ...int) bool {
	for _, p := range ports {
		if !slices.ContainsFunc(slices.Collect(maps.Values(w.agents[portGUID(p)].vport)), func(v *fakeVPort) bool {
			return v.info.VESW.VESWID == id && v.info.Port.ConfigState == mad.VESWForwarding
		}) {
			return false
		}
	}
	return true
}

// lookup is where a port sends a MAC by its table, 0 for nowhere.
func (v *fakeVPort) lookup(m MAC) uint32 {
	for _, e := range v.table {
		if e.MAC == m && !e.IsSource() {
			return e.DLID()
		}
	}
	return 0
}

// entries are how many slots of a table are filled.
func (v *fakeVPort) entries() (n int) {
	for _, e := range v.table {
		if e.MAC != (MAC{}) {
			n++
		}
	}
	return n
}

// members makes a VESW of ports, all with vport 0.
func members(name string, id uint16, ports ...int) VESW {
	v := VESW{Name: name, ID: id}
	for i, p := range ports {
		v.Members = append(v.Members, Member{Port: portGUID(p), Num: uint32(i + 1)})
	}
	return v
}

// bounces are orders that stopped or reset a vport which forwarded for a VESW.
func (w *world) bounces() (list []order) {
	for _, o := range w.sets {
		was := o.had.Port.ConfigState == mad.VESWForwarding
		if was && (o.attr == mad.AttrVESWPortInfo && (o.config != mad.VESWForwarding || o.id != o.had.VESW.VESWID) ||
			o.attr == mad.AttrVESWDelete || o.attr == mad.AttrVESWRemove) {
			list = append(list, o)
		}
	}
	return list
}

// veswSets are the orders that concern vports.
func (w *world) veswSets() (list []order) {
	for _, o := range w.sets {
		if o.attr != mad.AttrClassPortInfo {
			list = append(list, o)
		}
	}
	return list
}

// quiet runs until every VESW is in its intended state and nothing is sent except polls.
func (w *world) quiet() {
	w.t.Helper()
	for range 20 {
		n := len(w.sets)
		w.run(25*time.Second, nil)
		if len(w.sets) == n {
			return
		}
	}
	w.t.Fatalf("no rest: %v", w.sets[max(0, len(w.sets)-20):])
}

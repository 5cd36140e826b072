// SPDX-License-Identifier: Apache-2.0

// Package em is the Ethernet Manager: it makes vports of adapters' ports into the ports of virtual
// Ethernet switches (VESWs), tells each where the MACs of the others are, and follows what changes.
//
// What comes in: the subnet as its manager sees it, what is wanted (Intent), what an earlier manager
// knew (Observations), MADs of class 0x34 and the time. What goes out: such MADs, with the LID that they are for, orders for the
// multicast groups (Fabric), and Status for people. The manager of a node owns a Manager and calls it on its one goroutine; tests do with
// fake agents. It never reads a clock, never blocks, and believes no agent: what one says is bounded, and costs
// nobody but its own port.
//
// Everything is done by comparison. What a port has is read, what it shall have is computed, and what differs is set;
// so a manager that takes over does what the one before would have done next, and touches no port that is as it
// shall be. docs/notes/vesw.md tells the order of things.
package em

import (
	"math/bits"
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Config is how a manager works; zero values are defaults.
type Config struct {
	// TIDs are the upper half of the transaction identifiers.
	TIDs uint32

	Outstanding int           // requests on their way at a time, of a port there is only one; 1 … 256; 128
	Timeout     time.Duration // until a request is repeated, then doubled; 300 ms
	MaxTimeout  time.Duration // 1.1 s
	Retries     int           // how often it is repeated; 3
	Poll        time.Duration // how often a port is looked at; 10 s
	Probe       time.Duration // how often a port without an agent is asked again; 60 s
	Backoff     time.Duration // until a port that does not answer, or not as it should, is tried again, then doubled up to Probe; 2 s
	ListEvery   time.Duration // how often lists of MACs of a port are read at most; doubled up to Poll while they change; 200 ms
}

func (c *Config) fill() {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	dur := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&c.Outstanding, 128)
	c.Outstanding = min(c.Outstanding, maxOutstanding)
	def(&c.Retries, 3)
	dur(&c.Timeout, 300*time.Millisecond)
	dur(&c.MaxTimeout, 1100*time.Millisecond)
	dur(&c.Poll, 10*time.Second)
	dur(&c.Probe, time.Minute)
	dur(&c.Backoff, 2*time.Second)
	dur(&c.ListEvery, 200*time.Millisecond)
}

// Fabric is the rest of the subnet's manager. Its methods are called from within those of Manager and
// must not call those.
type Fabric interface {
	// Join makes a multicast group what g says, and returns its MLID; 0 means that there is no room.
	Join(now mono.Time, g Group) ib.LID
	// Leave ends the group of an MGID.
	Leave(now mono.Time, mgid ib.GID)
	// Groups are the MGIDs of the groups that Join made, also for an earlier manager.
	Groups() []ib.GID
	// Carries reports whether the tables of all switches are written that take packets of
	// a group to and from a port.
	Carries(mlid ib.LID, port ib.GUID) bool
	// Keep tells that Observations changed.
	Keep()
}

// Group is the multicast group of a VESW. Nobody but its members may be in it.
type Group struct {
	MGID    ib.GID
	MLID    ib.LID // that it had, or shall have if there is a choice; 0 otherwise
	PKey    ib.PKey
	SL      uint8
	Members []ib.GUID
}

// mgidOf is the MGID of the group of a VESW.
func mgidOf(fabric, id uint16, key ib.PKey) ib.GID {
	return ib.GID{0xff, 0x15, mgidSignature >> 8, mgidSignature & 0xff, byte(key>>8) | 0x80, byte(key), 12: byte(fabric >> 8), 13: byte(fabric), 14: byte(id >> 8), 15: byte(id)}
}

const mgidSignature = 0xe078

// IsGroup reports whether an MGID is that of a VESW's group.
func IsGroup(g ib.GID) bool {
	return g[0] == 0xff && g[2] == mgidSignature>>8 && g[3] == mgidSignature&0xff
}

// groupID is what ports that use a group have: the identifier of its VESW, and its P_Key.
func groupID(g ib.GID) [2]uint16 {
	return [2]uint16{uint16(g[14])<<8 | uint16(g[15]), uint16(g[4])<<8 | uint16(g[5])}
}

// mlid24 is an MLID as 16B packets have it.
func mlid24(l ib.LID) uint32 {
	if !l.IsMulticast() {
		return 0
	}
	return 0xf00000 + uint32(l-ib.LIDMulticastFirst)
}

// Manager is an Ethernet Manager. It has one owner.
type Manager struct {
	cfg    Config
	fabric Fabric
	intent Intent
	before map[uint16]Observed // what an earlier manager knew, by identifier, until it is used

	active bool
	lid    ib.LID // of the manager's port
	gid    ib.GID
	net    *topo.Subnet
	ports  map[ib.GUID]*port
	byLID  map[ib.LID]*port
	vesws  []*vesw // as in the intent
	byID   map[uint16]*vesw
	dying  map[ib.GID]bool // groups of VESWs that are no more

	// Ports to be looked at, in order: those that answer, and those of which that is not known.
	ready, unsure queue
	timers        mono.Heap[*port] // ports by the time at which Next looks at them
	requests
	Counters Counters
}

// Counters count what a manager did, and what it refused to believe.
type Counters struct {
	Sent, Answered, Unanswered, Sets                 uint64
	Traps, TrapsDropped                              uint64
	Stray, BadAnswers, Refused, Mismatches           uint64 // answers: to nothing, nonsense, a status, not what was set
	ListsRead, ListsCut, ListsUnstable, BadMACs      uint64 // lists of MACs
	Duplicates, Overflows, Adopted, Bounced, Removed uint64
}

// New returns a manager that does nothing until Activate.
func New(c Config, f Fabric) *Manager {
	c.fill()
	return &Manager{cfg: c, fabric: f, before: map[uint16]Observed{}, ports: map[ib.GUID]*port{}, byLID: map[ib.LID]*port{}, byID: map[uint16]*vesw{},
		dying: map[ib.GID]bool{}}
}

// Activate makes m the manager of the subnet, with what the one before knew: every port is looked at anew.
func (m *Manager) Activate(now mono.Time, o []Observed) {
	m.Deactivate()
	m.active = true
	m.before = map[uint16]Observed{}
	for _, x := range o {
		m.before[x.ID] = x
	}
	m.setVESWs(now)
	for _, g := range m.fabric.Groups() {
		m.dying[g] = true // unless a VESW turns out to have it
	}
}

// Deactivate ends that: nothing is sent any more. Ports go on as they are.
func (m *Manager) Deactivate() {
	*m = Manager{cfg: m.cfg, fabric: m.fabric, intent: m.intent, before: map[uint16]Observed{}, ports: map[ib.GUID]*port{}, byLID: map[ib.LID]*port{},
		byID: map[uint16]*vesw{}, dying: map[ib.GID]bool{}, requests: requests{gen: m.requests.gen}, Counters: m.Counters}
}

// Active reports whether m manages.
func (m *Manager) Active() bool { return m.active }

// SetIntent replaces what is wanted.
func (m *Manager) SetIntent(now mono.Time, i Intent) error {
	if err := i.Validate(); err != nil {
		return err
	}
	m.intent = i
	if m.active {
		m.setVESWs(now)
	}
	return nil
}

// Intent returns what is wanted.
func (m *Manager) Intent() Intent { return m.intent }

// SetSubnet gives the manager a new model of the subnet, which must be indexed, after Activate. What Fabric.Carries
// says may have changed with it.
func (m *Manager) SetSubnet(now mono.Time, net *topo.Subnet) {
	if !m.active {
		return
	}
	m.net = net
	self := net.Port(net.Self)
	if self == nil {
		return
	}
	if lid := self.Info.LID; lid != m.lid {
		m.lid, m.gid = lid, net.GID(net.Self)
		for _, p := range m.ports {
			p.trapSet = false
		}
	}
	seen := map[ib.GUID]bool{}
	moved := false // who tables of MACs lead to
	clear(m.byLID)
	for r := range net.EndPorts() {
		n, tp := &net.Nodes[r.Node], net.Port(r)
		if n.IsSwitch() || tp.Info.PortState != ib.PortActive || !tp.Info.LID.IsUnicast() {
			continue
		}
		seen[tp.GUID] = true
		p := m.ports[tp.GUID]
		if p == nil {
			p = &port{guid: tp.GUID, vports: map[uint8]*vport{}}
			p.timer.Value = p
			m.ports[tp.GUID] = p
		}
		if p.lid != tp.Info.LID {
			p.lid = tp.Info.LID
			moved = true
			m.cancel(p) // it was asked under another LID
			p.cpiAt = now
		}
		if c := (capabilities{tp.Info.CapabilityMask, tp.Info.CapabilityMask2}); p.caps != c {
			p.caps = c
			p.cpiAt = now
		}
		p.name, p.pkeys = n.Description, tp.PKeys
		p.mtu = MaxLinkMTU
		if mtu := tp.Info.NeighborMTU; mtu.Valid() && mtu < ib.MTU4096 {
			p.mtu = mtu.Bytes()
		}
		m.byLID[p.lid] = p
	}
	for guid, p := range m.ports {
		if !seen[guid] {
			moved = true
			m.forget(p)
		}
	}
	if moved {
		for _, v := range m.vesws {
			v.stamp++
		}
	}
	m.replan(now)
}

// Recheck has a port's agent asked again whether it is there: its capabilities changed.
func (m *Manager) Recheck(now mono.Time, from ib.LID) {
	if p := m.byLID[from]; p != nil && m.active {
		p.cpiAt = now
		m.wake(p)
	}
}

// forget drops a port that has left the subnet, and what came from it.
func (m *Manager) forget(p *port) {
	m.cancel(p)
	p.gone = true
	m.timers.Stop(&p.timer)
	delete(m.ports, p.guid)
}

// setVESWs makes what is kept of VESWs follow the intent.
func (m *Manager) setVESWs(now mono.Time) {
	old := m.byID
	m.vesws, m.byID = nil, map[uint16]*vesw{}
	for k := range m.intent.VESWs {
		want := &m.intent.VESWs[k]
		v := old[want.ID]
		if v == nil || v.want.Name != want.Name {
			v = &vesw{m: m, members: map[ib.GUID]*member{}}
			if o, ok := m.before[want.ID]; ok && o.Name == want.Name {
				v.recall(&o)
			}
			delete(m.before, want.ID)
		}
		v.want = want
		m.vesws = append(m.vesws, v)
		m.byID[want.ID] = v
	}
	for id, v := range old {
		if m.byID[id] != v && v.mgid != (ib.GID{}) {
			m.dying[v.mgid] = true
		}
	}
	for _, v := range m.vesws {
		delete(m.dying, v.mgid)
	}
	m.replan(now)
}

// replan computes what every VESW and vport shall be, and has all ports looked at.
func (m *Manager) replan(now mono.Time) {
	if m.net == nil {
		return
	}
	for _, p := range m.ports {
		for _, vp := range p.vports {
			vp.member = nil
		}
	}
	for _, v := range m.vesws {
		v.enroll()
		v.joined = nil // who left the subnet has left its groups
	}
	for _, v := range m.vesws {
		v.plan(now)
	}
	for _, p := range m.ports {
		m.wake(p)
	}
}

// Next produces the next request to send. False means that there is none now: call it until then, after
// everything that came in and at every Deadline.
func (m *Manager) Next(now mono.Time, r *Request) bool {
	if !m.active || m.net == nil {
		return false
	}
	m.expire(now)
	m.timers.Run(now, m.wake)
	for m.flown < m.cfg.Outstanding {
		p := m.ready.pop()
		if p == nil && m.doubtful < (m.cfg.Outstanding+1)/2 { // who does not answer leaves room for who does
			p = m.unsure.pop()
		}
		if p == nil {
			break
		}
		p.queued = false
		if p.gone || p.req != nil {
			continue
		}
		q, at := m.step(now, p)
		if q == nil {
			m.sleep(p, at)
			continue
		}
		m.send(now, p, q, r)
		return true
	}
	m.settle(now)
	return false
}

// Deadline returns when Next has something to do if nothing arrives; zero is never.
func (m *Manager) Deadline() mono.Time { return mono.Min(m.timers.Next(), m.requests.deadline()) }

// wake has a port looked at by Next.
func (m *Manager) wake(p *port) {
	m.timers.Stop(&p.timer)
	if !p.queued && p.req == nil && !p.gone {
		p.queued = true
		if p.answers() {
			m.ready.push(p)
		} else {
			m.unsure.push(p)
		}
	}
}

// queue is ports in order.
type queue struct {
	list []*port
	head int
}

func (q *queue) push(p *port) {
	if q.head > 64 && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, p)
}

func (q *queue) pop() *port {
	if q.head == len(q.list) {
		return nil
	}
	p := q.list[q.head]
	q.list[q.head] = nil
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return p
}

// sleep has a port looked at later.
func (m *Manager) sleep(p *port, at mono.Time) {
	if at.IsZero() || p.queued || p.gone {
		return
	}
	m.timers.Set(&p.timer, at)
}

// settle ends the groups of VESWs that are no more, once no port uses them.
func (m *Manager) settle(now mono.Time) {
	if len(m.dying) == 0 {
		return
	}
	used := map[[2]uint16]bool{}
	for _, p := range m.ports {
		if p.state == agentUnknown || p.state == agentThere && !p.scanned {
			return // it may
		}
		for _, vp := range p.vports {
			if i := &vp.info; p.state == agentThere && vp.known {
				used[[2]uint16{i.VESW.VESWID, uint16(i.VESW.PKey) | 0x8000}] = true
			}
		}
	}
	for g := range m.dying {
		if !used[groupID(g)] {
			delete(m.dying, g)
			m.fabric.Leave(now, g)
		}
	}
}

// Observed is what a manager knew of a VESW, and the next one should know.
type Observed struct {
	ID   uint16
	Name string
	MLID ib.LID
	MACs []Slot `json:",omitempty"`
}

// Slot is a place in the tables of MACs of a VESW.
type Slot struct {
	Slot uint16
	MAC  MAC
	Port ib.GUID
}

// Observations returns what is to be kept.
func (m *Manager) Observations() (list []Observed) {
	for _, v := range m.vesws {
		o := Observed{ID: v.want.ID, Name: v.want.Name, MLID: v.mlid}
		for i, s := range v.slots {
			if s.mac != (MAC{}) {
				o.MACs = append(o.MACs, Slot{uint16(i), s.mac, s.owner})
			}
		}
		list = append(list, o)
	}
	return list
}

// double is d times two to the n, but most at most.
func double(d time.Duration, n int, most time.Duration) time.Duration {
	if n >= bits.LeadingZeros64(uint64(d))-1 {
		return most
	}
	return min(d<<n, most)
}

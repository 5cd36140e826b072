// SPDX-License-Identifier: Apache-2.0

// Package em is the Ethernet Manager: it makes vports of the ports of adapters into the ports of virtual Ethernet
// switches (VESWs), distributes the MACs of the members, and follows changes.
//
// What comes in: the subnet as its manager sees it, the configuration (Intent), the observations of an earlier manager
// (Observations), MADs of class 0x34 and the time. What goes out: such MADs with their destination LID, requests for
// multicast groups (Fabric), and Status for people. The manager of a node owns a Manager and calls it on its one
// goroutine; tests call it with fake agents. It never reads a clock, never blocks, and trusts no agent: the state that
// an agent causes is bounded, and affects only its own port.
//
// All work is by comparison: the manager reads the state of a port, computes the required state, and sets what differs.
// So a manager that takes over does the next step of the one before, and does not write to a port that is correct.
// docs/notes/vesw.md has the order of the steps.
package em

import (
	"math/bits"
	"time"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Config configures a manager; zero values are defaults.
type Config struct {
	// TIDs are the upper half of the transaction identifiers.
	TIDs uint32

	Outstanding int           // largest number of outstanding requests, one per port; 1 … 256; 128
	Timeout     time.Duration // until a request is repeated, then doubled; 300 ms
	MaxTimeout  time.Duration // 1.1 s
	Retries     int           // number of repetitions; 3
	Poll        time.Duration // interval of polls of a port; 10 s
	Probe       time.Duration // interval of probes of a port without an agent; 60 s
	Backoff     time.Duration // rest of a port without an answer, doubled up to Probe; 2 s
	ListEvery   time.Duration // shortest interval of reads of a list of MACs, doubled up to Poll; 200 ms
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

// Fabric is the interface to the manager of the subnet. Manager calls its methods from within its own; they must not
// call Manager.
type Fabric interface {
	// Join creates or changes a multicast group to match g, and returns its MLID; 0 means that there is no room.
	Join(now mono.Time, g Group) ib.LID
	// Leave deletes the group of an MGID.
	Leave(now mono.Time, mgid ib.GID)
	// Groups returns the MGIDs of the groups that Join created, also those of an earlier manager.
	Groups() []ib.GID
	// Carries reports whether all switches have the tables that forward packets of a group to and from a port.
	Carries(mlid ib.LID, port ib.GUID) bool
	// Keep reports that Observations changed.
	Keep()
}

// Group is the multicast group of a VESW. Only its members may join it.
type Group struct {
	MGID    ib.GID
	MLID    ib.LID // preferred MLID, such as that of the past; 0: none
	PKey    ib.PKey
	SL      uint8
	Members []ib.GUID
}

// mgidOf returns the MGID of the group of a VESW.
func mgidOf(fabric, id uint16, key ib.PKey) ib.GID {
	return ib.GID{0xff, 0x15, mgidSignature >> 8, mgidSignature & 0xff, byte(key>>8) | 0x80, byte(key),
		12: byte(fabric >> 8), 13: byte(fabric), 14: byte(id >> 8), 15: byte(id)}
}

const mgidSignature = 0xe078

// IsGroup reports whether an MGID is that of the group of a VESW.
func IsGroup(g ib.GID) bool {
	return g[0] == 0xff && g[2] == mgidSignature>>8 && g[3] == mgidSignature&0xff
}

// groupID identifies a group at its ports: the identifier of the VESW, and its P_Key.
func groupID(g ib.GID) [2]uint16 {
	return [2]uint16{uint16(g[14])<<8 | uint16(g[15]), uint16(g[4])<<8 | uint16(g[5])}
}

// mlid24 is an MLID in the 24 bits of a 16B packet.
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
	before map[uint16]Observed // observations of an earlier manager, by identifier, until they are used

	active bool
	lid    ib.LID // of the manager's port
	gid    ib.GID
	net    *topo.Subnet
	ports  map[ib.GUID]*port
	byLID  map[ib.LID]*port
	vesws  []*vesw // as in the intent
	byID   map[uint16]*vesw
	dying  map[ib.GID]bool // groups of removed VESWs

	// Ports that Next must handle, in order: those that answer, and those of which that is unknown.
	ready, unsure queue
	timers        mono.Heap[*port] // ports by the time at which Next looks at them
	requests
	Counters Counters
}

// Counters count requests, answers and the lists of MACs.
type Counters struct {
	Sent, Answered, Unanswered, Sets                 uint64
	Traps, TrapsDropped                              uint64
	Stray, BadAnswers, Refused, Mismatches           uint64 // answers by fault
	ListsRead, ListsCut, ListsUnstable, BadMACs      uint64 // lists of MACs
	Duplicates, Overflows, Adopted, Bounced, Removed uint64
}

// New returns a manager that is inactive until Activate.
func New(c Config, f Fabric) *Manager {
	c.fill()
	return &Manager{cfg: c, fabric: f, before: map[uint16]Observed{}, ports: map[ib.GUID]*port{},
		byLID: map[ib.LID]*port{}, byID: map[uint16]*vesw{},
		dying: map[ib.GID]bool{}}
}

// Activate makes m the manager of the subnet, with the observations of the one before. It reads every port again.
func (m *Manager) Activate(now mono.Time, o []Observed) {
	m.Deactivate()
	m.active = true
	m.before = map[uint16]Observed{}
	for _, x := range o {
		m.before[x.ID] = x
	}
	m.setVESWs(now)
	for _, g := range m.fabric.Groups() {
		m.dying[g] = true // unless a VESW has it
	}
}

// Deactivate ends the management: the manager sends nothing any more. Ports keep their state.
func (m *Manager) Deactivate() {
	*m = Manager{cfg: m.cfg, fabric: m.fabric, intent: m.intent, before: map[uint16]Observed{},
		ports: map[ib.GUID]*port{}, byLID: map[ib.LID]*port{},
		byID: map[uint16]*vesw{}, dying: map[ib.GID]bool{}, requests: requests{gen: m.requests.gen}, Counters: m.Counters}
}

// Active reports whether m manages.
func (m *Manager) Active() bool { return m.active }

// SetIntent replaces the configuration.
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

// Intent returns the configuration.
func (m *Manager) Intent() Intent { return m.intent }

// SetSubnet replaces the model of the subnet, which must be indexed, after Activate. The results of Fabric.Carries may
// have changed with it.
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
	moved := false // a LID in tables of MACs changed
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
			m.cancel(p) // its request was sent to another LID
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

// Recheck makes the manager probe the agent of a port again, because its capabilities changed.
func (m *Manager) Recheck(now mono.Time, from ib.LID) {
	if p := m.byLID[from]; p != nil && m.active {
		p.cpiAt = now
		m.wake(p)
	}
}

// forget removes a port that is not in the subnet any more, and its MACs.
func (m *Manager) forget(p *port) {
	m.cancel(p)
	p.gone = true
	m.timers.Stop(&p.timer)
	delete(m.ports, p.guid)
}

// setVESWs updates the VESWs to match the intent.
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

// replan computes the required state of every VESW and vport, and wakes all ports.
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
		v.joined = nil // a port that left the subnet is not in its groups any more
	}
	for _, v := range m.vesws {
		v.plan(now)
	}
	for _, p := range m.ports {
		m.wake(p)
	}
}

// Next writes the next request to r. Call it after every other call and at every Deadline, until it returns false:
// there is none now.
func (m *Manager) Next(now mono.Time, r *Request) bool {
	if !m.active || m.net == nil {
		return false
	}
	m.expire(now)
	m.timers.Run(now, m.wake)
	for m.outstanding < m.cfg.Outstanding {
		p := m.ready.pop()
		if p == nil && m.doubtful < (m.cfg.Outstanding+1)/2 { // silent ports get at most half of the slots
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
	m.endGroups(now)
	return false
}

// Deadline returns when Next must be called next if no answer arrives; zero is never.
func (m *Manager) Deadline() mono.Time { return mono.Min(m.timers.Next(), m.requests.deadline()) }

// wake queues a port for Next.
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

// queue is a queue of ports.
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

// sleep makes Next handle a port at a later time.
func (m *Manager) sleep(p *port, at mono.Time) {
	if at.IsZero() || p.queued || p.gone {
		return
	}
	m.timers.Set(&p.timer, at)
}

// endGroups deletes the groups of removed VESWs that no port uses any more.
func (m *Manager) endGroups(now mono.Time) {
	if len(m.dying) == 0 {
		return
	}
	used := map[[2]uint16]bool{}
	for _, p := range m.ports {
		if p.state == agentUnknown || p.state == agentThere && !p.scanned {
			return // it may use one
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

// Observed is the state of a VESW that the next manager continues with.
type Observed struct {
	ID   uint16
	Name string
	MLID ib.LID
	MACs []Slot `json:",omitempty"`
}

// Slot is a slot of the tables of MACs of a VESW.
type Slot struct {
	Slot uint16
	MAC  MAC
	Port ib.GUID
}

// Observations returns the observations to store.
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

// double returns d × 2^n, at most most.
func double(d time.Duration, n int, most time.Duration) time.Duration {
	if n >= bits.LeadingZeros64(uint64(d))-1 {
		return most
	}
	return min(d<<n, most)
}

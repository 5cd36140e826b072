// SPDX-License-Identifier: Apache-2.0

// Package sm is a subnet manager: it discovers a subnet, assigns LIDs, partitions and routes, brings ports to
// ACTIVE, detects changes, and elects the master among managers.
//
// What comes in: subnet management packets that reach the port of the manager, time, the configuration (Intent), the
// observations of an earlier manager (Observations), the multicast groups. What goes out: packets for the port of
// the manager, models of the subnet (package topo), observations to store, and Status for people. The management
// goroutine of a node owns a Manager; simulated subnets drive the same code. It never blocks, reads no clock, and
// sees the subnet only through management packets, so that it can manage switches and adapters of any vendor.
//
// A Manager decides and keeps time. A sweep does the work of one pass: a heavy sweep discovers everything anew and
// writes only what differs; a light sweep queries switches for changes of their ports. requests queues, repeats and
// matches packets. Procedures are those of IBA volume 1, chapter 14, in the order of OpenSM.
package sm

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"weft/internal/mgmt/sm/route"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Config configures a manager; zero values are defaults.
type Config struct {
	// PortGUID is the port of the manager.
	PortGUID ib.GUID
	Priority uint8 // 0 … 15, higher is master
	SMKey    uint64
	// TIDs are the upper half of the transaction identifiers. Two managers at one port have different ones.
	TIDs uint32
	// Gated makes the manager inactive until Permit: an election outside of the subnet decides which manager may
	// be master.
	Gated bool

	// MemberBits is the number of low bits in which the GUIDs of the nodes and ports of one member of a fabric differ.
	// A node behind a confined switch with a GUID that differs above these bits claims to be of another member: it is
	// ignored. 0: GUIDs say nothing about members.
	MemberBits uint8

	Outstanding   int           // largest number of outstanding requests, 1 … 256; 16
	Timeout       time.Duration // until a request is repeated; 200 ms
	Retries       int           // number of repetitions; 3
	SweepInterval time.Duration // between light sweeps; 10 s
	PollInterval  time.Duration // between polls of the master by a standby manager; 2 s
	PollRetries   int           // unanswered polls until the master counts as down; 3
	Debounce      time.Duration // from a notification to the heavy sweep; 20 ms
	Backoff       time.Duration // until the sweep after one with failures, then doubled; 1 s
	MaxNodes      int           // largest number of nodes; 16384
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
	def(&c.Outstanding, 16)
	c.Outstanding = min(c.Outstanding, maxOutstanding)
	if c.Retries < 0 {
		c.Retries = 0
	} else if c.Retries == 0 {
		c.Retries = 3
	}
	dur(&c.Timeout, 200*time.Millisecond)
	dur(&c.SweepInterval, 10*time.Second)
	dur(&c.PollInterval, 2*time.Second)
	def(&c.PollRetries, 3)
	dur(&c.Debounce, 20*time.Millisecond)
	dur(&c.Backoff, time.Second)
	def(&c.MaxNodes, 16384)
}

// Intent is the configuration of the subnet. It is plain data; the zero value is a subnet with one partition of which
// every port is a full member.
type Intent struct {
	Prefix uint64 `json:",omitempty"` // GID prefix; 0 is the default one
	LMC    uint8  `json:",omitempty"` // 2^LMC LIDs for each port of an adapter
	// MKey guards every port against other managers. It is a secret and not stored with the rest. MKeysBefore are
	// earlier keys that ports may still have.
	MKey          MKey   `json:"-"`
	MKeysBefore   []MKey `json:"-"`
	MKeyProtect   uint8  `json:",omitempty"`
	MKeyLease     uint16 `json:",omitempty"` // seconds; 0 never ends
	SubnetTimeout uint8  `json:",omitempty"` // 4.096 µs × 2^v; 0 is 18
	MaxMTU        ib.MTU `json:",omitempty"` // 0 is no limit
	// Enforce makes switches drop packets of partitions of which the adapter at their port is not a member.
	Enforce    bool        `json:",omitempty"`
	Partitions []Partition `json:",omitempty"`
	Lanes      *Lanes      `json:",omitempty"`
	// Engine is a list of route engines in the order of preference, separated by commas; minhop routes where none
	// of them can. Roots are for updn.
	Engine string    `json:",omitempty"`
	Roots  []ib.GUID `json:",omitempty"`
}

// Partition is a partition with its members.
type Partition struct {
	Name string
	PKey ib.PKey // bit 15 is ignored
	// Apart leaves other partitions unchanged: ports stay full members of the default partition.
	Apart bool `json:",omitempty"`
	// All is the membership of every port that is not in Members.
	All     Membership `json:",omitempty"`
	Members []Member   `json:",omitempty"`
}

// Membership is the kind of membership of a port in a partition.
type Membership uint8

// Memberships.
const (
	NotMember Membership = iota
	Limited
	Full
)

// Member is a port that belongs to a partition.
type Member struct {
	PortGUID ib.GUID
	As       Membership
}

// Lanes maps service levels to virtual lanes. Without it ports keep their mapping.
type Lanes struct {
	SLtoVL    mad.SLtoVL
	High, Low []mad.VLArbEntry
	HighLimit uint8
}

// Validate reports every fault of i, joined.
func (i *Intent) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if i.LMC > 7 {
		fault("LMC %d: want 0 to 7", i.LMC)
	}
	if i.SubnetTimeout > 31 {
		fault("subnet timeout %d: want 0 to 31", i.SubnetTimeout)
	}
	if i.MKeyProtect > 3 {
		fault("M_Key protection %d: want 0 to 3", i.MKeyProtect)
	}
	if i.MaxMTU != 0 && !i.MaxMTU.Valid() {
		fault("MTU %d: want 1 to 5", i.MaxMTU)
	}
	if i.Prefix>>56 == 0xff {
		fault("GID prefix %#x: it is that of multicast groups", i.Prefix)
	}
	if _, err := route.ByName(i.Engine, i.Roots...); err != nil {
		fault("%w", err)
	}
	seen := map[ib.PKey]string{}
	for _, p := range i.Partitions {
		k := p.PKey & 0x7fff
		if k == 0 {
			fault("partition %q: P_Key %#04x: its low 15 bits are zero", p.Name, p.PKey)
		} else if other, dup := seen[k]; dup {
			fault("partitions %q and %q: the same P_Key %#04x", other, p.Name, p.PKey)
		}
		seen[k] = p.Name
		ports := map[ib.GUID]bool{}
		for _, m := range p.Members {
			if m.PortGUID == 0 || ports[m.PortGUID] {
				fault("partition %q: port %v: named twice, or zero", p.Name, m.PortGUID)
			}
			ports[m.PortGUID] = true
		}
	}
	if l := i.Lanes; l != nil && (len(l.High) > 64 || len(l.Low) > 64) {
		fault("lanes: an arbitration table has 64 entries at most")
	}
	return errors.Join(errs...)
}

// Observations are the results of a manager that the next one continues with.
type Observations struct {
	// Token is the token of the permission of the manager that made them.
	Token uint64 `json:",omitempty"`
	LIDs  []LIDRecord
}

// LIDRecord is the LIDs of a port: 2^LMC from LID on.
type LIDRecord struct {
	PortGUID ib.GUID
	LID      ib.LID
	LMC      uint8 `json:",omitempty"`
}

// Group is a multicast group for the purpose of forwarding.
type Group struct {
	MLID    ib.LID
	Members []ib.GUID // port GUIDs
	Senders []ib.GUID `json:",omitempty"` // port GUIDs that send and do not receive
}

// base is what each sweep starts from and leaves to the next: configuration, intent and the state of the subnet.
type base struct {
	cfg    Config
	intent Intent
	engine route.Engine
	state  mad.SMState
	// caretaker: Caretake permitted the manager.
	caretaker bool

	lids    lidTable
	version uint64    // of the observations
	selfLID ib.LID    // of the manager's port; 0: none
	raised  []ib.GUID // ports that were in INIT, since Raised

	// transit is the set of the switches that paths of others may lead through, by node GUID; nil: all switches.
	transit map[ib.GUID]bool

	groups    []Group
	groupsSet uint64    // number of calls of SetGroups
	groupsAt  mono.Time // when multicast tables must be written
	trees     trees

	topo      *topo.Subnet
	trust     map[ib.GUID]bool   // nodes with the tables of topo
	silent    map[silentKey]bool // ports behind which no node answered
	lanesOf   *Lanes             // the lanes that all ports have
	everSwept bool               // a heavy sweep ended as master
}

// Manager is a subnet manager. It has one owner goroutine.
type Manager struct {
	base
	permitted bool
	token     uint64

	intents, swept uint64 // number of intents so far, and of that which the last heavy sweep applied
	lost           []LostLink
	groupsWritten  uint64 // the newest SetGroups that all switches have the trees of
	tables         *route.Tables
	guarded        map[int32]bool // nodes of topo with an unknown M_Key

	requests requests
	replies  []mad.Datagram
	sweep    *sweep

	lightAt  mono.Time // next light sweep
	heavyAt  mono.Time // next heavy sweep
	heavyWhy string
	heavyWas mono.Time // end of the last one
	watch    int       // light sweeps at short intervals that remain after a change of a link
	renewAt  mono.Time // when ports must next receive a request with their M_Key
	backoff  time.Duration
	// Of the last heavy sweep: whether a request failed, and the ports behind which no node answered.
	unfinished bool
	quiet      []topo.Ref
	started    bool
	cut        int // heavy sweeps in a row that did not end, since the subnet changed meanwhile
	election
	traps    map[ib.LID]trapCount
	actCount uint32
	status
}

// New returns a manager that continues with the observations o. It starts at its first Next, unless it is gated.
func New(c Config, i Intent, o Observations) (*Manager, error) {
	if err := i.Validate(); err != nil {
		return nil, err
	}
	c.fill()
	m := &Manager{permitted: !c.Gated, traps: map[ib.LID]trapCount{},
		base: base{cfg: c, state: mad.SMDiscovering, trust: map[ib.GUID]bool{}, silent: map[silentKey]bool{}}}
	m.requests.base = &m.base
	if c.Gated {
		m.state = mad.SMNotActive
	}
	m.setIntent(i)
	m.lids.restore(o)
	return m, nil
}

func (m *Manager) setIntent(i Intent) {
	if i.Prefix == 0 {
		i.Prefix = ib.DefaultGIDPrefix
	}
	if i.SubnetTimeout == 0 {
		i.SubnetTimeout = 18
	}
	if i.MKey.IsNone() {
		i.MKeyProtect, i.MKeyLease = 0, 0
	}
	if was := m.intent.MKey; !was.IsNone() && was != i.MKey && !slices.Contains(i.MKeysBefore, was) {
		i.MKeysBefore = append([]MKey{was}, i.MKeysBefore...)
	}
	m.intent = i
	m.intents++
	m.engine, _ = route.ByName(i.Engine, i.Roots...) // validated by Validate
}

// SetIntent replaces the configuration of the subnet; a heavy sweep applies it.
func (m *Manager) SetIntent(now mono.Time, i Intent) error {
	if err := i.Validate(); err != nil {
		return err
	}
	m.setIntent(i)
	m.sweepSoon(now, "the intent changed")
	return nil
}

// SetTransit replaces the set of the switches that paths of others may lead through, by node GUID; with nil all
// switches belong to it. Every other switch is confined (topo.Node.Confined). A heavy sweep applies a
// change. The manager keeps nodes, which must not be changed any more.
func (m *Manager) SetTransit(now mono.Time, nodes map[ib.GUID]bool) {
	if (m.transit == nil) == (nodes == nil) && maps.Equal(m.transit, nodes) {
		return
	}
	m.transit = nodes
	m.sweepSoon(now, "the members that carry packets of others changed")
}

// confined reports whether a switch is confined.
func (b *base) confined(node ib.GUID) bool { return b.transit != nil && !b.transit[node] }

// SetEngine replaces the route engine until the next SetIntent.
func (m *Manager) SetEngine(now mono.Time, e route.Engine) {
	m.engine = e
	m.sweepSoon(now, "the route engine changed")
}

// SetGroups replaces the multicast groups; Next writes their trees. It returns the number of its calls so far.
func (m *Manager) SetGroups(now mono.Time, g []Group) uint64 {
	m.groups = g
	m.groupsAt = now
	m.groupsSet++
	return m.groupsSet
}

// Raised returns the ports that this manager has found in INIT since the last call: they or their nodes were
// restarted, or not in the subnet.
func (m *Manager) Raised() []ib.GUID {
	list := m.raised
	m.raised = nil
	return list
}

// Carries reports whether all switches have the tables that forward packets of a multicast group to and from a
// port.
func (m *Manager) Carries(mlid ib.LID, port ib.GUID) bool {
	if m.topo == nil {
		return false
	}
	at := m.topo.Attached(m.topo.PortByGUID(port))
	if at.IsNone() {
		return false
	}
	mask := m.topo.Nodes[at.Node].Switch.MFT[mlid]
	if !mask.Has(at.Port) {
		return false
	}
	for _, i := range m.topo.Switches() {
		if n := &m.topo.Nodes[i]; !m.trust[n.Info.NodeGUID] {
			if mask := n.Switch.MFT[mlid]; !mask.IsEmpty() {
				return false
			}
		}
	}
	return true
}

// GroupsWritten returns the number of the newest SetGroups that all answering switches have the trees of.
func (m *Manager) GroupsWritten() uint64 { return m.groupsWritten }

// Permit activates a gated manager, which may become master. token grows with every permission: a manager with an
// older token must not write any more.
func (m *Manager) Permit(now mono.Time, token uint64) {
	m.token, m.caretaker = token, false
	if m.permitted {
		return
	}
	m.permitted = true
	m.become(now, mad.SMDiscovering, "permitted")
}

// Caretake activates a gated manager without an election: the store that elects has lost its majority, and token is
// that of the last master as far as this node's copy of the store has it. A caretaker keeps the subnet as it is
// configured. It yields to every master, whatever their priorities, and takes no handover: a master may be elected
// where this node cannot see it.
func (m *Manager) Caretake(now mono.Time, token uint64) {
	m.token, m.caretaker = token, true
	if m.permitted {
		return
	}
	m.permitted = true
	m.become(now, mad.SMDiscovering, "the store has no majority")
}

// Revoke withdraws the permission: the manager sends nothing from now on.
func (m *Manager) Revoke(now mono.Time) {
	if !m.permitted || !m.cfg.Gated {
		return
	}
	m.permitted = false
	m.become(now, mad.SMNotActive, "the permission was revoked")
}

// State returns the state of the manager.
func (m *Manager) State() mad.SMState { return m.state }

// Topo returns the model of the subnet after the last complete sweep, nil before the first one as master.
func (m *Manager) Topo() *topo.Subnet { return m.topo }

// Tables returns the routes of Topo.
func (m *Manager) Tables() *route.Tables { return m.tables }

// Observations returns the observations to store, and a number that changes with them.
func (m *Manager) Observations() (Observations, uint64) {
	return Observations{Token: m.token, LIDs: m.lids.records()}, m.version
}

// Version is the number that changes with Observations.
func (m *Manager) Version() uint64 { return m.version }

// Sweep schedules a heavy sweep. The shape that it finds is the expected one: links that were lost before are
// forgotten.
func (m *Manager) Sweep(now mono.Time) {
	m.lost = nil
	m.sweepSoon(now, "asked for")
}

// Restore replaces the LIDs by those of an earlier master, before the manager is permitted.
func (m *Manager) Restore(o Observations) { m.lids.restore(o) }

// sweepSoon schedules a heavy sweep after Config.Debounce, so that several notifications cause one sweep.
func (m *Manager) sweepSoon(now mono.Time, why string) { m.sweepAt(now.Add(m.cfg.Debounce), why) }

func (m *Manager) sweepAt(at mono.Time, why string) {
	if m.heavyAt.IsZero() {
		m.heavyWhy = why
	}
	m.heavyAt = mono.Min(m.heavyAt, at)
}

// become changes the state of the manager and ends the activities of the former state.
func (m *Manager) become(now mono.Time, s mad.SMState, why string) {
	if s == m.state {
		return
	}
	m.note(now, "%s, was %s: %s", stateName(s), stateName(m.state), why)
	m.state = s
	m.requests.abandon()
	m.sweep, m.cut = nil, 0
	m.heavyAt, m.lightAt = 0, 0
	m.polls = 0
	m.pollAt = 0
	m.handover = handover{}
	switch s {
	case mad.SMDiscovering:
		m.lost = nil
		m.heavyAt = now
		m.heavyWhy = why
		m.everSwept = false
	case mad.SMStandby:
		m.pollAt = now.Add(m.cfg.PollInterval)
	}
	if s != mad.SMMaster {
		clear(m.trust)
	}
}

// Names of states for people.
const (
	NotActive = "not active" // another manager disabled it
	Standby   = "standby"
)

// stateName returns the name of a state for people.
func stateName(s mad.SMState) string {
	switch s {
	case mad.SMNotActive:
		return NotActive
	case mad.SMDiscovering:
		return "discovering"
	case mad.SMStandby:
		return Standby
	case mad.SMMaster:
		return "master"
	}
	return s.String()
}

// Handle handles a datagram of queue pair 0 for the manager: the answer to a request, a Get or Set of SMInfo, or a
// trap.
func (m *Manager) Handle(now mono.Time, d *mad.Datagram) {
	s := &m.requests.in
	if s.Parse(d.Data[:]) != nil || s.BaseVersion != mad.BaseVersion || !s.MgmtClass.IsSubn() ||
		s.HopCount > mad.MaxHops {
		m.requests.Drops++
		return
	}
	switch {
	case s.Method == mad.MethodGetResp:
		m.requests.answered(now, s, d.SLID)
		m.advance(now)
	case s.Method == mad.MethodTrap && s.AttributeID == mad.AttrNotice:
		m.trap(now, d, s)
	case (s.Method == mad.MethodGet || s.Method == mad.MethodSet) && s.AttributeID == mad.AttrSMInfo:
		m.serveSMInfo(now, d, s)
		m.advance(now)
	default:
		m.requests.Drops++
	}
}

// Next writes the next datagram to send by the port of the manager to d, with Port 0. Call it after every Handle
// and at every Deadline, until it returns false: there is none now.
func (m *Manager) Next(now mono.Time, d *mad.Datagram) bool {
	if len(m.replies) > 0 {
		*d = m.replies[0]
		m.replies = m.replies[1:]
		return true
	}
	for {
		m.tick(now)
		m.requests.expire(now)
		m.advance(now)
		if !m.requests.transmit(now, d) {
			// A request that cannot be sent may have ended a phase.
			if !m.requests.busy() && m.sweep != nil {
				continue
			}
			return false
		}
		return true
	}
}

// Deadline returns when Next must be called next, zero for never.
func (m *Manager) Deadline() mono.Time {
	t := m.requests.deadline()
	if m.sweep != nil && (m.sweep.kind == light || m.cuts()) {
		t = mono.Min(t, m.heavyAt)
	}
	if m.sweep == nil && m.permitted && (m.state == mad.SMMaster || m.state == mad.SMDiscovering) {
		t = mono.Min(t, m.heavyAt)
		if m.state == mad.SMMaster {
			t = mono.Min(t, m.lightAt)
		}
		if m.state == mad.SMMaster && m.topo != nil {
			t = mono.Min(t, m.groupsAt)
		}
	}
	return mono.Min(t, mono.Min(m.pollAt, m.handover.until))
}

// mostCut bounds Manager.cut: a subnet that changes all the time is swept none the less.
const mostCut = 3

// cuts reports whether the sweep ends when the next one is due. One that hands over does not: with it would end the
// request that the other manager has not answered.
func (m *Manager) cuts() bool {
	return m.sweep.kind == heavy && m.sweep.phase < handing && m.cut < mostCut && m.requests.waits()
}

// tick starts the sweep or poll that is due.
func (m *Manager) tick(now mono.Time) {
	m.pollMaster(now)
	if m.handover.until.Due(now) {
		m.note(now, "the manager %v did not take over", m.handover.to)
		m.handover = handover{}
	}
	if m.sweep != nil && m.sweep.kind == light && m.heavyAt.Due(now) {
		// It may wait for the node behind the link that changed.
		m.requests.abandon()
		m.sweep = nil
	}
	if m.sweep != nil && m.heavyAt.Due(now) && m.cuts() {
		// It waits for a node that does not answer, and what it found is not so any more.
		m.requests.abandon()
		m.sweep = nil
		clear(m.trust) // it may have written to some switches
		m.cut++
	}
	if m.sweep != nil || !m.permitted || m.state != mad.SMMaster && m.state != mad.SMDiscovering {
		return
	}
	switch {
	case m.heavyAt == 0 && m.state == mad.SMDiscovering && !m.started:
		m.startHeavy(now, "start")
	case m.heavyAt.Due(now):
		m.startHeavy(now, m.heavyWhy)
	case m.state != mad.SMMaster:
	case m.lightAt.Due(now):
		m.startLight(now)
	case m.groupsAt.Due(now) && m.topo != nil:
		m.startGroups(now)
	}
}

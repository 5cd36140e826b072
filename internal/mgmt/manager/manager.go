// SPDX-License-Identifier: Apache-2.0

// Package manager combines a subnet manager, its subnet administration, the Ethernet Manager and the
// store: the node that wins the election in the store manages the subnet, the intent comes from the
// store, and observations are written to it.
//
// What comes in: datagrams of the manager's port and the time, on the node's management goroutine, and
// changes of the store, on goroutines of this package; what goes out: datagrams, and writes that carry
// the proof of the term of office. The management goroutine never waits for the store. The data path
// does not depend on this package.
package manager

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/mgmt/sm/em"
	"weft/internal/mgmt/sm/sa"
	"weft/internal/mgmt/sm/topo"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/problem"
)

// Keys of the store.
const (
	KeyIntent       = "subnet/intent"   // Intent, written by the operator
	KeyObservations = "subnet/observed" // sm.Observations, written by the master
	KeyClients      = "subnet/clients"  // sa.State, written by the master
	Election        = "subnet-manager"
)

// Intent is what the fabric shall be like, as the store keeps it.
type Intent struct {
	Version int `json:"version"` // IntentVersion
	Subnet  sm.Intent
	Groups  []sa.Group `json:",omitempty"` // groups that exist without members, and their permanent members
}

// IntentVersion is the version of Intent that this package writes.
const IntentVersion = 1

// Config describes a manager.
type Config struct {
	Node     string // its name in the election
	Address  string // where it is reached
	PortGUID ib.GUID
	Priority uint8
	TIDs     uint32
	Store    store.Store
	// Copy is this node's own copy of the store; nil: there is none.
	Copy Copy
	// Shared means that other nodes' managers use the same store: they share a generated M_Key. MKey
	// is the configured key of this node and overrides the one in the store.
	Shared bool
	MKey   uint64
	// Transit is the set of SetTransit at the start.
	Transit map[ib.GUID]bool
	// BroadcastMTU is the MTU of broadcast groups, and so, less 4, of the IP links
	// on them; 0 means 2048, which every implementation has.
	BroadcastMTU ib.MTU
	// BroadcastQKey is their Q_Key; 0 means DefaultBroadcastQKey.
	BroadcastQKey ib.QKey
	Log           *slog.Logger
	Now           func() mono.Time
	// Post has f run on the management goroutine soon, without waiting.
	Post func(f func())
}

// Copy is a node's own copy of the store, for the time when the store has no majority.
type Copy interface {
	// Alone reports whether there is a copy, and the store has no majority that this node could reach.
	Alone() bool
	// Copy lists what the copy has below tree.
	Copy(ctx context.Context, tree string) (store.Listing, error)
	// LeadsOthers reports whether the copy leads those of others, of which one can lead next.
	LeadsOthers() bool
}

// Manager is the manager of one node. Methods belong to the management goroutine unless stated
// otherwise.
type Manager struct {
	cfg Config
	sm  *sm.Manager
	sa  *sa.SA
	net *topo.Subnet // the snapshot of the SA

	vesw
	intent Intent
	// intentRev is that of the intent in the store, the last that was seen.
	intentRev store.Rev
	key       MKey
	keyRev    store.Rev // of key
	kept      uint64    // version of the observations that were handed to the keeper
	dirty     bool      // the SA's state is to be handed over
	keptAt    mono.Time // when something was
	keepAt    mono.Time // when something is to be; 0: nothing is
	keep      chan keeping
	elected   bool
	caretaker bool                        // it manages from the node's copy of the store, which has no majority
	fence     atomic.Pointer[store.Fence] // of the present term; nil: this is not the master
	term      atomic.Pointer[store.Term]  // the same
	// unreadable is why this manager, elected, does not manage; nil: nothing prevents it.
	unreadable atomic.Pointer[problem.Error]
	doubts     chan struct{} // reasons to suspect that the master is dead
	heldAt     mono.Time     // when a master without proof of its term looks for it again; 0: it has it
	cancel     context.CancelFunc
	done       sync.WaitGroup
}

// keeping is what the keeper shall write next; nil has not changed.
type keeping struct {
	observed, clients []byte
	vesws             map[string][]byte // by key
}

// over returns what is to be written after k if o was not written yet.
func (k keeping) over(o keeping) keeping {
	if k.observed == nil {
		k.observed = o.observed
	}
	if k.clients == nil {
		k.clients = o.clients
	}
	for key, b := range o.vesws {
		if _, newer := k.vesws[key]; !newer {
			if k.vesws == nil {
				k.vesws = map[string][]byte{}
			}
			k.vesws[key] = b
		}
	}
	return k
}

// keepEvery is how often what changes all the time is handed to the keeper: a
// thousand clients that join after another must not be written down a thousand
// times. A manager that takes over has clients register anew anyway. LIDs do not
// wait: programs use them at once.
const keepEvery = 200 * time.Millisecond

// A master that does not answer for so long is lost to the managers that wait
// for it: with stores of their own, they learn of it in no other way.
const (
	pollInterval = time.Second
	pollRetries  = 2
)

// New starts a manager. It takes part once the store has elected it.
func New(c Config) (*Manager, error) {
	m := &Manager{cfg: c, keep: make(chan keeping, 1), doubts: make(chan struct{}, 1)}
	w, _ := m.wanted()
	core, err := sm.New(sm.Config{PortGUID: c.PortGUID, MemberBits: ib.NodeBits, Priority: c.Priority,
		TIDs: c.TIDs, Gated: true, PollInterval: pollInterval, PollRetries: pollRetries}, w.Subnet, sm.Observations{})
	if err != nil {
		return nil, err
	}
	m.sm = core
	m.sm.SetTransit(c.Now(), c.Transit)
	m.sa = sa.New(sa.Config{}, owner{m})
	m.vesw = vesw{em: em.New(em.Config{TIDs: ^c.TIDs}, ethernet{m})}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.done.Go(func() { m.govern(ctx) })
	m.done.Go(func() { m.follow(ctx) })
	if c.Copy != nil {
		m.done.Go(func() { m.watchMajority(ctx) })
	}
	return m, nil
}

// Close ends the manager; another is elected at once. It must not be called on
// the management goroutine.
func (m *Manager) Close() {
	m.cancel()
	m.done.Wait()
}

// Store returns the store for one change of the intent. Where this is the master, fenced is true and the change carries
// the proof of the present term: a node that is stopped or cut off in the middle of it, and returns when another is
// master, changes nothing. It may be called on any goroutine.
func (m *Manager) Store() (s store.Store, fenced bool) {
	if f := m.fence.Load(); f != nil {
		return store.Fenced(m.cfg.Store, *f), true
	}
	return m.cfg.Store, false
}

// Handle takes a datagram that was delivered to the manager's port.
func (m *Manager) Handle(now mono.Time, d *mad.Datagram) {
	if d.Long != nil {
		m.handleEthernet(now, d)
		return
	}
	if mad.Class(d.Data[1]) == mad.ClassSA {
		m.sa.Handle(now, d)
		return
	}
	m.sm.Handle(now, d)
	m.forward(now, d)
}

// forward reports a trap that the manager accepted to the subscribers.
func (m *Manager) forward(now mono.Time, d *mad.Datagram) {
	var s mad.SMP
	var n mad.Notice
	if m.sm.State() != mad.SMMaster || s.Parse(d.Data[:]) != nil || s.Method != mad.MethodTrap ||
		s.AttributeID != mad.AttrNotice ||
		// it has a key in it
		n.Parse(s.Data[:]) != nil || m.net == nil || n.Generic && n.TrapNumber == mad.TrapBadMKey {
		return
	}
	if n.Generic && n.TrapNumber == mad.TrapLocalChange {
		m.em.Recheck(now, d.SLID)
	}
	if r := m.net.PortByLID(d.SLID); !r.IsNone() {
		m.sa.Notify(now, n, m.net.GID(r))
	}
}

// Doubt has the managers check whether the master is alive. The caller has a reason to suspect that it is not, such as
// a trunk that went down. It may be called on any goroutine.
func (m *Manager) Doubt() {
	select {
	case m.doubts <- struct{}{}:
	default: // one is waiting
	}
}

// holdsTerm reports whether this manager may send: no other can have been elected yet. A caretaker has no term.
func (m *Manager) holdsTerm() bool {
	if !m.elected {
		return true
	}
	t := m.term.Load()
	return t != nil && t.Holds()
}

// heldRetry is when a master that could not prove its term looks again.
const heldRetry = 20 * time.Millisecond

// Next produces the next datagram to send by the manager's port. A master that cannot prove that its term lasts, as one
// that was stopped, produces none: nothing that it sends can undo what its successor did.
func (m *Manager) Next(now mono.Time, d *mad.Datagram) bool {
	if m.heldAt = 0; !m.holdsTerm() {
		m.heldAt = now.Add(heldRetry)
		return false
	}
	m.settle(now)
	if m.sm.Next(now, d) {
		return true
	}
	m.settle(now) // a sweep may have ended
	return m.sa.Next(now, d) || m.nextEthernet(now, d)
}

// Deadline returns when Next has something to do if nothing arrives.
func (m *Manager) Deadline() mono.Time {
	if m.heldAt != 0 {
		return m.heldAt
	}
	return mono.Min(mono.Min(m.sm.Deadline(), m.sa.Deadline()), mono.Min(m.em.Deadline(), m.keepAt))
}

// settle lets the SA follow the manager, and the keeper both.
func (m *Manager) settle(now mono.Time) {
	master := m.sm.State() == mad.SMMaster && m.sm.Topo() != nil
	m.sa.SetReady(master)
	m.sa.Written(m.sm.GroupsWritten())
	if t := m.sm.Topo(); master && t != m.net {
		if m.net == nil { // of an earlier term something may not have been written
			m.kept, m.dirty = math.MaxUint64, true
		}
		m.net = t
		m.sa.SetSubnet(now, t)
		m.ensureGroups(now)
		m.settleEthernet(now, t)
	} else if !master {
		m.endEthernet()
	}
	m.handOver(now)
}

// handOver gives the keeper what has changed, if it is time.
func (m *Manager) handOver(now mono.Time) {
	m.keepAt = 0
	version := m.sm.Version()
	if !m.elected || version == m.kept && !m.dirty && !m.veswsDirty() {
		return
	}
	if at := m.keptAt.Add(keepEvery); version == m.kept && m.keptAt != 0 && !at.Due(now) {
		m.keepAt = at
		return
	}
	m.keptAt = now
	var k keeping
	var err error
	if version != m.kept {
		o, _ := m.sm.Observations()
		k.observed, err = json.Marshal(o)
	}
	if m.dirty && err == nil {
		k.clients, err = json.Marshal(m.sa.State(now))
	}
	if m.veswsDirty() && err == nil {
		k.vesws, err = m.observedVESWs()
		m.vesw.dirty = false
	}
	m.kept, m.dirty = version, false
	if err != nil {
		m.cfg.Log.Error("what was observed cannot be kept", "err", err)
		return
	}
	select {
	case old := <-m.keep:
		k = k.over(old)
	default:
	}
	m.keep <- k
}

// ensureGroups creates the groups that are there without members: those of
// the intent, and the IPv4 broadcast group of each partition (RFC 4391).
func (m *Manager) ensureGroups(now mono.Time) {
	keys := []ib.PKey{ib.DefaultPKey}
	for _, p := range m.partitions() {
		keys = append(keys, p.PKey)
	}
	mtu, qkey := cmp.Or(m.cfg.BroadcastMTU, ib.MTU2048), cmp.Or(m.cfg.BroadcastQKey, DefaultBroadcastQKey)
	for _, k := range keys {
		m.sa.Ensure(now, sa.Group{MGID: BroadcastGroup(k), QKey: qkey, PKey: k | 0x8000, MTU: mtu, Rate: ib.Rate10})
	}
	for _, g := range m.intent.Groups {
		if g.QKey == 0 {
			g.QKey = m.groupQKey(&g)
		}
		if !m.sa.Ensure(now, g) {
			m.cfg.Log.Warn("there is no room for a group", "mgid", g.MGID)
		}
	}
}

// groupQKey chooses the Q_Key of a group: IP links have one for all their groups.
func (m *Manager) groupQKey(g *sa.Group) ib.QKey {
	sig := uint16(g.MGID[2])<<8 | uint16(g.MGID[3])
	if b := m.sa.Group(BroadcastGroup(g.PKey)); b != nil && (sig == 0x401b || sig == 0x601b) {
		return b.QKey
	}
	return GroupQKey
}

// Q_Keys of groups.
const (
	// DefaultBroadcastQKey is that of broadcast groups, which IP links have from them: a
	// controlled one, so that no program without privilege can forge packets of a
	// link (RFC 4391, 4). OpenSM gives GroupQKey to them. Links take whatever the group has.
	DefaultBroadcastQKey = ib.QKeyControlled | GroupQKey
	// GroupQKey is the Q_Key of groups that are added without one, for use by programs.
	GroupQKey ib.QKey = 0x0b1b
)

// BroadcastGroup returns the MGID of the IPv4 broadcast group of a partition
// (RFC 4391, section 4).
func BroadcastGroup(k ib.PKey) ib.GID {
	k |= 0x8000
	return ib.GID{0xff, 0x12, 0x40, 0x1b, byte(k >> 8), byte(k), 12: 0xff, 13: 0xff, 14: 0xff, 15: 0xff}
}

// owner is the manager as its SA sees it.
type owner struct{ m *Manager }

// GroupsChanged implements sa.Owner.
func (o owner) GroupsChanged() uint64 {
	var list []sm.Group
	for _, g := range o.m.sa.Groups() {
		c := sm.Group{MLID: g.MLID}
		for _, x := range g.Members {
			if x.JoinState&(mad.JoinFull|mad.JoinNon) != 0 {
				c.Members = append(c.Members, x.PortGUID)
			} else {
				c.Senders = append(c.Senders, x.PortGUID)
			}
		}
		list = append(list, c)
	}
	return o.m.sm.SetGroups(o.m.cfg.Now(), list)
}

// Kept implements sa.Owner.
func (o owner) Kept() { o.m.dirty = true }

// Managers implements sa.Owner.
func (o owner) Managers() (list []mad.SMInfoRecord) {
	s := o.m.sm.Status()
	list = append(list, mad.SMInfoRecord{LID: s.LID, SMInfo: mad.SMInfo{GUID: s.PortGUID, Priority: s.Priority,
		State: o.m.sm.State()}})
	for _, x := range s.Others {
		list = append(list, mad.SMInfoRecord{LID: x.LID, SMInfo: mad.SMInfo{GUID: x.GUID, Priority: x.Priority,
			State: mad.SMStandby}})
	}
	return list
}

// Status describes the manager, for people.
type Status struct {
	sm.Status
	Elected bool // by the store
	// Caretaker: it keeps the subnet as it is configured in the node's copy of a store without a majority.
	Caretaker bool
	// MKeyFrom is MKeyOfNode or MKeyOfStore; empty where there is no M_Key.
	MKeyFrom string
	Switches int          // of the subnet, if this is the master
	Store    store.Status // filled in by a caller that may wait for it
	Groups   []*sa.Group
	SA       sa.Counters
}

// Status returns what the manager does. The store's part is left out.
func (m *Manager) Status() Status {
	s := Status{Status: m.sm.Status(), Elected: m.elected, Caretaker: m.caretaker, Groups: m.sa.Groups(), SA: m.sa.Counters}
	if !m.elected && !m.caretaker && s.Status.State == sm.NotActive {
		s.Status.State = sm.Standby // it takes over when the store elects it
	}
	_, s.MKeyFrom = m.wanted()
	if t := m.Topo(); t != nil {
		s.Switches = len(t.Switches())
	}
	return s
}

// Records returns what the SA keeps for its clients.
func (m *Manager) Records(now mono.Time) sa.State { return m.sa.State(now) }

// Topo returns the subnet as the master last saw it, nil where this is no
// master. It may be read on any goroutine.
func (m *Manager) Topo() *topo.Subnet {
	if m.sm.State() != mad.SMMaster {
		return nil
	}
	return m.sm.Topo()
}

// SetTransit replaces the set of the switches that paths of others may lead through, by node GUID; nil: all switches.
func (m *Manager) SetTransit(now mono.Time, nodes map[ib.GUID]bool) { m.sm.SetTransit(now, nodes) }

// Sweep schedules a heavy sweep.
func (m *Manager) Sweep(now mono.Time) { m.sm.Sweep(now) }

// Intent returns the intent in force at this manager.
func (m *Manager) Intent() Intent { return m.intent }

// setKey takes a new M_Key on the management goroutine, unless a newer one is
// known.
func (m *Manager) setKey(k MKey, rev store.Rev) {
	if rev < m.keyRev {
		return
	}
	m.keyRev = rev
	if slices.Equal(k.keys(0), m.key.keys(0)) {
		return
	}
	m.key = k
	w, _ := m.wanted()
	if err := m.sm.SetIntent(m.cfg.Now(), w.Subnet); err != nil { // it was valid with another key
		m.cfg.Log.Error("the M_Key in the store is wrong", "err", err)
	}
}

// setIntent takes a new intent on the management goroutine, unless a newer one is known.
func (m *Manager) setIntent(i Intent, rev store.Rev) {
	if rev <= m.intentRev {
		return
	}
	m.intentRev = rev
	now := m.cfg.Now()
	if err := i.Subnet.Validate(); err != nil {
		m.cfg.Log.Error("the intent in the store is wrong: the one before stands", "key", KeyIntent, "err", err)
		return
	}
	for _, old := range m.intent.Groups {
		k := slices.IndexFunc(i.Groups, func(g sa.Group) bool { return g.MGID == old.MGID })
		for _, x := range old.Members {
			if k < 0 || !slices.ContainsFunc(i.Groups[k].Members,
				func(y sa.Member) bool { return y.PortGUID == x.PortGUID }) {
				m.sa.Remove(now, old.MGID, x.PortGUID)
			}
		}
		if k < 0 {
			m.sa.Release(now, old.MGID)
		}
	}
	for _, old := range m.intent.Subnet.Partitions {
		if !slices.ContainsFunc(m.partitionsWith(&i),
			func(p sm.Partition) bool { return (p.PKey^old.PKey)&0x7fff == 0 }) && old.PKey&0x7fff != 0x7fff {
			m.sa.Release(now, BroadcastGroup(old.PKey))
		}
	}
	m.intent = i
	w, _ := m.wanted()
	if err := m.sm.SetIntent(now, w.Subnet); err != nil {
		m.cfg.Log.Error("the intent in the store is wrong", "key", KeyIntent, "err", err)
	}
	if m.net != nil {
		m.ensureGroups(now)
	}
}

// InvalidError is an intent that a manager would refuse.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *InvalidError) Unwrap() error { return e.Err }

func parseIntent(b []byte) (i Intent, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&i); err != nil {
		return i, fmt.Errorf("read %s: %w", KeyIntent, err)
	}
	if i.Version != IntentVersion {
		return i, fmt.Errorf("read %s: version %d, this program knows %d", KeyIntent, i.Version, IntentVersion)
	}
	return i, nil
}

// usableIntent reads an intent that a manager may begin with.
func usableIntent(b []byte) (Intent, error) {
	i, err := parseIntent(b)
	if err != nil {
		return i, err
	}
	if err := i.Subnet.Validate(); err != nil {
		return i, fmt.Errorf("read %s: %w", KeyIntent, err)
	}
	return i, nil
}

// Unreadable is why this manager does not manage though it is elected: the intent or the VESWs in the store cannot be
// used. It is nil where nothing prevents it. It may be called on any goroutine.
func (m *Manager) Unreadable() *problem.Error { return m.unreadable.Load() }

// writeTimeout bounds one write of the keeper.
const writeTimeout = 5 * time.Second

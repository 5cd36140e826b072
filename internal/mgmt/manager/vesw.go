// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

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
	KeyVESWs        = "subnet/vesws"          // VESWs, written by the operator
	KeyVESWObserved = "subnet/vesws_observed" // below it, by identifier, em.Observed, written by the master
)

// VESWs is which virtual Ethernet switches there shall be, as the store keeps it.
type VESWs struct {
	Version  int `json:"version"` // VESWsVersion
	Ethernet em.Intent
}

// VESWsVersion is the version of VESWs that this package writes.
const VESWsVersion = 1

// DefaultFabricID is the fabric's number in MACs if none is configured.
const DefaultFabricID = 1

// vesw is the Ethernet Manager of a Manager. All of it belongs to the management goroutine.
type vesw struct {
	em    *em.Manager
	vesws em.Intent
	rev   store.Rev // of vesws
	read  bool      // vesws is what the store has, or had when it could be read
	// known is what a manager before knew, to be used with the next term.
	known   []em.Observed
	dirty   bool              // there is something to keep
	written map[string][]byte // what the store has, by key
}

// ethernet is the manager as its Ethernet Manager sees it.
type ethernet struct{ m *Manager }

var _ em.Fabric = ethernet{}

// Join implements em.Fabric.
func (e ethernet) Join(now mono.Time, g em.Group) ib.LID {
	want := sa.Group{MGID: g.MGID, MLID: g.MLID, QKey: GroupQKey, PKey: g.PKey, MTU: ib.MTU2048, Rate: ib.Rate10,
		SL: g.SL, Closed: true}
	for _, p := range g.Members {
		want.Members = append(want.Members, sa.Member{PortGUID: p, JoinState: mad.JoinFull})
	}
	e.m.sa.Ensure(now, want) // a VESW without a group has no packets forwarded, and its ports are not released
	if have := e.m.sa.Group(g.MGID); have != nil {
		return have.MLID
	}
	return 0
}

// Leave implements em.Fabric.
func (e ethernet) Leave(now mono.Time, g ib.GID) { e.m.sa.End(now, g) }

// Groups implements em.Fabric.
func (e ethernet) Groups() (list []ib.GID) {
	for _, g := range e.m.sa.Groups() {
		if em.IsGroup(g.MGID) && g.Closed {
			list = append(list, g.MGID)
		}
	}
	return list
}

// Carries implements em.Fabric.
func (e ethernet) Carries(mlid ib.LID, port ib.GUID) bool { return e.m.sm.Carries(mlid, port) }

// Keep implements em.Fabric.
func (e ethernet) Keep() { e.m.vesw.dirty = true }

// handleEthernet takes a MAD of Omni-Path: of the class of virtual Ethernet, from queue pair 1.
func (m *Manager) handleEthernet(now mono.Time, d *mad.Datagram) {
	if d.SrcQPN != ib.QPNGSI || mad.Class(d.Long[1]) != mad.ClassVEMA {
		return
	}
	if mad.Method(d.Long[3]) == mad.MethodTrap {
		var t mad.VEMATrap
		if mad.IsVEMA(d.Long) && t.Parse(d.Long) == nil {
			m.em.Trap(now, d.SLID, &t.Notice)
		}
		return
	}
	var a mad.VEMA
	switch {
	case mad.IsVEMA(d.Long) && a.Parse(d.Long) == nil:
	case len(d.Long) == mad.HeaderLen: // from a node without the class: a status without an attribute
		a.Header.Parse(d.Long)
		if a.Status == mad.StatusOK {
			return
		}
	default:
		return
	}
	m.em.Handle(now, d.SLID, &a)
}

// nextEthernet produces the next datagram of the Ethernet Manager.
func (m *Manager) nextEthernet(now mono.Time, d *mad.Datagram) bool {
	var r em.Request
	self := m.ownPort()
	if self == nil || !m.em.Next(now, &r) {
		return false
	}
	*d = mad.Datagram{SLID: self.Info.LID, DLID: r.LID, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
		PKey: ib.DefaultPKey}
	return d.SetMAD(r.MAD.Append(nil))
}

func (m *Manager) ownPort() *topo.Port {
	if m.net == nil {
		return nil
	}
	return m.net.Port(m.net.Self)
}

// beginEthernet takes what the manager before observed, for the term that begins.
func (m *Manager) beginEthernet(known []em.Observed) {
	m.em.Deactivate()
	m.known, m.written, m.vesw.dirty = known, map[string][]byte{}, true
	for _, o := range known {
		m.written[veswKey(o.ID)] = nil // there is something
	}
}

// settleEthernet gives the Ethernet Manager the subnet, of which this is the master.
func (m *Manager) settleEthernet(now mono.Time, t *topo.Subnet) {
	if !m.vesw.read { // nothing is removed while the intent is unknown
		return
	}
	if !m.em.Active() {
		m.em.Activate(now, m.known)
	}
	m.em.SetSubnet(now, t)
	for _, guid := range m.sm.Raised() { // a node that was away may have lost its state
		if p := t.Port(t.PortByGUID(guid)); p != nil {
			m.em.Recheck(now, p.Info.LID)
		}
	}
}

// endEthernet ends the Ethernet Manager's work: this is no master.
func (m *Manager) endEthernet() {
	if m.em.Active() {
		m.known = m.em.Observations()
		m.em.Deactivate()
		m.net = nil // it gets the subnet again with the next settle as master
	}
}

func veswKey(id uint16) string { return KeyVESWObserved + "/" + strconv.Itoa(int(id)) }

// veswsDirty reports whether the state of VESWs must be stored: only a master does that.
func (m *Manager) veswsDirty() bool { return m.vesw.dirty && m.em.Active() }

// observedVESWs are the keys that have changed, with what they shall have; nil is nothing.
func (m *Manager) observedVESWs() (map[string][]byte, error) {
	changed, now := map[string][]byte{}, map[string][]byte{}
	for _, o := range m.em.Observations() {
		b, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		key := veswKey(o.ID)
		if now[key] = b; !bytes.Equal(m.written[key], b) {
			changed[key] = b
		}
	}
	for key := range m.written {
		if _, there := now[key]; !there {
			changed[key] = nil
		}
	}
	m.written = now
	return changed, nil
}

// recallVESWs reads what the manager before observed.
func (m *Manager) recallVESWs(ctx context.Context, term *store.Term) (list []em.Observed, err error) {
	l, err := m.cfg.Store.List(ctx, KeyVESWObserved)
	if err != nil {
		return nil, err
	}
	for _, e := range l.Entries {
		if strings.HasSuffix(e.Key, Damaged) {
			continue
		}
		var o em.Observed
		if err := recall(ctx, m, term, e.Key, &o); err != nil {
			return nil, err
		}
		if o.ID != 0 {
			list = append(list, o)
		}
	}
	return list, nil
}

// partitions returns the intended ones: those of the intent, and those of VESWs.
func (m *Manager) partitions() []sm.Partition { return m.partitionsWith(&m.intent) }

func (m *Manager) partitionsWith(i *Intent) []sm.Partition { return Partitions(i, &m.vesws) }

// Partitions are those of an intent, and those that VESWs have for themselves (sm.Partition.Apart).
func Partitions(i *Intent, vesws *em.Intent) []sm.Partition {
	list := slices.Clone(i.Subnet.Partitions)
	at := map[ib.PKey]int{}
	for j := range list {
		at[list[j].PKey&0x7fff] = j
	}
	for k := range vesws.VESWs {
		v := &vesws.VESWs[k]
		if !v.OwnPartition() {
			continue
		}
		key := v.Key()
		j, there := at[key&0x7fff]
		if !there {
			list = append(list, sm.Partition{Name: "vesw-" + v.Name, PKey: key, Apart: true})
			j = len(list) - 1
			at[key&0x7fff] = j
		}
		p, on := &list[j], make(map[ib.GUID]bool, len(v.Members))
		for _, mb := range v.Members {
			on[mb.Port] = true
		}
		p.Members = slices.DeleteFunc(slices.Clone(p.Members), func(x sm.Member) bool { return on[x.PortGUID] })
		for _, mb := range v.Members {
			p.Members = append(p.Members, sm.Member{PortGUID: mb.Port, As: sm.Full})
		}
	}
	return list
}

// loadVESWs reads the intended VESWs at the begin of a term. The revision is 0 where the store has none. Some that
// cannot be used are a *problem.Error: the partitions of VESWs would be taken from their ports.
func (m *Manager) loadVESWs(ctx context.Context) (i VESWs, rev store.Rev, err error) {
	e, err := m.cfg.Store.Get(ctx, KeyVESWs)
	if isNotFound(err) {
		return VESWs{Version: VESWsVersion}, 0, nil
	}
	if err != nil {
		return i, 0, err
	}
	if i, err = parseVESWs(e.Value); err == nil {
		err = i.Ethernet.Validate()
	}
	if err != nil {
		return i, 0, &problem.Error{What: "cannot manage the subnet", Why: fmt.Sprintf("read %s: %v", KeyVESWs, err),
			Err: err, Fix: "weft store restore FILE with a backup, or upgrade weft on this node"}
	}
	return i, e.Rev, nil
}

// setVESWs takes new virtual Ethernet switches on the management goroutine, unless newer ones are known.
func (m *Manager) setVESWs(i VESWs, rev store.Rev) {
	if m.vesw.read && rev <= m.vesw.rev {
		return
	}
	now := m.cfg.Now()
	before := m.partitions()
	if err := i.Ethernet.Validate(); err != nil {
		m.cfg.Log.Error("the virtual Ethernet switches in the store are wrong: those before stand", "key", KeyVESWs,
			"err", err)
		return
	}
	m.vesws, m.vesw.rev = i.Ethernet, rev
	m.em.SetIntent(now, i.Ethernet) // it was validated
	if !m.vesw.read {
		m.vesw.read = true
		m.net = nil // the Ethernet Manager gets it with the next settle
	}
	m.vesw.dirty = true
	after := m.partitions()
	if reflect.DeepEqual(before, after) {
		return
	}
	for _, old := range before {
		if old.Apart && !slices.ContainsFunc(after,
			func(p sm.Partition) bool { return (p.PKey^old.PKey)&0x7fff == 0 }) {
			m.sa.Release(now, BroadcastGroup(old.PKey))
		}
	}
	w, _ := m.wanted()
	if err := m.sm.SetIntent(now, w.Subnet); err != nil {
		m.cfg.Log.Error("the partitions of virtual Ethernet switches are wrong", "err", err)
	}
	if m.net != nil {
		m.ensureGroups(now)
	}
}

// Ethernet describes the virtual Ethernet switches; ok is false where this is not the
// master.
func (m *Manager) Ethernet() (s em.Status, ok bool) { return m.em.Status(), m.em.Active() }

func parseVESWs(b []byte) (i VESWs, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&i); err != nil {
		return i, fmt.Errorf("read %s: %w", KeyVESWs, err)
	}
	if i.Version != VESWsVersion {
		return i, fmt.Errorf("read %s: version %d, this program knows %d", KeyVESWs, i.Version, VESWsVersion)
	}
	return i, nil
}

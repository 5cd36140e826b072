// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"fmt"
	"slices"
	"sync/atomic"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

const (
	maxVESW   = 1<<12 - 1
	maxFabric = 1<<10 - 1
	maxLID    = 1<<24 - 1
	maxSC     = 31
	maxVL     = 15
	// MaxFilters bounds each list of MACs that an interface accepts; further ones are not reported to
	// the manager.
	MaxFilters = 1024
	// defaultMTU is an interface's own until its owner sets another.
	defaultMTU = 1500
)

// Port is a port of a VESW: the half that is independent of the adapter.
type Port struct {
	s     *Ports
	vport uint8
	dev   Netdev
	info  mad.VESWPortInfo
	table *[mad.VESWMaxMACs]mad.VESWMACEntry // nil: empty
	macs  macTable                           // of table
	plan  atomic.Pointer[plan]
	traps traps

	admin   bool
	mac     [6]byte // of the interface
	own     bool    // which its owner chose
	mtu     int     // of the interface
	up      bool    // dev is
	astray  string  // why dev is not in the VESW
	fault   string  // why dev did not go up
	device  Device  // as last passed to dev
	refused int     // groups that dev refused

	filters              [2][][6]byte // unicast, multicast, as reported by the interface
	unicast, multicast   [][6]byte    // as the manager reads them
	unicastCut, mcastCut int          // how many there are too many
}

func newPort(s *Ports, vport uint8, dev Netdev) *Port {
	p := &Port{s: s, vport: vport, dev: dev, info: mad.DefaultVESWPortInfo(), mtu: defaultMTU}
	p.info.Port.LinkStatus = mad.VESWLinkDown
	p.plan.Store(makePlan(&p.info, p.macs, false))
	return p
}

// Info returns configuration and state.
func (p *Port) Info() mad.VESWPortInfo { return p.info }

// Device returns how the interface is to be.
func (p *Port) Device() Device { return p.device }

// Refused returns how many groups and MACs the port cannot do with: groups beyond MaxGroups, MACs
// beyond MaxFilters.
func (p *Port) Refused() (groups, macs int) { return p.refused, p.unicastCut + p.mcastCut }

// validate checks a manager's configuration of a port.
func (s *Ports) validate(vport uint8, i *mad.VESWPortInfo) error {
	v, q := &i.VESW, &i.Port
	bad := func(format string, a ...any) error {
		return fmt.Errorf(format+": %w", append(a, ErrInvalid)...)
	}
	switch {
	case v.FabricID > maxFabric:
		return bad("fabric %d", v.FabricID)
	case v.VESWID > maxVESW:
		return bad("VESW %d", v.VESWID)
	case v.EthMTU < MinEthMTU || int(v.EthMTU) > s.cfg.LinkMTU-frameOverhead:
		return bad("MTU %d", v.EthMTU)
	case v.McastDLID != 0 && !isGroup(v.McastDLID):
		return bad("multicast LID %#x", v.McastDLID)
	case q.EncapSLID != 0 && !isUnicast(q.EncapSLID):
		return bad("source LID %#x", q.EncapSLID)
	case q.BaseMAC[0]&groupBit != 0:
		return bad("base MAC %x", q.BaseMAC)
	}
	for n, lid := range v.UcastDLIDs {
		if lid != 0 && !isUnicast(lid) {
			return bad("LID %#x of default port %d", lid, n)
		}
	}
	for n := range q.PCPToSCUc {
		if q.PCPToSCUc[n] > maxSC || q.PCPToSCMc[n] > maxSC || q.PCPToVLUc[n] > maxVL || q.PCPToVLMc[n] > maxVL {
			return bad("service channel or lane of priority %d", n)
		}
	}
	if q.NonVLANSCUc > maxSC || q.NonVLANSCMc > maxSC || q.NonVLANVLUc > maxVL || q.NonVLANVLMc > maxVL {
		return bad("service channel or lane without priority")
	}
	if q.ConfigState == mad.VESWForwarding && (q.EncapSLID == 0 || !v.PKey.Match(v.PKey|0x8000)) {
		return bad("forwarding with source LID %#x and P_Key %#x", q.EncapSLID, v.PKey)
	}
	for n, o := range s.ports {
		if o != nil && n != int(vport) && v.VESWID != 0 && o.info.VESW.VESWID == v.VESWID {
			return fmt.Errorf("VESW %d, port %d: %w: %w", v.VESWID, n, ErrInvalid, ErrVESWInUse)
		}
	}
	return nil
}

// set takes a valid configuration.
func (p *Port) set(i *mad.VESWPortInfo) {
	before := p.info
	p.info = *i
	q := &p.info.Port
	q.LinkStatus, q.OperState = before.Port.LinkStatus, before.Port.OperState
	q.MaxMACEntries, q.MaxSMACEntries, q.MACDigest = before.Port.MaxMACEntries, before.Port.MaxSMACEntries, before.Port.MACDigest
	q.UcMACsGen, q.McMACsGen = before.Port.UcMACsGen, before.Port.McMACsGen
	if q.BaseMAC != before.Port.BaseMAC && q.BaseMAC != ([6]byte{}) {
		p.mac, p.own = q.BaseMAC, false
	}
	p.configured(before.VESW.VESWID)
}

// reset goes back to the power-on defaults.
func (p *Port) reset() {
	before := p.info
	p.info = mad.DefaultVESWPortInfo()
	q := &p.info.Port
	q.LinkStatus, q.UcMACsGen, q.McMACsGen = mad.VESWLinkDown, before.Port.UcMACsGen, before.Port.McMACsGen
	p.table, p.macs = nil, macTable{}
	p.configured(before.VESW.VESWID)
}

// configured makes true what the manager set, in the order of the driver.
func (p *Port) configured(was uint16) {
	p.refilter()
	if id := p.info.VESW.VESWID; id != was || p.astray != "" {
		p.stop() // a port that moves is down for a moment
		p.astray = ""
		if err := p.dev.SetVESW(id); err != nil {
			p.astray = err.Error()
		}
	}
	p.mtu = min(p.mtu, int(p.info.VESW.EthMTU))
	p.regroup()
	p.publish()
}

// stop ends all traffic.
func (p *Port) stop() {
	if p.up {
		p.plan.Store(makePlan(&p.info, p.macs, false))
		p.dev.Down()
		p.up = false
	}
}

// regroup gives the netdev the groups that the VESW sends to.
func (p *Port) regroup() {
	var want []uint32
	if id := p.info.VESW.McastDLID; id != 0 {
		want = append(want, id)
	}
	p.refused = p.dev.SetGroups(append(want, p.macs.groups...))
}

// reason returns why no traffic flows, "" if it does.
func (p *Port) reason() string {
	switch {
	case p.info.VESW.VESWID == 0:
		return "no VESW: waits for the Ethernet Manager"
	case p.astray != "":
		return "the adapter has no place in the VESW: " + p.astray
	case p.info.Port.ConfigState != mad.VESWForwarding:
		return "the Ethernet Manager has not released the port"
	case !p.admin:
		return "the interface is set down"
	case !p.s.active:
		return "the port of the fabric is not active"
	case p.fault != "":
		return "the adapter does not start: " + p.fault
	}
	return ""
}

// publish derives the state, and updates Senders and the adapter.
func (p *Port) publish() {
	p.fault = ""
	d := Device{MAC: p.mac, MTU: p.mtu, MaxMTU: int(p.info.VESW.EthMTU), PKey: p.info.VESW.PKey,
		Dormant: p.info.Port.ConfigState != mad.VESWForwarding}
	d.Reason = p.reason()
	d.Carrier = p.admin && p.s.active && p.info.VESW.VESWID != 0 && p.astray == ""
	oper := d.Reason == ""
	if !oper {
		p.stop()
	}
	if oper && !p.up {
		// What the receiver checks comes before what it may deliver.
		p.configure(d)
		if err := p.dev.Up(); err != nil {
			p.fault = err.Error()
			oper, d.Carrier, d.Reason = false, false, p.reason()
		} else {
			p.up = true
		}
	}
	p.info.Port.OperState, p.info.Port.LinkStatus = mad.VESWDropAll, mad.VESWLinkDown
	if oper {
		p.info.Port.OperState, p.info.Port.LinkStatus = mad.VESWForwarding, mad.VESWLinkUp
	}
	p.plan.Store(makePlan(&p.info, p.macs, oper))
	p.configure(d)
}

func (p *Port) configure(d Device) {
	if d != p.device {
		p.device = d
		p.dev.Configure(d)
	}
}

func (p *Port) mark(now mono.Time, op mad.VEMAOpcode) { p.traps.mark(now, op) }

// SetAdmin sets the interface up or down. The state is kept until the next call, independent of the
// manager.
func (p *Port) SetAdmin(now mono.Time, up bool) {
	if p.admin == up {
		return
	}
	p.admin = up
	p.publish()
	p.mark(now, mad.VEMALinkStatus)
}

// SetMAC sets the MAC of the interface, if its owner chose one.
func (p *Port) SetMAC(now mono.Time, mac [6]byte) error {
	if mac == ([6]byte{}) || mac[0]&groupBit != 0 {
		return fmt.Errorf("MAC %x: %w", mac, ErrInvalid)
	}
	if mac == p.mac {
		return nil
	}
	p.mac, p.own = mac, mac != p.info.Port.BaseMAC
	p.publish()
	if p.refilter() {
		p.mark(now, mad.VEMAUnicastMACs)
	}
	return nil
}

// SetMTU reports the MTU of the interface.
func (p *Port) SetMTU(now mono.Time, mtu int) error {
	if limit := int(p.info.VESW.EthMTU); mtu < MinEthMTU || mtu > limit {
		return fmt.Errorf("MTU %d, not %d … %d: %w", mtu, MinEthMTU, limit, ErrInvalid)
	}
	p.mtu = mtu
	p.publish()
	return nil
}

// SetFilters sets all MACs that the interface accepts besides its own. The lists are copied.
func (p *Port) SetFilters(now mono.Time, unicast, multicast [][6]byte) {
	p.filters[0], p.unicastCut = filter(unicast, 0)
	p.filters[1], p.mcastCut = filter(multicast, groupBit)
	if p.refilter() {
		p.mark(now, mad.VEMAUnicastMACs)
	}
	if !slices.Equal(p.multicast, p.filters[1]) {
		p.multicast = p.filters[1]
		p.info.Port.McMACsGen++
		p.mark(now, mad.VEMAMcastMACs)
	}
}

// refilter makes the list of unicast MACs, and reports whether it is another.
func (p *Port) refilter() bool {
	var list [][6]byte
	if p.own {
		list = append(list, p.mac)
	}
	for _, m := range p.filters[0] {
		if m != p.mac && m != p.info.Port.BaseMAC {
			list = append(list, m)
		}
	}
	if slices.Equal(list, p.unicast) {
		return false
	}
	p.unicast = list
	p.info.Port.UcMACsGen++
	return true
}

// filter returns a sorted copy of a list without what does not belong there, and how many it
// left out at its end.
func filter(list [][6]byte, group byte) (kept [][6]byte, cut int) {
	for _, m := range list {
		if m != ([6]byte{}) && m[0]&groupBit == group {
			kept = append(kept, m)
		}
	}
	slices.SortFunc(kept, func(a, b [6]byte) int { return slices.Compare(a[:], b[:]) })
	kept = slices.Compact(kept)
	if len(kept) > MaxFilters {
		return kept[:MaxFilters:MaxFilters], len(kept) - MaxFilters
	}
	return kept, 0
}

// setMACs replaces slots of the table of MACs.
func (p *Port) setMACs(offset int, e []mad.VESWMACEntry, digest uint32) error {
	for i := range e {
		if lid := e[i].DLID(); macKey(e[i].MAC) != 0 && !e[i].IsSource() && lid != 0 && !isUnicast(lid) &&
			!isGroup(lid) {
			return fmt.Errorf("LID %#x of slot %d: %w", lid, offset+i, ErrInvalid)
		}
	}
	if len(e) > 0 {
		next := new([mad.VESWMaxMACs]mad.VESWMACEntry)
		if p.table != nil {
			*next = *p.table
		}
		copy(next[offset:], e)
		sources := 0
		for i := range next {
			if macKey(next[i].MAC) == 0 {
				next[i] = mad.VESWMACEntry{}
			} else if next[i].IsSource() {
				sources++
			}
		}
		if sources > mad.VESWMaxSMACs {
			return fmt.Errorf("%d entries of sources: %w", sources, ErrInvalid)
		}
		p.table, p.macs = next, newMACTable(next[:])
		p.regroup()
	}
	p.info.Port.MACDigest = digest
	p.plan.Store(makePlan(&p.info, p.macs, p.up))
	return nil
}

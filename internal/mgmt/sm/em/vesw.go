// SPDX-License-Identifier: Apache-2.0

package em

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// vesw is a virtual Ethernet switch.
type vesw struct {
	m       *Manager
	want    *VESW // of the intent
	members map[ib.GUID]*member
	list    []*member // in the order of the intent

	pkey ib.PKey // with bit 15
	mgid ib.GID
	mlid ib.LID
	mtu  int
	// joined are the ports in the group, nil if unknown.
	joined []ib.GUID
	up     bool      // all reachable members were configured once before the first forwarded
	upAt   mono.Time // the wait for the others ends
	why    string
	fix    string

	slots   []slot
	stamp   uint64 // grows with every change of slots
	refused []refusedMAC
	// recalled means that the slots of an earlier manager are known; until the end of patience, entries of its tables
	// are not removed.
	recalled bool
	patience mono.Time
}

// member is a port of a VESW.
type member struct {
	v    *vesw
	is   Member
	p    *port // nil: not in the subnet
	port *vport
	// ok means that want is the required state of the vport, except for its ConfigState.
	ok   bool
	want mad.VESWPortInfo
	why  string // ok is false
	fix  string
	// waitUntil is the end of the wait of the others for its P_Key.
	waitUntil mono.Time
	was       uint64 // stamp of the VESW at the last wake because of a change
	// digest is the expected digest of the table, for a stamp of the VESW.
	digest      uint32
	digestStamp uint64
}

// recall adopts the observations of an earlier manager.
func (v *vesw) recall(o *Observed) {
	v.mlid, v.recalled = o.MLID, true
	for _, s := range o.MACs {
		if s.Slot < mad.VESWMaxMACs && s.MAC != (MAC{}) {
			v.put(int(s.Slot), slot{mac: s.MAC, owner: s.Port})
		}
	}
}

// adopt records that an earlier manager configured a port.
func (v *vesw) adopt(p *vport) {
	if p.info.Port.ConfigState == mad.VESWForwarding {
		v.up = true
	}
}

// enroll assigns the vports of the members.
func (v *vesw) enroll() {
	old := v.members
	v.members, v.list = make(map[ib.GUID]*member, len(v.want.Members)), nil
	for _, is := range v.want.Members {
		mb := old[is.Port]
		if mb == nil || mb.is.Index != is.Index {
			mb = &member{v: v}
		}
		mb.is, mb.p, mb.port = is, v.m.ports[is.Port], nil
		if mb.p != nil {
			mb.port = mb.p.vport(is.Index)
			mb.port.member = mb
		}
		v.members[is.Port] = mb
		v.list = append(v.list, mb)
	}
}

// there reports whether the agent of the member is present, or may be.
func (mb *member) there() bool { return mb.p != nil && mb.p.state != agentNone }

// works reports whether the member accepts its settings, as far as is known.
func (mb *member) works() bool {
	return mb.p != nil && mb.p.state == agentThere && mb.port.troubles == 0
}

// id returns the identifier that the VESWPortInfo of a configured vport has.
func (mb *member) set() bool { return mb.port.known && mb.port.info.VESW.VESWID == mb.v.want.ID }

// plan computes the required state of every member.
func (v *vesw) plan(now mono.Time) {
	m := v.m
	v.why, v.fix = "", ""
	v.pkey = v.want.Key()
	v.chooseMTU()
	var in []ib.GUID
	defer v.wakeChanged(slices.Collect(func(yield func(wanted) bool) {
		for _, mb := range v.list {
			if !yield(wanted{mb.ok, mb.want}) {
				return
			}
		}
	}))
	for _, mb := range v.list {
		mb.ok, mb.why, mb.fix = false, "", ""
		switch {
		case mb.p == nil:
			mb.why, mb.fix = "the port is not in the subnet", "weft fabric nodes"
		case mb.p.state == agentNone:
			mb.why, mb.fix = "nothing at the port serves Ethernet ports", "run weft there, or weft vesw port del "+
				v.want.Name+" "+mb.is.Port.String()
		case v.keyOf(mb) == 0:
			mb.why = fmt.Sprintf("the port is no member of partition %#04x", uint16(v.pkey))
			mb.fix = fmt.Sprintf("weft pkey add %#04x %v", uint16(v.pkey), mb.is.Port)
			if v.want.OwnPartition() {
				if mb.waitUntil == 0 {
					mb.waitUntil = now.Add(keyPatience)
				}
				mb.why, mb.fix = fmt.Sprintf("the port has no room in its P_Key table for %#04x, or has not got it yet", uint16(v.pkey)), "weft sm"
			}
		default:
			mb.waitUntil = 0
			in = append(in, mb.is.Port)
		}
	}
	v.group(now, in)
	if v.mlid == 0 {
		return
	}
	v.assign()
	w := mad.DefaultVESWPortInfo()
	w.VESW.FabricID, w.VESW.VESWID = m.intent.FabricID, v.want.ID
	w.VESW.SetFlood(v.want.Flood)
	w.VESW.McastDLID, w.VESW.EthMTU = mlid24(v.mlid), uint16(v.mtu)
	mask := v.defaultPorts(&w.VESW)
	for _, mb := range v.list {
		if mb.why != "" {
			continue
		}
		mb.ok, mb.want = true, w
		s, p := &mb.want.VESW, &mb.want.Port
		if s.PKey = v.keyOf(mb); !mb.is.Gateway { // a gateway does not forward to itself or to another
			s.DefaultPortMask = mask
		}
		p.PortNum, p.BaseMAC, p.EncapSLID = mb.is.Num, v.base(mb), uint32(mb.p.lid)
		p.NonVLANSCUc, p.NonVLANSCMc = v.want.SL, v.want.SL
		for pcp := range p.PCPToSCUc {
			sc := v.want.SL
			if v.want.PCP != nil {
				sc = v.want.PCP[pcp]
			}
			p.PCPToSCUc[pcp], p.PCPToSCMc[pcp] = sc, sc
		}
	}
	v.check(now)
}

// keyPatience is the time that members of a new VESW wait for one that is not a member of its partition yet: the subnet
// manager writes it in a sweep.
const keyPatience = 3 * time.Second

// upPatience is the time that a member of a new VESW waits for all others.
const upPatience = 5 * time.Second

// wanted is the required state of a vport.
type wanted struct {
	ok   bool
	info mad.VESWPortInfo
}

// wakeChanged wakes members with a new required state.
func (v *vesw) wakeChanged(before []wanted) {
	for k, mb := range v.list {
		if mb.p != nil && (mb.was != v.stamp || before[k] != wanted{mb.ok, mb.want}) {
			mb.was = v.stamp
			v.m.wake(mb.p)
		}
	}
}

// base returns the MAC that the manager assigns to a member.
func (v *vesw) base(mb *member) MAC {
	return mad.VESWMAC(v.m.intent.FabricID, v.want.ID, uint32(mb.p.lid))
}

// keyOf returns the P_Key of the VESW that a member has, 0 if it does not have it.
func (v *vesw) keyOf(mb *member) ib.PKey {
	best := ib.PKey(0)
	if mb.p == nil {
		return 0
	}
	for _, k := range mb.p.pkeys {
		if k != 0 && (k^v.pkey)&0x7fff == 0 {
			best = max(best, k)
		}
	}
	return best
}

// chooseMTU computes the MTU: the configured one, limited by the links of all members.
func (v *vesw) chooseMTU() {
	want := cmp.Or(int(v.want.MTU), mad.DefaultEthMTU)
	v.mtu = want
	for _, mb := range v.list {
		if mb.there() && mb.p.mtu-18 < v.mtu {
			v.mtu = max(MinMTU, mb.p.mtu-18)
			v.why = fmt.Sprintf("its MTU is %d, not %d: that of the link of port %v is %d", v.mtu, want, mb.is.Port,
				mb.p.mtu)
			v.fix = fmt.Sprintf("weft vesw set %s --mtu %d", v.want.Name, v.mtu)
		}
	}
}

// group maintains the multicast group of the VESW.
func (v *vesw) group(now mono.Time, in []ib.GUID) {
	m := v.m
	if g := mgidOf(m.intent.FabricID, v.want.ID, v.pkey); g != v.mgid {
		if v.mgid != (ib.GID{}) {
			m.dying[v.mgid] = true
			v.mlid = 0
		}
		v.mgid, v.joined = g, nil
		delete(m.dying, g)
	}
	slices.Sort(in)
	if v.joined != nil && slices.Equal(in, v.joined) {
		return
	}
	v.joined = append(make([]ib.GUID, 0, 1), in...)
	mlid := m.fabric.Join(now, Group{MGID: v.mgid, MLID: v.mlid, PKey: v.pkey, SL: v.want.SL, Members: in})
	if mlid != v.mlid {
		v.mlid = mlid
		m.fabric.Keep()
	}
	if mlid == 0 {
		v.why, v.fix = "there is no multicast LID left for it", "weft mcast groups"
	}
}

// defaultPorts writes the destinations of frames to unknown MACs, and returns the mask: the gateways with a link that
// is up, or all of them if none is known to be up.
func (v *vesw) defaultPorts(w *mad.VESW) (mask uint16) {
	var all uint16
	bit := 0
	for _, mb := range v.list {
		if !mb.is.Gateway {
			continue
		}
		if mb.p != nil && mb.p.state != agentNone {
			w.UcastDLIDs[bit] = uint32(mb.p.lid)
			all |= 1 << bit
			if mb.works() && mb.set() && mb.port.info.Port.LinkStatus == mad.VESWLinkUp {
				mask |= 1 << bit
			}
		}
		bit++
	}
	if mask == 0 {
		return all
	}
	return mask
}

// mayForward reports whether a configured member may begin to forward: the switches carry its group, and all others
// were configured once that can be.
func (v *vesw) mayForward(mb *member) bool { return v.up && v.m.fabric.Carries(v.mlid, mb.is.Port) }

// check records that all reachable members are configured. The first time all wait for that.
func (v *vesw) check(now mono.Time) {
	if v.up {
		return
	}
	some, all := false, true
	for _, o := range v.list {
		if o.p == nil || o.p.state == agentNone || o.p.state == agentSilent || o.why != "" && o.waitUntil <= now {
			continue
		}
		if o.waitUntil > now || o.p.state == agentUnknown || !o.p.scanned && !o.p.troubled() || o.works() &&
			!(o.set() && o.port.info.Port.MACDigest == o.expected()) {
			all = false
			continue
		}
		some = some || o.works()
	}
	if some && v.upAt == 0 {
		v.upAt = now.Add(upPatience)
	}
	if !some || !all && v.upAt > now {
		return
	}
	v.up = true
	for _, o := range v.list {
		if o.p != nil {
			v.m.wake(o.p)
		}
	}
}

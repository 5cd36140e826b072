// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// vlArbCap is the entries of both arbitration tables of a port with more than
// one data lane.
const vlArbCap = 64

// portOf returns the port that an attribute modifier names. An adapter has only the port that received the SMP.
func (a *Agent) portOf(n uint8) (uint8, *port) {
	if !a.isSwitch() {
		if n > 1 {
			return 0, nil
		}
		return 1, &a.ports[1]
	}
	if int(n) >= len(a.ports) {
		return 0, nil
	}
	return n, &a.ports[n]
}

// get fills a.smp.Data with the requested attribute. known permits it to contain the M_Key.
func (a *Agent) get(ingress uint8, known bool) mad.Status {
	s := &a.smp
	s.Data = [mad.SMPDataLen]byte{}
	b, m := s.Data[:0], s.AttributeModifier
	switch s.AttributeID {
	case mad.AttrNodeDescription:
		a.desc.Append(b)
	case mad.AttrNodeInfo:
		n := mad.NodeInfo{BaseVersion: mad.BaseVersion, ClassVersion: mad.ClassVersion, NodeType: a.cfg.Type,
			NumPorts:        a.cfg.NumPorts,
			SystemImageGUID: a.cfg.SystemImageGUID, NodeGUID: a.cfg.NodeGUID, PortGUID: a.cfg.PortGUID, PartitionCap: a.cfg.Caps.PKeys,
			DeviceID: a.cfg.DeviceID, Revision: a.cfg.Revision, LocalPortNum: ingress, VendorID: a.cfg.VendorID}
		n.Append(b)
	case mad.AttrSwitchInfo:
		if !a.isSwitch() {
			return mad.StatusBadMethodAttr
		}
		a.info.Append(b)
	case mad.AttrPortInfo:
		_, p := a.portOf(uint8(m))
		if p == nil || m&^(mad.ModifierExtendedSpeeds|0xff) != 0 {
			return mad.StatusInvalidValue
		}
		i := p.info
		i.LocalPortNum = ingress
		if !known {
			i.MKey = 0
		}
		i.Append(b)
	case mad.AttrGUIDInfo:
		g := a.end().guids
		if int(m) >= blocks(int(a.cfg.Caps.GUIDs), mad.GUIDsPerBlock) || m > 0xff {
			return mad.StatusInvalidValue
		}
		var t mad.GUIDInfo
		copy(t[:], g[m*mad.GUIDsPerBlock:])
		t.Append(b)
	case mad.AttrPKeyTable:
		_, p, block, ok := a.pkeyBlock(m)
		if !ok {
			return mad.StatusInvalidValue
		}
		var t mad.PKeyTable
		if at := block * mad.PKeysPerBlock; at < len(p.pkeys) {
			copy(t[:], p.pkeys[at:])
		}
		t.Append(b)
	case mad.AttrSLtoVL:
		in, out, ok := a.slPair(m)
		if !ok {
			return mad.StatusInvalidValue
		}
		t := a.SLtoVL(in, out)
		t.Append(b)
	case mad.AttrVLArb:
		_, p, block, ok := a.arbBlock(m)
		if !ok {
			return mad.StatusInvalidValue
		}
		if p.vlarb != nil {
			p.vlarb[block].Append(b)
		}
	case mad.AttrLFT:
		if !a.isSwitch() {
			return mad.StatusBadMethodAttr
		}
		if m >= uint32(vswitch.LinearCap/vswitch.BlockLIDs) {
			return mad.StatusInvalidValue
		}
		t := mad.LFT(a.forward.LFT(int(m)))
		t.Append(b)
	case mad.AttrMFT:
		if !a.isSwitch() {
			return mad.StatusBadMethodAttr
		}
		pos, block := mad.SplitMFTModifier(m)
		if int(pos)*mad.MFTPortsPerPosition > int(a.cfg.NumPorts) {
			return mad.StatusInvalidValue
		}
		t := mad.MFT(a.forward.MFT(int(block), pos))
		t.Append(b)
	default:
		return mad.StatusBadMethodAttr
	}
	return mad.StatusOK
}

// set executes the Set in a.smp and leaves the resulting attribute in its Data. A status other than OK means that
// nothing changed.
func (a *Agent) set(ingress uint8) mad.Status {
	status := a.write()
	if status != mad.StatusOK {
		return status
	}
	return a.get(ingress, true)
}

func (a *Agent) write() mad.Status {
	s := &a.smp
	m := s.AttributeModifier
	switch s.AttributeID {
	case mad.AttrNodeDescription:
		if a.cfg.Caps.Mask2&mad.Cap2SetNodeDescription == 0 {
			return mad.StatusBadMethodAttr
		}
		if d := mad.NodeDescription(s.Data); d != a.desc {
			a.desc = d
			a.changed(a.endPort(), ChangedDescription)
		}
	case mad.AttrSwitchInfo:
		if !a.isSwitch() {
			return mad.StatusBadMethodAttr
		}
		return a.writeSwitchInfo()
	case mad.AttrPortInfo:
		return a.writePortInfo()
	case mad.AttrGUIDInfo:
		g := a.end().guids
		if int(m) >= blocks(int(a.cfg.Caps.GUIDs), mad.GUIDsPerBlock) || m > 0xff {
			return mad.StatusInvalidValue
		}
		var t mad.GUIDInfo
		t.Parse(s.Data[:]) // long enough
		at := int(m) * mad.GUIDsPerBlock
		if at == 0 {
			t[0] = g[0] // read-only
		}
		if n := copyChanged(g[at:], t[:]); n {
			a.changed(a.endPort(), ChangedGIDs)
		}
	case mad.AttrPKeyTable:
		n, p, block, ok := a.pkeyBlock(m)
		if !ok {
			return mad.StatusInvalidValue
		}
		if p.pkeys == nil {
			p.pkeys = make([]ib.PKey, a.cfg.EnforceCap)
		}
		var t mad.PKeyTable
		t.Parse(s.Data[:])
		if copyChanged(p.pkeys[block*mad.PKeysPerBlock:], t[:]) {
			a.changed(n, ChangedPKeys)
		}
	case mad.AttrSLtoVL:
		in, out, ok := a.slPair(m)
		if !ok {
			return mad.StatusInvalidValue
		}
		var t mad.SLtoVL
		t.Parse(s.Data[:])
		if t != a.SLtoVL(in, out) {
			if a.sl2vl == nil {
				a.sl2vl = map[uint32]mad.SLtoVL{}
			}
			a.sl2vl[mad.SLtoVLModifier(in, out)] = t
			if !a.isSwitch() {
				out = 1
			}
			a.changed(out, ChangedVLs)
		}
	case mad.AttrVLArb:
		n, p, block, ok := a.arbBlock(m)
		if !ok {
			return mad.StatusInvalidValue
		}
		var t mad.VLArb
		t.Parse(s.Data[:])
		if p.vlarb == nil {
			p.vlarb = new([4]mad.VLArb)
		}
		if p.vlarb[block] != t {
			p.vlarb[block] = t
			a.changed(n, ChangedVLs)
		}
	case mad.AttrLFT:
		if !a.isSwitch() {
			return mad.StatusBadMethodAttr
		}
		t := [vswitch.BlockLIDs]uint8(s.Data)
		if m == 0 {
			t[0] = vswitch.NoPort // no port has LID 0
		}
		if m > 0xffff || !a.forward.SetLFT(int(m), &t) {
			return mad.StatusInvalidValue
		}
		a.changed(0, ChangedTables)
	case mad.AttrMFT:
		if !a.isSwitch() {
			return mad.StatusBadMethodAttr
		}
		pos, block := mad.SplitMFTModifier(m)
		var t mad.MFT
		t.Parse(s.Data[:])
		masks := [vswitch.BlockMLIDs]uint16(t)
		if int(pos)*mad.MFTPortsPerPosition > int(a.cfg.NumPorts) || !a.forward.SetMFT(int(block), pos, &masks) {
			return mad.StatusInvalidValue
		}
		a.changed(0, ChangedTables)
	default:
		return mad.StatusBadMethodAttr
	}
	return mad.StatusOK
}

func (a *Agent) writeSwitchInfo() mad.Status {
	var n mad.SwitchInfo
	n.Parse(a.smp.Data[:]) // long enough
	i := &a.info
	top := n.MulticastFDBTop
	if int(n.LinearFDBTop) >= vswitch.LinearCap || top != 0 && (top < ib.LIDMulticastFirst-1 ||
		top == ib.LIDPermissive) {
		return mad.StatusInvalidValue
	}
	i.LinearFDBTop, i.MulticastFDBTop = n.LinearFDBTop, top
	i.DefaultPort, i.DefaultMulticastPrimaryPort, i.DefaultMulticastNotPrimaryPort =
		n.DefaultPort, n.DefaultMulticastPrimaryPort, n.DefaultMulticastNotPrimaryPort
	i.LifeTimeValue = n.LifeTimeValue
	if n.PortStateChange {
		i.PortStateChange = false
	}
	a.forward.SetGlobals(vswitch.Globals{LinearTop: i.LinearFDBTop, MulticastTop: top,
		PrimaryPort: i.DefaultMulticastPrimaryPort, NotPrimaryPort: i.DefaultMulticastNotPrimaryPort})
	a.changed(0, ChangedTables)
	return mad.StatusOK
}

func blocks(entries, per int) int { return (entries + per - 1) / per }

// pkeyBlock returns the block of a P_Key table that a modifier names. The table of an external port of a switch
// has EnforceCap entries.
func (a *Agent) pkeyBlock(m uint32) (n uint8, p *port, block int, ok bool) {
	if m>>16 > 0xff {
		return 0, nil, 0, false
	}
	n, p = a.portOf(uint8(m >> 16))
	entries, block := a.cfg.Caps.PKeys, int(m&0xffff)
	if n != a.endPort() {
		entries = a.cfg.EnforceCap
	}
	return n, p, block, p != nil && block < blocks(int(entries), mad.PKeysPerBlock)
}

// slPair returns the ports between which a modifier maps service levels, both 0 of an adapter.
func (a *Agent) slPair(m uint32) (in, out uint8, ok bool) {
	if !a.isSwitch() {
		return 0, 0, true // the modifier has no meaning
	}
	in, out = uint8(m>>8), uint8(m)
	return in, out, m>>16 == 0 && int(in) < len(a.ports) && int(out) < len(a.ports)
}

// arbBlock returns the block of an arbitration table, counted from 0, that a modifier names.
func (a *Agent) arbBlock(m uint32) (n uint8, p *port, block int, ok bool) {
	n, p = a.portOf(uint8(m))
	block = int(m>>16) - 1
	return n, p, block, p != nil && block >= 0 && block < 4 && m>>8&0xff == 0 && a.cfg.Caps.VL > mad.VL0
}

// copyChanged copies as much of src as dst holds and reports whether that
// changed anything.
func copyChanged[T comparable](dst, src []T) (changed bool) {
	for i := range min(len(dst), len(src)) {
		changed = changed || dst[i] != src[i]
		dst[i] = src[i]
	}
	return changed
}

// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// Capabilities of this SA as its ClassPortInfo states them (IBA volume 1,
// 15.2.2): notices, UD multicast, multi-path and matching of PortInfo
// capabilities; beyond them joins as a send-only full member.
const (
	capNotices        = 1 << 1
	capUDMulticast    = 1 << 9
	capMultiPath      = 1 << 10
	capPortInfoMatch  = 1 << 13
	cap2SendOnlyFull  = 1 << 12
	responseTimeValue = 18
)

// query answers Get and GetTable.
func (a *SA) query(d *mad.Datagram) {
	t := &table{a: a, attr: a.req.AttributeID}
	get := a.req.Method == mad.MethodGet
	switch a.req.AttributeID {
	case mad.AttrClassPortInfo:
		if !get {
			a.refuse(d, mad.StatusBadMethodAttr)
			return
		}
		c := mad.ClassPortInfo{BaseVersion: mad.BaseVersion, ClassVersion: mad.ClassVersionSA, CapabilityMask: capNotices | capUDMulticast | capMultiPath | capPortInfoMatch,
			CapabilityMask2: cap2SendOnlyFull, RespTimeValue: responseTimeValue}
		a.reply(d, mad.StatusOK, c.Append(nil))
		return
	case mad.AttrPathRecord:
		if status := a.paths(d, t); status != mad.StatusOK {
			a.refuse(d, status)
			return
		}
	case mad.AttrMCMemberRecord:
		a.members(t)
	case mad.AttrServiceRecord:
		a.servicesTo(t)
	case mad.AttrInformInfoRecord:
		a.subscriptionsTo(t)
	case mad.AttrSMInfoRecord:
		for _, r := range a.owner.Managers() {
			r.SMInfo.SMKey = 0
			t.add(r.Append(nil))
		}
	case mad.AttrPKeyTableRecord:
		// Who is in which partition is nobody else's business.
		if !a.trusted() {
			a.refuse(d, mad.StatusSARequest)
			return
		}
		a.pkeys(t)
	case mad.AttrNodeRecord, mad.AttrPortInfoRecord, mad.AttrSwitchInfoRecord, mad.AttrLFTRecord, mad.AttrMFTRecord, mad.AttrLinkRecord,
		mad.AttrGUIDInfoRecord:
		for r := range a.net.EndPorts() {
			if a.net.Nodes[r.Node].IsSwitch() || a.sees(r) {
				a.nodeRecords(t, r)
			}
		}
	case mad.AttrSLtoVLRecord, mad.AttrVLArbRecord:
		// One data lane: there is nothing to map or to arbitrate.
	default:
		a.refuse(d, mad.StatusBadMethodAttr)
		return
	}
	a.answer(d, t)
}

// nodeRecords adds what a query asks of the node or port of an end port.
func (a *SA) nodeRecords(t *table, r topo.Ref) {
	n, p := &a.net.Nodes[r.Node], a.net.Port(r)
	lid := p.Info.LID
	if lid == 0 {
		return
	}
	switch t.attr {
	case mad.AttrNodeRecord:
		info := n.Info
		info.PortGUID = p.GUID
		info.LocalPortNum = r.Port
		rec := mad.NodeRecord{LID: lid, NodeInfo: info, NodeDescription: mad.MakeNodeDescription(n.Description)}
		t.add(rec.Append(nil))
	case mad.AttrPortInfoRecord:
		first, last := int(r.Port), int(r.Port)
		if n.IsSwitch() {
			first, last = 0, len(n.Ports)-1
		}
		for i := first; i <= last; i++ {
			info := n.Ports[i].Info
			if info.PortState == 0 {
				continue
			}
			if !a.trusted() {
				info.MKey = 0
			}
			rec := mad.PortInfoRecord{EndPortLID: lid, PortNum: uint8(i), PortInfo: info}
			t.add(rec.Append(nil))
		}
	case mad.AttrGUIDInfoRecord:
		var g mad.GUIDInfo
		g[0] = p.GUID
		rec := mad.GUIDInfoRecord{LID: lid, GUIDInfo: g}
		t.add(rec.Append(nil))
	case mad.AttrSwitchInfoRecord:
		if n.IsSwitch() {
			rec := mad.SwitchInfoRecord{LID: lid, SwitchInfo: n.Switch.Info}
			t.add(rec.Append(nil))
		}
	case mad.AttrLFTRecord:
		if n.IsSwitch() {
			a.lft(t, lid, n.Switch)
		}
	case mad.AttrMFTRecord:
		if n.IsSwitch() {
			a.mft(t, lid, n)
		}
	case mad.AttrLinkRecord:
		a.links(t, r, lid)
	}
}

func (a *SA) lft(t *table, lid ib.LID, s *topo.Switch) {
	for at := 0; at < len(s.LFT); at += len(mad.LFT{}) {
		rec := mad.LFTRecord{LID: lid, Block: uint16(at / len(mad.LFT{}))}
		for i := copy(rec.LFT[:], s.LFT[at:]); i < len(rec.LFT); i++ {
			rec.LFT[i] = 0xff
		}
		t.add(rec.Append(nil))
	}
}

func (a *SA) mft(t *table, lid ib.LID, n *topo.Node) {
	const block = len(mad.MFT{})
	top := 0
	for m := range n.Switch.MFT {
		top = max(top, int(m-ib.LIDMulticastFirst)/block+1)
	}
	for b := range top {
		for pos := 0; pos*mad.MFTPortsPerPosition <= int(n.Info.NumPorts); pos++ {
			rec := mad.MFTRecord{LID: lid, Position: uint8(pos), Block: uint16(b)}
			for i := range rec.MFT {
				mask := n.Switch.MFT[ib.LIDMulticastFirst+ib.LID(b*block+i)]
				rec.MFT[i] = mask[pos]
			}
			t.add(rec.Append(nil))
		}
	}
}

// links adds the links of the node of an end port, seen from there.
func (a *SA) links(t *table, r topo.Ref, lid ib.LID) {
	n := &a.net.Nodes[r.Node]
	for i := range n.Ports {
		peer := n.Ports[i].Peer
		if peer.IsNone() || !n.IsSwitch() && uint8(i) != r.Port {
			continue
		}
		end := peer
		if a.net.Nodes[peer.Node].IsSwitch() {
			end.Port = 0
		} else if !a.sees(peer) {
			continue
		}
		rec := mad.LinkRecord{FromLID: lid, FromPort: uint8(i), ToPort: peer.Port, ToLID: a.net.Port(end).Info.LID}
		t.add(rec.Append(nil))
	}
}

func (a *SA) pkeys(t *table) {
	for r := range a.net.EndPorts() {
		n := &a.net.Nodes[r.Node]
		first, last := int(r.Port), int(r.Port)
		if n.IsSwitch() {
			first, last = 0, len(n.Ports)-1
		}
		for i := first; i <= last; i++ {
			for at := 0; at < len(n.Ports[i].PKeys); at += mad.PKeysPerBlock {
				rec := mad.PKeyTableRecord{LID: a.net.Port(r).Info.LID, Block: uint16(at / mad.PKeysPerBlock), Port: uint8(i)}
				copy(rec.PKeyTable[:], n.Ports[i].PKeys[at:])
				t.add(rec.Append(nil))
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package sa

import (
	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// capabilities of this SA as its ClassPortInfo states them (IBA volume 1, 15.2.2).
const capabilities = mad.ClassCapNotice | mad.SACapUDMulticast | mad.SACapMultiPath | mad.SACapPortInfoCapMatch

// responseTimeValue is the time within which the SA answers, 4.096 µs × 2^v.
const responseTimeValue = 18

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
		c := mad.ClassPortInfo{BaseVersion: mad.BaseVersion, ClassVersion: mad.ClassVersionSA,
			CapabilityMask:  capabilities,
			CapabilityMask2: mad.SACap2SendOnlyFullMemb, RespTimeValue: responseTimeValue}
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
		// The members of a partition are shown only to trusted requesters.
		if !a.trusted() {
			a.refuse(d, mad.StatusSARequest)
			return
		}
		t.pkeys()
	case mad.AttrNodeRecord, mad.AttrPortInfoRecord, mad.AttrSwitchInfoRecord, mad.AttrLFTRecord, mad.AttrMFTRecord,
		mad.AttrLinkRecord,
		mad.AttrGUIDInfoRecord:
		for r := range a.net.EndPorts() {
			if a.net.Nodes[r.Node].IsSwitch() || a.sees(r) {
				t.nodeRecords(r)
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

// nodeRecords adds the records of the node or the ports of an end port.
func (t *table) nodeRecords(r topo.Ref) {
	n, p := &t.a.net.Nodes[r.Node], t.a.net.Port(r)
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
			if !t.a.trusted() {
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
			t.lft(lid, n.Switch)
		}
	case mad.AttrMFTRecord:
		if n.IsSwitch() {
			t.mft(lid, n)
		}
	case mad.AttrLinkRecord:
		t.links(r, lid)
	}
}

func (t *table) lft(lid ib.LID, s *topo.Switch) {
	for at := 0; at < len(s.LFT); at += len(mad.LFT{}) {
		rec := mad.LFTRecord{LID: lid, Block: uint16(at / len(mad.LFT{}))}
		for i := copy(rec.LFT[:], s.LFT[at:]); i < len(rec.LFT); i++ {
			rec.LFT[i] = 0xff
		}
		t.add(rec.Append(nil))
	}
}

func (t *table) mft(lid ib.LID, n *topo.Node) {
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
func (t *table) links(r topo.Ref, lid ib.LID) {
	n := &t.a.net.Nodes[r.Node]
	for i := range n.Ports {
		peer := n.Ports[i].Peer
		if peer.IsNone() || !n.IsSwitch() && uint8(i) != r.Port {
			continue
		}
		end := peer
		if t.a.net.Nodes[peer.Node].IsSwitch() {
			end.Port = 0
		} else if !t.a.sees(peer) {
			continue
		}
		rec := mad.LinkRecord{FromLID: lid, FromPort: uint8(i), ToPort: peer.Port, ToLID: t.a.net.Port(end).Info.LID}
		t.add(rec.Append(nil))
	}
}

func (t *table) pkeys() {
	for r := range t.a.net.EndPorts() {
		n := &t.a.net.Nodes[r.Node]
		first, last := int(r.Port), int(r.Port)
		if n.IsSwitch() {
			first, last = 0, len(n.Ports)-1
		}
		for i := first; i <= last; i++ {
			for at := 0; at < len(n.Ports[i].PKeys); at += mad.PKeysPerBlock {
				rec := mad.PKeyTableRecord{LID: t.a.net.Port(r).Info.LID, Block: uint16(at / mad.PKeysPerBlock),
					Port: uint8(i)}
				copy(rec.PKeyTable[:], n.Ports[i].PKeys[at:])
				t.add(rec.Append(nil))
			}
		}
	}
}

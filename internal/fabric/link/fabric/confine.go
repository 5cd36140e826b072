// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// A confined node (Wiring.Confined) is at the other end of a trunk, and its member may not forward packets of third
// nodes. Nothing else proves what it sends, so the first switch does: a source LID must be routed to the trunk
// that the packet arrived by, a P_Key must be in the table of the trunk's port (vswitch.Port.EnforceIn, which the
// subnet manager writes), and a subnet management packet must be one that a node sends on its own behalf. Switches
// behind this one rely on the check.

// admits reports whether a confined node may send the packet with headers lrh and grh, and transport part t, that
// arrived by port in. It counts the packets that it refuses. It does not check the P_Key: the table does.
func (l *Link) admits(table *vswitch.Table, w *Wiring, in uint8, peer int, lrh *wire.LRH, grh *wire.GRH,
	t []byte) bool {
	management := lrh.VL == managementVL
	switch {
	case management && lrh.SLID == ib.LIDPermissive: // the node has no LID yet, or the packet has a directed route
	case table.Entry(lrh.SLID) != in:
		l.foreignSource(peer)
		return false
	}
	if management && !(ParseMAD(lrh, grh, t, &l.d) && ownSMP(&l.d, in, w.node(peer))) {
		l.c.DropForeignSMP++
		l.foreign(peer).SMPs++
		return false
	}
	return true
}

// ownSMP reports whether a node that is no manager may send a subnet management packet that arrived by port in: it may
// read, report, and answer what was sent to it. An answer retraces the directed route of its request, so this switch
// sent that request by the port by which the answer arrives. node is the GUID of the confined node, 0 if it is not
// known. A NodeInfo in which the confined node describes itself must contain the GUIDs of that node.
func ownSMP(d *mad.Datagram, in uint8, node ib.GUID) bool {
	var s mad.SMP
	if s.Parse(d.Data[:]) != nil || !s.MgmtClass.IsSubn() {
		return false
	}
	switch {
	case s.Directed() && s.D:
		// By LID an answer could enter any switch at any point of a route.
		port, ok := s.LeftBy()
		if !ok || port != in || s.Method != mad.MethodGetResp || d.DLID != ib.LIDPermissive {
			return false
		}
		return s.AttributeID != mad.AttrNodeInfo || s.HopPointer != s.HopCount || node == 0 || isNode(&s, node)
	case s.Method == mad.MethodGetResp:
		return !s.Directed() && d.SLID != ib.LIDPermissive // admits has compared the LID
	}
	return s.Method == mad.MethodGet || s.Method == mad.MethodTrap
}

// isNode reports whether the NodeInfo in s describes a switch with GUIDs of a node. The far end of a trunk is always a
// switch, and the subnet manager confines everything behind it.
func isNode(s *mad.SMP, node ib.GUID) bool {
	var i mad.NodeInfo
	i.Parse(s.Data[:])
	own := func(g ib.GUID) bool { return (g^node)>>ib.NodeBits == 0 }
	return i.NodeType == mad.NodeSwitch && own(i.NodeGUID) && own(i.PortGUID) && own(i.SystemImageGUID)
}

// refused counts a data packet of a peer that the table refuses.
func (l *Link) refused(confined bool, peer int, why vswitch.Refusal) {
	l.c.DropRoute[why]++
	if confined && why == vswitch.PKeyIn {
		l.foreignPKey(peer)
	}
}

func (l *Link) foreignSource(peer int) {
	l.c.DropForeignSource++
	l.foreign(peer).Sources++
}

func (l *Link) foreignPKey(peer int) { l.foreign(peer).PKeys++ }

// foreign returns the counts of a peer, after noting in them that a foreign packet arrived now.
func (l *Link) foreign(peer int) *Foreign {
	f := &l.peers[peer].Foreign
	if f.Newest.IsZero() || l.now.Sub(f.Newest) > foreignPause {
		f.Since = l.now
	}
	f.Newest = l.now
	return f
}

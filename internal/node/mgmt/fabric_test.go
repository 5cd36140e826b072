// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"testing"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// TestEndsOfLinks finds the nodes of a subnet in both orders: the end A of a link is the same, and so is its MTU, which
// the ends have not agreed on yet.
func TestEndsOfLinks(t *testing.T) {
	node := func(name string, guid ib.GUID, mtu ib.MTU, peer int32) topo.Node {
		info := mad.PortInfo{PortState: ib.PortActive, NeighborMTU: mtu}
		return topo.Node{Info: mad.NodeInfo{NodeGUID: guid}, Description: name,
			Ports: []topo.Port{{Peer: topo.None}, {Info: info, Peer: topo.Ref{Node: peer, Port: 1}}}}
	}
	for _, names := range [][2]string{{"host2 weft", "host10 weft"}, {"same", "same"}} {
		for _, s := range []*topo.Subnet{
			{Nodes: []topo.Node{node(names[0], 0x10, ib.MTU1024, 1), node(names[1], 0xa0, ib.MTU4096, 0)}},
			{Nodes: []topo.Node{node(names[1], 0xa0, ib.MTU4096, 1), node(names[0], 0x10, ib.MTU1024, 0)}},
		} {
			s.Index()
			l := describeSubnet(s).Links
			if len(l) != 1 || l[0].A.GUID != ib.GUID(0x10).String() || l[0].B.Description != names[1] || l[0].MTU != 1024 {
				t.Errorf("%q: %+v", names, l)
			}
		}
	}
}

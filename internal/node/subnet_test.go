// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"

	"weft/internal/control/config"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// TestDatagramBehindItsLink: a datagram that comes as soon as its link is up is answered, however late the management
// goroutine hears of both.
func TestDatagramBehindItsLink(t *testing.T) {
	r := run(t, func(c *config.Config) {
		c.Fabric, c.SM, c.TrunkPort = true, config.SMOff, freePort(t)
		c.Peers = []string{fmt.Sprintf("127.0.0.1:%d", freePort(t))} // nobody is there
	})
	s := r.node.sub
	m := mad.SMP{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSubnDR, ClassVersion: mad.ClassVersion, Method: mad.MethodGet,
		TransactionID: 77, AttributeID: mad.AttrNodeInfo}, HopCount: 1, HopPointer: 1, DrSLID: ib.LIDPermissive, DrDLID: ib.LIDPermissive}
	m.InitialPath[1] = 1
	port := s.peers[0].port
	d := mad.Datagram{Port: port, SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, PKey: ib.DefaultPKey}
	m.Append(d.Data[:0])
	var before, after uint64
	s.do(func() {
		before = s.sw.Stats.DropPortDown
		s.post(func() { s.setLink(s.n.now(), port, true) })
		s.arrived(inbound{d: d})
	})
	s.do(func() {})
	var up bool
	s.do(func() { after, up = s.sw.Stats.DropPortDown, s.sw.Port(port).PortPhysicalState == ib.PhysLinkUp })
	if after != before || !up {
		t.Errorf("up: %v, %d datagrams dropped", up, after-before)
	}
}

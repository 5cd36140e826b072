// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	native "weft/internal/proto/wire"
)

// TestConfinedNode: a node that knows the M_Key changes the subnet by its trunk, and sends with every LID, unless it is
// confined. Then its requests that read are answered still, and status names it.
func TestConfinedNode(t *testing.T) {
	for _, confined := range []bool{false, true} {
		s := newSubnetOfTwo(t)
		a := s.a.node
		if err := a.sub.Confine(0, confined); err != nil {
			t.Fatal(err)
		}
		key := func(p *mad.SMP) { p.MKey = 0x123456789abcdef0 }
		var port mad.PortInfo
		a.sub.Do(func() { port = *a.sub.Port(1).Agent.Port(1) })
		locked := port
		locked.MKey, locked.MKeyLeasePeriod = 0x666, 0
		locked.PortState, locked.PortPhysicalState = ib.PortNoChange, ib.PhysNoChange
		pkeys := mad.PKeyTable{0xffff, 0x8666}
		link := func(name string) uint64 { return s.a.counter(api.ScopeLink, name) }

		before := s.tables()
		gets := func() (n uint64) {
			a.sub.Do(func() { n = a.sub.Switch.Stats.Gets })
			return n
		}
		had := gets()
		s.datagram(s.directed(mad.MethodGet, mad.AttrNodeInfo, 0, nil, nil))
		eventually(t, "a request that reads is answered", func() bool { return gets() > had })
		s.datagram(s.routed(s.aPort, mad.AttrPKeyTable, 0, pkeys.Append(nil), key))
		s.datagram(s.routed(s.aPort, mad.AttrPortInfo, 1, locked.Append(nil), key))
		// Data from a LID that b does not have, to a queue pair that is not there.
		s.packet(sealed(native.LRH{DLID: s.aPort, SLID: 0x55}, native.Headers{Opcode: ib.ServiceUD | ib.SendOnly,
			PKey: 0xffff, DestQPN: 0x1234, SrcQPN: 5}, make([]byte, 64)))
		if confined {
			eventually(t, "all three are dropped", func() bool {
				return link("drop_foreign_smp") == 2 && link("drop_foreign_source") == 1
			})
			if after := s.tables(); after != before {
				t.Errorf("tables changed:\n%s\nwere:\n%s", after, before)
			}
			if d := s.a.degraded("foreign_packets"); !strings.Contains(d.Why, "2 subnet management packets") {
				t.Errorf("status: %+v", d)
			}
			continue
		}
		eventually(t, "both requests are executed", func() (ok bool) {
			a.sub.Do(func() {
				g := a.sub.Port(1).Agent
				ok = g.Port(1).MKey == 0x666 && g.PKeys(1)[1] == 0x8666
			})
			return ok
		})
		if n := link("drop_foreign_smp") + link("drop_foreign_source"); n != 0 {
			t.Errorf("%d packets are dropped", n)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"testing"
	"time"

	"weft/internal/mgmt/member/shape"
	"weft/internal/proto/ib"
)

// shaped is the subnet of n members with the trunks that package shape plans: each has a switch with an adapter.
func shaped(n, ports int) (*plan, *shape.Plan) {
	p := &plan{}
	var list []shape.Member
	for i := range n {
		list = append(list, shape.Member{GUID: ib.GUID(i + 1), Joined: time.Unix(int64(i), 0),
			Ports: shape.TrunkPorts(ports, 1, 0)})
		p.sw(ports)
	}
	for i := range n {
		p.plug(int32(i), p.ca())
	}
	s := shape.New(list)
	for _, x := range s.Trunks {
		p.plug(int32(x.A-1), int32(x.B-1))
	}
	return p.finish(0), s
}

// TestShapesAreFree proves that shortest paths have no cyclic wait for buffers on what package shape plans, and how
// long they are: MinHop is the engine of a subnet without a setting.
func TestShapesAreFree(t *testing.T) {
	for _, c := range []struct {
		n, ports int
		form     shape.Form
		trunks   uint8
	}{{2, 36, shape.Mesh, 1}, {16, 36, shape.Mesh, 1}, {17, 36, shape.Spines, 2}, {60, 36, shape.Spines, 3},
		{152, 36, shape.Spines, 3}, {60, 14, shape.Cores, 5}, {170, 36, shape.Cores, 4}} {
		t.Run(fmt.Sprint(c.n, "/", c.ports), func(t *testing.T) {
			p, s := shaped(c.n, c.ports)
			tab, err := MinHop{}.Unicast(&p.Subnet)
			if err != nil {
				t.Fatal(err)
			}
			if circle(check(t, p, tab)) {
				t.Error("links wait for each other in a circle")
			}
			longest := uint8(0)
			for _, row := range tab.Hops {
				for _, n := range row {
					longest = max(longest, n)
				}
			}
			if s.Form != c.form || longest != c.trunks {
				t.Errorf("%v with paths of up to %d trunks, want %v with %d", s.Form, longest, c.form, c.trunks)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package member

import (
	"fmt"
	"testing"
	"time"

	"weft/internal/mgmt/member/shape"
	"weft/internal/proto/ib"
)

// TestShape checks what of records the plan uses.
func TestShape(t *testing.T) {
	r := &Roster{}
	for i := range 20 {
		r.Members = append(r.Members, Record{GUID: ib.GUID(0x0200_0000_0000_0000 + uint64(i+1)<<16),
			Name: fmt.Sprintf("m%d", i), Joined: start.Add(time.Duration(i) * time.Second), State: Active,
			Roles: HostRoles})
	}
	level := func(i int) shape.Level { return r.Shape().Place(r.Members[i].GUID).Level }
	if level(0) != shape.Spine || level(19) != shape.Leaf {
		t.Errorf("the oldest is %v, the youngest %v", level(0), level(19))
	}
	r.Members[19].Roles, r.Members[0].Roles = Spine|Manager, Leaf
	if level(0) != shape.Leaf || level(19) != shape.Spine {
		t.Errorf("with roles: leaf %v, spine %v", level(0), level(19))
	}
	r.Members[2].Roles = 0
	if level(2) != shape.Leaf {
		t.Errorf("a member that may carry no packets of others is %v", level(2))
	}
	r.Members[1].State = Draining
	if level(1) != shape.Leaf {
		t.Errorf("a drained member is %v", level(1))
	}
	r.Members[5].Switch = Switch{Ports: 1}
	if p := r.Shape(); len(p.Peers(r.Members[5].GUID)) != 0 || len(p.Limits) != 1 ||
		p.Limits[0].Kind != shape.NoPort {
		t.Errorf("a switch without a port for trunks: %v", p.Limits)
	}
	p := r.Shape()
	g := r.Members[7].GUID
	r.Members[7].Switch.Settled = p.Mark(g)
	if is := r.Settled(p); !is(g) || is(r.Members[8].GUID) || is(99) {
		t.Error("the settled members are wrong")
	}
}

func TestSwitchCheck(t *testing.T) {
	for _, c := range []struct {
		s  Switch
		ok bool
	}{{Switch{}, true}, {Switch{Ports: 254, Devices: 40}, true}, {Switch{Ports: 255}, false}, {Switch{Ports: -1}, false},
		{Switch{Ports: 36, Devices: -4}, false}} {
		if err := c.s.Check(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.s, err)
		}
	}
}

// TestDrainedAt finds the drained member with a port.
func TestDrainedAt(t *testing.T) {
	r := &Roster{Members: []Record{{Name: "a", GUID: 0x10000}, {Name: "b", GUID: 0x20000, State: Drained},
		{Name: "c", GUID: 0x30000, State: Draining}}}
	for port, want := range map[ib.GUID]string{0x10003: "", 0x20003: "b", 0x30005: "c", 0x40003: ""} {
		if got := r.DrainedAt(port); got != want {
			t.Errorf("%v: %q, want %q", port, got, want)
		}
	}
	if got := (*Roster)(nil).DrainedAt(0x20003); got != "" {
		t.Errorf("of no fabric: %q", got)
	}
}

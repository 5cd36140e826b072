// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"weft/internal/control/api"
	"weft/internal/mgmt/manager"
	"weft/internal/mgmt/sm/em"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// ports returns the names of n ports.
func ports(n int) (list []string) {
	for i := range n {
		list = append(list, ib.GUID(0x0200000000000000+i).String())
	}
	return list
}

// large is the file of a subnet with n ports: a switch of them, which lets everything be chosen, and some partitions.
func large(n, partitions int) api.Desired {
	v := api.DesiredVESW{Name: "lab", Line: 1}
	for _, p := range ports(n) {
		v.Ports = append(v.Ports, api.DesiredVESWPort{Port: p})
	}
	d := api.Desired{VESWs: []api.DesiredVESW{v}, Partitions: []api.DesiredPartition{}}
	for k := range partitions {
		d.Partitions = append(d.Partitions, api.DesiredPartition{Name: fmt.Sprint("p", k), Line: k + 2,
			PKey: fmt.Sprintf("0x%04x", 0x8001+k), Members: ports(n)})
	}
	return d
}

// TestBounded: what no subnet holds is refused before any port is looked at.
func TestBounded(t *testing.T) {
	looked := 0
	n := New(Config{DevicePort: func(string) (ib.GUID, bool) { looked++; return 1, true }})
	list := func(n int) []string {
		l := make([]string, n)
		for i := range l {
			l[i] = "d"
		}
		return l
	}
	whole := func(n int) (l []api.DesiredPartition) {
		for k := range n {
			l = append(l, api.DesiredPartition{PKey: fmt.Sprintf("0x%04x", k+1), Members: []string{"ALL=limited"}})
		}
		return l
	}
	for _, x := range []struct {
		name string
		d    api.Desired
		want string
	}{
		{"partitions", api.Desired{Partitions: make([]api.DesiredPartition, maxPartitions+1)},
			"32768 partitions: a subnet has 32767 at most"},
		{"switches", api.Desired{VESWs: make([]api.DesiredVESW, em.MaxVESWs+1)},
			"1025 virtual Ethernet switches: a subnet has 1024 at most"},
		{"groups", api.Desired{Groups: make([]api.DesiredGroup, maxGroups+1)}, "16384 groups: a subnet has 16383 at most"},
		{"ports of a switch", api.Desired{VESWs: []api.DesiredVESW{{Name: "a", Line: 7,
			Ports: make([]api.DesiredVESWPort, em.MaxMembers+1)}}}, "line 7: vesw a: 4097 ports, at most 4096 are possible"},
		{"members", api.Desired{Partitions: []api.DesiredPartition{{PKey: "0x1", Members: list(maxNamed)}},
			Groups: []api.DesiredGroup{{Members: list(1)}}},
			"65537 members of partitions, switches and groups: a configuration has 65536 at most"},
		{"roots", api.Desired{Subnet: &api.DesiredSubnet{Roots: list(maxNamed + 1)}}, "65537 members"},
		{"routing", api.Desired{Subnet: &api.DesiredSubnet{Line: 2, Routing: strings.Repeat("updn,", 100)}},
			"line 2: the routing has 500 octets, at most 256 are possible"},
		{"partitions of all ports", api.Desired{Partitions: whole(maxWhole + 1)},
			"257 partitions of all ports: the P_Key table of a port has 256 entries at most"},
	} {
		d := empty()
		err := configuration{n}.desire(t.Context(), &x.d, &d, nil)
		if err == nil || looked > 0 {
			t.Errorf("%s: it is accepted, or refused after %d ports", x.name, looked)
		} else if why := problem.Of("", err).Why; !strings.HasPrefix(why, x.want) {
			t.Errorf("%s: %q, want %q", x.name, why, x.want)
		}
	}
	d, most := empty(), large(em.MaxMembers, maxNamed/em.MaxMembers-1)
	if err := (configuration{n}).desire(t.Context(), &most, &d, nil); err != nil {
		t.Errorf("the largest file: %v", err)
	}
}

// TestEndsWithCaller: no work is done for a caller that has gone.
func TestEndsWithCaller(t *testing.T) {
	var stop context.CancelFunc
	looked := 0
	n := New(Config{DevicePort: func(string) (ib.GUID, bool) { looked++; stop(); return ib.GUID(looked), true }})
	for name, want := range map[string]api.Desired{
		"a partition": {Partitions: []api.DesiredPartition{{PKey: "0x1", Members: []string{"a", "b"}}}},
		"a switch":    {VESWs: []api.DesiredVESW{{Name: "lab", Ports: []api.DesiredVESWPort{{Port: "a"}, {Port: "b"}}}}},
		"groups":      {Groups: []api.DesiredGroup{{MGID: "ff12::1", Members: []string{"a"}}, {MGID: "ff12::2"}}},
	} {
		looked = 0
		ctx, cancel := context.WithCancel(t.Context())
		stop = cancel
		d := empty()
		if err := (configuration{n}).desire(ctx, &want, &d, nil); !errors.Is(err, context.Canceled) || looked > 1 {
			t.Errorf("%s: %v, after %d ports", name, err, looked)
		}
		cancel()
	}
}

// TestChoosesAll: each port of a full switch gets a number and a vport of its own, also beside ports with both.
func TestChoosesAll(t *testing.T) {
	n, d, want := New(Config{}), empty(), large(em.MaxMembers, 0)
	five, index := &want.VESWs[0].Ports[4000], 9
	five.Number, five.VPort = 5, &index
	if err := (configuration{n}).desire(t.Context(), &want, &d, nil); err != nil {
		t.Fatal(err)
	}
	if err := d.Validate(); err != nil {
		t.Fatal(err)
	}
	m := d.Ethernet.VESWs[0].Members
	if len(m) != em.MaxMembers || m[0].Num != 1 || m[4].Num != 6 || m[4000].Num != 5 || m[4000].Index != 9 ||
		m[4095].Num != em.MaxMembers {
		t.Errorf("%+v %+v %+v", m[0], m[4], m[4000])
	}
	// The vports of one port in many switches.
	few := api.Desired{}
	for k := range em.MaxIndex + 2 {
		few.VESWs = append(few.VESWs, api.DesiredVESW{Name: fmt.Sprint("v", k), Line: k + 1,
			Ports: []api.DesiredVESWPort{{Port: "0x5"}}})
	}
	d = empty()
	err := configuration{n}.desire(t.Context(), &few, &d, nil)
	if want := "line 256: vesw v255: port 0000:0000:0000:0005: every vport of the port is taken"; err == nil ||
		!strings.HasPrefix(problem.Of("", err).Why, want) {
		t.Errorf("%v", err)
	}
	few.VESWs = few.VESWs[:em.MaxIndex+1]
	d = empty()
	if err := (configuration{n}).desire(t.Context(), &few, &d, nil); err != nil ||
		d.Ethernet.VESWs[em.MaxIndex].Members[0].Index != em.MaxIndex {
		t.Errorf("%v %+v", err, d.Ethernet.VESWs[em.MaxIndex])
	}
}

// TestTurns: one comparison is at work, and few of each caller wait for it.
func TestTurns(t *testing.T) {
	var u turns
	by := func(node ib.GUID, uid int) context.Context {
		return api.WithCaller(t.Context(), api.Caller{Node: node, UID: uid})
	}
	first, err := u.take(by(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	gone, stop := context.WithCancel(by(2, 0))
	stop()
	if _, err := u.take(gone); !errors.Is(err, context.Canceled) {
		t.Fatalf("a caller that has gone: %v", err)
	}
	var working, most atomic.Int32
	got := make(chan error)
	wait := func(ctx context.Context) {
		go func() {
			done, err := u.take(ctx)
			if err == nil {
				if n := working.Add(1); n > most.Load() {
					most.Store(n)
				}
				working.Add(-1)
				done()
			}
			got <- err
		}()
	}
	for uid := range maxTurns { // of which one is too many: users of a member are one caller
		wait(by(1, uid))
	}
	var busy *api.Error
	if err := <-got; !errors.As(err, &busy) || busy.Code != api.CodeConflict {
		t.Errorf("too many of one member: %v", err)
	}
	others := []context.Context{by(2, 0), by(0, 5), by(0, 6)}
	for _, ctx := range others {
		wait(ctx)
	}
	select {
	case err := <-got:
		t.Errorf("two are at work, or another caller is refused: %v", err)
	default:
	}
	first()
	for range maxTurns - 1 + len(others) {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 || len(u.active) != 0 {
		t.Errorf("%d were at work at a time; left: %v", most.Load(), u.active)
	}
}

// BenchmarkDesired is what the node of the master does for weft diff of a subnet with 4096 ports: a switch of all of
// them, and four partitions. Nothing of it is there, or all of it was there and half of the ports leave.
func BenchmarkDesired(b *testing.B) {
	c, ctx := configuration{New(Config{})}, context.Background()
	full, half := large(4096, 4), large(2048, 4)
	var there manager.Desired
	run := func(before manager.Desired, want *api.Desired) manager.Desired {
		d := before.Clone()
		if err := c.desire(ctx, want, &d, nil); err != nil {
			b.Fatal(err)
		}
		if err := d.Validate(); err != nil {
			b.Fatal(err)
		}
		lost, err := lostBy(ctx, &before, &d, nil)
		if err != nil || len(compare(&before, &d, nil)) == 0 {
			b.Fatal(err)
		}
		describeLost(lost, nil)
		return d
	}
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			there = run(empty(), &full)
		}
	})
	b.Run("half leaves", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			run(there, &half)
		}
	})
	b.Run("largest", func(b *testing.B) {
		most := large(em.MaxMembers, maxNamed/em.MaxMembers-1)
		b.ReportAllocs()
		for b.Loop() {
			run(empty(), &most)
		}
	})
}

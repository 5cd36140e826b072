// SPDX-License-Identifier: Apache-2.0

package mgmt

import (
	"context"
	"sync"

	"weft/internal/control/api"
	"weft/internal/mgmt/sm/em"
	"weft/internal/proto/ib"
)

// Bounds of a request with a configuration, which are checked before any work is done for it. They are those of what
// a subnet and the store hold.
const (
	maxPartitions = 0x7fff                                       // P_Keys without the membership bit
	maxGroups     = int(ib.LIDPermissive - ib.LIDMulticastFirst) // multicast LIDs
	maxNamed      = 1 << 16                                      // members of all kinds: an entry of the store (store.MaxValue) has fewer
	maxWhole      = 256                                          // partitions of all ports: each takes an entry of every P_Key table
	maxRouting    = 256                                          // octets of the names of routing engines
)

// bounded refuses a configuration that no subnet holds.
func bounded(want *api.Desired) error {
	if s := want.Subnet; s != nil && len(s.Routing) > maxRouting {
		return wrongLine(s.Line, "the routing has %d octets, at most %d are possible", len(s.Routing), maxRouting)
	}
	for _, x := range []struct {
		what    string
		n, most int
	}{{"partitions", len(want.Partitions), maxPartitions}, {"virtual Ethernet switches", len(want.VESWs), em.MaxVESWs},
		{"groups", len(want.Groups), maxGroups}} {
		if x.n > x.most {
			return wrongLine(0, "%d %s: a subnet has %d at most", x.n, x.what, x.most)
		}
	}
	named, whole := 0, 0
	if want.Subnet != nil {
		named = len(want.Subnet.Roots)
	}
	for i := range want.Partitions {
		p := &want.Partitions[i]
		named += len(p.Members)
		if isWhole(p) {
			whole++
		}
	}
	for i := range want.VESWs {
		v := &want.VESWs[i]
		if len(v.Ports) > em.MaxMembers {
			return wrongLine(v.Line, "vesw %s: %d ports, at most %d are possible", v.Name, len(v.Ports), em.MaxMembers)
		}
		named += len(v.Ports)
	}
	for i := range want.Groups {
		named += len(want.Groups[i].Members)
	}
	switch {
	case named > maxNamed:
		return wrongLine(0, "%d members of partitions, switches and groups: a configuration has %d at most", named,
			maxNamed)
	case whole > maxWhole:
		return wrongLine(0, "%d partitions of all ports: the P_Key table of a port has %d entries at most", whole,
			maxWhole)
	}
	return nil
}

// isWhole reports whether every port is a member of a partition.
func isWhole(p *api.DesiredPartition) bool {
	for _, m := range p.Members {
		switch m {
		case api.AllPorts, api.AllPorts + "=" + api.MemberFull, api.AllPorts + "=" + api.MemberLimited:
			return true
		}
	}
	return false
}

// maxTurns is how many comparisons of one caller are at work or wait.
const maxTurns = 4

// turns admits one comparison at a time, and maxTurns of each caller: what a caller sends meanwhile is refused. A
// member is one caller, whichever of its users it is.
type turns struct {
	mu     sync.Mutex // guards what follows
	active map[turn]int
	free   chan struct{} // has an element while no comparison is at work; nil: none was yet
}

// turn is a caller: a member, or a user of this node.
type turn struct {
	node ib.GUID
	uid  int
}

// take waits for the turn of the caller of ctx, until ctx ends. The caller calls done after its work.
func (t *turns) take(ctx context.Context) (done func(), err error) {
	c := api.CallerOf(ctx)
	who := turn{node: c.Node}
	if c.Node == 0 {
		who.uid = c.UID
	}
	free, ok := t.enter(who)
	if !ok {
		return nil, &api.Error{Code: api.CodeConflict,
			Why: "too many comparisons of this host or user are under way", Fix: "the same again"}
	}
	select {
	case <-ctx.Done():
		t.leave(who)
		return nil, ctx.Err()
	case <-free:
	}
	return func() {
		t.leave(who)
		free <- struct{}{}
	}, nil
}

// enter notes a comparison of a caller; ok is false where there are too many.
func (t *turns) enter(who turn) (free chan struct{}, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free == nil {
		t.active, t.free = map[turn]int{}, make(chan struct{}, 1)
		t.free <- struct{}{}
	}
	if t.active[who] == maxTurns {
		return nil, false
	}
	t.active[who]++
	return t.free, true
}

func (t *turns) leave(who turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active[who]--; t.active[who] == 0 {
		delete(t.active, who)
	}
}

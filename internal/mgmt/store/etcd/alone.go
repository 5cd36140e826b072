// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"time"

	"weft/internal/proto/mono"
)

// alonePatience is how long a replica is without the leader before it counts as alone: longer than the group needs to
// elect another.
const alonePatience = 4 * time.Second

// solitude is for how long a replica has been without the leader, as far as it looked. The time in which the process
// was stopped does not count: the leader of the group may have changed in it, and the first look is too early to find
// the next one.
type solitude struct {
	looked mono.Time
	lasts  time.Duration
}

// look records one look; every is the interval between looks.
func (s *solitude) look(now mono.Time, every time.Duration, found bool) {
	passed := min(now.Sub(s.looked), 2*every)
	if s.looked = now; found {
		s.lasts = 0
		return
	}
	s.lasts += passed
}

// reachesLeader reports whether the replica of m has a leader; its mu is held. A learner takes no part in elections and
// does not notice that there is none: it queries the leader.
func reachesLeader(ctx context.Context, m *Member) bool {
	leader := m.server.etcd.leader()
	if leader == 0 || m.server.Votes() {
		return leader != 0
	}
	for _, r := range m.server.Replicas() {
		if r.ID != leader {
			continue
		}
		if a, err := m.ask(ctx, host(r.URL), 0); err == nil && a.Leader == leader {
			return true
		}
	}
	return false
}

// LeadsOthers reports whether this node's replica leads the group, and another one could after its death.
func (m *Member) LeadsOthers() bool {
	s := m.view.Load().server
	return s != nil && s.down() == "" && s.Leads() && m.Part().Voters >= 3
}

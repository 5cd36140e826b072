// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"time"

	"weft/internal/mgmt/store/voters"
)

// view is the state of a member at one time. It is immutable, but for the server, which has its own lock.
type view struct {
	server    *Server
	room      error // Member.room
	group     voters.Identity
	replicas  []Replica
	why       string
	advertise string
	solitary  time.Duration
}

// publish makes the state that there is now the one that is seen without mu, which is held.
func (m *Member) publish() {
	m.view.Store(&view{server: m.server, room: m.room, group: m.known.Roster.Group, replicas: m.known.Roster.Replicas,
		why: m.why, advertise: m.c.Advertise, solitary: m.quiet.lasts})
}

// unlock publishes, and gives mu back.
func (m *Member) unlock() {
	m.publish()
	m.mu.Unlock()
}

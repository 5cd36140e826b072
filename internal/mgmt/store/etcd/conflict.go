// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/internal/mgmt/store"
)

// conflict is the error of a node that met another store of the generation of its own.
func conflict(why string) error {
	return &store.Error{Kind: store.ErrUnavailable, What: "cannot use the store", Why: why,
		Fix: "decide which is the fabric's, and on a voter of it: weft store restore; the other one is set aside then"}
}

// separate ends the use of the store since there are two, and with it the terms that callers have; mu is held. What
// other nodes have of this one's replica ends as well: most managers are of members without one.
func (m *Member) separate(why string) {
	err := conflict(why)
	if m.why != why {
		m.c.Log.Error("there are two stores", "err", err)
	}
	m.why, m.split, m.lead, m.remote = why, true, nil, nil
	m.because(err)
	m.use(nil)
	if m.server != nil {
		m.server.withhold(err)
	}
}

// reunite undoes separate; mu is held.
func (m *Member) reunite() {
	if m.split {
		m.why, m.split, m.rivals = "", false, nil
		if m.server != nil {
			m.server.withhold(nil)
		}
		m.because(nil)
		m.c.Log.Info("there is one store again")
	}
}

// withhold refuses the calls of other nodes with an error, until it is called with nil.
func (s *Server) withhold(why error) {
	if why == nil {
		s.withheld.Store(nil)
		return
	}
	answer := status.Error(codes.Unavailable, why.Error())
	s.withheld.Store(&answer)
}

// copied returns the error of a replica that runs elsewhere already: the directory of its node was copied, and two
// replicas of one number would vote for two. nil: nothing answers as this one where it was last reached; mu is held, or
// nothing runs yet. The replica of this node does not run.
func copied(ctx context.Context, m *Member) error {
	at := []string{m.known.Roster.Addresses[m.c.Name]}
	for _, r := range m.known.Roster.Replicas {
		if r.Name == m.c.Name {
			at = append(at, host(r.URL))
		}
	}
	for _, a := range slices.Compact(at) {
		if a == "" || a == m.c.Advertise {
			continue
		}
		if r, err := m.ask(ctx, a, m.known.Replica); err == nil && r.Name == m.c.Name && r.ID == m.known.Replica {
			return &store.Error{Kind: store.ErrUnavailable, What: "cannot use the store",
				Why: "the replica of this node runs at " + a + " too: the node's directory was copied",
				Fix: "weft down; weft leave; remove the file identity in the copy; weft join"}
		}
	}
	return nil
}

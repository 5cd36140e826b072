// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"net/netip"
	"time"
)

// Place is where a node is.
type Place struct {
	Advertise string // as in MemberConfig; empty: as before
	Own       string // the addresses of the host, as one text; empty: as before
}

// moveTime bounds how long the announcement of another address waits for the group.
const moveTime = 2 * time.Second

// move has others reach this node where MemberConfig.Moved says, if that changed; mu is held. A replica is moved at
// once where the group has its majority, else with the next look. After each change of the host's own addresses it
// finds out whether the replica still reaches the group.
func (m *Member) move(ctx context.Context) {
	if m.c.Moved == nil || m.c.Advertise == "" { // a node that is alone is reached by no other
		return
	}
	place := m.c.Moved()
	at := place.Advertise
	if ip, err := netip.ParseAddrPort(at); err == nil && ip.Addr().IsLoopback() {
		at = "" // the host has no other address at present, and is not reached at this one
	}
	if at != "" && at != m.c.Advertise {
		m.c.Log.Info("the store is reached at another address", "before", m.c.Advertise, "now", at)
		m.c.Advertise = at
		m.moved = replicaMoved
	}
	if place.Own != "" && place.Own != m.own {
		if m.own != "" {
			m.moved = replicaMoved
		}
		m.own = place.Own
	}
	s := m.server
	if s == nil || s.down() != "" {
		return
	}
	s.c.Advertise = m.scheme() + m.c.Advertise
	ctx, stop := context.WithTimeout(ctx, moveTime)
	defer stop()
	err := s.Readdress(ctx)
	if err == nil && m.moved == replicaMoved && !m.healthy(ctx) {
		err = context.DeadlineExceeded // it was reached there before
	}
	switch {
	case err == nil:
		m.moved = replicaSettled
	case m.moved == replicaMoved:
		m.moved = replicaStranded
		m.c.Log.Info("the replica is started again: the group does not answer since the address changed")
	}
	if err != nil {
		m.c.Log.Debug("the group of the store does not know where this replica is", "err", err)
	}
}

// movement is how far the replica has followed a change of this node's address.
type movement uint8

const (
	replicaSettled movement = iota
	replicaMoved            // the address has changed, and the group is to know the new one
	// replicaStranded: the group does not answer. The replica's connections are from an address that the host may have
	// no more: what it writes to them is neither delivered nor refused for many minutes. It is started again, once.
	replicaStranded
	replicaWaits // it was started again, and the group still does not answer
)

// stranded reports, once, that the replica has to be started again for connections from the address that there is now.
func (v *movement) stranded() bool {
	if *v != replicaStranded {
		return false
	}
	*v = replicaWaits
	return true
}

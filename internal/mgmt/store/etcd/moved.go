// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"net/netip"
	"time"
)

// moveTime bounds how long the announcement of another address waits for the group.
const moveTime = 2 * time.Second

// move has others reach this node where MemberConfig.Moved says, if that changed; mu is held. A replica is moved at
// once where the group has its majority, else with the next look.
func (m *Member) move(ctx context.Context) {
	if m.c.Moved == nil || m.c.Advertise == "" { // a node that is alone is reached by no other
		return
	}
	at := m.c.Moved()
	if ip, err := netip.ParseAddrPort(at); err == nil && ip.Addr().IsLoopback() {
		at = "" // the host has no other address at present, and is not reached at this one
	}
	if at != "" && at != m.c.Advertise {
		m.c.Log.Info("the store is reached at another address", "before", m.c.Advertise, "now", at)
		m.c.Advertise = at
	}
	s := m.server
	if s == nil || s.down() != "" {
		return
	}
	s.c.Advertise = m.scheme() + m.c.Advertise
	ctx, stop := context.WithTimeout(ctx, moveTime)
	defer stop()
	if err := s.Readdress(ctx); err != nil {
		m.c.Log.Debug("the replica is reached at its old address", "err", err)
	}
}

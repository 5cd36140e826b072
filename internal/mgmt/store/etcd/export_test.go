// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"log/slog"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
)

// Kill ends the client as the death of its process would: its leases are not
// revoked, only no longer renewed.
func (c *Client) Kill() { _ = c.end(false) }

// WithMaxSize bounds a server more than usual.
func (c ServerConfig) WithMaxSize(n int64) ServerConfig { c.maxSize = n; return c }

// Compact forgets the history, as upkeep does.
func (s *Server) Compact(ctx context.Context) error {
	_, err := s.makeRoom(ctx, false)
	return err
}

// SayFull is what a put does that finds no room.
func (s *Server) SayFull(ctx context.Context) error {
	_, err := s.etcd.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, Alarm: pb.AlarmType_NOSPACE,
		MemberID: uint64(s.etcd.MemberID())})
	return err
}

// SaysFull reports whether puts are refused.
func (s *Server) SaysFull() bool { return len(s.etcd.Alarms()) > 0 }

// Fail makes the server one with an etcd that ended by itself.
func (s *Server) Fail(why string) { s.fail(why) }

// Bridge is bridge.
func Bridge(log *slog.Logger, fatal func(string)) *zap.Logger { return bridge(log, fatal) }

// Cut drops the messages of this member's replica to all others, until Mend.
func (m *Member) Cut() { m.peers((*etcdserver.EtcdServer).CutPeer) }

// Mend undoes Cut.
func (m *Member) Mend() { m.peers((*etcdserver.EtcdServer).MendPeer) }

func (m *Member) peers(f func(*etcdserver.EtcdServer, types.ID)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.server == nil {
		return
	}
	for _, r := range m.server.Replicas() {
		if r.ID != m.server.ID() {
			f(m.server.etcd, types.ID(r.ID))
		}
	}
}

// Named is named.
func Named(c *tls.Config) *tls.Config { return named(c) }

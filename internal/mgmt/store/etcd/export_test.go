// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"sync"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"weft/internal/mgmt/store"
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
	_, err := s.etcd.unguarded.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE,
		Alarm: pb.AlarmType_NOSPACE, MemberID: s.etcd.id()})
	return err
}

// SaysFull reports whether puts are refused.
func (s *Server) SaysFull() bool { return len(s.etcd.alarms()) > 0 }

// Fail makes the server one with an etcd that ended by itself.
func (s *Server) Fail(why string) { s.fail(why) }

// Transfers reports whether the server still begins to pass its lead on.
func (s *Server) Transfers() bool { return s.transfer(func() {}) }

// Bridge is bridge.
func Bridge(log *slog.Logger, fatal func(string), ending func() bool) *zap.Logger {
	return bridge(log, func(why string, _ error) { fatal(why) }, ending)
}

// UpdateVersion has etcd begin to store the version of its group, as etcd does by itself after an election.
func (s *Server) UpdateVersion() {
	etcdserver.NewServerVersionAdapter(s.etcd.unguarded).UpdateClusterVersion("3.6.0")
}

// Cut drops the messages of this member's replica to all others, until Mend. etcd's CutPeer would also stop the
// pipelines of replicas that are not applied yet, without a lock.
func (m *Member) Cut() { m.replica((*etcdserver.EtcdServer).PauseSending) }

// Mend undoes Cut.
func (m *Member) Mend() { m.replica((*etcdserver.EtcdServer).ResumeSending) }

func (m *Member) replica(f func(*etcdserver.EtcdServer)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.server != nil {
		f(m.server.etcd.unguarded)
	}
}

// Named is named.
func Named(c *tls.Config) *tls.Config { return named(c) }

// WithUsers lets a server have users.
func (c ServerConfig) WithUsers() ServerConfig { c.authToken = "simple"; return c }

// ServeUsers makes the user weft with a password, for everything below the namespace, and serves all of etcd,
// with authentication, until stop is called.
func (s *Server) ServeUsers(ctx context.Context, l net.Listener, password string) (stop func(), err error) {
	none := &authpb.UserAddOptions{}
	for _, user := range []string{"root", "weft"} {
		_, err1 := s.etcd.unguarded.RoleAdd(ctx, &pb.AuthRoleAddRequest{Name: user})
		_, err2 := s.etcd.unguarded.UserAdd(ctx, &pb.AuthUserAddRequest{Name: user, Password: password, Options: none})
		_, err3 := s.etcd.unguarded.UserGrantRole(ctx, &pb.AuthUserGrantRoleRequest{User: user, Role: user})
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
	}
	if _, err := s.etcd.unguarded.RoleGrantPermission(ctx, &pb.AuthRoleGrantPermissionRequest{Name: "weft",
		Perm: &authpb.Permission{PermType: authpb.READWRITE, Key: []byte("weft/"), RangeEnd: []byte("weft0")}}); err != nil {
		return nil, err
	}
	if _, err := s.etcd.unguarded.AuthEnable(ctx, &pb.AuthEnableRequest{}); err != nil {
		return nil, err
	}
	g := v3rpc.Server(s.etcd.unguarded, nil, nil)
	go func() { _ = g.Serve(l) }()
	return g.Stop, nil
}

// StopEtcd ends etcd below the member's replica, as etcd ends itself when another replica reports its removal.
func (m *Member) StopEtcd() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.server.etcd.stop()
}

// StopEtcd ends etcd below the server.
func (s *Server) StopEtcd() { s.etcd.stop() }

// Trusts reports whether the member's replica runs with this CA alone.
func (m *Member) Trusts(der []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.server != nil && m.server.down() == "" &&
		m.cas == string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Asked returns which addresses a member with a roster requests reports from in some rounds of at most n.
func Asked(own string, seeds []string, r Roster, n, rounds int) (list [][]string) {
	m := &Member{c: MemberConfig{Advertise: own, Seeds: seeds}, known: known{Roster: r}}
	for range rounds {
		list = append(list, m.addresses(n))
	}
	return list
}

// MaxAsked is maxAsked.
const MaxAsked = maxAsked

// WithInterrupt has each restore end with an error between the old files and the new ones.
func (c MemberConfig) WithInterrupt(end error) MemberConfig { c.interrupt = end; return c }

// WithStarting has each start of the replica call a function before it finds out whether etcd runs.
func (c MemberConfig) WithStarting(f func(failed <-chan struct{})) MemberConfig {
	c.starting = f
	return c
}

// WithFree has the replica see free space that a function returns.
func (c MemberConfig) WithFree(f func() int64) MemberConfig {
	c.free = func(string) (int64, error) { return f(), nil }
	return c
}

// WithSnapshotCount has the replica write a snapshot of its log after so many changes.
func (c MemberConfig) WithSnapshotCount(n uint64) MemberConfig { c.snapshotCount = n; return c }

// WithSnapshotCount has the server write a snapshot of its log after so many changes.
func (c ServerConfig) WithSnapshotCount(n uint64) ServerConfig { c.snapshotCount = n; return c }

// Keep has etcd below the member's replica not end until the function that it returns is called.
func (m *Member) Keep() (end func(), err error) {
	_, leave, err := m.view.Load().server.etcd.enter(context.Background())
	return leave, err
}

// Ended is ended.
func (s *Server) Ended() bool { return s.ended() }

// Failed is closed when etcd has given up.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// WithStarted has each start of the replica call a function when etcd runs.
func (c MemberConfig) WithStarted(f func(stopped <-chan struct{})) MemberConfig {
	c.started = f
	return c
}

// FailAside has the files of the member's replica not be set aside; nil: they can be.
func (m *Member) FailAside(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.c.asideFails = err
}

// SetAside ends the replica and sets its files aside. The member looks at its group no more: it would begin another
// replica under the number of this one.
func (m *Member) SetAside() {
	m.stop()
	m.work.Wait()
	m.mu.Lock()
	defer m.unlock()
	m.retire("a test")
}

// KeptAsLearner reports whether the member's files are of a replica that has not voted.
func (m *Member) KeptAsLearner() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known.Learner
}

// Busy has the member wait as for another one over the network, until the function that it returns is called.
func (m *Member) Busy() (end func()) { m.mu.Lock(); return m.mu.Unlock }

// Relay is relay.
type Relay struct{ *relay }

// NewRelay returns a store without a client.
func NewRelay() Relay { return Relay{newRelay()} }

// Use is use.
func (r Relay) Use(c *Client) { r.use(c) }

// DoneOnce is doneOnce.
func DoneOnce(t store.Txn) bool { return doneOnce(t) }

// ChangeLeader has the next n reads of this client fail as a change of the leader has them fail.
func (c *Client) ChangeLeader(n int) { c.cli.KV = &unled{c.cli.KV, n} }

type unled struct {
	clientv3.KV
	n int
}

func (u *unled) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if u.n--; u.n >= 0 {
		return nil, rpctypes.ErrLeaderChanged
	}
	return u.KV.Get(ctx, key, o...)
}

// Hang has the next renewal of a lease by this client wait until its caller gives up, as for a leader of the group that
// was stopped. hung is closed then; renewed gets a value for each renewal that succeeded later.
func (c *Client) Hang() (hung <-chan struct{}, renewed <-chan struct{}) {
	h := &hanging{LeaseClient: c.leasing, hung: make(chan struct{}), renewed: make(chan struct{}, 100)}
	c.leasing = h
	return h.hung, h.renewed
}

type hanging struct {
	pb.LeaseClient
	once          sync.Once
	hung, renewed chan struct{}
}

func (h *hanging) LeaseKeepAlive(ctx context.Context, o ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	first := false
	h.once.Do(func() { first = true })
	if first {
		<-ctx.Done()
		close(h.hung)
		return nil, ctx.Err()
	}
	s, err := h.LeaseClient.LeaseKeepAlive(ctx, o...)
	return &counted{s, h}, err
}

type counted struct {
	pb.Lease_LeaseKeepAliveClient
	h *hanging
}

func (c *counted) Recv() (*pb.LeaseKeepAliveResponse, error) {
	r, err := c.Lease_LeaseKeepAliveClient.Recv()
	if err == nil {
		c.h.renewed <- struct{}{}
	}
	return r, err
}

// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"net/http"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// door is the only way to the etcd server of a replica. etcd ends itself when the group has removed the replica, and a
// call that reads its closed files panics. Before it closes them, etcd waits for the goroutines that were attached to
// it (EtcdServer.GoAttach), and attaches none from then on. So each call that may reach the files is made by inside or
// between enter and leave, which attach it. The other methods read what etcd has in memory.
type door struct {
	unguarded *etcdserver.EtcdServer
	fail      func(why string) // of the replica
	failed    <-chan struct{}  // closed when the replica has failed
}

// errClosed is the answer to a call that the replica no longer takes.
var errClosed = status.Error(codes.Unavailable, "the replica of the store is closed")

// newDoor makes the etcd server. It may end its goroutine.
func newDoor(c config.ServerConfig, fail func(why string), failed <-chan struct{}) (*door, error) {
	e, err := etcdserver.NewServer(c)
	if err != nil {
		return nil, err
	}
	return &door{unguarded: e, fail: fail, failed: failed}, nil
}

// failedPatience is how long a call to a replica that has failed may still take.
const failedPatience = 2 * time.Second

// inside calls f. etcd's files are open until f returns. If etcd begins to end, inside returns errClosed, and the
// context of f ends. A panic of f fails the replica and ends nothing else: it means that etcd cannot make sense of its
// files. So does the end of f's goroutine by etcd's logger.
func inside[T any](ctx context.Context, d *door, f func(context.Context, *etcdserver.EtcdServer) (T, error)) (T,
	error) {
	type outcome struct {
		v   T
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan outcome, 1)
	d.unguarded.GoAttach(func() {
		o := outcome{err: errClosed}
		defer func() {
			if r := recover(); r != nil {
				d.fail(fmt.Sprintf("etcd cannot make sense of its files: %v", r))
			}
			done <- o
		}()
		v, err := f(ctx, d.unguarded)
		o = outcome{v, err}
	})
	failed := d.failed
	var late <-chan time.Time
	for {
		select {
		case o := <-done:
			return o.v, o.err
		case <-d.unguarded.StoppingNotify():
			return *new(T), errClosed
		case <-failed:
			failed, late = nil, time.After(failedPatience)
		case <-late:
			return *new(T), errClosed
		}
	}
}

// enter has etcd keep its files open until leave is called. The caller calls leave soon after within has ended.
func (d *door) enter(ctx context.Context) (within context.Context, leave func(), err error) {
	within, cancel := context.WithCancel(ctx)
	in, left := make(chan struct{}), make(chan struct{})
	d.unguarded.GoAttach(func() {
		close(in)
		select {
		case <-left:
		case <-d.unguarded.StoppingNotify():
			cancel()
			<-left
		}
	})
	leave = func() { cancel(); close(left) }
	select {
	case <-in:
		return within, leave, nil
	case <-d.unguarded.StoppingNotify():
		leave()
		return nil, nil, errClosed
	}
}

// unary is a grpc.UnaryServerInterceptor.
func (d *door) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	return inside(ctx, d, func(ctx context.Context, _ *etcdserver.EtcdServer) (any, error) { return next(ctx, req) })
}

// stream is a grpc.StreamServerInterceptor.
func (d *door) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, leave, err := d.enter(ss.Context())
	if err != nil {
		return err
	}
	defer leave()
	return next(srv, &entered{ss, ctx})
}

// entered is a stream with a context of its own.
type entered struct {
	grpc.ServerStream
	ctx context.Context
}

func (e *entered) Context() context.Context { return e.ctx }

// rpc returns a server of all of etcd's calls.
func (d *door) rpc(unary grpc.UnaryServerInterceptor, opts ...grpc.ServerOption) *grpc.Server {
	return v3rpc.Server(d.unguarded, nil, unary, append(opts, grpc.ChainUnaryInterceptor(d.unary),
		grpc.ChainStreamInterceptor(d.stream))...)
}

// peers returns the handler of the other replicas' requests. The streams of raft's messages, which it has in memory, do
// not enter: etcd itself ends them, after the goroutines that it waits for.
func (d *door) peers() http.Handler {
	peers := etcdhttp.NewPeerHandler(d.unguarded.Logger(), d.unguarded)
	mux := http.NewServeMux()
	mux.Handle("/", peers)
	mux.HandleFunc(etcdserver.PeerHashKVPath, func(w http.ResponseWriter, r *http.Request) {
		ctx, leave, err := d.enter(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer leave()
		peers.ServeHTTP(w, r.WithContext(ctx))
	})
	return mux
}

// client returns a client in this process and its leases.
func (d *door) client() (*clientv3.Client, pb.LeaseClient) {
	e := d.unguarded
	c := clientv3.NewCtxClient(context.Background(), clientv3.WithZapLogger(e.Logger()))
	leases := adapter.LeaseServerToLeaseClient(insideLease{v3rpc.NewQuotaLeaseServer(e), d})
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(insideKV{v3rpc.NewQuotaKVServer(e), d}), c)
	c.Watcher = plainContext{clientv3.NewWatchFromWatchClient(
		adapter.WatchServerToWatchClient(insideWatch{v3rpc.NewWatchServer(e), d}), c)}
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(
		adapter.MaintenanceServerToMaintenanceClient(insideMaintenance{v3rpc.NewMaintenanceServer(e, nil), d}), c)
	c.Cluster = clientv3.NewClusterFromClusterClient(
		adapter.ClusterServerToClusterClient(insideCluster{v3rpc.NewClusterServer(e), d}), c)
	return c, leases
}

// unaryInside calls a method of etcd's servers inside d.
func unaryInside[Q, R any](ctx context.Context, d *door, req Q, call func(context.Context, Q) (R, error)) (R, error) {
	return inside(ctx, d, func(ctx context.Context, _ *etcdserver.EtcdServer) (R, error) { return call(ctx, req) })
}

type insideKV struct {
	pb.KVServer
	d *door
}

func (k insideKV) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return unaryInside(ctx, k.d, r, k.KVServer.Range)
}

func (k insideKV) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return unaryInside(ctx, k.d, r, k.KVServer.Put)
}

func (k insideKV) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return unaryInside(ctx, k.d, r, k.KVServer.DeleteRange)
}

func (k insideKV) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return unaryInside(ctx, k.d, r, k.KVServer.Txn)
}

func (k insideKV) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return unaryInside(ctx, k.d, r, k.KVServer.Compact)
}

type insideLease struct {
	pb.LeaseServer
	d *door
}

func (l insideLease) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return unaryInside(ctx, l.d, r, l.LeaseServer.LeaseGrant)
}

func (l insideLease) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return unaryInside(ctx, l.d, r, l.LeaseServer.LeaseRevoke)
}

func (l insideLease) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse,
	error) {
	return unaryInside(ctx, l.d, r, l.LeaseServer.LeaseTimeToLive)
}

func (l insideLease) LeaseLeases(ctx context.Context, r *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	return unaryInside(ctx, l.d, r, l.LeaseServer.LeaseLeases)
}

func (l insideLease) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	return l.d.stream(nil, s, nil, func(_ any, e grpc.ServerStream) error {
		return l.LeaseServer.LeaseKeepAlive(enteredLease{s, e.Context()})
	})
}

type enteredLease struct {
	pb.Lease_LeaseKeepAliveServer
	ctx context.Context
}

func (e enteredLease) Context() context.Context { return e.ctx }

type insideWatch struct {
	pb.WatchServer
	d *door
}

func (w insideWatch) Watch(s pb.Watch_WatchServer) error {
	return w.d.stream(nil, s, nil, func(_ any, e grpc.ServerStream) error {
		return w.WatchServer.Watch(enteredWatch{s, e.Context()})
	})
}

type enteredWatch struct {
	pb.Watch_WatchServer
	ctx context.Context
}

func (e enteredWatch) Context() context.Context { return e.ctx }

type insideMaintenance struct {
	pb.MaintenanceServer
	d *door
}

func (m insideMaintenance) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return unaryInside(ctx, m.d, r, m.MaintenanceServer.Status)
}

type insideCluster struct {
	pb.ClusterServer
	d *door
}

func (c insideCluster) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	return unaryInside(ctx, c.d, r, c.ClusterServer.MemberList)
}

// plainContext is a watcher with contexts that are not printed: printing one reads values that others write.
type plainContext struct{ clientv3.Watcher }

type unprinted struct{ context.Context }

func (unprinted) String() string { return "context" }

func (p plainContext) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return p.Watcher.Watch(unprinted{ctx}, key, opts...)
}

func (d *door) start()                        { d.unguarded.Start() }
func (d *door) ready() <-chan struct{}        { return d.unguarded.ReadyNotify() }
func (d *door) stopping() <-chan struct{}     { return d.unguarded.StoppingNotify() }
func (d *door) stopped() <-chan struct{}      { return d.unguarded.StopNotify() }
func (d *door) mute()                         { d.unguarded.PauseSending() }
func (d *door) stop()                         { d.unguarded.HardStop() }
func (d *door) id() uint64                    { return uint64(d.unguarded.MemberID()) }
func (d *door) cluster() uint64               { return uint64(d.unguarded.Cluster().ID()) }
func (d *door) members() []*membership.Member { return d.unguarded.Cluster().Members() }
func (d *door) self() *membership.Member      { return d.unguarded.Cluster().Member(d.unguarded.MemberID()) }
func (d *door) leader() uint64                { return uint64(d.unguarded.Leader()) }
func (d *door) applied() uint64               { return d.unguarded.AppliedIndex() }
func (d *door) removed(id uint64) bool        { return d.unguarded.IsIDRemoved(id) }
func (d *door) alarms() []*pb.AlarmMember     { return d.unguarded.Alarms() }
func (d *door) yield() error                  { return d.unguarded.TryTransferLeadershipOnShutdown() }

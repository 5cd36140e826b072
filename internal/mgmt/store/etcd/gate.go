// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver"
	leases "go.etcd.io/etcd/server/v3/lease"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weft/internal/mgmt/store"
)

// Caller is what a certificate states about a client of the store.
type Caller struct {
	Name   string // of the member
	Voter  bool   // it may hold a replica
	Roles  bool   // it has a role: it may use more at once than others
	Access Access // nil: it may read and write everything
	// Own is how many octets the caller may write to a key, without the namespace, that it writes as its own; 0: the
	// key is none of those. nil: no key is, and nothing that the caller uses is bounded.
	Own func(key string) int
}

// Access decides whether a caller may read or write the keys from key to end; an empty end means the one key, else it
// is the first key behind the range. Keys are without the namespace.
type Access func(key, end string, write bool) error

// Admit decides about the certificate of a connection, which was verified against the CA; it refuses one that was
// revoked. It may be called on any goroutine, for each call.
type Admit func(*x509.Certificate) (Caller, error)

// open are the calls that the listener serves. Changes of the cluster, of users, of alarms and of files belong to the
// node itself.
var open = map[string]bool{
	"/etcdserverpb.KV/Range": true, "/etcdserverpb.KV/Put": true, "/etcdserverpb.KV/DeleteRange": true,
	"/etcdserverpb.KV/Txn": true, "/etcdserverpb.Watch/Watch": true, "/etcdserverpb.Lease/LeaseGrant": true,
	"/etcdserverpb.Lease/LeaseRevoke": true, "/etcdserverpb.Lease/LeaseKeepAlive": true,
	// Which members there are, and how large the store is.
	"/etcdserverpb.Maintenance/Status": true, "/etcdserverpb.Cluster/MemberList": true,
}

// gate authorises the calls of other nodes.
type gate struct {
	etcd      *door
	namespace string // with a slash at its end
	admit     Admit  // nil: every connection may do all that is open
	use       *quotas
	count     *ListenerCounters
	withheld  *atomic.Pointer[error] // the answer to every call; nil within: they are served
}

// refusedLinger is how long a connection that is refused stays open, for the answer.
const refusedLinger = 100 * time.Millisecond

func closeSoon(c net.Conn) { time.AfterFunc(refusedLinger, func() { _ = c.Close() }) }

// refused is the answer to a call that is not allowed. An error with a status of its own is the answer as it is.
func refused(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.PermissionDenied, err.Error())
}

// server returns a gRPC server that serves what is open.
func (g *gate) server(opts ...grpc.ServerOption) *grpc.Server {
	opts = append(opts, grpc.Creds(shaken{}), grpc.InTapHandle(g.begin), grpc.ChainStreamInterceptor(g.stream))
	return g.etcd.rpc(g.unary, opts...)
}

// caller returns the client of a call.
func (g *gate) caller(ctx context.Context, method string) (Caller, error) {
	if !open[method] {
		return Caller{}, refused(fmt.Errorf("%s is not for other nodes", method))
	}
	if why := g.withheld.Load(); why != nil {
		return Caller{}, *why
	}
	if g.admit == nil {
		return Caller{}, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Caller{}, refused(errors.New("no connection"))
	}
	info, ok := p.AuthInfo.(connInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return Caller{}, refused(errors.New("no certificate"))
	}
	c, err := g.admit(info.State.VerifiedChains[0][0])
	if err != nil {
		closeSoon(info.conn) // a member that has another certificate by now comes again
		return Caller{}, refused(err)
	}
	return c, nil
}

func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	c, err := g.caller(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if c.Own == nil {
		return g.serve(ctx, c, req, next)
	}
	if err := few(c, req); err != nil {
		return nil, g.beyond(err)
	}
	resp, err := g.run(ctx, c, func() (any, error) { return g.serve(ctx, c, req, next) })
	return resp, g.beyond(err)
}

// serve makes a call that its caller may make.
func (g *gate) serve(ctx context.Context, c Caller, req any, next grpc.UnaryHandler) (any, error) {
	if err := g.authorise(ctx, c, req); err != nil {
		return nil, refused(err)
	}
	if err := ctx.Err(); err != nil { // raft may propose it none the less
		return nil, status.FromContextError(err).Err()
	}
	if c.Own == nil {
		return next(ctx, req)
	}
	if err := g.charge(c, req); err != nil {
		return nil, err
	}
	resp, err := next(ctx, req)
	if r, ok := req.(*pb.LeaseRevokeRequest); ok && err == nil {
		g.use.ended(c.Name, r.ID)
	}
	return resp, err
}

// charge counts what a request uses, or refuses it. It chooses the number of a lease.
func (g *gate) charge(c Caller, req any) error {
	now := time.Now()
	switch r := req.(type) {
	case *pb.LeaseGrantRequest:
		if time.Duration(r.TTL) > store.MaxTTL/time.Second {
			return exceeded("a lease lives for %v at most", store.MaxTTL)
		}
		if err := g.use.spend(c.Name, 0, now); err != nil {
			return err
		}
		id, err := g.use.lease(c.Name, now, g.leases)
		r.ID = id
		return err
	case *pb.LeaseRevokeRequest:
		return g.use.spend(c.Name, 0, now)
	}
	octets, err := g.written(c, req)
	if err != nil || octets == 0 {
		return err
	}
	return g.use.spend(c.Name, octets, now)
}

// written returns how many octets a request writes to keys of the caller's own, its keys among them, or why one is too
// long.
func (g *gate) written(c Caller, req any) (octets int, err error) {
	own := func(key []byte) int { return c.Own(strings.TrimPrefix(string(key), g.namespace)) }
	switch r := req.(type) {
	case *pb.PutRequest:
		most := own(r.Key)
		if most == 0 {
			return 0, nil
		}
		if len(r.Value) > most {
			return 0, exceeded("%s has %d octets, and %s writes %d there at most", shortKey(r.Key), len(r.Value), c.Name,
				most)
		}
		return len(r.Key) + len(r.Value), nil
	case *pb.DeleteRangeRequest:
		if own(r.Key) == 0 {
			return 0, nil
		}
		return len(r.Key), nil
	case *pb.TxnRequest:
		for _, list := range [][]*pb.RequestOp{r.Success, r.Failure} {
			for _, op := range list {
				n, err := g.written(c, operation(op))
				if err != nil {
					return 0, err
				}
				octets += n
			}
		}
	}
	return octets, nil
}

// leases returns the leases that this replica has.
func (g *gate) leases() (map[int64]bool, error) {
	r, err := inside(context.Background(), g.etcd, func(ctx context.Context, e *etcdserver.EtcdServer) (
		*pb.LeaseLeasesResponse, error) {
		return e.LeaseLeases(ctx, &pb.LeaseLeasesRequest{}) // it waits for nothing
	})
	if err != nil {
		return nil, err
	}
	list := make(map[int64]bool, len(r.Leases))
	for _, l := range r.Leases {
		list[l.ID] = true
	}
	return list, nil
}

func (g *gate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c, err := g.caller(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	s := &guarded{ServerStream: ss, g: g, c: c, method: info.FullMethod, live: map[int64]bool{}}
	if c.Own != nil {
		if err := g.use.stream(c.Name, c.bounds().streams); err != nil {
			return g.beyond(err)
		}
		defer func() { g.use.left(c.Name, int(s.watches.Load())) }()
	}
	return next(srv, s)
}

// guarded authorises each message of a stream. A caller that was removed meanwhile loses the stream.
type guarded struct {
	grpc.ServerStream
	g      *gate
	c      Caller
	method string
	// Of a caller with bounds: how many watches there are or are about to be, and their numbers, of SendMsg.
	watches atomic.Int64
	live    map[int64]bool
}

func (s *guarded) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if _, err := s.g.caller(s.Context(), s.method); err != nil {
		return err
	}
	if err := s.g.authorise(s.Context(), s.c, m); err != nil {
		return refused(err)
	}
	if w, ok := m.(*pb.WatchRequest); ok && s.c.Own != nil && w.GetCreateRequest() != nil {
		if err := s.g.use.watch(s.c.Name); err != nil {
			return s.g.beyond(err)
		}
		s.watches.Add(1)
	}
	return nil
}

func (s *guarded) SendMsg(m any) error {
	if _, err := s.g.caller(s.Context(), s.method); err != nil {
		return err
	}
	if w, ok := m.(*pb.WatchResponse); ok && s.c.Own != nil {
		s.count(w)
		if err := s.g.use.answer(s.Context(), s.c.Name, int64(proto.Size(w)), s.c.bounds().answers); err != nil {
			return s.g.beyond(err)
		}
	}
	return s.ServerStream.SendMsg(m)
}

// count notes the begin or the end of a watch. A watch may be reported to have ended more than once.
func (s *guarded) count(w *pb.WatchResponse) {
	switch {
	case w.Created && !w.Canceled:
		s.live[w.WatchId] = true
	case w.Canceled && (w.Created || s.live[w.WatchId]):
		if !w.Created {
			delete(s.live, w.WatchId)
		}
		s.watches.Add(-1)
		s.g.use.unwatch(s.c.Name)
	}
}

// authorise decides about one request. What it does not know it refuses.
func (g *gate) authorise(ctx context.Context, c Caller, req any) error {
	if c.Access == nil {
		return nil
	}
	switch r := req.(type) {
	case *pb.RangeRequest:
		return g.keys(c, r.Key, r.RangeEnd, false)
	case *pb.PutRequest:
		if err := errors.Join(g.keys(c, r.Key, nil, true), g.before(c, r.PrevKv, r.Key, nil)); err != nil {
			return err
		}
		return g.lease(ctx, c, r.Lease)
	case *pb.DeleteRangeRequest:
		return errors.Join(g.keys(c, r.Key, r.RangeEnd, true), g.before(c, r.PrevKv, r.Key, r.RangeEnd))
	case *pb.TxnRequest:
		return g.txn(ctx, c, r, 0)
	case *pb.WatchRequest:
		if w := r.GetCreateRequest(); w != nil {
			if w.PrevKv && c.Own != nil {
				return errors.New("a watch of this member has no earlier values")
			}
			return g.keys(c, w.Key, w.RangeEnd, false)
		}
		return nil
	case *pb.LeaseGrantRequest:
		if r.ID != 0 {
			return errors.New("the store chooses the number of a lease")
		}
		return nil
	case *pb.LeaseRevokeRequest:
		return g.lease(ctx, c, r.ID)
	case *pb.LeaseKeepAliveRequest:
		err := g.lease(ctx, c, r.ID)
		if errors.Is(err, errNoLease) {
			return nil // the answer is that it has ended
		}
		return err
	case *pb.StatusRequest, *pb.MemberListRequest:
		return nil
	}
	return fmt.Errorf("%T is not for other nodes", req)
}

// maxNesting bounds transactions within transactions.
const maxNesting = 4

func (g *gate) txn(ctx context.Context, c Caller, t *pb.TxnRequest, depth int) error {
	if depth > maxNesting {
		return errors.New("the transaction has too many others in it")
	}
	for _, x := range t.Compare {
		if err := g.keys(c, x.Key, x.RangeEnd, false); err != nil {
			return err
		}
	}
	for _, list := range [][]*pb.RequestOp{t.Success, t.Failure} {
		for _, op := range list {
			var err error
			switch r := op.Request.(type) {
			case *pb.RequestOp_RequestRange:
				err = g.authorise(ctx, c, r.RequestRange)
			case *pb.RequestOp_RequestPut:
				err = g.authorise(ctx, c, r.RequestPut)
			case *pb.RequestOp_RequestDeleteRange:
				err = g.authorise(ctx, c, r.RequestDeleteRange)
			case *pb.RequestOp_RequestTxn:
				err = g.txn(ctx, c, r.RequestTxn, depth+1)
			default:
				err = errors.New("an operation of the transaction is unknown")
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// before authorises a write that also reads the value before it.
func (g *gate) before(c Caller, reads bool, key, end []byte) error {
	if !reads {
		return nil
	}
	return g.keys(c, key, end, false)
}

// lastKey is behind every key of a namespace.
const lastKey = "\xff"

// keys authorises a range of etcd's keys.
func (g *gate) keys(c Caller, key, end []byte, write bool) error {
	k, in := strings.CutPrefix(string(key), g.namespace)
	if !in {
		return fmt.Errorf("%s: the key %s is of another fabric", c.Name, shortKey(key))
	}
	e := ""
	switch {
	case len(end) == 0:
	case string(end) == "\x00":
		return fmt.Errorf("%s: the range from %s does not end", c.Name, shortKey(key))
	default:
		if e, in = strings.CutPrefix(string(end), g.namespace); !in {
			// The first key behind the namespace ends the range of all of it.
			if string(end) != g.namespace[:len(g.namespace)-1]+"0" {
				return fmt.Errorf("%s: the range to %s is of another fabric", c.Name, shortKey(end))
			}
			e = lastKey
		}
		if e == "" {
			e = "\x00"
		}
	}
	return c.Access(k, e, write)
}

func shortKey(k []byte) string { return fmt.Sprintf("%.64q", k) }

// errNoLease is etcd's answer where there is no such lease.
var errNoLease = rpctypes.ErrGRPCLeaseNotFound

// lease authorises the use of a lease: every key that ends with it is one that the caller may write. Otherwise a member
// could end the term of the manager, or keep that of a dead one. Where the keys cannot be found out, the call is
// refused as one to try again: the caller chooses its deadline, and may choose one before which there is no answer.
func (g *gate) lease(ctx context.Context, c Caller, id int64) error {
	if id == 0 {
		return nil
	}
	if id < 0 || id == math.MaxInt64 {
		return errors.New("there is no such lease")
	}
	l, err := inside(ctx, g.etcd, func(ctx context.Context, e *etcdserver.EtcdServer) (*pb.LeaseTimeToLiveResponse,
		error) {
		return e.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: id, Keys: true})
	})
	switch {
	case errors.Is(err, leases.ErrLeaseNotFound):
		return errNoLease
	case err != nil:
		return status.Errorf(codes.Unavailable, "it cannot be found out which keys the lease has: %v", err)
	}
	for _, k := range l.Keys {
		if err := g.keys(c, k, nil, true); err != nil {
			return err
		}
	}
	return nil
}

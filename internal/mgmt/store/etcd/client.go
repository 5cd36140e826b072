// SPDX-License-Identifier: Apache-2.0

// Package etcd keeps a store in etcd: in a server embedded in this process, or
// in a cluster reached by its addresses.
//
// What comes in: a directory to keep the data in, or endpoints; what goes out:
// Clients, which are stores, and for an embedded server its address if other
// nodes shall use it too. Called by node. It must never end the process: what
// would make etcd exit makes this store unavailable. Why etcd, which version
// and what it costs is in docs/adr/0008-etcd.md.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/grpclog"

	"weft/internal/mgmt/store"
)

// DefaultNamespace is what the keys of a fabric begin with in etcd.
const DefaultNamespace = "weft"

// DefaultTimeout bounds how long a call waits for the answer of etcd.
const DefaultTimeout = 5 * time.Second

// gRPC has one logger in a process and prints to standard error by default.
// What it would print, calls return.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// ClientConfig configures the connection to a cluster. Zero means default, except for Endpoints.
type ClientConfig struct {
	Endpoints []string    // URLs as http://10.0.0.1:2379; with https, TLS is used
	TLS       *tls.Config // for https; nil: the system's roots, no client certificate
	User      string      // of etcd's own authentication, with Password; empty: none
	Password  string
	Namespace string        // of this fabric's keys; DefaultNamespace
	Timeout   time.Duration // of one call; DefaultTimeout
	Log       *slog.Logger  // nil: discarded
	// Members: the endpoints are members of the fabric of this node, which find each other by themselves.
	Members bool
}

// Client is a store in etcd.
type Client struct {
	cli       *clientv3.Client
	leasing   pb.LeaseClient // of cli
	namespace string         // with a slash at its end
	timeout   time.Duration
	server    *Server // embedded; nil when etcd is elsewhere
	members   bool    // ClientConfig.Members

	ctx  context.Context // ends with Close
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	leases  map[*lease]struct{}
	refused map[string]error // why the watch of a tree gets nothing at present
	calls   sync.WaitGroup   // calls, watches and leases; nothing is added once closed
}

var _ store.Store = (*Client)(nil)

// Connect returns a client of a cluster. It does not wait until the cluster answers: a node starts
// without it, and calls return that it is unavailable.
func Connect(c ClientConfig) (*Client, error) {
	if len(c.Endpoints) == 0 {
		return nil, &store.Error{Kind: store.ErrInvalid, What: "cannot use a store", Why: "it has no address",
			Fix: "weft up --store http://10.0.0.1:2379"}
	}
	secure := strings.HasPrefix(c.Endpoints[0], "https:")
	for _, e := range c.Endpoints {
		if err := checkURL(e); err != nil {
			return nil, err
		}
		// etcd's client would drop the certificate without a word.
		if strings.HasPrefix(e, "https:") != secure || c.TLS != nil && !secure {
			return nil, &store.Error{Kind: store.ErrInvalid, What: "cannot use the store " + strings.Join(c.Endpoints,
				","),
				Why: "with a certificate, or https in one address, all must be https",
				Fix: "weft up --store https://10.0.0.1:2379"}
		}
	}
	tlsConfig := c.TLS
	if tlsConfig == nil && secure {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	var connecting atomic.Bool // etcd's client would wait for a token before it can be used
	connecting.Store(true)
	defer connecting.Store(false)
	later := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if connecting.Load() && method == "/etcdserverpb.Auth/Authenticate" {
			return rpctypes.ErrGRPCAuthNotEnabled // it authenticates with the first call
		}
		return next(ctx, method, req, reply, cc, opts...)
	}
	cli, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Endpoints,
		TLS:                  tlsConfig,
		Username:             c.User,
		Password:             c.Password,
		DialKeepAliveTime:    10 * time.Second, // less is not allowed by gRPC
		DialKeepAliveTimeout: 3 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(explain, later),
			// A store that is back is found within seconds, however long it was away.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
					MaxDelay: 2 * time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
		},
		Logger: bridge(c.Log, nil, nil),
	})
	if err != nil {
		return nil, &store.Error{Kind: store.ErrInvalid, What: "cannot use the store " + strings.Join(c.Endpoints,
			","), Why: err.Error(),
			Fix: "weft up --store http://10.0.0.1:2379", Err: err}
	}
	x, err := newClient(cli, pb.NewLeaseClient(cli.ActiveConnection()), c.Namespace, c.Timeout)
	if err == nil {
		x.members = c.Members
	}
	return x, err
}

func newClient(cli *clientv3.Client, leasing pb.LeaseClient, namespace string, timeout time.Duration) (*Client, error) {
	namespace = cmp.Or(namespace, DefaultNamespace)
	if err := store.CheckKey(namespace); err != nil {
		_ = cli.Close() // nothing runs on it yet
		return nil, err
	}
	c := &Client{cli: cli, leasing: leasing, namespace: namespace + "/", timeout: cmp.Or(timeout, DefaultTimeout),
		leases: map[*lease]struct{}{}, refused: map[string]error{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// SetEndpoints changes the addresses of the cluster.
func (c *Client) SetEndpoints(urls []string) { c.cli.SetEndpoints(urls...) }

// begin makes the context of one call: it ends with the caller's, with the
// client, and at the client's limit. The caller calls end.
func (c *Client) begin(ctx context.Context) (call context.Context, end func(), err error) {
	if err := c.enter(); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		c.calls.Done()
		return nil, nil, err
	}
	if c.server != nil && c.server.down() != "" {
		c.calls.Done()
		return nil, nil, c.serverEnded()
	}
	call, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), c.timeout)
	unhook := context.AfterFunc(c.ctx, cancel)
	return call, func() {
		unhook()
		cancel()
		c.calls.Done()
	}, nil
}

// over reports whether another client takes the place of this one: it was closed, or the replica of its server was
// removed from the group.
func (c *Client) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed || c.server != nil && c.server.down() == removedWhy
}

// enter counts something that Close waits for.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return store.Closed()
	}
	c.calls.Add(1)
	return nil
}

// Get implements store.Store.
func (c *Client) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := store.CheckKey(key); err != nil {
		return store.Entry{}, err
	}
	call, end, err := c.begin(ctx)
	if err != nil {
		return store.Entry{}, err
	}
	defer end()
	resp, err := c.read(call, c.namespace+key)
	if err != nil {
		return store.Entry{}, c.failed(ctx, "read "+key, err)
	}
	if len(resp.Kvs) == 0 {
		return store.Entry{}, store.NotFound(key)
	}
	return c.entry(resp.Kvs[0]), nil
}

// read is Get of etcd. A read that a change of the leader ended begins again, with the next one: only a client over the
// network does so by itself.
func (c *Client) read(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for {
		resp, err := c.cli.Get(ctx, key, o...)
		if !errors.Is(err, rpctypes.ErrLeaderChanged) || ctx.Err() != nil {
			return resp, err
		}
	}
}

// List implements store.Store.
func (c *Client) List(ctx context.Context, tree string) (store.Listing, error) {
	if err := store.CheckTree(tree); err != nil {
		return store.Listing{}, err
	}
	call, end, err := c.begin(ctx)
	if err != nil {
		return store.Listing{}, err
	}
	defer end()
	resp, err := c.read(call, c.prefix(tree), clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey,
		clientv3.SortAscend))
	if err != nil {
		return store.Listing{}, c.failed(ctx, "list the store", err)
	}
	l := store.Listing{Rev: store.Rev(resp.Header.Revision)}
	for _, kv := range resp.Kvs {
		l.Entries = append(l.Entries, c.entry(kv))
	}
	return l, nil
}

// prefix is what the keys of a tree begin with in etcd.
func (c *Client) prefix(tree string) string {
	if tree == "" {
		return c.namespace
	}
	return c.namespace + tree + "/"
}

// Txn implements store.Store.
func (c *Client) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	if err := store.CheckTxn(t); err != nil {
		return 0, err
	}
	call, end, err := c.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()

	// The keys of the conditions are read in the same revision, to determine which condition is false.
	var ifs []clientv3.Cmp
	var then, reads []clientv3.Op
	if t.Fence != (store.Fence{}) {
		key := c.namespace + t.Fence.Key
		ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(key), "=", int64(t.Fence.Created)),
			clientv3.Compare(clientv3.LeaseValue(key), "=", int64(t.Fence.Lease)))
		reads = append(reads, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	for _, cond := range t.If {
		key := c.namespace + cond.Key
		ifs = append(ifs, compare(key, cond))
		reads = append(reads, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	for _, op := range t.Do {
		key := c.namespace + op.Key
		if op.Delete {
			then = append(then, clientv3.OpDelete(key))
		} else {
			then = append(then, clientv3.OpPut(key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease))))
		}
	}
	resp, err := c.cli.Txn(call).If(ifs...).Then(then...).Else(reads...).Commit()
	if err != nil {
		return 0, c.txnFailed(ctx, t, err)
	}
	if resp.Succeeded {
		return store.Rev(resp.Header.Revision), nil
	}
	return 0, refusal(t, resp)
}

func compare(key string, cond store.Cond) clientv3.Cmp {
	switch cond.Test {
	case store.IsAbsent:
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	case store.IsPresent:
		return clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
	}
	return clientv3.Compare(clientv3.ModRevision(key), "=", int64(cond.Rev))
}

// refusal returns why a transaction was not applied, from the values that were read: the fence's key
// first, then the conditions' in their order.
func refusal(t store.Txn, resp *clientv3.TxnResponse) error {
	var found []store.Entry
	for _, r := range resp.Responses {
		var e store.Entry
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
			e = store.Entry{Created: store.Rev(kvs[0].CreateRevision), Rev: store.Rev(kvs[0].ModRevision),
				Lease: store.LeaseID(kvs[0].Lease)}
		}
		found = append(found, e)
	}
	if t.Fence != (store.Fence{}) {
		if !t.Fence.HeldBy(found[0]) {
			return store.TermOver(t.Fence)
		}
		found = found[1:]
	}
	i := 0
	for i < len(t.If)-1 && t.If[i].Holds(found[i].Rev) {
		i++
	}
	return store.Conflict(t.If[i], found[i].Rev)
}

// Close implements store.Store. Leases of an etcd that does not answer are
// left to end by themselves.
func (c *Client) Close() error { return c.end(true) }

func (c *Client) end(revoke bool) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.calls.Wait()
		return nil
	}
	c.closed = true
	leases := c.leases
	c.leases = nil
	c.mu.Unlock()

	if revoke && len(leases) > 0 {
		ctx, stop := context.WithTimeout(c.ctx, min(c.timeout, time.Second))
		var all sync.WaitGroup
		for l := range leases {
			all.Go(func() { _, _ = c.cli.Revoke(ctx, clientv3.LeaseID(l.id)) })
		}
		all.Wait()
		stop()
	}
	c.stop()
	c.calls.Wait()
	if c.server != nil {
		c.server.forget(c)
	}
	_ = c.cli.Close() // it reports that its context ended
	return nil
}

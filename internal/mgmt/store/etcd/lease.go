// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"weft/internal/mgmt/store"
)

// lease is a lease that a goroutine watches over.
type lease struct {
	c    *Client
	id   store.LeaseID
	stop context.CancelFunc // of the renewal
	lost chan struct{}
}

// Lease implements store.Store.
func (c *Client) Lease(ctx context.Context, ttl time.Duration) (store.Lease, error) {
	ttl, err := store.WholeTTL(ttl)
	if err != nil {
		return nil, err
	}
	call, end, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	began := time.Now()
	granted, err := c.cli.Grant(call, int64(ttl/time.Second))
	if err != nil {
		return nil, c.failed(ctx, "take a lease", err)
	}
	l := &lease{c: c, id: store.LeaseID(granted.ID), lost: make(chan struct{})}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, store.Closed() // the lease ends by its time to live
	}
	renewal, stop := context.WithCancel(c.ctx)
	l.stop = stop
	c.leases[l] = struct{}{}
	c.calls.Add(1)
	go l.run(renewal, began, time.Duration(granted.TTL)*time.Second)
	return l, nil
}

// A lease is renewed each quarter of its time to live, and so long may a renewal take: a replica passes it on to the
// leader of the group, and waits seconds for one that was stopped. The stream by which etcd's client renews all leases
// waits with it, and they end meanwhile, though the group has another leader.
const (
	renewals   = 4
	renewAgain = 100 * time.Millisecond // after one that failed
)

// run renews the lease until ctx ends, the lease has, or none succeeded that began within the time to live.
func (l *lease) run(ctx context.Context, renewed time.Time, ttl time.Duration) {
	defer l.c.calls.Done()
	ctx, late := context.WithCancel(ctx)
	end := time.AfterFunc(time.Until(renewed.Add(ttl)), late)
	for wait := ttl / renewals; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		call, stop := context.WithTimeout(ctx, ttl/renewals)
		err := l.renew(call)
		stop()
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			break
		}
		if wait = renewAgain; err == nil {
			end.Reset(time.Until(began.Add(ttl)))
			wait = ttl / renewals
		}
	}
	end.Stop()
	late()
	l.stop()
	l.c.mu.Lock()
	delete(l.c.leases, l)
	l.c.mu.Unlock()
	close(l.lost)
}

// renew renews the lease once. etcd's client would repeat what fails at once without a pause until ctx ends.
func (l *lease) renew(ctx context.Context) error {
	call, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer stop()
	stream, err := l.c.leasing.LeaseKeepAlive(call)
	if err != nil {
		return clientv3.ContextError(ctx, err)
	}
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}) // Recv returns why it failed
	resp, err := stream.Recv()
	if err == nil && resp.TTL <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	return clientv3.ContextError(ctx, err)
}

func (l *lease) ID() store.LeaseID     { return l.id }
func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Renew(ctx context.Context) error {
	call, end, err := l.c.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	err = l.renew(call)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return store.LeaseEnded(l.id)
	}
	if err != nil {
		return l.c.failed(ctx, "renew a lease", err)
	}
	return nil
}

func (l *lease) Revoke(ctx context.Context) error {
	call, end, err := l.c.begin(ctx)
	if err != nil {
		l.stop()
		return err
	}
	defer end()
	l.stop()
	_, err = l.c.cli.Revoke(call, clientv3.LeaseID(l.id))
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return l.c.failed(ctx, "end a lease", err)
	}
	return nil
}

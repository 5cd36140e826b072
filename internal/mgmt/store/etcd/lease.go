// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"time"

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
	granted, err := c.cli.Grant(call, int64(ttl/time.Second))
	if err != nil {
		return nil, c.failed(ctx, "take a lease", err)
	}
	l := &lease{c: c, id: store.LeaseID(granted.ID), lost: make(chan struct{})}
	renewal, stop := context.WithCancel(c.ctx)
	l.stop = stop
	renewed, err := c.cli.KeepAlive(renewal, granted.ID)
	if err != nil {
		stop() // the lease ends by its time to live
		return nil, c.failed(ctx, "renew a lease", err)
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		stop()
		return nil, store.Closed()
	}
	c.leases[l] = struct{}{}
	c.calls.Add(1)
	go l.run(renewed, time.Duration(granted.TTL)*time.Second)
	return l, nil
}

// run ends the lease when its renewal ends or is late. etcd's client would report the latter too, but
// only seconds later.
func (l *lease) run(renewed <-chan *clientv3.LeaseKeepAliveResponse, ttl time.Duration) {
	defer l.c.calls.Done()
	late := time.NewTimer(ttl)
	defer late.Stop()
	for alive := true; alive; {
		select {
		case r, ok := <-renewed:
			if alive = ok; ok {
				late.Reset(time.Duration(r.TTL) * time.Second)
			}
		case <-late.C:
			alive = false
		}
	}
	l.stop()
	l.c.mu.Lock()
	delete(l.c.leases, l)
	l.c.mu.Unlock()
	close(l.lost)
}

func (l *lease) ID() store.LeaseID     { return l.id }
func (l *lease) Lost() <-chan struct{} { return l.lost }

func (l *lease) Renew(ctx context.Context) error {
	call, end, err := l.c.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, err = l.c.cli.KeepAliveOnce(call, clientv3.LeaseID(l.id))
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

// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"weft/internal/mgmt/store"
)

// What the calls of one member may use at one voter. The answer to a call is in memory until its connection has taken
// it, and a member may read no answer.
type callBounds struct {
	calls      int   // under way, from their first octet on; others are refused
	running    int   // of them; others wait
	operations int   // of a request, with its conditions
	answers    int64 // octets that wait for the connections; one answer alone may be longer
	// streams of watches and renewals. Each can have events of the whole history in memory before they are counted.
	streams int
}

var (
	plainBounds = callBounds{calls: 16, running: 4, operations: 32, answers: 16 << 20, streams: 12}
	roleBounds  = callBounds{calls: 128, running: 32, operations: 4 * store.MaxTxn, answers: 64 << 20,
		streams: 64}
)

// maxValues is how many operations of a transaction may return values. Those of Weft return none: a transaction that is
// refused reads the keys of its conditions, without their values.
const maxValues = 4

// maxConnStreams is how many calls and streams one connection has.
const maxConnStreams = 96

func (c Caller) bounds() callBounds {
	if c.Roles {
		return roleBounds
	}
	return plainBounds
}

// owed counts the octets of answers that a connection has not taken.
type owed struct {
	queued, written atomic.Int64 // since the connection began; queued never falls behind
	closed          atomic.Bool
	// least is the lowest number of octets left since the last answer was charged, and since is when it was reached.
	// The lock of the quotas guards both.
	least int64
	since time.Time
}

// stalledAfter is how long a connection may take nothing while calls are refused for it.
const stalledAfter = 10 * time.Second

// stalled reports whether the connection has taken nothing for long, as far as it was looked at; the quotas' lock is
// held.
func (o *owed) stalled(now time.Time) bool {
	if left := o.left(); left < o.least {
		o.least, o.since = left, now
	}
	return o.left() > 0 && now.Sub(o.since) > stalledAfter
}

func (o *owed) left() int64 {
	if o.closed.Load() {
		return 0
	}
	return max(0, o.queued.Load()-o.written.Load())
}

// charge adds an answer. What was written besides answers is no credit for it. The quotas' lock is held.
func (o *owed) charge(octets int64, now time.Time) {
	o.queued.Store(max(o.queued.Load(), o.written.Load()) + octets)
	o.least, o.since = o.left(), now
}

// Write implements net.Conn.
func (h *held) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	h.owed.written.Add(int64(n))
	return n, err
}

// connOf returns the connection of a call, nil if it is not a TLS connection of a front.
func connOf(ctx context.Context) *held {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(connInfo)
	if !ok {
		return nil
	}
	t, ok := info.conn.(*tls.Conn)
	if !ok {
		return nil
	}
	h, _ := t.NetConn().(*held)
	return h
}

// begin counts a call of a member, with its header. It ends with its context.
func (g *gate) begin(ctx context.Context, info *tap.Info) (context.Context, error) {
	c, err := g.caller(ctx, info.FullMethodName)
	if err != nil {
		return ctx, err
	}
	if c.Own == nil || streams[info.FullMethodName] {
		return ctx, nil
	}
	if err := g.use.call(c.Name, c.bounds().calls); err != nil {
		return ctx, g.beyond(err)
	}
	context.AfterFunc(ctx, func() { g.use.called(c.Name) })
	return ctx, nil
}

// streams are the methods of streams. These have bounds of their own.
var streams = map[string]bool{"/etcdserverpb.Watch/Watch": true, "/etcdserverpb.Lease/LeaseKeepAlive": true}

// beyond counts a call that was refused for a bound.
func (g *gate) beyond(err error) error {
	if status.Code(err) == codes.ResourceExhausted {
		g.count.RefusedCalls.Add(1)
	}
	return err
}

// run waits for the turn of a call, makes it, and charges its answer.
func (g *gate) run(ctx context.Context, c Caller, call func() (any, error)) (any, error) {
	b := c.bounds()
	if err := g.use.answer(ctx, c.Name, 0, b.answers); err != nil {
		return nil, err
	}
	done, err := g.use.turn(ctx, c.Name, b.running)
	if err != nil {
		return nil, err
	}
	defer done()
	resp, err := call()
	if m, ok := resp.(proto.Message); ok && err == nil {
		err = g.use.answer(ctx, c.Name, int64(proto.Size(m)), b.answers)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// call counts a call of a member, or refuses it.
func (q *quotas) call(name string, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	if a.calls >= most {
		return exceeded("this member has %d calls under way", a.calls)
	}
	a.calls++
	return nil
}

// called ends a call of a member.
func (q *quotas) called(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(name).calls--
}

// turn waits until fewer than most calls of a member run, and counts one until done is called.
func (q *quotas) turn(ctx context.Context, name string, most int) (done func(), err error) {
	q.mu.Lock()
	a := q.of(name)
	if a.turns == nil {
		a.turns = sync.NewCond(&q.mu)
	}
	defer context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		a.turns.Broadcast()
	})()
	defer q.mu.Unlock()
	for a.running >= most {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		a.turns.Wait()
	}
	a.running++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		a.running--
		a.turns.Broadcast() // a waiting call may have been given up
	}, nil
}

// answer charges the connection of a call with an answer of a member, of 0 octets before it is made. It refuses one
// that would have more octets wait than most, unless none wait. Connections that have taken nothing for long are closed
// then: that frees their answers, and those that were dropped because the caller gave the call up and are still
// counted.
func (q *quotas) answer(ctx context.Context, name string, octets, most int64) error {
	h := connOf(ctx)
	if h == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	a.conns[h] = true
	wait, now := int64(0), time.Now()
	for c := range a.conns {
		if c.owed.closed.Load() {
			delete(a.conns, c)
		}
		wait += c.owed.left()
	}
	if wait > 0 && wait+octets > most {
		for c := range a.conns {
			if c.owed.stalled(now) {
				closeSoon(c)
			}
		}
		return exceeded("this member has not taken %d octets of answers", wait)
	}
	h.owed.charge(octets, now)
	return nil
}

// operations counts the operations and conditions of a request, and of them those that return values.
func operations(req any) (all, values int) {
	switch r := req.(type) {
	case *pb.RangeRequest:
		if !r.KeysOnly && !r.CountOnly {
			values = 1
		}
	case *pb.PutRequest:
		if r.PrevKv {
			values = 1
		}
	case *pb.DeleteRangeRequest:
		if r.PrevKv {
			values = 1
		}
	case *pb.TxnRequest:
		all = len(r.Compare)
		for _, list := range [][]*pb.RequestOp{r.Success, r.Failure} {
			for _, op := range list {
				n, v := operations(operation(op))
				all, values = all+n, values+v
			}
		}
		return all, values
	}
	return 1, values
}

// operation is the request in an operation of a transaction; nil: it is unknown.
func operation(op *pb.RequestOp) any {
	switch r := op.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return r.RequestRange
	case *pb.RequestOp_RequestPut:
		return r.RequestPut
	case *pb.RequestOp_RequestDeleteRange:
		return r.RequestDeleteRange
	case *pb.RequestOp_RequestTxn:
		return r.RequestTxn
	}
	return nil
}

// few refuses a request with too many operations.
func few(c Caller, req any) error {
	all, values := operations(req)
	if most := c.bounds().operations; all > most {
		return exceeded("a request of this member has %d operations and conditions at most, not %d", most, all)
	}
	if values > maxValues {
		return exceeded("%d operations of a request return values at most, not %d", maxValues, values)
	}
	return nil
}

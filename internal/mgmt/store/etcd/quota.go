// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What one member may use of the store at one voter. What it writes of its own is bounded by Caller.Own; each change
// stays in the history until that is forgotten, and so the rate of changes is bounded as well.
const (
	quotaBurst  = 4 << 20  // octets written at once
	quotaRate   = 16 << 10 // octets a second
	quotaChange = 4 << 10  // octets that a change counts at least
	maxLeases   = 64
	maxWatches  = 512
	// leaseSettles is how long after its request a lease may begin.
	leaseSettles = 30 * time.Second
)

// quotas are what members use. Its methods may be called on any goroutine.
type quotas struct {
	mu      sync.Mutex
	members map[string]*account
}

// account is what one member uses.
type account struct {
	spent            float64 // octets of the burst at the time at
	at               time.Time
	leases           map[int64]time.Time // those taken here, and when
	streams, watches int
	calls, running   int
	turns            *sync.Cond     // of calls that wait until running falls
	conns            map[*held]bool // with answers; those that were closed go with the next one
}

func newQuotas() *quotas { return &quotas{members: map[string]*account{}} }

// of returns the account of a member; mu is held. There are as many as members.
func (q *quotas) of(name string) *account {
	a := q.members[name]
	if a == nil {
		a = &account{leases: map[int64]time.Time{}, conns: map[*held]bool{}}
		q.members[name] = a
	}
	return a
}

// exceeded is the answer to a call beyond a bound.
func exceeded(format string, args ...any) error {
	return status.Error(codes.ResourceExhausted, fmt.Sprintf(format, args...))
}

// spend counts a change of some octets by a member.
func (q *quotas) spend(name string, octets int, now time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	if past := now.Sub(a.at).Seconds(); past > 0 {
		a.spent, a.at = max(0, a.spent-past*quotaRate), now
	}
	cost := float64(max(octets, quotaChange))
	if a.spent+cost > quotaBurst {
		return exceeded("this member changes what it has in the store too often: more than %d KiB, and %d KiB a second "+
			"since", quotaBurst>>10, quotaRate>>10)
	}
	a.spent += cost
	return nil
}

// lease takes the number of a new lease of a member, one that no other member can guess: until a key ends with it, the
// number is all that protects it. live returns the leases that there are.
func (q *quotas) lease(name string, now time.Time, live func() (map[int64]bool, error)) (int64, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	if len(a.leases) >= maxLeases {
		there, err := live()
		if err != nil {
			return 0, err
		}
		for id, since := range a.leases {
			if !there[id] && now.Sub(since) > leaseSettles {
				delete(a.leases, id)
			}
		}
	}
	if len(a.leases) >= maxLeases {
		return 0, exceeded("this member has %d leases", len(a.leases))
	}
	id := leaseNumber()
	a.leases[id] = now
	return id, nil
}

// leaseNumber draws the number of a lease.
func leaseNumber() int64 {
	var b [8]byte
	rand.Read(b[:])                                    // never fails
	return int64(binary.BigEndian.Uint64(b[:])>>2) + 1 // neither 0 nor negative
}

// ended gives the place of a lease back.
func (q *quotas) ended(name string, id int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.of(name).leases, id)
}

// stream begins a stream of a member, which has at most most of them.
func (q *quotas) stream(name string, most int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	if a.streams >= most {
		return exceeded("this member has %d streams", a.streams)
	}
	a.streams++
	return nil
}

// left ends a stream of a member with its watches.
func (q *quotas) left(name string, watches int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	a.streams--
	a.watches -= watches
}

// watch begins a watch of a member.
func (q *quotas) watch(name string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.of(name)
	if a.watches >= maxWatches {
		return exceeded("this member has %d watches", a.watches)
	}
	a.watches++
	return nil
}

// unwatch ends a watch of a member.
func (q *quotas) unwatch(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of(name).watches--
}

// numbered is the client of leases in this process. It chooses numbers as the gate does for others.
type numbered struct{ pb.LeaseClient }

// LeaseGrant implements pb.LeaseClient.
func (n numbered) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest, opts ...grpc.CallOption) (
	*pb.LeaseGrantResponse, error) {
	if r.ID == 0 {
		r.ID = leaseNumber()
	}
	return n.LeaseClient.LeaseGrant(ctx, r, opts...)
}

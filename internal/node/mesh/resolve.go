// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
)

// Bounds of resolution.
const (
	// lookup bounds the resolution of the names of one member.
	lookup = 2 * time.Second
	// maxLookups bounds the members of which names are resolved at a time. The others are resolved later.
	maxLookups = 32
	// fresh is how long an answer counts, a failure with it. It is less than patience, so that each address that is
	// tried is of a newer answer.
	fresh = 2 * time.Second
)

// resolver resolves the names of members beside the goroutine that keeps the trunks: names and their servers are those
// that members chose, and an answer may take any time. Its goroutines end with the context of addresses; Close of the
// mesh waits for work.
type resolver struct {
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	now     func() time.Time
	slots   chan struct{}
	done    chan struct{} // of length 1: there is a new answer
	work    sync.WaitGroup

	mu      sync.Mutex // guards what follows; it is held for no call
	answers map[ib.GUID]*answer
}

// answer is what the names of a member resolve to.
type answer struct {
	names []string // HOST:PORT
	busy  bool     // there is none yet
	at    time.Time
	list  []netip.AddrPort
	err   error
}

func newResolver(resolve func(context.Context, string) ([]netip.Addr, error), now func() time.Time) *resolver {
	return &resolver{resolve: resolve, now: now, slots: make(chan struct{}, maxLookups), done: make(chan struct{}, 1),
		answers: map[ib.GUID]*answer{}}
}

// addresses are those at which a member may be reached. It does not wait: where ready is false its names are being
// resolved, list has its literal addresses alone, and done receives a value later.
func (r *resolver) addresses(ctx context.Context, x *member.Record) (list []netip.AddrPort, ready bool, err error) {
	var names []string
	for _, a := range x.Addresses {
		if at, e := netip.ParseAddrPort(a); e == nil {
			list = append(list, at)
		} else {
			names = append(names, a)
		}
	}
	if len(names) > 0 {
		a := r.answer(ctx, x.GUID, names)
		if a == nil {
			return list, false, nil
		}
		list, err = append(list, a.list...), a.err
	}
	switch {
	case len(list) > 0:
		return list, true, nil
	case err == nil:
		err = errors.New("no address of it is known")
	}
	return nil, true, err
}

// answer is a fresh answer for the names of a member, which does not change any more. Without one the resolution
// begins, unless one of the member is under way: a member that changes its names again and again has one at a time.
func (r *resolver) answer(ctx context.Context, g ib.GUID, names []string) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.answers[g]
	switch {
	case a != nil && a.busy:
		return nil
	case a != nil && slices.Equal(a.names, names) && r.now().Sub(a.at) < fresh:
		return a
	}
	a = &answer{names: names, busy: true}
	r.answers[g] = a
	r.work.Go(func() {
		list, err := r.lookup(ctx, names)
		r.mu.Lock()
		a.busy, a.at, a.list, a.err = false, r.now(), list, err
		r.mu.Unlock()
		select {
		case r.done <- struct{}{}:
		default:
		}
	})
	return nil
}

// keep forgets the answers of members without a trunk.
func (r *resolver) keep(want map[ib.GUID]*member.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for g, a := range r.answers {
		if want[g] == nil && !a.busy {
			delete(r.answers, g)
		}
	}
}

// lookup resolves names.
func (r *resolver) lookup(ctx context.Context, names []string) (list []netip.AddrPort, err error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, stop := context.WithTimeout(ctx, lookup)
	defer stop()
	for _, a := range names {
		host, port, e := net.SplitHostPort(a)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		n, e := net.DefaultResolver.LookupPort(ctx, "udp", port)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		ips, e := r.resolve(ctx, host)
		err = errors.Join(err, e)
		for _, ip := range ips {
			list = append(list, netip.AddrPortFrom(ip.Unmap(), uint16(n)))
		}
	}
	return list, err
}

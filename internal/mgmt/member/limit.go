// SPDX-License-Identifier: Apache-2.0

package member

import (
	"net/netip"
	"time"
)

// Bounds of requests to join.
const (
	// sourceBurst and sourceEvery bound the attempts of one source: an IPv4 address, or an IPv6 /64.
	sourceBurst = 20
	sourceEvery = 500 * time.Millisecond
	// allBurst and allEvery bound those of all sources together.
	allBurst = 200
	allEvery = 50 * time.Millisecond
	// maxSources bounds the sources that are counted apart; more share one bucket.
	maxSources = 4096
)

// Limiter bounds attempts by token buckets. The zero value is ready. It belongs to one goroutine or lock.
type Limiter struct {
	all    Bucket
	rest   Bucket
	source map[netip.Prefix]Bucket
	swept  time.Time
}

// Bucket is a token bucket by its debt: the time until which it is empty. The zero value is full.
type Bucket struct{ until time.Time }

// Take takes a token, of which there are burst at once and one more each so often, or reports that there is none.
func (b *Bucket) Take(now time.Time, burst int, every time.Duration) bool {
	if b.until.Before(now) {
		b.until = now
	}
	if b.Wait(now, burst, every) > 0 {
		return false
	}
	b.until = b.until.Add(every)
	return true
}

// Wait is how long it is until there is a token, 0 where there is one.
func (b *Bucket) Wait(now time.Time, burst int, every time.Duration) time.Duration {
	if b.until.Before(now) {
		return 0
	}
	return max(b.until.Sub(now)-time.Duration(burst-1)*every, 0)
}

// Allow counts an attempt of a source, and reports whether it may go on. An attempt that is refused costs nothing.
func (l *Limiter) Allow(from netip.Addr, now time.Time) bool {
	from = from.Unmap().WithZone("")
	bits := from.BitLen()
	if from.Is6() {
		bits = 64
	}
	p, err := from.Prefix(bits)
	if err != nil {
		return false
	}
	l.sweep(now)
	b, known := l.source[p]
	if !known && len(l.source) >= maxSources {
		return l.rest.Take(now, sourceBurst, sourceEvery) && l.all.Take(now, allBurst, allEvery)
	}
	if !b.Take(now, sourceBurst, sourceEvery) || !l.all.Take(now, allBurst, allEvery) {
		return false
	}
	if l.source == nil {
		l.source = map[netip.Prefix]Bucket{}
	}
	l.source[p] = b
	return true
}

// sweep forgets sources with a full bucket.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sourceEvery*sourceBurst {
		return
	}
	l.swept = now
	for p, b := range l.source {
		if !b.until.After(now) {
			delete(l.source, p)
		}
	}
}

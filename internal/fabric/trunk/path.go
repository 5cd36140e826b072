// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"time"

	"weft/internal/proto/mono"
)

// Of the measurement of a path's MTU.
const (
	// BaseDatagram is assumed to pass until a larger datagram was measured: an IPv6 packet of 1280 octets.
	BaseDatagram = 1232
	probeTries   = 3
	probeEvery   = 50 * time.Millisecond
	probeStep    = 16               // difference at which a search ends
	probeAgain   = 30 * time.Second // until a size that did not pass is tried again
	// A path may come to pass less than it did, which no end is told: every so often the limit is proved again. More
	// tries than in a search, since loss must not pass for a hole.
	proveEvery = 5 * time.Second
	proveTries = 6
)

// path is the measurement of the path to one peer: what both ends state bounds it, what a probe of that size proves
// counts.
type path struct {
	own, theirs int // limits of the ends; 0: not known
	good        int // the largest datagram known to pass
	bad         int // the smallest one known not to pass; 0: none
	try         int // being measured; 0: nothing
	tries       int
	number      uint32
	at          mono.Time // of the next probe, or of the next search
	proving     bool      // try is the limit, which passed before
	proved      mono.Time // when a proof of the limit began last
	again       mono.Time // of the next search, during a proof
}

// target is the largest datagram that both ends allow.
func (p *path) target() int {
	t := min(p.own, MaxDatagram)
	if p.theirs > 0 {
		t = min(t, p.theirs)
	}
	return t
}

// limit is the largest datagram to send.
func (p *path) limit() int { return min(max(p.good, BaseDatagram), p.target()) }

// measured reports that the target passes.
func (p *path) measured() bool { return p.theirs > 0 && p.limit() == p.target() && !p.searching() }

// hole reports that less passes than both ends allow.
func (p *path) hole() bool { return p.bad > 0 && !p.searching() && p.limit() < p.target() }

// searching reports that the limit may still rise.
func (p *path) searching() bool { return p.try > 0 && !p.proving }

// most is the number of probes of one size.
func (p *path) most() int {
	if p.proving {
		return proveTries
	}
	return probeTries
}

// follow starts over after a limit of an end changed.
func (p *path) follow() {
	p.good, p.bad = min(p.good, p.target()), 0
	p.probeNow()
}

// probeNow begins a search.
func (p *path) probeNow() {
	p.try, p.tries, p.bad, p.proving = 0, 0, 0, false
	if p.theirs > 0 && p.limit() < p.target() {
		p.try = p.target()
	}
	p.at = 0
}

// next returns a probe that is due.
func (p *path) next(now mono.Time) (q probe, due bool) {
	if p.try == 0 || p.tries == p.most() || p.at > now {
		return q, false
	}
	p.tries++
	p.number++
	p.at = now.Add(probeEvery)
	return probe{p.number, uint32(p.try)}, true
}

// acknowledged handles the proof that a probe arrived, and reports whether the limit changed.
func (p *path) acknowledged(now mono.Time, q probe) bool {
	if int(q.size) != p.try || p.number-q.number >= uint32(p.most()) {
		return false
	}
	if p.proving {
		p.proving, p.try, p.tries, p.at = false, 0, 0, p.again
		return false
	}
	before := p.limit()
	p.good, p.proved = p.try, now
	p.search(now)
	return p.limit() != before
}

// search chooses the next size to measure.
func (p *path) search(now mono.Time) {
	p.tries, p.try, p.at = 0, 0, now.Add(probeAgain)
	lo := max(p.good, BaseDatagram)
	switch {
	case p.bad == 0 && lo < p.target():
		p.try, p.at = p.target(), now
	case p.bad-lo > probeStep:
		p.try, p.at = (lo+p.bad)/2, now
	}
}

// prove begins to measure the limit again, which stays in force meanwhile.
func (p *path) prove(now mono.Time) {
	p.again, p.proved = p.at, now
	p.try, p.tries, p.at, p.proving = p.limit(), 0, now, true
}

// tick lets time pass, and reports whether the status changed.
func (p *path) tick(now mono.Time, up bool) bool {
	switch {
	case !up:
	case p.try > 0 && p.tries == p.most() && p.at <= now:
		shrunk := p.proving
		if shrunk {
			p.good, p.proving = 0, false
		}
		p.bad = p.try
		p.search(now)
		return p.try == 0 || shrunk
	case p.try == 0 && p.bad > 0 && p.at <= now:
		p.probeNow()
	case p.try == 0 && p.good > BaseDatagram && p.proved.Add(proveEvery) <= now:
		p.prove(now)
	}
	return false
}

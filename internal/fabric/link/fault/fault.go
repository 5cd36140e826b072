// SPDX-License-Identifier: Apache-2.0

// Package fault is a stage in front of a link that injects faults: it drops, duplicates, reorders,
// delays and corrupts outgoing packets.
//
// What comes in: bursts from a lane, rules, the time; what goes out: the same bursts, or their
// unaffected packets, to a Link. A lane owns a Stage and calls it like the link it wraps; Packets is
// the same for packets in their bytes, on trunks. Decisions depend only on a rule's seed and on the
// sequence of packets that match it, so that a failure can be repeated. The package never reads a
// clock, and without a matching rule it does not look at a packet.
package fault

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// Link is the link that a Stage wraps.
type Link interface {
	Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result
	// SendCorrupt sends a burst of one packet with one bit inverted, so that the peer refuses it.
	SendCorrupt(now mono.Time, r *pkt.Burst, b *mem.Batch, bit uint32) mem.Result
	Blocked() bool
	Flush(now mono.Time)
}

// Limits.
const (
	// MaxHeld bounds the packets that a Stage delays; packets above it are dropped and counted.
	MaxHeld = 4096
	// MaxDelay bounds Delay and Jitter.
	MaxDelay = 10 * time.Second
	// overtake is by how many packets a reordered one is overtaken at most,
	// and patience how long it waits for them.
	overtake = 8
	patience = 2 * time.Millisecond
)

// Rule selects packets and the faults to inject. Percentages are 0 … 100 of the matching packets, each
// packet decided independently.
type Rule struct {
	ID        int
	Drop      float64
	Duplicate float64 // sent twice
	// Reorder lets later packets overtake: a packet is held until up to eight others have passed, or 2
	// ms. With a Delay, the reordered packet is the one that is not delayed.
	Reorder float64
	Corrupt float64 // one bit, after the ICRC was computed: the peer drops it
	// Every packet is held for Delay, plus up to Jitter; with Jitter order is
	// not kept.
	Delay, Jitter time.Duration
	Seed          uint64
	// Peer and Sources restrict the rule to packets to one GID, and from any of several (the GIDs of a
	// device). Zero and nil match all.
	Peer    ib.GID
	Sources []ib.GID
	// RoCE restricts the rule to packets of Ethernet ports.
	RoCE bool
}

// Validate reports everything that is wrong with r, joined.
func (r *Rule) Validate() error {
	var errs []error
	for _, p := range []struct {
		name string
		v    float64
	}{{"drop", r.Drop}, {"duplicate", r.Duplicate}, {"reorder", r.Reorder}, {"corrupt", r.Corrupt}} {
		if !(p.v >= 0 && p.v <= 100) { // also refuses NaN
			errs = append(errs, fmt.Errorf("%s must be 0 to 100 percent, not %v", p.name, p.v))
		}
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"delay", r.Delay}, {"jitter", r.Jitter}} {
		if d.v < 0 || d.v > MaxDelay {
			errs = append(errs, fmt.Errorf("%s must be 0s to %v, not %v", d.name, MaxDelay, d.v))
		}
	}
	return errors.Join(errs...)
}

func (r *Rule) matches(p *ib.Path) bool {
	return !(r.RoCE && p.Native()) && (r.Peer.IsZero() || r.Peer == p.DGID) &&
		(len(r.Sources) == 0 || slices.Contains(r.Sources, p.SGID))
}

// Counters count what a rule did, in packets.
type Counters struct {
	Packets    uint64 // matched
	Dropped    uint64
	Duplicated uint64
	Reordered  uint64
	Corrupted  uint64
	Delayed    uint64
	Overflow   uint64 // dropped because too many packets were held
}

// Status is a rule and what it has done.
type Status struct {
	Rule
	Counters
}

type active struct {
	Status
	rng *rand.Rand
}

// rules are the rules of a stage, in the order they were added.
type rules []*active

// Stage applies rules to what is sent through it. It belongs to one lane.
type Stage struct {
	rules
	link  Link
	held  mono.Heap[*held]
	count int // packets held or free
	free  []*held
	sent  uint64 // packets that passed, for those that wait to be overtaken
	next  uint64 // when sent reaches this, one of those has been
	run   pkt.Burst
	// batch copies payload into and out of held packets where no batch of the caller is available.
	batch *mem.Batch
	one   [1][]byte
}

// New returns a stage without rules in front of l.
func New(l Link) *Stage { return &Stage{link: l, next: math.MaxUint64, batch: mem.NewBatch(4096)} }

// Add adds a rule, which must be valid, or replaces the one with its ID.
func (s *rules) Add(r Rule) {
	s.Remove(r.ID)
	r.Sources = slices.Clone(r.Sources)
	*s = append(*s, &active{Status{Rule: r}, rand.New(rand.NewPCG(r.Seed, 0x77656674))})
}

// Remove removes a rule and reports whether it was there. Packets that are
// held stay so until their time.
func (s *rules) Remove(id int) bool {
	n := len(*s)
	*s = slices.DeleteFunc(*s, func(a *active) bool { return a.ID == id })
	return len(*s) != n
}

// Rules lists the rules with their counters, in the order they were added.
func (s rules) Rules() []Status {
	out := make([]Status, len(s))
	for i, a := range s {
		out[i] = a.Status
	}
	return out
}

// Held returns the number of packets that are held back.
func (s *Stage) Held() int { return s.held.Len() }

// verdict is what happens to one packet.
type verdict struct {
	drop, twice, corrupt bool
	bit                  uint32
	hold                 time.Duration // for so long …
	pass                 uint64        // … and at most until this many others have passed; 0: no bound
	by                   *active       // the rule that holds it
}

func (v *verdict) clean() bool { return !v.drop && !v.twice && !v.corrupt && v.hold == 0 }

// match reports whether there is a rule for packets on path p.
func (s rules) match(p *ib.Path) bool {
	return slices.ContainsFunc(s, func(a *active) bool { return a.matches(p) })
}

// decide draws the fate of the next packet on path p. Each rule draws the same
// number of values for each packet, so that its decisions do not shift.
func (s rules) decide(p *ib.Path) (v verdict) {
	for _, a := range s {
		if !a.matches(p) {
			continue
		}
		drop, twice, late, bad := a.chance(a.Drop), a.chance(a.Duplicate), a.chance(a.Reorder), a.chance(a.Corrupt)
		bit, pass, jitter := a.rng.Uint32(), 1+a.rng.Uint64N(overtake), time.Duration(a.rng.Float64()*float64(a.Jitter))
		a.Packets++
		if drop {
			a.Dropped++
			return verdict{drop: true}
		}
		if bad {
			a.Corrupted++
			v.corrupt, v.bit = true, bit
		}
		if twice {
			a.Duplicated++
			v.twice = true
		}
		delay := a.Delay + jitter
		switch {
		case late && delay == 0:
			a.Reordered++
			v.hold, v.pass, v.by = v.hold+patience, pass, a
		case late:
			a.Reordered++
		case delay > 0:
			a.Delayed++
			v.hold, v.by = v.hold+delay, a
		}
	}
	return v
}

func (a *active) chance(percent float64) bool { return a.rng.Float64()*100 < percent }

// Send passes on the packets of a burst that no rule selects, in as few bursts as possible, and
// applies the rules to the others. SourceFault reports a packet with a payload that could not be read; the
// packets before it were sent.
func (s *Stage) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	if !s.match(r.Path) {
		res := s.link.Send(now, r, b)
		s.passed(now, uint64(r.Count))
		return res
	}
	clean := uint32(0) // packets [clean, k) are untouched and not sent yet
	for k := range r.Count {
		v := s.decide(r.Path)
		if v.clean() && s.sent+uint64(k-clean)+1 < s.next {
			continue
		}
		end := k
		if v.clean() {
			end = k + 1
		}
		if res := s.part(now, r, clean, end, b); res != mem.OK {
			return res
		}
		clean = k + 1
		if v.clean() {
			continue
		}
		s.cut(r, k, k+1)
		for range v.copies() {
			if res := s.packet(now, &s.run, &v, b); res != mem.OK {
				return res
			}
		}
	}
	return s.part(now, r, clean, r.Count, b)
}

func (v *verdict) copies() int {
	switch {
	case v.drop:
		return 0
	case v.twice:
		return 2
	}
	return 1
}

// part sends packets [from, to) of a burst.
func (s *Stage) part(now mono.Time, r *pkt.Burst, from, to uint32, b *mem.Batch) mem.Result {
	if from == to {
		return mem.OK
	}
	if to-from != r.Count {
		s.cut(r, from, to)
		r = &s.run
	}
	res := s.link.Send(now, r, b)
	s.passed(now, uint64(to-from))
	return res
}

// cut copies packets [from, to) of r to s.run.
func (s *Stage) cut(r *pkt.Burst, from, to uint32) {
	off := int(from * r.MTU)
	n := r.Data.Len - off
	if to < r.Count {
		n = int((to - from) * r.MTU)
	}
	// Those fields of first, middle or last packet that the part has.
	k := from
	if to == r.Count {
		k = to - 1
	}
	s.run = *r
	s.run.Headers = r.Headers.Packet(k, r.Count, n)
	if from == 0 && to == r.Count {
		s.run.Headers = r.Headers
	}
	s.run.PSN = r.PSN.Add(from)
	s.run.Count = to - from
	s.run.Data.Len = n
	if r.Data.Segs == nil {
		s.run.Data.Bytes = r.Data.Bytes[off : off+n]
	} else {
		s.run.Data.Off += uint64(off)
	}
}

// packet sends one packet, or holds a copy of it.
func (s *Stage) packet(now mono.Time, r *pkt.Burst, v *verdict, b *mem.Batch) mem.Result {
	if v.hold > 0 {
		return s.hold(now, r, v, b)
	}
	res := mem.OK
	if v.corrupt {
		res = s.link.SendCorrupt(now, r, b, v.bit)
	} else {
		res = s.link.Send(now, r, b)
	}
	s.passed(now, 1)
	return res
}

// Blocked reports whether the link is.
func (s *Stage) Blocked() bool { return s.link.Blocked() }

// Flush releases the held packets that are due and flushes the link.
func (s *Stage) Flush(now mono.Time) {
	for !s.link.Blocked() {
		h, due := s.held.PopDue(now)
		if !due {
			break
		}
		s.release(now, h)
	}
	s.link.Flush(now)
}

// Deadline returns when Flush must be called next on behalf of held packets.
func (s *Stage) Deadline() mono.Time { return s.held.Next() }

// SPDX-License-Identifier: Apache-2.0

package member

import (
	"fmt"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// copyWindow is how long an incarnation of a node counts as alive after it was seen.
const copyWindow = 30 * time.Second

// Sightings finds identities that two hosts use at once. A restart replaces an incarnation and the old one never
// returns; two hosts with one identity alternate. The zero value is ready. It belongs to one goroutine. Its size is
// bounded by the members: it forgets keys that are not in the roster (Keep).
type Sightings struct {
	keys map[Key]*sighting
}

type sighting struct {
	now, before life
	copied      time.Time // when two were last seen at once
}

// life is an incarnation with its last address.
type life struct {
	incarnation uint64
	address     string
	seen        time.Time
}

// Saw notes that a certificate's key was proved by a node of an incarnation, from an address. It returns a problem
// that names both places where the identity is used twice.
func (s *Sightings) Saw(k Key, name string, incarnation uint64, address string, now time.Time) *problem.Error {
	if s.keys == nil {
		s.keys = map[Key]*sighting{}
	}
	e := s.keys[k]
	if e == nil {
		e = &sighting{}
		s.keys[k] = e
	}
	l := life{incarnation, address, now}
	switch incarnation {
	case e.now.incarnation:
		e.now = l
	case e.before.incarnation:
		// It was replaced and is back: both live.
		e.before, e.now = e.now, l
		if now.Sub(e.before.seen) < copyWindow {
			e.copied = now
		}
	default:
		e.before, e.now = e.now, l
	}
	return e.problem(name, now)
}

func (e *sighting) problem(name string, now time.Time) *problem.Error {
	if e.copied.IsZero() || now.Sub(e.copied) >= copyWindow {
		return nil
	}
	return problem.New("the identity of "+name+" is used twice",
		fmt.Sprintf("nodes at %s and at %s have its key at once", printable(e.before.address),
			printable(e.now.address)),
		fmt.Sprintf("weft member remove --force %s; then weft leave and weft join on each of the two hosts", name))
}

// Copied returns the problem of a key, nil where it has none.
func (s *Sightings) Copied(k Key, name string, now time.Time) *problem.Error {
	if e := s.keys[k]; e != nil {
		return e.problem(name, now)
	}
	return nil
}

// Keep forgets the keys that are in no record of the roster.
func (s *Sightings) Keep(r *Roster) {
	for k := range s.keys {
		if r.byKey(k) == nil {
			delete(s.keys, k)
		}
	}
}

// Clocks finds members with a clock that differs from this one's. The zero value is ready. It belongs to one goroutine.
type Clocks struct {
	last map[ib.GUID]time.Time // the clock in the last report
	off  map[ib.GUID]time.Duration
}

// Read takes a member's report as it is read at now, within late of its writing. It returns a problem where the clocks
// differ by more than skew. A report that was read before leaves the answer as it was.
func (c *Clocks) Read(p *Report, name string, now time.Time, late, skew time.Duration) *problem.Error {
	if c.last == nil {
		c.last, c.off = map[ib.GUID]time.Time{}, map[ib.GUID]time.Duration{}
	}
	before, seen := c.last[p.GUID]
	c.last[p.GUID] = p.Clock
	if !seen || !before.Equal(p.Clock) {
		d := p.Clock.Sub(now)
		switch {
		case d < 0 && !seen: // it may have been written at any time before
			d = 0
		case d < 0:
			d = min(d+late, 0)
		}
		c.off[p.GUID] = d
	}
	d := c.off[p.GUID]
	if d.Abs() <= skew {
		return nil
	}
	which := "ahead of"
	if d < 0 {
		which = "behind"
	}
	return problem.New("the clock of "+name+" is wrong",
		fmt.Sprintf("it is %v %s that of this host, at most %v is allowed",
			d.Abs().Round(time.Second), which, skew), "set the clocks of both hosts: timedatectl set-ntp true")
}

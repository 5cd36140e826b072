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

// life is an incarnation with the last sighting of it.
type life struct {
	Sighting
	seen time.Time
}

// Sighting is what a node of an incarnation wrote with a key.
type Sighting struct {
	Incarnation uint64
	Address     string
	Written     time.Time // by the node's own clock; zero: no node wrote it
}

// Saw notes a sighting of a key at the time now. It returns a problem that names both places where the identity is
// used twice. What a node wrote before shows no life of that node: it is in the store until its next incarnation has
// written, and a restore of the store brings it back. Of two sightings with one address, which have one clock, the
// one that was written earlier is of the node that ended.
func (s *Sightings) Saw(k Key, name string, x Sighting, now time.Time) *problem.Error {
	if s.keys == nil {
		s.keys = map[Key]*sighting{}
	}
	e := s.keys[k]
	if e == nil {
		e = &sighting{}
		s.keys[k] = e
	}
	l, last := life{x, now}, e.now.Written
	switch {
	case x.Written.IsZero():
	case x.Incarnation == e.now.Incarnation:
		if x.Written.After(last) {
			e.now = l
		}
	case x.Address == e.now.Address && !x.Written.After(last):
	case x.Incarnation != e.before.Incarnation:
		e.before, e.now = e.now, l
	case x.Written.After(e.before.Written):
		// It was replaced and is back: both live.
		e.before, e.now = e.now, l
		if now.Sub(e.before.seen) < copyWindow {
			e.copied = now
		}
	}
	return e.problem(name, now)
}

func (e *sighting) problem(name string, now time.Time) *problem.Error {
	if e.copied.IsZero() || now.Sub(e.copied) >= copyWindow {
		return nil
	}
	where := fmt.Sprintf("nodes at %s and at %s have", printable(e.before.Address), printable(e.now.Address))
	if e.before.Address == e.now.Address { // a copied directory has the address that weft join --address named
		where = fmt.Sprintf("two nodes, both with the address %s, have", printable(e.now.Address))
	}
	return problem.New("the identity of "+name+" is used twice", where+" its key at once",
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
// differ by more than skew. A report that was read before leaves the answer as it was, as does one that a restore of
// the store ended, which has no time.
func (c *Clocks) Read(p *Report, name string, now time.Time, late, skew time.Duration) *problem.Error {
	if c.last == nil {
		c.last, c.off = map[ib.GUID]time.Time{}, map[ib.GUID]time.Duration{}
	}
	before, seen := c.last[p.GUID]
	if !p.Clock.IsZero() {
		c.last[p.GUID] = p.Clock
	}
	if !p.Clock.IsZero() && (!seen || !before.Equal(p.Clock)) {
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

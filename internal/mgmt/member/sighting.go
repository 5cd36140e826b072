// SPDX-License-Identifier: Apache-2.0

package member

import (
	"fmt"
	"time"

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

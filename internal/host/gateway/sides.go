// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"
	"time"

	"weft/internal/proto/mono"
)

// side is where a station is.
type side uint8

const (
	nowhere side = iota
	outside      // at the host's interface
	inside       // in the VESW
)

const (
	// hold is how long a station stays on its side after it was heard last, though it is heard on the
	// other: a frame that went round comes sooner, a station that moved is believed later.
	hold = 5 * time.Second
	// age is after how long a station is forgotten.
	age = 300 * time.Second
	// echo is how long a frame to a group is kept from passing again the same way: one that goes round comes sooner, one that is
	// sent again later.
	echo = 200 * time.Millisecond
	// Stations known at a time, and places to look for one in. The one heard longest ago of those gives way.
	maxStations = 4096
	ways        = 8
	// maxTold is how many stations outside are told of.
	maxTold = 1024
	// Frames to groups that are remembered.
	maxRecent = 4096
)

// sides knows on which side stations are, by the source addresses of frames, so that none goes back to where it came from, by
// whatever way it came round.
type sides struct {
	table  [maxStations]station
	recent [maxRecent]recent
	listed bool // the last list is what the table says
}

type station struct {
	mac   uint64 // little-endian; 0: none
	side  side
	told  bool      // to be told of: outside, with a local address
	seen  mono.Time // on its side
	fixed bool      // never forgotten or moved
}

// recent is a frame to a group that passed.
type recent struct {
	hash uint64
	from side
	at   mono.Time
}

func number(mac []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(mac)) | uint64(binary.LittleEndian.Uint16(mac[4:]))<<32
}

// find returns the place of a station, which may be another's or nobody's.
func (s *sides) find(mac uint64) *station {
	set := s.table[mac*0x9e3779b97f4a7c15>>32%(maxStations/ways)*ways:][:ways]
	worst := &set[0]
	for i := range set {
		e := &set[i]
		switch {
		case e.mac == mac:
			return e
		case worst.mac == 0 || e.fixed:
		case e.mac == 0 || worst.fixed || e.seen < worst.seen:
			worst = e
		}
	}
	return worst
}

// fix puts a station outside for good: the host's own address.
func (s *sides) fix(mac [6]byte) {
	for i := range s.table {
		if s.table[i].fixed {
			s.table[i] = station{}
		}
	}
	if n := number(mac[:]); n != 0 {
		*s.find(n) = station{mac: n, side: outside, fixed: true}
		s.listed = false
	}
}

// where is the side of an address, nowhere if it is not known.
func (s *sides) where(now mono.Time, mac []byte) side {
	n := number(mac)
	if e := s.find(n); e.mac == n && (e.fixed || now.Sub(e.seen) < age) {
		return e.side
	}
	return nowhere
}

// pass notes a frame that came from a side, and tells whether it may go to the other: its sender is known to be there,
// or is new. loop tells that it was heard on the other side just now.
func (s *sides) pass(now mono.Time, from side, frame []byte) (ok, loop bool) {
	src := number(frame[6:12])
	if src == 0 || frame[6]&1 != 0 {
		return false, false
	}
	e := s.find(src)
	switch {
	case e.mac != src:
		if e.fixed {
			return true, false // no place: a set of fixed ones
		}
		s.listed = s.listed && !e.told
		*e = station{mac: src}
		fallthrough
	case e.side != from && !e.fixed && now.Sub(e.seen) >= hold:
		e.side = from
		if told := from == outside && frame[6]&2 != 0; told != e.told {
			e.told, s.listed = told, false
		}
	case e.side != from:
		return false, true
	}
	e.seen = now
	return true, false
}

// again notes that a frame to a group passes, by a hash of it, and tells whether it did so just now: then it went round, by a
// bridge that takes its sender for one of the other side.
func (s *sides) again(now mono.Time, from side, hash uint64) bool {
	r := &s.recent[hash%maxRecent]
	if r.hash == hash && r.from == from && now.Sub(r.at) < echo {
		return true
	}
	*r = recent{hash, from, now}
	return false
}

// list returns stations outside with local addresses, which nobody would look for here, in the order of the table; nil, false where it is as
// before.
func (s *sides) list(now mono.Time) ([][6]byte, bool) {
	for i := range s.table {
		if e := &s.table[i]; e.told && now.Sub(e.seen) >= age {
			*e, s.listed = station{}, false
		}
	}
	if s.listed {
		return nil, false
	}
	s.listed = true
	var out [][6]byte
	for i := range s.table {
		if e := &s.table[i]; e.told && len(out) < maxTold {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], e.mac)
			out = append(out, [6]byte(b[:]))
		}
	}
	return out, true
}

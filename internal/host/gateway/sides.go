// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"encoding/binary"
	"time"

	"weft/internal/proto/mono"
)

// side is where a MAC is.
type side uint8

const (
	nowhere side = iota
	outside      // at the host's interface
	inside       // in the VESW
)

const (
	// hold is how long a MAC stays on its side after its last frame there, though frames from it arrive on the other: a
	// frame that went round a loop comes sooner; a host that moved is on the other side later.
	hold = 5 * time.Second
	// age is how long an entry is valid after its last frame.
	age = 300 * time.Second
	// echo is how long a frame to a group cannot pass again the same way: one in a loop comes sooner, one that is sent
	// again later.
	echo = 200 * time.Millisecond
	// maxMACs is the number of entries, and ways the number of places for one: the oldest of those is replaced.
	maxMACs = 4096
	ways    = 8
	// maxListed is the largest number of MACs that list returns.
	maxListed = 1024
	// maxRecent is the number of frames to groups that are remembered.
	maxRecent = 4096
)

// sides is the table of MACs by side, learned from the source addresses of frames. By it no frame returns to the side
// it came from, whatever loop there is.
type sides struct {
	table  [maxMACs]entry
	recent [maxRecent]recent
	listed bool // the last list equals the table
}

type entry struct {
	mac    uint64 // little-endian; 0: none
	side   side
	listed bool      // belongs in the list: outside, locally administered
	seen   mono.Time // the last frame on its side
	fixed  bool      // never expires or moves
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

// find returns the entry of a MAC; where there is none, the one to replace, which may be in use.
func (s *sides) find(mac uint64) *entry {
	set := s.table[mac*0x9e3779b97f4a7c15>>32%(maxMACs/ways)*ways:][:ways]
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

// fix sets the host's own address, which is always outside.
func (s *sides) fix(mac [6]byte) {
	for i := range s.table {
		if s.table[i].fixed {
			s.table[i] = entry{}
		}
	}
	if n := number(mac[:]); n != 0 {
		*s.find(n) = entry{mac: n, side: outside, fixed: true}
		s.listed = false
	}
}

// where is the side of a MAC, nowhere where it has no valid entry.
func (s *sides) where(now mono.Time, mac []byte) side {
	n := number(mac)
	if e := s.find(n); e.mac == n && (e.fixed || now.Sub(e.seen) < age) {
		return e.side
	}
	return nowhere
}

// pass records a frame that came from a side. ok reports that it may go to the other: its sender has an entry for from,
// or a new one. looped reports that a frame of its sender was seen on the other side within hold.
func (s *sides) pass(now mono.Time, from side, frame []byte) (ok, looped bool) {
	src := number(frame[6:12])
	if src == 0 || frame[6]&1 != 0 {
		return false, false
	}
	e := s.find(src)
	switch {
	case e.mac != src:
		if e.fixed {
			return true, false // no place: all are fixed
		}
		s.listed = s.listed && !e.listed
		*e = entry{mac: src}
		fallthrough
	case e.side != from && !e.fixed && now.Sub(e.seen) >= hold:
		e.side = from
		if listed := from == outside && frame[6]&2 != 0; listed != e.listed {
			e.listed, s.listed = listed, false
		}
	case e.side != from:
		return false, true
	}
	e.seen = now
	return true, false
}

// again records that a frame to a group passes, by its hash, and reports whether it passed within echo: then it went
// round a loop, by a bridge that has its sender on the other side.
func (s *sides) again(now mono.Time, from side, hash uint64) bool {
	r := &s.recent[hash%maxRecent]
	if r.hash == hash && r.from == from && now.Sub(r.at) < echo {
		return true
	}
	*r = recent{hash, from, now}
	return false
}

// list returns the locally administered MACs outside, in the order of the table; nil, false where the list is as
// before.
func (s *sides) list(now mono.Time) ([][6]byte, bool) {
	for i := range s.table {
		if e := &s.table[i]; e.listed && now.Sub(e.seen) >= age {
			*e, s.listed = entry{}, false
		}
	}
	if s.listed {
		return nil, false
	}
	s.listed = true
	var out [][6]byte
	for i := range s.table {
		if e := &s.table[i]; e.listed && len(out) < maxListed {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], e.mac)
			out = append(out, [6]byte(b[:]))
		}
	}
	return out, true
}

// SPDX-License-Identifier: Apache-2.0

package ib

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// AddrSet is an immutable set of IP addresses, as GIDs have them: an IPv4 address is its IPv4-mapped form. Any
// goroutine may read it. A nil *AddrSet is no set: Contains panics, so that nothing is accepted by mistake.
type AddrSet struct {
	// disjoint, in ascending order
	ranges []addrRange
}

// addrRange is the addresses from first to last.
type addrRange struct{ first, last addr128 }

// addr128 is an address as a number.
type addr128 struct{ hi, lo uint64 }

func number(g *GID) addr128 {
	return addr128{binary.BigEndian.Uint64(g[:8]), binary.BigEndian.Uint64(g[8:])}
}

func (a addr128) compare(b addr128) int {
	if c := cmp.Compare(a.hi, b.hi); c != 0 {
		return c
	}
	return cmp.Compare(a.lo, b.lo)
}

// next is the number after a, 0 after the last one.
func (a addr128) next() addr128 {
	if a.lo++; a.lo == 0 {
		a.hi++
	}
	return a
}

// NewAddrSet returns the set of all addresses in prefixes; without a prefix it is empty. A prefix that is not valid
// adds nothing. The host bits of a prefix do not count.
func NewAddrSet(prefixes []netip.Prefix) *AddrSet {
	s := &AddrSet{}
	for _, p := range prefixes {
		if !p.IsValid() {
			continue
		}
		bits := p.Bits()
		if p.Addr().Is4() {
			bits += 96
		}
		first := GIDFromAddr(p.Addr())
		last := first
		for i := bits; i < 128; i++ {
			first[i/8] &^= 0x80 >> (i % 8)
			last[i/8] |= 0x80 >> (i % 8)
		}
		s.ranges = append(s.ranges, addrRange{number(&first), number(&last)})
	}
	s.merge()
	return s
}

// merge sorts the ranges, and joins those that overlap or adjoin.
func (s *AddrSet) merge() {
	slices.SortFunc(s.ranges, func(a, b addrRange) int { return a.first.compare(b.first) })
	out := s.ranges[:0]
	for _, r := range s.ranges {
		if n := len(out); n > 0 {
			// next wraps to 0 behind the last address of all: every range begins within the one before.
			if last := &out[n-1].last; r.first.compare(*last) <= 0 || last.next() == r.first {
				if r.last.compare(*last) > 0 {
					*last = r.last
				}
				continue
			}
		}
		out = append(out, r)
	}
	s.ranges = out
}

// Contains reports whether the address of a GID is in the set. It allocates nothing; its time grows with the logarithm
// of the number of ranges.
func (s *AddrSet) Contains(g *GID) bool {
	a := number(g)
	low, high := 0, len(s.ranges)
	for low < high {
		switch m := int(uint(low+high) >> 1); {
		case a.compare(s.ranges[m].first) < 0:
			high = m
		case a.compare(s.ranges[m].last) > 0:
			low = m + 1
		default:
			return true
		}
	}
	return false
}

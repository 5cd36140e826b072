// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"cmp"
	"net/netip"
	"slices"
)

// Route is one way out of the interface.
type Route struct {
	Dst netip.Prefix // masked
	// Via are the gateways, one unless the route has several paths; a zero address, and an empty list, mean that the
	// destination is on the link. A gateway may be of the other family (RFC 5549).
	Via    []netip.Addr
	Metric int  // of several routes to a prefix the lowest counts
	Main   bool // of the main or the local table; at equal metric such a route wins
}

// Routes is a table of next hops. It is immutable; any number of goroutines may read it; nil has no route. Lookups
// allocate nothing.
type Routes struct {
	v4, v6 []sameLength // longest first
	n      int
}

type sameLength struct {
	bits int
	to   map[netip.Prefix][]netip.Addr
}

// NewRoutes builds a table from routes in any order. It keeps the Via of the elements, not the slice.
func NewRoutes(routes []Route) *Routes {
	sorted := slices.Clone(routes)
	// The first match wins.
	slices.SortStableFunc(sorted, func(a, b Route) int {
		if c := cmp.Compare(b.Dst.Bits(), a.Dst.Bits()); c != 0 {
			return c
		}
		if c := cmp.Compare(a.Metric, b.Metric); c != 0 {
			return c
		}
		return -compareBool(a.Main, b.Main)
	})
	r := &Routes{}
	for _, route := range sorted {
		dst := route.Dst.Masked()
		if !dst.IsValid() {
			continue
		}
		lengths := &r.v6
		if dst.Addr().Is4() {
			lengths = &r.v4
		}
		if n := len(*lengths); n == 0 || (*lengths)[n-1].bits != dst.Bits() {
			*lengths = append(*lengths, sameLength{bits: dst.Bits(), to: map[netip.Prefix][]netip.Addr{}})
		}
		last := (*lengths)[len(*lengths)-1]
		if _, ok := last.to[dst]; !ok {
			last.to[dst] = route.Via
			r.n++
		}
	}
	return r
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Len is the number of prefixes.
func (r *Routes) Len() int {
	if r == nil {
		return 0
	}
	return r.n
}

// NextHop is the address to resolve for a packet to dst: the gateway of the longest matching prefix, or dst
// itself where that route has none, for groups, and where no route matches (a program may bind to the interface
// without a route; the kernel then assumes that the destination is on the link). All packets of a destination go
// to the same one of several gateways.
func (r *Routes) NextHop(dst netip.Addr) netip.Addr {
	if r == nil || dst.IsMulticast() {
		return dst
	}
	lengths := r.v6
	if dst.Is4() {
		lengths = r.v4
	}
	for _, l := range lengths {
		p, err := dst.Prefix(l.bits)
		if err != nil {
			continue
		}
		via, ok := l.to[p]
		if !ok {
			continue
		}
		var hop netip.Addr
		switch len(via) {
		case 0:
		case 1:
			hop = via[0]
		default:
			hop = via[spread(dst)%uint32(len(via))]
		}
		if !hop.IsValid() {
			return dst
		}
		return hop
	}
	return dst
}

// spread is a hash of an address (FNV-1a).
func spread(a netip.Addr) uint32 {
	h := uint32(2166136261)
	for _, b := range a.As16() {
		h = (h ^ uint32(b)) * 16777619
	}
	return h
}

// equal reports whether both tables have the same contents.
func (r *Routes) equal(s *Routes) bool {
	if r.Len() != s.Len() {
		return false
	}
	if r == nil || s == nil {
		return true
	}
	same := func(a, b sameLength) bool {
		if a.bits != b.bits || len(a.to) != len(b.to) {
			return false
		}
		for p, via := range a.to {
			if other, ok := b.to[p]; !ok || !slices.Equal(via, other) {
				return false
			}
		}
		return true
	}
	return slices.EqualFunc(r.v4, s.v4, same) && slices.EqualFunc(r.v6, s.v6, same)
}

// destination is the destination of an IP packet.
func destination(p []byte) (netip.Addr, bool) {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(p[16:20])), true
	case len(p) >= 40 && p[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(p[24:40])), true
	}
	return netip.Addr{}, false
}

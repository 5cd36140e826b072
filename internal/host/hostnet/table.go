// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"crypto/sha256"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"weft/internal/proto/ib"
)

// MaxEntries bounds the GID table: ib.Path names an entry by 8 bits.
const MaxEntries = 256

// Entry is one address of this host as a RoCEv2 GID. The zero Entry is a free
// slot.
type Entry struct {
	GID       ib.GID
	Interface string
	IfIndex   int
	MTU       int // of the interface, in bytes
	// LocalOnly marks a GID that is no address of this host but made up, as
	// index 0 must hold one: it identifies the port and cannot be sent from.
	LocalOnly bool
}

// Free reports whether the slot is unused.
func (e *Entry) Free() bool { return e.GID.IsZero() }

// Table is an immutable snapshot of this host's addresses as a GID table.
// Index 0 is a link-local IPv6 address, as subnet managers and programs
// expect; index 1 is the first IPv4 address where there is one.
type Table struct {
	Entries  []Entry
	NodeGUID ib.GUID
	// MTU is the largest path MTU that every interface with an address
	// carries; that of the loopback interface where there is no other.
	MTU ib.MTU
	// Left is the number of addresses that found no slot.
	Left int
}

// Lookup returns the index of a GID, of an address of this host before one
// that is made up.
func (t *Table) Lookup(g ib.GID) (index int, ok bool) {
	if g.IsZero() {
		return 0, false
	}
	i := slices.IndexFunc(t.Entries, func(e Entry) bool { return e.GID == g && !e.LocalOnly })
	if i < 0 {
		i = slices.IndexFunc(t.Entries, func(e Entry) bool { return e.GID == g })
	}
	return i, i >= 0
}

// IfIndex returns the interface of entry index if it still holds g, else that
// of any entry that does; 0 if none. It has the signature that package roce
// wants.
func (t *Table) IfIndex(index uint8, g ib.GID) uint32 {
	i := int(index)
	if i >= len(t.Entries) || t.Entries[i].GID != g {
		var ok bool
		if i, ok = t.Lookup(g); !ok {
			return 0
		}
	}
	return uint32(t.Entries[i].IfIndex)
}

// Equal reports whether both tables say the same.
func (t *Table) Equal(o *Table) bool {
	return t.NodeGUID == o.NodeGUID && t.MTU == o.MTU && t.Left == o.Left && slices.Equal(t.Entries, o.Entries)
}

// link is a network interface that is up, with its usable addresses.
type link struct {
	name     string
	index    int
	mtu      int
	mac      net.HardwareAddr
	loopback bool
	running  bool // has a carrier
	addrs    []netip.Addr
}

// build makes the table of links. Entries of prev, which may be nil, keep
// their index while their address exists; new ones take the first free slots.
// seed stands in for a MAC where the host has none.
func build(prev *Table, links []link, seed string) *Table {
	links = slices.Clone(links)
	slices.SortStableFunc(links, func(a, b link) int {
		// Interfaces that carry traffic first, loopback last.
		if c := rank(a) - rank(b); c != 0 {
			return c
		}
		return a.index - b.index
	})
	t := &Table{MTU: pathMTU(links)}
	if prev != nil {
		t.NodeGUID = prev.NodeGUID
	} else {
		t.NodeGUID = nodeGUID(links, seed)
	}
	found := entries(links)
	t.Entries = make([]Entry, 1, len(found)+1)
	if prev != nil {
		found = t.keep(prev, found)
	}
	if t.Entries[0].Free() {
		if i := slices.IndexFunc(found, linkLocal); i >= 0 {
			t.Entries[0] = found[i]
			found = slices.Delete(found, i, i+1)
		} else {
			t.Entries[0] = madeUp(t.NodeGUID, links)
		}
	}
	for _, e := range found {
		i := slices.IndexFunc(t.Entries, func(e Entry) bool { return e.Free() })
		if i < 0 {
			if len(t.Entries) == MaxEntries {
				t.Left++
				continue
			}
			i = len(t.Entries)
			t.Entries = append(t.Entries, Entry{})
		}
		t.Entries[i] = e
	}
	return t
}

// keep takes over the entries of prev that still exist and returns what of
// found is new.
func (t *Table) keep(prev *Table, found []Entry) []Entry {
	t.Entries = make([]Entry, len(prev.Entries))
	for i, old := range prev.Entries {
		same := func(e Entry) bool { return e.GID == old.GID && e.IfIndex == old.IfIndex }
		if j := slices.IndexFunc(found, same); j >= 0 && !old.Free() {
			t.Entries[i] = found[j]
			found = slices.Delete(found, j, j+1)
		}
	}
	return found
}

func rank(l link) int {
	switch {
	case l.loopback:
		return 2
	case !l.running:
		return 1
	}
	return 0
}

// entries lists all addresses in the order in which they take slots: the first
// IPv4 address, further ones as they stand, those of the host itself last.
func entries(links []link) []Entry {
	var out, host []Entry
	for _, l := range links {
		for _, v4 := range [...]bool{true, false} {
			for _, a := range l.addrs {
				if a.Is4() != v4 {
					continue
				}
				e := Entry{GID: ib.GIDFromAddr(a), Interface: l.name, IfIndex: l.index, MTU: l.mtu}
				if a.IsLoopback() {
					host = append(host, e)
				} else {
					out = append(out, e)
				}
			}
		}
	}
	out = append(out, host...)
	if i := slices.IndexFunc(out, func(e Entry) bool { return e.GID.IsIPv4() }); i > 0 {
		e := out[i]
		copy(out[1:i+1], out[:i])
		out[0] = e
	}
	return out
}

func linkLocal(e Entry) bool { return e.GID.Addr().IsLinkLocalUnicast() && !e.GID.IsIPv4() }

func madeUp(guid ib.GUID, links []link) Entry {
	e := Entry{GID: ib.GID{0: 0xfe, 1: 0x80}, LocalOnly: true}
	binary.BigEndian.PutUint64(e.GID[8:], uint64(guid))
	if len(links) > 0 {
		e.Interface, e.IfIndex, e.MTU = links[0].name, links[0].index, links[0].mtu
	}
	return e
}

// nodeGUID is the modified EUI-64 of the first MAC (RFC 4291, appendix A), or
// a locally administered one made of seed.
func nodeGUID(links []link, seed string) ib.GUID {
	for _, l := range links {
		if m := l.mac; len(m) == 6 && !l.loopback {
			return ib.GUID(binary.BigEndian.Uint64([]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}))
		}
	}
	h := sha256.Sum256([]byte("node GUID of " + seed))
	h[0] &^= 3 // neither universal nor a group
	return ib.GUID(binary.BigEndian.Uint64(h[:]))
}

func pathMTU(links []link) ib.MTU {
	lo, out := 0, 0
	for _, l := range links {
		switch {
		case len(l.addrs) == 0:
		case l.loopback:
			lo = max(lo, l.mtu)
		case out == 0 || l.mtu < out:
			out = l.mtu
		}
	}
	if out == 0 {
		out = lo
	}
	return ib.MTUForLink(out)
}

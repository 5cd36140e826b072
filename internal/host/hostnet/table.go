// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path"
	"slices"

	"weft/internal/proto/ib"
)

// MaxEntries bounds the GID table: ib.Path has an index of 8 bits.
const MaxEntries = 256

// Entry is one address of this host as a RoCEv2 GID. The zero Entry is a free slot.
type Entry struct {
	GID       ib.GID
	Interface string
	IfIndex   int
	MTU       int // of the interface, in bytes
	// LocalOnly marks a generated GID that is no address of this host: index 0 must hold one. It identifies the port;
	// no packet can be sent from it.
	LocalOnly bool
}

// Free reports whether the slot is unused.
func (e *Entry) Free() bool { return e.GID.IsZero() }

// Choice selects the interfaces with the addresses that become GIDs.
type Choice struct {
	// Names are shell patterns of interface names, such as "eth*". Empty: all interfaces but InfiniBand ones and those
	// marked ifdev.Alias, which carry the traffic of a node's own fabric. The loopback interface is always chosen: only
	// programs of this host use it.
	Names []string
}

// Validate reports a pattern that has a syntax error.
func (c Choice) Validate() error {
	for _, p := range c.Names {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fmt.Errorf("%q is not a pattern of interface names", p)
		}
	}
	return nil
}

func (c Choice) includes(l *link) bool {
	if l.loopback {
		return true
	}
	if len(c.Names) == 0 {
		return !l.fabric
	}
	return slices.ContainsFunc(c.Names, func(p string) bool { ok, _ := path.Match(p, l.name); return ok })
}

// Table is an immutable snapshot of this host's addresses as a GID table. Index 0 is a link-local IPv6 address, as
// subnet managers and programs expect; index 1 is the first IPv4 address where there is one.
type Table struct {
	Entries  []Entry
	NodeGUID ib.GUID
	// MTU is the largest path MTU of the interfaces with an address; that of the loopback interface where there is no
	// other. An entry has the limit of its own interface (docs/notes/roce-mtu.md).
	MTU ib.MTU
	// Left is the number of addresses beyond MaxEntries.
	Left int
	// Absent are the patterns of Choice.Names that no interface with an address matches.
	Absent []string
}

// PathMTU is the largest path MTU that the interface of an entry carries.
func (e *Entry) PathMTU() ib.MTU { return ib.MTUForLink(e.MTU) }

// Lookup returns the index of a GID, of an address of this host before a generated one.
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

// Outward returns the index of the first entry with an address that other hosts can reach, or -1.
func (t *Table) Outward() int {
	return slices.IndexFunc(t.Entries, func(e Entry) bool { return !e.LocalOnly && e.GID.Addr().IsGlobalUnicast() })
}

// IfIndex returns the interface of entry index if it still holds g, else that of any entry that does; 0 if none.
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

// Equal reports whether both tables have the same contents.
func (t *Table) Equal(o *Table) bool {
	return t.NodeGUID == o.NodeGUID && t.MTU == o.MTU && t.Left == o.Left && slices.Equal(t.Entries, o.Entries) &&
		slices.Equal(t.Absent, o.Absent)
}

// link is a network interface that is up, with its usable addresses.
type link struct {
	name     string
	index    int
	mtu      int
	mac      net.HardwareAddr
	loopback bool
	running  bool // has a carrier
	empty    bool // a bridge without ports
	own      bool // marked ifdev.Alias: of a node of this host
	fabric   bool // InfiniBand, or own
	addrs    []netip.Addr
}

// build makes the table of the links of a choice. Entries of prev, which may be nil, keep their index while their
// address exists; new ones get the first free slots. Where the host has no MAC, the node GUID is made of seed.
func build(prev *Table, every []link, choice Choice, seed string) *Table {
	var links []link
	for i := range every {
		if choice.includes(&every[i]) {
			links = append(links, every[i])
		}
	}
	slices.SortStableFunc(links, func(a, b link) int {
		// Interfaces that carry traffic first, loopback last.
		if c := rank(a) - rank(b); c != 0 {
			return c
		}
		return a.index - b.index
	})
	t := &Table{MTU: pathMTU(links), Absent: choice.absent(links)}
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

// keep copies the entries of prev that still exist and returns those of found that are new.
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

// entries lists all addresses in the order in which they get slots: the first IPv4 address, further ones in their own
// order, loopback addresses last.
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

// nodeGUID is the modified EUI-64 of the first MAC (RFC 4291, appendix A), or a locally administered one made of seed.
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

// absent lists the patterns that no link with an address matches.
func (c Choice) absent(links []link) (list []string) {
	for _, p := range c.Names {
		if !slices.ContainsFunc(links, func(l link) bool {
			ok, _ := path.Match(p, l.name)
			return ok &&
				len(l.addrs) > 0
		}) {
			list = append(list, p)
		}
	}
	return list
}

func pathMTU(links []link) ib.MTU {
	lo, out := 0, 0
	for _, l := range links {
		switch {
		case len(l.addrs) == 0:
		case l.loopback:
			lo = max(lo, l.mtu)
		default:
			out = max(out, l.mtu)
		}
	}
	if out == 0 {
		out = lo
	}
	return ib.MTUForLink(out)
}

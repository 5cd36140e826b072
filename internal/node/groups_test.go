// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// host is interfaces that groups are joined on.
type host struct {
	port   *hca.Port
	joined map[string]bool
	full   map[int]bool // interfaces that refuse
	left   int
}

func (h *host) groups() *ipGroups {
	return &ipGroups{port: func() *hca.Port { return h.port }, log: slog.New(slog.DiscardHandler),
		groups: map[ib.GID]*ipGroup{},
		join: func(g ib.GID, i int) error {
			if h.full[i] {
				return fmt.Errorf("join: %w", syscall.ENOBUFS)
			}
			if k := fmt.Sprint(g.Addr(), " on ", i); h.joined[k] {
				return syscall.EADDRINUSE
			} else {
				h.joined[k] = true
			}
			return nil
		},
		quit: func(g ib.GID, i int) error {
			h.left++
			delete(h.joined, fmt.Sprint(g.Addr(), " on ", i))
			return nil
		}}
}

func (h *host) want(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(h.joined)); !slices.Equal(got, want) {
		t.Errorf("%s: joined %q, want %q", what, got, want)
	}
}

func gid4(a, d byte) ib.GID { return ib.GID{10: 0xff, 11: 0xff, 12: a, 15: d} }

// TestIPGroups joins once per group and interface, follows interfaces, and reports failed joins.
func TestIPGroups(t *testing.T) {
	v6 := ib.GID{0: 0xfe, 1: 0x80, 15: 1}
	h := &host{joined: map[string]bool{}, full: map[int]bool{},
		port: &hca.Port{GIDs: []hca.GIDEntry{{GID: gid4(127, 1), IfIndex: 1, LocalOnly: true}}}}
	g := h.groups()
	a, b, six := gid4(239, 1), gid4(239, 2), ib.GID{0: 0xff, 1: 5, 15: 3}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.Join(a)) // a host without interfaces: the group reaches this node
	h.want(t, "without an interface")
	h.port = &hca.Port{GIDs: []hca.GIDEntry{{GID: gid4(127, 1), IfIndex: 1, LocalOnly: true},
		{GID: gid4(10, 1), IfIndex: 2}, {GID: gid4(10, 9), IfIndex: 2}, {}, {GID: v6, IfIndex: 3}}}
	g.addressesChanged()
	h.want(t, "an interface came", "239.0.0.1 on 2")
	must(g.Join(a))
	must(g.Join(b))
	must(g.Join(six))
	h.want(t, "three groups", "239.0.0.1 on 2", "239.0.0.2 on 2", "ff05::3 on 3")
	g.Leave(a)
	h.want(t, "one of two left", "239.0.0.1 on 2", "239.0.0.2 on 2", "ff05::3 on 3")
	g.Leave(a)
	h.want(t, "both left", "239.0.0.2 on 2", "ff05::3 on 3")
	// A second interface, which refuses, does not remove the group, but is reported.
	h.full[4] = true
	h.port = &hca.Port{GIDs: append(h.port.GIDs, hca.GIDEntry{GID: gid4(11, 1), IfIndex: 4})}
	g.addressesChanged()
	h.want(t, "one interface refuses", "239.0.0.2 on 2", "ff05::3 on 3")
	if d := g.degraded(); len(d) != 1 || !strings.Contains(d[0].Why, "239.0.0.2 is not received on interface 4") {
		t.Errorf("%+v", d)
	}
	h.full[2] = true
	if err := g.Join(a); !errors.Is(err, syscall.ENOBUFS) || g.groups[a] != nil {
		t.Errorf("every interface refuses: %v", err)
	}
	h.full = nil
	g.addressesChanged()
	h.want(t, "room again", "239.0.0.2 on 2", "239.0.0.2 on 4", "ff05::3 on 3")
	h.port = &hca.Port{}
	g.addressesChanged()
	h.want(t, "no interface is left")
	before := h.left
	g.Leave(b)
	g.Leave(six)
	if len(g.groups) != 0 || h.left != before || len(g.degraded()) != 0 {
		t.Errorf("left behind: %v", g.groups)
	}
}

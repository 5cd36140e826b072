// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// host is what a Driver has done.
type host struct {
	log []string
	cfg map[string]LinkConfig
}

func (h *host) AddLink(c LinkConfig, p Port) {
	h.log = append(h.log, fmt.Sprintf("add %s %#04x", c.Name, uint16(c.PKey)))
	h.cfg[c.Name] = c
}
func (h *host) RemoveLink(name string) { h.log = append(h.log, "remove "+name) }
func (h *host) Port(name string, p Port, events ...ib.Event) {
	h.log = append(h.log, fmt.Sprintf("port %s %v %v", name, p.State, events))
}

func drive(words ...string) (*Driver, *host, func(want ...string) string) {
	p, err := ParseParams("", "", words)
	if err != nil {
		panic(err)
	}
	h := &host{cfg: map[string]LinkConfig{}}
	return NewDriver(p, h), h, func(want ...string) string {
		d := cmp.Diff(append([]string{}, want...), append([]string{}, h.log...))
		h.log = nil
		return d
	}
}

// TestH58_Load: loading without an adapter succeeds; everything follows from events, in any order: the
// present state is reported like later changes.
func TestH58_Load(t *testing.T) {
	d, h, saw := drive("sq_depth=256")
	if diff := saw(); diff != "" {
		t.Error(diff)
	}
	d.SetPort(0, 1, Port{PKeys: []ib.PKey{0xffff}})
	if diff := saw(); diff != "" {
		t.Errorf("a port of an adapter that is not there: %s", diff)
	}
	d.AddCA(0)
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff, 0, 0x8014}})
	if diff := saw("add ib0_1_14 0x8014", "add ib0_1_7fff 0xffff"); diff != "" {
		t.Error(diff)
	}
	if c := h.cfg["ib0_1_14"]; c.Params.SQDepth != 256 || c.CA != 0 || c.Port != 1 {
		t.Errorf("%+v", c)
	}
}

// TestH59_Events: adapters, ports and partitions come and go, and links with
// them.
func TestH59_Events(t *testing.T) {
	d, _, saw := drive()
	for ca := range 2 {
		d.AddCA(ca)
		for port := 1; port <= 2; port++ {
			d.SetPort(ca, port, Port{State: ib.PortDown, PKeys: []ib.PKey{0xffff}})
		}
	}
	if diff := saw("add ib0_1_7fff 0xffff", "add ib0_2_7fff 0xffff", "add ib1_1_7fff 0xffff",
		"add ib1_2_7fff 0xffff"); diff != "" {
		t.Error(diff)
	}
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff}}, ib.EventReregister)
	if diff := saw("port ib0_1_7fff Active [CLIENT_REREGISTER]"); diff != "" {
		t.Error(diff)
	}
	// Both forms of a key are one link, by the full member's.
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff, 0x0014, 0x8014}})
	if diff := saw("port ib0_1_7fff Active []", "add ib0_1_14 0x8014"); diff != "" {
		t.Error(diff)
	}
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff, 0x0014}})
	if diff := saw("port ib0_1_14 Active []", "port ib0_1_7fff Active []"); diff != "" {
		t.Error(diff)
	}
	d.RemovePort(0, 2)
	d.RemovePort(0, 2)
	if diff := saw("remove ib0_2_7fff"); diff != "" {
		t.Error(diff)
	}
	d.RemoveCA(1)
	if diff := saw("remove ib1_1_7fff", "remove ib1_2_7fff"); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"ib0_1_14", "ib0_1_7fff", "ib0_2_7fff", "ib1_1_7fff", "ib1_2_7fff"},
		d.Links()); diff != "" {
		t.Error(diff)
	}
}

// TestPKeyRemovedAndAdded: the link vanishes and returns with the same name, but
// not before it has gone (S-05).
func TestPKeyRemovedAndAdded(t *testing.T) {
	d, _, saw := drive()
	d.AddCA(0)
	with, without := Port{PKeys: []ib.PKey{0xffff, 0x8014}}, Port{PKeys: []ib.PKey{0xffff}}
	d.SetPort(0, 1, with)
	d.SetPort(0, 1, without)
	if diff := saw("add ib0_1_14 0x8014", "add ib0_1_7fff 0xffff", "remove ib0_1_14",
		"port ib0_1_7fff NoChange []"); diff != "" {
		t.Error(diff)
	}
	d.SetPort(0, 1, with)
	if diff := saw("port ib0_1_7fff NoChange []"); diff != "" {
		t.Errorf("before it is gone: %s", diff)
	}
	d.Gone("ib0_1_14")
	if diff := saw("add ib0_1_14 0x8014"); diff != "" {
		t.Error(diff)
	}
	// Removed, added and removed again before it is gone: it stays away.
	d.SetPort(0, 1, without)
	d.SetPort(0, 1, with)
	d.SetPort(0, 1, without)
	saw()
	d.Gone("ib0_1_14")
	d.Gone("ib0_1_14")
	if diff := saw(); diff != "" {
		t.Error(diff)
	}
	// The adapter goes meanwhile, and comes back.
	d.SetPort(0, 1, with)
	d.RemoveCA(0)
	d.AddCA(0)
	d.SetPort(0, 1, with)
	saw()
	d.Gone("ib0_1_14")
	d.Gone("ib0_1_7fff")
	if diff := saw("add ib0_1_14 0x8014", "add ib0_1_7fff 0xffff"); diff != "" {
		t.Error(diff)
	}
}

// TestConfiguredPartitions: with a list of partitions only those get links.
func TestConfiguredPartitions(t *testing.T) {
	d, _, saw := drive("pkeys=0x14")
	d.AddCA(10)
	d.SetPort(10, 1, Port{PKeys: []ib.PKey{0xffff, 0x0014, 0x8015}})
	if diff := saw("add iba_1_14 0x0014"); diff != "" {
		t.Error(diff)
	}
}

// TestH70_Unload: every link is removed, and none comes any more.
func TestH70_Unload(t *testing.T) {
	d, _, saw := drive()
	d.AddCA(0)
	d.SetPort(0, 1, Port{PKeys: []ib.PKey{0xffff, 0x8014}})
	saw()
	d.Unload()
	if diff := saw("remove ib0_1_14", "remove ib0_1_7fff"); diff != "" {
		t.Error(diff)
	}
	d.AddCA(1)
	d.SetPort(0, 1, Port{PKeys: []ib.PKey{0xffff}})
	d.SetPort(1, 1, Port{PKeys: []ib.PKey{0xffff}})
	for _, name := range slices.Clone(d.Links()) {
		d.Gone(name)
	}
	if diff := saw(); diff != "" || len(d.Links()) != 0 {
		t.Errorf("%s, links %v", diff, d.Links())
	}
	d.Unload()
}

// TestDriverMode: a link is removed and made again with another mode; others stay, and a later link by its
// name has it.
func TestDriverMode(t *testing.T) {
	d, h, saw := drive()
	d.AddCA(0)
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff, 0x8014}})
	saw()
	d.SetMode("ib0_1_14", Connected)
	d.SetMode("ib0_1_99", Connected)
	d.SetMode("ib0_1_14", Connected)
	if diff := saw("remove ib0_1_14"); diff != "" {
		t.Error(diff)
	}
	d.Gone("ib0_1_14")
	if diff := saw("add ib0_1_14 0x8014"); diff != "" || h.cfg["ib0_1_14"].Params.Mode != Connected ||
		h.cfg["ib0_1_7fff"].Params.Mode != Datagram {
		t.Errorf("%s %+v", diff, h.cfg)
	}
	d.SetMode("ib0_1_14", Connected)
	if diff := saw(); diff != "" {
		t.Error(diff)
	}
	// Changed twice before it has gone, the last counts.
	d.SetMode("ib0_1_14", Datagram)
	d.SetMode("ib0_1_14", Connected)
	d.Gone("ib0_1_14")
	if diff := saw("remove ib0_1_14", "add ib0_1_14 0x8014"); diff != "" || h.cfg["ib0_1_14"].Params.Mode != Connected {
		t.Errorf("%s %+v", diff, h.cfg)
	}
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff}})
	d.SetMode("ib0_1_14", Datagram) // goes for good
	d.Gone("ib0_1_14")
	d.SetPort(0, 1, Port{State: ib.PortActive, PKeys: []ib.PKey{0xffff, 0x8014}})
	if h.cfg["ib0_1_14"].Params.Mode != Datagram {
		t.Errorf("%+v", h.cfg)
	}
}

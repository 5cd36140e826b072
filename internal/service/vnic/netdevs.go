// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"fmt"
	"slices"
	"sync/atomic"

	"weft/internal/proto/ib"
)

// Netdevs are the netdevs of a function. The management goroutine calls it and its
// Slots; Receivers see what it publishes.
type Netdevs struct {
	max   int
	lid   uint32
	lmc   uint8
	slots [MaxNetdevs]*Slot
	used  int
	seen  atomic.Pointer[demux]
}

// NewNetdevs returns a function's netdevs, at most max of them; 0: MaxNetdevs.
func NewNetdevs(max int) *Netdevs {
	if max <= 0 || max > MaxNetdevs {
		max = MaxNetdevs
	}
	d := &Netdevs{max: max}
	d.publish()
	return d
}

// demux is what Receivers see of Netdevs: immutable.
type demux struct {
	lid   uint32 // of the function; 0: none
	lmc   uint8
	index [1 << 12]uint8 // by VESW: 1 + number of the port; 0: none
	inlet [MaxNetdevs]inlet
}

// inlet is a Receiver's snapshot of a netdev.
type inlet struct {
	groups   []uint32 // sorted
	maxFrame int
	pkey     ib.PKey
	up       bool
}

func (d *Netdevs) publish() {
	m := &demux{lid: d.lid, lmc: d.lmc}
	for i, s := range d.slots {
		if s != nil && s.vesw != 0 {
			m.index[s.vesw] = uint8(i + 1)
			m.inlet[i] = inlet{groups: s.groups, maxFrame: s.device.MTU + frameOverhead,
				pkey: s.device.PKey, up: s.up}
		}
	}
	d.seen.Store(m)
}

// SetLIDs sets the LIDs, of 24 bits, of the function: those equal to lid except the lmc low bits. lid
// 0: none.
func (d *Netdevs) SetLIDs(lid uint32, lmc uint8) {
	if d.lid != lid || d.lmc != lmc {
		d.lid, d.lmc = lid, lmc
		d.publish()
	}
}

// Alloc returns the netdev of a port. It is AllocNetdev of Function with the concrete type.
func (d *Netdevs) Alloc(vport uint8) (*Slot, error) {
	switch {
	case int(vport) >= MaxNetdevs || d.used >= d.max:
		return nil, fmt.Errorf("netdev for port %d of at most %d: %w", vport, d.max, ErrNoResource)
	case d.slots[vport] != nil:
		return nil, fmt.Errorf("netdev for port %d: it has one: %w", vport, ErrNoResource)
	}
	s := &Slot{d: d, vport: vport}
	d.slots[vport] = s
	d.used++
	return s, nil
}

// Free implements Function.FreeNetdev. Calls of the Slot have no effect any more.
func (d *Netdevs) Free(vport uint8) {
	if int(vport) < MaxNetdevs && d.slots[vport] != nil {
		d.slots[vport].d, d.slots[vport] = nil, nil
		d.used--
		d.publish()
	}
}

// Slot is a netdev of a function: a Netdev without an interface behind it.
type Slot struct {
	d      *Netdevs // nil: freed
	vport  uint8
	vesw   uint16
	up     bool
	groups []uint32 // sorted; immutable, SetGroups replaces it
	device Device
}

var _ Netdev = (*Slot)(nil)

func (s *Slot) publish() {
	if s.d != nil {
		s.d.publish()
	}
}

// SetVESW implements Netdev.
func (s *Slot) SetVESW(id uint16) error {
	if id == s.vesw {
		return nil
	}
	s.vesw = 0
	if id > maxVESW {
		s.publish()
		return fmt.Errorf("VESW %d: %w", id, ErrInvalid)
	}
	if s.d != nil && id != 0 {
		for _, o := range s.d.slots {
			if o != nil && o.vesw == id {
				s.publish()
				return fmt.Errorf("VESW %d, port %d: %w", id, o.vport, ErrVESWInUse)
			}
		}
	}
	s.vesw = id
	s.publish()
	return nil
}

// SetGroups implements Netdev.
func (s *Slot) SetGroups(dlids []uint32) (refused int) {
	var groups []uint32
	for _, g := range dlids {
		if _, had := slices.BinarySearch(s.groups, g); had {
			groups = append(groups, g)
		}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	var without []uint32 // refused, each once
	for _, g := range dlids {
		at, found := slices.BinarySearch(groups, g)
		switch {
		case found || slices.Contains(without, g):
		case !isGroup(g) || len(groups) >= MaxGroups:
			without = append(without, g)
		default:
			groups = slices.Insert(groups, at, g)
		}
	}
	if !slices.Equal(groups, s.groups) {
		s.groups = groups
		s.publish()
	}
	return len(without)
}

// Up implements Netdev.
func (s *Slot) Up() error {
	if !s.up {
		s.up = true
		s.publish()
	}
	return nil
}

// Down implements Netdev.
func (s *Slot) Down() {
	if s.up {
		s.up = false
		s.publish()
	}
}

// Configure implements Netdev.
func (s *Slot) Configure(d Device) {
	before := s.device
	s.device = d
	if before.MTU != d.MTU || before.PKey != d.PKey {
		s.publish()
	}
}

// Device returns what Configure was called with last.
func (s *Slot) Device() Device { return s.device }

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"sync/atomic"

	"weft/internal/proto/ib"
	"weft/internal/verbs/hca/replicate"
)

// maxFunctions bounds the functions a node makes in its life.
const maxFunctions = 1 << 10

// Functions is the node's table of functions by number. Readers see immutable
// snapshots and may be anywhere; the node serialises Add, Remove and SetPort.
type Functions struct {
	table      atomic.Pointer[[]*Adapter]
	generation atomic.Uint64 // rises with every change of the table or of a port
	groups     atomic.Pointer[Groups]
	ip         IPGroups           // nil: groups of Ethernet ports reach this node only
	used       [maxFunctions]bool // numbers that functions have, had or are reserved for
}

// NewFunctions returns a table of the given functions, numbered from 0.
func NewFunctions(list ...*Adapter) *Functions {
	f := &Functions{}
	f.table.Store(new([]*Adapter))
	f.groups.Store(&Groups{Groups: replicate.Groups{Functions: map[ib.LID][]uint16{},
		Attached: map[replicate.GroupKey][]replicate.Dest{}}})
	for _, a := range list {
		if err := f.Add(a); err != nil {
			panic(err) // more than maxFunctions: a bug of the caller
		}
	}
	return f
}

// ErrNoFunction is returned when every function number, or the requested one, was used.
var ErrNoFunction = errors.New("no function number is left")

// ErrInUse is returned for a function that still has sessions.
var ErrInUse = errors.New("the function has sessions")

// Add gives a the lowest number that was never used.
func (f *Functions) Add(a *Adapter) error {
	for n, used := range f.used {
		if !used {
			return f.AddAt(a, uint16(n))
		}
	}
	return ErrNoFunction
}

// Reserve keeps a number from being used by Add: AddAt may assign it later.
func (f *Functions) Reserve(n uint16) {
	if n < maxFunctions {
		f.used[n] = true
	}
}

// AddAt gives a a number of the caller's choice, which no function of the table has. The number may have been used
// before or be reserved.
func (f *Functions) AddAt(a *Adapter, n uint16) error {
	if n >= maxFunctions || f.At(n) != nil {
		return ErrNoFunction
	}
	f.used[n] = true
	old := *f.table.Load()
	t := make([]*Adapter, max(len(old), int(n)+1))
	copy(t, old)
	a.num, a.all = n, f
	t[n] = a
	f.table.Store(&t)
	f.generation.Add(1)
	return nil
}

// Remove removes a: packets for it are dropped. It is ErrInUse while a session is attached.
func (f *Functions) Remove(a *Adapter) error {
	if a.Sessions() > 0 {
		return ErrInUse
	}
	t := append([]*Adapter(nil), *f.table.Load()...)
	t[a.num] = nil
	f.table.Store(&t)
	f.generation.Add(1)
	return nil
}

// At returns function n, or nil.
func (f *Functions) At(n uint16) *Adapter {
	if t := *f.table.Load(); int(n) < len(t) {
		return t[n]
	}
	return nil
}

// All returns the table: functions by number, nil where one was removed. It
// must not be changed.
func (f *Functions) All() []*Adapter { return *f.table.Load() }

// Owner returns the function with the InfiniBand port of a unicast LID, or nil. Where several claim it, it is the
// first.
func (f *Functions) Owner(lid ib.LID) *Adapter {
	for _, a := range f.All() {
		if a == nil {
			continue
		}
		if p := a.Port(); p.native() && p.LID.Owns(p.LMC, lid) {
			return a
		}
	}
	return nil
}

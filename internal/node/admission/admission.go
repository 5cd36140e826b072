// SPDX-License-Identifier: Apache-2.0

// Package admission decides whether a node accepts what would use its host: programs, guests, IP links and virtual
// ports.
//
// What comes in: the begin and the end of a drain, from the membership; questions of the rooms before they accept
// something new. What goes out: nil, or the error for the requester. It ends nothing: each room ends its own programs,
// guests, links or ports when a drain by force begins.
package admission

import (
	"sync/atomic"

	"weft/internal/control/api"
)

// Gate is open, or closed while the host is drained. The zero Gate is open. Any goroutine may call its methods.
type Gate struct {
	refusal atomic.Pointer[api.Error] // nil: the gate is open
}

// Close has the gate refuse everything new, since the host of the member with a name is drained.
func (g *Gate) Close(name string) { g.refusal.Store(refusal(name)) }

// Open has the gate accept everything again.
func (g *Gate) Open() { g.refusal.Store(nil) }

// Admit returns why the host accepts nothing new; nil: it does.
func (g *Gate) Admit() error {
	if e := g.refusal.Load(); e != nil {
		again := *e // its owner adds to it
		return &again
	}
	return nil
}

func refusal(name string) *api.Error {
	return &api.Error{Code: api.CodeDrained,
		Why: "this host is drained: it accepts no new program, guest, IP link, device or virtual port",
		Fix: "weft member undrain " + name}
}

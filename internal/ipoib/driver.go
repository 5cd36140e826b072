// SPDX-License-Identifier: Apache-2.0

package ipoib

import "weft/internal/ib"

// Host is what a Driver has done with links, by whom it is called: each belongs to a
// lane, which the Driver never enters.
type Host interface {
	// AddLink makes a Link, starts it with the port as it is, and opens it.
	AddLink(c LinkConfig, p Port)
	// RemoveLink stops it. When its Device is told Closed, Driver.Gone follows.
	RemoveLink(name string)
	// Port is news of a link's port: Link.SetPort.
	Port(name string, p Port, events ...ib.Event)
}

// LinkConfig says which link it is.
type LinkConfig struct {
	Name     string // ibX_Y_Z
	CA, Port int
	PKey     ib.PKey // with the membership that the table has
	Params   Params
}

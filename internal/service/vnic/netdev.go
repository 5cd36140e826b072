// SPDX-License-Identifier: Apache-2.0

package vnic

import "weft/internal/proto/ib"

// Bounds of what a function gives out.
const (
	// MaxNetdevs is how many netdevs a function has, and the port numbers that are
	// below it.
	MaxNetdevs = 255
	// MaxGroups is how many groups a netdev can be attached to.
	MaxGroups = 256
)

// Function gives out the netdevs of type OPA_VNIC of an adapter's function, which are its resources and
// bounded. The management goroutine calls it.
type Function interface {
	// AllocNetdev returns the netdev of a port: down, in no VESW and in no group. ErrNoResource means
	// that the function has no more.
	AllocNetdev(vport uint8) (Netdev, error)
	// FreeNetdev gives it back, with all that it held.
	FreeNetdev(vport uint8)
}

// Netdev is the side of a port that belongs to the adapter. The management goroutine calls it.
type Netdev interface {
	// SetVESW binds the netdev to a VESW and its packets; 0: to none. After an error
	// it is bound to none: ErrVESWInUse if another netdev of the function is bound to this one.
	SetVESW(id uint16) error
	// SetGroups replaces the groups that the netdev receives, by their LIDs of 24 bits, and returns how
	// many of them it refused: those that are no group, and those beyond MaxGroups. A group of before stays
	// rather than a new one.
	SetGroups(dlids []uint32) (refused int)
	// Up has it deliver, Down has it drop.
	Up() error
	Down()
	// Configure sets the configuration of the interface and the checks of the receiver. It is called
	// with changes only.
	Configure(d Device)
}

// Device is how the interface of a port is to be.
type Device struct {
	MAC         [6]byte // zero: none was given yet
	MTU, MaxMTU int     // of what follows the Ethernet header
	PKey        ib.PKey // of the VESW
	Carrier     bool
	// Dormant: the Ethernet Manager has not released the port.
	Dormant bool
	// Reason is why no traffic flows, "" while it does.
	Reason string
}

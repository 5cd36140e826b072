// SPDX-License-Identifier: Apache-2.0

// Package route decides which way packets take through a subnet.
//
// What comes in: a topo.Subnet in which ports have LIDs; what goes out: a
// forwarding table for each switch, and the ports of multicast trees. The
// subnet manager calls an Engine after every sweep and writes what differs
// from what the switches have. An Engine keeps no state, and equal subnets give equal
// tables; it never changes the Subnet, and it sends nothing.
package route

import (
	"errors"

	"weft/internal/ib"
	"weft/internal/sm/topo"
)

// NoPort is the entry of a LID that a switch cannot reach.
const NoPort = 0xff

// Tables are the forwarding tables of a subnet.
type Tables struct {
	// Top is the highest LID that the tables know.
	Top ib.LID
	// LFT is by rank of the switch, then by LID 0 … Top: the port, or NoPort.
	LFT [][]uint8
	// Hops is by rank and rank: the links between two switches on the shortest
	// way that the engine allows, Unreachable if there is none.
	Hops [][]uint8
}

// Unreachable is the number of hops between switches that have no way to each
// other.
const Unreachable = 0xff

// Tree is the way of one multicast group: the ports of each switch, by rank,
// that copies leave by; port 0 is the switch itself. Copies never come back to
// where they came from, so a tree has links in both directions.
type Tree map[int]topo.PortMask

// Engine computes routes.
type Engine interface {
	// Name is how a configuration calls the engine.
	Name() string
	// Unicast computes the tables. Ports without LIDs, and links that lead
	// nowhere, are left out.
	Unicast(s *topo.Subnet) (*Tables, error)
	// Multicast computes the tree that joins members, which are ports with
	// LIDs; t are the tables that Unicast returned for s. Members that cannot
	// be reached from the others are left out.
	Multicast(s *topo.Subnet, t *Tables, members []topo.Ref) (Tree, error)
}

// ErrEngine tells that there is no engine of that name.
var ErrEngine = errors.New("no such route engine")

// ByName returns an engine.
func ByName(name string) (Engine, error) {
	switch name {
	case "", MinHop{}.Name():
		return MinHop{}, nil
	}
	return nil, ErrEngine
}

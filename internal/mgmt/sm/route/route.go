// SPDX-License-Identifier: Apache-2.0

// Package route computes the paths of packets through a subnet.
//
// What comes in: a topo.Subnet in which ports have LIDs; what goes out: a forwarding table for each switch, and the
// ports of multicast trees. The subnet manager calls an Engine after every sweep and writes the differences to the
// switches. An Engine keeps no state, and equal subnets give equal tables; it never changes the Subnet, and it sends
// nothing.
package route

import (
	"errors"
	"fmt"
	"strings"

	"weft/internal/mgmt/sm/topo"
	"weft/internal/proto/ib"
)

// NoPort is the entry of a LID that a switch cannot reach.
const NoPort = 0xff

// Tables are the forwarding tables of a subnet.
type Tables struct {
	// Engine is the name of the engine that made them.
	Engine string
	// Top is the highest LID in the tables.
	Top ib.LID
	// LFT is by rank of the switch, then by LID 0 … Top: the port, or NoPort.
	LFT [][]uint8
	// Hops is by rank from and rank to: the links between two switches on the shortest path that the engine allows,
	// Unreachable if there is none. The path back may be another one.
	Hops [][]uint8
	// Notes are, for people, the differences from the configuration: an engine that failed, a root that does not exist,
	// switches that do not reach each other.
	Notes []string

	graph *graph // of the subnet; nil if the tables were not computed here
}

// Unreachable is the number of hops between switches without a path.
const Unreachable = 0xff

// Group is a multicast group for the purpose of its tree: ports with LIDs, each once.
type Group struct {
	// MLID selects among equally good switches and links, so that the trees of different groups differ.
	MLID ib.LID
	// Members receive and may send.
	Members []topo.Ref
	// Senders may send, and do not receive.
	Senders []topo.Ref
}

// Tree is the tree of one multicast group: the ports of each switch, by rank, to which it sends copies; port 0 is the
// switch itself. A switch sends no copy to the port of arrival, so a tree has links in both directions. It has no entry
// that no copy uses: no copies go to where only senders are.
type Tree map[int]topo.PortMask

// Engine computes routes.
type Engine interface {
	// Name is the name of the engine in a configuration.
	Name() string
	// Unicast computes the tables. It ignores ports without LIDs, and links without a peer. An error is the reason why
	// the engine cannot route the subnet.
	Unicast(s *topo.Subnet) (*Tables, error)
	// Multicast computes the tree of a group; t are the tables that Unicast returned for s. It ignores ports that
	// cannot be reached from the others.
	Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error)
}

// Chain is engines in the order of preference. The first that can route a subnet does, MinHop if none can. Tables.Notes
// has the failures.
type Chain []Engine

// Name implements Engine.
func (c Chain) Name() string {
	names := make([]string, len(c))
	for i, e := range c {
		names[i] = e.Name()
	}
	return strings.Join(names, ",")
}

// Unicast implements Engine.
func (c Chain) Unicast(s *topo.Subnet) (*Tables, error) {
	var notes []string
	for _, e := range c {
		t, err := e.Unicast(s)
		if err == nil {
			t.Notes = append(notes, t.Notes...)
			return t, nil
		}
		notes = append(notes, fmt.Sprintf("%s: %v", e.Name(), err))
	}
	t, err := MinHop{}.Unicast(s)
	if err != nil {
		return nil, err
	}
	t.Notes = append(notes, t.Notes...)
	return t, nil
}

// Multicast implements Engine: all engines compute the same trees.
func (c Chain) Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error) {
	return MinHop{}.Multicast(s, t, g)
}

// ErrEngine is the error of an unknown engine name.
var ErrEngine = errors.New("there is no such one: want minhop, updn, ftree, or several with commas between them")

// ByName returns the engine of a configuration: one name, or several with commas for a Chain. Without a name it is
// MinHop. roots are the node GUIDs of the root switches of UpDn; without any it finds them.
func ByName(names string, roots ...ib.GUID) (Engine, error) {
	if names == "" {
		return MinHop{}, nil
	}
	var c Chain
	for n := range strings.SplitSeq(names, ",") {
		switch n {
		case MinHop{}.Name():
			c = append(c, MinHop{})
		case UpDn{}.Name():
			c = append(c, UpDn{Roots: roots})
		case FTree{}.Name():
			c = append(c, FTree{})
		default:
			return nil, fmt.Errorf("engine %q: %w", n, ErrEngine)
		}
	}
	return c, nil
}

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
	// Top is the highest LID that the tables know.
	Top ib.LID
	// LFT is by rank of the switch, then by LID 0 … Top: the port, or NoPort.
	LFT [][]uint8
	// Hops is by rank from and rank to: the links between two switches on the
	// shortest way that the engine allows, Unreachable if there is none. The way back
	// may be another one.
	Hops [][]uint8
	// Notes say, for people, what is not as it was asked for: an engine that
	// refused, a root that is not there, switches that do not reach each other.
	Notes []string

	graph *graph // of the subnet; nil where the tables were not made here
}

// Unreachable is the number of hops between switches that have no way to each
// other.
const Unreachable = 0xff

// Group is a multicast group as far as its tree goes: ports with LIDs, each
// once.
type Group struct {
	// MLID spreads the trees of different groups over equally good switches and
	// links.
	MLID ib.LID
	// Members get what is sent to the group, and may send.
	Members []topo.Ref
	// Senders may send, and get nothing.
	Senders []topo.Ref
}

// Tree is the way of one multicast group: the ports of each switch, by rank,
// that copies leave by; port 0 is the switch itself. Copies never come back to
// where they came from, so a tree has links in both directions. There is no entry
// that no copy would ever use: towards where only senders are, none leave.
type Tree map[int]topo.PortMask

// Engine computes routes.
type Engine interface {
	// Name is how a configuration calls the engine.
	Name() string
	// Unicast computes the tables. Ports without LIDs, and links that lead
	// nowhere, are left out. An error tells why the engine cannot serve the
	// subnet.
	Unicast(s *topo.Subnet) (*Tables, error)
	// Multicast computes the tree of a group; t are the tables that Unicast
	// returned for s. Ports that cannot be reached from the others are left out.
	Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error)
}

// Chain is engines in the order in which they are asked. The first that can serve
// a subnet does; MinHop does if none can. Tables.Notes tell of refusals.
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

// Multicast implements Engine: the engines do not differ in it.
func (c Chain) Multicast(s *topo.Subnet, t *Tables, g Group) (Tree, error) {
	return MinHop{}.Multicast(s, t, g)
}

// ErrEngine tells that there is no engine of that name.
var ErrEngine = errors.New("there is no such one: want minhop, updn, ftree, or several with commas between them")

// ByName returns the engine that names calls: one, or a Chain of several between
// commas. Without a name it is MinHop. roots are the node GUIDs of the switches
// that UpDn takes for the top; without any it looks for them.
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

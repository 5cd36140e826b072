// SPDX-License-Identifier: Apache-2.0

package cm

import "weft/internal/ib"

// Port is what a Manager must know of a port of the node.
type Port struct {
	Link   ib.LinkLayer
	CAGUID ib.GUID
	GIDs   []ib.GID
	PKeys  []ib.PKey
}

// Ports is the ports of the node.
type Ports interface {
	// Port returns the port of a function, as it is now; false where there is
	// none. The slices do not change.
	Port(function uint16) (Port, bool)
}

// Manager is the communication manager of a node.
type Manager struct{}

// Listener waits for requests for a service.
type Listener struct{}

// Conn is a connection, from the first request to the end of its TIMEWAIT.
type Conn struct{}

// Lookup is a question for the queue pair of a service of datagrams (SIDR, IBA
// volume 1, 12.11).
type Lookup struct{}

// Inquiry is a Lookup at the node that it asks.
type Inquiry struct{}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
	"weft/internal/fabric/link/fabric"
	"weft/internal/node/lane"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// function is a device of the node: a function of the adapter with its device socket.
type function struct {
	a        *hca.Adapter
	socket   *vhost.Server      // its device socket, nil before the node serves
	vm       *vmcard.Card       // the virtual machine card of this function, or nil; guarded by the table
	st       *vesw.DevicePort   // its Ethernet port in a virtual Ethernet switch, nil: it has none
	guest    *vesw.GuestPort    // its Ethernet port, which a guest owns, nil: it has none
	disabled bool               // by a request; guarded by the table
	asked    api.FunctionChange // all that was requested; guarded by the intent.Store, as it edits
	// its port is kept down, for that or with the whole adapter; guarded by the functionEditor's mu
	down bool
}

// switchboard is where InfiniBand ports are plugged in. The functionEditor calls it, one call at a time.
type switchboard interface {
	// Plug connects the port of a function that was added, on or off.
	Plug(a *hca.Adapter, on bool) error
	// Unplug disconnects it before the function is removed.
	Unplug(a *hca.Adapter)
	// Power lets the ports of functions come up, or takes them down; when it returns they are in that state, as far as
	// they depend on this node.
	Power(list []*hca.Adapter, on bool)
}

var _ switchboard = (*subnet.Subnet)(nil)

// Errors of functions.
var (
	errNoFunction = errors.New("there is no such device")
	errPhysical   = errors.New("a device of the physical function cannot be deleted")
)

// Sizes of the tables of an InfiniBand port, which its subnet manager fills.
const (
	pkeyTable = 32
	guidTable = 8
)

// newPort returns the InfiniBand port of a function before a subnet manager has configured it.
func newPort(guid ib.GUID, wireLocal bool) *hca.Port {
	p := &hca.Port{
		Link:          ib.LinkInfiniBand,
		State:         ib.PortInit,
		Phys:          ib.PhysLinkUp,
		MTU:           ib.MTU4096,
		MaxMTU:        ib.MTU4096,
		Width:         ib.Width4x,
		Speed:         ib.SpeedQDR,
		SpeedExt:      ib.SpeedEDR,
		SubnetTimeout: 18,
		GIDPrefix:     ib.DefaultGIDPrefix,
		PKeys:         make([]ib.PKey, pkeyTable),
		GUIDs:         make([]ib.GUID, guidTable),
		WireLocal:     wireLocal,
		MaxRun:        fabric.MaxRun,
		MaxLocalRun:   lane.LocalBurst,
	}
	p.PKeys[0], p.GUIDs[0] = ib.DefaultPKey, guid
	p.SetGIDs()
	return p
}

// switchPort returns the function's Ethernet port in a virtual Ethernet switch, nil if it has none.
func (f *function) switchPort() switchPort {
	switch {
	case f.st != nil:
		return f.st
	case f.guest != nil:
		return f.guest
	}
	return nil
}

// switchPort is the Ethernet port of a function in a virtual Ethernet switch. Any goroutine but a lane may call its
// methods.
type switchPort interface {
	// Port returns the port as the users of the function see it.
	Port() *hca.Port
	// Begin gives the port its function, Remove takes the function away.
	Begin(a *hca.Adapter) error
	Remove()
}

var (
	_ switchPort = (*vesw.DevicePort)(nil)
	_ switchPort = (*vesw.GuestPort)(nil)
)

// ethernet reports whether the function has an Ethernet port in a virtual Ethernet switch.
func (f *function) ethernet() bool { return f.st != nil || f.guest != nil }

// segment is where the function's Ethernet port is plugged, empty where it has none.
func (f *function) segment() string {
	switch {
	case f.st != nil:
		return f.st.Requested().Segment
	case f.guest != nil:
		return api.SegmentVESW
	case f.a.Port().Link == ib.LinkEthernet:
		return api.SegmentHost
	}
	return ""
}

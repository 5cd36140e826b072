// SPDX-License-Identifier: Apache-2.0

// Package agent is the management agents of one node of a subnet, a switch or a channel adapter: the
// directed-route interface (SMI), the subnet management agent (SMA) and the performance management agent (PMA).
//
// What comes in: datagrams of queue pairs 0 and 1 with their ingress port, changes of links, and time. What goes
// out: each datagram itself, as its own answer or forwarded; traps; and through Owner a notification of each
// change by a manager. The management goroutine of a node calls it, and the simulated subnets of
// test/simfab/subnet, with more than a thousand agents at a time. It starts nothing, reads no clock and writes only
// its own state, from which the owner reads the ports and the forwarding tables.
//
// Attributes are those of IBA volume 1, chapters 14 (subnet management) and 16.1 (performance management).
package agent

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Change is a set of what a manager, or a link, changed at a port.
type Change uint16

// Changes. Those of the forwarding tables and settings of a switch are reported for its port 0.
const (
	ChangedState       Change = 1 << iota // PortState or PortPhysicalState
	ChangedLID                            // LID or LMC
	ChangedSM                             // MasterSMLID or its SL
	ChangedPKeys                          // the P_Key table, or its enforcement
	ChangedGIDs                           // GIDPrefix or the GUID table
	ChangedMTU                            // NeighborMTU
	ChangedVLs                            // OperationalVLs, SLtoVL or arbitration
	ChangedTimeouts                       // SubnetTimeOut
	ChangedTables                         // forwarding tables, SwitchInfo
	ChangedDescription                    // NodeDescription
	ClientReregister                      // a manager requests that clients renew all registrations
	ChangedOther
)

// Order is a command of a manager for the link of a port.
type Order uint8

// Orders for links. After the call that brought the order has returned, the owner reports the result to the
// agents at both ends by LinkDown and LinkUp.
const (
	LinkBounce  Order = iota // take it down and negotiate anew
	LinkDisable              // take it down until LinkEnable
	LinkEnable               // let it come up if there is a peer
)

// Owner applies what managers change. The agent calls its methods from within its own; of the agent they may call
// only methods that read.
type Owner interface {
	// Changed reports that the state of a port changed: the owner reads what it needs and applies it.
	Changed(port uint8, what Change)
	// Link executes an order of a manager for the link of a port.
	Link(port uint8, order Order)
}

// Verdict is what the caller must do with a datagram after Handle, Originate or Next.
type Verdict uint8

// Verdicts.
const (
	Done    Verdict = iota // nothing: the agent consumed it, or dropped and counted it
	Send                   // send it by its Port, which is not 0, to the neighbour there
	Deliver                // pass it to the manager or a client at this node
)

// Caps are the capabilities of the ports of a node.
type Caps struct {
	MTU        ib.MTU
	VL         mad.VLCap
	Width      ib.LinkWidth
	Speed      ib.LinkSpeed
	SpeedExt   ib.LinkSpeedExt
	Mask       mad.Capability // of the port, or of a switch's port 0
	Mask2      mad.Capability2
	PKeys      uint16 // entries of the P_Key table of an adapter's port or a switch's port 0
	GUIDs      uint8  // entries of the GUID table
	ResponseTO uint8  // RespTimeValue
}

// Config describes a node.
type Config struct {
	Type            mad.NodeType // NodeCA or NodeSwitch
	NumPorts        uint8        // of a switch its external ports; an adapter has one
	SystemImageGUID ib.GUID
	NodeGUID        ib.GUID
	PortGUID        ib.GUID // 0 is NodeGUID
	VendorID        uint32
	DeviceID        uint16
	Revision        uint32
	Description     string
	Caps            Caps
	// EnforceCap is the size of the table of P_Keys by which each external port of a switch enforces partitions;
	// 0 is no enforcement.
	EnforceCap uint16
	// EnhancedPort0 makes port 0 of a switch an end port like that of an adapter.
	EnhancedPort0 bool
	// TIDs are the upper half of the transaction identifiers of traps.
	TIDs uint32
}

// EnforceCap is Config.EnforceCap of the switches of this project: a host with many devices and partitions fits.
const EnforceCap = 256

// DefaultCaps are those of the software ports of this project: one data lane, every MTU, 4X EDR.
var DefaultCaps = Caps{MTU: ib.MTU4096, VL: mad.VL0, Width: ib.Width1x | ib.Width4x,
	Speed:    ib.SpeedSDR | ib.SpeedDDR | ib.SpeedQDR,
	SpeedExt: ib.SpeedFDR | ib.SpeedEDR, PKeys: 32, GUIDs: 8, ResponseTO: 16,
	Mask: mad.CapTrap | mad.CapSystemImageGUID | mad.CapExtendedSpeeds | mad.CapCM | mad.CapClientReregistration |
		mad.CapCapabilityMaskNotice | mad.CapOtherLocalChangesNotice | mad.CapCapabilityMask2,
	Mask2: mad.Cap2SetNodeDescription}

// port is the state of a port in its SMA. A table is nil until a manager writes it.
type port struct {
	info   mad.PortInfo
	pkeys  []ib.PKey
	guids  []ib.GUID
	vlarb  *[4]mad.VLArb
	origin *origin // of its counters
	off    bool    // disabled or asleep by order
	// disabled is set by the operator of the node; a manager cannot override it.
	disabled bool
}

// Agent is the agents of one node. It has one owner goroutine.
type Agent struct {
	cfg      Config
	owner    Owner
	counters Counters
	desc     mad.NodeDescription
	ports    []port // by number; of an adapter [0] is not used
	sl2vl    map[uint32]mad.SLtoVL
	info     mad.SwitchInfo
	forward  *vswitch.Builder // of a switch
	lease    mono.Time        // when the protection by the M_Key ends
	traps    traps
	smp      mad.SMP   // the one being handled
	now      mono.Time // when
	Stats    Stats
}

// Stats count requests, traps and dropped datagrams.
type Stats struct {
	Gets, Sets, Forwarded, Traps                                                          uint64
	DropVersion, DropMethod, DropRoute, DropLID, DropPortDown, DropMKey, DropBadAddressed uint64
	// answered with a status
	Refused uint64
	// of datagrams to queue pair 1
	DropPKey, DropQKey uint64
}

// New returns the agents of the node that c describes. Without counters, which may be nil, all counts are 0.
func New(c Config, o Owner, counters Counters) *Agent {
	if c.Type != mad.NodeSwitch {
		c.Type, c.NumPorts = mad.NodeCA, 1
	}
	if c.PortGUID == 0 {
		c.PortGUID = c.NodeGUID
	}
	c.NumPorts = min(c.NumPorts, vswitch.MaxPorts)
	a := &Agent{cfg: c, owner: o, counters: counters, desc: mad.MakeNodeDescription(c.Description),
		ports: make([]port, int(c.NumPorts)+1)}
	for i := range a.ports {
		p := &a.ports[i]
		p.info = mad.PortInfo{LinkWidthSupported: c.Caps.Width, LinkWidthEnabled: c.Caps.Width,
			LinkSpeedSupported: c.Caps.Speed,
			LinkSpeedEnabled:   c.Caps.Speed, LinkSpeedExtSupported: c.Caps.SpeedExt, LinkSpeedExtEnabled: c.Caps.SpeedExt,
			PortState: ib.PortDown, PortPhysicalState: ib.PhysPolling, LinkDownDefaultState: ib.PhysPolling,
			NeighborMTU: c.Caps.MTU, MTUCap: c.Caps.MTU, VLCap: c.Caps.VL, OperationalVLs: c.Caps.VL,
			LinkWidthActive: ib.Width4x, LinkSpeedActive: ib.SpeedSDR}
		if c.Caps.VL > mad.VL0 {
			p.info.VLArbHighCap, p.info.VLArbLowCap = vlArbCap, vlArbCap
		}
	}
	end := a.end()
	end.info.GIDPrefix = ib.DefaultGIDPrefix
	end.info.CapabilityMask, end.info.CapabilityMask2 = c.Caps.Mask, c.Caps.Mask2
	end.info.SubnetTimeOut, end.info.RespTimeValue = 18, c.Caps.ResponseTO
	end.info.GUIDCap = c.Caps.GUIDs
	end.pkeys = make([]ib.PKey, c.Caps.PKeys)
	if len(end.pkeys) > 0 {
		end.pkeys[0] = ib.DefaultPKey
	}
	end.guids = make([]ib.GUID, max(1, c.Caps.GUIDs))
	end.guids[0] = c.PortGUID
	if c.Type == mad.NodeSwitch {
		end.info.PortState, end.info.PortPhysicalState = ib.PortActive, ib.PhysLinkUp
		a.info = mad.SwitchInfo{LinearFDBCap: uint16(vswitch.LinearCap), MulticastFDBCap: uint16(vswitch.MulticastCap),
			DefaultPort: vswitch.NoPort, DefaultMulticastPrimaryPort: vswitch.NoPort, DefaultMulticastNotPrimaryPort: vswitch.NoPort,
			LifeTimeValue: 18, PartitionEnforcementCap: c.EnforceCap, InboundEnforcementCap: c.EnforceCap > 0,
			OutboundEnforcementCap: c.EnforceCap > 0, EnhancedPort0: c.EnhancedPort0}
		a.forward = vswitch.NewBuilder(c.NumPorts)
	}
	return a
}

func (a *Agent) isSwitch() bool { return a.cfg.Type == mad.NodeSwitch }

// endPort is the number of the port that has the LID of the node: 0 of a switch, 1 of an adapter.
func (a *Agent) endPort() uint8 {
	if a.isSwitch() {
		return 0
	}
	return 1
}

func (a *Agent) end() *port { return &a.ports[a.endPort()] }

// Config returns what the node is.
func (a *Agent) Config() Config { return a.cfg }

// Description returns the node's description.
func (a *Agent) Description() string { return a.desc.String() }

// Port returns the state of a port, nil of a port that does not exist. The agent owns it and changes it.
func (a *Agent) Port(n uint8) *mad.PortInfo {
	if int(n) >= len(a.ports) || n == 0 && !a.isSwitch() {
		return nil
	}
	return &a.ports[n].info
}

// PKeys returns the P_Key table of a port, 0 where an entry is empty. The agent owns it.
func (a *Agent) PKeys(n uint8) []ib.PKey {
	if a.Port(n) == nil {
		return nil
	}
	return a.ports[n].pkeys
}

// GUIDs returns the GUID table of the end port of the node, the port GUID first. The agent owns it.
func (a *Agent) GUIDs() []ib.GUID { return a.end().guids }

// SwitchInfo returns the settings of a switch.
func (a *Agent) SwitchInfo() mad.SwitchInfo { return a.info }

// SLtoVL returns the lane of each service level, of an adapter with in and out
// 0, of a switch from port in to port out.
func (a *Agent) SLtoVL(in, out uint8) mad.SLtoVL {
	if t, ok := a.sl2vl[mad.SLtoVLModifier(in, out)]; ok {
		return t
	}
	return defaultSLtoVL(a.cfg.Caps.VL)
}

// defaultSLtoVL spreads the service levels over the virtual lanes.
func defaultSLtoVL(c mad.VLCap) (t mad.SLtoVL) {
	n := max(1, c.Lanes())
	for i := range t {
		t[i] = uint8(i % n)
	}
	return t
}

// Forwarding returns the tables of a switch, nil of an adapter. The SMA writes them; the owner reads them, or
// makes snapshots for other goroutines.
func (a *Agent) Forwarding() *vswitch.Builder { return a.forward }

// LID returns the base LID of the node, 0 until a manager assigns one.
func (a *Agent) LID() ib.LID { return a.end().info.LID }

// IsMine reports whether lid is one of the LIDs of the node.
func (a *Agent) IsMine(lid ib.LID) bool {
	i := &a.end().info
	return i.LID != 0 && lid>>i.LMC == i.LID>>i.LMC
}

// changed reports a change of a port to the owner, and to the forwarding of a switch.
func (a *Agent) changed(n uint8, what Change) {
	if a.forward != nil && what&(ChangedState|ChangedPKeys) != 0 {
		p := &a.ports[n]
		a.forward.SetPort(n, vswitch.Port{State: p.info.PortState, EnforceIn: p.info.PartitionEnforceIn,
			EnforceOut: p.info.PartitionEnforceOut,
			PKeys:      p.pkeys})
	}
	if a.owner != nil && what != 0 {
		a.owner.Changed(n, what)
	}
}

func (a *Agent) order(n uint8, o Order) {
	if a.owner != nil {
		a.owner.Link(n, o)
	}
}

// Link is what two ports agreed on when their link came up.
type Link struct {
	Width    ib.LinkWidth
	Speed    ib.LinkSpeed
	SpeedExt ib.LinkSpeedExt
}

// LinkUp moves a port to INIT because its link came up. It ignores a port that is up, or disabled by the operator
// or a manager.
func (a *Agent) LinkUp(now mono.Time, n uint8, l Link) {
	p := a.external(n)
	if p == nil || p.off || p.disabled || p.info.PortPhysicalState == ib.PhysLinkUp {
		return
	}
	p.info.PortPhysicalState, p.info.PortState = ib.PhysLinkUp, ib.PortInit
	p.info.LinkWidthActive, p.info.LinkSpeedActive, p.info.LinkSpeedExtActive = l.Width, l.Speed, l.SpeedExt
	a.linkChanged(now, n)
}

// LinkDown moves a port to DOWN because its link went down.
func (a *Agent) LinkDown(now mono.Time, n uint8) {
	p := a.external(n)
	if p == nil || p.info.PortPhysicalState != ib.PhysLinkUp {
		return
	}
	p.info.PortState, p.info.PortPhysicalState = ib.PortDown, p.info.LinkDownDefaultState
	a.linkChanged(now, n)
}

// Disable disables a port for the operator: its physical state is Disabled, and no manager brings its link up
// before Enable.
func (a *Agent) Disable(now mono.Time, n uint8) {
	p := a.external(n)
	if p == nil || p.disabled {
		return
	}
	p.disabled = true
	p.info.PortState, p.info.PortPhysicalState = ib.PortDown, ib.PhysDisabled
	a.linkChanged(now, n)
}

// Enable undoes Disable: the port waits for its link, unless a manager disabled it too.
func (a *Agent) Enable(now mono.Time, n uint8) {
	p := a.external(n)
	if p == nil || !p.disabled {
		return
	}
	p.disabled = false
	if !p.off {
		p.info.PortPhysicalState = ib.PhysPolling
		a.linkChanged(now, n)
	}
}

// external returns a port that can have a link.
func (a *Agent) external(n uint8) *port {
	if n == 0 || int(n) >= len(a.ports) {
		return nil
	}
	return &a.ports[n]
}

// Enabled reports whether the port may have a link: neither the operator nor a manager disabled it.
func (a *Agent) Enabled(n uint8) bool {
	p := a.external(n)
	return p != nil && !p.off && !p.disabled
}

// linkChanged reports a change of a link to the owner, and that of a switch to the manager by a trap.
func (a *Agent) linkChanged(now mono.Time, n uint8) {
	a.changed(n, ChangedState)
	if a.isSwitch() {
		a.info.PortStateChange = true
		a.raise(now, trapLinkState, mad.LinkStateNotice(a.LID()))
	}
}

// SetDescription changes the description of the node and reports it to the manager by a trap.
func (a *Agent) SetDescription(now mono.Time, text string) {
	if d := mad.MakeNodeDescription(text); d != a.desc {
		a.desc = d
		a.trapLocalChange(now, localDescription)
	}
}

// SetCapability changes capabilities of the end port of the node, such as CapIsSM while a manager is attached, and
// reports it to the manager by a trap.
func (a *Agent) SetCapability(now mono.Time, mask mad.Capability, on bool) {
	i := &a.end().info
	c := i.CapabilityMask &^ mask
	if on {
		c |= mask
	}
	if c != i.CapabilityMask {
		i.CapabilityMask = c
		a.trapLocalChange(now, 0)
	}
}

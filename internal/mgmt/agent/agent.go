// SPDX-License-Identifier: Apache-2.0

// Package agent is the management agents of one node of a subnet, a switch or
// a channel adapter: the directed-route interface (SMI), the subnet management
// agent (SMA) and the performance management agent (PMA).
//
// What comes in: datagrams of queue pairs 0 and 1 with the port they came by,
// what happens to links, and time. What goes out: each datagram itself, turned
// into its answer or sent on; traps; and through Owner the news of what a
// manager changed. The management goroutine of a node calls it, and the
// simulated subnets of package simfab, with more than a thousand at a time. It
// never starts anything, reads no clock, and touches nothing but its own state: what
// the ports and forwarding tables are the owner reads from it.
//
// Attributes are those of IBA volume 1, chapters 14 (subnet management) and
// 16.1 (performance management).
package agent

import (
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Change is a set of what a manager, or a link, changed at a port.
type Change uint16

// Changes. Tables are the forwarding tables and settings of a switch; port 0
// bears them.
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
	ClientReregister                      // a manager asks for all registrations to be renewed
	ChangedOther
)

// Order is what a manager wants of a port's link.
type Order uint8

// Orders for links. The owner tells the agents at both ends with LinkDown and
// LinkUp what became of it, after the call that brought the order has
// returned.
const (
	LinkBounce  Order = iota // take it down and negotiate anew
	LinkDisable              // take it down until LinkEnable
	LinkEnable               // let it come up if there is a peer
)

// Owner is who the agent works for. Its methods are called from within the
// agent's and must not call the agent's other than to read.
type Owner interface {
	// Changed tells that the agent's view of a port changed: the owner reads
	// what it needs and applies it.
	Changed(port uint8, what Change)
	// Link passes on what a manager orders for the link of a port.
	Link(port uint8, order Order)
}

// Verdict is what is to be done with a datagram after the agent had it.
type Verdict uint8

// Verdicts.
const (
	Done    Verdict = iota // nothing: it was consumed, or dropped and counted
	Send                   // it leaves by its Port, which is not 0, to the neighbour there
	Deliver                // it is for the manager or a client at this node
)

// Caps is what the ports of a node can do.
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
	// EnforceCap is the number of P_Keys that each external port of a switch can
	// compare packets with; 0 is no enforcement.
	EnforceCap uint16
	// EnhancedPort0 tells that port 0 of a switch is an end port like an
	// adapter's.
	EnhancedPort0 bool
	// TIDs are the upper half of the transaction identifiers of traps.
	TIDs uint32
}

// DefaultCaps are those of the software ports of this project: one data lane, every MTU, 4X EDR.
var DefaultCaps = Caps{MTU: ib.MTU4096, VL: mad.VL0, Width: ib.Width1x | ib.Width4x, Speed: ib.SpeedSDR | ib.SpeedDDR | ib.SpeedQDR,
	SpeedExt: ib.SpeedFDR | ib.SpeedEDR, PKeys: 32, GUIDs: 8, ResponseTO: 16,
	Mask: mad.CapTrap | mad.CapSystemImageGUID | mad.CapExtendedSpeeds | mad.CapCM | mad.CapClientReregistration |
		mad.CapCapabilityMaskNotice | mad.CapOtherLocalChangesNotice | mad.CapCapabilityMask2,
	Mask2: mad.Cap2SetNodeDescription}

// port is a port as its SMA knows it. Tables that nobody wrote are nil.
type port struct {
	info   mad.PortInfo
	pkeys  []ib.PKey
	guids  []ib.GUID
	vlarb  *[4]mad.VLArb
	origin *origin // of its counters
	off    bool    // disabled or asleep by order
	// disabled is what whoever runs the node says: no manager is asked.
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
	lease    mono.Time        // when the M_Key's protection ends
	traps    [numTraps]trap
	trapTID  uint32
	smp      mad.SMP   // the one being handled
	now      mono.Time // when
	Stats    Stats
}

// Stats count what the agents did, and why they dropped.
type Stats struct {
	Gets, Sets, Forwarded, Traps                                                          uint64
	DropVersion, DropMethod, DropRoute, DropLID, DropPortDown, DropMKey, DropBadAddressed uint64
	Refused                                                                               uint64 // answered with a status
	DropPKey, DropQKey                                                                    uint64 // of datagrams to queue pair 1
}

// New returns the agents of the node that c describes. counters may be nil:
// then all are 0.
func New(c Config, o Owner, counters Counters) *Agent {
	if c.Type != mad.NodeSwitch {
		c.Type, c.NumPorts = mad.NodeCA, 1
	}
	if c.PortGUID == 0 {
		c.PortGUID = c.NodeGUID
	}
	c.NumPorts = min(c.NumPorts, vswitch.MaxPorts)
	a := &Agent{cfg: c, owner: o, counters: counters, desc: mad.MakeNodeDescription(c.Description), ports: make([]port, int(c.NumPorts)+1)}
	for i := range a.ports {
		p := &a.ports[i]
		p.info = mad.PortInfo{LinkWidthSupported: c.Caps.Width, LinkWidthEnabled: c.Caps.Width, LinkSpeedSupported: c.Caps.Speed,
			LinkSpeedEnabled: c.Caps.Speed, LinkSpeedExtSupported: c.Caps.SpeedExt, LinkSpeedExtEnabled: c.Caps.SpeedExt,
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

// endPort is the number of the port that has the node's LID: 0 of a switch, 1
// of an adapter.
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

// Port returns the state of a port; it is the agent's and changes with it. For
// a port that does not exist it is nil.
func (a *Agent) Port(n uint8) *mad.PortInfo {
	if int(n) >= len(a.ports) || n == 0 && !a.isSwitch() {
		return nil
	}
	return &a.ports[n].info
}

// PKeys returns the P_Key table of a port, zero where empty; it is the agent's.
func (a *Agent) PKeys(n uint8) []ib.PKey {
	if a.Port(n) == nil {
		return nil
	}
	return a.ports[n].pkeys
}

// GUIDs returns the GUID table of the node's end port, the port GUID first; it is the agent's.
func (a *Agent) GUIDs() []ib.GUID { return a.end().guids }

// SwitchInfo returns the settings of a switch.
func (a *Agent) SwitchInfo() mad.SwitchInfo { return a.info }

// SLtoVL returns the lane of each service level, of an adapter with in and out
// 0, of a switch from port in to port out.
func (a *Agent) SLtoVL(in, out uint8) mad.SLtoVL {
	if t, ok := a.sl2vl[mad.SLtoVLModifier(in, out)]; ok {
		return t
	}
	return a.defaultSLtoVL()
}

// defaultSLtoVL spreads the service levels over the lanes there are.
func (a *Agent) defaultSLtoVL() (t mad.SLtoVL) {
	n := max(1, a.cfg.Caps.VL.Lanes())
	for i := range t {
		t[i] = uint8(i % n)
	}
	return t
}

// Forwarding returns the tables of a switch, nil of an adapter. The owner reads
// them, or takes snapshots for others; a switch's SMA writes them.
func (a *Agent) Forwarding() *vswitch.Builder { return a.forward }

// LID returns the node's base LID, 0 as long as no manager gave it one.
func (a *Agent) LID() ib.LID { return a.end().info.LID }

// IsMine reports whether lid is one of the node's.
func (a *Agent) IsMine(lid ib.LID) bool {
	i := &a.end().info
	return i.LID != 0 && lid>>i.LMC == i.LID>>i.LMC
}

// changed tells the owner, and a switch's forwarding, about a port.
func (a *Agent) changed(n uint8, what Change) {
	if a.forward != nil && what&(ChangedState|ChangedPKeys) != 0 {
		p := &a.ports[n]
		a.forward.SetPort(n, vswitch.Port{State: p.info.PortState, EnforceIn: p.info.PartitionEnforceIn, EnforceOut: p.info.PartitionEnforceOut,
			PKeys: p.pkeys})
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

// LinkUp tells that the link of a port came up: the port is in INIT. It does
// nothing to a port that is switched off by order, or up.
func (a *Agent) LinkUp(now mono.Time, n uint8, l Link) {
	p := a.external(n)
	if p == nil || p.off || p.disabled || p.info.PortPhysicalState == ib.PhysLinkUp {
		return
	}
	p.info.PortPhysicalState, p.info.PortState = ib.PhysLinkUp, ib.PortInit
	p.info.LinkWidthActive, p.info.LinkSpeedActive, p.info.LinkSpeedExtActive = l.Width, l.Speed, l.SpeedExt
	a.linkChanged(now, n)
}

// LinkDown tells that the link of a port went down.
func (a *Agent) LinkDown(now mono.Time, n uint8) {
	p := a.external(n)
	if p == nil || p.info.PortPhysicalState != ib.PhysLinkUp {
		return
	}
	p.info.PortState, p.info.PortPhysicalState = ib.PortDown, p.info.LinkDownDefaultState
	a.linkChanged(now, n)
}

// Disable tells that whoever runs the node switched a port off: its physical
// state is Disabled, and no manager brings its link up before Enable.
func (a *Agent) Disable(now mono.Time, n uint8) {
	p := a.external(n)
	if p == nil || p.disabled {
		return
	}
	p.disabled = true
	p.info.PortState, p.info.PortPhysicalState = ib.PortDown, ib.PhysDisabled
	a.linkChanged(now, n)
}

// Enable undoes Disable: the port waits for its link, unless a manager
// switched it off too.
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

// Wants reports whether the port takes part in links: nobody switched it off.
func (a *Agent) Wants(n uint8) bool {
	p := a.external(n)
	return p != nil && !p.off && !p.disabled
}

// linkChanged tells the owner and the manager about a link.
func (a *Agent) linkChanged(now mono.Time, n uint8) {
	a.changed(n, ChangedState)
	if a.isSwitch() {
		a.info.PortStateChange = true
		a.trapLinkState(now)
	}
}

// SetDescription changes the node's description from within the node and tells
// the manager.
func (a *Agent) SetDescription(now mono.Time, text string) {
	if d := mad.MakeNodeDescription(text); d != a.desc {
		a.desc = d
		a.trapLocalChange(now, localDescription)
	}
}

// SetCapability changes capabilities of the node's end port, such as
// CapIsSM while a manager is attached, and tells the manager.
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

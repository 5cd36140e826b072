// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"slices"
	"syscall"

	"weft/internal/proto/ib"
)

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	GID     ib.GID
	NetDev  string // interface that holds the address
	IfIndex int
	MTU     ib.MTU // the largest path MTU of the interface, 0: that of the port
	// LocalOnly marks an address that no packet can leave the node with.
	LocalOnly bool
}

// Port is what the port of a function looks like; immutable once published.
type Port struct {
	Link      ib.LinkLayer
	State     ib.PortState
	Phys      ib.PhysState
	MTU       ib.MTU // in use
	MaxMTU    ib.MTU
	GIDs      []GIDEntry // unset entries are zero; an index is stable while its entry exists
	PKeys     []ib.PKey  // as the subnet manager wrote them; zero is an unused entry
	WireLocal bool       // also traffic within the node takes the wire path
	// OverFabric: the packets of an Ethernet port leave in frames of a virtual switch, and wait for the fabric's link
	// where that is blocked.
	OverFabric bool
	// Allow is the addresses of other nodes that an Ethernet port exchanges packets with; nil: all.
	Allow *ib.AddrSet
	// Route returns an error if the host has no route for packets of an Ethernet port from an entry of GIDs to a GID;
	// nil: there is always one. It must not wait.
	Route func(src *GIDEntry, dst ib.GID, tclass uint8) error
	// MaxRun bounds the payload of a burst towards other nodes, MaxLocalRun
	// within the node.
	MaxRun, MaxLocalRun uint32

	// What follows an InfiniBand port has beyond that (IBA volume 1,
	// 14.2.5.6): most of it its subnet manager writes.
	LID           ib.LID // of which the low LMC bits are zero; 0: none yet
	LMC           uint8
	SMLID         ib.LID
	SMSL          uint8
	SubnetTimeout uint8
	InitType      uint8
	Width         ib.LinkWidth // active
	Speed         ib.LinkSpeed
	SpeedExt      ib.LinkSpeedExt
	CapMask       uint32
	GIDPrefix     uint64
	// Violations of keys since the subnet manager set them to 0 last.
	PKeyViolations, QKeyViolations uint16
	GUIDs                          []ib.GUID // of which SetGIDs makes the GID table
}

// native reports whether the port routes by LIDs.
func (p *Port) native() bool { return p.Link == ib.LinkInfiniBand }

// Lookup returns the index of gid in the table, or -1.
func (p *Port) Lookup(gid ib.GID) int {
	for i := range p.GIDs {
		if p.GIDs[i].GID == gid && !gid.IsZero() {
			return i
		}
	}
	return -1
}

// PathMTU is the largest path MTU of packets that leave by the interface of a GID; that of the port for other GIDs.
func (p *Port) PathMTU(gid ib.GID) ib.MTU {
	if i := p.Lookup(gid); i >= 0 && p.GIDs[i].MTU.Valid() {
		return min(p.GIDs[i].MTU, p.MTU)
	}
	return p.MTU
}

// EthernetGIDs is the length of an Ethernet port's GID table as clients see it: sgid_index has eight bits.
const EthernetGIDs = 256

// GIDTableLen returns how many entries the port's GID table has for clients.
func (p *Port) GIDTableLen() int {
	if p.Link == ib.LinkInfiniBand {
		return len(p.GIDs)
	}
	return EthernetGIDs
}

// own reports whether traffic with gid never leaves the node.
func (p *Port) own(gid ib.GID) bool { return !p.WireLocal && p.Lookup(gid) >= 0 }

// Allows reports whether an Ethernet port sends packets to a GID: its own addresses are allowed, and groups, since they
// have members on this node. The link decides about what of a group leaves the node.
func (p *Port) Allows(gid ib.GID) bool {
	return p.Allow == nil || p.Allow.Contains(&gid) || p.Lookup(gid) >= 0 || gid.IsMulticast()
}

// leaves returns an error if no packet can leave the node from an Ethernet port's GID at an index to another: the
// source is no address of the host (EINVAL), or the host has no route. Groups have members on this node, and need none.
func (p *Port) leaves(index uint8, src, dst ib.GID, tclass uint8) error {
	if dst.IsMulticast() {
		return nil
	}
	i := int(index)
	if i >= len(p.GIDs) || p.GIDs[i].GID != src {
		if i = p.Lookup(src); i < 0 {
			return nil // a session's own address, of a segment that routes by it
		}
	}
	if p.GIDs[i].LocalOnly {
		return syscall.EINVAL
	}
	if p.Route == nil {
		return nil
	}
	return p.Route(&p.GIDs[i], dst, tclass)
}

// SetGIDs derives the GID table of an InfiniBand port that is not published
// yet from its prefix and GUIDs. GUID 0 is an unused entry, but the first.
func (p *Port) SetGIDs() {
	p.GIDs = make([]GIDEntry, len(p.GUIDs))
	for i, g := range p.GUIDs {
		if g != 0 {
			p.GIDs[i].GID = ib.MakeGID(p.GIDPrefix, g)
		}
	}
}

// accepts reports whether a packet by way of path is for an InfiniBand port:
// the DLID is one of its own or a group's, and so is the DGID where there is one
// (IBA volume 1, 7.7.8 and 9.6.1.2).
func (p *Port) accepts(path *ib.Path) bool {
	if path.DLID.IsMulticast() {
		return path.Global
	}
	return p.LID.Owns(p.LMC, path.DLID) && (!path.Global || p.Lookup(path.DGID) >= 0)
}

// Changes lists the events that a session must get when old is replaced by
// p, most important first. CLIENT_REREGISTER, which no attribute shows, is the
// caller's to add.
func (p *Port) Changes(old *Port) (events []ib.Event) {
	add := func(changed bool, e ib.Event) {
		if changed {
			events = append(events, e)
		}
	}
	was, is := old.State == ib.PortActive, p.State == ib.PortActive
	add(was && !is, ib.EventPortDown)
	add(p.LID != old.LID || p.LMC != old.LMC, ib.EventLIDChange)
	add(!slices.Equal(p.PKeys, old.PKeys), ib.EventPKeyChange)
	add(!slices.Equal(p.GIDs, old.GIDs), ib.EventGIDChange)
	add(p.SMLID != old.SMLID || p.SMSL != old.SMSL, ib.EventSMChange)
	add(is && !was, ib.EventPortActive)
	return events
}

// PortCounters are what a lane counted for the port of one function (IBA
// volume 1, 16.1.3.5 and 16.1.4); those of all lanes together are the port's.
// XmitData and RcvData are in words of four bytes, from the LRH through the
// ICRC. Only native packets are counted.
type PortCounters struct {
	XmitData, RcvData                   uint64
	XmitPkts, RcvPkts                   uint64
	UnicastXmitPkts, UnicastRcvPkts     uint64
	MulticastXmitPkts, MulticastRcvPkts uint64
	XmitDiscards                        uint64 // the port was not active, or no link accepted the packet
	XmitConstraintErrors                uint64 // no valid P_Key to send with
	RcvErrors                           uint64 // not for this port, or it was not active
	PKeyViolations, QKeyViolations      uint64
}

// Add adds o to c.
func (c *PortCounters) Add(o *PortCounters) {
	c.XmitData += o.XmitData
	c.RcvData += o.RcvData
	c.XmitPkts += o.XmitPkts
	c.RcvPkts += o.RcvPkts
	c.UnicastXmitPkts += o.UnicastXmitPkts
	c.UnicastRcvPkts += o.UnicastRcvPkts
	c.MulticastXmitPkts += o.MulticastXmitPkts
	c.MulticastRcvPkts += o.MulticastRcvPkts
	c.XmitDiscards += o.XmitDiscards
	c.XmitConstraintErrors += o.XmitConstraintErrors
	c.RcvErrors += o.RcvErrors
	c.PKeyViolations += o.PKeyViolations
	c.QKeyViolations += o.QKeyViolations
}

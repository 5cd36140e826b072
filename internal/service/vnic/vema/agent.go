// SPDX-License-Identifier: Apache-2.0

// Package vema is the virtual Ethernet management agent of a port of the fabric: through it an
// Ethernet Manager configures the port's vports.
//
// What comes in: MADs of class 0x34 that reached the port's queue pair 1, the attributes that the
// subnet manager set, and time. What goes out: each request as its own response, calls of the vnic.Ports,
// and traps. The management goroutine of a node calls it, for each of its functions. It never sends,
// blocks or reads a clock, changes nothing for a MAD without a successful response, and accepts a Set
// only from a trusted manager.
//
// docs/notes/vesw.md has formats, responses and the trusted managers.
package vema

import (
	"encoding/binary"
	"slices"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

// ports makes and configures the vports of the port, by the low octet of an attribute's modifier. An error refuses the
// request, and then nothing has changed.
type ports interface {
	// Info returns the defaults with a LinkStatus of 0 where there is no vport.
	Info(vport uint8) mad.VESWPortInfo
	// SetInfo makes the vport where there is none.
	SetInfo(now mono.Time, vport uint8, i *mad.VESWPortInfo) error
	Delete(now mono.Time, vport uint8) error
	Remove(now mono.Time, vport uint8) error
}

// macTables are the MAC addresses of each vport: the table that the manager writes, and the lists of its interface.
type macTables interface {
	// MACEntries copies the slots from offset on to dst, a range of the table.
	MACEntries(vport uint8, offset int, dst []mad.VESWMACEntry) (digest uint32, err error)
	SetMACEntries(vport uint8, offset int, e []mad.VESWMACEntry, digest uint32) error
	UnicastMACs(vport uint8, start int, dst [][6]byte) (n, total int, gen uint16, err error)
	MulticastMACs(vport uint8, start int, dst [][6]byte) (n, total int, gen uint16, err error)
}

// traps are the events of vports that wait for the manager. It is not called as long as there is nowhere to send them.
type traps interface {
	// NextTrap returns a trap to be sent now, and Deadline when there may be one.
	NextTrap(now mono.Time) (t vnic.Trap, ok bool)
	Deadline() mono.Time
}

// Counters returns the counters of a vport that exists; the caller fills in its number.
type Counters func(vport uint8) (mad.VESWSummary, mad.VESWErrors)

// Config is what an agent works for.
type Config struct {
	Ports    *vnic.Ports
	Counters Counters // nil: all are 0
	// Managers are LIDs: their Sets are accepted besides those of the subnet manager and of the trap
	// LID in force.
	Managers []ib.LID
	// DriverPortNum has counters name the port of the fabric, as the driver does, where the port's
	// number within the VESW belongs.
	DriverPortNum bool
}

// Port holds the attributes of the port of the fabric that the agent depends on.
type Port struct {
	LID, SMLID ib.LID
	Active     bool
}

// Stats count requests, and refusals by reason.
type Stats struct {
	Gets, Sets, Traps uint64
	Unsupported       uint64 // answered with mad.StatusBadMethodAttr
	Invalid           uint64 // answered with mad.StatusInvalidValue
	Untrusted         uint64 // of those: Sets of strangers
	DropNotMine       uint64 // neither Get nor Set, or not of the class as it must be
}

// Agent is the agent of one port.
type Agent struct {
	cfg    Config
	ports  ports
	macs   macTables
	traps  traps
	number uint8 // of the port of the fabric
	port   Port
	stats  Stats
	// stored is the ClassPortInfo as the manager wrote it, all of it; info is what it means.
	stored   [mad.VEMAClassPortInfoLen]byte
	info     mad.VEMAClassPortInfo
	known    bool   // it was written
	stranger ib.LID // source of the last refused Set
	tid      uint64
	req      mad.VEMA // being handled; its Data becomes the answer's
	entries  mad.VESWMACEntries
	list     mad.VESWMACList
}

// maxVPorts is the number of vports in ClassPortInfo.
const maxVPorts = 255

// respTime is the response time that it names: 4.096 µs · 2^18.
const respTime = 18

// New returns the agent of a port.
func New(cfg Config) *Agent {
	p := cfg.Ports
	return newAgent(cfg, p, p, p, p.OPAPort())
}

func newAgent(cfg Config, p ports, m macTables, t traps, number uint8) *Agent {
	a := &Agent{cfg: cfg, ports: p, macs: m, traps: t, number: number}
	a.store(nil)
	return a
}

// SetPort updates the attributes of the port.
func (a *Agent) SetPort(p Port) { a.port = p }

// Waiting reports whether no Ethernet Manager has turned up since the agent was made.
func (a *Agent) Waiting() bool { return !a.known }

// Manager returns the LID that traps go to, 0 where they go nowhere.
func (a *Agent) Manager() ib.LID { return ib.LID(a.info.Trap.LID) }

// Stats returns the counters, and the source LID of the last refused Set.
func (a *Agent) Stats() (s Stats, stranger ib.LID) { return a.stats, a.stranger }

// Handle takes a MAD that reached queue pair 1 of the port and makes its answer
// of it, which goes back where it came from. It is false where the MAD is none of
// the agent's, neither Get nor Set or not of the class as it must be; then d is as it was.
func (a *Agent) Handle(now mono.Time, d *mad.Datagram) bool {
	m := &a.req
	if len(d.Long) != mad.OPALen || !mad.IsVEMA(d.Long) || m.Parse(d.Long) != nil || m.Method != mad.MethodGet &&
		m.Method != mad.MethodSet {
		a.stats.DropNotMine++
		return false
	}
	var status mad.Status
	if m.Method == mad.MethodGet {
		a.stats.Gets++
		status = a.get()
	} else {
		a.stats.Sets++
		if !settable(m.AttributeID) {
			status = mad.StatusBadMethodAttr
		} else if !a.trusts(d) {
			status = mad.StatusInvalidValue
			a.stats.Untrusted++
			a.stranger = d.SLID
		} else {
			status = a.set(now)
		}
	}
	switch status {
	case mad.StatusBadMethodAttr:
		a.stats.Unsupported++
	case mad.StatusInvalidValue:
		a.stats.Invalid++
	}
	// The headers are the request's, with what means nothing in them.
	answer := slices.Clone(d.Long)
	answer[3] = byte(mad.MethodGetResp)
	binary.BigEndian.PutUint16(answer[4:], uint16(status))
	data := answer[mad.VEMAHeaderLen:]
	clear(data)
	if status == mad.StatusOK {
		copy(data, m.Data[:])
	}
	*d = d.Reply()
	d.Long = answer
	copy(d.Data[:], answer)
	return true
}

// trusts reports whether the sender of a datagram may change something.
func (a *Agent) trusts(d *mad.Datagram) bool {
	if d.SrcQPN != ib.QPNGSI || !d.SLID.IsUnicast() {
		return false
	}
	return d.SLID == a.port.SMLID || uint32(d.SLID) == a.info.Trap.LID || slices.Contains(a.cfg.Managers, d.SLID)
}

// settable reports whether there is a Set of an attribute.
func settable(id mad.AttributeID) bool {
	switch id {
	case mad.AttrClassPortInfo, mad.AttrVESWPortInfo, mad.AttrVESWMACEntries, mad.AttrVESWDelete, mad.AttrVESWRemove:
		return true
	}
	return false
}

// answer makes c the data of the answer.
func (a *Agent) answer(c interface{ Append([]byte) []byte }) mad.Status {
	a.req.Data = [mad.VEMADataLen]byte{}
	c.Append(a.req.Data[:0])
	return mad.StatusOK
}

// get writes the requested attribute into the response.
func (a *Agent) get() mad.Status {
	vport := mad.VEMAVPort(a.req.AttributeModifier)
	switch a.req.AttributeID {
	case mad.AttrClassPortInfo:
		return a.classPortInfo()
	case mad.AttrVESWPortInfo:
		return a.portInfo(vport)
	case mad.AttrVESWMACEntries:
		a.entries.Parse(a.req.Data[:])
		return a.macEntries(vport)
	case mad.AttrVESWUnicastMACs:
		return a.macList(vport, a.macs.UnicastMACs)
	case mad.AttrVESWMcastMACs:
		return a.macList(vport, a.macs.MulticastMACs)
	case mad.AttrVESWSummary, mad.AttrVESWErrors:
		return a.counters(vport)
	}
	return mad.StatusBadMethodAttr
}

func (a *Agent) classPortInfo() mad.Status {
	a.req.Data = [mad.VEMADataLen]byte{}
	copy(a.req.Data[:], a.stored[:])
	return mad.StatusOK
}

func (a *Agent) portInfo(vport uint8) mad.Status {
	i := a.ports.Info(vport)
	return a.answer(&i)
}

// macEntries answers with the range that a.entries names.
func (a *Agent) macEntries(vport uint8) mad.Status {
	e := &a.entries
	if !e.Valid() {
		return mad.StatusInvalidValue
	}
	e.Entries = [mad.VESWMACsPerMAD]mad.VESWMACEntry{}
	digest, err := a.macs.MACEntries(vport, int(e.Offset), e.Entries[:e.Num])
	if err != nil {
		return mad.StatusInvalidValue
	}
	e.Digest = digest
	return a.answer(e)
}

// macList responds with a part of a list, for any requested length.
func (a *Agent) macList(vport uint8, list func(uint8, int, [][6]byte) (int, int, uint16, error)) mad.Status {
	l := &a.list
	l.Parse(a.req.Data[:])
	most := int(l.Num)
	if most == 0 || most > mad.VESWListPerMAD {
		most = mad.VESWListPerMAD
	}
	l.MACs = [mad.VESWListPerMAD][6]byte{}
	n, total, gen, err := list(vport, int(l.Start), l.MACs[:most])
	if err != nil {
		return mad.StatusInvalidValue
	}
	l.Num, l.Total, l.Gen = uint16(n), uint16(total), gen
	return a.answer(l)
}

func (a *Agent) counters(vport uint8) mad.Status {
	i := a.ports.Info(vport)
	if i.Port.LinkStatus == 0 {
		return mad.StatusInvalidValue
	}
	var s mad.VESWSummary
	var e mad.VESWErrors
	if a.cfg.Counters != nil {
		s, e = a.cfg.Counters(vport)
	}
	num := i.Port.PortNum
	if a.cfg.DriverPortNum {
		num = uint32(a.number)
	}
	s.VPort, s.VESWID, s.PortNum = uint16(vport), i.VESW.VESWID, num
	e.VPort, e.VESWID, e.PortNum = s.VPort, s.VESWID, num
	if a.req.AttributeID == mad.AttrVESWErrors {
		return a.answer(&e)
	}
	return a.answer(&s)
}

// set executes a trusted request for a settable attribute and writes the response.
func (a *Agent) set(now mono.Time) mad.Status {
	vport := mad.VEMAVPort(a.req.AttributeModifier)
	var err error
	switch a.req.AttributeID {
	case mad.AttrClassPortInfo:
		if !a.store(a.req.Data[:]) {
			return mad.StatusInvalidValue
		}
		a.known = true
		return a.classPortInfo()
	case mad.AttrVESWMACEntries:
		e := &a.entries
		e.Parse(a.req.Data[:])
		if !e.Valid() || a.macs.SetMACEntries(vport, int(e.Offset), e.Entries[:e.Num], e.Digest) != nil {
			return mad.StatusInvalidValue
		}
		return a.macEntries(vport)
	case mad.AttrVESWRemove:
		if a.ports.Remove(now, vport) != nil {
			return mad.StatusInvalidValue
		}
		a.req.Data = [mad.VEMADataLen]byte{}
		return mad.StatusOK
	case mad.AttrVESWDelete:
		err = a.ports.Delete(now, vport)
	case mad.AttrVESWPortInfo:
		if vport >= maxVPorts {
			return mad.StatusInvalidValue
		}
		var i mad.VESWPortInfo
		i.Parse(a.req.Data[:])
		err = a.ports.SetInfo(now, vport, &i)
	}
	if err != nil {
		return mad.StatusInvalidValue
	}
	return a.portInfo(vport)
}

// store stores a ClassPortInfo as written, except the fields of the agent itself; false if traps
// cannot be sent to its trap LID.
func (a *Agent) store(b []byte) bool {
	var stored [mad.VEMAClassPortInfoLen]byte
	copy(stored[:], b)
	own := mad.VEMAClassPortInfo{BaseVersion: mad.OPABaseVersion, ClassVersion: mad.VEMAClassVersion,
		CapabilityMask: maxVPorts<<8 | mad.ClassCapTrap, RespTimeValue: respTime}
	copy(stored[:8], own.Append(nil))
	var i mad.VEMAClassPortInfo
	i.Parse(stored[:])
	if t := &i.Trap; t.LID != 0 && (t.LID > 0xffff || !ib.LID(t.LID).IsUnicast() || t.SL > 15) {
		return false
	}
	a.stored, a.info = stored, i
	return true
}

// Next produces the next trap to send, by the port; false where there is none
// now.
func (a *Agent) Next(now mono.Time, d *mad.Datagram) bool {
	if !a.sendsTraps() {
		return false
	}
	t, ok := a.traps.NextTrap(now)
	if !ok {
		return false
	}
	i := a.ports.Info(t.VPort)
	a.tid++
	m := mad.NewVEMATrap(a.tid, mad.VEMANotice{GenericType: mad.VEMAGenericType, OUI: mad.VEMAOUI,
		IssuerLID: i.Port.EncapSLID,
		FabricID:  i.VESW.FabricID, VESWID: i.VESW.VESWID, PortNum: i.Port.PortNum, OPAPort: uint16(a.number),
		VPort:  t.VPort,
		Opcode: t.Opcode})
	*d = mad.Datagram{Port: 1, SLID: a.port.LID, DLID: a.Manager(), SL: a.info.Trap.SL, SrcQPN: ib.QPNGSI,
		DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
		PKey: ib.DefaultPKey}
	d.SetMAD(m.Append(nil))
	a.stats.Traps++
	return true
}

// sendsTraps reports whether a trap could be sent now.
func (a *Agent) sendsTraps() bool { return a.info.Trap.LID != 0 && a.port.Active && a.port.LID != 0 }

// Deadline returns when Next may have a trap if nothing else happens.
func (a *Agent) Deadline() mono.Time {
	if !a.sendsTraps() {
		return 0
	}
	return a.traps.Deadline()
}

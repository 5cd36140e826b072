// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// VESWGateways is how many default ports a VESW can have.
const VESWGateways = 16

// VESW is the part of a VESWPortInfo that is the same for all ports of a virtual Ethernet
// switch. LIDs are as a 16B packet has them, in 24 bits. Reserved octets are kept and returned
// by agents.
type VESW struct {
	FabricID        uint16 // 10 bits
	VESWID          uint16 // 12 bits; 0: none
	Reserved4       [6]byte
	DefaultPortMask uint16 // bit n: UcastDLIDs[n] is a default port
	Reserved12      [2]byte
	PKey            ib.PKey
	Reserved16      [4]byte
	McastDLID       uint32
	UcastDLIDs      [VESWGateways]uint32
	RC              uint32 // routing control: seven slots of 4 bits
	Reserved92      [56]byte
	EthMTU          uint16 // of what follows the Ethernet header
	Reserved150     [2]byte
}

// veswFlood is the bit of the last octet of Reserved4 that asks for flooding: of this project
// alone, and kept and returned by any agent.
const veswFlood = 1

// Flood reports whether unicast frames whose destination is unknown go to all ports of the VESW.
func (v *VESW) Flood() bool { return v.Reserved4[5]&veswFlood != 0 }

// SetFlood writes what Flood reads.
func (v *VESW) SetFlood(on bool) { v.Reserved4[5] = v.Reserved4[5]&^veswFlood | flag(on, 0) }

// VESWMAC returns the locally administered MAC that a port has by its place: numbers of the
// fabric (10 bits) and of the VESW (12), and its LID (24). As a little-endian number its bits
// are 0, 1, and these in this order.
func VESWMAC(fabric, vesw uint16, lid uint32) [6]byte {
	return [6]byte{byte(fabric)<<2 | 2, byte(vesw)<<4 | byte(fabric>>6)&0xf, byte(vesw >> 4), byte(lid), byte(lid >> 8), byte(lid >> 16)}
}

// ParseVESWMAC returns what VESWMAC made mac of; false where it is not locally administered, or
// a group's.
func ParseVESWMAC(mac [6]byte) (fabric, vesw uint16, lid uint32, ok bool) {
	return uint16(mac[0]>>2) | uint16(mac[1]&0xf)<<6, uint16(mac[1]>>4) | uint16(mac[2])<<4,
		uint32(mac[3]) | uint32(mac[4])<<8 | uint32(mac[5])<<16, mac[0]&3 == 2
}

// VESWPort is the part of a VESWPortInfo that is of one port. The manager writes all of it but
// what is marked RO, which a Set ignores.
type VESWPort struct {
	PortNum        uint32         // within the VESW
	LinkStatus     VESWLinkStatus // RO
	Reserved5      [3]byte
	BaseMAC        [6]byte
	ConfigState    VESWState
	OperState      VESWState // RO
	MaxMACEntries  uint16    // RO
	MaxSMACEntries uint16    // RO
	MACDigest      uint32    // RO: a Set of VESWMACEntries writes it
	Reserved24     [4]byte
	EncapSLID      uint32
	PCPToSCUc      [8]uint8
	PCPToVLUc      [8]uint8
	PCPToSCMc      [8]uint8
	PCPToVLMc      [8]uint8
	NonVLANSCUc    uint8
	NonVLANVLUc    uint8
	NonVLANSCMc    uint8
	NonVLANVLMc    uint8
	Reserved68     [48]byte
	UcMACsGen      uint16 // RO: generation of the list of unicast MACs
	McMACsGen      uint16 // RO
	Reserved120    [8]byte
}

// VESWState is a state of a port that a manager configures, or that the port is in.
type VESWState uint8

// States of ports; others mean VESWDropAll.
const (
	VESWDropAll    VESWState = 1
	VESWForwarding VESWState = 3
)

// VESWLinkStatus is the state of the Ethernet link of a port.
type VESWLinkStatus uint8

// States of links; 0 is that of a vport which does not exist.
const (
	VESWLinkUp   VESWLinkStatus = 1
	VESWLinkDown VESWLinkStatus = 2
)

// Limits of a port's table of MACs.
const (
	VESWMaxMACs  = 2048
	VESWMaxSMACs = 256 // of them those of sources
)

// DefaultEthMTU is the MTU of a port that nobody configured.
const DefaultEthMTU = 1500

// Lengths of a VESWPortInfo and its parts.
const (
	VESWLen         = 152
	VESWPortLen     = 128
	VESWPortInfoLen = VESWLen + VESWPortLen
)

// VESWPortInfo is the configuration and state of a vport.
type VESWPortInfo struct {
	VESW VESW
	Port VESWPort
}

// DefaultVESWPortInfo is what a vport has that nobody configured, and a Get returns for one
// that does not exist.
func DefaultVESWPortInfo() VESWPortInfo {
	return VESWPortInfo{VESW: VESW{EthMTU: DefaultEthMTU},
		Port: VESWPort{ConfigState: VESWDropAll, OperState: VESWDropAll, MaxMACEntries: VESWMaxMACs, MaxSMACEntries: VESWMaxSMACs}}
}

// Append appends the VESWPortInfoLen bytes of i to b.
func (i *VESWPortInfo) Append(b []byte) []byte {
	b, p := extend(b, VESWPortInfoLen)
	i.VESW.put(p)
	i.Port.put(p[VESWLen:])
	return b
}

// Parse reads a VESWPortInfo from the start of b.
func (i *VESWPortInfo) Parse(b []byte) error {
	if len(b) < VESWPortInfoLen {
		return ErrShort
	}
	i.VESW.get(b)
	i.Port.get(b[VESWLen:])
	return nil
}

func (v *VESW) put(p []byte) {
	be.PutUint16(p, v.FabricID)
	be.PutUint16(p[2:], v.VESWID)
	copy(p[4:10], v.Reserved4[:])
	be.PutUint16(p[10:], v.DefaultPortMask)
	copy(p[12:14], v.Reserved12[:])
	be.PutUint16(p[14:], uint16(v.PKey))
	copy(p[16:20], v.Reserved16[:])
	be.PutUint32(p[20:], v.McastDLID)
	for i, l := range v.UcastDLIDs {
		be.PutUint32(p[24+4*i:], l)
	}
	be.PutUint32(p[88:], v.RC)
	copy(p[92:148], v.Reserved92[:])
	be.PutUint16(p[148:], v.EthMTU)
	copy(p[150:152], v.Reserved150[:])
}

func (v *VESW) get(b []byte) {
	*v = VESW{FabricID: be.Uint16(b), VESWID: be.Uint16(b[2:]), Reserved4: [6]byte(b[4:]), DefaultPortMask: be.Uint16(b[10:]),
		Reserved12: [2]byte(b[12:]), PKey: ib.PKey(be.Uint16(b[14:])), Reserved16: [4]byte(b[16:]), McastDLID: be.Uint32(b[20:]),
		RC: be.Uint32(b[88:]), Reserved92: [56]byte(b[92:]), EthMTU: be.Uint16(b[148:]), Reserved150: [2]byte(b[150:])}
	for i := range v.UcastDLIDs {
		v.UcastDLIDs[i] = be.Uint32(b[24+4*i:])
	}
}

func (v *VESWPort) put(p []byte) {
	be.PutUint32(p, v.PortNum)
	p[4] = uint8(v.LinkStatus)
	copy(p[5:8], v.Reserved5[:])
	copy(p[8:14], v.BaseMAC[:])
	p[14], p[15] = uint8(v.ConfigState), uint8(v.OperState)
	be.PutUint16(p[16:], v.MaxMACEntries)
	be.PutUint16(p[18:], v.MaxSMACEntries)
	be.PutUint32(p[20:], v.MACDigest)
	copy(p[24:28], v.Reserved24[:])
	be.PutUint32(p[28:], v.EncapSLID)
	copy(p[32:40], v.PCPToSCUc[:])
	copy(p[40:48], v.PCPToVLUc[:])
	copy(p[48:56], v.PCPToSCMc[:])
	copy(p[56:64], v.PCPToVLMc[:])
	p[64], p[65], p[66], p[67] = v.NonVLANSCUc, v.NonVLANVLUc, v.NonVLANSCMc, v.NonVLANVLMc
	copy(p[68:116], v.Reserved68[:])
	be.PutUint16(p[116:], v.UcMACsGen)
	be.PutUint16(p[118:], v.McMACsGen)
	copy(p[120:128], v.Reserved120[:])
}

func (v *VESWPort) get(b []byte) {
	*v = VESWPort{PortNum: be.Uint32(b), LinkStatus: VESWLinkStatus(b[4]), Reserved5: [3]byte(b[5:]), BaseMAC: [6]byte(b[8:]),
		ConfigState: VESWState(b[14]), OperState: VESWState(b[15]), MaxMACEntries: be.Uint16(b[16:]), MaxSMACEntries: be.Uint16(b[18:]),
		MACDigest: be.Uint32(b[20:]), Reserved24: [4]byte(b[24:]), EncapSLID: be.Uint32(b[28:]), PCPToSCUc: [8]uint8(b[32:]),
		PCPToVLUc: [8]uint8(b[40:]), PCPToSCMc: [8]uint8(b[48:]), PCPToVLMc: [8]uint8(b[56:]), NonVLANSCUc: b[64], NonVLANVLUc: b[65],
		NonVLANSCMc: b[66], NonVLANVLMc: b[67], Reserved68: [48]byte(b[68:]), UcMACsGen: be.Uint16(b[116:]), McMACsGen: be.Uint16(b[118:]),
		Reserved120: [8]byte(b[120:])}
}

// VESWMACsPerMAD is how many slots of a table of MACs a MAD holds.
const VESWMACsPerMAD = (VEMADataLen - 8) / veswMACEntryLen

// VESWMACEntry is a slot of a port's table of MACs. One whose MAC is zero is empty, and a Set
// of it empties the slot.
type VESWMACEntry struct {
	MAC  [6]byte
	Mask [6]byte // kept and returned; it means nothing
	// DLIDSD is DLID and side data; see MakeDLIDSD.
	DLIDSD uint32
}

const veswMACEntryLen = 16

// veswSourceMAC is the bit of side data that marks the entry of a source.
const veswSourceMAC = 0x20

// MakeDLIDSD returns the DLIDSD of an entry that leads to a LID.
func MakeDLIDSD(dlid uint32) uint32 { return dlid << 8 }

// DLID returns where the entry leads to, in 24 bits.
func (e *VESWMACEntry) DLID() uint32 { return e.DLIDSD >> 8 }

// IsSource reports whether the entry is a source's and leads nowhere.
func (e *VESWMACEntry) IsSource() bool { return e.DLIDSD&veswSourceMAC != 0 }

// VESWMACEntriesLen is the length of a VESWMACEntries.
const VESWMACEntriesLen = 8 + VESWMACsPerMAD*veswMACEntryLen

// VESWMACEntries is a range of the slots of a port's table of MACs: of Entries the first Num.
type VESWMACEntries struct {
	Offset  uint16 // first slot
	Num     uint16 // at most VESWMACsPerMAD; see Valid
	Digest  uint32 // the manager's mark of the whole table
	Entries [VESWMACsPerMAD]VESWMACEntry
}

// Valid reports whether the range is one of a table, and fits.
func (m *VESWMACEntries) Valid() bool {
	return int(m.Num) <= VESWMACsPerMAD && int(m.Offset)+int(m.Num) <= VESWMaxMACs
}

// Append appends the VESWMACEntriesLen bytes of m to b.
func (m *VESWMACEntries) Append(b []byte) []byte {
	b, p := extend(b, VESWMACEntriesLen)
	be.PutUint16(p, m.Offset)
	be.PutUint16(p[2:], m.Num)
	be.PutUint32(p[4:], m.Digest)
	for i := range m.Entries {
		e, at := &m.Entries[i], p[8+veswMACEntryLen*i:]
		copy(at[:6], e.MAC[:])
		copy(at[6:12], e.Mask[:])
		be.PutUint32(at[12:], e.DLIDSD)
	}
	return b
}

// Parse reads a VESWMACEntries from the start of b.
func (m *VESWMACEntries) Parse(b []byte) error {
	if len(b) < VESWMACEntriesLen {
		return ErrShort
	}
	m.Offset, m.Num, m.Digest = be.Uint16(b), be.Uint16(b[2:]), be.Uint32(b[4:])
	for i := range m.Entries {
		at := b[8+veswMACEntryLen*i:]
		m.Entries[i] = VESWMACEntry{MAC: [6]byte(at), Mask: [6]byte(at[6:]), DLIDSD: be.Uint32(at[12:])}
	}
	return nil
}

// VESWListPerMAD is how many MACs of a list a MAD holds.
const VESWListPerMAD = (VEMADataLen - 8) / 6

// VESWMACListLen is the length of a VESWMACList.
const VESWMACListLen = 8 + VESWListPerMAD*6

// VESWMACList is a part of a list of the MACs that an interface takes in, unicast without
// the base MAC, or multicast. A request has Start, and in Num how many it wants at most, or 0.
type VESWMACList struct {
	Start uint16 // index in the list of the first
	Num   uint16 // of MACs
	Total uint16 // in the list
	Gen   uint16 // generation of the list: a part of another generation is of another list
	MACs  [VESWListPerMAD][6]byte
}

// Append appends the VESWMACListLen bytes of l to b.
func (l *VESWMACList) Append(b []byte) []byte {
	b, p := extend(b, VESWMACListLen)
	be.PutUint16(p, l.Start)
	be.PutUint16(p[2:], l.Num)
	be.PutUint16(p[4:], l.Total)
	be.PutUint16(p[6:], l.Gen)
	for i := range l.MACs {
		copy(p[8+6*i:], l.MACs[i][:])
	}
	return b
}

// Parse reads a VESWMACList from the start of b. Num is not judged.
func (l *VESWMACList) Parse(b []byte) error {
	if len(b) < VESWMACListLen {
		return ErrShort
	}
	l.Start, l.Num, l.Total, l.Gen = be.Uint16(b), be.Uint16(b[2:]), be.Uint16(b[4:]), be.Uint16(b[6:])
	for i := range l.MACs {
		l.MACs[i] = [6]byte(b[8+6*i:])
	}
	return nil
}

// VESWCounter is a counter of VESWSummary, in the order of the attribute.
type VESWCounter uint8

// Counters of VESWSummary. Octets include a frame check sequence of 4 that no frame has; so
// do the lengths that the last ones of each direction go by.
const (
	VESWTxErrors VESWCounter = iota
	VESWRxErrors
	VESWTxPackets
	VESWRxPackets
	VESWTxBytes
	VESWRxBytes
	VESWTxUnicast
	VESWTxMcastBcast
	VESWTxUntagged
	VESWTxVLAN
	VESWTx64
	VESWTx65To127
	VESWTx128To255
	VESWTx256To511
	VESWTx512To1023
	VESWTx1024To1518
	VESWTx1519Max
	VESWRxUnicast
	VESWRxMcastBcast
	VESWRxUntagged
	VESWRxVLAN
	VESWRx64
	VESWRx65To127
	VESWRx128To255
	VESWRx256To511
	VESWRx512To1023
	VESWRx1024To1518
	VESWRx1519Max
	NumVESWCounters
)

// VESWSummaryLen is the length of a VESWSummary.
const VESWSummaryLen = 360

// VESWSummary is the counters of a vport. Nothing clears them.
type VESWSummary struct {
	VPort  uint16
	VESWID uint16
	// PortNum is the port's within the VESW; the driver's agent has that of the fabric's port
	// instead.
	PortNum uint32
	Values  [NumVESWCounters]uint64
}

// Append appends the VESWSummaryLen bytes of s to b.
func (s *VESWSummary) Append(b []byte) []byte {
	b, p := extend(b, VESWSummaryLen)
	be.PutUint16(p, s.VPort)
	be.PutUint16(p[2:], s.VESWID)
	be.PutUint32(p[4:], s.PortNum)
	for i, v := range s.Values {
		be.PutUint64(p[8+8*i:], v)
	}
	return b
}

// Parse reads a VESWSummary from the start of b.
func (s *VESWSummary) Parse(b []byte) error {
	if len(b) < VESWSummaryLen {
		return ErrShort
	}
	s.VPort, s.VESWID, s.PortNum = be.Uint16(b), be.Uint16(b[2:]), be.Uint32(b[4:])
	for i := range s.Values {
		s.Values[i] = be.Uint64(b[8+8*i:])
	}
	return nil
}

// VESWErrorsLen is the length of a VESWErrors.
const VESWErrorsLen = 304

// VESWErrors is why frames of a vport were lost.
type VESWErrors struct {
	VPort       uint16
	VESWID      uint16
	PortNum     uint32 // as in VESWSummary
	TxErrors    uint64 // all that follow of this direction
	RxErrors    uint64
	TxSMACFilt  uint64 // always 0
	TxDLIDZero  uint64 // no destination
	TxLogic     uint64 // no memory, or not to be sent
	TxDropState uint64 // not operational
	RxBadVESWID uint64
	RxRunt      uint64
	RxOversize  uint64
	RxEthDown   uint64 // always 0
	RxDropState uint64 // not operational
	RxLogic     uint64 // no memory
}

// fields are where each counter lies.
func (e *VESWErrors) fields() [12]struct {
	at int
	v  *uint64
} {
	return [...]struct {
		at int
		v  *uint64
	}{{8, &e.TxErrors}, {16, &e.RxErrors}, {32, &e.TxSMACFilt}, {64, &e.TxDLIDZero}, {80, &e.TxLogic}, {96, &e.TxDropState},
		{104, &e.RxBadVESWID}, {120, &e.RxRunt}, {128, &e.RxOversize}, {144, &e.RxEthDown}, {152, &e.RxDropState}, {160, &e.RxLogic}}
}

// Append appends the VESWErrorsLen bytes of e to b.
func (e *VESWErrors) Append(b []byte) []byte {
	b, p := extend(b, VESWErrorsLen)
	be.PutUint16(p, e.VPort)
	be.PutUint16(p[2:], e.VESWID)
	be.PutUint32(p[4:], e.PortNum)
	for _, f := range e.fields() {
		be.PutUint64(p[f.at:], *f.v)
	}
	return b
}

// Parse reads a VESWErrors from the start of b.
func (e *VESWErrors) Parse(b []byte) error {
	if len(b) < VESWErrorsLen {
		return ErrShort
	}
	e.VPort, e.VESWID, e.PortNum = be.Uint16(b), be.Uint16(b[2:]), be.Uint32(b[4:])
	for _, f := range e.fields() {
		*f.v = be.Uint64(b[f.at:])
	}
	return nil
}

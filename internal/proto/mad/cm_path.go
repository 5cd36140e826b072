// SPDX-License-Identifier: Apache-2.0

package mad

import "weft/internal/proto/ib"

// CMPath is a path as REQ states it, from the sender's side.
type CMPath struct {
	LocalLID, RemoteLID ib.LID
	LocalGID, RemoteGID ib.GID
	FlowLabel           uint32  // 20 bits
	Rate                ib.Rate // 6 bits
	TClass, HopLimit    uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits
}

const cmPathLen = 44

func (m *CMPath) put(p []byte) {
	be.PutUint16(p, uint16(m.LocalLID))
	be.PutUint16(p[2:], uint16(m.RemoteLID))
	copy(p[4:], m.LocalGID[:])
	copy(p[20:], m.RemoteGID[:])
	be.PutUint32(p[36:], m.FlowLabel<<12|uint32(m.Rate&0x3f))
	p[40], p[41] = m.TClass, m.HopLimit
	p[42] = m.SL<<4 | flag(m.SubnetLocal, 3)
	p[43] = m.AckTimeout << 3
}

func getCMPath(b []byte) CMPath {
	v := be.Uint32(b[36:])
	return CMPath{LocalLID: ib.LID(be.Uint16(b)), RemoteLID: ib.LID(be.Uint16(b[2:])), LocalGID: ib.GID(b[4:20]), RemoteGID: ib.GID(b[20:36]),
		FlowLabel: v >> 12, Rate: ib.Rate(v & 0x3f), TClass: b[40], HopLimit: b[41], SL: b[42] >> 4, SubnetLocal: b[42]>>3&1 != 0, AckTimeout: b[43] >> 3}
}

// Transport service types of a REQ.
const (
	CMTransportRC uint8 = iota
	CMTransportUC
	CMTransportRD
	CMTransportExt // see ExtTransport
)

// CMREQ asks for a connection (IBA volume 1, 12.6.5).
type CMREQ struct {
	LocalCommID           uint32
	VendorID              uint32 // 24 bits
	ServiceID             uint64
	CAGUID                ib.GUID
	QKey                  uint32
	QPN                   uint32 // 24 bits, as the other numbers of pairs and contexts
	ResponderResources    uint8
	LocalEECN             uint32
	InitiatorDepth        uint8
	RemoteEECN            uint32
	RemoteResponseTimeout uint8 // 5 bits
	Transport             uint8 // 2 bits
	FlowControl           bool
	StartingPSN           uint32 // 24 bits
	LocalResponseTimeout  uint8  // 5 bits
	RetryCount            uint8  // 3 bits
	PKey                  uint16
	PathMTU               ib.MTU // 4 bits
	RDCExists             bool
	RNRRetry              uint8 // 3 bits
	MaxCMRetries          uint8 // 4 bits
	SRQ                   bool
	ExtTransport          uint8 // 3 bits
	Primary               CMPath
	Alternate             CMPath // all zero: none
	PrivateData           [92]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMREQ) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	be.PutUint32(p, m.LocalCommID)
	put24(p[5:], m.VendorID)
	be.PutUint64(p[8:], m.ServiceID)
	be.PutUint64(p[16:], uint64(m.CAGUID))
	be.PutUint32(p[28:], m.QKey)
	put24(p[32:], m.QPN)
	p[35] = m.ResponderResources
	put24(p[36:], m.LocalEECN)
	p[39] = m.InitiatorDepth
	put24(p[40:], m.RemoteEECN)
	p[43] = m.RemoteResponseTimeout<<3 | m.Transport&3<<1 | flag(m.FlowControl, 0)
	put24(p[44:], m.StartingPSN)
	p[47] = m.LocalResponseTimeout<<3 | m.RetryCount&7
	be.PutUint16(p[48:], m.PKey)
	p[50] = uint8(m.PathMTU)<<4 | flag(m.RDCExists, 3) | m.RNRRetry&7
	p[51] = m.MaxCMRetries<<4 | flag(m.SRQ, 3) | m.ExtTransport&7
	m.Primary.put(p[52:])
	m.Alternate.put(p[52+cmPathLen:])
	copy(p[140:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMREQ) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMREQ{LocalCommID: be.Uint32(b), VendorID: get24(b[5:]), ServiceID: be.Uint64(b[8:]), CAGUID: ib.GUID(be.Uint64(b[16:])), QKey: be.Uint32(b[28:]),
		QPN: get24(b[32:]), ResponderResources: b[35], LocalEECN: get24(b[36:]), InitiatorDepth: b[39], RemoteEECN: get24(b[40:]),
		RemoteResponseTimeout: b[43] >> 3, Transport: b[43] >> 1 & 3, FlowControl: b[43]&1 != 0, StartingPSN: get24(b[44:]),
		LocalResponseTimeout: b[47] >> 3, RetryCount: b[47] & 7, PKey: be.Uint16(b[48:]), PathMTU: ib.MTU(b[50] >> 4), RDCExists: b[50]>>3&1 != 0,
		RNRRetry: b[50] & 7, MaxCMRetries: b[51] >> 4, SRQ: b[51]>>3&1 != 0, ExtTransport: b[51] & 7,
		Primary: getCMPath(b[52:]), Alternate: getCMPath(b[52+cmPathLen:]), PrivateData: [92]byte(b[140:])}
	return nil
}

// CMREP accepts a CMREQ (IBA volume 1, 12.6.8).
type CMREP struct {
	CMIDs
	QKey               uint32
	QPN                uint32 // 24 bits
	VendorID           uint32 // 24 bits
	LocalEECN          uint32 // 24 bits
	StartingPSN        uint32 // 24 bits
	ResponderResources uint8
	InitiatorDepth     uint8
	AckDelay           uint8 // 5 bits
	Failover           uint8 // 2 bits
	FlowControl        bool
	RNRRetry           uint8 // 3 bits
	SRQ                bool
	CAGUID             ib.GUID
	PrivateData        [196]byte
}

// What a REP says of the alternate path.
const (
	CMFailoverAccepted uint8 = iota
	CMFailoverUnsupported
	CMFailoverRejected
)

// Append appends the message's CMDataLen bytes to b.
func (m *CMREP) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	be.PutUint32(p[8:], m.QKey)
	put24(p[12:], m.QPN)
	p[15], p[19], p[23] = uint8(m.VendorID>>16), uint8(m.VendorID>>8), uint8(m.VendorID)
	put24(p[16:], m.LocalEECN)
	put24(p[20:], m.StartingPSN)
	p[24], p[25] = m.ResponderResources, m.InitiatorDepth
	p[26] = m.AckDelay<<3 | m.Failover&3<<1 | flag(m.FlowControl, 0)
	p[27] = m.RNRRetry<<5 | flag(m.SRQ, 4)
	be.PutUint64(p[28:], uint64(m.CAGUID))
	copy(p[36:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMREP) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMREP{CMIDs: getCMIDs(b), QKey: be.Uint32(b[8:]), QPN: get24(b[12:]), VendorID: uint32(b[15])<<16 | uint32(b[19])<<8 | uint32(b[23]),
		LocalEECN: get24(b[16:]), StartingPSN: get24(b[20:]), ResponderResources: b[24], InitiatorDepth: b[25], AckDelay: b[26] >> 3,
		Failover: b[26] >> 1 & 3, FlowControl: b[26]&1 != 0, RNRRetry: b[27] >> 5, SRQ: b[27]>>4&1 != 0, CAGUID: ib.GUID(be.Uint64(b[28:])),
		PrivateData: [196]byte(b[36:])}
	return nil
}

// CMLAP proposes another alternate path (IBA volume 1, 12.8.1). FlowLabel, TClass and the rest of
// Alternate are the path's; its AckTimeout is.
type CMLAP struct {
	CMIDs
	RemoteQPN             uint32 // 24 bits, of the receiver
	RemoteResponseTimeout uint8  // 5 bits
	Alternate             CMPath
	PrivateData           [168]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMLAP) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	put24(p[12:], m.RemoteQPN)
	p[15] = m.RemoteResponseTimeout << 3
	a := &m.Alternate
	be.PutUint16(p[20:], uint16(a.LocalLID))
	be.PutUint16(p[22:], uint16(a.RemoteLID))
	copy(p[24:], a.LocalGID[:])
	copy(p[40:], a.RemoteGID[:])
	be.PutUint32(p[56:], a.FlowLabel<<12|uint32(a.TClass))
	p[60], p[61] = a.HopLimit, uint8(a.Rate)&0x3f
	p[62] = a.SL<<4 | flag(a.SubnetLocal, 3)
	p[63] = a.AckTimeout << 3
	copy(p[64:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMLAP) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	v := be.Uint32(b[56:])
	*m = CMLAP{CMIDs: getCMIDs(b), RemoteQPN: get24(b[12:]), RemoteResponseTimeout: b[15] >> 3,
		Alternate: CMPath{LocalLID: ib.LID(be.Uint16(b[20:])), RemoteLID: ib.LID(be.Uint16(b[22:])), LocalGID: ib.GID(b[24:40]), RemoteGID: ib.GID(b[40:56]),
			FlowLabel: v >> 12, TClass: uint8(v), HopLimit: b[60], Rate: ib.Rate(b[61] & 0x3f), SL: b[62] >> 4, SubnetLocal: b[62]>>3&1 != 0, AckTimeout: b[63] >> 3},
		PrivateData: [168]byte(b[64:])}
	return nil
}

// CMAPR answers a CMLAP (IBA volume 1, 12.8.2).
type CMAPR struct {
	CMIDs
	InfoLen     uint8
	Status      uint8
	Info        [72]byte
	PrivateData [148]byte
}

// CMAPUnsupported is the status of a CMAPR of who has no alternate paths.
const CMAPUnsupported = 2

// Append appends the message's CMDataLen bytes to b.
func (m *CMAPR) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	p[8], p[9] = m.InfoLen, m.Status
	copy(p[12:], m.Info[:])
	copy(p[84:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMAPR) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMAPR{CMIDs: getCMIDs(b), InfoLen: b[8], Status: b[9], Info: [72]byte(b[12:]), PrivateData: [148]byte(b[84:])}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package mad

// Attributes of the communication management class (IBA volume 1, 12.6). They
// come with MethodSend; AttrClassPortInfo with the usual methods.
const (
	AttrCMREQ     AttributeID = 0x0010
	AttrCMMRA     AttributeID = 0x0011
	AttrCMREJ     AttributeID = 0x0012
	AttrCMREP     AttributeID = 0x0013
	AttrCMRTU     AttributeID = 0x0014
	AttrCMDREQ    AttributeID = 0x0015
	AttrCMDREP    AttributeID = 0x0016
	AttrCMSIDRReq AttributeID = 0x0017
	AttrCMSIDRRep AttributeID = 0x0018
	AttrCMLAP     AttributeID = 0x0019
	AttrCMAPR     AttributeID = 0x001a
)

// ClassVersionCM is the version of the communication management class.
const ClassVersionCM = 2

// CMDataLen is the length of what follows the header.
const CMDataLen = Len - HeaderLen

// CM is a MAD of communication management. A message is put into Data with
// m.Append(c.Data[:0]), and read from there with m.Parse(c.Data[:]).
type CM struct {
	Header
	Data [CMDataLen]byte
}

// NewCM returns the MAD of a message with its data still zero.
func NewCM(a AttributeID, tid uint64) CM {
	return CM{Header: Header{BaseVersion: BaseVersion, MgmtClass: ClassCM, ClassVersion: ClassVersionCM, Method: MethodSend, TransactionID: tid, AttributeID: a}}
}

// Append appends the MAD's Len bytes to b.
func (m *CM) Append(b []byte) []byte {
	b, p := extend(b, Len)
	m.Header.put(p)
	copy(p[HeaderLen:], m.Data[:])
	return b
}

// Parse reads a MAD from the start of b.
func (m *CM) Parse(b []byte) error {
	if len(b) < Len {
		return ErrShort
	}
	m.Data = [CMDataLen]byte(b[HeaderLen:])
	return m.Header.Parse(b)
}

// Kinds of messages, as MRA and REJ name what they are about. CMOther in a REJ is any
// other message, or none.
const (
	CMOfREQ uint8 = iota
	CMOfREP
	CMOther // of an MRA: a LAP
)

// CMIDs begin every message but SIDR's: the communication identifiers of who
// sends it and of who receives it, as the latter has told.
type CMIDs struct {
	LocalCommID, RemoteCommID uint32
}

func (m *CMIDs) put(p []byte) {
	be.PutUint32(p, m.LocalCommID)
	be.PutUint32(p[4:], m.RemoteCommID)
}

func getCMIDs(b []byte) CMIDs { return CMIDs{be.Uint32(b), be.Uint32(b[4:])} }

// CMRTU says that the connection may be used (IBA volume 1, 12.6.9), CMDREP
// (12.6.11) that it is over.
type (
	CMRTU struct {
		CMIDs
		PrivateData [224]byte
	}
	CMDREP CMRTU
)

// Append appends the message's CMDataLen bytes to b.
func (m *CMRTU) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	copy(p[8:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMRTU) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMRTU{getCMIDs(b), [224]byte(b[8:])}
	return nil
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMDREP) Append(b []byte) []byte { return (*CMRTU)(m).Append(b) }

// Parse reads the message from the start of b.
func (m *CMDREP) Parse(b []byte) error { return (*CMRTU)(m).Parse(b) }

// CMDREQ ends a connection (IBA volume 1, 12.6.10).
type CMDREQ struct {
	CMIDs
	RemoteQPN   uint32 // of the receiver
	PrivateData [220]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMDREQ) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	put24(p[8:], m.RemoteQPN)
	copy(p[12:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMDREQ) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMDREQ{getCMIDs(b), get24(b[8:]), [220]byte(b[12:])}
	return nil
}

// CMMRA asks for more time (IBA volume 1, 12.6.6).
type CMMRA struct {
	CMIDs
	Message        uint8 // 2 bits: CMOfREQ, CMOfREP; CMOther: a LAP
	ServiceTimeout uint8 // 5 bits: 4.096 µs × 2^ServiceTimeout
	PrivateData    [222]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMMRA) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	p[8], p[9] = m.Message<<6, m.ServiceTimeout<<3
	copy(p[10:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMMRA) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMMRA{getCMIDs(b), b[8] >> 6, b[9] >> 3, [222]byte(b[10:])}
	return nil
}

// CMREJ refuses a message, or a connection (IBA volume 1, 12.6.7).
type CMREJ struct {
	CMIDs
	Message     uint8 // 2 bits: CMOfREQ, CMOfREP, CMOther
	InfoLen     uint8 // 7 bits
	Reason      uint16
	Info        [72]byte
	PrivateData [148]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMREJ) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	m.CMIDs.put(p)
	p[8], p[9] = m.Message<<6, m.InfoLen<<1
	be.PutUint16(p[10:], m.Reason)
	copy(p[12:], m.Info[:])
	copy(p[84:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMREJ) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMREJ{getCMIDs(b), b[8] >> 6, b[9] >> 1, be.Uint16(b[10:]), [72]byte(b[12:]), [148]byte(b[84:])}
	return nil
}

// CMSIDRReq asks for the queue pair of a service (IBA volume 1, 12.11.1).
type CMSIDRReq struct {
	RequestID   uint32
	PKey        uint16
	ServiceID   uint64
	PrivateData [216]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMSIDRReq) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	be.PutUint32(p, m.RequestID)
	be.PutUint16(p[4:], m.PKey)
	be.PutUint64(p[8:], m.ServiceID)
	copy(p[16:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMSIDRReq) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMSIDRReq{be.Uint32(b), be.Uint16(b[4:]), be.Uint64(b[8:]), [216]byte(b[16:])}
	return nil
}

// CMSIDRRep answers a CMSIDRReq (IBA volume 1, 12.11.2).
type CMSIDRRep struct {
	RequestID   uint32
	Status      uint8
	InfoLen     uint8
	VendorID    uint32 // 24 bits
	QPN         uint32
	ServiceID   uint64
	QKey        uint32
	Info        [72]byte
	PrivateData [136]byte
}

// Append appends the message's CMDataLen bytes to b.
func (m *CMSIDRRep) Append(b []byte) []byte {
	b, p := extend(b, CMDataLen)
	be.PutUint32(p, m.RequestID)
	p[4], p[5] = m.Status, m.InfoLen
	be.PutUint16(p[6:], uint16(m.VendorID>>8))
	put24(p[8:], m.QPN)
	p[11] = uint8(m.VendorID)
	be.PutUint64(p[12:], m.ServiceID)
	be.PutUint32(p[20:], m.QKey)
	copy(p[24:], m.Info[:])
	copy(p[96:], m.PrivateData[:])
	return b
}

// Parse reads the message from the start of b.
func (m *CMSIDRRep) Parse(b []byte) error {
	if len(b) < CMDataLen {
		return ErrShort
	}
	*m = CMSIDRRep{RequestID: be.Uint32(b), Status: b[4], InfoLen: b[5], VendorID: uint32(be.Uint16(b[6:]))<<8 | uint32(b[11]), QPN: get24(b[8:]),
		ServiceID: be.Uint64(b[12:]), QKey: be.Uint32(b[20:]), Info: [72]byte(b[24:]), PrivateData: [136]byte(b[96:])}
	return nil
}

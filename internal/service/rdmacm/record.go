// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/service/cm"
)

// Records have the host's byte order, which is the little-endian one; ports, GUIDs and
// path records are big-endian.
var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// MaxBody and MaxOption bound what follows a command's header: the longest that
// mean anything, and the option of a SET_OPTION.
const (
	MaxBody   = 320
	MaxOption = 6 * pathDataLen
)

// MaxAnswer is the length of the longest answer.
const MaxAnswer = queryPathLen + pathDataLen

// layout is what is known of the body and the answer of a command.
type layout struct {
	least, full int // body: shortest that is understood, and what is known of it
	answer      int // shortest room for the answer; 0: there is none
}

var layouts = [...]layout{
	abi.CMCreateID:     {24, 24, 4},
	abi.CMDestroyID:    {16, 16, 4},
	abi.CMBindIP:       {40, 40, 0},
	abi.CMResolveIP:    {64, 64, 0},
	abi.CMResolveRoute: {8, 8, 0},
	abi.CMQueryRoute:   {16, 16, queryRouteLeast},
	abi.CMConnect:      {280, 288, 0},
	abi.CMListen:       {8, 8, 0},
	abi.CMAccept:       {288, 296, 0},
	abi.CMReject:       {264, 264, 0},
	abi.CMDisconnect:   {4, 4, 0},
	abi.CMInitQPAttr:   {16, 16, qpAttrLen},
	abi.CMGetEvent:     {8, 8, eventLeast},
	abi.CMSetOption:    {24, 24, 0},
	abi.CMNotify:       {8, 8, 0},
	abi.CMJoinIPMcast:  {48, 48, 4},
	abi.CMLeaveMcast:   {16, 16, 4},
	abi.CMMigrateID:    {16, 16, 4},
	abi.CMQuery:        {16, 16, queryPathLen},
	abi.CMBind:         {136, 136, 0},
	abi.CMResolveAddr:  {272, 272, 0},
	abi.CMJoinMcast:    {152, 152, 4},
	abi.CMWriteEvent:   {320, 320, 0},
}

// fields reads a body that is at full length, as a command's layout has it.
type fields struct {
	b []byte
	i int
}

func (f *fields) take(n int) []byte { f.i += n; return f.b[f.i-n : f.i] }
func (f *fields) u8() uint8         { return f.take(1)[0] }
func (f *fields) u16() uint16       { return le.Uint16(f.take(2)) }
func (f *fields) u32() uint32       { return le.Uint32(f.take(4)) }
func (f *fields) u64() uint64       { return le.Uint64(f.take(8)) }
func (f *fields) skip(n int)        { f.i += n }

// Numbers of address families (Linux), and lengths of socket addresses.
const (
	afINET  = 2
	afINET6 = 10
	afIB    = 27

	sockaddrLen4 = 16
	sockaddrLen  = 28 // of IPv6
	storageLen   = 128
)

// endpoint is an IP address and a port. The address of one that is not there is the
// zero Addr.
type endpoint struct {
	addr  netip.Addr // without a zone
	port  uint16
	scope uint32 // of a link-local address
}

// any reports whether e is the unspecified address.
func (e *endpoint) any() bool { return e.addr.IsValid() && e.addr.IsUnspecified() }

// parse reads a socket address from the start of b, which is as long as one of IPv6: family 0 is
// none.
func (e *endpoint) parse(b []byte) Errno {
	*e = endpoint{}
	switch le.Uint16(b) {
	case 0:
		return OK
	case afINET:
		e.addr = netip.AddrFrom4([4]byte(b[4:8]))
	case afINET6:
		e.addr, e.scope = netip.AddrFrom16([16]byte(b[8:24])), le.Uint32(b[24:])
	case afIB:
		return EINVAL
	default:
		return EAFNOSUPPORT
	}
	e.port = be.Uint16(b[2:])
	return OK
}

// append appends e as a socket address that fills n bytes.
func (e *endpoint) append(b []byte, n int) []byte {
	at := len(b)
	b = append(b, make([]byte, n)...)
	p := b[at:]
	switch {
	case e.addr.Is4():
		le.PutUint16(p, afINET)
		v := e.addr.As4()
		copy(p[4:], v[:])
	case e.addr.Is6():
		le.PutUint16(p, afINET6)
		v := e.addr.As16()
		copy(p[8:], v[:])
		le.PutUint32(p[24:], e.scope)
	default:
		return b
	}
	be.PutUint16(p[2:], e.port)
	return b
}

// len returns the length of e as a socket address.
func (e *endpoint) len() int {
	switch {
	case e.addr.Is4():
		return sockaddrLen4
	case e.addr.Is6():
		return sockaddrLen
	}
	return 0
}

// sockaddr reads a socket address of IPv6's length.
func (f *fields) sockaddr() (e endpoint, err Errno) {
	err = e.parse(f.take(sockaddrLen))
	return e, err
}

// storage reads a socket address of any family with the stated length n.
func (f *fields) storage(n uint16) (e endpoint, err Errno) {
	b := f.take(storageLen)
	if err = e.parse(b[:sockaddrLen]); err == OK && int(n) != e.len() {
		err = EINVAL
	}
	return e, err
}

// maxPrivate is the room for private data in records, connLen and udLen the lengths of the
// parameters of a connection and of a datagram service.
const (
	maxPrivate = 256
	connLen    = 272
	ahLen      = 32
	udLen      = 8 + ahLen + maxPrivate + 8
)

// connParam is the parameters of a connection.
type connParam struct {
	qpn                                ib.QPN
	qkey                               ib.QKey
	private                            []byte
	srq                                bool
	responderResources, initiatorDepth uint8
	flowControl                        bool
	retryCount, rnrRetry               uint8
	valid                              bool
}

// conn reads the parameters of a connection.
func (f *fields) conn() (c connParam) {
	c.qpn, c.qkey = ib.QPN(f.u32()&0xffffff), ib.QKey(f.u32())
	data := f.take(maxPrivate)
	c.private = slices.Clone(data[:f.u8()])
	c.srq = f.u8() != 0
	c.responderResources, c.initiatorDepth = f.u8(), f.u8()
	c.flowControl = f.u8() != 0
	c.retryCount, c.rnrRetry = f.u8(), f.u8()
	c.valid = f.u8() != 0
	return c
}

// append appends c, connLen bytes.
func (c *connParam) append(b []byte) []byte {
	b = le.AppendUint32(b, uint32(c.qpn))
	b = le.AppendUint32(b, uint32(c.qkey))
	b = appendPrivate(b, c.private)
	return append(b, bit(c.srq), c.responderResources, c.initiatorDepth, bit(c.flowControl), c.retryCount, c.rnrRetry,
		bit(c.valid))
}

// appendPrivate appends private data in its room, and its length.
func appendPrivate(b, data []byte) []byte {
	n := min(len(data), maxPrivate-1)
	b = append(b, data[:n]...)
	b = append(b, make([]byte, maxPrivate-n)...)
	return append(b, uint8(n))
}

func bit(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}

// udParam is what a datagram service, or a multicast group, is reached by.
type udParam struct {
	qpn     ib.QPN
	qkey    ib.QKey
	path    *cm.Path // nil: none
	private []byte
}

// append appends u, udLen bytes.
func (u *udParam) append(b []byte) []byte {
	b = le.AppendUint32(b, uint32(u.qpn))
	b = le.AppendUint32(b, uint32(u.qkey))
	b = appendAH(b, u.path)
	b = appendPrivate(b, u.private)
	return append(b, make([]byte, 7)...)
}

// portNum is the number of every function's port.
const portNum = 1

// appendAH appends the address vector of a path, ahLen bytes.
func appendAH(b []byte, p *cm.Path) []byte {
	if p == nil {
		return append(b, make([]byte, ahLen)...)
	}
	global := p.Global || p.Link == ib.LinkEthernet
	if global {
		b = append(b, p.DGID[:]...)
		b = le.AppendUint32(b, p.FlowLabel)
		b = append(b, p.SGIDIndex, p.HopLimit, p.TClass, 0)
	} else {
		b = append(b, make([]byte, 24)...)
	}
	dlid := uint16(p.DLID)
	if p.Link == ib.LinkEthernet {
		dlid = 0
	}
	b = le.AppendUint16(b, dlid)
	return append(b, p.SL, 0, uint8(p.Rate), bit(global), portNum, 0)
}

// Lengths of answers.
const (
	queryRouteLeast = 200 // without the device's index
	queryAddrLen    = 280
	queryPathLen    = 8
	pathDataLen     = 72
	eventLen        = 336
	eventLeast      = 324 // without padding and ECE
	qpAttrLen       = 144
)

// noIndex replaces the index of a device: the GUID identifies it.
const noIndex = 0xffffffff

// appendRoute appends the path record of the rdma_cm device, 64 bytes: of a path, or,
// where there is none, of the addresses.
func appendRoute(b []byte, a *cm.Address, p *cm.Path) []byte {
	var r cm.Path
	switch {
	case p != nil:
		r = *p
	case a != nil:
		r = cm.Path{SGID: a.SGID, DGID: a.DGID, PKey: a.PKey}
	}
	b = append(b, r.DGID[:]...)
	b = append(b, r.SGID[:]...)
	if p == nil {
		b = append(b, make([]byte, 20)...)
		b = be.AppendUint16(b, uint16(r.PKey))
		return append(b, make([]byte, 10)...)
	}
	const exactly = 2
	b = be.AppendUint16(b, uint16(r.DLID))
	b = be.AppendUint16(b, uint16(r.SLID))
	b = le.AppendUint32(b, 0) // raw traffic
	b = be.AppendUint32(b, r.FlowLabel)
	b = le.AppendUint32(b, 1) // reversible
	b = le.AppendUint32(b, uint32(r.MTU))
	b = be.AppendUint16(b, uint16(r.PKey))
	return append(b, r.HopLimit, r.TClass, 1, r.SL, exactly, exactly, uint8(r.Rate), exactly, r.LifeTime, 0)
}

// String returns the address and port; "" where there is none.
func (e *endpoint) String() string {
	if !e.addr.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(e.addr, e.port).String()
}

// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"

	"weft/internal/proto/ib"
)

// SendFlagsMask has the defined bits of send_flags; a request with others is malformed.
const SendFlagsMask = ib.Fence | ib.Signaled | ib.Solicited | ib.Inline

// SendForm is one of the two layouts of a send element: the places of its entries and its inline bytes.
type SendForm struct {
	Head   int // length before the scatter/gather list, which Parse needs
	Inline int // offset of inline data
	MaxInl int // largest inline length of the layout; 0 = as the length of the element allows
	num    int // offset of num_sge
	mask   uint32
}

// The compact form (SG_WQE) and the form of the RFC, with an inline length of 16 bits (bytes 562 and 563 are ignored
// then).
var (
	SendCompact = SendForm{Head: SQSize, Inline: SQSGE, num: SQNumSGE, mask: ^uint32(0)}
	SendRFC     = SendForm{Head: SQRFCSize, Inline: SQRFCInlineData, MaxInl: MaxInlineRFC, num: SQRFCNumSGE,
		mask: 0xffff}
)

// Send is the fixed part of a send element. Opcode and service select the valid operands, so all readings of the union
// are methods.
type Send struct {
	WRID   uint64
	Opcode uint8 // as in the element; SendOp translates it
	Flags  ib.SendFlags
	Imm    [4]byte // as on the wire
	Num    uint32  // entries of the list, or bytes of inline data where Flags has Inline
	Arg    [4]uint64
}

// Parse reads the first f.Head bytes of an element, which must exist and must be private memory. It allocates nothing.
func (s *Send) Parse(b []byte, f *SendForm) {
	_ = b[f.Head-1]
	s.WRID = binary.LittleEndian.Uint64(b[SQWRID:])
	s.Opcode = b[SQOpcode]
	s.Flags = ib.SendFlags(b[SQSendFlags])
	s.Imm = [4]byte(b[SQImmData:])
	for i := range s.Arg {
		s.Arg[i] = binary.LittleEndian.Uint64(b[SQWR+8*i:])
	}
	s.Num = binary.LittleEndian.Uint32(b[f.num:])
	if s.Flags&ib.Inline != 0 {
		s.Num &= f.mask
	}
}

// Put writes the first f.Head bytes of an element, all except for inline data; reserved bytes and unused inline bytes
// become zero.
func (s *Send) Put(b []byte, f *SendForm) {
	clear(b[:f.Head])
	binary.LittleEndian.PutUint64(b[SQWRID:], s.WRID)
	b[SQOpcode], b[SQSendFlags] = s.Opcode, uint8(s.Flags)
	copy(b[SQImmData:], s.Imm[:])
	for i, a := range s.Arg {
		binary.LittleEndian.PutUint64(b[SQWR+8*i:], a)
	}
	binary.LittleEndian.PutUint32(b[f.num:], s.Num)
}

// RemoteAddr is the remote address of WRITE, READ and atomics.
func (s *Send) RemoteAddr() uint64 { return s.Arg[0] }

// RKey is the remote key of WRITE and READ.
func (s *Send) RKey() ib.Key { return ib.Key(s.Arg[1]) }

// AtomicRKey is the remote key of atomics.
func (s *Send) AtomicRKey() ib.Key { return ib.Key(s.Arg[3]) }

// CompareAdd is the compare operand, or the addend of FETCH_ADD.
func (s *Send) CompareAdd() uint64 { return s.Arg[1] }

// Swap is the swap operand.
func (s *Send) Swap() uint64 { return s.Arg[2] }

// RemoteQPN is the destination of a datagram.
func (s *Send) RemoteQPN() ib.QPN { return ib.QPN(uint32(s.Arg[0])) }

// RemoteQKey is the queue key of a datagram.
func (s *Send) RemoteQKey() ib.QKey { return ib.QKey(s.Arg[0] >> 32) }

// AH is the address handle of a datagram.
func (s *Send) AH() uint32 { return uint32(s.Arg[1]) }

// Bind are the operands of BIND_MW, and those of REG_MR: start and length of the window or region, L_Key or number of
// the region, the new key and the access rights.
type Bind struct {
	Addr, Length uint64
	Object       uint32 // L_Key of the region; REG_MR: its number
	Key          ib.Key
	Access       ib.Access
	Pages        uint32 // REG_MR
}

// Bind returns the operands of BIND_MW.
func (s *Send) Bind() Bind {
	return Bind{Addr: s.Arg[0], Length: s.Arg[1], Object: uint32(s.Arg[2]), Key: ib.Key(s.Arg[2] >> 32),
		Access: ib.Access(s.Arg[3])}
}

// Reg returns the operands of REG_MR.
func (s *Send) Reg() Bind {
	return Bind{Addr: s.Arg[2], Length: s.Arg[3], Object: uint32(s.Arg[0]), Key: ib.Key(s.Arg[0] >> 32),
		Access: ib.Access(s.Arg[1]),
		Pages:  uint32(s.Arg[1] >> 32)}
}

// InvKey is the key that SEND_INV and LOCAL_INV invalidate.
func (s *Send) InvKey() ib.Key { return ib.Key(binary.LittleEndian.Uint32(s.Imm[:])) }

// SetBind sets the operands of BIND_MW.
func (s *Send) SetBind(b Bind) {
	s.Arg = [4]uint64{b.Addr, b.Length, uint64(b.Object) | uint64(b.Key)<<32, uint64(b.Access)}
}

// SetReg sets the operands of REG_MR.
func (s *Send) SetReg(b Bind) {
	s.Arg = [4]uint64{uint64(b.Object) | uint64(b.Key)<<32, uint64(b.Access) | uint64(b.Pages)<<32, b.Addr, b.Length}
}

// SetInvKey sets the key that SEND_INV and LOCAL_INV invalidate.
func (s *Send) SetInvKey(k ib.Key) { binary.LittleEndian.PutUint32(s.Imm[:], uint32(k)) }

// SetRDMA sets the operands of WRITE and READ.
func (s *Send) SetRDMA(addr uint64, rkey ib.Key) { s.Arg = [4]uint64{addr, uint64(rkey)} }

// SetUD sets the operands of a datagram.
func (s *Send) SetUD(qpn ib.QPN, qkey ib.QKey, ah uint32) {
	s.Arg = [4]uint64{uint64(qpn) | uint64(qkey)<<32, uint64(ah)}
}

// SetAtomic sets the operands of an atomic.
func (s *Send) SetAtomic(addr, compareAdd, swap uint64, rkey ib.Key) {
	s.Arg = [4]uint64{addr, compareAdd, swap, uint64(rkey)}
}

// ParseSGEs fills dst from as many list entries of b, which must be private
// memory of at least 16 bytes per entry. It allocates nothing.
func ParseSGEs(dst []ib.SGE, b []byte) {
	for i := range dst {
		e := b[i*SGESize:][:SGESize]
		dst[i] = ib.SGE{
			Addr: binary.LittleEndian.Uint64(e[SGEAddr:]),
			Len:  binary.LittleEndian.Uint32(e[SGELength:]),
			LKey: ib.Key(binary.LittleEndian.Uint32(e[SGELKey:])),
		}
	}
}

// PutSGEs writes a list to b, which must hold 16 bytes per entry.
func PutSGEs(b []byte, list []ib.SGE) {
	for i, s := range list {
		e := b[i*SGESize:][:SGESize]
		binary.LittleEndian.PutUint64(e[SGEAddr:], s.Addr)
		binary.LittleEndian.PutUint32(e[SGELength:], s.Len)
		binary.LittleEndian.PutUint32(e[SGELKey:], uint32(s.LKey))
	}
}

// Recv is the fixed part of a receive element.
type Recv struct {
	WRID uint64
	Num  uint32 // entries of the list
}

// Parse reads the first RQSize bytes of an element, which must exist and must be private memory. It allocates nothing.
func (r *Recv) Parse(b []byte) {
	_ = b[RQSize-1]
	r.WRID = binary.LittleEndian.Uint64(b[RQWRID:])
	r.Num = binary.LittleEndian.Uint32(b[RQNumSGE:])
}

// Put writes the first RQSize bytes of an element.
func (r *Recv) Put(b []byte) {
	clear(b[:RQSize])
	binary.LittleEndian.PutUint64(b[RQWRID:], r.WRID)
	binary.LittleEndian.PutUint32(b[RQNumSGE:], r.Num)
}

// CQE is a completion as in its element.
type CQE struct {
	WRID         uint64
	Status       uint8 // WireStatus
	Opcode       uint8 // WireWCOp
	VendorErr    uint32
	ByteLen      uint32
	Imm          [4]byte // as on the wire
	QPN          ib.QPN  // local, as on the wire
	SrcQP        ib.QPN
	Flags        ib.WCFlags
	PKeyIndex    uint16 // this and the following need WEFT_VERBS, else 0
	SLID         ib.LID
	SL           uint8
	DLIDPathBits uint8
}

// Put writes all CQESize bytes of b, reserved ones zero. It only stores, so b may be shared memory. It allocates
// nothing.
func (c *CQE) Put(b []byte) {
	b = b[:CQESize]
	le := binary.LittleEndian
	le.PutUint64(b[CQEWRID:], c.WRID)
	le.PutUint64(b[CQEStatus:], uint64(c.Status)|uint64(c.Opcode)<<8|uint64(c.VendorErr)<<32)
	le.PutUint32(b[CQEByteLen:], c.ByteLen)
	copy(b[CQEImmData:], c.Imm[:])
	le.PutUint64(b[CQEQPNum:], uint64(c.QPN)|uint64(c.SrcQP)<<32)
	le.PutUint64(b[CQEWCFlags:], uint64(c.Flags)|uint64(c.PKeyIndex)<<32|uint64(c.SLID)<<48)
	le.PutUint64(b[CQESL:], uint64(c.SL)|uint64(c.DLIDPathBits)<<8)
}

// ParseCQE reads exactly CQESize bytes.
func ParseCQE(b []byte) (c CQE, err error) {
	if len(b) != CQESize {
		return c, lengthError("CQE", len(b), CQESize)
	}
	le := binary.LittleEndian
	return CQE{
		WRID: le.Uint64(b[CQEWRID:]), Status: b[CQEStatus], Opcode: b[CQEOpcode],
		VendorErr: le.Uint32(b[CQEVendorErr:]), ByteLen: le.Uint32(b[CQEByteLen:]), Imm: [4]byte(b[CQEImmData:]),
		QPN: ib.QPN(le.Uint32(b[CQEQPNum:])), SrcQP: ib.QPN(le.Uint32(b[CQESrcQP:])), Flags: ib.WCFlags(le.Uint32(b[CQEWCFlags:])),
		PKeyIndex: le.Uint16(b[CQEPKeyIndex:]), SLID: ib.LID(le.Uint16(b[CQESLID:])), SL: b[CQESL], DLIDPathBits: b[CQEDLIDPathBits],
	}, nil
}

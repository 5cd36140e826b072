// SPDX-License-Identifier: Apache-2.0

package ib

import "fmt"

// Opcode is the 8-bit opcode of a base transport header: service in bits 7:5,
// operation in bits 4:0 (IBA volume 1, table 38).
type Opcode uint8

// Services, the upper three bits of an opcode.
const (
	ServiceRC Opcode = 0x00
	ServiceUC Opcode = 0x20
	ServiceRD Opcode = 0x40
	ServiceUD Opcode = 0x60
)

// Operations, the lower five bits of an opcode. An RC opcode is the bare
// operation.
const (
	SendFirst      Opcode = 0x00
	SendMiddle     Opcode = 0x01
	SendLast       Opcode = 0x02
	SendLastImm    Opcode = 0x03
	SendOnly       Opcode = 0x04
	SendOnlyImm    Opcode = 0x05
	WriteFirst     Opcode = 0x06
	WriteMiddle    Opcode = 0x07
	WriteLast      Opcode = 0x08
	WriteLastImm   Opcode = 0x09
	WriteOnly      Opcode = 0x0a
	WriteOnlyImm   Opcode = 0x0b
	ReadRequest    Opcode = 0x0c
	ReadRespFirst  Opcode = 0x0d
	ReadRespMiddle Opcode = 0x0e
	ReadRespLast   Opcode = 0x0f
	ReadRespOnly   Opcode = 0x10
	Acknowledge    Opcode = 0x11
	AtomicAck      Opcode = 0x12
	CmpSwap        Opcode = 0x13
	FetchAdd       Opcode = 0x14
	SendLastInv    Opcode = 0x16
	SendOnlyInv    Opcode = 0x17
	AtomicWrite    Opcode = 0x1d
	CNP            Opcode = 0x81
)

// Ext is the set of extension headers that follow a base transport header, in
// wire order DETH, RETH or AtomicETH, AETH, AtomicAckETH, ImmDt or IETH.
type Ext uint8

// Extension headers and properties of an opcode.
const (
	ExtDETH Ext = 1 << iota
	ExtRETH
	ExtAtomic
	ExtAETH
	ExtAtomicAck
	ExtImm
	ExtIETH
)

// OpInfo describes one opcode. The zero OpInfo is "no such opcode".
type OpInfo struct {
	Valid    bool
	Ext      Ext
	HdrLen   uint8 // bytes from the start of the BTH to the payload
	First    bool  // starts a message
	Last     bool  // ends a message
	Response bool  // travels from responder to requester
	Payload  bool  // may carry payload
	Send     bool  // part of a SEND
	Write    bool  // part of an RDMA WRITE
	ReadResp bool  // part of a READ response
	name     string
}

var opInfo = buildOpInfo()

func buildOpInfo() (t [256]OpInfo) {
	def := func(op Opcode, name string, ext Ext, i OpInfo) {
		i.Valid, i.Ext, i.name, i.HdrLen = true, ext, name, 12
		for _, e := range []struct {
			bit Ext
			n   uint8
		}{{ExtDETH, 8}, {ExtRETH, 16}, {ExtAtomic, 28}, {ExtAETH, 4}, {ExtAtomicAck, 8}, {ExtImm, 4}, {ExtIETH, 4}} {
			if ext&e.bit != 0 {
				i.HdrLen += e.n
			}
		}
		t[op] = i
	}
	first, middle, last, only := OpInfo{First: true}, OpInfo{}, OpInfo{Last: true}, OpInfo{First: true, Last: true}
	as := func(i OpInfo, set func(*OpInfo)) OpInfo { i.Payload = true; set(&i); return i }
	send := func(i OpInfo) OpInfo { return as(i, func(i *OpInfo) { i.Send = true }) }
	write := func(i OpInfo) OpInfo { return as(i, func(i *OpInfo) { i.Write = true }) }
	read := func(i OpInfo) OpInfo { return as(i, func(i *OpInfo) { i.ReadResp, i.Response = true, true }) }
	for _, s := range []struct {
		op   Opcode
		name string
	}{{ServiceRC, "RC "}, {ServiceUC, "UC "}} {
		def(s.op|SendFirst, s.name+"SEND First", 0, send(first))
		def(s.op|SendMiddle, s.name+"SEND Middle", 0, send(middle))
		def(s.op|SendLast, s.name+"SEND Last", 0, send(last))
		def(s.op|SendLastImm, s.name+"SEND Last Imm", ExtImm, send(last))
		def(s.op|SendOnly, s.name+"SEND Only", 0, send(only))
		def(s.op|SendOnlyImm, s.name+"SEND Only Imm", ExtImm, send(only))
		def(s.op|WriteFirst, s.name+"WRITE First", ExtRETH, write(first))
		def(s.op|WriteMiddle, s.name+"WRITE Middle", 0, write(middle))
		def(s.op|WriteLast, s.name+"WRITE Last", 0, write(last))
		def(s.op|WriteLastImm, s.name+"WRITE Last Imm", ExtImm, write(last))
		def(s.op|WriteOnly, s.name+"WRITE Only", ExtRETH, write(only))
		def(s.op|WriteOnlyImm, s.name+"WRITE Only Imm", ExtRETH|ExtImm, write(only))
	}
	def(ReadRequest, "RC READ Request", ExtRETH, only)
	def(ReadRespFirst, "RC READ Response First", ExtAETH, read(first))
	def(ReadRespMiddle, "RC READ Response Middle", 0, read(middle))
	def(ReadRespLast, "RC READ Response Last", ExtAETH, read(last))
	def(ReadRespOnly, "RC READ Response Only", ExtAETH, read(only))
	resp := OpInfo{First: true, Last: true, Response: true}
	def(Acknowledge, "RC Acknowledge", ExtAETH, resp)
	def(AtomicAck, "RC ATOMIC Acknowledge", ExtAETH|ExtAtomicAck, resp)
	def(CmpSwap, "RC CmpSwap", ExtAtomic, only)
	def(FetchAdd, "RC FetchAdd", ExtAtomic, only)
	// Eight bytes behind a RETH, answered as a READ of nothing is.
	def(AtomicWrite, "RC ATOMIC WRITE", ExtRETH, OpInfo{First: true, Last: true, Payload: true})
	def(SendLastInv, "RC SEND Last Inv", ExtIETH, send(last))
	def(SendOnlyInv, "RC SEND Only Inv", ExtIETH, send(only))
	def(ServiceUD|SendOnly, "UD SEND Only", ExtDETH, send(only))
	def(ServiceUD|SendOnlyImm, "UD SEND Only Imm", ExtDETH|ExtImm, send(only))
	return t
}

// Info returns the description of o; Info().Valid is false for an opcode that
// is reserved, of an unsupported service, or CNP.
func (o Opcode) Info() *OpInfo { return &opInfo[o] }

// Service returns the upper three bits of o.
func (o Opcode) Service() Opcode { return o & 0xe0 }

// Op returns the lower five bits of o, comparable with the RC opcodes.
func (o Opcode) Op() Opcode { return o & 0x1f }

func (o Opcode) String() string {
	if i := &opInfo[o]; i.Valid {
		return i.name
	}
	if o == CNP {
		return "CNP"
	}
	return fmt.Sprintf("Opcode(%#02x)", uint8(o))
}

// ServiceOf returns the service bits of the opcodes that a queue pair of type
// t sends.
func ServiceOf(t QPType) Opcode {
	switch t {
	case RC:
		return ServiceRC
	case UC:
		return ServiceUC
	}
	return ServiceUD
}

// Split returns the opcode of packet k of n packets that together carry what
// one packet of opcode o would: o itself where n is 1, else First or Middle
// for the packets before the last, and Middle or Last after the first. It is
// how a link puts a burst (package pkt) on the wire. o must be a
// SEND, a WRITE or a READ response.
func (o Opcode) Split(k, n uint32) Opcode {
	if n <= 1 {
		return o
	}
	i := o.Info()
	first := i.First && k == 0
	last := i.Last && k == n-1
	var f, m, l, only Opcode
	switch svc := o.Service(); {
	case i.Send:
		f, m, l, only = svc|SendFirst, svc|SendMiddle, svc|SendLast, svc|SendOnly
		switch {
		case i.Ext&ExtImm != 0:
			l, only = svc|SendLastImm, svc|SendOnlyImm
		case i.Ext&ExtIETH != 0:
			l, only = svc|SendLastInv, svc|SendOnlyInv
		}
	case i.Write:
		f, m, l, only = svc|WriteFirst, svc|WriteMiddle, svc|WriteLast, svc|WriteOnly
		if i.Ext&ExtImm != 0 {
			l, only = svc|WriteLastImm, svc|WriteOnlyImm
		}
	case i.ReadResp:
		f, m, l, only = ReadRespFirst, ReadRespMiddle, ReadRespLast, ReadRespOnly
	default:
		return o
	}
	switch {
	case first && last:
		return only
	case first:
		return f
	case last:
		return l
	}
	return m
}

// Join returns the opcode of a burst of opcode o with the packet n behind it, and
// false where n does not continue it. It is the inverse of Split.
func (o Opcode) Join(n Opcode) (Opcode, bool) {
	i, j := o.Info(), n.Info()
	if i.Last || j.First || o.Service() != n.Service() || i.Send != j.Send || i.Write != j.Write ||
		i.ReadResp != j.ReadResp {
		return 0, false
	}
	if !j.Last {
		return o, true
	}
	if !i.First {
		return n, true
	}
	svc := n.Service()
	switch n.Op() {
	case SendLast:
		return svc | SendOnly, true
	case SendLastImm:
		return svc | SendOnlyImm, true
	case SendLastInv:
		return svc | SendOnlyInv, true
	case WriteLast:
		return svc | WriteOnly, true
	case WriteLastImm:
		return svc | WriteOnlyImm, true
	case ReadRespLast:
		return ReadRespOnly, true
	}
	return 0, false
}

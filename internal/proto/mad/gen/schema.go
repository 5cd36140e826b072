// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// layout is one structure of a management datagram. Its fields are a table of one line each:
//
//	offset  bits  name  type  // what it means
//
// Offset and bits count bits from the start of the structure, as the tables of IBA volume 1 do. The lines
// cover every bit in order; the generator refuses a gap or an overlap, and the end of the last line is the
// length. The other columns are:
//
//   - A name is the name of the Go field. "reserved" is no field: it is sent as zero and ignored. "*" is the
//     value itself, of a layout that is an array. "X[hi:lo]" is bits lo to hi of X, which several lines make up.
//     "X.Y" is field Y of a structure X of which other fields lie elsewhere; a line of 0 bits declares X.
//     "X[N]" is element N of X, with a line of 0 bits alike.
//   - A type is a Go type: an unsigned integer, bool, an array, or another layout. "embedded" is the layout
//     of that name, embedded.
//   - After the type, "each" makes every element of an array a component of its own, and "saturating" sends
//     the largest value in place of one that the field cannot hold.
type layout struct {
	name   string
	doc    string // sentences on the Go type; with of none
	source string // the clause that has the layout
	fields string

	length string // constant that names the length, declared elsewhere; default: name + "Len", declared here
	part   bool   // never on the wire alone: no Append and no Parse
	of     string // the Go type is declared elsewhere, and this is one of its layouts

	// Of a record of subnet administration: its attribute, the prefix of its component masks, and the names of
	// components that differ from their fields' ("X=Y"; "X=-" for none). A prefix of "" makes no masks.
	attr, components, renamed string
}

// schema is every structure, in the order of the generated file.
var schema = slices.Concat(headers, subnet, tables, records, paths, notices, performance, connections, ethernet)

// headers are what several classes have in common.
var headers = []layout{
	{name: "Header", source: "IBA volume 1, 13.4.3", doc: "Header is the header of every MAD.", fields: `
		  0   8  BaseVersion        uint8
		  8   8  MgmtClass          Class
		 16   8  ClassVersion       uint8
		 24   8  Method             Method
		 32  16  Status             Status       // with the direction bit of a directed-route SMP, which SMP separates
		 48  16  ClassSpecific      uint16
		 64  64  TransactionID      uint64
		128  16  AttributeID        AttributeID
		144  16  reserved
		160  32  AttributeModifier  uint32`},
	{name: "RMPP", source: "IBA volume 1, 13.6.2",
		doc: "RMPP is the header of the reliable multi-packet protocol. It follows the header of the MAD.", fields: `
		  0   8  Version    uint8
		  8   8  Type       RMPPType
		 16   5  RRespTime  uint8
		 21   3  Flags      uint8
		 24   8  Status     uint8
		 32  32  Data1      uint32  // segment number
		 64  32  Data2      uint32  // payload length of data; last segment of the new window of an acknowledgement`},
	{name: "SAHeader", source: "IBA volume 1, 15.2.1.1",
		doc: "SAHeader is the header of a MAD of subnet administration.", fields: `
		  0 192  Header           embedded
		192  96  RMPP             RMPP
		288  64  SMKey            uint64
		352  16  AttributeOffset  uint16         // from record to record, in units of 8 bytes
		368  16  reserved
		384  64  ComponentMask    ComponentMask`},
	{name: "SA", length: "Len", source: "IBA volume 1, 15.2.1.1",
		doc: "SA is a MAD of subnet administration.", fields: `
		  0  448  SAHeader  embedded
		448 1600  Data      [SADataLen]byte`},
	{name: "Perf", length: "Len", source: "IBA volume 1, 16.1.1",
		doc: "Perf is a MAD of performance management.", fields: `
		  0  192  Header  embedded
		192  320  reserved
		512 1536  Data    [PerfDataLen]byte`},
	{name: "CM", length: "Len", source: "IBA volume 1, 12.6",
		doc: `CM is a MAD of communication management. m.Append(c.Data[:0]) writes a message into Data,
m.Parse(c.Data[:]) reads it.`, fields: `
		  0  192  Header  embedded
		192 1856  Data    [CMDataLen]byte`},
	{name: "VEMA", length: "OPALen", source: "docs/notes/vesw.md",
		doc: `VEMA is a MAD of the class, which belongs to vendor range 2: RMPP header and OUI follow the header.
AttributeModifier is the vport (VEMAVPort).`, fields: `
		  0  192    Header  embedded
		192   96    RMPP    RMPP              // zero: the class does not use it
		288    8    reserved
		296   24    OUI     uint32
		320 16064   Data    [VEMADataLen]byte`},
	{name: "SMPLIDRouted", of: "SMP", length: "Len", part: true, source: "IBA volume 1, 14.2.1", fields: `
		  0  192  Header  embedded
		192   64  MKey    uint64
		256  256  reserved
		512  512  Data    [SMPDataLen]byte
		1024 1024 reserved`},
	{name: "SMPDirected", of: "SMP", length: "Len", part: true, source: "IBA volume 1, 14.2.1", fields: `
		   0   8  BaseVersion        uint8
		   8   8  MgmtClass          Class
		  16   8  ClassVersion       uint8
		  24   8  Method             Method
		  32   1  D                  bool
		  33  15  Status             Status
		  48   8  HopPointer         uint8
		  56   8  HopCount           uint8
		  64  64  TransactionID      uint64
		 128  16  AttributeID        AttributeID
		 144  16  reserved
		 160  32  AttributeModifier  uint32
		 192  64  MKey               uint64
		 256  16  DrSLID             ib.LID
		 272  16  DrDLID             ib.LID
		 288 224  reserved
		 512 512  Data               [SMPDataLen]byte
		1024 512  InitialPath        [MaxHops+1]uint8
		1536 512  ReturnPath         [MaxHops+1]uint8`},
}

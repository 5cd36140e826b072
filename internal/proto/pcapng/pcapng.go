// SPDX-License-Identifier: Apache-2.0

// Package pcapng writes capture files: packets of InfiniBand links, frames of IP links over them, and
// Ethernet frames.
//
// What comes in: packets, and their times. What goes out: blocks of the pcapng format (IETF
// draft-ietf-opsawg-pcapng) to an io.Writer. Captures call it. It must never change a packet, retain
// one, or read a clock; it writes each block with one call, so that a truncated file is complete up to
// its last block.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"weft/internal/proto/wire"
)

// LinkType is the type of an interface's packets.
type LinkType uint16

// Link types.
const (
	// LinkEthernet is of frames without their check sequence.
	LinkEthernet LinkType = 1
	// LinkERF is of records that AppendNative makes: no link type of InfiniBand's
	// own is understood everywhere.
	LinkERF LinkType = 197
	// LinkIPoIB is of records that AppendIPoIB makes.
	LinkIPoIB LinkType = 242
)

// Interface is where packets of a file were seen.
type Interface struct {
	Name string
	Type LinkType
	// SnapLen is how many octets of a packet are kept at most; 0: all.
	SnapLen uint32
}

// Block types and options.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6

	byteOrder    = 0x1a2b3c4d
	optEnd       = 0
	optUser      = 4 // of a section: the application
	optName      = 2 // of an interface
	optTimeUnits = 9
	optReceived  = 4 // of statistics: packets
	optDropped   = 5 // of these, packets that are not in the file
	nanoseconds  = 9 // 10 to the power of -9 s

	sectionUnknown = math.MaxUint64 // length of a section that is still being written
	alignment      = 4
)

var le = binary.LittleEndian

// Writer writes one file. Its calls must not overlap.
type Writer struct {
	w      io.Writer
	ifaces int
	block  []byte
}

// NewWriter begins a file with packets of some interfaces.
func NewWriter(w io.Writer, application string, ifaces ...Interface) (*Writer, error) {
	p := &Writer{w: w, ifaces: len(ifaces)}
	b := p.begin(blockSection)
	b = le.AppendUint32(b, byteOrder)
	b = le.AppendUint16(b, 1) // version 1.0
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, sectionUnknown)
	b = option(b, optUser, []byte(application))
	if err := p.end(option(b, optEnd, nil)); err != nil {
		return nil, err
	}
	for _, i := range ifaces {
		b := p.begin(blockInterface)
		b = le.AppendUint16(b, uint16(i.Type))
		b = le.AppendUint16(b, 0)
		b = le.AppendUint32(b, i.SnapLen)
		b = option(b, optName, []byte(i.Name))
		b = option(b, optTimeUnits, []byte{nanoseconds})
		if err := p.end(option(b, optEnd, nil)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Write adds a record that was seen at an interface, by its index. The record is the
// caller's again on return.
func (p *Writer) Write(iface int, at time.Time, record []byte) error {
	if iface < 0 || iface >= p.ifaces {
		return fmt.Errorf("capture: interface %d of %d", iface, p.ifaces)
	}
	if at.Before(time.Unix(0, 0)) {
		return errors.New("capture: a time before 1970")
	}
	p.block = AppendPacket(p.block[:0], iface, at, record, len(record))
	return p.put()
}

// Blocks adds blocks that AppendPacket made.
func (p *Writer) Blocks(b []byte) error {
	if _, err := p.w.Write(b); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Statistics writes the number of packets that an interface has received, and of those that are
// missing in the file.
func (p *Writer) Statistics(iface int, at time.Time, received, dropped uint64) error {
	ns := uint64(at.UnixNano())
	b := p.begin(blockStatistics)
	b = le.AppendUint32(b, uint32(iface))
	b = le.AppendUint32(b, uint32(ns>>32))
	b = le.AppendUint32(b, uint32(ns))
	b = option(b, optReceived, le.AppendUint64(nil, received))
	b = option(b, optDropped, le.AppendUint64(nil, dropped))
	return p.end(option(b, optEnd, nil))
}

// AppendPacket appends a block with a record that was seen at an interface; it is
// part of one that had so many octets.
func AppendPacket(b []byte, iface int, at time.Time, record []byte, whole int) []byte {
	start, ns := len(b), uint64(at.UnixNano())
	b = le.AppendUint32(b, blockPacket)
	b = le.AppendUint32(b, uint32(PacketLen(len(record))))
	b = le.AppendUint32(b, uint32(iface))
	b = le.AppendUint32(b, uint32(ns>>32))
	b = le.AppendUint32(b, uint32(ns))
	b = le.AppendUint32(b, uint32(len(record)))
	b = le.AppendUint32(b, uint32(whole))
	b = append(b, record...)
	for (len(b)-start)%alignment != 0 {
		b = append(b, 0)
	}
	return le.AppendUint32(b, uint32(len(b)-start+4))
}

// packetFixed is the length of a packet's block but for the record.
const packetFixed = 32

// PacketLen returns the length of the block of a record of n octets.
func PacketLen(n int) int { return packetFixed + (n+alignment-1)&^(alignment-1) }

// Next returns the first of the blocks that AppendPacket made in b, and the time of its packet.
//
// Preconditions: b is not empty, and contains whole blocks.
func Next(b []byte) (block, rest []byte, at time.Time) {
	n := le.Uint32(b[4:])
	return b[:n:n], b[n:], time.Unix(0, int64(uint64(le.Uint32(b[12:]))<<32|uint64(le.Uint32(b[16:]))))
}

// begin starts a block; its length comes with end.
func (p *Writer) begin(kind uint32) []byte {
	return le.AppendUint32(le.AppendUint32(p.block[:0], kind), 0)
}

func (p *Writer) end(b []byte) error {
	n := uint32(len(b) + 4)
	le.PutUint32(b[4:], n)
	p.block = le.AppendUint32(b, n)
	return p.put()
}

func (p *Writer) put() error {
	if _, err := p.w.Write(p.block); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

func option(b []byte, code uint16, value []byte) []byte {
	b = le.AppendUint16(b, code)
	b = le.AppendUint16(b, uint16(len(value)))
	return pad(append(b, value...))
}

func pad(b []byte) []byte {
	for len(b)%alignment != 0 {
		b = append(b, 0)
	}
	return b
}

const (
	erfHeaderLen  = 16
	erfInfiniband = 21
	erfVarying    = 1 << 2 // lengths of records differ

	// MaxNative bounds a packet of AppendNative.
	MaxNative = math.MaxUint16 - erfHeaderLen
)

// AppendNative appends a packet of an InfiniBand link, LRH to VCRC, as a record of
// LinkERF: the header of the extensible record format, type 21, and the packet. One longer than
// MaxNative is cut.
func AppendNative(b []byte, at time.Time, packet []byte) []byte {
	return AppendCut(b, at, packet, len(packet))
}

// AppendCut is AppendNative of the beginning of a packet that had so many octets.
func AppendCut(b []byte, at time.Time, packet []byte, whole int) []byte {
	wireLen := min(whole, math.MaxUint16)
	packet = packet[:min(len(packet), MaxNative)]
	// Seconds, and fractions of one in units of 2^-32.
	frac := uint64(at.Nanosecond()) << 32 / uint64(time.Second)
	b = le.AppendUint64(b, uint64(at.Unix())<<32|frac)
	b = append(b, erfInfiniband, erfVarying)
	b = binary.BigEndian.AppendUint16(b, uint16(erfHeaderLen+len(packet)))
	b = binary.BigEndian.AppendUint16(b, 0) // none lost
	b = binary.BigEndian.AppendUint16(b, uint16(wireLen))
	return append(b, packet...)
}

// AppendIPoIB appends what a datagram of an IP link carries, from its encapsulation header on, as a
// record of LinkIPoIB: in front of it stand 40 octets like a GRH, with the source's
// queue pair number in octets 5 to 7.
func AppendIPoIB(b []byte, src, dst wire.HWAddr, datagram []byte) []byte {
	var grh [40]byte
	(&wire.GRH{IPVer: 6, NxtHdr: wire.NxtHdrIBA, SGID: src.GID(), DGID: dst.GID()}).Put(grh[:])
	copy(grh[5:8], src[1:4])
	return append(append(b, grh[:]...), datagram...)
}

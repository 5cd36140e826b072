// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net/netip"

	"weft/internal/proto/ib"
)

// PathInfo is the result of get-path for an IP address: its fields are those of a PathRecord (IBA
// volume 1, 15.2.5.16).
type PathInfo struct {
	Addr           netip.Addr
	DGID, SGID     ib.GID
	DLID, SLID     ib.LID
	FlowLabel      uint32
	PKey           ib.PKey
	SL             uint8
	MTU            ib.MTU  // code
	Rate           ib.Rate // code
	PacketLifetime uint8   // 4.096 µs · 2^PacketLifetime
	HopLimit       uint8
	TClass         uint8
}

// MTUBytes returns the path MTU in bytes, or 0 where its code is unknown.
func (p *PathInfo) MTUBytes() int {
	if !p.MTU.Valid() {
		return 0
	}
	return p.MTU.Bytes()
}

// PathInfoLen is the length of struct ipoib_path_info, the image of a PathInfo
// that crosses the control interface: everything in network byte order but
// for the address family, which is the host's.
const PathInfoLen = 72

// Address families of the image, with Linux' numbers.
const (
	familyIPv4 = 2
	familyIPv6 = 10
)

// Put writes the image to the first PathInfoLen bytes of b. An unset Addr has
// family 0.
func (p *PathInfo) Put(b []byte) {
	b = b[:PathInfoLen]
	clear(b)
	switch {
	case p.Addr.Is4():
		binary.NativeEndian.PutUint16(b, familyIPv4)
		put4(b[2:], p.Addr)
	case p.Addr.Is6():
		binary.NativeEndian.PutUint16(b, familyIPv6)
		put16(b[2:], p.Addr)
	}
	copy(b[18:], p.DGID[:])
	copy(b[34:], p.SGID[:])
	be.PutUint16(b[50:], uint16(p.DLID))
	be.PutUint16(b[52:], uint16(p.SLID))
	be.PutUint32(b[56:], p.FlowLabel)
	be.PutUint16(b[60:], uint16(p.PKey))
	be.PutUint16(b[62:], uint16(p.SL))
	be.PutUint16(b[64:], uint16(p.MTU))
	be.PutUint16(b[66:], uint16(p.Rate))
	be.PutUint16(b[68:], uint16(p.PacketLifetime))
	b[70], b[71] = p.HopLimit, p.TClass
}

// Parse decodes an image and reports whether it is one: as long as
// PathInfoLen, of IPv4 or IPv6, with values that fit. On input to a query only
// Addr matters.
func (p *PathInfo) Parse(b []byte) bool {
	if len(b) != PathInfoLen {
		return false
	}
	*p = PathInfo{DGID: ib.GID(b[18:]), SGID: ib.GID(b[34:]), DLID: ib.LID(be.Uint16(b[50:])),
		SLID:      ib.LID(be.Uint16(b[52:])),
		FlowLabel: be.Uint32(b[56:]), PKey: ib.PKey(be.Uint16(b[60:])), SL: b[63], MTU: ib.MTU(b[65]), Rate: ib.Rate(b[67]),
		PacketLifetime: b[69], HopLimit: b[70], TClass: b[71]}
	switch binary.NativeEndian.Uint16(b) {
	case familyIPv4:
		p.Addr = netip.AddrFrom4([4]byte(b[2:]))
	case familyIPv6:
		p.Addr = netip.AddrFrom16([16]byte(b[2:]))
	default:
		return false
	}
	return b[62]|b[64]|b[66]|b[68] == 0
}

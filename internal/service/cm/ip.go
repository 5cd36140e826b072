// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// ServiceID names a service of a node.
type ServiceID uint64

// PortSpace is the numbering that a port of the IP service belongs to: the bits of a
// service identifier above the port.
type PortSpace uint16

// Port spaces, as the connection manager device numbers them: of the IP protocols 6 and 17
// (IBA volume 1, annex A11), and two that only Linux has.
const (
	SpaceIPoIB PortSpace = 0x0002
	SpaceTCP   PortSpace = 0x0106
	SpaceUDP   PortSpace = 0x0111
	SpaceIB    PortSpace = 0x013f
)

// IPService returns the service identifier of a port. Those of TCP and UDP are
// annex A11's: prefix 0x0000000001, the protocol, the port.
func IPService(s PortSpace, port uint16) ServiceID { return ServiceID(s)<<16 | ServiceID(port) }

// Space returns what IPService was given, where s is such an identifier.
func (s ServiceID) Space() (space PortSpace, port uint16, ok bool) {
	space, port = PortSpace(s>>16), uint16(s)
	return space, port, s>>32 == 0 && (s>>24 == 1 || space == SpaceIPoIB)
}

// IPHeaderLen is the length of an IPHeader in private data.
const IPHeaderLen = 36

// IPHeader is what the IP service puts before the user's private data in a request (IBA volume 1,
// A11.3). Both addresses are of one family.
type IPHeader struct {
	SrcPort  uint16
	Src, Dst netip.Addr
}

// Errors of IPHeader.Parse.
var (
	ErrIPShort   = errors.New("cm: IP header too short")
	ErrIPVersion = errors.New("cm: IP header of an unknown version")
)

// Append appends the header's IPHeaderLen bytes to b.
func (h *IPHeader) Append(b []byte) []byte {
	var p [IPHeaderLen]byte
	binary.BigEndian.PutUint16(p[2:], h.SrcPort)
	put := func(p []byte, a netip.Addr) {
		if !a.IsValid() {
			return
		}
		if a = a.Unmap(); a.Is4() {
			v := a.As4()
			copy(p[12:], v[:])
		} else {
			v := a.As16()
			copy(p, v[:])
		}
	}
	p[1] = 0x60
	if h.Dst.Unmap().Is4() {
		p[1] = 0x40
	}
	put(p[4:20], h.Src)
	put(p[20:36], h.Dst)
	return append(b, p[:]...)
}

// Parse reads the header from the start of b. Reserved bits, and what lies before an IPv4
// address, are ignored.
func (h *IPHeader) Parse(b []byte) error {
	if len(b) < IPHeaderLen {
		return ErrIPShort
	}
	if b[0] != 0 {
		return ErrIPVersion
	}
	switch b[1] >> 4 {
	case 4:
		h.Src, h.Dst = netip.AddrFrom4([4]byte(b[16:20])), netip.AddrFrom4([4]byte(b[32:36]))
	case 6:
		h.Src, h.Dst = netip.AddrFrom16([16]byte(b[4:20])), netip.AddrFrom16([16]byte(b[20:36]))
	default:
		return ErrIPVersion
	}
	h.SrcPort = binary.BigEndian.Uint16(b[2:])
	return nil
}

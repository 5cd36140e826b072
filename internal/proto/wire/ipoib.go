// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strconv"
	"strings"

	"weft/internal/proto/ib"
)

// EtherType is the protocol of an IPoIB frame (RFC 4391, 6).
type EtherType uint16

// EtherTypes of an IPoIB link.
const (
	EtherIPv4 EtherType = 0x0800
	EtherARP  EtherType = 0x0806
	EtherRARP EtherType = 0x8035
	EtherIPv6 EtherType = 0x86dd
)

// EncapLen is the length of the encapsulation header that every IPoIB frame
// starts with: the EtherType and two reserved bytes (RFC 4391, 6).
const EncapLen = 4

// PutEncap writes the encapsulation header to the first EncapLen bytes of b.
func PutEncap(b []byte, t EtherType) {
	b = b[:EncapLen]
	be.PutUint16(b, uint16(t))
	b[2], b[3] = 0, 0
}

// FrameRefusal is the reason for which a frame from an IPoIB link is dropped. It is an index for the
// caller's counters.
type FrameRefusal uint8

// Frame refusals. FrameOK is none.
const (
	FrameOK          FrameRefusal = iota
	FrameShort                    // fewer bytes than the headers and the lengths in them need
	FrameEtherType                // none of IPv4, IPv6, ARP, RARP
	FrameVersion                  // EtherType and IP version differ
	ARPHardwareType               // not InfiniBand's 32
	ARPProtocolType               // not IPv4
	ARPHardwareLen                // not 20
	ARPProtocolLen                // not 4
	ARPSenderHW                   // a group or the multicast queue pair as the sender
	NDHopLimit                    // not 255: it came through a router
	NDCode                        // not 0
	NDChecksum                    // ICMPv6 checksum
	NDOption                      // an option of length 0, or one that leaves the packet
	NDLinkAddrLen                 // link-layer address option of another length than 24 bytes
	NDLinkAddr                    // a group, or the multicast queue pair, as a link-layer address
	NDSource                      // source address that the message must not have
	NDTarget                      // target or destination that the message must not have
	NumFrameRefusals = iota
)

var frameRefusalNames = [NumFrameRefusals]string{"ok", "short_frame", "unknown_ethertype", "version_mismatch",
	"arp_bad_htype", "arp_bad_ptype", "arp_bad_hlen", "arp_bad_plen", "arp_bad_sender_hw", "nd_bad_hoplimit", "nd_bad_code",
	"nd_bad_checksum", "nd_bad_option", "nd_bad_lladdr_len", "nd_bad_lladdr", "nd_bad_source", "nd_bad_target"}

// String returns the counter name of r.
func (r FrameRefusal) String() string {
	if int(r) < len(frameRefusalNames) {
		return frameRefusalNames[r]
	}
	return "unknown"
}

// ParseFrame splits the payload of a datagram of an IPoIB link into its type
// and what lies behind the encapsulation header, aliasing b. The reserved
// bytes are ignored; the version of an IP packet must be that of the type. IP
// headers are not looked at further.
func ParseFrame(b []byte) (t EtherType, l3 []byte, why FrameRefusal) {
	if len(b) < EncapLen {
		return 0, nil, FrameShort
	}
	t, l3 = EtherType(be.Uint16(b)), b[EncapLen:]
	version := byte(0)
	switch t {
	case EtherIPv4:
		version = 4
	case EtherIPv6:
		version = 6
	case EtherARP, EtherRARP:
		return t, l3, FrameOK
	default:
		return t, nil, FrameEtherType
	}
	switch {
	case len(l3) == 0:
		return t, nil, FrameShort
	case l3[0]>>4 != version:
		return t, nil, FrameVersion
	}
	return t, l3, FrameOK
}

// HardHeaderLen is the length of the header that a frame carries inside a
// node, in front of its IP or ARP packet, and never on the wire: destination
// hardware address, source hardware address, encapsulation header. As the GRH
// area of a received datagram and its encapsulation header have the same
// length, one headroom serves both directions.
const HardHeaderLen = 2*HWAddrLen + EncapLen

// PutHardHeader writes a hard header to the first HardHeaderLen bytes of b.
func PutHardHeader(b []byte, dst, src *HWAddr, t EtherType) {
	b = b[:HardHeaderLen]
	copy(b, dst[:])
	copy(b[HWAddrLen:], src[:])
	PutEncap(b[2*HWAddrLen:], t)
}

// HardHeader is the view of a hard header.
//
// Preconditions: it has HardHeaderLen bytes or more.
type HardHeader []byte

// Dst returns the destination's hardware address.
func (h HardHeader) Dst() HWAddr { return HWAddr(h[:HWAddrLen]) }

// Src returns the source's hardware address.
func (h HardHeader) Src() HWAddr { return HWAddr(h[HWAddrLen : 2*HWAddrLen]) }

// Type returns the EtherType.
func (h HardHeader) Type() EtherType { return EtherType(be.Uint16(h[2*HWAddrLen:])) }

// SetDst rewrites the destination, once it is known.
func (h HardHeader) SetDst(dst *HWAddr) { copy(h[:HWAddrLen], dst[:]) }

// IPMTU is the largest IP packet of a link with a group of MTU m, in bytes
// (RFC 4391, 7). m must be valid.
func IPMTU(m ib.MTU) int { return m.Bytes() - EncapLen }

// IPv6MinMTU is the MTU below which a link carries no IPv6 (RFC 8200, 5).
const IPv6MinMTU = 1280

// IPoIBName returns the interface name of the link of a port and a partition:
// ibX_Y_Z with the numbers of adapter and port and the partition's base value
// in hexadecimal. Both membership forms of a P_Key give one name.
func IPoIBName(ca, port int, pkey ib.PKey) string {
	return fmt.Sprintf("ib%x_%x_%x", ca, port, uint16(pkey&0x7fff))
}

// ParseIPoIBName is the reverse of IPoIBName: pkey is the full member's form.
// A name with the membership bit in it is accepted as an alias.
func ParseIPoIBName(s string) (ca, port int, pkey ib.PKey, err error) {
	bad := func() (int, int, ib.PKey, error) {
		return 0, 0, 0, fmt.Errorf("interface name %q: not of the form ibX_Y_Z with hexadecimal numbers of adapter, port and partition", s)
	}
	rest, ok := strings.CutPrefix(s, "ib")
	parts := strings.Split(rest, "_")
	if !ok || len(parts) != 3 {
		return bad()
	}
	var n [3]uint64
	for i, bits := range [3]int{31, 8, 16} {
		if n[i], err = strconv.ParseUint(parts[i], 16, bits); err != nil || parts[i] != strconv.FormatUint(n[i], 16) {
			return bad()
		}
	}
	if n[2]&0x7fff == 0 {
		return bad()
	}
	return int(n[0]), int(n[1]), ib.PKey(n[2]) | 0x8000, nil
}

// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// ARPLen is the length of an ARP packet of an IPoIB link, behind the
// encapsulation header (RFC 4391, 9.1).
const ARPLen = 16 + 2*HWAddrLen

// Operations of ARP.
const (
	ARPRequest uint16 = 1
	ARPReply   uint16 = 2
)

const (
	arpInfiniBand = 32 // ARPHRD_INFINIBAND
	arpIPLen      = 4
)

// ARP is a packet of the IPv4 address resolution protocol. Both IP addresses
// are IPv4.
type ARP struct {
	Op                 uint16
	SenderHW, TargetHW HWAddr
	SenderIP, TargetIP netip.Addr
}

// Put writes a to the first ARPLen bytes of b and returns their number.
func (a *ARP) Put(b []byte) int {
	b = b[:ARPLen]
	be.PutUint16(b, arpInfiniBand)
	be.PutUint16(b[2:], uint16(EtherIPv4))
	b[4], b[5] = HWAddrLen, arpIPLen
	be.PutUint16(b[6:], a.Op)
	copy(b[8:], a.SenderHW[:])
	put4(b[28:], a.SenderIP)
	copy(b[32:], a.TargetHW[:])
	put4(b[52:], a.TargetIP)
	return ARPLen
}

func put4(b []byte, a netip.Addr) {
	v := a.As4()
	copy(b, v[:])
}

// Parse decodes the packet behind the encapsulation header. Bytes behind the packet are ignored, and
// unknown operations are accepted. On a refusal a is undefined.
func (a *ARP) Parse(b []byte) FrameRefusal {
	switch {
	case len(b) < ARPLen:
		return FrameShort
	case be.Uint16(b) != arpInfiniBand:
		return ARPHardwareType
	case EtherType(be.Uint16(b[2:])) != EtherIPv4:
		return ARPProtocolType
	case b[4] != HWAddrLen:
		return ARPHardwareLen
	case b[5] != arpIPLen:
		return ARPProtocolLen
	}
	*a = ARP{Op: be.Uint16(b[6:]), SenderHW: HWAddr(b[8:28]), SenderIP: netip.AddrFrom4([4]byte(b[28:32])),
		TargetHW: HWAddr(b[32:52]), TargetIP: netip.AddrFrom4([4]byte(b[52:56]))}
	if !a.SenderHW.Unicast() {
		return ARPSenderHW
	}
	return FrameOK
}

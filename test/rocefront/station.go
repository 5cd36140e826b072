// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"
)

// Types of Ethernet frames.
const (
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

// frameLimit bounds how long a device may take for a frame.
const frameLimit = 30 * time.Second

// Answer gives an address to the guest's IP stack, which answers questions for the address as every stack does: by ARP
// (RFC 826) or by neighbour discovery (RFC 4861).
func (d *Device) Answer(addr netip.Addr) { d.addrs = append(d.addrs, addr) }

// answer answers a frame that asks for an address of the guest.
func (d *Device) answer(f []byte) error {
	for _, a := range d.addrs {
		var reply []byte
		if a.Is4() {
			reply = d.arpReply(f, a)
		} else {
			reply = d.advertisement(f, a)
		}
		if reply != nil {
			return d.SendFrame(reply, frameLimit)
		}
	}
	return nil
}

// arpReply returns the reply to a request of ARP for an address, nil if the frame is none.
func (d *Device) arpReply(f []byte, a netip.Addr) []byte {
	be := binary.BigEndian
	const size, request, reply = 42, 1, 2
	if len(f) < size || be.Uint16(f[12:]) != etherARP || be.Uint16(f[20:]) != request ||
		!bytes.Equal(f[38:42], a.AsSlice()) {
		return nil
	}
	out := bytes.Clone(f[:size])
	copy(out, f[6:12])
	copy(out[6:], d.Config.MAC[:])
	be.PutUint16(out[20:], reply)
	copy(out[22:], d.Config.MAC[:])
	copy(out[28:], a.AsSlice())
	copy(out[32:], f[22:32])
	return out
}

// advertisement returns the neighbour advertisement that answers a solicitation for an address, nil if the frame is
// none.
func (d *Device) advertisement(f []byte, a netip.Addr) []byte {
	be := binary.BigEndian
	const (
		ip, icmp, target, end          = 14, 54, 62, 78
		icmpv6                         = 58
		solicitation, advertises       = 135, 136
		solicitedAndOverride     uint8 = 0x60
		targetLinkLayer                = 2
	)
	if len(f) < end || be.Uint16(f[12:]) != etherIPv6 || f[ip+6] != icmpv6 || f[icmp] != solicitation ||
		!bytes.Equal(f[target:end], a.AsSlice()) {
		return nil
	}
	out := append(bytes.Clone(f[6:12]), d.Config.MAC[:]...)
	out = be.AppendUint16(out, etherIPv6)
	out = append(out, 0x60, 0, 0, 0, 0, 32, icmpv6, 255)
	out = append(append(out, a.AsSlice()...), f[ip+8:ip+24]...)
	out = append(out, advertises, 0, 0, 0, solicitedAndOverride, 0, 0, 0)
	out = append(append(out, a.AsSlice()...), targetLinkLayer, 1)
	out = append(out, d.Config.MAC[:]...)
	// The checksum is over a pseudo header, too: both addresses, the length and the protocol (RFC 8200, 8.1).
	sum := uint32(32 + icmpv6)
	for i := ip + 8; i < len(out); i += 2 {
		sum += uint32(be.Uint16(out[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	be.PutUint16(out[icmp+2:], ^uint16(sum))
	return out
}

// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// announce notifies the neighbours of the MAC of the stack's addresses, after a change of it or of the way to them:
// those that have an entry update it (RFC 5227 §2.3, RFC 4861 §7.2.6).
func (d *Ether) announce() {
	mac := d.ep.LinkAddress()
	if mac == "" || mac == header.UnspecifiedEthernetAddress {
		return
	}
	var list stack.PacketBufferList
	defer list.Reset()
	for _, a := range d.stack.AllAddresses()[nic] {
		b := announcement(mac, a.AddressWithPrefix.Address)
		list.PushBack(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)}))
	}
	_, _ = d.ep.WritePackets(list) // what a closed one loses is lost with all else
}

// announcement is a whole frame.
func announcement(mac tcpip.LinkAddress, ip tcpip.Address) []byte {
	be := binary.BigEndian
	if ip.Len() == 4 {
		b := make([]byte, header.EthernetMinimumSize+header.ARPSize)
		copy(b, "\xff\xff\xff\xff\xff\xff")
		copy(b[6:], mac)
		be.PutUint16(b[12:], uint16(header.ARPProtocolNumber))
		p := header.ARP(b[14:])
		p.SetIPv4OverEthernet()
		p.SetOp(header.ARPRequest)
		copy(p.HardwareAddressSender(), mac)
		copy(p.ProtocolAddressSender(), ip.AsSlice())
		copy(p.ProtocolAddressTarget(), ip.AsSlice())
		return b
	}
	const nd = 14 + 40 // where ICMPv6 begins: a neighbour advertisement with its target's link-layer address
	b := make([]byte, nd+header.ICMPv6NeighborAdvertMinimumSize+8)
	copy(b, "\x33\x33\x00\x00\x00\x01")
	copy(b[6:], mac)
	be.PutUint16(b[12:], uint16(header.IPv6ProtocolNumber))
	header.IPv6(b[14:]).Encode(&header.IPv6Fields{PayloadLength: uint16(len(b) - nd),
		TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit:          header.NDPHopLimit, SrcAddr: ip, DstAddr: header.IPv6AllNodesMulticastAddress})
	p := b[nd:]
	p[0], p[4] = uint8(header.ICMPv6NeighborAdvert), 0x20 // override
	copy(p[8:], ip.AsSlice())
	p[24], p[25] = 2, 1
	copy(p[26:], mac)
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, ip, header.IPv6AllNodesMulticastAddress,
		uint16(len(p)))
	be.PutUint16(p[2:], ^checksum.Checksum(p, sum))
	return b
}

// heard deletes the entry of a neighbour that announced another MAC by ARP, so that the stack resolves it again: it
// would keep the old MAC through seconds of silence, until it declared the neighbour unreachable.
func (d *Ether) heard(f []byte) {
	if binary.BigEndian.Uint16(f[12:]) != uint16(header.ARPProtocolNumber) {
		return
	}
	p := header.ARP(f[header.EthernetMinimumSize:])
	from := p.ProtocolAddressSender()
	if !p.IsValid() || string(from) != string(p.ProtocolAddressTarget()) {
		return
	}
	known, _ := d.stack.Neighbors(nic, header.IPv4ProtocolNumber)
	for _, n := range known {
		// An entry that is being resolved has none yet.
		if n.Addr == tcpip.AddrFrom4Slice(from) && n.LinkAddr != "" &&
			string(n.LinkAddr) != string(p.HardwareAddressSender()) {
			_ = d.stack.RemoveNeighbor(nic, header.IPv4ProtocolNumber, n.Addr) // gone by itself, it is unknown
		}
	}
}

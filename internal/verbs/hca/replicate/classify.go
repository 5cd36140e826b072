// SPDX-License-Identifier: Apache-2.0

package replicate

import (
	"encoding/binary"
	"math/bits"
)

// Class is what the packet receiver found out about an IPoIB payload: it is
// computed once and carried with each copy.
type Class struct {
	Kind Kind
	// Hash is the receive-side scaling hash (Toeplitz, with the key that
	// network adapters use by default) of addresses and, where Kind has them,
	// ports.
	Hash uint32
	// IPOK reports that the IPv4 header checksum is right (IPv6 has none), L4OK
	// that the checksum of TCP or UDP is.
	IPOK, L4OK bool
}

// Kind is what was recognised.
type Kind uint8

// Kinds.
const (
	NotIP Kind = iota
	IPv4
	IPv6
	TCPv4
	UDPv4
	TCPv6
	UDPv6
)

var be = binary.BigEndian

const (
	ethertypeIPv4 = 0x0800
	ethertypeIPv6 = 0x86dd
	protoTCP      = 6
	protoUDP      = 17
)

// Classify looks at a datagram's payload as IPoIB lays it out (RFC 4391,
// section 6: a type and two zero octets in front). Whatever is not a whole,
// unfragmented IP packet is classified by what it is, without ports.
func Classify(p []byte) Class {
	if len(p) < 4 || be.Uint16(p[2:]) != 0 {
		return Class{}
	}
	switch ip := p[4:]; be.Uint16(p) {
	case ethertypeIPv4:
		return classify4(ip)
	case ethertypeIPv6:
		return classify6(ip)
	}
	return Class{}
}

func classify4(ip []byte) (c Class) {
	if len(ip) < 20 || ip[0]>>4 != 4 {
		return c
	}
	hlen, total := int(ip[0]&15)*4, int(be.Uint16(ip[2:]))
	if hlen < 20 || total < hlen || total > len(ip) {
		return c
	}
	c = Class{Kind: IPv4, IPOK: fold(sum(0, ip[:hlen])) == 0xffff}
	var h toeplitz
	h.add(ip[12:20])
	if l4 := ip[hlen:total]; be.Uint16(ip[6:])&0x3fff == 0 {
		c.transport(&h, ip[9], l4, sum(uint64(ip[9])+uint64(len(l4)), ip[12:20]), TCPv4, UDPv4)
	}
	c.Hash = h.sum
	return c
}

func classify6(ip []byte) (c Class) {
	if len(ip) < 40 || ip[0]>>4 != 6 || int(be.Uint16(ip[4:]))+40 > len(ip) {
		return c
	}
	c = Class{Kind: IPv6, IPOK: true}
	var h toeplitz
	h.add(ip[8:40])
	l4 := ip[40 : 40+int(be.Uint16(ip[4:]))]
	c.transport(&h, ip[6], l4, sum(uint64(ip[6])+uint64(len(l4)), ip[8:40]), TCPv6, UDPv6)
	c.Hash = h.sum
	return c
}

// transport goes on with TCP or UDP; pseudo is the sum of the pseudo header.
func (c *Class) transport(h *toeplitz, proto uint8, l4 []byte, pseudo uint64, tcp, udp Kind) {
	switch {
	case proto == protoTCP && len(l4) >= 20:
		c.Kind = tcp
		c.L4OK = fold(sum(pseudo, l4)) == 0xffff
	case proto == protoUDP && len(l4) >= 8 && int(be.Uint16(l4[4:])) == len(l4):
		c.Kind = udp
		// Over IPv4 a checksum of zero stands for none.
		c.L4OK = udp == UDPv4 && be.Uint16(l4[6:]) == 0 || fold(sum(pseudo, l4)) == 0xffff
	default:
		return
	}
	h.add(l4[:4])
}

// sum adds up p as big-endian 16-bit words (RFC 1071), several at once.
func sum(s uint64, p []byte) uint64 {
	for len(p) >= 8 {
		v := be.Uint64(p)
		s += v>>32 + v&0xffffffff
		p = p[8:]
	}
	for len(p) >= 2 {
		s += uint64(be.Uint16(p))
		p = p[2:]
	}
	if len(p) == 1 {
		s += uint64(p[0]) << 8
	}
	return s
}

// fold brings a sum down to 16 bits.
func fold(s uint64) uint16 {
	for s>>16 != 0 {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// rssKey is the secret key of the receive-side scaling specification's
// verification suite, which adapters use unless configured otherwise; four zeros follow.
var rssKey = [44]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// toeplitz is a hash in progress.
type toeplitz struct {
	sum uint32
	at  int // octets so far
}

func (t *toeplitz) add(p []byte) {
	for _, b := range p {
		key := be.Uint64(rssKey[t.at:])
		for b != 0 {
			i := bits.LeadingZeros8(b)
			t.sum ^= uint32(key << i >> 32)
			b &^= 0x80 >> i
		}
		t.at++
	}
}

// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// PathMTU returns the MTU of the path of a connected TCP or UDP socket, as the kernel has it (ip(7), IP_MTU), in octets
// of an IP packet; 0 where it is unknown.
func PathMTU(c net.Conn) (mtu int) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0
	}
	raw.Control(func(fd uintptr) {
		level, name := unix.IPPROTO_IP, unix.IP_MTU
		if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil && a.Addr().Is6() &&
			!a.Addr().Is4In6() {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
		}
		if n, err := unix.GetsockoptInt(int(fd), level, name); err == nil {
			mtu = min(n, 65535) // that of loopback is longer than a packet
		}
	})
	return mtu
}

// Addresses lists the addresses at which other hosts may reach this one, each with a port: of interfaces that are up,
// both families, IPv4 first, without loopback and link-local ones, and without those of Weft's own interfaces, most at
// most. Within a family that of the default route comes first; behind the others are those of interfaces without
// carrier, and last those of bridges without ports, such as that for containers, which each host may have. Where there
// is none, loopback.
func Addresses(port uint16, most int) []string {
	all, _ := readLinks()
	var found []source
	for i := range all {
		l := &all[i]
		for _, a := range l.addrs {
			if !l.loopback && !l.own && a.IsGlobalUnicast() {
				found = append(found, source{a, l.reach()})
			}
		}
	}
	var list []string
	for _, a := range ordered(found, Source(nowhere4), Source(nowhere6)) {
		list = append(list, netip.AddrPortFrom(a, port).String())
	}
	if len(list) == 0 {
		list = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))}
	}
	return list[:min(len(list), most)]
}

// reach is how likely an interface leads to other hosts.
type reach int

const (
	leads reach = iota
	noCarrier
	nowhere // a bridge without ports
)

func (l *link) reach() reach {
	switch {
	case l.empty:
		return nowhere
	case l.running:
		return leads
	}
	return noCarrier
}

// source is an address of this host, with what its interface is.
type source struct {
	addr  netip.Addr
	reach reach
}

// ordered sorts addresses as Addresses does; first are those of default routes, invalid where there is none.
func ordered(list []source, first ...netip.Addr) (sorted []netip.Addr) {
	rank := func(s source) (n int) {
		if !s.addr.Is4() {
			n = 4
		}
		if slices.Contains(first, s.addr) {
			return n
		}
		return n + 1 + int(s.reach)
	}
	slices.SortStableFunc(list, func(a, b source) int { return rank(a) - rank(b) })
	for _, s := range list {
		sorted = append(sorted, s.addr)
	}
	return sorted
}

// Addresses of no host (RFC 5737, RFC 3849): the route to them is the default route.
var (
	nowhere4 = netip.MustParseAddr("192.0.2.1")
	nowhere6 = netip.MustParseAddr("2001:db8::1")
)

// Source is the address from which this host sends to another, by its routes; invalid where it has no route there. No
// packet is sent.
func Source(to netip.Addr) netip.Addr {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9))) // 9: discard
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
}

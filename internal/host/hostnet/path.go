// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net"
	"net/netip"
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
// both families, IPv4 first, without loopback and link-local ones, most at most. Where there is none, loopback.
func Addresses(port uint16, most int) []string {
	var v4, v6 []string
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err != nil || !p.Addr().IsGlobalUnicast() {
				continue
			}
			s := net.JoinHostPort(p.Addr().String(), strconv.Itoa(int(port)))
			if p.Addr().Is4() {
				v4 = append(v4, s)
			} else {
				v6 = append(v6, s)
			}
		}
	}
	list := append(v4, v6...)
	if len(list) == 0 {
		list = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port)))}
	}
	return list[:min(len(list), most)]
}

// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// Leaving is a packet that Route checks: it leaves from an address of an interface of this host.
type Leaving struct {
	Src, Dst netip.Addr // of one family
	IfIndex  int        // of the interface with Src: the link of a link-local address
	Port     uint16     // UDP port of the destination
	TClass   uint8      // type of service, or traffic class: rules may select a route by it
}

// Route returns nil if this host has a route for a UDP packet, else the error of the kernel: ENETUNREACH, EHOSTUNREACH,
// or EINVAL if no packet can leave with the source address (a loopback address to another host; no address of this
// host). No packet is sent, and the destination need not answer.
//
// Route asks the forwarding tables by the system calls bind and connect of a socket. It waits for nothing (unlike
// netlink, it takes no lock of the network's configuration), so that a lane may call it.
func Route(p Leaving) error {
	family, level, class := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TOS
	if p.Src.Is6() {
		family, level, class = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_TCLASS
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, level, class, int(p.TClass)); err != nil {
		return err
	}
	switch err := unix.Bind(fd, p.sockaddr(p.Src, 0)); err {
	case nil:
	case unix.EADDRNOTAVAIL: // the address has gone, or never was one
		return unix.EINVAL
	default:
		return err
	}
	if p.Src.IsLoopback() && p.Src.Is6() && Source(p.Dst) != p.Dst {
		return unix.EINVAL // the tables of IPv4 refuse it, the tables of IPv6 do not; other hosts drop it
	}
	switch err := unix.Connect(fd, p.sockaddr(p.Dst, p.Port)); err {
	case unix.EACCES: // a route that prohibits it; to programs, EACCES is the refusal of --roce-allow
		return unix.EHOSTUNREACH
	default:
		return err
	}
}

func (p *Leaving) sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(port), Addr: a.As4()}
	}
	s := &unix.SockaddrInet6{Port: int(port), Addr: a.As16()}
	if a.IsLinkLocalUnicast() {
		s.ZoneId = uint32(p.IfIndex)
	}
	return s
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/internal/ib"
)

// opt is one socket option; what says what fails without it.
type opt struct {
	level, name, value int
	what               string
}

// common are options of every socket of a family: no fragmentation, which
// also makes the IPv4 identification known; the others keep our own multicast
// off our own sockets (package hca delivers within the node).
func common(v4 bool) []opt {
	if v4 {
		return []opt{
			{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, "forbid fragmentation"},
			{unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0, "stop multicast loopback"},
		}
	}
	return []opt{
		{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "keep IPv4 off an IPv6 socket"},
		{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, "forbid fragmentation"},
		{unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1, "forbid fragmentation"},
		{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0, "stop multicast loopback"},
	}
}

// receiving are the options of the socket that receives.
func receiving(v4 bool) []opt {
	o := []opt{
		{unix.IPPROTO_UDP, unix.UDP_GRO, 1, "receive coalesced datagrams"},
		{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, "count overflows"},
	}
	if v4 {
		return append(o,
			opt{unix.IPPROTO_IP, unix.IP_PKTINFO, 1, "learn destination addresses"},
			opt{unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "learn the type of service"},
			opt{unix.IPPROTO_IP, unix.IP_RECVTTL, 1, "learn the TTL"},
			opt{unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, "receive only joined groups"})
	}
	return append(o,
		// soft-RoCE sends IPv6 datagrams without a UDP checksum.
		opt{unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, "receive IPv6 datagrams without checksum"},
		opt{unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1, "learn destination addresses"},
		opt{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "learn the traffic class"},
		opt{unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1, "learn the hop limit"},
		opt{unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0, "receive only joined groups"})
}

// newSocket returns a bound, unconnected, non-blocking UDP socket.
func newSocket(v4 bool, port uint16, opts ...[]opt) (int, error) {
	family := unix.AF_INET6
	var addr unix.Sockaddr = &unix.SockaddrInet6{Port: int(port)}
	if v4 {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(port)}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	for _, list := range opts {
		for _, o := range list {
			if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
				unix.Close(fd)
				return -1, fmt.Errorf("%s: %w", o.what, err)
			}
		}
	}
	if err := unix.Bind(fd, addr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind: %w", err)
	}
	return fd, nil
}

// setBuffer makes a socket buffer as large as want, or as large as may be, and
// returns its size. The kernel doubles and reports what is set.
func setBuffer(fd, force, option, want int) int {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, want) != nil {
		// Without privilege: bounded by net.core.rmem_max, silently.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, want)
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return n / 2
}

// deaf lets a socket that only sends drop whatever arrives, so that nobody
// can fill its buffer: a filter program that accepts zero bytes.
func deaf(fd int) error {
	code := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
}

// unsupported reports whether a family is absent from this host.
func unsupported(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// Join makes the link receive a multicast group on the interface ifindex
// (IGMP or MLD do the rest), Leave ends it.
func (l *Link) Join(group ib.GID, ifindex int) error { return l.member(group, ifindex, true) }

// Leave ends a Join.
func (l *Link) Leave(group ib.GID, ifindex int) error { return l.member(group, ifindex, false) }

func (l *Link) member(group ib.GID, ifindex int, join bool) error {
	verb := "join"
	if !join {
		verb = "leave"
	}
	if !group.IsMulticast() {
		return fmt.Errorf("%s %v: not a multicast address", verb, group.Addr())
	}
	fd, o := l.recv[1].fd, unix.IPV6_LEAVE_GROUP
	if join {
		o = unix.IPV6_JOIN_GROUP
	}
	var err error
	if group.IsIPv4() {
		fd, o = l.recv[0].fd, unix.IP_DROP_MEMBERSHIP
		if join {
			o = unix.IP_ADD_MEMBERSHIP
		}
		err = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, o,
			&unix.IPMreqn{Multiaddr: [4]byte(group[12:]), Ifindex: int32(ifindex)})
	} else {
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, o,
			&unix.IPv6Mreq{Multiaddr: group, Interface: uint32(ifindex)})
	}
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("join %v: the host's limit of groups per socket is reached. fix: sysctl -w net.ipv4.igmp_max_memberships=1000", group.Addr())
	case err != nil:
		return fmt.Errorf("%s %v on interface %d: %w", verb, group.Addr(), ifindex, err)
	}
	return nil
}

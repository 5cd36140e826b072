// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// common returns the options of every socket of a family: no fragmentation, which also determines the
// IPv4 identification, and no loopback of our own multicast (package hca delivers within the node).
func common(v4 bool) []udpsock.Option {
	if v4 {
		return []udpsock.Option{
			udpsock.Opt(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, "forbid fragmentation"),
			udpsock.Opt(unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0, "stop multicast loopback"),
		}
	}
	return []udpsock.Option{
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1, "keep IPv4 off an IPv6 socket"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO, "forbid fragmentation"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1, "forbid fragmentation"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0, "stop multicast loopback"),
	}
}

// receiving are the options of the socket that receives.
func receiving(v4 bool) []udpsock.Option {
	o := []udpsock.Option{
		udpsock.Opt(unix.IPPROTO_UDP, unix.UDP_GRO, 1, "receive coalesced datagrams"),
		udpsock.Opt(unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 1, "count overflows"),
	}
	if v4 {
		return append(o,
			udpsock.Opt(unix.IPPROTO_IP, unix.IP_PKTINFO, 1, "learn destination addresses"),
			udpsock.Opt(unix.IPPROTO_IP, unix.IP_RECVTOS, 1, "learn the type of service"),
			udpsock.Opt(unix.IPPROTO_IP, unix.IP_RECVTTL, 1, "learn the TTL"),
			udpsock.Opt(unix.IPPROTO_IP, unix.IP_MULTICAST_ALL, 0, "receive only joined groups"))
	}
	return append(o,
		// soft-RoCE sends IPv6 datagrams without a UDP checksum.
		udpsock.Opt(unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1, "receive IPv6 datagrams without checksum"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1, "learn destination addresses"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1, "learn the traffic class"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1, "learn the hop limit"),
		udpsock.Opt(unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_ALL, 0, "receive only joined groups"))
}

// Join adds a multicast group on the interface ifindex; the kernel handles IGMP and MLD. Leave ends
// it. Unlike the other methods, both may be called from any goroutine until Close.
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
		return &problem.Error{What: fmt.Sprintf("join %v", group.Addr()),
			Why: fmt.Sprintf("the host's limit of groups per socket is reached: %v", err),
			Fix: "sysctl -w net.ipv4.igmp_max_memberships=1000", Err: err}
	case err != nil:
		return fmt.Errorf("%s %v on interface %d: %w", verb, group.Addr(), ifindex, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/problem"
)

// Socket addresses are written as the kernel lays them out: fields in host
// order, but ports and addresses in network order.
var (
	ne = binary.NativeEndian
	be = binary.BigEndian
)

// infoLen is room for packet info of either family.
const infoLen = 40

// source is a socket address as a key.
type source struct {
	addr  [16]byte // IPv4 mapped
	port  uint16
	scope uint32
}

// String prints the address and port.
func (s source) String() string {
	return netip.AddrPortFrom(netip.AddrFrom16(s.addr).Unmap(), s.port).String()
}

// peer is what Link and Senders share of one peer. All but the atomics is
// constant.
type peer struct {
	cfg     Peer
	family  int // 0: IPv4, 1: IPv6
	source  source
	name    [udpsock.NameLen]byte
	nameLen uint32
	ctrl    [infoLen]byte // sets the source address
	ctrlLen int

	probe int // socket connected to the peer, for the MTU of its route; -1: none
	dest  unix.Sockaddr
	to    atomic.Uint32 // the peer's epoch, 0: down
	limit atomic.Int32  // the largest datagram; 0: no route
}

// init fills in all but the probe.
func (p *peer) init(cfg Peer, port uint16) error {
	a := cfg.Addr.Addr().Unmap()
	if cfg.Addr.Port() != 0 {
		port = cfg.Addr.Port()
	}
	cfg.Addr = netip.AddrPortFrom(a, port)
	cfg.Local = cfg.Local.Unmap()
	p.cfg = cfg
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast():
		return errors.New("not the address of a host")
	case cfg.Local.IsValid() && (cfg.Local.Is4() != a.Is4() || cfg.Local.IsUnspecified() || cfg.Local.IsMulticast()):
		return fmt.Errorf("%v cannot be the source address to it", cfg.Local)
	}
	scope, err := zone(a)
	if err != nil {
		return err
	}
	p.source = source{addr: a.As16(), port: port, scope: scope}
	be.PutUint16(p.name[2:], port)
	if a.Is4() {
		ne.PutUint16(p.name[:], unix.AF_INET)
		b := a.As4()
		copy(p.name[4:8], b[:])
		p.nameLen = unix.SizeofSockaddrInet4
		p.dest = &unix.SockaddrInet4{Port: int(port), Addr: b}
		if cfg.Local.IsValid() {
			body, n := udpsock.PutCmsg(p.ctrl[:], 0, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
			src := cfg.Local.As4()
			copy(body[4:8], src[:])
			p.ctrlLen = n
		}
		return nil
	}
	p.family = 1
	ne.PutUint16(p.name[:], unix.AF_INET6)
	b := a.As16()
	copy(p.name[8:24], b[:])
	ne.PutUint32(p.name[24:], scope)
	p.nameLen = unix.SizeofSockaddrInet6
	p.dest = &unix.SockaddrInet6{Port: int(port), Addr: b, ZoneId: scope}
	if cfg.Local.IsValid() {
		body, n := udpsock.PutCmsg(p.ctrl[:], 0, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		src := cfg.Local.As16()
		copy(body, src[:])
		ne.PutUint32(body[16:], scope)
		p.ctrlLen = n
	}
	return nil
}

// zone returns the interface of a link-local address.
func zone(a netip.Addr) (uint32, error) {
	z := a.Zone()
	switch {
	case z == "" && a.Is6() && a.IsLinkLocalUnicast():
		return 0, &problem.Error{What: "a link-local address needs its interface", Fix: fmt.Sprintf("%v%%DEV", a)}
	case z == "" || !a.IsLinkLocalUnicast():
		return 0, nil
	}
	if n, err := strconv.ParseUint(z, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(z)
	if err != nil {
		return 0, err
	}
	return uint32(i.Index), nil
}

// openProbe opens the socket for path MTU queries.
func (p *peer) openProbe() error {
	fd, err := udpsock.Open(p.family == 0, 0)
	if err != nil {
		return err
	}
	p.probe = fd
	return udpsock.DropAll(fd)
}

// measure reads the path MTU from the kernel. Connecting again repeats the route lookup. Link and
// Senders may call it at the same time, which is harmless.
func (p *peer) measure() {
	p.limit.Store(int32(p.pathLimit()))
}

func (p *peer) pathLimit() int {
	if unix.Connect(p.probe, p.dest) != nil {
		return 0
	}
	level, opt, headers := unix.IPPROTO_IP, unix.IP_MTU, 20+8
	if p.family == 1 {
		level, opt, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU, 40+8
	}
	mtu, err := unix.GetsockoptInt(p.probe, level, opt)
	if err != nil {
		return 0
	}
	return min(max(mtu-headers, 1), trunk.MaxDatagram)
}

// remote returns the state that a Batch depends on.
func (p *peer) remote() trunk.Remote {
	return trunk.Remote{To: trunk.Epoch(p.to.Load()), Limit: int(p.limit.Load())}
}

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

// target is where datagrams to a peer go, as the kernel has it. It is immutable.
type target struct {
	addr    netip.AddrPort
	family  int // 0: IPv4, 1: IPv6
	name    [udpsock.NameLen]byte
	nameLen uint32
	ctrl    [infoLen]byte // sets the source address
	ctrlLen int
	dest    unix.Sockaddr
}

// peer is what Link and Senders share of one peer: the atomics. The rest is the Link's.
type peer struct {
	cfg   Peer
	probe int                          // socket connected to the peer, for the MTU of its route; -1: none
	to    atomic.Pointer[target]       // nil: not known where it is, or no peer
	state atomic.Pointer[trunk.Remote] // nil: down
	path  atomic.Int32                 // the largest datagram on the route; 0: no route
	turn  atomic.Uint32                // of the index: it serves another peer
}

// normal returns the address of a peer as datagrams from it have it, and checks it.
func normal(cfg Peer, port uint16) (Peer, error) {
	a := cfg.Addr.Addr().Unmap()
	if cfg.Addr.Port() != 0 {
		port = cfg.Addr.Port()
	}
	cfg.Local = cfg.Local.Unmap()
	if cfg.Anywhere {
		cfg.Addr = netip.AddrPort{}
		return cfg, nil
	}
	switch {
	case !a.IsValid() || a.IsUnspecified() || a.IsMulticast():
		return cfg, errors.New("not the address of a host")
	case cfg.Local.IsValid() && (cfg.Local.Is4() != a.Is4() || cfg.Local.IsUnspecified() || cfg.Local.IsMulticast()):
		return cfg, fmt.Errorf("%v cannot be the source address to it", cfg.Local)
	}
	scope, err := zone(a)
	if err != nil {
		return cfg, err
	}
	cfg.Addr = netip.AddrPortFrom(scoped(a.WithZone(""), scope), port)
	return cfg, nil
}

// scoped returns an address with the number of its interface as its zone; 0: none.
func scoped(a netip.Addr, scope uint32) netip.Addr {
	if scope == 0 {
		return a
	}
	return a.WithZone(strconv.FormatUint(uint64(scope), 10))
}

// newTarget returns the target at a normal address.
func newTarget(at netip.AddrPort, local netip.Addr) *target {
	t := &target{addr: at}
	a, port := at.Addr(), at.Port()
	if local.IsValid() && local.Is4() != a.Is4() {
		local = netip.Addr{}
	}
	be.PutUint16(t.name[2:], port)
	if a.Is4() {
		ne.PutUint16(t.name[:], unix.AF_INET)
		b := a.As4()
		copy(t.name[4:8], b[:])
		t.nameLen = unix.SizeofSockaddrInet4
		t.dest = &unix.SockaddrInet4{Port: int(port), Addr: b}
		if local.IsValid() {
			body, n := udpsock.PutCmsg(t.ctrl[:], 0, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
			src := local.As4()
			copy(body[4:8], src[:])
			t.ctrlLen = n
		}
		return t
	}
	scope, _ := strconv.ParseUint(a.Zone(), 10, 32) // none: 0
	t.family = 1
	ne.PutUint16(t.name[:], unix.AF_INET6)
	b := a.As16()
	copy(t.name[8:24], b[:])
	ne.PutUint32(t.name[24:], uint32(scope))
	t.nameLen = unix.SizeofSockaddrInet6
	t.dest = &unix.SockaddrInet6{Port: int(port), Addr: b, ZoneId: uint32(scope)}
	if local.IsValid() {
		body, n := udpsock.PutCmsg(t.ctrl[:], 0, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		src := local.As16()
		copy(body, src[:])
		ne.PutUint32(body[16:], uint32(scope))
		t.ctrlLen = n
	}
	return t
}

// zone returns the interface of a link-local address.
func zone(a netip.Addr) (uint32, error) {
	z := a.Zone()
	switch {
	case z == "" && a.IsValid() && a.Is6() && a.IsLinkLocalUnicast():
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

// measure reads the path MTU from the kernel; it is the Link's. Connecting again repeats the route lookup.
func (p *peer) measure() {
	t := p.to.Load()
	if t == nil {
		p.path.Store(0)
		return
	}
	limit := 0
	if p.probe >= 0 {
		limit = t.pathLimit(p.probe)
	}
	if limit == 0 {
		// A socket keeps the source address of its first connection, which the host may have no more.
		p.closeProbe()
		fd, err := openProbe(t)
		if err != nil {
			p.path.Store(0)
			return
		}
		p.probe = fd
		limit = t.pathLimit(fd)
	}
	p.path.Store(int32(limit))
}

// remeasure is measure for a Sender, of another lane: with a socket of its own.
func (p *peer) remeasure() {
	t := p.to.Load()
	if t == nil {
		return
	}
	if fd, err := openProbe(t); err == nil {
		p.path.Store(int32(t.pathLimit(fd)))
		unix.Close(fd)
	}
}

// closeProbe closes the socket for path MTU queries.
func (p *peer) closeProbe() error {
	if p.probe < 0 {
		return nil
	}
	fd := p.probe
	p.probe = -1
	return unix.Close(fd)
}

// openProbe opens a socket for path MTU queries.
func openProbe(t *target) (int, error) {
	fd, err := udpsock.Open(t.family == 0, 0)
	if err != nil {
		return -1, err
	}
	if err := udpsock.DropAll(fd); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// pathLimit returns the largest datagram on the route; 0: there is none.
func (t *target) pathLimit(probe int) int {
	if unix.Connect(probe, t.dest) != nil {
		return 0
	}
	level, opt, headers := unix.IPPROTO_IP, unix.IP_MTU, 20+8
	if t.family == 1 {
		level, opt, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU, 40+8
	}
	mtu, err := unix.GetsockoptInt(probe, level, opt)
	if err != nil {
		return 0
	}
	return min(max(mtu-headers, 1), trunk.MaxDatagram)
}

// remote returns the state that a Batch depends on.
func (p *peer) remote() trunk.Remote {
	r := p.state.Load()
	if r == nil {
		return trunk.Remote{}
	}
	now := *r
	now.Limit = min(now.Limit, int(p.path.Load()))
	return now
}

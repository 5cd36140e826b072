// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/service/ipoib"
)

// gap is the least time between two readings of the kernel's tables: those of a router are long.
const gap = 20 * time.Millisecond

// State is the interface as the kernel's tables describe it. It is immutable.
type State struct {
	Up    bool           // set up by the administrator, with or without carrier
	MTU   int            // as set last
	Addrs []netip.Prefix // local addresses, each with the length of the prefix that is on the link
	// Anycast are further IPv6 addresses of this host, such as a router's (RFC 4291 §2.6.1).
	Anycast []netip.Addr
	OnLink  []netip.Prefix // reached without a gateway
	Routes  *Routes
	// Problem is what could not be restored, or empty.
	Problem string
	Gone    bool // the interface was removed
}

func (s *State) event() ipoib.BackendEvent {
	e := ipoib.BackendEvent{Addrs: slices.Clone(s.Addrs), OnLink: slices.Clone(s.OnLink), MTU: s.MTU, Up: s.Up}
	for _, a := range s.Anycast {
		e.Addrs = append(e.Addrs, netip.PrefixFrom(a, a.BitLen()))
	}
	return e
}

func (s *State) equal(o *State) bool {
	return o != nil && s.Up == o.Up && s.MTU == o.MTU && s.Problem == o.Problem && s.Gone == o.Gone &&
		slices.Equal(s.Addrs, o.Addrs) && slices.Equal(s.OnLink, o.OnLink) && slices.Equal(s.Anycast, o.Anycast) &&
		s.Routes.equal(o.Routes)
}

// State is the latest.
func (d *Device) State() *State { return d.state.Load() }

// Problem is that of State.
func (d *Device) Problem() string { return d.State().Problem }

// follow reads the state after a change and reports it.
func (d *Device) follow() {
	if err := d.refresh(false); err != nil {
		d.publish(func(s *State) { s.Problem = err.Error() })
	}
	d.notify()
}

// notify reports the state if it is not the one that was reported last.
func (d *Device) notify() {
	if s := d.state.Load(); s != d.notified && d.cfg.Notify != nil {
		d.notified = s
		d.cfg.Notify(s.event())
	}
}

// concerns reports whether a notification of rtnetlink may be about the interface.
func (d *Device) concerns(m *syscall.NetlinkMessage) bool {
	index, ne := uint32(d.Index()), binary.NativeEndian
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		// Both structures have the index at 4.
		return len(m.Data) < 8 || ne.Uint32(m.Data[4:]) == index
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return true
		}
		attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
		// A route with one path, by another interface, does not concern this one.
		return err != nil || !slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
			return a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4 && ne.Uint32(a.Value) != index
		})
	}
	return true
}

// publish makes a changed copy of the state the latest.
func (d *Device) publish(change func(*State)) {
	s := *d.state.Load()
	change(&s)
	d.put(&s)
}

func (d *Device) put(s *State) {
	if s.equal(d.state.Load()) {
		return
	}
	d.state.Store(s)
}

// refresh reads the kernel's tables and restores the configuration. The first time it returns a failure to restore;
// later ones are in the state.
func (d *Device) refresh(first bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.restore(first); err != nil {
		if first {
			return err
		}
		if ifdev.Removed(err) {
			d.removed.Store(true)
			d.put(&State{Gone: true, Problem: ifdev.ErrRemoved.Error(), Routes: NewRoutes(nil)})
			return nil
		}
		d.problem = err.Error()
	} else {
		d.problem = ""
	}
	var s *State
	err := ifdev.Dump(func() (err error) { s, err = d.readState(); return err })
	if err != nil {
		return err
	}
	d.put(s)
	return nil
}

// restore sets the MTU where it was changed, and addresses and routes after the interface came up.
func (d *Device) restore(first bool) error {
	var link netlink.Link
	err := ifdev.Dump(func() (err error) { link, err = d.Netlink.LinkByIndex(d.Index()); return err })
	if err != nil {
		return err
	}
	if link.Attrs().MTU != d.mtu {
		if err := d.Netlink.LinkSetMTU(d.Link(), d.mtu); err != nil {
			return ifdev.TUN.Explain("restore MTU", err)
		}
		d.Counters.MTURestored.Add(1)
	}
	up := link.Attrs().Flags&net.FlagUp != 0
	up6 := up && d.mtu >= minMTU6
	if up == d.ready && up6 == d.ready6 {
		return nil
	}
	fresh := up && !d.ready || up6 && !d.ready6
	d.ready, d.ready6 = up, up6
	if !fresh {
		return nil
	}
	if !first {
		d.Counters.Reconfigured.Add(1)
	}
	return d.configure(up6)
}

// disableLinkLocal keeps the kernel from generating a link-local address where Config has one.
func (d *Device) disableLinkLocal() error {
	if !d.cfg.LinkLocal.IsValid() || d.mtu < minMTU6 {
		return nil // the interface has no IPv6 yet; configure does it later
	}
	err := d.Netlink.LinkSetIP6AddrGenMode(d.Link(), nl.IN6_ADDR_GEN_MODE_NONE)
	if noIPv6(err) {
		return nil
	}
	return err
}

// noIPv6 reports whether an error means that the host has no IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// configure sets addresses and routes of an interface that has just come up, with or without IPv6.
func (d *Device) configure(v6 bool) error {
	if d.cfg.LinkLocal.IsValid() && v6 {
		if err := d.setLinkLocal(); err != nil {
			return err
		}
	}
	for _, a := range d.cfg.Addrs {
		if a.Addr().Is6() && !v6 {
			continue
		}
		if err := d.Netlink.AddrReplace(d.Link(), address(a)); err != nil {
			return ifdev.TUN.Explain("add address "+a.String(), err)
		}
	}
	for _, r := range d.cfg.Routes {
		if r.Dst.Addr().Is6() && !v6 {
			continue
		}
		route := &netlink.Route{LinkIndex: d.Index(), Dst: ipNet(r.Dst), Priority: r.Metric, Scope: netlink.SCOPE_LINK}
		if len(r.Via) == 1 && r.Via[0].IsValid() {
			route.Scope = netlink.SCOPE_UNIVERSE
			if r.Via[0].Is4() == r.Dst.Addr().Is4() {
				route.Gw = r.Via[0].AsSlice()
			} else {
				route.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: r.Via[0].AsSlice()}
			}
		}
		if err := d.Netlink.RouteReplace(route); err != nil {
			return ifdev.TUN.Explain("add route to "+r.Dst.String(), err)
		}
	}
	return nil
}

// setLinkLocal replaces the kernel's link-local address by Config's.
func (d *Device) setLinkLocal() error {
	if err := d.disableLinkLocal(); err != nil {
		return ifdev.TUN.Explain("turn the kernel's link-local address off", err)
	}
	err := d.Netlink.AddrReplace(d.Link(), address(netip.PrefixFrom(d.cfg.LinkLocal, 64)))
	if noIPv6(err) {
		return nil // switched off by sysctl: State has no IPv6 address then
	}
	if err != nil {
		return ifdev.TUN.Explain("add address "+d.cfg.LinkLocal.String(), err)
	}
	// The setting of disableLinkLocal is lost where IPv6 goes and comes back, and the kernel has generated an address.
	var addrs []netlink.Addr
	err = ifdev.Dump(func() (err error) { addrs, err = d.Netlink.AddrList(d.Link(), netlink.FAMILY_V6); return err })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_STABLE_PRIVACY != 0 && a.IP.IsLinkLocalUnicast() {
			if err := d.Netlink.AddrDel(d.Link(), &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return ifdev.TUN.Explain("remove address "+a.IP.String(), err)
			}
		}
	}
	return nil
}

// address is p for the kernel. The resolver detects duplicates: the kernel sends nothing to neighbours of such an
// interface.
func address(p netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (d *Device) readState() (*State, error) {
	link, err := d.Netlink.LinkByIndex(d.Index())
	if err != nil {
		return nil, fmt.Errorf("read interface: %w", err)
	}
	s := &State{Up: link.Attrs().Flags&net.FlagUp != 0, MTU: link.Attrs().MTU, Problem: d.problem}
	addrs, err := d.Netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		// A duplicate belongs to another host. (A point-to-point address has the full length: only the peer is on the
		// link, by its route.)
		if ok && a.Flags&unix.IFA_F_DADFAILED == 0 {
			s.Addrs = append(s.Addrs, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	slices.SortFunc(s.Addrs, netip.Prefix.Compare)
	s.Addrs = slices.Compact(s.Addrs)
	var routes []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		err := d.Netlink.RouteListFilteredIter(family, every, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if route, ok := d.leavesHere(family, r); ok {
				if r.Type == unix.RTN_ANYCAST {
					s.Anycast = append(s.Anycast, route.Dst.Addr())
				} else {
					routes = append(routes, route)
				}
				if r.Type == unix.RTN_UNICAST && len(route.Via) == 0 {
					s.OnLink = append(s.OnLink, route.Dst)
				}
			}
			return true
		})
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
	}
	slices.SortFunc(s.Anycast, netip.Addr.Compare)
	s.Anycast = slices.Compact(s.Anycast)
	slices.SortFunc(s.OnLink, netip.Prefix.Compare)
	s.OnLink = slices.Compact(s.OnLink)
	s.Routes = NewRoutes(routes)
	return s, nil
}

// leavesHere converts a route of the kernel by which packets leave by the interface; false for others.
func (d *Device) leavesHere(family int, r netlink.Route) (Route, bool) {
	out := Route{Metric: r.Priority, Main: r.Table == unix.RT_TABLE_MAIN || r.Table == unix.RT_TABLE_LOCAL}
	switch r.Type {
	case unix.RTN_UNICAST, unix.RTN_BROADCAST, unix.RTN_ANYCAST:
	default: // to this host, to groups, or to nowhere
		return out, false
	}
	out.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if family == netlink.FAMILY_V6 {
		out.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if r.Dst != nil {
		ip, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if out.Dst = netip.PrefixFrom(ip.Unmap(), bits); !ok || !out.Dst.IsValid() {
			return out, false
		}
	}
	if len(r.MultiPath) == 0 {
		if r.LinkIndex != d.Index() {
			return out, false
		}
		if hop := gateway(r.Gw, r.Via); hop.IsValid() {
			out.Via = []netip.Addr{hop}
		}
		return out, true
	}
	for _, p := range r.MultiPath {
		if p.LinkIndex == d.Index() && p.Flags&unix.RTNH_F_DEAD == 0 {
			out.Via = append(out.Via, gateway(p.Gw, p.Via))
		}
	}
	return out, len(out.Via) > 0
}

// gateway is the gateway of a route or of one of its paths, or zero.
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && len(gw) == 0 {
		gw = v.Addr
	}
	a, _ := netip.AddrFromSlice(gw)
	return a.Unmap()
}

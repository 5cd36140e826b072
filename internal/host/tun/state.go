// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft/internal/service/ipoib"
)

// gap is the least time between two readings of the kernel's tables: changes
// come in bursts, and the tables of a router are long. The first change after a
// quiet time is read at once.
const gap = 20 * time.Millisecond

// State is what the kernel says of the interface. It is immutable.
type State struct {
	Up    bool           // by the administrator; says nothing of the carrier
	MTU   int            // as set last
	Addrs []netip.Prefix // local addresses, each with the length of the prefix that is on the link
	// Anycast are further IPv6 addresses that are ours, such as a router's
	// (RFC 4291 §2.6.1).
	Anycast []netip.Addr
	OnLink  []netip.Prefix // reached without a gateway
	Routes  *Routes
	// Problem is what could not be restored as it should be, or empty.
	Problem string
	Gone    bool // somebody removed the interface
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
		slices.Equal(s.Addrs, o.Addrs) && slices.Equal(s.OnLink, o.OnLink) && slices.Equal(s.Anycast, o.Anycast) && s.Routes.equal(o.Routes)
}

// State is the latest.
func (d *Device) State() *State { return d.state.Load() }

// Problem is that of State.
func (d *Device) Problem() string { return d.State().Problem }

// subscribe opens a socket of the calling thread's namespace that hears of
// changes.
func subscribe() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	f := os.NewFile(uintptr(fd), "rtnetlink")
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK |
		unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE})
	if err == nil {
		// Nexthop objects change under routes without a message for each. The
		// kernel has them since 5.3.
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_NEXTHOP)
		if errors.Is(err, unix.EINVAL) {
			err = nil
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("watch routes: %w", err)
	}
	return f, nil
}

// watch refreshes the state after changes until ctx ends.
func (d *Device) watch(ctx context.Context) {
	defer close(d.watcher)
	defer context.AfterFunc(ctx, func() { _ = d.events.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 64<<10)
	changed, last := true, time.Time{}
	var told *State
	for {
		if s := d.state.Load(); s != told && d.cfg.Notify != nil {
			told = s
			d.cfg.Notify(s.event())
		}
		var deadline time.Time
		if changed {
			deadline = last.Add(gap)
		}
		_ = d.events.SetReadDeadline(deadline)
		// The end of ctx sets a deadline too, which the line above may just have
		// overwritten; then ctx has ended by now.
		if ctx.Err() != nil {
			return
		}
		if changed && !time.Now().Before(deadline) {
			changed, last = false, time.Now()
			if err := d.refresh(false); err != nil {
				d.publish(func(s *State) { s.Problem = err.Error() })
			}
			continue
		}
		n, err := d.events.Read(buf)
		switch {
		case err == nil:
			changed = changed || d.concerns(buf[:n])
		case errors.Is(err, unix.ENOBUFS): // the kernel had more to say than fits
			changed = true
		case !errors.Is(err, os.ErrDeadlineExceeded):
			d.publish(func(s *State) { s.Problem = "watch routes: " + err.Error() })
			return
		}
	}
}

// concerns reports whether rtnetlink messages may be about the interface.
func (d *Device) concerns(b []byte) bool {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return true
	}
	index := uint32(d.Index())
	ne := binary.NativeEndian
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK, unix.RTM_NEWADDR, unix.RTM_DELADDR:
			// Both structures have the index at 4.
			if len(m.Data) < 8 || ne.Uint32(m.Data[4:]) == index {
				return true
			}
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
			if len(m.Data) < unix.SizeofRtMsg {
				return true
			}
			attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
			if err != nil {
				return true
			}
			other := false // has one path, by another interface
			for _, a := range attrs {
				other = other || a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4 && ne.Uint32(a.Value) != index
			}
			if !other {
				return true
			}
		default:
			return true
		}
	}
	return false
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

// refresh reads the kernel's tables and restores what must be. The first
// failure of the first time is returned; later ones are in the state.
func (d *Device) refresh(first bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.restore(first); err != nil {
		if first {
			return err
		}
		if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
			d.gone.Store(true)
			d.put(&State{Gone: true, Problem: ErrGone.Error(), Routes: NewRoutes(nil)})
			return nil
		}
		d.problem = err.Error()
	} else {
		d.problem = ""
	}
	var s *State
	err := dump(func() (err error) { s, err = d.readState(); return err })
	if err != nil {
		return err
	}
	d.put(s)
	return nil
}

// restore sets MTU, addresses and routes to what they shall be where the
// kernel has changed or forgotten them.
func (d *Device) restore(first bool) error {
	var link netlink.Link
	err := dump(func() (err error) { link, err = d.nl.LinkByIndex(d.Index()); return err })
	if err != nil {
		return err
	}
	if link.Attrs().MTU != d.mtu {
		if err := d.nl.LinkSetMTU(d.link, d.mtu); err != nil {
			return explain("restore MTU", err)
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

// noLinkLocal keeps the kernel from making a link-local address where Config
// has one.
func (d *Device) noLinkLocal() error {
	if !d.cfg.LinkLocal.IsValid() || d.mtu < minMTU6 {
		return nil // without IPv6 there is nothing to tell; configure does later
	}
	err := d.nl.LinkSetIP6AddrGenMode(d.link, nl.IN6_ADDR_GEN_MODE_NONE)
	if noIPv6(err) {
		return nil
	}
	return err
}

// noIPv6 reports whether an error means that there is no IPv6 here.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP)
}

// configure sets addresses and routes of an interface that has just come up,
// with or without IPv6.
func (d *Device) configure(v6 bool) error {
	if d.cfg.LinkLocal.IsValid() && v6 {
		if err := d.ownLinkLocal(); err != nil {
			return err
		}
	}
	for _, a := range d.cfg.Addrs {
		if a.Addr().Is6() && !v6 {
			continue
		}
		if err := d.nl.AddrReplace(d.link, address(a)); err != nil {
			return explain("add address "+a.String(), err)
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
		if err := d.nl.RouteReplace(route); err != nil {
			return explain("add route to "+r.Dst.String(), err)
		}
	}
	return nil
}

// ownLinkLocal puts Config's link-local address in the place of the kernel's.
func (d *Device) ownLinkLocal() error {
	if err := d.noLinkLocal(); err != nil {
		return explain("keep the kernel from making a link-local address", err)
	}
	err := d.nl.AddrReplace(d.link, address(netip.PrefixFrom(d.cfg.LinkLocal, 64)))
	if noIPv6(err) {
		return nil // switched off by sysctl: State has no IPv6 address then
	}
	if err != nil {
		return explain("add address "+d.cfg.LinkLocal.String(), err)
	}
	// An interface that has IPv6 again has forgotten what it was told, and has
	// made one.
	var addrs []netlink.Addr
	err = dump(func() (err error) { addrs, err = d.nl.AddrList(d.link, netlink.FAMILY_V6); return err })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_STABLE_PRIVACY != 0 && a.IP.IsLinkLocalUnicast() {
			if err := d.nl.AddrDel(d.link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
				return explain("remove address "+a.IP.String(), err)
			}
		}
	}
	return nil
}

// address is p for the kernel. Duplicates are found by the resolver, not by the
// kernel, which does not speak to such an interface's neighbours.
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

// dump retries a dump that a change interrupted.
func dump(f func() error) (err error) {
	for range 10 {
		if err = f(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

func (d *Device) readState() (*State, error) {
	link, err := d.nl.LinkByIndex(d.Index())
	if err != nil {
		return nil, fmt.Errorf("read interface: %w", err)
	}
	s := &State{Up: link.Attrs().Flags&net.FlagUp != 0, MTU: link.Attrs().MTU, Problem: d.problem}
	addrs, err := d.nl.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		// A duplicate is not ours. (A point-to-point address has the whole
		// length: only the peer is on the link, by its route.)
		if ok && a.Flags&unix.IFA_F_DADFAILED == 0 {
			s.Addrs = append(s.Addrs, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	slices.SortFunc(s.Addrs, netip.Prefix.Compare)
	s.Addrs = slices.Compact(s.Addrs)
	var routes []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := d.nl.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if route, ok := d.ours(family, r); ok {
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

// ours is a route of the kernel if packets leave by the interface for it.
func (d *Device) ours(family int, r netlink.Route) (Route, bool) {
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

// gateway is that of a route or of one of its paths, or zero.
func gateway(gw net.IP, via netlink.Destination) netip.Addr {
	if v, ok := via.(*netlink.Via); ok && len(gw) == 0 {
		gw = v.Addr
	}
	a, _ := netip.AddrFromSlice(gw)
	return a.Unmap()
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/loop"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib"
)

// look runs f on the lane of a link for people's questions; link is nil while
// there is none yet, or no more.
func (l *ipLink) look(f func(now mono.Time, link *ipoib.Link)) error {
	l.h.mu.Lock()
	lane := l.lane
	l.h.mu.Unlock()
	if lane == nil {
		f(0, nil)
		return nil
	}
	return lane.Query(func() { f(lane.Now(), l.link) })
}

// IPLinks implements api.Backend.
func (n *Node) IPLinks(context.Context) ([]api.IPLink, error) {
	if n.ip == nil {
		return nil, nil
	}
	return n.ip.describe(func(*ipLink) bool { return true })
}

// describe tells people about links.
func (h *ipoibHost) describe(which func(*ipLink) bool) (list []api.IPLink, err error) {
	for _, l := range h.sorted() {
		if !which(l) {
			continue
		}
		v := api.IPLink{Name: l.cfg.Name, Device: l.f.a.Name, Port: l.cfg.Port, PKey: pkeyText(l.cfg.PKey), Backend: l.q.api.Backend,
			State: ipoib.Absent.String(), Reason: l.waits()}
		if err := l.look(func(_ mono.Time, link *ipoib.Link) {
			if link == nil {
				return
			}
			i := link.Info()
			v.Type, v.State, v.Carrier, v.Reason, v.MTU, v.QueueLen = i.Type, i.State.String(), i.Carrier, i.Reason, i.MTU, i.QueueLen
			v.Address, v.AddrLen, v.Broadcast = i.HW.String(), i.AddrLen, i.Broadcast.String()
			v.Mode, v.DatagramMTU, v.Connections = i.Mode.String(), i.DatagramMTU, i.Conns
			v.MGID, v.Joined, v.QKey, v.QPN, v.PKey = i.BroadcastGID.String(), i.Joined, uint32(i.QKey), uint32(i.QPN), pkeyText(i.PKey)
			for bit, name := range map[int]string{ipoib.FlagBroadcast: "BROADCAST", ipoib.FlagMulticast: "MULTICAST"} {
				if i.Flags&bit != 0 {
					v.Flags = append(v.Flags, name)
				}
			}
			slices.Sort(v.Flags)
			for _, a := range i.Addrs {
				v.Addrs = append(v.Addrs, a.String())
			}
			if g := link.Groups(l.lane.Now()); i.Joined && len(g) > 0 {
				v.MLID = uint16(g[0].MLID)
			}
			v.Session, v.Lane = l.al.Serial(), l.lane.ID()
			if b, ok := l.back.(interface{ Problem() string }); ok {
				v.Problem = b.Problem()
			}
		}); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// waits says why a link has not started.
func (l *ipLink) waits() string {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if l.why != "" {
		return l.why
	}
	return "starting"
}

// patience is how long AddIPLinks gives links to come up before it tells what
// there is.
const ipoibPatience = 3 * time.Second

// AddIPLinks implements api.Backend.
func (n *Node) AddIPLinks(ctx context.Context, r api.IPRequest) ([]api.IPLink, error) {
	if n.ip == nil {
		return nil, errNoFabric
	}
	q, err := n.ip.add(r)
	if err != nil {
		return nil, err
	}
	n.log.Info("IP links asked for", "device", q.name(), "pkeys", r.PKeys, "backend", r.Backend)
	own := func(l *ipLink) bool { return l.q == q }
	ctx, stop := context.WithTimeout(ctx, ipoibPatience)
	defer stop()
	for {
		n.ip.mu.Lock()
		more := n.ip.more
		n.ip.mu.Unlock()
		list, err := n.ip.describe(own)
		if err != nil || len(list) > 0 && !slices.ContainsFunc(list, func(l api.IPLink) bool { return !l.Carrier }) {
			return list, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return list, nil
		}
	}
}

// DelIPLinks implements api.Backend.
func (n *Node) DelIPLinks(ctx context.Context, name string) error {
	if n.ip == nil {
		return errNoFabric
	}
	var found []*ipoibRequest
	if l := n.ip.find(name); l != nil {
		if keys := l.q.keys(); len(keys) != 1 || l.q.api.Device == "" {
			return invalid("weft ipoib del "+l.q.name(), "%s is one of those that come and go with the partitions of %s", l.cfg.Name, l.q.name())
		}
		found = append(found, l.q)
	} else {
		n.ip.n.sub.Do(func() {
			for _, q := range n.ip.requests {
				if q.name() == name {
					found = append(found, q)
				}
			}
		})
	}
	if len(found) == 0 {
		return &api.Error{Code: api.CodeNotFound, Why: "nobody asked for IP links of " + name, Fix: "weft ipoib"}
	}
	ctx, stop := context.WithTimeout(ctx, unloadLimit)
	defer stop()
	for _, q := range found {
		n.ip.remove(ctx, q)
		n.log.Info("IP links are no longer asked for", "device", q.name(), "pkeys", q.api.PKeys)
	}
	return nil
}

// find returns the link with a name, which may have the membership bit in its
// last part.
func (h *ipoibHost) find(name string) *ipLink {
	if l := h.link(name); l != nil {
		return l
	}
	ca, port, k, err := wire.ParseIPoIBName(name)
	if err != nil {
		return nil
	}
	return h.link(wire.IPoIBName(ca, port, k))
}

var errNoIPLink = func(name string) error {
	return &api.Error{Code: api.CodeNotFound, Why: "there is no IP link " + name, Fix: "weft ipoib"}
}

// on calls f for a link, or for all where name is empty, on their lanes.
func (n *Node) onIPLinks(name string, f func(l *ipLink, now mono.Time, link *ipoib.Link)) error {
	if n.ip == nil {
		return errNoFabric
	}
	list := n.ip.sorted()
	if name != "" {
		l := n.ip.find(name)
		if l == nil {
			return errNoIPLink(name)
		}
		list = []*ipLink{l}
	}
	for _, l := range list {
		if err := l.look(func(now mono.Time, link *ipoib.Link) {
			if link != nil {
				f(l, now, link)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

func addrTexts(list []netip.Addr) (s []string) {
	for _, a := range list {
		s = append(s, a.String())
	}
	return s
}

// IPNeighbours implements api.Backend.
func (n *Node) IPNeighbours(_ context.Context, name string) (list []api.IPNeighbour, err error) {
	err = n.onIPLinks(name, func(l *ipLink, now mono.Time, link *ipoib.Link) {
		for _, v := range link.Engine().Neighbours(now) {
			x := api.IPNeighbour{Link: l.cfg.Name, Addr: v.IP.String(), State: v.State.String(), Queued: v.Queued, Probes: v.Probes, ExpiresNS: v.Expires, Router: v.Router}
			if !v.HW.IsZero() {
				x.HWAddr, x.Mode = v.HW.String(), link.ModeOf(v.HW)
			}
			list = append(list, x)
		}
	})
	return list, err
}

// IPShadow implements api.Backend.
func (n *Node) IPShadow(_ context.Context, name string) (list []api.IPShadow, err error) {
	err = n.onIPLinks(name, func(l *ipLink, now mono.Time, link *ipoib.Link) {
		for _, v := range link.Shadow(now) {
			list = append(list, api.IPShadow{Link: l.cfg.Name, HWAddr: v.HW.String(), State: v.State, Addrs: addrTexts(v.IPs), DLID: uint16(v.Path.DLID),
				SL: int(v.Path.SL), MTU: mtuBytes(v.Path.MTU), Gbps: gbps(v.Path.Rate), GRH: v.Path.HopLimit > 0, Queued: v.Queued, IdleNS: v.Idle, Mode: v.Mode})
		}
	})
	return list, err
}

// IPPaths implements api.Backend.
func (n *Node) IPPaths(_ context.Context, name string) (list []api.IPPath, err error) {
	err = n.onIPLinks(name, func(l *ipLink, _ mono.Time, link *ipoib.Link) {
		for _, v := range link.Paths() {
			state := "stale"
			if v.Valid {
				state = "valid"
			}
			if v.Asking {
				state += ", asking"
			}
			list = append(list, api.IPPath{Link: l.cfg.Name, DGID: v.GID.String(), State: state, DLID: uint16(v.Path.DLID), SL: int(v.Path.SL),
				MTU: mtuBytes(v.Path.MTU), Gbps: gbps(v.Path.Rate), Users: v.Users})
		}
	})
	return list, err
}

// IPGroups implements api.Backend.
func (n *Node) IPGroups(_ context.Context, name string) (list []api.IPGroup, err error) {
	err = n.onIPLinks(name, func(l *ipLink, now mono.Time, link *ipoib.Link) {
		for _, v := range link.Groups(now) {
			list = append(list, api.IPGroup{Link: l.cfg.Name, MGID: v.MGID.String(), MLID: uint16(v.MLID), Addrs: addrTexts(v.IPs), State: v.State,
				SendOnly: v.SendOnly, Attached: v.Attached, Queued: v.Queued, Reason: v.Reason})
		}
	})
	return list, err
}

// IPStats implements api.Backend.
func (n *Node) IPStats(_ context.Context, name string) (list []api.Counter, err error) {
	err = n.onIPLinks(name, func(l *ipLink, _ mono.Time, link *ipoib.Link) {
		c := link.Counters()
		for _, v := range c.List() {
			list = append(list, api.Counter{Scope: api.ScopeIPoIB, Instance: l.cfg.Name, Name: v.Name, Value: v.Value})
		}
	})
	return list, err
}

// IPParams implements api.Backend.
func (n *Node) IPParams(_ context.Context, name string) (list []api.IPParam, err error) {
	if n.ip == nil {
		return nil, errNoFabric
	}
	add := func(link string, p ipoib.Params) {
		for _, v := range p.List() {
			list = append(list, api.IPParam{Link: link, Name: v.Name, Value: v.Value, Help: v.Help})
		}
	}
	if name == "" {
		add("", n.ip.base)
	}
	err = n.onIPLinks(name, func(l *ipLink, _ mono.Time, link *ipoib.Link) { add(l.cfg.Name, link.Params()) })
	return list, err
}

// IPEvents implements api.Backend.
func (n *Node) IPEvents(ctx context.Context, after uint64, wait bool) (list []api.IPEvent, err error) {
	if n.ip == nil {
		return nil, errNoFabric
	}
	look := func() bool {
		i := slices.IndexFunc(n.ip.log, func(e api.IPEvent) bool { return e.Number > after })
		if i >= 0 {
			list = slices.Clone(n.ip.log[i:])
		}
		return i >= 0 || !wait
	}
	n.ip.wait(ctx, look)
	return list, nil
}

// IPPath implements api.Backend.
func (n *Node) IPPath(ctx context.Context, q api.IPPathQuery) (v api.IPPathInfo, err error) {
	if n.ip == nil {
		return v, errNoFabric
	}
	addr, err := netip.ParseAddr(q.Addr)
	if err != nil {
		return v, invalid("weft ipoib path --help", "%q is no IP address", q.Addr)
	}
	if q.Link == "" && (addr.IsMulticast() || addr.IsUnspecified()) { // of no link more than of another
		return api.IPPathInfo{Addr: addr.String(), Errno: int(ipoib.ErrInvalid), Error: pathErrors[ipoib.ErrInvalid]}, nil
	}
	l, err := n.ip.toward(q.Link, addr)
	if err != nil {
		return v, err
	}
	if q.TimeoutNS > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, q.TimeoutNS)
		defer stop()
	}
	p, err := l.path(ctx, addr, !q.NonBlocking)
	v = api.IPPathInfo{Link: l.cfg.Name, Addr: addr.String()}
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		v.Errno, v.Error = int(no), pathErrors[no]
		return v, nil
	case errors.Is(err, context.DeadlineExceeded):
		v.Errno, v.Error = int(ipoib.ErrAgain), pathErrors[ipoib.ErrAgain]
		return v, nil
	case err != nil:
		return v, err
	}
	v.DGID, v.SGID, v.DLID, v.SLID, v.PKey = p.DGID.String(), p.SGID.String(), uint16(p.DLID), uint16(p.SLID), pkeyText(p.PKey)
	v.SL, v.MTU, v.Gbps, v.LifeNS = int(p.SL), p.MTUBytes(), gbps(p.Rate), 4096*time.Nanosecond<<p.PacketLifetime
	v.FlowLabel, v.HopLimit, v.TClass = p.FlowLabel, int(p.HopLimit), int(p.TClass)
	v.Image = make([]byte, wire.PathInfoLen)
	p.Put(v.Image)
	return v, nil
}

// setIPMode changes the mode of a link, which begins anew with it.
func (n *Node) setIPMode(name, mode string) error {
	var p ipoib.Params
	if err := p.Set("mode", mode); err != nil {
		return invalid("weft ipoib set --help", "%v", err)
	}
	if n.ip == nil {
		return errNoFabric
	}
	l := n.ip.find(name)
	if l == nil {
		return errNoIPLink(name)
	}
	if n.sub.Do(func() { l.q.driver.SetMode(l.cfg.Name, p.Mode) }) != nil {
		return loop.ErrStopped
	}
	n.log.Info("mode of an IP link", "link", l.cfg.Name, "mode", mode)
	return nil
}

var pathErrors = map[syscall.Errno]string{ipoib.ErrAgain: "not known yet: it is being resolved", ipoib.ErrNoNode: "no node has the address",
	ipoib.ErrInvalid: "not the address of one node", ipoib.ErrLinkDown: "the link has no carrier", ipoib.ErrBusy: "too many wait for paths"}

// toward returns the link that has an address's prefix, or the one that is
// named.
func (h *ipoibHost) toward(name string, addr netip.Addr) (found *ipLink, err error) {
	if name != "" {
		if found = h.find(name); found == nil {
			return nil, errNoIPLink(name)
		}
		return found, nil
	}
	bits := -1
	for _, l := range h.sorted() {
		if err := l.look(func(_ mono.Time, link *ipoib.Link) {
			if link == nil {
				return
			}
			for _, p := range link.Info().Addrs {
				if p.Contains(addr.WithZone("")) && p.Bits() > bits {
					found, bits = l, p.Bits()
				}
			}
		}); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return nil, &api.Error{Code: api.CodeNotFound, Why: "no IP link has a prefix with " + addr.String(), Fix: "weft ipoib path --link LINK " + addr.String()}
	}
	return found, nil
}

// path resolves the path to an IP address and waits for it if wait is set: it
// is the blocking form of Link.GetPathAsync.
func (l *ipLink) path(ctx context.Context, addr netip.Addr, wait bool) (ipoib.PathInfo, error) {
	type outcome struct {
		p   ipoib.PathInfo
		err error
	}
	got := make(chan outcome, 1) // outlives an impatient caller
	var now outcome
	if err := l.look(func(at mono.Time, link *ipoib.Link) {
		if link == nil {
			now.err = ipoib.ErrLinkDown
			return
		}
		if !wait {
			now.p, now.err = link.TryGetPath(at, addr)
			return
		}
		p := new(ipoib.PathInfo)
		now.err = link.GetPathAsync(at, addr, p, func(status error, out *ipoib.PathInfo, _ any) { got <- outcome{*out, status} }, nil)
		now.p = *p
	}); err != nil {
		return now.p, err
	}
	if !wait || !errors.Is(now.err, ipoib.ErrAgain) {
		return now.p, now.err
	}
	select {
	case o := <-got:
		return o.p, o.err
	case <-ctx.Done():
		return ipoib.PathInfo{}, ctx.Err()
	}
}

// IPDo implements api.Backend.
func (n *Node) IPDo(_ context.Context, name string, a api.IPAction) error {
	const help = "weft ipoib --help"
	addr, aerr := netip.ParseAddr(a.Addr)
	var hw wire.HWAddr
	var herr error
	if a.HWAddr != "" {
		hw, herr = wire.ParseHWAddr(a.HWAddr)
	}
	if a.Op == api.IPMode {
		return n.setIPMode(name, a.Mode)
	}
	var do func(now mono.Time, link *ipoib.Link) error
	refused := func(ok bool, format string, args ...any) error {
		if ok {
			return nil
		}
		return invalid(help, format, args...)
	}
	switch a.Op {
	case api.IPFlushNeighbours:
		do = func(now mono.Time, link *ipoib.Link) error { link.Engine().Flush(now); return nil }
	case api.IPProbe:
		do = func(now mono.Time, link *ipoib.Link) error {
			return refused(link.Engine().Probe(now, addr), "%v cannot be asked for: it is not another node's, or the link has no carrier", addr)
		}
	case api.IPAddNeighbour:
		do = func(now mono.Time, link *ipoib.Link) error {
			return refused(link.Engine().AddStatic(now, addr, hw), "%v at %v cannot be kept: one is not another node's, or there are too many", addr, hw)
		}
	case api.IPFlushPaths:
		do = func(_ mono.Time, link *ipoib.Link) error { link.FlushPaths(); return nil }
	case api.IPPurgeShadow:
		do = func(now mono.Time, link *ipoib.Link) error {
			if link.PurgeShadow(now, hw) == 0 && !hw.IsZero() {
				return &api.Error{Code: api.CodeNotFound, Why: "there is no resolved entry of " + hw.String(), Fix: "weft ipoib shadow " + name}
			}
			return nil
		}
	case api.IPJoin:
		do = func(now mono.Time, link *ipoib.Link) error {
			return refused(link.Engine().JoinGroup(now, addr), "%v cannot be joined: it is no group, or there are too many", addr)
		}
	case api.IPLeave:
		do = func(now mono.Time, link *ipoib.Link) error {
			return refused(link.Engine().LeaveGroup(now, addr), "%v was not joined by hand", addr)
		}
	case api.IPDebug:
		do = func(_ mono.Time, link *ipoib.Link) error { link.SetDebug(a.Mask); return nil }
	default:
		return invalid(help, "there is no operation %q", a.Op)
	}
	switch a.Op {
	case api.IPProbe, api.IPAddNeighbour, api.IPJoin, api.IPLeave:
		if aerr != nil {
			return invalid(help, "%q is no IP address", a.Addr)
		}
	}
	if herr != nil || a.Op == api.IPAddNeighbour && hw.IsZero() {
		return invalid(help, "%q is not a hardware address of 20 octets", a.HWAddr)
	}
	var err error
	if e := n.onIPLinks(name, func(_ *ipLink, now mono.Time, link *ipoib.Link) { err = do(now, link) }); e != nil {
		return e
	}
	return err
}

// ipDegraded lists links that do not carry packets though they should.
func ipDegraded(links []api.IPLink) (list []api.Degraded) {
	for _, l := range links {
		if !l.Carrier && l.Reason != "device is down" {
			list = append(list, api.Degraded{What: "ip_link", Why: l.Name + " has no carrier: " + l.Reason, Fix: "weft ipoib show " + l.Name})
		}
	}
	return list
}

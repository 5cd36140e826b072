// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/describe"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib"
)

// Operations registers the operations of the control interface.
func (h *Host) Operations(mux *http.ServeMux) {
	api.Handle(mux, api.ListIPLinks, api.NoInput(h.List))
	api.Handle(mux, api.AddIPLinks, h.Add)
	api.Handle(mux, api.DeleteIPLinks, api.NoOutput(h.Delete))
	api.Handle(mux, api.ChangeIPLink, func(ctx context.Context, a api.Named[api.IPAction]) (api.None, error) {
		return api.None{}, h.change(ctx, a.Name, a.Value)
	})
	api.Handle(mux, api.ListIPNeighbours, h.neighbours)
	api.Handle(mux, api.ListIPShadow, h.shadow)
	api.Handle(mux, api.ListIPPaths, h.paths)
	api.Handle(mux, api.ListIPGroups, h.groups)
	api.Handle(mux, api.ListIPCounters, h.Counters)
	api.Handle(mux, api.ListIPParams, h.params)
	api.Handle(mux, api.ListIPEvents, h.listEvents)
	api.Handle(mux, api.ResolveIPPath, h.path)
}

// query has the lane of a link call f for a request of people; engine is nil before its start and after its end.
func (l *iface) query(f func(now mono.Time, engine *ipoib.Link)) error {
	l.h.mu.Lock()
	lane := l.lane
	l.h.mu.Unlock()
	if lane == nil {
		f(0, nil)
		return nil
	}
	return lane.Query(func() { f(lane.Now(), l.engine) })
}

// List lists the links, and those that wait for their partition.
func (h *Host) List(context.Context) ([]api.IPLink, error) {
	return h.list(func(*request) bool { return true })
}

// list describes the links of requests.
func (h *Host) list(of func(*request) bool) (list []api.IPLink, err error) {
	if h == nil {
		return nil, nil
	}
	for _, l := range h.sorted() {
		if !of(l.request) {
			continue
		}
		v, err := l.describe()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	if e := h.cfg.Subnet.Do(func() {
		for _, q := range h.requests {
			if of(q) {
				list = append(list, q.pending()...)
			}
		}
	}); e != nil {
		return nil, e
	}
	return list, nil
}

func (l *iface) describe() (v api.IPLink, err error) {
	l.h.mu.Lock()
	failure := l.failure
	l.h.mu.Unlock()
	v = api.IPLink{Name: l.cfg.Name, Device: l.adapter.Name, Port: l.cfg.Port, PKey: describe.PKey(l.cfg.PKey),
		Backend: l.request.api.Backend,
		State:   ipoib.Absent.String(), Reason: "starting"}
	v.Kept, v.NotKept = l.request.keptAfterRestart()
	if failure != nil {
		v.Reason = failure.Error()
	}
	err = l.query(func(_ mono.Time, engine *ipoib.Link) {
		if engine == nil {
			return
		}
		i := engine.Info()
		v.Type, v.State, v.Carrier, v.Reason, v.MTU, v.QueueLen = i.Type, i.State.String(), i.Carrier, i.Reason, i.MTU, i.QueueLen
		v.Address, v.AddrLen, v.Broadcast = i.HW.String(), i.AddrLen, i.Broadcast.String()
		v.Mode, v.DatagramMTU, v.Connections = i.Mode.String(), i.DatagramMTU, i.Conns
		v.MGID, v.Joined, v.QKey, v.QPN, v.PKey = i.BroadcastGID.String(), i.Joined, uint32(i.QKey), uint32(i.QPN), describe.PKey(i.PKey)
		for bit, name := range map[int]string{ipoib.FlagBroadcast: "BROADCAST", ipoib.FlagMulticast: "MULTICAST"} {
			if i.Flags&bit != 0 {
				v.Flags = append(v.Flags, name)
			}
		}
		for _, a := range i.Addrs {
			v.Addrs = append(v.Addrs, a.String())
		}
		if g := engine.Groups(l.lane.Now()); i.Joined && len(g) > 0 {
			v.MLID = uint16(g[0].MLID)
		}
		v.Session, v.Lane = l.access.Serial(), l.lane.ID()
		if b, ok := l.back.(interface{ Problem() string }); ok {
			v.Problem = b.Problem()
		}
	})
	return v, err
}

// each has the lanes call f for a link, or for all where name is empty.
func (h *Host) each(name string, f func(l *iface, now mono.Time, engine *ipoib.Link)) error {
	list := h.sorted()
	if name != "" {
		l := h.find(name)
		if l == nil {
			return errNoLink(name)
		}
		list = []*iface{l}
	}
	for _, l := range list {
		if err := l.query(func(now mono.Time, engine *ipoib.Link) {
			if engine != nil {
				f(l, now, engine)
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

func (h *Host) neighbours(_ context.Context, name string) (list []api.IPNeighbour, err error) {
	err = h.each(name, func(l *iface, now mono.Time, engine *ipoib.Link) {
		for _, v := range engine.Engine().Neighbours(now) {
			x := api.IPNeighbour{Link: l.cfg.Name, Addr: v.IP.String(), State: v.State.String(), Queued: v.Queued,
				Probes: v.Probes, ExpiresNS: v.Expires, Router: v.Router}
			if !v.HW.IsZero() {
				x.HWAddr, x.Mode = v.HW.String(), engine.ModeOf(v.HW)
			}
			list = append(list, x)
		}
	})
	return list, err
}

func (h *Host) shadow(_ context.Context, name string) (list []api.IPShadow, err error) {
	err = h.each(name, func(l *iface, now mono.Time, engine *ipoib.Link) {
		for _, v := range engine.Shadow(now) {
			list = append(list, api.IPShadow{Link: l.cfg.Name, HWAddr: v.HW.String(), State: v.State,
				Addrs: addrTexts(v.IPs), DLID: uint16(v.Path.DLID),
				SL: int(v.Path.SL), MTU: describe.MTU(v.Path.MTU), Gbps: describe.Gbps(v.Path.Rate), GRH: v.Path.HopLimit > 0,
				Queued: v.Queued, IdleNS: v.Idle, Mode: v.Mode})
		}
	})
	return list, err
}

func (h *Host) paths(_ context.Context, name string) (list []api.IPPath, err error) {
	err = h.each(name, func(l *iface, _ mono.Time, engine *ipoib.Link) {
		for _, v := range engine.Paths() {
			state := "stale"
			if v.Valid {
				state = "valid"
			}
			if v.Asking {
				state += ", asking"
			}
			list = append(list, api.IPPath{Link: l.cfg.Name, DGID: v.GID.String(), State: state,
				DLID: uint16(v.Path.DLID), SL: int(v.Path.SL),
				MTU: describe.MTU(v.Path.MTU), Gbps: describe.Gbps(v.Path.Rate), Users: v.Users})
		}
	})
	return list, err
}

func (h *Host) groups(_ context.Context, name string) (list []api.IPGroup, err error) {
	err = h.each(name, func(l *iface, now mono.Time, engine *ipoib.Link) {
		for _, v := range engine.Groups(now) {
			list = append(list, api.IPGroup{Link: l.cfg.Name, MGID: v.MGID.String(), MLID: uint16(v.MLID),
				Addrs: addrTexts(v.IPs), State: v.State,
				SendOnly: v.SendOnly, Attached: v.Attached, Queued: v.Queued, Reason: v.Reason})
		}
	})
	return list, err
}

// Counters lists the counters of a link, or of all where name is empty.
func (h *Host) Counters(_ context.Context, name string) (list []api.Counter, err error) {
	err = h.each(name, func(l *iface, _ mono.Time, engine *ipoib.Link) {
		c := engine.Counters()
		for _, v := range c.List() {
			list = append(list, api.Counter{Scope: api.ScopeIPoIB, Instance: l.cfg.Name, Name: v.Name, Value: v.Value})
		}
	})
	return list, err
}

func (h *Host) params(_ context.Context, name string) (list []api.IPParam, err error) {
	add := func(link string, p ipoib.Params) {
		for _, v := range p.List() {
			list = append(list, api.IPParam{Link: link, Name: v.Name, Value: v.Value, Help: v.Help})
		}
	}
	if name == "" {
		add("", h.cfg.Params)
	}
	err = h.each(name, func(l *iface, _ mono.Time, engine *ipoib.Link) { add(l.cfg.Name, engine.Params()) })
	return list, err
}

func (h *Host) listEvents(ctx context.Context, q api.EventQuery) (list []api.IPEvent, err error) {
	h.await(ctx, func() bool {
		i := slices.IndexFunc(h.events, func(e api.IPEvent) bool { return e.Number > q.After })
		if i >= 0 {
			list = slices.Clone(h.events[i:])
		}
		return i >= 0 || !q.Wait
	})
	return list, nil
}

func (h *Host) path(ctx context.Context, q api.IPPathQuery) (v api.IPPathInfo, err error) {
	addr, err := netip.ParseAddr(q.Addr)
	if err != nil {
		return v, describe.Invalid("weft ipoib path --help", "%q is no IP address", q.Addr)
	}
	if q.Link == "" && (addr.IsMulticast() || addr.IsUnspecified()) { // of no link more than of another
		return api.IPPathInfo{Addr: addr.String(), Errno: int(ipoib.ErrInvalid), Error: pathErrors[ipoib.ErrInvalid]},
			nil
	}
	l, err := h.toward(q.Link, addr)
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
	v.DGID, v.SGID, v.DLID, v.SLID, v.PKey = p.DGID.String(), p.SGID.String(), uint16(p.DLID), uint16(p.SLID), describe.PKey(p.PKey)
	v.SL, v.MTU, v.Gbps, v.LifeNS = int(p.SL), p.MTUBytes(), describe.Gbps(p.Rate), 4096*time.Nanosecond<<p.PacketLifetime
	v.FlowLabel, v.HopLimit, v.TClass = p.FlowLabel, int(p.HopLimit), int(p.TClass)
	v.Image = make([]byte, wire.PathInfoLen)
	p.Put(v.Image)
	return v, nil
}

// setMode changes the mode of a link, which begins anew with it. The request of the link has the mode after a
// restart, too.
func (h *Host) setMode(ctx context.Context, name, mode string) error {
	var p ipoib.Params
	if err := p.Set("mode", mode); err != nil {
		return describe.Invalid("weft ipoib set --help", "%v", err)
	}
	l := h.find(name)
	if l == nil {
		return errNoLink(name)
	}
	set := func() error {
		h.cfg.Log.Info("mode of an IP link", "link", l.cfg.Name, "mode", mode)
		return h.cfg.Subnet.Do(func() { l.request.driver.SetMode(l.cfg.Name, p.Mode) })
	}
	if q := &l.request.api; q.Kept() && len(q.PKeys) == 1 && q.Device != "" {
		return h.cfg.Intent.Edit(ctx, "cannot change the IP link", func() error {
			h.mu.Lock()
			for i := range h.kept {
				if r := &h.kept[i]; r.Key() == q.Key() {
					others := slices.DeleteFunc(slices.Clone(r.Params),
						func(v string) bool { return strings.HasPrefix(v, "mode=") })
					r.Params = append(others, "mode="+mode)
				}
			}
			h.mu.Unlock()
			return set()
		})
	}
	return set()
}

var pathErrors = map[syscall.Errno]string{ipoib.ErrAgain: "not known yet: it is being resolved",
	ipoib.ErrNoNode:  "no node has the address",
	ipoib.ErrInvalid: "not the address of one node", ipoib.ErrLinkDown: "the link has no carrier", ipoib.ErrBusy: "too many wait for paths"}

// toward returns the link that has an address's prefix, or the one that is
// named.
func (h *Host) toward(name string, addr netip.Addr) (found *iface, err error) {
	if !addr.IsValid() {
		return nil, describe.Invalid("weft ipoib path --help", "there is no address")
	}
	if name != "" {
		if found = h.find(name); found == nil {
			return nil, errNoLink(name)
		}
		return found, nil
	}
	bits := -1
	for _, l := range h.sorted() {
		if err := l.query(func(_ mono.Time, engine *ipoib.Link) {
			if engine == nil {
				return
			}
			for _, p := range engine.Info().Addrs {
				if p.Contains(addr.WithZone("")) && p.Bits() > bits {
					found, bits = l, p.Bits()
				}
			}
		}); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return nil, describe.NotFound("weft ipoib path --link LINK "+addr.String(), "no IP link has a prefix with %v",
			addr)
	}
	return found, nil
}

// path resolves the path to an IP address and waits for it if wait is set: it
// is the blocking form of Link.GetPathAsync.
func (l *iface) path(ctx context.Context, addr netip.Addr, wait bool) (ipoib.PathInfo, error) {
	type outcome struct {
		p   ipoib.PathInfo
		err error
	}
	got := make(chan outcome, 1) // outlives an impatient caller
	var now outcome
	if err := l.query(func(at mono.Time, engine *ipoib.Link) {
		if engine == nil {
			now.err = ipoib.ErrLinkDown
			return
		}
		if !wait {
			now.p, now.err = engine.TryGetPath(at, addr)
			return
		}
		p := new(ipoib.PathInfo)
		now.err = engine.GetPathAsync(at, addr, p, func(status error, out *ipoib.PathInfo,
			_ any) {
			got <- outcome{*out, status}
		}, nil)
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

// change performs an action on a link, or on all where name is empty.
func (h *Host) change(ctx context.Context, name string, a api.IPAction) error {
	const help = "weft ipoib --help"
	addr, aerr := netip.ParseAddr(a.Addr)
	var hw wire.HWAddr
	var herr error
	if a.HWAddr != "" {
		hw, herr = wire.ParseHWAddr(a.HWAddr)
	}
	if a.Op == api.IPMode {
		return h.setMode(ctx, name, a.Mode)
	}
	var do func(now mono.Time, engine *ipoib.Link) error
	refused := func(ok bool, format string, args ...any) error {
		if ok {
			return nil
		}
		return describe.Invalid(help, format, args...)
	}
	switch a.Op {
	case api.IPFlushNeighbours:
		do = func(now mono.Time, engine *ipoib.Link) error { engine.Engine().Flush(now); return nil }
	case api.IPProbe:
		do = func(now mono.Time, engine *ipoib.Link) error {
			return refused(engine.Engine().Probe(now, addr),
				"%v cannot be asked for: it is not another node's, or the link has no carrier", addr)
		}
	case api.IPAddNeighbour:
		do = func(now mono.Time, engine *ipoib.Link) error {
			return refused(engine.Engine().AddStatic(now, addr, hw),
				"%v at %v cannot be kept: one is not another node's, or there are too many", addr, hw)
		}
	case api.IPFlushPaths:
		do = func(_ mono.Time, engine *ipoib.Link) error { engine.FlushPaths(); return nil }
	case api.IPPurgeShadow:
		do = func(now mono.Time, engine *ipoib.Link) error {
			if engine.PurgeShadow(now, hw) == 0 && !hw.IsZero() {
				return describe.NotFound("weft ipoib shadow "+name, "there is no resolved entry of %v", hw)
			}
			return nil
		}
	case api.IPJoin:
		do = func(now mono.Time, engine *ipoib.Link) error {
			return refused(engine.Engine().JoinGroup(now, addr),
				"%v cannot be joined: it is no group, or there are too many", addr)
		}
	case api.IPLeave:
		do = func(now mono.Time, engine *ipoib.Link) error {
			return refused(engine.Engine().LeaveGroup(now, addr), "%v was not joined by hand", addr)
		}
	case api.IPDebug:
		do = func(_ mono.Time, engine *ipoib.Link) error { engine.SetDebug(a.Mask); return nil }
	default:
		return describe.Invalid(help, "there is no operation %q", a.Op)
	}
	switch a.Op {
	case api.IPProbe, api.IPAddNeighbour, api.IPJoin, api.IPLeave:
		if aerr != nil {
			return describe.Invalid(help, "%q is no IP address", a.Addr)
		}
	}
	if herr != nil || a.Op == api.IPAddNeighbour && hw.IsZero() {
		return describe.Invalid(help, "%q is not a hardware address of 20 octets", a.HWAddr)
	}
	var err error
	if e := h.each(name, func(_ *iface, now mono.Time, engine *ipoib.Link) { err = do(now, engine) }); e != nil {
		return e
	}
	return err
}

// fixPending is the command that puts the port of a link into its partition. The command names the host as well: on the
// node of the manager, the name of the device alone would mean a port of that node.
func (h *Host) fixPending(l *api.IPLink) string {
	host, member := h.cfg.Host()
	fix := fmt.Sprintf("weft pkey add %s %s@%s", l.PKey, l.Device, host)
	if !member {
		fix += " where the subnet manager runs"
	}
	return fix
}

// Degraded lists links without a carrier, and requests of the store that cannot be granted.
func (h *Host) Degraded(links []api.IPLink) (list []api.Degraded) {
	if h == nil {
		return nil
	}
	for _, l := range links {
		switch {
		case l.Reason == describe.HostDrained: // which has a notice of its own
		case l.Pending:
			list = append(list, api.Degraded{What: "ip_link", Why: l.Name + " is pending: " + l.Reason,
				Fix: h.fixPending(&l)})
		case !l.Carrier && l.Reason != "device is down":
			fix := "weft ipoib show " + l.Name
			if strings.HasPrefix(l.Reason, "broadcast group: ") {
				fix = "wait some seconds, the link joins again by itself; then " + fix
			}
			list = append(list, api.Degraded{What: "ip_link", Why: l.Name + " has no carrier: " + l.Reason,
				Fix: fix})
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range h.unrestored {
		list = append(list, api.Degraded{What: "ip_link_not_restored", Why: "IP links of " + nameOf(&u.IPRequest) +
			": " + u.err.Error(),
			Fix: "weft ipoib del " + nameOf(&u.IPRequest)})
	}
	return list
}

// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft/internal/control/api"
	"weft/internal/host/netstack"
	"weft/internal/host/tun"
	"weft/internal/node/describe"
	"weft/internal/node/loop"
	"weft/internal/node/stack"
	"weft/internal/node/supervisor"
	"weft/internal/proto/ib"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib"
	"weft/internal/verbs/hca"
)

// request is a request for links that was granted, and the host of its Driver. It belongs to the management goroutine,
// but for the fields that do not change.
type request struct {
	h      *Host
	api    api.IPRequest
	addrs  []netip.Prefix
	routes []tun.Route
	keys   []ib.PKey // partitions, none for all
	driver *ipoib.Driver
}

var _ ipoib.Host = (*request)(nil)

// AddLink implements ipoib.Host.
func (q *request) AddLink(c ipoib.LinkConfig, _ ipoib.Port) {
	h := q.h
	a := h.adapter(uint16(c.CA + 1))
	h.mu.Lock()
	defer h.mu.Unlock()
	// Of two requests for a link the first has it. AddIPLinks refuses a second one where it can.
	if a == nil || h.links[c.Name] != nil {
		h.cfg.Subnet.Post(func() { q.driver.Gone(c.Name) })
		return
	}
	l := &iface{h: h, request: q, cfg: c, adapter: a, worker: loop.NewWorker(&h.workers)}
	l.device = supervisor.New(l.worker, l.onOwner, l.closeDevice)
	h.links[c.Name] = l
	l.worker.Post(l.start)
}

// RemoveLink implements ipoib.Host.
func (q *request) RemoveLink(name string) {
	if l := q.h.link(name); l != nil && l.request == q {
		l.worker.Post(l.stop)
	}
}

// Port implements ipoib.Host.
func (q *request) Port(name string, p ipoib.Port, events ...ib.Event) {
	if l := q.h.link(name); l != nil && l.request == q {
		l.worker.Post(func() { l.setPort(p, events) })
	}
}

// Device describes the network device of a link.
type Device struct {
	ipoib.DeviceInfo
	Request *api.IPRequest // the request that granted it; it does not change
	Addrs   []netip.Prefix
	Routes  []tun.Route
	Notify  func(ipoib.BackendEvent)
}

// describeDevice adds to the engine's description of a device the parts of the request.
func (q *request) describeDevice(d ipoib.DeviceInfo, notify func(ipoib.BackendEvent)) *Device {
	addrs := q.addrs
	if q.api.Device == "" {
		addrs = q.h.configuredAddrs(d.Name)
	}
	return &Device{d, &q.api, addrs, q.routes, notify}
}

// openDevice makes a network device.
func openDevice(d *Device) (ipoib.Backend, error) {
	if d.Request.Backend == api.BackendNetstack {
		return openStack(d)
	}
	return tun.Open(tun.Config{Name: d.Name, MTU: d.MTU, QueueLen: d.QueueLen, InfiniBand: true, LinkLocal: d.LinkLocal,
		Addrs: d.Addrs, Routes: d.Routes, Up: true, Notify: d.Notify})
}

// openStack makes an IP stack in the node, with its forwards and its proxy.
func openStack(d *Device) (ipoib.Backend, error) {
	c := netstack.Config{Name: d.Name, MTU: d.MTU, LinkLocal: d.LinkLocal, Addrs: d.Addrs, Notify: d.Notify}
	for _, r := range d.Routes {
		v := netstack.Route{Dst: r.Dst}
		if len(r.Via) > 0 {
			v.Via = r.Via[0]
		}
		c.Routes = append(c.Routes, v)
	}
	s, err := netstack.Open(c)
	if err != nil {
		return nil, err
	}
	if err := stack.Serve(s, d.Request.Forwards, d.Request.SOCKS); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// configuredAddrs are the addresses that the configuration has for a link.
func (h *Host) configuredAddrs(link string) (list []netip.Prefix) {
	for _, s := range h.cfg.Addrs {
		if name, addr, _ := strings.Cut(s, "="); name == link {
			if p, err := netip.ParsePrefix(addr); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// covers reports whether a request is for links of an adapter.
func (q *request) covers(a *hca.Adapter) bool { return q.api.Device == "" || q.api.Device == a.Name }

const addHelp = "weft ipoib add --help"

// parse validates the request r. params are those of its links.
func (h *Host) parse(r api.IPRequest) (q *request, params ipoib.Params, err error) {
	q, params = &request{h: h, api: r}, h.cfg.Params
	var bad []string
	for _, w := range r.Params {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			bad = append(bad, fmt.Sprintf("%q is not of the form name=value", w))
		} else if err := params.Set(strings.TrimSpace(name), value); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if len(bad) > 0 {
		return nil, params, describe.Invalid("weft ipoib params", "%s", strings.Join(bad, "; "))
	}
	if len(r.PKeys) > 0 {
		if err := params.Set("pkeys", strings.Join(r.PKeys, ",")); err != nil {
			return nil, params, describe.Invalid(addHelp, "%v", err)
		}
	}
	for _, s := range r.PKeys {
		k, err := describe.ParsePKey(s)
		if err != nil {
			return nil, params, describe.Invalid(addHelp, "%v", err)
		}
		q.keys = append(q.keys, k)
	}
	var routes []netstack.Route
	if q.addrs, routes, err = stack.Parse(r.Addrs, r.Routes); err != nil {
		return nil, params, describe.Invalid(addHelp, "%v", err)
	}
	for _, r := range routes {
		v := tun.Route{Dst: r.Dst}
		if r.Via.IsValid() {
			v.Via = []netip.Addr{r.Via}
		}
		q.routes = append(q.routes, v)
	}
	return q, params, nil
}

// add grants a request if admit, which the management goroutine calls, returns nil.
func (h *Host) add(r api.IPRequest, admit func() error) (*request, error) {
	q, params, err := h.parse(r)
	if err != nil {
		return nil, err
	}
	if r.Device != "" && !slices.ContainsFunc(h.cfg.Adapters(),
		func(a *hca.Adapter) bool { return a.Name == r.Device }) {
		return nil, describe.NotFound("weft dev", "there is no InfiniBand device %s", r.Device)
	}
	q.driver = ipoib.NewDriver(params, q)
	if e := h.cfg.Subnet.Do(func() {
		if err = admit(); err != nil {
			return
		}
		if o := h.overlap(q, params.PKeys); o != nil {
			name := nameOf(&o.api)
			err = describe.Invalid("weft ipoib del "+name, "%s already has links of this request", name)
			return
		}
		h.requests = append(h.requests, q)
		for _, a := range h.cfg.Adapters() {
			h.PortChanged(a, nil)
		}
	}); e != nil {
		return nil, e
	}
	return q, err
}

// overlap returns a request that has a link in common with q, nil if there is no such request.
func (h *Host) overlap(q *request, keys []ib.PKey) *request {
	for _, o := range h.requests {
		if o.api.Device != q.api.Device && o.api.Device != "" && q.api.Device != "" {
			continue
		}
		shared := func(k ib.PKey) bool { return slices.Contains(o.keys, k) }
		if len(keys) == 0 || len(o.keys) == 0 || slices.ContainsFunc(keys, shared) {
			return o
		}
	}
	return nil
}

// nameOf is the name by which people delete a request.
func nameOf(r *api.IPRequest) string {
	if r.Device == "" {
		return allDevices
	}
	return r.Device
}

// allDevices is the name of the request for links of every device.
const allDevices = "all"

// remove ends a request and waits for the end of its links, as long as ctx allows.
func (h *Host) remove(ctx context.Context, q *request) {
	h.cfg.Subnet.Do(func() {
		h.requests = slices.DeleteFunc(h.requests, func(o *request) bool { return o == q })
		q.driver.Unload()
	})
	h.await(ctx, func() bool {
		for _, l := range h.links {
			if l.request == q {
				return false
			}
		}
		return true
	})
}

// pending lists the links of a request that are not there, since their partition is not in the port's table. The
// management goroutine calls it.
func (q *request) pending() (list []api.IPLink) {
	for _, a := range q.h.cfg.Adapters() {
		if !q.covers(a) {
			continue
		}
		for _, k := range q.keys {
			name := wire.IPoIBName(caOf(a.Number()), portNumber, k)
			if q.h.link(name) == nil {
				kept, why := q.keptAfterRestart()
				reason := fmt.Sprintf("the port of %s is not in partition 0x%x", a.Name, uint16(k&0x7fff))
				if q.h.suspended {
					reason = describe.HostDrained
				}
				list = append(list, api.IPLink{Name: name, Device: a.Name, Port: portNumber, PKey: describe.PKey(k),
					Backend: q.api.Backend, State: ipoib.Absent.String(), Pending: true, Kept: kept, NotKept: why,
					Reason: reason})
			}
		}
	}
	return list
}

// keptAfterRestart reports whether the links of a request are there after the node starts again, or why not.
func (q *request) keptAfterRestart() (kept bool, why string) {
	if !q.api.Kept() {
		return false, "it ends with its command"
	}
	return q.h.cfg.Intent.Kept()
}

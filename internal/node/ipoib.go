// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/host/netstack"
	"weft/internal/host/tun"
	"weft/internal/node/loop"
	"weft/internal/proto/ib"
	"weft/internal/service/ipoib"
	"weft/internal/verbs/hca"
)

// ipoibHost is the IP links of a node (docs/notes/ipoib.md): what was asked for, what
// there is of it, and what happened.
type ipoibHost struct {
	n    *Node
	base ipoib.Params // of links that are not told otherwise
	wg   sync.WaitGroup
	// open makes the network device of a link; it is called by the link's work.
	open func(q *ipoibRequest, d ipoib.DeviceInfo, news func(ipoib.BackendEvent)) (ipoib.Backend, error)

	requests []*ipoibRequest // the management goroutine's

	mu     sync.Mutex // guards what follows
	links  map[string]*ipLink
	log    []api.IPEvent
	number uint64        // of the last event
	more   chan struct{} // closed with the next event, or when a link goes
}

// ipoibRequest is links that somebody asked for. It is what its Driver knows as
// host. The management goroutine's, but for what does not change.
type ipoibRequest struct {
	h      *ipoibHost
	api    api.IPRequest
	addrs  []netip.Prefix
	routes []tun.Route
	driver *ipoib.Driver
}

var _ ipoib.Host = (*ipoibRequest)(nil)

// maxIPEvents bounds what is remembered.
const maxIPEvents = 1024

// ipoibParams reads the parameters of links that the configuration names.
func (n *Node) ipoibParams() (p ipoib.Params, err error) {
	var text []byte
	if n.cfg.IPoIBParams != "" {
		if text, err = os.ReadFile(n.cfg.IPoIBParams); err != nil {
			return p, fmt.Errorf("parameters of IP links: %w", err)
		}
	}
	if p, err = ipoib.ParseParams(n.cfg.IPoIBParams, string(text), n.cfg.IPoIBSet); err != nil {
		return p, &api.Error{Code: api.CodeInvalid, What: "wrong parameters of IP links", Why: strings.ReplaceAll(err.Error(), "\n", "; "), Fix: "see docs/notes/ipoib.md, section 7"}
	}
	return p, nil
}

// configured begins with what the configuration asks for.
func (h *ipoibHost) configured() error {
	if !h.n.cfg.IPoIB {
		return nil
	}
	_, err := h.add(api.IPRequest{Backend: api.BackendTUN})
	return err
}

func newIPoIB(n *Node, base ipoib.Params) *ipoibHost {
	return &ipoibHost{n: n, base: base, open: openDevice, links: map[string]*ipLink{}, more: make(chan struct{})}
}

// caOf is the number of a function in the names of its links.
func caOf(function uint16) int { return int(function) - 1 }

// portNumber of every function is 1.
const ipoibPort = 1

// AddLink implements ipoib.Host.
func (q *ipoibRequest) AddLink(c ipoib.LinkConfig, _ ipoib.Port) {
	h := q.h
	f := h.n.byNumber(uint16(c.CA + 1))
	if f == nil {
		h.n.sub.Post(func() { q.driver.Gone(c.Name) })
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.links[c.Name] != nil {
		// Two requests for it: the first has it. AddIPLinks refuses those that it can tell.
		h.n.sub.Post(func() { q.driver.Gone(c.Name) })
		return
	}
	l := &ipLink{h: h, q: q, cfg: c, f: f}
	l.work.wg = &h.wg
	h.links[c.Name] = l
	l.work.post(l.start)
}

// RemoveLink implements ipoib.Host.
func (q *ipoibRequest) RemoveLink(name string) {
	if l := q.h.link(name); l != nil && l.q == q {
		l.work.post(l.stop)
	}
}

// Port implements ipoib.Host.
func (q *ipoibRequest) Port(name string, p ipoib.Port, events ...ib.Event) {
	if l := q.h.link(name); l != nil && l.q == q {
		l.work.post(func() { l.setPort(p, events) })
	}
}

// openDevice makes the network device that a request asks for.
func openDevice(q *ipoibRequest, d ipoib.DeviceInfo, news func(ipoib.BackendEvent)) (ipoib.Backend, error) {
	addrs := q.addrs
	if q.api.Device == "" {
		addrs = q.h.addrsOf(d.Name)
	}
	if q.api.Backend == api.BackendNetstack {
		return q.openStack(d, addrs, news)
	}
	return tun.Open(tun.Config{Name: d.Name, MTU: d.MTU, QueueLen: d.QueueLen, InfiniBand: true, LinkLocal: d.LinkLocal, Addrs: addrs, Routes: q.routes,
		Up: true, Notify: news})
}

// openStack makes an IP stack in the node, with its ports and its proxy.
func (q *ipoibRequest) openStack(d ipoib.DeviceInfo, addrs []netip.Prefix, news func(ipoib.BackendEvent)) (_ ipoib.Backend, err error) {
	c := netstack.Config{Name: d.Name, MTU: d.MTU, LinkLocal: d.LinkLocal, Addrs: addrs, Notify: news}
	for _, r := range q.routes {
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
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	return s, offer(s, q.api.Forwards, q.api.SOCKS)
}

// addrsOf are the addresses that the configuration has for a link.
func (h *ipoibHost) addrsOf(link string) (list []netip.Prefix) {
	for _, s := range h.n.cfg.IPoIBAddrs {
		if name, addr, _ := strings.Cut(s, "="); name == link {
			if p, err := netip.ParsePrefix(addr); err == nil {
				list = append(list, p)
			}
		}
	}
	return list
}

// link returns a link by name, nil where there is none.
func (h *ipoibHost) link(name string) *ipLink {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.links[name]
}

// failed notes why a link cannot start, or that it can.
func (h *ipoibHost) failed(l *ipLink, why string) {
	h.mu.Lock()
	news := why != "" && l.why != why
	l.why = why
	h.mu.Unlock()
	if news {
		h.event(l.cfg.Name, ipoib.EventLog.String(), why)
	}
}

// gone forgets a link that has released everything.
func (h *ipoibHost) gone(l *ipLink) {
	h.mu.Lock()
	if h.links[l.cfg.Name] == l {
		delete(h.links, l.cfg.Name)
	}
	h.tell()
	h.mu.Unlock()
	h.n.sub.Post(func() { l.q.driver.Gone(l.cfg.Name) })
}

// lost tells that the device of a link was removed by somebody: the link begins anew.
// The management goroutine calls it.
func (h *ipoibHost) lost(l *ipLink, why error) {
	if h.link(l.cfg.Name) != l {
		return
	}
	h.event(l.cfg.Name, ipoib.EventLog.String(), "network device: "+why.Error())
	a := l.f.a
	l.q.driver.RemovePort(caOf(a.Number()), ipoibPort)
	l.q.driver.SetPort(caOf(a.Number()), ipoibPort, portOf(a))
}

// event notes what happened to a link.
func (h *ipoibHost) event(link, kind, text string) {
	h.n.log.Info("IP link", "link", link, "event", kind, "text", text)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	if len(h.log) >= maxIPEvents {
		h.log = slices.Delete(h.log, 0, maxIPEvents/4)
	}
	h.log = append(h.log, api.IPEvent{Number: h.number, At: time.Now(), Link: link, Kind: kind, Text: text})
	h.tell()
}

// tell wakes who waits for events; mu is held.
func (h *ipoibHost) tell() {
	close(h.more)
	h.more = make(chan struct{})
}

// portChanged tells the drivers of a function's port; the management goroutine
// calls it.
func (h *ipoibHost) portChanged(a *hca.Adapter, events []ib.Event) {
	for _, q := range h.requests {
		if q.wants(a) {
			q.driver.AddCA(caOf(a.Number()))
			q.driver.SetPort(caOf(a.Number()), ipoibPort, portOf(a), events...)
		}
	}
}

func (q *ipoibRequest) wants(a *hca.Adapter) bool {
	return q.api.Device == "" || q.api.Device == a.Name
}

// add begins with a request.
func (h *ipoibHost) add(r api.IPRequest) (*ipoibRequest, error) {
	const help = "weft ipoib add --help"
	q := &ipoibRequest{h: h, api: r}
	p := h.base
	var bad []string
	for _, w := range r.Params {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			bad = append(bad, fmt.Sprintf("%q is not of the form name=value", w))
		} else if err := p.Set(strings.TrimSpace(name), value); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if len(bad) > 0 {
		return nil, invalid("weft ipoib params", "%s", strings.Join(bad, "; "))
	}
	if len(r.PKeys) > 0 {
		if err := p.Set("pkeys", strings.Join(r.PKeys, ",")); err != nil {
			return nil, invalid(help, "%v", err)
		}
	}
	for _, a := range r.Addrs {
		v, err := netip.ParsePrefix(a)
		if err != nil {
			return nil, invalid(help, "%v", err)
		}
		q.addrs = append(q.addrs, v)
	}
	for _, s := range r.Routes {
		dst, via, err := parseRoute(s)
		if err != nil {
			return nil, invalid(help, "%v", err)
		}
		v := tun.Route{Dst: dst}
		if via.IsValid() {
			v.Via = []netip.Addr{via}
		}
		q.routes = append(q.routes, v)
	}
	if r.Device != "" {
		if f := h.n.function(r.Device); f == nil || f.a.Port().Link != ib.LinkInfiniBand {
			return nil, &api.Error{Code: api.CodeNotFound, Why: "there is no InfiniBand device " + r.Device, Fix: "weft dev"}
		}
	}
	q.driver = ipoib.NewDriver(p, q)
	var err error
	if h.n.sub.Do(func() {
		if o := h.overlap(q, p.PKeys); o != "" {
			err = invalid("weft ipoib del "+o, "%s has links already that this asks for", o)
			return
		}
		h.requests = append(h.requests, q)
		for _, c := range h.n.sub.Ports() {
			h.portChanged(c.Adapter, nil)
		}
	}) != nil {
		return nil, loop.ErrStopped
	}
	return q, err
}

// overlap returns the name of a request that may have a link which another asks
// for, or nothing.
func (h *ipoibHost) overlap(q *ipoibRequest, keys []ib.PKey) string {
	for _, o := range h.requests {
		if o.api.Device != q.api.Device && o.api.Device != "" && q.api.Device != "" {
			continue
		}
		theirs := o.keys()
		if len(keys) == 0 || len(theirs) == 0 || slices.ContainsFunc(keys, func(k ib.PKey) bool { return slices.Contains(theirs, k) }) {
			return o.name()
		}
	}
	return ""
}

// keys are the partitions of a request, none for all.
func (q *ipoibRequest) keys() (keys []ib.PKey) {
	for _, s := range q.api.PKeys {
		if k, err := parsePKey(s); err == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// name is what people delete a request by.
func (q *ipoibRequest) name() string {
	if q.api.Device == "" {
		return allDevices
	}
	return q.api.Device
}

// allDevices names the request for links of every device.
const allDevices = "all"

// remove ends a request and waits for its links to go, as long as ctx allows.
func (h *ipoibHost) remove(ctx context.Context, q *ipoibRequest) {
	h.n.sub.Do(func() {
		h.requests = slices.DeleteFunc(h.requests, func(o *ipoibRequest) bool { return o == q })
		q.driver.Unload()
	})
	h.wait(ctx, func() bool {
		for _, l := range h.links {
			if l.q == q {
				return false
			}
		}
		return true
	})
}

// leave takes a function out of all requests and waits for its links to go.
func (h *ipoibHost) leave(f *function) {
	h.n.sub.Do(func() {
		for _, q := range h.requests {
			q.driver.RemoveCA(caOf(f.a.Number()))
		}
	})
	ctx, stop := context.WithTimeout(context.Background(), unloadLimit)
	defer stop()
	h.wait(ctx, func() bool {
		for _, l := range h.links {
			if l.f == f {
				return false
			}
		}
		return true
	})
}

// unloadLimit is what a link takes at most to release everything: five seconds
// to drain, and some.
const unloadLimit = 8 * time.Second

// wait returns when ok, which is called with mu held, or ctx is done.
func (h *ipoibHost) wait(ctx context.Context, ok func() bool) bool {
	for {
		h.mu.Lock()
		done, more := ok(), h.more
		h.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			return false
		}
	}
}

// close ends all links. The management goroutine and the lanes run.
func (h *ipoibHost) close() {
	var all []*ipoibRequest
	h.n.sub.Do(func() { all, h.requests = h.requests, nil })
	for _, q := range all {
		h.n.sub.Do(q.driver.Unload)
	}
	ctx, stop := context.WithTimeout(context.Background(), unloadLimit)
	defer stop()
	h.wait(ctx, func() bool { return len(h.links) == 0 })
	h.wg.Wait()
}

// sorted lists the links by name.
func (h *ipoibHost) sorted() []*ipLink {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*ipLink
	for _, l := range h.links {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *ipLink) int { return strings.Compare(a.cfg.Name, b.cfg.Name) })
	return list
}

// SPDX-License-Identifier: Apache-2.0

// Package ipif runs the IP links of a node (docs/notes/ipoib.md): for each one an ipoib.Link on a lane, a
// session of the node, and the network device that stands for the link.
//
// What comes in: requests for links, of the configuration, the store and the control interface; ports and their
// partitions, from the management goroutine. What goes out: links as the partitions allow, what is known of
// them, and paths to IP addresses for the connection manager. Package node makes one Host and registers its
// operations. It must never block a lane or the management goroutine: what may wait runs on the worker of a
// link.
package ipif

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/conn"
	"weft/internal/node/intent"
	"weft/internal/node/session"
	"weft/internal/node/subnet"
	"weft/internal/node/supervisor"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib"
	"weft/internal/verbs/hca"
)

// Config is what the IP links of a node need from it.
type Config struct {
	Params ipoib.Params // of links, unless a request changes them
	// Addrs are LINK=ADDRESS/LENGTH: addresses of links that no request for one link has.
	Addrs []string
	Now   func() mono.Time
	Log   *slog.Logger
	// Subnet has the management goroutine, which owns the ports.
	Subnet *subnet.Subnet
	// Adapters lists the adapters with an InfiniBand port, by number. Any goroutine may call it.
	Adapters func() []*hca.Adapter
	Sessions *session.Registry
	// Host returns the name of this host in the subnet, and whether it is a member of a fabric: commands on every
	// member can change partitions. Any goroutine may call it.
	Host func() (name string, member bool)
	// Admit returns why the host accepts no new IP link; nil: it does. Any goroutine may call it.
	Admit func() error
	// Connections is the communication manager, for links in connected mode.
	Connections *conn.Service
	Intent      *intent.Store // keeps what Host.Kept returns
}

// Host is the IP links of a node: requests for links, the links, and their events. Its methods may be called on any
// goroutine but a lane, unless they say otherwise. A nil Host, of a node in no subnet, has no links: List, Counters,
// Degraded, Kept, Lookup, ResolvePath, BroadcastGID, RemoveAdapter and Forget may be called.
type Host struct {
	cfg     Config
	workers sync.WaitGroup
	// Open makes the network device of a link. The link's worker calls it. Only tests set it, before the first request.
	Open func(*Device) (ipoib.Backend, error)

	// The management goroutine's.
	requests  []*request
	suspended bool // the host is drained by force: no request has a link

	changes supervisor.Changes // of links and events

	mu         sync.Mutex // guards what follows; no other lock is taken while it is held, but that of changes
	links      map[string]*iface
	events     []api.IPEvent
	number     uint64 // of the last event
	started    bool
	restored   []api.IPRequest // of the store, before Start
	unrestored []unrestored
	kept       []api.IPRequest // those of the requests that the store has
}

// unrestored is a request of the store that cannot be granted. It stays in the store.
type unrestored struct {
	api.IPRequest
	err error
}

// maxEvents bounds the events that are remembered.
const maxEvents = 1024

// New returns a Host without links.
func New(c Config) *Host { return &Host{cfg: c, Open: openDevice, links: map[string]*iface{}} }

// Start grants the requests of the configuration (all: links of every device) and those of the store.
func (h *Host) Start(all bool) error {
	if all {
		if _, err := h.add(api.IPRequest{Backend: api.BackendTUN}, always); err != nil {
			return err
		}
	}
	h.mu.Lock()
	list := h.restored
	h.started, h.restored = true, nil
	h.mu.Unlock()
	h.restore(list)
	return nil
}

// Restore grants requests that the store has, once the Host has started.
func (h *Host) Restore(list []api.IPRequest) {
	h.mu.Lock()
	now := h.started
	if !now {
		h.restored = append(h.restored, list...)
	}
	h.mu.Unlock()
	if now {
		h.restore(list)
	}
}

// always admits requests that were granted before.
func always() error { return nil }

func (h *Host) restore(list []api.IPRequest) {
	for _, r := range list {
		err := r.Validate()
		if err == nil {
			_, err = h.add(r, always)
		}
		h.mu.Lock()
		if err == nil {
			h.kept = append(h.kept, r)
		} else {
			h.unrestored = append(h.unrestored, unrestored{r, err})
		}
		h.mu.Unlock()
		if err != nil {
			h.cfg.Log.Error("IP links of the store cannot be restored", "device", nameOf(&r), "pkeys", r.PKeys, "err",
				err)
		}
	}
}

// Kept returns the requests for the store.
func (h *Host) Kept() []api.IPRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := append(slices.Clone(h.kept), h.restored...)
	for _, u := range h.unrestored {
		list = append(list, u.IPRequest)
	}
	return list
}

// Close removes all links. The management goroutine and the lanes still run.
func (h *Host) Close() {
	var all []*request
	h.cfg.Subnet.Do(func() { all, h.requests = h.requests, nil })
	for _, q := range all {
		h.cfg.Subnet.Do(q.driver.Unload)
	}
	ctx, stop := context.WithTimeout(context.Background(), unloadLimit)
	defer stop()
	h.await(ctx, func() bool { return len(h.links) == 0 })
	h.workers.Wait()
}

// unloadLimit is what a link takes at most to release everything: five seconds to drain, and some.
const unloadLimit = 8 * time.Second

// await returns when done, which is called with mu held, reports true, or ctx ends.
func (h *Host) await(ctx context.Context, done func() bool) bool {
	return h.changes.Await(ctx, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return done()
	})
}

// PortChanged follows a change of an adapter's port. The management goroutine calls it.
func (h *Host) PortChanged(a *hca.Adapter, events []ib.Event) {
	if a.Port().Link != ib.LinkInfiniBand {
		return // the port that programs use is one of an Ethernet
	}
	for _, q := range h.requests {
		if q.covers(a) && !h.suspended {
			q.driver.AddCA(caOf(a.Number()))
			q.driver.SetPort(caOf(a.Number()), portNumber, portOf(a), events...)
		}
	}
}

// Suspend removes the links of all requests, also of later ones, until Resume. The requests stay. It does not wait for
// the end of the links. A nil Host has none.
func (h *Host) Suspend() {
	if h == nil {
		return
	}
	h.cfg.Subnet.Do(func() {
		h.suspended = true
		for _, q := range h.requests {
			for _, a := range h.cfg.Adapters() {
				q.driver.RemoveCA(caOf(a.Number()))
			}
		}
	})
}

// Resume makes the links of all requests again, after Suspend.
func (h *Host) Resume() {
	if h == nil {
		return
	}
	h.cfg.Subnet.Do(func() {
		if !h.suspended {
			return
		}
		h.suspended = false
		for _, a := range h.cfg.Adapters() {
			h.PortChanged(a, nil)
		}
	})
}

// Names lists the links that there are, by name; a nil Host has none.
func (h *Host) Names() (list []string) {
	for _, l := range h.sorted() {
		list = append(list, l.cfg.Name)
	}
	return list
}

// RemoveAdapter removes the links of an adapter and waits for their end.
func (h *Host) RemoveAdapter(a *hca.Adapter) {
	if h == nil {
		return
	}
	h.cfg.Subnet.Do(func() {
		for _, q := range h.requests {
			q.driver.RemoveCA(caOf(a.Number()))
		}
	})
	ctx, stop := context.WithTimeout(context.Background(), unloadLimit)
	defer stop()
	h.await(ctx, func() bool {
		for _, l := range h.links {
			if l.adapter == a {
				return false
			}
		}
		return true
	})
}

// Forget withdraws the requests for links of a device that was deleted.
func (h *Host) Forget(device string) {
	if h == nil {
		return
	}
	h.cfg.Subnet.Do(func() {
		h.requests = slices.DeleteFunc(h.requests, func(q *request) bool {
			if q.api.Device == device {
				q.driver.Unload()
			}
			return q.api.Device == device
		})
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = slices.DeleteFunc(h.kept, func(r api.IPRequest) bool { return r.Device == device })
	h.unrestored = slices.DeleteFunc(h.unrestored, func(u unrestored) bool { return u.Device == device })
}

// caOf is the number of a function in the names of its links.
func caOf(function uint16) int { return int(function) - 1 }

// portNumber is the number of every function's port.
const portNumber = 1

// adapter returns the adapter with a number, nil where there is none.
func (h *Host) adapter(number uint16) *hca.Adapter {
	for _, a := range h.cfg.Adapters() {
		if a.Number() == number {
			return a
		}
	}
	return nil
}

// link returns a link by name, nil where there is none; a nil Host has none.
func (h *Host) link(name string) *iface {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.links[name]
}

// find returns the link with a name, which may have the membership bit in its last part.
func (h *Host) find(name string) *iface {
	if l := h.link(name); l != nil {
		return l
	}
	ca, port, k, err := wire.ParseIPoIBName(name)
	if err != nil {
		return nil
	}
	return h.link(wire.IPoIBName(ca, port, k))
}

// sorted lists the links by name; a nil Host has none.
func (h *Host) sorted() []*iface {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*iface
	for _, l := range h.links {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *iface) int { return strings.Compare(a.cfg.Name, b.cfg.Name) })
	return list
}

// setFailure records why a link has no session or no device, nil: it has both; and reports whether that is
// another reason than before.
func (h *Host) setFailure(l *iface, err error) (changed bool) {
	h.mu.Lock()
	changed = err != nil && (l.failure == nil || l.failure.Error() != err.Error())
	l.failure = err
	h.mu.Unlock()
	h.changes.Announce()
	return changed
}

// removed forgets a link that has released everything.
func (h *Host) removed(l *iface) {
	h.mu.Lock()
	if h.links[l.cfg.Name] == l {
		delete(h.links, l.cfg.Name)
	}
	h.mu.Unlock()
	h.changes.Announce()
	h.cfg.Subnet.Post(func() { l.request.driver.Gone(l.cfg.Name) })
}

// deviceRemoved begins anew with a link after its device was removed from outside. The management goroutine calls it.
func (h *Host) deviceRemoved(l *iface, why error) {
	if h.link(l.cfg.Name) != l || h.suspended {
		return
	}
	h.event(l.cfg.Name, ipoib.EventLog.String(), "network device: "+why.Error())
	ca := caOf(l.adapter.Number())
	l.request.driver.RemovePort(ca, portNumber)
	l.request.driver.SetPort(ca, portNumber, portOf(l.adapter))
}

// event records what happened to a link.
func (h *Host) event(link, kind, text string) {
	h.cfg.Log.Info("IP link", "link", link, "event", kind, "text", text)
	h.mu.Lock()
	h.number++
	if len(h.events) >= maxEvents {
		h.events = slices.Delete(h.events, 0, maxEvents/4)
	}
	h.events = append(h.events, api.IPEvent{Number: h.number, At: time.Now(), Link: link, Kind: kind, Text: text})
	h.mu.Unlock()
	h.changes.Announce()
}

// Lookup returns the first address, by the name of its link, that match accepts. Any goroutine may call it.
func (h *Host) Lookup(match func(*conn.Address) bool) (found conn.Address, ok bool) {
	for _, l := range h.sorted() {
		addrs := l.addrs.Load()
		if addrs == nil {
			continue
		}
		for _, p := range *addrs {
			if a := (conn.Address{Link: l.cfg.Name, Adapter: l.adapter, PKey: l.cfg.PKey, Prefix: p}); match(&a) {
				return a, true
			}
		}
	}
	return found, false
}

// BroadcastGID is the GID of a link's broadcast group; false where there is no such link.
func (h *Host) BroadcastGID(link string) (ib.GID, bool) {
	l := h.link(link)
	if l == nil {
		return ib.GID{}, false
	}
	return wire.BroadcastGID(l.cfg.PKey, l.cfg.Params.Scope), true
}

// ResolvePath resolves the path from a link to an IP address, and calls done with it on a lane; false, and done is
// never called, where the link has no address. Any goroutine may call it.
func (h *Host) ResolvePath(link string, dst netip.Addr, done func(*ipoib.PathInfo, error)) bool {
	l := h.link(link)
	if l == nil || l.addrs.Load() == nil {
		return false
	}
	return l.lane.Post(func() {
		if l.engine == nil {
			done(nil, ipoib.ErrLinkDown)
			return
		}
		p := new(ipoib.PathInfo)
		resolved := func(status error, out *ipoib.PathInfo, _ any) { done(out, status) }
		err := l.engine.GetPathAsync(l.lane.Now(), dst, p, resolved, nil)
		if !errors.Is(err, ipoib.ErrAgain) {
			done(p, err)
		}
	})
}

// portOf describes an adapter's port to a link.
func portOf(a *hca.Adapter) ipoib.Port {
	p := a.Port()
	v := ipoib.Port{State: p.State, LID: p.LID, LMC: p.LMC, SMLID: p.SMLID, MTU: p.MTU,
		Rate: ib.RateOf(p.Width, p.Speed, p.SpeedExt), PKeys: p.PKeys}
	if len(p.GIDs) > 0 {
		v.GID = p.GIDs[0].GID
	}
	return v
}

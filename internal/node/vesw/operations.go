// SPDX-License-Identifier: Apache-2.0

package vesw

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/describe"
	"weft/internal/node/loop"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/problem"
	"weft/internal/service/vnic"
)

// Operations registers the operations of the control interface.
func (h *Host) Operations(mux *http.ServeMux) {
	api.Handle(mux, api.ListVESWInterfaces, api.NoInput(h.List))
	api.Handle(mux, api.ListVESWCounters, h.Counters)
	api.Handle(mux, api.AttachVESW, h.attach)
	api.Handle(mux, api.DetachVESW, api.NoOutput(h.detach))
}

// List describes the ports; a nil Host has none.
func (h *Host) List(context.Context) ([]api.VESWInterface, error) {
	if h == nil {
		return nil, nil
	}
	return h.describe(func(*slot) bool { return true })
}

// each calls f for every port, in the order of functions and numbers, on the management
// goroutine.
func (h *Host) each(f func(s *slot, p *vnic.Port)) error {
	if h.cfg.Subnet.Do(func() {
		var list []*function
		for _, x := range h.funcs {
			list = append(list, x)
		}
		slices.SortFunc(list, func(a, b *function) int { return cmp.Compare(a.a.Number(), b.a.Number()) })
		for _, x := range list {
			x.ports.Each(func(vport uint8, p *vnic.Port) { f(x.slots[vport], p) })
		}
	}) != nil {
		return loop.ErrStopped
	}
	return nil
}

// vportState is the name of a state, set by an Ethernet Manager or reached by a port.
func vportState(s mad.VESWState) string {
	switch s {
	case mad.VESWForwarding:
		return api.StateForwarding
	case mad.VESWDropAll:
		return "drop_all"
	}
	return "initial"
}

// describe describes ports.
func (h *Host) describe(which func(*slot) bool) (list []api.VESWInterface, err error) {
	err = h.each(func(s *slot, p *vnic.Port) {
		if which(s) {
			list = append(list, s.describe(p))
		}
	})
	return list, err
}

func (s *slot) describe(p *vnic.Port) api.VESWInterface {
	i, d := p.Info(), p.Device()
	v := api.VESWInterface{Name: s.name, Device: s.f.a.Name, VPort: int(s.vport), VESW: int(i.VESW.VESWID),
		Backend: api.BackendTAP, State: vportState(i.Port.OperState), Reason: d.Reason,
		Config: vportState(i.Port.ConfigState), Carrier: d.Carrier, MAC: net.HardwareAddr(d.MAC[:]).String(),
		BaseMAC: net.HardwareAddr(i.Port.BaseMAC[:]).String(), MTU: d.MTU, MaxMTU: d.MaxMTU,
		PKey: describe.PKey(d.PKey), LID: int(i.Port.EncapSLID), MLID: fmt.Sprintf("0x%06x", i.VESW.McastDLID)}
	if s.with != nil {
		v.Backend, v.Asked = s.with.Backend, true
		if v.NotKept = "it ends with its command"; s.with.Kept() {
			v.Kept, v.NotKept = s.f.h.cfg.Intent.Kept()
		}
	}
	if s.f.h.cards.Has(v.Device) {
		v.Backend = api.BackendVM
	}
	if s.f.h.DevicePort(v.Device) != nil {
		v.Backend = api.BackendDevice
	}
	_, v.MACs, _, _ = s.f.ports.UnicastMACs(s.vport, 0, nil)
	v.Known = s.known()
	if s.why != nil {
		v.Failed = s.why.Error()
		v.Reason = "there is no interface"
	} else if s.seg == nil && s.vesw != 0 {
		v.Reason = "the interface is being made"
		if s.suspended() {
			v.Reason = describe.HostDrained
		}
	}
	if b, ok := s.seg.(interface{ Problem() string }); ok {
		v.Problem = b.Problem()
	}
	return v
}

// known is the number of MACs that the Ethernet Manager has distributed.
func (s *slot) known() (n int) {
	var table [mad.VESWMaxMACs]mad.VESWMACEntry
	if _, err := s.f.ports.MACEntries(s.vport, 0, table[:]); err != nil {
		return 0
	}
	for i := range table {
		if table[i].MAC != ([6]byte{}) {
			n++
		}
	}
	return n
}

// Patience is how long an operation waits for a port to come up before it returns its state.
const Patience = 3 * time.Second

// attach makes the interface of a port what r requests, and waits a moment for the port to come up.
func (h *Host) attach(ctx context.Context, r api.VESWRequest) ([]api.VESWInterface, error) {
	if err := h.cfg.Admit(); err != nil {
		return nil, err
	}
	if h.DevicePort(r.Device) != nil {
		return nil, describe.Invalid("weft vesw attach --help", "%s is a device with an Ethernet port of its own",
			r.Device)
	}
	if a := h.cfg.Adapter(r.Device); a == nil || a.Port().Link != ib.LinkInfiniBand {
		return nil, noInfiniBand(r.Device)
	}
	if h.cards.Has(r.Device) {
		return nil, describe.Invalid("weft vesw attach --help", "%s is the network card of a virtual machine", r.Device)
	}
	if err := h.Request(ctx, &r); err != nil {
		return nil, err
	}
	var failure error // of the first port with one, in the order of the list
	own := func(s *slot) bool {
		if s.with == &r && failure == nil {
			failure = s.why
		}
		return s.with == &r
	}
	ctx, stop := context.WithTimeout(ctx, Patience)
	defer stop()
	var list []api.VESWInterface
	var err error
	h.changes.Await(ctx, func() bool {
		failure = nil
		list, err = h.describe(own)
		return err != nil || len(list) > 0 && (list[0].Reason == "" || list[0].Failed != "")
	})
	if err != nil || len(list) == 0 || list[0].Failed == "" {
		return list, err
	}
	_ = h.detach(context.WithoutCancel(ctx), r.Key())
	return nil, describe.Problem(api.CodeConflict, "", failure, "")
}

// failures are the reasons for which ports have no interface, by portKey.
func (h *Host) failures() map[string]error {
	m := map[string]error{}
	_ = h.each(func(s *slot, _ *vnic.Port) { m[portKey(s.f.a.Name, int(s.vport))] = s.why })
	return m
}

func noInfiniBand(name string) error {
	return describe.NotFound("weft dev", "there is no InfiniBand device %s", name)
}

// Request records a request, and saves it.
func (h *Host) Request(ctx context.Context, r *api.VESWRequest) error {
	record := func() error {
		if !h.Restore(r) {
			return describe.Invalid("weft vesw detach "+r.Key(), "the port of %s in VESW %d is attached already",
				r.Device, r.VESW)
		}
		// The deletion of a device removes its requests after the device: the device is there still, or the request
		// goes here.
		if h.cfg.Adapter(r.Device) == nil {
			h.Forget(r.Device)
			return noInfiniBand(r.Device)
		}
		h.cfg.Log.Info("VESW port asked for", "device", r.Device, "vesw", r.VESW, "backend", r.Backend)
		if r.Kept() {
			h.cfg.Intent.ForgetPorts(func(o *api.VESWRequest) bool { return o.Key() == r.Key() })
		}
		return nil
	}
	if r.Kept() {
		return h.cfg.Intent.Edit(ctx, "cannot attach the port", record)
	}
	return record()
}

// Restore records a request; false where there is one for the port.
func (h *Host) Restore(r *api.VESWRequest) bool {
	h.mu.Lock()
	if slices.ContainsFunc(h.requests, func(o *api.VESWRequest) bool { return o.Key() == r.Key() }) {
		h.mu.Unlock()
		return false
	}
	h.requests = append(h.requests, r)
	h.mu.Unlock()
	h.reconsider(r.Device, uint16(r.VESW))
	return true
}

// Kept are the requests for the store.
func (h *Host) Kept() (list []api.VESWRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.requests {
		if r.Kept() {
			list = append(list, *r)
		}
	}
	return list
}

// Forget removes the requests for ports of a device that was deleted.
func (h *Host) Forget(device string) {
	if h == nil {
		return
	}
	h.cfg.Intent.ForgetPorts(func(r *api.VESWRequest) bool { return r.Device == device })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = slices.DeleteFunc(h.requests, func(r *api.VESWRequest) bool { return r.Device == device })
}

// Suspend closes the interfaces of ports on the host, also of later ports, until Resume. A nil Host has none.
func (h *Host) Suspend() { h.suspend(true) }

// Resume makes the interfaces of ports again, after Suspend.
func (h *Host) Resume() { h.suspend(false) }

func (h *Host) suspend(on bool) {
	if h == nil {
		return
	}
	h.cfg.Subnet.Do(func() {
		if h.suspended == on {
			return
		}
		h.suspended = on
		for _, f := range h.funcs {
			for _, s := range f.slots {
				if s != nil && s.port != nil {
					s.apply()
				}
			}
		}
	})
}

// Interfaces lists the interfaces of ports on this host, by name; a nil Host has none.
func (h *Host) Interfaces() (list []string) {
	if h == nil {
		return nil
	}
	_ = h.each(func(s *slot, _ *vnic.Port) {
		if s.name != "" && s.hosted() {
			list = append(list, s.name)
		}
	})
	slices.Sort(list)
	return list
}

// reconsider opens the interface of a port again where its request has changed.
func (h *Host) reconsider(device string, vesw uint16) {
	h.cfg.Subnet.Do(func() {
		for _, f := range h.funcs {
			for _, s := range f.slots {
				if s != nil && s.port != nil && f.a.Name == device && s.vesw == vesw {
					s.apply()
				}
			}
		}
	})
}

// detach withdraws the request for an interface, and waits until its name is free.
func (h *Host) detach(ctx context.Context, name string) error {
	var with *api.VESWRequest
	var work *loop.Worker
	if err := h.each(func(s *slot, _ *vnic.Port) {
		if s.name == name && s.with != nil {
			with = s.with
		}
	}); err != nil {
		return err
	}
	with, err := h.withdraw(ctx, with, name)
	if err != nil || with == nil {
		return err
	}
	if err := h.each(func(s *slot, _ *vnic.Port) {
		if s.with == with {
			work = s.worker
			if s.vesw == 0 {
				s.discard() // there is nothing to be instead
			} else {
				s.apply()
			}
		}
	}); err != nil {
		return err
	}
	if work != nil {
		work.Wait() // the name is free
	}
	return nil
}

// withdraw removes a request, r or the one with a key, and returns it, nil where it was not in use; the store follows.
func (h *Host) withdraw(ctx context.Context, r *api.VESWRequest, key string) (found *api.VESWRequest, err error) {
	match := func(o *api.VESWRequest) bool { return o == r || o.Key() == key }
	ofKey := func(o *api.VESWRequest) bool { return o.Key() == key }
	if found = h.remove(func(o *api.VESWRequest) bool { return match(o) && !o.Kept() }); found != nil {
		h.cfg.Intent.ForgetPorts(ofKey)
		return found, nil
	}
	err = h.cfg.Intent.Edit(ctx, "cannot detach the port", func() error {
		found = h.remove(match)
		if forgotten := h.cfg.Intent.ForgetPorts(ofKey); found == nil && !forgotten {
			return describe.NotFound("weft vesw interfaces", "nothing is attached as %s", key)
		}
		return nil
	})
	return found, err
}

// remove removes the first request that matches and returns it, nil where none does.
func (h *Host) remove(match func(*api.VESWRequest) bool) *api.VESWRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.requests, match)
	if i < 0 {
		return nil
	}
	r := h.requests[i]
	h.requests = slices.Delete(h.requests, i, i+1)
	return r
}

// Counters lists the counters of a port, or of all where name is empty; a nil Host has none.
func (h *Host) Counters(_ context.Context, name string) (list []api.Counter, err error) {
	if h == nil {
		return nil, nil
	}
	// of one port, or else of what a function received for no port
	type source struct {
		instance string
		port     *lanePort
		inlets   *inlets
	}
	var sources, funcs []source
	if err := h.each(func(s *slot, _ *vnic.Port) {
		if at := s.label(); name == "" || name == at {
			sources = append(sources, source{at, s.port, nil})
		}
		if len(funcs) == 0 || funcs[len(funcs)-1].inlets != s.f.inlets {
			funcs = append(funcs, source{s.f.a.Name, nil, s.f.inlets})
		}
	}); err != nil {
		return nil, err
	}
	if name == "" {
		sources = append(sources, funcs...)
	} else if len(sources) == 0 {
		return nil, describe.NotFound("weft vesw interfaces", "there is no port %s", name)
	}
	err = h.first.Query(func() {
		for _, s := range sources {
			add := func(what string, v uint64) {
				list = append(list, api.Counter{Scope: api.ScopeVESW, Instance: s.instance, Name: what, Value: v})
			}
			if s.port == nil {
				u := s.inlets.recv.Unknown()
				u.Each(add)
				continue
			}
			c := s.port.counters()
			c.Each(add)
			for why, v := range s.port.refusals {
				if ether.Refusal(why) != ether.OK {
					add("tx_"+ether.Refusal(why).String(), v)
				}
			}
		}
	})
	return list, err
}

// portKey names a port by its device and number.
func portKey(device string, vport int) string { return fmt.Sprintf("%s:v%d", device, vport) }

// label is the name of a port in tables.
func (s *slot) label() string {
	if s.name != "" {
		return s.name
	}
	return portKey(s.f.a.Name, int(s.vport))
}

// Degraded lists ports that do not carry frames though they should.
func (h *Host) Degraded(ports []api.VESWInterface) (list []api.Degraded) {
	if len(ports) == 0 {
		return nil
	}
	failures := h.failures()
	for _, v := range ports {
		where := fmt.Sprintf("port %d of %s in VESW %d", v.VPort, v.Device, v.VESW)
		switch {
		case v.Reason == describe.HostDrained: // which has a notice of its own
		case v.Failed != "":
			d := api.Degraded{What: "vesw_no_interface", Why: where + ": " + v.Failed, Fix: fmt.Sprintf(
				"weft vesw netstack %s --vesw %d --addr ADDRESS/LENGTH needs no privilege", v.Device, v.VESW)}
			if p := problem.Of("", failures[portKey(v.Device, v.VPort)]); p != nil && p.Fix != "" {
				also := d.Fix
				d.Why = where + ": " + problem.Text(p.What, p.Why, "")
				// The device's fix may name the same command, for any device and VESW.
				general := "weft vesw netstack DEVICE --vesw ID --addr ADDRESS/LENGTH"
				fix := strings.Replace(p.Fix, general, also, 1)
				if fix == p.Fix {
					fix += "; " + also
				}
				d.Fix = cmp.Or(fix, also)
			}
			list = append(list, d)
		case v.Problem != "":
			list = append(list, api.Degraded{What: "vesw_interface", Why: v.Name + ": " + v.Problem,
				Fix: "ip link show " + v.Name})
		case v.VESW != 0 && v.Config == api.StateForwarding && v.State != api.StateForwarding && v.Reason != ReasonDown:
			list = append(list, api.Degraded{What: "vesw_port", Why: where + ": " + v.Reason,
				Fix: "weft vesw interfaces; weft status where the manager runs"})
		}
	}
	return list
}

// ReasonDown is the reason of a port with an interface that was set down by its administrator.
const ReasonDown = "the interface is set down"

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"weft/internal/control/api"
	"weft/internal/node/describe"
	"weft/internal/node/intent"
	"weft/internal/node/ipif"
	"weft/internal/node/mgmt"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// functionOperations are the operations on functions. Any goroutine but a lane and the management goroutine may call
// its methods.
type functionOperations struct {
	functions *hca.Functions
	table     *functionTable
	editor    *functionEditor
	intent    *intent.Store
	vesws     *mgmt.VESWs
	cards     *vmcard.Cards
	admit     func() error // why the host accepts no new device; nil: it does
	ip        *ipif.Host   // nil: the node is in no subnet
	vesw      *vesw.Host   // nil: the same
	// lostByDelete is what the deletion of a device takes away, nil for nothing, and refuseDelete refuses it without a
	// confirmation.
	lostByDelete func(ctx context.Context, a *hca.Adapter) *api.LostContact
	refuseDelete func(ctx context.Context, a *hca.Adapter) error
}

// register registers the operations.
func (o *functionOperations) register(mux *http.ServeMux) {
	api.Handle(mux, api.ListFunctions, api.NoInput(o.list))
	api.Handle(mux, api.AddFunction, o.add)
	api.Handle(mux, api.ChangeFunction, api.ByName(o.set))
	api.Handle(mux, api.LostByFunction, o.lost)
	api.Handle(mux, api.DeleteFunction, api.NoOutput(o.delete))
}

// list lists the functions.
func (o *functionOperations) list(context.Context) ([]api.Function, error) {
	var list []api.Function
	for _, f := range o.table.all() {
		list = append(list, o.describe(f))
	}
	return list, nil
}

// describe describes a function.
func (o *functionOperations) describe(f *function) api.Function {
	a, p, l, s := f.a, f.a.Port(), f.a.Limits(), f.a.Shares()
	off, adapterOff := o.table.off(f)
	v := api.Function{Name: a.Name, Number: int(a.Number()), Virtual: virtual(a), Enabled: !off,
		AdapterEnabled: !adapterOff, LinkLayer: p.Link.String(), PortState: describe.PortState(p.State),
		LID: uint16(p.LID), NodeGUID: a.NodeGUID.String(), Sessions: a.Sessions(), Weight: int(s.Weight),
		Quotas: api.Quotas{Sessions: l.Sessions, PDs: int(l.PD), MRs: int(l.MR), CQs: int(l.CQ), QPs: int(l.QP),
			SRQs: int(l.SRQ), AHs: int(l.AH), MemoryBytes: l.Memory}}
	v.Kept, v.NotKept = o.intent.Kept()
	for _, w := range s.Level {
		v.QoS = append(v.QoS, int(w))
	}
	v.Segment = f.segment()
	if v.Segment == api.SegmentHost {
		return v
	}
	if f.st != nil {
		v.VESW = f.st.Describe()
	}
	v.PortGUID = (a.NodeGUID + 1).String()
	return v
}

// add adds a function.
func (o *functionOperations) add(ctx context.Context, r api.NewFunction) (v api.Function, err error) {
	const what = "cannot add the device"
	if err := o.admit(); err != nil {
		return v, err
	}
	var f *function
	err = o.intent.Edit(ctx, what, func() (err error) {
		if r.AdapterEnabled != nil {
			return o.notPhysical(what, r.Name)
		}
		if f, err = o.createInVESW(ctx, what, &r); err == nil {
			o.intent.Forget(r.Name)
		}
		return err
	})
	if err != nil {
		return v, err
	}
	if r.VESW() != "" {
		o.awaitCarrier(ctx, f)
	}
	return o.describe(f), nil
}

// createInVESW makes the function of a request, and adds its port to the VESW that the request names; the intent is
// being edited.
func (o *functionOperations) createInVESW(ctx context.Context, what string, r *api.NewFunction) (*function, error) {
	vesw := r.VESW()
	if vesw != "" {
		if o.vesw == nil {
			return nil, mgmt.ErrNoFabric
		}
		if _, err := o.vesws.Get(ctx, vesw); err != nil {
			return nil, deviceElsewhere(err, vesw, r)
		}
	}
	f, err := o.create(r, o.functions.Add, nil)
	var wrong *quotaError
	switch {
	case errors.As(err, &wrong):
		return nil, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
	case err != nil:
		return nil, intent.NotAdded(what, r.Name, err)
	case vesw == "":
		return f, nil
	}
	if _, err := o.vesws.AddPort(ctx, vesw, api.VESWPortAdd{Port: r.Name}); err != nil {
		return nil, errors.Join(deviceElsewhere(err, vesw, r), o.editor.remove(r.Name))
	}
	return f, nil
}

// awaitCarrier gives an Ethernet port a moment to come up, so that the answer has its lasting state.
func (o *functionOperations) awaitCarrier(ctx context.Context, f *function) {
	ctx, stop := context.WithTimeout(ctx, vesw.Patience)
	defer stop()
	o.vesw.Await(ctx, func() bool { return f.a.Port().State == ib.PortActive })
}

// deviceElsewhere adds to an error the node that can put a device into a VESW, where this one cannot.
func deviceElsewhere(err error, vesw string, r *api.NewFunction) error {
	return mgmt.Elsewhere(err, fmt.Sprintf("weft dev add %s --segment vesw with the same addresses here, "+
		"then weft vesw port add %s GUID with the port GUID that it prints, at that node", r.Name, vesw))
}

// guestMemory is how much memory of the node the objects of a guest take at most, in octets: page lists of 64 GiB of
// small pages, and the queues of all its queue pairs.
const guestMemory = 256 << 20

// create makes the function of a request; the intent is being edited. guest is its Ethernet port if a guest owns the
// function, else nil.
func (o *functionOperations) create(r *api.NewFunction, number func(*hca.Adapter) error,
	guest *vesw.GuestPort) (*function, error) {
	limits := hca.DefaultLimits
	if guest != nil {
		limits.Memory = guestMemory
	}
	if err := applyQuotas(&limits, &r.Quotas); err != nil {
		return nil, err
	}
	var st *vesw.DevicePort
	if r.Segment != "" {
		if o.vesw == nil {
			return nil, mgmt.ErrNoFabric
		}
		var err error
		if st, err = o.vesw.NewDevicePort(r); err != nil {
			return nil, err
		}
	}
	o.editor.mu.Lock()
	f, err := o.editor.create(r.Name, limits, number, r.Enabled == nil || *r.Enabled, st, guest)
	o.editor.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f, o.change(f, &r.FunctionChange)
}

// set changes a function.
func (o *functionOperations) set(ctx context.Context, name string, c api.FunctionChange) (v api.Function, err error) {
	const what = "cannot change the device"
	f := o.table.named(name)
	if f == nil {
		return v, noDevice(what, name)
	}
	err = o.intent.Edit(ctx, what, func() error {
		if c.AdapterEnabled != nil && virtual(f.a) {
			return o.notPhysical(what, name)
		}
		if err := o.change(f, &c); err != nil {
			return &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
		}
		if c.AdapterEnabled != nil {
			o.editor.enableAdapter(*c.AdapterEnabled)
		}
		return nil
	})
	if err != nil {
		return v, err
	}
	return o.describe(f), nil
}

// change changes a function, and keeps the request; the intent is being edited. On an error nothing has changed.
func (o *functionOperations) change(f *function, c *api.FunctionChange) error {
	limits := *f.a.Limits()
	if err := applyQuotas(&limits, &c.Quotas); err != nil {
		return err
	}
	f.a.SetLimits(limits)
	s := *f.a.Shares()
	if c.Weight != 0 {
		s.Weight = uint16(c.Weight)
	}
	for level, w := range c.QoS {
		s.Level[level] = uint16(w)
	}
	f.a.SetShares(s)
	if c.Enabled != nil {
		o.editor.enable(f, *c.Enabled)
	}
	merge(&f.asked, c)
	return nil
}

// deletable is the adapter of a device that a user may delete, nil where there is none.
func (o *functionOperations) deletable(name string) *hca.Adapter {
	if f := o.table.named(name); f != nil && virtual(f.a) && !o.cards.Has(name) {
		return f.a
	}
	return nil
}

// lost is what the deletion of a device takes away.
func (o *functionOperations) lost(ctx context.Context, name string) (*api.LostContact, error) {
	a := o.deletable(name)
	if a == nil {
		return nil, noDevice("", name)
	}
	return o.lostByDelete(ctx, a), nil
}

// delete deletes a function.
func (o *functionOperations) delete(ctx context.Context, name string) error {
	const what = "cannot delete the device"
	if a := o.deletable(name); a != nil {
		if err := o.refuseDelete(ctx, a); err != nil {
			return err
		}
	}
	if err := o.intent.Edit(ctx, what, func() error { return o.remove(ctx, what, name) }); err != nil {
		return err
	}
	if err := o.intent.Unsaved(); err != nil {
		return &api.Error{Code: api.CodeInternal, Why: err.Error(),
			What: name + " is deleted, but not in the store yet: it may be there again when the node starts again",
			Fix:  "weft store status; the node tries again by itself"}
	}
	return nil
}

// remove takes a function out of its VESW and removes it, with the requests for its interfaces; the intent is being
// edited.
func (o *functionOperations) remove(ctx context.Context, what, name string) error {
	if o.cards.Has(name) {
		return &api.Error{Code: api.CodeInvalid, What: what, Why: name + " is the network card of a virtual machine",
			Fix: "weft vm del " + name}
	}
	if st := o.vesw.DevicePort(name); st != nil {
		if err := o.vesws.Leave(ctx, st.Requested().VESW(), name); err != nil {
			return err
		}
	}
	err := o.editor.remove(name)
	switch forgotten := o.intent.Forget(name); {
	case errors.Is(err, errPhysical):
		return &api.Error{Code: api.CodeInvalid, What: what, Why: name + " is a device of the physical function",
			Fix: "weft dev set " + name + " --enabled=false"}
	case errors.Is(err, errNoFunction) && !forgotten:
		return noDevice(what, name)
	case err != nil && !errors.Is(err, errNoFunction):
		return err
	}
	o.vesw.Forget(name)
	o.ip.Forget(name)
	return nil
}

func (o *functionOperations) notPhysical(what, name string) error {
	return &api.Error{Code: api.CodeInvalid, What: what,
		Why: "only the physical function enables and disables the adapter, and " + name + " is a virtual function",
		Fix: "weft dev set " + o.table.physical() + " --adapter=disabled"}
}

func noDevice(what, name string) error {
	return &api.Error{Code: api.CodeNotFound, What: what, Why: "there is no device " + name, Fix: "weft dev"}
}

// applyQuotas changes what q states; nothing may exceed what the node can do.
func applyQuotas(l *hca.Limits, q *api.Quotas) error {
	var errs []error
	set := func(name string, to *uint32, v int, most uint32) {
		switch {
		case v == 0:
		case uint64(v) > uint64(most):
			errs = append(errs, fmt.Errorf("the quota %s must be at most %d, not %d", name, most, v))
		default:
			*to = uint32(v)
		}
	}
	d := &hca.DefaultLimits
	sessions := uint32(l.Sessions)
	set("sessions", &sessions, q.Sessions, uint32(d.Sessions))
	l.Sessions = int(sessions)
	set("pd", &l.PD, q.PDs, d.PD)
	set("mr", &l.MR, q.MRs, d.MR)
	set("cq", &l.CQ, q.CQs, d.CQ)
	set("qp", &l.QP, q.QPs, d.QP)
	set("srq", &l.SRQ, q.SRQs, d.SRQ)
	set("ah", &l.AH, q.AHs, d.AH)
	if q.MemoryBytes != 0 {
		l.Memory = q.MemoryBytes
	}
	// A session keeps the first two queue pairs and one completion queue.
	if l.QP < 3 || l.CQ < 2 {
		errs = append(errs,
			errors.New("a session needs 3 queue pairs and 2 completion queues at least, its own included"))
	}
	if len(errs) == 0 {
		return nil
	}
	return &quotaError{errors.Join(errs...)}
}

// quotaError reports invalid quotas.
type quotaError struct{ error }

// merge adds the changes of c to those requested before.
func merge(of *api.FunctionChange, c *api.FunctionChange) {
	if c.Enabled != nil {
		on := *c.Enabled
		of.Enabled = &on
	}
	if c.Weight != 0 {
		of.Weight = c.Weight
	}
	for level, w := range c.QoS {
		if of.QoS == nil {
			of.QoS = map[int]int{}
		}
		of.QoS[level] = w
	}
	to, from := &of.Quotas, &c.Quotas
	to.Sessions, to.PDs, to.MRs = cmp.Or(from.Sessions, to.Sessions), cmp.Or(from.PDs, to.PDs), cmp.Or(from.MRs, to.MRs)
	to.CQs, to.QPs, to.SRQs = cmp.Or(from.CQs, to.CQs), cmp.Or(from.QPs, to.QPs), cmp.Or(from.SRQs, to.SRQs)
	to.AHs, to.MemoryBytes = cmp.Or(from.AHs, to.AHs), cmp.Or(from.MemoryBytes, to.MemoryBytes)
}

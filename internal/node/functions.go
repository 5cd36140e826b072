// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"weft/internal/control/api"
	"weft/internal/node/describe"
	"weft/internal/node/mgmt"
	"weft/internal/node/subnet"
	"weft/internal/node/vesw"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// functionOperations are the operations on functions. Any goroutine but a lane and the management goroutine may call
// its methods.
type functionOperations struct{ cfg functionOperationsConfig }

// functionOperationsConfig is what the operations on functions need from their node.
type functionOperationsConfig struct {
	Log       *slog.Logger
	Functions *hca.Functions
	Table     *functionTable
	Editor    *functionEditor
	Intent    *intentStore
	Network   *mgmt.Network
	Fabric    bool // the node is in a subnet
	// IsCard reports whether a device is the network card of a virtual machine.
	IsCard func(name string) bool
	// DevicePort returns the Ethernet port of a device in a virtual Ethernet switch, nil: it has none. NewDevicePort
	// makes one.
	DevicePort    func(device string) *vesw.DevicePort
	NewDevicePort func(r *api.NewFunction) (*vesw.DevicePort, error)
	// AwaitPorts waits until done, which is called after each change of an Ethernet port, or ctx ends.
	AwaitPorts func(ctx context.Context, done func() bool)
	// Forget removes requests for interfaces of a device that was deleted.
	Forget func(device string)
}

func newFunctionOperations(c functionOperationsConfig) *functionOperations {
	return &functionOperations{c}
}

// register registers the operations.
func (o *functionOperations) register(mux *http.ServeMux) {
	api.Handle(mux, api.ListFunctions, api.NoInput(o.list))
	api.Handle(mux, api.AddFunction, o.add)
	api.Handle(mux, api.ChangeFunction, api.ByName(o.set))
	api.Handle(mux, api.DeleteFunction, api.NoOutput(o.delete))
}

// list lists the functions.
func (o *functionOperations) list(context.Context) ([]api.Function, error) {
	var list []api.Function
	for _, f := range o.cfg.Table.all() {
		list = append(list, o.describe(f))
	}
	return list, nil
}

// describe describes a function.
func (o *functionOperations) describe(f *function) api.Function {
	a, p, l, s := f.a, f.a.Port(), f.a.Limits(), f.a.Shares()
	off, adapterOff := o.cfg.Table.off(f)
	v := api.Function{
		Name:           a.Name,
		Number:         int(a.Number()),
		Virtual:        virtual(a),
		Enabled:        !off,
		AdapterEnabled: !adapterOff,
		LinkLayer:      p.Link.String(),
		PortState: describe.PortState(
			p.State,
		),
		LID:      uint16(p.LID),
		NodeGUID: a.NodeGUID.String(),
		Sessions: a.Sessions(),
		Weight:   int(s.Weight),
		Quotas: api.Quotas{
			Sessions:    l.Sessions,
			PDs:         int(l.PD),
			MRs:         int(l.MR),
			CQs:         int(l.CQ),
			QPs:         int(l.QP),
			SRQs:        int(l.SRQ),
			AHs:         int(l.AH),
			MemoryBytes: l.Memory,
		},
	}
	v.Kept, v.NotKept = o.cfg.Intent.kept()
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
func (o *functionOperations) add(ctx context.Context, r api.NewFunction) (api.Function, error) {
	const what = "cannot add the device"
	o.cfg.Intent.mu.Lock()
	defer o.cfg.Intent.mu.Unlock()
	if err := o.cfg.Intent.editable(what); err != nil {
		return api.Function{}, err
	}
	if r.AdapterEnabled != nil {
		return api.Function{}, notPhysical(what, r.Name, o.cfg.Table.physical())
	}
	vesw := r.VESW()
	if vesw != "" {
		if !o.cfg.Fabric {
			return api.Function{}, mgmt.ErrNoFabric
		}
		if _, err := o.cfg.Network.VESW(ctx, vesw); err != nil {
			return api.Function{}, deviceElsewhere(err, vesw, &r)
		}
	}
	var wrong *quotaError
	f, err := o.create(&r, o.cfg.Functions.Add)
	switch {
	case errors.As(err, &wrong):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
	case errors.Is(err, errFunctionThere):
		return api.Function{}, &api.Error{
			Code: api.CodeConflict,
			What: what,
			Why:  "there is a device " + r.Name,
			Fix:  "choose another name",
		}
	case errors.Is(err, subnet.ErrNoSwitchPort):
		return api.Function{}, &api.Error{
			Code: api.CodeConflict,
			What: what,
			Why:  err.Error(),
			Fix:  "delete a device, or start the node with more --switch-ports",
		}
	case errors.Is(err, hca.ErrNoFunction):
		return api.Function{}, &api.Error{
			Code: api.CodeConflict,
			What: what,
			Why:  "the node has made as many devices as it can number",
			Fix:  "start it again",
		}
	case err != nil:
		return api.Function{}, err
	}
	if vesw != "" {
		if _, err := o.cfg.Network.AddVESWPort(ctx, vesw, api.VESWPortAdd{Port: r.Name}); err != nil {
			return api.Function{}, errors.Join(deviceElsewhere(err, vesw, &r), o.cfg.Editor.remove(r.Name))
		}
	}
	o.cfg.Intent.Forget(r.Name)
	o.cfg.Intent.save(ctx)
	if vesw != "" {
		o.awaitCarrier(ctx, f)
	}
	return o.describe(f), nil
}

// awaitCarrier gives an Ethernet port a moment to come up, so that the answer has its lasting state.
func (o *functionOperations) awaitCarrier(ctx context.Context, f *function) {
	ctx, stop := context.WithTimeout(ctx, vesw.Patience)
	defer stop()
	o.cfg.AwaitPorts(ctx, func() bool { return f.a.Port().State == ib.PortActive })
}

// deviceElsewhere adds to an error the node that can put a device into a VESW, where this one cannot.
func deviceElsewhere(err error, vesw string, r *api.NewFunction) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.CodeNotMaster {
		x := *e
		x.Fix = fmt.Sprintf(
			"weft dev add %s --segment vesw with the same addresses here, then weft vesw port add %s and the port GUID that it prints at that node",
			r.Name,
			vesw,
		)
		return &x
	}
	return err
}

// create makes the function of a request; the intentStore's mu is held.
func (o *functionOperations) create(r *api.NewFunction, number func(*hca.Adapter) error) (*function, error) {
	limits := hca.DefaultLimits
	if err := applyQuotas(&limits, &r.Quotas); err != nil {
		return nil, err
	}
	var st *vesw.DevicePort
	if r.Segment != "" {
		var err error
		if st, err = o.cfg.NewDevicePort(r); err != nil {
			return nil, err
		}
	}
	o.cfg.Editor.mu.Lock()
	f, err := o.cfg.Editor.create(r.Name, limits, number, r.Enabled == nil || *r.Enabled, st)
	o.cfg.Editor.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f, o.change(f, &r.FunctionChange)
}

// set changes a function.
func (o *functionOperations) set(ctx context.Context, name string, c api.FunctionChange) (api.Function, error) {
	const what = "cannot change the device"
	o.cfg.Intent.mu.Lock()
	defer o.cfg.Intent.mu.Unlock()
	f := o.cfg.Table.named(name)
	if f == nil {
		return api.Function{}, noDevice(what, name)
	}
	if err := o.cfg.Intent.editable(what); err != nil {
		return api.Function{}, err
	}
	if c.AdapterEnabled != nil && virtual(f.a) {
		return api.Function{}, notPhysical(what, name, o.cfg.Table.physical())
	}
	if err := o.change(f, &c); err != nil {
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
	}
	if c.AdapterEnabled != nil {
		o.cfg.Editor.enableAdapter(*c.AdapterEnabled)
	}
	o.cfg.Intent.save(ctx)
	return o.describe(f), nil
}

// change changes a function, and keeps the request; the intentStore's mu is held. On an error nothing has changed.
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
		o.cfg.Editor.enable(f, *c.Enabled)
	}
	merge(&f.asked, c)
	return nil
}

// delete deletes a function.
func (o *functionOperations) delete(ctx context.Context, name string) error {
	const what = "cannot delete the device"
	o.cfg.Intent.mu.Lock()
	defer o.cfg.Intent.mu.Unlock()
	if err := o.cfg.Intent.editable(what); err != nil {
		return err
	}
	if o.cfg.IsCard(name) {
		return &api.Error{
			Code: api.CodeInvalid,
			What: what,
			Why:  name + " is the network card of a virtual machine",
			Fix:  "weft vm del " + name,
		}
	}
	if st := o.cfg.DevicePort(name); st != nil && st.Requested().VESW() != "" {
		var e *api.Error
		if err := o.cfg.Network.DeleteVESWPort(ctx, st.Requested().VESW(), name, -1); err != nil &&
			!(errors.As(err, &e) && e.Code == api.CodeNotFound) {
			o.cfg.Log.Warn(
				"a deleted device is still wanted in its VESW",
				"device",
				name,
				"vesw",
				st.Requested().VESW(),
				"err",
				err,
			)
		}
	}
	err := o.cfg.Editor.remove(name)
	switch forgotten := o.cfg.Intent.Forget(name); {
	case errors.Is(err, errPhysical):
		return &api.Error{Code: api.CodeInvalid, What: what, Why: name + " is a device of the physical function",
			Fix: "weft dev set " + name + " --enabled=false"}
	case errors.Is(err, errNoFunction) && !forgotten:
		return noDevice(what, name)
	case err != nil && !errors.Is(err, errNoFunction):
		return err
	}
	o.cfg.Forget(name)
	o.cfg.Intent.save(ctx)
	if err := o.cfg.Intent.unsaved(); err != nil {
		return &api.Error{
			Code: api.CodeInternal,
			What: name + " is deleted, but not in the store yet: it may be there again when the node starts again",
			Why:  err.Error(),
			Fix:  "weft store status; the node tries again by itself",
		}
	}
	return nil
}

func notPhysical(what, name, physical string) error {
	return &api.Error{
		Code: api.CodeInvalid,
		What: what,
		Why:  "only the physical function enables and disables the adapter, and " + name + " is a virtual function",
		Fix:  "weft dev set " + physical + " --adapter=disabled",
	}
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
		errs = append(
			errs,
			errors.New("a session needs 3 queue pairs and 2 completion queues at least, its own included"),
		)
	}
	if len(errs) == 0 {
		return nil
	}
	return &quotaError{errors.Join(errs...)}
}

// quotaError reports invalid quotas.
type quotaError struct{ error }

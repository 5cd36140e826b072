// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"

	"weft/internal/control/api"
	"weft/internal/node/describe"
	"weft/internal/node/mgmt"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// Functions implements api.Backend.
func (n *Node) Functions(context.Context) ([]api.Function, error) {
	var list []api.Function
	for _, f := range n.funcs.all() {
		list = append(list, f.describe())
	}
	return list, nil
}

// describe tells people about the function.
func (f *function) describe() api.Function {
	a, p, l, s := f.a, f.a.Port(), f.a.Limits(), f.a.Shares()
	off, adapterOff := f.n.funcs.off(f)
	v := api.Function{Name: a.Name, Number: int(a.Number()), Virtual: virtual(a), Enabled: !off, AdapterEnabled: !adapterOff, LinkLayer: p.Link.String(),
		PortState: describe.PortState(p.State), LID: uint16(p.LID), NodeGUID: a.NodeGUID.String(), Sessions: a.Sessions(), Weight: int(s.Weight),
		Quotas: api.Quotas{Sessions: l.Sessions, PDs: int(l.PD), MRs: int(l.MR), CQs: int(l.CQ), QPs: int(l.QP), SRQs: int(l.SRQ), AHs: int(l.AH),
			MemoryBytes: l.Memory}}
	v.Kept, v.NotKept = f.n.intentStore.kept()
	for _, w := range s.Level {
		v.QoS = append(v.QoS, int(w))
	}
	v.Segment = f.segment()
	if v.Segment == api.SegmentHost {
		return v
	}
	if f.st != nil {
		v.VESW = f.st.describe()
	}
	v.PortGUID = (a.NodeGUID + 1).String()
	return v
}

// AddFunction implements api.Backend.
func (n *Node) AddFunction(ctx context.Context, r api.NewFunction) (api.Function, error) {
	const what = "cannot add the device"
	n.intentStore.mu.Lock()
	defer n.intentStore.mu.Unlock()
	if err := n.intentStore.editable(what); err != nil {
		return api.Function{}, err
	}
	if r.AdapterEnabled != nil {
		return api.Function{}, notPhysical(what, r.Name, n.funcs.physical())
	}
	vesw := r.VESW()
	if vesw != "" {
		if n.sub == nil {
			return api.Function{}, mgmt.ErrNoFabric
		}
		if _, err := n.mgmt.VESW(ctx, vesw); err != nil {
			return api.Function{}, deviceElsewhere(err, vesw, &r)
		}
	}
	var wrong *quotaError
	f, err := n.newFunction(&r, n.all.Add)
	switch {
	case errors.As(err, &wrong):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
	case errors.Is(err, errFunctionThere):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: "there is a device " + r.Name, Fix: "choose another name"}
	case errors.Is(err, subnet.ErrNoSwitchPort):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error(), Fix: "delete a device, or start the node with more --switch-ports"}
	case errors.Is(err, hca.ErrNoFunction):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: "the node has made as many devices as it can number", Fix: "start it again"}
	case err != nil:
		return api.Function{}, err
	}
	if vesw != "" {
		if _, err := n.mgmt.AddVESWPort(ctx, vesw, api.VESWPortAdd{Port: r.Name}); err != nil {
			return api.Function{}, errors.Join(deviceElsewhere(err, vesw, &r), n.removeFunction(r.Name))
		}
	}
	n.intentStore.forget(r.Name)
	n.intentStore.save(ctx)
	if vesw != "" {
		n.awaitCarrier(ctx, f)
	}
	return f.describe(), nil
}

// awaitCarrier gives an Ethernet port a moment to come up, so that what is told of it is what it will be.
func (n *Node) awaitCarrier(ctx context.Context, f *function) {
	ctx, stop := context.WithTimeout(ctx, veswPatience)
	defer stop()
	n.vesw.changes.Await(ctx, func() bool { return f.a.Port().State == ib.PortActive })
}

// deviceElsewhere tells who can put a device into a VESW where this node cannot.
func deviceElsewhere(err error, vesw string, r *api.NewFunction) error {
	var e *api.Error
	if errors.As(err, &e) && e.Code == api.CodeNotMaster {
		x := *e
		x.Fix = fmt.Sprintf("weft dev add %s --segment vesw with the same addresses here, then weft vesw port add %s and the port GUID that it prints at that node", r.Name, vesw)
		return &x
	}
	return err
}

// newFunction makes the function that r asks for; the intentStore's mu is held.
func (n *Node) newFunction(r *api.NewFunction, number func(*hca.Adapter) error) (*function, error) {
	limits := hca.DefaultLimits
	if err := applyQuotas(&limits, &r.Quotas); err != nil {
		return nil, err
	}
	var st *segmentPort
	if r.Segment != "" {
		var err error
		if st, err = n.newSegmentPort(r); err != nil {
			return nil, err
		}
	}
	n.edits.Lock()
	f, err := n.makeFunction(r.Name, limits, number, r.Enabled == nil || *r.Enabled, st)
	n.edits.Unlock()
	if err != nil {
		return nil, err
	}
	return f, f.change(&r.FunctionChange)
}

// SetFunction implements api.Backend.
func (n *Node) SetFunction(ctx context.Context, name string, c api.FunctionChange) (api.Function, error) {
	const what = "cannot change the device"
	n.intentStore.mu.Lock()
	defer n.intentStore.mu.Unlock()
	f := n.funcs.named(name)
	if f == nil {
		return api.Function{}, noDevice(what, name)
	}
	if err := n.intentStore.editable(what); err != nil {
		return api.Function{}, err
	}
	if c.AdapterEnabled != nil && virtual(f.a) {
		return api.Function{}, notPhysical(what, name, n.funcs.physical())
	}
	if err := f.change(&c); err != nil {
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
	}
	if c.AdapterEnabled != nil {
		n.enableAdapter(*c.AdapterEnabled)
	}
	n.intentStore.save(ctx)
	return f.describe(), nil
}

// change does what a change asks of the function itself, and notes that it was
// asked for; the intentStore's mu is held. On an error nothing has changed.
func (f *function) change(c *api.FunctionChange) error {
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
		f.n.enable(f, *c.Enabled)
	}
	ask(&f.asked, c)
	return nil
}

// DelFunction implements api.Backend.
func (n *Node) DelFunction(ctx context.Context, name string) error {
	const what = "cannot delete the device"
	n.intentStore.mu.Lock()
	defer n.intentStore.mu.Unlock()
	if err := n.intentStore.editable(what); err != nil {
		return err
	}
	if n.machine(name) != nil {
		return &api.Error{Code: api.CodeInvalid, What: what, Why: name + " is the network card of a virtual machine", Fix: "weft vm del " + name}
	}
	if st := n.segmentPort(name); st != nil && st.want.VESW() != "" {
		var e *api.Error
		if err := n.mgmt.DeleteVESWPort(ctx, st.want.VESW(), name, -1); err != nil && !(errors.As(err, &e) && e.Code == api.CodeNotFound) {
			n.log.Warn("a deleted device is still wanted in its VESW", "device", name, "vesw", st.want.VESW(), "err", err)
		}
	}
	err := n.removeFunction(name)
	switch forgotten := n.intentStore.forget(name); {
	case errors.Is(err, errPhysical):
		return &api.Error{Code: api.CodeInvalid, What: what, Why: name + " is a device of the physical function",
			Fix: "weft dev set " + name + " --enabled=false"}
	case errors.Is(err, errNoFunction) && !forgotten:
		return noDevice(what, name)
	case err != nil && !errors.Is(err, errNoFunction):
		return err
	}
	if n.vesw != nil {
		n.vesw.forget(name)
		n.ip.Forget(name)
	}
	n.intentStore.save(ctx)
	if err := n.intentStore.unsaved(); err != nil {
		return &api.Error{Code: api.CodeInternal, What: name + " is deleted, but not in the store yet: it may be there again when the node starts again",
			Why: err.Error(), Fix: "weft store status; the node tries again by itself"}
	}
	return nil
}

func notPhysical(what, name, physical string) error {
	return &api.Error{Code: api.CodeInvalid, What: what, Why: "only the physical function enables and disables the adapter, and " + name + " is a virtual function",
		Fix: "weft dev set " + physical + " --adapter=disabled"}
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
		errs = append(errs, errors.New("a session needs 3 queue pairs and 2 completion queues at least, its own included"))
	}
	if len(errs) == 0 {
		return nil
	}
	return &quotaError{errors.Join(errs...)}
}

// quotaError tells of quotas that cannot be.
type quotaError struct{ error }

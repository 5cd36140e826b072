// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"

	"weft/internal/api"
	"weft/internal/hca"
)

// Functions implements api.Backend.
func (n *Node) Functions(context.Context) ([]api.Function, error) {
	var list []api.Function
	for _, f := range n.functions() {
		list = append(list, f.describe())
	}
	return list, nil
}

// describe tells people about the function.
func (f *function) describe() api.Function {
	a, p, l, s := f.a, f.a.Port(), f.a.Limits(), f.a.Shares()
	v := api.Function{Name: a.Name, Number: int(a.Number()), Virtual: a.Number() >= virtualFunctions, Enabled: !f.off(), LinkLayer: p.Link.String(),
		PortState: portState(p.State), LID: uint16(p.LID), NodeGUID: a.NodeGUID.String(), Sessions: a.Sessions(), Weight: int(s.Weight),
		Quotas: api.Quotas{Sessions: l.Sessions, PDs: int(l.PD), MRs: int(l.MR), CQs: int(l.CQ), QPs: int(l.QP), SRQs: int(l.SRQ), AHs: int(l.AH),
			MemoryBytes: l.Memory}}
	for _, w := range s.Level {
		v.QoS = append(v.QoS, int(w))
	}
	return v
}

// AddFunction implements api.Backend.
func (n *Node) AddFunction(_ context.Context, r api.NewFunction) (api.Function, error) {
	const what = "cannot add the device"
	limits := hca.DefaultLimits
	if err := applyQuotas(&limits, &r.Quotas); err != nil {
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: err.Error()}
	}
	f, err := n.addFunction(r.Name, limits)
	switch {
	case errors.Is(err, errFunctionThere):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: "there is a device " + r.Name, Fix: "choose another name"}
	case errors.Is(err, hca.ErrNoFunction):
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: what, Why: "the node has made as many devices as it can number", Fix: "start it again"}
	case err != nil:
		return api.Function{}, err
	}
	f.change(&r.FunctionChange)
	return f.describe(), nil
}

// SetFunction implements api.Backend.
func (n *Node) SetFunction(_ context.Context, name string, c api.FunctionChange) (api.Function, error) {
	f := n.function(name)
	if f == nil {
		return api.Function{}, noDevice("cannot change the device", name)
	}
	limits := *f.a.Limits()
	if err := applyQuotas(&limits, &c.Quotas); err != nil {
		return api.Function{}, &api.Error{Code: api.CodeInvalid, What: "cannot change the device", Why: err.Error()}
	}
	f.a.SetLimits(limits)
	f.change(&c)
	return f.describe(), nil
}

// change does what a change asks for besides quotas.
func (f *function) change(c *api.FunctionChange) {
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
}

// DelFunction implements api.Backend.
func (n *Node) DelFunction(_ context.Context, name string) error {
	err := n.removeFunction(name)
	switch {
	case errors.Is(err, errNoFunction):
		return noDevice("cannot delete the device", name)
	case errors.Is(err, errPhysical):
		return &api.Error{Code: api.CodeInvalid, What: "cannot delete the device", Why: name + " is a device of the physical function",
			Fix: "weft dev set " + name + " --enabled=false"}
	}
	return err
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
	// A door keeps the first two queue pairs and one completion queue.
	if l.QP < 3 || l.CQ < 2 {
		errs = append(errs, errors.New("a session needs 3 queue pairs and 2 completion queues at least, its own included"))
	}
	return errors.Join(errs...)
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"

	"weft/internal/control/api"
	"weft/internal/node/intent"
	"weft/internal/node/ipif"
	"weft/internal/node/vesw"
	"weft/internal/node/vmcard"
	"weft/internal/verbs/hca"
)

// contents is what the intent of a node is about. The intent calls its methods, one at a time.
type contents struct {
	functions *hca.Functions
	table     *functionTable
	editor    *functionEditor
	ops       *functionOperations
	cards     *vmcard.Cards
	ip        *ipif.Host
	vesw      *vesw.Host
}

var _ intent.Contents = (*contents)(nil)

// Collect implements intent.Contents.
func (c *contents) Collect() intent.State {
	v := intent.State{AdapterDisabled: c.table.adapterIsOff(), VESWPorts: c.vesw.Kept(), IPLinks: c.ip.Kept()}
	for _, f := range c.table.all() {
		if !virtual(f.a) && !asksAnything(&f.asked) {
			continue
		}
		k := intent.Function{Name: f.a.Name, Number: f.a.Number(), Asked: f.asked}
		if m := c.cards.Card(f.a.Name); m != nil {
			k.VM = m.Request()
		}
		if f.st != nil {
			w := f.st.Requested()
			k.Segment, k.Addrs, k.Routes = w.Segment, w.Addrs, w.Routes
		}
		v.Functions = append(v.Functions, k)
	}
	return v
}

// Restore implements intent.Contents.
func (c *contents) Restore(v *intent.State) (failed []intent.LostFunction, ports []intent.LostPort) {
	if v.AdapterDisabled {
		c.editor.enableAdapter(false)
	}
	c.editor.mu.Lock()
	for _, f := range v.Functions {
		c.functions.Reserve(f.Number)
	}
	c.editor.mu.Unlock()
	slices.SortStableFunc(v.Functions, func(a, b intent.Function) int { return int(a.Number) - int(b.Number) })
	for _, f := range v.Functions {
		if err := c.restoreFunction(&f); err != nil {
			failed = append(failed, intent.LostFunction{Function: f, Err: err})
		}
	}
	for i := range v.VESWPorts {
		if err := c.restorePort(&v.VESWPorts[i]); err != nil {
			ports = append(ports, intent.LostPort{VESWRequest: v.VESWPorts[i], Err: err})
		}
	}
	c.ip.Restore(v.IPLinks)
	return failed, ports
}

var errNumber = errors.New("its number in the store is one that no added device has")

// restoreFunction makes one function what it was.
func (c *contents) restoreFunction(f *intent.Function) error {
	if f.Number < virtualFunctions {
		o := c.table.byNumber(f.Number)
		if o == nil {
			return errNumber
		}
		if err := f.Asked.Validate(); err != nil {
			return err
		}
		return c.ops.change(o, &f.Asked)
	}
	want := api.NewFunction{Name: f.Name, Segment: f.Segment, Addrs: f.Addrs, Routes: f.Routes, FunctionChange: f.Asked}
	if err := want.Validate(); err != nil {
		return err
	}
	number := func(a *hca.Adapter) error { return c.functions.AddAt(a, f.Number) }
	if f.VM != nil {
		_, err := c.cards.Make(*f.VM, &f.Asked, number)
		return err
	}
	_, err := c.ops.create(&want, number, nil)
	return err
}

// restorePort makes a VESW port again what it was for.
func (c *contents) restorePort(r *api.VESWRequest) error {
	switch err := r.Validate(); {
	case err != nil:
		return err
	case !r.Kept():
		return errors.New("it was its command's")
	case !c.vesw.Restore(r):
		return errors.New("the store has two values of it")
	}
	return nil
}

// asksAnything reports whether c differs from no change.
func asksAnything(c *api.FunctionChange) bool {
	return c.Enabled != nil || c.Weight != 0 || len(c.QoS) != 0 || c.Quotas != (api.Quotas{})
}

// SPDX-License-Identifier: Apache-2.0

package vmcard

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"weft/internal/control/api"
	"weft/internal/node/intent"
	"weft/internal/node/mgmt"
	"weft/internal/node/vesw"
)

// Operations registers the operations of the control interface.
func (c *Cards) Operations(mux *http.ServeMux) {
	api.Handle(mux, api.ListVMs, api.NoInput(c.List))
	api.Handle(mux, api.AddVM, c.add)
	api.Handle(mux, api.DeleteVM, api.NoOutput(c.remove))
}

// List describes the cards.
func (c *Cards) List(context.Context) (list []api.VM, err error) {
	for _, m := range c.All() {
		list = append(list, m.describe())
	}
	return list, nil
}

// add adds a card, and waits a moment for its carrier where it is in a VESW.
func (c *Cards) add(ctx context.Context, want api.NewVM) (v api.VM, err error) {
	if c.cfg.Absent != nil {
		return v, c.cfg.Absent
	}
	if err := c.cfg.Admit(); err != nil {
		return v, err
	}
	const what = "cannot add the virtual machine"
	var m *Card
	if err := c.cfg.Keeper.Edit(ctx, what, func() (err error) {
		m, err = c.create(ctx, what, want)
		return err
	}); err != nil {
		return v, err
	}
	if v = m.describe(); want.VESW == "" {
		return v, nil
	}
	// The options for the machine depend on the switch.
	ctx, stop := context.WithTimeout(ctx, vesw.Patience)
	defer stop()
	c.cfg.AwaitPort(ctx, func() bool {
		m := c.Card(want.Name)
		if m != nil {
			v = m.describe()
		}
		return m == nil || v.Carrier // or deleted meanwhile
	})
	return v, nil
}

// create makes a card, and adds it to its VESW.
func (c *Cards) create(ctx context.Context, what string, want api.NewVM) (*Card, error) {
	if want.VESW != "" {
		if _, err := c.cfg.VESWs.Get(ctx, want.VESW); err != nil {
			return nil, elsewhere(err, want.VESW, want.Name)
		}
	}
	m, err := c.Make(want, &api.FunctionChange{}, c.cfg.Number)
	if err != nil {
		if e := intent.NotAdded(what, want.Name, err); e != err {
			return nil, e
		}
		return nil, &api.Error{Code: api.CodeConflict, What: what, Why: err.Error(), Fix: "choose another --socket"}
	}
	if want.VESW != "" {
		if _, err := c.cfg.VESWs.AddPort(ctx, want.VESW, api.VESWPortAdd{Port: want.Name}); err != nil {
			return nil, errors.Join(elsewhere(err, want.VESW, want.Name), c.cfg.RemoveFunction(want.Name))
		}
	}
	c.cfg.Keeper.Forget(want.Name)
	return m, nil
}

// elsewhere adds to an error the node that can put a card into a VESW, where this one cannot.
func elsewhere(err error, vesw, name string) error {
	return mgmt.Elsewhere(err, fmt.Sprintf("weft vm add %s without --vesw here, "+
		"then weft vesw port add %s GUID with its port's GUID, at that node", name, vesw))
}

// remove deletes a card, and takes it out of its VESW.
func (c *Cards) remove(ctx context.Context, name string) error {
	const what = "cannot delete the virtual machine"
	return c.cfg.Keeper.Edit(ctx, what, func() error {
		m := c.Card(name)
		if m == nil {
			if c.cfg.Keeper.Forget(name) {
				return nil
			}
			return &api.Error{Code: api.CodeNotFound, What: what, Why: "there is no virtual machine " + name,
				Fix: "weft vm"}
		}
		// The deletion of a machine is that of its card: contact is not compared.
		if err := c.cfg.VESWs.Leave(api.Confirm(ctx, api.ConfirmAll), m.want.VESW, name); err != nil {
			return err
		}
		return c.cfg.RemoveFunction(name)
	})
}

// Degraded lists cards with a RoCE half that stands still, and cards with queues in error because their rings are broken.
func Degraded(list []api.VM) (degraded []api.Degraded) {
	for _, v := range list {
		if v.RoCE != nil && v.RoCE.NeedsReset != "" {
			degraded = append(degraded, api.Degraded{What: "vm_needs_reset",
				Why: v.Name + ": its RoCE device stands still: " + v.RoCE.NeedsReset,
				Fix: "weft vm show " + v.Name + "; start the machine again"})
			continue
		}
		if v.RoCE == nil || len(v.RoCE.Broken) == 0 {
			continue
		}
		b := v.RoCE.Broken[0]
		more := ""
		if n := len(v.RoCE.Broken) - 1; n > 0 {
			more = fmt.Sprintf(", and %d more", n)
		}
		degraded = append(degraded, api.Degraded{What: "vm_broken_ring",
			Why: fmt.Sprintf("%s: its %s is in error, ring %d is broken: %s%s", v.Name, b.Queue, b.Ring, b.Why, more),
			Fix: "weft vm show " + v.Name + "; end the program in the guest that uses it"})
	}
	return degraded
}

// Notices lists cards without a guest, and cards in no switch.
func Notices(list []api.VM) (notices []api.Degraded) {
	for _, v := range list {
		if v.VESW == "" && v.VESWNumber == 0 {
			notices = append(notices, api.Degraded{What: "vm_without_vesw",
				Why: v.Name + ": its card is in no virtual Ethernet switch",
				Fix: "weft vesw port add NAME " + v.PortGUID + " where the Ethernet Manager runs"})
		}
		if !v.Guest {
			notices = append(notices, api.Degraded{What: "vm_without_guest", Why: v.Name + ": " + v.Reason,
				Fix: "start the machine with the options of weft vm show " + v.Name + ", or weft vm del " + v.Name})
		}
	}
	return notices
}

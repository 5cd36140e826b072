// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"weft/internal/control/api"
	"weft/internal/control/fabricfile"
)

// losses are what a plan takes away: by the names of devices of this node that it deletes, and by "" of the fabric.
type losses map[string]*api.LostContact

// confirmed returns a context for the deletion of a device, or with "" for the change of the fabric, which confirms
// what was printed of it.
func (l losses) confirmed(ctx context.Context, device string) context.Context {
	if lost := l[device]; lost != nil {
		return api.Confirm(ctx, lost.Digest)
	}
	return ctx
}

// losses returns what a plan takes away.
func (p *plan) losses(ctx context.Context, a *app) (losses, error) {
	l := losses{}
	if p.Lost != nil {
		l[""] = p.Lost
	}
	if p.node == nil || p.node.Devices == nil {
		return l, nil
	}
	for _, name := range deleted(p.is.Devices, p.node.Devices) {
		lost, err := call(ctx, a, api.LostByFunction, name)
		var known *api.Error
		switch {
		case errors.As(err, &known) && known.Code == api.CodeNotFound: // it has gone meanwhile
		case err != nil:
			return nil, err
		case lost != nil:
			l[name] = lost
		}
	}
	return l, nil
}

// confirm prints what a plan changes and takes away, and waits for an answer, where anything is taken away: all of it
// is confirmed before the first change.
func (p *plan) confirm(a *app, l losses) error {
	if a.yes || len(l) == 0 {
		return nil
	}
	w := &screen{Writer: a.env.Err, width: a.env.ErrTerminal.Width, color: a.env.ErrTerminal.Color}
	p.print(w)
	names := make([]string, 0, len(l))
	for name := range l {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		a.printLost(l[name])
	}
	if a.asks("go on?") {
		return nil
	}
	return &api.Error{Code: api.CodeContact, What: api.ApplyDesired.What,
		Why: "nothing is changed: it takes contact away, and that is not confirmed", Fix: a.commandLine() + " --yes"}
}

// apply makes a plan so. An error states what was changed before it.
func (p *plan) apply(ctx context.Context, a *app, l losses) error {
	done, err := call(l.confirmed(ctx, ""), a, api.ApplyDesired, p.fabric)
	if err != nil {
		return err
	}
	p.Lost = done.Lost
	if p.node == nil {
		return nil
	}
	err = applyNode(ctx, a, p.is, *p.node, l)
	if err == nil {
		return nil
	}
	e := api.Error{Code: api.CodeInternal, What: api.ApplyDesired.What, Why: err.Error()}
	var known *api.Error
	if errors.As(err, &known) {
		e = *known
	}
	before := "the changes of this node are made in part"
	if p.ofFabric > 0 {
		before = fmt.Sprintf("%s of the fabric applied, and those of this node in part",
			plural(p.ofFabric, "change"))
	}
	e.Why = before + " (weft diff shows what is left): " + e.Why
	return &e
}

// applyNode makes the devices and links of this node those of a file. Links go first and come last, since they are of
// devices.
func applyNode(ctx context.Context, a *app, is, want api.DesiredNode, lost losses) error {
	differs := func(d api.Desired, e api.Desired) bool { return len(fabricfile.Compare(d, e, nil)) > 0 }
	if want.Links != nil {
		for i := range is.Links {
			l := is.Links[i]
			same := slices.ContainsFunc(want.Links, func(o api.DesiredLink) bool {
				return fabricfile.LinkKey(&o) == fabricfile.LinkKey(&l) && !differs(
					api.Desired{Node: &api.DesiredNode{Links: []api.DesiredLink{l}}},
					api.Desired{Node: &api.DesiredNode{Links: []api.DesiredLink{o}}})
			})
			if !same {
				if err := do(ctx, a, api.DeleteIPLinks, api.IPLinkDelete{Name: cmp.Or(l.Device, "all"),
					PKeys: l.PKeys}); err != nil {
					return err
				}
			}
		}
	}
	if want.Devices != nil {
		if err := applyDevices(ctx, a, is.Devices, want.Devices, lost); err != nil {
			return err
		}
	}
	for i := range want.Links {
		l := want.Links[i]
		same := slices.ContainsFunc(is.Links, func(o api.DesiredLink) bool {
			return fabricfile.LinkKey(&o) == fabricfile.LinkKey(&l) && !differs(
				api.Desired{Node: &api.DesiredNode{Links: []api.DesiredLink{o}}},
				api.Desired{Node: &api.DesiredNode{Links: []api.DesiredLink{l}}})
		})
		if same {
			continue
		}
		if _, err := call(ctx, a, api.AddIPLinks, linkOf(&l)); err != nil {
			return err
		}
	}
	return nil
}

// deleted are the devices that go, for good or to come back as others.
func deleted(is, want []api.DesiredDevice) (names []string) {
	for i := range is {
		d := &is[i]
		k := slices.IndexFunc(want, func(o api.DesiredDevice) bool { return o.Name == d.Name })
		if k < 0 || !changeable(d, &want[k]) {
			names = append(names, d.Name)
		}
	}
	return names
}

func applyDevices(ctx context.Context, a *app, is, want []api.DesiredDevice, lost losses) error {
	for _, name := range deleted(is, want) {
		if err := do(lost.confirmed(ctx, name), a, api.DeleteFunction, name); err != nil {
			return err
		}
	}
	for i := range want {
		d := &want[i]
		f, err := functionOf(d)
		if err != nil {
			return errors.Join(errors.New("device "+d.Name), err) // checkNode has refused it
		}
		k := slices.IndexFunc(is, func(o api.DesiredDevice) bool { return o.Name == d.Name })
		switch {
		case k < 0 || !changeable(&is[k], d):
			_, err = call(ctx, a, api.AddFunction, f)
		case len(fabricfile.Compare(api.Desired{Node: &api.DesiredNode{Devices: is[k : k+1]}},
			api.Desired{Node: &api.DesiredNode{Devices: want[i : i+1]}}, nil)) > 0:
			enabled := !d.Disabled
			f.Enabled = &enabled
			_, err = call(ctx, a, api.ChangeFunction,
				api.Named[api.FunctionChange]{Name: d.Name, Value: f.FunctionChange})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changeable reports whether a device becomes another without being deleted: it stays where it is, and no setting
// returns to its default.
func changeable(is, want *api.DesiredDevice) bool {
	removed := func(a, b map[string]int) bool {
		for k := range a {
			if _, there := b[k]; !there {
				return true
			}
		}
		return false
	}
	return is.Segment == want.Segment && slices.Equal(is.Addresses, want.Addresses) &&
		slices.Equal(is.Routes, want.Routes) && !(is.Weight != 0 && want.Weight == 0) &&
		!removed(is.QoS, want.QoS) && !removed(is.Quotas, want.Quotas)
}

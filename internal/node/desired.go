// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"weft/internal/control/api"
	"weft/internal/node/intent"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// exportNode returns what the node keeps of its devices and IP links: devices that were added, but network cards of
// virtual machines.
func (n *Node) exportNode(context.Context) (api.DesiredNode, error) {
	v := api.DesiredNode{GUID: n.identity.String(), Devices: []api.DesiredDevice{}, Links: []api.DesiredLink{}}
	if n.sub == nil {
		return v, nil
	}
	for _, f := range n.contents().Collect().Functions {
		if f.Number < virtualFunctions || f.VM != nil {
			continue
		}
		d, err := desiredDevice(&f)
		if err != nil {
			return v, err
		}
		v.Devices = append(v.Devices, d)
	}
	for _, r := range n.ip.Kept() {
		v.Links = append(v.Links,
			api.DesiredLink{Device: r.Device, PKeys: r.PKeys, Addresses: r.Addrs, Routes: r.Routes,
				Params: r.Params})
	}
	return v, nil
}

// desiredDevice describes a device that was added.
func desiredDevice(f *intent.Function) (d api.DesiredDevice, err error) {
	d = api.DesiredDevice{Name: f.Name, Disabled: f.Asked.Enabled != nil && !*f.Asked.Enabled, Weight: f.Asked.Weight,
		Segment: f.Segment, Addresses: f.Addrs, Routes: f.Routes}
	for level, w := range f.Asked.QoS {
		if d.QoS == nil {
			d.QoS = map[string]int{}
		}
		d.QoS[strconv.Itoa(level)] = w
	}
	b, err := json.Marshal(f.Asked.Quotas)
	if err != nil {
		return d, err
	}
	var quotas map[string]int
	if err := json.Unmarshal(b, &quotas); err != nil {
		return d, err
	}
	for name, q := range quotas {
		if q == 0 {
			continue
		}
		if d.Quotas == nil {
			d.Quotas = map[string]int{}
		}
		d.Quotas[name] = q
	}
	return d, nil
}

// contents is what the intent of the node is about.
func (n *Node) contents() *contents {
	return &contents{functions: n.all, table: n.funcs, editor: n.editor, ops: n.functionOps, cards: n.cards, ip: n.ip,
		vesw: n.vesw}
}

// refuseDelete refuses the deletion of a device that takes contact away without a confirmation.
func (n *Node) refuseDelete(ctx context.Context, a *hca.Adapter) error {
	port, users := n.usesOf(a)
	return n.mgmt.RefuseDelete(ctx, port, users)
}

// lostByDelete is what refuseDelete refuses.
func (n *Node) lostByDelete(ctx context.Context, a *hca.Adapter) *api.LostContact {
	port, users := n.usesOf(a)
	return n.mgmt.LostByDelete(ctx, port, users)
}

// usesOf returns the port of a device, and the programs that use it.
func (n *Node) usesOf(a *hca.Adapter) (port ib.GUID, users []string) {
	for _, s := range n.sessions.Programs() {
		o := s.Owner()
		user := fmt.Sprintf("%s (process %d)", o.Comm, o.PID)
		if o.Device == a.Name && !slices.Contains(users, user) {
			users = append(users, user)
		}
	}
	port, _ = n.funcs.fabricPort(a.Name)
	return port, users
}

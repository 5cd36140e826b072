// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"sync"

	"weft/internal/control/api"
)

// fakeVMs is a node with a virtual machine that runs, and those that are added.
type fakeVMs struct {
	mu  sync.Mutex
	vms []api.VM
}

func (f *fakeVMs) VMs(context.Context) ([]api.VM, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]api.VM{{NewVM: api.NewVM{Name: "web", VESW: "lab", MAC: "52:54:00:00:00:09", Queues: 2,
		Socket: "/run/weft/vm/web.sock", Packed: true},
		Number: 3, PortGUID: "02aa:0000:0100:0007", Guest: true, Running: true, PID: 4711, Sessions: 1, VESWNumber: 5,
		VPort: 1, MTU: 9000, Carrier: true, Kept: true}}, f.vms...), nil
}

func (f *fakeVMs) AddVM(_ context.Context, v api.NewVM) (api.VM, error) {
	if v.VESW == "nowhere" {
		return api.VM{}, &api.Error{Code: api.CodeNotFound, Why: `there is no virtual Ethernet switch "nowhere"`,
			Fix: "weft vesw list"}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v.Queues = max(v.Queues, 1)
	vm := api.VM{NewVM: v, Number: 4, PortGUID: "02aa:0000:0100:0009", Reason: "nobody listens",
		CarrierReason: "it is in no VESW", NotKept: "the store is the node's memory (--store memory)"}
	f.vms = append(f.vms, vm)
	return vm, nil
}

func (f *fakeVMs) DelVM(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.vms)
	if f.vms = slices.DeleteFunc(f.vms, func(v api.VM) bool { return v.Name == name }); len(f.vms) == n {
		return &api.Error{Code: api.CodeNotFound, Why: "there is no virtual machine " + name, Fix: "weft vm"}
	}
	return nil
}

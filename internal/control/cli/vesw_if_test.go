// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft/internal/control/api"
)

// fakeVESW is a node with a port of VESW 5, and what is attached.
type fakeVESW struct {
	mu    sync.Mutex
	added []api.VESWInterface
}

func (f *fakeVESW) VESWInterfaces(context.Context) ([]api.VESWInterface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]api.VESWInterface{{Name: "opa1v0", Device: "weft_ib0", VESW: 5, Backend: "tap",
		State: "forwarding", Carrier: true, MAC: "02:50:00:02:00:00",
		BaseMAC: "02:50:00:02:00:00", MTU: 1500, MaxMTU: 9000, PKey: "0xc005", LID: 2, MLID: "0xf00001", Known: 3},
		{Device: "weft_ib0", VPort: 1, VESW: 6, Backend: "tap", State: "drop_all", Reason: "there is no interface",
			Failed: "open /dev/net/tun: no", MTU: 1500, MaxMTU: 1500,
			MAC: "02:60:00:02:00:00", PKey: "0xc006"}}, f.added...), nil
}

func (f *fakeVESW) AttachVESW(_ context.Context, r api.VESWRequest) ([]api.VESWInterface, error) {
	if r.Device == "weft0" {
		return nil, &api.Error{Code: api.CodeNotFound, Why: "there is no InfiniBand device weft0", Fix: "weft dev"}
	}
	if r.VESW == 9 {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v := api.VESWInterface{Name: r.Name, Device: r.Device, VPort: 2, VESW: r.VESW, Backend: r.Backend,
		State: "forwarding", MTU: 1500, MaxMTU: 1500, PKey: "0xc007"}
	f.added = append(f.added, v)
	return []api.VESWInterface{v}, nil
}

func (f *fakeVESW) DetachVESW(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.added)
	if f.added = slices.DeleteFunc(f.added, func(v api.VESWInterface) bool { return v.Name == name }); len(f.added) == n {
		return &api.Error{Code: api.CodeNotFound, Why: "nobody said what " + name + " is for",
			Fix: "weft vesw interfaces"}
	}
	return nil
}

func (f *fakeVESW) VESWStats(_ context.Context, name string) ([]api.Counter, error) {
	return []api.Counter{{Scope: api.ScopeVESW, Instance: "opa1v0", Name: "tx_packets", Value: 7},
		{Scope: api.ScopeVESW, Instance: "opa1v0", Name: "rx_runt"}}, nil
}

// TestStatusOfNamelessPort: a VESW port without an interface is named once.
func TestStatusOfNamelessPort(t *testing.T) {
	var b strings.Builder
	printStatus(&screen{Writer: &b, width: 80}, api.Status{VESWInterfaces: []api.VESWInterface{
		{Device: "weft_ib0", VESW: 5, State: "forwarding", MTU: 1500},
		{Name: "opa1v0", Device: "weft_ib0", VESW: 6, State: "forwarding", MTU: 1500}}})
	for _, want := range []string{"vesw port of weft_ib0, VESW 5: forwarding, mtu 1500\n",
		"vesw port opa1v0 of weft_ib0, VESW 6: forwarding, mtu 1500\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

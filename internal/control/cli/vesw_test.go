// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"weft/internal/control/api"
)

// fakeVESWs has a switch with two ports and those that were made.
type fakeVESWs struct {
	veswMu sync.Mutex
	vesws  []api.VESW
}

func (f *fakeVESWs) fill() {
	if f.vesws != nil {
		return
	}
	f.vesws = []api.VESW{{Name: "lab", ID: 5, PKey: "0xc005", OwnPartition: true, FabricID: 1, MTU: 9000,
		ActiveMTU: 4078, MLID: "0xf00003", UserMACs: true, MaxMACs: 512,
		PCP: []int{0, 0, 0, 0, 0, 1, 1, 1}, State: api.VESWDegraded, MACs: 3,
		Ports: []api.VESWPort{
			{GUID: "02aa:0000:0001:0003", Number: 1, Name: "h weft_ib0\x1b[0m", LID: 2, Agent: "present",
				BaseMAC: "06:50:00:02:00:00", State: "forwarding", MACs: []string{"02:00:00:00:00:07"}},
			{GUID: "02aa:0000:0002:0003", VPort: 3, Number: 2, Gateway: true, Default: true, Name: "g weft_ib0",
				LID: 4, Agent: "silent", BaseMAC: "06:50:00:04:00:00", State: "forwarding"},
			{GUID: "02aa:0000:0009:0003", Number: 3, State: "absent"}},
		Problems: []api.VESWProblem{{Port: "02aa:0000:0002:0003", What: "its agent does not answer",
			Fix: "weft status on its node"},
			{Port: "02aa:0000:0009:0003", What: "the port is not in the subnet", Fix: "weft fabric nodes"}}},
		{Name: "other", ID: 6, PKey: "0x8005", MTU: 1500, State: api.VESWUnknown, Flood: true}}
}

func (f *fakeVESWs) find(name string) (*api.VESW, error) {
	f.fill()
	i := slices.IndexFunc(f.vesws, func(v api.VESW) bool { return v.Name == name })
	if i < 0 {
		return nil, &api.Error{Code: api.CodeNotFound, Why: fmt.Sprintf("there is no virtual Ethernet switch %q",
			name), Fix: "weft vesw list"}
	}
	return &f.vesws[i], nil
}

func (f *fakeVESWs) VESWs(context.Context) ([]api.VESW, error) {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	f.fill()
	return f.vesws, nil
}

func (f *fakeVESWs) VESW(_ context.Context, name string) (api.VESW, error) {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	v, err := f.find(name)
	if err != nil {
		return api.VESW{}, err
	}
	// The ports that were new at the last look are in use now.
	for i := range v.Ports {
		if v.Ports[i].State == "configuring" {
			v.Ports[i].State = api.StateForwarding
		}
	}
	return *v, nil
}

func (f *fakeVESWs) CreateVESW(_ context.Context, c api.VESWCreate) (api.VESW, error) {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	f.fill()
	v := api.VESW{Name: c.Name, ID: c.ID, PKey: "0xc007", OwnPartition: c.PKey == "", MTU: c.MTU, Flood: c.Flood,
		UserMACs: !c.NoUserMACs, PCP: c.PCP, SL: c.SL, State: api.VESWUp}
	if v.ID == 0 {
		v.ID = 7
	}
	if c.FabricID != nil {
		v.FabricID = *c.FabricID
	}
	f.vesws = append(f.vesws, v)
	return v, nil
}

func (f *fakeVESWs) ChangeVESW(_ context.Context, name string, c api.VESWChange) (api.VESW, error) {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	v, err := f.find(name)
	if err != nil {
		return api.VESW{}, err
	}
	if c.MTU != nil {
		v.MTU = *c.MTU
	}
	if c.Flood != nil {
		v.Flood = *c.Flood
	}
	if c.UserMACs != nil {
		v.UserMACs = *c.UserMACs
	}
	return *v, nil
}

func (f *fakeVESWs) DeleteVESW(_ context.Context, name string) error {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	if _, err := f.find(name); err != nil {
		return err
	}
	f.vesws = slices.DeleteFunc(f.vesws, func(v api.VESW) bool { return v.Name == name })
	return nil
}

func (f *fakeVESWs) AddVESWPort(_ context.Context, name string, p api.VESWPortAdd) (api.VESW, error) {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	v, err := f.find(name)
	if err != nil {
		return api.VESW{}, err
	}
	x := api.VESWPort{GUID: p.Port, Number: len(v.Ports) + 1, Gateway: p.Gateway, State: "configuring",
		Agent: "present"}
	if p.VPort != nil {
		x.VPort = *p.VPort
	}
	v.Ports = append(v.Ports, x)
	return *v, nil
}

func (f *fakeVESWs) DelVESWPort(_ context.Context, name, port string, vport int) error {
	f.veswMu.Lock()
	defer f.veswMu.Unlock()
	v, err := f.find(name)
	if err != nil {
		return err
	}
	n := len(v.Ports)
	v.Ports = slices.DeleteFunc(v.Ports, func(x api.VESWPort) bool {
		return x.GUID == port &&
			(vport < 0 || vport == x.VPort)
	})
	if len(v.Ports) == n {
		return &api.Error{Code: api.CodeNotFound, Why: "port " + port + " is no member of " + name,
			Fix: "weft vesw show " + name}
	}
	return nil
}

// TestVESWPortOf: a number behind a port is a vport, the colons of a GUID are its own.
func TestVESWPortOf(t *testing.T) {
	for _, c := range []struct {
		in, port string
		vport    int // -1: none, -2: an error
	}{
		{"weft_ib0", "weft_ib0", -1}, {"weft_ib0:3", "weft_ib0", 3}, {"weft_ib0@h:254", "weft_ib0@h", 254},
		{"0200:5e00:53ff:0003", "0200:5e00:53ff:0003", -1}, {"0200:5e00:53ff:0003:7", "0200:5e00:53ff:0003", 7},
		{"weft_ib0@0200:5e00:53ff:0000", "weft_ib0@0200:5e00:53ff:0000", -1}, {"weft_ib0@0200:5e00:53ff:0000:1",
			"weft_ib0@0200:5e00:53ff:0000", 1},
		{"0x2005e0053ff0003:2", "0x2005e0053ff0003", 2}, {"weft_ib0:x", "", -2}, {"weft_ib0:-1", "",
			-2}, {"weft_ib0:", "", -2},
	} {
		p, err := veswPortOf(c.in)
		got := -1
		switch {
		case err != nil:
			got = -2
		case p.VPort != nil:
			got = *p.VPort
		}
		if got != c.vport || err == nil && p.Port != c.port {
			t.Errorf("%s: %q %d %v", c.in, p.Port, got, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// fault is the only fault of the node, with its counts.
func (r *running) fault() api.Fault {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListFaults)
	if err != nil || len(list) != 1 {
		r.t.Fatalf("%+v, %v", list, err)
	}
	return list[0]
}

// inject adds a fault, and returns the function that deletes it.
func (r *running) inject(spec api.FaultSpec) (remove func()) {
	r.t.Helper()
	f, err := api.Call(context.Background(), r.cli, api.AddFault, spec)
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		r.t.Helper()
		if err := api.Do(context.Background(), r.cli, api.DeleteFault, f.ID); err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestFaultsWithinNode: a fault reaches queue pairs of one node that were connected before, of RoCE and InfiniBand
// devices, unless it is for others; and they are as before when it is gone.
func TestFaultsWithinNode(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2} {
		r := run(t, func(c *config.Config) { c.Fabric, c.Store, c.Lanes = true, config.StoreMemory, lanes })
		r.add("vf", api.FunctionChange{})
		names := []string{firstNative, "vf"}
		for _, name := range names {
			f := r.node.funcs.named(name)
			eventually(t, "the port is active", func() bool { return f.a.Port().State == ib.PortActive })
		}
		native := [2]*client{r.nativeClient(t, r.node.funcs.named(names[0])), r.nativeClient(t, r.node.funcs.named(names[1]))}
		for _, c := range []struct {
			name   string
			a, b   *client
			others api.FaultSpec
		}{
			{"RoCE", r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{}),
				api.FaultSpec{Drop: 100, Peer: "192.0.2.1"}},
			{"InfiniBand", native[0], native[1], api.FaultSpec{Drop: 100, Link: api.LinkRoCE}},
		} {
			a, b := c.a, c.b
			a.wait, b.wait = 17, 17
			pair(t, ib.RC, a, b)
			mustWrite(t, a, b, 1, 5000)
			remove := r.inject(c.others)
			mustWrite(t, a, b, 2, 5000)
			if f := r.fault(); f.Packets != 0 {
				t.Errorf("%s: a fault for others acts: %+v", c.name, f)
			}
			remove()

			remove = r.inject(api.FaultSpec{Drop: 20, Duplicate: 5, Reorder: 5, Seed: 3})
			for i := range 20 {
				mustWrite(t, a, b, byte(i), 60000)
			}
			f := r.fault()
			remove()
			if f.Dropped == 0 || f.Duplicated == 0 || f.Reordered == 0 || r.counter(api.ScopeQP, "retransmits") == 0 {
				t.Errorf("%s: %+v", c.name, f)
			}
			mustWrite(t, a, b, 3, 60000)

			// What is sent while all is lost arrives after the fault, within the retries.
			remove = r.inject(api.FaultSpec{Drop: 100})
			for i := range 5000 {
				a.buf[i] = byte(i * 7)
			}
			w := abi.Send{WRID: 7, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
			w.SetRDMA(b.at, b.mr.RKey)
			if err := a.qp.PostSend(w, []ib.SGE{{Addr: a.at, Len: 5000, LKey: a.mr.LKey}}, nil); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is lost", func() bool { return r.fault().Dropped > 0 })
			remove()
			if list, err := a.cq.Wait(1); err != nil || list[0].Status != 0 || !bytes.Equal(a.buf[:5000], b.buf[:5000]) {
				t.Errorf("%s: %+v, %v", c.name, list, err)
			}
		}
		r.end()
	}
}

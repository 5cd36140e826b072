// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// enforce has the switch compare keys at the port of a function, as a manager
// that writes its PortInfo and P_Key table does.
func (r *running) enforce(name string, in, out bool, keys ...ib.PKey) {
	r.t.Helper()
	s, num := r.node.sub, r.node.funcs.named(name).a.Number()
	var port uint8
	s.Do(func() {
		port = s.Port(num).Number
		s.Switch.Forwarding().SetPort(port, vswitch.Port{State: ib.PortActive, EnforceIn: in, EnforceOut: out,
			PKeys: keys})
		s.Dirty = true
	})
	eventually(r.t, "the lanes have the tables", func() bool {
		p := s.Table.Load().Port(port)
		return p.EnforceIn == in && p.EnforceOut == out && slices.Equal(p.PKeys, keys)
	})
}

// TestEnforcementWithinNode: the switch's partition enforcement holds between
// functions of one node, whether or not what they send becomes packets, from the
// moment the tables change, and under the same counters.
func TestEnforcementWithinNode(t *testing.T) {
	t.Parallel()
	for _, wire := range []bool{false, true} {
		r := run(t, func(c *config.Config) { c.Fabric, c.Store, c.WireLocal = true, config.StoreMemory, wire })
		r.add("vf", api.FunctionChange{})
		names := []string{firstNative, "vf"}
		for _, name := range names {
			f := r.node.funcs.named(name)
			eventually(t, "the port is active", func() bool { return f.a.Port().State == ib.PortActive })
		}
		a, b := r.nativeClient(t, r.node.funcs.named(names[0])), r.nativeClient(t, r.node.funcs.named(names[1]))
		a.wait, b.wait = 17, 17
		pair(t, ib.RC, a, b)
		mustWrite(t, a, b, 1, 5000)
		local, wired := r.counter(api.ScopeLane, "local_bursts"), r.counter(api.ScopeLane, "wire_bursts")
		if (local == 0) != wire || (wired == 0) == wire {
			t.Errorf("wire %v: %d runs from memory to memory, %d as packets", wire, local, wired)
		}
		for i, c := range []struct {
			port    string
			in, out bool
			keys    []ib.PKey
			counter string
		}{
			{names[0], true, false, []ib.PKey{0x8001}, "drop_route_pkey_in"},
			// a limited member may not claim to be a full one
			{names[0], true, false, []ib.PKey{0x7fff}, "drop_route_pkey_in"},
			{names[1], false, true, []ib.PKey{0x8001}, "drop_route_pkey_out"},
		} {
			counters := func() (n [2]uint64) {
				return [2]uint64{r.counter(api.ScopeLink, "drop_route_pkey_in"), r.counter(api.ScopeLink,
					"drop_route_pkey_out")}
			}
			before, own := counters(), r.counter(api.ScopePort, "p_key_violations")
			r.enforce(c.port, c.in, c.out, c.keys...)
			w := abi.Send{WRID: uint64(7 + i), Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
			w.SetRDMA(b.at, b.mr.RKey)
			if err := a.qp.PostSend(w, []ib.SGE{{Addr: a.at, Len: 8, LKey: a.mr.LKey}}, nil); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the switch refuses it: "+c.counter, func() bool { return counters() != before })
			after := counters()
			if i := map[bool]int{true: 0, false: 1}[c.in]; after[i] == before[i] || after[1-i] != before[1-i] {
				t.Errorf("wire %v, %+v: %v became %v", wire, c, before, after)
			}
			if list, err := a.cq.Poll(1); err != nil || len(list) != 0 {
				t.Errorf("wire %v, %+v: it was completed: %+v, %v", wire, c, list, err)
			}
			// What is the switch's to refuse is no violation at the function.
			if r.counter(api.ScopePort, "p_key_violations") != own {
				t.Error("the function counted it")
			}
			r.enforce(c.port, false, false)
			if list, err := a.cq.Wait(1); err != nil || list[0].Status != 0 || list[0].WRID != uint64(7+i) {
				t.Errorf("wire %v, %+v: %+v, %v", wire, c, list, err)
			}
			// Full members on both sides pass the same checks.
			r.enforce(c.port, c.in, c.out, 0xffff)
			mustWrite(t, a, b, byte(i), 100)
			r.enforce(c.port, false, false)
		}
		r.end()
	}
}

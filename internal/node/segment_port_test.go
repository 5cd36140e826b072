// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/fabric/link/roceframe"
	"weft/internal/host/rundir"
	"weft/internal/node/vesw"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// stationNode is the first of a pair with a device in a VESW, and the interface of the other in it.
func stationNode(t *testing.T) (n *veswNode, f *function, other *plug, otherMAC [6]byte) {
	t.Helper()
	nodes := veswPair(t)
	n = nodes[0]
	n.node.sub.Do(func() { n.node.vesw.Open = n.node.vesw.OpenSegment })
	v, err := api.Call(context.Background(), n.cli, api.AddFunction, api.NewFunction{Name: "blue0", Segment: "vesw",
		Addrs: []string{"10.9.0.1/24", "fd09::1/64"}, Routes: []string{"10.0.0.0/8=10.9.0.9"}})
	if err != nil {
		t.Fatal(err)
	}
	if v.LinkLayer != "Ethernet" || v.PortState != "DOWN" || v.Segment != "vesw" || v.VESW.Carrier ||
		v.VESW.CarrierReason != "it is in no VESW" || v.PortGUID == "" {
		t.Errorf("%+v", v)
	}
	f = n.node.funcs.named("blue0")
	eventually(t, "its port in the fabric is active", func() bool {
		state := ib.PortDown
		n.node.sub.Do(func() { state = n.node.sub.Port(2 + 1).Agent.Port(1).PortState })
		return state == ib.PortActive
	})
	n.node.sub.Do(func() { n.node.sub.ServeEthernet(f.a.Number(), nil) })
	nodes[1].vport(1, 0, 5, 1500)
	other = nodes[1].made(0)
	n.vport(f.a.Number(), 0, 5, 1500)
	nodes[1].forwards("plug0")
	eventually(t, "the device is active", func() bool { return f.a.Port().State == ib.PortActive })
	return n, f, other, nodes[1].mac(1, 5)
}

// await waits for a frame.
func (p *plug) await(t *testing.T, what string, is func(f []byte) bool) (frame []byte) {
	t.Helper()
	eventually(t, what, func() bool {
		frames, off := p.came()
		for i, f := range frames {
			in := ether.Classify(f)
			if off[i].Kind() == ether.GSONone && off[i].Check(f, &in) == ether.OK {
				off[i].Complete(f)
			}
			if is(f) {
				frame = f
				return true
			}
		}
		return false
	})
	return frame
}

// TestStation is the life of an Ethernet port in a VESW.
func TestStation(t *testing.T) {
	n, f, other, otherMAC := stationNode(t)
	ctx := context.Background()
	mac := n.mac(f.a.Number(), 5)
	gids := func() (list []string) {
		for _, g := range f.a.Port().GIDs {
			list = append(list, g.GID.Addr().String())
		}
		return list
	}
	local := netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe,
		13: mac[3], 14: mac[4], 15: mac[5]})
	if p := f.a.Port(); p.Link != ib.LinkEthernet || p.MTU != ib.MTU1024 ||
		!slices.Equal(gids(), []string{local.String(), "10.9.0.1", "fd09::1"}) {
		t.Errorf("%+v, %v", p, gids())
	}
	tree := filepath.Join(n.cfg.Dir, rundir.TreeDir, "sys/class/infiniband/blue0/ports/1")
	for file, want := range map[string]string{"state": "4: ACTIVE\n", "link_layer": "Ethernet\n",
		"gids/1": "0000:0000:0000:0000:0000:ffff:0a09:0001\n", "gid_attrs/types/1": "RoCE v2\n"} {
		eventually(t, file+" is as programs want it", func() bool {
			b, err := os.ReadFile(filepath.Join(tree, file))
			return err == nil && string(b) == want
		})
	}

	n.node.lanes.First().Do(func() {
		st, links := n.node.vesw.DevicePort("blue0"), map[uint16]*roceframe.Link{}
		n.node.lanes.First().Net.EachEthernet(func(function uint16, l *roceframe.Link) { links[function] = l })
		if len(links) != 1 || links[f.a.Number()] != st.Link() || !st.Attached() {
			t.Error("the links are mixed up")
		}
	})

	// The stack answers requests for the address. No group of the fabric is there: all is unicast.
	arp := slices.Concat(mac[:], otherMAC[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, otherMAC[:],
		[]byte{10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1})
	other.send(arp, ether.Offload{})
	other.await(t, "an answer", func(f []byte) bool {
		return bytes.Equal(f[:12], slices.Concat(otherMAC[:], mac[:])) && bytes.Equal(f[12:14], []byte{8, 6}) &&
			f[21] == 2 && bytes.Equal(f[22:28], mac[:])
	})

	// RoCEv2 is the link's, whatever it is.
	udp := func(port byte) []byte {
		b := slices.Concat(mac[:], otherMAC[:], []byte{8, 0, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 2,
			10, 9, 0, 1, 0xc0, 0, 0x12, port, 0, 24, 0, 0}, make([]byte, 16))
		s := ether.Checksum(b[14:34])
		b[24], b[25] = byte(s>>8), byte(s)
		return b
	}
	counter := func(name string) (v uint64) {
		t.Helper()
		list, err := api.Get(ctx, n.cli, api.ListCounters)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			if c.Scope == api.ScopeLink && c.Instance == "blue0" && c.Name == name {
				return c.Value
			}
		}
		t.Fatalf("no counter %s", name)
		return 0
	}
	// 4790 first: the stack answers that the port is closed, and only that.
	other.send(udp(0xb7), ether.Offload{})
	other.send(udp(0xb6), ether.Offload{})
	unreachable := 0
	other.await(t, "the port is unreachable", func(f []byte) bool {
		if len(f) > 60 && f[23] == 1 && f[34] == 3 {
			unreachable++
			return f[14+20+8+20+3] == 0xb6
		}
		return false
	})
	if unreachable != 1 || counter("drop_bad_icrc") != 1 {
		t.Errorf("%d answers, %d refused", unreachable, counter("drop_bad_icrc"))
	}

	// What is sent waits for the neighbour, which the stack has heard of, and goes by way of the port.
	n.node.lanes.First().Do(func() {
		l := n.node.lanes.First()
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: ib.DefaultPKey, DestQPN: 0x4711}, Count: 1,
			Data: mem.BytesPayload([]byte("hello")),
			Path: &ib.Path{SGID: f.a.Port().GIDs[1].GID, DGID: ib.GIDFromAddr(netip.MustParseAddr("10.9.0.2")),
				SrcPort: 0xc000, Function: f.a.Number()}}
		if n.node.lanes.First().Net.Send(l.Now(), &r, l.HCA.Batch()) != mem.OK {
			t.Error("the packet was not read")
		}
		n.node.lanes.First().Net.Flush(l.Now())
	})
	sent := other.await(t, "a packet", func(f []byte) bool {
		return len(f) > 60 && f[23] == 17 &&
			bytes.Equal(f[36:38], []byte{0x12, 0xb7})
	})
	if !bytes.Equal(sent[:12], slices.Concat(otherMAC[:], mac[:])) || !bytes.Contains(sent, []byte("hello")) {
		t.Errorf("%x", sent)
	}
	var seen api.EthernetPort
	eventually(t, "the neighbour is told of", func() bool {
		seen = n.device("blue0").Ports[0].Ethernet
		return len(seen.Neighbours) == 1 && seen.Neighbours[0].State == "reachable"
	})
	if v := seen.Neighbours[0]; v.Address != "10.9.0.2" || v.MAC != net.HardwareAddr(otherMAC[:]).String() ||
		v.Frames != 0 || seen.Number != 5 || !seen.Carrier {
		t.Errorf("%+v", seen)
	}

	// The communication manager finds the port by its network, or by its address.
	u := n.cmUser(t)
	for _, src := range []string{"", "10.9.0.1"} {
		if a, p, err := u.path(src, "10.9.0.77"); err != nil || a.Function != f.a.Number() ||
			a.Src.String() != "10.9.0.1" || p.SGIDIndex != 1 || p.MTU != ib.MTU1024 || p.Function != f.a.Number() {
			t.Errorf("%+v, %+v, %v", a, p, err)
		}
	}

	// Groups: the stack reports them, and the manager learns the MAC.
	group := ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	groups := portGroups{n.node.funcs, n.node.groups}
	for range 2 {
		if err := groups.Join(f.a.Number(), group); err != nil {
			t.Fatal(err)
		}
	}
	filtered := func() (yes bool) {
		n.node.sub.Do(func() {
			macs := make([][6]byte, 64)
			c, _, _, _ := n.node.vesw.Ports(f.a.Number()).MulticastMACs(0, 0, macs)
			yes = slices.Contains(macs[:c], [6]byte{1, 0, 0x5e, 1, 2, 3})
		})
		return yes
	}
	eventually(t, "the MAC of the group is told", filtered)
	groups.Leave(f.a.Number(), group)
	groups.Leave(f.a.Number(), group)
	eventually(t, "and no longer", func() bool { return !filtered() })

	// Another MTU is the port's, too.
	n.vport(f.a.Number(), 0, 5, 4500)
	eventually(t, "the MTU follows", func() bool { return f.a.Port().MTU == ib.MTU4096 })

	// A second port of a switch is not the device's.
	n.vport(f.a.Number(), 1, 6, 1500)
	eventually(t, "the second port shows why it has no interface", func() bool {
		return slices.ContainsFunc(n.status().VESWInterfaces, func(v api.VESWInterface) bool {
			return v.VESW == 6 && v.Device == "blue0" && strings.Contains(v.Failed, vesw.ErrInAnotherVESW.Error())
		})
	})
	if _, err := api.Call(ctx, n.cli, api.AttachVESW, api.VESWRequest{Device: "blue0", VESW: 5,
		Backend: api.BackendTAP, Name: "lab0"}); err == nil {
		t.Error("its port was given to a TAP device")
	}

	// Disabled it is down, with its addresses, and comes back.
	off, on := false, true
	if _, err := api.Call(ctx, n.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: "blue0",
		Value: api.FunctionChange{Enabled: &off}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the port is down", func() bool { return f.a.Port().State == ib.PortDown })
	if len(gids()) != 3 {
		t.Errorf("%v", gids())
	}
	if _, err := api.Call(ctx, n.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: "blue0",
		Value: api.FunctionChange{Enabled: &on}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the port is up", func() bool { return f.a.Port().State == ib.PortActive })

	if err := api.Do(ctx, n.cli, api.DeleteFunction, "blue0"); err != nil {
		t.Fatal(err)
	}
	n.node.lanes.First().Net.EachEthernet(func(uint16, *roceframe.Link) { t.Error("the link is left") })
	if n.node.vesw.DevicePort("blue0") != nil {
		t.Error("something is left")
	}
}

// TestStationRefused: what cannot be asked for leaves nothing behind.
func TestStationRefused(t *testing.T) {
	n := run(t, nil)
	var e *api.Error
	for _, r := range []api.NewFunction{{Name: "x", Segment: "vesw"}, {Name: "x", Segment: "vesw:blue"}} {
		if _, err := api.Call(context.Background(), n.cli, api.AddFunction, r); !errors.As(err, &e) ||
			n.node.vesw.DevicePort("x") != nil || n.node.funcs.named("x") != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

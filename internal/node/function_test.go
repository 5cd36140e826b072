// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/node/intent"
	"weft/internal/node/subnet"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// native adds a function with an InfiniBand port to a running node and, where
// lid is not zero, does what a subnet manager would.
func (r *running) native(t testing.TB, name string, lid ib.LID) *function {
	t.Helper()
	f, err := r.node.editor.add(name, hca.DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	if lid != 0 {
		r.manage(f, func(p *hca.Port) { p.State, p.LID, p.SMLID = ib.PortActive, lid, 1 })
	}
	return f
}

// manage changes a port as a subnet manager does.
func (r *running) manage(f *function, change func(p *hca.Port)) {
	old := f.a.Port()
	p := *old
	change(&p)
	f.a.SetPort(&p)
	r.node.tree.changed(subnet.PortChange{Adapter: f.a, Events: p.Changes(old)})
}

// nativeClient is a client of a function with an InfiniBand port.
func (r *running) nativeClient(t testing.TB, f *function) *client {
	t.Helper()
	c := r.clientOf(t, r.socketOf(f.a.Name), vhosttest.Options{})
	c.lid = f.a.Port().LID
	return c
}

func (r *running) socketOf(name string) string {
	return filepath.Join(r.cfg.Dir, "door", name+".sock")
}

// file reads a file of a device's tree.
func (r *running) file(device, name string) string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.cfg.Dir, "tree/sys/class/infiniband", device, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// expect waits for one event of port 1.
func expect(t testing.TB, q *vhosttest.EVQ, want ib.Event) {
	t.Helper()
	if e, err := q.Next(); err != nil || e.Type != uint32(want) || e.Object != 1 {
		t.Fatalf("event %+v, %v; want %v", e, err, want)
	}
}

// TestNativeTraffic moves bytes by LIDs between clients of one function and of
// two, and of one lane and of two.
func TestNativeTraffic(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		r := run(t, func(c *config.Config) { c.Lanes = lanes })
		f, g := r.native(t, "weft_ib0", 8), r.native(t, "vf", 9)
		a, b, c := r.nativeClient(t, f), r.nativeClient(t, f), r.nativeClient(t, g)
		for _, pr := range [][2]*client{{a, b}, {a, c}, {c, a}} {
			pair(t, ib.RC, pr[0], pr[1])
			for i, n := range []int{1, 4097, 64 << 10} {
				mustWrite(t, pr[0], pr[1], byte(i+lanes), n)
			}
		}
		if r.counter(api.ScopePort, "xmit_data") != r.counter(api.ScopePort, "rcv_data") ||
			r.counter(api.ScopePort, "xmit_pkts") == 0 {
			t.Error("ports sent and received different amounts")
		}
	}
}

// TestNativeDevice looks at an InfiniBand port from everywhere it shows, as it
// comes up and changes.
func TestNativeDevice(t *testing.T) {
	r := run(t, nil)
	f := r.native(t, "weft_ib0", 0)
	guid, err := r.node.dir.Identity()
	if err != nil || f.a.Number() != 1 || f.a.NodeGUID != guid+2 {
		t.Errorf("function %d has GUID %v, the node %v, %v", f.a.Number(), f.a.NodeGUID, guid, err)
	}
	find := func(list []api.Degraded) string {
		for _, d := range list {
			if d.What == "port_not_active" || d.What == "device_disabled" {
				return d.Why
			}
		}
		return ""
	}
	if why := find(r.status().Degraded); why != "weft_ib0: port is INIT, no subnet manager has made it active" {
		t.Errorf("status: %q", why)
	}
	want := map[string]string{"ports/1/state": "2: INIT", "ports/1/phys_state": "5: LinkUp",
		"ports/1/link_layer": "InfiniBand",
		"ports/1/rate":       "100 Gb/sec (4X EDR)", "ports/1/lid": "0x0", "ports/1/pkeys/0": "0xffff", "ports/1/pkeys/31": "0x0000",
		"ports/1/gids/0": ib.MakeGID(ib.DefaultGIDPrefix, guid+3).String(), "node_guid": (guid +
			2).String(), "sys_image_guid": guid.String()}
	look := func() {
		t.Helper()
		got := map[string]string{}
		for name := range want {
			got[name] = r.file("weft_ib0", name)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	look()
	c := vhosttest.NewDriver(t, r.socketOf("weft_ib0"), vhosttest.Options{})
	events, err := c.CreateEVQ(t)
	if err != nil {
		t.Fatal(err)
	}
	r.manage(f, func(p *hca.Port) {
		p.State, p.LID, p.LMC, p.SMLID, p.SMSL, p.CapMask = ib.PortActive, 0x20, 2, 0x11, 3, 0x48
		p.PKeys = []ib.PKey{0xffff, 0x8005}
	})
	for _, want := range []ib.Event{ib.EventLIDChange, ib.EventPKeyChange, ib.EventSMChange, ib.EventPortActive} {
		expect(t, events, want)
	}
	for name, v := range map[string]string{"ports/1/state": "4: ACTIVE", "ports/1/lid": "0x20",
		"ports/1/lid_mask_count": "2", "ports/1/sm_lid": "0x11",
		"ports/1/sm_sl": "3", "ports/1/cap_mask": "0x00000048", "ports/1/pkeys/1": "0x8005"} {
		want[name] = v
	}
	delete(want, "ports/1/pkeys/31")
	look()
	raw, err := c.Control(abi.CmdQueryPortEx, abi.QueryPortEx{Port: 1}.Append(nil), abi.QueryPortExResultSize)
	if err != nil {
		t.Fatal(err)
	}
	p, err := abi.ParseQueryPortExResult(raw)
	wantPort := abi.QueryPortExResult{State: 4, MaxMTU: ib.MTU4096, ActiveMTU: ib.MTU4096, PhysState: 5, LinkLayer: 1,
		ActiveWidth: 2, ActiveSpeed: 32,
		LMC: 2, LID: 0x20, SMLID: 0x11, SMSL: 3, GIDTblLen: 8, PKeyTblLen: 2, MaxMsgSz: 1 << 31, PortCapFlags: 0x48, SubnetTimeout: 18}
	if d := cmp.Diff(wantPort, p); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if g, err := c.GID(0); err != nil || g.Type != abi.GIDTypeIB || g.GID != ib.MakeGID(ib.DefaultGIDPrefix,
		guid+3) || g.Valid != 1 {
		t.Errorf("GID 0: %+v, %v", g, err)
	}
	if why := find(r.status().Degraded); why != "" {
		t.Errorf("an active port is degraded: %s", why)
	}
	devs, err := api.Get(context.Background(), r.cli, api.ListDevices)
	if err != nil || len(devs) != 2 || devs[1].Name != "weft_ib0" || devs[1].Index != 1 ||
		devs[1].Ports[0].LID != 0x20 ||
		len(devs[1].Ports[0].GIDs) != 1 || len(devs[1].Ports[0].PKeys) != 2 {
		t.Errorf("%+v, %v", devs, err)
	}
}

// TestPlainFrontEndHasNoLIDs: what can state no LID gets no InfiniBand port.
func TestPlainFrontEndHasNoLIDs(t *testing.T) {
	r := run(t, nil)
	r.native(t, "weft_ib0", 8)
	if _, err := vhosttest.Connect(t, r.socketOf("weft_ib0"), vhosttest.Options{Plain: true}); err == nil {
		t.Error("a plain front-end was given an InfiniBand port")
	}
}

// TestDisable takes ports down under traffic and up again: queue pairs stay.
func TestDisable(t *testing.T) {
	t.Parallel()
	r := run(t, nil)
	f := r.native(t, "weft_ib0", 8)
	for _, dev := range []struct {
		f    *function
		a, b *client
	}{{f, r.nativeClient(t, f), r.nativeClient(t, f)}, {r.node.funcs.named(r.cfg.Device),
		r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})}} {
		dev.a.wait = 18 // 1 s, eight times: longer than whatever keeps this test from its processor
		pair(t, ib.RC, dev.a, dev.b)
		events, err := dev.a.CreateEVQ(t)
		if err != nil {
			t.Fatal(err)
		}
		mustWrite(t, dev.a, dev.b, 1, 100)
		r.node.editor.enable(dev.f, false)
		r.node.editor.enable(dev.f, false)
		expect(t, events, ib.EventPortDown)
		if s := r.file(dev.f.a.Name, "ports/1/state"); s != "1: DOWN" {
			t.Errorf("state %q", s)
		}
		s := abi.Send{WRID: 7, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
		s.SetRDMA(dev.b.at, dev.b.mr.RKey)
		dropped := r.counter(api.ScopeLane, "drop_port")
		if err := dev.a.qp.PostSend(s, []ib.SGE{{Addr: dev.a.at, Len: 8, LKey: dev.a.mr.LKey}}, nil); err != nil {
			t.Fatal(err)
		}
		eventually(t, "packets are dropped", func() bool { return r.counter(api.ScopeLane, "drop_port") > dropped })
		r.node.editor.enable(dev.f, true)
		if dev.f == f {
			if s := f.a.Port().State; s != ib.PortInit {
				t.Errorf("an InfiniBand port comes up in %v", s)
			}
			r.manage(f, func(p *hca.Port) { p.State = ib.PortActive })
		}
		expect(t, events, ib.EventPortActive)
		if list, err := dev.a.cq.Wait(1); err != nil || list[0].Status != 0 || list[0].WRID != 7 {
			t.Errorf("%+v, %v", list, err)
		}
		mustWrite(t, dev.a, dev.b, 2, 100)
	}
}

// plugs is a switchboard that records its calls.
type plugs struct {
	calls []string
	err   error
}

func (p *plugs) Plug(a *hca.Adapter, on bool) error {
	p.calls = append(p.calls, "plug "+a.Name+map[bool]string{true: "", false: " off"}[on])
	return p.err
}
func (p *plugs) Unplug(a *hca.Adapter) { p.calls = append(p.calls, "unplug "+a.Name) }
func (p *plugs) Power(list []*hca.Adapter, on bool) {
	for _, a := range list {
		p.calls = append(p.calls, map[bool]string{true: "on ", false: "off "}[on]+a.Name)
	}
}

// TestFunctionsComeAndGo adds and removes functions, one with a client.
func TestFunctionsComeAndGo(t *testing.T) {
	r := run(t, nil)
	n, board := r.node, &plugs{}
	n.editor.board = board
	f, v := r.native(t, "weft_ib0", 0), r.native(t, "vf", 0)
	if _, err := n.editor.add("vf", hca.DefaultLimits); !errors.Is(err, intent.ErrNameTaken) {
		t.Errorf("a name twice: %v", err)
	}
	for name, want := range map[string]error{"nobody": errNoFunction, "weft_ib0": errPhysical,
		r.cfg.Device: errPhysical} {
		if err := n.editor.remove(name); !errors.Is(err, want) {
			t.Errorf("removing %s: %v", name, err)
		}
	}
	n.editor.enable(v, false)
	n.editor.enable(v, true)
	c := vhosttest.NewDriver(t, r.socketOf("vf"), vhosttest.Options{})
	if err := n.editor.remove("vf"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.GetU64(abi.ReqGetFeatures); err == nil {
		t.Error("the client of a function that is gone still has it")
	}
	if _, err := os.Stat(r.socketOf("vf")); !os.IsNotExist(err) {
		t.Errorf("its socket: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.cfg.Dir, "tree/sys/class/infiniband/vf")); !os.IsNotExist(err) {
		t.Errorf("its files: %v", err)
	}
	if r.counter(api.ScopeNode, "session_end_"+vhost.Shutdown.Name()) != 1 {
		t.Error("the end of its session is not counted")
	}
	again := r.native(t, "vf", 0)
	if again.a.Number() != 3 || f.a.Number() != 1 {
		t.Errorf("numbers %d, %d", again.a.Number(), f.a.Number())
	}
	board.err = errors.New("no port is free")
	if _, err := n.editor.add("one too many", hca.DefaultLimits); !errors.Is(err, board.err) ||
		n.funcs.named("one too many") != nil || n.all.At(4) != nil {
		t.Errorf("no room in the switch: %v", err)
	}
	want := []string{"plug weft_ib0", "plug vf", "off vf", "on vf", "unplug vf", "plug vf", "plug one too many"}
	if d := cmp.Diff(want, board.calls); d != "" {
		t.Error(d)
	}
	if n := len(r.status().Devices); n != 3 {
		t.Errorf("%d devices", n)
	}
	n.editor.board = nil
}

// TestViolationsReachPrograms: violations that a lane counts appear in the port of programs.
func TestViolationsReachPrograms(t *testing.T) {
	r := manageable(t)
	f := r.node.funcs.named(firstNative)
	c := r.nativeClient(t, f)
	r.node.sub.Violated(f.a.Number(), hca.Violations{Count: 3}, hca.Violations{Count: 70000})
	r.node.sub.Violated(99, hca.Violations{Count: 3}, hca.Violations{})
	eventually(t, "the counts", func() bool {
		return f.a.Port().PKeyViolations == 3 &&
			f.a.Port().QKeyViolations == 0xffff
	})
	raw, err := c.Control(abi.CmdQueryPortEx, abi.QueryPortEx{Port: 1}.Append(nil), abi.QueryPortExResultSize)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := abi.ParseQueryPortExResult(raw); err != nil || p.BadPKeyCntr != 3 || p.QKeyViolCntr != 0xffff {
		t.Errorf("%v, %+v", err, p)
	}
}

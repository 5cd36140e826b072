// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/host/rundir"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// rdmaCard adds a card with a RoCE half, in a virtual Ethernet switch, and connects a driver to it.
func rdmaCard(t *testing.T, n *veswNode, v api.NewVM) (api.VM, *vhosttest.Driver) {
	t.Helper()
	v.RDMA = true
	vm := n.addVM(v)
	plugCard(t, n, vm)
	return vm, vhosttest.NewDriver(t, vm.Socket, vhosttest.Options{Plain: true})
}

// plugCard puts a card into a virtual Ethernet switch.
func plugCard(t *testing.T, n *veswNode, vm api.VM) {
	t.Helper()
	number := uint16(vm.Number)
	n.node.sub.Do(func() { n.node.vesw.Open = n.node.vesw.OpenSegment })
	eventually(t, "the card's port is in the subnet", func() bool {
		active := false
		n.node.sub.Do(func() {
			if p := n.node.sub.Port(number); p != nil {
				active = p.FabricPort().State == ib.PortActive
			}
		})
		return active
	})
	n.node.sub.Do(func() { n.node.sub.ServeEthernet(number, nil) })
	n.vport(number, 0, 5, 1500)
	eventually(t, "the card has a carrier", func() bool { return n.vm(vm.Name).Carrier })
}

// TestRDMACardJoinsLater: a card answers commands without a virtual Ethernet switch; when it joins one, it gives up an
// address that another card has there.
func TestRDMACardJoinsLater(t *testing.T) {
	n := veswPair(t)[0]
	_, first := rdmaCard(t, n, api.NewVM{Name: "web"})
	later := n.addVM(api.NewVM{Name: "db", RDMA: true})
	second := vhosttest.NewDriver(t, later.Socket, vhosttest.Options{Plain: true})
	err := errors.Join(addGID(first, 0, "10.9.0.1"), addGID(second, 0, "10.9.0.1"), addGID(second, 1, "10.9.0.2"))
	if err != nil {
		t.Fatal(err)
	}
	plugCard(t, n, later)
	if g := n.vm("db").RoCE.GIDs; len(g) != 1 || g[0].Address != "10.9.0.2" {
		t.Errorf("%+v", g)
	}
	if g := n.vm("web").RoCE.GIDs; len(g) != 1 {
		t.Errorf("%+v", g)
	}
}

// roceFeatures are the features that a driver of the RoCE half chooses.
const roceFeatures = 1<<abi.FeatureProtocol | 1<<abi.FeatureVersion1 | 1<<abi.FeatureRoCE | 1<<abi.FeatureCtrlVQ

// addGID has a driver give its card an address.
func addGID(d *vhosttest.Driver, index uint16, addr string) error {
	m := abi.AddGID{Index: index, GID: ib.GIDFromAddr(netip.MustParseAddr(addr))}
	_, err := d.Control(abi.CmdAddGID, m.Append(nil), 0)
	return err
}

// TestRDMACard: a card with a RoCE half belongs to its guest alone; the node lists what the guest made, and why
// commands were refused.
func TestRDMACard(t *testing.T) {
	n := veswPair(t)[0]
	for _, want := range []struct {
		v   api.NewVM
		why string
	}{
		{api.NewVM{Name: "web", RDMA: true, Packed: true}, "are split"},
		{api.NewVM{Name: "web", RDMA: true, Connect: "/x"}, "QEMU ends"},
		{api.NewVM{Name: "web", RDMA: true, QPs: 200}, "take 439 virtqueues, and vhost-user has 256"},
		{api.NewVM{Name: "web", RDMA: true, CQs: -1}, "must be positive"},
		{api.NewVM{Name: "web", QPs: 4}, "only a card with RDMA"},
	} {
		_, err := api.Call(t.Context(), n.cli, api.AddVM, want.v)
		if err == nil || !strings.Contains(err.Error(), want.why) {
			t.Errorf("%+v: %v", want.v, err)
		}
	}

	vm, d := rdmaCard(t, n, api.NewVM{Name: "web"})
	if d.Config.MaxRDMAQPs != api.DefaultVMQPs+2 || d.Config.MaxRDMACQs != api.DefaultVMCQs || vm.Rings() != 167 {
		t.Errorf("%+v, %d rings", d.Config, vm.Rings())
	}
	if _, err := os.Stat(filepath.Join(n.cfg.Dir, rundir.SocketDir, "web.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("programs of the host find a socket of the card: %v", err)
	}

	if err := addGID(d, 1, "10.9.0.1"); err != nil {
		t.Fatal(err)
	}
	pd, err := d.CreatePD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := d.CreateCQ(t, 16)
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.CreateQP(t, vhosttest.QPOptions{Type: ib.RC, PD: pd, Send: cq, Recv: cq})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.DestroyPD(pd); err == nil {
		t.Error("a protection domain in use was destroyed")
	}
	r := n.vm("web").RoCE
	if r == nil || !r.Negotiated || r.PDs != 1 || r.CQs != 1 || len(r.QPs) != 1 || r.QPs[0].QPN != q.Num ||
		len(r.GIDs) != 1 || r.GIDs[0].Address != "10.9.0.1" || r.GIDs[0].Index != 1 {
		t.Fatalf("%+v, queue pair %d", r, q.Num)
	}
	if len(r.Refused) != 1 || r.Refused[0].Command != "DESTROY_PD" || r.Refused[0].Why == "" {
		t.Errorf("%+v", r.Refused)
	}
	res, err := api.Get(t.Context(), n.cli, api.GetResources)
	if err != nil || len(res.QPs) != 1 || res.QPs[0].Device != "web" || res.QPs[0].PID != os.Getpid() {
		t.Errorf("%+v, %v", res.QPs, err)
	}

	functions, err := api.Get(t.Context(), n.cli, api.ListFunctions)
	i := slices.IndexFunc(functions, func(f api.Function) bool { return f.Name == "web" })
	if err != nil || i < 0 || functions[i].Quotas.MemoryBytes != guestMemory {
		t.Errorf("%+v, %v", functions, err)
	}

	// Another card in the same switch cannot take the address, nor one in another switch be kept from it.
	_, other := rdmaCard(t, n, api.NewVM{Name: "db"})
	if err := addGID(other, 0, "10.9.0.1"); err == nil {
		t.Error("a card took an address of another one")
	}
	if err := addGID(other, 0, "10.9.0.2"); err != nil {
		t.Error(err)
	}

	// The address goes with the guest.
	d.Close()
	eventually(t, "the guest is gone", func() bool { v := n.vm("web"); return !v.Guest && v.RoCE == nil })
	if err := addGID(other, 1, "10.9.0.1"); err != nil {
		t.Error(err)
	}
}

// TestRDMACardDriverBegins: an emulator does not report that a guest resets the device. A control queue that goes on
// where it stopped belongs to a machine that was paused: its objects stay. Another one belongs to a driver that begins.
func TestRDMACardDriverBegins(t *testing.T) {
	n := veswPair(t)[0]
	_, d := rdmaCard(t, n, api.NewVM{Name: "web"})
	objects := func() int {
		r := n.vm("web").RoCE
		return r.PDs + len(r.GIDs)
	}
	if _, err := d.CreatePD(); err != nil {
		t.Fatal(err)
	}
	if err := addGID(d, 0, "10.9.0.1"); err != nil {
		t.Fatal(err)
	}
	features := vhosttest.U64(roceFeatures)
	for _, anew := range []bool{false, true} {
		base, err := d.StopControl()
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Do(abi.ReqSetFeatures, features); err != nil {
			t.Fatal(err)
		}
		if err := d.StartControl(t, base, anew); err != nil {
			t.Fatal(err)
		}
		if k := objects(); anew == (k > 0) {
			t.Errorf("anew %v: %d objects", anew, k)
		}
		if _, err := d.CreatePD(); err != nil {
			t.Errorf("anew %v: %v", anew, err)
		}
	}
}

// brokenCard is a card with a driver, its queue of events and its queue pair, which is connected to itself.
func brokenCard(t *testing.T) (n *veswNode, d *vhosttest.Driver, ev *vhosttest.EVQ, q *vhosttest.QP) {
	n = veswPair(t)[0]
	_, d = rdmaCard(t, n, api.NewVM{Name: "web"})
	if _, err := d.Control(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(0)}.Append(nil), abi.ExtEnableSize); err != nil {
		t.Fatal(err)
	}
	pd, err := d.CreatePD()
	if err != nil {
		t.Fatal(err)
	}
	if ev, err = d.CreateEVQ(t); err != nil {
		t.Fatal(err)
	}
	cq, err := d.CreateCQ(t, 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := addGID(d, 0, "10.9.0.1"); err != nil {
		t.Fatal(err)
	}
	if q, err = d.CreateQP(t, vhosttest.QPOptions{Type: ib.RC, PD: pd, Send: cq, Recv: cq}); err != nil {
		t.Fatal(err)
	}
	self := vhosttest.Peer{QPN: ib.QPN(q.Num), GID: ib.GIDFromAddr(netip.MustParseAddr("10.9.0.1"))}
	if err := q.ConnectTo(self, 1, ib.MTU1024, 0); err != nil {
		t.Fatal(err)
	}
	return n, d, ev, q
}

// degradedBy returns the degraded state with a name, nil if the node does not have it.
func (n *veswNode) degradedBy(what string) *api.Degraded {
	for _, d := range n.status().Degraded {
		if d.What == what {
			return &d
		}
	}
	return nil
}

// TestRDMACardBroken: a guest keeps its session although its driver breaks the ring of events; the status of the device asks
// for a reset, the node's status is degraded, and the driver goes on after the reset.
func TestRDMACardBroken(t *testing.T) {
	n, d, ev, q := brokenCard(t)
	ev.SpoilRing()
	q.PostHostile(8, 100) // the event of it finds the fault
	degraded := func() bool { return n.degradedBy("vm_needs_reset") != nil }
	eventually(t, "the status is degraded", degraded)
	if st, err := d.GetU64(abi.ReqGetStatus); err != nil || st&abi.StatusNeedsReset == 0 {
		t.Errorf("status %#x, %v", st, err)
	}
	if err := d.Do(abi.ReqSetStatus, vhosttest.U64(0)); err != nil {
		t.Fatal(err)
	}
	if degraded() {
		t.Error("the status is degraded after the reset")
	}
	if st, err := d.GetU64(abi.ReqGetStatus); err != nil || st != 0 {
		t.Errorf("status %#x after the reset, %v", st, err)
	}
	if _, err := d.StopControl(); err != nil {
		t.Fatal(err)
	}
	if err := d.Do(abi.ReqSetFeatures, vhosttest.U64(roceFeatures)); err != nil {
		t.Fatal(err)
	}
	if err := d.StartControl(t, 0, true); err != nil {
		t.Fatal(err)
	}
	if _, err := d.CreatePD(); err != nil {
		t.Error(err)
	}
}

// TestRDMACardBrokenRing: a guest that breaks the ring of a queue pair keeps its device: that queue pair is in error, and
// the node's status names it until the guest destroys it.
func TestRDMACardBrokenRing(t *testing.T) {
	n, d, ev, q := brokenCard(t)
	q.PostHostile(8, 100)
	eventually(t, "the status is degraded", func() bool { return n.degradedBy("vm_broken_ring") != nil })
	w := n.degradedBy("vm_broken_ring")
	want := fmt.Sprintf("web: its send queue of queue pair %d is in error", q.Num)
	if !strings.HasPrefix(w.Why, want) || !strings.Contains(w.Why, "a buffer is not in the memory of the client") {
		t.Errorf("%+v, want %s", w, want)
	}
	for e := (abi.Event{}); e.Type != uint32(ib.EventQPFatal); {
		var err error
		if e, err = ev.Next(); err != nil {
			t.Fatal(err)
		}
		if e.Type == uint32(ib.EventQPFatal) && e.Object != q.Num {
			t.Errorf("%+v", e)
		}
	}
	if st, err := d.GetU64(abi.ReqGetStatus); err != nil || st&abi.StatusNeedsReset != 0 {
		t.Errorf("status %#x, %v", st, err)
	}
	if l := n.vm("web").RoCE.Broken; len(l) != 1 || l[0].Queue != fmt.Sprintf("send queue of queue pair %d", q.Num) {
		t.Errorf("%+v", l)
	}
	if _, err := d.CreatePD(); err != nil {
		t.Error(err)
	}
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	if w := n.degradedBy("vm_broken_ring"); w != nil {
		t.Errorf("after DESTROY_QP: %+v", w)
	}
}

// TestRDMACardRingFirst: a front-end that starts a ring of the RoCE half before it states features is refused. The node
// goes on.
func TestRDMACardRingFirst(t *testing.T) {
	n := veswPair(t)[0]
	vm := n.addVM(api.NewVM{Name: "web", RDMA: true})
	f, err := vhosttest.Dial(vm.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	m := virtiotest.NewMemory(t, 1<<20)
	r := virtiotest.NewRing(m, 64, false)
	const first = 3 // the first completion ring
	region := abi.VUMemReg{GPA: m.Base, Size: uint64(len(m.Bytes)), UserAddr: m.Base}
	addr := abi.VUVringAddr{Index: first, Desc: r.Desc, Used: r.Used, Avail: r.Avail}
	for _, s := range []struct {
		request uint32
		payload []byte
		fds     []int
	}{
		{abi.ReqSetProtocolFeatures, vhosttest.U64(1<<abi.ProtoReplyAck | 1<<abi.ProtoConfigureMemSlots), nil},
		{abi.ReqAddMemReg, region.Append(nil), []int{m.FD}},
		{abi.ReqSetVringNum, abi.VUVringState{Index: first, Num: uint32(r.Num)}.Append(nil), nil},
		{abi.ReqSetVringAddr, addr.Append(nil), nil},
		{abi.ReqSetVringEnable, abi.VUVringState{Index: first, Num: 1}.Append(nil), nil},
	} {
		if err := f.Do(s.request, s.payload, s.fds...); err != nil {
			t.Fatalf("request %d: %v", s.request, err)
		}
	}
	if err := f.Do(abi.ReqSetVringKick, vhosttest.U64(first), vhosttest.Eventfd(t)); err == nil {
		t.Error("a ring started before there were features")
	}
	f.Close()
	eventually(t, "the front-end is gone", func() bool { return !n.vm("web").Guest })
}

// TestRDMACardHalts: while an emulator has stopped the device, nothing writes the memory of the guest: after a reset
// another kernel may use it. What the guest made goes on after a pause.
func TestRDMACardHalts(t *testing.T) {
	n := veswPair(t)[0]
	_, d := rdmaCard(t, n, api.NewVM{Name: "web"})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(addGID(d, 0, "10.9.0.1"))
	pd, err := d.CreatePD()
	must(err)
	cq, err := d.CreateCQ(t, 16)
	must(err)
	bytes, at := d.Buffer(4096)
	mr, err := d.RegMR(pd, at, 4096, ib.LocalWrite|ib.RemoteWrite)
	must(err)
	var qps [2]*vhosttest.QP
	for i := range qps {
		qps[i], err = d.CreateQP(t, vhosttest.QPOptions{Type: ib.UC, PD: pd, Send: cq, Recv: cq})
		must(err)
	}
	self := ib.GIDFromAddr(netip.MustParseAddr("10.9.0.1"))
	for i, q := range qps {
		must(q.ConnectTo(vhosttest.Peer{QPN: ib.QPN(qps[1-i].Num), GID: self}, 0, ib.MTU1024, 0))
	}
	// write copies the octet at from to the one at to, and waits for the completion.
	write := func(from, to uint64) {
		t.Helper()
		must(qps[0].PostSend(abi.Send{Opcode: uint8(ib.WRWrite), Flags: ib.Signaled,
			Arg: [4]uint64{at + to, uint64(mr.RKey)}}, []ib.SGE{{Addr: at + from, Len: 1, LKey: mr.LKey}}, nil))
		done, err := cq.Wait(1)
		if err != nil || done[0].Status != 0 {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	bytes[0] = 7
	write(0, 1)
	base, err := d.StopControl()
	must(err)
	write(0, 2)
	must(d.StartControl(t, base, false))
	write(0, 3)
	if [4]byte(bytes) != [4]byte{7, 7, 0, 7} {
		t.Errorf("octets %v: the second write came while the device was stopped", bytes[:4])
	}
}

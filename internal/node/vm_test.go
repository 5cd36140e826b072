// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
	"weft/internal/proto/ether/ethertest"
	"weft/internal/proto/ib"
)

// vm returns what the node reports of a virtual machine.
func (r *running) vm(name string) api.VM {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListVMs)
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(v api.VM) bool { return v.Name == name })
	if i < 0 {
		return api.VM{}
	}
	return list[i]
}

func (r *running) addVM(v api.NewVM) api.VM {
	r.t.Helper()
	got, err := api.Call(context.Background(), r.cli, api.AddVM, v)
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

// downs counts how often the node's trunks went down.
func (r *running) downs() (k uint64) {
	r.t.Helper()
	list, err := api.Get(context.Background(), r.cli, api.ListTrunks)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, t := range list {
		k += t.Downs
	}
	return k
}

// TestVM: the rings of a guest are a port of a VESW; another node's port gets its frames, cut and with
// checksums, and it gets those of that one.
func TestVM(t *testing.T) {
	nodes := veswPair(t)
	n, far := nodes[0], nodes[1]
	n.node.sub.Do(func() { n.node.vesw.Open = n.node.vesw.OpenSegment })
	v := n.addVM(api.NewVM{Name: "web", MAC: "52:54:00:00:00:09"})
	if v.Number != 3 || v.Guest || !strings.Contains(v.Reason, v.Socket) || v.Carrier ||
		v.CarrierReason != "it is in no VESW" || v.Queues != 1 || v.PortGUID == "" {
		t.Errorf("%+v", v)
	}
	if s := n.status(); len(s.VMs) != 1 || !slices.ContainsFunc(s.Notices, func(d api.Degraded) bool {
		return d.What == "vm_without_guest" && strings.HasPrefix(d.Why, "web: no emulator")
	}) || !slices.ContainsFunc(s.Notices, func(d api.Degraded) bool {
		return d.What == "vm_without_vesw" && strings.HasPrefix(d.Fix, "weft vesw port add NAME "+v.PortGUID)
	}) {
		t.Errorf("%+v %+v", s.VMs, s.Notices)
	}
	number := uint16(v.Number)
	eventually(t, "its port is active", func() bool { return n.node.funcs.named("web").a.Port().State == ib.PortActive })
	n.node.sub.Do(func() { n.node.sub.ServeEthernet(number, nil) })
	n.vport(number, 0, 5, 9000)
	far.vport(1, 0, 5, 9000)
	there := far.made(0)
	far.forwards("plug0")
	eventually(t, "the card has a carrier", func() bool { return n.vm("web").Carrier })
	if v := n.vm("web"); v.VESWNumber != 5 || v.VPort != 0 || v.MTU != 9000 {
		t.Errorf("%+v", v)
	}

	guest, err := ethdevtest.NewGuest(t, v.Socket,
		ethdevtest.Options{Features: 1<<abi.FeatureMrgRxbuf | 1<<abi.FeatureCsum | 1<<abi.FeatureHostTSO4 |
			1<<abi.FeatureGuestCsum | 1<<abi.FeatureGuestTSO4})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guest runs", func() bool {
		v := n.vm("web")
		return v.Guest && v.Running &&
			v.PID == os.Getpid()
	})
	if d := n.status().Notices; slices.ContainsFunc(d,
		func(d api.Degraded) bool { return d.What == "vm_without_guest" }) {
		t.Errorf("%+v", d)
	}

	own := [6]byte{0x52, 0x54, 0, 0, 0, 9}
	f, o := ethertest.TCPSegment(far.mac(1, 5), own, 20000, 1460)
	// Where a node gets no processor for long its trunk is down for a moment and
	// takes frames along: then they are sent again.
	arrives := func(send func(), arrived func(wait time.Duration) bool) bool {
		t.Helper()
		for {
			was, began := n.downs(), time.Now()
			send()
			for time.Since(began) < limit/4 || time.Since(began) < limit && n.downs() == was {
				if arrived(limit / 20) {
					return true
				}
			}
			if n.downs() == was {
				return false
			}
			t.Logf("trunks went down %d times meanwhile: once more", n.downs()-was)
		}
	}
	var got [][]byte
	whole := arrives(func() {
		got = nil
		if err := guest.TX[0].Send([][]byte{f}, []ether.Offload{o}); err != nil {
			t.Fatal(err)
		}
	}, func(wait time.Duration) bool {
		for end := time.Now().Add(wait); time.Now().Before(end) &&
			len(ethertest.Payloads(t, got)) != 20000; time.Sleep(time.Millisecond) {
			came, _ := there.came()
			got = append(got, came...)
		}
		return len(ethertest.Payloads(t, got)) == 20000
	})
	if !whole {
		for _, node := range nodes {
			list, err := api.Call(context.Background(), node.cli, api.ListVESWCounters, "")
			t.Log(err, slices.DeleteFunc(list, func(c api.Counter) bool { return c.Value == 0 }))
		}
		t.Fatalf("%d octets of the segment arrive", len(ethertest.Payloads(t, got)))
	}
	if !bytes.Equal(ethertest.Payloads(t, got), f[54:]) {
		t.Error("other octets arrive")
	}
	if err := guest.TX[0].Done(); err != nil {
		t.Error(err)
	}
	gets := func(guest *ethdevtest.Guest, frame []byte, off ether.Offload) {
		t.Helper()
		if !arrives(func() { there.send(frame, off) }, func(wait time.Duration) bool {
			r, err := guest.RX[0].Recv(wait)
			return err == nil && len(r.Frame) == len(frame) && bytes.Equal(r.Frame[54:], frame[54:])
		}) {
			t.Fatalf("a frame of %d octets does not arrive", len(frame))
		}
	}
	// Its own MAC is not that of its LID: without a manager that distributes it, frames are flooded or dropped; the one
	// that the manager gave the port is in the destination.
	back, o := ethertest.TCPSegment(n.mac(number, 5), far.mac(1, 5), 5000, 9999)
	gets(guest, back, o)

	// A card has one port.
	n.vport(number, 1, 6, 1500)
	eventually(t, "another port is refused", func() bool { return n.logs.count("the virtual machine's card is in another VESW") > 0 })

	// The guest leaves, and another comes; the port stays as it is.
	guest.Close()
	eventually(t, "the guest is gone", func() bool { v := n.vm("web"); return !v.Guest && v.Carrier })
	again, err := ethdevtest.NewGuest(t, v.Socket, ethdevtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gets(again, back[:1000:1000], ether.Offload{})
	if v := n.vm("web"); v.Sessions != 2 {
		t.Errorf("%+v", v)
	}

	// A guest that shrinks its memory loses its session; no other session ends.
	fd, err := unix.MemfdCreate("shrinks", unix.MFD_CLOEXEC)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Ftruncate(fd, 4096)
	}
	const gpa = 0x10_0000_0000
	if err == nil {
		err = again.Do(abi.ReqAddMemReg, abi.VUMemReg{GPA: gpa, Size: 4096, UserAddr: gpa}.Append(nil), fd)
	}
	if err == nil {
		err = unix.Ftruncate(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	faults, ends := n.counter(api.ScopeLane, "faults"), n.counter(api.ScopeNode, "session_end_broken_ring")
	again.TX[0].Raw([]virtiotest.Buf{{GPA: gpa, Len: 1000}}, nil)
	eventually(t, "the session ends", func() bool { return !n.vm("web").Guest })
	if n.counter(api.ScopeLane, "faults") != faults+1 || n.counter(api.ScopeNode, "session_end_broken_ring") != ends+1 {
		t.Error("the fault, or the end of the session, is not counted")
	}
	third, err := ethdevtest.NewGuest(t, v.Socket, ethdevtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gets(third, back[:1000:1000], ether.Offload{})

	if err := api.Do(t.Context(), n.cli, api.DeleteFunction, "web"); !isInvalid(err) || !strings.Contains(err.Error(),
		"weft vm del web") {
		t.Errorf("%v", err)
	}
	if err := api.Do(t.Context(), n.cli, api.DeleteVM, "web"); err != nil {
		t.Fatal(err)
	}
	if v := n.vm("web"); v.Name != "" || n.node.funcs.named("web") != nil {
		t.Errorf("%+v", v)
	}
	if _, err := os.Lstat(v.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
	if err := api.Do(t.Context(), n.cli, api.DeleteVM, "web"); err == nil || !strings.Contains(err.Error(),
		"there is no virtual machine web") {
		t.Errorf("%v", err)
	}
}

func isInvalid(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Code == api.CodeInvalid
}

// TestVMsAreKept: cards are there after the node starts again, with their addresses and sockets, and
// a card that connects to the emulator's socket is connected again.
func TestVMsAreKept(t *testing.T) {
	t.Parallel()
	r := run(t, func(c *config.Config) { c.Fabric, c.IPoIB = true, false })
	path := filepath.Join(r.cfg.Dir, "qemu.sock")
	ln, err := unixListener(path)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ln)
	a := r.addVM(api.NewVM{Name: "a", Queues: 4, Packed: true, Memory: "256M"})
	b := r.addVM(api.NewVM{Name: "b", Connect: path})
	if !a.Kept || a.MAC == b.MAC || !strings.HasPrefix(a.MAC, "52:54:00:") {
		t.Errorf("%+v %+v", a, b)
	}
	eventually(t, "the node connects", func() bool { return r.vm("b").Guest })
	for _, v := range []api.NewVM{{Name: "a"}, {Name: firstNative}, {Name: "c", Socket: a.Socket},
		{Name: "c", Connect: path},
		{Name: "c", Socket: filepath.Join(r.cfg.Dir, "identity")}, {Name: "c", Socket: "/nowhere/at/all"}, {Name: "c",
			Memory: "lots"}} {
		if _, err := api.Call(t.Context(), r.cli, api.AddVM, v); !isInvalid(err) && code(err) != api.CodeConflict {
			t.Errorf("%+v: %v", v, err)
		}
	}
	r.end()
	r = r.again(func(c *config.Config) { c.IPoIB = false })
	for _, was := range []api.VM{a, b} {
		now := r.vm(was.Name)
		if now.NewVM != was.NewVM || now.Number != was.Number || now.PortGUID != was.PortGUID || !now.Kept {
			t.Errorf("%+v became %+v", was, now)
		}
	}
	eventually(t, "the node connects again", func() bool { return r.vm("b").Guest })
	if _, err := ethdevtest.NewGuest(t, a.Socket, ethdevtest.Options{Pairs: 4,
		Features: 1 << abi.FeaturePacked}); err != nil {
		t.Error(err)
	}
	if err := api.Do(t.Context(), r.cli, api.DeleteVM, "b"); err != nil {
		t.Error(err)
	}
	r.end()
	r = r.again(func(c *config.Config) { c.IPoIB = false })
	if r.vm("a").Name == "" || r.vm("b").Name != "" {
		t.Errorf("%+v %+v", r.vm("a"), r.vm("b"))
	}
}

// unixListener listens and never accepts: a client's connect succeeds.
func unixListener(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, 8)
	}
	return fd, err
}

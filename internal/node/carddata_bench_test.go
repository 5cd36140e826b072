// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// writer is one end of a connected pair. The node maps its memory.
type writer struct {
	*vhosttest.QP
	cq   *vhosttest.CQ
	at   uint64
	mr   abi.MRResult
	mem  []byte
	d    *vhosttest.Driver
	peer *writer
}

const writerMemory = 4 << 20

// newWriter makes a queue pair of a driver.
func newWriter(tb testing.TB, d *vhosttest.Driver) *writer {
	tb.Helper()
	w := &writer{d: d}
	pd, err := d.CreatePD()
	if err == nil {
		w.cq, err = d.CreateCQ(tb, 64)
	}
	if err == nil {
		w.mem, w.at = d.Buffer(writerMemory)
		w.mr, err = d.RegMR(pd, w.at, writerMemory, ib.LocalWrite|ib.RemoteWrite|ib.RemoteRead)
	}
	if err == nil {
		w.QP, err = d.CreateQP(tb, vhosttest.QPOptions{Type: ib.RC, PD: pd, Send: w.cq, Recv: w.cq})
	}
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// cardNode is a node with a virtual Ethernet switch "lab". change changes its settings; nil: they stay.
func cardNode(tb testing.TB, change func(*config.Config)) *running {
	tb.Helper()
	r := run(tb, func(c *config.Config) {
		c.Fabric, c.Store, c.TrunkPort, c.Lanes = true, config.StoreMemory, condtest.Port(tb), 1
		if change != nil {
			change(c)
		}
	})
	eventually(tb, "the switch is there", func() bool {
		_, err := api.Call(tb.Context(), r.cli, api.CreateVESW, api.VESWCreate{Name: "lab"})
		return err == nil
	})
	return r
}

// card adds a card to a switch, with an address, and connects a driver. peer is how to reach its queue pair.
func (r *running) card(tb testing.TB, vesw, name, addr string, features ...uint64) (w *writer, peer vhosttest.Peer) {
	tb.Helper()
	vm := r.addVM(api.NewVM{Name: name, RDMA: true, VESW: vesw})
	o := vhosttest.Options{Plain: true, MemSize: 2 * writerMemory}
	for _, f := range features {
		o.Features |= f
	}
	d := vhosttest.NewDriver(tb, vm.Socket, o)
	eventually(tb, name+" has a carrier", func() bool { return r.vm(name).Carrier })
	if err := addGID(d, 0, addr); err != nil {
		tb.Fatal(err)
	}
	mac, err := api.ParseMAC(vm.MAC)
	if err != nil {
		tb.Fatal(err)
	}
	w = newWriter(tb, d)
	return w, vhosttest.Peer{QPN: ib.QPN(w.Num), GID: ib.GIDFromAddr(netip.MustParseAddr(addr)), DMAC: mac, PSN: 1}
}

// cardPair adds two cards to the switch, with a connected queue pair each. Each route states the MAC of the other card,
// as the driver of a guest does.
func (r *running) cardPair(tb testing.TB, features ...uint64) (a, b *writer) {
	tb.Helper()
	var w [2]*writer
	var peers [2]vhosttest.Peer
	for i, addr := range []string{"10.9.0.1", "10.9.0.2"} {
		w[i], peers[i] = r.card(tb, "lab", []string{"web", "db"}[i], addr, features...)
	}
	for i := range w {
		w[i].peer = w[1-i]
		if err := w[i].ConnectTo(peers[1-i], 1, ib.MTU1024, 0); err != nil {
			tb.Fatal(err)
		}
	}
	return w[0], w[1]
}

// benchWrites measures WRITEs of size octets from a to its peer, of which depth are outstanding.
func benchWrites(b *testing.B, w *writer, size, depth int) {
	s := abi.Send{Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(w.peer.at, w.peer.mr.RKey)
	list := []ib.SGE{{Addr: w.at, Len: uint32(size), LKey: w.mr.LKey}}
	out := 0
	reap := func(until int) {
		for end := time.Now().Add(10 * time.Second); out > until; {
			c, err := w.cq.Poll(depth)
			if err != nil || len(c) > 0 && c[0].Status != 0 || time.Now().After(end) {
				b.Fatal(c, err, out)
			}
			if out -= len(c); len(c) == 0 {
				runtime.Gosched()
			}
		}
	}
	b.SetBytes(int64(size))
	before := cpuTime(b)
	for b.Loop() {
		if out == depth {
			reap(depth / 2)
		}
		if err := w.PostSend(s, list, nil); err != nil {
			b.Fatal(err)
		}
		out++
	}
	reap(0)
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// cpuTime is the processor time of the process: of the node, and of the driver, which polls.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchSizes(b *testing.B, w *writer) {
	b.Run("64K", func(b *testing.B) { benchWrites(b, w, 64<<10, 16) })
	b.Run("8", func(b *testing.B) { benchWrites(b, w, 8, 32) })
}

// BenchmarkCardWrite is WRITEs between cards of one node. Copy is their limit; Program is the same between two clients
// of the host's device.
func BenchmarkCardWrite(b *testing.B) {
	b.Run("Card", func(b *testing.B) {
		w, _ := cardNode(b, nil).cardPair(b)
		benchSizes(b, w)
	})
	b.Run("Program", func(b *testing.B) {
		r := run(b, func(c *config.Config) { c.Lanes = 1 })
		x, y := r.client(b, vhosttest.Options{}), r.client(b, vhosttest.Options{})
		pair(b, ib.RC, x, y)
		w := &writer{QP: x.qp, cq: x.cq, at: x.at, mr: x.mr, peer: &writer{at: y.at, mr: y.mr}}
		benchSizes(b, w)
	})
	b.Run("Copy", func(b *testing.B) {
		from, to := make([]byte, writerMemory), make([]byte, writerMemory)
		b.SetBytes(64 << 10)
		for b.Loop() {
			copy(to[:64<<10], from)
		}
	})
}

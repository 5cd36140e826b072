// SPDX-License-Identifier: Apache-2.0

package ethdev_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// crosses sends one frame from ring to ring.
func crosses(t testing.TB, from, to *ethdevtest.Queue, n int, seed byte) {
	t.Helper()
	want := frame(n, seed)
	if err := from.Send([][]byte{want}, []ether.Offload{{}}); err != nil {
		t.Fatal(err)
	}
	got, err := to.Recv(limit)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Frame, want) {
		t.Fatalf("got %d octets that differ", len(got.Frame))
	}
}

// write gives a frame to a port and returns whether it was taken.
func (w *world) write(i int, f []byte) (taken bool) {
	w.hub.Do(func() { taken = w.port[i].WriteBatch([][]byte{f}, []ether.Offload{{}}) == 0 })
	return taken
}

// TestReset: single rings are stopped and begin anew, with another size and other memory, while the
// others go on (VIRTIO_F_RING_RESET).
func TestReset(t *testing.T) {
	for _, f := range []uint64{mrg, mrg | event, mrg | packed | event} {
		w := newWorld(t, 2)
		o := ethdevtest.Options{Features: f | 1<<abi.FeatureRingReset}
		a, b := w.guest(0, o), w.guest(1, o)
		crosses(t, a.TX[0], b.RX[0], 100, 1)
		for i, num := range []int{16, 256, 64} {
			for _, q := range []*ethdevtest.Queue{a.TX[0], b.RX[0], b.TX[0], a.RX[0]} {
				if _, err := q.Stop(); err != nil {
					t.Fatal(err)
				}
				q.Resize(num)
				if err := q.Start(); err != nil {
					t.Fatal(err)
				}
				// The other direction did not stop.
				if q == a.TX[0] || q == b.RX[0] {
					crosses(t, b.TX[0], a.RX[0], 1000, byte(i))
				}
			}
			for k := range 2 * num {
				crosses(t, a.TX[0], b.RX[0], 60+k, byte(k))
				crosses(t, b.TX[0], a.RX[0], 60+k, byte(k))
			}
		}
	}
}

// TestPause: a ring that is stopped and resumed at the state it returned continues with the next
// element; no frame passes in between.
func TestPause(t *testing.T) {
	for _, f := range []uint64{mrg, mrg | packed} {
		w := newWorld(t, 2)
		o := ethdevtest.Options{Features: f, Num: 8}
		a, b := w.guest(0, o), w.guest(1, o)
		for round := range 10 {
			for k := range 3 {
				crosses(t, a.TX[0], b.RX[0], 2500, byte(k))
			}
			tx, err := a.TX[0].Stop()
			if err != nil {
				t.Fatal(err)
			}
			rx, err := b.RX[0].Stop()
			if err != nil {
				t.Fatal(err)
			}
			if w.write(1, frame(60, 0)) {
				t.Fatal("a stopped ring took a frame")
			}
			want := frame(200, byte(round))
			if err := a.TX[0].Send([][]byte{want}, []ether.Offload{{}}); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(b.RX[0].Resume(rx), a.TX[0].Resume(tx)); err != nil {
				t.Fatal(err)
			}
			got, err := b.RX[0].Recv(limit)
			if err != nil || !bytes.Equal(got.Frame, want) {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
}

// TestEnable: a disabled transmit ring is not read, a disabled receive ring gets nothing.
func TestEnable(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.guest(0, ethdevtest.Options{Features: mrg}), w.guest(1, ethdevtest.Options{Features: mrg})
	if err := errors.Join(a.TX[0].Enable(false), b.RX[0].Enable(false)); err != nil {
		t.Fatal(err)
	}
	if w.write(1, frame(60, 0)) {
		t.Error("a disabled ring took a frame")
	}
	want := frame(99, 9)
	if err := a.TX[0].Send([][]byte{want}, []ether.Offload{{}}); err != nil {
		t.Fatal(err)
	}
	w.hub.Quiesce()
	if s := w.stats(0); s.TxFrames != 0 {
		t.Error("a disabled ring was read")
	}
	if err := errors.Join(b.RX[0].Enable(true), a.TX[0].Enable(true)); err != nil {
		t.Fatal(err)
	}
	got, err := b.RX[0].Recv(limit)
	if err != nil || !bytes.Equal(got.Frame, want) {
		t.Fatal(err)
	}
}

// TestHostileFrames: what is no frame is refused under its name and used, and costs nothing
// else.
func TestHostileFrames(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.guest(0, ethdevtest.Options{Features: mrg}), w.guest(1, ethdevtest.Options{Features: mrg})
	mem := a.Mem.Alloc(70000, 64)
	buf := func(n int) virtiotest.Buf { return virtiotest.Buf{GPA: mem, Len: n} }
	clear(a.Mem.At(mem, 70000))
	q := a.TX[0]
	for _, n := range []int{0, 1, ethdevtest.HeaderLen, ethdevtest.HeaderLen + 13} {
		q.Raw([]virtiotest.Buf{buf(n)}, nil)
	}
	q.Raw([]virtiotest.Buf{buf(ethdevtest.HeaderLen + ether.MaxFrame + 1)}, nil)
	q.Raw([]virtiotest.Buf{buf(ethdevtest.HeaderLen + 60)}, []virtiotest.Buf{buf(1)})
	if err := q.Done(); err != nil {
		t.Fatal(err)
	}
	if s := w.stats(0); s.TxShort != 4 || s.TxLong != 1 || s.TxWritable != 1 || s.TxFrames != 0 || s.BrokenRings != 0 {
		t.Errorf("%+v", s)
	}
	// The header may lie anywhere, in pieces.
	f := frame(80, 5)
	e := ethdevtest.Element(f, ether.Offload{})
	at := a.Mem.Alloc(len(e), 1)
	copy(a.Mem.At(at, len(e)), e)
	q.Raw([]virtiotest.Buf{{GPA: at, Len: 5}, {GPA: at + 5, Len: 6}, {GPA: at + 11, Len: 30},
		{GPA: at + 41, Len: len(e) - 41}}, nil)
	if got, err := b.RX[0].Recv(limit); err != nil || !bytes.Equal(got.Frame, f) {
		t.Fatal(err)
	}
	// The receiver of the frame drops it for an invalid offload.
	if err := q.Send([][]byte{f}, []ether.Offload{{Flags: 1, GSO: 1, CsumStart: 65535, CsumOffset: 65535,
		GSOSize: 1}}); err != nil {
		t.Fatal(err)
	}
	w.until("the frame is refused", func() bool { return w.hub.Refused == 1 })
	crosses(t, q, b.RX[0], 1000, 3)
}

// TestBrokenRing: a broken ring is stopped and the driver notified; the other rings of the guest and
// other guests continue; a new session works.
func TestBrokenRing(t *testing.T) {
	const bad = 1 << 50
	for name, tc := range map[string]struct {
		transmit bool
		damage   func(g *ethdevtest.Guest, w *world)
	}{
		"transmit": {true, func(g *ethdevtest.Guest, w *world) {
			g.TX[0].Raw([]virtiotest.Buf{{GPA: bad, Len: 100}},
				nil)
		}},
		"receive": {false, func(g *ethdevtest.Guest, w *world) {
			g.RX[0].Raw(nil, []virtiotest.Buf{{GPA: bad, Len: 2048}})
			w.write(0, frame(60, 1))
		}},
		"receive, readable": {false, func(g *ethdevtest.Guest, w *world) {
			g.RX[0].Raw([]virtiotest.Buf{{GPA: g.Mem.Base, Len: 100}}, nil)
			w.write(0, frame(60, 1))
		}},
		"receive, too short": {false, func(g *ethdevtest.Guest, w *world) {
			g.RX[0].Raw(nil, []virtiotest.Buf{{GPA: g.Mem.Base, Len: ethdevtest.HeaderLen - 1}})
			w.write(0, frame(60, 1))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range []uint64{mrg, mrg | packed} {
				w := newWorld(t, 2)
				a := w.guest(0, ethdevtest.Options{Features: f, NoFill: true})
				b := w.guest(1, ethdevtest.Options{Features: mrg})
				tc.damage(a, w)
				q := a.RX[0]
				if tc.transmit {
					q = a.TX[0]
				}
				if !ethdevtest.Await(q.Err, limit) {
					t.Fatal("the driver is not told")
				}
				if st, err := a.GetU64(abi.ReqGetStatus); err != nil || st&abi.StatusNeedsReset == 0 {
					t.Errorf("status %#x, %v", st, err)
				}
				if s := w.stats(0); s.BrokenRings != 1 {
					t.Errorf("%+v", s)
				}
				if !tc.transmit {
					crosses(t, a.TX[0], b.RX[0], 100, 1) // the other ring of the pair
				}
				if err := b.Do(abi.ReqSetOwner, nil); err != nil {
					t.Error(err) // the neighbour's session
				}
				if err := a.Do(abi.ReqSetOwner, nil); err != nil {
					t.Error(err) // and its own
				}
			}
		})
	}
}

// TestRecovery: after a reset a device with a broken ring works, whichever ring broke.
func TestRecovery(t *testing.T) {
	const bad = 1 << 50
	for _, f := range []uint64{mrg, mrg | packed} {
		for i := range 6 {
			w := newWorld(t, 2)
			a := w.guest(0, ethdevtest.Options{Features: f | 1<<abi.FeatureCtrlRX, Control: true, NoFill: true})
			b := w.guest(1, ethdevtest.Options{Features: mrg})
			q := []*ethdevtest.Queue{a.RX[0], a.TX[0], a.CVQ}[i/2]
			q.Raw([]virtiotest.Buf{{GPA: bad, Len: 100}}, []virtiotest.Buf{{GPA: a.Mem.Base, Len: 1}})
			w.write(0, frame(60, 1))
			if !ethdevtest.Await(q.Err, limit) {
				t.Fatal("the driver is not told")
			}
			if st, err := a.GetU64(abi.ReqGetStatus); st != 0x4f || err != nil {
				t.Errorf("status %#x, %v", st, err)
			}
			reset := func() error { return a.Do(abi.ReqSetStatus, vhosttest.U64(0)) }
			if i%2 == 1 {
				reset = func() error { return a.Do(abi.ReqResetDevice, nil) }
			}
			if err := reset(); err != nil {
				t.Fatal(err)
			}
			rings := []*ethdevtest.Queue{a.RX[0], a.TX[0], a.CVQ}
			for _, q := range rings {
				if _, err := q.Stop(); err != nil {
					t.Fatal(err)
				}
				q.Resize(64)
			}
			for _, m := range []struct {
				request uint32
				value   uint64
			}{{abi.ReqSetStatus, 3}, {abi.ReqSetFeatures, a.Opt.Features}, {abi.ReqSetStatus, 0x0b}} {
				if err := a.Do(m.request, vhosttest.U64(m.value)); err != nil {
					t.Fatal(err)
				}
			}
			buffers := a.Mem.Alloc(4096, 4096)
			for _, q := range rings {
				if err := q.Start(); err != nil {
					t.Fatal(err)
				}
			}
			a.RX[0].Post(virtiotest.Buf{GPA: buffers, Len: 4096})
			if err := a.Do(abi.ReqSetStatus, vhosttest.U64(0x0f)); err != nil {
				t.Fatal(err)
			}
			if st, err := a.GetU64(abi.ReqGetStatus); st != 0x0f || err != nil {
				t.Errorf("status %#x, %v", st, err)
			}
			crosses(t, a.TX[0], b.RX[0], 100, 1)
			crosses(t, b.TX[0], a.RX[0], 100, 2)
			if ack, err := a.Command(abi.ClassRX, 0, []byte{1}); ack != abi.AckOK || err != nil {
				t.Error(ack, err)
			}
			if s := w.stats(0); s.BrokenRings != 1 {
				t.Errorf("%+v", s)
			}
		}
	}
}

// TestReconnect: a guest that goes and comes finds its port as it was, and leaves nothing.
func TestReconnect(t *testing.T) {
	w := newWorld(t, 2)
	b := w.guest(1, ethdevtest.Options{Features: mrg})
	before := 0
	for i := range 20 {
		a := w.guest(0, ethdevtest.Options{Features: []uint64{mrg, mrg | packed | event}[i%2], MemSize: 1 << 20})
		crosses(t, a.TX[0], b.RX[0], 100+i, byte(i))
		crosses(t, b.TX[0], a.RX[0], 3000+i, byte(i))
		a.Close()
		if err := <-w.port[0].ends; err != vhost.Gone {
			t.Fatalf("ended: %v", err)
		}
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		// A guest's own descriptors live until the end of the test: memory and three of each ring.
		if n := len(list) - 7*(i+1); i == 0 {
			before = n
		} else if n > before {
			t.Fatalf("round %d: %d descriptors, %d at first", i, n, before)
		}
	}
}

// TestOneFrontEnd: a second front-end waits for the first, and is refused while that lives.
func TestOneFrontEnd(t *testing.T) {
	w := newWorld(t, 1)
	a := w.guest(0, ethdevtest.Options{Features: mrg})
	if _, err := ethdevtest.NewGuest(t, w.port[0].path, ethdevtest.Options{}); !vhosttest.Closed(err) {
		t.Errorf("a second front-end: %v", err)
	}
	if err := <-w.port[0].ends; !errors.Is(err, vhost.NoDevice) {
		t.Errorf("ended: %v", err)
	}
	if err := a.Do(abi.ReqSetOwner, nil); err != nil {
		t.Error(err)
	}
}

// TestResumeAfterLoss: the back-end ends without notice, and the front-end restarts as QEMU does: at
// the index of the used ring or, for a packed ring, at the start, since it has no other state.
func TestResumeAfterLoss(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []uint64{mrg | event, mrg | packed | event} {
		w := newWorld(t, 2)
		path := filepath.Join(dir, fmt.Sprint(f))
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetDeadline(time.Now().Add(time.Minute))
		client := vhost.Dial(path, vhost.Config{New: func(s *vhost.Session) (vhost.Device, error) {
			d, err := w.port[0].Attach(s)
			if err != nil {
				return vhost.Device{}, err
			}
			return d.Parts(), nil
		}})
		accept := func() *vhosttest.Front {
			c, err := ln.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			return &vhosttest.Front{Conn: c}
		}
		a, err := ethdevtest.Begin(t, accept(), ethdevtest.Options{Features: f, Num: 16})
		if err != nil {
			t.Fatal(err)
		}
		b := w.guest(1, ethdevtest.Options{Features: mrg})
		for round := range 4 {
			for k := range 11 {
				crosses(t, a.TX[0], b.RX[0], 100+k, byte(round))
				crosses(t, b.TX[0], a.RX[0], 2500+k, byte(round))
			}
			w.hub.Do(func() { w.port[0].Device().Fail(errors.New("lost")) })
			if err := a.Continue(accept()); err != nil {
				t.Fatal(err)
			}
		}
		crosses(t, a.TX[0], b.RX[0], 100, 9)
		ln.Close()
		client.Close()
	}
}

// TestLearning: the port reports each source address of a guest, once and up to a bound; and those of
// its control queue and the vport's address.
func TestLearning(t *testing.T) {
	w := newWorld(t, 1)
	p := w.port[0]
	g := w.guest(0, ethdevtest.Options{Features: mrg | 1<<abi.FeatureCtrlRX | 1<<abi.FeatureCtrlMACAddr, Control: true})
	send := func(mac [6]byte) {
		f := frame(60, 0)
		copy(f[6:], mac[:])
		if err := g.TX[0].Send([][]byte{f, f}, make([]ether.Offload, 2)); err != nil {
			t.Fatal(err)
		}
		if err := g.TX[0].Done(); err != nil {
			t.Fatal(err)
		}
	}
	own := [6]byte{2, 0, 0, 0, 0, 0}
	e, n := p.last()
	if !e.Up || e.MAC != own || e.MTU != 9000 || len(e.Unicast) != 0 {
		t.Errorf("at first %+v", e)
	}
	send(own)
	send([6]byte{3, 1})
	if _, m := p.last(); m != n {
		t.Errorf("its own address, or a group's, is news")
	}
	for i := range 40 {
		send([6]byte{2, 1, 0, 0, 0, byte(i)})
		send([6]byte{2, 1, 0, 0, 0, byte(i / 2)})
	}
	if e, m := p.last(); len(e.Unicast) != 16 || m != n+16 {
		t.Errorf("%d addresses by %d events", len(e.Unicast), m-n)
	}
	if ack, err := g.Command(abi.ClassMAC, 1, []byte{2, 9, 9, 9, 9, 9}); ack != abi.AckOK || err != nil {
		t.Error(ack, err)
	}
	table := func(macs ...[6]byte) (b []byte) {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(macs)))
		for _, m := range macs {
			b = append(b, m[:]...)
		}
		return b
	}
	if ack, err := g.Command(abi.ClassMAC, 0, append(table([6]byte{2, 7}),
		table([6]byte{3, 7}, [6]byte{3, 8})...)); ack != abi.AckOK || err != nil {
		t.Error(ack, err)
	}
	if e, _ := p.last(); e.MAC != [6]byte{2, 9, 9, 9, 9, 9} || len(e.Unicast) != 17 ||
		e.Unicast[0] != [6]byte{2, 7} || len(e.Multicast) != 2 {
		t.Errorf("%+v", e)
	}
	// The filter drops frames to other addresses.
	for mac, want := range map[[6]byte]bool{{2, 9, 9, 9, 9, 9}: true, {2, 7}: true, {2, 8}: false, {3, 8}: true,
		{3, 9}: false, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}: true} {
		f := frame(60, 1)
		copy(f, mac[:])
		before := w.stats(0).RxFiltered
		w.write(0, f)
		if got := w.stats(0).RxFiltered == before; got != want {
			t.Errorf("%x passes: %v", mac, got)
		}
	}
	if ack, err := g.Command(abi.ClassRX, 0, []byte{1}); ack != abi.AckOK || err != nil { // promiscuous
		t.Error(ack, err)
	}
	before := w.stats(0).RxFiltered
	w.write(0, frame(60, 1))
	if w.stats(0).RxFiltered != before {
		t.Error("filtered though promiscuous")
	}
}

// TestForgetting: the addresses of a guest that has gone are the port's until it is clear that it does not come again.
func TestForgetting(t *testing.T) {
	const features = mrg | 1<<abi.FeatureCtrlRX
	begin := func(w *world) *ethdevtest.Guest {
		t.Helper()
		g := w.guest(0, ethdevtest.Options{Features: features, Control: true})
		f := frame(60, 0)
		copy(f[6:], []byte{2, 1, 1, 1, 1, 1})
		if err := g.TX[0].Send([][]byte{f}, make([]ether.Offload, 1)); err != nil {
			t.Fatal(err)
		}
		if err := g.TX[0].Done(); err != nil {
			t.Fatal(err)
		}
		if ack, err := g.Command(abi.ClassMAC, 0, []byte{1, 0, 0, 0, 2, 7, 0, 0, 0, 0, 1, 0, 0, 0, 3, 7, 0, 0, 0,
			0}); ack != abi.AckOK || err != nil {
			t.Fatal(ack, err)
		}
		return g
	}
	w := newWorldOf(t, 1, time.Millisecond)
	p := w.port[0]
	begin(w).Close()
	<-p.ends
	w.until("its addresses are forgotten", func() bool {
		e, _ := p.last()
		return e.Up && e.MAC == [6]byte{2} && len(e.Unicast) == 0 && len(e.Multicast) == 0
	})
	_, n := p.last()
	w.guest(0, ethdevtest.Options{Features: features}).Close()
	<-p.ends
	if e, m := p.last(); m != n {
		t.Errorf("a guest that said nothing is news: %+v", e)
	}
	// A front-end that reconnects keeps the addresses.
	w = newWorld(t, 1)
	p = w.port[0]
	begin(w).Close()
	<-p.ends
	w.guest(0, ethdevtest.Options{Features: features}).Close()
	<-p.ends
	if e, _ := p.last(); len(e.Unicast) != 2 || len(e.Multicast) != 1 {
		t.Errorf("%+v", e)
	}
}

// flowFrame is a UDP frame of a flow.
func flowFrame(src, dst byte, sport, dport uint16) []byte {
	f := frame(80, 1)
	copy(f[12:], []byte{8, 0, 0x45, 0, 0, 66, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, src, 10, 0, 0, dst})
	binary.BigEndian.PutUint16(f[24:], ^fold(f[14:34]))
	binary.BigEndian.PutUint16(f[34:], sport)
	binary.BigEndian.PutUint16(f[36:], dport)
	copy(f[38:], []byte{0, 46, 0, 0})
	return f
}

// TestQueuePairs: flows are spread over the pairs in use, come back on the pair they were sent on, and
// never meet a pair that is not in use.
func TestQueuePairs(t *testing.T) {
	w := newWorld(t, 1)
	g := w.guest(0, ethdevtest.Options{Features: mrg | mq, Control: true, Pairs: 4, Num: 256})
	w.hub.Remove(w.port[0].Port)
	p := w.port[0].Port
	frames, off := make([][]byte, 64), make([]ether.Offload, 64)
	arrives := func(f []byte) int {
		t.Helper()
		if !w.write(0, f) {
			t.Fatalf("%+v", w.stats(0))
		}
		at := -1
		for i, q := range g.RX {
			if r, err := q.Recv(0); err == nil {
				if at >= 0 || !bytes.Equal(r.Frame, f) {
					t.Fatal("twice, or another frame")
				}
				at = i
			}
		}
		return at
	}
	for port := range uint16(50) {
		if at := arrives(flowFrame(1, 2, port, 9)); at != 0 {
			t.Fatalf("on pair %d before others are in use", at)
		}
	}
	pairs := func(n byte) {
		w.hub.Add(p)
		if ack, err := g.Command(abi.ClassMQ, 0, []byte{n, 0}); ack != 0 || err != nil {
			t.Fatal(ack, err)
		}
		w.hub.Remove(p)
	}
	pairs(4)
	seen := map[int]int{}
	for port := range uint16(200) {
		seen[arrives(flowFrame(1, 2, port, 9))]++
	}
	if len(seen) != 4 || seen[-1] != 0 {
		t.Errorf("spread over %v", seen)
	}
	for i := range g.TX {
		for port := range uint16(20) {
			sport := uint16(1000*i) + port
			if err := g.TX[i].Send([][]byte{flowFrame(2, 1, 9, sport)}, []ether.Offload{{}}); err != nil {
				t.Fatal(err)
			}
			w.hub.Do(func() {
				if n, err := p.TryReadBatch(frames, off); n != 1 || err != nil {
					t.Fatal(n, err)
				}
			})
			if at := arrives(flowFrame(1, 2, sport, 9)); at != i {
				t.Errorf("sent on %d, answered on %d", i, at)
			}
		}
	}
	pairs(2)
	for port := range uint16(200) {
		if at := arrives(flowFrame(1, 2, port*31, 9)); at < 0 || at > 1 {
			t.Fatalf("on pair %d of 2", at)
		}
	}
	// A front-end's own control queue turns pairs off ring by ring.
	if err := g.RX[1].Enable(false); err != nil {
		t.Fatal(err)
	}
	for port := range uint16(50) {
		if at := arrives(flowFrame(1, 2, port*31, 9)); at != 0 {
			t.Fatalf("on pair %d, which is off", at)
		}
	}
}

// TestFairQueues: rings share a batch.
func TestFairQueues(t *testing.T) {
	for turn := range 4 {
		w := newWorld(t, 1)
		g := w.guest(0, ethdevtest.Options{Features: mrg | mq, Pairs: 4})
		w.hub.Remove(w.port[0].Port)
		for i, n := range []int{20, 20, 3, 20} {
			for range n {
				if err := g.TX[i].Send([][]byte{frame(60, byte(2*i))}, []ether.Offload{{}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.hub.Do(func() {
			for range turn { // each read begins at another ring
				if n, err := w.port[0].TryReadBatch(nil, nil); n != 0 || err != nil {
					t.Errorf("turn %d: %d frames, %v", turn, n, err)
				}
			}
			frames, off := make([][]byte, 32), make([]ether.Offload, 32)
			n, err := w.port[0].TryReadBatch(frames, off)
			if n < 32 || err != nil {
				t.Errorf("turn %d: %d frames, %v", turn, n, err)
			}
			count := map[byte]int{}
			for _, f := range frames[:n] {
				count[f[11]]++
			}
			for i, least := range []int{8, 8, 3, 8} {
				if count[byte(2*i)|1] < least {
					t.Errorf("turn %d: of ring %d: %d", turn, i, count[byte(2*i)|1])
				}
			}
		})
	}
}

// TestAnnounce: a guest that moved is announced to the others; an MTU that the switch has not is
// refused.
func TestAnnounce(t *testing.T) {
	w := newWorld(t, 2)
	a, b := w.guest(0, ethdevtest.Options{Features: mrg}), w.guest(1, ethdevtest.Options{Features: mrg})
	mac := []byte{2, 5, 6, 7, 8, 9, 0, 0}
	if err := a.Do(abi.ReqSendRARP, mac); err != nil {
		t.Fatal(err)
	}
	got, err := b.RX[0].Recv(limit)
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 60)
	copy(want, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 5, 6, 7, 8, 9, 0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3, 2, 5,
		6, 7, 8, 9, 0, 0, 0, 0, 2, 5, 6, 7, 8, 9})
	if !bytes.Equal(got.Frame, want) {
		t.Errorf("% x", got.Frame)
	}
	for mtu, want := range map[uint64]error{1500: nil, 9000: nil, 68: nil, 67: unix.EINVAL, 9001: unix.EINVAL,
		1 << 16: unix.EINVAL} {
		if err := a.Do(abi.ReqNetSetMTU, vhosttest.U64(mtu)); err != want {
			t.Errorf("MTU %d: %v", mtu, err)
		}
	}
	w.hub.Do(func() { w.port[0].Configure(vnic.Device{MTU: 1500, MaxMTU: 1500}) })
	p, err := a.Get(abi.ReqGetConfig, append(abi.VUConfig{Size: abi.ConfigSize}.Append(nil),
		make([]byte, abi.ConfigSize)...))
	if err != nil {
		t.Fatal(err)
	}
	c, err := abi.ParseConfig(p[abi.VUConfigSize:])
	if err != nil || c.MTU != 1500 || c.Status != 0 || c.MaxVirtqueuePairs != 4 || c.MAC != [6]byte{2, 0, 0, 0, 0, 0} {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestMigration: while the log is on, every page of the guest that the device changes is in it.
func TestMigration(t *testing.T) {
	for _, f := range []uint64{mrg | event, mrg | packed | event} {
		w := newWorld(t, 2)
		a := w.guest(0, ethdevtest.Options{Features: f, MemSize: 4 << 20, Base: 1 << 20})
		b := w.guest(1, ethdevtest.Options{Features: mrg})
		const off, pages = 512, (1<<20 + 4<<20) / 4096 // off is within a page
		log := virtiotest.NewMemory(t, 4096)
		base := binary.NativeEndian.AppendUint64(vhosttest.U64(pages/8), off)
		if err := a.Do(abi.ReqSetLogBase, base, log.FD); err != nil {
			t.Fatal(err)
		}
		logged := func(gpa uint64) bool { return log.Bytes[off+gpa/4096/8]>>(gpa/4096%8)&1 != 0 }
		quiet := func(when string) {
			t.Helper()
			crosses(t, b.TX[0], a.RX[0], 5000, 2)
			if !bytes.Equal(log.Bytes, make([]byte, 4096)) {
				t.Fatalf("pages in the log %s it is on", when)
			}
		}
		logging := func(features uint64) {
			t.Helper()
			if err := a.Do(abi.ReqSetFeatures, vhosttest.U64(features)); err != nil {
				t.Fatal(err)
			}
		}
		quiet("before")
		logging(a.Opt.Features | 1<<abi.FeatureLogAll)
		before := bytes.Clone(a.Mem.Bytes)
		for i := range 40 {
			crosses(t, b.TX[0], a.RX[0], 60+i*100, byte(i))
			crosses(t, a.TX[0], b.RX[0], 60+i*100, byte(i))
		}
		changed := 0
		area := a.RX[0].Area
		for gpa := area.GPA &^ 4095; gpa < area.GPA+uint64(area.Len); gpa += 4096 {
			at := gpa - a.Mem.Base
			if !bytes.Equal(before[at:][:4096], a.Mem.Bytes[at:][:4096]) {
				if changed++; !logged(gpa) {
					t.Errorf("buffers at %#x changed and are not in the log", gpa)
				}
			}
		}
		if changed == 0 {
			t.Fatal("nothing was received")
		}
		for _, q := range []*ethdevtest.Queue{a.RX[0], a.TX[0]} {
			c := q.Config()
			if !logged(c.Device) || c.Packed && !logged(c.Desc) {
				t.Errorf("ring %d: what the device wrote is not in the log", q.Index)
			}
		}
		logging(a.Opt.Features)
		clear(log.Bytes)
		quiet("after")
		// What else would change of a running device is refused.
		if err := a.Do(abi.ReqSetFeatures, vhosttest.U64(a.Opt.Features&^mrg)); err != unix.EBUSY {
			t.Errorf("other features while rings run: %v", err)
		}
	}
}

// TestHostileLog: a log with an invalid descriptor ends the session; a log that is too small does no
// harm.
func TestHostileLog(t *testing.T) {
	w := newWorld(t, 2)
	log := virtiotest.NewMemory(t, 4096)
	b := w.guest(1, ethdevtest.Options{Features: mrg})
	u64 := func(size, off uint64) []byte { return binary.NativeEndian.AppendUint64(vhosttest.U64(size), off) }
	for name, c := range map[string]struct{ size, off uint64 }{
		"empty": {0, 0}, "beyond the file": {4097, 0}, "offset beyond": {1, 4096}, "around": {1 << 20,
			^uint64(0)}, "huge": {1 << 60, 0},
	} {
		a := w.guest(0, ethdevtest.Options{Features: mrg, MemSize: 1 << 20})
		if err := a.Do(abi.ReqSetLogBase, u64(c.size, c.off), log.FD); !vhosttest.Closed(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := <-w.port[0].ends; !errors.Is(err, vhost.BadMemory) {
			t.Errorf("%s: ended: %v", name, err)
		}
	}
	a := w.guest(0, ethdevtest.Options{Features: mrg, MemSize: 1 << 20})
	if err := a.Do(abi.ReqSetLogBase, u64(8, 0), log.FD); err != nil { // a first page or so of the guest's
		t.Fatal(err)
	}
	if err := a.Do(abi.ReqSetFeatures, vhosttest.U64(a.Opt.Features|1<<abi.FeatureLogAll)); err != nil {
		t.Fatal(err)
	}
	crosses(t, b.TX[0], a.RX[0], 3000, 1)
	if err := a.Do(abi.ReqSetLogBase, u64(4096, 0), log.FD); err != nil { // another, while it is on
		t.Fatal(err)
	}
	crosses(t, b.TX[0], a.RX[0], 3000, 1)
}

// SPDX-License-Identifier: Apache-2.0

package ethdev_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/device/ethdev"
	"weft/internal/device/ethdev/ethdevtest"
	"weft/internal/device/vhost"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = vhosttest.Limit

// world is a hub with sockets on it.
type world struct {
	t    testing.TB
	hub  *ethdevtest.Hub
	dir  string
	port []*port

	forget time.Duration        // of the ports
	half   atomic.Pointer[half] // of the next session; nil: none
}

type port struct {
	*ethdev.Port
	*vhost.Server
	path string
	ends chan error

	mu     sync.Mutex
	events []vnic.SegmentEvent
}

func (p *port) last() (e vnic.SegmentEvent, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.events) > 0 {
		e = p.events[len(p.events)-1]
	}
	return e, len(p.events)
}

func newWorld(t testing.TB, sockets int) *world {
	t.Helper()
	return newWorldOf(t, sockets, time.Hour)
}

// newWorldOf is newWorld with ports that drop the addresses of a disconnected guest after forget.
func newWorldOf(t testing.TB, sockets int, forget time.Duration) *world {
	t.Helper()
	w := &world{t: t, forget: forget}
	var err error
	if w.dir, err = os.MkdirTemp("", "ethdev"); err != nil {
		t.Fatal(err)
	}
	if w.hub, err = ethdevtest.NewHub(); err != nil {
		t.Fatal(err)
	}
	for i := range sockets {
		p := &port{path: filepath.Join(w.dir, fmt.Sprintf("%d.sock", i)), ends: make(chan error, 1024)}
		p.Port, err = ethdev.New(ethdev.Config{Lane: w.hub, Pairs: 4, Forget: w.forget,
			Event: func(e vnic.SegmentEvent) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.events = append(p.events, e)
			}})
		if err != nil {
			t.Fatal(err)
		}
		p.Server, err = vhost.Listen(p.path, 0o600, vhost.Config{
			New: func(s *vhost.Session) (vhost.Device, error) {
				var other ethdev.RoCE
				if h := w.half.Load(); h != nil {
					other = h
				}
				d, err := p.AttachCard(s, other)
				if err != nil {
					return vhost.Device{}, err
				}
				return d.Parts(), nil
			},
			OnEnd: func(_ *vhost.Session, reason error) { p.ends <- reason },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.hub.Do(func() {
			p.Configure(vnic.Device{MAC: [6]byte{2, 0, 0, 0, 0, byte(i)}, MTU: 1500, MaxMTU: 9000, Carrier: true})
		}); err != nil {
			t.Fatal(err)
		}
		if err := w.hub.Add(p.Port); err != nil {
			t.Fatal(err)
		}
		w.port = append(w.port, p)
	}
	t.Cleanup(func() {
		for _, p := range w.port {
			p.Server.Close()
		}
		w.hub.Close()
		os.RemoveAll(w.dir)
	})
	return w
}

func (w *world) guest(i int, o ethdevtest.Options) *ethdevtest.Guest {
	w.t.Helper()
	g, err := ethdevtest.NewGuest(w.t, w.port[i].path, o)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

func (w *world) stats(i int) (s ethdev.Stats) {
	w.hub.Do(func() { s = w.port[i].Stats })
	return s
}

// until waits for a condition of the hub's.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		ok := false
		w.hub.Do(func() { ok = f() })
		if ok {
			return
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s: never", what)
		}
	}
}

// frame makes a frame of n octets with a content of its own.
func frame(n int, seed byte) []byte {
	f := make([]byte, n)
	for i := range f {
		f[i] = byte(i*7) + seed
	}
	copy(f, []byte{2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, seed | 1, 0x88, 0xb5})
	return f
}

const (
	mrg      = 1 << abi.FeatureMrgRxbuf
	packed   = 1 << abi.FeaturePacked
	event    = 1 << abi.FeatureEventIdx
	indirect = 1 << abi.FeatureIndirect
	mq       = 1 << abi.FeatureMQ
	csum     = 1<<abi.FeatureCsum | 1<<abi.FeatureGuestCsum
	tso      = 1<<abi.FeatureHostTSO4 | 1<<abi.FeatureHostTSO6 | 1<<abi.FeatureHostECN |
		1<<abi.FeatureGuestTSO4 | 1<<abi.FeatureGuestTSO6 | 1<<abi.FeatureGuestECN
)

// TestFrames sends frames of every size class both ways between guests of
// every kind.
func TestFrames(t *testing.T) {
	sizes := []int{14, 60, 61, 1514, 2036, 2037, 4084, 4085, 9014, 30000, 65535 + 14, ether.MaxFrame}
	for _, f := range []uint64{0, mrg, mrg | event, mrg | indirect | packed, mrg | packed | event, packed,
		mrg | csum | tso} {
		t.Run(fmt.Sprintf("%#x", f), func(t *testing.T) {
			w := newWorld(t, 2)
			o := ethdevtest.Options{Features: f}
			if f&mrg == 0 {
				o.BufLen, o.Num = 66<<10, 16
			}
			a, b := w.guest(0, o), w.guest(1, o)
			for round := range 3 {
				for i, n := range sizes {
					want := frame(n, byte(round*16+i))
					for _, way := range [][2]*ethdevtest.Guest{{a, b}, {b, a}} {
						if err := way[0].TX[0].Send([][]byte{want}, []ether.Offload{{}}); err != nil {
							t.Fatal(err)
						}
						got, err := way[1].RX[0].Recv(limit)
						if err != nil {
							t.Fatalf("%d octets: %v, %+v", n, err, w.stats(1))
						}
						buffers := 1
						if f&mrg != 0 {
							buffers = (n + ethdevtest.HeaderLen + 2047) / 2048
						}
						if !bytes.Equal(got.Frame, want) || got.Buffers != buffers || got.Off != (ether.Offload{}) {
							t.Fatalf("%d octets: got %d in %d buffers, %+v", n, len(got.Frame), got.Buffers, got.Off)
						}
					}
				}
			}
		})
	}
}

// TestStream: nothing of many frames in flight is lost, doubled or overtaken
// where the receiver keeps up, and the hub sleeps at the end.
func TestStream(t *testing.T) {
	for _, f := range []uint64{mrg | event, mrg | packed | event, mrg, mrg | packed} {
		w := newWorld(t, 2)
		a, b := w.guest(0, ethdevtest.Options{Features: f}), w.guest(1, ethdevtest.Options{Features: f, Num: 256})
		const total, window = 5000, 100
		for sent, got := 0, 0; got < total; {
			n := min(window-(sent-got), total-sent, 17)
			frames, off := make([][]byte, n), make([]ether.Offload, n)
			for i := range frames {
				frames[i] = frame(60+sent%1400, 1)
				binary.BigEndian.PutUint32(frames[i][14:], uint32(sent))
				sent++
			}
			if err := a.TX[0].Send(frames, off); err != nil {
				t.Fatal(err)
			}
			for range min(23, sent-got) {
				r, err := b.RX[0].Recv(limit)
				if err != nil {
					t.Fatalf("after %d: %v", got, err)
				}
				if n := binary.BigEndian.Uint32(r.Frame[14:]); int(n) != got || len(r.Frame) != 60+got%1400 {
					t.Fatalf("frame %d of %d octets, want %d", n, len(r.Frame), got)
				}
				got++
			}
		}
		if err := a.TX[0].Done(); err != nil {
			t.Fatal(err)
		}
		if s := w.stats(1); s.RxFrames != total || s.RxNoBuffer != 0 {
			t.Errorf("%+v", s)
		}
		var before uint64
		w.hub.Do(func() { before = w.hub.Sleeps })
		w.until("the hub sleeps", func() bool { return w.hub.Sleeps > before })
	}
}

// tcpSegment is a TSO segment of IPv4 with n octets of payload.
func tcpSegment(n int) ([]byte, ether.Offload) {
	f := frame(54+n, 3)
	copy(f[12:], []byte{8, 0, 0x45, 0})
	binary.BigEndian.PutUint16(f[16:], uint16(40+n))
	copy(f[18:], []byte{0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0x14, 0x51, 0, 0, 0, 1, 0,
		0, 0, 2, 0x50, 0x18, 0xff, 0xff})
	binary.BigEndian.PutUint16(f[24:], 0)
	binary.BigEndian.PutUint16(f[24:], ^fold(f[14:34]))
	// The pseudo header's sum stands in the checksum field.
	pseudo := append(append([]byte{}, f[26:34]...), 0, 6, byte((20+n)>>8), byte(20+n))
	binary.BigEndian.PutUint16(f[50:], fold(pseudo))
	f[52], f[53] = 0, 0
	return f, ether.Offload{Flags: ether.NeedsCsum, GSO: ether.GSOTCPv4, HdrLen: 54, GSOSize: 1460, CsumStart: 34,
		CsumOffset: 16}
}

func fold(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 != 0 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// TestOffloads: a guest that accepts segments gets them whole, with the remaining offload; another
// gets finished frames, and never an offload that it did not negotiate.
func TestOffloads(t *testing.T) {
	w := newWorld(t, 3)
	a := w.guest(0, ethdevtest.Options{Features: mrg | csum | tso})
	b := w.guest(1, ethdevtest.Options{Features: mrg | csum | tso})
	c := w.guest(2, ethdevtest.Options{Features: mrg})
	seg, off := tcpSegment(10000)
	if err := a.TX[0].Send([][]byte{seg}, []ether.Offload{off}); err != nil {
		t.Fatal(err)
	}
	got, err := b.RX[0].Recv(limit)
	if err != nil || !bytes.Equal(got.Frame, seg) || got.Off != off {
		t.Fatalf("%v: %d octets, %+v", err, len(got.Frame), got.Off)
	}
	var payload []byte
	for range 7 {
		got, err := c.RX[0].Recv(limit)
		if err != nil {
			t.Fatal(err)
		}
		if got.Off != (ether.Offload{}) || len(got.Frame) > 1514 {
			t.Fatalf("%d octets, %+v", len(got.Frame), got.Off)
		}
		pseudo := append(append([]byte{}, got.Frame[26:34]...), 0, 6, byte((len(got.Frame)-34)>>8),
			byte(len(got.Frame)-34))
		if s := fold(append(pseudo, got.Frame[34:]...)); s != 0xffff {
			t.Errorf("checksum %#x", s)
		}
		payload = append(payload, got.Frame[54:]...)
	}
	if !bytes.Equal(payload, seg[54:]) {
		t.Error("payload differs")
	}
	// Straight at the port: what Takes does not allow is dropped by name.
	w.hub.Do(func() {
		if n := w.port[2].WriteBatch([][]byte{seg}, []ether.Offload{off}); n != 1 {
			t.Errorf("%d dropped", n)
		}
	})
	if s := w.stats(2); s.RxOffload != 1 {
		t.Errorf("%+v", s)
	}
}

// TestTooFewBuffers: a frame that finds too few buffers leaves none half
// written; they serve the next.
func TestTooFewBuffers(t *testing.T) {
	for _, f := range []uint64{mrg, mrg | packed} {
		w := newWorld(t, 1)
		g := w.guest(0, ethdevtest.Options{Features: f, Num: 2})
		write := func(n int) (dropped int) {
			w.hub.Do(func() { dropped = w.port[0].WriteBatch([][]byte{frame(n, byte(n))}, []ether.Offload{{}}) })
			return dropped
		}
		if write(5000) != 1 || write(4000) != 0 {
			t.Fatal("a frame for three buffers fits, or one for two does not")
		}
		got, err := g.RX[0].Recv(limit)
		if err != nil || !bytes.Equal(got.Frame, frame(4000, byte(4000%256))) || got.Buffers != 2 {
			t.Fatal(err, got.Buffers)
		}
		if write(100) != 0 || write(3000) != 1 || write(101) != 0 {
			t.Fatal("buffers were lost")
		}
		for _, n := range []int{100, 101} {
			if got, err := g.RX[0].Recv(limit); err != nil || !bytes.Equal(got.Frame, frame(n, byte(n))) {
				t.Fatal(n, err)
			}
		}
		if write(5000) != 1 || write(102) != 0 || write(103) != 0 || write(104) != 1 {
			t.Fatal("buffers were lost, or used twice")
		}
		for _, n := range []int{102, 103} {
			if got, err := g.RX[0].Recv(limit); err != nil || !bytes.Equal(got.Frame, frame(n, byte(n))) {
				t.Fatal(n, err)
			}
		}
		if s := w.stats(0); s.RxNoBuffer != 2 || s.RxTooLong != 2 {
			t.Errorf("%+v", s)
		}
	}
}

// TestNoGuest: a port without a front-end takes nothing and gives nothing.
func TestNoGuest(t *testing.T) {
	w := newWorld(t, 1)
	w.hub.Do(func() {
		if n := w.port[0].WriteBatch(make([][]byte, 3), make([]ether.Offload, 3)); n != 3 {
			t.Errorf("%d dropped", n)
		}
		if n, err := w.port[0].TryReadBatch(make([][]byte, 3), make([]ether.Offload, 3)); n != 0 || err != nil {
			t.Error(n, err)
		}
		if w.port[0].Arm() || w.port[0].Takes() != 0 {
			t.Error("a port without a guest has something")
		}
		w.port[0].Port.Close()
		if _, err := w.port[0].TryReadBatch(make([][]byte, 3), make([]ether.Offload, 3)); !errors.Is(err,
			os.ErrClosed) {
			t.Error(err)
		}
	})
}

// TestAllocatesNothing per frame, either way.
func TestAllocatesNothing(t *testing.T) {
	for _, f := range []uint64{mrg | event | csum | tso, mrg | packed | event | csum | tso, mq | mrg | csum | tso} {
		w := newWorld(t, 1)
		o := ethdevtest.Options{Features: f, Num: 1024, MemSize: 64 << 20}
		if f&mq != 0 {
			o.Pairs, o.Num = 3, 512
		}
		g := w.guest(0, o)
		w.hub.Remove(w.port[0].Port) // its frames are the test's
		seg, off := tcpSegment(3000)
		frames, offs := [][]byte{frame(1500, 1), seg, frame(60, 5)}, []ether.Offload{{}, off, {}}
		for range 60 {
			for _, q := range g.TX {
				if err := q.Send(frames, offs); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.hub.Do(func() {
			p := w.port[0].Port
			p.WriteBatch(frames, offs)
			if n := testing.AllocsPerRun(50, func() {
				if p.WriteBatch(frames, offs) != 0 {
					t.Error("dropped")
				}
			}); n != 0 {
				t.Errorf("features %#x: %v allocations to write", f, n)
			}
			got, gotOff := make([][]byte, 3), make([]ether.Offload, 3)
			if n := testing.AllocsPerRun(50, func() {
				if n, err := p.TryReadBatch(got, gotOff); n != 3 || err != nil {
					t.Error(n, err)
				}
			}); n != 0 {
				t.Errorf("features %#x: %v allocations to read", f, n)
			}
		})
	}
}

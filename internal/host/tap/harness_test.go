// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/internal/proto/ether"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// space is a network namespace: a thread that is in it.
type space struct {
	t     testing.TB
	calls chan func()
}

// newSpace makes a namespace, which ends with the test.
func newSpace(t testing.TB) *space {
	t.Helper()
	s := &space{t: t, calls: make(chan func())}
	made := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		made <- err
		if err != nil {
			return
		}
		for f := range s.calls {
			f()
		}
	}()
	if err := <-made; err != nil {
		lacks(t, "a network namespace needs CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() {
		close(s.calls)
		<-ended
	})
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		lacks(t, "no TUN driver: %v", err)
	}
	return s
}

// lacks skips a test that needs what this machine has not; with REQUIRE_E2E=1
// that is a failure.
func lacks(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("REQUIRE_E2E") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// do calls f in the namespace.
func (s *space) do(f func()) {
	done := make(chan struct{})
	s.calls <- func() { defer close(done); f() }
	<-done
}

// must calls f in the namespace, and ends the test if it fails.
func (s *space) must(f func() error) {
	s.t.Helper()
	var err error
	s.do(func() { err = f() })
	if err != nil {
		s.t.Fatal(err)
	}
}

// open makes a device in the namespace and closes it with the test.
func (s *space) open(cfg Config) *Device {
	s.t.Helper()
	var d *Device
	s.must(func() (err error) { d, err = Open(cfg); return err })
	s.t.Cleanup(func() { d.Close() })
	return d
}

// addr gives the interface an address.
func (s *space) addr(d *Device, prefix string) {
	s.t.Helper()
	p := netip.MustParsePrefix(prefix)
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD}
	s.must(func() error { return netlink.AddrAdd(s.link(d), a) })
}

func (s *space) link(d *Device) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: d.Index(), Name: d.Name()}}
}

// cable carries frames between two devices, as a switch would.
type cable struct {
	whole    bool // segments pass whole; else they are cut to mtu, and joined again
	mtu      int
	segments atomic.Int64 // that came
	joined   atomic.Int64
	frames   atomic.Int64
	tap      func(frame []byte) // sees each
}

// plug starts to carry.
func (c *cable) plug(t testing.TB, a, b *Device) {
	done, stop := make(chan struct{}), make(chan struct{})
	ends := []*cableEnd{newEnd(c, a, b), newEnd(c, b, a)}
	go func() {
		defer close(done)
		fds := []unix.PollFd{{Fd: int32(a.FD()), Events: unix.POLLIN}, {Fd: int32(b.FD()), Events: unix.POLLIN}}
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := unix.Poll(fds, 20); err != nil && err != unix.EINTR {
				t.Error(err)
				return
			}
			for _, e := range ends {
				if err := e.carry(t); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

type cableEnd struct {
	*cable
	from, to *Device
	frames   [][]byte
	off      []ether.Offload
	cut      [][]byte
	split    ether.Splitter
	join     *ether.Joiner
}

const cutFrames = 256

func newEnd(c *cable, from, to *Device) *cableEnd {
	e := &cableEnd{cable: c, from: from, to: to, frames: make([][]byte, BatchSize), off: make([]ether.Offload, BatchSize), join: ether.NewJoiner(cutFrames, false, 1)}
	return e
}

func (e *cableEnd) carry(t testing.TB) error {
	n, err := e.from.TryReadBatch(e.frames, e.off)
	if err != nil {
		return err
	}
	e.cable.frames.Add(int64(n))
	for i, f := range e.frames[:n] {
		in := ether.Classify(f)
		if why := e.off[i].Check(f, &in); why != ether.OK {
			t.Errorf("%v: %x, %+v", why, f[:min(100, len(f))], e.off[i])
		}
		if e.tap != nil {
			e.tap(f)
		}
		if e.off[i].Kind() != ether.GSONone {
			e.segments.Add(1)
		}
		if e.whole {
			continue
		}
		k, why := e.split.Start(f, e.off[i], &in, e.mtu)
		if why != ether.OK {
			t.Errorf("%v: %x, %+v", why, f[:min(100, len(f))], e.off[i])
		}
		for range k {
			b := make([]byte, e.split.Len())
			e.split.Next(b)
			if e.cut = append(e.cut, b); len(e.cut) == cutFrames {
				e.deliver()
			}
		}
	}
	if e.whole {
		e.to.WriteBatch(e.frames[:n], e.off[:n])
	}
	e.deliver()
	return nil
}

func (e *cableEnd) deliver() {
	out := e.join.Join(e.cut, e.to.Takes())
	for i := range out {
		if out[i].Off.Kind() != ether.GSONone {
			e.joined.Add(1)
		}
	}
	e.to.WriteFrames(out)
	e.cut = e.cut[:0]
}

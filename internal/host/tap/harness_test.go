// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/host/nstest"
	"weft/internal/proto/ether"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// space is a network namespace with devices.
type space struct{ *nstest.Namespace }

func newSpace(t testing.TB) *space {
	t.Helper()
	return &space{nstest.New(t)}
}

// open makes a device in the namespace and closes it with the test.
func (s *space) open(cfg Config) *Device {
	s.T.Helper()
	var d *Device
	s.Must(func() (err error) { d, err = Open(cfg); return err })
	s.T.Cleanup(func() { d.Close() })
	return d
}

// addr gives the interface an address.
func (s *space) addr(d *Device, prefix string) {
	s.T.Helper()
	p := netip.MustParsePrefix(prefix)
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Flags: unix.IFA_F_NODAD}
	s.Must(func() error { return netlink.AddrAdd(s.link(d), a) })
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
	e := &cableEnd{cable: c, from: from, to: to, frames: make([][]byte, ifdev.BatchFrames), off: make([]ether.Offload,
		ifdev.BatchFrames), join: ether.NewJoiner(cutFrames, false, 1)}
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

// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/host/nstest"
	"weft/internal/proto/condtest"
	"weft/internal/service/ipoib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	headroom = ipoib.Headroom
)

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

// await waits until ok accepts the state of d.
func await(t testing.TB, d *Device, what string, ok func(*State) bool) *State {
	t.Helper()
	var s *State
	condtest.Until(t, what, func() bool { s = d.State(); return ok(s) }, func() any { return *s })
	return s
}

func (s *State) has(a netip.Addr) bool {
	return slices.ContainsFunc(s.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// packet is one that a device gave out.
type packet struct {
	data []byte
	hop  netip.Addr
	of   int // packets of the same read
}

// reader reads d until it ends.
func reader(t *testing.T, d *Device, to func(packet)) (ended chan error) {
	ended = make(chan error, 1)
	bufs, sizes, hops := buffers(headroom + d.cfg.MTU)
	go func() {
		for {
			n, err := d.ReadBatch(bufs, sizes, hops, headroom)
			if err != nil {
				ended <- err
				return
			}
			for i := range n {
				to(packet{slices.Clone(bufs[i][headroom : headroom+sizes[i]]), hops[i], n})
			}
		}
	}()
	t.Cleanup(func() {
		d.Close()
		<-ended
		close(ended)
	})
	return ended
}

func buffers(size int) ([][]byte, []int, []netip.Addr) {
	bufs := make([][]byte, BatchSize)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	return bufs, make([]int, BatchSize), make([]netip.Addr, BatchSize)
}

// within is a context as long as a test may wait.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (s *space) dialUDP(to netip.AddrPort) *net.UDPConn {
	s.T.Helper()
	var c *net.UDPConn
	s.Must(func() (err error) { c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); return err })
	s.T.Cleanup(func() { c.Close() })
	return c
}

// cable carries packets between two devices.
type cable struct{ largest, packets atomic.Int64 }

func join(t testing.TB, a, b *Device, mtu int) *cable {
	t.Helper()
	c := &cable{}
	for _, ends := range [][2]*Device{{a, b}, {b, a}} {
		from, to := ends[0], ends[1]
		bufs, sizes, hops := buffers(headroom + mtu)
		done := make(chan struct{})
		go func() {
			defer close(done)
			out := make([][]byte, BatchSize)
			for {
				n, err := from.ReadBatch(bufs, sizes, hops, headroom)
				if err != nil {
					return
				}
				for i := range n {
					if sizes[i] > mtu {
						t.Errorf("a packet of %d octets", sizes[i])
					}
					out[i] = bufs[i][:headroom+sizes[i]]
				}
				c.largest.Store(max(c.largest.Load(), int64(n)))
				c.packets.Add(int64(n))
				if to.WriteBatch(out[:n], headroom) != nil {
					return
				}
			}
		}()
		t.Cleanup(func() { from.Close(); to.Close(); <-done })
	}
	return c
}

// datagram builds a UDP packet without checksums, with headroom in front.
func datagram(src, dst string, sport, dport uint16, payload int) []byte {
	s, d := addr(src), addr(dst)
	var b []byte
	if s.Is4() {
		b = make([]byte, headroom+28+payload)
		p := b[headroom:]
		p[0], p[8], p[9] = 0x45, 64, 17
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		copy(p[12:], s.AsSlice())
		copy(p[16:], d.AsSlice())
		udp(p[20:], sport, dport)
		binary.BigEndian.PutUint16(p[10:], ^sum(p[:20]))
		return b
	}
	b = make([]byte, headroom+48+payload)
	p := b[headroom:]
	p[0], p[6], p[7] = 0x60, 17, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)-40))
	copy(p[8:], s.AsSlice())
	copy(p[24:], d.AsSlice())
	udp(p[40:], sport, dport)
	var pseudo [8]byte
	binary.BigEndian.PutUint32(pseudo[:], uint32(len(p)-40))
	pseudo[7] = 17
	binary.BigEndian.PutUint16(p[46:], ^sum(p[8:], pseudo[:]))
	return b
}

func udp(p []byte, sport, dport uint16) {
	binary.BigEndian.PutUint16(p, sport)
	binary.BigEndian.PutUint16(p[2:], dport)
	binary.BigEndian.PutUint16(p[4:], uint16(len(p)))
	for i := range p[8:] {
		p[8+i] = byte(i * 7)
	}
}

// sum is the Internet checksum's sum of parts, each of even length but for
// the last.
func sum(parts ...[]byte) uint16 {
	var s uint32
	for _, p := range parts {
		for i := 0; i+1 < len(p); i += 2 {
			s += uint32(binary.BigEndian.Uint16(p[i:]))
		}
		if len(p)%2 == 1 {
			s += uint32(p[len(p)-1]) << 8
		}
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

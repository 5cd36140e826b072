// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/host/nstest"
	"weft/internal/host/tap"
	"weft/internal/proto/ether"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

var began = time.Now()

func clock() mono.Time { return mono.Time(time.Since(began)) + 1 }

// space is a network namespace with devices.
type space struct{ *nstest.Namespace }

func newSpace(t testing.TB) *space {
	t.Helper()
	return &space{nstest.New(t)}
}

// setUp gives an interface an address, if any, and sets it up.
func (s *space) setUp(name, addr string) {
	s.T.Helper()
	s.Must(func() error {
		l, err := netlink.LinkByName(name)
		if err == nil && addr != "" {
			a, _ := netlink.ParseAddr(addr)
			a.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(l, a)
		}
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
}

// network is a gateway's interface g0 in a namespace, and the host at its other end, l0 in another.
func network(t testing.TB) (gw, host *space) {
	gw, host = newSpace(t), newSpace(t)
	gw.Must(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "g0"}, PeerName: "l0",
			PeerNamespace: netlink.NsFd(host.FD())})
	})
	gw.setUp("g0", "")
	host.setUp("l0", "10.20.0.2/24")
	return gw, host
}

var port = vnic.Device{MAC: [6]byte{6, 0x2c, 0, 9, 0, 0}, MTU: 1500, MaxMTU: 1500, Carrier: true}

func (s *space) open(cfg Config) *Device {
	s.T.Helper()
	var d *Device
	s.Must(func() (err error) { d, err = Open(cfg); return err })
	s.T.Cleanup(func() { d.Close() })
	return d
}

// tapStation is a TAP device of a namespace with an address.
func tapStation(t testing.TB, n byte) (*space, *tap.Device) {
	t.Helper()
	s := newSpace(t)
	var d *tap.Device
	s.Must(func() (err error) {
		d, err = tap.Open(tap.Config{Name: "opa1v0", Up: true, Device: vnic.Device{MAC: [6]byte{6, 0x2c, 0, n, 0, 0},
			MTU: 1500, MaxMTU: 1500, Carrier: true}})
		return err
	})
	t.Cleanup(func() { d.Close() })
	s.setUp("opa1v0", fmt.Sprintf("10.20.0.%d/24", n))
	return s, d
}

// hub carries each frame to all others, cut and joined again if cut is set.
type hub struct {
	cut    bool
	frames atomic.Int64
	seen   func(from int, frame []byte)
}

// hubPort is a port of the hub: a gateway or a TAP device.
type hubPort interface {
	vnic.Segment
	vnic.FrameWriter
}

func (h *hub) plug(t testing.TB, ports ...hubPort) {
	done, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var fds []unix.PollFd
		for _, p := range ports {
			fds = append(fds, unix.PollFd{Fd: int32(p.FD()), Events: unix.POLLIN})
		}
		frames, off := make([][]byte, 32), make([]ether.Offload, 32)
		join := ether.NewJoiner(4096, false, 1)
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
			for i, p := range ports {
				n, err := p.TryReadBatch(frames, off)
				if err != nil {
					t.Error(err)
					return
				}
				h.frames.Add(int64(n))
				var cut [][]byte
				for k, f := range frames[:n] {
					in := ether.Classify(f)
					if why := off[k].Check(f, &in); why != ether.OK {
						t.Errorf("%v: %x, %+v", why, f[:min(100, len(f))], off[k])
						continue
					}
					if h.seen != nil {
						h.seen(i, f)
					}
					var s ether.Splitter
					pieces, why := s.Start(f, off[k], &in, 1500)
					if why != ether.OK {
						t.Errorf("%v: %x", why, f[:min(100, len(f))])
					}
					for range pieces {
						b := make([]byte, s.Len())
						s.Next(b)
						cut = append(cut, b)
					}
				}
				for k, q := range ports {
					switch {
					case k == i:
					case h.cut:
						q.WriteFrames(join.Join(cut, q.Takes()))
					default:
						q.WriteBatch(frames[:n], off[:n])
					}
				}
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
}

// exchange sends octets by TCP there and back.
func exchange(t *testing.T, from, to *space, at string) {
	t.Helper()
	want := make([]byte, 2<<20)
	for i := range want {
		want[i] = byte(i>>12 ^ i*7)
	}
	var l net.Listener
	to.Must(func() (err error) { l, err = net.Listen("tcp", at+":0"); return err })
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			c.Close()
		}
		done <- err
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var c net.Conn
	from.Must(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		return err
	})
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	go func() {
		_, _ = c.Write(want)
		_ = c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("to %s: %d octets came back, %v", at, len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestGatewayCarries(t *testing.T) {
	for _, cut := range []bool{false, true} {
		gw, host := network(t)
		s, tp := tapStation(t, 1)
		d := gw.open(Config{Interface: "g0", Device: port, Now: clock})
		(&hub{cut: cut}).plug(t, tp, d)
		exchange(t, s, host, "10.20.0.2")
		exchange(t, host, s, "10.20.0.1")
		if n := d.Counters.NotDelivered.Load() + d.Counters.Looped.Load() + d.Counters.Overrun.Load(); n != 0 {
			t.Errorf("cut %v: %d frames did not pass", cut, n)
		}
	}
}

// Two gateways of one VESW to one network make a ring: stations talk, and no frame goes round.
func TestTwoGatewaysAreNoRing(t *testing.T) {
	gw, host := network(t)
	s, tp := tapStation(t, 1)
	a := gw.open(Config{Interface: "g0", Device: port, Now: clock})
	b := host.open(Config{Interface: "l0", Device: port, Now: clock})
	h := &hub{}
	h.plug(t, tp, a, b)
	exchange(t, s, host, "10.20.0.2")
	before := h.frames.Load()
	var u net.Conn
	s.Must(func() (err error) { u, err = net.Dial("udp", "10.20.0.255:9"); return err })
	defer u.Close()
	for range 10 {
		_, _ = u.Write([]byte("round and round"))
	}
	end := time.Now().Add(patience)
	for ; a.Counters.Looped.Load()+b.Counters.Looped.Load() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was kept from going round")
		}
	}
	// It becomes quiet, and soon: a frame that goes round passes thousands of times a second, until the kernel
	// loses it.
	for n := int64(-1); n != h.frames.Load(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d frames, and more", n)
		}
		n = h.frames.Load()
	}
	if n := h.frames.Load() - before; n > 1000 {
		t.Errorf("%d frames", n)
	}
}

func TestGatewayTags(t *testing.T) {
	gw, host := network(t)
	d := gw.open(Config{Interface: "g0", Device: port, Now: clock})
	got := make(chan []byte, 100)
	_, tp := tapStation(t, 1)
	(&hub{seen: func(from int, f []byte) {
		if in := ether.Classify(f); from == 1 && in.Tags > 0 {
			got <- slices.Clone(f)
		}
	}}).plug(t, tp, d)
	var fd int
	host.Must(func() (err error) {
		l, err := netlink.LinkByName("l0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		frame := append([]byte{6, 0x2c, 0, 1, 0, 0, 2, 0, 0, 0, 0, 9, 0x81, 0, 0xa0, 100, 0x88, 0xb5},
			bytes.Repeat([]byte{7}, 100)...)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Halen: 6})
	})
	defer unix.Close(fd)
	select {
	case f := <-got:
		want := append([]byte{6, 0x2c, 0, 1, 0, 0, 2, 0, 0, 0, 0, 9, 0x81, 0, 0xa0, 100, 0x88, 0xb5},
			bytes.Repeat([]byte{7}, 100)...)
		if !bytes.Equal(f, want) {
			t.Errorf("%x", f)
		}
	case <-time.After(patience):
		t.Error("no frame")
	}
}

func TestGatewayEvents(t *testing.T) {
	gw, host := network(t)
	told := make(chan vnic.SegmentEvent, 1000)
	d := gw.open(Config{Interface: "g0", Device: port, Now: clock, Notify: func(e vnic.SegmentEvent) { told <- e }})
	wait := func(what string, ok func(vnic.SegmentEvent) bool) {
		t.Helper()
		end := time.After(patience)
		for {
			select {
			case e := <-told:
				if ok(e) {
					return
				}
			case <-end:
				t.Fatalf("%s: not told; %+v, %s", what, d.Event(), d.Problem())
			}
		}
	}
	link := func(s *space, name string, do func(netlink.Link) error) {
		t.Helper()
		s.Must(func() error {
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = do(l)
			}
			return err
		})
	}
	wait("up", func(e vnic.SegmentEvent) bool { return e.Up && e.MTU == 1500 && e.MAC == port.MAC })
	more := port
	more.MaxMTU = 9000
	d.Configure(more)
	link(gw, "g0", func(l netlink.Link) error { return netlink.LinkSetMTU(l, 4000) })
	wait("MTU", func(e vnic.SegmentEvent) bool { return e.MTU == 4000 })
	d.Configure(port)
	wait("less MTU", func(e vnic.SegmentEvent) bool { return e.MTU == 1500 })
	// A station with a local address is reported. The host at the other end has one, as veth has it.
	_, tp := tapStation(t, 1)
	(&hub{}).plug(t, tp, d)
	var mac [6]byte
	link(host, "l0", func(l netlink.Link) error {
		copy(mac[:], l.Attrs().HardwareAddr)
		return netlink.NeighAppend(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.IP{10, 20, 0, 77},
			State: netlink.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 7, 7, 7, 7, 7}})
	})
	var u *net.UDPConn
	host.Must(func() (err error) {
		u, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.20.0.77:9")))
		return err
	})
	defer u.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				_, _ = u.Write([]byte("here"))
			}
		}
	}()
	wait("a station", func(e vnic.SegmentEvent) bool { return slices.Contains(e.Unicast, mac) })
	link(gw, "g0", netlink.LinkSetDown)
	wait("down", func(e vnic.SegmentEvent) bool { return !e.Up && !strings.Contains(d.Problem(), "removed") })
	link(gw, "g0", netlink.LinkSetUp)
	wait("up again", func(e vnic.SegmentEvent) bool { return e.Up })
}

func TestGatewayEnds(t *testing.T) {
	gw, host := network(t)
	cfg := Config{Interface: "g0", Device: port, Now: clock}
	d := gw.open(cfg)
	frames, off := make([][]byte, 4), make([]ether.Offload, 4)
	// The host's own address is outside, for any source that claims it.
	var own net.HardwareAddr
	gw.Must(func() error {
		l, err := netlink.LinkByName("g0")
		if err == nil {
			own = l.Attrs().HardwareAddr
		}
		return err
	})
	forged := append(append(bytes.Repeat([]byte{0xff}, 6), own...), make([]byte, 50)...)
	pause := append([]byte{1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1}, make([]byte, 50)...)
	whole := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1}, make([]byte, 50)...)
	long := append(slices.Clone(whole), make([]byte, 3000)...)
	if n := d.WriteBatch([][]byte{forged, pause, whole[:5], whole}, off); n != 0 || d.Counters.Looped.Load() != 1 ||
		d.Counters.Reserved.Load() != 1 || d.Counters.Malformed.Load() != 1 {
		t.Errorf("%d dropped, %d looped, %d reserved, %d malformed", n, d.Counters.Looped.Load(),
			d.Counters.Reserved.Load(), d.Counters.Malformed.Load())
	}
	if n := d.WriteBatch([][]byte{long, whole}, off); n != 1 || d.Counters.NotDelivered.Load() != 1 {
		t.Errorf("%d dropped of one that is too long", n)
	}
	// To a group, in pieces, and to a station, which alone passes again.
	pieces := []ether.Frame{{Parts: [][]byte{whole[:14], whole[14:]}, Len: len(whole)}}
	one := [][]byte{append([]byte{2, 0, 0, 0, 0, 2}, whole[6:]...)}
	sent := func() (packets uint64) {
		gw.Must(func() error {
			l, err := netlink.LinkByName("g0")
			if err == nil {
				packets = l.Attrs().Statistics.TxPackets
			}
			return err
		})
		return packets
	}
	before := sent()
	if n := testing.AllocsPerRun(50, func() {
		if d.WriteBatch(one, off) != 0 || d.WriteFrames(pieces) != 0 {
			t.Error("not delivered")
		}
		_, _ = d.TryReadBatch(frames, off)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if n := sent() - before; n < 51 {
		t.Errorf("%d frames were sent", n)
	}
	for what, change := range map[string]func(*Config){
		"ip link lists": func(c *Config) { c.Interface = "g1" },
		"of type loop":  func(c *Config) { c.Interface = "lo" },
		"no clock":      func(c *Config) { c.Now = nil },
	} {
		c := cfg
		change(&c)
		gw.Must(func() error {
			if _, err := Open(c); err == nil || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: %v", what, err)
			}
			return nil
		})
	}
	if err := explain("packet socket", unix.EPERM); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(),
		"CAP_NET_RAW. fix: ") {
		t.Error(err)
	}
	// The interface goes.
	host.Must(func() error {
		l, err := netlink.LinkByName("l0")
		if err == nil {
			err = netlink.LinkDel(l)
		}
		return err
	})
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := d.TryReadBatch(frames, off); errors.Is(err, ifdev.ErrRemoved) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the interface is not gone")
		}
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if n, err := d.TryReadBatch(frames, off); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after the end: %d, %v", n, err)
	}
	if n := d.WriteBatch(one, off); n != 1 {
		t.Errorf("write after the end: %d dropped", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

var base = Config{Name: "opa1v0", QueueLen: 700, Up: true,
	Device: vnic.Device{MAC: [6]byte{6, 0x2c, 0, 5, 0, 0}, MTU: 1500, MaxMTU: 9000, Carrier: true}}

// other is base with another MAC.
func other() Config {
	c := base
	c.Device.MAC[3] = 6
	return c
}

func TestOpenMakesTheInterface(t *testing.T) {
	s := newSpace(t)
	if n := Name(1, 0); n != base.Name {
		t.Errorf("name %s", n)
	}
	cfg := base
	cfg.Device.Carrier = false
	d := s.open(cfg)
	look := func() (at *netlink.LinkAttrs) {
		s.Must(func() error {
			l, err := netlink.LinkByName(cfg.Name)
			if err == nil {
				at = l.Attrs()
			}
			return err
		})
		return at
	}
	at := look()
	if at.MTU != 1500 || at.TxQLen != 700 || at.HardwareAddr.String() != "06:2c:00:05:00:00" ||
		at.Index != d.Index() || at.Flags&net.FlagUp == 0 ||
		at.RawFlags&unix.IFF_LOWER_UP != 0 {
		t.Errorf("%+v", at)
	}
	e := d.Event()
	if !e.Up || e.MTU != 1500 || e.MAC != cfg.Device.MAC || d.Problem() != "" {
		t.Errorf("event %+v, problem %q", e, d.Problem())
	}
	dev := cfg.Device
	for _, on := range []bool{true, false} {
		dev.Carrier = on
		d.Configure(dev)
		if look().RawFlags&unix.IFF_LOWER_UP != 0 != on {
			t.Errorf("carrier %v: %#x", on, look().RawFlags)
		}
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	s.Do(func() {
		if _, err := netlink.LinkByName(cfg.Name); !errors.As(err, &netlink.LinkNotFoundError{}) {
			t.Errorf("interface is still there (%v)", err)
		}
	})
	if n, err := d.TryReadBatch(make([][]byte, 1), make([]ether.Offload, 1)); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after the end: %d, %v", n, err)
	}
	if n := d.WriteBatch(make([][]byte, 3), make([]ether.Offload, 3)); n != 3 {
		t.Errorf("write after the end: %d dropped", n)
	}
	d.Configure(dev)
}

func TestEachFailureLeavesNothing(t *testing.T) {
	s := newSpace(t)
	for what, change := range map[string]func(*Config){
		"MTU 67":                func(c *Config) { c.Device.MTU = 67 },
		"MTU 1500 of at most 9": func(c *Config) { c.Device.MaxMTU = 900 },
		"name ":                 func(c *Config) { c.Name = "opa1v0_is_too_long" },
		"is a group address":    func(c *Config) { c.Device.MAC[0] = 1 },
		"is negative":           func(c *Config) { c.QueueLen = -1 },
	} {
		cfg := base
		change(&cfg)
		var err error
		s.Do(func() { _, err = Open(cfg) })
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The name is taken: the interface that has it stays.
	d := s.open(base)
	var err error
	s.Do(func() { _, err = Open(base) })
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(fmt.Sprint(err), "fix: ") {
		t.Errorf("name taken: %v", err)
	}
	if n, err := d.TryReadBatch(make([][]byte, 1), make([]ether.Offload, 1)); err != nil {
		t.Errorf("the other interface: %d, %v", n, err)
	}
	s.Do(func() {
		// The thread ends with the test, and its capabilities with it.
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err = unix.Capget(&hdr, &data[0]); err != nil {
			return
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err = unix.Capset(&hdr, &data[0]); err == nil {
			cfg := base
			cfg.Name = "opa1v1"
			_, err = Open(cfg)
		}
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(fmt.Sprint(err), "CAP_NET_ADMIN. fix: ") {
		t.Errorf("without CAP_NET_ADMIN: %v", err)
	}
	for _, c := range []struct {
		err  error
		want string
	}{{unix.ENOENT, "modprobe tun"}, {unix.EACCES, "chmod"}, {unix.EPERM, "--device"}} {
		if got := ifdev.TAP.Explain("open /dev/net/tun", c.err); !errors.Is(got, c.err) ||
			!strings.Contains(got.Error(), c.want) {
			t.Errorf("%v: no %q", got, c.want)
		}
	}
}

// Changes of the interface by the administrator are reported, as the complete state each time.
func TestEventsFollowTheInterface(t *testing.T) {
	s := newSpace(t)
	told := make(chan vnic.SegmentEvent, 1000)
	cfg := base
	cfg.Up = false
	cfg.Notify = func(e vnic.SegmentEvent) { told <- e }
	d := s.open(cfg)
	wait := func(what string, ok func(vnic.SegmentEvent) bool) vnic.SegmentEvent {
		t.Helper()
		end := time.After(patience)
		for {
			select {
			case e := <-told:
				if ok(e) {
					return e
				}
			case <-end:
				t.Fatalf("%s: not told; %+v, %s", what, d.Event(), d.Problem())
			}
		}
	}
	wait("at first", func(e vnic.SegmentEvent) bool { return !e.Up && e.MTU == 1500 && e.MAC == cfg.Device.MAC })
	s.Must(func() error { return netlink.LinkSetUp(s.link(d)) })
	wait("up", func(e vnic.SegmentEvent) bool { return e.Up && len(e.Unicast) == 0 })
	mac := net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}
	s.Must(func() error { return netlink.LinkSetHardwareAddr(s.link(d), mac) })
	wait("MAC", func(e vnic.SegmentEvent) bool { return e.MAC == [6]byte(mac) })
	s.Must(func() error { return netlink.LinkSetMTU(s.link(d), 8000) })
	wait("MTU", func(e vnic.SegmentEvent) bool { return e.MTU == 8000 })
	// More than the VESW carries is taken back.
	s.Must(func() error { return netlink.LinkSetMTU(s.link(d), 9001) })
	wait("MTU taken back", func(e vnic.SegmentEvent) bool { return e.MTU == 9000 })
	if n := d.Counters.MTURestored.Load(); n != 1 {
		t.Errorf("restored %d times", n)
	}
	// Groups of IP, and of packet sockets.
	s.addr(d, "10.20.0.1/24")
	var conn *net.UDPConn
	s.Must(func() (err error) {
		conn, err = net.ListenMulticastUDP("udp4", &net.Interface{Index: d.Index(), Name: d.Name()},
			&net.UDPAddr{IP: net.IP{239, 1, 2, 3}, Port: 4000})
		return err
	})
	has := func(list [][6]byte, mac ...byte) bool { return slices.Contains(list, [6]byte(mac)) }
	wait("IP group", func(e vnic.SegmentEvent) bool { return has(e.Multicast, 1, 0, 0x5e, 1, 2, 3) })
	conn.Close()
	wait("IP group left", func(e vnic.SegmentEvent) bool { return !has(e.Multicast, 1, 0, 0x5e, 1, 2, 3) })
	var fd int
	s.Must(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(d.Index()), Type: unix.PACKET_MR_MULTICAST, Alen: 6,
				Address: [8]uint8{1, 0x80, 0xc2, 0, 0, 0x0e}})
	})
	wait("group of a packet socket", func(e vnic.SegmentEvent) bool {
		return has(e.Multicast, 1, 0x80, 0xc2, 0, 0,
			0x0e)
	})
	unix.Close(fd)
	wait("its end", func(e vnic.SegmentEvent) bool { return !has(e.Multicast, 1, 0x80, 0xc2, 0, 0, 0x0e) })
	// Further addresses, as of what is behind a bridge.
	entry := &netlink.Neigh{LinkIndex: d.Index(), Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT,
		Flags: netlink.NTF_SELF, HardwareAddr: net.HardwareAddr{2, 1, 1, 1, 1, 1}}
	s.Must(func() error { return netlink.NeighAppend(entry) })
	wait("address", func(e vnic.SegmentEvent) bool { return has(e.Unicast, 2, 1, 1, 1, 1, 1) && e.MAC == [6]byte(mac) })
	s.Must(func() error { return netlink.NeighDel(entry) })
	wait("address removed", func(e vnic.SegmentEvent) bool { return len(e.Unicast) == 0 })
	s.Must(func() error { return netlink.LinkSetDown(s.link(d)) })
	wait("down", func(e vnic.SegmentEvent) bool { return !e.Up })
	s.Must(func() error { return netlink.LinkDel(s.link(d)) })
	wait("gone", func(e vnic.SegmentEvent) bool { return e.MTU == 0 })
	if n, err := d.TryReadBatch(make([][]byte, 1), make([]ether.Offload, 1)); n != 0 ||
		!errors.Is(err, ifdev.ErrRemoved) {
		t.Errorf("read of nothing: %d, %v", n, err)
	}
}

// Configure sets what has changed, and leaves what the administrator has changed.
func TestConfigure(t *testing.T) {
	s := newSpace(t)
	cfg := base
	cfg.Device.MAC = [6]byte{}
	d := s.open(cfg)
	if e := d.Event(); e.MAC != [6]byte{} {
		t.Errorf("MAC %x, which nobody gave", e.MAC)
	}
	dev := cfg.Device
	dev.MAC = base.Device.MAC
	d.Configure(dev)
	if e := d.Event(); e.MAC != base.Device.MAC {
		t.Errorf("MAC %x", e.MAC)
	}
	mac := [6]byte{0x52, 0x54, 0, 1, 2, 3}
	s.Must(func() error { return netlink.LinkSetHardwareAddr(s.link(d), mac[:]) })
	s.Must(func() error { return netlink.LinkSetMTU(s.link(d), 4000) })
	dev.Carrier = false
	d.Configure(dev)
	if e := d.Event(); e.MAC != mac || e.MTU != 4000 {
		t.Errorf("the administrator's MAC or MTU is gone: %+v", e)
	}
	// A lower bound takes the MTU with it, a higher one does not raise it.
	dev.MTU, dev.MaxMTU = 1200, 1200
	d.Configure(dev)
	if e := d.Event(); e.MTU != 1200 {
		t.Errorf("MTU %d", e.MTU)
	}
	dev.MaxMTU = 9000
	d.Configure(dev)
	if e := d.Event(); e.MTU != 1200 || d.Problem() != "" {
		t.Errorf("MTU %d, %s", e.MTU, d.Problem())
	}
}

// payload is reproducible octets.
func payload(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// Two hosts' stacks talk: segments pass whole, or cut and joined, with nothing lost on the way.
func TestStacksTalk(t *testing.T) {
	for _, c := range []struct {
		name  string
		whole bool
		mtu   int
	}{{"whole", true, 1500}, {"cut", false, 1500}, {"cut to 9000", false, 9000}} {
		t.Run(c.name, func(t *testing.T) {
			sa, sb := newSpace(t), newSpace(t)
			ca, cb := base, other()
			ca.Device.MTU, cb.Device.MTU = c.mtu, c.mtu
			a, b := sa.open(ca), sb.open(cb)
			wire := &cable{whole: c.whole, mtu: c.mtu}
			wire.plug(t, a, b)
			for _, v := range []struct{ a, b string }{{"10.20.0.1", "10.20.0.2"}, {"fd00:20::1", "fd00:20::2"}} {
				bits := "/24"
				if strings.Contains(v.a, ":") {
					bits = "/64"
				}
				sa.addr(a, v.a+bits)
				sb.addr(b, v.b+bits)
				stream(t, sa, sb, v.b)
				datagrams(t, sa, sb, v.b)
			}
			if wire.segments.Load() == 0 {
				t.Error("the kernel made no segments")
			}
			if !c.whole && wire.joined.Load() == 0 {
				t.Error("nothing was joined")
			}
			if n := a.Counters.NotDelivered.Load() + b.Counters.NotDelivered.Load(); n != 0 {
				t.Errorf("%d frames were not delivered", n)
			}
		})
	}
}

// stream sends octets by TCP and compares what comes back.
func stream(t *testing.T, sa, sb *space, to string) {
	t.Helper()
	want := payload(3 << 20)
	var l net.Listener
	sb.Must(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(to, "0")); return err })
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
	sa.Must(func() (err error) {
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
		t.Errorf("to %s: %d octets came back, %v", to, len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// datagrams sends segments of datagrams (UDP_SEGMENT) and compares what comes.
func datagrams(t *testing.T, sa, sb *space, to string) {
	t.Helper()
	const size, count = 1000, 20
	var l *net.UDPConn
	sb.Must(func() (err error) { l, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(to)}); return err })
	defer l.Close()
	_ = l.SetReadBuffer(1 << 20)
	_ = l.SetReadDeadline(time.Now().Add(patience))
	var c *net.UDPConn
	sa.Must(func() (err error) { c, err = net.DialUDP("udp", nil, l.LocalAddr().(*net.UDPAddr)); return err })
	defer c.Close()
	want := payload(size*count - 77)
	oob := make([]byte, unix.CmsgSpace(2))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(2)))
	binary.NativeEndian.PutUint32(oob[8:], unix.SOL_UDP)
	binary.NativeEndian.PutUint32(oob[12:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(oob[16:], size)
	if _, _, err := c.WriteMsgUDP(want, oob, nil); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	for at := 0; at < len(want); {
		n, err := l.Read(buf)
		if err != nil || n != min(size, len(want)-at) || !bytes.Equal(buf[:n], want[at:at+n]) {
			t.Fatalf("to %s, at %d: %d octets, %v", to, at, n, err)
		}
		at += n
	}
}

// A new MAC from the manager is announced to the neighbours at once.
func TestD09_AnotherMACIsAnnounced(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	if d.Problem() != "" {
		condtest.Lacks(t, "%s", d.Problem())
	}
	s.addr(d, "10.20.0.1/24")
	dev := base.Device
	dev.MAC[3] = 9
	d.Configure(dev)
	frames, off := make([][]byte, ifdev.BatchFrames), make([]ether.Offload, ifdev.BatchFrames)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		fds := []unix.PollFd{{Fd: int32(d.FD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 100); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		n, err := d.TryReadBatch(frames, off)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range frames[:n] {
			// ARP: of the new MAC, for its own address.
			if len(f) >= 42 && f[12] == 8 && f[13] == 6 && bytes.Equal(f[22:28], dev.MAC[:]) &&
				bytes.Equal(f[28:32], f[38:42]) {
				return
			}
		}
	}
	t.Error("no announcement")
}

// Tags pass as they are, both ways: by sockets, as kernels without the VLAN module have it.
func TestTags(t *testing.T) {
	sa, sb := newSpace(t), newSpace(t)
	a, b := sa.open(base), sb.open(other())
	(&cable{mtu: 1500}).plug(t, a, b)
	sock := func(s *space, d *Device) (fd int) {
		s.Must(func() (err error) {
			if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
				int(htons(unix.ETH_P_ALL))); err != nil {
				return err
			}
			if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
				return err
			}
			if err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
				&unix.Timeval{Sec: int64(patience.Seconds())}); err != nil {
				return err
			}
			return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: d.Index()})
		})
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	from, to := sock(sa, a), sock(sb, b)
	dst, src := other().Device.MAC, base.Device.MAC
	frame := append(append(slices.Clone(dst[:]), src[:]...), 0x81, 0, 0xa0, 100, 0x88, 0xb5)
	frame = append(frame, payload(200)...)
	if err := unix.Sendto(from, frame, 0, &unix.SockaddrLinklayer{Ifindex: a.Index(), Halen: 6}); err != nil {
		t.Fatal(err)
	}
	buf, oob := make([]byte, 2000), make([]byte, 100)
	for {
		n, on, _, _, err := unix.Recvmsg(to, buf, oob, 0)
		if err != nil {
			t.Fatal(err)
		}
		// The kernel removes the tag and reports it in a control message.
		if n == len(frame)-4 && bytes.Equal(buf[14:n], frame[18:]) && on >= 36 {
			if tci := binary.NativeEndian.Uint16(oob[16+16:]); tci != 0xa064 {
				t.Errorf("tag %#x", tci)
			}
			return
		}
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func TestNothingIsAllocated(t *testing.T) {
	sa, sb := newSpace(t), newSpace(t)
	a, b := sa.open(base), sb.open(other())
	frame := append(slices.Clone(base.Device.MAC[:]), make([]byte, 100)...)
	frames, off := [][]byte{frame}, make([]ether.Offload, 1)
	pieces := []ether.Frame{{Parts: [][]byte{frame[:20], frame[20:]}, Len: len(frame)}}
	in, inOff := make([][]byte, ifdev.BatchFrames), make([]ether.Offload, ifdev.BatchFrames)
	if n := testing.AllocsPerRun(50, func() {
		if a.WriteBatch(frames, off) != 0 || a.WriteFrames(pieces) != 0 {
			t.Error("not delivered")
		}
		_, _ = b.TryReadBatch(in, inOff)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	// What the kernel does not take is dropped, not what comes behind it.
	if n := a.WriteBatch([][]byte{frame[:4], frame}, make([]ether.Offload, 2)); n != 1 ||
		a.Counters.NotDelivered.Load() != 1 {
		t.Errorf("%d dropped", n)
	}
	if n := a.WriteFrames([]ether.Frame{{Parts: make([][]byte, ifdev.MaxPieces+1)}, pieces[0]}); n != 1 {
		t.Errorf("%d dropped", n)
	}
}

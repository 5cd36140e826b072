// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/host/ifdev"
	"weft/internal/proto/condtest"
	"weft/internal/service/ipoib"
)

var base = Config{Name: "ib0_1_7fff", MTU: 2044, QueueLen: 512, LinkLocal: addr("fe80::211:2233:4455:6677"),
	Addrs: []netip.Prefix{prefix("10.20.0.1/24"), prefix("2001:db8:20::1/64")}, Up: true}

func TestOpenMakesTheInterface(t *testing.T) {
	s := newSpace(t)
	cfg := base
	cfg.InfiniBand = true
	cfg.Routes = []Route{{Dst: prefix("10.99.0.0/16"), Via: via("10.20.0.2")}, {Dst: prefix("255.255.255.255/32")},
		{Dst: prefix("2001:db8:99::/48"), Via: via("2001:db8:20::2")}}
	d := s.open(cfg)
	st := d.State()
	if !st.Up || st.MTU != 2044 || st.Problem != "" || !st.has(addr("10.20.0.1")) ||
		!st.has(addr("2001:db8:20::1")) || !st.has(cfg.LinkLocal) {
		t.Errorf("state %+v", *st)
	}
	if len(st.Addrs) != 3 {
		t.Errorf("addresses %v: the kernel made one of its own", st.Addrs)
	}
	for dst, hop := range map[string]string{"10.99.1.1": "10.20.0.2", "10.20.0.9": "10.20.0.9",
		"10.20.0.255":     "10.20.0.255",
		"255.255.255.255": "255.255.255.255", "2001:db8:99::1": "2001:db8:20::2", "fe80::1": "fe80::1"} {
		if got := st.Routes.NextHop(addr(dst)); got != addr(hop) {
			t.Errorf("to %s: next hop %s, want %s", dst, got, hop)
		}
	}
	var at *netlink.LinkAttrs
	look := func() {
		s.Must(func() error {
			l, err := netlink.LinkByName(cfg.Name)
			if err == nil {
				at = l.Attrs()
			}
			return err
		})
	}
	look()
	if at.MTU != 2044 || at.GSOMaxSegs != maxSegments || at.Index != d.Index() || d.Name() != cfg.Name {
		t.Errorf("MTU %d, segments %d", at.MTU, at.GSOMaxSegs)
	}
	t.Run("H-13", func(t *testing.T) {
		if at.EncapType != "infiniband" {
			t.Errorf("type %q", at.EncapType)
		}
	})
	t.Run("H-14", func(t *testing.T) {
		if at.Flags&net.FlagMulticast == 0 || at.RawFlags&unix.IFF_NOARP == 0 || at.RawFlags&unix.IFF_LOWER_UP != 0 {
			t.Errorf("flags %v, raw %#x: want multicast and no ARP, and no carrier yet", at.Flags, at.RawFlags)
		}
	})
	t.Run("H-19", func(t *testing.T) {
		if at.TxQLen != cfg.QueueLen {
			t.Errorf("queue of %d, want %d", at.TxQLen, cfg.QueueLen)
		}
	})
	for _, on := range []bool{true, false} {
		if err := d.SetCarrier(on); err != nil {
			t.Fatal(err)
		}
		if look(); at.RawFlags&unix.IFF_LOWER_UP != 0 != on {
			t.Errorf("carrier %v: flags %#x", on, at.RawFlags)
		}
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	s.gone(cfg.Name)
	for what, err := range map[string]error{"carrier": d.SetCarrier(true), "MTU": d.SetMTU(1500)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s of a closed device: %v", what, err)
		}
	}
}

// gone fails the test if there is an interface of that name.
func (s *space) gone(name string) {
	s.T.Helper()
	s.Do(func() {
		if _, err := netlink.LinkByName(name); !errors.As(err, &netlink.LinkNotFoundError{}) {
			s.T.Errorf("interface %s is still there (%v)", name, err)
		}
	})
}

func TestEachFailureLeavesNothing(t *testing.T) {
	s := newSpace(t)
	for what, change := range map[string]func(*Config){
		"MTU 67": func(c *Config) { c.MTU = 67 },
		"name ":  func(c *Config) { c.Name = "ib0_1_7fff_is_too_long" },
		// unreachable gateway
		"add route to ": func(c *Config) {
			c.Routes = []Route{{Dst: prefix("10.99.0.0/16"),
				Via: via("10.77.0.1")}}
		},
		"host bits":          func(c *Config) { c.Routes = []Route{{Dst: netip.MustParsePrefix("10.99.0.1/16")}} },
		"cannot be an inter": func(c *Config) { c.Addrs = []netip.Prefix{prefix("224.0.0.1/4")} },
		"is not a link-loca": func(c *Config) { c.LinkLocal = addr("2001:db8::1") },
		"is negative":        func(c *Config) { c.QueueLen = -1 },
	} {
		cfg := base
		change(&cfg)
		var err error
		s.Do(func() { _, err = Open(cfg) })
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
		s.gone("ib0_1_7fff")
	}
	// The name is taken: the interface that has it stays.
	d := s.open(base)
	var err error
	s.Do(func() { _, err = Open(base) })
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(fmt.Sprint(err), "fix: ") {
		t.Errorf("name taken: %v", err)
	}
	if d.State().Gone {
		t.Error("the other interface is gone")
	}
}

func TestMissingPrivilegeIsExplained(t *testing.T) {
	s := newSpace(t)
	var err error
	s.Do(func() {
		// The thread ends with the test, and its capabilities with it.
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err = unix.Capget(&hdr, &data[0]); err != nil {
			return
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err = unix.Capset(&hdr, &data[0]); err == nil {
			_, err = Open(base)
		}
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN. fix: ") {
		t.Errorf("without CAP_NET_ADMIN: %v", err)
	}
	for _, c := range []struct {
		what string
		err  error
		want string
	}{{"open /dev/net/tun", unix.ENOENT, "modprobe tun"}, {"open /dev/net/tun", unix.EACCES,
		"chmod"}, {"open /dev/net/tun", unix.EPERM, "--device"}} {
		if got := ifdev.TUN.Explain(c.what, c.err); !errors.Is(got, c.err) || !strings.Contains(got.Error(), c.want) {
			t.Errorf("%v: no %q", got, c.want)
		}
	}
}

// A packet for a destination behind a gateway shows only the destination: the
// next hop comes from the routes, and follows them (S-11).
func TestNextHopFollowsRoutes(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	if err := d.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	got := make(chan packet, 64)
	reader(t, d, func(p packet) {
		if b := p.data; b[0]>>4 == 4 && b[9] == 17 || b[0]>>4 == 6 && b[6] == 17 {
			got <- p
		}
	})
	send := func(dst string, hop netip.Addr) {
		t.Helper()
		c := s.dialUDP(netip.AddrPortFrom(addr(dst), 9))
		var last packet
		for end := time.Now().Add(patience); time.Now().Before(end); {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			select {
			case p := <-got:
				// Others are of packets that were sent again.
				if a, _ := destination(p.data); a == addr(dst) {
					if last = p; p.hop == hop {
						return
					}
				}
			case <-time.After(50 * time.Millisecond): // the kernel drops packets until it has noted the carrier
			}
		}
		t.Fatalf("packets to %s: the last %v, want next hop %s", dst, last, hop)
	}
	route := func(change func(*netlink.Route) error, dst, gw string, table int) {
		t.Helper()
		r := &netlink.Route{LinkIndex: d.Index(), Dst: ipNet(prefix(dst)), Table: table}
		if addr(gw).Is4() == prefix(dst).Addr().Is4() {
			r.Gw = addr(gw).AsSlice()
		} else {
			r.Via = &netlink.Via{AddrFamily: unix.AF_INET6, Addr: addr(gw).AsSlice()}
		}
		s.Must(func() error { return change(r) })
	}
	want := func(dst, hop string) {
		t.Helper()
		await(t, d, "next hop of "+dst, func(st *State) bool { return st.Routes.NextHop(addr(dst)) == addr(hop) })
		send(dst, addr(hop))
	}
	want("10.20.0.7", "10.20.0.7")
	route(netlink.RouteReplace, "0.0.0.0/0", "10.20.0.2", 0)
	want("192.0.2.1", "10.20.0.2")
	route(netlink.RouteReplace, "192.0.2.0/24", "10.20.0.3", 0)
	want("192.0.2.1", "10.20.0.3")
	route(netlink.RouteReplace, "192.0.2.0/24", "10.20.0.4", 0)
	want("192.0.2.1", "10.20.0.4")
	route(netlink.RouteDel, "192.0.2.0/24", "10.20.0.4", 0)
	want("192.0.2.1", "10.20.0.2")
	route(netlink.RouteReplace, "198.51.100.0/24", "fe80::5", 0)
	want("198.51.100.1", "fe80::5")
	want("2001:db8:20::7", "2001:db8:20::7")
	route(netlink.RouteReplace, "2001:db8:99::/48", "fe80::9", 0)
	want("2001:db8:99::1", "fe80::9")
	// Another table's route counts too.
	route(netlink.RouteReplace, "203.0.113.0/24", "10.20.0.8", 100)
	await(t, d, "route of another table", func(st *State) bool { return st.Routes.NextHop(addr("203.0.113.5")) == addr("10.20.0.8") })
	// Several paths: those of this interface are used.
	paths := []netip.Addr{addr("10.20.0.21"), addr("10.20.0.22")}
	s.Must(func() error {
		return netlink.RouteReplace(&netlink.Route{Dst: ipNet(prefix("203.0.114.0/24")),
			MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: d.Index(), Gw: paths[0].AsSlice()}, {LinkIndex: d.Index(), Gw: paths[1].AsSlice()}}})
	})
	st := await(t, d, "route of several paths", func(st *State) bool {
		return slices.Contains(paths,
			st.Routes.NextHop(addr("203.0.114.1")))
	})
	send("203.0.114.1", st.Routes.NextHop(addr("203.0.114.1")))
	if slices.Contains(st.OnLink, prefix("0.0.0.0/0")) || !slices.Contains(st.OnLink, prefix("10.20.0.0/24")) ||
		!slices.Contains(st.OnLink, prefix("fe80::/64")) {
		t.Errorf("on the link are %v", st.OnLink)
	}
	// The routes of a removed address are removed, too, without a notification of the kernel.
	s.Must(func() error { return netlink.AddrDel(d.Link(), &netlink.Addr{IPNet: ipNet(prefix("10.20.0.1/24"))}) })
	await(t, d, "routes of an address", func(st *State) bool {
		return !st.has(addr("10.20.0.1")) && st.Routes.NextHop(addr("192.0.2.1")) == addr("192.0.2.1")
	})
}

func TestH35_MTUIsSetBack(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	s.Must(func() error { return netlink.LinkSetMTU(d.Link(), 1400) })
	await(t, d, "MTU", func(st *State) bool { return st.MTU == 2044 && d.Counters.MTURestored.Load() > 0 })
	if err := d.SetMTU(4092); err != nil {
		t.Fatal(err)
	}
	await(t, d, "MTU 4092", func(st *State) bool { return st.MTU == 4092 })
	if err := d.SetMTU(67); err == nil {
		t.Error("MTU 67 accepted")
	}
	// Below 1280 there is no IPv6; above, it is as it was.
	if err := d.SetMTU(1020); err != nil {
		t.Fatal(err)
	}
	await(t, d, "IPv4 only", func(st *State) bool { return st.MTU == 1020 && len(st.Addrs) == 1 })
	if err := d.SetMTU(2044); err != nil {
		t.Fatal(err)
	}
	st := await(t, d, "IPv6 again", func(st *State) bool {
		return st.MTU == 2044 && st.has(base.LinkLocal) && st.has(addr("2001:db8:20::1")) && len(st.Addrs) == 3
	})
	if st.Problem != "" {
		t.Error(st.Problem)
	}
}

func TestAddressesComeBackWithTheInterface(t *testing.T) {
	s := newSpace(t)
	cfg := base
	cfg.Up = false
	cfg.Routes = []Route{{Dst: prefix("10.99.0.0/16"), Via: via("10.20.0.2")}}
	d := s.open(cfg)
	if st := d.State(); st.Up || len(st.Addrs) != 0 {
		t.Errorf("state before it is up: %+v", *st)
	}
	for range 2 {
		s.Must(func() error { return netlink.LinkSetUp(d.Link()) })
		await(t, d, "up", func(st *State) bool {
			return st.Up && len(st.Addrs) == 3 && st.Routes.NextHop(addr("10.99.0.1")) == addr("10.20.0.2")
		})
		s.Must(func() error { return netlink.LinkSetDown(d.Link()) })
		await(t, d, "down", func(st *State) bool { return !st.Up && !st.has(base.LinkLocal) })
	}
	if n := d.Counters.Reconfigured.Load(); n < 2 {
		t.Errorf("reconfigured %d times", n)
	}
	// While it is down nothing is delivered, and that is counted.
	if err := d.WriteBatch([][]byte{datagram("10.20.0.9", "10.20.0.1", 1, 2, 8), datagram("10.20.0.8", "10.20.0.1", 1,
		2, 8)}, headroom); err != nil {
		t.Error(err)
	}
	if n := d.Counters.NotDelivered.Load(); n != 2 {
		t.Errorf("%d packets not delivered, want 2", n)
	}
	if err := d.WriteBatch(nil, headroom); err != nil {
		t.Error(err)
	}
}

// Notify gets the complete state: first the present one, and then each change.
func TestNotify(t *testing.T) {
	s := newSpace(t)
	var mu sync.Mutex
	var last ipoib.BackendEvent
	cfg := base
	cfg.Notify = func(e ipoib.BackendEvent) { mu.Lock(); defer mu.Unlock(); last = e }
	d := s.open(cfg)
	told := func(what string, ok func(ipoib.BackendEvent) bool) {
		t.Helper()
		await(t, d, what, func(*State) bool { mu.Lock(); defer mu.Unlock(); return ok(last) })
	}
	told("begin", func(e ipoib.BackendEvent) bool {
		return e.Up && e.MTU == 2044 && len(e.Addrs) == 3 && slices.Contains(e.OnLink, prefix("10.20.0.0/24")) &&
			slices.Contains(e.OnLink, prefix("2001:db8:20::/64"))
	})
	// A router has an anycast address in each prefix.
	s.Must(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0) })
	told("anycast", func(e ipoib.BackendEvent) bool { return slices.Contains(e.Addrs, prefix("2001:db8:20::/128")) })
	s.Must(func() error { return netlink.LinkSetDown(d.Link()) })
	told("down", func(e ipoib.BackendEvent) bool { return !e.Up && !slices.Contains(e.OnLink, prefix("10.20.0.0/24")) })
}

func TestWithoutIPv6(t *testing.T) {
	s := newSpace(t)
	cfg := base
	cfg.Addrs = []netip.Prefix{prefix("10.20.0.1/24")}
	cfg.MTU = 508
	d := s.open(cfg)
	if st := d.State(); len(st.Addrs) != 1 || st.Problem != "" {
		t.Errorf("MTU 508: %+v", *st)
	}
}

func TestRemovedInterface(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	ended := reader(t, d, func(packet) {})
	s.Must(func() error { return netlink.LinkDel(d.Link()) })
	await(t, d, "end", func(st *State) bool { return st.Gone && st.Problem != "" })
	select {
	case err := <-ended:
		if !errors.Is(err, ifdev.ErrRemoved) {
			t.Errorf("read: %v", err)
		}
		ended <- err // for the cleanup
	case <-time.After(patience):
		t.Fatal("the read goes on")
	}
	if err := d.WriteBatch([][]byte{datagram("10.20.0.9", "10.20.0.1", 1, 2, 8)}, headroom); !errors.Is(err,
		ifdev.ErrRemoved) {
		t.Errorf("write: %v", err)
	}
}

// TestRemovedInterfaceIsPolled: a reader that polls gets the error, too.
func TestRemovedInterfaceIsPolled(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	bufs, sizes, hops := buffers(headroom + base.MTU)
	s.Must(func() error { return netlink.LinkDel(d.Link()) })
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n, _, err := d.TryReadBatch(bufs, sizes, hops, headroom)
		switch {
		case errors.Is(err, ifdev.ErrRemoved):
			return
		case err != nil:
			t.Fatalf("read: %v", err)
		case n == 0 && time.Now().After(end):
			t.Fatal("there is nothing to read, and no error")
		}
	}
}

func TestCloseEndsRead(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	ended := reader(t, d, func(packet) {})
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	err := <-ended
	if !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	ended <- err
	if err := d.WriteBatch([][]byte{datagram("10.20.0.9", "10.20.0.1", 1, 2, 8)}, headroom); !errors.Is(err,
		os.ErrClosed) {
		t.Errorf("write: %v", err)
	}
	if _, err := d.ReadBatch(make([][]byte, 3), make([]int, 3), make([]netip.Addr, 3), headroom); err == nil {
		t.Error("a read into three buffers was accepted")
	}
}

// Buffers shorter than the interface's packets, as after a change of its MTU, cost the packets, not
// the reader.
func TestPacketsLongerThanBuffers(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	if err := d.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	c := s.dialUDP(netip.MustParseAddrPort("10.20.0.2:9"))
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for { // the kernel drops packets until it has noted the carrier
			for _, size := range []int{1000, 1000, 1} {
				if _, err := c.Write(make([]byte, size)); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	bufs, sizes, hops := buffers(headroom + 128)
	for {
		n, err := d.ReadBatch(bufs, sizes, hops, headroom)
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 && sizes[0] == 29 {
			break // others are the kernel's own, of groups
		}
	}
	if n := d.Counters.Unusable.Load(); n < 2 {
		t.Errorf("%d packets counted", n)
	}
}

// Packets that arrived between reads are read at once, super-packets (UDP_SEGMENT) among single ones.
func TestReadsAreBatched(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	if err := d.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	c := s.dialUDP(netip.MustParseAddrPort("10.20.0.2:9"))
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	segment := func(size int) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_UDP,
				unix.UDP_SEGMENT, size)
		}), err)
	}
	bufs, sizes, hops := buffers(headroom + 2044)
	want := map[int]int{28 + 1: 20, 28 + 1000: 40, 28 + 7: 1} // by length
	await(t, d, "a batch", func(*State) bool {                // the kernel drops packets until it has noted the carrier
		for range 20 {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if err := segment(1000); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(make([]byte, 40007)); err != nil {
			t.Fatal(err)
		}
		if err := segment(0); err != nil {
			t.Fatal(err)
		}
		got := map[int]int{}
		n, more, err := d.TryReadBatch(bufs, sizes, hops, headroom)
		if err != nil {
			t.Fatal(err)
		}
		for i, size := range sizes[:n] {
			p := bufs[i][headroom : headroom+size]
			if p[0]>>4 == 4 && p[9] == 17 {
				got[size]++
				if hops[i] != addr("10.20.0.2") || sum(p[:20]) != 0xffff {
					t.Errorf("packet %d by %s: % x", i, hops[i], p[:28])
				}
				if want := sum(p[12:20], []byte{0, 17, p[24], p[25]}, p[20:]); want != 0xffff {
					t.Errorf("checksum of packet %d: % x", i, p[20:28])
				}
			}
		}
		for more { // nothing of this turn is for the next
			if _, more, err = d.TryReadBatch(bufs, sizes, hops, headroom); err != nil {
				t.Fatal(err)
			}
		}
		return maps.Equal(got, want)
	})
	if n := d.Counters.TooManySegments.Load() + d.Counters.Unusable.Load(); n != 0 {
		t.Errorf("%d packets lost", n)
	}
}

// TCP and UDP with offloads between two stacks: segments arrive whole, none is
// longer than the MTU, and batches are batches (S-10).
func TestOffloads(t *testing.T) {
	for _, c := range []struct {
		name string
		mtu  int
		a, b netip.Prefix
	}{
		{"IPv4", 2044, prefix("10.20.0.1/24"), prefix("10.20.0.2/24")},
		{"IPv6", 2044, prefix("2001:db8::1/64"), prefix("2001:db8::2/64")},
		{"IPv4 of 252", 252, prefix("10.20.0.1/24"), prefix("10.20.0.2/24")},
	} {
		t.Run(c.name, func(t *testing.T) { testOffloads(t, c.mtu, c.a, c.b) })
	}
}

func testOffloads(t *testing.T, mtu int, a, b netip.Prefix) {
	sa, sb := newSpace(t), newSpace(t)
	cfg := Config{Name: "ib0_1_14", MTU: mtu, Up: true, Addrs: []netip.Prefix{a}}
	da := sa.open(cfg)
	cfg.Addrs = []netip.Prefix{b}
	db := sb.open(cfg)
	if err := errors.Join(da.SetCarrier(true), db.SetCarrier(true)); err != nil {
		t.Fatal(err)
	}
	c := join(t, da, db, mtu)

	const size = 1 << 20
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i>>12 ^ i)
	}
	var ln net.Listener
	sb.Must(func() (err error) {
		ln, err = (&net.ListenConfig{}).Listen(within(t), "tcp", netip.AddrPortFrom(b.Addr(), 0).String())
		return err
	})
	defer ln.Close()
	received := make(chan []byte, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			t.Error(err)
			received <- nil
			return
		}
		defer conn.Close()
		got, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		received <- got
	}()
	sa.Must(func() error {
		conn, err := (&net.Dialer{}).DialContext(within(t), "tcp", ln.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(sent)
		return err
	})
	select {
	case got := <-received:
		if !bytes.Equal(got, sent) {
			t.Errorf("%d octets arrived changed or short", len(got))
		}
	case <-time.After(patience):
		t.Fatal("TCP does not end")
	}
	if n := c.largest.Load(); n < 4 {
		t.Errorf("the largest batch was of %d packets: no segmentation offload", n)
	}
	if n := da.Counters.TooManySegments.Load() + db.Counters.TooManySegments.Load(); n != 0 {
		t.Errorf("%d super-packets were cut off", n)
	}
	var at *netlink.LinkAttrs
	sb.Must(func() error {
		l, err := netlink.LinkByIndex(db.Index())
		if err == nil {
			at = l.Attrs()
		}
		return err
	})
	// What the stack was given are fewer packets than were carried.
	if in := int64(at.Statistics.RxPackets); in == 0 || in >= c.packets.Load()/2 {
		t.Errorf("%d packets carried, %d written to the stack: no receive offload", c.packets.Load(), in)
	}
}

func TestWriteAllocatesNothingPerPacket(t *testing.T) {
	s := newSpace(t)
	d := s.open(base)
	var bufs [][]byte
	for range 64 {
		p := datagram("10.20.0.9", "10.20.0.1", 7, 2, 1000)
		bufs = append(bufs, p)
	}
	write := func() {
		if err := d.WriteBatch(bufs, headroom); err != nil {
			t.Error(err)
		}
	}
	write()
	// What follows the kernel's news of the interface allocates meanwhile, so some
	// runs show more than the writing.
	least := testing.AllocsPerRun(100, write)
	for i := 0; i < 50 && least > 0; i++ {
		least = min(least, testing.AllocsPerRun(100, write))
	}
	if least > 0 {
		t.Errorf("%v allocations for 64 packets", least)
	}
	if n := d.Counters.NotDelivered.Load(); n != 0 {
		t.Errorf("%d packets refused", n)
	}
}

// TestRefusedPacketsAreBounded: one call reads no more than so many packets that are not IP.
func TestRefusedPacketsAreBounded(t *testing.T) {
	s := newSpace(t)
	d := s.open(Config{Name: "t0", MTU: 1500, QueueLen: 1000, Up: true})
	if err := d.SetCarrier(true); err != nil {
		t.Fatal(err)
	}
	await(t, d, "up", func(v *State) bool { return v.Up })
	send := func(count int) {
		t.Helper()
		s.Must(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			for range count {
				if err := unix.Sendto(fd, make([]byte, 30), 0, &unix.SockaddrLinklayer{Protocol: 0xb588,
					Ifindex: d.Index()}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	bufs, sizes, hops := make([][]byte, BatchSize), make([]int, BatchSize), make([]netip.Addr, BatchSize)
	for i := range bufs {
		bufs[i] = make([]byte, 2000)
	}
	// read reads all, and returns the number of refused packets of each call.
	read := func() (refused []uint64) {
		t.Helper()
		for more := true; more; {
			var err error
			before := d.Counters.NotIP.Load()
			if _, more, err = d.TryReadBatch(bufs, sizes, hops, 0); err != nil {
				t.Fatal(err)
			}
			refused = append(refused, d.Counters.NotIP.Load()-before)
		}
		return refused
	}
	// The kernel queues packets some time after there is a carrier.
	condtest.Until(t, "a packet arrives", func() bool {
		if d.Counters.NotIP.Load() > 0 {
			return true
		}
		send(1)
		read()
		return false
	})
	const count = 2*BatchSize + 10
	before := d.Counters.NotIP.Load()
	send(count)
	refused := read()
	if slices.Max(refused) > BatchSize || d.Counters.NotIP.Load()-before != count {
		t.Errorf("%d packets refused, in each call %d; want %d, at most %d in each", d.Counters.NotIP.Load()-before,
			refused, count, BatchSize)
	}
}

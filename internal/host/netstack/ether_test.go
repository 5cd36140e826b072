// SPDX-License-Identifier: Apache-2.0

package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"weft/internal/proto/condtest"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// connector is a stack as programs use it.
type connector interface {
	DialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	ListenTCP(at netip.AddrPort) (net.Listener, error)
}

// lan is a switch with stacks at it, and the lane that carries their frames.
type lan struct {
	t       testing.TB
	cut     bool // segments are cut and joined, as between nodes
	mtu     int
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
	at      []*Ether
	off     atomic.Bool // nothing passes
	see     func(from int, frame []byte)
	whole   atomic.Int64 // segments that came
	joined  atomic.Int64 // and were made again
	mu      sync.Mutex
	foreign [][]byte // frames to be written to all
}

// lanPair is two stacks at a switch.
func lanPair(t testing.TB, l *lan, change func(i int, c *EtherConfig)) (a, b *Ether) {
	t.Helper()
	l.t, l.wake, l.stop, l.done = t, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	if l.mtu == 0 {
		l.mtu = 1500
	}
	for i := range 2 {
		c := EtherConfig{Name: fmt.Sprintf("opa%dv0", i+1),
			Device: vnic.Device{MAC: [6]byte{2, 0, 0, byte(i + 1), 0, 0}, MTU: l.mtu, MaxMTU: l.mtu, Carrier: true},
			Addrs: []netip.Prefix{prefix(fmt.Sprintf("10.20.0.%d/24", i+1)),
				prefix(fmt.Sprintf("2001:db8:20::%d/64", i+1))},
			Wake: l.rouse}
		if change != nil {
			change(i, &c)
		}
		d, err := OpenEther(c)
		if err != nil {
			t.Fatal(err)
		}
		l.at = append(l.at, d)
	}
	go l.run()
	t.Cleanup(func() {
		close(l.stop)
		<-l.done
		for _, d := range l.at {
			d.Close()
		}
	})
	return l.at[0], l.at[1]
}

func (l *lan) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *lan) run() {
	defer close(l.done)
	frames, off := make([][]byte, etherBatch), make([]ether.Offload, etherBatch)
	join := ether.NewJoiner(2048, false, 1)
	for {
		busy := false
		for i, d := range l.at {
			n, err := d.TryReadBatch(frames, off)
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					l.t.Error(err)
				}
				continue
			}
			busy = busy || n > 0
			var cut [][]byte
			for k, f := range frames[:n] {
				cut = append(cut, l.one(i, f, &off[k])...)
			}
			other := l.at[1-i]
			switch {
			case l.off.Load():
			case !l.cut:
				other.WriteBatch(frames[:n], off[:n])
			default:
				out := join.Join(cut, other.Takes())
				for _, o := range out {
					if o.Off.Kind() != ether.GSONone {
						l.joined.Add(1)
					}
				}
				other.WriteFrames(out)
			}
		}
		l.mu.Lock()
		if len(l.foreign) > 0 {
			for _, d := range l.at {
				d.WriteBatch(l.foreign, make([]ether.Offload, len(l.foreign)))
			}
			l.foreign = nil
		}
		l.mu.Unlock()
		for _, d := range l.at {
			busy = d.Arm() || busy
		}
		if busy {
			continue
		}
		select {
		case <-l.wake:
		case <-l.stop:
			return
		}
	}
}

// one judges a frame as a port would, and cuts it.
func (l *lan) one(from int, f []byte, off *ether.Offload) (cut [][]byte) {
	in := ether.Classify(f)
	if why := off.Check(f, &in); why != ether.OK {
		l.t.Errorf("%v: %x", why, f[:min(len(f), 100)])
		return nil
	}
	if l.see != nil {
		l.see(from, f)
	}
	if off.Kind() != ether.GSONone {
		l.whole.Add(1)
	}
	if !l.cut {
		return nil
	}
	var s ether.Splitter
	n, why := s.Start(f, *off, &in, l.mtu)
	if why != ether.OK {
		l.t.Errorf("%v: %d octets", why, len(f))
	}
	for range n {
		b := make([]byte, s.Len())
		s.Next(b)
		cut = append(cut, b)
	}
	return cut
}

func TestEtherTalks(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  bool
		mtu  int
	}{{"whole", false, 1500}, {"cut", true, 1500}, {"cut to 9000", true, 9000}} {
		t.Run(c.name, func(t *testing.T) {
			l := &lan{cut: c.cut, mtu: c.mtu}
			a, b := lanPair(t, l, nil)
			for _, at := range []string{"10.20.0.2:80", "[2001:db8:20::2]:80", "[fe80::ff:fe02:0]:80"} {
				exchange(t, a, b, netip.MustParseAddrPort(at), 1<<20)
			}
			if l.whole.Load() == 0 || c.cut && l.joined.Load() == 0 {
				t.Errorf("%d segments came, %d were joined", l.whole.Load(), l.joined.Load())
			}
			for _, at := range []string{"10.20.0.2:9", "[2001:db8:20::2]:9"} {
				at := netip.MustParseAddrPort(at)
				echoUDP(t, must(b.ListenUDP(at))(t))
				conn := must(a.DialUDP(at))(t)
				for _, n := range []int{1, 1000, 20000} { // the last in fragments
					data, buf := pattern(n), make([]byte, 65536)
					if _, err := conn.Write(data); err != nil {
						t.Fatal(err)
					}
					if k, err := conn.Read(buf); err != nil || !bytes.Equal(buf[:k], data) {
						t.Errorf("%d of %d octets, %v", k, n, err)
					}
				}
				conn.Close()
				if _, err := a.Ping(within(t), at.Addr(), 100); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestEtherResolves(t *testing.T) {
	a, b := lanPair(t, &lan{}, nil)
	for _, ip := range []string{"10.20.0.2", "2001:db8:20::2"} {
		if mac, err := a.Resolve(within(t), addr(ip)); err != nil || mac != [6]byte{2, 0, 0, 2, 0, 0} {
			t.Errorf("%s: %x, %v", ip, mac, err)
		}
	}
	type found struct {
		mac [6]byte
		ok  bool
	}
	for ip, want := range map[string]found{"10.20.0.2": {[6]byte{2, 0, 0, 2, 0, 0}, true},
		"2001:db8:20::2": {[6]byte{2, 0, 0, 2, 0, 0}, true}, "10.20.0.96": {}} {
		got := make(chan found, 1)
		if err := a.Seek(addr(ip), func(mac [6]byte, ok bool) { got <- found{mac, ok} }); err != nil {
			t.Errorf("%s: %v", ip, err)
			continue
		}
		select {
		case f := <-got:
			if f != want {
				t.Errorf("%s: %+v, want %+v", ip, f, want)
			}
		case <-within(t).Done():
			t.Errorf("%s: no answer", ip)
		}
	}
	if err := a.Seek(addr("192.0.2.1"), func([6]byte, bool) { t.Error("an answer without a way") }); err == nil {
		t.Error("a neighbour without a way is looked for")
	}
	if mac, err := a.Resolve(within(t), addr("10.20.0.99")); !errors.Is(err, syscall.EHOSTUNREACH) &&
		!errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("nobody: %x, %v", mac, err)
	}
	if _, err := a.Resolve(within(t), addr("192.0.2.1")); !errors.Is(err, syscall.EHOSTUNREACH) &&
		!errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("no route: %v", err)
	}
	if _, err := a.DialTCP(within(t), netip.MustParseAddrPort("10.20.0.98:80")); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("connect to nobody: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Resolve(ctx, addr("10.20.0.97")); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Beyond the gateway: its MAC is the one.
func TestEtherGateway(t *testing.T) {
	a, b := lanPair(t, &lan{}, func(i int, c *EtherConfig) {
		if i == 0 {
			c.Routes = []Route{{Dst: prefix("192.0.2.0/24"), Via: addr("10.20.0.2")}}
		} else {
			c.Addrs = append(c.Addrs, prefix("192.0.2.1/32"))
		}
	})
	if mac, err := a.Resolve(within(t), addr("192.0.2.1")); err != nil || mac != [6]byte{2, 0, 0, 2, 0, 0} {
		t.Errorf("%x, %v", mac, err)
	}
	exchange(t, a, b, netip.MustParseAddrPort("192.0.2.1:80"), 1000)
}

func TestEtherServices(t *testing.T) {
	a, b := lanPair(t, &lan{cut: true}, nil)
	l := hostListener(t)
	echo(t, l)
	at := netip.MustParseAddrPort("10.20.0.2:7")
	must(b.Forward(Forward{Network: "tcp", Listen: at, To: portOf(l.Addr()), Inward: true}))(t)
	out := must(a.Forward(Forward{Network: "tcp", Listen: loopback, To: at}))(t)
	c := must(net.Dial("tcp", out.Addr().String()))(t)
	roundTrip(t, c, 300000)
	c.Close()
	must(a.SOCKS(SOCKS{Listen: loopback}))(t)
}

// Another MAC is announced, and connections go on.
func TestEtherMACChanges(t *testing.T) {
	var mu sync.Mutex
	announced := map[string]bool{}
	l := &lan{see: func(from int, f []byte) {
		mu.Lock()
		defer mu.Unlock()
		in := ether.Classify(f)
		switch {
		case from == 1 && in.EtherType == ether.TypeARP && bytes.Equal(f[28:32], f[38:42]):
			announced[fmt.Sprintf("%x %x", f[22:28], f[28:32])] = true
		case from == 1 && in.EtherType == ether.TypeIPv6 && len(f) == 86 && f[20] == 58 && f[54] == 136:
			announced[fmt.Sprintf("%x %x", f[80:86], f[62:78])] = true
			if sum(f[22:54], []byte{0, 32, 0, 58}, f[54:]) != 0xffff {
				t.Errorf("checksum of %x", f)
			}
		}
	}}
	a, b := lanPair(t, l, nil)
	exchange(t, a, b, netip.MustParseAddrPort("10.20.0.2:80"), 1000)
	dev := b.cfg.Device
	dev.MAC = [6]byte{2, 0, 0, 9, 0, 0}
	b.Configure(dev)
	condtest.Until(t, "announcements", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return announced["020000090000 0a140002"] && announced["020000090000 20010db8002000000000000000000002"]
	})
	condtest.Until(t, "the neighbour's word", func() bool {
		mac, err := a.Resolve(within(t), addr("10.20.0.2"))
		return err == nil && mac == dev.MAC
	})
	exchange(t, a, b, netip.MustParseAddrPort("10.20.0.2:81"), 1000)
	exchange(t, a, b, netip.MustParseAddrPort("[2001:db8:20::2]:81"), 1000)
}

func TestEtherEvents(t *testing.T) {
	told := make(chan vnic.SegmentEvent, 100)
	a, _ := lanPair(t, &lan{}, func(i int, c *EtherConfig) {
		if i == 0 {
			c.Device = vnic.Device{MTU: 1500, MaxMTU: 1500}
			c.MTU = 4000
			c.Notify = func(e vnic.SegmentEvent) { told <- e }
		}
	})
	wait := func(what string, ok func(vnic.SegmentEvent) bool) {
		t.Helper()
		for ctx := within(t); ; {
			select {
			case e := <-told:
				if ok(e) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("%s: not told, %+v", what, a.Event())
			}
		}
	}
	has := func(e vnic.SegmentEvent, mac ...byte) bool { return slices.Contains(e.Multicast, [6]byte(mac)) }
	wait("at first", func(e vnic.SegmentEvent) bool {
		return e.Up && e.MTU == 1500 && e.MAC == [6]byte{} && has(e, 1, 0, 0x5e, 0, 0, 1) &&
			has(e, 0x33, 0x33, 0, 0, 0, 1) && has(e, 0x33, 0x33, 0xff, 0, 0, 1)
	})
	if a.WriteBatch([][]byte{append([]byte{2, 0, 0, 9, 0, 0}, make([]byte, 60)...), {1, 2}},
		make([]ether.Offload, 2)) != 0 || a.Counters.OtherHost.Load() != 1 {
		t.Errorf("%d frames for another", a.Counters.OtherHost.Load())
	}
	// The port gets a MAC and a larger MTU than the stack requested.
	a.Configure(vnic.Device{MAC: [6]byte{2, 0, 0, 7, 8, 9}, MTU: 1500, MaxMTU: 9000, Carrier: true})
	wait("MAC and MTU", func(e vnic.SegmentEvent) bool {
		return e.MTU == 4000 && e.MAC == [6]byte{2, 0, 0, 7, 8, 9} && has(e, 0x33, 0x33, 0xff, 7, 8, 9)
	})
	for group, mac := range map[string][]byte{"239.129.2.3": {1, 0, 0x5e, 1, 2, 3}, "ff05::1:2": {0x33, 0x33, 0, 1, 0,
		2}} {
		if err := a.JoinGroup(addr(group)); err != nil {
			t.Fatal(err)
		}
		wait("joined "+group, func(e vnic.SegmentEvent) bool { return has(e, mac...) })
		if err := a.LeaveGroup(addr(group)); err != nil {
			t.Fatal(err)
		}
		wait("left "+group, func(e vnic.SegmentEvent) bool { return !has(e, mac...) })
	}
	a.Configure(vnic.Device{MAC: [6]byte{2, 0, 0, 7, 8, 9}, MTU: 1300, MaxMTU: 1300})
	wait("less MTU", func(e vnic.SegmentEvent) bool { return e.MTU == 1300 })
	before := a.Counters.NoCarrier.Load()
	c := must(a.DialUDP(netip.MustParseAddrPort("10.20.0.255:9")))(t)
	defer c.Close()
	_, _ = c.Write([]byte("x"))
	if a.Counters.NoCarrier.Load() == before {
		t.Error("something passed without carrier")
	}
}

// Malformed packets are dropped and affect no connection.
func TestEtherHostile(t *testing.T) {
	l := &lan{}
	a, b := lanPair(t, l, nil)
	l.mu.Lock()
	for n := range 100 {
		f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 9, 9, 9, 9, 9, 8, byte(n % 7)}, pattern(n)...)
		l.foreign = append(l.foreign, f[:len(f)-n/2], f[:min(n, 14)])
	}
	l.mu.Unlock()
	l.rouse()
	exchange(t, a, b, netip.MustParseAddrPort("10.20.0.2:80"), 100000)
	if n := a.WriteFrames([]ether.Frame{{Parts: [][]byte{make([]byte, 7), make([]byte, 60)}, Len: 67}}); n != 0 {
		t.Errorf("%d dropped", n)
	}
}

func TestEtherEnds(t *testing.T) {
	for what, change := range map[string]func(*EtherConfig){
		"no function":     func(c *EtherConfig) { c.Wake = nil },
		"MTU 67":          func(c *EtherConfig) { c.MTU = 67 },
		"of the port":     func(c *EtherConfig) { c.Device.MTU = 0 },
		"cannot be an in": func(c *EtherConfig) { c.Addrs = []netip.Prefix{prefix("224.0.0.1/4")} },
		"gateway of its ": func(c *EtherConfig) { c.Routes = []Route{{Dst: prefix("10.0.0.0/8")}} },
	} {
		c := EtherConfig{Name: "opa1v0", Device: vnic.Device{MTU: 1500, MaxMTU: 1500}, Wake: func() {}}
		change(&c)
		if _, err := OpenEther(c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	a, _ := lanPair(t, &lan{}, nil)
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Error(err)
	}
	if n, err := a.TryReadBatch(make([][]byte, 1), make([]ether.Offload, 1)); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("read after the end: %d, %v", n, err)
	}
	if n := a.WriteBatch(make([][]byte, 2), make([]ether.Offload, 2)); n != 2 {
		t.Errorf("write after the end: %d dropped", n)
	}
	if _, err := a.Resolve(within(t), addr("10.20.0.2")); err == nil {
		t.Error("a closed stack resolves")
	}
}

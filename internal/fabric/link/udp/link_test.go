// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/fault"
	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/fabric/trunk/trust"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// testTrust is that of a key that all nodes have.
var testTrust = func() handshake.Trust {
	k, err := trust.FromKey(bytes.Repeat([]byte{7}, trust.KeyLen), "test", time.Now())
	if err != nil {
		panic(err)
	}
	return k
}()

// node is a Link with one Sender and what it received.
type node struct {
	*Link
	*Sender
	t      testing.TB
	start  time.Time
	got    [][]byte
	events []trunk.Event
	apart  chan func() // what follows a part of a handshake that was computed
}

func (n *node) now() mono.Time { return mono.Time(time.Since(n.start)) + 1 }

func newNode(t testing.TB, cfg Config) *node {
	t.Helper()
	n := &node{t: t, start: time.Now(), apart: make(chan func(), 1)}
	cfg.Apart = func(work func(), then func(mono.Time)) bool {
		go func() {
			work()
			n.apart <- func() { then(n.now()) }
		}()
		return true
	}
	cfg.RecvBuffer = 8 << 20
	cfg.Event = func(e trunk.Event) { n.events = append(n.events, e) }
	// A loaded machine may not run a test for a second.
	cfg.DownAfter = 20 * time.Second
	if cfg.Trust == nil {
		cfg.Trust = testTrust
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if l.works {
			<-n.apart
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	n.Link, n.Sender = l, l.Sender(5)
	return n
}

func (n *node) poll() {
	for len(n.apart) > 0 {
		(<-n.apart)()
	}
	for more := true; more; {
		// Packets stay until the next Recv.
		var here [][]byte
		more = n.Recv(n.now(), func(peer int, p []byte) { here = append(here, p) })
		if len(here) > MaxRecv {
			n.t.Errorf("one Recv delivered %d packets", len(here))
		}
		for _, p := range here {
			n.got = append(n.got, bytes.Clone(p))
		}
	}
	if n.Link.Deadline().Due(n.now()) {
		n.Tick(n.now())
	}
}

// await turns the nodes until done.
func await(t testing.TB, what string, done func() bool, nodes ...*node) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); {
		if time.Now().After(end) {
			for _, n := range nodes {
				t.Errorf("status %+v\ncounters %+v, sent %+v", n.Status(0), n.Link.Counters(), n.Sender.Counters(0))
			}
			t.Fatalf("waited in vain for %s", what)
		}
		for _, n := range nodes {
			n.poll()
		}
	}
}

func (n *node) send(packets ...[]byte) {
	n.t.Helper()
	for _, p := range packets {
		b := n.Reserve(0, len(p))
		if b == nil {
			n.t.Fatalf("no room for %d octets: %+v", len(p), n.Sender.Counters(0))
		}
		copy(b, p)
		n.Commit(n.now(), len(p))
	}
	n.Flush(n.now())
}

// Ports of this process: others may run the same tests.
var (
	portA = uint16(12000 + os.Getpid()%10000*2)
	portB = portA + 1
)

// unopened returns the configurations of two nodes joined by a trunk.
func unopened(host string) (a, b Config) {
	addr := netip.MustParseAddr(host)
	a = Config{Node: 0xa000, Trust: testTrust, Port: portA, Peers: []Peer{{Addr: netip.AddrPortFrom(addr, portB),
		Local: addr}}}
	b = Config{Node: 0xb000, Trust: testTrust, Port: portB, Peers: []Peer{{Addr: netip.AddrPortFrom(addr, portA),
		Local: addr,
		Node:  0xa000}}}
	return a, b
}

func pair(t testing.TB, host string) (a, b *node) {
	t.Helper()
	return pairMode(t, host, seal.Encrypt)
}

func pairMode(t testing.TB, host string, mode seal.Mode) (a, b *node) {
	t.Helper()
	ca, cb := unopened(host)
	ca.Mode, cb.Mode = mode, mode
	a, b = newNode(t, ca), newNode(t, cb)
	settled := func(n *node) bool { s := n.Status(0); return s.Up && s.Measured }
	await(t, "the trunk", func() bool { return settled(a) && settled(b) }, a, b)
	return a, b
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

// inNamespace runs f on a thread in a new network namespace, with this MTU at the loopback interface
// and, if cut is set, cuts trains.
func inNamespace(t *testing.T, name string, mtu int, cut bool, f func(t *testing.T, lo netlink.Link)) {
	t.Run(name, func(t *testing.T) {
		runtime.LockOSThread() // never unlocked: thread and namespace end with the test's goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			condtest.Lacks(t, "needs CAP_SYS_ADMIN for a network namespace: %v", err)
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		// The loopback interface passes packets over a queue of the processor they
		// are sent on: with one processor order is kept.
		var all, one unix.CPUSet
		check(unix.SchedGetaffinity(0, &all))
		for i := 0; one.Count() == 0; i++ {
			if all.IsSet(i) {
				one.Set(i)
			}
		}
		check(unix.SchedSetaffinity(0, &one))
		lo, err := netlink.LinkByName("lo")
		check(err)
		check(netlink.LinkSetMTU(lo, mtu))
		if cut {
			check(netlink.LinkSetGSOMaxSegs(lo, 1))
		}
		check(netlink.LinkSetUp(lo))
		f(t, lo)
	})
}

var lengths = []int{1, 26, 30, 30, 1060, 1060, 1446, 1447, 4178, 4178, 4178, 4178, 10240, trunk.MaxPacket, 7}

func packets(lengths ...int) (out [][]byte) {
	for _, n := range lengths {
		out = append(out, random(n))
	}
	return out
}

// equal compares packets in order.
func equal(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("packet %d of %d octets differs from that of %d", i, len(got[i]), len(want[i]))
		}
	}
}

// TestTrunk carries packets of all lengths both ways, over large and small
// underlays, with trains cut by the kernel and without.
func TestTrunk(t *testing.T) {
	for _, mtu := range []int{576, 1500, 9000, 65536} {
		for _, host := range []string{"127.0.0.1", "::1"} {
			if host == "::1" && mtu < 1280 {
				continue
			}
			for _, noGSO := range []bool{false, true} {
				inNamespace(t, fmt.Sprintf("MTU%d/%s/noGSO=%v", mtu, host, noGSO), mtu, false,
					func(t *testing.T, _ netlink.Link) {
						a, b := pair(t, host)
						a.noGSO, b.noGSO = noGSO, noGSO
						want := packets(slices.Concat(lengths, slices.Repeat([]int{4178}, 40), slices.Repeat([]int{26},
							100))...)
						a.send(want...)
						b.send(want...)
						await(t, "packets", func() bool { return len(a.got) >= len(want) && len(b.got) >= len(want) },
							a, b)
						for _, n := range []*node{a, b} {
							equal(t, n.got, want)
							s, c := n.Status(0), n.Sender.Counters(0)
							if s.Packets != uint64(len(want)) || s.Lost+s.Reordered+s.Expired != 0 ||
								s.Drop != (trunk.Refusals{}) {
								t.Errorf("received: %+v", s)
							}
							if c.Packets != uint64(len(want)) || c.Datagrams == 0 || (c.GSO == 0) != noGSO {
								t.Errorf("sent: %+v", c)
							}
							headers := 28
							if host == "::1" {
								headers = 48
							}
							if want := min(mtu-headers, trunk.MaxDatagram); s.Limit != want {
								t.Errorf("largest datagram %d, want %d", s.Limit, want)
							}
							if got := n.Sender.Degraded(); len(got) > 0 != noGSO {
								t.Errorf("degraded states: %+v", got)
							}
							if got := n.Link.Degraded(); len(got) != 0 {
								t.Errorf("degraded states: %+v", got)
							}
						}
						await(t, "a round trip", func() bool { return a.Status(0).RTT > 0 && b.Status(0).RTT > 0 }, a,
							b)
						if a.events[0] != (trunk.Event{Peer: 0, Up: true, Node: 0xb000}) ||
							len(a.events) != 1 {
							t.Errorf("events: %+v", a.events)
						}
					})
			}
		}
	}
}

// TestManyPackets sends until every bound of a batch was met: octets, pieces,
// trains, messages of one call.
func TestManyPackets(t *testing.T) {
	for _, c := range []struct {
		mtu   int
		sizes []int
		n     int
	}{{1500, []int{1, 16000}, 600}, {576, []int{16384}, 200}, {1500, []int{1460, 1300}, 2000}, {65536, []int{4178},
		3000}, {65536, []int{28}, 20000}} {
		inNamespace(t, fmt.Sprintf("MTU%d/%v", c.mtu, c.sizes), c.mtu, false, func(t *testing.T, _ netlink.Link) {
			a, b := pair(t, "127.0.0.1")
			r := rand.New(rand.NewPCG(1, 2))
			sum := 0
			for i := range c.n {
				p := random(c.sizes[i%len(c.sizes)])
				sum += len(p)
				// Some flushes, but seldom.
				bytes := a.Reserve(0, len(p))
				if bytes == nil {
					t.Fatalf("packet %d: %+v", i, a.Sender.Counters(0))
				}
				copy(bytes, p)
				a.Commit(0, len(p))
				if r.IntN(100) == 0 {
					a.Flush(0)
					b.poll()
				}
			}
			a.Flush(0)
			await(t, "packets", func() bool { return len(b.got) >= c.n }, a, b)
			for i, p := range b.got {
				if !bytes.Equal(p, random(c.sizes[i%len(c.sizes)])) {
					t.Fatalf("packet %d differs", i)
				}
			}
		})
	}
}

// TestPathMTUChanges shrinks and widens the path while the trunk is up.
func TestPathMTUChanges(t *testing.T) {
	inNamespace(t, "lo", 9000, false, func(t *testing.T, lo netlink.Link) {
		a, b := pair(t, "127.0.0.1")
		for i, mtu := range []int{1500, 9000, 1500} {
			if err := netlink.LinkSetMTU(lo, mtu); err != nil {
				t.Fatal(err)
			}
			a.Sender.c[0], b.got = SendCounters{}, nil
			// What was laid out for the path before is lost, once, by a name.
			a.send(packets(4178, 4178)...)
			c := a.Sender.Counters(0)
			if mtu == 1500 && (c.DropTooBig == 0 || c.Packets != 0) {
				t.Errorf("step %d: sent %+v", i, c)
			}
			if got := a.peers[0].remote().Limit; mtu == 1500 && got != mtu-28 {
				t.Errorf("step %d: largest datagram %d, want %d", i, got, mtu-28)
			}
			await(t, "the new path MTU", func() bool {
				return a.peers[0].remote().Limit == mtu-28 && b.peers[0].remote().Limit == mtu-28
			}, a, b)
			b.got = nil
			a.send(packets(4178, 4178)...)
			await(t, "packets", func() bool { return len(b.got) >= 2 }, a, b)
		}
	})
}

// raw sends datagrams from a plain socket on a port of 127.0.0.1.
func raw(t *testing.T, port uint16, to uint16, data ...[]byte) (answered func() bool) {
	t.Helper()
	fd, err := udpsock.Open(true, port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	for _, d := range data {
		if err := unix.Sendto(fd, d, 0, &unix.SockaddrInet4{Port: int(to), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
	}
	return func() bool {
		_, _, err := unix.Recvfrom(fd, make([]byte, 2048), unix.MSG_DONTWAIT)
		return err == nil
	}
}

// TestUnknownPeers sends what would be right from an address that is no
// peer's: it is dropped and not answered. The same from the peer's is.
func TestUnknownPeers(t *testing.T) {
	ca, _ := unopened("127.0.0.1")
	a := newNode(t, ca)
	request := make([]byte, 52) // for a cookie
	copy(request, []byte{0x57, 0x23, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9})
	answered := raw(t, 0, portA, request, request, nil)
	await(t, "the datagrams", func() bool { return a.Link.Counters().DropUnknown == 3 }, a)
	if a.Status(0).Up || answered() || a.Link.Counters().Cookies != 0 {
		t.Errorf("a stranger was answered: %+v", a.Link.Counters())
	}
	if d := a.Link.Degraded(); len(d) != 1 || d[0].Name != "trunk_stranger" || !strings.Contains(d[0].Detail,
		"3 datagrams") || !strings.Contains(d[0].Detail, "127.0.0.1:") {
		t.Errorf("degraded states: %+v", d)
	}
	answered = raw(t, portB, portA, request)
	await(t, "the peer", func() bool { return a.Link.Counters().Cookies == 1 }, a)
	if !answered() {
		t.Error("the peer's request was not answered")
	}
}

func TestOpenErrors(t *testing.T) {
	ok := netip.MustParseAddrPort("127.0.0.1:46809")
	peers := func(p ...Peer) Config { return Config{Node: 1, Trust: testTrust, Port: portA, Peers: p} }
	many := make([]Peer, trunk.MaxPeers+1)
	for i := range many {
		many[i].Addr = netip.AddrPortFrom(ok.Addr(), uint16(i+1))
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Trust: testTrust}, "node GUID"},
		{Config{Node: 1}, "nothing authenticates"},
		{peers(Peer{Anywhere: true}), "needs its node GUID"},
		{peers(Peer{Addr: ok, Node: 1}), "this node's GUID"},
		{peers(Peer{}), "not the address of a host"},
		{peers(Peer{Addr: netip.MustParseAddrPort("224.0.0.1:1")}), "not the address of a host"},
		{peers(Peer{Addr: netip.MustParseAddrPort("0.0.0.0:1")}), "not the address of a host"},
		{peers(Peer{Addr: ok, Local: netip.MustParseAddr("::1")}), "cannot be the source"},
		{peers(Peer{Addr: netip.MustParseAddrPort("[fe80::1]:1")}), "needs its interface"},
		{peers(Peer{Addr: netip.MustParseAddrPort("[fe80::1%nosuchdev]:1")}), "no such network interface"},
		{peers(Peer{Addr: ok}, Peer{Addr: netip.MustParseAddrPort("[::ffff:127.0.0.1]:46809")}), "given twice"},
		{peers(many...), "too many"},
	} {
		l, err := Open(c.cfg)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want ...%s...", err, c.want)
		}
	}
	// The port is in use: the error names the owner and the fix.
	a := newNode(t, peers(Peer{Addr: ok}))
	_, err := Open(peers(Peer{Addr: ok}))
	want := fmt.Sprintf("(pid %d)", os.Getpid())
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(),
		fmt.Sprintf("--trunk-port %d", portA+2)) {
		t.Errorf("got %v, want %q and a fix", err, want)
	}
	if a.Link.Port() != portA || a.Peers() != 1 {
		t.Errorf("port %d, %d peers", a.Link.Port(), a.Peers())
	}
	// Without peers there is nothing to open.
	l, err := Open(Config{Node: 1, Trust: testTrust, Port: portA})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if in, out := l.FDs(); len(in)+len(out) != 0 || l.Deadline() != 0 || l.Recv(1, nil) {
		t.Error("a link without peers has something to do")
	}
}

// TestFaults puts a stage of package fault into a sender.
func TestFaults(t *testing.T) {
	a, b := pair(t, "127.0.0.1")
	peer := ib.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))
	stage := fault.NewPackets([]ib.GID{peer})
	a.Sender.Inject(stage)
	send := func(n int) {
		t.Helper()
		b.got = nil
		for i := range n {
			a.send([]byte{byte(i), byte(i >> 8), 0, 0})
		}
	}
	sorted := func() bool { return slices.IsSortedFunc(b.got, bytes.Compare) }

	stage.Add(fault.Rule{ID: 1, Duplicate: 100, Peer: peer})
	send(4)
	await(t, "duplicates", func() bool { return len(b.got) >= 8 }, a, b)

	stage.Add(fault.Rule{ID: 1, Drop: 50, Seed: 7, Peer: peer})
	send(100)
	dropped := int(stage.Rules()[0].Dropped)
	await(t, "the others", func() bool { return len(b.got) >= 100-dropped }, a, b)
	if dropped < 20 || dropped > 80 || len(b.got) != 100-dropped {
		t.Errorf("%d of 100 dropped, %d received", dropped, len(b.got))
	}

	stage.Add(fault.Rule{ID: 1, Corrupt: 100})
	send(1)
	await(t, "a corrupted packet", func() bool { return len(b.got) >= 1 }, a, b)
	ones := 0
	for _, x := range b.got[0] {
		for ; x != 0; x &= x - 1 {
			ones++
		}
	}
	if ones != 1 {
		t.Errorf("got % x, want one bit inverted", b.got[0])
	}

	stage.Add(fault.Rule{ID: 1, Reorder: 30, Seed: 3})
	send(100)
	await(t, "packets", func() bool { a.Flush(a.now()); return len(b.got) >= 100 }, a, b)
	if len(b.got) != 100 || sorted() {
		t.Errorf("%d packets, in order: %v", len(b.got), sorted())
	}

	stage.Add(fault.Rule{ID: 1, Delay: 30 * time.Millisecond})
	from := a.now()
	send(3)
	if d := a.Sender.Deadline(); d < from.Add(30*time.Millisecond) {
		t.Errorf("deadline %d after %d", d, from)
	}
	await(t, "delayed packets", func() bool { a.Flush(a.now()); return len(b.got) >= 3 }, a, b)
	if late := a.now().Sub(from); late < 30*time.Millisecond || !sorted() || a.Sender.Deadline() != 0 {
		t.Errorf("came after %v, in order: %v", late, sorted())
	}

	stage.Add(fault.Rule{ID: 1, Drop: 100, Peer: ib.GID{1}})
	send(3)
	await(t, "packets to another peer's rule", func() bool { return len(b.got) >= 3 }, a, b)
	// Only packets that were dropped show in datagrams: those of all that they share one with.
	if s := b.Status(0); s.Lost == 0 || s.Lost > uint64(dropped) || s.Drop[trunk.Duplicate] != 0 {
		t.Errorf("%d packets were dropped: %+v", dropped, s)
	}
}

// TestHelloFaults: a fault that lets nothing pass takes the trunk down at both
// ends, as pulling the cable would, and one that delays hellos does not.
func TestHelloFaults(t *testing.T) {
	a, b := unopened("127.0.0.1")
	var nodes [2]*Link
	for i, cfg := range []Config{a, b} {
		l, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		nodes[i] = l
	}
	now := mono.Time(1)
	// live lets time pass, which is not the clock's.
	live := func(d time.Duration) {
		for end := now.Add(d); now < end; now = now.Add(10 * time.Millisecond) {
			for _, l := range nodes {
				for l.Recv(now, func(int, []byte) {}) {
				}
				if l.Deadline().Due(now) {
					l.Tick(now)
				}
			}
		}
	}
	up := func() [2]bool { return [2]bool{nodes[0].Status(0).Up, nodes[1].Status(0).Up} }
	live(200 * time.Millisecond)
	if up() != [2]bool{true, true} {
		t.Fatalf("trunk is up: %v", up())
	}
	stage := fault.NewDatagrams([]ib.GID{ib.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))})
	nodes[0].Inject(stage)
	stage.Add(fault.Rule{ID: 1, Delay: 150 * time.Millisecond})
	live(time.Second)
	if nodes[1].Status(0).Downs != 0 || stage.Rules()[0].Delayed < 10 || nodes[0].Status(0).LastRTT != 0 &&
		nodes[1].Status(0).LastRTT < 150*time.Millisecond {
		t.Errorf("delayed: %+v, %+v", nodes[1].Status(0), stage.Rules())
	}
	for _, r := range []fault.Rule{{ID: 1, Drop: 100}, {ID: 1, Corrupt: 100}} {
		stage.Add(r)
		live(time.Second)
		if up() != [2]bool{} {
			t.Errorf("%+v: trunk is up: %v", r, up())
		}
		stage.Remove(1)
		live(200 * time.Millisecond)
		if up() != [2]bool{true, true} {
			t.Errorf("%+v has ended: trunk is up: %v", r, up())
		}
	}
	if s := nodes[1].Status(0); s.Drop != (trunk.Refusals{}) || s.Restarts != 0 {
		t.Errorf("what is corrupted comes to the peer: %+v", s)
	}
}

// TestBusyIsNotSilence has a node that was not running for a while, with more
// in its socket than one Recv takes: what another peer sent meanwhile lies
// behind that and keeps its trunk up.
func TestBusyIsNotSilence(t *testing.T) {
	lo := netip.MustParseAddr("127.0.0.1")
	ports := [3]uint16{portA, portB, portA + 20000}
	var nodes [3]*Link
	for i := range nodes {
		cfg := Config{Node: ib.GUID(0xa000 + i), Trust: testTrust, Port: ports[i], RecvBuffer: 8 << 20}
		for j := range ports {
			if j != i && (i == 0 || j == 0) {
				cfg.Peers = append(cfg.Peers, Peer{Addr: netip.AddrPortFrom(lo, ports[j])})
			}
		}
		l, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		nodes[i] = l
	}
	now := mono.Time(1)
	turn := func(list ...*Link) {
		for _, l := range list {
			for l.Recv(now, func(int, []byte) {}) {
			}
			if l.Deadline().Due(now) {
				l.Tick(now)
			}
		}
	}
	for range 20 {
		turn(nodes[:]...)
		now = now.Add(10 * time.Millisecond)
	}
	l := nodes[0]
	if !l.Status(0).Up || !l.Status(1).Up {
		t.Fatal("trunks are not up")
	}
	s := nodes[1].Sender(0)
	for i := range 400 {
		b := s.Reserve(0, 1000+i%2*8) // no two of a size, so that nothing joins them
		if b == nil {
			t.Fatal(s.Counters(0))
		}
		s.Commit(now, len(b))
		s.Flush(now)
	}
	now = now.Add(299 * time.Millisecond)
	for _, n := range nodes[1:] {
		n.Tick(now)
	}
	now = now.Add(99 * time.Millisecond)
	if !l.Recv(now, func(int, []byte) {}) {
		t.Fatal("one Recv read everything")
	}
	l.Tick(now)
	if l.Status(1).Downs != 0 {
		t.Error("a trunk went down for what waits in the socket")
	}
	turn(l)
	if l.Status(0).Downs+l.Status(1).Downs != 0 {
		t.Errorf("trunks went down: %+v", l.Status(1))
	}
	now = now.Add(300 * time.Millisecond)
	turn(l)
	if l.Status(0).Up || l.Status(1).Up {
		t.Error("peers are silent, and their trunks up")
	}
}

// TestFloodIsReadOn: a socket that is never empty does not keep peers up for
// ever.
func TestFloodIsReadOn(t *testing.T) {
	p := progress{most: 10 * (1000 + perMessage)}
	at := mono.Time(0)
	for i := range 25 {
		at = mono.Time(100 + i)
		p.handled(at)
		p.bytes += 1000 + perMessage
	}
	if p.until != 110 {
		t.Errorf("read until %d", p.until)
	}
	p.empty(200)
	p.handled(300)
	if p.until != 200 || p.begun != 300 || p.bytes != 0 {
		t.Errorf("%+v", p)
	}
}

func TestAllocations(t *testing.T) {
	for _, mtu := range []int{1500, 65536} {
		inNamespace(t, fmt.Sprintf("MTU%d", mtu), mtu, false, func(t *testing.T, _ netlink.Link) {
			a, b := pair(t, "127.0.0.1")
			data := random(4178)
			got, want := 0, 0
			deliver := func(_ int, p []byte) { got++ }
			n := testing.AllocsPerRun(100, func() {
				for range 40 {
					copy(a.Reserve(0, len(data)), data)
					a.Commit(0, len(data))
				}
				copy(a.Reserve(0, 30), data)
				a.Commit(0, 30)
				a.Flush(0)
				for want += 41; got < want; {
					b.Recv(b.now(), deliver)
				}
				b.Tick(b.now())
				a.Recv(a.now(), deliver)
			})
			if n != 0 {
				t.Errorf("%v allocations for 41 packets sent and received, want 0", n)
			}
		})
	}
}

// TestLanes: each lane sends through its own Sender while the Link's receives
// and answers; nothing is lost between them.
func TestLanes(t *testing.T) {
	inNamespace(t, "lo", 1500, false, func(t *testing.T, _ netlink.Link) {
		a, b := pair(t, "127.0.0.1")
		const lanes, each = 3, 300
		var wg sync.WaitGroup
		for i := range lanes {
			s := a.Link.Sender(uint8(10 + i))
			wg.Go(func() {
				for k := range each {
					p := random(100 + 40*k)
					p[0], p[1], p[2] = byte(i), byte(k>>8), byte(k)
					r := s.Reserve(0, len(p))
					if r == nil {
						t.Errorf("lane %d, packet %d: %+v", i, k, s.Counters(0))
						return
					}
					copy(r, p)
					s.Commit(0, len(p))
					if k%7 == 0 {
						s.Flush(0)
					}
				}
				s.Flush(0)
				if c := s.Counters(0); c.Packets != each || s.Blocked() {
					t.Errorf("lane %d: %+v", i, c)
				}
			})
		}
		await(t, "packets", func() bool { return len(b.got) >= lanes*each || t.Failed() }, a, b)
		wg.Wait()
		// A lane that moves to another processor may overtake itself.
		seen := map[[3]byte]bool{}
		for _, p := range b.got {
			k := int(p[1])<<8 | int(p[2])
			if want := random(100 + 40*k); p[0] >= lanes || seen[[3]byte(p)] || !bytes.Equal(p[3:], want[3:]) {
				t.Fatalf("lane %d: packet %d came twice, or differs", p[0], k)
			}
			seen[[3]byte(p)] = true
		}
		if s := b.Status(0); s.Lost != 0 || len(seen) != lanes*each {
			t.Errorf("%d packets of %d: %+v", len(seen), lanes*each, s)
		}
	})
}

func TestCounterNames(t *testing.T) {
	// Those of a trunk, and those of all trunks; of each every uint64 but the reasons that it cannot have.
	unnamed := func(n int, name func(int) string) (c int) {
		for i := range n {
			if name(i) == "" {
				c++
			}
		}
		return c
	}
	trunks := unnamed(int(trunk.NumRefusals), trunk.Refusals{}.CounterName)
	strays := unnamed(int(trunk.NumRefusals), trunk.Stray{}.CounterName)
	if trunks+strays != int(trunk.NumRefusals)+1 {
		t.Errorf("%d and %d reasons have no name", trunks, strays)
	}
	for i, of := range [][]any{{&trunk.Counters{}, &SendCounters{}}, {&Counters{}}} {
		seen := map[string]bool{}
		n := [2]int{-trunks - 1, -strays}[i]
		for _, c := range of {
			n += int(reflect.TypeOf(c).Elem().Size() / 8)
			c.(interface{ Each(func(string, uint64)) }).Each(func(name string, _ uint64) {
				if seen[name] || name == "" || strings.ContainsAny(name, " -") || strings.ToLower(name) != name {
					t.Errorf("counter %q is there twice or no name", name)
				}
				seen[name] = true
			})
		}
		if len(seen) != n {
			t.Errorf("%d names for %d counters", len(seen), n)
		}
	}
}

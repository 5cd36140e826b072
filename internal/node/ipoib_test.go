// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/node/ipif"
	"weft/internal/service/ipoib"
)

// ipStack is an IP stack of a test: packets to send, and received ones.
type ipStack struct {
	info ipoib.DeviceInfo
	send chan []byte
	end  chan struct{}
	once sync.Once

	mu      sync.Mutex
	got     [][]byte
	keep    bool
	count   atomic.Int64
	carrier atomic.Bool
}

// ReadBatch implements ipoib.Backend: the next hop is the destination.
func (s *ipStack) ReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (int, error) {
	select {
	case p := <-s.send:
		sizes[0] = copy(bufs[0][offset:], p)
		hops[0] = netip.AddrFrom4([4]byte(p[16:]))
		return 1, nil
	case <-s.end:
		return 0, net.ErrClosed
	}
}

func (s *ipStack) WriteBatch(bufs [][]byte, offset int) error {
	s.count.Add(int64(len(bufs)))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range bufs {
		if s.keep {
			s.got = append(s.got, bytes.Clone(b[offset:]))
		}
	}
	return nil
}

func (s *ipStack) SetCarrier(on bool) error { s.carrier.Store(on); return nil }
func (s *ipStack) SetMTU(int) error         { return nil }
func (s *ipStack) Close() error             { s.once.Do(func() { close(s.end) }); return nil }

// has reports whether a packet came.
func (s *ipStack) has(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.got, func(g []byte) bool { return bytes.Equal(g, p) })
}

// ipv4 is a UDP packet with a body, without checksums.
func ipv4(from, to string, body []byte) []byte {
	p := make([]byte, 28, 28+len(body))
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(28+len(body)))
	a, b := netip.MustParseAddr(from).As4(), netip.MustParseAddr(to).As4()
	copy(p[12:], a[:])
	copy(p[16:], b[:])
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(body)))
	return append(p, body...)
}

// stacks has links get stacks of the test, by name of the link.
type stacks struct {
	mu sync.Mutex
	m  map[string]*ipStack
}

func (r *running) stacks() *stacks {
	s := &stacks{m: map[string]*ipStack{}}
	r.node.ip.Open = s.open
	return s
}

// open makes the stack of a link.
func (s *stacks) open(d *ipif.Device) (ipoib.Backend, error) {
	b := &ipStack{info: d.DeviceInfo, send: make(chan []byte), end: make(chan struct{}), keep: true}
	s.mu.Lock()
	s.m[d.Name] = b
	s.mu.Unlock()
	e := ipoib.BackendEvent{Addrs: d.Addrs, MTU: d.MTU, Up: true}
	for _, p := range d.Addrs {
		e.OnLink = append(e.OnLink, p.Masked())
	}
	d.Notify(e) // also before the back end is there
	return b, nil
}

func (s *stacks) of(name string) *ipStack {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m[name]
}

// link adds a link with an address, and waits for its carrier.
func (r *running) link(t *testing.T, device, addr string, more ...string) {
	t.Helper()
	_, err := api.Call(context.Background(), r.cli, api.AddIPLinks, api.IPRequest{Device: device,
		PKeys: []string{"0x7fff"}, Backend: api.BackendTUN, Addrs: []string{addr}, Params: more})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "carrier", func() bool {
		l, err := api.Get(context.Background(), r.cli, api.ListIPLinks)
		return err == nil && slices.ContainsFunc(l, func(l api.IPLink) bool {
			return l.Device == device &&
				l.Carrier && slices.Contains(l.Addrs, addr)
		})
	})
}

// TestIPLinks: two functions of one node, a link each: packets pass from stack to stack, and all of it
// is shown. H-65, H-67: the control interface queries a path, waiting for it or not. H-68: links by
// hand.
func TestIPLinks(t *testing.T) {
	t.Parallel()
	r := twoNative(t)
	s, ctx := r.stacks(), context.Background()
	r.link(t, firstNative, "10.9.0.1/24")
	r.link(t, "vf", "10.9.0.2/24")
	a, b := s.of("ib0_1_7fff"), s.of("ib1_1_7fff")
	if a == nil || b == nil {
		t.Fatal("the links have other names")
	}
	if a.info.MTU != 2044 || a.info.QueueLen != 512 || !a.carrier.Load() {
		t.Errorf("%+v", a.info)
	}
	exchange := func(from, to *ipStack, src, dst string, n int) {
		t.Helper()
		p := ipv4(src, dst, bytes.Repeat([]byte{byte(n)}, n))
		from.send <- p
		eventually(t, "the packet arrives as it was", func() bool { return to.has(p) })
	}
	for _, n := range []int{0, 1, 2, 3, 100, 2044 - 28} {
		exchange(a, b, "10.9.0.1", "10.9.0.2", n)
		exchange(b, a, "10.9.0.2", "10.9.0.1", n)
	}

	list, err := api.Get(ctx, r.cli, api.ListIPLinks)
	if err != nil || len(list) != 2 || list[0].State != "UP" || list[0].Type != 32 || list[0].AddrLen != 20 ||
		!list[0].Joined || list[0].MLID < 0xc000 {
		t.Errorf("%v %+v", err, list)
	}
	n, err := api.Call(ctx, r.cli, api.ListIPNeighbours, "ib0_1_7fff")
	if err != nil || len(n) != 1 || n[0].Addr != "10.9.0.2" || n[0].HWAddr != list[1].Address {
		t.Errorf("%v %+v", err, n)
	}
	if v, err := api.Call(ctx, r.cli, api.ListIPShadow, "ib0_1_ffff"); err != nil || len(v) != 1 ||
		v[0].State != "RESOLVED" || v[0].DLID != uint16(r.node.funcs.named("vf").a.Port().LID) {
		t.Errorf("by the name with the membership bit: %v %+v", err, v)
	}
	if v, err := api.Call(ctx, r.cli, api.ListIPPaths, ""); err != nil || len(v) != 2 || v[0].State != "valid" {
		t.Errorf("%v %+v", err, v)
	}
	if v, err := api.Call(ctx, r.cli, api.ListIPGroups, "ib1_1_7fff"); err != nil ||
		!slices.ContainsFunc(v, func(g api.IPGroup) bool { return slices.Contains(g.Addrs, "224.0.0.1") }) {
		t.Errorf("%v %+v", err, v)
	}
	if r.counter(api.ScopeIPoIB, "tx_packets") == 0 {
		t.Error("no counters")
	}
	if st := r.status(); len(st.IPLinks) != 2 || slices.ContainsFunc(st.Degraded,
		func(d api.Degraded) bool { return d.What == "ip_link" }) {
		t.Errorf("%+v", st)
	}

	path := func(q api.IPPathQuery) api.IPPathInfo {
		t.Helper()
		p, err := api.Call(ctx, r.cli, api.ResolveIPPath, q)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := path(api.IPPathQuery{Addr: "10.9.0.2", Link: "ib0_1_7fff"})
	if p.Errno != 0 || p.DLID != uint16(r.node.funcs.named("vf").a.Port().LID) || len(p.Image) != 72 {
		t.Errorf("%+v", p)
	}
	if p := path(api.IPPathQuery{Addr: "10.9.0.77"}); p.Errno != int(syscall.ENXIO) { // no node has it
		t.Errorf("%+v", p)
	}
	if p := path(api.IPPathQuery{Addr: "10.9.0.78", NonBlocking: true}); p.Errno != int(syscall.EAGAIN) {
		t.Errorf("%+v", p)
	}
	for _, link := range []string{"ib0_1_7fff", ""} {
		if p := path(api.IPPathQuery{Addr: "224.0.0.1", Link: link}); p.Errno != int(syscall.EINVAL) {
			t.Errorf("%+v", p)
		}
	}
	if _, err := api.Call(ctx, r.cli, api.ResolveIPPath,
		api.IPPathQuery{Addr: "10.8.0.1"}); code(err) != api.CodeNotFound {
		t.Errorf("an address of no link: %v", err)
	}

	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: "ib0_1_7fff"}); err != nil {
		t.Fatal(err)
	}
	if l, err := api.Get(ctx, r.cli, api.ListIPLinks); err != nil || len(l) != 1 {
		t.Errorf("%v %+v", err, l)
	}
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks,
		api.IPLinkDelete{Name: "ib0_1_7fff"}); code(err) != api.CodeNotFound {
		t.Errorf("deleted twice: %v", err)
	}
	// With its device a link goes too.
	if err := api.Do(ctx, r.cli, api.DeleteFunction, "vf"); err != nil {
		t.Fatal(err)
	}
	if l, err := api.Get(ctx, r.cli, api.ListIPLinks); err != nil || len(l) != 0 {
		t.Errorf("%v %+v", err, l)
	}
	events, err := api.Call(ctx, r.cli, api.ListIPEvents, api.EventQuery{After: 0})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, e := range events {
		if e.Link == "ib1_1_7fff" {
			kinds = append(kinds, e.Kind)
		}
	}
	if got := strings.Join(kinds, " "); got != "added up down removed" {
		t.Errorf("events: %s", got)
	}
	if n := len(r.node.sessions.Internal()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestIPLinkEcho: a packet to a group comes to the other member, and back to the queue pair that
// sent it, where it ends (S-08).
func TestIPLinkEcho(t *testing.T) {
	r := twoNative(t)
	s := r.stacks()
	r.link(t, firstNative, "10.9.0.1/24")
	r.link(t, "vf", "10.9.0.2/24")
	a, b := s.of("ib0_1_7fff"), s.of("ib1_1_7fff")
	for i, to := range []string{"224.0.0.1", "255.255.255.255"} {
		before := r.counter(api.ScopeIPoIB, "drop_own_echo")
		p := ipv4("10.9.0.1", to, []byte{byte(i)})
		a.send <- p
		eventually(t, "the other has it", func() bool { return b.has(p) })
		eventually(t, "it comes back and is dropped", func() bool {
			return r.counter(api.ScopeIPoIB,
				"drop_own_echo") > before
		})
		if a.has(p) {
			t.Errorf("the sender got its own packet to %s", to)
		}
	}
}

// TestIPLinksFollowPartitions: links come and go with the P_Keys of the port,
// under the same names, and say why they have no carrier. H-68: links by
// themselves.
func TestIPLinksFollowPartitions(t *testing.T) {
	r := master(t)
	s, ctx := r.stacks(), context.Background()
	if _, err := api.Call(ctx, r.cli, api.AddIPLinks, api.IPRequest{Backend: api.BackendTUN}); err != nil {
		t.Fatal(err)
	}
	names := func(want ...string) func() bool {
		return func() bool {
			l, err := api.Get(ctx, r.cli, api.ListIPLinks)
			var got []string
			for _, l := range l {
				if l.Carrier {
					got = append(got, l.Name)
				}
			}
			return err == nil && slices.Equal(got, want)
		}
	}
	eventually(t, "the default partition's link", names("ib0_1_7fff"))
	t.Cleanup(func() {
		if t.Failed() {
			l, _ := api.Get(ctx, r.cli, api.ListIPLinks)
			e, _ := api.Call(ctx, r.cli, api.ListIPEvents, api.EventQuery{After: 0})
			t.Logf("%+v\n%+v", l, e)
		}
	})
	for range 2 {
		if _, err := api.Call(ctx, r.cli, api.AddPartition, api.Partition{PKey: "0x14",
			Members: []api.Member{{Port: firstNative}}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the partition's link", func() bool {
			l := s.of("ib0_1_14")
			return l != nil &&
				l.carrier.Load()
		})
		if err := api.Do(ctx, r.cli, api.DeletePartition, api.PartitionMembers{PKey: "0x14"}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it goes with the partition", names("ib0_1_7fff"))
	}
	if _, err := api.Call(ctx, r.cli, api.AddIPLinks, api.IPRequest{Device: firstNative,
		Backend: api.BackendTUN}); code(err) != api.CodeInvalid {
		t.Errorf("asked for twice: %v", err)
	}
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks,
		api.IPLinkDelete{Name: "ib0_1_7fff"}); code(err) != api.CodeInvalid ||
		!strings.Contains(err.Error(), "weft ipoib del all") {
		t.Errorf("one of many: %v", err)
	}
	off := false
	if _, err := api.Call(ctx, r.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: firstNative,
		Value: api.FunctionChange{Enabled: &off}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "status shows why there is no carrier", func() bool {
		return slices.ContainsFunc(r.status().Degraded, func(d api.Degraded) bool {
			return d.What == "ip_link" && strings.Contains(d.Why, "port is Down") &&
				d.Fix == "weft ipoib show ib0_1_7fff"
		})
	})
	on := true
	if _, err := api.Call(ctx, r.cli, api.ChangeFunction, api.Named[api.FunctionChange]{Name: firstNative,
		Value: api.FunctionChange{Enabled: &on}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the carrier comes back", names("ib0_1_7fff"))
	if err := api.Do(ctx, r.cli, api.DeleteIPLinks, api.IPLinkDelete{Name: "all"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no link is left", names())
}

// pollStack is a stack that the lane polls: it has the packet next, once.
type pollStack struct {
	*ipStack
	pipe [2]int // readable until the first poll
	next []byte // the lane's, as hop and polled
	hop  netip.Addr

	polled bool
}

// TryReadBatch reports that there is always more, so that each turn of the lane polls.
func (s *pollStack) TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (int, bool, error) {
	if !s.polled {
		s.polled = true
		syscall.Read(s.pipe[0], make([]byte, 1))
	}
	if s.next == nil {
		return 0, true, nil
	}
	sizes[0], hops[0] = copy(bufs[0][offset:], s.next), s.hop
	s.next = nil
	return 1, true, nil
}

func (s *pollStack) Control(f func(fd int) error) error { return f(s.pipe[0]) }

func (s *pollStack) Close() error {
	syscall.Close(s.pipe[0])
	syscall.Close(s.pipe[1])
	return s.ipStack.Close()
}

// TestIPLinkAllocates: the way of a packet from a device that the lane reads, to the
// link, and out of the other link's device needs no memory, in either mode.
func TestIPLinkAllocates(t *testing.T) {
	for _, mode := range []string{"datagram", "connected"} {
		t.Run(mode, func(t *testing.T) { ipLinkAllocates(t, mode) })
	}
}

func ipLinkAllocates(t *testing.T, mode string) {
	r := twoNative(t)
	s := r.stacks()
	open, polls := r.node.ip.Open, map[string]*pollStack{}
	r.node.ip.Open = func(d *ipif.Device) (ipoib.Backend, error) {
		b, err := open(d)
		p := &pollStack{ipStack: b.(*ipStack)}
		p.keep, polls[d.Name] = false, p
		err = errors.Join(err, syscall.Pipe(p.pipe[:]))
		syscall.Write(p.pipe[1], []byte{1})
		return p, err
	}
	r.link(t, firstNative, "10.9.0.1/24", "mode="+mode)
	r.link(t, "vf", "10.9.0.2/24", "mode="+mode)
	list, err := api.Get(context.Background(), r.cli, api.ListIPLinks)
	if err != nil || len(list) != 2 {
		t.Fatalf("%v %+v", err, list)
	}
	on, from, to := r.node.lanes.All()[list[0].Lane], polls["ib0_1_7fff"], s.of("ib1_1_7fff")
	p, hop := ipv4("10.9.0.1", "10.9.0.2", make([]byte, 1000)), netip.MustParseAddr("10.9.0.2")
	offer := func() { from.next, from.hop = p, hop }
	before := to.count.Load()
	eventually(t, "the first packet arrives", func() bool {
		on.Do(offer)
		return to.count.Load() > before
	})
	eventually(t, "the neighbour is known by its mode", func() bool {
		on.Do(offer)
		return slices.Equal(r.modes(t, "10.9.0.2"), []string{mode})
	})
	before = to.count.Load()
	n := 0.0
	on.Do(func() {
		n = testing.AllocsPerRun(500, func() {
			offer()
			for range 4 {
				on.Turn(on.Now())
			}
		})
	})
	if got := to.count.Load() - before; got < 500 || n != 0 {
		t.Errorf("%d packets, %v allocations each", got, n)
	}
}

// TestIPLinkMTU: links have what the master's broadcast groups have.
func TestIPLinkMTU(t *testing.T) {
	r := run(t, func(c *config.Config) { c.Fabric, c.Store, c.IPoIBMTU = true, config.StoreMemory, 4096 })
	s := r.stacks()
	r.link(t, firstNative, "10.9.0.1/24")
	if l, err := api.Get(context.Background(), r.cli, api.ListIPLinks); err != nil || l[0].MTU != 4092 ||
		s.of("ib0_1_7fff").info.MTU != 4092 {
		t.Errorf("%v %+v", err, l)
	}
}

// TestIPLinkRefusals: what makes no sense is refused with a reason.
func TestIPLinkRefusals(t *testing.T) {
	r, ctx := master(t), context.Background()
	r.stacks()
	for _, c := range []struct {
		r    api.IPRequest
		code api.Code
	}{
		{api.IPRequest{Device: "weft0", Backend: api.BackendTUN}, api.CodeNotFound},
		{api.IPRequest{Backend: api.BackendTUN, Params: []string{"depth=7"}}, api.CodeInvalid},
		{api.IPRequest{Backend: api.BackendTUN, Params: []string{"sq_depth"}}, api.CodeInvalid},
	} {
		if _, err := api.Call(ctx, r.cli, api.AddIPLinks, c.r); code(err) != c.code {
			t.Errorf("%+v: %v", c.r, err)
		}
	}
	r.link(t, firstNative, "10.9.0.1/24", "sq_depth=1024")
	for _, c := range []struct {
		link string
		a    api.IPAction
		code api.Code
	}{
		{"ib9", api.IPAction{Op: api.IPFlushPaths}, api.CodeNotFound},
		{"ib0_1_7fff", api.IPAction{Op: "paint"}, api.CodeInvalid},
		{"ib0_1_7fff", api.IPAction{Op: api.IPProbe, Addr: "x"}, api.CodeInvalid},
		{"ib0_1_7fff", api.IPAction{Op: api.IPProbe, Addr: "10.9.0.1"}, api.CodeInvalid},
		{"ib0_1_7fff", api.IPAction{Op: api.IPJoin, Addr: "10.9.0.7"}, api.CodeInvalid},
		{"ib0_1_7fff", api.IPAction{Op: api.IPLeave, Addr: "224.0.0.1"}, api.CodeInvalid}, // joined, but not by hand
		{"ib0_1_7fff", api.IPAction{Op: api.IPAddNeighbour, Addr: "10.9.0.7"}, api.CodeInvalid},
		{"ib0_1_7fff", api.IPAction{Op: api.IPFlushPaths}, ""},
		{"ib0_1_7fff", api.IPAction{Op: api.IPFlushNeighbours}, ""},
		{"ib0_1_7fff", api.IPAction{Op: api.IPDebug, Mask: 15}, ""},
		{"ib0_1_7fff", api.IPAction{Op: api.IPJoin, Addr: "224.5.6.7"}, ""},
		{"ib0_1_7fff", api.IPAction{Op: api.IPLeave, Addr: "224.5.6.7"}, ""},
	} {
		if err := api.Do(ctx, r.cli, api.ChangeIPLink, api.Named[api.IPAction]{Name: c.link,
			Value: c.a}); code(err) != c.code || c.code == "" && err != nil {
			t.Errorf("%+v: %v", c.a, err)
		}
	}
	p, err := api.Call(ctx, r.cli, api.ListIPParams, "ib0_1_7fff")
	if err != nil || !slices.ContainsFunc(p, func(p api.IPParam) bool {
		return p.Link != "" && p.Name == "sq_depth" &&
			p.Value == "1024"
	}) {
		t.Errorf("%v %+v", err, p)
	}
}

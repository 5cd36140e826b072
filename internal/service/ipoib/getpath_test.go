// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
)

// TestH63_GetPath: the path to an IP address, by its neighbour and its PathRecord; impossible ones are
// refused at once.
func TestH63_GetPath(t *testing.T) {
	s, a, b := two(t)
	for _, tc := range []struct {
		ip   string
		want error
	}{
		{"0.0.0.0", ErrInvalid}, {"::", ErrInvalid}, {"224.0.0.1", ErrInvalid}, {"ff02::1", ErrInvalid},
		{"255.255.255.255", ErrInvalid},
		{"10.20.0.255", ErrInvalid}, {"10.99.0.1", ErrNoNode}, {"2001:db8::1", ErrNoNode},
	} {
		p, err := a.l.TryGetPath(s.now, netip.MustParseAddr(tc.ip))
		if err != tc.want || p != (PathInfo{}) {
			t.Errorf("%s: %v, want %v", tc.ip, err, tc.want)
		}
	}
	if _, err := a.l.TryGetPath(s.now, netip.Addr{}); err != ErrInvalid {
		t.Errorf("no address: %v", err)
	}
	if a.counter("getpath_enxio") != 2 || a.counter("getpath_calls") != 9 {
		t.Errorf("%d calls, %d ENXIO", a.counter("getpath_calls"), a.counter("getpath_enxio"))
	}
	// The link's own address needs no query.
	s.asked = nil
	p, err := a.l.TryGetPath(s.now, ipA)
	if err != nil || p.DGID != gidA || p.SGID != gidA || p.DLID != 5 || p.SLID != 5 || len(s.asked) != 0 {
		t.Errorf("own: %+v, %v", p, err)
	}
	// Another's.
	if _, err = a.l.TryGetPath(s.now, ipB); err != ErrAgain {
		t.Errorf("unknown: %v", err)
	}
	s.run(time.Second)
	p, err = a.l.TryGetPath(s.now, netip.AddrFrom16(ipB.As16()))
	want := PathInfo{Addr: ipB, DGID: gidB, SGID: gidA, DLID: 17, SLID: 5, PKey: testPKey, SL: 3, MTU: ib.MTU2048,
		Rate: ib.Rate40, PacketLifetime: 18}
	if d := cmp.Diff(want, p, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	// A prefix that is reached without a gateway.
	a.l.SetAddrs(s.now, a.l.addrs.own, []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")})
	if _, err := a.l.TryGetPath(s.now, netip.MustParseAddr("10.99.0.1")); err != ErrAgain {
		t.Errorf("on the link by a route: %v", err)
	}
	// No carrier, no path.
	a.l.Close(s.now)
	if _, err := a.l.TryGetPath(s.now, ipB); err != ErrLinkDown {
		t.Errorf("without a carrier: %v", err)
	}
	_ = b
}

// TestH66_Async: callbacks come after EAGAIN only, once each, never from
// within the call, with what was given, for all waiters by one resolution.
func TestH66_Async(t *testing.T) {
	s, a, _ := two(t)
	type called struct {
		ctx    any
		status error
	}
	var calls []called
	within := true
	cb := func(status error, out *PathInfo, ctx any) {
		if within {
			t.Error("called from within")
		}
		if (status == nil) != (out.DLID != 0) {
			t.Errorf("status %v, path %+v", status, out)
		}
		calls = append(calls, called{ctx, status})
		if ctx == "again" {
			within = true
			if err := a.l.GetPathAsync(s.now, ipB, out, func(error, *PathInfo, any) { t.Error("called after nil") },
				nil); err != nil {
				t.Errorf("from a callback: %v", err)
			}
			within = false
		}
	}
	s.asked = nil
	var outs [4]PathInfo
	for i, ctx := range []any{1, "two", nil, "again"} {
		if err := a.l.GetPathAsync(s.now, ipB, &outs[i], cb, ctx); err != ErrAgain {
			t.Errorf("%v", err)
		}
	}
	if err := a.l.GetPathAsync(s.now, ipB, &PathInfo{}, nil, nil); err != ErrAgain {
		t.Errorf("without a callback: %v", err)
	}
	within = false
	s.run(time.Second)
	if d := cmp.Diff([]called{{1, nil}, {"two", nil}, {nil, nil}, {"again", nil}}, calls,
		cmp.AllowUnexported(called{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if n := s.asks(a.name, "path"); n != 1 {
		t.Errorf("asked for %d paths", n)
	}
	// No such node: ENXIO, at the latest after three probes and a query; the
	// record stays as it is.
	calls, outs[0] = nil, PathInfo{}
	within = true
	if err := a.l.GetPathAsync(s.now, netip.MustParseAddr("10.20.0.77"), &outs[0], cb, 5); err != ErrAgain {
		t.Errorf("%v", err)
	}
	within = false
	s.run(4200 * time.Millisecond)
	if d := cmp.Diff([]called{{5, ErrNoNode}}, calls, cmp.AllowUnexported(called{}), cmp.Comparer(errors.Is)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// The neighbour is there, but no path to it.
	calls = nil
	a.l.FlushPaths()
	s.paths = func(r *mad.PathRecord) mad.Status { return mad.StatusSANoRecords }
	if err := a.l.GetPathAsync(s.now, ipB, &PathInfo{}, cb, 6); err != ErrAgain {
		t.Errorf("%v", err)
	}
	s.run(time.Second)
	if d := cmp.Diff([]called{{6, ErrNoNode}}, calls, cmp.AllowUnexported(called{}), cmp.Comparer(errors.Is)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	// The link goes away.
	calls, s.paths, s.silent = nil, nil, true
	a.l.GetPathAsync(s.now, netip.MustParseAddr("10.20.0.78"), &PathInfo{}, cb, 7)
	a.l.GetPathAsync(s.now, ipB, &PathInfo{}, cb, 8)
	a.l.Stop(s.now)
	s.run(10 * time.Second)
	slices.SortFunc(calls, func(x, y called) int { return x.ctx.(int) - y.ctx.(int) })
	if d := cmp.Diff([]called{{7, ErrLinkDown}, {8, ErrLinkDown}}, calls, cmp.AllowUnexported(called{}),
		cmp.Comparer(errors.Is)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	a.gone()
	if err := a.l.GetPathAsync(s.now, ipB, &PathInfo{}, cb, 9); err != ErrLinkDown {
		t.Errorf("after the end: %v", err)
	}
}

// TestH67_Errors: outcomes are the numbers that programs know.
func TestH67_Errors(t *testing.T) {
	for err, want := range map[error]syscall.Errno{ErrAgain: 11, ErrNoNode: 6, ErrInvalid: 22, ErrLinkDown: 100} {
		if !errors.Is(err, want) {
			t.Errorf("%v is not errno %d", err, want)
		}
	}
	s, a, _ := two(t)
	for i := range maxWaiters + 1 {
		err := a.l.GetPathAsync(s.now, ipB, &PathInfo{}, func(error, *PathInfo, any) {}, nil)
		if want := map[bool]error{false: ErrAgain, true: ErrBusy}[i == maxWaiters]; err != want {
			t.Fatalf("waiter %d: %v", i, err)
		}
	}
	s.run(time.Second)
	if a.l.waiters.n != 0 {
		t.Errorf("%d wait", a.l.waiters.n)
	}
}

// TestH64_Image: the result of get-path for path SA-6 has the octets of vector PI-1.
func TestH64_Image(t *testing.T) {
	s, a := alone(t)
	a.l.shadow.learn(s.now, ipB, hwB)
	s.answerPath(a, pathSA6(t), 0)
	p := a.l.waiters.info(ipB, a.l.shadow.paths[gidB])
	var out struct{ Hex string }
	v := vectors(t, "PI-1")["PI-1"]
	v.read(t, nil, &out)
	b := make([]byte, wire.PathInfoLen)
	p.Put(b)
	if d := cmp.Diff(unhex(t, out.Hex), b); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestGetPathIsAnswered: a pending get-path call gets a result, for every change of its entry.
func TestGetPathIsAnswered(t *testing.T) {
	other := wire.MakeHWAddr(0, 0x209, gidB) // another queue pair of b's port
	ask := func(s *subnet, a *node) (calls *[]error) {
		calls = new([]error)
		if err := a.l.GetPathAsync(s.now, ipB, &PathInfo{}, func(err error, _ *PathInfo,
			_ any) {
			*calls = append(*calls, err)
		}, nil); err != ErrAgain {
			*calls = append(*calls, err)
		}
		return calls
	}
	t.Run("path of a GID that another entry was purged of", func(t *testing.T) {
		s, a, _ := two(t)
		a.send(ipA, ipB, "x")
		s.run(time.Second)
		e := a.l.shadow.learn(s.now, netip.MustParseAddr("10.20.0.3"), other)
		a.l.shadow.purge(s.now, e)
		calls := ask(s, a)
		s.run(5 * time.Second)
		if !slices.Equal(*calls, []error{nil}) {
			t.Errorf("told %v", *calls)
		}
	})
	t.Run("the address moved to an entry that is resolved", func(t *testing.T) {
		s, a, b := two(t)
		a.send(ipA, ipB, "x")
		s.run(time.Second)
		gidC := ib.MakeGID(ib.DefaultGIDPrefix, 0x300)
		s.holdPaths = true
		a.l.PurgeShadow(s.now, wire.HWAddr{})
		a.l.Engine().AddStatic(s.now, ipB, wire.MakeHWAddr(0, 0x300, gidC))
		calls := ask(s, a)
		s.holdPaths = false
		a.l.shadow.learn(s.now, netip.MustParseAddr("10.20.0.3"), b.l.attr.hw)
		s.run(time.Second / 20)
		a.l.Engine().AddStatic(s.now, ipB, b.l.attr.hw)
		s.run(5 * time.Second)
		if !slices.Equal(*calls, []error{nil}) {
			t.Errorf("told %v", *calls)
		}
	})
	t.Run("more addresses than an entry keeps", func(t *testing.T) {
		s, a, b := two(t)
		a.send(ipA, ipB, "x")
		s.run(time.Second)
		a.l.PurgeShadow(s.now, wire.HWAddr{})
		s.delay = time.Second / 10
		calls := ask(s, a)
		for i := range maxEntryIPs {
			a.l.shadow.learn(s.now, netip.AddrFrom4([4]byte{10, 20, 1, byte(i)}), b.l.attr.hw)
		}
		s.run(5 * time.Second)
		if len(*calls) != 1 {
			t.Errorf("told %v", *calls)
		}
	})
}

// TestGetPathWithoutGroup: an IPv6 address without a solicited-node group has no node, which is known at
// once; where the group exists, its member is solicited three times.
func TestGetPathWithoutGroup(t *testing.T) {
	s, a := alone(t)
	ask := func(ip string) (took time.Duration, status error) {
		t.Helper()
		began, done := s.now, mono.Time(0)
		var out PathInfo
		if err := a.l.GetPathAsync(s.now, netip.MustParseAddr(ip), &out, func(err error, _ *PathInfo, _ any) {
			done,
				status = s.now, err
		}, nil); err != ErrAgain {
			t.Fatalf("%s: %v", ip, err)
		}
		for range 100 {
			if s.run(100 * time.Millisecond); done != 0 {
				break
			}
		}
		return done.Sub(began), status
	}
	if took, err := ask("fe80::99"); took != 0 || err != ErrNoNode {
		t.Errorf("without a group: %v after %v", err, took)
	}
	mgid := wire.GroupGID(wire.SolicitedNode(netip.MustParseAddr("fe80::77")), testPKey, 2)
	s.groups[mgid] = &saGroup{members: map[ib.GID]uint8{gidB: mad.JoinFull},
		rec: mad.MCMemberRecord{MGID: mgid, QKey: 0x0b1b, MLID: s.newMLID(), MTUSelector: mad.SelectExactly, MTU: s.mtu,
			PKey: testPKey, RateSelector: mad.SelectExactly, Rate: ib.Rate10, Scope: 2}}
	if took, err := ask("fe80::77"); took < 2*time.Second || took > 4*time.Second || err != ErrNoNode {
		t.Errorf("with a silent member: %v after %v", err, took)
	}
}

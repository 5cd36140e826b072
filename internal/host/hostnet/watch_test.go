// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/internal/host/nstest"
	"weft/internal/host/tun"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReadThisHost(t *testing.T) {
	got, err := Read(nil, Choice{})
	if err != nil {
		t.Fatal(err)
	}
	e := &got.Entries[0]
	if a := e.GID.Addr(); !a.Is6() || !a.IsLinkLocalUnicast() || got.NodeGUID == 0 || !got.MTU.Valid() {
		t.Errorf("%s", got.dump())
	}
}

// namespace runs f as a test on a thread in a network namespace of its own,
// which ends with the thread.
func namespace(t *testing.T, f func(t *testing.T)) {
	t.Run("namespace", func(t *testing.T) {
		runtime.LockOSThread() // never unlocked: the thread ends with the test's goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			condtest.Lacks(t, "needs CAP_SYS_ADMIN for a network namespace: %v", err)
		}
		f(t)
	})
}

// The interface of an IP link is marked, and neither a GID nor a limit of the MTU.
func TestOwnFabricIsLeftOut(t *testing.T) {
	s := nstest.New(t)
	own := netip.MustParsePrefix("10.1.0.1/24")
	var d *tun.Device
	s.Must(func() (err error) {
		d, err = tun.Open(tun.Config{Name: "ib0_1_7fff", MTU: 2044, Addrs: []netip.Prefix{own}, Up: true})
		return err
	})
	defer d.Close()
	for _, c := range []struct {
		choice Choice
		there  bool
		mtu    ib.MTU
	}{{Choice{}, false, ib.MTU4096}, {Choice{Names: []string{"ib0*"}}, true, ib.MTU1024}} {
		var got *Table
		s.Must(func() (err error) { got, err = Read(nil, c.choice); return err })
		if _, there := got.Lookup(ib.GIDFromAddr(own.Addr())); there != c.there || got.MTU != c.mtu {
			t.Errorf("%v: found %v, MTU %d:\n%s", c.choice, there, got.MTU.Bytes(), got.dump())
		}
	}
}

func TestWatch(t *testing.T) { namespace(t, watchAll) }

func watchAll(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first, err := Read(nil, Choice{})
	check(err)
	if n := len(first.Entries); n != 1 || !first.Entries[0].LocalOnly {
		t.Errorf("an empty namespace has %s", first.dump())
	}
	home := ib.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))
	far := ib.GIDFromAddr(netip.MustParseAddr("192.0.2.77"))
	lo, err := netlink.LinkByName("lo")
	check(err)
	addr, err := netlink.ParseAddr("192.0.2.77/24")
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// Each step changes something and names what the next table must say.
	steps := []struct {
		do   func() error
		seen func(*Table) bool
	}{
		{func() error { return netlink.LinkSetUp(lo) }, func(n *Table) bool { _, ok := n.Lookup(home); return ok }},
		{func() error { return netlink.AddrAdd(lo, addr) }, func(n *Table) bool { _, ok := n.Lookup(far); return ok }},
		{func() error { return netlink.LinkSetMTU(lo, 1300) }, func(n *Table) bool { return n.MTU == ib.MTU1024 }},
		{func() error { return netlink.AddrDel(lo, addr) }, func(n *Table) bool { _, ok := n.Lookup(far); return !ok }},
	}
	check(steps[0].do()) // before the watch: found by its first read
	err = Watch(ctx, first, Choice{}, func(n *Table) {
		if len(steps) == 0 || !steps[0].seen(n) {
			return // an intermediate state
		}
		if steps = steps[1:]; len(steps) == 0 {
			cancel()
			return
		}
		check(steps[0].do())
	})
	if !errors.Is(err, context.Canceled) || len(steps) != 0 {
		t.Errorf("%d steps left: %v", len(steps), err)
	}
}

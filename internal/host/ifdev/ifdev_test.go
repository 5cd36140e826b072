// SPDX-License-Identifier: Apache-2.0

package ifdev

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft/internal/host/nstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// follow starts a monitor of interface changes in s, and returns the channel of its calls.
func follow(t *testing.T, s *nstest.Namespace, p Pace) (m *Monitor, calls chan time.Time, end func() error) {
	t.Helper()
	s.Must(func() (err error) { m, err = NewMonitor(unix.RTNLGRP_LINK, 1<<20); return err }) // the last one unknown
	calls = make(chan time.Time, 100)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx, p, func() { calls <- time.Now() }) }()
	end = func() error { cancel(); return <-ended }
	t.Cleanup(func() { cancel(); m.Close() })
	return m, calls, end
}

func next(t *testing.T, calls chan time.Time, what string) time.Time {
	t.Helper()
	select {
	case at := <-calls:
		return at
	case <-time.After(patience):
		t.Fatalf("%s: no call within %s", what, patience)
	}
	return time.Time{}
}

// setMTU changes the loopback interface.
func setMTU(s *nstest.Namespace, mtu int) {
	s.T.Helper()
	s.Must(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(lo, mtu)
	})
}

func TestMonitorCallsAfterChanges(t *testing.T) {
	s := nstest.New(t)
	m, calls, end := follow(t, s, Pace{})
	next(t, calls, "at first")
	setMTU(s, 1400)
	next(t, calls, "a change")
	m.Refresh()
	next(t, calls, "Refresh")
	if err := end(); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

func TestMonitorPaces(t *testing.T) {
	s := nstest.New(t)
	const gap = 50 * time.Millisecond
	_, calls, end := follow(t, s, Pace{Gap: gap})
	last := next(t, calls, "at first")
	for i := range 40 { // 40 changes in a burst
		setMTU(s, 1400+i)
	}
	at := next(t, calls, "the burst")
	if d := at.Sub(last); d < gap {
		t.Errorf("two calls within %s", d)
	}
	if err := end(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := len(calls); n > 20 {
		t.Errorf("%d calls for 40 changes", n)
	}
	const settle = 30 * time.Millisecond
	_, calls, _ = follow(t, s, Pace{Settle: settle})
	next(t, calls, "at first, settled")
	before := time.Now()
	setMTU(s, 1500)
	if d := next(t, calls, "a change, settled").Sub(before); d < settle {
		t.Errorf("called %s after the change", d)
	}
}

func TestMonitorWithoutNotifications(t *testing.T) {
	s := nstest.New(t)
	_, calls, _ := follow(t, s, Pace{Period: time.Millisecond})
	for range 5 {
		next(t, calls, "a period")
	}
	var index uint32
	s.Must(func() error {
		lo, err := netlink.LinkByName("lo")
		index = uint32(lo.Attrs().Index)
		return err
	})
	seen := make(chan bool, 100)
	_, calls, _ = follow(t, s, Pace{Concerns: func(m *syscall.NetlinkMessage) bool {
		seen <- binary.NativeEndian.Uint32(m.Data[4:]) == index
		return false
	}})
	next(t, calls, "at first")
	setMTU(s, 1300)
	select {
	case own := <-seen:
		if !own {
			t.Error("a notification of another interface")
		}
	case <-time.After(patience):
		t.Fatal("no notification")
	}
	if len(calls) != 0 {
		t.Error("called for a notification that does not count")
	}
}

func TestFailedMonitorIsReported(t *testing.T) {
	s := nstest.New(t)
	var i *Interface
	s.Must(func() (err error) { i, err = New(unix.RTNLGRP_LINK); return err })
	failed := make(chan error, 1)
	called := make(chan struct{}, 1)
	i.Follow(Pace{}, func() { called <- struct{}{} }, func(err error) { failed <- err })
	<-called
	i.monitor.Close()
	if err := <-failed; !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if err := errors.Join(i.Close(func() error { return nil }),
		i.Close(func() error { return errors.New("twice") })); err != nil {
		t.Error(err)
	}
}

func TestExplain(t *testing.T) {
	for _, c := range []struct {
		mode Mode
		step string
		err  error
		want []string
	}{
		{TUN, "open /dev/net/tun", unix.ENOENT, []string{"modprobe tun", "weft ipoib netstack"}},
		{TUN, "open /dev/net/tun", unix.EACCES, []string{"chmod", "weft ipoib netstack"}},
		{TAP, "open /dev/net/tun", unix.EPERM, []string{"--device", "weft vesw netstack"}},
		{TAP, "create it", unix.EPERM, []string{"CAP_NET_ADMIN. fix: ", "weft vesw netstack"}},
		{TUN, "create it", unix.EBUSY, []string{"another program has an interface of that name. fix: choose another name"}},
		{TUN, "set MTU", unix.EINVAL, []string{"set MTU: invalid argument"}},
	} {
		got := c.mode.Explain(c.step, c.err)
		for _, w := range c.want {
			if !errors.Is(got, c.err) || !strings.Contains(got.Error(), w) {
				t.Errorf("%v: no %q", got, w)
			}
		}
	}
}

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{"ib0_1_7fff": true, "a": true, "": false, ".": false, "..": false,
		"a/b":             false,
		"fifteen_letters": true, "sixteen_letters_": false, "a b": false, "eth%d": false, "eth0:1": false} {
		if err := ValidateName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package neighbour

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/host/nstest"
	"weft/internal/proto/mono"
)

// TestKernelAnswers: a Linux station answers the questions of a card, for both address families. A resolved
// address costs no further question, and an address without a station is unreachable.
func TestKernelAnswers(t *testing.T) {
	s := nstest.New(t)
	var tap *netlink.Tuntap
	s.Must(func() error {
		tap = &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "station"}, Mode: netlink.TUNTAP_MODE_TAP,
			Flags: netlink.TUNTAP_NO_PI, Queues: 1, NonPersist: true}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		for _, a := range []string{"10.9.0.2/24", "fd09::a1b2:c3d4/64"} {
			ip, n, err := net.ParseCIDR(a)
			if err != nil {
				return err
			}
			n.IP = ip
			if err := netlink.AddrAdd(tap, &netlink.Addr{IPNet: n, Flags: unix.IFA_F_NODAD}); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(tap)
	})
	fd := int(tap.Fds[0].Fd())
	t.Cleanup(func() { tap.Fds[0].Close() })
	var station [6]byte
	s.Must(func() error {
		l, err := netlink.LinkByName("station")
		if err == nil {
			station = [6]byte(l.Attrs().HardwareAddr)
		}
		return err
	})
	unix.SetNonblock(fd, true)
	type result struct {
		mac [6]byte
		ok  bool
	}
	results := map[netip.Addr]result{}
	r := New(own, func(ip netip.Addr, mac [6]byte, ok bool) { results[ip] = result{mac, ok} })
	now := mono.Time(1)
	silent := netip.MustParseAddr("10.9.0.77")
	// run exchanges frames until n results have arrived. The time of the questions passes by step with each look, so that
	// a station that is slow to answer is not asked again while it stands still.
	run := func(n int, step time.Duration) {
		t.Helper()
		buf, in := make([]byte, MaxFrame), make([]byte, 2048)
		for end := time.Now().Add(time.Minute); len(results) < n; {
			if time.Now().After(end) {
				t.Fatalf("%d results of %d; %+v", len(results), n, r.Counters())
			}
			now = now.Add(step)
			for {
				f, ok := r.Next(now, buf)
				if !ok {
					break
				}
				if _, err := unix.Write(fd, f); err != nil {
					t.Fatal(err)
				}
			}
			unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20)
			for {
				k, err := unix.Read(fd, in)
				if err != nil {
					break
				}
				r.Frame(now, in[:k])
			}
		}
	}
	ask := func(src, dst netip.Addr) {
		t.Helper()
		if !r.Ask(now, src, dst) {
			t.Fatalf("%s is not asked", dst)
		}
	}
	ask(own4, peer4)
	ask(own6, peer6)
	ask(own4, silent)
	run(2, 0) // of the station
	run(3, 100*time.Millisecond)
	want := result{station, true}
	if results[peer4] != want || results[peer6] != want || results[silent] != (result{}) {
		t.Errorf("%+v, the station is %x", results, station)
	}
	if c := r.Counters(); c.Answers != 2 || c.Questions != 2+tries || c.Unreachable != 1 || c.Malformed != 0 {
		t.Errorf("%+v", c)
	}
	clear(results)
	ask(own4, peer4)
	ask(own6, peer6)
	run(2, 0)
	if c := r.Counters(); results[peer4] != want || results[peer6] != want || c.Questions != 2+tries {
		t.Errorf("%+v, %+v", results, c)
	}
}

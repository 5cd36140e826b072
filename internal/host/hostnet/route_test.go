// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/host/nstest"
)

// TestRoute: whether a packet can leave is a matter of the source address and the routes, not of whether the
// destination answers: none of these does.
func TestRoute(t *testing.T) {
	s := nstest.New(t)
	addr := netip.MustParseAddr
	var eth int
	add := func(l netlink.Link, a string) error {
		p, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		p.Flags = unix.IFA_F_NODAD
		return netlink.AddrAdd(l, p)
	}
	s.Must(func() error {
		la := netlink.NewLinkAttrs()
		la.Name = "eth0"
		l := &netlink.Veth{LinkAttrs: la, PeerName: "peer"}
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		peer, err := netlink.LinkByName("peer")
		if err != nil {
			return err
		}
		eth = l.Index
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		prohibit := &netlink.Route{Type: unix.RTN_PROHIBIT, Dst: ipNet("10.9.0.0/16")}
		unreachable := &netlink.Route{Type: unix.RTN_UNREACHABLE, Dst: ipNet("10.8.0.0/16")}
		return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(peer), netlink.LinkSetUp(l), add(l, "10.1.0.1/16"),
			add(l, "fd00::1/64"), add(l, "fe80::1/64"), netlink.RouteAdd(prohibit), netlink.RouteAdd(unreachable))
	})
	for _, c := range []struct {
		src, dst string
		want     error
	}{
		{"10.1.0.1", "10.1.0.2", nil},
		{"10.1.0.1", "127.0.0.1", nil},
		{"10.1.0.1", "10.2.0.1", unix.ENETUNREACH},
		{"10.1.0.1", "10.8.0.1", unix.EHOSTUNREACH},
		{"10.1.0.1", "10.9.0.1", unix.EHOSTUNREACH},
		{"10.1.0.7", "10.1.0.2", unix.EINVAL},
		{"127.0.0.1", "10.1.0.2", unix.EINVAL},
		{"127.0.0.1", "10.1.0.1", nil},
		{"fe80::1", "fe80::2", nil},
		{"fe80::1", "fd00::2", nil},
		{"fe80::1", "fd01::2", unix.ENETUNREACH},
		{"fe80::7", "fe80::2", unix.EINVAL},
		{"fd00::1", "fe80::2", nil},
		{"fd00::1", "fd00::2", nil},
		{"fd00::1", "fd01::1", unix.ENETUNREACH},
		{"::1", "fd00::2", unix.EINVAL},
		{"::1", "fd00::1", nil},
	} {
		s.Must(func() error {
			err := Route(Leaving{Src: addr(c.src), Dst: addr(c.dst), IfIndex: eth, Port: 4791, TClass: 0x20})
			if !errors.Is(err, c.want) {
				t.Errorf("from %s to %s: %v, want %v", c.src, c.dst, err, c.want)
			}
			return nil
		})
	}
}

func ipNet(s string) (n *net.IPNet) {
	_, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return n
}

func BenchmarkRoute(b *testing.B) {
	p := Leaving{Src: netip.MustParseAddr("127.0.0.1"), Dst: netip.MustParseAddr("127.0.0.2"), Port: 4791}
	for b.Loop() {
		if err := Route(p); err != nil {
			b.Fatal(err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestSourceMoves: a host that gets another address has a route to its peers, and so a limit, as before.
func TestSourceMoves(t *testing.T) {
	inNamespace(t, "veth", 9000, false, func(t *testing.T, _ netlink.Link) {
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		at := netlink.NewLinkAttrs()
		at.Name, at.MTU = "near", 1500
		check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: at, PeerName: "far"}))
		for _, name := range []string{"near", "far"} {
			l, err := netlink.LinkByName(name)
			check(err)
			check(netlink.LinkSetUp(l))
		}
		near, err := netlink.LinkByName("near")
		check(err)
		for _, x := range []struct {
			to    string
			from  []string
			limit int32
		}{{"10.9.0.7", []string{"10.9.0.1/24", "10.9.0.2/24"}, 1472},
			{"fd09::7", []string{"fd09::1/64", "fd09::2/64"}, 1452}} {
			p := &peer{probe: -1}
			p.to.Store(newTarget(netip.AddrPortFrom(netip.MustParseAddr(x.to), 4792), netip.Addr{}))
			for _, from := range x.from {
				a, err := netlink.ParseAddr(from)
				check(err)
				a.Flags = unix.IFA_F_NODAD
				check(netlink.AddrAdd(near, a))
				if p.measure(); p.path.Load() != x.limit {
					t.Errorf("from %s to %s: the limit is %d, want %d", from, x.to, p.path.Load(), x.limit)
				}
				check(netlink.AddrDel(near, a))
			}
			if p.measure(); p.path.Load() != 0 {
				t.Errorf("without an address there is a limit of %d", p.path.Load())
			}
			check(p.closeProbe())
		}
	})
}

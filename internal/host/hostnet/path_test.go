// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft/internal/host/ifdev"
)

// TestPathMTU reads the MTU of loopback, over both families, and none of a pipe.
func TestPathMTU(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("%s: %v", at, err)
			continue
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n := PathMTU(c); n < 1280 || n > 65535 {
			t.Errorf("%s: %d", at, n)
		}
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if n := PathMTU(a); n != 0 {
		t.Errorf("a pipe has MTU %d", n)
	}
}

// TestAddresses lists addresses with a port, at least one, within the bound.
func TestAddresses(t *testing.T) {
	all := Addresses(4792, 16)
	if len(all) == 0 || len(all) > 16 || len(Addresses(4792, 1)) != 1 {
		t.Fatalf("%v", all)
	}
	for _, s := range all {
		if a, err := netip.ParseAddrPort(s); err != nil || a.Port() != 4792 || a.Addr().IsLinkLocalUnicast() {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestAddressesInOrder: the address of the default route is the first of its family, that of an interface that
// leads nowhere the last, in whatever order the interfaces are.
func TestAddressesInOrder(t *testing.T) {
	list := func(s ...string) (list []netip.Addr) {
		for _, a := range s {
			list = append(list, netip.MustParseAddr(a))
		}
		return list
	}
	bridge, lan, wan := source{list("172.17.0.1")[0], nowhere}, source{list("10.0.0.7")[0], leads},
		source{list("203.0.113.7")[0], leads}
	lan6, wan6 := source{list("fd00::7")[0], leads}, source{list("2001:db8:1::7")[0], leads}
	off := source{list("192.0.2.7")[0], noCarrier}
	all := []source{lan6, bridge, off, lan, wan, wan6}
	if got, want := ordered(slices.Clone(all), wan.addr, wan6.addr), list("203.0.113.7", "10.0.0.7", "192.0.2.7",
		"172.17.0.1", "2001:db8:1::7", "fd00::7"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := ordered(slices.Clone(all), netip.Addr{}, netip.Addr{}), list("10.0.0.7", "203.0.113.7",
		"192.0.2.7", "172.17.0.1", "fd00::7", "2001:db8:1::7"); !slices.Equal(got, want) {
		t.Errorf("without a default route: %v, want %v", got, want)
	}
}

// TestSource: a host sends to itself from the address that it sends to.
func TestSource(t *testing.T) {
	for _, a := range []string{"127.0.0.1", "::1"} {
		if to := netip.MustParseAddr(a); Source(to) != to && Source(to).IsValid() {
			t.Errorf("%v from %v", to, Source(to))
		}
	}
	if Source(netip.MustParseAddr("127.0.0.1")) != netip.MustParseAddr("127.0.0.1") {
		t.Error("there is no route to loopback")
	}
}

// TestAddressesOfBridge: the address of a bridge without ports is behind that of another interface, and one of the
// fabric is none.
func TestAddressesOfBridge(t *testing.T) {
	namespace(t, func(t *testing.T) {
		add := func(l netlink.Link, address string) {
			t.Helper()
			if err := netlink.LinkAdd(l); err != nil {
				t.Fatal(err)
			}
			a, err := netlink.ParseAddr(address)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l)); err != nil {
				t.Fatal(err)
			}
		}
		veth := func(name string) *netlink.Veth {
			return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
		}
		up := func(name string) {
			t.Helper()
			l, err := netlink.LinkByName(name)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0"}}
		add(bridge, "172.17.0.1/16")
		add(veth("eth0"), "10.0.0.1/24")
		up("eth0p")
		own := veth("weft_ib0")
		add(own, "10.1.0.1/24")
		if err := netlink.LinkSetAlias(own, ifdev.Alias); err != nil {
			t.Fatal(err)
		}
		if got, want := Addresses(4792, 16), []string{"10.0.0.1:4792", "172.17.0.1:4792"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		port := veth("port")
		port.MasterIndex = bridge.Index
		add(port, "10.2.0.1/24")
		up("portp")
		for wait := time.Now(); Addresses(4792, 16)[0] != "172.17.0.1:4792"; time.Sleep(time.Millisecond) {
			if time.Since(wait) > 20*time.Second { // the kernel reports a carrier later
				t.Fatalf("a bridge with a port: %v", Addresses(4792, 16))
			}
		}
	})
}

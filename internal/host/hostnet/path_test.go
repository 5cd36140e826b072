// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"net"
	"net/netip"
	"testing"
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

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/verbs/transport"
)

// TestAllow: a queue pair is not connected to an address outside of the port's set, and no address handle is made to
// one; the port's own addresses and groups are allowed, also where its own traffic takes the wire.
func TestAllow(t *testing.T) {
	gid := func(s string) ib.GID { return ib.GIDFromAddr(netip.MustParseAddr(s)) }
	for _, wire := range []bool{false, true} {
		l := newNode(t)
		p := *l.all.At(0).Port()
		p.WireLocal, p.Allow = wire, ib.NewAddrSet([]netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"),
			netip.MustParsePrefix("fd00::/8")})
		l.all.At(0).SetPort(&p)
		c := newClient(t, l, 4096)
		for _, x := range []struct {
			to   string
			want error
		}{
			{"10.0.0.1", nil}, {"10.0.0.2", nil}, // its own
			{"10.2.3.4", nil}, {"::ffff:10.2.3.4", nil}, {"239.1.1.1", nil},
			{"10.0.0.3", syscall.EACCES}, {"10.3.0.0", syscall.EACCES}, {"127.0.0.1", syscall.EACCES},
			{"fd00::1", syscall.EINVAL}, // not of the source's family
		} {
			av := &AHAttr{DGID: gid(x.to), SGIDIndex: 1, HopLimit: 64, Global: true}
			if _, err := c.s.CreateAH(c.pd, av); !errors.Is(err, x.want) {
				t.Errorf("wire %v: address handle to %s: %v, want %v", wire, x.to, err, x.want)
			}
			e := c.qp(QPConfig{Type: ib.RC})
			c.must(e.q.Modify(1, &transport.Attr{State: ib.Init, Port: 1}, nil,
				ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccessFlags))
			err := e.q.Modify(1, &transport.Attr{State: ib.RTR, PathMTU: ib.MTU1024, DestQPN: 9, MinRNRTimer: 1}, av,
				ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRdAtomic|
					ib.AttrMinRNRTimer)
			if !errors.Is(err, x.want) {
				t.Errorf("wire %v: queue pair to %s: %v, want %v", wire, x.to, err, x.want)
			}
		}
	}
}

// TestRoute: no path leaves the node from a GID that is no address of the host, nor without a route; the port's own
// addresses and groups need none. Where its own traffic takes the wire, it needs a route as well.
func TestRoute(t *testing.T) {
	gid := func(s string) ib.GID { return ib.GIDFromAddr(netip.MustParseAddr(s)) }
	for _, wire := range []bool{false, true} {
		l := newNode(t)
		p := *l.all.At(0).Port()
		p.WireLocal = wire
		p.GIDs = []GIDEntry{{GID: gid("fe80::1"), LocalOnly: true}, {GID: gid("10.0.0.1"), IfIndex: 7}}
		p.Route = func(src *GIDEntry, dst ib.GID, tclass uint8) error {
			if src.IfIndex != 7 || tclass != 3 {
				t.Errorf("asked for interface %d, class %d", src.IfIndex, tclass)
			}
			if dst == gid("10.9.9.9") {
				return syscall.ENETUNREACH
			}
			return nil
		}
		l.all.At(0).SetPort(&p)
		c := newClient(t, l, 4096)
		var own error
		if wire {
			own = syscall.EINVAL
		}
		for _, x := range []struct {
			from uint8
			to   string
			want error
		}{
			{0, "fe80::1", own}, {0, "fe80::2", syscall.EINVAL}, {0, "fd00::1", syscall.EINVAL}, {0, "ff02::1", nil},
			{1, "10.0.0.1", nil}, {1, "10.0.0.2", nil}, {1, "10.9.9.9", syscall.ENETUNREACH}, {1, "239.1.1.1", nil},
		} {
			av := &AHAttr{DGID: gid(x.to), SGIDIndex: x.from, HopLimit: 64, Global: true, TrafficClass: 3}
			if _, err := c.s.CreateAH(c.pd, av); !errors.Is(err, x.want) {
				t.Errorf("wire %v: from GID %d to %s: %v, want %v", wire, x.from, x.to, err, x.want)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"net/netip"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// A request that states other addresses than those of its ends is not for any program, and counts
// once where a listener has the address, however many listeners there are.
func TestAddresses(t *testing.T) {
	stranger, multicast := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("224.0.0.5")
	v4, v6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	each := []netip.Addr{loopback, eth6, ethAddr, linkLocal, ibAddr}
	b := newBench(t)
	at := func(a netip.Addr) cm.Address {
		v, err := b.Bound(a)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		name     string
		by       cm.Address
		src, dst netip.Addr
		want     bool
		// For each address: the listener's address, or the zero Addr for none.
		of netip.Addr
	}{
		{"both ends", at(ethAddr), ethAddr, ethAddr, true, ethAddr},
		{"both ends, IPv6", at(eth6), eth6, eth6, true, eth6},
		{"another source", at(ethAddr), stranger, ethAddr, false, ethAddr},
		{"another destination", at(ethAddr), ethAddr, stranger, false, netip.Addr{}},
		{"another destination, of the port", at(ethAddr), ethAddr, loopback, false, loopback},
		{"no source", at(ethAddr), unspecified4, ethAddr, false, ethAddr},
		{"InfiniBand", at(ibAddr), stranger, ibAddr, true, ibAddr},
		// ibAddr's listener is the first port's
		{"InfiniBand, the second port with the address", second, stranger, ibAddr, true, netip.Addr{}},
		{"InfiniBand, a destination that it has not", at(ibAddr), stranger, stranger, false, netip.Addr{}},
		{"InfiniBand, a destination of another port", at(ibAddr), stranger, ethAddr, false, netip.Addr{}},
		{"InfiniBand, a destination of no device", at(ibAddr), stranger, loopback, false, loopback},
		{"InfiniBand, a group", at(ibAddr), multicast, ibAddr, false, ibAddr},
		{"InfiniBand, everybody", at(ibAddr), broadcast4, ibAddr, false, ibAddr},
		{"InfiniBand, nobody", at(ibAddr), unspecified4, ibAddr, false, ibAddr},
	} {
		family := v4
		if c.dst.Is6() {
			family = v6
		}
		for _, l := range []struct {
			name  string
			addrs []netip.Addr
			of    netip.Addr
		}{
			{"one listener", []netip.Addr{v6}, v6},
			{"one of a family", []netip.Addr{v6, v4}, family},
			{"one of an address", each, c.of},
		} {
			for _, ps := range []cm.PortSpace{cm.SpaceTCP, cm.SpaceUDP} {
				t.Run(c.name+", "+l.name, func(t *testing.T) {
					b := newBench(t)
					server := b.program()
					var uid uint64
					for _, a := range l.addrs {
						n, u := server.create(ps)
						if len(l.addrs) > 1 && a == v6 {
							server.option(n, levelID, optionAFOnly, body(uint32(1)))
						}
						server.bind(n, a, 7)
						server.must(abi.CMListen, n, uint32(0))
						if a == l.of {
							uid = u
						}
					}
					a := c.by
					a.DGID = a.SGID
					var path cm.Path
					b.ResolvePath(b.now, &a, 0, func(_ mono.Time, p cm.Path, _ error) { path = p })
					b.settle()
					hdr := cm.IPHeader{SrcPort: 5, Src: c.src, Dst: c.dst}
					var heard cm.Event
					hear := func(_ mono.Time, e *cm.Event) { heard = *e }
					var err error
					if ps == cm.SpaceTCP {
						_, err = b.cm.Connect(b.now, &cm.ConnectParams{ServiceID: cm.IPService(ps, 7), Path: path,
							QPType: ib.RC, QPN: 9, PrivateData: hdr.Append(nil)}, hear)
					} else {
						_, err = b.cm.Lookup(b.now, &cm.LookupParams{ServiceID: cm.IPService(ps, 7), Path: path,
							PrivateData: hdr.Append(nil)}, hear)
					}
					if err != nil {
						t.Fatal(err)
					}
					if c.want && l.of.IsValid() {
						server.want(uid, evConnectRequest, 0)
						if b.hub.Stats.DropAddress != 0 {
							t.Errorf("%d dropped", b.hub.Stats.DropAddress)
						}
						return
					}
					server.quiet()
					var dropped uint64
					if l.of.IsValid() {
						dropped = 1
					}
					if heard.Reason != cm.ReasonInvalidServiceID && heard.Status != cm.LookupNoService ||
						b.hub.Stats.DropAddress != dropped {
						t.Errorf("%+v, %d dropped, want %d", heard, b.hub.Stats.DropAddress, dropped)
					}
				})
			}
		}
	}
}

// Requests beyond the backlog are dropped. The peer's next attempts find room.
func TestBacklog(t *testing.T) {
	for _, space := range []cm.PortSpace{cm.SpaceTCP, cm.SpaceUDP} {
		t.Run(fmt.Sprintf("%#x", space), func(t *testing.T) {
			b := newBench(t)
			server, client := b.program(), b.program()
			l, listenerUID := server.create(space)
			server.bind(l, ethAddr, 2000)
			server.must(abi.CMListen, l, uint32(2))
			const clients = 5
			for k := range clients {
				n, _ := client.route(space, ethAddr, 2000)
				client.connect(n, uint32(k+1), nil)
			}
			b.settle()
			if b.hub.Stats.DropBacklog != clients-2 {
				t.Errorf("%d dropped", b.hub.Stats.DropBacklog)
			}
			client.quiet()
			for read := 0; read < clients; {
				b.settle()
				if e, ok := server.next(); !ok {
					b.now = b.cm.Deadline()
				} else if read++; e.kind != evConnectRequest || e.uid != listenerUID {
					t.Fatalf("%+v", e)
				}
			}
			client.quiet()
			server.f.Close(b.now)
			client.f.Close(b.now)
			b.empty()
		})
	}
}

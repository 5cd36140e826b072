// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"bytes"
	"net/netip"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/service/cm"
)

// check verifies that the parts of the Hub are consistent.
func (b *bench) check() {
	h, t := b.hub, b.t
	t.Helper()
	ids, users := 0, 0
	for f := range h.files {
		for i := range f.ids {
			ids++
			if i.file != f || h.ids[i.n] != i || i.dead {
				t.Fatalf("identifier %d: %+v", i.n, i)
			}
			for m := range i.groups {
				if h.groups[m.n] != m || m.id != i {
					t.Fatalf("membership %d: %+v", m.n, m)
				}
			}
			if i.listener != nil && i.state != stateListen || i.backlog < 0 || i.requests < 0 || i.waiting < 0 ||
				len(i.groups) > maxGroups {
				t.Fatalf("identifier %d: %+v", i.n, i)
			}
		}
		waiting := map[*id]int{}
		for _, e := range f.events {
			if h.ids[e.id.n] != e.id || e.id.file != f || e.group != nil && h.groups[e.group.n] != e.group {
				t.Fatalf("an event of %d, which is not there", e.id.n)
			}
			if e.child != nil && (e.child.dead || e.child.file != nil) {
				t.Fatalf("a request that somebody has: %+v", e.child)
			}
			waiting[e.id]++
		}
		for i := range f.ids {
			if waiting[i] != i.waiting+i.requests {
				t.Fatalf("identifier %d: %d events, counted %d and %d", i.n, waiting[i], i.waiting, i.requests)
			}
		}
		if len(f.events) > 0 && !f.noticed {
			t.Fatal("events that nobody was told of")
		}
	}
	for _, n := range h.users {
		users += n
	}
	if ids != len(h.ids) || users != ids || len(h.ids)+len(h.free) > MaxIDs {
		t.Fatalf("%d identifiers, %d known, %d of users", ids, len(h.ids), users)
	}
	for s, v := range h.spaces {
		for port, l := range v.ports {
			for _, i := range l {
				if !i.claimed || i.ps != s || i.src.port != port || i.dead {
					t.Fatalf("port %d: %+v", port, i)
				}
			}
		}
	}
}

// FuzzCommand interprets its input as what two programs and a node do: most commands are
// sensible, some are noise.
func FuzzCommand(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8, 0, 9, 0})
	f.Add(bytes.Repeat([]byte{0, 2, 7, 20, 1, 3, 20, 20, 4, 20, 6, 20, 12, 8, 20, 12}, 6))
	f.Add([]byte{0, 1, 2, 1, 7, 1, 128, 2, 131, 2, 20, 132, 2, 20, 134, 2, 20, 12, 1, 8, 2, 20, 140, 2, 136, 2, 20,
		10, 1, 1, 1, 1, 2})
	f.Add(bytes.Repeat([]byte{0, 2, 2, 3, 16, 20, 12, 17, 18, 21, 22, 23}, 5))
	addrs := []netip.Addr{ethAddr, eth6, ibAddr, loopback, netip.IPv4Unspecified(), netip.IPv6Unspecified(),
		netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("192.0.2.9"), {}}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 2000 {
			return
		}
		b := newBench(t)
		programs := []*program{b.program(), b.programOf(Owner{UID: 9})}
		take := func() byte {
			if len(in) == 0 {
				return 0
			}
			c := in[0]
			in = in[1:]
			return c
		}
		for len(in) > 0 {
			what := take()
			p, other := programs[what>>7], programs[1-what>>7]
			n := uint32(take() % 6)
			addr := addrs[int(n)%len(addrs)]
			port := uint16(2000 + uint16(n)%2)
			private := make([]byte, connLen)
			copy(private, connParams(uint32(n), []byte("data")))
			switch c := uint32(what & 0x7f); c {
			case abi.CMCreateID:
				p.try(c, uint64(take()), uint64(0), uint16([]cm.PortSpace{cm.SpaceTCP, cm.SpaceUDP, cm.SpaceIPoIB,
					cm.SpaceIB}[n%4]), take(), make([]byte, 5))
			case abi.CMBindIP:
				p.try(c, uint64(0), sockaddr(addrs[int(take())%len(addrs)], port), n)
			case abi.CMResolveIP:
				p.try(c, sockaddr(netip.Addr{}, 0), sockaddr(addr, port), uint32(take()%6), uint32(1))
			case abi.CMConnect:
				p.try(c, private, n, uint32(0))
			case abi.CMAccept:
				p.try(c, uint64(take()), private, n, uint32(0))
			case abi.CMWriteEvent | 0x20:
				p.try(abi.CMWriteEvent, n, uint32(0), uint32(take()%21), uint32(0), make([]byte, 304))
			case abi.CMJoinIPMcast:
				p.try(c, uint64(0), uint64(7), sockaddr(addrs[6], 0), n)
			case abi.CMSetOption:
				v := []byte{take(), 0, 0, 0}
				p.f.Command(b.now, c, body(uint64(0), n, uint32(0), uint32(take()%5), uint32(4)), v[:1+3*(n&1)], nil,
					0, nil)
			case abi.CMMigrateID:
				p.f.Command(b.now, c, body(uint64(0), n, uint32(0)), nil, other.f, 4, nil)
				p.f.Resume()
			case abi.CMGetEvent:
				p.next()
			case 20, 21, 22, 23:
				b.settle()
			case 24:
				b.hub.Remove(b.now, uint16(n&1))
			case 25:
				p.f.Close(b.now)
				*p = program{b: b}
				p.f = b.hub.Open(Owner{UID: int(what >> 7), Own: what>>7 == 0}, p)
			case 26:
				p.f.Command(b.now, uint32(take()%26), bytes.Repeat([]byte{take()}, int(take())+64), nil, other.f, 512,
					nil)
			case abi.CMDestroyID, abi.CMLeaveMcast, abi.CMQueryRoute, abi.CMInitQPAttr, abi.CMQuery:
				p.try(c, uint64(0), n, uint32(take()%4))
			default:
				p.try(c, n, uint32(take()), make([]byte, 264))
			}
			b.check()
		}
		for _, p := range programs {
			p.f.Close(b.now)
		}
		b.check()
		b.empty()
	})
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

func addrSet(prefixes ...string) *ib.AddrSet {
	var list []netip.Prefix
	for _, p := range prefixes {
		list = append(list, netip.MustParsePrefix(p))
	}
	return ib.NewAddrSet(list)
}

// datagrams are an RC train, an acknowledgement and a CM datagram to queue pair 1 by a path.
func datagrams(p *ib.Path) []pkt.Burst {
	return []pkt.Burst{
		{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff, DestQPN: 0x11}, Count: 8, MTU: 1024, Path: p,
			Data: mem.BytesPayload(random(8 * 1024))},
		ack(7, p),
		{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, QKey: ib.GSIQKey, DestQPN: 1, SrcQPN: 1},
			Count: 1, Path: p, Data: mem.BytesPayload(random(256))},
	}
}

const packetsOfDatagrams = 8 + 1 + 1

func sendAll(t *testing.T, l *Link, p *ib.Path) {
	t.Helper()
	batch := mem.NewBatch(4096)
	for _, r := range datagrams(p) {
		if res := l.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
	}
	l.Flush(0)
}

// TestAllowedSources: a link accepts packets from the addresses of Allow and its own, and nothing of others, which it
// counts by packets. The last datagrams are allowed: what was sent before has arrived with them.
func TestAllowedSources(t *testing.T) {
	own := func(g ib.GID) bool { return g == gid("127.0.0.9") }
	for _, x := range []struct {
		allow              []string
		strangers, friends []*ib.Path
	}{
		{[]string{"127.0.0.4/30"},
			[]*ib.Path{path("127.0.0.1", "127.0.0.2"), path("127.0.0.3", "127.0.0.2"), path("127.0.0.8", "127.0.0.2"),
				path("::1", "::1")},
			[]*ib.Path{path("127.0.0.4", "127.0.0.2"), path("127.0.0.7", "127.0.0.2"), path("127.0.0.9", "127.0.0.2")}},
		{[]string{"::1/128"}, []*ib.Path{path("127.0.0.1", "127.0.0.2")}, []*ib.Path{path("::1", "::1")}},
		// IPv6 prefixes and IPv4 addresses: the IPv4-mapped ones only have them.
		{[]string{"::/96", "fd00::/8"}, []*ib.Path{path("127.0.0.1", "127.0.0.2")}, []*ib.Path{path("::1", "::1")}},
		{[]string{"::ffff:127.0.0.1/128"}, []*ib.Path{path("127.0.0.3", "127.0.0.2"), path("::1", "::1")},
			[]*ib.Path{path("127.0.0.1", "127.0.0.2")}},
		{nil, []*ib.Path{path("127.0.0.1", "127.0.0.2"), path("::1", "::1")},
			[]*ib.Path{path("127.0.0.9", "127.0.0.2")}},
	} {
		t.Run(fmt.Sprint(x.allow), func(t *testing.T) {
			tx := open(t, Config{Port: 16791, PeerPort: 16793})
			rx := open(t, Config{Port: 16793, PeerPort: 16791, Allow: addrSet(x.allow...), Own: own})
			for _, p := range x.strangers {
				sendAll(t, tx, p)
			}
			for _, p := range x.friends {
				sendAll(t, tx, p)
			}
			for _, r := range await(t, rx, uint32(len(x.friends)*packetsOfDatagrams)) {
				if g := r.path.SGID; g != gid("127.0.0.9") && !addrSet(x.allow...).Contains(&g) {
					t.Errorf("received from %v", g.Addr())
				}
			}
			awaitStrangers(t, rx, uint64(len(x.strangers)*packetsOfDatagrams))
		})
	}
}

// awaitStrangers reads until n packets of strangers were counted: those of the other family come by another socket.
func awaitStrangers(t *testing.T, l *Link, n uint64) {
	t.Helper()
	in, _ := l.FDs()
	for l.Counters().DropSourceNotAllowed < n {
		var p []unix.PollFd
		for _, fd := range in {
			p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		if k, err := unix.Poll(p, 5000); err != unix.EINTR && (err != nil || k == 0) {
			t.Fatalf("%d packets of strangers, want %d: %v", l.Counters().DropSourceNotAllowed, n, err)
		}
		if runs, _ := l.Recv(); len(runs) != 0 {
			t.Fatalf("received %+v from %v", runs[0].Headers, runs[0].Path.SGID.Addr())
		}
	}
	if g, k := l.Strangers(); k != n || l.allows(&g) {
		t.Errorf("%d packets of strangers, the last from %v", k, g.Addr())
	}
	if c := l.Counters(); c.DropSourceNotAllowed != n || c.DropRefusal != (wire.Refusals{}) {
		t.Errorf("%d packets of strangers, want %d: %+v", c.DropSourceNotAllowed, n, c)
	}
}

// TestAllowedDestinations: nothing is sent to other addresses, nor to a group outside of Allow.
func TestAllowedDestinations(t *testing.T) {
	own := func(g ib.GID) bool { return g == gid("127.0.0.9") }
	l := open(t, Config{Port: 16791, PeerPort: 16793, Allow: addrSet("127.0.0.4/30", "224.7.0.0/16"), Own: own})
	for i, to := range []string{"127.0.0.2", "224.8.0.1", "192.0.2.1", "127.0.0.8"} {
		sendAll(t, l, path("127.0.0.1", to))
		want := uint64((i + 1) * packetsOfDatagrams)
		if c := l.Counters(); c.DropDestinationNotAllowed != want || c.SentPackets != 0 {
			t.Errorf("to %s: %+v, want %d not allowed", to, c, want)
		}
	}
	sendAll(t, l, path("::1", "::1"))
	if c := l.Counters(); c.SentPackets != 0 || c.DropDestinationNotAllowed != 5*packetsOfDatagrams {
		t.Errorf("to ::1: %+v", c)
	}
	for i, to := range []string{"127.0.0.4", "127.0.0.9"} {
		sendAll(t, l, path("127.0.0.1", to))
		if c := l.Counters(); c.SentPackets != uint64((i+1)*packetsOfDatagrams) {
			t.Errorf("to %s: %+v", to, c)
		}
	}
	// A group of Allow: whether the host has a route to it is another matter.
	before := l.Counters().DropDestinationNotAllowed
	sendAll(t, l, path("127.0.0.1", "224.7.0.1"))
	if c := l.Counters(); c.DropDestinationNotAllowed != before {
		t.Errorf("to a group of Allow: %+v", c)
	}
}

// TestAllowNoAllocation: neither a packet that passes nor one that does not allocates.
func TestAllowNoAllocation(t *testing.T) {
	l := open(t, Config{Port: 16791, PeerPort: 16791, Allow: addrSet("127.0.0.4/30"),
		Own: func(ib.GID) bool { return false }})
	batch := mem.NewBatch(4096)
	data := random(1024)
	for _, from := range []string{"127.0.0.4", "127.0.0.1"} {
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 1, MTU: 1024,
			Path: path(from, "127.0.0.5"), Data: mem.BytesPayload(data)}
		if n := testing.AllocsPerRun(50, func() {
			if res := l.Send(0, &r, batch); res != mem.OK {
				t.Fatal(res)
			}
			l.Flush(0)
			for {
				if _, more := l.Recv(); !more {
					break
				}
			}
		}); n != 0 {
			t.Errorf("from %s: %v allocations per packet", from, n)
		}
	}
	if c := l.Counters(); c.DropSourceNotAllowed < 51 || c.RcvdPackets < 51 {
		t.Errorf("%+v", c)
	}
}

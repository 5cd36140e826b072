// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// cable is a virtual Ethernet cable in a network namespace of its own. One end
// has our addresses; a packet socket at the other is the wire and the peer.
type cable struct {
	near, far int // interface indexes
	nearMAC   net.HardwareAddr
	farMAC    net.HardwareAddr
	fd        int
}

const (
	nearV4, farV4 = "10.7.0.1", "10.7.0.2"
	nearV6, farV6 = "fd07::1", "fd07::2"
	nearLL, farLL = "fe80::7:1", "fe80::7:2"
)

// onWire runs f on a thread in a network namespace with a cable.
func onWire(t *testing.T, mtu int, f func(t *testing.T, c *cable)) {
	t.Run(fmt.Sprintf("MTU%d", mtu), func(t *testing.T) {
		runtime.LockOSThread() // never unlocked: thread and namespace end with the test's goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			condtest.Lacks(t, "needs CAP_SYS_ADMIN for a network namespace: %v", err)
		}
		// The ends of a cable pass packets over a queue of the processor they are
		// sent on: with one processor order is kept.
		var all, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			t.Fatal(err)
		}
		for i := 0; one.Count() == 0; i++ {
			if all.IsSet(i) {
				one.Set(i)
			}
		}
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Fatal(err)
		}
		f(t, newCable(t, mtu))
	})
}

func newCable(t *testing.T, mtu int) *cable {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &cable{nearMAC: net.HardwareAddr{2, 0, 0, 0, 7, 1}, farMAC: net.HardwareAddr{2, 0, 0, 0, 7, 2}}
	at := netlink.NewLinkAttrs()
	at.Name, at.MTU, at.HardwareAddr = "link-near", mtu, c.nearMAC
	veth := &netlink.Veth{LinkAttrs: at, PeerName: "link-far", PeerHardwareAddr: c.farMAC, PeerMTU: uint32(mtu)}
	check(netlink.LinkAdd(veth))
	near, err := netlink.LinkByName("link-near")
	check(err)
	far, err := netlink.LinkByName("link-far")
	check(err)
	// A train must be cut before the cable, as before a wire.
	check(netlink.LinkSetGSOMaxSegs(near, 1))
	check(netlink.LinkSetUp(far))
	check(netlink.LinkSetUp(near))
	c.near, c.far = near.Attrs().Index, far.Attrs().Index
	for _, a := range []struct {
		near, far string
		bits      int
	}{{nearV4, farV4, 24}, {nearV6, farV6, 64}, {nearLL, farLL, 64}} {
		addr, err := netlink.ParseAddr(fmt.Sprintf("%s/%d", a.near, a.bits))
		check(err)
		addr.Flags = unix.IFA_F_NODAD
		check(netlink.AddrAdd(near, addr))
		check(netlink.NeighAdd(&netlink.Neigh{LinkIndex: c.near, State: unix.NUD_PERMANENT, IP: net.ParseIP(a.far),
			HardwareAddr: c.farMAC}))
	}
	// The kernel drops what is sent before it has noticed the carrier, and what
	// arrives before it has made a route of an IPv6 address, which it does then.
	for _, i := range []int{c.near, c.far} {
		condtest.Until(t, "the cable", func() bool {
			l, err := netlink.LinkByIndex(i)
			return err == nil && l.Attrs().OperState == netlink.OperUp
		})
	}
	for _, a := range []string{nearV4, nearV6, nearLL} {
		condtest.Until(t, a, func() bool {
			r, err := netlink.RouteGetWithOptions(net.ParseIP(a), &netlink.RouteGetOptions{OifIndex: c.near})
			return err == nil && len(r) == 1 && r[0].Type == unix.RTN_LOCAL
		})
	}
	c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	check(err)
	t.Cleanup(func() { unix.Close(c.fd) })
	check(unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	check(unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}))
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	check(unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: c.far}))
	return c
}

// frame is a captured RoCEv2 frame.
type frame struct {
	ip   wire.IPUDP
	h    wire.Headers
	data []byte
}

// capture returns the next n RoCEv2 frames, the ICRC of each checked with all
// fields as they stand on the wire.
func (c *cable) capture(t *testing.T, n int) (out []frame) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for len(out) < n {
		k, from, err := unix.Recvfrom(c.fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatalf("captured %d of %d frames: %v", len(out), n, err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		var f frame
		eth := bytes.Clone(buf[:k])
		if eth[12] == 8 && eth[13] == 0 && k > 14+9 && eth[14+9] != unix.IPPROTO_UDP {
			continue // the kernel's own, such as a membership report, which has IP options
		}
		p, why := f.ip.Parse(eth[14:])
		if why == wire.NotRoCE {
			continue // neighbour discovery and the like
		}
		if why != wire.OK {
			t.Fatalf("frame %d: %v: % x", len(out), why, eth)
		}
		ip := eth[14 : 14+f.ip.Len()+len(p)]
		if got, want := wire.ICRC(p), wire.SumIP(ip[:len(ip)-wire.ICRCLen]); got != want {
			t.Errorf("frame %d, id %d: ICRC %08x, want %08x", len(out), f.ip.ID, got, want)
		}
		if f.data, why = f.h.Parse(p); why != wire.OK {
			t.Fatalf("frame %d: %v", len(out), why)
		}
		out = append(out, f)
	}
	return out
}

func TestCapture(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		onWire(t, mtu, capture)
	}
}

func capture(t *testing.T, c *cable) {
	near, err := netlink.LinkByIndex(c.near)
	if err != nil {
		t.Fatal(err)
	}
	pathMTU := ib.MTUForLink(near.Attrs().MTU).Bytes()
	for _, noGSO := range []bool{false, true} {
		l := open(t, Config{IfIndex: func(i uint8, g ib.GID) uint32 { return uint32(c.near) }})
		l.noGSO = noGSO
		batch := mem.NewBatch(4096)
		for _, p := range []*ib.Path{path(nearV4, farV4), path(nearV6, farV6), path(nearLL, farLL)} {
			var want []frame
			psn := ib.PSN(0xfffff0)
			for _, s := range []struct {
				op   ib.Opcode
				size int
			}{{ib.WriteOnly, 65536}, {ib.SendOnlyImm, 65535}, {ib.Acknowledge, 0}, {ib.Acknowledge, 0}, {ib.SendOnly,
				3}, {ib.ReadRespOnly, 5 * pathMTU}, {ib.WriteOnlyImm, 200001}} {
				data := random(s.size)
				r := pkt.Burst{Headers: wire.Headers{Opcode: s.op, PKey: 0xffff, DestQPN: 0x11, PSN: psn,
					AckReq: true}, Path: p,
					Count: packets(s.size, pathMTU), MTU: uint32(pathMTU), Data: mem.BytesPayload(data)}
				set(&r.Headers)
				if res := l.Send(0, &r, batch); res != mem.OK {
					t.Fatal(res)
				}
				for k := range r.Count {
					n := min(s.size-int(k)*pathMTU, pathMTU)
					want = append(want, frame{h: r.Headers.Packet(k, r.Count, n), data: data[int(k)*pathMTU:][:n]})
				}
				psn = psn.Add(r.Count)
			}
			l.Flush(0)
			if c := l.Counters(); noGSO != (c.SentGSO == 0) {
				t.Errorf("GSO used %d times", c.SentGSO)
			}
			ids := map[uint16]int{}
			for i, g := range c.capture(t, len(want)) {
				ids[g.ip.ID]++
				if g.ip.Src != p.SGID || g.ip.Dst != p.DGID || g.ip.TClass != p.TClass ||
					g.ip.HopLimit != p.HopLimit || g.ip.DF != g.ip.IPv4 {
					t.Errorf("frame %d: headers %+v, want those of %+v", i, g.ip, p)
				}
				if g.h != want[i].h || !bytes.Equal(g.data, want[i].data) {
					t.Fatalf("frame %d:\ngot  %+v\nwant %+v", i, g.h, want[i].h)
				}
			}
			if v4, many := p.DGID.IsIPv4(), len(ids) > 10; many != (v4 && !noGSO) {
				t.Errorf("%v: the frames had %d different identifications", p.DGID.Addr(), len(ids))
			}
		}
		l.Close()
	}
}

func TestTooBigForPath(t *testing.T) {
	onWire(t, 1500, func(t *testing.T, c *cable) {
		l := open(t, Config{})
		for _, p := range []*ib.Path{path(nearV4, farV4), path(nearV6, farV6)} {
			l.c, l.tooBig = Counters{}, tooBig{}
			for _, n := range []int{1, 8} {
				r := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Path: p, Count: uint32(n),
					MTU: 4096, Data: mem.BytesPayload(random(n * 4096))}
				if res := l.Send(0, &r, mem.NewBatch(4096)); res != mem.OK {
					t.Fatal(res)
				}
				l.Flush(0)
			}
			if got := l.Counters(); got.DropTooBig != 9 || got.SentPackets != 0 {
				t.Errorf("%+v", got)
			}
			if d := l.Degraded(); len(d) != 1 || d[0].Name != "path_mtu" {
				t.Errorf("degraded states: %+v", d)
			}
		}
	})
}

// inject puts a frame on the wire as the peer would.
func (c *cable) inject(t *testing.T, dst net.HardwareAddr, ip wire.IPUDP, h wire.Headers, data []byte) {
	t.Helper()
	h.PadCnt = uint8(wire.Pad(len(data)))
	b := make([]byte, 9000)
	copy(b, dst)
	copy(b[6:], c.farMAC)
	b[12], b[13] = 0x86, 0xdd
	if ip.IPv4 {
		b[12], b[13] = 8, 0
	}
	n := int(h.Opcode.Info().HdrLen) + len(data) + int(h.PadCnt) + wire.ICRCLen
	p := b[14:]
	k := ip.Put(p, n)
	copy(p[k+h.Put(p[k:]):], data)
	wire.PutICRC(p[k+n-wire.ICRCLen:], wire.SumIP(p[:k+n-wire.ICRCLen]))
	if _, err := unix.Write(c.fd, b[:14+k+n]); err != nil {
		t.Fatal(err)
	}
}

// TestPeerFrames receives what a soft-RoCE peer sends: any identification, no
// UDP checksum.
func TestPeerFrames(t *testing.T) {
	onWire(t, 9000, func(t *testing.T, c *cable) {
		l := open(t, Config{})
		group4, group6 := gid("224.7.7.7"), gid("ff0e::777")
		for _, g := range []ib.GID{group4, group6} {
			if err := l.Join(g, c.near); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Join(gid(nearV4), c.near); err == nil {
			t.Error("joined a unicast address")
		}
		data := random(4096)
		h := wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, DestQPN: ib.QPNMulticast, QKey: 7,
			SrcQPN: 0x11}
		v4 := wire.IPUDP{Src: gid(farV4), Dst: gid(nearV4), IPv4: true, TClass: 0x20, HopLimit: 64, DF: true,
			ID: 0xabcd, SrcPort: 0xd00d, DstPort: wire.UDPPort}
		v6 := wire.IPUDP{Src: gid(farV6), Dst: gid(nearV6), TClass: 0x20, HopLimit: 64, SrcPort: 0xd00d,
			DstPort: wire.UDPPort}
		for i, f := range []struct {
			mac net.HardwareAddr
			ip  wire.IPUDP
			dst ib.GID
		}{
			{c.nearMAC, v4, gid(nearV4)}, {c.nearMAC, v6, gid(nearV6)},
			{net.HardwareAddr{1, 0, 0x5e, 7, 7, 7}, v4, group4}, {net.HardwareAddr{0x33, 0x33, 0, 0, 7, 0x77}, v6,
				group6},
		} {
			f.ip.Dst, h.PSN = f.dst, ib.PSN(i)
			c.inject(t, f.mac, f.ip, h, data)
			g := await(t, l, 1)[0]
			want := ib.Path{SGID: f.ip.Src, DGID: f.dst, TClass: 0x20, HopLimit: 64, SrcPort: 0xd00d}
			if g.path != want || g.Headers != h || !bytes.Equal(g.data, data) || g.IPv4 != f.ip.IPv4 {
				t.Errorf("frame %d: got %+v %+v, want %+v %+v", i, g.path, g.Headers, want, h)
			}
		}
		// Not for us: the broadcast address, and a group that was left.
		if err := l.Leave(group4, c.near); err != nil {
			t.Fatal(err)
		}
		v4.Dst = group4
		c.inject(t, net.HardwareAddr{1, 0, 0x5e, 7, 7, 7}, v4, h, data)
		v4.Dst = gid("10.7.0.255")
		c.inject(t, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, v4, h, data)
		v4.Dst = gid(nearV4)
		h.PSN = 77
		c.inject(t, c.nearMAC, v4, h, data)
		if g := await(t, l, 1); len(g) != 1 || g[0].PSN != 77 {
			t.Errorf("received %+v", g)
		}
		if c := l.Counters(); c.DropNotLocal != 1 || c.RcvdPackets != 5 {
			t.Errorf("%+v", c)
		}
	})
}

// TestMulticastOut sends to groups: the interface is that of the source, and our own sockets do not
// receive it.
func TestMulticastOut(t *testing.T) {
	onWire(t, 1500, func(t *testing.T, c *cable) {
		l := open(t, Config{IfIndex: func(i uint8, g ib.GID) uint32 { return uint32(c.near) }})
		batch := mem.NewBatch(4096)
		for _, p := range []*ib.Path{path(nearV4, "224.7.7.7"), path(nearV6, "ff0e::777")} {
			if err := l.Join(p.DGID, c.near); err != nil {
				t.Fatal(err)
			}
			r := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff,
				DestQPN: ib.QPNMulticast}, Count: 1, Path: p, Data: mem.BytesPayload(random(100))}
			if res := l.Send(0, &r, batch); res != mem.OK {
				t.Fatal(res)
			}
			l.Flush(0)
			if f := c.capture(t, 1)[0]; f.ip.Dst != p.DGID || f.ip.Src != p.SGID || f.ip.HopLimit != p.HopLimit {
				t.Errorf("%+v, want %+v", f.ip, p)
			}
			if runs, _ := l.Recv(); len(runs) != 0 {
				t.Errorf("heard our own multicast")
			}
		}
	})
}

// TestBlocked fills a slow interface: nothing is lost, and order is kept.
func TestBlocked(t *testing.T) {
	onWire(t, 1500, func(t *testing.T, c *cable) { blocked(t, c, false) })
}

// TestBlockedSingles is the same with trains that must go in single packets,
// as they are found to be only when they are sent.
func TestBlockedSingles(t *testing.T) {
	onWire(t, 1500, func(t *testing.T, c *cable) { blocked(t, c, true) })
}

func blocked(t *testing.T, c *cable, singles bool) {
	// 1 MB/s, with room for what the socket buffer holds: slower than any sender, even one that waits for a processor.
	tbf := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: c.near, Handle: netlink.MakeHandle(1, 0),
		Parent: netlink.HANDLE_ROOT},
		Rate: 1 << 20, Limit: 64 << 20, Buffer: 64 << 10}
	if err := netlink.QdiscAdd(tbf); err != nil {
		condtest.Lacks(t, "needs the token bucket filter (sch_tbf) in the kernel: %v", err)
	}
	l := open(t, Config{})
	_, out := l.FDs()
	for _, fd := range out {
		udpsock.SetSendBuffer(fd, 128<<10)
	}
	batch := mem.NewBatch(4096)
	data := random(65536)
	blocked := 0
	const runs = 14 // fewer packets than the backlog of a veth end holds (net.core.netdev_max_backlog)
	end := time.Now().Add(20 * time.Second)
	for i := uint32(0); i < runs || l.Blocked(); {
		l.noGSO = singles
		if l.Blocked() {
			blocked++
			var p []unix.PollFd
			for _, fd := range out {
				p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT})
			}
			if _, err := unix.Poll(p, 1000); err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
			l.Flush(0)
			if time.Now().After(end) {
				t.Fatalf("still blocked: %+v", l.Counters())
			}
			if i == runs || l.Blocked() {
				continue
			}
		}
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff, PSN: ib.PSN(i * 64)},
			Path: path(nearV4, farV4), Count: 64, MTU: 1024, Data: mem.BytesPayload(data)}
		l.noGSO = false
		if res := l.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
		l.noGSO = singles
		l.Flush(0)
		i++
	}
	for i, f := range c.capture(t, runs*64) {
		if f.h.PSN != ib.PSN(i) {
			t.Fatalf("frame %d has PSN %d", i, f.h.PSN)
		}
	}
	if c := l.Counters(); blocked == 0 || c.SendBlocked == 0 || c.DropBlocked != 0 {
		t.Errorf("blocked %d times: %+v", blocked, c)
	}
	// Bursts sent although the link is Blocked are dropped, with the reason counted.
	for i := 0; l.Counters().DropBlocked == 0; i++ {
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Path: path(nearV4, farV4), Count: 64,
			MTU: 1024, Data: mem.BytesPayload(data)}
		if l.Send(0, &r, batch) != mem.OK || i > 1000 {
			t.Fatalf("after %d runs: %+v", i, l.Counters())
		}
	}
}

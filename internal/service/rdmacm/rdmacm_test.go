// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"bytes"
	"net/netip"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/service/cm"
)

// Two programs connect, as librdmacm has them do it, and part.
func TestConnect(t *testing.T) {
	for _, dst := range []netip.Addr{ethAddr, eth6, loopback, ibAddr} {
		for _, on := range []netip.Addr{dst, netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			if on.Is4() && dst.Is6() {
				continue
			}
			t.Run(dst.String()+" on "+on.String(), func(t *testing.T) { connect(t, dst, on) })
		}
	}
}

func connect(t *testing.T, dst, on netip.Addr) {
	b := newBench(t)
	server, client := b.program(), b.program()
	listener, listenerUID := server.listen(cm.SpaceTCP, on, 7174)
	n, uid := client.route(cm.SpaceTCP, dst, 7174)
	// Before there is a peer, a queue pair can be made INIT.
	mask, attr := client.attr(n, ib.Init)
	if mask != ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccessFlags || attr[135] != 0 && dst != ibAddr {
		t.Errorf("mask %#x", mask)
	}
	client.refused(ENOENT, abi.CMInitQPAttr, uint64(0), uint32(999999), uint32(1))
	client.connect(n, 0x1234, []byte("hello"))
	e := server.want(listenerUID, evConnectRequest, 0)
	if !bytes.HasPrefix(e.param[8:], []byte("hello\x00")) || e.param[8+maxPrivate] != maxRequestData {
		t.Errorf("private data %q of length %d", e.param[8:16], e.param[8+maxPrivate])
	}
	if qpn := le.Uint32(e.param); qpn != 0x1234 {
		t.Errorf("queue pair %#x", qpn)
	}
	// The peer issues 2 reads and serves 1: this side has the reverse.
	if e.param[8+maxPrivate+2] != 2 || e.param[8+maxPrivate+3] != 1 {
		t.Errorf("resources %v", e.param[8+maxPrivate+2:][:2])
	}
	child := e.id
	route := server.must(abi.CMQueryRoute, uint64(0), child, uint32(0))
	if len(route) != 208 || le.Uint32(route[192:]) != 1 || route[196] != portNum || le.Uint32(route[200:]) != noIndex {
		t.Errorf("route of %d octets: % x", len(route), route[192:])
	}
	var src, peer endpoint
	src.parse(route[136:])
	peer.parse(route[164:])
	if src.addr != dst || src.port != 7174 || peer.addr != dst || peer.port < firstPort {
		t.Errorf("between %v and %v", src, peer)
	}
	for _, s := range []struct {
		state ib.QPState
		want  ib.AttrMask
	}{
		{ib.Init, ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags},
		{ib.RTR, ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN | ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer},
		{ib.RTS, ib.AttrState | ib.AttrSQPSN | ib.AttrTimeout | ib.AttrRetryCnt | ib.AttrRNRRetry | ib.AttrMaxQPRdAtomic},
	} {
		mask, attr := server.attr(child, s.state)
		if mask != s.want || le.Uint32(attr[4:]) != uint32(s.state) {
			t.Errorf("%v: mask %#x, want %#x", s.state, mask, s.want)
		}
		if s.state == ib.RTR && le.Uint32(attr[32:]) != 0x1234 {
			t.Errorf("to queue pair %#x", le.Uint32(attr[32:]))
		}
	}
	// Events of a connection without a user number are not delivered.
	const childUID = 77
	server.accept(childUID, child, 0x4321, []byte("welcome"))
	e = client.want(uid, evConnectResponse, 0)
	if !bytes.HasPrefix(e.param[8:], []byte("welcome\x00")) || e.param[8+maxPrivate] != cm.MaxReplyData ||
		le.Uint32(e.param) != 0x4321 {
		t.Errorf("response %q", e.param[:16])
	}
	client.attr(n, ib.RTR)
	client.attr(n, ib.RTS)
	client.establish(n)
	server.want(childUID, evEstablished, 0)
	client.quiet()
	if got := b.hub.IDs(); len(got) != 3 || got[0].State != "LISTEN" {
		t.Errorf("%+v", got)
	}
	client.must(abi.CMDisconnect, n)
	server.want(childUID, evDisconnected, 0)
	client.want(uid, evDisconnected, 0)
	server.must(abi.CMDisconnect, child)
	if k := server.destroy(child); k != 2 {
		t.Errorf("%d events of the connection", k)
	}
	if k := client.destroy(n); k != 4 {
		t.Errorf("%d events of the client", k)
	}
	if k := server.destroy(listener); k != 1 {
		t.Errorf("%d events of the listener", k)
	}
	b.empty()
}

// empty verifies that nothing is left.
func (b *bench) empty() {
	b.t.Helper()
	b.settle()
	h := b.hub
	for s, v := range h.spaces {
		if len(v.ports) != 0 {
			b.t.Errorf("ports of %#x: %v", s, v.ports)
		}
	}
	if len(h.ids) != 0 || len(h.groups) != 0 || len(h.users) != 0 || b.joins != b.cancels {
		b.t.Errorf("%d identifiers, %d groups, %d users; %d joins, %d cancelled", len(h.ids), len(h.groups),
			len(h.users), b.joins, b.cancels)
	}
}

// A program that ends closes its connections: the peer is notified.
func TestDeath(t *testing.T) {
	for _, whose := range []string{"client", "server"} {
		t.Run(whose, func(t *testing.T) {
			b := newBench(t)
			server, client := b.program(), b.program()
			_, listenerUID := server.listen(cm.SpaceTCP, ethAddr, 1)
			n, uid := client.route(cm.SpaceTCP, ethAddr, 1)
			client.connect(n, 1, nil)
			child := server.want(listenerUID, evConnectRequest, 0).id
			server.accept(9, child, 2, nil)
			client.want(uid, evConnectResponse, 0)
			client.establish(n)
			server.want(9, evEstablished, 0)
			if whose == "client" {
				client.f.Close(b.now)
				server.want(9, evDisconnected, 0)
				server.f.Close(b.now)
			} else {
				server.f.Close(b.now)
				client.want(uid, evDisconnected, 0)
				client.f.Close(b.now)
			}
			client.f.Close(b.now)
			b.empty()
			client.refused(EIO, abi.CMCreateID, uint64(1), uint64(0), uint16(cm.SpaceTCP), make([]byte, 6))
		})
	}
}

// Requests: rejected with and without a reason, without a listener, and too many.
func TestReject(t *testing.T) {
	b := newBench(t)
	server, client := b.program(), b.program()
	l, listenerUID := server.create(cm.SpaceTCP)
	server.bind(l, ethAddr, 1)
	server.must(abi.CMListen, l, uint32(1))

	n, uid := client.route(cm.SpaceTCP, ethAddr, 2)
	client.connect(n, 1, nil)
	client.want(uid, evRejected, int32(cm.ReasonInvalidServiceID))
	client.refused(EINVAL, abi.CMConnect, connParams(1, nil), n, uint32(0))

	n, uid = client.route(cm.SpaceTCP, ethAddr, 1)
	client.connect(n, 1, nil)
	child := server.want(listenerUID, evConnectRequest, 0).id
	data := make([]byte, maxPrivate)
	server.refused(EINVAL, abi.CMReject, child, uint8(5), uint8(12), uint16(0), data)
	server.refused(EINVAL, abi.CMReject, child, uint8(149), uint8(0), uint16(0), data)
	copy(data, "go away")
	server.must(abi.CMReject, child, uint8(7), uint8(0), uint16(0), data)
	e := client.want(uid, evRejected, int32(cm.ReasonConsumer))
	if !bytes.HasPrefix(e.param[8:], []byte("go away\x00")) || e.param[8+maxPrivate] != cm.MaxRejectData {
		t.Errorf("private data %q", e.param[8:20])
	}
	server.destroy(child)

	// One may wait to be read.
	n, _ = client.route(cm.SpaceTCP, ethAddr, 1)
	client.connect(n, 1, nil)
	b.settle()
	// Requests that were not read end with their listener.
	server.destroy(l)
	if e, ok := client.next(); !ok || e.kind != evRejected {
		t.Errorf("%+v %v", e, ok)
	}
	server.quiet()
	client.f.Close(b.now)
	b.empty()
}

// A user at its limit of identifiers still gets other events: the peer with a request that needs an
// identifier is rejected.
func TestRequestWithoutRoom(t *testing.T) {
	b := newBench(t)
	server, client := b.programOf(Owner{UID: 5}), b.program()
	l, listenerUID := server.create(cm.SpaceTCP)
	server.bind(l, ethAddr, 2000)
	server.must(abi.CMListen, l, uint32(0))
	n, uid := client.route(cm.SpaceTCP, ethAddr, 2000)
	client.connect(n, 1, nil)
	child := server.want(listenerUID, evConnectRequest, 0).id
	for range MaxUserIDs - 2 {
		server.create(cm.SpaceTCP)
	}
	m, second := client.route(cm.SpaceTCP, ethAddr, 2000)
	client.connect(m, 2, nil)
	b.settle()
	if e, ok := server.next(); ok {
		t.Fatalf("%+v", e)
	}
	client.want(second, evRejected, int32(cm.ReasonNoResources))
	if b.hub.Stats.DropIDs != 1 {
		t.Errorf("%+v", b.hub.Stats)
	}
	server.destroy(child)
	if e, ok := client.next(); !ok || e.kind != evRejected || e.uid != uid {
		t.Errorf("%+v %v", e, ok)
	}
	// There is room again.
	m, _ = client.route(cm.SpaceTCP, ethAddr, 2000)
	client.connect(m, 3, nil)
	server.want(listenerUID, evConnectRequest, 0)
	server.f.Close(b.now)
	client.f.Close(b.now)
	b.empty()
}

// A datagram service is looked up.
func TestDatagram(t *testing.T) {
	b := newBench(t)
	server, client := b.program(), b.program()
	l, listenerUID := server.listen(cm.SpaceUDP, netip.IPv4Unspecified(), 5)
	n, uid := client.route(cm.SpaceUDP, ethAddr, 5)
	mask, attr := client.attr(n, ib.Init)
	if mask != ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey || ib.QKey(le.Uint32(attr[20:])) != QKeyUDP {
		t.Errorf("mask %#x", mask)
	}
	client.connect(n, 0, []byte("who"))
	e := server.want(listenerUID, evConnectRequest, 0)
	const at = 8 + ahLen
	if !bytes.HasPrefix(e.param[at:], []byte("who\x00")) || e.param[at+maxPrivate] != maxLookupData {
		t.Errorf("private data %q", e.param[at:])
	}
	server.accept(9, e.id, 0x77, []byte("me"))
	e = client.want(uid, evEstablished, 0)
	if le.Uint32(e.param) != 0x77 || ib.QKey(le.Uint32(e.param[4:])) != QKeyUDP ||
		ib.GID(e.param[8:24]) != ib.GIDFromAddr(ethAddr) ||
		!bytes.HasPrefix(e.param[at:], []byte("me\x00")) {
		t.Errorf("answer % x", e.param[:at])
	}
	server.destroy(e.id + 1)
	client.destroy(n)
	n, uid = client.route(cm.SpaceUDP, ethAddr, 5)
	client.connect(n, 0, nil)
	e = server.want(listenerUID, evConnectRequest, 0)
	server.must(abi.CMReject, e.id, uint8(0), uint8(0), uint16(0), make([]byte, maxPrivate))
	client.want(uid, evUnreachable, int32(cm.LookupRejected))
	server.destroy(e.id)
	server.destroy(l)
	client.destroy(n)
	b.empty()
}

// Ports: given, taken, shared, and those of the privileged.
func TestPorts(t *testing.T) {
	b := newBench(t)
	p := b.program()
	try := func(a netip.Addr, port uint16, reuse bool) (uint32, Errno) {
		n, _ := p.create(cm.SpaceTCP)
		if reuse {
			p.option(n, levelID, optionReuse, body(uint32(1)))
		}
		_, err := p.try(abi.CMBindIP, uint64(0), sockaddr(a, port), n)
		return n, err
	}
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	for i, c := range []struct {
		a     netip.Addr
		port  uint16
		reuse bool
		want  Errno
	}{
		{ethAddr, 10, false, OK},
		{ethAddr, 10, false, EADDRINUSE},
		{loopback, 10, false, OK},
		{any4, 10, false, EADDRINUSE},
		{any6, 10, false, EADDRINUSE},
		{any4, 11, false, OK},
		{ethAddr, 11, true, EADDRINUSE},
		{ethAddr, 12, true, OK},
		{ethAddr, 12, true, OK},
		{ethAddr, 12, false, EADDRINUSE},
		{netip.MustParseAddr("192.0.2.1"), 13, false, ENODEV},
		{netip.Addr{}, 13, false, EAFNOSUPPORT},
	} {
		if _, err := try(c.a, c.port, c.reuse); err != c.want {
			t.Errorf("%d: %v port %d: %v, want %v", i, c.a, c.port, err, c.want)
		}
	}
	n, err := try(ethAddr, 0, false)
	route := p.must(abi.CMQueryRoute, uint64(0), n, uint32(0))
	if port := be.Uint16(route[138:]); err != OK || port < firstPort || port > lastPort {
		t.Errorf("port %d, %v", port, err)
	}
	// The loopback's is no device's: other hosts do not reach it.
	lo, err := try(loopback, 0, false)
	local := p.must(abi.CMQueryRoute, uint64(0), lo, uint32(0))
	if le.Uint64(route) == 0 || err != OK || le.Uint64(local) != 0 {
		t.Errorf("bound to a port: device %#x; to the loopback: %#x, %v", le.Uint64(route), le.Uint64(local), err)
	}
	stranger := b.programOf(Owner{UID: 5})
	m, _ := stranger.create(cm.SpaceTCP)
	stranger.refused(EACCES, abi.CMBindIP, uint64(0), sockaddr(ethAddr, 1023), m)
	stranger.must(abi.CMBindIP, uint64(0), sockaddr(ethAddr, 1024), m)
	// Another port space is another.
	u, _ := p.create(cm.SpaceUDP)
	p.bind(u, ethAddr, 10)
	stranger.refused(EINVAL, abi.CMListen, u, uint32(0))
	stranger.refused(ENOENT, abi.CMListen, uint32(1<<30), uint32(0))
	p.f.Close(b.now)
	stranger.f.Close(b.now)
	b.empty()
}

// All ports may be in use.
func TestNoPort(t *testing.T) {
	b := newBench(t)
	p := b.program()
	for range searchPorts {
		n, _ := p.create(cm.SpaceTCP)
		p.bind(n, ethAddr, 0)
	}
	n, _ := p.create(cm.SpaceTCP)
	p.refused(EADDRNOTAVAIL, abi.CMBindIP, uint64(0), sockaddr(ethAddr, 0), n)
	if b.hub.Stats.DropPorts != 1 {
		t.Errorf("%+v", b.hub.Stats)
	}
	p.f.Close(b.now)
	b.empty()
}

// A notice is pending exactly while there are events that the program has not acknowledged.
func TestNotices(t *testing.T) {
	b := newBench(t)
	p := b.program()
	a, _ := p.create(cm.SpaceTCP)
	c, uid := p.create(cm.SpaceTCP)
	for _, n := range []uint32{a, c} {
		p.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(ethAddr, 1), n, uint32(1))
	}
	b.settle()
	if p.notices != 1 || p.f.Stale() {
		t.Fatalf("%d notices for two events", p.notices)
	}
	// The first event goes with its identifier: the notice is good for the other.
	if p.destroy(a) != 0 || p.f.Stale() {
		t.Fatal("a stale notice")
	}
	p.want(uid, evAddrResolved, 0)
	if p.notices != 0 {
		t.Fatal("a notice for nothing")
	}
	p.must(abi.CMResolveRoute, c, uint32(0))
	b.settle()
	if p.destroy(c) != 1 || !p.f.Stale() || p.notices != 1 {
		t.Fatal("no stale notice")
	}
	p.notices--
	p.f.Noticed()
	p.f.Resume()
	if p.f.Stale() || p.notices != 0 {
		t.Fatal("it was taken back")
	}
	if _, err := p.try(abi.CMGetEvent, uint64(0)); err != EAGAIN {
		t.Fatal(err)
	}
	b.empty()
}

// An identifier moves to another channel, and its events with it.
func TestMigrate(t *testing.T) {
	b := newBench(t)
	from, to := b.program(), b.program()
	n, uid := from.create(cm.SpaceTCP)
	from.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(ethAddr, 1), n, uint32(1))
	from.want(uid, evAddrResolved, 0)
	from.must(abi.CMResolveRoute, n, uint32(0))
	b.settle()
	args := body(uint64(0), n, uint32(0))
	if _, err := to.f.Command(b.now, abi.CMMigrateID, args, nil, nil, 4, nil); err != ENOENT {
		t.Fatal(err)
	}
	if _, err := to.f.Command(b.now, abi.CMMigrateID, args, nil, to.f, 4, nil); err != EINVAL {
		t.Fatal(err)
	}
	out, err := to.f.Command(b.now, abi.CMMigrateID, args, nil, from.f, 4, nil)
	if err != OK || le.Uint32(out) != 1 {
		t.Fatal(err, out)
	}
	if !from.f.Stale() || to.notices != 1 {
		t.Fatal("notices did not move")
	}
	from.refused(EINVAL, abi.CMDisconnect, n)
	to.want(uid, evRouteResolved, 0)
	from.f.Close(b.now)
	if to.destroy(n) != 2 {
		t.Fatal("events were not counted")
	}
	b.empty()
}

// Multicast groups: of an Ethernet port, and of an InfiniBand port by the names that other nodes
// have for them.
func TestGroups(t *testing.T) {
	for _, c := range []struct {
		ps   cm.PortSpace
		on   netip.Addr
		addr string
		want ib.GID
	}{
		{cm.SpaceUDP, ethAddr, "239.1.2.3", ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))},
		{cm.SpaceUDP, eth6, "ff0e::7", ib.GIDFromAddr(netip.MustParseAddr("ff0e::7"))},
		{cm.SpaceUDP, ibAddr, "239.1.2.3", ib.GID{0xff, 0x12, 0x40, 0x01, 0x80, 0x01, 12: 0x0f, 1, 2, 3}},
		{cm.SpaceIPoIB, ibAddr, "239.1.2.3", ib.GID{0xff, 0x12, 0x40, 0x1b, 0x80, 0x01, 12: 0x0f, 1, 2, 3}},
		{cm.SpaceUDP, ibAddr, "ff0e::1234", ib.GID{0xff, 0x12, 0x60, 0x01, 0x80, 0x01, 14: 0x12, 0x34}},
		{cm.SpaceUDP, ibAddr, "ff12:a01b:fe80::5", ib.GIDFromAddr(netip.MustParseAddr("ff12:a01b:fe80::5"))},
	} {
		t.Run(c.addr, func(t *testing.T) {
			b := newBench(t)
			p := b.program()
			n, _ := p.create(c.ps)
			p.refused(EINVAL, abi.CMJoinIPMcast, uint64(0), uint64(5), sockaddr(netip.MustParseAddr(c.addr), 0), n)
			p.bind(n, c.on, 0)
			m := le.Uint32(p.must(abi.CMJoinIPMcast, uint64(0), uint64(500), sockaddr(netip.MustParseAddr(c.addr), 0),
				n))
			e := p.want(500, evMulticastJoin, 0)
			if e.id != m || le.Uint32(e.param) != 0xffffff || ib.GID(e.param[8:24]) != c.want || e.param[8+29] != 1 {
				t.Errorf("%v, want %v", ib.GID(e.param[8:24]), c.want)
			}
			p.refused(ENOENT, abi.CMLeaveMcast, uint64(0), m+9, uint32(0))
			if k := le.Uint32(p.must(abi.CMLeaveMcast, uint64(0), m, uint32(0))); k != 1 || b.cancels != 1 {
				t.Errorf("%d events, %d cancelled", k, b.cancels)
			}
			// Another ends with its identifier; its event was not read.
			p.must(abi.CMJoinMcast, uint64(0), uint64(501), n, uint16(storageOf(c.addr)), uint16(joinSendOnly),
				pad(sockaddr(netip.MustParseAddr(c.addr), 0), storageLen))
			b.settle()
			if !b.groups[1].SendOnly || p.destroy(n) != 1 || !p.f.Stale() {
				t.Errorf("%+v", b.groups[1])
			}
			b.empty()
		})
	}
}

func storageOf(a string) int {
	e := endpoint{addr: netip.MustParseAddr(a)}
	return e.len()
}

func pad(b []byte, n int) []byte { return append(b, make([]byte, n-len(b))...) }

// A group that cannot be joined, and more than there may be.
func TestNoGroup(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, _ := p.create(cm.SpaceUDP)
	p.bind(n, ibAddr, 0)
	b.joinErr = cm.ErrTimeout
	group := sockaddr(netip.MustParseAddr("239.0.0.1"), 0)
	p.must(abi.CMJoinIPMcast, uint64(0), uint64(5), group, n)
	p.want(5, evMulticastError, -int32(ETIMEDOUT))
	for range maxGroups - 1 {
		p.must(abi.CMJoinIPMcast, uint64(0), uint64(5), group, n)
	}
	p.refused(ENOMEM, abi.CMJoinIPMcast, uint64(0), uint64(5), group, n)
	m, _ := p.create(cm.SpaceUDP)
	p.bind(m, ethAddr, 0)
	p.refused(EINVAL, abi.CMJoinIPMcast, uint64(0), uint64(5), sockaddr(ethAddr, 0), m)
	if b.hub.Stats.DropGroups != 1 {
		t.Errorf("%+v", b.hub.Stats)
	}
	p.f.Close(b.now)
	b.empty()
}

// Users have so many identifiers, and no more.
func TestBounds(t *testing.T) {
	b := newBench(t)
	stranger, other, own := b.programOf(Owner{UID: 5}), b.programOf(Owner{UID: 5}), b.program()
	for range MaxUserIDs - 1 {
		stranger.create(cm.SpaceTCP)
	}
	other.create(cm.SpaceUDP)
	args := []any{uint64(1), uint64(0), uint16(cm.SpaceTCP), make([]byte, 6)}
	stranger.refused(ENOMEM, abi.CMCreateID, args...)
	for range MaxIDs - MaxUserIDs {
		own.create(cm.SpaceTCP)
	}
	own.refused(ENOMEM, abi.CMCreateID, args...)
	if b.hub.Stats.DropIDs != 2 {
		t.Errorf("%+v", b.hub.Stats)
	}
	stranger.f.Close(b.now)
	if n, _ := other.create(cm.SpaceTCP); n >= MaxIDs {
		t.Errorf("number %d", n)
	}
	other.f.Close(b.now)
	own.f.Close(b.now)
	b.empty()
}

// A port that goes takes its connections along.
func TestRemove(t *testing.T) {
	b := newBench(t)
	server, client := b.program(), b.program()
	l, listenerUID := server.listen(cm.SpaceTCP, ibAddr, 1)
	n, uid := client.route(cm.SpaceTCP, ibAddr, 1)
	client.connect(n, 1, nil)
	b.settle()
	b.hub.Remove(b.now, 1)
	client.want(uid, evDeviceRemoval, 0)
	server.want(listenerUID, evDeviceRemoval, 0)
	client.refused(ENODEV, abi.CMDisconnect, n)
	client.destroy(n)
	server.destroy(l)
	b.empty()
}

// A request that ends with its port leaves its place in the listener's queue to others.
func TestRemoveRequest(t *testing.T) {
	b := newBench(t)
	server, client := b.program(), b.program()
	l, listenerUID := server.create(cm.SpaceTCP)
	server.bind(l, unspecified4, 1)
	server.must(abi.CMListen, l, uint32(1))
	n, uid := client.route(cm.SpaceTCP, ibAddr, 1)
	client.connect(n, 1, nil)
	b.settle()
	b.hub.Remove(b.now, 1)
	client.want(uid, evDeviceRemoval, 0)
	n, _ = client.route(cm.SpaceTCP, ethAddr, 1)
	client.connect(n, 2, nil)
	server.want(listenerUID, evConnectRequest, 0)
	server.f.Close(b.now)
	client.f.Close(b.now)
	b.empty()
}

// A program reports the peer's first packet: the connection is established without the RTU, once.
func TestNotify(t *testing.T) {
	const commEst, sqDrained = 4, 5 // ibv_event_type
	b := newBench(t)
	server, client := b.program(), b.program()
	_, listenerUID := server.listen(cm.SpaceTCP, ethAddr, 1)
	n, uid := client.route(cm.SpaceTCP, ethAddr, 1)
	client.refused(EINVAL, abi.CMNotify, n, uint32(commEst))
	client.connect(n, 1, nil)
	child := server.want(listenerUID, evConnectRequest, 0).id
	server.refused(EINVAL, abi.CMNotify, child, uint32(commEst))
	server.accept(9, child, 2, nil)
	client.want(uid, evConnectResponse, 0)
	server.refused(EINVAL, abi.CMNotify, child, uint32(sqDrained))
	server.quiet()
	server.must(abi.CMNotify, child, uint32(commEst))
	server.want(9, evEstablished, 0)
	server.refused(EISCONN, abi.CMNotify, child, uint32(commEst))
	client.establish(n)
	server.quiet()
	server.f.Close(b.now)
	client.f.Close(b.now)
	b.empty()
}

// The scope of a link-local address reaches the resolver.
func TestScope(t *testing.T) {
	b := newBench(t)
	p := b.program()
	to := endpoint{addr: linkLocal, port: 1, scope: linkLocalScope}
	for _, from := range []endpoint{{}, {addr: linkLocal, scope: linkLocalScope}} {
		n, uid := p.create(cm.SpaceTCP)
		p.must(abi.CMResolveIP, from.append(nil, sockaddrLen), to.append(nil, sockaddrLen), n, uint32(2000))
		p.want(uid, evAddrResolved, 0)
		route := p.must(abi.CMQueryRoute, uint64(0), n, uint32(0))
		var src, dst endpoint
		src.parse(route[136:])
		dst.parse(route[164:])
		if src.addr != linkLocal || src.scope != linkLocalScope || dst != to {
			t.Errorf("from %+v to %+v", src, dst)
		}
	}
	group := endpoint{addr: netip.MustParseAddr("ff02::5"), scope: linkLocalScope}
	n, uid := p.create(cm.SpaceUDP)
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), group.append(nil, sockaddrLen), n, uint32(2000))
	p.want(uid, evAddrResolved, 0)
	to.scope++
	n, uid = p.create(cm.SpaceTCP)
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), to.append(nil, sockaddrLen), n, uint32(2000))
	p.want(uid, evAddrError, -int32(ENETUNREACH))
	p.f.Close(b.now)
	b.empty()
}

// A connection waits for its address, and an identifier that is destroyed meanwhile does not
// come back.
func TestLate(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, _ := p.create(cm.SpaceTCP)
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(ethAddr, 1), n, uint32(1))
	p.refused(EINVAL, abi.CMResolveRoute, n, uint32(1))
	p.destroy(n)
	b.settle()
	p.quiet()
	n, uid := p.create(cm.SpaceTCP)
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(netip.MustParseAddr("192.0.2.7"), 1), n, uint32(1))
	p.want(uid, evAddrError, -int32(ENETUNREACH))
	// It may be requested again.
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(netip.IPv4Unspecified(), 1), n, uint32(1))
	p.want(uid, evAddrResolved, 0)
	p.destroy(n)
	b.empty()
}

// Options have valid sizes and values, or are refused.
func TestOptions(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, _ := p.create(cm.SpaceTCP)
	for i, c := range []struct {
		level, name uint32
		value       []byte
		want        Errno
	}{
		{levelID, optionTOS, []byte{7}, OK},
		{levelID, optionTOS, []byte{7, 0}, EINVAL},
		{levelID, optionReuse, body(uint32(1)), OK},
		{levelID, optionReuse, nil, EINVAL},
		{levelID, optionAFOnly, body(uint32(1)), OK},
		{levelID, optionAckTimeout, []byte{12}, OK},
		{levelID, optionAckTimeout, []byte{32}, EINVAL},
		{levelID, 9, nil, ENOSYS},
		{levelIB, optionPath, make([]byte, pathDataLen), EINVAL},
		{levelIB, optionPath, make([]byte, 3), EINVAL},
		{9, 0, nil, ENOSYS},
	} {
		if _, err := p.f.Command(b.now, abi.CMSetOption, body(uint64(0), n, c.level, c.name, uint32(len(c.value))),
			c.value, nil, 0, nil); err != c.want {
			t.Errorf("%d: %v, want %v", i, err, c.want)
		}
	}
	i := b.hub.ids[n]
	if i.tos != 7 || !i.reuse || !i.afOnly || i.ackTimeout != 12 {
		t.Errorf("%+v", i)
	}
}

// A program may bring a path of its own on an InfiniBand port.
func TestOwnPath(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, uid := p.create(cm.SpaceTCP)
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(ibAddr, 1), n, uint32(1))
	p.want(uid, evAddrResolved, 0)
	i := b.hub.ids[n]
	i.path = &cm.Path{SGID: ibGID, DGID: ibGID, SLID: 1, DLID: 9, PKey: 0x8001, MTU: ib.MTU2048, Rate: 3, LifeTime: 12}
	r := i.record()
	i.path = nil
	v := r.Append(body(uint32(pathFlags), uint32(0)))
	for name, spoil := range map[string]func(r *mad.PathRecord){
		"another's LID":        func(r *mad.PathRecord) { r.SLID = 9 },
		"no LID":               func(r *mad.PathRecord) { r.SLID = 0 },
		"another's GID":        func(r *mad.PathRecord) { r.SGID = ib.GIDFromAddr(ethAddr) },
		"a P_Key it has not":   func(r *mad.PathRecord) { r.PKey = 0x8002 },
		"the P_Key of nobody":  func(r *mad.PathRecord) { r.PKey = 0 },
		"to a group":           func(r *mad.PathRecord) { r.DLID = 0xc001 },
		"to nobody":            func(r *mad.PathRecord) { r.DLID = 0 },
		"an MTU that is none":  func(r *mad.PathRecord) { r.MTU = 0 },
		"a P_Key as it is not": func(r *mad.PathRecord) { r.PKey = 1 },
	} {
		bad := r
		spoil(&bad)
		o := bad.Append(body(uint32(pathFlags), uint32(0)))
		if _, err := p.f.Command(b.now, abi.CMSetOption, body(uint64(0), n, uint32(levelIB), uint32(optionPath),
			uint32(len(o))), o, nil, 0, nil); err != EINVAL {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.hub.Stats.DropPath != 7 {
		t.Errorf("%+v", b.hub.Stats)
	}
	if _, err := p.f.Command(b.now, abi.CMSetOption, body(uint64(0), n, uint32(levelIB), uint32(optionPath),
		uint32(len(v))), v, nil, 0, nil); err != OK {
		t.Fatal(err)
	}
	p.want(uid, evRouteResolved, 0)
	if i.path.PKeyIndex != 1 {
		t.Errorf("index %d of the P_Key", i.path.PKeyIndex)
	}
	out := p.must(abi.CMQuery, uint64(0), n, uint32(queryPath))
	if len(out) != queryPathLen+pathDataLen || !bytes.Equal(out[queryPathLen:], v) {
		t.Errorf("% x, want % x", out[queryPathLen:], v)
	}
}

// Every command, cut everywhere, is refused and changes nothing.
func TestTruncated(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, _ := p.create(cm.SpaceTCP)
	for c, l := range layouts {
		full := bytes.Repeat([]byte{0xa5}, l.full)
		for k := range l.least {
			if _, err := p.f.Command(b.now, uint32(c), full[:k], nil, nil, 512, nil); err != EINVAL {
				t.Errorf("command %d with %d octets: %v", c, k, err)
			}
		}
		for room := range l.answer {
			if _, err := p.f.Command(b.now, uint32(c), full, nil, nil, room, nil); err != ENOSPC {
				t.Errorf("command %d with room for %d: %v", c, room, err)
			}
		}
		if l.full > 0 {
			p.f.Command(b.now, uint32(c), full, full, nil, 512, nil)
		}
	}
	for _, c := range []uint32{abi.CMGetOption, uint32(len(layouts)), 1 << 31} {
		if _, err := p.f.Command(b.now, c, nil, nil, nil, 512, nil); err != EINVAL && err != ENOSYS {
			t.Errorf("command %d: %v", c, err)
		}
	}
	if len(b.hub.ids) != 1 || b.hub.ids[n].state != stateIdle {
		t.Error("something was done")
	}
}

// Queries return addresses, device, and path.
func TestQuery(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, _ := p.route(cm.SpaceTCP, ibAddr, 9)
	addr := p.must(abi.CMQuery, uint64(0), n, uint32(queryAddr))
	gid := p.must(abi.CMQuery, uint64(0), n, uint32(queryGID))
	if len(addr) != queryAddrLen || len(gid) != queryAddrLen || be.Uint64(addr) != 0xb0 || addr[8] != portNum ||
		be.Uint16(addr[10:]) != 0x8001 {
		t.Fatalf("% x", addr[:16])
	}
	var src, dst endpoint
	src.parse(addr[16:])
	dst.parse(addr[144:])
	if src.addr != ibAddr || dst.addr != ibAddr || dst.port != 9 {
		t.Errorf("%v %v", src, dst)
	}
	if le.Uint16(gid[16:]) != afIB || ib.GID(gid[24:40]) != ibGID ||
		be.Uint64(gid[144+24:]) != uint64(cm.IPService(cm.SpaceTCP, 9)) {
		t.Errorf("% x", gid[16:64])
	}
	route := p.must(abi.CMQueryRoute, uint64(0), n, uint32(0))
	if ib.GID(route[8:24]) != ibGID || be.Uint16(route[40:]) != 1 || be.Uint16(route[8+52:]) != 0x8001 {
		t.Errorf("% x", route[8:72])
	}
	p.refused(ENOSYS, abi.CMQuery, uint64(0), n, uint32(7))
	p.f.Close(b.now)
	b.empty()
}

// A program writes events into the channel of an identifier, as librdmacm does in rdma_resolve_addrinfo.
func TestWriteEvent(t *testing.T) {
	b := newBench(t)
	p := b.program()
	n, uid := p.create(cm.SpaceTCP)
	write := func(n uint32, kind eventKind) []any {
		return []any{n, uint32(0), uint32(kind), uint32(7), uint64(0x1122334455667788), make([]byte, 296)}
	}
	p.refused(EINVAL, abi.CMWriteEvent, write(n, evEstablished)...)
	p.refused(ENOENT, abi.CMWriteEvent, write(n+1, evUser)...)
	for _, kind := range []eventKind{evUser, evInternal} {
		p.must(abi.CMWriteEvent, write(n, kind)...)
		if e := p.want(uid, kind, 7); e.id != n || le.Uint64(e.param) != 0x1122334455667788 {
			t.Errorf("%+v", e)
		}
	}
	for range maxEvents {
		p.must(abi.CMWriteEvent, write(n, evUser)...)
	}
	p.refused(ENOMEM, abi.CMWriteEvent, write(n, evUser)...)
	p.destroy(n)
	b.empty()
}

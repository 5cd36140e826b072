// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/cm"
)

// bench is a node with one Ethernet port and two InfiniBand ports, which have the same address in
// different partitions. Its datagrams come back to it.
type bench struct {
	t    testing.TB
	now  mono.Time
	hub  *Hub
	cm   *cm.Manager
	held []func() // results that the network has not delivered yet
	// Memberships: how many were begun and how many were ended.
	joins, cancels int
	joinErr        error
	groups         []Group
}

var (
	ethAddr  = netip.MustParseAddr("10.0.0.1")
	eth6     = netip.MustParseAddr("fd00::1")
	ibAddr   = netip.MustParseAddr("10.1.0.1")
	loopback = netip.MustParseAddr("127.0.0.1")
	// linkLocal is an address of the interface of this number.
	linkLocal = netip.MustParseAddr("fe80::5")
	ibGID     = ib.MakeGID(ib.DefaultGIDPrefix, 0xb1)
	ibGID2    = ib.MakeGID(ib.DefaultGIDPrefix, 0xb2)
	ethGUID   = ib.GUID(0xa0)
)

const linkLocalScope = 3

func newBench(t testing.TB) *bench {
	b := &bench{t: t, now: 1}
	b.cm = cm.New(cm.Config{Rand: rand.New(rand.NewPCG(1, 2))}, b)
	b.hub = New(Network{Addresses: b, Groups: b, Device: b.Device}, b.cm, rand.New(rand.NewPCG(3, 4)))
	return b
}

// Port implements cm.Ports.
func (b *bench) Port(function uint16) (cm.Port, bool) {
	switch function {
	case 0:
		return cm.Port{Link: ib.LinkEthernet, CAGUID: ethGUID, MTU: ib.MTU1024,
			GIDs: []ib.GID{ib.MakeGID(ib.DefaultGIDPrefix, 1), ib.GIDFromAddr(ethAddr),
				ib.GIDFromAddr(eth6), ib.GIDFromAddr(loopback)}, PKeys: []ib.PKey{ib.DefaultPKey}}, true
	case 1:
		return cm.Port{Link: ib.LinkInfiniBand, CAGUID: 0xb0, LID: 1, MTU: ib.MTU4096, GIDs: []ib.GID{ibGID},
			PKeys: []ib.PKey{ib.DefaultPKey, 0x8001}}, true
	case 2:
		return cm.Port{Link: ib.LinkInfiniBand, CAGUID: 0xc0, LID: 2, MTU: ib.MTU4096, GIDs: []ib.GID{ibGID2},
			PKeys: []ib.PKey{ib.DefaultPKey, 0x8002}}, true
	}
	return cm.Port{}, false
}

// Bound implements Addresses, as what follows does, and Groups.
func (b *bench) Bound(a netip.Addr) (cm.Address, error) {
	switch a {
	case ethAddr, eth6, loopback, linkLocal:
		return cm.Address{Link: ib.LinkEthernet, Src: a, SGID: ib.GIDFromAddr(a), SGIDIndex: 1, PKey: ib.DefaultPKey},
			nil
	case ibAddr:
		return cm.Address{Function: 1, Link: ib.LinkInfiniBand, Device: "ib0", Src: a, SGID: ibGID, PKey: 0x8001}, nil
	}
	return cm.Address{}, cm.ErrNoAddress
}

// second is ibAddr at the port that Bound does not return.
var second = cm.Address{Function: 2, Link: ib.LinkInfiniBand, Device: "ib1", Src: ibAddr, SGID: ibGID2, PKey: 0x8002}

func (b *bench) Has(function uint16, a netip.Addr) bool {
	return a == ibAddr && (function == 1 || function == 2)
}

func (b *bench) ResolveAddr(now mono.Time, src, dst netip.Addr, done func(mono.Time, cm.Address, error)) {
	b.held = append(b.held, func() {
		near := dst.IsLinkLocalUnicast() || dst.IsLinkLocalMulticast()
		if near && dst.Zone() != strconv.Itoa(linkLocalScope) {
			dst = netip.Addr{}
		}
		dst = dst.WithZone("")
		from := dst
		if dst.IsMulticast() {
			from = linkLocal
		}
		a, err := b.Bound(from)
		if err != nil {
			done(b.now, a, cm.ErrNoRoute)
			return
		}
		a.Dst, a.DGID = dst, a.SGID
		done(b.now, a, nil)
	})
}

func (b *bench) ResolvePath(now mono.Time, a *cm.Address, tclass uint8, done func(mono.Time, cm.Path, error)) {
	p := cm.Path{Function: a.Function, Link: a.Link, SGID: a.SGID, DGID: a.DGID, SGIDIndex: a.SGIDIndex, SLID: 0xffff,
		DLID: 0xffff, Global: true, PKey: a.PKey,
		TClass: tclass, HopLimit: 64, MTU: ib.MTU1024, Rate: 3, LifeTime: 18}
	if a.Link == ib.LinkInfiniBand {
		p.SLID, p.DLID, p.Global, p.PKeyIndex, p.MTU, p.HopLimit = ib.LID(a.Function), ib.LID(a.Function), false, 1, ib.MTU4096, 0
	}
	b.held = append(b.held, func() { done(b.now, p, nil) })
}

func (b *bench) Device(function uint16) (Device, bool) {
	p, ok := b.Port(function)
	return Device{GUID: p.CAGUID, PKeys: p.PKeys, LID: p.LID}, ok
}

func (b *bench) Broadcast(*cm.Address) (ib.GID, bool) {
	return ib.GID{0xff, 0x12, 0x40, 0x1b, 0x80, 0x01, 12: 0xff, 0xff, 0xff, 0xff}, true
}

func (b *bench) Join(now mono.Time, g *Group, done func(mono.Time, cm.Path, ib.QKey, error)) func(mono.Time) {
	b.joins++
	b.groups = append(b.groups, *g)
	err := b.joinErr
	b.held = append(b.held, func() {
		done(b.now, cm.Path{Function: g.Function, Link: g.Addr.Link, SGID: g.Addr.SGID, DGID: g.MGID, DLID: 0xc001,
			Global: true, PKey: g.Addr.PKey, HopLimit: 1}, g.QKey, err)
	})
	return func(mono.Time) { b.cancels++ }
}

// settle lets everything happen that is under way.
func (b *bench) settle() {
	var d mad.Datagram
	for {
		if len(b.held) > 0 {
			f := b.held[0]
			b.held = b.held[1:]
			f()
			continue
		}
		f, ok := b.cm.Next(b.now, &d)
		if !ok {
			return
		}
		b.now++
		b.cm.Handle(b.now, f, &d)
	}
}

// program is one that has a channel.
type program struct {
	b       *bench
	f       *File
	notices int // sent and not taken in
	uid     uint64
}

// Notice implements Sink.
func (p *program) Notice() { p.notices++ }

func (b *bench) program() *program { return b.programOf(Owner{PID: 7, Own: true, Low: true}) }

func (b *bench) programOf(o Owner) *program {
	p := &program{b: b}
	p.f = b.hub.Open(o, p)
	return p
}

// body makes a command's body of its fields: numbers of their size, octets as they are.
func body(fields ...any) (b []byte) {
	for _, f := range fields {
		switch v := f.(type) {
		case uint8:
			b = append(b, v)
		case uint16:
			b = le.AppendUint16(b, v)
		case uint32:
			b = le.AppendUint32(b, v)
		case uint64:
			b = le.AppendUint64(b, v)
		case []byte:
			b = append(b, v...)
		default:
			panic(f)
		}
	}
	return b
}

func sockaddr(a netip.Addr, port uint16) []byte {
	e := endpoint{addr: a, port: port}
	return e.append(nil, sockaddrLen)
}

// try executes a command with all the room there is.
func (p *program) try(command uint32, fields ...any) ([]byte, Errno) {
	return p.f.Command(p.b.now, command, body(fields...), nil, nil, 512, nil)
}

// must is try that has to work.
func (p *program) must(command uint32, fields ...any) []byte {
	p.b.t.Helper()
	out, err := p.try(command, fields...)
	if err != OK {
		p.b.t.Fatalf("command %d: %v", command, err)
	}
	return out
}

// refused is try that has to fail.
func (p *program) refused(want Errno, command uint32, fields ...any) {
	p.b.t.Helper()
	if _, err := p.try(command, fields...); err != want {
		p.b.t.Fatalf("command %d: %v, want %v", command, err, want)
	}
}

// create makes an identifier with a user number derived from its number.
func (p *program) create(ps cm.PortSpace) (n uint32, uid uint64) {
	p.b.t.Helper()
	p.uid++
	uid = p.uid
	return le.Uint32(p.must(abi.CMCreateID, uid, uint64(0), uint16(ps), uint8(ib.RC), make([]byte, 5))), uid
}

func (p *program) bind(n uint32, a netip.Addr, port uint16) {
	p.b.t.Helper()
	p.must(abi.CMBindIP, uint64(0), sockaddr(a, port), n)
}

func (p *program) destroy(n uint32) (reported uint32) {
	p.b.t.Helper()
	return le.Uint32(p.must(abi.CMDestroyID, uint64(0), n, uint32(0)))
}

// told is an event as a program reads it.
type told struct {
	uid    uint64
	id     uint32
	kind   eventKind
	status int32
	param  []byte
}

// next reads an event as the preload library does: it takes a notice in first.
func (p *program) next() (e told, ok bool) {
	p.b.t.Helper()
	p.b.settle()
	if p.notices == 0 {
		return e, false
	}
	p.notices--
	p.f.Noticed()
	b, err := p.try(abi.CMGetEvent, uint64(0))
	p.f.Resume()
	if err == EAGAIN {
		return p.next()
	}
	if err != OK || len(b) != eventLen {
		p.b.t.Fatalf("an event of %d octets", len(b))
	}
	return told{le.Uint64(b), le.Uint32(b[8:]), eventKind(le.Uint32(b[12:])), int32(le.Uint32(b[16:])),
		b[20 : 20+udLen]}, true
}

// want reads the next event and requires this one.
func (p *program) want(uid uint64, kind eventKind, status int32) told {
	p.b.t.Helper()
	e, ok := p.next()
	if !ok {
		p.b.t.Fatalf("no event, want %d of %d", kind, uid)
	}
	if e.uid != uid || e.kind != kind || e.status != status {
		p.b.t.Fatalf("event %d of %d with status %d, want %d of %d with %d", e.kind, e.uid, e.status, kind, uid, status)
	}
	return e
}

// quiet requires that there is no event.
func (p *program) quiet() {
	p.b.t.Helper()
	if e, ok := p.next(); ok {
		p.b.t.Fatalf("event %d of %d", e.kind, e.uid)
	}
}

// connParams makes the parameters of a connection.
func connParams(qpn uint32, private []byte) []byte {
	c := connParam{qpn: ib.QPN(qpn), private: private, responderResources: 1, initiatorDepth: 2, retryCount: 7,
		rnrRetry: 6, valid: true}
	return c.append(nil)
}

func (p *program) accept(uid uint64, n, qpn uint32, private []byte) {
	p.b.t.Helper()
	p.must(abi.CMAccept, uid, connParams(qpn, private), n, uint32(0))
}

func (p *program) option(n, level, name uint32, v []byte) {
	p.b.t.Helper()
	if _, err := p.f.Command(p.b.now, abi.CMSetOption, body(uint64(0), n, level, name, uint32(len(v))), v, nil, 0,
		nil); err != OK {
		p.b.t.Fatalf("option %d: %v", name, err)
	}
}

// listen makes a listener.
func (p *program) listen(ps cm.PortSpace, a netip.Addr, port uint16) (n uint32, uid uint64) {
	p.b.t.Helper()
	n, uid = p.create(ps)
	p.bind(n, a, port)
	p.must(abi.CMListen, n, uint32(0))
	return n, uid
}

// route makes an identifier that is ready to connect.
func (p *program) route(ps cm.PortSpace, a netip.Addr, port uint16) (n uint32, uid uint64) {
	p.b.t.Helper()
	n, uid = p.create(ps)
	p.must(abi.CMResolveIP, make([]byte, sockaddrLen), sockaddr(a, port), n, uint32(2000))
	p.want(uid, evAddrResolved, 0)
	p.must(abi.CMResolveRoute, n, uint32(2000))
	p.want(uid, evRouteResolved, 0)
	return n, uid
}

func (p *program) connect(n, qpn uint32, private []byte) {
	p.b.t.Helper()
	p.must(abi.CMConnect, connParams(qpn, private), n, uint32(0))
}

// establish is what librdmacm does about a response.
func (p *program) establish(n uint32) {
	p.b.t.Helper()
	p.must(abi.CMAccept, uint64(0), make([]byte, connLen), n, uint32(0))
}

// attr queries the attributes of a state.
func (p *program) attr(n uint32, s ib.QPState) (mask ib.AttrMask, b []byte) {
	p.b.t.Helper()
	b = p.must(abi.CMInitQPAttr, uint64(0), n, uint32(s))
	if len(b) != qpAttrLen {
		p.b.t.Fatalf("attributes of %d octets", len(b))
	}
	return ib.AttrMask(le.Uint32(b)), b
}

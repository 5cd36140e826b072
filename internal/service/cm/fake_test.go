// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// ethernet is the ports of a node with one RoCEv2 address.
type ethernet struct {
	addr netip.Addr
	guid ib.GUID
	gone bool
}

func (e *ethernet) Port(function uint16) (Port, bool) {
	if function != 0 || e.gone {
		return Port{}, false
	}
	return Port{Link: ib.LinkEthernet, CAGUID: e.guid, MTU: ib.MTU2048, MTUs: []ib.MTU{0, ib.MTU1024},
		GIDs:  []ib.GID{{0: 0xfe, 1: 0x80, 15: byte(e.guid)}, ib.GIDFromAddr(e.addr)},
		PKeys: []ib.PKey{ib.DefaultPKey}}, true
}

// host is a Manager with the events of its user.
type host struct {
	t testing.TB
	*Manager
	eth    *ethernet
	now    mono.Time
	events []*Event
}

func newHost(t testing.TB, addr string, seed uint64, l Limits) *host {
	e := &ethernet{addr: netip.MustParseAddr(addr)}
	e.guid = ib.GUID(0x5054_00ff_fe00_0000 | uint64(e.addr.As4()[3]))
	return &host{t: t, eth: e, now: 1, Manager: New(Config{Rand: rand.New(rand.NewPCG(seed, 1)), Limits: l}, e)}
}

func (h *host) hear(now mono.Time, e *Event) {
	copied := *e
	h.events = append(h.events, &copied)
}

// sent takes what the Manager sends.
func (h *host) sent() (list []mad.Datagram) {
	var d mad.Datagram
	for {
		f, ok := h.Next(h.now, &d)
		if !ok {
			return list
		}
		if f != 0 {
			h.t.Fatalf("sent by function %d", f)
		}
		list = append(list, d)
	}
}

// one takes the one message that the Manager sends.
func (h *host) one(a mad.AttributeID) mad.Datagram {
	h.t.Helper()
	list := h.sent()
	if len(list) != 1 {
		h.t.Fatalf("%d messages, want one: %v", len(list), kindsOf(list))
	}
	if got := kindOf(&list[0]); got != a {
		h.t.Fatalf("message %#x, want %#x", got, a)
	}
	return list[0]
}

func kindOf(d *mad.Datagram) mad.AttributeID {
	var r mad.CM
	r.Parse(d.Data[:])
	return r.AttributeID
}

func kindsOf(list []mad.Datagram) (kinds []mad.AttributeID) {
	for i := range list {
		kinds = append(kinds, kindOf(&list[i]))
	}
	return kinds
}

// event removes the only event of the user.
func (h *host) event(k EventKind) *Event {
	h.t.Helper()
	list := h.events
	h.events = nil
	if len(list) != 1 || list[0].Kind != k {
		var got []EventKind
		for _, e := range list {
			got = append(got, e.Kind)
		}
		h.t.Fatalf("events %v, want %v", got, k)
	}
	return list[0]
}

func (h *host) quiet() {
	h.t.Helper()
	if list := h.sent(); len(list) > 0 {
		h.t.Fatalf("sends %#x", kindsOf(list))
	}
	if len(h.events) > 0 {
		h.t.Fatalf("the event %v", h.events[0].Kind)
	}
}

// expire goes to the next deadline.
func (h *host) expire() {
	h.t.Helper()
	d := h.Deadline()
	if d == 0 {
		h.t.Fatal("no deadline")
	}
	h.now = max(h.now, d)
}

func (h *host) path(to *host) Path {
	return Path{Link: ib.LinkEthernet, SGID: ib.GIDFromAddr(h.eth.addr), SGIDIndex: 1,
		DGID: ib.GIDFromAddr(to.eth.addr), SLID: ib.LIDPermissive,
		DLID: ib.LIDPermissive, Global: true, PKey: ib.DefaultPKey, HopLimit: 64, MTU: ib.MTU1024, LifeTime: 18, FlowLabel: 0x12345}
}

// empty fails where a Manager still holds something.
func (h *host) empty() {
	h.t.Helper()
	if n := len(h.conns) + len(h.byRemote) + len(h.byQP) + h.waiting.Len() + len(h.lookups) + len(h.inquiries) +
		h.answered.Len() + h.timers.Len(); n != 0 {
		h.t.Fatalf("holds %d conns, %d+%d by peer, %d in TIMEWAIT, %d lookups, %d inquiries, %d timers", len(h.conns),
			len(h.byRemote), len(h.byQP),
			h.waiting.Len(), len(h.lookups), len(h.inquiries), h.timers.Len())
	}
	for _, l := range h.listeners {
		if l.waiting != 0 {
			h.t.Fatalf("a listener with %d in its backlog", l.waiting)
		}
	}
}

// quietBut is quiet, except that the user gets one event.
func (h *host) quietBut(k EventKind) {
	h.t.Helper()
	if list := h.sent(); len(list) > 0 {
		h.t.Fatalf("sends %#x", kindsOf(list))
	}
	h.event(k)
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"testing"
)

// TestGrows adds and removes peers of both families while lanes send, and the sender's counters begin anew.
func TestGrows(t *testing.T) {
	ca, cb := unopened("127.0.0.1")
	_, cc := unopened("::1")
	ca.Peers, ca.Grows = nil, true
	ca.Port, cc.Port, cc.Node = portA, portB+20000, 0xc000
	ca.Name, cb.Name = "a", "b"
	a, b, c := newNode(t, ca), newNode(t, cb), newNode(t, cc)
	pb, pc := Peer{Addr: b.self("127.0.0.1"), Node: 0xb000}, Peer{Addr: c.self("::1")}
	for round := range 3 {
		for i, p := range []Peer{pb, pc} {
			if got, err := a.AddPeer(p); err != nil || got != i {
				t.Fatalf("peer %d: %d, %v", i, got, err)
			}
		}
		if _, err := a.AddPeer(pc); err == nil {
			t.Error("a peer was added twice")
		}
		a.Tick(a.now())
		await(t, "the trunks", func() bool {
			return a.Status(0).Up && a.Status(1).Up && b.Status(0).Up &&
				c.Status(0).Up
		},
			a, b, c)
		if a.Status(0).Name != "b" || b.Status(0).Name != "a" {
			t.Errorf("names %q, %q", a.Status(0).Name, b.Status(0).Name)
		}
		if err := a.SetAddr(0, c.self("::1")); err == nil {
			t.Error("two peers are at one address")
		}
		if err := a.SetAddr(0, b.self("127.0.0.1")); err != nil {
			t.Error(err)
		}
		b.got = nil
		a.send(random(300))
		await(t, "a packet", func() bool { return len(b.got) == 1 }, a, b, c)
		if k := a.Sender.Counters(0); k.Packets != 1 {
			t.Errorf("round %d: sent %+v", round, k)
		}
		// What is committed for a peer that is removed is dropped and counted.
		copy(a.Reserve(0, 10), random(10))
		a.Commit(a.now(), 10)
		a.RemovePeer(a.now(), 0)
		a.RemovePeer(a.now(), 1)
		a.Flush(a.now())
		if k := a.Sender.Counters(0); k.DropNoRoute != 1 || a.Reserve(0, 10) != nil || a.Used(0) {
			t.Errorf("round %d: after the removal %+v", round, k)
		}
	}
}

// self is the address that peers have.
func (n *node) self(host string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(host), n.Link.Port())
}

// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft/internal/fabric/link/udp"
	"weft/internal/fabric/trunk/trust"
	"weft/internal/node/lane"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// TestTrunksAtRunTime adds and removes the trunk between two running subnets: the link of the port follows, and the
// port is free again.
func TestTrunksAtRunTime(t *testing.T) {
	key := bytes.Repeat([]byte{9}, trust.KeyLen)
	var nodes [2]*Subnet
	var at [2]netip.AddrPort
	for i := range nodes {
		at[i] = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(condtest.Port(t)))
		k, err := trust.FromKey(key, "test", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = startTestSubnet(t, &mirrorCount{}, ib.GUID(0x100*(i+1)), nil, func(s *Subnet) {
			err = s.OpenTrunks(TrunkConfig{Port: at[i].Port(), Grows: true, Trust: k, Name: string(rune('a' + i))}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.CloseTrunks)
		})
	}
	a, b := nodes[0], nodes[1]
	linkUp := func(s *Subnet, port uint8) (up bool) {
		s.Do(func() { up = s.Switch.Port(port).PortPhysicalState == ib.PhysLinkUp })
		return up
	}
	until := func(what string, done func() bool) {
		t.Helper()
		condtest.Until(t, what, done, func() any {
			list, err := a.Trunks(func(m mono.Time) time.Time { return time.Time{} })
			return fmt.Sprintf("%+v, %v", list, err)
		})
	}
	for round := range 2 {
		pa, err := a.AddTrunk("b", udp.Peer{Addr: at[1], Node: 0x200}, false)
		if err != nil || pa != 0 || a.TrunkPort(pa) != 4 {
			t.Fatalf("round %d: peer %d at port %d, %v", round, pa, a.TrunkPort(pa), err)
		}
		if _, err := a.AddTrunk("b", udp.Peer{Addr: at[1], Node: 0x200}, false); err == nil {
			t.Error("the same peer was added twice")
		}
		if _, err := b.AddTrunk("a", udp.Peer{Anywhere: true, Node: 0x100}, false); err != nil {
			t.Fatal(err)
		}
		until("the link", func() bool { return linkUp(a, 4) && linkUp(b, 4) })
		list, err := a.Trunks(func(mono.Time) time.Time { return time.Time{} })
		if err != nil || len(list) != 1 || list[0].Name != "b" || list[0].Security != "encrypt" || list[0].Port != 4 ||
			!list[0].Up || list[0].Node != ib.GUID(0x200).String() {
			t.Errorf("%+v, %v", list, err)
		}
		counted := false
		if err := a.Counters(func(scope, instance, name string, v uint64) {
			counted = counted || name == "sessions" && v > 0 && instance == at[1].String()
		}); err != nil || !counted {
			t.Errorf("the trunk is not counted: %v", err)
		}
		if err := a.RemoveTrunk(pa); err != nil {
			t.Fatal(err)
		}
		if linkUp(a, 4) || a.TrunkPort(pa) != 0 {
			t.Error("the port of a removed trunk is up")
		}
		until("the other end", func() bool { return !linkUp(b, 4) })
		if list, _ := a.Trunks(func(mono.Time) time.Time { return time.Time{} }); len(list) != 0 {
			t.Errorf("after the removal: %+v", list)
		}
		if err := b.RemoveTrunk(0); err != nil {
			t.Fatal(err)
		}
	}
	// Ports of the switch end first.
	for i := range 5 {
		_, err := a.AddTrunk("x", udp.Peer{Addr: netip.AddrPortFrom(at[0].Addr(), uint16(10000+i))}, false)
		if (i == 4) != errors.Is(err, ErrNoSwitchPort) {
			t.Errorf("trunk %d: %v", i, err)
		}
	}
}

// TestTrunksOfStuckLane: what was given up while lane 0 was stuck has no effect later, and succeeds when it is
// repeated: the sockets of trunks receive, and a trunk is added once.
func TestTrunksOfStuckLane(t *testing.T) {
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(condtest.Port(t)))
	k, err := trust.FromKey(bytes.Repeat([]byte{9}, trust.KeyLen), "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := startTestSubnet(t, &mirrorCount{}, 0x100, nil, func(s *Subnet) {
		if err := s.OpenTrunks(TrunkConfig{Port: at.Port(), Later: true, Trust: k, Name: "a"}, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.CloseTrunks)
	})
	l := s.lanes.First()
	// stuck calls f while the lane stands still, and returns what f does then.
	stuck := func(f func() error) error {
		t.Helper()
		standing, goOn, gaveUp := make(chan bool), make(chan bool), make(chan error, 1)
		l.Post(func() { close(standing); <-goOn })
		<-standing
		go func() { gaveUp <- f() }()
		time.Sleep(50 * time.Millisecond) // f has posted what the lane is to do; else the test shows less
		now := time.Now()
		l.Check(now.Add(lane.StuckAfter), l.Check(now, time.Time{}))
		err := <-gaveUp
		close(goOn)
		condtest.Until(t, "the lane is stuck no more", func() bool {
			if !l.Stuck() {
				return true
			}
			l.Check(now, now)
			return false
		})
		return err
	}
	if err := stuck(s.Listen); !errors.Is(err, lane.ErrStuck) {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("from a stranger")); err != nil {
		t.Fatal(err)
	}
	received := func() (n uint64) {
		l.Do(func() { n = s.trunks.Counters().RcvdMessages })
		return n
	}
	condtest.Until(t, "the sockets of trunks receive", func() bool { return received() > 0 })

	p := udp.Peer{Addr: netip.AddrPortFrom(at.Addr(), 10000), Node: 0x200}
	add := func() error { _, err := s.AddTrunk("b", p, false); return err }
	if err := stuck(add); !errors.Is(err, lane.ErrStuck) {
		t.Fatal(err)
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	moved := netip.AddrPortFrom(at.Addr(), 10001)
	if err := stuck(func() error { return s.MoveTrunk(0, moved) }); !errors.Is(err, lane.ErrStuck) ||
		s.trunks.Peer(0) != p.Addr {
		t.Errorf("%v, the peer is at %v", err, s.trunks.Peer(0))
	}
	if err := stuck(func() error { return s.RemoveTrunk(0) }); !errors.Is(err, lane.ErrStuck) || s.TrunkPort(0) == 0 {
		t.Errorf("%v, port %d", err, s.TrunkPort(0))
	}
	if err := s.RemoveTrunk(0); err != nil || s.TrunkPort(0) != 0 {
		t.Errorf("%v, port %d", err, s.TrunkPort(0))
	}
}

// TestTrunkWithoutAddress: a trunk to a peer of which no address is known has the peer's name, and a fix for it.
func TestTrunkWithoutAddress(t *testing.T) {
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(condtest.Port(t)))
	k, err := trust.FromKey(bytes.Repeat([]byte{9}, trust.KeyLen), "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := startTestSubnet(t, &mirrorCount{}, 0x100, nil, func(s *Subnet) {
		if err := s.OpenTrunks(TrunkConfig{Port: at.Port(), Grows: true, Trust: k, Name: "a"}, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.CloseTrunks)
	})
	if _, err := s.AddTrunk("host2", udp.Peer{Anywhere: true, Node: 0x200}, false); err != nil {
		t.Fatal(err)
	}
	list, err := s.Trunks(func(mono.Time) time.Time { return time.Time{} })
	if err != nil || len(list) != 1 || list[0].Peer != "host2" {
		t.Fatalf("%+v, %v", list, err)
	}
	wrong, err := s.Degraded(list)
	if err != nil || len(wrong) == 0 || wrong[0].What != "trunk_down" ||
		wrong[0].Why != "nothing is received from host2, and no address leads there" ||
		wrong[0].Fix != "weft member list; weft status, there" {
		t.Errorf("%+v, %v", wrong, err)
	}
	if err := s.Counters(func(_, instance, name string, _ uint64) {
		if strings.Contains(instance, "invalid") {
			t.Errorf("%s of %q", name, instance)
		}
	}); err != nil {
		t.Error(err)
	}
}

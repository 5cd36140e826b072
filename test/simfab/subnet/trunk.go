// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"bytes"
	"fmt"
	"net/netip"
	"time"

	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// Trunk joins two switches as nodes are joined, in place of a cable: its ends
// find out by hellos (package trunk) whether the other is there, each for
// itself.
type Trunk struct {
	// Deaf ends get nothing of what the other sends.
	Deaf [2]bool

	f    *Fabric
	ends [2]trunkEnd
}

type trunkEnd struct {
	node  *Node
	port  uint8
	core  *trunk.Core
	timer mono.Time // of the event that is queued
}

// Trunk connects ports of two switches by a trunk. Its ends send their first hello after start each, and then by their
// own clocks.
func (f *Fabric) Trunk(a *Node, ap uint8, b *Node, bp uint8, start [2]time.Duration) *Trunk {
	if a.ends[ap].node != nil || b.ends[bp].node != nil {
		panic(fmt.Sprintf("subnet: %s port %d or %s port %d has a cable", a.Name, ap, b.Name, bp))
	}
	t := &Trunk{f: f}
	t.ends[0], t.ends[1] = trunkEnd{node: a, port: ap}, trunkEnd{node: b, port: bp}
	a.ends[ap] = end{node: b, port: bp, trunk: t}
	b.ends[bp] = end{node: a, port: ap, trunk: t, side: 1}
	for i := range t.ends {
		e := &t.ends[i]
		core, err := trunk.New(trunk.Config{Node: e.node.Agent.Config().NodeGUID,
			Peers: []trunk.PeerConfig{{Addr: trunkAddr(1 - i), Limit: trunk.BaseDatagram}},
			Event: func(trunk.Event) { t.link(i) }})
		if err != nil {
			panic(err)
		}
		e.core = core
		f.push(f.Now.Add(start[i]), event{kind: trunkTimer, node: e.node, port: e.port})
	}
	t.join()
	return t
}

// trunkAddr is the address of a trunk's end.
func trunkAddr(side int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(side)}), trunk.DefaultPort)
}

// join gives both ends the session of a handshake, which the simulation leaves out.
func (t *Trunk) join() {
	var keys [2][2]*seal.Key // by receiver: for its peer, for itself
	var hellos [2]handshake.Hello
	for i := range t.ends {
		hellos[i] = handshake.Hello{Limit: trunk.BaseDatagram, Epoch: uint64(1 + i),
			Node: t.ends[i].node.Agent.Config().NodeGUID}
		for j := range keys[i] {
			var err error
			if keys[i][j], err = seal.NewKey(bytes.Repeat([]byte{byte(i)}, 32), uint32(1+i)); err != nil {
				panic(err)
			}
		}
	}
	for i := range t.ends {
		t.ends[i].core.Install(t.f.Now, 0, handshake.Result{Initiator: i == 0, At: trunkAddr(1 - i),
			Identity: handshake.Identity{Node: hellos[1-i].Node}, Local: hellos[i], Remote: hellos[1-i],
			Send: keys[1-i][0], Recv: keys[i][1]})
	}
}

// Cut removes or restores the cable below the trunk.
func (t *Trunk) Cut(cut bool) { t.Deaf = [2]bool{cut, cut} }

// Up reports the ends that receive the hellos of the other.
func (t *Trunk) Up() [2]bool {
	return [2]bool{t.ends[0].core.Status(0).Up, t.ends[1].core.Status(0).Up}
}

// link reports to the agent at an end whether its link is up.
func (t *Trunk) link(side int) {
	e := &t.ends[side]
	if e.core.Status(0).Up && e.node.Agent.Enabled(e.port) {
		e.node.Agent.LinkUp(t.f.Now, e.port, edr)
	} else {
		e.node.Agent.LinkDown(t.f.Now, e.port)
	}
	t.f.wake(e.node)
}

// tick lets time pass at an end.
func (t *Trunk) tick(side int) {
	e := &t.ends[side]
	e.timer = 0
	if e.node.dead {
		return // Revive goes on
	}
	e.core.Tick(t.f.Now)
	t.pump(side)
}

// hello takes a hello or a reply that has come to an end.
func (t *Trunk) hello(side int, datagram []byte) {
	if e := &t.ends[side]; !e.node.dead {
		e.core.Handle(t.f.Now, trunkAddr(1-side), datagram, nil)
		t.pump(side)
	}
}

// pump sends the hellos and replies that are due at an end.
func (t *Trunk) pump(side int) {
	e, f := &t.ends[side], t.f
	for {
		d := f.datagram()
		o, ok := e.core.Next(f.Now, d.Data[:])
		if !ok || t.Deaf[1-side] {
			f.free = append(f.free, d)
			if !ok {
				break
			}
			continue
		}
		to := &t.ends[1-side]
		f.push(f.Now.Add(f.hop), event{kind: trunkHello, node: to.node, port: to.port, d: d, n: uint16(o.Len)})
	}
	if at := max(e.core.Deadline(), f.Now); e.timer == 0 || at < e.timer {
		e.timer = at
		f.push(at, event{kind: trunkTimer, node: e.node, port: e.port})
	}
}

// Leads reports whether the forwarding tables lead from a node's switch to the
// port with a LID, over links that carry.
func (f *Fabric) Leads(from *Node, lid ib.LID) bool {
	at, in := from, from.End()
	for range len(f.nodes) + 1 {
		if at.Agent.IsMine(lid) {
			return true
		}
		out := uint8(1)
		if at.Agent.Config().Type == mad.NodeSwitch {
			var why vswitch.Refusal
			if out, why = at.Agent.Forwarding().Snapshot().Unicast(in, lid, ib.DefaultPKey); why != vswitch.OK {
				return false
			}
		}
		e := at.ends[out]
		if e.node == nil || at.Agent.Port(out).PortState != ib.PortActive || e.trunk != nil &&
			!e.trunk.carries(e.side) {
			return false
		}
		at, in = e.node, e.port
	}
	return false
}

// carries reports whether a packet from an end comes to the other.
func (t *Trunk) carries(side int) bool { return t.Up() == [2]bool{true, true} && !t.Deaf[1-side] }

// Downs counts how often either end took the trunk for down.
func (t *Trunk) Downs() uint64 {
	return t.ends[0].core.Status(0).Downs + t.ends[1].core.Status(0).Downs
}

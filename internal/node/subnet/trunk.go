// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"weft/internal/control/api"
	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/udp"
	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/mgmt/agent"
	"weft/internal/mgmt/umad"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

var (
	_ fabric.Trunk  = (*udp.Sender)(nil)
	_ fabric.Source = (*udp.Link)(nil)
)

// TrunkConfig is what trunks need from their node.
type TrunkConfig struct {
	Port uint16
	// Grows: AddTrunk may follow, with peers of either address family.
	Grows bool
	// Later: no socket is opened before Listen.
	Later bool
	// Trust authenticates the peers; Mode is the weakest that this node accepts.
	Trust handshake.Trust
	Mode  seal.Mode
	// Trusts is what is wrong with Trust; empty: nothing.
	Trusts        []api.Degraded
	Name, Version string // of this node, for the peers
}

// OpenTrunks opens the trunks to peers, in the order of Config.Peers, before the lanes are made.
func (s *Subnet) OpenTrunks(c TrunkConfig, peers []netip.AddrPort) (err error) {
	l := udp.Config{Node: s.cfg.GUID, Port: c.Port, Grows: c.Grows, Later: c.Later, Trust: c.Trust, Mode: c.Mode,
		Name: c.Name, Version: c.Version, Event: s.trunkEvent, Apart: s.apart}
	for _, a := range peers {
		l.Peers = append(l.Peers, udp.Peer{Addr: a})
	}
	s.trusts = c.Trusts
	if s.trunks, err = udp.Open(l); err != nil {
		return fmt.Errorf("open the trunks: %w", err)
	}
	s.listens.Store(!c.Later)
	if !c.Later {
		s.watching = math.MaxInt
	}
	s.handshakes, s.handshakesEnd = make(chan func(), 1), make(chan struct{})
	go func() {
		defer close(s.handshakesEnd)
		for f := range s.handshakes {
			f()
		}
	}()
	return nil
}

// settled runs f on a lane and returns what f returns. It gives up with lane.ErrStuck while the lane is stuck; then f
// has not run, and does not run later: what f does is never without a caller that continues from it.
func settled(l *lane.Lane, f func() error) (err error) {
	const begun, givenUp = 1, 2
	var state atomic.Uint32
	done := make(chan struct{})
	if e := l.Query(func() {
		if state.CompareAndSwap(0, begun) {
			defer close(done)
			err = f()
		}
	}); e != nil {
		if state.CompareAndSwap(0, givenUp) {
			return e
		}
		<-done // it has begun since: the lane is not stuck
	}
	return err
}

// Listen opens the sockets of trunks that have none yet (TrunkConfig.Later), so that AddTrunk may follow. After an
// error it may be called again, and goes on where it ended. The lanes run; no lane may call it.
func (s *Subnet) Listen() error {
	s.trunkMu.Lock()
	defer s.trunkMu.Unlock()
	var in, out []int
	if err := settled(s.lanes.First(), func() error {
		if !s.trunks.Listens() {
			if err := s.trunks.Listen(); err != nil {
				return err
			}
		}
		in, out = s.trunks.FDs()
		return nil
	}); err != nil {
		return err
	}
	for i, l := range s.lanes.All() {
		if i > 0 {
			in = nil // lane 0 receives
		}
		if i < s.watching {
			continue
		}
		if err := settled(l, func() error { return l.WatchTrunks(in, out) }); err != nil {
			return err
		}
		s.watching = i + 1
	}
	s.listens.Store(true)
	return nil
}

// apart is udp.Config.Apart: the goroutine of handshakes computes, so that lane 0 goes on. It runs on that lane. Before
// Start there is no traffic to delay.
func (s *Subnet) apart(work func(), then func(mono.Time)) bool {
	first := s.first.Load()
	if first == nil {
		return false
	}
	select {
	case s.handshakes <- func() {
		work()
		first.Post(func() { then(first.Now()) })
	}:
		return true
	default:
		return false
	}
}

// CloseTrunks closes the trunks, after the lanes have ended.
func (s *Subnet) CloseTrunks() {
	if s.trunks != nil {
		close(s.handshakes)
		<-s.handshakesEnd
		s.trunks.Close()
	}
}

// TrunkLink is the link of the trunks, which belongs to lane 0.
func (s *Subnet) TrunkLink() *udp.Link { return s.trunks }

// HasTrunks reports whether the node receives from other nodes, or would. Any goroutine may call it.
func (s *Subnet) HasTrunks() bool { return s.listens.Load() }

// Sender returns the sender of a lane, which belongs to it.
func (s *Subnet) Sender(lane int) *udp.Sender { return s.senders[lane] }

// LaneLink makes a lane's way into the subnet, and the descriptors that wake the lane. Lane 0 receives from the trunks;
// every lane sends by itself. It is called for each lane, in the order of their numbers, before they run.
func (s *Subnet) LaneLink(h *hca.Lane, of *lane.Link) (f *fabric.Link, in, out []int) {
	c := fabric.Config{Table: &s.Table, Wiring: &s.wiring, WireLocal: s.cfg.WireLocal,
		Manage: func(d *mad.Datagram) { s.receive(inbound{d: *d}) }}
	if s.trunks != nil {
		sender := s.trunks.Sender(uint8(h.ID))
		s.senders = append(s.senders, sender)
		c.Trunk = sender
		in, out = s.trunks.FDs()
		if h.ID == 0 {
			of.SetTrunks(sender, s.trunks, s.peerGIDs())
			c.Source = s.trunks
		} else {
			of.SetTrunks(sender, nil, s.peerGIDs())
			in = nil
		}
	}
	f = fabric.New(c)
	h.SetFabric(f)
	h.SetSwitch(f)
	h.SetManagement(s.receiver(h))
	h.SetViolations(s.Violated)
	return f, in, out
}

// peerGIDs are the addresses of the trunks' other ends, as faults name them.
func (s *Subnet) peerGIDs() (list []ib.GID) {
	for i := range s.cfg.Peers {
		list = append(list, ib.GIDFromAddr(s.trunks.Peer(i).Addr().WithZone("")))
	}
	return list
}

// AddTrunk opens a trunk to a peer, with a name for people, and plugs it into the switch. If confined is set the peer
// may send only packets of its own ports, and none that changes the subnet. AddTrunk returns the peer's index;
// ErrNoSwitchPort if no port is free. The lanes run; no lane may call it.
func (s *Subnet) AddTrunk(name string, p udp.Peer, confined bool) (peer int, err error) {
	s.trunkMu.Lock()
	defer s.trunkMu.Unlock()
	first := s.lanes.First()
	added := 0
	if err := settled(first, func() (err error) { added, err = s.trunks.AddPeer(p); return err }); err != nil {
		return 0, err
	}
	if at := s.trunks.Peer(added); at.IsValid() {
		s.faultsAt(added, at)
	}
	if e := s.Do(func() { err = s.plugTrunk(added, name, p.Node, confined) }); e != nil || err != nil {
		first.Post(func() { s.trunks.RemovePeer(first.Now(), added) }) // also where the lane is stuck now
		return 0, errors.Join(e, err)
	}
	return added, nil
}

// plugTrunk plugs the trunk to a peer into the highest free port of the switch.
func (s *Subnet) plugTrunk(peer int, name string, node ib.GUID, confined bool) error {
	w := s.wiring.Load().Clone()
	p := s.cfg.SwitchPorts
	for p > 0 && w.Port[p].Kind != fabric.Nothing {
		p--
	}
	if p == 0 {
		return ErrNoSwitchPort
	}
	w.Trunk[peer] = uint8(p)
	w.Port[p] = fabric.Plug{Kind: fabric.Peer, Number: uint16(peer)}
	w.Nodes[peer] = node
	if confined {
		w.Confined.Add(uint8(p))
	}
	s.wiring.Store(w)
	t := &s.peers[peer] // an event may have preceded
	t.name, t.port = name, uint8(p)
	s.Dirty = true
	s.setLink(s.cfg.Now(), t.port, s.peerUp(t.port))
	return nil
}

// Confine sets whether the peer of a trunk may send only packets of its own ports, and none that changes the subnet. No
// lane may call it.
func (s *Subnet) Confine(peer int, confined bool) error {
	return s.Do(func() {
		w := s.wiring.Load().Clone()
		w.Confined.Remove(s.peers[peer].port)
		if confined {
			w.Confined.Add(s.peers[peer].port)
		}
		s.wiring.Store(w)
	})
}

// MoveTrunk sets the address at which the other end of a trunk is reached from now on. No lane may call it.
func (s *Subnet) MoveTrunk(peer int, at netip.AddrPort) error {
	s.trunkMu.Lock()
	defer s.trunkMu.Unlock()
	if err := settled(s.lanes.First(), func() error { return s.trunks.SetAddr(peer, at) }); err != nil {
		return err
	}
	s.faultsAt(peer, at)
	return nil
}

// faultsAt has faults of an address act on the trunk to the peer that is there.
func (s *Subnet) faultsAt(peer int, at netip.AddrPort) {
	for _, l := range s.lanes.All() {
		l.Post(func() { l.Net.SetTrunkPeer(peer, ib.GIDFromAddr(at.Addr().WithZone(""))) })
	}
}

// TrunkUp reports whether a trunk is up. No lane may call it.
func (s *Subnet) TrunkUp(peer int) (up bool, err error) {
	err = s.Do(func() { up = s.peers[peer].up })
	return up, err
}

// RemoveTrunk ends the trunk to a peer at once and frees its port. No lane may call it.
func (s *Subnet) RemoveTrunk(peer int) error {
	s.trunkMu.Lock()
	defer s.trunkMu.Unlock()
	first := s.lanes.First()
	if err := settled(first, func() error { s.trunks.RemovePeer(first.Now(), peer); return nil }); err != nil {
		return err
	}
	return s.Do(func() {
		t := &s.peers[peer]
		if t.port != 0 {
			s.setLink(s.cfg.Now(), t.port, false)
			w := s.wiring.Load().Clone()
			w.Port[t.port], w.Trunk[peer], w.Nodes[peer] = fabric.Plug{}, 0, 0
			w.Confined.Remove(t.port)
			s.wiring.Store(w)
			s.Dirty = true
		}
		*t = trunkPort{}
	})
}

// trunkEvent handles a trunk that came up or went down; it is called on lane 0.
func (s *Subnet) trunkEvent(e trunk.Event) {
	at := s.trunks.Peer(e.Peer) // of a peer without an address: where its hello came from
	s.Post(func() {
		if e.Up && at.IsValid() {
			s.faultsAt(e.Peer, at)
		}
		t := &s.peers[e.Peer]
		t.up, t.node = e.Up, e.Node
		s.log.Info("trunk", "peer", t.name, "up", e.Up, "node", e.Node, "name", e.Name)
		if t.port != 0 {
			s.setLink(s.cfg.Now(), t.port, s.peerUp(t.port))
		}
		if !e.Up && s.Manager != nil {
			s.Manager.Doubt() // the master may be at the other end
		}
	})
}

// DevicePorts is the number of ports of the switch that have no trunk and are in use.
func (s *Subnet) DevicePorts() (n int) {
	for _, p := range s.wiring.Load().Port {
		if p.Kind != fabric.Nothing && p.Kind != fabric.Peer {
			n++
		}
	}
	return n
}

// TrunkPort is the port of the switch that a trunk is plugged into.
func (s *Subnet) TrunkPort(peer int) uint8 { return s.wiring.Load().Trunk[peer] }

// portStates are the states of ports as the control interface has them.
var portStates = map[ib.PortState]string{ib.PortDown: "DOWN", ib.PortInit: "INIT", ib.PortArmed: "ARMED",
	ib.PortActive: "ACTIVE"}

// peerName is the address of the other end of a trunk, or the trunk's port of the switch if no address is known yet.
func peerName(s *Subnet, peer int, at netip.AddrPort) string {
	if !at.IsValid() {
		return fmt.Sprintf("switch port %d", s.TrunkPort(peer))
	}
	return at.String()
}

// Trunks describes the trunks, none where the node has none. wall is a time of the node's clock as people have it. No
// lane may call it.
func (s *Subnet) Trunks(wall func(mono.Time) time.Time) (list []api.Trunk, err error) {
	if s.trunks == nil {
		return nil, nil
	}
	var index []int
	err = s.lanes.First().Query(func() {
		for i := range s.trunks.Peers() {
			if !s.trunks.Used(i) {
				continue
			}
			index = append(index, i)
			k := s.trunks.Status(i)
			t := api.Trunk{Peer: peerName(s, i, k.Addr), Port: int(s.TrunkPort(i)), Up: k.Up, RTTNS: k.RTT,
				Limit: k.Limit, Name: k.Name, Version: k.Version, Why: k.Why, LimitHere: k.Own, LimitThere: k.Theirs,
				Rekeys: k.Rekeys, Received: k.Packets, Lost: k.Lost, LossPercent: 100 * k.LossRate, Lossy: k.Lossy,
				Reordered: k.Reordered, Downs: k.Downs}
			if k.Node != 0 {
				t.Node = k.Node.String()
			}
			if k.Session != 0 {
				t.Security, t.KeysSince = k.Mode.String(), wall(k.Session)
			}
			if k.Since != 0 {
				t.Since = wall(k.Since)
			}
			list = append(list, t)
		}
	})
	if err == nil {
		err = s.Do(func() {
			for p := range list {
				list[p].State = portStates[s.Switch.Port(uint8(list[p].Port)).PortState]
				name, unknown := s.peers[index[p]].name, peerName(s, index[p], netip.AddrPort{})
				if list[p].Peer == unknown && name != "" {
					list[p].Peer = name
				}
			}
		})
	}
	for i, l := range s.lanes.All() {
		if err == nil {
			err = l.Query(func() {
				for p := range list {
					list[p].Sent += s.senders[i].Counters(index[p]).Packets
				}
			})
		}
	}
	return list, err
}

// Degraded lists what is wrong with the trunks as Trunks describes them. No lane may call it.
func (s *Subnet) Degraded(trunks []api.Trunk) (list []api.Degraded, err error) {
	for _, t := range trunks {
		if !t.Up {
			d := api.Degraded{What: "trunk_down", Why: fmt.Sprintf("nothing is received from the node at %s", t.Peer)}
			if a, err := netip.ParseAddrPort(t.Peer); err == nil && a.IsValid() {
				d.Fix = "ping " + a.Addr().String() + "; weft trunk, there"
			} else {
				d.Why = fmt.Sprintf("nothing is received from %s, and no address leads there", t.Peer)
				d.Fix = "weft member list; weft status, there"
			}
			if t.Why != "" && t.Why != "nothing answers" {
				d.Why = fmt.Sprintf("the node at %s gets no trunk: %s", t.Peer, t.Why)
				d.Fix = "weft trunk, there; the same --trunk-key-file at both nodes"
			}
			list = append(list, d)
		} else if t.Lossy {
			list = append(list, describeLossy(&t))
		}
	}
	if !s.HasTrunks() {
		return list, nil
	}
	list = append(list, s.trusts...)
	err = s.Do(func() {
		if u, ok := s.Clients.(*umad.Hub); ok {
			list = append(list, describeRefused(s.cfg.Now(), u)...)
		}
	})
	first := s.lanes.First()
	err = errors.Join(err, first.Query(func() {
		for _, d := range s.trunks.Degraded() {
			list = append(list, api.Degraded{What: d.Name, Why: d.Detail, Fix: d.Fix})
		}
		for i := range s.trunks.Peers() {
			if s.trunks.Used(i) {
				f := first.Net.Fabric.PeerCounters(i).Foreign
				list = append(list, describeForeign(first.Now(), s.trunks.Status(i).Name, &f)...)
			}
		}
	}))
	seen := map[string]bool{}
	for i, l := range s.lanes.All() {
		if err == nil {
			err = l.Query(func() {
				for _, d := range s.senders[i].Degraded() {
					if !seen[d.Name] {
						seen[d.Name] = true
						list = append(list, api.Degraded{What: d.Name, Why: d.Detail, Fix: d.Fix})
					}
				}
			})
		}
	}
	return list, err
}

// describeLossy describes a trunk that loses datagrams of its peer.
func describeLossy(t *api.Trunk) api.Degraded {
	peer := cmp.Or(t.Name, t.Peer)
	return api.Degraded{What: "trunk_lossy",
		Why: fmt.Sprintf("%.1f %% of the datagrams that %s sent here in %d s did not arrive", t.LossPercent, peer,
			int(trunk.LossWindow.Seconds())),
		Fix: "weft fault list, on " + peer + "; weft stat --scope link, here: if rcvbuf_overflow grows, give the node a " +
			"processor; ip -s link, on both hosts"}
}

// switchCounters are the counters of the switch's ports: of a function's port what the function counted, with the
// directions exchanged; of a trunk those of its packets.
type switchCounters struct{ s *Subnet }

// Counts implements agent.Counters.
func (c switchCounters) Counts(port uint8, to *agent.Counts) {
	if p := c.s.ports[port]; p != nil {
		k, _ := c.s.lanes.PortCounters(p.Adapter.Number()) // of the lanes that answer
		add(to, k.RcvData, k.XmitData, k.RcvPkts, k.XmitPkts, k.UnicastRcvPkts, k.UnicastXmitPkts, k.MulticastRcvPkts,
			k.MulticastXmitPkts)
		return
	}
	w := c.s.wiring.Load()
	if int(port) >= len(w.Port) || w.Port[port].Kind != fabric.Peer {
		return
	}
	for _, l := range c.s.lanes.All() {
		var k fabric.PeerCounters
		if l.Query(func() { k = l.Net.Fabric.PeerCounters(int(w.Port[port].Number)) }) != nil {
			continue // the node ends, or the lane is stuck: the counts of the others remain
		}
		add(to, k.XmitData, k.RcvData, k.XmitPkts, k.RcvPkts, k.XmitPkts-k.MulticastXmit, k.RcvPkts-k.MulticastRcv,
			k.MulticastXmit, k.MulticastRcv)
		to.Values[mad.CounterXmitDiscards] += k.XmitDiscards
		to.Values[mad.CounterRcvErrors] += k.RcvErrors
	}
	// What a cable would count as damaged symbols and failures are datagrams that did not arrive, and ends of the
	// trunk.
	first := c.s.lanes.First()
	first.Query(func() { // a stuck lane has other symptoms
		if peer := int(w.Port[port].Number); c.s.trunks != nil && c.s.trunks.Used(peer) {
			k := c.s.trunks.Status(peer)
			to.Values[mad.CounterSymbolErrors] += k.Lost
			to.Values[mad.CounterLinkDowned] += k.Downs
		}
	})
}

func add(to *agent.Counts, xd, rd, xp, rp, ux, ur, mx, mr uint64) {
	to.Values[mad.CounterXmitData] += xd
	to.Values[mad.CounterRcvData] += rd
	to.Values[mad.CounterXmitPkts] += xp
	to.Values[mad.CounterRcvPkts] += rp
	to.UnicastXmit += ux
	to.UnicastRcv += ur
	to.MulticastXmit += mx
	to.MulticastRcv += mr
}

// portCounters are the counters of a function's port.
type portCounters struct{ c *Port }

// Counts implements agent.Counters.
func (c portCounters) Counts(_ uint8, to *agent.Counts) {
	k, _ := c.c.s.lanes.PortCounters(c.c.Adapter.Number()) // of the lanes that answer
	addPort(to, &k)
}

// addPort adds what was counted for the port of a function.
func addPort(to *agent.Counts, k *hca.PortCounters) {
	add(to, k.XmitData, k.RcvData, k.XmitPkts, k.RcvPkts, k.UnicastXmitPkts, k.UnicastRcvPkts, k.MulticastXmitPkts,
		k.MulticastRcvPkts)
	to.Values[mad.CounterXmitDiscards] += k.XmitDiscards
	to.Values[mad.CounterXmitConstraintErrors] += k.XmitConstraintErrors
	to.Values[mad.CounterRcvErrors] += k.RcvErrors
}

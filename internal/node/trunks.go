// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"

	"weft/internal/control/api"
	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/udp"
	"weft/internal/mgmt/agent"
	"weft/internal/node/lane"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/verbs/hca"
)

var (
	_ fabric.Trunk  = (*udp.Sender)(nil)
	_ fabric.Source = (*udp.Link)(nil)
)

var errNoSwitchPort = errors.New("every port of the switch is taken")

// openSubnet gives the node its switch and its trunks; lanes are made after
// it.
func (n *Node) openSubnet() error {
	if !n.cfg.Fabric {
		return nil
	}
	var err error
	if n.host, err = os.Hostname(); err != nil {
		return err
	}
	params, err := n.ipoibParams()
	if err != nil {
		return err
	}
	n.sub = newSubnet(n, n.identity)
	n.ip = newIPoIB(n, params)
	n.vesw = newVESW(n)
	n.board = n.sub
	if len(n.cfg.Peers) == 0 {
		return nil
	}
	c := udp.Config{Node: n.identity, Port: uint16(n.cfg.TrunkPort), Event: n.sub.trunkEvent}
	for _, p := range n.cfg.Peers {
		a, err := n.cfg.PeerAddr(p)
		if err != nil {
			return err
		}
		c.Peers = append(c.Peers, udp.Peer{Addr: a})
	}
	if n.trunks, err = udp.Open(c); err != nil {
		return fmt.Errorf("open the trunks: %w", err)
	}
	return nil
}

// firstNative is the device of the physical function's InfiniBand port.
const firstNative = "weft_ib0"

// startSubnet starts the management goroutine, and plugs in the port of the
// physical function. The lanes run.
func (n *Node) startSubnet() error {
	if n.sub == nil {
		return nil
	}
	if err := n.lanes.First().Do(func() { n.vesw.lane = newVESWLane(n.lanes.First(), n.lanes.First().Net.Fabric) }); err != nil {
		return err
	}
	go n.sub.run() // ends with close
	if n.cfg.Device == firstNative {
		return &api.Error{What: "cannot run the node", Why: firstNative + " is the name of its InfiniBand device", Fix: "give it another --device, or --fabric=false"}
	}
	_, err := n.addFunction(firstNative, hca.DefaultLimits)
	return err
}

// fabricLink makes a lane's way into the subnet, and the descriptors it is woken by. Lane 0 receives from the trunks;
// every lane sends by itself.
func (n *Node) fabricLink(h *hca.Lane, of *lane.Link) (f *fabric.Link, in, out []int) {
	s, i := n.sub, h.ID
	c := fabric.Config{Table: &s.table, Wiring: &s.wiring, WireLocal: n.cfg.WireLocal,
		Manage: func(d *mad.Datagram) { s.arrived(inbound{d: *d}) }}
	if n.trunks != nil {
		n.senders = append(n.senders, n.trunks.Sender(uint8(i)))
		c.Trunk = n.senders[i]
		in, out = n.trunks.FDs()
		if i == 0 {
			of.SetTrunks(n.senders[i], n.trunks, n.peerGIDs())
			c.Source = n.trunks
		} else {
			of.SetTrunks(n.senders[i], nil, n.peerGIDs())
			in = nil
		}
	}
	f = fabric.New(c)
	h.SetFabric(f)
	h.SetSwitch(f)
	h.SetManagement(s.take(h))
	h.SetViolations(s.violated)
	return f, in, out
}

// peerGIDs are the addresses of the trunks' other ends, as faults name them.
func (n *Node) peerGIDs() (list []ib.GID) {
	for i := range n.cfg.Peers {
		list = append(list, ib.GIDFromAddr(n.trunks.Peer(i).Addr().WithZone("")))
	}
	return list
}

// switchCounters are the counters of the switch's ports: of a function's port
// what the function counted, the other way round; of a trunk what its packets
// were.
type switchCounters struct{ s *subnet }

// Counts implements agent.Counters.
func (c switchCounters) Counts(port uint8, to *agent.Counts) {
	if p := c.s.ports[port]; p != nil {
		k, _ := c.s.n.lanes.PortCounters(p.adapter.Number()) // of the lanes that answer
		add(to, k.RcvData, k.XmitData, k.RcvPkts, k.XmitPkts, k.UnicastRcvPkts, k.UnicastXmitPkts, k.MulticastRcvPkts, k.MulticastXmitPkts)
		return
	}
	w := c.s.wiring.Load()
	if int(port) >= len(w.Port) || w.Port[port].Kind != fabric.Peer {
		return
	}
	for _, l := range c.s.n.lanes.All() {
		var k fabric.PeerCounters
		if l.Query(func() { k = l.Net.Fabric.PeerCounters(int(w.Port[port].Number)) }) != nil {
			continue // the node ends, or the lane is stuck: the others' counts must do
		}
		add(to, k.XmitData, k.RcvData, k.XmitPkts, k.RcvPkts, k.XmitPkts-k.MulticastXmit, k.RcvPkts-k.MulticastRcv, k.MulticastXmit, k.MulticastRcv)
		to.Values[mad.CounterXmitDiscards] += k.XmitDiscards
		to.Values[mad.CounterRcvErrors] += k.RcvErrors
	}
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

// caCounters are the counters of a function's port.
type caCounters struct{ c *caPort }

// Counts implements agent.Counters.
func (c caCounters) Counts(_ uint8, to *agent.Counts) {
	k, _ := c.c.s.n.lanes.PortCounters(c.c.adapter.Number()) // of the lanes that answer
	add(to, k.XmitData, k.RcvData, k.XmitPkts, k.RcvPkts, k.UnicastXmitPkts, k.UnicastRcvPkts, k.MulticastXmitPkts, k.MulticastRcvPkts)
	to.Values[mad.CounterXmitDiscards] += k.XmitDiscards
	to.Values[mad.CounterXmitConstraintErrors] += k.XmitConstraintErrors
	to.Values[mad.CounterRcvErrors] += k.RcvErrors
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"os"

	"weft/internal/control/api"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

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
	c := subnet.Config{Log: n.log, Now: n.now, GUID: n.identity, Host: n.host, SwitchPorts: n.cfg.SwitchPorts,
		Peers: n.cfg.Peers, WireLocal: n.cfg.WireLocal,
		NewPort: func(guid ib.GUID) *hca.Port {
			return newPort(guid,
				n.cfg.WireLocal)
		}, SetMulticastForwarding: n.all.SetMulticastForwarding, Publish: n.publish, Connections: n.cm,
		Mirror: n.captures}
	c.Plugged = func(a *hca.Adapter) { n.vesw.Plugged(a) }
	c.Unplugged = func(function uint16) func() {
		busy := n.vesw.Unplugged(function)
		return func() {
			for _, w := range busy {
				w.Wait()
			}
		}
	}
	n.sub = subnet.New(c)
	if n.ip, err = n.newIPLinks(); err != nil {
		return err
	}
	n.vesw = newVESW(n)
	if len(n.cfg.Peers) == 0 {
		return nil
	}
	var peers []netip.AddrPort
	for _, p := range n.cfg.Peers {
		a, err := n.cfg.PeerAddr(p)
		if err != nil {
			return err
		}
		peers = append(peers, a)
	}
	return n.sub.OpenTrunks(uint16(n.cfg.TrunkPort), peers)
}

// publish gives changes of InfiniBand ports to files, programs and the users of the ports; it is called on the
// management goroutine.
func (n *Node) publish(changes []subnet.PortChange) {
	n.tree.changed(changes...)
	for _, p := range changes {
		n.ip.PortChanged(p.Adapter, p.Events)
		n.cm.PortChanged(p.Adapter, p.Events)
		n.vesw.PortChanged(p.Adapter)
	}
}

// firstNative is the device of the physical function's InfiniBand port.
const firstNative = "weft_ib0"

// startSubnet starts the management goroutine, and plugs in the port of the
// physical function. The lanes run.
func (n *Node) startSubnet() error {
	if n.sub == nil {
		return nil
	}
	if err := n.vesw.Start(n.lanes.First(), n.cards); err != nil {
		return err
	}
	n.sub.Start(n.lanes) // ends with close
	if n.cfg.Device == firstNative {
		return &api.Error{What: "cannot run the node", Why: firstNative + " is the name of its InfiniBand device",
			Fix: "give it another --device, or --fabric=false"}
	}
	_, err := n.editor.add(firstNative, hca.DefaultLimits)
	return err
}

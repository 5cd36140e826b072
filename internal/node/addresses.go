// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"weft/internal/node/conn"
	"weft/internal/node/ipif"
	"weft/internal/proto/ib"
	"weft/internal/service/ipoib"
)

// addresses are the IP addresses of IP links, and of Ethernet ports in virtual Ethernet switches.
type addresses struct{ n *Node }

var _ conn.Addresses = addresses{}

// Lookup implements conn.Addresses.
func (a addresses) Lookup(match func(*conn.Address) bool) (conn.Address, bool) {
	if a.n.ip == nil {
		return conn.Address{}, false
	}
	found, ok := a.n.ip.Lookup(func(l *ipif.Address) bool { return match((*conn.Address)(l)) })
	return conn.Address(found), ok
}

// EthernetPorts implements conn.Addresses.
func (a addresses) EthernetPorts() (list []conn.EthernetPort) {
	for _, p := range a.n.vesw.DevicePorts() {
		list = append(list, conn.EthernetPort{Adapter: p.Adapter(), Addrs: p.Addrs()})
	}
	return list
}

// ResolvePath implements conn.Addresses.
func (a addresses) ResolvePath(link string, dst netip.Addr, done func(*ipoib.PathInfo, error)) bool {
	return a.n.ip != nil && a.n.ip.ResolvePath(link, dst, done)
}

// BroadcastGID implements conn.Addresses.
func (a addresses) BroadcastGID(link string) (ib.GID, bool) {
	if a.n.ip == nil {
		return ib.GID{}, false
	}
	return a.n.ip.BroadcastGID(link)
}

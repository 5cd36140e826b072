// SPDX-License-Identifier: Apache-2.0

// Package stack starts what an IP stack in the node serves: port forwards and the SOCKS proxy of requests.
//
// What comes in: parts of requests of the control interface. What goes out: services of package netstack. The rooms of
// IP links and of VESW ports call it. It keeps no state.
package stack

import (
	"net/netip"
	"strings"

	"weft/internal/control/api"
	"weft/internal/host/netstack"
)

// Stack is an IP stack that serves connections.
type Stack interface {
	Forward(netstack.Forward) (*netstack.Service, error)
	SOCKS(netstack.SOCKS) (*netstack.Service, error)
}

// Serve starts forwards, and unless socks is empty a proxy at that address of the host. The services end with
// the stack.
func Serve(s Stack, forwards []api.IPForward, socks string) (err error) {
	for _, f := range forwards {
		v := netstack.Forward{Network: f.Network, Inward: f.Remote}
		if v.Listen, err = netip.ParseAddrPort(f.Listen); err == nil {
			v.To, err = netip.ParseAddrPort(f.To)
		}
		if err == nil {
			_, err = s.Forward(v)
		}
		if err != nil {
			return err
		}
	}
	if socks == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(socks)
	if err == nil {
		_, err = s.SOCKS(netstack.SOCKS{Listen: at})
	}
	return err
}

// ParseRoute reads PREFIX=GATEWAY, or PREFIX alone. The host bits of the prefix are cleared.
func ParseRoute(s string) (to netip.Prefix, via netip.Addr, err error) {
	dst, gateway, ok := strings.Cut(s, "=")
	if to, err = netip.ParsePrefix(dst); err != nil || !ok {
		return to.Masked(), via, err
	}
	via, err = netip.ParseAddr(gateway)
	return to.Masked(), via, err
}

// Parse reads the addresses and routes of a request: addresses with the length of their prefix, routes as ParseRoute
// does.
func Parse(addrs, routes []string) (list []netip.Prefix, to []netstack.Route, err error) {
	for _, s := range addrs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, p)
	}
	for _, s := range routes {
		dst, via, err := ParseRoute(s)
		if err != nil {
			return nil, nil, err
		}
		to = append(to, netstack.Route{Dst: dst, Via: via})
	}
	return list, to, nil
}

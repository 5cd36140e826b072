// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"net"
	"syscall"
)

// ports is the number of ports that ChoosePort tries.
const ports = 256

// ChoosePort replaces a RoCEPort of 0: by the port of the specification, or, where another process has that port, by
// the next that is free on this host. It does not use TrunkPort. Another process may take the port before the node
// opens it.
func (c *Config) ChoosePort() {
	if c.RoCEPort != 0 {
		return
	}
	c.RoCEPort = RoCEPort
	for p := RoCEPort; p < RoCEPort+ports; p++ {
		if p != c.TrunkPort && portFree(p) {
			c.RoCEPort = p
			return
		}
	}
}

// portFree reports whether no socket has a UDP port.
func portFree(port int) bool {
	for _, network := range []string{"udp4", "udp6"} {
		s, err := net.ListenUDP(network, &net.UDPAddr{Port: port})
		if errors.Is(err, syscall.EADDRINUSE) {
			return false
		}
		if err == nil {
			s.Close()
		}
	}
	return true
}

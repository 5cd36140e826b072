// SPDX-License-Identifier: Apache-2.0

package condtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// ports holds a listener for each port that Port returned. By it, other processes of the tests see the port taken.
var ports sync.Map

// Port returns a number that is free as a TCP port and as a UDP port, and that stays free for what the test starts: the
// number is outside of the range from which the kernel gives ports to sockets that name none, and no other test gets it
// as long as this process lives.
func Port(t testing.TB) int {
	t.Helper()
	const first, count = 20000, 12000
	for range 10 * count {
		port := first + rand.IntN(count)
		held, err := net.Listen("unix", fmt.Sprintf("@weft-test-port-%d", port))
		if err != nil {
			continue // another test has it
		}
		if !free(port) {
			held.Close()
			continue
		}
		ports.Store(port, held)
		return port
	}
	t.Fatal("no free port")
	return 0
}

// free reports whether no socket of this network namespace is bound to the port.
func free(port int) bool {
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return false
	}
	c.Close()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port})
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft/internal/fabric/link/udpsock"
)

// TestStrangerEnds: datagrams of no peer are a reason for a trunk that is down as they arrive, and until their source
// is a peer's.
func TestStrangerEnds(t *testing.T) {
	ca, _ := unopened("127.0.0.1")
	a := newNode(t, ca)
	reported := func() bool {
		return slices.ContainsFunc(a.Link.Degraded(), func(d udpsock.Degraded) bool { return d.Name == "trunk_stranger" })
	}
	other := uint16(0)
	send := func() {
		t.Helper()
		n := a.Link.Counters().DropUnknown
		raw(t, other, portA, make([]byte, 52))
		await(t, "the datagram", func() bool { return a.Link.Counters().DropUnknown == n+1 }, a)
		if !reported() {
			t.Error("it is not reported")
		}
	}
	send()
	now := a.now()
	a.Tick(now)
	a.Tick(now.Add(strangeFor / 2))
	if !reported() {
		t.Error("it is not reported any more")
	}
	a.Tick(now.Add(strangeFor + time.Second))
	if reported() {
		t.Error("it is reported for ever")
	}
	other = portA + 2 // no test has it
	send()
	if _, err := a.Link.AddPeer(Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), other)}); err != nil {
		t.Fatal(err)
	}
	if reported() {
		t.Error("a peer is reported as a stranger")
	}
}

// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"encoding/binary"
	"testing"
	"time"

	"weft/internal/fabric/trunk"
	"weft/internal/fabric/trunk/seal"
)

// TestRekeyUnderLoad replaces keys again and again between two sockets, in each mode, while packets go both ways
// without a pause: whole ones and fragments. Each arrives once, and no datagram is refused.
func TestRekeyUnderLoad(t *testing.T) {
	for mode := range seal.NumModes {
		t.Run(mode.String(), func(t *testing.T) {
			ca, cb := unopened("127.0.0.1")
			for _, c := range []*Config{&ca, &cb} {
				c.Mode, c.RekeyAfter = mode, 400*time.Millisecond
			}
			a, b := newNode(t, ca), newNode(t, cb)
			settled := func(n *node) bool { s := n.Status(0); return s.Up && s.Measured }
			await(t, "the trunk", func() bool { return settled(a) && settled(b) }, a, b)
			a.Link.peers[0].path.Store(8972) // so that some packets are cut
			lengths := []int{30, 1060, 4178, 9000, 16384}
			rekeys := func() uint64 { return min(a.Status(0).Rekeys, b.Status(0).Rekeys) }
			for sent := uint32(0); rekeys() < 3; {
				for range 40 {
					p := random(lengths[int(sent)%len(lengths)])
					binary.BigEndian.PutUint32(p, sent)
					a.send(p)
					b.send(p)
					sent++
				}
				await(t, "packets", func() bool { return len(a.got) >= 40 && len(b.got) >= 40 }, a, b)
				for _, n := range []*node{a, b} {
					for i, p := range n.got {
						if no := sent - 40 + uint32(i); len(n.got) != 40 || binary.BigEndian.Uint32(p) != no ||
							len(p) != lengths[int(no)%len(lengths)] {
							t.Fatalf("%d packets; packet %d has %d octets and number %x", len(n.got), no, len(p), p[:4])
						}
					}
					n.got = n.got[:0]
				}
			}
			for _, n := range []*node{a, b} {
				s := n.Status(0)
				if s.Lost+s.Downs+s.Refused+s.Expired != 0 || s.Drop != (trunk.Refusals{}) || s.Mode != mode {
					t.Errorf("%+v", s)
				}
				if c := n.Link.Counters(); c.Strays.Drop != (trunk.Stray{}) {
					t.Errorf("%+v", c.Strays)
				}
			}
		})
	}
}

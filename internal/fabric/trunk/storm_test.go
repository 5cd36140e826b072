// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// TestStorm restarts nodes, cuts directions, loses, delays and repeats datagrams, changes limits, and removes and adds
// peers at random, by seed. Packets that arrive were sent, and come once. When it is over every trunk comes up, both
// ends use one session, and packets pass.
func TestStorm(t *testing.T) {
	seeds := uint64(3)
	if condtest.Soak() {
		seeds = 100
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			key := psk(t, 1)
			nodes := []ib.GUID{0xa, 0xb, 0xc}
			others := func(i int) (list []ib.GUID) {
				for j, n := range nodes {
					if j != i {
						list = append(list, n)
					}
				}
				return list
			}
			short := func(c *Config) { c.RekeyAfter, c.RekeyDatagrams = 3*time.Second, 400 }
			var hosts [3]*host
			var all []*host // those before a restart, too
			start := func(i int) {
				hosts[i] = w.host(nodes[i], 1472, key, short, others(i)...)
				all = append(all, hosts[i])
			}
			for i := range hosts {
				start(i)
			}
			cut := map[[2]netip.AddrPort]bool{}
			w.blocked = func(from, to netip.AddrPort) bool { return cut[[2]netip.AddrPort{from, to}] }
			next := 0
			load := func() {
				for _, h := range hosts {
					for p := range h.core.Peers() {
						if h.core.Used(p) {
							next++
							h.send(p, numbered(next, 4+w.rng.IntN(3000)))
						}
					}
				}
			}
			for range 60 {
				i := w.rng.IntN(3)
				h := hosts[i]
				switch w.rng.IntN(8) {
				case 0:
					start(i)
				case 1, 2:
					cut[[2]netip.AddrPort{addr(nodes[i]), addr(nodes[w.rng.IntN(3)])}] = true
				case 3:
					clear(cut)
				case 4:
					w.loss, w.dup = w.rng.Float64()*0.4, w.rng.Float64()*0.3
					w.delay = time.Duration(w.rng.IntN(80)) * time.Millisecond
				case 5:
					w.loss, w.dup, w.delay = 0, 0, 0
				case 6:
					limit := []int{1232, 1472, 4068, 8972}[w.rng.IntN(4)]
					h.mtu = limit
					for p := range h.core.Peers() {
						h.core.SetLimit(p, limit)
					}
				case 7:
					if p := w.rng.IntN(2); h.core.Used(p) {
						h.core.RemovePeer(w.now, p)
					} else if _, err := h.core.AddPeer(PeerConfig{Addr: addr(others(i)[p]), Limit: h.mtu}); err != nil {
						t.Logf("not added: %v", err)
					}
				}
				for range 10 {
					load()
					w.run(time.Duration(w.rng.IntN(60))*time.Millisecond, never)
				}
			}
			clear(cut)
			w.loss, w.dup, w.delay = 0, 0, 0
			for i, h := range hosts {
				for _, n := range others(i) {
					h.core.AddPeer(PeerConfig{Addr: addr(n), Limit: h.mtu}) // refused where it is one
				}
			}
			settled := func() bool {
				for _, h := range hosts {
					for p := range 2 {
						if s := h.core.Status(p); !s.Up || !s.Measured {
							return false
						}
					}
				}
				return true
			}
			if !w.run(40*time.Second, settled) {
				for _, h := range hosts {
					t.Errorf("%v: %+v\n%+v", h.addr, h.core.Status(0), h.core.Status(1))
				}
				t.Fatal("not all trunks are up")
			}
			w.run(15*time.Second, never) // sessions of the storm end
			seen := map[string]bool{}
			for i, h := range all {
				for _, p := range h.got {
					if no := fmt.Sprint(i, binary.BigEndian.Uint32(p)); seen[no] {
						t.Fatalf("packet %v came twice", no)
					} else {
						seen[no] = true
					}
				}
				h.got = nil
			}
			if len(seen) < 100 {
				t.Errorf("%d packets passed", len(seen))
			}
			for _, h := range hosts {
				for p := range 2 {
					at := h.core.Addr(p)
					o := hosts[slices.IndexFunc(hosts[:], func(o *host) bool { return o.addr == at })]
					back := o.core.byAddr[h.addr]
					if x, y := h.core.peers[p].tx, o.core.peers[back].tx; x.send.Index() != y.recv.Index() {
						t.Errorf("%v and %v use different sessions", h.addr, at)
					}
					if s := h.core.Status(p); s.Drop[Forged]+s.Drop[BadBody]+s.Drop[BadFragment] != 0 {
						t.Errorf("%v: refusals %v", h.addr, s.Drop)
					}
				}
			}
			load()
			w.run(10*time.Millisecond, never)
			for _, h := range hosts {
				if len(h.got) != 2 {
					t.Errorf("%v got %d packets", h.addr, len(h.got))
				}
			}
		})
	}
}

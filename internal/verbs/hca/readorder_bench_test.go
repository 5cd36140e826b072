// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/verbs/transport"
)

// cycle is a send ring that never runs dry: it repeats its requests until left is 0.
type cycle struct {
	wrs        []transport.SendWR
	next, left int
}

func (c *cycle) Fetch(wr *transport.SendWR) bool {
	if c.left == 0 {
		return false
	}
	p := &c.wrs[c.next%len(c.wrs)]
	c.next++
	c.left--
	wr.ID, wr.Op, wr.Flags, wr.RemoteVA, wr.RKey = p.ID, p.Op, p.Flags, p.RemoteVA, p.RKey
	wr.SGE = append(wr.SGE[:0], p.SGE...)
	return true
}
func (c *cycle) Done(uint32) {}
func (c *cycle) Publish()    {}

// BenchmarkReadOrder moves READs alone, and READs and WRITEs by turns, between two queue pairs of one lane: what the
// order of a READ and the requests behind it costs (docs/adr/0016-read-order.md).
func BenchmarkReadOrder(b *testing.B) {
	for _, n := range []int{8, 4096, 65536} {
		for _, mix := range []string{"READ", "READ and WRITE"} {
			b.Run(fmt.Sprintf("%s/%d", mix, n), func(b *testing.B) {
				l, x, y := pair(b, 1<<20)
				x.room = 0 // unsignaled requests complete without an element
				c := &cycle{left: b.N, wrs: []transport.SendWR{{Op: ib.WRRead, RemoteVA: base, RKey: y.mr.RKey,
					SGE: x.sge(0, n)}}}
				if mix != "READ" {
					c.wrs = append(c.wrs, transport.SendWR{Op: ib.WRWrite, RemoteVA: base + 1<<19, RKey: y.mr.RKey,
						SGE: x.sge(1<<19, n)})
				}
				x.q.SetSendRing(c)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				b.ResetTimer()
				x.q.SendPosted()
				for l.Run(2) || c.left > 0 {
				}
			})
		}
	}
}

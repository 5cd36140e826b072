// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"weft/test/rocefront"
)

// brokenRings: nonsense in the ring of a queue pair or of a completion queue, which a program in a guest can write, puts
// that queue and the queue pairs that use it in error. Other queue pairs of the card go on, and so does the next object
// with the ring.
func brokenRings(t *testing.T, a, b *roceCard) {
	good := connectRoCE(t, a, b, rocefront.RC)
	for _, ahead := range []bool{false, true} {
		for name, spoil := range map[string]func(p *rocePair) error{
			"send queue":       func(p *rocePair) error { return p.qa.SpoilSends(ahead) },
			"receive queue":    func(p *rocePair) error { return p.qa.SpoilReceives(ahead) },
			"completion queue": func(p *rocePair) error { return p.a.cq.SpoilRing(ahead) },
		} {
			t.Run(fmt.Sprintf("%s, ahead %v", name, ahead), func(t *testing.T) {
				own := *a
				own.cq = got(a.CreateCQ(16))(t)
				p := &rocePair{a: &own, b: b.anew(t), qa: own.qp(t, rocefront.RC)}
				p.qb = p.b.qp(t, rocefront.RC)
				to := b.to(p.qb)
				to.RNR = 0
				must(t, p.qa.Connect(to))
				back := own.to(p.qa)
				back.Timeout, back.Retry, back.RNR = 10, 1, 0
				must(t, p.qb.Connect(back))
				must(t, spoil(p))
				// The device looks at a receive ring when a message arrives, at a completion queue when it has a completion.
				switch name {
				case "receive queue":
					must(t, p.qb.PostSend(rocefront.Send{ID: 5, Opcode: rocefront.OpSend,
						List: []rocefront.SGE{b.mr.SGE(sourceAt, 100)}}))
				case "completion queue":
					must(t, p.qa.PostSend(rocefront.Send{ID: 6, Opcode: rocefront.OpWrite, Flags: rocefront.Signaled,
						List: []rocefront.SGE{a.mr.SGE(sourceAt, 100)}, RemoteAddr: b.mr.Addr + targetAt, RKey: b.mr.RKey}))
				}
				for until := time.Now().Add(completionLimit); ; time.Sleep(time.Millisecond) {
					if s := got(p.qa.Query(rocefront.AttrState))(t).State; s == rocefront.Err {
						break
					} else if time.Now().After(until) {
						t.Fatalf("the queue pair's state is %d", s)
					}
				}
				good.carry(t, small, 1)
				must(t, p.qa.Destroy())
				must(t, p.qb.Destroy())
				must(t, own.cq.Destroy())
				connectRoCE(t, a.anew(t), b.anew(t), rocefront.RC).carry(t, small, 1)
			})
		}
	}
	good.carry(t, message{op: rocefront.OpRead, sizes: []int{1 << 20}}, 3)
}

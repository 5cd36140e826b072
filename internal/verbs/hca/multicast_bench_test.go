// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"fmt"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/hca/replicate"
	"weft/internal/verbs/transport"
)

// BenchmarkCopies delivers multicast packets that come by a trunk to the members
// of a group: by the engine, and as software does it without one, where all
// packets go to one queue pair, and its program sends each on to every member by
// unicast. What the program itself costs beside its requests is not counted.
func BenchmarkCopies(b *testing.B) {
	for _, members := range []int{4, 16, 64} {
		for _, size := range []int{256, 2048} {
			for _, software := range []bool{false, true} {
				name := fmt.Sprintf("%d_members/%d_bytes/engine", members, size)
				if software {
					name = fmt.Sprintf("%d_members/%d_bytes/software", members, size)
				}
				b.Run(name, func(b *testing.B) { benchCopies(b, members, size, software) })
			}
		}
	}
}

func benchCopies(b *testing.B, members, size int, software bool) {
	const slot, burst = 2048 + wire.GRHLen, 16
	p := newGroupNode(b, 1, members, 1, replicate.DefaultConfig)
	rings := make([][]transport.RecvWR, members)
	for i, m := range p.members {
		m.plain(b)
		for k := range burst {
			rings[i] = append(rings[i], transport.RecvWR{SGE: m.sge(k*slot, slot)})
			rings[i][k].SGE[0].LKey = m.mr.LKey
		}
		m.cqes = make([]CQE, 0, burst)
	}
	dest := ib.QPNMulticast
	path := &ib.Path{DLID: groupMLID, SLID: 0x99, Global: true, SGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x99),
		DGID: mgid(1), Function: 0xffff}
	var collector *endpoint
	var sends []transport.SendWR
	var ring []transport.RecvWR
	l := p.lanes[0]
	if software {
		a := p.members[0].s.a
		collector = newClientOf(b, l, a, groupMemory).qp(QPConfig{Type: ib.UD})
		collector.must(collector.up(nil, 0, 0))
		collector.cqes = make([]CQE, 0, burst)
		for k := range burst {
			ring = append(ring, transport.RecvWR{SGE: collector.sge(k*slot, slot)})
			for _, m := range p.members {
				h, err := collector.s.CreateAH(collector.pd, &AHAttr{DLID: m.s.a.Port().LID})
				collector.must(err)
				sends = append(sends, transport.SendWR{Op: ib.WRSend, Path: collector.q.Path(h), DestQPN: m.q.Num(),
					QKey: 0x11, SGE: collector.sge(k*slot+wire.GRHLen, size)})
			}
		}
		dest = collector.q.Num()
		path = &ib.Path{DLID: a.Port().LID, SLID: 0x99, Function: a.Number()}
	}
	r := pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, QKey: 0x11, SrcQPN: 5,
		DestQPN: dest}, Count: 1,
		Path: path, Data: mem.BytesPayload(make([]byte, size))}
	b.ReportAllocs()
	for b.Loop() {
		for i, m := range p.members {
			m.rq.wrs, m.cqes = rings[i], m.cqes[:0]
		}
		if software {
			collector.rq.wrs, collector.cqes = ring, collector.cqes[:0]
		}
		for range burst {
			l.Receive(2, &r)
		}
		for l.Run(2) {
		}
		if software {
			collector.sq.wrs = sends
			collector.q.SendPosted()
			for l.Run(2) {
			}
		}
		for i, m := range p.members {
			if len(m.cqes) != burst {
				b.Fatalf("member %d has %d completions", i, len(m.cqes))
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*members*burst), "ns/copy")
}

// plain gives a member memory that is at hand.
func (m *member) plain(b *testing.B) {
	var err error
	if m.mr, err = m.s.RegisterMR(m.pd, &mem.Region{Space: m.space.Slice, Start: base, Base: base, Len: groupMemory,
		Access: ib.LocalWrite}); err != nil {
		b.Fatal(err)
	}
}

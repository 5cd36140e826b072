// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"testing"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// BenchmarkSend lays out one small packet, to a resolved neighbour: what the link costs per packet apart from its
// bytes.
func BenchmarkSend(b *testing.B) {
	ga, gb := gid("10.9.0.1"), gid("10.9.0.2")
	p := newPort(macA, ga)
	now := mono.Time(1)
	p.resolve(now, gb, macB)
	batch := mem.NewBatch(4096)
	r := &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceRC | ib.SendOnly, DestQPN: 5}, Count: 1, MTU: 1024,
		Path: &ib.Path{SGID: ga, DGID: gb, SrcPort: 0xc123}, Data: mem.BytesPayload(make([]byte, 64))}
	frames, off := make([][]byte, 16), make([]ether.Offload, 16)
	b.ReportAllocs()
	for b.Loop() {
		if p.Send(now, r, batch) != mem.OK {
			b.Fatal("not sent")
		}
		p.Read(frames, off)
	}
}

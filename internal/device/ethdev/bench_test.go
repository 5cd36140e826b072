// SPDX-License-Identifier: Apache-2.0

package ethdev

import (
	"testing"

	"weft/internal/device/vhost"
	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ether"
)

// BenchmarkPort measures both directions of a port with split rings, in batches of frames. The guest's work is to move
// its available index.
func BenchmarkPort(b *testing.B) {
	const (
		num, batch    = 256, 64
		ringBytes     = 0x3000
		avail, used   = 16 * num, 0x1800
		buffers, size = 2 * ringBytes, 2048
	)
	m := &guestMemory{b: make([]byte, buffers+2*num*size)}
	p, err := New(Config{Lane: alone{}, Pairs: 1})
	if err != nil {
		b.Fatal(err)
	}
	d := newDevice(p, alone{}, m, nil)
	p.dev = d
	if err := d.SetFeatures(1 << abi.FeatureVersion1); err != nil {
		b.Fatal(err)
	}
	const frame = 60
	for i := range 2 {
		at := i * ringBytes
		for k := range num {
			desc := m.b[at+16*k:]
			le.PutUint64(desc, memoryBase+buffers+uint64((i*num+k)*size))
			le.PutUint32(desc[8:], headerLen+frame)
			if i == 0 {
				le.PutUint32(desc[8:], size)
				le.PutUint16(desc[12:], 2) // VIRTQ_DESC_F_WRITE
			}
			le.PutUint16(m.b[at+avail+4+2*k:], uint16(k))
		}
		c := virtio.Config{Num: num, Desc: memoryBase + uint64(at), Driver: memoryBase + uint64(at+avail),
			Device: memoryBase + uint64(at+used)}
		if err := d.SetRing(i, vhost.Ring{Config: c, Kick: &vhost.Kick{}, Enabled: true}); err != nil {
			b.Fatal(err)
		}
	}
	next := uint16(0)
	offer := func(ring int) {
		next += batch
		le.PutUint16(m.b[ring*ringBytes+avail+2:], next)
	}
	frames, off := make([][]byte, batch), make([]ether.Offload, batch)
	b.Run("write", func(b *testing.B) {
		next = le.Uint16(m.b[avail+2:])
		out := make([][]byte, batch)
		for i := range out {
			out[i] = make([]byte, frame)
		}
		b.ReportAllocs()
		for b.Loop() {
			offer(0)
			if n := p.WriteBatch(out, off); n != 0 {
				b.Fatal(n, p.Stats)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		next = le.Uint16(m.b[ringBytes+avail+2:])
		b.ReportAllocs()
		for b.Loop() {
			offer(1)
			if n, err := p.TryReadBatch(frames, off); n != batch || err != nil {
				b.Fatal(n, err, p.Stats)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package virtiotest

import (
	"sync/atomic"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
)

// Doorbell is the program's side of the doorbell area.
type Doorbell struct {
	GPA   uint64
	NBits uint32
	area  []byte
	block uint32
}

// NewDoorbell allocates a doorbell area for at least n rings.
func NewDoorbell(m *Memory, n uint32) *Doorbell {
	bits := (n + 63) / 64 * 64
	size := int(virtio.DoorbellSize(bits))
	gpa := m.Alloc(size, 64)
	return &Doorbell{GPA: gpa, NBits: bits, area: m.At(gpa, size), block: (bits/64 + 63) / 64}
}

// Ring sets the bell of ring i and reports whether the kick eventfd must be written. The caller has
// stored the ring's index before.
func (d *Doorbell) Ring(i uint32) (kick bool) {
	set(long(d.area, abi.DoorbellBits+8*int(i/64)), 1<<(i%64))
	set(long(d.area, abi.DoorbellSummary), 1<<(i/64/d.block))
	return word(d.area, abi.DoorbellSleeping).Load() != 0
}

// set sets a bit unless it is set: the cheap way that abi.md allows.
func set(w *atomic.Uint64, bit uint64) {
	if w.Load()&bit == 0 {
		w.Or(bit)
	}
}

// Sleeping reports whether the node waits for a kick.
func (d *Doorbell) Sleeping() bool { return word(d.area, abi.DoorbellSleeping).Load() != 0 }

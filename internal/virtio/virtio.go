// SPDX-License-Identifier: Apache-2.0

// Package virtio is the device's side of virtqueues over shared memory.
//
// What comes in: ring addresses that a driver chose and, behind them, memory
// the driver writes at any moment; what goes out: elements as byte slices of
// that memory, used entries, and the answer to "must I notify". rdmadev and
// ethdev call it from the lane that owns the ring; nothing here is safe for
// concurrent use. It must never believe shared memory twice: an index, a
// descriptor and a length are read once, checked, and used from the copy.
//
// Only split rings exist today. Config speaks of the driver and the device
// area, State is the opaque ring state of vhost-user, and elements are opaque
// heads, so that packed rings can come without a change of the callers.
//
// Ordering (virtio 1.x, 2.7.13): the driver's index is loaded atomically
// before ring entries and descriptors; used entries and data are stored before
// the used index is; a suppression field is read only after an atomic store of
// the used index, which is a full barrier (XCHG on amd64, STLR before LDAR on
// arm64). Go's atomics on 32-bit words give all of that, 16-bit fields are
// read from the aligned word that holds them.
package virtio

import "fmt"

// Memory is the address space in which a driver's addresses are meant.
type Memory interface {
	// Prefix returns the bytes at gpa that are consecutive in this process,
	// at most n; empty where gpa is not mapped.
	Prefix(gpa, n uint64) []byte
}

// Fault is why a ring is broken; the driver's mistake, which ends its session.
// The names are those of the counters.
type Fault uint8

// Faults of a ring.
const (
	FaultNone       Fault = iota
	FaultSize             // ring size not a power of two between 1 and 32768
	FaultAlign            // misaligned ring
	FaultRingMemory       // ring not inside one region of announced memory
	FaultIndexJump        // more elements made available than the ring holds
	FaultHead             // head beyond the descriptor table
	FaultNext             // descriptor chain leaves its table
	FaultLoop             // chain longer than its table
	FaultDirection        // readable after writable, or the wrong kind of element
	FaultIndirect         // nested, empty, oversized or misshapen indirect table
	FaultAddress          // buffer outside announced memory
	FaultLength           // element larger than an element may be
)

var faultNames = [...]string{"none", "ring_size", "ring_align", "ring_memory", "ring_index_jump", "ring_head", "ring_next",
	"ring_loop", "ring_direction", "ring_indirect", "ring_address", "ring_length"}

// Name is the name of the counter.
func (f Fault) Name() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("ring_fault_%d", uint8(f))
}

func (f Fault) Error() string { return "broken ring: " + f.Name() }

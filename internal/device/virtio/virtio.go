// SPDX-License-Identifier: Apache-2.0

// Package virtio is the device's side of virtqueues over shared memory.
//
// What comes in: ring addresses that a driver chose and, behind them, memory that the driver may write
// at any moment; what goes out: elements as byte slices of that memory, used entries, and whether a
// notification is due. rdmadev and ethdev call it from the lane that owns the ring; nothing here is
// safe for concurrent use. It must never read a shared value twice: an index, a descriptor and a
// length are read once, checked, and used from the copy.
//
// Queue is a split ring, Packed a packed one; Ring is their common interface. RoCE rings are split:
// their lane calls Queue itself.
//
// Ordering (virtio 1.x, 2.7.13): the driver's index is loaded atomically before ring entries and
// descriptors; used entries and data are stored before the used index is; a suppression field is read
// only after an atomic store of the used index, which is a full barrier (XCHG on amd64, STLR before
// LDAR on arm64). Go's atomics on 32-bit words guarantee all of that; 16-bit fields are read from the
// aligned word that holds them. In a packed ring (2.8) the word of identifier and flags takes the
// place of both indices.
package virtio

import "fmt"

// Memory is the address space in which a driver's addresses are meant.
type Memory interface {
	// Prefix returns the bytes at gpa that are consecutive in this process,
	// at most n; empty where gpa is not mapped.
	Prefix(gpa, n uint64) []byte
}

// Log records which guest memory the device wrote, after the write. A migration may copy that memory
// at the same time. Calls come from the lane of the ring.
type Log interface {
	Dirty(gpa, n uint64)
}

// Ring is the device's side of a virtqueue of either format. It belongs to one
// lane.
type Ring interface {
	// Pop takes the next element; ok is false where there is none. An error is
	// a Fault: the ring is broken and gives no more.
	Pop(c *Chain) (ok bool, err error)
	// PushUsed gives an element back, n bytes of which were written; the driver
	// sees it after Publish.
	PushUsed(head uint16, n uint32)
	// Publish makes all used elements visible to the driver at once, and reports whether it enabled a
	// notification.
	Publish() (notify bool)
	// State is the ring state of vhost-user (GET_VRING_BASE): the first element
	// that is not used yet.
	State() uint32
}

// Kicks is the notification of a Ring by its driver, for devices that sleep. It belongs to the lane of the Ring.
type Kicks interface {
	// EnableKick enables a kick for the next element, and reports whether there is an element already,
	// for which none comes. An error is that of Pop.
	EnableKick() (pending bool, err error)
	// DisableKick suppresses kicks.
	DisableKick()
}

var (
	_ Ring  = (*Queue)(nil)
	_ Ring  = (*Packed)(nil)
	_ Kicks = (*Queue)(nil)
	_ Kicks = (*Packed)(nil)
)

// Open checks the addresses of a ring and returns it. An error is a Fault.
func Open(m Memory, c Config) (Ring, Kicks, error) {
	if c.Packed {
		q, err := NewPacked(m, c)
		if err != nil {
			return nil, nil, err
		}
		return q, q, nil
	}
	q, err := New(m, c)
	if err != nil {
		return nil, nil, err
	}
	return q, q, nil
}

// Check reports whether Open would accept c, without access to the ring.
func Check(m Memory, c Config) error {
	if c.Packed {
		q := Packed{mem: m}
		return q.place(c)
	}
	q := Queue{mem: m}
	return q.place(c)
}

// Fault is why a ring is broken; the driver's mistake, which ends its session.
// The names are those of the counters.
type Fault uint8

// Faults of a ring.
const (
	FaultNone       Fault = iota
	FaultSize             // ring size not between 1 and 32768, or a split one's no power of two
	FaultAlign            // misaligned ring
	FaultRingMemory       // ring not inside one region of announced memory
	FaultIndexJump        // more elements made available than the ring holds
	FaultHead             // head beyond the descriptor table, or an identifier that is out already
	FaultNext             // descriptor chain leaves its table
	FaultLoop             // chain longer than its table
	FaultDirection        // readable after writable, or the wrong kind of element
	FaultIndirect         // nested, empty, oversized or misshapen indirect table
	FaultAddress          // buffer outside announced memory
	FaultLength           // element larger than an element may be
)

var faultNames = [...]string{"none", "ring_size", "ring_align", "ring_memory", "ring_index_jump", "ring_head",
	"ring_next",
	"ring_loop", "ring_direction", "ring_indirect", "ring_address", "ring_length"}

// Name is the name of the counter.
func (f Fault) Name() string {
	if int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("ring_fault_%d", uint8(f))
}

// faultWords are the names of faults in messages.
var faultWords = [...]string{"no fault", "the number of its entries is not valid", "a part of it is not aligned",
	"a part of it is not in the memory of the client", "more elements are available than the ring has entries",
	"the available ring names a descriptor that does not exist, or is out already",
	"a chain of descriptors leaves its table", "a chain of descriptors is longer than its table",
	"a buffer is readable and should be writable, or the reverse", "an indirect table is not valid",
	"a buffer is not in the memory of the client", "an element is longer than an element may be"}

func (f Fault) Error() string {
	if int(f) < len(faultWords) {
		return faultWords[f]
	}
	return f.Name()
}

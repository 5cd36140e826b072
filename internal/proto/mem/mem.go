// SPDX-License-Identifier: Apache-2.0

// Package mem describes the memory of clients: address spaces, keyed windows
// on them, and batched copies between them.
//
// What comes in: addresses that clients and peers chose, already checked
// against a Region; what goes out: bytes moved. The package contains no system
// call and no pointer arithmetic: a Space does that (vhost maps guest memory,
// procmem reaches a process by address), and Slice is the plain one for tests
// and for built-in users.
package mem

import (
	"errors"
	"sync/atomic"

	"weft/internal/proto/ib"
)

// ErrFault is returned where memory is not accessible: unmapped, or its owner
// has gone.
var ErrFault = errors.New("memory not accessible")

// Space is an address space of one client. Implementations allow concurrent
// use from several lanes. Addresses have been checked against a Region, yet
// the memory may have vanished: every call can fail with ErrFault.
type Space interface {
	// View returns the n bytes at addr as one slice of this process, or nil if
	// they are not one contiguous mapping here.
	View(addr, n uint64) []byte
	// ReadV fills the slices of dst, one after the other, from consecutive
	// memory that starts at addr.
	ReadV(addr uint64, dst [][]byte) error
	// WriteV executes writes in order and returns how many were executed
	// whole; an error means that write number n failed.
	WriteV(w []Write) (n int, err error)
	// CompareSwap and FetchAdd execute one 8-byte atomic at an aligned
	// address on numbers in host byte order and return the original value.
	// They are atomic among all such calls of the node.
	CompareSwap(addr, compare, swap uint64) (uint64, error)
	FetchAdd(addr, add uint64) (uint64, error)
}

// Keeper is what a Space can implement besides, if its user is in this process: the user references bytes in place of
// a copy.
type Keeper interface {
	// Keep reports whether the user references the bytes of p for addr, which stay unchanged as stated
	// at Payload.Lasting; otherwise they must be written. The range has been checked as for WriteV.
	Keep(addr uint64, p []byte) bool
}

// Write is one write of a batch: Data goes to consecutive memory at Addr.
type Write struct {
	Addr uint64
	Data []byte
}

// Region is a checked, keyed window on a Space: what a memory key names. All
// fields are constant after registration.
type Region struct {
	Space  Space
	Start  uint64 // first I/O virtual address: what work requests and peers state
	Len    uint64
	Base   uint64 // address in Space of the byte at Start, where Pages is nil
	Access ib.Access
	LKey   ib.Key
	RKey   ib.Key
	// Pages lists, for registrations by page, the Space address of each page;
	// the byte at Start lies at offset FirstOff of page 0.
	Pages     []uint64
	PageShift uint8
	FirstOff  uint64

	revoked atomic.Bool
}

// Window returns a region that covers the n bytes at addr, without rights and
// keys. The range must have passed Allows.
func (r *Region) Window(addr, n uint64) *Region {
	off := addr - r.Start
	w := &Region{Space: r.Space, Start: addr, Len: n, Pages: r.Pages, PageShift: r.PageShift}
	if r.Pages == nil {
		w.Base = r.Base + off
	} else {
		w.FirstOff = r.FirstOff + off
	}
	return w
}

// Revoke ends the region: no later access through it succeeds. A lane that
// copies at this moment finishes that copy; package node waits for it.
func (r *Region) Revoke() { r.revoked.Store(true) }

// Revoked reports whether Revoke was called.
func (r *Region) Revoked() bool { return r.revoked.Load() }

// Allows reports whether [addr, addr+n) lies inside the region, without
// overflow, and every right of need is granted.
func (r *Region) Allows(addr, n uint64, need ib.Access) bool {
	return addr >= r.Start && n <= r.Len && addr-r.Start <= r.Len-n && r.Access&need == need && !r.revoked.Load()
}

// translate returns the Space address of the I/O virtual address addr and how
// many bytes from there are consecutive in Space, at most n.
func (r *Region) translate(addr, n uint64) (uint64, uint64) {
	off := addr - r.Start
	if r.Pages == nil {
		return r.Base + off, n
	}
	off += r.FirstOff
	size := uint64(1) << r.PageShift
	i, in := off>>r.PageShift, off&(size-1)
	a, c := r.Pages[i]+in, size-in
	for c < n && r.Pages[i+1] == r.Pages[i]+size {
		i, c = i+1, c+size
	}
	return a, min(n, c)
}

// View returns the bytes at [addr, addr+n) if they are directly addressable
// as one slice, else nil. The range must have passed Allows.
func (r *Region) View(addr, n uint64) []byte {
	if r.revoked.Load() {
		return nil
	}
	a, c := r.translate(addr, n)
	if c < n {
		return nil
	}
	return r.Space.View(a, n)
}

// chunk returns the first bytes at [addr, addr+n), n > 0, that are consecutive in Space, if they are directly
// addressable; else nil. The range must have passed Allows.
func (r *Region) chunk(addr, n uint64) []byte {
	if r.revoked.Load() {
		return nil
	}
	return r.Space.View(r.translate(addr, n))
}

// keep reports whether the user of the region's memory takes p, which lasts, from where it is. The range must have
// passed Allows.
func (r *Region) keep(addr uint64, p []byte) bool {
	k, ok := r.Space.(Keeper)
	return ok && r.Pages == nil && !r.revoked.Load() && k.Keep(r.Base+addr-r.Start, p)
}

// ReadV fills the slices of dst in order from memory at addr. The range must
// have passed Allows.
func (r *Region) ReadV(addr uint64, dst [][]byte) error {
	if r.revoked.Load() {
		return ErrFault
	}
	if r.Pages == nil {
		return r.Space.ReadV(r.Base+addr-r.Start, dst)
	}
	var one [1][]byte
	for _, d := range dst {
		for len(d) > 0 {
			a, c := r.translate(addr, uint64(len(d)))
			one[0] = d[:c]
			if err := r.Space.ReadV(a, one[:]); err != nil {
				return err
			}
			d, addr = d[c:], addr+c
		}
	}
	return nil
}

// CompareSwap executes an atomic on the 8 bytes at addr; the range must have
// passed Allows and be aligned.
func (r *Region) CompareSwap(addr, compare, swap uint64) (uint64, error) {
	a, err := r.atomicAddr(addr)
	if err != nil {
		return 0, err
	}
	return r.Space.CompareSwap(a, compare, swap)
}

// FetchAdd executes an atomic on the 8 bytes at addr; the range must have
// passed Allows and be aligned.
func (r *Region) FetchAdd(addr, add uint64) (uint64, error) {
	a, err := r.atomicAddr(addr)
	if err != nil {
		return 0, err
	}
	return r.Space.FetchAdd(a, add)
}

func (r *Region) atomicAddr(addr uint64) (uint64, error) {
	a, c := r.translate(addr, 8)
	if r.revoked.Load() || c < 8 || a&7 != 0 {
		return 0, ErrFault
	}
	return a, nil
}

// Seg is one piece of a message: a range of a Region, or bytes (inline data,
// which lie in the sender's ring slot).
type Seg struct {
	Region *Region
	Addr   uint64 // I/O virtual address in Region
	Len    uint64
	Bytes  []byte // instead of Region
}

// Payload is the payload of a burst: bytes, or a range of a gather list of registered memory. The list
// belongs to a work request that stays outstanding while the payload is in use.
type Payload struct {
	Bytes []byte // payload at hand; then Segs is nil
	// Lasting means that Bytes stay unchanged until the next receive call of their link: a Keeper may
	// then reference them.
	Lasting bool
	Segs    []Seg  // else the whole gather list …
	Off     uint64 // … of which the payload starts here
	Len     int    // payload bytes in either form
}

// BytesPayload returns a payload at hand.
func BytesPayload(b []byte) Payload { return Payload{Bytes: b, Len: len(b)} }

// ListPayload returns the n bytes at offset off of a gather list.
func ListPayload(segs []Seg, off uint64, n int) Payload { return Payload{Segs: segs, Off: off, Len: n} }

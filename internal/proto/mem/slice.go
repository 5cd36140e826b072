// SPDX-License-Identifier: Apache-2.0

package mem

import (
	"encoding/binary"
	"sync"
)

// Slice is the plain Space: one slice of this process; its first byte has the address base. It serves
// tests and users inside the node.
//
// Its atomics exclude each other, not the copies of View, ReadV and WriteV; like those of any adapter
// they are ordered with copies only by completions.
type Slice struct {
	mu   sync.Mutex // orders the atomics; plain Go has none on bytes
	base uint64
	b    []byte
}

var _ Space = (*Slice)(nil)

// NewSlice returns the Space of b at address base. It keeps b.
func NewSlice(base uint64, b []byte) *Slice { return &Slice{base: base, b: b} }

// View returns the n bytes at addr, or nil if they are not all inside.
func (s *Slice) View(addr, n uint64) []byte {
	off, size := addr-s.base, uint64(len(s.b))
	if addr < s.base || off > size || n > size-off {
		return nil
	}
	return s.b[off : off+n : off+n]
}

// ReadV implements Space.
func (s *Slice) ReadV(addr uint64, dst [][]byte) error {
	for _, d := range dst {
		v := s.View(addr, uint64(len(d)))
		if v == nil {
			return ErrFault
		}
		copy(d, v)
		addr += uint64(len(d))
	}
	return nil
}

// WriteV implements Space.
func (s *Slice) WriteV(w []Write) (int, error) {
	for i := range w {
		v := s.View(w[i].Addr, uint64(len(w[i].Data)))
		if v == nil {
			return i, ErrFault
		}
		copy(v, w[i].Data)
	}
	return len(w), nil
}

// CompareSwap implements Space.
func (s *Slice) CompareSwap(addr, compare, swap uint64) (uint64, error) {
	v := s.word(addr)
	if v == nil {
		return 0, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := binary.NativeEndian.Uint64(v)
	if old == compare {
		binary.NativeEndian.PutUint64(v, swap)
	}
	return old, nil
}

// FetchAdd implements Space.
func (s *Slice) FetchAdd(addr, add uint64) (uint64, error) {
	v := s.word(addr)
	if v == nil {
		return 0, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := binary.NativeEndian.Uint64(v)
	binary.NativeEndian.PutUint64(v, old+add)
	return old, nil
}

func (s *Slice) word(addr uint64) []byte {
	if addr&7 != 0 {
		return nil
	}
	return s.View(addr, 8)
}

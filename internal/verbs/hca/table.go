// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"crypto/rand"
	"encoding/binary"
	"syscall"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// table holds objects by handle. Handles are given out in turn, so that one
// comes back only after all others: a stale handle names nothing for long.
type table[T any] struct {
	first, limit uint32 // handles are first … first+limit-1
	next         uint32 // offset of the next candidate
	outside      uint32 // objects with handles below first (put)
	m            map[uint32]T
}

func newTable[T any](first, limit uint32) table[T] {
	return table[T]{first: first, limit: limit, m: make(map[uint32]T)}
}

func (t *table[T]) add(v T) (uint32, error) {
	if uint32(len(t.m))-t.outside >= t.limit {
		return 0, syscall.ENOSPC
	}
	for {
		h := t.first + t.next
		t.next = (t.next + 1) % t.limit
		if _, used := t.m[h]; !used {
			t.m[h] = v
			return h, nil
		}
	}
}

// begin makes the next search for a free handle start at an offset.
func (t *table[T]) begin(next uint32) {
	if t.limit > 0 {
		t.next = next % t.limit
	}
}

// put enters an object with a handle below first, which add never assigns.
func (t *table[T]) put(h uint32, v T) error {
	if _, used := t.m[h]; used {
		return syscall.EBUSY
	}
	t.m[h] = v
	t.outside++
	return nil
}

func (t *table[T]) get(h uint32) (T, error) {
	v, ok := t.m[h]
	if !ok {
		return v, syscall.ENOENT
	}
	return v, nil
}

func (t *table[T]) del(h uint32) {
	if h < t.first {
		t.outside--
	}
	delete(t.m, h)
}

// keySource draws memory keys from the system's cryptographic source, many at
// a time: every bit of a key is unpredictable.
type keySource struct {
	buf [256]byte
	n   int
}

func (k *keySource) draw() ib.Key {
	if k.n < 4 {
		rand.Read(k.buf[:]) // never fails (crypto/rand)
		k.n = len(k.buf)
	}
	k.n -= 4
	return ib.Key(binary.LittleEndian.Uint32(k.buf[k.n:]))
}

// A key is an index of 24 bits, which is its object's for good, and eight bits
// that the owner of a window or of a region registered by request may change
// with what it means (IBA volume 1, 10.6.3.3).
const tagBits = 8

func index(k ib.Key) uint32 { return uint32(k) >> tagBits }

// newKey returns a key with an index that is neither used nor zero.
func (s *Session) newKey() ib.Key {
	for {
		k := s.keySrc.draw()
		if _, used := s.keys[index(k)]; index(k) != 0 && !used {
			return k
		}
	}
}

// mr is what a key names: a memory region, or a window on one.
type mr struct {
	region *mem.Region // what the key means now; revoked where it means nothing
	key    ib.Key
	pd     *pd
	handle uint32
	kind   mrKind
	// Of a region: how many windows are bound to it, and how many pages it may
	// have where it is registered by request.
	windows  int
	maxPages uint32
	// Of a bound window: its region, and the queue pair that bound it, where it
	// is good for that one alone.
	on *mr
	qp *QP
}

type mrKind uint8

const (
	plain   mrKind = iota // a region registered by command
	fastReg               // a region registered by request
	window1               // a window bound for its domain
	window2               // a window bound for a queue pair
)

type pd struct {
	handle uint32
	refs   int
}

type ah struct {
	pd   *pd
	path *ib.Path
	attr AHAttr // as it was stated
}

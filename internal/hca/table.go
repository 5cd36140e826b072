// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"crypto/rand"
	"encoding/binary"
	"syscall"

	"weft/internal/ib"
	"weft/internal/mem"
)

// table holds objects by handle. Handles are given out in turn, so that one
// comes back only after all others: a stale handle names nothing for long.
type table[T any] struct {
	first, limit uint32 // handles are first … first+limit-1
	next         uint32 // offset of the next candidate
	m            map[uint32]T
}

func newTable[T any](first, limit uint32) table[T] {
	return table[T]{first: first, limit: limit, m: make(map[uint32]T)}
}

func (t *table[T]) add(v T) (uint32, error) {
	if uint32(len(t.m)) >= t.limit {
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

func (t *table[T]) get(h uint32) (T, error) {
	v, ok := t.m[h]
	if !ok {
		return v, syscall.ENOENT
	}
	return v, nil
}

func (t *table[T]) del(h uint32) { delete(t.m, h) }

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

// newKey returns an unused non-zero key.
func (s *Session) newKey() ib.Key {
	for {
		k := s.keySrc.draw()
		if _, used := s.keys[k]; k != 0 && !used {
			return k
		}
	}
}

// mr is a memory region object: a Region and the handles around it.
type mr struct {
	region *mem.Region
	pd     *pd
	handle uint32
}

type pd struct {
	handle uint32
	refs   int
}

type ah struct {
	pd   *pd
	path *ib.Path
	attr AHAttr // as it was stated
}

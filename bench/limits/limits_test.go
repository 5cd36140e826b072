// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"fmt"
	"testing"
)

// BenchmarkCopy copies between two buffers of 64 MiB in pieces of one size,
// so that small pieces come from the cache no more than in a real transfer.
func BenchmarkCopy(b *testing.B) {
	src, dst := make([]byte, 64<<20), make([]byte, 64<<20)
	for i := range src {
		src[i] = byte(i)
	}
	for _, size := range []int{64, 1 << 10, 8 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			off := 0
			for b.Loop() {
				copy(dst[off:off+size], src[off:off+size])
				if off += size; off+size > len(src) {
					off = 0
				}
			}
		})
	}
}

// BenchmarkCopyCached copies the same two buffers of one size again and
// again, as a bandwidth test of one buffer does.
func BenchmarkCopyCached(b *testing.B) {
	for _, size := range []int{64, 1 << 10, 8 << 10, 64 << 10, 1 << 20} {
		src, dst := make([]byte, size), make([]byte, size)
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

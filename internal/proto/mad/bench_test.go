// SPDX-License-Identifier: Apache-2.0

package mad

import "testing"

// BenchmarkCodecs parses and appends each structure once per round.
func BenchmarkCodecs(b *testing.B) {
	for _, l := range layouts {
		b.Run(l.name, func(b *testing.B) {
			in, buf, c := make([]byte, OPALen), make([]byte, 0, 2*OPALen), l.new()
			b.SetBytes(int64(len(l.mask)))
			b.ReportAllocs()
			for b.Loop() {
				if c.Parse(in) != nil {
					b.Fatal("refused")
				}
				buf = c.Append(buf[:0])
			}
		})
	}
}

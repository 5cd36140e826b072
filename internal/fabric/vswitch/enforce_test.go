// SPDX-License-Identifier: Apache-2.0

package vswitch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"weft/internal/proto/ib"
)

// enforcing is a switch with an enforcing port 1, and port 2 as the way to LID 2.
func enforcing(keys []ib.PKey) *Builder {
	b := NewBuilder(4)
	b.SetPort(1, Port{State: ib.PortActive, EnforceIn: true, EnforceOut: true, PKeys: keys})
	b.SetPort(2, Port{State: ib.PortActive})
	b.SetEntry(1, 1)
	b.SetEntry(2, 2)
	b.SetGlobals(Globals{LinearTop: 2})
	return b
}

// TestManyKeys compares the tables of all sizes with the rules, entry by entry.
func TestManyKeys(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	for n := range 300 {
		var keys []ib.PKey
		for range n {
			k := ib.PKey(rng.IntN(400)) | ib.PKey(rng.IntN(2))<<15
			keys = append(keys, k, 0)[:len(keys)+1+rng.IntN(2)]
		}
		given := slices.Clone(keys)
		s := enforcing(keys).Snapshot()
		if !slices.Equal(keys, given) {
			t.Fatal("SetPort changed the keys of its caller")
		}
		for base := range ib.PKey(402) {
			for _, key := range []ib.PKey{base, base | 0x8000} {
				in := base != 0 && (slices.Contains(keys, key) || slices.Contains(keys, key|0x8000))
				out := slices.ContainsFunc(keys, key.Match)
				if _, why := s.Unicast(1, 2, key); (why == OK) != in || why != OK && why != PKeyIn {
					t.Fatalf("%#04x enters: %v, table %#04x", key, why, keys)
				}
				if _, why := s.Unicast(2, 1, key); (why == OK) != out || why != OK && why != PKeyOut {
					t.Fatalf("%#04x leaves: %v, table %#04x", key, why, keys)
				}
			}
		}
	}
}

// BenchmarkEnforce forwards a packet of an enforcing port with the last of its keys.
func BenchmarkEnforce(b *testing.B) {
	for _, n := range []int{0, 1, 8, 64, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			keys := make([]ib.PKey, max(n, 1))
			for i := range keys {
				keys[i] = ib.PKey(0x8001 + 7*i)
			}
			key := keys[len(keys)-1]
			e := enforcing(keys)
			if n == 0 {
				e.SetPort(1, Port{State: ib.PortActive})
			}
			s := e.Snapshot()
			b.ReportAllocs()
			for b.Loop() {
				if _, why := s.Unicast(1, 2, key); why != OK {
					b.Fatal(why)
				}
			}
		})
	}
}

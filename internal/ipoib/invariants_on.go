// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package ipoib

// invariants has memory spoiled whose owner has given it away: packets that
// were delivered, send slots that are free, receive slots that are posted.
const invariants = true

func spoil(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

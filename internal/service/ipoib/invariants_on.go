// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package ipoib

// invariants has memory spoiled whose owner has given it away: packets that
// were delivered, send slots that are free, receive slots that are posted.
const invariants = true

var spoilt = [...]byte{recvSlotLen - 1: 0xdb}

func init() {
	for i := range spoilt {
		spoilt[i] = 0xdb
	}
}

func spoil(b []byte) { copy(b, spoilt[:]) }

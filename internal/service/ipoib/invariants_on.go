// SPDX-License-Identifier: Apache-2.0

//go:build invariants

package ipoib

// invariants overwrites memory that its owner has released: delivered packets, free send slots, posted receive slots.
// It also makes transitions panic that do not occur.
const invariants = true

var spoilt = [...]byte{recvSlotLen - 1: 0xdb}

func init() {
	for i := range spoilt {
		spoilt[i] = 0xdb
	}
}

func spoil(b []byte) { copy(b, spoilt[:]) }

// SPDX-License-Identifier: Apache-2.0

package neigh

import "weft/internal/proto/mono"

// subject is what a timer belongs to: a neighbour, an own address, or, where neither is set, the engine.
type subject struct {
	entry *entry
	addr  *address
}

type (
	timer  = mono.Timer[subject]
	timers = mono.Heap[subject]
)

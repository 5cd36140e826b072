// SPDX-License-Identifier: Apache-2.0

package ipoib

import "weft/internal/proto/mono"

// timer calls a function at its deadline.
type timer = mono.Timer[func(now mono.Time)]

// timers are the timers of a link that are set.
type timers struct{ mono.Heap[func(now mono.Time)] }

// run calls the functions of timers that are due. A timer that such a function sets is left for the next run.
func (q *timers) run(now mono.Time) { q.Run(now, func(fire func(mono.Time)) { fire(now) }) }

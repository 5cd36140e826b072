// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"weft/internal/control/api"
	"weft/internal/node/lane"
)

// endPatience is for how long a node that ends waits for a stuck lane.
const endPatience = 5 * time.Second

// watchLanes runs until ctx ends. It finds lanes that wait in a copy from or to the memory of a process, which may take
// forever (docs/notes/process-memory.md), and ends the session of that process.
func (n *Node) watchLanes(ctx context.Context) {
	t := time.NewTicker(lane.WatchPeriod)
	defer t.Stop()
	w := n.sessions.NewWatchdog(time.Time{})
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			w.Check(time.Now())
		}
	}
}

// heldUp reports, once ctx has ended, that lanes which are stuck keep the node from its end: only the end of the
// process frees them.
func (n *Node) heldUp(ctx context.Context, over <-chan struct{}) <-chan error {
	held := make(chan error, 1)
	go func() {
		select {
		case <-over:
			return
		case <-ctx.Done():
		}
		t := time.NewTicker(lane.WatchPeriod)
		defer t.Stop()
		end := time.Now().Add(endPatience)
		w := n.sessions.NewWatchdog(time.Now())
		for {
			select {
			case <-over:
				return
			case <-t.C:
			}
			if now := time.Now(); w.Check(now) && now.After(end) {
				held <- &api.Error{Code: api.CodeInternal, What: "the node ends without its lanes",
					Why: n.sessions.StuckReason(),
					Fix: "end what serves the memory of that program: a file system in user space, or a handler of page faults"}
				return
			}
		}
	}()
	return held
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"weft/internal/control/api"
	"weft/internal/device/vhost"
	"weft/internal/node/lane"
)

// A copy from or to the memory of a process waits for whoever serves the page:
// a file system in user space or a handler of page faults may take for ever, and
// the lane with it (docs/notes/process-memory.md). The watchdog notices, ends
// the session, and lets people ask the node all the same.
//
// endPatience is for how long a node that ends waits for a stuck lane.
const endPatience = 5 * time.Second

var errMemoryStuck = fmt.Errorf("a copy from or to its memory has not ended after %v", lane.StuckAfter)

// sample is what a process's memory looked like, and since when.
type sample struct {
	ended uint64
	since time.Time
}

// watchLanes runs until ctx ends.
func (n *Node) watchLanes(ctx context.Context) {
	t := time.NewTicker(lane.WatchPeriod)
	defer t.Stop()
	probed := make([]time.Time, len(n.lanes.All()))
	copies := make(map[*door]sample)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		for i, l := range n.lanes.All() {
			probed[i] = l.Check(now, probed[i])
		}
		n.checkCopies(now, copies)
	}
}

// heldUp tells, once ctx has ended, that lanes which are stuck keep the node
// from its end: nothing but the end of the process frees them.
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
		asked := make([]time.Time, len(n.lanes.All()))
		for i := range asked {
			asked[i] = time.Now()
		}
		copies := make(map[*door]sample)
		for {
			select {
			case <-over:
				return
			case <-t.C:
			}
			n.checkCopies(time.Now(), copies)
			stuck := false
			for i, l := range n.lanes.All() {
				asked[i] = l.Check(time.Now(), asked[i])
				stuck = stuck || l.Stuck() && !l.Ended()
			}
			if stuck && time.Now().After(end) {
				held <- &api.Error{Code: api.CodeInternal, What: "the node ends without its lanes", Why: n.culprits(), Fix: "end what serves the memory of that program: a file system in user space, or a handler of page faults"}
				return
			}
		}
	}()
	return held
}

// culprits says what a lane waits for.
func (n *Node) culprits() string {
	var who []string
	for _, d := range n.snapshot() {
		if d.waits.Load() {
			who = append(who, fmt.Sprintf("%s (pid %d)", d.comm, d.pid))
		}
	}
	if who == nil {
		return fmt.Sprintf("a lane has given no sign of life for %v", lane.StuckAfter)
	}
	return fmt.Sprintf("a copy from or to the memory of %s has not ended", strings.Join(who, ", "))
}

// checkCopies ends the sessions whose memory a copy waits for.
func (n *Node) checkCopies(now time.Time, copies map[*door]sample) {
	n.mu.Lock()
	doors := n.doors()
	n.mu.Unlock()
	seen := make(map[*door]bool, len(doors))
	for _, d := range doors {
		p := d.process()
		if p == nil {
			continue
		}
		seen[d] = true
		ended, busy := p.Calls()
		s, known := copies[d]
		switch {
		case !known || !busy || ended != s.ended:
			copies[d] = sample{ended, now}
			d.waits.Store(false)
		case now.Sub(s.since) >= lane.StuckAfter && !d.waits.Swap(true):
			d.s.Fail(vhost.StuckMemory, errMemoryStuck)
		}
	}
	for d := range copies {
		if !seen[d] {
			delete(copies, d)
		}
	}
}

// stuck lists what waits, for people.
func (n *Node) stuck() (list []api.Degraded) {
	for _, d := range n.snapshot() {
		if d.waits.Load() {
			list = append(list, api.Degraded{What: "stuck_memory", Why: fmt.Sprintf("%s (pid %d): %v", d.comm, d.pid, errMemoryStuck),
				Fix: fmt.Sprintf("kill -9 %d, and end what serves its memory: a file system in user space, or a handler of page faults", d.pid)})
		}
	}
	for i, l := range n.lanes.All() {
		if l.Stuck() {
			list = append(list, api.Degraded{What: "stuck_lane", Why: fmt.Sprintf("lane %d and its sessions stand still: %v, or for a processor", i, lane.ErrStuck),
				Fix: "see stuck_memory; else give the node a processor"})
		}
	}
	return list
}

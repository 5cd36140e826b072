// SPDX-License-Identifier: Apache-2.0

package loop

import "sync"

// Worker calls functions one after the other on a goroutine that exists only while there are some:
// for work that may block, such as a change of an interface. Functions may post others.
type Worker struct {
	group *sync.WaitGroup

	mu   sync.Mutex // guards what follows
	todo []func()
	busy bool
}

// NewWorker returns a Worker with a goroutine that counts in group, so that its owner can wait for it.
func NewWorker(group *sync.WaitGroup) *Worker { return &Worker{group: group} }

// Post has f called after the functions posted before. It never blocks.
func (w *Worker) Post(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.todo = append(w.todo, f)
	if w.busy {
		return
	}
	w.busy = true
	w.group.Go(w.run)
}

// Wait returns when all functions posted before have returned.
func (w *Worker) Wait() {
	done := make(chan struct{})
	w.Post(func() { close(done) })
	<-done
}

func (w *Worker) run() {
	for {
		w.mu.Lock()
		list := w.todo
		w.todo = nil
		w.busy = len(list) > 0
		w.mu.Unlock()
		if len(list) == 0 {
			return
		}
		for _, f := range list {
			f()
		}
	}
}

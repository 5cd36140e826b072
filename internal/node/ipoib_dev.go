// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"weft/internal/ipoib"
	"weft/internal/mono"
)

// ipoibFeed is the way of packets from a back end to the lane of a link: a few
// batches of buffers, which a reader fills while the lane sends another.
type ipoibFeed struct {
	free, full chan *ipoibBatch
	waiting    atomic.Int32 // batches in full
	wake       func()       // rouses the lane

	// The lane's.
	current *ipoibBatch // partly sent
	held    bool        // the link takes nothing until Device.Wake
	from    polled      // nil: a reader fills batches
	empty   mono.Time   // when nothing was there to read last
	lost    func(error) // the back end has failed; it ends polling
}

// ipoibBatch is packets of one read: frames[next:n] are still to be sent.
type ipoibBatch struct {
	bufs   [][]byte // whole buffers
	frames [][]byte // headroom and packet
	sizes  []int
	hops   []netip.Addr
	n      int
	next   int
}

const (
	// feedBatches is how many batches are under way: one that fills, one that
	// is sent, and one that waits.
	feedBatches = 4
	// feedMTU is the longest packet: that of an MTU of 4096.
	feedMTU = 4096 - 4
	// feedTail is room behind each packet, which the link's engine may use.
	feedTail = 64
)

// newFeed returns a feed of batches of count packets.
func newFeed(count int, wake func()) *ipoibFeed {
	f := &ipoibFeed{free: make(chan *ipoibBatch, feedBatches), full: make(chan *ipoibBatch, feedBatches), wake: wake}
	const size = (ipoib.Headroom + feedMTU + feedTail + 63) &^ 63
	for range feedBatches {
		b := &ipoibBatch{bufs: make([][]byte, count), frames: make([][]byte, count), sizes: make([]int, count), hops: make([]netip.Addr, count)}
		all := make([]byte, count*size)
		for i := range b.bufs {
			b.bufs[i] = all[i*size : (i+1)*size : (i+1)*size]
		}
		f.free <- b
	}
	return f
}

// read moves packets from the back end into the feed until the back end ends, and returns
// why it did. It has a goroutine of its own.
func (f *ipoibFeed) read(from ipoib.Backend, end <-chan struct{}) error {
	for {
		var b *ipoibBatch
		select {
		case b = <-f.free:
		case <-end:
			return nil
		}
		n, err := from.ReadBatch(b.bufs, b.sizes, b.hops, ipoib.Headroom)
		if err != nil {
			return err
		}
		b.fill(n)
		f.waiting.Add(1)
		f.full <- b // there is room for all batches
		f.wake()
	}
}

// polled is a back end that a lane can read by itself, without anybody between: each
// packet wakes it directly.
type polled interface {
	ipoib.Backend
	// TryReadBatch is ReadBatch that does not wait.
	TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, err error)
	// Control calls f with a descriptor that is readable while packets wait.
	Control(f func(fd int) error) error
}

// poll reads what waits at a back end that no reader serves, and reports whether
// that was anything. It is called on the lane.
func (f *ipoibFeed) poll(now mono.Time) bool {
	if f.from == nil || f.held || f.current != nil || now.Sub(f.empty) < recvPause {
		return false
	}
	select {
	case b := <-f.free:
		n, err := f.from.TryReadBatch(b.bufs, b.sizes, b.hops, ipoib.Headroom)
		if n == 0 {
			f.free <- b
			if f.empty = now; err != nil {
				f.lost(err)
			}
			return false
		}
		b.fill(n)
		f.current = b
		return true
	default:
		return false
	}
}

// fill notes that n packets were read.
func (b *ipoibBatch) fill(n int) {
	for i := range n {
		b.frames[i] = b.bufs[i][:ipoib.Headroom+b.sizes[i]]
	}
	b.n, b.next = n, 0
}

// send gives the link what was read, as far as it takes it, and reports
// whether there was anything. It is called on the lane.
func (f *ipoibFeed) send(now mono.Time, link packetSink) (busy bool) {
	for !f.held {
		if f.current == nil && !f.poll(now) {
			if f.waiting.Load() == 0 {
				return busy
			}
			f.current = <-f.full
			f.waiting.Add(-1)
		}
		b := f.current
		b.next += link.SendBatch(now, b.frames[b.next:b.n], b.hops[b.next:b.n])
		if busy = true; b.next < b.n {
			f.held = true
			return busy
		}
		f.current = nil
		f.free <- b
	}
	return busy
}

// packetSink is the link as the feed sees it.
type packetSink interface {
	SendBatch(now mono.Time, frames [][]byte, hops []netip.Addr) int
}

// ready reports whether the lane has something to send.
func (f *ipoibFeed) ready() bool { return !f.held && (f.current != nil || f.waiting.Load() > 0) }

// ordered runs functions one after the other on a goroutine of its own: what a
// lane has done elsewhere, because it may wait.
type ordered struct {
	mu   sync.Mutex // guards what follows
	todo []func()
	busy bool
	wg   *sync.WaitGroup
}

// post has f run after those before it. It never waits.
func (o *ordered) post(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.todo = append(o.todo, f)
	if o.busy {
		return
	}
	o.busy = true
	o.wg.Go(func() {
		for {
			o.mu.Lock()
			list := o.todo
			o.todo = nil
			if len(list) == 0 {
				o.busy = false
				o.mu.Unlock()
				return
			}
			o.mu.Unlock()
			for _, f := range list {
				f()
			}
		}
	})
}

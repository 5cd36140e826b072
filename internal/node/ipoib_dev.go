// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
)

// ipoibFeed is the way of packets from a back end to the lane of a link: a few
// batches of buffers, which a reader fills while the lane sends another. The buffers are
// registered memory, out of which the adapter sends.
type ipoibFeed struct {
	batches    []*ipoibBatch
	buffer     int // length of each
	free, full chan *ipoibBatch
	waiting    atomic.Int32 // batches in full
	wake       func()       // rouses the lane

	// The lane's.
	current *ipoibBatch // partly sent
	lending int         // where in current the next frame to be lent is expected
	kept    int         // batches with lent frames
	most    int         // of them
	held    bool        // the link takes nothing until Device.Wake
	warm    *ipoibBatch // the free one that was used last: in the processor's cache. Only where there is no reader
	from    polled      // nil: a reader fills batches
	heard   bool        // from may have something
	lost    func(error) // the back end has failed; it ends polling
}

// ipoibBatch is packets of one read: frames[next:n] are still to be sent.
type ipoibBatch struct {
	mem    []byte   // buffer i begins at i*feed.buffer
	bufs   [][]byte // whole buffers
	frames [][]byte // headroom and packet
	sizes  []int
	hops   []netip.Addr
	n      int
	next   int
	lent   int  // frames that the adapter sends from where they are
	sent   bool // all of it, but for what is lent
}

const (
	// feedBatches is how many batches are under way: one that fills, one that
	// is sent, and some that the adapter sends.
	feedBatches = 4
	// feedPackets is how many packets a batch has room for.
	feedPackets = ipoib.BatchSize
	// feedMTU is the longest packet: that of an MTU of 4096.
	feedMTU = 4096 - 4
	// feedTail is room behind each packet, which the link's engine may use.
	feedTail = 64
	// longBatches is how many batches there are of packets of connected mode, which wait longer for their acknowledgements
	// than datagrams for being sent.
	longBatches = 2 * feedBatches
	// longLent is how many of them may have lent frames: a peer that acknowledges nothing keeps those, and what is read into
	// the others is copied.
	longLent = longBatches - 3
)

// feedBuffer is the length of a buffer for packets of an MTU, feedMem that of all.
func feedBuffer(mtu int) int { return (ipoib.Headroom + mtu + feedTail + 63) &^ 63 }
func feedMem(mtu int) int    { return batchesOf(mtu) * feedPackets * feedBuffer(mtu) }

// batchesOf is how many batches a feed for packets of an MTU has.
func batchesOf(mtu int) int {
	if mtu > feedMTU {
		return longBatches
	}
	return feedBatches
}

// newFeed returns a feed for packets of an MTU at most in mem, of length feedMem. It begins with reset.
func newFeed(mem []byte, mtu int) *ipoibFeed {
	f := &ipoibFeed{buffer: feedBuffer(mtu), most: feedBatches}
	if mtu > feedMTU {
		f.most = longLent
	}
	for range batchesOf(mtu) {
		b := &ipoibBatch{mem: mem[:feedPackets*f.buffer], bufs: make([][]byte, feedPackets), frames: make([][]byte, feedPackets), sizes: make([]int, feedPackets),
			hops: make([]netip.Addr, feedPackets)}
		for i := range b.bufs {
			b.bufs[i] = mem[i*f.buffer : (i+1)*f.buffer : (i+1)*f.buffer]
		}
		mem = mem[len(b.mem):]
		f.batches = append(f.batches, b)
	}
	return f
}

// reset begins anew, for another back end. What was read is forgotten; what is lent
// stays so.
func (f *ipoibFeed) reset(wake func()) {
	n := len(f.batches)
	*f = ipoibFeed{batches: f.batches, buffer: f.buffer, kept: f.kept, most: f.most, free: make(chan *ipoibBatch, n), full: make(chan *ipoibBatch, n), wake: wake}
	for _, b := range f.batches {
		b.n, b.sent = 0, true
		f.recycle(b)
	}
}

// lend finds where in the feed's memory a frame lies that SendBatch was given, and keeps
// its batch until returned is called with that; false where frame is another's, or too many batches are kept.
func (f *ipoibFeed) lend(frame []byte) (at int, ok bool) {
	b := f.current
	if b == nil || b.lent == 0 && f.kept >= f.most {
		return 0, false
	}
	for i := f.lending; i < b.n; i++ {
		if &b.mem[i*f.buffer] == &frame[0] {
			f.lending = i + 1
			if b.lent++; b.lent == 1 {
				f.kept++
			}
			return (slices.Index(f.batches, b)*feedPackets + i) * f.buffer, true
		}
	}
	return 0, false
}

// returned ends what lend began.
func (f *ipoibFeed) returned(at int) {
	b := f.batches[at/(feedPackets*f.buffer)]
	if b.lent--; b.lent == 0 {
		f.kept--
	}
	f.recycle(b)
}

// recycle gives a batch back of which nothing is needed any longer.
func (f *ipoibFeed) recycle(b *ipoibBatch) {
	if !b.sent || b.lent != 0 {
		return
	}
	b.sent = false
	if f.from != nil {
		b, f.warm = f.warm, b
	}
	if b != nil {
		f.free <- b
	}
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
	// TryReadBatch is ReadBatch that does not wait. more tells that it left
	// something.
	TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, more bool, err error)
	// Control calls f with a descriptor that is readable while packets wait.
	Control(f func(fd int) error) error
}

// poll reads what waits at a back end that no reader serves, and reports whether
// that was anything. It is called on the lane.
func (f *ipoibFeed) poll() bool {
	if !f.heard || f.from == nil || f.held || f.current != nil {
		return false
	}
	b := f.warm
	if f.warm = nil; b == nil {
		select {
		case b = <-f.free:
		default:
			return false
		}
	}
	n, more, err := f.from.TryReadBatch(b.bufs, b.sizes, b.hops, ipoib.Headroom)
	f.heard = more
	if n == 0 {
		if f.warm = b; err != nil {
			f.lost(err)
		}
		return false
	}
	b.fill(n)
	f.current = b
	return true
}

// fill notes that n packets were read.
func (b *ipoibBatch) fill(n int) {
	for i := range n {
		b.frames[i] = b.bufs[i][:ipoib.Headroom+b.sizes[i]]
	}
	b.n, b.next = n, 0
}

// send gives the link what was read, as far as it takes it, and reports
// whether there was anything. It is called on the lane, which it leaves to others after
// feedBatches batches: a link that drops all it is given never has enough.
func (f *ipoibFeed) send(now mono.Time, link packetSink) (busy bool) {
	for range feedBatches {
		if f.held {
			break
		}
		if f.current == nil && !f.poll() {
			if f.waiting.Load() == 0 {
				return busy
			}
			f.current = <-f.full
			f.waiting.Add(-1)
		}
		b := f.current
		f.lending = b.next
		b.next += link.SendBatch(now, b.frames[b.next:b.n], b.hops[b.next:b.n])
		if busy = true; b.next < b.n {
			f.held = true
			return busy
		}
		f.current, b.sent = nil, true
		f.recycle(b)
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

// wait returns when all that was posted has run.
func (o *ordered) wait() {
	done := make(chan struct{})
	o.post(func() { close(done) })
	<-done
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

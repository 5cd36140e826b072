// SPDX-License-Identifier: Apache-2.0

package ipif

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"weft/internal/proto/mono"
	"weft/internal/service/ipoib"
)

// feed carries packets from a device to the lane of a link: a few batches of buffers. A reader, or the lane
// itself, fills one while the lane sends another. The buffers are registered memory, from which the adapter
// sends.
type feed struct {
	batches    []*batch
	buffer     int // length of each
	free, full chan *batch
	waiting    atomic.Int32 // batches in full
	wake       func()       // wakes the lane

	// The lane's.
	current  *batch      // partly sent
	lending  int         // the frame of current that is expected to be lent next
	kept     int         // batches with lent frames
	most     int         // the largest number of them
	held     bool        // backpressure: the engine accepts nothing until Device.Wake
	warm     *batch      // the free one that was used last, in the processor's cache; nil where there is a reader
	from     polled      // nil: a reader fills batches
	readable bool        // packets may wait at from
	failed   func(error) // the device has failed; it ends polling
}

// batch is the packets of one read: frames[next:n] are still to be sent.
type batch struct {
	mem    []byte   // buffer i begins at i*feed.buffer
	bufs   [][]byte // whole buffers
	frames [][]byte // headroom and packet
	sizes  []int
	hops   []netip.Addr
	n      int
	next   int
	lent   int  // frames that the adapter sends from their place
	sent   bool // all of it, except lent frames
}

const (
	// feedBatches is the number of batches: one that is filled, one that is sent, and some that the adapter sends.
	feedBatches = 4
	// feedPackets is how many packets a batch has room for.
	feedPackets = ipoib.BatchSize
	// feedMTU is the longest packet: that of an MTU of 4096.
	feedMTU = 4096 - 4
	// feedTail is room behind each packet, which the engine may use.
	feedTail = 64
	// longBatches is the number of batches in connected mode: a packet there waits longer for its
	// acknowledgement than a datagram for being sent.
	longBatches = 2 * feedBatches
	// longLent is how many of them may have lent frames: a peer that acknowledges nothing keeps those; packets
	// read into the others are copied.
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

// newFeed returns a feed for packets of an MTU at most in mem, of length feedMem. It is used after reset.
func newFeed(mem []byte, mtu int) *feed {
	f := &feed{buffer: feedBuffer(mtu), most: feedBatches}
	if mtu > feedMTU {
		f.most = longLent
	}
	for range batchesOf(mtu) {
		b := &batch{mem: mem[:feedPackets*f.buffer], bufs: make([][]byte, feedPackets), frames: make([][]byte,
			feedPackets), sizes: make([]int, feedPackets),
			hops: make([]netip.Addr, feedPackets)}
		for i := range b.bufs {
			b.bufs[i] = mem[i*f.buffer : (i+1)*f.buffer : (i+1)*f.buffer]
		}
		mem = mem[len(b.mem):]
		f.batches = append(f.batches, b)
	}
	return f
}

// reset prepares the feed for another device. Packets that were read are dropped; lent frames stay lent.
func (f *feed) reset(wake func()) {
	n := len(f.batches)
	*f = feed{batches: f.batches, buffer: f.buffer, kept: f.kept, most: f.most, free: make(chan *batch, n),
		full: make(chan *batch, n), wake: wake}
	for _, b := range f.batches {
		b.n, b.sent = 0, true
		f.recycle(b)
	}
}

// lend returns the place in the feed's memory of a frame that SendBatch was called with, and keeps its batch until
// returned is called with that place; false where the frame is not in the feed, or too many batches are kept.
func (f *feed) lend(frame []byte) (at int, ok bool) {
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

// returned undoes lend.
func (f *feed) returned(at int) {
	b := f.batches[at/(feedPackets*f.buffer)]
	if b.lent--; b.lent == 0 {
		f.kept--
	}
	f.recycle(b)
}

// recycle frees a batch that is sent and has no lent frames.
func (f *feed) recycle(b *batch) {
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

// read moves packets from a device into the feed until the device ends, and returns the reason. It runs on a
// goroutine of its own.
func (f *feed) read(from ipoib.Backend, end <-chan struct{}) error {
	for {
		var b *batch
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

// polled is a device that a lane reads by itself: each packet wakes the lane directly.
type polled interface {
	// TryReadBatch is ipoib.Backend's ReadBatch that does not wait. more reports that packets are left.
	TryReadBatch(bufs [][]byte, sizes []int, hops []netip.Addr, offset int) (n int, more bool, err error)
	// Control calls f with a descriptor that is readable while packets wait.
	Control(f func(fd int) error) error
}

// poll reads the packets that wait at a device without a reader, and reports whether there were any. The lane calls it.
func (f *feed) poll() bool {
	if !f.readable || f.from == nil || f.held || f.current != nil {
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
	f.readable = more
	if n == 0 {
		if f.warm = b; err != nil {
			f.failed(err)
		}
		return false
	}
	b.fill(n)
	f.current = b
	return true
}

// fill records that n packets were read.
func (b *batch) fill(n int) {
	for i := range n {
		b.frames[i] = b.bufs[i][:ipoib.Headroom+b.sizes[i]]
	}
	b.n, b.next = n, 0
}

// send sends the packets that were read, as many as the engine accepts, and reports whether there were any. The
// lane calls it. It returns after feedBatches batches: an engine that drops everything accepts packets without
// end.
func (f *feed) send(now mono.Time, link packetSink) (busy bool) {
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

// packetSink is the engine as the feed sees it.
type packetSink interface {
	SendBatch(now mono.Time, frames [][]byte, hops []netip.Addr) int
}

// ready reports whether the lane has packets to send.
func (f *feed) ready() bool { return !f.held && (f.current != nil || f.waiting.Load() > 0) }

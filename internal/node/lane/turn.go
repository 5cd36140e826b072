// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"math"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// run is the lane's goroutine. Memory that a client takes away during a copy faults; the client's session ends, the
// lane continues.
func (l *Lane) run() {
	runtime.LockOSThread()
	err, rt := raisePriority(l.wantRT)
	l.realTime.Store(rt)
	if err != nil {
		l.noRT.Store(&err)
	}
	if l.place = newPlacement(l.clock()); rt {
		l.place.next = 0 // real-time threads are placed by their user
	}
	defer l.place.close()
	debug.SetPanicOnFault(true)
	defer l.queue.Stop()
	defer l.closeFDs()
	for !l.stop {
		l.guarded()
	}
}

func (l *Lane) guarded() {
	l.asleep.Store(false) // a fault may have unwound it on its way to sleep
	defer func() {
		if r := recover(); r != nil {
			l.recovered(r)
		}
	}()
	for !l.stop {
		l.once()
	}
}

// costlyYield reports whether a yield that kept the lane from its processor for away was a loss, where it found n bytes
// to carry afterwards. A nanosecond per byte is about what two nodes spend on one: a thread that had the processor for
// that time worked for this lane, as the lane of a node does that sends to this one and shares the processor. A thread
// that does not yield has it for a scheduling slice, 1.4 ms or more, which no window of data compensates.
func costlyYield(away time.Duration, n uint64) bool {
	return away > patience+time.Duration(n)
}

const (
	// minSpin is how long a lane spins even where spinning has not paid of late: about what falling asleep and waking
	// up costs.
	minSpin = 5 * time.Microsecond
	// patience is how long a lane may be kept from its processor by a yield before that counts as a loss; a scheduling
	// slice is far longer.
	patience = 200 * time.Microsecond
	// A costly yield is followed by so many sleeps without a yield.
	minPenalty, maxPenalty = 64, 1 << 14
)

// once is one turn: all work that waits, then sleep if there was none.
//
// There are three ways to be idle. Spinning: a client that posts soon finds the lane awake and needs no system call;
// the window shrinks each time it was in vain and grows back when it pays. Yielding: a client that shares the processor
// and yields too posts a whole batch and gives the processor back, while a lane that slept would be woken for every
// request. Sleeping: beside a thread that does not yield, a sleeper is woken at once while a thread that yielded gets
// its processor back milliseconds later. So the lane yields as long as it gets the processor back soon.
func (l *Lane) once() {
	start := l.clock()
	if l.place.next.Due(start) {
		l.place.review(start, l.onlyPollersBusy(start))
	}
	if l.Turn(start) {
		return
	}
	now := start
	for l.onlyPollersBusy(now) && now.Sub(start) <= lingering && l.penalty == 0 {
		l.polledAt = now.Add(-pollPause)
		if l.yield(now) {
			return
		}
		now = l.clock()
	}
	for !l.onlyPollersBusy(now) && now.Sub(start) <= l.window {
		now = l.clock()
		if l.Turn(now) {
			l.stats.Spins++
			l.window = min(2*l.window, max(l.spin, minSpin))
			return
		}
	}
	l.window = max(l.window/2, min(minSpin, l.spin))
	if l.yield(now) {
		return
	}
	l.sleep()
}

// lingering is how long a lane continues to yield where only pollers had work of late. A processor that has nothing
// else to run would go idle, from which waking it takes about as long as the answer of another node, above all in a
// virtual machine.
const lingering = 160 * time.Microsecond

// onlyPollersBusy reports whether all work of late was that of pollers: streams of the kernel on one side or both. The
// thread that waits for such work sleeps, and needs a processor to continue. A program that polls needs the lane to be
// awake when it posts.
func (l *Lane) onlyPollersBusy(now mono.Time) bool {
	const lately = 10 * time.Millisecond
	return l.pollerAt != 0 && now.Sub(l.pollerAt) < lately && l.pollerAt.Sub(l.clientAt) > time.Millisecond
}

// yield lets other threads run and reports whether there was work afterwards.
func (l *Lane) yield(now mono.Time) bool {
	if l.penalty > 0 {
		l.penalty--
		return false
	}
	unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0)
	back, carried := l.clock(), l.HCA.Carried()
	busy := l.Turn(back)
	if costlyYield(back.Sub(now), l.HCA.Carried()-carried) {
		l.fine = min(max(2*l.fine, minPenalty), maxPenalty)
		l.penalty = l.fine
		l.stats.LostYields++
	} else if busy {
		l.fine = max(l.fine-1, 0)
		l.stats.Yields++
	}
	return busy
}

// pollPause is how long a lane with other work does not poll its descriptors: that costs a system call.
const pollPause = 10 * time.Microsecond

// burstsOfTurn bounds the bursts of a turn where there are pollers: one call of a socket may return thousands of
// datagrams.
const burstsOfTurn = 256

// arrivals are bursts of which those from next on are not handled yet.
type arrivals struct {
	bursts []pkt.Burst
	next   int
}

func (a *arrivals) pending() bool { return a.next < len(a.bursts) }

// Turn handles everything that waits, and reports whether there was anything. It runs on the lane.
func (l *Lane) Turn(now mono.Time) bool {
	l.stats.Loops++
	busy := l.queue.Drain()
	for _, c := range l.clients {
		if c.Dev.Poll() {
			l.clientAt, busy = now, true
		}
	}
	if l.clientAt == now && l.place.gentle {
		l.place.restore()
	}
	l.pollDescriptors(now)
	for _, p := range l.pollers {
		if p.Begin(now) {
			l.pollerAt, busy = now, true
		}
	}
	if l.arrived[0].pending() || l.arrived[1].pending() {
		busy = true // a fault unwound the lane among them
	} else if l.siblings != nil && l.siblings.congested() {
		busy = true
	} else {
		busy = l.receive(now) || busy
	}
	// A burst that faults is not handled again; those behind it, which belong to others and may not be sent twice, are.
	// Pollers post receives again every turn, and a turn handles no more than they have room for.
	most := math.MaxInt
	if len(l.pollers) > 0 {
		most = burstsOfTurn
	}
	for i := range l.arrived {
		for a := &l.arrived[i]; a.pending() && most > 0; most-- {
			a.next++
			l.HCA.Receive(now, &a.bursts[a.next-1])
		}
	}
	if l.siblings == nil {
		busy = l.HCA.Run(now) || busy
	} else {
		l.turns.Add(1)
		if l.siblings.receive(now) {
			busy = true
		}
		busy = l.HCA.Run(now) || busy
		l.siblings.release()
		l.turns.Add(1)
	}
	for _, p := range l.pollers {
		if p.Finish(now) {
			l.pollerAt, busy = now, true
		}
	}
	return busy || l.fab != nil && l.fab.Pending()
}

// receive reads bursts from the links, and reports whether there were any, or may be.
func (l *Lane) receive(now mono.Time) (busy bool) {
	if l.readable[0] || l.link.Deadline().Due(now) {
		bursts, more := l.link.Recv()
		l.arrived[0], l.readable[0] = arrivals{bursts: bursts}, more
		busy = more || len(bursts) > 0
	}
	if l.fab != nil && (l.readable[1] || l.fab.Pending() || l.fab.Deadline().Due(now)) {
		bursts, more := l.fab.Recv(now)
		l.arrived[1], l.readable[1] = arrivals{bursts: bursts}, more
		busy = busy || more || len(bursts) > 0
	}
	return busy
}

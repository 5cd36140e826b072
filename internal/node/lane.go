// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/vhost"
	"weft/internal/fabric/link/fabric"
	"weft/internal/host/rawio"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// socketLink is the lane's view of a link with sockets.
type socketLink interface {
	hca.Link
	// Recv returns runs that arrived; they stay valid until the next Recv.
	// more tells that there may be others at once.
	Recv() (runs []pkt.Burst, more bool)
	Deadline() mono.Time
}

// lane is the goroutine around an hca.Lane: it alone touches the sessions,
// queue pairs and sockets of the lane. Others reach it through do.
type lane struct {
	hca           *hca.Lane
	clock         func() mono.Time
	spin          time.Duration // the longest spin
	window        time.Duration // the spin that pays at present
	penalty, fine int           // sleeps to come without a yield, and what the next loss costs
	log           *slog.Logger
	link          socketLink
	fab           *fabric.Link // nil: the node is in no subnet
	doors         []*door
	tenants       []tenant
	kicks         map[int32]kick // by descriptor
	epfd          int
	bell          int             // eventfd: something is in the inbox
	timer         int             // timerfd: the nearest deadline
	armed         mono.Time       // when the timer fires, 0: never
	input         map[int32]*bool // by descriptor: what to note where it is readable
	sockets       [2]sockets      // of the link, and of the switch
	heard         [2]bool         // they may have something
	awaiting      [2]bool         // they are watched for room, too
	listenedAt    mono.Time       // when the kernel was last asked, 0: just now
	came          [2]arrivals     // what the link brought last, and the switch
	programAt     mono.Time       // when a program had work last
	tenantAt      mono.Time       // and when a tenant had

	mu     sync.Mutex // guards inbox and closed
	inbox  []func()
	closed bool
	posted atomic.Bool // inbox is not empty
	probe  atomic.Bool // the watchdog waits for the lane to run a function
	stuck  atomic.Bool // and has for long: the lane waits in a copy
	asleep atomic.Bool
	// ownerOf finds the session, of any lane, whose memory holds an address.
	ownerOf func(addr uintptr) culprit

	// wantRT asks for real-time priority; realTime tells that the thread has
	// it, noRT why not.
	wantRT   bool
	realTime atomic.Bool
	noRT     atomic.Pointer[error]
	stop     bool
	dozes    bool // the runtime has more Ps than lanes
	place    *placement
	// neighbours are the other lanes of the node, nil where there are none.
	neighbours *neighbours
	turns      atomic.Uint64 // turns begun
	parked     atomic.Bool   // waits for another lane and copies nothing

	taken  []func() // from inbox; those before next have run
	next   int
	done   chan struct{}
	events [64]unix.EpollEvent
	count  [8]byte // of an eventfd or timerfd, which nobody asks for
	stats  laneStats
}

// laneStats are read by other goroutines through do.
type laneStats struct{ Sleeps, Spins, Yields, LostYields, Faults, Loops uint64 }

var errLaneStopped = errors.New("the node is shutting down")

// sockets are the descriptors of a link: to be watched for input, and for room.
type sockets struct{ in, out []int }

// newLane returns a lane that does not run yet. of are the sockets of link, and of the
// switch.
func newLane(h *hca.Lane, link socketLink, of [2]sockets, clock func() mono.Time, spin time.Duration, log *slog.Logger) (*lane, error) {
	l := &lane{hca: h, clock: clock, spin: spin, window: spin, log: log, link: link, sockets: of,
		kicks: make(map[int32]kick), input: make(map[int32]*bool), done: make(chan struct{}), bell: -1, timer: -1}
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if l.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	events := map[int]uint32{l.bell: unix.EPOLLIN, l.timer: unix.EPOLLIN}
	for i := range of {
		for _, fd := range of[i].out {
			events[fd] = unix.EPOLLET // until there is no room: awaitRoom
		}
		for _, fd := range of[i].in {
			events[fd] = unix.EPOLLIN
			l.input[int32(fd)] = &l.heard[i]
		}
	}
	for fd, ev := range events {
		if err == nil {
			err = l.watch(fd, ev)
		}
	}
	if err != nil {
		l.closeFDs()
		return nil, err
	}
	return l, nil
}

func (l *lane) closeFDs() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, fd := range []int{l.epfd, l.bell, l.timer} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (l *lane) watch(fd int, events uint32) error {
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// watchInput has *heard set whenever fd is found readable. Whoever reads until nothing is left
// clears it. unwatchInput ends that. Both run on the lane.
func (l *lane) watchInput(fd int, heard *bool) error {
	if err := l.watch(fd, unix.EPOLLIN); err != nil {
		return err
	}
	l.input[int32(fd)] = heard
	return nil
}

func (l *lane) unwatchInput(fd int) {
	delete(l.input, int32(fd))
	unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
}

// do runs f on the lane and waits for it. It is how every other goroutine
// reaches what the lane owns; it fails only when the lane has ended.
func (l *lane) do(f func()) error {
	ran := make(chan struct{})
	if !l.post(func() {
		// A fault inside f must not leave its caller waiting.
		defer close(ran)
		f()
	}) {
		return errLaneStopped
	}
	select {
	case <-ran:
		return nil
	case <-l.done:
		return errLaneStopped
	}
}

// look is do for people's questions: it gives up while the lane is stuck, and f
// may then run later. What f changes must not be read after an error.
func (l *lane) look(f func()) error {
	if l.stuck.Load() {
		return errLaneStuck // who asks again and again must not fill the inbox
	}
	ran := make(chan struct{})
	if !l.post(func() {
		defer close(ran)
		f()
	}) {
		return errLaneStopped
	}
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ran:
			return nil
		case <-l.done:
			return errLaneStopped
		case <-tick.C:
			if l.stuck.Load() {
				return errLaneStuck
			}
		}
	}
}

// post lets the lane run f soon; false where the lane has ended.
func (l *lane) post(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.inbox = append(l.inbox, f)
	l.posted.Store(true)
	if l.asleep.Load() {
		l.ring()
	}
	return true
}

func (l *lane) ring() { unix.Write(l.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// drain runs what other goroutines asked for. A function that faults is not
// run again; those behind it are, by the next drain.
func (l *lane) drain() bool {
	if l.next == len(l.taken) {
		if !l.posted.Load() {
			return false
		}
		l.mu.Lock()
		l.inbox, l.taken = l.taken[:0], l.inbox
		l.posted.Store(false)
		l.mu.Unlock()
		l.next = 0
	}
	for l.next < len(l.taken) {
		f := l.taken[l.next]
		l.taken[l.next] = nil
		l.next++
		f()
	}
	return true
}

// kick says which ring a kick descriptor belongs to; ring -1 is the doorbell.
type kick struct {
	d    *door
	ring int
	fd   *vhost.Kick
}

// addDoor, removeDoor, watchKick and unwatchKick run on the lane.
func (l *lane) addDoor(d *door) { l.doors = append(l.doors, d) }

// addTenant and removeTenant run on the lane.
func (l *lane) addTenant(t tenant) { l.tenants = append(l.tenants, t) }

func (l *lane) removeTenant(t tenant) {
	if i := slices.Index(l.tenants, t); i >= 0 {
		l.tenants = slices.Delete(slices.Clone(l.tenants), i, i+1)
	}
}

func (l *lane) removeDoor(d *door) {
	for i, o := range l.doors {
		if o == d {
			l.doors = append(l.doors[:i], l.doors[i+1:]...)
			break
		}
	}
	for fd, k := range l.kicks {
		if k.d == d {
			l.unwatchKick(int(fd))
		}
	}
}

// watchKick listens to a kick for ring i of d (-1: the doorbell).
func (l *lane) watchKick(d *door, i int, k *vhost.Kick) error {
	if err := l.watch(k.FD(), unix.EPOLLIN); err != nil {
		return err
	}
	l.kicks[int32(k.FD())] = kick{d, i, k}
	return nil
}

func (l *lane) unwatchKick(fd int) {
	if _, ok := l.kicks[int32(fd)]; ok {
		delete(l.kicks, int32(fd))
		unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// loop is the lane's goroutine. Memory that a client takes away under it
// faults; the client's session ends, the lane goes on.
func (l *lane) loop() {
	runtime.LockOSThread()
	err, rt := raisePriority(l.wantRT)
	l.realTime.Store(rt)
	if err != nil {
		l.noRT.Store(&err)
	}
	if l.place = newPlacement(l.clock()); rt {
		l.place.next = 0 // as its user wants it
	}
	defer l.place.close()
	debug.SetPanicOnFault(true)
	defer close(l.done)
	defer l.closeFDs()
	for !l.stop {
		l.guarded()
	}
}

func (l *lane) guarded() {
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

// culprit is a session that ends because of what its client did.
type culprit interface{ fail(reason error) }

// recovered attributes a memory fault to the session whose memory it was in.
// Any other panic is a bug of ours and goes on.
func (l *lane) recovered(r any) {
	e, ok := r.(interface {
		error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	if d := l.ownerOf(e.Addr()); d != nil {
		l.stats.Faults++
		l.hca.Recover()
		d.fail(fmt.Errorf("memory taken away while it was in use: %w", e))
		return
	}
	panic(r)
}

// lost reports whether a yield that kept the lane from its processor for away
// was a loss, where it found n bytes to carry afterwards. A nanosecond per byte
// is about what two nodes spend on one: whoever had the processor so long worked
// for this lane, as the lane of a node does that sends to this one and shares
// the processor. A thread that does not yield has it for a scheduling slice,
// 1.4 ms or more, which no window of data makes good.
func lost(away time.Duration, n uint64) bool {
	return away > patience+time.Duration(n)
}

const (
	// minSpin is how long a lane spins even where spinning has not paid of
	// late: about what falling asleep and waking up costs.
	minSpin = 5 * time.Microsecond
	// patience is how long a lane may be kept from its processor by a yield
	// before that counts as a loss; a scheduling slice is far longer.
	patience = 200 * time.Microsecond
	// A loss is paid for by so many sleeps without a yield.
	minPenalty, maxPenalty = 64, 1 << 14
)

// once is one turn: everything that waits, then sleep if there was nothing.
//
// Three ways to be idle, each right for someone. Spinning: a client that posts
// soon finds the lane awake and needs no system call; the window shrinks each
// time it was in vain and grows back when it pays. Yielding: where a client
// shares the processor and yields too, it posts a whole batch and gives the
// processor back, while a lane that slept would be woken for every request.
// Sleeping: beside a thread that does not yield, a sleeper is woken at once
// while one that yielded gets its processor back milliseconds later. So the
// lane yields as long as it gets the processor back soon.
func (l *lane) once() {
	start := l.clock()
	if l.place.next.Due(start) {
		l.place.look(start, l.othersWait(start))
	}
	if l.work(start) {
		return
	}
	now := start
	for l.othersWait(now) && now.Sub(start) <= lingering && l.penalty == 0 {
		l.listenedAt = now.Add(-listenPause)
		if l.yield(now) {
			return
		}
		now = l.clock()
	}
	for !l.othersWait(now) && now.Sub(start) <= l.window {
		now = l.clock()
		if l.work(now) {
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

// lingering is how long a lane goes on yielding whose tenants were the last to have work. A
// processor that has nothing else to run would go idle, from which waking it takes about as
// long as the answer of another node, above all in a virtual machine.
const lingering = 160 * time.Microsecond

// othersWait reports whether all work of late was that of tenants, which is the
// kernel's on one side or both: who waits for it sleeps, and needs a
// processor to go on. A program that polls wants the lane to be awake when it posts.
func (l *lane) othersWait(now mono.Time) bool {
	const lately = 10 * time.Millisecond
	return l.tenantAt != 0 && now.Sub(l.tenantAt) < lately && l.tenantAt.Sub(l.programAt) > time.Millisecond
}

// yield lets others run and reports whether there was work afterwards.
func (l *lane) yield(now mono.Time) bool {
	if l.penalty > 0 {
		l.penalty--
		return false
	}
	unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0)
	back, carried := l.clock(), l.hca.Carried()
	busy := l.work(back)
	if lost(back.Sub(now), l.hca.Carried()-carried) {
		l.fine = min(max(2*l.fine, minPenalty), maxPenalty)
		l.penalty = l.fine
		l.stats.LostYields++
	} else if busy {
		l.fine = max(l.fine-1, 0)
		l.stats.Yields++
	}
	return busy
}

// listenPause is how long a lane with other work leaves its descriptors alone: a
// look costs a system call.
const listenPause = 10 * time.Microsecond

// tenantRuns bounds the runs of a turn where there are tenants: what comes in
// one call of a socket may be thousands of datagrams.
const tenantRuns = 256

// arrivals are runs of which those from next on wait to be handled.
type arrivals struct {
	runs []pkt.Burst
	next int
}

func (a *arrivals) waits() bool { return a.next < len(a.runs) }

func (l *lane) work(now mono.Time) bool {
	l.stats.Loops++
	busy := l.drain()
	for _, d := range l.doors {
		if d.dev.Poll() {
			l.programAt, busy = now, true
		}
	}
	if l.programAt == now && l.place.gentle {
		l.place.restore()
	}
	l.listen(now)
	for _, t := range l.tenants {
		if t.Begin(now) {
			l.tenantAt, busy = now, true
		}
	}
	if l.came[0].waits() || l.came[1].waits() {
		busy = true // a fault unwound the lane among them
	} else if l.neighbours != nil && l.neighbours.congested() {
		busy = true
	} else {
		busy = l.receive(now) || busy
	}
	// A run that faults is not handled again; those behind it, of others who may
	// not send them twice, are. Tenants post receives again with every turn, and
	// one brings no more than they have room for.
	most := math.MaxInt
	if len(l.tenants) > 0 {
		most = tenantRuns
	}
	for i := range l.came {
		for c := &l.came[i]; c.waits() && most > 0; most-- {
			c.next++
			l.hca.Receive(now, &c.runs[c.next-1])
		}
	}
	if l.neighbours == nil {
		busy = l.hca.Run(now) || busy
	} else {
		l.turns.Add(1)
		if l.neighbours.receive(now) {
			busy = true
		}
		busy = l.hca.Run(now) || busy
		l.neighbours.settled()
		l.turns.Add(1)
	}
	for _, t := range l.tenants {
		if t.Finish(now) {
			l.tenantAt, busy = now, true
		}
	}
	return busy || l.fab != nil && l.fab.Pending()
}

// receive takes in what has come, and reports whether that was anything, or may be.
func (l *lane) receive(now mono.Time) (busy bool) {
	if l.heard[0] || l.link.Deadline().Due(now) {
		runs, more := l.link.Recv()
		l.came[0], l.heard[0] = arrivals{runs: runs}, more
		busy = more || len(runs) > 0
	}
	if l.fab != nil && (l.heard[1] || l.fab.Pending() || l.fab.Deadline().Due(now)) {
		runs, more := l.fab.Recv(now)
		l.came[1], l.heard[1] = arrivals{runs: runs}, more
		busy = busy || more || len(runs) > 0
	}
	return busy
}

// sleep waits for a kick, a packet, the bell or the nearest deadline.
func (l *lane) sleep() {
	l.asleep.Store(true)
	ready := !l.posted.Load() && !l.hca.Replicating() && (l.neighbours == nil || l.neighbours.empty())
	for _, d := range l.doors {
		if !d.dev.Sleep() {
			ready = false
		}
	}
	for _, t := range l.tenants {
		if !t.Sleep() {
			ready = false
		}
	}
	l.awaitRoom()
	ready = ready && l.setTimer()
	if ready {
		l.stats.Sleeps++
	}
	n := l.wait(ready)
	l.asleep.Store(false)
	for _, d := range l.doors {
		d.dev.Wake()
	}
	l.attend(n)
	l.listenedAt = 0
}

// listen asks the kernel, once in a while, which descriptors have something.
func (l *lane) listen(now mono.Time) {
	switch {
	case l.listenedAt == 0:
		l.listenedAt = now
	case now.Sub(l.listenedAt) >= listenPause:
		l.listenedAt = now
		l.attend(l.wait(false))
	}
}

// doze is how many ms a lane sleeps with a P of the runtime's in hand, where others are left for the
// rest of the node: most sleeps end sooner, and the runtime neither takes the P away meanwhile, nor has to find
// one again.
const doze = 4

// wait is epoll_wait, for as long as it takes or not at all.
func (l *lane) wait(forever bool) int {
	ms := 0
	if forever && l.dozes {
		ms = doze
	}
	n, e := rawio.EpollWait(l.epfd, l.events[:], ms)
	if e != 0 {
		return 0
	}
	if n == 0 && forever {
		n, _ = unix.EpollWait(l.epfd, l.events[:], -1)
	}
	return max(n, 0)
}

// blocked reports whether the link (0) or the switch (1) waits for room in a socket.
func (l *lane) blocked(i int) bool {
	if i == 0 {
		return l.link.Blocked()
	}
	return l.fab != nil && l.fab.Blocked()
}

// awaitRoom watches sockets for room where something waits for that, and only then: a socket has
// room again after all that is sent, of which nobody else wants to hear.
func (l *lane) awaitRoom() {
	for i := range l.sockets {
		if b := l.blocked(i); b != l.awaiting[i] {
			l.awaiting[i] = b
			for _, fd := range l.sockets[i].out {
				e := unix.EpollEvent{Fd: int32(fd), Events: unix.EPOLLET}
				if l.input[e.Fd] != nil {
					e.Events = unix.EPOLLIN
				}
				if b {
					e.Events |= unix.EPOLLOUT
				}
				unix.EpollCtl(l.epfd, unix.EPOLL_CTL_MOD, fd, &e)
			}
		}
	}
}

// attend minds the first n events.
func (l *lane) attend(n int) {
	for _, e := range l.events[:n] {
		if heard, ok := l.input[e.Fd]; ok {
			if e.Events&^unix.EPOLLOUT != 0 {
				*heard = true
			}
		} else if k, ok := l.kicks[e.Fd]; ok {
			k.fd.Clear()
			if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
				l.unwatchKick(int(e.Fd)) // a pipe closed at the other end is ready for ever
			}
			if k.ring >= 0 {
				k.d.dev.Kick(uint32(k.ring))
			}
		} else if e.Fd == int32(l.bell) || e.Fd == int32(l.timer) {
			if e.Fd == int32(l.timer) {
				l.armed = 0
			}
			unix.Read(int(e.Fd), l.count[:])
		}
	}
	if l.blocked(0) {
		l.link.Flush(l.clock())
	}
	if l.blocked(1) {
		l.fab.Flush(l.clock())
	}
}

// cqRetry is how often a lane looks whether a client has made room, for
// completions or for notifications, which it may do without a kick.
const cqRetry = 200 * time.Microsecond

// setTimer makes the timer descriptor readable at the nearest deadline and
// reports false where that is now.
func (l *lane) setTimer() bool {
	d := mono.Min(l.hca.Deadline(), l.link.Deadline())
	if l.fab != nil {
		d = mono.Min(d, l.fab.Deadline())
	}
	for _, t := range l.tenants {
		d = mono.Min(d, t.Deadline())
	}
	now := l.clock()
	retry := l.hca.RetryCQs()
	for _, o := range l.doors {
		retry = retry || o.dev.Owing()
	}
	if retry {
		d = mono.Min(d, now.Add(cqRetry))
	}
	if d.Due(now) {
		return false
	}
	// A timer still running from before only wakes the lane early, once: most deadlines move away with
	// every packet, and setting the timer is a call that costs as much as sleeping.
	if d != 0 && mono.Min(d, l.armed) != l.armed {
		t := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d.Sub(now)))}
		unix.TimerfdSettime(l.timer, 0, &t, nil)
		l.armed = d
	}
	return true
}

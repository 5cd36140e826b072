// SPDX-License-Identifier: Apache-2.0

// Package lane runs the data path of a node: one goroutine per lane, which alone touches the sessions, queue pairs and
// sockets of that lane, the pipes between lanes, and the placement of their threads.
//
// What comes in: kicks of clients, bursts of the links, bursts of other lanes, and functions posted by other
// goroutines. What goes out: bursts to the links and to other lanes, completions and events to clients. The assembly of
// the node builds the lanes with Open; every other room reaches them with Post, Do and Query. A lane never blocks on
// another goroutine of the node, except in siblings.Quiesce, which waits for the turns of other lanes.
package lane

import (
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/device/rdmadev"
	"weft/internal/device/vhost"
	"weft/internal/fabric/link/fabric"
	"weft/internal/node/loop"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// socketLink is the lane's view of a link with sockets.
type socketLink interface {
	hca.Link
	// Recv returns bursts that arrived; they stay valid until the next Recv. more reports that there may be others at
	// once.
	Recv() (bursts []pkt.Burst, more bool)
	Deadline() mono.Time
}

// Lane is the goroutine around an hca.Lane. Post, Do, Query, Wake and the methods that say so may be called on any
// goroutine; everything else belongs to the lane.
type Lane struct {
	HCA *hca.Lane
	// Net is the same link as the lane's own, with its parts. nil only in tests.
	Net *Link

	clock         func() mono.Time
	spin          time.Duration // the longest spin
	window        time.Duration // the current length of a spin
	penalty, fine int           // sleeps to come without a yield, and how many the next costly yield adds
	log           *slog.Logger
	link          socketLink
	fab           *fabric.Link // nil: the node is in no subnet
	clients       []*Client
	pollers       []Poller
	kicks         map[int32]kick // by descriptor
	epfd          int
	timer         int             // timerfd: the nearest deadline
	armed         mono.Time       // when the timer fires, 0: never
	input         map[int32]*bool // by descriptor: the flag to set when it is readable
	sockets       [2]sockets      // of the link, and of the switch
	readable      [2]bool         // the sockets may have input
	awaiting      [2]bool         // the sockets are watched for room, too
	polledAt      mono.Time       // of the last epoll_wait, 0: just now
	arrived       [2]arrivals     // the last bursts of the link, and of the switch
	clientAt      mono.Time       // when a client had work last
	pollerAt      mono.Time       // when a poller had work last

	queue  *loop.Queue
	bell   bell
	probe  atomic.Bool // the watchdog waits for the lane to run a function
	stuck  atomic.Bool // the probe is overdue: the lane waits in a copy
	asleep atomic.Bool
	// memoryOwner returns the owner of the memory, on any lane, that holds an address; nil where there is none.
	memoryOwner func(addr uintptr) MemoryOwner

	// wantRT requests real-time priority; realTime reports that the thread has it, noRT why it does not.
	wantRT   bool
	realTime atomic.Bool
	noRT     atomic.Pointer[error]
	stop     bool
	holdsP   bool // the runtime has more Ps than lanes: a short sleep keeps this lane's
	short    int  // sleeps in a row that were shorter than shortSleep
	place    *placement
	// siblings are the other lanes of the node, nil where there are none.
	siblings *siblings
	turns    atomic.Uint64 // turns begun and ended
	parked   atomic.Bool   // waits for another lane and copies nothing

	events [64]unix.EpollEvent
	count  [8]byte // of an eventfd or timerfd; the value is not used
	stats  Stats
}

// Stats are the counters of a lane's loop. They belong to the lane.
type Stats struct{ Sleeps, Spins, Yields, LostYields, Faults, Loops uint64 }

// sockets are the descriptors of a link: to be watched for input, and for room.
type sockets struct{ in, out []int }

// Client is a device that the lane polls once per turn: that of a session at a device socket. The lane reads Dev; its
// owner replaces it on the lane only.
type Client struct {
	Dev *rdmadev.Device
}

// Poller is something a lane polls once per turn beside its clients: a user of the adapter that lives in the node. All
// its methods are called on the lane.
type Poller interface {
	// Begin is called every turn before queue pairs run, Finish after their completions are published. Each reports
	// whether there was something to do; Finish also where more remains than it did.
	Begin(now mono.Time) bool
	Finish(now mono.Time) bool
	// Sleep reports whether the lane may sleep: nothing waits. An event from another goroutine later must call
	// Lane.Wake.
	Sleep() bool
	// Deadline is when the lane must turn if nothing else happens.
	Deadline() mono.Time
}

// MemoryOwner is a session that ends when its client takes away memory in use.
type MemoryOwner interface{ Fail(reason error) }

// newLane returns a lane that does not run yet. of are the sockets of link, and of the switch.
func newLane(h *hca.Lane, link socketLink, of [2]sockets, clock func() mono.Time, spin time.Duration,
	log *slog.Logger) (*Lane, error) {
	l := &Lane{HCA: h, clock: clock, spin: spin, window: spin, log: log, link: link, sockets: of,
		kicks: make(map[int32]kick), input: make(map[int32]*bool), timer: -1}
	l.queue, l.bell.fd = loop.NewQueue(l.Wake), -1
	var err error
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if l.bell.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	events := map[int]uint32{l.bell.fd: unix.EPOLLIN, l.timer: unix.EPOLLIN}
	for i := range of {
		for _, fd := range of[i].out {
			events[fd] = unix.EPOLLET // until there is no room: awaitRoom
		}
		for _, fd := range of[i].in {
			events[fd] = unix.EPOLLIN
			l.input[int32(fd)] = &l.readable[i]
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

// ID is the number of the lane, from 0. Any goroutine may call it.
func (l *Lane) ID() int { return l.HCA.ID }

// Now reads the node's clock. Any goroutine may call it.
func (l *Lane) Now() mono.Time { return l.clock() }

// Stats returns the lane's counters, which belong to the lane.
func (l *Lane) Stats() *Stats { return &l.stats }

// RealTime reports whether the thread has real-time priority, and why not where that was requested. Any goroutine may
// call it.
func (l *Lane) RealTime() (on bool, err error) {
	if e := l.noRT.Load(); e != nil {
		err = *e
	}
	return l.realTime.Load(), err
}

// Asleep reports whether the lane sleeps. Any goroutine may call it.
func (l *Lane) Asleep() bool { return l.asleep.Load() }

func (l *Lane) closeFDs() {
	l.bell.close()
	for _, fd := range []int{l.epfd, l.timer} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (l *Lane) watch(fd int, events uint32) error {
	return unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// WatchInput sets *readable whenever fd is found readable. The reader clears it after it has read everything.
// UnwatchInput ends that. Both run on the lane.
func (l *Lane) WatchInput(fd int, readable *bool) error {
	if err := l.watch(fd, unix.EPOLLIN); err != nil {
		return err
	}
	l.input[int32(fd)] = readable
	return nil
}

// UnwatchInput undoes WatchInput.
func (l *Lane) UnwatchInput(fd int) {
	delete(l.input, int32(fd))
	unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
}

// WatchTrunks watches the sockets of the trunks, which were opened after the lane was made: in for input, out for room.
// It runs on the lane.
func (l *Lane) WatchTrunks(in, out []int) error {
	k := &l.sockets[1]
	events := map[int]uint32{}
	for _, fd := range out {
		events[fd] = unix.EPOLLET
	}
	for _, fd := range in {
		events[fd] = unix.EPOLLIN
	}
	for fd, e := range events {
		if err := l.watch(fd, e); err != nil {
			return err
		}
	}
	for _, fd := range in {
		l.input[int32(fd)] = &l.readable[1]
	}
	k.in, k.out = append(k.in, in...), append(k.out, out...)
	return nil
}

// LinkReadable makes the lane receive from its link in this turn or the next: bursts wait in a link that has no socket.
// It runs on the lane.
func (l *Lane) LinkReadable() { l.readable[0] = true }

// kick is the ring that a kick descriptor belongs to; ring -1 is none: the kick only wakes the lane.
type kick struct {
	c    *Client
	ring int
	fd   *vhost.Kick
}

// AddClient adds a client; it runs on the lane.
func (l *Lane) AddClient(c *Client) { l.clients = append(l.clients, c) }

// RemoveClient removes a client and its kicks; it runs on the lane.
func (l *Lane) RemoveClient(c *Client) {
	if i := slices.Index(l.clients, c); i >= 0 {
		l.clients = slices.Delete(l.clients, i, i+1)
	}
	for fd, k := range l.kicks {
		if k.c == c {
			l.UnwatchKick(int(fd))
		}
	}
}

// AddPoller adds a poller; it runs on the lane.
func (l *Lane) AddPoller(p Poller) { l.pollers = append(l.pollers, p) }

// RemovePoller removes a poller; it runs on the lane, also from a method of a poller.
func (l *Lane) RemovePoller(p Poller) {
	if i := slices.Index(l.pollers, p); i >= 0 {
		l.pollers = slices.Delete(slices.Clone(l.pollers), i, i+1)
	}
}

// WatchKick watches a kick for ring i of c (-1: of no ring). It runs on the lane.
func (l *Lane) WatchKick(c *Client, i int, k *vhost.Kick) error {
	if err := l.watch(k.FD(), unix.EPOLLIN); err != nil {
		return err
	}
	l.kicks[int32(k.FD())] = kick{c, i, k}
	return nil
}

// UnwatchKick undoes WatchKick.
func (l *Lane) UnwatchKick(fd int) {
	if _, ok := l.kicks[int32(fd)]; ok {
		delete(l.kicks, int32(fd))
		unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// recovered attributes a memory fault to the session that the memory belongs to. Any other panic is a bug and
// continues.
func (l *Lane) recovered(r any) {
	e, ok := r.(interface {
		error
		Addr() uintptr
	})
	if !ok {
		panic(r)
	}
	if o := l.memoryOwner(e.Addr()); o != nil {
		l.stats.Faults++
		l.HCA.Recover()
		o.Fail(fmt.Errorf("memory taken away while it was in use: %w", e))
		return
	}
	panic(r)
}

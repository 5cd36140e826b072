// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/host/rawio"
	"weft/internal/proto/mono"
)

// sleep waits for a kick, a packet, the bell or the nearest deadline.
func (l *Lane) sleep() {
	l.asleep.Store(true)
	ready := !l.queue.Pending() && !l.HCA.Replicating() && (l.siblings == nil || l.siblings.empty())
	for _, c := range l.clients {
		if !c.Dev.Sleep() {
			ready = false
		}
	}
	for _, p := range l.pollers {
		if !p.Sleep() {
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
	for _, c := range l.clients {
		c.Dev.Wake()
	}
	l.handleEvents(n)
	l.polledAt = 0
}

// pollDescriptors finds out, every pollPause, which descriptors are ready.
func (l *Lane) pollDescriptors(now mono.Time) {
	switch {
	case l.polledAt == 0:
		l.polledAt = now
	case now.Sub(l.polledAt) >= pollPause:
		l.polledAt = now
		l.handleEvents(l.wait(false))
	}
}

// shortSleep is how many ms a lane sleeps while it holds a P of the runtime, where others are left for the rest of the
// node: under load most sleeps end sooner, and the runtime neither takes the P away meanwhile, nor has to find one
// again. It does so only after shortSleeps such sleeps in a row: while one lasts, the runtime's monitor wakes up some
// hundred times to look at that P, which is most of what an idle node takes.
const (
	shortSleep  = 4
	shortSleeps = 4
)

// wait is epoll_wait, without a timeout or without waiting.
func (l *Lane) wait(forever bool) int {
	ms := 0
	if forever && l.holdsP && l.short >= shortSleeps {
		ms = shortSleep
	}
	n, e := rawio.EpollWait(l.epfd, l.events[:], ms)
	if e != 0 {
		return 0
	}
	if !forever {
		return max(n, 0)
	}
	if n != 0 {
		l.slept(0)
		return n
	}
	began := l.clock()
	n, _ = unix.EpollWait(l.epfd, l.events[:], -1)
	l.slept(time.Duration(ms)*time.Millisecond + l.clock().Sub(began))
	return max(n, 0)
}

// slept notes how long a sleep was.
func (l *Lane) slept(d time.Duration) {
	if l.short++; d >= shortSleep*time.Millisecond {
		l.short = 0
	}
}

// blocked reports whether the link (0) or the switch (1) waits for room in a socket.
func (l *Lane) blocked(i int) bool {
	if i == 0 {
		return l.link.Blocked()
	}
	return l.fab != nil && l.fab.Blocked()
}

// awaitRoom watches sockets for room while something waits for it, and only then: a socket has room again after every
// packet it sends, an event of no use otherwise.
func (l *Lane) awaitRoom() {
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

// handleEvents handles the first n events.
func (l *Lane) handleEvents(n int) {
	for _, e := range l.events[:n] {
		if readable, ok := l.input[e.Fd]; ok {
			if e.Events&^unix.EPOLLOUT != 0 {
				*readable = true
			}
		} else if k, ok := l.kicks[e.Fd]; ok {
			k.fd.Clear()
			if e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
				l.UnwatchKick(int(e.Fd)) // a pipe closed at the other end is ready forever
			}
			if k.ring >= 0 {
				k.c.Dev.Kick(uint32(k.ring))
			}
		} else if e.Fd == int32(l.bell.fd) || e.Fd == int32(l.timer) {
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

// cqRetry is how often a lane checks whether a client has made room, for completions or for notifications, which it may
// do without a kick.
const cqRetry = 200 * time.Microsecond

// setTimer makes the timer descriptor readable at the nearest deadline and reports false where that is now.
func (l *Lane) setTimer() bool {
	d := mono.Min(l.HCA.Deadline(), l.link.Deadline())
	if l.fab != nil {
		d = mono.Min(d, l.fab.Deadline())
	}
	for _, p := range l.pollers {
		d = mono.Min(d, p.Deadline())
	}
	now := l.clock()
	retry := l.HCA.RetryCQs()
	for _, c := range l.clients {
		retry = retry || c.Dev.Owing()
	}
	if retry {
		d = mono.Min(d, now.Add(cqRetry))
	}
	if d.Due(now) {
		return false
	}
	// A timer still running from before only wakes the lane early, once: most deadlines move away with every packet,
	// and setting the timer is a system call that costs as much as sleeping.
	if d != 0 && mono.Min(d, l.armed) != l.armed {
		t := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d.Sub(now)))}
		unix.TimerfdSettime(l.timer, 0, &t, nil)
		l.armed = d
	}
	return true
}

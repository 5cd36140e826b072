// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/mono"
)

// placement is how a lane shares processors with the threads of the streams that it carries.
//
// A lane that works for programs runs before every other thread as soon as it is woken (raisePriority). With a stream
// of the kernel, IP or Ethernet, that is wrong: the thread that wakes the lane is a stage of the same stream, and a
// lane that preempts it for every packet carries small batches. Under such a load the lane has the priority of any
// other thread.
//
// A scheduler also wakes a thread on the processor of the thread that wakes it, above all in virtual machines, where an
// idle processor is slow to come back: two lanes that feed each other, of two nodes on a machine, then share a
// processor beside an idle one, or change places all the time. So a lane stays on its processor under such a load.
// Where it often waits for that processor, it moves to the one that is idle most. When the load ends the scheduler
// chooses again.
//
// An affinity set from outside, by taskset or a cpuset, before or after a move, takes precedence. The placement belongs
// to the lane's thread.
type placement struct {
	// /proc/thread-self/schedstat, /proc/thread-self/stat and /proc/stat; -1: not available
	sched, self, stat int
	may               unix.CPUSet // where the lane may run, as of the last move
	next              mono.Time   // when review is due, 0: never
	last              mono.Time   // of the last review
	before            threadTimes // at the last review
	gentle            bool        // the lane has the default priority
	cpu               int         // the processor to which the lane is pinned, -1: none
	samples           [2][]idleTime
	sampledAt         mono.Time // when samples[0] was taken, 0: there is none
	buf               []byte
}

// threadTimes are the times that the kernel counts for a thread: it ran, and it waited for a processor.
type threadTimes struct{ run, wait time.Duration }

// idleTime is how many ticks a processor was idle.
type idleTime struct {
	cpu   int
	ticks uint64
}

const (
	// placeEvery is the time between two reviews, but for a random part: lanes shall not move at the same time. It has
	// several ticks.
	placeEvery = 100 * time.Millisecond
	// procTick is the unit of /proc/stat: USER_HZ is 100.
	procTick = 10 * time.Millisecond
)

// newPlacement is called on the lane's thread; close ends it. Where the kernel does not provide the times, it does
// nothing.
func newPlacement(now mono.Time) *placement {
	p := &placement{sched: -1, self: -1, stat: -1, cpu: -1}
	if unix.SchedGetaffinity(0, &p.may) != nil {
		return p
	}
	ok := true
	for fd, path := range map[*int]string{&p.sched: "/proc/thread-self/schedstat", &p.self: "/proc/thread-self/stat",
		&p.stat: "/proc/stat"} {
		var err error
		*fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		ok = ok && err == nil
	}
	if ok {
		p.buf, p.last, p.next = make([]byte, 64<<10), now, now.Add(placeEvery)
	}
	return p
}

func (p *placement) close() {
	for _, fd := range []*int{&p.sched, &p.self, &p.stat} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
	p.next = 0
}

// review compares the lane's times with those of the last review; it is called when next is due. stream reports that
// the lane worked for streams of the kernel only.
func (p *placement) review(now mono.Time, stream bool) {
	n, err := unix.Pread(p.sched, p.buf, 0)
	t, ok := parseSchedstat(p.buf[:max(n, 0)])
	if err != nil || !ok {
		p.next = 0
		return
	}
	elapsed := now.Sub(p.last)
	run, wait := t.run-p.before.run, t.wait-p.before.wait
	p.before, p.last, p.next = t, now, now.Add(placeEvery+rand.N(placeEvery/2))
	if !stream || run < elapsed/4 {
		p.restore()
		return
	}
	if !p.gentle {
		p.gentle = true
		setPriority(0)
	}
	if wait < elapsed/8 {
		p.sampledAt = 0
		p.pin()
		return
	}
	p.move(now, float64(run)/float64(elapsed), wait > elapsed/2)
}

// restore undoes review.
func (p *placement) restore() {
	p.sampledAt = 0
	if p.gentle {
		p.gentle = false
		setPriority(niceLane)
	}
	p.release()
}

// pin pins the lane to the processor on which it runs.
func (p *placement) pin() {
	if p.cpu >= 0 {
		return
	}
	p.readAffinity()
	n, err := unix.Pread(p.self, p.buf, 0)
	cpu, ok := parseProcessor(p.buf[:max(n, 0)])
	if err != nil || !ok || !p.may.IsSet(cpu) || p.may.Count() == 1 {
		return
	}
	if one := only(cpu); unix.SchedSetaffinity(0, &one) == nil {
		p.cpu = cpu
	}
}

// release lets the scheduler choose the processor.
func (p *placement) release() {
	if p.cpu < 0 {
		return
	}
	if p.readAffinity(); p.cpu >= 0 && unix.SchedSetaffinity(0, &p.may) == nil {
		p.cpu = -1
	}
}

// readAffinity reads where the lane may run, unless that is what the placement set itself.
func (p *placement) readAffinity() {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) == nil && (p.cpu < 0 || now != only(p.cpu)) {
		p.may, p.cpu = now, -1
	}
}

// only is the set of one processor.
func only(cpu int) (s unix.CPUSet) {
	s.Set(cpu)
	return s
}

// move pins the lane, which runs for that share of the time, to the processor that was idle most since the last sample,
// if that has more idle time for it than the one to which it is pinned now. Where there is none, and the lane waits
// long, the scheduler chooses.
func (p *placement) move(now mono.Time, share float64, long bool) {
	p.readAffinity()
	n, err := unix.Pread(p.stat, p.buf, 0)
	if err != nil {
		return
	}
	p.samples[0], p.samples[1] = parseIdle(p.samples[1][:0], p.buf[:n]), p.samples[0]
	since := p.sampledAt
	if p.sampledAt = now; since == 0 {
		return
	}
	best, most, here := p.idlest()
	age := now.Sub(since)
	enough := age / 10
	if p.cpu >= 0 {
		enough = max(enough, time.Duration(share/2*float64(age))) // the lane takes its load along
	}
	switch {
	case best >= 0 && most >= here+enough:
		if rand.N(2) == 0 { // a lane on the same processor may move as well
			return
		}
		one := only(best)
		if unix.SchedSetaffinity(0, &one) == nil {
			p.cpu = best
		}
	case long:
		p.release()
	}
}

// idlest compares the samples: which of the lane's processors was idle most, for how long, and for how long the one was
// idle to which the lane is pinned.
func (p *placement) idlest() (best int, most, here time.Duration) {
	best = -1
	for i, c := range p.samples[0] {
		if i >= len(p.samples[1]) || p.samples[1][i].cpu != c.cpu || !p.may.IsSet(c.cpu) {
			continue // a processor was added or removed
		}
		idle := time.Duration(c.ticks-p.samples[1][i].ticks) * procTick
		if c.cpu == p.cpu {
			here = idle
		}
		if idle > most {
			best, most = c.cpu, idle
		}
	}
	return best, most, here
}

// parseSchedstat reads "run wait slices", of which the times are in nanoseconds.
func parseSchedstat(b []byte) (t threadTimes, ok bool) {
	f := bytes.Fields(b)
	if len(f) < 2 {
		return t, false
	}
	run, err := strconv.ParseInt(string(f[0]), 10, 64)
	wait, err2 := strconv.ParseInt(string(f[1]), 10, 64)
	return threadTimes{time.Duration(run), time.Duration(wait)}, err == nil && err2 == nil
}

// parseProcessor returns the processor on which the thread runs: field 39 of /proc/thread-self/stat. The second field,
// a name in parentheses, may contain any character.
func parseProcessor(b []byte) (cpu int, ok bool) {
	const behind, processor = 3, 39 // the field that follows the name
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) <= processor-behind {
		return 0, false
	}
	cpu, err := strconv.Atoi(string(f[processor-behind]))
	return cpu, err == nil && cpu >= 0
}

// parseIdle appends the idle times of the lines "cpuN user nice system idle …" of /proc/stat, which come first.
func parseIdle(dst []idleTime, b []byte) []idleTime {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 5 || !bytes.HasPrefix(f[0], []byte("cpu")) {
			break
		}
		cpu, err := strconv.Atoi(string(f[0][3:])) // the first line is the sum, without a number
		ticks, err2 := strconv.ParseUint(string(f[4]), 10, 64)
		if err == nil && err2 == nil && cpu >= 0 {
			dst = append(dst, idleTime{cpu, ticks})
		}
	}
	return dst
}

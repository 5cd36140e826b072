// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestParseSchedstat parses the statistics of a thread, and refuses truncated and other texts.
func TestParseSchedstat(t *testing.T) {
	got, ok := parseSchedstat([]byte("123456789 42 17\n"))
	if want := (threadTimes{123456789, 42}); !ok || got != want {
		t.Errorf("got %v, %v, want %v", got, ok, want)
	}
	for _, s := range []string{"", "123", "a b c", "12 b", "99999999999999999999 1 1"} {
		if _, ok := parseSchedstat([]byte(s)); ok {
			t.Errorf("%q is taken", s)
		}
	}
}

// TestParseProcessor parses the processor of a thread with a name that looks like fields, and nothing
// of truncated texts.
func TestParseProcessor(t *testing.T) {
	const line = "17 (a) R 1 (b) S 1 17 17 0 -1 64 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 10 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0\n"
	if cpu, ok := parseProcessor([]byte(line)); !ok || cpu != 5 {
		t.Errorf("processor %d, %v, want 5", cpu, ok)
	}
	for _, s := range []string{"", "17 (weft) R 1", "17 (weft)", strings.Replace(line, " 17 5 ", " 17 x ", 1),
		strings.Replace(line, " 17 5 ", " 17 -5 ", 1)} {
		if cpu, ok := parseProcessor([]byte(s)); ok {
			t.Errorf("%q has processor %d", s, cpu)
		}
	}
}

const procStat = "cpu  100 0 300 4000 5 0 6 7 0 0\ncpu0 50 0 150 1900 5 0 6 7 0 0\ncpu2 50 0 150 2100 0 0 0 0 0 0\nintr 12345 0 1\nctxt 5\n"

// TestParseIdle reads the idle times of processors, of which one is off line, and nothing else, however much of
// the file there is.
func TestParseIdle(t *testing.T) {
	want := []idleTime{{0, 1900}, {2, 2100}}
	if got := parseIdle(nil, []byte(procStat)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for n := range len(procStat) {
		if got := parseIdle(nil, []byte(procStat[:n])); len(got) > 2 {
			t.Fatalf("of %d octets: %v", n, got)
		}
	}
}

// TestIdlest compares two samples: processors that the lane may not use, or that came in between, do not
// count.
func TestIdlest(t *testing.T) {
	p := &placement{cpu: 0}
	p.may.Set(0)
	p.may.Set(2)
	p.samples[1] = []idleTime{{0, 100}, {1, 100}, {2, 100}, {3, 100}}
	p.samples[0] = []idleTime{{0, 101}, {1, 110}, {2, 105}, {4, 190}}
	best, most, here := p.idlest()
	if best != 2 || most != 5*procTick || here != procTick {
		t.Errorf("processor %d for %v, %v here, want 2, %v, %v", best, most, here, 5*procTick, procTick)
	}
}

// TestPlacement takes a thread through a load of streams and out of it: it is one among others while that lasts, and
// afterwards has its processors and its priority again.
func TestPlacement(t *testing.T) {
	done := make(chan struct{})
	go func() { // its thread ends with it, whatever became of that
		defer close(done)
		runtime.LockOSThread()
		var all unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			t.Error(err)
			return
		}
		raisePriority(false)
		raised, _ := unix.SchedGetAttr(0, 0)
		p := newPlacement(1)
		defer p.close()
		if p.next == 0 {
			t.Error("the kernel does not tell what a placement must know")
			return
		}
		spin := func(d time.Duration) { // of the thread's own time: the machine may be busy
			start, _ := threadTime(p)
			for {
				if now, ok := threadTime(p); !ok || now-start >= d {
					return
				}
			}
		}
		spin(10 * time.Millisecond)
		p.review(p.last.Add(20*time.Millisecond), true)
		if a, err := unix.SchedGetAttr(0, 0); err != nil || !p.gentle || a.Nice != 0 {
			t.Errorf("under load: gentle %v, nice %v (%v)", p.gentle, a, err)
		}
		// It keeps to a processor, unless it has but one.
		p.release()
		p.pin()
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(0, &now); err != nil || now.Count() != 1 ||
			(p.cpu < 0 || now != only(p.cpu)) && all.Count() > 1 {
			t.Errorf("it may run on %d processors and is to keep to %d (%v)", now.Count(), p.cpu, err)
		}
		p.review(p.last.Add(time.Hour), true) // in which it did next to nothing
		if err := unix.SchedGetaffinity(0, &now); err != nil || now != all || p.cpu >= 0 {
			t.Errorf("after the load the thread keeps to processor %d of %v", p.cpu, all.Count())
		}
		if a, err := unix.SchedGetAttr(0, 0); err != nil || p.gentle || a.Nice != raised.Nice {
			t.Errorf("after the load: gentle %v, nice %v, want %v (%v)", p.gentle, a.Nice, raised.Nice, err)
		}
		spin(10 * time.Millisecond)
		if p.review(p.last.Add(20*time.Millisecond), false); p.gentle {
			t.Error("a lane that works for programs is not as important as they want it")
		}
	}()
	<-done
}

// TestPlacementYields sets the affinity of a lane from outside, before it moved and after: that takes
// precedence over all later moves.
func TestPlacementYields(t *testing.T) {
	done := make(chan struct{})
	go func() { // its thread ends with it
		defer close(done)
		runtime.LockOSThread()
		p := newPlacement(1)
		defer p.close()
		var of []int
		for cpu := range len(p.may) * 64 {
			if p.may.IsSet(cpu) {
				of = append(of, cpu)
			}
		}
		if p.next == 0 || len(of) < 2 {
			t.Logf("of %d processors there is none to choose", len(of))
			return
		}
		other := only(of[1])
		if err := unix.SchedSetaffinity(0, &other); err != nil {
			t.Error(err)
			return
		}
		if p.move(2, 1, true); p.may != other || p.cpu >= 0 {
			t.Errorf("may run on %d processors, keeps to %d", p.may.Count(), p.cpu)
		}
		p.may.Set(of[0])
		p.cpu = of[0] // its processor before the change from outside
		p.release()
		var is unix.CPUSet
		if err := unix.SchedGetaffinity(0, &is); err != nil || is != other || p.may != other || p.cpu >= 0 {
			t.Errorf("after a release the thread may run on %d processors, and is to keep to %d (%v)", is.Count(),
				p.cpu, err)
		}
	}()
	<-done
}

// threadTime is how long the thread ran.
func threadTime(p *placement) (time.Duration, bool) {
	var b [64]byte
	n, err := unix.Pread(p.sched, b[:], 0)
	if err != nil {
		return 0, false
	}
	t, ok := parseSchedstat(b[:n])
	return t.run, ok
}

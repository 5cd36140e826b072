// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/mono"
)

// run ticks both ends every 10 ms from one time to another; ab and ba are whether hellos pass in that
// direction.
func run(a, b *end, from, to mono.Time, ab, ba bool) {
	for now := from; now < to; now += 10 * ms {
		a.core.Tick(now)
		b.core.Tick(now)
		for range 4 {
			for _, d := range a.control(now) {
				if ab {
					b.handle(now, d)
				}
			}
			for _, d := range b.control(now) {
				if ba {
					a.handle(now, d)
				}
			}
		}
	}
}

func (e *end) wantEvents(want ...string) {
	e.t.Helper()
	if !slices.Equal(e.events, want) {
		e.t.Errorf("events of %x: %q, want %q", uint64(e.core.cfg.Node), e.events, want)
	}
	e.events = nil
}

const upA, upB = "up=true node=a0 restarted=false", "up=true node=b0 restarted=false"
const downA, downB = "up=false node=a0 restarted=false", "up=false node=b0 restarted=false"

func TestUpWithinOneRoundTrip(t *testing.T) {
	a, b := newEnd(t, 0xa0, 0xb0, 1472, 0), newEnd(t, 0xb0, 0xa0, 1472, 0)
	join(ms, a, b, 1)
	a.core.Tick(5 * ms) // only one end has begun
	hello := a.control(5 * ms)
	if len(hello) != 1 {
		t.Fatalf("%d datagrams, want a hello", len(hello))
	}
	b.handle(6*ms, hello[0])
	b.wantEvents() // nothing has proved yet that a receives its datagrams
	for _, d := range b.control(6 * ms) {
		a.handle(7*ms, d)
	}
	a.wantEvents(upB)
	s := a.core.Status(0)
	if s.Node != 0xb0 || s.Since != 7*ms || s.LastRTT != 2*time.Millisecond || s.RTT != 2*time.Millisecond ||
		s.Ups != 1 {
		t.Errorf("status %+v", s)
	}
	for _, d := range a.control(7 * ms) {
		b.handle(8*ms, d)
	}
	b.wantEvents(upA)
}

func TestDownAfter300ms(t *testing.T) {
	a, b := pair(t, 1472)
	a.events, b.events = nil, nil
	run(a, b, 10*ms, 1000*ms, true, true)
	a.wantEvents()
	b.wantEvents()
	// Nothing passes from here on; the last hello did at 900 ms or later.
	run(a, b, 1000*ms, 1190*ms, false, false)
	a.wantEvents()
	run(a, b, 1190*ms, 1300*ms, false, false)
	a.wantEvents(downB)
	b.wantEvents(downA)
	if s := a.core.Status(0); s.Up || s.Node != 0xb0 || s.Downs != 1 {
		t.Errorf("status %+v", s)
	}
	run(a, b, 1300*ms, 1410*ms, true, true)
	a.wantEvents(upB)
	b.wantEvents(upA)
}

// TestDeadlineIsExact: nothing happens before Deadline, and the trunk goes down
// at 300 ms to the nanosecond.
func TestDeadlineIsExact(t *testing.T) {
	a, _ := pair(t, 1472)
	a.events = nil
	now := ms
	for range 10 {
		d := a.core.Deadline()
		if d <= now {
			t.Fatalf("deadline %d at %d", d, now)
		}
		a.core.Tick(d - 1)
		if n := len(a.control(d - 1)); n != 0 || a.core.Deadline() != d {
			t.Fatalf("%d datagrams before the deadline", n)
		}
		now = d
		a.core.Tick(now)
		a.control(now)
		if len(a.events) > 0 {
			break
		}
	}
	a.wantEvents(downB)
	if now != ms.Add(DownAfter) {
		t.Errorf("down at %d, want %d", now, ms.Add(DownAfter))
	}
}

// TestOneWay: a trunk that works in one direction is down at both ends.
func TestOneWay(t *testing.T) {
	a, b := pair(t, 1472)
	a.events, b.events = nil, nil
	run(a, b, 10*ms, 800*ms, true, false)
	a.wantEvents(downB) // receives nothing
	b.wantEvents(downA) // learns it from the hello
	run(a, b, 800*ms, 3000*ms, true, false)
	a.wantEvents()
	b.wantEvents()
	run(a, b, 3000*ms, 3200*ms, true, true)
	a.wantEvents(upB)
	b.wantEvents(upA)
}

// TestDataKeepsUp: hellos may be lost in a flood of data.
func TestDataKeepsUp(t *testing.T) {
	a, b := pair(t, 1472)
	b.events = nil
	for now := 100 * ms; now < 2000*ms; now += 200 * ms {
		a.core.Status(0)
		a.send(0, random(100))
		for _, d := range a.datagrams() {
			b.handle(now, d)
		}
		b.core.Tick(now)
	}
	b.wantEvents()
}

// TestLongRoundTrip: a path with a round trip of 500 ms comes up once and stays.
func TestLongRoundTrip(t *testing.T) {
	a, b := newEnd(t, 0xa0, 0xb0, 1472, 0), newEnd(t, 0xb0, 0xa0, 1472, 0)
	join(ms, a, b, 1)
	type flight struct {
		at mono.Time
		to *end
		d  []byte
	}
	var sky []flight
	for now := ms; now < 5000*ms; now += 10 * ms {
		for len(sky) > 0 && sky[0].at <= now {
			sky[0].to.handle(now, sky[0].d)
			sky = sky[1:]
		}
		for _, e := range []*end{a, b} {
			e.core.Tick(now)
			to := a
			if e == a {
				to = b
			}
			for _, d := range e.control(now) {
				sky = append(sky, flight{now + 250*ms, to, d})
			}
		}
	}
	a.wantEvents(upB)
	b.wantEvents(upA)
	if rtt := a.core.Status(0).RTT; rtt < 500*time.Millisecond || rtt > 520*time.Millisecond {
		t.Errorf("round trip %v", rtt)
	}
}

// TestLateHello: a hello from before the peer received ours, overtaken by later ones, does not take
// the trunk down.
func TestLateHello(t *testing.T) {
	a, b := newEnd(t, 0xa0, 0xb0, 1472, 0), newEnd(t, 0xb0, 0xa0, 1472, 0)
	join(ms, a, b, 1)
	b.core.Tick(ms)
	late := b.control(ms)
	run(a, b, 10*ms, 300*ms, true, true)
	a.wantEvents(upB)
	a.handle(300*ms, late[0])
	a.wantEvents()
}

// TestRoundTripTimes: a reply gives one round trip, and only to a hello of
// late.
func TestRoundTripTimes(t *testing.T) {
	a, b := pair(t, 1472)
	now := 100 * ms
	for range 20 {
		now += 100 * ms
		a.core.Tick(now)
		for _, d := range a.control(now) {
			b.handle(now, d)
		}
		for _, d := range b.control(now) {
			a.handle(now+4*ms, d)
			a.handle(now+90*ms, d) // again
		}
	}
	s := a.core.Status(0)
	if s.LastRTT != 4*time.Millisecond || s.RTT > 4*time.Millisecond || s.RTT < 3*time.Millisecond {
		t.Errorf("round trip %v, the last %v", s.RTT, s.LastRTT)
	}
}

// TestSequence: the results of a stream's sequence numbers, and that streams are independent.
func TestSequence(t *testing.T) {
	a, b := pair(t, 1472)
	for range 8 {
		a.send(0, random(1400))
	}
	d := a.datagrams()
	for _, i := range []int{0, 1, 4, 3, 3, 6, 0} {
		b.handle(2*ms, d[i])
	}
	s := b.core.Status(0)
	if s.Lost != 2 || s.Reordered != 1 || s.Drop[Duplicate] != 2 || s.Packets != 5 {
		t.Errorf("lost %d, reordered %d, duplicates %d, packets %d", s.Lost, s.Reordered, s.Drop[Duplicate], s.Packets)
	}
	// Another stream begins anywhere.
	other := NewBatch(4, func(int) Remote { return a.core.Remote(0) })
	other.number[0] = 1 << 40
	a.batch = other
	a.send(0, random(9))
	b.handle(2*ms, a.datagrams()[0])
	if s2 := b.core.Status(0); s2.Lost != 2 || s2.Packets != 6 {
		t.Errorf("%+v", s2)
	}
}

func TestConfigErrors(t *testing.T) {
	many := make([]PeerConfig, MaxPeers+1)
	for i := range many {
		many[i].Addr = netip.AddrPortFrom(addr(1).Addr(), uint16(i+1))
	}
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "must not be 0"},
		{Config{Node: 1, Peers: many}, "too many"},
		{Config{Node: 1, Peers: []PeerConfig{{Addr: addr(2)}, {Addr: addr(3), Node: 1}}}, "has this node's GUID"},
		{Config{Node: 1, Peers: []PeerConfig{{Addr: addr(2)}, {Addr: addr(2)}}}, "is given twice, as peer 0"},
		{Config{Node: 1, Peers: []PeerConfig{{Addr: addr(2), Node: 3}, {Node: 3}}}, "is given twice, as peer 0"},
		{Config{Node: 1, Peers: []PeerConfig{{}}}, "needs its node GUID"},
		{Config{Node: 1, HelloEvery: -1}, "positive"},
		{Config{Node: 1, HelloEvery: 2, DownAfter: 1}, "positive"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want ...%s...", c.cfg, err, c.want)
		}
	}
	c, err := New(Config{Node: 1})
	if err != nil || c.Deadline() != 0 || c.Peers() != 0 {
		t.Errorf("no peers: %v, deadline %v", err, c.Deadline())
	}
}

func TestHandleAllocatesNothing(t *testing.T) {
	a, b := pair(t, 1472)
	a.newBatch()
	data := random(4178)
	var d [][]byte
	count := 0
	deliver := func(int, []byte) { count++ }
	n := testing.AllocsPerRun(50, func() {
		for range 10 {
			copy(a.batch.Reserve(0, len(data)), data)
			a.batch.Commit(0, len(data))
			copy(a.batch.Reserve(0, 20), data)
			a.batch.Commit(0, 20)
		}
		for i := range a.batch.Trains() {
			t := &a.batch.Trains()[i]
			for _, p := range a.batch.Pieces(t) {
				_ = p
			}
		}
		a.batch.Reset()
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	for range 52 {
		a.send(0, data, data, random(20))
		d = append(d, a.datagrams()...)
	}
	each := len(d) / 52
	n = testing.AllocsPerRun(50, func() {
		for _, x := range d[:each] {
			b.core.Handle(ms, addr(0xa0), x, deliver)
		}
		d = d[each:]
		b.core.Recycle()
	})
	if n != 0 || count != 3*51 {
		t.Errorf("%v allocations for %d packets, want 0 for %d: %+v", n, count, 3*51, b.core.Status(0))
	}
}

// SPDX-License-Identifier: Apache-2.0

package replicate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// pipes are the receive queues of lanes; each takes room descriptors.
type pipes struct {
	room  int
	queue [][]Descriptor
}

func newPipes(lanes, room int) *pipes { return &pipes{room, make([][]Descriptor, lanes)} }

func (p *pipes) Inject(d Descriptor) bool {
	q := &p.queue[d.Dest.Lane]
	if len(*q) == p.room {
		return false
	}
	*q = append(*q, d)
	return true
}

// take removes the oldest descriptor of a lane.
func (p *pipes) take(lane int) Descriptor {
	d := p.queue[lane][0]
	p.queue[lane] = p.queue[lane][1:]
	return d
}

func (p *pipes) waiting() (n int) {
	for _, q := range p.queue {
		n += len(q)
	}
	return n
}

const testMLID ib.LID = 0xc001

var testMGID = ib.GID{0xff, 0x12, 15: 7}

// groups returns functions with per queue pairs each in one group, spread
// over lanes.
func groups(functions, per, lanes int) *Groups {
	g := &Groups{Functions: map[ib.LID][]uint16{}, Attached: map[GroupKey][]Dest{}}
	n := 0
	for f := range functions {
		g.Functions[testMLID] = append(g.Functions[testMLID], uint16(f+1))
		k := GroupKey{uint16(f + 1), testMGID}
		for q := range per {
			g.Attached[k] = append(g.Attached[k], Dest{Function: uint16(f + 1), Lane: uint8(n % lanes),
				QPN: ib.QPN(q + 2), MLID: testMLID})
			n++
		}
	}
	return g
}

func packet(seed uint64, n int) (*pkt.Burst, []byte) {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return &pkt.Burst{Count: 1, Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff, QKey: 0x11,
		SrcQPN: 5, DestQPN: ib.QPNMulticast, PSN: ib.PSN(seed)},
		Path: &ib.Path{DLID: testMLID, SLID: 9, DGID: testMGID, Global: true}, Data: mem.BytesPayload(b)}, b
}

func forms(t *testing.T, f func(t *testing.T, c Config)) {
	for _, dummy := range []bool{false, true} {
		t.Run(fmt.Sprintf("dummy=%v", dummy), func(t *testing.T) {
			f(t, Config{Payloads: 8, Threshold: 4, Requests: 16, Dummy: dummy})
		})
	}
}

// TestReferenceCount follows the count of one packet for four queue pairs as
// the text of the design does: 1 when stored, and back to 0 whatever the order
// in which copies are injected, the last is marked, and copies are read out.
func TestReferenceCount(t *testing.T) {
	forms(t, func(t *testing.T, c Config) {
		// Every way to mix 4 injections and 4 read-outs, a bit per step.
		for order := range 1 << 8 {
			p := newPipes(1, 100)
			e := New(c, p)
			g := groups(2, 2, 1)
			b := mem.NewBatch(4096)
			r, sent := packet(1, 100)
			want := bytes.Clone(sent)
			if e.Receive(r, NoFunction, b) != mem.OK || e.Payloads() != 1 {
				t.Fatal("not stored")
			}
			clear(r.Data.Bytes) // the store has a copy of its own
			injected, read := 0, 0
			var stored *Packet
			for step := 0; read < 4; step++ {
				if injected < 4 && (order>>step&1 == 0 || injected == read) {
					e.Run(g, 1)
					injected++
				} else if read < injected {
					d := p.take(0)
					stored = d.Packet
					if !bytes.Equal(d.Payload(), want) {
						t.Fatalf("order %#x: copy %d has other bytes", order, read)
					}
					d.Release()
					read++
				}
				if stored == nil {
					continue
				}
				held := injected - read
				if injected < 4 || c.Dummy && e.Counters.Dummies == 0 {
					held++ // the initial count
				}
				if got := int(stored.refs.Load()); got != held {
					t.Fatalf("order %#x: %d injected, %d read: count %d, want %d", order, injected, read, got, held)
				}
			}
			for e.Run(g, 1) {
			}
			if e.Payloads() != 0 || e.details.len() != 0 || e.Counters.Popped != 1 {
				t.Fatalf("order %#x: %d payloads, %d details remain", order, e.Payloads(), e.details.len())
			}
			if last := uint64(1); c.Dummy && e.Counters.Dummies != last || !c.Dummy && e.Counters.Last != last {
				t.Fatalf("initial count given back by %d marks and %d dummies", e.Counters.Last, e.Counters.Dummies)
			}
		}
	})
}

// TestMembers: the MLID leads to functions, the MGID to their queue pairs, the
// sender's function included, each once.
func TestMembers(t *testing.T) {
	forms(t, func(t *testing.T, c Config) {
		g := groups(3, 2, 1)
		other := GroupKey{2, testMGID}
		// same MGID, another MLID
		g.Attached[other] = append(g.Attached[other], Dest{Function: 2, QPN: 99, MLID: 0xc002})
		g.Attached[GroupKey{9, testMGID}] = []Dest{{Function: 9, QPN: 77, MLID: testMLID}} // not in the port set
		for _, x := range []struct {
			name string
			from uint16
			want []string
		}{
			{"from elsewhere", NoFunction, []string{"1/2", "1/3", "2/2", "2/3", "3/2", "3/3"}},
			{"from a member", 2, []string{"2/2", "2/3", "1/2", "1/3", "3/2", "3/3"}},
			{"from a function outside the port set", 9, []string{"9/77", "1/2", "1/3", "2/2", "2/3", "3/2", "3/3"}},
		} {
			p := newPipes(1, 100)
			e := New(c, p)
			r, _ := packet(1, 8)
			e.Receive(r, x.from, mem.NewBatch(4096))
			for e.Run(g, 1) {
			}
			var got []string
			for p.waiting() > 0 {
				d := p.take(0)
				got = append(got, fmt.Sprintf("%d/%d", d.Dest.Function, d.Dest.QPN))
				d.Release()
			}
			if !slices.Equal(got, x.want) || e.Payloads() != 0 {
				t.Errorf("%s: copies for %v, want %v; %d payloads remain", x.name, got, x.want, e.Payloads())
			}
		}
		// A group of an Ethernet port has no MLID.
		p := newPipes(1, 100)
		e := New(c, p)
		r, _ := packet(1, 8)
		r.Path.DLID, r.Path.Function = 0, 4
		g.Attached[GroupKey{4, testMGID}] = []Dest{{Function: 4, QPN: 5}}
		e.Receive(r, NoFunction, mem.NewBatch(4096))
		e.Run(g, 10)
		if p.waiting() != 1 || p.queue[0][0].Dest.QPN != 5 {
			t.Errorf("Ethernet group: %d copies", p.waiting())
		}
	})
}

// TestNobody: a packet without members leaves nothing behind.
func TestNobody(t *testing.T) {
	forms(t, func(t *testing.T, c Config) {
		e := New(c, newPipes(1, 1))
		for i := range uint64(20) {
			r, _ := packet(i, 8)
			e.Receive(r, NoFunction, mem.NewBatch(4096))
			for e.Run(&Groups{}, 1) {
			}
		}
		if e.Payloads() != 0 || e.details.len() != 0 || e.Counters.NoMembers != 20 {
			t.Errorf("%d payloads, %d details, counters %+v", e.Payloads(), e.details.len(), e.Counters)
		}
	})
}

// TestThreshold: beyond the threshold packets are dropped and counted; with
// the maximum the store is the bound. The store never exceeds its own.
func TestThreshold(t *testing.T) {
	for _, x := range []struct{ threshold, want int }{{3, 3}, {Maximum, 5}} {
		e := New(Config{Payloads: 5, Threshold: x.threshold, Requests: 4}, newPipes(1, 4))
		for i := range uint64(9) {
			r, _ := packet(i, 8)
			e.Receive(r, NoFunction, mem.NewBatch(4096))
		}
		c := e.Counters
		dropped := c.DropThreshold
		if x.threshold == Maximum {
			dropped = c.DropPayload
		}
		if e.Payloads() != x.want || int(dropped) != 9-x.want || c.HighPayloads > 5 {
			t.Errorf("threshold %d: %d stored, counters %+v", x.threshold, e.Payloads(), c)
		}
	}
}

type noMemory struct{ mem.Space }

func (noMemory) View(addr, n uint64) []byte          { return nil }
func (noMemory) ReadV(addr uint64, d [][]byte) error { return mem.ErrFault }

// TestClose: whatever is on its way when an engine ends, no count remains once
// the descriptors that were injected are released.
func TestClose(t *testing.T) {
	forms(t, func(t *testing.T, c Config) {
		for steps := range 20 {
			p := newPipes(2, 3)
			e := New(c, p)
			g := groups(3, 2, 2)
			for i := range uint64(4) {
				r, _ := packet(i, 8)
				e.Receive(r, NoFunction, mem.NewBatch(4096))
			}
			for range steps {
				e.Run(g, 1)
			}
			if !e.Pending() {
				t.Fatal("nothing was on its way")
			}
			e.Close()
			for lane := range p.queue {
				for len(p.queue[lane]) > 0 {
					d := p.take(lane)
					d.Release()
				}
			}
			if e.Payloads() != 0 || e.Pending() || e.details.len() != 0 {
				t.Fatalf("after %d steps: %d payloads, %d details", steps, e.Payloads(), e.details.len())
			}
			r, _ := packet(9, 8)
			e.Receive(r, NoFunction, mem.NewBatch(4096))
			for e.Run(&Groups{}, 1) {
			}
			if e.Payloads() != 0 {
				t.Fatal("the engine does not work any more")
			}
		}
	})
}

// TestFirst: the first copy of each function is marked, whichever copies came
// before.
func TestFirst(t *testing.T) {
	g := groups(3, 3, 1)
	g.Attached[GroupKey{2, testMGID}][0].MLID = 0xc002 // not of this group
	p := newPipes(1, 100)
	e := New(Config{Payloads: 2, Requests: 4}, p)
	r, _ := packet(1, 8)
	e.Receive(r, 3, mem.NewBatch(4096))
	for e.Run(g, 1) {
	}
	var got []string
	for _, d := range p.queue[0] {
		got = append(got, fmt.Sprintf("%d/%d %v", d.Dest.Function, d.Dest.QPN, d.First))
	}
	want := []string{"3/2 true", "3/3 false", "3/4 false", "1/2 true", "1/3 false", "1/4 false", "2/3 true",
		"2/4 false"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestBurst: packets of one group that wait together go to member after member,
// in order for each; another group, source or port waits its turn. Whatever the
// order, the details are popped in that of arrival.
func TestBurst(t *testing.T) {
	forms(t, func(t *testing.T, c Config) {
		c.Threshold = Maximum
		g := groups(2, 1, 1)
		other := testMGID
		other[15] = 8
		for f := range uint16(2) {
			g.Attached[GroupKey{f + 1, other}] = []Dest{{Function: f + 1, QPN: 7, MLID: testMLID}}
		}
		p := newPipes(1, 100)
		e := New(c, p)
		for i, x := range []struct {
			from uint16
			mgid ib.GID
		}{{NoFunction, testMGID}, {NoFunction, testMGID}, {NoFunction, other}, {2, other}, {2, other}, {NoFunction,
			testMGID}} {
			r, _ := packet(uint64(i), 8)
			r.Path.DGID = x.mgid
			e.Receive(r, x.from, mem.NewBatch(4096))
		}
		for e.Run(g, 1) {
			if front := e.details.len(); front > 0 && e.Counters.Popped != uint64((*e.details.front()).Run.PSN) {
				t.Fatalf("%d popped, packet %d is the oldest", e.Counters.Popped, (*e.details.front()).Run.PSN)
			}
		}
		var got []string
		for p.waiting() > 0 {
			d := p.take(0)
			s := fmt.Sprintf("%d to %d/%d", d.Run.PSN, d.Dest.Function, d.Dest.QPN)
			if d.Last {
				s += " last"
			}
			got = append(got, s)
			d.Release()
		}
		want := []string{"0 to 1/2", "1 to 1/2", "0 to 2/2 last", "1 to 2/2 last", "2 to 1/7", "2 to 2/7 last",
			"3 to 2/7", "4 to 2/7", "3 to 1/7 last", "4 to 1/7 last", "5 to 1/2", "5 to 2/2 last"}
		if c.Dummy {
			for i := range want {
				want[i] = strings.TrimSuffix(want[i], " last")
			}
		}
		if !slices.Equal(got, want) || e.Payloads() != 0 {
			t.Errorf("%q, want %q; %d payloads remain", got, want, e.Payloads())
		}
	})
}

// TestBudget: one call does no more than its budget, whatever waits.
func TestBudget(t *testing.T) {
	p := newPipes(1, 1000)
	e := New(Config{Payloads: 100, Requests: 100}, p)
	g := groups(8, 4, 1)
	for i := range uint64(50) {
		r, _ := packet(i, 8)
		e.Receive(r, NoFunction, mem.NewBatch(4096))
	}
	for i := 1; i <= 10; i++ {
		e.Run(g, 5)
		if c := e.Counters; c.Injected > uint64(5*i) || c.Requested > uint64(12*i) {
			t.Fatalf("call %d: %d injected, %d looked at", i, c.Injected, c.Requested)
		}
	}
	for e.Run(&Groups{}, 5) { // those without members count too
		if e.Counters.NoMembers > 12 {
			break
		}
		if before := e.Counters.NoMembers; before > 0 {
			e.Run(&Groups{}, 5)
			if n := e.Counters.NoMembers - before; n > 12 {
				t.Fatalf("%d packets in one call", n)
			}
		}
	}
}

// TestSourceFault: a payload that cannot be read takes no place.
func TestSourceFault(t *testing.T) {
	e := New(Config{Payloads: 1, Requests: 1}, newPipes(1, 1))
	r, _ := packet(1, 8)
	r.Data = mem.ListPayload([]mem.Seg{{Region: &mem.Region{Space: noMemory{}, Len: 8}, Len: 8}}, 0, 8)
	if e.Receive(r, NoFunction, mem.NewBatch(4096)) != mem.SourceFault || e.Payloads() != 0 ||
		e.Counters.DropFault != 1 {
		t.Errorf("%d payloads, %+v", e.Payloads(), e.Counters)
	}
}

// TestSchedules drives random mixes of arrival, inspection, full lanes and
// read-out: every copy exact and in order per queue pair, every count back to
// zero, no bound exceeded.
func TestSchedules(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		lanes, functions, per := 1+rng.IntN(3), 1+rng.IntN(6), 1+rng.IntN(4)
		c := Config{Payloads: 1 + rng.IntN(6), Threshold: rng.IntN(5), Requests: 1 + rng.IntN(8),
			Dummy: rng.IntN(2) == 0}
		p := newPipes(lanes, 1+rng.IntN(4))
		e := New(c, p)
		g := groups(functions, per, lanes)
		b := mem.NewBatch(4096)
		sent := map[ib.PSN][]byte{}
		var accepted []ib.PSN
		got := map[string][]ib.PSN{}
		read := func(lane int) {
			d := p.take(lane)
			if !bytes.Equal(d.Payload(), sent[d.Run.PSN]) {
				t.Fatalf("seed %d: packet %d: other bytes", seed, d.Run.PSN)
			}
			k := fmt.Sprint(d.Dest.Function, d.Dest.QPN)
			got[k] = append(got[k], d.Run.PSN)
			d.Release()
		}
		for i := range uint64(60) {
			r, want := packet(i+1, rng.IntN(64))
			sent[r.PSN] = want
			before := e.details.len()
			if e.Receive(r, NoFunction, b); e.details.len() > before {
				accepted = append(accepted, r.PSN)
			}
			e.Run(g, rng.IntN(8))
			for l := range lanes {
				for range rng.IntN(4) {
					if len(p.queue[l]) > 0 {
						read(l)
					}
				}
			}
			if e.Payloads() > c.Payloads || c.Threshold != Maximum && e.infos.len() > c.Threshold {
				t.Fatalf("seed %d: %d payloads, %d in inspection", seed, e.Payloads(), e.infos.len())
			}
		}
		for e.Run(g, 3) || p.waiting() > 0 {
			for l := range lanes {
				if len(p.queue[l]) > 0 {
					read(l)
				}
			}
		}
		if len(got) != functions*per {
			t.Fatalf("seed %d: %d queue pairs got copies, want %d", seed, len(got), functions*per)
		}
		for k, psns := range got {
			if !slices.Equal(psns, accepted) {
				t.Fatalf("seed %d: %s got %v, want %v", seed, k, psns, accepted)
			}
		}
		if e.Payloads() != 0 || e.details.len() != 0 || e.requests.len() != 0 ||
			e.Counters.Popped != uint64(len(accepted)) {
			t.Fatalf("seed %d: left behind: %d payloads, %d details, %+v", seed, e.Payloads(), e.details.len(),
				e.Counters)
		}
	}
}

// concurrent hands descriptors to goroutines that stand for lanes.
type concurrent struct{ lanes []chan Descriptor }

func (c concurrent) Inject(d Descriptor) bool {
	select {
	case c.lanes[d.Dest.Lane] <- d:
		return true
	default:
		return false
	}
}

// TestLanes releases copies on several lanes at once; the race detector and
// the reference count watch.
func TestLanes(t *testing.T) {
	const lanes, packets = 4, 2000
	c := concurrent{}
	var wg sync.WaitGroup
	for range lanes {
		ch := make(chan Descriptor, 8)
		c.lanes = append(c.lanes, ch)
		wg.Go(func() {
			for d := range ch {
				for _, b := range d.Payload() {
					if b != byte(d.Run.PSN) {
						t.Errorf("packet %d holds the bytes of another", d.Run.PSN)
						break
					}
				}
				d.Release()
			}
		})
	}
	e := New(Config{Payloads: 16, Requests: 32}, c)
	g := groups(8, 2, lanes)
	b := mem.NewBatch(4096)
	for i := range uint64(packets) {
		r, buf := packet(i, 64)
		for j := range buf {
			buf[j] = byte(r.PSN)
		}
		for e.Payloads() == 16 {
			e.Run(g, 16)
		}
		e.Receive(r, NoFunction, b)
		e.Run(g, 16)
	}
	for e.Run(g, 100) {
	}
	for _, ch := range c.lanes {
		close(ch)
	}
	wg.Wait()
	if e.Payloads() != 0 || e.Counters.Injected != packets*16 {
		t.Errorf("%d payloads remain, %d copies", e.Payloads(), e.Counters.Injected)
	}
}

func TestNoAllocation(t *testing.T) {
	p := newPipes(1, 64)
	p.queue[0] = make([]Descriptor, 0, 64)
	e := New(Config{Payloads: 8, Requests: 64}, p)
	g := groups(4, 4, 1)
	b := mem.NewBatch(4096)
	r, _ := packet(1, 1024)
	if n := testing.AllocsPerRun(100, func() {
		e.Receive(r, NoFunction, b)
		e.Run(g, 64)
		for i := range p.queue[0] {
			p.queue[0][i].Release()
		}
		p.queue[0] = p.queue[0][:0]
	}); n != 0 {
		t.Errorf("%v allocations per packet", n)
	}
}

func BenchmarkReplicate(b *testing.B) {
	for _, n := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("%d_members", n), func(b *testing.B) {
			p := newPipes(1, n)
			p.queue[0] = make([]Descriptor, 0, n)
			e := New(DefaultConfig, p)
			g := groups(n, 1, 1)
			batch := mem.NewBatch(4096)
			r, _ := packet(1, 256)
			b.ReportAllocs()
			for b.Loop() {
				e.Receive(r, NoFunction, batch)
				e.Run(g, n)
				for i := range p.queue[0] {
					p.queue[0][i].Release()
				}
				p.queue[0] = p.queue[0][:0]
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/copy")
		})
	}
}

// TestClassGoesWithEachCopy: what was found out about the payload once goes with every
// copy, also with those of packets that were inspected together.
func TestClassGoesWithEachCopy(t *testing.T) {
	forms(t, func(t *testing.T, c Config) {
		g, p, b := groups(3, 2, 1), newPipes(1, 100), mem.NewBatch(4096)
		e := New(c, p)
		var want []Class
		for i := range 4 {
			r, _ := packet(1, 8)
			data := ip(t, "10.0.0.1", "239.1.2.3", protoUDP, 7, uint16(i), 20)
			if i == 2 {
				data[len(data)-1] ^= 1 // the checksum of UDP is wrong
			}
			r.Data = mem.BytesPayload(data)
			if e.Receive(r, NoFunction, b) != mem.OK {
				t.Fatal("not stored")
			}
			want = append(want, Classify(data))
			if k := want[i]; k.Kind != UDPv4 || k.L4OK != (i != 2) || k.Hash == 0 {
				t.Fatalf("%+v", k)
			}
		}
		for e.Run(g, 3) {
		}
		got := map[Dest][]Class{}
		for p.waiting() > 0 {
			d := p.take(0)
			got[d.Dest] = append(got[d.Dest], d.Class)
			d.Release()
		}
		if len(got) != 6 {
			t.Errorf("copies for %d queue pairs", len(got))
		}
		for dest, list := range got {
			if !slices.Equal(list, want) {
				t.Errorf("%+v: %+v, want %+v", dest, list, want)
			}
		}
	})
}

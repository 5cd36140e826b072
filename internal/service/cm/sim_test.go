// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// network is two or more hosts under a virtual clock, with a network that drops, duplicates and
// delays, and users with random behaviour. A seed decides all of it.
type network struct {
	t      *testing.T
	rng    *rand.Rand
	now    mono.Time
	hosts  []*simHost
	flight flight
	serial int
	loss   int  // per cent
	dup    int  // per cent
	jitter bool // reorders
	calm   bool // users do only what ends things
	pairs  []*pair
	limbo  time.Duration // the longest time from Connect to an outcome
}

type simHost struct {
	*host
	n     *network
	calls []call // of the user, later
}

type call struct {
	at mono.Time
	f  func()
}

// packet is a datagram under way.
type packet struct {
	at     mono.Time
	serial int
	to     *simHost
	d      mad.Datagram
}

type flight []packet

func (f flight) Len() int { return len(f) }
func (f flight) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].serial < f[j].serial
}
func (f flight) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push implements heap.Interface.
func (f *flight) Push(x any) { *f = append(*f, x.(packet)) }

// Pop implements heap.Interface.
func (f *flight) Pop() any {
	old := *f
	p := old[len(old)-1]
	*f = old[:len(old)-1]
	return p
}

// pair is a connection as both users see it. Its number is in the private data of the request.
type pair struct {
	n               int
	start           mono.Time
	active, passive end
}

// end is one user's view.
type end struct {
	c    *Conn
	up   bool // the user was notified, or confirmed, that it is established
	down bool // the user was notified that it is over, or failed
	let  bool // closed it
	qpn  ib.QPN
	psn  ib.PSN // what the user has its queue pair expect from the peer
	sq   ib.PSN
}

func newNetwork(t *testing.T, seed uint64, hosts int) *network {
	n := &network{t: t, rng: rand.New(rand.NewPCG(seed, 7)), now: 1}
	for i := range hosts {
		h := &simHost{host: newHost(t, fmt.Sprintf("10.0.0.%d", i+1), seed+uint64(i), Limits{}), n: n}
		n.hosts = append(n.hosts, h)
		if _, err := h.Listen(&ListenParams{ServiceID: IPService(SpaceTCP, 7471), Backlog: 16}, h.serve); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Listen(&ListenParams{ServiceID: IPService(SpaceUDP, 7471)}, h.serve); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// chance is true in p of 100 cases.
func (n *network) chance(p int) bool { return n.rng.IntN(100) < p }

func (n *network) soon(most time.Duration) mono.Time {
	return n.now.Add(time.Duration(n.rng.Int64N(int64(most))) + 1)
}

func (h *simHost) later(most time.Duration, f func()) {
	h.calls = append(h.calls, call{h.n.soon(most), f})
}

// carry takes what a host sends.
func (n *network) carry(h *simHost) {
	h.now = n.now
	for _, d := range h.sent() {
		to := n.at(d.DGID)
		if to == nil {
			n.t.Fatalf("sends to %v", d.DGID)
		}
		copies := 1
		if n.chance(n.dup) {
			copies = 2
		}
		for range copies {
			if n.chance(n.loss) {
				continue
			}
			at := n.now.Add(10 * time.Microsecond)
			if n.jitter {
				at = n.soon(200 * time.Millisecond)
				if n.chance(3) {
					at = n.soon(8 * time.Second) // longer than the timeout of the sender
				}
			}
			n.serial++
			heap.Push(&n.flight, packet{at, n.serial, to, d})
		}
	}
}

func (n *network) at(g ib.GID) *simHost {
	for _, h := range n.hosts {
		if ib.GIDFromAddr(h.eth.addr) == g {
			return h
		}
	}
	return nil
}

// step goes to the next thing that happens; false where nothing will before the given time.
func (n *network) step(until mono.Time) bool {
	for _, h := range n.hosts {
		n.carry(h)
	}
	next := until
	if len(n.flight) > 0 {
		next = min(next, n.flight[0].at)
	}
	for _, h := range n.hosts {
		if d := h.Deadline(); d != 0 {
			next = min(next, d)
		}
		for _, c := range h.calls {
			next = min(next, c.at)
		}
	}
	if next >= until {
		n.now = until
		return false
	}
	n.now = max(n.now, next)
	for _, h := range n.hosts {
		h.now = n.now
		calls := h.calls
		h.calls = nil
		for _, c := range calls {
			if c.at <= n.now {
				c.f()
			} else {
				h.calls = append(h.calls, c)
			}
		}
	}
	for len(n.flight) > 0 && n.flight[0].at <= n.now {
		p := heap.Pop(&n.flight).(packet)
		p.to.Handle(n.now, 0, &p.d)
	}
	return true
}

func (n *network) run(d time.Duration) {
	for until := n.now.Add(d); n.step(until); {
	}
}

// connect makes a host's user request a connection.
func (h *simHost) connect(to *simHost) {
	n := h.n
	p := &pair{n: len(n.pairs), start: n.now}
	n.pairs = append(n.pairs, p)
	p.active.qpn = ib.QPN(0x100 + 2*p.n)
	c, err := h.Connect(n.now, &ConnectParams{ServiceID: IPService(SpaceTCP, 7471), Path: h.path(to.host),
		QPType: ib.RC, QPN: p.active.qpn,
		ResponderResources: 4, InitiatorDepth: 16, RetryCount: 7, RNRRetry: 7, PrivateData: []byte{byte(p.n >> 8),
			byte(p.n)}},
		func(now mono.Time, e *Event) { h.handle(p, &p.active, true, e) })
	if err != nil {
		n.t.Fatal(err)
	}
	p.active.c = c
	if !n.calm && n.chance(10) {
		h.later(20*time.Second, func() { h.let(&p.active) })
	}
}

func (h *simHost) let(v *end) {
	if !v.let {
		v.let = true
		v.c.Close(h.n.now)
	}
}

// serve is the user of a host's listeners.
func (h *simHost) serve(now mono.Time, e *Event) {
	n := h.n
	if e.Kind == LookupRequest {
		h.later(100*time.Millisecond, func() {
			if err := e.Inquiry.Accept(n.now, 0x77, 0x1234567, nil); err != nil {
				n.t.Errorf("accept an inquiry: %v", err)
			}
		})
		return
	}
	if e.Kind != ConnectRequest {
		n.t.Fatalf("a listener gets %v", e.Kind)
	}
	p := n.pairs[int(e.Request.PrivateData[0])<<8|int(e.Request.PrivateData[1])]
	v := &p.passive
	if v.c != nil && !v.down && !v.let {
		n.t.Errorf("connection %d is requested twice", p.n)
	}
	*v = end{c: e.Conn, qpn: ib.QPN(0x101 + 2*p.n)}
	e.Conn.SetHandler(func(now mono.Time, e *Event) { h.handle(p, v, false, e) })
	h.later(time.Duration(1+n.rng.IntN(30))*time.Second, func() {
		switch {
		case v.let || v.down || v.c != e.Conn:
		case !n.calm && n.chance(10):
			v.down = true
			if err := v.c.Reject(n.now, ReasonConsumer, nil, []byte("no")); err != nil {
				n.t.Errorf("reject: %v", err)
			}
		case !n.calm && n.chance(5):
			h.let(v)
		default:
			h.ready(v)
			if err := v.c.Accept(n.now, &AcceptParams{QPN: v.qpn, ResponderResources: 16, InitiatorDepth: 16,
				RNRRetry: 7}); err != nil {
				n.t.Errorf("accept: %v", err)
			}
		}
	})
}

// ready notes what the user's queue pair is set to.
func (h *simHost) ready(v *end) {
	a, _, err := v.c.QPAttr(ib.RTR)
	b, _, err2 := v.c.QPAttr(ib.RTS)
	if err != nil || err2 != nil {
		h.n.t.Errorf("attributes: %v, %v", err, err2)
	}
	v.psn, v.sq = a.RQPSN, b.SQPSN
}

// handle is the user of a connection.
func (h *simHost) handle(p *pair, v *end, active bool, e *Event) {
	n := h.n
	if v.let {
		n.t.Errorf("connection %d: %v after it was closed", p.n, e.Kind)
	}
	outcome := func() {
		if active && !v.up && !v.down {
			n.limbo = max(n.limbo, n.now.Sub(p.start))
		}
	}
	switch e.Kind {
	case Response:
		h.ready(v)
		h.later(15*time.Second, func() {
			if v.let || v.down {
				return
			}
			if !n.calm && n.chance(5) {
				v.down = true
				if err := v.c.Reject(n.now, ReasonConsumer, nil, nil); err != nil {
					n.t.Errorf("reject a response: %v", err)
				}
				return
			}
			outcome()
			v.up = true
			if err := v.c.Establish(n.now, nil); err != nil {
				n.t.Errorf("establish: %v", err)
			}
			h.enjoy(v)
		})
	case Established:
		if v.up || v.down || active {
			n.t.Errorf("connection %d: established (up %v, down %v, active %v)", p.n, v.up, v.down, active)
		}
		v.up = true
		h.enjoy(v)
	case Rejected, Unreachable:
		outcome()
		if v.down || v.up {
			n.t.Errorf("connection %d: %v, but it was up %v or down %v", p.n, e.Kind, v.up, v.down)
		}
		v.down = true
	case Disconnected:
		if v.down {
			n.t.Errorf("connection %d is disconnected twice", p.n)
		}
		v.down = true
	case TimewaitExit:
		if !v.down {
			n.t.Errorf("connection %d leaves TIMEWAIT before it is over", p.n)
		}
	}
}

// enjoy has the user end the connection some time.
func (h *simHost) enjoy(v *end) {
	n := h.n
	if n.calm {
		return
	}
	switch {
	case n.chance(30):
		h.later(30*time.Second, func() {
			if !v.let && !v.down {
				if err := v.c.Disconnect(n.now, nil); err != nil {
					n.t.Errorf("disconnect: %v", err)
				}
			}
		})
	case n.chance(30):
		h.later(30*time.Second, func() { h.let(v) })
	}
}

// seeds is which ones a test takes: a few, or many with WEFT_SOAK=1.
func seeds(few, many int) int {
	if condtest.Soak() {
		return many
	}
	return few
}

// TestSimulation connects under loss, duplication and reordering, with users that accept, reject,
// wait, disconnect and close at random. When the network works again and all timers have run, both
// sides of every connection agree, no user has waited for long, and nothing is left once the last
// connections have ended.
func TestSimulation(t *testing.T) {
	for _, c := range []struct {
		name      string
		loss, dup int
		jitter    bool
		few, many int
	}{
		{"clean", 0, 0, false, 2, 40},
		{"loss", 10, 0, false, 4, 200},
		{"duplicates", 0, 30, true, 4, 200},
		{"all", 20, 20, true, 8, 600},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range seeds(c.few, c.many) {
				simulate(t, uint64(seed), c.loss, c.dup, c.jitter)
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func simulate(t *testing.T, seed uint64, loss, dup int, jitter bool) {
	n := newNetwork(t, seed, 3)
	n.loss, n.dup, n.jitter = loss, dup, jitter
	asked, answered := 0, 0
	for range 60 {
		from := n.hosts[n.rng.IntN(len(n.hosts))]
		to := n.hosts[n.rng.IntN(len(n.hosts))] // itself too
		from.connect(to)
		if n.chance(30) {
			asked++
			if _, err := from.Lookup(n.now, &LookupParams{ServiceID: IPService(SpaceUDP, 7471),
				Path: from.path(to.host)}, func(now mono.Time, e *Event) {
				answered++
				if e.Kind != LookupResponse || e.QPN != 0x77 || e.QKey != 0x1234567 {
					t.Errorf("a lookup gets %v, status %d, queue pair %#x", e.Kind, e.Status, e.QPN)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		n.run(time.Duration(n.rng.IntN(3000)) * time.Millisecond)
	}
	n.run(5 * time.Minute)
	n.loss, n.dup, n.jitter, n.calm = 0, 0, false, true
	n.run(20 * time.Minute)
	if answered != asked {
		t.Errorf("%d of %d lookups heard of an answer", answered, asked)
	}
	connected := 0
	for _, p := range n.pairs {
		a, b := &p.active, &p.passive
		if !a.up && !a.down && !a.let {
			t.Errorf("connection %d: its user was never told what became of it", p.n)
		}
		if a.up {
			connected++
			if b.c == nil || a.psn != b.sq || b.psn != a.sq {
				t.Errorf("connection %d: sequence numbers differ", p.n)
			}
		}
		up := func(v *end) bool { return v.c != nil && v.up && !v.down && !v.let }
		if up(a) != up(b) {
			t.Errorf("connection %d: one side takes it for established, the other does not (%v %v, %v %v)", p.n,
				a.c.state, up(a), b.c, up(b))
		}
	}
	if connected < len(n.pairs)/3 {
		t.Errorf("of %d connections only %d came about", len(n.pairs), connected)
	}
	// 16 times 6.4 s, and an MRA or two.
	if most := 5 * time.Minute; n.limbo > most {
		t.Errorf("a user was kept waiting for %v", n.limbo)
	}
	for _, p := range n.pairs {
		for _, v := range []*end{&p.active, &p.passive} {
			if v.c != nil && !v.let {
				v.let = true
				v.c.Close(n.now)
			}
		}
	}
	n.run(5 * time.Minute)
	for _, h := range n.hosts {
		h.empty()
	}
}

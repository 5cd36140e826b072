// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/fabric/trunk/trust"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

var wall = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// host is a node with any number of peers in a world.
type host struct {
	w      *world
	core   *Core
	batch  *Batch
	addr   netip.AddrPort
	mtu    int // of UDP payload; larger datagrams are lost at either end
	events []string
	got    [][]byte
	sent   [][]byte
}

type flying struct {
	at       mono.Time
	from, to netip.AddrPort
	data     []byte
}

// world is an underlay with faults under a virtual clock.
type world struct {
	out   [MaxDatagram]byte // that a host sends
	t     testing.TB
	rng   *rand.Rand
	now   mono.Time
	hosts []*host
	sky   []flying
	loss  float64
	dup   float64
	delay time.Duration // of each, up to
	// blocked directions lose everything; nil: none is.
	blocked func(from, to netip.AddrPort) bool
	hole    int      // larger datagrams are lost on the way; 0: none
	sum     uint64   // of what was sent, to compare two runs
	seen    [][]byte // recorded, while record
	from    []netip.AddrPort
	to      []netip.AddrPort
	rec     bool
}

func newWorld(t testing.TB, seed uint64) *world {
	if tt, ok := t.(*testing.T); ok {
		cryptotest.SetGlobalRandom(tt, seed)
	}
	return &world{t: t, rng: rand.New(rand.NewPCG(seed, 9)), now: ms}
}

func psk(t testing.TB, seed byte) handshake.Trust {
	t.Helper()
	key := bytes.Repeat([]byte{seed}, trust.KeyLen)
	k, err := trust.FromKey(key, "test", wall)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// host adds a node, or replaces the one with its GUID by a new start.
func (w *world) host(node ib.GUID, mtu int, tr handshake.Trust, change func(*Config), peers ...ib.GUID) *host {
	w.t.Helper()
	h := &host{w: w, addr: addr(node), mtu: mtu}
	cfg := Config{Node: node, Name: fmt.Sprintf("n%x", uint64(node)), Version: "test", Trust: tr,
		Wall: func(now mono.Time) time.Time { return wall.Add(time.Duration(now)) },
		Event: func(e Event) {
			h.events = append(h.events, fmt.Sprintf("up=%v node=%x restarted=%v", e.Up, uint64(e.Node), e.Restarted))
		}}
	for _, p := range peers {
		cfg.Peers = append(cfg.Peers, PeerConfig{Addr: addr(p), Limit: mtu})
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if h.core, err = New(cfg); err != nil {
		w.t.Fatal(err)
	}
	h.batch = NewBatch(2, h.core.Remote)
	w.hosts = slices.DeleteFunc(w.hosts, func(o *host) bool { return o.addr == h.addr })
	w.hosts = append(w.hosts, h)
	return h
}

func (w *world) transmit(from *host, to netip.AddrPort, d []byte) {
	w.sum = w.sum*31 + uint64(len(d))
	for _, c := range d {
		w.sum = w.sum*31 + uint64(c)
	}
	lost, twice := w.rng.Float64() < w.loss, w.rng.Float64() < w.dup
	delay, again := w.rng.Float64(), w.rng.Float64()
	if w.rec {
		w.seen, w.from, w.to = append(w.seen, bytes.Clone(d)), append(w.from, from.addr), append(w.to, to)
	}
	if lost || w.blocked != nil && w.blocked(from.addr, to) || len(d) > from.mtu || w.hole > 0 && len(d) > w.hole {
		return
	}
	w.sky = append(w.sky, flying{w.now.Add(time.Duration(delay * float64(w.delay))), from.addr, to, bytes.Clone(d)})
	if twice {
		w.sky = append(w.sky, flying{w.now.Add(time.Duration(again * float64(w.delay))), from.addr, to, bytes.Clone(d)})
	}
}

func (w *world) deliver(f flying) {
	for _, h := range w.hosts {
		if h.addr == f.to && len(f.data) <= h.mtu {
			h.core.Handle(w.now, f.from, f.data, func(_ int, p []byte) { h.got = append(h.got, bytes.Clone(p)) })
			h.core.Recycle()
			h.pump()
		}
	}
}

func (h *host) pump() {
	for {
		o, ok := h.core.Next(h.w.now, h.w.out[:])
		if !ok {
			return
		}
		h.w.transmit(h, o.To, h.w.out[:o.Len])
	}
}

// send sends a packet to a peer if the trunk is up.
func (h *host) send(peer int, p []byte) bool {
	b := h.batch.Reserve(peer, len(p))
	if b == nil {
		return false
	}
	copy(b, p)
	h.batch.Commit(h.w.now, len(p))
	h.sent = append(h.sent, p)
	to := h.core.Addr(peer)
	for i := range h.batch.Trains() {
		t := &h.batch.Trains()[i]
		var d []byte
		for _, p := range h.batch.Pieces(t) {
			d = append(d, h.batch.Bytes()[p.Off:p.Off+p.Len]...)
		}
		for len(d) > 0 {
			n := min(t.Size, len(d))
			h.w.transmit(h, to, d[:n])
			d = d[n:]
		}
	}
	h.batch.Reset()
	return true
}

// run lets time pass in steps of a millisecond until done, for at most d.
func (w *world) run(d time.Duration, done func() bool) bool {
	for end := w.now.Add(d); w.now < end; w.now += ms {
		for _, h := range w.hosts {
			h.core.Tick(w.now)
			h.pump()
		}
		for i := 0; i < len(w.sky); {
			if w.sky[i].at > w.now {
				i++
				continue
			}
			f := w.sky[i]
			w.sky = append(w.sky[:i], w.sky[i+1:]...)
			w.deliver(f)
		}
		if done() {
			return true
		}
	}
	return false
}

func never() bool { return false }

func up(hosts ...*host) func() bool {
	return func() bool {
		for _, h := range hosts {
			for i := range h.core.Peers() {
				if !h.core.Status(i).Up {
					return false
				}
			}
		}
		return true
	}
}

func numbered(i int, n int) []byte {
	p := bytes.Repeat([]byte{byte(i)}, max(n, 4))
	binary.BigEndian.PutUint32(p, uint32(i))
	return p
}

// TestSession brings trunks up over networks with faults, twice by each seed with equal results, and carries packets.
func TestSession(t *testing.T) {
	for seed := uint64(1); seed <= 6; seed++ {
		var sums [2]uint64
		for i := range sums {
			t.Run(fmt.Sprintf("seed%d.%d", seed, i), func(t *testing.T) {
				w := newWorld(t, seed)
				w.loss, w.dup, w.delay = 0.2, 0.2, 40*time.Millisecond
				key := psk(t, 1)
				a, b := w.host(0xa, 1472, key, nil, 0xb), w.host(0xb, 1472, key, nil, 0xa)
				if !w.run(20*time.Second, up(a, b)) {
					t.Fatalf("not up: %+v %+v", a.core.Strays(), b.core.Strays())
				}
				for i := range 300 {
					a.send(0, numbered(i, i*17%4000))
					b.send(0, numbered(i, i*13%4000))
					w.run(2*time.Millisecond, never)
				}
				w.run(time.Second, never)
				for _, x := range [][2]*host{{a, b}, {b, a}} {
					seen := map[uint32]bool{}
					for _, p := range x[1].got {
						no := binary.BigEndian.Uint32(p)
						if seen[no] || !slices.ContainsFunc(x[0].sent, func(s []byte) bool {
							return bytes.Equal(s,
								p)
						}) {
							t.Fatalf("packet %d came twice, or differs", no)
						}
						seen[no] = true
					}
					if len(seen) < 100 {
						t.Errorf("%d of %d packets came", len(seen), len(x[0].sent))
					}
					s := x[1].core.Status(0)
					if s.Drop[Forged]+s.Drop[BadBody]+s.Drop[BadFragment] != 0 || s.Drop[Duplicate] == 0 {
						t.Errorf("refusals: %v", s.Drop)
					}
				}
				if n := len(a.core.peers[0].sessions); a.core.peers[0].tx.send.Index() !=
					b.core.peers[0].tx.recv.Index() || n > 2 {
					t.Errorf("%d sessions, or different ones", n)
				}
				sums[i] = w.sum
			})
		}
		if sums[0] != sums[1] {
			t.Errorf("seed %d: two runs differ", seed)
		}
	}
}

// TestRekeyUnderLoad replaces keys by time and by count, in each mode, while packets are in flight both ways: none is
// lost, and the trunk never goes down.
func TestRekeyUnderLoad(t *testing.T) {
	for mode := range seal.NumModes {
		for _, by := range []string{"time", "count", "count of the other"} {
			t.Run(fmt.Sprintf("%v by %s", mode, by), func(t *testing.T) {
				w := newWorld(t, 5)
				w.delay = 30 * time.Millisecond
				key := psk(t, 1)
				change := func(node ib.GUID) func(c *Config) {
					return func(c *Config) {
						c.Mode = mode
						switch {
						case by == "time":
							c.RekeyAfter = 500 * time.Millisecond
						case by == "count" && node == 0xa, by == "count of the other" && node == 0xb:
							c.RekeyDatagrams = 500
						}
					}
				}
				a := w.host(0xa, 1472, key, change(0xa), 0xb)
				b := w.host(0xb, 1472, key, change(0xb), 0xa)
				if !w.run(5*time.Second, up(a, b)) {
					t.Fatal("not up")
				}
				for i := range 3000 {
					if !a.send(0, numbered(i, 40+i%3000)) || !b.send(0, numbered(i, 40+i%1000)) {
						t.Fatalf("packet %d was refused: %v %v", i, a.events, b.events)
					}
					w.run(time.Millisecond, never)
				}
				w.run(time.Second, never)
				for _, h := range []*host{a, b} {
					s := h.core.Status(0)
					if len(h.got) != 3000 || s.Downs != 0 || s.Lost != 0 || s.Drop != (Refusals{}) {
						t.Errorf("%d packets, %+v", len(h.got), s)
					}
					if s.Rekeys < 3 || s.Rekeys > 15 || s.Mode != mode {
						t.Errorf("%d rekeys, mode %v", s.Rekeys, s.Mode)
					}
					if n := h.core.Strays(); n.Drop != (Stray{}) {
						t.Errorf("strays: %+v", n)
					}
					if n := len(h.core.byIndex); n > maxSessions {
						t.Errorf("%d sessions remain", n)
					}
				}
			})
		}
	}
}

// TestOldKey: datagrams under replaced keys are accepted for OldKeyFor, and then counted by that name.
func TestOldKey(t *testing.T) {
	w := newWorld(t, 5)
	key := psk(t, 1)
	a := w.host(0xa, 1472, key, func(c *Config) { c.RekeyAfter = 20 * time.Second }, 0xb)
	b := w.host(0xb, 1472, key, nil, 0xa)
	w.run(5*time.Second, up(a, b))
	w.run(time.Second, never)
	var held []flying
	hold := func() {
		b.send(0, numbered(len(held), 10))
		b.send(0, numbered(len(held), 10))
		for _, f := range w.sky {
			if f.to == a.addr && Kind(f.data[1]&15) == Data {
				held = append(held, f)
			}
		}
		w.sky = nil
	}
	hold()
	if !w.run(25*time.Second, func() bool { return a.core.Status(0).Rekeys == 1 && b.core.Status(0).Rekeys == 1 }) {
		t.Fatal("no rekey")
	}
	w.deliver(held[0])
	if len(a.got) != 1 {
		t.Errorf("a datagram under the old key: %+v", a.core.Strays())
	}
	w.run(OldKeyFor+time.Second, never)
	w.deliver(held[1])
	if s := a.core.Strays(); len(a.got) != 1 || s.Drop[OldSession] != 1 {
		t.Errorf("a datagram under an expired key: %d packets, %+v", len(a.got), s)
	}
}

// TestRestart: a completed handshake, and nothing else, shows that a peer has restarted. All that its earlier start
// sent changes nothing when it comes again.
func TestRestart(t *testing.T) {
	w := newWorld(t, 6)
	key := psk(t, 1)
	a, b := w.host(0xa, 1472, key, nil, 0xb), w.host(0xb, 1472, key, nil, 0xa)
	w.rec = true
	w.run(5*time.Second, up(a, b))
	for i := range 50 {
		b.send(0, numbered(i, 100))
		w.run(10*time.Millisecond, never)
	}
	w.rec = false
	a.events = nil
	b = w.host(0xb, 1472, key, nil, 0xa)
	if !w.run(200*time.Millisecond, func() bool { return a.core.Status(0).Restarts == 1 && up(a, b)() }) {
		t.Fatalf("not up again within 200 ms: %v, %v", a.events, b.core.Status(0))
	}
	want := []string{"up=false node=b restarted=true", "up=true node=b restarted=true"}
	if !slices.Equal(a.events, want) {
		t.Errorf("events %q", a.events)
	}
	a.got = nil
	for i, d := range w.seen {
		w.deliver(flying{w.now, w.from[i], w.to[i], bytes.Clone(d)})
		if i%10 == 0 {
			w.run(5*time.Millisecond, never)
		}
	}
	w.run(10*time.Second, never)
	if !slices.Equal(a.events, want) || len(a.got) != 0 || len(b.events) != 1 || len(a.core.peers[0].sessions) > 2 {
		t.Errorf("after %d replays: %q, %q, %d packets", len(w.seen), a.events, b.events, len(a.got))
	}
	b.send(0, numbered(1, 10))
	w.run(10*time.Millisecond, never)
	if len(a.got) != 1 {
		t.Errorf("packets after the restart: %d", len(a.got))
	}
}

// TestForgery: forged, cut, repeated and reflected datagrams, from the peer's address and from others, neither change a
// trunk nor pass; each is counted by its reason.
func TestForgery(t *testing.T) {
	w := newWorld(t, 7)
	key := psk(t, 1)
	a, b := w.host(0xa, 1472, key, nil, 0xb), w.host(0xb, 1472, key, nil, 0xa)
	w.rec = true
	w.run(5*time.Second, up(a, b))
	for i := range 20 {
		b.send(0, numbered(i, 3000))
		w.run(20*time.Millisecond, never)
	}
	w.rec = false
	a.events, b.events, a.got, b.got = nil, nil, nil, nil
	before := a.core.Status(0).Drop
	var drop Refusals
	stranger := netip.MustParseAddrPort("192.0.2.9:4792")
	for i, d := range w.seen {
		if Kind(d[1]&15) >= numKinds {
			continue
		}
		for _, from := range []netip.AddrPort{w.from[i], stranger} {
			w.deliver(flying{w.now, from, w.to[i], bytes.Clone(d)})                      // repeated
			w.deliver(flying{w.now, from, w.from[i], bytes.Clone(d)})                    // reflected
			w.deliver(flying{w.now, from, w.to[i], bytes.Clone(d[:w.rng.IntN(len(d))])}) // cut
			forged := bytes.Clone(d)
			be.PutUint64(forged[8:], be.Uint64(forged[8:])+1000)
			w.deliver(flying{w.now, from, w.to[i], bytes.Clone(forged)}) // another number
			forged[4+w.rng.IntN(4)] ^= 1 << w.rng.IntN(8)
			w.deliver(flying{w.now, from, w.to[i], forged}) // another session
			junk := make([]byte, w.rng.IntN(200))
			for j := range junk {
				junk[j] = byte(w.rng.Uint32())
			}
			w.deliver(flying{w.now, from, w.to[i], junk})
			copy(junk, d[:8])
			w.deliver(flying{w.now, from, w.to[i], junk})
		}
	}
	for r := range drop {
		drop[r] = a.core.Status(0).Drop[r] - before[r]
	}
	w.run(2*time.Second, never)
	if len(a.events)+len(b.events)+len(a.got)+len(b.got) != 0 {
		t.Errorf("events %q, %q, %d and %d packets", a.events, b.events, len(a.got), len(b.got))
	}
	strays := a.core.Strays()
	if drop[Duplicate] == 0 || drop[Forged] == 0 || strays.Drop[Short] == 0 || strays.Drop[UnknownSession] == 0 ||
		strays.Drop[BadMagic] == 0 {
		t.Errorf("refusals of the session %v, of none %v", drop, strays.Drop)
	}
	// Nothing that was counted as sent by the peer was accepted from the stranger.
	if s := a.core.Status(0); s.Addr != b.addr {
		t.Errorf("the peer is at %v", s.Addr)
	}
}

// TestMTU: the trunks of all pairs of MTUs settle on the smaller one, and state both.
func TestMTU(t *testing.T) {
	mtus := []int{1280, 1500, 4096, 9000}
	key := psk(t, 1)
	for _, x := range mtus {
		for _, y := range mtus {
			w := newWorld(t, 8)
			a, b := w.host(0xa, x-28, key, nil, 0xb), w.host(0xb, y-28, key, nil, 0xa)
			w.run(5*time.Second, up(a, b))
			want := min(x, y) - 28
			if !w.run(time.Second, func() bool {
				return a.core.Status(0).Measured && b.core.Status(0).Measured
			}) {
				t.Fatalf("%d and %d: not measured", x, y)
			}
			for i, h := range []*host{a, b} {
				s := h.core.Status(0)
				own, theirs := x-28, y-28
				if i == 1 {
					own, theirs = theirs, own
				}
				if s.Limit != want || s.Own != own || s.Theirs != theirs || s.Hole || h.core.Remote(0).Limit != want {
					t.Errorf("%d and %d: %+v, want a limit of %d", x, y, s, want)
				}
			}
			for i := range 20 {
				a.send(0, numbered(i, 8000))
				b.send(0, numbered(i, 8000))
			}
			w.run(10*time.Millisecond, never)
			if len(a.got) != 20 || len(b.got) != 20 {
				t.Errorf("%d and %d: %d and %d packets", x, y, len(a.got), len(b.got))
			}
		}
	}
}

// TestPathHole: where the path drops what both ends allow, the largest datagram that passes is found, and found again
// after the path changes.
func TestPathHole(t *testing.T) {
	w := newWorld(t, 8)
	w.hole = 3000
	key := psk(t, 1)
	a, b := w.host(0xa, 8972, key, nil, 0xb), w.host(0xb, 8972, key, nil, 0xa)
	w.run(5*time.Second, up(a, b))
	settled := func() bool { return a.core.Status(0).Hole && b.core.Status(0).Hole }
	if !w.run(20*time.Second, settled) {
		t.Fatalf("not settled: %+v", a.core.Status(0))
	}
	if n := a.core.Status(0).Limit; n > 3000 || n < 3000-probeStep {
		t.Errorf("limit %d on a path of 3000", n)
	}
	a.send(0, numbered(1, 9000))
	w.run(10*time.Millisecond, never)
	if len(b.got) != 1 {
		t.Error("a packet was lost")
	}
	w.hole = 0
	if !w.run(40*time.Second, func() bool { return a.core.Status(0).Measured && b.core.Status(0).Measured }) {
		t.Errorf("the path is wide again: %+v", a.core.Status(0))
	}
	// An interface shrinks at one end: both follow at once.
	a.core.SetLimit(0, 1472)
	a.mtu = 1472
	w.run(5*time.Millisecond, never)
	if x, y := a.core.Remote(0).Limit, b.core.Remote(0).Limit; x != 1472 || y != 1472 {
		t.Errorf("limits %d and %d after the change", x, y)
	}
}

// TestModeOfBoth: the stronger mode of two ends counts at both.
func TestModeOfBoth(t *testing.T) {
	key := psk(t, 1)
	for x := range seal.NumModes {
		for y := range seal.NumModes {
			w := newWorld(t, 8)
			a := w.host(0xa, 1472, key, func(c *Config) { c.Mode = x }, 0xb)
			b := w.host(0xb, 1472, key, func(c *Config) { c.Mode = y }, 0xa)
			w.run(5*time.Second, up(a, b))
			if s, o := a.core.Status(0), b.core.Status(0); s.Mode != min(x, y) || o.Mode != min(x, y) || !s.Up {
				t.Errorf("%v and %v: %v and %v", x, y, s.Mode, o.Mode)
			}
			w.rec = true
			secret := bytes.Repeat([]byte("secret"), 400)
			a.send(0, secret)
			w.run(5*time.Millisecond, never)
			readable := slices.ContainsFunc(w.seen, func(d []byte) bool {
				return bytes.Contains(d,
					[]byte("secretsecret"))
			})
			if readable != (min(x, y) != seal.Encrypt) || len(b.got) != 1 || !bytes.Equal(b.got[0], secret) {
				t.Errorf("%v and %v: readable %v, %d packets", x, y, readable, len(b.got))
			}
		}
	}
}

// TestPeersAtRunTime adds and removes peers; a removed one is out at once, and its index serves another.
func TestPeersAtRunTime(t *testing.T) {
	w := newWorld(t, 8)
	key := psk(t, 1)
	a := w.host(0xa, 1472, key, nil)
	b, c := w.host(0xb, 1472, key, nil, 0xa), w.host(0xc, 1472, key, nil, 0xa)
	w.run(time.Second, never)
	if b.core.Status(0).Up || a.core.Strays().NotAccepted == 0 {
		t.Fatalf("a node that is no peer: %+v", a.core.Strays())
	}
	add := func(p PeerConfig) int {
		t.Helper()
		i, err := a.core.AddPeer(p)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := add(PeerConfig{Addr: b.addr, Limit: 1472}); i != 0 || !w.run(2*time.Second, up(a, b)) {
		t.Fatalf("peer %d is not up", i)
	}
	if i := add(PeerConfig{Addr: c.addr, Node: 0xc, Limit: 1472}); i != 1 || !w.run(2*time.Second, up(a, b, c)) {
		t.Fatalf("peer %d is not up", i)
	}
	a.events = nil
	a.core.RemovePeer(w.now, 0)
	w.run(time.Second, never)
	if !slices.Equal(a.events, []string{"up=false node=b restarted=false"}) || b.core.Status(0).Up ||
		!a.core.Status(1).Up || a.core.Used(0) || a.core.Remote(0) != (Remote{}) || len(a.core.byIndex) != 1 {
		t.Errorf("after the removal: %q, %+v", a.events, b.core.Status(0))
	}
	if i := add(PeerConfig{Addr: b.addr, Limit: 1472}); i != 0 || !w.run(20*time.Second, up(a, b, c)) {
		t.Fatalf("peer %d is not up again", i)
	}
	b.send(0, numbered(1, 10))
	a.send(0, numbered(2, 10))
	w.run(5*time.Millisecond, never)
	if len(a.got) != 1 || len(b.got) != 1 {
		t.Errorf("%d and %d packets", len(a.got), len(b.got))
	}
}

// TestPeerAnywhere: a peer without an address begins from where it is, and stays up while its address changes.
func TestPeerAnywhere(t *testing.T) {
	w := newWorld(t, 8)
	key := psk(t, 1)
	a := w.host(0xa, 1472, key, func(c *Config) {
		c.Peers = []PeerConfig{{Node: 0xb, Limit: 1472}, {Node: 0xd,
			Limit: 1472}}
	})
	b := w.host(0xb, 1472, key, nil, 0xa)
	w.host(0xc, 1472, key, nil, 0xa)
	if !w.run(2*time.Second, func() bool { return b.core.Status(0).Up && a.core.Status(0).Up }) {
		t.Fatal("not up")
	}
	if a.core.Status(0).Addr != b.addr || a.core.Status(1).Up {
		t.Errorf("%+v", a.core.Status(0))
	}
	b.addr = netip.MustParseAddrPort("198.51.100.7:1234")
	w.run(time.Second, never)
	a.send(0, numbered(1, 10))
	w.run(5*time.Millisecond, never)
	if a.core.Status(0).Addr != b.addr || a.core.Status(0).Downs != 0 || b.core.Status(0).Downs != 0 ||
		len(b.got) != 1 {
		t.Errorf("%+v, %d packets", a.core.Status(0), len(b.got))
	}
}

// TestRestartAnywhere: the end that waits for the other to begin starts again. Its numbers begin anew, and those that
// the other end has of its earlier start do not count.
func TestRestartAnywhere(t *testing.T) {
	w := newWorld(t, 9)
	key := psk(t, 1)
	waits := func(c *Config) { c.Peers = []PeerConfig{{Node: 0xb, Limit: 1472}} }
	a, b := w.host(0xa, 1472, key, waits), w.host(0xb, 1472, key, nil, 0xa)
	w.run(2*time.Second, up(a, b))
	w.run(10*time.Second, never)
	a = w.host(0xa, 1472, key, waits)
	if !w.run(2*time.Second, func() bool { return b.core.Status(0).Restarts == 1 && up(a, b)() }) {
		t.Fatalf("not up again within 2 s: %+v, %+v", a.core.Status(0), b.core.Status(0))
	}
	w.run(5*time.Second, never)
	if k := a.core.Status(0); k.Ups != 1 || k.Downs != 0 {
		t.Errorf("the trunk did not stay up: %+v", k)
	}
}

// TestStrangers: nodes with another key, or none, get no session, and the status says why.
func TestStrangers(t *testing.T) {
	anyone, err := trust.NewAnyone("x", wall)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		b    handshake.Trust
	}{{"another key", psk(t, 2)}, {"no key", anyone}} {
		w := newWorld(t, 8)
		a, b := w.host(0xa, 1472, psk(t, 1), nil, 0xb), w.host(0xb, 1472, c.b, nil, 0xa)
		w.run(10*time.Second, never)
		s := a.core.Status(0)
		if s.Up || b.core.Status(0).Up || !strings.Contains(s.Why, "another trunk key") && !strings.Contains(s.Why,
			"refused") ||
			s.Refused == 0 || s.Refused > 10 {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
	w := newWorld(t, 8)
	a := w.host(0xa, 1472, psk(t, 1), func(c *Config) {
		c.Peers = []PeerConfig{{Addr: addr(0xb), Node: 0xf,
			Limit: 1472}}
	})
	w.host(0xb, 1472, psk(t, 1), nil, 0xa)
	w.run(3*time.Second, never)
	if s := a.core.Status(0); s.Up || !strings.Contains(s.Why, "the node there is") {
		t.Errorf("another GUID: %+v", s)
	}
}

// TestForgedNumber: without authentication a forged number stops a stream until the next rekey, and not for ever.
func TestForgedNumber(t *testing.T) {
	w := newWorld(t, 9)
	none := func(c *Config) { c.Mode, c.RekeyAfter = seal.None, 2*time.Second }
	a := w.host(0xa, 1472, psk(t, 1), none, 0xb)
	b := w.host(0xb, 1472, psk(t, 1), none, 0xa)
	w.run(5*time.Second, up(a, b))
	b.send(0, numbered(1, 10))
	forged := bytes.Clone(w.sky[len(w.sky)-1].data)
	be.PutUint64(forged[8:], be.Uint64(forged[8:])|numberMask)
	w.run(5*time.Millisecond, never)
	w.deliver(flying{w.now, b.addr, a.addr, forged})
	a.got = nil
	b.send(0, numbered(2, 10))
	w.run(5*time.Millisecond, never)
	if n := a.core.Status(0).Drop[TooOld]; len(a.got) != 0 || n != 1 {
		t.Errorf("%d packets behind a forged number, %d too old", len(a.got), n)
	}
	w.run(3*time.Second, never)
	b.send(0, numbered(3, 10))
	w.run(5*time.Millisecond, never)
	if s := a.core.Status(0); len(a.got) != 1 || s.Downs != 0 || s.Rekeys == 0 {
		t.Errorf("%d packets after the rekey: %+v", len(a.got), s)
	}
}

// TestSetAddr: a peer that moves keeps its trunk, once this end is given its new address.
func TestSetAddr(t *testing.T) {
	w := newWorld(t, 8)
	key := psk(t, 1)
	a, b := w.host(0xa, 1472, key, nil, 0xb), w.host(0xb, 1472, key, nil, 0xa)
	c := netip.MustParseAddrPort("198.51.100.7:1234")
	w.run(2*time.Second, up(a, b))
	b.addr = c
	w.run(100*time.Millisecond, never)
	if err := a.core.SetAddr(0, c); err != nil {
		t.Fatal(err)
	}
	w.run(5*time.Second, never)
	a.send(0, numbered(1, 10))
	b.send(0, numbered(1, 10))
	w.run(5*time.Millisecond, never)
	if s := a.core.Status(0); s.Downs != 0 || s.Sessions != 1 || s.Addr != c || len(a.got) != 1 || len(b.got) != 1 {
		t.Errorf("%+v, %d and %d packets", s, len(a.got), len(b.got))
	}
	if _, err := a.core.AddPeer(PeerConfig{Addr: addr(0xb)}); err != nil {
		t.Errorf("the old address is taken: %v", err)
	}
	for _, at := range []netip.AddrPort{addr(0xb), {}} {
		if err := a.core.SetAddr(0, at); err == nil {
			t.Errorf("peer 0 is at %v", at)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package inmem

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/fabric/link/fault"
	"weft/internal/fabric/link/udp"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// What package node's lanes will call is the same here and on sockets.
type link interface {
	Recv(now mono.Time, deliver func(peer int, packet []byte)) (more bool)
	Tick(now mono.Time)
	Deadline() mono.Time
	Peers() int
}

type sender interface {
	Reserve(peer, n int) []byte
	Commit(now mono.Time, n int)
	Flush(now mono.Time)
	Blocked() bool
	Deadline() mono.Time
	Inject(trunk.Injector)
}

var (
	_ link   = (*Link)(nil)
	_ link   = (*udp.Link)(nil)
	_ sender = (*Sender)(nil)
	_ sender = (*udp.Sender)(nil)
)

const ms = mono.Time(time.Millisecond)

// sim is a full mesh of nodes under a virtual clock.
type sim struct {
	t     testing.TB
	net   *Network
	nodes []*node
	now   mono.Time
	log   strings.Builder
}

type node struct {
	*Link
	out *Sender
	got [][]byte
	cfg Config
}

func newSim(t testing.TB, seed uint64, nodes int, f Faults) *sim {
	s := &sim{t: t, net: NewNetwork(seed, f), now: 1}
	for i := range nodes {
		cfg := Config{Addr: Addr(i), Node: ib.GUID(0x100 * (i + 1))}
		for j := range nodes {
			if j != i {
				cfg.Peers = append(cfg.Peers, Peer{Addr: Addr(j)})
			}
		}
		s.nodes = append(s.nodes, &node{cfg: cfg})
		s.start(i)
	}
	return s
}

// start starts node i, or starts it again.
func (s *sim) start(i int) {
	n := s.nodes[i]
	cfg := n.cfg
	cfg.Event = func(e trunk.Event) {
		fmt.Fprintf(&s.log, "%dms: %d to %x: up=%v restarted=%v\n", s.now/ms, i, uint64(e.Node), e.Up, e.Restarted)
	}
	var err error
	if n.Link, err = s.net.Open(cfg); err != nil {
		s.t.Fatal(err)
	}
	n.out = n.Sender(0)
}

// run turns all nodes until a time, or until done.
func (s *sim) run(until mono.Time, done func() bool) {
	for {
		next := until
		for _, n := range s.nodes {
			for n.Recv(s.now, func(peer int, p []byte) { n.got = append(n.got, bytes.Clone(p)) }) {
			}
			n.Tick(s.now)
			n.out.Flush(s.now)
		}
		for _, n := range s.nodes {
			for _, d := range []mono.Time{n.Link.Deadline(), n.out.Deadline()} {
				if d != 0 {
					next = min(next, d)
				}
			}
		}
		if s.now == until || done() {
			return
		}
		s.now = max(next, s.now)
	}
}

func never() bool { return false }

// wantLog compares the events since the last call, as a set per time.
func (s *sim) wantLog(want string) {
	s.t.Helper()
	got := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	s.log.Reset()
	slices.Sort(got)
	w := strings.Split(strings.TrimSpace(strings.ReplaceAll(want, "\t", "")), "\n")
	slices.Sort(w)
	if !slices.Equal(got, w) {
		s.t.Errorf("events:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(w, "\n"))
	}
}

// TestTransitions is the life of a trunk over an underlay with 2 ms each way.
func TestTransitions(t *testing.T) {
	s := newSim(t, 1, 2, Faults{Delay: 2 * time.Millisecond})
	s.run(1000*ms+1, never)
	s.wantLog(`10ms: 1 to 100: up=true restarted=false
		12ms: 0 to 200: up=true restarted=false`)
	if rtt := s.nodes[0].Status(0).RTT; rtt != 4*time.Millisecond {
		t.Errorf("round trip %v", rtt)
	}
	s.net.Cut(0, 1, true)
	s.net.Cut(1, 0, true)
	s.run(2000*ms+1, never)
	s.wantLog(`1302ms: 0 to 200: up=false restarted=false
		1302ms: 1 to 100: up=false restarted=false`)
	s.net.Cut(0, 1, false) // one way only
	s.run(3000*ms+1, never)
	s.wantLog("")
	s.net.Cut(1, 0, false)
	s.run(3500*ms+1, never)
	s.wantLog(`3006ms: 1 to 100: up=true restarted=false
		3004ms: 0 to 200: up=true restarted=false`)
	s.start(1)
	s.run(4000*ms+1, never)
	s.wantLog(`3512ms: 1 to 100: up=true restarted=false
		3510ms: 0 to 200: up=false restarted=true
		3510ms: 0 to 200: up=true restarted=true`)
}

// packet returns packet i of a conversation; no two are equal.
func packet(i, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(i), byte(i >> 8)}).Read(b)
	binary.BigEndian.PutUint32(b, uint32(i))
	return b
}

// TestLossyUnderlay: whatever the underlay does, what arrives was sent, whole,
// once; what did not is no more than the loss of datagrams, of two packets at most, explains; and the trunk stays
// up. A failure names its seed.
func TestLossyUnderlay(t *testing.T) {
	for seed := range uint64(20) {
		for _, f := range []Faults{
			{Delay: time.Millisecond},
			{Delay: time.Millisecond, Drop: 0.05},
			{Delay: time.Millisecond, Duplicate: 0.3},
			{Delay: time.Millisecond, Reorder: 0.3, ReorderBy: 3 * time.Millisecond},
			{Delay: time.Millisecond, Drop: 0.02, Duplicate: 0.1, Reorder: 0.2, ReorderBy: 10 * time.Millisecond},
		} {
			s := newSim(t, seed, 3, f)
			s.run(2000*ms, func() bool { return strings.Count(s.log.String(), "up=true") == 6 })
			s.run(s.now+20*ms, never) // what was late of the beginning
			r := rand.New(rand.NewPCG(seed, 9))
			a, b := s.nodes[0], s.nodes[1]
			base := b.Status(0)
			s.log.Reset()
			const n = 500
			lengths := make([]int, n)
			sent := s.net.Counters
			for i := range n {
				lengths[i] = 4 + r.IntN(6000)
				p := packet(i, lengths[i])
				to := a.out.Reserve(0, len(p))
				if to == nil {
					t.Fatalf("seed %d: no room: %v", seed, a.out.Drops(0))
				}
				copy(to, p)
				a.out.Commit(s.now, len(p))
				if i%5 == 0 {
					a.out.Flush(s.now)
					s.run(s.now+ms/2, never)
				}
			}
			a.out.Flush(s.now)
			s.run(s.now+500*ms, never)
			seen := map[int]bool{}
			for _, p := range b.got {
				i := int(binary.BigEndian.Uint32(p))
				if i >= n || seen[i] || !bytes.Equal(p, packet(i, lengths[i])) {
					t.Fatalf("seed %d, %+v: packet %d is not one that was sent, or came twice", seed, f, i)
				}
				seen[i] = true
			}
			got := b.Status(0)
			dropped := s.net.Dropped - sent.Dropped
			if missing := uint64(n - len(b.got)); missing > 2*dropped || f.Drop == 0 && missing != 0 {
				t.Errorf("seed %d, %+v: %d of %d packets are missing, %d datagrams were dropped: %+v", seed, f,
					missing, n, dropped, got)
			}
			if f.Drop == 0 && (got.Lost != base.Lost || got.Expired != base.Expired) {
				t.Errorf("seed %d, %+v: loss without loss: %+v", seed, f, got)
			}
			if (got.Drop[trunk.Duplicate] > base.Drop[trunk.Duplicate]) != (f.Duplicate > 0) ||
				(got.Reordered > base.Reordered) != (f.Reorder > 0) {
				t.Errorf("seed %d, %+v: %+v", seed, f, got)
			}
			if s.log.Len() != 0 {
				t.Errorf("seed %d, %+v: events\n%s", seed, f, s.log.String())
			}
		}
	}
}

// TestSameSeedSameResult is what makes a failure repeatable.
func TestSameSeedSameResult(t *testing.T) {
	outcome := func(seed uint64) string {
		s := newSim(t, seed, 3, Faults{Delay: time.Millisecond, Drop: 0.2, Duplicate: 0.2, Reorder: 0.5,
			ReorderBy: 300 * time.Millisecond})
		s.run(5000*ms, never)
		return fmt.Sprintf("%s%+v%+v", s.log.String(), s.net.Counters, s.nodes[0].Status(1))
	}
	if a, b := outcome(5), outcome(5); a != b {
		t.Errorf("%s\n%s", a, b)
	}
	if outcome(5) == outcome(6) {
		t.Error("the seed changes nothing")
	}
}

// TestStranger: datagrams of a node that is no peer are dropped.
func TestStranger(t *testing.T) {
	s := newSim(t, 1, 2, Faults{})
	stranger, err := s.net.Open(Config{Addr: 9, Node: 9, Peers: []Peer{{Addr: 0}, {Addr: 77}}})
	if err != nil {
		t.Fatal(err)
	}
	stranger.Tick(1)
	s.run(100*ms, never)
	if n := s.nodes[0].Strays().NotAccepted; n != 1 || stranger.Recv(s.now, nil) || s.net.NoRoute != 1 {
		t.Errorf("%d from strangers, %d to nowhere", n, s.net.NoRoute)
	}
	if stranger.Sender(0).Reserve(0, 10) != nil {
		t.Error("room for a packet on a trunk that is down")
	}
	stranger.Close()
	if _, err := s.net.Open(Config{Addr: 9, Node: 9, Peers: []Peer{{Addr: 1}, {Addr: 1}}}); err == nil ||
		!strings.Contains(err.Error(), "twice") {
		t.Errorf("%v", err)
	}
}

// TestInjector: faults on packets work the same as on sockets.
func TestInjector(t *testing.T) {
	s := newSim(t, 1, 2, Faults{})
	s.run(50*ms, never)
	stage := fault.NewPackets([]ib.GID{{1}})
	stage.Add(fault.Rule{ID: 1, Delay: 20 * time.Millisecond, Duplicate: 100})
	a, b := s.nodes[0], s.nodes[1]
	a.out.Inject(stage)
	at := s.now
	copy(a.out.Reserve(0, 5000), packet(1, 5000))
	a.out.Commit(s.now, 5000)
	s.run(1000*ms, func() bool { return len(b.got) == 2 })
	if s.now != at+20*ms || !bytes.Equal(b.got[0], b.got[1]) {
		t.Errorf("%d packets at %d", len(b.got), s.now)
	}
}

// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weft/internal/fabric/trunk/handshake"
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

const ms = mono.Time(time.Millisecond)

// end is one node with one peer, index 0.
type end struct {
	t      testing.TB
	core   *Core
	batch  *Batch
	limit  int
	addr   netip.AddrPort
	epoch  uint64
	buf    []byte // of control
	events []string
	got    [][]byte
}

func addr(node ib.GUID) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(node)}), DefaultPort)
}

// newEnd returns an end without a session; to is the node at the other one.
func newEnd(t testing.TB, node, to ib.GUID, limit int, mode seal.Mode) *end {
	t.Helper()
	e := &end{t: t, limit: limit, addr: addr(node), epoch: uint64(node) << 8}
	core, err := New(Config{Node: node, Mode: mode, Peers: []PeerConfig{{Addr: addr(to), Limit: limit}},
		Event: func(ev Event) {
			e.events = append(e.events, fmt.Sprintf("up=%v node=%x restarted=%v", ev.Up, uint64(ev.Node), ev.Restarted))
		}})
	if err != nil {
		t.Fatal(err)
	}
	e.core = core
	return e
}

var lastIndex uint32 // of join

// join installs a session at two ends, as a handshake that a began would.
func join(now mono.Time, a, b *end, generation uint32) {
	a.t.Helper()
	lastIndex += 2
	key := func(side byte) [2]*seal.Key {
		var k [2]*seal.Key
		for i := range k {
			var err error
			k[i], err = seal.NewKey(append(bytes.Repeat([]byte{byte(generation)}, 31), side), lastIndex+uint32(side))
			if err != nil {
				a.t.Fatal(err)
			}
		}
		return k
	}
	ab, ba := key(0), key(1)
	hello := func(e *end, g uint32) handshake.Hello {
		return handshake.Hello{Limit: e.limit, Epoch: e.epoch, Node: e.core.cfg.Node, Generation: g,
			Mode: e.core.cfg.Mode}
	}
	ha, hb := hello(a, generation), hello(b, 0)
	a.core.Install(now, 0, handshake.Result{Initiator: true, At: b.addr, Identity: handshake.Identity{Node: hb.Node},
		Local: ha, Remote: hb, Send: ab[0], Recv: ba[0]})
	b.core.Install(now, 0, handshake.Result{At: a.addr, Identity: handshake.Identity{Node: ha.Node}, Local: hb,
		Remote: ha,
		Send:   ba[1], Recv: ab[1]})
}

// newBatch makes the batch, which is large: an end that only receives has none.
func (e *end) newBatch() {
	if e.batch == nil {
		e.batch = NewBatch(3, func(int) Remote { return e.core.Remote(0) })
	}
}

func (e *end) handle(now mono.Time, d []byte) {
	e.core.Handle(now, addr(0), d, func(_ int, p []byte) { e.got = append(e.got, bytes.Clone(p)) })
}

// control returns the hellos, replies and probes that are due.
func (e *end) control(now mono.Time) (out [][]byte) {
	if e.buf == nil {
		e.buf = bytes.Repeat([]byte{0xa5}, MaxDatagram)
	}
	for {
		o, ok := e.core.Next(now, e.buf)
		if !ok {
			return out
		}
		out = append(out, bytes.Clone(e.buf[:o.Len]))
	}
}

// send commits packets, each reserved with slack octets too many.
func (e *end) send(slack int, packets ...[]byte) {
	e.t.Helper()
	e.newBatch()
	for _, p := range packets {
		b := e.batch.Reserve(0, min(len(p)+slack, MaxPacket))
		if b == nil {
			e.t.Fatalf("no room for %d octets: %v", len(p), e.batch.Drops(0))
		}
		copy(b, p)
		e.batch.Commit(ms, len(p))
	}
}

// datagrams returns all that was committed, checked for what a train promises.
func (e *end) datagrams() (out [][]byte) {
	e.t.Helper()
	for i := range e.batch.Trains() {
		t := &e.batch.Trains()[i]
		var b []byte
		for _, p := range e.batch.Pieces(t) {
			b = append(b, e.batch.Bytes()[p.Off:p.Off+p.Len]...)
		}
		if len(b) != t.Bytes || (len(b)+t.Size-1)/t.Size != t.Count || t.Count > maxTrain ||
			t.Bytes > maxTrainBytes || t.Size > e.limit {
			e.t.Fatalf("train %+v has %d octets", *t, len(b))
		}
		for len(b) > 0 {
			n := min(t.Size, len(b))
			out = append(out, b[:n:n])
			b = b[n:]
		}
	}
	e.batch.Reset()
	return out
}

// exchange lets hellos and replies pass until there are none.
func exchange(now mono.Time, a, b *end) {
	for range 10 {
		x, y := a.control(now), b.control(now)
		if len(x)+len(y) == 0 {
			return
		}
		for _, d := range x {
			b.handle(now, d)
		}
		for _, d := range y {
			a.handle(now, d)
		}
	}
	a.t.Fatal("hellos without end")
}

func pair(t testing.TB, limit int) (a, b *end) {
	t.Helper()
	return pairMode(t, limit, seal.Encrypt)
}

func pairMode(t testing.TB, limit int, mode seal.Mode) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, 0xa0, 0xb0, limit, mode), newEnd(t, 0xb0, 0xa0, limit, mode)
	join(ms, a, b, 1)
	a.core.Tick(ms)
	b.core.Tick(ms)
	exchange(ms, a, b)
	for _, e := range []*end{a, b} {
		if s := e.core.Status(0); !s.Up || !s.Measured || s.Limit != limit {
			t.Fatalf("trunk is not up after hellos: %+v", s)
		}
	}
	return a, b
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

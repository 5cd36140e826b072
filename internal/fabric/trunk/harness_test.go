// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

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
	events []string
	got    [][]byte
}

func newEnd(t testing.TB, node ib.GUID, epoch Epoch, limit int) *end {
	t.Helper()
	e := &end{t: t, limit: limit}
	core, err := New(Config{Node: node, Epoch: epoch, Peers: []ib.GUID{0}, Event: func(ev Event) {
		e.events = append(e.events, fmt.Sprintf("up=%v node=%x restarted=%v", ev.Up, uint64(ev.Node), ev.Restarted))
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.core = core
	return e
}

// newBatch makes the batch, which is large: an end that only receives has none.
func (e *end) newBatch() {
	if e.batch == nil {
		c := &e.core.cfg
		e.batch = NewBatch(c.Node, c.Epoch, 3, 1, func(int) Remote {
			return Remote{To: e.core.Status(0).Epoch,
				Limit: e.limit}
		})
	}
}

func (e *end) handle(now mono.Time, d []byte) {
	e.core.Handle(now, 0, d, func(_ int, p []byte) { e.got = append(e.got, bytes.Clone(p)) })
}

// control returns the hellos and replies that are due.
func (e *end) control(now mono.Time) (out [][]byte) {
	for {
		b := bytes.Repeat([]byte{0xa5}, HeaderLen)
		_, n, ok := e.core.Next(now, b)
		if !ok {
			return out
		}
		out = append(out, b[:n])
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
	a, b = newEnd(t, 0xa0, 0x11111111, limit), newEnd(t, 0xb0, 0x22222222, limit)
	a.core.Tick(ms)
	b.core.Tick(ms)
	exchange(ms, a, b)
	if !a.core.Status(0).Up || !b.core.Status(0).Up {
		t.Fatal("trunk is not up after hellos")
	}
	return a, b
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

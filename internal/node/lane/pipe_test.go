// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
)

// burstOf is a burst with a copied payload; its first bytes are its number.
func burstOf(psn ib.PSN, data []byte) *pkt.Burst {
	r := &pkt.Burst{Data: mem.BytesPayload(data)}
	r.PSN = psn
	return r
}

func content(t testing.TB, x *transfer) []byte {
	t.Helper()
	b := make([]byte, x.run.Data.Len)
	if mem.CopyOut(b, &x.run.Data) != mem.OK {
		t.Fatal("payload cannot be read")
	}
	return b
}

// TestPipeCopies: what lies in the sender's buffers is a copy, for the sender
// reuses them at once; regions go by reference.
func TestPipeCopies(t *testing.T) {
	p := newPipe()
	data, path := []byte{1, 2, 3}, ib.Path{HopLimit: 7, SrcPort: 99}
	r := burstOf(5, data)
	r.Path = &path
	if !p.put(r, nil) {
		t.Fatal("no room in an empty pipe")
	}
	clear(data)
	path = ib.Path{}
	*r = pkt.Burst{}
	n := 0
	p.each(func(x *transfer) {
		n++
		if x.run.PSN != 5 || !bytes.Equal(content(t, x), []byte{1, 2, 3}) || x.from != nil {
			t.Errorf("%+v", x.run)
		}
		if x.run.Path == nil || x.run.Path.HopLimit != 7 || x.run.Path.SrcPort != 99 {
			t.Errorf("path %+v", x.run.Path)
		}
	})
	p.release()
	if n != 1 || p.each(func(*transfer) { t.Error("again") }) {
		t.Errorf("%d runs", n)
	}

	// By reference, up to pipeSegs pieces; one more and they are copied.
	space := mem.NewSlice(0x1000, []byte("abcdefghijklmnop"))
	region := &mem.Region{Space: space, Start: 0x1000, Base: 0x1000, Len: 16}
	for pieces := 1; pieces <= pipeSegs+1; pieces++ {
		var segs []mem.Seg
		for i := range pieces {
			segs = append(segs, mem.Seg{Region: region, Addr: 0x1000 + uint64(2*i), Len: 2})
		}
		r := &pkt.Burst{Data: mem.ListPayload(segs, 1, 2*pieces-1)}
		if !p.put(r, nil) {
			t.Fatal("no room")
		}
		clear(segs) // the list is the sender's
		p.each(func(x *transfer) {
			want := []byte("abcdefghijklmnop")[1 : 2*pieces]
			if got := content(t, x); !bytes.Equal(got, want) {
				t.Errorf("%d pieces: %q, want %q", pieces, got, want)
			}
			if byRef := x.run.Data.Segs != nil; byRef != (pieces <= pipeSegs) {
				t.Errorf("%d pieces by reference: %v", pieces, byRef)
			}
		})
		p.release()
	}
	// Memory that cannot be read is no run.
	gone := &mem.Region{Space: space, Start: 0x1000, Base: 0x5000, Len: 16}
	list := make([]mem.Seg, pipeSegs+1)
	for i := range list {
		list[i] = mem.Seg{Region: gone, Addr: 0x1000, Len: 1}
	}
	if p.put(&pkt.Burst{Data: mem.ListPayload(list, 0, len(list))}, nil) || p.each(func(*transfer) {}) {
		t.Error("a run whose payload cannot be read")
	}
}

// TestPipeIsBounded fills the slots and then the bytes; a refused run leaves
// no trace, and what is given back can be had again.
func TestPipeIsBounded(t *testing.T) {
	p := newPipe()
	for range 3 {
		for i := range pipeSlots {
			if !p.put(burstOf(ib.PSN(i), nil), nil) {
				t.Fatalf("slot %d refused", i)
			}
		}
		if p.put(burstOf(0, nil), nil) || p.room(0) {
			t.Fatal("more runs than slots")
		}
		next := ib.PSN(0)
		p.each(func(x *transfer) {
			if x.run.PSN != next {
				t.Fatalf("run %d, want %d", x.run.PSN, next)
			}
			next++
		})
		p.release()
		if next != pipeSlots || !p.room(LocalBurst) {
			t.Fatalf("%d runs", next)
		}
	}
	const size = 100_000
	fits := 0
	for p.put(burstOf(0, make([]byte, size)), nil) {
		fits++
	}
	if fits < pipeBytes/size-1 || fits > pipeBytes/size || p.room(LocalBurst) {
		t.Errorf("%d runs of %d bytes fit", fits, size)
	}
	if p.put(burstOf(0, make([]byte, pipeBytes+1)), nil) {
		t.Error("a run larger than the pipe")
	}
	p.each(func(*transfer) {})
	if p.put(burstOf(0, make([]byte, size)), nil) {
		t.Error("room before it was given back")
	}
	p.release()
	// room promises: what it grants fits, wherever the buffer stands.
	for i := range 200 {
		if !p.room(LocalBurst) {
			t.Fatalf("%d: no room in an empty pipe", i)
		}
		if !p.put(burstOf(0, make([]byte, LocalBurst-i)), nil) {
			t.Fatalf("%d: room was promised", i)
		}
		p.each(func(*transfer) {})
		p.release()
	}
}

// TestPipeBetweenGoroutines sends runs of every size through a pipe with ends
// are in two goroutines; counters and buffer wrap many times.
func TestPipeBetweenGoroutines(t *testing.T) {
	p := newPipe()
	const runs = 20000
	rng := rand.New(rand.NewPCG(1, 2))
	sizes := make([]int, runs)
	for i := range sizes {
		sizes[i] = rng.IntN(4096)
		if i%100 == 0 {
			sizes[i] = rng.IntN(LocalBurst)
		}
	}
	go func() {
		buf := make([]byte, LocalBurst)
		path := ib.Path{}
		for i, n := range sizes {
			for j := range buf[:n] {
				buf[j] = byte(i + j)
			}
			path.FlowLabel = uint32(i)
			r := burstOf(ib.PSN(i), buf[:n])
			r.Path = &path
			for !p.put(r, nil) {
				runtime.Gosched()
			}
		}
	}()
	for next := 0; next < runs; {
		if !p.each(func(x *transfer) {
			b := content(t, x)
			if int(x.run.PSN) != next || len(b) != sizes[next] || x.run.Path.FlowLabel != uint32(next) {
				t.Fatalf("run %d of %d bytes by %d, want %d of %d", x.run.PSN, len(b), x.run.Path.FlowLabel, next,
					sizes[next])
			}
			for j := range b {
				if b[j] != byte(next+j) {
					t.Fatalf("run %d: byte %d is another", next, j)
				}
			}
			next++
		}) {
			runtime.Gosched()
			continue
		}
		p.release()
	}
}

// TestUnreliablePayloadIsCopied: an unreliable send completes before the other
// lane has looked at it, and its buffer is the program's again.
func TestUnreliablePayloadIsCopied(t *testing.T) {
	for _, tc := range []struct {
		service ib.Opcode
		want    byte
	}{{ib.ServiceRC, 2}, {ib.ServiceUC, 1}, {ib.ServiceUD, 1}} {
		buf := []byte{1}
		region := &mem.Region{Space: mem.NewSlice(0, buf), Len: 1}
		p := newPipe()
		r := pkt.Burst{Count: 1, Data: mem.ListPayload([]mem.Seg{{Region: region, Len: 1}}, 0, 1)}
		r.Opcode = tc.service | ib.SendOnly
		if !p.put(&r, nil) {
			t.Fatal("no room in an empty pipe")
		}
		buf[0] = 2
		p.each(func(x *transfer) {
			var got [1]byte
			if res := mem.CopyOut(got[:], &x.run.Data); res != mem.OK || got[0] != tc.want {
				t.Errorf("service %#x: read %d (%v), want %d", tc.service, got[0], res, tc.want)
			}
		})
		p.release()
		region.Revoke()
		if ok := p.put(&r, nil); ok != (tc.service == ib.ServiceRC) || r.Fault == ok {
			t.Errorf("service %#x, memory that went: taken %v, fault %v", tc.service, ok, r.Fault)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package simfab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Memory of both nodes: slots of slotSize bytes with guard bytes between what
// messages of slotSize-guard bytes may touch.
const (
	slotSize = 66 << 10
	slots    = 6
	guard    = 64
)

// campaign returns the seeds that each case runs with: as many as
// WEFT_SIM_SEEDS has; by default one, and five in a soak (WEFT_SOAK).
func campaign(t testing.TB) []uint64 {
	n := 1
	if condtest.Soak() {
		n = 5
	}
	if v := os.Getenv("WEFT_SIM_SEEDS"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatalf("WEFT_SIM_SEEDS: %v", err)
		}
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	return seeds
}

// TestDelivery: RC delivers every byte exactly once and in order, whatever the
// path does, for every operation and message sizes around every boundary.
func TestDelivery(t *testing.T) {
	const mtu = 1024
	sizes := []int{0, 1, 3, 4, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 1, 8191, 8193, 65535, 65536, 65537}
	for _, loss := range []int{0, 10, 50, 200} {
		for op := ib.WRWrite; op <= ib.WRFetchAdd; op++ {
			t.Run(fmt.Sprintf("loss=%d%%/%v", loss/10, op), func(t *testing.T) {
				for _, seed := range campaign(t) {
					if op.IsAtomic() {
						deliver(t, seed, loss, op, ib.MTU1024, 8)
						continue
					}
					for _, n := range sizes {
						deliver(t, seed, loss, op, ib.MTU1024, n)
					}
				}
			})
		}
	}
}

// TestDeliveryMTU repeats the sizes around the boundaries of other path MTUs.
func TestDeliveryMTU(t *testing.T) {
	for _, mtu := range []ib.MTU{ib.MTU256, ib.MTU512, ib.MTU2048, ib.MTU4096} {
		b := mtu.Bytes()
		for _, op := range []ib.WROp{ib.WRWriteImm, ib.WRSend, ib.WRRead} {
			t.Run(fmt.Sprintf("%d/%v", b, op), func(t *testing.T) {
				for _, seed := range campaign(t) {
					for _, n := range []int{b - 1, b, b + 1, 2 * b, 3*b + 1} {
						deliver(t, seed, 50, op, mtu, n)
					}
				}
			})
		}
	}
}

// deliver runs a few messages of n bytes each over one connection.
func deliver(t *testing.T, seed uint64, perMille int, op ib.WROp, mtu ib.MTU, n int) {
	t.Helper()
	// A corrupted packet is lost too. Packets that are reordered fall behind
	// several others.
	f := Faults{Drop: perMille * 4 / 5, Corrupt: perMille / 5, Dup: perMille / 4, Reorder: perMille / 4,
		Delay: 5 * time.Microsecond, Jitter: 40 * time.Microsecond, Rate: 1.25e9}
	s := New(seed<<32|uint64(op)<<24|uint64(n), f)
	a, b := s.AddNode(slots*slotSize), s.AddNode(slots*slotSize)
	x, y, err := s.Connect(a, b, Options{Type: ib.RC, MTU: mtu, MaxRun: 16 << 10, Timeout: 8, Retry: 7, RNRRetry: 7,
		MinRNR: 1, RdAtomic: 4,
		Window: 64 << 10, SendWR: slots, RecvWR: slots, StartPSN: ib.PSN(0x1000000-20) & ib.PSNMask})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	for i := 0; i < len(a.Mem); i += 8 {
		binary.NativeEndian.PutUint64(a.Mem[i:], rng.Uint64())
		binary.NativeEndian.PutUint64(b.Mem[i:], rng.Uint64())
	}
	wantA, wantB := bytes.Clone(a.Mem), bytes.Clone(b.Mem)
	var counter uint64
	if op.IsAtomic() {
		counter = binary.NativeEndian.Uint64(b.Mem[guard:])
	}
	receives := op.IsSend() || op == ib.WRWriteImm
	for i := range slots {
		at := i*slotSize + guard
		wr := x.SendSlot()
		wr.ID, wr.Op, wr.Flags, wr.Imm = uint64(i), op, ib.Signaled, uint32(i)
		wr.SGE = append(wr.SGE, ib.SGE{Addr: Base + uint64(at), Len: uint32(n), LKey: Key})
		wr.RemoteVA, wr.RKey = Base+uint64(at), Key
		switch {
		case op.IsAtomic():
			wr.RemoteVA = Base + guard
			wr.SwapAdd = rng.Uint64()
			wr.Compare = counter
			binary.NativeEndian.PutUint64(wantA[at:], counter)
			if counter += wr.SwapAdd; op == ib.WRCmpSwap {
				counter = wr.SwapAdd
			}
			binary.NativeEndian.PutUint64(wantB[guard:], counter)
		case op == ib.WRRead:
			copy(wantA[at:at+n], b.Mem[at:])
		default:
			copy(wantB[at:at+n], a.Mem[at:])
		}
		x.Post(s.Now)
	}
	done := func() bool { return len(x.Sends) == slots }
	if receives {
		// The second half of the receive requests comes late.
		for i := range slots {
			if i == slots/2 {
				s.Run(200*time.Microsecond, done)
			}
			y.PostRecv(uint64(i), i*slotSize+guard, n)
		}
	}
	ok := s.Run(time.Minute, done)
	where := fmt.Sprintf("seed %d loss %d‰ %v mtu %d size %d", seed, perMille, op, mtu.Bytes(), n)
	if !ok {
		t.Fatalf("%s: %d of %d completed after %v; %+v", where, len(x.Sends), slots,
			s.Now.Sub(mono.Time(time.Second)), s.Stats)
	}
	for i, c := range x.Sends {
		if c.ID != uint64(i) || c.Status != ib.Success || c.ByteLen != uint32(n) {
			t.Fatalf("%s: send completion %d is %+v; counters %+v", where, i, c, *x.Counters())
		}
	}
	wantRecvs := 0
	if receives {
		wantRecvs = slots
	}
	if len(y.Recvs) != wantRecvs {
		t.Fatalf("%s: %d receive completions", where, len(y.Recvs))
	}
	for i, c := range y.Recvs {
		if c.ID != uint64(i) || c.Status != ib.Success || c.ByteLen != uint32(n) || op.HasImm() && c.Imm != uint32(i) {
			t.Fatalf("%s: receive completion %d is %+v", where, i, c)
		}
	}
	if !bytes.Equal(wantA, a.Mem) || !bytes.Equal(wantB, b.Mem) {
		t.Fatalf("%s: memory differs", where)
	}
}

// TestUnreliable: over UC a message arrives whole or not at all, in order, and
// a lost one costs no receive request.
func TestUnreliable(t *testing.T) {
	for _, seed := range campaign(t) {
		const n, messages = 5000, 200
		s := New(seed, Faults{Drop: 30, Dup: 30, Reorder: 30, Corrupt: 10, Delay: time.Microsecond,
			Jitter: 20 * time.Microsecond, Rate: 1e9})
		a, b := s.AddNode(messages*8+n), s.AddNode(messages*8*1024)
		x, y, err := s.Connect(a, b, Options{Type: ib.UC, MTU: ib.MTU1024, MaxRun: 4096, SendWR: messages})
		if err != nil {
			t.Fatal(err)
		}
		for i := range a.Mem {
			a.Mem[i] = byte(i * 11)
		}
		for i := range messages {
			y.PostRecv(uint64(i), i*8192, 8192)
			wr := x.SendSlot()
			wr.ID, wr.Op, wr.Flags, wr.Imm = uint64(i), ib.WRSendImm, ib.Signaled, uint32(i)
			wr.SGE = append(wr.SGE, ib.SGE{Addr: Base + uint64(i), Len: n, LKey: Key})
			x.Post(s.Now)
		}
		s.Run(time.Second, func() bool { return false })
		if len(x.Sends) != messages || len(y.Recvs) == 0 || len(y.Recvs) == messages {
			t.Fatalf("seed %d: %d sent, %d received", seed, len(x.Sends), len(y.Recvs))
		}
		for i, c := range y.Recvs {
			at := int(c.Imm)
			if c.Status != ib.Success || c.ID != uint64(i) || c.ByteLen != n || !bytes.Equal(b.Mem[i*8192:i*8192+n],
				a.Mem[at:at+n]) {
				t.Fatalf("seed %d: receive %d is %+v", seed, i, c)
			}
		}
	}
}

// TestManyNodes: every node writes to, and reads back from, every other.
func TestManyNodes(t *testing.T) {
	const nodes, n = 6, 9000
	for _, seed := range campaign(t) {
		s := New(seed, Faults{Drop: 20, Dup: 10, Reorder: 20, Corrupt: 10, Delay: 5 * time.Microsecond,
			Jitter: 50 * time.Microsecond, Rate: 1.25e9})
		var all []*Node
		for range nodes {
			all = append(all, s.AddNode(3*nodes*n))
		}
		var qps []*QP
		for i, a := range all {
			for k := range nodes * n {
				a.Mem[k] = byte(k*7 + i)
			}
			for j, b := range all {
				if i == j {
					continue
				}
				x, _, err := s.Connect(a, b, Options{Type: ib.RC, MTU: ib.MTU1024, MaxRun: 8192, Timeout: 8, Retry: 7,
					RdAtomic: 4, SendWR: 2})
				if err != nil {
					t.Fatal(err)
				}
				for k, op := range []ib.WROp{ib.WRWrite, ib.WRRead} {
					wr := x.SendSlot()
					wr.Op, wr.Flags, wr.RKey, wr.RemoteVA = op, ib.Signaled, Key, Base+uint64((nodes+i)*n)
					at := j * n
					if op == ib.WRRead {
						at = (2*nodes + j) * n
					}
					wr.ID = uint64(k)
					wr.SGE = append(wr.SGE, ib.SGE{Addr: Base + uint64(at), Len: n, LKey: Key})
					x.Post(s.Now)
				}
				qps = append(qps, x)
			}
		}
		if !s.Run(time.Minute, func() bool {
			for _, q := range qps {
				if len(q.Sends) < 2 {
					return false
				}
			}
			return true
		}) {
			t.Fatalf("seed %d: stuck: %+v", seed, s.Stats)
		}
		for i, a := range all {
			for j, b := range all {
				if i == j {
					continue
				}
				want := a.Mem[j*n : (j+1)*n]
				if !bytes.Equal(want, b.Mem[(nodes+i)*n:(nodes+i+1)*n]) ||
					!bytes.Equal(want, a.Mem[(2*nodes+j)*n:(2*nodes+j+1)*n]) {
					t.Fatalf("seed %d: from %d to %d", seed, i, j)
				}
			}
		}
	}
}

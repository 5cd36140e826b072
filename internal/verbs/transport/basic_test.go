// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"weft/internal/proto/ib"
)

// TestOperations moves every operation over every service on lossless paths,
// as whole runs and as single packets.
func TestOperations(t *testing.T) {
	sizes := []uint64{0, 1, 255, 256, 257, 512, 4096, 65535, 65536, 65537}
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		for op := ib.WRWrite; op <= ib.WRFetchAdd; op++ {
			if !op.AllowedOn(typ) {
				continue
			}
			for _, maxRun := range []uint32{256, 1024, 1 << 20} {
				for _, n := range sizes {
					if typ == ib.UD && n > 4096 || op.IsAtomic() && n != 0 {
						continue
					}
					t.Run(fmt.Sprintf("%v/%v/%d/%d", typ, op, maxRun, n), func(t *testing.T) {
						oneOperation(t, typ, op, maxRun, n)
					})
				}
			}
		}
	}
}

func oneOperation(t *testing.T, typ ib.QPType, op ib.WROp, maxRun uint32, n uint64) {
	a, b := pair(t, typ, ib.MTU256, maxRun, maxRun == 1<<20)
	if maxRun == 1024 {
		a.opaque()
		b.opaque()
	}
	var log []string
	a.log = func(f string, args ...any) { log = append(log, fmt.Sprintf(f, args...)) }
	b.log = a.log
	const src, dst = 1000, 200000
	for i := range 66000 {
		a.buf[src+i] = byte(i*7 + i>>8)
	}
	dirty := bytes.Repeat([]byte{0xa5}, 100000)
	copy(b.buf[dst:], dirty)
	b.recv(9, dst, 100000)
	if op.IsAtomic() {
		n = 8
	}
	wr := a.post(7, op, ib.Signaled|ib.Solicited, src, n, dst)
	wr.Path, wr.DestQPN, wr.QKey, wr.Imm = a.q.PathOf(), 18, 0x11, 0x01020304
	if typ == ib.UD {
		wr.Path = &ib.Path{SGID: gid(1), DGID: gid(2)}
	}
	wr.Compare, wr.SwapAdd = 0xa5a5a5a5a5a5a5a5, 1
	want, got := a.buf[src:src+n], b.buf[dst:dst+n]
	switch op {
	case ib.WRRead:
		want, got = bytes.Clone(b.buf[dst:dst+n]), a.buf[src:src+n]
	case ib.WRCmpSwap:
		want = []byte{1, 0, 0, 0, 0, 0, 0, 0}
	case ib.WRFetchAdd:
		want = []byte{0xa6, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5, 0xa5}
	}
	if typ == ib.UD {
		got = b.buf[dst+40 : dst+40+n]
	}
	want = bytes.Clone(want)
	a.q.Post(1)
	pump(1, a, b)
	if !bytes.Equal(want, got) {
		t.Errorf("wrong bytes: want %x… got %x…", want[:min(16, n)], got[:min(16, n)])
	}
	if op.IsAtomic() && !bytes.Equal(a.buf[src:src+8], bytes.Repeat([]byte{0xa5}, 8)) {
		t.Errorf("original value %x", a.buf[src:src+8])
	}
	all := strings.Join(log, "\n")
	if !strings.Contains(all, fmt.Sprintf("A send id=7 signal=true SUCCESS op=%d len=%d", op.WCOp(), n)) {
		t.Errorf("no completion of the sender:\n%s", all)
	}
	wantRecv := ""
	switch {
	case typ == ib.UD:
		wantRecv = fmt.Sprintf("B recv id=9 SUCCESS op=128 len=%d", n+40)
	case op.IsSend():
		wantRecv = fmt.Sprintf("B recv id=9 SUCCESS op=128 len=%d", n)
	case op == ib.WRWriteImm:
		wantRecv = fmt.Sprintf("B recv id=9 SUCCESS op=129 len=%d imm=0x1020304", n)
	}
	if wantRecv != "" && !strings.Contains(all, wantRecv) || wantRecv == "" && strings.Contains(all, "B recv") {
		t.Errorf("receiver: want %q in\n%s", wantRecv, all)
	}
	if a.q.Pending() || b.q.Pending() || a.q.Deadline() != 0 {
		t.Errorf("not idle: %v %v deadline %d", a.q.Pending(), b.q.Pending(), a.q.Deadline())
	}
}

func TestRoundTripAllocs(t *testing.T) {
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		for op := ib.WRWrite; op <= ib.WRFetchAdd; op++ {
			if !op.AllowedOn(typ) {
				continue
			}
			for _, local := range []bool{true, false} {
				a, b := pair(t, typ, ib.MTU1024, 2048, local)
				a.quiet, b.quiet = true, true
				b.recv(1, 0, 8192)
				if n := testing.AllocsPerRun(100, func() { roundTrip(a, b, op, 4096) }); n != 0 {
					t.Errorf("%v %v: %v allocations per round trip", typ, op, n)
				}
			}
		}
	}
}

var datagramPath = &ib.Path{SGID: gid(1), DGID: gid(2)}

// roundTrip posts one request and runs both sides until it is done.
func roundTrip(a, b *side, op ib.WROp, n uint64) {
	if op.IsAtomic() {
		n = 8
	}
	b.recvs = append(b.recvs, b.free...)
	b.free = b.free[:0]
	wr := a.post(1, op, ib.Signaled, 0, n, 0)
	wr.Path, wr.DestQPN, wr.QKey = datagramPath, 18, 0x11
	a.q.Post(1)
	done := a.sends
	pump(1, a, b)
	if a.sends != done+1 {
		panic("request did not complete")
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, op := range []ib.WROp{ib.WRWrite, ib.WRSend, ib.WRRead} {
		for _, n := range []uint64{8, 65536} {
			b.Run(fmt.Sprintf("%v/%d", op, n), func(b *testing.B) {
				x, y := pair(b, ib.RC, ib.MTU4096, 1<<20, true)
				x.quiet, y.quiet = true, true
				y.recv(1, 0, 65536)
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					roundTrip(x, y, op, n)
				}
			})
		}
	}
}

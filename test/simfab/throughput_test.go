// SPDX-License-Identifier: Apache-2.0

package simfab

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/throughput.txt")

// TestThroughput compares throughput against loss, in virtual time, with the
// table that is checked in: a slower retransmission shows as a diff.
func TestThroughput(t *testing.T) {
	var b strings.Builder
	b.WriteString("# MB/s of virtual time: 10 Gb/s, 10 µs one way, path MTU 1024, messages of 64 KiB, 8 posted,\n")
	b.WriteString("# timeout 14 (67 ms), window 512 KiB; last, to a peer that keeps nothing behind a gap. go test ./test/simfab -run Throughput -rewrite\n")
	fmt.Fprintf(&b, "%-8s", "loss")
	ops := []ib.WROp{ib.WRWrite, ib.WRSend, ib.WRRead}
	for _, op := range ops {
		fmt.Fprintf(&b, "%10v", op)
	}
	fmt.Fprintf(&b, "%10v\n", ib.WRWrite)
	for _, loss := range []int{0, 1, 10, 50, 200} {
		fmt.Fprintf(&b, "%-8s", fmt.Sprintf("%.1f%%", float64(loss)/10))
		for _, op := range ops {
			fmt.Fprintf(&b, "%10.1f", throughput(t, loss, op, false))
		}
		fmt.Fprintf(&b, "%10.1f\n", throughput(t, loss, ib.WRWrite, true))
	}
	const name = "testdata/throughput.txt"
	if *rewrite {
		if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != b.String() {
		t.Fatalf("want\n%s\ngot\n%s", want, b.String())
	}
}

func throughput(t *testing.T, perMille int, op ib.WROp, discards bool) float64 {
	const size = 64 << 10
	messages := 400
	if perMille >= 50 {
		messages = 60
	}
	s := New(1, Faults{Drop: perMille, Delay: 10 * time.Microsecond, Rate: 1.25e9})
	a, b := s.AddNode(size), s.AddNode(size)
	x, y, err := s.Connect(a, b, Options{Type: ib.RC, MTU: ib.MTU1024, MaxRun: 63 << 10, Timeout: 14, Retry: 7,
		RNRRetry: 7, MinRNR: 1, RdAtomic: 16,
		Window: 512 << 10, SendWR: 8, RecvWR: 8, NoBuffers: discards})
	if err != nil {
		t.Fatal(err)
	}
	start, posted := s.Now, 0
	ok := s.Run(time.Minute, func() bool {
		for posted < messages {
			wr := x.SendSlot()
			if wr == nil {
				break
			}
			if op.IsSend() {
				y.PostRecv(0, 0, size)
			}
			wr.Op, wr.Flags, wr.RemoteVA, wr.RKey = op, ib.Signaled, Base, Key
			wr.SGE = append(wr.SGE, ib.SGE{Addr: Base, Len: size, LKey: Key})
			x.Post(s.Now)
			posted++
		}
		return len(x.Sends) == messages || x.State() != ib.RTS
	})
	if !ok || x.State() != ib.RTS {
		t.Fatalf("loss %d‰ %v: %d of %d messages, %v", perMille, op, len(x.Sends), messages, x.State())
	}
	return float64(messages*size) / s.Now.Sub(start).Seconds() / 1e6
}

// TestDeterminism: the same seed gives the same run.
func TestDeterminism(t *testing.T) {
	run := func() (Stats, mono.Time) {
		s := New(7, Faults{Drop: 100, Dup: 50, Reorder: 50, Corrupt: 50, Jitter: time.Millisecond, Rate: 1e9})
		a, b := s.AddNode(1<<20), s.AddNode(1<<20)
		x, _, err := s.Connect(a, b, Options{Type: ib.RC, MTU: ib.MTU256, MaxRun: 4096, Timeout: 8, Retry: 7,
			SendWR: 4})
		if err != nil {
			t.Fatal(err)
		}
		wr := x.SendSlot()
		wr.Op, wr.Flags, wr.RemoteVA, wr.RKey = ib.WRWrite, ib.Signaled, Base, Key
		wr.SGE = append(wr.SGE, ib.SGE{Addr: Base, Len: 1 << 18, LKey: Key})
		x.Post(s.Now)
		s.Run(time.Minute, func() bool { return len(x.Sends) == 1 })
		return s.Stats, s.Now
	}
	s1, t1 := run()
	s2, t2 := run()
	if s1 != s2 || t1 != t2 || s1.Dropped == 0 || s1.Doubled == 0 || s1.Reordered == 0 || s1.RefusedICRC == 0 {
		t.Fatalf("%+v at %d, %+v at %d", s1, t1, s2, t2)
	}
}

// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/hca"
)

var _ hca.Link = (*Link)(nil)

// pair opens two links that send to each other.
func pair(t testing.TB) (a, b *Link) {
	t.Helper()
	a, b = open(t, Config{Port: 16791, PeerPort: 16793}), open(t, Config{Port: 16793, PeerPort: 16791})
	return a, b
}

func open(t testing.TB, cfg Config) *Link {
	t.Helper()
	cfg.RecvBuffer = 8 << 20
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func gid(s string) ib.GID { return ib.GIDFromAddr(netip.MustParseAddr(s)) }

func path(src, dst string) *ib.Path {
	return &ib.Path{SGID: gid(src), DGID: gid(dst), TClass: 0x68, HopLimit: 7, SrcPort: 0xc123}
}

var paths = []struct {
	name string
	path *ib.Path
}{
	{"IPv4", path("127.0.0.1", "127.0.0.2")},
	{"IPv6", path("::1", "::1")},
}

// received is a copy of a run.
type received struct {
	pkt.Burst
	path ib.Path
	data []byte
}

// await receives until n packets came.
func await(t testing.TB, l *Link, n uint32) (out []received) {
	t.Helper()
	var got uint32
	b := mem.NewBatch(4096)
	for end := time.Now().Add(5 * time.Second); got < n; {
		runs, more := l.Recv()
		for i := range runs {
			r := &runs[i]
			data := make([]byte, r.Data.Len)
			if b.Gather([][]byte{data}, &r.Data, 0) != mem.OK {
				t.Fatal("payload of a received run not readable")
			}
			out = append(out, received{*r, *r.Path, data})
			got += r.Count
		}
		if more {
			continue
		}
		in, _ := l.FDs()
		var p []unix.PollFd
		for _, fd := range in {
			p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(p, 100); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("received %d of %d packets; %+v", got, n, l.Counters())
		}
	}
	return out
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func packets(n, mtu int) uint32 { return max(1, uint32((n+mtu-1)/mtu)) }

func TestLoopback(t *testing.T) {
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			a, b := pair(t)
			batch := mem.NewBatch(64 << 10)
			for _, c := range []struct {
				op   ib.Opcode
				size int
				mtu  int
			}{
				{ib.WriteOnly, 65536, 1024},
				{ib.WriteOnly, 65536, 4096},
				{ib.WriteOnlyImm, 65535, 1024},
				{ib.WriteOnly, 131072, 256},
				{ib.WriteOnly, 262144, 4096},
				{ib.WriteFirst, 8192, 1024},
				{ib.WriteMiddle, 8192, 1024},
				{ib.WriteLast, 8191, 1024},
				{ib.SendOnly, 0, 1024},
				{ib.SendOnly, 1, 1024},
				{ib.SendOnly, 1023, 1024},
				{ib.SendOnlyInv, 4097, 1024},
				{ib.ServiceUC | ib.SendOnlyImm, 70000, 2048},
				{ib.ServiceUD | ib.SendOnly, 256, 4096},
				{ib.ReadRespOnly, 65537, 1024},
				{ib.ReadRequest, 0, 1024},
				{ib.Acknowledge, 0, 1024},
				{ib.CmpSwap, 0, 1024},
				{ib.AtomicAck, 0, 1024},
			} {
				data := random(c.size)
				h := wire.Headers{Opcode: c.op, AckReq: true, SE: true, MigReq: true, PKey: 0xffff, DestQPN: 0x123456,
					PSN: 0xfffffe}
				set(&h)
				r := pkt.Burst{Headers: h, Count: packets(c.size, c.mtu), MTU: uint32(c.mtu), Path: p.path,
					Data: mem.BytesPayload(data)}
				if res := a.Send(0, &r, batch); res != mem.OK {
					t.Fatalf("%v of %d: %v", c.op, c.size, res)
				}
				a.Flush(0)
				got := await(t, b, r.Count)
				if len(got) != 1 {
					t.Fatalf("%v of %d bytes came in %d runs, want 1; %+v", c.op, c.size, len(got), b.Counters())
				}
				g := got[0]
				want := h
				want.PadCnt = g.PadCnt
				if g.Headers != want || g.Count != r.Count || !bytes.Equal(g.data, data) ||
					g.IPv4 != p.path.DGID.IsIPv4() {
					t.Fatalf("%v of %d bytes:\ngot  %+v count %d\nwant %+v count %d", c.op, c.size, g.Headers,
						g.Count, want, r.Count)
				}
				if c.op.Info().Payload && g.Count > 1 && g.MTU != uint32(c.mtu) {
					t.Errorf("MTU %d, want %d", g.MTU, c.mtu)
				}
				wantPath := *p.path
				wantPath.SrcPort = g.path.SrcPort
				if g.path != wantPath || g.path.SrcPort < 0xc000 {
					t.Errorf("path %+v, want %+v", g.path, wantPath)
				}
			}
			for _, d := range a.Degraded() {
				t.Log(d)
			}
			t.Logf("%+v", a.Counters())
			t.Logf("%+v", b.Counters())
		})
	}
}

// set gives every extension header that the opcode has a value of its own.
func set(h *wire.Headers) {
	e := h.Opcode.Info().Ext
	if e&ib.ExtDETH != 0 {
		h.QKey, h.SrcQPN = 0x80010000, 0x654321
	}
	if e&(ib.ExtRETH|ib.ExtAtomic) != 0 {
		h.VA, h.RKey = 0x0123456789abcdef, 0xcafebabe
	}
	if e&ib.ExtRETH != 0 {
		h.DMALen = 0x7fffffff
	}
	if e&ib.ExtAtomic != 0 {
		h.SwapAdd, h.Compare = 0x1111111122222222, 0x3333333344444444
	}
	if e&ib.ExtAETH != 0 {
		h.Syndrome, h.MSN = 0x1f, 0x00abcd
	}
	if e&ib.ExtAtomicAck != 0 {
		h.Orig = 0x5555555566666666
	}
	if e&ib.ExtImm != 0 {
		h.Imm = 0xdeadbeef
	}
	if e&ib.ExtIETH != 0 {
		h.InvKey = 0x1badb002
	}
}

// TestSmallBufferOnce: both families have one limit, so that one report names it.
func TestSmallBufferOnce(t *testing.T) {
	l := &Link{}
	l.smallBuffer(208<<10, 16<<20)
	l.smallBuffer(208<<10, 16<<20)
	if d := l.Degraded(); len(d) != 1 || d[0].Name != "small_rcvbuf" || d[0].Fix != "sysctl -w net.core.rmem_max=16777216" {
		t.Errorf("%+v", d)
	}
}

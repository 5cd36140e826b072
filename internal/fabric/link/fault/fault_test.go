// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/fabric/link/roce"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/hca"
)

var (
	_ Link     = (*roce.Link)(nil)
	_ hca.Link = (*Stage)(nil)
)

// sink is a link that records the packets of what it is sent.
type sink struct {
	t       testing.TB
	packets []packet
	runs    int
	blocked bool
	flushed int
	fault   bool // payload is not readable
}

type packet struct {
	h       wire.Headers
	data    []byte
	corrupt bool
	at      mono.Time
	path    ib.Path
}

func (s *sink) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	return s.add(now, r, b, false)
}
func (s *sink) SendCorrupt(now mono.Time, r *pkt.Burst, b *mem.Batch, bit uint32) mem.Result {
	return s.add(now, r, b, true)
}
func (s *sink) Blocked() bool   { return s.blocked }
func (s *sink) Flush(mono.Time) { s.flushed++ }

func (s *sink) add(now mono.Time, r *pkt.Burst, b *mem.Batch, corrupt bool) mem.Result {
	if s.fault {
		return mem.SourceFault
	}
	s.runs++
	data := make([]byte, r.Data.Len)
	if b.Gather([][]byte{data}, &r.Data, 0) != mem.OK {
		s.t.Fatal("payload is shorter than the burst states")
	}
	if corrupt && r.Count != 1 {
		s.t.Fatalf("SendCorrupt of %d packets", r.Count)
	}
	for k := range r.Count {
		n := len(data)
		if r.Count > 1 {
			n = min(n, int(r.MTU))
		}
		s.packets = append(s.packets, packet{r.Headers.Packet(k, r.Count, n), data[:n], corrupt, now, *r.Path})
		data = data[n:]
	}
	if len(data) != 0 {
		s.t.Fatalf("%d bytes are left over", len(data))
	}
	return mem.OK
}

func (s *sink) psns() (out []int) {
	for _, p := range s.packets {
		out = append(out, int(p.h.PSN))
	}
	return out
}

func gid(s string) ib.GID { return ib.GIDFromAddr(netip.MustParseAddr(s)) }

var (
	here = gid("10.0.0.1")
	peer = gid("10.0.0.2")
	path = &ib.Path{SGID: here, DGID: peer, HopLimit: 9}
)

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

// message is a burst of n bytes at MTU 256 from PSN psn on.
func message(op ib.Opcode, psn ib.PSN, data []byte) pkt.Burst {
	h := wire.Headers{Opcode: op, PKey: 0xffff, PSN: psn, AckReq: true, SE: true}
	if op.Info().Ext&ib.ExtRETH != 0 {
		h.VA, h.RKey, h.DMALen = 1, 2, 3
	}
	if op.Info().Ext&ib.ExtImm != 0 {
		h.Imm = 4
	}
	if op.Info().Ext&ib.ExtAETH != 0 {
		h.Syndrome, h.MSN = 5, 6
	}
	// Two segments, so that offsets into a list matter.
	cut := len(data) / 3
	segs := []mem.Seg{{Bytes: data[:cut], Len: uint64(cut)}, {Bytes: data[cut:], Len: uint64(len(data) - cut)}}
	return pkt.Burst{Headers: h, Count: max(1, uint32((len(data)+255)/256)), MTU: 256, Path: path,
		Data: mem.ListPayload(segs, 0, len(data))}
}

func newStage(t testing.TB, rules ...Rule) (*Stage, *sink) {
	k := &sink{t: t}
	s := New(k)
	for _, r := range rules {
		if err := r.Validate(); err != nil {
			t.Fatal(err)
		}
		s.Add(r)
	}
	return s, k
}

func TestNoRuleNoWork(t *testing.T) {
	s, k := newStage(t, Rule{ID: 1, Drop: 100, Peer: gid("10.0.0.3")}, Rule{ID: 2, Drop: 100,
		Sources: []ib.GID{gid("10.0.0.4")}})
	r := message(ib.WriteOnly, 0, random(1024))
	b := mem.NewBatch(4096)
	s.Send(1, &r, b)
	if k.runs != 1 || len(k.packets) != 4 {
		t.Errorf("%d runs, %d packets", k.runs, len(k.packets))
	}
	s.Add(Rule{ID: 2, Drop: 100, Sources: []ib.GID{gid("10.0.0.4"), here}}) // replaces
	s.Send(1, &r, b)
	if len(k.packets) != 4 {
		t.Error("a rule for our address did not match")
	}
	if st := s.Rules(); len(st) != 2 || st[1].Dropped != 4 || st[1].Packets != 4 || st[0].Packets != 0 {
		t.Errorf("%+v", st)
	}
	if !s.Remove(2) || s.Remove(2) {
		t.Error("Remove")
	}
	s.Send(1, &r, b)
	if len(k.packets) != 8 {
		t.Error("the rule outlived its removal")
	}
	n := testing.AllocsPerRun(100, func() { k.fault = true; s.Send(1, &r, b) })
	if n != 0 {
		t.Errorf("%v allocations without a matching rule, want 0", n)
	}
}

// TestSparedPacketsAreUnchanged drops each packet of every kind of run in turn:
// the others must be, byte for byte, what they were.
func TestSparedPacketsAreUnchanged(t *testing.T) {
	for o := range 256 {
		op := ib.Opcode(o)
		i := op.Info()
		if !i.Send && !i.Write && !i.ReadResp || op.Service() == ib.ServiceUD {
			continue
		}
		for _, bytesOnly := range []bool{false, true} {
			for seed := range uint64(12) {
				whole, all := newStage(t)
				s, k := newStage(t, Rule{Drop: 40, Seed: seed})
				r := message(op, 0xfffffe, random(5*256+17))
				if bytesOnly {
					r.Data = mem.BytesPayload(random(5*256 + 17))
				}
				b := mem.NewBatch(4096)
				whole.Send(1, &r, b)
				s.Send(1, &r, b)
				left := all.packets
				for _, p := range k.packets {
					for len(left) > 0 && left[0].h.PSN != p.h.PSN {
						left = left[1:]
					}
					if len(left) == 0 || left[0].h != p.h || !bytes.Equal(left[0].data, p.data) {
						t.Fatalf("%v: packet %+v differs from the original", op, p.h)
					}
				}
				if st := s.Rules()[0]; st.Dropped != uint64(6-len(k.packets)) || st.Packets != 6 {
					t.Fatalf("%+v, but %d packets came", st, len(k.packets))
				}
			}
		}
	}
}

func TestRates(t *testing.T) {
	s, k := newStage(t, Rule{Drop: 10, Duplicate: 20, Corrupt: 5, Seed: 7})
	b := mem.NewBatch(4096)
	for i := range 1000 {
		r := message(ib.SendOnly, ib.PSN(i*20), random(20*256))
		s.Send(1, &r, b)
	}
	st := s.Rules()[0]
	near := func(name string, got uint64, percent, of float64) {
		if want := of * percent / 100; math.Abs(float64(got)-want) > 5*math.Sqrt(want) {
			t.Errorf("%s: %d of %v, want about %v", name, got, of, want)
		}
	}
	near("dropped", st.Dropped, 10, 20000)
	near("duplicated", st.Duplicated, 20, 18000)
	near("corrupted", st.Corrupted, 5, 18000)
	if n := uint64(len(k.packets)); n != 20000-st.Dropped+st.Duplicated {
		t.Errorf("%d packets came, %+v", n, st.Counters)
	}
	bad := 0
	for _, p := range k.packets {
		if p.corrupt {
			bad++
		}
	}
	if uint64(bad) < st.Corrupted {
		t.Errorf("%d corrupted packets came, %d were counted", bad, st.Corrupted)
	}
}

// transcript sends 300 packets, in runs of the given length, 100 µs apart, and
// returns what came out.
func transcript(t *testing.T, perRun int, rules ...Rule) string {
	s, k := newStage(t, rules...)
	b := mem.NewBatch(4096)
	now := mono.Time(1)
	for i := 0; i < 300; i += perRun {
		r := message(ib.SendOnly, ib.PSN(i), random(perRun*256))
		s.Send(now, &r, b)
		s.Flush(now)
		now = now.Add(100 * time.Microsecond * time.Duration(perRun))
	}
	for s.Held() > 0 {
		now = s.Deadline()
		s.Flush(now)
	}
	var w strings.Builder
	for _, p := range k.packets {
		fmt.Fprintf(&w, "%d %v; ", p.h.PSN, p.corrupt)
	}
	return w.String()
}

func TestSameSeedSameFaults(t *testing.T) {
	rule := Rule{Drop: 5, Duplicate: 5, Reorder: 10, Corrupt: 5, Seed: 42}
	a, b := transcript(t, 1, rule), transcript(t, 1, rule)
	if a != b {
		t.Errorf("the same seed decides differently:\n%s\n%s", a, b)
	}
	rule.Seed = 43
	if c := transcript(t, 1, rule); c == a {
		t.Error("another seed decides the same")
	}
	// How packets are grouped into runs does not matter.
	rule.Reorder = 0
	if a, b := transcript(t, 1, rule), transcript(t, 60, rule); a != b {
		t.Errorf("runs of other lengths are decided differently:\n%s\n%s", a, b)
	}
}

func TestReorder(t *testing.T) {
	s, k := newStage(t, Rule{Reorder: 10, Seed: 1})
	b := mem.NewBatch(4096)
	for i := range 50 {
		r := message(ib.SendOnly, ib.PSN(i*20), random(20*256))
		s.Send(1, &r, b)
	}
	got := k.psns()
	late := 0
	for i, p := range got {
		// A packet is overtaken by 8 at most, which themselves may be late.
		if i-p > 2*overtake || p-i > 2*overtake {
			t.Errorf("packet %d came as number %d", p, i)
		}
		if i > 0 && p < got[i-1] {
			late++
		}
	}
	for s.Held() > 0 {
		s.Flush(s.Deadline())
	}
	got = k.psns()
	slices.Sort(got)
	for i, p := range got {
		if i != p {
			t.Fatalf("packet %d is missing or came twice", i)
		}
	}
	if st := s.Rules()[0]; len(got) != 1000 || late < 30 || st.Reordered < 50 {
		t.Errorf("%d packets, %d came late, %+v", len(got), late, st.Counters)
	}
}

// TestLastPacketIsNotHeldForever reorders a packet that nothing follows.
func TestLastPacketIsNotHeldForever(t *testing.T) {
	s, k := newStage(t, Rule{Reorder: 100})
	r := message(ib.SendOnly, 1, random(10))
	s.Send(1000, &r, mem.NewBatch(4096))
	if want := mono.Time(1000).Add(patience); s.Deadline() != want || len(k.packets) != 0 {
		t.Fatalf("deadline %d, want %d", s.Deadline(), want)
	}
	s.Flush(s.Deadline() - 1)
	if len(k.packets) != 0 {
		t.Error("released too early")
	}
	s.Flush(s.Deadline())
	if len(k.packets) != 1 || s.Deadline() != 0 || s.Held() != 0 {
		t.Errorf("%d packets, deadline %d", len(k.packets), s.Deadline())
	}
}

func TestDelay(t *testing.T) {
	const ms = time.Millisecond
	s, k := newStage(t, Rule{Delay: 5 * ms}, Rule{ID: 1, Delay: 2 * ms})
	b := mem.NewBatch(4096)
	data := random(3 * 256)
	r := message(ib.WriteOnly, 7, data)
	want := bytes.Clone(data)
	p := *path
	r.Path = &p
	s.Send(1, &r, b)
	clear(data) // the copy is the stage's own
	p = ib.Path{}
	k.blocked = true
	s.Flush(mono.Time(1).Add(7 * ms))
	if len(k.packets) != 0 {
		t.Fatal("sent to a blocked link")
	}
	k.blocked = false
	s.Flush(mono.Time(1).Add(7*ms - 1))
	if len(k.packets) != 0 {
		t.Fatal("sent too early")
	}
	s.Flush(s.Deadline())
	var got []byte
	for i, q := range k.packets {
		got = append(got, q.data...)
		if q.h.PSN != ib.PSN(7+i) || q.path != *path {
			t.Errorf("packet %d: %+v on %+v", i, q.h, q.path)
		}
	}
	if !bytes.Equal(got, want) || k.flushed != 3 {
		t.Errorf("%d bytes of %d, %d flushes", len(got), len(want), k.flushed)
	}
	for _, st := range s.Rules() {
		if st.Delayed != 3 {
			t.Errorf("%+v", st)
		}
	}
}

func TestJitterReorders(t *testing.T) {
	s, k := newStage(t, Rule{Delay: time.Millisecond, Jitter: time.Millisecond, Seed: 3})
	r := message(ib.SendOnly, 0, random(64*256))
	s.Send(1, &r, mem.NewBatch(4096))
	for s.Held() > 0 {
		d := s.Deadline().Sub(1)
		if d < time.Millisecond || d > 2*time.Millisecond {
			t.Errorf("a packet waits %v", d)
		}
		s.Flush(s.Deadline())
	}
	if got := k.psns(); len(got) != 64 || slices.IsSorted(got) {
		t.Errorf("%v", got)
	}
}

func TestHeldIsBounded(t *testing.T) {
	s, k := newStage(t, Rule{Delay: time.Second})
	b := mem.NewBatch(4096)
	for i := range MaxHeld/64 + 1 {
		r := message(ib.SendOnly, ib.PSN(i*64), random(64*256))
		s.Send(1, &r, b)
	}
	if st := s.Rules()[0]; s.Held() != MaxHeld || st.Overflow != 64 {
		t.Errorf("%d held, %+v", s.Held(), st.Counters)
	}
	s.Flush(s.Deadline())
	if len(k.packets) != MaxHeld || !slices.IsSorted(k.psns()) {
		t.Errorf("%d packets came", len(k.packets))
	}
	r := message(ib.SendOnly, 0, random(64*256))
	if n := testing.AllocsPerRun(10, func() { k.fault = true; s.Send(1, &r, b); s.Flush(s.Deadline()) }); n != 0 {
		t.Errorf("%v allocations with packets to reuse, want 0", n)
	}
}

func TestSourceFault(t *testing.T) {
	gone := mem.Seg{Region: &mem.Region{Len: 1 << 20}, Len: 1024}
	gone.Region.Revoke()
	for _, rule := range []Rule{{Drop: 1e-9}, {Delay: 1}, {Corrupt: 100}} {
		s, k := newStage(t, rule)
		k.fault = rule.Delay == 0
		r := message(ib.SendOnly, 0, random(1024))
		r.Data = mem.ListPayload([]mem.Seg{gone}, 0, 1024)
		if res := s.Send(1, &r, mem.NewBatch(4096)); res != mem.SourceFault || s.Held() != 0 {
			t.Errorf("%+v: got %v, %d held", rule, res, s.Held())
		}
	}
}

func TestValidate(t *testing.T) {
	for _, r := range []Rule{{Drop: -1}, {Duplicate: 101}, {Reorder: math.NaN()}, {Corrupt: math.Inf(1)}, {Delay: -1},
		{Jitter: MaxDelay + 1}} {
		if r.Validate() == nil {
			t.Errorf("%+v is valid", r)
		}
	}
}

// TestOnARealLink sends over loopback sockets: what is corrupted is refused by
// its ICRC, and nothing else is lost.
func TestOnARealLink(t *testing.T) {
	a, err := roce.Open(roce.Config{Port: 16797, PeerPort: 46799, RecvBuffer: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	z, err := roce.Open(roce.Config{Port: 46799, PeerPort: 16797, RecvBuffer: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	s := New(a)
	s.Add(Rule{Drop: 5, Duplicate: 5, Reorder: 5, Corrupt: 5, Seed: 11})
	b := mem.NewBatch(4096)
	local := &ib.Path{SGID: gid("127.0.0.1"), DGID: gid("127.0.0.2")}
	var got, bad uint64
	for i := range 100 {
		r := message(ib.SendOnly, ib.PSN(i*20), random(20*256))
		r.Path = local
		if res := s.Send(mono.Time(1+i), &r, b); res != mem.OK {
			t.Fatal(res)
		}
		s.Flush(mono.Time(1 + i))
	}
	for s.Held() > 0 {
		s.Flush(s.Deadline())
	}
	st := s.Rules()[0]
	want := st.Packets - st.Dropped + st.Duplicated
	for end := time.Now().Add(5 * time.Second); got+bad < want && time.Now().Before(end); {
		z.Recv()
		c := z.Counters()
		got, bad = c.RcvdPackets, 0
		for _, n := range c.DropRefusal {
			bad += n
		}
	}
	if got+bad != want || bad < st.Corrupted || st.Corrupted == 0 {
		t.Errorf("%d packets came and %d were refused, want %d in all: %+v", got, bad, want, st.Counters)
	}
}

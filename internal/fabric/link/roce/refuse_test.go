// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// ack is an acknowledgement with a sequence number of its own.
func ack(psn uint32, p *ib.Path) pkt.Burst {
	return pkt.Burst{Headers: wire.Headers{Opcode: ib.Acknowledge, PKey: 0xffff, DestQPN: 5, PSN: ib.PSN(psn),
		Syndrome: 0x1f}, Count: 1, Path: p}
}

func TestShareMessages(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	for i := range uint32(200) {
		r := ack(i, paths[0].path)
		if res := a.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
	}
	a.Flush(0)
	got := await(t, b, 200)
	for i, r := range got {
		if r.PSN != ib.PSN(i) {
			t.Fatalf("packet %d has PSN %d: out of order", i, r.PSN)
		}
	}
	if c := a.Counters(); c.SentMessages != 4 || c.SentPackets != 200 || c.SentCalls != 1 {
		t.Errorf("200 acknowledgements took %d messages in %d calls, want 4 in 1", c.SentMessages, c.SentCalls)
	}
}

func TestTwoMessagesPer64KiB(t *testing.T) {
	for _, mtu := range []uint32{1024, 4096} {
		a, b := pair(t)
		batch := mem.NewBatch(4096)
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 65536 / mtu, MTU: mtu,
			Path: paths[0].path, Data: mem.BytesPayload(random(65536))}
		if res := a.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
		a.Flush(0)
		await(t, b, r.Count)
		if c := a.Counters(); c.SentMessages != 2 || c.SentCalls != 1 {
			t.Errorf("MTU %d: a 64 KiB WRITE took %d messages in %d calls, want 2 in 1", mtu, c.SentMessages,
				c.SentCalls)
		}
		a.Close()
		b.Close()
	}
}

// TestDifferentPathsStayApart sends to two addresses by turns: each packet must
// arrive at its own.
func TestDifferentPathsStayApart(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	ps := []*ib.Path{path("127.0.0.1", "127.0.0.2"), path("127.0.0.3", "127.0.0.4"), path("127.0.0.1", "127.0.0.4"),
		path("::1", "::1")}
	ps[1].SrcPort++
	want := map[ib.PSN]*ib.Path{}
	for i := range uint32(100) {
		p := ps[i*i%7%4]
		r := ack(i, p)
		want[ib.PSN(i)] = p
		if res := a.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
	}
	a.Flush(0)
	for _, r := range await(t, b, 100) {
		if w := want[r.PSN]; r.path.SGID != w.SGID || r.path.DGID != w.DGID {
			t.Errorf("PSN %d came from %v to %v, want %v to %v", r.PSN, r.path.SGID.Addr(), r.path.DGID.Addr(),
				w.SGID.Addr(), w.DGID.Addr())
		}
	}
}

func TestRunsEndAtAcknowledgeRequest(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	send := func(op ib.Opcode, psn ib.PSN, ack bool, n int) {
		r := pkt.Burst{Headers: wire.Headers{Opcode: op, PKey: 0xffff, PSN: psn, AckReq: ack}, Count: 1, MTU: 1024,
			Path: paths[0].path, Data: mem.BytesPayload(random(n))}
		if res := a.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
	}
	send(ib.SendFirst, 1, false, 1024)
	send(ib.SendMiddle, 2, true, 1024)
	send(ib.SendMiddle, 3, false, 1024)
	send(ib.SendLast, 4, true, 7)
	send(ib.SendLast, 5, true, 8)      // a stray one: not after a Last
	send(ib.SendFirst, 6, false, 1000) // not a path MTU
	send(ib.SendMiddle, 7, false, 1000)
	send(ib.SendFirst, 8, false, 1024)
	send(ib.SendMiddle, 10, false, 1024) // a gap
	send(ib.WriteMiddle, 11, false, 1024)
	send(ib.WriteLast, 12, false, 1024)
	send(ib.SendFirst, 13, false, 1024)
	send(ib.SendMiddle, 14, false, 512) // a short one in the middle
	send(ib.SendFirst, 15, false, 1024)
	send(ib.SendLast, 16, false, 2048) // more than the MTU so far
	a.Flush(0)
	var s strings.Builder
	for _, r := range await(t, b, 15) {
		fmt.Fprintf(&s, "%v psn %d count %d len %d ack %v\n", r.Opcode, r.PSN, r.Count, len(r.data), r.AckReq)
	}
	want := `RC SEND First psn 1 count 2 len 2048 ack true
RC SEND Last psn 3 count 2 len 1031 ack true
RC SEND Last psn 5 count 1 len 8 ack true
RC SEND First psn 6 count 1 len 1000 ack false
RC SEND Middle psn 7 count 1 len 1000 ack false
RC SEND First psn 8 count 1 len 1024 ack false
RC SEND Middle psn 10 count 1 len 1024 ack false
RC WRITE Last psn 11 count 2 len 2048 ack false
RC SEND First psn 13 count 1 len 1024 ack false
RC SEND Middle psn 14 count 1 len 512 ack false
RC SEND First psn 15 count 1 len 1024 ack false
RC SEND Last psn 16 count 1 len 2048 ack false
`
	if s.String() != want {
		t.Errorf("got:\n%swant:\n%s", s.String(), want)
	}
}

type faultSpace struct{ mem.Space }

func (faultSpace) View(addr, n uint64) []byte          { return nil }
func (faultSpace) ReadV(addr uint64, d [][]byte) error { return mem.ErrFault }

// TestSourceFaultKeepsTheOpenFlow: a run to one peer that is taken back does
// not change the ICRC of what another peer is sent next in the same message.
func TestSourceFaultKeepsTheOpenFlow(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	near, far := paths[0].path, path("127.0.0.1", "127.0.0.9")
	revoked := &mem.Region{Space: mem.NewSlice(0, make([]byte, 4096)), Len: 4096}
	revoked.Revoke()
	send := func(r pkt.Burst, want mem.Result) {
		t.Helper()
		if res := a.Send(0, &r, batch); res != want {
			t.Fatalf("got %v, want %v", res, want)
		}
	}
	send(ack(1, near), mem.OK)
	send(pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 1, MTU: 1024, Path: far,
		Data: mem.ListPayload([]mem.Seg{{Region: revoked, Len: 1024}}, 0, 1024)}, mem.SourceFault)
	send(ack(2, near), mem.OK)
	a.Flush(0)
	got := await(t, b, 2)
	if got[0].PSN != 1 || got[1].PSN != 2 {
		t.Errorf("got PSN %d and %d, want 1 and 2", got[0].PSN, got[1].PSN)
	}
}

func TestSourceFaultSendsNothing(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	one, two := ack(1, paths[0].path), ack(2, paths[0].path)
	if res := a.Send(0, &one, batch); res != mem.OK {
		t.Fatal(res)
	}
	segs := []mem.Seg{{Region: &mem.Region{Space: faultSpace{}, Len: 1 << 20}, Len: 65536}}
	r := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 64, MTU: 1024,
		Path: paths[0].path, Data: mem.ListPayload(segs, 0, 65536)}
	if res := a.Send(0, &r, batch); res != mem.SourceFault {
		t.Fatalf("got %v, want %v", res, mem.SourceFault)
	}
	if res := a.Send(0, &two, batch); res != mem.OK {
		t.Fatal(res)
	}
	a.Flush(0)
	got := await(t, b, 2)
	if got[0].PSN != 1 || got[1].PSN != 2 || a.Counters().SentMessages != 1 || a.Counters().DropSourceFault != 64 {
		t.Errorf("got %+v, counters %+v", got, a.Counters())
	}
}

// crashSpace is mapped memory of a truncated file: access raises a fault in the middle of a copy.
type crashSpace struct{ mem.Space }

func (crashSpace) View(addr, n uint64) []byte          { return nil }
func (crashSpace) ReadV(addr uint64, d [][]byte) error { panic("fault") }

func TestMemoryFaultSendsNothing(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	segs := []mem.Seg{{Region: &mem.Region{Space: crashSpace{}, Len: 1 << 20}, Len: 65536}}
	bad := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 64, MTU: 1024,
		Path: paths[0].path, Data: mem.ListPayload(segs, 0, 65536)}
	crash := func() {
		defer func() {
			if recover() == nil {
				t.Error("no fault")
			}
		}()
		a.Send(0, &bad, batch)
	}
	for i := range uint32(3) {
		r := ack(i, paths[0].path)
		if res := a.Send(0, &r, batch); res != mem.OK {
			t.Fatal(res)
		}
		crash()
		if i == 1 {
			a.Flush(0)
		}
	}
	a.Flush(0)
	for i, r := range await(t, b, 3) {
		if r.PSN != ib.PSN(i) || r.Opcode != ib.Acknowledge {
			t.Errorf("packet %d: %+v", i, r.Headers)
		}
	}
	if c := a.Counters(); c.SentPackets != 3 || c.SentMessages != 2 {
		t.Errorf("%+v", c)
	}
}

// countSpace counts the calls that read it.
type countSpace struct {
	mem.Space
	data  []byte
	calls int
}

func (s *countSpace) View(addr, n uint64) []byte { return nil }
func (s *countSpace) ReadV(addr uint64, d [][]byte) error {
	s.calls++
	p := s.data[addr:]
	for _, b := range d {
		p = p[copy(b, p):]
	}
	return nil
}

// TestOneReadPerRun: memory that only a system call reaches is read by one
// call per run, straight into the packets.
func TestOneReadPerRun(t *testing.T) {
	a, b := pair(t)
	sp := &countSpace{data: random(100 << 10)}
	segs := []mem.Seg{{Region: &mem.Region{Space: sp, Len: 100 << 10}, Len: 100 << 10}}
	r := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 64, MTU: 1024,
		Path: paths[0].path, Data: mem.ListPayload(segs, 777, 65536)}
	if res := a.Send(0, &r, mem.NewBatch(4096)); res != mem.OK || sp.calls != 1 {
		t.Fatalf("%v after %d calls, want 1", res, sp.calls)
	}
	a.Flush(0)
	if got := await(t, b, 64); len(got) != 1 || string(got[0].data) != string(sp.data[777:][:65536]) {
		t.Error("other bytes arrived")
	}
}

// TestNoSourcePorts sends from the port that receives, as happens where every
// other one is taken.
func TestNoSourcePorts(t *testing.T) {
	a := open(t, Config{Port: 16791, PeerPort: 16793, SourcePorts: -1})
	b := open(t, Config{Port: 16793, PeerPort: 16791, SourcePorts: -1})
	for _, p := range paths {
		for _, dir := range [][2]*Link{{a, b}, {b, a}} {
			r := ack(1, p.path)
			if res := dir[0].Send(0, &r, mem.NewBatch(4096)); res != mem.OK {
				t.Fatal(res)
			}
			dir[0].Flush(0)
			if got := await(t, dir[1], 1)[0]; got.path.SrcPort != dir[0].Port() {
				t.Errorf("came from port %d, want %d", got.path.SrcPort, dir[0].Port())
			}
		}
	}
}

// TestSendersAreDeaf: what is sent to a source port is not kept.
func TestSendersAreDeaf(t *testing.T) {
	a, b := pair(t)
	for _, s := range []*sender{a.send[0][0], a.send[1][0]} {
		b.peer = s.port
		r := ack(1, paths[0].path)
		if s == a.send[1][0] {
			r = ack(1, paths[1].path)
		}
		if res := b.Send(0, &r, mem.NewBatch(4096)); res != mem.OK {
			t.Fatal(res)
		}
		b.Flush(0)
		if n, _, err := unix.Recvfrom(s.fd, make([]byte, 100), unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Errorf("read %d bytes, %v", n, err)
		}
	}
	if c := b.Counters(); c.SentPackets != 2 {
		t.Errorf("%+v", c)
	}
}

func TestSendRefusals(t *testing.T) {
	a, _ := pair(t)
	batch := mem.NewBatch(4096)
	for _, c := range []struct {
		name string
		path *ib.Path
		n    func(*Counters) uint64
	}{
		{"mixed families", &ib.Path{SGID: gid("127.0.0.1"), DGID: gid("::1")},
			func(c *Counters) uint64 { return c.DropPath }},
		{"no source", &ib.Path{DGID: gid("::1")}, func(c *Counters) uint64 { return c.DropPath }},
		// Kernels differ in the error.
		{"foreign source IPv4", path("203.0.113.9", "127.0.0.1"), func(c *Counters) uint64 {
			return c.DropBadSource +
				c.DropNoRoute
		}},
		{"foreign source IPv6", path("2001:db8::9", "::1"), func(c *Counters) uint64 { return c.DropBadSource }},
		{"broadcast", path("127.0.0.1", "127.255.255.255"), func(c *Counters) uint64 { return c.DropDenied }},
	} {
		a.c = Counters{}
		r := ack(1, c.path)
		if res := a.Send(0, &r, batch); res != mem.OK {
			t.Errorf("%s: got %v", c.name, res)
		}
		a.Flush(0)
		if got := a.Counters(); c.n(&got) != 1 || got.SentPackets != 0 {
			t.Errorf("%s: counters %+v", c.name, got)
		}
	}
	for _, r := range []pkt.Burst{
		{Headers: wire.Headers{Opcode: 0x15}, Count: 1},
		{Headers: wire.Headers{Opcode: ib.WriteOnly}, Count: 0},
		{Headers: wire.Headers{Opcode: ib.Acknowledge}, Count: 2, MTU: 1024,
			Data: mem.BytesPayload(make([]byte, 2048))},
		{Headers: wire.Headers{Opcode: ib.WriteOnly}, Count: 2, MTU: 1024, Data: mem.BytesPayload(make([]byte, 1024))},
		{Headers: wire.Headers{Opcode: ib.WriteOnly}, Count: 2, MTU: 1024, Data: mem.BytesPayload(make([]byte, 2049))},
		{Headers: wire.Headers{Opcode: ib.WriteOnly}, Count: MaxCount + 1, MTU: 256,
			Data: mem.BytesPayload(make([]byte, 256*MaxCount+1))},
		{Headers: wire.Headers{Opcode: ib.WriteOnly}, Count: 1, Data: mem.BytesPayload(make([]byte, 4097))},
	} {
		r.Path = paths[0].path
		a.c = Counters{}
		if res := a.Send(0, &r, batch); res != mem.OK || a.Counters().DropBurst != uint64(max(1, r.Count)) ||
			a.tail != 0 {
			t.Errorf("%v of %d packets, %d bytes: got %v, %+v", r.Opcode, r.Count, r.Data.Len, res, a.Counters())
		}
	}
}

// raw sends datagrams from a plain socket.
func raw(t *testing.T, to *Link, v6 bool, data ...[]byte) {
	t.Helper()
	fd, err := udpsock.Open(!v6, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(to.port), Addr: [4]byte{127, 0, 0, 1}}
	if v6 {
		sa = &unix.SockaddrInet6{Port: int(to.port), Addr: [16]byte{15: 1}}
	}
	for _, d := range data {
		if err := unix.Sendto(fd, d, 0, sa); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecvRefusals(t *testing.T) {
	good := func(op ib.Opcode, n int) []byte {
		b := make([]byte, 64+n)
		h := wire.Headers{Opcode: op, PKey: 0xffff}
		return b[:h.Put(b)+n+wire.ICRCLen]
	}
	for _, c := range []struct {
		why  wire.Refusal
		data []byte
	}{
		{wire.Short, nil},
		{wire.Short, make([]byte, 12)},
		{wire.Unaligned, make([]byte, 17)},
		{wire.BadOpcode, append([]byte{0x15}, make([]byte, 19)...)},
		{wire.Congestion, append([]byte{0x81}, make([]byte, 31)...)},
		{wire.TransportVersion, append([]byte{4, 1}, make([]byte, 18)...)},
		{wire.BadICRC, good(ib.SendOnly, 64)},
		{wire.Surplus, good(ib.Acknowledge, 4)},
	} {
		for _, v6 := range []bool{false, true} {
			l := open(t, Config{Port: 16795})
			raw(t, l, v6, c.data)
			for l.Counters().RcvdMessages == 0 {
				if runs, _ := l.Recv(); len(runs) != 0 {
					t.Fatalf("%v: accepted", c.why)
				}
			}
			if n := l.Counters().DropRefusal[c.why]; n != 1 {
				t.Errorf("%v: counted %d, want 1: %+v", c.why, n, l.Counters())
			}
			l.Close()
		}
	}
}

// TestSinglesAfterRefusedTrain forces what an interface without checksum
// offload does: the train is sent packet by packet, with other ICRCs.
func TestSinglesAfterRefusedTrain(t *testing.T) {
	for _, p := range paths {
		a, b := pair(t)
		batch := mem.NewBatch(4096)
		data := random(30000)
		for _, noGSO := range []bool{false, true} {
			r := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 30, MTU: 1024,
				Path: p.path, Data: mem.BytesPayload(data)}
			a.noGSO = noGSO
			if res := a.Send(0, &r, batch); res != mem.OK {
				t.Fatal(res)
			}
			if !noGSO {
				s, _ := a.route(p.path)
				for i := range s.n {
					if !a.refused(&s.msg[i], unix.EIO) {
						t.Fatal("a train refused for lack of checksum offload is lost")
					}
				}
			}
			a.Flush(0)
			got := await(t, b, 30)
			var all []byte
			for _, g := range got {
				all = append(all, g.data...)
			}
			if string(all) != string(data) || a.Counters().SentGSO != 0 {
				t.Errorf("%s: wrong bytes or counters %+v", p.name, a.Counters())
			}
		}
		// On the wire each packet bears identification 0, so none needed a search.
		if d := a.Degraded(); len(d) == 0 || d[len(d)-1].Name != "no_gso" {
			t.Errorf("degraded states %v lack no_gso", d)
		}
		a.Close()
		b.Close()
	}
}

func TestSendCorrupt(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(4096)
	n := uint64(0)
	for bit := uint32(0); bit < 8*24; bit++ { // byte 4 is not covered by the ICRC
		r := pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff}, Count: 1, MTU: 1024,
			Path: paths[n%2].path, Data: mem.BytesPayload(random(8))}
		if res := a.SendCorrupt(0, &r, batch, bit); res != mem.OK {
			t.Fatal(res)
		}
		a.Flush(0)
		n++
	}
	r := ack(9, paths[1].path)
	if res := a.Send(0, &r, batch); res != mem.OK {
		t.Fatal(res)
	}
	a.Flush(0)
	if got := await(t, b, 1); len(got) != 1 || got[0].PSN != 9 {
		t.Errorf("a corrupted packet was accepted: %+v", got)
	}
	c := b.Counters()
	var refused uint64
	for _, v := range c.DropRefusal {
		refused += v
	}
	if refused != n || c.DropRefusal[wire.BadICRC] < n/2 {
		t.Errorf("%d of %d corrupted packets were refused: %+v", refused, n, c)
	}
}

func TestPortTaken(t *testing.T) {
	l := open(t, Config{Port: 16795})
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(Config{Port: l.Port()})
	want := fmt.Sprintf("held by %s (pid %d)", strings.TrimSpace(string(comm)), os.Getpid())
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(),
		"--roce-port 16797") {
		t.Errorf("got %v, want %q and a fix", err, want)
	}
}

func TestAllocations(t *testing.T) {
	a, b := pair(t)
	batch := mem.NewBatch(64 << 10)
	data := random(65536)
	r := pkt.Burst{Headers: wire.Headers{Opcode: ib.WriteOnly, PKey: 0xffff}, Count: 64, MTU: 1024,
		Path: paths[0].path, Data: mem.BytesPayload(data)}
	k := ack(0, paths[1].path)
	var got uint32
	n := testing.AllocsPerRun(100, func() {
		if a.Send(0, &r, batch) != mem.OK || a.Send(0, &k, batch) != mem.OK {
			t.Fatal("refused")
		}
		a.Flush(0)
		for want := got + 65; got < want; {
			runs, _ := b.Recv()
			for i := range runs {
				got += runs[i].Count
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for 65 packets sent and received, want 0", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/transport"
)

// watcher is a tap that remembers.
type watcher struct {
	only   ib.QPN // 0: all
	sent   []shown
	came   []shown
	cheat  byte // what it changes of payload, to prove where that comes from
	packet int
}

type shown struct {
	src, dst ib.QPN
	op       ib.Opcode
	psn      ib.PSN
	count    uint32
	data     []byte
}

func (w *watcher) Selects(f uint16, q ib.QPN) bool { return w.only == 0 || w.only == q }
func (w *watcher) Sent(_ uint16, src ib.QPN, r *pkt.Burst) {
	w.packet += int(r.Count)
	w.sent = append(w.sent, shown{src, r.DestQPN, r.Opcode, r.PSN, r.Count, bytes.Clone(r.Data.Bytes)})
	for i := range r.Data.Bytes {
		r.Data.Bytes[i] ^= w.cheat
	}
}
func (w *watcher) Received(_ uint16, r *pkt.Burst) {
	w.came = append(w.came, shown{0, r.DestQPN, r.Opcode, r.PSN, r.Count, bytes.Clone(r.Data.Bytes)})
}

// TestTap: while there is a tap, what passes between queue pairs of a node is shown,
// requests and answers, in order; and what is shown is what arrives.
func TestTap(t *testing.T) {
	l, a, b := pair(t, 1<<20)
	for i := range a.mem {
		a.mem[i] = byte(i * 7)
	}
	write := func(n int) {
		clear(b.mem)
		a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
			SGE: a.sge(0, n)})
		drive(t, l)
		a.expect(ib.Success)
		if !bytes.Equal(b.mem[:n], a.mem[:n]) || bytes.Count(b.mem[n:], []byte{0}) != len(b.mem)-n {
			t.Fatalf("WRITE of %d bytes: other bytes arrived", n)
		}
	}
	w := &watcher{}
	l.SetTap(w)
	psn := ib.PSN(7)
	for _, n := range []int{0, 1, 1024, 5000, 700000} { // more than the buffer holds at a time, in the end
		w.sent = nil
		write(n)
		var data []byte
		var acked ib.PSN
		for _, s := range w.sent {
			if s.op == ib.Acknowledge {
				acked = s.psn
				continue
			}
			if s.psn != psn || s.src != a.q.Num() || s.dst != b.q.Num() {
				t.Errorf("%d bytes: %+v, want PSN %d", n, s, psn)
			}
			psn = psn.Add(s.count)
			data = append(data, s.data...)
		}
		if !bytes.Equal(data, a.mem[:n]) || acked != psn.Add(^uint32(0)) {
			t.Errorf("WRITE of %d bytes: %d were shown, acknowledged %d, next is %d", n, len(data), acked, psn)
		}
	}
	b.post(transport.SendWR{ID: 3, Op: ib.WRRead, Flags: ib.Signaled, RemoteVA: base, RKey: a.mr.RKey,
		SGE: b.sge(0, 3000)})
	w.sent, w.cheat = nil, 0xff
	clear(b.mem)
	drive(t, l)
	b.expect(ib.Success)
	if len(w.sent) != 2 || w.sent[0].op != ib.ReadRequest || !bytes.Equal(w.sent[1].data, a.mem[:3000]) {
		t.Errorf("a READ is shown as %d runs", len(w.sent))
	}
	for i := range 3000 {
		if b.mem[i] != ^a.mem[i] {
			t.Fatal("what is shown is not what arrives")
		}
	}
	w.cheat = 0

	// By queue pair number, either end's; and no more once there is none.
	c, d := newClient(t, l, 1<<16).qp(QPConfig{Type: ib.RC}), newClient(t, l, 1<<16).qp(QPConfig{Type: ib.RC})
	c.connect(d)
	d.connect(c)
	other := func() {
		c.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: d.mr.RKey,
			SGE: c.sge(0, 100)})
		drive(t, l)
		c.expect(ib.Success)
	}
	for _, only := range []ib.QPN{c.q.Num(), d.q.Num()} {
		w.sent, w.only = nil, only
		write(10)
		other()
		if len(w.sent) != 2 || w.sent[0].src != c.q.Num() || w.sent[1].src != d.q.Num() {
			t.Errorf("of queue pair %#x: %+v", only, w.sent)
		}
	}
	w.sent, w.only = nil, 0
	l.SetTap(nil)
	write(10)
	if len(w.sent) != 0 {
		t.Errorf("shown without a tap: %+v", w.sent)
	}
}

// TestTapFault: memory that cannot be read is the sender's affair, as ever.
func TestTapFault(t *testing.T) {
	l, a, b := pair(t, 1<<16)
	w := &watcher{}
	l.SetTap(w)
	mr, err := a.s.RegisterMR(a.pd, &mem.Region{Space: faulty{}, Start: base, Base: base, Len: 4096,
		Access: ib.LocalWrite})
	a.must(err)
	a.post(transport.SendWR{ID: 1, Op: ib.WRWrite, Flags: ib.Signaled, RemoteVA: base, RKey: b.mr.RKey,
		SGE: []ib.SGE{{Addr: base, Len: 100, LKey: mr.LKey}}})
	drive(t, l)
	a.expect(ib.LocProtErr)
	if len(w.sent) != 0 {
		t.Errorf("%+v", w.sent)
	}
}

type faulty struct{ mem.Space }

func (faulty) View(addr, n uint64) []byte          { return nil }
func (faulty) ReadV(addr uint64, d [][]byte) error { return mem.ErrFault }

// TestTapManagement: a datagram is shown as sent or as received, where its own end of it is wanted.
func TestTapManagement(t *testing.T) {
	l, _, _ := pair(t, 1<<16)
	r := &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, SrcQPN: 0x4002, DestQPN: ib.QPNGSI},
		Count: 1, MTU: 256,
		Path: &ib.Path{SLID: 1, DLID: 2, Function: 1}, Data: mem.BytesPayload(make([]byte, 256))}
	l.MirrorManagement(r, true) // no capture runs
	for _, c := range []struct {
		only       ib.QPN
		sent, came int
	}{{0, 1, 1}, {0x4002, 1, 0}, {ib.QPNGSI, 0, 1}, {7, 0, 0}} {
		w := &watcher{only: c.only}
		l.SetTap(w)
		l.MirrorManagement(r, true)
		l.MirrorManagement(r, false)
		if len(w.sent) != c.sent || len(w.came) != c.came || c.sent > 0 && w.sent[0].src != 0x4002 {
			t.Errorf("%+v: %+v, %+v", c, w.sent, w.came)
		}
	}
}

// TestTapInbound: what comes by a link is shown, for queue pairs that are not there, too.
func TestTapInbound(t *testing.T) {
	l, _, b := pair(t, 1<<16)
	w := &watcher{}
	l.SetTap(w)
	for _, dst := range []ib.QPN{b.q.Num(), 0x3f0002} {
		for _, local := range []bool{false, true} {
			w.came = nil
			p := &ib.Path{SGID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 9}, DGID: testGIDs[1].GID, Local: local}
			parts := []mem.Seg{{Len: 3, Bytes: []byte("abc")}, {Len: 2, Bytes: []byte("de")}}
			l.Receive(1, &pkt.Burst{Headers: wire.Headers{Opcode: ib.SendOnly, PKey: 0xffff, DestQPN: dst, PSN: 7},
				Count: 1, Path: p, Data: mem.ListPayload(parts, 0, 5)})
			if local != (len(w.came) == 0) || !local && (string(w.came[0].data) != "abcde" || w.came[0].dst != dst) {
				t.Errorf("to %#x, local %v: %+v", dst, local, w.came)
			}
		}
	}
	drive(t, l)
}

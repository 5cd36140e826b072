// SPDX-License-Identifier: Apache-2.0

package rmpp

import (
	"bytes"
	"testing"
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// start is when the virtual clocks of the tests begin.
const start = mono.Time(1000)

// saHead are the headers of a GetTable response of subnet administration.
func saHead(tid uint64, method mad.Method) []byte {
	h := mad.SAHeader{Header: mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA, ClassVersion: mad.ClassVersionSA,
		Method:        method,
		TransactionID: tid, AttributeID: mad.AttrNodeRecord}, SMKey: 3, AttributeOffset: 14, ComponentMask: 5}
	return h.Append(nil)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func rmppOf(t *testing.T, b []byte) (r mad.RMPP) {
	t.Helper()
	if err := r.Parse(b[rmppAt:]); err != nil {
		t.Fatal(err)
	}
	return r
}

// segmented returns the segments of data as a sender with an open window
// makes them.
func segmented(t *testing.T, cfg Config, head, data []byte) (out [][mad.Len]byte) {
	t.Helper()
	s, err := NewSender(cfg, head, data, 1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	for b := ([mad.Len]byte{}); s.Next(start, &b); {
		out = append(out, b)
	}
	return out
}

// TestSegments compares segments with lengths and flags worked out by hand:
// PayloadLength counts the class's header of each segment.
func TestSegments(t *testing.T) {
	type seg struct {
		flags  uint8
		n, len uint32
		data   int
	}
	for _, c := range []struct {
		name string
		head []byte
		data int
		want []seg
	}{
		{"empty table", saHead(1, mad.MethodGetTableResp), 0, []seg{{7, 1, 20, 0}}},
		{"one octet", saHead(1, mad.MethodGetTableResp), 1, []seg{{7, 1, 21, 1}}},
		{"one full", saHead(1, mad.MethodGetTableResp), 200, []seg{{7, 1, 220, 200}}},
		{"one more", saHead(1, mad.MethodGetTableResp), 201, []seg{{3, 1, 241, 200}, {5, 2, 21, 1}}},
		{"two full", saHead(1, mad.MethodGetTableResp), 400, []seg{{3, 1, 440, 200}, {5, 2, 220, 200}}},
		{"three", saHead(1, mad.MethodGetTableResp), 550, []seg{{3, 1, 610, 200}, {1, 2, 0, 200}, {5, 3, 170, 150}}},
		{"vendor", append([]byte{1, 0x32, 1, 0x81}, make([]byte, 36)...), 217, []seg{{3, 1, 225, 216}, {5, 2, 5, 1}}},
		{"device administration", append([]byte{1, 0x10, 1, 0x81}, make([]byte, 60)...), 193, []seg{{3, 1, 249, 192},
			{5, 2, 29, 1}}},
	} {
		got := segmented(t, Config{}, c.head, pattern(c.data))
		if len(got) != len(c.want) {
			t.Errorf("%s: %d segments", c.name, len(got))
			continue
		}
		at := 0
		for i, w := range c.want {
			r := rmppOf(t, got[i][:])
			n := len(c.head)
			if r.Version != 1 || r.Type != mad.RMPPData || r.Status != 0 || r.RRespTime != mad.RMPPRespTimeNone ||
				r.Flags != w.flags || r.Data1 != w.n || r.Data2 != w.len {
				t.Errorf("%s, segment %d: %+v", c.name, i+1, r)
			}
			if !bytes.Equal(got[i][:rmppAt], c.head[:rmppAt]) || !bytes.Equal(got[i][classAt:n], c.head[classAt:]) {
				t.Errorf("%s, segment %d: headers % x", c.name, i+1, got[i][:n])
			}
			if !bytes.Equal(got[i][n:n+w.data], pattern(c.data)[at:at+w.data]) || !bytes.Equal(got[i][n+w.data:],
				make([]byte, mad.Len-n-w.data)) {
				t.Errorf("%s, segment %d: % x", c.name, i+1, got[i][n:])
			}
			at += w.data
		}
	}
}

func ackOf(seg, window uint32) []byte { return controlOf(mad.RMPPAck, 0, seg, window) }

func controlOf(kind mad.RMPPType, status Status, seg, window uint32) []byte {
	var b [mad.Len]byte
	control(&b, saHead(1, mad.MethodGetTableResp), true, kind, status, seg, window)
	return b[:]
}

// drain returns the segment numbers that s sends now.
func drain(t *testing.T, s *Sender, now mono.Time) (sent []uint32) {
	t.Helper()
	for b := ([mad.Len]byte{}); s.Next(now, &b); {
		if r := rmppOf(t, b[:]); r.Type == mad.RMPPData {
			sent = append(sent, r.Data1)
		} else {
			t.Fatalf("sends %+v", r)
		}
	}
	return sent
}

func expectSent(t *testing.T, s *Sender, now mono.Time, want ...uint32) {
	t.Helper()
	got := drain(t, s, now)
	if len(got) != len(want) {
		t.Fatalf("sends segments %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("sends segments %v, want %v", got, want)
		}
	}
}

func newSender(t *testing.T, segments int, doubleSided bool) *Sender {
	t.Helper()
	s, err := NewSender(Config{Retries: 2}, saHead(1, mad.MethodGetTableResp), pattern(segments*200), 1, doubleSided)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestWindow walks through a transfer: the window starts at one segment, and only
// acknowledgements open it (IBA volume 1, 13.6.3).
func TestWindow(t *testing.T) {
	s := newSender(t, 6, false)
	now := start
	expectSent(t, s, now, 1)
	s.Handle(now, ackOf(1, 4))
	expectSent(t, s, now, 2, 3, 4)
	s.Handle(now, ackOf(2, 4)) // no news for the window
	expectSent(t, s, now)
	s.Handle(now, ackOf(1, 3)) // old
	s.Handle(now, ackOf(3, 3)) // acknowledges, but grants less than before
	expectSent(t, s, now)
	s.Handle(now, ackOf(4, 100)) // more than there is
	expectSent(t, s, now, 5, 6)
	if st, _ := s.State(); st != Active || s.Closed() {
		t.Fatal("done before the last acknowledgement")
	}
	s.Handle(now, ackOf(6, 100))
	if st, why := s.State(); st != Complete || why != StatusOK || !s.Closed() || !s.Deadline().IsZero() {
		t.Fatal("not done")
	}
	expectSent(t, s, now.Add(time.Hour))
}

// TestOvertaken lets acknowledgements come late: after a repetition began, and with a
// smaller window than one before.
func TestOvertaken(t *testing.T) {
	s := newSender(t, 9, false)
	expectSent(t, s, start, 1)
	s.Handle(start, ackOf(1, 4))
	var b [mad.Len]byte
	if !s.Next(start, &b) {
		t.Fatal("does not send the second")
	}
	s.Handle(start, ackOf(2, 2))
	expectSent(t, s, start, 3, 4)
	now := s.Deadline()
	if !s.Next(now, &b) || rmppOf(t, b[:]).Data1 != 3 {
		t.Fatal("does not repeat the third")
	}
	s.Handle(now, ackOf(4, 6))
	expectSent(t, s, now, 5, 6)
}

// TestResend drops acknowledgements: after two seconds the sender repeats all segments after the last acknowledged one,
// and after two repetitions it aborts the transfer.
func TestResend(t *testing.T) {
	s := newSender(t, 6, false)
	now := start
	expectSent(t, s, now, 1)
	s.Handle(now, ackOf(1, 4))
	expectSent(t, s, now, 2, 3, 4)
	if s.Deadline() != now.Add(2*time.Second) {
		t.Errorf("deadline %v", s.Deadline())
	}
	expectSent(t, s, s.Deadline()-1)
	now = s.Deadline()
	expectSent(t, s, now, 2, 3, 4)
	s.Handle(now, ackOf(2, 4)) // progress gives new retries
	expectSent(t, s, now)
	for range 2 {
		now = s.Deadline()
		expectSent(t, s, now, 3, 4)
	}
	var b [mad.Len]byte
	if now = s.Deadline(); !s.Next(now, &b) {
		t.Fatal("no abort")
	}
	if r := rmppOf(t, b[:]); r.Type != mad.RMPPAbort || Status(r.Status) != AbortRetries ||
		mad.Method(b[3]) != mad.MethodGetTableResp {
		t.Errorf("%+v, method %#x", r, b[3])
	}
	if st, why := s.State(); st != Failed || why != AbortRetries || !s.Closed() || s.Next(now, &b) {
		t.Error("not at its end")
	}
}

// TestClosedWindow ends a transfer if the peer acknowledges all and never grants more.
func TestClosedWindow(t *testing.T) {
	s := newSender(t, 3, false)
	expectSent(t, s, start, 1)
	s.Handle(start, ackOf(1, 1))
	for range 2 {
		expectSent(t, s, s.Deadline())
	}
	var b [mad.Len]byte
	if !s.Next(s.Deadline(), &b) || Status(rmppOf(t, b[:]).Status) != AbortRetries {
		t.Error("waits for ever")
	}
}

// TestSenderRefuses gives a sender everything that ends a transfer.
func TestSenderRefuses(t *testing.T) {
	version := ackOf(1, 4)
	version[rmppAt] = 2
	for _, c := range []struct {
		name string
		in   []byte
		why  Status
		tell bool
	}{
		{"window before the segment", ackOf(1, 0), AbortWindow, true},
		{"segment that was not sent", ackOf(2, 4), AbortSegment, true},
		{"segment that does not exist", ackOf(9, 9), AbortSegment, true},
		{"status", controlOf(mad.RMPPAck, 3, 1, 4), AbortStatus, true},
		{"type", controlOf(9, 0, 1, 4), AbortType, true},
		{"data", controlOf(mad.RMPPData, 0, 1, 4), AbortType, true},
		{"version", version, AbortVersion, true},
		{"stop", controlOf(mad.RMPPStop, StopNoResources, 0, 0), StopNoResources, false},
		{"abort", controlOf(mad.RMPPAbort, AbortLast, 0, 0), AbortLast, false},
		{"abort without a reason", controlOf(mad.RMPPAbort, 0, 0, 0), AbortOther, false},
	} {
		s := newSender(t, 6, false)
		expectSent(t, s, start, 1)
		s.Handle(start, c.in)
		if st, why := s.State(); st != Failed || why != c.why {
			t.Errorf("%s: state %d, %v", c.name, st, why)
		}
		var b [mad.Len]byte
		if told := s.Next(start, &b); told != c.tell || told && (rmppOf(t, b[:]).Type != mad.RMPPAbort ||
			Status(rmppOf(t, b[:]).Status) != c.why) {
			t.Errorf("%s: told %v, % x", c.name, told, b[:40])
		}
		if !s.Closed() || s.Next(start.Add(time.Hour), &b) {
			t.Errorf("%s: goes on", c.name)
		}
	}
	s := newSender(t, 6, false)
	expectSent(t, s, start, 1)
	if s.Handle(start, ackOf(1, 4)[:100]); s.acked != 0 {
		t.Error("takes a truncated MAD")
	}
}

// TestDoubleSidedTurn: the last acknowledgement is answered with a window for
// the response, again if it is repeated (IBA volume 1, 13.6.3.2).
func TestDoubleSidedTurn(t *testing.T) {
	s := newSender(t, 1, true)
	expectSent(t, s, start, 1)
	for range 2 {
		s.Handle(start, ackOf(1, 65))
		var b [mad.Len]byte
		if !s.Next(start, &b) {
			t.Fatal("no window for the answer")
		}
		if r := rmppOf(t, b[:]); r.Type != mad.RMPPAck || r.Data1 != 0 || r.Data2 != 1 ||
			b[3] != byte(mad.MethodGetTableResp) {
			t.Errorf("%+v, method %#x", r, b[3])
		}
		if s.Next(start, &b) {
			t.Error("twice")
		}
	}
	if s.Closed() || s.Deadline() != start.Add(10*time.Second) {
		t.Error("does not linger")
	}
	var b [mad.Len]byte
	if s.Next(s.Deadline(), &b) || !s.Closed() {
		t.Error("lingers for ever")
	}
}

func TestNewSenderRefuses(t *testing.T) {
	for _, c := range []struct {
		head, data []byte
		want       error
	}{
		{saHead(1, mad.MethodGet)[:20], nil, mad.ErrShort}, {saHead(1, mad.MethodGet)[:55], nil, mad.ErrShort},
		{append([]byte{1, 4}, make([]byte, 60)...), nil, ErrClass}, {saHead(1, mad.MethodGet), make([]byte, 4<<20+1),
			ErrSize},
	} {
		if _, err := NewSender(Config{}, c.head, c.data, 1, false); err != c.want {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
}

// receiver returns a receiver that has taken the given ones of segs.
func receiver(t *testing.T, cfg Config, segs [][mad.Len]byte, take ...int) *Receiver {
	t.Helper()
	r, err := NewReceiver(cfg, start, segs[0][:])
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range take {
		r.Handle(start, segs[i][:])
	}
	return r
}

// expectReply expects one control segment, or none if kind is 0.
func expectReply(t *testing.T, r *Receiver, now mono.Time, kind mad.RMPPType, status Status, seg, window uint32) {
	t.Helper()
	var b [mad.Len]byte
	if got := r.Next(now, &b); got != (kind != 0) {
		t.Fatalf("replies: %v, %+v", got, rmppOf(t, b[:]))
	}
	if kind == 0 {
		return
	}
	h := rmppOf(t, b[:])
	if h.Type != kind || Status(h.Status) != status || h.Data1 != seg || h.Data2 != window ||
		h.Flags != mad.RMPPActive || h.Version != 1 ||
		mad.Method(b[3]) != mad.MethodGetTable {
		t.Fatalf("replies %+v with method %v, want %d, %v, %d, %d", h, mad.Method(b[3]), kind, status, seg, window)
	}
	if r.Next(now, &b) {
		t.Fatalf("replies twice: %+v", rmppOf(t, b[:]))
	}
}

// TestReceive acknowledges at the edge of its window and at the end, accepts segments out of order, and repeats an
// acknowledgement that was dropped.
func TestReceive(t *testing.T) {
	segs := segmented(t, Config{}, saHead(1, mad.MethodGetTableResp), pattern(1150))
	cfg := Config{Window: 3}
	r := receiver(t, cfg, segs, 0)
	expectReply(t, r, start, mad.RMPPAck, 0, 1, 4)
	r.Handle(start, segs[1][:])
	expectReply(t, r, start, 0, 0, 0, 0)
	r.Handle(start, segs[3][:]) // before the third
	r.Handle(start, segs[3][:])
	r.Handle(start, segs[4][:]) // beyond the window
	expectReply(t, r, start, 0, 0, 0, 0)
	r.Handle(start, segs[0][:]) // repeated
	expectReply(t, r, start, mad.RMPPAck, 0, 2, 4)
	r.Handle(start, segs[2][:])
	expectReply(t, r, start, mad.RMPPAck, 0, 4, 7)
	r.Handle(start, segs[5][:])
	if st, _ := r.State(); st != Active {
		t.Fatal("complete without the fifth")
	}
	r.Handle(start, segs[4][:])
	expectReply(t, r, start, mad.RMPPAck, 0, 6, 7)
	if st, _ := r.State(); st != Complete {
		t.Fatal("not complete")
	}
	head, data := r.Message()
	if !bytes.Equal(data, pattern(1150)) || !bytes.Equal(head, segs[0][:mad.SAHeaderLen]) {
		t.Errorf("% x\n% x", head, data)
	}
	if _, data := r.Message(); data != nil {
		t.Error("the message is there twice")
	}
	// For ten seconds what still comes is acknowledged.
	if r.Deadline() != start.Add(10*time.Second) {
		t.Errorf("deadline %v", r.Deadline())
	}
	now := r.Deadline() - 1
	r.Handle(now, segs[5][:])
	expectReply(t, r, now, mad.RMPPAck, 0, 6, 7)
	if now++; r.Closed() {
		t.Error("closed early")
	}
	expectReply(t, r, now, 0, 0, 0, 0)
	if r.Handle(now, segs[5][:]); !r.Closed() {
		t.Error("lingers")
	}
	expectReply(t, r, now, 0, 0, 0, 0)
}

// TestStall gives up 40 seconds after the last new segment.
func TestStall(t *testing.T) {
	segs := segmented(t, Config{}, saHead(1, mad.MethodGetTableResp), pattern(1150))
	r := receiver(t, Config{}, segs, 0)
	expectReply(t, r, start, mad.RMPPAck, 0, 1, 65)
	now := start.Add(30 * time.Second)
	r.Handle(now, segs[1][:])
	r.Handle(now.Add(20*time.Second), segs[1][:]) // not new
	expectReply(t, r, now.Add(20*time.Second), mad.RMPPAck, 0, 2, 65)
	if r.Deadline() != now.Add(40*time.Second) {
		t.Errorf("deadline %v", r.Deadline())
	}
	expectReply(t, r, r.Deadline(), mad.RMPPAbort, AbortTooLong, 0, 0)
	if st, why := r.State(); st != Failed || why != AbortTooLong || !r.Closed() || !r.Deadline().IsZero() {
		t.Error("goes on")
	}
}

// TestReceiverRefuses gives a receiver everything that ends a transfer.
func TestReceiverRefuses(t *testing.T) {
	segs := segmented(t, Config{}, saHead(1, mad.MethodGetTableResp), pattern(1150))
	edit := func(i int, f func(*mad.RMPP)) []byte {
		b := segs[i]
		r := rmppOf(t, b[:])
		f(&r)
		r.Append(b[rmppAt:rmppAt])
		return b[:]
	}
	stop := controlOf(mad.RMPPStop, StopNoResources, 0, 0)
	for _, c := range []struct {
		name string
		cfg  Config
		in   [][]byte
		why  Status
		tell mad.RMPPType
	}{
		{"version", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Version = 2 })}, AbortVersion, mad.RMPPAbort},
		{"type", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Type = 7 })}, AbortType, mad.RMPPAbort},
		{"status", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Status = 1 })}, AbortStatus, mad.RMPPAbort},
		{"segment 0", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Data1, r.Flags = 0, 3 })}, AbortFirst,
			mad.RMPPAbort},
		{"first twice", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Flags |= mad.RMPPFirst })}, AbortFirst,
			mad.RMPPAbort},
		{"not first", Config{}, [][]byte{edit(0, func(r *mad.RMPP) { r.Flags &^= mad.RMPPFirst })}, AbortFirst,
			mad.RMPPAbort},
		{"last too long", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Flags, r.Data2 = 5, 221 })}, AbortLast,
			mad.RMPPAbort},
		{"last too short", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Flags, r.Data2 = 5, 19 })}, AbortLast,
			mad.RMPPAbort},
		{"length not as announced", Config{}, [][]byte{edit(1, func(r *mad.RMPP) { r.Flags, r.Data2 = 5, 220 })},
			AbortLast, mad.RMPPAbort},
		{"beyond the last", Config{}, [][]byte{edit(3, func(r *mad.RMPP) { r.Flags, r.Data2 = 5, 220 }), segs[4][:]},
			AbortLast, mad.RMPPAbort},
		{"last before others", Config{}, [][]byte{segs[4][:], edit(3, func(r *mad.RMPP) {
			r.Flags, r.Data2 = 5,
				220
		})}, AbortLast, mad.RMPPAbort},
		{"two lasts", Config{}, [][]byte{segs[5][:], edit(3, func(r *mad.RMPP) { r.Flags, r.Data2 = 5, 220 })},
			AbortLast, mad.RMPPAbort},
		{"stop", Config{}, [][]byte{stop}, StopNoResources, 0},
		{"abort", Config{}, [][]byte{controlOf(mad.RMPPAbort, AbortRetries, 0, 0)}, AbortRetries, 0},
	} {
		r := receiver(t, c.cfg, segs, 0)
		expectReply(t, r, start, mad.RMPPAck, 0, 1, 65)
		for _, in := range c.in {
			r.Handle(start, in)
		}
		if st, why := r.State(); st != Failed || why != c.why {
			t.Errorf("%s: state %d, %v", c.name, st, why)
			continue
		}
		expectReply(t, r, start, c.tell, c.why, 0, 0)
		if r.Handle(start, segs[1][:]); !r.Closed() {
			t.Errorf("%s: goes on", c.name)
		}
		expectReply(t, r, start, 0, 0, 0, 0)
	}
	// Announced or not, a message longer than allowed is stopped.
	for _, limit := range []int{1149, 500} {
		r := receiver(t, Config{MaxBytes: limit}, segs, 0)
		expectReply(t, r, start, mad.RMPPStop, StopNoResources, 0, 0)
	}
	silent := edit(0, func(r *mad.RMPP) { r.Data2 = 0 })
	r := receiver(t, Config{MaxBytes: 1149}, segs)
	r.Handle(start, silent)
	for i := 1; i < 5; i++ {
		r.Handle(start, segs[i][:])
	}
	expectReply(t, r, start, mad.RMPPAck, 0, 5, 65)
	r.Handle(start, segs[5][:])
	expectReply(t, r, start, mad.RMPPStop, StopNoResources, 0, 0)
	r = receiver(t, Config{MaxBytes: 500}, segs)
	for _, in := range [][]byte{silent, segs[1][:], segs[2][:]} {
		r.Handle(start, in)
	}
	expectReply(t, r, start, mad.RMPPAck, 0, 3, 65)
	r.Handle(start, segs[3][:])
	expectReply(t, r, start, mad.RMPPStop, StopNoResources, 0, 0)
	if r := receiver(t, Config{MaxBytes: 1150}, segs, 0, 1, 2, 3, 4, 5); r.state != Complete {
		t.Error("a message as long as allowed is refused")
	}
	if _, err := NewReceiver(Config{}, start, segs[0][:255]); err != mad.ErrShort {
		t.Errorf("truncated: %v", err)
	}
	if _, err := NewReceiver(Config{}, start, make([]byte, mad.Len)); err != ErrClass {
		t.Errorf("class 0: %v", err)
	}
}

// TestResponseWindow takes the window for the answer once the message is whole.
func TestResponseWindow(t *testing.T) {
	segs := segmented(t, Config{}, saHead(1, mad.MethodGetTableResp), pattern(10))
	r := receiver(t, Config{}, segs)
	var b [mad.Len]byte
	control(&b, segs[0][:mad.SAHeaderLen], false, mad.RMPPAck, 0, 0, 9)
	r.Handle(start, b[:])
	if r.ResponseWindow() != 1 {
		t.Error("a window before the message")
	}
	r.Handle(start, segs[0][:])
	r.Handle(start, b[:])
	if r.ResponseWindow() != 9 {
		t.Errorf("window %d", r.ResponseWindow())
	}
}

// TestNoAllocation: segments and acknowledgements cost no memory of their own,
// but for what a receiver collects.
func TestNoAllocation(t *testing.T) {
	s, err := NewSender(Config{}, saHead(1, mad.MethodGetTableResp), pattern(200_000), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	r := receiver(t, Config{}, segmented(t, Config{}, saHead(1, mad.MethodGetTableResp), pattern(200_000)))
	r.data = make([]byte, 0, 200_000)
	var b [mad.Len]byte
	if n := testing.AllocsPerRun(500, func() {
		for s.Next(start, &b) {
			r.Handle(start, b[:])
		}
		for r.Next(start, &b) {
			s.Handle(start, b[:])
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if st, _ := s.State(); st != Complete {
		t.Error("proves nothing: not sent")
	}
}

func TestNames(t *testing.T) {
	if AbortRetries.String() != "too many retries" || Status(50).String() != "Status(50)" {
		t.Error("status names")
	}
}

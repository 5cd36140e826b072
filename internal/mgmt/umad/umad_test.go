// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

const start mono.Time = 1_000_000_000

// bench is a Hub with ports of functions 1 and 2, and the clock.
type bench struct {
	t    testing.TB
	hub  *Hub
	now  mono.Time
	port map[uint16]*Port
	isSM map[uint16]bool
	// reads: programs may not manage the subnet.
	reads bool
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, now: start, isSM: map[uint16]bool{}, port: map[uint16]*Port{
		1: {LID: 0x10, LMC: 2, PKeys: []ib.PKey{0xffff, 0, 0x8001, 0x7abc}, Prefix: ib.DefaultGIDPrefix,
			GUIDs: []ib.GUID{0x1111, 0, 0x3333}},
		2: {LID: 0x20, PKeys: []ib.PKey{0x7fff, 0x8001}, Prefix: ib.DefaultGIDPrefix, GUIDs: []ib.GUID{0x2222}},
	}}
	b.hub = New(b)
	return b
}

// Port implements Ports.
func (b *bench) Port(f uint16) (Port, bool) {
	p := b.port[f]
	if p == nil {
		return Port{}, false
	}
	return *p, true
}

// SetIsSM implements Ports.
func (b *bench) SetIsSM(_ mono.Time, f uint16, on bool) { b.isSM[f] = on }

// Manages implements Ports.
func (b *bench) Manages() bool { return !b.reads }

// reader is the Sink of a test's file.
type reader struct {
	got  [][]byte
	room int
	gone bool
}

// Put implements Sink.
func (r *reader) Put(record []byte) bool {
	if len(r.got) >= r.room {
		return false
	}
	r.got = append(r.got, record)
	return true
}

// Gone implements Sink.
func (r *reader) Gone() { r.gone = true }

// take returns the next record.
func (r *reader) take(t testing.TB) []byte {
	t.Helper()
	if len(r.got) == 0 {
		t.Fatal("nothing to read")
	}
	b := r.got[0]
	r.got = r.got[1:]
	return b
}

func (b *bench) open(function uint16) (*File, *reader) {
	b.t.Helper()
	r := &reader{room: 100}
	f, err := b.hub.Open(function, r)
	if err != OK {
		b.t.Fatalf("open: %d", err)
	}
	if err := f.EnablePKeys(); err != OK {
		b.t.Fatalf("enable: %d", err)
	}
	return f, r
}

func (b *bench) register(f *File, r Registration) uint32 {
	b.t.Helper()
	id, err := f.Register(r)
	if err != OK {
		b.t.Fatalf("register %+v: %d", r, err)
	}
	return id
}

// next returns the next datagram of a function, which must exist.
func (b *bench) next(function uint16) mad.Datagram {
	b.t.Helper()
	var d mad.Datagram
	f, ok := b.hub.Next(b.now, &d)
	if !ok || f != function {
		b.t.Fatalf("next: function %d, %v; want %d", f, ok, function)
	}
	return d
}

func (b *bench) idle() {
	b.t.Helper()
	var d mad.Datagram
	if f, ok := b.hub.Next(b.now, &d); ok {
		b.t.Fatalf("function %d sends % x", f, d.Data[:32])
	}
}

var methods = func(ms ...mad.Method) (w [2]uint64) {
	for _, m := range ms {
		w[m/64] |= 1 << (m % 64)
	}
	return w
}

var (
	smp  = Registration{QPN: ib.QPNSMI, Class: mad.ClassSubnLID, Version: 1}
	sa   = Registration{QPN: ib.QPNGSI, Class: mad.ClassSA, Version: 2, RMPPVersion: 1}
	perf = Registration{QPN: ib.QPNGSI, Class: mad.ClassPerf, Version: 1}
)

// request is a MAD of whole length with a pattern behind its header.
func request(c mad.Class, version uint8, m mad.Method, tid uint64) []byte {
	h := mad.Header{BaseVersion: 1, MgmtClass: c, ClassVersion: version, Method: m, TransactionID: tid,
		AttributeID: 0x11, AttributeModifier: 0x55}
	b := h.Append(nil)
	if c.HasRMPP() {
		b = append(b, make([]byte, mad.RMPPLen)...)
	}
	for len(b) < mad.Len {
		b = append(b, byte(len(b)))
	}
	return b
}

func record(h Header, m []byte) []byte { return append(h.Append(nil, HeaderLen), m...) }

func parse(t testing.TB, r []byte) (h Header, m []byte) {
	t.Helper()
	if err := h.Parse(r, HeaderLen); err != OK {
		t.Fatalf("record of %d bytes: %d", len(r), err)
	}
	return h, r[HeaderLen:]
}

// goldenHeader is laid out by hand after the kernel's struct ib_user_mad_hdr
// (include/uapi/rdma/ib_user_mad.h).
var goldenHeader = []byte{
	3, 0, 0, 0, // id
	110, 0, 0, 0, // status
	0xe8, 3, 0, 0, // timeout_ms
	2, 0, 0, 0, // retries
	0x40, 1, 0, 0, // length
	0, 0x12, 0x34, 0x56, // qpn
	0x80, 1, 0, 0, // qkey
	0xbe, 0xef, // lid
	5, 6, // sl, path_bits
	1, 7, 8, 9, // grh_present, gid_index, hop_limit, traffic_class
	0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, // gid
	0, 0xb, 0xcd, 0xef, // flow_label
	0x0a, 0x01, // pkey_index
	0, 0, 0, 0, 0, 0,
}

func TestHeader(t *testing.T) {
	want := Header{Agent: 3, Status: ETIMEDOUT, TimeoutMS: 1000, Retries: 2, Length: 320, QPN: 0x123456,
		QKey: ib.GSIQKey, LID: 0xbeef, SL: 5, PathBits: 6,
		GRH: true, GIDIndex: 7, HopLimit: 8, TClass: 9, GID: ib.GID{0xfe, 0x80, 8: 1, 9: 2, 10: 3, 11: 4, 12: 5,
			13: 6, 14: 7, 15: 8}, FlowLabel: 0xbcdef, PKeyIndex: 0x10a}
	var h Header
	if err := h.Parse(goldenHeader, HeaderLen); err != OK || h != want {
		t.Errorf("parse: %d\n%s", err, cmp.Diff(want, h))
	}
	dirty := bytes.Repeat([]byte{0xa5}, HeaderLen)
	if got := h.Append(dirty[:0], HeaderLen); !bytes.Equal(got, goldenHeader) {
		t.Errorf("append: % x\nwant    % x", got, goldenHeader)
	}
	if got := h.Append(nil, shortHeaderLen); !bytes.Equal(got, goldenHeader[:shortHeaderLen]) {
		t.Errorf("append, short: % x", got)
	}
	want.PKeyIndex = 0
	if err := h.Parse(goldenHeader, shortHeaderLen); err != OK || h != want {
		t.Errorf("parse, short: %d\n%s", err, cmp.Diff(want, h))
	}
	for _, n := range []int{HeaderLen, shortHeaderLen} {
		for k := range n {
			if err := h.Parse(goldenHeader[:k], n); err != EINVAL {
				t.Errorf("%d of %d bytes: %d", k, n, err)
			}
		}
	}
	for name, at := range map[string]int{"queue pair": 20, "service level": 30, "flow label": 53} {
		b := slices.Clone(goldenHeader)
		b[at] = 0x10
		if err := h.Parse(b, HeaderLen); err != EINVAL {
			t.Errorf("%s out of range: %d", name, err)
		}
	}
}

func TestRequestAndAnswer(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	b.register(f, smp)
	id := b.register(f, perf)
	m := request(mad.ClassPerf, 1, mad.MethodGet, 0x1122334455667788)
	h := Header{Agent: id, TimeoutMS: 100, QPN: 1, QKey: ib.GSIQKey, LID: 0x20, SL: 3, PathBits: 0xff, PKeyIndex: 2,
		GRH: true, GIDIndex: 2, HopLimit: 4, TClass: 5, FlowLabel: 6, GID: ib.MakeGID(ib.DefaultGIDPrefix, 0x2222)}
	if err := f.Write(b.now, record(h, m)); err != OK {
		t.Fatal(err)
	}
	d := b.next(1)
	b.idle()
	want := mad.Datagram{Port: 1, SLID: 0x13, DLID: 0x20, PathBits: 3, SL: 3, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey,
		PKey:   0x8001,
		Global: true, HopLimit: 4, TClass: 5, FlowLabel: 6, SGID: ib.MakeGID(ib.DefaultGIDPrefix,
			0x3333), DGID: ib.MakeGID(ib.DefaultGIDPrefix, 0x2222)}
	copy(want.Data[:], m)
	copy(want.Data[8:12], []byte{0, 0, 0, 2}) // the second registration
	if diff := cmp.Diff(want, d); diff != "" {
		t.Fatal(diff)
	}
	a := d.Reply()
	a.Data[3] = byte(mad.MethodGetResp)
	a.SL, a.PKey = 1, 0x0001
	if !b.hub.Receive(b.now, 1, &a) {
		t.Fatal("nobody took the answer")
	}
	rec := r.take(t)
	gh, gm := parse(t, rec)
	wh := Header{Agent: id, Length: 320, QPN: 1, LID: 0x20, SL: 1, PathBits: 3, PKeyIndex: 2,
		GRH: true, GIDIndex: 2, HopLimit: 0xff, TClass: 5, FlowLabel: 6, GID: ib.MakeGID(ib.DefaultGIDPrefix, 0x2222)}
	if diff := cmp.Diff(wh, gh); diff != "" || !bytes.Equal(gm, a.Data[:]) {
		t.Errorf("%s\n% x", diff, gm)
	}
	// A second answer is to nothing.
	if !b.hub.Receive(b.now, 1, &a) || len(r.got) != 0 || b.hub.Stats.DropLate != 1 {
		t.Errorf("a second answer: %d records, %+v", len(r.got), b.hub.Stats)
	}
	if at := b.hub.Deadline(); at != 0 {
		t.Errorf("a deadline is left: %v", at)
	}
	// Nor is one that comes to another port, or another queue pair.
	if b.hub.Receive(b.now, 2, &a) {
		t.Error("the other port took it")
	}
	if err := f.Write(b.now, record(h, m)); err != OK {
		t.Fatal(err)
	}
	b.next(1)
	a.DstQPN = ib.QPNSMI
	if b.hub.Receive(b.now, 1, &a) || len(r.got) != 0 {
		t.Error("queue pair 0 took it")
	}
}

func TestShortHeader(t *testing.T) {
	b := newBench(t)
	r := &reader{room: 9}
	f, _ := b.hub.Open(1, r)
	id := b.register(f, perf)
	if err := f.EnablePKeys(); err != EINVAL {
		t.Errorf("the header changes after a registration: %d", err)
	}
	h := Header{Agent: id, TimeoutMS: 1, QPN: 1, QKey: 0x1234, LID: 0x20}
	m := request(mad.ClassPerf, 1, mad.MethodGet, 7)
	if err := f.Write(b.now, append(h.Append(nil, shortHeaderLen), m...)); err != OK {
		t.Fatal(err)
	}
	d := b.next(1)
	if d.PKey != 0xffff || d.QKey != 0x1234 || !bytes.Equal(d.Data[16:], m[16:]) {
		t.Errorf("%+v", d)
	}
	a := d.Reply()
	a.Data[3] = byte(mad.MethodGetResp)
	b.hub.Receive(b.now, 1, &a)
	got := r.take(t)
	if len(got) != shortHeaderLen+mad.Len || le.Uint32(got[16:]) != shortHeaderLen+mad.Len {
		t.Errorf("a record of %d bytes, length %d", len(got), le.Uint32(got[16:]))
	}
}

func TestTimeout(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	id := b.register(f, smp)
	m := request(mad.ClassSubnLID, 1, mad.MethodGet, 0x99)
	h := Header{Agent: id, TimeoutMS: 200, Retries: 2, LID: 0x77, Length: 4711}
	if err := f.Write(b.now, record(h, m)); err != OK {
		t.Fatal(err)
	}
	first := b.next(1)
	for try := range 3 {
		if at := b.hub.Deadline(); at != b.now.Add(200*time.Millisecond) {
			t.Fatalf("deadline %v at %v", at, b.now)
		}
		b.now = b.now.Add(200*time.Millisecond - 1)
		b.idle()
		b.now++
		if try < 2 {
			if d := cmp.Diff(first, b.next(1)); d != "" {
				t.Errorf("a repetition differs: %s", d)
			}
		}
	}
	b.idle()
	got := r.take(t)
	h.Status = ETIMEDOUT
	want := record(h, first.Data[:mad.HeaderLen])
	if !bytes.Equal(got, want) {
		t.Errorf("% x\nwant % x", got, want)
	}
	if s := b.hub.Stats; s.Sent != 3 || s.Retried != 2 || s.TimedOut != 1 || b.hub.Deadline() != 0 {
		t.Errorf("%+v, deadline %v", s, b.hub.Deadline())
	}
	// The answer comes too late.
	a := first.Reply()
	a.Data[3] = byte(mad.MethodGetResp)
	b.hub.Receive(b.now, 1, &a)
	if len(r.got) != 0 || b.hub.Stats.DropLate != 1 {
		t.Error("a late answer was delivered")
	}
}

func TestNoTimeoutNoAnswer(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	id := b.register(f, perf)
	if err := f.Write(b.now, record(Header{Agent: id, QPN: 1, LID: 0x20}, request(mad.ClassPerf, 1, mad.MethodGet,
		5))); err != OK {
		t.Fatal(err)
	}
	d := b.next(1)
	a := d.Reply()
	a.Data[3] = byte(mad.MethodGetResp)
	if b.hub.Receive(b.now, 1, &a); len(r.got) != 0 || b.hub.Deadline() != 0 {
		t.Error("who did not wait got an answer")
	}
}

func TestWriteRefuses(t *testing.T) {
	get := request(mad.ClassPerf, 1, mad.MethodGet, 1)
	get2 := request(mad.ClassSubnDR, 1, mad.MethodGet, 1)
	for name, c := range map[string]struct {
		agent uint32 // 0 of queue pair 0, 1 of queue pair 1, 2 of queue pair 1 with RMPP
		h     Header
		m     []byte
		want  Errno
	}{
		"agent out of range":            {99, Header{QPN: 1, LID: 2}, get, EINVAL},
		"agent unknown":                 {9, Header{QPN: 1, LID: 2}, get, EIO},
		"no MAD":                        {1, Header{QPN: 1}, nil, EINVAL},
		"MAD too short":                 {1, Header{QPN: 1}, get[:35], EINVAL},
		"MAD too long":                  {1, Header{QPN: 1}, append(slices.Clone(get), 0), EINVAL},
		"the shortest MAD":              {1, Header{QPN: 1}, get[:36], OK},
		"a MAD without its SA header":   {2, Header{QPN: 1}, request(mad.ClassSA, 2, mad.MethodGet, 1)[:55], EINVAL},
		"a MAD with its SA header":      {2, Header{QPN: 1}, request(mad.ClassSA, 2, mad.MethodGet, 1)[:56], OK},
		"base version":                  {1, Header{QPN: 1}, append([]byte{2}, get[1:]...), EINVAL},
		"P_Key index beyond the table":  {1, Header{QPN: 1, PKeyIndex: 4}, get, EINVAL},
		"P_Key index of no key":         {1, Header{QPN: 1, PKeyIndex: 1}, get, EINVAL},
		"GID index beyond the table":    {1, Header{QPN: 1, GRH: true, GIDIndex: 3}, get, EINVAL},
		"GID index of no GID":           {1, Header{QPN: 1, GRH: true, GIDIndex: 1}, get, EINVAL},
		"GID":                           {1, Header{QPN: 1, GRH: true, GIDIndex: 2}, get, OK},
		"queue pair 1 to queue pair 0":  {1, Header{QPN: 0}, get, EINVAL},
		"queue pair 0 to queue pair 1":  {0, Header{QPN: 1}, get2, EINVAL},
		"queue pair 0 with a GRH":       {0, Header{GRH: true}, get2, EINVAL},
		"queue pair 0, no SMP":          {0, Header{}, get, EINVAL},
		"queue pair 1, SMP":             {1, Header{QPN: 1}, get2, EINVAL},
		"queue pair 0, P_Key index":     {0, Header{PKeyIndex: 0xffff}, get2, OK},
		"service level":                 {1, Header{QPN: 1, SL: 16}, get, EINVAL},
		"RMPP message of 2 MiB":         {2, Header{QPN: 1}, rmppRequest(2<<20, 1), ENOMEM},
		"segment, done by the program":  {1, Header{QPN: 1}, rmppRequest(200, 1), OK},
		"segments, done by the program": {1, Header{QPN: 1}, rmppRequest(201, 1), EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			f, r := b.open(1)
			b.register(f, smp)
			b.register(f, perf)
			b.register(f, Registration{QPN: 1, RMPPVersion: 1})
			h := c.h
			h.Agent = c.agent
			if err := f.Write(b.now, record(h, c.m)); err != c.want {
				t.Fatalf("%d, want %d", err, c.want)
			}
			var d mad.Datagram
			if _, sent := b.hub.Next(b.now, &d); sent != (c.want == OK) {
				t.Errorf("sent: %v", sent)
			}
			switch {
			case c.want == OK:
				if len(r.got) != 0 {
					t.Error("something to read")
				}
			case len(c.m) < mad.HeaderLen:
				if len(r.got) != 0 || b.hub.Stats.DropMalformed != 1 {
					t.Errorf("%d records, %+v", len(r.got), b.hub.Stats)
				}
			default:
				h.Status = c.want
				if got := r.take(t); !bytes.Equal(got, record(h, c.m[:mad.HeaderLen])) || b.hub.Stats.Refused != 1 {
					t.Errorf("returned % x; %+v", got, b.hub.Stats)
				}
			}
		})
	}
	b := newBench(t)
	f, r := b.open(1)
	id := b.register(f, perf)
	whole := record(Header{Agent: id, QPN: 1}, get)
	for n := range len(whole) {
		b.hub.Stats = Stats{}
		err := f.Write(b.now, whole[:n])
		if want := n >= HeaderLen+minMAD; (err == OK) != want {
			t.Errorf("%d of %d bytes: %d", n, len(whole), err)
		}
		if returned := n >= HeaderLen+mad.HeaderLen && err != OK; returned != (len(r.got) == 1) {
			t.Errorf("%d bytes: %d records", n, len(r.got))
		}
		r.got = nil
	}
}

func TestDuplicate(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	id, other := b.register(f, perf), b.register(f, Registration{QPN: 1})
	for i, c := range []struct {
		agent uint32
		tid   uint64
		want  Errno
	}{{id, 1, OK}, {id, 1, EINVAL}, {id, 0xffffffff00000001, EINVAL}, {id, 2, OK}, {other, 1, OK}} {
		rec := record(Header{Agent: c.agent, QPN: 1, TimeoutMS: 9}, request(mad.ClassPerf, 1, mad.MethodGet, c.tid))
		if err := f.Write(b.now, rec); err != c.want {
			t.Errorf("%d: %d, want %d", i, err, c.want)
		}
	}
	if len(r.got) != 2 {
		t.Errorf("%d records", len(r.got))
	}
	// Responses have no transaction of their own.
	for range 2 {
		if err := f.Write(b.now, record(Header{Agent: id, QPN: 1, TimeoutMS: 9}, request(mad.ClassPerf, 1,
			mad.MethodGetResp, 1))); err != OK {
			t.Errorf("response: %d", err)
		}
	}
	sent := 0
	var d mad.Datagram
	for _, ok := b.hub.Next(b.now, &d); ok; _, ok = b.hub.Next(b.now, &d) {
		sent++
		if d.Data[3] == byte(mad.MethodGetResp) && !bytes.Equal(d.Data[8:16], []byte{0, 0, 0, 0, 0, 0, 0, 1}) {
			t.Errorf("the TID of a response became % x", d.Data[8:16])
		}
	}
	if sent != 5 {
		t.Errorf("%d sent", sent)
	}
}

func TestRegister(t *testing.T) {
	b := newBench(t)
	f, _ := b.open(1)
	g, _ := b.open(1)
	far, _ := b.open(2)
	traps := Registration{QPN: 0, Class: mad.ClassSubnLID, Version: 1, Methods: methods(mad.MethodTrap, mad.MethodGet)}
	vendor := Registration{QPN: 1, Class: 0x32, Version: 1, OUI: 0x001405, RMPPVersion: 1,
		Methods: methods(mad.MethodGet)}
	with := func(r Registration, f func(*Registration)) Registration { f(&r); return r }
	for i, c := range []struct {
		f    *File
		r    Registration
		want Errno
	}{
		{f, traps, OK},
		{g, traps, EINVAL},
		{far, traps, OK},
		{g, with(traps, func(r *Registration) { r.Methods = methods(mad.MethodTrap) }), EINVAL},
		{g, with(traps, func(r *Registration) { r.Methods = methods(mad.MethodSet) }), OK},
		{g, with(traps, func(r *Registration) { r.Version = 2 }), OK},
		{g, with(traps, func(r *Registration) { r.Class = mad.ClassSubnDR }), OK},
		{g, smp, OK}, // of no method
		{g, smp, OK},
		{f, vendor, OK},
		{g, vendor, EINVAL},
		{g, with(vendor, func(r *Registration) { r.OUI = 0x001406 }), OK},
		{g, with(vendor, func(r *Registration) { r.OUI = 0 }), EINVAL},
		{g, with(vendor, func(r *Registration) { r.OUI = 0x1001405 }), EINVAL},
		{g, with(sa, func(r *Registration) { r.UserRMPP = true }), OK},
		{g, with(sa, func(r *Registration) { r.RMPPVersion = 2 }), EINVAL},
		{g, with(sa, func(r *Registration) { r.QPN = 0 }), EINVAL},
		{g, with(sa, func(r *Registration) { r.QPN = 2 }), EINVAL},
		{g, with(sa, func(r *Registration) { r.Version = 0x82 }), OK},
		{g, with(sa, func(r *Registration) { r.Version = 0x83 }), EINVAL},
		{g, with(perf, func(r *Registration) { r.RMPPVersion = 1 }), EINVAL},
		{g, with(smp, func(r *Registration) { r.QPN = 1 }), EINVAL},
		{g, with(perf, func(r *Registration) { r.Class = 0x50 }), EINVAL},
		{g, with(perf, func(r *Registration) { r.Class = 0x4f; r.OUI = 1 }), OK},
		{g, Registration{QPN: 1, RMPPVersion: 1}, OK},
		{g, Registration{QPN: 1, RMPPVersion: 1, UserRMPP: true}, EINVAL},
	} {
		if _, err := c.f.Register(c.r); err != c.want {
			t.Errorf("%d: %+v: %d, want %d", i, c.r, err, c.want)
		}
	}
	// Numbers are the lowest free ones, and what is given up can be had again.
	if err := f.Unregister(0); err != OK {
		t.Error(err)
	}
	if err := f.Unregister(0); err != EINVAL {
		t.Errorf("twice: %d", err)
	}
	if err := f.Unregister(maxAgents); err != EINVAL {
		t.Errorf("beyond: %d", err)
	}
	g.Unregister(0)
	if id, err := f.Register(traps); id != 0 || err != OK {
		t.Errorf("again: %d, %d", id, err)
	}
	for err := OK; err == OK; {
		_, err = f.Register(perf)
	}
	n := 0
	for _, a := range f.agents {
		if a != nil {
			n++
		}
	}
	if n != maxAgents {
		t.Errorf("%d registrations", n)
	}
	if _, err := f.Register(perf); err != ENOMEM {
		t.Errorf("one too many: %d", err)
	}
	f.Close()
	f.Close()
	if _, err := f.Register(perf); err != EIO {
		t.Errorf("on a closed file: %d", err)
	}
	g.Close()
	far.Close()
	if len(b.hub.tags) != 0 || len(b.hub.rmpp) != 0 || len(b.hub.ports[1].routes) != 0 ||
		len(b.hub.ports[1].files) != 0 {
		t.Errorf("left: %+v", b.hub)
	}
	if _, err := b.hub.Open(3, &reader{}); err != ENODEV {
		t.Errorf("no such port: %d", err)
	}
}

// TestNotManager: at a node that may not manage the subnet, no program does, whatever its user may; it reads.
func TestNotManager(t *testing.T) {
	b := newBench(t)
	f, _ := b.open(1)
	b.reads = true
	for _, c := range []mad.Class{mad.ClassSubnLID, mad.ClassSubnDR} {
		asks := b.register(f, Registration{QPN: ib.QPNSMI, Class: c, Version: 1})
		for m, want := range map[mad.Method]Errno{mad.MethodGet: OK, mad.MethodSet: EPERM, mad.MethodGetResp: EPERM,
			mad.MethodTrapRepress: EPERM} {
			r := make([]byte, mad.Len)
			h := mad.Header{BaseVersion: 1, MgmtClass: c, ClassVersion: 1, Method: m}
			h.Append(r[:0])
			record := append((&Header{Agent: asks, LID: 5}).Append(nil, f.HeaderLen()), r...)
			if err := f.Write(b.now, record); err != want {
				t.Errorf("class %#x, method %#x: %d, want %d", c, m, err, want)
			}
		}
	}
	var why Errno
	b.hub.OpenIsSM(b.now, 1, true, func(e Errno) { why = e })
	if why != EPERM || b.isSM[1] || b.hub.Stats.NotManager != 7 {
		t.Errorf("issm: %d, %v, counted %d", why, b.isSM[1], b.hub.Stats.NotManager)
	}
	b.reads = false
	b.hub.OpenIsSM(b.now, 1, true, func(e Errno) { why = e })
	if why != OK || !b.isSM[1] {
		t.Errorf("with the role: issm %d, %v", why, b.isSM[1])
	}
}

// TestRestrict checks what a program may do that may not manage the subnet.
func TestRestrict(t *testing.T) {
	b := newBench(t)
	f, _ := b.open(1)
	f.Restrict()
	for _, c := range []mad.Class{mad.ClassSubnLID, mad.ClassSubnDR} {
		if _, err := f.Register(Registration{QPN: 0, Class: c, Version: 1,
			Methods: methods(mad.MethodTrap)}); err != EPERM {
			t.Errorf("serves class %#x: %d", c, err)
		}
	}
	comm := Registration{QPN: ib.QPNGSI, Class: mad.ClassCM, Version: mad.ClassVersionCM,
		Methods: methods(mad.MethodSend)}
	if _, err := f.Register(comm); err != EPERM {
		t.Errorf("serves communication management: %d", err)
	}
	asks, general := b.register(f, smp), b.register(f, perf)
	for _, c := range []struct {
		agent  uint32
		class  mad.Class
		method mad.Method
		want   Errno
	}{
		{asks, mad.ClassSubnLID, mad.MethodGet, OK}, {asks, mad.ClassSubnDR, mad.MethodGet, OK},
		{asks, mad.ClassSubnLID, mad.MethodSet, EPERM}, {asks, mad.ClassSubnDR, mad.MethodSet, EPERM},
		{asks, mad.ClassSubnLID, mad.MethodGetResp, EPERM}, {asks, mad.ClassSubnLID, mad.MethodTrap, EPERM},
		{asks, mad.ClassSubnLID, mad.MethodTrapRepress, EPERM}, {general, mad.ClassPerf, mad.MethodSet, OK},
		{general, mad.ClassCM, mad.MethodSend, EPERM}, {general, mad.ClassCM, mad.MethodSet, EPERM}, {general,
			mad.ClassCM, mad.MethodGetResp, EPERM},
		{general, mad.ClassCM, mad.MethodGet, OK},
	} {
		h := Header{Agent: c.agent, LID: 0x20, TimeoutMS: 100}
		if c.agent == general {
			h.QPN, h.QKey = 1, ib.GSIQKey
		}
		if err := f.Write(b.now, record(h, request(c.class, 1, c.method, uint64(c.method)))); err != c.want {
			t.Errorf("method %v of class %#x: %d, want %d", c.method, c.class, err, c.want)
		}
		if c.want == OK {
			b.next(1)
		}
		b.idle()
	}
	g, _ := b.open(1)
	if err := g.Write(b.now, record(Header{Agent: b.register(g, comm), LID: 0x20, QPN: 1, QKey: ib.GSIQKey},
		request(mad.ClassCM, 2, mad.MethodSend, 1))); err != OK {
		t.Errorf("communication management of who may: %d", err)
	}
	b.next(1)
}

func TestUnsolicited(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	g, s := b.open(1)
	b.register(f, Registration{QPN: 0, Class: mad.ClassSubnLID, Version: 1, Methods: methods(mad.MethodTrap,
		mad.MethodGet)})
	b.register(f, Registration{QPN: 0, Class: mad.ClassSubnDR, Version: 1, Methods: methods(mad.MethodGet)})
	b.register(g, Registration{QPN: 1, Class: 0x32, Version: 1, OUI: 0x001405, Methods: methods(mad.MethodGet)})
	b.register(g, Registration{QPN: 1, Class: 0x32, Version: 1, OUI: 0x001406, Methods: methods(mad.MethodGet)})
	oui := func(last byte) []byte {
		m := request(0x32, 1, mad.MethodGet, 1)
		copy(m[37:], []byte{0, 0x14, last})
		return m
	}
	base := request(mad.ClassSubnLID, 1, mad.MethodTrap, 1)
	base[0] = 0x80
	for name, c := range map[string]struct {
		m     []byte
		qpn   ib.QPN
		who   *reader
		agent uint32
		taken bool
	}{
		"trap":                {request(mad.ClassSubnLID, 1, mad.MethodTrap, 1), 0, r, 0, true},
		"method not asked":    {request(mad.ClassSubnLID, 1, mad.MethodSet, 1), 0, nil, 0, false},
		"class version":       {request(mad.ClassSubnLID, 2, mad.MethodTrap, 1), 0, nil, 0, false},
		"directed route":      {request(mad.ClassSubnDR, 1, mad.MethodGet, 1), 0, r, 1, true},
		"wrong queue pair":    {request(mad.ClassSubnLID, 1, mad.MethodTrap, 1), 1, nil, 0, false},
		"vendor":              {oui(5), 1, s, 0, true},
		"another vendor":      {oui(6), 1, s, 1, true},
		"a third":             {oui(7), 1, nil, 0, false},
		"a response":          {request(mad.ClassSubnLID, 1, mad.MethodGetResp, 1), 0, nil, 0, false},
		"a trap is repressed": {request(mad.ClassSubnLID, 1, mad.MethodTrapRepress, 1), 0, nil, 0, false},
		"another base":        {base, 0, nil, 0, true},
	} {
		r.got, s.got = nil, nil
		d := mad.Datagram{Port: 1, SLID: 0x55, DLID: 0x12, DstQPN: c.qpn, SrcQPN: c.qpn, PKey: 0xffff}
		copy(d.Data[:], c.m)
		if got := b.hub.Receive(b.now, 1, &d); got != c.taken {
			t.Errorf("%s: taken %v", name, got)
		}
		if n := len(r.got) + len(s.got); c.who == nil && n != 0 || c.who != nil && (n != 1 || len(c.who.got) != 1) {
			t.Errorf("%s: %d and %d records", name, len(r.got), len(s.got))
		} else if c.who != nil {
			if h, m := parse(t, c.who.got[0]); h.Agent != c.agent || h.LID != 0x55 || h.PathBits != 2 ||
				!bytes.Equal(m, c.m) {
				t.Errorf("%s: %+v % x", name, h, m)
			}
		}
	}
	if b.hub.Stats.DropVersion != 1 || b.hub.Stats.Received != 4 {
		t.Errorf("%+v", b.hub.Stats)
	}
}

func TestUnregisterForgets(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	id := b.register(f, perf)
	f.Write(b.now, record(Header{Agent: id, QPN: 1, TimeoutMS: 1}, request(mad.ClassPerf, 1, mad.MethodGet, 1)))
	d := b.next(1)
	f.Unregister(id)
	if b.hub.Deadline() != 0 {
		t.Error("a deadline is left")
	}
	b.now = b.now.Add(time.Hour)
	b.idle()
	a := d.Reply()
	a.Data[3] = byte(mad.MethodGetResp)
	if b.hub.Receive(b.now, 1, &a) || len(r.got) != 0 {
		t.Error("the answer went to somebody")
	}
	// A new registration has another tag, so it does not get that answer either.
	if again := b.register(f, perf); again != id {
		t.Errorf("number %d", again)
	}
	if b.hub.Receive(b.now, 1, &a) || len(r.got) != 0 {
		t.Error("the next one got the answer")
	}
}

func TestReaderThatDoesNotRead(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	r.room = 1
	b.register(f, Registration{QPN: 0, Class: mad.ClassSubnLID, Version: 1, Methods: methods(mad.MethodTrap)})
	d := mad.Datagram{Port: 1}
	copy(d.Data[:], request(mad.ClassSubnLID, 1, mad.MethodTrap, 1))
	for range 3 {
		b.hub.Receive(b.now, 1, &d)
	}
	if len(r.got) != 1 || b.hub.Stats.DropReaderFull != 2 {
		t.Errorf("%d records, %+v", len(r.got), b.hub.Stats)
	}
}

func TestBounds(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	id := b.register(f, perf)
	write := func(tid int) Errno {
		return f.Write(b.now, record(Header{Agent: id, QPN: 1, TimeoutMS: 1000}, request(mad.ClassPerf, 1,
			mad.MethodGet, uint64(tid))))
	}
	for i := range maxOut {
		if err := write(i); err != OK {
			t.Fatalf("%d: %d", i, err)
		}
	}
	if err := write(-1); err != ENOMEM || len(r.got) != 1 {
		t.Errorf("beyond: %d, %d records", err, len(r.got))
	}
	var d mad.Datagram
	for range maxOut {
		b.next(1)
	}
	if _, ok := b.hub.Next(b.now, &d); ok || maxPending > maxOut {
		t.Error("more than fit")
	}
	if err := write(-2); err != ENOMEM {
		t.Errorf("more requests than may wait: %d", err)
	}
}

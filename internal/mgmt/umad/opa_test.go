// SPDX-License-Identifier: Apache-2.0

package umad

import (
	"bytes"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
)

// vesw is a registration for the class with MADs longer than others.
var vesw = Registration{QPN: ib.QPNGSI, Class: mad.ClassVEMA, Version: mad.VEMAClassVersion, OUI: mad.VEMAOUI,
	RMPPVersion: 1,
	Methods:     methods(mad.MethodGet, mad.MethodSet, mad.MethodTrap)}

func vemaRequest(m mad.Method) []byte {
	r := mad.NewVEMA(m, mad.AttrVESWPortInfo, 3, 0x77)
	for i := range r.Data {
		r.Data[i] = byte(i)
	}
	return r.Append(nil)
}

// TestOmniPath sends a request from one port, the answer from another, and a trap, in the lengths of Omni-Path.
func TestOmniPath(t *testing.T) {
	b := newBench(t)
	f, r := b.open(1)
	g, s := b.open(2)
	id, agent := b.register(f, vesw), b.register(g, vesw)
	if err := f.Write(b.now, record(Header{Agent: id, TimeoutMS: 100, LID: 0x20, QPN: 1, QKey: ownQKey, PKeyIndex: 2},
		vemaRequest(mad.MethodSet))); err != OK {
		t.Fatal(err)
	}
	d := b.next(1)
	want := vemaRequest(mad.MethodSet)
	copy(want[8:12], d.Long[8:12]) // the tag
	if !bytes.Equal(d.Long, want) || !bytes.Equal(d.Data[:], want[:mad.Len]) || d.DLID != 0x20 ||
		bytes.Equal(want[8:12], make([]byte, 4)) {
		t.Fatalf("% x\nbecame % x", want[:64], d.Long[:64])
	}
	if !b.hub.Receive(b.now, 2, &d) {
		t.Fatal("not taken")
	}
	got := s.take(t)
	var h Header
	h.Parse(got, HeaderLen)
	if !bytes.Equal(got[HeaderLen:], want) || h.Agent != agent || int(h.Length) != len(got) {
		t.Fatalf("%+v, % x", h, got[HeaderLen:][:64])
	}
	want[3] = byte(mad.MethodGetResp)
	if err := g.Write(b.now, record(Header{Agent: agent, LID: 0x10, QPN: 1, QKey: ownQKey}, want)); err != OK {
		t.Fatal(err)
	}
	d = b.next(2)
	if !bytes.Equal(d.Long, want) || !b.hub.Receive(b.now, 1, &d) || !bytes.Equal(r.take(t)[HeaderLen:], want) {
		t.Fatal("the answer")
	}
	// A trap, and the answer of a port without an agent of the class: shorter.
	if !b.hub.Receive(b.now, 1, &d) || b.hub.Stats.DropLate != 1 {
		t.Error("an answer is taken twice")
	}
	m := mad.NewVEMATrap(1, mad.VEMANotice{Opcode: mad.VEMALinkStatus})
	d.SetMAD(m.Append(nil))
	if !b.hub.Receive(b.now, 1, &d) || !bytes.Equal(r.take(t)[HeaderLen:], d.Long) || len(d.Long) != mad.VEMATrapLen {
		t.Error("a trap")
	}
	f.Write(b.now, record(Header{Agent: id, TimeoutMS: 100, LID: 0x20, QPN: 1, QKey: ownQKey},
		vemaRequest(mad.MethodGet)))
	d = b.next(1)
	d.Data[3] = byte(mad.MethodGetResp)
	d.SetMAD(d.Data[:mad.HeaderLen])
	if !b.hub.Receive(b.now, 1, &d) || len(r.take(t)) != HeaderLen+mad.HeaderLen {
		t.Error("a refusal")
	}
	b.idle()
}

// TestOmniPathRefused: lengths that are none, queue pair 0, segments, and what a user may not.
func TestOmniPathRefused(t *testing.T) {
	b := newBench(t)
	f, _ := b.open(1)
	id, qp0 := b.register(f, vesw), b.register(f, smp)
	h := Header{Agent: id, LID: 0x20, QPN: 1, QKey: ownQKey}
	whole := vemaRequest(mad.MethodGet)
	long := append(bytes.Clone(whole), 0, 0, 0, 0)
	segment := bytes.Clone(whole)
	segment[26] = mad.RMPPActive
	for i, m := range [][]byte{long, whole[:2047], whole[:2046], whole[:258], segment} {
		if err := f.Write(b.now, record(h, m)); err != EINVAL {
			t.Errorf("%d: %d octets: %d", i, len(m), err)
		}
	}
	if err := f.Write(b.now, record(Header{Agent: qp0, LID: 0x20}, whole)); err != EINVAL {
		t.Errorf("by queue pair 0: %d", err)
	}
	b.idle()
	f.Restrict()
	if err := f.Write(b.now, record(h, vemaRequest(mad.MethodSet))); err != EPERM {
		t.Errorf("a Set of a user who may look: %d", err)
	}
	b.idle()
	if err := f.Write(b.now, record(h, whole)); err != OK {
		t.Errorf("a Get of a user who may look: %d", err)
	}
	b.next(1)
}

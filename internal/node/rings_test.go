// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"testing"

	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

// TestRings: the rings of RoCE objects of a plain front-end are stopped, begun anew with another size, disabled and
// enabled by messages of vhost-user, one by one, while the others run.
func TestRings(t *testing.T) {
	r := run(t, nil)
	a, b := r.client(t, vhosttest.Options{Plain: true}), r.client(t, vhosttest.Options{})
	if f, err := a.GetU64(abi.ReqGetFeatures); err != nil || f&(1<<abi.FeatureRingReset) == 0 {
		t.Fatalf("features %#x, %v", f, err)
	}
	pair(t, ib.RC, a, b)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	completes := func(c *client, id uint64) {
		t.Helper()
		if l, err := c.cq.Wait(1); err != nil || l[0].Status != 0 || l[0].WRID != id {
			t.Fatalf("completion %d: %+v, %v", id, l, err)
		}
	}
	// toA has b send a message that a receives; it is complete at b.
	toA := func(id uint64) {
		t.Helper()
		must(b.qp.PostSend(abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: ib.Signaled},
			[]ib.SGE{{Addr: b.at, Len: 100, LKey: b.mr.LKey}}, nil))
		completes(b, id)
	}
	receive := func(id uint64) {
		t.Helper()
		must(a.qp.PostRecv(id, []ib.SGE{{Addr: a.at + 8192, Len: 100, LKey: a.mr.LKey}}))
	}
	for round, num := range []int{16, 256, 64} {
		must(a.qp.Renew(t, num))
		must(a.cq.Renew(t, num))
		for i := range 2*num + 1 {
			id := uint64(i)
			mustWrite(t, a, b, byte(i+round), 100+i)
			receive(id)
			toA(id)
			completes(a, id)
		}
		if s, v := a.qp.Outstanding(); s != 0 || v != 0 {
			t.Errorf("round %d: %d and %d elements kept", round, s, v)
		}
	}

	// A disabled send ring is not read. What b does meanwhile is done.
	must(a.qp.EnableSend(false))
	was := bytes.Clone(b.buf[:50])
	for i := range a.buf[:50] {
		a.buf[i] = ^was[i]
	}
	s := abi.Send{WRID: 7, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(b.at, b.mr.RKey)
	must(a.qp.PostSend(s, []ib.SGE{{Addr: a.at, Len: 50, LKey: a.mr.LKey}}, nil))
	receive(8)
	toA(8)
	completes(a, 8)
	if n, _ := a.qp.Outstanding(); n != 1 || !bytes.Equal(b.buf[:50], was) {
		t.Errorf("a disabled send ring was read: %d elements are in it", n)
	}
	must(a.qp.EnableSend(true))
	completes(a, 7)
	if !bytes.Equal(b.buf[:50], a.buf[:50]) {
		t.Error("what was written differs")
	}

	// A disabled receive ring is an empty one, for which a sender waits.
	must(a.qp.EnableRecv(false))
	receive(9)
	must(b.qp.PostSend(abi.Send{WRID: 9, Opcode: uint8(ib.WRSend), Flags: ib.Signaled},
		[]ib.SGE{{Addr: b.at, Len: 100, LKey: b.mr.LKey}}, nil))
	mustWrite(t, a, b, 3, 200)
	if l, err := b.cq.Poll(1); err != nil || len(l) != 0 {
		t.Errorf("a message without a buffer: %+v, %v", l, err)
	}
	must(a.qp.EnableRecv(true))
	completes(b, 9)
	completes(a, 9)

	// Completions wait while their ring is disabled.
	must(a.cq.Enable(false))
	receive(10)
	toA(10)
	if l, err := a.cq.Poll(1); err != nil || len(l) != 0 {
		t.Errorf("completions in a disabled ring: %+v, %v", l, err)
	}
	must(a.cq.Enable(true))
	completes(a, 10)
	mustWrite(t, a, b, 5, 5000)

	// An object may go while its ring is away, and a ring without its object may be stopped.
	must(a.qp.EnableSend(false))
	must(a.qp.Destroy())
	must(a.cq.Enable(false))
	must(a.cq.Destroy())
}

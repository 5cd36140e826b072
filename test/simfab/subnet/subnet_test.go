// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"testing"
	"time"

	"weft/internal/mgmt/sm"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// TestSameSeed runs a subnet with loss twice: equal seeds give equal runs.
func TestSameSeed(t *testing.T) {
	run := func(seed uint64) (Stats, mono.Time) {
		f := New(seed, time.Microsecond)
		f.Loss = 30
		cas := FatTree(f, 2, 2, 1, 1)
		f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
		if !f.Until(time.Minute, f.Active) {
			t.Fatal("not up")
		}
		return f.Stats, f.Now
	}
	a, at := run(7)
	b, bt := run(7)
	c, _ := run(8)
	if a != b || at != bt || a == c || a.Lost == 0 || a.Carried == 0 {
		t.Errorf("%+v at %v, %+v at %v, another seed %+v", a, at, b, bt, c)
	}
}

// TestGeneralServices sends a datagram of queue pair 1 over switches, which have no
// route before a manager wrote one.
func TestGeneralServices(t *testing.T) {
	f := New(1, time.Microsecond)
	cas := FatTree(f, 2, 1, 1, 1)
	d := mad.Datagram{SLID: 0xffff, DLID: 1, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey, PKey: ib.DefaultPKey}
	h := mad.Header{BaseVersion: 1, MgmtClass: mad.ClassSA, ClassVersion: 2, Method: mad.MethodGet, TransactionID: 5}
	h.Append(d.Data[:0])
	var got []mad.Datagram
	cas[1].GSI = func(_ mono.Time, d *mad.Datagram) { got = append(got, *d) }
	cas[0].Send(&d)
	f.Run(time.Millisecond)
	if len(got) != 0 {
		t.Fatal("arrived without a route")
	}
	f.Attach(cas[0], sm.Config{}, sm.Intent{}, sm.Observations{})
	if !f.Until(time.Second, f.Active) {
		t.Fatal("not up")
	}
	d.SLID, d.DLID = cas[0].Agent.LID(), cas[1].Agent.LID()
	cas[0].Send(&d)
	f.Run(time.Millisecond)
	if len(got) != 1 || got[0].SLID != d.SLID || got[0].Port != 1 || got[0].Data != d.Data {
		t.Fatalf("%+v", got)
	}
	// To itself, and over a cable that was pulled while it was on its way.
	cas[0].GSI = cas[1].GSI
	d.DLID = d.SLID
	cas[0].Send(&d)
	if len(got) != 2 {
		t.Error("not delivered to itself")
	}
	d.DLID = cas[1].Agent.LID()
	cas[0].Send(&d)
	cut := f.Stats.Cut
	b, p := f.Cut(cas[0], 1)
	f.Link(cas[0], 1, b, p)
	f.Run(time.Microsecond)
	if f.Stats.Cut != cut+1 || len(got) != 2 {
		t.Errorf("%+v, %d arrived", f.Stats, len(got))
	}
}

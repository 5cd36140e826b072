// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// The tests of this file are named for one transition each of an entry of the shadow table, or of a path: from, to and
// event.

// pendingEntry returns a link with an entry, a query of its path, and a frame that waits.
func pendingEntry(t *testing.T) (*subnet, *node, *entry) {
	s, a := alone(t)
	a.xmitText(hwB, "x")
	e := a.l.shadow.entries[hwB.Key()]
	if e == nil || e.state != entryPending || e.path.request != requestSent || len(e.queue) != 1 {
		t.Fatalf("%+v", e)
	}
	return s, a, e
}

// resolvedEntry returns a link with an entry that is resolved.
func resolvedEntry(t *testing.T) (*subnet, *node, *entry) {
	s, a := alone(t)
	s.holdPaths = false
	s.paths = func(r *mad.PathRecord) mad.Status { r.DLID = 17; return 0 }
	a.xmitText(hwB, "x")
	s.run(time.Second)
	e := a.l.shadow.entries[hwB.Key()]
	if e == nil || e.state != entryResolved || e.path.state != pathValid {
		t.Fatalf("%+v", e)
	}
	return s, a, e
}

func (n *node) expectEntry(e *entry, want entryState) {
	n.s.t.Helper()
	_, listed := n.l.shadow.entries[hwB.Key()]
	if e.state != want || listed != (want != entryRemoved) {
		n.s.t.Fatalf("the entry is %s, listed: %v; want %s", entryStateNames[e.state], listed, entryStateNames[want])
	}
}

func TestEntryPendingToResolvedOnAnswer(t *testing.T) {
	s, a, e := pendingEntry(t)
	rec := mad.PathRecord{DGID: gidB, SGID: gidA, DLID: 17, SLID: 5, MTU: ib.MTU2048, Rate: ib.Rate10}
	a.l.SAResponse(s.now, s.heldPaths[0], 0, rec.Append(nil))
	a.expectEntry(e, entryResolved)
	if e.ah == nil || len(e.queue) != 0 {
		t.Errorf("address vector %v, %d frames wait", e.ah, len(e.queue))
	}
}

func TestEntryPendingToRemovedOnRefusal(t *testing.T) {
	s, a, e := pendingEntry(t)
	a.l.SAResponse(s.now, s.heldPaths[0], mad.StatusSANoRecords, nil)
	a.expectEntry(e, entryRemoved)
	if n := a.counter("drop_no_path"); n != 1 {
		t.Errorf("%d frames dropped", n)
	}
}

func TestEntryPendingToRemovedOnSilence(t *testing.T) {
	s, a, e := pendingEntry(t)
	s.run(1050 * time.Millisecond)
	a.expectEntry(e, entryPending)
	s.run(100 * time.Millisecond)
	a.expectEntry(e, entryRemoved)
}

func TestEntryPendingToRemovedOnPortDown(t *testing.T) {
	_, a, e := pendingEntry(t)
	a.event(func(p *Port) { p.State = ib.PortDown })
	a.expectEntry(e, entryRemoved)
}

func TestEntryResolvedToPendingOnStalePath(t *testing.T) {
	s, a, e := resolvedEntry(t)
	s.holdPaths = true
	a.event(nil, ib.EventReregister)
	a.expectEntry(e, entryResolved) // until it is used
	a.xmitText(hwB, "y")
	a.expectEntry(e, entryPending)
	if len(e.queue) != 1 || e.path.request != requestSent {
		t.Errorf("%d frames wait, request %d", len(e.queue), e.path.request)
	}
}

func TestEntryResolvedStaysOnSilence(t *testing.T) {
	s, a, e := resolvedEntry(t)
	s.silent = true
	a.l.shadow.noteRequest(s.now, ipB, hwB)
	if e.path.request != requestSent {
		t.Fatal("the path is not queried")
	}
	s.run(2 * time.Second)
	a.expectEntry(e, entryResolved)
	if e.path.state != pathValid || e.path.request != requestNone {
		t.Errorf("path state %d, request %d", e.path.state, e.path.request)
	}
}

func TestEntryResolvedToRemovedOnRefusal(t *testing.T) {
	s, a, e := resolvedEntry(t)
	s.paths = func(*mad.PathRecord) mad.Status { return mad.StatusSANoRecords }
	a.l.shadow.noteRequest(s.now, ipB, hwB)
	s.run(time.Second)
	a.expectEntry(e, entryRemoved)
}

func TestEntryResolvedToRemovedOnPurge(t *testing.T) {
	s, a, e := resolvedEntry(t)
	a.l.PurgeShadow(s.now, wire.HWAddr{})
	a.expectEntry(e, entryRemoved)
}

func TestEntryResolvedToRemovedOnRequest(t *testing.T) {
	s, a, e := resolvedEntry(t)
	a.l.shadow.learn(s.now, ipB, hwB)
	a.l.shadow.noteRequest(s.now, ipB, wire.PseudoBroadcast)
	a.expectEntry(e, entryRemoved)
}

func TestEntryResolvedToRemovedOnDisuse(t *testing.T) {
	s, a, e := resolvedEntry(t)
	s.run(a.l.p.ShadowIdle + 2*idleSweep)
	a.expectEntry(e, entryRemoved)
}

func TestPathUnknownToValidOnAnswer(t *testing.T) {
	s, a, e := pendingEntry(t)
	p := e.path
	if p.state != pathUnknown {
		t.Fatalf("state %d", p.state)
	}
	rec := mad.PathRecord{DGID: gidB, SGID: gidA, DLID: 17, SLID: 5, MTU: ib.MTU2048, Rate: ib.Rate10}
	a.l.SAResponse(s.now, s.heldPaths[0], 0, rec.Append(nil))
	if p.state != pathValid || p.request != requestNone || p.rec.DLID != 17 {
		t.Errorf("state %d, request %d, LID %d", p.state, p.request, p.rec.DLID)
	}
}

func TestPathValidToOutdatedOnPurge(t *testing.T) {
	s, a, e := resolvedEntry(t)
	other := wire.MakeHWAddr(0, 0x777, gidB)
	a.l.shadow.learn(s.now, netip.MustParseAddr("10.20.0.9"), other)
	o := a.l.shadow.entries[other.Key()]
	p := e.path
	a.l.shadow.purge(s.now, e)
	if p.state != pathOutdated || o.path != p || !o.usable() {
		t.Errorf("state %d, the other entry is usable: %v", p.state, o.usable())
	}
	s.holdPaths = true
	a.l.shadow.entryOf(s.now, hwB) // another entry has the path queried
	if p.request != requestSent || a.l.shadow.entries[hwB.Key()].state != entryPending {
		t.Errorf("request %d", p.request)
	}
}

func TestPathValidToUnknownOnTrap(t *testing.T) {
	s, a, e := resolvedEntry(t)
	a.l.Notice(s.now, mad.TrapGIDOutOfService, gidB)
	if p := e.path; p.state != pathUnknown || p.rec != (mad.PathRecord{}) || e.usable() {
		t.Errorf("state %d, record %+v", p.state, p.rec)
	}
}

func TestPathRequestQueuedToSentOnTurn(t *testing.T) {
	s, a := alone(t)
	s.silent = true
	for i := range maxPathQueries + 1 {
		a.l.shadow.entryOf(s.now, wire.MakeHWAddr(0, 5, ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(1000+i))))
	}
	p := a.l.shadow.paths[ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(1000+maxPathQueries))]
	if p.request != requestQueued {
		t.Fatalf("request %d", p.request)
	}
	s.run(1200 * time.Millisecond)
	if p.request != requestSent {
		t.Errorf("request %d after the others", p.request)
	}
}

func TestPathRequestSentToNoneOnRemoval(t *testing.T) {
	s, a, e := pendingEntry(t)
	p := e.path
	a.l.shadow.flush(s.now)
	if p.request != requestNone || p.q != nil || len(a.l.sa.open) != 0 {
		t.Errorf("request %d, %d transactions", p.request, len(a.l.sa.open))
	}
}

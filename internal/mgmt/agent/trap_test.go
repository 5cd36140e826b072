// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// TestMKey is the table of IBA volume 1, 14.2.4.
func TestMKey(t *testing.T) {
	const key = 0x1122334455667788
	for _, c := range []struct {
		bits         uint8
		key          uint64 // of the request
		get, set     bool   // are answered
		shows        uint64 // M_Key of the answer to Get
		portKey      uint64
		violations   uint16
		descriptions bool // Get(NodeDescription) is answered
	}{
		{0, 0, true, true, 0, 0, 0, true},
		{3, 5, true, true, 0, 0, 0, true}, // no key: all are accepted
		{0, key, true, true, key, key, 0, true},
		{3, key, true, true, key, key, 0, true},
		{0, 5, true, false, key, key, 1, true},
		{1, 5, true, false, 0, key, 1, true},
		{2, 5, false, false, 0, key, 3, false},
		{3, 0, false, false, 0, key, 3, false},
	} {
		ca, _ := newCA()
		p := ca.Port(1)
		p.MKey, p.MKeyProtectBits = c.portKey, c.bits
		send := func(m mad.Method, attr mad.AttributeID) (mad.SMP, bool) {
			d := request(m, attr, 0, nil)
			s := smpOf(t, &d)
			s.MKey = c.key
			if m == mad.MethodSet {
				i := *p
				i.PortState, i.PortPhysicalState = 0, 0
				i.Append(s.Data[:0])
			}
			s.Append(d.Data[:0])
			v := ca.Originate(start, &d)
			return smpOf(t, &d), v == Deliver
		}
		s, ok := send(mad.MethodGet, mad.AttrPortInfo)
		var i mad.PortInfo
		i.Parse(s.Data[:])
		if ok != c.get || ok && i.MKey != c.shows {
			t.Errorf("%+v: Get answered %v, key %#x", c, ok, i.MKey)
		}
		if _, ok := send(mad.MethodGet, mad.AttrNodeDescription); ok != c.descriptions {
			t.Errorf("%+v: Get of the description answered %v", c, ok)
		}
		if s, ok := send(mad.MethodSet, mad.AttrPortInfo); ok != c.set || ok && s.Status != 0 {
			t.Errorf("%+v: Set answered %v, %v", c, ok, s.Status)
		}
		if p.MKeyViolations != c.violations {
			t.Errorf("%+v: %d violations", c, p.MKeyViolations)
		}
	}
}

// TestMKeyLease lets the lease of a manager that is gone run out, and not that
// of one that is there.
func TestMKeyLease(t *testing.T) {
	ca, _ := newCA()
	p := ca.Port(1)
	p.MKey, p.MKeyProtectBits, p.MKeyLeasePeriod, p.MKeyViolations = 7, 2, 10, 0xffff
	get := func(now mono.Time, key uint64) Verdict {
		d := request(mad.MethodGet, mad.AttrNodeInfo, 0, nil)
		s := smpOf(t, &d)
		s.MKey = key
		s.Append(d.Data[:0])
		return ca.Originate(now, &d)
	}
	tick := func(now mono.Time) {
		var d mad.Datagram
		for ca.Next(now, &d) != Done {
		}
	}
	if get(start, 1) != Done {
		t.Error("answered a stranger")
	}
	if p.MKeyViolations != 0xffff {
		t.Errorf("violations wrapped to %d", p.MKeyViolations)
	}
	tick(start) // the trap, for which there is no manager
	if got := ca.Deadline(); got != start.Add(10*time.Second) {
		t.Errorf("deadline %v", got)
	}
	if get(start.Add(time.Second), 7) != Deliver || !ca.Deadline().IsZero() {
		t.Errorf("the manager's SMP does not end the lease's timer: %v", ca.Deadline())
	}
	get(start.Add(2*time.Second), 1)
	get(start.Add(9*time.Second), 1) // does not start it anew
	tick(start.Add(11 * time.Second))
	if p.MKeyProtectBits != 2 {
		t.Error("expired early")
	}
	tick(start.Add(12 * time.Second))
	if p.MKeyProtectBits != 0 || !ca.Deadline().IsZero() || get(start.Add(13*time.Second), 1) != Deliver {
		t.Errorf("did not expire: %d, %v", p.MKeyProtectBits, ca.Deadline())
	}
}

// managed is a node that a manager at LID 1 configured, with the interval of
// its traps.
func managed(a *Agent) time.Duration {
	i := &a.end().info
	i.LID, i.MasterSMLID, i.MasterSMSL, i.SubnetTimeOut = 9, 1, 2, 14
	return 4096 * time.Nanosecond << 14
}

func sent(t *testing.T, a *Agent, now mono.Time) (traps []mad.SMP) {
	t.Helper()
	var d mad.Datagram
	for range 10 {
		if a.Next(now, &d) == Done {
			return traps
		}
		s := smpOf(t, &d)
		if d.SLID != 9 || d.DLID != 1 || d.SL != 2 || d.Port != 1 || d.SrcQPN != 0 || d.DstQPN != 0 ||
			s.Method != mad.MethodTrap ||
			s.MgmtClass != mad.ClassSubnLID || s.AttributeID != mad.AttrNotice || s.BaseVersion != 1 ||
			s.ClassVersion != 1 {
			t.Errorf("%+v %+v", d.Port, s.Header)
		}
		traps = append(traps, s)
	}
	t.Fatal("no end of traps")
	return nil
}

func noticeOf(s mad.SMP) (n mad.Notice) { n.Parse(s.Data[:]); return n }

// repressing answers a trap.
func repressing(a *Agent, now mono.Time, trap mad.SMP, key uint64) {
	trap.Reply(0)
	trap.MKey = key
	d := mad.Datagram{SLID: 1, DLID: 9, Port: 1}
	trap.Append(d.Data[:0])
	a.Handle(now, &d)
}

// TestTrapUntilRepressed checks the contents of a trap, its repetitions, and its end.
func TestTrapUntilRepressed(t *testing.T) {
	ca, _ := newCA()
	ca.SetDescription(start, "nobody is told")
	if got := sent(t, ca, start); len(got) != 0 || !ca.Deadline().IsZero() {
		t.Errorf("without a manager: %v, %v", got, ca.Deadline())
	}
	every := managed(ca)
	now := start.Add(time.Hour)
	ca.SetDescription(now, "host renamed")
	if ca.Deadline() != now {
		t.Errorf("deadline %v, want now", ca.Deadline())
	}
	first := sent(t, ca, now)
	if len(first) != 1 {
		t.Fatalf("%d traps", len(first))
	}
	want := mad.LocalChange{LID: 9, Other: true, CapabilityMask: DefaultCaps.Mask, Flags: mad.ChangeNodeDescription,
		CapabilityMask2: DefaultCaps.Mask2}
	n := noticeOf(first[0])
	if diff := cmp.Diff(want, n.LocalChange()); diff != "" || n.TrapNumber != mad.TrapLocalChange ||
		n.Producer != mad.ProducerCA || !n.Generic || n.IssuerLID != 9 {
		t.Errorf("%+v %s", n, diff)
	}
	if got := sent(t, ca, now.Add(every-1)); len(got) != 0 {
		t.Error("sent again too early")
	}
	again := sent(t, ca, now.Add(every))
	if len(again) != 1 || again[0].TransactionID != first[0].TransactionID {
		t.Fatalf("%v", again)
	}
	// Another change before the repression: the trap has the newest notice, and the answer to the older one does not
	// end it.
	now = now.Add(every + 1)
	ca.SetCapability(now, mad.CapIsSM, true)
	if got := sent(t, ca, now); len(got) != 0 {
		t.Error("sent faster than the interval allows")
	}
	repressing(ca, now, first[0], 0)
	now = now.Add(every)
	newest := sent(t, ca, now)
	if len(newest) != 1 || newest[0].TransactionID == first[0].TransactionID {
		t.Fatalf("%v", newest)
	}
	n = noticeOf(newest[0])
	if c := n.LocalChange(); c.CapabilityMask != DefaultCaps.Mask|mad.CapIsSM || c.Other {
		t.Errorf("%+v", c)
	}
	ca.Port(1).MKey = 77
	repressing(ca, now, newest[0], 5)
	if ca.Deadline().IsZero() {
		t.Error("repressed with a wrong key")
	}
	repressing(ca, now, newest[0], 77)
	if !ca.Deadline().IsZero() || len(sent(t, ca, now.Add(time.Hour))) != 0 {
		t.Error("goes on after it was repressed")
	}
	// Soon after one there is not another.
	ca.SetDescription(now, "again")
	if len(sent(t, ca, now)) != 0 || len(sent(t, ca, now.Add(every))) != 1 {
		t.Error("interval between two traps")
	}
}

// TestTrapLinkState checks that a switch reports its links, and what a manager does not
// change is no news.
func TestTrapLinkState(t *testing.T) {
	sw, _ := newSwitch(2)
	managed(sw)
	ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &mad.SwitchInfo{LinearFDBTop: 63})
	ask(t, sw, mad.MethodSet, mad.AttrLFT, 0, &mad.LFT{1: 1})
	sw.LinkUp(start, 2, edr)
	if !sw.SwitchInfo().PortStateChange {
		t.Error("PortStateChange is not set")
	}
	if got := sent(t, sw, start); len(got) != 0 {
		t.Error("sent although the way to the manager is down")
	}
	sw.LinkUp(start, 1, edr)
	now := start.Add(time.Second)
	got := sent(t, sw, now)
	if len(got) != 1 {
		t.Fatalf("%d traps", len(got))
	}
	n := noticeOf(got[0])
	if want := mad.LinkStateNotice(9); n != want || got[0].TransactionID>>32 != 0xabc {
		t.Errorf("%+v, %#x", n, got[0].TransactionID)
	}
	repressing(sw, now, got[0], 0)
	ask(t, sw, mad.MethodSet, mad.AttrSwitchInfo, 0, &mad.SwitchInfo{LinearFDBTop: 63, PortStateChange: true})
	if s := setState(t, sw, 2, ib.PortArmed, 0); s != 0 {
		t.Fatal(s)
	}
	if len(sent(t, sw, now.Add(time.Hour))) != 0 || sw.SwitchInfo().PortStateChange {
		t.Error("a manager's own doing is reported to it")
	}
	now = now.Add(2 * time.Hour)
	sw.LinkDown(now, 2)
	if len(sent(t, sw, now)) != 1 || !sw.SwitchInfo().PortStateChange {
		t.Error("a link that goes down is not reported")
	}
	// A manager at the switch itself gets it without a wire.
	sw.Port(0).MasterSMLID = 9
	sw.LinkUp(now.Add(time.Hour), 2, edr)
	var d mad.Datagram
	if v := sw.Next(now.Add(time.Hour), &d); v != Deliver {
		t.Errorf("verdict %d", v)
	}
}

func TestTrapsOfViolations(t *testing.T) {
	ca, _ := newCA()
	managed(ca)
	k := mad.BadKey{LID1: 3, LID2: 9, Key: 0x8007, SL: 1, QP1: 0x11, QP2: 0x12, GID1: ib.GID{1}, GID2: ib.GID{2}}
	ca.BadPKey(start, k, 1)
	ca.BadQKey(start, k, 1)
	ca.Port(1).MKey, ca.Port(1).MKeyProtectBits = 5, 3
	d := request(mad.MethodGet, mad.AttrNodeInfo, 3, nil)
	d.Port = 1
	ca.Handle(start, &d)
	got := sent(t, ca, start)
	if len(got) != 3 {
		t.Fatalf("%d traps", len(got))
	}
	for i, want := range []mad.TrapNumber{mad.TrapBadMKey, mad.TrapBadPKey, mad.TrapBadQKey} {
		n := noticeOf(got[i])
		if n.TrapNumber != want || n.Type != mad.NoticeSecurity || n.IssuerLID != 9 {
			t.Errorf("%+v", n)
		}
		if want == mad.TrapBadMKey {
			if m := n.BadMKey(); m.Method != mad.MethodGet || m.AttributeID != mad.AttrNodeInfo || m.Modifier != 3 ||
				m.MKey != 0 || !m.Directed {
				t.Errorf("%+v", m)
			}
		} else if b := n.BadKey(); b != k {
			t.Errorf("%+v", b)
		}
	}
	if p := ca.Port(1); p.PKeyViolations != 1 || p.QKeyViolations != 1 || p.MKeyViolations != 1 {
		t.Errorf("%+v", p)
	}
	ca.Port(1).PKeyViolations = 0xffff
	ca.BadPKey(start, k, 1)
	if ca.Port(1).PKeyViolations != 0xffff {
		t.Error("violations wrapped")
	}
}

// TestTrapIntervalIsBounded: a SubnetTimeOut of 0 is 4 µs, in which no manager answers.
func TestTrapIntervalIsBounded(t *testing.T) {
	ca, _ := newCA()
	managed(ca)
	ca.Port(1).SubnetTimeOut = 0
	now := start
	ca.SetDescription(now, "renamed")
	for range 3 {
		if got := sent(t, ca, now); len(got) != 1 || ca.Deadline() != now.Add(10*time.Millisecond) {
			t.Errorf("%d traps, the next at %v", len(got), ca.Deadline())
		}
		now = ca.Deadline()
	}
}

// TestSMPByQueuePair1 drops what only queue pair 0 may bring.
func TestSMPByQueuePair1(t *testing.T) {
	ca, _ := newCA()
	managed(ca)
	for _, class := range []mad.Class{mad.ClassSubnLID, mad.ClassSubnDR} {
		d := request(mad.MethodSet, mad.AttrPortInfo, 0, nil)
		d.SLID, d.DLID, d.Port, d.SrcQPN, d.DstQPN, d.QKey, d.PKey = 1, 9, 1, ib.QPNGSI, ib.QPNGSI, ib.GSIQKey, ib.DefaultPKey
		d.Data[1] = byte(class)
		if v := ca.Handle(start, &d); v != Done {
			t.Errorf("%v: %v", class, v)
		}
	}
	if ca.Stats.DropBadAddressed != 2 || ca.Port(1).LID != 9 {
		t.Errorf("%+v", ca.Stats)
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// The traps that the agents raise. Of each kind the latest waits to be
// repressed by the manager.
const (
	trapLinkState = iota // 128
	trapLocal            // 144
	trapBadMKey          // 256
	trapBadPKey          // 257
	trapBadQKey          // 258
	numTraps
)

// localDescription is the flag of trap 144 for a new node description.
const localDescription = mad.ChangeNodeDescription

// trap is a trap that was raised and not repressed.
type trap struct {
	pending bool
	notice  mad.Notice
	tid     uint64
	due     mono.Time // when it is sent next
	last    mono.Time // when one of its kind was sent
}

// minInterval bounds how often a trap is sent where a manager set SubnetTimeOut to
// little or nothing: no answer comes within 4 µs.
const minInterval = 10 * time.Millisecond

// interval is how long a trap waits until it is sent again.
func (a *Agent) interval() time.Duration {
	return max(4096*time.Nanosecond<<a.end().info.SubnetTimeOut, minInterval)
}

// raise makes a trap wait to be sent: at once, but no sooner than the interval
// after the last of its kind (IBA volume 1, 14.3.4). One that waits already says
// what is newest, under a transaction identifier of its own: what represses the older one does not repress it.
func (a *Agent) raise(now mono.Time, kind int, n mad.Notice) {
	t := &a.traps[kind]
	a.trapTID++
	t.tid = uint64(a.cfg.TIDs)<<32 | uint64(a.trapTID)
	t.notice = n
	if t.pending {
		return
	}
	t.pending, t.due = true, now
	if !t.last.IsZero() {
		t.due = max(now, t.last.Add(a.interval()))
	}
}

func (a *Agent) producer() mad.Producer { return mad.ProducerOf(a.cfg.Type) }

func (a *Agent) trapLinkState(now mono.Time) {
	a.raise(now, trapLinkState, mad.LinkStateNotice(a.LID()))
}

func (a *Agent) trapLocalChange(now mono.Time, flags uint16) {
	i := &a.end().info
	c := mad.LocalChange{LID: i.LID, Other: flags != 0, CapabilityMask: i.CapabilityMask, Flags: flags, CapabilityMask2: i.CapabilityMask2}
	a.raise(now, trapLocal, c.Notice(a.producer()))
}

func (a *Agent) trapMKey(now mono.Time) {
	m := mad.BadMKeyOf(&a.smp, a.LID())
	a.raise(now, trapBadMKey, m.Notice(a.producer()))
}

// BadPKey tells of n packets that had a P_Key which their queue pair here does
// not have; k is the last of them.
func (a *Agent) BadPKey(now mono.Time, k mad.BadKey, n uint64) {
	a.violation(now, trapBadPKey, mad.TrapBadPKey, &a.end().info.PKeyViolations, k, n)
}

// BadQKey tells of n datagrams with another Q_Key than their queue pair's; k is
// the last of them.
func (a *Agent) BadQKey(now mono.Time, k mad.BadKey, n uint64) {
	a.violation(now, trapBadQKey, mad.TrapBadQKey, &a.end().info.QKeyViolations, k, n)
}

func (a *Agent) violation(now mono.Time, kind int, number mad.TrapNumber, count *uint16, k mad.BadKey, n uint64) {
	*count = uint16(min(uint64(*count)+n, math.MaxUint16))
	a.raise(now, kind, k.Notice(number, a.producer(), a.LID()))
}

// repress ends the trap that the TrapRepress in a.smp answers.
func (a *Agent) repress() {
	s := &a.smp
	if key := a.end().info.MKey; key != 0 && s.MKey != key {
		a.Stats.DropMKey++
		return
	}
	for i := range a.traps {
		if t := &a.traps[i]; t.pending && t.tid == s.TransactionID && s.AttributeID == mad.AttrNotice {
			t.pending = false
		}
	}
}

// Next produces what the agents send on their own: traps to the manager.
// Done means that there is none now; call it until then, at every Deadline.
func (a *Agent) Next(now mono.Time, d *mad.Datagram) Verdict {
	a.expireLease(now)
	i := &a.end().info
	for k := range a.traps {
		t := &a.traps[k]
		if !t.pending || !t.due.Due(now) {
			continue
		}
		if i.LID == 0 || !i.MasterSMLID.IsUnicast() || i.PortPhysicalState != ib.PhysLinkUp {
			// Nobody to tell: who configures the port finds out anyway.
			t.pending = false
			continue
		}
		t.last, t.due = now, now.Add(a.interval())
		a.Stats.Traps++
		*d = mad.Datagram{SLID: i.LID, DLID: i.MasterSMLID, SL: i.MasterSMSL, PKey: ib.DefaultPKey}
		s := mad.SMP{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSubnLID, ClassVersion: mad.ClassVersion,
			Method: mad.MethodTrap, TransactionID: t.tid, AttributeID: mad.AttrNotice}}
		t.notice.Append(s.Data[:0])
		s.Append(d.Data[:0])
		if a.IsMine(d.DLID) {
			d.Port = a.endPort()
			return Deliver
		}
		if v := a.depart(d); v != Done {
			return v
		}
	}
	return Done
}

// Deadline returns when Next has something to do, zero for never.
func (a *Agent) Deadline() mono.Time {
	t := a.lease
	for i := range a.traps {
		if a.traps[i].pending {
			t = mono.Min(t, a.traps[i].due)
		}
	}
	return t
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// The kinds of traps that the agents raise. The latest of each kind is repeated until the manager represses it.
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

// trap is the state of one kind of trap.
type trap struct {
	pending bool // raised and not repressed
	notice  mad.Notice
	tid     uint64
	due     mono.Time // of the next transmission
	last    mono.Time // of the last transmission of this kind
}

// traps are the traps of a node by kind.
type traps struct {
	kinds [numTraps]trap
	tid   uint32 // of the last trap
}

// minInterval is the shortest time between two transmissions of a trap, for a SubnetTimeOut that is too short:
// no answer arrives within 4 µs.
const minInterval = 10 * time.Millisecond

// interval is the time between two transmissions of a trap.
func (a *Agent) interval() time.Duration {
	return max(4096*time.Nanosecond<<a.end().info.SubnetTimeOut, minInterval)
}

// raise raises a trap with the upper half tids of transaction identifiers. It is due at once, but no sooner than
// interval after the last of its kind (IBA volume 1, 14.3.4). A pending trap gets the new notice and a new
// transaction identifier, so that a TrapRepress of the old notice does not repress the new one.
func (t *traps) raise(now mono.Time, kind int, n mad.Notice, tids uint32, interval time.Duration) {
	k := &t.kinds[kind]
	t.tid++
	k.tid = uint64(tids)<<32 | uint64(t.tid)
	k.notice = n
	if k.pending {
		return
	}
	k.pending, k.due = true, now
	if !k.last.IsZero() {
		k.due = max(now, k.last.Add(interval))
	}
}

// repress ends the trap with a transaction identifier.
func (t *traps) repress(tid uint64) {
	for i := range t.kinds {
		if k := &t.kinds[i]; k.pending && k.tid == tid {
			k.pending = false
		}
	}
}

// deadline returns when the next trap is due, zero if none is pending.
func (t *traps) deadline() (at mono.Time) {
	for i := range t.kinds {
		if t.kinds[i].pending {
			at = mono.Min(at, t.kinds[i].due)
		}
	}
	return at
}

func (a *Agent) raise(now mono.Time, kind int, n mad.Notice) {
	a.traps.raise(now, kind, n, a.cfg.TIDs, a.interval())
}

func (c *Config) producer() mad.Producer { return mad.ProducerOf(c.Type) }

func (a *Agent) trapLocalChange(now mono.Time, flags uint16) {
	i := &a.end().info
	c := mad.LocalChange{LID: i.LID, Other: flags != 0, CapabilityMask: i.CapabilityMask, Flags: flags,
		CapabilityMask2: i.CapabilityMask2}
	a.raise(now, trapLocal, c.Notice(a.cfg.producer()))
}

// BadPKey counts n packets with a P_Key that their queue pair at this node does not have, and raises a trap about the
// last of them, k.
func (a *Agent) BadPKey(now mono.Time, k mad.BadKey, n uint64) {
	a.violation(now, trapBadPKey, mad.TrapBadPKey, &a.end().info.PKeyViolations, k, n)
}

// BadQKey counts n datagrams with another Q_Key than their queue pair, and raises a trap about the last of them, k.
func (a *Agent) BadQKey(now mono.Time, k mad.BadKey, n uint64) {
	a.violation(now, trapBadQKey, mad.TrapBadQKey, &a.end().info.QKeyViolations, k, n)
}

func (a *Agent) violation(now mono.Time, kind int, number mad.TrapNumber, count *uint16, k mad.BadKey, n uint64) {
	*count = uint16(min(uint64(*count)+n, math.MaxUint16))
	a.raise(now, kind, k.Notice(number, a.cfg.producer(), a.LID()))
}

// repress ends the trap that the TrapRepress in a.smp answers.
func (a *Agent) repress() {
	s := &a.smp
	if key := a.end().info.MKey; key != 0 && s.MKey != key {
		a.Stats.DropMKey++
		return
	}
	if s.AttributeID == mad.AttrNotice {
		a.traps.repress(s.TransactionID)
	}
}

// Next writes the next trap to the manager to d. Call it at every Deadline, until it returns Done: no trap is due.
func (a *Agent) Next(now mono.Time, d *mad.Datagram) Verdict {
	a.expireLease(now)
	i := &a.end().info
	for k := range a.traps.kinds {
		t := &a.traps.kinds[k]
		if !t.pending || !t.due.Due(now) {
			continue
		}
		if i.LID == 0 || !i.MasterSMLID.IsUnicast() || i.PortPhysicalState != ib.PhysLinkUp {
			// No manager is known. One that configures the port later reads its state anyway.
			t.pending = false
			continue
		}
		t.last, t.due = now, now.Add(a.interval())
		a.Stats.Traps++
		*d = mad.Datagram{SLID: i.LID, DLID: i.MasterSMLID, SL: i.MasterSMSL, PKey: ib.DefaultPKey}
		s := mad.SMP{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSubnLID,
			ClassVersion: mad.ClassVersion,
			Method:       mad.MethodTrap, TransactionID: t.tid, AttributeID: mad.AttrNotice}}
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

// Deadline returns when Next must be called next, zero for never.
func (a *Agent) Deadline() mono.Time { return mono.Min(a.lease, a.traps.deadline()) }

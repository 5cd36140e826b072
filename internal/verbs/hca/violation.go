// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
)

// Violations are packets that queue pairs of a function refused for one kind of
// key.
type Violations struct {
	Count  uint64
	Newest mad.BadKey
}

// violations are those of a function that the lane has not told yet.
type violations struct{ pkeys, qkeys Violations }

// tellPeriod is how often a lane tells of violations: a flood of them is one
// message, not one each.
const tellPeriod = time.Second

// SetViolations gives the lane whom to tell of violations of P_Keys and Q_Keys
// at InfiniBand ports: at once, and then once in a second. tell is called on
// the lane, before which it must not run, and must not wait.
func (l *Lane) SetViolations(tell func(function uint16, pkeys, qkeys Violations)) { l.tell = tell }

// violated notes that a queue pair refused packets of r.
func (l *Lane) violated(now mono.Time, q *QP, r *pkt.Burst, pkeys, qkeys uint64) {
	if l.tell == nil {
		return
	}
	function := q.s.a.num
	if more := int(function) + 1 - len(l.bad); more > 0 {
		l.bad = append(l.bad, make([]violations, more)...)
	}
	b, p := &l.bad[function], r.Path
	k := mad.BadKey{LID1: p.SLID, LID2: p.DLID, SL: p.SL, QP1: r.SrcQPN, QP2: q.num}
	if p.Global {
		k.GID1, k.GID2 = p.SGID, p.DGID
	}
	if pkeys != 0 {
		k.Key = uint32(r.PKey)
		b.pkeys.Count, b.pkeys.Newest = b.pkeys.Count+pkeys, k
	}
	if qkeys != 0 {
		k.Key = uint32(r.QKey)
		b.qkeys.Count, b.qkeys.Newest = b.qkeys.Count+qkeys, k
	}
	if l.tellAt.IsZero() {
		if l.tellAt = now; !l.told.IsZero() {
			l.tellAt = max(now, l.told.Add(tellPeriod))
		}
	}
}

// tellViolations tells of those there are.
func (l *Lane) tellViolations(now mono.Time) {
	l.told, l.tellAt = now, 0
	for f := range l.bad {
		if b := &l.bad[f]; b.pkeys.Count+b.qkeys.Count != 0 {
			l.tell(uint16(f), b.pkeys, b.qkeys)
			*b = violations{}
		}
	}
}

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

// violations are those of a function that the lane has not reported yet.
type violations struct{ pkeys, qkeys Violations }

// reportPeriod is how often a lane reports violations at most: a flood of them is one report.
const reportPeriod = time.Second

// SetViolations sets the function that gets reports of P_Key and Q_Key violations at InfiniBand ports: at once,
// and then once a second. report is called on the lane and must not block. SetViolations is called before the
// lane runs.
func (l *Lane) SetViolations(report func(function uint16, pkeys, qkeys Violations)) {
	l.report = report
}

// countViolation records that a queue pair refused packets of r.
func (l *Lane) countViolation(now mono.Time, q *QP, r *pkt.Burst, pkeys, qkeys uint64) {
	if l.report == nil {
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
	if l.reportAt.IsZero() {
		if l.reportAt = now; !l.reportedAt.IsZero() {
			l.reportAt = max(now, l.reportedAt.Add(reportPeriod))
		}
	}
}

// reportViolations reports what was counted.
func (l *Lane) reportViolations(now mono.Time) {
	l.reportedAt, l.reportAt = now, 0
	for f := range l.bad {
		if b := &l.bad[f]; b.pkeys.Count+b.qkeys.Count != 0 {
			l.report(uint16(f), b.pkeys, b.qkeys)
			*b = violations{}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"time"

	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
)

// checkKey validates the M_Key of the Get or Set in a.smp (IBA volume 1, 14.2.4). If ok the agent executes the
// request; if known its answer may contain the M_Key.
func (a *Agent) checkKey(now mono.Time) (known, ok bool) {
	s, i := &a.smp, &a.end().info
	switch {
	case i.MKey == 0:
		return true, true
	case s.MKey == i.MKey:
		a.lease = 0
		return true, true
	case s.Method == mad.MethodGet && i.MKeyProtectBits <= 1:
		return i.MKeyProtectBits == 0, true
	}
	if i.MKeyViolations != math.MaxUint16 {
		i.MKeyViolations++
	}
	if a.lease.IsZero() && i.MKeyLeasePeriod != 0 {
		a.lease = now.Add(time.Duration(i.MKeyLeasePeriod) * time.Second)
	}
	bad := mad.BadMKeyOf(s, a.LID())
	a.raise(now, trapBadMKey, bad.Notice(a.cfg.producer()))
	return false, false
}

// expireLease ends the protection by an M_Key if no request bore the key during the lease period after a
// violation.
func (a *Agent) expireLease(now mono.Time) {
	if a.lease.Due(now) {
		a.lease = 0
		a.end().info.MKeyProtectBits = 0
	}
}

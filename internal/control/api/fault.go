// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// MaxDelay bounds a fault's delay, so that the delayed packets stay bounded.
const MaxDelay = 10 * time.Second

// Validate reports everything that is wrong with s, joined.
func (s FaultSpec) Validate() error {
	var errs []error
	some := s.DelayNS != 0
	for _, p := range []struct {
		name  string
		value float64
	}{{"drop", s.Drop}, {"duplicate", s.Duplicate}, {"reorder", s.Reorder}, {"corrupt", s.Corrupt}} {
		if !(p.value >= 0 && p.value <= 100) { // also refuses NaN
			errs = append(errs, fmt.Errorf("%s must be 0 to 100 percent, not %v", p.name, p.value))
		}
		some = some || p.value != 0
	}
	if s.DelayNS < 0 || s.DelayNS > MaxDelay {
		errs = append(errs, fmt.Errorf("delay must be 0s to %v, not %v", MaxDelay, s.DelayNS))
	}
	if s.Peer != "" {
		if _, err := netip.ParseAddr(s.Peer); err != nil {
			errs = append(errs, fmt.Errorf("peer must be an IP address, not %q", s.Peer))
		}
	}
	if s.Link != "" && s.Link != LinkRoCE && s.Link != LinkTrunk {
		errs = append(errs, fmt.Errorf("link must be %s or %s, not %q", LinkRoCE, LinkTrunk, s.Link))
	}
	if !some {
		errs = append(errs, errors.New("it does nothing: give at least one of drop, duplicate, reorder, corrupt and delay"))
	}
	return errors.Join(errs...)
}

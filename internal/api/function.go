// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"regexp"
)

// Bounds of weights and levels.
const (
	MaxWeight = 1000
	Levels    = 16
)

// functionName is what a device may be called: also a file name, and what verbs
// has room for.
var functionName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

// Validate reports all that is wrong with the request.
func (f *NewFunction) Validate() error {
	var err error
	if !functionName.MatchString(f.Name) {
		err = fmt.Errorf("the name must be a letter and up to 31 letters, digits or underscores, all lower case, not %q", f.Name)
	}
	return errors.Join(err, f.FunctionChange.Validate())
}

// Validate reports all that is wrong with the change.
func (c *FunctionChange) Validate() error {
	var errs []error
	weight := func(what string, w int) {
		if w < 1 || w > MaxWeight {
			errs = append(errs, fmt.Errorf("%s must be 1 to %d, not %d", what, MaxWeight, w))
		}
	}
	if c.Weight != 0 {
		weight("the weight", c.Weight)
	}
	for level, w := range c.QoS {
		if level < 0 || level >= Levels {
			errs = append(errs, fmt.Errorf("a QoS level must be 0 to %d, not %d", Levels-1, level))
			continue
		}
		weight(fmt.Sprintf("the weight of QoS level %d", level), w)
	}
	for _, q := range []struct {
		name string
		v    int64
	}{{"sessions", int64(c.Quotas.Sessions)}, {"pd", int64(c.Quotas.PDs)}, {"mr", int64(c.Quotas.MRs)}, {"cq", int64(c.Quotas.CQs)},
		{"qp", int64(c.Quotas.QPs)}, {"srq", int64(c.Quotas.SRQs)}, {"ah", int64(c.Quotas.AHs)}, {"memory", c.Quotas.MemoryBytes}} {
		if q.v < 0 {
			errs = append(errs, fmt.Errorf("the quota %s must not be negative", q.name))
		}
	}
	return errors.Join(errs...)
}

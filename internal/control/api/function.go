// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
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
	return errors.Join(err, f.segment(), f.FunctionChange.Validate())
}

// Segments in virtual Ethernet switches: SegmentVESW + ":" + name, or by itself.
const SegmentVESW = "vesw"

// InVESW reports whether a segment is in a virtual Ethernet switch.
func InVESW(segment string) bool { return strings.HasPrefix(segment, SegmentVESW) }

// MaxAddrs bounds the addresses of an Ethernet port, and its routes.
const MaxAddrs = 16

// segment reports what is wrong with the requested port.
func (f *NewFunction) segment() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	name, inVESW := strings.CutPrefix(f.Segment, SegmentVESW)
	switch {
	case f.Segment == "":
		if len(f.Addrs)+len(f.Routes) > 0 {
			bad("addresses and routes are for an Ethernet port: add --segment vesw:NAME")
		}
		return errors.Join(errs...)
	case !inVESW, name != "" && (name[0] != ':' || len(name) == 1):
		bad("the segment of a device that is added is vesw:NAME (or vesw), not %q", f.Segment)
	}
	if len(f.Addrs) > MaxAddrs || len(f.Routes) > MaxAddrs {
		bad("%d addresses and %d routes at most", MaxAddrs, MaxAddrs)
	}
	for i, s := range f.Addrs {
		p, err := netip.ParsePrefix(s)
		switch a := p.Addr(); {
		case err != nil:
			bad("an address has a prefix length, such as 10.1.0.1/24, unlike %q", s)
		case a.Is4In6() || a.IsMulticast() || a.IsUnspecified() || a.IsLoopback() ||
			a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			bad("%s is not the address of a station", a)
		case slices.ContainsFunc(f.Addrs[:i], func(o string) bool {
			q,
				err := netip.ParsePrefix(o)
			return err == nil && q.Addr() == a
		}):
			bad("the address %s is there twice", a)
		}
	}
	for _, s := range f.Routes {
		to, via, _ := strings.Cut(s, "=")
		p, err := netip.ParsePrefix(to)
		gateway, e := netip.ParseAddr(via)
		switch {
		case err != nil || e != nil:
			bad("a route is PREFIX=GATEWAY, not %q", s)
		case p.Addr().BitLen() != gateway.BitLen() || p.Addr().Is4In6() || gateway.Is4In6() || gateway.Zone() != "":
			bad("the gateway of a route is an address of its family, unlike %q", s)
		}
	}
	return errors.Join(errs...)
}

// VESW is the virtual Ethernet switch that an Ethernet port is to be in, empty where it does not matter.
func (f *NewFunction) VESW() string {
	_, name, _ := strings.Cut(f.Segment, ":")
	return name
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
	}{{"sessions", int64(c.Quotas.Sessions)}, {"pd", int64(c.Quotas.PDs)}, {"mr", int64(c.Quotas.MRs)}, {"cq",
		int64(c.Quotas.CQs)},
		{"qp", int64(c.Quotas.QPs)}, {"srq", int64(c.Quotas.SRQs)}, {"ah", int64(c.Quotas.AHs)}, {"memory",
			c.Quotas.MemoryBytes}} {
		if q.v < 0 {
			errs = append(errs, fmt.Errorf("the quota %s must not be negative", q.name))
		}
	}
	return errors.Join(errs...)
}

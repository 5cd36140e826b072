// SPDX-License-Identifier: Apache-2.0

// Package describe has the text forms of values that several rooms of a node show in the control interface.
//
// What comes in: values of the fabric, and text of requests. What goes out: fields of package api, and its errors.
// It is called by the rooms' operations, and never reads any state.
package describe

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"weft/internal/control/api"
	"weft/internal/proto/ib"
	"weft/internal/proto/problem"
)

// HostDrained is the reason for which an IP link or a virtual port has no interface on a host that is drained by force.
const HostDrained = "the host is drained"

// PKey is the text of a P_Key.
func PKey(k ib.PKey) string { return fmt.Sprintf("0x%04x", uint16(k)) }

// ParsePKey reads the P_Key of a full member, as a number with or without the membership bit.
func ParsePKey(s string) (ib.PKey, error) {
	v, err := strconv.ParseUint(s, 0, 16)
	if err != nil || v&0x7fff == 0 {
		return 0, fmt.Errorf("a P_Key is a number of 0x0001 to 0x7fff, with or without the bit 0x8000, not %q", s)
	}
	return ib.PKey(v) | 0x8000, nil
}

// MTU is an MTU in octets, 0 where it is not valid.
func MTU(m ib.MTU) int {
	if !m.Valid() {
		return 0
	}
	return m.Bytes()
}

// Gbps is a rate in Gb/s, 0 where it is not valid.
func Gbps(r ib.Rate) float64 {
	if !r.Valid() {
		return 0
	}
	return float64(r.Tenths()) / 10
}

// Invalid is the error of a request that cannot be granted as it is.
func Invalid(fix, format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Why: fmt.Sprintf(format, args...), Fix: fix}
}

// NotFound is the error of a request for something that is not there.
func NotFound(fix, format string, args ...any) error {
	return &api.Error{Code: api.CodeNotFound, Why: fmt.Sprintf(format, args...), Fix: fix}
}

// Problem is the error of a request that failed for a reason: with the reason's fix, or else with another one.
func Problem(code api.Code, what string, err error, fix string) error {
	p := problem.Of("", err)
	return &api.Error{Code: code, What: what, Why: problem.Text(p.What, p.Why, ""), Fix: cmp.Or(p.Fix, fix)}
}

// ParseGUID reads a GUID as tools print it: with colons, or after 0x.
func ParseGUID(s string) (ib.GUID, bool) {
	digits, hex := strings.CutPrefix(s, "0x")
	if !hex {
		digits = strings.ReplaceAll(s, ":", "")
		if digits == s {
			return 0, false
		}
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	return ib.GUID(v), err == nil && v != 0
}

// PortState is the name that verbs has for a port state.
func PortState(s ib.PortState) string {
	switch s {
	case ib.PortInit:
		return "INIT"
	case ib.PortArmed:
		return "ARMED"
	case ib.PortActive:
		return "ACTIVE"
	}
	return "DOWN"
}

// PhysState is the name that verbs has for a physical state.
func PhysState(s ib.PhysState) string {
	switch s {
	case ib.PhysPolling:
		return "POLLING"
	case ib.PhysLinkUp:
		return "LINK_UP"
	}
	return "DISABLED"
}

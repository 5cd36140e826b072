// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"

	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Errors of Modify. Every one of them is an ErrInvalid to errors.Is, except
// ErrUnsupported.
var (
	ErrInvalid     = errors.New("invalid queue pair attributes")
	ErrTransition  = fmt.Errorf("%w: no such transition", ErrInvalid)
	ErrMask        = fmt.Errorf("%w: wrong set of attributes", ErrInvalid)
	ErrValue       = fmt.Errorf("%w: value out of range", ErrInvalid)
	ErrDraining    = fmt.Errorf("%w: send queue is draining", ErrInvalid)
	ErrUnsupported = errors.New("path migration is not supported")
)

// attrSet is what a transition demands and allows (IBA volume 1, 10.3 and
// table 97).
type attrSet struct {
	legal              bool
	required, optional ib.AttrMask
}

const (
	setAccess = ib.AttrAccessFlags
	setAlt    = ib.AttrAltPath
	setCur    = ib.AttrCurState
	setKey    = ib.AttrPKeyIndex
	setQKey   = ib.AttrQKey
	setMig    = ib.AttrPathMigState
	setRNR    = ib.AttrMinRNRTimer
	setPort   = ib.AttrPort
)

var transitions = buildTransitions()

func buildTransitions() (t [7][7][5]attrSet) {
	set := func(from, to ib.QPState, req, opt ib.AttrMask, types ...ib.QPType) {
		for _, qt := range types {
			t[from][to][qt] = attrSet{true, req, opt}
		}
	}
	special := []ib.QPType{ib.SMI, ib.GSI}
	datagram := []ib.QPType{ib.SMI, ib.GSI, ib.UD}
	all := []ib.QPType{ib.SMI, ib.GSI, ib.RC, ib.UC, ib.UD}
	for s := ib.Reset; s <= ib.Err; s++ {
		set(s, ib.Reset, 0, 0, all...)
		if s != ib.Reset {
			set(s, ib.Err, 0, 0, all...)
		}
	}
	set(ib.Reset, ib.Init, setKey|setPort|setAccess, 0, ib.RC, ib.UC)
	set(ib.Reset, ib.Init, setKey|setPort|setQKey, 0, ib.UD)
	set(ib.Reset, ib.Init, setKey|setQKey, 0, special...)
	set(ib.Init, ib.Init, 0, setKey|setPort|setAccess, ib.RC, ib.UC)
	set(ib.Init, ib.Init, 0, setKey|setPort|setQKey, ib.UD)
	set(ib.Init, ib.Init, 0, setKey|setQKey, special...)
	conn := ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
	set(ib.Init, ib.RTR, conn|ib.AttrMaxDestRdAtomic|setRNR, setAlt|setAccess|setKey, ib.RC)
	set(ib.Init, ib.RTR, conn, setAlt|setAccess|setKey, ib.UC)
	set(ib.Init, ib.RTR, 0, setKey|setQKey, datagram...)
	set(ib.RTR, ib.RTS, ib.AttrTimeout|ib.AttrRetryCnt|ib.AttrRNRRetry|ib.AttrSQPSN|ib.AttrMaxQPRdAtomic,
		setCur|setAlt|setAccess|setRNR|setMig, ib.RC)
	set(ib.RTR, ib.RTS, ib.AttrSQPSN, setCur|setAlt|setAccess|setMig, ib.UC)
	set(ib.RTR, ib.RTS, ib.AttrSQPSN, setCur|setQKey, datagram...)
	for _, from := range []ib.QPState{ib.RTS, ib.SQD} {
		set(from, ib.RTS, 0, setCur|setAccess|setAlt|setMig|setRNR, ib.RC)
		set(from, ib.RTS, 0, setCur|setAccess|setAlt|setMig, ib.UC)
		set(from, ib.RTS, 0, setCur|setQKey, datagram...)
	}
	set(ib.RTS, ib.SQD, 0, ib.AttrEnSQDAsyncNotify, all...)
	set(ib.SQD, ib.SQD, 0, setPort|ib.AttrAV|ib.AttrTimeout|ib.AttrRetryCnt|ib.AttrRNRRetry|ib.AttrMaxQPRdAtomic|
		ib.AttrMaxDestRdAtomic|setAlt|setAccess|setKey|setRNR|setMig, ib.RC)
	set(ib.SQD, ib.SQD, 0, ib.AttrAV|setAlt|setAccess|setKey|setMig, ib.UC)
	set(ib.SQD, ib.SQD, 0, setKey|setQKey, datagram...)
	set(ib.SQE, ib.RTS, 0, setCur|setQKey, datagram...)
	set(ib.SQE, ib.RTS, 0, setCur|setAccess, ib.UC)
	return t
}

// Modify changes attributes and state as verbs' modify_qp: everything is checked first, and nothing changes
// where an error is returned. a.Path stands for the address vector; sequence numbers are cut to 24 bits, as
// adapters do. It is not called between Handle and Commit.
func (q *QP) Modify(now mono.Time, a *Attr, mask ib.AttrMask) error {
	from, to := q.attr.State, q.attr.State
	if mask&ib.AttrState != 0 {
		to = a.State
	}
	if err := q.checkTransition(a, mask, from, to); err != nil {
		return err
	}
	if err := q.checkValues(a, mask); err != nil {
		return err
	}
	switch to {
	case ib.Reset:
		q.discard()
		q.reset()
		return nil
	case ib.Err:
		q.enterErr(false)
		q.rsp.answers.clear()
		q.deliver()
		return nil
	}
	q.apply(a, mask)
	q.enter(from, to, mask)
	if invariants {
		q.verify()
	}
	return nil
}

func (q *QP) checkTransition(a *Attr, mask ib.AttrMask, from, to ib.QPState) error {
	if to > ib.Err {
		return fmt.Errorf("modify %v queue pair to state %d: %w", q.cfg.Type, to, ErrTransition)
	}
	set := &transitions[from][to][q.cfg.Type]
	if !set.legal {
		return fmt.Errorf("modify %v queue pair from %v to %v: %w", q.cfg.Type, from, to, ErrTransition)
	}
	m := mask &^ ib.AttrState
	if missing := set.required &^ m; missing != 0 {
		return fmt.Errorf("modify %v queue pair from %v to %v: attributes %#x are missing: %w", q.cfg.Type, from, to,
			uint32(missing), ErrMask)
	}
	if extra := m &^ (set.required | set.optional); extra != 0 {
		return fmt.Errorf("modify %v queue pair from %v to %v: attributes %#x do not belong here: %w", q.cfg.Type,
			from, to, uint32(extra), ErrMask)
	}
	if mask&ib.AttrCurState != 0 {
		switch a.CurState {
		case ib.RTR, ib.RTS, ib.SQD, ib.SQE:
		default:
			return fmt.Errorf("modify %v queue pair: current state cannot be stated as %v: %w", q.cfg.Type,
				a.CurState, ErrValue)
		}
		if a.CurState != from {
			return fmt.Errorf("modify %v queue pair: it is in %v, not in %v: %w", q.cfg.Type, from, a.CurState,
				ErrTransition)
		}
	}
	if from == ib.SQD && (to == ib.RTS || to == ib.SQD) && q.req.draining {
		return fmt.Errorf("modify %v queue pair from %v to %v: %w", q.cfg.Type, from, to, ErrDraining)
	}
	return nil
}

func (q *QP) checkValues(a *Attr, mask ib.AttrMask) error {
	for _, c := range []struct {
		bit  ib.AttrMask
		ok   bool
		name string
	}{
		{ib.AttrPKeyIndex, int(a.PKeyIndex) < len(q.cfg.PKeys) &&
			q.cfg.PKeys[min(int(a.PKeyIndex), len(q.cfg.PKeys)-1)]&0x7fff != 0, "pkey_index"},
		{ib.AttrPort, a.Port == 1, "port_num"},
		{ib.AttrAV, a.Path != nil, "ah_attr"},
		{ib.AttrPathMTU, a.PathMTU.Valid() && a.PathMTU <= q.cfg.PortMTU, "path_mtu"},
		{ib.AttrTimeout, a.Timeout <= 31, "timeout"},
		{ib.AttrRetryCnt, a.RetryCnt <= 7, "retry_cnt"},
		{ib.AttrRNRRetry, a.RNRRetry <= 7, "rnr_retry"},
		{ib.AttrMaxQPRdAtomic, a.MaxRdAtomic <= q.cfg.MaxRdAtomic, "max_rd_atomic"},
		{ib.AttrMaxDestRdAtomic, a.MaxDestRdAtomic <= q.cfg.MaxRdAtomic, "max_dest_rd_atomic"},
		{ib.AttrMinRNRTimer, a.MinRNRTimer <= 31, "min_rnr_timer"},
		{ib.AttrDestQPN, a.DestQPN < ib.QPNMask, "dest_qp_num"},
	} {
		if mask&c.bit != 0 && !c.ok {
			return fmt.Errorf("modify %v queue pair: %s: %w", q.cfg.Type, c.name, ErrValue)
		}
	}
	// Only the state "migrated" (0) exists here.
	if mask&ib.AttrAltPath != 0 || mask&ib.AttrPathMigState != 0 && a.PathMigState != 0 {
		return fmt.Errorf("modify %v queue pair: %w", q.cfg.Type, ErrUnsupported)
	}
	return nil
}

func (q *QP) apply(a *Attr, mask ib.AttrMask) {
	t := &q.attr
	for _, c := range []struct {
		bit ib.AttrMask
		set func()
	}{
		{ib.AttrEnSQDAsyncNotify, func() { t.EnSQDAsyncNotify = a.EnSQDAsyncNotify }},
		{ib.AttrAccessFlags, func() { t.Access = a.Access }},
		{ib.AttrPKeyIndex, func() { t.PKeyIndex = a.PKeyIndex }},
		{ib.AttrPort, func() { t.Port = a.Port }},
		{ib.AttrAV, func() { t.Path = a.Path }},
		{ib.AttrPathMTU, func() { t.PathMTU = a.PathMTU; q.mtu = uint32(a.PathMTU.Bytes()) }},
		{ib.AttrTimeout, func() { t.Timeout = a.Timeout }},
		{ib.AttrRetryCnt, func() { t.RetryCnt = a.RetryCnt; q.req.retries = a.RetryCnt }},
		{ib.AttrRNRRetry, func() { t.RNRRetry = a.RNRRetry; q.req.rnrRetries = a.RNRRetry }},
		{ib.AttrRQPSN, func() { t.RQPSN = a.RQPSN & ib.PSNMask; q.rsp.ePSN, q.rsp.safePSN = t.RQPSN, t.RQPSN }},
		{ib.AttrSQPSN, func() {
			t.SQPSN = a.SQPSN & ib.PSNMask
			q.req.una, q.req.txPSN, q.req.maxPSN = t.SQPSN, t.SQPSN, t.SQPSN
		}},
		{ib.AttrMaxQPRdAtomic, func() { t.MaxRdAtomic = a.MaxRdAtomic }},
		{ib.AttrMaxDestRdAtomic, func() { t.MaxDestRdAtomic = a.MaxDestRdAtomic }},
		{ib.AttrMinRNRTimer, func() { t.MinRNRTimer = a.MinRNRTimer }},
		{ib.AttrDestQPN, func() { t.DestQPN = a.DestQPN }},
	} {
		if mask&c.bit != 0 {
			c.set()
		}
	}
	// GSI keeps its well-known key whatever the caller states.
	if mask&ib.AttrQKey != 0 && q.cfg.Type != ib.GSI {
		t.QKey = a.QKey
	}
}

// enter takes the actions of a state change.
func (q *QP) enter(from, to ib.QPState, mask ib.AttrMask) {
	q.attr.State = to
	s := &q.req
	s.stalled = !s.timers.rnrAt.IsZero()
	if mask&ib.AttrAV != 0 {
		s.openWindow()
	}
	if to == ib.SQD && from == ib.RTS {
		if mask&ib.AttrEnSQDAsyncNotify == 0 {
			q.attr.EnSQDAsyncNotify = false
		}
		s.draining = true
		q.checkDrained()
	}
}

// checkDrained ends SQD's draining once every started message is done.
func (q *QP) checkDrained() {
	s := &q.req
	if s.draining && s.head == s.fresh {
		s.draining = false
		if q.attr.EnSQDAsyncNotify {
			q.queues.Event(ib.EventSQDrained)
		}
	}
}

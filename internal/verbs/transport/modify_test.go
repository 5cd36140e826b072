// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"weft/internal/proto/ib"
)

// transitionTable is IBA volume 1, table 97 (with the attribute names of
// verbs) written out once more: transition, types, required | optional.
const transitionTable = `
RESET INIT  RC,UC       PKEY_INDEX PORT ACCESS_FLAGS |
RESET INIT  UD          PKEY_INDEX PORT QKEY |
RESET INIT  SMI,GSI     PKEY_INDEX QKEY |
INIT  INIT  RC,UC       | PKEY_INDEX PORT ACCESS_FLAGS
INIT  INIT  UD          | PKEY_INDEX PORT QKEY
INIT  INIT  SMI,GSI     | PKEY_INDEX QKEY
INIT  RTR   RC          AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ALT_PATH ACCESS_FLAGS PKEY_INDEX
INIT  RTR   UC          AV PATH_MTU DEST_QPN RQ_PSN | ALT_PATH ACCESS_FLAGS PKEY_INDEX
INIT  RTR   UD,SMI,GSI  | PKEY_INDEX QKEY
RTR   RTS   RC          TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
RTR   RTS   UC          SQ_PSN | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
RTR   RTS   UD,SMI,GSI  SQ_PSN | CUR_STATE QKEY
RTS   RTS   RC          | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
RTS   RTS   UC          | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
RTS   RTS   UD,SMI,GSI  | CUR_STATE QKEY
RTS   SQD   RC,UC,UD,SMI,GSI | EN_SQD_ASYNC_NOTIFY
SQD   RTS   RC          | CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
SQD   RTS   UC          | CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE
SQD   RTS   UD,SMI,GSI  | CUR_STATE QKEY
SQD   SQD   RC          | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
SQD   SQD   UC          | AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
SQD   SQD   UD,SMI,GSI  | PKEY_INDEX QKEY
SQE   RTS   UD,SMI,GSI  | CUR_STATE QKEY
SQE   RTS   UC          | CUR_STATE ACCESS_FLAGS
`

var bitNames = []string{"STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY",
	"AV", "PATH_MTU",
	"TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC",
	"PATH_MIG_STATE", "CAP", "DEST_QPN"}

func maskOf(t *testing.T, names string) (m ib.AttrMask) {
	for _, n := range strings.Fields(names) {
		found := false
		for i, b := range bitNames {
			if b == n {
				m |= 1 << i
				found = true
			}
		}
		if !found {
			t.Fatalf("no attribute %s", n)
		}
	}
	return m
}

type transition struct {
	from, to ib.QPState
	typ      ib.QPType
}

func wantTransitions(t *testing.T) map[transition][2]ib.AttrMask {
	states := map[string]ib.QPState{}
	for s := ib.Reset; s <= ib.Err; s++ {
		states[s.String()] = s
	}
	types := map[string]ib.QPType{"RC": ib.RC, "UC": ib.UC, "UD": ib.UD, "SMI": ib.SMI, "GSI": ib.GSI}
	want := map[transition][2]ib.AttrMask{}
	for _, typ := range types {
		for s := ib.Reset; s <= ib.Err; s++ {
			want[transition{s, ib.Reset, typ}] = [2]ib.AttrMask{}
			if s != ib.Reset {
				want[transition{s, ib.Err, typ}] = [2]ib.AttrMask{}
			}
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(transitionTable), "\n") {
		f := strings.Fields(line)
		rest := line[strings.Index(line, f[2])+len(f[2]):]
		req, opt, _ := strings.Cut(rest, "|")
		for _, n := range strings.Split(f[2], ",") {
			want[transition{states[f[0]], states[f[1]], types[n]}] = [2]ib.AttrMask{maskOf(t, req), maskOf(t, opt)}
		}
	}
	return want
}

func validAttr(from, to ib.QPState) Attr {
	return Attr{State: to, CurState: from, Port: 1, Path: &ib.Path{}, PathMTU: ib.MTU1024, Timeout: 31, RetryCnt: 7,
		RNRRetry: 7,
		RQPSN:    0x1ffffff, SQPSN: 0x1ffffff, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MinRNRTimer: 31, DestQPN: 0xfffffe, QKey: 5}
}

// TestModifyMask tries every transition of every type with the required
// attributes, each of them left out, each other bit added, and random sets.
func TestModifyMask(t *testing.T) {
	want := wantTransitions(t)
	rng := rand.New(rand.NewPCG(1, 2))
	const bits = 21
	for typ := ib.SMI; typ <= ib.UD; typ++ {
		for from := ib.Reset; from <= ib.Err; from++ {
			for to := ib.Reset; to <= ib.Err; to++ {
				set, legal := want[transition{from, to, typ}]
				masks := []ib.AttrMask{0, set[0], set[0] | set[1]}
				for i := range bits {
					masks = append(masks, set[0]&^(1<<i), set[0]|1<<i, 1<<i)
				}
				for range 60 {
					m := ib.AttrMask(rng.Uint32N(1 << bits))
					masks = append(masks, m, m&(set[0]|set[1]), set[0]|m&(set[0]|set[1]))
				}
				for _, m := range masks {
					m &^= ib.AttrState
					if from != to || m&1 == 0 {
						m |= ib.AttrState
					}
					tryModify(t, typ, from, to, m, legal, set)
				}
			}
		}
	}
}

func tryModify(t *testing.T, typ ib.QPType, from, to ib.QPState, m ib.AttrMask, legal bool, set [2]ib.AttrMask) {
	t.Helper()
	s := &side{log: t.Logf}
	q := New(&Config{Type: typ, QPN: 17, PortMTU: ib.MTU4096, PKeys: []ib.PKey{ib.DefaultPKey}, MaxRdAtomic: 4}, s, s)
	q.attr.State, q.attr.Path = from, &ib.Path{}
	q.req.openWindow()
	a := validAttr(from, to)
	var before, after Attr
	q.Query(&before)
	err := q.Modify(1, &a, m)
	q.Query(&after)
	bare := m &^ ib.AttrState
	cur := m&ib.AttrCurState == 0 || from >= ib.RTR && from <= ib.SQE
	var want error
	switch {
	case !legal:
		want = ErrTransition
	case set[0]&^bare != 0, bare&^(set[0]|set[1]) != 0:
		want = ErrMask
	case !cur:
		want = ErrValue
	case m&ib.AttrAltPath != 0:
		want = ErrUnsupported
	}
	if !errors.Is(err, want) {
		t.Fatalf("%v %v→%v mask %#x: got %v, want %v", typ, from, to, uint32(m), err, want)
	}
	if want != nil && want != ErrUnsupported && !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v is not ErrInvalid", err)
	}
	switch {
	case err != nil && before != after:
		t.Fatalf("%v %v→%v mask %#x: refused, and yet changed\n%+v\n%+v", typ, from, to, uint32(m), before, after)
	case err == nil && m&ib.AttrSQPSN != 0 && after.SQPSN != 0xffffff:
		t.Fatalf("SQ PSN %#x", after.SQPSN)
	case err == nil && after.State != to:
		t.Fatalf("%v %v→%v mask %#x: is in %v", typ, from, to, uint32(m), after.State)
	}
}

// TestModifyValues sets each attribute out of range, one at a time.
func TestModifyValues(t *testing.T) {
	init := transition{ib.Reset, ib.Init, ib.RC}
	rtr := transition{ib.Init, ib.RTR, ib.RC}
	rts := transition{ib.RTR, ib.RTS, ib.RC}
	for _, c := range []struct {
		name string
		tr   transition
		add  ib.AttrMask
		bad  func(a *Attr)
		err  error
	}{
		{"pkey_index", init, 0, func(a *Attr) { a.PKeyIndex = 2 }, ErrValue},
		{"pkey_index of an empty entry", init, 0, func(a *Attr) { a.PKeyIndex = 1 }, ErrValue},
		{"port 0", init, 0, func(a *Attr) { a.Port = 0 }, ErrValue},
		{"port 2", init, 0, func(a *Attr) { a.Port = 2 }, ErrValue},
		{"no path", rtr, 0, func(a *Attr) { a.Path = nil }, ErrValue},
		{"mtu 0", rtr, 0, func(a *Attr) { a.PathMTU = 0 }, ErrValue},
		{"mtu 6", rtr, 0, func(a *Attr) { a.PathMTU = 6 }, ErrValue},
		{"mtu above the port's", rtr, 0, func(a *Attr) { a.PathMTU = ib.MTU4096 }, ErrValue},
		{"dest_qp_num multicast", rtr, 0, func(a *Attr) { a.DestQPN = ib.QPNMulticast }, ErrValue},
		{"dest_qp_num", rtr, 0, func(a *Attr) { a.DestQPN = 1 << 24 }, ErrValue},
		{"max_dest_rd_atomic", rtr, 0, func(a *Attr) { a.MaxDestRdAtomic = 5 }, ErrValue},
		{"min_rnr_timer", rtr, 0, func(a *Attr) { a.MinRNRTimer = 32 }, ErrValue},
		{"timeout", rts, 0, func(a *Attr) { a.Timeout = 32 }, ErrValue},
		{"retry_cnt", rts, 0, func(a *Attr) { a.RetryCnt = 8 }, ErrValue},
		{"rnr_retry", rts, 0, func(a *Attr) { a.RNRRetry = 8 }, ErrValue},
		{"max_rd_atomic", rts, 0, func(a *Attr) { a.MaxRdAtomic = 5 }, ErrValue},
		{"cur_state RESET", rts, ib.AttrCurState, func(a *Attr) { a.CurState = ib.Reset }, ErrValue},
		{"cur_state wrong", rts, ib.AttrCurState, func(a *Attr) { a.CurState = ib.SQD }, ErrTransition},
		{"path_mig_state", rts, ib.AttrPathMigState, func(a *Attr) { a.PathMigState = 1 }, ErrUnsupported},
		{"state", rts, 0, func(a *Attr) { a.State = 7 }, ErrTransition},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := testConfig(ib.RC, 17)
			cfg.PKeys, cfg.PortMTU = []ib.PKey{ib.DefaultPKey, 0}, ib.MTU2048
			s := newSide("X", cfg, 64, t.Logf)
			s.q.attr.State = c.tr.from
			a := validAttr(c.tr.from, c.tr.to)
			mask := wantTransitions(t)[c.tr][0] | ib.AttrState | c.add
			before := s.q.attr
			c.bad(&a)
			if err := s.q.Modify(1, &a, mask); !errors.Is(err, c.err) {
				t.Fatalf("got %v, want %v", err, c.err)
			}
			if s.q.attr != before {
				t.Fatal("refused, and yet changed")
			}
			good := validAttr(c.tr.from, c.tr.to)
			if err := s.q.Modify(1, &good, mask); err != nil {
				t.Fatalf("valid values: %v", err)
			}
		})
	}
}

// TestModifyKeepsGSIKey: the queue key of QP1 cannot be changed.
func TestModifyKeepsGSIKey(t *testing.T) {
	s := newSide("X", testConfig(ib.GSI, 1), 64, t.Logf)
	if err := s.q.Modify(1, &Attr{State: ib.Init, QKey: 7}, ib.AttrState|ib.AttrPKeyIndex|ib.AttrQKey); err != nil {
		t.Fatal(err)
	}
	var a Attr
	if s.q.Query(&a); a.QKey != ib.GSIQKey {
		t.Fatalf("Q_Key %#x", uint32(a.QKey))
	}
}

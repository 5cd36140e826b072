// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/transport"
)

// PDInfo, MRInfo, … describe the objects of a session for people; keys are
// left out, they are secrets of their owner.
type (
	// PDInfo is a protection domain.
	PDInfo struct {
		PDN   uint32
		Users int
	}
	// MRInfo is a memory region.
	MRInfo struct {
		MRN, PDN   uint32
		Start, Len uint64
		Access     ib.Access
		Space      mem.Space // nil: the key means nothing
		Windows    int       // bound to it
	}
	// MWInfo is a memory window.
	MWInfo struct {
		MWN, PDN   uint32
		Type       int
		MRN        uint32 // bound to; 0: to nothing
		Start, Len uint64
		Access     ib.Access
	}
	// CQInfo is a completion queue.
	CQInfo struct {
		CQN     uint32
		Depth   uint32
		Users   int
		Overrun bool
	}
	// QPInfo is a queue pair.
	QPInfo struct {
		Num            ib.QPN
		Type           ib.QPType
		PDN            uint32
		SendCQ, RecvCQ uint32
		SRQN           uint32
		Attr           transport.Attr
		Counters       transport.Counters
	}
	// SRQInfo is a shared receive queue.
	SRQInfo struct {
		SRQN, PDN    uint32
		MaxWR, Limit uint32
		Outstanding  uint32
	}
	// AHInfo is an address handle.
	AHInfo struct {
		AHN, PDN uint32
		DGID     ib.GID
	}
)

// Info lists the objects of a session.
type Info struct {
	PDs  []PDInfo
	MRs  []MRInfo
	MWs  []MWInfo
	CQs  []CQInfo
	QPs  []QPInfo
	SRQs []SRQInfo
	AHs  []AHInfo
}

// Objects returns the number of objects of all kinds; a closed session has none.
func (s *Session) Objects() int {
	if s.closed {
		return 0
	}
	return len(s.pds.m) + len(s.mrs.m) + len(s.mws.m) + len(s.cqs.m) + len(s.qps.m) + len(s.ahs.m)
}

// Inspect describes every object of the session, in no order; a closed one has
// none.
func (s *Session) Inspect() (i Info) {
	if s.closed {
		return i
	}
	for h, p := range s.pds.m {
		i.PDs = append(i.PDs, PDInfo{h, p.refs})
	}
	for h, m := range s.mrs.m {
		r := m.region
		info := MRInfo{MRN: h, PDN: m.pd.handle, Windows: m.windows}
		if !r.Revoked() {
			info.Start, info.Len, info.Access, info.Space = r.Start, r.Len, r.Access, r.Space
		}
		i.MRs = append(i.MRs, info)
	}
	for h, w := range s.mws.m {
		info := MWInfo{MWN: h, PDN: w.pd.handle, Type: 1}
		if w.kind == window2 {
			info.Type = 2
		}
		if r := w.region; w.on != nil {
			info.MRN, info.Start, info.Len, info.Access = w.on.handle, r.Start, r.Len, r.Access
		}
		i.MWs = append(i.MWs, info)
	}
	for h, c := range s.cqs.m {
		i.CQs = append(i.CQs, CQInfo{h, c.depth, c.refs, c.failed})
	}
	for h, a := range s.ahs.m {
		i.AHs = append(i.AHs, AHInfo{h, a.pd.handle, a.path.DGID})
	}
	for h, q := range s.qps.m {
		if q.t == nil {
			i.SRQs = append(i.SRQs, SRQInfo{h, q.pd.handle, q.cfg.Cap.MaxRecvWR, q.limit, q.Outstanding()})
			continue
		}
		info := QPInfo{Num: q.num, Type: q.cfg.Type, PDN: q.pd.handle, SendCQ: q.sendCQ.handle, RecvCQ: q.recvCQ.handle,
			Counters: *q.t.Counters()}
		if q.srq != nil {
			info.SRQN = q.srq.slot
		}
		q.t.Query(&info.Attr)
		i.QPs = append(i.QPs, info)
	}
	return i
}

// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"encoding/binary"
	"syscall"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func (d *Device) queryDevice(_, res []byte) error {
	l := d.limits()
	r := abi.QueryDeviceResult{
		DeviceCapFlags: 1<<abi.CapRNRNAK | d.offered(), MaxMRSize: 1<<64 - 1, PageSizeCap: 0xfffff000, HWVer: 1,
		MaxQPWR: l.QPWR, MaxSendSGE: l.SGE, MaxRecvSGE: l.SGE, MaxSGERd: l.SGE, MaxCQE: l.CQE,
		MaxMR: l.MR, MaxPD: l.PD, MaxQPRdAtom: uint32(l.RdAtomic), MaxQPInitRdAtom: uint32(l.RdAtomic), MaxAH: l.AH,
		LocalCAAckDelay: 15,
	}
	// Reserved words of the RFC, which a driver of it may expect to be zero. Programs read them before EXT_ENABLE.
	if d.cfg.Verbs || d.ext != 0 {
		r.MaxSRQ, r.MaxSRQWR, r.MaxSRQSGE = l.SRQ, l.SRQWR, l.SGE
		r.MaxMW, r.MaxFastRegPages = l.MW, hca.MaxFastRegPages
		p := d.adapter.Port()
		r.AtomicCap, r.MaxInline, r.ActiveMTU, r.MaxPKeys = abi.AtomicHCA, l.Inline, uint32(p.MTU), uint32(len(p.PKeys))
		r.MaxMcastGrp, r.MaxMcastQPAttach, r.MaxTotalMcastQPAttach = hca.MaxAttachments, hca.MaxGroupAttachments, hca.MaxAttachments
	}
	put(res, r.Append(nil))
	return nil
}

func (d *Device) queryPort(_, res []byte) error {
	put(res, abi.QueryPortResult{GIDTblLen: hca.EthernetGIDs, MaxMsgSz: ib.MaxMessage}.Append(nil))
	return nil
}

// Port attributes with verbs numbers.
const (
	width1X           = 1
	speedEDR          = 32
	portGRHRequired   = 1
	portCapIPBasedGID = 1 << 26
)

// portSpeed returns active_speed as verbs numbers it.
func portSpeed(p *hca.Port) uint8 {
	switch p.SpeedExt {
	case ib.SpeedFDR:
		return 16
	case ib.SpeedEDR:
		return speedEDR
	case ib.SpeedHDR:
		return 64
	case ib.SpeedNDR:
		return 128
	}
	return uint8(p.Speed)
}

func (d *Device) queryPortEx(v abi.QueryPortEx, res []byte) error {
	if v.Port != 1 {
		return syscall.EINVAL
	}
	p := d.adapter.Port()
	r := abi.QueryPortExResult{State: uint8(p.State), MaxMTU: p.MaxMTU, ActiveMTU: p.MTU, PhysState: uint8(p.Phys),
		LinkLayer: uint8(p.Link), GIDTblLen: uint16(p.GIDTableLen()), PKeyTblLen: uint16(len(p.PKeys)),
		MaxMsgSz: ib.MaxMessage}
	if p.Link == ib.LinkInfiniBand {
		r.ActiveWidth, r.ActiveSpeed, r.PortCapFlags = uint8(p.Width), portSpeed(p), p.CapMask
		r.LID, r.LMC, r.SMLID, r.SMSL, r.SubnetTimeout, r.InitType = p.LID, p.LMC, p.SMLID, p.SMSL, p.SubnetTimeout, p.InitType
		r.BadPKeyCntr, r.QKeyViolCntr = uint32(p.PKeyViolations), uint32(p.QKeyViolations)
	} else {
		r.ActiveWidth, r.ActiveSpeed, r.PortCapFlags, r.Flags = width1X, speedEDR, portCapIPBasedGID, portGRHRequired
	}
	put(res, r.Append(nil))
	return nil
}

func (d *Device) queryGID(v abi.QueryGID, res []byte) error {
	p := d.adapter.Port()
	if v.Index >= uint32(p.GIDTableLen()) {
		return syscall.EINVAL
	}
	r := abi.QueryGIDResult{Type: abi.GIDTypeRoCEv2}
	if p.Link == ib.LinkInfiniBand {
		r.Type = abi.GIDTypeIB
	}
	if gids := p.GIDs; v.Index < uint32(len(gids)) && !gids[v.Index].GID.IsZero() {
		r.GID, r.IfIndex, r.Valid = gids[v.Index].GID, uint32(gids[v.Index].IfIndex), abi.GIDOfHost
		if gids[v.Index].LocalOnly {
			r.Valid = abi.GIDOfNode
		}
	}
	put(res, r.Append(nil))
	return nil
}

// mayHave reports whether the client may give a queue pair a Q_Key: controlled
// ones (IBA volume 1, 10.2.4) are for the privileged, as with Linux, where they
// take CAP_NET_RAW.
func (d *Device) mayHave(q *hca.QP, k ib.QKey) bool {
	// QP 1 keeps its well-known key, whatever is stated.
	return d.cfg.Privileged || k&ib.QKeyControlled == 0 || q.Config().Type == ib.GSI
}

func (d *Device) modifyQP(v abi.ModifyQP, _ []byte) error {
	q, err := d.sess.QP(v.QPN)
	if err != nil {
		return err
	}
	if v.AttrMask&abi.AttrQKey != 0 && !d.mayHave(q, v.QKey) {
		return refuseQKey(v.QKey)
	}
	if v.AttrMask&abi.AttrCap != 0 {
		if transportCap(v.Cap) != q.Config().Cap {
			return refuse(syscall.EINVAL, "the capacities of queue pair %d cannot change", v.QPN)
		}
		v.AttrMask &^= abi.AttrCap
	}
	a := transport.Attr{State: v.QPState, CurState: v.CurQPState, PathMTU: v.PathMTU, MaxRdAtomic: v.MaxRdAtomic,
		MaxDestRdAtomic: v.MaxDestRdAtomic, MinRNRTimer: v.MinRNRTimer, Timeout: v.Timeout, RetryCnt: v.RetryCnt,
		RNRRetry: v.RNRRetry, QKey: v.QKey, RQPSN: v.RQPSN & ib.PSNMask, SQPSN: v.SQPSN & ib.PSNMask,
		DestQPN: v.DestQPNum, Access: v.QPAccessFlags, Port: 1}
	mask, known := v.AttrMask.Verbs()
	if !known {
		return refuse(syscall.EINVAL, "attributes %#x, of which %#x exist", uint32(v.AttrMask), uint32(abi.AttrAll))
	}
	// The RFC's device has one port and one partition key: the other attributes that verbs requires
	// are implied.
	if mask&ib.AttrState != 0 && a.State == ib.Init {
		if cur := q.Transport().State(); cur == ib.Reset {
			mask |= ib.AttrPKeyIndex
			if q.Config().Type != ib.GSI {
				mask |= ib.AttrPort
			}
		}
	}
	return d.modify(q, &a, ahAttr(&v.AHAttr, true), mask, v.RateLimit)
}

// modify changes attributes of a queue pair; kbps is used with AttrRateLimit, in RTS or on the way there.
func (d *Device) modify(q *hca.QP, a *transport.Attr, av *hca.AHAttr, mask ib.AttrMask, kbps uint32) error {
	if mask&ib.AttrRateLimit == 0 {
		return modifyQueuePair(d, q, a, av, mask)
	}
	to := q.Transport().State()
	if mask&ib.AttrState != 0 {
		to = a.State
	}
	if to != ib.RTS {
		return refuse(syscall.EINVAL, "a rate limit in state %v, it belongs to RTS", to)
	}
	if err := modifyQueuePair(d, q, a, av, mask&^ib.AttrRateLimit); err != nil {
		return err
	}
	return q.ModifyRate(kbps)
}

// modifyQueuePair is hca.QP.Modify with the reason of an error in words.
func modifyQueuePair(d *Device, q *hca.QP, a *transport.Attr, av *hca.AHAttr, mask ib.AttrMask) error {
	err := q.Modify(d.now(), a, av, mask)
	if err != nil && mask&ib.AttrAV != 0 {
		err = explainAV(d, av, err)
	}
	return err
}

func refuseQKey(k ib.QKey) error {
	return refuse(syscall.EPERM, "q_key %#x has the top bit: it is for privileged clients", uint32(k))
}

func (d *Device) queryQP(v abi.QueryQP, res []byte) error {
	q, err := d.sess.QP(v.QPN)
	if err != nil {
		return err
	}
	var a transport.Attr
	q.Transport().Query(&a)
	put(res, abi.QueryQPResult{QPState: a.State, PathMTU: a.PathMTU, SQDraining: b2u(a.SQDraining),
		MaxRdAtomic:     a.MaxRdAtomic,
		MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, Timeout: a.Timeout, RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry, QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN, QPAccessFlags: a.Access,
		RateLimit: q.RateLimit(), Cap: abiCap(q.Config().Cap), AHAttr: abiAH(q.AH())}.Append(nil))
	return nil
}

func (d *Device) modifyQPEx(v abi.QPAttrEx, _ []byte) error {
	q, err := d.sess.QP(v.QPN)
	if err != nil {
		return err
	}
	if v.AttrMask&ib.AttrQKey != 0 && !d.mayHave(q, v.QKey) {
		return refuseQKey(v.QKey)
	}
	a := transport.Attr{State: v.QPState, CurState: v.CurQPState, PathMTU: v.PathMTU, PathMigState: v.PathMigState,
		QKey: v.QKey, RQPSN: v.RQPSN & ib.PSNMask, SQPSN: v.SQPSN & ib.PSNMask, DestQPN: v.DestQPNum, Access: v.Access &^ optionalAccess,
		PKeyIndex: v.PKeyIndex, EnSQDAsyncNotify: v.EnSQDAsyncNotify != 0, MaxRdAtomic: v.MaxRdAtomic,
		MaxDestRdAtomic: v.MaxDestRdAtomic, MinRNRTimer: v.MinRNRTimer, Port: v.Port, Timeout: v.Timeout,
		RetryCnt: v.RetryCnt, RNRRetry: v.RNRRetry}
	av := ahAttr(&v.AHAttr, v.IsGlobal != 0)
	av.SL, av.SrcPathBits, av.DLID, av.StaticRate = v.SL, v.SrcPathBits, v.DLID, ib.Rate(v.StaticRate)
	return d.modify(q, &a, av, v.AttrMask, v.RateLimit)
}

func (d *Device) queryQPEx(v abi.QueryQPEx, res []byte) error {
	q, err := d.sess.QP(v.QPN)
	if err != nil {
		return err
	}
	var a transport.Attr
	q.Transport().Query(&a)
	c := q.Config()
	put(res, abi.QPAttrEx{QPN: q.Slot(), QPState: a.State, CurQPState: a.State, PathMTU: a.PathMTU,
		PathMigState: a.PathMigState,
		QKey:         a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPN, Access: a.Access, PKeyIndex: a.PKeyIndex,
		EnSQDAsyncNotify: b2u(a.EnSQDAsyncNotify), SQDraining: b2u(a.SQDraining), MaxRdAtomic: a.MaxRdAtomic, RateLimit: q.RateLimit(),
		MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, Port: a.Port, Timeout: a.Timeout,
		RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, IsGlobal: b2u(q.AH().Global), Cap: abiCap(c.Cap),
		AHAttr: abiAH(q.AH()), SL: q.AH().SL, SrcPathBits: q.AH().SrcPathBits, DLID: q.AH().DLID,
		StaticRate: uint8(q.AH().StaticRate), QPType: c.Type, SigAll: b2u(c.SigAll)}.Append(nil))
	return nil
}

func b2u(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

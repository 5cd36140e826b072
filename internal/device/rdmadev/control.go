// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"errors"
	"syscall"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/transport"
)

// command is one control command: the size of its request and of its result,
// and what executes it. res is zeroed and of exactly the result's size.
type command struct {
	req, res int
	ext      uint64 // extension bit that must be enabled; 0: part of the RFC
	run      func(d *Device, req, res []byte) error
	// tail marks a command whose data goes on behind the request.
	tail bool
	// grow is the larger result that a client with WEFT_VERBS may take.
	grow int
}

const (
	extAtomic = 1 << abi.CapAtomic
	extMemMgt = 1 << abi.CapMemMgt
	extMW     = 1 << abi.CapMW
	extSRQ    = 1 << abi.CapSRQ
	extEVQ    = 1 << abi.CapAsyncEVQ
	extErrno  = 1 << abi.CapErrnoAck
	extSGWQE  = 1 << abi.CapSGWQE
	extArm    = 1 << abi.CapArmDoorbell
	extVerbs  = 1 << abi.CapVerbs

	extAtomicWrite = 1 << abi.CapAtomicWrite
	extSRQResize   = 1 << abi.CapSRQResize
)

// parsed adapts a handler of a decoded request.
func parsed[T any](parse func([]byte) (T, error), run func(d *Device, v T, res []byte) error) func(*Device, []byte, []byte) error {
	return func(d *Device, req, res []byte) error {
		v, err := parse(req)
		if err != nil {
			return syscall.EINVAL
		}
		return run(d, v, res)
	}
}

func put(res, encoded []byte) { copy(res, encoded) }

var commands map[abi.Cmd]command

// The table is filled here because its functions lead back to it.
func init() {
	commands = map[abi.Cmd]command{
		abi.CmdQueryDevice: {res: abi.QueryDeviceResultSize, run: (*Device).queryDevice},
		abi.CmdQueryPort:   {res: abi.QueryPortResultSize, run: (*Device).queryPort},
		abi.CmdCreateCQ: {req: abi.CreateCQSize, res: abi.CreateCQResultSize, run: parsed(abi.ParseCreateCQ,
			func(d *Device, v abi.CreateCQ, res []byte) error {
				n, err := d.sess.CreateCQ(v.CQE)
				put(res, abi.CreateCQResult{CQN: n}.Append(nil))
				if err == nil {
					d.bindCQ(n)
				}
				return err
			})},
		abi.CmdDestroyCQ: {req: abi.DestroyCQSize, run: parsed(abi.ParseDestroyCQ,
			func(d *Device, v abi.DestroyCQ, _ []byte) error {
				err := d.sess.DestroyCQ(v.CQN)
				if err == nil {
					if d.evq != nil && d.evq.cqn == v.CQN {
						d.evq = nil
					}
					d.resetRing(d.cqRing(v.CQN))
				}
				return err
			})},
		abi.CmdCreatePD: {res: abi.CreatePDResultSize, run: func(d *Device, _, res []byte) error {
			n, err := d.sess.CreatePD()
			put(res, abi.CreatePDResult{PDN: n}.Append(nil))
			return err
		}},
		abi.CmdDestroyPD: {req: abi.DestroyPDSize, run: parsed(abi.ParseDestroyPD,
			func(d *Device, v abi.DestroyPD, _ []byte) error { return d.sess.DestroyPD(v.PDN) })},
		abi.CmdGetDMAMR: {req: abi.GetDMAMRSize, res: abi.MRResultSize, run: parsed(abi.ParseGetDMAMR,
			func(d *Device, v abi.GetDMAMR, res []byte) error {
				return d.register(v.PDN, &mem.Region{Space: d.guest, Len: 1<<64 - 1, Access: v.AccessFlags}, res)
			})},
		abi.CmdRegUserMR: {req: abi.RegUserMRSize, tail: true, res: abi.MRResultSize, run: (*Device).regUserMR},
		abi.CmdDeregMR: {req: abi.DeregMRSize, run: parsed(abi.ParseDeregMR,
			func(d *Device, v abi.DeregMR, _ []byte) error { return d.sess.DeregisterMR(v.MRN) })},
		abi.CmdCreateQP: {req: abi.CreateQPSize, res: abi.CreateQPResultSize, grow: abi.CreateQPResultExSize,
			run: parsed(abi.ParseCreateQP, (*Device).createQP)},
		abi.CmdModifyQP: {req: abi.ModifyQPSize, run: parsed(abi.ParseModifyQP, (*Device).modifyQP)},
		abi.CmdQueryQP:  {req: abi.QueryQPSize, res: abi.QueryQPResultSize, run: parsed(abi.ParseQueryQP, (*Device).queryQP)},
		abi.CmdDestroyQP: {req: abi.DestroyQPSize, run: parsed(abi.ParseDestroyQP,
			func(d *Device, v abi.DestroyQP, _ []byte) error {
				err := d.sess.DestroyQP(d.now(), v.QPN)
				if err == nil {
					d.resetRing(d.sendRing(v.QPN))
					d.resetRing(d.recvRing(v.QPN))
				}
				return err
			})},
		abi.CmdCreateAH: {req: abi.CreateAHSize, res: abi.CreateAHResultSize, run: parsed(abi.ParseCreateAH,
			func(d *Device, v abi.CreateAH, res []byte) error {
				n, err := d.sess.CreateAH(v.PDN, d.handleAttr(&v.AHAttr))
				put(res, abi.CreateAHResult{AH: n}.Append(nil))
				return err
			})},
		abi.CmdDestroyAH: {req: abi.DestroyAHSize, run: parsed(abi.ParseDestroyAH,
			func(d *Device, v abi.DestroyAH, _ []byte) error { return d.sess.DestroyAH(v.PDN, v.AH) })},
		abi.CmdAddGID: {req: abi.AddGIDSize, run: parsed(abi.ParseAddGID,
			func(d *Device, v abi.AddGID, _ []byte) error { return d.sess.AddGID(uint32(v.Index), v.GID) })},
		abi.CmdDelGID: {req: abi.DelGIDSize, run: parsed(abi.ParseDelGID,
			func(d *Device, v abi.DelGID, _ []byte) error { return d.sess.DelGID(uint32(v.Index)) })},
		abi.CmdAttachMcast: {req: abi.AttachMcastSize, ext: extVerbs, run: parsed(abi.ParseAttachMcast,
			func(d *Device, v abi.AttachMcast, _ []byte) error { return d.membership(v, (*hca.QP).AttachMulticast) })},
		abi.CmdDetachMcast: {req: abi.AttachMcastSize, ext: extVerbs, run: parsed(abi.ParseAttachMcast,
			func(d *Device, v abi.AttachMcast, _ []byte) error { return d.membership(v, (*hca.QP).DetachMulticast) })},
		abi.CmdReqNotifyCQ: {req: abi.ReqNotifyCQSize, run: parsed(abi.ParseReqNotifyCQ, (*Device).reqNotify)},

		abi.CmdExtEnable: {req: abi.ExtEnableSize, res: abi.ExtEnableSize, run: parsed(abi.ParseExtEnable,
			func(d *Device, v abi.ExtEnable, res []byte) error {
				d.ext = v.Mask & d.offered()
				put(res, abi.ExtEnable{Mask: d.ext}.Append(nil))
				return nil
			})},
		abi.CmdCreateSRQ: {req: abi.CreateSRQSize, res: abi.CreateSRQResultSize, ext: extSRQ, run: parsed(abi.ParseCreateSRQ,
			func(d *Device, v abi.CreateSRQ, res []byte) error {
				q, err := d.sess.CreateSRQ(hca.SRQConfig{PD: v.PDN, MaxWR: v.MaxWR, MaxSGE: v.MaxSGE, Limit: v.Limit})
				if err != nil {
					return err
				}
				d.bindRecv(q)
				put(res, abi.CreateSRQResult{SRQN: q.Slot(), RingIndex: d.recvRing(q.Slot())}.Append(nil))
				return nil
			})},
		abi.CmdModifySRQ: {req: abi.ModifySRQSize, ext: extSRQ, run: parsed(abi.ParseModifySRQ,
			func(d *Device, v abi.ModifySRQ, _ []byte) error {
				if v.Mask&abi.SRQMaxWR != 0 && d.ext&extSRQResize == 0 {
					return syscall.EOPNOTSUPP
				}
				return d.sess.ModifySRQ(v.SRQN, v.Mask&abi.SRQMaxWR != 0, v.Mask&abi.SRQLimit != 0, v.MaxWR, v.Limit)
			})},
		abi.CmdQuerySRQ: {req: abi.QuerySRQSize, res: abi.QuerySRQResultSize, ext: extSRQ, run: parsed(abi.ParseQuerySRQ,
			func(d *Device, v abi.QuerySRQ, res []byte) error {
				q, err := d.sess.SRQ(v.SRQN)
				if err != nil {
					return err
				}
				c := q.Config().Cap
				put(res, abi.QuerySRQResult{MaxWR: c.MaxRecvWR, MaxSGE: c.MaxRecvSGE, Limit: q.Limit(), Outstanding: q.Outstanding()}.Append(nil))
				return nil
			})},
		abi.CmdDestroySRQ: {req: abi.DestroySRQSize, ext: extSRQ, run: parsed(abi.ParseDestroySRQ,
			func(d *Device, v abi.DestroySRQ, _ []byte) error {
				err := d.sess.DestroySRQ(v.SRQN)
				if err == nil {
					d.resetRing(d.recvRing(v.SRQN))
				}
				return err
			})},
		abi.CmdAllocMR: {req: abi.AllocMRSize, res: abi.MRResultSize, ext: extMemMgt, run: parsed(abi.ParseAllocMR,
			func(d *Device, v abi.AllocMR, res []byte) error {
				if v.Access != 0 || v.Type != abi.MRFastReg {
					return syscall.EINVAL // rights come with the registration
				}
				m, err := d.sess.AllocMR(v.PDN, v.MaxPages)
				put(res, abi.MRResult{MRN: m.Handle, LKey: m.LKey, RKey: m.RKey}.Append(nil))
				return err
			})},
		abi.CmdAllocMW: {req: abi.AllocMWSize, res: abi.AllocMWResultSize, ext: extMW, run: parsed(abi.ParseAllocMW,
			func(d *Device, v abi.AllocMW, res []byte) error {
				n, rkey, err := d.sess.AllocMW(v.PDN, v.Type)
				put(res, abi.AllocMWResult{MWN: n, RKey: rkey}.Append(nil))
				return err
			})},
		abi.CmdDeallocMW: {req: abi.DeallocMWSize, ext: extMW, run: parsed(abi.ParseDeallocMW,
			func(d *Device, v abi.DeallocMW, _ []byte) error { return d.sess.DeallocMW(v.MWN) })},
		abi.CmdResizeCQ: {req: abi.ResizeCQSize, ext: extVerbs, run: parsed(abi.ParseResizeCQ,
			func(d *Device, v abi.ResizeCQ, _ []byte) error {
				c, err := d.sess.CQ(v.CQN)
				if err != nil {
					return err
				}
				return c.Resize(v.CQE)
			})},
		abi.CmdSetEVQ:     {req: abi.SetEVQSize, ext: extEVQ, run: parsed(abi.ParseSetEVQ, (*Device).setEVQ)},
		abi.CmdSetArmArea: {req: abi.SetArmAreaSize, ext: extArm, run: parsed(abi.ParseSetArmArea, (*Device).setArmArea)},
		abi.CmdRegMRVA: {req: abi.RegMRVASize, res: abi.MRResultSize, ext: extVerbs, run: parsed(abi.ParseRegMRVA,
			func(d *Device, v abi.RegMRVA, res []byte) error {
				r, err := d.regionVA(v.VA, v.Length, v.IOVA, v.Access)
				if err != nil {
					return err
				}
				return d.register(v.PDN, r, res)
			})},
		abi.CmdReregMR:     {req: abi.ReregMRSize, res: abi.MRResultSize, ext: extVerbs, run: parsed(abi.ParseReregMR, (*Device).reregMR)},
		abi.CmdQueryPortEx: {req: abi.QueryPortExSize, res: abi.QueryPortExResultSize, ext: extVerbs, run: parsed(abi.ParseQueryPortEx, (*Device).queryPortEx)},
		abi.CmdQueryGID:    {req: abi.QueryGIDSize, res: abi.QueryGIDResultSize, ext: extVerbs, run: parsed(abi.ParseQueryGID, (*Device).queryGID)},
		abi.CmdModifyQPEx:  {req: abi.QPAttrExSize, ext: extVerbs, run: parsed(abi.ParseQPAttrEx, (*Device).modifyQPEx)},
		abi.CmdQueryQPEx:   {req: abi.QueryQPExSize, res: abi.QPAttrExSize, ext: extVerbs, run: parsed(abi.ParseQueryQPEx, (*Device).queryQPEx)},
		abi.CmdQueryPKey: {req: abi.QueryPKeySize, res: abi.QueryPKeyResultSize, ext: extVerbs, run: parsed(abi.ParseQueryPKey,
			func(d *Device, v abi.QueryPKey, res []byte) error {
				pkeys := d.adapter.Port().PKeys
				if v.Index >= uint32(len(pkeys)) {
					return syscall.EINVAL
				}
				put(res, abi.QueryPKeyResult{PKey: pkeys[v.Index]}.Append(nil))
				return nil
			})},
	}
}

// execute runs one control command: in holds class, command and data; the
// answer is at most room bytes. It returns the answer, ack first; nil where
// there is no room for an ack.
func (d *Device) execute(in []byte, room int) []byte {
	if room == 0 {
		d.Stats.CtrlNoRoom++
		return nil
	}
	out := append(d.answer[:0], abi.AckOK)
	err := error(syscall.EINVAL)
	if len(in) >= 2 && in[0] == abi.ClassRoCE {
		out, err = d.command(abi.Cmd(in[1]), in[2:], room-1)
	}
	if err == nil {
		return out
	}
	d.Stats.CtrlErrors++
	ack := byte(abi.AckErr)
	var e syscall.Errno
	if errors.As(err, &e) && d.ext&extErrno != 0 && e < 256 {
		ack = byte(e)
	}
	d.log.Debug("control command refused", "command", in[:min(len(in), 64)], "err", err)
	return append(d.answer[:0], ack)
}

func (d *Device) command(n abi.Cmd, data []byte, room int) ([]byte, error) {
	c, ok := commands[n]
	if !ok || c.ext&^d.ext != 0 || n == abi.CmdExtEnable && d.offered() == 0 {
		return nil, syscall.EOPNOTSUPP
	}
	size := c.res
	if c.grow != 0 && d.ext&extVerbs != 0 && room >= c.grow {
		size = c.grow
	}
	if room < size || len(data) < c.req {
		return nil, syscall.EINVAL
	}
	if !c.tail {
		data = data[:c.req]
	}
	out := d.answer[:1+size]
	clear(out)
	return out, c.run(d, data, out[1:])
}

func (d *Device) register(pdn uint32, r *mem.Region, res []byte) error {
	m, err := d.sess.RegisterMR(pdn, r)
	put(res, abi.MRResult{MRN: m.Handle, LKey: m.LKey, RKey: m.RKey}.Append(nil))
	return err
}

// optionalAccess are access flags that may be ignored (verbs: bits 20 to 29).
const optionalAccess ib.Access = 0x3ff00000

// regionVA makes a region of memory that the client names by its own address.
func (d *Device) regionVA(va, length, iova uint64, access ib.Access) (*mem.Region, error) {
	if length != 0 && va+length-1 < va {
		return nil, syscall.EINVAL
	}
	space := mem.Space(d.guest)
	if length != 0 && !d.guest.Contains(va, length) {
		if d.proc == nil {
			return nil, syscall.EPERM
		}
		space = d.proc
	}
	access &^= optionalAccess
	if access&ib.ZeroBased != 0 && iova != 0 {
		return nil, syscall.EINVAL
	}
	return &mem.Region{Space: space, Start: iova, Base: va, Len: length, Access: access}, nil
}

func (d *Device) reregMR(v abi.ReregMR, res []byte) error {
	m, err := d.sess.ReregisterMR(v.MRN, v.Flags, v.PDN, func(old *mem.Region) (*mem.Region, error) {
		access := old.Access
		if v.Flags&abi.ReregAccess != 0 {
			access = v.Access &^ optionalAccess
		}
		if v.Flags&abi.ReregTranslation != 0 {
			return d.regionVA(v.VA, v.Length, v.IOVA, access)
		}
		return &mem.Region{Space: old.Space, Start: old.Start, Len: old.Len, Base: old.Base, Access: access,
			Pages: old.Pages, PageShift: old.PageShift, FirstOff: old.FirstOff}, nil
	})
	put(res, abi.MRResult{MRN: m.Handle, LKey: m.LKey, RKey: m.RKey}.Append(nil))
	return err
}

const maxPages = 262144

// regUserMR registers guest memory by its list of pages. The RFC does not
// state the page size: it is the smallest that makes the count right.
func (d *Device) regUserMR(req, res []byte) error {
	v, err := abi.ParseRegUserMR(req[:abi.RegUserMRSize])
	if err != nil {
		return syscall.EINVAL
	}
	list := req[abi.RegUserMRSize:]
	if v.Length == 0 || v.VirtAddr+v.Length-1 < v.VirtAddr || v.NPages > maxPages || uint64(len(list)) < uint64(v.NPages)*8 {
		return syscall.EINVAL
	}
	r := &mem.Region{Space: d.guest, Start: v.VirtAddr, Len: v.Length, Access: v.AccessFlags}
	var ok bool
	if r.PageShift, r.FirstOff, ok = hca.PageShift(v.VirtAddr, v.Length, v.NPages); !ok {
		return syscall.EINVAL
	}
	page := uint64(1) << r.PageShift
	r.Pages = make([]uint64, v.NPages)
	left := r.FirstOff + v.Length
	for i := range r.Pages {
		p := le64(list[i*8:])
		if p&(page-1) != 0 {
			return syscall.EINVAL
		}
		if !d.guest.Contains(p, min(page, left)) {
			return syscall.EFAULT
		}
		r.Pages[i] = p
		left -= min(page, left)
	}
	return d.register(v.PDN, r, res)
}

// pageSpace is the session's PageSpace: pages all lie in announced memory, or else
// in the process, by address.
func (d *Device) pageSpace(pages []uint64, shift uint8, last uint64) mem.Space {
	announced := true
	for i, p := range pages {
		n := uint64(1) << shift
		if i == len(pages)-1 {
			n = last
		}
		if p+n-1 < p {
			return nil
		}
		announced = announced && d.guest.Contains(p, n)
	}
	switch {
	case announced:
		return d.guest
	case d.proc != nil:
		return d.proc
	}
	return nil
}

func ahAttr(v *abi.AHAttr, global bool) *hca.AHAttr {
	return &hca.AHAttr{DGID: v.DGID, FlowLabel: v.FlowLabel, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit,
		TrafficClass: v.TrafficClass, DMAC: v.DMAC, Global: global}
}

// handleAttr is the address vector of CREATE_AH: clients with WEFT_VERBS state
// the rest of it where the RFC has reserved octets.
func (d *Device) handleAttr(v *abi.AHAttr) *hca.AHAttr {
	a := ahAttr(v, true)
	if d.ext&extVerbs != 0 {
		a.Global, a.SL, a.SrcPathBits, a.DLID, a.StaticRate = v.Flags&abi.AHNoGRH == 0, v.SL, v.SrcPathBits, v.DLID, v.StaticRate
	}
	return a
}

func abiAH(v *hca.AHAttr) abi.AHAttr {
	return abi.AHAttr{DGID: v.DGID, FlowLabel: v.FlowLabel, SGIDIndex: v.SGIDIndex, HopLimit: v.HopLimit, TrafficClass: v.TrafficClass, DMAC: v.DMAC}
}

func (d *Device) membership(v abi.AttachMcast, change func(*hca.QP, ib.GID, ib.LID) error) error {
	q, err := d.sess.QP(v.QPN)
	if err != nil {
		return err
	}
	return change(q, v.GID, v.MLID)
}

func transportCap(c abi.QPCap) transport.Cap {
	return transport.Cap{MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInlineData}
}

func abiCap(c transport.Cap) abi.QPCap {
	return abi.QPCap{MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInlineData: c.MaxInline}
}

func (d *Device) createQP(v abi.CreateQP, res []byte) error {
	c := hca.QPConfig{Type: v.QPType, PD: v.PDN, SendCQ: v.SendCQN, RecvCQ: v.RecvCQN, Cap: transportCap(v.Cap), SigAll: v.SQSigAll != 0}
	compact := false
	if d.ext&extVerbs != 0 {
		c.SRQ, compact = v.SRQN1, v.QPFlags&abi.QPSGWQE != 0
		c.BlockSelf = v.QPFlags&abi.QPBlockSelfMcast != 0
		if v.QPFlags&^(abi.QPSGWQE|abi.QPBlockSelfMcast) != 0 {
			return syscall.EINVAL
		}
	}
	if !compact && c.Cap.MaxInline > abi.MaxInlineRFC {
		return syscall.EINVAL
	}
	q, err := d.sess.CreateQP(&c)
	if err != nil {
		return err
	}
	d.bindSend(q, compact)
	if c.SRQ == 0 {
		d.bindRecv(q)
	}
	if len(res) == abi.CreateQPResultExSize {
		put(res, abi.CreateQPResultEx{QPN: q.Slot(), WireQPN: q.Num()}.Append(nil))
	} else {
		put(res, abi.CreateQPResult{QPN: q.Slot()}.Append(nil))
	}
	return nil
}

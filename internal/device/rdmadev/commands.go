// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"net/netip"
	"syscall"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/hca"
)

// commands are the control commands, by class and command code of the RoCE half.
var commands map[abi.Cmd]command

// The table refers to functions that look commands up, so that it cannot be an initial value.
func init() {
	commands = map[abi.Cmd]command{
		abi.CmdQueryDevice: {res: abi.QueryDeviceResultSize, run: (*Device).queryDevice},
		abi.CmdQueryPort:   {res: abi.QueryPortResultSize, run: (*Device).queryPort},
		abi.CmdCreateCQ: {req: abi.CreateCQSize, res: abi.CreateCQResultSize, run: parsed(abi.ParseCreateCQ,
			createCQ)},
		abi.CmdDestroyCQ: {req: abi.DestroyCQSize, run: parsed(abi.ParseDestroyCQ, destroyCQ)},
		abi.CmdCreatePD:  {res: abi.CreatePDResultSize, run: createPD},
		abi.CmdDestroyPD: {req: abi.DestroyPDSize, run: parsed(abi.ParseDestroyPD, destroyPD)},
		abi.CmdGetDMAMR:  {req: abi.GetDMAMRSize, res: abi.MRResultSize, run: parsed(abi.ParseGetDMAMR, getDMAMR)},
		abi.CmdRegUserMR: {req: abi.RegUserMRSize, tail: true, res: abi.MRResultSize, run: (*Device).regUserMR},
		abi.CmdDeregMR:   {req: abi.DeregMRSize, run: parsed(abi.ParseDeregMR, deregMR)},
		abi.CmdCreateQP: {req: abi.CreateQPSize, res: abi.CreateQPResultSize, grow: abi.CreateQPResultExSize,
			run: parsed(abi.ParseCreateQP, (*Device).createQP)},
		abi.CmdModifyQP: {req: abi.ModifyQPSize, run: parsed(abi.ParseModifyQP, (*Device).modifyQP)},
		abi.CmdQueryQP: {req: abi.QueryQPSize, res: abi.QueryQPResultSize, run: parsed(abi.ParseQueryQP,
			(*Device).queryQP)},
		abi.CmdDestroyQP: {req: abi.DestroyQPSize, run: parsed(abi.ParseDestroyQP, destroyQP)},
		abi.CmdCreateAH: {req: abi.CreateAHSize, res: abi.CreateAHResultSize, run: parsed(abi.ParseCreateAH,
			createAH)},
		abi.CmdDestroyAH:   {req: abi.DestroyAHSize, run: parsed(abi.ParseDestroyAH, destroyAH)},
		abi.CmdAddGID:      {req: abi.AddGIDSize, run: parsed(abi.ParseAddGID, addGID)},
		abi.CmdDelGID:      {req: abi.DelGIDSize, run: parsed(abi.ParseDelGID, delGID)},
		abi.CmdAttachMcast: {req: abi.AttachMcastSize, ext: extMcast, run: parsed(abi.ParseAttachMcast, attachMcast)},
		abi.CmdDetachMcast: {req: abi.AttachMcastSize, ext: extMcast, run: parsed(abi.ParseAttachMcast, detachMcast)},
		abi.CmdReqNotifyCQ: {req: abi.ReqNotifyCQSize, run: parsed(abi.ParseReqNotifyCQ, (*Device).reqNotify)},

		abi.CmdExtEnable: {req: abi.ExtEnableSize, res: abi.ExtEnableSize, run: parsed(abi.ParseExtEnable,
			extEnable)},
		abi.CmdCreateSRQ: {req: abi.CreateSRQSize, res: abi.CreateSRQResultSize, ext: extSRQ,
			run: parsed(abi.ParseCreateSRQ, createSRQ)},
		abi.CmdModifySRQ: {req: abi.ModifySRQSize, ext: extSRQ, run: parsed(abi.ParseModifySRQ, modifySRQ)},
		abi.CmdQuerySRQ: {req: abi.QuerySRQSize, res: abi.QuerySRQResultSize, ext: extSRQ,
			run: parsed(abi.ParseQuerySRQ, querySRQ)},
		abi.CmdDestroySRQ: {req: abi.DestroySRQSize, ext: extSRQ, run: parsed(abi.ParseDestroySRQ, destroySRQ)},
		abi.CmdAllocMR: {req: abi.AllocMRSize, res: abi.MRResultSize, ext: extMemMgt,
			run: parsed(abi.ParseAllocMR, allocMR)},
		abi.CmdAllocMW: {req: abi.AllocMWSize, res: abi.AllocMWResultSize, ext: extMW,
			run: parsed(abi.ParseAllocMW, allocMW)},
		abi.CmdDeallocMW: {req: abi.DeallocMWSize, ext: extMW, run: parsed(abi.ParseDeallocMW, deallocMW)},
		abi.CmdResizeCQ:  {req: abi.ResizeCQSize, ext: extCQResize, run: parsed(abi.ParseResizeCQ, resizeCQ)},
		abi.CmdSetEVQ:    {req: abi.SetEVQSize, ext: extEVQ, run: parsed(abi.ParseSetEVQ, (*Device).setEVQ)},
		abi.CmdSetArmArea: {req: abi.SetArmAreaSize, ext: extArm, run: parsed(abi.ParseSetArmArea,
			(*Device).setArmArea)},
		abi.CmdRegMRVA: {req: abi.RegMRVASize, res: abi.MRResultSize, ext: extVerbs, run: parsed(abi.ParseRegMRVA,
			regMRVA)},
		abi.CmdReregMR: {req: abi.ReregMRSize, res: abi.MRResultSize, ext: extVerbs, run: parsed(abi.ParseReregMR,
			(*Device).reregMR)},
		abi.CmdQueryPortEx: {req: abi.QueryPortExSize, res: abi.QueryPortExResultSize, ext: extPortAttr,
			run: parsed(abi.ParseQueryPortEx, (*Device).queryPortEx)},
		abi.CmdQueryGID: {req: abi.QueryGIDSize, res: abi.QueryGIDResultSize, ext: extPortAttr,
			run: parsed(abi.ParseQueryGID, (*Device).queryGID)},
		abi.CmdModifyQPEx: {req: abi.QPAttrExSize, ext: extQPAttr, run: parsed(abi.ParseQPAttrEx,
			(*Device).modifyQPEx)},
		abi.CmdQueryQPEx: {req: abi.QueryQPExSize, res: abi.QPAttrExSize, ext: extQPAttr,
			run: parsed(abi.ParseQueryQPEx, (*Device).queryQPEx)},
		abi.CmdQueryPKey: {req: abi.QueryPKeySize, res: abi.QueryPKeyResultSize, ext: extPortAttr,
			run: parsed(abi.ParseQueryPKey, queryPKey)},
	}
}

func createCQ(d *Device, v abi.CreateCQ, res []byte) error {
	if most := d.limits().CQE; v.CQE == 0 || v.CQE > most {
		return refuse(syscall.EINVAL, "%d entries, 1 to %d are possible", v.CQE, most)
	}
	n, err := d.sess.CreateCQ(v.CQE)
	put(res, abi.CreateCQResult{CQN: n}.Append(nil))
	if err == nil {
		d.bindCQ(n)
	}
	return err
}

func destroyCQ(d *Device, v abi.DestroyCQ, _ []byte) error {
	err := d.sess.DestroyCQ(v.CQN)
	if err == nil {
		if d.evq != nil && d.evq.cqn == v.CQN {
			d.evq = nil
		}
		d.resetRing(d.cqRing(v.CQN))
	}
	return err
}

func createPD(d *Device, _, res []byte) error {
	n, err := d.sess.CreatePD()
	put(res, abi.CreatePDResult{PDN: n}.Append(nil))
	return err
}

func destroyPD(d *Device, v abi.DestroyPD, _ []byte) error {
	return d.sess.DestroyPD(v.PDN)
}

func getDMAMR(d *Device, v abi.GetDMAMR, res []byte) error {
	return d.register(v.PDN, &mem.Region{Space: d.guest.Space, Len: 1<<64 - 1, Access: v.AccessFlags}, res)
}

func deregMR(d *Device, v abi.DeregMR, _ []byte) error {
	return d.sess.DeregisterMR(v.MRN)
}

func destroyQP(d *Device, v abi.DestroyQP, _ []byte) error {
	err := d.sess.DestroyQP(d.now(), v.QPN)
	if err == nil {
		d.resetRing(d.sendRing(v.QPN))
		d.resetRing(d.recvRing(v.QPN))
	}
	return err
}

func createAH(d *Device, v abi.CreateAH, res []byte) error {
	a := d.handleAttr(&v.AHAttr)
	n, err := d.sess.CreateAH(v.PDN, a)
	if err != nil {
		err = explainAV(d, a, err)
	}
	put(res, abi.CreateAHResult{AH: n}.Append(nil))
	return err
}

func destroyAH(d *Device, v abi.DestroyAH, _ []byte) error {
	return d.sess.DestroyAH(v.PDN, v.AH)
}

func addGID(d *Device, v abi.AddGID, _ []byte) error {
	if err := checkGIDIndex(v.Index); err != nil {
		return err
	}
	if d.cfg.SetGID == nil {
		if d.adapter.Port().Lookup(v.GID) < 0 {
			return refuse(syscall.EINVAL, "%v is no address of the port", v.GID)
		}
		return d.sess.AddGID(uint32(v.Index), v.GID)
	}
	// What no station of a segment can have as its address.
	a := v.GID.Addr()
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return refuse(syscall.EINVAL, "%v is no address of a station", v.GID)
	}
	return d.cfg.SetGID(uint32(v.Index), v.GID)
}

func delGID(d *Device, v abi.DelGID, _ []byte) error {
	if err := checkGIDIndex(v.Index); err != nil {
		return err
	}
	if d.cfg.SetGID == nil {
		return d.sess.DelGID(uint32(v.Index))
	}
	return d.cfg.SetGID(uint32(v.Index), ib.GID{})
}

func checkGIDIndex(i uint16) error {
	if i >= hca.EthernetGIDs {
		return refuse(syscall.EINVAL, "entry %d of a table of %d", i, hca.EthernetGIDs)
	}
	return nil
}

func attachMcast(d *Device, v abi.AttachMcast, _ []byte) error {
	return d.membership(v, (*hca.QP).AttachMulticast)
}

func detachMcast(d *Device, v abi.AttachMcast, _ []byte) error {
	return d.membership(v, (*hca.QP).DetachMulticast)
}

func extEnable(d *Device, v abi.ExtEnable, res []byte) error {
	d.ext = v.Mask & d.offered()
	put(res, abi.ExtEnable{Mask: d.ext}.Append(nil))
	if d.ext&extVerbs != 0 {
		d.ext |= partsOfVerbs
	}
	d.sess.SetStrict(d.ext == 0)
	return nil
}

func createSRQ(d *Device, v abi.CreateSRQ, res []byte) error {
	if most := d.limits().SRQWR; v.MaxWR > most {
		return refuse(syscall.EINVAL, "max_wr %d, at most %d", v.MaxWR, most)
	}
	q, err := d.sess.CreateSRQ(hca.SRQConfig{PD: v.PDN, MaxWR: v.MaxWR, MaxSGE: v.MaxSGE, Limit: v.Limit})
	if err != nil {
		return err
	}
	d.bindRecv(q)
	put(res, abi.CreateSRQResult{SRQN: q.Slot(), RingIndex: d.recvRing(q.Slot())}.Append(nil))
	return nil
}

func modifySRQ(d *Device, v abi.ModifySRQ, _ []byte) error {
	if v.Mask&abi.SRQMaxWR != 0 && d.ext&extSRQResize == 0 {
		return syscall.EOPNOTSUPP
	}
	return d.sess.ModifySRQ(v.SRQN, v.Mask&abi.SRQMaxWR != 0, v.Mask&abi.SRQLimit != 0, v.MaxWR, v.Limit)
}

func querySRQ(d *Device, v abi.QuerySRQ, res []byte) error {
	q, err := d.sess.SRQ(v.SRQN)
	if err != nil {
		return err
	}
	c := q.Config().Cap
	put(res, abi.QuerySRQResult{MaxWR: c.MaxRecvWR, MaxSGE: c.MaxRecvSGE, Limit: q.Limit(),
		Outstanding: q.Outstanding()}.Append(nil))
	return nil
}

func destroySRQ(d *Device, v abi.DestroySRQ, _ []byte) error {
	err := d.sess.DestroySRQ(v.SRQN)
	if err == nil {
		d.resetRing(d.recvRing(v.SRQN))
	}
	return err
}

func allocMR(d *Device, v abi.AllocMR, res []byte) error {
	if v.Access != 0 || v.Type != abi.MRFastReg {
		return syscall.EINVAL // access rights are part of the registration
	}
	m, err := d.sess.AllocMR(v.PDN, v.MaxPages)
	put(res, abi.MRResult{MRN: m.Handle, LKey: m.LKey, RKey: m.RKey}.Append(nil))
	return err
}

func allocMW(d *Device, v abi.AllocMW, res []byte) error {
	n, rkey, err := d.sess.AllocMW(v.PDN, v.Type)
	put(res, abi.AllocMWResult{MWN: n, RKey: rkey}.Append(nil))
	return err
}

func deallocMW(d *Device, v abi.DeallocMW, _ []byte) error {
	return d.sess.DeallocMW(v.MWN)
}

func resizeCQ(d *Device, v abi.ResizeCQ, _ []byte) error {
	c, err := d.sess.CQ(v.CQN)
	if err != nil {
		return err
	}
	if most := d.limits().CQE; v.CQE == 0 || v.CQE > most {
		return refuse(syscall.EINVAL, "%d entries, 1 to %d are possible", v.CQE, most)
	}
	return c.Resize(v.CQE)
}

func regMRVA(d *Device, v abi.RegMRVA, res []byte) error {
	r, err := d.regionVA(v.VA, v.Length, v.IOVA, v.Access)
	if err != nil {
		return err
	}
	return d.register(v.PDN, r, res)
}

func queryPKey(d *Device, v abi.QueryPKey, res []byte) error {
	pkeys := d.adapter.Port().PKeys
	if v.Index >= uint32(len(pkeys)) {
		return syscall.EINVAL
	}
	put(res, abi.QueryPKeyResult{PKey: pkeys[v.Index]}.Append(nil))
	return nil
}

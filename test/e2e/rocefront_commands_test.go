// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"slices"
	"testing"

	"weft/test/rocefront"
)

// Limits that the RFC states for max_rdma_qps and max_rdma_cqs.
const minQueues, maxQueues = 1, 16384

// roceFramings are the ways of drivers to divide a command, each with a way to announce memory.
var roceFramings = map[string]rocefront.Options{
	"by part":   {},
	"whole":     {Framing: rocefront.Whole, MemTable: true},
	"by field":  {Framing: rocefront.ByField},
	"indirect":  {Framing: rocefront.Indirect, Features: rocefront.FeatureIndirect, MemTable: true},
	"two pairs": {Features: rocefront.FeatureMQ},
}

// commands uses all 18 commands, and compares each result with what the text demands.
func (l *roceLab) commands(t *testing.T, o rocefront.Options) {
	d := got(rocefront.Open(l.sockets["near"], o))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, n := range map[string]uint32{"max_rdma_qps": d.Config.MaxRDMAQPs, "max_rdma_cqs": d.Config.MaxRDMACQs} {
		if n < minQueues || n > maxQueues {
			t.Errorf("%s is %d", name, n)
		}
	}
	attr := got(d.QueryDevice())(t)
	checkDeviceAttr(t, attr)
	port := got(d.QueryPort())(t)
	if port.GIDTableLen <= gidIndex || port.MaxMsgSize < 1<<20 || port.Reserved != [6]uint32{} {
		t.Errorf("QUERY_PORT: %+v", port)
	}
	c := &roceCard{Device: d}
	c.address(t, roceAddrs["near"], gidIndex)
	c.pd = got(d.CreatePD())(t)
	other := got(d.CreatePD())(t)
	c.cq = got(d.CreateCQ(16))(t)
	sends := got(d.CreateCQ(32))(t)
	if c.pd.Handle == other.Handle || c.cq.Number == sends.Number {
		t.Errorf("handles are given twice: domains %d, %d, queues %d, %d", c.pd.Handle, other.Handle, c.cq.Number,
			sends.Number)
	}
	must(t, c.cq.RequestNotify(rocefront.NotifySolicited))
	must(t, c.cq.RequestNotify(rocefront.NotifyNext))

	dma := got(c.pd.DMA(64, allAccess))(t)
	user := got(c.pd.RegisterNew(memoryAt, 20000, allAccess))(t)
	if dma.Handle == user.Handle || dma.LKey == user.LKey {
		t.Errorf("handles or keys are given twice: %+v, %+v", dma, user)
	}
	ah := got(c.pd.CreateAH(c.route()))(t)
	for _, kind := range []uint8{rocefront.RC, rocefront.UC, rocefront.UD} {
		t.Run(roceKinds[kind], func(t *testing.T) { c.modify(t, kind, sends) })
	}
	must(t, ah.Destroy())
	for _, m := range []*rocefront.MR{dma, user} {
		must(t, m.Deregister())
	}
	must(t, c.cq.Destroy())
	must(t, sends.Destroy())
	must(t, c.pd.Destroy())
	must(t, other.Destroy())
	must(t, d.DelGID(gidIndex))
	t.Run("limits", func(t *testing.T) { checkLimits(t, d) })
}

func checkDeviceAttr(t *testing.T, a rocefront.DeviceAttr) {
	t.Helper()
	for name, v := range map[string]uint32{"max_qp_wr": a.MaxQPWR, "max_send_sge": a.MaxSendSGE,
		"max_recv_sge": a.MaxRecvSGE, "max_sge_rd": a.MaxSGERead,
		"max_cqe": a.MaxCQE, "max_mr": a.MaxMR, "max_pd": a.MaxPD,
		"max_qp_rd_atom": a.MaxQPRdAtom, "max_qp_init_rd_atom": a.MaxQPInitRdAtom, "max_ah": a.MaxAH} {
		if v == 0 {
			t.Errorf("QUERY_DEVICE: %s is 0", name)
		}
	}
	// Other bits are not defined: a driver of the RFC ignores them.
	if a.Caps&rocefront.RCRNRNakGen == 0 {
		t.Errorf("QUERY_DEVICE: device_cap_flags %#x without VIRTIO_IB_DEVICE_RC_RNR_NAK_GEN", a.Caps)
	}
	if a.PageSizes>>12&1 == 0 || a.MaxMRSize < 1<<30 {
		t.Errorf("QUERY_DEVICE: page sizes %#x, regions of %d octets", a.PageSizes, a.MaxMRSize)
	}
	if a.Padding != [3]uint8{} || a.Reserved != [14]uint32{} {
		t.Errorf("QUERY_DEVICE: padding or reserved fields are not 0: %+v", a)
	}
}

// modify takes a queue pair through its states, and reads back what was set.
func (c *roceCard) modify(t *testing.T, kind uint8, sends *rocefront.CQ) {
	init := c.init(kind)
	init.SendCQ = sends.Number
	init.Cap = rocefront.QPCap{MaxSendWR: 16, MaxRecvWR: 8, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 100}
	q := got(c.CreateQP(init))(t)
	const everything = rocefront.AttrRateLimit<<1 - 1
	read := func(state uint8) rocefront.QPState {
		t.Helper()
		s := got(q.Query(everything))(t)
		if s.State != state {
			t.Errorf("QUERY_QP: state %d, want %d", s.State, state)
		}
		if s.Padding != [7]uint8{} || s.Reserved != [4]uint32{} || s.Cap.Padding != 0 || s.AH.Reserved != [10]byte{} {
			t.Errorf("QUERY_QP: padding or reserved fields are not 0: %+v", s)
		}
		k := s.Cap
		if k.MaxSendWR < 16 || k.MaxRecvWR < 8 || k.MaxSendSGE < 3 || k.MaxRecvSGE < 2 || k.MaxInline < 100 {
			t.Errorf("QUERY_QP: capabilities %+v, less than %+v", k, init.Cap)
		}
		return s
	}
	read(rocefront.Reset)
	to := c.to(q) // with itself
	to.Access, to.RdAtomic, to.SQPSN, to.RQPSN = rocefront.RemoteRead, 2, 0x123456, 0x654321
	must(t, q.ToInit(to))
	s := read(rocefront.Init)
	if kind == rocefront.UD {
		if s.QKey != qkey {
			t.Errorf("QUERY_QP: qkey %#x, want %#x", s.QKey, qkey)
		}
	} else if s.Access != rocefront.RemoteRead {
		t.Errorf("QUERY_QP: access flags %#x, want %#x", s.Access, rocefront.RemoteRead)
	}
	must(t, q.ToRTR(to))
	s = read(rocefront.RTR)
	if kind != rocefront.UD {
		if s.PathMTU != to.PathMTU || s.DestQPN != q.Number || s.RQPSN != to.RQPSN || s.AH.Route != to.Route.Route {
			t.Errorf("QUERY_QP: %+v, want %+v", s, to)
		}
	}
	if kind == rocefront.RC && (s.MaxDestRdAtomic != 2 || s.MinRNRTimer != to.MinRNRTimer) {
		t.Errorf("QUERY_QP: %+v, want %+v", s, to)
	}
	must(t, q.ToRTS(to))
	s = read(rocefront.RTS)
	if s.SQPSN != to.SQPSN || s.Draining != 0 {
		t.Errorf("QUERY_QP: PSN %#x, want %#x; draining %d", s.SQPSN, to.SQPSN, s.Draining)
	}
	if kind == rocefront.RC && (s.Timeout != to.Timeout || s.RetryCnt != to.Retry || s.RNRRetry != to.RNR ||
		s.MaxRdAtomic != 2) {
		t.Errorf("QUERY_QP: %+v, want %+v", s, to)
	}
	a := rocefront.QPAttr{Mask: rocefront.AttrRateLimit}
	a.RateKbps = 123456
	must(t, q.Modify(a))
	if s = read(rocefront.RTS); s.RateKbps != 123456 {
		t.Errorf("QUERY_QP: rate limit %d kbps, want 123456", s.RateKbps)
	}
	must(t, q.Modify(rocefront.QPAttr{Mask: rocefront.AttrState, State: rocefront.SQD}))
	read(rocefront.SQD)
	must(t, q.Modify(rocefront.QPAttr{Mask: rocefront.AttrState | rocefront.AttrCurState, State: rocefront.RTS,
		CurState: rocefront.SQD}))
	read(rocefront.RTS)
	for _, state := range []uint8{rocefront.Err, rocefront.Reset} {
		must(t, q.Modify(rocefront.QPAttr{Mask: rocefront.AttrState, State: state}))
		read(state)
	}
	must(t, q.Destroy())
}

// checkLimits makes as many queues as the configuration space has, with indices below these, and then none more.
func checkLimits(t *testing.T, d *rocefront.Device) {
	pd := got(d.CreatePD())(t)
	var refused *rocefront.Refused
	var cqs []*rocefront.CQ
	for {
		cq, err := d.CreateCQ(2)
		if errors.As(err, &refused) {
			break
		}
		must(t, err)
		if slices.ContainsFunc(cqs, func(c *rocefront.CQ) bool { return c.Number == cq.Number }) {
			t.Fatalf("index %d is given twice", cq.Number)
		}
		cqs = append(cqs, cq)
	}
	if len(cqs) != int(d.Config.MaxRDMACQs) {
		t.Errorf("%d completion queues, the configuration space has %d", len(cqs), d.Config.MaxRDMACQs)
	}
	var qps []*rocefront.QP
	for {
		q, err := d.CreateQP(rocefront.QPInit{PDN: pd.Handle, Type: rocefront.UC, SendCQ: cqs[0].Number,
			RecvCQ: cqs[0].Number})
		if errors.As(err, &refused) {
			break
		}
		must(t, err)
		if slices.ContainsFunc(qps, func(p *rocefront.QP) bool { return p.Number == q.Number }) {
			t.Fatalf("index %d is given twice", q.Number)
		}
		qps = append(qps, q)
	}
	// Numbers 0 and 1 are those of SMI and GSI.
	if n := int(d.Config.MaxRDMAQPs); len(qps) < n-2 || len(qps) > n {
		t.Errorf("%d queue pairs, the configuration space has %d", len(qps), n)
	}
	for _, q := range qps {
		must(t, q.Destroy())
	}
	for _, c := range cqs {
		must(t, c.Destroy())
	}
	must(t, pd.Destroy())
}

// TestRoCEFrontCommands: the commands of the control queue, whatever the framing.
func TestRoCEFrontCommands(t *testing.T) {
	t.Parallel()
	l := openRoCELab(t)
	for name, o := range roceFramings {
		t.Run(name, func(t *testing.T) { l.commands(t, o) })
	}
	t.Run("refused", l.refusedCommands)
}

// refusedCommands: a command that cannot be executed has the ack VIRTIO_NET_ERR, and the next is executed.
func (l *roceLab) refusedCommands(t *testing.T) {
	c := l.open(t, "near", rocefront.Options{})
	attr, port := got(c.QueryDevice())(t), got(c.QueryPort())(t)
	other := got(c.CreatePD())(t)
	ah := got(other.CreateAH(c.route()))(t)
	q := c.qp(t, rocefront.RC)
	const unknown = 0x00ffffff
	pages := c.Memory.Pages(2)
	cmd := func(command byte, result int, fields ...uint32) func() error {
		return func() error {
			_, err := c.Words(command, result, fields...)
			return err
		}
	}
	short := func(command byte, size, result int) func() error {
		return func() error {
			_, err := c.Command(rocefront.ClassRoCE, command, make([]byte, size-1), result)
			return err
		}
	}
	create := func(change func(i *rocefront.QPInit)) func() error {
		return func() error {
			i := c.init(rocefront.RC)
			i.Cap = rocefront.DefaultCap
			change(&i)
			_, err := c.CreateQP(i)
			return err
		}
	}
	modify := func(mask uint32, state, current uint8) func() error {
		return func() error {
			return q.Modify(rocefront.QPAttr{Mask: mask, State: state, CurState: current})
		}
	}
	register := func(change func(r *rocefront.Registration)) func() error {
		return func() error {
			r := rocefront.Registration{Addr: memoryAt, Length: 4096, Access: allAccess, Pages: slices.Clone(pages)}
			change(&r)
			_, err := c.pd.Register(r)
			return err
		}
	}
	for _, row := range []struct {
		name string
		do   func() error
	}{
		{"unknown command", cmd(18, 4)},
		{"unknown command 255", cmd(255, 4)},
		{"unknown class", func() error { _, err := c.Command(200, 0, nil, 0); return err }},
		{"DESTROY_CQ: unknown", cmd(rocefront.CmdDestroyCQ, 0, c.Config.MaxRDMACQs-1)},
		{"DESTROY_CQ: beyond all", cmd(rocefront.CmdDestroyCQ, 0, unknown)},
		{"DESTROY_CQ: in use", cmd(rocefront.CmdDestroyCQ, 0, c.cq.Number)},
		{"DESTROY_PD: unknown", cmd(rocefront.CmdDestroyPD, 0, unknown)},
		{"DESTROY_PD: in use by a queue pair", cmd(rocefront.CmdDestroyPD, 0, c.pd.Handle)},
		{"DESTROY_PD: in use by an address handle", cmd(rocefront.CmdDestroyPD, 0, other.Handle)},
		{"GET_DMA_MR: unknown domain", cmd(rocefront.CmdGetDMAMR, 12, unknown, allAccess)},
		{"GET_DMA_MR: unknown access flags", cmd(rocefront.CmdGetDMAMR, 12, c.pd.Handle, 1<<31)},
		{"DEREG_MR: unknown", cmd(rocefront.CmdDeregMR, 0, unknown)},
		{"REG_USER_MR: page outside", register(func(r *rocefront.Registration) { r.Pages[1] = 1 << 50 })},
		{"REG_USER_MR: page at the end of addresses",
			register(func(r *rocefront.Registration) { r.Pages[0] = ^uint64(4095) })},
		{"REG_USER_MR: fewer pages than octets", register(func(r *rocefront.Registration) { r.Length = 3 * 4096 })},
		{"REG_USER_MR: no pages", register(func(r *rocefront.Registration) { r.Pages = nil })},
		{"REG_USER_MR: beyond all addresses", register(func(r *rocefront.Registration) { r.Addr = ^uint64(0xff) })},
		{"REG_USER_MR: unknown access flags", register(func(r *rocefront.Registration) { r.Access = 1 << 31 })},
		{"CREATE_CQ: more entries than max_cqe", cmd(rocefront.CmdCreateCQ, 4, attr.MaxCQE+1)},
		{"CREATE_CQ: no entries", cmd(rocefront.CmdCreateCQ, 4, 0)},
		{"CREATE_QP: SMI", create(func(i *rocefront.QPInit) { i.Type = rocefront.SMI })},
		{"CREATE_QP: unknown type", create(func(i *rocefront.QPInit) { i.Type = 5 })},
		{"CREATE_QP: unknown domain", create(func(i *rocefront.QPInit) { i.PDN = unknown })},
		{"CREATE_QP: unknown queue of sends", create(func(i *rocefront.QPInit) { i.SendCQ = unknown })},
		{"CREATE_QP: unknown queue of receives", create(func(i *rocefront.QPInit) { i.RecvCQ = unknown })},
		{"CREATE_QP: max_send_wr", create(func(i *rocefront.QPInit) { i.Cap.MaxSendWR = attr.MaxQPWR + 1 })},
		{"CREATE_QP: max_recv_wr", create(func(i *rocefront.QPInit) { i.Cap.MaxRecvWR = attr.MaxQPWR + 1 })},
		{"CREATE_QP: max_send_sge", create(func(i *rocefront.QPInit) { i.Cap.MaxSendSGE = attr.MaxSendSGE + 1 })},
		{"CREATE_QP: max_recv_sge", create(func(i *rocefront.QPInit) { i.Cap.MaxRecvSGE = attr.MaxRecvSGE + 1 })},
		{"CREATE_QP: max_inline_data", create(func(i *rocefront.QPInit) { i.Cap.MaxInline = 513 })},
		{"MODIFY_QP: unknown", func() error { return c.QP(unknown).Modify(rocefront.QPAttr{}) }},
		{"MODIFY_QP: RESET to RTS", modify(rocefront.AttrState, rocefront.RTS, 0)},
		{"MODIFY_QP: unknown state", modify(rocefront.AttrState, 7, 0)},
		{"MODIFY_QP: another current state",
			modify(rocefront.AttrState|rocefront.AttrCurState, rocefront.Init, rocefront.RTS)},
		{"MODIFY_QP: unknown attribute", modify(rocefront.AttrState|1<<17, rocefront.Reset, 0)},
		{"QUERY_QP: unknown", cmd(rocefront.CmdQueryQP, 120, unknown, 1)},
		{"DESTROY_QP: unknown", cmd(rocefront.CmdDestroyQP, 0, unknown)},
		{"CREATE_AH: unknown domain", func() error { _, err := c.PD(unknown).CreateAH(c.route()); return err }},
		{"CREATE_AH: source GID beyond the table", func() error {
			r := c.route()
			r.Route.SGIDIndex = 255
			_, err := c.pd.CreateAH(r)
			return err
		}},
		{"CREATE_AH: source GID that is not there", func() error {
			r := c.route()
			r.Route.SGIDIndex = gid6Index
			_, err := c.pd.CreateAH(r)
			return err
		}},
		{"DESTROY_AH: unknown", cmd(rocefront.CmdDestroyAH, 0, other.Handle, unknown)},
		{"DESTROY_AH: of another domain", cmd(rocefront.CmdDestroyAH, 0, c.pd.Handle, ah.Handle)},
		{"ADD_GID: beyond the table", func() error { return c.AddGID(int(port.GIDTableLen), c.gid) }},
		{"DEL_GID: beyond the table", func() error { return c.DelGID(int(port.GIDTableLen)) }},
		{"REQ_NOTIFY_CQ: unknown", cmd(rocefront.CmdReqNotifyCQ, 0, unknown, rocefront.NotifyNext)},
		{"REQ_NOTIFY_CQ: unknown flags", cmd(rocefront.CmdReqNotifyCQ, 0, c.cq.Number, 1<<5)},
		{"CREATE_CQ: short", short(rocefront.CmdCreateCQ, 4, 4)},
		{"DESTROY_CQ: short", short(rocefront.CmdDestroyCQ, 4, 0)},
		{"DESTROY_PD: short", short(rocefront.CmdDestroyPD, 4, 0)},
		{"GET_DMA_MR: short", short(rocefront.CmdGetDMAMR, 8, 12)},
		{"REG_USER_MR: short", short(rocefront.CmdRegUserMR, 32, 12)},
		{"DEREG_MR: short", short(rocefront.CmdDeregMR, 4, 0)},
		{"CREATE_QP: short", short(rocefront.CmdCreateQP, 56, 4)},
		{"MODIFY_QP: short", short(rocefront.CmdModifyQP, 128, 0)},
		{"QUERY_QP: short", short(rocefront.CmdQueryQP, 8, 120)},
		{"DESTROY_QP: short", short(rocefront.CmdDestroyQP, 4, 0)},
		{"CREATE_AH: short", short(rocefront.CmdCreateAH, 48, 4)},
		{"DESTROY_AH: short", short(rocefront.CmdDestroyAH, 8, 0)},
		{"ADD_GID: short", short(rocefront.CmdAddGID, 24, 0)},
		{"DEL_GID: short", short(rocefront.CmdDelGID, 2, 0)},
		{"REQ_NOTIFY_CQ: short", short(rocefront.CmdReqNotifyCQ, 8, 0)},
	} {
		t.Run(row.name, func(t *testing.T) {
			var refused *rocefront.Refused
			if err := row.do(); !errors.As(err, &refused) {
				t.Errorf("want VIRTIO_NET_ERR, have %v", err)
			}
			got(c.QueryPort())(t)
		})
	}
	must(t, ah.Destroy())
	must(t, other.Destroy())
	must(t, q.Destroy())
	must(t, c.cq.Destroy())
}

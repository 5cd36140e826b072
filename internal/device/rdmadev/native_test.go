// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"syscall"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

const nativeLID ib.LID = 0x10

// newNativeFabric makes a fabric with an InfiniBand port.
func newNativeFabric(t testing.TB) *fabric {
	f := newFabric(t)
	p := &hca.Port{Link: ib.LinkInfiniBand, State: ib.PortActive, Phys: ib.PhysLinkUp, MTU: ib.MTU2048,
		MaxMTU: ib.MTU4096, LID: nativeLID, LMC: 1,
		PKeys: []ib.PKey{ib.DefaultPKey, 0x8001}, GIDPrefix: ib.DefaultGIDPrefix, GUIDs: []ib.GUID{0x77,
			0}, Width: ib.Width4x, SpeedExt: ib.SpeedEDR,
		MaxRun: 60 << 10, MaxLocalRun: 256 << 10}
	p.SetGIDs()
	f.adapter.SetPort(p)
	return f
}

// TestNativeCommands states LIDs through address handles and queue pairs and
// reads them back, and joins a group.
func TestNativeCommands(t *testing.T) {
	f := newNativeFabric(t)
	d := f.newDriver(true, 8<<20)
	pd, c := d.pd(), d.cq(16)
	if r := parse(d, d.must(abi.CmdQueryDevice, nil, abi.QueryDeviceResultSize),
		abi.ParseQueryDeviceResult); r.MaxPKeys != 2 ||
		r.MaxTotalMcastQPAttach != hca.MaxAttachments || r.MaxMcastGrp == 0 || r.MaxMcastQPAttach == 0 {
		t.Errorf("%+v", r)
	}
	own := ib.MakeGID(ib.DefaultGIDPrefix, 0x77)
	if g := parse(d, d.must(abi.CmdQueryGID, abi.QueryGID{}.Append(nil), abi.QueryGIDResultSize),
		abi.ParseQueryGIDResult); g.GID != own || g.Type != abi.GIDTypeIB {
		t.Errorf("%+v", g)
	}
	d.refused(abi.CmdQueryGID, abi.QueryGID{Index: 2}.Append(nil), abi.QueryGIDResultSize, syscall.EINVAL)
	ah := func(v abi.AHAttr, e syscall.Errno) {
		t.Helper()
		req := abi.CreateAH{PDN: pd, AHAttr: v}.Append(nil)
		if e != 0 {
			d.refused(abi.CmdCreateAH, req, abi.CreateAHResultSize, e)
			return
		}
		d.must(abi.CmdCreateAH, req, abi.CreateAHResultSize)
	}
	ah(abi.AHAttr{DLID: 5, Flags: abi.AHNoGRH}, 0)
	ah(abi.AHAttr{DLID: 5, Flags: abi.AHNoGRH, SrcPathBits: 1, SL: 15}, 0)
	ah(abi.AHAttr{DLID: 5, Flags: abi.AHNoGRH, SrcPathBits: 2}, syscall.EINVAL)
	ah(abi.AHAttr{DLID: 5, DGID: own}, 0)
	ah(abi.AHAttr{DLID: 5}, syscall.EINVAL)
	ah(abi.AHAttr{DGID: own}, syscall.EINVAL)

	q := d.qp(qpOpt{typ: ib.UC, pd: pd, scq: c, rcq: c})
	for i, mask := range []ib.AttrMask{ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags,
		ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN} {
		d.must(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: q.num, AttrMask: ib.AttrState | mask,
			QPState: ib.Init + ib.QPState(i), Port: 1, PKeyIndex: 1, PathMTU: ib.MTU2048,
			DestQPNum: 9, DLID: 0x1234, SrcPathBits: 1, SL: 4, StaticRate: uint8(ib.Rate10)}.Append(nil), 0)
	}
	r := parse(d, d.must(abi.CmdQueryQPEx, abi.QueryQPEx{QPN: q.num}.Append(nil), abi.QPAttrExSize), abi.ParseQPAttrEx)
	if r.DLID != 0x1234 || r.SrcPathBits != 1 || r.SL != 4 || r.StaticRate != uint8(ib.Rate10) || r.IsGlobal != 0 ||
		r.PKeyIndex != 1 {
		t.Errorf("%+v", r)
	}
	d.refused(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: q.num, AttrMask: ib.AttrState, QPState: 9}.Append(nil), 0,
		syscall.EINVAL)

	u := d.qp(qpOpt{typ: ib.UD, pd: pd, scq: c, rcq: c})
	group := abi.AttachMcast{QPN: u.num, MLID: 0xc001, GID: ib.GID{0: 0xff, 1: 0x12, 15: 1}}
	bad := group
	bad.QPN = q.num
	d.refused(abi.CmdAttachMcast, bad.Append(nil), 0, syscall.EINVAL)
	bad.QPN = 99
	d.refused(abi.CmdAttachMcast, bad.Append(nil), 0, syscall.ENOENT)
	d.refused(abi.CmdDetachMcast, group.Append(nil), 0, syscall.EINVAL)
	d.must(abi.CmdAttachMcast, group.Append(nil), 0)
	d.refused(abi.CmdDestroyQP, abi.DestroyQP{QPN: u.num}.Append(nil), 0, syscall.EBUSY)
	d.must(abi.CmdDetachMcast, group.Append(nil), 0)
	d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: u.num}.Append(nil), 0)
}

// TestNativeDatagram checks the address fields of a completion, and that the 40 bytes before a
// datagram without a GRH are unchanged.
func TestNativeDatagram(t *testing.T) {
	f := newNativeFabric(t)
	a, b := f.newDriver(true, 4<<20).end(ib.UD, 4096), f.newDriver(true, 4<<20).end(ib.UD, 4096)
	a.connect(nil)
	b.connect(nil)
	ah := parse(a.d, a.d.must(abi.CmdCreateAH, abi.CreateAH{PDN: a.pd, AHAttr: abi.AHAttr{DLID: nativeLID,
		SrcPathBits: 1, SL: 7, Flags: abi.AHNoGRH}}.Append(nil),
		abi.CreateAHResultSize), abi.ParseCreateAHResult).AH
	fill(a.mem[:100], 3)
	for i := range b.mem {
		b.mem[i] = 0xa5
	}
	b.postRecv(9, b.sge(0, 4096))
	s := abi.Send{WRID: 8, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}
	s.SetUD(b.wire, qkey, ah)
	a.post(s, []ib.SGE{a.sge(0, 100)}, nil)
	a.kick()
	a.cq.expect(ok(8)...)
	e := b.cq.expect(ok(9)...)[0]
	if e.SL != 7 || e.SLID != nativeLID+1 || e.DLIDPathBits != 0 || e.PKeyIndex != 0 || e.Flags != 0 ||
		e.ByteLen != 140 || e.SrcQP != a.wire {
		t.Errorf("%+v", e)
	}
	if !bytes.Equal(b.mem[:40], bytes.Repeat([]byte{0xa5}, 40)) || !bytes.Equal(b.mem[40:140], a.mem[:100]) {
		t.Errorf("% x", b.mem[:140])
	}
}

// TestRateLimitCommand sets a limit on the way to RTS and in RTS, and nowhere
// else.
func TestRateLimitCommand(t *testing.T) {
	f := newNativeFabric(t)
	e := f.newDriver(true, 4<<20).end(ib.UD, 4096)
	limit := func(a abi.QPAttrEx) []byte {
		a.QPN, a.AttrMask = e.num, a.AttrMask|ib.AttrRateLimit
		return a.Append(nil)
	}
	e.d.refused(abi.CmdModifyQPEx, limit(abi.QPAttrEx{RateLimit: 5}), 0, syscall.EINVAL)
	e.d.refused(abi.CmdModifyQPEx, limit(abi.QPAttrEx{RateLimit: 5,
		AttrMask: ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrQKey, QPState: ib.Init, Port: 1}), 0,
		syscall.EINVAL)
	e.connect(nil)
	e.d.must(abi.CmdModifyQPEx, limit(abi.QPAttrEx{RateLimit: 500}), 0)
	query := func() uint32 {
		return parse(e.d, e.d.must(abi.CmdQueryQPEx, abi.QueryQPEx{QPN: e.num}.Append(nil), abi.QPAttrExSize),
			abi.ParseQPAttrEx).RateLimit
	}
	if got := query(); got != 500 {
		t.Errorf("%d", got)
	}
	e.d.must(abi.CmdModifyQPEx, limit(abi.QPAttrEx{RateLimit: 700, AttrMask: ib.AttrState | ib.AttrQKey,
		QPState: ib.RTS, QKey: qkey}), 0)
	if got := query(); got != 700 {
		t.Errorf("%d", got)
	}
	e.to(ib.Reset)
	if got := query(); got != 0 {
		t.Errorf("%d after RESET", got)
	}
}

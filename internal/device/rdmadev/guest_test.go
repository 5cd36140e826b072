// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/internal/device/rdmadev"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// newCard makes a fabric with the adapter of a card: the driver fills the GID table of the port, and has QP 1.
func newCard(t testing.TB) *fabric {
	f := newFabric(t)
	f.adapter.GuestGSI = true
	f.tune = func(c *rdmadev.Config) {
		c.SetGID = func(i uint32, g ib.GID) error {
			p := *f.adapter.Port()
			p.GIDs = slices.Clone(p.GIDs)
			for int(i) >= len(p.GIDs) {
				p.GIDs = append(p.GIDs, hca.GIDEntry{})
			}
			p.GIDs[i] = hca.GIDEntry{GID: g}
			f.adapter.SetPort(&p)
			return nil
		}
	}
	return f
}

// enable enables all extensions of a driver without WEFT_HELLO, and returns them.
func (d *driver) enable() uint64 {
	d.t.Helper()
	return parse(d, d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(0)}.Append(nil), abi.ExtEnableSize),
		abi.ParseExtEnable).Mask
}

// gsi makes QP 1, in RTS.
func (d *driver) gsi(pd uint32, c *cq) *qp {
	d.t.Helper()
	q := d.qp(qpOpt{typ: ib.GSI, pd: pd, scq: c, rcq: c})
	for i, s := range []ib.QPState{ib.Init, ib.RTR, ib.RTS} {
		q.modify(abi.ModifyQP{QPState: s, QKey: ib.GSIQKey}, []abi.AttrMask{0x9, 0x1, 0x1001}[i])
	}
	return q
}

// TestGSI: the driver of a card makes QP 1, in slot 1. MADs to QP 1 of the function reach it, and not the node. It
// sends MADs, and nothing else.
func TestGSI(t *testing.T) {
	f := newCard(t)
	f.lane.SetGeneralServices(func(mono.Time, *pkt.Burst) { t.Error("the node got a MAD of a guest") })
	d := f.newDriver(false, 4<<20)
	pd, c := d.pd(), d.cq(64)
	mem, at := d.buffer(4096)
	mr := d.mr(pd, at, 4096, ib.LocalWrite)
	create := func(typ ib.QPType) []byte {
		return abi.CreateQP{PDN: pd, QPType: typ, SendCQN: c.num, RecvCQN: c.num, Cap: defaultCap}.Append(nil)
	}
	d.refused(abi.CmdCreateQP, create(ib.SMI), abi.CreateQPResultSize, syscall.EOPNOTSUPP)
	q := d.gsi(pd, c)
	if q.num != 1 || q.wire != 1 {
		t.Fatalf("QP 1 is %d, on the wire %d", q.num, q.wire)
	}
	d.refused(abi.CmdCreateQP, create(ib.GSI), abi.CreateQPResultSize, syscall.EBUSY)
	if r := parse(d, d.must(abi.CmdQueryQP, abi.QueryQP{QPN: 1}.Append(nil), abi.QueryQPResultSize),
		abi.ParseQueryQPResult); r.QKey != ib.GSIQKey || r.QPState != ib.RTS {
		t.Errorf("%+v", r)
	}
	ah := d.ah(pd)
	mad := func(length int, version, class byte) {
		fill(mem[:1024], class)
		mem[0], mem[1] = version, class
		q.post(ud(7, 1, ib.GSIQKey, ah), []ib.SGE{{Addr: at, Len: 24, LKey: mr.LKey},
			{Addr: at + 24, Len: uint32(length - 24), LKey: mr.LKey}}, nil)
		q.kick()
	}
	room := ib.SGE{Addr: at + 2048, Len: 40 + 256, LKey: mr.LKey}
	q.postRecv(8, room)
	mad(256, 1, 7)
	for _, e := range c.expect(ok(7, 8)...) {
		if e.QPN != 1 {
			t.Errorf("%+v", e)
		}
		if e.WRID == 8 && (e.ByteLen != 296 || e.SrcQP != 1 || e.Flags&ib.WCGRH == 0) {
			t.Errorf("%+v", e)
		}
	}
	if !bytes.Equal(mem[2088:2088+256], mem[:256]) {
		t.Error("another MAD arrived")
	}
	// Also from an ordinary queue pair, with the well-known key of its own.
	q.postRecv(9, room)
	for i, x := range []struct {
		length         int
		version, class byte
	}{{255, 1, 7}, {257, 1, 7}, {1024, 1, 7}, {256, 0, 7}, {256, 2, 7}, {256, 0x80, 7}, {256, 1, 0x01},
		{256, 1, 0x81}} {
		mad(x.length, x.version, x.class)
		c.expect(done{7, ib.LocQPOpErr})
		if n := d.dev.Session().Inspect().QPs[0].Counters.GSIRefused; n != uint64(i+1) {
			t.Errorf("%+v: %d counted", x, n)
		}
		q.modify(abi.ModifyQP{QPState: ib.RTS}, abi.AttrState) // from SQE
	}
	q.post(abi.Send{WRID: 10, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}, nil, nil)
	q.kick()
	c.expect(done{10, ib.LocQPOpErr})
	q.to(ib.Reset)
	d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: 1}.Append(nil), 0)
	// All other slots are there, with and without QP 1.
	for i := uint32(2); i < maxQP; i++ {
		d.must(abi.CmdCreateQP, create(ib.UD), abi.CreateQPResultSize)
	}
	d.refused(abi.CmdCreateQP, create(ib.UD), abi.CreateQPResultSize, syscall.ENOSPC)
	d.must(abi.CmdCreateQP, create(ib.GSI), abi.CreateQPResultSize)
	d.refused(abi.CmdCreateQP, create(ib.UD), abi.CreateQPResultSize, syscall.ENOSPC)
	d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: 2}.Append(nil), 0)
	d.must(abi.CmdCreateQP, create(ib.UD), abi.CreateQPResultSize)
	if err := d.consistent(); err != nil {
		t.Error(err)
	}
	d.refused(abi.CmdDestroyQP, abi.DestroyQP{QPN: 0}.Append(nil), 0, syscall.ENOENT)
}

// TestGSIOfNode: QP 1 of a function that a guest does not own is the node's.
func TestGSIOfNode(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		d := newFabric(t).newDriver(verbs, 1<<20)
		pd, c := d.pd(), d.cq(8)
		d.refused(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.GSI, SendCQN: c.num, RecvCQN: c.num,
			Cap: defaultCap}.Append(nil), abi.CreateQPResultSize, syscall.EOPNOTSUPP)
	})
}

func ud(id uint64, qpn ib.QPN, key ib.QKey, ah uint32) abi.Send {
	s := abi.Send{WRID: id, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}
	s.SetUD(qpn, key, ah)
	return s
}

// TestDriversGIDs: ADD_GID and DEL_GID change the table of the port, by which queue pairs find their source address.
func TestDriversGIDs(t *testing.T) {
	f := newCard(t)
	d := f.newDriver(false, 1<<20)
	pd := d.pd()
	own := ib.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 77}
	add := func(i uint16, g ib.GID) []byte { return abi.AddGID{Index: i, GID: g}.Append(nil) }
	for _, g := range []ib.GID{{}, {15: 1}, {10: 0xff, 11: 0xff}, {10: 0xff, 11: 0xff, 12: 127, 15: 1},
		{10: 0xff, 11: 0xff, 12: 224, 15: 1}, {0: 0xff, 1: 2, 15: 1},
		{10: 0xff, 11: 0xff, 12: 255, 13: 255, 14: 255, 15: 255}} {
		d.refused(abi.CmdAddGID, add(7, g), 0, syscall.EINVAL)
	}
	d.refused(abi.CmdAddGID, add(256, own), 0, syscall.EINVAL)
	d.refused(abi.CmdDelGID, abi.DelGID{Index: 256}.Append(nil), 0, syscall.EINVAL)
	ah := abi.CreateAH{PDN: pd, AHAttr: abi.AHAttr{DGID: gid, SGIDIndex: 255, HopLimit: 64}}.Append(nil)
	d.refused(abi.CmdCreateAH, ah, abi.CreateAHResultSize, syscall.EINVAL)
	d.must(abi.CmdAddGID, add(255, own), 0)
	d.must(abi.CmdAddGID, add(255, own), 0) // overwrites
	if f.adapter.Port().Lookup(own) != 255 {
		t.Errorf("the port has %+v", f.adapter.Port().GIDs)
	}
	d.must(abi.CmdCreateAH, ah, abi.CreateAHResultSize)
	d.must(abi.CmdDelGID, abi.DelGID{Index: 255}.Append(nil), 0)
	d.must(abi.CmdDelGID, abi.DelGID{Index: 255}.Append(nil), 0) // an empty entry is no error
	d.refused(abi.CmdCreateAH, ah, abi.CreateAHResultSize, syscall.EINVAL)
}

// TestPartOfAnotherDevice: a device without a control queue executes commands for the device that has it. Its
// rings begin at the number that it was made with, and ring 2 is not one of them.
func TestPartOfAnotherDevice(t *testing.T) {
	const first = 9
	f := newCard(t)
	own := f.tune
	d := f.newDriver(false, 4<<20) // for its memory
	d.close()
	f.tune = func(c *rdmadev.Config) { own(c); c.FirstRing = first }
	d.ctrl = nil
	d.open()
	d.ctrl.Add([]virtiotest.Buf{{GPA: d.buf, Len: 2}}, []virtiotest.Buf{{GPA: d.ans, Len: 200}})
	d.ctrl.Publish()
	d.dev.Kick(2)
	if _, _, ok := d.ctrl.Reap(); ok {
		t.Fatal("ring 2 was read")
	}
	do := func(c abi.Cmd, req []byte, size int) []byte {
		t.Helper()
		out := d.dev.Execute(append([]byte{abi.ClassRoCE, byte(c)}, req...), 1+size, nil)
		if len(out) != 1+size || out[0] != 0 {
			t.Fatalf("%v: %x", c, out)
		}
		return bytes.Clone(out[1:])
	}
	pd := parse(d, do(abi.CmdCreatePD, nil, 4), abi.ParseCreatePDResult).PDN
	n := parse(d, do(abi.CmdCreateCQ, abi.CreateCQ{CQE: 4}.Append(nil), 4), abi.ParseCreateCQResult).CQN
	c := &cq{d.start(first + n), d, n}
	c.give(8)
	q := parse(d, do(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.UD, SendCQN: n, RecvCQN: n,
		Cap: defaultCap}.Append(nil), 4), abi.ParseCreateQPResult).QPN
	send := d.start(first + maxCQ + 2*q)
	do(abi.CmdModifyQP, abi.ModifyQP{QPN: q, AttrMask: 0x9, QPState: ib.Init}.Append(nil), 0)
	do(abi.CmdModifyQP, abi.ModifyQP{QPN: q, AttrMask: abi.AttrState, QPState: ib.Err}.Append(nil), 0)
	send.post(d, make([]byte, 576))
	d.dev.Kick(send.index)
	c.expect(done{0, ib.WRFlushErr})
	if got := d.dev.Rings(); got != first+maxCQ+2*maxQP {
		t.Errorf("%d rings", got)
	}
	for _, room := range []int{0, 1} {
		if out := d.dev.Execute([]byte{abi.ClassRoCE, 99}, room, nil); len(out) != room || room == 1 && out[0] != 1 {
			t.Errorf("in room for %d: %x", room, out)
		}
	}
}

// TestShortRegUserMR: the list of pages may follow the descriptor of the command in memory instead of being part of the
// command. Both forms give the same region, and are checked alike.
func TestShortRegUserMR(t *testing.T) {
	f := newFabric(t)
	d := f.newDriver(false, 4<<20)
	pd := d.pd()
	_, at := d.buffer(3 * 4096)
	page := func(pages ...uint64) (list []byte) {
		for _, p := range pages {
			list = le64(list, p)
		}
		return list
	}
	req := func(n uint32) []byte {
		return append([]byte{abi.ClassRoCE, byte(abi.CmdRegUserMR)}, abi.RegUserMR{PDN: pd, AccessFlags: allAccess,
			VirtAddr: 0x7000_0000_0100, Length: 8192, NPages: n}.Append(nil)...)
	}
	short := func(n uint32, behind []byte) []byte {
		copy(d.mem.At(d.buf, bufSize), append(req(n), behind...))
		return d.chain([]virtiotest.Buf{{GPA: d.buf, Len: 2}, {GPA: d.buf + 2, Len: abi.RegUserMRSize}},
			[]virtiotest.Buf{{GPA: d.ans, Len: 1}, {GPA: d.ans + 1, Len: abi.MRResultSize}}, false)
	}
	good := page(at, at+4096, at+8192)
	for form, out := range map[string][]byte{"short": short(3, good), "long": d.exec(append(req(3), good...), 13)} {
		if len(out) != 13 || out[0] != 0 {
			t.Fatalf("%s form: %x", form, out)
		}
	}
	for name, c := range map[string]struct {
		n    uint32
		list []byte
	}{"not aligned": {3, page(at, at+1, at)}, "outside": {3, page(at, at, lowBase+64<<20)}, "count": {2, good},
		"zero": {0, good}, "huge": {1 << 31, good}, "many": {262144, good}} {
		if out := short(c.n, c.list); !bytes.Equal(out, []byte{1}) {
			t.Errorf("%s: %x", name, out)
		}
	}
	// The list must be in the region of the descriptor: here that ends behind the command.
	end := lowBase + d.guest.size
	copy(d.mem.At(end-34, 34), req(3))
	if out := d.chain([]virtiotest.Buf{{GPA: end - 34, Len: 34}}, []virtiotest.Buf{{GPA: d.ans, Len: 13}},
		false); !bytes.Equal(out, []byte{1}) {
		t.Errorf("a list outside memory: %x", out)
	}
	// A part of the list in the command is neither form.
	if out := d.exec(append(req(3), good[:16]...), 13); !bytes.Equal(out, []byte{1}) {
		t.Errorf("a list that is cut off: %x", out)
	}
}

// TestRateLimit: MODIFY_QP of the RFC limits the rate in RTS and on the way there, and QUERY_QP returns the limit. It
// also accepts capacities that do not change.
func TestRateLimit(t *testing.T) {
	f := newFabric(t)
	a, b := f.newDriver(false, 4<<20).end(ib.RC, 64<<10), f.newDriver(false, 4<<20).end(ib.RC, 64<<10)
	limit := func() uint32 {
		return parse(a.d, a.d.must(abi.CmdQueryQP, abi.QueryQP{QPN: a.num}.Append(nil), abi.QueryQPResultSize),
			abi.ParseQueryQPResult).RateLimit
	}
	early := abi.ModifyQP{QPState: ib.Init, QPAccessFlags: allAccess, RateLimit: 5}
	if a.tryModify(early, 0x5|abi.AttrRateLimit) == nil {
		t.Error("a rate limit in INIT")
	}
	a.connect(b.qp)
	b.connect(a.qp)
	a.modify(abi.ModifyQP{RateLimit: 8000, Cap: defaultCap}, abi.AttrRateLimit|abi.AttrCap) // 1 byte per microsecond
	if got := limit(); got != 8000 {
		t.Errorf("the limit is %d", got)
	}
	s := abi.Send{WRID: 1, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(b.at, b.mr.RKey)
	start := f.clock
	for i := range uint64(4) {
		s.WRID = i
		a.post(s, []ib.SGE{a.sge(0, 60000)}, nil)
	}
	a.kick()
	for n := 0; n < 4; {
		f.pass(time.Millisecond)
		n += len(a.cq.poll())
		if f.clock.Sub(start) > time.Second {
			t.Fatal("the writes never end")
		}
	}
	if took := f.clock.Sub(start); took < 150*time.Millisecond {
		t.Errorf("240000 bytes with 1 MB/s took %v", took)
	}
	a.modify(abi.ModifyQP{QPState: ib.RTS, RateLimit: 700}, abi.AttrState|abi.AttrRateLimit)
	if got := limit(); got != 700 {
		t.Errorf("the limit is %d", got)
	}
	other := defaultCap
	other.MaxSendWR++
	if a.tryModify(abi.ModifyQP{Cap: other}, abi.AttrCap) == nil {
		t.Error("other capacities were accepted")
	}
	a.to(ib.Reset)
	if got := limit(); got != 0 {
		t.Errorf("the limit is %d after RESET", got)
	}
}

// TestLargestRing: the largest ring bounds what the device publishes and accepts; refusals say so in words.
func TestLargestRing(t *testing.T) {
	f := newFabric(t)
	f.tune = func(c *rdmadev.Config) { c.MaxRing = 128 }
	d := f.newDriver(false, 1<<20)
	r := parse(d, d.must(abi.CmdQueryDevice, nil, abi.QueryDeviceResultSize), abi.ParseQueryDeviceResult)
	if r.MaxQPWR != 128 || r.MaxCQE != 128 {
		t.Errorf("%+v", r)
	}
	pd, c := d.pd(), d.cq(128)
	refused := func(command abi.Cmd, req []byte, words string) {
		t.Helper()
		d.refused(command, req, 4, syscall.EINVAL)
		l := d.dev.Refusals()
		if v := l[len(l)-1]; v.Command != command.String() || v.Errno != syscall.EINVAL || v.Reason != words ||
			v.At != f.clock {
			t.Errorf("%+v, want %q", v, words)
		}
	}
	refused(abi.CmdCreateCQ, abi.CreateCQ{CQE: 129}.Append(nil), "129 entries, 1 to 128 are possible")
	refused(abi.CmdCreateCQ, abi.CreateCQ{}.Append(nil), "0 entries, 1 to 128 are possible")
	for _, x := range []struct {
		cap   abi.QPCap
		words string
	}{{abi.QPCap{MaxSendWR: 129}, "max_send_wr 129, at most 128"},
		{abi.QPCap{MaxRecvWR: 129}, "max_recv_wr 129, at most 128"},
		{abi.QPCap{MaxInlineData: 513}, "max_inline_data 513, at most 512"},
		{abi.QPCap{MaxSendSGE: 33}, "max_send_sge 33, at most 32"}} {
		refused(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.UD, SendCQN: c.num, RecvCQN: c.num,
			Cap: x.cap}.Append(nil), x.words)
	}
	d.qp(qpOpt{typ: ib.UD, pd: pd, scq: c, rcq: c, cap: abi.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1,
		MaxRecvSGE: 1}}) // its rings have 64 entries
}

// TestRefusals: the device remembers the last refusals in their order, and counts each by its reason.
func TestRefusals(t *testing.T) {
	f := newFabric(t)
	d := f.newDriver(false, 1<<20)
	pd := d.pd()
	s := &d.dev.Stats
	for _, x := range []struct {
		in      []byte
		command string
		words   string
		count   *uint64
	}{
		{[]byte{6}, "no command", "1 octets of class and command, need 2", &s.RefusedFraming},
		{[]byte{6, 2}, "CREATE_CQ", "a request of 0 octets, need 4", &s.RefusedFraming},
		{[]byte{0, 1, 1}, "class 0 command 1", "class 0 is not 6", &s.RefusedCommand},
		{[]byte{6, 65}, "CREATE_SRQ", "needs the extension of bit 43", &s.RefusedCommand},
		{[]byte{6, 200}, "Cmd(200)", "there is no command 200", &s.RefusedCommand},
		{append([]byte{6, 5}, abi.DestroyPD{PDN: 77}.Append(nil)...), "DESTROY_PD",
			"there is no protection domain 77", &s.RefusedHandle},
		{append([]byte{6, 15}, abi.AddGID{Index: 9, GID: ib.GID{15: 9}}.Append(nil)...), "ADD_GID",
			"is no address of the port", &s.RefusedValue},
		{le64(append([]byte{6, 7}, abi.RegUserMR{PDN: pd, Length: 1, NPages: 1}.Append(nil)...), 1<<56), "REG_USER_MR",
			"page 0 at 0x100000000000000 is not in the memory of the guest", &s.RefusedAddress},
	} {
		before, all := *x.count, s.CtrlErrors
		if out := d.exec(x.in, 20); !bytes.Equal(out, []byte{1}) {
			t.Errorf("%x: %x", x.in, out)
		}
		l := d.dev.Refusals()
		if v := l[len(l)-1]; v.Command != x.command || !strings.Contains(v.Reason, x.words) {
			t.Errorf("%x: %+v", x.in, v)
		}
		if *x.count != before+1 || s.CtrlErrors != all+1 {
			t.Errorf("%x: counted as %+v", x.in, *s)
		}
	}
	c := d.cq(4)
	q := d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c})
	if q.tryModify(abi.ModifyQP{QPState: ib.RTS}, abi.AttrState) == nil {
		t.Fatal("RESET to RTS")
	}
	l := d.dev.Refusals()
	if v := l[len(l)-1]; v.Command != "MODIFY_QP" || !strings.Contains(v.Reason, "from RESET to RTS") {
		t.Errorf("%+v", v)
	}
	own := abi.AHAttr{DGID: gid, SGIDIndex: 1}
	for _, x := range []struct {
		change func(a *abi.AHAttr)
		words  string
	}{
		{func(a *abi.AHAttr) { a.SGIDIndex = 9 }, "sgid_index 9: the entry of the GID table is empty"},
		{func(a *abi.AHAttr) { a.DGID = ib.GID{} }, "dgid is zero"},
		{func(a *abi.AHAttr) { a.DGID = ib.GID{0: 0xfd, 15: 1} }, "one address is IPv4, the other IPv6"},
		{func(a *abi.AHAttr) { a.DMAC[0] = 1 }, "dmac 01 00 00 00 00 00 is a group's"},
	} {
		a := own
		x.change(&a)
		d.refused(abi.CmdCreateAH, abi.CreateAH{PDN: pd, AHAttr: a}.Append(nil), 4, syscall.EINVAL)
		q.to(ib.Reset)
		q.modify(abi.ModifyQP{QPState: ib.Init}, 0x5)
		if q.tryModify(abi.ModifyQP{QPState: ib.RTR, PathMTU: ib.MTU1024, AHAttr: a}, 0xaa31) == nil {
			t.Errorf("%+v was accepted", a)
		}
		for _, v := range d.dev.Refusals()[len(d.dev.Refusals())-2:] {
			if !strings.Contains(v.Reason, x.words) {
				t.Errorf("%+v, want %q", v, x.words)
			}
		}
	}
	for i := range uint32(40) {
		f.clock++
		d.exec(append([]byte{6, 2}, abi.CreateCQ{CQE: 1<<31 + i}.Append(nil)...), 20)
		l := d.dev.Refusals()
		if v := l[len(l)-1]; len(l) > 16 || !strings.HasPrefix(v.Reason, fmt.Sprint(1<<31+i)) || v.At != f.clock ||
			!slices.IsSortedFunc(l, func(a, b rdmadev.Refusal) int { return int(a.At.Sub(b.At)) }) {
			t.Fatalf("%+v", l)
		}
	}
}

// TestMalformedElementsAreCounted by their kind.
func TestMalformedElementsAreCounted(t *testing.T) {
	_, a, b := pair(t, false, ib.RC)
	a.raw(make([]byte, 100))
	a.kick()
	a.cq.expect(done{0, ib.LocQPOpErr})
	b.recv.post(b.d, make([]byte, 10))
	if got := a.d.dev.Stats; got.MalformedSend != 1 || got.MalformedReceive != 0 {
		t.Errorf("%+v", got)
	}
}

// TestNothingAfterFault: after a fault of its client the device touches no ring, whatever it is asked to do and
// whatever completes. A device that is made after a reset works.
func TestNothingAfterFault(t *testing.T) {
	f, a, b := pair(t, false, ib.RC)
	d := a.d
	a.postRecv(5, a.sge(0, 100))
	broken := d.start(2) // the control queue, on another ring
	broken.SetDesc(0, 1, 1<<30, 0, 0)
	broken.SetAvail(0, 0)
	broken.PublishIndex(1)
	if d.fault != nil {
		t.Fatal(d.fault)
	}
	d.dev.Kick(2)
	if d.fault == nil {
		t.Fatal("an element outside memory is no fault")
	}
	l := d.dev.Refusals()
	if v := l[len(l)-1]; v.Command != "device" || v.Errno != syscall.EIO || d.dev.Stats.BrokenRings != 1 {
		t.Errorf("%+v, %+v", v, d.dev.Stats)
	}
	before := bytes.Clone(d.mem.Bytes)
	// The peer sends, requests are posted, rings stop and start, commands come.
	b.post(abi.Send{WRID: 1, Opcode: uint8(ib.WRSend), Flags: ib.Signaled}, []ib.SGE{b.sge(0, 0)}, nil)
	b.kick()
	d.dev.Kick(a.send.index)
	d.dev.Kick(a.cq.index)
	q := d.dev.StopRing(a.recv.index)
	if q == nil {
		t.Error("the ring cannot be stopped")
	}
	d.dev.StartRing(a.recv.index, q, a.recv.bell)
	if out := d.dev.Execute([]byte{6, 4}, 5, nil); !bytes.Equal(out, []byte{1}) {
		t.Errorf("a command: %x", out)
	}
	d.dev.Poll()
	f.pass(100 * time.Millisecond)
	d.dev.Event(ib.EventPortActive, 1)
	d.dev.StopRing(a.cq.index)
	if !bytes.Equal(before, d.mem.Bytes) {
		t.Error("the device wrote to its client's memory after the fault")
	}
	d.close()
	d.open()
	again := d.end(ib.RC, 4096)
	b.to(ib.Reset)
	f.run()
	b.cq.give(len(b.cq.poll()))
	again.connect(b.qp)
	b.connect(again.qp)
	s := abi.Send{WRID: 3, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(b.at, b.mr.RKey)
	fill(again.mem[:64], 9)
	again.post(s, []ib.SGE{again.sge(0, 64)}, nil)
	again.kick()
	again.cq.expect(ok(3)...)
	if !bytes.Equal(b.mem[:64], again.mem[:64]) {
		t.Error("other bytes arrived")
	}
}

// TestExtensionsOfAnyDriver: a driver without WEFT_HELLO enables extensions by EXT_ENABLE, and uses them with both
// forms of send elements. Regions that the driver registers before have the access rights of the RFC only.
func TestExtensionsOfAnyDriver(t *testing.T) {
	f := newFabric(t)
	d := f.newDriver(false, 4<<20)
	pd := d.pd()
	_, at := d.buffer(8192)
	if r := d.mr(pd, at, 100, ib.LocalWrite); r.RKey != 0 {
		t.Errorf("%+v: an R_Key without rights for peers", r)
	}
	getDMA := func(a ib.Access) []byte { return abi.GetDMAMR{PDN: pd, AccessFlags: a}.Append(nil) }
	d.refused(abi.CmdGetDMAMR, getDMA(ib.LocalWrite|ib.RemoteAtomic), abi.MRResultSize, syscall.EINVAL)
	mask := d.enable()
	if mask&(1<<abi.CapVerbs|1<<abi.CapSRQResize) != 0 || mask&(1<<abi.CapSRQ) == 0 {
		t.Fatalf("enabled %#x", mask)
	}
	if r := parse(d, d.must(abi.CmdQueryDevice, nil, abi.QueryDeviceResultSize),
		abi.ParseQueryDeviceResult); r.MaxSRQ == 0 || r.MaxMW == 0 || r.ActiveMTU != uint32(ib.MTU1024) || r.AtomicCap != abi.AtomicHCA || r.MaxMcastGrp == 0 {
		t.Errorf("%+v", r)
	}
	if r := d.mr(pd, at, 100, ib.LocalWrite); r.RKey != r.LKey {
		t.Errorf("%+v: rights may come later", r)
	}
	all := parse(d, d.must(abi.CmdGetDMAMR, getDMA(allAccess|ib.RemoteAtomic|ib.MWBind), abi.MRResultSize),
		abi.ParseMRResult)
	// What needs a program is not there, and an errno is in the ack.
	if out := d.exec(append([]byte{6, byte(abi.CmdRegMRVA)}, make([]byte, 64)...), 20); !bytes.Equal(out,
		[]byte{byte(syscall.EOPNOTSUPP)}) {
		t.Errorf("REG_MR_VA: %x", out)
	}
	for c, n := range map[abi.Cmd]int{abi.CmdQueryGID: abi.QueryGIDResultSize,
		abi.CmdQueryPKey: abi.QueryPKeyResultSize} {
		d.must(c, make([]byte, 8), n)
	}
	if p := parse(d, d.must(abi.CmdQueryPortEx, abi.QueryPortEx{Port: 1}.Append(nil), abi.QueryPortExResultSize),
		abi.ParseQueryPortExResult); p.State != uint8(ib.PortActive) || p.ActiveMTU != ib.MTU1024 {
		t.Errorf("%+v", p)
	}

	c := d.cq(32)
	srq := parse(d, d.must(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: pd, MaxWR: 8, MaxSGE: 1}.Append(nil),
		abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
	shared := d.start(srq.RingIndex)
	var q [2]*qp
	for i, flags := range []uint32{0, abi.QPSGWQE} {
		b := d.must(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.RC, SendCQN: c.num, RecvCQN: c.num,
			Cap: defaultCap, SRQN1: srq.SRQN + 1, QPFlags: flags}.Append(nil), abi.CreateQPResultSize)
		n := parse(d, b, abi.ParseCreateQPResult).QPN
		q[i] = &qp{d: d, typ: ib.RC, num: n, wire: ib.QPN(n), form: &abi.SendRFC, send: d.start(3 + maxCQ + 2*n)}
	}
	q[1].form = &abi.SendCompact
	for i, x := range q {
		x.access = allAccess | ib.RemoteAtomic
		x.connect(q[1-i])
	}
	mem := d.mem.At(at, 64)
	for i, x := range q {
		binary.LittleEndian.PutUint64(mem[8:], 41)
		s := abi.Send{WRID: uint64(i), Opcode: abi.OpFetchAdd, Flags: ib.Signaled}
		s.SetAtomic(at+8, 1, 0, all.RKey)
		x.post(s, []ib.SGE{{Addr: at, Len: 8, LKey: all.LKey}}, nil)
		x.kick()
		c.expect(ok(uint64(i))...)
		if got := binary.LittleEndian.Uint64(mem[8:]); got != 42 {
			t.Errorf("41+1 is %d", got)
		}
		shared.post(d, recvElement(9, []ib.SGE{{Addr: at + 32, Len: 8, LKey: all.LKey}}))
		d.dev.Kick(shared.index)
		x.post(abi.Send{WRID: 8, Opcode: uint8(ib.WRSend), Flags: ib.Signaled},
			[]ib.SGE{{Addr: at, Len: 8, LKey: all.LKey}}, nil)
		x.kick()
		c.expect(ok(9, 8)...)
	}
	w := d.window(pd, abi.MWType1)
	bind := abi.Send{WRID: 11, Opcode: abi.OpBindMW, Flags: ib.Signaled}
	bind.SetBind(abi.Bind{Addr: at, Length: 64, Object: uint32(all.LKey), Key: w.RKey, Access: ib.RemoteWrite})
	q[0].post(bind, nil, nil)
	q[0].kick()
	c.expect(ok(11)...)
	u := d.qp(qpOpt{typ: ib.UD, pd: pd, scq: c, rcq: c})
	group := abi.AttachMcast{QPN: u.num, GID: ib.GID{10: 0xff, 11: 0xff, 12: 239, 15: 1}}.Append(nil)
	d.must(abi.CmdAttachMcast, group, 0)
	d.must(abi.CmdDetachMcast, group, 0)

	// EXT_ENABLE with nothing makes it a device of the RFC again.
	d.must(abi.CmdExtEnable, abi.ExtEnable{}.Append(nil), abi.ExtEnableSize)
	d.refused(abi.CmdGetDMAMR, getDMA(ib.LocalWrite|ib.RemoteAtomic), abi.MRResultSize, syscall.EINVAL)
}

// TestDestroyDropsWaitingCompletions: completions that wait for a buffer when their queue pair is destroyed are dropped:
// its number may soon be another's. Those of other queue pairs stay, in their order.
func TestDestroyDropsWaitingCompletions(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		f, a, b := pair(t, verbs, ib.RC)
		other := &end{pd: a.pd, mr: a.mr, mem: a.mem, at: a.at, cq: a.cq,
			qp: a.d.qp(qpOpt{typ: ib.RC, pd: a.pd, scq: a.cq, rcq: a.cq})}
		far := b.d.end(ib.RC, 4096)
		other.connect(far.qp)
		far.connect(other.qp)
		q := a.d.dev.StopRing(a.cq.index)
		for id := range uint64(3) {
			a.writes(b, id, 1)
			other.writes(far, 10+id, 1)
		}
		f.run()
		a.to(ib.Reset)
		a.d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: a.num}.Append(nil), 0)
		a.d.dev.StartRing(a.cq.index, q, a.cq.bell)
		a.cq.expect(ok(10, 11, 12)...)
	})
}

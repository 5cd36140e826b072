// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"weft/internal/device/rdmadev"
	"weft/internal/device/virtio"
	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
)

// fabric is a node without sockets: one lane, driven by the test, and a clock
// that the test moves.
type fabric struct {
	t          testing.TB
	adapter    *hca.Adapter
	lane       *hca.Lane
	clock      mono.Time
	privileged bool                  // of drivers made from now on
	tune       func(*rdmadev.Config) // changes the configuration of devices made from now on; may be nil
	owned      bool                  // a driver owns the adapter; other plain ones have numbers as programs have
}

// noLink refuses to be used: these tests stay within the node.
type noLink struct{ t testing.TB }

func (l noLink) Send(mono.Time, *pkt.Burst, *mem.Batch) mem.Result {
	l.t.Error("a run left the node")
	return mem.OK
}
func (l noLink) Blocked() bool   { return false }
func (l noLink) Flush(mono.Time) {}

// gid is the address of the port of every fabric, in entry 1 of the table.
var gid = ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 7}

func newFabric(t testing.TB) *fabric {
	l := hca.DefaultLimits
	l.PD, l.AH = 64, 64
	a := hca.NewAdapter(&hca.Port{Link: ib.LinkEthernet, State: ib.PortActive, Phys: ib.PhysLinkUp, MTU: ib.MTU1024,
		MaxMTU: ib.MTU4096, PKeys: []ib.PKey{ib.DefaultPKey},
		GIDs: []hca.GIDEntry{{}, {GID: gid}, {GID: ib.GID{10: 0xff, 11: 0xff, 12: 192, 13: 168, 14: 100, 15: 1}},
			{GID: ib.GID{0: 0xfe, 1: 0x80, 15: 9}}},
		MaxRun: 60 << 10, MaxLocalRun: 256 << 10}, l)
	return &fabric{t: t, adapter: a, lane: hca.NewLane(hca.NewFunctions(a), 0, noLink{t}, nil),
		clock: mono.Time(time.Second)}
}

// run lets the lane work until it is idle. Time stands still.
func (f *fabric) run() {
	f.t.Helper()
	for i := 0; f.lane.Run(f.clock); i++ {
		if i == 10000 {
			f.t.Fatal("the lane never comes to rest")
		}
	}
}

// pass lets time pass up to d, running at every deadline on the way.
func (f *fabric) pass(d time.Duration) {
	f.t.Helper()
	end := f.clock.Add(d)
	for i := 0; ; i++ {
		f.run()
		next := f.lane.Deadline()
		if next == 0 || end.Sub(next) < 0 {
			break
		}
		if i == 100000 {
			f.t.Fatal("deadlines without end")
		}
		f.clock = max(next, f.clock+1)
	}
	f.clock = end
	f.run()
}

// guest is memory that a client announced: the first size bytes of Memory, one
// region.
type guest struct {
	*mem.Slice
	*virtiotest.Memory
	size uint64
}

func (g guest) Contains(addr, n uint64) bool {
	return addr >= g.Base && addr-g.Base <= g.size && n <= g.size-(addr-g.Base)
}

// Prefix implements virtio.Memory.
func (g guest) Prefix(addr, n uint64) []byte {
	if addr < g.Base || addr-g.Base >= g.size {
		return nil
	}
	return g.Memory.Prefix(addr, min(n, g.size-(addr-g.Base)))
}

// guard is what lies behind the memory that is announced, which nothing may touch.
var guard = bytes.Repeat([]byte{0x5a}, 64<<10)

// guarded reports whether it is untouched.
func (d *driver) guarded() bool { return bytes.Equal(d.mem.Bytes[d.guest.size:], guard) }

// bell is a Caller that counts, and has no room while full.
type bell struct {
	calls int
	full  bool
}

func (b *bell) Call() (again bool) {
	if b.full {
		return true
	}
	b.calls++
	return false
}

const (
	maxCQ, maxQP = 64, 64
	ringNum      = 64
	slotSize     = 2048 // holds every element
	lowBase      = 0x0ff00000
)

// ring is a ring with its slots, one per descriptor.
type ring struct {
	*virtiotest.Ring
	index uint32
	slots uint64
	bell  *bell
}

// driver is one client: memory, a device, and the rings between them.
type driver struct {
	t     testing.TB
	f     *fabric
	verbs bool
	mem   *virtiotest.Memory
	guest guest
	dev   *rdmadev.Device
	ctrl  *ring
	buf   uint64 // of control commands
	ans   uint64
	fault error   // why the device ended the session
	broke []error // rings of objects that are in error
	owner bool    // its handles of queue pairs are numbers on the wire
}

const (
	bufSize = 4096
	ansSize = 512
)

// newDriver makes a client with size bytes of memory and a running control queue.
func (f *fabric) newDriver(verbs bool, size int) *driver {
	f.t.Helper()
	d := &driver{t: f.t, f: f, verbs: verbs, mem: virtiotest.NewMemory(f.t, size+len(guard))}
	d.mem.Base = lowBase
	d.guest = guest{mem.NewSlice(lowBase, d.mem.Bytes[:size:size]), d.mem, uint64(size)}
	copy(d.mem.Bytes[size:], guard)
	f.t.Cleanup(func() {
		if !d.guarded() {
			f.t.Error("memory that was not announced was written")
		}
	})
	d.open()
	return d
}

// open gives the client a device, a fresh one after a reset.
func (d *driver) open() {
	f, verbs := d.f, d.verbs
	f.t.Helper()
	d.fault = nil
	c := rdmadev.Config{Adapter: f.adapter, Lane: f.lane,
		Guest: rdmadev.Guest{Space: d.guest, Words: d.guest, Contains: d.guest.Contains},
		Now:   func() mono.Time { return f.clock },
		Log:   slog.New(slog.DiscardHandler), MaxCQ: maxCQ, MaxQP: maxQP, Verbs: verbs, Privileged: f.privileged,
		Fail: func(err error) { d.fault = err }}
	if !verbs {
		c.Broke = func(err error) { d.broke = append(d.broke, err) }
	}
	if f.tune != nil {
		f.tune(&c)
	}
	d.dev = rdmadev.New(c)
	attach := f.adapter.Attach
	if d.owner || !verbs && !f.owned {
		attach, d.owner, f.owned = f.adapter.AttachOwner, true, true
	}
	if err := attach(d.dev.Session()); err != nil {
		f.t.Fatal(err)
	}
	if d.ctrl == nil {
		d.ctrl = d.start(2)
		d.buf, d.ans = d.mem.Alloc(bufSize, 8), d.mem.Alloc(ansSize, 8)
	} else {
		d.ctrl.Reset()
		d.attach(d.ctrl)
	}
	if verbs {
		d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(0)}.Append(nil), abi.ExtEnableSize)
	} else if f.tune == nil {
		for i := uint16(1); i < 4; i++ {
			d.must(abi.CmdAddGID, abi.AddGID{Index: i, GID: f.adapter.Port().GIDs[i].GID}.Append(nil), 0)
		}
	}
}

// close ends the client's session, as its disconnection does.
func (d *driver) close() {
	if d.owner {
		d.f.owned, d.owner = false, false
	}
	d.f.adapter.Detach(d.dev.Session())
	d.dev.Close()
}

// consistent reports what is wrong with the counts that objects keep of each
// other, or nothing.
func (d *driver) consistent() error {
	i := d.dev.Session().Inspect()
	pds, cqs := map[uint32]int{}, map[uint32]int{}
	for _, v := range i.MRs {
		pds[v.PDN]++
	}
	for _, v := range i.AHs {
		pds[v.PDN]++
	}
	windows := map[uint32]int{}
	for _, v := range i.MWs {
		pds[v.PDN]++
		windows[v.MRN]++
	}
	for _, v := range i.MRs {
		if v.Windows != windows[v.MRN] {
			return fmt.Errorf("region %d counts %d windows, there are %d", v.MRN, v.Windows, windows[v.MRN])
		}
	}
	for _, v := range i.SRQs {
		pds[v.PDN]++
	}
	for _, v := range i.QPs {
		pds[v.PDN]++
		cqs[v.SendCQ]++
		cqs[v.RecvCQ]++
	}
	for _, v := range i.PDs {
		if v.Users != pds[v.PDN] {
			return fmt.Errorf("domain %d counts %d users, there are %d", v.PDN, v.Users, pds[v.PDN])
		}
	}
	for _, v := range i.CQs {
		if v.Users != cqs[v.CQN] {
			return fmt.Errorf("completion queue %d counts %d users, there are %d", v.CQN, v.Users, cqs[v.CQN])
		}
	}
	if n, all := d.dev.Session().Objects(), len(i.PDs)+len(i.MRs)+len(i.MWs)+len(i.CQs)+len(i.QPs)+len(i.SRQs)+
		len(i.AHs); n != all {
		return fmt.Errorf("%d objects counted, there are %d", n, all)
	}
	return nil
}

// modes runs a test for a plain RFC device and for a program's.
func modes(t *testing.T, test func(t *testing.T, verbs bool)) {
	t.Run("rfc", func(t *testing.T) { test(t, false) })
	t.Run("weft", func(t *testing.T) { test(t, true) })
}

// start makes a ring and gives it to the device.
func (d *driver) start(index uint32) *ring {
	d.t.Helper()
	r := &ring{Ring: virtiotest.NewRing(d.mem, ringNum, false), index: index, bell: &bell{}}
	r.slots = d.mem.Alloc(ringNum*slotSize, 64)
	d.attach(r)
	return r
}

func (d *driver) attach(r *ring) {
	d.t.Helper()
	q, err := virtio.New(d.guest, r.Config())
	if err != nil {
		d.t.Fatal(err)
	}
	d.dev.StartRing(r.index, q, r.bell)
}

// exec executes one control command given as class, command and data, with
// room bytes for the answer, and returns what the device wrote. Bytes it had
// no business to write are checked.
func (d *driver) exec(in []byte, room int) []byte {
	d.t.Helper()
	copy(d.mem.At(d.buf, bufSize), in)
	var out []virtiotest.Buf
	if room > 0 {
		out = append(out, virtiotest.Buf{GPA: d.ans, Len: room})
	}
	return d.chain([]virtiotest.Buf{{GPA: d.buf, Len: len(in)}}, out, false)
}

func (d *driver) chain(in, out []virtiotest.Buf, indirect bool) []byte {
	d.t.Helper()
	ans := d.mem.At(d.ans, ansSize)
	for i := range ans {
		ans[i] = 0xa5
	}
	if indirect {
		d.ctrl.AddIndirect(in, out)
	} else {
		d.ctrl.Add(in, out)
	}
	d.ctrl.Publish()
	d.dev.Kick(d.ctrl.index)
	_, n, ok := d.ctrl.Reap()
	if !ok {
		d.t.Fatalf("no answer; fault: %v", d.fault)
	}
	for i := int(n); i < ansSize; i++ {
		if ans[i] != 0xa5 {
			d.t.Fatalf("an answer of %d bytes, yet byte %d was written", n, i)
		}
	}
	return append([]byte(nil), ans[:n]...)
}

// ack is the failure of a command.
type ack uint8

func (a ack) Error() string { return fmt.Sprintf("ack %d (%v)", uint8(a), syscall.Errno(a)) }

// do executes a command of the RoCE class.
func (d *driver) do(c abi.Cmd, req []byte, size int) ([]byte, error) {
	d.t.Helper()
	out := d.exec(append(abi.CtrlHeader{Cls: abi.ClassRoCE, Command: c}.Append(nil), req...), 1+size)
	switch {
	case len(out) == 0:
		d.t.Fatalf("%v: no ack", c)
	case out[0] == abi.AckOK && len(out) != 1+size:
		d.t.Fatalf("%v: %d bytes, want %d", c, len(out), 1+size)
	case out[0] != abi.AckOK && len(out) != 1:
		d.t.Fatalf("%v: refused with %d bytes", c, len(out))
	case out[0] != abi.AckOK:
		return nil, ack(out[0])
	}
	return out[1:], nil
}

func (d *driver) must(c abi.Cmd, req []byte, size int) []byte {
	d.t.Helper()
	b, err := d.do(c, req, size)
	if err != nil {
		d.t.Fatalf("%v: %v", c, err)
	}
	return b
}

// refused executes a command that must fail: with errno e for a program, with 1 for a plain driver.
func (d *driver) refused(c abi.Cmd, req []byte, size int, e syscall.Errno) {
	d.t.Helper()
	want := ack(e)
	if !d.verbs {
		want = abi.AckErr
	}
	before := d.dev.Session().Objects()
	if _, err := d.do(c, req, size); err != want {
		d.t.Errorf("%v: %v, want %v", c, err, want)
	}
	if n := d.dev.Session().Objects(); n != before {
		d.t.Errorf("%v refused, yet %d objects became %d", c, before, n)
	}
}

func parse[T any](d *driver, b []byte, f func([]byte) (T, error)) T {
	d.t.Helper()
	v, err := f(b)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (d *driver) pd() uint32 {
	d.t.Helper()
	return parse(d, d.must(abi.CmdCreatePD, nil, abi.CreatePDResultSize), abi.ParseCreatePDResult).PDN
}

// buffer returns n fresh bytes, page aligned.
func (d *driver) buffer(n int) ([]byte, uint64) {
	gpa := d.mem.Alloc(n, 4096)
	return d.mem.At(gpa, n), gpa
}

const allAccess = ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead

// mr registers memory by whichever way the client has; addresses are GPAs.
func (d *driver) mr(pd uint32, gpa uint64, n int, access ib.Access) abi.MRResult {
	d.t.Helper()
	if d.verbs {
		return parse(d, d.must(abi.CmdRegMRVA, abi.RegMRVA{PDN: pd, Access: access, VA: gpa, Length: uint64(n),
			IOVA: gpa}.Append(nil), abi.MRResultSize), abi.ParseMRResult)
	}
	first := gpa &^ 4095
	count := (gpa + uint64(n) - first + 4095) / 4096
	req := abi.RegUserMR{PDN: pd, AccessFlags: access, VirtAddr: gpa, Length: uint64(n),
		NPages: uint32(count)}.Append(nil)
	for i := range count {
		req = le64(req, first+4096*i)
	}
	return parse(d, d.must(abi.CmdRegUserMR, req, abi.MRResultSize), abi.ParseMRResult)
}

// cq is a completion queue with its ring, full of buffers.
type cq struct {
	*ring
	d   *driver
	num uint32
}

func (d *driver) cq(cqe uint32) *cq {
	d.t.Helper()
	n := parse(d, d.must(abi.CmdCreateCQ, abi.CreateCQ{CQE: cqe}.Append(nil), abi.CreateCQResultSize),
		abi.ParseCreateCQResult).CQN
	c := &cq{d.start(3 + n), d, n}
	c.give(ringNum)
	return c
}

// give posts n buffers, without a kick.
func (c *cq) give(n int) {
	for range n {
		c.Add(nil, []virtiotest.Buf{{GPA: c.slots + uint64(c.Next())*slotSize, Len: abi.CQESize}})
	}
	c.Publish()
}

// poll returns the completions and does not return the buffers.
func (c *cq) poll() (list []abi.CQE) {
	c.d.t.Helper()
	for {
		head, n, ok := c.Reap()
		if !ok {
			return list
		}
		if n != abi.CQESize {
			c.d.t.Fatalf("a completion of %d bytes", n)
		}
		list = append(list, parse(c.d, c.d.mem.At(c.slots+uint64(head)*slotSize, abi.CQESize), abi.ParseCQE))
	}
}

// expect polls after a run: exactly these statuses, for these requests.
func (c *cq) expect(want ...done) []abi.CQE {
	c.d.t.Helper()
	c.d.f.run()
	got := c.poll()
	if len(got) != len(want) {
		c.d.t.Fatalf("%d completions, want %d: %+v", len(got), len(want), got)
	}
	for i, w := range want {
		if got[i].WRID != w.id || got[i].Status != abi.WireStatus(w.status) {
			c.d.t.Fatalf("completion %d: request %d with status %d, want %d with %d (%v)", i, got[i].WRID,
				got[i].Status, w.id, abi.WireStatus(w.status), w.status)
		}
	}
	c.give(len(got))
	return got
}

type done struct {
	id     uint64
	status ib.Status
}

func ok(ids ...uint64) (list []done) {
	for _, i := range ids {
		list = append(list, done{i, ib.Success})
	}
	return list
}

// qp is a queue pair with its rings.
type qp struct {
	d          *driver
	num        uint32
	wire       ib.QPN
	typ        ib.QPType
	form       *abi.SendForm
	send, recv *ring
	access     ib.Access // rights of the peer; 0: the default
}

type qpOpt struct {
	typ        ib.QPType
	pd         uint32
	scq, rcq   *cq
	srq1       uint32
	sigAll     bool
	cap        abi.QPCap
	unattached bool // without rings
}

var defaultCap = abi.QPCap{MaxSendWR: ringNum, MaxRecvWR: ringNum, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 256}

func (d *driver) qp(o qpOpt) *qp {
	d.t.Helper()
	if o.cap == (abi.QPCap{}) {
		o.cap = defaultCap
	}
	m := abi.CreateQP{PDN: o.pd, QPType: o.typ, SendCQN: o.scq.num, RecvCQN: o.rcq.num, Cap: o.cap, SRQN1: o.srq1}
	if o.sigAll {
		m.SQSigAll = 1
	}
	q := &qp{d: d, typ: o.typ, form: &abi.SendRFC}
	size := abi.CreateQPResultSize
	if d.verbs {
		m.QPFlags, q.form, size = abi.QPSGWQE, &abi.SendCompact, abi.CreateQPResultExSize
	}
	b := d.must(abi.CmdCreateQP, m.Append(nil), size)
	if d.verbs {
		r := parse(d, b, abi.ParseCreateQPResultEx)
		q.num, q.wire = r.QPN, r.WireQPN
	} else {
		q.num = parse(d, b, abi.ParseCreateQPResult).QPN
		q.wire = ib.QPN(uint32(d.dev.Session().Number())<<14 | q.num)
		if d.owner && q.wire != ib.QPN(q.num) {
			d.t.Fatalf("CREATE_QP returned %d, on the wire it is %d", q.num, q.wire)
		}
	}
	if !o.unattached {
		q.send = d.start(3 + maxCQ + 2*q.num)
		if o.srq1 == 0 {
			q.recv = d.start(4 + maxCQ + 2*q.num)
		}
	}
	return q
}

// tryModify changes attributes; mask is the RFC's.
func (q *qp) tryModify(a abi.ModifyQP, mask abi.AttrMask) error {
	q.d.t.Helper()
	a.QPN, a.AttrMask = q.num, mask
	if !q.d.verbs {
		_, err := q.d.do(abi.CmdModifyQP, a.Append(nil), 0)
		return err
	}
	v, known := mask.Verbs()
	if !known {
		q.d.t.Fatalf("mask %#x", mask)
	}
	if a.QPState == ib.Init && mask&abi.AttrState != 0 {
		v |= ib.AttrPKeyIndex | ib.AttrPort
	}
	_, err := q.d.do(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: q.num, AttrMask: v, QPState: a.QPState,
		CurQPState: a.CurQPState, PathMTU: a.PathMTU, QKey: a.QKey,
		RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPNum, Access: a.QPAccessFlags, MaxRdAtomic: a.MaxRdAtomic,
		MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, Port: 1, Timeout: a.Timeout, RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry, IsGlobal: 1, AHAttr: a.AHAttr}.Append(nil), 0)
	return err
}

func (q *qp) modify(a abi.ModifyQP, mask abi.AttrMask) {
	q.d.t.Helper()
	if err := q.tryModify(a, mask); err != nil {
		q.d.t.Fatalf("modify to %v: %v", a.QPState, err)
	}
}

func (q *qp) to(s ib.QPState) { q.d.t.Helper(); q.modify(abi.ModifyQP{QPState: s}, abi.AttrState) }

const qkey = 0x11111111

// connect takes the queue pair to RTS, towards peer unless it is UD.
func (q *qp) connect(peer *qp) {
	q.d.t.Helper()
	a := abi.ModifyQP{PathMTU: ib.MTU1024, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MinRNRTimer: 1, Timeout: 14,
		RetryCnt: 3, RNRRetry: 3,
		QKey: qkey, RQPSN: 100, SQPSN: 100, QPAccessFlags: allAccess, AHAttr: abi.AHAttr{DGID: gid, SGIDIndex: 1,
			HopLimit: 64}}
	if q.d.verbs {
		a.QPAccessFlags |= ib.RemoteAtomic
	}
	if q.access != 0 {
		a.QPAccessFlags = q.access
	}
	if peer != nil {
		a.DestQPNum = peer.wire
	}
	masks := map[ib.QPType][3]abi.AttrMask{ib.RC: {0x5, 0xaa31, 0x15c1}, ib.UC: {0x5, 0x8231, 0x1001},
		ib.UD: {0x9, 0x1, 0x1001}}[q.typ]
	for i, s := range []ib.QPState{ib.Init, ib.RTR, ib.RTS} {
		a.QPState = s
		q.modify(a, masks[i])
	}
}

// element returns the bytes of a send element.
func (q *qp) element(s abi.Send, list []ib.SGE, inline []byte) []byte {
	b := make([]byte, q.form.Head, slotSize)
	if s.Flags&ib.Inline != 0 {
		if s.Num == 0 {
			s.Num = uint32(len(inline))
		}
		s.Put(b, q.form)
		for len(b) < q.form.Inline+len(inline) {
			b = append(b, 0)
		}
		copy(b[q.form.Inline:], inline)
		return b
	}
	s.Num = uint32(len(list))
	s.Put(b, q.form)
	n := len(b)
	b = b[:n+len(list)*abi.SGESize]
	abi.PutSGEs(b[n:], list)
	return b
}

// post posts a send request without a kick; kick sends it.
func (q *qp) post(s abi.Send, list []ib.SGE, inline []byte) {
	q.raw(q.element(s, list, inline))
}

func (q *qp) raw(b []byte) { q.send.post(q.d, b) }

// post copies an element into a slot and gives it to the device. Used elements
// are free again before.
func (r *ring) post(d *driver, b []byte) {
	for {
		if _, _, ok := r.Reap(); !ok {
			break
		}
	}
	slot := r.slots + uint64(r.Next())*slotSize
	copy(d.mem.At(slot, len(b)), b)
	r.Add([]virtiotest.Buf{{GPA: slot, Len: len(b)}}, nil)
	r.Publish()
}

func (q *qp) kick() { q.d.dev.Kick(q.send.index) }

func recvElement(id uint64, list []ib.SGE) []byte {
	b := make([]byte, abi.RQSize+len(list)*abi.SGESize)
	e := abi.Recv{WRID: id, Num: uint32(len(list))}
	e.Put(b)
	abi.PutSGEs(b[abi.RQSize:], list)
	return b
}

// postRecv posts a receive request and kicks.
func (q *qp) postRecv(id uint64, list ...ib.SGE) {
	q.recv.post(q.d, recvElement(id, list))
	q.d.dev.Kick(q.recv.index)
}

// outstanding returns how many send and receive elements the device holds.
func (q *qp) outstanding() (send, recv int) {
	for _, r := range []*ring{q.send, q.recv} {
		for r != nil {
			if _, _, ok := r.Reap(); !ok {
				break
			}
		}
	}
	if q.recv != nil {
		recv = q.recv.Outstanding()
	}
	return q.send.Outstanding(), recv
}

func (d *driver) ah(pd uint32) uint32 {
	d.t.Helper()
	return parse(d, d.must(abi.CmdCreateAH, abi.CreateAH{PDN: pd, AHAttr: abi.AHAttr{DGID: gid, SGIDIndex: 1,
		HopLimit: 64}}.Append(nil), abi.CreateAHResultSize), abi.ParseCreateAHResult).AH
}

// end is one client of a connected pair: a queue pair with everything around.
type end struct {
	*qp
	pd  uint32
	mr  abi.MRResult
	mem []byte
	at  uint64
	cq  *cq
}

func (d *driver) end(typ ib.QPType, size int) *end {
	d.t.Helper()
	e := &end{pd: d.pd()}
	e.cq = d.cq(ringNum)
	e.mem, e.at = d.buffer(size)
	access := allAccess
	if d.verbs {
		access |= ib.RemoteAtomic
	}
	e.mr = d.mr(e.pd, e.at, size, access)
	e.qp = d.qp(qpOpt{typ: typ, pd: e.pd, scq: e.cq, rcq: e.cq})
	return e
}

func (e *end) sge(off, n int) ib.SGE {
	return ib.SGE{Addr: e.at + uint64(off), Len: uint32(n), LKey: e.mr.LKey}
}

// pair is two clients with a queue pair each, connected.
func pair(t testing.TB, verbs bool, typ ib.QPType) (f *fabric, a, b *end) {
	t.Helper()
	f = newFabric(t)
	a, b = f.newDriver(verbs, 4<<20).end(typ, 64<<10), f.newDriver(verbs, 4<<20).end(typ, 64<<10)
	a.connect(b.qp)
	b.connect(a.qp)
	return f, a, b
}

func (d *driver) newBell(b *virtiotest.Doorbell) *virtio.Doorbell {
	d.t.Helper()
	v, err := virtio.NewDoorbell(d.guest, b.GPA, b.NBits)
	if err != nil {
		d.t.Fatal(err)
	}
	return v
}

func fill(b []byte, seed byte) []byte {
	n := min(len(b), 1<<16)
	for i := range b[:n] {
		b[i] = byte(i*7) + byte(i>>8) + seed
	}
	for ; n > 0 && n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
	return b
}

func le64(b []byte, v uint64) []byte {
	for range 8 {
		b = append(b, byte(v))
		v >>= 8
	}
	return b
}

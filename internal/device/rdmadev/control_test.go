// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"syscall"
	"testing"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/verbs/hca"
)

// TestFraming frames commands every way a driver may (virtio 1.x: message
// framing is the driver's choice).
func TestFraming(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		d := newFabric(t).newDriver(verbs, 4<<20)
		create := append([]byte{6, 2}, abi.CreateCQ{CQE: 16}.Append(nil)...)
		split := func(gpa uint64, total int, at ...int) (list []virtiotest.Buf) {
			from := 0
			for _, p := range append(at, total) {
				list = append(list, virtiotest.Buf{GPA: gpa + uint64(from), Len: p - from})
				from = p
			}
			return list
		}
		next := uint32(0)
		for _, c := range []struct {
			name     string
			in, out  []int
			indirect bool
		}{
			{name: "one and one"},
			{name: "as the Linux driver", in: []int{2}, out: []int{1}},
			{name: "class apart", in: []int{1, 2}},
			{name: "every byte apart", in: []int{1, 2, 3, 4, 5}, out: []int{1, 2, 3, 4}},
			{name: "empty pieces", in: []int{0, 2, 2}, out: []int{0, 1, 1}},
			{name: "indirect", in: []int{2}, out: []int{1}, indirect: true},
			{name: "indirect, every byte apart", in: []int{1, 2, 3, 4, 5}, out: []int{1, 2, 3, 4}, indirect: true},
		} {
			copy(d.mem.At(d.buf, bufSize), create)
			got := d.chain(split(d.buf, len(create), c.in...), split(d.ans, 5, c.out...), c.indirect)
			want := append([]byte{0}, abi.CreateCQResult{CQN: next}.Append(nil)...)
			if !bytes.Equal(got, want) {
				t.Errorf("%s: %x, want %x", c.name, got, want)
			}
			next++
		}
		if n := d.dev.Session().Objects(); n != int(next) {
			t.Errorf("%d objects, want %d", n, next)
		}
		// Without a writable byte there is no way to answer: counted, returned.
		before := d.dev.Stats.CtrlNoRoom
		if got := d.chain(split(d.buf, len(create)), nil, false); len(got) != 0 {
			t.Errorf("answer %x without room", got)
		}
		if d.dev.Stats.CtrlNoRoom != before+1 || d.dev.Session().Objects() != int(next) {
			t.Error("a command without room for its ack: not counted, or executed")
		}
		// Nothing to read at all.
		if got := d.chain(nil, split(d.ans, 8), false); len(got) != 1 || got[0] == 0 {
			t.Errorf("an empty command: %x", got)
		}
		// Every other class is refused, whatever the command.
		for class := range 256 {
			if class == abi.ClassRoCE {
				continue
			}
			if got := d.exec([]byte{byte(class), byte(abi.CmdCreatePD)}, 200); len(got) != 1 || got[0] == 0 {
				t.Errorf("class %d: %x", class, got)
			}
		}
		// And every command that does not exist.
		for c := range 256 {
			if n := abi.Cmd(c); n <= abi.CmdReqNotifyCQ || n >= abi.CmdExtEnable && n <= abi.CmdDetachMcast {
				continue
			}
			want := byte(abi.AckErr)
			if verbs {
				want = byte(syscall.EOPNOTSUPP)
			}
			if got := d.exec(append([]byte{6, byte(c)}, make([]byte, 300)...), 200); !bytes.Equal(got, []byte{want}) {
				t.Errorf("command %d: %x", c, got)
			}
		}
		if d.fault != nil || d.dev.Session().Objects() != int(next) {
			t.Errorf("fault %v, %d objects", d.fault, d.dev.Session().Objects())
		}
	})
}

// TestExtensionsMustBeEnabled: without EXT_ENABLE a device is as the RFC has
// it, and offers its extensions by bits of device_cap_flags only.
func TestExtensionsMustBeEnabled(t *testing.T) {
	f := newFabric(t)
	plain := f.newDriver(false, 4<<20)
	shared := uint64(1<<abi.CapAtomic | 1<<abi.CapMemMgt | 1<<abi.CapMW | 1<<abi.CapSRQ | 1<<abi.CapAsyncEVQ |
		1<<abi.CapErrnoAck | 1<<abi.CapSGWQE | 1<<abi.CapArmDoorbell | 1<<abi.CapAtomicWrite | 1<<abi.CapMcast |
		1<<abi.CapPortAttr | 1<<abi.CapQPAttr | 1<<abi.CapCQResize)
	for c := abi.CmdCreateSRQ; c <= abi.CmdDetachMcast; c++ {
		if got := plain.exec(append([]byte{6, byte(c)}, make([]byte, 300)...), 256); !bytes.Equal(got, []byte{1}) {
			t.Errorf("command %v of a plain device: %x", c, got)
		}
	}
	if r := parse(plain, plain.must(abi.CmdQueryDevice, nil, abi.QueryDeviceResultSize),
		abi.ParseQueryDeviceResult); r.DeviceCapFlags>>40<<40 != shared || r.MaxSRQ|r.MaxInline|r.MaxPKeys != 0 {
		t.Errorf("a plain device with nothing enabled: %+v", r)
	}

	d := f.newDriver(true, 4<<20)
	r := parse(d, d.must(abi.CmdQueryDevice, nil, abi.QueryDeviceResultSize), abi.ParseQueryDeviceResult)
	want := shared | 1<<abi.CapVerbs | 1<<abi.CapSRQResize
	if r.DeviceCapFlags>>40<<40 != want || r.MaxSRQ != f.adapter.Limits().SRQ ||
		r.MaxInline != f.adapter.Limits().Inline || r.AtomicCap != abi.AtomicHCA ||
		r.MaxMW != f.adapter.Limits().MW || r.MaxFastRegPages != abi.MaxFastRegPages {
		t.Errorf("%+v", r)
	}
	enable := func(mask uint64) uint64 {
		return parse(d, d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: mask}.Append(nil), abi.ExtEnableSize),
			abi.ParseExtEnable).Mask
	}
	if got := enable(^uint64(0)); got != want {
		t.Errorf("enabled %#x, want %#x", got, want)
	}
	if got := enable(0); got != 0 {
		t.Errorf("enabled %#x of nothing", got)
	}
	for c := abi.CmdCreateSRQ; c <= abi.CmdDetachMcast; c++ {
		if got := d.exec(append([]byte{6, byte(c)}, make([]byte, 300)...), 256); !bytes.Equal(got, []byte{1}) {
			t.Errorf("command %v without its extension: %x", c, got)
		}
	}
}

func TestDestroyRules(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		d := newFabric(t).newDriver(verbs, 8<<20)
		pd, other := d.pd(), d.pd()
		scq, rcq := d.cq(16), d.cq(16)
		_, at := d.buffer(4096)
		mr := d.mr(pd, at, 4096, allAccess)
		ah := d.ah(pd)
		q := d.qp(qpOpt{typ: ib.UD, pd: pd, scq: scq, rcq: rcq})
		destroyPD := func(n uint32) []byte { return abi.DestroyPD{PDN: n}.Append(nil) }
		destroyCQ := func(n uint32) []byte { return abi.DestroyCQ{CQN: n}.Append(nil) }
		destroyAH := func(pd, n uint32) []byte { return abi.DestroyAH{PDN: pd, AH: n}.Append(nil) }

		d.refused(abi.CmdDestroyPD, destroyPD(pd), 0, syscall.EBUSY)
		d.refused(abi.CmdDestroyCQ, destroyCQ(scq.num), 0, syscall.EBUSY)
		d.refused(abi.CmdDestroyCQ, destroyCQ(rcq.num), 0, syscall.EBUSY)
		d.refused(abi.CmdDestroyAH, destroyAH(other, ah), 0, syscall.EINVAL)
		for _, stale := range []uint32{99, 1 << 31, ^uint32(0)} {
			d.refused(abi.CmdDestroyPD, destroyPD(stale), 0, syscall.ENOENT)
			d.refused(abi.CmdDestroyCQ, destroyCQ(stale), 0, syscall.ENOENT)
			d.refused(abi.CmdDestroyAH, destroyAH(pd, stale), 0, syscall.ENOENT)
			d.refused(abi.CmdDestroyQP, abi.DestroyQP{QPN: stale}.Append(nil), 0, syscall.ENOENT)
			d.refused(abi.CmdDeregMR, abi.DeregMR{MRN: stale}.Append(nil), 0, syscall.ENOENT)
			d.refused(abi.CmdQueryQP, abi.QueryQP{QPN: stale}.Append(nil), abi.QueryQPResultSize, syscall.ENOENT)
			d.refused(abi.CmdModifyQP, abi.ModifyQP{QPN: stale, AttrMask: 1}.Append(nil), 0, syscall.ENOENT)
			d.refused(abi.CmdReqNotifyCQ, abi.ReqNotifyCQ{CQN: stale}.Append(nil), 0, syscall.ENOENT)
			d.refused(abi.CmdGetDMAMR, abi.GetDMAMR{PDN: stale}.Append(nil), abi.MRResultSize, syscall.ENOENT)
			d.refused(abi.CmdCreateAH, abi.CreateAH{PDN: stale, AHAttr: abi.AHAttr{DGID: gid,
				SGIDIndex: 1}}.Append(nil), abi.CreateAHResultSize, syscall.ENOENT)
			d.refused(abi.CmdCreateQP, abi.CreateQP{PDN: stale, QPType: ib.RC, SendCQN: scq.num,
				RecvCQN: rcq.num}.Append(nil), abi.CreateQPResultSize, syscall.ENOENT)
			d.refused(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.RC, SendCQN: stale,
				RecvCQN: rcq.num}.Append(nil), abi.CreateQPResultSize, syscall.ENOENT)
			d.refused(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.RC, SendCQN: scq.num,
				RecvCQN: stale}.Append(nil), abi.CreateQPResultSize, syscall.ENOENT)
		}
		// In the order of dependence each goes, once.
		for _, c := range []struct {
			cmd abi.Cmd
			req []byte
		}{
			{abi.CmdDestroyQP, abi.DestroyQP{QPN: q.num}.Append(nil)},
			{abi.CmdDestroyAH, destroyAH(pd, ah)},
			{abi.CmdDeregMR, abi.DeregMR{MRN: mr.MRN}.Append(nil)},
			{abi.CmdDestroyCQ, destroyCQ(scq.num)},
			{abi.CmdDestroyCQ, destroyCQ(rcq.num)},
			{abi.CmdDestroyPD, destroyPD(pd)},
			{abi.CmdDestroyPD, destroyPD(other)},
		} {
			d.must(c.cmd, c.req, 0)
			d.refused(c.cmd, c.req, 0, syscall.ENOENT)
		}
		if n := d.dev.Session().Objects(); n != 0 {
			t.Errorf("%d objects left", n)
		}
	})
}

func TestRefusedRequests(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		d := newFabric(t).newDriver(verbs, 8<<20)
		pd := d.pd()
		c := d.cq(16)
		l := d.f.adapter.Limits()
		for _, n := range []uint32{0, l.CQE + 1, ^uint32(0)} {
			d.refused(abi.CmdCreateCQ, abi.CreateCQ{CQE: n}.Append(nil), abi.CreateCQResultSize, syscall.EINVAL)
		}
		qp := func(change func(*abi.CreateQP), e syscall.Errno) {
			t.Helper()
			m := abi.CreateQP{PDN: pd, QPType: ib.RC, SendCQN: c.num, RecvCQN: c.num, Cap: defaultCap}
			change(&m)
			d.refused(abi.CmdCreateQP, m.Append(nil), abi.CreateQPResultSize, e)
		}
		for _, typ := range []ib.QPType{ib.GSI, 0, 5, 255} {
			qp(func(m *abi.CreateQP) { m.QPType = typ }, syscall.EOPNOTSUPP)
		}
		qp(func(m *abi.CreateQP) { m.Cap.MaxSendWR = l.QPWR + 1 }, syscall.EINVAL)
		qp(func(m *abi.CreateQP) { m.Cap.MaxRecvWR = l.QPWR + 1 }, syscall.EINVAL)
		qp(func(m *abi.CreateQP) { m.Cap.MaxSendSGE = l.SGE + 1 }, syscall.EINVAL)
		qp(func(m *abi.CreateQP) { m.Cap.MaxRecvSGE = l.SGE + 1 }, syscall.EINVAL)
		qp(func(m *abi.CreateQP) { m.Cap.MaxInlineData = abi.MaxInlineRFC + 1 }, syscall.EINVAL)
		if verbs {
			qp(func(m *abi.CreateQP) { m.QPFlags = 2 }, syscall.EINVAL)
			qp(func(m *abi.CreateQP) { m.SRQN1 = 7 }, syscall.ENOENT)
			qp(func(m *abi.CreateQP) { m.QPFlags, m.Cap.MaxInlineData = abi.QPSGWQE, l.Inline+1 }, syscall.EINVAL)
		}
		flags := []ib.Access{ib.RemoteWrite, 1 << 30}
		if !verbs {
			// The RFC defines three rights.
			flags = append(flags, ib.LocalWrite|ib.RemoteAtomic, ib.MWBind, ib.ZeroBased)
		}
		for _, a := range flags {
			d.refused(abi.CmdGetDMAMR, abi.GetDMAMR{PDN: pd, AccessFlags: a}.Append(nil), abi.MRResultSize,
				syscall.EINVAL)
		}
		ah := func(e syscall.Errno, change func(*abi.AHAttr)) {
			t.Helper()
			v := abi.AHAttr{DGID: gid, SGIDIndex: 1, HopLimit: 1}
			change(&v)
			d.refused(abi.CmdCreateAH, abi.CreateAH{PDN: pd, AHAttr: v}.Append(nil), abi.CreateAHResultSize, e)
		}
		ah(syscall.EINVAL, func(v *abi.AHAttr) { v.SGIDIndex = 0 })
		ah(syscall.EINVAL, func(v *abi.AHAttr) { v.SGIDIndex = 200 })
		if verbs {
			ah(syscall.EINVAL, func(v *abi.AHAttr) { v.Flags = abi.AHNoGRH })
		}
		ah(syscall.EINVAL, func(v *abi.AHAttr) { v.DGID = ib.GID{} })
		ah(syscall.EINVAL, func(v *abi.AHAttr) { v.DGID = ib.GID{0: 0xfe, 15: 1} }) // another family
		d.refused(abi.CmdReqNotifyCQ, abi.ReqNotifyCQ{CQN: c.num, Flags: 4}.Append(nil), 0, syscall.EINVAL)

		// Limits: each kind until there are no more, then again after one goes.
		for range l.AH {
			d.ah(pd)
		}
		d.refused(abi.CmdCreateAH, abi.CreateAH{PDN: pd, AHAttr: abi.AHAttr{DGID: gid, SGIDIndex: 1}}.Append(nil),
			abi.CreateAHResultSize, syscall.ENOSPC)
		for range maxCQ - 1 {
			d.must(abi.CmdCreateCQ, abi.CreateCQ{CQE: 1}.Append(nil), abi.CreateCQResultSize)
		}
		d.refused(abi.CmdCreateCQ, abi.CreateCQ{CQE: 1}.Append(nil), abi.CreateCQResultSize, syscall.ENOSPC)
		d.must(abi.CmdDestroyCQ, abi.DestroyCQ{CQN: 7}.Append(nil), 0)
		d.must(abi.CmdCreateCQ, abi.CreateCQ{CQE: 1}.Append(nil), abi.CreateCQResultSize)
		make := abi.CreateQP{PDN: pd, QPType: ib.UC, SendCQN: c.num, RecvCQN: c.num}.Append(nil)
		for range maxQP - 2 { // numbers 0 and 1 are not ordinary
			n := parse(d, d.must(abi.CmdCreateQP, make, abi.CreateQPResultSize), abi.ParseCreateQPResult).QPN
			if n < 2 || n >= maxQP {
				t.Fatalf("queue pair %d has no rings", n)
			}
		}
		d.refused(abi.CmdCreateQP, make, abi.CreateQPResultSize, syscall.ENOSPC)
	})
}

// TestRegUserMR: the page size is the smallest that makes the count right, and
// every page must be announced memory.
func TestRegUserMR(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		d := newFabric(t).newDriver(verbs, 8<<20)
		pd := d.pd()
		d.mem.Alloc(0, 1<<20)
		at := d.mem.Alloc(4<<20, 1<<20) // the 1 MiB boundaries: lowBase is not one, so look below
		big := (at + 1<<20 - 1) &^ (1<<20 - 1)
		end := lowBase + uint64(len(d.mem.Bytes))
		req := func(va, n uint64, npages uint32, pages ...uint64) []byte {
			b := abi.RegUserMR{PDN: pd, AccessFlags: 7, VirtAddr: va, Length: n, NPages: npages}.Append(nil)
			for _, p := range pages {
				b = le64(b, p)
			}
			return b
		}
		for _, c := range []struct {
			name string
			req  []byte
			e    syscall.Errno
		}{
			{"one page", req(0, 1, 1, at), 0},
			{"a page that is not whole", req(0x10, 4080, 1, at), 0},
			{"three pages of 4 KiB, scattered", req(0x7f1234567800, 0x2000, 3, at, at+0x5000, at+0x1000), 0},
			{"no page size gives five", req(0x7f1234567800, 0x2000, 5, at, at, at, at, at), syscall.EINVAL},
			{"one of 1 MiB", req(0, 1<<20, 1, big), 0},
			{"one of 1 MiB, not aligned", req(0, 1<<20, 1, big+4096), syscall.EINVAL},
			{"two of 64 KiB", req(0, 128<<10, 2, big, big+1<<17), 0},
			{"no pages", req(0, 4096, 0), syscall.EINVAL},
			{"nothing", req(0, 0, 1, at), syscall.EINVAL},
			{"wraps", req(^uint64(0)-100, 4096, 2, at, at+4096), syscall.EINVAL},
			{"up to the top", req(^uint64(0)-4095, 4096, 1, at), 0},
			{"list too short", req(0, 8192, 2, at), syscall.EINVAL},
			{"list without end", req(0, 1<<44, ^uint32(0), at), syscall.EINVAL},
			{"not aligned", req(0, 4096, 1, at+8), syscall.EINVAL},
			{"not announced", req(0, 4096, 1, end), syscall.EFAULT},
			{"second not announced", req(0, 8192, 2, at, 0x1000), syscall.EFAULT},
			{"page at the top of the addresses", req(0, 4096, 1, ^uint64(0)&^4095), syscall.EFAULT},
			{"last page beyond the end", req(0, 1<<21, 1, end&^(1<<21-1)), syscall.EFAULT},
		} {
			if c.e != 0 {
				d.refused(abi.CmdRegUserMR, c.req, abi.MRResultSize, c.e)
			} else if _, err := d.do(abi.CmdRegUserMR, c.req, abi.MRResultSize); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if t.Failed() {
				t.Fatalf("at %q", c.name)
			}
		}
		bad := abi.RegUserMR{PDN: 77, AccessFlags: 7, Length: 1, NPages: 1}.Append(nil)
		d.refused(abi.CmdRegUserMR, le64(bad, at), abi.MRResultSize, syscall.ENOENT)
		bad = abi.RegUserMR{PDN: pd, AccessFlags: 2, Length: 1, NPages: 1}.Append(nil)
		d.refused(abi.CmdRegUserMR, le64(bad, at), abi.MRResultSize, syscall.EINVAL)
	})
}

// TestKeysAndHandles: keys vary in every bit and repeat never, handles come
// back late.
func TestKeysAndHandles(t *testing.T) {
	d := newFabric(t).newDriver(true, 4<<20)
	pd := d.pd()
	seen := map[ib.Key]bool{}
	var or, and ib.Key = 0, ^ib.Key(0)
	var last uint32
	for i := range 500 {
		r := parse(d, d.must(abi.CmdGetDMAMR, abi.GetDMAMR{PDN: pd, AccessFlags: 7}.Append(nil), abi.MRResultSize),
			abi.ParseMRResult)
		if seen[r.LKey] || r.LKey == 0 {
			t.Fatalf("key %#x again", r.LKey)
		}
		if r.MRN <= last {
			t.Fatalf("handle %d after %d", r.MRN, last)
		}
		seen[r.LKey], last = true, r.MRN
		or, and = or|r.LKey|r.RKey, and&r.LKey&r.RKey
		if i%2 == 0 {
			d.must(abi.CmdDeregMR, abi.DeregMR{MRN: r.MRN}.Append(nil), 0)
		}
	}
	if or != ^ib.Key(0) || and != 0 {
		t.Errorf("bits of keys that never vary: set %#x, clear %#x", and, ^or)
	}
	c := d.cq(1)
	first := d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c, unattached: true}).num
	for n := first; ; {
		d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: n}.Append(nil), 0)
		next := d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c, unattached: true}).num
		if next == maxQP-1 {
			break // all others came before
		}
		if next != n+1 {
			t.Fatalf("queue pair %d after %d", next, n)
		}
		n = next
	}
}

// TestExtensionCommands: each command of docs/notes/virtio-roce.md once as it should be, and
// each way it can be wrong.
func TestExtensionCommands(t *testing.T) {
	f := newFabric(t)
	d := f.newDriver(true, 8<<20)
	pd := d.pd()
	c := d.cq(16)
	data, at := d.buffer(8192)
	_ = data

	// Port, GIDs and partition keys.
	p := parse(d, d.must(abi.CmdQueryPortEx, abi.QueryPortEx{Port: 1}.Append(nil), abi.QueryPortExResultSize),
		abi.ParseQueryPortExResult)
	if p.State != 4 || p.PhysState != 5 || p.LinkLayer != 2 || p.ActiveMTU != ib.MTU1024 || p.MaxMTU != ib.MTU4096 ||
		p.GIDTblLen != 256 || p.PKeyTblLen != 1 || p.MaxMsgSz != 1<<31 {
		t.Errorf("port: %+v", p)
	}
	d.refused(abi.CmdQueryPortEx, abi.QueryPortEx{Port: 2}.Append(nil), abi.QueryPortExResultSize, syscall.EINVAL)
	d.refused(abi.CmdQueryPortEx, abi.QueryPortEx{}.Append(nil), abi.QueryPortExResultSize, syscall.EINVAL)
	g := parse(d, d.must(abi.CmdQueryGID, abi.QueryGID{Index: 1}.Append(nil), abi.QueryGIDResultSize),
		abi.ParseQueryGIDResult)
	if g.GID != gid || g.Valid != abi.GIDOfHost || g.Type != abi.GIDTypeRoCEv2 {
		t.Errorf("GID 1: %+v", g)
	}
	port := *f.adapter.Port()
	port.GIDs = append([]hca.GIDEntry{}, port.GIDs...)
	port.GIDs[1].LocalOnly = true
	f.adapter.SetPort(&port)
	g = parse(d, d.must(abi.CmdQueryGID, abi.QueryGID{Index: 1}.Append(nil), abi.QueryGIDResultSize),
		abi.ParseQueryGIDResult)
	if g.GID != gid || g.Valid != abi.GIDOfNode {
		t.Errorf("GID 1, which is no address of the host: %+v", g)
	}
	for _, i := range []uint32{0, 4, 255} {
		if g := parse(d, d.must(abi.CmdQueryGID, abi.QueryGID{Index: i}.Append(nil), abi.QueryGIDResultSize),
			abi.ParseQueryGIDResult); g.Valid != 0 || !g.GID.IsZero() {
			t.Errorf("GID %d: %+v", i, g)
		}
	}
	d.refused(abi.CmdQueryGID, abi.QueryGID{Index: 256}.Append(nil), abi.QueryGIDResultSize, syscall.EINVAL)
	if k := parse(d, d.must(abi.CmdQueryPKey, abi.QueryPKey{}.Append(nil), abi.QueryPKeyResultSize),
		abi.ParseQueryPKeyResult); k.PKey != ib.DefaultPKey {
		t.Errorf("P_Key %#x", k.PKey)
	}
	d.refused(abi.CmdQueryPKey, abi.QueryPKey{Index: 1}.Append(nil), abi.QueryPKeyResultSize, syscall.EINVAL)
	// The GID table is the port's: a program cannot write it.
	d.refused(abi.CmdAddGID, abi.AddGID{Index: 5, GID: gid}.Append(nil), 0, syscall.EINVAL)

	// Memory by address.
	reg := func(va, n, iova uint64, a ib.Access) []byte {
		return abi.RegMRVA{PDN: pd, Access: a, VA: va, Length: n, IOVA: iova}.Append(nil)
	}
	for _, bad := range []struct {
		req []byte
		e   syscall.Errno
	}{
		{reg(^uint64(0)-10, 100, 0, 7), syscall.EINVAL},   // wraps
		{reg(at, 8192, ^uint64(0)-10, 7), syscall.EINVAL}, // wraps where peers address it
		// not announced, and no process memory was handed over
		{reg(0x1000, 10, 0, 7), syscall.EPERM},
		{reg(at, 10, 5, 1|ib.ZeroBased), syscall.EINVAL},              // zero based, yet not at zero
		{reg(at, 10, at, ib.RemoteAtomic), syscall.EINVAL},            // needs local write
		{reg(at, 10, at, 1<<30), syscall.EINVAL},                      // no such right
		{abi.RegMRVA{PDN: 99, Length: 0}.Append(nil), syscall.ENOENT}, // no such domain
		{reg(lowBase-1, 10, lowBase-1, 1), syscall.EPERM},             // begins below what is announced
		{reg(lowBase+8<<20-5, 10, lowBase+8<<20-5, 1), syscall.EPERM}, // ends above it
		{reg(^uint64(0), 1, 0, 1), syscall.EPERM},                     // the last byte of all
	} {
		d.refused(abi.CmdRegMRVA, bad.req, abi.MRResultSize, bad.e)
	}
	register := func(req []byte) abi.MRResult {
		t.Helper()
		return parse(d, d.must(abi.CmdRegMRVA, req, abi.MRResultSize), abi.ParseMRResult)
	}
	register(reg(0, 0, 0, 1))                  // nothing is legal
	register(reg(at, 4096, 0, 1|ib.ZeroBased)) // from zero
	register(reg(at, 4096, at, 1|1<<20|1<<29)) // optional rights may be ignored
	m := register(reg(at, 4096, at, 1))
	if m.LKey == 0 || m.RKey == 0 {
		t.Errorf("local registration: %+v", m)
	}

	// Re-registration changes the keys with the memory; where it is refused the
	// old one stands.
	rereg := func(flags uint32, change func(*abi.ReregMR)) []byte {
		v := abi.ReregMR{MRN: m.MRN, Flags: flags}
		if change != nil {
			change(&v)
		}
		return v.Append(nil)
	}
	for _, bad := range []struct {
		req []byte
		e   syscall.Errno
	}{
		{rereg(0, nil), syscall.EINVAL},
		{rereg(8, nil), syscall.EINVAL},
		{rereg(abi.ReregPD, func(v *abi.ReregMR) { v.PDN = 99 }), syscall.ENOENT},
		{rereg(abi.ReregAccess, func(v *abi.ReregMR) { v.Access = ib.RemoteWrite }), syscall.EINVAL},
		{rereg(abi.ReregTranslation, func(v *abi.ReregMR) { v.VA, v.Length = 0x1000, 10 }), syscall.EPERM},
		{rereg(abi.ReregTranslation, func(v *abi.ReregMR) { v.VA, v.Length, v.IOVA = at, 8192, ^uint64(0)-10 }),
			syscall.EINVAL},
		{rereg(abi.ReregPD, func(v *abi.ReregMR) { v.MRN, v.PDN = 999, pd }), syscall.ENOENT},
	} {
		d.refused(abi.CmdReregMR, bad.req, abi.MRResultSize, bad.e)
	}
	r := parse(d, d.must(abi.CmdReregMR, rereg(abi.ReregAccess, func(v *abi.ReregMR) { v.Access = 7 }),
		abi.MRResultSize), abi.ParseMRResult)
	if r != m {
		t.Errorf("other rights: %+v, was %+v", r, m)
	}
	r = parse(d, d.must(abi.CmdReregMR, rereg(abi.ReregTranslation, func(v *abi.ReregMR) {
		v.VA, v.Length,
			v.IOVA = at, 100, at
	}), abi.MRResultSize), abi.ParseMRResult)
	if r.MRN != m.MRN || r.LKey == m.LKey || r.RKey == m.RKey {
		t.Errorf("other memory: %+v, was %+v", r, m)
	}
	pd2 := d.pd()
	d.must(abi.CmdReregMR, rereg(abi.ReregPD, func(v *abi.ReregMR) { v.PDN = pd2 }), abi.MRResultSize)
	d.refused(abi.CmdDestroyPD, abi.DestroyPD{PDN: pd2}.Append(nil), 0, syscall.EBUSY)
	d.must(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0)
	d.must(abi.CmdDestroyPD, abi.DestroyPD{PDN: pd2}.Append(nil), 0)

	// Queue pairs by the extension.
	q := d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c})
	query := func() abi.QPAttrEx {
		return parse(d, d.must(abi.CmdQueryQPEx, abi.QueryQPEx{QPN: q.num}.Append(nil), abi.QPAttrExSize),
			abi.ParseQPAttrEx)
	}
	av := abi.AHAttr{DGID: gid, SGIDIndex: 1, HopLimit: 9, FlowLabel: 77, TrafficClass: 3, DMAC: [6]byte{2, 0, 0, 0,
		0, 7}}
	d.must(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: q.num,
		AttrMask: ib.AttrState | ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags, QPState: ib.Init, Port: 1, Access: 15}.Append(nil), 0)
	rtr := abi.QPAttrEx{QPN: q.num, AttrMask: ib.AttrState | ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN |
		ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer,
		QPState: ib.RTR, PathMTU: ib.MTU1024, DestQPNum: 0x123456, RQPSN: 0x654321, MaxDestRdAtomic: 4, MinRNRTimer: 12, AHAttr: av, SL: 5}
	d.refused(abi.CmdModifyQPEx, rtr.Append(nil), 0, syscall.EINVAL) // an Ethernet port needs a GRH
	rtr.IsGlobal = 1
	d.must(abi.CmdModifyQPEx, rtr.Append(nil), 0)
	got := query()
	want := abi.QPAttrEx{QPN: q.num, QPState: ib.RTR, CurQPState: ib.RTR, PathMTU: ib.MTU1024, RQPSN: 0x654321,
		DestQPNum: 0x123456, Access: 15,
		MaxDestRdAtomic: 4, MinRNRTimer: 12, Port: 1, IsGlobal: 1, Cap: defaultCap, AHAttr: av, SL: 5, QPType: ib.RC}
	if got != want {
		t.Errorf("attributes\ngot  %+v\nwant %+v", got, want)
	}
	d.refused(abi.CmdQueryQPEx, abi.QueryQPEx{QPN: 60}.Append(nil), abi.QPAttrExSize, syscall.ENOENT)
	d.refused(abi.CmdModifyQPEx, abi.QPAttrEx{QPN: 60, AttrMask: 1}.Append(nil), 0, syscall.ENOENT)

	// Shared receive queues.
	srq := func(wr, sge, limit uint32) []byte {
		return abi.CreateSRQ{PDN: pd, MaxWR: wr, MaxSGE: sge, Limit: limit}.Append(nil)
	}
	l := f.adapter.Limits()
	for _, bad := range [][]byte{srq(0, 1, 0), srq(l.SRQWR+1, 1, 0), srq(1, l.SGE+1, 0), srq(1, 1, 2)} {
		d.refused(abi.CmdCreateSRQ, bad, abi.CreateSRQResultSize, syscall.EINVAL)
	}
	d.refused(abi.CmdCreateSRQ, abi.CreateSRQ{PDN: 99, MaxWR: 1}.Append(nil), abi.CreateSRQResultSize, syscall.ENOENT)
	s := parse(d, d.must(abi.CmdCreateSRQ, srq(32, 3, 5), abi.CreateSRQResultSize), abi.ParseCreateSRQResult)
	if s.RingIndex != 4+maxCQ+2*s.SRQN {
		t.Errorf("SRQ %d has ring %d", s.SRQN, s.RingIndex)
	}
	querySRQ := func() abi.QuerySRQResult {
		return parse(d, d.must(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: s.SRQN}.Append(nil), abi.QuerySRQResultSize),
			abi.ParseQuerySRQResult)
	}
	if r := querySRQ(); r != (abi.QuerySRQResult{MaxWR: 32, MaxSGE: 3, Limit: 5}) {
		t.Errorf("SRQ: %+v", r)
	}
	modify := func(mask, wr, limit uint32) []byte {
		return abi.ModifySRQ{SRQN: s.SRQN, Mask: mask, MaxWR: wr, Limit: limit}.Append(nil)
	}
	d.must(abi.CmdModifySRQ, modify(abi.SRQLimit, 0, 7), 0)
	if r := querySRQ(); r.Limit != 7 {
		t.Errorf("SRQ: %+v", r)
	}
	d.refused(abi.CmdModifySRQ, modify(abi.SRQLimit, 0, 33), 0, syscall.EINVAL)
	// The capacity, alone and with the limit, never below it; all or nothing.
	d.must(abi.CmdModifySRQ, modify(abi.SRQMaxWR, 64, 999), 0)
	d.must(abi.CmdModifySRQ, modify(abi.SRQMaxWR|abi.SRQLimit, 16, 16), 0)
	d.must(abi.CmdModifySRQ, modify(0, 1, 1), 0)
	for _, bad := range [][]byte{modify(abi.SRQMaxWR, 0, 0), modify(abi.SRQMaxWR, l.SRQWR+1, 0),
		modify(abi.SRQMaxWR, 15, 0),
		modify(abi.SRQMaxWR|abi.SRQLimit, 64, 65), modify(abi.SRQMaxWR|abi.SRQLimit, 0, 0), modify(abi.SRQLimit, 0,
			17)} {
		d.refused(abi.CmdModifySRQ, bad, 0, syscall.EINVAL)
	}
	if r := querySRQ(); r != (abi.QuerySRQResult{MaxWR: 16, MaxSGE: 3, Limit: 16}) {
		t.Errorf("SRQ: %+v", r)
	}
	d.must(abi.CmdModifySRQ, modify(abi.SRQMaxWR|abi.SRQLimit, l.SRQWR, 0), 0)
	d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(1 << abi.CapSRQResize)}.Append(nil), abi.ExtEnableSize)
	d.refused(abi.CmdModifySRQ, modify(abi.SRQMaxWR, 64, 0), 0, syscall.EOPNOTSUPP)
	d.must(abi.CmdModifySRQ, modify(abi.SRQLimit, 0, 7), 0)
	d.must(abi.CmdExtEnable, abi.ExtEnable{Mask: ^uint64(0)}.Append(nil), abi.ExtEnableSize)
	// A queue pair is no SRQ and an SRQ no queue pair.
	d.refused(abi.CmdQuerySRQ, abi.QuerySRQ{SRQN: q.num}.Append(nil), abi.QuerySRQResultSize, syscall.ENOENT)
	d.refused(abi.CmdDestroySRQ, abi.DestroySRQ{SRQN: q.num}.Append(nil), 0, syscall.ENOENT)
	d.refused(abi.CmdDestroyQP, abi.DestroyQP{QPN: s.SRQN}.Append(nil), 0, syscall.ENOENT)
	d.refused(abi.CmdQueryQPEx, abi.QueryQPEx{QPN: s.SRQN}.Append(nil), abi.QPAttrExSize, syscall.ENOENT)
	user := d.qp(qpOpt{typ: ib.RC, pd: pd, scq: c, rcq: c, srq1: s.SRQN + 1})
	d.refused(abi.CmdDestroySRQ, abi.DestroySRQ{SRQN: s.SRQN}.Append(nil), 0, syscall.EBUSY)
	d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: user.num}.Append(nil), 0)
	d.must(abi.CmdDestroySRQ, abi.DestroySRQ{SRQN: s.SRQN}.Append(nil), 0)

	// Completion queues.
	d.refused(abi.CmdResizeCQ, abi.ResizeCQ{CQN: 50, CQE: 1}.Append(nil), 0, syscall.ENOENT)
	d.refused(abi.CmdResizeCQ, abi.ResizeCQ{CQN: c.num}.Append(nil), 0, syscall.EINVAL)
	d.refused(abi.CmdResizeCQ, abi.ResizeCQ{CQN: c.num, CQE: l.CQE + 1}.Append(nil), 0, syscall.EINVAL)
	d.must(abi.CmdResizeCQ, abi.ResizeCQ{CQN: c.num, CQE: 100}.Append(nil), 0)
	d.refused(abi.CmdSetArmArea, abi.SetArmArea{CQN: 50, GPA: at}.Append(nil), 0, syscall.ENOENT)
	for _, bad := range []uint64{at + 1, 0, lowBase - 2, lowBase + 8<<20} {
		d.refused(abi.CmdSetArmArea, abi.SetArmArea{CQN: c.num, GPA: bad}.Append(nil), 0, syscall.EINVAL)
	}
	d.refused(abi.CmdSetArmArea, abi.SetArmArea{CQN: c.num, Flags: 1, GPA: at}.Append(nil), 0, syscall.EINVAL)
	d.refused(abi.CmdSetEVQ, abi.SetEVQ{CQN: 50}.Append(nil), 0, syscall.ENOENT)
	ev := d.cq(4)
	d.refused(abi.CmdSetEVQ, abi.SetEVQ{CQN: ev.num, Flags: 1}.Append(nil), 0, syscall.EINVAL)
	d.refused(abi.CmdSetEVQ, abi.SetEVQ{CQN: c.num}.Append(nil), 0, syscall.EBUSY) // a queue pair completes there
	d.must(abi.CmdSetEVQ, abi.SetEVQ{CQN: ev.num}.Append(nil), 0)
	d.refused(abi.CmdSetEVQ, abi.SetEVQ{CQN: ev.num}.Append(nil), 0, syscall.EINVAL)
	d.refused(abi.CmdCreateQP, abi.CreateQP{PDN: pd, QPType: ib.RC, SendCQN: ev.num, RecvCQN: ev.num}.Append(nil),
		abi.CreateQPResultSize, syscall.EINVAL)
	d.must(abi.CmdDestroyCQ, abi.DestroyCQ{CQN: ev.num}.Append(nil), 0)
}

// TestReregPages: a registration by page keeps its pages where only its rights
// or its domain change.
func TestReregPages(t *testing.T) {
	f := newFabric(t)
	d, peer := f.newDriver(true, 4<<20), f.newDriver(true, 4<<20).end(ib.RC, 4096)
	e := d.end(ib.RC, 4096)
	d.dev.SetProc(mem.NewSlice(0, make([]byte, 1<<20))) // what a wrong translation would hit
	e.connect(peer.qp)
	peer.connect(e.qp)
	data, at := d.buffer(8192)
	fill(data, 1)
	req := abi.RegUserMR{PDN: e.pd, AccessFlags: 1, VirtAddr: 0x800, Length: 4096, NPages: 2}.Append(nil)
	req = le64(le64(req, at+4096), at)
	m := parse(d, d.must(abi.CmdRegUserMR, req, abi.MRResultSize), abi.ParseMRResult)
	m = parse(d, d.must(abi.CmdReregMR, abi.ReregMR{MRN: m.MRN, Flags: abi.ReregAccess, Access: 7}.Append(nil),
		abi.MRResultSize), abi.ParseMRResult)
	want := append(append([]byte{}, data[4096+0x800:]...), data[:0x800]...)
	s := abi.Send{WRID: 1, Opcode: uint8(ib.WRWrite), Flags: ib.Signaled}
	s.SetRDMA(peer.at, peer.mr.RKey)
	e.post(s, []ib.SGE{{Addr: 0x800, Len: 4096, LKey: m.LKey}}, nil)
	e.kick()
	e.cq.expect(ok(1)...)
	if !bytes.Equal(peer.mem, want) {
		t.Error("the bytes of other pages arrived")
	}
}

// TestCommandsTakeTurns: a queue full of commands costs several turns, and the
// device does not sleep in between.
func TestCommandsTakeTurns(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		d := newFabric(t).newDriver(verbs, 1<<20)
		const count = 32
		copy(d.mem.At(d.buf, bufSize), abi.CtrlHeader{Cls: abi.ClassRoCE, Command: abi.CmdQueryPort}.Append(nil))
		answers := d.mem.Alloc(count*ansSize, 8)
		for i := range uint64(count) {
			d.ctrl.Add([]virtiotest.Buf{{GPA: d.buf, Len: bufSize}},
				[]virtiotest.Buf{{GPA: answers + i*ansSize, Len: ansSize}})
		}
		d.ctrl.Publish()
		d.dev.Kick(d.ctrl.index)
		done, turns := 0, 1
		for ; ; turns++ {
			for {
				if _, _, ok := d.ctrl.Reap(); !ok {
					break
				}
				done++
			}
			if done == count {
				break
			}
			if d.dev.Sleep() {
				t.Fatalf("sleeps after %d of %d commands", done, count)
			}
			if d.dev.Wake(); !d.dev.Poll() {
				t.Fatalf("no work after %d of %d commands", done, count)
			}
		}
		if turns < 3 {
			t.Errorf("%d commands of %d bytes in %d turns", count, bufSize, turns)
		}
		if d.dev.Poll() || !d.dev.Sleep() {
			t.Error("not at rest afterwards")
		}
	})
}

// TestControlledQKey: only the privileged give their queue pairs a Q_Key with
// the top bit, by either command.
func TestControlledQKey(t *testing.T) {
	modes(t, func(t *testing.T, verbs bool) {
		for _, privileged := range []bool{false, true} {
			f := newFabric(t)
			f.privileged = privileged
			d := f.newDriver(verbs, 8<<20)
			pd, c := d.pd(), d.cq(16)
			q := d.qp(qpOpt{typ: ib.UD, pd: pd, scq: c, rcq: c})
			a, mask := abi.ModifyQP{QPState: ib.Init, QKey: 0x80000000}, abi.AttrState|abi.AttrQKey
			err := q.tryModify(a, mask)
			switch {
			case privileged && err != nil:
				t.Errorf("privileged: %v", err)
			case !privileged && verbs && err != error(ack(syscall.EPERM)), !privileged && err == nil:
				t.Errorf("not privileged: %v", err)
			}
			if !privileged {
				a.QKey = 0x7fffffff
				q.modify(a, mask)
			}
			q.to(ib.RTR)
			// Where the mask does not have it, it is not looked at.
			q.modify(abi.ModifyQP{QPState: ib.RTS, QKey: 0xffffffff}, abi.AttrState|abi.AttrSQPSN)
		}
	})
}

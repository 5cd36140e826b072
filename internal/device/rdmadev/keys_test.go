// SPDX-License-Identifier: Apache-2.0

package rdmadev_test

import (
	"bytes"
	"encoding/binary"
	"syscall"
	"testing"

	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
)

func (d *driver) fastReg(pd, pages uint32) abi.MRResult {
	d.t.Helper()
	return parse(d, d.must(abi.CmdAllocMR, abi.AllocMR{PDN: pd, MaxPages: pages}.Append(nil), abi.MRResultSize),
		abi.ParseMRResult)
}

func (d *driver) window(pd, typ uint32) abi.AllocMWResult {
	d.t.Helper()
	return parse(d, d.must(abi.CmdAllocMW, abi.AllocMW{PDN: pd, Type: typ}.Append(nil), abi.AllocMWResultSize),
		abi.ParseAllocMWResult)
}

// keys is a connected pair: the second end has regions and windows; the first end tests access by
// sending.
type keys struct {
	t    *testing.T
	a, b *end
	id   uint64
}

func newKeys(t *testing.T) *keys {
	_, a, b := pair(t, true, ib.RC)
	return &keys{t: t, a: a, b: b}
}

// again makes the pair anew after an error; what has keys stays.
func (k *keys) again() {
	for _, e := range []*end{k.a, k.b} {
		e.to(ib.Reset)
		e.cq.d.f.run()
		e.cq.give(len(e.cq.poll()))
	}
	k.a.connect(k.b.qp)
	k.b.connect(k.a.qp)
}

// does posts a request at e and checks its status.
func (k *keys) does(e *end, s abi.Send, list []ib.SGE, inline []byte, want ib.Status) abi.CQE {
	k.t.Helper()
	k.id++
	s.WRID, s.Flags = k.id, s.Flags|ib.Signaled
	e.post(s, list, inline)
	e.kick()
	c := e.cq.expect(done{k.id, want})[0]
	if want != ib.Success {
		k.again()
	}
	return c
}

func (k *keys) bind(key ib.Key, b abi.Bind, want ib.Status) {
	k.t.Helper()
	s := abi.Send{Opcode: abi.OpBindMW}
	b.Key = key
	s.SetBind(b)
	if c := k.does(k.b, s, nil, nil, want); want == ib.Success && (c.Opcode != abi.WCOpBindMW || c.ByteLen != 0) {
		k.t.Errorf("bind: %+v", c)
	}
}

func (k *keys) reg(b abi.Bind, pages []uint64, inline bool, want ib.Status) {
	k.t.Helper()
	s := abi.Send{Opcode: abi.OpRegMR}
	s.SetReg(b)
	var list []byte
	for _, p := range pages {
		list = le64(list, p)
	}
	var sge []ib.SGE
	if inline {
		s.Flags = ib.Inline
	} else {
		copy(k.b.mem[60<<10:], list)
		sge, list = []ib.SGE{k.b.sge(60<<10, len(list))}, nil
	}
	if c := k.does(k.b, s, sge, list, want); want == ib.Success && c.Opcode != abi.WCOpRegMR {
		k.t.Errorf("register: %+v", c)
	}
}

func (k *keys) inv(key ib.Key, want ib.Status) {
	k.t.Helper()
	s := abi.Send{Opcode: abi.OpLocalInv}
	s.SetInvKey(key)
	if c := k.does(k.b, s, nil, nil, want); want == ib.Success && c.Opcode != abi.WCOpLocalInv {
		k.t.Errorf("invalidate: %+v", c)
	}
}

// writes has the first end write n bytes to addr of what key names; they must be
// found in the second's memory at offset off, and nothing else.
func (k *keys) writes(key ib.Key, addr uint64, n int, off int, want ib.Status) {
	k.t.Helper()
	for i := range k.b.mem {
		k.b.mem[i] = 0xa5
	}
	fill(k.a.mem[:n], byte(k.id))
	s := abi.Send{Opcode: abi.OpWrite}
	s.SetRDMA(addr, key)
	k.does(k.a, s, []ib.SGE{k.a.sge(0, n)}, nil, want)
	model := bytes.Repeat([]byte{0xa5}, len(k.b.mem))
	if want == ib.Success {
		copy(model[off:], k.a.mem[:n])
	}
	if !bytes.Equal(model, k.b.mem) {
		k.t.Fatalf("write of %d bytes to %#x: memory differs", n, addr)
	}
}

// refuses checks that the first end cannot write to addr with key.
func (k *keys) refuses(key ib.Key, addr uint64) {
	k.t.Helper()
	k.writes(key, addr, 8, 0, ib.RemAccessErr)
}

const (
	bindable = allAccess | ib.MWBind
	at0      = 4096
)

// after is the n-th key after k of the same object: eight bits count.
func after(k ib.Key, n uint8) ib.Key { return k&^0xff | ib.Key(uint8(k)+n) }

func TestWindow1(t *testing.T) {
	k := newKeys(t)
	b := k.b
	m := b.d.mr(b.pd, b.at, 32<<10, ib.LocalWrite|ib.MWBind)
	w := b.d.window(b.pd, 1)
	k.refuses(w.RKey, b.at)
	to := func(off, n int, access ib.Access) abi.Bind {
		return abi.Bind{Addr: b.at + uint64(off), Length: uint64(n), Object: uint32(m.LKey), Access: access}
	}
	k.bind(after(w.RKey, 1), to(at0, 1000, ib.RemoteWrite|ib.LocalWrite), ib.Success)
	k.writes(after(w.RKey, 1), b.at+at0, 1000, at0, ib.Success)
	k.writes(after(w.RKey, 1), b.at+at0+999, 1, at0+999, ib.Success)
	for _, addr := range []uint64{b.at + at0 + 993, b.at + at0 - 1, b.at, 0, ^uint64(0) - 7} {
		k.refuses(after(w.RKey, 1), addr)
	}
	k.refuses(w.RKey, b.at+at0)
	k.refuses(after(w.RKey, 2), b.at+at0)
	// Neither to be read, nor a local key.
	s := abi.Send{Opcode: abi.OpRead}
	s.SetRDMA(b.at+at0, after(w.RKey, 1))
	k.does(k.a, s, []ib.SGE{k.a.sge(0, 8)}, nil, ib.RemAccessErr)
	k.does(b, abi.Send{Opcode: abi.OpSend}, []ib.SGE{{Addr: b.at + at0, Len: 8, LKey: after(w.RKey, 1)}}, nil,
		ib.LocProtErr)
	// It moves.
	k.bind(after(w.RKey, 2), to(0, 100, ib.RemoteWrite|ib.RemoteRead), ib.Success)
	k.refuses(after(w.RKey, 1), b.at+at0)
	k.refuses(after(w.RKey, 2), b.at+at0)
	k.writes(after(w.RKey, 2), b.at+50, 50, 50, ib.Success)
	// Its region cannot be removed while the window exists.
	b.d.refused(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0, syscall.EBUSY)
	b.d.refused(abi.CmdReregMR, abi.ReregMR{MRN: m.MRN, Flags: abi.ReregAccess, Access: 1}.Append(nil),
		abi.MRResultSize, syscall.EBUSY)
	k.writes(after(w.RKey, 2), b.at, 100, 0, ib.Success)
	// It cannot be invalidated, but bound to nothing.
	k.inv(after(w.RKey, 2), ib.MWBindErr)
	k.writes(after(w.RKey, 2), b.at, 100, 0, ib.Success)
	k.bind(after(w.RKey, 3), abi.Bind{}, ib.Success)
	k.refuses(after(w.RKey, 2), b.at)
	k.refuses(after(w.RKey, 3), b.at)
	b.d.must(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0)
	b.d.must(abi.CmdDeallocMW, abi.DeallocMW{MWN: w.MWN}.Append(nil), 0)
	b.d.refused(abi.CmdDeallocMW, abi.DeallocMW{MWN: w.MWN}.Append(nil), 0, syscall.ENOENT)
	k.bind(after(w.RKey, 4), abi.Bind{}, ib.MWBindErr)
	if err := b.d.consistent(); err != nil {
		t.Error(err)
	}
}

func TestWindow2(t *testing.T) {
	k := newKeys(t)
	a, b := k.a, k.b
	m := b.d.mr(b.pd, b.at, 32<<10, bindable)
	w := b.d.window(b.pd, 2)
	to := abi.Bind{Addr: b.at + at0, Length: 4096, Object: uint32(m.LKey), Access: ib.RemoteWrite}
	k.bind(after(w.RKey, 1), abi.Bind{Addr: b.at, Object: uint32(m.LKey)}, ib.MWBindErr) // of no bytes
	k.bind(after(w.RKey, 1), to, ib.Success)
	k.writes(after(w.RKey, 1), b.at+at0, 4096, at0, ib.Success)
	k.bind(after(w.RKey, 2), to, ib.MWBindErr) // not while it is bound
	k.writes(after(w.RKey, 1), b.at+at0, 4096, at0, ib.Success)
	// Another queue pair of the domain has nothing of it: neither its peer ...
	other := b.d.qp(qpOpt{typ: ib.RC, pd: b.pd, scq: b.cq, rcq: b.cq})
	x := &keys{t: t, a: &end{qp: a.d.qp(qpOpt{typ: ib.RC, pd: a.pd, scq: a.cq, rcq: a.cq}), pd: a.pd, mr: a.mr,
		mem: a.mem, at: a.at, cq: a.cq},
		b: &end{qp: other, pd: b.pd, mr: b.mr, mem: b.mem, at: b.at, cq: b.cq}, id: 1000}
	x.a.connect(x.b.qp)
	x.b.connect(x.a.qp)
	x.writes(b.mr.RKey, b.at, 10, 0, ib.Success)
	x.refuses(after(w.RKey, 1), b.at+at0)
	x.inv(after(w.RKey, 1), ib.MWBindErr) // ... nor itself
	k.writes(after(w.RKey, 1), b.at+at0, 10, at0, ib.Success)
	// Local invalidation, and once only.
	k.inv(w.RKey, ib.MWBindErr)
	k.inv(after(w.RKey, 1), ib.Success)
	k.refuses(after(w.RKey, 1), b.at+at0)
	k.inv(after(w.RKey, 1), ib.MWBindErr)
	// Free again, for the other one too; with its queue pair it goes.
	x.bind(after(w.RKey, 7), to, ib.Success)
	x.writes(after(w.RKey, 7), b.at+at0, 10, at0, ib.Success)
	b.d.refused(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0, syscall.EBUSY)
	b.d.must(abi.CmdDestroyQP, abi.DestroyQP{QPN: other.num}.Append(nil), 0)
	k.refuses(after(w.RKey, 7), b.at+at0)
	// From zero.
	to.Access |= ib.ZeroBased
	k.bind(after(w.RKey, 8), to, ib.Success)
	k.writes(after(w.RKey, 8), 0, 4096, at0, ib.Success)
	k.refuses(after(w.RKey, 8), b.at+at0)
	k.refuses(after(w.RKey, 8), 4089)
	// Deallocated while bound.
	b.d.must(abi.CmdDeallocMW, abi.DeallocMW{MWN: w.MWN}.Append(nil), 0)
	k.refuses(after(w.RKey, 8), 0)
	b.d.must(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0)
	if err := b.d.consistent(); err != nil {
		t.Error(err)
	}
}

// TestBindRefused: nothing changes.
func TestBindRefused(t *testing.T) {
	k := newKeys(t)
	b := k.b
	m := b.d.mr(b.pd, b.at, 8192, bindable)
	unbindable := b.d.mr(b.pd, b.at, 8192, allAccess)
	readOnly := b.d.mr(b.pd, b.at, 8192, ib.RemoteRead|ib.MWBind)
	zero := parse(b.d, b.d.must(abi.CmdRegMRVA, abi.RegMRVA{PDN: b.pd, Access: bindable | ib.ZeroBased, VA: b.at,
		Length: 8192}.Append(nil), abi.MRResultSize), abi.ParseMRResult)
	pd2 := b.d.pd()
	foreign := b.d.mr(pd2, b.at, 8192, bindable)
	fast := b.d.fastReg(b.pd, 4)
	for _, typ := range []uint32{1, 2} {
		w, far, other := b.d.window(b.pd, typ), b.d.window(pd2, typ), b.d.window(b.pd, 3-typ)
		good := abi.Bind{Addr: b.at, Length: 100, Object: uint32(m.LKey), Access: ib.RemoteRead}
		for name, c := range map[string]struct {
			key    ib.Key
			change func(*abi.Bind)
		}{
			"no window":          {m.RKey, nil},
			"a free region":      {fast.RKey, nil},
			"wrong key":          {w.RKey ^ 0x100, nil},
			"window of another":  {far.RKey, nil},
			"no region":          {w.RKey, func(v *abi.Bind) { v.Object ^= 0x55aa00 }},
			"stale region key":   {w.RKey, func(v *abi.Bind) { v.Object ^= 1 }},
			"a window as region": {w.RKey, func(v *abi.Bind) { v.Object = uint32(other.RKey) }},
			"a free one":         {w.RKey, func(v *abi.Bind) { v.Object = uint32(fast.LKey) }},
			"region of another":  {w.RKey, func(v *abi.Bind) { v.Object = uint32(foreign.LKey) }},
			"no right to bind":   {w.RKey, func(v *abi.Bind) { v.Object = uint32(unbindable.LKey) }},
			"zero-based region":  {w.RKey, func(v *abi.Bind) { v.Object, v.Addr = uint32(zero.LKey), 0 }},
			"read only": {w.RKey, func(v *abi.Bind) {
				v.Object, v.Access = uint32(readOnly.LKey),
					ib.RemoteWrite
			}},
			"read only, atomic": {w.RKey, func(v *abi.Bind) {
				v.Object, v.Access = uint32(readOnly.LKey),
					ib.RemoteAtomic
			}},
			"unknown right": {w.RKey, func(v *abi.Bind) { v.Access |= 0x40 }},
			"right to bind": {w.RKey, func(v *abi.Bind) { v.Access |= ib.MWBind }},
			"below":         {w.RKey, func(v *abi.Bind) { v.Addr-- }},
			"beyond":        {w.RKey, func(v *abi.Bind) { v.Addr += 8192 - 99 }},
			"longer":        {w.RKey, func(v *abi.Bind) { v.Length = 8193 }},
			"wraps":         {w.RKey, func(v *abi.Bind) { v.Length = ^uint64(0) }},
			"wraps to it":   {w.RKey, func(v *abi.Bind) { v.Addr, v.Length = ^uint64(0)-10, b.at+50 }},
		} {
			v := good
			if c.change != nil {
				c.change(&v)
			}
			k.bind(c.key, v, ib.MWBindErr)
			if err := b.d.consistent(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		k.bind(w.RKey, good, ib.Success) // the very key it has may be kept
		b.d.must(abi.CmdDeallocMW, abi.DeallocMW{MWN: w.MWN}.Append(nil), 0)
	}
	for _, v := range []abi.AllocMW{{PDN: b.pd, Type: 0}, {PDN: b.pd, Type: 3}} {
		b.d.refused(abi.CmdAllocMW, v.Append(nil), abi.AllocMWResultSize, syscall.EINVAL)
	}
	b.d.refused(abi.CmdAllocMW, abi.AllocMW{PDN: 999, Type: 1}.Append(nil), abi.AllocMWResultSize, syscall.ENOENT)
	b.d.refused(abi.CmdDestroyPD, abi.DestroyPD{PDN: pd2}.Append(nil), 0, syscall.EBUSY)
}

func TestFastRegister(t *testing.T) {
	k := newKeys(t)
	b := k.b
	m := b.d.fastReg(b.pd, 4)
	k.refuses(m.RKey, b.at)
	// Three pages, out of order, the first and the last not whole.
	pages := []uint64{b.at + 3*4096, b.at, b.at + 5*4096}
	va := uint64(0x7f0000001000 - 100)
	v := abi.Bind{Addr: va, Length: 100 + 4096 + 50, Object: m.MRN, Key: after(m.RKey, 1), Access: allAccess, Pages: 3}
	for _, inline := range []bool{true, false} {
		k.reg(v, pages, inline, ib.Success)
		k.refuses(m.RKey, va)
		k.refuses(v.Key, va-1)
		k.refuses(v.Key, va+v.Length-7)
		k.writes(v.Key, va, 100, 4*4096-100, ib.Success)
		k.writes(v.Key, va+100, 4096, 0, ib.Success)
		k.writes(v.Key, va+100+4096, 50, 5*4096, ib.Success)
		// As a local key.
		copy(b.mem, fill(make([]byte, 4096), 9))
		copy(b.mem[5*4096:], fill(make([]byte, 50), 8))
		s := abi.Send{Opcode: abi.OpWrite}
		s.SetRDMA(k.a.at, k.a.mr.RKey)
		k.does(b, s, []ib.SGE{{Addr: va + 100, Len: 4096 + 50, LKey: v.Key}}, nil, ib.Success)
		if !bytes.Equal(k.a.mem[:4096+50], append(fill(make([]byte, 4096), 9), fill(make([]byte, 50), 8)...)) {
			t.Fatal("gathered bytes differ")
		}
		k.reg(v, pages, inline, ib.MWBindErr) // it is registered
		k.inv(v.Key-1, ib.MWBindErr)
		k.inv(v.Key, ib.Success)
		k.refuses(v.Key, va)
		k.inv(v.Key, ib.MWBindErr)
	}
	// A window on it keeps it.
	v.Access |= ib.MWBind
	k.reg(v, pages, true, ib.Success)
	w := b.d.window(b.pd, 2)
	k.bind(w.RKey, abi.Bind{Addr: va + 90, Length: 4096, Object: uint32(v.Key), Access: ib.RemoteWrite}, ib.Success)
	k.writes(w.RKey, va+90, 10, 4*4096-10, ib.Success)
	k.writes(w.RKey, va+100, 4086, 0, ib.Success)
	k.refuses(w.RKey, va+100+4086-7)
	k.inv(v.Key, ib.MWBindErr)
	b.d.refused(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0, syscall.EBUSY)
	k.inv(w.RKey, ib.Success)
	k.inv(v.Key, ib.Success)
	b.d.refused(abi.CmdReregMR, abi.ReregMR{MRN: m.MRN, Flags: abi.ReregAccess, Access: 1}.Append(nil),
		abi.MRResultSize, syscall.EINVAL)
	// From zero.
	v.Access |= ib.ZeroBased
	k.reg(v, pages, true, ib.Success)
	k.writes(v.Key, 0, 100, 4*4096-100, ib.Success)
	b.d.must(abi.CmdDeregMR, abi.DeregMR{MRN: m.MRN}.Append(nil), 0)
	k.refuses(v.Key, 0)
	if err := b.d.consistent(); err != nil {
		t.Error(err)
	}
}

func TestFastRegisterRefused(t *testing.T) {
	k := newKeys(t)
	b := k.b
	m := b.d.fastReg(b.pd, 2)
	plain := b.d.mr(b.pd, b.at, 4096, allAccess)
	pd2 := b.d.pd()
	far := b.d.fastReg(pd2, 2)
	pages := []uint64{b.at, b.at + 4096}
	good := abi.Bind{Addr: b.at, Length: 8192, Object: m.MRN, Key: m.RKey, Access: allAccess, Pages: 2}
	for name, c := range map[string]struct {
		change func(*abi.Bind)
		pages  []uint64
	}{
		"no region":         {func(v *abi.Bind) { v.Object = 999 }, pages},
		"another region":    {func(v *abi.Bind) { v.Object = plain.MRN }, pages},
		"region of another": {func(v *abi.Bind) { v.Object, v.Key = far.MRN, far.RKey }, pages},
		"another's key":     {func(v *abi.Bind) { v.Key ^= 0x100 }, pages},
		"no bytes":          {func(v *abi.Bind) { v.Length = 0 }, pages},
		"too few pages":     {func(v *abi.Bind) { v.Length = 8193; v.Addr++ }, pages},
		"no page":           {func(v *abi.Bind) { v.Pages = 0 }, pages},
		"too many pages":    {func(v *abi.Bind) { v.Pages, v.Length = 3, 3*4096 }, append(pages, b.at)},
		"more than a list":  {func(v *abi.Bind) { v.Pages = ^uint32(0); v.Length = ^uint64(0) }, pages},
		"a short list":      {nil, pages[:1]},
		"no list":           {nil, nil},
		"wraps":             {func(v *abi.Bind) { v.Addr = ^uint64(0) - 4095 }, pages},
		"unknown right":     {func(v *abi.Bind) { v.Access |= 0x80 }, pages},
		"write, not local":  {func(v *abi.Bind) { v.Access = ib.RemoteWrite }, pages},
		"inside a page":     {nil, []uint64{b.at, b.at + 4096 + 8}},
		"not announced":     {nil, []uint64{b.at, 0x1000}},
		"the end of all":    {nil, []uint64{b.at, ^uint64(4095)}},
		"the last is over":  {nil, []uint64{b.at, lowBase + 4<<20}},
	} {
		v := good
		if c.change != nil {
			c.change(&v)
		}
		for _, inline := range []bool{true, false} {
			if !inline && len(c.pages) == 0 {
				continue
			}
			k.reg(v, c.pages, inline, ib.MWBindErr)
		}
		if err := b.d.consistent(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		k.refuses(m.RKey, b.at)
	}
	// A list that its own key does not lead to.
	s := abi.Send{Opcode: abi.OpRegMR}
	s.SetReg(good)
	k.does(b, s, []ib.SGE{{Addr: b.at, Len: 16, LKey: plain.LKey ^ 0x100}}, nil, ib.MWBindErr)
	k.does(b, s, []ib.SGE{b.sge(0, 8), b.sge(8, 8)}, nil, ib.MWBindErr)
	k.does(b, s, nil, nil, ib.MWBindErr)
	k.reg(good, pages, true, ib.Success)
	for _, v := range []abi.AllocMR{{PDN: b.pd}, {PDN: b.pd, MaxPages: 513}, {PDN: b.pd, MaxPages: 1, Access: 1},
		{PDN: b.pd, MaxPages: 1, Type: 1}} {
		b.d.refused(abi.CmdAllocMR, v.Append(nil), abi.MRResultSize, syscall.EINVAL)
	}
	b.d.refused(abi.CmdAllocMR, abi.AllocMR{PDN: 999, MaxPages: 1}.Append(nil), abi.MRResultSize, syscall.ENOENT)
}

// TestRemoteInvalidate: the key is invalid before the completion is visible.
func TestRemoteInvalidate(t *testing.T) {
	k := newKeys(t)
	a, b := k.a, k.b
	m := b.d.mr(b.pd, b.at, 8192, bindable)
	w1, w2, free := b.d.window(b.pd, 1), b.d.window(b.pd, 2), b.d.window(b.pd, 2)
	fast := b.d.fastReg(b.pd, 2)
	to := abi.Bind{Addr: b.at, Length: 4096, Object: uint32(m.LKey), Access: ib.RemoteWrite}
	send := func(key ib.Key, n int, want, recv ib.Status) {
		t.Helper()
		k.id++
		b.postRecv(k.id, b.sge(16<<10, 8192))
		s := abi.Send{WRID: k.id, Opcode: abi.OpSendInv, Flags: ib.Signaled}
		s.SetInvKey(key)
		fill(a.mem[:n], byte(k.id))
		a.post(s, []ib.SGE{a.sge(0, n)}, nil)
		a.kick()
		if c := a.cq.expect(done{k.id, want})[0]; want == ib.Success && c.Opcode != abi.WCOpSend {
			t.Errorf("%+v", c)
		}
		c := b.cq.expect(done{k.id, recv})[0]
		if recv == ib.Success && (c.Flags != abi.WCFlagWithInv ||
			ib.Key(binary.LittleEndian.Uint32(c.Imm[:])) != key || c.ByteLen != uint32(n) ||
			c.Opcode != abi.WCOpRecv || !bytes.Equal(a.mem[:n], b.mem[16<<10:][:n])) {
			t.Errorf("%+v", c)
		}
		if want != ib.Success {
			k.again()
		}
	}
	k.bind(w1.RKey, to, ib.Success)
	for _, n := range []int{0, 5, 5000} {
		k.bind(after(w2.RKey, 1), to, ib.Success)
		k.writes(after(w2.RKey, 1), b.at, 100, 0, ib.Success)
		send(after(w2.RKey, 1), n, ib.Success, ib.Success)
		k.refuses(after(w2.RKey, 1), b.at)
		k.reg(abi.Bind{Addr: b.at, Length: 8192, Object: fast.MRN, Key: fast.RKey, Access: allAccess, Pages: 2},
			[]uint64{b.at, b.at + 4096}, true, ib.Success)
		k.writes(fast.RKey, b.at, 8192, 0, ib.Success)
		send(fast.RKey, n, ib.Success, ib.Success)
		k.refuses(fast.RKey, b.at)
	}
	// What no peer may end.
	for _, key := range []ib.Key{m.RKey, w1.RKey, free.RKey, after(w2.RKey, 1), fast.RKey, after(fast.RKey, 1), 0,
		a.mr.RKey} {
		send(key, 100, ib.RemAccessErr, ib.LocAccessErr)
	}
	k.writes(m.RKey, b.at, 100, 0, ib.Success)
	k.writes(w1.RKey, b.at, 100, 0, ib.Success)
	if err := b.d.consistent(); err != nil {
		t.Error(err)
	}
}

// TestKeysOnOtherServices: UC has what is local, UD nothing of it.
func TestKeysOnOtherServices(t *testing.T) {
	_, a, b := pair(t, true, ib.UC)
	k := &keys{t: t, a: a, b: b}
	m := b.d.mr(b.pd, b.at, 8192, bindable)
	w := b.d.window(b.pd, 2)
	k.bind(w.RKey, abi.Bind{Addr: b.at, Length: 100, Object: uint32(m.LKey), Access: ib.RemoteWrite}, ib.Success)
	k.writes(w.RKey, b.at, 100, 0, ib.Success)
	k.inv(w.RKey, ib.Success)
	s := abi.Send{Opcode: abi.OpWrite}
	s.SetRDMA(b.at, w.RKey)
	copy(b.mem, "unchanged")
	k.does(a, s, []ib.SGE{a.sge(0, 100)}, nil, ib.Success) // and is dropped there
	if string(b.mem[:9]) != "unchanged" {
		t.Error("written through a key that has ended")
	}
	s = abi.Send{Opcode: abi.OpSendInv}
	s.SetInvKey(w.RKey)
	k.does(a, s, []ib.SGE{a.sge(0, 8)}, nil, ib.LocQPOpErr)

	_, a, b = pair(t, true, ib.UD)
	k = &keys{t: t, a: a, b: b}
	ah := a.d.ah(a.pd)
	for _, op := range []uint8{abi.OpBindMW, abi.OpLocalInv, abi.OpRegMR, abi.OpSendInv} {
		s := abi.Send{Opcode: op}
		s.SetUD(b.wire, qkey, ah)
		k.does(a, s, nil, nil, ib.LocQPOpErr)
	}
}

// TestManyKeys: one turn handles as many requests as a queue holds, and other work continues after
// them.
func TestManyKeys(t *testing.T) {
	k := newKeys(t)
	b := k.b
	m := b.d.mr(b.pd, b.at, 8192, bindable)
	w := b.d.window(b.pd, 1)
	for i := range ringNum - 1 {
		s := abi.Send{WRID: uint64(i), Opcode: abi.OpBindMW}
		s.SetBind(abi.Bind{Addr: b.at, Length: uint64(i + 1), Object: uint32(m.LKey), Key: w.RKey&^0xff | ib.Key(i),
			Access: ib.RemoteWrite})
		b.post(s, nil, nil)
	}
	b.post(abi.Send{WRID: 99, Opcode: abi.OpSend, Flags: ib.Signaled}, nil, nil)
	k.a.postRecv(5)
	b.kick()
	b.cq.expect(ok(99)...)
	k.a.cq.expect(ok(5)...)
	k.writes(w.RKey&^0xff|(ringNum-2), b.at, ringNum-1, 0, ib.Success)
}

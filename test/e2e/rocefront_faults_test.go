// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"weft/test/rocefront"
)

// roceFault is a request that cannot be executed, and how both sides learn of that.
type roceFault struct {
	name string
	kind uint8
	// change changes a SEND of 100 octets, and the peer's list of one element of 100 octets. Either may be changed to
	// what cannot be.
	change func(t *testing.T, p *rocePair, s *rocefront.Send, recv *[]rocefront.SGE)
	sender uint8 // status of the request
	// receiver is the status of the peer's request. Success: the peer has no completion.
	receiver uint8
}

type faulty = func(t *testing.T, p *rocePair, s *rocefront.Send, recv *[]rocefront.SGE)

const badKey = 0x00badbad

// remote makes the request one to the peer's memory.
func remote(op uint8, change func(p *rocePair, s *rocefront.Send)) faulty {
	return func(t *testing.T, p *rocePair, s *rocefront.Send, recv *[]rocefront.SGE) {
		s.Opcode, s.RemoteAddr, s.RKey = op, p.b.mr.Addr+targetAt, p.b.mr.RKey
		*recv = nil
		change(p, s)
	}
}

// restricted makes the request one to memory that the peer registered with some rights.
func restricted(op uint8, access uint32) faulty {
	return func(t *testing.T, p *rocePair, s *rocefront.Send, recv *[]rocefront.SGE) {
		mr := got(p.b.pd.RegisterNew(memoryAt, 4096, access))(t)
		t.Cleanup(func() {
			if err := mr.Deregister(); err != nil {
				t.Error(err)
			}
		})
		if *recv = nil; op == rocefront.OpSend {
			*recv = []rocefront.SGE{mr.SGE(0, 100)}
		}
		s.Opcode, s.RemoteAddr, s.RKey = op, mr.Addr, mr.RKey
	}
}

func local(change func(p *rocePair, s *rocefront.Send)) faulty {
	return func(t *testing.T, p *rocePair, s *rocefront.Send, recv *[]rocefront.SGE) {
		*recv = nil
		change(p, s)
	}
}

func receive(change func(list []rocefront.SGE)) faulty {
	return func(_ *testing.T, _ *rocePair, _ *rocefront.Send, recv *[]rocefront.SGE) { change(*recv) }
}

func opcode(op uint8) faulty { return local(func(_ *rocePair, s *rocefront.Send) { s.Opcode = op }) }

var roceFaults = []roceFault{
	{name: "unknown lkey", kind: rocefront.RC, sender: rocefront.LocProtErr,
		change: local(func(_ *rocePair, s *rocefront.Send) { s.List[0].LKey = badKey })},
	{name: "lkey of the other card", kind: rocefront.RC, sender: rocefront.LocProtErr,
		change: local(func(p *rocePair, s *rocefront.Send) { s.List[0].LKey = p.b.mr.LKey })},
	{name: "element before its region", kind: rocefront.RC, sender: rocefront.LocProtErr,
		change: local(func(p *rocePair, s *rocefront.Send) { s.List[0].Addr = p.a.mr.Addr - 1 })},
	{name: "element behind its region", kind: rocefront.RC, sender: rocefront.LocProtErr,
		change: local(func(p *rocePair, s *rocefront.Send) { s.List[0].Addr = p.a.mr.Addr + memorySize - 99 })},
	{name: "element at the end of addresses", kind: rocefront.RC, sender: rocefront.LocProtErr,
		change: local(func(_ *rocePair, s *rocefront.Send) { s.List[0].Addr = ^uint64(0) - 9 })},
	{name: "UC: unknown lkey", kind: rocefront.UC, sender: rocefront.LocProtErr,
		change: local(func(_ *rocePair, s *rocefront.Send) { s.List[0].LKey = badKey })},
	{name: "UD: unknown lkey", kind: rocefront.UD, sender: rocefront.LocProtErr,
		change: local(func(_ *rocePair, s *rocefront.Send) { s.List[0].LKey = badKey })},
	{name: "unknown rkey", kind: rocefront.RC, sender: rocefront.RemAccessErr,
		change: remote(rocefront.OpWrite, func(_ *rocePair, s *rocefront.Send) { s.RKey = badKey })},
	{name: "rkey of the own card", kind: rocefront.RC, sender: rocefront.RemAccessErr,
		change: remote(rocefront.OpRead, func(p *rocePair, s *rocefront.Send) { s.RKey = p.a.mr.RKey })},
	{name: "WRITE behind the region", kind: rocefront.RC, sender: rocefront.RemAccessErr,
		change: remote(rocefront.OpWrite,
			func(p *rocePair, s *rocefront.Send) { s.RemoteAddr = p.b.mr.Addr + memorySize - 99 })},
	{name: "READ before the region", kind: rocefront.RC, sender: rocefront.RemAccessErr,
		change: remote(rocefront.OpRead,
			func(p *rocePair, s *rocefront.Send) { s.RemoteAddr = p.b.mr.Addr - 1 })},
	{name: "WRITE without the right", kind: rocefront.RC, sender: rocefront.RemAccessErr,
		change: restricted(rocefront.OpWrite, rocefront.LocalWrite|rocefront.RemoteRead)},
	{name: "READ without the right", kind: rocefront.RC, sender: rocefront.RemAccessErr,
		change: restricted(rocefront.OpRead, rocefront.LocalWrite|rocefront.RemoteWrite)},
	{name: "receive without the right", kind: rocefront.RC, sender: rocefront.RemOpErr,
		receiver: rocefront.LocProtErr,
		change:   restricted(rocefront.OpSend, 0)},
	{name: "receive with an unknown lkey", kind: rocefront.RC, sender: rocefront.RemOpErr,
		receiver: rocefront.LocProtErr,
		change:   receive(func(list []rocefront.SGE) { list[0].LKey = badKey })},
	{name: "receive too short", kind: rocefront.RC, sender: rocefront.RemInvReqErr, receiver: rocefront.LocLenErr,
		change: receive(func(list []rocefront.SGE) { list[0].Length = 99 })},
	{name: "opcode 5", kind: rocefront.RC, sender: rocefront.LocQPOpErr, change: opcode(5)},
	{name: "opcode 255", kind: rocefront.RC, sender: rocefront.LocQPOpErr, change: opcode(255)},
	{name: "UC: READ", kind: rocefront.UC, sender: rocefront.LocQPOpErr, change: opcode(rocefront.OpRead)},
	{name: "UD: WRITE", kind: rocefront.UD, sender: rocefront.LocQPOpErr, change: opcode(rocefront.OpWrite)},
	{name: "UD: READ", kind: rocefront.UD, sender: rocefront.LocQPOpErr, change: opcode(rocefront.OpRead)},
	{name: "UD: longer than the path MTU", kind: rocefront.UD, sender: rocefront.LocLenErr,
		change: local(func(_ *rocePair, s *rocefront.Send) { s.List[0].Length = 1025 })},
	{name: "UD: unknown address handle", kind: rocefront.UD, sender: rocefront.LocQPOpErr,
		change: local(func(_ *rocePair, s *rocefront.Send) { s.AH = &rocefront.AH{Handle: 0xfffff} })},
	{name: "no request in the receive queue", kind: rocefront.RC, sender: rocefront.RNRRetryExcErr,
		change: local(func(*rocePair, *rocefront.Send) {})},
}

func (f *roceFault) run(t *testing.T, a, b *roceCard) {
	p := &rocePair{a: a, b: b, qa: a.qp(t, f.kind), qb: b.qp(t, f.kind), qkey: qkey}
	to := b.to(p.qb)
	to.RNR = 0 // a message that finds no request fails at once
	must(t, p.qa.Connect(to))
	must(t, p.qb.Connect(a.to(p.qa)))
	if f.kind == rocefront.UD {
		p.ah = got(a.pd.CreateAH(b.route()))(t)
	}
	s := rocefront.Send{ID: 7, Opcode: rocefront.OpSend, Flags: rocefront.Signaled, AH: p.ah, RemoteQPN: p.qb.Number,
		RemoteQKey: qkey, List: []rocefront.SGE{a.mr.SGE(sourceAt, 100)}}
	recv := []rocefront.SGE{b.mr.SGE(targetAt, 100)}
	f.change(t, p, &s, &recv)
	if recv != nil {
		must(t, p.qb.PostRecv(8, recv...))
	}
	must(t, p.qa.PostSend(s))
	a.completion(t, rocefront.Completion{ID: 7, Status: f.sender, QPN: p.qa.Number})
	if f.receiver != rocefront.Success {
		b.completion(t, rocefront.Completion{ID: 8, Status: f.receiver, QPN: p.qb.Number})
	}
	// The queue pair takes no more; others are as before.
	state := uint8(rocefront.SQE)
	if f.kind == rocefront.RC {
		state = rocefront.Err
	}
	if have := got(p.qa.Query(rocefront.AttrState))(t).State; have != state {
		t.Errorf("the queue pair's state is %d, want %d", have, state)
	}
	if p.ah != nil {
		must(t, p.ah.Destroy())
	}
	must(t, p.qa.Destroy())
	must(t, p.qb.Destroy())
	connectRoCE(t, a, b, rocefront.RC).carry(t, small, 1)
}

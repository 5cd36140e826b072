// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"weft/test/lab"
	"weft/test/rocefront"
)

// roceLab are two nodes with cards in one virtual Ethernet switch.
type roceLab struct {
	*stations
	sockets map[string]string // by the name of the card: near and beside are on the first node, far is on the second
}

var roceAddrs = map[string]string{"near": "10.9.0.1", "beside": "10.9.0.3", "far": "10.9.0.2"}

func openRoCELab(t *testing.T) *roceLab {
	t.Helper()
	l := &roceLab{stations: openStations(t, 1500), sockets: map[string]string{}}
	l.add(l.Server, "blue", "blue1", "10.9.0.3/24")
	for name, of := range map[string]struct {
		node   *lab.Node
		device string
	}{"near": {l.Server, "blue0"}, "beside": {l.Server, "blue1"}, "far": {l.Client, "blue0"}} {
		l.sockets[name] = filepath.Join(of.node.Dir, "door", of.device+".sock")
	}
	return l
}

func (l *roceLab) open(t *testing.T, name string, o rocefront.Options) *roceCard {
	t.Helper()
	return openRoCE(t, l.sockets[name], roceAddrs[name], o)
}

// Sizes around the path MTU, which is 1024.
var sizesOfRC = [][]int{{0}, {1}, {1023}, {1024}, {1025}, {1 << 20}, {700, 1024, 5}}

var sizesOfUD = [][]int{{0}, {1}, {1023}, {1024}, {500, 501, 23}}

var sizesOfInline = [][]int{{0}, {1}, {512}}

// messages are all messages of a type of queue pair.
func messages(kind uint8) (list []message) {
	add := func(flags uint8, sizes [][]int, ops ...uint8) {
		for _, op := range ops {
			for _, s := range sizes {
				list = append(list, message{op, flags, s})
			}
		}
	}
	switch kind {
	case rocefront.UD:
		add(0, sizesOfUD, rocefront.OpSend, rocefront.OpSendImm)
		add(rocefront.Inline, sizesOfInline, rocefront.OpSend, rocefront.OpSendImm)
		return list
	case rocefront.RC:
		add(0, sizesOfRC, rocefront.OpRead)
	}
	add(0, sizesOfRC, rocefront.OpSend, rocefront.OpSendImm, rocefront.OpWrite, rocefront.OpWriteImm)
	add(rocefront.Inline, sizesOfInline, rocefront.OpSend, rocefront.OpSendImm, rocefront.OpWrite, rocefront.OpWriteImm)
	return list
}

var roceKinds = map[uint8]string{rocefront.RC: "RC", rocefront.UC: "UC", rocefront.UD: "UD"}

// TestRoCEFront: drivers of the RFC's text use cards of nodes.
func TestRoCEFront(t *testing.T) {
	t.Parallel()
	l := openRoCELab(t)
	for _, peer := range []string{"beside", "far"} {
		t.Run(peer, func(t *testing.T) {
			a, b := l.open(t, "near", rocefront.Options{}), l.open(t, peer, rocefront.Options{MemTable: true})
			for kind, name := range roceKinds {
				t.Run(name, func(t *testing.T) {
					p := connectRoCE(t, a, b, kind)
					for i, m := range messages(kind) {
						if !t.Run(fmt.Sprint(m), func(t *testing.T) { p.carry(t, m, uint64(2*i)) }) {
							break
						}
					}
				})
			}
			for name, run := range map[string]func(t *testing.T, a, b *roceCard){
				"unsignaled":      unsignaled,
				"sq_sig_all":      signalAll,
				"solicited":       solicited,
				"fence":           fenced,
				"late receive":    lateReceive,
				"discarded":       discarded,
				"flushed":         flushed,
				"scattered pages": scattered,
				"DMA region":      dmaRegion,
			} {
				t.Run(name, func(t *testing.T) { run(t, a, b) })
			}
			for _, f := range roceFaults {
				t.Run(f.name, func(t *testing.T) { f.run(t, a, b) })
			}
		})
	}
}

// quiet expects no more completions at either card.
func (p *rocePair) quiet(t *testing.T) {
	t.Helper()
	must(t, p.a.cq.Quiet(quietFor))
	must(t, p.b.cq.Quiet(quietFor))
}

// small is a message that tests send often.
var small = message{op: rocefront.OpSend, sizes: []int{100}}

// post posts a message from the start of the memory of a.
func (p *rocePair) post(t *testing.T, m message, id uint64, flags uint8) {
	t.Helper()
	must(t, p.qa.PostSend(rocefront.Send{ID: id, Opcode: m.op, Flags: flags, AH: p.ah, RemoteQPN: p.qb.Number,
		RemoteQKey: p.qkey, List: []rocefront.SGE{p.a.mr.SGE(sourceAt, m.size())}}))
}

// unsignaled: requests without the flag have no completion, and their elements come back all the same.
func unsignaled(t *testing.T, a, b *roceCard) {
	p := connectRoCE(t, a, b, rocefront.RC)
	const rounds, burst = 10, 20 // more than the queue has room for
	for round := range uint64(rounds) {
		for i := range uint64(burst) {
			must(t, p.qb.PostRecv(i, b.mr.SGE(targetAt, 100)))
		}
		for i := range uint64(burst) {
			flags := uint8(0)
			if i == burst-1 {
				flags = rocefront.Signaled
			}
			p.post(t, small, round<<8|i, flags)
		}
		a.completion(t, p.sent(small, round<<8|burst-1))
		for i := range uint64(burst) {
			b.completion(t, p.received(small, i))
		}
	}
	p.quiet(t)
	must(t, p.qa.SendsTaken(completionLimit))
}

// signalAll: with sq_sig_all, requests without the flag have completions.
func signalAll(t *testing.T, a, b *roceCard) {
	p := &rocePair{a: a, b: b, qb: b.qp(t, rocefront.RC)}
	init := a.init(rocefront.RC)
	init.SigAll = 1
	p.qa = got(a.CreateQP(init))(t)
	must(t, p.qa.Connect(b.to(p.qb)))
	must(t, p.qb.Connect(a.to(p.qa)))
	must(t, p.qb.PostRecv(1, b.mr.SGE(targetAt, 100)))
	p.post(t, small, 2, 0)
	a.completion(t, p.sent(small, 2))
	b.completion(t, p.received(small, 1))
	must(t, p.qa.Destroy())
	must(t, p.qb.Destroy())
}

// solicited: a request for notification is served once, by the next completion or by that of a solicited message.
func solicited(t *testing.T, a, b *roceCard) {
	p := connectRoCE(t, a, b, rocefront.RC)
	send := func(flags uint8) {
		t.Helper()
		must(t, p.qb.PostRecv(1, b.mr.SGE(targetAt, 100)))
		p.post(t, small, 2, rocefront.Signaled|flags)
		a.completion(t, p.sent(small, 2))
		b.completion(t, p.received(small, 1))
	}
	for b.cq.Notified(quietFor) {
	}
	for _, row := range []struct {
		name     string
		request  uint32
		flags    uint8
		notified bool
	}{
		{"solicited, by a message that is not", rocefront.NotifySolicited, 0, false},
		{"still, by a solicited message", 0, rocefront.Solicited, true},
		{"next, by any message", rocefront.NotifyNext, 0, true},
		{"next, by a solicited message", rocefront.NotifyNext, rocefront.Solicited, true},
	} {
		if row.request != 0 {
			must(t, b.cq.RequestNotify(row.request))
		}
		send(row.flags)
		limit := quietFor
		if row.notified {
			limit = completionLimit
		}
		if b.cq.Notified(limit) != row.notified {
			t.Errorf("%s: notified is %v", row.name, !row.notified)
		}
	}
}

// fenced: a request with the flag begins after the READs before it have ended.
func fenced(t *testing.T, a, b *roceCard) {
	p := connectRoCE(t, a, b, rocefront.RC)
	const size = 200000
	data := pattern(3, size)
	b.mr.Put(sourceAt, data)
	sink := newArea(b.mr, targetAt, size)
	must(t, p.qb.PostRecv(3, sink.list...))
	// The second request sends what the first reads.
	through := newArea(a.mr, sourceAt, size)
	must(t, p.qa.PostSend(rocefront.Send{ID: 1, Opcode: rocefront.OpRead, Flags: rocefront.Signaled, List: through.list,
		RemoteAddr: b.mr.Addr + sourceAt, RKey: b.mr.RKey}))
	must(t, p.qa.PostSend(rocefront.Send{ID: 2, Opcode: rocefront.OpSend, Flags: rocefront.Signaled | rocefront.Fence,
		List: through.list}))
	a.completion(t, p.sent(message{op: rocefront.OpRead, sizes: []int{size}}, 1))
	a.completion(t, p.sent(message{op: rocefront.OpSend, sizes: []int{size}}, 2))
	b.completion(t, p.received(message{op: rocefront.OpSend, sizes: []int{size}}, 3))
	sink.holds(t, data)
}

// lateReceive: a message without a request in the receive queue is sent again until there is one.
func lateReceive(t *testing.T, a, b *roceCard) {
	p := connectRoCE(t, a, b, rocefront.RC)
	p.post(t, small, 2, rocefront.Signaled)
	p.quiet(t)
	must(t, p.qb.PostRecv(1, b.mr.SGE(targetAt, 100)))
	a.completion(t, p.sent(small, 2))
	b.completion(t, p.received(small, 1))
}

// discarded: requests of a queue pair that is destroyed have no completions.
func discarded(t *testing.T, a, b *roceCard) {
	p := &rocePair{a: a, b: b, qa: a.qp(t, rocefront.RC), qb: b.qp(t, rocefront.RC)}
	must(t, p.qa.Connect(b.to(p.qb)))
	must(t, p.qb.Connect(a.to(p.qa)))
	p.post(t, small, 1, rocefront.Signaled)
	for i := range uint64(5) {
		must(t, p.qa.PostRecv(i, a.mr.SGE(targetAt, 100)))
	}
	must(t, p.qa.Destroy())
	must(t, p.qb.Destroy())
	p.quiet(t)
}

// flushed: requests of a queue pair in the state ERR have the status VIRTIO_IB_WC_WR_FLUSH_ERR.
func flushed(t *testing.T, a, b *roceCard) {
	p := connectRoCE(t, a, b, rocefront.RC)
	for i := range uint64(3) {
		must(t, p.qb.PostRecv(i, b.mr.SGE(targetAt, 100)))
	}
	must(t, p.qb.Modify(rocefront.QPAttr{Mask: rocefront.AttrState, State: rocefront.Err}))
	must(t, p.qb.PostRecv(3, b.mr.SGE(targetAt, 100)))
	for i := range uint64(4) {
		b.completion(t, rocefront.Completion{ID: i, Status: rocefront.WRFlushErr, QPN: p.qb.Number})
	}
	must(t, p.qb.PostSend(rocefront.Send{ID: 9, Opcode: rocefront.OpSend}))
	b.completion(t, rocefront.Completion{ID: 9, Status: rocefront.WRFlushErr, QPN: p.qb.Number})
}

// scattered: each octet of a region is in the page that the list names, whatever form the command has.
func scattered(t *testing.T, a, b *roceCard) {
	for name, behind := range map[string]bool{"list in the data": false} {
		t.Run(name, func(t *testing.T) {
			p := connectRoCE(t, a, b, rocefront.RC)
			const size = 3*4096 + 5
			mr := got(b.pd.Register(rocefront.Registration{Addr: memoryAt, Length: size, Access: allAccess,
				Pages: b.Memory.Pages(4), Behind: behind}))(t)
			local := newArea(a.mr, sourceAt, size)
			data := pattern(4, size)
			local.put(data)
			must(t, p.qa.PostSend(rocefront.Send{ID: 1, Opcode: rocefront.OpWrite, Flags: rocefront.Signaled,
				List: local.list, RemoteAddr: mr.Addr, RKey: mr.RKey}))
			a.completion(t, p.sent(message{op: rocefront.OpWrite, sizes: []int{size}}, 1))
			if have := mr.Get(0, size); !bytes.Equal(have, data) {
				t.Error(firstDifference(data, have))
			}
			must(t, mr.Deregister())
			// Its key is good for nothing now.
			must(t, p.qa.PostSend(rocefront.Send{ID: 2, Opcode: rocefront.OpWrite, Flags: rocefront.Signaled,
				List: local.list, RemoteAddr: mr.Addr, RKey: mr.RKey}))
			a.completion(t, rocefront.Completion{ID: 2, Status: rocefront.RemAccessErr, QPN: p.qa.Number})
		})
	}
}

// dmaRegion: with the keys of GET_DMA_MR, work requests name guest-physical addresses.
func dmaRegion(t *testing.T, a, b *roceCard) {
	was := []*rocefront.MR{a.mr, b.mr}
	defer func() { a.mr, b.mr = was[0], was[1] }()
	a.mr, b.mr = got(a.pd.DMA(memorySize, allAccess))(t), got(b.pd.DMA(memorySize, allAccess))(t)
	p := connectRoCE(t, a, b, rocefront.RC)
	for i, op := range []uint8{rocefront.OpSend, rocefront.OpWriteImm, rocefront.OpRead} {
		p.carry(t, message{op: op, sizes: []int{70000}}, uint64(2*i))
	}
	must(t, a.mr.Deregister())
	must(t, b.mr.Deregister())
}

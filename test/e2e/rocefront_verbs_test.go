// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"weft/internal/control/api"
	"weft/test/lab"
	"weft/test/rocefront"
)

// roceLab are two nodes with cards in one virtual Ethernet switch.
type roceLab struct {
	*stations
	sockets map[string]string // by the name of the card
}

// roceAddrs are the addresses of the cards: near and beside are on the first node, far and device on the second.
// device is not a card but a device of its node; the socket of a device serves a driver of the RFC, too.
var roceAddrs = map[string]string{"near": "10.9.0.11", "beside": "10.9.0.12", "far": "10.9.0.13", "device": "10.9.0.2"}

func openRoCELab(t *testing.T) *roceLab {
	t.Helper()
	l := &roceLab{stations: openStations(t, 1500), sockets: map[string]string{}}
	l.sockets["device"] = filepath.Join(l.Client.Dir, "door", blueDevice+".sock")
	l.card(l.Server, "near", "--vesw", "blue", "--queues", "2")
	l.card(l.Server, "beside", "--vesw", "blue")
	l.card(l.Client, "far")
	return l
}

// card makes a card, and waits until the card has a carrier. The second node has no manager, so the first puts the
// node's card into the switch.
func (l *roceLab) card(n *lab.Node, name string, flags ...string) {
	l.t.Helper()
	var vm api.VM
	if err := n.Query(&vm, append([]string{"vm", "add", name, "--rdma"}, flags...)...); err != nil {
		l.t.Fatal(err)
	}
	if n != l.Server {
		l.weft(l.Server, "vesw", "port", "add", "blue", vm.PortGUID)
	}
	l.sockets[name] = vm.Socket
	l.until(name+" has a carrier", func() bool {
		if err := n.Query(&vm, "vm", "show", name); err != nil {
			l.t.Fatal(err)
		}
		return vm.Carrier
	})
}

// open starts a driver at a card.
func (l *roceLab) open(t *testing.T, name string, o rocefront.Options) *roceCard {
	t.Helper()
	c := &roceCard{isCard: name != "device"}
	if c.isCard {
		o.Features |= rocefront.FeatureMAC | rocefront.FeatureStatus
	}
	c.open(t, l.sockets[name], roceAddrs[name], o)
	return c
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
	for _, peer := range []string{"beside", "far", "device"} {
		t.Run(peer, func(t *testing.T) {
			features := uint64(0)
			if peer == "beside" {
				features = rocefront.FeatureEventIdx
			}
			a := l.open(t, "near", rocefront.Options{Features: features})
			b := l.open(t, peer, rocefront.Options{Features: features, MemTable: true})
			together(a, b)
			for kind, name := range roceKinds {
				t.Run(name, func(t *testing.T) {
					p := connectRoCE(t, a, b, kind)
					for i, m := range messages(kind) {
						if !t.Run(fmt.Sprint(m), func(t *testing.T) { p.carry(t, m, uint64(2*i)) }) {
							return
						}
					}
				})
			}
			if t.Failed() {
				return // what follows needs messages that arrive
			}
			for _, row := range roceRows {
				if b.isCard || !row.cards {
					t.Run(row.name, func(t *testing.T) { row.run(t, a.anew(t), b.anew(t)) })
				}
			}
			for _, f := range roceFaults {
				t.Run(f.name, func(t *testing.T) { f.run(t, a.anew(t), b.anew(t)) })
			}
		})
	}
	t.Run("classes", l.classes)
	t.Run("killed", l.killed)
}

// roceRows are behaviours of two cards.
var roceRows = []struct {
	name  string
	cards bool // not if the second is a device
	run   func(t *testing.T, a, b *roceCard)
}{
	{"unsignaled", false, unsignaled},
	{"sq_sig_all", false, signalAll},
	{"solicited", false, solicited},
	{"fence", false, fenced},
	{"late receive", false, lateReceive},
	{"discarded", false, discarded},
	{"flushed", false, flushed},
	{"no peer", false, noPeer},
	{"malformed elements", false, malformed},
	{"broken rings", false, brokenRings},
	{"DMA region", false, dmaRegion},
	{"IPv6", false, overIPv6},
	{"list of pages in the data", false, pagesInData},
	{"list of pages behind the data", true, pagesBehindData},
	{"GSI", true, managementDatagrams},
	{"rate limit", false, paced},
	{"MAC address of the route", true, stated},
	{"frames", true, frames},
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

// scattered: each octet of a region is in the page that the list names.
func scattered(t *testing.T, a, b *roceCard, behind bool) {
	p := connectRoCE(t, a, b, rocefront.RC)
	const size = 3*4096 + 5
	mr := got(b.pd.Register(rocefront.Registration{Addr: memoryAt, Length: size, Access: allAccess,
		Pages: b.Memory.Pages(4), Behind: behind}))(t)
	local := newArea(a.mr, sourceAt, size)
	data := pattern(4, size)
	local.put(data)
	write := func(id uint64) {
		t.Helper()
		must(t, p.qa.PostSend(rocefront.Send{ID: id, Opcode: rocefront.OpWrite, Flags: rocefront.Signaled,
			List: local.list, RemoteAddr: mr.Addr, RKey: mr.RKey}))
	}
	write(1)
	a.completion(t, p.sent(message{op: rocefront.OpWrite, sizes: []int{size}}, 1))
	if have := mr.Get(0, size); !bytes.Equal(have, data) {
		t.Error(firstDifference(data, have))
	}
	must(t, mr.Deregister())
	write(2) // the key is good for nothing now
	a.completion(t, rocefront.Completion{ID: 2, Status: rocefront.RemAccessErr, QPN: p.qa.Number})
}

func pagesInData(t *testing.T, a, b *roceCard) { scattered(t, a, b, false) }

func pagesBehindData(t *testing.T, a, b *roceCard) { scattered(t, a, b, true) }

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

// The number and the key of the queue pairs of management (IBA volume 1, 3.5.3 and 10.2.4).
const gsiNumber, gsiKey = 1, 0x80010000

// managementDatagrams: queue pairs of type GSI exchange a MAD of the connection manager's size and class.
func managementDatagrams(t *testing.T, a, b *roceCard) {
	p := &rocePair{a: a, b: b, qa: a.qp(t, rocefront.GSI), qb: b.qp(t, rocefront.GSI), qkey: gsiKey}
	if p.qa.Number != gsiNumber || p.qb.Number != gsiNumber {
		t.Errorf("CREATE_QP: numbers %d and %d of GSI, want %d", p.qa.Number, p.qb.Number, gsiNumber)
	}
	for _, q := range []*rocefront.QP{p.qa, p.qb} {
		must(t, q.Connect(rocefront.Connection{QKey: gsiKey}))
	}
	p.ah = got(a.pd.CreateAH(b.route()))(t)
	back := &rocePair{a: b, b: a, qa: p.qb, qb: p.qa, qkey: gsiKey, ah: got(b.pd.CreateAH(a.route()))(t)}
	const madSize, baseVersion, classCM, classVersion, methodSend = 256, 1, 0x07, 2, 0x03
	for i, way := range []*rocePair{p, back} {
		mad := pattern(i, madSize)
		copy(mad, []byte{baseVersion, classCM, classVersion, methodSend})
		source, sink := newArea(way.a.mr, sourceAt, madSize), newArea(way.b.mr, targetAt, grhSize, madSize)
		source.put(mad)
		m := message{op: rocefront.OpSend, sizes: []int{madSize}}
		must(t, way.qb.PostRecv(1, sink.list...))
		way.post(t, m, 2, rocefront.Signaled)
		way.a.completion(t, way.sent(m, 2))
		way.b.completion(t, way.received(m, 1))
		grh := way.b.mr.Get(sink.at[0], grhSize)
		checkGRH(t, grh, way.a, way.b)
		sink.holds(t, append(grh, mad...))
	}
	must(t, p.ah.Destroy())
	must(t, back.ah.Destroy())
	must(t, p.qa.Destroy())
	must(t, p.qb.Destroy())
}

// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"weft/test/rocefront"
)

// Waits: for a completion that must come, and for one that must not.
const (
	completionLimit = 20 * time.Second
	quietFor        = 100 * time.Millisecond
)

// memoryAt is where drivers register their memory: in the middle of a page.
const (
	memoryAt   = 0x7000_0000_0123
	memorySize = 5 << 20
)

const allAccess = rocefront.LocalWrite | rocefront.RemoteWrite | rocefront.RemoteRead

// roceCard is a RoCE card of a node with a driver: what a guest's kernel and a program in the guest have.
type roceCard struct {
	*rocefront.Device
	isCard bool // not a device
	addr   netip.Addr
	gid    [16]byte // of addr
	index  uint8    // of gid
	pd     *rocefront.PD
	cq     *rocefront.CQ
	mr     *rocefront.MR
}

// Indices of GIDs that tests set.
const gidIndex, gid6Index = 1, 2

// open starts a driver at a socket.
func (c *roceCard) open(t *testing.T, socket, addr string, o rocefront.Options) {
	t.Helper()
	var err error
	if c.Device, err = rocefront.Open(socket, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	c.address(t, addr, gidIndex)
	c.pd = got(c.CreatePD())(t)
	c.cq = got(c.CreateCQ(256))(t)
	c.mr = got(c.pd.RegisterNew(memoryAt, memorySize, allAccess))(t)
}

// together has the guests of cards run while any of them waits.
func together(cards ...*roceCard) {
	for _, c := range cards {
		for _, o := range cards {
			if o != c {
				c.Beside = append(c.Beside, o.Device)
			}
		}
	}
}

// anew returns the card with a completion queue of its own, which is destroyed with the test.
func (c *roceCard) anew(t *testing.T) *roceCard {
	t.Helper()
	n := *c
	n.cq = got(c.CreateCQ(256))(t)
	t.Cleanup(func() {
		if err := n.cq.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return &n
}

// address gives an address to the card, by which its queue pairs are reached from then on.
func (c *roceCard) address(t *testing.T, addr string, index uint8) {
	t.Helper()
	c.addr, c.index = netip.MustParseAddr(addr), index
	c.gid = c.addr.As16()
	must(t, c.AddGID(int(index), c.gid))
	if c.isCard {
		c.Answer(c.addr)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// got returns the value of a call that must succeed: got(call())(t).
func got[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// qp makes a queue pair of the card's domain and queue.
func (c *roceCard) qp(t *testing.T, kind uint8) *rocefront.QP {
	t.Helper()
	return got(c.CreateQP(c.init(kind)))(t)
}

func (c *roceCard) init(kind uint8) rocefront.QPInit {
	return rocefront.QPInit{PDN: c.pd.Handle, Type: kind, SendCQ: c.cq.Number, RecvCQ: c.cq.Number}
}

// route is the address vector of the way to a card. Without a MAC address the device finds the address.
func (c *roceCard) route() rocefront.AHAttr {
	return rocefront.AHAttr{Route: rocefront.GlobalRoute{DGID: c.gid, SGIDIndex: c.index, HopLimit: 64}}
}

// qkey is the key of the tests' UD queue pairs.
const qkey = 0x11223344

// to is a connection with a queue pair of a card.
func (c *roceCard) to(peer *rocefront.QP) rocefront.Connection {
	return rocefront.Connection{Peer: peer.Number, Route: c.route(), PathMTU: rocefront.MTU1024, SQPSN: 0xfffff0,
		RQPSN: 0xfffff0, Timeout: 14, Retry: 7, RNR: 7, MinRNRTimer: 6, RdAtomic: 4, Access: allAccess, QKey: qkey}
}

// rocePair are two cards with a queue pair each, which are connected.
type rocePair struct {
	a, b   *roceCard
	qa, qb *rocefront.QP
	ah     *rocefront.AH // of a, the way to b; nil if the queue pairs are not of datagrams
	qkey   uint32
}

// connectRoCE makes a pair, and destroys it with the test.
func connectRoCE(t *testing.T, a, b *roceCard, kind uint8) *rocePair {
	t.Helper()
	p := &rocePair{a: a, b: b, qa: a.qp(t, kind), qb: b.qp(t, kind), qkey: qkey}
	must(t, p.qa.Connect(b.to(p.qb)))
	must(t, p.qb.Connect(a.to(p.qa)))
	if kind == rocefront.UD || kind == rocefront.GSI {
		p.ah = got(a.pd.CreateAH(b.route()))(t)
	}
	t.Cleanup(func() {
		err := errors.Join(p.qa.Destroy(), p.qb.Destroy())
		if p.ah != nil {
			err = errors.Join(err, p.ah.Destroy())
		}
		if err != nil {
			t.Error(err)
		}
	})
	return p
}

// completion takes a completion and compares what it states of the request with want. Fields that the RFC leaves to
// the device in a failure are compared only in success.
func (c *roceCard) completion(t *testing.T, want rocefront.Completion) rocefront.Completion {
	t.Helper()
	have, err := c.cq.Poll(completionLimit)
	if err != nil {
		t.Fatalf("want %+v: %v", want, err)
	}
	seen := have
	seen.VendorErr = 0
	if want.Status != rocefront.Success {
		seen.Opcode, seen.ByteLen, seen.Imm, seen.SrcQP, seen.Flags = want.Opcode, want.ByteLen, want.Imm, want.SrcQP,
			want.Flags
	}
	if seen != want {
		t.Fatalf("completion: want %+v\nhave %+v", want, have)
	}
	return have
}

// pattern is content that differs with the seed, the length and the place.
func pattern(seed, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + seed*31 + 1)
	}
	return b
}

// area is memory of a card that a list of elements describes: in reverse order, with gaps, between guards.
type area struct {
	mr        *rocefront.MR
	list      []rocefront.SGE
	at, sizes []int
	from, to  int // with guards
}

const (
	guardSize = 16
	guardFill = 0xa5
)

func newArea(mr *rocefront.MR, at int, sizes ...int) area {
	a := area{mr: mr, sizes: sizes, from: at - guardSize, to: at}
	for _, s := range sizes {
		a.to += s + 3
	}
	end := a.to
	for _, s := range sizes {
		end -= s + 3
		a.list, a.at = append(a.list, mr.SGE(end, s)), append(a.at, end)
	}
	a.to += guardSize
	mr.Put(a.from, bytes.Repeat([]byte{guardFill}, a.to-a.from))
	return a
}

func (a area) put(b []byte) {
	for i, at := range a.at {
		a.mr.Put(at, b[:a.sizes[i]])
		b = b[a.sizes[i]:]
	}
}

func (a area) get() (b []byte) {
	for i, at := range a.at {
		b = append(b, a.mr.Get(at, a.sizes[i])...)
	}
	return b
}

// holds checks that the elements have the contents of data, and that no octet outside the elements was written.
func (a area) holds(t *testing.T, data []byte) {
	t.Helper()
	if have := a.get(); !bytes.Equal(have, data) {
		t.Fatalf("the contents of %d octets differ: %s", len(data), firstDifference(data, have))
	}
	around := a.mr.Get(a.from, a.to-a.from)
	for i, at := range a.at {
		for k := range a.sizes[i] {
			around[at-a.from+k] = guardFill
		}
	}
	for i, v := range around {
		if v != guardFill {
			t.Fatalf("the device wrote outside the elements: %#x at %d of the memory", v, a.from+i)
		}
	}
}

func firstDifference(want, have []byte) string {
	for i := range min(len(want), len(have)) {
		if want[i] != have[i] {
			return fmt.Sprintf("at %d: want % x, have % x", i, want[i:min(i+8, len(want))],
				have[i:min(i+8, len(have))])
		}
	}
	return fmt.Sprintf("there are %d octets, want %d", len(have), len(want))
}

// message is a request of the send queue.
type message struct {
	op, flags uint8
	sizes     []int // of the elements of lists; with the flag Inline, of the data
}

func (m message) String() string {
	s := []string{"WRITE", "WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "READ"}[m.op]
	if m.flags&rocefront.Inline != 0 {
		s += " inline"
	}
	return fmt.Sprint(s, m.sizes)
}

func (m message) size() (n int) {
	for _, s := range m.sizes {
		n += s
	}
	return n
}

func (m message) sends() bool { return m.op == rocefront.OpSend || m.op == rocefront.OpSendImm }

// notifies returns whether the message takes a request of the receive queue.
func (m message) notifies() bool { return m.sends() || m.op == rocefront.OpWriteImm }

func (m message) hasImm() bool { return m.op == rocefront.OpSendImm || m.op == rocefront.OpWriteImm }

// Places in a card's memory.
const (
	sourceAt = 4097
	targetAt = memorySize/2 + 77
	grhSize  = 40
)

var immediate = [4]byte{0xde, 0xad, 0xbe, 0xef}

// carry has a message go between the queue pairs, from qa's send queue, and checks the contents and all completions.
func (p *rocePair) carry(t *testing.T, m message, id uint64) {
	t.Helper()
	size, data := m.size(), pattern(int(id), m.size())
	local := newArea(p.a.mr, sourceAt, m.sizes...)
	s := rocefront.Send{ID: id, Opcode: m.op, Flags: m.flags | rocefront.Signaled, List: local.list}
	s.Imm = immediate // the device must ignore it if the opcode has none
	source, sink := local, local
	if !m.sends() {
		remote := newArea(p.b.mr, targetAt, size)
		s.RemoteAddr, s.RKey = remote.list[0].Addr, p.b.mr.RKey
		if sink = remote; m.op == rocefront.OpRead {
			source, sink = remote, local
		}
	}
	source.put(data)
	if m.flags&rocefront.Inline != 0 {
		s.List, s.InlineData = nil, data
	}
	want := data
	if p.ah != nil {
		s.AH, s.RemoteQPN, s.RemoteQKey = p.ah, p.qb.Number, p.qkey
		want = make([]byte, grhSize, grhSize+size)
		want = append(want, data...)
	}
	if m.sends() {
		sizes := m.sizes
		if p.ah != nil {
			sizes = append([]int{grhSize}, sizes...)
		}
		sink = newArea(p.b.mr, targetAt, sizes...)
		must(t, p.qb.PostRecv(id+1, sink.list...))
	} else if m.notifies() {
		must(t, p.qb.PostRecv(id+1))
	}
	must(t, p.qa.PostSend(s))
	p.a.completion(t, p.sent(m, id))
	if m.notifies() {
		p.b.completion(t, p.received(m, id+1))
	} else if p.qa.Type == rocefront.UC {
		p.marker(t, id+1) // no acknowledgement tells that a WRITE has arrived
	}
	if p.ah != nil {
		grh := sink.mr.Get(sink.at[0], grhSize)
		checkGRH(t, grh, p.a, p.b)
		copy(want, grh)
	}
	sink.holds(t, want)
}

// marker sends a message that arrives after all before it, and waits for the message.
func (p *rocePair) marker(t *testing.T, id uint64) {
	t.Helper()
	m := message{op: rocefront.OpWriteImm}
	must(t, p.qb.PostRecv(id))
	must(t, p.qa.PostSend(rocefront.Send{ID: id, Opcode: m.op, Flags: rocefront.Signaled, Imm: immediate,
		RemoteAddr: p.b.mr.Addr, RKey: p.b.mr.RKey}))
	p.a.completion(t, p.sent(m, id))
	p.b.completion(t, p.received(m, id))
}

// sent is the completion of a message's request.
func (p *rocePair) sent(m message, id uint64) rocefront.Completion {
	c := rocefront.Completion{ID: id, Opcode: rocefront.WCWrite, ByteLen: uint32(m.size()), QPN: p.qa.Number}
	switch {
	case m.sends():
		c.Opcode = rocefront.WCSend
	case m.op == rocefront.OpRead:
		c.Opcode = rocefront.WCRead
	}
	return c
}

// received is the completion of the request that a message took from the receive queue.
func (p *rocePair) received(m message, id uint64) rocefront.Completion {
	c := rocefront.Completion{ID: id, Opcode: rocefront.WCRecv, ByteLen: uint32(m.size()), QPN: p.qb.Number}
	if m.op == rocefront.OpWriteImm {
		c.Opcode = rocefront.WCRecvWriteImm
	}
	if m.hasImm() {
		c.Imm, c.Flags = immediate, rocefront.WCWithImm
	}
	if p.ah != nil {
		c.ByteLen, c.SrcQP, c.Flags = c.ByteLen+grhSize, p.qa.Number, c.Flags|rocefront.WCGRH
	}
	return c
}

// checkGRH: what comes before the payload of a datagram is the IP header: of IPv4 in the last 20 of the 40 octets.
func checkGRH(t *testing.T, b []byte, from, to *roceCard) {
	t.Helper()
	var src, dst netip.Addr
	if from.addr.Is4() {
		b = b[20:]
		src, dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		if b[0]>>4 != 4 || b[9] != 17 {
			t.Errorf("no header of IPv4 and UDP: % x", b)
		}
	} else {
		src, dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		if b[0]>>4 != 6 {
			t.Errorf("no header of IPv6: % x", b)
		}
	}
	if src != from.addr || dst != to.addr {
		t.Errorf("the header is of a packet from %v to %v, want from %v to %v", src, dst, from.addr, to.addr)
	}
}

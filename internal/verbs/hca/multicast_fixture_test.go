// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
	"weft/internal/verbs/hca/replicate"
	"weft/internal/verbs/transport"
)

// remote is memory that only calls reach, as that of another process: it may
// be taken away, and touching it may raise a fault.
type remote struct {
	*mem.Slice
	gone, faulty bool
	writing      func() // called before each write
}

var errTaken = errors.New("memory taken away")

func (r *remote) View(addr, n uint64) []byte {
	if r.faulty {
		panic(errTaken)
	}
	return nil
}
func (r *remote) ReadV(addr uint64, d [][]byte) error {
	if r.gone {
		return mem.ErrFault
	}
	return r.Slice.ReadV(addr, d)
}
func (r *remote) WriteV(w []mem.Write) (int, error) {
	if r.writing != nil {
		r.writing()
	}
	if r.gone {
		return 0, mem.ErrFault
	}
	return r.Slice.WriteV(w)
}

// sink is a link that takes everything and counts.
type sink struct{ runs int }

func (s *sink) Send(_ mono.Time, _ *pkt.Burst, _ *mem.Batch) mem.Result { s.runs++; return mem.OK }
func (s *sink) Blocked() bool                                           { return false }
func (s *sink) Flush(mono.Time)                                         {}

// hub is the pipes between the lanes of a node.
type hub struct{ runs [][]pkt.Burst }

func (h *hub) Forward(to *Lane, r *pkt.Burst, _ *QP) bool {
	c, p, b := *r, *r.Path, make([]byte, r.Data.Len)
	if mem.CopyOut(b, &r.Data) != mem.OK {
		r.Fault = true
		return false
	}
	c.Path, c.Data = &p, mem.BytesPayload(b)
	h.runs[to.ID] = append(h.runs[to.ID], c)
	return true
}
func (h *hub) Room(*Lane) bool { return true }
func (h *hub) Quiesce()        {}

// groupNode is a node with members of one multicast group: per queue pairs on each
// of some functions, each of a session of its own, spread over lanes.
type groupNode struct {
	t       testing.TB
	all     *Functions
	lanes   []*Lane
	hub     *hub
	m       *Multicast
	trunks  *sink
	members []*member
	sent    [][]byte
	from    []*member // of each packet sent; nil where it came by a trunk
	woken   int
}

type member struct {
	*endpoint
	lane  *Lane
	space *remote
	slots int // receive buffers so far
}

const (
	groupMLID   ib.LID = 0xc001
	groupSlot          = 512 // bytes of a receive buffer
	groupMemory        = 1 << 16
)

func newGroupNode(t testing.TB, lanes, functions, per int, cfg replicate.Config) *groupNode {
	p := &groupNode{t: t, all: NewFunctions(NewAdapter(&Port{Link: ib.LinkEthernet, State: ib.PortActive,
		MTU: ib.MTU1024, MaxMTU: ib.MTU4096, GIDs: testGIDs,
		PKeys: []ib.PKey{ib.DefaultPKey}}, DefaultLimits)), hub: &hub{runs: make([][]pkt.Burst, lanes)},
		trunks: &sink{}}
	p.m = NewMulticast(p.all, lanes, cfg, func(int) { p.woken++ })
	for i := range lanes {
		l := NewLane(p.all, i, noLink{t}, p.hub)
		l.SetFabric(p.trunks)
		l.SetMulticast(p.m)
		p.lanes = append(p.lanes, l)
	}
	var fs []uint16
	for f := range functions {
		a := NewAdapter(lidPort(ib.LID(0x10+f), ib.GUID(0x101+f)), DefaultLimits)
		if err := p.all.Add(a); err != nil {
			t.Fatal(err)
		}
		fs = append(fs, a.Number())
		for range per {
			p.join(a, p.lanes[len(p.members)%lanes], 0)
		}
	}
	p.all.SetMulticastForwarding(map[ib.LID][]uint16{groupMLID: fs})
	return p
}

// join adds a member with the P_Key at an index.
func (p *groupNode) join(a *Adapter, l *Lane, pkey uint16) *member {
	m := &member{endpoint: newClientOf(p.t, l, a, groupMemory).qp(QPConfig{Type: ib.UD}), lane: l}
	m.space = &remote{Slice: mem.NewSlice(base, m.mem)}
	var err error
	m.mr, err = m.s.RegisterMR(m.pd, &mem.Region{Space: m.space, Start: base, Base: base, Len: groupMemory,
		Access: ib.LocalWrite})
	m.must(err)
	m.must(m.up(nil, 0, pkey))
	m.must(m.q.AttachMulticast(mgid(1), groupMLID))
	p.members = append(p.members, m)
	return m
}

func (m *member) give(n int) {
	for range n {
		m.postRecv(uint64(m.slots), m.slots*groupSlot, groupSlot)
		m.slots++
	}
}

// send has a member send the group a packet with a number in front.
func (p *groupNode) send(m *member, n int) {
	b := p.packet(m, n)
	h, err := m.s.CreateAH(m.pd, &AHAttr{DLID: groupMLID, Global: true, DGID: mgid(1), HopLimit: 3, TrafficClass: 9,
		FlowLabel: 0x12345})
	m.must(err)
	m.post(transport.SendWR{ID: 99, Op: ib.WRSend, Flags: ib.Inline, Path: m.q.Path(h), DestQPN: ib.QPNMulticast,
		QKey: 0x11, InlineData: b})
}

func (p *groupNode) packet(from *member, n int) []byte {
	b := make([]byte, max(4, n))
	r := rand.New(rand.NewPCG(uint64(len(p.sent)), 7))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	binary.BigEndian.PutUint32(b, uint32(len(p.sent)))
	p.sent, p.from = append(p.sent, b), append(p.from, from)
	return b
}

// arrive brings a packet by a trunk.
func (p *groupNode) arriveByTrunk(n int) {
	b := p.packet(nil, n)
	p.lanes[0].Receive(2, &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: 0xffff,
		QKey: 0x11, SrcQPN: 5, DestQPN: ib.QPNMulticast},
		Count: 1, Path: &ib.Path{DLID: groupMLID, SLID: 0x99, Global: true, SGID: ib.MakeGID(ib.DefaultGIDPrefix,
			0x99), DGID: mgid(1), Function: 0xffff},
		Data: mem.BytesPayload(b)})
}

// turn is one turn of a lane, which survives a fault.
func (p *groupNode) turn(i int) (more bool) {
	l := p.lanes[i]
	defer func() {
		if r := recover(); r != nil {
			if r != any(errTaken) {
				panic(r)
			}
			l.Recover()
			more = true
		}
	}()
	runs := p.hub.runs[i]
	p.hub.runs[i] = nil
	for j := range runs {
		l.Receive(2, &runs[j])
	}
	return l.Run(2)
}

func (p *groupNode) drive() {
	p.t.Helper()
	for i := 0; ; i++ {
		if i == 100000 {
			p.t.Fatal("the lanes never come to rest")
		}
		more := false
		for l := range p.lanes {
			more = p.turn(l) || more
		}
		for i, l := range p.lanes {
			more = more || l.Replicating() || len(p.hub.runs[i]) > 0
		}
		if !more {
			return
		}
	}
}

// got returns the numbers of the packets a member has received, and checks
// every byte of them.
func (p *groupNode) got(m *member) (list []int) {
	p.t.Helper()
	for _, c := range m.cqes {
		if c.WRID == 99 {
			continue
		}
		if c.Status != ib.Success {
			p.t.Fatalf("completion %+v", c)
		}
		at := m.mem[int(c.WRID)*groupSlot:]
		body := at[40:c.ByteLen]
		if ib.GID(at[24:40]) != mgid(1) || at[0]>>4 != 6 || at[6] != wire.NxtHdrIBA || at[7] != 3 && c.SrcQPN != 5 ||
			c.Flags&ib.WCGRH == 0 {
			p.t.Fatalf("GRH % x, completion %+v", at[:40], c)
		}
		n := int(binary.BigEndian.Uint32(body))
		if n >= len(p.sent) || !bytes.Equal(body, p.sent[n]) {
			p.t.Fatalf("packet %d: other bytes arrived", n)
		}
		list = append(list, n)
	}
	return list
}

func (p *groupNode) empty() {
	p.t.Helper()
	if n := p.m.Payloads(); n != 0 {
		p.t.Fatalf("%d payloads remain: %+v", n, p.m.Counters())
	}
}

var smallConfig = replicate.Config{Payloads: 64, Threshold: replicate.Maximum, Requests: 48}

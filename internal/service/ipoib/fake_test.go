// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/connected"
)

// subnet is the fabric of tests: ports that reach each other by LID and by
// group, and a subnet administration that answers after a delay.
type subnet struct {
	t      testing.TB
	now    mono.Time
	nodes  []*node
	groups map[ib.GID]*saGroup
	lids   ib.LID // last multicast LID
	// How the subnet administration answers.
	delay      time.Duration
	silent     bool
	refuse     mad.Status // everything, if set
	paths      func(r *mad.PathRecord) mad.Status
	mtu        ib.MTU // of created broadcast groups
	queue      []func()
	asked      []string // requests, in words
	askedTimes []mono.Time
	holdPaths  bool // requests for paths wait for answerPath
	heldPaths  []uint32
	requests   []SARequest
	fakeCM
	replies []reply
}

type saGroup struct {
	rec       mad.MCMemberRecord
	members   map[ib.GID]uint8
	permanent bool
}

type reply struct {
	at     mono.Time
	to     *node
	id     uint32
	status mad.Status
	record []byte
}

// node is a link with the fake of its access layer and its device.
type node struct {
	s    *subnet
	l    *Link
	name string
	log  []string // calls, but those per packet
	port Port

	// Access layer.
	fail   map[string]int // call → how often it fails
	made   []string       // objects that exist, in the order in which they were made
	qpn    ib.QPN
	state  ib.QPState
	qkey   ib.QKey
	index  uint16
	tx, rx []byte
	// Datagrams outside their receive slot, as Arrived returns them.
	elsewhere []byte
	arrived   [][]byte
	sendq     []SendWR
	recvq     []RecvWR
	cq        []WC
	ahs       map[Handle]AH
	lastAH    Handle
	attached  map[ib.GID]ib.LID
	maps      map[uint64][]byte
	lastMap   uint64
	mappable  bool
	stall     bool // nothing completes
	limit     int  // of PostSend; 0: none
	sent      []sentFrame
	keep      bool // sent
	frame     sentFrame
	status    ib.Status // of sends
	fakeConns
	lost  func(f *sentFrame) bool
	drops map[string]int // by the fabric

	// Device.
	registered bool
	info       DeviceInfo
	regErr     error
	regLater   bool
	carrier    bool
	reason     string
	mtu        int
	got        [][]byte // packets of the IP stack
	discard    bool     // packets, but count them
	count      int
	full       bool
	wakes      int
	events     []Event
	closed     int
	closedErr  error
}

type sentFrame struct {
	data []byte
	ah   AH
	h    Handle
	wr   SendWR
}

func (f *sentFrame) payload() []byte { return f.data[wire.EncapLen:] }

var (
	gidA = ib.MakeGID(ib.DefaultGIDPrefix, 0x0002c903000a1b2d)
	gidB = ib.MakeGID(ib.DefaultGIDPrefix, 0xf4521403007bcba1)
	ipA  = netip.MustParseAddr("10.20.0.1")
	ipB  = netip.MustParseAddr("10.20.0.2")
)

const testPKey ib.PKey = 0x8014

// dirty fills buffers that should be written to.
var dirty = bytes.Repeat([]byte{0xa5}, recvSlotLen)

func newSubnet(t testing.TB) *subnet {
	s := &subnet{t: t, now: mono.Time(time.Hour), groups: map[ib.GID]*saGroup{}, lids: 0xc000, mtu: ib.MTU2048}
	s.permanent(testPKey)
	return s
}

// permanent makes the broadcast group of a partition.
func (s *subnet) permanent(pkey ib.PKey) *saGroup {
	g := &saGroup{members: map[ib.GID]uint8{}, permanent: true, rec: mad.MCMemberRecord{MGID: wire.BroadcastGID(pkey,
		2),
		QKey: 0x0b1b, MLID: s.newMLID(), MTUSelector: mad.SelectExactly, MTU: s.mtu, PKey: pkey | 0x8000,
		RateSelector: mad.SelectExactly, Rate: ib.Rate10, Scope: 2}}
	s.groups[g.rec.MGID] = g
	return g
}

func (s *subnet) newMLID() ib.LID { s.lids++; return s.lids }

// add makes a link that is not started.
func (s *subnet) add(name string, lid ib.LID, gid ib.GID, qpn ib.QPN, params ...string) *node {
	p, err := ParseParams("", "", params)
	if err != nil {
		s.t.Fatal(err)
	}
	n := &node{s: s, name: name, fail: map[string]int{}, qpn: qpn, ahs: map[Handle]AH{}, attached: map[ib.GID]ib.LID{},
		maps: map[uint64][]byte{}, drops: map[string]int{}, port: Port{State: ib.PortActive, LID: lid, SMLID: 1,
			GID: gid,
			MTU: ib.MTU4096, Rate: ib.Rate40,
			PKeys: []ib.PKey{0xffff, testPKey}}}
	n.l = New(LinkConfig{Name: name, Port: 1, PKey: testPKey, Params: p}, rand.New(rand.NewPCG(1, uint64(lid))),
		n.access(), Device{Interface: device{n}, Packets: device{n}, Events: device{n}})
	s.nodes = append(s.nodes, n)
	return n
}

// two makes two links with addresses that are up.
func two(t testing.TB, params ...string) (s *subnet, a, b *node) {
	s = newSubnet(t)
	a, b = s.add("ib0_1_14", 5, gidA, 0x48, params...), s.add("ib1_1_14", 17, gidB, 0x208, params...)
	for i, n := range s.nodes {
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom([]netip.Addr{ipA, ipB}[i], 24)}, nil)
	}
	s.run(10 * time.Second)
	for _, n := range s.nodes {
		if !n.carrier {
			t.Fatalf("%s has no carrier: %s", n.name, n.reason)
		}
		n.got = nil // the queries of groups to the IP stack
	}
	return s, a, b
}

// access is the access layer of a node, all of which the node implements.
func (n *node) access() Access {
	return Access{Objects: n, Service: n, Memory: n, Frames: n, Vectors: n, Groups: n, Queues: n, SA: n,
		Conns: connected.Ports{Shared: n, Handshake: n, QPs: n}}
}

func (n *node) start() {
	n.l.Start(n.s.now, n.port)
	if err := n.l.Open(n.s.now); err != nil {
		n.s.t.Fatal(err)
	}
}

func (n *node) logf(format string, args ...any) { n.log = append(n.log, fmt.Sprintf(format, args...)) }

var errFake = errors.New("no resources")

func (n *node) call(name string) error {
	for what := range n.fail {
		if n.fail[what] > 0 && strings.HasPrefix(name, what) {
			n.fail[what]--
			n.logf("%s fails", name)
			return errFake
		}
	}
	n.logf("%s", name)
	return nil
}

func (n *node) make(name string) error {
	if err := n.call("create " + name); err != nil {
		return err
	}
	if slices.Contains(n.made, name) {
		n.s.t.Errorf("%s: %s twice", n.name, name)
	}
	n.made = append(n.made, name)
	return nil
}

func (n *node) unmake(name string) {
	n.logf("destroy %s", name)
	if len(n.made) == 0 || n.made[len(n.made)-1] != name {
		n.s.t.Errorf("%s: %s is destroyed, but %v exist", n.name, name, n.made)
		return
	}
	n.made = n.made[:len(n.made)-1]
}

func (n *node) CreateCQ(depth int) error { return n.make("cq") }
func (n *node) DestroyCQ()               { n.unmake("cq"); n.cq = nil }
func (n *node) CreateQP(sq, rq int) (ib.QPN, error) {
	n.state = ib.Reset
	return n.qpn, n.make("qp")
}
func (n *node) DestroyQP() { n.unmake("qp"); n.state, n.sendq, n.recvq = ib.Reset, nil, nil }
func (n *node) Register(tx, tl, rx, rl int) (t, r []byte, err error) {
	n.tx, n.rx = bytes.Repeat([]byte{0xa5}, tx*tl), bytes.Repeat([]byte{0xa5}, rx*rl)
	n.elsewhere, n.arrived = make([]byte, rx*rl), make([][]byte, rx)
	return n.tx, n.rx, n.make("mr")
}
func (n *node) Deregister() { n.unmake("mr") }

func (n *node) InitUD(i uint16, qkey ib.QKey) error {
	if err := n.call(fmt.Sprintf("init ud %d", i)); err != nil {
		return err
	}
	n.state, n.index, n.qkey, n.sendq, n.recvq = ib.RTS, i, qkey, nil, nil
	return nil
}

func (n *node) StopQP() {
	n.logf("stop qp")
	n.state = ib.Err
	n.complete()
}

func (n *node) SetQKey(q ib.QKey) error {
	if err := n.call(fmt.Sprintf("qkey %#x", uint32(q))); err != nil {
		return err
	}
	n.qkey = q
	return nil
}

func (n *node) SetPKeyIndex(i uint16) error {
	if err := n.call(fmt.Sprintf("pkey index %d", i)); err != nil {
		return err
	}
	n.index = i
	return nil
}

func (n *node) Map(f []byte) (uint64, bool) {
	if !n.mappable {
		return 0, false
	}
	n.lastMap++
	n.maps[n.lastMap] = f
	return n.lastMap, true
}

func (n *node) Unmap(ref uint64) {
	if n.maps[ref] == nil {
		n.s.t.Errorf("%s: unmap %d, which is not mapped", n.name, ref)
	}
	delete(n.maps, ref)
}

func (n *node) CreateAH(a *AH) (Handle, error) {
	if err := n.call(fmt.Sprintf("create ah %#x", a.DLID)); err != nil {
		return 0, err
	}
	n.lastAH++
	n.ahs[n.lastAH] = *a
	return n.lastAH, nil
}

func (n *node) DestroyAH(h Handle) {
	if _, ok := n.ahs[h]; !ok {
		n.s.t.Errorf("%s: address vector %d does not exist", n.name, h)
	}
	for _, wr := range n.sendq {
		if wr.AH == h {
			n.s.t.Errorf("%s: address vector %d is in use", n.name, h)
		}
	}
	delete(n.ahs, h)
}

func (n *node) Attach(g ib.GID, m ib.LID) error {
	if err := n.call(fmt.Sprintf("attach %v", g)); err != nil {
		return err
	}
	if n.attached[g] != 0 {
		n.s.t.Errorf("%s: %v is attached", n.name, g)
	}
	n.attached[g] = m
	return nil
}

func (n *node) Detach(g ib.GID, m ib.LID) {
	n.logf("detach %v", g)
	if n.attached[g] != m {
		n.s.t.Errorf("%s: %v is not attached at %#x", n.name, g, m)
	}
	delete(n.attached, g)
}

func (n *node) PostSend(wrs []SendWR) int {
	for i, wr := range wrs {
		if n.limit > 0 && len(n.sendq) >= n.limit || n.state != ib.RTS {
			return i
		}
		n.sendq = append(n.sendq, wr)
	}
	return len(wrs)
}

func (n *node) PostRecv(wrs []RecvWR) int {
	if n.state != ib.RTS {
		return 0
	}
	if len(wrs) > pollBatch {
		n.logf("post receives")
	}
	n.recvq = append(n.recvq, wrs...)
	return len(wrs)
}

func (n *node) Poll(wcs []WC) int {
	if n.stall {
		return 0
	}
	k := copy(wcs, n.cq)
	n.cq = append(n.cq[:0], n.cq[k:]...)
	return k
}

func (n *node) Arrived(off uint32) []byte {
	p := n.arrived[off/recvSlotLen]
	n.arrived[off/recvSlotLen] = nil
	return p
}

// complete executes what is posted.
func (n *node) complete() {
	if n.stall {
		return
	}
	if n.state == ib.Err {
		for _, wr := range n.sendq {
			n.cq = append(n.cq, WC{ID: wr.ID, Status: ib.WRFlushErr})
		}
		for _, wr := range n.recvq {
			n.cq = append(n.cq, WC{ID: wr.ID, Status: ib.WRFlushErr, Recv: true})
		}
		n.sendq, n.recvq = n.sendq[:0], n.recvq[:0]
		return
	}
	for _, wr := range n.sendq {
		var data []byte
		if wr.Mapped {
			data = n.maps[wr.Ref][wr.Off:][:wr.Len]
		} else {
			data = n.tx[wr.Off:][:wr.Len]
		}
		ah, ok := n.ahs[wr.AH]
		if !ok {
			n.s.t.Errorf("%s: sends with address vector %d, which does not exist", n.name, wr.AH)
		}
		f := &n.frame
		*f = sentFrame{data: data, ah: ah, h: wr.AH, wr: wr}
		if n.keep {
			kept := *f
			kept.data = bytes.Clone(data)
			n.sent = append(n.sent, kept)
		}
		status := n.status
		if n.lost == nil || !n.lost(f) {
			n.s.carry(n, f)
		}
		n.cq = append(n.cq, WC{ID: wr.ID, Status: status})
	}
	n.sendq = n.sendq[:0]
}

// carry delivers a datagram to its destination.
func (s *subnet) carry(from *node, f *sentFrame) {
	for _, to := range s.nodes {
		switch {
		case from.state != ib.RTS || to.state != ib.RTS || to.port.State != ib.PortActive ||
			from.port.State != ib.PortActive:
		case f.ah.DLID.IsMulticast():
			// Packets of a group come back to their sender.
			if !f.ah.Global || f.wr.QPN != ib.QPNMulticast {
				s.t.Errorf("%s: a datagram to a group without GRH, or to %#x", from.name, f.wr.QPN)
			}
			if g := s.groups[f.ah.DGID]; g == nil || g.rec.MLID != f.ah.DLID || g.members[from.port.GID] == 0 {
				from.drops["not a member"]++
			} else if to.attached[f.ah.DGID] == f.ah.DLID && g.members[to.port.GID]&mad.JoinFull != 0 {
				to.receive(from, f)
			}
		case to.port.LID == f.ah.DLID && to.qpn == f.wr.QPN:
			to.receive(from, f)
		}
	}
}

// pkey is the key that the queue pair works with, 0 where the table has none any more.
func (n *node) pkey() ib.PKey {
	if int(n.index) < len(n.port.PKeys) {
		return n.port.PKeys[n.index]
	}
	return 0
}

func (n *node) receive(from *node, f *sentFrame) {
	mine, theirs := n.pkey(), from.pkey()
	switch {
	case !mine.Match(theirs):
		n.drops["pkey"]++
		return
	case f.wr.QKey&ib.QKeyControlled == 0 && f.wr.QKey != n.qkey:
		n.drops["qkey"]++
		return
	case len(n.recvq) == 0:
		n.drops["no buffer"]++
		return
	}
	wr := n.recvq[0]
	n.recvq = append(n.recvq[:0], n.recvq[1:]...)
	if int(wr.Len) < grhLen+len(f.data) {
		n.cq = append(n.cq, WC{ID: wr.ID, Recv: true, Status: ib.LocLenErr})
		return
	}
	b := n.rx[wr.Off:][:wr.Len]
	copy(b, dirty)
	if f.ah.Global {
		(&wire.GRH{IPVer: 6, SGID: from.port.GID, DGID: f.ah.DGID}).Put(b)
	}
	if i := wr.Off / recvSlotLen; i%2 == 0 {
		copy(b[grhLen:], f.data)
	} else { // the other half lies elsewhere
		p := n.elsewhere[wr.Off:][:len(f.data):len(f.data)]
		copy(p, f.data)
		n.arrived[i] = p
	}
	n.cq = append(n.cq, WC{ID: wr.ID, QPN: n.qpn, Recv: true, ByteLen: uint32(grhLen + len(f.data)), GRH: f.ah.Global,
		SrcQPN: from.qpn, SLID: from.port.LID})
}

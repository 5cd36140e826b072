// SPDX-License-Identifier: Apache-2.0

package vema

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

// vports is a minimal vnic.Ports: Set values are kept, and the test sets lists and traps.
type vports struct {
	info      map[uint8]*mad.VESWPortInfo
	table     map[uint8][]mad.VESWMACEntry
	uc, mc    [][6]byte
	traps     []vnic.Trap
	due       mono.Time
	calls     int // that would change something
	largest   int // requested list
	forbidden bool
}

var errNo = errors.New("no")

func newVPorts() *vports {
	return &vports{info: map[uint8]*mad.VESWPortInfo{}, table: map[uint8][]mad.VESWMACEntry{}}
}

func (p *vports) Info(vport uint8) mad.VESWPortInfo {
	if i := p.info[vport]; i != nil {
		return *i
	}
	return mad.DefaultVESWPortInfo()
}

func (p *vports) SetInfo(_ mono.Time, vport uint8, i *mad.VESWPortInfo) error {
	p.calls++
	if i.VESW.VESWID > 4095 || p.forbidden {
		return errNo
	}
	old := p.Info(vport)
	n := *i
	n.Port.OperState, n.Port.LinkStatus = mad.VESWDropAll, mad.VESWLinkDown
	n.Port.MaxMACEntries, n.Port.MaxSMACEntries, n.Port.MACDigest = mad.VESWMaxMACs, mad.VESWMaxSMACs, old.Port.MACDigest
	n.Port.UcMACsGen, n.Port.McMACsGen = old.Port.UcMACsGen, old.Port.McMACsGen
	p.info[vport] = &n
	return nil
}

func (p *vports) Delete(_ mono.Time, vport uint8) error {
	p.calls++
	i := p.info[vport]
	if i == nil {
		return errNo
	}
	n := mad.DefaultVESWPortInfo()
	n.Port.LinkStatus, n.Port.UcMACsGen, n.Port.McMACsGen = mad.VESWLinkDown, i.Port.UcMACsGen, i.Port.McMACsGen
	p.info[vport] = &n
	delete(p.table, vport)
	return nil
}

func (p *vports) Remove(_ mono.Time, vport uint8) error {
	p.calls++
	if p.info[vport] == nil {
		return errNo
	}
	delete(p.info, vport)
	delete(p.table, vport)
	return nil
}

func (p *vports) MACEntries(vport uint8, offset int, dst []mad.VESWMACEntry) (uint32, error) {
	if p.info[vport] == nil {
		return 0, errNo
	}
	if t := p.table[vport]; t != nil {
		copy(dst, t[offset:])
	}
	return p.info[vport].Port.MACDigest, nil
}

func (p *vports) SetMACEntries(vport uint8, offset int, e []mad.VESWMACEntry, digest uint32) error {
	p.calls++
	if p.info[vport] == nil {
		return errNo
	}
	if p.table[vport] == nil {
		p.table[vport] = make([]mad.VESWMACEntry, mad.VESWMaxMACs)
	}
	copy(p.table[vport][offset:], e)
	p.info[vport].Port.MACDigest = digest
	return nil
}

func (p *vports) list(vport uint8, l [][6]byte, start int, dst [][6]byte) (n, total int, err error) {
	p.largest = max(p.largest, len(dst))
	if p.info[vport] == nil {
		return 0, 0, errNo
	}
	return copy(dst, l[min(start, len(l)):]), len(l), nil
}

func (p *vports) UnicastMACs(vport uint8, start int, dst [][6]byte) (n, total int, gen uint16, err error) {
	n, total, err = p.list(vport, p.uc, start, dst)
	return n, total, p.Info(vport).Port.UcMACsGen, err
}

func (p *vports) MulticastMACs(vport uint8, start int, dst [][6]byte) (n, total int, gen uint16, err error) {
	n, total, err = p.list(vport, p.mc, start, dst)
	return n, total, p.Info(vport).Port.McMACsGen, err
}

func (p *vports) NextTrap(now mono.Time) (vnic.Trap, bool) {
	if len(p.traps) == 0 || now < p.due {
		return vnic.Trap{}, false
	}
	t := p.traps[0]
	p.traps = p.traps[1:]
	return t, true
}

func (p *vports) Deadline() mono.Time {
	if len(p.traps) == 0 {
		return 0
	}
	return p.due
}

// LIDs of the tests: the agent's port, its subnet manager, another configured manager, and an unknown
// node.
const (
	ownLID      = 5
	smLID       = 1
	otherLID    = 9
	strangerLID = 7
)

func newTestAgent(p *vports) *Agent {
	a := newAgent(Config{Managers: []ib.LID{otherLID}, Counters: func(uint8) (s mad.VESWSummary,
		e mad.VESWErrors) {
		s.Values = [mad.NumVESWCounters]uint64{1005, 1004, 1001, 1000, 1003, 1002}
		for c := mad.VESWTxUnicast; c < mad.NumVESWCounters; c++ {
			s.Values[c] = 1024 + uint64(c-mad.VESWTxUnicast)
		}
		return s, mad.VESWErrors{TxErrors: 1005, RxErrors: 1004, TxDLIDZero: 1046, TxLogic: 2035, TxDropState: 1047,
			RxBadVESWID: 1023, RxRunt: 1049,
			RxOversize: 1050, RxDropState: 1048, RxLogic: 1014}
	}}, p, p, p, 1)
	a.SetPort(Port{LID: ownLID, SMLID: smLID, Active: true})
	return a
}

func datagram(from ib.LID, b []byte) *mad.Datagram {
	d := &mad.Datagram{Port: 1, SLID: from, DLID: ownLID, SL: 2, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI,
		QKey: ib.GSIQKey, PKey: 0x8001}
	if !d.SetMAD(b) {
		panic("no MAD")
	}
	return d
}

// request sends a request and returns the response.
func ask(t *testing.T, a *Agent, from ib.LID, m *mad.VEMA) mad.VEMA {
	t.Helper()
	d := datagram(from, m.Append(nil))
	if !a.Handle(0, d) {
		t.Fatalf("%v of %#x: not taken", m.Method, m.AttributeID)
	}
	want := datagram(from, d.Long).Reply()
	want.Long = d.Long
	if !reflect.DeepEqual(want, *d) {
		t.Fatalf("answer's addresses (-want +got):\n%s", cmp.Diff(want, *d))
	}
	var r mad.VEMA
	if err := r.Parse(d.Long); err != nil {
		t.Fatal(err)
	}
	if r.Method != mad.MethodGetResp || r.TransactionID != m.TransactionID || r.AttributeID != m.AttributeID ||
		r.AttributeModifier != m.AttributeModifier {
		t.Fatalf("%+v was answered with %+v", m.Header, r.Header)
	}
	if r.Status != 0 && r.Data != [mad.VEMADataLen]byte{} {
		t.Fatalf("%v of %#x: data with status %v", m.Method, m.AttributeID, r.Status)
	}
	return r
}

func request(m mad.Method, id mad.AttributeID, vport uint8, c interface{ Append([]byte) []byte }) *mad.VEMA {
	r := mad.NewVEMA(m, id, vport, 0x1234567890abcdef)
	if c != nil {
		c.Append(r.Data[:0])
	}
	return &r
}

// trapLID is a ClassPortInfo that has traps go to a LID.
func trapLID(lid uint32) *mad.VEMAClassPortInfo {
	return &mad.VEMAClassPortInfo{Trap: mad.VEMATarget{LID: lid, SL: 3}}
}

// step is what happens between the MADs of the sequence in opa16b.json.
type step struct {
	link  func() // the interface is switched on
	lists func() // called with the addresses
}

func TestSequence(t *testing.T) {
	p := newVPorts()
	sequence(t, newTestAgent(p), step{
		link: func() {
			i := p.info[1]
			i.Port.OperState, i.Port.LinkStatus = mad.VESWForwarding, mad.VESWLinkUp
			p.traps = append(p.traps, vnic.Trap{VPort: 1, Opcode: mad.VEMALinkStatus})
		},
		lists: func() {
			p.uc = [][6]byte{{0, 0x11, 0x22, 0x33, 0x44, 1}, {0, 0x11, 0x22, 0x33, 0x44, 2}}
			p.mc = [][6]byte{{0x33, 0x33, 0, 0, 0, 0xfb}, {0x33, 0x33, 0, 0, 0, 1}, {1, 0, 0x5e, 0, 0, 1}}
			p.info[1].Port.UcMACsGen, p.info[1].Port.McMACsGen = 3, 4
		},
	})
}

// adapter is a function that has netdevs.
type adapter struct{ *vnic.Netdevs }

func (a adapter) AllocNetdev(vport uint8) (vnic.Netdev, error) {
	s, err := a.Alloc(vport)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (a adapter) FreeNetdev(vport uint8) { a.Free(vport) }

// TestSequenceOfPorts is the same with ports as a node has them.
func TestSequenceOfPorts(t *testing.T) {
	p := vnic.New(vnic.Config{Function: adapter{vnic.NewNetdevs(0)}, OPAPort: 1})
	p.SetLink(0, true)
	a := newTestAgent(newVPorts())
	a.ports, a.macs, a.traps = p, p, p
	sequence(t, a, step{
		link: func() { p.Port(1).SetAdmin(0, true) },
		lists: func() {
			uc, mc := [][6]byte{{0, 0x11, 0x22, 0x33, 0x44, 1}, {0, 0x11, 0x22, 0x33, 0x44, 2}}, [][6]byte{{1, 0,
				0x5e, 0, 0, 1}, {0x33, 0x33, 0, 0, 0, 1}, {0x33, 0x33, 0, 0, 0, 0xfb}}
			// As often as it had changed in the sequence; what changes nothing does not count.
			p.Port(1).SetFilters(0, uc[:1], mc[:1])
			p.Port(1).SetFilters(0, uc[:1], mc[:1])
			p.Port(1).SetFilters(0, nil, mc[:2])
			p.Port(1).SetFilters(0, nil, mc[1:])
			p.Port(1).SetFilters(0, uc, mc)
		},
	})
}

// sequence has the agent answer as the driver's did, octet for octet.
func sequence(t *testing.T, a *Agent, do step) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "test", "vectors", "opa16b.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		VEMA struct {
			Sequence []struct {
				Name                    string
				Len                     int `json:"mad_len"`
				Request, Response, Trap string
			}
		}
	}
	if err := json.Unmarshal(b, &f); err != nil || len(f.VEMA.Sequence) != 23 {
		t.Fatal(err, len(f.VEMA.Sequence))
	}
	a.cfg.DriverPortNum = true // as in the sequence
	for _, s := range f.VEMA.Sequence {
		whole := func(text string) []byte {
			b, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			return append(b, make([]byte, s.Len-len(b))...)
		}
		if s.Trap != "" { // its transaction identifier is what the driver had come to
			a.tid = 0x41
			do.link()
			var d mad.Datagram
			if !a.Next(0, &d) {
				t.Fatal("no trap")
			}
			if diff := cmp.Diff(whole(s.Trap), d.Long); diff != "" {
				t.Errorf("%s (-want +got):\n%s", s.Name, diff)
			}
			continue
		}
		if s.Name == "get_ucast_macs" { // the interface's addresses
			do.lists()
		}
		d := datagram(smLID, whole(s.Request))
		if !a.Handle(0, d) {
			t.Fatalf("%s: not taken", s.Name)
		}
		if diff := cmp.Diff(whole(s.Response), d.Long); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.Name, diff)
		}
	}
}

// TestHeaders: an answer has what the request had in octets that mean nothing.
func TestHeaders(t *testing.T) {
	b := request(mad.MethodGet, mad.AttrVESWPortInfo, 3, nil).Append(nil)
	for i := 24; i < 37; i++ {
		b[i] = byte(i)
	}
	b[18], b[6], b[20] = 0xa5, 0x5a, 0x77
	d := datagram(strangerLID, b)
	newTestAgent(newVPorts()).Handle(0, d)
	b[3] = byte(mad.MethodGetResp)
	if !bytes.Equal(b[:40], d.Long[:40]) {
		t.Errorf("want % x\n got % x", b[:40], d.Long[:40])
	}
}

// TestUnsupported: every combination of method and attribute that the agent does not have.
func TestUnsupported(t *testing.T) {
	get := []mad.AttributeID{0x01, 0x11, 0x12, 0x13, 0x14, 0x20, 0x22}
	set := []mad.AttributeID{0x01, 0x11, 0x12, 0x15, 0xff15}
	p := newVPorts()
	p.info[1] = new(mad.VESWPortInfo)
	for id := range mad.AttributeID(0xffff) {
		if id > 0x40 && id < 0xff00 {
			continue
		}
		for m, has := range map[mad.Method][]mad.AttributeID{mad.MethodGet: get, mad.MethodSet: set} {
			want := mad.StatusBadMethodAttr
			for _, h := range has {
				if h == id {
					want = mad.StatusOK
				}
			}
			if p.info[1] == nil || p.info[1].Port.LinkStatus == 0 {
				p.info[1] = &mad.VESWPortInfo{Port: mad.VESWPort{LinkStatus: mad.VESWLinkDown}}
			}
			if r := ask(t, newTestAgent(p), smLID, request(m, id, 1, nil)); r.Status != want {
				t.Errorf("%v of %#x: %v, want %v", m, id, r.Status, want)
			}
		}
	}
}

// TestNoVPort: what is not there.
func TestNoVPort(t *testing.T) {
	p := newVPorts()
	a := newTestAgent(p)
	for _, r := range []*mad.VEMA{
		request(mad.MethodGet, mad.AttrVESWMACEntries, 4, nil), request(mad.MethodSet, mad.AttrVESWMACEntries, 4, nil),
		request(mad.MethodGet, mad.AttrVESWUnicastMACs, 4, nil), request(mad.MethodGet, mad.AttrVESWMcastMACs, 4, nil),
		request(mad.MethodSet, mad.AttrVESWDelete, 4, nil), request(mad.MethodSet, mad.AttrVESWRemove, 4, nil),
		request(mad.MethodGet, mad.AttrVESWSummary, 4, nil), request(mad.MethodGet, mad.AttrVESWErrors, 4, nil),
	} {
		if got := ask(t, a, smLID, r); got.Status != mad.StatusInvalidValue {
			t.Errorf("%v of %#x: %v", r.Method, r.AttributeID, got.Status)
		}
	}
	if len(p.info) != 0 {
		t.Errorf("made: %v", p.info)
	}
	var i mad.VESWPortInfo
	if r := ask(t, a, smLID, request(mad.MethodGet, mad.AttrVESWPortInfo, 4, nil)); r.Status != 0 ||
		i.Parse(r.Data[:]) != nil || i != mad.DefaultVESWPortInfo() {
		t.Errorf("%v, %+v", r.Status, i)
	}
}

// TestD07_Lists: for any requested number of MACs the response has no more than fit, and pages join to
// the list.
func TestD07_Lists(t *testing.T) {
	p := newVPorts()
	p.info[0] = &mad.VESWPortInfo{Port: mad.VESWPort{LinkStatus: mad.VESWLinkUp, McMACsGen: 77}}
	for i := range 1000 {
		p.mc = append(p.mc, [6]byte{1, 0, 0x5e, 0, byte(i >> 8), byte(i)})
	}
	a := newTestAgent(p)
	for _, most := range []uint16{0, 1, 100, 332, 333, 334, 2048, 65535} {
		want := int(most)
		if most == 0 || most > 333 {
			want = 333
		}
		var got [][6]byte
		for len(got) < len(p.mc) {
			l := mad.VESWMACList{Start: uint16(len(got)), Num: most}
			r := ask(t, a, strangerLID, request(mad.MethodGet, mad.AttrVESWMcastMACs, 0, &l))
			var page mad.VESWMACList
			page.Parse(r.Data[:])
			if r.Status != 0 || page.Start != l.Start || page.Total != 1000 || page.Gen != 77 ||
				int(page.Num) != min(want, 1000-len(got)) {
				t.Fatalf("%d at most from %d: %v, %d from %d of %d, generation %d", most, l.Start, r.Status, page.Num,
					page.Start, page.Total, page.Gen)
			}
			for _, m := range page.MACs[page.Num:] {
				if m != [6]byte{} {
					t.Fatalf("%d at most: more than %d MACs", most, page.Num)
				}
			}
			got = append(got, page.MACs[:page.Num]...)
		}
		if diff := cmp.Diff(p.mc, got); diff != "" {
			t.Errorf("%d at most (-want +got):\n%s", most, diff)
		}
	}
	if p.largest > mad.VESWListPerMAD {
		t.Errorf("asked for %d", p.largest)
	}
	for _, start := range []uint16{1000, 1001, 65535} {
		r := ask(t, a, strangerLID, request(mad.MethodGet, mad.AttrVESWMcastMACs, 0, &mad.VESWMACList{Start: start,
			Num: 9}))
		var page mad.VESWMACList
		if page.Parse(r.Data[:]); r.Status != 0 || page.Num != 0 || page.Total != 1000 || page.Start != start {
			t.Errorf("from %d: %v, %d of %d", start, r.Status, page.Num, page.Total)
		}
	}
}

// TestD05_MACEntries: ranges outside the table, for both methods, and what a full one takes.
func TestD05_MACEntries(t *testing.T) {
	p := newVPorts()
	p.info[2] = &mad.VESWPortInfo{Port: mad.VESWPort{LinkStatus: mad.VESWLinkUp}}
	a := newTestAgent(p)
	for _, c := range [][2]uint16{{0, 126}, {2048, 1}, {2047, 2}, {1924, 125}, {65535, 65535}, {65535, 1}, {1, 65535}} {
		for _, m := range []mad.Method{mad.MethodGet, mad.MethodSet} {
			r := ask(t, a, smLID, request(m, mad.AttrVESWMACEntries, 2, &mad.VESWMACEntries{Offset: c[0], Num: c[1],
				Digest: 3}))
			if r.Status != mad.StatusInvalidValue || p.calls != 0 {
				t.Errorf("%v of %d from %d: %v", m, c[1], c[0], r.Status)
			}
		}
	}
	var want []mad.VESWMACEntry
	for i := range mad.VESWMaxMACs {
		want = append(want, mad.VESWMACEntry{MAC: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}, DLIDSD: uint32(i) << 8})
	}
	mads := 0
	for at := 0; at < len(want); {
		e := mad.VESWMACEntries{Offset: uint16(at)}
		e.Num = uint16(copy(e.Entries[:], want[at:]))
		if at += int(e.Num); at == len(want) {
			e.Digest = 0xd1
		}
		var back mad.VESWMACEntries
		if r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWMACEntries, 2, &e)); r.Status != 0 ||
			back.Parse(r.Data[:]) != nil || back != e {
			t.Fatalf("%d from %d: %v", e.Num, e.Offset, r.Status)
		}
		mads++
	}
	if mads != 17 || !reflect.DeepEqual(want, p.table[2]) {
		t.Errorf("%d MADs; %v", mads, p.table[2])
	}
	// Only the digest.
	r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWMACEntries, 2, &mad.VESWMACEntries{Offset: 2048,
		Digest: 0xd2}))
	var back mad.VESWMACEntries
	if back.Parse(r.Data[:]); r.Status != 0 || back != (mad.VESWMACEntries{Offset: 2048, Digest: 0xd2}) ||
		!reflect.DeepEqual(want, p.table[2]) {
		t.Errorf("%v, %+v", r.Status, back)
	}
}

// TestD05_ClassPortInfo: a place that traps cannot go to is refused, and the one before stays.
func TestD05_ClassPortInfo(t *testing.T) {
	a := newTestAgent(newVPorts())
	if r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrClassPortInfo, 0, trapLID(0x12))); r.Status != 0 ||
		a.Manager() != 0x12 {
		t.Fatal(r.Status)
	}
	bad := trapLID(0x13)
	bad.Trap.SL = 16
	for _, c := range []*mad.VEMAClassPortInfo{trapLID(0xc000), trapLID(0xffff), trapLID(0x10013),
		trapLID(0xffffffff), bad} {
		if r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrClassPortInfo, 0,
			c)); r.Status != mad.StatusInvalidValue || a.Manager() != 0x12 {
			t.Errorf("%+v: %v, traps go to %#x", c.Trap, r.Status, a.Manager())
		}
	}
	r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrClassPortInfo, 0, &mad.VEMAClassPortInfo{}))
	if r.Status != 0 || a.Manager() != 0 {
		t.Errorf("%v, traps go to %#x", r.Status, a.Manager())
	}
}

// TestD18_Strangers: what each of them may at each time, and that nothing else happens.
func TestD18_Strangers(t *testing.T) {
	sets := []*mad.VEMA{
		request(mad.MethodSet, mad.AttrVESWPortInfo, 1, &mad.VESWPortInfo{VESW: mad.VESW{VESWID: 7}}),
		request(mad.MethodSet, mad.AttrVESWPortInfo, 2, &mad.VESWPortInfo{VESW: mad.VESW{VESWID: 7}}),
		request(mad.MethodSet, mad.AttrVESWMACEntries, 1, &mad.VESWMACEntries{Num: 1, Digest: 9}),
		request(mad.MethodSet, mad.AttrVESWDelete, 1, nil),
		request(mad.MethodSet, mad.AttrVESWRemove, 1, nil),
		request(mad.MethodSet, mad.AttrClassPortInfo, 0, trapLID(strangerLID)),
	}
	for _, c := range []struct {
		name  string
		setup func(a *Agent)
		from  ib.LID
		qpn   ib.QPN
		ok    bool
	}{
		{"before anybody spoke, a stranger", func(a *Agent) {}, strangerLID, 1, false},
		{"before anybody spoke, the subnet manager", func(a *Agent) {}, smLID, 1, true},
		{"before anybody spoke, a configured one", func(a *Agent) {}, otherLID, 1, true},
		{"without a subnet manager, LID 0", func(a *Agent) { a.SetPort(Port{LID: ownLID, Active: true}) }, 0, 1, false},
		{"without a subnet manager, the permissive LID",
			func(a *Agent) { a.SetPort(Port{LID: ownLID, SMLID: ib.LIDPermissive}) }, ib.LIDPermissive, 1, false},
		{"the subnet manager from another queue pair", func(a *Agent) {}, smLID, 0x123, false},
		{"where traps go", func(a *Agent) { a.store(trapLID(0x12).Append(nil)) }, 0x12, 1, true},
		{"where traps went before", func(a *Agent) {
			a.store(trapLID(0x12).Append(nil))
			a.store(trapLID(0x13).Append(nil))
		}, 0x12, 1, false},
		{"a stranger beside a manager", func(a *Agent) { a.store(trapLID(0x12).Append(nil)) }, strangerLID, 1, false},
		{"the subnet manager beside a manager", func(a *Agent) { a.store(trapLID(0x12).Append(nil)) }, smLID, 1, true},
		{"the subnet manager before", func(a *Agent) { a.SetPort(Port{LID: ownLID, SMLID: 2}) }, smLID, 1, false},
		{"its own port", func(a *Agent) {}, ownLID, 1, false},
	} {
		for _, m := range sets {
			p := newVPorts()
			p.SetInfo(0, 1, &mad.VESWPortInfo{VESW: mad.VESW{VESWID: 3}})
			p.calls = 0
			a := newTestAgent(p)
			c.setup(a)
			before, manager := p.Info(1), a.Manager()
			d := datagram(c.from, m.Append(nil))
			d.SrcQPN = c.qpn
			if !a.Handle(0, d) {
				t.Fatal("not taken")
			}
			status := mad.Status(d.Long[4])<<8 | mad.Status(d.Long[5])
			stats, last := a.Stats()
			if c.ok {
				if status != 0 || stats.Untrusted != 0 || a.Waiting() && m.AttributeID == mad.AttrClassPortInfo {
					t.Errorf("%s, Set of %#x: %v", c.name, m.AttributeID, status)
				}
				continue
			}
			if status != mad.StatusInvalidValue || p.calls != 0 || p.Info(1) != before || len(p.info) != 1 ||
				a.Manager() != manager ||
				stats.Untrusted != 1 || stats.Invalid != 1 || last != c.from || !a.Waiting() {
				t.Errorf("%s, Set of %#x: %v, %+v", c.name, m.AttributeID, status, stats)
			}
		}
	}
}

// TestD20_Waiting: until a trusted manager sets ClassPortInfo.
func TestD20_Waiting(t *testing.T) {
	a := newTestAgent(newVPorts())
	ask(t, a, smLID, request(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
	ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWPortInfo, 0, &mad.VESWPortInfo{}))
	ask(t, a, strangerLID, request(mad.MethodSet, mad.AttrClassPortInfo, 0, trapLID(strangerLID)))
	ask(t, a, smLID, request(mad.MethodSet, mad.AttrClassPortInfo, 0, trapLID(0xffff)))
	if !a.Waiting() {
		t.Error("does not wait")
	}
	ask(t, a, smLID, request(mad.MethodSet, mad.AttrClassPortInfo, 0, trapLID(smLID)))
	if a.Waiting() || a.Manager() != smLID {
		t.Error("still waits")
	}
}

// TestD10_Remove: a vport that is removed is none.
func TestD10_Remove(t *testing.T) {
	p := newVPorts()
	a := newTestAgent(p)
	ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWPortInfo, 254, &mad.VESWPortInfo{}))
	if r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWPortInfo, 255,
		&mad.VESWPortInfo{})); r.Status != mad.StatusInvalidValue || len(p.info) != 1 {
		t.Errorf("vport 255: %v", r.Status)
	}
	if r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWRemove, 254, nil)); r.Status != 0 ||
		r.Data != [mad.VEMADataLen]byte{} || len(p.info) != 0 {
		t.Errorf("%v, %v", r.Status, p.info)
	}
	if r := ask(t, a, smLID, request(mad.MethodSet, mad.AttrVESWRemove, 254, nil)); r.Status != mad.StatusInvalidValue {
		t.Error(r.Status)
	}
}

// TestD13_CountersPort: counters name vport, VESW and the port's number there.
func TestD13_CountersPort(t *testing.T) {
	p := newVPorts()
	p.info[6] = &mad.VESWPortInfo{VESW: mad.VESW{VESWID: 0x123}, Port: mad.VESWPort{PortNum: 0x12345678,
		LinkStatus: mad.VESWLinkUp}}
	a := newTestAgent(p)
	var s mad.VESWSummary
	var e mad.VESWErrors
	rs, re := ask(t, a, 3, request(mad.MethodGet, mad.AttrVESWSummary, 6, nil)), ask(t, a, 3, request(mad.MethodGet,
		mad.AttrVESWErrors, 6, nil))
	s.Parse(rs.Data[:])
	e.Parse(re.Data[:])
	if s.VPort != 6 || s.VESWID != 0x123 || s.PortNum != 0x12345678 || s.Values[mad.VESWRx1519Max] != 1045 {
		t.Errorf("%+v", s)
	}
	if e.VPort != 6 || e.VESWID != 0x123 || e.PortNum != 0x12345678 || e.RxLogic != 1014 {
		t.Errorf("%+v", e)
	}
}

// TestD12_Traps: where traps go, and that none is lost while they cannot.
func TestD12_Traps(t *testing.T) {
	p := newVPorts()
	p.info[3] = &mad.VESWPortInfo{VESW: mad.VESW{FabricID: 0x301, VESWID: 0x102}, Port: mad.VESWPort{PortNum: 0x10007,
		EncapSLID: 0x123456}}
	p.traps = []vnic.Trap{{VPort: 3, Opcode: mad.VEMAUnicastMACs}, {VPort: 3, Opcode: mad.VEMALinkStatus}}
	a := newTestAgent(p)
	p.due = 1000
	var d mad.Datagram
	for _, f := range []func(){
		func() {}, // no trap LID was set
		func() {
			a.store(trapLID(0x12).Append(nil))
			a.SetPort(Port{LID: ownLID, SMLID: smLID})
		},
		func() { a.SetPort(Port{SMLID: smLID, Active: true}) },
	} {
		if f(); a.Next(5000, &d) || a.Deadline() != 0 || len(p.traps) != 2 {
			t.Fatal("sent")
		}
	}
	a.SetPort(Port{LID: ownLID, SMLID: smLID, Active: true})
	if a.Next(999, &d) || a.Deadline() != 1000 {
		t.Fatal("too early")
	}
	d.Long = []byte{1}
	for i, op := range []mad.VEMAOpcode{mad.VEMAUnicastMACs, mad.VEMALinkStatus} {
		if !a.Next(1000, &d) {
			t.Fatal("not sent")
		}
		trap := mad.NewVEMATrap(uint64(i+1), mad.VEMANotice{GenericType: 8, OUI: 0x66a, IssuerLID: 0x123456,
			FabricID: 0x301, VESWID: 0x102, PortNum: 0x10007,
			OPAPort: 1, VPort: 3, Opcode: op})
		want := mad.Datagram{Port: 1, SLID: ownLID, DLID: 0x12, SL: 3, SrcQPN: 1, DstQPN: 1, QKey: ib.GSIQKey,
			PKey: 0xffff}
		want.SetMAD(trap.Append(nil))
		if diff := cmp.Diff(want, d); diff != "" || len(d.Long) != 272 {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if a.Next(mono.Time(time.Hour), &d) || a.Deadline() != 0 {
		t.Error("one more")
	}
}

// TestNotMine: MADs that are not the agent's stay as they are, and change nothing.
func TestNotMine(t *testing.T) {
	set := request(mad.MethodSet, mad.AttrVESWPortInfo, 1, &mad.VESWPortInfo{VESW: mad.VESW{VESWID: 7}}).Append(nil)
	with := func(at int, v byte) []byte {
		b := bytes.Clone(set)
		b[at] = v
		return b
	}
	mads := [][]byte{set[:2044], set[:272], set[:256], set[:40], set[:24], with(1, 0x33), with(2, 1), with(2, 0),
		with(37, 1), with(39, 0x6b),
		with(0, 1)[:256], with(0, 0x81)[:256]}
	for m := range 256 {
		if m != 1 && m != 2 {
			mads = append(mads, with(3, byte(m)))
		}
	}
	p := newVPorts()
	a := newTestAgent(p)
	for _, b := range mads {
		d := datagram(smLID, b)
		want := *d
		if a.Handle(0, d) {
			t.Errorf("taken: %d octets, % x", len(b), b[:24])
		}
		if diff := cmp.Diff(want, *d); diff != "" {
			t.Errorf("changed:\n%s", diff)
		}
	}
	if s, _ := a.Stats(); s != (Stats{DropNotMine: uint64(len(mads))}) || p.calls != 0 {
		t.Errorf("%+v", s)
	}
}

// FuzzAgent passes requests of any sender to the agent: only a manager changes anything, and every
// response belongs to its request.
func FuzzAgent(f *testing.F) {
	for _, id := range []mad.AttributeID{0x01, 0x11, 0x12, 0x13, 0x14, 0x15, 0x20, 0x22, 0xff15} {
		for _, m := range []byte{1, 2} {
			b := mad.NewVEMA(mad.Method(m), id, 1, 5)
			f.Add(b.Append(nil), uint16(smLID))
			f.Add(b.Append(nil), uint16(strangerLID))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, from uint16) {
		p := newVPorts()
		p.SetInfo(0, 1, &mad.VESWPortInfo{VESW: mad.VESW{VESWID: 3}})
		p.uc, p.mc = make([][6]byte, 5), make([][6]byte, 400)
		a := newTestAgent(p)
		before := p.Info(1)
		p.calls = 0
		if !mad.MADLength(b) {
			return
		}
		d := datagram(ib.LID(from), b)
		taken := a.Handle(0, d)
		trusted := from == smLID || from == otherLID
		if (!taken || !trusted || b[3] != 2) && (p.calls != 0 || p.Info(1) != before || a.Manager() != 0 ||
			!a.Waiting()) {
			t.Fatalf("changed by %#x", from)
		}
		if !taken {
			return
		}
		status := mad.Status(d.Long[4])<<8 | mad.Status(d.Long[5])
		if len(d.Long) != mad.OPALen || !mad.IsVEMA(d.Long) || d.Long[3] != 0x81 ||
			!bytes.Equal(d.Long[6:40], b[6:40]) || d.DLID != ib.LID(from) {
			t.Fatalf("% x became % x", b[:40], d.Long[:40])
		}
		if status != 0 && status != mad.StatusBadMethodAttr && status != mad.StatusInvalidValue {
			t.Fatal(status)
		}
	})
}

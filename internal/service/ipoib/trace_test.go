// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// vector is one of test/vectors/ipoib.json.
type vector struct {
	ID, Kind, Desc string
	Input, Output  json.RawMessage
}

func vectors(t testing.TB, prefix string) map[string]vector {
	t.Helper()
	b, err := os.ReadFile("../../../test/vectors/ipoib.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	m := map[string]vector{}
	for _, v := range file.Vectors {
		if strings.HasPrefix(v.ID, prefix) {
			m[v.ID] = v
		}
	}
	if len(m) == 0 {
		t.Fatalf("no vectors %s", prefix)
	}
	return m
}

func (v *vector) read(t testing.TB, in, out any) {
	t.Helper()
	for _, p := range []struct {
		raw json.RawMessage
		to  any
	}{{v.Input, in}, {v.Output, out}} {
		if p.to == nil {
			continue
		}
		if err := json.Unmarshal(p.raw, p.to); err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// payloadOf is the datagram of an ARP, ND or receive vector.
func payloadOf(t testing.TB, id string) []byte {
	t.Helper()
	v, ok := vectors(t, id)[id]
	if !ok {
		t.Fatalf("no vector %s", id)
	}
	var in, out struct {
		Payload string `json:"ud_payload_hex"`
	}
	v.read(t, &in, &out)
	return unhex(t, in.Payload+out.Payload)
}

var (
	hwA = wire.MakeHWAddr(0, 0x48, gidA)
	hwB = wire.MakeHWAddr(wire.HWFlagRC, 0x208, gidB)
)

// alone makes host A of the vectors. Its link is up; its path queries are answered by the test only.
func alone(t testing.TB, params ...string) (*subnet, *node) {
	s := newSubnet(t)
	a := s.add("ib0_1_14", 5, gidA, 0x48, params...)
	a.start()
	a.l.SetAddrs(s.now, []netip.Prefix{netip.MustParsePrefix("10.20.0.1/24"),
		netip.MustParsePrefix("fe80::202:c903:a:1b2d/64")}, nil)
	s.run(10 * time.Second)
	if !a.carrier {
		t.Fatalf("no carrier: %s", a.reason)
	}
	a.keep, a.got = true, nil // the queries of groups to the IP stack
	s.holdPaths = true
	s.asked, s.requests = nil, nil
	return s, a
}

// xmit sends a frame of host A's own making.
func (n *node) xmit(dst wire.HWAddr, typ wire.EtherType, packet []byte) {
	f := make([]byte, Headroom+len(packet))
	n.l.NetDevice().BuildHeader(f, dst, typ)
	copy(f[Headroom:], packet)
	n.l.forwarder.forward(n.s.now, f)
	n.l.qp.flush(n.s.now)
	n.s.step()
}

func (n *node) xmitText(dst wire.HWAddr, text string) {
	n.xmit(dst, wire.EtherIPv4, ipv4(ipA, ipB, text)[Headroom:])
}

// sentTexts names what was sent: packets by their text, with how they went
// if via names handles.
func (n *node) sentTexts(via map[ib.LID]string) []string {
	l := []string{}
	for _, f := range n.sent {
		text := "arp"
		if p := f.payload(); f.data[0] == 0x08 && f.data[1] == 0x00 {
			text = string(p[20:])
		}
		if v := via[f.ah.DLID]; v != "" {
			text += " via " + v
		}
		l = append(l, text)
	}
	return l
}

// answerPath answers the oldest request for a path that waits.
func (s *subnet) answerPath(n *node, rec *mad.PathRecord, status mad.Status) {
	if len(s.heldPaths) == 0 {
		s.t.Fatal("there is no path query")
	}
	id := s.heldPaths[0]
	s.heldPaths = s.heldPaths[1:]
	n.l.SAResponse(s.now, id, status, rec.Append(nil))
	s.step()
}

// inject has a datagram arrive.
func (n *node) inject(wc WC, buf []byte) {
	wr := n.recvq[0]
	n.recvq = slices.Delete(n.recvq, 0, 1)
	copy(n.rx[wr.Off:][:wr.Len], buf)
	wc.ID, wc.Recv = wr.ID, true
	n.cq = append(n.cq, wc)
	n.s.step()
}

// injectUnicast has a datagram arrive from host B, without a GRH.
func (n *node) injectUnicast(payload []byte) {
	n.inject(WC{ByteLen: uint32(grhLen + len(payload)), SrcQPN: 0x208, SLID: 17},
		append(slices.Repeat([]byte{0xa5}, grhLen), payload...))
}

func pathSA6(t testing.TB) *mad.PathRecord {
	var in struct {
		Attribute string `json:"attribute_hex"`
	}
	v := vectors(t, "SA-6")["SA-6"]
	v.read(t, &in, nil)
	var p mad.PathRecord
	if err := p.Parse(unhex(t, in.Attribute)); err != nil {
		t.Fatal(err)
	}
	return &p
}

// shadowState is what traces tell of the entry of host B.
func (n *node) shadowState() (state string, queue []string) {
	e := n.l.shadow.entries[hwB.Key()]
	switch {
	case e == nil:
		return "absent", []string{}
	case e.state == entryResolved:
		state = "RESOLVED"
	default:
		state = "PATHRECORD_PENDING"
	}
	queue = []string{}
	for _, f := range e.queue {
		queue = append(queue, string(f[Headroom+20:]))
	}
	return state, queue
}

// traceStep is a line of a trace: what it does not say is nil.
type traceStep struct {
	Ev           string
	State        *string
	Queue        *[]string
	PathQueries  *int `json:"path_queries"`
	Sent         *[]string
	TxDropped    *int  `json:"tx_dropped"`
	LoggedErrors *int  `json:"logged_errors"`
	PathValid    *bool `json:"path_valid"`
	Carrier      *bool
	Joins        *int     `json:"sa_joins"`
	Ops          []string `json:"sa_ops"`
}

// judge compares a link with a step of a trace, of which it began with some
// counters already.
func (st *traceStep) judge(t *testing.T, n *node, base stats.Counters, via map[ib.LID]string) {
	t.Helper()
	c := n.l.Counters()
	state, queue := n.shadowState()
	differ := func(what string, want, got any) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s: -want +got:\n%s", st.Ev, what, d)
		}
	}
	if st.State != nil {
		differ("state", *st.State, state)
	}
	if st.Queue != nil {
		differ("queue", *st.Queue, queue)
	}
	if st.PathQueries != nil {
		differ("path queries", *st.PathQueries, int(c.Driver.PathQueries-base.Driver.PathQueries))
	}
	if st.Sent != nil {
		differ("sent", *st.Sent, n.sentTexts(via))
	}
	if st.TxDropped != nil {
		differ("dropped", *st.TxDropped, int(c.Net.TxDropped-base.Net.TxDropped))
	}
	if st.LoggedErrors != nil {
		differ("logged errors", *st.LoggedErrors, int(c.Driver.LoggedErrors-base.Driver.LoggedErrors))
	}
	if st.PathValid != nil {
		e := n.l.shadow.entries[hwB.Key()]
		differ("path valid", *st.PathValid, e != nil && (e.path.state == pathValid))
	}
	if st.Carrier != nil {
		differ("carrier", *st.Carrier, n.carrier)
	}
}

func trace(t *testing.T, id string) []traceStep {
	var out struct{ Steps []traceStep }
	v := vectors(t, id)[id]
	v.read(t, nil, &out)
	return out.Steps
}

// TestTrace1 plays TR-1. H-04: each frame goes by the address vector of its
// hardware address. H-42: frames wait and go in order. H-43: an inbound ARP
// reply makes an entry. H-45: an outbound question by broadcast purges it. H-46: it
// begins with a query. H-47: the answer resolves it. H-49: what waited is sent.
func TestTrace1(t *testing.T) {
	s, a := alone(t)
	base := a.l.Counters()
	sa6 := pathSA6(t)
	for i, st := range trace(t, "TR-1") {
		switch st.Ev {
		case "tx unicast frame f1 to B", "tx unicast frame f2 to B", "tx unicast frame f3 to B":
			a.xmitText(hwB, strings.Fields(st.Ev)[3])
		case "path answer SA-6":
			s.answerPath(a, sa6, 0)
		case "tx broadcast ARP request for B's IP":
			a.xmit(wire.PseudoBroadcast, wire.EtherARP, payloadOf(t, "ARP-1")[wire.EncapLen:])
		case "rx ARP reply from B":
			a.injectUnicast(payloadOf(t, "ARP-2"))
		default:
			t.Fatalf("step %d: %q is unknown", i, st.Ev)
		}
		if i == 0 {
			a.l.shadow.learn(s.now, ipB, hwB)
		}
		st.judge(t, a, base, nil)
	}
}

// TestTrace2 plays TR-2. H-26: packets beyond the bound of a holding queue are dropped. H-48: a query
// that fails deletes the entry and is logged once, and the next frame causes a new query. H-49:
// pending packets are freed and counted.
func TestTrace2(t *testing.T) {
	s, a := alone(t)
	base := a.l.Counters()
	a.l.shadow.frameLimit = 3
	for i, st := range trace(t, "TR-2") {
		switch st.Ev {
		case "tx f1,f2,f3,f4 to B":
			for _, f := range []string{"f1", "f2", "f3", "f4"} {
				a.xmitText(hwB, f)
			}
		case "path query fails":
			s.answerPath(a, &mad.PathRecord{}, mad.StatusSANoRecords)
		case "tx f5 to B":
			a.xmitText(hwB, "f5")
		default:
			t.Fatalf("step %d: %q is unknown", i, st.Ev)
		}
		st.judge(t, a, base, nil)
	}
}

// TestTrace4 plays TR-4. H-45: a question to one node refreshes its entry in the
// background.
func TestTrace4(t *testing.T) {
	s, a := alone(t)
	p1 := *pathSA6(t)
	p2 := p1
	p2.DLID++
	via := map[ib.LID]string{p1.DLID: "p1", p2.DLID: "p2"}
	base := a.l.Counters()
	for i, st := range trace(t, "TR-4") {
		switch st.Ev {
		case "entry RESOLVED (path p1)":
			a.l.shadow.learn(s.now, ipB, hwB)
			s.answerPath(a, &p1, 0)
		case "tx unicast ARP request (ARP-4) to B":
			a.xmit(hwB, wire.EtherARP, payloadOf(t, "ARP-4")[wire.EncapLen:])
		case "tx f1 to B before the answer", "tx f2 to B":
			a.xmitText(hwB, strings.Fields(st.Ev)[1])
		case "path answer p2":
			s.answerPath(a, &p2, 0)
		default:
			t.Fatalf("step %d: %q is unknown", i, st.Ev)
		}
		st.judge(t, a, base, via)
	}
}

// TestTrace5 plays TR-5: the subnet manager requests reregistration.
func TestTrace5(t *testing.T) {
	s, a := alone(t)
	for _, g := range []string{"ff02::1", "ff02::1:ff0a:1b2d"} { // the trace has broadcast and 224.0.0.1
		a.l.LeaveGroup(s.now, netip.MustParseAddr(g))
	}
	s.step()
	base := a.l.Counters()
	for i, st := range trace(t, "TR-5") {
		s.asked = nil
		switch st.Ev {
		case "steady state":
			a.l.shadow.learn(s.now, ipB, hwB)
			s.answerPath(a, pathSA6(t), 0)
		case "CLIENT_REREGISTER":
			s.forget()
			a.event(nil, ib.EventReregister)
			s.step()
			want := []string{}
			for _, op := range st.Ops {
				mgid := wire.BroadcastGID(testPKey, 2)
				if name, _ := strings.CutPrefix(op, "join "); name != "broadcast" {
					mgid = wire.GroupGID(netip.MustParseAddr(name), testPKey, 2)
				}
				want = append(want, fmt.Sprintf("%s join %v 1", a.name, mgid))
			}
			if d := cmp.Diff(want, s.asked); d != "" {
				t.Errorf("asked, -want +got:\n%s", d)
			}
		case "tx f1 to B":
			a.xmitText(hwB, "f1")
		case "path answer":
			s.answerPath(a, pathSA6(t), 0)
		default:
			t.Fatalf("step %d: %q is unknown", i, st.Ev)
		}
		st.judge(t, a, base, nil)
	}
}

// TestTrace3 plays TR-3. H-32, H-66, H-67: asking for the path to an IP address.
func TestTrace3(t *testing.T) {
	s := newSubnet(t)
	a, b := s.add("ib0_1_14", 5, gidA, 0x48), s.add("ib1_1_14", 17, gidB, 0x208)
	for i, n := range s.nodes {
		n.start()
		n.l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom([]netip.Addr{ipA, ipB}[i], 24)}, nil)
	}
	s.run(10 * time.Second)
	a.l.Engine().Flush(s.now)
	b.l.Engine().Flush(s.now)
	type called struct {
		Status any
		Ctx    float64
	}
	calls := []called{}
	cb := func(status error, out *PathInfo, ctx any) {
		c := called{0.0, float64(ctx.(int))}
		if status != nil {
			c.Status = map[error]string{ErrNoNode: "ENXIO", ErrLinkDown: "ENETDOWN"}[status]
		}
		calls = append(calls, c)
	}
	var out struct {
		Steps []struct {
			Ev        string
			Ret       any
			Callbacks []called
		}
	}
	v := vectors(t, "TR-3")["TR-3"]
	v.read(t, nil, &out)
	for i, st := range out.Steps {
		var err error
		var p PathInfo
		switch i {
		case 0:
			err = a.l.GetPathAsync(s.now, ipB, &p, cb, 7)
		case 1:
			_, err = a.l.TryGetPath(s.now, ipB)
		case 2:
			s.run(time.Second)
		case 3:
			err = a.l.GetPathAsync(s.now, ipB, &p, cb, 8)
			if err == nil && (p.DLID != 17 || p.DGID != gidB || p.Addr != ipB) {
				t.Errorf("path %+v", p)
			}
		case 4:
			err = a.l.GetPathAsync(s.now, netip.MustParseAddr("10.20.0.99"), &p, cb, 9)
			s.run(5 * time.Second)
			if (p != PathInfo{}) {
				t.Errorf("a record that was not found is %+v", p)
			}
		default:
			t.Fatalf("step %q is unknown", st.Ev)
		}
		var ret any
		switch {
		case err == ErrAgain:
			ret = "EAGAIN"
		case err != nil:
			ret = err.Error()
		case st.Ret != nil:
			ret = 0.0
		}
		if st.Ret != nil || err != nil {
			if d := cmp.Diff(st.Ret, ret); d != "" {
				t.Errorf("%s: -want +got:\n%s", st.Ev, d)
			}
		}
		if d := cmp.Diff(st.Callbacks, calls); d != "" {
			t.Errorf("%s: callbacks, -want +got:\n%s", st.Ev, d)
		}
	}
}

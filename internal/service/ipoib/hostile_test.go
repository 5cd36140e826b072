// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/stats"
)

// force completes a receive with what a peer, or a broken adapter, might bring:
// b is the whole buffer, the area of the GRH first.
func (n *node) force(wc WC, b []byte) {
	n.s.t.Helper()
	if len(n.recvq) == 0 {
		n.s.t.Fatalf("%s: no receive buffer", n.name)
	}
	wr := n.recvq[0]
	n.recvq = append(n.recvq[:0], n.recvq[1:]...)
	copy(n.rx[wr.Off:][:wr.Len], b)
	wc.ID, wc.Recv = wr.ID, true
	n.cq = append(n.cq, wc)
	n.s.step()
}

// bring forces a UD payload as from a queue pair behind gid; to a group if
// mgid is one.
func (n *node) bring(gid ib.GID, qpn ib.QPN, mgid ib.GID, payload []byte) {
	b := make([]byte, grhLen, grhLen+len(payload))
	(&wire.GRH{IPVer: 6, SGID: gid, DGID: mgid}).Put(b)
	n.force(WC{ByteLen: uint32(grhLen + len(payload)), GRH: true, SrcQPN: qpn, SLID: 77}, append(b, payload...))
}

// frames are the UD payloads of the vectors, good and bad.
func vectorFrames(t testing.TB) map[string][]byte {
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "ipoib.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Vectors []struct {
			ID            string
			Input, Output struct {
				Frame  string `json:"ud_payload_hex"`
				Packet string `json:"ip_packet_hex"`
			}
		}
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, v := range f.Vectors {
		text := v.Input.Frame + v.Output.Frame
		if v.Input.Packet != "" {
			text = map[bool]string{true: "08000000", false: "86dd0000"}[strings.HasPrefix(v.Input.Packet, "4")] +
				v.Input.Packet
		}
		if text == "" {
			continue
		}
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		out[v.ID] = b
	}
	if len(out) < 25 {
		t.Fatalf("%d frames", len(out))
	}
	return out
}

// received is how many frames a link has accounted for: taken, or dropped under
// some name.
func (n *node) received() (frames uint64) {
	c := n.l.Counters()
	frames = c.Net.RxPackets
	for _, d := range []stats.Drop{stats.DropOwnEcho, stats.DropUnknownEtherType, stats.DropShort, stats.DropVersion,
		stats.DropRxStatus, stats.DropLinkDown} {
		frames += c.Drops[d]
	}
	return frames - n.engineShort()
}

// engineShort are frames that count as received and were found short by the
// engine.
func (n *node) engineShort() uint64 {
	c := n.l.Engine().Counters()
	return c.Refused[wire.FrameShort]
}

// stillTalks proves that packets pass both ways.
func stillTalks(t *testing.T, s *subnet, a, b *node) {
	t.Helper()
	a.got, b.got = nil, nil
	a.send(ipA, ipB, "there")
	b.send(ipB, ipA, "back")
	s.run(10 * time.Second)
	if got := strings.Join(b.texts(), " "); got != "there" {
		t.Errorf("there: %q", got)
	}
	if got := strings.Join(a.texts(), " "); got != "back" {
		t.Errorf("back: %q", got)
	}
}

// Every frame of the vectors, every truncation of it, with and without GRH, to
// the node and to groups: each is accounted for once, and nothing breaks.
func TestHostileFrames(t *testing.T) {
	s, a, b := two(t)
	a.discard = true
	for id, f := range vectorFrames(t) {
		for n := range len(f) + 1 {
			for kind := range 4 {
				before := a.received()
				buf := make([]byte, grhLen, grhLen+n)
				for i := range buf {
					buf[i] = 0xa5
				}
				wc := WC{ByteLen: uint32(grhLen + n), SrcQPN: 0x208, SLID: 17}
				if kind > 0 {
					wc.GRH = true
					dst := []ib.GID{gidA, wire.BroadcastGID(testPKey, 2),
						wire.GroupGID(netip.MustParseAddr("ff02::1"), testPKey,
							2)}[kind-1]
					(&wire.GRH{IPVer: 6, SGID: gidB, DGID: dst}).Put(buf)
				}
				a.force(wc, append(buf, f[:n]...))
				if got := a.received(); got != before+1 {
					t.Fatalf("%s, %d octets, kind %d: %d frames accounted for", id, n, kind, got-before)
				}
			}
		}
	}
	a.discard = false
	s.run(time.Minute)
	stillTalks(t, s, a, b)
}

// Lengths and statuses that an adapter must not report.
func TestHostileCompletions(t *testing.T) {
	s, a, b := two(t)
	arp := vectorFrames(t)["ARP-1"]
	buf := append(make([]byte, grhLen), arp...)
	for _, n := range []uint32{0, 1, 39, 40, 43, recvSlotLen + 1, 1 << 20, 1<<32 - 1} {
		before := a.received()
		a.force(WC{ByteLen: n, SrcQPN: 0x208, SLID: 17}, buf)
		if got := a.received(); got != before+1 {
			t.Errorf("length %d: %d frames accounted for", n, got-before)
		}
	}
	for st := range ib.Status(24) {
		if st != ib.Success && st != ib.WRFlushErr {
			a.force(WC{Status: st, ByteLen: 100}, buf)
		}
	}
	// Completions of what was never posted, or twice.
	for _, id := range []uint64{0, 1, 1 << 20, idRecv, idRecv | 1<<20, 1 << 40, 1<<64 - 1} {
		for _, gen := range []uint64{0, uint64(a.l.sender.gen) << idGenShift} {
			for _, recv := range []bool{false, true} {
				a.cq = append(a.cq, WC{ID: gen | id&(1<<idGenShift-1), Recv: recv &&
					id&idSlot >= uint64(len(a.l.receiver.slots)),
					ByteLen: 100})
			}
		}
	}
	s.step()
	s.run(time.Minute)
	stillTalks(t, s, a, b)
}

// A peer that makes up nodes: what it costs is bounded, and those we talk to stay.
func TestHostileStrangers(t *testing.T) {
	s, a, b := two(t, "max_neigh=64")
	stillTalks(t, s, a, b)
	s.paths = func(r *mad.PathRecord) mad.Status {
		if r.DGID != gidA && r.DGID != gidB {
			return 0x0300 // no records
		}
		return mad.StatusOK
	}
	stranger := func(i int) (netip.Addr, wire.HWAddr) {
		gid := gidB
		binary.BigEndian.PutUint32(gid[12:], uint32(i))
		return netip.AddrFrom4([4]byte{10, 20, 1 + byte(i>>8), byte(i)}), wire.MakeHWAddr(0, ib.QPN(1+i), gid)
	}
	s.delay = 300 * time.Millisecond
	queries := a.counter("path_queries")
	most := 0
	for i := range 5000 {
		ip, hw := stranger(i)
		f := make([]byte, wire.EncapLen+wire.ARPLen)
		wire.PutEncap(f, wire.EtherARP)
		(&wire.ARP{Op: wire.ARPRequest, SenderHW: hw, SenderIP: ip, TargetIP: ipA}).Put(f[wire.EncapLen:])
		a.bring(gidB, 0x208, wire.BroadcastGID(testPKey, 2), f)
		most = max(most, len(a.l.sa.open))
		if i%100 == 0 {
			a.got, b.got = nil, nil
			a.send(ipA, ipB, fmt.Sprint(i))
			s.run(2 * time.Second) // other nodes may have taken B's entry: it is resolved again
			if got := strings.Join(b.texts(), " "); got != fmt.Sprint(i) {
				t.Fatalf("after %d strangers B got %q", i, got)
			}
		}
		if len(a.l.shadow.entries) > 64 || len(a.l.shadow.paths) > 64 {
			t.Fatalf("%d entries, %d paths", len(a.l.shadow.entries), len(a.l.shadow.paths))
		}
	}
	if most > maxPathQueries+8 {
		t.Errorf("%d queries at a time", most)
	}
	t.Logf("%d strangers cost %d path queries, %d at a time", 5000, a.counter("path_queries")-queries, most)
	s.run(3 * time.Minute)
	if len(a.l.sa.open) != 0 || a.l.budget.octets != 0 {
		t.Errorf("%d queries, %d octets are left", len(a.l.sa.open), a.l.budget.octets)
	}
	stillTalks(t, s, a, b)
}

// A peer that announces another location all the time.
func TestHostileMover(t *testing.T) {
	s, a, b := two(t)
	stillTalks(t, s, a, b)
	before := a.counter("shadow_created")
	for i := range 1000 {
		f := make([]byte, wire.EncapLen+wire.ARPLen)
		wire.PutEncap(f, wire.EtherARP)
		(&wire.ARP{Op: wire.ARPRequest, SenderHW: wire.MakeHWAddr(0, ib.QPN(0x1000+i), gidB), SenderIP: ipB,
			TargetIP: ipB}).Put(f[wire.EncapLen:])
		a.bring(gidB, 0x208, wire.BroadcastGID(testPKey, 2), f)
		s.run(time.Millisecond)
	}
	if n := a.counter("shadow_created") - before; n > 3 {
		t.Errorf("%d entries made in a second", n)
	}
}

// Answers of a subnet administration that has gone mad.
func TestHostileAdministration(t *testing.T) {
	s, a, b := two(t)
	stillTalks(t, s, a, b)
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		rec := make([]byte, r.IntN(80))
		for i := range rec {
			rec[i] = byte(r.UintN(256))
		}
		if r.IntN(2) == 0 { // in reply to a pending request
			a.l.FlushPaths()
			s.silent = true
			a.send(ipA, ipB, "x")
			a.l.JoinGroup(s.now, netip.MustParseAddr("239.1.2.3"))
			for id := range a.l.sa.open {
				a.l.SAResponse(s.now, id, mad.Status(r.UintN(2)*r.UintN(1<<16)), rec)
				break
			}
		} else {
			a.l.SAResponse(s.now, r.Uint32(), 0, rec)
		}
		s.run(time.Duration(r.IntN(1000)) * time.Millisecond)
	}
	s.silent = false
	a.l.LeaveGroup(s.now, netip.MustParseAddr("239.1.2.3"))
	a.event(nil, ib.EventReregister)
	s.run(2 * time.Minute)
	stillTalks(t, s, a, b)
}

// A link that loses its carrier cannot find that a node does not exist: pending get-path calls get
// ENETDOWN, not ENXIO.
func TestCarrierLostWhileResolving(t *testing.T) {
	s, a, _ := two(t)
	got := map[any]error{}
	cb := func(status error, _ *PathInfo, ctx any) { got[ctx] = status }
	s.silent = true
	a.l.FlushPaths()
	for i, ip := range []netip.Addr{ipB, netip.MustParseAddr("10.20.0.78")} {
		if err := a.l.GetPathAsync(s.now, ip, &PathInfo{}, cb, i); err != ErrAgain {
			t.Errorf("%v: %v", ip, err)
		}
	}
	a.event(func(p *Port) { p.State = ib.PortDown })
	s.run(time.Second)
	for i := range 2 {
		if err, told := got[i]; !told || err != ErrLinkDown {
			t.Errorf("%d: told %v, %v", i, told, err)
		}
	}
}

// TestEvictionLetsOthersAsk: where other nodes displace entries during the query of their paths,
// the queries that wait are sent.
func TestEvictionLetsOthersAsk(t *testing.T) {
	s, a := alone(t, "max_neigh=300")
	s.holdPaths = true
	stranger := func(i int) wire.HWAddr {
		return wire.MakeHWAddr(0, 0x300, ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x1000+i)))
	}
	for i := range 300 {
		a.xmitText(stranger(i), "x")
	}
	if a.l.shadow.queries != maxPathQueries {
		t.Fatalf("%d path queries", a.l.shadow.queries)
	}
	for i := range maxPathQueries {
		a.l.shadow.learn(s.now, netip.AddrFrom4([4]byte{10, 20, 1, byte(i)}), wire.MakeHWAddr(0, ib.QPN(0x400+i),
			a.port.GID))
	}
	s.run(5 * time.Second)
	for _, e := range a.l.shadow.entries {
		if e.state != entryResolved {
			t.Fatalf("%v waits for a path without a query", e.hw)
		}
	}
}

// asks delivers an ARP request from the port with a LID; its sender address is hw.
func (n *node) asks(lid ib.LID, ip netip.Addr, hw wire.HWAddr) {
	n.s.t.Helper()
	b := make([]byte, grhLen+wire.EncapLen+wire.ARPLen)
	(&wire.GRH{IPVer: 6, SGID: hw.GID(), DGID: wire.BroadcastGID(testPKey, 2)}).Put(b)
	wire.PutEncap(b[grhLen:], wire.EtherARP)
	(&wire.ARP{Op: wire.ARPRequest, SenderHW: hw, SenderIP: ip, TargetIP: ipA}).Put(b[grhLen+wire.EncapLen:])
	n.force(WC{ByteLen: uint32(len(b)), GRH: true, SrcQPN: hw.QPN(), SLID: lid}, b)
}

// TestStrangersShare: ports that make up nodes get what is theirs of path queries and of the shadow table. Others,
// and above all the link itself, ask for paths as if they were not there.
func TestStrangersShare(t *testing.T) {
	made := 0
	stranger := func() (netip.Addr, wire.HWAddr) {
		made++
		return netip.AddrFrom4([4]byte{10, 20, 1 + byte(made>>8), byte(made)}),
			wire.MakeHWAddr(0, 0x300, ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(0x1000+made)))
	}
	flood := func(a *node, lid ib.LID, count int) {
		for range count {
			ip, hw := stranger()
			a.asks(lid, ip, hw)
		}
	}
	t.Run("one", func(t *testing.T) {
		s, a := alone(t)
		s.holdPaths = true
		flood(a, 100, 2000)
		if a.l.shadow.queries != maxPortQueries || len(a.l.shadow.entries) != maxPortEntries {
			t.Errorf("%d queries and %d entries for one port", a.l.shadow.queries, len(a.l.shadow.entries))
		}
		if n := a.counter("shadow_refused_share"); n != 2*(2000-maxPortEntries) { // neither stored nor answered
			t.Errorf("%d entries refused", n)
		}
		if n := a.counter("path_waits_share"); n != maxPortEntries-maxPortQueries {
			t.Errorf("%d paths waited", n)
		}
		flood(a, 101, 1)
		if a.l.shadow.queries != maxPortQueries+1 {
			t.Errorf("another port's question waits")
		}
		_, hw := stranger()
		a.xmitText(hw, "x")
		if a.l.shadow.queries != maxPortQueries+2 {
			t.Errorf("the link's own waits")
		}
		// All are queried in the end, and missing ones are removed.
		for range 2 * maxPortEntries / maxPortQueries {
			s.run(2 * time.Second)
		}
		if len(a.l.shadow.entries) != 0 || len(a.l.shadow.ports) != 0 || len(a.l.sa.open) != 0 {
			t.Errorf("%d entries, %d sources, %d queries are left", len(a.l.shadow.entries), len(a.l.shadow.ports),
				len(a.l.sa.open))
		}
		flood(a, 100, 1)
		if a.l.shadow.queries != 1 {
			t.Errorf("the port is not heard any more")
		}
	})
	t.Run("many", func(t *testing.T) {
		s, a := alone(t)
		s.holdPaths = true
		for i := range 64 {
			flood(a, ib.LID(100+i), 32)
		}
		if a.l.shadow.queries != maxPathQueries-ownQueries {
			t.Errorf("%d queries for ports", a.l.shadow.queries)
		}
		own := make([]wire.HWAddr, ownQueries)
		for i := range own {
			_, own[i] = stranger()
			a.xmitText(own[i], "x")
		}
		for _, hw := range own {
			if a.l.shadow.paths[hw.GID()].q == nil {
				t.Fatalf("the link's own path to %v waits", hw)
			}
		}
		// Ports are served in turn: the queries of the last one do not wait for all queries of the
		// first.
		ip, hw := stranger()
		a.asks(1000, ip, hw)
		s.run(2 * (1100 + 100) * time.Millisecond)
		if p := a.l.shadow.paths[hw.GID()]; p != nil && p.q == nil {
			t.Errorf("a port that asked once waits for others that asked 32 times")
		}
	})
	t.Run("sent to", func(t *testing.T) {
		s, a := alone(t)
		s.holdPaths = true
		flood(a, 100, 2*maxPortQueries)
		ip, hw := stranger()
		a.asks(100, ip, hw)
		e := a.l.shadow.entries[hw]
		if e == nil || e.path.request != requestQueued {
			t.Fatal("the last does not wait")
		}
		// The link itself has something for it now: it does not wait behind the others, and it counts for no port.
		a.xmitText(hw, "x")
		if e.path.request == requestQueued || e.path.q == nil || e.account != nil {
			t.Errorf("it waits: %v, it counts for a port: %v", e.path.request == requestQueued, e.account != nil)
		}
		s.run(time.Minute)
	})
	t.Run("while down", func(t *testing.T) {
		s, a := alone(t)
		s.holdPaths = true
		flood(a, 100, 100)
		a.event(func(p *Port) { p.State = ib.PortDown })
		if len(a.l.shadow.ports) != 0 || len(a.l.shadow.turns) != 0 {
			t.Errorf("%d sources, %d turns without a port", len(a.l.shadow.ports), len(a.l.shadow.turns))
		}
		s.run(time.Second)
	})
}

// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/fabric/link/fabric"
	"weft/internal/fabric/link/roce"
	"weft/internal/fabric/vswitch"
	"weft/internal/node/lane"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/hca"
	"weft/internal/verbs/hca/replicate"
)

// noConnections is a communication manager that accepts nothing.
type noConnections struct{}

func (noConnections) Offer(uint16, *mad.Datagram) bool { return false }
func (noConnections) Removed(uint16)                   {}

// mirrorCount counts mirrored datagrams.
type mirrorCount struct {
	active bool
	n      int
}

func (m *mirrorCount) Active() bool                              { return m.active }
func (m *mirrorCount) Mirror(*pkt.Burst, bool, func(*pkt.Burst)) { m.n++ }

// newTestSubnet returns a running subnet with one lane and one peer, which is not there.
func newTestSubnet(t *testing.T, m Mirror) *Subnet {
	t.Helper()
	return startTestSubnet(t, m, 0x100, []string{"nowhere"}, func(*Subnet) {})
}

// startTestSubnet starts a subnet with one lane, after prepare.
func startTestSubnet(t *testing.T, m Mirror, guid ib.GUID, peers []string, prepare func(*Subnet)) *Subnet {
	t.Helper()
	base, log := time.Now().Add(-time.Second), slog.New(slog.DiscardHandler)
	now := func() mono.Time { return mono.Time(time.Since(base)) }
	all := hca.NewFunctions(hca.NewAdapter(&hca.Port{}, hca.DefaultLimits))
	s := New(Config{Log: log, Now: now, GUID: guid, Host: "host", SwitchPorts: 4, Peers: peers,
		Connections: noConnections{}, Mirror: m,
		SetMulticastForwarding: all.SetMulticastForwarding, Publish: func([]PortChange) {}, Plugged: func(*hca.Adapter) {}})
	prepare(s)
	g, err := lane.Open(lane.Config{Count: 1, Functions: all, Multicast: replicate.DefaultConfig, Now: now, Log: log,
		Fabric: s.LaneLink,
		RoCE:   roce.Config{Port: uint16(condtest.Port(t)), IfIndex: func(uint8, ib.GID) uint32 { return 0 }}})
	if err != nil {
		t.Fatal(err)
	}
	g.Start()
	s.Start(g)
	t.Cleanup(func() {
		s.Close()
		g.Close()
	})
	return s
}

// TestDatagramBehindItsLink: a datagram that arrives right after its link comes up is answered, however late the
// management goroutine handles both.
func TestDatagramBehindItsLink(t *testing.T) {
	s := newTestSubnet(t, &mirrorCount{})
	m := mad.SMP{Header: mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: mad.ClassSubnDR,
		ClassVersion: mad.ClassVersion, Method: mad.MethodGet,
		TransactionID: 77, AttributeID: mad.AttrNodeInfo}, HopCount: 1, HopPointer: 1, DrSLID: ib.LIDPermissive,
		DrDLID: ib.LIDPermissive}
	m.InitialPath[1] = 1
	port := s.TrunkPort(0)
	d := mad.Datagram{Port: port, SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, PKey: ib.DefaultPKey}
	m.Append(d.Data[:0])
	var before, after uint64
	s.Do(func() {
		before = s.Switch.Stats.DropPortDown
		s.Post(func() { s.setLink(s.cfg.Now(), port, true) })
		s.receive(inbound{d: d})
	})
	s.Do(func() {})
	var up bool
	s.Do(func() {
		after, up = s.Switch.Stats.DropPortDown, s.Switch.Port(port).PortPhysicalState == ib.PhysLinkUp
	})
	if after != before || !up {
		t.Errorf("up: %v, %d datagrams dropped", up, after-before)
	}
}

// TestNoMirrorWithoutCapture: without a capture no packet is made of a datagram.
func TestNoMirrorWithoutCapture(t *testing.T) {
	m := &mirrorCount{}
	s := New(Config{Log: slog.New(slog.DiscardHandler), SwitchPorts: 4, Mirror: m})
	c := &Port{s: s, Adapter: hca.NewAdapter(&hca.Port{}, hca.DefaultLimits)}
	d := mad.Datagram{SLID: 4, DLID: 7, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI}
	before := s.mirrorPSN
	if n := testing.AllocsPerRun(1000, func() { c.Mirror(&d, true) }); n != 0 || m.n != 0 || s.mirrorPSN != before {
		t.Errorf("%v allocations, %d mirrored, PSN %v after %v", n, m.n, s.mirrorPSN, before)
	}
	m.active = true
	if c.Mirror(&d, true); m.n != 1 || s.mirrorPSN != before+1 {
		t.Errorf("%d mirrored, PSN %v after %v", m.n, s.mirrorPSN, before)
	}
}

// TestForwardingTable: only functions count, each once and in order.
func TestForwardingTable(t *testing.T) {
	b := vswitch.NewBuilder(36)
	var w fabric.Wiring
	w.Port[1] = fabric.Plug{Kind: fabric.Function, Number: 7}
	w.Port[2] = fabric.Plug{Kind: fabric.Function, Number: 3}
	w.Port[17] = fabric.Plug{Kind: fabric.Function, Number: 12}
	w.Port[36] = fabric.Plug{Kind: fabric.Peer}
	set := func(mlid ib.LID, ports ...uint8) {
		n, i := int(mlid-ib.LIDMulticastFirst)/vswitch.BlockMLIDs, int(mlid-ib.LIDMulticastFirst)%vswitch.BlockMLIDs
		for _, p := range ports {
			m := b.MFT(n, p/16)
			m[i] |= 1 << (p % 16)
			if !b.SetMFT(n, p/16, &m) {
				t.Fatal("no such block")
			}
		}
	}
	set(0xc000, 0, 1, 2, 17, 36)
	set(0xc021, 36)    // a trunk alone
	set(0xc022, 2, 20) // and a port with nothing in it
	set(0xfffe, 17)
	want := map[ib.LID][]uint16{0xc000: {3, 7, 12}, 0xc022: {3}, 0xfffe: {12}}
	if d := cmp.Diff(want, forwarding(b.Snapshot(), &w)); d != "" {
		t.Error(d)
	}
}

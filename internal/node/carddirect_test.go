// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/proto/abi"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

// request posts a signaled request between the buffers of a pair, from offset 0 to offset 1 MiB, and returns its
// status.
func (w *writer) request(tb testing.TB, op uint8, n int) uint8 {
	tb.Helper()
	const to = 1 << 20
	s := abi.Send{WRID: 7, Opcode: op, Flags: ib.Signaled}
	list := []ib.SGE{{Addr: w.at, Len: uint32(n), LKey: w.mr.LKey}}
	s.SetRDMA(w.peer.at+to, w.peer.mr.RKey)
	if err := w.PostSend(s, list, nil); err != nil {
		tb.Fatal(err)
	}
	c, err := w.cq.Wait(1)
	if err != nil {
		tb.Fatal(err)
	}
	return c[0].Status
}

// exchange sends by each operation and checks what arrives.
func (w *writer) exchange(tb testing.TB) {
	tb.Helper()
	for i, n := range []int{0, 1, 8, 1024, 1025, 5000, 1 << 20} {
		fillPattern(w.mem[:n], byte(i))
		clear(w.peer.mem[1<<20 : 2<<20])
		if s := w.request(tb, uint8(ib.WRWrite), n); s != 0 || !bytes.Equal(w.peer.mem[1<<20:1<<20+n], w.mem[:n]) {
			tb.Fatalf("WRITE of %d octets: status %d", n, s)
		}
		fillPattern(w.peer.mem[1<<20:1<<20+n], byte(i+50))
		if s := w.request(tb, uint8(ib.WRRead), n); s != 0 || !bytes.Equal(w.peer.mem[1<<20:1<<20+n], w.mem[:n]) {
			tb.Fatalf("READ of %d octets: status %d", n, s)
		}
		room := []ib.SGE{{Addr: w.peer.at + 2<<20, Len: 1 << 20, LKey: w.peer.mr.LKey}}
		if err := w.peer.PostRecv(9, room); err != nil {
			tb.Fatal(err)
		}
		if s := w.request(tb, uint8(ib.WRSend), n); s != 0 {
			tb.Fatalf("SEND of %d octets: status %d", n, s)
		}
		if c, err := w.peer.cq.Wait(1); err != nil || c[0].Status != 0 || c[0].ByteLen != uint32(n) ||
			!bytes.Equal(w.peer.mem[2<<20:2<<20+n], w.mem[:n]) {
			tb.Fatalf("SEND of %d octets: %+v, %v", n, c, err)
		}
	}
}

func fillPattern(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i) + byte(i>>8)*3 + seed
	}
}

// ofPorts are the counters of the node's virtual Ethernet ports and of their links.
func (r *running) ofPorts(names ...string) map[string]uint64 {
	r.t.Helper()
	list, err := api.Get(r.t.Context(), r.cli, api.ListCounters)
	if err != nil {
		r.t.Fatal(err)
	}
	m := map[string]uint64{}
	for _, c := range list {
		for _, n := range names {
			if c.Instance == n && (c.Scope == api.ScopeVESW || c.Scope == api.ScopeLink) && c.Value != 0 {
				m[c.Scope+" "+n+" "+c.Name] = c.Value
			}
		}
	}
	return m
}

// TestCardsWithin: what a queue pair of a card sends to one of another card of the node is copied once. No frame is
// built, and the counters of the ports are those of the frames.
func TestCardsWithin(t *testing.T) {
	t.Parallel()
	var counts [2]map[string]uint64
	for i, wire := range []bool{false, true} {
		r := cardNode(t, func(c *config.Config) { c.WireLocal = wire })
		a, _ := r.cardPair(t)
		if s := a.request(t, uint8(ib.WRWrite), 8); s != 0 { // the switch has learnt its routes
			t.Fatalf("status %d", s)
		}
		// On a busy machine a packet is sent again before its acknowledgement is there: then all is done once more.
		repeated := func() uint64 { return r.counter(api.ScopeQP, "retransmits") + r.counter(api.ScopeQP, "probes") }
		condtest.Until(t, "no packet is sent again", func() bool {
			earlier, before := repeated(), r.ofPorts("web", "db")
			for _, n := range []int{0, 1, 1024, 1025, 5000} { // one at a time: each has its own acknowledgement
				if s := a.request(t, uint8(ib.WRWrite), n); s != 0 {
					t.Fatalf("status %d", s)
				}
			}
			counts[i] = r.ofPorts("web", "db")
			for k := range counts[i] {
				counts[i][k] -= before[k]
			}
			return repeated() == earlier
		})
		a.exchange(t)
		a.peer.peer = a
		a.peer.exchange(t)
	}
	direct := counts[0]
	if direct["link web sent_direct"] == 0 || direct["link web sent_direct"] != direct["link web sent_packets"] ||
		direct["link web sent_frames"] != 0 || direct["link db sent_frames"] != 0 {
		t.Errorf("%v", direct)
	}
	delete(direct, "link web sent_direct")
	delete(direct, "link db sent_direct")
	for _, c := range counts {
		maps.DeleteFunc(c, func(k string, v uint64) bool {
			// Links count trains of frames.
			return v == 0 || strings.Contains(k, "link") && !strings.Contains(k, "packets")
		})
	}
	if !maps.Equal(counts[0], counts[1]) {
		t.Errorf("without frames %v\nwith frames    %v", counts[0], counts[1])
	}
}

// TestCardsApart: without frames packets arrive nowhere where frames would not.
func TestCardsApart(t *testing.T) {
	t.Parallel()
	r := cardNode(t, nil)
	a, _ := r.cardPair(t)
	_, other := r.card(t, "lab", "third", "10.9.0.3")
	if _, err := api.Call(t.Context(), r.cli, api.CreateVESW, api.VESWCreate{Name: "far"}); err != nil {
		t.Fatal(err)
	}
	apart, elsewhere := r.card(t, "far", "apart", "10.9.0.4")
	b := a.peer
	peer := func(w *writer, addr string, mac [6]byte) vhosttest.Peer {
		return vhosttest.Peer{QPN: ib.QPN(w.Num), GID: ib.GIDFromAddr(netip.MustParseAddr(addr)), DMAC: mac, PSN: 1}
	}
	webMAC, err := api.ParseMAC(r.vm("web").MAC)
	if err != nil {
		t.Fatal(err)
	}
	dbMAC, err := api.ParseMAC(r.vm("db").MAC)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		to   vhosttest.Peer
		at   *writer
		fine bool
	}{
		"the card":                          {peer(b, "10.9.0.2", dbMAC), b, true},
		"the MAC of another card":           {peer(b, "10.9.0.2", other.DMAC), b, false},
		"the MAC of no card":                {peer(b, "10.9.0.2", [6]byte{2, 7, 7, 7, 7, 7}), b, false},
		"the address of another card":       {peer(b, "10.9.0.3", dbMAC), b, false},
		"the address of no card":            {peer(b, "10.9.0.99", dbMAC), b, false},
		"another switch":                    {elsewhere, apart, false},
		"another switch, the MAC of a card": {peer(apart, "10.9.0.4", dbMAC), apart, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, q := range []*writer{a, x.at} {
				if err := q.To(ib.Reset); err != nil {
					t.Fatal(err)
				}
			}
			a.peer = x.at
			clear(x.at.mem[1<<20 : 2<<20])
			fillPattern(a.mem[:100], 9)
			if err := a.ConnectTo(x.to, 1, ib.MTU1024, 0); err != nil {
				t.Fatal(err)
			}
			if err := x.at.ConnectTo(peer(a, "10.9.0.1", webMAC), 1, ib.MTU1024, 0); err != nil {
				t.Fatal(err)
			}
			s := a.request(t, uint8(ib.WRWrite), 100)
			if got := bytes.Equal(x.at.mem[1<<20:1<<20+100], a.mem[:100]); got != x.fine || s == 0 != x.fine {
				t.Errorf("arrived: %v, status %d", got, s)
			}
		})
	}
}

// TestCardsPart: a connection between two cards ends when one of them gives up its address, or leaves the switch.
func TestCardsPart(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]func(t *testing.T, r *running, b *writer) error{
		"DEL_GID": func(_ *testing.T, _ *running, b *writer) error {
			_, err := b.d.Control(abi.CmdDelGID, abi.DelGID{Index: 0}.Append(nil), 0)
			return err
		},
		"left the switch": func(t *testing.T, r *running, _ *writer) error {
			_, err := api.Call(api.Confirm(t.Context(), api.ConfirmAll), r.cli, api.DeleteVESWPort,
				api.VESWPortDelete{Name: "lab", Port: "db"})
			if err == nil {
				eventually(t, "the card has no carrier", func() bool { return !r.vm("db").Carrier })
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := cardNode(t, nil)
			a, b := r.cardPair(t)
			if s := a.request(t, uint8(ib.WRWrite), 100); s != 0 {
				t.Fatalf("status %d", s)
			}
			if err := part(t, r, b); err != nil {
				t.Fatal(err)
			}
			clear(b.mem[1<<20 : 2<<20])
			fillPattern(a.mem[:100], 3)
			if s := a.request(t, uint8(ib.WRWrite), 100); s != abi.WireStatus(ib.RetryExcErr) ||
				!bytes.Equal(b.mem[1<<20:1<<20+100], make([]byte, 100)) {
				t.Errorf("status %d", s)
			}
		})
	}
}

// TestCardWithProgram: a program at a device in the switch and a card of the node exchange messages without frames, as
// soon as the device has found the MAC of the card.
func TestCardWithProgram(t *testing.T) {
	t.Parallel()
	r := cardNode(t, nil)
	b, at := r.card(t, "lab", "db", "10.9.0.2")
	if _, err := api.Call(t.Context(), r.cli, api.AddFunction, api.NewFunction{Name: "blue0", Segment: "vesw:lab",
		Addrs: []string{"10.9.0.1/24"}}); err != nil {
		t.Fatal(err)
	}
	d := vhosttest.NewDriver(t, r.socketOf("blue0"), vhosttest.Options{MemSize: 2 * writerMemory})
	a := newWriter(t, d)
	f := r.node.funcs.named("blue0")
	eventually(t, "the device is active", func() bool { return f.a.Port().State == ib.PortActive })
	a.peer, b.peer = b, a
	at.Index = 1 // entry 0 is the link-local address
	if err := a.ConnectTo(at, 1, ib.MTU1024, 0); err != nil {
		t.Fatal(err)
	}
	mac, err := api.ParseMAC(r.node.vesw.DevicePort("blue0").Describe().MAC)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.ConnectTo(vhosttest.Peer{QPN: a.Wire, GID: ib.GIDFromAddr(netip.MustParseAddr("10.9.0.1")), DMAC: mac,
		PSN: 1}, 1, ib.MTU1024, 0); err != nil {
		t.Fatal(err)
	}
	a.exchange(t)
	b.exchange(t)
	if c := r.ofPorts("blue0", "db"); c["link blue0 sent_direct"] == 0 || c["link db sent_direct"] == 0 ||
		c["link blue0 sent_frames"]+c["link db sent_frames"] != 0 {
		t.Errorf("%v", c)
	}
}

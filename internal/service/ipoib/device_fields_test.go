// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// TestDeviceFields: the attributes of a link as a network device.
func TestDeviceFields(t *testing.T) {
	_, a := alone(t, "sq_depth=300")
	i := a.l.Info()
	for _, tc := range []struct {
		demand    string
		got, want any
	}{
		{"H-11", i.QPs, 1},
		{"H-13", i.Type, 32},
		{"H-14", i.Flags, 0x1002},
		{"H-18", i.AddrLen, 20},
		{"H-19", []int{i.QueueLen, a.info.QueueLen}, []int{512, 512}},
		{"H-20", i.HW, hwA},
		{"H-21", i.Broadcast.String(), strings.TrimSuffix(strings.Repeat("ff:", 20), ":")},
		{"H-31", a.l.NetDevice().SetConfig(), ErrNotSupp},
		{"H-34", a.l.NetDevice().SetAddress(hwB), ErrNotSupp},
		{"H-35", a.l.NetDevice().SetMTU(1500), ErrNotSupp},
	} {
		t.Run(tc.demand, func(t *testing.T) {
			if fmt.Sprint(tc.got) != fmt.Sprint(tc.want) {
				t.Errorf("%v, want %v", tc.got, tc.want)
			}
		})
	}
	t.Run("H-09", func(t *testing.T) {
		var whole [20]byte = i.HW
		if whole != [20]byte(a.info.Address) {
			t.Error("the address is cut")
		}
	})
	t.Run("H-35", func(t *testing.T) {
		a.l.MTUChanged(a.s.now, 1500)
		if a.mtu != 2044 {
			t.Errorf("the MTU is set back to %d", a.mtu)
		}
	})
}

// TestH21_PseudoBroadcast: frames to the all-ones address go to the broadcast
// group.
func TestH21_PseudoBroadcast(t *testing.T) {
	_, a := alone(t)
	a.xmitText(wire.PseudoBroadcast, "x")
	if f := a.sent[0]; f.ah.DGID != wire.BroadcastGID(testPKey, 2) || f.wr.QPN != ib.QPNMulticast || !f.ah.Global {
		t.Errorf("sent to %+v", f.ah)
	}
}

// TestH27_Header: a frame's header is built, and (H-28) rebuilt for another
// destination.
func TestH27_Header(t *testing.T) {
	_, a := alone(t)
	f := bytes.Repeat([]byte{0xa5}, Headroom+1)
	a.l.NetDevice().BuildHeader(f, wire.PseudoBroadcast, wire.EtherARP)
	h := wire.HardHeader(f)
	if h.Dst() != wire.PseudoBroadcast || h.Src() != hwA || h.Type() != wire.EtherARP || f[Headroom-1] != 0 ||
		f[Headroom] != 0xa5 {
		t.Errorf("header %x", f)
	}
	a.l.NetDevice().RebuildHeader(f, hwB)
	if h.Dst() != hwB || h.Src() != hwA || h.Type() != wire.EtherARP {
		t.Errorf("rebuilt header %x", f)
	}
}

// TestH05_CopyOrMap: frames longer than tx_copybreak are sent from where they are, if
// they can be; the counters tell. The mapping ends with the send (H-53), and
// the choice is made per frame (H-52, H-56).
func TestH05_CopyOrMap(t *testing.T) {
	s, a, b := two(t, "tx_copybreak=100")
	a.send(ipA, ipB, "first")
	s.run(time.Second)
	copied := a.counter("tx_copied")
	for _, mappable := range []bool{false, true} {
		a.mappable = mappable
		a.send(ipA, ipB, "short", strings.Repeat("long", 100))
		if n := len(a.maps); n != map[bool]int{false: 0, true: 1}[mappable] {
			t.Errorf("mappable %v: %d frames mapped", mappable, n)
		}
		s.run(time.Millisecond)
	}
	if c, m := a.counter("tx_copied")-copied, a.counter("tx_mapped"); c != 3 || m != 1 || len(a.maps) != 0 {
		t.Errorf("%d copied, %d mapped, %d still mapped", c, m, len(a.maps))
	}
	if got := b.texts(); len(got) != 5 || len(got[4]) != 400 || got[4] != got[2] {
		t.Errorf("got %v", got)
	}
	// Also where the send fails, and where the link ends before.
	a.stall = true
	a.send(ipA, ipB, strings.Repeat("long", 100))
	a.status, a.stall = ib.LocProtErr, false
	s.run(time.Millisecond)
	a.status, a.stall = 0, true
	a.send(ipA, ipB, strings.Repeat("long", 100))
	a.l.Stop(s.now)
	s.run(10 * time.Second)
	a.gone()
}

// TestH41_Pool: whatever is sent, and whether it succeeds, send slots come back (H-52,
// H-53), and nothing is registered after the start.
func TestH41_Pool(t *testing.T) {
	s, a, b := two(t)
	a.log = nil
	for i := range 2000 {
		a.status = 0
		if i%100 == 99 {
			a.status = ib.Status(i / 100 % 22)
		}
		a.send(ipA, ipB, "x")
		if i%3 == 0 {
			s.step()
		}
	}
	a.status = 0
	s.run(time.Second)
	if i := a.l.Info(); i.SendFree != i.QueueLen || i.RecvPosted != i.RQDepth || i.Pending != 0 {
		t.Errorf("%+v", i)
	}
	if slices.ContainsFunc(a.log, func(l string) bool { return strings.Contains(l, "create mr") }) {
		t.Errorf("registered: %v", a.log)
	}
	if len(b.texts()) == 0 || a.counter("drop_tx_status") == 0 {
		t.Error("nothing arrived, or nothing failed")
	}
}

// TestSendQueueFull: SendBatch accepts as many packets as there are slots and reports when to
// continue; nothing is lost or reordered, including packets that waited.
func TestSendQueueFull(t *testing.T) {
	s, a, b := two(t, "sq_depth=128")
	a.send(ipA, ipB, "first")
	s.run(time.Second)
	b.got = nil
	var want []string
	for i := range 1000 {
		want = append(want, fmt.Sprint(i))
	}
	a.stall = true
	sent := a.send(ipA, ipB, want...)
	if sent != 127 {
		t.Errorf("took %d of a queue of 128", sent)
	}
	if n := a.send(ipA, ipB, want[sent:]...); n != 0 || a.wakes != 0 {
		t.Errorf("took %d more, woke %d times", n, a.wakes)
	}
	a.stall = false
	for sent < len(want) {
		woken := a.wakes
		s.step()
		if a.wakes != woken+1 {
			t.Fatalf("not woken at %d", sent)
		}
		sent += a.send(ipA, ipB, want[sent:]...)
	}
	s.run(time.Second)
	if !slices.Equal(b.texts(), want) {
		t.Errorf("%d packets arrived, or not in order", len(b.texts()))
	}
	if n := a.counter("tx_dropped"); n != 0 {
		t.Errorf("%d dropped", n)
	}
}

// TestH54_NothingBlocks: with a subnet administration that answers late, or
// never, sending returns at once, what waits is bounded, and its order is kept (S-01).
func TestH54_NothingBlocks(t *testing.T) {
	s, a, b := two(t)
	a.l.FlushPaths()
	a.l.PurgeShadow(s.now, wire.HWAddr{})
	s.delay = time.Second
	for i := range 1000 {
		if a.send(ipA, ipB, fmt.Sprint(i)) != 1 {
			t.Fatal("sending waits")
		}
	}
	s.run(3 * time.Second)
	got := b.texts()
	if len(got) < 32 || len(got) > 200 {
		t.Errorf("%d packets arrived", len(got))
	}
	for i, text := range got {
		if text != fmt.Sprint(i) {
			t.Fatalf("packet %d is %s", i, text)
		}
	}
	s.silent = true
	a.l.PurgeShadow(s.now, wire.HWAddr{})
	for range 1000 {
		a.send(ipA, ipB, "x")
	}
	if a.l.budget.octets > 2*entryBytes {
		t.Errorf("%d octets wait", a.l.budget.octets)
	}
	s.run(3 * time.Second)
	if a.l.budget.octets != 0 {
		t.Errorf("%d octets wait for nobody", a.l.budget.octets)
	}
}

// TestH17_Watchdog: where sends do not complete, the timeout that parameter
// timeout gives fires once per period; the queue pair is made to work again
// (H-29), and traffic resumes.
func TestH17_Watchdog(t *testing.T) {
	s, a, b := two(t, "timeout=50")
	a.send(ipA, ipB, "first")
	s.run(time.Second)
	a.stall = true
	a.log = nil
	for range 6 {
		a.send(ipA, ipB, "lost")
		s.run(250 * time.Millisecond)
	}
	if n := a.counter("tx_timeouts"); n != 2 && n != 3 {
		t.Errorf("%d timeouts in 1.5 s of 0.5 s each", n)
	}
	if a.counter("tx_aborted_errors") == 0 || !slices.Contains(a.log, "stop qp") ||
		!slices.Contains(a.log, "init ud 1") {
		t.Errorf("log %v", a.log)
	}
	if !slices.ContainsFunc(a.events, func(e Event) bool { return e.Kind == EventTxTimeout }) {
		t.Error("no event")
	}
	a.stall = false
	s.run(time.Second)
	b.got = nil
	a.send(ipA, ipB, "resumed")
	s.run(time.Second)
	if !slices.Contains(b.texts(), "resumed") || a.l.Info().SendFree != 512 {
		t.Errorf("got %v", b.texts())
	}
	n := a.counter("tx_timeouts")
	if s.run(time.Minute); a.counter("tx_timeouts") != n {
		t.Error("it fires while nothing is sent")
	}
}

// TestH10_Partitions: a link is a partition; nothing crosses. Two limited
// members hear broadcasts of full members but not each other.
func TestH10_Partitions(t *testing.T) {
	s := newSubnet(t)
	s.permanent(0x8015)
	var n [4]*node
	for i, k := range []ib.PKey{0x8014, 0x8014, 0x8015, 0x0014} {
		n[i] = s.add(fmt.Sprint("ib", i), ib.LID(5+i), ib.MakeGID(ib.DefaultGIDPrefix, ib.GUID(100+i)), ib.QPN(0x50+i))
		n[i].port.PKeys = []ib.PKey{k}
		n[i].l.attr.partition = k
		n[i].start()
		n[i].l.SetAddrs(s.now, []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 20, 0, byte(1 + i)}), 24)},
			nil)
	}
	s.run(10 * time.Second)
	for i := range n {
		n[0].send(netip.AddrFrom4([4]byte{10, 20, 0, 1}), netip.AddrFrom4([4]byte{10, 20, 0, byte(1 + i)}), "unicast")
	}
	n[0].send(netip.AddrFrom4([4]byte{10, 20, 0, 1}), netip.MustParseAddr("10.20.0.255"), "broadcast")
	s.run(10 * time.Second)
	for i, want := range []int{0, 2, 0, 2} {
		if got := n[i].texts(); len(got) != want {
			t.Errorf("node %d got %v", i, got)
		}
	}
}

// TestH50_Imports: a link and its parts know the access layer by interfaces only.
func TestH50_Imports(t *testing.T) {
	allowed := []string{"weft/internal/proto/counters", "weft/internal/proto/ib", "weft/internal/proto/mad",
		"weft/internal/proto/mono", "weft/internal/proto/wire", "weft/internal/service/ipoib/connected",
		"weft/internal/service/ipoib/neigh", "weft/internal/service/ipoib/stats"}
	for _, dir := range []string{".", "connected", "neigh", "stats"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range file.Imports {
				path := strings.Trim(imp.Path.Value, `"`)
				if strings.HasPrefix(path, "weft/") && !slices.Contains(allowed, path) {
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
	}
}

// TestH02_Datagrams: one datagram queue pair carries unicast and groups, and no
// other is made.
func TestH02_Datagrams(t *testing.T) {
	_, a, _ := two(t)
	n := 0
	for _, l := range a.log {
		if l == "create qp" {
			n++
		}
	}
	if n != 1 || a.l.Info().QPs != 1 || len(a.attached) == 0 {
		t.Errorf("%d queue pairs, attached to %v", n, a.attached)
	}
}

// TestH30_Statistics: what was sent and received is what is counted.
func TestH30_Statistics(t *testing.T) {
	s, a, b := two(t)
	before, was := a.l.Counters().Net, b.l.Counters().Net
	for range 100 {
		a.send(ipA, ipB, strings.Repeat("x", 80))
	}
	s.run(time.Second)
	a.send(ipA, netip.MustParseAddr("224.0.0.1"), "to a group")
	s.run(time.Second)
	c, d := a.l.Counters().Net, b.l.Counters().Net
	// 36 frames found the queue full while the address was resolved; asking
	// took a broadcast, its answer a frame.
	if c.TxPackets-before.TxPackets != 64+1+1 || d.RxPackets-was.RxPackets != 64+1+1 ||
		d.Multicast-was.Multicast != 1 ||
		c.TxBytes-before.TxBytes != d.RxBytes-was.RxBytes || d.RxBytes-was.RxBytes != 64*104+60+34 ||
		c.TxDropped-before.TxDropped != 36 {
		t.Errorf("A %+v\nB %+v", c, d)
	}
	names := map[string]bool{}
	all := a.l.Counters()
	for _, v := range all.List() {
		if names[v.Name] || v.Name != strings.ToLower(v.Name) {
			t.Errorf("counter %s twice, or with capitals", v.Name)
		}
		names[v.Name] = true
	}
	for _, name := range strings.Fields("rx_packets tx_packets rx_bytes tx_bytes rx_errors tx_errors rx_dropped tx_dropped multicast rx_length_errors " +
		"rx_frame_errors rx_fifo_errors rx_missed_errors tx_aborted_errors tx_carrier_errors tx_fifo_errors " +
		"tx_window_errors rx_nohandler drop_no_path drop_queue_full drop_mcast_not_joined drop_unknown_ethertype drop_own_echo " +
		"drop_arp_invalid drop_nd_invalid drop_too_big drop_link_down drop_no_route path_queries path_failures shadow_entries shadow_created shadow_purged " +
		"shadow_refreshed mcast_joins mcast_join_failures mcast_leaves mcast_sendonly arp_tx arp_rx nd_tx nd_rx tx_timeouts tx_copied tx_mapped cq_events " +
		"rejoins carrier_changes getpath_calls getpath_enxio") {
		if !names[name] {
			t.Errorf("there is no counter %s", name)
		}
	}
}

// TestH44_Dump: an entry has hardware address, path, address vector, queue.
func TestH44_Dump(t *testing.T) {
	s, a := alone(t)
	a.l.shadow.learn(s.now, ipB, hwB)
	a.xmitText(hwB, "waits")
	got := a.l.Shadow(s.now)
	if len(got) != 1 || got[0].State != "PATHRECORD_PENDING" || got[0].Queued != 1 || got[0].Handle != 0 ||
		got[0].HW != hwB {
		t.Errorf("pending: %+v", got)
	}
	s.answerPath(a, pathSA6(t), 0)
	got = a.l.Shadow(s.now)
	if len(got) != 1 || got[0].State != "RESOLVED" || got[0].Queued != 0 || got[0].Handle == 0 ||
		got[0].Path.DLID != 17 || got[0].Path.SL != 3 ||
		got[0].Path.MTU != ib.MTU2048 || got[0].Path.Rate != ib.Rate40 || !slices.Equal(got[0].IPs, []netip.Addr{ipB}) {
		t.Errorf("resolved: %+v", got)
	}
	p := a.l.Paths()
	if len(p) != 1 || p[0].GID != gidB || !p[0].Valid || p[0].Asking || p[0].Users != 1 {
		t.Errorf("paths: %+v", p)
	}
	g := a.l.Groups(s.now)
	if len(g) < 3 || g[0].MGID != a.l.groups.broadcast.mgid || g[0].State != "joined" || g[0].MLID == 0 ||
		!g[0].Attached || g[0].JoinState != mad.JoinFull {
		t.Errorf("groups: %+v", g)
	}
	if a.l.PurgeShadow(s.now, hwB) != 1 || len(a.l.Shadow(s.now)) != 0 || len(a.l.Paths()) != 0 {
		t.Error("not purged")
	}
}

// TestWatchdogCountsFromTheSend: a send after a quiet time has all of the
// timeout to complete, whenever the watchdog was set before.
func TestWatchdogCountsFromTheSend(t *testing.T) {
	s, a, _ := two(t, "timeout=100")
	a.send(ipA, ipB, "first")
	s.run(3 * time.Second)
	for range 20 { // as ping does, once a second
		a.send(ipA, ipB, "x")
		s.step()
		s.now = s.now.Add(time.Second - time.Microsecond)
		a.stall = true // completes a little later
		a.send(ipA, ipB, "x")
		s.run(10 * time.Millisecond)
		a.stall = false
		s.run(3 * time.Second)
	}
	if n := a.counter("tx_timeouts"); n != 0 {
		t.Errorf("%d timeouts of sends that took 10 ms of 1 s", n)
	}
}

// TestRecoverySendsWhatWaits: frames for which there was no slot when the queue
// pair is reset are sent afterwards, in order (docs/notes/ipoib.md, 5).
func TestRecoverySendsWhatWaits(t *testing.T) {
	s, a, b := two(t, "sq_depth=128", "timeout=50")
	a.send(ipA, ipB, "first")
	s.run(time.Second)
	b.got = nil
	var want []string
	for i := range 300 {
		text := fmt.Sprint(i)
		f := ipv4(ipA, ipB, text)
		a.l.NetDevice().BuildHeader(f, b.l.attr.hw, wire.EtherIPv4)
		a.l.forwarder.forward(s.now, f)
		if i >= 128 {
			want = append(want, text)
		}
	}
	a.l.qp.flush(s.now)
	a.l.QPError(s.now) // everything that is posted completes as flushed
	s.run(time.Second)
	if got := b.texts(); !slices.Equal(got, want) {
		t.Errorf("%d of %d arrived: %v", len(got), len(want), got)
	}
}

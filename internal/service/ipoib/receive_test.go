// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
	"weft/internal/service/ipoib/neigh"
	"weft/internal/service/ipoib/stats"
)

func numeral[T ~uint16 | ~uint32](t testing.TB, s string) T {
	t.Helper()
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		t.Fatal(err)
	}
	return T(n)
}

// TestH38_Source plays the receive vectors: the source of a frame is in the GRH
// and the completion, and unknown without a GRH: its octets mean nothing then (S-08).
func TestH38_Source(t *testing.T) {
	for id, v := range vectors(t, "RX-") {
		var in struct {
			WC struct {
				ByteLen uint32 `json:"byte_len"`
				GRH     bool
				SrcQP   string `json:"src_qp"`
				SLID    string
			}
			Local  struct{ LID, QPN, PKey, GID string }
			Buffer string `json:"buffer_hex"`
		}
		var out struct {
			Type      string  `json:"packet_type"`
			EtherType string  `json:"ethertype"`
			Src       *string `json:"src_hwaddr"`
			Len       int     `json:"l3_length"`
		}
		v.read(t, &in, &out)
		_, a := alone(t)
		a.l.attr.port.LID, a.l.attr.qpn = numeral[ib.LID](t, in.Local.LID), numeral[ib.QPN](t, in.Local.QPN)
		if a.l.attr.qpn == 0x208 {
			a.l.attr.port.GID = gidB
		}
		wc := WC{ByteLen: in.WC.ByteLen, GRH: in.WC.GRH, SrcQPN: numeral[ib.QPN](t, in.WC.SrcQP),
			SLID: numeral[ib.LID](t, in.WC.SLID)}
		b := unhex(t, in.Buffer)
		kind := map[neigh.Kind]string{neigh.Host: "host", neigh.Broadcast: "broadcast",
			neigh.Multicast: "multicast"}[a.l.receiver.kindOf(&wc, b)]
		if a.l.receiver.isEcho(&wc, b) {
			kind = "discard_own_echo"
		}
		if kind != out.Type {
			t.Errorf("%s: it is %s, want %s", id, kind, out.Type)
		}
		before := a.l.Counters()
		slot := append(b, make([]byte, recvSlotLen-len(b))...)
		a.l.receiver.datagram(a.s.now, &wc, slot, nil)
		c := a.l.Counters()
		if out.Type == "discard_own_echo" {
			if c.Drops[stats.DropOwnEcho] != before.Drops[stats.DropOwnEcho]+1 ||
				c.Net.RxPackets != before.Net.RxPackets ||
				c.Net.RxDropped != before.Net.RxDropped {
				t.Errorf("%s: counted as received or dropped: %+v", id, c.Net)
			}
			continue
		}
		if c.Net.RxPackets != before.Net.RxPackets+1 || c.Net.RxBytes != before.Net.RxBytes+uint64(out.Len)+
			wire.EncapLen {
			t.Errorf("%s: %+v", id, c.Net)
		}
		// The frame lies in the slot as the engine saw it.
		src, ok := a.l.NetDevice().ParseHeader(slot)
		switch {
		case out.Src == nil && ok:
			t.Errorf("%s: source %v, want none", id, src)
		case out.Src != nil && src.String() != *out.Src:
			t.Errorf("%s: source %v, want %s", id, src, *out.Src)
		}
		if h := wire.HardHeader(slot); fmt.Sprintf("0x%04x", uint16(h.Type())) != out.EtherType {
			t.Errorf("%s: type %#x", id, h.Type())
		}
	}
}

// TestH51_GRH: the 40 octets in front are not part of the frame, whatever they
// hold.
func TestH51_GRH(t *testing.T) {
	_, a := alone(t)
	p := ipv4(ipB, ipA, "hello")[Headroom:]
	payload := append([]byte{8, 0, 0xbe, 0xef}, p...)
	a.injectUnicast(payload)
	if len(a.got) != 1 || !bytes.Equal(a.got[0], p) {
		t.Errorf("the IP stack got %x", a.got)
	}
}

// TestH03_Verdicts plays NEG-1 to NEG-12: what is refused, and by which counter.
func TestH03_Verdicts(t *testing.T) {
	counters := map[string][]string{
		"short_frame":       {"drop_short_frame", "rx_errors", "rx_length_errors"},
		"unknown_ethertype": {"drop_unknown_ethertype", "rx_dropped", "rx_nohandler"},
		"version_mismatch":  {"drop_version_mismatch", "rx_errors", "rx_frame_errors"},
		"arp_bad_hlen":      {"drop_arp_invalid", "rx_errors", "rx_frame_errors"},
		"arp_bad_htype":     {"drop_arp_invalid", "rx_errors", "rx_frame_errors"},
		"arp_bad_plen":      {"drop_arp_invalid", "rx_errors", "rx_frame_errors"},
		"arp_bad_sender_hw": {"drop_arp_invalid", "rx_errors", "rx_frame_errors"},
		"nd_bad_hoplimit":   {"drop_nd_invalid", "rx_errors", "rx_frame_errors"},
		"nd_bad_option":     {"drop_nd_invalid", "rx_errors", "rx_frame_errors"},
		"nd_bad_lladdr_len": {"drop_nd_invalid", "rx_errors", "rx_frame_errors"},
	}
	for id, v := range vectors(t, "NEG-") {
		var in struct {
			Payload string `json:"ud_payload_hex"`
		}
		var out struct{ Verdict, Reason string }
		v.read(t, &in, &out)
		_, a := alone(t)
		before := map[string]uint64{}
		c := a.l.Counters()
		for _, v := range c.List() {
			before[v.Name] = v.Value
		}
		a.injectUnicast(unhex(t, in.Payload))
		refused := map[string]bool{}
		c = a.l.Counters()
		for _, v := range c.List() {
			if v.Value != before[v.Name] {
				refused[v.Name] = true
			}
		}
		if out.Verdict != "drop" {
			for _, names := range counters {
				if refused[names[0]] {
					t.Errorf("%s: refused: %v", id, refused)
				}
			}
			continue
		}
		want, ok := counters[out.Reason]
		if !ok {
			t.Fatalf("%s: reason %q is unknown", id, out.Reason)
		}
		for _, n := range want {
			if !refused[n] {
				t.Errorf("%s (%s): %s is not counted, but %v", id, v.Desc, n, refused)
			}
		}
		if len(a.got) != 0 {
			t.Errorf("%s: delivered", id)
		}
	}
}

// TestFrames plays IBF: what a frame of the wire holds is delivered, or answered, and
// what is sent has the payload of the frame.
func TestFrames(t *testing.T) {
	for id, v := range vectors(t, "IBF-") {
		var in struct {
			DLID    string
			SL      uint8
			DestQPN string `json:"dest_qpn"`
			SrcQPN  string `json:"src_qpn"`
			QKey    string
		}
		var out struct{ Hex string }
		v.read(t, &in, &out)
		frame := unhex(t, out.Hex)
		// LRH, perhaps GRH, BTH, DETH, payload, padding.
		at, grh := 8, frame[1]&3 == 3
		buf := bytes.Repeat([]byte{0xa5}, grhLen)
		if grh {
			copy(buf, frame[at:])
			at += grhLen
		}
		pad := int(frame[at+1] >> 4 & 3)
		qpn := ib.QPN(binary.BigEndian.Uint32(frame[at+16:]) & 0xffffff)
		payload := frame[at+20 : len(frame)-pad]
		s, a := alone(t)
		src := ib.LID(binary.BigEndian.Uint16(frame[6:]))
		if src == 5 { // its sender is host A: be B
			a.l.attr.port.GID, a.l.attr.port.LID, a.l.attr.qpn = gidB, 17, 0x208
			a.l.SetAddrs(s.now, []netip.Prefix{netip.MustParsePrefix("10.20.0.2/24")}, nil)
			s.run(10 * time.Second)
			a.got = nil
		}
		before := a.l.Counters()
		a.inject(WC{ByteLen: uint32(grhLen + len(payload)), GRH: grh, SrcQPN: qpn, SLID: src}, append(buf, payload...))
		c := a.l.Counters()
		if c.Net.RxPackets != before.Net.RxPackets+1 || c.Net.RxErrors != before.Net.RxErrors ||
			c.Net.RxBytes != before.Net.RxBytes+uint64(len(payload)) {
			t.Errorf("%s: %+v", id, c.Net)
		}
		if in.SrcQPN == "0x000048" {
			s, a := alone(t)
			f := make([]byte, Headroom+len(payload)-wire.EncapLen)
			copy(f[Headroom:], payload[wire.EncapLen:])
			dst := wire.PseudoBroadcast
			if !grh {
				dst = hwB
			}
			a.l.NetDevice().BuildHeader(f, dst, wire.EtherType(binary.BigEndian.Uint16(payload)))
			a.l.forwarder.forward(s.now, f)
			if !grh {
				s.answerPath(a, pathSA6(t), 0)
			}
			a.l.qp.flush(s.now)
			s.step()
			sent := a.sent[len(a.sent)-1]
			if !bytes.Equal(sent.data, payload) || sent.ah.DLID != numeral[ib.LID](t, in.DLID) || sent.ah.SL != in.SL ||
				sent.ah.Global != grh ||
				sent.wr.QPN != numeral[ib.QPN](t, in.DestQPN) || sent.wr.QKey != numeral[ib.QKey](t, in.QKey) {
				t.Errorf("%s: sent %+v to %+v", id, sent.wr, sent.ah)
			}
		}
		if payload[1] != 6 && (len(a.got) != 1 || !bytes.Equal(a.got[0], payload[wire.EncapLen:])) {
			t.Errorf("%s: delivered %x", id, a.got)
		}
	}
}

// TestH06_SlowStack: an IP stack that takes nothing does not take receive slots away, and
// what it does not take is counted.
func TestH06_SlowStack(t *testing.T) {
	s, a, b := two(t)
	a.send(ipA, ipB, "first")
	s.run(time.Second)
	b.full, b.got = true, nil
	for range 10 {
		for range 100 {
			a.send(ipA, ipB, "x")
		}
		s.run(time.Millisecond)
	}
	if n := b.counter("drop_stack_full"); n != 1000 || b.counter("rx_missed_errors") != n ||
		b.counter("rx_dropped") != n {
		t.Errorf("%d packets dropped", n)
	}
	if i := b.l.Info(); i.RecvPosted != i.RQDepth || b.drops["no buffer"] != 0 {
		t.Errorf("%d of %d receive slots are posted", i.RecvPosted, i.RQDepth)
	}
	b.full = false
	a.send(ipA, ipB, "at last")
	s.run(time.Millisecond)
	if d := cmp.Diff([]string{"at last"}, b.texts()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestH39_OneRoutine: sends and receives complete in one queue and one routine distinguishes them;
// those from before a reset are not mistaken for others.
func TestH39_OneRoutine(t *testing.T) {
	s, a := alone(t)
	a.xmitText(hwB, "f1")
	s.answerPath(a, pathSA6(t), 0)
	before := a.counter("cq_events")
	a.xmitText(hwB, "f2")
	a.complete()
	a.injectUnicast(append([]byte{8, 0, 0, 0}, ipv4(ipB, ipA, "r1")[Headroom:]...))
	if a.counter("cq_events") == before || a.counter("tx_packets") < 2 || !slices.Equal(a.texts(), []string{"r1"}) {
		t.Errorf("%d events, %d sent, got %v", a.counter("cq_events"), a.counter("tx_packets"), a.texts())
	}
	// Made-up, repeated and late completions.
	c := a.l.Counters()
	a.cq = append(a.cq, WC{ID: 1 << 20}, WC{ID: idRecv | 1<<20, Recv: true, ByteLen: 100},
		WC{ID: uint64(a.l.sender.gen+1) << idGenShift}, WC{}, WC{ID: 3},
		WC{ID: uint64(a.l.sender.gen-1)<<idGenShift | idRecv | 5, Recv: true, ByteLen: 100})
	s.step()
	if d := cmp.Diff(c.Net, a.l.Counters().Net); d != "" {
		t.Errorf("counted: %s", d)
	}
}

// TestH40_Handover: what is delivered has its protocol's first nibble and is a copy: the
// device spoils what it was given, and slots that are posted stay whole.
func TestH40_Handover(t *testing.T) {
	s, a, b := two(t)
	for i := range 200 {
		a.send(ipA, ipB, fmt.Sprint("packet ", i))
		if i%7 == 0 {
			s.run(time.Millisecond)
		}
	}
	s.run(time.Second)
	got := b.texts()
	for i := range 200 {
		if want := fmt.Sprint("packet ", i); i >= len(got) || got[i] != want {
			t.Fatalf("packet %d of %d is missing, or not in order", i, len(got))
		}
	}
}

// FuzzReceive: whatever arrives, nothing of the link's is lost.
func FuzzReceive(f *testing.F) {
	for _, v := range vectors(f, "") {
		var in, out struct {
			Payload string `json:"ud_payload_hex"`
		}
		v.read(f, &in, &out)
		if p := unhex(f, in.Payload+out.Payload); len(p) > 0 {
			f.Add(p, true, uint16(17), uint32(0x208))
			f.Add(p, false, uint16(5), uint32(0x48))
		}
	}
	s, a := alone(f)
	f.Fuzz(func(t *testing.T, payload []byte, grh bool, slid uint16, qpn uint32) {
		s.t = t
		buf := make([]byte, grhLen)
		copy(buf[8:], gidB[:])
		copy(buf[24:], a.l.groups.broadcast.mgid[:])
		if len(payload) > 2048 {
			payload = payload[:2048]
		}
		a.inject(WC{ByteLen: uint32(grhLen + len(payload)), GRH: grh, SrcQPN: ib.QPN(qpn & 0xffffff),
			SLID: ib.LID(slid)},
			append(buf, payload...))
		s.heldPaths = nil
		a.got, a.sent, a.log = nil, nil, nil
		s.run(time.Second)
	})
}

// TestTruncated: every truncation of every frame is refused or taken, and leaves
// the link whole.
func TestTruncated(t *testing.T) {
	s, a := alone(t)
	for _, id := range []string{"ARP-1", "ARP-2", "ND-1", "ND-2", "ND-5"} {
		p := payloadOf(t, id)
		for n := range p {
			a.injectUnicast(p[:n])
		}
	}
	for n := range Headroom {
		a.inject(WC{ByteLen: uint32(n)}, nil)
	}
	a.inject(WC{ByteLen: recvSlotLen + 1}, nil)
	a.inject(WC{Status: ib.LocLenErr}, nil)
	s.step()
	if a.counter("drop_rx_status") != 1 || a.counter("rx_fifo_errors") != 1 ||
		a.counter("rx_length_errors") < Headroom {
		t.Error("not counted")
	}
	if len(a.l.shadow.entries) > 1 {
		t.Errorf("entries %v", a.l.Shadow(s.now))
	}
}

// TestSARecordsRefused: answers that are none of a path or a group.
func TestSARecordsRefused(t *testing.T) {
	s, a := alone(t)
	a.xmitText(hwB, "x")
	for _, bad := range [][]byte{nil, make([]byte, mad.PathRecordLen-1), make([]byte, mad.PathRecordLen),
		(&mad.PathRecord{DLID: 0xc000}).Append(nil)} {
		if len(s.heldPaths) == 0 {
			a.xmitText(hwB, "x")
		}
		id := s.heldPaths[0]
		s.heldPaths = nil
		a.l.SAResponse(s.now, id, 0, bad)
		if len(a.l.shadow.entries) != 0 {
			t.Errorf("%x is taken for a path", bad)
		}
		a.l.SAResponse(s.now, id, 0, bad) // it answers nothing any more
	}
	s.step()
	for _, bad := range [][]byte{nil, make([]byte, mad.MCMemberRecordLen),
		(&mad.MCMemberRecord{MGID: a.l.groups.broadcast.mgid, MLID: 5, MTU: 4}).Append(nil),
		(&mad.MCMemberRecord{MGID: a.l.groups.broadcast.mgid, MLID: 0xc001, MTU: 9}).Append(nil)} {
		s, a := one(t)
		s.silent = true
		a.start()
		a.l.SAResponse(s.now, a.l.sa.lastID, 0, bad)
		s.step()
		if a.carrier || a.registered {
			t.Errorf("%x is taken for a group", bad)
		}
	}
}

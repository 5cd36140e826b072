// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// captured returns the datagrams of connection management that two Linux soft-RoCE hosts exchanged: a
// request without a listener, and a connection from its request to its end.
func captured(t *testing.T) (list []mad.Datagram) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "test", "vectors", "linux-rxe-roundtrip.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var ip wire.IPUDP
		if len(frame) < 14 || frame[12] != 8 || frame[13] != 0 {
			continue
		}
		p, why := ip.Parse(frame[14:])
		if why != wire.OK {
			continue
		}
		var h wire.Headers
		b, why := h.Parse(p)
		if why != wire.OK || h.DestQPN != ib.QPNGSI {
			continue
		}
		if h.QKey != ib.GSIQKey || h.SrcQPN != ib.QPNGSI || h.PKey != ib.DefaultPKey || ip.HopLimit != 64 {
			t.Fatalf("datagram %d: %+v, hop limit %d", len(list), h, ip.HopLimit)
		}
		d := mad.Datagram{Port: 1, SLID: ib.LIDPermissive, DLID: ib.LIDPermissive, SrcQPN: h.SrcQPN,
			DstQPN: h.DestQPN, QKey: h.QKey, PKey: h.PKey,
			Global: true, SGID: ip.Src, DGID: ip.Dst, HopLimit: ip.HopLimit}
		if !d.SetMAD(b) {
			t.Fatalf("a MAD of %d bytes", len(b))
		}
		list = append(list, d)
	}
	want := []mad.AttributeID{mad.AttrCMREQ, mad.AttrCMREJ, mad.AttrCMREQ, mad.AttrCMREP, mad.AttrCMRTU,
		mad.AttrCMDREQ, mad.AttrCMDREP}
	if got := kindsOf(list); len(got) != len(want) {
		t.Fatalf("messages %#x, want %#x", got, want)
	}
	return list
}

// patch writes a number into a message, which begins at byte 24 of the MAD.
func patch(d *mad.Datagram, at int, b ...byte) { copy(d.Data[mad.HeaderLen+at:], b) }

func field(d *mad.Datagram, at, n int) []byte { return d.Data[mad.HeaderLen+at : mad.HeaderLen+at+n] }

// psnOf reads a packet sequence number of a message.
func psnOf(d *mad.Datagram, at int) ib.PSN {
	b := field(d, at, 3)
	return ib.PSN(uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]))
}

// same fails where a datagram is not the recorded one.
func same(t *testing.T, what string, got, want *mad.Datagram) {
	t.Helper()
	if !bytes.Equal(got.Data[:], want.Data[:]) {
		t.Errorf("%s\n got %x\nwant %x", what, got.Data, want.Data)
	}
	if got.SGID != want.SGID || got.DGID != want.DGID || got.HopLimit != want.HopLimit || got.QKey != want.QKey ||
		got.SrcQPN != want.SrcQPN ||
		got.DstQPN != want.DstQPN || got.PKey != want.PKey || !got.Global {
		t.Errorf("%s goes by %+v, want %+v", what, got, want)
	}
}

// TestCapturePassive handles the requests of a Linux host, and replies as the other Linux host did,
// except for random fields.
func TestCapturePassive(t *testing.T) {
	rec := captured(t)
	h := newHost(t, "10.99.0.1", 1, Limits{})
	h.eth.guid = 0x505400fffe000001
	h.Handle(h.now, 0, &rec[0])
	got := h.one(mad.AttrCMREJ)
	same(t, "REJ", &got, &rec[1])

	if _, err := h.Listen(&ListenParams{ServiceID: IPService(SpaceTCP, 7174)}, h.hear); err != nil {
		t.Fatal(err)
	}
	h.Handle(h.now, 0, &rec[2])
	e := h.event(ConnectRequest)
	q, c := e.Request, e.Conn
	if !q.IsIP || q.IP != (IPHeader{SrcPort: 0x83c0, Src: netip.MustParseAddr("10.99.0.2"),
		Dst: netip.MustParseAddr("10.99.0.1")}) {
		t.Errorf("IP header %+v", q.IP)
	}
	if q.QPType != ib.RC || q.QPN != 0x21 || q.ResponderResources != 1 || q.InitiatorDepth != 1 ||
		q.CAGUID != 0x505400fffe000002 || q.Path.MTU != ib.MTU1024 ||
		q.Path.FlowLabel != 0x01046 || q.Path.HopLimit != 64 || q.Path.SGIDIndex != 1 {
		t.Errorf("request %+v", q)
	}
	// The program of the capture takes the values of the request (255: all).
	if err := c.Accept(h.now, &AcceptParams{QPN: 0x1c, ResponderResources: 255, InitiatorDepth: 255, RNRRetry: 7,
		AckDelay: 15}); err != nil {
		t.Fatal(err)
	}
	got = h.one(mad.AttrCMREP)
	id := bytes.Clone(field(&got, 0, 4))
	patch(&rec[3], 0, id...)
	patch(&rec[3], 20, field(&got, 20, 3)...)
	same(t, "REP", &got, &rec[3])
	a, _, err := c.QPAttr(ib.RTS)
	if err != nil || a.Timeout != 19 || a.RetryCnt != 7 || a.RNRRetry != 7 || a.MaxRdAtomic != 1 ||
		a.SQPSN != 0xc42d75 {
		t.Errorf("RTS %+v, %v", a, err)
	}
	if a, _, err = c.QPAttr(ib.RTR); err != nil || a.RQPSN != psnOf(&got, 20) || a.DestQPN != 0x21 ||
		a.PathMTU != ib.MTU1024 || a.MaxDestRdAtomic != 1 {
		t.Errorf("RTR %+v, %v", a, err)
	}

	patch(&rec[4], 4, id...)
	h.Handle(h.now, 0, &rec[4])
	h.event(Established)
	patch(&rec[5], 4, id...)
	h.Handle(h.now, 0, &rec[5])
	got = h.one(mad.AttrCMDREP)
	h.event(Disconnected)
	patch(&rec[6], 0, id...)
	same(t, "DREP", &got, &rec[6])
	h.expire()
	h.quietBut(TimewaitExit)
	h.empty()
}

// TestCaptureActive requests a connection from a Linux host as the other one did.
func TestCaptureActive(t *testing.T) {
	rec := captured(t)
	h := newHost(t, "10.99.0.2", 1, Limits{})
	h.eth.guid = 0x505400fffe000002
	to := newHost(t, "10.99.0.1", 2, Limits{})
	p := h.path(to)
	p.FlowLabel = 0x01046
	ip := IPHeader{SrcPort: 0x83c0, Src: h.eth.addr, Dst: to.eth.addr}
	c, err := h.Connect(h.now, &ConnectParams{ServiceID: IPService(SpaceTCP, 7174), Path: p, QPType: ib.RC, QPN: 0x21,
		ResponderResources: 1, InitiatorDepth: 1,
		RetryCount: 7, RNRRetry: 7, AckDelay: 15, PrivateData: ip.Append(nil)}, h.hear)
	if err != nil {
		t.Fatal(err)
	}
	got := h.one(mad.AttrCMREQ)
	id, tid := bytes.Clone(field(&got, 0, 4)), bytes.Clone(got.Data[8:16])
	for i := range rec[2:] {
		copy(rec[2+i].Data[8:16], tid)
	}
	patch(&rec[2], 0, id...)
	patch(&rec[2], 44, field(&got, 44, 3)...)
	same(t, "REQ", &got, &rec[2])

	patch(&rec[3], 4, id...)
	h.Handle(h.now, 0, &rec[3])
	if e := h.event(Response); e.Reply.QPN != 0x1c || e.Reply.CAGUID != 0x505400fffe000001 || e.Reply.AckDelay != 15 {
		t.Errorf("response %+v", e.Reply)
	}
	// The first packet of the connection in the capture, from this side, bears 0x6fc03b.
	if a, _, err := c.QPAttr(ib.RTS); err != nil || a.Timeout != 19 || a.RNRRetry != 7 || a.SQPSN != 0x6fc03b {
		t.Errorf("RTS %+v, %v", a, err)
	}
	if a, _, err := c.QPAttr(ib.RTR); err != nil || a.RQPSN != psnOf(&got, 44) {
		t.Errorf("RTR %+v, %v", a, err)
	}
	if err := c.Establish(h.now, nil); err != nil {
		t.Fatal(err)
	}
	got = h.one(mad.AttrCMRTU)
	patch(&rec[4], 0, id...)
	same(t, "RTU", &got, &rec[4])

	if err := c.Disconnect(h.now, nil); err != nil {
		t.Fatal(err)
	}
	got = h.one(mad.AttrCMDREQ)
	patch(&rec[5], 0, id...)
	copy(rec[5].Data[8:16], got.Data[8:16])
	same(t, "DREQ", &got, &rec[5])
	patch(&rec[6], 4, id...)
	h.Handle(h.now, 0, &rec[6])
	h.event(Disconnected)
	c.Close(h.now)
	h.expire()
	h.quiet()
	h.empty()
}

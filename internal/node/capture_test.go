// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/control/api"
	"weft/internal/control/config"
	"weft/internal/device/vhost/vhosttest"
	"weft/internal/node/control"
	"weft/internal/node/subnet"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/pcapng"
	"weft/internal/proto/wire"
)

// capturing starts a capture and returns when it runs; end stops it and returns what it
// has come to.
func (r *running) capturing(spec api.CaptureSpec, w io.Writer) (id int, end func() api.Capture) {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	r.t.Cleanup(stop)
	started := make(chan int, 1)
	var c api.Capture
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err = r.cli.Capture(ctx, spec, func(now api.Capture) { started <- now.ID }, w)
	}()
	select {
	case id = <-started:
	case <-done:
		r.t.Fatal(err)
	}
	return id, func() api.Capture {
		r.t.Helper()
		if spec.Count == 0 && spec.DurationNS == 0 {
			stop()
		}
		<-done
		if err != nil {
			r.t.Error(err)
		}
		return c
	}
}

// inFile counts those of a file, by another's reader.
func inFile(t *testing.T, file *bytes.Buffer) (n int) {
	t.Helper()
	f, err := pcapgo.NewNgReader(file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for ; ; n++ {
		if _, _, err := f.ReadPacketData(); err == io.EOF {
			return n
		} else if err != nil {
			t.Fatalf("packet %d: %v", n, err)
		}
	}
}

// TestCapture: the file of a capture has the packets between two sessions during the capture; the
// status shows it, and the data is right.
func TestCapture(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		r := run(t, func(c *config.Config) { c.Lanes = lanes })
		a, b := r.client(t, vhosttest.Options{ProcMem: true}), r.client(t, vhosttest.Options{})
		pair(t, ib.RC, a, b)
		mustWrite(t, a, b, 1, 100)
		var all, none, few bytes.Buffer
		_, endAll := r.capturing(api.CaptureSpec{Device: r.cfg.Device}, &all)
		_, endNone := r.capturing(api.CaptureSpec{QPs: []uint32{0xffff}}, &none)
		id, endFew := r.capturing(api.CaptureSpec{Count: 5}, &few)
		for i := range 10 {
			mustWrite(t, a, b, byte(i+2), 100) // a WRITE and its acknowledgement
		}
		if s := r.status(); len(s.Captures) != 2 || s.Captures[0].Device != r.cfg.Device ||
			s.Captures[1].QPs[0] != 0xffff {
			eventually(t, "the one that has enough ends", func() bool { return len(r.status().Captures) == 2 })
		}
		if c := endFew(); c.ID != id || c.Packets != 5 || inFile(t, &few) != 5 {
			t.Errorf("%+v", c)
		}
		if c := endAll(); c.Packets != 20 || c.Dropped != 0 || inFile(t, &all) != 20 {
			t.Errorf("%+v", c)
		}
		if c := endNone(); c.Packets != 0 || inFile(t, &none) != 0 {
			t.Errorf("%+v", c)
		}
		if s := r.status(); len(s.Captures) != 0 {
			t.Errorf("%+v", s.Captures)
		}
		mustWrite(t, a, b, 99, 100)
	}
}

// TestCaptureUnread: a file without a reader costs packets of the file, and no program waits; the end
// of the reader is detected.
func TestCaptureUnread(t *testing.T) {
	t.Parallel()
	r := run(t, nil)
	a, b := r.client(t, vhosttest.Options{}), r.client(t, vhosttest.Options{})
	pair(t, ib.RC, a, b)
	read, write := io.Pipe()
	_, end := r.capturing(api.CaptureSpec{}, write)
	eventually(t, "packets are dropped", func() bool {
		for range 200 {
			mustWrite(t, a, b, 1, 5000)
		}
		return r.status().Captures[0].Dropped > 0
	})
	taken := make(chan struct{})
	go func() { defer close(taken); io.Copy(io.Discard, read) }()
	defer func() { write.Close(); <-taken }()
	if c := end(); c.Packets == 0 || c.Dropped == 0 {
		t.Errorf("%+v", c)
	}
	broken := errors.New("broken")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, err := r.cli.Capture(ctx, api.CaptureSpec{}, func(api.Capture) {}, brokenWriter{broken})
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	eventually(t, "the capture ends with its reader", func() bool { return len(r.status().Captures) == 0 })
	mustWrite(t, a, b, 2, 100)
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestCaptureRefused: too many, and of what is not there; and one that runs when the
// node ends is whole.
func TestCaptureRefused(t *testing.T) {
	r := run(t, nil)
	for _, x := range []struct {
		spec api.CaptureSpec
		why  string
	}{{api.CaptureSpec{Device: "nowhere"}, "no device"}, {api.CaptureSpec{IPoIB: true}, "no IP link"}} {
		if _, err := r.cli.Capture(t.Context(), x.spec, func(api.Capture) {}, io.Discard); err == nil ||
			!strings.Contains(err.Error(), x.why) || !strings.Contains(err.Error(), "fix: ") {
			t.Errorf("%+v: %v", x.spec, err)
		}
	}
	for range control.MaxCaptures {
		r.capturing(api.CaptureSpec{DurationNS: limit}, io.Discard)
	}
	if _, err := r.cli.Capture(t.Context(), api.CaptureSpec{}, func(api.Capture) {}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "4 captures run") {
		t.Errorf("one too many: %v", err)
	}
	list, err := api.Get(t.Context(), r.cli, api.ListCaptures)
	if err != nil || len(list) != control.MaxCaptures {
		t.Fatalf("%v: %+v", err, list)
	}
	if err := api.Do(t.Context(), r.cli, api.StopCapture, list[1].ID); err != nil {
		t.Error(err)
	}
	eventually(t, "one has ended", func() bool { return len(r.status().Captures) == control.MaxCaptures-1 })
	if err := api.Do(t.Context(), r.cli, api.StopCapture, list[1].ID); err == nil {
		t.Error("ended twice")
	}
	var last bytes.Buffer
	_, end := r.capturing(api.CaptureSpec{DurationNS: limit}, &last)
	if err := api.Do(t.Context(), r.cli, api.Shutdown, api.None{}); err != nil {
		t.Error(err)
	}
	end()
	if inFile(t, &last) != 0 {
		t.Error("packets of nothing")
	}
}

// managementFrame is a packet of queue pair 0 or 1 in a capture file.
type managementFrame struct {
	iface   string
	lrh     wire.LRH // of native ones
	grh     wire.GRH
	headers wire.Headers
	mad     mad.Header
	body    []byte
}

// managementFrames are those of a capture file, all with the right CRCs.
func managementFrames(t *testing.T, file []byte) (list []managementFrame) {
	t.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(file), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, info, err := r.ReadPacketData()
		if err == io.EOF {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		i, err := r.Interface(info.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		f := managementFrame{iface: i.Name}
		var tr []byte
		var why wire.Refusal
		if pcapng.LinkType(i.LinkType) == pcapng.LinkERF {
			p := frame[16:]
			if tr, why = wire.ParseIB(p, &f.lrh, &f.grh); why == wire.OK {
				why = wire.VerifyIB(p)
			}
			if vcrc := p[len(p)-wire.VCRCLen:]; wire.VCRC(p[:len(p)-wire.VCRCLen]) != binary.BigEndian.Uint16(vcrc) {
				t.Errorf("VCRC %x", vcrc)
			}
		} else {
			// Tests have a UDP port of their own.
			var ip wire.IPUDP
			udp := 14 + 20
			if frame[14]>>4 == 6 {
				udp = 14 + 40
			}
			binary.BigEndian.PutUint16(frame[udp+2:], wire.UDPPort)
			tr, why = ip.Parse(frame[14:])
		}
		if why == wire.OK {
			f.body, why = f.headers.Parse(tr)
		}
		if why != wire.OK {
			t.Fatalf("%v: %x", why, frame)
		}
		if f.headers.DestQPN > ib.QPNGSI {
			continue
		}
		if len(f.body) < mad.HeaderLen || f.headers.Opcode != ib.ServiceUD|ib.SendOnly ||
			f.headers.SrcQPN > ib.QPNGSI || (f.lrh.VL == 15) != (f.headers.DestQPN == ib.QPNSMI) {
			t.Fatalf("%+v, %+v", f.lrh, f.headers)
		}
		f.mad.Parse(f.body)
		list = append(list, f)
	}
}

// TestCaptureManagement: datagrams of agents and programs on queue pairs 0 and 1 of an InfiniBand port
// are mirrored where the port sends and where it receives them; those to the port itself once.
func TestCaptureManagement(t *testing.T) {
	r := manageable(t)
	if _, err := api.Call(t.Context(), r.cli, api.AddFunction, api.NewFunction{Name: "vf"}); err != nil {
		t.Fatal(err)
	}
	c, a := r.umadOpen(firstNative)
	r.smpAgent(a.Token)
	var other, file bytes.Buffer
	_, endOther := r.capturing(api.CaptureSpec{Device: "vf", QPs: []uint32{0}}, &other)
	_, end := r.capturing(api.CaptureSpec{QPs: []uint32{0, 1}}, &file)
	for i, path := range [][]uint8{{1}, {1, 2}} { // the switch, and the other port behind it
		if _, err := c.Write(smpGet(uint64(i+1), mad.AttrNodeInfo, 0, path...)); err != nil {
			t.Fatal(err)
		}
		if h, s := umadRead(t, c); h.Status != 0 || uint32(s.TransactionID) != uint32(i+1) {
			t.Fatalf("%+v, %+v", h, s)
		}
	}
	// From a port to another, with a GRH and as long as MADs of Omni-Path are, and from it to itself.
	s := r.node.sub
	long := make([]byte, mad.OPALen)
	for i := range long {
		long[i] = byte(i * 3)
	}
	h := mad.Header{BaseVersion: mad.OPABaseVersion, MgmtClass: mad.ClassSA, ClassVersion: mad.ClassVersion,
		Method: mad.MethodGetResp, TransactionID: 9}
	h.Append(long[:0])
	sgid, dgid := ib.MakeGID(ib.DefaultGIDPrefix, 1), ib.MakeGID(ib.DefaultGIDPrefix, 2)
	s.Do(func() {
		from := s.Port(r.node.funcs.named(firstNative).a.Number())
		d := mad.Datagram{SLID: 4, PathBits: 1, DLID: 7, SL: 3, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI,
			QKey: ib.GSIQKey, PKey: ib.DefaultPKey,
			Global: true, SGID: sgid, DGID: dgid, HopLimit: 64, TClass: 5, FlowLabel: 0x12345}
		if !d.SetMAD(long) {
			t.Error("not set")
		}
		from.Send(&d)
		clear(d.Long) // what is shown is a copy
	})
	if k := endOther(); k.Packets != 2 || k.Dropped != 0 {
		t.Errorf("the other port: %+v", k)
	}
	if k := end(); k.Dropped != 0 {
		t.Errorf("%+v", k)
	}
	type packet struct {
		iface  string
		qp     ib.QPN
		method mad.Method
		tid    uint32
	}
	var got []packet
	psn := map[ib.PSN]bool{}
	for _, f := range managementFrames(t, file.Bytes()) {
		got = append(got, packet{f.iface, f.headers.DestQPN, f.mad.Method, uint32(f.mad.TransactionID)})
		if psn[f.headers.PSN] {
			t.Errorf("two of sequence number %d", f.headers.PSN)
		}
		psn[f.headers.PSN] = true
		if f.headers.DestQPN == ib.QPNSMI {
			if f.lrh.SLID != ib.LIDPermissive || f.lrh.DLID != ib.LIDPermissive || len(f.body) != mad.Len ||
				f.headers.QKey != 0 {
				t.Errorf("%+v, %+v", f.lrh, f.headers)
			}
			continue
		}
		if f.lrh.SLID != 5 || f.lrh.DLID != 7 || f.lrh.SL != 3 || f.grh.SGID != sgid || f.grh.DGID != dgid ||
			f.grh.HopLimit != 64 || f.grh.TClass != 5 ||
			f.grh.FlowLabel != 0x12345 || f.headers.SrcQPN != ib.QPNGSI || f.headers.QKey != ib.GSIQKey ||
			f.headers.PKey != ib.DefaultPKey || !bytes.Equal(f.body, long) {
			t.Errorf("%+v, %+v, %+v: %x", f.lrh, f.grh, f.headers, f.body)
		}
	}
	if want := []packet{{firstNative, 0, mad.MethodGet, 1}, {firstNative, 0, mad.MethodGetResp, 1},
		{firstNative, 0, mad.MethodGet, 2}, {"vf", 0, mad.MethodGet, 2}, {"vf", 0, mad.MethodGetResp,
			2}, {firstNative, 0, mad.MethodGetResp, 2},
		{firstNative, 1, mad.MethodGetResp, 9}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestCaptureManagementToItself: a datagram of a port to itself is mirrored once, and so is its
// agent's reply.
func TestCaptureManagementToItself(t *testing.T) {
	r := master(t)
	s := r.node.sub
	var file bytes.Buffer
	_, end := r.capturing(api.CaptureSpec{Device: firstNative, QPs: []uint32{1}}, &file)
	var lid ib.LID
	s.Do(func() {
		c := s.Port(r.node.funcs.named(firstNative).a.Number())
		lid = c.Agent.LID()
		for _, class := range []mad.Class{mad.ClassPerf, mad.ClassCM} {
			d := mad.Datagram{SLID: lid, DLID: lid, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI, QKey: ib.GSIQKey,
				PKey: ib.DefaultPKey}
			h := mad.Header{BaseVersion: mad.BaseVersion, MgmtClass: class, ClassVersion: mad.ClassVersion,
				Method: mad.MethodGet, TransactionID: 77, AttributeID: mad.AttrClassPortInfo}
			h.Append(d.Data[:0])
			c.Send(&d)
		}
	})
	end()
	count := map[[2]uint8]int{}
	for _, f := range managementFrames(t, file.Bytes()) {
		if f.mad.TransactionID == 77 && f.lrh.SLID == lid && f.lrh.DLID == lid {
			count[[2]uint8{uint8(f.mad.MgmtClass), uint8(f.mad.Method)}]++
		}
	}
	for _, k := range [][2]uint8{{uint8(mad.ClassPerf), uint8(mad.MethodGet)}, {uint8(mad.ClassPerf),
		uint8(mad.MethodGetResp)}, {uint8(mad.ClassCM), uint8(mad.MethodGet)}} {
		if count[k] != 1 {
			t.Errorf("class %#x, method %#x: %d times", k[0], k[1], count[k])
		}
	}
}

// TestCaptureManagementBounded: datagrams that wait for a stuck lane are bounded, the rest is counted
// as dropped; without a capture nothing is mirrored.
func TestCaptureManagementBounded(t *testing.T) {
	r := manageable(t)
	s := r.node.sub
	d := mad.Datagram{SLID: 4, DLID: 7, SrcQPN: ib.QPNGSI, DstQPN: ib.QPNGSI}
	var c *subnet.Port
	s.Do(func() { c = s.Port(r.node.funcs.named(firstNative).a.Number()) })
	if n := testing.AllocsPerRun(1000, func() { c.Mirror(&d, true) }); n != 0 {
		t.Errorf("%v allocations without a capture", n)
	}
	_, end := r.capturing(api.CaptureSpec{Device: firstNative, QPs: []uint32{1}}, io.Discard)
	_, none := r.capturing(api.CaptureSpec{Device: r.cfg.Device}, io.Discard)
	held, free := make(chan struct{}), make(chan struct{})
	r.node.lanes.First().Post(func() { close(held); <-free })
	<-held
	s.Do(func() {
		for range control.MaxMirrored + 5 {
			c.Mirror(&d, true)
		}
		d.SrcQPN, d.DstQPN = 0, 0
		c.Mirror(&d, true) // of no queue pair that is captured
	})
	close(free)
	if k := end(); k.Packets != control.MaxMirrored || k.Dropped != 5 {
		t.Errorf("%+v", k)
	}
	if k := none(); k.Packets != 0 || k.Dropped != 0 {
		t.Errorf("%+v", k)
	}
}

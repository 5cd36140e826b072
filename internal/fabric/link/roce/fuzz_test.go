// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"bytes"
	"testing"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/wire"
)

// train builds the datagrams of a message as a peer would, one train.
func train(op ib.Opcode, n, mtu int, p *ib.Path, port uint16) []byte {
	var out []byte
	seed := wire.NewSeed(p.SGID, p.DGID, p.SrcPort, port)
	h := wire.Headers{Opcode: op, PKey: 0xffff, PSN: 0xfffffe}
	set(&h)
	count := packets(n, mtu)
	for k := range count {
		size := min(n-int(k)*mtu, mtu)
		ph := h.Packet(k, count, size)
		b := make([]byte, wire.MaxHeaderLen+size+8)
		b = b[:ph.Put(b)+size+int(ph.PadCnt)+wire.ICRCLen]
		body := b[:len(b)-wire.ICRCLen]
		wire.PutICRC(b[len(body):], seed.Sum(uint16(k), body))
		out = append(out, b...)
	}
	return out
}

// FuzzRecv cuts an arbitrary datagram or train: nothing crashes, payload lies
// within the datagram, and what is refused and what is accepted adds up.
func FuzzRecv(f *testing.F) {
	p := path("127.0.0.1", "127.0.0.2")
	f.Add([]byte{}, 0, true)
	f.Add(train(ib.SendOnly, 4096, 1024, p, 4791), 1040, true)
	f.Add(train(ib.ReadRespOnly, 100, 1024, p, 4791), 0, true)
	f.Add(train(ib.WriteMiddle, 8192, 256, p, 4791), 272, true)
	f.Add(train(ib.CmpSwap, 0, 256, p, 4791), 0, false)
	f.Add(bytes.Repeat([]byte{0x11, 0, 0xff, 0xff}, 2000), 16, false)
	l := &Link{port: 4791}
	l.initRecv()
	batch := mem.NewBatch(4096)
	dirt := bytes.Repeat([]byte{0xa5}, 4096)
	f.Fuzz(func(t *testing.T, data []byte, segment int, v4 bool) {
		if len(data) > recvBytes {
			return
		}
		m := &l.inMsg[0]
		copy(m.data[copy(m.data[:], data):], dirt)
		l.at = arrival{path: *p, segment: segment, ipv4: v4, here: true, known: true}
		if !v4 {
			l.at.path = *path("::1", "::1")
		}
		m.path = l.at.path
		l.c = Counters{}
		if !l.arrived(len(data), 0) {
			t.Fatal("refused")
		}
		want := max(1, (len(data)+l.at.segment-1)/max(1, l.at.segment))
		for done := false; !done; {
			l.joiner.Reset()
			done = l.packets(m.data[:len(data)], &m.path)
			if !done && len(l.joiner.Bursts()) == 0 {
				t.Fatal("no progress")
			}
			for i := range l.joiner.Bursts() {
				check(t, l, batch, i)
			}
		}
		var dropped uint64
		for _, n := range l.c.DropRefusal {
			dropped += n
		}
		if dropped+l.c.RcvdPackets != uint64(want) {
			t.Errorf("%d refused and %d accepted of %d", dropped, l.c.RcvdPackets, want)
		}
	})
}

func check(t *testing.T, l *Link, batch *mem.Batch, i int) {
	r := &l.joiner.Bursts()[i]
	got := make([]byte, r.Data.Len)
	if batch.Gather([][]byte{got}, &r.Data, 0) != mem.OK {
		t.Fatalf("run %d of %d bytes: payload is shorter", i, r.Data.Len)
	}
	if r.Count == 0 || r.Count > 1 && (r.Data.Len <= int(r.MTU*(r.Count-1)) || r.Data.Len > int(r.MTU*r.Count) ||
		!wholeMTU(r.MTU)) {
		t.Errorf("run of %d packets, MTU %d, has %d bytes", r.Count, r.MTU, r.Data.Len)
	}
	for _, s := range r.Data.Segs {
		if uint64(len(s.Bytes)) != s.Len || s.Region != nil {
			t.Errorf("segment of %d bytes states %d", len(s.Bytes), s.Len)
		}
	}
}

func wholeMTU(n uint32) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// FuzzArrival parses arbitrary addresses and control messages.
func FuzzArrival(f *testing.F) {
	name, ctrl := make([]byte, udpsock.NameLen), make([]byte, 2*ctrlLen)
	for _, p := range []*ib.Path{path("10.0.0.1", "10.0.0.2"), path("fd00::1", "fd00::2")} {
		n, c := putDest(name, ctrl, p, p.DGID.IsIPv4(), 4791, 3)
		c = udpsock.PutSegment(ctrl, c, 1040)
		f.Add(bytes.Clone(name[:n]), bytes.Clone(ctrl[:c]))
	}
	f.Fuzz(func(t *testing.T, name, ctrl []byte) {
		var a arrival
		a.parse(name, ctrl)
		if a.known && a.here && a.path.DGID.IsZero() && a.ipv4 {
			t.Errorf("%+v", a)
		}
	})
}

// TestTrainInPieces receives a train with more packets than one Recv returns.
func TestTrainInPieces(t *testing.T) {
	p := path("127.0.0.1", "127.0.0.2")
	l := &Link{port: 4791}
	l.initRecv()
	var data []byte
	for len(data) < 60000 {
		data = append(data, train(ib.Acknowledge, 0, 256, p, 4791)...)
	}
	m := &l.inMsg[0]
	copy(m.data[:], data)
	l.at = arrival{path: *p, segment: 20, ipv4: true, here: true, known: true}
	l.in[0].N = uint32(len(data))
	l.got, l.recv[0].fd, l.recv[1].fd = 1, -1, -1
	if !l.arrived(len(data), 0) {
		t.Fatal("refused")
	}
	m.path = l.at.path
	got := 0
	for {
		runs, more := l.Recv()
		got += len(runs)
		if !more {
			break
		}
	}
	if got != 3000 || l.c.RcvdPackets != 3000 {
		t.Errorf("received %d of 3000: %+v", got, l.c)
	}
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// recorded is a packet of a recording, BTH … ICRC taken apart.
type recorded struct {
	wire.Headers
	src, dst ib.GID
	payload  []byte
}

func (p *recorded) String() string {
	return fmt.Sprintf("%v to %#x psn %d ack %v syndrome %#x msn %d atomic %#x, %d bytes %.16x", p.Opcode,
		uint32(p.DestQPN), p.PSN, p.AckReq, p.Syndrome, p.MSN, p.Orig, len(p.payload), p.payload)
}

// recording returns the packets of two soft-RoCE hosts (test/vectors), in order.
func recording(t *testing.T) (list []*recorded) {
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
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		var ip wire.IPUDP
		if len(frame) < 34 || frame[12] != 8 || frame[13] != 0 {
			continue
		}
		tr, why := ip.Parse(frame[14:])
		if why != wire.OK {
			continue
		}
		p := &recorded{src: ip.Src, dst: ip.Dst}
		if p.payload, why = p.Parse(bytes.Clone(tr)); why != wire.OK {
			t.Fatal(why)
		}
		list = append(list, p)
	}
}

// replayer is a queue pair's responder with the memory that a recording speaks of.
type replayer struct {
	*side
	remote *mem.Region
	keys   map[ib.Key]bool
	// changed are the addresses that an atomic has been at.
	changed map[uint64]bool
	srq     *replayer // the queue that this one takes receives from, or nil
	got     [][]byte  // contents of the messages that were received
	want    []*recorded
	answer  []*recorded
	// of the message that is on its way: where it is written to, and what came of it
	va   uint64
	data []byte
	sent [][]byte // contents of the messages that were sent
}

func (r *replayer) RemoteRegion(rkey ib.Key, addr, n uint64, need ib.Access) *mem.Region {
	if !r.keys[rkey] || !r.remote.Allows(addr, n, need) {
		return nil
	}
	return r.remote
}

func (r *replayer) RecvDone(wr *RecvWR, c *Completion) {
	if c.Status != ib.Success {
		return
	}
	b := r.region.View(wr.SGE[0].Addr, uint64(c.ByteLen))
	if c.Flags&ib.WCGRH != 0 {
		b = b[40:]
	}
	r.got = append(r.got, bytes.Clone(b))
}

func (r *replayer) TakeRecv() *RecvWR {
	if r.srq != nil {
		return r.srq.side.TakeRecv()
	}
	return r.side.TakeRecv()
}

// placed fails unless memory holds what a request has written or changed there. What is sent is
// compared when all is done.
func (r *replayer) placed(t *testing.T, p *recorded) {
	t.Helper()
	i := p.Opcode.Info()
	switch {
	case i.Ext&ib.ExtAtomic != 0:
		var orig uint64
		for _, a := range r.answer {
			if a.PSN == p.PSN {
				orig = a.Orig
			}
		}
		if got := binary.NativeEndian.Uint64(r.remote.View(p.VA, 8)); got != orig+p.SwapAdd {
			t.Errorf("%v left %#x, want %#x", p, got, orig+p.SwapAdd)
		}
		return
	case !i.Send && !i.Write:
		return
	case i.First:
		r.va, r.data = p.VA, nil
	}
	r.data = append(r.data, p.payload...)
	if !i.Last {
		return
	}
	if i.Send {
		r.sent = append(r.sent, r.data)
	} else if !bytes.Equal(r.remote.View(r.va, uint64(len(r.data))), r.data) {
		t.Errorf("%v: the message of %d bytes is not where it was written to", p, len(r.data))
	}
}

// end is where requests of a recording went.
type end struct {
	host ib.GID
	qpn  ib.QPN
}

// answers takes what the responder sends, cut into packets as on a wire.
func (r *replayer) answers(t *testing.T) (list []*recorded) {
	t.Helper()
	var run pkt.Burst
	for r.q.Next(1, &run) {
		data := make([]byte, run.Data.Len)
		if len(data) > 0 && r.batch.Gather([][]byte{data}, &run.Data, 0) != mem.OK {
			t.Fatal("an answer cannot be read")
		}
		for k := range run.Count {
			n := min(len(data), int(max(run.MTU, 1)))
			if run.Count == 1 {
				n = len(data)
			}
			p := &recorded{Headers: run.Headers.Packet(k, run.Count, n), payload: data[:n]}
			data = data[n:]
			list = append(list, p)
		}
		r.q.Commit(1)
	}
	return list
}

// replayReceives is how many receives a queue has.
const replayReceives = 32

// shared are the ends with queue pairs that took receives from a queue shared with the others of their host.
var shared = map[end]bool{
	{recordedHost(1), 0x14}: true, {recordedHost(1), 0x15}: true,
	{recordedHost(2), 0x18}: true, {recordedHost(2), 0x19}: true,
}

// recordedHost is the GID of one of the recording's hosts.
func recordedHost(n byte) ib.GID {
	g := gid(n)
	g[13] = 99
	return g
}

// TestReplay: the requests that soft-RoCE sent to soft-RoCE, given to this responder
// one by one, draw the answers that were recorded, packet for packet, and leave in memory
// and in receives what was sent. Two differences
// are allowed, in which this responder keeps to the specification: it sets MigReq, for
// its queue pairs are in the state Migrated (IBA volume 1, 17.2.8), and where soft-RoCE
// counts no credits it may state how many it has (9.7.7.2.5).
func TestReplay(t *testing.T) {
	all := recording(t)
	requests := map[end][]*recorded{}
	var order [][]end // each replayed as one
	queues := map[ib.GID]int{}
	for _, p := range all {
		i := p.Opcode.Info()
		if p.DestQPN == ib.QPNGSI || p.Opcode.Service() == ib.ServiceRC && i.Response {
			continue
		}
		e := end{p.dst, p.DestQPN}
		if requests[e] == nil {
			if n, ok := queues[e.host]; shared[e] && ok {
				order[n] = append(order[n], e)
			} else {
				if shared[e] {
					queues[e.host] = len(order)
				}
				order = append(order, []end{e})
			}
		}
		requests[e] = append(requests[e], p)
	}
	for host, n := range queues {
		if len(order[n]) != 2 {
			t.Errorf("queue pairs of %v with a shared receive queue: %v", host.Addr(), order[n])
		}
	}
	kinds := map[ib.Opcode]int{}
	answered := 0
	for _, ends := range order {
		name := fmt.Sprintf("%v qp %#x", ends[0].host.Addr(), uint32(ends[0].qpn))
		if shared[ends[0]] {
			name = fmt.Sprintf("%v shared receive queue", ends[0].host.Addr())
		}
		t.Run(name, func(t *testing.T) {
			of := map[end]*replayer{}
			for _, e := range ends {
				of[e] = newResponder(t, e, requests[e], answersTo(all, e, requests[e]))
				if first := of[ends[0]]; e != ends[0] {
					of[e].srq, of[e].region = first, first.region
				}
			}
			for _, p := range all {
				r := of[end{p.dst, p.DestQPN}]
				if r == nil || !slices.Contains(requests[end{p.dst, p.DestQPN}], p) {
					continue
				}
				kinds[p.Opcode]++
				r.remember(p, r.want)
				run := pkt.Burst{Headers: p.Headers, Count: 1, MTU: uint32(len(p.payload)), IPv4: true,
					Path: &ib.Path{SGID: p.src, DGID: p.dst}, Data: mem.BytesPayload(p.payload)}
				r.q.Handle(1, &run, r.batch)
				r.batch.Flush()
				r.q.Commit(1)
				r.answer = append(r.answer, r.answers(t)...)
				r.placed(t, p)
			}
			messages := 0
			for _, e := range ends {
				of[e].compare(t)
				answered += len(of[e].answer)
				messages += len(of[e].sent)
			}
			if n := replayReceives - len(of[ends[0]].recvs); n != messages {
				t.Errorf("%d receives of the first queue were used for %d messages", n, messages)
			}
		})
	}
	if answered < 80 {
		t.Errorf("only %d answers were compared", answered)
	}
	for _, op := range []ib.Opcode{ib.SendFirst, ib.SendMiddle, ib.SendLast, ib.SendOnly, ib.WriteFirst,
		ib.WriteMiddle, ib.WriteLast, ib.WriteOnly, ib.ReadRequest, ib.FetchAdd,
		ib.ServiceUC | ib.SendFirst, ib.ServiceUC | ib.SendMiddle, ib.ServiceUC | ib.SendLast, ib.ServiceUD | ib.SendOnly} {
		if kinds[op] == 0 {
			t.Errorf("no %v: %v", op, slices.Sorted(maps.Keys(kinds)))
		}
	}
}

// answersTo returns what was sent back to the requests of an end, by sequence number: these
// begin anywhere in 24 bits.
func answersTo(all []*recorded, e end, reqs []*recorded) (want []*recorded) {
	first := reqs[0]
	if first.Opcode.Service() != ib.ServiceRC {
		return nil
	}
	lo, hi := first.PSN, reqs[len(reqs)-1].PSN.Add(64)
	for _, p := range all {
		if p.src == e.host && p.dst == first.src && p.Opcode.Service() == ib.ServiceRC && p.Opcode.Info().Response &&
			p.PSN.Diff(lo) >= 0 && hi.Diff(p.PSN) > 0 {
			want = append(want, p)
		}
	}
	return want
}

// compare fails unless all that was sent has been received, and all that was answered is answered.
func (r *replayer) compare(t *testing.T) {
	t.Helper()
	if len(r.got) != len(r.sent) {
		t.Errorf("%d messages were received, want %d", len(r.got), len(r.sent))
	}
	for i := range min(len(r.got), len(r.sent)) {
		if !bytes.Equal(r.got[i], r.sent[i]) {
			t.Errorf("message %d:\ngot  %x\nwant %x", i, r.got[i], r.sent[i])
		}
	}
	got, want := r.answer, r.want
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			t.Errorf("one too many: %v", got[i])
		case i >= len(got):
			t.Errorf("missing: %v", want[i])
		default:
			g, w := *got[i], *want[i]
			if g.MigReq && !w.MigReq {
				g.MigReq = false
			}
			if g.Opcode.Info().Ext&ib.ExtAETH != 0 && g.Syndrome>>5 == 0 {
				g.Syndrome, w.Syndrome = 0, 0 // an acknowledgement, whatever the credits
			}
			if g.Headers != w.Headers || !bytes.Equal(g.payload, w.payload) {
				t.Errorf("answer %d:\ngot  %v\nwant %v", i, &g, &w)
			}
		}
	}
}

func newResponder(t *testing.T, e end, reqs, want []*recorded) *replayer {
	t.Helper()
	typ := map[ib.Opcode]ib.QPType{ib.ServiceRC: ib.RC, ib.ServiceUC: ib.UC,
		ib.ServiceUD: ib.UD}[reqs[0].Opcode.Service()]
	cfg := testConfig(typ, e.qpn)
	cfg.Cap.MaxRecvWR, cfg.MaxRdAtomic, cfg.SRQ = 64, 16, shared[e]
	r := &replayer{side: newSide("R", cfg, 1<<20, t.Logf), keys: map[ib.Key]bool{}, changed: map[uint64]bool{},
		want: want}
	r.q = New(&cfg, r, r)
	lo, hi := uint64(1<<63), uint64(0)
	for _, p := range reqs {
		if ext := p.Opcode.Info().Ext; ext&(ib.ExtRETH|ib.ExtAtomic) != 0 {
			n := uint64(p.DMALen)
			if ext&ib.ExtAtomic != 0 {
				n = 8
			}
			lo, hi = min(lo, p.VA), max(hi, p.VA+n)
			r.keys[p.RKey] = true
		}
	}
	if hi > 0 {
		if hi-lo > 1<<20 {
			t.Fatalf("memory of %d bytes", hi-lo)
		}
		r.remote = &mem.Region{Space: mem.NewSlice(lo, make([]byte, hi-lo)), Start: lo, Base: lo, Len: hi - lo,
			Access: ib.LocalWrite | ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic}
	}
	a := Attr{State: ib.Init, Port: 1, Access: ib.RemoteRead | ib.RemoteWrite | ib.RemoteAtomic, QKey: reqs[0].QKey,
		Path: &ib.Path{SGID: e.host, DGID: reqs[0].src, MaxRun: 4096,
			HopLimit: 64}, PathMTU: ib.MTU1024, RQPSN: reqs[0].PSN, MaxDestRdAtomic: 16, MinRNRTimer: 12}
	if len(want) > 0 {
		a.DestQPN = want[0].DestQPN
	}
	m1 := ib.AttrPKeyIndex | ib.AttrPort | ib.AttrAccessFlags
	m2 := ib.AttrAV | ib.AttrPathMTU | ib.AttrDestQPN | ib.AttrRQPSN
	switch typ {
	case ib.RC:
		m2 |= ib.AttrMaxDestRdAtomic | ib.AttrMinRNRTimer
	case ib.UD:
		m1, m2 = ib.AttrPKeyIndex|ib.AttrPort|ib.AttrQKey, 0
	}
	if err := r.q.Modify(1, &a, m1|ib.AttrState); err != nil {
		t.Fatal(err)
	}
	a.State = ib.RTR
	if err := r.q.Modify(1, &a, m2|ib.AttrState); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(replayReceives) {
		r.recv(i, i*16<<10, 16<<10)
	}
	return r
}

// remember makes memory what it was when a READ was answered, and what the first
// atomic found at an address: the recording's programs had written there. What further
// atomics find is this responder's own doing.
func (r *replayer) remember(p *recorded, want []*recorded) {
	i := slices.IndexFunc(want, func(w *recorded) bool { return w.PSN == p.PSN })
	if i < 0 {
		return
	}
	switch ext := p.Opcode.Info().Ext; {
	case p.Opcode == ib.ReadRequest:
		var data []byte
		for _, w := range want[i:] {
			if data = append(data, w.payload...); w.Opcode.Info().Last {
				break
			}
		}
		copy(r.remote.View(p.VA, uint64(len(data))), data)
	case ext&ib.ExtAtomic != 0 && !r.changed[p.VA]:
		r.changed[p.VA] = true
		// Memory holds numbers as this machine does.
		binary.NativeEndian.PutUint64(r.remote.View(p.VA, 8), want[i].Orig)
	}
}

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"bytes"
	"fmt"
	"testing"

	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/verbs/transport"
)

// gatherLink is the link between two nodes of a test: it gathers the payload when a burst is sent, as every link
// does, and delivers when the other node has its turn.
type gatherLink struct {
	t      testing.TB
	bursts []pkt.Burst
}

func (w *gatherLink) Send(_ mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	c, path, data := *r, *r.Path, make([]byte, r.Data.Len)
	if res := b.Gather([][]byte{data}, &r.Data, 0); res != mem.OK {
		return res
	}
	path.Function = 0
	c.Path, c.Data = &path, mem.BytesPayload(data)
	w.bursts = append(w.bursts, c)
	return mem.OK
}
func (w *gatherLink) Blocked() bool   { return false }
func (w *gatherLink) Flush(mono.Time) {}

// references are the pipes between the lanes of a node: as those of package node do, they pass the payload of a
// connected queue pair by reference, which the receiving lane copies in its own turn.
type references struct{ bursts [2][]pkt.Burst }

func (p *references) Forward(to *Lane, r *pkt.Burst, _ *QP) bool {
	c := *r
	if r.Data.Segs == nil {
		c.Data = mem.BytesPayload(bytes.Clone(r.Data.Bytes))
	}
	p.bursts[to.ID] = append(p.bursts[to.ID], c)
	return true
}
func (p *references) Room(*Lane) bool { return true }
func (p *references) Quiesce()        {}

// readOrderPair is two connected queue pairs with memory of their own, and turn lets both sides run until idle.
type readOrderPair struct {
	requester, responder *endpoint
	turn                 func()
}

// calledMemory registers the client's memory again as memory that only calls reach.
func (c *client) calledMemory() {
	var err error
	size := uint64(len(c.mem))
	c.mr, err = c.s.RegisterMR(c.pd, &mem.Region{Space: &remote{Slice: mem.NewSlice(base, c.mem)}, Start: base,
		Base: base, Len: size,
		Access: ib.LocalWrite | ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic})
	c.must(err)
}

func connectTo(e, peer *endpoint, dgid ib.GID) {
	e.t.Helper()
	const access = ib.RemoteWrite | ib.RemoteRead | ib.RemoteAtomic
	av := &AHAttr{DGID: dgid, SGIDIndex: 1, HopLimit: 64, Global: true}
	e.must(e.q.Modify(1, &transport.Attr{State: ib.Init, Port: 1, Access: access}, nil,
		ib.AttrState|ib.AttrPKeyIndex|ib.AttrPort|ib.AttrAccessFlags))
	e.must(e.q.Modify(1, &transport.Attr{State: ib.RTR, PathMTU: ib.MTU1024, DestQPN: peer.q.Num(), RQPSN: 7,
		MaxDestRdAtomic: 4, MinRNRTimer: 1}, av,
		ib.AttrState|ib.AttrAV|ib.AttrPathMTU|ib.AttrDestQPN|ib.AttrRQPSN|ib.AttrMaxDestRdAtomic|ib.AttrMinRNRTimer))
	e.must(e.q.Modify(1, &transport.Attr{State: ib.RTS, SQPSN: 7, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
		MaxRdAtomic: 4}, nil,
		ib.AttrState|ib.AttrSQPSN|ib.AttrTimeout|ib.AttrRetryCnt|ib.AttrRNRRetry|ib.AttrMaxQPRdAtomic))
}

const readOrderMemory = 4 << 20

// readOrderPairs are the ways from a requester to a responder.
var readOrderPairs = map[string]func(t *testing.T) readOrderPair{
	"one lane": func(t *testing.T) readOrderPair {
		l, a, b := pair(t, readOrderMemory)
		return readOrderPair{a, b, func() { drive(t, l) }}
	},
	"two lanes": func(t *testing.T) readOrderPair {
		first := newNode(t)
		pipes := &references{}
		lanes := []*Lane{NewLane(first.all, 0, noLink{t}, pipes), NewLane(first.all, 1, noLink{t}, pipes)}
		a, b := newClient(t, lanes[0], readOrderMemory).qp(QPConfig{Type: ib.RC}), newClient(t, lanes[1],
			readOrderMemory).qp(QPConfig{Type: ib.RC})
		a.connect(b)
		b.connect(a)
		return readOrderPair{a, b, func() {
			for idle := 0; idle < 2; {
				idle++
				for i, l := range lanes {
					in := pipes.bursts[i]
					pipes.bursts[i] = nil
					for k := range in {
						l.Receive(2, &in[k])
					}
					if l.Run(2) || len(in) > 0 {
						idle = 0
					}
				}
			}
		}}
	},
	"two nodes": func(t *testing.T) readOrderPair {
		var links [2]*gatherLink
		var lanes [2]*Lane
		var ends [2]*endpoint
		for i := range lanes {
			links[i] = &gatherLink{t: t}
			a := NewAdapter(&Port{Link: ib.LinkEthernet, State: ib.PortActive, MTU: ib.MTU1024, MaxMTU: ib.MTU4096,
				PKeys: []ib.PKey{ib.DefaultPKey},
				GIDs:  []GIDEntry{{}, testGIDs[1+i]}, MaxRun: 60 << 10, MaxLocalRun: 256 << 10}, DefaultLimits)
			lanes[i] = NewLane(NewFunctions(a), 0, links[i], nil)
			ends[i] = newClient(t, lanes[i], readOrderMemory).qp(QPConfig{Type: ib.RC})
		}
		connectTo(ends[0], ends[1], testGIDs[2].GID)
		connectTo(ends[1], ends[0], testGIDs[1].GID)
		return readOrderPair{ends[0], ends[1], func() {
			for idle := 0; idle < 2; {
				idle++
				for i, l := range lanes {
					in := links[1-i].bursts
					links[1-i].bursts = nil
					for k := range in {
						l.Receive(2, &in[k])
					}
					if l.Run(2) || len(in) > 0 {
						idle = 0
					}
				}
			}
		}}
	},
}

// TestReadBeforeLaterRequest: a READ returns what memory held before the requests that follow it on its queue pair,
// without a fence, whatever the way to the responder and however memory is reached.
func TestReadBeforeLaterRequest(t *testing.T) {
	later := map[string]transport.SendWR{
		"WRITE":        {Op: ib.WRWrite},
		"WRITE_IMM":    {Op: ib.WRWriteImm},
		"SEND":         {Op: ib.WRSend},
		"FETCH_ADD":    {Op: ib.WRFetchAdd, SwapAdd: 1},
		"CMP_SWAP":     {Op: ib.WRCmpSwap, Compare: 0x0101010101010101, SwapAdd: 2},
		"ATOMIC_WRITE": {Op: ib.WRAtomicWrite},
	}
	const from, result = 2 << 20, 3 << 20 // in the requester's memory: what is written, and where atomics answer
	for way, connect := range readOrderPairs {
		for name, wr := range later {
			for called := range 4 { // the sides with memory that only calls reach: bit 0 the requester's, bit 1 the responder's
				for _, n := range []int{8, 4096, 65536, 300_000, 1_500_000} {
					t.Run(fmt.Sprintf("%s/%s/%d called/%d bytes", way, name, called, n), func(t *testing.T) {
						p := connect(t)
						a, b := p.requester, p.responder
						if called&1 != 0 {
							a.calledMemory()
						}
						if called&2 != 0 {
							b.calledMemory()
						}
						copy(b.mem, bytes.Repeat([]byte{1}, n))
						copy(a.mem[from:], bytes.Repeat([]byte{2}, n))
						b.postRecv(1, 0, n)
						size := n
						wr := wr
						if wr.RemoteVA, wr.RKey, wr.SGE = base, b.mr.RKey, a.sge(from, n); wr.Op.NeedsResponse() {
							size = 8
							if wr.SGE = a.sge(result, 8); wr.Op == ib.WRAtomicWrite {
								wr.SGE = a.sge(from, 8)
							}
						}
						wr.ID, wr.Flags = 2, ib.Signaled
						a.post(transport.SendWR{ID: 1, Op: ib.WRRead, Flags: ib.Signaled, RemoteVA: base,
							RKey: b.mr.RKey, SGE: a.sge(0, n)})
						a.post(wr)
						p.turn()
						a.expect(ib.Success, ib.Success)
						if c := bytes.Count(a.mem[:n], []byte{1}); c != n {
							t.Errorf("READ returns %d of %d bytes as the later request left them", n-c, n)
						}
						if c := bytes.Count(b.mem[:size], []byte{1}); c == size {
							t.Errorf("the later request changed nothing")
						}
					})
				}
			}
		}
	}
}

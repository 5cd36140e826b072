// SPDX-License-Identifier: Apache-2.0

package pkt

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
)

// Joiner joins the packets that a link receives to bursts: consecutive packets of one message become
// one burst, which ends at a packet with AckReq. It is the receiver's inverse of Headers.Packet. It
// allocates nothing after NewJoiner and belongs to one lane.
type Joiner struct {
	bursts []Burst
	segs   []mem.Seg
	n      int
}

// NewJoiner returns a Joiner with room for n bursts.
func NewJoiner(n int) *Joiner {
	return &Joiner{bursts: make([]Burst, n), segs: make([]mem.Seg, 0, n)}
}

// Reset removes all bursts and reuses their memory.
func (j *Joiner) Reset() { j.n, j.segs = 0, j.segs[:0] }

// Bursts returns the bursts since Reset; they are valid until the next Reset.
func (j *Joiner) Bursts() []Burst { return j.bursts[:j.n] }

// Full reports that there may be no room for another packet.
func (j *Joiner) Full() bool { return j.n == len(j.bursts) || len(j.segs)+2 > cap(j.segs) }

// Slot returns the burst to fill in with the next packet: its headers, with Count 1, MTU the length of its payload,
// Path and Data with Bytes.
//
// Preconditions: not Full.
func (j *Joiner) Slot() *Burst { return &j.bursts[j.n] }

// Add appends the packet in Slot to the newest burst, or makes a new burst of it, which it reports.
func (j *Joiner) Add() (fresh bool) {
	if j.n > 0 && j.join(&j.bursts[j.n-1], &j.bursts[j.n]) {
		return false
	}
	j.n++
	return true
}

// join appends the packet n to the burst r if it continues it: same flow and queue pair, next sequence number, next in
// the message, nothing in the burst so far that belongs to a last packet, and full packets so far.
func (j *Joiner) join(r, n *Burst) bool {
	op, ok := r.Opcode.Join(n.Opcode)
	if !ok || n.PSN != r.PSN.Add(r.Count) || n.DestQPN != r.DestQPN || n.PKey != r.PKey ||
		r.AckReq || r.SE || n.MigReq != r.MigReq || n.FECN != r.FECN || n.BECN != r.BECN ||
		!wholeMTU(r.MTU) || n.MTU == 0 || n.MTU > r.MTU || n.MTU < r.MTU && !n.Opcode.Info().Last ||
		r.Path != n.Path && *r.Path != *n.Path {
		return false
	}
	if r.Data.Segs == nil {
		j.addSeg(r.Data.Bytes)
		r.Data.Bytes = nil
	}
	j.addSeg(n.Data.Bytes)
	r.Count++
	// Invariant: a burst's segments are the newest ones, as only the newest burst
	// grows.
	r.Data.Segs = j.segs[len(j.segs)-int(r.Count):]
	r.Data.Len += n.Data.Len
	r.Opcode, r.SE, r.AckReq, r.PadCnt = op, n.SE, n.AckReq, 0
	switch ext := n.Opcode.Info().Ext; {
	case ext&ib.ExtImm != 0:
		r.Imm = n.Imm
	case ext&ib.ExtIETH != 0:
		r.InvKey = n.InvKey
	case ext&ib.ExtAETH != 0:
		r.Syndrome, r.MSN = n.Syndrome, n.MSN // the newest credits
	}
	return true
}

func (j *Joiner) addSeg(b []byte) { j.segs = append(j.segs, mem.Seg{Len: uint64(len(b)), Bytes: b}) }

// wholeMTU reports whether n is a path MTU in bytes.
func wholeMTU(n uint32) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

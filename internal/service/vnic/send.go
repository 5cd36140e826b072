// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// plan is what a Sender goes by: immutable.
type plan struct {
	oper     bool
	flood    bool
	maxFrame int
	vesw     uint16
	slid     uint32
	pkey     ib.PKey
	place    uint64 // of a MAC of this VESW, below placeBits
	mcast    uint32
	flow     [flowSlots]uint32 // LIDs of default ports; 0: none
	// Service channels by unicast and group, then by priority; the last is of
	// frames without a tag.
	sc   [2][9]uint8
	rc   [ether.NumKinds]uint8
	macs macTable
}

// flowSlots is how many slots of default ports there are.
const flowSlots = 32

// flowSlot returns which of them a flow uses.
func flowSlot(entropy uint8) uint8 { return (entropy&15 + entropy>>4) & (flowSlots - 1) }

// entropyOf makes 8 bits of a hash.
func entropyOf(hash uint32) uint8 {
	hash ^= hash >> 16
	return uint8(hash ^ hash>>8)
}

func makePlan(i *mad.VESWPortInfo, macs macTable, oper bool) *plan {
	v, p := &i.VESW, &i.Port
	pl := &plan{oper: oper, flood: v.Flood(), maxFrame: int(v.EthMTU) + frameOverhead, vesw: v.VESWID,
		slid: p.EncapSLID, pkey: v.PKey,
		place: macKey(mad.VESWMAC(v.FabricID, v.VESWID, 0)), mcast: v.McastDLID, macs: macs}
	var enabled []uint32
	for n, lid := range v.UcastDLIDs {
		if v.DefaultPortMask>>n&1 != 0 {
			enabled = append(enabled, lid)
		}
	}
	if len(enabled) > 0 {
		for n := range pl.flow {
			pl.flow[n] = enabled[n%len(enabled)]
		}
	}
	copy(pl.sc[0][:], p.PCPToSCUc[:])
	copy(pl.sc[1][:], p.PCPToSCMc[:])
	pl.sc[0][8], pl.sc[1][8] = p.NonVLANSCUc, p.NonVLANSCMc
	for n := range pl.rc {
		pl.rc[n] = uint8(v.RC>>(4*n)) & 7
	}
	return pl
}

// dlid returns the DLID of a frame to a MAC; 0: none.
func (pl *plan) dlid(key uint64, entropy uint8) uint32 {
	lid := pl.macs.dlid(key)
	switch {
	case lid != 0:
	case key&groupBit != 0:
		lid = pl.mcast
	case key&localBit != 0 && pl.flood && key&(1<<placeBits-1) != pl.place:
		lid = pl.mcast
	case key&localBit != 0:
		lid = uint32(key >> placeBits)
	default:
		if lid = pl.flow[flowSlot(entropy)]; lid == 0 && pl.flood {
			lid = pl.mcast
		}
	}
	return lid
}

// Sender sends the frames of a port, on one lane.
type Sender struct {
	p *Port
	c Counters
}

// Sender returns one for a lane of its own.
func (p *Port) Sender() *Sender { return &Sender{p: p} }

// Counters returns what was counted for frames that the port sent.
func (s *Sender) Counters() Counters { return s.c }

// MTU returns what the VESW lets follow an Ethernet header.
func (s *Sender) MTU() int { return s.p.plan.Load().maxFrame - frameOverhead }

// Decide makes all decisions for a frame, once, however many it is cut into. false: it is not to be
// sent, which was counted. A frame that is sent must be counted with Sent.
//
// Preconditions: in is what ether.Classify found in frame.
func (s *Sender) Decide(frame []byte, in *ether.Info, c Cut, d *Decision) bool {
	pl := s.p.plan.Load()
	n := uint64(c.Frames)
	switch {
	case !pl.oper:
		s.c.TxDropState += n
		return false
	case len(frame) < ether.HeaderLen:
		s.c.TxRunt += n
		return false
	case c.Len > pl.maxFrame || c.Last > pl.maxFrame:
		s.c.TxOversize += n
		return false
	}
	key := keyOf(frame)
	entropy := entropyOf(in.Hash(frame, 0))
	dlid := pl.dlid(key, entropy)
	if dlid == 0 {
		s.c.TxDLIDZero += n
		return false
	}
	d.VESW, d.group, d.tagged = pl.vesw, key&groupBit != 0, in.Tags != 0
	class, priority := 0, uint8(8)
	if d.group || isGroup(dlid) {
		class = 1
	}
	if d.tagged {
		priority = in.PCP()
	}
	d.Header = wire.Header16{SLID: pl.slid, DLID: dlid, SC: pl.sc[class][priority], RC: pl.rc[in.Kind],
		L4:   wire.L4Ethernet,
		PKey: pl.pkey, Entropy: uint16(entropy)}
	d.ready()
	return true
}

// Sent counts frames of a Decision that are on their way.
func (s *Sender) Sent(d *Decision, c Cut) { s.c.Tx.count(c, d.group, d.tagged) }

// NoRoom counts frames with packets that found no room.
func (s *Sender) NoRoom(frames int) { s.c.TxFIFOErrors += uint64(frames) }

// Refused counts frames with packets that the fabric's switch refused.
func (s *Sender) Refused(frames int) { s.c.TxCarrierErrors += uint64(frames) }

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"weft/internal/proto/ib"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// portSends reports whether the burst of a session's queue pair may leave by its InfiniBand port, and counts it there.
// The SLID must be the port's own: it may have changed since the path was made.
func (l *Lane) portSends(s *Session, r *pkt.Burst) bool {
	c := l.counted.counters(s.a.num)
	switch {
	case !s.up, !s.port.LID.Owns(s.port.LMC, r.Path.SLID), !r.Path.Local && l.fabric == nil &&
		!r.Path.DLID.IsMulticast():
		c.XmitDiscards += uint64(r.Count)
		l.Stats.DropPort++
		return false
	case r.PKey&^fullMember == 0:
		c.XmitConstraintErrors += uint64(r.Count)
		return false
	}
	n := uint64(r.Count)
	c.XmitData += words(r)
	c.XmitPkts += n
	if r.Path.DLID.IsMulticast() {
		c.MulticastXmitPkts += n
	} else {
		c.UnicastXmitPkts += n
	}
	return true
}

// fullMember is the membership bit of a P_Key, beside which 0 is no key.
const fullMember ib.PKey = 0x8000

// portReceives reports whether InfiniBand port p of function a accepts the burst, and counts it there; up reports that
// the port is active.
func (l *Lane) portReceives(a *Adapter, p *Port, up bool, r *pkt.Burst) bool {
	c := l.counted.counters(a.num)
	n := uint64(r.Count)
	if !up || !p.accepts(r.Path) {
		c.RcvErrors += n
		l.Stats.DropPort++
		return false
	}
	c.RcvData += words(r)
	c.RcvPkts += n
	if r.Path.DLID.IsMulticast() {
		c.MulticastRcvPkts += n
	} else {
		c.UnicastRcvPkts += n
	}
	return true
}

// counters returns the counters of function n, which may have been added after the last refresh.
func (t *tally) counters(n uint16) *PortCounters {
	t.ports = grow(t.ports, int(n))
	return &t.ports[n]
}

// PortCounters returns what this lane has counted for the port of function n.
// It is called on the lane.
func (l *Lane) PortCounters(n uint16) (c PortCounters) {
	if int(n) < len(l.counted.ports) {
		c = l.counted.ports[n]
	}
	return c
}

// words returns how many words of four bytes the packets of a burst have on a native link, from the LRH through
// the ICRC.
func words(r *pkt.Burst) uint64 {
	fixed := uint64(wire.LRHLen + wire.ICRCLen)
	if r.Path.Global {
		fixed += wire.GRHLen
	}
	n := uint64(r.Count)*fixed + (uint64(r.Data.Len)+3)&^3
	head := func(k uint32) uint64 { return uint64(r.Opcode.Split(k, r.Count).Info().HdrLen) }
	n += head(0)
	if r.Count > 1 {
		n += head(r.Count - 1)
	}
	if r.Count > 2 {
		n += uint64(r.Count-2) * head(1)
	}
	return n / 4
}

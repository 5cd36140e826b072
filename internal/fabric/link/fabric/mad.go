// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/wire"
)

// managementVL carries subnet management packets only.
const managementVL = 15

// transportLen is the length of BTH and DETH of a MAD.
const transportLen = wire.BTHLen + 8

// MADLen returns the length of the packet of a datagram, LRH … VCRC.
func MADLen(d *mad.Datagram) int {
	n := wire.LRHLen + transportLen + len(d.MAD()) + wire.ICRCLen + wire.VCRCLen
	if d.Global {
		n += wire.GRHLen
	}
	return n
}

// PutMAD writes the packet of a datagram, LRH … VCRC, to the first MADLen
// bytes of b (IBA volume 1, 13.5.1). Queue pair 0 uses VL 15, others VL 0.
func PutMAD(b []byte, d *mad.Datagram, psn ib.PSN) {
	n := MADLen(d)
	b = b[:n]
	h := native{slid: d.SLID | ib.LID(d.PathBits), dlid: d.DLID, sl: d.SL, global: d.Global}
	if d.DstQPN == ib.QPNSMI {
		h.vl = managementVL
	}
	if d.Global {
		h.grh = wire.GRH{IPVer: 6, TClass: d.TClass, FlowLabel: d.FlowLabel, NxtHdr: wire.NxtHdrIBA,
			HopLimit: d.HopLimit, SGID: d.SGID, DGID: d.DGID}
	}
	off := h.put(b, n)
	t := wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: d.PKey, DestQPN: d.DstQPN, PSN: psn, QKey: d.QKey,
		SrcQPN: d.SrcQPN}
	off += t.Put(b[off:])
	copy(b[off:], d.MAD())
	seal(b)
}

// ParseMAD reads a packet that ParseIB accepted, t being its BTH … ICRC, as a
// datagram; false where it is none: not a whole MAD to queue pair 0 or 1. Queue pair 0
// takes those of 256 octets only, queue pair 1 also those of Omni-Path (mad.Datagram.Long).
func ParseMAD(l *wire.LRH, g *wire.GRH, t []byte, d *mad.Datagram) bool {
	var h wire.Headers
	payload, why := h.Parse(t)
	if why != wire.OK || h.Opcode != ib.ServiceUD|ib.SendOnly || h.DestQPN > ib.QPNGSI || !mad.MADLength(payload) ||
		h.DestQPN == ib.QPNSMI && len(payload) != mad.Len {
		return false
	}
	*d = mad.Datagram{SLID: l.SLID, DLID: l.DLID, SL: l.SL, SrcQPN: h.SrcQPN, DstQPN: h.DestQPN, QKey: h.QKey,
		PKey: h.PKey}
	if l.LNH == wire.LNHGlobal {
		d.Global, d.HopLimit, d.TClass, d.FlowLabel, d.SGID, d.DGID = true, g.HopLimit, g.TClass, g.FlowLabel, g.SGID, g.DGID
	}
	return d.SetMAD(payload)
}

// native are the link and network headers of a packet.
type native struct {
	slid, dlid ib.LID
	vl, sl     uint8
	global     bool
	grh        wire.GRH // PayLen is put's to compute
}

// put writes LRH and GRH of a packet of n bytes, LRH … VCRC, and returns their
// length.
func (h *native) put(b []byte, n int) int {
	l := wire.LRH{VL: h.vl, SL: h.sl, LNH: wire.LNHLocal, DLID: h.dlid, SLID: h.slid,
		PktLen: uint16((n - wire.VCRCLen) / 4)}
	off := wire.LRHLen
	if h.global {
		l.LNH = wire.LNHGlobal
		h.grh.PayLen = uint16(n - wire.VCRCLen - wire.LRHLen - wire.GRHLen)
		h.grh.Put(b[off:])
		off += wire.GRHLen
	}
	l.Put(b)
	return off
}

// seal writes both CRCs at the end of a packet.
func seal(b []byte) {
	n := len(b) - wire.VCRCLen
	wire.PutICRC(b[n-wire.ICRCLen:], wire.SumIB(b[:n-wire.ICRCLen]))
	binary.BigEndian.PutUint16(b[n:], wire.VCRC(b[:n]))
}

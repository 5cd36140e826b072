// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"bytes"

	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Mirror copies to captures a datagram that the port sends, or receives; none of an adapter with programs that have an
// Ethernet port, since it is no packet of theirs.
func (c *Port) Mirror(d *mad.Datagram, sent bool) {
	s := c.s
	if !s.cfg.Mirror.Active() || c.underlay != nil || d.DLID == 0 { // a program may send to LID 0, which leads nowhere
		return
	}
	r := datagramBurst(d, c.Adapter.Number(), s.mirrorPSN)
	s.mirrorPSN = s.mirrorPSN.Add(1)
	s.cfg.Mirror.Mirror(r, sent, nil)
}

// datagramBurst is the packet of a datagram of a function's InfiniBand port, as the links make it (fabric.PutMAD), with
// a copy of the MAD.
func datagramBurst(d *mad.Datagram, f uint16, psn ib.PSN) *pkt.Burst {
	data := bytes.Clone(d.MAD())
	p := &ib.Path{SLID: d.SLID | ib.LID(d.PathBits), DLID: d.DLID, SL: d.SL, Function: f}
	if d.Global {
		p.Global, p.SGID, p.DGID, p.HopLimit, p.TClass, p.FlowLabel = true, d.SGID, d.DGID, d.HopLimit, d.TClass, d.FlowLabel
	}
	return &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: d.PKey, DestQPN: d.DstQPN,
		PSN: psn, QKey: d.QKey, SrcQPN: d.SrcQPN}, Count: 1,
		MTU: uint32(len(data)), Path: p, Data: mem.BytesPayload(data)}
}

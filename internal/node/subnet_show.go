// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"

	"weft/internal/mgmt/agent"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// send has the agent of c send what somebody at its port says. What that says to itself becomes no packet, and is shown
// to captures as sent, the answer of the agent, if there is one, too. Directed routes that do not leave the port are
// not.
func (s *subnet) send(now mono.Time, c *caPort, d *mad.Datagram) {
	method, own := d.Data[3], c.agent.IsMine(d.DLID)
	if own {
		s.show(c, d, true)
	}
	v := c.agent.Originate(now, d)
	if own && v == agent.Deliver && d.Data[3] != method {
		s.show(c, d, true)
	}
	s.verdict(now, c, v, d)
}

// show shows captures a datagram that the port of c sends, or receives. Of an adapter whose programs have an Ethernet
// port nothing is shown: it is no packet of theirs.
func (s *subnet) show(c *caPort, d *mad.Datagram, sent bool) {
	if !s.n.captures.any() || c.below != nil || d.DLID == 0 { // a program may say so; that goes nowhere
		return
	}
	r := datagramRun(d, c.adapter.Number(), s.shown)
	s.shown = s.shown.Add(1)
	s.n.show(r, sent, nil)
}

// datagramRun is the packet of a datagram of a function's InfiniBand port, as the links make it (fabric.PutMAD), with a
// copy of the MAD.
func datagramRun(d *mad.Datagram, f uint16, psn ib.PSN) *pkt.Burst {
	data := bytes.Clone(d.MAD())
	p := &ib.Path{SLID: d.SLID | ib.LID(d.PathBits), DLID: d.DLID, SL: d.SL, Function: f}
	if d.Global {
		p.Global, p.SGID, p.DGID, p.HopLimit, p.TClass, p.FlowLabel = true, d.SGID, d.DGID, d.HopLimit, d.TClass, d.FlowLabel
	}
	return &pkt.Burst{Headers: wire.Headers{Opcode: ib.ServiceUD | ib.SendOnly, PKey: d.PKey, DestQPN: d.DstQPN, PSN: psn, QKey: d.QKey, SrcQPN: d.SrcQPN}, Count: 1,
		MTU: uint32(len(data)), Path: p, Data: mem.BytesPayload(data)}
}

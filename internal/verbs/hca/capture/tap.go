// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"encoding/binary"
	"time"

	"weft/internal/proto/ib"
	"weft/internal/proto/pcapng"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Tap is a lane's part of captures. It belongs to the lane.
type Tap struct {
	lane     int
	captures []*Capture
	frame    []byte
	block    []byte
	record   []byte
}

// NewTap returns the tap of a lane for some captures.
func NewTap(lane int, captures []*Capture) *Tap {
	return &Tap{lane: lane, captures: captures, frame: make([]byte, maxFrame), record: make([]byte, 0, maxFrame),
		block: make([]byte, 0, maxFrame)}
}

// maxFrame is more than any packet and what stands around it.
const maxFrame = 8 << 10

// Selects implements hca.Tap.
func (t *Tap) Selects(f uint16, qpn ib.QPN) bool {
	for _, c := range t.captures {
		if c.selects(f, qpn) {
			return true
		}
	}
	return false
}

// Sent implements hca.Tap.
func (t *Tap) Sent(f uint16, src ib.QPN, r *pkt.Burst) {
	for _, c := range t.captures {
		switch {
		case c.selects(f, src):
			t.add(c, c.iface(f, r.Path.Native()), src, r)
		case r.Path.Local && c.selects(r.Path.Function, r.DestQPN):
			t.add(c, c.iface(r.Path.Function, r.Path.Native()), src, r)
		}
	}
}

// Received implements hca.Tap.
func (t *Tap) Received(f uint16, r *pkt.Burst) {
	for _, c := range t.captures {
		if c.selects(f, r.DestQPN) {
			t.add(c, c.iface(f, r.Path.Native()), r.SrcQPN, r)
		}
	}
}

// add puts the packets of a burst into a capture's ring. The time is that of the
// burst: its packets leave together.
func (t *Tap) add(c *Capture, iface int, src ib.QPN, r *pkt.Burst) {
	at, ring := c.cfg.Clock(), c.rings[t.lane]
	data := r.Data.Bytes
	for k := range r.Count {
		n := len(data)
		if k+1 < r.Count {
			n = min(n, int(r.MTU))
		}
		h := r.Headers.Packet(k, r.Count, n)
		body := data[:n]
		data = data[n:]
		var record []byte
		whole := 0
		switch c.ifaces[iface].Type {
		case pcapng.LinkIPoIB:
			if h.Opcode.Service() != ib.ServiceUD {
				continue
			}
			t.record = datagram(t.record[:0], r.Path, src, &h, body)
			record, whole = t.record, len(t.record)
			record = record[:min(whole, c.cfg.SnapLen)]
		case pcapng.LinkERF:
			p := t.frame[:native(t.frame, r.Path, &h, body)]
			t.record = pcapng.AppendCut(t.record[:0], at, p[:min(len(p), c.cfg.SnapLen)], len(p))
			record, whole = t.record, len(t.record)+max(0, len(p)-c.cfg.SnapLen)
		default:
			record = t.frame[:ethernet(t.frame, r, c.cfg.Port, &h, body)]
			whole = len(record)
			record = record[:min(whole, c.cfg.SnapLen)]
		}
		t.put(ring, iface, at, record, whole)
	}
}

func (t *Tap) put(r *ring, iface int, at time.Time, record []byte, whole int) {
	count := &r.count[iface]
	count.seen.Add(1)
	if !r.room(pcapng.PacketLen(len(record))) {
		count.dropped.Add(1)
		return
	}
	t.block = pcapng.AppendPacket(t.block[:0], iface, at, record, whole)
	r.put(t.block)
}

const (
	etherLen  = 14
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	hopLimit  = 64 // where a path leaves it to the system
)

// ethernet writes a RoCEv2 frame and returns its length.
func ethernet(b []byte, r *pkt.Burst, port uint16, h *wire.Headers, body []byte) int {
	p := r.Path
	ip := wire.IPUDP{Src: p.SGID, Dst: p.DGID, IPv4: r.IPv4 || p.SGID.IsIPv4() && p.DGID.IsIPv4(), DF: true,
		TClass: p.TClass, HopLimit: p.HopLimit,
		FlowLabel: p.FlowLabel, SrcPort: p.SrcPort, DstPort: port}
	if ip.HopLimit == 0 {
		ip.HopLimit = hopLimit
	}
	mac(b, p.DGID)
	mac(b[6:], p.SGID)
	kind := uint16(etherIPv6)
	if ip.IPv4 {
		kind = etherIPv4
	}
	binary.BigEndian.PutUint16(b[12:], kind)
	n := int(h.Opcode.Info().HdrLen) + len(body) + int(h.PadCnt) + wire.ICRCLen
	at := etherLen + ip.Put(b[etherLen:], n)
	end := transport(b[at:], h, body)
	seed := wire.NewSeed(ip.Src, ip.Dst, ip.SrcPort, ip.DstPort)
	wire.PutICRC(b[at+end:], seed.Sum(0, b[at:at+end]))
	return at + n
}

// transport writes BTH … pad and returns their length.
func transport(b []byte, h *wire.Headers, body []byte) int {
	n := h.Put(b)
	n += copy(b[n:], body)
	clear(b[n : n+int(h.PadCnt)])
	return n + int(h.PadCnt)
}

// mac makes an Ethernet address of an IP address: that of a group has one, others get
// one that is administered locally.
func mac(b []byte, g ib.GID) {
	switch v4 := g.IsIPv4(); {
	case v4 && g.IsMulticast():
		b[0], b[1], b[2], b[3] = 1, 0, 0x5e, g[13]&0x7f
		copy(b[4:6], g[14:])
	case g.IsMulticast():
		b[0], b[1] = 0x33, 0x33
		copy(b[2:6], g[12:])
	default:
		b[0], b[1] = 2, 0
		copy(b[2:6], g[12:])
	}
}

// managementVL carries subnet management packets, and nothing else (IBA volume 1, 13.5.1).
const managementVL = 15

// native writes a packet of an InfiniBand link, LRH … VCRC, and returns its length.
func native(b []byte, p *ib.Path, h *wire.Headers, body []byte) int {
	n := int(h.Opcode.Info().HdrLen) + len(body) + int(h.PadCnt) + wire.ICRCLen // behind LRH and GRH
	l := wire.LRH{SL: p.SL, LNH: wire.LNHLocal, DLID: p.DLID, SLID: p.SLID}
	if h.DestQPN == ib.QPNSMI {
		l.VL = managementVL
	}
	at, words := wire.LRHLen, wire.LRHLen+n
	if p.Global {
		l.LNH = wire.LNHGlobal
		g := wire.GRH{IPVer: 6, TClass: p.TClass, FlowLabel: p.FlowLabel, PayLen: uint16(n), NxtHdr: wire.NxtHdrIBA,
			HopLimit: p.HopLimit, SGID: p.SGID, DGID: p.DGID}
		g.Put(b[at:])
		at += wire.GRHLen
		words += wire.GRHLen
	}
	l.PktLen = uint16(words / 4)
	l.Put(b)
	at += transport(b[at:], h, body)
	wire.PutICRC(b[at:], wire.SumIB(b[:at]))
	at += wire.ICRCLen
	binary.BigEndian.PutUint16(b[at:], wire.VCRC(b[:at]))
	return at + wire.VCRCLen
}

// datagram appends what an IP link carries. Its source and destination are those of
// queue pair number, and by GID where there is a GRH.
func datagram(b []byte, p *ib.Path, src ib.QPN, h *wire.Headers, body []byte) []byte {
	var from, to ib.GID
	if p.Global {
		from, to = p.SGID, p.DGID
	}
	return pcapng.AppendIPoIB(b, wire.MakeHWAddr(0, src, from), wire.MakeHWAddr(0, h.DestQPN, to), body)
}

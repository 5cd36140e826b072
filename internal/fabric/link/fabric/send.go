// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"

	"weft/internal/fabric/vswitch"
	"weft/internal/proto/ib"
	"weft/internal/proto/mad"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Send forwards the packets of a burst by the vswitch's tables. It reads the payload before it
// returns; SourceFault means that the payload could not be read and that nothing was sent. Every other
// obstacle is counted as a drop of its own. Send serves the trunks; the adapter makes the copies of a
// multicast burst for this node's own functions.
func (l *Link) Send(now mono.Time, r *pkt.Burst, b *mem.Batch) mem.Result {
	if !valid(r) {
		l.c.DropBurst += uint64(max(1, r.Count))
		return mem.OK
	}
	t, w := l.cfg.Table.Load(), l.cfg.Wiring.Load()
	in := t.Entry(r.Path.SLID)
	if r.Path.DLID.IsMulticast() {
		set, why := t.Multicast(in, r.Path.DLID, r.PKey)
		if why != vswitch.OK {
			l.c.DropRoute[why] += uint64(r.Count)
			return mem.OK
		}
		return l.multicast(now, r, b, w, set)
	}
	out, why := unicast(t, w, in, r.Path.DLID, r.PKey)
	if why != vswitch.OK {
		l.c.DropRoute[why] += uint64(r.Count)
		return mem.OK
	}
	return l.packets(now, r, b, w.Port[out])
}

// unicast looks up the egress port of a packet that arrived by port in.
func unicast(t *vswitch.Table, w *Wiring, in uint8, dlid ib.LID, key ib.PKey) (out uint8, why vswitch.Refusal) {
	out, why = t.Unicast(in, dlid, key)
	if why == vswitch.Loopback && w.Port[in].Kind == Function && t.Port(in).State == ib.PortActive {
		// What an adapter sends to its own port never reaches the switch.
		return in, vswitch.OK
	}
	return out, why
}

// Table returns the tables that Send uses at present. The pointer changes whenever a result of Route
// may change.
func (l *Link) Table() *vswitch.Table { return l.cfg.Table.Load() }

// Route returns what Send would do, by table t, with a burst of this path and key: for bursts between
// functions of this node that bypass Send.
func (l *Link) Route(t *vswitch.Table, p *ib.Path, key ib.PKey) (why vswitch.Refusal) {
	in := t.Entry(p.SLID)
	if p.DLID.IsMulticast() {
		_, why = t.Multicast(in, p.DLID, key)
	} else {
		_, why = unicast(t, l.cfg.Wiring.Load(), in, p.DLID, key)
	}
	return why
}

// Refused counts packets that were dropped because of a result of Route, as Send counts them.
func (l *Link) Refused(why vswitch.Refusal, packets uint32) { l.c.DropRoute[why] += uint64(packets) }

func valid(r *pkt.Burst) bool {
	i, n := r.Opcode.Info(), r.Data.Len
	if r.Count == 1 {
		return i.Valid && n <= 4096
	}
	return i.Valid && (i.Send || i.Write || i.ReadResp) && r.Count != 0 && r.Count <= MaxCount && n <= MaxRun &&
		r.MTU <= 4096 && r.MTU&3 == 0 && n > int(r.MTU*(r.Count-1)) && n <= int(r.MTU*r.Count)
}

// packets builds the packets of a burst in the buffer they are sent from.
func (l *Link) packets(now mono.Time, r *pkt.Burst, b *mem.Batch, to Plug) mem.Result {
	// Memory of another process is fetched with one call for the whole burst, into the stage; mapped
	// memory is copied to its place at once.
	staged := r.Count > 1 && !mapped(&r.Data)
	if staged {
		l.one[0] = l.stage[:r.Data.Len]
		if b.Gather(l.one[:], &r.Data, 0) != mem.OK {
			l.c.DropSourceFault += uint64(r.Count)
			return mem.SourceFault
		}
	}
	head := headers(r.Path)
	for k, off := uint32(0), 0; k < r.Count; k++ {
		size := r.Data.Len - off
		if r.Count > 1 {
			size = min(size, int(r.MTU))
		}
		h := r.Headers.Packet(k, r.Count, size)
		n := length(r.Path, &h, size)
		p := l.reserve(to, n)
		if p == nil {
			return mem.OK // the rest of the burst is dropped as well: the peer requests retransmission in order
		}
		at := head.put(p, n)
		at += h.Put(p[at:])
		body := p[at : at+size]
		if staged {
			copy(body, l.stage[off:])
		} else if size > 0 {
			l.one[0] = body
			if b.Gather(l.one[:], &r.Data, off) != mem.OK {
				l.c.DropSourceFault += uint64(r.Count - k)
				return mem.SourceFault
			}
		}
		clear(p[at+size : at+size+int(h.PadCnt)])
		seal(p[:n])
		l.commit(now, to, n, r.Path.DLID)
		off += size
	}
	return mem.OK
}

// multicast sends the one packet of a burst to every trunk of the set.
func (l *Link) multicast(now mono.Time, r *pkt.Burst, b *mem.Batch, w *Wiring, set vswitch.PortSet) mem.Result {
	var built []byte
	for p, ok := set.Next(); ok; p, ok = set.Next() {
		to := w.Port[p]
		if to.Kind != Peer {
			continue
		}
		if built == nil {
			head, h := headers(r.Path), r.Headers.Packet(0, 1, r.Data.Len)
			n := length(r.Path, &h, r.Data.Len)
			built = l.stage[:n]
			at := head.put(built, n)
			at += h.Put(built[at:])
			l.one[0] = built[at : at+r.Data.Len]
			if r.Data.Len != 0 && b.Gather(l.one[:], &r.Data, 0) != mem.OK {
				l.c.DropSourceFault += uint64(r.Count)
				return mem.SourceFault
			}
			clear(built[at+r.Data.Len : n-wire.ICRCLen-wire.VCRCLen])
			seal(built)
		}
		if c := l.reserve(to, len(built)); c != nil {
			copy(c, built)
			l.commit(now, to, len(built), r.Path.DLID)
		}
	}
	return mem.OK
}

// mapped reports whether the payload is at hand: reading it is no system call.
func mapped(p *mem.Payload) bool {
	for i := range p.Segs {
		if s := &p.Segs[i]; s.Region != nil && s.Region.View(s.Addr, s.Len) == nil {
			return false
		}
	}
	return true
}

func headers(p *ib.Path) native {
	h := native{slid: p.SLID, dlid: p.DLID, sl: p.SL, global: p.Global}
	if p.Global {
		h.grh = wire.GRH{IPVer: 6, TClass: p.TClass, FlowLabel: p.FlowLabel, NxtHdr: wire.NxtHdrIBA,
			HopLimit: p.HopLimit, SGID: p.SGID, DGID: p.DGID}
	}
	return h
}

// length returns the length of a packet, LRH … VCRC.
func length(p *ib.Path, h *wire.Headers, payload int) int {
	n := wire.LRHLen + int(h.Opcode.Info().HdrLen) + payload + int(h.PadCnt) + wire.ICRCLen + wire.VCRCLen
	if p.Global {
		n += wire.GRHLen
	}
	return n
}

// reserve returns a buffer for a packet of n octets, or nil and counts the drop.
func (l *Link) reserve(to Plug, n int) (p []byte) {
	switch to.Kind {
	case Peer:
		if l.cfg.Trunk == nil {
			l.c.DropUnconnected++
			return nil
		}
		p = l.cfg.Trunk.Reserve(int(to.Number), n)
	case Function:
		if len(l.loop)+2+n <= loopBytes {
			at := len(l.loop) + 2
			if cap(l.loop) < loopBytes {
				l.loop = append(make([]byte, 0, loopBytes), l.loop...)
			}
			return l.loop[at : at+n : at+n]
		}
	default:
		l.c.DropUnconnected++
		return nil
	}
	if p == nil {
		l.c.DropNoRoom++
		if to.Kind == Peer {
			l.peers[to.Number].XmitDiscards++
		}
	}
	return p
}

// commit sends what reserve returned, a 9B packet of n octets.
func (l *Link) commit(now mono.Time, to Plug, n int, dlid ib.LID) {
	l.commitWords(now, to, n, (n-wire.VCRCLen)/4, dlid.IsMulticast())
}

// commitWords sends n octets that reserve returned, a packet of the given number of words.
func (l *Link) commitWords(now mono.Time, to Plug, n, words int, multicast bool) {
	if to.Kind == Function {
		l.loop = binary.BigEndian.AppendUint16(l.loop, uint16(n))
		l.loop = l.loop[:len(l.loop)+n]
		l.c.LoopedBack++
		return
	}
	l.cfg.Trunk.Commit(now, n)
	l.c.SentPackets++
	l.c.SentBytes += uint64(n)
	c := &l.peers[to.Number]
	c.XmitPkts++
	c.XmitData += uint64(words)
	if multicast {
		c.MulticastXmit++
	}
}

// SendMAD sends a datagram by the trunk of port out. It does not use the forwarding tables: the sender
// has chosen the port (a directed route bypasses the tables). Every obstacle is counted as a drop.
func (l *Link) SendMAD(now mono.Time, out uint8, d *mad.Datagram) {
	to := l.cfg.Wiring.Load().Port[out]
	if to.Kind != Peer {
		l.c.DropUnconnected++
		return
	}
	n := MADLen(d)
	p := l.reserve(to, n)
	if p == nil {
		return
	}
	PutMAD(p, d, l.psn)
	l.psn = l.psn.Add(1)
	l.commit(now, to, n, d.DLID)
}

// Blocked reports that the link takes no more until it has drained.
func (l *Link) Blocked() bool {
	return len(l.loop) > loopBytes/2 || l.cfg.Trunk != nil && l.cfg.Trunk.Blocked()
}

// Pending reports that Recv has packets of this link's own to deliver.
func (l *Link) Pending() bool { return len(l.loop) > 0 || len(l.rest) > 0 }

// Flush hands what is waiting to the network.
func (l *Link) Flush(now mono.Time) {
	if l.cfg.Trunk != nil {
		l.cfg.Trunk.Flush(now)
	}
}

// Deadline returns when Recv or Flush must be called at the latest.
func (l *Link) Deadline() mono.Time {
	var d mono.Time
	if l.cfg.Trunk != nil {
		d = l.cfg.Trunk.Deadline()
	}
	if l.cfg.Source != nil {
		d = mono.Min(d, l.cfg.Source.Deadline())
	}
	return d
}

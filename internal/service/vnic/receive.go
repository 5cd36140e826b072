// SPDX-License-Identifier: Apache-2.0

package vnic

import (
	"slices"

	"weft/internal/proto/ether"
	"weft/internal/proto/wire"
)

// Receiver takes packets for the netdevs of a function, on one lane.
type Receiver struct {
	d       *Netdevs
	c       [MaxNetdevs]Counters
	unknown Unknown
	notify  [notifyLen]byte
}

// Receiver returns one for a lane of its own.
func (d *Netdevs) Receiver() *Receiver { return &Receiver{d: d} }

// Counters returns the counters of a port number, over all ports that had it.
func (r *Receiver) Counters(vport uint8) (c Counters) {
	if int(vport) < MaxNetdevs {
		c = r.c[vport]
	}
	return c
}

// Unknown returns what was counted for no port.
func (r *Receiver) Unknown() Unknown { return r.unknown }

// Forget sets the counters of a port to 0: the number is another's from here on.
func (r *Receiver) Forget(vport uint8) {
	if int(vport) < MaxNetdevs {
		r.c[vport] = Counters{}
	}
}

// Inbound is a frame for a port.
type Inbound struct {
	VPort uint8
	Frame []byte // aliases what it came in
	// Notify is a packet to send: the answer to a packet that met congestion. It is valid until the Receiver's
	// next call.
	Notify []byte
}

// Receive validates the packet p, finds its port and strips it. false: the packet was dropped, and
// counted. p may have any content.
//
// Preconditions: wire.Parse16 accepted p and decoded h.
func (r *Receiver) Receive(h *wire.Header16, p []byte, in *Inbound) bool {
	if h.L4 != wire.L4Ethernet {
		r.unknown.BadL4++
		return false
	}
	end := len(p) - TailLen - int(p[len(p)-1]&0x3f)
	if end < HeaderLen {
		r.unknown.Malformed++
		return false
	}
	l4 := le.Uint32(p[wire.Header16Len:])
	m := r.d.seen.Load()
	vport, c := r.port(m, uint16(l4>>16)&maxVESW)
	if c == nil {
		return false
	}
	if l4&0xf000ffff != 0 {
		c.RxReserved++
	}
	i := &m.inlet[vport]
	if !r.validate(m, i, h, c, 1) {
		return false
	}
	frame := p[HeaderLen:end:end]
	if h.BECN {
		c.RxBECN++
		if len(frame) == 0 {
			return false
		}
	}
	switch n := len(frame); {
	case n < MinFrame:
		c.RxRunt++
		return false
	case n > i.maxFrame:
		c.RxOversize++
		return false
	}
	c.Rx.count(Cut{1, len(frame), len(frame)}, frame[0]&groupBit != 0, isTagged(frame))
	in.VPort, in.Frame, in.Notify = vport, frame, nil
	if h.FECN {
		c.RxFECN++
		if isUnicast(h.DLID) {
			putNotify(&r.notify, h, uint16(l4>>16)&maxVESW)
			in.Notify = r.notify[:]
			c.NotifySent++
		}
	}
	return true
}

// Local is Receive for a frame of another function of the node that never became a packet: of the port that
// decided d, c frames on the wire.
func (r *Receiver) Local(d *Decision, frame []byte, cut Cut, in *Inbound) bool {
	m := r.d.seen.Load()
	vport, c := r.port(m, d.VESW)
	if c == nil {
		return false
	}
	i := &m.inlet[vport]
	if !r.validate(m, i, &d.Header, c, cut.Frames) {
		return false
	}
	if cut.Len > i.maxFrame {
		c.RxOversize += uint64(cut.Frames)
		return false
	}
	c.Rx.count(cut, d.group, d.tagged)
	in.VPort, in.Frame, in.Notify = vport, frame, nil
	return true
}

// Lost counts frames that Receive or Local gave and the port's segment did not take; they do
// not count as received.
func (r *Receiver) Lost(vport uint8, frame []byte, cut Cut) {
	c := &r.c[vport]
	c.Rx.uncount(cut, frame[0]&groupBit != 0, isTagged(frame))
	c.RxFIFOErrors += uint64(cut.Frames)
}

// port returns the port that is in a VESW; nil, and counted, if none is.
func (r *Receiver) port(m *demux, vesw uint16) (vport uint8, c *Counters) {
	at := m.index[vesw&maxVESW]
	if at == 0 {
		r.unknown.BadVESW++
		return 0, nil
	}
	return at - 1, &r.c[at-1]
}

// validate reports whether packets with this header are valid for the netdev, and counts n if they are
// not.
func (r *Receiver) validate(m *demux, i *inlet, h *wire.Header16, c *Counters, n int) bool {
	var why *uint64
	switch {
	case !isUnicast(h.SLID) || m.owns(h.SLID):
		why = &c.RxBadSLID
	case isUnicast(h.DLID) && !m.owns(h.DLID) || !isUnicast(h.DLID) && !i.attached(h.DLID):
		why = &c.RxBadDLID
	case isGroup(h.DLID) && h.SC == managementSC:
		why = &c.RxBadSC
	case !i.pkey.Match(h.PKey):
		why = &c.RxBadPKey
	case !i.up:
		why = &c.RxDropState
	default:
		return true
	}
	*why += uint64(n)
	return false
}

// managementSC carries nothing to a group.
const managementSC = 15

// owns reports whether a LID is the function's.
func (m *demux) owns(lid uint32) bool { return m.lid != 0 && (lid^m.lid)>>m.lmc == 0 }

func (i *inlet) attached(dlid uint32) bool {
	_, ok := slices.BinarySearch(i.groups, dlid)
	return ok
}

// isTagged reports whether a frame has a VLAN tag.
func isTagged(frame []byte) bool {
	t := uint16(frame[12])<<8 | uint16(frame[13])
	return t == ether.TypeVLAN || t == ether.TypeQinQ
}

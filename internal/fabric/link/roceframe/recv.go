// SPDX-License-Identifier: Apache-2.0

package roceframe

import (
	"net/netip"

	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/pkt"
	"weft/internal/proto/wire"
)

// Recv returns received bursts. Consecutive packets of one message form one burst, which ends at a
// packet with AckReq. Bursts, their paths and payload belong to the Link and stay valid until the next
// Recv. The MTU of a burst of one packet is the length of its payload.
func (l *Link) Recv() []pkt.Burst {
	if !l.Received() {
		return nil
	}
	in := &l.half[l.fill]
	l.fill ^= 1
	if next := &l.half[l.fill]; next.joiner != nil {
		next.joiner.Reset()
		next.used, next.n = 0, 0
	}
	return in.joiner.Bursts()
}

// Receive handles a frame of the segment if it is RoCEv2, and reports so, whether the frame was
// accepted or not. off is the remaining offload; frames of several packets are not accepted. The frame
// is not retained.
func (l *Link) Receive(f []byte, off *ether.Offload) (taken bool) {
	in := ether.Classify(f)
	port, ok := destPort(f, &in)
	if !ok || port != wire.UDPPort || off.Kind() != ether.GSONone {
		return false
	}
	if group := f[0]&1 != 0; !group && [6]byte(f[:6]) != l.mac {
		return false // flooded: the next receiver of the frame counts it
	}
	if l.cfg.Shared && !l.expects(f, &in) {
		return false
	}
	if in.Tags > 0 {
		l.c.DropVLAN++
		return true
	}
	ip := f[in.L3:]
	var h wire.IPUDP
	p, why := h.Parse(ip)
	if why != wire.OK {
		l.c.DropRefusal[why]++
		return true
	}
	switch group := h.Dst.IsMulticast(); {
	case group && !l.cfg.Member(h.Dst), !group && (f[0]&1 != 0 || !l.own(h.Dst)):
		l.c.DropNotLocal++
	case !station(h.Src):
		l.c.DropBadSource++
	case h.Checksum != 0 && off.Flags == 0 && !summed(&h, p, ip):
		l.c.DropUDPChecksum++
	default:
		l.packet(&h, p, ip)
	}
	return true
}

// Expects reports whether a burst on path p would arrive at the port in frames to a MAC, and is in order behind what the
// link has received: none of that waits.
func (l *Link) Expects(mac [6]byte, p *ib.Path) bool {
	return mac == l.mac && l.own(p.DGID) && station(p.SGID) && !l.own(p.SGID) && !l.Received()
}

// Arrive counts a burst that arrived without frames, and writes to path how it came.
func (l *Link) Arrive(r *pkt.Burst, octets int, path *ib.Path) {
	h := headerOf(r.Path)
	*path = ib.Path{SGID: h.Src, DGID: h.Dst, TClass: h.TClass, HopLimit: h.HopLimit, SrcPort: h.SrcPort,
		Function: l.cfg.Function}
	if !h.IPv4 {
		path.FlowLabel = h.FlowLabel
	}
	l.c.RcvdPackets += uint64(r.Count)
	l.c.RcvdBytes += uint64(octets)
	l.c.RcvdBursts++
}

// expects reports whether a frame is for an address of the port, or for a group with a member at it. Frames with a VLAN
// tag are not: the port is in no VLAN.
func (l *Link) expects(f []byte, in *ether.Info) bool {
	if in.Tags > 0 {
		return false
	}
	var to ib.GID
	if ip := f[in.L3:in.End]; in.Kind < ether.IPv6 {
		to = ib.GIDFromAddr(netip.AddrFrom4([4]byte(ip[16:])))
	} else {
		to = ib.GID(ip[24:])
	}
	return l.own(to) || to.IsMulticast() && l.cfg.Member(to)
}

// summed reports whether the UDP checksum of a packet is right, p being what UDP carries of it.
func summed(h *wire.IPUDP, p, ip []byte) bool {
	udp := ip[h.Len()-8 : h.Len()+len(p)]
	s := uint32(^ether.Checksum(udp)) + uint32(pseudo(h.IPv4, &h.Src, &h.Dst, len(udp)))
	return uint16(s>>16+s) == 0xffff
}

// station reports whether g can be the address of one station.
func station(g ib.GID) bool {
	a := g.Addr()
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() &&
		!(a.Is4() && a.As4() == [4]byte{255, 255, 255, 255})
}

// destPort returns the UDP port that a frame is for, also of a packet's first fragment, and of one with what
// RoCEv2 does not have: options, extension headers, tags.
func destPort(f []byte, in *ether.Info) (port uint16, ok bool) {
	const udp = 17
	if in.Proto != udp || !in.IsIP() {
		return 0, false
	}
	if in.L4 != 0 {
		return be.Uint16(f[in.L4+2:]), true
	}
	p := f[in.L3:in.End]
	at := 48 // a fragment header behind that of IPv6
	if in.Kind < ether.IPv6 {
		at = int(p[0]&15) * 4
		if be.Uint16(p[6:])&0x1fff != 0 {
			return 0, false
		}
	} else if len(p) < at || be.Uint16(p[42:])&^7 != 0 {
		return 0, false
	}
	if !in.Frag || len(p) < at+4 {
		return 0, false
	}
	return be.Uint16(p[at+2:]), true
}

// packet adds one packet, BTH … ICRC, with its headers, to the newest burst or as a new burst.
func (l *Link) packet(h *wire.IPUDP, p, ip []byte) {
	in := &l.half[l.fill]
	if in.joiner == nil {
		in.joiner, in.buf, in.paths = pkt.NewJoiner(recvPackets), make([]byte, recvBytes), make([]ib.Path, recvPackets)
	}
	if in.joiner.Full() || in.n == len(in.paths) || len(in.buf)-in.used < len(p) {
		l.c.RcvBufOverflow++
		return
	}
	r := in.joiner.Slot()
	payload, why := r.Headers.Parse(p)
	if why == wire.OK && wire.SumIP(ip[:h.Len()+len(p)-wire.ICRCLen]) != wire.ICRC(p) {
		why = wire.BadICRC
	}
	if why != wire.OK {
		l.c.DropRefusal[why]++
		return
	}
	l.c.RcvdPackets++
	l.c.RcvdBytes += uint64(len(p))
	own := in.buf[in.used : in.used+len(payload) : in.used+len(payload)]
	in.used += copy(own, payload)
	path := ib.Path{SGID: h.Src, DGID: h.Dst, TClass: h.TClass, HopLimit: h.HopLimit, SrcPort: h.SrcPort,
		Function: l.cfg.Function}
	if !h.IPv4 {
		path.FlowLabel = h.FlowLabel
	}
	if in.n == 0 || in.paths[in.n-1] != path {
		in.paths[in.n] = path
		in.n++
	}
	r.Count, r.MTU, r.Path, r.IPv4, r.Fault, r.Whole = 1, uint32(len(payload)), &in.paths[in.n-1], h.IPv4, false, nil
	r.Data = mem.BytesPayload(own)
	if in.joiner.Add() {
		l.c.RcvdBursts++
		l.cfg.Arrived()
	}
}

// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"syscall"

	"weft/internal/proto/ib"
)

// AHAttr is an address vector as a client states it.
type AHAttr struct {
	DGID         ib.GID
	FlowLabel    uint32
	SGIDIndex    uint8
	HopLimit     uint8
	TrafficClass uint8
	SL           uint8
	DMAC         [6]byte // of frames on an Ethernet port; zero: the link resolves the destination (ib.Path.DMAC)
	Global       bool    // has a GRH; an Ethernet port requires one
	DLID         ib.LID  // on an InfiniBand port
	SrcPathBits  uint8
	StaticRate   ib.Rate
}

// groupBit of the first octet marks a MAC of a group of stations (IEEE 802, 8.2).
const groupBit = 1

// path resolves an address vector against the port's tables, and at this moment against the host's routes. EACCES: the
// port may not send there. EINVAL, ENETUNREACH or EHOSTUNREACH: no packet from the source reaches the destination.
func (s *Session) path(v *AHAttr) (*ib.Path, error) {
	port := s.a.Port()
	if port.native() {
		return s.nativePath(port, v)
	}
	sgid, err := s.GID(uint32(v.SGIDIndex))
	if err != nil || !v.Global || v.DGID.IsZero() {
		return nil, syscall.EINVAL
	}
	if sgid.IsIPv4() != v.DGID.IsIPv4() {
		return nil, syscall.EINVAL // no route from one family to the other
	}
	if v.DMAC[0]&groupBit != 0 && !v.DGID.IsMulticast() {
		return nil, syscall.EINVAL // every station of the segment would get what is meant for one
	}
	if !port.Allows(v.DGID) {
		return nil, syscall.EACCES
	}
	p := &ib.Path{SGID: sgid, DGID: v.DGID, DMAC: v.DMAC, FlowLabel: v.FlowLabel & 0xfffff, TClass: v.TrafficClass,
		HopLimit: v.HopLimit, SGIDIndex: v.SGIDIndex, SL: v.SL, MaxRun: port.MaxRun, Function: s.a.num}
	if port.own(v.DGID) {
		p.Local, p.MaxRun = true, port.MaxLocalRun
		return p, nil
	}
	if err := port.leaves(v.SGIDIndex, sgid, v.DGID, v.TrafficClass); err != nil {
		return nil, err
	}
	// Of both ends, so that two nodes of one host find the same limit.
	if limit := min(port.PathMTU(sgid), port.PathMTU(v.DGID)); limit < port.MTU {
		p.MTU = limit
	}
	return p, nil
}

// nativePath resolves an address vector of an InfiniBand port (IBA volume 1,
// 11.2.2.1): a multicast DLID needs a GRH with a multicast GID, and source path
// bits must lie within the port's LMC.
func (s *Session) nativePath(port *Port, v *AHAttr) (*ib.Path, error) {
	multicast := v.DLID.IsMulticast()
	if !multicast && !v.DLID.IsUnicast() || v.SrcPathBits>>port.LMC != 0 || v.SL > 15 || multicast && !v.Global {
		return nil, syscall.EINVAL
	}
	p := &ib.Path{DLID: v.DLID, SLID: port.LID | ib.LID(v.SrcPathBits), SL: v.SL, StaticRate: v.StaticRate,
		MaxRun: port.MaxRun}
	if v.Global {
		sgid, err := s.GID(uint32(v.SGIDIndex))
		if err != nil || v.DGID.IsZero() || (v.DGID[0] == 0xff) != multicast {
			return nil, syscall.EINVAL
		}
		p.Global, p.SGID, p.DGID, p.SGIDIndex = true, sgid, v.DGID, v.SGIDIndex
		p.FlowLabel, p.TClass, p.HopLimit = v.FlowLabel&0xfffff, v.TrafficClass, v.HopLimit
	}
	if a := s.lane.all.Owner(v.DLID); a != nil && !port.WireLocal {
		p.Local, p.Function, p.MaxRun = true, a.num, port.MaxLocalRun
	}
	return p, nil
}

// setSrcPort derives the UDP source port as soft-RoCE does: from the flow
// label, or from the two queue pair numbers where that is zero.
func setSrcPort(p *ib.Path, lqpn, rqpn ib.QPN) {
	fl := p.FlowLabel
	if fl == 0 {
		v := uint64(lqpn) * uint64(rqpn)
		v ^= v >> 20
		v ^= v >> 40
		fl = uint32(v & 0xfffff)
	}
	p.SrcPort = uint16(fl&0x3fff^fl>>14) | 0xc000
}

// CreateAH makes an address handle: a snapshot of the attributes and the
// source GID of this moment.
func (s *Session) CreateAH(pdn uint32, v *AHAttr) (uint32, error) {
	p, err := s.pds.get(pdn)
	if err != nil {
		return 0, err
	}
	path, err := s.path(v)
	if err != nil {
		return 0, err
	}
	setSrcPort(path, 0, 0)
	h, err := s.ahs.add(&ah{pd: p, path: path, attr: *v})
	if err == nil {
		p.refs++
	}
	return h, err
}

// DestroyAH ends an address handle. Work requests fetched before keep their
// snapshot.
func (s *Session) DestroyAH(pdn, h uint32) error {
	v, err := s.ahs.get(h)
	if err != nil {
		return err
	}
	if pdn != 0 && v.pd.handle != pdn {
		return syscall.EINVAL
	}
	v.pd.refs--
	s.ahs.del(h)
	return nil
}

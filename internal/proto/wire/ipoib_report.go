// SPDX-License-Identifier: Apache-2.0

package wire

import "net/netip"

// GroupReport is one change of membership that a host announces.
type GroupReport struct {
	Group netip.Addr
	Join  bool // else leave
}

// Types of messages and records of IGMP (RFC 2236, 3376) and MLD (RFC 2710,
// 3810). The record types of both are the same.
const (
	igmpReportV1 = 0x12
	igmpReportV2 = 0x16
	igmpLeave    = 0x17
	igmpReportV3 = 0x22
	mldReportV1  = 131
	mldDone      = 132
	mldReportV2  = 143

	recInclude   = 1
	recExclude   = 2
	recToInclude = 3
	recToExclude = 4
	recAllow     = 5

	igmpQuery = 0x11
	mldQuery  = 130

	protoIGMP = 2
)

// GroupQueryLen bounds what PutGroupQuery writes.
const GroupQueryLen = ipv6Len + 8 + 28

// Fields of queries: robustness 2, an interval of 125 s; reports come within a
// tenth of a second.
const (
	queryRobustness = 2
	queryInterval   = 125
	queryTenths     = 1
)

// PutGroupQuery writes to b a general query, of IGMPv3 or MLDv2 by typ, and returns its length. The
// receiving host replies with its groups.
func PutGroupQuery(b []byte, typ EtherType) int {
	if typ == EtherIPv4 { // from the unspecified address, with a router alert option
		b = b[:ipv4Len+4+12]
		clear(b)
		b[0], b[1], b[8], b[9] = 0x46, 0xc0, 1, protoIGMP
		be.PutUint16(b[2:], uint16(len(b)))
		copy(b[16:], []byte{224, 0, 0, 1, 0x94, 4})
		be.PutUint16(b[10:], fold(sum(0, b[:ipv4Len+4])))
		m := b[ipv4Len+4:]
		m[0], m[1], m[8], m[9] = igmpQuery, queryTenths, queryRobustness, queryInterval
		be.PutUint16(m[2:], fold(sum(0, m)))
		return len(b)
	}
	b = b[:GroupQueryLen]
	clear(b)
	be.PutUint32(b, 6<<28)
	be.PutUint16(b[4:], uint16(len(b)-ipv6Len))
	b[6], b[7] = protoHopByHop, 1
	copy(b[8:], []byte{0xfe, 0x80, 15: 1})
	copy(b[24:], []byte{0xff, 0x02, 15: 1})
	copy(b[ipv6Len:], []byte{protoICMPv6, 0, 5, 2, 0, 0, 1, 0}) // router alert: MLD
	m := b[ipv6Len+8:]
	m[0], m[24], m[25] = mldQuery, queryRobustness, queryInterval
	be.PutUint16(m[4:], queryTenths*100)
	sealICMPv6(b, ipv6Len+8)
	return len(b)
}

// MayReport reports whether the IP packet p could hold reports of membership,
// by its protocol field alone: what is worth AppendReports.
func MayReport(p []byte) bool {
	switch {
	case len(p) >= ipv4Len && p[0]>>4 == 4:
		return p[9] == protoIGMP
	case len(p) >= ipv6Len && p[0]>>4 == 6:
		return p[6] == protoHopByHop || p[6] == protoICMPv6
	}
	return false
}

// AppendReports appends the changes of membership in the IP packet p, in their order: those of all
// versions of IGMP and MLD. Sources are ignored, as InfiniBand groups have none: a record that permits
// any source joins. ok is false if p is such a message but malformed; then nothing is appended.
func AppendReports(r []GroupReport, p []byte) (_ []GroupReport, ok bool) {
	if !MayReport(p) {
		return r, true
	}
	if p[0]>>4 == 4 {
		return appendIGMP(r, p)
	}
	off, ok := ICMPv6(p)
	if !ok {
		return r, true
	}
	return appendMLD(r, p, off)
}

func appendIGMP(r []GroupReport, p []byte) ([]GroupReport, bool) {
	hl, total := int(p[0]&0xf)*4, int(be.Uint16(p[2:]))
	if be.Uint16(p[6:])&0x3fff != 0 {
		return r, true // reports are not fragmented
	}
	if hl < ipv4Len || total < hl+8 || total > len(p) {
		return r, false
	}
	m := p[hl:total]
	if fold(sum(0, m)) != 0 {
		return r, false
	}
	switch m[0] {
	case igmpReportV1, igmpReportV2, igmpLeave:
		return appendGroup(r, netip.AddrFrom4([4]byte(m[4:])), m[0] != igmpLeave)
	case igmpReportV3:
		return appendRecords(r, m[8:], int(be.Uint16(m[6:])), 4)
	}
	return r, true
}

func appendMLD(r []GroupReport, p []byte, off int) ([]GroupReport, bool) {
	total := ipv6Len + int(be.Uint16(p[4:]))
	typ := p[off]
	if typ != mldReportV1 && typ != mldDone && typ != mldReportV2 {
		return r, true
	}
	if total > len(p) || total < off+8 {
		return r, false
	}
	p = p[:total]
	m := p[off:]
	if checksumICMPv6(p, off) != 0 {
		return r, false
	}
	if typ == mldReportV2 {
		return appendRecords(r, m[8:], int(be.Uint16(m[6:])), 16)
	}
	if len(m) < 24 {
		return r, false
	}
	return appendGroup(r, netip.AddrFrom16([16]byte(m[8:])), typ == mldReportV1)
}

// appendRecords appends the changes of n records with addresses of alen bytes.
func appendRecords(r []GroupReport, b []byte, n, alen int) ([]GroupReport, bool) {
	start := len(r)
	for range n {
		if len(b) < 4+alen {
			return r[:start], false
		}
		typ, sources := b[0], int(be.Uint16(b[2:]))
		l := 4 + alen + sources*alen + int(b[1])*4
		if len(b) < l {
			return r[:start], false
		}
		var group netip.Addr
		if alen == 4 {
			group = netip.AddrFrom4([4]byte(b[4:]))
		} else {
			group = netip.AddrFrom16([16]byte(b[4:]))
		}
		b = b[l:]
		var join bool
		switch {
		case typ == recExclude, typ == recToExclude:
			join = true
		case sources > 0 && (typ == recInclude || typ == recToInclude || typ == recAllow):
			join = true
		case typ == recToInclude: // of no source
		default:
			continue // does not change the membership as a whole
		}
		var ok bool
		if r, ok = appendGroup(r, group, join); !ok {
			return r[:start], false
		}
	}
	return r, true
}

func appendGroup(r []GroupReport, group netip.Addr, join bool) ([]GroupReport, bool) {
	if !group.IsMulticast() || group.Is4In6() {
		return r, false
	}
	return append(r, GroupReport{group, join}), true
}

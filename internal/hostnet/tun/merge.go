// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"encoding/binary"

	"weft/internal/ipoib"
)

const (
	// maxMerged is the longest packet that merging may make.
	maxMerged = ipoib.MaxPacket
	// maxHeads bounds the flows of one batch that are merged.
	maxHeads = 16
)

// merger prepares batches for generic receive offload: consecutive segments of
// a flow become one packet, which grows in the buffer of the first. Where that
// has no room for it, it moves to one that has.
type merger struct {
	bufs  [][]byte // what is given to the device, instead of the caller's slice
	heads [][]byte // made when first needed
	seen  [256]uint8
}

// prepare returns bufs with heads exchanged. The elements of its result have
// room for the longest packet beyond offset, or none beyond their length.
func (m *merger) prepare(bufs [][]byte, offset int) [][]byte {
	m.bufs = m.bufs[:0]
	clear(m.seen[:])
	several := false
	for _, b := range bufs {
		if cap(b) < offset+maxMerged {
			b = b[:len(b):len(b)]
		}
		m.bufs = append(m.bufs, b)
		if slot, ok := flow(b[offset:]); ok && m.seen[slot] < 2 {
			m.seen[slot]++
			several = several || m.seen[slot] == 2
		}
	}
	if !several {
		return m.bufs
	}
	used := 0
	for i, b := range m.bufs {
		slot, ok := flow(b[offset:])
		if !ok || m.seen[slot] < 2 || used == maxHeads {
			continue
		}
		m.seen[slot] = 0 // the others of the flow follow this one
		if cap(b) >= offset+maxMerged {
			continue
		}
		if used == len(m.heads) {
			m.heads = append(m.heads, nil)
		}
		if cap(m.heads[used]) < offset+maxMerged {
			m.heads[used] = make([]byte, offset+maxMerged)
		}
		head := m.heads[used][:len(b)]
		copy(head[offset:], b[offset:])
		m.bufs[i] = head
		used++
	}
	return m.bufs
}

// flow is a hash of addresses and ports of a TCP or UDP packet without IP
// options. Flows that share a value cost a copy, no more.
func flow(p []byte) (slot uint8, ok bool) {
	const tcp, udp = 6, 17
	le := binary.LittleEndian
	var h uint64
	switch {
	case len(p) >= 28 && p[0] == 0x45 && (p[9] == tcp || p[9] == udp):
		h = le.Uint64(p[12:]) ^ uint64(le.Uint32(p[20:]))*0x9e3779b97f4a7c15
	case len(p) >= 48 && p[0]>>4 == 6 && (p[6] == tcp || p[6] == udp):
		h = le.Uint64(p[16:]) ^ le.Uint64(p[32:])*0xbf58476d1ce4e5b9 ^ uint64(le.Uint32(p[40:]))*0x9e3779b97f4a7c15
	default:
		return 0, false
	}
	h *= 0x94d049bb133111eb
	return uint8(h >> 56), true
}

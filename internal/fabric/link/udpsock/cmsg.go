// SPDX-License-Identifier: Apache-2.0

package udpsock

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Socket addresses and control messages are written as the kernel lays them
// out: fields in host order, but ports and addresses in network order.
var ne = binary.NativeEndian

const (
	// NameLen is room for a socket address of either family.
	NameLen = unix.SizeofSockaddrInet6
	// SegmentLen is the room that PutSegment needs.
	SegmentLen = cmsgHdrLen + 8

	cmsgHdrLen = 16 // struct cmsghdr of 64-bit Linux
)

// PutCmsg appends one control message with an uninitialised body of n bytes at
// offset off of b and returns the body and the offset behind it.
func PutCmsg(b []byte, off int, level, typ uint32, n int) (body []byte, next int) {
	ne.PutUint64(b[off:], uint64(cmsgHdrLen+n))
	ne.PutUint32(b[off+8:], level)
	ne.PutUint32(b[off+12:], typ)
	return b[off+cmsgHdrLen : off+cmsgHdrLen+n], off + (cmsgHdrLen+n+7)&^7
}

// PutSegment appends the control message that makes one send many datagrams
// of size bytes, and returns the offset behind it.
func PutSegment(b []byte, off, size int) int {
	body, off := PutCmsg(b, off, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
	ne.PutUint16(body, uint16(size))
	return off
}

// NextCmsg takes the first control message off b. ok is false at the end, and
// where the rest is not a control message: b is the kernel's, yet every length
// is checked.
func NextCmsg(b []byte) (level, typ uint32, body, rest []byte, ok bool) {
	if len(b) < cmsgHdrLen {
		return 0, 0, nil, nil, false
	}
	n := ne.Uint64(b)
	if n < cmsgHdrLen || n > uint64(len(b)) {
		return 0, 0, nil, nil, false
	}
	return ne.Uint32(b[8:]), ne.Uint32(b[12:]), b[cmsgHdrLen:n], b[min(int(n+7)&^7, len(b)):], true
}

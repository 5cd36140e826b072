// SPDX-License-Identifier: Apache-2.0

package wire

import "weft/internal/proto/ib"

// CMPrivateLen is the length of the private data of an IPoIB interface in connected mode in REQ and
// REP (RFC 4755, 3.2).
const CMPrivateLen = 8

// PutCMPrivate writes it to the first CMPrivateLen bytes of b: the interface's datagram
// queue pair, and the largest message it receives, encapsulation header
// included.
func PutCMPrivate(b []byte, qpn ib.QPN, receiveMTU uint32) {
	b = b[:CMPrivateLen]
	be.PutUint32(b, uint32(qpn&ib.QPNMask))
	be.PutUint32(b[4:], receiveMTU)
}

// ParseCMPrivate is the reverse. ok is false where b is too short, or the peer
// receives nothing.
func ParseCMPrivate(b []byte) (qpn ib.QPN, receiveMTU uint32, ok bool) {
	if len(b) < CMPrivateLen {
		return 0, 0, false
	}
	qpn, receiveMTU = ib.QPN(be.Uint32(b))&ib.QPNMask, be.Uint32(b[4:])
	return qpn, receiveMTU, receiveMTU > EncapLen
}

// First bytes of service IDs: of the RFC, and of Linux, which got it wrong
// first and stayed with it.
const (
	cmServiceRFC   = 0x01
	cmServiceLinux = 0x10
)

// CMServiceIDs returns the service IDs at which an interface takes connections,
// by the number of its datagram queue pair: that of RFC 4755, 3.4, and that of Linux.
// Listen on both.
func CMServiceIDs(qpn ib.QPN) (rfc, linux uint64) {
	n := uint64(qpn & ib.QPNMask)
	return cmServiceRFC<<56 | n, cmServiceLinux<<56 | n
}

// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"net/netip"
	"syscall"

	"weft/internal/ib"
)

// Outcomes of asking for a path. They are syscall.Errno, so that errors.Is
// finds them.
const (
	ErrAgain    = syscall.EAGAIN   // not known yet: a resolution is under way
	ErrNoNode   = syscall.ENXIO    // no node has the address
	ErrInvalid  = syscall.EINVAL   // not the address of one node
	ErrLinkDown = syscall.ENETDOWN // the link is gone or has no carrier
	ErrNotSupp  = syscall.EOPNOTSUPP
)

// PathInfo is how packets travel to the node with an IP address. MTU, Rate and
// PacketLifetime are codes of IBA volume 1.
type PathInfo struct {
	Addr           netip.Addr
	DGID, SGID     ib.GID
	DLID, SLID     ib.LID
	FlowLabel      uint32
	PKey           ib.PKey
	SL             uint8
	MTU            ib.MTU
	Rate           ib.Rate
	PacketLifetime uint8
	HopLimit       uint8
	TClass         uint8
}

// MTUBytes returns the payload that packets on the path may have.
func (p *PathInfo) MTUBytes() int {
	if !p.MTU.Valid() {
		return 0
	}
	return p.MTU.Bytes()
}

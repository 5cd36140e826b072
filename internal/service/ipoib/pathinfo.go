// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"syscall"

	"weft/internal/proto/wire"
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

// PathInfo is how packets travel to the node with an IP address.
type PathInfo = wire.PathInfo

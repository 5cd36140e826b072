// SPDX-License-Identifier: Apache-2.0

package ipoib

import (
	"syscall"

	"weft/internal/proto/wire"
)

// Errors of path lookups. They are syscall.Errno, for errors.Is.
const (
	ErrAgain    = syscall.EAGAIN   // unknown: a resolution is under way
	ErrNoNode   = syscall.ENXIO    // no node has the address
	ErrInvalid  = syscall.EINVAL   // not the address of one node
	ErrLinkDown = syscall.ENETDOWN // the link is gone or has no carrier
	ErrNotSupp  = syscall.EOPNOTSUPP
)

// PathInfo describes the path to the node that has an IP address.
type PathInfo = wire.PathInfo

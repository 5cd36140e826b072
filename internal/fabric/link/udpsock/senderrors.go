// SPDX-License-Identifier: Apache-2.0

package udpsock

import "golang.org/x/sys/unix"

// SendErrors count datagrams that the kernel refused to send, by reason.
type SendErrors struct {
	DropTooBig    uint64 // EMSGSIZE: larger than the path's MTU
	DropNoRoute   uint64 // ENETUNREACH, EHOSTUNREACH, ENETDOWN, ENODEV
	DropDenied    uint64 // EPERM, EACCES: a firewall, or broadcast
	DropBadSource uint64 // EINVAL, EADDRNOTAVAIL: the source address is no longer one of this host
	DropNoMemory  uint64 // ENOBUFS, ENOMEM
	DropSendError uint64 // any other error
}

// Count adds n datagrams that a send call refused with e.
func (c *SendErrors) Count(e unix.Errno, n uint64) {
	switch e {
	case unix.EMSGSIZE:
		c.DropTooBig += n
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV:
		c.DropNoRoute += n
	case unix.EPERM, unix.EACCES:
		c.DropDenied += n
	case unix.EINVAL, unix.EADDRNOTAVAIL:
		c.DropBadSource += n
	case unix.ENOBUFS, unix.ENOMEM:
		c.DropNoMemory += n
	default:
		c.DropSendError += n
	}
}

// Add adds o to c.
func (c *SendErrors) Add(o *SendErrors) {
	c.DropTooBig += o.DropTooBig
	c.DropNoRoute += o.DropNoRoute
	c.DropDenied += o.DropDenied
	c.DropBadSource += o.DropBadSource
	c.DropNoMemory += o.DropNoMemory
	c.DropSendError += o.DropSendError
}

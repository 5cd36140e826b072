// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"sync"

	"golang.org/x/sys/unix"

	"weft/internal/proto/abi"
)

// backend is the channel by which the device sends messages of its own (VHOST_USER_PROTOCOL_F_BACKEND_REQ): a socket
// that the front-end made.
type backend struct {
	mu sync.Mutex // guards fd; no other lock is taken while it is held
	fd int        // plus one; 0: there is no channel
}

// replace makes fd the channel, or none if it is negative, and reports whether there was one, which is closed now.
func (b *backend) replace(fd int) (was bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was = b.fd > 0; was {
		unix.Close(b.fd - 1)
	}
	b.fd = fd + 1
	return was
}

// configChange notifies the front-end that the configuration space or the status changed. It never blocks. A channel that
// is full holds such messages: the front-end has not read the configuration for them yet.
func (b *backend) configChange() {
	var buf [abi.VUHeaderSize]byte
	m := abi.VUHeader{Request: abi.BackendConfigChange, Flags: abi.VUVersion}.Append(buf[:0])
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd > 0 {
		unix.SendmsgN(b.fd-1, m, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
}

// setBackendReqFD takes over the socket for messages of the device. Sockets of other kinds may block a lane.
func (s *Session) setBackendReqFD(m *message) error {
	if s.proto&(1<<abi.ProtoBackendReq) == 0 {
		return unix.EOPNOTSUPP
	}
	fd := m.fds[0]
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return &end{Reason: BadKind, cause: err}
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return &end{Reason: BadKind, detail: "the channel of the device is no stream of Unix sockets", cause: err}
	}
	if s.backend.replace(m.take(0)) {
		s.release(1)
	}
	return nil
}

// ConfigChanged notifies a front-end that gave a channel of a change of the configuration space. It does not block.
func (s *Session) ConfigChanged() { s.backend.configChange() }

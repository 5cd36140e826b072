// SPDX-License-Identifier: Apache-2.0

package udpsock

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Option is one socket option; What is the error text if it cannot be set.
type Option struct {
	Level, Name, Value int
	What               string
}

// Opt returns an Option.
func Opt(level, name, value int, what string) Option { return Option{level, name, value, what} }

// Open returns an unconnected, non-blocking UDP socket of one family with the
// options set, bound to port on all addresses.
func Open(v4 bool, port uint16, opts ...[]Option) (int, error) {
	family := unix.AF_INET6
	var addr unix.Sockaddr = &unix.SockaddrInet6{Port: int(port)}
	if v4 {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(port)}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	for _, list := range opts {
		for _, o := range list {
			if err := unix.SetsockoptInt(fd, o.Level, o.Name, o.Value); err != nil {
				unix.Close(fd)
				return -1, fmt.Errorf("%s: %w", o.What, err)
			}
		}
	}
	if err := unix.Bind(fd, addr); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("bind: %w", err)
	}
	return fd, nil
}

// OpenBeside returns a socket that sends from the same port as main, a socket of Open, and receives nothing. Datagrams
// that it has sent, and that the kernel still holds, are not charged to main. A third socket can have the port only if
// it belongs to the same user and asks to share the port.
func OpenBeside(main int, v4 bool, port uint16, opts ...[]Option) (int, error) {
	share := Opt(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1, "share the port")
	// main was bound without this option, so no other socket has the port.
	if err := unix.SetsockoptInt(main, share.Level, share.Name, share.Value); err != nil {
		return -1, fmt.Errorf("%s: %w", share.What, err)
	}
	fd, err := Open(v4, port, append(opts, []Option{share})...)
	if err != nil {
		return -1, err
	}
	// The BPF program always chooses the first socket of the port, which is main.
	code := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err = unix.SetsockoptSockFprog(main, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
	if err == nil {
		err = DropAll(fd)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("choose the socket that receives: %w", err)
	}
	return fd, nil
}

// SetRecvBuffer sets the receive buffer of a socket to want bytes, or to the largest size that is
// permitted, and returns its size.
func SetRecvBuffer(fd, want int) int { return setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, want) }

// SetSendBuffer is SetRecvBuffer for the send buffer.
func SetSendBuffer(fd, want int) int { return setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, want) }

// setBuffer sets a buffer's size. The kernel doubles and reports what is set.
func setBuffer(fd, force, option, want int) int {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, want) != nil {
		// Without privilege: bounded by net.core.rmem_max, silently.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, want)
	}
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return n / 2
}

// DropAll attaches a filter program that accepts zero bytes to a socket that only sends, so that its
// receive buffer stays empty.
func DropAll(fd int) error {
	code := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]})
}

// Unsupported reports whether an error of Open means that the family is absent
// from this host.
func Unsupported(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) ||
		errors.Is(err, unix.EPROTONOSUPPORT)
}

// Degraded is a state in which a link works, but less well than it could.
type Degraded struct {
	Name   string // stable, for programs
	Detail string // what it means, for people
	Fix    string
}

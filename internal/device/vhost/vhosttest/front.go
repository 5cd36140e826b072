// SPDX-License-Identifier: Apache-2.0

// Package vhosttest is the front-end of vhost-user and the driver of a virtio-net device with RoCE,
// for tests: what a virtual machine or the shim does, in Go.
//
// What comes in: the path of a device socket; what goes out: messages, control commands, work
// requests, and the completions of the device. Tests of vhost, rdmadev and node call it. It must never
// be imported except by tests.
package vhosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/proto/abi"
)

// Front is a connection to a socket.
type Front struct {
	Conn *net.UnixConn

	mu sync.Mutex
}

// Dial connects. Every request waits at most ten seconds.
func Dial(path string) (*Front, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &Front{Conn: c}, nil
}

// Close ends the connection.
func (f *Front) Close() { f.Conn.Close() }

// Send writes one message with any header flags and descriptors.
func (f *Front) Send(request, flags uint32, payload []byte, fds ...int) error {
	b := abi.VUHeader{Request: request, Flags: flags, Size: uint32(len(payload))}.Append(nil)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := f.Conn.WriteMsgUnix(append(b, payload...), oob, nil)
	return err
}

// Recv reads one answer, which must be to request.
func (f *Front) Recv(request uint32) ([]byte, error) {
	if err := f.Conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	var b [abi.VUHeaderSize]byte
	if _, err := io.ReadFull(f.Conn, b[:]); err != nil {
		return nil, err
	}
	h, err := abi.ParseVUHeader(b[:])
	if err != nil {
		return nil, err
	}
	if h.Request != request || h.Flags != abi.VUVersion|abi.VUReply {
		return nil, fmt.Errorf("answer to %#x with flags %#x, want one to %#x", h.Request, h.Flags, request)
	}
	p := make([]byte, h.Size)
	_, err = io.ReadFull(f.Conn, p)
	return p, err
}

// Get sends a request that has an answer of its own.
func (f *Front) Get(request uint32, payload []byte) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.Send(request, abi.VUVersion, payload); err != nil {
		return nil, err
	}
	return f.Recv(request)
}

// GetU64 is Get for an answer of eight bytes.
func (f *Front) GetU64(request uint32) (uint64, error) {
	p, err := f.Get(request, nil)
	if err != nil {
		return 0, err
	}
	if len(p) != 8 {
		return 0, fmt.Errorf("answer of %d bytes", len(p))
	}
	return binary.NativeEndian.Uint64(p), nil
}

// Do sends a request with need_reply and returns the errno it is answered
// with.
func (f *Front) Do(request uint32, payload []byte, fds ...int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.Send(request, abi.VUVersion|abi.VUNeedReply, payload, fds...); err != nil {
		return err
	}
	p, err := f.Recv(request)
	if err != nil {
		return err
	}
	if len(p) != 8 {
		return fmt.Errorf("answer of %d bytes", len(p))
	}
	if e := binary.NativeEndian.Uint64(p); e != 0 {
		return unix.Errno(e)
	}
	return nil
}

// U64 is a payload of eight bytes.
func U64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// Closed reports whether err means that the node ended the connection.
func Closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) ||
		errors.Is(err, net.ErrClosed)
}

// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"weft/internal/device/unixsock"
	"weft/internal/proto/abi"
)

// maxPayload bounds a message: the largest is a memory table of maxTable
// regions.
const (
	maxPayload = 4096
	maxTable   = 32 // bound of the descriptors of a message, too
)

// message is one request; it owns its descriptors until take.
type message struct {
	abi.VUHeader
	payload []byte
	fds     []int // charged to s
	s       *Session
	over    error // a Quota: the descriptors were closed at once
}

// take transfers descriptor i to the caller, which must close it.
func (m *message) take(i int) int {
	fd := m.fds[i]
	m.fds[i] = -1
	return fd
}

// close closes the descriptors that were not transferred.
func (m *message) close() {
	for _, fd := range m.fds {
		if fd >= 0 {
			unix.Close(fd)
			m.s.release(1)
		}
	}
	m.fds = nil
}

// reader reads messages off a connection.
type reader struct {
	conn *unixsock.Conn
	s    *Session
	oob  [16 + 4*maxTable]byte
	head [abi.VUHeaderSize]byte
	body [maxPayload]byte
}

// next reads one message. Its payload is valid until the next call. io.EOF is returned only between
// messages. No descriptor leaks on any error.
func (r *reader) next() (*message, error) {
	m := &message{s: r.s}
	err := r.read(m)
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (r *reader) read(m *message) error {
	// Descriptors arrive with the first byte; a header may still arrive in parts.
	for got := 0; got < len(r.head); {
		n, oobn, flags, _, err := r.conn.ReadMsgUnix(r.head[got:], r.oob[:])
		if perr := m.adopt(r.oob[:oobn]); perr != nil {
			return perr
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return fatal(BadDescriptors, "control data cut off")
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			if got == 0 && (errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)) {
				return io.EOF
			}
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			return &end{Reason: Truncated, cause: err}
		}
		got += n
	}
	m.VUHeader, _ = abi.ParseVUHeader(r.head[:])
	if m.Flags&3 != abi.VUVersion || m.Flags&^uint32(abi.VUNeedReply) != abi.VUVersion {
		return fatal(BadHeader, "request %#x has flags %#x", m.Request, m.Flags)
	}
	if m.Size > maxPayload {
		return fatal(BadSize, "request %#x has %d bytes", m.Request, m.Size)
	}
	m.payload = r.body[:m.Size]
	if _, err := io.ReadFull(r.conn, m.payload); err != nil {
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		return &end{Reason: Truncated, cause: err}
	}
	return nil
}

// adopt takes over the descriptors of a control message.
func (m *message) adopt(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return &end{Reason: BadDescriptors, cause: err}
	}
	for i := range list {
		if list[i].Header.Level != unix.SOL_SOCKET || list[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		fds, err := unix.ParseUnixRights(&list[i])
		if err != nil {
			return &end{Reason: BadDescriptors, cause: err}
		}
		if len(m.fds)+len(fds) <= maxTable && m.over == nil {
			if m.over = m.s.hold(len(fds)); m.over == nil {
				m.fds = append(m.fds, fds...)
				continue
			}
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
		if m.over == nil {
			return fatal(BadDescriptors, "more than %d descriptors", maxTable)
		}
	}
	return nil
}

// reply answers request m. The flags are exactly these: front-ends compare.
func (s *Session) reply(m *message, payload []byte) error {
	b := abi.VUHeader{Request: m.Request, Flags: abi.VUVersion | abi.VUReply,
		Size: uint32(len(payload))}.Append(s.out[:0])
	b = append(b, payload...)
	s.out = b
	if _, err := s.conn.Write(b); err != nil {
		return &end{Reason: Gone, cause: err}
	}
	return nil
}

func (s *Session) replyU64(m *message, v uint64) error {
	return s.reply(m, binary.NativeEndian.AppendUint64(nil, v))
}

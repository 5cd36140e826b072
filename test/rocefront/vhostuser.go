// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Messages of a front-end, by the names of the vhost-user specification.
const (
	getFeatures         = 1
	setFeatures         = 2
	setOwner            = 3
	setMemTable         = 5
	setVringNum         = 8
	setVringAddr        = 9
	setVringBase        = 10
	getVringBase        = 11
	setVringKick        = 12
	setVringCall        = 13
	setVringErr         = 14
	getProtocolFeatures = 15
	setProtocolFeatures = 16
	setVringEnable      = 18
	getConfig           = 24
	addMemReg           = 37
	setStatus           = 39
	getStatus           = 40
)

// Flags of a message.
const (
	msgVersion   = 1
	msgReply     = 1 << 2
	msgNeedReply = 1 << 3
)

// Protocol features.
const (
	protocolMQ       = 1 << 0
	protocolReplyAck = 1 << 3
	protocolConfig   = 1 << 9
	protocolMemSlots = 1 << 15
	protocolStatus   = 1 << 16
)

// messageLimit bounds how long a device may take to answer a message.
const messageLimit = 30 * time.Second

// connection is a vhost-user session of a front-end.
type connection struct {
	sock     *net.UnixConn
	replyAck bool
}

func dial(path string) (*connection, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &connection{sock: c}, nil
}

// send sends a message. Descriptors go with its first octet.
func (c *connection) send(request, flags uint32, payload []byte, fds ...int) error {
	b := le.AppendUint32(nil, request)
	b = le.AppendUint32(b, flags|msgVersion)
	b = le.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.sock.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.sock.Write(b[n:])
	}
	if err != nil {
		return fmt.Errorf("vhost-user message %d: %w", request, err)
	}
	return nil
}

// receive reads the reply of a message.
func (c *connection) receive(request uint32) ([]byte, error) {
	var head [12]byte
	if err := c.sock.SetReadDeadline(time.Now().Add(messageLimit)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c.sock, head[:]); err != nil {
		return nil, fmt.Errorf("vhost-user message %d: no reply: %w", request, err)
	}
	if got, flags := le.Uint32(head[:]), le.Uint32(head[4:]); got != request || flags != msgVersion|msgReply {
		return nil, fmt.Errorf("vhost-user message %d: the reply is to %d, with flags %#x", request, got, flags)
	}
	size := le.Uint32(head[8:])
	if size > 4096 {
		return nil, fmt.Errorf("vhost-user message %d: the reply has %d octets", request, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.sock, b); err != nil {
		return nil, fmt.Errorf("vhost-user message %d: the reply ends early: %w", request, err)
	}
	return b, nil
}

// do sends a message that has no reply of its own, and returns the device's error if it reports errors.
func (c *connection) do(request uint32, payload []byte, fds ...int) error {
	if !c.replyAck {
		return c.send(request, 0, payload, fds...)
	}
	if err := c.send(request, msgNeedReply, payload, fds...); err != nil {
		return err
	}
	b, err := c.receive(request)
	switch {
	case err != nil:
		return err
	case len(b) != 8:
		return fmt.Errorf("vhost-user message %d: an acknowledgement of %d octets", request, len(b))
	case le.Uint64(b) != 0:
		return fmt.Errorf("vhost-user message %d: the device reports error %d", request, le.Uint64(b))
	}
	return nil
}

// get sends a message that has a reply, and returns the reply.
func (c *connection) get(request uint32, payload []byte) ([]byte, error) {
	if err := c.send(request, 0, payload); err != nil {
		return nil, err
	}
	return c.receive(request)
}

func (c *connection) get64(request uint32) (uint64, error) {
	b, err := c.get(request, nil)
	if err == nil && len(b) != 8 {
		err = fmt.Errorf("vhost-user message %d: the reply has %d octets, not 8", request, len(b))
	}
	if err != nil {
		return 0, err
	}
	return le.Uint64(b), nil
}

// ended returns whether the device closed the connection.
func (c *connection) ended() bool {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return true
	}
	closed := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = err == nil && n == 0 || err != nil && !errors.Is(err, unix.EAGAIN)
	})
	return closed || err != nil
}

func u64(v uint64) []byte { return le.AppendUint64(nil, v) }

// vringState is the payload of messages about a ring that have one number.
func vringState(index int, v uint32) []byte {
	return le.AppendUint32(le.AppendUint32(nil, uint32(index)), v)
}

func appendRegion(b []byte, r region) []byte {
	b = le.AppendUint64(b, r.guest)
	b = le.AppendUint64(b, r.size)
	b = le.AppendUint64(b, r.user)
	return le.AppendUint64(b, r.at)
}

// announce gives the memory to the device: region by region, or all by SET_MEM_TABLE.
func (c *connection) announce(m *Memory, table bool) error {
	fd := int(m.file.Fd())
	if !table {
		for _, r := range m.regions {
			if err := c.do(addMemReg, appendRegion(u64(0), r), fd); err != nil {
				return err
			}
		}
		return nil
	}
	b := le.AppendUint64(nil, uint64(len(m.regions)))
	var fds []int
	for _, r := range m.regions {
		b, fds = appendRegion(b, r), append(fds, fd)
	}
	return c.do(setMemTable, b, fds...)
}

// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// Framing is how a driver divides a control command into descriptors: the device must not depend on it (virtio 1.2,
// 2.6.4).
type Framing int

const (
	// ByPart is a descriptor for each of: class and command, data, ack, result.
	ByPart Framing = iota
	// Whole is a descriptor for all that the device reads and a descriptor for all that it writes.
	Whole
	// ByField is a descriptor for each four octets, or less, of each part; class and command have one each.
	ByField
	// Indirect is ByPart in an indirect table.
	Indirect
)

// Values of the ack field.
const (
	ackOK  = 0
	ackErr = 1
)

// commandLimit bounds how long a device may take for a control command.
const commandLimit = 30 * time.Second

// poison fills memory that the device is to write.
const poison = 0xee

// Refused is a command that the device answered with an ack that is not VIRTIO_NET_OK.
type Refused struct {
	Class, Command, Ack byte
}

func (r *Refused) Error() string {
	return fmt.Sprintf("command %d of class %d: the device answers ack %d", r.Command, r.Class, r.Ack)
}

// Command sends a control command. result is how many octets of ack-specific data the command has. The device's refusal
// is a *Refused.
func (d *Device) Command(class, command byte, data []byte, result int) ([]byte, error) {
	return d.command(class, command, data, nil, result)
}

// command is Command. behind is placed in guest memory directly behind the data, in no descriptor.
func (d *Device) command(class, command byte, data, behind []byte, result int) ([]byte, error) {
	req := d.Memory.Bytes(d.request, 2+len(data)+len(behind))
	req[0], req[1] = class, command
	copy(req[2:], data)
	copy(req[2+len(data):], behind)
	res := d.Memory.Bytes(d.result, 1+result)
	for i := range res {
		res[i] = poison
	}
	list := d.frame(len(data), result)
	post := d.ctrl.post
	if d.opts.Framing == Indirect {
		post = d.ctrl.postIndirect
	}
	name := fmt.Sprintf("command %d of class %d", command, class)
	if _, err := post(list...); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, written, err := d.ctrl.wait(commandLimit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	switch ack := res[0]; {
	case ack == ackErr:
		return nil, &Refused{class, command, ack}
	case ack != ackOK:
		return nil, fmt.Errorf("%s: ack %d is neither VIRTIO_NET_OK nor VIRTIO_NET_ERR", name, ack)
	case int(written) != 1+result:
		return nil, fmt.Errorf("%s: the device wrote %d octets, not %d", name, written, 1+result)
	}
	return bytes.Clone(res[1:]), nil
}

// frame divides a command by the options.
func (d *Device) frame(data, result int) []segment {
	part := func(list []segment, addr uint64, size, piece int, write bool) []segment {
		for size > 0 {
			n := min(size, piece)
			list = append(list, segment{addr, n, write})
			addr, size = addr+uint64(n), size-n
		}
		return list
	}
	const all = 1 << 30
	switch d.opts.Framing {
	case Whole:
		return []segment{{d.request, 2 + data, false}, {d.result, 1 + result, true}}
	case ByField:
		head, piece := 1, 4
		if n := (data+3)/4 + (result+3)/4; n > 48 {
			piece = 64
		}
		list := part(nil, d.request, 2, head, false)
		list = part(list, d.request+2, data, piece, false)
		list = part(list, d.result, 1, 1, true)
		return part(list, d.result+1, result, piece, true)
	}
	list := part(nil, d.request, 2, all, false)
	list = part(list, d.request+2, data, all, false)
	list = part(list, d.result, 1, all, true)
	return part(list, d.result+1, result, all, true)
}

// encode returns a structure of the RFC in its order and byte order, without any padding of a compiler.
func encode(v any) []byte {
	b, err := binary.Append(nil, le, v)
	if err != nil {
		panic(fmt.Sprintf("rocefront: encode %T: %v", v, err))
	}
	return b
}

func decode(b []byte, v any) error {
	n, err := binary.Decode(b, le, v)
	if err == nil && n != len(b) {
		err = fmt.Errorf("%T has %d octets, the device's has %d", v, n, len(b))
	}
	return err
}

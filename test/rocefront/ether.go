// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Classes of the control queue besides ClassRoCE (virtio 1.2, 5.1.6.5), which need a feature each.
const (
	ClassRX            = 0 // FeatureCtrlRX
	ClassMAC           = 1 // FeatureCtrlRX; the address itself FeatureCtrlMAC
	ClassMQ            = 4 // FeatureMQ
	ClassGuestOffloads = 5 // FeatureGuestOffloads
)

// netHeader is the size of struct virtio_net_hdr_v1: without offloads all of it is 0 in what the driver sends.
const netHeader = 12

// frameRoom is the size of a buffer of the receive queue.
const frameRoom = 12 + 9216

// netQueue is a pair of Ethernet queues: receiveq and transmitq.
type netQueue struct {
	rx, tx  *ring
	buffers map[uint16]uint64 // of the receive queue, by their head
	out     uint64            // of the transmit queue
	pending [][]byte          // frames that have come
}

// startNet starts the first pair of Ethernet queues, and fills the receive queue.
func (d *Device) startNet() error {
	const size = 64
	n := &netQueue{buffers: map[uint16]uint64{}, out: d.Memory.Alloc(frameRoom)}
	var err error
	if n.rx, err = d.startRing(0, size); err != nil {
		return err
	}
	if n.tx, err = d.startRing(1, size); err != nil {
		return err
	}
	for range size {
		if err := n.fill(d.Memory.Alloc(frameRoom)); err != nil {
			return err
		}
	}
	d.net = n
	return nil
}

func (n *netQueue) fill(at uint64) error {
	head, err := n.rx.post(segment{at, frameRoom, true})
	n.buffers[head] = at
	return err
}

// SendFrame sends an Ethernet frame, without its check sequence, and waits until the device has taken the frame.
func (d *Device) SendFrame(frame []byte, limit time.Duration) error {
	n := d.net
	b := d.Memory.Bytes(n.out, netHeader+len(frame))
	clear(b[:netHeader])
	copy(b[netHeader:], frame)
	if _, err := n.tx.post(segment{n.out, len(b), false}); err != nil {
		return fmt.Errorf("transmitq: %w", err)
	}
	if _, _, err := n.tx.wait(limit); err != nil {
		return fmt.Errorf("transmitq: a frame is not taken: %w", err)
	}
	return nil
}

// pendingLimit bounds the frames that ReceiveFrame has not returned.
const pendingLimit = 256

// takeFrames takes what the receive queue has: the device's IP stack handles some frames, the others are kept.
func (d *Device) takeFrames() error {
	n := d.net
	for {
		head, written, ok, err := n.rx.reap()
		if err != nil || !ok {
			return err
		}
		at := n.buffers[head]
		delete(n.buffers, head)
		if written < netHeader+14 || written > frameRoom {
			return fmt.Errorf("receiveq: the device wrote %d octets", written)
		}
		b := bytes.Clone(d.Memory.Bytes(at, int(written)))
		if err := n.fill(at); err != nil {
			return err
		}
		if got := le.Uint16(b[10:]); got != 1 {
			return fmt.Errorf("receiveq: num_buffers is %d without VIRTIO_NET_F_MRG_RXBUF", got)
		}
		if frame := b[netHeader:]; len(n.pending) < pendingLimit {
			n.pending = append(n.pending, frame)
		}
		if err := d.answer(b[netHeader:]); err != nil {
			return err
		}
	}
}

// serve does what a guest does beside what it waits for: d and the devices of d.Beside take frames and answer questions
// for their addresses.
func (d *Device) serve() error {
	if d.serving {
		return nil
	}
	d.serving = true
	defer func() { d.serving = false }()
	for _, o := range append([]*Device{d}, d.Beside...) {
		if o.net == nil || o.closed || o != d && o.serving {
			continue
		}
		if err := o.takeFrames(); err != nil {
			return err
		}
	}
	return nil
}

// ReceiveFrame returns the next Ethernet frame of the receive queue that want accepts, and drops others.
func (d *Device) ReceiveFrame(limit time.Duration, want func(frame []byte) bool) ([]byte, error) {
	for until := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		if err := d.serve(); err != nil {
			return nil, err
		}
		for len(d.net.pending) > 0 {
			frame := d.net.pending[0]
			d.net.pending = d.net.pending[1:]
			if want(frame) {
				return frame, nil
			}
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("receiveq: %w after %v", ErrTimeout, limit)
		}
	}
}

// NoFrame returns an error if a frame that want accepts comes within a time.
func (d *Device) NoFrame(limit time.Duration, want func(frame []byte) bool) error {
	f, err := d.ReceiveFrame(limit, want)
	if errors.Is(err, ErrTimeout) {
		return nil
	}
	return errors.Join(err, fmt.Errorf("receiveq: a frame that is not for this card: %x", f))
}

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
	d.net = []*netQueue{n}
	return nil
}

func (n *netQueue) fill(at uint64) error {
	head, err := n.rx.post(segment{at, frameRoom, true})
	n.buffers[head] = at
	return err
}

// SendFrame sends an Ethernet frame, without its check sequence, and waits until the device has taken the frame.
func (d *Device) SendFrame(frame []byte, limit time.Duration) error {
	n := d.net[0]
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

// ReceiveFrame returns the next Ethernet frame of the receive queue that want accepts, and drops others.
func (d *Device) ReceiveFrame(limit time.Duration, want func(frame []byte) bool) ([]byte, error) {
	n := d.net[0]
	for until := time.Now().Add(limit); ; {
		head, written, err := n.rx.wait(max(0, time.Until(until)))
		if err != nil {
			return nil, fmt.Errorf("receiveq: %w", err)
		}
		if written < netHeader+14 || written > frameRoom {
			return nil, fmt.Errorf("receiveq: the device wrote %d octets", written)
		}
		at := n.buffers[head]
		delete(n.buffers, head)
		b := bytes.Clone(d.Memory.Bytes(at, int(written)))
		if err := n.fill(at); err != nil {
			return nil, err
		}
		if got := le.Uint16(b[10:]); got != 1 {
			return nil, fmt.Errorf("receiveq: num_buffers is %d without VIRTIO_NET_F_MRG_RXBUF", got)
		}
		if frame := b[netHeader:]; want(frame) {
			return frame, nil
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

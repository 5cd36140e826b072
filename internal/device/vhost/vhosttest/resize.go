// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"testing"

	"weft/internal/device/virtio/virtiotest"
	"weft/internal/proto/abi"
)

// renew stops a ring and starts it anew in other memory with num entries, as a front-end has it done for a driver
// that resets one virtqueue (VIRTIO_F_RING_RESET).
func (d *Driver) renew(t testing.TB, r *ring, num int) error {
	t.Helper()
	if err := d.detach(r); err != nil {
		return err
	}
	r.Ring = virtiotest.NewRing(d.Mem, num, false)
	return d.attach(t, r, 1)
}

// enableRing enables or disables a running ring.
func (d *Driver) enableRing(r *ring, on bool) error {
	m := abi.VUVringState{Index: uint32(r.index)}
	if on {
		m.Num = 1
	}
	return d.Do(abi.ReqSetVringEnable, m.Append(nil))
}

// Renew gives both rings of a queue pair num entries in other memory. The elements that were in them
// are dropped.
func (q *QP) Renew(t testing.TB, num int) error {
	t.Helper()
	q.sq, q.rq = q.d.Mem.Alloc(num*q.slot, 64), q.d.Mem.Alloc(num*q.rslot, 64)
	if err := q.d.renew(t, q.send, num); err != nil {
		return err
	}
	return q.d.renew(t, q.recv, num)
}

// EnableSend and EnableRecv let the device use a ring of a queue pair, or not.
func (q *QP) EnableSend(on bool) error { return q.d.enableRing(q.send, on) }

// EnableRecv is EnableSend for the receive ring.
func (q *QP) EnableRecv(on bool) error { return q.d.enableRing(q.recv, on) }

// Renew gives the ring of a completion queue num entries in other memory, all of them buffers.
func (c *CQ) Renew(t testing.TB, num int) error {
	t.Helper()
	c.buf = c.d.Mem.Alloc(num*abi.CQESize, 64)
	if err := c.d.renew(t, c.ring, num); err != nil {
		return err
	}
	for range num {
		c.refill()
	}
	c.ring.Publish()
	c.d.ringBell(c.ring)
	return nil
}

// Enable lets the device use the ring of a completion queue, or not.
func (c *CQ) Enable(on bool) error { return c.d.enableRing(c.ring, on) }

// StopControl stops the control queue as a front-end does when its machine pauses, and returns the base from which the
// queue goes on.
func (d *Driver) StopControl() (base uint32, err error) {
	b, err := d.Get(abi.ReqGetVringBase, abi.VUVringState{Index: uint32(d.ctrl.index)}.Append(nil))
	if err != nil {
		return 0, err
	}
	st, err := abi.ParseVUVringState(b)
	return st.Num, err
}

// StartControl starts the control queue again. With anew it does so as for a driver that begins: the queue is empty,
// and its base is 0.
func (d *Driver) StartControl(t testing.TB, base uint32, anew bool) error {
	if anew {
		d.ctrl.Ring, base = virtiotest.NewRing(d.Mem, d.Opt.RingNum, false), 0
	}
	return d.attachAt(t, d.ctrl, base, 1)
}

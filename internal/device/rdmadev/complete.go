// SPDX-License-Identifier: Apache-2.0

package rdmadev

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/verbs/hca"
)

// cqRing delivers completions into the buffers of a completion virtqueue.
type cqRing struct {
	*ring
	cqn     uint32
	arm     uint32 // by command
	shared  bool   // … or, if the client gave one, by a word in its memory
	word    virtio.Word
	pending bool // put since the last publish
}

func (d *Device) bindCQ(cqn uint32) {
	r := d.ring(d.cqRing(cqn))
	cq, err := d.sess.CQ(cqn)
	if err != nil {
		return
	}
	c := &cqRing{ring: r, cqn: cqn}
	r.queue, r.fails = fmt.Sprintf("completion queue %d", cqn), cq.Break
	d.cqs[cqn] = c
	r.posted = func() {} // buffers became available: the lane polls by itself
	r.started = func() { cq.SetRing(c) }
	r.stopped = func() { cq.SetRing(nil) }
	r.needNone()
	if r.vq != nil {
		r.started()
	}
}

// Put implements hca.CQRing.
func (c *cqRing) Put(e *hca.CQE) bool {
	el, ok := c.take(true)
	if !ok {
		return false
	}
	if len(el.Data) < abi.CQESize {
		c.fault(fmt.Errorf("a completion buffer of %d bytes, need %d", len(el.Data), abi.CQESize))
		return c.d.dead
	}
	w := abi.CQE{WRID: e.WRID, Status: abi.WireStatus(e.Status), Opcode: abi.WireWCOp(e.Op), VendorErr: e.VendorErr,
		ByteLen: e.ByteLen, QPN: e.QPN, SrcQP: e.SrcQPN, Flags: e.Flags}
	if e.Flags&ib.WCWithInv != 0 {
		w.Flags = e.Flags&^ib.WCWithInv | abi.WCFlagWithInv
		binary.LittleEndian.PutUint32(w.Imm[:], e.Imm)
	} else {
		binary.BigEndian.PutUint32(w.Imm[:], e.Imm)
	}
	if c.d.ext&extPortAttr != 0 {
		w.SL, w.SLID, w.DLIDPathBits, w.PKeyIndex = e.SL, e.SLID, e.PathBits, e.PKeyIndex
	}
	w.Put(el.Data)
	c.vq.PushElem(el, abi.CQESize)
	c.pending = true
	return true
}

// Publish implements hca.CQRing: it publishes the entries, then the index, then checks whether the
// client armed the queue.
func (c *cqRing) Publish(solicited bool) {
	if !c.pending || c.vq == nil || c.d.dead {
		return
	}
	c.pending = false
	c.vq.Publish() // the arm word decides on the notification
	qualifies := func(arm uint32) bool {
		return arm&abi.ArmNext != 0 || arm&abi.ArmSolicited != 0 && solicited
	}
	tell := qualifies(c.arm)
	if tell {
		c.arm = abi.ArmNone
	}
	// Client and node both swap the word back; the one that gets the armed value notifies.
	if c.shared && qualifies(c.word.Load()) && c.word.Swap(abi.ArmNone) != abi.ArmNone {
		tell = true
	}
	if tell {
		c.notify()
	}
}

func (d *Device) reqNotify(v abi.ReqNotifyCQ, _ []byte) error {
	c := d.cqs[v.CQN]
	if c == nil {
		return syscall.ENOENT
	}
	if v.Flags&^3 != 0 {
		return syscall.EINVAL
	}
	switch {
	case v.Flags == abi.ArmNone:
		c.arm = abi.ArmNone
	case v.Flags&abi.ArmNext != 0:
		c.arm = abi.ArmNext
	case c.arm == abi.ArmNone:
		c.arm = abi.ArmSolicited
	}
	return nil
}

func (d *Device) setArmArea(v abi.SetArmArea, _ []byte) error {
	c := d.cqs[v.CQN]
	if c == nil {
		return syscall.ENOENT
	}
	w, err := virtio.NewWord(d.guest.Words, v.GPA)
	if v.Flags != 0 || err != nil {
		return syscall.EINVAL
	}
	c.word, c.shared = w, true
	return nil
}

// eventQueue writes asynchronous events into the ring of a completion queue
// that is set aside for them.
type eventQueue struct {
	*ring
	cqn uint32
	// wait holds the events that found no buffer, each kind of each object
	// once, which bounds it; waits is the same as a set.
	wait  []abi.Event
	waits map[abi.Event]bool
}

func (d *Device) setEVQ(v abi.SetEVQ, _ []byte) error {
	cq, err := d.sess.CQ(v.CQN)
	if err != nil {
		return err
	}
	if v.Flags != 0 || d.evq != nil {
		return syscall.EINVAL
	}
	if err := cq.Reserve(); err != nil {
		return err
	}
	r := d.ring(d.cqRing(v.CQN))
	r.queue, r.fails = fmt.Sprintf("event queue %d", v.CQN), nil // a fault ends the service: its driver gets no events
	r.kicks.still = false
	r.await()
	e := &eventQueue{ring: r, cqn: v.CQN, waits: make(map[abi.Event]bool)}
	r.posted = e.drain
	r.started, r.stopped = e.drain, func() {}
	d.evq = e
	delete(d.cqs, v.CQN)
	return nil
}

// Event implements hca.EventSink.
func (d *Device) Event(e ib.Event, object uint32) {
	d.Stats.Events++
	if d.evq == nil {
		return // the client did not arm the queue
	}
	ev := abi.Event{Type: uint32(e), Object: object}
	if d.evq.waits[ev] {
		return
	}
	d.evq.wait, d.evq.waits[ev] = append(d.evq.wait, ev), true
	d.evq.drain()
}

func (e *eventQueue) drain() {
	for len(e.wait) > 0 && e.vq != nil {
		el, ok := e.take(true)
		if !ok {
			return
		}
		if len(el.Data) < abi.EventSize {
			e.fault(fmt.Errorf("an event buffer of %d bytes, need %d", len(el.Data), abi.EventSize))
			return
		}
		copy(el.Data, e.wait[0].Append(nil))
		delete(e.waits, e.wait[0])
		e.wait = e.wait[1:]
		e.vq.PushElem(el, abi.EventSize)
		e.vq.Publish()
		e.notify()
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package rdmadev is the RoCE half of the virtio-net device: it turns control commands into verbs of a
// session of the adapter, send and receive elements into work requests, and completions and events
// into ring elements.
//
// What comes in: messages of a vhost-user session (package vhost), which call a Device from the
// session's goroutine, and the lane's turns; what goes out: calls of an hca.Session and bytes in the
// client's rings. Everything that the client wrote is copied once and the copy is validated. The
// layouts are those of docs/notes/abi.md and of the virtio RoCE RFC v2.
//
// A Device belongs to one lane. It must never read a number of the client twice, block for the client,
// or let one client's fault reach another.
package rdmadev

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"syscall"

	"weft/internal/device/virtio"
	"weft/internal/proto/abi"
	"weft/internal/proto/ib"
	"weft/internal/proto/mem"
	"weft/internal/proto/mono"
	"weft/internal/verbs/hca"
)

// Guest is the memory a client announced, by what the device does with it.
type Guest struct {
	Space mem.Space     // what memory keys are registered on
	Words virtio.Memory // where completion queues have their arm words
	// Contains reports whether [addr, addr+n) lies within announced memory.
	Contains func(addr, n uint64) bool
}

// Caller notifies a client.
type Caller interface {
	// Call writes the notification; again reports that there is no room now and that the call must be
	// repeated.
	Call() (again bool)
}

// Stats count what a device saw; each refusal has its name.
type Stats struct {
	Commands, CtrlErrors, CtrlNoRoom, Events, Calls, CallsDeferred uint64
	// Refused commands by reason; together they are CtrlErrors.
	RefusedFraming   uint64 // no command, or too short, or no room for the result
	RefusedCommand   uint64 // not of this device, or its extension is not enabled (EOPNOTSUPP)
	RefusedHandle    uint64 // names no object (ENOENT)
	RefusedInUse     uint64 // the object is in use (EBUSY)
	RefusedQuota     uint64 // a quota is used up (ENOSPC, ENOMEM)
	RefusedAddress   uint64 // not in announced memory (EFAULT)
	RefusedRight     uint64 // not for this client, or not to that destination (EPERM, EACCES)
	RefusedValue     uint64 // a value, or a transition of states (EINVAL, and what remains)
	MalformedSend    uint64 // send elements that complete with LOC_QP_OP_ERR
	MalformedReceive uint64 // receive elements that complete with LOC_QP_OP_ERR
	BrokenRings      uint64 // rings that the client broke; buffers of another size in them count as well
}

// Config describes a device to make.
type Config struct {
	Adapter *hca.Adapter
	Lane    *hca.Lane
	Guest   Guest
	Now     func() mono.Time
	Log     *slog.Logger
	// MaxCQ and MaxQP are the numbers of rings the socket can name.
	MaxCQ, MaxQP uint32
	// FirstRing is the number of the first completion ring of a device that is a part of another one: that one has the
	// control queue, and calls Execute. 0: the device has its control queue itself, in ring 2.
	FirstRing uint32
	// MaxRing is the number of entries of the largest ring that the client can have; 0: the quotas bound its queues.
	MaxRing uint32
	// SetGID makes ADD_GID and DEL_GID change the GID table of the port: a zero GID empties the entry. The session then
	// uses that table. nil: the session has a table of its own, of addresses that the port has.
	SetGID func(index uint32, gid ib.GID) error
	// Verbs is a program's device (WEFT_HELLO): it offers the extensions that only programs can use.
	Verbs bool
	// Privileged clients may give their queue pairs controlled Q_Keys.
	Privileged bool
	// Fail reports, from within a turn, a fault of the client after which the device does nothing for it: it reads and
	// writes no ring any more. Fail must not call the device; the caller closes the device after the turn.
	Fail func(reason error)
	// Broke reports, from within a turn, that the client broke the ring of an object, which is in error now; everything
	// else goes on. It must not call the device. nil: a fault in any ring is one for Fail. A program has rings of its
	// own only; behind the rings of a guest's driver there are many programs, and one must not end the service of all.
	Broke func(reason error)
}

// Device is the device of one client. All methods run on the client's lane.
type Device struct {
	Stats   Stats
	cfg     Config
	adapter *hca.Adapter
	sess    *hca.Session
	guest   Guest
	proc    mem.Space // the process by address; nil where it was not handed over
	log     *slog.Logger
	ext     uint64

	rings   map[uint32]*ring
	cqs     map[uint32]*cqRing
	evq     *eventQueue
	bell    *virtio.Doorbell
	rung    []uint32 // rings with a pending bell, of one turn
	polled  polledRings
	owing   []*ring // have notifications that found no room
	chain   virtio.Chain
	ctrl    []byte             // a copy of the command in execution
	after   func(n int) []byte // guest memory behind that command (Execute)
	refused refusals
	scratch [1024]byte
	answer  [256]byte
	dead    bool
	behind  bool // the control queue has commands left for the next turn
}

// New makes a device with a session of its own; the caller attaches it to the
// adapter.
func New(c Config) *Device {
	d := &Device{cfg: c, adapter: c.Adapter, guest: c.Guest, log: c.Log,
		rings: make(map[uint32]*ring), cqs: make(map[uint32]*cqRing)}
	d.sess = c.Lane.NewSession(c.Adapter, d, c.MaxCQ, c.MaxQP, !c.Verbs)
	if c.SetGID != nil {
		d.sess.UsePortGIDs()
	}
	d.sess.SetStrict(true)
	d.sess.SetPageSpace(d.pageSpace)
	return d
}

// Session returns the adapter's session.
func (d *Device) Session() *hca.Session { return d.sess }

// SetProc gives the device the client's memory by address.
func (d *Device) SetProc(s mem.Space) { d.proc = s }

// Close destroys every object of the client.
func (d *Device) Close() {
	d.dead = true
	d.sess.Close()
	d.polled = nil
	for _, r := range d.rings {
		r.vq = nil
	}
}

// Orphan is Close for a client that died: the peers of connected queue pairs are made to fail. It reports whether there
// are any, and the session must not be detached yet (hca.Session.Orphan).
func (d *Device) Orphan() bool {
	orphaned := d.sess.Orphan(d.now())
	d.Close()
	return orphaned
}

func (d *Device) now() mono.Time { return d.cfg.Now() }

// offered returns the extension bits this device has.
func (d *Device) offered() uint64 {
	offer := uint64(extAtomic | extMemMgt | extMW | extSRQ | extEVQ | extErrno | extSGWQE | extArm |
		extAtomicWrite | partsOfVerbs)
	if d.cfg.Verbs {
		offer |= extVerbs | extSRQResize // registration by address, and rings that move
	}
	return offer
}

// fail ends the service of the device, and notes the reason as a refusal.
func (d *Device) fail(format string, args ...any) {
	if !d.dead {
		d.dead = true
		err := fmt.Errorf(format, args...)
		d.Stats.BrokenRings++
		d.note("device", syscall.EIO, err.Error())
		d.cfg.Fail(err)
	}
}

// Ring numbers of a device with a control queue of its own: one Ethernet queue pair, the control queue, then completion
// rings, then a send and a receive ring per queue pair.
const (
	ctrlRing     = 2
	ownFirstRing = 3
)

// firstRing is the number of the first completion ring.
func (d *Device) firstRing() uint32 {
	if d.cfg.FirstRing != 0 {
		return d.cfg.FirstRing
	}
	return ownFirstRing
}

func (d *Device) cqRing(cqn uint32) uint32    { return d.firstRing() + cqn }
func (d *Device) sendRing(slot uint32) uint32 { return d.firstRing() + d.cfg.MaxCQ + 2*slot }
func (d *Device) recvRing(slot uint32) uint32 { return d.sendRing(slot) + 1 }

// Rings returns how many rings there are, up to the last one of the device.
func (d *Device) Rings() uint32 { return d.firstRing() + d.cfg.MaxCQ + 2*d.cfg.MaxQP }

// ring is one virtqueue of the device, from the first command or message that names it: objects and
// virtqueues bind to it in any order.
type ring struct {
	d       *Device
	index   uint32
	vq      *virtio.Queue // nil: not started
	call    Caller        // nil: no notifications
	posted  func()        // new elements; nil: nothing is bound
	started func()
	stopped func()
	shared  bool // a shared receive queue is bound
	owed    int  // notifications that found no room
	// broken is the fault of the client in the ring: no element is taken before the object is destroyed. fails puts the
	// object into error, nil: the ring is the driver's own. queue names the object.
	broken error
	fails  func()
	queue  string
	// A ring that stops may continue later: elements that were popped stay with the device, and those
	// that complete before then are returned at that time. Or it restarts: then elements popped before
	// are not returned. gen distinguishes the two, in the cookies of elements.
	idle *virtio.Queue
	late []uint16
	gen  uint16

	kicks kicks
}

func (d *Device) ring(i uint32) *ring {
	r := d.rings[i]
	if r == nil {
		r = &ring{d: d, index: i}
		if i == ownControl(&d.cfg) {
			r.posted = func() { d.control(r) }
			r.started, r.stopped = r.posted, func() {}
		}
		d.rings[i] = r
	}
	return r
}

// resetRing unbinds the destroyed object of a ring and resets its indices to zero, as the driver does
// on its side.
func (d *Device) resetRing(i uint32) {
	r := d.rings[i]
	if r == nil {
		return
	}
	r.posted, r.started, r.stopped, r.shared, r.owed = nil, nil, nil, false, 0
	r.broken, r.fails, r.queue = nil, nil, ""
	r.idle, r.late, r.gen = nil, nil, r.gen+1
	d.polled.remove(r)
	r.kicks.still = false
	if r.vq != nil {
		r.vq.Reset()
		r.await()
	}
	delete(d.cqs, i-d.firstRing())
}

// StartRing sets the virtqueue of ring i and polls it. A stopped ring continues; a ring with other
// memory or another size restarts.
func (d *Device) StartRing(i uint32, q *virtio.Queue, call Caller) {
	if d.dead {
		return
	}
	r := d.ring(i)
	goesOn := r.idle != nil && q.Continue(r.idle)
	if !goesOn {
		r.gen++
		r.late = r.late[:0]
	}
	r.idle, r.vq, r.call = nil, q, call
	switch {
	case call == nil:
		r.owed = 0 // notifications are off
	case r.owed > 0:
		d.owing = append(d.owing, r)
	}
	for _, head := range r.late {
		q.PushUsed(head, 0)
	}
	r.late = r.late[:0]
	r.await()
	if r.started != nil {
		r.started()
	}
	r.Publish()
}

// StopRing removes the virtqueue and returns it; nil if there was none.
func (d *Device) StopRing(i uint32) *virtio.Queue {
	r := d.rings[i]
	if r == nil || r.vq == nil {
		return nil
	}
	q := r.vq
	d.polled.remove(r)
	if r.stopped != nil && !d.dead {
		r.stopped()
	}
	r.Publish()
	// The session closes the descriptor: its number may soon mean another file.
	r.vq, r.idle, r.call = nil, q, nil
	d.owing = slices.DeleteFunc(d.owing, func(o *ring) bool { return o == r })
	return q
}

// MoveRing replaces the virtqueue of ring i, a running ring of a shared receive queue, by q, which
// resumes at the first element that the client has not seen as used. The ring is never without a
// virtqueue: peers see no interruption. Popped requests continue, and their elements are used. EINVAL
// if q does not have all available elements: nothing has changed.
func (d *Device) MoveRing(i uint32, q *virtio.Queue) error {
	r := d.rings[i]
	switch {
	case d.ext&extSRQResize == 0:
		return syscall.EOPNOTSUPP
	case d.dead:
		return syscall.EIO
	case r == nil || r.vq == nil || !r.shared:
		return syscall.EINVAL
	}
	ok, err := q.Succeed(r.vq)
	if err != nil {
		r.fault(err)
		return err
	}
	if !ok {
		return syscall.EINVAL
	}
	r.vq, r.gen = q, r.gen+1
	r.Publish()
	return nil
}

// SetDoorbell sets the doorbell of the client.
func (d *Device) SetDoorbell(b *virtio.Doorbell) { d.bell = b }

// Kick looks at ring i, to which the client has posted.
func (d *Device) Kick(i uint32) {
	if r := d.rings[i]; r != nil && r.vq != nil && r.posted != nil && r.broken == nil && !d.dead {
		r.poll()
		r.posted()
	}
}

// Poll polls every ring with a pending bell and reports whether there was one.
func (d *Device) Poll() bool {
	if d.dead {
		return false
	}
	if len(d.owing) > 0 {
		d.settle()
	}
	busy := d.behind
	if busy {
		d.behind = false
		d.Kick(ctrlRing)
	}
	if busy = d.polled.look() || busy; d.bell == nil || d.dead {
		return busy
	}
	d.rung = d.bell.Rings(d.rung[:0])
	for _, i := range d.rung {
		d.Kick(i)
	}
	return busy || len(d.rung) > 0
}

// Sleep enables kicks; it returns false if there is work already. Owed notifications count as work, to
// be repeated soon.
func (d *Device) Sleep() bool {
	if d.dead {
		return true
	}
	again := d.polled.await()
	return !d.behind && !again && (d.bell == nil || !d.bell.Sleep())
}

// Wake takes the request for a kick back.
func (d *Device) Wake() {
	if d.bell != nil {
		d.bell.Wake()
	}
}

// Owing reports whether notifications wait for room.
func (d *Device) Owing() bool { return len(d.owing) > 0 && !d.dead }

// next returns the next element that the client filled.
func (r *ring) next() (e virtio.Elem, ok bool) { return r.take(false) }

// take returns the next element.
func (r *ring) take(writable bool) (e virtio.Elem, ok bool) {
	if r.vq == nil || r.broken != nil || r.d.dead {
		return e, false
	}
	e, ok, err := r.vq.Next(writable)
	if err != nil {
		r.fault(err)
		return e, false
	}
	return e, ok
}

// fault handles a mistake of the client in the ring. The object of the ring is in error then, and elements that were
// taken before are used; or the service of the device ends.
func (r *ring) fault(err error) {
	d := r.d
	if r.fails == nil || d.cfg.Broke == nil {
		d.fail("%s, ring %d: %w", r.queue, r.index, err)
		return
	}
	if r.broken != nil || d.dead {
		return
	}
	r.broken = err
	d.polled.remove(r)
	r.vq.DisableKick()
	d.Stats.BrokenRings++
	d.note(r.queue, syscall.EIO, fmt.Sprintf("ring %d is broken: %v", r.index, err))
	r.fails()
	d.cfg.Broke(fmt.Errorf("%s, ring %d: %w", r.queue, r.index, err))
}

// BrokenRing describes a ring that the client broke, for weft vm show and the log.
type BrokenRing struct {
	Ring   uint32 // its number
	Queue  string // the object that is in error: its kind and its number
	Reason string
}

// Broken returns the broken rings, by their number. A ring is broken until its object is destroyed.
func (d *Device) Broken() (list []BrokenRing) {
	for _, r := range d.rings {
		if r.broken != nil {
			list = append(list, BrokenRing{r.index, r.queue, r.broken.Error()})
		}
	}
	slices.SortFunc(list, func(a, b BrokenRing) int { return cmp.Compare(a.Ring, b.Ring) })
	return list
}

// cookie names an element.
func (r *ring) cookie(head uint16) uint32 { return uint32(head) | uint32(r.gen)<<16 }

// Done returns an element; it is visible to the client after Publish, or when the ring continues.
func (r *ring) Done(cookie uint32) {
	switch {
	case r.d.dead:
	case uint16(cookie>>16) != r.gen: // of a ring that is no more
	case r.vq != nil:
		r.vq.PushUsed(uint16(cookie), 0)
	case r.idle != nil:
		r.late = append(r.late, uint16(cookie))
	}
}

// Publish lets the client see what was given back.
func (r *ring) Publish() {
	if r.vq != nil && !r.d.dead && r.vq.Publish() {
		r.notify()
	}
}

// notify notifies the client, now or as soon as there is room.
func (r *ring) notify() {
	if r.call == nil {
		return
	}
	r.d.Stats.Calls++
	if r.owed > 0 || r.call.Call() {
		r.d.Stats.CallsDeferred++
		if r.owed++; r.owed == 1 {
			r.d.owing = append(r.d.owing, r)
		}
	}
}

// settle makes the notifications that found no room before.
func (d *Device) settle() {
	left := d.owing[:0]
	for _, r := range d.owing {
		for r.owed > 0 && !r.call.Call() {
			r.owed--
		}
		if r.owed > 0 {
			left = append(left, r)
		}
	}
	d.owing = left
}

// waiting returns how many elements the client has posted.
func (r *ring) waiting() int {
	if r.vq == nil || r.broken != nil || r.d.dead {
		return 0
	}
	n, err := r.vq.Avail()
	if err != nil {
		r.fault(err)
	}
	return n
}

// behindChain returns a copy of the n octets of guest memory behind the command in the control queue (Execute).
func (d *Device) behindChain(n int) []byte {
	if n <= 0 || n > 8*maxPages {
		return nil
	}
	if b := make([]byte, n); d.chain.ReadBehind(b) {
		return b
	}
	return nil
}

// MaxCommand bounds a control command; only a page list is that long.
const MaxCommand = 2 + abi.RegUserMRSize + 8*maxPages

// A turn spends ctrlBudget on control commands: one costs ctrlCost and its
// bytes. A client that posts faster than they execute must not keep the lane.
const (
	ctrlBudget = 64 << 10
	ctrlCost   = 1 << 10
)

// control executes the commands in the control queue, in order; commands beyond the budget are left to
// the next turn.
func (d *Device) control(r *ring) {
	for spent := 0; r.vq != nil && !d.dead; {
		if spent >= ctrlBudget {
			d.behind = true
			break
		}
		ok, err := r.vq.Pop(&d.chain)
		if err != nil {
			d.fail("control queue: %w", err)
			return
		}
		if !ok {
			break
		}
		c := &d.chain
		n := min(c.ReadLen, MaxCommand)
		spent += ctrlCost + n
		if cap(d.ctrl) < n {
			d.ctrl = make([]byte, n)
		}
		d.ctrl = d.ctrl[:n]
		c.ReadAt(d.ctrl, 0)
		head, room := c.Head, c.WriteLen
		out := d.Execute(d.ctrl, room, d.behindChain)
		if r.vq == nil || d.dead {
			return // the command ended the session
		}
		c.WriteAt(out, 0)
		r.vq.PushUsed(head, uint32(len(out)))
	}
	r.Publish()
}

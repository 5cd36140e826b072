// SPDX-License-Identifier: Apache-2.0

package rocefront

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Flags of a descriptor (virtio 1.2, 2.7.5) and of the used ring (2.7.8).
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4
	noNotify     = 1
)

// segment is a part of a buffer that a descriptor describes.
type segment struct {
	addr  uint64
	len   int
	write bool // the device writes it
}

// ring is a split virtqueue, seen by its driver.
type ring struct {
	dev               *Device
	index, size       int
	desc, avail, used uint64 // guest-physical addresses
	kick, call, fault int    // eventfds

	free   []uint16            // descriptors that are not out
	chains map[uint16][]uint16 // descriptors that are out, by the first of their chain
	next   uint16              // index of the next entry of the available ring
	told   uint16              // next, when the device was last notified, or did not want that
	seen   uint16              // index of the next entry of the used ring
}

// startRing makes a ring and starts it at the device.
func (d *Device) startRing(index, size int) (*ring, error) {
	r := &ring{dev: d, index: index, size: size, chains: map[uint16][]uint16{},
		desc: d.Memory.ringMemory(16 * size), avail: d.Memory.ringMemory(6 + 2*size),
		used: d.Memory.ringMemory(6 + 8*size), kick: -1, call: -1, fault: -1}
	for i := range size {
		r.free = append(r.free, uint16(size-1-i))
	}
	var err error
	for _, fd := range []*int{&r.kick, &r.call, &r.fault} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			r.closeEvents()
			return nil, fmt.Errorf("ring %d: eventfd: %w", index, err)
		}
	}
	addr := vringState(index, 0)
	for _, a := range []uint64{r.desc, r.used, r.avail} {
		addr = le.AppendUint64(addr, d.Memory.user(a))
	}
	addr = le.AppendUint64(addr, 0)
	for _, m := range []struct {
		request uint32
		payload []byte
		fds     []int
	}{
		{setVringNum, vringState(index, uint32(size)), nil},
		{setVringBase, vringState(index, 0), nil},
		{setVringAddr, addr, nil},
		{setVringCall, u64(uint64(index)), []int{r.call}},
		{setVringErr, u64(uint64(index)), []int{r.fault}},
		{setVringKick, u64(uint64(index)), []int{r.kick}},
		{setVringEnable, vringState(index, 1), nil},
	} {
		if err = d.conn.do(m.request, m.payload, m.fds...); err != nil {
			break
		}
	}
	if err != nil {
		r.closeEvents()
		return nil, fmt.Errorf("start ring %d: %w", index, err)
	}
	d.rings[index] = r
	return r, nil
}

// stop resets the ring: the device forgets its indices. It returns the index of the next available entry that the
// device would have taken.
func (r *ring) stop() (next int, err error) {
	if r == nil || r.dev.rings[r.index] != r {
		return 0, nil
	}
	delete(r.dev.rings, r.index)
	defer r.closeEvents()
	if err := r.dev.conn.do(setVringEnable, vringState(r.index, 0)); err != nil {
		return 0, fmt.Errorf("stop ring %d: %w", r.index, err)
	}
	b, err := r.dev.conn.get(getVringBase, vringState(r.index, 0))
	if err == nil && (len(b) != 8 || le.Uint32(b) != uint32(r.index)) {
		err = fmt.Errorf("the reply is %x", b)
	}
	if err != nil {
		return 0, fmt.Errorf("stop ring %d: %w", r.index, err)
	}
	return int(le.Uint32(b[4:])), nil
}

func (r *ring) closeEvents() {
	for _, fd := range []*int{&r.kick, &r.call, &r.fault} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

// errFull is returned if a ring has no room for a buffer.
var errFull = errors.New("the ring is full")

func (r *ring) putDescriptor(at uint64, s segment, flags, next uint16) {
	if s.write {
		flags |= descWrite
	}
	b := r.dev.Memory.Bytes(at, 16)
	le.PutUint64(b, s.addr)
	le.PutUint32(b[8:], uint32(s.len))
	le.PutUint16(b[12:], flags)
	le.PutUint16(b[14:], next)
}

// post makes a buffer available and notifies the device. It returns the head of the buffer's chain, by which the device
// returns it.
func (r *ring) post(list ...segment) (uint16, error) {
	head, err := r.add(list)
	if err == nil {
		err = r.publish(head)
	}
	if err == nil {
		err = r.notify()
	}
	return head, err
}

// postIndirect is post by one descriptor, which refers to a table of descriptors.
func (r *ring) postIndirect(list ...segment) (uint16, error) {
	table := r.dev.Memory.ringMemory(16 * len(list))
	for i, s := range list {
		flags, next := uint16(descNext), uint16(i+1)
		if i+1 == len(list) {
			flags, next = 0, 0
		}
		r.putDescriptor(table+uint64(16*i), s, flags, next)
	}
	if len(r.free) == 0 {
		return 0, errFull
	}
	head := r.take()
	r.chains[head] = []uint16{head}
	r.putDescriptor(r.desc+16*uint64(head), segment{addr: table, len: 16 * len(list)}, descIndirect, 0)
	if err := r.publish(head); err != nil {
		return head, err
	}
	return head, r.notify()
}

func (r *ring) take() uint16 {
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	return i
}

func (r *ring) add(list []segment) (uint16, error) {
	if len(list) > len(r.free) {
		return 0, errFull
	}
	chain := make([]uint16, len(list))
	for i := range chain {
		chain[i] = r.take()
	}
	for i, s := range list {
		flags, next := uint16(0), uint16(0)
		if i+1 < len(list) {
			flags, next = descNext, chain[i+1]
		}
		r.putDescriptor(r.desc+16*uint64(chain[i]), s, flags, next)
	}
	r.chains[chain[0]] = chain
	return chain[0], nil
}

// publish writes a chain into the available ring.
func (r *ring) publish(head uint16) error {
	at := r.avail + 4 + 2*uint64(int(r.next)%r.size)
	if err := r.dev.Memory.store16(at, head); err != nil {
		return err
	}
	r.next++
	return r.dev.Memory.store16(r.avail+2, r.next)
}

// notify notifies the device unless it asked not to be (virtio 1.2, 2.7.10).
func (r *ring) notify() error {
	old := r.told
	r.told = r.next
	if r.dev.Features&FeatureEventIdx != 0 {
		event, err := r.dev.Memory.load16(r.used + 4 + 8*uint64(r.size))
		if err != nil || r.next-event-1 >= r.next-old {
			return err
		}
	} else if flags, err := r.dev.Memory.load16(r.used); err != nil || flags&noNotify != 0 {
		return err
	}
	_, err := unix.Write(r.kick, u64(1))
	return err
}

// reap takes a buffer that the device returned. length is how many octets the device states that it wrote.
func (r *ring) reap() (head uint16, length uint32, ok bool, err error) {
	index, err := r.dev.Memory.load16(r.used + 2)
	if err != nil || index == r.seen {
		return 0, 0, false, err
	}
	b := r.dev.Memory.Bytes(r.used+4+8*uint64(int(r.seen)%r.size), 8)
	id, length := le.Uint32(b), le.Uint32(b[4:])
	chain := r.chains[uint16(id)]
	if id >= uint32(r.size) || chain == nil {
		return 0, 0, false, fmt.Errorf("ring %d: the device returned %d, which is not out", r.index, id)
	}
	delete(r.chains, uint16(id))
	r.free = append(r.free, chain...)
	r.seen++
	return uint16(id), length, true, nil
}

// ErrTimeout is returned if nothing came in time.
var ErrTimeout = errors.New("timeout")

// wait waits for a buffer that the device returns, whether the device interrupts or not.
func (r *ring) wait(limit time.Duration) (head uint16, length uint32, err error) {
	for until, pause := time.Now().Add(limit), 20*time.Microsecond; ; {
		head, length, ok, err := r.reap()
		if ok || err != nil {
			return head, length, err
		}
		if r.dev.conn.ended() {
			return 0, 0, fmt.Errorf("ring %d: the device closed the connection", r.index)
		}
		if eventIn(r.fault, 0) {
			return 0, 0, fmt.Errorf("ring %d: the device reports that it is broken", r.index)
		}
		if err := r.dev.serve(); err != nil {
			return 0, 0, err
		}
		if time.Now().After(until) {
			return 0, 0, fmt.Errorf("ring %d: %w after %v", r.index, ErrTimeout, limit)
		}
		time.Sleep(pause)
		pause = min(2*pause, 2*time.Millisecond)
	}
}

// eventIn waits for the signal of an eventfd, and takes the signal.
func eventIn(fd int, limit time.Duration) bool {
	for until := time.Now().Add(limit); ; {
		list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(list, int(max(0, time.Until(until)).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return false
		}
		var b [8]byte
		_, err = unix.Read(fd, b[:])
		return err == nil
	}
}

// spoil writes nonsense into the available ring, as a program in the guest can that maps the rings of its own queues: a
// head beyond the descriptor table, or an index far ahead.
func (r *ring) spoil(ahead bool) error {
	next := r.next + 1
	if ahead {
		next = r.next + uint16(r.size) + 1
	} else if err := r.dev.Memory.store16(r.avail+4+2*uint64(int(r.next)%r.size), uint16(r.size)); err != nil {
		return err
	}
	if err := r.dev.Memory.store16(r.avail+2, next); err != nil {
		return err
	}
	_, err := unix.Write(r.kick, u64(1))
	return err
}

// SPDX-License-Identifier: Apache-2.0

// Package ethdevtest is a test environment of Ethernet devices: a lane with a hub that joins ports,
// and a guest's driver.
//
// What comes in: ports and sockets; what goes out: frames from each port to all others, as a switch
// does that has learnt no address. Tests of ethdev and the interop tests call it. It must never be
// imported except by tests.
package ethdevtest

import (
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"weft/internal/device/ethdev"
	"weft/internal/device/vhost"
	"weft/internal/proto/ether"
	"weft/internal/service/vnic"
)

// Hub is a lane with the ports on it. Its goroutine sleeps while no port has
// work.
type Hub struct {
	epfd, bell int
	done       chan struct{}

	mu     sync.Mutex
	inbox  []func()
	closed bool

	// The goroutine's.
	kicks map[int32]*vhost.Kick
	ports []vnic.Segment
	stop  bool
	// Frames counts frames from a port to the others, Drops copies without room, Refused frames with
	// an invalid offload.
	Frames, Drops, Refused, Sleeps uint64
}

var _ ethdev.Lane = (*Hub)(nil)

// NewHub starts a hub; Close ends it.
func NewHub() (*Hub, error) {
	h := &Hub{done: make(chan struct{}), kicks: map[int32]*vhost.Kick{}}
	var err error
	if h.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if h.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(h.epfd, unix.EPOLL_CTL_ADD, h.bell, &unix.EpollEvent{Events: unix.EPOLLIN,
			Fd: int32(h.bell)})
	}
	if err != nil {
		return nil, err
	}
	go h.loop()
	return h, nil
}

// Add plugs a port in.
func (h *Hub) Add(s vnic.Segment) error { return h.Do(func() { h.ports = append(h.ports, s) }) }

// Remove unplugs a port.
func (h *Hub) Remove(s vnic.Segment) error {
	return h.Do(func() { h.ports = slices.DeleteFunc(h.ports, func(p vnic.Segment) bool { return p == s }) })
}

var errClosed = errors.New("the hub is closed")

// Do implements ethdev.Lane.
func (h *Hub) Do(f func()) error {
	ran := make(chan struct{})
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return errClosed
	}
	h.inbox = append(h.inbox, func() { defer close(ran); f() })
	unix.Write(h.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	h.mu.Unlock()
	<-ran
	return nil
}

// Watch implements ethdev.Lane.
func (h *Hub) Watch(k *vhost.Kick) error {
	if err := unix.EpollCtl(h.epfd, unix.EPOLL_CTL_ADD, k.FD(), &unix.EpollEvent{Events: unix.EPOLLIN,
		Fd: int32(k.FD())}); err != nil {
		return err
	}
	h.kicks[int32(k.FD())] = k
	return nil
}

// Unwatch implements ethdev.Lane.
func (h *Hub) Unwatch(k *vhost.Kick) {
	delete(h.kicks, int32(k.FD()))
	unix.EpollCtl(h.epfd, unix.EPOLL_CTL_DEL, k.FD(), nil)
}

// Quiesce implements ethdev.Lane.
func (h *Hub) Quiesce() { h.Do(func() {}) }

// Close ends the hub; sockets must be closed before.
func (h *Hub) Close() {
	h.Do(func() { h.stop = true })
	<-h.done
	unix.Close(h.epfd)
	unix.Close(h.bell)
}

func (h *Hub) loop() {
	defer close(h.done)
	frames, off := make([][]byte, 64), make([]ether.Offload, 64)
	var out mill
	events := make([]unix.EpollEvent, 64)
	for !h.stop {
		h.mu.Lock()
		inbox := h.inbox
		h.inbox = nil
		h.mu.Unlock()
		for _, f := range inbox {
			f()
		}
		busy := len(inbox) > 0
		for i, p := range h.ports {
			n, err := p.TryReadBatch(frames, off)
			if err != nil || n == 0 {
				continue
			}
			busy = true
			good := out.validate(frames[:n], off[:n])
			h.Refused += uint64(n - good)
			for j, to := range h.ports {
				if j != i {
					h.Drops += uint64(out.deliver(to))
				}
			}
			h.Frames += uint64(good)
		}
		if busy {
			continue
		}
		for _, p := range h.ports {
			if p.Arm() {
				busy = true
			}
		}
		if busy {
			continue
		}
		h.Sleeps++
		n, _ := unix.EpollWait(h.epfd, events, -1)
		for _, e := range events[:max(n, 0)] {
			if k := h.kicks[e.Fd]; k != nil {
				k.Clear()
			} else if e.Fd == int32(h.bell) {
				var b [8]byte
				unix.Read(h.bell, b[:])
			}
		}
	}
	h.mu.Lock()
	h.closed = true
	inbox := h.inbox
	h.mu.Unlock()
	for _, f := range inbox {
		f() // its caller was in time
	}
}

// mill finishes what a port does not take.
type mill struct {
	frames [][]byte
	off    []ether.Offload
	info   []ether.Info
	split  ether.Splitter
}

// validate keeps the frames with valid offloads.
func (m *mill) validate(frames [][]byte, off []ether.Offload) int {
	m.frames, m.off, m.info = m.frames[:0], m.off[:0], m.info[:0]
	for i, f := range frames {
		in := ether.Classify(f)
		if off[i].Check(f, &in) == ether.OK {
			m.frames, m.off, m.info = append(m.frames, f), append(m.off, off[i]), append(m.info, in)
		}
	}
	return len(m.frames)
}

// deliver writes the frames to a port, cut and completed as the port requires.
func (m *mill) deliver(to vnic.Segment) (dropped int) {
	takes := to.Takes()
	whole := true
	for i := range m.off {
		whole = whole && fits(takes, m.off[i])
	}
	if whole {
		return to.WriteBatch(m.frames, m.off)
	}
	for i, f := range m.frames {
		if fits(takes, m.off[i]) {
			dropped += to.WriteBatch([][]byte{f}, m.off[i:i+1])
			continue
		}
		n, why := m.split.Start(f, m.off[i], &m.info[i], 0)
		if why != ether.OK {
			dropped++
			continue
		}
		for range n {
			b := make([]byte, m.split.Len())
			m.split.Next(b)
			dropped += to.WriteBatch([][]byte{b}, []ether.Offload{{}})
		}
	}
	return dropped
}

func fits(takes ether.Features, o ether.Offload) bool {
	want := ether.Features(0)
	if o.Flags&ether.NeedsCsum != 0 {
		want |= ether.FeatureCsum
	}
	switch o.Kind() {
	case ether.GSOTCPv4:
		want |= ether.FeatureTSO4
	case ether.GSOTCPv6:
		want |= ether.FeatureTSO6
	case ether.GSOUDP:
		want |= ether.FeatureUSO4
	}
	if o.GSO&ether.GSOECN != 0 {
		want |= ether.FeatureECN
	}
	return takes&want == want
}

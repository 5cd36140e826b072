// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"sync"
	"time"

	"weft/internal/host/netstack"
	"weft/internal/proto/ether"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
	"weft/internal/service/vnic"
)

const (
	// neighbourAsks is how many addresses may wait for resolution.
	neighbourAsks = 64
	// neighbourNotice is how long a neighbour that did not answer is in the status.
	neighbourNotice = time.Minute
)

// portSegment is a segmentPort at work for a vport: frames of RoCEv2 pass its link, all others the IP stack.
type portSegment struct {
	*netstack.Ether
	st        *segmentPort
	port      *veswPort
	linkLocal ib.GID          // of the first MAC; guarded by the station's mu
	joined    map[ib.GID]bool // of the station's work
	asks      chan netip.Addr
	end       chan struct{}
	wg        sync.WaitGroup

	// Of the lane: frames for the stack.
	frames [][]byte
	off    []ether.Offload
	list   []ether.Frame
}

var _ vnic.FrameWriter = (*portSegment)(nil)

// open puts the port to work for a vport of its function. It has one at a time.
func (st *segmentPort) open(port *veswPort, d vnic.Device, wake func(), news func(vnic.SegmentEvent)) (vnic.Segment, error) {
	st.mu.Lock()
	busy := st.seg != nil
	st.mu.Unlock()
	if busy {
		return nil, errInAnotherVESW
	}
	e, err := netstack.OpenEther(netstack.EtherConfig{Name: st.a.Name, Device: d, Addrs: st.addrs, Routes: st.routes, Wake: wake, Notify: news})
	if err != nil {
		return nil, err
	}
	s := &portSegment{Ether: e, st: st, port: port, joined: map[ib.GID]bool{}, asks: make(chan netip.Addr, neighbourAsks), end: make(chan struct{})}
	st.mu.Lock()
	st.seg, st.dev = s, d
	s.setLinkLocal(d.MAC)
	st.mu.Unlock()
	s.wg.Go(s.seek)
	if err := st.n.lanes.First().Do(func() { st.on = s }); err != nil {
		s.Close()
		return nil, err
	}
	st.changed()
	st.work.Post(st.applyGroups)
	return s, nil
}

// setLinkLocal sets the address that the stack makes of the first MAC (RFC 4291, appendix A). The port's mu is held.
func (s *portSegment) setLinkLocal(mac [6]byte) {
	if s.linkLocal.IsZero() && mac != [6]byte{} {
		s.linkLocal = ib.GID{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
	}
}

// Configure implements vnic.Segment.
func (s *portSegment) Configure(d vnic.Device) {
	s.Ether.Configure(d)
	s.st.mu.Lock()
	s.st.dev = d
	s.setLinkLocal(d.MAC)
	s.st.mu.Unlock()
	s.st.changed()
}

// Close implements vnic.Segment. The port goes down.
func (s *portSegment) Close() error {
	st := s.st
	st.mu.Lock()
	st.seg = nil
	st.mu.Unlock()
	st.changed()
	st.n.lanes.First().Do(func() {
		st.on = nil
		st.link.Reset()
	})
	close(s.end)
	err := s.Ether.Close()
	s.wg.Wait()
	return err
}

// seek resolves neighbours, on a goroutine of its own: the stack may wait for the lane.
func (s *portSegment) seek() {
	st, lane := s.st, s.st.n.lanes.First()
	for {
		select {
		case <-s.end:
			return
		case ip := <-s.asks:
			answer := func(mac [6]byte, ok bool) {
				lane.Post(func() {
					if st.on == s {
						st.link.Resolved(lane.Now(), ip, mac, ok)
					}
				})
			}
			if err := s.Seek(ip, answer); err != nil {
				answer([6]byte{}, false)
			}
		}
	}
}

// push sends the frames that wait in the link; the lane calls it.
func (st *segmentPort) push(now mono.Time) {
	if s := st.on; s != nil && s.port.seg == vnic.Segment(s) {
		st.n.vesw.lane.pull(now, s.port)
	}
}

// TryReadBatch implements vnic.Segment: half of the batch is for RoCEv2 at most while the stack has frames, so that neither waits
// for the other.
func (s *portSegment) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	n := s.st.link.Read(frames[:(len(frames)+1)/2], off)
	m, err := s.Ether.TryReadBatch(frames[n:], off[n:])
	if err != nil {
		return 0, err
	}
	return n + m, nil
}

// Arm implements vnic.Segment.
func (s *portSegment) Arm() bool { return s.Ether.Arm() || s.st.link.Pending() }

// WriteBatch implements vnic.Segment. Frames of RoCEv2 change places with others, so that those which found no room are at the
// end.
func (s *portSegment) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	s.frames, s.off = s.frames[:0], s.off[:0]
	n := 0
	for i := range frames {
		if !s.st.link.Receive(frames[i], &off[i]) {
			s.frames, s.off = append(s.frames, frames[i]), append(s.off, off[i])
			continue
		}
		frames[n], off[n] = frames[i], off[i]
		n++
	}
	if len(s.frames) == 0 {
		return 0
	}
	copy(frames[n:], s.frames)
	copy(off[n:], s.off)
	clear(s.frames)
	return s.Ether.WriteBatch(frames[n:], off[n:])
}

// WriteFrames implements vnic.FrameWriter, with WriteBatch's order.
func (s *portSegment) WriteFrames(frames []ether.Frame) (dropped int) {
	s.list = s.list[:0]
	n := 0
	for i := range frames {
		f := &frames[i]
		if len(f.Parts) != 1 || !s.st.link.Receive(f.Parts[0], &f.Off) {
			s.list = append(s.list, *f)
			continue
		}
		frames[n] = *f
		n++
	}
	if len(s.list) == 0 {
		return 0
	}
	copy(frames[n:], s.list)
	clear(s.list)
	return s.Ether.WriteFrames(frames[n:])
}

// SPDX-License-Identifier: Apache-2.0

package vesw

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

// deviceSegment is a DevicePort at work for a vport: frames of RoCEv2 pass its link, all others the IP stack.
type deviceSegment struct {
	*netstack.Ether
	dp        *DevicePort
	port      *lanePort
	vesw      uint16
	linkLocal ib.GID          // of the first MAC; guarded by the port's mu
	joined    map[ib.GID]bool // of the port's work
	asks      chan netip.Addr
	end       chan struct{}
	wg        sync.WaitGroup

	separator               // the lane's
	list      []ether.Frame // the lane's: frames for the stack
}

var (
	_ vnic.Segment        = (*deviceSegment)(nil)
	_ vnic.SegmentControl = (*deviceSegment)(nil)
	_ vnic.FrameWriter    = (*deviceSegment)(nil)
)

// open puts the port to work for a vport of its function. It has one at a time.
func (dp *DevicePort) open(port *lanePort, vesw uint16, d vnic.Device, wake func(),
	news func(vnic.SegmentEvent)) (*deviceSegment, error) {
	dp.mu.Lock()
	busy := dp.seg != nil
	dp.mu.Unlock()
	if busy {
		return nil, ErrInAnotherVESW
	}
	e, err := netstack.OpenEther(netstack.EtherConfig{Name: dp.a.Name, Device: d, Addrs: dp.addrs, Routes: dp.routes,
		Wake: wake, Notify: news})
	if err != nil {
		return nil, err
	}
	s := &deviceSegment{Ether: e, dp: dp, port: port, vesw: vesw, joined: map[ib.GID]bool{},
		asks: make(chan netip.Addr, neighbourAsks), end: make(chan struct{})}
	dp.mu.Lock()
	dp.seg, dp.dev = s, d
	s.setLinkLocal(d.MAC)
	dp.mu.Unlock()
	s.wg.Go(s.seek)
	if err := dp.h.first.Do(func() { dp.on = s }); err != nil {
		s.Close()
		return nil, err
	}
	dp.changed()
	dp.work.Post(dp.applyGroups)
	return s, nil
}

// setLinkLocal sets the address that the stack makes of the first MAC (RFC 4291, appendix A). The port's mu is held.
func (s *deviceSegment) setLinkLocal(mac [6]byte) {
	if s.linkLocal.IsZero() && mac != [6]byte{} {
		s.linkLocal = ib.GID{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3],
			14: mac[4], 15: mac[5]}
	}
}

// Configure implements vnic.SegmentControl.
func (s *deviceSegment) Configure(d vnic.Device) {
	s.Ether.Configure(d)
	s.dp.mu.Lock()
	s.dp.dev = d
	s.setLinkLocal(d.MAC)
	s.dp.mu.Unlock()
	s.dp.changed()
}

// Close implements vnic.SegmentControl. The port goes down.
func (s *deviceSegment) Close() error {
	dp := s.dp
	dp.mu.Lock()
	dp.seg = nil
	dp.mu.Unlock()
	dp.changed()
	dp.h.first.Do(func() {
		dp.on = nil
		dp.link.Reset()
	})
	close(s.end)
	err := s.Ether.Close()
	s.wg.Wait()
	return err
}

// seek resolves neighbours, on a goroutine of its own: the stack may wait for the lane.
func (s *deviceSegment) seek() {
	dp, lane := s.dp, s.dp.h.first
	for {
		select {
		case <-s.end:
			return
		case ip := <-s.asks:
			answer := func(mac [6]byte, ok bool) {
				lane.Post(func() {
					if dp.on == s {
						dp.link.Resolved(lane.Now(), ip, mac, ok)
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
func (dp *DevicePort) push(now mono.Time) {
	if dp.Attached() {
		dp.h.data.pull(now, dp.on.port)
	}
}

// Attached reports whether the segment at work is that of the port. The lane calls it.
func (dp *DevicePort) Attached() bool { return dp.on != nil && dp.on.port.seg == vnic.Segment(dp.on) }

// TryReadBatch implements vnic.Segment: half of the batch is for RoCEv2 at most while the stack has frames, so that
// neither waits for the other.
func (s *deviceSegment) TryReadBatch(frames [][]byte, off []ether.Offload) (int, error) {
	n := s.dp.link.Read(frames[:(len(frames)+1)/2], off)
	m, err := s.Ether.TryReadBatch(frames[n:], off[n:])
	if err != nil {
		return 0, err
	}
	return n + m, nil
}

// Arm implements vnic.Segment.
func (s *deviceSegment) Arm() bool { return s.Ether.Arm() || s.dp.link.Pending() }

// WriteBatch implements vnic.Segment.
func (s *deviceSegment) WriteBatch(frames [][]byte, off []ether.Offload) (dropped int) {
	n := s.separate(s.dp.link, frames, off)
	if n == len(frames) {
		return 0
	}
	return s.Ether.WriteBatch(frames[n:], off[n:])
}

// WriteFrames implements vnic.FrameWriter, in the order of separate.
func (s *deviceSegment) WriteFrames(frames []ether.Frame) (dropped int) {
	s.list = s.list[:0]
	n := 0
	for i := range frames {
		f := &frames[i]
		if len(f.Parts) != 1 || !s.dp.link.Receive(f.Parts[0], &f.Off) {
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

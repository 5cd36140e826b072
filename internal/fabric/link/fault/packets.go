// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"math"

	"weft/internal/fabric/trunk"
	"weft/internal/proto/ib"
	"weft/internal/proto/mono"
)

// Packets is a stage within a trunk's sender (udp.Sender.Inject): it works on the bytes of native
// packets. Rule.Peer is the address of the trunk's other end; a Rule with Sources matches nothing
// here. A corrupted packet has one bit inverted; the receiver detects it by the CRC. A Packets belongs
// to one lane.
type Packets struct {
	rules
	summed bool      // a checksum below has the receiver's kernel drop what is corrupted
	paths  []ib.Path // to the peers
	held   mono.Heap[*heldPacket]
	free   []*heldPacket
	sent   uint64 // packets that passed, for those that wait to be overtaken
	next   uint64 // when sent reaches this, one of those has been
}

// heldPacket is a packet that waits.
type heldPacket struct {
	timer mono.Timer[*heldPacket]
	pass  uint64 // as of held
	peer  int
	data  []byte
}

// NewPackets returns a stage without rules for trunks to peers at these
// addresses.
func NewPackets(peers []ib.GID) *Packets {
	s := &Packets{paths: make([]ib.Path, len(peers)), next: math.MaxUint64}
	for i, g := range peers {
		s.paths[i].DGID = g
	}
	return s
}

// SetPeer sets the address of a peer, which may be a further one.
func (s *Packets) SetPeer(peer int, at ib.GID) {
	for len(s.paths) <= peer {
		s.paths = append(s.paths, ib.Path{})
	}
	s.paths[peer].DGID = at
}

// NewDatagrams returns such a stage for the datagrams of trunks that carry no packets
// (udp.Link.Inject). A corrupted datagram is dropped, as the receiver's UDP checksum would do.
func NewDatagrams(peers []ib.GID) *Packets {
	s := NewPackets(peers)
	s.summed = true
	return s
}

// Held returns the number of packets that are held back.
func (s *Packets) Held() int { return s.held.Len() }

// Pass implements trunk.Injector.
func (s *Packets) Pass(now mono.Time, peer int, p []byte) (copies int) {
	if peer >= len(s.paths) {
		s.sent++
		return 1
	}
	path := &s.paths[peer]
	if !s.match(path) {
		s.sent++
		return 1
	}
	v := s.decide(path)
	switch {
	case v.corrupt && s.summed:
		return trunk.Lost
	case v.corrupt:
		bit := v.bit % uint32(len(p)*8)
		p[bit/8] ^= 1 << (bit % 8)
	}
	if copies = v.copies(); copies == 0 {
		return trunk.Lost
	}
	if v.hold > 0 {
		held := false
		for range copies {
			held = s.hold(now, peer, p, &v) || held
		}
		if !held {
			return trunk.Lost
		}
		return 0
	}
	s.sent += uint64(copies)
	return copies
}

// hold holds a packet back, unless there are too many.
func (s *Packets) hold(now mono.Time, peer int, p []byte, v *verdict) bool {
	if s.held.Len() == MaxHeld {
		v.by.Overflow++
		return false
	}
	var h *heldPacket
	if n := len(s.free); n > 0 {
		h, s.free = s.free[n-1], s.free[:n-1]
	} else {
		h = new(heldPacket)
		h.timer.Value = h
	}
	h.peer, h.data, h.pass = peer, append(h.data[:0], p...), 0
	if v.pass > 0 {
		h.pass = s.sent + v.pass
		s.next = min(s.next, h.pass)
	}
	s.held.Set(&h.timer, now.Add(v.hold))
	return true
}

// Release implements trunk.Injector: it sends held packets that are due or that enough others have
// overtaken.
func (s *Packets) Release(now mono.Time, send func(peer int, p []byte)) {
	for h, due := s.held.PopDue(now); due; h, due = s.held.PopDue(now) {
		s.release(h, send)
	}
	for s.sent >= s.next {
		var h *heldPacket
		if h, s.next = overtaken(&s.held, s.sent, func(h *heldPacket) uint64 { return h.pass }); h == nil {
			return
		}
		s.held.Stop(&h.timer)
		s.release(h, send)
		s.next = 0 // look for another
	}
}

func (s *Packets) release(h *heldPacket, send func(peer int, p []byte)) {
	send(h.peer, h.data)
	s.free = append(s.free, h)
}

// Deadline implements trunk.Injector.
func (s *Packets) Deadline() mono.Time { return s.held.Next() }

// SPDX-License-Identifier: Apache-2.0

package connected

import (
	"fmt"
	"maps"

	"weft/internal/proto/ib"
)

// Usage is what connections use.
type Usage struct {
	Waiting   int // connections with frames that wait
	FreeSlots int // send slots
	Posted    int // receive slots
	Octets    int // of frames that wait
}

// Usage returns what connections use at present.
func (s *Conns) Usage() Usage {
	u := Usage{Waiting: s.waiting, FreeSlots: len(s.slots.free), Posted: s.slots.posted}
	for _, c := range s.byID {
		u.Octets += c.queued
	}
	return u
}

// Check returns an error where an invariant of the tables does not hold. Tests call it after each event.
func (s *Conns) Check() error {
	live, inFlight, waiting := 0, 0, 0
	ports := map[ib.LID]portConns{}
	for id, c := range s.byID {
		if c.id != id || s.byQPN[c.qpn] != c {
			return fmt.Errorf("connection %#x is in the tables under another number", id)
		}
		if inFlight += c.inFlight; c.state != closing {
			live++
			if p := s.peers[c.HW]; p == nil || p.out != c && p.in != c {
				return fmt.Errorf("connection %#x belongs to no peer", id)
			}
		}
		if len(c.queue) > 0 {
			waiting++
		}
		if c.passive() {
			p := ports[c.LID]
			if p.all++; c.state != closing {
				p.live++
			}
			ports[c.LID] = p
		}
		octets := 0
		for _, f := range c.queue {
			octets += len(f)
		}
		if octets != c.queued || len(c.queue) > QueueFrames || c.inFlight > Window {
			return fmt.Errorf("connection %#x: %d frames, %d octets wait, %d are counted, %d messages are in flight",
				id,
				len(c.queue), octets, c.queued, c.inFlight)
		}
	}
	switch {
	case live != s.live || live > s.cfg.MaxConns || len(s.byID) != len(s.byQPN):
		return fmt.Errorf("%d connections, %d counted, %d by queue pair", live, s.live, len(s.byQPN))
	case waiting != s.waiting || !maps.Equal(ports, s.perPort):
		return fmt.Errorf("%d queues, %d counted; of ports %v, counted %v", waiting, s.waiting, ports, s.perPort)
	case len(s.slots.sends)-len(s.slots.free) != inFlight:
		return fmt.Errorf("%d of %d send slots are free, %d messages in flight", len(s.slots.free), len(s.slots.sends),
			inFlight)
	case s.opened && s.slots.posted != RxSlots:
		return fmt.Errorf("%d of %d receive slots are posted", s.slots.posted, RxSlots)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package trunk

import "weft/internal/mono"

// partial is a packet in reassembly.
type partial struct {
	used   bool
	stream uint8
	id     uint32 // sequence number of the first fragment
	count  uint8
	length uint16
	got    uint32    // bit i: fragment i is there
	since  mono.Time // arrival of the first that came
	order  uint64    // of that arrival
	data   []byte    // MaxPacket octets and room for the last fragment's padding
}

// partials are the packets of one peer in reassembly. Memory is taken when it
// is first needed and kept.
type partials struct {
	slot   [MaxPartial]partial
	recent int // index of the one that the next fragment is likely for
	used   int
	order  uint64
	// gaveUp counts packets whose other fragments did not come in time, or
	// before too many others began.
	gaveUp uint64
}

// add takes one fragment and returns the packet when it is whole, valid until
// the next call. why is BadFragment where it is not like the others.
func (r *partials) add(now mono.Time, stream uint8, seq uint32, p piece, data []byte) (whole []byte, why Refusal) {
	id := seq - uint32(p.index)
	s := r.find(stream, id)
	if s == nil {
		s = r.begin(now, stream, id, p)
	} else if int(s.count) != p.count || int(s.length) != p.length {
		return nil, BadFragment
	}
	// Invariant: find tells packets apart by stream and id, and the sequence
	// window lets each number pass once, so a fragment comes once.
	copy(s.data[p.index*len(data):], data)
	s.got |= 1 << p.index
	if s.got != 1<<s.count-1 {
		return nil, OK
	}
	r.end(s)
	return s.data[:s.length:s.length], OK
}

func (r *partials) find(stream uint8, id uint32) *partial {
	if r.used == 0 {
		return nil
	}
	for i := range r.slot {
		k := (r.recent + i) % MaxPartial
		if s := &r.slot[k]; s.used && s.id == id && s.stream == stream {
			r.recent = k
			return s
		}
	}
	return nil
}

// begin takes a free slot, or that of the oldest packet.
func (r *partials) begin(now mono.Time, stream uint8, id uint32, p piece) *partial {
	best := 0
	for i := range r.slot {
		s := &r.slot[i]
		if !s.used {
			best = i
			break
		}
		if s.order < r.slot[best].order {
			best = i
		}
	}
	s := &r.slot[best]
	if s.used {
		r.gaveUp++
		r.end(s)
	}
	if s.data == nil {
		s.data = make([]byte, MaxPacket+MaxFragments)
	}
	r.order++
	r.used++
	r.recent = best
	s.used, s.stream, s.id, s.count, s.length = true, stream, id, uint8(p.count), uint16(p.length)
	s.got, s.since, s.order = 0, now, r.order
	return s
}

func (r *partials) end(s *partial) {
	s.used = false
	r.used--
}

// expire gives up what is older than PartialAge.
func (r *partials) expire(now mono.Time) {
	if r.used == 0 {
		return
	}
	for i := range r.slot {
		if s := &r.slot[i]; s.used && now.Sub(s.since) >= PartialAge {
			r.gaveUp++
			r.end(s)
		}
	}
}

// clear gives up everything.
func (r *partials) clear() {
	for i := range r.slot {
		if s := &r.slot[i]; s.used {
			r.gaveUp++
			r.end(s)
		}
	}
}

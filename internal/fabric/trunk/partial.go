// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"math/bits"

	"weft/internal/proto/mono"
)

// pool is the memory of packets in reassembly and of those delivered, by size.
// It grows to the largest amount in use at once: at most MaxPartial packets of
// each peer, and the packets delivered between two calls of recycle.
type pool struct {
	free [classes][][]byte
	done [][]byte
}

// classes are powers of two up to MaxPacket with its padding.
const classes = 16

func class(n int) int { return bits.Len(uint(n - 1)) }

// get returns n octets or more, of any content.
func (p *pool) get(n int) []byte {
	c := class(n)
	f := p.free[c]
	if len(f) == 0 {
		return make([]byte, 1<<c)
	}
	p.free[c] = f[:len(f)-1]
	return f[len(f)-1]
}

func (p *pool) put(b []byte) {
	c := class(len(b))
	p.free[c] = append(p.free[c], b)
}

func (p *pool) recycle() {
	for _, b := range p.done {
		p.put(b)
	}
	p.done = p.done[:0]
}

// partial is a packet in reassembly.
type partial struct {
	stream uint8
	id     uint64 // sequence number of the first fragment
	count  uint8
	length uint16
	got    uint32    // bit i: fragment i is there
	since  mono.Time // arrival of the first fragment
	order  uint64    // rank of that arrival
	data   []byte    // of the pool: the packet, and room for the last fragment's padding
}

// partials are the packets of one peer in reassembly.
type partials struct {
	slot   [MaxPartial]*partial // slots in use come first; behind them nil, or free
	used   int
	recent int // index of the packet that the last fragment belonged to
	order  uint64
	// expired counts packets that were dropped because fragments did not arrive
	// in time, or because MaxPartial newer packets needed the slot.
	expired uint64
}

// add adds one fragment and returns the packet once it is complete, valid until
// the pool's next recycle. why is BadFragment if the fragment's count or length
// differs from those of the packet's other fragments.
func (r *partials) add(now mono.Time, m *pool, stream uint8, seq uint64, p piece, data []byte) (whole []byte,
	why Refusal) {
	id := seq - uint64(p.index)
	i := r.find(stream, id)
	if i < 0 {
		i = r.begin(now, m, stream, id, p)
	}
	s := r.slot[i]
	if int(s.count) != p.count || int(s.length) != p.length {
		return nil, BadFragment
	}
	// Invariant: stream and id identify a packet, and the sequence window accepts
	// each number once, so that each fragment arrives here once.
	copy(s.data[p.index*len(data):], data)
	s.got |= 1 << p.index
	if s.got != 1<<s.count-1 {
		return nil, OK
	}
	r.end(i)
	m.done = append(m.done, s.data)
	return s.data[:s.length:s.length], OK
}

// find returns the index of a packet, or -1.
func (r *partials) find(stream uint8, id uint64) int {
	is := func(s *partial) bool { return s.id == id && s.stream == stream }
	if r.recent < r.used && is(r.slot[r.recent]) {
		return r.recent
	}
	for i, s := range r.slot[:r.used] {
		if is(s) {
			r.recent = i
			return i
		}
	}
	return -1
}

// begin allocates a slot; if none is free, it drops the oldest packet.
func (r *partials) begin(now mono.Time, m *pool, stream uint8, id uint64, p piece) int {
	if r.used == MaxPartial {
		oldest := 0
		for i, s := range r.slot {
			if s.order < r.slot[oldest].order {
				oldest = i
			}
		}
		r.drop(oldest, m)
	}
	i := r.used
	r.used++
	if r.slot[i] == nil {
		r.slot[i] = new(partial)
	}
	s := r.slot[i]
	s.data = m.get(p.size() * p.count)
	r.order++
	r.recent = i
	s.stream, s.id, s.count, s.length = stream, id, uint8(p.count), uint16(p.length)
	s.got, s.since, s.order = 0, now, r.order
	return i
}

// end frees a slot, but not its data.
func (r *partials) end(i int) {
	r.used--
	r.slot[i], r.slot[r.used] = r.slot[r.used], r.slot[i]
}

func (r *partials) drop(i int, m *pool) {
	r.expired++
	m.put(r.slot[i].data)
	r.end(i)
}

// expire drops the packets that are older than PartialAge.
func (r *partials) expire(now mono.Time, m *pool) {
	for i := r.used - 1; i >= 0; i-- {
		if now.Sub(r.slot[i].since) >= PartialAge {
			r.drop(i, m)
		}
	}
}

// clear drops all packets.
func (r *partials) clear(m *pool) {
	for r.used > 0 {
		r.drop(r.used-1, m)
	}
}

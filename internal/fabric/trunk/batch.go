// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/mono"
)

// Bounds of a Batch.
const (
	batchBytes = 1 << 20
	maxTrains  = 256
	maxPieces  = 4096
	// Upper bounds of what one packet needs besides its own length.
	packetExtra  = FragmentLen + lengthLen + MaxFragments*(FragmentLen+seal.TagLen+1) + seal.TagLen
	packetPieces = 2*MaxFragments + 1

	maxTrain      = 64    // datagrams of one UDP_SEGMENT call: the kernel's limit
	maxTrainBytes = 65000 // below 65535 - 20 - 8, the largest datagram
	// batchStart is room in front of the first datagram: a fragment's header in front of a packet begins there.
	batchStart = FragmentLen - HeaderLen
)

// Drop is the reason for which Reserve refuses a packet.
type Drop uint8

// Reasons. NotDropped is none.
const (
	NotDropped Drop = iota
	DropDown
	DropTooLong // longer than MaxPacket, or the path MTU is below 576
	DropFull    // packets committed before could not be sent yet
	NumDrops
)

var dropNames = [NumDrops]string{"ok", "trunk_down", "too_long", "full"}

// String returns the counter name of l.
func (l Drop) String() string {
	if l < NumDrops {
		return dropNames[l]
	}
	return "unknown"
}

// Drops counts packets by Drop.
type Drops [NumDrops]uint64

// CounterName implements counters.Namer.
func (Drops) CounterName(i int) string {
	if Drop(i) == NotDropped {
		return ""
	}
	return "drop_" + Drop(i).String()
}

// Piece is a part of a train in the Batch's buffer.
type Piece struct{ Off, Len int }

// Train is one or more datagrams to one peer, all of one size except the last,
// which may be shorter. Its octets are those of its pieces in order.
type Train struct {
	Peer    int
	Size    int // of each datagram but the last
	Count   int // datagrams
	Bytes   int // of all datagrams
	Packets int // that end in it
	first   int // its pieces
	n       int
}

// Lost is the result of Injector.Pass for a packet that it has dropped.
const Lost = -1

// Injector injects faults into the packets of a Batch: link/fault implements it.
// It belongs to the Batch's goroutine.
type Injector interface {
	// Pass may change packet p to a peer in place, and returns how many copies
	// of it the Batch sends now. It keeps its own copy of a packet that it delays.
	// The result is Lost if it has dropped the packet.
	Pass(now mono.Time, peer int, p []byte) (copies int)
	// Release calls send with each delayed packet that is due.
	Release(now mono.Time, send func(peer int, p []byte))
	// Deadline returns the earliest due time of a delayed packet; 0: there is none.
	Deadline() mono.Time
}

// Batch lays out the datagrams of one stream. Packets are built in the buffer
// that the socket sends from. It belongs to one goroutine.
type Batch struct {
	head    Header // of the next datagram, except Index and Number
	number  [MaxPeers]uint64
	drops   [MaxPeers]Drops
	scratch seal.Scratch
	remote  func(peer int) Remote
	inject  Injector
	send    func(peer int, p []byte)

	buf  []byte
	tail int

	trains []Train
	pieces []Piece
	open   struct { // a data datagram that may grow; it ends at tail
		packets int // 0: none
		off     int
		peer    int
		key     *seal.Key
		mode    seal.Mode
	}
	used struct { // datagrams sealed with a key that its use count lacks
		key *seal.Key
		n   uint64
	}
	room struct { // of the packet that Reserve returned
		n, peer int // n 0: none
		r       Remote
	}
}

// NewBatch returns an empty Batch of a stream, below MaxStreams, to any of the peers. Each Reserve calls remote. No two
// Batches of a node have the same stream: number and stream are the counter that a key must see once.
func NewBatch(stream uint8, remote func(peer int) Remote) *Batch {
	b := &Batch{head: Header{Stream: stream}, remote: remote, buf: make([]byte, batchBytes), tail: batchStart,
		trains: make([]Train, 0, maxTrains), pieces: make([]Piece, 0, maxPieces)}
	b.send = b.copyOut
	return b
}

// Inject passes every packet to i from now on; nil ends that. Packets that the
// previous Injector delays are dropped.
func (b *Batch) Inject(i Injector) { b.inject = i }

// Drops returns the number of packets to a peer that Reserve refused, by reason.
func (b *Batch) Drops(peer int) Drops { return b.drops[peer] }

// Forget begins the count of refused packets anew: an index serves another peer.
func (b *Batch) Forget(peer int) { b.drops[peer] = Drops{} }

// Reserve returns a buffer for a packet of up to n octets to a peer, with
// undefined content; nil is a counted drop. The buffer is valid until the next
// call. Without a Commit by then, the reservation ends.
func (b *Batch) Reserve(peer, n int) []byte {
	b.room.n = 0
	r := b.remote(peer)
	why := NotDropped
	switch {
	case r.Key == nil:
		why = DropDown
	case n <= 0 || n > MaxPacket || r.Limit < MinDatagram:
		why = DropTooLong
	case len(b.buf)-b.tail < n+packetExtra || cap(b.pieces)-len(b.pieces) < packetPieces ||
		cap(b.trains)-len(b.trains) < 3:
		why = DropFull
	}
	if why != NotDropped {
		b.drops[peer][why]++
		return nil
	}
	if o := &b.open; o.packets != 0 && (o.packets == MaxPackets || o.peer != peer || o.key != r.Key ||
		b.tail-o.off+lengthLen+n+o.mode.Overhead() > r.Limit) {
		b.close()
	}
	b.room.n, b.room.peer, b.room.r = n, peer, r
	at := b.start()
	return b.buf[at : at+n : at+n]
}

// start returns the offset of the packet that is being built.
func (b *Batch) start() int {
	if b.open.packets != 0 {
		return b.tail + lengthLen
	}
	return b.tail + HeaderLen + lengthLen
}

// Commit enqueues the first n octets of what Reserve returned as a packet, after
// the Injector. Preconditions: Reserve returned a buffer, and n is 1 to its
// length.
func (b *Batch) Commit(now mono.Time, n int) {
	if n <= 0 || n > b.room.n {
		panic("trunk: commit without room")
	}
	if b.inject == nil {
		b.commit(n)
		return
	}
	peer, at := b.room.peer, b.start()
	p := b.buf[at : at+n : at+n]
	switch copies := b.inject.Pass(now, peer, p); {
	case copies == Lost:
		b.lose(n)
	case copies == 0:
		b.room.n = 0
	default:
		b.commit(n)
		for range copies - 1 {
			b.copyOut(peer, p)
		}
	}
	b.Release(now)
}

// lose uses up the numbers of the datagrams that a packet of n octets would have begun, so that they are missing at the
// peer as they would be if the network had lost them. A packet that would have joined others in an open datagram takes
// no number: that datagram arrives without it.
func (b *Batch) lose(n int) {
	m := &b.room
	m.n = 0
	if b.open.packets != 0 {
		return
	}
	datagrams := 1
	if !m.r.whole(n) {
		datagrams = m.r.fragments(n)
	}
	b.number[m.peer] += uint64(datagrams)
}

// whole reports whether a packet of n octets fits into one datagram.
func (r *Remote) whole(n int) bool { return HeaderLen+lengthLen+n+r.Mode.Overhead() <= r.Limit }

// fragments returns the number of fragments of a packet of n octets.
func (r *Remote) fragments(n int) int {
	most := r.Limit - FragmentLen - r.Mode.Overhead()
	return (n + most - 1) / most
}

// Release enqueues the delayed packets of the Injector that are due.
func (b *Batch) Release(now mono.Time) {
	if b.inject != nil {
		b.inject.Release(now, b.send)
	}
}

// Deadline returns when Release must be called next; 0: not at all.
func (b *Batch) Deadline() mono.Time {
	if b.inject == nil {
		return 0
	}
	return b.inject.Deadline()
}

func (b *Batch) copyOut(peer int, p []byte) {
	if r := b.Reserve(peer, len(p)); r != nil {
		copy(r, p)
		b.commit(len(p))
	}
}

func (b *Batch) commit(n int) {
	m := &b.room
	m.n = 0
	at := b.start()
	if b.open.packets == 0 {
		if !m.r.whole(n) {
			b.cut(at, n)
			return
		}
		b.open.off, b.open.peer, b.open.key, b.open.mode = b.tail, m.peer, m.r.Key, m.r.Mode
	}
	b.open.packets++
	be.PutUint16(b.buf[at-lengthLen:], uint16(n))
	b.tail = at + n
}

// close ends the open datagram and seals it.
func (b *Batch) close() {
	o := &b.open
	if o.packets == 0 {
		return
	}
	counter := b.header(Data, o.peer, o.key, o.off)
	b.tail = o.off + len(o.key.Seal(&b.scratch, o.mode, b.buf[o.off:b.tail], HeaderLen, counter))
	t := b.datagram(o.peer, b.tail-o.off)
	b.piece(t, o.off, b.tail-o.off)
	t.Packets += o.packets
	o.packets = 0
}

// cut makes fragments of the packet of n octets at off, and seals each where it lies. Their headers and tags lie
// behind the packet.
func (b *Batch) cut(off, n int) {
	m := &b.room
	tag := m.r.Mode.Overhead()
	p := piece{count: m.r.fragments(n), length: n}
	size := p.size()
	end := off + size*p.count
	clear(b.buf[off+n : end])
	for ; p.index < p.count; p.index++ {
		counter := b.header(Fragment, m.peer, m.r.Key, end)
		p.put(b.buf[end+HeaderLen:])
		at := off + p.index*size
		m.r.Key.SealApart(&b.scratch, m.r.Mode, b.buf, end, FragmentLen, at, size, end+FragmentLen, counter)
		t := b.datagram(m.peer, FragmentLen+size+tag)
		b.piece(t, end, FragmentLen)
		b.piece(t, at, size)
		if tag > 0 {
			b.piece(t, end+FragmentLen, tag)
		}
		if p.index == p.count-1 {
			t.Packets++
		}
		end += FragmentLen + tag
	}
	b.tail = end
}

// header writes the next header of a peer at off and returns its counter.
func (b *Batch) header(k Kind, peer int, key *seal.Key, off int) uint64 {
	if u := &b.used; u.key != key {
		b.count()
		u.key = key
	}
	b.used.n++
	h := &b.head
	b.number[peer]++
	h.Kind, h.Index, h.Number = k, key.Index(), b.number[peer]
	h.Put(b.buf[off:])
	return h.counter()
}

// count brings the use count of a key up to date.
func (b *Batch) count() {
	if b.used.n > 0 {
		b.used.key.Use(b.used.n)
		b.used.n = 0
	}
}

// datagram appends a datagram to the newest train, or to a new one.
func (b *Batch) datagram(peer, size int) *Train {
	if i := len(b.trains) - 1; i >= 0 {
		// Invariant: every datagram of a train but the last is Size long.
		t := &b.trains[i]
		if t.Peer == peer && t.Bytes == t.Count*t.Size && size <= t.Size && t.Count < maxTrain &&
			t.Bytes+size <= maxTrainBytes {
			t.Count++
			t.Bytes += size
			return t
		}
	}
	b.trains = append(b.trains, Train{Peer: peer, Size: size, Count: 1, Bytes: size, first: len(b.pieces)})
	return &b.trains[len(b.trains)-1]
}

// piece appends octets to the newest train: a new piece, or more of its newest.
func (b *Batch) piece(t *Train, off, n int) {
	if t.n > 0 {
		if p := &b.pieces[len(b.pieces)-1]; p.Off+p.Len == off {
			p.Len += n
			return
		}
	}
	b.pieces = append(b.pieces, Piece{off, n})
	t.n++
}

// Waiting returns the number of octets committed since Reset, headers
// included.
func (b *Batch) Waiting() int { return b.tail - batchStart }

// Trains ends the open datagram and returns all that was committed since Reset,
// in order; valid until the next Reserve.
func (b *Batch) Trains() []Train {
	b.close()
	b.count()
	return b.trains
}

// Pieces returns the parts of a train in Bytes.
func (b *Batch) Pieces(t *Train) []Piece { return b.pieces[t.first : t.first+t.n] }

// Bytes returns the buffer that pieces lie in.
func (b *Batch) Bytes() []byte { return b.buf }

// Reset discards all that was committed or reserved.
func (b *Batch) Reset() {
	b.tail, b.trains, b.pieces = batchStart, b.trains[:0], b.pieces[:0]
	b.open.packets, b.room.n = 0, 0
}

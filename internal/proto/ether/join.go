// SPDX-License-Identifier: Apache-2.0

package ether

// Frame is a frame in pieces, which follow each other, with what is still to be
// done with it.
type Frame struct {
	Parts [][]byte
	Len   int // of all parts
	Off   Offload
}

// Append appends the octets of f to b.
func (f *Frame) Append(b []byte) []byte {
	for _, p := range f.Parts {
		b = append(b, p...)
	}
	return b
}

// maxJoined is how many frames a segment is made of at most: of datagrams as
// many as kernels cut one into, of TCP segments 64 KiB of small ones.
const (
	maxJoinedUDP = 64
	maxJoinedTCP = 128
)

// Joiner makes segments of consecutive frames of a flow, without copying what
// they carry (the reverse of Splitter). It has buffers of its own for as many frames as
// it was made for. It belongs to one goroutine.
type Joiner struct {
	bare   bool
	seed   uint64
	groups []group
	next   []int32 // of each frame: the one that continues it, or -1
	tail   []piece // of each frame that continues another: its payload
	out    []Frame
	parts  [][]byte
	hdrs   []byte
	used   int // of hdrs

	// table finds the open group of a flow by its hash: its number + 1. Of two flows with one slot,
	// the later one replaces the earlier: the group of that is then complete.
	table [64]int32
}

type piece struct{ from, to uint32 }

// group is frames that become one, in the order of their arrival.
type group struct {
	in          Info
	first, last int32
	n           int32
	size        uint16 // of the payload of each but the last
	id          uint16 // IPv4 identification of the last
	sameID      bool   // of all, as atomic datagrams may have it (RFC 6864 §4.1)
	flags       byte   // of TCP, of all of them
	good        bool   // the first one's checksums are
	payload     uint32
	seq         uint32 // what follows
}

// NewJoiner makes a Joiner for up to frames frames at a time, with Ethernet headers
// or, if bare, without. seed is that of Info.Hash.
func NewJoiner(frames int, bare bool, seed uint64) *Joiner {
	return &Joiner{bare: bare, seed: seed, groups: make([]group, 0, frames), next: make([]int32, frames),
		tail: make([]piece, frames),
		out:  make([]Frame, 0, frames), parts: make([][]byte, 0, frames+frames/2), hdrs: make([]byte,
			frames/2*maxJoinedHeaders)}
}

// maxJoinedHeaders is how long the headers of frames are that are joined: without options or extension headers of IP.
const maxJoinedHeaders = HeaderLen + MaxTags*TagLen + 40 + 60

// Join joins frames, in their order of arrival, for a receiver with the features can. Frames that are
// not joined are returned unchanged; frames of one flow stay in order. A segment consists of
// consecutive frames of one flow, with equal headers except the fields that Splitter varies, of one
// size except the last, and with valid checksums. IPv4 identifications are consecutive, or equal where
// fragmentation is forbidden. The result refers to frames and to j: it is valid until the next Join,
// and as long as frames are.
//
// Preconditions: no more frames than j was made for.
func (j *Joiner) Join(frames [][]byte, can Features) []Frame {
	j.groups, j.out, j.parts, j.used = j.groups[:0], j.out[:0], j.parts[:0], 0
	if can&FeatureCsum == 0 || can == FeatureCsum || len(frames) == 1 {
		for i := range frames {
			j.parts = append(j.parts, frames[i])
			j.out = append(j.out, Frame{Parts: j.parts[i : i+1 : i+1], Len: len(frames[i])})
		}
		return j.out
	}
	clear(j.table[:])
	for i := range frames {
		j.add(frames, int32(i), can)
	}
	for i := range j.groups {
		j.finish(frames, &j.groups[i])
	}
	return j.out
}

// Each calls f with the index of every frame that frame i of the last Join is made of, in their order.
func (j *Joiner) Each(i int, f func(frame int)) {
	if len(j.groups) == 0 {
		f(i) // nothing was joined
		return
	}
	for k := j.groups[i].first; k >= 0; k = j.next[k] {
		f(int(k))
	}
}

// add puts frame i into a group: that of its flow, or a new one.
func (j *Joiner) add(frames [][]byte, i int32, can Features) {
	frame := frames[i]
	j.next[i] = -1
	j.groups = j.groups[:len(j.groups)+1]
	g := &j.groups[len(j.groups)-1]
	*g = group{first: i, last: i, n: 1}
	if j.bare {
		g.in = ClassifyIP(frame)
	} else {
		g.in = Classify(frame)
	}
	if g.in.L4 == 0 {
		if g.in.IsIP() && g.in.Proto != protoICMP && g.in.Proto != protoICMPv6 {
			// A fragment, or something hidden behind options: of whatever flow.
			clear(j.table[:])
		}
		return
	}
	slot := &j.table[g.in.Hash(frame, j.seed)%uint32(len(j.table))]
	open := *slot
	*slot = 0
	starts := g.begin(frame, can)
	if open != 0 && g.payload != 0 {
		if to := &j.groups[open-1]; g.continues(frame, frames[to.first], to) && to.verified(frames[to.first]) {
			if !sumsGood(frame, &g.in) {
				return
			}
			j.next[to.last] = i
			j.tail[i] = piece{uint32(g.in.Payload), g.in.End}
			limit := int32(maxJoinedTCP)
			if g.in.Proto == protoUDP {
				limit = maxJoinedUDP
			}
			to.last, to.n, to.id, to.seq = i, to.n+1, g.id, g.seq
			to.flags |= g.flags
			to.payload += g.payload
			if g.size == to.size && g.flags&(tcpPSH|tcpFIN) == 0 && to.n < limit {
				*slot = open
			}
			j.groups = j.groups[:len(j.groups)-1]
			return
		}
	}
	if starts {
		*slot = int32(len(j.groups))
	}
}

// begin records what the next frame of the group must continue, and reports whether one may. payload
// stays 0 if frame can neither be continued nor continue another.
func (g *group) begin(frame []byte, can Features) bool {
	in := &g.in
	payload := in.End - uint32(in.Payload)
	var need Features
	switch in.Kind {
	case IPv4TCP:
		need = FeatureTSO4
	case IPv6TCP:
		need = FeatureTSO6
	case IPv4UDP:
		need = FeatureUSO4
	case IPv6UDP:
		need = FeatureUSO6
	}
	if payload == 0 || need == 0 || can&need == 0 {
		return false
	}
	ip, t := frame[in.L3:in.L4], frame[in.L4:in.Payload]
	if in.Kind < IPv6 {
		if len(ip) != 20 || ip[6]&0x80 != 0 {
			return false
		}
		g.id = be.Uint16(ip[4:])
	} else if len(ip) != 40 {
		return false
	}
	g.size = uint16(payload)
	if in.Proto == protoUDP {
		if uint32(be.Uint16(t[4:])) != payload+8 || t[6]|t[7] == 0 {
			return false
		}
		g.payload = payload
		return true
	}
	g.flags = t[13]
	if g.flags&tcpACK == 0 || g.flags&(tcpSYN|tcpRST|tcpURG) != 0 {
		return false
	}
	g.payload, g.seq = payload, be.Uint32(t[4:])+payload
	return g.flags&(tcpPSH|tcpFIN) == 0 && (g.flags&tcpCWR == 0 || can&FeatureECN != 0)
}

// continues reports whether frame, of g, can follow the group to, which begins with head.
func (g *group) continues(frame, head []byte, to *group) bool {
	a, b := &to.in, &g.in
	if a.Kind != b.Kind || a.L3 != b.L3 || a.L4 != b.L4 || a.Payload != b.Payload || g.size > to.size ||
		uint32(a.Payload)-uint32(a.L3)+to.payload+g.payload > MaxIP || string(head[:a.L3]) != string(frame[:a.L3]) {
		return false
	}
	p, q := head[a.L3:a.Payload], frame[a.L3:a.Payload]
	if a.Kind < IPv6 {
		if le.Uint16(p) != le.Uint16(q) || le.Uint32(p[6:]) != le.Uint32(q[6:]) ||
			le.Uint64(p[12:]) != le.Uint64(q[12:]) {
			return false
		}
		same := g.id == to.id && p[6]&0x40 != 0 && (to.n == 1 || to.sameID)
		if !same && (g.id != to.id+1 || to.sameID) {
			return false
		}
		to.sameID = same
		p, q = p[20:], q[20:]
	} else {
		if le.Uint32(p) != le.Uint32(q) || le.Uint16(p[6:]) != le.Uint16(q[6:]) || string(p[8:40]) != string(q[8:40]) {
			return false
		}
		p, q = p[40:], q[40:]
	}
	if le.Uint32(p) != le.Uint32(q) {
		return false
	}
	if a.Proto == protoUDP {
		return true
	}
	const mayEnd = tcpPSH | tcpFIN
	return be.Uint32(q[4:]) == to.seq && le.Uint32(p[8:]) == le.Uint32(q[8:]) && p[12] == q[12] &&
		(p[13]&^tcpCWR) == q[13]&^mayEnd && le.Uint16(p[14:]) == le.Uint16(q[14:]) && string(p[18:]) == string(q[18:])
}

// verified reports whether the checksums of the first frame are valid; it is called when a second
// frame arrives.
func (g *group) verified(head []byte) bool {
	g.good = g.good || sumsGood(head, &g.in)
	return g.good
}

// sumsGood checks the checksums of the IPv4 header and of TCP or UDP.
func sumsGood(frame []byte, in *Info) bool {
	ip := frame[in.L3:in.L4]
	if in.Kind < IPv6 && fold(sum(ip, 0)) != 0xffff {
		return false
	}
	t := frame[in.L4:in.End]
	return fold(sum(t, pseudo(ip, in, len(t)))) == 0xffff
}

// pseudo is the sum of the pseudo header of n octets behind ip (RFC 9293 §3.1, RFC 8200 §8.1).
func pseudo(ip []byte, in *Info, n int) uint64 {
	s := word(uint16(in.Proto)) + word(uint16(n))
	if in.Kind < IPv6 {
		return add(le.Uint64(ip[12:]), s)
	}
	return sum(ip[8:40], s)
}

// finish makes a Frame of a group.
func (j *Joiner) finish(frames [][]byte, g *group) {
	head, in, start := frames[g.first], &g.in, len(j.parts)
	if g.n == 1 {
		j.parts = append(j.parts, head)
		j.out = append(j.out, Frame{Parts: j.parts[start : start+1 : start+1], Len: len(head)})
		return
	}
	h := j.hdrs[j.used : j.used+int(in.Payload)]
	j.used += len(h)
	copy(h, head)
	j.parts = append(j.parts, h, head[in.Payload:in.End])
	for i := j.next[g.first]; i >= 0; i = j.next[i] {
		j.parts = append(j.parts, frames[i][j.tail[i].from:j.tail[i].to])
	}
	n := uint32(len(h)) + g.payload
	off := Offload{Flags: NeedsCsum, HdrLen: in.Payload, GSOSize: g.size, CsumStart: in.L4, CsumOffset: 16}
	ip, t := h[in.L3:in.L4], h[in.L4:]
	if in.Kind < IPv6 {
		off.GSO = GSOTCPv4
		be.PutUint16(ip[2:], uint16(n-uint32(in.L3)))
		le.PutUint16(ip[10:], 0)
		le.PutUint16(ip[10:], ^fold(sum(ip, 0)))
	} else {
		off.GSO = GSOTCPv6
		be.PutUint16(ip[4:], uint16(n-uint32(in.L4)))
	}
	length := int(n) - int(in.L4)
	if in.Proto == protoUDP {
		off.GSO, off.CsumOffset = GSOUDP, 6
		be.PutUint16(t[4:], uint16(length))
	} else {
		t[13] = g.flags
		if g.flags&tcpCWR != 0 {
			off.GSO |= GSOECN
		}
	}
	le.PutUint16(t[off.CsumOffset:], fold(pseudo(ip, in, length)))
	j.out = append(j.out, Frame{Parts: j.parts[start:len(j.parts):len(j.parts)], Len: int(n), Off: off})
}

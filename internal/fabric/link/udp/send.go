// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"golang.org/x/sys/unix"

	"weft/internal/fabric/link/udpsock"
	"weft/internal/fabric/trunk"
	"weft/internal/proto/mono"
)

const (
	flushBytes   = 128 << 10 // sent at once when this much is waiting, while it is in cache
	sendMessages = 64        // of one system call
	sendPieces   = 1024      // of all of them; a train has at most 160
	sendCtrl     = infoLen + udpsock.SegmentLen
)

// outMessage is one message of sendmmsg: a whole train, or one datagram of it.
type outMessage struct {
	count, bytes int // datagrams, octets
	whole        bool
	ctrl         [sendCtrl]byte
}

// Sender is the transmitter of one lane: one stream. The package comment states its concurrency.
type Sender struct {
	l     *Link
	batch *trunk.Batch
	// The first train that is not sent and, where its datagrams go by
	// themselves, the first of those.
	head, next int
	single     bool // the first train is sent in single datagrams
	noGSO      bool
	blocked    bool
	c          [trunk.MaxPeers]SendCounters
	turn       [trunk.MaxPeers]uint32 // of the peer that c counts for

	hdr [sendMessages]udpsock.Message
	msg [sendMessages]outMessage
	iov [sendPieces]unix.Iovec
}

// Sender returns the sender of a stream, which no other Sender may have. The
// stream is below trunk.MaxStreams.
func (l *Link) Sender(stream uint8) *Sender {
	if stream >= trunk.MaxStreams {
		panic("udp: no such stream")
	}
	s := &Sender{l: l}
	s.batch = trunk.NewBatch(stream, s.remote)
	return s
}

// remote returns the state of a peer, and begins its counters anew where the index serves another.
func (s *Sender) remote(i int) trunk.Remote {
	p := &s.l.peers[i]
	if t := p.turn.Load(); t != s.turn[i] {
		s.turn[i], s.c[i] = t, SendCounters{}
		s.batch.Forget(i)
	}
	return p.remote()
}

// Inject puts i, a stage of package fault, between Commit and the datagrams; nil
// ends it.
func (s *Sender) Inject(i trunk.Injector) { s.batch.Inject(i) }

// Reserve returns a buffer, with undefined content, for a packet of up to n octets to a peer, in the
// transmit buffer. nil is a counted drop: the trunk is down, the packet is too long, or the Sender is
// Blocked and full. The buffer is valid until the next call of Reserve, Commit or Flush.
func (s *Sender) Reserve(peer, n int) []byte { return s.batch.Reserve(peer, n) }

// Commit makes the first n octets of what Reserve returned a packet. It panics if
// there is none, or n is not 1 to its length. What was reserved and is not
// committed is forgotten. Flush sends it, and Commit itself does when enough
// is waiting.
func (s *Sender) Commit(now mono.Time, n int) {
	s.batch.Commit(now, n)
	if s.batch.Waiting() >= flushBytes && !s.blocked {
		s.flush()
	}
}

// Flush sends everything that was committed, as far as the sockets accept it, and the packets that an
// Injector held until now.
func (s *Sender) Flush(now mono.Time) {
	s.batch.Release(now)
	s.flush()
}

// Blocked reports whether the sockets did not accept everything at the last Flush; the next Flush
// sends the rest.
func (s *Sender) Blocked() bool { return s.blocked }

// Deadline returns when Flush must be called next on behalf of an Injector; 0:
// never.
func (s *Sender) Deadline() mono.Time { return s.batch.Deadline() }

func (s *Sender) flush() {
	s.blocked = false
	trains := s.batch.Trains()
	for s.head < len(trains) {
		first := s.l.peers[trains[s.head].Peer].to.Load()
		if first == nil {
			// The peer was removed.
			t := &trains[s.head]
			s.c[t.Peer].SendErrors.Count(unix.EHOSTUNREACH, uint64(t.Count-s.next))
			s.advance()
			continue
		}
		n := s.prepare(trains, first.family)
		if n == 0 {
			continue
		}
		sent, e := udpsock.Send(s.l.fd[first.family], s.hdr[:n])
		switch e {
		case 0:
			for i := range sent {
				s.sent(trains, &s.msg[i])
			}
		case unix.EINTR:
		case unix.EAGAIN:
			s.c[trains[s.head].Peer].Blocked++
			s.blocked = true
			return
		default:
			s.refused(trains, e)
		}
	}
	s.batch.Reset()
	s.head = 0
}

// prepare fills the messages of one system call from the first train on and
// returns their number.
func (s *Sender) prepare(trains []trunk.Train, family int) (n int) {
	iov := 0
	single, next := s.single, s.next
	for i := s.head; i < len(trains) && n < sendMessages; i++ {
		t := &trains[i]
		p := s.l.peers[t.Peer].to.Load() // nil: removed by now
		pieces := s.batch.Pieces(t)
		if p == nil || p.family != family || iov+len(pieces) > sendPieces {
			break
		}
		if t.Count > 1 && (s.noGSO || single) {
			n, iov = s.singles(t, p, next, n, iov)
		} else {
			m := &s.msg[n]
			m.count, m.bytes, m.whole = t.Count, t.Bytes, true
			first := iov
			for _, pc := range pieces {
				s.iov[iov].Base = &s.batch.Bytes()[pc.Off]
				s.iov[iov].SetLen(pc.Len)
				iov++
			}
			size := 0
			if t.Count > 1 {
				size = t.Size
			}
			s.message(n, p, first, iov, size)
			n++
		}
		single, next = false, 0
	}
	return n
}

// singles makes messages of the datagrams of t from next on, as many as there
// is room for.
func (s *Sender) singles(t *trunk.Train, p *target, next, n, iov int) (int, int) {
	off := 0 // in the train
	start, end := next*t.Size, min((next+1)*t.Size, t.Bytes)
	first := iov
	for _, pc := range s.batch.Pieces(t) {
		for lo := max(start, off); lo < min(end, off+pc.Len); lo = max(start, off) {
			if iov == sendPieces || n == sendMessages {
				return n, iov
			}
			hi := min(end, off+pc.Len)
			s.iov[iov].Base = &s.batch.Bytes()[pc.Off+lo-off]
			s.iov[iov].SetLen(hi - lo)
			iov++
			if hi < end {
				break // the rest is in the next piece
			}
			m := &s.msg[n]
			m.count, m.bytes, m.whole = 1, end-next*t.Size, false
			s.message(n, p, first, iov, 0)
			n++
			next++
			first = iov
			start, end = next*t.Size, min((next+1)*t.Size, t.Bytes)
		}
		off += pc.Len
		if start < off {
			start = off
		}
	}
	return n, iov
}

// message fills in message n to p, of pieces iov[first:end], which the kernel
// cuts into datagrams of size octets if size is not 0.
func (s *Sender) message(n int, p *target, first, end, size int) {
	h, m := &s.hdr[n].Hdr, &s.msg[n]
	h.Name, h.Namelen = &p.name[0], p.nameLen
	c := copy(m.ctrl[:], p.ctrl[:p.ctrlLen])
	if size > 0 {
		c = udpsock.PutSegment(m.ctrl[:], c, size)
	}
	h.Control = nil
	if c > 0 {
		h.Control = &m.ctrl[0]
	}
	h.SetControllen(c)
	h.Iov = &s.iov[first]
	h.SetIovlen(end - first)
}

// sent records that one message was sent and advances behind it.
func (s *Sender) sent(trains []trunk.Train, m *outMessage) {
	t := &trains[s.head]
	c := &s.c[t.Peer]
	c.Messages++
	c.Datagrams += uint64(m.count)
	c.Bytes += uint64(m.bytes)
	if m.count > 1 {
		c.GSO++
	}
	if !m.whole {
		if s.next++; s.next < t.Count {
			return
		}
	}
	c.Packets += uint64(t.Packets)
	s.advance()
}

func (s *Sender) advance() { s.head, s.next, s.single = s.head+1, 0, false }

// refused handles an error of the first message: it is sent again, or dropped.
func (s *Sender) refused(trains []trunk.Train, e unix.Errno) {
	t := &trains[s.head]
	p := &s.l.peers[t.Peer]
	gso := t.Count > 1 && !s.noGSO && !s.single
	switch {
	case gso && e == unix.EIO:
		// The interface cannot compute checksums, which older kernels need for
		// trains.
		s.noGSO = true
		return
	case e == unix.EMSGSIZE || gso && e == unix.EINVAL:
		// A train of datagrams larger than the path MTU is EINVAL to older kernels.
		p.remeasure()
		if gso && e == unix.EINVAL && t.Size <= int(p.path.Load()) {
			s.single = true // the errors of single datagrams give the reason
			return
		}
		e = unix.EMSGSIZE
	}
	n := t.Count
	if !gso {
		n = 1
	}
	s.c[t.Peer].SendErrors.Count(e, uint64(n))
	if gso || t.Count == 1 {
		s.advance()
	} else if s.next++; s.next == t.Count {
		s.advance()
	}
}

// Degraded lists every state in which the Sender works less well than it could.
func (s *Sender) Degraded() []udpsock.Degraded {
	if !s.noGSO {
		return nil
	}
	return []udpsock.Degraded{{Name: "no_trunk_gso",
		Detail: "the kernel refused to cut datagrams (no checksum offload on an interface): every datagram of a trunk is " +
			"sent by itself",
		Fix: "ethtool -K DEV tx on, or a kernel of 6.11 or later"}}
}

// Counters returns what was sent to a peer, and what was not.
func (s *Sender) Counters(peer int) SendCounters {
	c := s.c[peer]
	c.Drops = s.batch.Drops(peer)
	return c
}

// SPDX-License-Identifier: Apache-2.0

package trunk

import (
	"net/netip"
	"time"

	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/mono"
)

// Control datagrams are always encrypted, whatever the mode. Their body begins with controlLen octets: type, flags,
// 16 bits reserved, number, size.
const controlLen = 12

// Types of control datagrams. Others are ignored: later versions may have them.
const (
	typeHello    = 1 + iota // size: the limit of the sender's path
	typeReply               // to the hello of this number
	typeProbe               // padded to size
	typeProbeAck            // to the probe of this number and size
)

// Flags of hellos.
const (
	flagReceives = 1 << iota // the sender receives from the receiver
	flagRekey                // the sender has used its key up
)

// message is the content of a control datagram.
type message struct {
	typ, flags uint8
	number     uint32
	size       uint32
}

func (m *message) put(b []byte) {
	b = b[:controlLen]
	b[0], b[1], b[2], b[3] = m.typ, m.flags, 0, 0
	be.PutUint32(b[4:], m.number)
	be.PutUint32(b[8:], m.size)
}

// parseMessage decodes a body of at least controlLen octets.
func parseMessage(b []byte) message {
	return message{b[0], b[1], be.Uint32(b[4:]), be.Uint32(b[8:])}
}

// probe is a datagram that measures the path.
type probe struct{ number, size uint32 }

// control handles the body of a genuine control datagram of so many octets.
func (c *Core) control(now mono.Time, from netip.AddrPort, i int, body []byte, octets int) {
	p := &c.peers[i]
	m := parseMessage(body)
	if !p.cfg.Addr.IsValid() && from != p.addr && m.typ == typeHello && int32(m.number-p.theirNo) > 0 {
		// A peer without a configured address is where its newest hello comes from.
		p.addr = from
		c.cfg.Changed(i)
	}
	switch m.typ {
	case typeHello:
		p.status.Hellos++
		c.hello(now, i, m)
	case typeReply:
		p.status.Replies++
		c.alive(now, i)
		at := &p.sentAt[m.number%helloMemory]
		if p.helloNo-m.number < helloMemory && *at != 0 {
			p.measure(now.Sub(*at))
			*at = 0
		}
	case typeProbe:
		// What arrived is acknowledged, not what is stated.
		if int(m.size) == octets {
			p.ack = probe{m.number, m.size}
			c.turn = 0
		}
	case typeProbeAck:
		if p.path.acknowledged(now, probe{m.number, m.size}) {
			c.cfg.Changed(i)
		}
	}
	// The hello that takes a trunk down was received all the same.
	p.heard = now
}

// hello handles a hello: it schedules a reply, and the trunk is up if the peer receives our datagrams.
func (c *Core) hello(now mono.Time, i int, m message) {
	p := &c.peers[i]
	p.reply, p.replyNo = true, m.number
	c.turn = 0
	stale := int32(m.number-p.theirNo) <= 0
	if !stale {
		p.theirNo = m.number
		p.wantsRekey = m.flags&flagRekey != 0
		if p.path.theirs != int(m.size) && m.size >= 1 && m.size <= 65535 {
			p.path.theirs = int(m.size)
			p.path.follow()
			c.cfg.Changed(i)
		}
	}
	switch {
	case m.flags&flagReceives != 0:
		c.alive(now, i)
	case p.status.Up && !stale:
		// The peer receives nothing of ours, and drops our data.
		c.down(now, i, false)
	}
}

// measure smooths the round-trip time as RFC 6298 does.
func (p *peer) measure(rtt time.Duration) {
	s := &p.status
	s.LastRTT = rtt
	if s.RTT == 0 {
		s.RTT = rtt
	}
	s.RTT += (rtt - s.RTT) / 8
}

// alive handles the proof that the peer receives our datagrams.
func (c *Core) alive(now mono.Time, i int) {
	p := &c.peers[i]
	p.heard = now
	if p.status.Up {
		return
	}
	p.status.Up, p.status.Since = true, now
	p.status.Ups++
	p.hello = true // the peer may need it to bring its end up
	p.path.probeNow()
	c.turn = 0
	c.cfg.Changed(i)
	c.cfg.Event(Event{Peer: i, Up: true, Node: p.status.Node, Name: p.status.Name, Restarted: p.restarted})
	p.restarted = false
}

func (c *Core) down(now mono.Time, i int, restarted bool) {
	p := &c.peers[i]
	s := &p.status
	s.Up, s.Since, s.RTT = false, now, 0
	s.Downs++
	p.hello = true // a peer that still receives ours learns that this end is down
	c.turn = 0
	p.parts.clear(&c.pool)
	c.cfg.Changed(i)
	c.cfg.Event(Event{Peer: i, Node: s.Node, Name: s.Name, Restarted: restarted})
}

// Output is a datagram that Next wrote.
type Output struct {
	Peer int            // -1: for no peer
	To   netip.AddrPort // where to
	Len  int
	// Unproved: nothing has proved that the receiver is at its address. The datagram must not take the place of others.
	Unproved bool
}

// Next writes the next datagram of a handshake, hello, reply or probe to b, which has room for MaxDatagram octets; ok
// is false if there is none.
func (c *Core) Next(now mono.Time, b []byte) (o Output, ok bool) {
	if c.hs != nil {
		if o, ok := c.hs.Next(now, b); ok {
			peer, known := c.byAddr[o.To]
			if !known {
				peer = -1
			}
			return Output{peer, o.To, o.Len, o.Unproved}, true
		}
	}
	for ; c.turn < len(c.peers); c.turn++ {
		p := &c.peers[c.turn]
		var m message
		size := HeaderLen + controlLen + seal.TagLen
		key := c.sendKey(p)
		switch {
		case key == nil || !p.addr.IsValid():
			continue
		case p.reply:
			p.reply = false
			m = message{typ: typeReply, number: p.replyNo}
		case p.ack.size != 0:
			m = message{typ: typeProbeAck, number: p.ack.number, size: p.ack.size}
			p.ack = probe{}
		case p.hello:
			p.hello = false
			p.helloNo++
			p.sentAt[p.helloNo%helloMemory] = now
			m = message{typ: typeHello, number: p.helloNo, size: uint32(p.path.own)}
			if p.heard != 0 && c.read(now, c.turn).Sub(p.heard) < c.cfg.DownAfter {
				m.flags |= flagReceives
			}
			if key.Used() >= c.cfg.RekeyDatagrams {
				m.flags |= flagRekey
			}
		default:
			q, due := probe{}, false
			if p.status.Up {
				q, due = p.path.next(now)
			}
			if !due {
				continue
			}
			p.status.Probes++
			m = message{typ: typeProbe, number: q.number, size: q.size}
			size = int(q.size)
		}
		p.number++
		h := Header{Kind: Control, Stream: controlStream, Index: key.Index(), Number: p.number}
		d := b[:size-seal.TagLen]
		clear(d)
		h.Put(d)
		m.put(d[HeaderLen:])
		n := len(key.Seal(&c.scratch, seal.Encrypt, d, HeaderLen, h.counter()))
		return Output{Peer: c.turn, To: p.addr, Len: n}, true
	}
	return Output{}, false
}

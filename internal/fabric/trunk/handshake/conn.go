// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/mono"
)

// Times of retransmission.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = time.Second
	answerGap  = 20 * time.Millisecond // between two answers to datagrams that arrived before
)

type state uint8

// States of a conn, in order.
const (
	asking  state = iota // the initiator has no cookie
	talking              // TLS runs
	done                 // the session is complete; the initiator repeats its last flight until it is confirmed
	dead
)

// conn is one handshake.
type conn struct {
	state     state
	initiator bool
	class     Class // of one that the peer began
	tag       int   // of Begin
	at        netip.AddrPort
	index     uint32
	theirs    uint32 // 0: unknown
	claim     uint64
	cookie    [cookieLen]byte
	retries   int  // cookies taken
	heard     bool // a sealed datagram of the peer was genuine
	began     mono.Time
	ends      mono.Time

	tls      *engine // nil: not started
	out      bool    // a Work of it is out: tls belongs to that
	early    []byte  // sealed datagrams that arrived meanwhile, each behind its length of 16 bits
	sent     [numLevels]flight
	in       [numLevels]flight
	send     *seal.Key
	open     *seal.Key
	counter  uint64
	write    []byte // traffic secrets
	read     []byte
	local    Hello
	remote   Hello
	identity Identity

	due    [numLevels]uint32 // chunks to send now
	ack    bool              // a datagram is due, also without a chunk
	alert  int               // an alert to send, or -1
	next   mono.Time         // of a retransmission
	wait   time.Duration
	answer mono.Time // earliest next answer to a repeated datagram
}

// maxEarly bounds conn.early: the chunks of a flight of the largest certificates.
const maxEarly = 16 << 10

// hold keeps a sealed datagram until the Work that is out comes back; false: there is no room.
func (c *conn) hold(d []byte) bool {
	if len(c.early)+2+len(d) > maxEarly {
		return false
	}
	c.early = append(be.AppendUint16(c.early, uint16(len(d))), d...)
	return true
}

// ready reports whether TLS has something to do.
func (c *conn) ready() bool {
	if c.out || c.state != talking {
		return false
	}
	return c.initiator && c.tls == nil || c.in[clearLevel].waits() || c.in[sealedLevel].waits()
}

// took handles what a Work produced, also before it failed.
func (c *conn) took(o *outcome) (err error) {
	if o.open != nil {
		c.open, err = seal.NewKey(o.open, c.index)
	}
	if o.send != nil && err == nil {
		c.send, err = seal.NewKey(o.send, c.theirs)
	}
	if o.read != nil {
		c.read = o.read
	}
	if o.write != nil {
		c.write = o.write
	}
	c.identity = o.identity
	if o.stated && err == nil {
		err = c.remote.Parse(o.hello)
	}
	for l, data := range o.messages {
		if len(data) == 0 {
			continue
		}
		f := &c.sent[l]
		f.data = append(f.data, data...)
		f.total = len(f.data)
		if f.total > chunkLen*maxChunks {
			return fmt.Errorf("handshake messages of %d octets are too long", f.total)
		}
		c.due[l] = all(f.total)
	}
	clear(o.open)
	clear(o.send)
	return errors.Join(err, o.err)
}

// missing marks what the peer lacks as due.
func (c *conn) missing() {
	for l := range c.sent {
		f := &c.sent[l]
		c.due[l] = all(f.total) &^ f.have
	}
}

// pending reports whether the peer lacks anything.
func (c *conn) pending() bool {
	for l := range c.sent {
		if f := &c.sent[l]; all(f.total) != f.have {
			return true
		}
	}
	return c.state == asking
}

// sends reports whether a datagram is due.
func (c *conn) sends() bool {
	return c.state != dead && (c.ack || c.alert >= 0 || c.due[clearLevel]|c.due[sealedLevel] != 0)
}

// repeat schedules the next retransmission.
func (c *conn) repeat(now mono.Time) {
	c.next = now.Add(c.wait)
	c.wait = min(2*c.wait, lastRetry)
}

// put appends the next datagram to b, which has room for MaxDatagram octets.
func (c *conn) put(b []byte, s *seal.Scratch) []byte {
	for l := range c.due {
		f := &c.sent[l]
		if c.due[l] == 0 || l == sealedLevel && c.send == nil {
			c.due[l] = 0
			continue
		}
		i := 0
		for c.due[l]>>i&1 == 0 {
			i++
		}
		c.due[l] &^= 1 << i
		c.ack = false
		lo, hi := chunk(i, f.total)
		return c.datagram(b, l, part{got: c.in[l].have, total: uint16(f.total), chunk: uint8(i)}, f.data[lo:hi], s)
	}
	c.ack = false
	switch {
	case c.send != nil && c.alert >= 0:
		code := byte(c.alert)
		c.alert = -1
		return c.datagram(b, sealedLevel, part{what: partAlert}, []byte{code}, s)
	case c.send != nil:
		return c.datagram(b, sealedLevel, part{got: c.in[sealedLevel].have}, nil, s)
	}
	c.alert = -1
	return c.datagram(b, clearLevel, part{got: c.in[clearLevel].have}, nil, s)
}

func (c *conn) datagram(b []byte, level int, p part, data []byte, s *seal.Scratch) []byte {
	if level == clearLevel {
		h := initial{initiator: c.initiator, to: c.theirs, from: c.index, claim: c.claim, cookie: c.cookie}
		return p.put(h.put(b), data)
	}
	at := len(b)
	b = append(b, seal.Magic, seal.Version<<4|byte(Sealed), 0, 0)
	b = append(b, make([]byte, seal.HeaderLen-4)...)
	b = p.put(b, data)
	c.counter++
	d := b[at:]
	return b[:at+len(c.send.Seal(s, seal.Encrypt, d, seal.HeaderLen, c.counter))]
}

// close ends TLS, and with it its goroutine; where a Work is out, Finish does.
func (c *conn) close() {
	c.state = dead
	if c.tls != nil && !c.out {
		c.tls.close()
	}
	clear(c.read)
	clear(c.write)
}

// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft/internal/fabric/trunk/seal"
	"weft/internal/proto/mono"
)

// alpn is the application protocol of the handshake (RFC 7301).
const alpn = "weft-trunk/2"

// Levels: the messages in the clear, and those under handshake secrets.
const (
	clearLevel = iota
	sealedLevel
	numLevels
)

var levels = [numLevels]tls.QUICEncryptionLevel{tls.QUICEncryptionLevelInitial, tls.QUICEncryptionLevelHandshake}

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

	tls      *tls.QUICConn
	out, in  [numLevels]flight
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

// start starts TLS.
func (c *conn) start(now mono.Time, cfg *Config) error {
	own := func() (*tls.Certificate, error) { return cfg.Trust.Certificate() }
	wall := func() time.Time { return cfg.Wall(now) }
	t := &tls.Config{
		Rand: cfg.Rand, Time: wall, MinVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		ServerName: "trunk", ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		// One group, hybrid with ML-KEM, so that the handshake has no second round trip.
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768},
		// Trust verifies, at both ends alike. Without it nothing is verified, and so it is never skipped:
		// VerifyConnection
		// is called on every handshake.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			c.identity, err = verify(cfg.Trust, cfg.Wall(now), s.PeerCertificates)
			return err
		},
	}
	q := &tls.QUICConfig{TLSConfig: t}
	if c.initiator {
		c.tls = tls.QUICClient(q)
	} else {
		c.tls = tls.QUICServer(q)
	}
	c.tls.SetTransportParameters(c.local.Append(nil))
	if err := c.tls.Start(context.Background()); err != nil {
		return err
	}
	return c.events()
}

func verify(t Trust, now time.Time, chain []*x509.Certificate) (Identity, error) {
	if len(chain) == 0 {
		return Identity{}, errors.New("no certificate")
	}
	return t.Verify(now, chain)
}

// feed hands to TLS what is whole.
func (c *conn) feed() error {
	for l := range c.in {
		f := &c.in[l]
		if f.fed || !f.whole() {
			continue
		}
		f.fed = true
		if err := c.tls.HandleData(levels[l], f.data); err != nil {
			return err
		}
		if err := c.events(); err != nil {
			return err
		}
	}
	return nil
}

// events handles what TLS produced.
func (c *conn) events() error {
	for {
		e := c.tls.NextEvent()
		var err error
		switch e.Kind {
		case tls.QUICNoEvent:
			return nil
		case tls.QUICWriteData:
			err = c.written(e)
		case tls.QUICSetReadSecret:
			switch e.Level {
			case tls.QUICEncryptionLevelHandshake:
				c.open, err = seal.NewKey(e.Data, c.index)
			case tls.QUICEncryptionLevelApplication:
				c.read = append([]byte(nil), e.Data...)
			}
		case tls.QUICSetWriteSecret:
			switch e.Level {
			case tls.QUICEncryptionLevelHandshake:
				c.send, err = seal.NewKey(e.Data, c.theirs)
			case tls.QUICEncryptionLevelApplication:
				c.write = append([]byte(nil), e.Data...)
			}
		case tls.QUICTransportParameters:
			err = c.remote.Parse(e.Data)
		case tls.QUICHandshakeDone:
			c.state = done
		case tls.QUICErrorEvent:
			err = e.Err
		}
		if err != nil {
			return err
		}
	}
}

// written takes messages of TLS.
func (c *conn) written(e tls.QUICEvent) error {
	for l, level := range levels {
		if e.Level != level {
			continue
		}
		f := &c.out[l]
		f.data = append(f.data, e.Data...)
		f.total = len(f.data)
		if f.total > chunkLen*maxChunks {
			return fmt.Errorf("handshake messages of %d octets are too long", f.total)
		}
		c.due[l] = all(f.total)
		return nil
	}
	return fmt.Errorf("messages at level %v", e.Level)
}

// missing marks what the peer lacks as due.
func (c *conn) missing() {
	for l := range c.out {
		f := &c.out[l]
		c.due[l] = all(f.total) &^ f.have
	}
}

// pending reports whether the peer lacks anything.
func (c *conn) pending() bool {
	for l := range c.out {
		if f := &c.out[l]; all(f.total) != f.have {
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
		f := &c.out[l]
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

// close ends TLS, and with it its goroutine.
func (c *conn) close() {
	c.state = dead
	if c.tls != nil {
		c.tls.Close()
	}
	clear(c.read)
	clear(c.write)
}

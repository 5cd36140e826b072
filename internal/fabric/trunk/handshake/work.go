// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"time"
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

// Work is the part of a handshake that computes: key exchange, signatures, and the verification of a certificate, 0.1
// to 0.5 ms of processor time. It is a value that refers to nothing of its Endpoint but the Trust and the source of
// randomness, so that another goroutine may run it. Its holder owns it; Run is called once, then Endpoint.Finish.
type Work struct {
	c   *conn // for Finish
	tls *engine
	// What the peer sent, whole, by level; nil: nothing new.
	messages [numLevels][]byte
	at       time.Time // of certificates
	out      outcome
}

// outcome is what a Work produced.
type outcome struct {
	messages    [numLevels][]byte // to the peer
	open, send  []byte            // handshake secrets
	read, write []byte            // traffic secrets
	hello       []byte            // of the peer, where stated
	stated      bool
	identity    Identity
	done        bool // the handshake is complete
	err         error
}

// engine is TLS of one handshake.
type engine struct {
	conn     *tls.QUICConn
	started  bool
	at       time.Time // of certificates
	identity Identity
}

func newEngine(initiator bool, local *Hello, t Trust, rand io.Reader) *engine {
	e := &engine{}
	own := func() (*tls.Certificate, error) { return t.Certificate() }
	q := &tls.QUICConfig{TLSConfig: &tls.Config{
		Rand: rand, Time: func() time.Time { return e.at }, MinVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		ServerName: "trunk", ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		// One group, hybrid with ML-KEM, so that the handshake has no second round trip.
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768},
		// Trust verifies, at both ends alike. Without it nothing is verified, and so it is never skipped:
		// VerifyConnection is called on every handshake.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			e.identity, err = verify(t, e.at, s.PeerCertificates)
			return err
		},
	}}
	if initiator {
		e.conn = tls.QUICClient(q)
	} else {
		e.conn = tls.QUICServer(q)
	}
	e.conn.SetTransportParameters(local.Append(nil))
	return e
}

func verify(t Trust, now time.Time, chain []*x509.Certificate) (Identity, error) {
	if len(chain) == 0 {
		return Identity{}, errors.New("no certificate")
	}
	return t.Verify(now, chain)
}

// close ends TLS, and with it its goroutine.
func (e *engine) close() {
	if e.started {
		e.conn.Close()
	}
}

// Run computes. It may be called on any goroutine, and blocks for nothing but the processor.
func (w *Work) Run() {
	w.tls.at = w.at
	w.out.err = w.run()
	w.out.identity = w.tls.identity
}

func (w *Work) run() error {
	e := w.tls
	if !e.started {
		e.started = true
		if err := e.conn.Start(context.Background()); err != nil {
			return err
		}
		if err := w.events(); err != nil {
			return err
		}
	}
	for l, data := range w.messages {
		if data == nil {
			continue
		}
		if err := e.conn.HandleData(levels[l], data); err != nil {
			return err
		}
		if err := w.events(); err != nil {
			return err
		}
	}
	return nil
}

// events handles what TLS produced.
func (w *Work) events() error {
	o := &w.out
	for {
		e := w.tls.conn.NextEvent()
		switch e.Kind {
		case tls.QUICNoEvent:
			return nil
		case tls.QUICWriteData:
			l := 0
			for l < numLevels && levels[l] != e.Level {
				l++
			}
			if l == numLevels {
				return fmt.Errorf("messages at level %v", e.Level)
			}
			o.messages[l] = append(o.messages[l], e.Data...)
		case tls.QUICSetReadSecret:
			switch e.Level {
			case tls.QUICEncryptionLevelHandshake:
				o.open = append([]byte(nil), e.Data...)
			case tls.QUICEncryptionLevelApplication:
				o.read = append([]byte(nil), e.Data...)
			}
		case tls.QUICSetWriteSecret:
			switch e.Level {
			case tls.QUICEncryptionLevelHandshake:
				o.send = append([]byte(nil), e.Data...)
			case tls.QUICEncryptionLevelApplication:
				o.write = append([]byte(nil), e.Data...)
			}
		case tls.QUICTransportParameters:
			o.hello, o.stated = append([]byte(nil), e.Data...), true
		case tls.QUICHandshakeDone:
			o.done = true
		case tls.QUICErrorEvent:
			return e.Err
		}
	}
}

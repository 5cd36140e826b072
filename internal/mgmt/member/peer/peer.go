// SPDX-License-Identifier: Apache-2.0

// Package peer is TLS between members of a fabric: for the store, for forwarded commands, for any other TCP
// connection between them.
//
// What comes in: the member's certificate and its roster; what goes out: configurations of crypto/tls by which each end
// proves to be a member. Callers: the node. It decides nothing: Roster.Admit does. A connection outlives the removal of
// its member: what serves it verifies the certificate again for each request.
package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/proto/problem"
)

// Self is what a member is to others. Both functions are called for each connection.
type Self struct {
	Certificate func() (*tls.Certificate, error)
	Roster      func() *member.Roster
	Now         func() time.Time // wall clock
	// Allow returns why a member is refused that the roster admits; nil: none is.
	Allow func(member.Claims) error
	// Recent spares decisions that were made shortly before; nil: each is made.
	Recent *Recent
}

// Server returns the configuration of a server: TLS 1.3, and a client without a member's certificate is refused. A
// connection has the verified chain of the client's certificate (tls.ConnectionState.VerifiedChains).
func (s Self) Server(protocols ...string) *tls.Config {
	certificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate() }
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              x509.NewCertPool(), // none: those of the roster are set for each connection
		NextProtos:             protocols,
		GetCertificate:         certificate,
		VerifyConnection:       s.verify,
		SessionTicketsDisabled: true, // a resumed session would outlive a removal
	}
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := c.Clone()
		now.GetConfigForClient = nil
		now.ClientCAs, now.Time = s.roots(), s.Now
		return now, nil
	}
	return c
}

// roots are the CAs of the roster.
func (s Self) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	if r := s.Roster(); r != nil {
		for _, ca := range r.CAs {
			if x, err := x509.ParseCertificate(ca.Certificate); err == nil {
				pool.AddCert(x)
			}
		}
	}
	return pool
}

// Client returns the configuration of a client. name is the member that it expects; empty: any that Allow allows.
func (s Self) Client(name string, protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         member.Domain, // a constant: names are in certificates, and none is resolved
		InsecureSkipVerify: true,          // VerifyConnection decides
		NextProtos:         protocols,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return s.Certificate()
		},
		VerifyConnection: func(c tls.ConnectionState) error {
			claims, err := s.Claims(c)
			if err == nil && name != "" && claims.Name != name {
				err = fmt.Errorf("the host is the member %s, not %s", claims.Name, name)
			}
			return err
		},
	}
}

func (s Self) verify(c tls.ConnectionState) error {
	_, err := s.Claims(c)
	return err
}

// Verify returns the member that a chain, leaf first, proves at a time, or why it proves none; a handshake has
// proved that the other end has the key of the leaf.
func (s Self) Verify(now time.Time, chain []*x509.Certificate) (member.Claims, error) {
	if len(chain) == 0 {
		return member.Claims{}, errors.New("the host has shown no certificate")
	}
	r := s.Roster()
	if r == nil {
		return member.Claims{}, errors.New("this node is in no fabric")
	}
	claims, known := s.Recent.find(r, chain[0], now)
	if !known {
		var p *problem.Error
		if claims, _, p = r.Admit(chain[0], now); p != nil {
			return member.Claims{}, p
		}
		s.Recent.keep(r, chain[0], claims, now)
	}
	if s.Allow != nil {
		if err := s.Allow(claims); err != nil {
			return member.Claims{}, err
		}
	}
	return claims, nil
}

// Claims returns the member at the other end of a connection, by the roster as it is now: roles of a record that
// changed are in force for connections that are open.
func (s Self) Claims(c tls.ConnectionState) (member.Claims, error) {
	return s.Verify(s.Now(), c.PeerCertificates)
}

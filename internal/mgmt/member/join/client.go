// SPDX-License-Identifier: Apache-2.0

package join

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/registry"
	"weft/internal/proto/problem"
)

// maxElsewhere bounds the voters that a member names, and so the hosts that a joiner tries.
const maxElsewhere = 8

// Client joins a fabric, or renews a certificate.
type Client struct {
	Dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: net.Dialer
	MTU  func(net.Conn) int                                                   // of the path of a connection; 0: unknown
	Now  func() time.Time                                                     // wall clock
}

const cannotJoin = "cannot join the fabric"

// Join makes this host a member by way of the member at address, or of a voter that it names. The caller fills in what
// the host is: name, GUID, addresses, roles; the rest is added here. On any error nothing has changed here; there,
// the host may be a member where the answer was lost, and gets the same answer again.
func (c *Client) Join(ctx context.Context, address string, token member.Secret, id *member.Identity,
	q member.Request) (*registry.Answer, *problem.Error) {
	tried := map[string]bool{}
	next := []string{address}
	var last *problem.Error
	for len(next) > 0 && len(tried) <= maxElsewhere {
		at := next[0]
		next = next[1:]
		if tried[at] {
			continue
		}
		tried[at] = true
		a, elsewhere, p := c.joinAt(ctx, at, token, id, q)
		switch {
		case p == nil && a != nil:
			return a, nil
		case p == nil:
			next = append(next, elsewhere...)
		case at == address || !errors.Is(p, errReach):
			return nil, p
		default: // a voter that does not answer: another may
			last = p
		}
	}
	if last == nil {
		last = problem.New(cannotJoin, "the member at "+address+" has no key of the CA, and names no voter that has",
			"weft join HOST, with the address of a voter: weft member list, on a member")
	}
	return nil, last
}

// Lost reports whether an error of Join or Renew leaves open what the member did: its answer did not arrive, or it has
// decided nothing, since it cannot use the store.
func Lost(p *problem.Error) bool { return errors.Is(p, errReach) }

// errReach is in the tree of an error of the network.
var errReach = errors.New("no answer")

// joinAt makes the two exchanges on one connection.
func (c *Client) joinAt(ctx context.Context, address string, token member.Secret, id *member.Identity,
	q member.Request) (*registry.Answer, []string, *problem.Error) {
	ctx, stop := context.WithTimeout(ctx, exchangeTime)
	defer stop()
	session, p := c.connect(ctx, address, token)
	if p != nil {
		return nil, nil, p
	}
	defer session.close()
	var open openAnswer
	if p := session.post(ctx, pathOpen, openRequest{token.ID}, &open); p != nil {
		return nil, nil, p
	}
	if len(open.Elsewhere) > 0 {
		for _, a := range open.Elsewhere[:min(len(open.Elsewhere), maxElsewhere)] {
			if err := member.CheckAddress(a); err != nil {
				return nil, nil, session.odd(err.Error())
			}
		}
		return nil, open.Elsewhere[:min(len(open.Elsewhere), maxElsewhere)], nil
	}
	state := session.conn.ConnectionState()
	exported, err := state.ExportKeyingMaterial(exporter, nil, exportSize)
	if err != nil || !token.Proved(open.Proof, exported) {
		return nil, nil, problem.New(cannotJoin,
			"the host at "+address+" has a certificate of the fabric and no proof that it "+
				"has the token: it may be a removed member", "weft join HOST, with the address of another member")
	}
	// With the secret, a member of other roles would join hosts of its own.
	if x, err := member.ClaimsOf(state.PeerCertificates[0]); err != nil || !x.Roles.Has(member.Voter) {
		return nil, nil, problem.New(cannotJoin, "the host at "+address+" takes a token and has not the role voter",
			"weft join HOST, with the address of a voter: weft member list, on a member")
	}
	q.Protocol, q.Token, q.Secret, q.Pin = member.Protocol, token.ID, token.Key(), token.Pin[:]
	q.Seal = id.Seal.PublicKey().Bytes()
	if q.CSR, err = id.Request(q.Name); err != nil {
		return nil, nil, problem.Of(cannotJoin, err)
	}
	q.Clock = c.Now()
	if c.MTU != nil {
		q.MTU = c.MTU(session.raw)
	}
	var a registry.Answer
	if p := session.post(ctx, pathJoin, q, &a); p != nil {
		return nil, nil, p
	}
	if err := checkAnswer(&a, id, q, token.Pin); err != nil {
		return nil, nil, session.odd(err.Error())
	}
	return &a, nil, nil
}

// Renew gets a new certificate from a voter. present is the member's own certificate with its key. A voter with the
// key that it has in the roster answers also by a certificate of a CA that the roster has not: this member was away
// from the store while the CA was replaced, and the answer has the roster with the new one.
func (c *Client) Renew(ctx context.Context, address string, present tls.Certificate, roster *member.Roster,
	id *member.Identity) (*registry.Answer, *problem.Error) {
	const what = "cannot renew the certificate"
	ctx, stop := context.WithTimeout(ctx, exchangeTime)
	defer stop()
	var stranger *problem.Error
	session, p := c.dial(ctx, address, &tls.Config{MinVersion: tls.VersionTLS13,
		Certificates:       []tls.Certificate{present},
		InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}, // the roster decides, as in a trunk
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("it has shown no certificate")
			}
			_, v, p := roster.Admit(s.PeerCertificates[0], c.Now())
			if v == member.BadChain && roster.KeyOfVoter(s.PeerCertificates[0], c.Now()) {
				return nil
			}
			if stranger = p; stranger != nil {
				return stranger
			}
			return nil
		}})
	if stranger != nil {
		return nil, problem.New(what, "the host at "+address+" is no member as far as this one can prove: "+
			stranger.Why+"; this one was removed, or was away while the CA was replaced",
			"weft member remove --force NAME, on a member that lists it; weft leave; weft join, with a new token")
	}
	if p != nil {
		p.What = what
		return nil, p
	}
	defer session.close()
	var a registry.Answer
	if p := session.post(ctx, pathRenew, struct{}{}, &a); p != nil {
		return nil, p
	}
	cert, err := x509.ParseCertificate(a.Certificate)
	if err == nil && member.KeyOf(cert) != id.Key() {
		err = errors.New("its certificate is for another key")
	}
	if err == nil {
		err = a.Roster.Check()
	}
	if err == nil && a.Roster.Fabric != roster.Fabric {
		err = errors.New("its roster is of another fabric")
	}
	if err != nil {
		return nil, problem.New(what, "the answer of "+address+" is wrong: "+err.Error(), "weft member list")
	}
	return &a, nil
}

// checkAnswer returns why an answer is not one to the request.
func checkAnswer(a *registry.Answer, id *member.Identity, q member.Request, pin member.Pin) error {
	cert, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return err
	}
	if err := a.Roster.Check(); err != nil {
		return err
	}
	x, err := member.ClaimsOf(cert)
	switch {
	case err != nil:
		return err
	case member.KeyOf(cert) != id.Key() || x.Name != q.Name || x.GUID != q.GUID || x.Fabric != a.Roster.Fabric ||
		!bytes.Equal(x.Seal, q.Seal):
		return errors.New("the certificate is another's")
	}
	pinned := false
	for i := range a.Roster.CAs {
		pinned = pinned || a.Roster.CAs[i].Pin() == pin
	}
	if !pinned {
		return errors.New("the roster lacks the CA of the token")
	}
	// The member's clock counts: this host's may differ by the bound.
	if _, v, p := a.Roster.Admit(cert, a.Roster.At); v != member.Admitted {
		return fmt.Errorf("its roster does not admit the certificate: %s", problem.Of("", cmp.Or(p, noRecord)).Why)
	}
	return nil
}

var noRecord = problem.New("", "it has no record", "")

// session is one connection of the protocol.
type session struct {
	address string
	raw     net.Conn
	conn    *tls.Conn
	http    *http.Transport
}

// connect connects to a member of the fabric with the CA that the token pins.
func (c *Client) connect(ctx context.Context, address string, token member.Secret) (*session, *problem.Error) {
	var wrong error
	s, p := c.dial(ctx, address, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // the pin decides
		NextProtos:         []string{"http/1.1"},
		VerifyConnection: func(s tls.ConnectionState) error {
			wrong = pinned(s.PeerCertificates, token.Pin)
			return wrong
		},
	})
	if p != nil && wrong != nil {
		return nil, problem.New(cannotJoin, "the host at "+address+" "+wrong.Error(),
			"weft token, on a member of the right fabric, prints a new line; use it whole")
	}
	return s, p
}

// pinned returns why a chain is not of a member of the fabric with the CA of a pin. Times are not looked at.
func pinned(chain []*x509.Certificate, pin member.Pin) error {
	if len(chain) < 2 {
		return errors.New("has shown no certificate of a fabric")
	}
	if _, err := member.ClaimsOf(chain[0]); err != nil {
		return errors.New("has shown no certificate of a fabric")
	}
	for _, ca := range chain[1:] {
		if ca.IsCA && member.PinOf(ca) == pin {
			if chain[0].CheckSignatureFrom(ca) != nil {
				return errors.New("has a certificate that the CA of the token did not sign")
			}
			return nil
		}
	}
	return errors.New("is of another fabric than the token, or the CA was replaced since")
}

// dial makes a TLS connection, and an HTTP transport that has no other.
func (c *Client) dial(ctx context.Context, address string, config *tls.Config) (*session, *problem.Error) {
	fail := func(why, fix string, err error) (*session, *problem.Error) {
		return nil, &problem.Error{What: cannotJoin, Why: why, Fix: fix, Err: errors.Join(errReach, err)}
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return fail(fmt.Sprintf("%q is no HOST:PORT", address), "weft join HOST --token TOKEN", err)
	}
	dial := c.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 2 * helloTime}).DialContext
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		var dns *net.DNSError
		switch {
		case errors.As(err, &dns):
			return fail("the name "+host+" has no address: "+dns.Err, "weft join ADDRESS", err)
		case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
			return fail(address+" does not answer", "ping "+host+"; open TCP port "+port+" there", err)
		}
		return fail("nothing accepts connections at "+address+": "+plain(err),
			"weft status, there; open TCP port "+port, err)
	}
	conn := tls.Client(raw, config)
	shake, stop := context.WithTimeout(ctx, helloTime)
	defer stop()
	if err := conn.HandshakeContext(shake); err != nil {
		raw.Close()
		switch {
		case errors.Is(err, io.EOF) || isReset(err):
			return fail("the host at "+address+" has closed the connection: too many hosts join at once, "+
				"or it is no member",
				"wait some seconds; weft status, there", err)
		case isTimeout(err) || errors.Is(err, context.DeadlineExceeded):
			return fail("the host at "+address+" accepts connections and does not answer", "weft status, there", err)
		}
		return fail("the host at "+address+" does not speak the join protocol: "+plain(err), "weft status, there", err)
	}
	s := &session{address: address, raw: raw, conn: conn}
	used := false
	s.http = &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
		if used {
			return nil, errors.New("the connection has ended")
		}
		used = true
		return conn, nil
	}, DisableCompression: true}
	return s, nil
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func isReset(err error) bool { return strings.Contains(err.Error(), "connection reset") }

// plain is the last part of an error of the network, without addresses.
func plain(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		err = op.Err
	}
	return err.Error()
}

func (s *session) close() {
	s.http.CloseIdleConnections()
	s.conn.Close()
}

func (s *session) odd(why string) *problem.Error {
	return problem.New(cannotJoin, "the answer of "+s.address+" is wrong: "+why, "weft status, there")
}

// post makes one exchange.
func (s *session) post(ctx context.Context, path string, in, out any) *problem.Error {
	body, err := json.Marshal(in)
	if err != nil {
		return problem.Of(cannotJoin, err)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+member.Domain+path, bytes.NewReader(body))
	if err != nil {
		return problem.Of(cannotJoin, err)
	}
	q.GetBody = nil // never sent twice
	r, err := s.http.RoundTrip(q)
	if err != nil {
		return &problem.Error{What: cannotJoin, Why: "no answer from " + s.address + ": " + plain(err),
			Fix: "weft join again: it goes on where it ended", Err: errors.Join(errReach, err)}
	}
	defer r.Body.Close()
	text, err := io.ReadAll(io.LimitReader(r.Body, MaxAnswer+1))
	if err != nil || len(text) > MaxAnswer {
		return &problem.Error{What: cannotJoin, Why: "the answer of " + s.address + " was cut",
			Fix: "weft join again: it goes on where it ended", Err: errReach}
	}
	if r.StatusCode != http.StatusOK {
		var e refusal
		if decodeOne(text, &e) != nil || e.What == "" {
			return s.odd(r.Status)
		}
		p := problem.New(line(e.What), line(e.Why), line(e.Fix))
		if r.StatusCode == http.StatusServiceUnavailable {
			p.Err = errReach // it decided nothing
		}
		return p
	}
	if err := decodeOne(text, out); err != nil {
		return s.odd(err.Error())
	}
	return nil
}

// line bounds a foreign text and takes out what would steer a terminal.
func line(s string) string {
	if len(s) > 1024 {
		s = s[:1024]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0xfffd {
			return '?'
		}
		return r
	}, s)
}

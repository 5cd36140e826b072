// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

const fabric = "0123456789abcdef"

// lab is a fabric with its CA.
type lab struct {
	t      *testing.T
	ca     *member.Authority
	roster *member.Roster
	now    time.Time
}

func newLab(t *testing.T, id string) *lab {
	t.Helper()
	ca, err := member.NewAuthority(id, 1, start, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &lab{t, ca, &member.Roster{Fabric: id, At: start, CAs: []member.CA{ca.CA(member.CASigning, start)}}, start}
}

// join makes a member.
func (l *lab) join(n int, name string) *tls.Certificate {
	l.t.Helper()
	id, err := member.NewIdentity()
	if err != nil {
		l.t.Fatal(err)
	}
	g := ib.GUID(0x0200000000000000 | uint64(n)<<16)
	der, err := l.ca.Issue(member.Claims{Fabric: l.roster.Fabric, Name: name, GUID: g, Roles: member.Voter,
		Seal: id.Seal.PublicKey().Bytes()}, &id.Sign.PublicKey, l.now, 0, rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		l.t.Fatal(err)
	}
	r := *l.roster
	r.Members = append(slices.Clone(r.Members), member.Record{GUID: g, Name: name, Key: id.Key(), Certificate: der,
		Roles: member.Voter, State: member.Active})
	l.roster = &r
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: id.Sign, Leaf: leaf}
}

func (l *lab) remove(name string) {
	r := *l.roster
	m := r.ByName(name)
	r.Removed = append(slices.Clone(r.Removed), member.Gone{GUID: m.GUID, Name: name, Key: m.Key, At: l.now,
		Until: l.now.Add(time.Hour)})
	r.Members = slices.DeleteFunc(slices.Clone(r.Members), func(x member.Record) bool { return x.Name == name })
	l.roster = &r
}

func (l *lab) self(c *tls.Certificate) Self {
	return Self{Certificate: func() (*tls.Certificate, error) {
		if c == nil {
			return nil, errors.New("no certificate")
		}
		return c, nil
	}, Roster: func() *member.Roster { return l.roster }, Now: func() time.Time { return l.now }}
}

// meet has two ends shake hands and exchange an octet: TLS 1.3 lets a client write before it is refused.
func meet(client, server *tls.Config) (fromClient, fromServer error) {
	a, b := net.Pipe()
	c, s := tls.Client(a, client), tls.Server(b, server)
	done := make(chan error, 1)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte{1})
		}
		done <- err
		b.Close()
	}()
	err := c.Handshake()
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	a.Close()
	return err, <-done
}

// TestMeet: two members meet; a removed one, one of another fabric, one without a certificate, an expired one
// and one of another name do not, whichever end they are at.
func TestMeet(t *testing.T) {
	l, other := newLab(t, fabric), newLab(t, "ffffffffffffffff")
	a, b := l.join(1, "a1"), l.join(2, "b1")
	stranger := other.join(2, "b1")
	both := func(what string, x, y Self, name, want string) {
		t.Helper()
		for _, err := range func() []error { c, s := meet(x.Client(name), y.Server()); return []error{c, s} }() {
			if want == "" && err != nil || want != "" && err == nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	both("members", l.self(a), l.self(b), "b1", "")
	both("any member", l.self(a), l.self(b), "", "")
	both("another name", l.self(a), l.self(b), "c1", "not c1")
	both("a stranger as a client", other.self(stranger), l.self(a), "", "fabric")
	both("a stranger as a server", l.self(a), other.self(stranger), "", "fabric")
	both("no certificate", l.self(nil), l.self(a), "", "certificate")
	strict := l.self(a)
	strict.Allow = func(c member.Claims) error {
		if !c.Roles.Has(member.Manager) {
			return errors.New(c.Name + " is no manager")
		}
		return nil
	}
	both("no manager", l.self(b), strict, "", "manager")
	seen := 0
	server := l.self(a).Server()
	was := server.VerifyConnection
	server.VerifyConnection = func(c tls.ConnectionState) error {
		seen = len(c.VerifiedChains)
		return was(c)
	}
	if c, s := meet(l.self(b).Client(""), server); c != nil || s != nil || seen != 1 {
		t.Errorf("%d verified chains, %v, %v", seen, c, s)
	}
	if c, s := meet(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12},
		l.self(a).Server()); c == nil || s == nil {
		t.Error("TLS 1.2 is accepted")
	}
	l.remove("b1")
	both("a removed member as a client", l.self(b), l.self(a), "", "removed")
	both("a removed member as a server", l.self(a), l.self(b), "", "removed")
	l.now = l.now.Add(member.MemberLife + time.Hour)
	both("an old certificate", l.self(a), l.self(a), "", "ended")
}

// TestRecent: what was decided shortly before is not decided again, but for another roster, and after a second.
func TestRecent(t *testing.T) {
	l := newLab(t, fabric)
	cert := l.join(1, "a1")
	chain := []*x509.Certificate{cert.Leaf}
	now := l.now
	self := Self{Roster: func() *member.Roster { return l.roster }, Recent: &Recent{}}
	verify := func() (ok bool) {
		_, err := self.Verify(now, chain)
		return err == nil
	}
	if !verify() {
		t.Fatal("a member is refused")
	}
	l.roster.Members = nil // which a roster that is in use never does: shows when it is read
	l.roster.At = now.Add(time.Hour)
	if now = now.Add(recentFor - 1); !verify() {
		t.Error("it is decided again before its time")
	}
	if now = now.Add(1); verify() {
		t.Error("it is not decided again after its time")
	}
	if now = l.now.Add(-1); verify() {
		t.Error("a clock that was set back makes a decision last")
	}
	now = l.now
	other := *l.roster
	if l.roster = &other; verify() {
		t.Error("another roster is not decided by anew")
	}
	for range 2 * recentMost {
		self.Recent.keep(l.roster, &x509.Certificate{}, member.Claims{}, now)
	}
	if n := len(self.Recent.list); n > recentMost {
		t.Errorf("it remembers %d certificates", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package member

import (
	"bytes"
	"crypto/x509"
	"math/rand/v2"
	"testing"
	"time"

	"weft/internal/proto/ib"
)

// start is the time of the tests.
var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

const fabricID = "0123456789abcdef"

// guid is the identity of the n-th node.
func guid(n int) ib.GUID { return ib.GUID(0x0200000000000000 | uint64(n)<<16) }

// bench is a fabric with members.
type bench struct {
	t      *testing.T
	random *rand.ChaCha8
	ca     *Authority
	fabric Fabric
	roster Roster
	ids    map[string]*Identity
}

func newBench(t *testing.T, names ...string) *bench {
	t.Helper()
	b := &bench{t: t, random: rand.NewChaCha8([32]byte{1}), ids: map[string]*Identity{}}
	b.ca = b.authority(1)
	b.fabric = Fabric{ID: fabricID, Made: start, Policy: DefaultPolicy, CAs: []CA{b.ca.CA(CASigning, start)}}
	b.roster = Roster{Fabric: fabricID, At: start, Skew: int64(DefaultPolicy.Skew), CAs: b.fabric.CAs}
	for i, name := range names {
		b.add(name, guid(i+1))
	}
	return b
}

func (b *bench) authority(epoch uint32) *Authority {
	b.t.Helper()
	a, err := NewAuthority(fabricID, epoch, start, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// freeze marks the CA as replaced because a removed member had its key.
func (b *bench) freeze() { b.roster.CAs[0].State = CAFrozen }

func (b *bench) identity() *Identity {
	b.t.Helper()
	id, err := NewIdentity()
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

func (b *bench) claims(id *Identity, name string, g ib.GUID, r Role) Claims {
	return Claims{Fabric: fabricID, Name: name, GUID: g, Roles: r, Seal: id.Seal.PublicKey().Bytes()}
}

func (b *bench) issue(a *Authority, id *Identity, c Claims, now time.Time) *x509.Certificate {
	b.t.Helper()
	der, err := a.Issue(c, &id.Sign.PublicKey, now, 0, b.random)
	if err != nil {
		b.t.Fatal(err)
	}
	x, err := x509.ParseCertificate(der)
	if err != nil {
		b.t.Fatal(err)
	}
	return x
}

// add makes a member with every role of a host.
func (b *bench) add(name string, g ib.GUID) *Record {
	b.t.Helper()
	id := b.identity()
	b.ids[name] = id
	cert := b.issue(b.ca, id, b.claims(id, name, g, HostRoles), start)
	b.roster.Members = append(b.roster.Members, Record{GUID: g, Name: name, Key: id.Key(), Certificate: cert.Raw,
		Roles: HostRoles, State: Active, Addresses: []string{name + ".example:4792"}, Joined: start, By: "test",
		Epochs: []uint32{1}})
	return &b.roster.Members[len(b.roster.Members)-1]
}

func (b *bench) certificate(name string) *x509.Certificate {
	b.t.Helper()
	x, err := x509.ParseCertificate(b.roster.ByName(name).Certificate)
	if err != nil {
		b.t.Fatal(err)
	}
	return x
}

// token makes a token for one use.
func (b *bench) token() (Secret, *Token) {
	b.t.Helper()
	ca := b.fabric.Signing()
	s, err := NewSecret(ca.Pin(), b.random)
	if err != nil {
		b.t.Fatal(err)
	}
	return s, &Token{ID: s.ID, Hash: s.Hash(), Epoch: ca.Epoch, Roles: HostRoles, Uses: 1, Made: start,
		End: start.Add(TokenLife), By: "root at a1"}
}

// request makes the request of a new host and what a member decides it by.
func (b *bench) request(name string, g ib.GUID) (*Request, *Situation) {
	b.t.Helper()
	id := b.identity()
	s, t := b.token()
	csr, err := id.Request(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return &Request{Protocol: Protocol, Program: "v1", Fabric: fabricID, Token: s.ID, Secret: s.Key(), Pin: s.Pin[:],
			Name: name, GUID: g, Clock: start, MTU: 1500, CSR: csr, Seal: id.Seal.PublicKey().Bytes(),
			Addresses: []string{"10.0.0.9:4792", "[fd00::9]:4792"}},
		&Situation{Fabric: b.fabric, Roster: b.roster, Token: t, MTU: 1500, Host: "10.0.0.1"}
}

func mustEqual(t *testing.T, what string, want, got []byte) {
	t.Helper()
	if !bytes.Equal(want, got) {
		t.Errorf("%s: %x, want %x", what, got, want)
	}
}

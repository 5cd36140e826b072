// SPDX-License-Identifier: Apache-2.0

package member

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func parsePEM(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCertificate: a certificate states the claims, the standard library verifies its chain and its name, and
// it is renewed at two thirds of its life.
func TestCertificate(t *testing.T) {
	b := newBench(t)
	id := b.identity()
	want := b.claims(id, "b9", guid(9), Voter|Manager)
	c := b.issue(b.ca, id, want, start)
	got, err := ClaimsOf(c)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	roots := x509.NewCertPool()
	roots.AddCert(b.ca.cert)
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: start, DNSName: "b9." + Domain,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if err := c.VerifyHostname(VoterName); err != nil {
		t.Error(err)
	}
	plain := b.issue(b.ca, id, b.claims(id, "b9", guid(9), Manager), start)
	if plain.VerifyHostname(VoterName) == nil || CheckName("voter") == nil {
		t.Error("a member that is no voter has the name of voters")
	}
	l := LifeOf(c)
	if want := start.Add(MemberLife / 3 * 2); !l.Renew.Equal(want) || !l.End.Equal(start.Add(MemberLife)) {
		t.Errorf("renewed %v, ends %v", l.Renew, l.End)
	}
	if at := l.RenewAt(1, time.Time{}, false); !at.Before(l.Renew) || at.Before(start.Add(MemberLife/2)) {
		t.Errorf("the earliest renewal is %v", at)
	}
	if at := l.RenewAt(0, time.Time{}, true); at.After(start) {
		t.Errorf("a stale certificate is renewed %v", at)
	}
	failed := l.Renew.Add(time.Hour)
	if at := l.RenewAt(0, failed, false); !at.Equal(failed.Add(time.Hour)) {
		t.Errorf("after a failure %v, want an hour", at)
	}
	if at := l.RenewAt(0, l.End.Add(-time.Minute), false); !at.Equal(l.End) {
		t.Errorf("near the end %v, want a minute", at)
	}
}

// TestNoCertificate: what no certificate may state is not signed.
func TestNoCertificate(t *testing.T) {
	b := newBench(t)
	id := b.identity()
	for name, change := range map[string]func(*Claims){
		"name":   func(c *Claims) { c.Name = "A" },
		"guid":   func(c *Claims) { c.GUID = 7 },
		"fabric": func(c *Claims) { c.Fabric = "ffffffffffffffff" },
		"roles":  func(c *Claims) { c.Roles = Leaf | Manager },
		"seal":   func(c *Claims) { c.Seal = make([]byte, 32) },
	} {
		c := b.claims(id, "b9", guid(9), 0)
		change(&c)
		if _, err := b.ca.Issue(c, &id.Sign.PublicKey, start, 0, b.random); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

// TestAdmit is every verdict about a certificate.
func TestAdmit(t *testing.T) {
	for _, x := range []struct {
		name string
		make func(b *bench) (*x509.Certificate, time.Time)
		want Verdict
	}{
		{"a member", func(b *bench) (*x509.Certificate, time.Time) { return b.certificate("a2"), start }, Admitted},
		{"at the end of its life", func(b *bench) (*x509.Certificate, time.Time) {
			return b.certificate("a2"), start.Add(MemberLife)
		}, Admitted},
		{"renewed", func(b *bench) (*x509.Certificate, time.Time) {
			later := start.Add(MemberLife / 2)
			return b.issue(b.ca, b.ids["a2"], b.claims(b.ids["a2"], "a2", guid(2), HostRoles), later), later
		}, Admitted},
		{"joined after the roster was read", func(b *bench) (*x509.Certificate, time.Time) {
			id := b.identity()
			later := start.Add(time.Hour)
			return b.issue(b.ca, id, b.claims(id, "b9", guid(9), 0), later), later
		}, Provisional},
		{"a CA", func(b *bench) (*x509.Certificate, time.Time) { return b.ca.cert, start }, Malformed},
		{"another fabric", func(b *bench) (*x509.Certificate, time.Time) {
			a, _ := NewAuthority("ffffffffffffffff", 1, start, 0)
			id := b.identity()
			c := b.claims(id, "a2", guid(2), 0)
			c.Fabric = "ffffffffffffffff"
			return b.issue(a, id, c, start), start
		}, OtherFabric},
		{"another CA with the same names", func(b *bench) (*x509.Certificate, time.Time) {
			return b.issue(b.authority(1), b.ids["a2"], b.claims(b.ids["a2"], "a2", guid(2), HostRoles), start), start
		}, BadChain},
		{"before its time", func(b *bench) (*x509.Certificate, time.Time) {
			return b.certificate("a2"), start.Add(-time.Hour)
		}, NotYetValid},
		{"after its time", func(b *bench) (*x509.Certificate, time.Time) {
			return b.certificate("a2"), start.Add(MemberLife + MaxSkew + time.Second)
		}, Expired},
		{"removed", func(b *bench) (*x509.Certificate, time.Time) {
			c := b.certificate("a2")
			b.roster.Removed = []Gone{{GUID: guid(2), Name: "a2", Key: KeyOf(c), At: start, Until: start.Add(time.Hour),
				By: "root at a1"}}
			b.roster.Members = b.roster.Members[:1]
			return c, start
		}, RemovedKey},
		{"joined again with another key", func(b *bench) (*x509.Certificate, time.Time) {
			old := b.certificate("a2")
			b.roster.Members = b.roster.Members[:1]
			b.add("a2", guid(2))
			return old, start
		}, OtherKey},
		{"its key with another GUID", func(b *bench) (*x509.Certificate, time.Time) {
			return b.issue(b.ca, b.ids["a2"], b.claims(b.ids["a2"], "b9", guid(9), 0), start), start
		}, OtherKey},
		{"no record", func(b *bench) (*x509.Certificate, time.Time) {
			id := b.identity()
			b.roster.At = start.Add(2 * time.Hour)
			return b.issue(b.ca, id, b.claims(id, "b9", guid(9), 0), start.Add(time.Hour)), start.Add(2 * time.Hour)
		}, Unlisted},
		{"of a frozen CA, and the record has it", func(b *bench) (*x509.Certificate, time.Time) {
			b.freeze()
			return b.certificate("a2"), start
		}, Admitted},
		{"of a frozen CA, and the record has the next one", func(b *bench) (*x509.Certificate, time.Time) {
			c := b.certificate("a2")
			later := start.Add(MemberLife / 2)
			next := b.authority(2)
			b.freeze()
			b.roster.CAs = append(b.roster.CAs, next.CA(CASigning, later))
			b.roster.ByName("a2").Certificate = b.issue(next, b.ids["a2"], b.claims(b.ids["a2"], "a2", guid(2), HostRoles),
				later).Raw
			return c, later
		}, Admitted},
		{"of a frozen CA, for longer than the record has", func(b *bench) (*x509.Certificate, time.Time) {
			later := start.Add(MemberLife / 2)
			b.freeze()
			return b.issue(b.ca, b.ids["a2"], b.claims(b.ids["a2"], "a2", guid(2), HostRoles), later), later
		}, Unlisted},
		{"of a frozen CA, for another key", func(b *bench) (*x509.Certificate, time.Time) {
			id := b.identity()
			b.freeze()
			return b.issue(b.ca, id, b.claims(id, "a2", guid(2), HostRoles), start), start
		}, OtherKey},
	} {
		t.Run(x.name, func(t *testing.T) {
			b := newBench(t, "a1", "a2")
			c, now := x.make(b)
			claims, v, p := b.roster.Admit(c, now)
			if v != x.want || v.OK() != (p == nil) || v.OK() != (claims.Name != "") {
				t.Fatalf("%v, %v, %v", claims, v, p)
			}
			if p != nil && (p.Why == "" || p.Fix == "" || strings.Contains(p.Error(), "\n")) {
				t.Errorf("%q", p.Error())
			}
		})
	}
}

// TestRename: the record's name and roles are in force before the certificate has them, and a certificate cannot have
// more roles than the record.
func TestRename(t *testing.T) {
	b := newBench(t, "a1", "a2")
	c := b.certificate("a2")
	b.roster.ByName("a2").Roles = Voter
	b.roster.ByName("a2").Name = "new"
	got, v, p := b.roster.Admit(c, start)
	if v != Admitted || got.Name != "new" || got.Roles != Voter {
		t.Errorf("%+v, %v, %v", got, v, p)
	}
}

// TestRotate: in a rotation in peace two CAs are valid, no member is cut off, and the old one goes when every member
// has a certificate of the new one.
func TestRotate(t *testing.T) {
	b := newBench(t, "a1", "a2")
	next := b.authority(2)
	f, err := Introduce(b.fabric, next, start)
	if err != nil {
		t.Fatal(err)
	}
	states := func(f Fabric) string {
		var s []string
		for _, c := range f.CAs {
			s = append(s, fmt.Sprint(c.Epoch, c.State))
		}
		return strings.Join(s, ",")
	}
	is := func(want string) {
		t.Helper()
		if got := states(f); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		b.roster.CAs = f.CAs
	}
	is("1 signing,2 introduced")
	if _, err := Introduce(f, b.authority(3), start); err == nil {
		t.Error("a second rotation begins during the first")
	}
	reports := []Report{{GUID: guid(1), CAs: []uint32{1, 2}, Signed: 1}, {GUID: guid(2), CAs: []uint32{1}, Signed: 1}}
	if _, moved := Advance(f, &b.roster, reports, start, time.Hour); moved {
		t.Fatal("it signs before each member trusts it")
	}
	reports[1].CAs = []uint32{1, 2}
	f, _ = Advance(f, &b.roster, reports, start, time.Hour)
	is("1 retiring,2 signing")
	// Old and new certificates are both valid.
	id := b.ids["a1"]
	renewed := b.issue(next, id, b.claims(id, "a1", guid(1), HostRoles), start)
	for _, c := range []*x509.Certificate{b.certificate("a1"), b.certificate("a2"), renewed} {
		if _, v, p := b.roster.Admit(c, start); v != Admitted {
			t.Errorf("%v: %v", v, p)
		}
	}
	reports[0].Signed = 2
	if _, moved := Advance(f, &b.roster, reports, start, time.Hour); moved {
		t.Fatal("the old CA goes while a member needs it")
	}
	reports[1].Signed = 2
	f, _ = Advance(f, &b.roster, reports, start, time.Hour)
	is("2 signing")
	if _, v, _ := b.roster.Admit(b.certificate("a2"), start); v != BadChain {
		t.Errorf("a certificate of the CA that went: %v", v)
	}
	// A member that is away holds the rotation up to its bound, not longer.
	f, err = Introduce(f, b.authority(3), start)
	if err != nil {
		t.Fatal(err)
	}
	if _, moved := Advance(f, &b.roster, reports[:1], start.Add(59*time.Minute), time.Hour); moved {
		t.Error("it does not wait")
	}
	f, _ = Advance(f, &b.roster, reports[:1], start.Add(time.Hour), time.Hour)
	is("2 retiring,3 signing")
}

// TestRemoval: the removal of a voter replaces all that it had, and what it signs with the old CA's key is worth
// nothing, while each remaining member's certificate stays valid.
func TestRemoval(t *testing.T) {
	b := newBench(t, "a1", "a2", "a3")
	b.roster.ByName("a2").State = Drained
	out := b.certificate("a2")
	plan, p := PlanRemoval(b.fabric, &b.roster, "a2", b.authority(2), start, "root at a1", false)
	if p != nil {
		t.Fatal(p)
	}
	if diff := cmp.Diff([]string{"sessions", "tokens", "M_Key", "CA"}, plan.Replace.List()); diff != "" {
		t.Error(diff)
	}
	if len(plan.Voters) != 2 || plan.Voters[0].Name != "a1" || plan.Voters[1].Name != "a3" {
		t.Errorf("sealed to %v", plan.Voters)
	}
	b.roster.CAs = plan.Fabric.CAs
	b.roster.Removed = []Gone{plan.Gone}
	b.roster.Members = slices.DeleteFunc(b.roster.Members, func(r Record) bool { return r.Name == "a2" })
	if _, v, _ := b.roster.Admit(out, start); v != RemovedKey {
		t.Errorf("the removed member: %v", v)
	}
	for _, name := range []string{"a1", "a3"} {
		if _, v, p := b.roster.Admit(b.certificate(name), start); v != Admitted {
			t.Errorf("%s: %v, %v", name, v, p)
		}
	}
	// It kept the CA's key, and signs for itself: as a new member, as a1 with its own key, and even with a1's key.
	thief := b.identity()
	later := start.Add(time.Hour)
	for what, c := range map[string]*x509.Certificate{
		"a new member": b.issue(b.ca, thief, b.claims(thief, "b9", guid(9), HostRoles), later),
		"a1":           b.issue(b.ca, thief, b.claims(thief, "a1", guid(1), HostRoles), later),
		"a1's key":     b.issue(b.ca, b.ids["a1"], b.claims(thief, "a1", guid(1), HostRoles), later),
	} {
		if _, v, _ := b.roster.Admit(c, later); v.OK() {
			t.Errorf("%s: %v", what, v)
		}
	}
	// The members go on with certificates of the next CA.
	id := b.ids["a3"]
	next := b.authority(2)
	b.roster.CAs[1].Certificate = next.cert.Raw
	renewed := b.issue(next, id, b.claims(id, "a3", guid(3), HostRoles), later)
	if _, v, p := b.roster.Admit(renewed, later); v != Admitted {
		t.Errorf("%v, %v", v, p)
	}
}

// TestRemovalRefused: what would leave the fabric without a voter or an administrator is refused, and a member in use
// needs force.
func TestRemovalRefused(t *testing.T) {
	b := newBench(t, "a1", "a2")
	next := b.authority(2)
	for _, x := range []struct {
		name, want string
		change     func()
		force      bool
	}{
		{"none", "cannot remove the member none: there is none of that name. fix: weft member list", func() {}, false},
		{"a2", "cannot remove the member a2: it is active, and programs may use it. fix: weft member drain a2 " +
			"first, or weft member remove --force a2",
			func() {}, false},
		{"a2", "cannot remove the member a2: no other member is a voter, and the store and the CA would end with " +
			"it. fix: weft token --role voter; weft join, on another host, first",
			func() { b.roster.ByName("a1").Roles = Administrator }, true},
		{"a2", "cannot remove the member a2: no other member is an administrator, and the fabric could not be " +
			"changed any more. fix: weft token --role voter,administrator; weft join, on another host, first",
			func() { b.roster.ByName("a1").Roles = Voter }, true},
	} {
		x.change()
		_, p := PlanRemoval(b.fabric, &b.roster, x.name, next, start, "t", x.force)
		if p == nil || p.Error() != x.want {
			t.Errorf("%v\nwant %s", p, x.want)
		}
	}
	// A member without the CA's key leaves the CA as it is.
	b = newBench(t, "a1", "a2")
	b.roster.ByName("a2").Epochs = nil
	plan, p := PlanRemoval(b.fabric, &b.roster, "a2", nil, start, "t", true)
	if p != nil || plan.Fabric != nil || plan.Replace.Has(ReplaceCA) {
		t.Errorf("%+v, %v", plan, p)
	}
}

// TestSeal: the key of the CA is for the voter that it is sealed to, of this epoch, and damage is found.
func TestSeal(t *testing.T) {
	b := newBench(t, "a1", "a2")
	id := b.ids["a2"]
	claims, _, _ := b.roster.Admit(b.certificate("a2"), start)
	s, err := b.ca.Seal(claims, id.Key())
	if err != nil {
		t.Fatal(err)
	}
	ca := b.fabric.CAs[0]
	a, err := s.Open(id, ca)
	if err != nil {
		t.Fatal(err)
	}
	if c := b.issue(a, id, claims, start); c.CheckSignatureFrom(b.ca.cert) != nil {
		t.Error("the opened CA signs otherwise")
	}
	raw, _ := b.ca.key.Bytes()
	if bytes.Contains(s.Box, raw) {
		t.Error("the key is in clear")
	}
	if _, err := s.Open(b.ids["a1"], ca); err == nil {
		t.Error("another voter opens it")
	}
	other := s
	other.Epoch = 2
	next := b.authority(2).CA(CASigning, start)
	if _, err := other.Open(id, next); err == nil {
		t.Error("it opens as that of another epoch")
	}
	for i := range s.Box {
		x := s
		x.Box = slices.Clone(s.Box)
		x.Box[i] ^= 1
		if _, err := x.Open(id, ca); err == nil {
			t.Fatalf("it opens with octet %d changed", i)
		}
	}
	claims.Roles = Manager
	if _, err := b.ca.Seal(claims, id.Key()); err == nil {
		t.Error("it is sealed to a member that is no voter")
	}
}

// TestIdentity encodes and decodes private keys.
func TestIdentity(t *testing.T) {
	b := newBench(t)
	id := b.identity()
	text, err := id.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeIdentity(text)
	if err != nil || got.Key() != id.Key() || !got.Seal.Equal(id.Seal) {
		t.Errorf("%v, %v", got, err)
	}
	for n := range text {
		if _, err := DecodeIdentity(text[:n]); err == nil {
			t.Errorf("%d octets pass", n)
		}
	}
	if _, err := DecodeIdentity(make([]byte, identitySize)); err == nil {
		t.Error("the key zero passes")
	}
}

// TestToken: text and secret agree, no formatting shows the secret, and a proof belongs to its connection.
func TestToken(t *testing.T) {
	b := newBench(t)
	s, tok := b.token()
	got, err := ParseSecret(" " + s.Text() + "\n")
	if err != nil || got != s {
		t.Fatalf("%v, %v", got, err)
	}
	secret := strings.Split(s.Text(), ".")[1]
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s", s, s, s, s), fmt.Sprintf("%v", &s)} {
		if strings.Contains(text, secret) {
			t.Errorf("shown: %s", text)
		}
	}
	record, err := Encode(*tok)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(record), secret) || bytes.Contains(record, s.Key()) {
		t.Error("the store has the secret")
	}
	if !tok.Is(s.Key()) || tok.Is(nil) || tok.Is(s.Key()[1:]) || (*Token)(nil).Is(s.Key()) || (*Token)(nil).Is(nil) {
		t.Error("the wrong secret counts")
	}
	proof := Proof(tok.Hash, []byte("connection 1"))
	if !s.Proved(proof, []byte("connection 1")) || s.Proved(proof, []byte("connection 2")) || s.Proved(nil, nil) {
		t.Error("the proof does not belong to its connection")
	}
	for _, bad := range []string{"", "a.b", "a.b.c", s.Text() + ".", strings.ToUpper(s.Text()), s.Text()[1:],
		strings.Replace(s.Text(), ".", "..", 1), strings.Replace(s.Text(), secret, secret[:31]+"1", 1)} {
		if _, err := ParseSecret(bad); err == nil {
			t.Errorf("%q passes", bad)
		} else if strings.Contains(err.Error(), secret[:8]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

// TestStates is every transition of a member.
func TestStates(t *testing.T) {
	want := map[State]map[Event]State{
		Joining:  {Seen: Active, Drain: Draining, Idle: Joining, Busy: Joining, Undrain: Joining},
		Active:   {Seen: Active, Drain: Draining, Idle: Active, Busy: Active, Undrain: Active},
		Draining: {Seen: Draining, Drain: Draining, Idle: Drained, Busy: Draining, Undrain: Active},
		Drained:  {Seen: Drained, Drain: Drained, Idle: Drained, Busy: Draining, Undrain: Active},
	}
	for s, events := range want {
		for e, next := range events {
			if got := s.After(e); got != next {
				t.Errorf("%v after %d: %v, want %v", s, e, got, next)
			}
		}
	}
}

// TestMayAccess is which member reads and writes what.
func TestMayAccess(t *testing.T) {
	g := guid(5)
	own, other := GUIDKey(g), GUIDKey(guid(6))
	for _, x := range []struct {
		roles       Role
		key, end    string
		read, write bool
	}{
		{0, KeyFabric, "", true, false},
		{0, TreeFabric + "/", TreeFabric + "0", true, false}, // followed by every member
		{0, "subnet/m_key", "", false, false},
		{Administrator, "subnet/m_key", "", false, false},
		{Manager, "subnet/m_key", "", true, true},
		{Voter, "subnet/m_key", "", true, false},
		{0, "subnet/intent", "", true, false},
		{Administrator, "subnet/intent", "", true, false}, // through the master
		{Manager, "subnet/intent", "", true, true},
		{0, "subnet/", "subnet0", false, false}, // it holds the M_Key
		{Manager, "subnet/", "subnet0", true, true},
		{Voter, "subnet/", "subnet0", true, false},
		{0, "subnet/n", "subnet0", true, false}, // behind the M_Key
		{0, "node/" + own + "/functions", "", true, true},
		{0, "node/" + other + "/functions", "", true, false},
		{HostRoles, "node/" + other + "/functions", "", true, true}, // with the removal of that member
		{Manager, "node/" + other + "/functions", "", true, false},
		{0, "node/" + own + "/", "node/" + own + "0", true, false},
		{0, "node/" + own + "/x", "", true, false}, // one key, so that none can fill the store
		{0, "node/" + own + "/functions/x", "", true, false},
		{0, TreeReport + "/" + own + "/x", "", true, false},
		{0, "store/present/" + own, "", true, true},
		{0, "store/present/" + own + "/x", "", true, false},
		{0, "node/", "node0", true, false},
		{0, TreeReport + "/" + own, "", true, true},
		{0, TreeReport + "/" + other, "", true, false},
		{0, TreeReport + "/" + own + "x", "", true, false},
		{0, TreeRecord + "/" + own, "", true, false},
		{Voter, TreeRecord + "/" + own, "", true, true},
		{0, TreeToken + "/", TreeToken + "0", false, false},
		{Manager, TreeToken + "/aaaaaaaa", "", false, false},
		{Administrator, TreeToken + "/aaaaaaaa", "", true, true},
		{Manager, TreeSealed + "/1/" + own, "", false, false},
		{Voter, TreeSealed + "/1/" + own, "", true, true},
		{0, "election/subnet-manager/leader", "", true, false},
		{Manager, "election/subnet-manager/leader", "", true, true},
		{0, "store/member/" + own, "", true, true},
		{0, "store/present/" + other, "", true, false},
		{0, "store/roster/group", "", true, false},
		{Voter, "store/generation", "", true, true},
		{HostRoles, "", "\x00", false, false}, // all of the store
		{HostRoles, "", "\xff", false, false},
		{HostRoles, "a", "z", false, false},
		{HostRoles, "else", "", false, false},
		{HostRoles, "subnetx", "", false, false},
		{0, "member/record/", "member/s", false, false},
		{0, "node/a", "node/Z", false, false}, // an empty range
	} {
		c := Claims{Name: "b5", GUID: g, Roles: x.roles}
		if p := MayAccess(c, x.key, x.end, false); (p == nil) != x.read {
			t.Errorf("%v reads %q to %q: %v", x.roles, x.key, x.end, p)
		}
		if p := MayAccess(c, x.key, x.end, true); (p == nil) != x.write {
			t.Errorf("%v writes %q to %q: %v", x.roles, x.key, x.end, p)
		}
	}
}

// TestSightings: a restart is no copy; two hosts that alternate are, and both are named.
func TestSightings(t *testing.T) {
	var s Sightings
	k := Key{1}
	now := start
	saw := func(incarnation uint64, address string) string {
		now = now.Add(time.Second)
		if p := s.Saw(k, "b1", Sighting{incarnation, address, now}, now); p != nil {
			return p.Error()
		}
		return ""
	}
	for _, i := range []uint64{1, 1, 2, 2, 3, 3} { // restarts
		if got := saw(i, "10.0.0.1:4792"); got != "" {
			t.Fatal(got)
		}
	}
	if got := saw(3, "10.0.0.2:4792"); got != "" { // its address changed
		t.Fatal(got)
	}
	if got := saw(4, "10.0.0.3:4792"); got != "" { // a copy looks as a restart, once
		t.Fatal(got)
	}
	const want = "the identity of b1 is used twice: nodes at 10.0.0.3:4792 and at 10.0.0.2:4792 have its key at " +
		"once. fix: weft member remove --force b1; then weft leave and weft join on each of the two hosts"
	if got := saw(3, "10.0.0.2:4792"); got != want {
		t.Error(got)
	}
	if s.Copied(k, "b1", now) == nil || s.Copied(k, "b1", now.Add(copyWindow)) != nil {
		t.Error("the state does not follow")
	}
	// What an incarnation wrote before it ended stays in the store while the next one cannot write, and may come back
	// by a restore; a report that a restore ended is of no time.
	k, written := Key{2}, now
	for i, x := range []Sighting{{1, "10.0.0.1:4792", written}, {2, "10.0.0.1:4792", written.Add(time.Second)},
		{1, "10.0.0.1:4792", written}, {2, "10.0.0.1:4792", written.Add(2 * time.Second)},
		{3, "10.0.0.1:4792", written.Add(-time.Hour)}, {2, "10.0.0.1:4792", written.Add(3 * time.Second)},
		{0, "10.0.0.1:4792", time.Time{}}, {2, "10.0.0.1:4792", written.Add(4 * time.Second)},
		{1, "10.0.0.1:4792", written.Add(500 * time.Millisecond)}, // it was on its way
		{1, "10.0.0.7:4792", written}, {2, "10.0.0.1:4792", written.Add(5 * time.Second)}} {
		if p := s.Saw(k, "c1", x, now.Add(5*time.Second)); p != nil {
			t.Errorf("%d: %v", i, p)
		}
	}
	// A copy of a directory has the address that its owner named as well.
	s.Saw(k, "c1", Sighting{4, "10.0.0.1:4792", written.Add(6 * time.Second)}, now)
	const both = "two nodes, both with the address 10.0.0.1:4792, have its key at once. " +
		"fix: weft member remove --force c1"
	if p := s.Saw(k, "c1", Sighting{2, "10.0.0.1:4792", written.Add(7 * time.Second)}, now); p == nil ||
		!strings.Contains(p.Error(), both) {
		t.Errorf("%v", p)
	}
	s.Keep(&Roster{})
	if len(s.keys) != 0 {
		t.Error("a key that left is kept")
	}
}

// TestLimiter: a source is bounded, others are not held up by it, and memory is bounded.
func TestLimiter(t *testing.T) {
	var l Limiter
	now := start
	a := netip.MustParseAddr("10.0.0.1")
	n := 0
	for range 100 {
		if l.Allow(a, now) {
			n++
		}
	}
	if n != sourceBurst {
		t.Errorf("%d attempts of one source", n)
	}
	if !l.Allow(netip.MustParseAddr("10.0.0.2"), now) {
		t.Error("one source holds up another")
	}
	if l.Allow(netip.MustParseAddr("::ffff:10.0.0.1"), now) {
		t.Error("the mapped address is another source")
	}
	if now = now.Add(sourceEvery); !l.Allow(a, now) || l.Allow(a, now) {
		t.Error("the bucket does not fill")
	}
	n = 0
	for i := range 100 { // one /64
		if l.Allow(netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i)}), now) {
			n++
		}
	}
	if n != sourceBurst {
		t.Errorf("%d attempts of one /64", n)
	}
	for i := range 3 * maxSources {
		now = now.Add(time.Millisecond)
		l.Allow(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), now)
	}
	if len(l.source) > maxSources {
		t.Errorf("%d sources are kept", len(l.source))
	}
	l.Allow(a, now.Add(time.Hour))
	if len(l.source) > 1 {
		t.Errorf("%d sources stay", len(l.source))
	}
	if l.Allow(netip.Addr{}, now) {
		t.Error("no address passes")
	}
}

// TestClocks: a clock that is wrong by an hour is named with the next report, an old report and a late reading are not
// taken for it, and a clock that was set is right again.
func TestClocks(t *testing.T) {
	var c Clocks
	read := func(clock, now time.Time) string {
		p := c.Read(&Report{GUID: guid(2), Clock: clock}, "b1", now, 2*time.Second, MaxSkew)
		if p == nil {
			return ""
		}
		return p.Error()
	}
	if got := read(start.Add(-24*time.Hour), start); got != "" { // written before this node started
		t.Error(got)
	}
	if got := read(start, start.Add(MaxSkew+2*time.Second)); got != "" {
		t.Error(got)
	}
	const want = "the clock of b1 is wrong: it is 1h0m0s ahead of that of this host, at most 1m0s is allowed. " +
		"fix: set the clocks of both hosts: timedatectl set-ntp true"
	if got := read(start.Add(time.Hour), start); got != want {
		t.Error(got)
	}
	if got := read(start.Add(time.Hour), start.Add(time.Minute)); got != want { // the same report
		t.Error(got)
	}
	if got := read(start.Add(-time.Hour), start); !strings.Contains(got, "59m58s behind") {
		t.Error(got)
	}
	if got := read(start.Add(time.Minute), start.Add(time.Minute)); got != "" {
		t.Error(got)
	}
	if got := read(time.Time{}, start.Add(time.Hour)); got != "" { // a restore of the store ended the report
		t.Error(got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/ib"
)

var start = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func guid(n int) ib.GUID { return ib.GUID(0x0200000000000000 | uint64(n)<<16) }

// host is a member with its registry.
type host struct {
	*Registry
	id   *member.Identity
	cert *x509.Certificate
}

// lab is a store with hosts, under a clock that a test sets.
type lab struct {
	t      testing.TB
	store  *store.Memory
	now    time.Time
	rekey  func(context.Context) error
	rekeys int
}

func newLab(t testing.TB) *lab {
	l := &lab{t: t, store: store.NewMemory(), now: start}
	t.Cleanup(func() { l.store.Close() })
	return l
}

func (l *lab) host(n int) *host {
	l.t.Helper()
	id, err := member.NewIdentity()
	if err != nil {
		l.t.Fatal(err)
	}
	return &host{id: id, Registry: New(Config{Store: l.store, Now: func() time.Time { return l.now }, GUID: guid(n),
		Identity: id, Rekey: func(ctx context.Context) error {
			l.rekeys++
			if l.rekey != nil {
				return l.rekey(ctx)
			}
			return nil
		}})}
}

func parse(t testing.TB, der []byte, err error) *x509.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (l *lab) found(n int, name string) *host {
	l.t.Helper()
	h := l.host(n)
	der, err := h.Found(l.t.Context(), Founder{Name: name, Addresses: []string{name + ":4792"}, By: "root"})
	h.cert = parse(l.t, der, err)
	return h
}

func (l *lab) token(h *host, spec TokenSpec) member.Secret {
	l.t.Helper()
	spec.By = "root at a1"
	if spec.Roles == 0 {
		spec.Roles = member.HostRoles
	}
	s, _, err := h.CreateToken(l.t.Context(), spec)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

func (l *lab) request(h *host, n int, name string, s member.Secret) *member.Request {
	l.t.Helper()
	csr, err := h.id.Request(name)
	if err != nil {
		l.t.Fatal(err)
	}
	return &member.Request{Protocol: member.Protocol, Token: s.ID, Secret: s.Key(), Pin: s.Pin[:], Name: name,
		GUID:  guid(n),
		Clock: l.now, MTU: 1500, CSR: csr, Seal: h.id.Seal.PublicKey().Bytes(),
		Addresses: []string{fmt.Sprintf("h%d:4792", n)}}
}

// join makes a host a member by way of another.
func (l *lab) join(by *host, n int, name string) *host {
	l.t.Helper()
	h := l.host(n)
	a, err := by.Join(l.t.Context(), l.request(h, n, name, l.token(by, TokenSpec{Uses: 1})), 1500, "a1")
	if err != nil {
		l.t.Fatal(err)
	}
	h.cert = parse(l.t, a.Certificate, nil)
	return h
}

// settle calls Advance until nothing is due.
func (l *lab) settle(h *host) {
	l.t.Helper()
	for range 100 {
		again, err := h.Advance(l.t.Context())
		if err != nil {
			l.t.Fatal(err)
		}
		if !again {
			return
		}
	}
	l.t.Fatal("it does not settle")
}

func (l *lab) roster(h *host) *member.Roster {
	l.t.Helper()
	r, err := h.Roster(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// dump is the store as text, without what changes with each attempt.
func (l *lab) dump() string {
	l.t.Helper()
	all, err := l.store.List(l.t.Context(), "")
	if err != nil {
		l.t.Fatal(err)
	}
	var s strings.Builder
	for _, e := range all.Entries {
		fmt.Fprintf(&s, "%s=%s\n", e.Key, e.Value)
	}
	return s.String()
}

// TestFound: a fabric is made once, also if the first attempt lost its answer; another node does not make a second.
func TestFound(t *testing.T) {
	l := newLab(t)
	h := l.host(1)
	if _, err := h.Roster(t.Context()); !errors.Is(err, ErrNoFabric) {
		t.Fatal(err)
	}
	f := Founder{Name: "a1", By: "root"}
	first := parse(t, must(h.Found(t.Context(), f)), nil)
	again := parse(t, must(h.Found(t.Context(), f)), nil)
	if !first.Equal(again) {
		t.Error("another certificate the second time")
	}
	if _, v, p := l.roster(h).Admit(first, l.now); v != member.Admitted {
		t.Error(p)
	}
	if _, err := l.host(2).Found(t.Context(), f); err == nil || !strings.Contains(err.Error(), "weft join") {
		t.Errorf("a second fabric: %v", err)
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestJoin: three hosts; the third joins by way of the second, with the first gone: the CA's key and tokens do not
// depend on it.
func TestJoin(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	if _, _, err := b.CreateToken(t.Context(), TokenSpec{Roles: member.HostRoles, By: "root at b1"}); err != nil {
		t.Fatal(err)
	}
	c := l.host(3)
	if _, err := b.Join(t.Context(), l.request(c, 3, "c1", l.token(a, TokenSpec{})), 0, "b1"); !errors.Is(err,
		ErrNoKey) {
		t.Fatalf("b1 signs before the key was sealed to it: %v", err)
	}
	l.settle(a) // a voter seals to b1
	c = l.join(b, 3, "c1")
	r := l.roster(c)
	if len(r.Members) != 3 {
		t.Fatalf("%d members", len(r.Members))
	}
	for _, h := range []*host{a, b, c} {
		if _, v, p := r.Admit(h.cert, l.now); v != member.Admitted {
			t.Error(v, p)
		}
	}
	if strings.Contains(l.dump(), "PRIVATE") {
		t.Error("a private key is in the store")
	}
	// Renewal by way of b1 as well.
	l.now = l.now.Add(member.MemberLife / 3 * 2)
	x, err := b.Renew(t.Context(), a.cert)
	if renewed := parse(t, x.Certificate, err); !renewed.NotAfter.After(a.cert.NotAfter) {
		t.Error("the renewed certificate ends no later")
	}
}

// TestRefusedJoinChangesNothing compares the store before and after refusals.
func TestRefusedJoinChangesNothing(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	s := l.token(a, TokenSpec{Uses: 1})
	before := l.dump()
	for what, change := range map[string]func(*member.Request){
		"clock":  func(q *member.Request) { q.Clock = l.now.Add(time.Hour) },
		"name":   func(q *member.Request) { q.Name = "a1" },
		"secret": func(q *member.Request) { q.Secret = make([]byte, 20) },
		"token":  func(q *member.Request) { q.Token = "../../x" },
		"mtu":    func(q *member.Request) { q.MTU = 68 },
	} {
		q := l.request(l.host(2), 2, "b1", s)
		change(q)
		if _, err := a.Join(t.Context(), q, 1500, "a1"); err == nil {
			t.Errorf("%s: it joins", what)
		}
		if after := l.dump(); after != before {
			t.Errorf("%s: the store changed", what)
		}
	}
}

// TestTokens: a token for one use lets in one of two hosts that come at once; an ended or deleted one none; the store
// has no secret.
func TestTokens(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	s := l.token(a, TokenSpec{Uses: 1})
	if strings.Contains(l.dump(), strings.Split(s.Text(), ".")[1]) {
		t.Error("the secret is in the store")
	}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		h := l.host(10 + i)
		q := l.request(h, 10+i, fmt.Sprintf("h%d", i), s)
		wg.Go(func() { _, errs[i] = a.Join(context.Background(), q, 0, "a1") })
	}
	wg.Wait()
	in := 0
	for _, err := range errs {
		if err == nil {
			in++
		} else if !strings.Contains(err.Error(), "has been used once") {
			t.Error(err)
		}
	}
	if in != 1 || len(l.roster(a).Members) != 2 {
		t.Errorf("%d hosts joined with one use", in)
	}
	s = l.token(a, TokenSpec{Life: time.Minute})
	l.now = l.now.Add(time.Minute)
	if _, err := a.TokenHash(t.Context(), s.ID); err == nil {
		t.Error("an ended token has a hash")
	}
	l.settle(a)
	all, err := a.Tokens(t.Context())
	if err != nil || len(all) != 1 {
		t.Errorf("%d tokens are left, %v", len(all), err)
	}
	if err := a.DeleteToken(t.Context(), all[0].ID); err != nil {
		t.Error(err)
	}
	if err := a.DeleteToken(t.Context(), all[0].ID); err == nil || !strings.Contains(err.Error(), "weft token list") {
		t.Error(err)
	}
	if _, _, err := a.CreateToken(t.Context(), TokenSpec{Life: 8 * 24 * time.Hour}); err == nil {
		t.Error("a token for eight days")
	}
}

// TestStores: the roster of a host that joins has the addresses at which members serve the store, and those of members
// as they reported them last.
func TestStores(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	if err := a.Report(t.Context(), member.Report{Store: "10.0.0.1:2379",
		Addresses: []string{"10.0.0.7:4792"}}); err != nil {
		t.Fatal(err)
	}
	h := l.host(2)
	x, err := a.Join(t.Context(), l.request(h, 2, "b1", l.token(a, TokenSpec{})), 0, "a1")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(x.Roster.Stores(), ","); got != "10.0.0.1:2379" {
		t.Errorf("the stores are %q", got)
	}
	if got := strings.Join(x.Roster.ByName("a1").Addresses, ","); got != "10.0.0.7:4792" {
		t.Errorf("the addresses are %q", got)
	}
	if err := a.Report(t.Context(), member.Report{Store: "http://x"}); err == nil {
		t.Error("a URL passes as an address")
	}
}

// TestForeignAddress: a member that reports the addresses of another takes none of them away, also after its record was
// written again. An address that several report and none joined with, such as that of a bridge, is left out.
func TestForeignAddress(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1") // at a1:4792
	b := l.join(a, 2, "b1")
	c := l.join(a, 3, "c1")
	report := func(r *host, addresses ...string) {
		t.Helper()
		if err := r.Report(t.Context(), member.Report{Addresses: addresses}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want map[string]string) {
		t.Helper()
		r, err := a.Roster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, w := range want {
			if got := strings.Join(r.ByName(name).Addresses, " "); got != w {
				t.Errorf("%s: %s is at %q, want %q", when, name, got, w)
			}
		}
	}
	report(a, "a1:4792", "172.17.0.1:4792", "10.0.0.9:4792")
	report(b, "h2:4792", "172.17.0.1:4792", "a1:4792", "h3:4792")
	report(c, "h3:4792", "172.17.0.1:4792")
	want := map[string]string{"a1": "a1:4792 10.0.0.9:4792", "b1": "h2:4792", "c1": "h3:4792"}
	expect("reported", want)
	if err := a.SetDrain(t.Context(), "b1", true, false); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Renew(t.Context(), b.cert); err != nil {
		t.Fatal(err)
	}
	report(b, "a1:4792", "h3:4792", "h2:4792")
	expect("written again", want)
	report(a, "10.0.0.9:4792")
	report(b, "10.0.0.9:4792", "h2:4792")
	expect("the last address", map[string]string{"a1": "10.0.0.9:4792", "b1": "h2:4792"})
}

// TestNames: a member is renamed, names stay unique, and the certificate follows.
func TestNames(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	if err := a.Rename(t.Context(), "b1", "a1"); err == nil {
		t.Error("two members of one name")
	}
	if err := a.Rename(t.Context(), "b1", "new"); err != nil {
		t.Fatal(err)
	}
	if claims, _, _ := l.roster(a).Admit(b.cert, l.now); claims.Name != "new" {
		t.Errorf("its name is %q", claims.Name)
	}
	x, err := a.Renew(t.Context(), b.cert)
	if c := parse(t, x.Certificate, err); c.Subject.CommonName != "new" {
		t.Errorf("its certificate has the name %q", c.Subject.CommonName)
	}
	l.join(a, 3, "b1") // the name is free
	if err := a.Rename(t.Context(), "none", "x"); err == nil || !strings.Contains(err.Error(),
		"there is no member none") {
		t.Error(err)
	}
}

// TestDrain: a member is drained when it reports that nothing uses it.
func TestDrain(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	state := func() member.State { return l.roster(a).ByName("b1").State }
	report := func(users ...member.User) {
		t.Helper()
		if err := b.Report(t.Context(), member.Report{Users: users, CAs: []uint32{1}, Signed: 1}); err != nil {
			t.Fatal(err)
		}
		l.settle(a)
	}
	if state() != member.Joining {
		t.Fatal(state())
	}
	report(member.User{Kind: "program", Name: "ib_write_bw", PID: 7})
	if state() != member.Active {
		t.Fatal(state())
	}
	if err := a.SetDrain(t.Context(), "b1", true, false); err != nil {
		t.Fatal(err)
	}
	report(member.User{Kind: "program", Name: "ib_write_bw", PID: 7})
	if state() != member.Draining {
		t.Fatal(state())
	}
	if _, err := a.Remove(t.Context(), "b1", "root", false); err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("removed while programs run: %v", err)
	}
	report()
	if state() != member.Drained {
		t.Fatal(state())
	}
	if err := a.SetDrain(t.Context(), "b1", false, false); err != nil || state() != member.Active {
		t.Errorf("%v, %v", state(), err)
	}
}

// TestRemove: a removed member is out at once, each secret is replaced, and a failure on the way is reported and
// repeated.
func TestRemove(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	l.settle(a)
	s := l.token(a, TokenSpec{})
	l.rekey = func(context.Context) error { return errors.New("no master") }
	done, err := a.Remove(t.Context(), "b1", "root at a1", true)
	if err == nil || !done.Has(member.ReplaceCA|member.ReplaceTokens) {
		t.Fatalf("%v, %v", done.List(), err)
	}
	if _, v, _ := l.roster(a).Admit(b.cert, l.now); v != member.RemovedKey {
		t.Errorf("%v", v)
	}
	if _, err := b.Renew(t.Context(), b.cert); err == nil || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("it renews: %v", err)
	}
	if _, err := a.Join(t.Context(), l.request(b, 2, "b1", s), 0, "a1"); err == nil {
		t.Error("it joins with a token that it had")
	}
	if _, err := a.Join(t.Context(), l.request(b, 2, "b1", l.token(a, TokenSpec{})), 0, "a1"); err == nil ||
		!strings.Contains(err.Error(), "was removed") {
		t.Errorf("its keys join with a new token: %v", err)
	}
	if _, problems, _ := a.Members(t.Context()); len(problems) != 1 || !strings.Contains(problems[0].Error(), "M_Key") {
		t.Errorf("%v", problems)
	}
	l.rekey = nil
	l.now = l.now.Add(time.Minute)
	l.settle(a)
	if _, problems, _ := a.Members(t.Context()); len(problems) != 0 || l.rekeys != 2 {
		t.Errorf("%v after %d changes of the M_Key", problems, l.rekeys)
	}
	// The other member goes on by the new CA; the old one goes once its reports have it.
	x, err := a.Renew(t.Context(), a.cert)
	a.cert = parse(t, x.Certificate, err)
	if err := a.Report(t.Context(), member.Report{CAs: []uint32{1, 2}, Signed: 2}); err != nil {
		t.Fatal(err)
	}
	l.settle(a)
	r := l.roster(a)
	if len(r.CAs) != 1 || r.CAs[0].Epoch != 2 {
		t.Errorf("%d CAs", len(r.CAs))
	}
	if sealed, _ := l.store.List(t.Context(), sealedTree(1)); len(sealed.Entries) != 0 {
		t.Error("keys of the old CA are left")
	}
	// The host may come back with new keys.
	if b2 := l.join(a, 2, "b1"); b2.cert == nil {
		t.Error("it cannot come back")
	}
	l.now = l.now.Add(member.MemberLife + time.Hour)
	l.settle(a)
	if r := l.roster(a); len(r.Removed) != 0 {
		t.Error("the removal is kept for ever")
	}
}

// TestRotateWithoutMaster: where the M_Key cannot be replaced the CA is, and the error has the command.
func TestRotateWithoutMaster(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	l.settle(a)
	l.rekey = func(context.Context) error { return errors.New("no master") }
	err := a.Rotate(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the M_Key is not: no master. fix: weft sm set --m-key random") {
		t.Error(err)
	}
	if r := l.roster(a); len(r.CAs) != 2 {
		t.Errorf("%d CAs", len(r.CAs))
	}
}

// TestRotation: the CA is rotated in peace, twelve times, without an end of a member. Tokens from before end at once.
func TestRotation(t *testing.T) {
	l := newLab(t)
	hosts := []*host{l.found(1, "a1")}
	hosts = append(hosts, l.join(hosts[0], 2, "b1"), l.join(hosts[0], 3, "c1"))
	l.settle(hosts[0])
	for round := range 12 {
		s := l.token(hosts[0], TokenSpec{})
		before := l.rekeys
		if err := hosts[round%3].Rotate(t.Context()); err != nil {
			t.Fatal(round, err)
		}
		if tokens, err := hosts[0].Tokens(t.Context()); err != nil || len(tokens) != 0 || l.rekeys != before+1 {
			t.Fatalf("round %d: %d tokens are left, %d changes of the M_Key, %v", round, len(tokens),
				l.rekeys-before, err)
		}
		if _, err := hosts[0].Join(t.Context(), l.request(hosts[0], 9, "x1", s), 0, "a1"); err == nil {
			t.Errorf("round %d: a token from before lets a host in", round)
		}
		err := hosts[0].Rotate(t.Context())
		if err == nil || !strings.Contains(err.Error(), "a rotation is under way") {
			t.Errorf("round %d: two rotations at once: %v", round, err)
		}
		for range 3 {
			r := l.roster(hosts[0])
			var epochs []uint32
			for _, c := range r.CAs {
				epochs = append(epochs, c.Epoch)
			}
			for _, h := range hosts {
				if _, v, p := r.Admit(h.cert, l.now); v != member.Admitted {
					t.Fatal(round, v, p)
				}
				x, err := hosts[(round+1)%3].Renew(t.Context(), h.cert)
				h.cert = parse(t, x.Certificate, err)
				var signed uint32
				for _, c := range r.CAs {
					if ca := parse(t, c.Certificate, nil); h.cert.CheckSignatureFrom(ca) == nil {
						signed = c.Epoch
					}
				}
				if err := h.Report(t.Context(), member.Report{CAs: epochs, Signed: signed}); err != nil {
					t.Fatal(err)
				}
			}
			l.settle(hosts[0])
		}
		if r := l.roster(hosts[0]); len(r.CAs) != 1 || r.CAs[0].Epoch != uint32(round+2) {
			t.Fatalf("round %d: %d CAs, the first of epoch %d", round, len(r.CAs), r.CAs[0].Epoch)
		}
	}
}

// TestDamagedRecord: an unreadable record costs its member alone, and is reported.
func TestDamagedRecord(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	if _, err := store.Put(t.Context(), l.store, recordKey(guid(2)), []byte(`{"version":9}`)); err != nil {
		t.Fatal(err)
	}
	l.now = l.now.Add(time.Hour)
	r := l.roster(a)
	if _, v, _ := r.Admit(a.cert, l.now); v != member.Admitted {
		t.Errorf("a1: %v", v)
	}
	if _, v, _ := r.Admit(b.cert, l.now); v.OK() {
		t.Errorf("b1: %v", v)
	}
	if _, problems, _ := a.Members(t.Context()); len(problems) != 1 || !strings.Contains(problems[0].Error(),
		"version 9") {
		t.Errorf("%v", problems)
	}
}

// asMember is a store as one without roles may use it.
type asMember struct {
	store.Store
	member.Claims
}

func (s asMember) may(key, end string) error {
	if p := member.MayAccess(s.Claims, key, end, false); p != nil {
		return p
	}
	return nil
}

func (s asMember) Get(ctx context.Context, key string) (e store.Entry, err error) {
	if err = s.may(key, ""); err == nil {
		e, err = s.Store.Get(ctx, key)
	}
	return e, err
}

func (s asMember) List(ctx context.Context, tree string) (l store.Listing, err error) {
	if err = s.may(tree+"/", tree+"0"); err == nil {
		l, err = s.Store.List(ctx, tree)
	}
	return l, err
}

func (s asMember) Watch(ctx context.Context, tree string) (<-chan store.Change, error) {
	if err := s.may(tree+"/", tree+"0"); err != nil {
		return nil, err
	}
	return s.Store.Watch(ctx, tree)
}

// TestFollow: each change reaches its followers, also a node without a role.
func TestFollow(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	follower := New(Config{Store: asMember{l.store, member.Claims{GUID: guid(9)}}, Now: func() time.Time { return start },
		GUID: guid(9)})
	ctx, stop := context.WithCancel(t.Context())
	seen := make(chan int, 16)
	done := make(chan error)
	go func() {
		done <- follower.Follow(ctx, func(r *member.Roster) { seen <- len(r.Members) }, func(err error) { t.Error(err) })
	}()
	await := func(want int) {
		t.Helper()
		for n := range seen {
			if n == want {
				return
			}
		}
	}
	await(1)
	l.join(a, 2, "b1")
	await(2)
	if _, err := a.Remove(t.Context(), "b1", "root", true); err != nil {
		t.Fatal(err)
	}
	await(1)
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestForged: a forged record of a voter, with a certificate of another CA, gives no key of the CA.
func TestForged(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	b := l.join(a, 2, "b1")
	own, err := member.NewAuthority(l.roster(a).Fabric, 1, l.now, 0)
	if err != nil {
		t.Fatal(err)
	}
	thief := l.host(2)
	claims, err := member.ClaimsOf(b.cert)
	if err != nil {
		t.Fatal(err)
	}
	claims.Seal = thief.id.Seal.PublicKey().Bytes()
	m := *l.roster(a).ByName("b1")
	m.Key = thief.id.Key()
	if m.Certificate, err = own.Issue(claims, &thief.id.Sign.PublicKey, l.now, 0, rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.Txn(t.Context(), store.Txn{Do: []store.Op{put(recordKey(guid(2)), m).op}}); err != nil {
		t.Fatal(err)
	}
	l.settle(a)
	if sealed, _ := l.store.List(t.Context(), sealedTree(1)); len(sealed.Entries) != 1 {
		t.Errorf("the key is sealed to %d members", len(sealed.Entries))
	}
	if _, v, _ := l.roster(a).Admit(b.cert, l.now); v.OK() {
		t.Errorf("the member with a forged record: %v", v)
	}
}

// TestFollowReadsOnce: changes that come while a roster is in work are one roster afterwards, with all of them.
func TestFollowReadsOnce(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	rosters, ended := make(chan *member.Roster), make(chan error)
	go func() {
		ended <- a.Follow(ctx, func(r *member.Roster) { rosters <- r }, func(err error) { t.Error(err) })
	}()
	<-rosters
	l.join(a, 2, "b2") // of which a roster is in work
	const last = 9
	for n := 3; n <= last; n++ {
		l.join(a, n, fmt.Sprintf("b%d", n))
	}
	var sizes []int
	for len(sizes) == 0 || sizes[len(sizes)-1] < last {
		sizes = append(sizes, len((<-rosters).Members))
	}
	if len(sizes) > 2 {
		t.Errorf("the rosters had %v members: want one that was in work, and one with all", sizes)
	}
	select {
	case r := <-rosters:
		t.Errorf("one more roster, of %d members", len(r.Members))
	case <-time.After(50 * time.Millisecond):
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/member/home"
	"weft/internal/mgmt/member/registry"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
	"weft/internal/proto/problem"
)

// TestPace: the first values of poke begin a round at once each, and a flood of them one in roundEvery, the last of
// which is after the last value. Without any there are rounds as well.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		poke := make(chan struct{}, 1)
		var rounds, last atomic.Int64 // last: nanoseconds
		go paced(ctx, poke, func() { rounds.Add(1); last.Store(time.Now().UnixNano()) })
		for n := 1; n <= roundBurst; n++ {
			poke <- struct{}{}
			synctest.Wait()
			if got := rounds.Load(); got != int64(n) {
				t.Errorf("%d rounds after %d values", got, n)
			}
		}
		rounds.Store(0)
		const flood = 60 * time.Second
		var poked time.Time
		for began := time.Now(); time.Since(began) < flood; time.Sleep(time.Millisecond) {
			select {
			case poke <- struct{}{}:
				poked = time.Now()
			default:
			}
		}
		if got, want := rounds.Load(), int64(flood/roundEvery); got < want-1 || got > want+1 {
			t.Errorf("%d rounds in %v of a flood", got, flood)
		}
		time.Sleep(roundEvery)
		synctest.Wait()
		if d := poked.UnixNano() - last.Load(); d > 0 {
			t.Errorf("the last round is %v before the last value", time.Duration(d))
		}
		rounds.Store(0)
		time.Sleep(10 * workEvery)
		synctest.Wait()
		if got := rounds.Load(); got < 9 || got > 11 {
			t.Errorf("%d rounds of %v without a value", got, workEvery)
		}
	})
}

// TestUpkeepDue: the first of the voters looks at all members at once after a change, the others later, and each of
// them now and then.
func TestUpkeepDue(t *testing.T) {
	begin := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		what  string
		first func() bool
		after time.Duration // a change, until a look is due
	}{
		{"without others", nil, 0},
		{"the first", func() bool { return true }, 0},
		{"another", func() bool { return false }, upkeepLater * 3 / 2},
	} {
		m := &Membership{cfg: Config{First: c.first}}
		w := worker{m: m, spread: 0.5, looked: begin}
		if at := begin.Add(upkeepEvery - 1); w.due(at) || !w.due(begin.Add(upkeepEvery)) {
			t.Errorf("%s: without a change a look is not due after %v", c.what, upkeepEvery)
		}
		m.due.Store(true)
		if changed := begin.Add(time.Second); c.after > 0 && (w.due(changed) || w.due(changed.Add(c.after-1))) ||
			!w.due(changed.Add(c.after)) {
			t.Errorf("%s: after a change a look is not due after %v", c.what, c.after)
		}
	}
}

// sealless is a store without the keys of the CA that are sealed to a member.
type sealless struct {
	store.Store
	guid string
}

func (s sealless) Get(ctx context.Context, key string) (store.Entry, error) {
	if strings.Contains(key, "/sealed/") && strings.HasSuffix(key, s.guid) {
		return store.Entry{}, store.ErrNotFound
	}
	return s.Store.Get(ctx, key)
}

// TestVoterWithoutKey: a new voter has no key of the CA until another one seals it to it. Until then it renews its
// certificate by that one.
func TestVoterWithoutKey(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir, p := t.TempDir(), condtest.Port(t)
	if _, err := Join(t.Context(), JoinSpec{Dir: dir, GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: p,
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: c.now}); err != nil {
		t.Fatal(err)
	}
	b := newHost(t, dir, 2, p, sealless{s.Open(), member.GUIDKey(guid(2))}, c)
	if err := b.Open(); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, err := b.open()
	if err != nil {
		t.Fatal(err)
	}
	c.move(member.MemberLife/3*2 + time.Hour)
	before := b.cert.Load().Leaf
	if _, err := r.Renew(t.Context(), before); !errors.Is(err, registry.ErrNoKey) {
		t.Fatalf("renewed without a key: %v", err)
	}
	answer, err := (&worker{m: b.Membership}).fetch(t.Context(), b.roster.Load())
	if err != nil {
		t.Fatal(err)
	}
	if c, err := x509.ParseCertificate(answer.Certificate); err != nil || !c.NotAfter.After(before.NotAfter) {
		t.Errorf("the new certificate: %v, %v", c, err)
	}
}

// lookout is a voter of two that is not the first, with what First returns.
func lookout(t *testing.T, now *time.Time) (*worker, *atomic.Bool) {
	t.Helper()
	id, err := member.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	first := &atomic.Bool{}
	m := New(Config{Dir: t.TempDir(), GUID: guid(1), First: first.Load, Now: func() time.Time { return *now },
		Log: slog.New(slog.DiscardHandler)})
	m.id, m.kept = id, &home.Membership{Name: "a1"}
	m.roster.Store(&member.Roster{Skew: int64(time.Minute), Members: []member.Record{
		{GUID: guid(1), Name: "a1", Roles: member.HostRoles}, {GUID: guid(2), Name: "b1", Roles: member.HostRoles}}})
	return &worker{m: m, spread: 0.5}, first
}

// TestClocksAtNewLeader: a voter that becomes the first has not looked at reports as soon as they were written, until
// it has looked once as the first.
func TestClocksAtNewLeader(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	w, first := lookout(t, &now)
	after := upkeepEvery
	look := func(behind time.Duration) *problem.Error {
		now = now.Add(after)
		w.due(now)
		w.compareClocks([]registry.Member{{Record: member.Record{GUID: guid(2), Name: "b1"},
			Report: &member.Report{GUID: guid(2), Clock: now.Add(-behind)}}})
		return w.m.faults["member_clock"]
	}
	behind := time.Minute + w.later()
	for _, x := range []struct {
		what  string
		first bool
		fault bool
	}{
		{"not the first", false, false},
		{"not the first any more", false, false},
		{"the first from now on", true, false},
		{"the first", true, true},
		{"not the first again", false, false},
	} {
		first.Store(x.first)
		if p := look(behind); (p != nil) != x.fault {
			t.Errorf("%s: %v", x.what, p)
		}
	}
	first.Store(true)
	look(0)
	// The store was away, and a report waited for it.
	after = 3 * time.Minute
	if p := look(after - time.Second); p != nil {
		t.Errorf("after %v without the store: %v", after, p)
	}
	after = upkeepEvery
	if p := look(3 * time.Minute); p == nil {
		t.Error("a clock that is behind is not named any more")
	}
}

// TestCopiedIdentityOfAnother: a voter that is not the first does not take back that the identity of another member is
// used twice when it finds that of an earlier start of its own.
func TestCopiedIdentityOfAnother(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	w, _ := lookout(t, &now)
	other := problem.New("the identity of b1 is used twice", "two nodes have its key", "weft member remove b1")
	w.m.fault("identity_copied", other)
	for range 3 { // it is in the store until the own one is written
		w.sawOther(&member.Report{Incarnation: 1, Clock: now.Add(-time.Minute)}, &member.Report{Incarnation: 2})
		now = now.Add(time.Second)
		if p := w.m.faults["identity_copied"]; p != other {
			t.Errorf("%v", p)
		}
	}
	w.sawOther(&member.Report{Incarnation: 1, Clock: now.Add(time.Second)}, &member.Report{Incarnation: 2})
	if p := w.m.faults["identity_copied"]; p == nil || !strings.Contains(p.Error(), "a1") {
		t.Errorf("its own: %v", p)
	}
}

// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft/internal/control/api"
	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
	"weft/internal/proto/condtest"
	"weft/internal/proto/ib"
)

func TestMain(m *testing.M) {
	// A server lingers half a second after a request that it did not read to its end.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func guid(n int) ib.GUID { return ib.GUID(0x0200000000000000 | uint64(n)<<16) }

// clockwork is a wall clock that tests move.
type clockwork struct {
	mu   sync.Mutex
	skip time.Duration
}

func (c *clockwork) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.skip)
}

func (c *clockwork) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skip += d
}

// host is a node's membership over a client of a common store.
type host struct {
	*Membership
	mu     sync.Mutex
	users  []member.User
	rekeys int
	drains bool
	ended  int // how often users were to end
}

func newHost(t *testing.T, dir string, n, port int, s store.Store, c *clockwork) *host {
	t.Helper()
	h := &host{}
	h.Membership = New(Config{Dir: dir, GUID: guid(n), Host: "host" + string(rune('0'+n)), Port: port, Program: "test",
		Log: slog.New(slog.DiscardHandler), Now: c.now, Durable: true,
		Store: func() (store.Store, error) { return s, nil },
		Users: func() ([]member.User, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.users, nil
		},
		Drain: func(_ string, on, force bool) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.drains = on
			if on && force {
				h.users, h.ended = nil, h.ended+1
			}
		},
		Rekey: func(context.Context) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.rekeys++
			return nil
		}})
	return h
}

func (h *host) start(t *testing.T) {
	t.Helper()
	if err := errors.Join(h.Open(), h.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
}

// TestThreeHosts: the first makes a fabric by its first token, the others join with a line each; the first dies, and
// tokens, renewal and removal go on.
func TestThreeHosts(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	ports := []int{condtest.Port(t), condtest.Port(t), condtest.Port(t), condtest.Port(t)}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()}
	a := newHost(t, dirs[0], 1, ports[0], s.Open(), c)
	a.start(t)
	if all, err := a.members(t.Context()); err != nil || len(all) != 0 {
		t.Fatalf("members of no fabric: %v, %v", all, err)
	}
	enter := func(by *host, n int) (*Joined, error) {
		t.Helper()
		line, err := by.createToken(t.Context(), api.NewToken{Uses: 1})
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Fields(line.Line)
		if len(words) != 5 || words[0] != "weft" || words[1] != "join" || words[3] != "--token" {
			t.Fatalf("%q", line.Line)
		}
		return Join(t.Context(), JoinSpec{Dir: dirs[n-1], GUID: guid(n), Host: "127.0.0.1:" + port(by.cfg.Port),
			Port: ports[n-1], Token: words[4], Name: "host" + string(rune('0'+n)), Now: c.now})
	}
	j, err := enter(a, 2)
	if err != nil {
		t.Fatal(err)
	}
	if j.Name != "host2" || j.Members != 2 || j.Roles != member.HostRoles {
		t.Errorf("%+v", j)
	}
	b := newHost(t, dirs[1], 2, ports[1], s.Open(), c)
	b.start(t)
	if _, err := enter(a, 2); err == nil || !strings.Contains(err.Error(), "weft leave") {
		t.Errorf("it joins twice: %v", err)
	}
	sealed := func(n int) bool {
		_, err := s.Get(t.Context(), member.TreeSealed+"/1/"+member.GUIDKey(guid(n)))
		return err == nil
	}
	condtest.Until(t, "the CA's key at host2", func() bool { return sealed(2) })
	a.Close() // the first host dies

	if _, err := enter(b, 3); err != nil {
		t.Fatal(err)
	}
	d := newHost(t, dirs[2], 3, ports[2], s.Open(), c)
	d.start(t)
	condtest.Until(t, "the CA's key at host3", func() bool { return sealed(3) })
	condtest.Until(t, "three members in the roster of host2", func() bool { return len(b.Roster().Members) == 3 })

	// Certificates are renewed by themselves at two thirds of their life.
	before := b.cert.Load().Leaf.NotAfter
	c.move(member.MemberLife/3*2 + time.Hour)
	condtest.Until(t, "a renewed certificate", func() bool { return b.cert.Load().Leaf.NotAfter.After(before) })

	// A rename reaches the certificate.
	if err := b.rename(t.Context(), api.Named[api.MemberName]{Name: "host3",
		Value: api.MemberName{Name: "rack2"}}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the new name", func() bool {
		return d.Name() == "rack2" &&
			d.cert.Load().Leaf.Subject.CommonName == "rack2"
	})

	// A drain names programs, and ends when they have.
	d.mu.Lock()
	d.users = []member.User{{Kind: "program", Name: "ib_write_bw", PID: 7}}
	d.mu.Unlock()
	drain := func() api.FabricMember {
		t.Helper()
		m, err := b.drain(t.Context(), "rack2", api.MemberDrain{Drain: true})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	condtest.Until(t, "the drain at the host", func() bool {
		drain()
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.drains
	})
	condtest.Until(t, "the program's name", func() bool {
		m := drain()
		return len(m.Users) == 1 && m.State == "draining"
	})
	if _, err := b.remove(t.Context(), api.MemberRemoval{Name: "rack2"}); err == nil ||
		!strings.Contains(err.Error(), "weft member drain rack2 names them") {
		t.Errorf("%v", err)
	}
	// By force it ends the program, and names what it ended.
	if m, err := b.drain(t.Context(), "rack2", api.MemberDrain{Drain: true, Force: true}); err != nil ||
		m.State != "drained" || len(m.Users) != 0 || len(m.Ended) != 1 || m.Ended[0].Name != "ib_write_bw" {
		t.Errorf("a drain by force: %+v, %v", m, err)
	}
	condtest.Until(t, "the end of the drain", func() bool { return drain().State == "drained" })

	// A removal reaches all at once, also to the removed member.
	gone := d.cert.Load().Leaf
	r, err := b.remove(t.Context(), api.MemberRemoval{Name: "rack2"})
	if err != nil || len(r.Replaced) != 4 || b.rekeys != 1 {
		t.Fatalf("%+v, %v, %d", r, err, b.rekeys)
	}
	condtest.Until(t, "the removal", func() bool {
		_, v, _ := b.Roster().Admit(gone, c.now())
		return v == member.RemovedKey
	})
	condtest.Until(t, "the notice at the removed member", func() bool {
		for _, x := range d.Degraded() {
			if x.What == "member_out" {
				return true
			}
		}
		return false
	})
	// The other goes on by the new CA.
	condtest.Until(t, "a certificate of the new CA", func() bool {
		_, v, _ := b.Roster().Admit(b.cert.Load().Leaf, c.now())
		return v == member.Admitted && b.Roster().SignedBy(b.cert.Load().Leaf) == 2
	})
	if _, err := enter(b, 4); err != nil {
		t.Errorf("a host after that: %v", err)
	}
}

func port(n int) string { return strconv.Itoa(n) }

// TestRefusedJoinLeavesNothing: a refused host's directory is as before.
func TestRefusedJoinLeavesNothing(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s, c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	spec := JoinSpec{Dir: t.TempDir(), GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: 4792,
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: func() time.Time { return time.Now().Add(time.Hour) }}
	if _, err := Join(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "1h0m0s ahead") {
		t.Errorf("%v", err)
	}
	if h := newHost(t, spec.Dir, 2, condtest.Port(t), s, c); h.Open() != nil || h.cert.Load() != nil || h.dir.Pending() {
		t.Error("something is left")
	}
	for _, change := range []func(*JoinSpec){
		func(s *JoinSpec) { s.Token = "x" }, func(s *JoinSpec) { s.Name = "A" }, func(s *JoinSpec) { s.Roles = "king" },
		func(s *JoinSpec) { s.Addresses = []string{"1.2.3:4"} }, func(s *JoinSpec) { s.Host = "127.0.0.1:1" },
	} {
		x := spec
		change(&x)
		if _, err := Join(t.Context(), x); err == nil || !strings.Contains(err.Error(), ". fix: ") {
			t.Errorf("%v", err)
		}
	}
	spec.Now = time.Now
	if _, err := Join(t.Context(), spec); err != nil {
		t.Error(err)
	}
}

// TestNoAdministrator: a host without the role changes nothing.
func TestNoAdministrator(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s, c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Roles: "member"})
	if err != nil {
		t.Fatal(err)
	}
	dir, at := t.TempDir(), condtest.Port(t)
	if _, err := Join(t.Context(), JoinSpec{Dir: dir, GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: at,
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: c.now}); err != nil {
		t.Fatal(err)
	}
	b := newHost(t, dir, 2, at, s.Open(), c)
	b.start(t)
	for _, f := range []func() error{
		func() error { _, err := b.createToken(t.Context(), api.NewToken{}); return err },
		func() error {
			_, err := b.remove(t.Context(), api.MemberRemoval{Name: "host1", Force: true})
			return err
		},
		func() error { _, err := b.drain(t.Context(), "host1", api.MemberDrain{Drain: true}); return err },
		func() error { return b.rename(t.Context(), api.Named[api.MemberName]{Name: "host1"}) },
		func() error { return b.deleteToken(t.Context(), "x") },
		func() error { _, err := b.rotate(t.Context()); return err },
	} {
		var e *api.Error
		if err := f(); !errors.As(err, &e) || e.Code != api.CodeRefused {
			t.Errorf("%v", err)
		}
	}
	if all, err := b.members(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestWithoutStore: with the store gone, a member decides by the roster on its disk, and reports it.
func TestWithoutStore(t *testing.T) {
	s := store.NewMemory()
	c := &clockwork{}
	dir, at := t.TempDir(), condtest.Port(t)
	a := newHost(t, dir, 1, at, s, c)
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{}); err != nil {
		t.Fatal(err)
	}
	cert := a.cert.Load().Leaf
	a.Close()
	s.Close()
	a = newHost(t, dir, 1, at, nil, c)
	a.start(t)
	if _, v, p := a.Roster().Admit(cert, c.now()); v != member.Admitted {
		t.Errorf("%v, %v", v, p)
	}
	condtest.Until(t, "the report", func() bool { return len(a.Degraded()) == 1 })
	if d := a.Degraded()[0]; d.What != "member_store" || d.Fix == "" {
		t.Errorf("%+v", d)
	}
	if all, err := a.members(t.Context()); err != nil || len(all) != 1 || !all[0].Self {
		t.Errorf("%v, %v", all, err)
	}
}

// TestRosterUnread: a member without its roster admits no other: one that was removed could not be told from one that
// joined. It makes no store of its own, and goes on when it reads the fabric's.
func TestRosterUnread(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	dir, at := t.TempDir(), condtest.Port(t)
	a := newHost(t, dir, 1, at, s.Open(), c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	if !a.Alone() {
		t.Error("the first member is not alone")
	}
	other := JoinSpec{Dir: t.TempDir(), GUID: guid(2), Host: "127.0.0.1:" + port(at), Port: condtest.Port(t),
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: c.now}
	if _, err := Join(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b := newHost(t, other.Dir, 2, other.Port, s.Open(), c)
	b.start(t)
	gone := b.cert.Load().Leaf
	b.Close()
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "b1", Force: true}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the removal", func() bool {
		_, v, _ := a.Roster().Admit(gone, c.now())
		return v == member.RemovedKey
	})
	a.Close()

	for name, spoil := range map[string]func(path string) error{
		"missing": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
	} {
		if err := spoil(filepath.Join(dir, "member", "roster.json")); err != nil {
			t.Fatal(err)
		}
		a = newHost(t, dir, 1, at, nil, c)
		a.start(t)
		if x, v, _ := a.Roster().Admit(gone, c.now()); v.OK() {
			t.Errorf("%s: the removed member is admitted: %+v, %v", name, x, v)
		}
		if _, v, p := a.Roster().Admit(a.cert.Load().Leaf, c.now()); v != member.Admitted {
			t.Errorf("%s: this node: %v, %v", name, v, p)
		}
		if a.Alone() {
			t.Errorf("%s: it would make a store of its own", name)
		}
		unread := func() bool {
			return slices.ContainsFunc(a.Degraded(), func(d api.Degraded) bool {
				return d.What == "member_roster" && strings.Contains(d.Fix, "weft leave")
			})
		}
		if !unread() {
			t.Errorf("%s: %+v", name, a.Degraded())
		}
		a.Close()
		a = newHost(t, dir, 1, at, s.Open(), c)
		a.start(t)
		condtest.Until(t, "the roster of the store", func() bool { return a.Roster().Revision > 0 && !unread() })
		a.Close()
	}
}

// TestNamedAddresses: the addresses of weft join --address stay those of the member, also after it reports, renews its
// certificate and starts again.
func TestNamedAddresses(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	dir, at := t.TempDir(), condtest.Port(t)
	named := []string{"b1.example:4792", "192.0.2.7:" + port(at)}
	if _, err := Join(t.Context(), JoinSpec{Dir: dir, GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: at,
		Token: strings.Fields(made.Line)[4], Name: "b1", Addresses: []string{named[0], "192.0.2.7"},
		Now: c.now}); err != nil {
		t.Fatal(err)
	}
	reports := func(b *host) {
		t.Helper()
		condtest.Until(t, "a report", func() bool {
			e, err := s.Get(t.Context(), member.TreeReport+"/"+member.GUIDKey(guid(2)))
			if err != nil {
				return false
			}
			r, err := member.Decode[member.Report](e.Value)
			return err == nil && r.Incarnation == b.incarnation
		})
		r, err := b.open()
		if err != nil {
			t.Fatal(err)
		}
		roster, err := r.Roster(t.Context())
		if err != nil || !slices.Equal(roster.ByName("b1").Addresses, named) {
			t.Errorf("%v, %v, want %v", roster.ByName("b1").Addresses, err, named)
		}
	}
	b := newHost(t, dir, 2, at, s.Open(), c)
	b.start(t)
	reports(b)
	// The next host is to join at the address that was named: those of the interfaces may not be reached.
	line, err := b.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil || !strings.HasPrefix(line.Line, "weft join b1.example --token ") {
		t.Errorf("%q, %v", line.Line, err)
	}
	before := b.cert.Load().Leaf.NotAfter
	c.move(member.MemberLife/3*2 + time.Hour)
	condtest.Until(t, "a renewed certificate", func() bool { return b.cert.Load().Leaf.NotAfter.After(before) })
	b.Close()
	b = newHost(t, dir, 2, at, s.Open(), c)
	b.start(t)
	reports(b)
}

// TestJoinAddresses: a host joins by a name and by addresses of either family, and states its own as names or
// addresses. Where the name is unknown it is one line, and nothing has changed.
func TestJoinAddresses(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), &clockwork{})
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 9})
	if err != nil {
		t.Fatal(err)
	}
	p := port(a.cfg.Port)
	spec := func(n int, host string, own ...string) JoinSpec {
		return JoinSpec{Dir: t.TempDir(), GUID: guid(n), Host: host, Port: a.cfg.Port, Name: "m" + port(n),
			Token: strings.Fields(made.Line)[4], Addresses: own, Now: time.Now}
	}
	for i, x := range []struct {
		host     string
		own, has []string
	}{
		{"127.0.0.1:" + p, []string{"192.0.2.7"}, []string{"192.0.2.7:" + p}},
		{"127.0.0.1", []string{"192.0.2.7:9"}, []string{"192.0.2.7:9"}}, // the port that the joiner has as well
		{"[::1]:" + p, []string{"fd00::7"}, []string{"[fd00::7]:" + p}},
		{"::1", []string{"[fd00::7]:9", "b.example:8"}, []string{"[fd00::7]:9", "b.example:8"}},
		{"[::1]", []string{"[fd00::8]"}, []string{"[fd00::8]:" + p}},
		{"localhost:" + p, []string{"b.example"}, []string{"b.example:" + p}},
		{"localhost", []string{"b-1.b.example:8", "192.0.2.8", "fd00::9"},
			[]string{"b-1.b.example:8", "192.0.2.8:" + p, "[fd00::9]:" + p}},
	} {
		j := spec(2+i, x.host, x.own...)
		if _, err := Join(t.Context(), j); err != nil {
			t.Errorf("join %s: %v", x.host, err)
			continue
		}
		r, err := a.open()
		if err != nil {
			t.Fatal(err)
		}
		roster, err := r.Roster(t.Context())
		if m := roster.ByName(j.Name); err != nil || m == nil || !slices.Equal(m.Addresses, x.has) {
			t.Errorf("join %s at %q: %+v, %v, want %q", x.host, x.own, m, err, x.has)
		}
	}
	for _, host := range []string{"no-such-host.invalid", "[::1", "::1::2", "127.0.0.1:0:1", ""} {
		j := spec(20, host, "192.0.2.7")
		_, err := Join(t.Context(), j)
		if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), ". fix: ") {
			t.Errorf("join %q: %v", host, err)
		}
		if h := newHost(t, j.Dir, 20, condtest.Port(t), s, &clockwork{}); h.Open() != nil || h.cert.Load() != nil {
			t.Errorf("join %q leaves something", host)
		}
	}
}

// TestRenewedRoster: the roster that comes with a renewed certificate takes effect where it is newer, also on disk and
// for the trunks; an older one does not bring a removed member back.
func TestRenewedRoster(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s.Open(), c)
	var followed atomic.Pointer[member.Roster]
	a.cfg.Roster = func(r *member.Roster) { followed.Store(r) }
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := JoinSpec{Dir: t.TempDir(), GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: condtest.Port(t),
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: c.now}
	if _, err := Join(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	r, err := a.open()
	if err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the second member", func() bool { return len(a.Roster().Members) == 2 })
	before, err := r.Renew(t.Context(), a.cert.Load().Leaf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.remove(t.Context(), api.MemberRemoval{Name: "b1", Force: true}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the removal", func() bool { return len(a.Roster().Members) == 1 })
	a.Close() // nothing follows the store any more
	a.ctx = t.Context()
	w := worker{m: a.Membership}
	if err := w.keep(before); err != nil {
		t.Fatal(err)
	}
	kept, err := a.dir.Roster()
	if err != nil || len(a.Roster().Removed) != 1 || len(kept.Removed) != 1 {
		t.Errorf("an older roster: %d removed in memory, %d on disk, %v", len(a.Roster().Removed), len(kept.Removed),
			err)
	}
	newer := *before
	newer.Roster = *a.Roster()
	newer.Roster.Revision++
	newer.Roster.Skew++
	if err := w.keep(&newer); err != nil {
		t.Fatal(err)
	}
	if kept, err = a.dir.Roster(); err != nil || kept.Skew != newer.Roster.Skew || a.Roster().Skew != kept.Skew ||
		followed.Load().Skew != kept.Skew {
		t.Errorf("a newer roster: skew %d in memory, %d on disk, %d at the trunks, want %d: %v", a.Roster().Skew,
			kept.Skew, followed.Load().Skew, newer.Roster.Skew, err)
	}
}

// TestClosedFabric: where the first member cannot open its store and trunks to others, no line for another host is
// made, until it starts again.
func TestClosedFabric(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	dir, at := t.TempDir(), condtest.Port(t)
	a := newHost(t, dir, 1, at, s.Open(), c)
	a.cfg.Founded = func(context.Context) error { return errors.New("port 4793 is taken") }
	a.start(t)
	for range 2 {
		made, err := a.createToken(t.Context(), api.NewToken{Uses: 1})
		if err == nil || made.Line != "" || !strings.Contains(err.Error(), "port 4793 is taken") ||
			!strings.Contains(err.Error(), "weft up") {
			t.Errorf("%+v, %v", made, err)
		}
	}
	if d := a.Degraded(); len(d) != 1 || d[0].What != "fabric_closed" {
		t.Errorf("%+v", d)
	}
	if list, err := a.tokens(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("tokens %+v, %v", list, err)
	}
	a.Close()
	a = newHost(t, dir, 1, at, s.Open(), c)
	a.start(t)
	if made, err := a.createToken(t.Context(), api.NewToken{Uses: 1}); err != nil || made.Line == "" {
		t.Errorf("%+v, %v", made, err)
	}
}

// refusing is a store that refuses to write while it is away.
type refusing struct {
	store.Store
	away atomic.Bool
}

func (s *refusing) Txn(ctx context.Context, t store.Txn) (store.Rev, error) {
	if s.away.Load() {
		return 0, &store.Error{Kind: store.ErrUnavailable, What: "cannot write", Why: "it is away", Fix: "wait"}
	}
	return s.Store.Txn(ctx, t)
}

// TestReportAgain: a report that failed is a fault until one was written, also where it equals the last one again.
func TestReportAgain(t *testing.T) {
	s := &refusing{Store: store.NewMemory()}
	defer s.Close()
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s, &clockwork{})
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{}); err != nil {
		t.Fatal(err)
	}
	condtest.Until(t, "the first report", func() bool {
		_, err := s.Get(t.Context(), member.TreeReport+"/"+member.GUIDKey(guid(1)))
		return err == nil
	})
	use := func(users ...member.User) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.users = users
	}
	s.away.Store(true)
	use(member.User{Kind: "program", Name: "rping", PID: 7})
	condtest.Until(t, "the fault", func() bool {
		return len(a.Degraded()) == 1 && a.Degraded()[0].What == "member_report"
	})
	use()
	s.away.Store(false)
	condtest.Until(t, "the end of the fault", func() bool { return len(a.Degraded()) == 0 })
}

// TestCopiedIdentity: two nodes with one directory's copy are named at every voter.
func TestCopiedIdentity(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	c := &clockwork{}
	dir := t.TempDir()
	a := newHost(t, dir, 1, condtest.Port(t), s, c)
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{}); err != nil {
		t.Fatal(err)
	}
	var other string
	condtest.Until(t, "a copy between two of its writes", func() bool { // which make a file and rename it
		other = t.TempDir()
		return os.CopyFS(other, os.DirFS(dir)) == nil
	})
	for _, name := range []string{"member", "member/identity.json", "member/roster.json"} {
		mode := os.FileMode(0o600)
		if name == "member" {
			mode = 0o700
		}
		if err := os.Chmod(filepath.Join(other, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	b := newHost(t, other, 1, condtest.Port(t), s.Open(), c)
	b.start(t)
	for _, h := range []*host{a, b} {
		condtest.Until(t, "the copied identity", func() bool {
			a.wake()
			b.wake()
			for _, d := range h.Degraded() {
				if d.What == "identity_copied" {
					return strings.Contains(d.Why, "is used twice") && strings.Contains(d.Why,
						strconv.Itoa(a.cfg.Port)) &&
						strings.Contains(d.Why, strconv.Itoa(b.cfg.Port)) && d.Fix != ""
				}
			}
			return false
		})
	}
}

// TestPortTaken: where hosts cannot be answered no fabric is made; it is when the port is free.
func TestPortTaken(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := newHost(t, t.TempDir(), 1, l.Addr().(*net.TCPAddr).Port, s, &clockwork{})
	a.start(t)
	if _, err := a.createToken(t.Context(), api.NewToken{}); err == nil ||
		!strings.Contains(err.Error(), "cannot answer hosts that join") {
		t.Errorf("%v", err)
	}
	if all, err := s.List(t.Context(), ""); err != nil || len(all.Entries) != 0 || a.dir.Pending() {
		t.Errorf("%v, %v", all, err)
	}
	l.Close()
	if made, err := a.createToken(t.Context(), api.NewToken{}); err != nil || made.Founded == "" {
		t.Errorf("%+v, %v", made, err)
	}
	if sum := a.Summary(); !strings.HasPrefix(sum, "host1 of fabric ") ||
		!strings.HasSuffix(sum, ", one of 1, active: voter,manager,administrator") {
		t.Errorf("%q", sum)
	}
}

// TestWrongClock: a member with a clock that is off by an hour is named in the status of the others.
func TestWrongClock(t *testing.T) {
	s := store.NewMemory()
	defer s.Close()
	right, wrong := &clockwork{}, &clockwork{}
	a := newHost(t, t.TempDir(), 1, condtest.Port(t), s, right)
	a.start(t)
	made, err := a.createToken(t.Context(), api.NewToken{})
	if err != nil {
		t.Fatal(err)
	}
	dir, at := t.TempDir(), condtest.Port(t)
	if _, err := Join(t.Context(), JoinSpec{Dir: dir, GUID: guid(2), Host: "127.0.0.1:" + port(a.cfg.Port), Port: at,
		Token: strings.Fields(made.Line)[4], Name: "b1", Now: wrong.now}); err != nil {
		t.Fatal(err)
	}
	b := newHost(t, dir, 2, at, s.Open(), wrong)
	b.start(t)
	named := func(h *host, who string) bool {
		a.wake()
		b.wake()
		for _, d := range h.Degraded() {
			if d.What == "member_clock" {
				return strings.Contains(d.Why, "the clock of "+who+" is wrong: it is ") && strings.Contains(d.Why,
					"ahead")
			}
		}
		return false
	}
	wrong.move(time.Hour)
	condtest.Until(t, "the wrong clock", func() bool { return named(a, "b1") })
}

// TestTowards: other members reach a host at the address from which it sends to them, not at the first of its
// interfaces, which may be the bridge for containers that each host has.
func TestTowards(t *testing.T) {
	own := []string{"172.17.0.1:4792", "10.0.0.1:4792", "192.0.2.1:4792"}
	routes := map[string]string{"10.0.0.2": "10.0.0.1", "10.0.0.3": "10.0.0.1", "192.0.2.3": "192.0.2.1",
		"172.17.0.1": "172.17.0.1", "198.51.100.4": "172.18.0.1"}
	source := func(to netip.Addr) netip.Addr {
		a, _ := netip.ParseAddr(routes[to.String()])
		return a
	}
	roster := func(hosts ...[]string) *member.Roster {
		r := &member.Roster{Members: []member.Record{{GUID: guid(1), Roles: member.HostRoles, Addresses: own}}}
		for i, list := range hosts {
			r.Members = append(r.Members, member.Record{GUID: guid(i + 2), Roles: member.HostRoles, Addresses: list})
		}
		return r
	}
	for name, x := range map[string]struct {
		r    *member.Roster
		want string
	}{
		"alone":   {roster(), ""},
		"another": {roster([]string{"172.17.0.1:4792", "10.0.0.2:4792"}), "10.0.0.1"},
		"most of them": {roster([]string{"192.0.2.3:4792"}, []string{"10.0.0.2:4792"}, []string{"10.0.0.3:1"}),
			"10.0.0.1"},
		"the earlier": {roster([]string{"192.0.2.3:4792", "10.0.0.3:4792"}), "10.0.0.1"},
		"a member counts 1": {roster([]string{"192.0.2.3:4792"}, []string{"192.0.2.3:1"},
			[]string{"10.0.0.2:1", "10.0.0.3:1"}), "192.0.2.1"},
		"no address of own": {roster([]string{"198.51.100.4:4792", "host.example:4792"}), ""},
	} {
		if got := towards(own, x.r, guid(1), source); got != x.want {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weft/internal/mgmt/member"
	"weft/internal/proto/ib"
)

// trunks are trunks without a network.
type trunks struct {
	mu   sync.Mutex
	next int
	open map[int]string // "NAME GUID ADDRESS"
	up   map[int]bool
	// confined are the trunks to confined members.
	confined map[int]bool
	log      []string
	fail     error // of Add
}

func (t *trunks) Add(name string, node ib.GUID, at netip.AddrPort, confined bool) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fail != nil {
		return 0, t.fail
	}
	where := "anywhere"
	if at.IsValid() {
		where = at.String()
	}
	n := t.next
	t.next++
	t.confined[n] = confined
	t.open[n] = fmt.Sprintf("%s %d %s", name, node, where)
	t.log = append(t.log, "add "+t.open[n])
	return n, nil
}

func (t *trunks) Confine(trunk int, confined bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.confined[trunk] = confined
	return nil
}

func (t *trunks) Move(trunk int, at netip.AddrPort) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := strings.Fields(t.open[trunk])
	t.open[trunk] = fmt.Sprintf("%s %s %s", f[0], f[1], at)
	t.log = append(t.log, "move "+t.open[trunk])
	return nil
}

func (t *trunks) Remove(trunk int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = append(t.log, "remove "+t.open[trunk])
	delete(t.open, trunk)
	delete(t.up, trunk)
	return nil
}

func (t *trunks) Up(trunk int) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.up[trunk], nil
}

// all lists the open trunks.
func (t *trunks) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Values(t.open))
}

// set changes what the trunks do.
func (t *trunks) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

func (t *trunks) expect(at *testing.T, want ...string) {
	at.Helper()
	synctest.Wait()
	if got := t.all(); !slices.Equal(got, want) {
		at.Errorf("trunks %q, want %q", got, want)
	}
}

func rec(n int, roles member.Role, addresses ...string) member.Record {
	return member.Record{Name: fmt.Sprintf("m%d", n), GUID: ib.GUID(n), Key: member.Key{byte(n)}, Roles: roles,
		Addresses: addresses}
}

func roster(members ...member.Record) *member.Roster { return &member.Roster{Members: members} }

// start begins a mesh of a member in a bubble.
func start(t *testing.T, self int, resolve func(context.Context, string) ([]netip.Addr, error)) (*Mesh, *trunks) {
	k := &trunks{open: map[int]string{}, up: map[int]bool{}, confined: map[int]bool{}}
	m := New(Config{Self: ib.GUID(self), Trunks: k, Plan: All, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Resolve: resolve})
	m.Start()
	t.Cleanup(m.Close)
	return m, k
}

const host = member.Voter | member.Manager

// TestOneEndBegins: of two members the one with the lower GUID begins, but a leaf begins toward others, and leaves have
// no trunk between them.
func TestOneEndBegins(t *testing.T) {
	members := []member.Record{rec(1, host, "10.0.0.1:4792"), rec(2, host, "10.0.0.2:4792"),
		rec(3, member.Leaf, "10.0.0.3:4792"), rec(4, member.Leaf, "10.0.0.4:4792")}
	for self, want := range map[int][]string{
		1: {"m2 2 10.0.0.2:4792", "m3 3 anywhere", "m4 4 anywhere"},
		2: {"m1 1 anywhere", "m3 3 anywhere", "m4 4 anywhere"},
		3: {"m1 1 10.0.0.1:4792", "m2 2 10.0.0.2:4792"},
		9: nil, // no member
	} {
		synctest.Test(t, func(t *testing.T) {
			m, k := start(t, self, nil)
			m.Follow(roster(members...))
			k.expect(t, want...)
			m.Close()
		})
	}
}

// TestMembersComeAndGo: a trunk goes with its member, also where another takes the place with another key; a host that
// was removed has no trunk.
func TestMembersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := start(t, 1, nil)
		a, b, c := rec(1, host, "10.0.0.1:1"), rec(2, host, "10.0.0.2:1"), rec(3, host, "10.0.0.3:1")
		m.Follow(roster(a, b))
		k.expect(t, "m2 2 10.0.0.2:1")
		m.Follow(roster(a, b, c))
		k.expect(t, "m2 2 10.0.0.2:1", "m3 3 10.0.0.3:1")
		b.Name, b.Addresses = "other", []string{"10.0.0.9:1"} // renamed, moved: the trunk stays
		m.Follow(roster(a, b, c))
		k.expect(t, "m2 2 10.0.0.2:1", "m3 3 10.0.0.3:1")
		b.Key = member.Key{99}
		m.Follow(roster(a, b, c))
		k.expect(t, "m3 3 10.0.0.3:1", "other 2 10.0.0.9:1")
		m.Follow(roster(a, c))
		k.expect(t, "m3 3 10.0.0.3:1")
		m.Follow(roster(b, c))
		k.expect(t)
		m.Close()
	})
}

// TestConfinedMembers: a member is confined unless a role permits it to forward packets of others, from the moment its
// trunk is added, and as its roles change.
func TestConfinedMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := start(t, 1, nil)
		roles := []member.Role{member.Voter, member.Manager, member.Administrator, member.Spine | member.Manager, 0,
			member.Leaf}
		list := []member.Record{rec(1, host, "10.0.0.1:1")}
		for i, r := range roles {
			list = append(list, rec(2+i, r, fmt.Sprintf("10.0.0.%d:1", 2+i)))
		}
		expect := func(when string, want map[string]bool) {
			t.Helper()
			synctest.Wait()
			got := map[string]bool{}
			k.set(func() {
				for n, what := range k.open {
					got[strings.Fields(what)[0]] = k.confined[n]
				}
			})
			if !maps.Equal(got, want) {
				t.Errorf("%s: confined %v, want %v", when, got, want)
			}
		}
		m.Follow(roster(list...))
		expect("new", map[string]bool{"m2": false, "m3": false, "m4": false, "m5": false, "m6": true, "m7": true})
		list[1].Roles, list[5].Roles = 0, member.Manager
		m.Follow(roster(list...))
		time.Sleep(2 * lookEvery)
		expect("later", map[string]bool{"m2": true, "m3": false, "m4": false, "m5": false, "m6": false, "m7": true})
		m.Close()
	})
}

// TestNextAddress: a trunk that is down tries the addresses of the other in turn, those that it reported last; one that
// is up stays.
func TestNextAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := start(t, 1, nil)
		a, b := rec(1, host), rec(2, host, "10.0.0.2:1", "[fd00::2]:1")
		m.Follow(roster(a, b))
		k.expect(t, "m2 2 10.0.0.2:1")
		time.Sleep(patience + lookEvery/2)
		k.expect(t, "m2 2 [fd00::2]:1")
		time.Sleep(patience)
		k.expect(t, "m2 2 10.0.0.2:1")
		k.set(func() { k.up[0] = true })
		time.Sleep(5 * patience)
		k.expect(t, "m2 2 10.0.0.2:1")
		k.set(func() { k.up[0] = false })
		b.Addresses = []string{"10.0.7.7:1"}
		m.Follow(roster(a, b))
		time.Sleep(patience + 2*lookEvery)
		k.expect(t, "m2 2 10.0.7.7:1")
		k.set(func() { k.log = nil })
		time.Sleep(5 * patience)
		k.expect(t, "m2 2 10.0.7.7:1")
		if len(k.log) != 0 {
			t.Errorf("with one address: %q", k.log)
		}
		m.Close()
	})
}

// TestNamesMove: the names of a member are resolved again while its trunk is down, to addresses of either family. Where
// that fails for a while the address in use stays, and nothing happens to a trunk that is up.
func TestNamesMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(list ...string) (addrs []netip.Addr) {
			for _, a := range list {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			return addrs
		}
		var mu sync.Mutex
		names := at("10.0.0.2")
		m, k := start(t, 1, func(context.Context, string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(names) == 0 {
				return nil, errors.New("the server of names does not answer")
			}
			return names, nil
		})
		resolve := func(list ...netip.Addr) {
			mu.Lock()
			defer mu.Unlock()
			names = list
		}
		up := func(is bool) { k.set(func() { k.up[0] = is }) }
		m.Follow(roster(rec(1, host), rec(2, host, "b.example:7")))
		k.expect(t, "m2 2 10.0.0.2:7")
		up(true)
		resolve(at("fd00::2")...)
		time.Sleep(3 * patience)
		k.expect(t, "m2 2 10.0.0.2:7") // it is up
		up(false)
		time.Sleep(patience + 2*lookEvery)
		k.expect(t, "m2 2 [fd00::2]:7")
		resolve()
		time.Sleep(3 * patience)
		k.expect(t, "m2 2 [fd00::2]:7")
		if d := m.Degraded(); len(d) != 0 {
			t.Errorf("%+v", d)
		}
		resolve(at("fd00::22", "10.0.0.22")...)
		k.set(func() { k.log = nil })
		time.Sleep(3 * patience)
		m.Close()
		for _, a := range []string{"[fd00::22]:7", "10.0.0.22:7"} { // in turn
			if !slices.Contains(k.log, "move m2 2 "+a) {
				t.Errorf("%s is not tried: %q", a, k.log)
			}
		}
	})
}

// TestNoTrunk: what keeps a trunk from being added is reported, and tried again.
func TestNoTrunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := map[string][]netip.Addr{"b.example": {netip.MustParseAddr("::ffff:10.0.0.2")}}
		m, k := start(t, 1, func(_ context.Context, name string) ([]netip.Addr, error) {
			if l := names[name]; l != nil {
				return l, nil
			}
			return nil, errors.New("no such host " + name)
		})
		k.fail = errors.New("every port of the switch is in use")
		m.Follow(roster(rec(1, host), rec(2, host, "b.example:7"), rec(3, host, "c.example:7"), rec(4, host)))
		k.expect(t)
		var why []string
		for _, d := range m.Degraded() {
			if d.What != "no_trunk" || d.Fix == "" {
				t.Errorf("%+v", d)
			}
			why = append(why, d.Why)
		}
		want := []string{"no trunk to m2: every port of the switch is in use", "no trunk to m3: no such host c.example",
			"no trunk to m4: no address of it is known"}
		if !slices.Equal(why, want) {
			t.Errorf("%q, want %q", why, want)
		}
		k.set(func() { k.fail = nil })
		time.Sleep(2 * lookEvery)
		k.expect(t, "m2 2 10.0.0.2:7")
		if n := len(m.Degraded()); n != 2 {
			t.Errorf("%d are still without a trunk, want 2", n)
		}
		m.Close()
	})
}

// TestTurnedTrunk: where a role changes which end begins, a trunk that is down is made anew, and one that is up
// once it goes down.
func TestTurnedTrunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, k := start(t, 1, nil)
		before := roster(rec(1, host, "10.0.0.1:4792"), rec(2, host, "10.0.0.2:4792"), rec(3, host, "10.0.0.3:4792"))
		after := roster(rec(1, host, "10.0.0.1:4792"), rec(2, member.Leaf, "10.0.0.2:4792"),
			rec(3, member.Leaf, "10.0.0.3:4792"))
		m.Follow(before)
		k.expect(t, "m2 2 10.0.0.2:4792", "m3 3 10.0.0.3:4792")
		k.set(func() {
			for n, what := range k.open {
				k.up[n] = strings.HasPrefix(what, "m3 ")
			}
		})
		time.Sleep(2 * lookEvery)
		m.Follow(after)
		k.expect(t, "m2 2 anywhere", "m3 3 10.0.0.3:4792")
		k.set(func() { clear(k.up) })
		time.Sleep(2*lookEvery + time.Millisecond)
		k.expect(t, "m2 2 anywhere", "m3 3 anywhere")
		k.set(func() { k.log = nil })
		time.Sleep(5 * lookEvery)
		k.set(func() {
			if len(k.log) != 0 {
				t.Errorf("then %q", k.log)
			}
		})
		m.Follow(before)
		k.expect(t, "m2 2 10.0.0.2:4792", "m3 3 10.0.0.3:4792")
	})
}

// TestSlowNames: names of members that are not resolved for a while delay neither the end of the trunk of a removed
// member, nor the names of others; those of a member that is removed meanwhile are forgotten.
func TestSlowNames(t *testing.T) {
	const slow = 2 * maxLookups
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, most := 0, 0
		m, k := start(t, 1, func(ctx context.Context, host string) ([]netip.Addr, error) {
			mu.Lock()
			open++
			most = max(most, open)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			open--
			mu.Unlock()
			if host == "silent.example" {
				return nil, ctx.Err()
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.9")}, nil
		})
		all := []member.Record{rec(1, host), rec(2, host, "10.0.0.2:7"),
			rec(3, host, "silent.example:7", "10.0.0.3:7"), rec(4, host, "silent.example:7")}
		for n := range slow {
			all = append(all, rec(10+n, host, "slow.example:7"))
		}
		began := time.Now()
		m.Follow(roster(all...))
		k.expect(t, "m2 2 10.0.0.2:7", "m3 3 10.0.0.3:7")
		k.set(func() { k.up[0] = true })
		m.Follow(roster(append(all[:1:1], all[2:]...)...))
		k.expect(t, "m3 3 10.0.0.3:7")
		if d := time.Since(began); d != 0 {
			t.Errorf("the trunk of a removed member ends after %v", d)
		}
		time.Sleep(4 * lookup)
		synctest.Wait()
		if n := len(k.all()); n != slow+1 {
			t.Errorf("%d trunks, want %d", n, slow+1)
		}
		if d := m.Degraded(); len(d) != 1 || !strings.Contains(d[0].Why, "no trunk to m4: ") {
			t.Errorf("%+v", d)
		}
		mu.Lock()
		if most != maxLookups {
			t.Errorf("%d lookups at a time, want %d", most, maxLookups)
		}
		mu.Unlock()
		m.Follow(roster(all[:2]...))
		time.Sleep(2 * lookup)
		k.expect(t, "m2 2 10.0.0.2:7")
		if n := len(m.names.answers); n != 0 {
			t.Errorf("%d answers are kept", n)
		}
	})
}

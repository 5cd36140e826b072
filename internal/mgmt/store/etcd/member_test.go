// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/mgmt/store"
	"weft/internal/mgmt/store/etcd"
	"weft/internal/mgmt/store/voters"
	"weft/internal/proto/condtest"
	"weft/internal/proto/mono"
)

// fabric is some members on this machine.
type fabric struct {
	*testing.T
	dir      string // of the members' directories
	security func(name string) *etcd.Security
	members  map[string]*etcd.Member
	configs  map[string]etcd.MemberConfig
}

// hurry is how much faster than the machine's the clock of the members runs.
const hurry = 40

func newFabric(t *testing.T) *fabric {
	t.Parallel()
	return newFabricAlone(t)
}

// newFabricAlone is newFabric for a test that measures the memory of the process, beside which no other test may run.
func newFabricAlone(t *testing.T) *fabric {
	f := &fabric{T: t, dir: quick(t), members: map[string]*etcd.Member{}, configs: map[string]etcd.MemberConfig{}}
	t.Cleanup(func() {
		for name := range f.members {
			f.kill(name)
		}
	})
	return f
}

// freePort returns the address of a port that no other test uses.
func freePort(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", condtest.Port(t))
}

// prepare makes the configuration of a member, unless there is one.
func (f *fabric) prepare(name string, seeds ...string) etcd.MemberConfig {
	f.Helper()
	c, again := f.configs[name]
	if !again {
		began := time.Now()
		address := freePort(f)
		c = etcd.MemberConfig{Dir: filepath.Join(f.dir, name), Name: name, Listen: address, Advertise: address,
			Timeout: 3 * time.Second, Every: 100 * time.Millisecond,
			Settings: voters.Settings{ReplaceAfter: 60 * time.Second},
			Now:      func() mono.Time { return mono.Time(time.Hour).Add(hurry * time.Since(began)) }}
		for _, s := range seeds {
			c.Seeds = append(c.Seeds, f.configs[s].Advertise)
		}
		if f.security != nil {
			c.Security = f.security(name)
		}
		f.configs[name] = c
	}
	return c
}

// open starts a member; the first one has no seeds.
func (f *fabric) open(name string, seeds ...string) *etcd.Member {
	f.Helper()
	c := f.prepare(name, seeds...)
	m, err := etcd.OpenMember(f.Context(), c)
	if err != nil {
		f.Fatal(err)
	}
	f.members[name] = m
	return m
}

// kill ends a member as the end of its host does, as far as others can see.
func (f *fabric) kill(name string) {
	f.Helper()
	m := f.members[name]
	delete(f.members, name)
	if err := m.Close(); err != nil {
		f.Error(err)
	}
}

// until waits until a condition holds.
func (f *fabric) until(what string, ok func() bool) {
	f.Helper()
	condtest.Until(f, what, ok, func() any {
		parts := ""
		for name, m := range f.members {
			parts += fmt.Sprintf("%s: %+v\n", name, m.Part())
		}
		return parts
	})
}

// roles waits until members have roles, as in "a:voter b:learner".
func (f *fabric) roles(want string) {
	f.Helper()
	f.until(want, func() bool {
		for _, w := range strings.Fields(want) {
			name, role, _ := strings.Cut(w, ":")
			p := f.members[name].Part()
			if p.Role.String() != role || p.Role != etcd.RoleClient && p.Leader == "" {
				return false
			}
		}
		return true
	})
}

// put writes as soon as the store takes it.
func (f *fabric) put(name, key, value string) {
	f.Helper()
	f.until(name+" writes "+key, func() bool {
		_, err := store.Put(f.Context(), f.members[name], key, []byte(value))
		return err == nil
	})
}

func (f *fabric) expect(name, key, value string) {
	f.Helper()
	got := ""
	f.until(fmt.Sprintf("%s reads %s as %q, not %q", name, key, value, got), func() bool {
		e, err := f.members[name].Get(f.Context(), key)
		got = string(e.Value)
		return err == nil && got == value
	})
}

// TestThreeVote has three members become voters one after the other, the fourth a client that replaces one.
func TestThreeVote(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.put("a", "k", "1")
	f.roles("a:voter")
	f.open("b", "a")
	f.roles("a:voter b:learner")
	f.expect("b", "k", "1")
	f.put("b", "k", "2") // a learner's node writes by the voters
	f.open("c", "b")     // a seed without a vote leads to those that have one
	f.roles("a:voter b:voter c:voter")
	f.open("d", "a")
	f.expect("d", "k", "2")
	f.roles("d:client")
	f.until("d knows the voters", func() bool { return f.members["d"].Part().Voters == 3 })
	w, err := f.members["d"].Watch(t.Context(), "k2")
	if err != nil {
		t.Fatal(err)
	}

	// Each death leaves a majority.
	f.kill("a")
	f.put("d", "k", "3")
	f.expect("b", "k", "3")
	f.roles("b:voter c:voter d:voter") // a is away for longer than the setting
	f.put("d", "k2/x", "seen")
	for c := range w {
		if n := len(c.Events); n > 0 && string(c.Events[n-1].Value) == "seen" {
			break
		}
	}

	// What a has is of a replica that was removed.
	f.open("a")
	f.roles("a:client b:voter c:voter d:voter")
	f.expect("a", "k", "3")
	if why := f.members["a"].Part().Why; !strings.Contains(why, "removed") {
		t.Errorf("a is a client because %q", why)
	}
}

// TestFound makes the store of a node that is alone one of a fabric while it runs: what it has stays, watches go
// on, and others join. A listener that cannot be opened leaves it alone as it was.
func TestFound(t *testing.T) {
	f := newFabric(t)
	ctx := t.Context()
	began := time.Now()
	a, err := etcd.OpenMember(ctx, etcd.MemberConfig{Dir: quick(f), Name: "weft", Timeout: 3 * time.Second,
		Every: 100 * time.Millisecond, Settings: voters.Settings{ReplaceAfter: 60 * time.Second},
		Now: func() mono.Time { return mono.Time(time.Hour).Add(hurry * time.Since(began)) }})
	if err != nil {
		t.Fatal(err)
	}
	f.members["a"] = a
	f.put("a", "k", "1")
	w, err := a.Watch(ctx, "seen")
	if err != nil {
		t.Fatal(err)
	}
	if a.Alone() {
		t.Error("a store without a group has no majority")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	if err := a.Found(ctx, etcd.Group{Name: "a", Listen: at, Advertise: at}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("at the address of another listener: %v", err)
	}
	f.put("a", "k", "2")
	at = freePort(t)
	if err := a.Found(ctx, etcd.Group{Name: "a", Listen: at, Advertise: at}); err != nil {
		t.Fatal(err)
	}
	if err := a.Found(ctx, etcd.Group{Name: "a", Listen: at, Advertise: at}); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("twice: %v", err)
	}
	f.configs["a"] = etcd.MemberConfig{Advertise: at}
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	f.expect("c", "k", "2")
	f.put("c", "seen/x", "1")
	for c := range w {
		if n := len(c.Events); n > 0 && c.Events[n-1].Key == "seen/x" {
			break
		}
	}
}

// TestPartWhileBusy: the state is there without a wait for others, also of the copy.
func TestPartWhileBusy(t *testing.T) {
	f := newFabric(t)
	m := f.open("a")
	f.put("a", "k", "1")
	f.roles("a:voter")
	end := m.Busy()
	defer func() { end() }()
	done := make(chan error, 1)
	go func() {
		var err error
		if p := m.Part(); p.Role != etcd.RoleVoter || p.Group.Generation != 1 || m.Alone() {
			err = fmt.Errorf("%+v", p)
		}
		_, copied := m.Copy(t.Context(), "")
		done <- errors.Join(err, copied)
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits")
		end()
		end = func() {}
		<-done
	}
}

// TestNothingAfterClose: a member that was closed opens nothing again.
func TestNothingAfterClose(t *testing.T) {
	at := freePort(t)
	m, err := etcd.OpenMember(t.Context(), etcd.MemberConfig{Dir: quick(t), Name: "weft",
		Now: func() mono.Time { return mono.Time(time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, m.Found(t.Context(), etcd.Group{Name: "a", Listen: at, Advertise: at}), store.ErrUnavailable, "closed")
	want(t, m.Restore(t.Context(), b, true), store.ErrUnavailable, "closed")
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if p := m.Part(); p.Role != etcd.RoleClient {
		t.Errorf("%+v", p)
	}
}

// TestSurvivor kills the voter of two members.
func TestSurvivor(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.open("b", "a")
	f.roles("a:voter b:learner")
	f.put("a", "subnet/intent", "partitions")
	f.until("b has a copy", func() bool {
		l, err := f.members["b"].Copy(t.Context(), "subnet")
		return err == nil && len(l.Entries) == 1
	})
	f.expect("b", "subnet/intent", "partitions")
	err := f.members["b"].Restore(t.Context(), nil, false)
	want(t, err, store.ErrInvalid, "majority", "--force")

	// The death of the one without a vote changes nothing.
	f.kill("b")
	f.put("a", "k", "alone")
	f.open("b")
	f.roles("a:voter b:learner")
	f.expect("b", "k", "alone")

	f.kill("a")
	_, err = store.Put(t.Context(), f.members["b"], "k", []byte("lost"))
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a put without a majority: %v", err)
	}
	f.until("b reports that it is alone", func() bool { return f.members["b"].Part().Alone })
	l, err := f.members["b"].Copy(t.Context(), "subnet")
	if err != nil || len(l.Entries) != 1 || string(l.Entries[0].Value) != "partitions" {
		t.Fatalf("the copy is %+v, %v", l, err)
	}
	if err := f.members["b"].Restore(t.Context(), nil, false); err != nil {
		t.Fatal(err)
	}
	f.expect("b", "subnet/intent", "partitions")
	f.put("b", "k", "authority")
	if g := f.members["b"].Part().Group.Generation; g != 2 {
		t.Errorf("generation %d, want 2", g)
	}

	// The old voter returns with its files, which had a majority on their own.
	f.open("a")
	f.roles("a:learner b:voter")
	f.expect("a", "k", "authority")
	if g := f.members["a"].Part().Group; g != f.members["b"].Part().Group {
		t.Errorf("two groups: %+v, %+v", g, f.members["b"].Part().Group)
	}
}

// TestForcedRestore makes another member the authority while the voter runs: the voter yields.
func TestForcedRestore(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.open("b", "a")
	f.roles("a:voter b:learner")
	f.put("a", "k", "kept")
	f.until("b has a copy", func() bool {
		l, err := f.members["b"].Copy(t.Context(), "")
		return err == nil && slices.ContainsFunc(l.Entries, func(e store.Entry) bool { return e.Key == "k" })
	})
	if err := f.members["b"].Restore(t.Context(), nil, true); err != nil {
		t.Fatal(err)
	}
	f.put("b", "k", "of b")
	f.roles("a:learner b:voter")
	f.expect("a", "k", "of b")
	if why := f.members["a"].Part().Why; !strings.Contains(why, "later generation") {
		t.Errorf("a yields because %q", why)
	}
}

// TestMajorityLost loses two of three voters, and restores the store from a backup.
func TestMajorityLost(t *testing.T) {
	f := newFabric(t)
	f.open("a")
	f.open("b", "a")
	f.open("c", "a")
	f.roles("a:voter b:voter c:voter")
	for i := range 120 {
		f.put("a", fmt.Sprintf("many/%d", i), strings.Repeat("x", 5000))
	}
	f.put("a", "k", "backed up")
	f.expect("c", "k", "backed up")
	b, err := f.members["c"].Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	f.put("a", "k", "later")
	later, err := f.members["a"].Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	f.kill("a")
	f.kill("b")
	f.until("c is alone", func() bool { return f.members["c"].Part().Alone })
	_, err = store.Put(t.Context(), f.members["c"], "k", nil)
	want(t, err, store.ErrUnavailable)
	if b, err = etcd.ParseBackup(raw); err != nil {
		t.Fatal(err)
	}
	if err := f.members["c"].Restore(t.Context(), b, false); err != nil {
		t.Fatal(err)
	}
	f.expect("c", "k", "backed up")
	l, err := f.members["c"].List(t.Context(), "many")
	if err != nil || len(l.Entries) != 120 {
		t.Fatalf("%d entries, %v", len(l.Entries), err)
	}
	f.open("a")
	f.open("b")
	f.roles("a:voter b:voter c:voter")
	f.expect("a", "k", "backed up")
	f.put("b", "k", "again")
	if e, err := f.members["b"].Get(t.Context(), "many/7"); err != nil || e.Rev <= later.Rev {
		t.Errorf("revision %d after the restore, %d before: %v", e.Rev, later.Rev, err)
	}
	// All replicas have the same, revisions too.
	f.until("the copies are equal", func() bool {
		a, err1 := f.members["a"].Copy(t.Context(), "many")
		b, err2 := f.members["b"].Copy(t.Context(), "many")
		c, err3 := f.members["c"].Copy(t.Context(), "many")
		return errors.Join(err1, err2, err3) == nil && cmp.Diff(a.Entries, b.Entries) == "" &&
			cmp.Diff(b.Entries, c.Entries) == ""
	})
	f.expect("c", "k", "again")
	for name, m := range f.members {
		if g := m.Part().Group; g.Generation != 2 {
			t.Errorf("%s: generation %d, want 2", name, g.Generation)
		}
	}
	before, after, err := f.members["b"].Defrag()
	if err != nil || after > before {
		t.Errorf("defragmented from %d to %d, %v", before, after, err)
	}
}

func TestParseBackup(t *testing.T) {
	b := etcd.Backup{Version: etcd.BackupVersion, Entries: []etcd.BackupEntry{{"k", []byte("v")}}}
	raw, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.ParseBackup(raw); err != nil {
		t.Error(err)
	}
	for n := range raw {
		if _, err := etcd.ParseBackup(raw[:n]); !errors.Is(err, store.ErrInvalid) {
			t.Fatalf("the first %d octets are accepted: %v", n, err)
		}
		bad := append([]byte{}, raw...)
		bad[n] ^= 1
		if got, err := etcd.ParseBackup(bad); err == nil && (len(got.Entries) != 1 || got.Entries[0].Key != "k") {
			t.Fatalf("octet %d is wrong, and the backup is accepted", n)
		}
	}
	for _, keys := range [][]string{{"a", "a"}, {"/"}, {""}} {
		b := etcd.Backup{Version: etcd.BackupVersion}
		for _, k := range keys {
			b.Entries = append(b.Entries, etcd.BackupEntry{Key: k})
		}
		raw, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.ParseBackup(raw); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("the keys %q are accepted: %v", keys, err)
		}
	}
}

// FuzzParseBackup: what is accepted is written again as it was.
func FuzzParseBackup(f *testing.F) {
	b := etcd.Backup{Version: etcd.BackupVersion, Revision: 7, Group: voters.Identity{Cluster: 1, Generation: 2},
		Entries: []etcd.BackupEntry{{"subnet/intent", []byte("{}")}, {"k", nil}}}
	raw, err := b.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"weft_store_backup":1,"sha256":""}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := etcd.ParseBackup(raw)
		if err != nil {
			return
		}
		again, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.ParseBackup(again); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"strings"
	"testing"

	"weft/internal/mgmt/member"
	"weft/internal/mgmt/store"
)

// TestNewerRecord: fields that a later weft adds cost no member its place, are reported, and stay in a record that this
// weft changes. A record of another version, which this weft must not guess, is left out, and so is a malformed report.
func TestNewerRecord(t *testing.T) {
	l := newLab(t)
	a := l.found(1, "a1")
	l.join(a, 2, "b1")
	edit := func(key, from, to string) {
		t.Helper()
		e, err := l.store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		b := bytes.Replace(e.Value, []byte(from), []byte(to), 1)
		if bytes.Equal(b, e.Value) {
			t.Fatalf("%s has no %s", key, from)
		}
		if _, err := store.Put(t.Context(), l.store, key, b); err != nil {
			t.Fatal(err)
		}
	}
	members := func() (n int, why string) {
		t.Helper()
		r, err := a.Roster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, problems, err := a.Members(t.Context())
		for _, p := range problems {
			why += p.Error() + "\n"
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Members), why
	}
	const next = `"version":1,"minor":1,"next":{"a":1}`
	edit(recordKey(guid(2)), `"version":1`, next)
	edit(member.KeyFabric, `"version":1`, next)
	if n, why := members(); n != 2 || why != "" || a.Newer().Records != 2 {
		t.Errorf("%d members, %q, %+v", n, why, a.Newer())
	}
	if err := l.host(2).Report(t.Context(), member.Report{Form: member.Form{Minor: 9}}); err != nil {
		t.Fatal(err)
	}
	if n, why := members(); n != 2 || why != "" || a.Newer().Records != 2 {
		t.Errorf("with a report of a later form: %d members, %q, %+v", n, why, a.Newer())
	}
	if err := a.Rename(t.Context(), "b1", "b2"); err != nil {
		t.Fatal(err)
	}
	if err := a.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	edit(recordKey(guid(2)), `"next":{"a":1}`, `"next":{"a":2}`) // it is still there
	edit(member.KeyFabric, `"next":{"a":1}`, `"next":{"a":2}`)
	edit(recordKey(guid(2)), `"minor":1,`, ``)
	if n, why := members(); n != 1 || !strings.Contains(why, `unknown field "next"`) {
		t.Errorf("%d members, %q", n, why)
	}
	edit(recordKey(guid(2)), `"version":1`, `"version":2`)
	if n, why := members(); n != 1 || !strings.Contains(why, "version 2") || a.Newer().Records != 1 {
		t.Errorf("%d members, %q, %+v", n, why, a.Newer())
	}
	edit(recordKey(guid(2)), `"version":2`, `"version":1,"minor":1`)
	if _, err := store.Put(t.Context(), l.store, reportKey(guid(2)), []byte("?")); err != nil {
		t.Fatal(err)
	}
	if n, why := members(); n != 2 || strings.Contains(why, "weft store restore") ||
		!strings.Contains(why, "remove it: weft member list") {
		t.Errorf("%d members, %q", n, why)
	}
}

// SPDX-License-Identifier: Apache-2.0

package fixes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// source is a package with fixes of all forms.
const source = `package x

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

type Error struct{ What, Fix string }

type Degraded struct{ Name, Why, Fix string }

func New(what, fix string) *Error { return &Error{what, fix} }

func direct() *Error { return &Error{Fix: "direct"} }

func through(name string) *Error { return New("x", "through "+name) }

func known() *Error { return through("known") }

func unknown() *Error { return New("x", os.Getenv("FIX")) }

func assigned(n int) (e Error) {
	e.Fix = fmt.Sprintf("assigned %d%%", n)
	if n > 1 {
		e.What, e.Fix = "x", "pair"
	}
	return e
}

func closure() (list []*Error) {
	add := func(fix string) { list = append(list, &Error{Fix: fix + " closed"}) }
	add("one")
	add("two")
	return list
}

func local(b bool) *Error {
	fix := "first"
	if b {
		fix = "second"
	}
	fix += ", longer"
	return &Error{Fix: fix}
}

func result() (string, error) {
	if os.Getenv("X") == "" {
		return "", errors.New("x")
	}
	return "result", nil
}

func results() *Error {
	s, err := result()
	if err != nil {
		return nil
	}
	return &Error{Fix: s}
}

func copied(e *Error) Degraded { return Degraded{Name: "x", Fix: e.Fix} }

func or(e *Error) Degraded { return Degraded{Name: "x", Fix: cmp.Or(e.Fix, "or")} }

func none() Degraded { return Degraded{Name: "x", Why: "y"} }

func address(a netip.AddrPort) *Error { return &Error{Fix: "ping " + a.String()} }

func checked(a netip.AddrPort) *Error {
	if !a.IsValid() {
		return nil
	}
	return &Error{Fix: "checked " + a.String()}
}

func printed(n int) error { return fmt.Errorf("bad %d. fix: printed %d times\n", n, n) }

var table = map[string]string{"a": "of a table"}

func element(k string) *Error { return &Error{Fix: table[k]} }
`

// TestFind finds the fixes of a package, also those that are not known, and states without one.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module x\n\ngo 1.26\n", "x.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	list, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		text := f.Text.String()
		for _, p := range f.Text {
			if p.Checked {
				text += " valid"
			}
		}
		got = append(got, text)
		if !strings.HasPrefix(f.Pos, "x.go:") {
			t.Errorf("%q is at %q", text, f.Pos)
		}
	}
	want := []string{"", "<fix of x.Error>", "<string>", "assigned <int>%", "checked <netip.AddrPort> valid", "direct",
		"first", "first, longer", "of a table", "one closed", "or", "pair", "ping <netip.AddrPort>",
		"printed <int> times",
		"result", "second", "second, longer", "through known", "two closed"}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

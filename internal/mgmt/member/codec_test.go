// SPDX-License-Identifier: Apache-2.0

package member

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// samples are one record of each kind, encoded.
func samples(t testing.TB) map[string][]byte {
	b := newBench(&testing.T{}, "a1", "a2")
	_, tok := b.token()
	claims, _, _ := b.roster.Admit(b.certificate("a1"), start)
	sealed, err := b.ca.Seal(claims, b.ids["a1"].Key())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	add := func(name string, text []byte, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = text
	}
	keep := func(name string) func([]byte, error) { return func(b []byte, err error) { add(name, b, err) } }
	keep("record")(Encode(b.roster.Members[0]))
	keep("gone")(Encode(Gone{GUID: guid(3), Name: "c", Key: Key{3}, At: start, Until: start.Add(time.Hour)}))
	keep("fabric")(Encode(b.fabric))
	keep("report")(Encode(Report{GUID: guid(1), Program: "v1", Users: []User{{Kind: "program", Name: "x", PID: 7}}}))
	keep("sealed")(Encode(sealed))
	keep("token")(Encode(*tok))
	keep("roster")(Encode(b.roster))
	return out
}

// recode decodes and encodes a record of a kind; a decoded record always encodes to what decodes to the same.
func recode[T any, R interface {
	*T
	Value
}](t *testing.T, b []byte) error {
	v, err := Decode[T, R](b)
	if err != nil {
		return err
	}
	again, err := Encode[T, R](v)
	if err != nil {
		t.Fatalf("decoded and not encoded: %v", err)
	}
	w, err := Decode[T, R](again)
	if err != nil {
		t.Fatalf("encoded and not decoded: %v", err)
	}
	if f := R(&v).form(); R(&w).form().Kept == nil {
		f.Kept = nil // it did not fit
	}
	if diff := cmp.Diff(v, w); diff != "" {
		t.Fatal(diff)
	}
	return nil
}

var kinds = map[string]func(*testing.T, []byte) error{
	"record": recode[Record], "gone": recode[Gone], "fabric": recode[Fabric], "report": recode[Report],
	"sealed": recode[Sealed], "token": recode[Token], "roster": recode[Roster],
}

// TestRecords: each kind is kept whole; every truncation, another version, unknown fields and other kinds are refused.
func TestRecords(t *testing.T) {
	all := samples(t)
	for name, f := range kinds {
		b := all[name]
		if err := f(t, b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for n := 0; n < len(b); n += 1 + len(b)/64 {
			if f(t, b[:n]) == nil {
				t.Errorf("%s: %d of %d octets pass", name, n, len(b))
			}
		}
		if err := f(t, []byte(strings.Replace(string(b), `"version":1`, `"version":2`, 1))); err == nil ||
			!strings.Contains(err.Error(), "version 2, this weft reads version 1") {
			t.Errorf("%s: %v", name, err)
		}
		if f(t, []byte(strings.Replace(string(b), `{`, `{"stranger":1,`, 1))) == nil {
			t.Errorf("%s: an unknown field passes", name)
		}
		if f(t, append(b[:len(b):len(b)], '1')) == nil {
			t.Errorf("%s: a second value passes", name)
		}
		for other, text := range all {
			if other != name && f(t, text) == nil {
				t.Errorf("%s passes as %s", other, name)
			}
		}
	}
	if err := kinds["record"](t, make([]byte, MaxRecord+1)); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a long record: %v", err)
	}
}

// TestNewerRecords: the fields that a later weft adds with a later minor form cost no record, and are written back by
// what changes it, as long as all of it fits.
func TestNewerRecords(t *testing.T) {
	for name, b := range samples(t) {
		with := func(head, more string) []byte {
			s := strings.Replace(string(b), `"version":1`, `"version":1`+head, 1)
			return []byte(s[:len(s)-1] + more + "}")
		}
		f := kinds[name]
		if f(t, with(`,"minor":0`, `,"next":1`)) == nil || f(t, with(`,"minor":-1`, "")) == nil {
			t.Errorf("%s: an unknown field passes without a later form", name)
		}
		if err := f(t, with(`,"minor":7`, `,"next":{"a":[1]},"Version":1`)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := samples(t)["report"]
	text := func(more string) []byte {
		return []byte(strings.Replace(string(b), `"version":1`, `"version":1,"minor":7,"next":{"a":[1]},"GUID":"x"`+more, 1))
	}
	if _, err := Decode[Report](text("")); err == nil { // it is another spelling of guid
		t.Error("a wrong GUID passes")
	}
	b = []byte(strings.Replace(string(b), `"guid":`, `"switch":{"ports":3,"lamps":4},"guid":`, 1))
	v, err := Decode[Report](bytes.Replace(text(""), []byte(`,"GUID":"x"`), nil, 1))
	if err != nil {
		t.Fatal(err)
	}
	v.More = 9
	again, err := Encode(v)
	if err != nil || !v.Newer() || v.Switch.Ports != 3 {
		t.Fatalf("%v, %+v", err, v)
	}
	var got struct {
		Minor, More int
		Next        struct{ A []int }
	}
	if err := json.Unmarshal(again, &got); err != nil || got.Minor != 7 || got.More != 9 || len(got.Next.A) != 1 {
		t.Errorf("%v: %s", err, again)
	}
	v.Kept["pad"] = json.RawMessage(`"` + strings.Repeat("x", MaxRecord) + `"`)
	if again, err = Encode(v); err != nil || len(again) > MaxRecord {
		t.Errorf("%d octets, %v", len(again), err)
	}
}

// FuzzRecords decodes any octets as each kind of record.
func FuzzRecords(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b)
		f.Add(bytes.Replace(b, []byte(`"version":1`), []byte(`"version":1,"minor":3,"next":[{}]`), 1))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range kinds {
			kind(t, b)
		}
	})
}

// FuzzSecret parses any text as a token: what passes is written the same.
func FuzzSecret(f *testing.F) {
	b := newBench(&testing.T{})
	s, _ := b.token()
	f.Add(s.Text())
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSecret(text)
		if err == nil && s.Text() != strings.TrimSpace(text) {
			t.Errorf("%q is read as %q", text, s.Text())
		}
	})
}

// FuzzClaims reads any certificate: what passes can be in no other form, and the roster admits it only with a
// signature of its CA.
func FuzzClaims(f *testing.F) {
	b := newBench(&testing.T{}, "a1")
	f.Add(b.roster.Members[0].Certificate)
	f.Add(b.ca.cert.Raw)
	f.Fuzz(func(t *testing.T, der []byte) {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		x, err := ClaimsOf(c)
		if err == nil && (x.Check() != nil || x.uri().String() != c.URIs[0].String()) {
			t.Errorf("%+v", x)
		}
		if _, v, _ := b.roster.Admit(c, start); v.OK() && c.CheckSignatureFrom(b.ca.cert) != nil {
			t.Error("admitted without a signature")
		}
	})
}

// FuzzNames checks names and addresses of any text: what passes is short, printable, and of one form.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"b1", "10.0.0.1:4792", "[fd00::1]:4792", "a.example:1", "voter,manager"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckName(s) == nil && (s != strings.ToLower(s) || len(s) > MaxName || NameOf(s) != s) {
			t.Errorf("the name %q", s)
		}
		if n := NameOf(s); n != "" && CheckName(n) != nil {
			t.Errorf("%q makes %q", s, n)
		}
		if CheckAddress(s) == nil && strings.ContainsAny(s, " \n\"'") {
			t.Errorf("the address %q", s)
		}
		if r, err := ParseRoles(s); err == nil && r.Check() != nil {
			t.Errorf("the roles %q", s)
		}
	})
}

// TestKeptFieldsDoNotFit: a record without the fields of a later minor form is not of that form.
func TestKeptFieldsDoNotFit(t *testing.T) {
	for _, octets := range []int{100, MaxRecord} {
		p := Report{GUID: 0x0200000000010000}
		p.Minor = recordMinor + 1
		p.Kept = map[string]json.RawMessage{"next": json.RawMessage(`"` + strings.Repeat("x", octets) + `"`)}
		b, err := Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		var head Form
		if err := json.Unmarshal(b, &head); err != nil {
			t.Fatal(err)
		}
		if kept := strings.Contains(string(b), "next"); kept != head.Newer() || kept != (octets < MaxRecord) {
			t.Errorf("%d octets: kept %v, the minor form is %d", octets, kept, head.Minor)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/internal/control/api"
	"weft/internal/control/fabricfile"
)

// fakeDesired keeps a configuration. A change that leaves out a partition takes contact away.
type fakeDesired struct{ is api.Desired }

func (f *fakeDesired) ExportDesired(context.Context) (api.Desired, error) {
	d := f.is
	if d.Partitions == nil {
		d.Partitions = []api.DesiredPartition{}
	}
	return d, nil
}

func (f *fakeDesired) CompareDesired(ctx context.Context, d api.Desired) (v api.Comparison, err error) {
	for _, p := range d.Partitions {
		if !strings.HasPrefix(p.PKey, "0x") {
			return v, &api.Error{Code: api.CodeInvalid, Why: "line 4: that is no P_Key",
				Fix: "weft export prints the form"}
		}
	}
	v.Changes = fabricfile.Compare(f.is, d, nil)
	for _, c := range v.Changes {
		if c.Kind == api.ChangeDelete {
			v.Lost = &api.LostContact{Pairs: 3, Lines: []string{"h weft_ib0: h weft_ib1, g weft_ib0, g weft_ib1"},
				More: 1, Digest: "d1"}
		}
	}
	return v, nil
}

func (f *fakeDesired) ApplyDesired(ctx context.Context, d api.Desired) (api.Comparison, error) {
	v, err := f.CompareDesired(ctx, d)
	if c := api.Confirmed(ctx); err == nil && v.Lost != nil && c != api.ConfirmAll && c != v.Lost.Digest {
		return v, &api.Error{Code: api.CodeContact, Why: "it takes contact away: h weft_ib0: …",
			Fix: "the same with --yes", Lost: v.Lost}
	}
	if err == nil {
		f.is = d
	}
	return v, err
}

func (f *fakeDesired) History(_ context.Context, since api.Since) ([]api.HistoryEntry, error) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	if !since.Time().IsZero() {
		return nil, nil
	}
	return []api.HistoryEntry{
		{Number: 7, At: at, Member: "b1", UID: 1000, User: "ann", Op: "pkey add",
			Text: "+ partition red (0x8001): members + 0200:0000:0001:0003"},
		{Number: 8, At: at.Add(time.Hour), UID: 1001, Op: "apply", Text: "- vesw lab"},
		{Number: 9, At: at.Add(2 * time.Hour), UID: -1, Member: "b2", Op: "member remove", Text: "another M_Key"}}, nil
}

// ExportNode has the devices with the names busy and stuck alone.
func (b *fakeBackend) ExportNode(context.Context) (api.DesiredNode, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := api.DesiredNode{GUID: "02aa:0000:0001:0000", Devices: []api.DesiredDevice{}, Links: []api.DesiredLink{}}
	for _, f := range b.funcs {
		if f.Name == "busy" || f.Name == "stuck" {
			d.Devices = append(d.Devices, api.DesiredDevice{Name: f.Name})
		}
	}
	return d, nil
}

// LostByFunction: a program uses the device busy.
func (b *fakeBackend) LostByFunction(_ context.Context, name string) (*api.LostContact, error) {
	if name != "busy" {
		return nil, nil
	}
	return &api.LostContact{Lines: []string{"h busy: the sessions of prog (process 7) end"}, Digest: "d2"}, nil
}

// delFunction refuses to delete busy without a confirmation, and stuck always.
func (b *fakeBackend) delFunction(ctx context.Context, name string) error {
	lost, _ := b.LostByFunction(ctx, name)
	switch c := api.Confirmed(ctx); {
	case name == "stuck":
		return &api.Error{Code: api.CodeConflict, Why: "it is stuck", Fix: "weft dev"}
	case lost != nil && c != api.ConfirmAll && c != lost.Digest:
		return &api.Error{Code: api.CodeContact, Why: "it takes contact away", Fix: "the same with --yes", Lost: lost}
	}
	return b.DelFunction(ctx, name)
}

func TestSince(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]api.Since{"": "", "90m": "2026-11-23T10:30:00Z",
		"2026-11-23T01:02:03+01:00": "2026-11-23T00:02:03Z"} {
		if got, err := sinceOf(s, now); err != nil || got != want || got.Validate() != nil {
			t.Errorf("%q: %q %v, want %q", s, got, err, want)
		}
	}
	day, err := sinceOf("2026-11-23", now)
	if err != nil || !day.Time().Equal(time.Date(2026, 11, 23, 0, 0, 0, 0, time.Local)) {
		t.Errorf("a day: %q %v", day, err)
	}
	for _, s := range []string{"yesterday", "-1h", "2026-13-01"} {
		if got, err := sinceOf(s, now); err == nil {
			t.Errorf("%q is %q", s, got)
		}
	}
}

// TestConfirming: a loss of contact is printed and asked about on a terminal; what was printed is confirmed, and no
// more. Without a terminal it is refused.
func TestConfirming(t *testing.T) {
	lost := func(digest string) error {
		return &api.Error{Code: api.CodeContact, What: "cannot delete", Why: "it takes contact away", Fix: "with --yes",
			Lost: &api.LostContact{Pairs: 12, Lines: []string{"a: b", "c: d"}, More: 3, Digest: digest}}
	}
	for _, x := range []struct {
		name     string
		yes      bool
		terminal bool
		in       string
		digests  []string // of the losses that the node sees, one for each call
		calls    []string // what each call confirms
		done     bool
		printed  []string
	}{
		{name: "nothing is lost", calls: []string{""}, done: true},
		{name: "--yes", yes: true, digests: []string{"x"}, calls: []string{"all"}, done: true},
		{name: "no terminal", digests: []string{"x"}, calls: []string{""},
			printed: []string{"12 pairs of ports would lose contact:\n  a: b\n  c: d\n  … and 3 more\n"}},
		{name: "the answer is yes", terminal: true, in: "y\n", digests: []string{"x", "x"}, calls: []string{"", "x"},
			done: true, printed: []string{"go on? [y/N] "}},
		{name: "the answer is no", terminal: true, in: "n\n", digests: []string{"x"}, calls: []string{""}},
		{name: "no answer", terminal: true, digests: []string{"x"}, calls: []string{""}},
		{name: "more is lost by then", terminal: true, in: "y\n", digests: []string{"x", "y"},
			calls: []string{"", "x"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			var err bytes.Buffer
			a := &app{yes: x.yes, args: []string{"pkey", "delete", "a b"},
				env: Env{In: oneByte{strings.NewReader(x.in)},
					InTerminal: x.terminal, Err: &err}}
			if x.terminal {
				a.env.ErrTerminal.Width = 80
			}
			var calls []string
			_, got := confirming(t.Context(), a, func(ctx context.Context) (int, error) {
				c := api.Confirmed(ctx)
				calls = append(calls, c)
				if n := len(calls) - 1; n < len(x.digests) && c != api.ConfirmAll && c != x.digests[n] {
					return 0, lost(x.digests[n])
				}
				return 1, nil
			})
			if diff := cmp.Diff(x.calls, calls); diff != "" {
				t.Error(diff)
			}
			var e *api.Error
			switch {
			case (got == nil) != x.done:
				t.Errorf("the end is %v", got)
			case got != nil && (!errors.As(got, &e) || e.Fix != "weft pkey delete 'a b' --yes"):
				t.Errorf("the refusal is %v", got)
			}
			for _, p := range x.printed {
				if !strings.Contains(err.String(), p) {
					t.Errorf("printed %q, without %q", err.String(), p)
				}
			}
		})
	}
}

// oneByte returns one octet for each Read, as a terminal may.
type oneByte struct{ io.Reader }

func (o oneByte) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return o.Reader.Read(b[:1])
}

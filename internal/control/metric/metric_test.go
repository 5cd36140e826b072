// SPDX-License-Identifier: Apache-2.0

package metric

import (
	"regexp"
	"strings"
	"testing"

	"weft/internal/control/api"
)

// TestEveryMetricIsDescribed checks the form of each description: a name, a unit that is a plural noun, and a
// meaning in one line.
func TestEveryMetricIsDescribed(t *testing.T) {
	name := regexp.MustCompile(`^[a-z0-9]+(_[a-z0-9]+)*$`)
	titles := map[string]bool{}
	for _, g := range Groups() {
		if id := g.Scope + " " + g.Part; !titles[id] {
			titles[id] = true
			if g.Title == "" {
				t.Errorf("the first group of %q has no title", id)
			}
		}
		for _, m := range g.Metrics {
			if !name.MatchString(m.Name) {
				t.Errorf("%s: %q is no name of a counter", g.Scope, m.Name)
			}
			if !strings.HasSuffix(m.Unit, "s") {
				t.Errorf("%s %s: the unit %q is no plural", g.Scope, m.Name, m.Unit)
			}
			if m.Meaning == "" || strings.ContainsAny(m.Meaning, "\n|") || strings.HasSuffix(m.Meaning, ".") {
				t.Errorf("%s %s: the meaning %q is empty, has a line break or a bar, or ends with a dot",
					g.Scope, m.Name, m.Meaning)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		scope, instance, name, unit string
	}{
		{api.ScopeNode, "", "sessions", "sessions"},
		{api.ScopeNode, "gsi", "sent", "datagrams"},
		{api.ScopeNode, "umad", "refused", "records"},
		{api.ScopeLink, "roce0", "sent_packets", "packets"},
		{api.ScopeLink, "roce0", "no_such_counter", ""},
		{api.ScopeNode, "", "commands", ""}, // of the instance rdmacm only
	} {
		m, ok := Lookup(c.scope, c.instance, c.name)
		if ok != (c.unit != "") || m.Unit != c.unit {
			t.Errorf("%s %q %s: got %v, %q", c.scope, c.instance, c.name, ok, m.Unit)
		}
	}
}

func TestScopes(t *testing.T) {
	want := "node session qp lane link trunk port agent join store sm sa em mcast cm ipoib vesw vm"
	if got := strings.Join(Scopes(), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
